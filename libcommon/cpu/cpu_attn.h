/* cpu_attn.h - attention of one layer: q and k norms, rotation, the KV cache, softmax. */
#ifndef ZSE_CPU_CPU_ATTN_H
#define ZSE_CPU_CPU_ATTN_H

#include "libcommon/cpu/internal.h"

/* Returns the index >= i of the next token of an item that is the item's first token or starts a KV
 * block; it->n_tokens if there is none. */
static inline int attn_next_block(const struct batch_item *it, int i)
{
    const int behind = (it->pos + i) % KV_BLOCK, at = behind ? i + KV_BLOCK - behind : i;
    return i == 0 ? 0 : at < it->n_tokens ? at : it->n_tokens;
}

enum {
    /* rows (query x head) of one job: enough to reuse a block of keys, few enough that threads can
     * share a prompt */
    ATTN_ROWS = 96,
    SPLIT_ROWS = 64,            /* most rows of a job that computes one part of a context */
    /* Contexts are split into parts only if there are fewer jobs than this times the number of
     * threads.  A thread therefore merges the parts of at most this number of jobs. */
    MERGES = 4,
    PARTIAL_BYTES = 3 << 20,    /* most memory for results of parts: 48k tokens of a 7B model */
};

/* Size of the buffer of partial results, in floats, for contexts of n_tokens. */
size_t attn_partials(const struct config *c, int n_threads, int64_t n_tokens);
/* Returns the number of jobs of a run of queries: one for each KV head or, if the heads read
 * latents, one for each group of heads. */
int attn_groups(const struct config *c);
/* Limit all layers to the newest `window` tokens and the first `sinks`. */
int attn_open_stream(struct core *k, int window, int sinks, struct err *e);
void attn_close_stream(struct core *k);
/* Compute attention from q, key and value of the core to its att. */
void attn_run(struct core *k, const struct step *s, const struct layer *l, int index);
/* The first part of attn_run: norm and rotate the queries of a step, store its keys and values. */
void attn_prepare(struct core *k, const struct step *s, const struct layer *l, int index);
/* Returns the number of tokens for which the buffers q and att have space: those of a step or, if
 * layers read latents, which have wide rows, those of a run. */
int attn_rows(const struct config *c, int max_tokens);
/* Store the keys of a step in the cache: the latents, followed by the rotated key. */
void attn_store_latents(struct core *k, const struct step *s);
/* Compute attention to the latents for consecutive runs, whose first token is token0 of the step.
 * Reads q [tokens][n_heads * head_dim], in the space of the latents, and writes the first kv_rank
 * columns of every head of att. */
void attn_run_latent(struct core *k, const struct step *s, const struct layer *l, int index, struct query_run *runs,
                     int n_runs, int token0);

#endif
