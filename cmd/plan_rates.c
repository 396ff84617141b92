/* plan_rates.c - measure the speed of the parts of a model's steps on this machine, with the
 * engine's own kernels and the model's own sizes. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/matmul_time.h"
#include "cmd/planning.h"
#include "cmd/preflight_convert.h"
#include "cmd/rates_record.h"
#include "libcommon/base/clock.h"
#include "libcommon/base/pool.h"
#include "libcommon/cpu/cpu.h"
#include "libcommon/engine/sampler.h"
#include "libcommon/hw/roofline.h"

/* Rates are medians of at most MOST_RUNS runs: they predict a usual step, which the fastest run
 * does not. */
enum { MOST_RUNS = 20 };

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_size);
    return v[n / 2];
}

static double usual_time(void (*run)(void *arg), void *arg, int runs, int times)
{
    double s[MOST_RUNS];
    for (int i = 0; i < runs; i++) {
        const uint64_t start = clock_ns();
        for (int k = 0; k < times; k++)
            run(arg);
        s[i] = (double)(clock_ns() - start) * 1e-9 / times;
    }
    return median(s, runs);
}

static void nothing(void *arg, int i, int thread)
{
    (void)arg;
    (void)i;
    (void)thread;
}

enum { JOBS_EACH = 6 };                          /* jobs per thread, as in a linear layer */
static void empty_loop(void *pool) { pool_run(pool, pool_size(pool) * JOBS_EACH, nothing, NULL); }

/* ---- the most likely token ---- */

struct pick { struct sampler *sampler; float *logits; };

static void pick(void *arg)
{
    const struct pick *p = arg;
    struct err ignored;
    int32_t id;
    sampler_pick(p->sampler, p->logits, NULL, &id, NULL, &ignored);
}

static int pick_rate(struct plan_rates *out, struct err *e)
{
    enum { N = 32768, RUNS = 10, TIMES = 5 };
    struct sampling greedy = sampling_defaults();
    greedy.temperature = 0;
    struct sampler_scratch *scratch = sampler_scratch_open(NULL, e);
    struct pick p = { scratch ? sampler_open(&greedy, N, 0, scratch, e) : NULL, malloc(N * sizeof *p.logits) };
    for (int i = 0; p.logits && i < N; i++)
        p.logits[i] = (float)(i % 97);
    if (p.sampler && p.logits)
        out->pick_s = usual_time(pick, &p, RUNS, TIMES) / N;
    const int rc = !p.sampler ? -1 : p.logits ? 0 : err_nomem(e, "rates");
    sampler_close(p.sampler);
    sampler_scratch_close(scratch);
    free(p.logits);
    return rc;
}

/* ---- rows of floats, in one thread ---- */

struct row_buffers { const struct kernels *k; float *x, *y, *w; void *act; int n, group; };

static void normalise(void *arg)
{
    const struct row_buffers *r = arg;
    r->k->rms_norm(r->y, r->x, r->w, r->n, 1e-6f, 0);
    r->k->add(r->x, r->x, r->y, 1e-3f, r->n);
}
static void round_row(void *arg)
{
    const struct row_buffers *r = arg;
    for (int p = 0; p < r->k->act_parts(1); p++)
        r->k->act_pack(r->act, r->x, (size_t)r->n, 1, r->n, r->n, r->group, p);
}
static void gate(void *arg)
{
    const struct row_buffers *r = arg;
    r->k->act_mul(r->y, r->x, r->w, r->n, ACT_SILU);
}

static int row_rates(struct plan_rates *out, const struct kernels *k, struct err *e)
{
    enum { N = 2048, GROUP = 32, RUNS = 10, TIMES = 20 };
    struct row_buffers r = { .k = k, .n = N, .group = GROUP };
    r.x = malloc(3 * N * sizeof *r.x);
    r.act = aligned_alloc(64, (k->act_bytes(1, N, GROUP) + 63) / 64 * 64);
    if (r.x && r.act) {
        r.y = r.x + N;
        r.w = r.y + N;
        for (int i = 0; i < 3 * N; i++)
            r.x[i] = 0.5f + (float)(i % 97) / 97;
        out->norm_s = usual_time(normalise, &r, RUNS, TIMES) / N;
        out->round_s = usual_time(round_row, &r, RUNS, TIMES) / N;
        out->act_s = usual_time(gate, &r, RUNS, TIMES) / N;
    }
    const int ok = r.x && r.act;
    free(r.x);
    free(r.act);
    return ok ? 0 : err_nomem(e, "rates");
}

/* ---- attention: heads of 512 positions in f16, divided among threads; one run for the last
 * token, and one for a whole prompt ---- */

enum { POSITIONS = 512, HEADS_EACH = 4, QUERIES = 96 /* of a KV head in one chunk of the engine */ };

struct heads {
    const struct kernels *k;
    struct pool *pool;
    int n_heads, group, head_dim;
    int n_chunks, chunk;            /* chunks of `chunk` tokens; the last one ends at the last position */
    /* queries_each: floats per thread, for a chunk's queries and for its output */
    size_t block, scratch_each, queries_each;
    uint8_t *kv, *scratch;
    float *q, *out;
    int32_t table[POSITIONS / KV_BLOCK];
};

static void attend(void *arg, int i, int thread)
{
    const struct heads *h = arg;
    /* the last chunk is computed first, because it takes longest */
    const int head = i % h->n_heads, last = h->n_chunks - 1 - i / h->n_heads;
    const size_t row = (size_t)h->group * (size_t)h->head_dim, at = (size_t)thread * h->queries_each;
    struct attn a = { .q = h->q + at, .q_token_stride = row, .q_head_stride = (size_t)h->head_dim, .out = h->out + at,
                      .out_token_stride = row,
                      .out_head_stride = (size_t)h->head_dim, .n_tokens = h->chunk, .n_q_heads = h->group,
                      .head_dim = h->head_dim,
                      .pos = POSITIONS - (h->n_chunks - last) * h->chunk, .base = h->kv, .table = h->table,
                      .stride = (size_t)h->n_heads * 2 * h->block,
                      .k_offset = (size_t)head * 2 * h->block, .v_offset = (size_t)head * 2 * h->block + h->block,
                      .kv = { KV_F16, KV_F16 },
                      .scale = 1 / sqrtf((float)h->head_dim) };
    h->k->attention(&a, h->scratch + (size_t)thread * h->scratch_each);
}

static void attend_all(void *arg)
{
    struct heads *h = arg;
    pool_run(h->pool, h->n_heads * h->n_chunks, attend, h);
}

static void fill_heads(struct heads *h, float *row)
{
    for (int d = 0; d < h->head_dim; d++)
        row[d] = (float)(d % 13 - 6) / 13;
    for (int p = 0; p < POSITIONS; p++)
        for (int i = 0; i < h->n_heads; i++) {
            uint8_t *at = h->kv + ((size_t)(p / KV_BLOCK) * (size_t)h->n_heads + (size_t)i) * 2 * h->block;
            h->k->kv_store_key(KV_F16, at, p % KV_BLOCK, row, h->head_dim);
            h->k->kv_store_value(KV_F16, at + h->block, p % KV_BLOCK, row, h->head_dim);
        }
    for (int i = 0; i < POSITIONS / KV_BLOCK; i++)
        h->table[i] = i;
    for (size_t i = 0; i < h->queries_each * (size_t)pool_size(h->pool); i++)
        h->q[i] = (float)(i % 11) / 11;
}

/* The shape of the heads to measure: that of the first layer with more than one head of keys and
 * values.  Latent attention has one, and its kernels have the same rates. */
static struct heads heads_of(const struct plan_shape *s)
{
    const struct plan_layer *l = NULL;
    for (int i = 0; s && !l && i < s->n_layers; i++)
        l = s->layer[i].kv_rows > 1 ? &s->layer[i] : NULL;
    const int group = l && l->attended ? (int)(l->attended / ((int64_t)l->kv_rows * l->kv_width)) : 4;
    return (struct heads){ .head_dim = l ? l->kv_width : 128, .group = group < 1 ? 1 : group };
}

static int attention_rates(struct plan_rates *out, const struct plan_shape *s, const struct kernels *k,
                           struct pool *pool, struct err *e)
{
    enum { RUNS = 6 };
    struct heads h = heads_of(s);
    h.k = k;
    h.pool = pool;
    h.n_heads = HEADS_EACH * pool_size(pool);
    h.block = kv_block_bytes(KV_F16, h.head_dim);
    h.scratch_each = (k->attention_scratch(h.head_dim) + 63) / 64 * 64;
    const int most = h.group >= QUERIES ? 1 : QUERIES / h.group;
    h.queries_each = (size_t)most * (size_t)h.group * (size_t)h.head_dim;
    const size_t queries = h.queries_each * (size_t)pool_size(pool);
    float *row = malloc((size_t)h.head_dim * sizeof *row);
    h.kv = aligned_alloc(64, (size_t)h.n_heads * 2 * h.block * (POSITIONS / KV_BLOCK));
    h.scratch = aligned_alloc(64, h.scratch_each * (size_t)pool_size(pool) + 64);
    h.q = malloc(2 * queries * sizeof *h.q);
    const int ok = row && h.kv && h.scratch && h.q;
    for (int many = 0; ok && many < 2; many++) {
        h.out = h.q + queries;
        if (!many)
            fill_heads(&h, row);
        h.chunk = many ? most : 1;
        h.n_chunks = many ? POSITIONS / h.chunk : 1;
        const double seen = POSITIONS - (h.n_chunks * h.chunk - 1) / 2.0,
                     products = 2.0 * h.n_heads * h.group * h.head_dim * seen * h.n_chunks * h.chunk;
        const double seconds = usual_time(attend_all, &h, RUNS, many ? 1 : 10);
        out->attend[many] = products / fmax(seconds - out->sync_s, seconds / 2);
    }
    free(row);
    free(h.kv);
    free(h.scratch);
    free(h.q);
    return ok ? 0 : err_nomem(e, "rates");
}

/* ---- weights ---- */

/* Measure two rates: r->read with one token, without the time for synchronizing threads and
 * rounding activations, which plans count separately; and r->multiply with many tokens. */
static int measure_type(struct plan_rates *r, enum qtype type, int rows, int cols, uint64_t footprint,
                   const struct kernels *k, struct pool *pool, struct err *e)
{
    /* floats are slow, and their rate is the same from 16 tokens on */
    enum { MANY = 256, MANY_FLOATS = 32, REPEATS = 3 };
    const struct qtype_info *t = qtype_info(type);
    const int floats = qtype_takes_floats(t), many = floats ? MANY_FLOATS : MANY;
    const int group = t->group_sizes & 256 ? 256 : t->group_sizes == 128 ? 128 : t->group_sizes & 64 &&
                      !(t->group_sizes & 32 && t->bits < 8) ? 64 : 32;
    struct mat m;
    if (mat_init(&m, type, group, floats ? 0 : 128, rows, cols, e) != 0)
        return -1;
    struct matmul_time *b = matmul_time_open(&m, k, pool, many, (struct matmul_time_weights){ footprint, 1 }, e);
    if (!b)
        return -1;
    double alone[REPEATS], together[REPEATS];
    for (int i = 0; i < REPEATS; i++) {
        alone[i] = matmul_time_run(b, 1);
        together[i] = matmul_time_run(b, many);
    }
    const double one = median(alone, REPEATS), beside = r->sync_s + (floats ? 0 : cols * r->round_s);
    r->read[type] = (double)m.size / fmax(one - beside, one / 2);
    r->multiply[type] = 2.0 * rows * cols * many / median(together, REPEATS);
    matmul_time_close(b);
    return 0;
}

/* Measure the rates that do not depend on the type of the weights. */
static int measure_common(struct plan_rates *r, const struct plan_shape *s, const struct kernels *k, struct pool *pool,
                          struct err *e)
{
    enum { RUNS = 20, TIMES = 50 };
    struct roofline l;
    const struct roofline_options lo = { .n_threads = pool_size(pool), .what = ROOFLINE_READ | ROOFLINE_F32,
                                         .only_all = 1, .root = preflight_root() };
    if (roofline_measure(&l, &lo, e) != 0)
        return -1;
    r->memory = l.read[1];
    r->f32 = l.f32[1];
    r->sync_s = usual_time(empty_loop, pool, RUNS, TIMES);
    return row_rates(r, k, e) == 0 && pick_rate(r, e) == 0 ? attention_rates(r, s, k, pool, e) : -1;
}

/* ---- rates that are kept between runs ---- */

/* The older of two times; 0: unknown. */
static int64_t older(int64_t a, int64_t b) { return !a || (b && b < a) ? b : a; }

/* Find the rates that do not depend on the type of the weights in the record, or measure them. */
static int common_rates(struct plan_rates *r, const struct plan_shape *s, struct rates_record *kept,
                        const struct kernels *k, struct pool *pool, struct err *e)
{
    char key[64];
    double *const rates[] = { &r->memory, &r->f32, &r->sync_s, &r->norm_s, &r->round_s, &r->act_s, &r->pick_s,
                              &r->attend[0], &r->attend[1] };
    enum { N = sizeof rates / sizeof *rates };
    double v[N];
    const struct heads h = heads_of(s);
    snprintf(key, sizeof key, "head_dim %d, %d queries a head", h.head_dim, h.group);
    r->n_threads = pool_size(pool);
    const int64_t at = rates_record_get(kept, key, v, N);
    for (int i = 0; at && i < N; i++)
        *rates[i] = v[i];
    r->measured = older(r->measured, at);
    if (at)
        return 0;
    if (measure_common(r, s, k, pool, e) != 0)
        return -1;
    for (int i = 0; i < N; i++)
        v[i] = *rates[i];
    rates_record_put(kept, key, v, N);
    return 0;
}

/* The same for the rates of a type of weights. */
static int rate_of(struct plan_rates *r, enum qtype type, int rows, int cols, uint64_t footprint,
                   struct rates_record *kept, const struct kernels *k, struct pool *pool, struct err *e)
{
    char key[96];
    double v[2];
    snprintf(key, sizeof key, "%s, %d x %d of %" PRIu64 " bytes", qtype_info(type)->name, rows, cols, footprint);
    const int64_t at = rates_record_get(kept, key, v, 2);
    r->measured = older(r->measured, at);
    if (at) {
        r->read[type] = v[0];
        r->multiply[type] = v[1];
        return 0;
    }
    if (measure_type(r, type, rows, cols, footprint, k, pool, e) != 0)
        return -1;
    rates_record_put(kept, key, (const double[]){ r->read[type], r->multiply[type] }, 2);
    return 0;
}

int planned_rates(struct plan_rates *r, const struct plan_weights *w, const struct plan_shape *s, int n_threads,
                  const char *kernels, struct err *e)
{
    const struct qtype_info *info;
    enum { ROWS = 8192, COLS = 2048 };              /* larger matrices have the same rates */
    const int rows = s && s->intermediate_size < ROWS ? s->intermediate_size : ROWS, cols = s &&
        s->hidden_size < COLS ? s->hidden_size : COLS;
    const struct kernels *k = kernels_pick(kernels, e);
    struct pool *pool = k ? pool_open(n_threads, e) : NULL;
    struct rates_record *kept = pool ? rates_record_open(pool_size(pool), k->name) : NULL;
    int rc = !pool ? -1 : r->memory > 0 ? 0 : common_rates(r, s, kept, k, pool, e);
    memset(r->read, 0, sizeof r->read);
    memset(r->multiply, 0, sizeof r->multiply);
    for (int i = 0; rc == 0 && i < PLAN_QTYPES; i++)
        if (w && (w->by_type[i] || w->ops[i] > 0))
            rc = rate_of(r, (enum qtype)i, rows, cols, w->step_bytes, kept, k, pool, e);
    for (int i = 0; rc == 0 && !w && (info = qtype_chosen(i)); i++)
        if (info->chosen != CHOSEN_SMALL)
            rc = rate_of(r, info->type, rows, cols, 0, kept, k, pool, e);
    rates_record_close(kept);
    pool_close(pool);
    return rc;
}
