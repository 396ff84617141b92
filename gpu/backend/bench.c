/* bench.c - time every kernel alone on random operands: launches in a graph, timed by events.
 * Operands that differ between layers (weights, keys and values) have several copies, used in turn,
 * which together are larger than any cache.  Rows that the previous kernel wrote may come from L2,
 * as in a model. */
#include "gpu/gpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/kernels/operations.h"
#include "gpu/rt/rt.h"
#include "libcommon/base/rng.h"
#include "libcommon/model/arch.h"
#include "libcommon/quant/half.h"
#include "libcommon/quant/tile.h"

QTYPE_SCALES_HERE(7);

enum { MOST_LAUNCHES = 64, MOST_COPIES = 64, MOST_OWNED = 24, PATTERN = 1 << 20, TILES = 8, MOST_SEQUENCES = 64,
       LEAST_TILED = 16 };
/* A timed graph runs for about this time, but launches the kernel at least once per copy. */
static const double SLICE_S = 2e-3;

struct bench;
typedef int (*launch_fn)(struct bench *b, int copy, struct err *e);

struct bench {
    struct gpu *g;
    size_t l2;
    const struct gpu_bench_options *o;
    int most_tokens, n_sequences, blocks_each, n_blocks;
    struct gpu_event *from, *to;
    uint8_t *pattern;                   /* pinned: source of repeated uploads */
    double *seconds;                    /* [repeats] */
    void *owned[MOST_OWNED]; int n_owned;           /* device memory of this group of kernels */
    struct rng rng;
    /* copies of the current kernel's operands */
    int n_copies;
    struct gpu_linear linear; int (*multiply)(struct gpu *g, const struct gpu_linear *l, struct err *e);
    size_t mat_bytes;
    struct gpu_norm norm;
    struct gpu_prepare prepare;
    struct gpu_attention attention; const int32_t *table_of;
    struct gpu_mat embed;
    const int32_t *token;
    float *a, *b; uint16_t *act;
    struct gpu_draw *draws; int32_t *id;
    struct gpu_sample_part *sample_part; unsigned *sample_arrived;
    int n;
};

/* ---- memory ---- */

static void *take(struct bench *b, size_t n, struct err *e)
{
    void *p = b->n_owned < MOST_OWNED ? gpu_alloc(b->g, n, "a measurement", e) : NULL;
    if (p)
        b->owned[b->n_owned++] = p;
    return p;
}

static void give_back(struct bench *b)
{
    while (b->n_owned)
        gpu_free(b->g, b->owned[--b->n_owned]);
}

/* Fill n bytes by repeating the first n_pattern bytes of the pattern. */
static int spread(struct bench *b, void *to, size_t n, size_t n_pattern, struct err *e)
{
    size_t done = n < n_pattern ? n : n_pattern;
    int rc = gpu_upload(b->g, GPU_COMPUTE, to, b->pattern, done, e);
    for (; rc == 0 && done < n; done *= 2)
        rc = gpu_copy(b->g, GPU_COMPUTE, (uint8_t *)to + done, to, n - done < done ? n - done : done, e);
    return rc < 0 ? -1 : gpu_sync(b->g, GPU_COMPUTE, e);
}

static float uniform(struct bench *b) { return 2 * (float)rng_double(&b->rng) - 1; }

static float *floats(struct bench *b, size_t n, struct err *e)
{
    float *p = take(b, n * sizeof *p, e), *x = (float *)b->pattern;
    for (size_t i = 0; i < PATTERN / sizeof *x; i++)
        x[i] = uniform(b);
    return p && spread(b, p, n * sizeof *p, PATTERN, e) == 0 ? p : NULL;
}

static uint16_t *halves(struct bench *b, size_t n, struct err *e)
{
    uint16_t *p = take(b, n * sizeof *p, e), *x = (uint16_t *)b->pattern;
    for (size_t i = 0; i < PATTERN / sizeof *x; i++)
        x[i] = f32_to_f16(uniform(b) / 16);
    return p && spread(b, p, n * sizeof *p, PATTERN, e) == 0 ? p : NULL;
}

static int32_t *numbers(struct bench *b, const int32_t *from, int n, struct err *e)
{
    int32_t *p = take(b, (size_t)n * sizeof *p, e);
    for (size_t at = 0, most = PATTERN / sizeof *p; p && at < (size_t)n; at += most) {
        const size_t part = (size_t)n - at < most ? (size_t)n - at : most;
        memcpy(b->pattern, from + at, part * sizeof *p);
        if (gpu_upload(b->g, GPU_COMPUTE, p + at, b->pattern, part * sizeof *p, e) < 0 ||
            gpu_sync(b->g, GPU_COMPUTE, e) < 0)
            return NULL;
    }
    return p;
}

/* ---- time ---- */

static int run_once(struct bench *b, launch_fn launch, int n, struct err *e)
{
    for (int i = 0; i < n; i++)
        if (launch(b, i % b->n_copies, e) < 0)
            return -1;
    return 0;
}

static int time_launches(struct bench *b, launch_fn launch, struct gpu_graph *graph, int n, double *s, struct err *e)
{
    if (gpu_event_record(b->g, GPU_COMPUTE, b->from, e) < 0 ||
        (graph ? gpu_graph_launch(b->g, graph, e) : run_once(b, launch, n, e)) < 0 ||
        gpu_event_record(b->g, GPU_COMPUTE, b->to, e) < 0)
        return -1;
    return gpu_event_elapsed(b->g, b->from, b->to, s, e);
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static int launch_linear(struct bench *b, int copy, struct err *e)
{
    struct gpu_linear l = b->linear;
    for (int i = 0; i < l.n_mats; i++)
        l.w[i].data += (size_t)(copy * l.n_mats + i) * b->mat_bytes;
    return b->multiply(b->g, &l, e);
}

/* Does the engine choose this kernel for the current product?  It follows the rules of layers.c and
 * gpu_matmul(). */
static int taken(const struct bench *b)
{
    const struct gpu_linear *l = &b->linear;
    return b->multiply == (l->n_tokens <= GPU_MATVEC_TOKENS ? gpu_matvec
                           : l->n_tokens <= GPU_SPLIT_TOKENS ? gpu_matmul_split
                           : b->o->wgmma && gpu_matmul_hopper_takes(b->g, l) ? gpu_matmul_hopper : gpu_matmul);
}

/* Does the product read activations of 8 bits? */
static int by_codes(int (*multiply)(struct gpu *, const struct gpu_linear *, struct err *))
{
    return multiply == gpu_matmul_int8 || multiply == gpu_matmul_fp8;
}

/* Measure and report the median time of a launch over the repeats, after a warm-up.  bytes, flop:
 * the traffic and the operations of a launch. */
static int measure(struct bench *b, launch_fn launch, const char *kernel, const char *type, int tokens, double bytes,
                   double flop, struct err *e)
{
    double once;
    if (time_launches(b, launch, NULL, 1, &once, e) < 0 || time_launches(b, launch, NULL, 1, &once, e) < 0)
        return -1;
    int n = once * MOST_LAUNCHES < SLICE_S ? MOST_LAUNCHES : (int)(SLICE_S / once);
    n = n < b->n_copies ? b->n_copies : n;
    if (gpu_graph_begin(b->g, e) < 0)
        return -1;
    struct err ignored;
    int rc = run_once(b, launch, n, e);
    struct gpu_graph *graph = gpu_graph_end(b->g, rc < 0 ? &ignored : e);
    rc = graph ? rc : -1;
    for (int i = -1; rc == 0 && i < b->o->repeats; i++) {
        rc = time_launches(b, launch, graph, n, &once, e);
        if (i >= 0)
            b->seconds[i] = once / n;
    }
    if (graph)
        gpu_graph_close(b->g, graph);
    if (rc < 0)
        return -1;
    qsort(b->seconds, (size_t)b->o->repeats, sizeof *b->seconds, ascending);
    b->o->row(b->o->user, &(struct gpu_bench_row){ kernel, type, tokens, bytes, flop,
                                                   (b->seconds[(b->o->repeats - 1) / 2] +
                                                    b->seconds[b->o->repeats / 2]) / 2,
                                                   launch == launch_linear && by_codes(b->multiply),
                                                   b->o->autotune && taken(b) });
    return 0;
}

/* Number of copies of an operand of `size` bytes that together exceed the caches. */
static int copies_of(const struct bench *b, size_t bytes)
{
    const size_t n = 4 * b->l2 / (bytes ? bytes : 1) + 1;
    return n < MOST_COPIES ? (int)n : MOST_COPIES;
}

/* ---- linear layers ---- */

/* Describe a matrix of this type and shape; its groups are the largest of the type, but 64 for
 * int8. */
static int mat_of(struct mat *m, enum qtype type, int rows, int cols, struct err *e)
{
    const struct qtype_info *t = qtype_info(type);
    const int group = t->group_sizes & 128 && (t->bits < 8 || type == QT_FP8) ? 128 : t->group_sizes & 64 ? 64 : 32;
    return mat_init(m, type, group, qtype_takes_floats(t) ? 0 : 64, rows, cols, e);
}

static struct gpu_mat device_mat(const struct mat *m, const uint8_t *data)
{
    int shift = 0;
    while (32 << shift < m->group_size)
        shift++;
    return (struct gpu_mat){ .data = data, .tile_bytes = m->tile_bytes, .type = (int)m->type, .rows = m->rows,
                             .cols = m->cols, .n_steps = m->cols_padded / 32,
                             .n_tiles = m->n_tiles, .n_groups = m->n_groups, .group_shift = shift };
}

/* Make n copies of the matrix with random bits, in which every value that is read as a float is
 * finite. */
static uint8_t *weights(struct bench *b, const struct mat *m, int n, struct err *e)
{
    const struct qtype_info *t = qtype_info(m->type);
    const uint64_t mask = t->is_float ? 0x80ff80ff80ff80ff : t->scale == SCALE_F16 ? 0x3bff3bff3bff3bff
                                     : t->scale == SCALE_F32 ? 0x3bbbbbbb3bbbbbbb : UINT64_MAX,
                   set = t->is_float ? 0x3c003c003c003c00 : 0;
    const int n_tiles = m->n_tiles < TILES ? m->n_tiles : TILES;
    const size_t bytes = m->tile_bytes * (size_t)n_tiles;
    uint8_t *mine = b->pattern, *data = take(b, (size_t)n * m->size, e),
            *tiles = data ? gpu_pinned(b->g, bytes, "a measurement", e) : NULL;
    if (!tiles)
        return NULL;
    for (size_t i = 0; i < bytes / 8; i++)
        ((uint64_t *)tiles)[i] = (rng_u64(&b->rng) & mask) | set;
    for (int i = 0; t->row_scale && i < n_tiles; i++)
        for (int row = 0; row < TILE_ROWS; row++)
            ((float *)(tiles + (size_t)i * m->tile_bytes))[row] = 1e-3f;
    b->pattern = tiles;
    const int rc = spread(b, data, (size_t)n * m->size, bytes, e);
    b->pattern = mine;
    gpu_pinned_free(b->g, tiles);
    return rc < 0 ? NULL : data;
}

/* Make the operands of the current product for t tokens. */
static int operands(struct bench *b, const struct mat *m, size_t t, struct err *e)
{
    if (b->multiply == gpu_matmul_f32)
        return (b->linear.x = floats(b, t * (size_t)m->cols, e)) ? 0 : -1;
    if (by_codes(b->multiply))
        return (b->linear.code = (const int8_t *)halves(b, t * (size_t)GPU_CODE_STRIDE(m->cols) / 2, e)) &&
               (b->linear.code_scale = floats(b, t, e)) ? 0 : -1;
    return (b->linear.act = halves(b, t * (size_t)m->cols_padded, e)) ? 0 : -1;
}

/* Time products with a matrix [rows][cols] of a type (with mlp: two matrices and their activation),
 * for each number of tokens from the least to the most. */
static int linear(struct bench *b, const char *kernel,
                  int (*multiply)(struct gpu *, const struct gpu_linear *, struct err *), enum qtype type, int mlp,
                  int least, int most, struct err *e)
{
    const int rows = b->o->rows, cols = b->o->cols,
              each = multiply == gpu_matmul_f32 ? 4 : by_codes(multiply) ? 1 : 2,
              rows_padded = (rows + 31) / 32 * 32, n_mats = mlp ? 2 : 1;
    struct mat m;
    if (mat_of(&m, type, rows, cols, e) < 0)
        return -1;
    b->n_copies = copies_of(b, m.size * (size_t)n_mats);
    b->mat_bytes = m.size;
    b->multiply = multiply;
    const uint8_t *data = weights(b, &m, b->n_copies * n_mats, e);
    const size_t t = (size_t)(most < b->most_tokens ? most : b->most_tokens);
    b->linear = (struct gpu_linear){ .n_mats = n_mats, .act_stride = m.cols_padded, .ldx = cols,
                                     .finish = mlp ? GPU_MLP : GPU_STORE, .scale = 1, .function = CONFIG_ACT_SILU,
                                     .act_out_stride = rows_padded };
    for (int i = 0; i < n_mats; i++)
        b->linear.w[i] = device_mat(&m, data);
    if (!data || operands(b, &m, t, e) < 0 ||
        (mlp ? !(b->linear.act_out = halves(b, t * (size_t)rows_padded, e))
             : !(b->linear.to[0].out = floats(b, t * (size_t)rows, e))))
        return -1;
    b->linear.to[0].ldo = rows;
    b->linear.wgmma = (multiply == gpu_matmul_split || multiply == gpu_matvec || multiply == gpu_matmul_fp8) &&
                      b->o->wgmma;
    if (multiply == gpu_matmul_split || multiply == gpu_matvec) {
        b->linear.partial_bytes = GPU_SPLIT_BYTES(GPU_SPLIT_BLOCKS, GPU_SPLIT_TOKENS);
        if (!(b->linear.partial = take(b, b->linear.partial_bytes, e)) ||
            !(b->linear.tickets = take(b, GPU_SPLIT_TICKETS * sizeof *b->linear.tickets, e)) ||
            gpu_fill(b->g, GPU_COMPUTE, b->linear.tickets, 0, GPU_SPLIT_TICKETS * sizeof *b->linear.tickets, e) < 0)
            return -1;
    }
    for (int i = 0; i < b->o->n_tokens; i++) {
        const int n = b->linear.n_tokens = b->o->tokens[i];
        const double in = (double)each * cols, out = mlp ? 2.0 * rows : 4.0 * rows;
        if (n < least || n > most || (multiply == gpu_matmul_hopper && !gpu_matmul_hopper_takes(b->g, &b->linear)) ||
            (multiply == gpu_matmul_fp8 && !gpu_matmul_fp8_takes(b->g, &b->linear.w[0], n)))
            continue;
        if (measure(b, launch_linear, kernel, qtype_info(type)->name, n,
                    (double)(m.size * (size_t)n_mats) + n * (in + out), 2.0 * rows * cols * n * n_mats, e) < 0)
            return -1;
    }
    give_back(b);
    return 0;
}

static int linears(struct bench *b, struct err *e)
{
    static const enum qtype types[] = { QT_NL4, QT_I4, QT_I8, QT_NF4, QT_F16, QT_BF16 };
    const int least = b->o->autotune ? 1 : GPU_MATVEC_TOKENS + 1;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (linear(b, "matvec", gpu_matvec, types[i], 0, 1, GPU_MATVEC_TOKENS, e) < 0 ||
            linear(b, "matmul_split", gpu_matmul_split, types[i], 0, GPU_MATVEC_TOKENS + 1, GPU_SPLIT_TOKENS, e) < 0 ||
            linear(b, "matmul", gpu_matmul, types[i], 0, least, INT32_MAX, e) < 0 ||
            linear(b, "matmul_hopper", gpu_matmul_hopper, types[i], 0, GPU_MATVEC_TOKENS + 1, INT32_MAX, e) < 0)
            return -1;
    if (b->o->autotune)
        return 0;
    if (linear(b, "matvec_int8", gpu_matmul_int8, QT_I8R, 0, 1, GPU_MATVEC_TOKENS, e) < 0 ||
        linear(b, "matmul_int8", gpu_matmul_int8, QT_I8R, 0, GPU_MATVEC_TOKENS + 1, INT32_MAX, e) < 0 ||
        linear(b, "matmul_fp8", gpu_matmul_fp8, QT_FP8, 0, GPU_SPLIT_TOKENS + 1, INT32_MAX, e) < 0)
        return -1;
    return linear(b, "matvec_mlp", gpu_matvec, QT_NL4, 1, 1, GPU_MATVEC_TOKENS, e) < 0 ||
           linear(b, "matmul_f32", gpu_matmul_f32, QT_F32, 0, 1, GPU_MATVEC_TOKENS, e) < 0 ? -1 : 0;
}

/* ---- rows ---- */

static int launch_norm(struct bench *b, int copy, struct err *e) { (void)copy; return gpu_norm(b->g, &b->norm, e); }
static int launch_act_mul(struct bench *b, int copy, struct err *e)
{
    (void)copy;
    return gpu_act_mul(b->g, b->a, b->b, b->n, b->o->rows, CONFIG_ACT_SILU, NULL, b->act, (b->o->rows + 31) / 32 * 32,
                       b->n <= GPU_MATVEC_TOKENS ? GPU_ACT_LANES : GPU_ACT_TILES, e);
}
static int launch_act_int8(struct bench *b, int copy, struct err *e)
{
    (void)copy;
    return gpu_act_int8(b->g, b->act, (b->o->rows + 31) / 32 * 32, b->n <= GPU_MATVEC_TOKENS ? GPU_ACT_LANES
        : GPU_ACT_TILES, b->n, b->o->rows, (int8_t *)b->a, b->b, e);
}
static int launch_embed(struct bench *b, int copy, struct err *e)
{
    (void)copy;
    return gpu_embed(b->g, b->a, &b->embed, b->token, NULL, b->token, b->n, 1, NULL, 0, NULL, e);
}

static int rows(struct bench *b, struct err *e)
{
    const int cols = b->o->cols, mlp = b->o->rows, stride = (cols + 31) / 32 * 32;
    const size_t t = (size_t)b->most_tokens;
    struct mat m;
    int32_t *token = malloc(t * sizeof *token);
    if (!token)
        return err_nomem(e, "measurement");
    for (size_t i = 0; i < t; i++)
        token[i] = (int32_t)(rng_u64(&b->rng) % (uint64_t)b->o->vocab);
    b->token = numbers(b, token, b->most_tokens, e);
    free(token);
    const uint8_t *data = b->token && mat_of(&m, QT_NL4, b->o->vocab, cols, e) == 0 ? weights(b, &m, 1, e) : NULL;
    if (!data)
        return -1;
    b->embed = device_mat(&m, data);
    b->n_copies = 1;
    b->norm = (struct gpu_norm){ .present = 1, .w = floats(b, (size_t)cols, e), .eps = 1e-5f,
                                 .x = floats(b, t * (size_t)cols, e), .ldx = cols,
                                 .act = halves(b, t * (size_t)stride, e),
                                 .act_stride = stride, .cols = cols };
    b->a = floats(b, t * (size_t)(mlp > cols ? mlp : cols), e);
    b->b = floats(b, t * (size_t)mlp, e);
    b->act = halves(b, t * (size_t)((mlp + 31) / 32 * 32), e);
    if (!b->norm.w || !b->norm.x || !b->norm.act || !b->a || !b->b || !b->act)
        return -1;
    for (int i = 0; i < b->o->n_tokens; i++) {
        const int n = b->n = b->norm.n = b->o->tokens[i];
        if (measure(b, launch_norm, "norm", "f32", n, 6.0 * n * cols + 4.0 * cols, 0, e) < 0 ||
            measure(b, launch_act_mul, "act_mul", "f32", n, 10.0 * n * mlp, 0, e) < 0 ||
            measure(b, launch_act_int8, "act_int8", "f16", n, 3.0 * n * mlp, 0, e) < 0 ||
            measure(b, launch_embed, "embed", "nl4", n, n * ((double)m.tile_bytes / TILE_ROWS + 4.0 * cols), 0, e) < 0)
            return -1;
    }
    give_back(b);
    return 0;
}

/* ---- attention ---- */

static int launch_prepare(struct bench *b, int copy, struct err *e)
{
    (void)copy;
    return gpu_prepare(b->g, &b->prepare, e);
}
static int launch_prefill(struct bench *b, int copy, struct err *e)
{
    (void)copy;
    return gpu_attn_prefill(b->g, &b->attention, e);
}
static int launch_latent(struct bench *b, int copy, struct err *e)
{
    (void)copy;
    return gpu_attn_latent(b->g, &b->attention, e);
}
static int launch_decode(struct bench *b, int copy, struct err *e)
{
    struct gpu_attention a = b->attention;
    a.step.table_of = b->table_of + (size_t)copy * (size_t)b->n;
    return gpu_attn_decode(b->g, &a, e);
}
static int launch_rope(struct bench *b, int copy, struct err *e)
{
    (void)copy;
    const struct gpu_ropes o = { .table = { { .cosine = b->a, .sine = b->b, .dim = b->o->head_dim,
                                              .freq = b->prepare.qw, .scale = 1 } },
                                 .n_tables = 1, .pos = b->prepare.step.pos };
    return gpu_rope_table(b->g, &o, b->n, e);
}

/* An array in device memory whose element i is (first + i % modulus) * step. */
static int32_t *series(struct bench *b, int n, int first, int step, int modulus, struct err *e)
{
    int32_t *x = malloc((size_t)n * sizeof *x), *p = NULL;
    for (int i = 0; x && i < n; i++)
        x[i] = (first + i % modulus) * step;
    if (!x)
        err_nomem(e, "measurement");
    else
        p = numbers(b, x, n, e);
    free(x);
    return p;
}

/* Fill all blocks with keys and values of a type, by the kernel that prepares attention. */
static int fill_cache(struct bench *b, enum kv_type type, struct err *e)
{
    struct gpu_prepare *p = &b->prepare;
    const size_t part = kv_block_bytes(type, p->head_dim), heads = 2 * part * (size_t)p->n_kv_heads,
                 stride = heads + 2 * kv_shared_bytes(type);
    p->kv = (struct gpu_kv){ .blocks = { .stride = stride, .head_stride = 2 * part, .part = (uint32_t)part },
                             .type = (int)type, .scales = (uint32_t)heads, .rotated = kv_packed(type) };
    if (!(p->kv.blocks.base = take(b, stride * (size_t)b->n_blocks, e)))
        return -1;
    struct gpu_prepare chunk = *p;
    chunk.rope_dim = 0;
    for (int at = 0; at < b->n_blocks * KV_BLOCK; at += b->most_tokens) {
        chunk.step.pos = p->step.pos + at;
        chunk.step.n = b->n_blocks * KV_BLOCK - at < b->most_tokens ? b->n_blocks * KV_BLOCK - at : b->most_tokens;
        if (gpu_prepare(b->g, &chunk, e) < 0)
            return -1;
    }
    return gpu_sync(b->g, GPU_COMPUTE, e);
}

/* Products of a query with a key and of a weight with a value, for all heads. */
static double products(const struct gpu_attention *a)
{
    return (double)a->n_heads * (a->head_dim + (a->value_dim ? a->value_dim : a->head_dim));
}

/* Bytes of a token's queries and results: f32 and f16, of latents both f32. */
static double row_bytes(const struct gpu_attention *a)
{
    return (double)a->n_heads * (4.0 * a->head_dim + (a->value_dim ? 4.0 * a->value_dim : 2.0 * a->head_dim));
}

/* Time the decoding of batches; b->attention has the sizes and the cache. */
static int decode(struct bench *b, const char *kernel, struct err *e)
{
    struct gpu_attention *a = &b->attention;
    const int context = b->o->context;
    a->max_splits = (context + GPU_SPLIT - 1) / GPU_SPLIT;
    a->rows = b->prepare.step.pos;      /* 0, 1, 2 ... */
    a->step.pos = series(b, b->n_sequences, context - 1, 1, 1, e);
    b->table_of = series(b, b->n_sequences, 0, b->blocks_each, b->n_sequences, e);
    a->partial = take(b, (size_t)b->n_sequences * (size_t)a->n_heads * (size_t)a->max_splits *
                      (size_t)(a->head_dim + 2) * sizeof(float), e);
    const size_t counters = (size_t)b->n_sequences * (size_t)a->n_heads * sizeof *a->arrived;
    if (!a->step.pos || !b->table_of || !a->partial || !(a->arrived = take(b, counters, e)) ||
        gpu_fill(b->g, GPU_COMPUTE, a->arrived, 0, counters, e) < 0)
        return -1;
    for (int i = 0; i < b->o->n_tokens; i++) {
        const int n = b->n = a->n_rows = a->step.n = b->o->tokens[i];
        if (n > b->n_sequences)
            continue;
        b->n_copies = b->n_sequences / n;
        if (measure(b, launch_decode, kernel, kv_type_name((enum kv_type)a->kv.type), n,
                    (double)n * context / KV_BLOCK * (double)a->kv.blocks.stride + n * row_bytes(a),
                    2.0 * n * context * products(a), e) < 0)
            return -1;
    }
    return 0;
}

/* Time the prompts from position 0 on, in tiles. */
static int prefill(struct bench *b, launch_fn launch, const char *kernel, struct err *e)
{
    struct gpu_attention *a = &b->attention;
    const int tile = GPU_ATTN_TILE(a->head_dim), most = (b->most_tokens + tile - 1) / tile;
    int32_t *tiles = malloc(2 * (size_t)most * sizeof *tiles);
    b->n_copies = 1;
    if (!tiles)
        return err_nomem(e, "measurement");
    int rc = 0;
    for (int i = 0; rc == 0 && i < b->o->n_tokens; i++) {
        const int n = b->o->tokens[i], n_tiles = (n + tile - 1) / tile;
        if (n < LEAST_TILED)
            continue;
        for (int t = 0; t < n_tiles; t++) {
            tiles[2 * t] = t * tile;
            tiles[2 * t + 1] = n - t * tile < tile ? n - t * tile : tile;
        }
        a->step = b->prepare.step;
        a->step.n = n;
        a->n_tiles = n_tiles;
        const int owned = b->n_owned;
        rc = !(a->tiles = numbers(b, tiles, 2 * n_tiles, e)) ||
                     measure(b, launch, kernel, kv_type_name((enum kv_type)a->kv.type), n,
                             (double)n / KV_BLOCK * (double)a->kv.blocks.stride + n * row_bytes(a),
                             n * (n + 1.0) * products(a), e) < 0 ? -1 : 0;
        while (b->n_owned > owned)
            gpu_free(b->g, b->owned[--b->n_owned]);
    }
    free(tiles);
    return rc;
}

/* The positions and block tables of a step: all sequences follow each other. */
static int step_arrays(struct bench *b, struct gpu_step *step, struct err *e)
{
    const int n = b->n_blocks * KV_BLOCK;
    *step = (struct gpu_step){ .pos = series(b, n, 0, 1, INT32_MAX, e), .table_of = series(b, n, 0, 0, 1, e),
                               .tables = series(b, b->n_blocks, 0, 1, INT32_MAX, e) };
    return step->pos && step->table_of && step->tables ? 0 : -1;
}

/* Latent attention with the sizes of DeepSeek-V3's latents. */
static int latents(struct bench *b, struct err *e)
{
    enum { RANK = 512, DIM = RANK + 64 };
    const size_t rows = (size_t)(b->most_tokens > MOST_SEQUENCES ? b->most_tokens : MOST_SEQUENCES) *
                        (size_t)b->o->n_heads, stride = kv_block_bytes(KV_F16, DIM);
    struct gpu_attention *a = &b->attention;
    *a = (struct gpu_attention){ .q = floats(b, rows * DIM, e), .out = floats(b, rows * RANK, e),
                                 .n_heads = b->o->n_heads, .n_kv_heads = 1, .head_dim = DIM, .value_dim = RANK,
                                 .scale = 1.0f / 24,
                                 .kv = { .blocks = { .base = (uint8_t *)halves(b, stride / 2 * (size_t)b->n_blocks, e),
                                                     .stride = stride, .head_stride = stride,
                                                     .part = (uint32_t)stride }, .type = KV_F16 } };
    if (!a->q || !a->out || !a->kv.blocks.base || step_arrays(b, &b->prepare.step, e) < 0)
        return -1;
    a->step = b->prepare.step;
    if (decode(b, "latent_decode", e) < 0 || prefill(b, launch_latent, "attn_latent", e) < 0)
        return -1;
    give_back(b);
    return 0;
}

static int attention(struct bench *b, struct err *e)
{
    static const enum kv_type types[] = { KV_I8, KV_F8, KV_I4, KV_T2, KV_F16 };       /* prompts use the last */
    const struct gpu_bench_options *o = b->o;
    const size_t t = (size_t)b->most_tokens, nq = (size_t)o->n_heads * (size_t)o->head_dim,
                 nk = (size_t)o->n_kv_heads * (size_t)o->head_dim;
    struct gpu_prepare *p = &b->prepare;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        *p = (struct gpu_prepare){ .q = floats(b, t * nq, e), .k = floats(b, t * nk, e), .v = floats(b, t * nk, e),
                                   .n_heads = o->n_heads, .n_kv_heads = o->n_kv_heads,
                                   .head_dim = o->head_dim, .eps = 1e-5f, .qw = floats(b, (size_t)o->head_dim, e),
                                   .rope_dim = o->head_dim };
        b->a = floats(b, t * (size_t)o->head_dim / 2 + 1, e);
        b->b = floats(b, t * (size_t)o->head_dim / 2 + 1, e);
        b->act = halves(b, (t > MOST_SEQUENCES ? t : MOST_SEQUENCES) * nq, e);
        p->cosine = b->a;
        p->sine = b->b;
        if (!p->q || !p->k || !p->v || !p->qw || !b->a || !b->b || !b->act || step_arrays(b, &p->step, e) < 0 ||
            fill_cache(b, types[i], e) < 0)
            return -1;
        b->attention = (struct gpu_attention){ .q = p->q, .act = b->act, .act_stride = (int)nq, .n_heads = p->n_heads,
                                               .n_kv_heads = p->n_kv_heads, .head_dim = p->head_dim,
                                               .scale = 1 / sqrtf((float)p->head_dim), .kv = p->kv, .step = p->step };
        if (decode(b, "attn_decode", e) < 0 ||
            (types[i] == KV_F16 && prefill(b, launch_prefill, "attn_prefill", e) < 0))
            return -1;
        for (int k = 0; types[i] == KV_F16 && k < o->n_tokens; k++) {
            const int n = b->n = p->step.n = o->tokens[k];
            b->n_copies = 1;
            if (measure(b, launch_rope, "rope_table", "f32", n, 4.0 * n * o->head_dim, 0, e) < 0 ||
                measure(b, launch_prepare, "prepare", "f16", n, n * (8.0 * (double)nq + 12.0 * (double)nk), 0, e) < 0)
                return -1;
        }
        give_back(b);
    }
    return 0;
}

/* ---- drawing tokens ---- */

static int launch_sample(struct bench *b, int copy, struct err *e)
{
    const struct gpu_sample o = { .logits = b->a + (size_t)copy * (size_t)b->n * (size_t)b->o->vocab, .draws = b->draws,
                                  .n = b->n, .vocab = b->o->vocab, .id = b->id, .part = b->sample_part,
                                  .arrived = b->sample_arrived };
    return gpu_sample(b->g, &o, e);
}

static int sampling(struct bench *b, struct err *e)
{
    static const struct { const char *name; struct gpu_draw d; } ways[] = { { "greedy", { .top_p = 1 } },
        { "top_p", { .temperature = 0.8f, .top_p = 0.95f } } };
    int most = 1;
    for (int i = 0; i < b->o->n_tokens; i++)
        most = b->o->tokens[i] <= MOST_SEQUENCES && b->o->tokens[i] > most ? b->o->tokens[i] : most;
    b->a = floats(b, (size_t)most * (size_t)b->o->vocab, e);
    b->id = take(b, (size_t)most * sizeof *b->id, e);
    b->draws = take(b, (size_t)most * sizeof *b->draws, e);
    const size_t counters = GPU_SAMPLE_BLOCKS * sizeof *b->sample_arrived;
    b->sample_part = take(b, GPU_SAMPLE_BLOCKS * sizeof *b->sample_part, e);
    b->sample_arrived = take(b, counters, e);
    if (!b->a || !b->id || !b->draws || !b->sample_part || !b->sample_arrived ||
        gpu_fill(b->g, GPU_COMPUTE, b->sample_arrived, 0, counters, e) < 0)
        return -1;
    for (size_t way = 0; way < sizeof ways / sizeof *ways; way++) {
        memcpy(b->pattern, &ways[way].d, sizeof ways[way].d);
        if (spread(b, b->draws, (size_t)most * sizeof *b->draws, sizeof ways[way].d, e) < 0)
            return -1;
        for (int i = 0; i < b->o->n_tokens; i++) {
            b->n = b->o->tokens[i];
            if (b->n > most)
                continue;
            b->n_copies = 1;            /* one copy, in L2: in a model the head has just written the logits */
            if (measure(b, launch_sample, "sample", ways[way].name, b->n, 4.0 * b->n * b->o->vocab, 0, e) < 0)
                return -1;
        }
    }
    give_back(b);
    return 0;
}

/* ---- all measurements ---- */

static int check(const struct gpu_bench_options *o, struct err *e)
{
    if (o->rows < 1 || o->cols < 1 || o->vocab < 1 || o->context < 1 || o->repeats < 1 || o->n_tokens < 1 ||
        o->n_kv_heads < 1 || o->n_heads % o->n_kv_heads || o->head_dim % 16 || o->head_dim < 16 ||
        o->head_dim > GPU_ATTN_MAX_DIM)
        return err_set(e, ERR_SHAPE, "%d x %d, %d tokens of context, %d heads of %d on %d: expected at least 1 of each, and heads of a multiple of 16 up to %d", o->rows, o->cols,
                       o->context, o->n_heads, o->head_dim, o->n_kv_heads, GPU_ATTN_MAX_DIM);
    return 0;
}

int gpu_bench(int device, const struct gpu_bench_options *o, struct err *e)
{
    struct bench b = { .o = o, .rng = { 1 }, .n_sequences = 1 };
    struct gpu_info info;
    if (check(o, e) < 0)
        return -1;
    for (int i = 0; i < o->n_tokens; i++) {
        b.most_tokens = o->tokens[i] > b.most_tokens ? o->tokens[i] : b.most_tokens;
        b.n_sequences = o->tokens[i] <= MOST_SEQUENCES && o->tokens[i] > b.n_sequences ? o->tokens[i] : b.n_sequences;
    }
    b.blocks_each = (o->context + KV_BLOCK - 1) / KV_BLOCK;
    b.n_blocks = b.n_sequences * b.blocks_each;
    if (b.n_blocks < (b.most_tokens + KV_BLOCK - 1) / KV_BLOCK)
        b.n_blocks = (b.most_tokens + KV_BLOCK - 1) / KV_BLOCK;
    int rc = (b.g = gpu_open(device, 0, e)) && gpu_info(b.g, &info, e) == 0 ? 0 : -1;
    if (rc == 0 && !(b.seconds = malloc((size_t)o->repeats * sizeof *b.seconds)))
        rc = err_nomem(e, "measurement");
    if (rc == 0 && (!(b.pattern = gpu_pinned(b.g, PATTERN, "a measurement", e)) ||
                    !(b.from = gpu_event_open(b.g, e)) || !(b.to = gpu_event_open(b.g, e))))
        rc = -1;
    if (rc == 0) {
        b.l2 = info.l2;
        rc = linears(&b, e) < 0 || (!o->autotune && (rows(&b, e) < 0 || attention(&b, e) < 0 || latents(&b, e) < 0 ||
                                                 sampling(&b, e) < 0))
                 ? -1 : 0;
    }
    if (b.g) {
        give_back(&b);
        gpu_pinned_free(b.g, b.pattern);
    }
    if (b.from)
        gpu_event_close(b.g, b.from);
    if (b.to)
        gpu_event_close(b.g, b.to);
    gpu_close(b.g);
    free(b.seconds);
    return rc;
}
