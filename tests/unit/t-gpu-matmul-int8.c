/* t-gpu-matmul-int8.c - int8 weights times int8 activations, compared with sums of integers: the
 * same bits for every number of tokens, awkward sizes and every kind of output; and the rounding of
 * activations to int8.  Runs emulated in every build (with all accesses checked), natively by make
 * check-gpu. */
#include "tests/lib/gpu.h"

static const int shapes[][2] = { { 1, 1 }, { 31, 33 }, { 32, 32 }, { 33, 100 }, { 130, 576 }, { 70, 1100 },
                                 { 5, 4200 } };
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

/* Activations of n tokens as gpu_act_int8() makes them, here and on the device.  The bytes after
 * cols must have no effect. */
struct codes { int8_t *code, *dcode; float *scale, *dscale; size_t stride; };

static struct codes random_codes(int n, int cols, struct rng *r)
{
    struct codes c = { .stride = (size_t)(cols + 63) / 64 * 64 };
    c.code = calloc((size_t)n * c.stride, 1);
    c.scale = malloc((size_t)n * sizeof *c.scale);
    for (int t = 0; t < n; t++) {
        c.scale[t] = uniform(r, 1e-3f, 1);
        for (int k = 0; k < cols; k++)
            c.code[(size_t)t * c.stride + (size_t)k] = (int8_t)(below(r, 255) - 127);
    }
    c.dcode = to_device(c.code, (size_t)n * c.stride);
    c.dscale = to_device(c.scale, (size_t)n * sizeof *c.scale);
    return c;
}

static void drop(struct codes *c)
{
    gpu_free(device, c->dcode), gpu_free(device, c->dscale);
    free(c->code), free(c->scale);
}

/* The codes and scales of a matrix, read from its bytes. */
struct rows { int8_t *code; float *scale; };

static struct rows rows_of(const struct mat *m)
{
    struct rows w = { malloc((size_t)m->rows * (size_t)m->cols_padded), malloc((size_t)m->rows * sizeof *w.scale) };
    struct qrow q;
    OK(qrow_init(&q, m, &why));
    for (int r = 0; r < m->rows; r++) {
        tile_get(m, m->data + (size_t)(r / TILE_ROWS) * m->tile_bytes, r % TILE_ROWS, &q);
        memcpy(w.code + (size_t)r * (size_t)m->cols_padded, q.code, (size_t)m->cols_padded);
        w.scale[r] = q.row_scale;
    }
    qrow_release(&q);
    return w;
}

static float product(const struct mat *m, const struct rows *w, const struct codes *c, int token, int row)
{
    int64_t sum = 0;
    for (int k = 0; k < m->cols; k++)
        sum += w->code[(size_t)row * (size_t)m->cols_padded + (size_t)k] *
               c->code[(size_t)token * c->stride + (size_t)k];
    return (float)sum * c->scale[token] * w->scale[row];
}

/* Check y = w x + bias bit for bit, and that nothing is written beyond y. */
static void check(int rows, int cols, int n, int with_bias)
{
    struct rng r = { (uint64_t)(rows * 131 + cols * 7 + n) };
    struct mat m;
    uint8_t *data = random_mat(&m, QT_I8R, 32, rows, cols, &r);
    struct codes c = random_codes(n, cols, &r);
    struct rows w = rows_of(&m);
    const size_t ldo = (size_t)rows + (with_bias ? 3 : 8 - (size_t)rows % 4);           /* rows of
                                                                                         * the
                                                                                         * output
                                                                                         * are
                                                                                         * 16-byte
                                                                                         * aligned,
                                                                                         * or not */
    float *out = malloc((size_t)n * ldo * sizeof *out), *bias = malloc((size_t)rows * sizeof *bias);
    for (int i = 0; i < rows; i++)
        bias[i] = uniform(&r, -100, 100);
    for (size_t i = 0; i < (size_t)n * ldo; i++)
        out[i] = -12345;
    void *dw = to_device(data, m.size), *dbias = to_device(bias, (size_t)rows * sizeof *bias),
         *dout = to_device(out, (size_t)n * ldo * sizeof *out);
    const struct gpu_linear l = { .w = { gpu_mat_of(&m, dw) },
                                  .to = { { .bias = with_bias ? dbias : NULL, .out = dout, .ldo = (int)ldo } },
                                  .n_mats = 1, .code = c.dcode,
                                  .code_scale = c.dscale, .n_tokens = n, .finish = GPU_STORE };
    OK(gpu_matmul_int8(device, &l, &why));
    from_device(out, dout, (size_t)n * ldo * sizeof *out);
    for (int t = 0; t < n; t++)
        for (size_t i = 0; i < ldo; i++) {
            const float y = i < (size_t)rows ? product(&m, &w, &c, t, (int)i) : -12345, want = with_bias &&
                i < (size_t)rows ? y + bias[i] : y;
            if (out[(size_t)t * ldo + i] != want)
                fail_msg("%d x %d, %d tokens: token %d row %zu is %.9g, not %.9g", rows, cols, n, t, i,
                         (double)out[(size_t)t * ldo + i], (double)want);
        }
    gpu_free(device, dw), gpu_free(device, dbias), gpu_free(device, dout);
    drop(&c);
    free(out), free(bias), free(w.code), free(w.scale), free(data);
}

/* Every number of tokens from 1 to 17, where another kernel takes over, and larger ones, with
 * different sizes in turn. */
static void every_count(void **state)
{
    (void)state;
    static const int more[] = { 33, 63, 64, 65, 100, 128, 129, 140, 260 };
    int turn = 0;
    for (int n = 1; n <= 17; n++)
        for (int i = 0; i < 2; i++, turn++)
            check(shapes[turn % N_SHAPES][0], shapes[turn % N_SHAPES][1], n, i);
    for (size_t i = 0; i < sizeof more / sizeof *more; i++, turn++)
        check(shapes[turn % (N_SHAPES - 1)][0], shapes[turn % (N_SHAPES - 1)][1], more[i], turn % 2);
    for (int i = 0; i < N_SHAPES; i++) {
        check(shapes[i][0], shapes[i][1], 1, 0);
        check(shapes[i][0], shapes[i][1], 20, 1);
    }
}

/* The widest row that is allowed, of -128 and 127 only: its sum is just below 2^31. */
static void widest(void **state)
{
    (void)state;
    enum { MOST = 1 << 17 };
    struct mat m;
    struct qrow q;
    OK(mat_init(&m, QT_I8R, 32, 32, 2, MOST, &why));
    uint8_t *data = aligned_alloc(64, m.size);
    m.data = data;
    tile_clear(&m, data);
    OK(qrow_init(&q, &m, &why));
    q.row_scale = 1;
    q.scale[0] = 1;
    for (int row = 0; row < 2; row++) {
        memset(q.code, row ? 127 : -128, MOST);
        tile_put(&m, data, row, &q);
    }
    qrow_release(&q);
    int8_t *code = malloc(MOST);
    memset(code, 127, MOST);
    const float scale = 1;
    float out[2];
    struct gpu_linear l = { .w = { gpu_mat_of(&m, to_device(data, m.size)) },
                            .to = { { .out = on_device(sizeof out), .ldo = 2 } }, .n_mats = 1,
                            .code = to_device(code, MOST),
                            .code_scale = to_device(&scale, sizeof scale), .n_tokens = 1, .finish = GPU_STORE };
    OK(gpu_matmul_int8(device, &l, &why));
    from_device(out, l.to[0].out, sizeof out);
    assert_true(out[0] == -128.0f * 127 * MOST && out[1] == 127.0f * 127 * MOST);
    /* the kernel for each operand */
    assert_int_equal(gpu_matmul_int8_takes(&l.w[0]), 1);
    l.w[0].cols++;
    assert_int_equal(gpu_matmul_int8_takes(&l.w[0]), 0);
    assert_int_equal(gpu_matmul_int8(device, &l, &why), -1);
    l.w[0].cols = 64;
    l.w[0].type = QT_I8;
    assert_int_equal(gpu_matmul_int8_takes(&l.w[0]), 0);
    assert_int_equal(gpu_matmul_int8(device, &l, &why), -1);
    assert_int_equal(gpu_is_lost(device), 0);
    free(code), free(data);
}

/* The other kinds of output, for few and many tokens: out += scale * y, clipped values, logits. */
static void endings(void **state)
{
    (void)state;
    enum { N = 130, ROWS = 70, COLS = 130 };
    static const int counts[] = { 5, 16, 50, N };
    struct rng r = { 77 };
    struct mat m;
    uint8_t *data = random_mat(&m, QT_I8R, 32, ROWS, COLS, &r);
    struct codes c = random_codes(N, COLS, &r);
    struct rows w = rows_of(&m);
    float before[N * ROWS], out[N * ROWS], bias[ROWS];
    for (int i = 0; i < N * ROWS; i++)
        before[i] = uniform(&r, -1, 1);
    for (int i = 0; i < ROWS; i++)
        bias[i] = uniform(&r, -1, 1);
    struct gpu_linear l = { .w = { gpu_mat_of(&m, to_device(data, m.size)) },
                            .to = { { .bias = to_device(bias, sizeof bias), .out = on_device(sizeof out),
                                      .ldo = ROWS } },
                            .n_mats = 1, .code = c.dcode, .code_scale = c.dscale, .scale = 0.3f };
    void *kept = to_device(before, sizeof before);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        for (int finish = GPU_STORE; finish <= GPU_LOGITS; finish++) {
            if (finish == GPU_MLP)
                continue;
            l.n_tokens = counts[i];
            l.finish = (enum gpu_finish)finish;
            l.limit = finish == GPU_ADD ? 0 : 2;
            OK(gpu_copy(device, GPU_COMPUTE, l.to[0].out, kept, sizeof before, &why));
            OK(gpu_matmul_int8(device, &l, &why));
            from_device(out, l.to[0].out, sizeof out);
            for (int t = 0; t < N; t++)
                for (int row = 0; row < ROWS; row++) {
                    const float y = product(&m, &w, &c, t, row) + bias[row], was = before[t * ROWS + row],
                                got = out[t * ROWS + row];
                    const float want = t >= l.n_tokens ? was : finish == GPU_STORE ? fminf(fmaxf(y, -2), 2) : finish ==
                        GPU_ADD ? fmaf(0.3f, y, was) : 2 * tanhf(0.3f * y / 2);
                    if (finish == GPU_LOGITS && t < l.n_tokens ? !(fabsf(got - want) < 1e-5f) : got != want)
                        fail_msg("ending %d, %d tokens: token %d row %d is %.9g, not %.9g", finish, l.n_tokens, t, row,
                                 (double)got, (double)want);
                }
        }
    drop(&c);
    free(w.code), free(w.scale), free(data);
}

/* Three matrices in one launch, and silu(gate) * up and silu(up) as inputs of the next matrix. */
static void together(void **state)
{
    (void)state;
    enum { N = 16, ROWS = 40, MOST_ROWS = 80, COLS = 1000 };
    static const int counts[] = { 1, 8, 9, N };
    struct rng r = { 78 };
    struct mat m[3];
    struct rows w[3];
    uint8_t *data[3];
    float bias[3][MOST_ROWS], out[N * MOST_ROWS];
    uint16_t h[N * 64];
    struct codes c = random_codes(N, COLS, &r);
    struct gpu_linear l = { .code = c.dcode, .code_scale = c.dscale, .function = ACT_SILU, .act_out_stride = 64,
                            .act_out = on_device(sizeof h) };
    for (int i = 0; i < 3; i++) {
        data[i] = random_mat(&m[i], QT_I8R, 32, i == 2 ? MOST_ROWS : ROWS, COLS, &r);
        w[i] = rows_of(&m[i]);
        for (int row = 0; row < m[i].rows; row++) {
            bias[i][row] = uniform(&r, -1, 1);
            w[i].scale[row] *= 0.1f;
            memcpy(data[i] + (size_t)(row / TILE_ROWS) * m[i].tile_bytes + 4 * (size_t)(row % TILE_ROWS),
                   &w[i].scale[row], 4);
        }
        l.w[i] = gpu_mat_of(&m[i], to_device(data[i], m[i].size));
        l.to[i] = (struct gpu_output){ .bias = to_device(bias[i], sizeof bias[i]), .out = on_device(sizeof out),
                                       .ldo = MOST_ROWS };
    }
    for (size_t n = 0; n < sizeof counts / sizeof *counts; n++) {
        l.n_tokens = counts[n];
        l.n_mats = 3;
        l.finish = GPU_STORE;
        OK(gpu_matmul_int8(device, &l, &why));
        for (int i = 0; i < 3; i++) {
            from_device(out, l.to[i].out, sizeof out);
            for (int t = 0; t < l.n_tokens; t++)
                for (int row = 0; row < m[i].rows; row++)
                    if (out[t * MOST_ROWS + row] != product(&m[i], &w[i], &c, t, row) + bias[i][row])
                        fail_msg("matrix %d of three, %d tokens: token %d row %d", i, l.n_tokens, t, row);
        }
        l.finish = GPU_MLP;
        for (l.n_mats = 1; l.n_mats <= 2; l.n_mats++) {
            OK(gpu_fill(device, GPU_COMPUTE, l.act_out, 0xff, sizeof h, &why));
            OK(gpu_matmul_int8(device, &l, &why));
            from_device(h, l.act_out, sizeof h);
            for (int t = 0; t < l.n_tokens; t++)
                for (int row = 0; row < 64; row++) {
                    const float y = row < ROWS ? product(&m[0], &w[0], &c, t, row) + bias[0][row] : 0;
                    const float v = y / (1 + expf(-y)) * (l.n_mats == 2 && row < ROWS
                                                          ? product(&m[1], &w[1], &c, t, row) + bias[1][row] : 1);
                    const float got = 16 * f16_to_f32(h[t * 64 + act_at(row, GPU_ACT_LANES)]);
                    if (!(fabsf(got - v) <= 1e-3f * fabsf(v) + 1e-5f))
                        fail_msg("mlp of %d, %d tokens: token %d row %d is %g, not %g", l.n_mats, l.n_tokens, t, row,
                                 (double)got, (double)v);
                }
        }
    }
    for (int i = 0; i < 3; i++)
        free(data[i]), free(w[i].code), free(w[i].scale);
    drop(&c);
}

/* Codes, scale and the zeros after them, for both orders of activations, also for rows that are all
 * zero or contain NaN or infinity.  Halves are rounded to the even code. */
static void activations(void **state)
{
    (void)state;
    enum { N = 6, MOST = 4200 };
    static const int widths[] = { 1, 32, 33, 64, 100, 1030, MOST };
    struct rng r = { 3 };
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        for (enum gpu_act_order order = GPU_ACT_LANES; order <= GPU_ACT_TILES; order++) {
            const int cols = widths[i], stride = (cols + 31) / 32 * 32 + 64, padded = (cols + 63) / 64 * 64;
            float *x = calloc(N * (size_t)cols, sizeof *x), scale[N];
            for (int t = 0; t < N; t++)
                /* token 1: the largest element gives code 127, the others are halves; token 2 is
                 * all zeros */
                for (int k = 0; t != 2 && k < cols; k++)
                    x[t * cols + k] = t == 1 ? (k == 0 ? -127 * 16 : 16 * ((float)below(&r, 250) - 124.5f))
                                             : uniform(&r, -1, 1) * (below(&r, 50) ? 1 : 30);
            x[3 * cols + cols / 2] = NAN;
            x[4 * cols + cols - 1] = -INFINITY;
            uint16_t *act = pack_act(x, N, cols, stride, order);
            int8_t *code = malloc(N * (size_t)padded);
            uint16_t *dact = to_device(act, N * (size_t)stride * sizeof *act);
            int8_t *dcode = on_device(N * (size_t)padded);
            float *dscale = on_device(sizeof scale);
            OK(gpu_act_int8(device, dact, stride, order, N, cols, dcode, dscale, &why));
            from_device(code, dcode, N * (size_t)padded);
            from_device(scale, dscale, sizeof scale);
            for (int t = 0; t < N; t++) {
                float most = 0;
                int bad = 0;
                for (int k = 0; k < cols; k++) {
                    bad |= !isfinite(x[t * cols + k]);
                    most = fmaxf(most, fabsf(x[t * cols + k]));
                }
                assert_int_equal(bad, t == 3 || t == 4);
                if (bad ? !isnan(scale[t]) : scale[t] != most / 127)
                    fail_msg("%d columns, order %d: scale of token %d is %.9g, not %.9g", cols, order, t,
                             (double)scale[t], (double)most / 127);
                for (int k = 0; k < padded; k++) {
                    const int want = bad || k >= cols || most == 0 ? 0 : (int)rintf(x[t * cols + k] * (127 / most));
                    if (code[t * padded + k] != want)
                        fail_msg("%d columns, order %d: code %d of token %d is %d, not %d", cols, order, k, t,
                                 code[t * padded + k], want);
                }
            }
            gpu_free(device, dact), gpu_free(device, dcode), gpu_free(device, dscale);
            free(act), free(code), free(x);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_count), cmocka_unit_test(widest), cmocka_unit_test(endings), cmocka_unit_test(together),
            cmocka_unit_test(activations),
    };
    return device_open() ? cmocka_run_group_tests(tests, NULL, NULL) : 0;
}
