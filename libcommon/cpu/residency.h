/* residency.h - bound the part of a model's weights that is in memory, for models larger than RAM.
 *
 * A step reads the weights in a fixed order: layers, then the head.  A layer, or a slice of the
 * head, is a span.  The first layers stay resident, as many as fit beside two more spans.  The
 * other weights pass through these two: while one is in use a thread reads the next, and spans are
 * dropped after use.  (Keeping the most recently used layers, as the page cache does, would drop
 * each of them just before it is used
 * again.)  Dropped means unmapped from this process: the page cache keeps the pages while memory is
 * free.  Results do not change.
 *
 * Experts are read as they are chosen (expert_cache.h), into the memory that the bound leaves for
 * them. */
#ifndef ZSE_CPU_RESIDENCY_H
#define ZSE_CPU_RESIDENCY_H

#include "libcommon/cpu/cpu.h"
#include "libcommon/cpu/expert_cache.h"
#include "libcommon/model/model.h"

struct residency;
/* Open the weights of a model that is in a file.  max_bytes bounds the resident pages of its
 * weights.  m is borrowed.  Returns NULL with *e, also if two layers do not fit. */
struct residency *residency_open(const struct model *m, size_t max_bytes, struct err *e);
void residency_close(struct residency *r);      /* NULL is fine */

/* Returns the counts since opening; r NULL: all 0. */
struct cpu_passing residency_counts(struct residency *r);

/* Decode a row of a matrix of the model's file like mat_decode_row, without mapping its page.
 * One call at a time. */
void residency_row(struct residency *r, const struct mat *m, int64_t row, float *out);

/* These functions accept r NULL, which means that memory is not bounded. */
struct expert_cache *residency_experts(const struct residency *r);
void residency_layer(struct residency *r, int layer);           /* the step enters this layer */
void residency_looked_up(struct residency *r);                  /* the embedding was read */
/* The head is used in slices.  residency_head_slices() returns their number, at least 1.
 * residency_head() is called when the step enters slice i, and sets [*tile0, *tile1) to its tiles
 * of m->head. */
int residency_head_slices(const struct residency *r);
void residency_head(struct residency *r, int i, const struct mat *head, int *tile0, int *tile1);

#endif
