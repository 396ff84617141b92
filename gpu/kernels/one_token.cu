/* one_token.cu - all layers of a step of one token in one launch, whose blocks give each other what
 * they have computed.
 *
 * Otherwise a layer of a mixture of experts takes six launches.  Each costs the gap before it and
 * mostly a join of its blocks, the last of which adds up their sums or norms the row.  Gaps and
 * joins take longer than reading the layer's weights.  Here blocks leave sums over parts of k, and
 * every block that reads the result adds the parts.
 *
 * stages   of a layer:
 *            qkv        x += parts of the layer before; norm; q, k and v
 *            attention  splits of the context (attn_token.cuh)
 *            o          the merge of the splits, 32 elements a block; its product; and the router's
 *                       product with the block's part of its sum
 *            up         x += parts of o; the choice of experts, by every block for itself; norm;
 *                       gate, up and activation
 *            down       the weighted sum of the experts' products
 *          A block keeps x in shared memory, and all blocks compute the same x.
 * meeting  Stages begin with words that others publish, send or add to (prim/grid.cuh): a block
 *          waits for the numbers that it needs, and for nothing else.  All blocks also meet at one
 *          barrier a layer, at which none has to wait long: they arrive after `o`, and wait before
 *          they publish the result of `up`.  So words that are read before they arrive can be
 *          published again in the next layer.  Parts of o and outputs of the router are read later,
 *          and have room for two layers and for four
 * tile     one block a multiprocessor, of 16 warps.  A turn is 128 k of a tile of 32 rows (64 k of
 *          i8), and the warps of a block take turns one after the other.  All turns of a stage are
 *          divided into equal shares, one for each block and each without gaps (gpu_turns); so up
 *          to four blocks have parts of a tile.  The activation needs the whole sums of gate and
 *          up: the block with the first part of a tile, which it computes last, receives the sums
 *          of the others, which they compute first
 * formats  a kernel for nl4, for i4 and for i8, and one in which each matrix is nl4, m5 or m6, as
 *          zse-convert chooses them.  A warp of that one branches to the loads and the products of
 *          a turn's format, and has turns of gate and of up one after the other
 * moves    each weight once from HBM; a warp has up to 10 loads of 16 bytes a lane in flight, 82 KB
 *          a block.  Each warp loads its first turn before it waits for activations: these are
 *          nearly all weights of qkv and o, of which a multiprocessor of an H200 has 42 and 34 KB
 *          (Qwen3-30B-A3B, nl4), and two thirds of those of down
 * limit    instructions, of which all 16 warps run the same: 62 for 16 bytes of nl4 and lane in the
 *          turns (with several formats 79, and 73 of m5 and m6), and 100 to 300 in each stage
 *          beside them (norms, and the addresses of copies before attention); and two latencies of
 *          L2 for each word, .29 us on an H200, six times a layer (calculated).  HBM would allow
 *          3.1 us for gate and up, and 6.7 us a layer
 * checked  tests/unit/t-gpu-one-token.c */
#include "gpu/kernels/operations.h"
#include "gpu/prim/prim.cuh"

/* The number of the thread, read again at each use.  If the compiler knew that it stays the same,
 * it would move all that depends on it out of the loop over layers, which takes a hundred
 * registers. */
#ifdef __CUDACC__
DEVICE unsigned thread_number()
{
    unsigned n;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(n));
    return n;
}
#define threadIdx (dim3(thread_number()))
#endif

#include "gpu/prim/attn_token.cuh"
#include "gpu/prim/choose.cuh"
#include "gpu/prim/experts.cuh"
#include "gpu/prim/few_tokens.cuh"
#include "gpu/prim/grid.cuh"
#include "gpu/prim/norm.cuh"
#include "gpu/rt/launch.cuh"

enum { WARPS = GPU_TOKEN_WARPS, THREADS = WARPS * 32 };
static_assert((int)THREADS == (int)NORM_THREADS && GPU_SPLIT == 1 << 7, "gpu_token_log_split()");
static_assert((int)GPU_TOKEN_BLOCKS / (int)GPU_TOKEN_COPIES < (int)GRID_COUNT, "a sum counts its blocks");

/* ---- turns ---- */

/* x / n; by: GPU_INVERSE(n). */
DEVICE int divided(int x, uint32_t by) { return (int)((uint64_t)(uint32_t)x * by >> 31); }

/* The format of the kernel whose matrices have several, those for which GPU_TURN_MIXES() is 1.
 * Turns of m6 have room for the others. */
enum { MIXED = -1 };
template <int TYPE> constexpr int ROOMY = TYPE == MIXED ? (int)QT_M6 : TYPE;
template <int TYPE> constexpr int TURN_STEPS = GPU_TURN_STEPS(ROOMY<TYPE>);
/* Matrices of a turn of gate and up. */
template <int TYPE> constexpr int PAIR = TYPE == MIXED ? 1 : 2;

/* Whether turns have the scales of the lane's rows.  Otherwise the first warp multiplies the
 * finished sums of a tile by them, which takes fewer registers. */
template <int TYPE, bool WEIGHED> constexpr bool TURN_SCALES = WEIGHED || TYPE == MIXED;

/* The steps that a warp loads together, and the scales of the lane's rows. */
template <int TYPE, int N> struct turn {
    few_steps<ROOMY<TYPE>, 1, N> s;
    float scale[N][4];
};

/* The place of a turn: the bytes of its tile, its first step, and its activations in shared memory.
 * Its sums are multiplied by `weight`.  MIXED: the format, and the unit's sum to which it adds. */
template <int N> struct turn_place {
    const uint8_t *data[N]; int step; const uint16_t *act; float weight; int type = 0, to = 0;
};

template <bool SCALES, int TYPE, int N>
DEVICE void load_turn(turn<TYPE, N> &u, const turn_place<N> &p, const gpu_mat &m, int g, int t)
{
    few_load_weights(u.s, p.data, m, p.step, g, t);
#pragma unroll
    for (int i = 0; SCALES && i < N; i++) {
        const uint4 s = format<TYPE>::row_scale ? load16(p.data[i] + 16 * g) : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int r = 0; r < 4; r++)
            u.scale[i][r] = format<TYPE>::row_scale ? float_of(word_of(s, r)) : 1;
    }
}

/* Add the products of a turn to the sums of the lane's rows.  Finished sums are multiplied by
 * TURN_UNIT, and by the scales of rows unless SCALES. */
template <int TYPE>
constexpr float TURN_UNIT = format<ROOMY<TYPE>>::row_scale ? ACT_UNIT : FEW_UNIT<ROOMY<TYPE>>;
template <int TYPE, int N, bool WEIGHED, bool SCALES>
DEVICE void add_turn(float (&sum)[N][4], turn<TYPE, N> &u, const uint16_t *act, float weight, const gpu_mat &m, int t,
                     const wide_table &table)
{
    float c[N][1][2][4];
    for (int i = 0; i < N * 8; i++)
        (&c[0][0][0][0])[i] = SCALES ? 0 : sum[i / 8][i % 8 / 2];
    /* all columns of the product are the one token */
    const auto activations = [&](int, int, int k) { return load16(act + 32 * k + 8 * t); };
    few_load_acts(u.s, m, 0, activations);
    few_multiply(c, u.s, m, 0, t, table, activations);
#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
        for (int r = 0; r < 4; r++)
            sum[i][r] = SCALES ? fmaf(c[i][0][r / 2][r % 2 * 2], WEIGHED ? u.scale[i][r] * weight : u.scale[i][r],
                                      sum[i][r])
                               : c[i][0][r / 2][r % 2 * 2];
}

/* ---- turns of several formats ---- */

template <int TYPE> struct of_format { static constexpr int type = TYPE; };
/* Call f with the format of a matrix. */
template <class F> DEVICE void with_format(int type, F f)
{
    if (type == QT_NL4)
        f(of_format<QT_NL4>());
    else if (type == QT_M5)
        f(of_format<QT_M5>());
    else
        f(of_format<QT_M6>());
}

template <int TO, int FROM> DEVICE void copy_turn(turn<TO, 1> &to, const turn<FROM, 1> &from)
{
    constexpr int a = format<ROOMY<TO>>::raw, b = format<ROOMY<FROM>>::raw;
    static_assert(TURN_STEPS<TO> == TURN_STEPS<FROM>, "MIXED: turns have equally many steps");
#pragma unroll
    for (int k = 0; k < TURN_STEPS<TO>; k++)
#pragma unroll
        for (int i = 0; i < (a < b ? a : b); i++)
            to.s.raw[0][k].code[i] = from.s.raw[0][k].code[i];
    to.s.scales[0] = from.s.scales[0];
#pragma unroll
    for (int r = 0; r < 4; r++)
        to.scale[0][r] = from.scale[0][r];
}

template <bool SCALES> DEVICE void load_turn(turn<MIXED, 1> &u, const turn_place<1> &p, const gpu_mat &m, int g, int t)
{
    with_format(p.type, [&](auto f) {
        turn<decltype(f)::type, 1> own;
        load_turn<SCALES>(own, p, m, g, t);
        copy_turn(u, own);
    });
}

/* add_turn() to the sums of a unit. */
template <int TYPE, int LOADED, int N, bool WEIGHED>
DEVICE void add_turn_to(float (&sum)[N][4], turn<TYPE, LOADED> &u, const turn_place<LOADED> &p, const gpu_mat &m,
                        int t, const wide_table &table)
{
    if constexpr (TYPE == MIXED)
        with_format(p.type, [&](auto f) {
            constexpr int OF = decltype(f)::type;
            turn<OF, 1> own;
            float y[1][4] = {};
            copy_turn(own, u);
            add_turn<OF, 1, WEIGHED, true>(y, own, p.act, p.weight, m, t, table);
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int r = 0; r < 4; r++)
                    sum[n][r] += N == 1 || n == p.to ? y[0][r] : 0;
        });
    else
        add_turn<TYPE, N, WEIGHED, TURN_SCALES<TYPE, WEIGHED>>(sum, u, p.act, p.weight, m, t, table);
}

/* ---- units ---- */

/* A block's work of a stage is a list of units.  A unit is the turns first .. end - 1 of one tile.
 * Units follow each other without gaps, so each warp has every sixteenth turn of all.  JOB has
 *     WEIGHED                    whether a turn's sums are multiplied by its weight
 *     JOINS                      whether sums of other blocks are added
 *     n                          number of units
 *     range(i, first, end)       the turns of unit i
 *     place(i, turn)             the place of a turn; the tile of all turns of unit i is the same,
 *                                unless they have weights
 *     mat()                      a matrix with the shape of all tiles
 *     aim_at(i, k)               where row k of the tile goes, for thread k.  It is called long
 *                                before the sums are there, and may store what does not need them
 *     store(i, k, y[N], by[N], aim)  take the sums of this row, which are to be multiplied by `by`
 *  and if sums of other blocks are added
 *     n_after(i)                 number of blocks after this one that have parts of unit i
 *     sent(part, k)              the sums of matrix k that the block `part` after this one sends */
struct alignas(16) aim { float *to; float bias[2]; };
static_assert(sizeof(struct aim) == 16, "gpu_token_shared() has room for them");

template <int TYPE, int N, class JOB> struct units {
    static constexpr int LOADED = TYPE == MIXED ? 1 : N;        /* matrices of a turn */
    turn<TYPE, LOADED> u;
    turn_place<LOADED> at;              /* of the loaded turn */
    int i, q, end;                      /* the warp's next turn */
    float scale[N];                     /* of row threadIdx.x of the current unit, in the first warp */

    /* Load the scales of a unit's rows, which nothing has multiplied so far, and aim. */
    DEVICE void prepare(const JOB &job, int unit, aim *aims)
    {
        if (threadIdx.x < 32 && unit < job.n) {
            const aim a = job.aim_at(unit, threadIdx.x);
            aims[threadIdx.x].to = a.to;        /* the emulation does not see writes of a structure */
            aims[threadIdx.x].bias[0] = a.bias[0];
            aims[threadIdx.x].bias[1] = a.bias[1];
        }
        if constexpr (!TURN_SCALES<TYPE, JOB::WEIGHED> && format<ROOMY<TYPE>>::row_scale)
            if (threadIdx.x < 32 && unit < job.n) {
                const turn_place<N> p = job.place(unit, 0);
#pragma unroll
                for (int n = 0; n < N; n++)
                    scale[n] = reinterpret_cast<const float *>(p.data[n])[threadIdx.x];
            }
    }
    DEVICE void seek(const JOB &job)
    {
        while (q >= end && ++i < job.n) {
            job.range(i, q, end);
            q += ((int)threadIdx.x / 32 - q) & (WARPS - 1);
        }
        if (i < job.n) {
            at = job.place(i, q);
            load_turn<TURN_SCALES<TYPE, JOB::WEIGHED>>(u, at, job.mat(), threadIdx.x % 32 / 4, threadIdx.x % 4);
        }
    }
    /* Start to load the first turn.  A warp may have none, but all members are set: the compiler
     * keeps the register of a member that is not set through all other stages. */
    DEVICE void begin(const JOB &job, aim *aims)
    {
        u = {};
        at = {};
        i = -1;
        q = end = 0;
        for (int n = 0; n < N; n++)
            scale[n] = 1;
        seek(job);
        prepare(job, 0, aims);
    }
    /* Add the sums of other blocks, each to those of a warp: of those that had the fewest turns. */
    DEVICE void join(const JOB &job, int unit, float *sums)
    {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, which = (warp - job.end()) & (WARPS - 1);
        if (which >= N * job.n_after(unit))
            return;
        __syncwarp();                   /* the warp's sums are there */
        sums[(warp * N + which % N) * 32 + lane] += grid_receive(job.sent(1 + which / N, which % N) + lane);
    }
    /* Compute all units.  All threads call it, when the activations are in shared memory.
     *   room  [2][WARPS][N][32] floats */
    DEVICE void run(const JOB &job, const wide_table &table, aim *aims, float *room)
    {
        const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll 1
        for (int unit = 0; unit < job.n; unit++) {
            float sum[N][4] = {}, *const sums = room + unit % 2 * WARPS * N * 32;
#pragma unroll 1
            while (i == unit && q < end) {
                add_turn_to<TYPE, LOADED, N, JOB::WEIGHED>(sum, u, at, job.mat(), t, table);
                q += WARPS;
                seek(job);
            }
            if (t == 0)
                for (int n = 0; n < N; n++)
                    *reinterpret_cast<float4 *>(sums + (warp * N + n) * 32 + 4 * g) =
                        make_float4(sum[n][0], sum[n][1], sum[n][2], sum[n][3]);
            if constexpr (JOB::JOINS)
                join(job, unit, sums);
            __syncthreads();            /* the sums of all warps are there */
            if (threadIdx.x < 32) {
                float y[N], part[N][4] = {}, by[N];
#pragma unroll
                for (int w = 0; w < WARPS; w++)
                    for (int n = 0; n < N; n++)
                        part[n][w % 4] += sums[(w * N + n) * 32 + threadIdx.x];
                for (int n = 0; n < N; n++) {
                    y[n] = part[n][0] + part[n][1] + (part[n][2] + part[n][3]);
                    by[n] = scale[n] * TURN_UNIT<TYPE>;
                }
                job.store(unit, threadIdx.x, y, by, aims[threadIdx.x]);
                prepare(job, unit + 1, aims);
            }
        }
    }
};

/* This block's share of a division.  Its units are the tiles of which it has turns. */
struct block_turns {
    int n, first, end, tile;            /* tile: of the first unit */

    DEVICE block_turns(const gpu_turns &d)
    {
        first = min((int)blockIdx.x * d.share, d.n_tiles * d.per_tile);
        end = min(first + d.share, d.n_tiles * d.per_tile);
        tile = divided(first, d.by_tile);
        n = first < end ? divided(end - 1, d.by_tile) - tile + 1 : 0;
    }
    DEVICE void range(const gpu_turns &d, int i, int &from, int &to) const
    {
        from = max(first, (tile + i) * d.per_tile);
        to = min(end, (tile + i + 1) * d.per_tile);
    }
    /* The turns of a tile whose activations the block needs: without those of other blocks, if it
     * has one tile. */
    DEVICE void needed(const gpu_turns &d, int &from, int &to) const
    {
        from = n == 1 ? first - tile * d.per_tile : 0;
        to = n == 1 ? end - tile * d.per_tile : n * d.per_tile > 0 ? d.per_tile : 0;
    }
};

/* Sums over parts of k, [n_parts][ld], published in this phase. */
struct part_sums { float *part; unsigned phase; };

/* The place of row k of tile i in the block's part of the sum.  The block of the first part also
 * leaves zeros for those that no block has.  Only its first tile may have begun in another
 * block. */
DEVICE float *part_of(const gpu_turns &d, const block_turns &mine, int i, int k, const part_sums &parts)
{
    const int tile = mine.tile + i, ld = 32 * d.n_tiles,
              part = i > 0 ? 0 : (int)blockIdx.x - divided(tile * d.per_tile, d.by_share);
    float *const to = parts.part + 32 * tile + k;
    if (part > 0)
        return to + part * ld;
    const int n = divided((tile + 1) * d.per_tile - 1, d.by_share) - (int)blockIdx.x + 1;
    for (int z = n; z < d.parts; z++)
        grid_publish(to + z * ld, 0, parts.phase);
    return to;
}

/* Matrices that read the same input and differ in their rows alone: q, k and v, or o. */
template <int TYPE> struct linear_job {
    static constexpr bool WEIGHED = false, JOINS = false;
    const gpu_turns &d;
    const gpu_mat *w;
    const float *const *bias;
    const uint16_t *act;
    part_sums parts;
    block_turns mine;
    int n;

    DEVICE linear_job(const gpu_turns &d_, const gpu_mat *w_, const float *const *bias_, const uint16_t *act_,
                      part_sums parts_)
        : d(d_), w(w_), bias(bias_), act(act_), parts(parts_), mine(d_), n(mine.n) {}
    DEVICE const gpu_mat &mat() const { return w[0]; }
    DEVICE void range(int i, int &first, int &end) const { mine.range(d, i, first, end); }
    DEVICE turn_place<1> place(int i, int turn) const
    {
        int tile = mine.tile + i, which = 0;
        const int step = (turn - tile * d.per_tile) * TURN_STEPS<TYPE>;
        while (tile >= w[which].n_tiles)
            tile -= w[which++].n_tiles;
        return { { w[which].data + (size_t)tile * w[which].tile_bytes }, step, act + step * 32, 1,
                 w[which].type };
    }
    DEVICE bool is_first(int i) const   /* the part of unit i is the first one of its tile */
    {
        int from, to;
        range(i, from, to);
        return from == (mine.tile + i) * d.per_tile;
    }
    DEVICE aim aim_at(int i, int k) const
    {
        int tile = mine.tile + i, which = 0;
        while (tile >= w[which].n_tiles)
            tile -= w[which++].n_tiles;
        const int row = 32 * tile + k;
        return { part_of(d, mine, i, k, parts),
                 { is_first(i) && bias[which] && row < w[which].rows ? bias[which][row] : 0, 0 } };
    }
    DEVICE float store(int, int, const float (&y)[1], const float (&by)[1], const aim &a) const
    {
        const float sum = fmaf(y[0], by[0], a.bias[0]);
        grid_publish(a.to, sum, parts.phase);
        return sum;
    }
};

/* o of a layer with experts: also what the parts add to the residual, and the first ones the
 * residual itself, times the factors of the next norm. */
template <int TYPE> struct o_job : linear_job<TYPE> {
    const float *x, *factors;
    float scale, offset;
    float *added;

    DEVICE o_job(const linear_job<TYPE> &job, const float *x_, const float *factors_, float scale_, float offset_,
                     float *added_)
        : linear_job<TYPE>(job), x(x_), factors(factors_), scale(scale_), offset(offset_), added(added_) {}
    DEVICE void store(int i, int k, const float (&y)[1], const float (&by)[1], const aim &a) const
    {
        const int row = 32 * (this->mine.tile + i) + k;
        const float part = linear_job<TYPE>::store(i, k, y, by, a);
        added[row] = fmaf(scale, part, this->is_first(i) ? x[row] : 0) * (factors ? factors[row] + offset : 1);
    }
};

/* An expert that the token has chosen: its matrices, the factor on its result, and its number.  A
 * dense layer has one. */
struct chosen { const uint8_t *gate, *up, *down; float weight; int expert; };
static_assert(sizeof(struct chosen) == 4 * sizeof(void *), "gpu_token_shared() has room for them");

/* The activation of most models, in a quarter of the time of activation(). */
enum { SILU };                          /* CONFIG_ACT_SILU */
DEVICE float fast_silu(float x) { return EITHER(__fdividef(x, 1 + __expf(-x)), x / (1 + expf(-x))); }

/* Gate and up of all chosen experts, one after the other. */
template <int TYPE> struct up_job {
    static constexpr bool WEIGHED = false, JOINS = true;
    const gpu_turns &d;
    const gpu_experts &o;
    const chosen *c;
    const uint16_t *act;
    float *parts, *h;                   /* gpu_token_step.gate_parts and .h */
    unsigned phase;                     /* of h */
    uint32_t by_tiles;
    block_turns mine;
    int n;

    DEVICE up_job(const gpu_token_step &s, const gpu_experts &o_, const chosen *c_, const uint16_t *act_,
                  unsigned phase_)
        : d(s.up), o(o_), c(c_), act(act_), parts(s.gate_parts), h(s.h), phase(phase_), by_tiles(s.by_tiles),
          mine(s.up), n(mine.n) {}
    DEVICE const gpu_mat &mat() const { return o.w[0].w; }
    /* MIXED: gate and up in turn, and a warp has both in turn */
    static constexpr int TURNS = 2 / PAIR<TYPE>;
    DEVICE void range(int i, int &first, int &end) const
    {
        mine.range(d, i, first, end);
        first *= TURNS, end *= TURNS;
    }
    DEVICE turn_place<PAIR<TYPE>> place(int i, int turn) const
    {
        const int tile = mine.tile + i, at = divided(tile, by_tiles), in_expert = tile - at * mat().n_tiles,
                  step = (turn / TURNS - tile * d.per_tile) * TURN_STEPS<TYPE>;
        if constexpr (TYPE == MIXED) {
            const int which = (turn ^ turn / WARPS) & 1;
            const gpu_mat &m = o.w[which].w;
            return { { (which ? c[at].up : c[at].gate) + (size_t)in_expert * m.tile_bytes }, step, act + step * 32, 1,
                     m.type, which };
        } else {
            const size_t to = (size_t)in_expert * mat().tile_bytes;
            return { { c[at].gate + to, c[at].up + to }, step, act + step * 32, 1 };
        }
    }
    /* The first part of a tile is the last unit of its block; other parts are the first ones of
     * theirs. */
    DEVICE bool is_first(int i) const { return i > 0 || mine.first == mine.tile * d.per_tile; }
    DEVICE int end() const { return mine.end * TURNS; }
    DEVICE int n_after(int i) const
    {
        return i == n - 1 && is_first(i) ? divided((mine.tile + n) * d.per_tile - 1, d.by_share) - (int)blockIdx.x : 0;
    }
    DEVICE float *sent(int part, int k) const { return parts + ((blockIdx.x + part) * 2 + k) * 32; }
    DEVICE aim aim_at(int i, int k) const
    {
        const int tile = mine.tile + i, at = divided(tile, by_tiles), row = (tile - at * mat().n_tiles) * 32 + k,
                  expert = c[at].expert;
        if (!is_first(i))
            return { sent(0, 0) + k, { 0, 0 } };
        /* rows are whole tiles: they are columns of down, which are whole turns */
        return { h + 32 * tile + k,
                 { expert_biased(o.w[0], expert, row, 0), expert_biased(o.w[1], expert, row, 0) } };
    }
    DEVICE void store(int i, int, const float (&y)[2], const float (&by)[2], const aim &a) const
    {
        if (is_first(i)) {
            const float gate = fmaf(y[0], by[0], a.bias[0]), up = fmaf(y[1], by[1], a.bias[1]);
            /* no weights on the input: pair 0 is not read */
            grid_publish(a.to, o.function == SILU && o.alpha <= 0 ? fast_silu(gate) * up
                                                                  : expert_activation(o, 0, gate, up), phase);
        } else {
            grid_send(a.to, y[0]);
            grid_send(a.to + 32, y[1]);
        }
    }
};

/* Down: the products of all chosen experts are one sum.  Its k are those of the first expert, then
 * those of the second, and so on. */
template <int TYPE> struct down_job {
    static constexpr bool WEIGHED = true, JOINS = false;
    const gpu_turns &d;
    const gpu_mat &w;
    const chosen *c;
    const uint16_t *act;
    part_sums parts;
    uint32_t by_turns;
    block_turns mine;
    int n;

    DEVICE down_job(const gpu_token_step &s, const gpu_mat &w_, const chosen *c_, const uint16_t *act_, unsigned phase)
        : d(s.down), w(w_), c(c_), act(act_), parts{ s.down_parts, phase }, by_turns(s.by_turns), mine(s.down),
          n(mine.n) {}
    DEVICE const gpu_mat &mat() const { return w; }
    DEVICE void range(int i, int &first, int &end) const { mine.range(d, i, first, end); }
    DEVICE turn_place<1> place(int i, int turn) const
    {
        const int in_tile = turn - (mine.tile + i) * d.per_tile, at = divided(in_tile, by_turns),
                  step = in_tile * TURN_STEPS<TYPE>;
        return { { c[at].down + (size_t)(mine.tile + i) * w.tile_bytes }, step - at * w.n_steps, act + step * 32,
                 c[at].weight, w.type };
    }
    DEVICE aim aim_at(int i, int k) const { return { part_of(d, mine, i, k, parts), { 0, 0 } }; }
    DEVICE void store(int, int, const float (&y)[1], const float (&by)[1], const aim &a) const
    {
        grid_publish(a.to, y[0] * by[0], parts.phase);
    }
};

/* ---- the residual ---- */

/* Parts of sums that another stage has left. */
struct pending_parts { part_sums of; int n, ld; float scale; };

/* Columns of a row, which are the same in all rows: a warp has 256 in each of NORM_RUNS runs, and a
 * lane twice four, so that the lanes of a load read 512 bytes that follow each other.  Rows of 2048
 * leave the first warps without columns: they choose the experts. */
enum { FOUR = 4, NEXT_FOUR = 32 * FOUR, FIRST_WITH_COLUMNS = 4 /* warp */ };
static_assert(NORM_RUN == 2 * FOUR, "a run of a thread is twice four columns");
DEVICE int columns_of_warp(int i)
{
    return i * THREADS * NORM_RUN + (threadIdx.x / 32 + WARPS - FIRST_WITH_COLUMNS) % WARPS * 32 * NORM_RUN;
}
DEVICE int column(int i, int j) { return columns_of_warp(i) + threadIdx.x % 32 * FOUR + j / FOUR * NEXT_FOUR; }
/* Whether a warp has columns in run i of a row: the others do nothing. */
DEVICE bool has_run(int i, int cols) { return columns_of_warp(i) < cols; }

/* v += scale * each of up to MOST parts, for FOURS times four columns from k on. */
template <int MOST, int FOURS> DEVICE void add_columns(float *v, const pending_parts &p, int k, int cols)
{
    float4 y[FOURS * MOST];
    /* in place of a part or of columns that are not there, the first ones again */
    const auto there = [&](int four) { return four == 0 || k + four * NEXT_FOUR < cols; };
    const auto place = [&](int i) {
        return p.of.part + (i / FOURS < p.n ? i / FOURS * p.ld : 0) + k +
               (there(i % FOURS) ? i % FOURS * NEXT_FOUR : 0);
    };
    grid_collect(y, p.of.phase, place);
#pragma unroll
    for (int i = 0; i < FOURS * MOST; i++) {
        const float by = there(i % FOURS) && i / FOURS < p.n ? p.scale : 0;
        float *const to = v + FOUR * (i % FOURS);
        to[0] = fmaf(by, y[i].x, to[0]);
        to[1] = fmaf(by, y[i].y, to[1]);
        to[2] = fmaf(by, y[i].z, to[2]);
        to[3] = fmaf(by, y[i].w, to[3]);
    }
}

DEVICE void load_columns(norm_runs &v, const float *from, int cols)
{
#pragma unroll
    for (int i = 0; i < NORM_RUNS; i++) {
#pragma unroll
        for (int j = 0; j < NORM_RUN; j++)
            v[i][j] = 0;
        if (!has_run(i, cols))
            continue;
#pragma unroll
        for (int j = 0; j < NORM_RUN; j += FOUR)
            if (column(i, j) < cols) {
                const float4 x = *reinterpret_cast<const float4 *>(from + column(i, j));
                v[i][j] = x.x, v[i][j + 1] = x.y, v[i][j + 2] = x.z, v[i][j + 3] = x.w;
            }
    }
}
DEVICE void store_columns(float *to, const norm_runs &v, int cols)
{
#pragma unroll
    for (int i = 0; i < NORM_RUNS; i++) {
        if (!has_run(i, cols))
            continue;
#pragma unroll
        for (int j = 0; j < NORM_RUN; j += FOUR)
            if (column(i, j) < cols)
                *reinterpret_cast<float4 *>(to + column(i, j)) =
                    make_float4(v[i][j], v[i][j + 1], v[i][j + 2], v[i][j + 3]);
    }
}

/* x += scale * (sum over the parts), with the result in v as well.  A lane waits for a word first:
 * all blocks read the whole row, and loads of words that have not come would delay others. */
DEVICE void add_pending(norm_runs &v, float *x, const pending_parts &p, int cols)
{
    load_columns(v, x, cols);
    if (!p.n)
        return;
    if (has_run(0, cols) && threadIdx.x % 32 == 0) {
        float4 y[1];
        grid_collect(y, p.of.phase, [&](int) { return p.of.part + column(0, 0); });
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < NORM_RUNS; i++) {
        const int k = column(i, 0);
        if (!has_run(i, cols) || k >= cols)
            continue;
        if (p.n <= 2) {
            add_columns<2, 2>(v[i], p, k, cols);
        } else {
            add_columns<GPU_TURN_PARTS, 1>(v[i], p, k, cols);
            if (k + NEXT_FOUR < cols)
                add_columns<GPU_TURN_PARTS, 1>(v[i] + FOUR, p, k + NEXT_FOUR, cols);
        }
    }
    store_columns(x, v, cols);
}

/* Store a warp's sum of squares of row v.  squares: [WARPS]. */
DEVICE void store_squares(const norm_runs &v, int cols, float *squares)
{
    float sum = 0;
#pragma unroll
    for (int i = 0; i < NORM_RUNS; i++)
#pragma unroll
        for (int j = 0; j < NORM_RUN && has_run(i, cols); j++)
            sum = fmaf(v[i][j], v[i][j], sum);
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0)
        squares[threadIdx.x / 32] = sum;
}
/* The factor of the norm of a row without its weights, from the sums of all warps.  part:
 * 1 / columns. */
DEVICE float inverse_of(const struct gpu_norm &o, float part, const float *squares)
{
    float sum[FOUR] = {};
    static_assert(WARPS % FOUR == 0, "the sums are loaded by fours");
#pragma unroll
    for (int i = 0; i < WARPS; i += FOUR) {
        const uint4 four = load16(squares + i);
#pragma unroll
        for (int k = 0; k < FOUR; k++)
            sum[k] += float_of(word_of(four, k));
    }
    return rsqrtf(fmaf(sum[0] + sum[1] + (sum[2] + sum[3]), part, o.eps));
}

/* Four neighbours as f16 in the order GPU_ACT_LANES, in which the k-th of eight stands beside the
 * (k + 4)-th: lanes exchange half of them in pairs, and 8 bytes of the result are theirs.  All
 * lanes call it, with multiples of ACT_UNIT. */
DEVICE uint2 in_lanes_order(float a, float b, float c, float d)
{
    const uint32_t low = pack_half_clamped(a, b), high = pack_half_clamped(c, d);
    const bool odd = threadIdx.x & 1;
    const uint32_t got = __shfl_xor_sync(FULL_WARP, odd ? low : high, 1), first = odd ? got : low,
                   second = odd ? high : got;
    return make_uint2(prmt(first, second, 0x5410), prmt(first, second, 0x7632));
}

/* Store the normed row v in act, in the order GPU_ACT_LANES.  w: factors. */
DEVICE void store_normed(const norm_runs &v, const norm_runs &w, const struct gpu_norm &o, float inverse,
                         uint16_t *act)
{
    const float by = inverse * (1 / ACT_UNIT), offset = o.w ? o.offset : 0;
#pragma unroll
    for (int i = 0; i < NORM_RUNS; i++) {
        if (!has_run(i, o.cols))
            continue;
#pragma unroll
        for (int j = 0; j < NORM_RUN; j += FOUR) {
            float y[FOUR];
#pragma unroll
            for (int k = 0; k < FOUR; k++)
                y[k] = v[i][j + k] * by * (w[i][j + k] + offset);
            const uint2 pairs = in_lanes_order(y[0], y[1], y[2], y[3]);
            if (column(i, j) < o.cols)
                *reinterpret_cast<uint2 *>(act + column(i, j)) = pairs;
        }
    }
    __syncthreads();                    /* the row is there, and the sums of its squares are read */
}

DEVICE float norm_row(const norm_runs &v, const norm_runs &w, const struct gpu_norm &o, float part, uint16_t *act,
                      float *squares)
{
    store_squares(v, o.cols, squares);
    __syncthreads();                    /* the sums of all warps are there */
    const float inverse = inverse_of(o, part, squares);
    store_normed(v, w, o, inverse, act);
    return inverse;
}

/* The factors of a norm, which stand in `from`; NULL: all are 1. */
DEVICE void load_factors(norm_runs &w, const float *from, int cols)
{
    if (from)
        return load_columns(w, from, cols);
#pragma unroll
    for (int i = 0; i < NORM_RUNS * NORM_RUN; i++)
        w[i / NORM_RUN][i % NORM_RUN] = 1;
}

/* Collect the activations that the block's turns of a tile need; act: in the order GPU_ACT_LANES.
 * A lane has twice four, as of a row.  The threads' copies are there as well. */
template <int TYPE>
DEVICE void collect_act(uint16_t *act, const float *from, const gpu_turns &d, const block_turns &mine, unsigned phase)
{
    int first, end;
    mine.needed(d, first, end);
    first *= TURN_STEPS<TYPE> * 32, end *= TURN_STEPS<TYPE> * 32;
    const int lane = threadIdx.x % 32 * FOUR;
#pragma unroll 1
    for (int k = first + threadIdx.x / 32 * 2 * NEXT_FOUR; k < end; k += WARPS * 2 * NEXT_FOUR) {
        float4 y[2];
        /* there are 128, or of i8 maybe 64 */
        grid_collect(y, phase, [&](int i) { return from + min(k + i * NEXT_FOUR + lane, end - FOUR); });
#pragma unroll
        for (int i = 0; i < 2; i++) {
            constexpr float UNITS = 1 / ACT_UNIT;
            const uint2 pairs = in_lanes_order(y[i].x * UNITS, y[i].y * UNITS, y[i].z * UNITS, y[i].w * UNITS);
            if (k + i * NEXT_FOUR + lane < end)
                *reinterpret_cast<uint2 *>(act + k + i * NEXT_FOUR + lane) = pairs;
        }
    }
    copy_wait<0>();
    __syncthreads();                    /* the activations and the copies of all threads are there */
}

/* ---- the router ---- */

/* A product with the router's matrix is linear, so each block multiplies its own part of the sum
 * that becomes the residual by the columns for its rows, and adds the results to those of other
 * blocks.  The factor of the norm is the same for all outputs, and follows.  Outputs are added as
 * multiples of the unit 1 / gpu_token_step.unit, a power of two about 2^30 times smaller than 1 in
 * the normed row before attention.  A NaN becomes the smallest number; one of the residual is in
 * the factor of the norm, too. */
constexpr float UNITS_OF_ONE = 1 << 30, MOST_UNITS = 1ull << 51;        /* of a block: the sum of all fits */

DEVICE float output_unit(float inverse) { return float_of(bits_of(inverse) & 0x7f800000) * UNITS_OF_ONE; }
DEVICE long long in_units(float x)
{
    const float in_range = fminf(fmaxf(x, -MOST_UNITS), MOST_UNITS);
    return EITHER(__float2ll_rn(in_range), llrintf(in_range));
}

/* Start to copy the router's columns for the rows of a tile of o to [tiles][32][GPU_TOKEN_PITCH]:
 * row 8 * s + j is at 4 * j + s, so that the four shares of a warp read different banks. */
DEVICE void copy_columns(float *to, const gpu_mat &m, int tile)
{
    enum { CHUNKS = 32 * 32 / 4, AT_ONCE = THREADS / CHUNKS };  /* of a tile, 16 bytes each */
    const int chunk = threadIdx.x % CHUNKS, first = threadIdx.x / CHUNKS, row = chunk / 8;
    const uint8_t *from = m.data + first * (size_t)m.tile_bytes + (tile * CHUNKS + chunk) * 16;
    to += (first * 32 + row % 8 * 4 + row / 8) * GPU_TOKEN_PITCH + chunk % 8 * 4;
#pragma unroll 1
    for (int i = first; i < m.n_tiles; i += AT_ONCE) {
        copy_async(to, from);
        to += AT_ONCE * 32 * GPU_TOKEN_PITCH;
        from += AT_ONCE * (size_t)m.tile_bytes;
    }
}

/* Add this block's part of the outputs.  added: its rows of the sum times the factors of the norm,
 * n tiles from tile `first` on; columns: of the first of them.  A warp computes eight outputs, with
 * eight rows in a lane: their order in `columns` avoids bank conflicts. */
DEVICE void add_outputs(const gpu_route &r, const float *added, const float *columns, int first, int n, float unit,
                        unsigned long long *outputs)
{
    const gpu_mat &m = r.w[0];
    const int lane = threadIdx.x % 32, share = lane / 8;
    outputs += blockIdx.x % GPU_TOKEN_COPIES * 32 * m.n_tiles;
    added += 32 * first + 8 * share;
#pragma unroll 1
    for (int at = threadIdx.x / 32; at < 4 * m.n_tiles && n > 0; at += WARPS) {
        const int column = at % 4 * 8 + lane % 8;
        const float *const w = columns + (at / 4 * 32 + share) * GPU_TOKEN_PITCH + column;
        const uint4 y[2] = { load16(added), load16(added + 4) };
        float sum = 0;
#pragma unroll
        for (int j = 0; j < 8; j++)
            sum = fmaf(w[4 * j * GPU_TOKEN_PITCH], float_of(word_of(y[j / 4], j % 4)), sum);
#pragma unroll 1
        for (int i = 1; i < n; i++) {
            const float *const tile = reinterpret_cast<const float *>(m.data + (size_t)(at / 4) * m.tile_bytes) +
                                      ((first + i) * 32 + 8 * share) * 32 + column;
#pragma unroll
            for (int j = 0; j < 8; j++)
                sum = fmaf(tile[j * 32], added[32 * i + j], sum);
        }
        for (int i = 8; i < 32; i *= 2)
            sum += __shfl_xor_sync(FULL_WARP, sum, i);
        if (share == 0)
            grid_add(outputs + 8 * at + lane % 8, in_units(sum * unit));
    }
}

/* ---- the kernel ---- */

/* The barrier of the launch; n: this block's arrivals so far. */
struct barrier {
    unsigned *arrived, n;

    /* Arrive by the first warp, while the others go on: they have read the words of others before a
     * barrier of the block. */
    DEVICE void arrive()
    {
        if (threadIdx.x < 32)
            grid_arrive(arrived);
        n++;
    }
    DEVICE void wait() const { grid_wait(arrived, n); }
    /* Wait, if a barrier of the block comes before this thread relies on it. */
    DEVICE void wait_by_last_warp() const
    {
        if (threadIdx.x / 32 == WARPS - 1)
            grid_wait_by_warp(arrived, n);
    }
};

/* Copy the description of a layer to shared memory. */
DEVICE void copy_layer(gpu_token_layer *to, const gpu_token_layer *from)
{
    static_assert(sizeof(gpu_token_layer) % 16 == 0, "copies have 16 bytes");
    for (int i = threadIdx.x; i < (int)(sizeof(gpu_token_layer) / 16); i += THREADS)
        copy_async(reinterpret_cast<uint4 *>(to) + i, reinterpret_cast<const uint4 *>(from) + i);
    copy_commit();
}

/* The shared memory of a block.  The arguments of the launch are there, too, because loads from
 * shared memory stay in their stage.  The compiler would move all that depends on arguments in
 * constant memory out of the loop over layers, and keep it in registers. */
struct block_room {
    gpu_token_step &o;

    DEVICE uint8_t *at(uint32_t offset) const
    {
        SHARED(uint8_t, shared);
        return shared + offset;
    }
    DEVICE gpu_token_layer &layer(int i) const { return reinterpret_cast<gpu_token_layer *>(at(o.room.layers))[i % 2]; }
    DEVICE float *x() const { return reinterpret_cast<float *>(at(o.room.x)); }
    DEVICE float *added() const { return reinterpret_cast<float *>(at(o.room.added)); }
    DEVICE float *factors() const { return reinterpret_cast<float *>(at(o.room.factors)); }
    DEVICE float *router() const { return reinterpret_cast<float *>(at(o.room.router)); }
    DEVICE uint16_t *act() const { return reinterpret_cast<uint16_t *>(at(o.room.act)); }
    DEVICE float *sums() const { return reinterpret_cast<float *>(at(o.room.sums)); }
    DEVICE float *room() const { return reinterpret_cast<float *>(at(o.room.room)); }
    DEVICE aim *aims() const { return reinterpret_cast<aim *>(at(o.room.aims)); }
    DEVICE float *squares() const { return reinterpret_cast<float *>(at(o.room.squares)); }
    DEVICE int32_t *pos() const { return reinterpret_cast<int32_t *>(experts() + o.top_k); }
    DEVICE int32_t *table_of() const { return pos() + 1; }
    /* of the first job of attention, and of two others in turn */
    DEVICE int32_t *kv_blocks() const { return pos() + 4; }
    DEVICE chosen *experts() const { return reinterpret_cast<chosen *>(at(o.room.choice)); }
};

/* The stages of a layer.  at: the number of the layer, counted since the first step, modulo 4: what
 * it publishes has the phase at % 2. */

template <int TYPE>
DEVICE void run_qkv(const block_room &r, const gpu_token_layer &l, const wide_table &table, unsigned at, bool first)
{
    const gpu_token_step &o = r.o;
    const linear_job<TYPE> job(o.qkv, l.qkv, l.qkv_bias, r.act(), { o.qkv_parts, at % 2 });
    units<TYPE, 1, linear_job<TYPE>> u;
    norm_runs v, w;
    u.begin(job, r.aims());
    load_factors(w, l.attn_norm.w, o.hidden);
    add_pending(v, r.x(), { { o.down_parts, ~at % 2 }, first ? 0 : o.down.parts, 32 * o.down.n_tiles, o.scale },
                o.hidden);
    const float inverse = norm_row(v, w, l.attn_norm, o.part, r.act(), r.squares());
    if (threadIdx.x == 0)
        r.o.unit = output_unit(inverse);
    u.run(job, table, r.aims(), r.sums());
}

DEVICE token_sums sums_of(const block_room &r, const gpu_attention &o)
{
    return { r.o.sums, (unsigned)o.head_dim / 32, (unsigned)r.o.n_splits };
}

/* Attention of this block's splits. */
DEVICE void attend(const block_room &r, const gpu_token_layer &l, unsigned at)
{
    const gpu_attention &o = l.attention;
    int32_t *kv = r.kv_blocks();        /* of the first job, which has them in all layers */
    int job = blockIdx.x;
    /* in the order of splits: their number is padded, so the last ones may have no positions */
#pragma unroll 1
    for (int i = 0; job < o.n_kv_heads * r.o.n_splits; i++, job += gridDim.x) {
        const int split = divided(job, r.o.by_kv_heads);
        if (i) {
            kv = r.kv_blocks() + (1 + i % 2) * SPLIT_KV;
            find_kv_blocks(kv, o.step, split << r.o.log_split);
            __syncthreads();            /* the job before has read its room, and the numbers are there */
        }
        attend_to_split(o, token_split(o, r.o.share, job - split * o.n_kv_heads, split, r.o.log_split), kv,
                        sums_of(r, o), at % 2, reinterpret_cast<uint8_t *>(r.sums()));
    }
    if (job != (int)blockIdx.x)
        __syncthreads();                /* the last one has read its room */
}

/* Merge the splits of attention.  The last blocks begin: they mostly have had no split. */
DEVICE void merge_heads(const block_room &r, const gpu_token_layer &l, unsigned at)
{
    const gpu_attention &o = l.attention;
    const token_sums all = sums_of(r, o);
    const int pos = *r.pos(), first = first_seen(pos, o.window, o.chunk) >> r.o.log_split,
              n = (pos >> r.o.log_split) - first + 1;
    /* behind the sums of q, k and v, which the first warp may still read */
    float *const room = r.sums() + 2 * WARPS * 32;
    static_assert(WARPS * GPU_TOKEN_SUM <= 2 * WARPS * 32, "the sums of gate and up have as much room again");
#pragma unroll 1
    for (int i = gridDim.x - 1 - blockIdx.x; i < o.n_heads * (int)all.n_32; i += gridDim.x) {
        const int head = divided(i, r.o.by_32s);
        merge_splits(r.o.att + 32 * i, at % 2, all, o.sinks, head, i - head * all.n_32, first, n, room);
    }
}

/* Parts of o go to two buffers in turn, each of which has the other phase each time.  They are
 * collected after the block has arrived at the barrier, and before it waits there. */
DEVICE part_sums o_parts_of(const gpu_token_step &o, unsigned at)
{
    return { o.o_parts + at % 2 * GPU_TURN_PARTS * 32 * o.o.n_tiles, (at + 1) / 2 % 2 };
}

template <int TYPE>
DEVICE linear_job<TYPE> o_of(const block_room &r, const gpu_token_layer &l, unsigned at)
{
    return { r.o.o, &l.o, &l.o_bias, r.act(), o_parts_of(r.o, at) };
}

template <int TYPE>
DEVICE void run_o(const block_room &r, const gpu_token_layer &l, const wide_table &table, unsigned at)
{
    const linear_job<TYPE> job = o_of<TYPE>(r, l, at);
    units<TYPE, 1, linear_job<TYPE>> u;
    u.begin(job, r.aims());
    merge_heads(r, l, at);
    collect_act<TYPE>(r.act(), r.o.att, job.d, job.mine, at % 2);
    u.run(job, table, r.aims(), r.sums());
}

DEVICE unsigned long long *outputs_of(const gpu_token_step &o, unsigned at)
{
    return o.outputs + at % 4 * GPU_TOKEN_COPIES * 32 * o.lists;
}

/* Wait for output i of the router: the sum of its copies.  Each block that has turns of o adds to
 * one. */
DEVICE long long added_output(const gpu_token_step &o, unsigned at, int i)
{
    const unsigned long long *const outputs = outputs_of(o, at) + i;
    const auto copy = [&](int c) { return outputs + c * 32 * o.lists; };
    const auto blocks = [&](int c) { return (o.o_blocks + GPU_TOKEN_COPIES - 1 - c) / GPU_TOKEN_COPIES; };
    return grid_total<GPU_TOKEN_COPIES>(copy, blocks);
}

/* o of a layer with experts, and the outputs of its router. */
template <int TYPE>
DEVICE void run_o_and_router(const block_room &r, const gpu_token_layer &l, const wide_table &table, unsigned at)
{
    const struct gpu_norm &norm = l.mlp_norm;
    const o_job<TYPE> job(o_of<TYPE>(r, l, at), r.x(), norm.w ? r.factors() : nullptr, r.o.scale, norm.offset,
                          r.added());
    units<TYPE, 1, o_job<TYPE>> u;
    u.begin(job, r.aims());
#pragma unroll 1
    for (int i = 4 * threadIdx.x; i < r.o.hidden && norm.w; i += 4 * THREADS)
        copy_async(r.factors() + i, norm.w + i);
    if (job.n > 0)
        copy_columns(r.router(), l.route.w[0], job.mine.tile);
    copy_commit();
    merge_heads(r, l, at);
    collect_act<TYPE>(r.act(), r.o.att, job.d, job.mine, at % 2);
    u.run(job, table, r.aims(), r.sums());
    __syncthreads();                    /* the rows are there */
    add_outputs(l.route, r.added(), r.router(), job.mine.tile, job.n, r.o.unit, outputs_of(r.o, at));
}

/* Clear the outputs of the layer after the next one, which all blocks have read in the last one but
 * one. */
DEVICE void clear_outputs(const gpu_token_step &o, unsigned at)
{
    unsigned long long *const to = outputs_of(o, at + 2);
    if (blockIdx.x == gridDim.x - 1)
        for (int k = threadIdx.x; k < GPU_TOKEN_COPIES * 32 * o.lists; k += THREADS)
            to[k] = 0;
}

/* x += parts of o. */
DEVICE void add_o(norm_runs &v, const block_room &r, unsigned at)
{
    const gpu_token_step &o = r.o;
    add_pending(v, r.x(), { o_parts_of(o, at), o.o.parts, 32 * o.o.n_tiles, o.scale }, o.hidden);
}

DEVICE chosen chosen_of(const gpu_token_layer &l, int expert)
{
    return { expert_rows(l.up.w[0], expert, 0), expert_rows(l.up.w[1], expert, 0), expert_rows(l.down, expert, 0), 1,
             expert };
}

/* 1 as an output of the router: the inverse of a power of two. */
DEVICE float one_output(const block_room &r) { return float_of(0x7f000000u - bits_of(r.o.unit)); }

/* The result of the choice of experts, beside the experts: raw, as in choose_ids(); the factor of
 * the norm, unless raw; in warp CHOICE_WEIGHING the argument of weigh_only(). */
struct choice { bool raw; float inverse; int id; };

/* Choose the experts, when the parts of o and the router's outputs are there.  The first warps
 * choose, while others add the parts and their squares; only with biases or a correction the order
 * of experts depends on the norm, which then comes first. */
DEVICE choice choose(const block_room &r, const gpu_token_layer &l, const barrier &all, unsigned at)
{
    enum { CHOOSING = 4 };              /* warps: a warpgroup */
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const float *const bias = l.route.bias[0];
    const float unit = one_output(r);
    norm_runs v;
    choice c = { !bias && !l.route.correction, 1, 0 };
    if (!c.raw) {
        add_o(v, r, at);
        store_squares(v, r.o.hidden, r.squares());
        __syncthreads();                /* the sums of all warps are there */
        c.inverse = inverse_of(l.mlp_norm, r.o.part, r.squares());
    }
    if (warp < CHOOSING) {
        c.id = choose_ids<CHOOSING>(l.route, r.room(), c.raw, [&](int i) {
            const float x = (float)added_output(r.o, at, i) * unit * c.inverse;
            return bias ? x + bias[i] : x;
        }, [] { warpgroup_sync(0); });
        if (warp == CHOICE_SORTING && lane < l.route.top_k)
            r.experts()[lane] = chosen_of(l, c.id);
    }
    if (c.raw) {
        add_o(v, r, at);
        store_squares(v, r.o.hidden, r.squares());
    }
    all.wait_by_last_warp();
    __syncthreads();                    /* the experts and the sums of all warps are there */
    return c;
}

/* Weigh the experts, which only down needs. */
DEVICE void weigh(const block_room &r, const gpu_token_layer &l, const choice &c, float inverse)
{
    if (threadIdx.x / 32 != CHOICE_WEIGHING)
        return;
    const float weight = weigh_only(l.route, r.room(), c.raw, inverse, c.id);
    if ((int)threadIdx.x < l.route.top_k)
        r.experts()[threadIdx.x].weight = weight;
}

/* The only expert of a dense layer.  Barriers of other stages follow before it is read. */
DEVICE void choose_dense(const block_room &r, const gpu_token_layer &l)
{
    if (threadIdx.x == 0)
        r.experts()[0] = chosen_of(l, 0);
}

template <int TYPE>
DEVICE void run_up(const block_room &r, const gpu_token_layer &l, const wide_table &table, const barrier &all,
                   unsigned at)
{
    const up_job<TYPE> job(r.o, l.up, r.experts(), r.act(), at % 2);
    units<TYPE, 2, up_job<TYPE>> u;
    norm_runs v, w;
    u.begin(job, r.aims());
    load_factors(w, l.mlp_norm.w, r.o.hidden);
    add_o(v, r, at);
    all.wait_by_last_warp();
    norm_row(v, w, l.mlp_norm, r.o.part, r.act(), r.squares());
    u.run(job, table, r.aims(), r.sums());
}

/* Of the chosen experts.  The first weights are loaded before the experts are weighed, and the row
 * normed. */
template <int TYPE>
DEVICE void run_experts_up(const block_room &r, const gpu_token_layer &l, const wide_table &table, const barrier &all,
                           unsigned at)
{
    const choice c = choose(r, l, all, at);
    const up_job<TYPE> job(r.o, l.up, r.experts(), r.act(), at % 2);
    units<TYPE, 2, up_job<TYPE>> u;
    norm_runs v, w;
    u.begin(job, r.aims());
    const float inverse = inverse_of(l.mlp_norm, r.o.part, r.squares());
    weigh(r, l, c, inverse);
    load_columns(v, r.x(), r.o.hidden);
    load_factors(w, l.mlp_norm.w ? r.factors() : nullptr, r.o.hidden);
    store_normed(v, w, l.mlp_norm, inverse, r.act());
    u.run(job, table, r.aims(), r.sums());
}

template <int TYPE>
DEVICE void run_down(const block_room &r, const gpu_token_layer &l, const wide_table &table, unsigned at)
{
    const down_job<TYPE> job(r.o, l.down.w, r.experts(), r.act(), at % 2);
    units<TYPE, 1, down_job<TYPE>> u;
    u.begin(job, r.aims());
    collect_act<TYPE>(r.act(), r.o.h, job.d, job.mine, at % 2);
    u.run(job, table, r.aims(), r.sums());
}

/* Set those members of a layer's description that depend on the step, or point into the block's
 * shared memory. */
DEVICE void complete_layer(gpu_token_layer &l, const block_room &r)
{
    const gpu_token_step &o = r.o;
    l.attention.step = o.step;
    for (int i = 0; i < 3; i++)
        l.attention.prepare.parts[i].n_parts = o.qkv.parts;
}

template <int TYPE> __global__ __launch_bounds__(THREADS, 1)
void one_token_kernel(gpu_token_step given)
{
    SHARED(uint8_t, shared);
    constexpr int BOOK = TYPE == MIXED ? (int)QT_NL4 : TYPE;
    const wide_table table = wide_fill<BOOK, THREADS>(reinterpret_cast<uint32_t *>(shared));
    gpu_token_step &o = *reinterpret_cast<gpu_token_step *>(shared + given.room.step);
    const block_room r = { o };
    barrier all = { given.arrived, 0 };
    if (*given.step.pos < 0)            /* the token only pads the step */
        return;
    if (threadIdx.x == 0) {
        o = given;
        o.before = *given.layers_before;
        *r.pos() = *given.step.pos;
        *r.table_of() = *given.step.table_of;
        o.step.pos = r.pos();
        o.step.table_of = r.table_of();
    }
    __syncthreads();                    /* the arguments are there */
    copy_layer(&r.layer(0), o.layers);
    copy_wait<0>();
    norm_runs v;
    load_columns(v, o.x, o.hidden);
    store_columns(r.x(), v, o.hidden);
    __syncthreads();                    /* the first layer is there */
    if (threadIdx.x == 0)
        complete_layer(r.layer(0), r);
    __syncthreads();                    /* it is complete */
    if ((int)blockIdx.x < r.layer(0).attention.n_kv_heads * o.n_splits)
        find_kv_blocks(r.kv_blocks(), o.step, divided(blockIdx.x, o.by_kv_heads) << o.log_split);
#pragma unroll 1
    for (int i = 0; i < o.n; i++) {
        const gpu_token_layer &l = r.layer(i);
        const unsigned at = o.before + i + 1;
        run_qkv<TYPE>(r, l, table, at, i == 0);
        attend(r, l, at);
        if (i + 1 < o.n)                /* over the layer before, which no thread reads now */
            copy_layer(&r.layer(i + 1), o.layers + i + 1);
        if (!l.route.n_experts)
            choose_dense(r, l);
        if (l.route.n_experts) {
            run_o_and_router<TYPE>(r, l, table, at);
        } else {
            run_o<TYPE>(r, l, table, at);
        }
        all.arrive();
        /* collect_act() has waited for the next layer, and other threads read it after barriers */
        if (i + 1 < o.n && threadIdx.x == 0)
            complete_layer(r.layer(i + 1), r);
        if (l.route.n_experts) {
            run_experts_up<TYPE>(r, l, table, all, at);
            clear_outputs(o, at);
        } else {
            run_up<TYPE>(r, l, table, all, at);
        }
        run_down<TYPE>(r, l, table, at);
    }
    all.arrive();
    if (blockIdx.x != 0)
        return;
    add_pending(v, r.x(), { { o.down_parts, (o.before + o.n) % 2 }, o.down.parts, 32 * o.down.n_tiles, o.scale },
                o.hidden);
    store_columns(o.x, v, o.hidden);
    if (threadIdx.x == 0)               /* all blocks have read it before their first barrier */
        *o.layers_before = (o.before + o.n) % 4;
    all.wait();
    grid_reset(o.arrived);              /* all blocks have arrived for the last time */
}

/* Plan shared memory.  Returns its size. */
static size_t plan_room(gpu_token_step &o, const gpu_token_layer &l)
{
    o.top_k = l.route.n_experts ? (l.route.top_k + 3) / 4 * 4 : 4;
    o.lists = l.route.n_experts ? l.route.w[0].n_tiles : 0;
    const size_t hidden = (size_t)o.hidden, att = 32 * (size_t)l.o.n_steps,
                 mlp = (size_t)(l.route.n_experts ? l.route.top_k : 1) * (size_t)l.up.act_out_stride,
                 widest = hidden > att ? hidden : att;
    const int table = o.mixed || l.o.type == QT_NL4;
    return gpu_token_shared(&o.room, table ? WIDE_BYTES : 0, hidden, widest > mlp ? widest : mlp,
                            gpu_token_split_bytes((size_t)l.attention.head_dim, l.attention.kv.blocks.part,
                                                  l.attention.n_heads / l.attention.n_kv_heads),
                            l.route.n_experts ? gpu_choose_only_bytes(l.route.n_experts, l.route.top_k) : 0, o.top_k,
                            o.lists);
}

/* Set what depends on the shapes and the number of blocks.  Returns the size of shared memory. */
static size_t plan(gpu_token_step &o, const gpu_token_layer &l, int blocks)
{
    const int steps = GPU_TURN_STEPS(l.o.type), top_k = l.route.n_experts ? l.route.top_k : 1;
    o.qkv = gpu_turns_divide(l.qkv[0].n_tiles + l.qkv[1].n_tiles + l.qkv[2].n_tiles, l.qkv[0].n_steps / steps, blocks);
    o.o = gpu_turns_divide(l.o.n_tiles, l.o.n_steps / steps, blocks);
    o.up = gpu_turns_divide(top_k * l.up.w[0].w.n_tiles, l.up.w[0].w.n_steps / steps, blocks);
    o.down = gpu_turns_divide(l.down.w.n_tiles, top_k * l.down.w.n_steps / steps, blocks);
    o.by_tiles = GPU_INVERSE(l.up.w[0].w.n_tiles);
    o.by_turns = GPU_INVERSE(l.down.w.n_steps / steps);
    o.by_kv_heads = GPU_INVERSE(l.attention.n_kv_heads);
    o.by_32s = GPU_INVERSE(l.attention.head_dim / 32);
    o.share = l.attention.n_heads / l.attention.n_kv_heads;
    o.part = 1 / (float)o.hidden;
    o.o_blocks = (o.o.n_tiles * o.o.per_tile + o.o.share - 1) / o.o.share;
    o.log_split = gpu_token_log_split(o.max_splits, l.attention.n_kv_heads, blocks);
    o.n_splits = o.max_splits * GPU_SPLIT >> o.log_split;
    return plan_room(o, l);
}

template <int TYPE> static int run(struct gpu *g, const gpu_token_layer &l, const gpu_token_step *given, struct err *e)
{
    static_assert(few_steps<ROOMY<TYPE>, 1, 1>::STEPS == TURN_STEPS<TYPE> &&
                  few_steps<ROOMY<TYPE>, 1, PAIR<TYPE>>::STEPS == TURN_STEPS<TYPE>, "turns have these steps");
    gpu_token_step o = *given;
    const int n_sms = gpu_n_sms(g), most = n_sms < GPU_TOKEN_BLOCKS ? n_sms : GPU_TOKEN_BLOCKS,
              fit = blocks_together(g, one_token_kernel<TYPE>, THREADS, plan_room(o, l)),
              blocks = fit < most ? fit : most;
    if (blocks < 1)
        return err_set(e, ERR_UNSUPPORTED, "one_token: no room for a block");
    const size_t shared = plan(o, l, blocks);
    return launch_together(g, "one_token", one_token_kernel<TYPE>, blocks, THREADS, shared, e, o);
}

extern "C" int gpu_one_token(struct gpu *g, const struct gpu_token_layer *l, const struct gpu_token_step *o,
                             struct err *e)
{
    switch (o->mixed ? (int)MIXED : l->o.type) {
    case QT_NL4: return run<QT_NL4>(g, *l, o, e);
    case MIXED: return run<MIXED>(g, *l, o, e);
#ifndef FEW_FORMATS
    case QT_I4: return run<QT_I4>(g, *l, o, e);
    case QT_I8: return run<QT_I8>(g, *l, o, e);
#endif
    default: return err_set(e, ERR_UNSUPPORTED, "one_token: number format %d", l->o.type);
    }
}

/* Whether divided() is right for all turns: not for large matrices on a few multiprocessors. */
static bool divides(const gpu_turns &d)
{
    return (int64_t)d.n_tiles * d.per_tile * (d.share > d.per_tile ? d.share : d.per_tile) < (int64_t)1 << 31;
}

template <int TYPE> static int fits(struct gpu *g, const gpu_token_layer &l, int hidden)
{
    gpu_token_step o = {};
    o.hidden = hidden;
    o.mixed = TYPE == MIXED;
    const int n_sms = gpu_n_sms(g), blocks = n_sms < GPU_TOKEN_BLOCKS ? n_sms : GPU_TOKEN_BLOCKS;
    const size_t shared = plan(o, l, blocks);
    return blocks_together(g, one_token_kernel<TYPE>, THREADS, shared) >= n_sms && divides(o.qkv) && divides(o.o) &&
           divides(o.up) && divides(o.down);
}

extern "C" int gpu_one_token_takes(struct gpu *g, const struct gpu_token_layer *l, int hidden, int mixed)
{
    const gpu_attention &a = l->attention;
    const gpu_kv_blocks &b = a.kv.blocks;
    const int copied = a.kv.type == KV_F16 && !a.kv.tail.base && !a.value_dim &&
                       (((uintptr_t)b.base | b.stride | b.head_stride | b.layer_offset | b.part) & 15) == 0 &&
                       b.head_stride == 2 * (uint64_t)b.part && a.head_dim % 32 == 0 && a.head_dim <= GPU_TOKEN_DIM;
    /* a thread has an output of the router */
    if (!copied || a.n_heads / a.n_kv_heads > GPU_ATTN_GROUP || hidden % 32 || !GPU_NORM_TAKES(hidden) ||
        l->route.n_experts > THREADS)
        return 0;
    switch (mixed ? (int)MIXED : l->o.type) {
    case QT_NL4: return fits<QT_NL4>(g, *l, hidden);
    case MIXED: return fits<MIXED>(g, *l, hidden);
#ifndef FEW_FORMATS
    case QT_I4: return fits<QT_I4>(g, *l, hidden);
    case QT_I8: return fits<QT_I8>(g, *l, hidden);
#endif
    default: return 0;
    }
}
