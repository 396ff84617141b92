/* bench_simd.c - measure the vector code of the CPU on one thread: single operations beside their
 * definitions in kernels_ref.c, attention in parts beside loops that keep all scores, and attention
 * with a window beside full attention. */
#include "cmd/zse-bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cmd/cli.h"
#include "libcommon/base/rng.h"
#include "libcommon/kernels/kernels.h"

static const char prog[] = "zse-bench";

enum { N = 2048, HEAD_DIM = 64, KEYS = 512, MOST_TOKENS = 8192, SLICE_NS = 2000000 };

/* ---- memory of the commands ---- */

struct bench_arrays {
    float *x, *y, *out;                 /* [n]: two inputs and an output */
    void *scratch;
    struct mat m;                       /* simd: N x N, f32 */
    struct attn attn;
    uint8_t *kv; int32_t *table;
    float *keys, *values, *scores;      /* flash: [n, HEAD_DIM] twice, [n] */
};

static void close_arrays(struct bench_arrays *a)
{
    free(a->x), free(a->y), free(a->out), free(a->scratch), free((void *)(uintptr_t)a->m.data), free(a->kv);
    free(a->table), free(a->keys), free(a->values), free(a->scores);
}

static void *take(size_t bytes, int *failed)
{
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    *failed |= !p;
    return p;
}

static void fill(float *x, size_t n, struct rng *rng)
{
    for (size_t i = 0; x && i < n; i++)
        x[i] = (float)rng_double(rng) - 0.5f;
}

/* Store n keys and values as f16 for attention(). */
static int store_keys(struct bench_arrays *a, const struct kernels *k, int n, struct rng *rng)
{
    const size_t block = kv_block_bytes(KV_F16, HEAD_DIM), blocks = (size_t)(n + KV_BLOCK - 1) / KV_BLOCK;
    int failed = 0;
    a->kv = take(2 * block * blocks, &failed);
    a->table = take(blocks * sizeof *a->table, &failed);
    a->keys = take((size_t)n * HEAD_DIM * sizeof(float), &failed);
    a->values = take((size_t)n * HEAD_DIM * sizeof(float), &failed);
    a->scores = take((size_t)n * sizeof(float), &failed);
    fill(a->keys, (size_t)n * HEAD_DIM, rng);
    fill(a->values, (size_t)n * HEAD_DIM, rng);
    for (int i = 0; !failed && i < n; i++) {
        uint8_t *at = a->kv + 2 * block * (size_t)(i / KV_BLOCK);
        k->kv_store_key(KV_F16, at, i % KV_BLOCK, a->keys + (size_t)i * HEAD_DIM, HEAD_DIM);
        k->kv_store_value(KV_F16, at + block, i % KV_BLOCK, a->values + (size_t)i * HEAD_DIM, HEAD_DIM);
        a->table[i / KV_BLOCK] = i / KV_BLOCK;
    }
    a->attn = (struct attn){ .q = a->x, .q_token_stride = HEAD_DIM, .q_head_stride = HEAD_DIM, .out = a->out,
                             .out_token_stride = HEAD_DIM, .out_head_stride = HEAD_DIM, .n_tokens = 1, .n_q_heads = 1,
                             .head_dim = HEAD_DIM, .base = a->kv, .table = a->table, .stride = 2 * block,
                             .v_offset = block, .kv = { KV_F16, KV_F16 }, .scale = 0.125f };
    return failed;
}

/* scratch for both sets and one token, or a prompt */
static size_t scratch_bytes(const struct kernels *k)
{
    const size_t sizes[] = { k->scratch_bytes(1, N), k->attention_scratch(HEAD_DIM), kernels_ref.scratch_bytes(1, N),
                             kernels_ref.attention_scratch(HEAD_DIM) };
    size_t most = 0;
    for (int i = 0; i < 4; i++)
        most = sizes[i] > most ? sizes[i] : most;
    return most;
}

static int open_arrays(struct bench_arrays *a, const struct kernels *k, size_t n, int n_keys, int n_rows, struct err *e)
{
    struct rng rng = { 1 };
    int failed = 0;
    *a = (struct bench_arrays){ 0 };
    a->x = take(n * sizeof(float), &failed);
    a->y = take(n * sizeof(float), &failed);
    a->out = take(n * sizeof(float), &failed);
    a->scratch = take(scratch_bytes(k), &failed);
    fill(a->x, n, &rng);
    fill(a->y, n, &rng);
    if (n_rows && mat_init(&a->m, QT_F32, 32, 0, n_rows, N, e) != 0)
        return -1;
    if (n_rows && !failed) {
        uint8_t *data = take(a->m.size, &failed);
        fill((float *)(void *)data, a->m.size / sizeof(float), &rng);
        a->m.data = data;
    }
    return failed || store_keys(a, k, n_keys, &rng) ? err_nomem(e, "benchmark") : 0;
}

/* ---- zse-bench simd ---- */

static void run_add(const struct kernels *k, struct bench_arrays *a) { k->add(a->out, a->x, a->y, 1, N); }
static void run_swiglu(const struct kernels *k, struct bench_arrays *a) { k->act_mul(a->out, a->x, a->y, N, ACT_SILU); }
static void run_norm(const struct kernels *k, struct bench_arrays *a) { k->rms_norm(a->out, a->x, a->y, N, 1e-5f, 0); }
static void run_matvec(const struct kernels *k, struct bench_arrays *a)
{
    k->matmul_f32(a->out, N, &a->m, 0, a->m.n_tiles, a->x, N, 1, a->scratch);
}
static void run_attention(const struct kernels *k, struct bench_arrays *a) { k->attention(&a->attn, a->scratch); }

static const struct { const char *name, *what; void (*run)(const struct kernels *, struct bench_arrays *); } ops[] = {
    { "add", "residual of 2048 values", run_add },
    { "swiglu", "silu(gate) * up of 2048 values", run_swiglu },
    { "rms_norm", "of 2048 values", run_norm },
    { "matvec", "2048 x 2048 weights in f32", run_matvec },
    { "attention", "one query over 512 keys and values of 64 in f16", run_attention },
};
enum { N_OPS = sizeof ops / sizeof *ops };

/* Processor time of this thread, which does not pass while others run. */
static uint64_t clock_thread_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static double seconds_of(int op, const struct kernels *k, struct bench_arrays *a)
{
    const uint64_t start = clock_thread_ns();
    uint64_t now = start;
    int n = 0;
    for (; n == 0 || now - start < SLICE_NS; now = clock_thread_ns())
        for (int i = 0; i < 8; i++, n++)
            ops[op].run(k, a);
    return (double)(now - start) * 1e-9 / n;
}

int bench_simd(const struct bench_options *o)
{
    struct bench_arrays a = { 0 };
    struct err e;
    const struct kernels *k = kernels_pick(o->run.kernels, &e);
    if (!k)
        return cli_fail(prog, &e);
    double *s = calloc((size_t)o->repeats, 2 * sizeof *s);
    json_t *rows = json_array();
    int rc = s ? open_arrays(&a, k, N, KEYS, N, &e) : err_nomem(&e, "benchmark");
    a.attn.pos = KEYS - 1;
    if (rc == 0 && !o->json)
        printf("one thread; median of %d\n%-10s %12s %12s %8s\n", o->repeats, "operation", "ref, us", k->name, "ratio");
    for (int op = 0; rc == 0 && op < N_OPS; op++) {
        for (int i = 0; i < o->repeats; i++) {
            s[i] = seconds_of(op, &kernels_ref, &a);
            s[o->repeats + i] = seconds_of(op, k, &a);
        }
        const double ref = summarise(s, o->repeats).median, fast = summarise(s + o->repeats, o->repeats).median;
        json_array_append_new(rows, json_pack("{s:s, s:s, s:f, s:f, s:f}", "operation", ops[op].name, "of",
                                              ops[op].what, "ref_s", ref, "seconds", fast, "speedup", ref / fast));
        if (!o->json)
            printf("%-10s %12.2f %12.2f %8.2f   %s\n", ops[op].name, ref * 1e6, fast * 1e6, ref / fast, ops[op].what);
    }
    json_t *j = json_pack("{s:s, s:i, s:o}", "kernels", k->name, "repeats", o->repeats, "rows", rows);
    if (rc == 0 && o->json)
        cli_json(j);
    json_decref(j);
    free(s);
    close_arrays(&a);
    return rc == 0 ? cli_finish(prog) : cli_fail(prog, &e);
}

/* ---- zse-bench flash ---- */

/* Causal attention that computes all scores of a query before the first value, in f32. */
static void plain_attention(struct bench_arrays *a, int n)
{
    for (int i = 0; i < n; i++) {
        const float *q = a->x + (size_t)i * HEAD_DIM;
        float *out = a->out + (size_t)i * HEAD_DIM, most = -INFINITY, sum = 0;
        for (int j = 0; j <= i; j++) {
            float s = 0;
            for (int d = 0; d < HEAD_DIM; d++)
                s += q[d] * a->keys[(size_t)j * HEAD_DIM + (size_t)d];
            a->scores[j] = s * a->attn.scale;
            most = fmaxf(most, a->scores[j]);
        }
        memset(out, 0, HEAD_DIM * sizeof *out);
        for (int j = 0; j <= i; j++)
            sum += a->scores[j] = expf(a->scores[j] - most);
        for (int j = 0; j <= i; j++)
            for (int d = 0; d < HEAD_DIM; d++)
                out[d] += a->scores[j] / sum * a->values[(size_t)j * HEAD_DIM + (size_t)d];
    }
}

/* The largest difference of the two results for n tokens, and the seconds of each. */
static double compare(struct bench_arrays *a, const struct kernels *k, int n, double *plain_s, double *parts_s)
{
    double most = 0;
    uint64_t start = clock_thread_ns();
    plain_attention(a, n);
    *plain_s = (double)(clock_thread_ns() - start) * 1e-9;
    memcpy(a->y, a->out, (size_t)n * HEAD_DIM * sizeof *a->y);
    a->attn.n_tokens = n;
    start = clock_thread_ns();
    k->attention(&a->attn, a->scratch);
    *parts_s = (double)(clock_thread_ns() - start) * 1e-9;
    for (int i = 0; i < n * HEAD_DIM; i++)
        most = fmax(most, fabs((double)a->out[i] - (double)a->y[i]));
    return most;
}

int bench_flash_check(const struct bench_options *o)
{
    for (int i = 0; i < o->contexts.n; i++)
        if (o->contexts.v[i] > MOST_TOKENS)
            return cli_wrong(prog, "--contexts: %d, expected at most %d for flash", o->contexts.v[i], MOST_TOKENS);
    return 0;
}

/* A measurement of attention with several numbers of tokens. */
struct attention_lengths {
    const struct bench_list *list;
    const struct kernels *k;
    struct bench_arrays arrays;
    double *s;                          /* [2 * repeats] seconds */
    json_t *rows;
};

/* Get memory for the lengths of --contexts, or the usual ones.  lengths_finish() also after an
 * error. */
static int lengths_open(struct attention_lengths *l, const struct bench_options *o, const struct bench_list *usual,
                        struct err *e)
{
    int most = 0;
    *l = (struct attention_lengths){ .list = o->contexts.n ? &o->contexts : usual, .rows = json_array() };
    l->k = kernels_pick(o->run.kernels, e);
    if (!l->k)
        return -1;
    for (int i = 0; i < l->list->n; i++)
        most = l->list->v[i] > most ? l->list->v[i] : most;
    l->s = calloc((size_t)o->repeats, 2 * sizeof *l->s);
    return l->s ? open_arrays(&l->arrays, l->k, (size_t)most * HEAD_DIM, most, 0, e) : err_nomem(e, "benchmark");
}

/* Print the JSON j, which it takes, if --json was given, and release everything; returns the exit
 * status. */
static int lengths_finish(struct attention_lengths *l, const struct bench_options *o, int rc, json_t *j,
                          const struct err *e)
{
    if (rc == 0 && o->json)
        cli_json(j);
    json_decref(j);
    free(l->s);
    close_arrays(&l->arrays);
    return rc == 0 ? cli_finish(prog) : cli_fail(prog, e);
}

int bench_flash(const struct bench_options *o)
{
    static const struct bench_list usual = { 6, { 32, 64, 128, 256, 512, 1024 } };
    struct attention_lengths l;
    struct err e;
    const int rc = lengths_open(&l, o, &usual, &e);
    if (rc == 0 && !o->json)
        printf("one head of 64, causal, one thread, %s; median of %d\n%8s %12s %12s %8s %14s\n", l.k->name, o->repeats,
               "tokens", "plain, ms", "parts, ms", "ratio", "difference");
    for (int i = 0; rc == 0 && i < l.list->n; i++) {
        const int n = l.list->v[i];
        double difference = 0;
        for (int r = 0; r < o->repeats; r++)
            difference = compare(&l.arrays, l.k, n, &l.s[r], &l.s[o->repeats + r]);
        const double plain = summarise(l.s, o->repeats).median, parts = summarise(l.s + o->repeats, o->repeats).median;
        json_array_append_new(l.rows, json_pack("{s:i, s:f, s:f, s:f, s:f}", "tokens", n, "plain_s", plain,
                                                "seconds", parts, "speedup", plain / parts, "difference", difference));
        if (!o->json)
            printf("%8d %12.3f %12.3f %8.2f %14.2g\n", n, plain * 1e3, parts * 1e3, plain / parts, difference);
    }
    return lengths_finish(&l, o, rc, json_pack("{s:s, s:i, s:o}", "kernels", l.k ? l.k->name : "", "repeats",
                                               o->repeats, "rows", l.rows), &e);
}

/* ---- zse-bench sparse --table ---- */

enum { TABLE_WINDOW = 512 };

/* Seconds of causal attention of n queries, each of which sees `window` keys (0: all before it). */
static double attention_s(struct bench_arrays *a, const struct kernels *k, int n, int window)
{
    a->attn.n_tokens = n;
    a->attn.window = window;
    const uint64_t start = clock_thread_ns();
    k->attention(&a->attn, a->scratch);
    return (double)(clock_thread_ns() - start) * 1e-9;
}

/* Measure n tokens; s: [2 * repeats]. */
static void measure_window(const struct bench_options *o, struct bench_arrays *a, const struct kernels *k, int n,
                           double *s, json_t *rows)
{
    attention_s(a, k, n, TABLE_WINDOW);         /* warm up: pages and caches */
    for (int r = 0; r < o->repeats; r++) {
        s[r] = attention_s(a, k, n, 0);
        s[o->repeats + r] = attention_s(a, k, n, TABLE_WINDOW);
    }
    const double full = summarise(s, o->repeats).median, sparse = summarise(s + o->repeats, o->repeats).median;
    json_array_append_new(rows, json_pack("{s:i, s:f, s:f, s:f}", "context", n, "full_s", full, "sparse_s", sparse,
                                          "speedup", full / sparse));
    if (!o->json)
        printf("%8d %12.3f %12.3f %8.2f\n", n, full * 1e3, sparse * 1e3, full / sparse);
}

int bench_sparse_table(const struct bench_options *o)
{
    static const struct bench_list usual = { 5, { 1024, 2048, 4096, 8192, 16384 } };
    struct attention_lengths l;
    struct err e;
    const int rc = lengths_open(&l, o, &usual, &e);
    if (rc == 0 && !o->json)
        printf("one head of 64, causal, one thread, %s; window of %d; median of %d\n%8s %12s %12s %8s\n", l.k->name,
               TABLE_WINDOW, o->repeats, "context", "full, ms", "window, ms", "ratio");
    for (int i = 0; rc == 0 && i < l.list->n; i++)
        measure_window(o, &l.arrays, l.k, l.list->v[i], l.s, l.rows);
    return lengths_finish(&l, o, rc, json_pack("{s:s, s:i, s:i, s:o}", "kernels", l.k ? l.k->name : "", "window",
                                               TABLE_WINDOW, "repeats", o->repeats, "rows", l.rows), &e);
}
