/* choose.cuh - the choice of the experts of one token by all warps of a block; and the scores,
 * weights and slots of experts, as the router's other choices compute them (route.cu). */
#ifndef ZSE_GPU_PRIM_CHOOSE_CUH
#define ZSE_GPU_PRIM_CHOOSE_CUH

#include "gpu/prim/operands.h"
#include "gpu/prim/order.cuh"

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

/* The slot that has an expert now; below 0: none. */
DEVICE int slot_of(const gpu_route &r, int expert)
{
    if (!r.place)
        return expert;
    const int place = r.place[expert], at = -1 - place - r.stream_first;
    return r.stream_n == 0 ? place : place < 0 && at < r.stream_n ? at : -1;
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

/* Store the outputs of a list, or scores that depend on nothing else, and the keys.  raw: outputs
 * are stored as they are. */
template <class OUTPUT>
DEVICE void key_list(const gpu_route &r, const ranks &k, int list, int lane, bool raw, OUTPUT output)
{
    const int i = 32 * list + lane;
    float x = 0;
    uint32_t mine = 0;
    if (i < r.n_experts) {
        x = output(i);
        mine = key_of(x);
        if (!raw && (r.router == GPU_ROUTER_SIGMOID || r.router == GPU_ROUTER_SQRT_SOFTPLUS)) {
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

/* GPU_ROUTER_SOFTMAX: store scores of outputs times `by` before they are divided by their sum.
 * Returns the lane's part of the sum, as in score_all(). */
DEVICE float score_lists(const gpu_route &r, const ranks &k, float by, int lane)
{
    uint32_t best = 0;
    float sum = 0;
#pragma unroll 4
    for (int list = 0; list < k.n_lists; list++) {
        const uint32_t key = k.key[64 * list + lane];
        best = key > best ? key : best;
    }
    const float most = of_key(__reduce_max_sync(FULL_WARP, best)) * by;
#pragma unroll 4
    for (int i = lane; i < r.n_experts; i += 32) {
        const float score = score_of(GPU_ROUTER_SOFTMAX, k.output[i] * by, most);
        k.output[i] = score;
        sum += score;
    }
    return sum;
}

/* Warps with a task of their own in the choice of the only token's experts. */
enum { CHOICE_WEIGHING, CHOICE_SORTING };

/* Choose the experts of the only token with the threads of the first WARPS warps of a block, whose
 * barrier is sync(), where gpu_chooses_only() allows it.  output(i): the router's output i; lane l
 * of warp w asks for output 32 * (w + n * WARPS) + l.  raw: it is not multiplied yet by a factor
 * above 0 on which the choice does not depend: the router has no correction.  room:
 * gpu_choose_only_bytes().  Lane k of the two warps above returns the k-th expert; weigh_only() may
 * follow after a barrier of all threads. */
template <int WARPS, class OUTPUT, class SYNC>
DEVICE int choose_ids(const gpu_route &r, float *room, bool raw, OUTPUT output, SYNC sync)
{
    enum { SHARING = WARPS - 2, SCORING };
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const ranks k = ranks_of(r, room);
    const bool scores = r.router == GPU_ROUTER_SOFTMAX && !raw,
               shares = warp == SHARING && lane == 0 && r.choice.shared;
    const float shared = shares ? output(r.n_experts) : 0;
    for (int list = warp; list < k.n_lists; list += WARPS)
        key_list(r, k, list, lane, raw, output);
    sync();                             /* the keys are there */
    if (shares)
        r.choice.shared[0] = sigmoid(shared);
    float sum = warp == SCORING && scores ? score_lists(r, k, 1, lane) : 0;
    for (int list = warp; list < k.n_lists; list += WARPS)
        rank_list(k, list, lane);
    sync();                             /* the lists are there */
    if (warp == SCORING && scores) {
        sum = warp_sum(sum);
        if (lane == 0)
            *k.sum = sum;
    }
    return warp <= CHOICE_SORTING ? rank_best(r, k, k.chosen + 32 * warp, lane) : 0;
}

/* Weigh the experts of choose_ids().  by: the factor of outputs that are raw.  Only the warp
 * CHOICE_WEIGHING calls it, and its lane k returns the weight of the k-th. */
DEVICE float weigh_only(const gpu_route &r, float *room, bool raw, float by, int id)
{
    const ranks k = ranks_of(r, room);
    const int lane = threadIdx.x % 32;
    float sum = 1, score = 0;
    if (r.router == GPU_ROUTER_SOFTMAX) {
        sum = raw ? warp_sum(score_lists(r, k, by, lane)) : *k.sum;
        __syncwarp();                   /* the scores are there */
    }
    if (lane < r.top_k)
        score = k.output[id];
    if (r.router == GPU_ROUTER_SOFTMAX)
        score /= sum;
    else if (raw)
        score = r.router == GPU_ROUTER_TOP_SOFTMAX ? score * by : score_of(r.router, score * by, 0);
    return weight_of(r, score, lane);
}

/* Choose, sort the pairs, and weigh.  The arrays of r.choice may be in shared memory, too.  Other
 * threads may read them, and write to the room, after a __syncthreads(). */
template <int WARPS, class OUTPUT> DEVICE void choose_only(const gpu_route &r, float *room, OUTPUT output)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32,
              id = choose_ids<WARPS>(r, room, false, output, [] { __syncthreads(); });
    if (warp == CHOICE_SORTING && r.sort)
        sort_one(r, lane < r.top_k && r.pos[0] >= 0 ? id : -1, lane);
    __syncthreads();                    /* the scores and their sum are there */
    if (warp != CHOICE_WEIGHING)
        return;
    const float weight = weigh_only(r, room, false, 1, id);
    if (lane < r.top_k) {
        r.choice.id[lane] = r.pos[0] < 0 ? -1 : id;
        r.choice.weight[lane] = weight;
    }
}

#endif
