/* cpu_attn.h - attention of one layer: q and k norms, rotation, the KV cache, softmax. */
#ifndef ZSE_CPU_CPU_ATTN_H
#define ZSE_CPU_CPU_ATTN_H

#include "libcommon/cpu/cpu_core.h"

/* The first token of an item, from i on, that is its first or begins a KV block; the number of its
 * tokens if there is none. */
static inline int attn_next_block(const struct batch_item *it, int i)
{
    const int behind = (it->pos + i) % KV_BLOCK, at = behind ? i + KV_BLOCK - behind : i;
    return i == 0 ? 0 : at < it->n_tokens ? at : it->n_tokens;
}

enum {
    /* rows (query x head) of one job: enough to reuse a block of keys, few enough that threads
     * can share a prompt */
    ATTN_ROWS = 96,
    SPLIT_ROWS = 64,            /* most rows of a job that computes one part of a context */
    MERGES = 4,                 /* with this many jobs a thread or more, contexts are not split into parts */
    PARTIAL_BYTES = 3 << 20,    /* most memory for results of parts: 48k tokens of a 7B model */
};

/* Floats of partial results for contexts of n_tokens. */
size_t attn_partials(const struct config *c, int n_threads, int64_t n_tokens);
/* Jobs that a run of queries is cut into: one for each KV head, or for each group of heads that
 * read the latents. */
int attn_groups(const struct config *c);
/* No layer sees more than the newest `window` tokens and the first `sinks` from now on. */
int attn_open_stream(struct core *k, int window, int sinks, struct err *e);
void attn_close_stream(struct core *k);
/* Attention from q, key, value of the core to its att. */
void attn_run(struct core *k, const struct step *s, const struct layer *l, int index);
/* Norm and rotate the queries of a step, store its keys and values: what attn_run does first. */
void attn_prepare(struct core *k, const struct step *s, const struct layer *l, int index);
/* Tokens that q and att have room for: all of a step, or, where layers read latents, whose rows
 * are wide, a run of them. */
int attn_rows(const struct config *c, int max_tokens);
/* Store the keys of a step, latents with the rotated key behind them, in the cache. */
void attn_store_latents(struct core *k, const struct step *s);
/* Attention over latents for consecutive runs, the first token of which is token0 of the step:
 * from q [tokens][n_heads * head_dim], in the space of the latents, to att, the first kv_rank
 * columns of every head. */
void attn_run_latent(struct core *k, const struct step *s, const struct layer *l, int index, struct query_run *runs,
                     int n_runs, int token0);

#endif
