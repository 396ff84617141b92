/* quantize.c - quantize f32 rows to codes.
 *
 * The search works on a group divided by its largest magnitude, with importance divided by its
 * largest value, so that nothing overflows.  For the values q of the codes of a trial scale, let
 * a = sum w x q and b = sum w q^2.  With the scale a/b these codes leave the error sum w x^2 -
 * a^2/b, so the trial with the largest a^2/b wins, and the scale becomes its a/b.  Sums have 16
 * lanes that are added in a fixed order, so vectors of any width give the same bits. */
#include "libcommon/quant/quantize.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/quant/half.h"

QTYPE_SCALES_HERE(7);
QTYPE_EXTRAS_HERE(3);
QTYPE_CODES_HERE(9);

enum { MAX_GROUP = 256, LANES = 16, N_TRIALS = 19 };

int qrow_init(struct qrow *q, const struct mat *m, struct err *e)
{
    int extra = qtype_info(m->type)->extra != EXTRA_NONE;
    size_t codes = ((size_t)m->cols_padded + 63) / 64 * 64, scales = (size_t)m->n_groups * sizeof(float);
    q->code = calloc(1, codes + scales * (extra ? 2 : 1));
    if (!q->code)
        return err_nomem(e, "a quantized row");
    q->row_scale = 1;
    q->scale = (float *)(void *)(q->code + codes);
    q->extra = extra ? q->scale + m->n_groups : NULL;
    return 0;
}

void qrow_release(struct qrow *q)
{
    free(q->code);
    *q = (struct qrow){ 0 };
}

void qrow_decode(const struct mat *m, const struct qrow *q, float *out)
{
    int n = m->group_size;
    for (int g = 0, k = 0; k < m->cols; g++, k += n)
        codes_decode(m, q->code + k, m->cols - k < n ? m->cols - k : n, q->row_scale, q->scale[g],
                     q->extra ? q->extra[g] : 0, out + k);
}

/* ---- the values of codes, in units of the scale ---- */

struct grid {
    float low, high;            /* ends */
    int n;                      /* number of values of a codebook; 0: the integers from low to high */
    float threshold[15];        /* midpoints between neighbouring values of the codebook */
    /* 256 times the first value, and 256 times the differences of neighbouring values */
    int16_t first, step[15];
    int one_sign; /* negative scales are not tried, because they gain nothing or cannot be stored */
    float trial_low, trial_high;        /* range of trial scales, as factors of |extreme| / end */
};

static void grid_init(struct grid *g, enum qtype type)
{
    const struct qtype_info *t = qtype_info(type);
    memset(g, 0, sizeof *g);
    switch (t->codes) {
    case CODES_INT8: g->low = -127; g->high = 127; break;
    case CODES_TERNARY: case CODES_BASE3: g->low = -1; g->high = 1; break;
    case CODES_E2M1: g->low = -6; g->high = 6; break;   /* not linear: see float_nearest */
    case CODES_E4M3: g->low = -448; g->high = 448; break;
    default:
        g->low = t->value[0];
        g->high = t->value[(1 << t->bits) - 1];
        if (t->codes == CODES_LINEAR)
            break;
        g->n = 1 << t->bits;
        g->first = (int16_t)(t->value[0] * 256);
        for (int i = 0; i + 1 < g->n; i++) {
            g->threshold[i] = (t->value[i] + t->value[i + 1]) / 2;
            g->step[i] = (int16_t)((int)(t->value[i + 1] * 256) - (int)(t->value[i] * 256));
        }
    }
    /* indexed by the number of bits; of all ranges tried, these had the least error on a model's
     * weights, with equal and with very unequal importance */
    static const float trial_low[9] = { 0, 0, .40f, .60f, .68f, .78f, .90f, 0, .97f };
    static const float trial_high[9] = { 0, 0, 1.3f, 1.4f, 1.45f, 1.15f, 1.10f, 0, 1.08f };
    g->trial_low = trial_low[t->bits];
    g->trial_high = trial_high[t->bits];
    /* for groups of normal numbers the best ternary scale is .44 of the largest magnitude of 256
     * numbers, .47 of that of 128 and .57 of that of 32 */
    if (qtype_is_ternary(t))
        g->trial_low = .25f, g->trial_high = 1;
    g->one_sign = qtype_is_ternary(t) || t->codes == CODES_E2M1 || t->codes == CODES_INT8 || t->scale == SCALE_U8;
}

/* Nearest integer, ties to even, |t| < 2^22. */
static inline float round_even(float t)
{
    return (t + 0x1.8p23f) - 0x1.8p23f;
}

static inline float clamp(float t, float low, float high)
{
    t = t > low ? t : low;
    return t < high ? t : high;
}

/* A normalised group, ready for trials. */
struct group {
    /* a multiple of 32; columns after the last of the matrix have x = w = 0 */
    int n;
    float amax, extreme;        /* largest magnitude, and the value that has it, not normalised */
    float low, high;            /* least and largest x, normalised */
    float x[MAX_GROUP], w[MAX_GROUP], wx[MAX_GROUP];
    int16_t fixed[2][MAX_GROUP];        /* 32767 x and -32767 x, for codebooks */
};

/* q: the values of a linear grid nearest to (x - min) / scale. */
static void linear_values(const struct grid *g, const float *restrict x, int n, float min, float scale,
                          float *restrict q)
{
    float inv = 1 / scale;
    for (int i = 0; i < n; i += LANES)
        for (int l = i; l < i + LANES; l++)
            q[l] = round_even(clamp((x[l] - min) * inv, g->low, g->high));
}

/* q: 256 times the values of a codebook nearest to x / scale.  Eight elements at a time are
 * compared in 16-bit fixed point, which is precise enough for choosing a scale. */
static void codebook_values(const struct grid *g, const struct group *d, float scale, float *restrict q)
{
    typedef int16_t v8 __attribute__((vector_size(16)));
    const int16_t *x = d->fixed[scale < 0];
    int16_t threshold[15], value[32];
    for (int j = 0; j < g->n - 1; j++)
        threshold[j] = (int16_t)clamp(g->threshold[j] * (fabsf(scale) * 32767), -32768, 32767);
    for (int i = 0; i < d->n; i += 32) {
        v8 in[4], v[4];
        memcpy(in, x + i, sizeof in);
        v[0] = v[1] = v[2] = v[3] = (v8){ 0 } + g->first;
        for (int j = 0; j < g->n - 1; j++) {
            v8 t = (v8){ 0 } + threshold[j], step = (v8){ 0 } + g->step[j];
#pragma GCC unroll 4
            for (int l = 0; l < 4; l++)
                v[l] += (in[l] > t) & step;
        }
        memcpy(value, v, sizeof value);
        for (int l = 0; l < 32; l++)
            q[i + l] = (float)value[l];
    }
}

typedef float f4 __attribute__((vector_size(16)));

/* The sum of the 16 lanes of four vectors, added in pairs: lane l and l + 8, then l + 4, l + 2,
 * l + 1. */
static inline float lanes(const f4 *s)
{
    f4 v = (s[0] + s[2]) + (s[1] + s[3]);
    return (v[0] + v[2]) + (v[1] + v[3]);
}

/* Sums over the values q: a = sum w x q, b = sum w q^2. */
static void sums(const struct group *d, const float *q, float *a, float *b)
{
    f4 sa[4] = { { 0 } }, sb[4] = { { 0 } };
    for (int i = 0; i < d->n; i += LANES) {
        f4 w[4], wx[4], v[4];
        memcpy(w, d->w + i, sizeof w);
        memcpy(wx, d->wx + i, sizeof wx);
        memcpy(v, q + i, sizeof v);
#pragma GCC unroll 4
        for (int l = 0; l < 4; l++) {
            sa[l] += wx[l] * v[l];
            sb[l] += w[l] * (v[l] * v[l]);
        }
    }
    *a = lanes(sa);
    *b = lanes(sb);
}

/* The sum of w q. */
static float weighted(const struct group *d, const float *q)
{
    f4 s[4] = { { 0 } };
    for (int i = 0; i < d->n; i += LANES)
        for (int l = 0; l < 4; l++) {
            f4 w, v;
            memcpy(&w, d->w + i + 4 * l, sizeof w);
            memcpy(&v, q + i + 4 * l, sizeof v);
            s[l] += w * v;
        }
    return lanes(s);
}

/* Compute a and b (see the head of this file) for the codes of one trial scale; returns a^2 / b. */
static float trial(const struct grid *g, const struct group *d, float scale, float *a, float *b)
{
    float q[MAX_GROUP];
    if (g->n)
        codebook_values(g, d, scale, q);
    else
        linear_values(g, d->x, d->n, 0, scale, q);
    sums(d, q, a, b);
    if (g->n) {
        *a *= 1.0f / 256;
        *b *= 1.0f / 65536;
    }
    return *b > 0 ? *a * (*a / *b) : 0;
}

/* Copy and normalise n columns, of which `valid` exist.  amax, wmax: the largest magnitude and
 * importance of the whole row, for types with one scale per row; 0: use those of the group. */
static void group_init(struct group *d, const float *x, const float *importance, int valid, int n, float amax,
                       float wmax)
{
    float low = 0, high = 0, w_high = 0;
    d->n = n;
    for (int i = 0; i < valid; i++) {
        low = i == 0 || x[i] < low ? x[i] : low;
        high = i == 0 || x[i] > high ? x[i] : high;
        w_high = importance && importance[i] > w_high ? importance[i] : w_high;
    }
    d->extreme = -low > high ? low : high;
    d->amax = amax > 0 ? amax : fabsf(d->extreme);
    wmax = wmax > 0 ? wmax : w_high;
    float unit = d->amax > 0 ? d->amax : 1;
    d->low = low / unit;
    d->high = high / unit;
    for (int i = 0; i < n; i++) {
        d->x[i] = i < valid ? x[i] / unit : 0;
        d->w[i] = i >= valid ? 0 : wmax > 0 ? importance[i] / wmax : 1;
        d->wx[i] = d->w[i] * d->x[i];
        d->fixed[0][i] = (int16_t)round_even(d->x[i] * 32767);
        d->fixed[1][i] = (int16_t)-d->fixed[0][i];
    }
}

/* ---- scales ---- */

/* The k-th of N_TRIALS factors from high to low, evenly spaced in 1/f.  Factor number N_TRIALS
 * is 1, that of QUANT_ABSMAX, so that the search is never worse. */
static float factor(const struct grid *g, int k)
{
    if (k == N_TRIALS)
        return 1;
    float inv_low = 1 / g->trial_low, inv_high = 1 / g->trial_high;
    return 1 / (inv_high + (inv_low - inv_high) * ((float)k / (N_TRIALS - 1)));
}

/* Try the scale `unit` times factor k.  If it is better than *best, store it in *scale, update
 * *best and return 1. */
static int improve(const struct grid *g, const struct group *d, float unit, int k, float *best, float *scale)
{
    float a, b, worth = k < 0 || k > N_TRIALS ? 0 : trial(g, d, factor(g, k) * unit, &a, &b);
    if (worth <= *best)
        return 0;
    *best = worth;
    *scale = a / b;
    return 1;
}

/* Search the scale of a group of a type without minimum or zero point, in units of amax.  The
 * extreme is mapped to the longer end of the grid, or, with the opposite sign, to the shorter end.
 * Every other factor is tried first, then the two next to the best: these 23 trials leave 0.3 %
 * more error than all 39. */
static float search_scale(const struct grid *g, const struct group *d, enum quant_effort effort)
{
    float end = -g->low > g->high ? g->low : g->high, other = end < 0 ? g->high : g->low;
    float sign = g->one_sign || d->extreme >= 0 ? 1 : -1, unit = sign / end, best_unit = unit, best = 0, scale = unit;
    int at = 0;
    if (effort == QUANT_ABSMAX || d->amax == 0)
        return scale;
    improve(g, d, unit, N_TRIALS, &best, &scale);
    for (int flipped = 0; flipped < (g->one_sign ? 1 : 2); flipped++, unit = sign / other)
        for (int k = 0; k < N_TRIALS; k += 2)
            if (improve(g, d, unit, k, &best, &scale)) {
                best_unit = unit;
                at = k;
            }
    improve(g, d, best_unit, at - 1, &best, &scale);
    if (at + 1 < N_TRIALS)
        improve(g, d, best_unit, at + 1, &best, &scale);
    return scale;
}

/* The e2m1 code nearest to t; ties go to the even last bit, as in the specification. */
static uint8_t e2m1_nearest(float t)
{
    const float a = fabsf(t);
    const int code = (a > .25f) + (a >= .75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5);
    return (uint8_t)(t < 0 && code ? code + 8 : code);
}

/* The value of the code nearest to t, for codes of floating point; larger ones are clipped. */
static float float_nearest(enum code_kind codes, float t)
{
    return codes == CODES_E4M3 ? f8e4m3_to_f32(f32_to_f8e4m3(t)) : qtype_info(QT_MXFP4)->value[e2m1_nearest(t)];
}

/* The scale of a type whose scales are powers of two: the power of two that maps the largest
 * magnitude into 4..8 for e2m1, 256..512 for e4m3, where values above 6 or 448 are clipped; with
 * QUANT_SEARCH the best of this one and its two neighbours. */
static float search_power(enum code_kind codes, const struct group *d, enum quant_effort effort)
{
    const int places = codes == CODES_E4M3 ? 9 : 3, reach = effort == QUANT_SEARCH;
    int e, best_e = 0;
    float best = INFINITY;
    if (!(d->amax > 0))
        return 0x1p-127f;
    frexpf(d->amax, &e);
    for (int at = e - places - reach; at <= e - places + reach; at++) {
        const float scale = ldexpf(1, at) / d->amax, inverse = ldexpf(d->amax, -at);
        float err = 0;
        for (int i = 0; i < d->n; i++) {
            float left = d->x[i] - scale * float_nearest(codes, d->x[i] * inverse);
            err += d->w[i] * (left * left);
        }
        if (err < best)
            best = err, best_e = at;
    }
    return ldexpf(1, best_e < -127 ? -127 : best_e > 128 - places ? 128 - places : best_e);
}

/* The f32 scale of a row whose group scales are e4m3: the group with the row's largest magnitude
 * gets the largest scale, 448, and this magnitude the largest code, 6. */
static float e4m3_unit(const struct mat *m, const float *x)
{
    float amax = 0;
    for (int k = 0; k < m->cols; k++)
        amax = fabsf(x[k]) > amax ? fabsf(x[k]) : amax;
    return amax / (448 * 6) < FLT_MIN ? 0 : amax / (448 * 6);
}

/* The e4m3 scale of a group, in units of e4m3_unit(), which maps the largest magnitude to 6; with
 * QUANT_SEARCH the best of this one and the three scales below and above it. */
static float search_e4m3(const struct group *d, enum quant_effort effort, float unit)
{
    const float *value = qtype_info(QT_NVFP4)->value;
    if (!(unit > 0) || !(d->amax > 0))
        return 0;
    const int first = f32_to_f8e4m3(d->amax / 6 / unit), reach = effort == QUANT_SEARCH ? 3 : 0;
    float best = INFINITY, best_scale = 0;
    for (int code = first - reach; code <= first + reach; code++) {
        if (code < 1 || code > 0x7e)
            continue;
        /* the scale for the normalised values */
        const float scale = f8e4m3_to_f32((f8e4m3)code) * unit / d->amax;
        float err = 0;
        for (int i = 0; i < d->n; i++) {
            const float left = d->x[i] - scale * value[e2m1_nearest(d->x[i] / scale)];
            err += d->w[i] * (left * left);
        }
        if (err < best)
            best = err, best_scale = f8e4m3_to_f32((f8e4m3)code);
    }
    return best_scale;
}

/* Search scale and integer zero point: for each zero point near the one that min and max suggest,
 * search the scale of a linear grid from -zero to 15 - zero. */
static float search_zero(const struct group *d, enum quant_effort effort, float *zero)
{
    float low = d->low < 0 ? d->low : 0, high = d->high > 0 ? d->high : 0, scale = (high - low) / 15, best = 0;
    int z0 = (int)round_even(-low / scale);
    *zero = (float)z0;
    if (effort == QUANT_ABSMAX)
        return scale;
    for (int z = z0 < 1 ? 0 : z0 - 1; z <= 15 && z <= z0 + 1; z++) {
        struct grid g = { .low = (float)-z, .high = (float)(15 - z), .trial_low = .64f, .trial_high = 1.1f };
        for (int k = 0; k <= N_TRIALS; k++)
            if (improve(&g, d, (high - low) / 15, k, &best, &scale))
                *zero = (float)z;
    }
    return scale;
}

/* Search scale and minimum: the codes of several spans and centres are tried, each refitted three
 * times by weighted least squares.  x is scaled to 0..1 here; results are in units of the group's
 * span, and relative to its minimum. */
static void search_min(struct group *d, enum quant_effort effort, float *scale, float *min)
{
    static const struct grid g = { .low = 0, .high = 15 };
    float span = d->high - d->low, q[MAX_GROUP], a, b;
    *scale = 1.0f / 15;
    *min = 0;
    if (effort == QUANT_ABSMAX)
        return;
    for (int i = 0; i < d->n; i++) {
        d->x[i] = (d->x[i] - d->low) / span;
        d->wx[i] = d->w[i] * d->x[i];
        q[i] = 1;
    }
    sums(d, q, &a, &b);
    double sw = (double)b, swx = (double)a, best = 0;
    for (int k = -2; k <= 8; k += 2)
        for (int p = -1; p <= 1; p++) {
            float s = (1 - 0.04f * (float)k) / 15, z = 0.5f + (float)p * (k > 0 ? (float)k : 1) / 120 - 7.5f * s;
            for (int refit = 0; refit < 3; refit++) {
                linear_values(&g, d->x, d->n, z, s, q);
                sums(d, q, &a, &b);
                double wq = (double)weighted(d, q), wxq = (double)a, wqq = (double)b, det = sw * wqq - wq * wq;
                double slope = det > 1e-9 * sw * wqq ? (sw * wxq - wq * swx) / det : 0, base = (swx - slope * wq) / sw;
                if (!(slope > 0))
                    break;
                s = (float)slope;
                z = (float)base;
                if (slope * wxq + base * swx > best) {          /* sum w x^2 minus the error */
                    best = slope * wxq + base * swx;
                    *scale = s;
                    *min = z;
                }
            }
        }
}

/* Search one f32 scale for the whole row, in units of its largest magnitude amax. */
static float search_row(const struct mat *m, const struct grid *g, const float *x, const float *importance,
                        enum quant_effort effort, float amax)
{
    double a[N_TRIALS + 1] = { 0 }, b[N_TRIALS + 1] = { 0 }, best = 0;
    float scale = 1 / g->high, wmax = 0;
    struct group d;
    if (effort == QUANT_ABSMAX)
        return scale;
    for (int k = 0; importance && k < m->cols; k++)
        wmax = importance[k] > wmax ? importance[k] : wmax;
    for (int c = 0; c < m->cols; c += 32) {
        group_init(&d, x + c, wmax > 0 ? importance + c : NULL, m->cols - c < 32 ? m->cols - c : 32, 32, amax, wmax);
        for (int k = 0; k <= N_TRIALS; k++) {
            float ga, gb;
            trial(g, &d, factor(g, k) / g->high, &ga, &gb);
            a[k] += (double)ga;
            b[k] += (double)gb;
        }
    }
    for (int k = 0; k <= N_TRIALS; k++)
        if (b[k] > 0 && a[k] * (a[k] / b[k]) > best) {
            best = a[k] * (a[k] / b[k]);
            scale = (float)(a[k] / b[k]);
        }
    return scale;
}

/* The nearest finite f16. */
static float to_f16(float f)
{
    return f16_to_f32(f32_to_f16(clamp(f, -65504, 65504)));
}

/* Round group scales to integers of at most `limit`, in units of the row's scale: the largest
 * becomes `limit`. */
static void integer_scales(const struct mat *m, struct qrow *q, float limit)
{
    float amax = 0;
    for (int g = 0; g < m->n_groups; g++)
        amax = fabsf(q->scale[g]) > amax ? fabsf(q->scale[g]) : amax;
    q->row_scale = amax / limit;
    if (q->row_scale < FLT_MIN)                 /* zero, or too small to compute with */
        q->row_scale = 0;
    for (int g = 0; g < m->n_groups; g++)
        q->scale[g] = q->row_scale > 0 ? clamp(round_even(q->scale[g] / q->row_scale), -limit, limit) : 0;
}

void quantize_scales(const struct mat *m, const float *x, const float *importance, enum quant_effort effort,
                     struct qrow *q)
{
    const struct qtype_info *t = qtype_info(m->type);
    struct grid grid;
    struct group d;
    assert(!t->is_float && m->group_size <= MAX_GROUP);
    q->row_scale = 1;
    /* codes have exponents, so a search gains nothing, unless scales are powers of two */
    if (t->codes == CODES_E4M3 && t->scale == SCALE_F32) {
        for (int g = 0; g < m->n_groups; g++) {
            float amax = 0;
            for (int k = g * m->group_size; k < (g + 1) * m->group_size && k < m->cols; k++)
                amax = fabsf(x[k]) > amax ? fabsf(x[k]) : amax;
            q->scale[g] = amax / 448 < FLT_MIN ? 0 : amax / 448;
        }
        return;
    }
    grid_init(&grid, m->type);
    if (t->scale == SCALE_E4M3)
        q->row_scale = e4m3_unit(m, x);
    if (t->scale == SCALE_NONE) {
        float amax = 0;
        for (int k = 0; k < m->cols; k++)
            amax = fabsf(x[k]) > amax ? fabsf(x[k]) : amax;
        q->row_scale = amax > 0 ? amax * search_row(m, &grid, x, importance, effort, amax) : 0;
        if (q->row_scale < FLT_MIN)
            q->row_scale = 0;
    }
    for (int g = 0, k = 0; g < m->n_groups; g++, k += m->group_size) {
        int valid = m->cols - k < m->group_size ? m->cols - k : m->group_size;
        float scale = 0, extra = 0;
        if (t->scale == SCALE_NONE || valid <= 0) {
            q->scale[g] = t->scale == SCALE_NONE ? 1 : t->scale == SCALE_E8M0 ? 0x1p-127f : 0;
            if (q->extra)
                q->extra[g] = 0;
            continue;
        }
        group_init(&d, x + k, importance ? importance + k : NULL, valid, m->group_size, 0, 0);
        if (t->extra == EXTRA_MIN_F16) {
            float unit = d.amax * (d.high - d.low);
            extra = d.low * d.amax;
            if (unit > 0) {
                search_min(&d, effort, &scale, &extra);
                extra = d.low * d.amax + extra * unit;
                scale *= unit;
                /* the scale rounds to 0 as f16: use the middle of the range as minimum */
                if (to_f16(scale) == 0)
                    extra = (d.low + d.high) / 2 * d.amax;
            }
            q->extra[g] = to_f16(extra);
        } else if (t->extra == EXTRA_ZERO_U8) {
            if (d.amax > 0)
                scale = search_zero(&d, effort, &extra) * d.amax;
            q->extra[g] = extra;
        } else if (t->scale == SCALE_E8M0) {
            q->scale[g] = search_power(t->codes, &d, effort);
            continue;
        } else if (t->scale == SCALE_E4M3) {
            q->scale[g] = search_e4m3(&d, effort, q->row_scale);
            continue;
        } else {
            scale = search_scale(&grid, &d, effort) * d.amax;
        }
        q->scale[g] = t->scale == SCALE_F16 ? to_f16(scale) : clamp(scale, -FLT_MAX / 128, FLT_MAX / 128);
    }
    if (t->scale == SCALE_S8 || t->scale == SCALE_U8)
        integer_scales(m, q, t->scale == SCALE_S8 ? 127 : 255);
}

/* ---- codes ---- */

/* Codes of n columns of a group. */
static void group_codes(const struct grid *g, const float *x, int n, float scale, float min, float zero, float base,
                        uint8_t *code)
{
    typedef int32_t i4 __attribute__((vector_size(16)));
    float t[MAX_GROUP] = { 0 };
    int32_t c[MAX_GROUP];
    for (int i = 0; i < n; i++)
        t[i] = (x[i] - min) / scale + zero;
    if (g->n) {
        for (int i = 0; i < n; i += 4) {
            f4 v;
            i4 above = { 0 };
            memcpy(&v, t + i, sizeof v);
            for (int j = 0; j < g->n - 1; j++)
                above -= v > (f4){ 0 } + g->threshold[j];       /* -1 if true */
            memcpy(c + i, &above, sizeof above);
        }
    } else {
        for (int i = 0; i < n; i++)
            c[i] = (int32_t)(round_even(clamp(t[i], g->low, g->high)) - base);
    }
    for (int i = 0; i < n; i++)
        code[i] = (uint8_t)c[i];
}

void quantize_codes(const struct mat *m, const float *x, struct qrow *q)
{
    const struct qtype_info *t = qtype_info(m->type);
    struct grid grid;
    if (t->codes == CODES_E4M3) {
        memset(q->code, 0, (size_t)m->cols_padded);
        for (int k = 0; k < m->cols; k++)
            q->code[k] = q->scale[k / m->group_size] > 0 ? f32_to_f8e4m3(x[k] / q->scale[k / m->group_size]) : 0;
        return;
    }
    grid_init(&grid, m->type);
    float base = t->bits == 8 ? 0 : grid.low;           /* 8-bit codes are two's complement */
    memset(q->code, t->code_zero, (size_t)m->cols_padded);
    for (int g = 0, k = 0; k < m->cols; g++, k += m->group_size) {
        int valid = m->cols - k < m->group_size ? m->cols - k : m->group_size;
        float scale = t->row_scale ? q->row_scale * q->scale[g] : q->scale[g];
        float zero = t->extra == EXTRA_ZERO_U8 ? q->extra[g] : 0, min = t->extra == EXTRA_MIN_F16 ? q->extra[g] : 0;
        if (scale == 0)
            memset(q->code + k, t->code_zero, (size_t)valid);
        else if (t->codes == CODES_E2M1)
            for (int i = 0; i < valid; i++)
                q->code[k + i] = e2m1_nearest(x[k + i] / scale);
        else
            group_codes(&grid, x + k, valid, scale, min, zero, base, q->code + k);
    }
}

void quantize_row(const struct mat *m, const float *x, const float *importance, enum quant_effort effort,
                  struct qrow *q)
{
    quantize_scales(m, x, importance, effort, q);
    quantize_codes(m, x, q);
}
