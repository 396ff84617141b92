/* cpu_lora.c - add the changes of LoRA adapters to the outputs of linear layers. */
#include "libcommon/cpu/cpu_lora.h"

#include <assert.h>
#include <stdlib.h>

#include "libcommon/cpu/cpu.h"
#include "libcommon/cpu/cpu_ops.h"

/* ld: floats in a row of A x; low, tile, runs: bytes of these regions of a lora_work (tile: for
 * each thread). */
struct lora_sizes { size_t ld, low, tile, runs; };

static struct lora_sizes sizes_of(int rank, int max_tokens, int tile_job)
{
    const int tiles = tile_job > LORA_PARTS ? tile_job : LORA_PARTS;
    const size_t ld = (size_t)(rank + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
    return (struct lora_sizes){ .ld = ld, .low = up64((size_t)max_tokens * LORA_MATRICES * ld * sizeof(float)),
                                .tile = up64((size_t)LORA_ROWS * (size_t)tiles * TILE_ROWS * sizeof(float)),
                                .runs = (size_t)max_tokens * sizeof(struct lora_run) };
}

static size_t sum_of(const struct lora_sizes *s, int n_threads)
{
    return s->low + s->runs + (size_t)n_threads * (s->tile + sizeof(float *));
}

size_t cpu_lora_memory(int rank, int max_tokens, int n_threads)
{
    const int n = n_threads > 0 ? n_threads : pool_n_cpus();
    const struct lora_sizes s = sizes_of(rank, max_tokens, tiles_of_job(n));
    return rank ? sum_of(&s, n) : 0;
}

static void release(struct lora_work *w)
{
    for (int i = 0; i < w->n_tiles; i++)
        free(w->tile[i]);
    free(w->tile);
    free(w->low);
    free(w->runs);
    *w = (struct lora_work){ 0 };
}

int lora_open(struct core *k, const struct model *m, struct err *e)
{
    struct lora_work w = { 0 };
    const int n_threads = pool_size(k->pool);
    int rank = 0;
    for (int i = 0; i < m->n_loras; i++)
        rank = m->loras[i].rank > rank ? m->loras[i].rank : rank;
    const struct lora_sizes s = sizes_of(rank, k->max_tokens, k->tile_job);
    if (s.ld <= k->lora.ld)
        return 0;
    w.ld = s.ld;
    w.bytes = sum_of(&s, n_threads);
    w.runs = malloc(s.runs);
    w.low = aligned_alloc(64, s.low);
    w.tile = calloc((size_t)n_threads, sizeof *w.tile);
    int ok = w.runs && w.low && w.tile;
    w.n_tiles = w.tile ? n_threads : 0;
    for (int i = 0; ok && i < n_threads; i++)
        ok = (w.tile[i] = aligned_alloc(64, s.tile)) != NULL;
    if (!ok) {
        release(&w);
        return err_nomem(e, "LoRA adapters");
    }
    k->bytes += w.bytes - k->lora.bytes;
    release(&k->lora);
    k->lora = w;
    return 0;
}

void lora_close(struct core *k) { release(&k->lora); }

void lora_step(struct core *k, const struct batch_item *items, int n_items)
{
    struct lora_work *w = &k->lora;
    int row = 0;
    w->n_runs = 0;
    if (!w->runs)
        return;
    for (int i = 0; i < n_items; row += items[i++].n_tokens)
        for (int t = 0; items[i].lora && t < items[i].n_tokens; t++) {
            struct lora_run *last = w->n_runs ? &w->runs[w->n_runs - 1] : NULL;
            if (last && last->lora == items[i].lora && last->first + last->n == row + t && last->n < LORA_ROWS)
                last->n++;
            else
                w->runs[w->n_runs++] = (struct lora_run){ row + t, 1, items[i].lora };
        }
}

/* The change of l by the adapter of a run; NULL: none. */
static const struct lora_linear *change(const struct linear *l, const struct lora_run *r)
{
    const struct lora_linear *c = &l->lora[r->lora - 1];
    return c->a.data ? c : NULL;
}

static float *low_rows(const struct lora_work *w, int max_tokens, int matrix, int row)
{
    return w->low + ((size_t)matrix * (size_t)max_tokens + (size_t)row) * w->ld;
}

struct project_job { const struct core *k; const struct act_input *in[LORA_MATRICES]; };

/* Compute A x for n rows of x, where a row of A is stored in parts: each row of x is read as that
 * many shorter ones.  sums [n * parts][32] is scratch. */
static void project_parts(const struct core *k, const struct lora_linear *c, float *low, const float *x, int n,
                          float *sums, void *scratch)
{
    const int rows = TILE_ROWS / c->parts, all = n * c->parts;
    const size_t cols = (size_t)c->a.cols;
    for (int i = 0, now; i < all; i += now) {
        now = all - i < k->max_tokens ? all - i : k->max_tokens;
        k->k->matmul_f32(sums + (size_t)i * TILE_ROWS, TILE_ROWS, &c->a, 0, 1, x + (size_t)i * cols, cols, now,
                         scratch);
    }
    for (int t = 0; t < n; t++)
        for (int r = 0; r < rows; r++) {
            float sum = 0;
            for (int p = 0; p < c->parts; p++)
                sum += sums[(size_t)(t * c->parts + p) * TILE_ROWS + (size_t)(p * rows + r)];
            low[(size_t)t * k->lora.ld + (size_t)r] = sum;
        }
}

/* Compute scale * A x for the rows of a run and one matrix. */
static void project_part(void *arg, int i, int thread)
{
    const struct project_job *j = arg;
    const struct core *k = j->k;
    const struct lora_work *w = &k->lora;
    const int matrix = i / w->n_runs;
    const struct lora_run *r = &w->runs[i % w->n_runs];
    const struct lora_linear *c = change(w->matrix[matrix], r);
    const struct act_input *in = j->in[matrix];
    if (!c)
        return;
    float *low = low_rows(w, k->max_tokens, matrix, r->first);
    const float *x = in->x + (size_t)r->first * in->ldx;
    assert(c->parts == 1 || in->ldx == (size_t)(c->parts * c->a.cols));
    if (c->parts > 1)
        project_parts(k, c, low, x, r->n, w->tile[thread], k->scratch[thread]);
    else
        k->k->matmul_f32(low, w->ld, &c->a, 0, c->a.n_tiles, x, in->ldx, r->n, k->scratch[thread]);
    for (int t = 0; t < r->n; t++)
        for (int n = 0; n < c->b.cols; n++)
            low[(size_t)t * w->ld + (size_t)n] *= c->scale;
}

static void add_matrix(struct lora_work *w, struct project_job *j, const struct linear *l, const struct act_input *in)
{
    if (!l || !l->lora)
        return;
    assert(w->n_matrices < LORA_MATRICES);
    j->in[w->n_matrices] = in;
    w->matrix[w->n_matrices++] = l;
}

void lora_project(struct core *k, const struct op *ops, int n_ops)
{
    struct lora_work *w = &k->lora;
    struct project_job j = { .k = k };
    w->n_matrices = 0;
    if (!w->n_runs)
        return;
    for (int i = 0; i < n_ops; i++) {
        if (ops[i].l->lora)
            add_matrix(w, &j, ops[i].l, ops[i].in);
        if (ops[i].up)
            add_matrix(w, &j, ops[i].up, ops[i].in);
    }
    if (w->n_matrices)
        pool_run(k->pool, w->n_matrices * w->n_runs, project_part, &j);
}

void lora_prefetch(const struct core *k, const struct linear *l, int t0, int t1)
{
    const struct lora_work *w = &k->lora;
    for (int i = 0; i < w->n_runs && i < LORA_PREFETCH; i++) {
        const struct lora_linear *c = change(l, &w->runs[i]);
        const uint8_t *from = c ? c->b.data + (size_t)t0 * c->b.tile_bytes : NULL;
        const size_t n = c ? (size_t)(t1 - t0) * c->b.tile_bytes : 0;
        for (size_t at = 0; at < n; at += 64)
            __builtin_prefetch(from + at, 0, 2);
    }
}

void lora_add(const struct core *k, const struct linear *l, int t0, int t1, float *out, size_t ldo, int thread)
{
    const struct lora_work *w = &k->lora;
    const int r0 = t0 * TILE_ROWS, n = (t1 * TILE_ROWS < l->w.rows ? t1 * TILE_ROWS : l->w.rows) - r0;
    const size_t ldt = (size_t)k->tile_job * TILE_ROWS;
    int matrix = 0;
    while (w->matrix[matrix] != l)
        matrix++;
    for (int i = 0; i < w->n_runs; i++) {
        const struct lora_run *r = &w->runs[i];
        const struct lora_linear *c = change(l, r);
        float *tile = w->tile[thread];
        if (!c)
            continue;
        k->k->matmul_f32(tile - r0, ldt, &c->b, t0, t1, low_rows(w, k->max_tokens, matrix, r->first), w->ld, r->n,
                         k->scratch[thread]);
        for (int t = 0; t < r->n; t++) {
            float *to = out + (size_t)(r->first + t) * ldo + r0;
            k->k->add(to, to, tile + (size_t)t * ldt, 1, n);
        }
    }
}
