/* t-kernels-matmul.c - both matmuls: the plain kernels are compared with sums in double, and every
 * set that this machine runs bit for bit with the plain one, for every number of tokens (so a
 * token's result cannot depend on the other tokens). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libcommon/base/rng.h"
#include "libcommon/kernels/kernels.h"
#include "libcommon/quant/half.h"
#include "libcommon/quant/quantize.h"
#include "tests/lib/encode.h"

enum { MAX_TOKENS = 20, MORE = 37 };            /* MORE: enough tokens for the tile unit, in panels
                                                 * of 13, 13 and 11 */

static const int shapes[][2] = { { 1, 1 }, { 31, 31 }, { 32, 33 }, { 33, 100 }, { 100, 576 }, { 40, 1100 },
                                 { 200, 381 } };
static const int act_groups[] = { 32, 64, 128 };

static float uniform(struct rng *r, float from, float to) { return from + (to - from) * (float)rng_double(r); }
static int below(struct rng *r, int n) { return (int)(rng_double(r) * n); }
static void *aligned(size_t n)
{
    void *p = aligned_alloc(64, (n + 127) / 64 * 64);
    assert_non_null(p);
    return memset(p, 0xa5, (n + 127) / 64 * 64);
}

/* Fill a row with any codes and scales that the type has, not only those that a quantizer would
 * choose. */
static void random_row(const struct mat *m, struct qrow *q, struct rng *r)
{
    const struct qtype_info *t = qtype_info(m->type);
    q->row_scale = t->row_scale ? uniform(r, 1e-4f, 1e-3f) : 1;
    for (int i = 0; i < m->cols_padded; i++)
        q->code[i] = (uint8_t)(i >= m->cols ? t->code_zero : t->codes == CODES_E4M3
                               ? below(r, 127) | below(r, 2) << 7 : t->bits == 8 ? below(r, 255) -
                               127 : below(r, m->type == QT_T2 || m->type == QT_T3 ? 3 : 1 << t->bits));
    for (int g = 0; g < m->n_groups; g++) {
        q->scale[g] = t->scale == SCALE_NONE ? 1 : t->scale == SCALE_F32 ? uniform(r, -0.02f, 0.02f) : t->scale ==
            SCALE_F16 ? f16_to_f32(f32_to_f16(uniform(r, -0.02f, 0.02f)))
                    : t->scale == SCALE_E4M3 ? f8e4m3_to_f32((f8e4m3)(below(r, 127) | below(r, 2) << 7))
                    : t->scale == SCALE_E8M0 ? ldexpf(1, below(r, 6) ? below(r, 12) - 10 : -127 + below(r, 3))
                    : t->scale == SCALE_S8 ? (float)(below(r, 255) - 127) : (float)below(r, 256);
        if (q->extra)
            q->extra[g] = t->extra == EXTRA_MIN_F16 ? f16_to_f32(f32_to_f16(uniform(r, -0.2f, 0.2f)))
                                                    : (float)below(r, 16);
    }
}

/* The sign of element k in one of seven patterns: all +, all -, or runs of 1, 2, 4, 8 or 16
 * elements that alternate. */
static int sign_of(int pattern, int k)
{
    return pattern % 7 < 2 ? 1 - pattern % 7 * 2 : k >> (pattern % 7 - 2) & 1 ? -1 : 1;
}

/* Fill a row with the largest and smallest values and scales of the type, in such a pattern.  With
 * activations in the same pattern no sum can be larger. */
static void extreme_row(const struct mat *m, struct qrow *q, int row)
{
    const struct qtype_info *t = qtype_info(m->type);
    const int most = t->bits == 8 ? 127 : m->type == QT_T2 || m->type == QT_T3 ? 2 : (1 << t->bits) - 1;
    for (int i = 0; i < m->cols; i++)
        q->code[i] = (uint8_t)(sign_of(row, i) > 0 ? most : t->bits == 8 ? -127 : 0);
    for (int g = 0; g < m->n_groups && t->scale == SCALE_S8; g++)
        q->scale[g] = 127;
}

static uint8_t *random_mat(struct mat *m, enum qtype type, int group_size, int act_group, int rows, int cols,
                           int extreme, struct rng *r)
{
    struct err e;
    struct qrow q;
    assert_int_equal(mat_init(m, type, group_size, act_group, rows, cols, &e), 0);
    uint8_t *data = aligned(m->size);
    for (int tile = 0; tile < m->n_tiles; tile++)
        tile_clear(m, data + (size_t)tile * m->tile_bytes);
    m->data = data;
    if (qtype_info(type)->is_float) {
        float *x = malloc((size_t)rows * (size_t)cols * sizeof *x);
        for (int i = 0; i < rows * cols; i++)
            x[i] = uniform(r, -1, 1);
        mat_encode_float(m, data, x, (size_t)cols);
        free(x);
        return data;
    }
    assert_int_equal(qrow_init(&q, m, &e), 0);
    for (int row = 0; row < rows; row++) {
        random_row(m, &q, r);
        if (extreme)
            extreme_row(m, &q, row);
        tile_put(m, data + (size_t)(row / TILE_ROWS) * m->tile_bytes, row % TILE_ROWS, &q);
    }
    qrow_release(&q);
    return data;
}

/* Activations with outliers, zeros, and (token 3) whole groups of zeros. */
static float *random_activations(int n, int cols, size_t ldx, struct rng *r)
{
    float *x = malloc((size_t)n * ldx * sizeof *x);
    for (int t = 0; t < n; t++)
        for (int k = 0; k < (int)ldx; k++)
            x[(size_t)t * ldx + (size_t)k] = k >= cols ? NAN : t == 3 &&
                                             k >= 64 ? 0 : uniform(r, -1, 1) * (below(r, 50) ? 1 : 30);
    return x;
}

static float *run(const struct kernels *k, const struct mat *m, const float *x, size_t ldx, int n, int exact, int split)
{
    const size_t ldo = (size_t)m->rows + 3;
    float *out = aligned((size_t)n * ldo * sizeof *out);
    void *scratch = aligned(k->scratch_bytes(n, m->cols_padded)), *act = NULL;
    for (size_t i = 0; i < (size_t)n * ldo; i++)
        out[i] = -12345;
    if (!exact) {
        act = aligned(k->act_bytes(n, m->cols_padded, m->act_group));
        for (int p = k->act_parts(n) - 1; p >= 0; p--)
            k->act_pack(act, x, ldx, n, m->cols, m->cols_padded, m->act_group, p);
    }
    for (int t0 = 0; t0 < m->n_tiles; t0 += split) {
        int t1 = t0 + split < m->n_tiles ? t0 + split : m->n_tiles;
        if (exact)
            k->matmul_f32(out, ldo, m, t0, t1, x, ldx, n, scratch);
        else
            k->matmul(out, ldo, m, t0, t1, act, n, scratch);
    }
    for (int t = 0; t < n; t++)
        for (size_t i = (size_t)m->rows; i < ldo; i++)
            if (out[(size_t)t * ldo + i] != -12345)
                fail_msg("%s: wrote beyond the last row", k->name);
    free(scratch);
    free(act);
    return out;
}

static int same(float a, float b) { return f32_bits(a) == f32_bits(b) || (a != a && b != b); }

/* 1 if another set that runs here, before this one, has the same function. */
static int is_repeated(const struct kernels *const *k, int exact)
{
    for (const struct kernels *const *i = kernels_all; i < k; i++)
        if ((*i)->supported() && (exact ? (*i)->matmul_f32 == (*k)->matmul_f32 : (*i)->matmul == (*k)->matmul))
            return 1;
    return 0;
}

static void sets_agree(const struct mat *m, const float *x, size_t ldx, int exact, const float *want_most,
                       const float *want_amx)
{
    const size_t ldo = (size_t)m->rows + 3;
    const int most = getenv("ZSE_EMULATED") ? 9 : MAX_TOKENS;
    for (const struct kernels *const *k = kernels_all; *k; k++) {
        if (!(*k)->supported() || is_repeated(k, exact))
            continue;
        const float *want = strcmp((*k)->name, "amx") == 0 ? want_amx : want_most;
        for (int n = 1; n <= (*k == &kernels_ref ? 2 : MORE); n = n == most ? MORE : n + 1) {
            /* with one token all tiles at once, because several then take turns (turns.inc) */
            float *got = run(*k, m, x, ldx, n, exact, n > 1 && n % 2 ? 1 : m->n_tiles);
            for (int t = 0; t < n; t++)
                for (int r = 0; r < m->rows; r++) {
                    size_t i = (size_t)t * ldo + (size_t)r;
                    if (!same(got[i], want[i]))
                        fail_msg("%s %s%s group %d act_group %d, %d x %d, %d tokens: token %d row %d is %.9g, not %.9g",
                                 (*k)->name, qtype_info(m->type)->name, exact ? " f32" : "", m->group_size,
                                 m->act_group, m->rows, m->cols, n, t, r, (double)got[i], (double)want[i]);
                }
            free(got);
        }
    }
}

/* Compute products of bf16 weights as the tile unit does, as floats_amx.c describes them. */
static void bf16_tiles(const struct mat *m, const float *x, size_t ldx, float *out)
{
    float *w = malloc((size_t)m->cols_padded * sizeof *w), part[3][32];
    memset(w, 0, (size_t)m->cols_padded * sizeof *w);
    for (int r = 0; r < m->rows; r++) {
        mat_decode_row(m, r, w);
        for (int t = 0; t < MORE; t++) {
            float acc = 0;
            for (int k0 = 0; k0 < m->cols; k0 += 32) {
                for (int i = 0; i < 32; i++) {
                    float rest = k0 + i < m->cols ? x[(size_t)t * ldx + (size_t)(k0 + i)] : 0;
                    for (int p = 0; p < 3; p++, rest -= part[p - 1][i])
                        part[p][i] = f32_from_bits(f32_bits(rest) & 0xffff0000);
                    assert_true(rest == 0);             /* the three parts add up to the value exactly */
                }
                for (int p = 2; p >= 0; p--) {
                    float sum[2] = { 0, 0 };
                    for (int i = 0; i < 32; i++)
                        sum[i % 2] = fmaf(part[p][i], k0 + i < m->cols ? w[k0 + i] : 0, sum[i % 2]);
                    acc += sum[0] + sum[1];
                }
            }
            out[(size_t)t * ((size_t)m->rows + 3) + (size_t)r] = acc;
        }
    }
    free(w);
}

/* Round the activations as the kernels do, in double. */
static void round_activations(const struct mat *m, const float *x, double *out)
{
    for (int k0 = 0; k0 < m->cols; k0 += m->act_group) {
        int end = k0 + m->act_group < m->cols ? k0 + m->act_group : m->cols;
        float amax = 0;
        for (int k = k0; k < end; k++)
            amax = fabsf(x[k]) > amax ? fabsf(x[k]) : amax;
        for (int k = k0; k < end; k++)
            out[k] = amax > 0 ? nearbyint((double)(x[k] * (127.0f / amax))) * (double)(amax / 127.0f) : 0;
    }
}

/* Compare with sums in double.  The bound is the rounding of a sum of n terms in f32: n * eps * sum
 * of |terms| (Higham 2002, section 3.1). */
static void check_ref(const struct mat *m, const float *x, size_t ldx, int exact, const float *got)
{
    const size_t cols = (size_t)m->cols;
    double *a = malloc(MAX_TOKENS * cols * sizeof *a);
    float *w = malloc(cols * sizeof *w);
    const struct qtype_info *type = qtype_info(m->type);
    for (int t = 0; t < MAX_TOKENS; t++) {
        for (size_t k = 0; k < cols; k++)
            a[(size_t)t * cols + k] = x[(size_t)t * ldx + k];
        if (!exact)
            round_activations(m, x + (size_t)t * ldx, a + (size_t)t * cols);
    }
    for (int r = 0; r < m->rows; r++) {
        const int rounded = !exact && m->type == QT_NF4;        /* levels rounded to 1/127 */
        mat_decode_row(m, r, w);
        if (rounded) {
            struct qrow q;
            struct err e;
            assert_int_equal(qrow_init(&q, m, &e), 0);
            tile_get(m, m->data + (size_t)(r / TILE_ROWS) * m->tile_bytes, r % TILE_ROWS, &q);
            for (int i = 0; i < m->cols; i++)
                w[i] = q.row_scale * q.scale[i / m->group_size] * type->value8[q.code[i]];
            qrow_release(&q);
        }
        for (int t = 0; t < MAX_TOKENS; t++) {
            double sum = 0, size = 0;
            for (size_t k = 0; k < cols; k++) {
                const double b = a[(size_t)t * cols + k], v = w[k] * b;
                sum += v;
                /* if the type has a minimum, the result is the difference of two large sums, so the
                 * bound includes the size of both */
                size += fabs(v) + (type->extra != EXTRA_NONE ? 0.4 * fabs(b) : 0);
            }
            float v = got[(size_t)t * ((size_t)m->rows + 3) + (size_t)r];
            if (!(fabs((double)v - sum) <= (m->cols + 4) * 0x1p-23 * size))
                fail_msg("ref %s%s group %d act_group %d, %d x %d: token %d row %d is %.9g, not %.9g (terms %.9g)",
                         type->name, exact ? " f32" : "", m->group_size, m->act_group, m->rows, m->cols, t, r,
                         (double)v, sum, size);
        }
    }
    free(a);
    free(w);
}

static void check(enum qtype type, int group_size, int act_group, int rows, int cols, int exact)
{
    struct rng r = { (uint64_t)type * 1000003 + (uint64_t)(group_size * 7 + act_group * 3 + rows * 131 + cols) };
    struct mat m;
    size_t ldx = (size_t)cols + 5;
    uint8_t *data = random_mat(&m, type, group_size, act_group, rows, cols, 0, &r);
    float *x = random_activations(MORE, cols, ldx, &r), *want = run(&kernels_ref, &m, x, ldx, MORE, exact, m.n_tiles);
    check_ref(&m, x, ldx, exact, want);
    float *tiles = aligned((size_t)MORE * ((size_t)rows + 3) * sizeof *tiles);
    if (type == QT_BF16) {
        bf16_tiles(&m, x, ldx, tiles);
        check_ref(&m, x, ldx, exact, tiles);
    }
    sets_agree(&m, x, ldx, exact, want, type == QT_BF16 ? tiles : want);
    free(tiles);
    free(want);
    free(x);
    free(data);
}

/* Whether a case is left out.  Emulated processors are slow: they get two shapes, and one act group
 * for each group size. */
static int is_left_out(int group_size, size_t act_group, size_t shape)
{
    return getenv("ZSE_EMULATED") && ((shape != 3 && shape != 5) || act_group != (size_t)(group_size / 32 % 3));
}

static void each_type(int is_float, int exact)
{
    for (int type = 0; type < 256; type++) {
        const struct qtype_info *t = qtype_info((enum qtype)type);
        if (!t || !t->has_kernels || (exact ? t->is_float : qtype_takes_floats(t)) != is_float)
            continue;
        for (int g = 16; g <= 256; g *= 2)
            for (size_t a = type == QT_T3 ? 2 : 0; a < 3 && (g == 32 || !t->is_float) &&
                 t->group_sizes & (unsigned)g; a++) {
                if ((is_float || exact) && a && type != QT_T3)
                    continue;
                for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
                    if (!is_left_out(g, is_float || exact || type == QT_T3 ? (size_t)(g / 32 % 3) : a, s))
                        check((enum qtype)type, g, qtype_takes_floats(t) ? 0 : act_groups[a], shapes[s][0],
                              shapes[s][1], exact);
            }
    }
}

/* Kernels keep some intermediate sums in 16 bits: none may overflow, whatever the codes. */
static void the_largest_sums_do_not_overflow(void **state)
{
    (void)state;
    for (int type = 0; type < 256; type++) {
        const struct qtype_info *t = qtype_info((enum qtype)type);
        if (!t || !t->has_kernels || qtype_takes_floats(t))
            continue;
        for (int g = 32; g <= 256; g *= 2)
            for (size_t a = type == QT_T3 ? 2 : 0; a < 3 && t->group_sizes & (unsigned)g; a++) {
                struct rng r = { 77 };
                struct mat m;
                enum { COLS = 320 };
                float x[MORE * COLS];
                uint8_t *data = random_mat(&m, (enum qtype)type, g, act_groups[a], 40, COLS, 1, &r);
                for (int i = 0; i < MORE * COLS; i++)
                    x[i] = (float)sign_of(i / COLS, i % COLS);
                float *want = run(&kernels_ref, &m, x, COLS, MORE, 0, m.n_tiles);
                check_ref(&m, x, COLS, 0, want);
                sets_agree(&m, x, COLS, 0, want, want);
                free(want);
                free(data);
            }
    }
}

static void integer_matmul_agrees_with_double_and_between_sets(void **state) { (void)state; each_type(0, 0); }
static void f32_matmul_of_integers_agrees_between_sets(void **state) { (void)state; each_type(0, 1); }
static void f32_matmul_of_floats_agrees_between_sets(void **state) { (void)state; each_type(1, 1); }

/* bf16 weights give the same bits with every set once kernels_ordered() has replaced it. */
static void ordered_kernels_give_the_same_bits(void **state)
{
    (void)state;
    struct rng r = { 9 };
    struct mat m;
    uint8_t *data = random_mat(&m, QT_BF16, 32, 0, 70, 300, 0, &r);
    float *x = random_activations(MORE, 300, 300, &r), *want = run(&kernels_ref, &m, x, 300, MORE, 1, m.n_tiles);
    for (const struct kernels *const *k = kernels_all; *k; k++) {
        const struct kernels *o = kernels_ordered(*k);
        assert_string_equal(o->name, strcmp((*k)->name, "amx") ? (*k)->name : "avx512");
        if (!(*k)->supported())
            continue;
        assert_true(o->supported());
        float *got = run(o, &m, x, 300, MORE, 1, m.n_tiles);
        assert_memory_equal(got, want, sizeof *got * 70);
        free(got);
    }
    free(want);
    free(x);
    free(data);
}

/* Infinity and NaN in the activations affect the result of their token, and of no other. */
static void bad_activations_affect_only_their_token(void **state)
{
    (void)state;
    struct rng r = { 5 };
    struct mat m;
    uint8_t *data = random_mat(&m, QT_NL4, 32, 64, 33, 100, 0, &r);
    float *x = random_activations(4, 100, 100, &r);
    float *clean = run(&kernels_ref, &m, x, 100, 4, 0, 9);
    x[1 * 100 + 70] = NAN;
    x[2 * 100 + 3] = -INFINITY;
    for (const struct kernels *const *k = kernels_all; *k; k++) {
        if (!(*k)->supported())
            continue;
        float *got = run(*k, &m, x, 100, 4, 0, 9);
        for (int t = 0; t < 4; t++)
            for (int row = 0; row < 33; row++) {
                float v = got[t * 36 + row];
                if (t == 1 || t == 2 ? v == v : !same(v, clean[t * 36 + row]))
                    fail_msg("%s: token %d row %d is %.9g", (*k)->name, t, row, (double)v);
            }
        free(got);
    }
    free(clean);
    free(x);
    free(data);
}

/* The sizes of buffers grow with the numbers of tokens and columns, because callers allocate
 * buffers for the largest numbers, and then multiply fewer. */
static void sizes_never_fall(void **state)
{
    (void)state;
    for (const struct kernels *const *k = kernels_all; *k; k++) {
        if (!(*k)->supported())
            continue;
        for (int cols = 32; cols <= 16384; cols *= 2)
            for (int n = 2; n <= 600; n++)
                if ((*k)->scratch_bytes(n, cols) < (*k)->scratch_bytes(n - 1, cols) ||
                    (*k)->scratch_bytes(n, cols) < (*k)->scratch_bytes(n, cols / 2))
                    fail_msg("%s: scratch of %d tokens, %d columns is %zu bytes, less than for fewer", (*k)->name, n,
                             cols, (*k)->scratch_bytes(n, cols));
        for (size_t g = 0; g < sizeof act_groups / sizeof *act_groups; g++)
            for (int n = 2; n <= 600; n++)
                if ((*k)->act_bytes(n, 1024, act_groups[g]) < (*k)->act_bytes(n - 1, 1024, act_groups[g]))
                    fail_msg("%s: activations of %d tokens take %zu bytes, less than of one fewer", (*k)->name, n,
                             (*k)->act_bytes(n, 1024, act_groups[g]));
    }
}

enum { GUARD = 1 << 20 };

static uint8_t *guarded(size_t size) { return aligned(size + GUARD); }

static void check_guard(const struct kernels *k, const struct mat *m, const char *what, int n, int most,
                        const uint8_t *end, const uint8_t *guard)
{
    if (memcmp(end, guard, GUARD) != 0)
        fail_msg("%s %s: %d tokens write beyond the %s of %d", k->name, qtype_info(m->type)->name, n, what, most);
}

/* Multiply n tokens in buffers for `most` tokens, which are followed by bytes that must not
 * change. */
static void check_buffers(const struct kernels *k, const struct mat *m, const float *x, size_t ldx, int n, int most,
                          const uint8_t *guard)
{
    const int exact = qtype_takes_floats(qtype_info(m->type));
    const size_t ldo = (size_t)m->rows + 3, scratch_size = k->scratch_bytes(most, m->cols_padded),
                 act_size = exact ? 0 : k->act_bytes(most, m->cols_padded, m->act_group);
    float *want = run(k, m, x, ldx, n, exact, m->n_tiles), *out = aligned((size_t)n * ldo * sizeof *out);
    uint8_t *scratch = guarded(scratch_size), *act = guarded(act_size);
    if (exact) {
        k->matmul_f32(out, ldo, m, 0, m->n_tiles, x, ldx, n, scratch);
    } else {
        for (int p = 0; p < k->act_parts(n); p++)
            k->act_pack(act, x, ldx, n, m->cols, m->cols_padded, m->act_group, p);
        k->matmul(out, ldo, m, 0, m->n_tiles, act, n, scratch);
    }
    check_guard(k, m, "scratch", n, most, scratch + scratch_size, guard);
    check_guard(k, m, "activations", n, most, act + act_size, guard);
    for (int t = 0; t < n; t++)
        for (int r = 0; r < m->rows; r++)
            assert_true(same(out[(size_t)t * ldo + (size_t)r], want[(size_t)t * ldo + (size_t)r]));
    free(act);
    free(scratch);
    free(out);
    free(want);
}

static void few_tokens_in_larger_buffers(void **state)
{
    (void)state;
    static const enum qtype types[] = { QT_BF16, QT_F32, QT_NL4, QT_FP8 };
    static const int tokens[][2] = { { 1, 17 }, { 8, 17 }, { 13, 64 }, { 16, 17 }, { 16, 32 }, { 16, 192 }, { 17, 18 },
                                     { 23, 24 }, { 48, 49 }, { 33, 64 } };
    enum { ROWS = 40, COLS = 2100, MOST = 48 };
    uint8_t *guard = guarded(0);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        struct rng r = { 7 };
        struct mat m;
        uint8_t *data = random_mat(&m, types[i], types[i] == QT_FP8 ? 128 : 32, types[i] == QT_NL4 ? 64 : 0, ROWS, COLS,
                                   0, &r);
        float *x = random_activations(MOST, COLS, COLS, &r);
        for (const struct kernels *const *k = kernels_all; *k; k++)
            for (size_t n = 0; (*k)->supported() && *k != &kernels_ref && n < sizeof tokens / sizeof *tokens; n++)
                check_buffers(*k, &m, x, COLS, tokens[n][0], tokens[n][1], guard);
        free(x);
        free(data);
    }
    free(guard);
}

static void kernels_are_picked_by_name(void **state)
{
    (void)state;
    struct err e = { 0 };
    const struct kernels *k = kernels_pick(NULL, &e);
    assert_non_null(k);
    assert_ptr_equal(kernels_pick(k->name, &e), k);
    assert_ptr_equal(kernels_pick("ref", &e), &kernels_ref);
    assert_null(kernels_pick("mmx", &e));
    assert_non_null(strstr(e.msg, "mmx"));
    assert_non_null(strstr(e.msg, "ref"));
    const char *named = getenv("ZSE_TEST_KERNELS");
    if (named && !kernels_pick(named, &e))
        fail_msg("%s", e.msg);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_are_picked_by_name),
        cmocka_unit_test(integer_matmul_agrees_with_double_and_between_sets),
        cmocka_unit_test(the_largest_sums_do_not_overflow),
        cmocka_unit_test(f32_matmul_of_integers_agrees_between_sets),
        cmocka_unit_test(f32_matmul_of_floats_agrees_between_sets),
        cmocka_unit_test(ordered_kernels_give_the_same_bits), cmocka_unit_test(bad_activations_affect_only_their_token),
        cmocka_unit_test(sizes_never_fall),
        cmocka_unit_test(few_tokens_in_larger_buffers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
