/* expert_cache.h - which experts of a model are in memory, when not all may be.
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

/* Each layer's experts as ranges of the file.  NULL without an error in *e (code ERR_NONE) where
 * there are none, or where they are not ranges of their own.  m is borrowed. */
struct expert_cache *expert_cache_open(const struct model *m, struct err *e);
void expert_cache_close(struct expert_cache *c);                /* NULL is fine */

size_t expert_cache_least(const struct expert_cache *c);        /* bytes without which it cannot work */
size_t expert_cache_all(const struct expert_cache *c);          /* bytes of all experts */
const uint8_t *expert_cache_begin(const struct expert_cache *c, int layer);     /* where the experts of a layer begin; NULL: it has none */
/* From now on keep at most so many bytes, at least the least. */
int expert_cache_start(struct expert_cache *c, size_t max_bytes, struct err *e);

/* The step wants these experts (in ascending order, each once), tokens[i] use expert[i].  All of
 * those before must have been released. */
void expert_cache_want(struct expert_cache *c, int layer, const int *expert, const int *tokens, int n);
/* How many are there, from the first on that was not released: at least 1 if it may wait for
 * that one.  They stay until released. */
int expert_cache_use(struct expert_cache *c, int may_wait);
void expert_cache_release(struct expert_cache *c, int n);       /* the first n of these */
/* An expert of the layer that is used: its matrices where they are in memory. */
struct expert expert_cache_at(const struct expert_cache *c, int layer, int expert);
/* Is it worth while to guess what the next layer wants?  If so: what that guess is (any order). */
int expert_cache_guesses(struct expert_cache *c);
void expert_cache_guess(struct expert_cache *c, int layer, const int *expert, int n);

void expert_cache_stats(struct expert_cache *c, struct cpu_streamed *s);

#endif
