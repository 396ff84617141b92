/* sample.cu - draw tokens from logits by temperature, top_k, top_p and min_p.  Requests that need a
 * history or a mask are left to libcommon/engine/sampler.c.
 *
 * tile     parts of 2048 logits or more: at most GPU_SAMPLE_BLOCKS of all rows, so that all run at
 *          once; a block finds the largest logit of its part, and of a row the block that ends
 *          last draws.  1024 threads (128 for a small vocabulary)
 * moves    the row from L2, where the head has just stored it: once to find the largest logit; by
 *          the last block twice to draw.  With top_k or top_p, once to count tokens by their keys,
 *          and once to gather those in question in shared memory, where they are chosen and drawn;
 *          only if they are more than 2048, up to three times for each of top_k and top_p
 * limit    latencies: of a row of 152 thousand 75 blocks read 8 KB each, and then the last block
 *          waits for a fence, a counter and the other parts: about 1400 cycles (calculated).  One
 *          block would read the row in 11 us, as it does for each time that it draws
 * checked  tests/unit/t-gpu-sample.c: kept sets and frequencies against libcommon/engine/sampler.c
 *
 * All sums are of integers, so that no order of threads changes a result.  A token's key is the
 * distance of its logit from the largest one, divided by the temperature, in units of 2^-26; tokens
 * with equal keys count as equally likely.  Its mass is 2^40 * exp(-distance), rounded.  From a
 * distance of 28.4 on that is 0, which is less than the rounding of f32 sums over a vocabulary. */
#include <float.h>

#include "gpu/kernels/operations.h"
#include "gpu/prim/order.cuh"
#include "gpu/rt/launch.cuh"
#include "libcommon/base/philox.h"

enum { THREADS = GPU_SAMPLE_THREADS(GPU_SAMPLE_MANY), MAX_WARPS = THREADS / 32, BINS = 2048, LANE_BINS = BINS / 32,
       LEVELS = 3, FIRST_SHIFT = 21 /* of a key to its bin at the first level */, LIST = 2048 };
#define NO_KEY 0xffffffffu
#define UNIT 67108864.0f                /* 2^26 keys are 1 */

struct sample_room {
    unsigned long long amount[BINS], lane_amount[32], warp_mass[MAX_WARPS], before, total;
    gpu_sample_part best[MAX_WARPS];
    unsigned count[BINS], warp_ties[MAX_WARPS], bin, n_listed;
    uint32_t key[LIST];                 /* of tokens in question, in order of ids */
    int32_t id[LIST];
};
static_assert(sizeof(sample_room) == GPU_SAMPLE_ROOM, "as operations.h has it");

/* key, id: a list of n tokens; NULL: all of the row. */
struct sample_row { const float *x; int n; float most, temperature, min_p; const uint32_t *key; const int32_t *id; };

/* The kept tokens: all with a key below `key`, and of those with this key the first `ties`, in
 * order of ids. */
struct sample_cut { uint32_t key; unsigned long long ties; };

DEVICE uint32_t token_key(const sample_row &r, int i)
{
    if (r.key)
        return r.key[i];
    const float d = (r.most - r.x[i]) / r.temperature;
    return d < 28.4f ? (uint32_t)(d * UNIT) : NO_KEY;
}
DEVICE float weight_of(uint32_t key) { return expf((float)key * (-1 / UNIT)); }
DEVICE unsigned long long mass_of(uint32_t key)
{
    const float m = rintf(weight_of(key) * 1099511627776.0f);
    return m < 1 ? 1 : (unsigned long long)m;
}

DEVICE unsigned long long warp_sum64(unsigned long long x)
{
    for (int i = 16; i; i /= 2) {
        const uint32_t low = __shfl_xor_sync(FULL_WARP, (uint32_t)x, i),
                       high = __shfl_xor_sync(FULL_WARP, (uint32_t)(x >> 32), i);
        x += (unsigned long long)high << 32 | low;
    }
    return x;
}

/* The key of the largest logit (order.cuh), and its index, the lowest one if there are several;
 * NO_LOGIT: all are -inf, BAD_LOGIT: one is NaN or +inf. */
#define NO_LOGIT 0u
#define BAD_LOGIT 0xffffffffu
DEVICE gpu_sample_part best_of_warp(gpu_sample_part b)
{
    const uint32_t key = __reduce_max_sync(FULL_WARP, b.key);
    return { key, (int32_t)__reduce_min_sync(FULL_WARP, b.key == key ? (uint32_t)b.at : 0x7fffffffu) };
}

/* The largest of the logits [begin, end).  All threads get the result. */
DEVICE gpu_sample_part find_largest(sample_room *room, const float *x, int begin, int end)
{
    enum { TOGETHER = 8 };
    const int lane = threadIdx.x % 32, n_warps = blockDim.x / 32;
    float most = -INFINITY;
    int at = 0, bad = 0;
    for (int first = begin + threadIdx.x; first < end; first += TOGETHER * blockDim.x) {
        float v[TOGETHER];
#pragma unroll
        for (int j = 0; j < TOGETHER; j++) {
            const int i = first + j * blockDim.x;
            v[j] = i < end ? x[i] : -INFINITY;
        }
#pragma unroll
        for (int j = 0; j < TOGETHER; j++) {
            bad |= !(v[j] <= FLT_MAX);
            if (v[j] > most)
                most = v[j], at = first + j * blockDim.x;
        }
    }
    const gpu_sample_part best = best_of_warp({ bad ? BAD_LOGIT : most > -INFINITY ? key_of(most) : NO_LOGIT, at });
    if (lane == 0)
        room->best[threadIdx.x / 32] = best;
    __syncthreads();                    /* the results of all warps are there */
    gpu_sample_part mine = { NO_LOGIT, 0 };
    if (lane < n_warps)
        mine = room->best[lane];
    return best_of_warp(mine);
}

/* The largest of the parts of a row. */
DEVICE gpu_sample_part best_of_parts(const gpu_sample_part *part, int n)
{
    gpu_sample_part best = { NO_LOGIT, 0 };
    for (int i = threadIdx.x % 32; i < n; i += 32) {
        const gpu_sample_part p = { (uint32_t)load_shared_by_blocks(reinterpret_cast<const int32_t *>(&part[i].key)),
                                    load_shared_by_blocks(&part[i].at) };
        if (p.key > best.key)
            best = p;
    }
    return best_of_warp(best);
}

/* Find the bin in which the sum of the amounts reaches `wanted`, by one warp; its index is stored
 * in room->bin, the sum of the bins before it in room->before.  If fraction > 0 (at the first
 * level), that fraction of the sum of all bins is wanted instead. */
DEVICE void find_bin(sample_room *room, unsigned long long wanted, double fraction)
{
    const int lane = threadIdx.x, first = lane * LANE_BINS;
    unsigned long long mine = 0, before = 0, all = 0;
    for (int i = 0; i < LANE_BINS; i++)
        mine += room->amount[first + i];
    room->lane_amount[lane] = mine;
    __syncwarp();
    for (int i = 0; i < 32; i++) {
        before += i < lane ? room->lane_amount[i] : 0;
        all += room->lane_amount[i];
    }
    if (fraction > 0)
        wanted = (unsigned long long)ceil(fraction * (double)all);
    wanted = wanted < 1 ? 1 : wanted > all ? all : wanted;
    if (before < wanted && wanted <= before + mine) {
        int i = first;
        for (; before + room->amount[i] < wanted; i++)
            before += room->amount[i];
        room->bin = i;
        room->before = before;
        room->total = wanted;
    }
}

/* List the tokens that may be among the first `wanted` ones or, with fraction > 0, have that
 * fraction of the mass of all, unless they are too many.  Returns the number or the mass. */
DEVICE unsigned long long list_tokens(sample_room *room, sample_row *r, unsigned long long wanted, double fraction)
{
    enum { TOGETHER = 8 };
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n_warps = blockDim.x / 32;
    for (int i = threadIdx.x; i < BINS; i += blockDim.x)
        room->amount[i] = 0, room->count[i] = 0;
    __syncthreads();
#pragma unroll 8
    for (int i = threadIdx.x; i < r->n; i += blockDim.x) {
        const uint32_t key = token_key(*r, i);
        if (key == NO_KEY)
            continue;
        atomicAdd(&room->amount[key >> FIRST_SHIFT], fraction > 0 ? mass_of(key) : 1);
        atomicAdd(&room->count[key >> FIRST_SHIFT], 1u);
    }
    __syncthreads();
    if (warp == 0) {
        find_bin(room, wanted, fraction);
        __syncwarp();                   /* the bin is there */
        unsigned long long n = 0;
        for (int i = lane; i <= (int)room->bin; i += 32)
            n += room->count[i];
        n = warp_sum64(n);
        if (lane == 0)
            room->n_listed = (unsigned)n;
    }
    __syncthreads();                    /* the bin and the number are there */
    wanted = room->total;
    if (room->n_listed > LIST)
        return wanted;
    const uint32_t bound = (room->bin + 1) << FIRST_SHIFT;
    int listed = 0;
    for (int base = 0; base < r->n; base += TOGETHER * blockDim.x) {
        const int first = base + warp * TOGETHER * 32 + lane;
        uint32_t key[TOGETHER], kept[TOGETHER];
        int mine = 0;
#pragma unroll
        for (int j = 0; j < TOGETHER; j++)
            key[j] = first + 32 * j < r->n ? token_key(*r, first + 32 * j) : NO_KEY;
#pragma unroll
        for (int j = 0; j < TOGETHER; j++) {
            kept[j] = __ballot_sync(FULL_WARP, key[j] < bound);
            mine += bits_set(kept[j]);
        }
        if (lane == 0)
            room->warp_ties[warp] = mine;
        __syncthreads();                /* the counts of all warps are there */
        int at = listed;
        for (int w = 0; w < n_warps; w++) {
            at += w < warp ? room->warp_ties[w] : 0;
            listed += room->warp_ties[w];
        }
#pragma unroll
        for (int j = 0; j < TOGETHER; j++) {
            const int to = at + bits_set(kept[j] & ((1u << lane) - 1));
            if (key[j] < bound) {
                room->key[to] = key[j];
                room->id[to] = first + 32 * j;
            }
            at += bits_set(kept[j]);
        }
        __syncthreads();                /* the counts are read */
    }
    r->key = room->key;
    r->id = room->id;
    r->n = listed;
    return wanted;
}

/* Of the tokens that `within` keeps, find the cut that keeps the fewest and still has the wanted
 * amount: `wanted` tokens or, with fraction > 0, as much mass; wanted 0: that fraction of the mass.
 * The keys are searched digit by digit; the search ends early at a bin with one token, which is
 * kept. */
DEVICE sample_cut select(sample_room *room, const sample_row &r, const sample_cut &within, unsigned long long wanted,
                         double fraction)
{
    const double share = wanted ? 0 : fraction;
    uint32_t prefix = 0, bin = 0;
    unsigned long long before = 0;
    for (int level = 0, shift = 32; level < LEVELS; level++) {
        const int above = shift;
        shift = level == 0 ? FIRST_SHIFT : level == 1 ? 11 : 0;
        const uint32_t mask = level == 2 ? 2047 : 1023;
        for (int i = threadIdx.x; i < BINS; i += blockDim.x)
            room->amount[i] = 0, room->count[i] = 0;
        __syncthreads();
#pragma unroll 8
        for (int i = threadIdx.x; i < r.n; i += blockDim.x) {
            const uint32_t key = token_key(r, i);
            if (key >= within.key || (level && key >> above != prefix))
                continue;
            atomicAdd(&room->amount[key >> shift & mask], fraction > 0 ? mass_of(key) : 1);
            atomicAdd(&room->count[key >> shift & mask], 1u);
        }
        __syncthreads();
        if (threadIdx.x == 0 && within.ties && (!level || within.key >> above == prefix)) {
            room->amount[within.key >> shift & mask] += within.ties * (fraction > 0 ? mass_of(within.key) : 1);
            room->count[within.key >> shift & mask] += (unsigned)within.ties;
        }
        __syncthreads();
        if (threadIdx.x < 32)
            find_bin(room, wanted - before, level ? 0 : share);
        __syncthreads();
        bin = room->bin;
        wanted = level ? wanted : room->total;
        before += room->before;
        prefix = level == 0 ? bin : level == 1 ? prefix << 10 | bin : prefix << 11 | bin;
        const unsigned count = room->count[bin];
        __syncthreads();                /* the room is read */
        if (level < 2 && count == 1 && (prefix + 1) << shift <= within.key) {
            const sample_cut cut = { (prefix + 1) << shift, 0 };
            return cut;
        }
    }
    const unsigned long long each = fraction > 0 ? mass_of(prefix) : 1;
    const sample_cut cut = { prefix, (wanted - before + each - 1) / each };
    return cut;
}

/* The token at which the sum of masses, in order of ids, passes the fraction random / 2^64 of the
 * total.  Each warp adds up a piece of the row, and the piece with that token is divided again. */
DEVICE int draw(sample_room *room, const sample_row &r, const sample_cut &cut, uint64_t random)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_warps = blockDim.x / 32;
    const unsigned long long tie_mass = cut.key != NO_KEY && weight_of(cut.key) >= r.min_p ? mass_of(cut.key) : 0;
    unsigned long long ties = cut.ties, target = 0;
    for (int begin = 0, end = r.n, first = 1;; first = 0) {
        const int piece = (end - begin + n_warps - 1) / n_warps, from = begin + warp * piece,
                  to = min(from + piece, end);
        unsigned long long mass = 0;
        unsigned equal = 0;
#pragma unroll 4
        for (int i = from + lane; i < to; i += 32) {
            const uint32_t key = token_key(r, i);
            mass += key < cut.key && weight_of(key) >= r.min_p ? mass_of(key) : 0;
            equal += key == cut.key && key != NO_KEY;
        }
        mass = warp_sum64(mass);
        equal = (unsigned)warp_sum64(equal);
        if (lane == 0) {
            room->warp_mass[warp] = mass;
            room->warp_ties[warp] = equal;
        }
        __syncthreads();
        if (first) {
            unsigned long long all = 0, left = ties;
            for (int i = 0; i < n_warps; i++) {
                const unsigned long long kept = room->warp_ties[i] < left ? room->warp_ties[i] : left;
                all += room->warp_mass[i] + kept * tie_mass;
                left -= kept;
            }
            target = multiply_high(random, all);
        }
        int i = 0;
        for (;; i++) {
            const unsigned long long kept = room->warp_ties[i] < ties ? room->warp_ties[i] : ties,
                all = room->warp_mass[i] + kept * tie_mass;
            if (target < all || i == n_warps - 1)
                break;
            target -= all;
            ties -= kept;
        }
        __syncthreads();                /* the room is read */
        begin += i * piece;
        end = min(begin + piece, end);
        if (end - begin <= 1)
            return r.id ? r.id[begin] : begin;
    }
}

__global__ __launch_bounds__(THREADS) void sample_kernel(struct gpu_sample o)
{
    follow_previous();
    SHARED(sample_room, room);
    const int row = blockIdx.y, n_parts = gridDim.x, each = (o.vocab + n_parts - 1) / n_parts,
              begin = blockIdx.x * each;
    const gpu_draw d = o.draws[row];
    const float *x = o.logits + (size_t)row * o.vocab;
    /* the loads need not wait for the draw, which nearly all rows want */
    gpu_sample_part best = find_largest(room, x, begin, min(begin + each, o.vocab));
    if (n_parts > 1) {
        gpu_sample_part *const part = o.part + (size_t)row * n_parts;
        if (threadIdx.x == 0)
            part[blockIdx.x] = best;
        if (!last_block(o.arrived + row, n_parts, &room->bin))
            return;
        best = best_of_parts(part, n_parts);
    }
    int token = d.top_k < 0 || best.key == NO_LOGIT || best.key == BAD_LOGIT ? -1 : best.at;
    if (token >= 0 && d.temperature > 0) {
        const bool counts = d.top_k > 0 && d.top_k < o.vocab;
        sample_row r = { x, o.vocab, of_key(best.key), d.temperature, d.min_p, nullptr, nullptr };
        sample_cut cut = { NO_KEY, 0 };
        unsigned long long wanted = 0;
        if (counts || d.top_p < 1)
            wanted = list_tokens(room, &r, counts ? d.top_k : 0, counts ? 0 : d.top_p);
        if (counts)
            cut = select(room, r, cut, d.top_k, 0);
        if (d.top_p < 1)
            cut = select(room, r, cut, counts ? 0 : wanted, d.top_p);
        token = draw(room, r, cut, philox_u64((uint64_t)d.seed[1] << 32 | d.seed[0], (uint64_t)d.n[1] << 32 | d.n[0]));
    }
    if (threadIdx.x == 0)
        o.id[row] = token;
}

extern "C" int gpu_sample(struct gpu *g, const struct gpu_sample *o, struct err *e)
{
    return launch(g, "sample", sample_kernel, dim3((unsigned)gpu_sample_parts(o->n, o->vocab), (unsigned)o->n),
                  GPU_SAMPLE_THREADS(o->vocab), sizeof(sample_room), e, *o);
}
