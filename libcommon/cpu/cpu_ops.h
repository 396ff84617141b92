/* cpu_ops.h - private to the CPU backend: quantized inputs, parallel loops over matrices, and the
 * parts of a layer. */
#ifndef ZSE_CPU_CPU_OPS_H
#define ZSE_CPU_CPU_OPS_H

#include "libcommon/cpu/internal.h"

enum {
    /* Loops over at most this many elements are run by the caller alone: about 10 us, several times
     * the cost of waking the other threads. */
    SERIAL = 32768,
    ROW_JOB = 8,                /* rows of a job in longer loops */
};

enum op_kind {
    OP_STORE,           /* out = y, clipped if limit > 0 */
    OP_ADD,             /* out += scale * y */
    OP_SCATTER,         /* row i of y: out[row[i]] += scale * weight[i] * y; row NULL: i itself; weight NULL: 1 */
    OP_MLP,             /* out = act(y) * up(x), or act(y) without up */
    OP_LOGITS,          /* out = cap(scale * y) */
};
struct op {
    const struct linear *l, *up;
    const struct act_input *in;
    float *out;
    size_t ldo;
    enum op_kind kind;
    float scale, limit;
    int n_tokens;               /* 0: all tokens of the loop */
    const int *row;
    const float *weight;
    const float *act;           /* OP_MLP: parameters of the activation, enum xielu */
    int expert;                 /* OP_MLP of an expert, which may have another activation */
};
/* n rounded up to a multiple of 64: buffers start on cache lines. */
static inline size_t up64(size_t n) { return (n + 63) / 64 * 64; }

/* The first matrix of the next loop, and the number of threads among which the loop's tiles are
 * divided. */
struct next_loop { const struct mat *w; int n_tiles, n_threads; };

/* Set up the quantized forms of the input `in` that these matrices need.  Matrices on the f32 path
 * need none. */
void core_forms(const struct core *k, struct act_input *in, const struct linear *const *l, int n);
/* Quantize x for the matrices that read it. */
void core_input(struct core *k, struct act_input *in, int slot, const float *x, int cols, int n_tokens,
                const struct linear *const *l, int n);
/* Quantize x for those matrices of a layer that read `input`, in the slot of that input. */
void core_layer_input(struct core *k, struct act_input *in, const float *x, int cols, int n_tokens,
                      const struct layer *l, enum layer_input input);
/* 1 if `in` has all forms that these matrices need. */
int core_has_forms(const struct core *k, const struct act_input *in, const struct linear *const *l, int n);
/* Compute tiles [t0, t1) of y = w x + bias; out points to row 0. */
void core_multiply(const struct core *k, const struct linear *l, const struct act_input *in, int t0, int t1,
                   int n_tokens, float *out, size_t ldo, int thread);
/* Run several linear layers in one parallel loop; prefetch may be NULL. */
void core_linear(struct core *k, const struct op *ops, int n_ops, int n_tokens, const struct next_loop *prefetch);
/* Like core_linear(), for matrices with equal numbers of rows whose results are added to the same
 * outputs: a job computes the same tiles of all matrices, one matrix after the other. */
void core_linear_sum(struct core *k, const struct op *ops, int n_ops, int n_tokens, const struct next_loop *prefetch);
/* Set out [n][ldo] to n_rows rows of the product with l, from row `first` on; these need not be
 * whole tiles.  room: a buffer of core_rows_room(n_rows) floats for each of n tokens. */
void core_linear_rows(struct core *k, const struct linear *l, const struct act_input *in, int first, int n_rows,
                      float *room, int n, float *out, size_t ldo);
static inline size_t core_rows_room(int n_rows) { return ((size_t)n_rows / TILE_ROWS + 2) * TILE_ROWS; }
/* Returns the slot of an input while its matrices read it.  In a parallel block the inputs of the
 * MLP and of attention are in use at the same time, so their slots differ. */
int core_slot(const struct config *c, enum layer_input input);
const struct next_loop *core_next(const struct core *k, int index, int loop);
/* out = norm of one row of n elements. */
void core_norm_row(const struct core *k, float *out, const float *x, const struct norm *norm, int n);
/* x += norm(y) for n rows; y is overwritten. */
void core_add_normed(struct core *k, const struct norm *norm, float *y, float *x, int n);
/* For experts beside an MLP: core_beside_router() computes the input of the router,
 * core_beside_end() finishes the feed-forward half of the layer. */
void core_beside_router(struct core *k, const struct layer *l, const float *x, float *out, int n);
void core_beside_end(struct core *k, const struct layer *l, float *experts, float *x, int n);
int core_hook(const struct core *k, int layer, int role, const struct act_input *in, int n);

/* ---- feed-forward parts: x += f(in), for n tokens ---- */
/* cpu_moe.c */
int moe_run(struct core *k, const struct layer *l, int index, const struct act_input *router,
            const struct act_input *in, float *x, int n);
/* Only choose the experts; moe_run() without a router's input then uses this choice. */
void moe_route(struct core *k, const struct layer *l, const struct act_input *router, int n);
/* See cpu_experts_run(). */
int moe_pairs(struct core *k, const struct layer *l, int index, const float *h, const int32_t *id,
              const float *weight, int n, float *out);
/* Run experts one at a time, for any number of tokens: see cpu_layers_choose and cpu_layers_expert.
 * ids: the tokens, for tables of experts (NULL: those of the step).  moe_mid
 * (cpu_layers_expert_mid) takes at most max_tokens. */
int moe_choose(struct core *k, const struct layer *l, int index, const int32_t *ids, const float *h, size_t ldh,
               float *x, int n, struct cpu_choice *c, struct err *e);
void moe_one(struct core *k, const struct layer *l, int index, int expert, const float *h, size_t ldh, float *x,
             const struct cpu_choice *c);
/* moe.latent: compute the experts' input, out [n][ldo], from that of the layer's MLP; x += `out`
 * (the layer's latent_out) applied to the sum of the experts. */
void moe_latents(struct core *k, const struct layer *l, const struct act_input *in, int n, float *out,
                 size_t ldo);
void moe_add_latents(struct core *k, const struct linear *out, const float *sum, float *x, int n);
void moe_mid(struct core *k, const struct expert *x, const float *h, size_t ldh, int n, float *mid, size_t ldm);
/* number of floats per token that experts need besides the common buffers */
size_t moe_floats(const struct config *c);
int moe_open(struct core *k, struct err *e);
void moe_close(struct core *k);
int moe_reserve(struct core *k, const struct layer *l, struct err *e);

/* cpu_ple.c: compute the embeddings of all layers for n tokens; x is the embedding of the model */
void ple_embed(struct core *k, const struct model *m, int n, const float *x);
/* y = the addend computed from the embedding of the layer and x, before its norm */
void ple_project(struct core *k, const struct layer *l, int index, const float *x, float *y, int n);
/* Finish a layer: x += norm of the addend of ple_project(), x *= layer_scale, each if the layer has
 * it. */
int ple_run(struct core *k, const struct layer *l, int index, float *x, int n);

/* Residual streams (cpu_altup.c).  altup_begin() fills them from the embedding x.  altup_predict()
 * updates all of them and sets x to the stream that the layer computes on.  altup_correct() updates
 * all of them by the layer's output x.  altup_end() sets x to their mean.  altup_laurel() computes
 * LAuReL's addend from the normed input h of a layer; altup_add_laurel() adds it after
 * attention. */
void altup_begin(struct core *k, const struct model *m, const float *x, int n);
void altup_predict(struct core *k, const struct layer *l, float *x, int n);
void altup_correct(struct core *k, const struct layer *l, int index, float *x, int n);
void altup_end(struct core *k, const struct model *m, float *x, int n);
void altup_laurel(struct core *k, const struct layer *l, const float *h, int n);
void altup_add_laurel(struct core *k, float *x, int n);
/* k->mlp = activation of the gates above a cutoff, times the ups */
void altup_sparse_mlp(struct core *k, const struct layer *l, int index, const struct act_input *in, int n);

/* Hyper-connections (cpu_hyper.c).  hyper_begin() fills the streams from the embedding x.
 * hyper_enter() returns the normed mix that a half of the layer reads, and clears x.  hyper_leave()
 * adds x, the output of that half, to the streams.  hyper_end() sets x to their mix. */
void hyper_begin(struct core *k, const float *x, int n);
const float *hyper_enter(struct core *k, const struct layer *l, int ff, const struct norm *norm, float *x, int n);
void hyper_leave(struct core *k, float *x, int n);
void hyper_end(struct core *k, const struct model *m, float *x, int n);

/* ---- mixers: compute *o [n_tokens][*cols], the input of the output projection, from h, the normed
 * x ---- */
/* cpu_mla.c */
int mla_run(struct core *k, const struct step *s, const struct layer *l, int index, const float *h, const float **o,
            int *cols);
size_t mla_floats(const struct config *c);
int mla_open(struct core *k, struct err *e);
void mla_close(struct core *k);
int mla_reserve(struct core *k, const struct layer *l, struct err *e);
/* cpu_index.c: sparse attention over latents.  index_run projects queries from q_a and keys from h
 * of an indexed layer, stores the keys and chooses tokens.  index_attend is attn_run_latent for the
 * chosen tokens; 0: no choice was needed. */
int index_run(struct core *k, const struct step *s, const struct layer *l, int index, const struct act_input *in,
              const struct act_input *q_a);
int index_attend(struct core *k, const struct step *s, int index, const struct query_run *runs, int n_runs,
                 int token0);
int index_open(struct core *k, int64_t max_len, struct err *e);
void index_close(struct core *k);
size_t index_floats(const struct config *c);
/* cpu_compress.c: attention to a window and to entries */
int compress_run(struct core *k, const struct step *s, const struct layer *l, int index, const float *h,
                 const float **o, int *cols);
size_t compress_floats(const struct config *c);
int compress_open(struct core *k, int64_t max_len, struct err *e);
void compress_close(struct core *k);
/* cpu_blocks.c: attention to the runs of tokens that an indexer chooses, instead of attn_run; 0: no
 * token of the step needs that */
int blocks_run(struct core *k, const struct step *s, const struct layer *l, int index, const struct act_input *in);
size_t blocks_floats(const struct config *c);
int blocks_open(struct core *k, int64_t max_len, struct err *e);
void blocks_close(struct core *k);
/* cpu_ngram.c: add values made from the embeddings of runs of tokens to the streams */
void ngram_run(struct core *k, const struct step *s, const struct layer *l, int index);
/* cpu_state.c: state_run runs layers with a state.  state_gates: number of gates of attention per
 * token; state_gate: x [n][cols] *= sigmoid of the gates in k->state.gate. */
int state_run(struct core *k, const struct step *s, const struct layer *l, int index, const float *h, const float **o,
              int *cols);
int state_gates(const struct config *c);
void state_gate(struct core *k, float *x, int n, int cols);
size_t state_floats(const struct config *c);
int state_open(struct core *k, struct err *e);
void state_close(struct core *k);

#endif
