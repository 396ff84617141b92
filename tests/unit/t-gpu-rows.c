/* t-gpu-rows.c - norms, activation functions, and rounding on the device against kernels_ref. */
#include "tests/lib/gpu.h"

static float act_value(const uint16_t *act, int k, enum gpu_act_order order)
{
    return 16 * f16_to_f32(act[act_at(k, order)]);
}

/* The padding of a row becomes 0, even if it was not 0 before. */
static void padded(const uint16_t *act, int n, int stride, enum gpu_act_order order)
{
    for (int k = n; k < stride; k++)
        assert_int_equal(act[act_at(k, order)], 0);
}

/* Sums of some thousand f32 terms in another order: 1e-5 of the row's largest value is far above
 * the rounding and far below the effect of a wrong epsilon. */
static void near(const float *got, const float *want, int n, const char *what)
{
    float most = 0;
    for (int i = 0; i < n; i++)
        most = fmaxf(most, fabsf(want[i]));
    for (int i = 0; i < n; i++)
        if (!(fabsf(got[i] - want[i]) <= 1e-5f * most))
            fail_msg("%s: element %d is %.9g, not %.9g", what, i, (double)got[i], (double)want[i]);
}

static void norms(void **state)
{
    (void)state;
    static const int lengths[] = { 1, 8, 31, 96, 300, 1030, 4104 };
    enum { N = 3 };
    struct rng r = { 21 };
    for (size_t s = 0; s < sizeof lengths / sizeof *lengths; s++)
        for (int kind = 0; kind < 8; kind++) {          /* layer norm or RMS norm, with weights or
                                                         * without, with the residual or without */
            const int n = lengths[s], layer = kind & 1, weights = !(kind & 2), into = kind & 4, after = into && s % 2,
                      stride = (n + 31) / 32 * 32;
            float *x = malloc(N * (size_t)n * 4), *add = malloc(N * (size_t)n * 4), *w = malloc((size_t)n * 4),
                  *b = malloc((size_t)n * 4);
            float *got = malloc(N * (size_t)n * 4), *want = malloc((size_t)n * 4), *sum = malloc((size_t)n * 4);
            uint16_t *act = malloc(N * (size_t)stride * 2);
            for (int i = 0; i < N * n; i++)
                x[i] = uniform(&r, -2, 2.5f), add[i] = uniform(&r, -1, 3);
            for (int i = 0; i < n; i++)
                w[i] = uniform(&r, -1, 1), b[i] = uniform(&r, -1, 1);
            const int32_t rows[N] = { 2, 0, 1 };
            struct gpu_norm o = { .layer_norm = layer, .present = 1, .w = weights ? to_device(w, (size_t)n * 4) : NULL,
                                  .b = weights && layer ? to_device(b, (size_t)n * 4) : NULL,
                                  .eps = 1e-3f, .offset = layer ? 0 : 0.5f, .x = to_device(x, N * (size_t)n * 4),
                                  .ldx = n, .n = N, .cols = n, .scale = 0.7f, .after_add = after };
            if (into) {
                o.add = to_device(add, N * (size_t)n * 4);
            } else {
                o.rows = to_device(rows, sizeof rows);
                o.out = on_device(N * (size_t)n * 4);
                o.ldo = n;
                o.act = on_device(N * (size_t)stride * 2);
                o.act_stride = stride;
                o.order = kind & 2 ? GPU_ACT_TILES : GPU_ACT_LANES;
            }
            OK(gpu_norm(device, &o, &why));
            from_device(got, into ? o.x : o.out, N * (size_t)n * 4);
            if (!into)
                from_device(act, o.act, N * (size_t)stride * 2);
            for (int i = 0; i < N; i++) {
                const float *from = x + (into ? i : rows[i]) * n;
                if (after) {
                    kernels_ref.add(sum, from, add + i * n, 0.7f, n);
                    from = sum;
                } else if (into) {
                    from = add + i * n;
                }
                if (layer)
                    kernels_ref.layer_norm(want, from, weights ? w : NULL, weights ? b : NULL, n, 1e-3f);
                else
                    kernels_ref.rms_norm(want, from, weights ? w : NULL, n, 1e-3f, 0.5f);
                if (into && !after)
                    kernels_ref.add(want, x + i * n, want, 0.7f, n);
                near(got + i * n, want, n, layer ? "layer norm" : "rms norm");
                for (int k = 0; !into && k < n; k++)
                    if (!(fabsf(act_value(act + i * stride, k, o.order) - want[k]) <= 6e-4f * fabsf(want[k]) + 1e-5f))
                        fail_msg("f16 of a norm: element %d is %g, not %g", k,
                                 (double)act_value(act + i * stride, k, o.order), (double)want[k]);
                if (!into)
                    padded(act + i * stride, n, stride, o.order);
            }
            gpu_free(device, (void *)o.w), gpu_free(device, (void *)o.b), gpu_free(device, o.x),
                gpu_free(device, (void *)o.add), gpu_free(device, (void *)o.rows);
            gpu_free(device, o.out), gpu_free(device, o.act);
            free(x), free(add), free(w), free(b), free(got), free(want), free(sum), free(act);
        }
}

static void functions(void **state)
{
    (void)state;
    enum { N = 2, COLS = 301, STRIDE = 320 };
    struct rng r = { 4 };
    float gate[N * COLS], up[N * COLS], want[N * COLS], got[N * COLS];
    uint16_t act[N * STRIDE];
    for (int i = 0; i < N * COLS; i++)
        gate[i] = uniform(&r, -6, 6), up[i] = uniform(&r, -3, 3);
    gate[7] = 300;
    up[7] = 1e7f;                       /* too large for f16, even divided by ACT_UNIT: stored as
                                         * the largest f16 */
    float *dgate = to_device(gate, sizeof gate), *dup = to_device(up, sizeof up), *out = on_device(sizeof got);
    uint16_t *dact = on_device(sizeof act);
    for (int f = ACT_SILU; f <= ACT_GELU_QUICK; f++)
        for (int with_up = 0; with_up < 2; with_up++) {
            const enum gpu_act_order order = with_up ? GPU_ACT_TILES : GPU_ACT_LANES;
            kernels_ref.act_mul(want, gate, with_up ? up : NULL, N * COLS, f);
            OK(gpu_act_mul(device, dgate, with_up ? dup : NULL, N, COLS, f, out, dact, STRIDE, order, &why));
            from_device(got, out, sizeof got);
            from_device(act, dact, sizeof act);
            for (int i = 0; i < N * COLS; i++) {
                const float h = act_value(act + i / COLS * STRIDE, i % COLS, order);
                if (!(fabsf(got[i] - want[i]) <= 2e-6f * (1 + fabsf(want[i]))))
                    fail_msg("function %d: f(%g) is %.9g, not %.9g", f, (double)gate[i], (double)got[i],
                             (double)want[i]);
                assert_true(fabsf(h - fminf(want[i], 65504 * 16.0f)) <= 6e-4f * fabsf(want[i]) + 1e-5f);
            }
            padded(act, COLS, STRIDE, order);
        }
    OK(gpu_act_pack(device, dgate, N, COLS, dact, STRIDE, GPU_ACT_TILES, &why));
    from_device(act, dact, sizeof act);
    for (int i = 0; i < N * COLS; i++)
        assert_true(fabsf(act_value(act + i / COLS * STRIDE, i % COLS, GPU_ACT_TILES) - gate[i]) <= 5e-4f *
                    fabsf(gate[i]) + 1e-6f);
}

/* Positions for which an f32 sine is wrong in its last bits, LongRoPE's second set of frequencies,
 * and a table without one; the launch of the embedding computes the same. */
static void angles(void **state)
{
    (void)state;
    enum { N = 4, HALF = 40 };
    const int32_t pos[N] = { 0, 3, 100003, -1 }, is_long[N] = { 0, 1, 0, 0 };
    float freq[HALF], far[HALF], c[N * HALF], s[N * HALF];
    for (int d = 0; d < HALF; d++)
        freq[d] = powf(10000, -(float)d / HALF), far[d] = freq[d] / 3;
    const float *dfreq = to_device(freq, sizeof freq), *dfar = to_device(far, sizeof far);
    const struct gpu_mat none = { .cols = 32, .n_steps = 1 };
    for (int embeds = 0; embeds < 2; embeds++) {
        struct gpu_ropes o = { .n_tables = 2, .pos = to_device(pos, sizeof pos),
                               .is_long = to_device(is_long, sizeof is_long) };
        for (int i = 0; i < 2; i++)
            o.table[i] = (struct gpu_rope){ .cosine = on_device(sizeof c), .sine = on_device(sizeof s),
                                            .dim = 2 * (HALF - i), .freq = dfreq, .freq_long = i ? NULL : dfar,
                                            .scale = 1.5f, .scale_long = 2 };
        OK(embeds ? gpu_embed(device, on_device(N * 32 * sizeof(float)), &none, to_device(pos, sizeof pos),
                              to_device(pos, sizeof pos), o.pos, N, 1, NULL, 0, &o, &why)
                  : gpu_rope_table(device, &o, N, &why));
        for (int i = 0; i < 2; i++) {
            const int half = HALF - i;
            from_device(c, o.table[i].cosine, sizeof c);
            from_device(s, o.table[i].sine, sizeof s);
            for (int t = 0; t < N; t++)
                for (int d = 0; d < half; d++) {
                    const int second = is_long[t] && i == 0;
                    const float angle = (float)(pos[t] < 0 ? 0 : pos[t]) * (second ? far[d] : freq[d]),
                                scale = second ? 2 : 1.5f;
                    assert_true(fabsf(c[t * half + d] - (float)cos((double)angle) * scale) < 3e-7f &&
                                fabsf(s[t * half + d] - (float)sin((double)angle) * scale) < 3e-7f);
                }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(norms), cmocka_unit_test(functions),
                                        cmocka_unit_test(angles) };
    return device_open() ? cmocka_run_group_tests(tests, NULL, NULL) : 0;
}
