/* encode.c - encode rows of a tensor to tiles, many tiles at a time, in order. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/convert/spill.h"
#include "libcommon/convert/internal.h"
#include "libcommon/import/packed.h"
#include "libcommon/quant/ggml.h"
#include "libcommon/quant/half.h"
#include "libcommon/quant/quantize.h"

enum { BATCH_BYTES = 8 << 20 };

struct encode_worker { float *x, *decoded; struct qrow q; };      /* one per thread */

struct tensor_encoder {
    struct conversion *cv;
    struct recipe *p;
    struct row_reader rows;
    struct channel_scale fold;
    const float *importance;
    float absmean;                      /* MAKE_ABSMEAN */
    struct encode_worker *workers; int n_workers;
    uint8_t *tiles;                     /* tiles of one batch */
    int tile0, batch;
    struct error_sums *stats;                /* [batch] */
    struct err *errors;                 /* [batch] */
};

void error_add(struct error_sums *s, const float *x, const float *decoded, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        double d = fabs((double)x[i] - (double)decoded[i]);
        s->max = d > s->max ? d : s->max;
        s->err2 += d * d;
        s->sum2 += (double)x[i] * (double)x[i];
    }
}

void error_merge(struct error_sums *to, const struct error_sums *from)
{
    to->max = fmax(to->max, from->max);
    to->err2 += from->err2;
    to->sum2 += from->sum2;
}

void error_report(struct convert_tensor *t, const struct error_sums *s)
{
    t->max_error = s->max;
    t->rel_error = s->sum2 > 0 ? sqrt(s->err2 / s->sum2) : 0;
    t->exact = s->max == 0;
}

/* Returns the scale for which every value of the group is exactly an integer from -127 to 127 times
 * the scale; 0: there is no such scale. */
static float whole_step(const float *x, int n)
{
    float amax = 0;
    for (int i = 0; i < n; i++)
        amax = fmaxf(amax, fabsf(x[i]));
    for (int steps = 1; steps <= 127 && amax > 0; steps++) {
        float s = f16_to_f32(f32_to_f16(amax / (float)steps));
        int i = 0;
        while (i < n && s > 0 && s < INFINITY && s * rintf(x[i] / s) == x[i])
            i++;
        if (i == n)
            return s;
    }
    return 0;
}

static void near_i8(const struct mat *m, const float *x, struct qrow *q)
{
    quantize_row(m, x, NULL, QUANT_ABSMAX, q);
    for (int g = 0; g < m->n_groups; g++) {
        int k = g * m->group_size, n = m->cols - k < m->group_size ? m->cols - k : m->group_size;
        float s = n > 0 ? whole_step(x + k, n) : 0;
        if (s == 0)
            continue;
        q->scale[g] = s;
        for (int i = 0; i < n; i++)
            q->code[k + i] = (uint8_t)(int8_t)rintf(x[k + i] / s);
    }
}

/* Find at most 16 levels at equal distances, from the smallest value on; every number of levels is
 * tried. */
static void near_i4m(const struct mat *m, const float *x, struct qrow *q)
{
    memset(q->code, 0, (size_t)m->cols_padded);
    for (int g = 0; g < m->n_groups; g++) {
        int k = g * m->group_size, n = m->cols - k < m->group_size ? m->cols - k : m->group_size;
        float lo = n > 0 ? x[k] : 0, hi = lo, best = INFINITY;
        for (int i = 0; i < n; i++) {
            lo = fminf(lo, x[k + i]);
            hi = fmaxf(hi, x[k + i]);
        }
        float min = f16_to_f32(f32_to_f16(lo));
        q->extra[g] = min;
        q->scale[g] = 0;
        for (int steps = 1; steps <= 15 && hi > lo; steps++) {
            float s = f16_to_f32(f32_to_f16((hi - lo) / (float)steps)), err = 0;
            for (int i = 0; i < n && s > 0; i++) {
                float d = s * fminf(fmaxf(rintf((x[k + i] - min) / s), 0), 15) + min - x[k + i];
                err += d * d;
            }
            if (s > 0 && err < best) {
                best = err;
                q->scale[g] = s;
            }
        }
        for (int i = 0; i < n && q->scale[g] > 0; i++)
            q->code[k + i] = (uint8_t)fminf(fmaxf(rintf((x[k + i] - min) / q->scale[g]), 0), 15);
    }
}

/* Choose the codes of the row with the exact scale, which is rounded to f16 only afterwards. */
static void one_scale(const struct mat *m, const float *x, float scale, struct qrow *q)
{
    for (int g = 0; g < m->n_groups; g++)
        q->scale[g] = g * m->group_size < m->cols ? scale : 0;
    quantize_codes(m, x, q);
    for (int g = 0; g < m->n_groups; g++)
        q->scale[g] = f16_to_f32(f32_to_f16(q->scale[g]));
}

/* Encode a row that has only the values s, -s and 0 for some s, which becomes the scale. */
static void near_ternary(const struct mat *m, const float *x, struct qrow *q)
{
    float amax = 0;
    for (int k = 0; k < m->cols; k++)
        amax = fmaxf(amax, fabsf(x[k]));
    one_scale(m, x, amax, q);
}

/* Compute the mean of all magnitudes. */
static int find_absmean(struct tensor_encoder *c, struct err *e)
{
    const struct mat *m = &c->p->m;
    float *x = malloc((size_t)m->cols * sizeof *x);
    double sum = 0;
    int rc = x ? 0 : err_nomem(e, c->p->source->name);
    for (int row = 0; row < m->rows && rc == 0; row++) {
        rc = row_reader_read(&c->rows, row, 1, x, e);
        for (int k = 0; k < m->cols && rc == 0; k++)
            sum += fabs((double)x[k]);
    }
    free(x);
    c->absmean = (float)fmax(sum / ((double)m->rows * m->cols), 1e-5);
    return rc;
}

static int float_row(const struct mat *m, uint8_t *tile, int r, const float *x, float *decoded, const struct recipe *p,
                     int64_t row, struct err *e)
{
    for (int i = 0; i < m->cols; i++) {
        decoded[i] = m->type == QT_F32 ? x[i] : m->type == QT_F16 ? f16_to_f32(f32_to_f16(x[i]))
                                                                  : bf16_to_f32(f32_to_bf16(x[i]));
        if (!isfinite(decoded[i]))
            return err_set(e, ERR_UNSUPPORTED, "tensor %s: row %" PRId64
                           ", column %d: %g is too large for %s; bf16 or f32 would hold it",
                           p->source->name, row, i, (double)x[i], qtype_info(m->type)->name);
    }
    tile_put_float(m, tile, r, x);
    return 0;
}

static int encode_row(struct tensor_encoder *c, struct encode_worker *w, uint8_t *tile, int64_t row,
                      struct error_sums *s, struct err *e)
{
    const struct recipe *p = c->p;
    const struct mat *m = &p->m;
    int r = (int)(row % TILE_ROWS);
    if (row_reader_read(&c->rows, row, 1, w->x, e))
        return -1;
    if (p->make == MAKE_FLOAT) {
        channel_scale_row(&c->fold, row, w->x, m->cols); /* only routers have factors here */
        if (float_row(m, tile, r, w->x, w->decoded, p, row, e))
            return -1;
        error_add(s, w->x, w->decoded, m->cols);
        return 0;
    }
    if (p->make == MAKE_COPY && p->source->packed) {
        const struct packed *from = p->source->packed;
        const int64_t expert = p->spec->map.transposed ? row_map_first(&p->spec->map, row) / from->cols : 0;
        packed_row(from, m, expert * from->expert_rows + row_map_at(&p->spec->map, row), &w->q);
    } else if (p->make == MAKE_COPY) {
        const struct ggml_type_info *t = ggml_type_info(p->source->type);
        size_t row_bytes = (size_t)m->cols / (size_t)t->block * (size_t)t->block_bytes;
        ggml_to_qrow(p->source->type, p->source->data + (size_t)row_map_at(&p->spec->map, row) * row_bytes, m, &w->q);
    } else if (p->make == MAKE_NEAR) {
        if (m->type == QT_I4M)
            near_i4m(m, w->x, &w->q);
        else if (qtype_is_ternary(qtype_info(m->type)))
            near_ternary(m, w->x, &w->q);
        else
            near_i8(m, w->x, &w->q);
    } else if (p->make == MAKE_TERNARY) {
        ternary_row(m, w->x, c->cv->o->ternary, &w->q);
    } else if (p->make == MAKE_ABSMEAN) {
        one_scale(m, w->x, c->absmean, &w->q);
    } else {
        channel_scale_row(&c->fold, row, w->x, m->cols);
        quantize_row(m, w->x, c->importance, QUANT_SEARCH, &w->q);
    }
    qrow_decode(m, &w->q, w->decoded);
    const struct qtype_info *t = qtype_info(m->type);
    for (int i = 0; (t->codes == CODES_E4M3 || t->codes == CODES_E2M1) && i < m->cols; i++)
        if (!isfinite(w->decoded[i]))
            return err_set(e, ERR_FORMAT, "tensor %s: row %" PRId64 ", column %d: %s", p->source->name, row, i,
                           t->codes == CODES_E2M1 && t->scale == SCALE_E8M0
                               ? "the scale of its block is 255, which is no number" : "is not a finite number");
    tile_put(m, tile, r, &w->q);
    error_add(s, w->x, w->decoded, m->cols);
    return 0;
}

static void encode_tile(void *arg, int i, int thread)
{
    struct tensor_encoder *c = arg;
    const struct mat *m = &c->p->m;
    uint8_t *tile = c->tiles + (size_t)i * m->tile_bytes;
    int64_t row = (int64_t)(c->tile0 + i) * TILE_ROWS;
    tile_clear(m, tile);
    c->stats[i] = (struct error_sums){ 0 };
    c->errors[i].code = ERR_NONE;
    for (int r = 0; r < TILE_ROWS && row + r < m->rows; r++)
        if (encode_row(c, &c->workers[thread], tile, row + r, &c->stats[i], &c->errors[i]))
            return;
}

typedef int sink_fn(void *user, const void *data, size_t n, struct err *e);

static int advance(struct conversion *cv, size_t n, struct err *e)
{
    cv->done += n;
    if (progress_report(cv->o->progress, "Converting", cv->done, cv->total, "bytes"))
        return err_set(e, ERR_CANCELLED, "cancelled");
    return 0;
}

/* Encode a tensor of plain f32: norms, biases, tables of positions. */
static int encode_plain(struct conversion *cv, struct recipe *p, const struct tensor_encoder *c, sink_fn *sink,
                        void *user, struct err *e)
{
    int64_t cols = p->spec->cols;
    size_t bytes = (size_t)cols * sizeof(float);
    float *x = malloc(bytes ? bytes : 1);
    int rc = x ? 0 : err_nomem(e, p->source->name);
    for (int64_t row = 0; row < p->spec->rows && rc == 0; row++) {
        rc = row_reader_read(&c->rows, row, 1, x, e);
        if (rc == 0)
            channel_scale_vector(&c->fold, x, cols);
        if (rc == 0)
            rc = sink(user, x, bytes, e);
        if (rc == 0)
            rc = advance(cv, bytes, e);
    }
    error_report(p->report, &(struct error_sums){ 0 });
    free(x);
    return rc;
}

static int open_workers(struct tensor_encoder *c, struct err *e)
{
    const struct mat *m = &c->p->m;
    size_t cols = (size_t)m->cols_padded;
    c->n_workers = pool_size(c->cv->pool);
    c->workers = calloc((size_t)c->n_workers, sizeof *c->workers);
    size_t fit = m->tile_bytes ? BATCH_BYTES / m->tile_bytes : 1, least = (size_t)c->n_workers;
    c->batch = (int)(fit < least ? least : fit > 4096 ? 4096 : fit);
    if (c->batch > m->n_tiles)
        c->batch = m->n_tiles;
    c->tiles = spill_alloc((size_t)c->batch * m->tile_bytes);
    c->stats = calloc((size_t)c->batch, sizeof *c->stats);
    c->errors = calloc((size_t)c->batch, sizeof *c->errors);
    if (!c->workers || !c->tiles || !c->stats || !c->errors)
        return err_nomem(e, c->p->source->name);
    for (int i = 0; i < c->n_workers; i++) {
        struct encode_worker *w = &c->workers[i];
        w->x = calloc(2 * cols, sizeof *w->x);
        w->decoded = w->x ? w->x + cols : NULL;
        if (!w->x)
            return err_nomem(e, c->p->source->name);
        if (!qtype_info(m->type)->is_float && qrow_init(&w->q, m, e))
            return -1;
    }
    return 0;
}

static void close_workers(struct tensor_encoder *c)
{
    for (int i = 0; c->workers && i < c->n_workers; i++) {
        free(c->workers[i].x);
        qrow_release(&c->workers[i].q);
    }
    free(c->workers);
    spill_free(c->tiles);
    free(c->stats);
    free(c->errors);
}

static int encode_tiles(struct conversion *cv, struct tensor_encoder *c, sink_fn *sink, void *user, struct err *e)
{
    struct error_sums sum = { 0 };
    const struct mat *m = &c->p->m;
    for (c->tile0 = 0; c->tile0 < m->n_tiles; c->tile0 += c->batch) {
        int n = m->n_tiles - c->tile0 < c->batch ? m->n_tiles - c->tile0 : c->batch;
        pool_run(cv->pool, n, encode_tile, c);
        for (int i = 0; i < n; i++) {
            if (c->errors[i].code) {
                *e = c->errors[i];
                return -1;
            }
            error_merge(&sum, &c->stats[i]);
        }
        if (sink(user, c->tiles, (size_t)n * m->tile_bytes, e) || advance(cv, (size_t)n * m->tile_bytes, e))
            return -1;
    }
    error_report(c->p->report, &sum);
    return 0;
}

int encode_importance(const struct conversion *cv, const struct recipe *p, float *out)
{
    const float *d = NULL, *s = NULL;
    const struct layer_calib *l = cv->calib && p->spec->layer >= 0 ? &cv->calib[p->spec->layer] : NULL;
    if (p->spec->expert >= 0 && l && l->experts) {
        const struct expert_calib *x = &l->experts[p->spec->expert];
        const int down = p->spec->role == ROLE_EXPERT_DOWN;
        const float *all = down ? l->down_strength : l->experts_strength ? l->experts_strength : l->strength[INPUT_MLP];
        if (!all)
            return 0;
        expert_strength(down ? x->down : x->up, x->n_tokens, all, p->m.cols, out);
        d = out;
        s = down ? x->scale : channel_scale_input(cv, p);
    } else if (p->input >= 0 && cv->calib) {
        d = cv->calib[p->spec->layer].strength[p->input];
        s = cv->calib[p->spec->layer].scale[p->input];
    } else if (p->spec->role == ROLE_HEAD || (p->spec->role == ROLE_EMBED && cv->config.tied)) {
        d = p->m.cols == cv->config.hidden_size ? cv->head_strength : NULL;
    }
    /* A channel that the text never used must still get usable weights, so every channel has at
     * least a ten-thousandth of the mean importance. */
    double mean = 0;
    for (int i = 0; d && i < p->m.cols; i++)
        mean += (double)d[i] / p->m.cols;
    if (!(mean > 0))
        return 0;
    for (int i = 0; i < p->m.cols; i++)
        out[i] = fmaxf(d[i], (float)(1e-4 * mean)) / (s ? s[i] * s[i] : 1);
    return 1;
}

int encode_tensor(struct conversion *cv, struct recipe *p, sink_fn *sink, void *user, struct err *e)
{
    const struct weight_spec *s = p->spec;
    if (p->data) {
        for (size_t at = 0, n; at < p->m.size; at += n) {
            n = p->m.size - at < BATCH_BYTES ? p->m.size - at : BATCH_BYTES;
            if (sink(user, p->data + at, n, e) || advance(cv, n, e))
                return -1;
        }
        return 0;
    }
    struct tensor_encoder c = { .cv = cv, .p = p, .fold = channel_scale_of(cv, p) };
    float *importance = NULL;
    int rc = row_reader_open(&c.rows, cv->source, p->source, &s->map, s->rows, s->cols,
                             p->make == MAKE_VECTOR && s->rows == 1,
                       e);
    if (rc == 0 && p->make == MAKE_VECTOR) {
        rc = encode_plain(cv, p, &c, sink, user, e);
    } else if (rc == 0) {
        importance = calloc((size_t)p->m.cols_padded, sizeof *importance);
        rc = importance ? open_workers(&c, e) : err_nomem(e, p->source->name);
        if (rc == 0 && p->make == MAKE_QUANT && encode_importance(cv, p, importance))
            c.importance = importance;
        if (rc == 0 && p->make == MAKE_ABSMEAN)
            rc = find_absmean(&c, e);
        if (rc == 0)
            rc = encode_tiles(cv, &c, sink, user, e);
        close_workers(&c);
        free(importance);
    }
    row_reader_close(&c.rows);
    return rc;
}
