/* expert_cache.h - keep the most used experts of a model in memory, within a bound.
 *
 * A step requests the experts of a layer, in ascending order, and continues with those that are in
 * memory while a thread reads the others from the file.  The most used experts stay; a use counts
 * half after some thousand tokens.  While the disk is idle, the thread reads the experts that the
 * next layer is guessed to need, if such guesses have been mostly right.
 *
 * Experts in memory are private copies.  They are read past the page cache unless it holds them
 * already: for a model larger than memory the page cache would only keep a second copy of each
 * expert, and could evict an expert just before it is needed. */
#ifndef ZSE_CPU_EXPERT_CACHE_H
#define ZSE_CPU_EXPERT_CACHE_H

#include "libcommon/cpu/cpu.h"
#include "libcommon/model/model.h"

struct expert_cache;

/* Find each layer's experts as ranges of the file.  m is borrowed.  Returns NULL with *e; if the
 * model has no experts, or they share ranges with other weights, e->code is ERR_NONE. */
struct expert_cache *expert_cache_open(const struct model *m, struct err *e);
void expert_cache_close(struct expert_cache *c);                /* NULL is fine */

/* the smallest max_bytes that expert_cache_start() accepts */
size_t expert_cache_least(const struct expert_cache *c);
size_t expert_cache_all(const struct expert_cache *c);          /* bytes of all experts */
/* first byte of a layer's experts; NULL: it has none */
const uint8_t *expert_cache_begin(const struct expert_cache *c, int layer);
/* Start; keeps at most max_bytes >= expert_cache_least() in memory. */
int expert_cache_start(struct expert_cache *c, size_t max_bytes, struct err *e);

/* Request experts of a layer (ascending, each once); tokens[i] tokens use expert[i].  All experts
 * of the previous request must have been released. */
void expert_cache_want(struct expert_cache *c, int layer, const int *expert, const int *tokens, int n);
/* Returns the number of requested experts that are in memory, counted from the first unreleased
 * one; with may_wait it waits until that is at least 1.  They stay in memory until released. */
int expert_cache_use(struct expert_cache *c, int may_wait);
void expert_cache_release(struct expert_cache *c, int n);       /* release the first n of these */
/* The matrices of an expert in use, at their addresses in the cache. */
struct expert expert_cache_at(const struct expert_cache *c, int layer, int expert);
/* Returns 1 if guesses of the next layer's experts have been right often enough to go on with; the
 * caller then passes its guess (in any order) to expert_cache_guess(). */
int expert_cache_guesses(struct expert_cache *c);
void expert_cache_guess(struct expert_cache *c, int layer, const int *expert, int n);

void expert_cache_stats(struct expert_cache *c, struct cpu_streamed *s);

#endif
