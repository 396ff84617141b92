/* state.cu - mixers with a state per sequence: short convolutions, Mamba2, gated delta nets.
 *
 * shapes   the projections of a layer [n][n_in] f32; states as in libcommon/model/model.h: inputs
 *          of the convolution, then [state_size][head_dim] for each head
 * conv     a block: 128 channels, up to 16 tokens of one sequence, one channel a thread
 * scan     a block: 32 columns of one head's state, all tokens of one sequence.  A lane has every
 *          fourth row of its column in registers, so a step reads and writes the state once.
 *          Tokens come through shared memory, 8 at a time, and go through the recurrence one by
 *          one, so that a state does not depend on how a prompt was divided
 * gate     a block: the values of one token over which a norm is computed
 * moves    decoding: each state once from HBM and once to it: 2 * 4 * state_size * head_dim bytes a
 *          head (Qwen3-Next, 32 heads of 128 x 128: 4.2 MB a layer and sequence)
 * limit    decoding: HBM bandwidth for large batches, launches for one sequence: 3 kernels a layer;
 *          prompts: the latency of the recurrence, some 200 instructions a token of each block
 *          (estimated, not run on a GPU)
 * checked  tests/unit/t-gpu-state.c
 *
 * Sums have a fixed order, and nothing depends on the other sequences of the batch. */
#include "gpu/kernels/operations.h"
#include "gpu/prim/log.cuh"
#include "gpu/prim/weights.cuh"
#include "gpu/rt/launch.cuh"

enum { THREADS = 128, CHUNK = 16, COLUMNS = 32, PARTS = 4, STAGE = 8 };

/* The tokens of a block's sequence.  n 0: the block has nothing to do. */
struct run { int first, n, fresh; float *state; };

DEVICE run run_of(const gpu_state &o, int item)
{
    run r;
    r.first = o.first[item];
    r.n = o.first[item + 1] - r.first;
    r.fresh = r.n > 0 && o.pos[r.first] == 0;
    r.state = r.n > 0 ? o.states + (size_t)o.state[item] * o.stride + o.at : nullptr;
    return r;
}

/* ---- the convolution ---- */

/* Returns the column of the projection that is the input of a channel. */
DEVICE int column_of(const gpu_state &o, int channel)
{
    if (o.kind == GPU_STATE_CONV)
        return 2 * o.width + channel;
    if (o.kind == GPU_STATE_MAMBA2)
        return o.width + channel;
    if (o.flat)
        return channel;
    const int key = o.state_size, keys = o.n_groups * key, values = o.n_heads / o.n_groups * o.head_dim;
    const int part = channel < keys ? 0 : channel < 2 * keys ? 1 : 2, i = channel - part * keys,
              size = part < 2 ? key : values;
    return i / size * (2 * key + 2 * values) + part * key + i % size;
}

DEVICE float input_of(const gpu_state &o, int token, int channel, int column)
{
    const float *in = o.in + (size_t)token * o.n_in;
    return o.kind == GPU_STATE_CONV ? in[column] * in[channel] : in[column];
}

/* The input of the convolution at index t of the run; below 0 from the state. */
DEVICE float input_at(const gpu_state &o, const run &r, int t, int channel, int column)
{
    if (t >= 0)
        return input_of(o, r.first + t, channel, column);
    return r.fresh ? 0 : r.state[(size_t)(o.kernel - 1 + t) * o.channels + channel];
}

/* Store the last inputs of the run in the state. */
DEVICE void keep_inputs(const gpu_state &o, const run &r, int channel, int column)
{
    float last[GPU_MAX_CONV];
#pragma unroll
    for (int i = 0; i < GPU_MAX_CONV - 1; i++)
        last[i] = i < o.kernel - 1 ? input_at(o, r, r.n - (o.kernel - 1) + i, channel, column) : 0;
#pragma unroll
    for (int i = 0; i < GPU_MAX_CONV - 1; i++)
        if (i < o.kernel - 1)
            r.state[(size_t)i * o.channels + channel] = last[i];
}

__global__ __launch_bounds__(THREADS) void state_conv_kernel(gpu_state o)
{
    follow_previous();
    const run r = run_of(o, blockIdx.y);
    const int channel = blockIdx.x * THREADS + threadIdx.x, first = blockIdx.z * CHUNK;
    if (first >= r.n)
        return;
    const int end = min(r.n, first + CHUNK), last = blockIdx.x == gridDim.x - 1;
    if (channel < o.channels) {
        const int column = column_of(o, channel);
        float w[GPU_MAX_CONV], x[GPU_MAX_CONV];
#pragma unroll
        for (int i = 0; i < GPU_MAX_CONV; i++) {
            w[i] = i < o.kernel ? o.conv_weight[(size_t)i * o.channels + channel] : 0;
            x[i] = i < o.kernel - 1 ? input_at(o, r, first - (o.kernel - 1) + i, channel, column) : 0;
        }
        const float bias = o.conv_bias ? o.conv_bias[channel] : 0;
        for (int t = first; t < end; t++) {
            const int token = r.first + t;
            const float now = input_of(o, token, channel, column);
            float sum = bias;
#pragma unroll
            for (int i = 0; i < GPU_MAX_CONV; i++) {
                x[i] = i == o.kernel - 1 ? now : x[i];
                sum = i < o.kernel ? sum + x[i] * w[i] : sum;
            }
#pragma unroll
            for (int i = 0; i + 1 < GPU_MAX_CONV; i++)
                x[i] = x[i + 1];
            sum = o.kind == GPU_STATE_CONV ? sum * o.in[(size_t)token * o.n_in + o.width + channel]
                                           : activation(sum, 0);
            if (o.conv)
                o.conv[(size_t)token * o.channels + channel] = sum;
            if (o.act)
                o.act[(size_t)token * o.act_stride + act_place(channel, o.order)] = act_of(sum);
        }
        if (r.n <= CHUNK)               /* no other block reads these inputs in the state */
            keep_inputs(o, r, channel, column);
    }
    for (int t = first; o.act && last && t < end; t++)
        act_pad(o.act + (size_t)(r.first + t) * o.act_stride, o.channels, o.order, threadIdx.x, THREADS);
}

/* Update the states for runs of more than CHUNK tokens; launched after state_conv_kernel, whose
 * blocks still read the old states. */
__global__ __launch_bounds__(THREADS) void state_keep_kernel(gpu_state o)
{
    follow_previous();
    const run r = run_of(o, blockIdx.y);
    const int channel = blockIdx.x * THREADS + threadIdx.x;
    if (r.n > CHUNK && channel < o.channels)
        keep_inputs(o, r, channel, column_of(o, channel));
}

extern "C" int gpu_state_conv(struct gpu *g, const struct gpu_state *o, struct err *e)
{
    const unsigned blocks = (unsigned)(o->channels + THREADS - 1) / THREADS;
    if (launch(g, "state_conv", state_conv_kernel,
               dim3(blocks, (unsigned)o->n_items, (unsigned)(o->longest + CHUNK - 1) / CHUNK), THREADS, 0, e, *o) < 0)
        return -1;
    return o->longest <= CHUNK ? 0 : launch(g, "state_keep", state_keep_kernel, dim3(blocks, (unsigned)o->n_items),
                                            THREADS, 0, e, *o);
}

/* ---- recurrences ---- */

DEVICE float softplus(float x) { return x > 20 ? x : log_1_plus(expf(x)); }

/* Tokens of a run in shared memory: per token the vectors q and k (Mamba2: C and B) [state_size],
 * the decays of the rows [state_size] where each has its own, the block's columns of v (Mamba2: x),
 * and two factors, decay and rate (Mamba2: decay and time step). */
struct stage { float *q, *k, *rows, *v, *decay, *rate; };

DEVICE stage stage_of(float *shared, int n)
{
    stage s;
    s.q = shared;
    s.k = s.q + STAGE * n;
    s.rows = s.k + STAGE * n;
    s.v = s.rows + STAGE * n;
    s.decay = s.v + STAGE * COLUMNS;
    s.rate = s.decay + STAGE;
    return s;
}

/* Logarithm of the decay for a time step of 1, which is negative. */
DEVICE float decay_rate(const gpu_state &o, int head)
{
    return o.log_rates ? -fabsf(o.a_log[head]) : -expf(o.a_log[head]);
}

/* Compute the factors of one token and head. */
DEVICE void factors(const gpu_state &o, const stage &s, int at, int token, int head)
{
    const float rate = decay_rate(o, head);
    if (o.kind == GPU_STATE_MAMBA2) {
        float dt = softplus(o.in[(size_t)token * o.n_in + o.width + o.channels + head] + o.dt_bias[head]);
        dt = dt < o.dt_min ? o.dt_min : dt > o.dt_max ? o.dt_max : dt;
        s.decay[at] = expf(rate * dt);
        s.rate[at] = dt;
        return;
    }
    const int share = o.n_heads / o.n_groups, group = head / share, member = head % share;
    const float *ba = o.ba + (size_t)token * 2 * o.n_heads;
    const float b = o.ba_flat ? ba[head] : ba[group * 2 * share + member];
    s.rate[at] = o.rate_scale / (1 + expf(-b));
    if (!o.per_row)
        s.decay[at] = expf(rate * softplus((o.ba_flat ? ba[o.n_heads + head] : ba[group * 2 * share + share + member]) +
                                           o.dt_bias[head]));
}

/* Load n tokens from `token` on into the stage, with queries and keys normed and the factors
 * computed. */
DEVICE void load_stage(const gpu_state &o, const stage &s, int token, int n, int head, int column0)
{
    const int size = o.state_size, delta = o.kind == GPU_STATE_DELTA, share = o.n_heads / o.n_groups;
    const int group = o.tiled ? head % o.n_groups : head / share, keys = o.n_groups * size;
    /* where q, k and v are in the outputs of the convolution */
    const int first = (delta ? 0 : o.width) + group * size, q_at = delta ? first : first + keys,
              k_at = delta ? first + keys : first, v_at = (delta ? 2 * keys : 0) + head * o.head_dim + column0;
    for (int i = threadIdx.x; i < n * size; i += THREADS) {
        const int t = i / size, d = i % size;
        const float *x = o.conv + (size_t)(token + t) * o.channels;
        s.q[i] = x[q_at + d];
        s.k[i] = x[k_at + d];
        if (o.per_row) {
            const int at = head * size + d;
            const float raw = o.in[(size_t)(token + t) * o.n_in + o.channels + o.width + at] + o.dt_bias[at],
                        rate = decay_rate(o, head);
            s.rows[i] = o.decay_least != 0 ? expf(o.decay_least / (1 + expf(rate * raw))) : expf(rate * softplus(raw));
        }
    }
    for (int i = threadIdx.x; i < n * COLUMNS; i += THREADS) {
        const int t = i / COLUMNS, column = i % COLUMNS;
        s.v[i] = column0 + column < o.head_dim ? o.conv[(size_t)(token + t) * o.channels + v_at + column] : 0;
    }
    if (threadIdx.x < (unsigned)n)
        factors(o, s, threadIdx.x, token + threadIdx.x, head);
    __syncthreads();
    if (!delta)
        return;
    /* queries and keys are scaled to length 1, queries also divided by sqrt(size) */
    const int lane = threadIdx.x % 32;
    for (int i = threadIdx.x / 32; i < 2 * n; i += THREADS / 32) {
        float *x = (i % 2 ? s.k : s.q) + i / 2 * size, sum = 0;
        for (int d = lane; d < size; d += 32)
            sum = fmaf(x[d], x[d], sum);
        const float by = 1 / sqrtf((warp_sum(sum) + 1e-6f) * (i % 2 ? 1 : (float)size));
        for (int d = lane; d < size; d += 32)
            x[d] *= by;
    }
    __syncthreads();
}

/* The sum over the lanes that have the same column. */
DEVICE float sum_of_parts(float x)
{
    x += __shfl_xor_sync(FULL_WARP, x, 8);
    return x + __shfl_xor_sync(FULL_WARP, x, 16);
}

/* ROWS: most rows of a lane. */
template <int ROWS> __global__ __launch_bounds__(THREADS) void state_scan_kernel(gpu_state o)
{
    follow_previous();
    const run r = run_of(o, blockIdx.z);
    if (r.n <= 0)
        return;
    SHARED(float, shared);
    const int size = o.state_size, head = blockIdx.y, lane = threadIdx.x % 32, part = lane / 8,
              in_block = threadIdx.x / 32 * 8 + lane % 8, column0 = blockIdx.x * COLUMNS, column = column0 + in_block;
    const bool there = column < o.head_dim;
    const stage s = stage_of(shared, size);
    float *state = r.state + (size_t)(o.kernel - 1) * o.channels + (size_t)head * size * o.head_dim + column;
    float x[ROWS];
#pragma unroll
    for (int j = 0; j < ROWS; j++) {
        const int row = part + PARTS * j;
        x[j] = there && row < size && !r.fresh ? state[(size_t)row * o.head_dim] : 0;
    }
    for (int t0 = 0; t0 < r.n; t0 += STAGE) {
        const int n = min(STAGE + 0, r.n - t0);
        __syncthreads();                /* all threads have read the previous tokens */
        load_stage(o, s, r.first + t0, n, head, column0);
        for (int t = 0; t < n; t++) {
            const float *q = s.q + t * size + part, *k = s.k + t * size + part, *rows = s.rows + t * size + part;
            const float v = s.v[t * COLUMNS + in_block];
            float in = v * s.rate[t], y = 0;
            if (o.kind == GPU_STATE_DELTA) {
#pragma unroll
                for (int j = 0; j < ROWS; j++)
                    if (part + PARTS * j < size) {
                        x[j] *= o.per_row ? rows[PARTS * j] : s.decay[t];
                        y = fmaf(k[PARTS * j], x[j], y);
                    }
                in = (v - sum_of_parts(y)) * s.rate[t];
                y = 0;
            }
#pragma unroll
            for (int j = 0; j < ROWS; j++)
                if (part + PARTS * j < size) {
                    x[j] = fmaf(k[PARTS * j], in, o.kind == GPU_STATE_DELTA ? x[j] : x[j] * s.decay[t]);
                    y = fmaf(q[PARTS * j], x[j], y);
                }
            y = sum_of_parts(y);
            if (part == 0 && there)
                o.out[(size_t)(r.first + t0 + t) * o.width + head * o.head_dim + column] =
                    o.kind == GPU_STATE_DELTA ? y : fmaf(o.d[head], v, y);
        }
    }
#pragma unroll
    for (int j = 0; j < ROWS; j++) {
        const int row = part + PARTS * j;
        if (there && row < size)
            state[(size_t)row * o.head_dim] = x[j];
    }
}

template <int ROWS> static int scan(struct gpu *g, const gpu_state *o, struct err *e)
{
    const size_t shared = sizeof(float) * STAGE * (3 * (size_t)o->state_size + COLUMNS + 2);
    return launch(g, "state_scan", state_scan_kernel<ROWS>,
                  dim3((unsigned)(o->head_dim + COLUMNS - 1) / COLUMNS, (unsigned)o->n_heads, (unsigned)o->n_items),
                  THREADS, shared, e, *o);
}

extern "C" int gpu_state_scan(struct gpu *g, const struct gpu_state *o, struct err *e)
{
    static_assert(PARTS * 64 == GPU_MAX_STATE, "the largest kernel has all rows");
    return o->state_size <= PARTS * 16 ? scan<16>(g, o, e) : o->state_size <= PARTS * 32 ? scan<32>(g, o, e)
                                                                                         : scan<64>(g, o, e);
}

/* ---- gates and norms of outputs ---- */

DEVICE float gated(const gpu_gate &o, int token, int k, float v)
{
    const int head = k / o.head_dim;
    const float z = o.z[(size_t)token * o.ldz + head / o.share * o.z_stride + head % o.share * o.head_dim +
                        k % o.head_dim];
    return o.sigmoid ? v / (1 + expf(-z)) : v * activation(z, 0);
}

__global__ __launch_bounds__(THREADS) void state_gate_kernel(gpu_gate o)
{
    follow_previous();
    SHARED(float, room);
    const int token = blockIdx.y, first = blockIdx.x * o.size;
    float *x = o.x + (size_t)token * o.width;
    float sum = 0, by = 1;
    for (int i = threadIdx.x; o.w && i < o.size; i += THREADS) {
        const float v = o.norm_first ? x[first + i] : gated(o, token, first + i, x[first + i]);
        sum = fmaf(v, v, sum);
    }
    if (o.w)
        by = 1 / sqrtf(block_sum(sum, room) / (float)o.size + o.eps);
    for (int i = threadIdx.x; i < o.size; i += THREADS) {
        const int k = first + i;
        const float w = o.w ? by * o.w[o.each ? k : i] : 1;
        const float v = o.norm_first ? gated(o, token, k, x[k] * w) : gated(o, token, k, x[k]) * w;
        if (o.act)
            o.act[(size_t)token * o.act_stride + act_place(k, o.order)] = act_of(v);
        else
            x[k] = v;
    }
    if (o.act && blockIdx.x == gridDim.x - 1)
        act_pad(o.act + (size_t)token * o.act_stride, o.width, o.order, threadIdx.x, THREADS);
}

extern "C" int gpu_state_gate(struct gpu *g, const struct gpu_gate *o, struct err *e)
{
    return launch(g, "state_gate", state_gate_kernel, dim3((unsigned)(o->width / o->size), (unsigned)o->n), THREADS,
                  32 * sizeof(float), e, *o);
}
