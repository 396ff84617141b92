/* operands.h - the operands of kernels and their primitives: packed matrices, activations, linear
 * layers, the cached keys and values of a layer, heads.  Pointers are device memory. */
#ifndef ZSE_GPU_PRIM_OPERANDS_H
#define ZSE_GPU_PRIM_OPERANDS_H

#include <stddef.h>
#include <stdint.h>

#include "libcommon/quant/kvtype.h"
#include "libcommon/quant/qtype.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A function that kernels call, too. */
#ifdef __CUDACC__
#define GPU_INLINE __host__ __device__ static inline
#else
#define GPU_INLINE static inline
#endif

/* The counters of a barrier of all blocks (grid.cuh), each in a line of 128 bytes. */
enum { GPU_GRID_COUNTERS = 4, GPU_GRID_LINE = 32, GPU_GRID_WORDS = GPU_GRID_COUNTERS * GPU_GRID_LINE };
/* The word of a float that no block has sent yet: a NaN that no operation has as its result. */
#define GPU_GRID_EMPTY 0xffffffffu

/* The form of struct mat that kernels take.  data: in device memory, the bytes of the file. */
struct gpu_mat {
    const uint8_t *data;
    uint64_t tile_bytes;
    int type, rows, cols, n_steps;      /* steps of 32 k: cols_padded / 32 */
    int n_tiles, n_groups, group_shift; /* group size: 32 << group_shift; with 0 also 16 */
    /* QT_F16 of gpu_decoded: [32] f32 for each tile, row_scales_step bytes apart; NULL: none */
    const uint8_t *row_scales; uint64_t row_scales_step;
};

/* Layout of activations (prim.cuh): as matvec reads them, or as matmul does. */
enum gpu_act_order { GPU_ACT_LANES, GPU_ACT_TILES };

/* Norms of rows [n][cols] f32.  If add is not NULL, the residual x is updated:
 *   after_add 0: x += scale * norm(add);   1: x = norm(x + scale * add)
 * out (f32) and act (f16) receive the result, and may both be NULL only with add.  w and b may be
 * NULL. */
struct gpu_norm {
    int layer_norm;                     /* 1: layer norm, 0: RMS norm */
    int present;                        /* 0: no norm, copy the rows */
    const float *w, *b;
    float eps, offset;
    float *x; int ldx;
    const int32_t *rows;                /* row i reads x + rows[i] * ldx; NULL: i */
    const float *add; int after_add; float scale;
    float *out; int ldo;
    uint16_t *act; int act_stride;
    enum gpu_act_order order;           /* order of act */
    int n, cols;
};
/* Sums of parts of k as gpu_matmul_split_hopper() leaves them: part [n_parts][n][ld].  They are to
 * be added to the rows of a norm: x += scale * (sum over the parts * scale of the row + bias). */
struct gpu_part_sums {
    const float *part; int n_parts, ld;
    /* of the matrix, whose tiles begin with the scales of 32 rows; for gpu_prepare it may be NULL:
     * the sums are scaled */
    const uint8_t *tiles; uint64_t tile_bytes;
    const float *bias; float scale;             /* bias: NULL: none */
};
enum { GPU_NORM_MOST = 8192 };          /* most columns of a row that a block keeps in registers */

/* The use of y = w x + bias. */
enum gpu_finish {
    GPU_STORE,          /* out = y, clipped to +-limit if limit > 0 */
    GPU_ADD,            /* out += scale * y */
    GPU_MLP,            /* act = f(y) * up(x), or f(y): activations for the next linear layer */
    GPU_LOGITS,         /* out = cap(scale * y), cap = limit * tanh(. / limit) if limit > 0 */
    GPU_PARTS,          /* out = sums of parts of k, for gpu_norm_parts() or gpu_prepare() */
};
struct gpu_output {
    const float *bias;                  /* [rows] or NULL */
    float *out;                         /* [n_tokens][ldo] */
    int ldo;
};
enum { GPU_MAX_MATS = 3 };
struct gpu_linear {
    /* all n_mats matrices read the same activations; GPU_MLP: gate, and up if there are two */
    struct gpu_mat w[GPU_MAX_MATS];
    struct gpu_output to[GPU_MAX_MATS]; /* GPU_MLP: biases only */
    int n_mats;
    /* [n_tokens][act_stride] f16, 16-byte aligned, in the order that the kernel reads
     * (gpu_matmul_f32 reads x instead) */
    const uint16_t *act;
    int act_stride;
    const float *x; int ldx;            /* f32 activations */
    /* [n_tokens][GPU_CODE_STRIDE(cols)] and [n_tokens]: activations as gpu_act_int8 or gpu_act_fp8
     * makes them */
    const int8_t *code;
    const float *code_scale;
    int n_tokens;
    int wgmma;                          /* use the kernels for wgmma where they support the product */
    /* gpu_matmul_split and gpu_matvec: room for sums of parts of k (GPU_SPLIT_BYTES), and
     * GPU_SPLIT_TICKETS counters, 0 before and after a launch.  partial NULL: gpu_matvec does not
     * divide k */
    float *partial; unsigned *tickets;
    size_t partial_bytes;               /* of partial */
    enum gpu_finish finish;
    float scale, limit;
    int function;                       /* GPU_MLP: config.act */
    uint16_t *act_out; int act_out_stride;
    /* gpu_matvec of one matrix with GPU_ADD, for up to GPU_NORM_TOKENS tokens: the block that ends
     * last norms the rows of the output, if gpu_norm_in_registers() allows it.  tickets[0] counts
     * the blocks, and is 0 between launches.  x NULL: no norm */
    struct gpu_norm norm;
    /* gpu_matmul_f32 with GPU_STORE: k is divided into n_splits parts of GPU_SPLIT_STEPS steps, and
     * the sums of part z are stored at out + z * split_stride; part 0 includes the bias.  n_splits
     * 0: k is not divided */
    int n_splits;
    size_t split_stride;
    /* gpu_matmul_f32, for products per head: rows h * head_rows .. + head_rows - 1 read x + h *
     * x_head and write to out + h * out_head.  head_rows 0: all rows read x. */
    int head_rows, x_head, out_head;
};
enum { GPU_SPLIT_STEPS = 8 };

/* One matrix of each expert of a layer; all have the same type and shape.  w is the matrix of
 * expert 0, and the matrices of other experts follow at distances of `stride` bytes.  bias: the
 * bias of expert 0, with the others at distances of bias_stride floats; NULL: none. */
struct gpu_expert_mat { struct gpu_mat w; uint64_t stride; const float *bias; int bias_stride; };

/* The experts that n tokens have chosen.  A pair is a token and one of its top_k experts: pair p is
 * choice p % top_k of token p / top_k.  A tile, up to `tile` pairs of one expert, is the unit of
 * work of the kernels of experts. */
struct gpu_expert_tile { int32_t expert, first, n; };           /* pairs order[first .. first + n) */
struct gpu_choice {
    int32_t *id;                        /* [pair] expert, -1: the token chooses none */
    float *weight;                      /* [pair] */
    float *shared;                      /* [n] weight of the shared MLP, or NULL */
    int32_t *order;                     /* pairs by expert, those of one expert ascending */
    struct gpu_expert_tile *tiles; int32_t *n_tiles;
};

/* sum = shared_scale * shared_weight * shared + the weighted results of a token's experts, added in
 * the order in which they were chosen.  Then x += scale * sum, or out = sum if x is NULL. shared
 * [n][cols]: may be NULL (no shared expert) or equal to out; shared_weight [n]: NULL means 1. */
struct gpu_expert_sum {
    const float *y;                     /* [pair][cols] */
    /* [pair] the result is row row[pair] of host [rows][cols], or if that is below 0, in y; NULL:
     * all are in y */
    const int32_t *row; const float *host;
    struct gpu_choice choice;
    const float *shared, *shared_weight; float shared_scale;
    float *x, *out; float scale;
    int n, top_k, cols, weighed;        /* weighed: y already includes the weights */
    /* [n_experts] NULL: all results are there; else those of experts below 0 are another device's,
     * and are left out */
    const int32_t *place;
};

/* Products of the chosen experts with the rows of their pairs: silu(gate x) * up x, or down x. */
struct gpu_experts {
    struct gpu_expert_mat w[2];         /* gate and up; down */
    int n_mats;                         /* 2: gate and up */
    int n_experts, n_pairs;             /* n_pairs: n_tokens * top_k */
    struct gpu_choice choice;
    int share;                          /* number of pairs that read the same row: top_k, or 1 */
    /* in the order that the kernel reads (the f32 kernel reads x instead) */
    const uint16_t *act; int act_stride;
    const float *x; int ldx;
    float *out; int ldo;                /* [pair][ldo], of down, and of gate and up in f32 */
    uint16_t *act_out; int act_out_stride;      /* [pair][stride], of gate and up */
    int function;                       /* config.act */
    float alpha, limit;                 /* as in struct moe; both are 0, or both above 0 */
    int weigh_input;                    /* gate and up are multiplied by the pair's weight */
    /* gpu_expert_matvec of down: the launch before has multiplied by gate and up of these choices,
     * so that they may be read before it has ended */
    int chosen;
    /* gpu_expert_matvec of down, sum.n > 0: also compute this sum of the results.  norm: the block
     * that ends last norms the rows of sum.x, for up to GPU_NORM_TOKENS tokens, if
     * gpu_norm_in_registers() allows it; norm.x NULL: no norm.  arrived: a counter for each tile of
     * 32 rows, and one more with a norm, all 0 before and after the launch */
    struct gpu_expert_sum sum; struct gpu_norm norm; unsigned *arrived;
};

/* Blocks of KV_BLOCK tokens with the keys and values of one layer. */
struct gpu_kv_blocks {
    uint8_t *base;
    /* in bytes: size of a block; size of a head, with its keys and then its values; offset of this
     * layer's first head in a block */
    uint64_t stride, head_stride, layer_offset;
    uint32_t part;                      /* bytes of the keys of a head; the values follow */
};

/* The keys and values of one layer. */
struct gpu_kv {
    struct gpu_kv_blocks blocks;
    /* Types with a tail (KV_TAIL): the same keys and values as f16; base NULL: no tail */
    struct gpu_kv_blocks tail;
    int type;                           /* enum kv_type, of blocks */
    /* Types whose heads share scales: bytes from the first head of the layer to the scales of
     * keys, which those of values follow. */
    uint32_t scales;
    int rotated;                        /* keys, values and queries are rotated (prim/hadamard.cuh) */
};

/* Positions of tokens and addresses of keys: arrays of a step, in device memory. */
struct gpu_step {
    /* [n]; -1 for a token that only pads the batch: nothing is stored for it, and its attention is
     * 0 */
    const int32_t *pos;
    /* [n]: index in tables of the first block of the token's sequence */
    const int32_t *table_of;
    /* [n]: the same for blocks of the tail; only if the layer has a tail */
    const int32_t *tail_of;
    const int32_t *tables;              /* KV block numbers */
    int n;
};

/* Tables of rotations: cosine and sine [n][dim / 2] f32 of pos * freq, times scale; tokens of long
 * sequences (is_long) use the second set, if there is one. */
enum { GPU_MOST_ROPES = 8 };
struct gpu_rope {
    float *cosine, *sine;
    int dim;
    const float *freq, *freq_long; float scale, scale_long;     /* freq_long NULL: no second set */
};
struct gpu_ropes { struct gpu_rope table[GPU_MOST_ROPES]; int n_tables; const int32_t *pos, *is_long; };

/* Factors on queries that grow with their position: temperature_ of struct config; scale 0:
 * none. */
struct gpu_temper { float scale; int floor, first; };

/* Normalize and rotate the heads of q (in place) and of the keys, then store keys and values in
 * their KV blocks.  If all heads of a token share a scale, k and v are replaced by what is
 * rounded. */
struct gpu_prepare {
    float *q, *k, *v;                   /* [n][n_heads * head_dim], [n][n_kv_heads * head_dim] */
    int n_heads, n_kv_heads, head_dim;
    const float *cosine, *sine; int rope_dim, rope_pairs;   /* rope_dim 0: none */
    int norm;                           /* 0 none, 1 RMS, 2 layer norm */
    int norm_each, norm_after_rope;     /* norm_each: weights have [heads * head_dim] elements */
    const float *qw, *qb, *kw, *kb;
    float eps, offset;
    struct gpu_temper temper;
    struct gpu_step step;
    struct gpu_kv kv;
    /* gpu_prepare: sums of parts of k that are q, k and v (scale: not used); n_parts 0: none */
    struct gpu_part_sums parts[3];
};

/* Attention of every token to its sequence, by tiles of tokens or by splits: GPU_SPLIT positions,
 * fixed, so that the result of a sequence does not depend on the other sequences of the batch. */
enum { GPU_SPLIT = 128, GPU_ATTN_MAX_DIM = 256 /* of a head */ };
/* Most shared memory for which blocks copy the keys and values of the only token's splits. */
enum { GPU_ATTN_COPIED = 96 * 1024 };
struct gpu_attention {
    const float *q;
    float *out;                         /* f32 [n][n_heads * head_dim], or NULL */
    uint16_t *act; int act_stride;      /* f16 for the next linear layer, or NULL */
    enum gpu_act_order order;           /* order of act */
    int n_heads, n_kv_heads, head_dim, window, chunk;           /* chunk: as in struct config */
    /* decode and latent only: above 0, a KV block has [16 tokens][head_dim], and values are the
     * first value_dim elements of keys; no window, softcap or alibi */
    int value_dim;
    float scale, softcap;
    const float *alibi;                 /* [n_heads] or NULL */
    const float *sinks;                 /* [n_heads] scores without a value, or NULL */
    /* [n][n_heads * head_dim / gate_each]: the output is multiplied by the sigmoids of these, each
     * of which is for gate_each elements; NULL: no gates */
    const float *gate; int gate_each;
    struct gpu_step step;
    struct gpu_kv kv;
    /* decode: the tokens rows[0..n_rows) */
    const int32_t *rows; int n_rows;
    float *partial;                     /* [n_rows][n_heads][max_splits][head_dim + 2] */
    unsigned *arrived;                  /* [n_rows][n_heads] counters, 0 before and after */
    /* decode: head_dim above 0: also prepare the step's only token, for which gpu_attn_prepares()
     * is 1; queries are not written, and q is not read */
    struct gpu_prepare prepare;
    /* splits of this launch: at least those of the longest sequence */
    int max_splits;
    /* prefill: tiles of consecutive tokens of one sequence: first token and number */
    const int32_t *tiles; int n_tiles;
};

/* the values of enum router_kind */
enum gpu_router { GPU_ROUTER_SOFTMAX, GPU_ROUTER_SIGMOID, GPU_ROUTER_SQRT_SOFTPLUS, GPU_ROUTER_SPARSEMIXER,
                  GPU_ROUTER_TOP_SOFTMAX };
enum { GPU_MAX_EXPERTS = 1024, GPU_MAX_GROUPS = 32, GPU_MAX_TOP_K = 32 };
/* Choose experts from the router's outputs, as cpu_moe.c does, and sort pairs of token and expert
 * by expert.  NaN scores rank last.  cpu_moe.c differs in one case: a NaN of expert 0 ranks
 * first. */
struct gpu_route {
    /* [n_parts][n][ld], with parts part_stride floats apart: an output is the sum over the parts.
     * The column after those of the experts is the shared router's, if choice.shared is not NULL */
    float *part; int n_parts; size_t part_stride; int ld;
    /* n_mats > 0: gpu_choose first computes these outputs, as gpu_matmul_f32 with n_parts splits
     * would: the products of the router, and of the shared router if there are two matrices, with x
     * [n][ldx]; both are f32, n <= GPU_MATVEC_TOKENS.  arrived: a counter, 0 before and after.
     * norm.x not NULL: instead of x, the products are with the rows of this norm, which are also
     * stored; n <= GPU_NORM_TOKENS, and gpu_norm_in_registers() allows it */
    struct gpu_mat w[2]; const float *bias[2]; int n_mats;
    const float *x; int ldx;
    struct gpu_norm norm;
    unsigned *arrived;
    const float *correction;            /* [n_experts] or NULL */
    const int32_t *pos;                 /* [n]; below 0: the token chooses nothing */
    int n, n_experts, top_k;
    int router, n_groups, top_groups, group_best, normalize;    /* as in struct moe */
    float norm_min, norm_add, scale, mask;
    struct gpu_choice choice;
    /* [n_experts] NULL: all experts are on the device, each in the slot of its number.  Else the
     * slot of an expert, or -1 - i for the i-th of those that have no slot; only pairs whose
     * expert has a slot are sorted, and a tile has the number of the slot.  stream_n > 0: only the
     * pairs of experts stream_first .. stream_first + stream_n - 1 of those without a slot are
     * sorted; these are in slots 0 .. stream_n - 1. */
    const int32_t *place; int stream_first, stream_n;
    int tile;                           /* most pairs of a tile */
    int sort;                           /* gpu_choose also sorts; n <= GPU_MATVEC_TOKENS */
};

/* The only token of a step may choose by all warps of a block (choose.cuh): of every 32 experts the
 * first 1 << GPU_CHOICE_LOG are compared. */
#define GPU_CHOICE_LOG(top_k) ((top_k) <= 4 ? 2 : (top_k) <= 8 ? 3 : (top_k) <= 16 ? 4 : 5)
/* Rounds of a warp that compares 32 of these with 32 others.  Up to GPU_CHOICE_ROUNDS they are
 * faster than to find one expert after the other (calculated, gpu/time). */
#define GPU_CHOICE_32S(lists, top_k) ((((lists) << GPU_CHOICE_LOG(top_k)) + 31) / 32)
#define GPU_CHOICE_COMPARISONS(n_experts, top_k) \
    (GPU_CHOICE_32S(((n_experts) + 31) / 32, top_k) * GPU_CHOICE_32S(((n_experts) + 31) / 32 - 1, top_k))
enum { GPU_CHOICE_ROUNDS = 4 };
/* Whether it does.  Groups of experts, and a correction of scores that are divided by their sum,
 * take more steps than that; with many experts their ranks take longer. */
GPU_INLINE int gpu_chooses_only(const struct gpu_route *r)
{
    return r->n == 1 && GPU_CHOICE_COMPARISONS(r->n_experts, r->top_k) <= GPU_CHOICE_ROUNDS &&
           (r->router == GPU_ROUTER_TOP_SOFTMAX ||
            (r->router != GPU_ROUTER_SPARSEMIXER && r->n_groups <= 1 &&
             !(r->router == GPU_ROUTER_SOFTMAX && r->correction)));
}
/* The shared memory that it takes. */
GPU_INLINE size_t gpu_choose_only_bytes(int n_experts, int top_k)
{
    const size_t lists = ((size_t)n_experts + 31) / 32;
    return sizeof(float) * (lists * (96 + (3 << GPU_CHOICE_LOG(top_k))) + 2 * 32 + 4);
}

#ifdef __cplusplus
}
#endif
#endif
