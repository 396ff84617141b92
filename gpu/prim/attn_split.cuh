/* attn_split.cuh - attention of one token to one split of its context, GPU_SPLIT positions, and the
 * merge of the splits (attn_decode.cu).
 *
 * tile     a block of 8 warps: one token, one KV head with up to GROUP query heads that share it,
 *          one split.  Scores: a warp takes KV blocks of 16 positions, of which a split has 8;
 *          a lane multiplies every 16th element of 8 of these positions, so that a load of the warp
 *          is 512 contiguous bytes of f16; lanes then add up their sums by shuffles, each of which
 *          exchanges half as many values as the one before.  Values: a thread has 8 elements and
 *          loops over positions
 * moves    keys and values of the split once, for all heads that share them: for each position and
 *          KV head 4 * head_dim bytes of f16 or bf16, 2 * head_dim + 8 of fp8 or i8, head_dim + 8
 *          of i4, head_dim / 2 of ternary and 8 for all heads together (calculated).  With a tail,
 *          192 to 256 positions of a sequence are f16
 * limit    HBM for long contexts: with one fma per key element and query head, 4 heads use a third
 *          of an SM's lanes at an H200's bandwidth (calculated); codes of 8 bits halve the bytes
 *          and add two instructions for four elements.  A code of 4 bits takes three instructions
 *          (shift left, shift right, convert), of ternary four, instead of half of one for f16; so
 *          4 query heads need 7 and 8 instructions an element instead of 4.5, and a lane's rate
 *          limits ternary: per byte that is 16 times the instructions of f16 (calculated)
 * checked  tests/unit/t-gpu-attention.c
 *
 * Latent attention: up to 8 heads read the same latents.  A warp computes the scores of one
 * position after the other, with 8 elements a lane at a time.
 *
 * The only token of a step is prepared here: each block norms and rotates its queries, and a block
 * of the newest position stores the key and the value, which only blocks of that position read,
 * from copies of their own.  Older keys and values are no results of the step's launches: blocks
 * copy those of their split to shared memory before they wait for the projections.  A split of f16
 * with heads of 128 is 64 KB.
 *
 * If several blocks share a KV head, one stores the newest key and value while the others copy the
 * KV block that has them: 16 bytes of it are one element of 8 or 16 keys, so a copy cannot leave
 * out the newest key.  This race does not change results.  KV_COPIED has only formats of whole
 * bytes, so the store changes no bytes of other slots, and their copies are right.  A copy may have
 * old or new bytes of the newest slot: add_newest() overwrites all of them, and the scale, before
 * they are read.  Slots behind it are never used.
 *
 * A block stores its sums in global memory, and the block of a token and its heads that ends last
 * merges the splits: a warp computes the weights of a head's splits, then each thread adds up two
 * elements in the order of the splits.  Nothing depends on the order of blocks or the other
 * tokens of the batch. */
#ifndef ZSE_GPU_PRIM_ATTN_SPLIT_CUH
#define ZSE_GPU_PRIM_ATTN_SPLIT_CUH

#include "gpu/prim/heads.cuh"
#include "gpu/prim/kv.cuh"
#include "gpu/prim/weights.cuh"

/* SPLIT_EACH: elements of a value that a thread adds up. */
enum { SPLIT_WARPS = 8, SPLIT_THREADS = SPLIT_WARPS * 32, SPLIT_EACH = 8 };

/* The work of a block: query heads first_head .. + n_group of one KV head, positions [from, to) of
 * the token's context; from is the start of a KV block. */
struct split_job {
    /* start: position of score[0]; begin: first position seen */
    int t, pos, kv_head, first_head, n_group, start, begin, from, to;
    kv_place kv, tail;                  /* tail.base NULL: there is none */
};

/* blockIdx: the split, the group of heads (passes for each KV head), and the index in o.rows. */
template <int GROUP> DEVICE split_job split_job_of(const gpu_attention &o, int passes)
{
    const int head = blockIdx.y / passes, share = o.n_heads / o.n_kv_heads;
    split_job j;
    j.kv_head = head;
    j.t = o.rows[blockIdx.z];
    j.pos = o.step.pos[j.t];
    j.first_head = head * share + blockIdx.y % passes * GROUP;
    j.n_group = min(GROUP, (head + 1) * share - j.first_head);
    j.start = blockIdx.x * GPU_SPLIT;
    j.begin = first_seen(j.pos, o.window, o.chunk);
    j.from = max(j.start, j.begin / KV_BLOCK * KV_BLOCK);
    j.to = min(j.start + GPU_SPLIT, j.pos + 1);
    j.kv = kv_place_of(o.kv.blocks, o.step.tables + o.step.table_of[j.t], head);
    j.tail = {};
    if (o.kv.tail.base)
        j.tail = kv_place_of(o.kv.tail, o.step.tables + o.step.tail_of[j.t], head);
    return j;
}

/* The number of splits of the token; the first one has the position `begin`. */
DEVICE int n_splits_of(const split_job &j) { return j.pos < 0 ? 0 : j.pos / GPU_SPLIT - j.begin / GPU_SPLIT + 1; }

/* Whether the 16 positions from p0 on are read from the tail. */
template <int KV> DEVICE int in_tail(const split_job &j, int p0)
{
    return KV_TAILED<KV> && j.tail.base && kv_in_tail(p0, j.pos);
}

/* Whether the token's key and value belong to this split. */
DEVICE int has_newest(const split_job &j) { return j.pos >= 0 && j.to == j.pos + 1; }

/* Prepare the queries of the group, and the token's key and value if they belong to this split.
 * stores: store them.  q [GROUP][n], room [2][n]. */
template <int KV> DEVICE void prepare_group(float *q, float *room, const gpu_attention &o, const split_job &j,
                                            bool stores)
{
    const int lane = threadIdx.x % 32, n = o.head_dim;
    for (int i = threadIdx.x / 32; i < j.n_group + 2 * has_newest(j); i += SPLIT_WARPS) {
        if (i < j.n_group) {
            const float by = temper_of(o.prepare.temper, j.pos);
            prepare_head(q + i * n, o.prepare, HEAD_OF_QUERY, j.t, j.first_head + i, lane);
            for (int d = lane; d < n; d += 32)
                q[i * n + d] *= by;
        } else {
            const int is_k = i == j.n_group;
            float *const x = room + (is_k ? 0 : n);
            prepare_head(x, o.prepare, is_k ? HEAD_OF_KEY : HEAD_OF_VALUE, j.t, j.kv_head, lane);
            if (stores)
                store_prepared(x, o.prepare, KV, is_k, j.t, j.kv_head, lane);
        }
    }
}

/* Formats whose blocks are copied to shared memory. */
template <int KV> constexpr bool KV_COPIED = KV == KV_F16 || KV == KV_BF16 || KV == KV_F8 || KV == KV_I8;

/* The keys of a split's KV blocks, and their values, `part` bytes a block. */
struct split_copy { uint8_t *keys, *values; };

/* Start to copy the blocks of the split. */
DEVICE void copy_split(const split_copy &c, const gpu_attention &o, const split_job &j)
{
    enum { CHUNK = 16 };
    const int part = (int)o.kv.blocks.part, chunks = 2 * part / CHUNK;
    for (int i = threadIdx.x; i < chunks; i += SPLIT_THREADS) {
        const int byte = i * CHUNK;
        uint8_t *to = (byte < part ? c.keys + byte : c.values + byte - part) + (j.from - j.start) / KV_BLOCK * part;
        for (int p0 = j.from; p0 < j.to; p0 += KV_BLOCK, to += part)
            copy_async(to, kv_keys(j.kv, o.kv.blocks, p0) + byte);
    }
    copy_commit();
}

/* Store the newest key and value, which prepare_group() has left in room, in the copies. */
template <int KV> DEVICE void add_newest(const split_copy &c, const float *room, const gpu_attention &o,
                                         const split_job &j)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n = o.head_dim;
    const int at = (j.pos - j.start) / KV_BLOCK * (int)o.kv.blocks.part;
    if (has_newest(j) && warp < 2)
        store_head((warp == 0 ? c.keys : c.values) + at, KV, warp == 0, j.pos % KV_BLOCK, room + warp * n, n, lane);
}

/* s[h][i]: this lane's part of the product of q[h] with the key of position 8 * (lane % 2) + i of
 * the block: the sum over every 16th element. */
template <int KV, int GROUP> DEVICE void lane_scores(float s[GROUP][8], const float *q, const uint8_t *block, int n)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < GROUP; h++)
#pragma unroll
        for (int i = 0; i < 8; i++)
            s[h][i] = 0;
#pragma unroll 8
    for (int d = lane / 2; d < n; d += 16) {
        float k[8];
        kv_load<KV>(k, block, d * KV_BLOCK + lane % 2 * 8);
#pragma unroll
        for (int h = 0; h < GROUP; h++) {
            const float x = q[h * n + d];
#pragma unroll
            for (int i = 0; i < 8; i++)
                s[h][i] = fmaf(x, k[i], s[h][i]);
        }
    }
}

/* The slot of the block for which a lane has the sum after fold(). */
DEVICE int folded_slot(int lane) { return lane % 2 * 8 + (lane >> 4 & 1) * 4 + (lane >> 3 & 1) * 2 + (lane >> 2 & 1); }

/* Sum up s over the 16 lanes that have the same positions.  After exchanges with the lanes at
 * distance 16, 8 and 4 a lane has one position left; a last exchange at distance 2 completes its
 * sum. */
DEVICE float fold(float s[8])
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int keep = 4; keep; keep /= 2) {
        const int upper = lane & (keep * 4);
#pragma unroll
        for (int i = 0; i < keep; i++) {
            const float give = upper ? s[i] : s[i + keep], stay = upper ? s[i + keep] : s[i];
            s[i] = stay + __shfl_xor_sync(FULL_WARP, give, keep * 4);
        }
    }
    return s[0] + __shfl_xor_sync(FULL_WARP, s[0], 2);
}

/* One warp computes score [GROUP][GPU_SPLIT] for the 16 positions from p0 on, whose keys are in
 * `block`; positions that the token does not attend to get -inf. */
template <int KV, int GROUP> DEVICE void score_block(float *score, const float *q, const gpu_attention &o,
                                                     const split_job &j, const uint8_t *block, int p0)
{
    const int lane = threadIdx.x % 32, slot = folded_slot(lane), p = p0 + slot;
    float s[GROUP][8];
    lane_scores<KV, GROUP>(s, q, block, o.head_dim);
    const float scale = kv_scale<KV>(block, kv_scales_at<KV>(o.kv, j.kv_head, o.head_dim, 0), slot) * o.scale;
#pragma unroll
    for (int h = 0; h < GROUP; h++) {
        float v = fold(s[h]) * scale;
        if (o.softcap > 0)
            v = o.softcap * tanhf(v / o.softcap);
        if (o.alibi)
            v = fmaf(h < j.n_group ? o.alibi[j.first_head + h] : 0, (float)(p - j.pos), v);
        if ((lane & 2) == 0)
            score[h * GPU_SPLIT + p - j.start] = p >= j.begin && p < j.to ? v : -INFINITY;
    }
}

/* score_block() for latents. */
template <int KV, int GROUP> DEVICE void latent_block(float *score, const float *q, const gpu_attention &o,
                                                      const split_job &j, int p0)
{
    const int lane = threadIdx.x % 32, n = o.head_dim;
    const uint8_t *block = kv_keys(j.kv, o.kv.blocks, p0);
    for (int slot = 0; slot < KV_BLOCK; slot++) {
        const int p = p0 + slot;
        float s[GROUP] = {};
        for (int d = 8 * lane; p < j.to && d < n; d += 8 * 32) {
            float k[8];
            kv_load<KV>(k, block, slot * n + d);
#pragma unroll
            for (int h = 0; h < GROUP; h++)
#pragma unroll
                for (int i = 0; i < 8; i++)
                    s[h] = fmaf(q[h * n + d + i], k[i], s[h]);
        }
        const float scale = p < j.to ? kv_scale<KV>(block, kv_scales_at<KV>(o.kv, j.kv_head, n, 0), slot) * o.scale : 0;
#pragma unroll
        for (int h = 0; h < GROUP; h++) {
            const float v = warp_sum(s[h]) * scale;
            if (lane == 0)
                score[h * GPU_SPLIT + p - j.start] = p < j.to ? v : -INFINITY;
        }
    }
}

/* A warp turns a head's scores into softmax weights; their maximum and sum go to the merge. */
DEVICE void soften(float *score, const split_job &j, float *to_merge)
{
    const int lane = threadIdx.x % 32, first = j.from - j.start,
              end = (j.to + KV_BLOCK - 1) / KV_BLOCK * KV_BLOCK - j.start;
    float most = -INFINITY, sum = 0;
    for (int i = first + lane; i < end; i += 32)
        most = fmaxf(most, score[i]);
    most = warp_max(most);
    for (int i = first + lane; i < end; i += 32) {
        const float w = score[i] == -INFINITY ? 0 : expf(score[i] - most);
        score[i] = w;
        sum += w;
    }
    sum = warp_sum(sum);
    if (lane == 0) {
        to_merge[0] = most;
        to_merge[1] = sum;
    }
}

/* Number of elements of a head's value. */
template <int LATENT> DEVICE int value_dim_of(const gpu_attention &o) { return LATENT ? o.value_dim : o.head_dim; }

/* part [rows][GROUP][value_dim]: sums of weights times values; values(p): the block of those of
 * position p.  A thread has SPLIT_EACH elements, and adds up every rows-th position from position
 * `row` on.  It loads AT_ONCE of them together: all that it has in a split, with heads of 128. */
template <int KV, int GROUP, int LATENT, bool COPIED, class VALUES>
DEVICE void add_values(float *part, const float *score, const gpu_attention &o, const split_job &j, int rows, int row,
                       int d, VALUES values)
{
    constexpr int EACH = SPLIT_EACH;
    constexpr int AT_ONCE = KV == KV_F32 || KV_TAILED<KV> ? 2 : COPIED ? 4 : 8;         /* registers */
    float acc[GROUP][EACH];
#pragma unroll
    for (int h = 0; h < GROUP; h++)
#pragma unroll
        for (int i = 0; i < EACH; i++)
            acc[h][i] = 0;
    for (int first = max(j.from, j.begin) + row; row < rows && first < j.to; first += AT_ONCE * rows) {
        float v[AT_ONCE][EACH], scale[AT_ONCE];
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            const int p = min(first + u * rows, j.to - 1);          /* beyond the last one: not used */
            const int e = p % KV_BLOCK * o.head_dim + d;
            scale[u] = 1;
            if (in_tail<KV>(j, p)) {
                kv_load<KV_F16, EACH>(v[u], kv_keys(j.tail, o.kv.tail, p) + o.kv.tail.part, e);
            } else {
                const uint8_t *block = values(p);
                scale[u] = kv_scale<KV>(block, kv_scales_at<KV>(o.kv, j.kv_head, o.head_dim, !LATENT),
                                        p % KV_BLOCK);
                kv_load<KV, EACH>(v[u], block, e);
            }
        }
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            const int p = first + u * rows;
            if (p >= j.to)
                break;
#pragma unroll
            for (int h = 0; h < GROUP; h++) {
                if (h >= j.n_group)
                    break;
                const float w = score[h * GPU_SPLIT + p - j.start] * scale[u];
#pragma unroll
                for (int i = 0; i < EACH; i++)
                    acc[h][i] = fmaf(w, v[u][i], acc[h][i]);
            }
        }
    }
    if (COPIED)
        __syncthreads();                /* the copies are read */
    if (row >= rows)
        return;
#pragma unroll
    for (int h = 0; h < GROUP; h++)
#pragma unroll
        for (int i = 0; i < EACH; i++)
            part[(row * GROUP + h) * value_dim_of<LATENT>(o) + d + i] = acc[h][i];
}

/* Apply the gate to element d of token t, counted from the first element of `head`, and store
 * it. */
DEVICE void store_merged(const gpu_attention &o, int t, int head, int n, int d, float v)
{
    const int k = head * n + d;
    if (o.gate)
        v /= 1 + expf(-o.gate[((size_t)t * o.n_heads * n + k) / o.gate_each]);
    if (o.out)
        o.out[(size_t)t * o.n_heads * n + k] = v;
    if (o.act)
        o.act[(size_t)t * o.act_stride + act_place(k, o.order)] = act_of(v);
}

/* Merge the splits of a token for the heads of a group.  part: the first head's sums of split 0,
 * with those of the next head next_head floats further; n: elements of a value.  Shared memory:
 * weight [GROUP][GPU_SPLIT], total [GROUP], sums [GROUP][n]. */
DEVICE void merge_splits(const gpu_attention &o, const split_job &j, int n_splits, const float *part, size_t next_head,
                         float *weight, float *total, float *sums, int n)
{
    enum { AT_ONCE = 8 };
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, head = j.first_head + warp, has_head = warp < j.n_group;
    const int each = n + 2;
    part += (size_t)(j.begin / GPU_SPLIT) * each;
    /* of this warp's head: the maximum and the sum of each split */
    const float *const ends = part + (has_head ? warp : 0) * next_head + n;
    const float2 mine = lane < n_splits ? load_pair_shared_by_blocks(ends + lane * each) : make_float2(0, 0);
    /* of this thread's first elements: the sums of the first splits */
    float2 early[AT_ONCE];
#pragma unroll
    for (int u = 0; u < AT_ONCE; u++) {
        const int i = 2 * threadIdx.x, h = i / n;
        early[u] = i < j.n_group * n && u < n_splits
                       ? load_pair_shared_by_blocks(part + h * next_head + (size_t)u * each + (i - h * n))
                       : make_float2(0, 0);
    }
    const auto end_of = [&](int s) { return s == lane ? mine : load_pair_shared_by_blocks(ends + (size_t)s * each); };
    float most = -INFINITY;
    if (has_head) {
        float sum = 0;
        most = o.sinks ? o.sinks[head] : -INFINITY;
        for (int s = lane; s < n_splits; s += 32)
            most = fmaxf(most, end_of(s).x);
        most = warp_max(most);
        for (int s = lane; s < n_splits; s += 32) {
            const float2 end = end_of(s);
            sum = fmaf(end.y, expf(end.x - most), sum);
        }
        sum = warp_sum(sum) + (o.sinks ? expf(o.sinks[head] - most) : 0);
        if (lane == 0)
            total[warp] = sum;
    }
    int from = 0;
    do {                                /* splits from .. from + many - 1 */
        const int many = min(n_splits - from, (int)GPU_SPLIT);
        for (int s = lane; has_head && s < many; s += 32)
            weight[warp * GPU_SPLIT + s] = expf(end_of(from + s).x - most);
        __syncthreads();                /* the weights are there */
        for (int i = 2 * threadIdx.x; i < j.n_group * n; i += 2 * SPLIT_THREADS) {
            const int h = i / n;
            const float *const v = part + h * next_head + (size_t)from * each + (i - h * n);
            float2 sum = from ? make_float2(sums[i], sums[i + 1]) : make_float2(0, 0);
            for (int s = 0; s < many; s += AT_ONCE) {
                float2 x[AT_ONCE];
#pragma unroll
                for (int u = 0; u < AT_ONCE; u++)       /* beyond the last one: not used */
                    x[u] = from + s == 0 && i == 2 * (int)threadIdx.x
                               ? early[u] : load_pair_shared_by_blocks(v + (size_t)min(s + u, many - 1) * each);
#pragma unroll
                for (int u = 0; u < AT_ONCE; u++)
                    if (s + u < many) {
                        const float w = weight[h * GPU_SPLIT + s + u];
                        sum.x = fmaf(x[u].x, w, sum.x);
                        sum.y = fmaf(x[u].y, w, sum.y);
                    }
            }
            const int last = from + GPU_SPLIT >= n_splits && n_splits;
            sums[i] = last ? sum.x / total[h] : sum.x;
            sums[i + 1] = last ? sum.y / total[h] : sum.y;
        }
        from += GPU_SPLIT;
        if (from < n_splits || o.kv.rotated)
            __syncthreads();            /* the weights are read, and all sums are there */
    } while (from < n_splits);
    if (o.kv.rotated) {
        if (has_head)
            hadamard<32>(sums + warp * n, n, lane);
        __syncthreads();
    }
    for (int i = 2 * threadIdx.x; i < j.n_group * n; i += 2 * SPLIT_THREADS) {
        store_merged(o, j.t, j.first_head, n, i, sums[i]);
        store_merged(o, j.t, j.first_head, n, i + 1, sums[i + 1]);
    }
    if (o.act && j.first_head + j.n_group == o.n_heads)
        act_pad(o.act + (size_t)j.t * o.act_stride, o.n_heads * n, o.order, threadIdx.x, SPLIT_THREADS);
}

/* Attend to the split of this block.  COPIED: of the step's only token, with its split in shared
 * memory.  room: attn_split_bytes(). */
template <int KV, int GROUP, int LATENT, bool COPIED>
DEVICE void attn_split_block(const gpu_attention &o, int passes, float *room)
{
    static_assert(GROUP <= SPLIT_WARPS, "each head of a group has a warp");
    const split_job j = split_job_of<GROUP>(o, passes);     /* from arrays that no kernel writes */
    /* the first block of a token that only pads the batch stores zeros */
    const bool idle = j.from >= j.to && (j.pos >= 0 || blockIdx.x);
    const int n = o.head_dim, size = value_dim_of<LATENT>(o), warp = threadIdx.x / 32, lanes = size / SPLIT_EACH;
    const int rows = SPLIT_THREADS / lanes, row = threadIdx.x / lanes, kv_bytes = (int)o.kv.blocks.part;
    float *q = room;                    /* [GROUP][n] */
    float *score = q + GROUP * n;       /* [GROUP][GPU_SPLIT] */
    float *newest = score + GROUP * GPU_SPLIT;      /* COPIED: [2][n] */
    float *part = newest + (COPIED ? 2 * n : 0);    /* [rows][GROUP][size]; takes the place of copies */
    uint8_t *const copies = reinterpret_cast<uint8_t *>(part);
    const split_copy copy = { copies, copies + GPU_SPLIT / KV_BLOCK * kv_bytes };
    if constexpr (COPIED)
        if (!idle)
            copy_split(copy, o, j);
    wait_for_prerequisites();
    if (idle)
        return;
    const size_t next_head = (size_t)o.max_splits * (size + 2);
    float *const all = o.partial + ((size_t)blockIdx.z * o.n_heads + j.first_head) * next_head;
    float *const merged = all + (size_t)blockIdx.x * (size + 2);
    int ready = 0;                      /* elements of q */
    if constexpr (!LATENT && KV != KV_T2)
        if (COPIED || o.prepare.head_dim) {
            prepare_group<KV>(q, COPIED ? newest : part, o, j, blockIdx.y % passes == 0);
            ready = j.n_group * n;
        }
    /* the heads of a group follow each other */
    for (int i = ready + threadIdx.x; i < GROUP * n; i += SPLIT_THREADS)
        q[i] = i < j.n_group * n ? o.q[((size_t)j.t * o.n_heads + j.first_head) * n + i] : 0;
    if constexpr (COPIED)
        copy_wait<0>();
    __syncthreads();
    if constexpr (COPIED) {
        add_newest<KV>(copy, newest, o, j);
        __syncthreads();
    }
    for (int p0 = j.from + warp * KV_BLOCK; p0 < j.to; p0 += SPLIT_WARPS * KV_BLOCK) {
        const int at = (p0 - j.start) / KV_BLOCK * kv_bytes;
        LATENT ? latent_block<KV, GROUP>(score, q, o, j, p0)
        : COPIED ? score_block<KV, GROUP>(score, q, o, j, copy.keys + at, p0)
        : in_tail<KV>(j, p0) ? score_block<KV_F16, GROUP>(score, q, o, j, kv_keys(j.tail, o.kv.tail, p0), p0)
                             : score_block<KV, GROUP>(score, q, o, j, kv_keys(j.kv, o.kv.blocks, p0), p0);
    }
    __syncthreads();
    for (int h = warp; h < j.n_group; h += SPLIT_WARPS)
        soften(score + h * GPU_SPLIT, j, merged + h * next_head + size);
    __syncthreads();
    add_values<KV, GROUP, LATENT, COPIED>(part, score, o, j, rows, row, threadIdx.x % lanes * SPLIT_EACH, [&](int p) {
        return COPIED ? copy.values + (p - j.start) / KV_BLOCK * kv_bytes
                      : kv_keys(j.kv, o.kv.blocks, p) + (LATENT ? 0 : kv_bytes);
    });
    __syncthreads();
    for (int h = 0; h < j.n_group; h++)
        for (int d = threadIdx.x; d < size; d += SPLIT_THREADS) {
            float sum = 0;
#pragma unroll 4
            for (int r = 0; r < rows; r++)
                sum += part[(r * GROUP + h) * size + d];
            merged[h * next_head + d] = sum;
        }
    /* queries are no longer read: their first word is the answer, and sums of weights follow */
    unsigned *const arrived = o.arrived + blockIdx.z * gridDim.y + blockIdx.y;
    const int n_splits = n_splits_of(j);
    if (n_splits > 1 && !last_block(arrived, (unsigned)n_splits, reinterpret_cast<unsigned *>(q)))
        return;
    if (n_splits <= 1)
        __syncthreads();                /* this block has stored all sums */
    merge_splits(o, j, n_splits, all, next_head, score, q + 1, part, size);
}

/* Bytes of shared memory of attn_split_block(). */
template <int GROUP, int LATENT, bool COPIED>
__host__ __device__ inline size_t attn_split_bytes(const gpu_attention &o)
{
    const size_t size = (size_t)(LATENT ? o.value_dim : o.head_dim), rows = SPLIT_THREADS / (size / SPLIT_EACH),
                 sums = sizeof(float) * rows * GROUP * size, copy = 2 * GPU_SPLIT / KV_BLOCK * (size_t)o.kv.blocks.part;
    return sizeof(float) * ((size_t)GROUP * o.head_dim + GROUP * GPU_SPLIT + (COPIED ? 2 * o.head_dim : 0)) +
           (COPIED && copy > sums ? copy : sums);
}

/* Whether the blocks of the split can be copied: 16 bytes at a time, into what every device has. */
template <int KV, int GROUP> static inline int attn_split_copies(const gpu_attention &o)
{
    const gpu_kv_blocks &b = o.kv.blocks;
    return KV_COPIED<KV> && o.prepare.head_dim && !o.kv.tail.base &&
           (((uintptr_t)b.base | b.stride | b.head_stride | b.layer_offset | b.part) & 15) == 0 &&
           b.head_stride == 2 * (uint64_t)b.part && attn_split_bytes<GROUP, 0, true>(o) <= GPU_ATTN_COPIED;
}

#endif
