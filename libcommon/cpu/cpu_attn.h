/* cpu_attn.h - attention of one layer: q and k norms, rotation, the KV cache, softmax. */
#ifndef ZSE_CPU_CPU_ATTN_H
#define ZSE_CPU_CPU_ATTN_H

#include "libcommon/cpu/cpu_core.h"

enum {
    ATTN_ROWS = 96,             /* rows (query x head) of one job: enough to reuse a block of keys, few enough to share a prompt among threads */
    SPLIT_ROWS = 64,            /* most rows of a job that computes one part of a context */
    MERGES = 4,                 /* with so many jobs a thread, parts are not jobs of their own */
    PARTIAL_BYTES = 3 << 20,    /* most memory for results of parts: 48k tokens of a 7B model */
};

/* Floats of partial results for contexts of n_tokens. */
size_t attn_partials(const struct config *c, int n_threads, int64_t n_tokens);
/* Jobs that a run of queries is cut into: the KV heads, or shares of the heads that read the
 * latents. */
int attn_groups(const struct config *c);
/* From q, key, value of the core to its att. */
void attn_run(struct core *k, const struct step *s, const struct layer *l, int index);
/* Tokens that the core has room for in q and att: all of a step; where layers read latents,
 * whose rows are wide, a run of it. */
int attn_rows(const struct config *c, int max_tokens);
/* The keys of a step, latents and what rotates beside them, into the cache. */
void attn_store_latents(struct core *k, const struct step *s);
/* From q [run][n_heads * head_dim] as the latents see it, for a run of runs, whose first token
 * is token0 of the step, to att: of every head the first kv_rank. */
void attn_run_latent(struct core *k, const struct step *s, const struct layer *l, int index, struct query_run *runs,
                     int n_runs, int token0);

#endif
