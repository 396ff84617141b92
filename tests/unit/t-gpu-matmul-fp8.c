/* t-gpu-matmul-fp8.c - fp8 weights times E4M3 activations.  Codes are small integers and scales are
 * powers of two, so that every sum is exact and the expected bits do not depend on the order of
 * additions; awkward sizes and every kind of output; and the rounding of activations.  Runs
 * emulated in every build (with all accesses checked), natively by make check-gpu. */
#include "tests/lib/gpu.h"

enum { MOST_CODE = 7 };                 /* E4M3 has all integers up to 16 */

/* A matrix whose values are integers times a power of two for 128 k of a row. */
struct weights { struct mat m; uint8_t *data; int8_t *value; float *scale; };

static struct weights random_weights(int rows, int cols, struct rng *r)
{
    struct weights w = { .value = NULL };
    struct qrow q;
    OK(mat_init(&w.m, QT_FP8, 128, 0, (uint64_t)rows, (uint64_t)cols, &why));
    const size_t padded = (size_t)w.m.cols_padded;
    w.data = aligned_alloc(64, w.m.size);
    w.m.data = w.data;
    w.value = calloc((size_t)rows, padded);
    w.scale = malloc((size_t)rows * (size_t)w.m.n_groups * sizeof *w.scale);
    for (int i = 0; i < w.m.n_tiles; i++)
        tile_clear(&w.m, w.data + (size_t)i * w.m.tile_bytes);
    OK(qrow_init(&q, &w.m, &why));
    q.row_scale = 1;
    for (int row = 0; row < rows; row++) {
        for (int k = 0; k < w.m.cols_padded; k++) {
            const int v = k < cols ? (int)below(r, 2 * MOST_CODE + 1) - MOST_CODE : 0;
            w.value[(size_t)row * padded + (size_t)k] = (int8_t)v;
            q.code[k] = f32_to_f8e4m3((float)v);
        }
        for (int i = 0; i < w.m.n_groups; i++)
            w.scale[row * w.m.n_groups + i] = q.scale[i] = ldexpf(1, (int)below(r, 5) - 2);
        tile_put(&w.m, w.data + (size_t)(row / TILE_ROWS) * w.m.tile_bytes, row % TILE_ROWS, &q);
    }
    qrow_release(&q);
    return w;
}

/* Activations of n tokens as gpu_act_fp8() makes them, here and on the device; codes after cols
 * are 0. */
struct codes { int8_t *value, *dcode; float *scale, *dscale; size_t stride; };

static struct codes random_codes(int n, int cols, struct rng *r)
{
    struct codes c = { .stride = (size_t)GPU_CODE_STRIDE(cols) };
    uint8_t *code = calloc((size_t)n, c.stride);
    c.value = calloc((size_t)n, c.stride);
    c.scale = malloc((size_t)n * sizeof *c.scale);
    for (int t = 0; t < n; t++) {
        c.scale[t] = uniform(r, 1e-3f, 1);
        for (int k = 0; k < cols; k++) {
            const int v = (int)below(r, 2 * MOST_CODE + 1) - MOST_CODE;
            c.value[(size_t)t * c.stride + (size_t)k] = (int8_t)v;
            code[(size_t)t * c.stride + (size_t)k] = f32_to_f8e4m3((float)v);
        }
    }
    c.dcode = to_device(code, (size_t)n * c.stride);
    c.dscale = to_device(c.scale, (size_t)n * sizeof *c.scale);
    free(code);
    return c;
}

static float product(const struct weights *w, const struct codes *c, int token, int row)
{
    double sum = 0;
    for (int k = 0; k < w->m.cols; k++)
        sum += (double)w->scale[row * w->m.n_groups + k / 128] *
               w->value[(size_t)row * (size_t)w->m.cols_padded + (size_t)k] *
               c->value[(size_t)token * c->stride + (size_t)k];
    return (float)sum * c->scale[token];
}

/* Check y = w x for a kind of output, bit for bit, and that nothing is written beyond y. */
static void check(int rows, int cols, int n, int pad, int finish, int wgmma)
{
    struct rng r = { (uint64_t)(rows * 131 + cols * 7 + n) };
    struct weights w = random_weights(rows, cols, &r);
    struct codes c = random_codes(n, cols, &r);
    const size_t ldo = (size_t)(rows + pad), size = (size_t)n * ldo * sizeof(float);
    float *before = malloc(size), *out = malloc(size), *bias = malloc((size_t)rows * sizeof *bias);
    for (int i = 0; i < rows; i++)
        bias[i] = uniform(&r, -100, 100);
    for (size_t i = 0; i < (size_t)n * ldo; i++)
        before[i] = uniform(&r, -1, 1);
    struct gpu_linear l = { .w = { gpu_mat_of(&w.m, to_device(w.data, w.m.size)) },
                            .to = { { .bias = pad ? to_device(bias, (size_t)rows * sizeof *bias) : NULL,
                                      .out = to_device(before, size), .ldo = (int)ldo } },
                            .n_mats = 1, .code = c.dcode, .code_scale = c.dscale, .n_tokens = n,
                            .finish = (enum gpu_finish)finish, .scale = 0.3f, .limit = finish == GPU_ADD ? 0 : 2 };
    l.wgmma = wgmma;
    OK(gpu_matmul_fp8(device, &l, &why));
    from_device(out, l.to[0].out, size);
    for (int t = 0; t < n; t++)
        for (size_t i = 0; i < ldo; i++) {
            const float was = before[(size_t)t * ldo + i], got = out[(size_t)t * ldo + i];
            float want = was;
            if (i < (size_t)rows) {
                const float p = product(&w, &c, t, (int)i), y = pad ? p + bias[i] : p;
                want = finish == GPU_STORE ? fminf(fmaxf(y, -2), 2) : finish == GPU_ADD ? fmaf(0.3f, y, was)
                       : 2 * tanhf(0.3f * y / 2);
            }
            if (finish == GPU_LOGITS && i < (size_t)rows ? !(fabsf(got - want) < 1e-5f) : got != want)
                fail_msg("%d x %d, %d tokens, ending %d: token %d row %zu is %.9g, not %.9g", rows, cols, n, finish, t,
                         i, (double)got, (double)want);
        }
    gpu_free(device, (void *)l.w[0].data), gpu_free(device, (void *)l.to[0].bias), gpu_free(device, l.to[0].out);
    gpu_free(device, c.dcode), gpu_free(device, c.dscale);
    free(before), free(out), free(bias), free(c.value), free(c.scale), free(w.data), free(w.value), free(w.scale);
}

/* Both kernels: one group and several, more than there are stages; rows that fill a block or not;
 * outputs that are 8-byte aligned or not; one tile and several for a block; more tiles of tokens
 * than are taken together. */
static void products(void **state)
{
    (void)state;
    static const struct { int rows, cols, n, pad, finish; } cases[] = {
        { 1, 1, 129, 0, GPU_STORE }, { 33, 100, 140, 3, GPU_ADD }, { 128, 128, 256, 0, GPU_ADD },
        { 130, 576, 129, 2, GPU_LOGITS }, { 70, 1100, 300, 0, GPU_STORE }, { 300, 260, 140, 4, GPU_ADD },
        { 576, 200, 260, 1, GPU_STORE }, { 130, 100, 2180, 0, GPU_STORE },
        { 300, 1700, 140, 0, GPU_STORE }, { 900, 300, 130, 0, GPU_STORE },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int wgmma = 0; wgmma < 2; wgmma++)
            check(cases[i].rows, cases[i].cols, cases[i].n, cases[i].pad, cases[i].finish, wgmma);
}

/* Other formats and fewer tokens are refused, and the device stays usable. */
static void refusals(void **state)
{
    (void)state;
    struct rng r = { 5 };
    struct weights w = random_weights(32, 128, &r);
    struct gpu_mat m = gpu_mat_of(&w.m, w.data);
    assert_int_equal(gpu_matmul_fp8_takes(device, &m, GPU_SPLIT_TOKENS + 1),
                     gpu_capability(device) >= GPU_FP8_CAPABILITY);
    assert_int_equal(gpu_matmul_fp8_takes(device, &m, GPU_SPLIT_TOKENS), 0);
    m.type = QT_MXFP8;
    assert_int_equal(gpu_matmul_fp8_takes(device, &m, GPU_SPLIT_TOKENS + 1), 0);
    const struct gpu_linear l = { .w = { m }, .n_mats = 1, .n_tokens = GPU_SPLIT_TOKENS + 1 };
    assert_int_equal(gpu_matmul_fp8(device, &l, &why), -1);
    assert_int_equal(gpu_is_lost(device), 0);
    free(w.data), free(w.value), free(w.scale);
}

/* Codes, scale and the zeros after them, for both orders of activations, also for rows that are all
 * zero or contain NaN or infinity. */
static void activations(void **state)
{
    (void)state;
    enum { N = 5, COLS = 1030, STRIDE = 1056, PADDED = GPU_CODE_STRIDE(COLS) };
    struct rng r = { 3 };
    float x[N * COLS], scale[N];
    uint8_t code[N * PADDED];
    for (int k = 0; k < N * COLS; k++)
        x[k] = k / COLS == 2 ? 0 : uniform(&r, -1, 1) * ldexpf(1, (int)below(&r, 20) - 15);
    x[3 * COLS + COLS / 2] = NAN;
    x[4 * COLS + COLS - 1] = -INFINITY;
    for (enum gpu_act_order order = GPU_ACT_LANES; order <= GPU_ACT_TILES; order++) {
        uint16_t *act = pack_act(x, N, COLS, STRIDE, order), *dact = to_device(act, N * STRIDE * sizeof *act);
        int8_t *dcode = on_device(sizeof code);
        float *dscale = on_device(sizeof scale);
        OK(gpu_act_fp8(device, dact, STRIDE, order, N, COLS, dcode, dscale, &why));
        from_device(code, dcode, sizeof code);
        from_device(scale, dscale, sizeof scale);
        for (int t = 0; t < N; t++) {
            float most = 0, v[COLS];
            int n_above = 0;
            for (int k = 0; k < COLS; k++) {
                v[k] = f16_to_f32(act[t * STRIDE + act_at(k, order)]);
                most = fmaxf(most, fabsf(v[k]));
            }
            const int bad = t == 3 || t == 4;
            assert_true(bad ? isnan(scale[t]) : scale[t] == most * 16 / 448);
            for (int k = 0; k < PADDED; k++) {
                const int want = bad || k >= COLS || most == 0 ? 0 : f32_to_f8e4m3(v[k] * (448 / most));
                if (code[t * PADDED + k] != want)
                    fail_msg("order %d: code %d of token %d is %d, not %d", order, k, t, code[t * PADDED + k], want);
                n_above += (code[t * PADDED + k] & 0x7f) == 0x7e;
            }
            assert_true(bad || t == 2 ? n_above == 0 : n_above > 0);    /* the largest one is 448 */
        }
        gpu_free(device, dact), gpu_free(device, dcode), gpu_free(device, dscale);
        free(act);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products), cmocka_unit_test(refusals), cmocka_unit_test(activations),
    };
    return device_open() ? cmocka_run_group_tests(tests, NULL, NULL) : 0;
}
