/* expert_cache.h - keep the most used experts of a model in memory, within a bound.
 *
 * A step says which experts of a layer it wants, in order of their numbers, and goes on with as
 * many as are there while a thread brings in the others from the file.  Those that were used most
 * stay; a use counts half after some thousand tokens.  While the disk has nothing to do it reads
 * what the next layer will want if its guess was mostly right so far.
 *
 * Experts in memory are copies in private memory, read past the page cache (a model larger than
 * memory gains nothing from it: it would hold each expert a second time, and give up at any
 * moment what is wanted next), unless it has them anyway. */
#ifndef ZSE_CPU_EXPERT_CACHE_H
#define ZSE_CPU_EXPERT_CACHE_H

#include "libcommon/cpu/cpu.h"
#include "libcommon/model/model.h"

struct expert_cache;

/* Find each layer's experts as ranges of the file. NULL with e->code ERR_NONE if the model has
 * none, or they share ranges with other weights. m is borrowed. */
struct expert_cache *expert_cache_open(const struct model *m, struct err *e);
void expert_cache_close(struct expert_cache *c);                /* NULL is fine */

size_t expert_cache_least(const struct expert_cache *c);        /* least bytes with which it works */
size_t expert_cache_all(const struct expert_cache *c);          /* bytes of all experts */
/* the first byte of a layer's experts; NULL: it has none */
const uint8_t *expert_cache_begin(const struct expert_cache *c, int layer);
/* Start; keep at most max_bytes in memory, which is expert_cache_least() at least. */
int expert_cache_start(struct expert_cache *c, size_t max_bytes, struct err *e);

/* Request experts of a layer (ascending, each once), tokens[i] tokens use expert[i]. All earlier
 * ones must have been released. */
void expert_cache_want(struct expert_cache *c, int layer, const int *expert, const int *tokens, int n);
/* Number of requested experts in memory, from the first unreleased one on; at least 1 if it may
 * wait for that one. They stay until released. */
int expert_cache_use(struct expert_cache *c, int may_wait);
void expert_cache_release(struct expert_cache *c, int n);       /* the first n of these */
/* The matrices of an expert in use, where the cache holds them. */
struct expert expert_cache_at(const struct expert_cache *c, int layer, int expert);
/* 1 if guesses of the next layer's experts have been right often enough; then tell it the guess
 * (in any order). */
int expert_cache_guesses(struct expert_cache *c);
void expert_cache_guess(struct expert_cache *c, int layer, const int *expert, int n);

void expert_cache_stats(struct expert_cache *c, struct cpu_streamed *s);

#endif
