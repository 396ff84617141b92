/* one_token.cu - all layers of a step of one token in one launch, whose blocks meet at barriers.
 *
 * Otherwise a layer of a mixture of experts takes six launches.  Each costs the gap before it and
 * mostly a join of its blocks, the last of which adds up their sums or norms the row.  Gaps and
 * joins take longer than reading the layer's weights.  Here a barrier replaces both: blocks store
 * sums over parts of k, and every block adds the parts of what it reads.
 *
 * stages   of a layer, with a barrier after each (prim/grid.cuh):
 *            qkv        x += parts of the layer before; norm; q, k and v
 *            attention  splits of the context, the last of which merges them (attn_token.cuh)
 *            o          its product; and the router's product with the block's part of its sum
 *            up         x += parts of o; the choice of experts, by every block for itself; norm;
 *                       gate, up and activation
 *            down       the weighted sum of the experts' products
 *          A block keeps x in shared memory, and all blocks compute the same x.
 * tile     one block a multiprocessor, of 16 warps.  A turn is 128 k of a tile of 32 rows (64 k of
 *          i8), and the warps of a block take turns one after the other.  All turns of a stage are
 *          divided into equal shares, one for each block and each without gaps (gpu_turns); so up
 *          to four blocks have parts of a tile.  The activation needs the whole sums of gate and
 *          up: the block with the first part of a tile, which it computes last, receives the sums
 *          of the others, which they compute first (grid_send)
 * formats  a kernel for nl4, for i4 and for i8, and one in which each matrix is nl4, m5 or m6, as
 *          zse-convert chooses them.  A warp of that one branches to the loads and the products of
 *          a turn's format, and has turns of gate and of up one after the other
 * moves    each weight once from HBM; a warp has up to 10 loads of 16 bytes a lane in flight, 82 KB
 *          a block.  Each warp loads its first turn before it waits at the barrier: these are
 *          nearly all weights of qkv and o, of which a multiprocessor of an H200 has 42 and 34 KB
 *          (Qwen3-30B-A3B, nl4), and half of those of down
 * limit    instructions, of which all 16 warps run the same: 62 for 16 bytes of nl4 and lane in the
 *          turns (with several formats 79, and 73 of m5 and m6), and 100 to 300 in each stage
 *          beside them, at 7 cycles each (norms, and the addresses of copies before attention); and
 *          the barriers: a fence, a count and a load of the counter, three times the latency of L2,
 *          .45 us on an H200 (calculated).  HBM would allow 3.1 us for gate and up, and 6.7 us a
 *          layer.  A barrier after the router took .9 us of 15.7 more than to add up its outputs in
 *          whole numbers (calculated)
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
static_assert((int)THREADS == (int)NORM_THREADS, "a block norms a row as its own kernel does");

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
 *     store(i, k, y[N], by[N])   take the sums of row k of the tile, by thread k, which are to be
 *                                multiplied by `by`
 *  and if sums of other blocks are added
 *     n_after(i)                 number of blocks after this one that have parts of unit i
 *     sent(part, k)              the sums of matrix k that the block `part` after this one sends */
template <int TYPE, int N, class JOB> struct units {
    static constexpr int LOADED = TYPE == MIXED ? 1 : N;        /* matrices of a turn */
    turn<TYPE, LOADED> u;
    turn_place<LOADED> at;              /* of the loaded turn */
    int i, q, end;                      /* the warp's next turn */
    float scale[N];                     /* of row threadIdx.x of the current unit, in the first warp */

    /* Load the scales of a unit's rows, which nothing has multiplied so far. */
    DEVICE void load_scales(const JOB &job, int unit)
    {
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
    DEVICE void begin(const JOB &job)
    {
        u = {};
        at = {};
        i = -1;
        q = end = 0;
        for (int n = 0; n < N; n++)
            scale[n] = 1;
        seek(job);
        load_scales(job, 0);
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
    DEVICE void run(const JOB &job, const wide_table &table, float *room)
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
                float y[N] = {};
#pragma unroll
                for (int w = 0; w < WARPS; w++)
                    for (int n = 0; n < N; n++)
                        y[n] += sums[(w * N + n) * 32 + threadIdx.x];
                float by[N];
                for (int n = 0; n < N; n++)
                    by[n] = scale[n] * TURN_UNIT<TYPE>;
                job.store(unit, threadIdx.x, y, by);
                load_scales(job, unit + 1);
            }
        }
    }
};

/* This block's share of a division.  Its units are the tiles of which it has turns. */
struct block_turns {
    int n, first, end, tile;            /* tile: of the first unit */

    /* n_tiles: number of the tiles that exist */
    DEVICE block_turns(const gpu_turns &d, int n_tiles)
    {
        first = min((int)blockIdx.x * d.share, n_tiles * d.per_tile);
        end = min(first + d.share, n_tiles * d.per_tile);
        tile = divided(first, d.by_tile);
        n = first < end ? divided(end - 1, d.by_tile) - tile + 1 : 0;
    }
    DEVICE void range(const gpu_turns &d, int i, int &from, int &to) const
    {
        from = max(first, (tile + i) * d.per_tile);
        to = min(end, (tile + i + 1) * d.per_tile);
    }
};

/* Store row k of tile i of this block as its part of the sum; the block of the first part also
 * stores zeros for those that no block has.  Only its first tile may have begun in another block.
 * parts [n_parts][32 * n_tiles]. */
DEVICE void store_part(const gpu_turns &d, const block_turns &mine, int i, int k, float y, float *parts)
{
    const int tile = mine.tile + i, ld = 32 * d.n_tiles,
              part = i > 0 ? 0 : (int)blockIdx.x - divided(tile * d.per_tile, d.by_share);
    parts += 32 * tile + k;
    parts[part * ld] = y;
    if (part > 0)
        return;
    const int n = divided((tile + 1) * d.per_tile - 1, d.by_share) - (int)blockIdx.x + 1;
    for (int z = n; z < d.parts; z++)
        parts[z * ld] = 0;
}

/* Matrices that read the same input and differ in their rows alone: q, k and v, or o. */
template <int TYPE> struct linear_job {
    static constexpr bool WEIGHED = false, JOINS = false;
    const gpu_turns &d;
    const gpu_mat *w;
    const float *const *bias;
    const uint16_t *act;
    float *parts;
    block_turns mine;
    int n;

    DEVICE linear_job(const gpu_turns &d_, const gpu_mat *w_, const float *const *bias_, const uint16_t *act_,
                      float *parts_)
        : d(d_), w(w_), bias(bias_), act(act_), parts(parts_), mine(d_, d_.n_tiles), n(mine.n) {}
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
    DEVICE float store(int i, int k, const float (&y)[1], const float (&by)[1]) const
    {
        int tile = mine.tile + i, which = 0;
        while (tile >= w[which].n_tiles)
            tile -= w[which++].n_tiles;
        const int row = 32 * tile + k;
        const float sum = y[0] * by[0],
                    biased = is_first(i) && bias[which] && row < w[which].rows ? sum + bias[which][row] : sum;
        store_part(d, mine, i, k, biased, parts);
        return biased;
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
    DEVICE void store(int i, int k, const float (&y)[1], const float (&by)[1]) const
    {
        const int row = 32 * (this->mine.tile + i) + k;
        const float part = linear_job<TYPE>::store(i, k, y, by);
        added[row] = fmaf(scale, part, this->is_first(i) ? x[row] : 0) * (factors ? factors[row] + offset : 1);
    }
};

/* An expert that the token has chosen: its matrices, the factor on its result, its number and its
 * pair.  A dense layer has one. */
struct chosen { const uint8_t *gate, *up, *down; float weight; int16_t expert, pair; };
static_assert(sizeof(struct chosen) == 4 * sizeof(void *), "gpu_token_shared() has room for them");

/* Gate and up of all chosen experts, one after the other. */
template <int TYPE> struct up_job {
    static constexpr bool WEIGHED = false, JOINS = true;
    const gpu_turns &d;
    const gpu_experts &o;
    const chosen *c;
    const uint16_t *act;
    uint64_t *words;                    /* gpu_token_step.sent */
    uint32_t by_tiles;
    block_turns mine;
    int n;

    DEVICE up_job(const gpu_turns &d_, const gpu_experts &o_, const chosen *c_, int n_chosen, uint32_t by,
                  const uint16_t *act_, uint64_t *words_)
        : d(d_), o(o_), c(c_), act(act_), words(words_), by_tiles(by), mine(d_, n_chosen * o_.w[0].w.n_tiles),
          n(mine.n) {}
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
    DEVICE uint64_t *sent(int part, int k) const { return words + ((blockIdx.x + part) * 2 + k) * 32; }
    DEVICE void store(int i, int k, const float (&y)[2], const float (&by)[2]) const
    {
        if (!is_first(i)) {
            grid_send(sent(0, 0) + k, y[0]);
            grid_send(sent(0, 1) + k, y[1]);
            return;
        }
        const int tile = mine.tile + i, at = divided(tile, by_tiles), row = (tile - at * mat().n_tiles) * 32 + k,
                  expert = c[at].expert;
        float h = 0;
        if (row < mat().rows)
            h = expert_activation(o, c[at].pair, expert_biased(o.w[0], expert, row, y[0] * by[0]),
                                  expert_biased(o.w[1], expert, row, y[1] * by[1]));
        o.act_out[(size_t)at * o.act_out_stride + act_place(row, GPU_ACT_LANES)] = row < mat().rows ? act_of(h) : 0;
    }
};

/* Down: the products of all chosen experts are one sum.  Its k are those of the first expert, then
 * those of the second, and so on. */
template <int TYPE> struct down_job {
    static constexpr bool WEIGHED = true, JOINS = false;
    const gpu_turns &d;
    const gpu_mat &w;
    const chosen *c;
    int n_chosen;
    const uint16_t *act; int stride;
    float *parts;
    uint32_t by_turns;
    block_turns mine;
    int n;

    DEVICE down_job(const gpu_turns &d_, const gpu_mat &w_, const chosen *c_, int n_chosen_, uint32_t by,
                    const uint16_t *act_, int stride_, float *parts_)
        : d(d_), w(w_), c(c_), n_chosen(n_chosen_), act(act_), stride(stride_), parts(parts_), by_turns(by),
          mine(d_, d_.n_tiles), n(mine.n) {}
    DEVICE const gpu_mat &mat() const { return w; }
    DEVICE int turns() const { return w.n_steps / TURN_STEPS<TYPE>; }  /* of an expert */
    /* without the turns of experts that the token has not chosen */
    DEVICE void range(int i, int &first, int &end) const
    {
        mine.range(d, i, first, end);
        end = min(end, (mine.tile + i) * d.per_tile + n_chosen * turns());
    }
    DEVICE turn_place<1> place(int i, int turn) const
    {
        const int in_tile = turn - (mine.tile + i) * d.per_tile, at = divided(in_tile, by_turns),
                  step = (in_tile - at * turns()) * TURN_STEPS<TYPE>;
        return { { c[at].down + (size_t)(mine.tile + i) * w.tile_bytes }, step, act + at * stride + step * 32,
                 c[at].weight, w.type };
    }
    DEVICE void store(int i, int k, const float (&y)[1], const float (&by)[1]) const
    {
        store_part(d, mine, i, k, y[0] * by[0], parts);
    }
};

/* ---- the residual ---- */

/* Sums of parts that the stage before leaves to be added. */
struct pending_parts { const float *part; int n, ld; float scale; };

/* Whether a warp has columns in run i of a row: the others do nothing. */
DEVICE bool has_run(int i, int cols) { return (i * THREADS + (int)(threadIdx.x & ~31u)) * NORM_RUN < cols; }

/* v += scale * (sum over up to MOST parts), for four columns from k on. */
template <int MOST> DEVICE void add_four(float *v, const pending_parts &p, int k)
{
    float4 y[MOST];
#pragma unroll
    for (int i = 0; i < MOST; i++)
        y[i] = i < p.n ? load_four_shared_by_blocks(p.part + (size_t)i * p.ld + k) : make_float4(0, 0, 0, 0);
    float4 sum = y[0];
#pragma unroll
    for (int i = 1; i < MOST; i++)
        sum.x += y[i].x, sum.y += y[i].y, sum.z += y[i].z, sum.w += y[i].w;
    v[0] = fmaf(p.scale, sum.x, v[0]);
    v[1] = fmaf(p.scale, sum.y, v[1]);
    v[2] = fmaf(p.scale, sum.z, v[2]);
    v[3] = fmaf(p.scale, sum.w, v[3]);
}

/* Load a thread's columns of a row, which are the same in all rows. */
DEVICE void load_columns(norm_runs &v, const float *from, int cols)
{
#pragma unroll
    for (int i = 0; i < NORM_RUNS; i++) {
        const int k = (i * THREADS + threadIdx.x) * NORM_RUN;
#pragma unroll
        for (int j = 0; j < NORM_RUN; j++)
            v[i][j] = 0;
        if (!has_run(i, cols) || k >= cols)
            continue;
#pragma unroll
        for (int j = 0; j < NORM_RUN; j += 4) {
            const float4 x = *reinterpret_cast<const float4 *>(from + k + j);
            v[i][j] = x.x, v[i][j + 1] = x.y, v[i][j + 2] = x.z, v[i][j + 3] = x.w;
        }
    }
}
DEVICE void store_columns(float *to, const norm_runs &v, int cols)
{
#pragma unroll
    for (int i = 0; i < NORM_RUNS; i++) {
        const int k = (i * THREADS + threadIdx.x) * NORM_RUN;
        if (!has_run(i, cols) || k >= cols)
            continue;
#pragma unroll
        for (int j = 0; j < NORM_RUN; j += 4)
            *reinterpret_cast<float4 *>(to + k + j) = make_float4(v[i][j], v[i][j + 1], v[i][j + 2], v[i][j + 3]);
    }
}

/* x += scale * (sum over the parts), with the result in v as well. */
DEVICE void add_pending(norm_runs &v, float *x, const pending_parts &p, int cols)
{
    load_columns(v, x, cols);
    if (!p.n)
        return;
#pragma unroll
    for (int i = 0; i < NORM_RUNS; i++) {
        const int k = (i * THREADS + threadIdx.x) * NORM_RUN;
        if (!has_run(i, cols) || k >= cols)
            continue;
#pragma unroll
        for (int j = 0; j < NORM_RUN; j += 4)
            if (p.n <= 2)
                add_four<2>(&v[i][j], p, k + j);
            else
                add_four<GPU_TURN_PARTS>(&v[i][j], p, k + j);
    }
    store_columns(x, v, cols);
}

/* The factor of the norm of row v without its weights.  room: a float for each warp. */
DEVICE float row_inverse(const norm_runs &v, const struct gpu_norm &o, float *room)
{
    const int lane = threadIdx.x % 32;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < NORM_RUNS; i++)
#pragma unroll
        for (int j = 0; j < NORM_RUN && has_run(i, o.cols); j++)
            sum = fmaf(v[i][j], v[i][j], sum);
    sum = warp_sum(sum);
    if (lane == 0)
        room[threadIdx.x / 32] = sum;
    __syncthreads();                    /* the sums of all warps are there */
    sum = room[lane % WARPS];
    for (int i = WARPS / 2; i; i /= 2)
        sum += __shfl_xor_sync(FULL_WARP, sum, i);
    return rsqrtf(sum / (float)o.cols + o.eps);
}

/* Store the normed row v in act, in the order GPU_ACT_LANES, in which a run of 8 stays where it is.
 * w: factors. */
DEVICE void store_normed(const norm_runs &v, const norm_runs &w, const struct gpu_norm &o, float inverse,
                         uint16_t *act)
{
    const float offset = o.w ? o.offset : 0;
#pragma unroll
    for (int i = 0; i < NORM_RUNS; i++) {
        const int k = (i * THREADS + threadIdx.x) * NORM_RUN;
        if (!has_run(i, o.cols) || k >= o.cols)
            continue;
        float y[NORM_RUN];
        uint32_t pair[NORM_RUN / 2];
#pragma unroll
        for (int j = 0; j < NORM_RUN; j++)
            y[j] = v[i][j] * inverse * (w[i][j] + offset);
#pragma unroll
        for (int j = 0; j < NORM_RUN / 2; j++)
            pair[j] = pack_half_clamped(y[j] * (1 / ACT_UNIT), y[j + NORM_RUN / 2] * (1 / ACT_UNIT));
        *reinterpret_cast<uint4 *>(act + k) = make_uint4(pair[0], pair[1], pair[2], pair[3]);
    }
    __syncthreads();                    /* the row is there, and the sums of its squares are read */
}

DEVICE float norm_row(const norm_runs &v, const norm_runs &w, const struct gpu_norm &o, uint16_t *act, float *room)
{
    const float inverse = row_inverse(v, o, room);
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

/* Copy n halves that other blocks have stored to shared memory; a multiple of 32. */
DEVICE void copy_act(uint16_t *to, const uint16_t *from, int n)
{
    for (int k = 8 * threadIdx.x; k < n; k += 8 * THREADS)
        copy_async(to + k, from + k);
    copy_commit();
    copy_wait<0>();
    __syncthreads();
}

/* ---- the router ---- */

/* A product with the router's matrix is linear, so each block multiplies its own part of the sum
 * that becomes the residual, before the barrier, by the columns for its rows, and adds the results
 * to those of other blocks.  The factor of the norm is the same for all outputs, and follows after
 * the barrier.  Outputs are added as multiples of the unit 1 / gpu_token_step.unit, a power of two
 * about 2^30 times smaller than 1 in the normed row before attention.  A NaN becomes the smallest
 * number; one of the residual is in the factor of the norm, too. */
constexpr float UNITS_OF_ONE = 1 << 30, MOST_UNITS = 1ull << 54;        /* of a block: the sum of all fits */

DEVICE float output_unit(float inverse) { return float_of(bits_of(inverse) & 0x7f800000) * UNITS_OF_ONE; }
DEVICE unsigned long long in_units(float x)
{
    const float in_range = fminf(fmaxf(x, -MOST_UNITS), MOST_UNITS);
    return (unsigned long long)EITHER(__float2ll_rn(in_range), llrintf(in_range));
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
            add_for_blocks(outputs + 8 * at + lane % 8, in_units(sum * unit));
    }
}

/* The sum of the copies of output i. */
DEVICE long long added_outputs(const unsigned long long *outputs, int i, int ld)
{
    unsigned long long sum = 0;
#pragma unroll
    for (int c = 0; c < GPU_TOKEN_COPIES; c++)
        sum += load_shared_by_blocks(outputs + c * ld + i);
    return (long long)sum;
}

/* ---- the kernel ---- */

/* The barrier of the launch; n: this block's arrivals so far. */
struct barrier {
    unsigned *arrived, n;

    DEVICE void arrive()
    {
        grid_arrive(arrived);
        n++;
    }
    /* Arrive after a stage whose results only the first warp has stored, or others before a barrier
     * of the block: the other warps go on, and load what they need next. */
    DEVICE void arrive_by_first_warp()
    {
        if (threadIdx.x < 32)
            grid_arrive_alone(arrived);
        n++;
    }
    DEVICE void wait() const { grid_wait(arrived, n); }
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
    DEVICE int32_t *ids() const { return reinterpret_cast<int32_t *>(experts() + o.top_k); }
    DEVICE float *weight() const { return reinterpret_cast<float *>(ids() + o.top_k); }
    DEVICE int32_t *n_chosen() const { return reinterpret_cast<int32_t *>(weight() + o.top_k); }
    DEVICE int32_t *pos() const { return n_chosen() + 2; }
    DEVICE int32_t *table_of() const { return n_chosen() + 3; }
    /* of the first job of attention, and of two others in turn */
    DEVICE int32_t *kv_blocks() const { return n_chosen() + 4; }
    DEVICE chosen *experts() const { return reinterpret_cast<chosen *>(at(o.room.choice)); }
};

/* The stages of a layer, each up to the arrival at the next barrier. */

template <int TYPE>
DEVICE void run_qkv(const block_room &r, const gpu_token_layer &l, const wide_table &table, const barrier &all,
                    bool first)
{
    const gpu_token_step &o = r.o;
    const linear_job<TYPE> job(o.qkv, l.qkv, l.qkv_bias, r.act(), o.qkv_parts);
    units<TYPE, 1, linear_job<TYPE>> u;
    norm_runs v, w;
    u.begin(job);
    load_factors(w, l.attn_norm.w, o.hidden);
    if (!first)
        all.wait();
    add_pending(v, r.x(), { o.down_parts, first ? 0 : o.down.parts, 32 * o.down.n_tiles, o.scale }, o.hidden);
    const float inverse = norm_row(v, w, l.attn_norm, r.act(), r.sums());
    if (threadIdx.x == 0)
        r.o.unit = output_unit(inverse);
    u.run(job, table, r.sums());
}

template <int TYPE>
DEVICE void run_o(const block_room &r, const gpu_token_layer &l, const wide_table &table, const barrier &all)
{
    const linear_job<TYPE> job(r.o.o, &l.o, &l.o_bias, r.act(), r.o.o_parts);
    units<TYPE, 1, linear_job<TYPE>> u;
    u.begin(job);
    all.wait();
    copy_act(r.act(), l.attention.act, 32 * l.o.n_steps);
    u.run(job, table, r.sums());
}

/* Attention of this block's splits.  The first one waits at the barrier, after it has begun to copy
 * keys and values. */
DEVICE void attend(const block_room &r, const gpu_token_layer &l, const barrier &all)
{
    const gpu_attention &o = l.attention;
    int32_t *kv = r.kv_blocks();        /* of the first job, which has them in all layers */
    int job = blockIdx.x;
    /* in the order of splits: their number is padded, so the last ones may have no positions */
#pragma unroll 1
    for (int i = 0; job < o.n_kv_heads * o.max_splits; i++, job += gridDim.x) {
        const int split = divided(job, r.o.by_kv_heads);
        if (i) {
            kv = r.kv_blocks() + (1 + i % 2) * SPLIT_KV;
            find_kv_blocks(kv, o.step, split);
            __syncthreads();            /* the job before has read its room, and the numbers are there */
        }
        attend_to_split(o, token_split(o, r.o.share, job - split * o.n_kv_heads, split), kv,
                        reinterpret_cast<uint8_t *>(r.sums()), [&] {
            if (i)
                __syncthreads();
            else
                all.wait();
        });
    }
    if (job == (int)blockIdx.x)
        all.wait();
}

/* o of a layer with experts, and the outputs of its router. */
template <int TYPE>
DEVICE void run_o_and_router(const block_room &r, const gpu_token_layer &l, const wide_table &table,
                             const barrier &all)
{
    const struct gpu_norm &norm = l.mlp_norm;
    const o_job<TYPE> job({ r.o.o, &l.o, &l.o_bias, r.act(), r.o.o_parts }, r.x(), norm.w ? r.factors() : nullptr,
                              r.o.scale, norm.offset, r.added());
    units<TYPE, 1, o_job<TYPE>> u;
    u.begin(job);
#pragma unroll 1
    for (int i = 4 * threadIdx.x; i < r.o.hidden && norm.w; i += 4 * THREADS)
        copy_async(r.factors() + i, norm.w + i);
    if (job.n > 0)
        copy_columns(r.router(), l.route.w[0], job.mine.tile);
    all.wait();
    copy_act(r.act(), l.attention.act, 32 * l.o.n_steps);
    u.run(job, table, r.sums());
    __syncthreads();                    /* the rows are there */
    add_outputs(l.route, r.added(), r.router(), job.mine.tile, job.n, r.o.unit, r.o.outputs);
}

/* x += parts of o. */
DEVICE void add_o(norm_runs &v, const block_room &r)
{
    const gpu_token_step &o = r.o;
    add_pending(v, r.x(), { o.o_parts, o.o.parts, 32 * o.o.n_tiles, o.scale }, o.hidden);
}

DEVICE chosen chosen_of(const gpu_token_layer &l, int expert, int pair, float weight)
{
    return { expert_rows(l.up.w[0], expert, 0), expert_rows(l.up.w[1], expert, 0), expert_rows(l.down, expert, 0),
             weight, (int16_t)expert, (int16_t)pair };
}

/* Choose the experts, when the parts of o and the router's outputs are there.  Returns the factor
 * of the norm of the residual; id: of choose_ids(). */
DEVICE float choose(const block_room &r, const gpu_token_layer &l, const barrier &all, int &id)
{
    const int ld = 32 * l.route.w[0].n_tiles, lane = threadIdx.x % 32;
    const float *const bias = l.route.bias[0];
    norm_runs v;
    all.wait();
    const long long output = (int)threadIdx.x < ld ? added_outputs(r.o.outputs, threadIdx.x, ld) : 0;
    add_o(v, r);
    const float inverse = row_inverse(v, l.mlp_norm, r.sums()),
                unit = float_of(0x7f000000u - bits_of(r.o.unit));      /* 1 / a power of two */
    id = choose_ids<WARPS>(l.route, r.room(), [&](int i) {
        const float x = (float)output * unit * inverse;
        return bias ? x + bias[i] : x;
    });
    if (threadIdx.x / 32 == CHOICE_SORTING) {
        const int n = *r.pos() < 0 ? 0 : l.route.top_k;
        if (lane < n)
            r.experts()[lane] = chosen_of(l, id, lane, 1);
        if (lane == 0)
            *r.n_chosen() = n;
    }
    __syncthreads();                    /* the experts are there */
    return inverse;
}

/* Weigh the experts, which only down needs. */
DEVICE void weigh(const block_room &r, const gpu_token_layer &l, int id)
{
    if (threadIdx.x / 32 != CHOICE_WEIGHING)
        return;
    const float weight = weigh_only(l.route, r.room(), id);
    if ((int)threadIdx.x < l.route.top_k && !l.up.weigh_input)
        r.experts()[threadIdx.x].weight = weight;
}

/* The only expert of a dense layer.  Barriers of other stages follow before it is read. */
DEVICE void choose_dense(const block_room &r, const gpu_token_layer &l)
{
    if (threadIdx.x == 0) {
        r.experts()[0] = chosen_of(l, 0, 0, 1);
        *r.n_chosen() = 1;
    }
}

template <int TYPE>
DEVICE void run_up(const block_room &r, const gpu_token_layer &l, const wide_table &table, const barrier &all)
{
    const up_job<TYPE> job(r.o.up, l.up, r.experts(), *r.n_chosen(), r.o.by_tiles, r.act(), r.o.sent);
    units<TYPE, 2, up_job<TYPE>> u;
    norm_runs v, w;
    u.begin(job);
    load_factors(w, l.mlp_norm.w, r.o.hidden);
    all.wait();
    add_o(v, r);
    norm_row(v, w, l.mlp_norm, r.act(), r.sums());
    u.run(job, table, r.sums());
}

/* Of the chosen experts.  The first weights are loaded before the experts are weighed, and the row
 * normed. */
template <int TYPE>
DEVICE void run_experts_up(const block_room &r, const gpu_token_layer &l, const wide_table &table, const barrier &all)
{
    int id;
    const float inverse = choose(r, l, all, id);
    const up_job<TYPE> job(r.o.up, l.up, r.experts(), *r.n_chosen(), r.o.by_tiles, r.act(), r.o.sent);
    units<TYPE, 2, up_job<TYPE>> u;
    norm_runs v, w;
    u.begin(job);
    weigh(r, l, id);
    load_columns(v, r.x(), r.o.hidden);
    load_factors(w, l.mlp_norm.w ? r.factors() : nullptr, r.o.hidden);
    store_normed(v, w, l.mlp_norm, inverse, r.act());
    u.run(job, table, r.sums());
}

template <int TYPE>
DEVICE void run_down(const block_room &r, const gpu_token_layer &l, const wide_table &table, const barrier &all)
{
    const int n_chosen = *r.n_chosen();
    const down_job<TYPE> job(r.o.down, l.down.w, r.experts(), n_chosen, r.o.by_turns, r.act(), l.up.act_out_stride,
                             r.o.down_parts);
    units<TYPE, 1, down_job<TYPE>> u;
    u.begin(job);
    all.wait();
    copy_act(r.act(), l.up.act_out, n_chosen * l.up.act_out_stride);
    u.run(job, table, r.sums());
}

/* Set those members of a layer's description that depend on the step, or point into the block's
 * shared memory. */
DEVICE void complete_layer(gpu_token_layer &l, const block_room &r)
{
    const gpu_token_step &o = r.o;
    l.attention.step = o.step;
    l.attention.max_splits = o.max_splits;
    for (int i = 0; i < 3; i++)
        l.attention.prepare.parts[i].n_parts = o.qkv.parts;
    l.route.pos = o.step.pos;
    l.route.choice.id = r.ids();
    l.route.choice.weight = l.up.choice.weight = r.weight();
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
    if (threadIdx.x == 0) {
        o = given;
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
    if ((int)blockIdx.x < r.layer(0).attention.n_kv_heads * o.max_splits)
        find_kv_blocks(r.kv_blocks(), o.step, divided(blockIdx.x, o.by_kv_heads));
#pragma unroll 1
    for (int i = 0; i < o.n; i++) {
        const gpu_token_layer &l = r.layer(i);
        run_qkv<TYPE>(r, l, table, all, i == 0);
        all.arrive_by_first_warp();
        attend(r, l, all);
        if (blockIdx.x == gridDim.x - 1)        /* it mostly has no job of attention */
            for (int k = threadIdx.x; k < GPU_TOKEN_COPIES * 32 * o.lists; k += THREADS)
                o.outputs[k] = 0;
        all.arrive();
        if (i + 1 < o.n)                /* over the layer before, which no thread reads now */
            copy_layer(&r.layer(i + 1), o.layers + i + 1);
        if (!l.route.n_experts)
            choose_dense(r, l);
        if (l.route.n_experts) {
            run_o_and_router<TYPE>(r, l, table, all);
            all.arrive();
        } else {
            run_o<TYPE>(r, l, table, all);
            all.arrive_by_first_warp();
        }
        /* copy_act() has waited for the next layer, and other threads read it after barriers */
        if (i + 1 < o.n && threadIdx.x == 0)
            complete_layer(r.layer(i + 1), r);
        if (l.route.n_experts)
            run_experts_up<TYPE>(r, l, table, all);
        else
            run_up<TYPE>(r, l, table, all);
        all.arrive_by_first_warp();
        run_down<TYPE>(r, l, table, all);
        all.arrive_by_first_warp();
    }
    if (blockIdx.x != 0)
        return;
    all.wait();
    add_pending(v, r.x(), { o.down_parts, o.down.parts, 32 * o.down.n_tiles, o.scale }, o.hidden);
    store_columns(o.x, v, o.hidden);
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
    o.share = l.attention.n_heads / l.attention.n_kv_heads;
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

template <int TYPE> static int fits(struct gpu *g, const gpu_token_layer &l, int hidden)
{
    gpu_token_step o = {};
    o.hidden = hidden;
    o.mixed = TYPE == MIXED;
    return blocks_together(g, one_token_kernel<TYPE>, THREADS, plan_room(o, l)) >= gpu_n_sms(g);
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
