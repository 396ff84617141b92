/* internal.h - run a layer of a decoder on the CPU for a ragged batch: the struct core of cpu.c
 * (the backend) and of cpu_layers.c (single layers). */
#ifndef ZSE_CPU_INTERNAL_H
#define ZSE_CPU_INTERNAL_H

#include <stdatomic.h>

#include "libcommon/base/pool.h"
#include "libcommon/engine/backend.h"
#include "libcommon/cpu/cpu.h"
#include "libcommon/cpu/cpu_lora.h"
#include "libcommon/cpu/residency.h"
#include "libcommon/kernels/kernels.h"
#include "libcommon/model/parts.h"

enum {
    MAX_SHARED = LAYER_READERS,             /* matrices that read one input */
    /* inputs in use at once: those of attention and of the MLP in a parallel block */
    N_SLOTS = 2,
};

/* The input of linear layers: f32 rows, and one quantized form for each layout that the matrices
 * reading it need. */
struct act_input {
    const float *x;
    size_t ldx;
    int cols, n_forms;
    struct act_form { int cols_padded, act_group; void *act; } form[MAX_SHARED];
};

/* A run of queries of one item, one job for each KV head; a long context may be split into parts
 * that are jobs of their own. */
struct query_run {
    int item, first, n;                     /* tokens [first, first + n) of the item */
    /* if n_parts > 1, each of the parts part .. part + n_parts - 1 (kernels.h) is a job */
    int part, n_parts;
    int job, merge;                         /* index of its first job; of its first merge */
    /* its first KV head's choice of pages (cpu_pages.h), if jobs share the choices; or -1 */
    int choice;
    size_t partial;                         /* offset in core.partial */
};

/* Buffers of a mixture of experts.  Rows are tokens, grouped by expert. */
struct moe_work {
    /* capacity: at least max_tokens, and enough for all experts of a few tokens */
    int rows;
    float *scores, *shared_score;           /* [max_tokens][n_experts], [max_tokens] */
    int *id;                                /* [max_tokens * top_k] experts of each token */
    float *weight;                          /* router weights of these experts */
    /* [n_experts + 1] index of each expert's first element in token [max_tokens * top_k] */
    int *first, *token;
    float *share;                           /* [max_tokens * top_k] router weights in that order */
    /* [rows][hidden_size or moe.latent, the larger], [rows][intermediate_size] */
    float *in, *mid;
    float *latent, *sum;                    /* [max_tokens][moe.latent] input of the experts, their sum; or NULL */
    struct batch_expert *batch;             /* [n_experts + 1] */
    struct op *ops;                         /* [n_experts + 1] */
    uint8_t *act[2]; size_t act_bytes[2];   /* quantized inputs: of gate and up; of down */
    /* [n_layers][n_experts] tokens routed to each; NULL: not counted */
    unsigned *used;
    /* [2 * n_experts] experts that a layer of the step needs, then their token counts */
    int *wanted;
    /* [n_experts + 1] the experts of a round, at their addresses in the cache */
    struct expert *here;
};
/* Buffers of multi-head latent attention: the projected queries, later the values of the heads; the
 * compressed query; for each thread, whole tiles of a head and its quantized input. */
struct mla_work { float *heads, *q_a, *tiles; uint8_t **act; int n_act; size_t act_bytes; };

/* Buffers of an indexer.  For a step: queries, keys and weights.  For a batch of tokens: scores;
 * the positions chosen for each token, ascending, and their number; the chosen latents. */
struct index_work {
    float *q, *key, *weight, *scores;
    int *chosen, *n_chosen;
    uint8_t *latents;
    int32_t *table;                         /* 0, 1, 2 ..: block table of the copied latents */
    /* batch: tokens per batch; most: limit on the positions chosen for one token; room: limit on
     * the positions scored for one token */
    int batch, most, room;
    size_t stride;                          /* bytes of a token's latents */
};

/* Buffers of compressed attention.  For a step: q_a: the compressed query; value, score: what
 * entries are computed from; entry: the complete entries; index_*: the same for the indexer; q,
 * weight: its queries and weights; group: inputs of o_a; tiles: room for its outputs.  For a batch
 * of tokens: scores of entries, the chosen ones and their number, and the keys and entries that the
 * tokens see. */
struct compress_work {
    float *q_a, *value, *score, *entry, *index_value, *index_score, *index_entry, *q, *weight, *group, *tiles, *scores;
    int *chosen, *n_chosen;
    int32_t *table;                         /* 0, 1, 2 ..: block table of the copied keys */
    uint8_t *keys, *one;                    /* one: a block per thread */
    /* batch: tokens per batch; most: limit on the entries that one token sees; room: limit on the
     * entries scored for one token */
    int batch, most, room;
    size_t stride, one_bytes;               /* bytes of a token's keys; of a block */
};

/* Buffers of attention to runs of tokens.  For a step: queries and keys of the indexer.  For a
 * batch of tokens: scores of runs, the chosen runs and their number, and the keys and values that
 * the tokens see. */
struct block_work {
    float *q, *key, *weight, *scores;       /* weight [n_heads]: all equal */
    int *chosen, *n_chosen;
    int32_t *table;
    uint8_t *keys, *one;
    /* batch: tokens per batch; most: limit on the runs chosen for one token; room: limit on the
     * runs scored for one token */
    int batch, most, room;
    size_t stride, one_bytes;
};

/* Buffers of layers with a state: the projection, outputs of the convolution and of the recurrence,
 * rates of the delta net, the gate of attention, outputs of gate_a. */
struct state_work { float *in, *conv, *out, *ba, *gate, *low; };

struct core {
    const struct config *c;
    const struct kernels *k;
    struct pool *pool;
    float residual;                         /* factor of the addends of a layer */
    int exact, max_tokens, tile_job;        /* tile_job: most tiles of a job */
    /* KV blocks: block b of (layer, head) starts at kv + b * kv_stride + step.kv_at + head * the
     * size of its keys and values; keys first.  Latents (MIXER_MLA) are keys of one head without
     * values. */
    struct kv_types types;
    uint8_t *kv;
    size_t kv_stride;
    /* window blocks, laid out like kv: keys and values of the layers with a window, or of all
     * layers if there is a tail */
    uint8_t *window_kv;
    size_t window_stride;
    /* 1: keys and values are stored as f16 as well, and in layers with a window only as f16
     * (kvtype.h) */
    int tail;
    /* Pages that layers without a window attend to, see cpu_pages.c; 0: to all.  page_queries: an
     * element for each thread; page_memory: the buffers of both. */
    int pages;
    struct page_choice *page_choices;
    struct page_queries *page_queries;
    uint8_t *page_memory;
    /* The pattern by which layers without a window attend, see cpu_pattern.c; unit 0: none.
     * pattern_work: an element for each thread; pattern_memory: the buffers in them. */
    struct sparse_pattern pattern;
    struct pattern_tables *pattern_work;
    uint8_t *pattern_memory;
    /* Every layer attends to at most the newest `window` tokens and the first `sinks`; 0: the
     * model's own windows.  far: cos and sin of each RoPE table for the last position of sinks and
     * window together, with the short factors and with the long ones; stream: a buffer of
     * stream_floats for each thread. */
    int window, sinks;
    float *far[MAX_ROPES], *stream;
    size_t stream_floats;
    /* number of jobs of a run of queries: one for each KV head, or for each group of heads that
     * read the latents */
    int attn_groups;
    /* [max_tokens, ...] f32 */
    float *x, *h[N_SLOTS], *q, *key, *value, *att, *mlp;
    /* [max_tokens, hidden_size]: output of experts that is normed before it is added */
    float *sum;
    float *ple, *ple_mid;                   /* config.ple_dim: of all layers; of one */
    /* wide (if hyper.rank > 0): [max_tokens][n * hidden_size]; low: [max_tokens] rows of rank
     * elements, or of the ngram table */
    float *wide[2], *low;
    float *mix;                             /* config.hyper: [max_tokens][n * (n + 1)], see cpu_hyper.c */
    /* streams: [max_tokens][n_streams][hidden_size]; laurel: LAuReL's addend; laurel_mid: its
     * channels; sparse: the gates and ups of a layer whose gates are cut off */
    float *streams, *laurel, *laurel_mid, *sparse;
    float *pair;                            /* config.predicts: [max_tokens][2 * hidden_size] */
    float *beside[2];                       /* moe.beside: outputs of the MLP and of the experts */
    /* for each RoPE table: [max_tokens, dim / 2], multiplied by its scale */
    float *cos[MAX_ROPES], *sin[MAX_ROPES];
    float *alibi;                           /* [n_heads] */
    float *bias;                            /* config.distance_buckets: [n_heads][core_distances()], else NULL */
    int32_t *token;
    /* for each token: its position; 1 if it uses the long factors of LongRoPE; its type */
    int *pos, *long_rope, *type;
    struct query_run *runs;
    float *partial;                         /* [n_partial] results of parts */
    size_t n_partial;
    /* [MERGES * n_threads] number of unfinished parts of a run and KV head; the job that finishes
     * the last part merges them */
    atomic_int *parts_left;
    void *act[N_SLOTS][MAX_SHARED];
    size_t act_bytes[N_SLOTS][MAX_SHARED];
    /* one for each thread */
    uint8_t **scratch;
    /* [SPLIT_ROWS][head_dim] rotated queries of a job that attends to one part of a context, or
     * scores pages */
    float **rotated;
    float **tile;                           /* [max_tokens][tile_job * TILE_ROWS] */
    void *arena;
    size_t arena_bytes, bytes;              /* bytes: all memory except the KV cache */
    struct moe_work moe;
    struct mla_work mla;
    struct index_work index;
    struct compress_work compress;
    struct block_work blocks;
    struct state_work state;
    struct lora_work lora;
    float *states; size_t state_stride;     /* states of sequences, borrowed; stride in floats */
    const struct cpu_hook *hook;
    const struct step_watch *watch;         /* borrowed; NULL: none */
    /* [n_layers][LOOPS] weights to prefetch at the end of each loop; NULL: none */
    struct next_loop *prefetch;
    struct residency *residency;            /* borrowed; NULL: all weights may stay in memory */
};
enum { LOOP_QKV, LOOP_O, LOOP_UP, LOOP_DOWN, LOOPS };

/* A batch as a flat list of tokens. */
struct step {
    const struct batch_item *items;
    int n_items, n_tokens;
    const int *offset;                      /* [n_items] offset of each item's first token */
    int n_runs;
    /* 1: every item is one run, and the attention jobs of the run store its keys and values */
    int one_run_each;
    /* offset of this layer's keys and values in a KV block */
    size_t kv_at;
    int in_windows;                         /* the layer uses window blocks */
    size_t tail_at;                         /* offset of this layer's keys and values in a block of the tail */
    size_t pages_at;                        /* offset of this layer's summaries of pages in a KV block */
    size_t state_at;                        /* offset of this layer in a sequence's state, in floats */
};

/* The state of the backend: the void * of the functions of struct backend. */
struct cpu {
    const struct model *m;
    struct backend_options o;
    struct core core;
    struct pool *pool;
    int *offset;                    /* [max_tokens] */
    const float **rows;             /* [max_logits] */
    /* The backend runs layers [0, n_layers); if the model has more, a device runs the others and
     * the head. */
    int n_layers;
    size_t kv_size, window_size, states_size;
    char name[64];
};

/* Most tokens of a step, at least 32, for which a core fits into `memory` bytes. */
int core_tokens(const struct config *c, const struct kernels *kernels, int n_threads, int64_t max_len, size_t memory);
int tiles_of_job(int n_threads);         /* core.tile_job */
/* max_len: tokens of the longest possible context. */
int core_open(struct core *k, const struct config *c, const struct kernels *kernels, struct pool *pool, int max_tokens,
              int64_t max_len, int exact, struct kv_types kv, struct err *e);
void core_close(struct core *k);
/* Elements of a head in core.bias: the element max_len - 1 is that of distance 0. */
static inline size_t core_distances(const struct config *c) { return 2 * (size_t)c->max_len - 1 + 64; }
/* Compute core.bias from the table of the model; NULL: it has none. */
void core_set_bias(struct core *k, const float *table);
/* Allocate the quantized activations that these layers need; grows only. */
int core_reserve(struct core *k, const struct layer *layers, int n_layers, const struct linear *head, struct err *e);

/* Let idle threads prefetch the weights of the next loop.  The model must outlive the pool. */
int core_prefetch(struct core *k, const struct model *m, struct err *e);

/* Divide the items into runs.  offset [n_items] belongs to the caller. */
void core_step(struct core *k, struct step *s, const struct batch_item *items, int n_items, int *offset);
/* Compute cos and sin for the positions of the step. */
void core_ropes(struct core *k, const struct step *s);
/* x [n_tokens, hidden] = input of layer 0. */
void core_embed(struct core *k, const struct model *m, int n_tokens, float *x);
/* config.predicts: turn x [n_tokens, hidden], the embeddings, into the input of the layer, which
 * also depends on the items' states. */
void core_predict(struct core *k, const struct model *m, const struct step *s, float *x);
/* x = layer(x). Returns 1 if the hook stopped it. */
int core_layer(struct core *k, const struct step *s, const struct layer *l, int index, float *x);
/* out += l(x), rows [n] of x and of out. */
void core_add_linear(struct core *k, const struct linear *l, const float *x, int n, float *out);
/* out = final norm of x, one row. */
void core_final_norm(struct core *k, const struct model *m, const float *x, float *out);
/* Final norm, projection and head for rows [n_rows] of x. */
void core_logits(struct core *k, const struct model *m, const float *const *rows, int n_rows, float *logits);

#endif
