/* t-gpu-matmul.c - linear layers on the device, compared with sums in double over the weights as
 * stored: every number format, group size and kind of output, at awkward sizes.  Runs emulated in
 * every build (with all accesses checked), natively by make check-gpu. */
#include "tests/lib/gpu.h"

static const int shapes[][2] = { { 1, 1 }, { 31, 33 }, { 32, 32 }, { 33, 100 }, { 100, 576 }, { 200, 1100 } };
static const int counts[] = { 1, 3, 8, 9, 16, 17, 70, 140 };

enum path { MATVEC, MATMUL, EXACT, HOPPER };
static const char *const path_name[] = { "matvec", "matmul", "matmul_f32", "matmul_hopper" };

static int by_path(enum path path, const struct gpu_linear *l)
{
    switch (path) {
    case MATVEC: return gpu_matvec(device, l, &why);
    case MATMUL: return gpu_matmul(device, l, &why);
    case EXACT:  return gpu_matmul_f32(device, l, &why);
    default:     return gpu_matmul_hopper(device, l, &why);
    }
}

/* The bound for EXACT is that of f32 sums (Higham 2002, section 3.1).  In the other paths the
 * activations here are exact in f16.  A weight is rounded to f16 twice, each time by at most 2^-11
 * of it (its scale or value, then their product), and below 2^-14 by at most 2^-25.  Sums are
 * f32. */
static void compare(const struct mat *m, const float *got, size_t ldo, const float *x, int n, enum path path,
                    const float *bias, const char *what)
{
    const struct qtype_info *type = qtype_info(m->type);
    float *w = malloc((size_t)m->cols * sizeof *w);
    for (int r = 0; r < m->rows; r++) {
        mat_decode_row(m, r, w);
        for (int t = 0; t < n; t++) {
            double sum = bias ? bias[r] : 0, size = fabs(sum), small = 0;
            for (int k = 0; k < m->cols; k++) {
                const double v = (double)w[k] * x[(size_t)t * (size_t)m->cols + (size_t)k];
                sum += v;
                size += fabs(v) + (type->extra != EXTRA_NONE
                                   ? 0.5 * fabs((double)x[(size_t)t * (size_t)m->cols + (size_t)k]) : 0);
                small += fabs((double)x[(size_t)t * (size_t)m->cols + (size_t)k]);
            }
            const double bound = path == EXACT ? (m->cols + 4) * 0x1p-23 * size
                                               : (0x1p-10 + (m->cols + 4) * 0x1p-23) * size + small * 0x1p-24;
            const float v = got[(size_t)t * ldo + (size_t)r];
            if (!(fabs(v - sum) <= bound))
                fail_msg("%s %s group %d, %d x %d, %d tokens: token %d row %d is %.9g, not %.9g (bound %.2g)", what,
                         type->name, m->group_size, m->rows, m->cols, n, t, r, (double)v, sum, bound);
        }
    }
    free(w);
}

/* If the matrix can have an f16 copy, the product with it must have the same bits. */
static void check_decoded(const struct gpu_linear *packed, enum path path, const float *want, float *dout, size_t n)
{
    const struct gpu_mat *m = &packed->w[0];
    const size_t size = gpu_decoded_size(m->type, m->n_tiles, m->n_steps);
    assert_int_equal(size == 0, m->type == QT_F16 || m->type == QT_BF16);
    if (!size)
        return;
    uint8_t *copy = on_device(size);
    float *got = malloc(n * sizeof *got);
    struct gpu_linear l = *packed;
    OK(gpu_decode(device, m, copy, &why));
    OK(gpu_fill(device, GPU_COMPUTE, dout, 0xff, n * 4, &why));
    l.w[0] = gpu_decoded(m, copy);
    OK(by_path(path, &l));
    from_device(got, dout, n * 4);
    for (int t = 0; t < l.n_tokens; t++)
        assert_memory_equal(got + (size_t)t * (size_t)l.to[0].ldo, want + (size_t)t * (size_t)l.to[0].ldo,
                            (size_t)m->rows * 4);
    gpu_free(device, copy);
    free(got);
}

static void check(enum qtype type, int group_size, int rows, int cols, int n, enum path path)
{
    struct rng r = { (uint64_t)type * 1000003 + (uint64_t)(group_size * 7 + rows * 131 + cols + n) };
    struct mat m;
    uint8_t *data = random_mat(&m, type, group_size, rows, cols, &r);
    const int stride = m.cols_padded + 64;
    const size_t ldo = (size_t)rows + 3;
    float *x = malloc((size_t)n * (size_t)cols * sizeof *x), *bias = malloc((size_t)rows * sizeof *bias),
          *out = malloc((size_t)n * ldo * sizeof *out);
    for (int i = 0; i < n * cols; i++)
        x[i] = uniform(&r, -1, 1) * (below(&r, 50) ? 1 : 30);
    for (int i = 0; i < rows; i++)
        bias[i] = uniform(&r, -1, 1);
    uint16_t *act = pack_act(x, n, cols, stride, path == MATVEC ? GPU_ACT_LANES : GPU_ACT_TILES);
    void *dw = to_device(data, m.size), *dact = to_device(act, (size_t)n * (size_t)stride * 2),
         *dx = to_device(x, (size_t)n * (size_t)cols * 4);
    void *dbias = to_device(bias, (size_t)rows * 4);
    for (size_t i = 0; i < (size_t)n * ldo; i++)
        out[i] = -12345;
    void *dout = to_device(out, (size_t)n * ldo * 4);
    const struct gpu_linear l = { .w = { gpu_mat_of(&m, dw) },
                                  .to = { { .bias = dbias, .out = dout, .ldo = (int)ldo } }, .n_mats = 1, .act = dact,
                                  .act_stride = stride,
                                  .x = dx, .ldx = cols, .n_tokens = n, .finish = GPU_STORE };
    OK(by_path(path, &l));
    from_device(out, dout, (size_t)n * ldo * 4);
    compare(&m, out, ldo, x, n, path, bias, path_name[path]);
    /* the same sums in the same order; a GPU rounds in its own way within a product */
    if (path == HOPPER && gpu_kind[0] == 'e') {
        float *twin = malloc((size_t)n * ldo * sizeof *twin);
        OK(by_path(MATMUL, &l));
        from_device(twin, dout, (size_t)n * ldo * 4);
        assert_memory_equal(twin, out, (size_t)n * ldo * 4);
        free(twin);
    }
    if (path == MATMUL || path == HOPPER)
        check_decoded(&l, path, out, dout, (size_t)n * ldo);
    for (int t = 0; t < n; t++)
        for (size_t i = (size_t)rows; i < ldo; i++)
            if (out[(size_t)t * ldo + i] != -12345)
                fail_msg("%s: wrote beyond the last row", path_name[path]);
    gpu_free(device, dw), gpu_free(device, dact), gpu_free(device, dx), gpu_free(device, dbias), gpu_free(device, dout);
    free(act), free(out), free(bias), free(x), free(data);
}

/* Whether the device supports the type. */
static int on_gpu(const struct qtype_info *t)
{
    return t && t->has_kernels && t->gpu != GPU_FORMAT_NONE;
}

/* Test each type and group size.  Shapes and numbers of tokens take turns, so that all of it takes
 * some seconds only. */
static void each(enum path path)
{
    int turn = 0;
    for (int type = 0; type < QTYPE_NUMBERS; type++) {
        const struct qtype_info *t = qtype_info((enum qtype)type);
        if (!on_gpu(t) || (path != EXACT && type == QT_F32))
            continue;
        for (int g = 16; g <= 256; g *= 2) {
            if (!(t->group_sizes & (unsigned)g))
                continue;
            for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
                const int first = path == MATMUL ? 5 : 0, last = path == MATVEC ? 5 : 8,
                          step = s < 4 ? turn++ % (last - first) : 0;
                check((enum qtype)type, g, shapes[s][0], shapes[s][1], counts[first + step], path);
            }
        }
    }
}

static void matvec(void **state) { (void)state; each(MATVEC); }
static void matmul(void **state) { (void)state; each(MATMUL); }
static void matmul_f32(void **state) { (void)state; each(EXACT); }

/* 1, or the reason why this device has no wgmma. */
static int has_wgmma(void)
{
    if (gpu_capability(device) == 90)
        return 1;
    print_message("# skipped: wgmma is for compute capability 9.0, this device has %d.%d\n",
                  gpu_capability(device) / 10, gpu_capability(device) % 10);
    return 0;
}

/* Both sizes of tiles are tested.  The kernel uses tiles of 256 rows if there are at least as many
 * of them as the device has multiprocessors (emulated: 4). */
static void matmul_hopper(void **state)
{
    (void)state;
    static const int sizes[][3] = { { 1, 1, 1 }, { 33, 100, 130 }, { 300, 352, 140 }, { 31, 33, 3 }, { 32, 32, 8 },
                                    { 70, 1100, 17 }, { 128, 128, 128 }, { 600, 96, 129 }, { 1000, 96, 129 },
                                    { 1000, 1100, 130 } };
    static const enum qtype types[] = { QT_I4, QT_I4M, QT_I4Z, QT_I8, QT_I8R, QT_FP8, QT_MXFP8, QT_MXFP4, QT_F16,
                                         QT_BF16 };
    if (!has_wgmma())
        return;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        check(QT_NL4, 32, sizes[s][0], sizes[s][1], sizes[s][2], HOPPER);
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (int g = 32, s = 0; g <= 128; g *= 2, s++)
            if (qtype_info(types[t])->group_sizes & (unsigned)g)
                check(types[t], g, sizes[s][0], sizes[s][1], sizes[s][2], HOPPER);
    check(QT_I8R, 32, 300, 352, 140, HOPPER);
    check(QT_FP8, 128, 300, 352, 140, HOPPER);
    check(QT_NVFP4, 16, 300, 352, 140, HOPPER);
    check(QT_MXFP4, 32, 300, 352, 140, HOPPER);
    check(QT_BF16, 32, 300, 352, 140, HOPPER);
    /* The kernel for each operand. */
    struct gpu_linear l = { .w = { { .type = QT_NL4 } }, .n_tokens = 129 };
    assert_int_equal(gpu_matmul_hopper_takes(device, &l), 1);
    l.n_tokens = 128;
    assert_int_equal(gpu_matmul_hopper_takes(device, &l), 0);
    l.n_tokens = 1024;
    l.w[0].type = QT_M5;
    assert_int_equal(gpu_matmul_hopper_takes(device, &l), 0);
    assert_int_equal(gpu_matmul_hopper(device, &l, &why), -1);
}

static void every_count(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        if (counts[i] <= GPU_MATVEC_TOKENS)
            check(QT_NL4, 32, 100, 576, counts[i], MATVEC);
        check(QT_NL4, 32, 150, 352, counts[i], MATMUL);
        check(QT_I4, 128, 40, 352, counts[i], EXACT);
    }
}

/* Several matrices in one launch for many tokens: the bits of launches of their own, of packed
 * weights and of f16 copies, in blocks of one and of two warpgroups (emulated: on 4
 * multiprocessors). */
static void together(void **state)
{
    (void)state;
    enum { MATS = 3, N = 140, COLS = 96, MOST = 511 };
    static const struct { enum qtype type; int rows[MATS], groups; } cases[] = {
        { QT_NL4, { 300, 1, 140 }, 1 }, { QT_NL4, { 250, 129, MOST }, 2 }, { QT_I8, { 70, 300, 33 }, 2 },
    };
    struct rng r = { 14 };
    const size_t size = N * MOST * sizeof(float);
    float *x = malloc(N * COLS * sizeof *x), *one = malloc(size), *all = malloc(size), bias[MOST];
    for (int i = 0; i < N * COLS; i++)
        x[i] = uniform(&r, -1, 1);
    for (int i = 0; i < MOST; i++)
        bias[i] = uniform(&r, -1, 1);
    uint16_t *act = pack_act(x, N, COLS, COLS, GPU_ACT_TILES);
    struct gpu_linear l = { .n_mats = MATS, .act = to_device(act, N * COLS * 2), .act_stride = COLS, .n_tokens = N,
                            .finish = GPU_STORE };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct mat m[MATS];
        uint8_t *data[MATS];
        int narrow = 0, wide = 0;
        for (int i = 0; i < MATS; i++) {
            data[i] = random_mat(&m[i], cases[c].type, 32, cases[c].rows[i], COLS, &r);
            l.w[i] = gpu_mat_of(&m[i], to_device(data[i], m[i].size));
            l.to[i] = (struct gpu_output){ to_device(bias, sizeof bias), on_device(size), cases[c].rows[i] };
            narrow += (m[i].n_tiles + 3) / 4 * 2, wide += (m[i].n_tiles + 7) / 8 * 2;
        }
        assert_int_equal(gpu_hopper_groups((int)cases[c].type, narrow, wide, 4), cases[c].groups);
        for (int copies = 0; copies < 2; copies++) {
            for (int i = 0; copies && i < MATS; i++) {
                uint8_t *copy = on_device(gpu_decoded_size(l.w[i].type, l.w[i].n_tiles, l.w[i].n_steps));
                OK(gpu_decode(device, &l.w[i], copy, &why));
                l.w[i] = gpu_decoded(&l.w[i], copy);
            }
            for (enum path path = MATMUL; path <= HOPPER; path++) {
                if (path == EXACT || (path == HOPPER && !has_wgmma()))
                    continue;
                for (int i = 0; i < MATS; i++)
                    OK(gpu_fill(device, GPU_COMPUTE, l.to[i].out, 0xff, size, &why));
                OK(by_path(path, &l));
                for (int i = 0; i < MATS; i++) {
                    struct gpu_linear alone = l;
                    alone.w[0] = l.w[i];
                    alone.to[0] = l.to[i];
                    alone.n_mats = 1;
                    from_device(all, l.to[i].out, size);
                    OK(gpu_fill(device, GPU_COMPUTE, l.to[i].out, 0xff, size, &why));
                    OK(by_path(path, &alone));
                    from_device(one, l.to[i].out, size);
                    assert_memory_equal(all, one, size);
                    compare(&m[i], one, (size_t)m[i].rows, x, N, path, bias, path_name[path]);
                }
            }
        }
        for (int i = 0; i < MATS; i++)
            free(data[i]);
    }
    free(act), free(all), free(one), free(x);
}

/* Check silu(gate) * up and silu(up) for the linear layers of l, whose plain results are gate and
 * up [n][ld]. */
static void check_mlp(struct gpu_linear *l, int rows, int ld, const float *gate, const float *up)
{
    enum { STRIDE = 64, MOST = 8 };
    uint16_t h[MOST * STRIDE];
    assert_true(l->n_tokens <= MOST && rows <= STRIDE);
    for (int mats = 1; mats <= 2; mats++) {
        l->n_mats = mats;
        l->finish = GPU_MLP;
        l->function = ACT_SILU;
        l->act_out_stride = STRIDE;
        l->act_out = on_device(sizeof h);
        OK(gpu_matvec(device, l, &why));
        from_device(h, l->act_out, (size_t)l->n_tokens * STRIDE * sizeof *h);
        for (int t = 0; t < l->n_tokens; t++)
            for (int row = 0; row < rows; row++) {
                const float y = gate[t * ld + row], v = y / (1 + expf(-y)) * (mats == 2 ? up[t * ld + row] : 1);
                const float got = 16 * f16_to_f32(h[t * STRIDE + act_at(row, GPU_ACT_LANES)]);
                if (!(fabsf(got - v) < 0.03f + 0.01f * fabsf(v)))
                    fail_msg("mlp of %d: token %d row %d is %g, not %g", mats, t, row, (double)got, (double)v);
            }
    }
}

/* The other kinds of output, and several matrices in one launch. */
static void endings(void **state)
{
    (void)state;
    enum { N = 5, ROWS = 40, COLS = 96 };
    struct rng r = { 77 };
    struct mat m[3];
    struct gpu_linear l = { .n_mats = 3, .n_tokens = N, .finish = GPU_STORE, .ldx = COLS };
    float *x = malloc(N * COLS * sizeof *x), *out = malloc(N * 80 * sizeof *out);
    float want[3][N][80], bias[3][80];
    for (int i = 0; i < N * COLS; i++)
        x[i] = uniform(&r, -2, 2);
    uint16_t *act = pack_act(x, N, COLS, 128, GPU_ACT_LANES);
    l.act = to_device(act, N * 128 * 2);
    l.act_stride = 128;
    l.x = to_device(x, N * COLS * 4);
    uint8_t *data[3];
    for (int i = 0; i < 3; i++) {
        data[i] = random_mat(&m[i], QT_NL4, 32, i == 2 ? 80 : ROWS, COLS, &r);
        l.w[i] = gpu_mat_of(&m[i], to_device(data[i], m[i].size));
        for (int row = 0; row < m[i].rows; row++) {
            float w[COLS];
            mat_decode_row(&m[i], row, w);
            bias[i][row] = uniform(&r, -1, 1);
            for (int t = 0; t < N; t++) {
                double sum = bias[i][row];
                for (int k = 0; k < COLS; k++)
                    sum += (double)w[k] * x[t * COLS + k];
                want[i][t][row] = (float)sum;
            }
        }
        l.to[i] = (struct gpu_output){ .bias = to_device(bias[i], sizeof bias[i]), .out = on_device(N * 80 * 4),
                                       .ldo = 80 };
    }
    for (int exact = 0; exact < 2; exact++) {
        for (int i = 0; i < 3; i++)
            OK(gpu_fill(device, GPU_COMPUTE, l.to[i].out, 0xff, N * 80 * 4, &why));
        l.limit = 3;                                    /* clipped */
        l.finish = GPU_STORE;
        OK(exact ? gpu_matmul_f32(device, &l, &why) : gpu_matvec(device, &l, &why));
        for (int i = 0; i < 3; i++) {
            from_device(out, l.to[i].out, N * 80 * 4);
            for (int t = 0; t < N; t++)
                for (int row = 0; row < m[i].rows; row++) {
                    const float v = fminf(fmaxf(want[i][t][row], -3), 3);
                    if (!(fabsf(out[t * 80 + row] - v) < 0.02f))
                        fail_msg("store of matrix %d: token %d row %d is %g, not %g", i, t, row,
                                 (double)out[t * 80 + row], (double)v);
                }
        }
        l.n_mats = 1;
        l.finish = GPU_ADD;                             /* adds to the results of GPU_STORE */
        l.scale = 0.5f;
        OK(exact ? gpu_matmul_f32(device, &l, &why) : gpu_matvec(device, &l, &why));
        from_device(out, l.to[0].out, N * 80 * 4);
        for (int t = 0; t < N; t++)
            for (int row = 0; row < ROWS; row++) {
                const float v = fminf(fmaxf(want[0][t][row], -3), 3) + 0.5f * want[0][t][row];
                assert_true(fabsf(out[t * 80 + row] - v) < 0.03f);
            }
        l.finish = GPU_LOGITS;
        l.scale = 2;
        l.limit = 5;
        OK(exact ? gpu_matmul_f32(device, &l, &why) : gpu_matvec(device, &l, &why));
        from_device(out, l.to[0].out, N * 80 * 4);
        for (int t = 0; t < N; t++)
            for (int row = 0; row < ROWS; row++)
                assert_true(fabsf(out[t * 80 + row] - 5 * tanhf(2 * want[0][t][row] / 5)) < 0.03f);
        l.n_mats = 3;
    }
    check_mlp(&l, ROWS, 80, want[0][0], want[1][0]);
    for (int i = 0; i < 3; i++)
        free(data[i]);
    free(act), free(out), free(x);
}

/* Codes that are multiplied as they are, in groups of every size: several turns of each warp and a
 * rest of some steps, one matrix, and gate and up together. */
static void turns(void **state)
{
    (void)state;
    enum { ROWS = 40, COLS = 4500, MOST = 9 };
    static const enum qtype types[] = { QT_I4, QT_I8 };
    static const int n_tokens[] = { 3, MOST };
    struct rng r = { 41 };
    float *x = malloc(MOST * COLS * sizeof *x), y[2][MOST * ROWS];
    for (int i = 0; i < MOST * COLS; i++)
        x[i] = uniform(&r, -0.1f, 0.1f);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        for (int group = 32; group <= 128; group *= 2) {
            struct mat m[2];
            uint8_t *data[2];
            struct gpu_linear l = { .finish = GPU_STORE };
            for (int k = 0; k < 2; k++) {
                data[k] = random_mat(&m[k], types[i], group, ROWS, COLS, &r);
                l.w[k] = gpu_mat_of(&m[k], to_device(data[k], m[k].size));
                l.to[k] = (struct gpu_output){ .out = on_device(sizeof y[k]), .ldo = ROWS };
            }
            uint16_t *act = pack_act(x, MOST, COLS, m[0].cols_padded, GPU_ACT_LANES);
            l.act_stride = m[0].cols_padded;
            l.act = to_device(act, (size_t)(MOST * l.act_stride) * 2);
            for (size_t n = 0; n < sizeof n_tokens / sizeof *n_tokens; n++) {
                l.n_mats = 2;
                l.n_tokens = n_tokens[n];
                l.finish = GPU_STORE;
                OK(gpu_matvec(device, &l, &why));
                for (int k = 0; k < 2; k++) {
                    from_device(y[k], l.to[k].out, sizeof y[k]);
                    compare(&m[k], y[k], ROWS, x, l.n_tokens, MATVEC, NULL, "turns of matvec");
                }
                if (l.n_tokens < MOST)
                    check_mlp(&l, ROWS, ROWS, y[0], y[1]);
            }
            for (int k = 0; k < 2; k++)
                gpu_free(device, (void *)l.w[k].data), gpu_free(device, l.to[k].out), free(data[k]);
            gpu_free(device, (void *)l.act);
            free(act);
        }
    struct mat m;
    uint8_t *data = random_mat(&m, QT_I4, 32, 32, 32, &r);
    struct gpu_linear l = { .w = { gpu_mat_of(&m, data) }, .n_mats = 1, .n_tokens = 1 };
    struct err refusal = { .code = ERR_NONE };
    l.w[0].group_shift = 3;
    assert_int_equal(gpu_matvec(device, &l, &refusal), -1);
    assert_int_equal(refusal.code, ERR_UNSUPPORTED);
    free(data), free(x);
}

/* Room for the sums of parts of a few tiles in matvec. */
enum { PART_BYTES = 64 * 32 * GPU_MATVEC_TOKENS * sizeof(float) };

/* The norm that the last block of a product computes has the bits of the kernel for norms, and all
 * counts of blocks are 0 again, so that a graph can replay it. */
static void normed(void **state)
{
    (void)state;
    enum { N = GPU_NORM_TOKENS, ROWS = 328, STRIDE = 352 };
    /* the last: k is divided */
    static const struct { enum qtype type; int rows, cols; } cases[] = {
        { QT_NL4, ROWS, 160 }, { QT_I8, ROWS, 160 }, { QT_BF16, ROWS, 160 }, { QT_NL4, 136, 8300 },
    };
    static const unsigned none[GPU_SPLIT_TICKETS];
    unsigned left[GPU_SPLIT_TICKETS];
    struct rng r = { 31 };
    float x[N * ROWS], w[ROWS], out[2][N * ROWS], sums[2][N * ROWS];
    uint16_t act[2][N * STRIDE];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct mat m;
        const int rows = cases[i].rows, cols = cases[i].cols;
        uint8_t *data = random_mat(&m, cases[i].type, 32, rows, cols, &r);
        float *y = malloc((size_t)(N * cols) * sizeof *y);
        for (int k = 0; k < N * cols; k++)
            y[k] = uniform(&r, -2, 2);
        for (int k = 0; k < N * ROWS; k++)
            x[k] = uniform(&r, -2, 2);
        for (int k = 0; k < ROWS; k++)
            w[k] = uniform(&r, -1, 1);
        uint16_t *in = pack_act(y, N, cols, m.cols_padded, GPU_ACT_LANES);
        struct gpu_linear l = { .w = { gpu_mat_of(&m, to_device(data, m.size)) },
                                .to = { { .out = on_device(sizeof x), .ldo = ROWS } }, .n_mats = 1,
                                .act = to_device(in, (size_t)(N * m.cols_padded) * 2), .act_stride = m.cols_padded,
                                .finish = GPU_ADD, .scale = 0.5f, .tickets = to_device(none, sizeof none),
                                .partial = on_device(PART_BYTES), .partial_bytes = PART_BYTES };
        if (gpu_n_sms(device) == 4)
            assert_int_equal(gpu_matvec_divide(m.n_tiles, m.cols_padded / 32, 4).parts > 1, cols > 160);
        struct gpu_norm o = { .present = 1, .w = to_device(w, sizeof w), .eps = 1e-5f, .x = l.to[0].out, .ldx = ROWS,
                              .out = on_device(sizeof x), .ldo = ROWS, .act = on_device(sizeof act[0]),
                              .act_stride = STRIDE, .cols = rows };
        assert_true(gpu_norm_in_registers(&o));
        for (int turn = 0; turn < 2 * N; turn++) {
            l.n_tokens = o.n = turn % N + 1;
            for (int fused = 0; fused < 2; fused++) {
                void *before = to_device(x, sizeof x);
                OK(gpu_copy(device, GPU_COMPUTE, l.to[0].out, before, sizeof x, &why));
                OK(gpu_fill(device, GPU_COMPUTE, o.out, 0xff, sizeof x, &why));
                OK(gpu_fill(device, GPU_COMPUTE, o.act, 0xff, sizeof act[0], &why));
                l.norm = fused ? o : (struct gpu_norm){ .x = NULL };
                OK(gpu_matvec(device, &l, &why));
                if (!fused)
                    OK(gpu_norm(device, &o, &why));
                from_device(sums[fused], l.to[0].out, sizeof x);
                from_device(out[fused], o.out, sizeof x);
                from_device(act[fused], o.act, sizeof act[0]);
                gpu_free(device, before);
            }
            assert_memory_equal(sums[0], sums[1], sizeof x);
            assert_memory_equal(out[0], out[1], sizeof x);
            assert_memory_equal(act[0], act[1], sizeof act[0]);
            from_device(left, l.tickets, sizeof left);
            assert_memory_equal(left, none, sizeof left);
        }
        gpu_free(device, (void *)l.w[0].data), gpu_free(device, l.to[0].out), gpu_free(device, (void *)l.act);
        gpu_free(device, (void *)o.w), gpu_free(device, o.out), gpu_free(device, o.act), gpu_free(device, l.tickets);
        gpu_free(device, l.partial);
        free(in), free(y), free(data);
    }
}

/* A product whose k is divided, of two matrices in one launch: a token's bits do not depend on the
 * number of tokens. */
static void divided(void **state)
{
    (void)state;
    enum { N = GPU_MATVEC_TOKENS, ROWS = 100, LESS = 20, COLS = 8300 };
    static const struct { enum qtype type; int group; } types[] = {
        { QT_NL4, 32 }, { QT_I8R, 32 }, { QT_I4, 32 }, { QT_I4, 64 }, { QT_I4, 128 }, { QT_I8, 32 }, { QT_BF16, 32 },
    };
    static const int n_tokens[] = { N, 9, 8, 1 }, n_rows[2] = { ROWS, LESS };
    struct rng r = { 13 };
    float *x = malloc(N * COLS * sizeof *x), *first = malloc(2 * N * ROWS * sizeof *first),
          *out = malloc(N * ROWS * sizeof *out);
    for (int i = 0; i < N * COLS; i++)
        x[i] = uniform(&r, -1, 1);
    for (size_t k = 0; k < sizeof types / sizeof *types; k++) {
        struct gpu_linear l = { .n_mats = 2, .finish = GPU_STORE, .partial = on_device(PART_BYTES),
                                .partial_bytes = PART_BYTES,
                                .tickets = on_device(GPU_SPLIT_TICKETS * sizeof *l.tickets) };
        OK(gpu_fill(device, GPU_COMPUTE, l.tickets, 0, GPU_SPLIT_TICKETS * sizeof *l.tickets, &why));
        struct mat m[2];
        uint8_t *data[2];
        for (int i = 0; i < 2; i++) {
            data[i] = random_mat(&m[i], types[k].type, types[k].group, n_rows[i], COLS, &r);
            l.w[i] = gpu_mat_of(&m[i], to_device(data[i], m[i].size));
            l.to[i] = (struct gpu_output){ .out = on_device(N * ROWS * 4), .ldo = ROWS };
        }
        if (gpu_n_sms(device) == 4)
            assert_int_equal(gpu_matvec_divide(m[0].n_tiles + m[1].n_tiles, m[0].cols_padded / 32, 4).parts, 4);
        uint16_t *act = pack_act(x, N, COLS, m[0].cols_padded, GPU_ACT_LANES);
        l.act_stride = m[0].cols_padded;
        l.act = to_device(act, (size_t)(N * l.act_stride) * 2);
        for (size_t c = 0; c < sizeof n_tokens / sizeof *n_tokens; c++) {
            l.n_tokens = n_tokens[c];
            OK(gpu_matvec(device, &l, &why));
            for (int i = 0; i < 2; i++) {
                from_device(out, l.to[i].out, N * ROWS * 4);
                if (c == 0) {
                    memcpy(first + i * N * ROWS, out, N * ROWS * 4);
                    compare(&m[i], out, ROWS, x, N, MATVEC, NULL, "parts of matvec");
                }
                for (int t = 0; t < l.n_tokens; t++)
                    assert_memory_equal(out + t * ROWS, first + (i * N + t) * ROWS, (size_t)n_rows[i] * 4);
                OK(gpu_fill(device, GPU_COMPUTE, l.to[i].out, 0xff, N * ROWS * 4, &why));
            }
        }
        struct err refusal = { .code = ERR_NONE };
        l.partial_bytes = 4;
        assert_int_equal(gpu_matvec(device, &l, &refusal), -1);
        assert_int_equal(refusal.code, ERR_LIMIT);
        for (int i = 0; i < 2; i++)
            gpu_free(device, (void *)l.w[i].data), gpu_free(device, l.to[i].out), free(data[i]);
        gpu_free(device, l.partial), gpu_free(device, l.tickets), gpu_free(device, (void *)l.act);
        free(act);
    }
    free(out), free(first), free(x);
}

/* The kinds of output of the kernels for many tokens, with rows of the output that are 16-byte
 * aligned and not, and bits that do not depend on the number of tokens. */
static void many(void **state)
{
    (void)state;
    enum { N = 132, ROWS = 270, COLS = 64, FEW = 20 };
    static const int strides[] = { ROWS + 2, ROWS + 1 };
    struct rng r = { 9 };
    struct mat m;
    uint8_t *data = random_mat(&m, QT_NL4, 32, ROWS, COLS, &r);
    float *x = malloc(N * COLS * sizeof *x), *w = malloc(ROWS * COLS * sizeof *w),
          *before = malloc(N * (ROWS + 2) * sizeof *before), *out = malloc(N * (ROWS + 2) * sizeof *out);
    float *few = malloc(FEW * (ROWS + 2) * sizeof *few);
    for (int i = 0; i < N * COLS; i++)
        x[i] = uniform(&r, -1, 1);
    for (int i = 0; i < N * (ROWS + 2); i++)
        before[i] = uniform(&r, -1, 1);
    for (int i = 0; i < ROWS; i++)
        mat_decode_row(&m, i, w + i * COLS);
    uint16_t *act = pack_act(x, N, COLS, COLS, GPU_ACT_TILES);
    struct gpu_linear l = { .w = { gpu_mat_of(&m, to_device(data, m.size)) },
                            .to = { { .out = on_device(N * (ROWS + 2) * sizeof *out) } }, .n_mats = 1,
                            .act = to_device(act, N * COLS * 2), .act_stride = COLS };
    for (enum path path = MATMUL; path <= HOPPER; path++)
        for (int finish = GPU_STORE; path != EXACT && (path != HOPPER || has_wgmma()) && finish <= GPU_LOGITS; finish++)
            for (int s = 0; s < 2 && finish != GPU_MLP; s++) {
                const int ldo = strides[s];
                void *kept = to_device(before, N * (ROWS + 2) * sizeof *before);
                l.to[0].ldo = ldo;
                l.finish = (enum gpu_finish)finish;
                l.scale = 0.5f;
                l.limit = finish == GPU_ADD ? 0 : 3;
                for (l.n_tokens = N; ; l.n_tokens = FEW) {
                    OK(gpu_copy(device, GPU_COMPUTE, l.to[0].out, kept, N * (ROWS + 2) * sizeof *before, &why));
                    OK(by_path(path, &l));
                    from_device(l.n_tokens == N ? out : few, l.to[0].out, (size_t)l.n_tokens * (size_t)ldo * 4);
                    if (l.n_tokens == FEW)
                        break;
                }
                for (int t = 0; t < N; t++)
                    for (int row = 0; row < ROWS; row++) {
                        double sum = 0;
                        for (int k = 0; k < COLS; k++)
                            sum += (double)w[row * COLS + k] * x[t * COLS + k];
                        const double want = finish == GPU_STORE ? fmin(fmax(sum, -3), 3) : finish == GPU_ADD
                                                ? before[t * ldo + row] + 0.5 * sum : 3 * tanh(0.5 * sum / 3);
                        if (!(fabs(out[t * ldo + row] - want) <= 0.02))
                            fail_msg("%s, ending %d, rows of %d: token %d row %d is %g, not %g", path_name[path],
                                     finish, ldo, t, row, (double)out[t * ldo + row], want);
                    }
                for (int t = 0; t < FEW; t++)
                    assert_memory_equal(few + t * ldo, out + t * ldo, (size_t)ldo * 4);
                gpu_free(device, kept);
            }
    free(act), free(few), free(out), free(before), free(w), free(x), free(data);
}

/* How k is divided: no part is empty, and the sums and counters of all parts have room. */
static void parts_of_k(void **state)
{
    (void)state;
    int most_parts = 0, most_blocks = 0, most_divided = 0;
    for (int units = 1; units <= 500; units++)
        for (int n_steps = 1; n_steps <= 700; n_steps++) {
            const int parts = gpu_split_parts(units, n_steps),
                      stages = (n_steps + GPU_SPLIT_STAGE - 1) / GPU_SPLIT_STAGE, each = (stages + parts - 1) / parts;
            assert_in_range(parts, 1, GPU_SPLIT_PARTS);
            assert_true((parts - 1) * each < stages);
            most_parts = parts > most_parts ? parts : most_parts;
            if (parts > 1) {
                most_blocks = units * parts > most_blocks ? units * parts : most_blocks;
                most_divided = units > most_divided ? units : most_divided;
            }
        }
    assert_int_equal(most_parts, GPU_SPLIT_PARTS);
    assert_int_equal(most_blocks, GPU_SPLIT_BLOCKS);
    assert_int_equal(most_divided * (GPU_SPLIT_TOKENS / 64), GPU_SPLIT_TICKETS);
    for (int n_tiles = 1; n_tiles <= 500; n_tiles++)
        for (int n_steps = 1; n_steps <= 1000; n_steps += 9) {
            const struct gpu_matvec_blocks d = gpu_matvec_divide(n_tiles, n_steps, 132);
            const int units = gpu_split_units(n_tiles), divided = (n_tiles - d.whole) * d.parts;
            if (d.parts == 1)
                assert_int_equal(d.whole, n_tiles);
            else                        /* sums of 16 tokens in the room for those of 64 */
                assert_true(d.whole == (n_tiles > 132 ? 132 : 0) && n_tiles < GPU_SPLIT_TICKETS &&
                            d.whole + divided <= 264 &&
                            divided <= 4 * units * GPU_SPLIT_TILES * gpu_split_parts(units, n_steps));
        }
    assert_int_equal(gpu_matvec_divide(160, 864, 132).parts, 4);        /* down of Qwen2.5-32B on an H200 */
    assert_int_equal(gpu_matvec_divide(192, 128, 132).parts, 2);        /* q, k and v of Llama-3.1-8B */
    assert_int_equal(gpu_matvec_divide(128, 448, 132).parts, 1);        /* its down */
    assert_int_equal(gpu_matvec_divide(64, 128, 132).parts, 2);         /* o of Qwen3-30B-A3B */
    assert_int_equal(gpu_matvec_divide(64, 64, 132).parts, 1);          /* too short */
}

/* Several matrices in one launch, with k in one part and in several, and results that are stored,
 * added and capped.  A token's bits depend neither on the number of tokens nor on the launch. */
static void split(void **state)
{
    (void)state;
    enum { MOST = 128, ROWS = 70, LDO = 140, MATS = 3 };
    static const int n_rows[MATS] = { ROWS, 1, 2 * ROWS }, n_tokens[] = { MOST, 17, 70 };
    /* with and without a rest of the stages of 256 columns, and of the units of 128 */
    static const struct { enum qtype type; int cols, group; } cases[] = {
        { QT_I4Z, 100, 32 }, { QT_I8R, 256, 32 }, { QT_F16, 300, 32 }, { QT_I8, 300, 64 }, { QT_I8, 1400, 32 },
        { QT_I8, 1400, 128 }, { QT_NL4, 1400, 32 }, { QT_NL4, 512, 32 }, { QT_NL4, 640, 32 }, { QT_M2, 800, 32 },
    };
    struct rng r = { 11 };
    float *first = malloc(2 * MATS * MOST * LDO * sizeof *first), *out = malloc(MOST * LDO * sizeof *out),
          *before = malloc(MOST * LDO * sizeof *before);
    for (int i = 0; i < MOST * LDO; i++)
        before[i] = uniform(&r, -1, 1);
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        const int cols = cases[k].cols;
        struct mat m[MATS];
        uint8_t *data[MATS];
        float *x = malloc((size_t)(MOST * cols) * sizeof *x);
        for (int i = 0; i < MOST * cols; i++)
            x[i] = uniform(&r, -1, 1);
        struct gpu_linear l = { .n_mats = MATS, .scale = 0.5f,
                                .partial = on_device(GPU_SPLIT_BYTES(GPU_SPLIT_BLOCKS, MOST)),
                                .partial_bytes = GPU_SPLIT_BYTES(GPU_SPLIT_BLOCKS, MOST),
                                .tickets = on_device(GPU_SPLIT_TICKETS * sizeof *l.tickets) };
        OK(gpu_fill(device, GPU_COMPUTE, l.tickets, 0, GPU_SPLIT_TICKETS * sizeof *l.tickets, &why));
        for (int i = 0; i < MATS; i++) {
            data[i] = random_mat(&m[i], cases[k].type, cases[k].group, n_rows[i], cols, &r);
            l.w[i] = gpu_mat_of(&m[i], to_device(data[i], m[i].size));
            l.to[i] = (struct gpu_output){ .out = on_device(MOST * LDO * 4), .ldo = LDO };
        }
        uint16_t *act = pack_act(x, MOST, cols, m[0].cols_padded, GPU_ACT_TILES);
        l.act_stride = m[0].cols_padded;
        for (size_t c = 0; c < 3; c++) {
            l.n_tokens = n_tokens[c];
            l.act = to_device(act, (size_t)(l.n_tokens * l.act_stride) * 2);
            l.finish = GPU_STORE;
            for (l.wgmma = 0; l.wgmma < 2; l.wgmma++) {
                for (int i = 0; i < MATS; i++)
                    OK(gpu_fill(device, GPU_COMPUTE, l.to[i].out, 0, MOST * LDO * 4, &why));
                OK(gpu_matmul_split(device, &l, &why));
                for (int i = 0; i < MATS; i++) {
                    from_device(out, l.to[i].out, MOST * LDO * 4);
                    if (c == 0) {
                        memcpy(first + (l.wgmma * MATS + i) * MOST * LDO, out, MOST * LDO * 4);
                        compare(&m[i], out, LDO, x, MOST, MATMUL, NULL, "matmul_split");
                    }
                    /* wgmma sums in another order */
                    assert_memory_equal(out, first + (l.wgmma * MATS + i) * MOST * LDO, (size_t)(l.n_tokens * LDO) * 4);
                }
            }
        }
        for (l.finish = GPU_ADD; l.finish <= GPU_LOGITS; l.finish += GPU_LOGITS - GPU_ADD) {
            void *kept = to_device(before, MOST * LDO * 4);
            OK(gpu_copy(device, GPU_COMPUTE, l.to[2].out, kept, MOST * LDO * 4, &why));
            l.limit = l.finish == GPU_LOGITS ? 3 : 0;
            OK(gpu_matmul_split(device, &l, &why));
            from_device(out, l.to[2].out, MOST * LDO * 4);
            for (int i = 0; i < l.n_tokens * LDO; i++) {
                const float y = 0.5f * first[2 * MOST * LDO + i], want = l.limit > 0 ? 3 * tanhf(y / 3) : before[i] + y;
                assert_true(fabsf(out[i] - want) <= 1e-5f * (1 + fabsf(want)));
            }
            gpu_free(device, kept);
        }
        gpu_free(device, l.partial), gpu_free(device, l.tickets);
        free(act), free(x);
        for (int i = 0; i < MATS; i++)
            free(data[i]);
    }
    free(before), free(out), free(first);
    struct gpu_linear l = { .w = { { .type = QT_NL4 } }, .n_tokens = 17 };
    const int wgmma = gpu_capability(device) == 90;
    assert_int_equal(gpu_matmul_split_hopper_takes(device, &l), wgmma);
    l.n_tokens = 16;
    assert_int_equal(gpu_matmul_split_hopper_takes(device, &l), 0);
    assert_int_equal(gpu_matmul_split_hopper(device, &l, &why), -1);
    l.n_tokens = 64;
    l.w[0].type = QT_M2;
    assert_int_equal(gpu_matmul_split_hopper_takes(device, &l), 0);
}

/* Parts of k that are longer than the ring of activations of wgmma: its slots are filled again. */
static void long_parts(void **state)
{
    (void)state;
    enum { STAGES = 6, COLS = GPU_SPLIT_PARTS * STAGES * GPU_SPLIT_STAGE * 32, ROWS = 40, N = 17 };
    static const enum qtype types[] = { QT_NL4, QT_I8 };
    struct rng r = { 14 };
    float *x = malloc((size_t)N * COLS * sizeof *x), out[N * ROWS];
    for (int i = 0; i < N * COLS; i++)
        x[i] = uniform(&r, -1, 1);
    uint16_t *act = pack_act(x, N, COLS, COLS, GPU_ACT_TILES);
    struct gpu_linear l = { .n_mats = 1, .scale = 1, .wgmma = 1, .n_tokens = N, .act_stride = COLS,
                            .act = to_device(act, (size_t)N * COLS * 2), .finish = GPU_STORE,
                            .partial = on_device(GPU_SPLIT_BYTES(GPU_SPLIT_BLOCKS, 64)),
                            .partial_bytes = GPU_SPLIT_BYTES(GPU_SPLIT_BLOCKS, 64),
                            .tickets = on_device(GPU_SPLIT_TICKETS * sizeof *l.tickets) };
    OK(gpu_fill(device, GPU_COMPUTE, l.tickets, 0, GPU_SPLIT_TICKETS * sizeof *l.tickets, &why));
    l.to[0] = (struct gpu_output){ .out = on_device(sizeof out), .ldo = ROWS };
    for (size_t k = 0; k < sizeof types / sizeof *types; k++) {
        struct mat m;
        uint8_t *data = random_mat(&m, types[k], 32, ROWS, COLS, &r);
        l.w[0] = gpu_mat_of(&m, to_device(data, m.size));
        assert_int_equal(gpu_split_hopper_parts(1, l.w[0].n_steps), GPU_SPLIT_PARTS);
        OK(gpu_matmul_split(device, &l, &why));
        from_device(out, l.to[0].out, sizeof out);
        compare(&m, out, ROWS, x, N, MATMUL, NULL, "long parts");
        free(data);
    }
    free(act), free(x);
}

/* Gate and up with their activation in one launch of wgmma: the bits of two launches and
 * gpu_act_mul, with padding, biases and parts of k. */
static void gate_up(void **state)
{
    (void)state;
    enum { MOST = 128, ROWS = 70, PADDED = 96 };
    static const int n_cols[] = { 96, 640, 1400 }, n_tokens[] = { 17, 33, MOST };
    struct rng r = { 12 };
    const struct gpu_linear any = { .w = { { .type = QT_NL4 } }, .n_mats = 2, .n_tokens = 33, .finish = GPU_MLP };
    if (!gpu_matmul_split_hopper_takes(device, &any))
        skip();
    for (size_t k = 0; k < sizeof n_cols / sizeof *n_cols; k++) {
        const int cols = n_cols[k];
        struct gpu_linear l = { .n_mats = 2, .scale = 1, .wgmma = 1, .act_out_stride = PADDED,
                                .partial = on_device(GPU_SPLIT_BYTES(GPU_SPLIT_BLOCKS, MOST)),
                                .partial_bytes = GPU_SPLIT_BYTES(GPU_SPLIT_BLOCKS, MOST),
                                .tickets = on_device(GPU_SPLIT_TICKETS * sizeof *l.tickets) };
        struct mat m[2];
        uint8_t *data[2];
        float *x = malloc((size_t)(MOST * cols) * sizeof *x), bias[ROWS];
        for (int i = 0; i < MOST * cols; i++)
            x[i] = uniform(&r, -1, 1);
        OK(gpu_fill(device, GPU_COMPUTE, l.tickets, 0, GPU_SPLIT_TICKETS * sizeof *l.tickets, &why));
        for (int i = 0; i < 2; i++) {
            for (int j = 0; j < ROWS; j++)
                bias[j] = uniform(&r, -1, 1);
            data[i] = random_mat(&m[i], QT_NL4, 32, ROWS, cols, &r);
            l.w[i] = gpu_mat_of(&m[i], to_device(data[i], m[i].size));
            l.to[i] = (struct gpu_output){ k ? to_device(bias, sizeof bias) : NULL, on_device(MOST * ROWS * 4), ROWS };
        }
        uint16_t *act = pack_act(x, MOST, cols, m[0].cols_padded, GPU_ACT_TILES), want[MOST * PADDED],
                 got[MOST * PADDED];
        l.act_stride = m[0].cols_padded;
        l.act = to_device(act, (size_t)(MOST * l.act_stride) * 2);
        void *out[2] = { on_device(sizeof got), on_device(sizeof got) };
        for (size_t c = 0; c < sizeof n_tokens / sizeof *n_tokens; c++) {
            const size_t size = (size_t)(n_tokens[c] * PADDED) * 2;
            l.n_tokens = n_tokens[c];
            l.finish = GPU_STORE;
            OK(gpu_matmul_split(device, &l, &why));
            OK(gpu_act_mul(device, l.to[0].out, l.to[1].out, l.n_tokens, ROWS, l.function, NULL, out[0], PADDED,
                           GPU_ACT_TILES, &why));
            l.finish = GPU_MLP;
            l.act_out = out[1];
            OK(gpu_fill(device, GPU_COMPUTE, out[1], 0xff, sizeof got, &why));
            OK(gpu_matmul_split(device, &l, &why));
            from_device(want, out[0], size);
            from_device(got, out[1], sizeof got);
            assert_memory_equal(got, want, size);
            for (int i = n_tokens[c] * PADDED; i < MOST * PADDED; i++)
                assert_int_equal(got[i], 0xffff);
        }
        free(act), free(x), free(data[0]), free(data[1]);
    }
}

/* Gate and up with their activation in one launch for many tokens: the bits of a product of both
 * and gpu_act_mul, in blocks of one and of two warpgroups (emulated: on 4 multiprocessors), and
 * with f16 copies. */
static void gate_up_many(void **state)
{
    (void)state;
    enum { N = 140, MOST = 500, PADDED = 512, COLS = 160 };
    static const struct { enum qtype type; int rows, biased, groups; } cases[] = {
        { QT_NL4, 70, 1, 1 }, { QT_NL4, MOST, 0, 2 }, { QT_I8, MOST, 1, 2 }, { QT_BF16, 1, 0, 2 },
    };
    struct rng r = { 15 };
    struct gpu_linear l = { .w = { { .type = QT_NL4 } }, .n_mats = 2, .n_tokens = N, .scale = 1, .finish = GPU_MLP,
                            .wgmma = 1, .act_stride = COLS, .act_out_stride = PADDED };
    if (!gpu_matmul_hopper_takes(device, &l))
        skip();
    const size_t size = N * PADDED * sizeof(uint16_t);
    float *x = malloc(N * COLS * sizeof *x), bias[MOST];
    uint16_t *want = malloc(size), *got = malloc(size);
    for (int i = 0; i < N * COLS; i++)
        x[i] = uniform(&r, -1, 1);
    uint16_t *act = pack_act(x, N, COLS, COLS, GPU_ACT_TILES);
    l.act = to_device(act, N * COLS * 2);
    void *out[2] = { on_device(size), on_device(size) };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct mat m[2];
        uint8_t *data[2];
        const int rows = cases[c].rows;
        for (int i = 0; i < 2; i++) {
            for (int j = 0; j < rows; j++)
                bias[j] = uniform(&r, -1, 1);
            data[i] = random_mat(&m[i], cases[c].type, 32, rows, COLS, &r);
            l.w[i] = gpu_mat_of(&m[i], to_device(data[i], m[i].size));
            l.to[i] = (struct gpu_output){ cases[c].biased ? to_device(bias, sizeof bias) : NULL,
                                           on_device(N * MOST * 4), rows };
        }
        const int narrow = (m[0].n_tiles + 1) / 2 * 2, wide = (m[0].n_tiles + 3) / 4 * 2;
        assert_int_equal(gpu_hopper_groups((int)cases[c].type, narrow, wide, 4), cases[c].groups);
        for (int copies = 0; copies < 2 && (!copies || cases[c].type != QT_BF16); copies++) {
            for (int i = 0; copies && i < 2; i++) {
                uint8_t *copy = on_device(gpu_decoded_size(l.w[i].type, l.w[i].n_tiles, l.w[i].n_steps));
                OK(gpu_decode(device, &l.w[i], copy, &why));
                l.w[i] = gpu_decoded(&l.w[i], copy);
            }
            for (int i = 0; i < 2; i++)
                OK(gpu_fill(device, GPU_COMPUTE, out[i], 0xff, size, &why));
            l.finish = GPU_STORE;
            OK(gpu_matmul(device, &l, &why));
            OK(gpu_act_mul(device, l.to[0].out, l.to[1].out, N, rows, l.function, NULL, out[0], PADDED, GPU_ACT_TILES,
                           &why));
            l.finish = GPU_MLP;
            l.act_out = out[1];
            OK(gpu_matmul(device, &l, &why));
            from_device(want, out[0], size);
            from_device(got, out[1], size);
            assert_memory_equal(got, want, size);
        }
        free(data[0]), free(data[1]);
    }
    l.function = ACT_RELU2;
    assert_int_equal(gpu_matmul_hopper_takes(device, &l), 0);
    free(act), free(got), free(want), free(x);
}

/* A norm that adds the sums of parts of k: the bits of the launch that adds them itself, and of the
 * norm of its own. */
static void parts_in_norm(void **state)
{
    (void)state;
    enum { MOST = 70, ROWS = 200, PADDED = 224 };
    static const int n_cols[] = { 96, 640, 1400 }, n_tokens[] = { 17, MOST };
    struct rng r = { 13 };
    const struct gpu_linear any = { .w = { { .type = QT_NL4 } }, .n_mats = 1, .n_tokens = 17, .finish = GPU_PARTS };
    if (!gpu_matmul_split_hopper_takes(device, &any))
        skip();
    for (size_t k = 0; k < sizeof n_cols / sizeof *n_cols; k++) {
        const int cols = n_cols[k];
        struct mat m;
        uint8_t *data = random_mat(&m, QT_NL4, 32, ROWS, cols, &r);
        float *x = malloc((size_t)(MOST * cols) * sizeof *x), *rows = malloc(MOST * ROWS * sizeof *rows),
              bias[ROWS], weights[ROWS];
        for (int i = 0; i < MOST * cols; i++)
            x[i] = uniform(&r, -1, 1);
        for (int i = 0; i < MOST * ROWS; i++)
            rows[i] = uniform(&r, -1, 1);
        for (int i = 0; i < ROWS; i++) {
            bias[i] = uniform(&r, -1, 1);
            weights[i] = uniform(&r, -1, 1);
        }
        uint16_t *act = pack_act(x, MOST, cols, m.cols_padded, GPU_ACT_TILES);
        struct gpu_linear l = { .n_mats = 1, .scale = 0.5f, .wgmma = 1, .act_stride = m.cols_padded,
                                .act = to_device(act, (size_t)(MOST * m.cols_padded) * 2),
                                .partial = on_device(GPU_SPLIT_BYTES(GPU_SPLIT_BLOCKS, 128)),
                                .partial_bytes = GPU_SPLIT_BYTES(GPU_SPLIT_BLOCKS, 128),
                                .tickets = on_device(GPU_SPLIT_TICKETS * sizeof *l.tickets) };
        l.w[0] = gpu_mat_of(&m, to_device(data, m.size));
        OK(gpu_fill(device, GPU_COMPUTE, l.tickets, 0, GPU_SPLIT_TICKETS * sizeof *l.tickets, &why));
        for (size_t c = 0; c < sizeof n_tokens / sizeof *n_tokens; c++) {
            uint16_t got[2][MOST * PADDED];
            float sums[2][MOST * ROWS];
            l.n_tokens = n_tokens[c];
            for (int parts = 0; parts < 2; parts++) {
                float *out = to_device(rows, MOST * ROWS * 4);
                const struct gpu_norm norm = { .present = 1, .w = to_device(weights, sizeof weights), .eps = 1e-5f,
                                               .x = out, .ldx = ROWS, .act = on_device(sizeof got[0]),
                                               .act_stride = PADDED, .order = GPU_ACT_TILES, .n = l.n_tokens,
                                               .cols = ROWS };
                const float *of_rows = to_device(bias, sizeof bias);
                l.to[0] = parts ? (struct gpu_output){ NULL, l.partial, m.n_tiles * 32 }
                                : (struct gpu_output){ of_rows, out, ROWS };
                l.finish = parts ? GPU_PARTS : GPU_ADD;
                const struct gpu_part_sums s = {
                    .part = l.partial, .ld = m.n_tiles * 32, .tiles = l.w[0].data, .tile_bytes = m.tile_bytes,
                    .n_parts = gpu_split_hopper_parts(gpu_split_hopper_units(m.n_tiles), l.w[0].n_steps),
                    .bias = of_rows, .scale = l.scale };
                assert_true(cols < 640 || s.n_parts > 1);
                OK(gpu_fill(device, GPU_COMPUTE, norm.act, 0xff, sizeof got[0], &why));
                OK(gpu_matmul_split(device, &l, &why));
                OK(parts ? gpu_norm_parts(device, &norm, &s, &why) : gpu_norm(device, &norm, &why));
                from_device(sums[parts], out, sizeof sums[0]);
                from_device(got[parts], norm.act, sizeof got[0]);
            }
            assert_memory_equal(sums[0], sums[1], sizeof sums[0]);
            assert_memory_equal(got[0], got[1], sizeof got[0]);
        }
        free(act), free(x), free(rows), free(data);
    }
}

/* A token's bits do not depend on the other tokens, whichever kernel their number selects: for
 * stored results, and for gate and up together. */
static void neighbours(void **state)
{
    (void)state;
    enum { N = 16, ROWS = 70, COLS = 640, WIDE = 96 };
    static const int together[] = { 16, 9, 8, 1 };
    struct rng r = { 5 };
    struct mat m[2];
    uint8_t *data[2];
    float *x = malloc(N * COLS * sizeof *x), bias[ROWS], all[N][ROWS], some[N][ROWS];
    uint16_t all_h[N][WIDE], some_h[N][WIDE];
    for (int i = 0; i < N * COLS; i++)
        x[i] = uniform(&r, -1, 1);
    uint16_t *act = pack_act(x, N, COLS, COLS, GPU_ACT_LANES), *dact = to_device(act, N * COLS * 2);
    struct gpu_linear l = { .act_stride = COLS, .act_out = on_device(sizeof all_h), .act_out_stride = WIDE,
                            .function = ACT_SILU };
    for (int i = 0; i < 2; i++) {
        data[i] = random_mat(&m[i], QT_NL4, 32, ROWS, COLS, &r);
        for (int row = 0; row < ROWS; row++)
            bias[row] = uniform(&r, -1, 1);
        l.w[i] = gpu_mat_of(&m[i], to_device(data[i], m[i].size));
        l.to[i] = (struct gpu_output){ .bias = to_device(bias, sizeof bias), .out = i ? NULL : on_device(sizeof all),
                                       .ldo = ROWS };
    }
    for (size_t c = 0; c < sizeof together / sizeof *together; c++) {
        for (int t = 0; t < N; t += l.n_tokens) {
            l.n_tokens = N - t < together[c] ? N - t : together[c];
            l.act = dact + t * COLS;
            l.n_mats = 1;
            l.finish = GPU_STORE;
            OK(gpu_matvec(device, &l, &why));
            from_device(some[t], l.to[0].out, (size_t)l.n_tokens * sizeof *some);
            l.n_mats = 2;
            l.finish = GPU_MLP;
            OK(gpu_matvec(device, &l, &why));
            from_device(some_h[t], l.act_out, (size_t)l.n_tokens * sizeof *some_h);
        }
        if (c == 0)
            memcpy(all, some, sizeof all), memcpy(all_h, some_h, sizeof all_h);
        assert_memory_equal(some, all, sizeof all);
        for (int t = 0; t < N; t++)
            for (int row = 0; row < ROWS; row++)        /* padding between rows is not compared */
                assert_int_equal(some_h[t][act_at(row, GPU_ACT_LANES)], all_h[t][act_at(row, GPU_ACT_LANES)]);
    }
    free(act), free(x), free(data[0]), free(data[1]);
}

/* Products of heads: each head's rows read an input of its own, and a tile has rows of two
 * heads. */
static void heads(void **state)
{
    (void)state;
    enum { HEADS = 5, ROWS = 20, COLS = 33, X_HEAD = 40, OUT_HEAD = 26, N = 9 };
    struct rng r = { 8 };
    struct mat m;
    uint8_t *data = random_mat(&m, QT_I8, 32, HEADS * ROWS, COLS, &r);
    float x[N * HEADS * X_HEAD], out[N * HEADS * OUT_HEAD], w[COLS];
    for (size_t i = 0; i < sizeof x / sizeof *x; i++)
        x[i] = uniform(&r, -1, 1);
    for (size_t i = 0; i < sizeof out / sizeof *out; i++)
        out[i] = -12345;
    const struct gpu_linear l = { .w = { gpu_mat_of(&m, to_device(data, m.size)) }, .n_mats = 1, .n_tokens = N,
                                  .x = to_device(x, sizeof x), .ldx = HEADS * X_HEAD,
                                  .to = { { .out = to_device(out, sizeof out), .ldo = HEADS * OUT_HEAD } },
                                  .finish = GPU_STORE, .head_rows = ROWS, .x_head = X_HEAD, .out_head = OUT_HEAD };
    OK(gpu_matmul_f32(device, &l, &why));
    from_device(out, l.to[0].out, sizeof out);
    for (int t = 0; t < N; t++)
        for (int i = 0; i < HEADS * OUT_HEAD; i++) {
            const int head = i / OUT_HEAD, row = i % OUT_HEAD;
            double sum = -12345;                        /* between the rows of heads */
            if (row < ROWS) {
                mat_decode_row(&m, head * ROWS + row, w);
                sum = 0;
                for (int k = 0; k < COLS; k++)
                    sum += (double)w[k] * x[(t * HEADS + head) * X_HEAD + k];
            }
            if (!(fabs(out[t * HEADS * OUT_HEAD + i] - sum) <= 1e-4))
                fail_msg("token %d head %d row %d is %.9g, not %.9g", t, head, row,
                         (double)out[t * HEADS * OUT_HEAD + i], sum);
        }
    free(data);
}

/* A launch that is refused gives an error, and the next launch runs. */
static void refused(void **state)
{
    (void)state;
    struct err refusal = { .code = ERR_NONE };
    struct gpu_mat none = { .type = QT_NL4 };
    const struct gpu_linear l = { .w = { none }, .n_mats = 1, .n_tokens = 1, .finish = GPU_STORE };
    assert_int_equal(gpu_matvec(device, &l, &refusal), -1);
    assert_int_equal(refusal.code, ERR_DEVICE);
    assert_int_equal(gpu_is_lost(device), 0);
    check(QT_NL4, 32, 33, 100, 3, MATVEC);
}

/* Rows of the embedding, as stored. */
static void embedding(void **state)
{
    (void)state;
    for (int type = 0; type < QTYPE_NUMBERS; type++) {
        const struct qtype_info *t = qtype_info((enum qtype)type);
        for (int g = 32; on_gpu(t) && g <= 256; g *= 2) {
            if (!(t->group_sizes & (unsigned)g))
                continue;
            struct rng r = { (uint64_t)type };
            struct mat m;
            const int cols = 100 + g;
            uint8_t *data = random_mat(&m, (enum qtype)type, g, 70, cols, &r);
            const int32_t token[3] = { 0, 69, 33 }, asked[3] = { -2, -3, 33 }, drawn[3] = { 5, -1, 69 },
                          pos[3] = { 2, 0, 1 };
            float want[400], got[3 * 400], position[5 * 400];
            for (int i = 0; i < 5 * cols; i++)
                position[i] = uniform(&r, -1, 1);
            struct gpu_mat w = gpu_mat_of(&m, to_device(data, m.size));
            float *x = on_device(sizeof got);
            OK(gpu_embed(device, x, &w, to_device(asked, sizeof asked), to_device(drawn, sizeof drawn),
                         to_device(pos, sizeof pos), 3, 1.5f, to_device(position, sizeof position), 2, NULL, &why));
            from_device(got, x, sizeof got);
            for (int i = 0; i < 3; i++) {
                mat_decode_row(&m, token[i], want);
                for (int k = 0; k < cols; k++) {
                    const float v = want[k] * 1.5f + position[(pos[i] + 2) * cols + k];
                    if (!(fabsf(got[i * cols + k] - v) <= 4e-7f * (1 + fabsf(v))))
                        fail_msg("%s group %d: token %d element %d is %.9g, not %.9g", t->name, g, token[i], k,
                                 (double)got[i * cols + k], (double)v);
                }
            }
            free(data);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matvec), cmocka_unit_test(matmul), cmocka_unit_test(matmul_f32),
            cmocka_unit_test(matmul_hopper),
        cmocka_unit_test(every_count), cmocka_unit_test(together), cmocka_unit_test(endings), cmocka_unit_test(normed),
        cmocka_unit_test(divided), cmocka_unit_test(turns),
        cmocka_unit_test(many), cmocka_unit_test(parts_of_k), cmocka_unit_test(split), cmocka_unit_test(long_parts),
        cmocka_unit_test(gate_up), cmocka_unit_test(gate_up_many), cmocka_unit_test(parts_in_norm),
        cmocka_unit_test(neighbours), cmocka_unit_test(refused),
        cmocka_unit_test(embedding), cmocka_unit_test(heads),
    };
    return device_open() ? cmocka_run_group_tests(tests, NULL, NULL) : 0;
}
