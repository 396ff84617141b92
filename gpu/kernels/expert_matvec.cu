/* expert_matvec.cu - the chosen experts of few tokens: act = f(gate x) * up x, or y = down x, for
 * each pair of a token and one of its experts.
 *
 * shapes   w as in matvec.cu, for each expert; activations [token] or [pair][act_stride] f16.  The
 *          work is a list of tiles, each up to 8 pairs of one expert, which route.cu makes on the
 *          device.  The grid is large enough for the longest possible list, so it depends only on
 *          the number of tokens
 * tile     a team of 8 warps: 32 rows (of gate and up) of one tile of the list, all k; the warps
 *          take chunks of k in turn, and their partial sums are added in the order of the warps.  A
 *          block is one team for gate and up, two teams for down, with the same rows of two tiles.
 *          It takes every gridDim.y-th tile or pair of tiles, so that its codebook, 64 KB of shared
 *          memory, is filled once; the first weights are under way meanwhile, and the next tile is
 *          known before the sums of the last one are stored.  Down begins when gate and up have
 *          waited for the router, so it loads its first weights before they end.
 *          Of the blocks that compute the same rows of down, the last to finish also computes the
 *          weighted sum of the results, in the order in which a token chose its experts; with
 *          up to 4 tokens the last of those blocks also norms the sums
 * moves    the weights of each chosen expert once from HBM, whichever tokens chose it.
 *          Qwen3-30B-A3B, nl4, one token: 8 of 128 experts, 13.4 MB for gate and up, 6.7 MB for
 *          down a layer, where attention has 10 MB; activations from L2
 * limit    HBM bandwidth: at 4.3 TB/s 3.1 us for gate and up, 1.6 us for down.  For one token gate
 *          and up have 192 blocks that read 70 KB each, down 256 blocks that read 26 KB each.
 *          Dividing k of gate and up would balance 192 blocks on 132 multiprocessors, but bytes
 *          already take as long as the instructions of two blocks, and a fence and a counter cost
 *          more than is left (calculated).
 *          60 and 65 instructions per 16 bytes of nl4 and lane (nvcc 13.0, sm_90)
 * checked  tests/unit/t-gpu-experts.c */
#include "gpu/kernels/operations.h"
#include "gpu/prim/experts.cuh"
#include "gpu/prim/few_tokens.cuh"
#include "gpu/prim/norm.cuh"
#include "gpu/rt/launch.cuh"

enum { WARPS = 8, PAIRS = GPU_EXPERT_FEW, BLOCKS_PER_SM = 2 };

/* Tiles that a block computes at the same time, each with WARPS warps.  N: 2 for gate and up. */
template <int N> constexpr int TEAMS = N == 2 ? 1 : 2;
template <int N> constexpr int THREADS = TEAMS<N> * WARPS * 32;
static_assert(THREADS<1> == NORM_THREADS, "blocks norm the rows of sums");
template <int N> constexpr int SUMS = WARPS * N * PAIRS * PAD_ROWS;     /* of a team */
/* Blocks of a multiprocessor for which registers are limited, as in matvec.cu; 0: they are not. */
template <int TYPE, int N> constexpr int RESIDENT = few_steps<TYPE, 1, N>::LIGHT && N == 1 ? BLOCKS_PER_SM : 0;

/* Tile i of a list of n; none: no pairs. */
DEVICE gpu_expert_tile tile_at(const gpu_expert_tile *tiles, int i, int n)
{
    if (i >= n)
        return { 0, 0, 0 };
    return { load_shared_by_blocks(&tiles[i].expert), load_shared_by_blocks(&tiles[i].first),
             load_shared_by_blocks(&tiles[i].n) };
}

/* most: no list of tiles is longer.  NORM: the last block norms the sums; the call takes
 * registers. */
template <int TYPE, int N, bool NORM>
__global__ __launch_bounds__(THREADS<N>, RESIDENT<TYPE, N>) void expert_matvec_kernel(gpu_experts o, int most)
{
    /* down's blocks wait after their first loads, if those of gate and up have waited */
    if (N == 1)
        launch_dependents();
    if (N == 2 || !o.chosen)
        wait_for_prerequisites();
    if (N == 2)
        launch_dependents();
    typedef format<TYPE> f;
    typedef few_steps<TYPE, 1, N> steps;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % WARPS, team = threadIdx.x / (32 * WARPS), g = lane / 4,
              t = lane % 4, each = gridDim.y * TEAMS<N>;
    const gpu_mat &m = o.w[0].w;
    SHARED(uint32_t, shared);
    /* [WARPS][N][PAIRS][PAD_ROWS] */
    float *sums = reinterpret_cast<float *>(shared + (f::table ? WIDE_BYTES / 4 : 0)) + team * SUMS<N>;
    /* the first tile is loaded together with the number of tiles, whether it exists or not */
    int i = blockIdx.y * TEAMS<N> + team;
    gpu_expert_tile e = tile_at(o.choice.tiles, i, most);
    const int n_tiles = load_shared_by_blocks(o.choice.n_tiles);
    const bool adds = N == 1 && o.sum.n > 0;
    /* the first block adds up even if nothing is chosen: there may be a shared expert */
    const int n_blocks = max(min((n_tiles + TEAMS<N> - 1) / TEAMS<N>, (int)gridDim.y), adds ? 1 : 0);
    if ((int)blockIdx.y >= n_blocks) {
        wait_for_prerequisites();
        return;
    }

    /* start the loads of the first turn of tile e; without one there is no turn */
    const uint8_t *data[N];
    const int32_t *pairs;
    const uint16_t *act;
    steps s;
    const int end = few_end<TYPE, 1, N>(m);
    int first;
    const auto activations = [&](int, int step, int k) { return load16(act + (size_t)step * 32 + k * 32); };
    const auto start = [&]() {
        first = end + 1;
        if (i >= n_tiles) {
            e.n = 0;
            return;
        }
        pairs = o.choice.order + e.first;
        /* sums of pairs that do not exist are not stored: they may be those of the last one */
        act = o.act + (size_t)(load_shared_by_blocks(pairs + min(g, e.n - 1)) / o.share) * o.act_stride + 8 * t;
        for (int k = 0; k < N; k++)
            data[k] = expert_rows(o.w[k], e.expert, blockIdx.x);
        first = warp * steps::STEPS;
        if (first < end)
            few_load(s, data, m, first, g, t, activations);
    };
    start();
    const wide_table table = wide_fill<TYPE, THREADS<N>>(shared);
    if (N == 1)
        wait_for_prerequisites();
    if (f::table)
        __syncthreads();
    for (int tile = blockIdx.y * TEAMS<N>; tile < n_tiles; tile += each) {
        const gpu_expert_tile next = tile_at(o.choice.tiles, i + each, n_tiles);
        float c[N][1][2][4];
        for (int k = 0; k < N * 8; k++)
            (&c[0][0][0][0])[k] = 0;
        while (first < end) {
            few_multiply(c, s, m, first, t, table, activations);
            first += WARPS * steps::STEPS;
            if (first < end)
                few_load(s, data, m, first, g, t, activations);
        }
        few_rest<TYPE>(c, data, m, first, g, t, table, activations);
        store_sums<1, N>(sums + warp * N * PAIRS * PAD_ROWS, c, g, t);
        __syncthreads();
        for (int k = threadIdx.x % (32 * WARPS); k < e.n * 32; k += WARPS * 32) {
            const int at = k / 32, in_tile = k % 32, row = blockIdx.x * 32 + in_tile, pair = pairs[at];
            float y[2] = { 0, 0 };
            for (int j = 0; j < N && row < m.rows; j++) {
                for (int w = 0; w < WARPS; w++)
                    y[j] += sums[((w * N + j) * PAIRS + at) * PAD_ROWS + in_tile];
                y[j] *= f::row_scale ? ACT_UNIT * float_of(load4(data[j] + 4 * in_tile)) : FEW_UNIT<TYPE>;
                y[j] = expert_biased(o.w[j], e.expert, row, y[j]);
            }
            if (N == 2)
                o.act_out[(size_t)pair * o.act_out_stride + act_place(row, GPU_ACT_LANES)] =
                    row < m.rows ? act_of(expert_activation(o, pair, y[0], y[1])) : 0;
            else if (row < m.rows)
                o.out[(size_t)pair * o.ldo + row] = y[0];
        }
        i += each;
        e = next;
        start();
        __syncthreads();                /* the sums are read */
    }
    if (!adds || !last_block(o.arrived + blockIdx.x, n_blocks, shared))
        return;
    for (int k = threadIdx.x; k < o.sum.n * 32; k += THREADS<N>) {
        const int row = blockIdx.x * 32 + k % 32;
        if (row < m.rows)
            expert_sum_store(o.sum, k / 32, row);
    }
    if constexpr (NORM)
        if (last_block(o.arrived + gridDim.x, gridDim.x, shared))
            norm_rows(o.norm, o.sum.n, reinterpret_cast<float *>(shared));
}

template <int TYPE, int N, bool NORM = false> static int run(struct gpu *g, const gpu_experts *o, struct err *e)
{
    const size_t shared = (format<TYPE>::table ? WIDE_BYTES : 0) + sizeof(float) * TEAMS<N> * SUMS<N>;
    const int rows = o->w[0].w.n_tiles, most = gpu_most_tiles(o->n_pairs, o->n_experts, PAIRS),
              teams = (most + TEAMS<N> - 1) / TEAMS<N>, wanted = (BLOCKS_PER_SM * gpu_n_sms(g) + rows - 1) / rows;
    return launch(g, "expert_matvec", expert_matvec_kernel<TYPE, N, NORM>,
                  dim3((unsigned)rows, (unsigned)(wanted < teams ? wanted : teams)), THREADS<N>, shared, e, *o, most);
}

template <int TYPE> static int run_type(struct gpu *g, const gpu_experts *o, struct err *e)
{
    return o->n_mats == 2 ? run<TYPE, 2>(g, o, e) : o->norm.x ? run<TYPE, 1, true>(g, o, e) : run<TYPE, 1>(g, o, e);
}

extern "C" int gpu_expert_matvec(struct gpu *g, const struct gpu_experts *o, struct err *e)
{
    switch (o->w[0].w.type) {
#define FORMAT(type) case type: return run_type<type>(g, o, e);
#define FORMAT_16(type) FORMAT(type)
#include "gpu/prim/each_format.inc"
    default: return err_set(e, ERR_UNSUPPORTED, "expert_matvec: number format %d", o->w[0].w.type);
    }
}
