/* residency.h - keep no more of a model's weights in memory than a bound, for models larger than
 * RAM.
 *
 * A step reads the weights in one order: layers, then the head.  The first layers stay, as many as
 * the bound allows beside two more pieces; through these two the rest of the weights pass: while
 * one is computed on, a thread brings in the next, and what is done goes.  (Keeping the layers used
 * last, as the page cache does by itself, would lose each of them just before it is used again.)
 * "Gone" means out of this process: the page cache keeps the pages while the machine has nothing
 * better to do with its memory.  Results do not change.
 *
 * Experts come as they are chosen (expert_cache.h), into what the bound leaves when everything
 * else has its place. */
#ifndef ZSE_CPU_RESIDENCY_H
#define ZSE_CPU_RESIDENCY_H

#include "libcommon/cpu/expert_cache.h"
#include "libcommon/model/model.h"

struct residency;
/* For a model in a file. max_bytes bounds the resident pages of its weights; fails if two layers
 * do not fit. m is borrowed. */
struct residency *residency_open(const struct model *m, size_t max_bytes, struct err *e);
void residency_close(struct residency *r);      /* NULL is fine */

/* Row `row` of a matrix of the model's file, decoded as by mat_decode_row, read without mapping
 * its page. One call at a time. */
void residency_row(struct residency *r, const struct mat *m, int64_t row, float *out);

/* All of these accept NULL: memory is not bounded. */
struct expert_cache *residency_experts(const struct residency *r);      /* NULL: experts are part of their layers */
void residency_layer(struct residency *r, int layer);           /* the step enters this layer */
void residency_looked_up(struct residency *r);                  /* the embedding was read */
/* The head is used in slices: their number, at least 1, and the tiles of slice i, [*tile0,
 * *tile1) of m->head, which the step enters. */
int residency_head_slices(const struct residency *r);
void residency_head(struct residency *r, int i, const struct mat *head, int *tile0, int *tile1);

#endif
