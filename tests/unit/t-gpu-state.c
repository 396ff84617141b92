/* t-gpu-state.c - mixers with a state on the device, compared with a plain loop over tokens and
 * kernels_ref: outputs and states of a ragged batch, in which one sequence is new and one item is
 * empty. */
#include "tests/lib/gpu.h"

enum { ITEMS = 3, N = 22, STRIDE = 4000, AT = 5, MOST = 2000 };
/* the second sequence has more tokens than one block of the convolution takes; the last has none */
static const int32_t first_of[ITEMS + 1] = { 0, 1, N, N }, state_of_item[ITEMS] = { 2, 0, 1 };

static float *randoms(struct rng *r, int n, float most)
{
    float *x = malloc((size_t)n * sizeof *x);
    for (int i = 0; i < n; i++)
        x[i] = uniform(r, -most, most);
    return x;
}

/* Sums of some dozen f32 terms, and exponentials within a few ulp. */
static void near(const float *got, const float *want, int n, const char *what)
{
    float most = 0;
    for (int i = 0; i < n; i++)
        most = fmaxf(most, fabsf(want[i]));
    for (int i = 0; i < n; i++)
        if (!(fabsf(got[i] - want[i]) <= 2e-5f * most))
            fail_msg("%s: element %d is %.9g, not %.9g", what, i, (double)got[i], (double)want[i]);
}

static float silu(float x) { return x / (1 + expf(-x)); }
static float softplus(float x) { return log1pf(expf(x)); }

/* The column of the projection with a channel of a delta net whose groups have q, k, v, z each. */
static int column_in_groups(const struct gpu_state *o, int channel)
{
    const int key = o->state_size, keys = o->n_groups * key, values = o->n_heads / o->n_groups * o->head_dim,
              part = channel < keys ? 0 : channel < 2 * keys ? 1 : 2, size = part < 2 ? key : values,
              i = channel - part * keys;
    return i / size * 2 * (key + values) + part * key + i % size;
}

/* conv [token][channels] and the inputs that the state keeps. */
static void conv_reference(const struct gpu_state *o, const float *in, const float *weight, const float *bias,
                           float *state, int first, int n, int fresh, float *conv)
{
    const int past = o->kernel - 1;
    for (int ch = 0; ch < o->channels; ch++) {
        const int column = o->kind == GPU_STATE_CONV ? 2 * o->width + ch : o->kind == GPU_STATE_MAMBA2 ? o->width + ch
                           : o->flat ? ch : column_in_groups(o, ch);
        float x[N + GPU_MAX_CONV];
        for (int t = -past; t < n; t++) {
            const float *row = in + (first + t) * o->n_in;
            x[past + t] = t >= 0 ? row[column] * (o->kind == GPU_STATE_CONV ? row[ch] : 1)
                          : fresh ? 0 : state[(past + t) * o->channels + ch];
        }
        for (int t = 0; t < n; t++) {
            float y = bias ? bias[ch] : 0;
            for (int i = 0; i < o->kernel; i++)
                y += x[t + i] * weight[i * o->channels + ch];
            conv[(first + t) * o->channels + ch] =
                o->kind == GPU_STATE_CONV ? y * in[(first + t) * o->n_in + o->width + ch] : silu(y);
        }
        for (int i = 0; i < past; i++)
            state[i * o->channels + ch] = x[n + i];
    }
}

static void unit_length(float *out, const float *x, int n, float by)
{
    float sum = 1e-6f;
    for (int i = 0; i < n; i++)
        sum += x[i] * x[i];
    for (int i = 0; i < n; i++)
        out[i] = x[i] / sqrtf(sum) * by;
}

/* One token of one head of a delta net. */
static void delta_reference(const struct gpu_state *o, const float *in, const float *ba, const float *conv,
                            const float *a_log, const float *dt_bias, float *state, int head, float *out)
{
    const int share = o->n_heads / o->n_groups, group = head / share, member = head % share, size = o->state_size,
              at = head * size;
    const float b = o->ba_flat ? ba[head] : ba[2 * group * share + member],
                a = o->ba_flat ? ba[o->n_heads + head] : ba[2 * group * share + share + member],
                rate = o->rate_scale / (1 + expf(-b));
    float q[GPU_MAX_STATE], k[GPU_MAX_STATE], decay[GPU_MAX_STATE];
    const float *v = conv + 2 * o->n_groups * size + head * o->head_dim;
    unit_length(q, conv + group * size, size, 1 / sqrtf((float)size));
    unit_length(k, conv + (o->n_groups + group) * size, size, 1);
    for (int i = 0; o->per_row && i < size; i++)
        decay[i] = expf(-expf(a_log[head]) * softplus(in[o->channels + o->width + at + i] + dt_bias[at + i]));
    if (o->per_row)
        kernels_ref.scan_delta_rows(state, q, k, v, out, size, o->head_dim, decay, rate);
    else
        kernels_ref.scan_delta(state, q, k, v, out, size, o->head_dim,
                               expf(-expf(a_log[head]) * softplus(a + dt_bias[head])), rate);
}

static void mamba_reference(const struct gpu_state *o, const float *in, const float *conv, const float *a_log,
                            const float *dt_bias, const float *d, float *state, int head, float *out)
{
    const int group = head / (o->n_heads / o->n_groups);
    const float *b = conv + o->width + group * o->state_size, *c = b + o->n_groups * o->state_size;
    const float dt = fminf(fmaxf(softplus(in[o->width + o->channels + head] + dt_bias[head]), o->dt_min), o->dt_max);
    kernels_ref.scan_mamba(state, b, c, conv + head * o->head_dim, out, o->state_size, o->head_dim,
                           expf(-expf(a_log[head]) * dt), dt, d[head]);
}

/* Run a mixer on the device and here. */
static void check(struct gpu_state o, const char *what)
{
    struct rng r = { 17 };
    const int heads = o.n_heads * (o.per_row ? o.state_size : 1);
    float *in = randoms(&r, N * o.n_in, 1), *ba = randoms(&r, N * 2 * o.n_heads + 1, 1),
          *states = randoms(&r, 3 * STRIDE, 1), *weight = randoms(&r, o.kernel * o.channels, 1),
          *bias = randoms(&r, o.channels, 1),
          *a_log = randoms(&r, o.n_heads + 1, 1), *dt_bias = randoms(&r, heads + 1, 1),
          *d = randoms(&r, o.n_heads + 1, 1), *conv = calloc(N * MOST, sizeof *conv),
          *out = calloc(N * MOST, sizeof *out), *got = malloc(N * MOST * sizeof *got);
    const int32_t pos[N] = { 7 };               /* the second sequence is new */
    o.in = to_device(in, (size_t)(N * o.n_in) * 4);
    o.ba = to_device(ba, (size_t)(N * 2 * o.n_heads + 1) * 4);
    o.states = to_device(states, 3 * STRIDE * 4);
    o.conv = on_device((size_t)(N * o.channels) * 4);
    o.out = on_device((size_t)(N * o.width) * 4);
    o.conv_weight = to_device(weight, (size_t)(o.kernel * o.channels) * 4);
    o.conv_bias = o.kind == GPU_STATE_DELTA ? NULL : to_device(bias, (size_t)o.channels * 4);
    o.a_log = to_device(a_log, (size_t)(o.n_heads + 1) * 4);
    o.dt_bias = to_device(dt_bias, (size_t)(heads + 1) * 4);
    o.d = to_device(d, (size_t)(o.n_heads + 1) * 4);
    o.first = to_device(first_of, sizeof first_of);
    o.state = to_device(state_of_item, sizeof state_of_item);
    o.pos = to_device(pos, sizeof pos);
    o.stride = STRIDE;
    o.at = AT;
    o.n_items = ITEMS;
    o.longest = N - 1;
    OK(gpu_state_conv(device, &o, &why));
    if (o.kind != GPU_STATE_CONV)
        OK(gpu_state_scan(device, &o, &why));
    for (int item = 0; item < 2; item++) {
        float *state = states + state_of_item[item] * STRIDE + AT;
        const int first = first_of[item], n = first_of[item + 1] - first, size = o.state_size * o.head_dim;
        conv_reference(&o, in, weight, o.conv_bias ? bias : NULL, state, first, n, item == 1, conv);
        state += (o.kernel - 1) * o.channels;
        if (item == 1)
            memset(state, 0, (size_t)(o.n_heads * size) * sizeof *state);
        for (int t = first; t < first + n && o.kind != GPU_STATE_CONV; t++)
            for (int h = 0; h < o.n_heads; h++) {
                const float *row = in + t * o.n_in, *x = conv + t * o.channels;
                float *y = out + t * o.width + h * o.head_dim;
                if (o.kind == GPU_STATE_DELTA)
                    delta_reference(&o, row, ba + t * 2 * o.n_heads, x, a_log, dt_bias, state + h * size, h, y);
                else
                    mamba_reference(&o, row, x, a_log, dt_bias, d, state + h * size, h, y);
            }
    }
    from_device(got, o.conv, (size_t)(N * o.channels) * 4);
    near(got, conv, N * o.channels, what);
    if (o.kind != GPU_STATE_CONV) {
        from_device(got, o.out, (size_t)(N * o.width) * 4);
        near(got, out, N * o.width, what);
    }
    from_device(got, o.states, 3 * STRIDE * 4);
    near(got, states, 3 * STRIDE, what);
    free(in), free(ba), free(states), free(weight), free(bias), free(a_log), free(dt_bias), free(d);
    free(conv), free(out), free(got);
}

static void short_convolutions(void **state)
{
    (void)state;
    check((struct gpu_state){ .kind = GPU_STATE_CONV, .n_in = 3 * 150, .channels = 150, .width = 150, .kernel = 3 },
          "conv");
    check((struct gpu_state){ .kind = GPU_STATE_CONV, .n_in = 3 * 20, .channels = 20, .width = 20,
                              .kernel = GPU_MAX_CONV }, "the longest conv");
}

static void mamba2(void **state)
{
    (void)state;
    enum { HEADS = 4, DIM = 8, GROUPS = 2, SIZE = 24, WIDTH = HEADS * DIM, CHANNELS = WIDTH + 2 * GROUPS * SIZE };
    check((struct gpu_state){ .kind = GPU_STATE_MAMBA2, .n_in = WIDTH + CHANNELS + HEADS, .channels = CHANNELS,
                              .width = WIDTH, .kernel = 4, .n_heads = HEADS, .head_dim = DIM, .n_groups = GROUPS,
                              .state_size = SIZE, .dt_min = 0.3f, .dt_max = 1 }, "mamba2");
}

/* Queries and keys in groups, with sizes for each of the three kernels; Kimi's decays by row. */
static void delta_nets(void **state)
{
    (void)state;
    static const int sizes[] = { 16, 100, 132 };
    for (int i = 0; i < 4; i++) {
        const int rows = i == 3, size = rows ? 20 : sizes[i], heads = rows ? 2 : i == 1 ? 1 : 2, dim = i == 1 ? 10 : 6,
                  groups = i == 2 || rows ? 2 : 1, width = heads * dim, channels = 2 * groups * size + width;
        check((struct gpu_state){ .kind = GPU_STATE_DELTA, .n_in = channels + width + (rows ? heads * size : 0),
                                  .channels = channels, .width = width, .kernel = 4, .n_heads = heads,
                                  .head_dim = dim, .n_groups = groups, .state_size = size,
                                  .ba_flat = i % 2, .flat = i == 1 || rows, .per_row = rows,
                                  .rate_scale = i == 1 ? 2 : 1 }, rows ? "Kimi delta attention" : "delta net");
    }
}

/* Gates and norms against the same in a plain loop, as f32 and as f16. */
static void gates(void **state)
{
    (void)state;
    enum { TOKENS = 3, HEADS = 4, DIM = 10, WIDTH = HEADS * DIM, LDZ = 70, STRIDE_ACT = 64 };
    struct rng r = { 3 };
    float *x = randoms(&r, TOKENS * WIDTH, 2), *z = randoms(&r, TOKENS * LDZ, 2), *w = randoms(&r, WIDTH, 2),
          got[TOKENS * WIDTH];
    for (int kind = 0; kind < 8; kind++) {
        uint16_t act[TOKENS * STRIDE_ACT];
        struct gpu_gate o = { .x = to_device(x, TOKENS * WIDTH * 4), .n = TOKENS, .width = WIDTH, .head_dim = DIM,
                              .size = kind & 1 ? 2 * DIM : DIM, .z = to_device(z, TOKENS * LDZ * 4), .ldz = LDZ,
                              .share = 2, .z_stride = 35, .sigmoid = kind == 3, .each = kind & 1,
                              .w = kind == 4 ? NULL : to_device(w, WIDTH * 4), .norm_first = kind >> 1 & 1,
                              .eps = 1e-3f };
        if (kind & 4) {
            o.act = on_device(sizeof act);
            o.act_stride = STRIDE_ACT;
            o.order = kind & 1 ? GPU_ACT_TILES : GPU_ACT_LANES;
        }
        OK(gpu_state_gate(device, &o, &why));
        from_device(kind & 4 ? (void *)act : got, kind & 4 ? (void *)o.act : o.x, kind & 4 ? sizeof act : sizeof got);
        for (int t = 0; t < TOKENS; t++)
            for (int part = 0; part < WIDTH; part += o.size) {
                float y[WIDTH], by[WIDTH], sum = 0;
                for (int i = part; i < part + o.size; i++) {
                    const float gate = z[t * LDZ + i / (2 * DIM) * 35 + i % (2 * DIM)];
                    by[i] = o.sigmoid ? 1 / (1 + expf(-gate)) : silu(gate);
                    y[i] = x[t * WIDTH + i] * (o.norm_first ? 1 : by[i]);
                    sum += y[i] * y[i];
                }
                for (int i = part; i < part + o.size; i++) {
                    const float weight = o.w ? w[o.each ? i : i - part] / sqrtf(sum / (float)o.size + 1e-3f) : 1,
                                v = y[i] * weight * (o.norm_first ? by[i] : 1),
                                is = o.act ? 16 * f16_to_f32(act[t * STRIDE_ACT + act_at(i, o.order)])
                                           : got[t * WIDTH + i];
                    if (!(fabsf(is - v) <= (o.act ? 2e-3f : 1e-5f) * (1 + fabsf(v))))
                        fail_msg("kind %d: token %d element %d is %.9g, not %.9g", kind, t, i, (double)is, (double)v);
                }
            }
        for (int t = 0; o.act && t < TOKENS; t++)
            for (int i = WIDTH; i < STRIDE_ACT; i++)
                assert_int_equal(act[t * STRIDE_ACT + act_at(i, o.order)], 0);
    }
    free(x), free(z), free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(short_convolutions), cmocka_unit_test(mamba2), cmocka_unit_test(delta_nets),
        cmocka_unit_test(gates),
    };
    return device_open() ? cmocka_run_group_tests(tests, NULL, NULL) : 0;
}
