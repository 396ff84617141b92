/* cpu_core.h - one layer of a decoder on the CPU, for a ragged batch: what the backend (cpu.c)
 * and the layer-by-layer runs (cpu_layers.c) share. */
#ifndef ZSE_CPU_CPU_CORE_H
#define ZSE_CPU_CPU_CORE_H

#include <stdatomic.h>

#include "libcommon/base/pool.h"
#include "libcommon/engine/backend.h"
#include "libcommon/cpu/cpu.h"
#include "libcommon/cpu/residency.h"
#include "libcommon/kernels/kernels.h"
#include "libcommon/model/parts.h"

enum {
    MAX_SHARED = LAYER_READERS,             /* matrices that read one input */
    N_SLOTS = 2,                            /* inputs alive at once: attention's and the MLP's of a parallel block */
};

/* What linear layers read: f32 rows, and the same rounded once for each way in which a matrix
 * that shares them wants it. */
struct act_input {
    const float *x;
    size_t ldx;
    int cols, n_forms;
    struct act_form { int cols_padded, act_group; void *act; } form[MAX_SHARED];
};

/* A run of queries of one item; for each KV head a job of its own, or one for each part of a
 * long context. */
struct query_run {
    int item, first, n;                     /* tokens [first, first + n) of the item */
    int part, n_parts;                      /* n_parts > 1: parts part .. part + n_parts - 1 (kernels.h) are jobs of their own */
    int job, merge;                         /* the first job; of its merges */
    size_t partial;                         /* where in core.partial */
};

/* What a mixture of experts needs: rows are tokens put together by expert. */
struct moe_work {
    int rows;                               /* room: at least max_tokens, and what a few tokens need */
    float *scores, *shared_score;           /* [max_tokens][n_experts], [max_tokens] */
    int *id;                                /* [max_tokens * top_k] experts of each token */
    float *weight;                          /* their weights */
    int *first, *token;                     /* [n_experts + 1] where an expert's tokens begin; [max_tokens * top_k] the tokens, by expert */
    float *share;                           /* [max_tokens * top_k] their weights in that order */
    float *in, *mid;                        /* [rows][hidden_size], [rows][intermediate_size] */
    struct batch_expert *batch;             /* [n_experts + 1] */
    struct op *ops;                         /* [n_experts + 1] */
    uint8_t *act[2]; size_t act_bytes[2];   /* inputs of gate and up, of down, rounded */
    unsigned *used;                         /* [n_layers][n_experts] how many tokens went there; NULL: not counted */
    int *wanted;                            /* [2 * n_experts] experts that a step wants of a layer, and their tokens */
    struct expert *here;                    /* [n_experts + 1] of a round, where they are in memory */
};
/* Multi-head latent attention: queries as projected, then heads' values; the compressed query; a
 * head's input rounded, of each thread. */
struct mla_work { float *heads, *q_a; uint8_t **act; int n_act; size_t act_bytes; };

/* Layers with a state: what was projected, what came out of the convolution and out of the
 * recurrence; delta net's rates; the gate of attention. */
struct state_work { float *in, *conv, *out, *ba, *gate; };

struct core {
    const struct config *c;
    const struct kernels *k;
    struct pool *pool;
    int exact, max_tokens, tile_job;        /* tile_job: tiles of one job at most */
    /* KV blocks: block b of (layer, head) lies at kv + b * kv_stride + layer * kv_layer + head *
     * 2 * kv_bytes, keys first, then values; latents (MIXER_MLA) are keys of one head without
     * values */
    enum kv_type kv_type;
    uint8_t *kv;
    size_t kv_stride, kv_layer, kv_bytes;
    int attn_groups;                        /* jobs of a run of queries: KV heads, or shares of the heads that read the latents */
    /* [max_tokens, ...] f32 */
    float *x, *h[N_SLOTS], *q, *key, *value, *att, *mlp;
    float *cos[2], *sin[2];                 /* by RoPE table: [max_tokens, dim / 2], factor included */
    float *alibi;                           /* [n_heads] */
    int32_t *token;
    int *pos, *long_rope;                   /* of each token */
    struct query_run *runs;
    float *partial;                         /* [n_partial] results of parts */
    size_t n_partial;
    atomic_int *parts_left;                 /* [MERGES a thread] of a chunk and KV head: the job that ends last merges */
    void *act[N_SLOTS][MAX_SHARED];
    size_t act_bytes[N_SLOTS][MAX_SHARED];
    /* of each thread */
    uint8_t **scratch;
    float **rotated;                        /* [SPLIT_ROWS][head_dim] queries of a job that does not have all parts */
    float **tile;                           /* [max_tokens][tile_job * TILE_ROWS] */
    void *arena;
    size_t arena_bytes, bytes;              /* bytes: all memory but KV */
    struct moe_work moe;
    struct mla_work mla;
    struct state_work state;
    float *states; size_t state_stride;     /* states of sequences, borrowed; floats of one */
    const struct cpu_hook *hook;
    struct prefetch *prefetch;                    /* [n_layers][LOOPS] what comes after each loop over weights; NULL: unknown */
    struct residency *residency;            /* borrowed; NULL: all weights may stay in memory */
};
enum { LOOP_QKV, LOOP_O, LOOP_UP, LOOP_DOWN, LOOPS };

/* A batch, flattened. */
struct step {
    const struct batch_item *items;
    int n_items, n_tokens;
    const int *offset;                      /* of each item's first token */
    int n_runs;
    int one_run_each;                     /* no item has more than one chunk: its job stores its own keys and values */
    int kv_layer;                           /* which part of the KV blocks: how many layers before have one */
    size_t state_at;                        /* which part of the states, in floats */
};

/* Tokens of a step (at least 32) with which a core takes at most so many bytes. */
int core_tokens(const struct config *c, const struct kernels *kernels, int n_threads, int64_t max_len, size_t memory);
/* max_len: tokens of the longest context there can be. */
int core_open(struct core *k, const struct config *c, const struct kernels *kernels, struct pool *pool, int max_tokens,
              int64_t max_len, int exact, enum kv_type kv_type, struct err *e);
void core_close(struct core *k);
/* Room for what these layers' inputs are rounded to; grows only. */
int core_reserve(struct core *k, const struct layer *layers, int n_layers, const struct linear *head, struct err *e);

/* Threads that wait fetch the weights that come next.  The model must live as long as the pool. */
int core_prefetch(struct core *k, const struct model *m, struct err *e);

/* Cut the items into runs. offset [n_items] is the caller's. */
void core_step(struct core *k, struct step *s, const struct batch_item *items, int n_items, int *offset);
/* Positions to cos and sin, for the tokens of the step. */
void core_ropes(struct core *k, const struct step *s);
/* x [n_tokens, hidden] = what enters layer 0. */
void core_embed(struct core *k, const struct model *m, int n_tokens, float *x);
/* x = layer(x). 1: the hook wants no more. */
int core_layer(struct core *k, const struct step *s, const struct layer *l, int index, float *x);
/* out = final norm of x, one row. */
void core_final_norm(struct core *k, const struct model *m, const float *x, float *out);
/* Final norm, projection and head for rows [n_rows] of x. */
void core_logits(struct core *k, const struct model *m, const float *const *rows, int n_rows, float *logits);

#endif
