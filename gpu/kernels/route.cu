/* route.cu - the choice of experts: scores from the router's outputs, the best top_k and their
 * weights, pairs of token and expert sorted into tiles of work; and the weighted sum of results.
 *
 * Up to 16 tokens: one launch also multiplies by a router of type f32.  Its blocks each store one
 * part of the outputs of 32 experts; the block that stores the last part chooses and sorts.  Up to
 * 4 tokens: each block also norms the inputs, which saves the block that ends the launch before a
 * fence, a count and the load of the row; the first blocks store a row each.
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
#include "gpu/prim/choose.cuh"
#include "gpu/prim/experts.cuh"
#include "gpu/prim/norm.cuh"
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

/* ---- kernels ---- */

/* Choose the experts of this block's tokens, and sort the pairs.  room: gpu_choice_bytes(). */
DEVICE void choose_tokens(const gpu_route &r, float *room, int block, int n_blocks)
{
    if (gpu_chooses_only(&r)) {
        choose_only<WARPS>(r, room, [&](int i) { return output_of(r, i); });
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

/* The block that stores the last part chooses; the first blocks store normed rows, for the kernels
 * that follow. */
__global__ __launch_bounds__(BLOCK) void route_kernel(gpu_route r)
{
    launch_dependents();
    SHARED(float, room);
    add_part(r, room);
    if (last_block(r.arrived, gridDim.x * gridDim.y, reinterpret_cast<unsigned *>(room)))
        choose_tokens(r, room + 4, 0, 1);
    for (int t = blockIdx.y * gridDim.x + blockIdx.x; r.norm.x && t < r.n; t += gridDim.x * gridDim.y)
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
