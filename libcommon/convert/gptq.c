/* gptq.c - choose codes with error feedback, a tile of 32 rows at a time. */
#include "libcommon/convert/gptq.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/convert/spill.h"
#include "libcommon/quant/half.h"

QTYPE_EXTRAS_HERE(3);
QTYPE_CODES_HERE(9);

/* The code of level i; levels are in rising order. */
static int level_code(const struct qtype_info *t, int i)
{
    switch (t->codes) {
    case CODES_E4M3: return i < 126 ? 254 - i : i - 126;
    case CODES_E2M1: return i < 7 ? 15 - i : i - 7;
    case CODES_INT8: return i - 127;
    default:         return i;
    }
}

int level_grid_of(const struct mat *m, struct level_grid *g)
{
    const struct qtype_info *t = qtype_info(m->type);
    if (t->is_float)
        return -1;
    memset(g, 0, sizeof *g);
    if (t->codes == CODES_E4M3) {                       /* 126 levels of each sign, and 0 */
        g->n = 253;
        for (int i = 0; i < g->n; i++)
            g->level[i] = f8e4m3_to_f32((f8e4m3)level_code(t, i));
    } else if (!t->value) {                             /* int8: the code itself */
        g->n = 255;
        for (int i = 0; i < 255; i++)
            g->level[i] = (float)(i - 127);
    } else {
        /* the fourth ternary code is unused; e2m1 has two zeros */
        g->n = qtype_is_ternary(t) ? 3 : t->codes == CODES_E2M1 ? 15 : 1 << t->bits;
        for (int i = 0; i < g->n; i++)
            g->level[i] = t->value[level_code(t, i)];
    }
    g->linear = 1;
    for (int i = 0; i + 1 < g->n; i++) {
        g->middle[i] = (g->level[i] + g->level[i + 1]) / 2;
        g->linear &= g->level[i + 1] == g->level[i] + 1;
        assert(g->level[i + 1] > g->level[i]);
    }
    return 0;
}

struct column { float diag; int index; };

static int by_diag(const void *a, const void *b)
{
    const struct column *x = a, *y = b;
    return x->diag < y->diag ? -1 : x->diag > y->diag ? 1 : x->index < y->index ? -1 : 1;
}

int gptq_order(int *order, const float *diag, size_t stride, int n, int N, struct err *e)
{
    struct column *columns = malloc((size_t)N * sizeof *columns);
    if (!columns)
        return err_nomem(e, "the order of columns");
    for (int i = 0; i < N; i++)
        columns[i] = (struct column){ i < n ? diag[(size_t)i * stride] : -1, i };
    qsort(columns, (size_t)N, sizeof *columns, by_diag);
    for (int i = 0; i < N; i++)
        order[i] = columns[i].index;
    free(columns);
    return 0;
}

struct permute { const struct gptq *g; float *out; };

static void permute_row(void *arg, int i, int thread)
{
    (void)thread;
    const struct permute *s = arg;
    size_t N = (size_t)s->g->N;
    const float *from = s->g->h + (size_t)s->g->order[i] * N;
    for (int j = 0; j <= i; j++)
        s->out[(size_t)i * N + (size_t)j] = from[s->g->order[j]];
    memset(s->out + (size_t)i * N + i + 1, 0, (N - (size_t)i - 1) * sizeof *s->out);
}

int gptq_init(struct gptq *g, const struct linalg_ops *o, struct pool *p, int n, float *h, float *linv, float *c,
              struct err *e)
{
    int N = linalg_pad(n), rc = -1;
    *g = (struct gptq){ .n = n, .N = N, .h = h, .linv = linv, .c = c, .correction = 0.5f, .sweeps = 4 };
    g->order = malloc((size_t)N * sizeof *g->order);
    if (!g->order) {
        err_nomem(e, "the matrices of error feedback");
        goto done;
    }
    linalg_mirror(p, h, N);
    double mean = 0, added = 0;
    for (int i = 0; i < n; i++)
        mean += (double)h[(size_t)i * (size_t)N + (size_t)i] / n;
    if (!(mean > 0))
        /* all inputs are 0, so any codes are right */
        mean = 1;
    for (int i = n; i < N; i++)
        h[(size_t)i * (size_t)N + (size_t)i] = (float)mean;
    if (gptq_order(g->order, h, (size_t)N + 1, n, N, e) < 0)
        goto done;
    for (g->damping = 0.01; g->damping <= 10; g->damping *= 10) {
        for (int i = 0; i < n; i++)
            h[(size_t)i * (size_t)N + (size_t)i] += (float)(g->damping * mean - added);
        added = g->damping * mean;
        pool_run(p, N, permute_row, &(struct permute){ g, g->linv });
        struct err failed;
        if (linalg_cholesky(o, p, g->linv, N, &failed) == 0) {
            rc = linalg_invert_lower(o, p, g->linv, N, e);
            goto done;
        }
        if (failed.code == ERR_MEMORY) {
            *e = failed;
            goto done;
        }
    }
    err_set(e, ERR_SHAPE, "the inputs' covariance is not positive definite, even with 1000 %% damping");
done:
    if (rc)
        gptq_release(g);
    return rc;
}

void gptq_release(struct gptq *g)
{
    spill_free(g->h);
    spill_free(g->c);
    spill_free(g->linv);
    free(g->order);
    free(g->diag);
    free(g->u);
    *g = (struct gptq){ 0 };
}

/* Arrays for a tile of PANEL rows; element (column j, row r) is at [j * PANEL + r]. */
struct panels {
    float *w;               /* the target weights, corrected */
    float *q;               /* their rounded values */
    float *t;               /* scratch: first weights in rounding order, then R */
    float *scale, *offset;  /* [group][PANEL]: value = scale * level + offset */
    float *raw, *extra;     /* [group][PANEL]: scale and extra as in a qrow */
    float *row_scale;       /* [PANEL] */
    uint8_t *code;
};

/* Number of floats of one [group][PANEL] array: groups have at least 16 columns, and a matrix is
 * padded by at most 255 columns. */
static size_t group_floats(const struct gptq *g) { return ((size_t)g->N + 256) / 16 * PANEL; }

size_t gptq_scratch(const struct gptq *g)
{
    size_t panel = (size_t)g->N * PANEL;
    return (3 * panel + 4 * group_floats(g) + PANEL) * sizeof(float) + panel;
}

static struct panels panels_in(const struct gptq *g, void *scratch)
{
    size_t panel = (size_t)g->N * PANEL, groups = group_floats(g);
    float *f = scratch, *s = f + 3 * panel;
    return (struct panels){ .w = f, .q = f + panel, .t = f + 2 * panel, .scale = s, .offset = s + groups,
                            .raw = s + 2 * groups,
                            .extra = s + 3 * groups, .row_scale = s + 4 * groups,
                            .code = (uint8_t *)(s + 4 * groups + PANEL) };
}

/* w += correction * w C inv(H), with inv(H) = Linv'Linv in rounding order. */
static void correct(const struct gptq *g, const struct linalg_ops *o, const struct panels *s)
{
    int N = g->N;
    size_t bytes = (size_t)N * PANEL * sizeof *s->t;
    memset(s->q, 0, bytes);
    o->panel(s->q, PANEL, N, g->c, N, 1, s->w, PANEL, N, 1);
    for (int i = 0; i < N; i++)
        memcpy(s->t + (size_t)i * PANEL, s->q + (size_t)g->order[i] * PANEL, PANEL * sizeof *s->t);
    memset(s->q, 0, bytes);
    for (int i = 0; i < N; i += PANEL)
        o->panel(s->q + (size_t)i * PANEL, PANEL, PANEL, g->linv + (size_t)i * (size_t)N, 1, N, s->t, PANEL, i + PANEL,
                 1);
    memset(s->t, 0, bytes);
    for (int i = 0; i < N; i += PANEL)
        o->panel(s->t + (size_t)i * PANEL, PANEL, PANEL, g->linv + (size_t)i * (size_t)N + i, N, 1,
                 s->q + (size_t)i * PANEL, PANEL, N - i, 1);
    for (int i = 0; i < N; i++)
        for (int r = 0; r < PANEL; r++)
            s->w[g->order[i] * PANEL + r] += g->correction * s->t[i * PANEL + r];
}

/* Round column j of the panel, whose values are x [32]: store q and the code, and the remaining
 * error in left. */
static void round_column(const struct linalg_ops *o, const struct mat *m, const struct level_grid *grid,
                         const struct panels *s, int j, const float *x, float *left)
{
    float t[PANEL], level[PANEL], *q = s->q + (size_t)j * PANEL;
    int32_t index[PANEL];
    const float *scale = s->scale + (size_t)(j / m->group_size) * PANEL,
                *offset = s->offset + (size_t)(j / m->group_size) * PANEL;
    for (int r = 0; r < PANEL; r++)
        t[r] = scale[r] != 0 ? (x[r] - offset[r]) / scale[r] : 0;
    o->nearest(grid, t, level, index);
    for (int r = 0; r < PANEL; r++) {
        q[r] = scale[r] * level[r] + offset[r];
        left[r] = x[r] - q[r];
        s->code[(size_t)j * PANEL + (size_t)r] = (uint8_t)index[r];
    }
}

/* GPTQ: round the columns from the strongest (the last in order) to the weakest; errors are
 * passed on block by block. */
static void feed_back(const struct gptq *g, const struct linalg_ops *o, const struct mat *m,
                      const struct level_grid *grid, const struct panels *s)
{
    int N = g->N;
    float error[PANEL * PANEL];
    for (int i = 0; i < N; i++)
        memcpy(s->t + (size_t)i * PANEL, s->w + (size_t)g->order[i] * PANEL, PANEL * sizeof *s->t);
    for (int at = N - PANEL; at >= 0; at -= PANEL) {
        for (int i = PANEL - 1; i >= 0; i--) {
            const float *l = g->linv + (size_t)(at + i) * (size_t)N;
            float *x = s->t + (size_t)(at + i) * PANEL, *err = error + i * PANEL;
            memset(err, 0, PANEL * sizeof *err);
            if (g->order[at + i] >= g->n)
                continue;                               /* padding */
            round_column(o, m, grid, s, g->order[at + i], x, err);
            for (int r = 0; r < PANEL; r++)
                err[r] /= l[at + i];
            o->panel(s->t + (size_t)at * PANEL, PANEL, i, l + at, 0, 1, err, PANEL, 1, -1);
        }
        o->panel(s->t, PANEL, at, g->linv + (size_t)at * (size_t)N, N, 1, error, PANEL, PANEL, -1);
    }
}

/* One sweep of coordinate descent; R in s->t is kept up to date.  Returns the number of codes
 * that changed. */
static int sweep(const struct gptq *g, const struct linalg_ops *o, const struct mat *m, const struct level_grid *grid,
                 const struct panels *s)
{
    int N = g->N, changed = 0;
    float delta[PANEL * PANEL], x[PANEL], left[PANEL];
    for (int at = 0; at < N; at += PANEL) {
        int before = changed, n = g->n - at < PANEL ? g->n - at : PANEL;
        memset(delta, 0, sizeof delta);
        for (int i = 0; i < n; i++) {
            const float *h = g->h + (size_t)(at + i) * (size_t)N;
            float *q = s->q + (size_t)(at + i) * PANEL, *r_ = s->t + (size_t)(at + i) * PANEL, *d = delta + i * PANEL,
                  old[PANEL];
            int any = 0;
            for (int r = 0; r < PANEL; r++)
                x[r] = q[r] + r_[r] / h[at + i];
            memcpy(old, q, sizeof old);
            round_column(o, m, grid, s, at + i, x, left);
            for (int r = 0; r < PANEL; r++) {
                d[r] = q[r] - old[r];
                any += d[r] != 0;
            }
            if (any)
                o->panel(s->t + (size_t)at * PANEL, PANEL, PANEL, h + at, 0, 1, d, PANEL, 1, -1);
            changed += any;
        }
        if (changed == before)
            continue;
        const float *h = g->h + (size_t)at * (size_t)N;
        o->panel(s->t, PANEL, at, h, N, 1, delta, PANEL, PANEL, -1);
        o->panel(s->t + (size_t)(at + PANEL) * PANEL, PANEL, N - at - PANEL, h + at + PANEL, N, 1, delta, PANEL, PANEL,
                 -1);
    }
    return changed;
}

static void descend(const struct gptq *g, const struct linalg_ops *o, const struct mat *m,
                    const struct level_grid *grid, const struct panels *s)
{
    int N = g->N;
    float left[PANEL * PANEL];
    memset(s->t, 0, (size_t)N * PANEL * sizeof *s->t);
    for (int at = 0; at < N; at += PANEL) {
        for (int i = 0; i < PANEL * PANEL; i++)
            left[i] = s->w[(size_t)at * PANEL + (size_t)i] - s->q[(size_t)at * PANEL + (size_t)i];
        o->panel(s->t, PANEL, N, g->h + (size_t)at * (size_t)N, N, 1, left, PANEL, PANEL, 1);
    }
    for (int i = 0; i < g->sweeps; i++)
        if (sweep(g, o, m, grid, s) == 0)
            break;
}

/* ---- the form H = D + UU', where s = U'(W - Q) [rank][PANEL] takes the place of R ---- */

static void feed_back_low(const struct gptq *g, const struct linalg_ops *o, const struct mat *m,
                          const struct level_grid *grid, const struct panels *s)
{
    float x[PANEL], left[PANEL];
    memset(s->t, 0, (size_t)g->rank * PANEL * sizeof *s->t);
    for (int i = g->n - 1; i >= 0; i--) {
        int j = g->order[i];
        const float *w = s->w + (size_t)j * PANEL;
        memcpy(x, w, sizeof x);
        o->panel(x, PANEL, 1, g->p + (size_t)j * (size_t)g->rank, 1, 0, s->t, PANEL, g->rank, 1);
        round_column(o, m, grid, s, j, x, left);
        for (int r = 0; r < PANEL; r++)
            left[r] = w[r] - s->q[(size_t)j * PANEL + (size_t)r];
        o->panel(s->t, PANEL, g->rank, g->u + (size_t)j * (size_t)g->rank, 0, 1, left, PANEL, 1, 1);
    }
}

static void descend_low(const struct gptq *g, const struct linalg_ops *o, const struct mat *m,
                        const struct level_grid *grid, const struct panels *s)
{
    float x[PANEL], left[PANEL], old[PANEL];
    for (int i = 0, changed = 1; i < g->sweeps && changed; i++) {
        changed = 0;
        for (int j = 0; j < g->n; j++) {
            const float *w = s->w + (size_t)j * PANEL, *u = g->u + (size_t)j * (size_t)g->rank;
            float *q = s->q + (size_t)j * PANEL;
            for (int r = 0; r < PANEL; r++)
                x[r] = g->d[j] * (w[r] - q[r]);
            o->panel(x, PANEL, 1, u, 1, 0, s->t, PANEL, g->rank, 1);
            for (int r = 0; r < PANEL; r++)
                x[r] = q[r] + x[r] / g->diag[j];
            memcpy(old, q, sizeof old);
            round_column(o, m, grid, s, j, x, left);
            int any = 0;
            for (int r = 0; r < PANEL; r++) {
                left[r] = old[r] - q[r];
                any |= left[r] != 0;
            }
            if (any)
                o->panel(s->t, PANEL, g->rank, u, 0, 1, left, PANEL, 1, 1);
            changed += any;
        }
    }
}

/* Choose the scales of row r from its corrected weights. x [n] is scratch. */
static void row_scales(const struct gptq *g, const struct mat *m, const struct panels *s, int r,
                       const float *importance, float *x, struct qrow *q)
{
    const struct qtype_info *t = qtype_info(m->type);
    for (int j = 0; j < g->n; j++)
        x[j] = s->w[j * PANEL + r];
    quantize_scales(m, x, importance, QUANT_SEARCH, q);
    s->row_scale[r] = q->row_scale;
    for (int i = 0; i < m->n_groups; i++) {
        float scale = t->row_scale ? q->row_scale * q->scale[i] : q->scale[i];
        s->raw[i * PANEL + r] = q->scale[i];
        s->extra[i * PANEL + r] = q->extra ? q->extra[i] : 0;
        s->scale[i * PANEL + r] = scale;
        s->offset[i * PANEL + r] = t->extra == EXTRA_MIN_F16 ? q->extra[i] : t->extra == EXTRA_ZERO_U8
                                       ? -scale * q->extra[i] : 0;
    }
}

static void put_row(const struct gptq *g, const struct mat *m, const struct panels *s, int r, struct qrow *q,
                    uint8_t *out)
{
    const struct qtype_info *t = qtype_info(m->type);
    q->row_scale = s->row_scale[r];
    for (int i = 0; i < m->n_groups; i++) {
        q->scale[i] = s->raw[i * PANEL + r];
        if (q->extra)
            q->extra[i] = s->extra[i * PANEL + r];
    }
    memset(q->code, t->code_zero, (size_t)m->cols_padded);
    for (int j = 0; j < g->n; j++)
        q->code[j] = (uint8_t)level_code(t, s->code[j * PANEL + r]);
    tile_put(m, out, r, q);
}

void gptq_tile(const struct gptq *g, const struct linalg_ops *o, const struct mat *m, const struct level_grid *grid,
               float *w, size_t ldw, int rows, struct qrow *q, uint8_t *out, void *scratch)
{
    struct panels s = panels_in(g, scratch);
    size_t N = (size_t)g->N, n = (size_t)g->n;
    assert(m->cols == g->n && rows >= 1 && rows <= PANEL && (size_t)m->n_groups * PANEL <= group_floats(g));
    memset(scratch, 0, gptq_scratch(g));
    for (size_t r = 0; r < (size_t)rows; r++)
        for (size_t j = 0; j < n; j++)
            s.w[j * PANEL + r] = w[r * ldw + j];
    if (g->c && g->correction != 0)
        correct(g, o, &s);
    for (size_t j = 0; j < n; j++)
        s.t[j] = g->diag ? g->diag[j] : g->h[j * N + j];
    for (int r = 0; r < rows; r++)
        row_scales(g, m, &s, r, s.t, s.t + N, q);
    memset(s.q, 0, N * PANEL * sizeof *s.q);
    if (g->diag) {
        feed_back_low(g, o, m, grid, &s);
        descend_low(g, o, m, grid, &s);
    } else {
        feed_back(g, o, m, grid, &s);
        if (g->sweeps)
            descend(g, o, m, grid, &s);
    }
    tile_clear(m, out);
    for (int r = 0; r < rows; r++) {
        put_row(g, m, &s, r, q, out);
        for (size_t j = 0; j < n; j++)
            w[(size_t)r * ldw + j] = s.w[j * PANEL + (size_t)r];
    }
}
