/* operations.h - the operations of the device, one per file.  A wrapper launches kernels on the
 * compute stream; it relies on the checks of the backend, never waits and never allocates.  The
 * argument structs are host memory, and their pointers point to device memory. */
#ifndef ZSE_GPU_KERNELS_OPERATIONS_H
#define ZSE_GPU_KERNELS_OPERATIONS_H

#include <stddef.h>
#include <stdint.h>

#include "gpu/prim/operands.h"
#include "gpu/rt/rt.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { GPU_MATVEC_TOKENS = 16 };
/* Multiply up to GPU_MATVEC_TOKENS tokens, whose activations are in GPU_ACT_LANES order.  All
 * matrices have the same type, which is not f32, and the same group shape.  A token's result does
 * not depend on n_tokens. */
int gpu_matvec(struct gpu *g, const struct gpu_linear *l, struct err *e);
/* Multiply any number of tokens, whose activations are in GPU_ACT_TILES order, by matrices of one
 * type, which is not f32, with the same group shape.  A row's result does not depend on the other
 * matrices.  GPU_MLP is supported if gpu_matmul_hopper() multiplies. */
int gpu_matmul(struct gpu *g, const struct gpu_linear *l, struct err *e);
/* Multiply up to GPU_SPLIT_TOKENS tokens, whose activations are in GPU_ACT_TILES order, by matrices
 * of one type, which is not f32, with the same group shape.  GPU_MLP and GPU_PARTS are supported if
 * gpu_matmul_split_hopper() multiplies.  A token's result does not depend on n_tokens. */
enum { GPU_SPLIT_TOKENS = 128 };
int gpu_matmul_split(struct gpu *g, const struct gpu_linear *l, struct err *e);
/* gpu_matmul_split with wgmma; the order of sums is another one.  takes: 1 if the device, the
 * format and the number of tokens are supported.  GPU_MLP with gate and up is, too, if they have
 * the same shape: the activations are stored in GPU_ACT_TILES order.  GPU_PARTS stores
 * as many parts as gpu_split_hopper_parts() says, out [part][n_tokens][ldo], for all rows of the
 * tiles. */
int gpu_matmul_split_hopper(struct gpu *g, const struct gpu_linear *l, struct err *e);
int gpu_matmul_split_hopper_takes(const struct gpu *g, const struct gpu_linear *l);
/* The number of groups of tiles that blocks take, and the number of parts into which k is divided,
 * for all matrices of a launch: up to two blocks for each of 132 multiprocessors, of whole stages
 * of 8 steps.  Parts are dropped if the longest one stays as long without them.  Blocks of
 * gpu_matmul_split_hopper() have twice as many tiles, and there is one for each multiprocessor. */
enum { GPU_SPLIT_TILES = 4, GPU_SPLIT_STAGE = 8, GPU_SPLIT_BLOCKS = 264, GPU_SPLIT_PARTS = 16 };
static inline int gpu_split_units(int n_tiles) { return (n_tiles + GPU_SPLIT_TILES - 1) / GPU_SPLIT_TILES; }
static inline int gpu_parts_of(int blocks, int units, int n_steps)
{
    const int stages = (n_steps + GPU_SPLIT_STAGE - 1) / GPU_SPLIT_STAGE, most = blocks / units,
              n = most < 1 ? 1 : most < GPU_SPLIT_PARTS ? most : GPU_SPLIT_PARTS, each = (stages + n - 1) / n;
    return (stages + each - 1) / each;
}
static inline int gpu_split_parts(int units, int n_steps) { return gpu_parts_of(GPU_SPLIT_BLOCKS, units, n_steps); }
enum { GPU_SPLIT_HOPPER_TILES = 2 * GPU_SPLIT_TILES, GPU_SPLIT_HOPPER_BLOCKS = GPU_SPLIT_BLOCKS / 2 };
static inline int gpu_split_hopper_units(int n_tiles)
{
    return (n_tiles + GPU_SPLIT_HOPPER_TILES - 1) / GPU_SPLIT_HOPPER_TILES;
}
static inline int gpu_split_hopper_parts(int units, int n_steps)
{
    return gpu_parts_of(GPU_SPLIT_HOPPER_BLOCKS, units, n_steps);
}
/* The room for the sums of parts, for these blocks and tokens (a multiple of 64, or
 * GPU_SPLIT_TOKENS), and the number of counters.  A block of gpu_matmul_split_hopper() counts as
 * two. */
#define GPU_SPLIT_BYTES(blocks, tokens) ((size_t)(blocks) * GPU_SPLIT_TILES * 32 * sizeof(float) * (tokens))
enum { GPU_SPLIT_TICKETS = GPU_SPLIT_BLOCKS / 2 * (GPU_SPLIT_TOKENS / 64) };
/* How gpu_matvec() divides the tiles of a launch between blocks: the first `whole` tiles take a
 * block each, the others `parts` blocks, which take parts of k.  Two blocks fit on a
 * multiprocessor. */
struct gpu_matvec_blocks { int whole, parts; };
/* Of launches without a pair of gate and up: tiles beyond one for each multiprocessor, or all of
 * them if there are fewer, are divided if they end earlier that way and all blocks run at the same
 * time.  To add parts takes a multiprocessor as long as JOIN steps of a tile (calculated).  A part
 * is long enough that 8 of 16 warps have a turn. */
static inline struct gpu_matvec_blocks gpu_matvec_divide(int n_tiles, int n_steps, int n_sms)
{
    enum { TURN = 32, JOIN = 35, MOST = 8 };
    struct gpu_matvec_blocks best = { n_tiles, 1 };
    const int whole = n_tiles > n_sms ? n_sms : 0, rest = n_tiles - whole;
    int least = n_steps;                /* steps of the second block of a multiprocessor */
    for (int n = 2; n_tiles < GPU_SPLIT_TICKETS && n <= MOST && n * TURN <= n_steps; n++) {
        const int time = (rest * n + n_sms - 1) / n_sms * ((n_steps + n - 1) / n) + JOIN;
        if (whole + rest * n <= 2 * n_sms && time < least) {
            least = time;
            best.whole = whole;
            best.parts = n;
        }
    }
    return best;
}
/* gpu_matmul with wgmma: the sums have the same order, so the bits are the same.  takes: 1 if the
 * device, the format and the number of tokens are supported.  GPU_MLP with gate and up is, too, if
 * they have the same shape and the function is silu: the activations, with the bits of
 * gpu_act_mul(), are stored in GPU_ACT_TILES order. */
int gpu_matmul_hopper(struct gpu *g, const struct gpu_linear *l, struct err *e);
int gpu_matmul_hopper_takes(const struct gpu *g, const struct gpu_linear *l);
/* The warpgroups of its blocks.  Each takes 128 rows x GPU_HOPPER_TOKENS tokens at a time, and two
 * share the activations.  One is chosen if rounds of half as many rows end sooner, though nothing
 * hides its ends, and it loads more activations: these cost it up to an eighth of its time
 * (calculated).  For other formats than nl4 it is not compiled, to save compile time.  narrow,
 * wide: the number of tiles of 128 and of 256 rows in a launch. */
enum { GPU_HOPPER_TOKENS = 128, GPU_HOPPER_LEAD = 8 /* stages of 64 k from the second one to the first */,
       GPU_HOPPER_STAGES = 10,
       GPU_HOPPER_SHARED = 1024 /* to align stages */ + GPU_HOPPER_STAGES * (GPU_HOPPER_TOKENS * 128 + 3 * 8),
       /* of a warpgroup of gate and up in addition: half of its sums, which warps exchange */
       GPU_HOPPER_EXCHANGED = 128 * GPU_HOPPER_TOKENS / 2 * 4 };
/* Threads of a block.  Beside 2 warpgroups that multiply, the producer of copies is a whole
 * warpgroup, too, because only a warpgroup can release registers to others. */
#define GPU_HOPPER_THREADS(groups) ((groups) == 2 ? 384 : 160)
static inline int gpu_hopper_groups(int type, int narrow, int wide, int n_sms)
{
    const int rounds = (narrow + n_sms - 1) / n_sms, of_two = (wide + n_sms - 1) / n_sms;
    return type == QT_NL4 && 8 * rounds < 7 * 2 * of_two ? 1 : 2;
}
/* Multiply f32 activations of any number of tokens by up to three matrices of any type, with the
 * weights as stored.  GPU_MLP is not supported. */
int gpu_matmul_f32(struct gpu *g, const struct gpu_linear *l, struct err *e);
/* The number of parts into which k may be split (gpu_linear.n_splits), from the steps of k. */
#define GPU_SPLITS(n_steps) (((n_steps) + GPU_SPLIT_STEPS - 1) / GPU_SPLIT_STEPS)

/* Multiply int8 activations by int8 weights with one scale per row.  A token's result has the same
 * bits in a batch of any size.  Up to GPU_MATVEC_TOKENS tokens, the arguments are as for
 * gpu_matvec(), for more tokens as for gpu_matmul().  takes: 1 if the matrix is supported. */
int gpu_matmul_int8(struct gpu *g, const struct gpu_linear *l, struct err *e);
int gpu_matmul_int8_takes(const struct gpu_mat *w);
/* code [n][GPU_CODE_STRIDE(cols)] = act [n][act_stride] / scale, rounded to nearest, ties to even,
 * in the order of k, with zeros after cols.  scale [n] is the largest |act| of the token / 127; it
 * is NaN for a token with a NaN. */
#define GPU_CODE_STRIDE(cols) (((cols) + 63) / 64 * 64)
int gpu_act_int8(struct gpu *g, const uint16_t *act, int act_stride, enum gpu_act_order order, int n, int cols,
                 int8_t *code, float *scale, struct err *e);

/* Multiply more than GPU_SPLIT_TOKENS tokens by one fp8 matrix, with activations in E4M3, which
 * gpu_act_fp8() makes like gpu_act_int8(): the largest |act| of a token becomes 448.  With wgmma,
 * gpu_matmul_fp8() calls gpu_matmul_fp8_hopper() on compute capability 9.0.  takes: 1 if the device
 * and the matrix are supported. */
enum { GPU_FP8_CAPABILITY = 89 };       /* the first one whose tensor cores know E4M3 */
int gpu_matmul_fp8(struct gpu *g, const struct gpu_linear *l, struct err *e);
int gpu_matmul_fp8_hopper(struct gpu *g, const struct gpu_linear *l, struct err *e);
int gpu_matmul_fp8_takes(const struct gpu *g, const struct gpu_mat *w, int n_tokens);
int gpu_act_fp8(struct gpu *g, const uint16_t *act, int act_stride, enum gpu_act_order order, int n, int cols,
                int8_t *code, float *scale, struct err *e);

/* A matrix of packed weights can have an f16 copy, which gpu_matmul() and gpu_matmul_hopper() read
 * instead, with bit-identical results.  gpu_matvec() and gpu_embed() still read the packed matrix.
 * The copy has no row scales of its own: it uses those of the packed matrix. */
enum { GPU_DECODED_STEP = 2048 };       /* bytes of 32 rows x 32 k */
/* Bytes of the copy; 0: the type is not packed, so there is nothing to decode */
size_t gpu_decoded_size(int type, int n_tiles, int n_steps);
struct gpu_mat gpu_decoded(const struct gpu_mat *m, const uint8_t *data);
int gpu_decode(struct gpu *g, const struct gpu_mat *m, uint8_t *out, struct err *e);
/* Up to this number of tokens the packed matrix is used: it has fewer bytes, and a launch reads
 * and decodes it only once.  With more tokens a launch reads a matrix several times, so the copy,
 * which needs no decoding, is used. */
enum { GPU_DECODED_TOKENS = 128 };

/* ---- mixtures of experts ---- */

/* Choose experts, and sort pairs. */
/* Bytes of shared memory of a block: to sort, and to choose for n tokens, of which the only one may
 * be chosen for by all warps. */
enum { GPU_CHOICE_WARPS = 8 };
static inline size_t gpu_sort_bytes(int n_experts)
{
    return sizeof(int) * (3 * (size_t)n_experts + 2 * GPU_CHOICE_WARPS);
}
static inline size_t gpu_choice_bytes(int n, int n_experts, int top_k, int sort)
{
    const size_t keys = sizeof(float) * GPU_CHOICE_WARPS * 2 * (size_t)n_experts,
                 only = n > 1 ? 0 : gpu_choose_only_bytes(n_experts, top_k), most = keys > only ? keys : only;
    return sort && gpu_sort_bytes(n_experts) > most ? gpu_sort_bytes(n_experts) : most;
}
int gpu_choose(struct gpu *g, const struct gpu_route *r, struct err *e);
int gpu_sort_pairs(struct gpu *g, const struct gpu_route *r, struct err *e);
/* Upper bound of the number of tiles: no tile is empty, and only the last one of an expert can be
 * partly filled. */
static inline int gpu_most_tiles(int n_pairs, int n_experts, int tile)
{
    const int most = n_experts + n_pairs / tile;
    return n_pairs < most ? n_pairs : most;
}

/* Multiply few tokens by the matrices of their experts.  All matrices have one type, which is not
 * f32; a tile has GPU_EXPERT_FEW pairs of token and expert; activations are in the order
 * GPU_ACT_LANES.  A pair's result depends only on its row of activations. */
enum { GPU_EXPERT_FEW = 8 };
int gpu_expert_matvec(struct gpu *g, const struct gpu_experts *o, struct err *e);
/* gpu_expert_matmul(): like gpu_expert_matvec(), for many tokens, with activations in the order
 * GPU_ACT_TILES and tiles of gpu_expert_pairs() pairs, which is 16 or 64. */
int gpu_expert_pairs(int n_pairs, int n_experts);
int gpu_expert_matmul(struct gpu *g, const struct gpu_experts *o, struct err *e);
/* Like gpu_expert_matvec(), with f32 activations, for every type, with the weights as stored. */
int gpu_expert_f32(struct gpu *g, const struct gpu_experts *o, struct err *e);

int gpu_expert_sum(struct gpu *g, const struct gpu_expert_sum *o, struct err *e);

/* out [n] = part[0] + part[1] + .., added in this order; out may be one of the parts. */
enum { GPU_MOST_PARTS = 8 };
struct gpu_parts { const float *part[GPU_MOST_PARTS]; int n_parts; float *out; size_t n; };
int gpu_sum_parts(struct gpu *g, const struct gpu_parts *o, struct err *e);

/* Row i of x [n][cols] = row token[i] of w * scale (0 if w->data is NULL), plus row pos[i] +
 * pos_offset of pos_embed if that is not NULL.  A token below 0 stands for drawn[-1 - token]; if no
 * token was drawn there (-1), row 0 of w is read.  ropes: tables that the launch computes as well;
 * NULL: none. */
int gpu_embed(struct gpu *g, float *x, const struct gpu_mat *w, const int32_t *token, const int32_t *drawn,
              const int32_t *pos, int n, float scale, const float *pos_embed, int pos_offset,
              const struct gpu_ropes *ropes, struct err *e);

int gpu_norm(struct gpu *g, const struct gpu_norm *o, struct err *e);
/* Rows that RMS norms without a residual keep in registers; in_registers: 1 if this one does. */
#define GPU_NORM_TAKES(cols) ((cols) % 8 == 0 && (cols) <= GPU_NORM_MOST)
int gpu_norm_in_registers(const struct gpu_norm *o);
/* Add the sums of parts of k to the rows, and norm them, if gpu_norm_in_registers() allows it;
 * o->rows is NULL. */
int gpu_norm_parts(struct gpu *g, const struct gpu_norm *o, const struct gpu_part_sums *s, struct err *e);
/* Most tokens whose norm the last block of a matrix or each block of a router computes, row after
 * row: with more a launch of its own is faster (calculated, gpu/time). */
enum { GPU_NORM_TOKENS = 4 };

/* act [n][act_stride] = f(gate) * up, or f(gate) if up is NULL.  If out is not NULL, the result is
 * written as f32 to out [n][cols] instead. */
int gpu_act_mul(struct gpu *g, const float *gate, const float *up, int n, int cols, int function, float *out,
                uint16_t *act, int act_stride, enum gpu_act_order order, struct err *e);
/* act = f16 of x [n][cols]. */
int gpu_act_pack(struct gpu *g, const float *x, int n, int cols, uint16_t *act, int act_stride,
                 enum gpu_act_order order, struct err *e);

/* Compute the tables of n tokens in a launch of their own. */
int gpu_rope_table(struct gpu *g, const struct gpu_ropes *o, int n, struct err *e);

/* ---- layers with a state (struct recurrent of libcommon/model/model.h) ---- */

enum { GPU_STATE_CONV, GPU_STATE_MAMBA2, GPU_STATE_DELTA };
enum { GPU_MAX_CONV = 8, GPU_MAX_STATE = 256 };         /* largest conv_kernel; largest state_size */
struct gpu_state {
    int kind;
    /* in [n][n_in]: projections; conv [n][channels]: outputs of the convolution; out [n][width]:
     * outputs of the recurrence; ba [n][2 * n_heads]: outputs of in_ba */
    const float *in, *ba; float *conv, *out;
    int n_in, channels, width;
    /* GPU_STATE_CONV: f16 of conv for the next linear layer, or NULL; conv may be NULL instead */
    uint16_t *act; int act_stride; enum gpu_act_order order;
    /* states of sequences, stride floats apart; this layer's part begins at float `at` of each */
    float *states; uint64_t stride, at;
    /* item i is tokens [first[i], first[i + 1]) and has state[i]; longest: at least the number of
     * tokens of any item */
    const int32_t *first, *state, *pos;
    int n_items, longest;
    const float *conv_weight, *conv_bias;       /* [kernel][channels]; [channels] or NULL */
    int kernel;
    const float *a_log, *dt_bias, *d;           /* a_log: with log_rates -exp(a_log) or its size */
    int n_heads, head_dim, n_groups, state_size, log_rates, ba_flat, tiled, per_row;
    int flat;                                   /* the projection has q, k and v of all groups */
    float dt_min, dt_max, rate_scale, decay_least;      /* as in struct recurrent */
};
/* Run the convolution for all items, and update its part of their states. */
int gpu_state_conv(struct gpu *g, const struct gpu_state *o, struct err *e);
/* Run the recurrence on the outputs of the convolution. */
int gpu_state_scan(struct gpu *g, const struct gpu_state *o, struct err *e);

/* Gate and norm x [n][width], in parts of `size` elements.  The gate of element d of head h is
 * element h / share * z_stride + h % share * head_dim + d of the token's row of z.  The result is
 * stored in act or, if that is NULL, in x. */
struct gpu_gate {
    float *x; int n, width, size, head_dim;
    const float *z; int ldz, share, z_stride, sigmoid;          /* sigmoid 0: silu */
    const float *w; int each, norm_first; float eps;            /* w [size], with each [width]; NULL: no norm */
    uint16_t *act; int act_stride; enum gpu_act_order order;
};
int gpu_state_gate(struct gpu *g, const struct gpu_gate *o, struct err *e);

/* Prepare all tokens of a step. */
int gpu_prepare(struct gpu *g, const struct gpu_prepare *o, struct err *e);

/* Multi-head latent attention, absorbed (arXiv:2405.04434, section 2.1): norm the latent of each
 * token, rotate its key and the queries, and store latent and key in the KV block. */
struct gpu_latent {
    float *heads;                       /* [n][n_heads][nope_dim + rope_dim] queries, tempered in place */
    float *q;                           /* [n][n_heads][kv_rank + rope_dim]: the rotated parts are stored */
    const float *key;                   /* [n][kv_rank + rope_dim] */
    int n_heads, nope_dim, rope_dim, kv_rank;
    const float *cosine, *sine; int rope_pairs;         /* cosine NULL: no rotation */
    const float *w; float eps;                          /* norm of the latent */
    struct gpu_temper temper;
    struct gpu_step step;
    struct gpu_kv kv;
};
int gpu_latent(struct gpu *g, const struct gpu_latent *o, struct err *e);

/* Attention of every token to its sequence. */
int gpu_attn_decode(struct gpu *g, const struct gpu_attention *o, struct err *e);
/* Most query heads of a block, and the number of them if `share` heads share a key: halved as long
 * as the launch, which has n_splits blocks for each group of heads, leaves half of the
 * multiprocessors free; with more blocks L2, which they all read, would limit them (calculated).
 * A token's result does not depend on it. */
enum { GPU_ATTN_GROUP = 8 };
static inline int gpu_attn_group(int share, int n_splits, int n_sms)
{
    int group = share <= 2 ? share : share <= 4 ? 4 : GPU_ATTN_GROUP;
    while (group > 1 && (share + group / 2 - 1) / (group / 2) * n_splits <= n_sms / 2)
        group /= 2;
    return group;
}
/* A token's key may be prepared by the blocks that read it: with one token, up to GPU_ATTN_GROUP
 * heads that share a key, and scales of their own. */
static inline int gpu_attn_prepares(const struct gpu_prepare *o)
{
    return o->step.n == 1 && o->n_heads / o->n_kv_heads <= GPU_ATTN_GROUP && o->kv.type != KV_T2;
}
#define GPU_ATTN_TILE(head_dim) ((head_dim) <= 128 ? 128 : 64)          /* most tokens of a tile */
int gpu_attn_prefill(struct gpu *g, const struct gpu_attention *o, struct err *e);
/* Latent attention (value_dim above 0) of tiles of up to GPU_ATTN_TILE tokens; only `out` is
 * stored.  Sizes for which GPU_ATTN_LATENT_TAKES is 0 are computed by gpu_attn_decode. */
#define GPU_ATTN_LATENT_TAKES(head_dim, value_dim) \
    ((head_dim) % 8 == 0 && (value_dim) % 8 == 0 && (head_dim) <= 576 && (value_dim) <= 512)
int gpu_attn_latent(struct gpu *g, const struct gpu_attention *o, struct err *e);

/* ---- all layers of a step of one token ---- */

/* x / n as x * GPU_INVERSE(n) >> 31, if x * n is below 2^31: a division takes 20 instructions. */
#define GPU_INVERSE(n) ((uint32_t)((0x80000000u + (uint32_t)(n) - 1) / (uint32_t)(n)))

/* Turns of tiles, divided evenly: of all n_tiles * per_tile turns block i has `share` from
 * i * share on.  A tile may be shared by up to `parts` blocks.  Sums of parts are stored in
 * [parts][32 * n_tiles]; those that no block has are zeros. */
enum { GPU_TURN_PARTS = 4 };
struct gpu_turns { int n_tiles, per_tile, share, parts; uint32_t by_share, by_tile /* GPU_INVERSE() */; };
static inline struct gpu_turns gpu_turns_divide(int n_tiles, int per_tile, int blocks)
{
    const int all = n_tiles * per_tile;
    for (int share = (all + blocks - 1) / blocks; ; share++) {
        int most = 1;
        for (int i = 0; i < n_tiles; i++) {
            const int parts = ((i + 1) * per_tile - 1) / share - i * per_tile / share + 1;
            most = parts > most ? parts : most;
        }
        if (most <= GPU_TURN_PARTS) {
            const struct gpu_turns d = { n_tiles, per_tile, share, most, GPU_INVERSE(share), GPU_INVERSE(per_tile) };
            return d;
        }
    }
}
/* Whether gpu_one_token() multiplies by matrices of such formats side by side: their units have
 * four groups. */
#define GPU_TURN_MIXES(type) ((int)(type) == QT_NL4 || (int)(type) == QT_M5 || (int)(type) == QT_M6)
/* The steps of a turn of this format; 0: gpu_one_token() does not multiply by such matrices. */
#define GPU_TURN_STEPS(type) \
    (GPU_TURN_MIXES(type) || (int)(type) == QT_I4 ? 4 : (int)(type) == QT_I8 ? 2 : 0)
/* Can a launch have matrices of both types?  Does it need the kernel of several types, if it has
 * this one? */
static inline int gpu_turns_alike(int a, int b) { return a == b || (GPU_TURN_MIXES(a) && GPU_TURN_MIXES(b)); }
static inline int gpu_turns_need_mixed(int type) { return GPU_TURN_MIXES(type) && type != QT_NL4; }
/* Does gpu_one_token() multiply by a matrix of this shape?  Rows are whole turns, without padding,
 * and with f16 scales both groups of each unit are there. */
static inline int gpu_whole_turns(int type, int cols, int n_steps, int n_groups)
{
    const int steps = GPU_TURN_STEPS(type);
    return steps && n_steps % steps == 0 && cols == 32 * n_steps && (GPU_TURN_MIXES(type) || n_groups % 2 == 0);
}

/* A layer, in device memory: 16-byte aligned.  Its matrices but the router have one type, or types
 * that are mixed.
 *   attn_norm, mlp_norm  norms that gpu_norm_in_registers() allows; x, out and act are not used
 *   qkv, o               matrices for which gpu_whole_turns() is 1
 *   attention            as for gpu_attn_decode with `prepare`, but for step, rows and max_splits;
 *                        prepare.parts are those of gpu_token_step.qkv_parts, whose number is not
 *                        used.  Heads have a multiple of 32 elements, up to GPU_TOKEN_DIM.  out,
 *                        act, partial and arrived are not used
 *   route                n_experts 0: a dense layer, whose `up` and `down` are the only expert.
 *                        n 1; w[0] is the router, f32; gpu_chooses_only() allows it; place NULL.
 *                        part, choice and pos are not used
 *   up                   gate and up; act_out and choice are not used */
struct gpu_token_layer {
#ifdef __cplusplus
    alignas(16)
#else
    _Alignas(16)
#endif
    struct gpu_norm attn_norm;
    struct gpu_norm mlp_norm;
    struct gpu_mat qkv[3]; const float *qkv_bias[3];
    struct gpu_attention attention;
    struct gpu_mat o; const float *o_bias;
    struct gpu_route route;
    struct gpu_experts up;
    struct gpu_expert_mat down;
};
/* Offsets in a block's shared memory.  step: the arguments of the launch; choice: the chosen
 * experts; aims: where the sums of the first warp go; room: to choose experts; squares: a number of
 * each warp; added: what the block adds to the residual; factors: of the norm before the experts;
 * router: the columns of a tile of rows of o. */
struct gpu_token_room { uint32_t step, layers, x, added, act, sums, choice, room, squares, aims, factors, router; };
enum { GPU_TOKEN_WARPS = 16, GPU_TOKEN_BLOCKS = 256 /* at most */, GPU_TOKEN_DIM = 128 /* most elements of a head */ };
/* Blocks add the router's outputs to one of these copies, so that they wait less for each other.
 * Outputs are whole numbers: their sum does not depend on the order. */
enum { GPU_TOKEN_COPIES = 8, GPU_TOKEN_PITCH = 40 /* floats of 32 experts in `router` */ };
/* Floats that a split sends of 32 elements of a head: their sums, the largest score, and the sum of
 * weights; a multiple of 4. */
enum { GPU_TOKEN_SUM = 36 };
struct gpu_token_step {
    const struct gpu_token_layer *layers;       /* device memory */
    int n;                              /* number of layers, all of the same shapes */
    int mixed;                          /* each matrix has its own type (GPU_TURN_MIXES()) */
    float *x; int hidden;               /* the residual */
    float scale;                        /* of what a half of a layer adds to it */
    struct gpu_step step; int max_splits;       /* as in struct gpu_attention */
    /* Results that blocks leave to each other, at multiples of 16 bytes.
     *   layers_before  number of layers of all steps before, modulo 4; 0 before the first one
     *   arrived        [GPU_GRID_WORDS], 0 before and after
     * published (grid_publish), 0 before the first step:
     *   qkv_parts      [GPU_TURN_PARTS][rows of q, k and v, each a multiple of 32]
     *   down_parts     [GPU_TURN_PARTS][hidden, a multiple of 32]
     *   o_parts        [2][GPU_TURN_PARTS][hidden, a multiple of 32]: of layers in turn
     *   att            [n_heads * head_dim], the result of attention
     *   h              [experts of a token][rows of gate], the result of gate and up
     * sent (grid_send), empty before and after:
     *   sums           of each split: [n_heads][head_dim / 32][n_splits][GPU_TOKEN_SUM]
     *   gate_parts     [GPU_TOKEN_BLOCKS][2][32]: each block's part of the sums of gate and up of
     *                  a tile, for the block with the tile's first part
     * added (grid_add), 0 before the first step:
     *   outputs        [4][GPU_TOKEN_COPIES][n_experts, a multiple of 32]: of the router of layers
     *                  in turn */
    unsigned *layers_before, *arrived;
    float *qkv_parts, *down_parts, *att, *h, *sums, *gate_parts, *o_parts;
    unsigned long long *outputs;
    /* gpu_one_token() sets these; by: GPU_INVERSE of the tiles of an expert's gate, of the turns of
     * its down, of n_kv_heads, and of head_dim / 32; before: *layers_before */
    struct gpu_turns qkv, o, up, down;
    uint32_t by_tiles, by_turns, by_kv_heads, by_32s;
    unsigned before;
    int top_k;                          /* room for as many experts: a multiple of 4 */
    int lists;                          /* of 32 experts; 0: a dense model */
    int share;                          /* query heads that share a key */
    int log_split, n_splits;            /* of attention: gpu_token_log_split(), and how many there may be */
    float part;                         /* 1 / hidden */
    int o_blocks;                       /* that have turns of o */
    float unit;                         /* by which blocks multiply the router's outputs of a layer */
    struct gpu_token_room room;
};
/* Splits have 1 << gpu_token_log_split() positions: half of GPU_SPLIT, if each block then still has
 * at most one. */
static inline int gpu_token_log_split(int max_splits, int n_kv_heads, int blocks)
{
    return 2 * max_splits * n_kv_heads <= blocks ? 6 : 7;
}
/* The shared memory of attention to a split, of `share` heads of dim with `part` bytes of keys in a
 * KV block: 16 bytes of weights and a sum for each lane and KV block; a number for each head and KV
 * block; queries, for each 16 elements; heads that are being prepared; and copies of keys and
 * values (gpu/prim/attn_token.cuh). */
enum { GPU_TOKEN_QUERIES = 32 * 16 + 64 };
static inline size_t gpu_token_split_bytes(size_t dim, size_t part, int share)
{
    const size_t blocks = GPU_SPLIT / KV_BLOCK;
    return blocks * 32 * (16 + sizeof(float)) + sizeof(float) * GPU_ATTN_GROUP * blocks + 2 * blocks * part +
           dim / 16 * GPU_TOKEN_QUERIES + sizeof(float) * (size_t)(share + 2) * dim;
}
/* The shared memory of a block: of a residual of `hidden` floats, `act` f16 in the widest row of
 * activations, split bytes for attention, choice bytes to choose top_k of 32 * lists experts (0: a
 * dense model); table: bytes of the codebook, which comes first.  Attention takes the place of sums
 * and all that follows.  Its copies begin while the first warp may still read the sums of q, k and
 * v, so they lie behind these.  Returns the size. */
static inline size_t gpu_token_shared(struct gpu_token_room *r, size_t table, size_t hidden, size_t act, size_t split,
                                      size_t choice, int top_k, int lists)
{
    const size_t sizes[] = { sizeof(struct gpu_token_step), 2 * sizeof(struct gpu_token_layer), sizeof(float) * hidden,
                             (size_t)(top_k + 3) / 4 * 4 * 4 * sizeof(void *) +
                                 4 * sizeof(int32_t) + 3 * GPU_SPLIT / KV_BLOCK * sizeof(int32_t),
                             32 * 16,
                             sizeof(float) * 2 * 2 * 32 * GPU_TOKEN_WARPS,      /* two units, gate and up */
                             choice, sizeof(float) * GPU_TOKEN_WARPS, sizeof(uint16_t) * act,
                             lists ? sizeof(float) * hidden : 0,
                             lists ? sizeof(float) * hidden : 0, sizeof(float) * 32 * GPU_TOKEN_PITCH * (size_t)lists };
    uint32_t *const to[] = { &r->step, &r->layers, &r->x, &r->choice, &r->aims, &r->sums, &r->room, &r->squares,
                             &r->act, &r->added,
                             &r->factors, &r->router };
    size_t n = table;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        *to[i] = (uint32_t)n;
        n += (sizes[i] + 15) / 16 * 16;
    }
    return r->sums + split > n ? r->sums + split : n;
}
/* Run these layers for the only token of a step.  l: one of them, in host memory.  takes: whether
 * the device and the shapes allow it. */
int gpu_one_token(struct gpu *g, const struct gpu_token_layer *l, const struct gpu_token_step *o, struct err *e);
int gpu_one_token_takes(struct gpu *g, const struct gpu_token_layer *l, int hidden, int mixed);

/* Options for drawing a token from a row of logits: struct draw (libcommon/engine/draw.h) for
 * kernels. */
struct gpu_draw {
    float temperature, top_p, min_p;
    int32_t top_k;                      /* -1: no token is wanted */
    uint32_t seed[2], n[2];             /* low word first */
};
/* id[i] = a token drawn from row i of logits [n][vocab]; -1 if no token is wanted, if a logit of
 * the row is NaN or +inf, or if all are -inf.  Blocks find the largest logits of parts of a row,
 * and the last one of a row draws.  part: room for GPU_SAMPLE_BLOCKS; arrived: as many counters, 0
 * before and after. */
enum { GPU_SAMPLE_BLOCKS = 128, GPU_SAMPLE_PART = 2048 /* logits */, GPU_SAMPLE_MANY = 8192,
       GPU_SAMPLE_ROOM = 41880 /* bytes of shared memory */ };
/* Threads of a block. */
#define GPU_SAMPLE_THREADS(vocab) ((vocab) < GPU_SAMPLE_MANY ? 128 : 1024)
struct gpu_sample_part { uint32_t key; int32_t at; };
struct gpu_sample {
    const float *logits;
    const struct gpu_draw *draws;
    int n, vocab;
    int32_t *id;
    struct gpu_sample_part *part;
    unsigned *arrived;
};
/* Number of parts of a row. */
static inline int gpu_sample_parts(int n, int vocab)
{
    const int most = (vocab + GPU_SAMPLE_PART - 1) / GPU_SAMPLE_PART, share = GPU_SAMPLE_BLOCKS / n,
              parts = most < share ? most : share;
    return vocab < GPU_SAMPLE_MANY || parts < 1 ? 1 : parts;
}
int gpu_sample(struct gpu *g, const struct gpu_sample *o, struct err *e);

#ifdef __cplusplus
}
#endif
#endif
