/* route.cu - the choice of experts: scores from the router's outputs, the best top_k and their
 * weights, pairs of token and expert sorted into tiles of work; and the weighted sum of results.
 *
 * Up to 16 tokens: one launch also multiplies by a router of type f32.  Its blocks each store one
 * part of the outputs of 32 experts; the block that stores the last part chooses and sorts.  Up to
 * 4 tokens: each block also norms the inputs, which saves the block that ends the launch before a
 * fence, a count and the load of the row; one block stores them.
 *
 * shapes   router outputs [n_parts][n][ld] f32 -> ids and weights [n * top_k], tiles for the
 *          kernels of experts; results [n * top_k][cols] f32 -> [n][cols]
 * tile     choose: a warp a token; lane i has experts i, i + 32 ...  For one token a block ranks
 *          all experts, if no groups of them are chosen first.  sort: every block counts the
 *          pairs of all experts in shared memory and places those of its own experts, a warp an
 *          expert; up to 16 tokens one block of choose does both, so a layer has one launch less.
 *          sum: 256 elements a block
 * order    a token's choice and sum depend only on its own scores; integer counts do not depend on
 *          the order of threads, and the pairs of an expert are sorted
 * moves    choose: n * n_experts * 4 bytes for each part; sort: n * top_k * 4 bytes a block (80 KB
 *          with 2048 tokens and 10 experts, from L2); sum: n * top_k * cols * 4 bytes
 * limit    the launch, and latencies: for one token and 128 experts of which 8 are chosen about
 *          1800 cycles after the launch, 750 of them the choice; a warp that finds one expert after
 *          the other takes 1200 (calculated, not run on a GPU).  Sum: HBM with many tokens
 * checked  tests/unit/t-gpu-experts.c */
#include "gpu/kernels/operations.h"
#include "gpu/prim/experts.cuh"
#include "gpu/prim/norm.cuh"
#include "gpu/prim/order.cuh"
#include "gpu/rt/launch.cuh"

enum { WARPS = GPU_CHOICE_WARPS, BLOCK = WARPS * 32, PAD = 33 };

/* ---- the choice of a warp ---- */

/* The largest of a lane's keys and its index; of equal keys the first. */
struct best_key { uint32_t key; int at; };
DEVICE best_key best_of_lane(const uint32_t *key, int n, int lane)
{
    best_key b = { 0, lane };
    for (int i = lane; i < n; i += 32)
        if (key[i] > b.key)
            b = { key[i], i };
    return b;
}
DEVICE best_key best_of_warp(best_key b)
{
    const uint32_t key = __reduce_max_sync(FULL_WARP, b.key);
    return { key, (int)__reduce_min_sync(FULL_WARP, b.key == key ? (uint32_t)b.at : FULL_WARP) };
}

DEVICE float sigmoid(float x) { return 1 / (1 + expf(-x)); }

DEVICE float score_of(int router, float x, float most)
{
    if (router == GPU_ROUTER_SIGMOID)
        return sigmoid(x);
    if (router == GPU_ROUTER_SQRT_SOFTPLUS) {   /* log(1 + e), where 1 + e is rounded to u */
        const float e = expf(x), u = 1 + e;
        return sqrtf(x > 20 ? x : u == 1 ? e : logf(u) * (e / (u - 1)));
    }
    return expf(x - most);
}

/* Turn the router's outputs into scores, in place; a lane does its own experts. */
DEVICE void score_all(const gpu_route &r, float *score, int lane)
{
    uint32_t best = 0;
    float sum = 0;
    for (int i = lane; i < r.n_experts; i += 32) {
        const uint32_t key = key_of(score[i]);
        best = key > best ? key : best;
    }
    const float most = of_key(__reduce_max_sync(FULL_WARP, best));
    for (int i = lane; i < r.n_experts; i += 32) {
        score[i] = score_of(r.router, score[i], most);
        sum += score[i];
    }
    sum = warp_sum(sum);
    for (int i = lane; i < r.n_experts && r.router == GPU_ROUTER_SOFTMAX; i += 32)
        score[i] /= sum;
}

/* Mark the experts outside of the best groups as taken; lane i has group i. */
DEVICE void limit_groups(const gpu_route &r, uint32_t *key, int lane)
{
    const int size = r.n_experts / r.n_groups;
    uint32_t mine = 0, chosen = 0;
    __syncwarp();                       /* keys of other lanes */
    if (lane < r.n_groups) {
        float good = 0;
        uint32_t above = ~0u;           /* key of the previous best; last: its index */
        int last = -1;
        for (int k = 0; k < r.group_best; k++) {
            best_key b = { 0, size };
            for (int i = 0; i < size; i++) {
                const uint32_t u = key[lane * size + i];
                if (u > b.key && (u < above || (u == above && i > last)))
                    b = { u, i };
            }
            if (b.at == size)
                break;
            good += of_key(b.key);
            above = b.key;
            last = b.at;
        }
        mine = key_of(good);
    }
    for (int i = 0; i < r.top_groups; i++) {
        const best_key b = best_of_warp({ mine, lane });
        chosen |= 1u << b.at;
        if (lane == b.at)
            mine = 0;
    }
    __syncwarp();
    for (int i = lane; i < r.n_experts; i += 32)
        if (!(chosen >> i / size & 1))
            key[i] = 0;
}

/* GPU_ROUTER_SPARSEMIXER: the weight of the best expert; call it before that expert is marked as
 * taken. */
DEVICE float sparse_weight(const gpu_route &r, const float *score, const uint32_t *key, float best_score, int lane)
{
    float sum = 0;
    for (int i = lane; i < r.n_experts; i += 32) {
        const float x = score[i], size = fabsf(x) > best_score ? fabsf(x) : best_score;
        if (key[i] && !((best_score - x) / size > r.mask))
            sum += expf(x - best_score);
    }
    return r.scale / warp_sum(sum);
}

/* warp_sum() of values that are 0 from lane n on, and not below 0: of up to eight it leaves out
 * steps that add zeros. */
DEVICE float sum_of_first(float x, int n)
{
    if (n > 8)
        return warp_sum(x);
    for (int i = 4; i; i /= 2)
        x += __shfl_xor_sync(FULL_WARP, x, i);
    return x;
}

/* Returns the router's weight of the expert that was chosen as number `lane`, from its score; 0 for
 * lanes from top_k on. */
DEVICE float weight_of(const gpu_route &r, float score, int lane)
{
    const bool mine = lane < r.top_k, top = r.router == GPU_ROUTER_TOP_SOFTMAX;
    if (top) {
        const float most = warp_max(mine ? score : -INFINITY);
        score = mine ? expf(score - most) : 0;
    }
    float sum = sum_of_first(mine ? score : 0, r.top_k) + r.norm_add;
    sum = sum < r.norm_min ? r.norm_min : sum;
    return (r.normalize || top ? score / sum : score) * r.scale;
}

/* Output `at` of the router, which is the sum of its parts.  The loads of eight parts are in flight
 * together. */
DEVICE float output_of(const gpu_route &r, size_t at)
{
    enum { TOGETHER = 8 };
    float sum = 0;
    for (int first = 0; first < r.n_parts; first += TOGETHER) {
        float part[TOGETHER];
#pragma unroll
        for (int p = 0; p < TOGETHER; p++)
            part[p] = first + p < r.n_parts ? load_shared_by_blocks(r.part + (first + p) * r.part_stride + at) : -0.0f;
#pragma unroll
        for (int p = 0; p < TOGETHER; p++)
            sum += part[p];
    }
    return sum;
}

/* The keys of up to 4 experts of a lane, the best first; of equal ones the first expert. */
enum { LANE_KEYS = 4 };
struct lane_keys { uint32_t key[LANE_KEYS]; int at[LANE_KEYS]; };
DEVICE void order_keys(lane_keys &q, int a, int b)
{
    if (q.key[b] < q.key[a] || (q.key[b] == q.key[a] && q.at[b] > q.at[a]))
        return;
    const uint32_t key = q.key[a];
    const int at = q.at[a];
    q.key[a] = q.key[b], q.at[a] = q.at[b];
    q.key[b] = key, q.at[b] = at;
}

/* The best top_k of up to 32 * LANE_KEYS experts, which the lanes keep in registers: a winner moves
 * up its lane's other keys.  They take the place of the keys. */
DEVICE void best_experts(const gpu_route &r, uint32_t *key, int lane)
{
    lane_keys q;
#pragma unroll
    for (int j = 0; j < LANE_KEYS; j++) {
        q.at[j] = lane + 32 * j;
        q.key[j] = q.at[j] < r.n_experts ? key[q.at[j]] : 0;
    }
    order_keys(q, 0, 1), order_keys(q, 2, 3), order_keys(q, 0, 2), order_keys(q, 1, 3), order_keys(q, 1, 2);
    __syncwarp();                       /* all keys are read */
    for (int k = 0; k < r.top_k; k++) {
        bool wins = q.key[0] == __reduce_max_sync(FULL_WARP, q.key[0]);
        const uint32_t all = __ballot_sync(FULL_WARP, wins);
        if (all & (all - 1)) {          /* several lanes: the first expert */
            const uint32_t at = __reduce_min_sync(FULL_WARP, wins ? (uint32_t)q.at[0] : FULL_WARP);
            wins = (uint32_t)q.at[0] == at;
        }
        if (wins) {
            key[k] = (uint32_t)q.at[0];
#pragma unroll
            for (int j = 0; j < LANE_KEYS - 1; j++)
                q.key[j] = q.key[j + 1], q.at[j] = q.at[j + 1];
            q.key[LANE_KEYS - 1] = 0;
        }
    }
    __syncwarp();                       /* the experts are there */
}

/* Choose the experts of one token, by one warp.  room: [n_experts] scores and [n_experts] keys.
 * Lane k returns the k-th expert; -1: none. */
DEVICE int choose_token(const gpu_route &r, int token, float *room, int lane)
{
    float *score = room;
    uint32_t *key = reinterpret_cast<uint32_t *>(room + r.n_experts);
    const size_t row = (size_t)token * r.ld;
#pragma unroll 4
    for (int i = lane; i < r.n_experts; i += 32) {
        const float x = output_of(r, row + i);
        score[i] = x;
        key[i] = key_of(x);
    }
    const bool corrected = r.router != GPU_ROUTER_TOP_SOFTMAX && r.router != GPU_ROUTER_SPARSEMIXER &&
                           (r.correction || r.n_groups > 1);
    if (r.router != GPU_ROUTER_TOP_SOFTMAX && r.router != GPU_ROUTER_SPARSEMIXER)
        score_all(r, score, lane);
    for (int i = lane; i < r.n_experts && corrected; i += 32)
        key[i] = key_of(r.correction ? score[i] + r.correction[i] : score[i]);
    if (corrected && r.n_groups > 1)
        limit_groups(r, key, lane);
    int id = 0;
    float weight = 0;
    const bool few = r.n_experts <= 32 * LANE_KEYS && r.router != GPU_ROUTER_SPARSEMIXER;
    if (few) {
        best_experts(r, key, lane);
        id = lane < r.top_k ? (int)key[lane] : 0;
        weight = lane < r.top_k ? score[id] : 0;
    }
    best_key mine = few ? best_key{ 0, 0 } : best_of_lane(key, r.n_experts, lane);
    for (int k = 0; k < r.top_k && !few; k++) {
        const best_key b = best_of_warp(mine);
        const float s = __shfl_sync(FULL_WARP, lane == b.at % 32 ? score[b.at] : 0, b.at % 32),
                    w = r.router == GPU_ROUTER_SPARSEMIXER ? sparse_weight(r, score, key, s, lane) : s;
        if (lane == k) {
            id = b.at;
            weight = w;
        }
        if (lane == b.at % 32) {
            key[b.at] = 0;
            mine = best_of_lane(key, r.n_experts, lane);
        }
    }
    if (r.router != GPU_ROUTER_SPARSEMIXER)
        weight = weight_of(r, weight, lane);
    id = lane >= r.top_k || r.pos[token] < 0 ? -1 : id;
    if (lane < r.top_k) {
        r.choice.id[token * r.top_k + lane] = id;
        r.choice.weight[token * r.top_k + lane] = weight;
    }
    if (lane == 0 && r.choice.shared)
        r.choice.shared[token] = sigmoid(output_of(r, row + r.n_experts));
    return id;
}

/* ---- sorting ---- */

/* The slot that has an expert now; below 0: none. */
DEVICE int slot_of(const gpu_route &r, int expert)
{
    if (!r.place)
        return expert;
    const int place = r.place[expert], at = -1 - place - r.stream_first;
    return r.stream_n == 0 ? place : place < 0 && at < r.stream_n ? at : -1;
}

/* The sum of x over the lanes up to and including this one. */
DEVICE int sum_to_lane(int x, int lane)
{
    for (int d = 1; d < 32; d *= 2) {
        const int below = __shfl_sync(FULL_WARP, x, lane >= d ? lane - d : lane);
        x += lane >= d ? below : 0;
    }
    return x;
}

/* Compute the index of the first pair and of the first tile of every expert from count, the numbers
 * of their pairs. */
DEVICE void place_experts(const gpu_route &r, const unsigned *count, int *pair, int *tile, int *total,
                          int block)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, each = (r.n_experts + BLOCK - 1) / BLOCK,
              first = threadIdx.x * each, end = min(first + each, r.n_experts);
    int pairs = 0, tiles = 0;
    for (int i = first; i < end; i++) {
        pairs += (int)count[i];
        tiles += ((int)count[i] + r.tile - 1) / r.tile;
    }
    int pairs_to = sum_to_lane(pairs, lane), tiles_to = sum_to_lane(tiles, lane);
    if (lane == 31) {
        total[2 * warp] = pairs_to;
        total[2 * warp + 1] = tiles_to;
    }
    __syncthreads();
    for (int w = 0; w < warp; w++) {
        pairs_to += total[2 * w];
        tiles_to += total[2 * w + 1];
    }
    pairs_to -= pairs;
    tiles_to -= tiles;
    for (int i = first; i < end; i++) {
        pair[i] = pairs_to;
        tile[i] = tiles_to;
        pairs_to += (int)count[i];
        tiles_to += ((int)count[i] + r.tile - 1) / r.tile;
    }
    if (threadIdx.x == BLOCK - 1 && block == 0)
        *r.choice.n_tiles = tiles_to;
    __syncthreads();
}

/* Sort pairs by expert, with all threads of this block as part `block` of n_blocks.  room: 3 *
 * n_experts + 2 * WARPS words. */
DEVICE void sort_pairs(const gpu_route &r, unsigned *room, int block, int n_blocks)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n_pairs = r.n * r.top_k;
    unsigned *count = room;
    int *pair = reinterpret_cast<int *>(room + r.n_experts), *tile = pair + r.n_experts, *total = tile + r.n_experts;
    for (int i = threadIdx.x; i < r.n_experts; i += BLOCK)
        count[i] = 0;
    __syncthreads();
    for (int p = threadIdx.x; p < n_pairs; p += BLOCK)
        if (r.choice.id[p] >= 0 && slot_of(r, r.choice.id[p]) >= 0)
            atomicAdd(&count[r.choice.id[p]], 1u);
    __syncthreads();
    place_experts(r, count, pair, tile, total, block);
    for (int i = threadIdx.x; i < r.n_experts && block == 0; i += BLOCK)
        for (int at = 0, k = tile[i]; at < (int)count[i]; at += r.tile, k++)
            r.choice.tiles[k] = { slot_of(r, i), pair[i] + at, min(r.tile, (int)count[i] - at) };
    for (int i = block * WARPS + warp; i < r.n_experts; i += n_blocks * WARPS) {
        int at = pair[i];
        for (int p0 = 0; p0 < n_pairs && count[i]; p0 += 32) {
            const int p = p0 + lane, mine = p < n_pairs && r.choice.id[p] == i;
            const uint32_t all = __ballot_sync(FULL_WARP, mine);
            if (mine)
                r.choice.order[at + bits_set(all & ((1u << lane) - 1))] = p;
            at += bits_set(all);
        }
    }
}

/* Sort the pairs of the only token, by a warp whose lane k has the k-th expert. */
DEVICE void sort_one(const gpu_route &r, int id, int lane)
{
    const int slot = id < 0 ? -1 : slot_of(r, id);
    const uint32_t all = __ballot_sync(FULL_WARP, slot >= 0);
    int at = 0;
    for (int k = 0; k < r.top_k; k++) {
        const int other = __shfl_sync(FULL_WARP, id, k);
        at += (all >> k & 1) && other < id;
    }
    if (slot >= 0) {
        r.choice.tiles[at] = { slot, at, 1 };
        r.choice.order[at] = lane;
    }
    if (lane == 0)
        *r.choice.n_tiles = bits_set(all);
}

/* ---- the only token ---- */

/* The choice of one token by all warps of a block.  Experts stand in lists of 32, a warp a list.  A
 * lane counts the experts of its list that come before its own.  The first experts of each list are
 * stored in this order, and for each of them those of other lists that come before it are counted.
 * Keys are stored twice, the second time plus 1, which wins if keys are equal: a count reads the
 * keys that follow its own one, those of lower indexes the second time. */
struct ranks {
    float *output;                      /* [n_lists][32], scores after all */
    uint32_t *key;                      /* [n_lists][2][32] */
    uint32_t *best;                     /* [2][n_lists][per_list] keys */
    int *id;                            /* [n_lists][per_list] */
    int *chosen;                        /* [2][32]: the k-th expert, by two warps */
    float *sum;
    int n_lists, log_best;              /* per_list is 1 << log_best */
};
enum { WEIGHING, SORTING, SHARING = WARPS - 2, SCORING };      /* warps with a task of their own */

DEVICE ranks ranks_of(const gpu_route &r, float *room)
{
    ranks k;
    k.n_lists = (r.n_experts + 31) / 32;
    k.log_best = GPU_CHOICE_LOG(r.top_k);
    const int n_best = k.n_lists << k.log_best;
    k.output = room;
    k.key = reinterpret_cast<uint32_t *>(room + 32 * k.n_lists);
    k.best = k.key + 64 * k.n_lists;
    k.id = reinterpret_cast<int *>(k.best + 2 * n_best);
    k.chosen = k.id + n_best;
    k.sum = reinterpret_cast<float *>(k.chosen + 2 * 32);
    return k;
}

/* Store the outputs of a list, or scores that depend on nothing else, and the keys. */
DEVICE void key_list(const gpu_route &r, const ranks &k, int list, int lane)
{
    const int i = 32 * list + lane;
    float x = 0;
    uint32_t mine = 0;
    if (i < r.n_experts) {
        x = output_of(r, i);
        mine = key_of(x);
        if (r.router == GPU_ROUTER_SIGMOID || r.router == GPU_ROUTER_SQRT_SOFTPLUS) {
            x = score_of(r.router, x, 0);
            mine = r.correction ? key_of(x + r.correction[i]) : mine;
        }
    }
    k.output[i] = x;
    k.key[64 * list + lane] = mine;
    k.key[64 * list + 32 + lane] = mine + 1;
}

/* Store the first experts of a list. */
DEVICE void rank_list(const ranks &k, int list, int lane)
{
    const uint32_t *const keys = k.key + 64 * list, mine = keys[lane];
    int rank = 0;
#pragma unroll
    for (int d = 0; d < 8; d++) {       /* lanes by fours, from its own four on */
        const uint4 v = load16(keys + 4 * (lane / 4 + d));
#pragma unroll
        for (int j = 0; j < 4; j++)
            rank += word_of(v, j) + (d == 0 && j < lane % 4) > mine;
    }
    if (rank >> k.log_best == 0) {
        const int at = (list << k.log_best) + rank;
        k.best[at] = mine;
        k.best[(k.n_lists << k.log_best) + at] = mine + 1;
        k.id[at] = 32 * list + lane;
    }
}

/* Lane k returns the k-th expert of all, by one warp. */
DEVICE int rank_best(const gpu_route &r, const ranks &k, int *chosen, int lane)
{
    enum { TOGETHER = 8 };
    const int n_best = k.n_lists << k.log_best, per_list = 1 << k.log_best, n_others = n_best - per_list;
    for (int i = lane; i < n_best; i += 32) {
        const uint32_t mine = k.best[i], *const others = k.best + ((i >> k.log_best) + 1) * per_list;
        int rank = i & (per_list - 1);
        for (int first = 0; first < n_others; first += 4 * TOGETHER) {
            uint4 v[TOGETHER];
#pragma unroll
            for (int q = 0; q < TOGETHER; q++)
                v[q] = first + 4 * q < n_others ? load16(others + first + 4 * q) : make_uint4(0, 0, 0, 0);
#pragma unroll
            for (int q = 0; q < 4 * TOGETHER; q++)
                rank += word_of(v[q / 4], q % 4) > mine;
        }
        if (rank < r.top_k)
            chosen[rank] = k.id[i];
    }
    __syncwarp();                       /* the experts are there */
    return lane < r.top_k ? chosen[lane] : 0;
}

/* GPU_ROUTER_SOFTMAX: store scores before they are divided by their sum.  Returns the lane's part
 * of the sum, as in score_all(). */
DEVICE float score_lists(const gpu_route &r, const ranks &k, int lane)
{
    uint32_t best = 0;
    float sum = 0;
#pragma unroll 4
    for (int list = 0; list < k.n_lists; list++) {
        const uint32_t key = k.key[64 * list + lane];
        best = key > best ? key : best;
    }
    const float most = of_key(__reduce_max_sync(FULL_WARP, best));
#pragma unroll 4
    for (int i = lane; i < r.n_experts; i += 32) {
        const float score = score_of(GPU_ROUTER_SOFTMAX, k.output[i], most);
        k.output[i] = score;
        sum += score;
    }
    return sum;
}

/* Does choose_only() choose?  Groups of experts, and a correction of scores that are divided by
 * their sum, take more steps than that; with many experts their ranks take longer. */
DEVICE bool chooses_only(const gpu_route &r)
{
    return r.n == 1 && GPU_CHOICE_COMPARISONS(r.n_experts, r.top_k) <= GPU_CHOICE_ROUNDS &&
           (r.router == GPU_ROUTER_TOP_SOFTMAX ||
            (r.router != GPU_ROUTER_SPARSEMIXER && r.n_groups <= 1 &&
             !(r.router == GPU_ROUTER_SOFTMAX && r.correction)));
}

/* Choose the experts of the only token, and sort the pairs. */
DEVICE void choose_only(const gpu_route &r, float *room)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const ranks k = ranks_of(r, room);
    const bool none = r.pos[0] < 0, softmax = r.router == GPU_ROUTER_SOFTMAX,
               shares = warp == SHARING && lane == 0 && r.choice.shared;
    const float shared = shares ? output_of(r, r.n_experts) : 0;
    for (int list = warp; list < k.n_lists; list += WARPS)
        key_list(r, k, list, lane);
    __syncthreads();                    /* the keys are there */
    if (shares)
        r.choice.shared[0] = sigmoid(shared);
    float sum = warp == SCORING && softmax ? score_lists(r, k, lane) : 0;
    for (int list = warp; list < k.n_lists; list += WARPS)
        rank_list(k, list, lane);
    __syncthreads();                    /* the lists are there */
    if (warp == SCORING) {
        sum = warp_sum(sum);
        if (lane == 0)
            *k.sum = sum;
    }
    const int id = warp <= SORTING ? rank_best(r, k, k.chosen + 32 * warp, lane) : 0;
    if (warp == SORTING && r.sort)
        sort_one(r, lane < r.top_k && !none ? id : -1, lane);
    __syncthreads();                    /* the scores and their sum are there */
    if (warp != WEIGHING)
        return;
    float score = lane < r.top_k ? k.output[id] : 0;
    if (softmax)
        score /= *k.sum;
    score = weight_of(r, score, lane);
    if (lane < r.top_k) {
        r.choice.id[lane] = none ? -1 : id;
        r.choice.weight[lane] = score;
    }
}

/* ---- kernels ---- */

/* Choose the experts of this block's tokens, and sort the pairs.  room: gpu_choice_bytes(). */
DEVICE void choose_tokens(const gpu_route &r, float *room, int block, int n_blocks)
{
    if (chooses_only(r)) {
        choose_only(r, room);
        return;
    }
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int token = block * WARPS + warp; token < r.n; token += n_blocks * WARPS) {
        const int id = choose_token(r, token, room + (size_t)warp * 2 * r.n_experts, lane);
        if (r.n == 1 && r.sort)
            sort_one(r, id, lane);
    }
    if (!r.sort || r.n == 1)
        return;
    __syncthreads();                    /* the choices are stored, and the room can be reused */
    sort_pairs(r, reinterpret_cast<unsigned *>(room), block, n_blocks);
}

__global__ __launch_bounds__(BLOCK) void choose_kernel(gpu_route r)
{
    follow_previous();
    SHARED(float, room);
    choose_tokens(r, room, blockIdx.x, gridDim.x);
}

/* Compute one part of the outputs of 32 rows for all tokens: a warp multiplies 32 columns, with all
 * its loads in flight together.  room: [WARPS][n][32] inputs, [WARPS][n][PAD] sums. */
DEVICE void add_part(const gpu_route &r, float *room)
{
    static_assert((int)GPU_SPLIT_STEPS == (int)WARPS, "a warp has one step of a split");
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, step = blockIdx.y * WARPS + warp,
              which = (int)blockIdx.x >= r.w[0].n_tiles, tile = blockIdx.x - (which ? r.w[0].n_tiles : 0);
    const gpu_mat &m = r.w[which];
    float *x = room + (size_t)warp * r.n * 32, *sums = room + (size_t)WARPS * r.n * 32, w[32];
    const float *data = reinterpret_cast<const float *>(m.data + (size_t)tile * m.tile_bytes) + step * 1024 + lane;
    const int k = step * 32 + lane, here = k < m.cols;
    const float factor = r.norm.w && here ? r.norm.w[k] + r.norm.offset : 1;
#pragma unroll
    for (int i = 0; i < 32; i++)
        w[i] = step < m.n_steps ? data[32 * i] : 0;
    wait_for_prerequisites();           /* the weights are under way meanwhile */
    if (r.norm.x) {
        for (int t = 0; t < r.n; t++) {
            const float *const row = r.norm.x + (size_t)t * r.norm.ldx, mine = here ? row[k] : 0;
            row_runs<BLOCK> v;
            load_runs<BLOCK>(v, row, r.norm.cols, 0);
            x[32 * t + lane] = mine * norm_inverse<BLOCK>(v, r.norm, sums) * factor;
        }
        __syncthreads();                /* the sums of squares are read */
    } else {
        for (int t = 0; t < r.n; t++)
            x[32 * t + lane] = here ? r.x[(size_t)t * r.ldx + k] : 0;
        __syncwarp();
    }
#pragma unroll 2
    for (int t = 0; t < r.n; t++) {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < 32; i++)
            sum = fmaf(w[i], x[32 * t + i], sum);
        sums[(warp * r.n + t) * PAD + lane] = sum;
    }
    __syncthreads();
    for (int o = threadIdx.x; o < r.n * 32; o += BLOCK) {
        const int t = o / 32, row = tile * 32 + o % 32;
        float y = 0;
        for (int k = 0; k < WARPS; k++)
            y += sums[(k * r.n + t) * PAD + o % 32];
        if (row < m.rows)
            r.part[blockIdx.y * r.part_stride + (size_t)t * r.ld + (which ? r.n_experts : 0) + row] =
                r.bias[which] && blockIdx.y == 0 ? y + r.bias[which][row] : y;
    }
}

/* The block that stores the last part chooses; the first one stores normed rows, for the kernels
 * that follow. */
__global__ __launch_bounds__(BLOCK) void route_kernel(gpu_route r)
{
    launch_dependents();
    SHARED(float, room);
    add_part(r, room);
    if (last_block(r.arrived, gridDim.x * gridDim.y, reinterpret_cast<unsigned *>(room)))
        choose_tokens(r, room + 4, 0, 1);
    if (r.norm.x && blockIdx.x + blockIdx.y == 0)
        for (int t = 0; t < r.n; t++)
            norm_in_registers<BLOCK>(r.norm, t, room);
}

__global__ __launch_bounds__(BLOCK) void sort_kernel(gpu_route r)
{
    follow_previous();
    SHARED(unsigned, room);
    sort_pairs(r, room, blockIdx.x, gridDim.x);
}

extern "C" int gpu_choose(struct gpu *g, const struct gpu_route *r, struct err *e)
{
    const size_t choose = gpu_choice_bytes(r->n, r->n_experts, r->top_k, r->sort),
                 multiply = sizeof(float) * WARPS * (32 + PAD) * (size_t)r->n;
    if (r->n_mats > 0)
        return launch(g, "route", route_kernel, dim3((unsigned)(r->w[0].n_tiles + (r->n_mats > 1 ? r->w[1].n_tiles : 0)),
                                                     (unsigned)r->n_parts), BLOCK,
                      multiply > choose + 16 ? multiply : choose + 16, e, *r);
    return launch(g, "choose", choose_kernel, dim3((unsigned)(r->sort ? 1 : (r->n + WARPS - 1) / WARPS)), BLOCK,
                  choose, e, *r);
}

extern "C" int gpu_sort_pairs(struct gpu *g, const struct gpu_route *r, struct err *e)
{
    return launch(g, "sort", sort_kernel, dim3((unsigned)(r->n_experts + WARPS - 1) / WARPS), BLOCK,
                  gpu_sort_bytes(r->n_experts), e, *r);
}

/* ---- the weighted sum of results ---- */

__global__ __launch_bounds__(BLOCK) void expert_sum_kernel(struct gpu_expert_sum o)
{
    follow_previous();
    const int k = blockIdx.x * BLOCK + threadIdx.x;
    if (k < o.cols)
        expert_sum_store(o, blockIdx.y, k);
}

extern "C" int gpu_expert_sum(struct gpu *g, const struct gpu_expert_sum *o, struct err *e)
{
    return launch(g, "expert_sum", expert_sum_kernel, dim3((unsigned)(o->cols + BLOCK - 1) / BLOCK, (unsigned)o->n),
                  BLOCK, 0, e, *o);
}
