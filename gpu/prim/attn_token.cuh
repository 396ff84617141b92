/* attn_token.cuh - attention of a step's only token, as a stage of the launch of all layers
 * (one_token.cu): one KV head with all query heads that share it, up to 8, and one split of the
 * context.
 *
 * tile     16 warps and up to GPU_SPLIT positions, which are 8 KV blocks of 16; half of them while
 *          blocks without a split are left.  A warp prepares a head.  Then a warp has a KV block:
 *          the product of 8 queries x head_dim with the keys of 16 positions, and the softmax
 *          weights.  Then a warp has 16 elements of values: their product with the weights of all
 *          positions x 8 heads, which is the split's result.  Queries and weights are sums of two
 *          f16 (keys and values are f16), which leave an error of 2^-22, and of weights below
 *          2^-14 one of 2^-25 of the largest weight: the first and second halves of the rows of
 *          the product with keys, or two products with values.  With heads of 128 a warp makes 16
 *          products in both
 * moves    keys and values of the split once, up to 64 KB with heads of 128.  Only the newest are
 *          results of the launch, so all are copied to shared memory before the block waits for q,
 *          k and v.  Chunks of 16 bytes are swizzled, so that ldmatrix finds the rows of an 8 x 8
 *          matrix in 32 different banks.  Warps read up to 128 KB from shared memory: keys and
 *          values once, queries and weights once for each KV block or 16 elements
 * limit    latency: parts of q, k and v, a norm, products that follow each other, and a maximum;
 *          then the words that splits send, and a warp that merges them for 32 elements of a head
 * checked  tests/unit/t-gpu-one-token.c */
#ifndef ZSE_GPU_PRIM_ATTN_TOKEN_CUH
#define ZSE_GPU_PRIM_ATTN_TOKEN_CUH

#include "gpu/prim/grid.cuh"
#include "gpu/prim/heads.cuh"
#include "gpu/prim/kv.cuh"
#include "gpu/prim/order.cuh"
#include "gpu/prim/weights.cuh"

enum { TOKEN_THREADS = 32 * GPU_TOKEN_WARPS, SPLIT_KV = GPU_SPLIT / KV_BLOCK,
       HEAD_RUN = GPU_TOKEN_DIM / 32 /* elements of a lane */ };
static_assert(SPLIT_KV * 32 * (16 + 4) >= 2 * GPU_TOKEN_WARPS * 32 * 4,
              "copies of keys and values lie behind the sums of q, k and v (gpu_token_shared)");
static_assert((int)SPLIT_KV < (int)GPU_TOKEN_WARPS && (int)GPU_ATTN_GROUP + 2 < (int)GPU_TOKEN_WARPS,
              "a KV block has a warp, and so has a head, and a warp is left");

/* ---- shared memory ---- */

/* Bytes from the queries of 16 elements to the next ones: 16 of each lane, as it multiplies them.
 * Lanes that prepare a head store to two of them at a time. */
enum { QUERY_STEP = GPU_TOKEN_QUERIES };

/* Copies have offsets that do not depend on the shapes. */
struct token_room {
    uint4 *weight;                      /* [SPLIT_KV][32]: of each lane, as it multiplies them */
    float *sum;                         /* [SPLIT_KV][32]: of a lane's weights */
    float *most;                        /* [8][SPLIT_KV]: of a head, the largest score of a KV block */
    uint8_t *q;                         /* [n / 16][QUERY_STEP] */
    float *head;                        /* [share + 2][n]: heads that are being prepared */
    uint8_t *keys, *values;             /* [SPLIT_KV][part]: they alone are written before the wait */

    DEVICE token_room(uint8_t *room, unsigned n, unsigned part, int share)
    {
        weight = reinterpret_cast<uint4 *>(room);
        sum = reinterpret_cast<float *>(weight + SPLIT_KV * 32);
        most = sum + SPLIT_KV * 32;
        q = reinterpret_cast<uint8_t *>(most + GPU_ATTN_GROUP * SPLIT_KV);
        head = reinterpret_cast<float *>(q + n / 16 * QUERY_STEP);
        keys = reinterpret_cast<uint8_t *>(head + (share + 2) * n);
        values = keys + SPLIT_KV * part;
    }
};
/* The place of chunk c, 16 bytes, of a block's keys, of which 8 have 4 elements of all
 * positions. */
DEVICE unsigned key_chunk(unsigned c) { return c ^ (c >> 3 & 1) ^ (c >> 2 & 4); }
/* The same of its values.  With heads of 64 or 128 the place in 8 depends on the position. */
DEVICE unsigned value_chunk(unsigned c, unsigned n) { return c ^ (c >> (3 + (n >> 7)) & 7); }

/* ---- the job ---- */

/* gpu_token_step.sums.  n_32: head_dim / 32. */
struct token_sums { float *at; unsigned n_32, n_splits; };

/* Positions [from, to) of the split, which begins at `start`; KV blocks first .. end - 1 of it.  A
 * split has 1 << log_split positions, up to GPU_SPLIT. */
struct token_split {
    int pos, kv_head, first_head, share, split, start, begin, from, to, first, end;

    DEVICE token_split(const gpu_attention &o, int share_, int kv_head_, int split_, int log_split)
    {
        pos = *o.step.pos;
        kv_head = kv_head_;
        share = share_;
        first_head = kv_head * share;
        split = split_;
        start = split << log_split;
        begin = first_seen(pos, o.window, o.chunk);
        from = max(start, begin);
        to = min(start + (1 << log_split), pos + 1);
        first = (unsigned)(from - start) / KV_BLOCK;
        end = (unsigned)(to - start + KV_BLOCK - 1) / KV_BLOCK;
    }
    DEVICE bool idle() const { return from >= to; }
    /* whether the token's key and value belong to the split */
    DEVICE bool has_newest() const { return to == pos + 1; }
};

/* Copy the numbers of the KV blocks of the split that begins at `start`, which are the same in all
 * layers: block [SPLIT_KV]. */
DEVICE void find_kv_blocks(int32_t *block, const gpu_step &step, int start)
{
    const int i = threadIdx.x, p = start + i * KV_BLOCK;
    if (i < SPLIT_KV)
        block[i] = p > *step.pos ? 0 : step.tables[*step.table_of + p / KV_BLOCK];
}

/* The address of the job's KV head in a KV block; head: in block 0; stride: less than 4 GB. */
DEVICE uint8_t *head_in(uint8_t *head, int32_t block, uint32_t stride)
{
#ifdef __CUDACC__
    uint64_t to;
    asm("mad.wide.u32 %0, %1, %2, %3;" : "=l"(to) : "r"(block), "r"(stride), "l"(head));
    return reinterpret_cast<uint8_t *>(to);
#else
    return head + (uint64_t)(uint32_t)block * stride;
#endif
}

/* Start to copy the keys and values of the split.  head: as for head_in(). */
DEVICE void copy_token_split(const token_room &room, const gpu_kv_blocks &o, const token_split &j, uint8_t *head,
                             const int32_t *block, unsigned n, unsigned thread)
{
    const unsigned part = o.part, chunks = part / 16;
    const unsigned there = (1u << j.end) - (1u << j.first);
    const uint32_t stride = (uint32_t)o.stride;
    const auto copy_four = [&](int first, uint8_t *to, uint8_t *from) {
        const uint4 at = load16(block + first);
        to += first * part;
#pragma unroll
        for (int b = 0; b < 4; b++, to += part)
            if (there >> (first + b) & 1)
                copy_async(to, head_in(from, (int32_t)word_of(at, b), stride));
    };
    static_assert(SPLIT_KV == 8, "a split has up to twice four KV blocks");
    /* one turn with heads of 128 */
#pragma unroll 1
    for (unsigned i = thread; i < 2 * chunks; i += TOKEN_THREADS) {
        uint8_t *const to = i < chunks ? room.keys + 16 * key_chunk(i) : room.values + 16 * value_chunk(i - chunks, n);
        copy_four(0, to, head + 16 * i);
        if (there >> 4)                 /* splits may have half of the positions */
            copy_four(4, to, head + 16 * i);
    }
    copy_commit();
}

/* ---- queries, and the newest key and value ---- */

/* A head's norm and rotation for the elements of a lane, and the factor on queries.  Elements that
 * are not rotated have an angle of 0. */
struct head_factors {
    float by[HEAD_RUN], cosine[HEAD_RUN], sine[HEAD_RUN], last;
    const float *part;                  /* the lane's elements of the first part */
    bool here, norms, rotates, slow;    /* slow: norm_head() and rotate() */

    /* h: of this kind of heads */
    DEVICE void load(const struct gpu_prepare &o, head_kind kind, int h, float scale, int pos, unsigned lane)
    {
        const unsigned n = o.head_dim, half = (unsigned)o.rope_dim / 2, d = HEAD_RUN * lane;
        const bool is_v = kind == HEAD_OF_VALUE;
        slow = !is_v && (o.norm == 2 || (o.norm && o.norm_after_rope) || o.rope_dim % 8);
        here = d < n;
        norms = !is_v && !slow && o.norm;
        rotates = !is_v && !slow && half;
        last = kind == HEAD_OF_QUERY ? temper_of(o.temper, pos) * scale : 1;
        part = o.parts[kind].part + h * n + (here ? d : 0);
        const float *w = kind == HEAD_OF_QUERY ? o.qw : o.kw;
        float4 x = make_float4(1, 1, 1, 1), c = x, s = make_float4(0, 0, 0, 0);
        if (norms && w && here) {
            x = *reinterpret_cast<const float4 *>(w + (o.norm_each ? h * n + d : d));
            x.x += o.offset, x.y += o.offset, x.z += o.offset, x.w += o.offset;
        }
        if (rotates && d < 2 * half) {
            if (o.rope_pairs) {
                const float2 two = *reinterpret_cast<const float2 *>(o.cosine + d / 2),
                             its = *reinterpret_cast<const float2 *>(o.sine + d / 2);
                c = make_float4(two.x, two.x, two.y, two.y);
                s = make_float4(-its.x, its.x, -its.y, its.y);
            } else {
                const unsigned angle = d < half ? d : d - half;
                c = *reinterpret_cast<const float4 *>(o.cosine + angle);
                s = *reinterpret_cast<const float4 *>(o.sine + angle);
                if (d < half)
                    s = make_float4(-s.x, -s.y, -s.z, -s.w);
            }
        }
        const float each[3][HEAD_RUN] = { { x.x, x.y, x.z, x.w }, { c.x, c.y, c.z, c.w }, { s.x, s.y, s.z, s.w } };
#pragma unroll
        for (int e = 0; e < HEAD_RUN; e++) {
            by[e] = slow ? 1 : each[0][e] * last;
            cosine[e] = each[1][e];
            sine[e] = each[2][e];
        }
    }
};

/* norm_head(), rotate() and the factor on queries for the row x [n] of a head. */
DEVICE void prepare_slowly(float *x, const struct gpu_prepare &o, head_kind kind, int h, float last, unsigned lane)
{
    const int n = o.head_dim, at = o.norm_each ? h * n : 0, is_q = kind == HEAD_OF_QUERY;
    const float *const w = is_q ? o.qw : o.kw, *const b = is_q ? o.qb : o.kb;
#pragma unroll 1
    for (int after = 0; kind != HEAD_OF_VALUE && after < 2; after++) {
        if (o.norm && !o.norm_after_rope == !after)
            norm_head(x, w ? w + at : nullptr, b ? b + at : nullptr, n, o.norm, o.eps, o.offset, lane);
        __syncwarp();
        if (!after)
            rotate(x, o.cosine, o.sine, o.rope_dim, o.rope_pairs, lane);
        __syncwarp();
    }
    for (int d = lane; d < n; d += 32)
        x[d] *= last;
    __syncwarp();
}

/* Two pairs of f16 whose sums with two more pairs are four numbers. */
DEVICE uint4 pairs_of(const float v[4])
{
    const uint32_t a = pack_half(v[0], v[1]), b = pack_half(v[2], v[3]);
    return make_uint4(a, b, pack_half(v[0] - half_low(a), v[1] - half_high(a)),
                      pack_half(v[2] - half_low(b), v[3] - half_high(b)));
}

/* Store a lane's elements of the newest key or value in the copy, and in its KV block. */
DEVICE void store_newest(const token_room &room, const token_split &j, unsigned part, uint8_t *head, bool is_k,
                         unsigned n, const float v[HEAD_RUN], unsigned lane)
{
    const unsigned slot = (unsigned)j.pos % KV_BLOCK, at = (unsigned)(j.pos - j.start) / KV_BLOCK * part;
    const uint32_t low = pack_half(v[0], v[1]), high = pack_half(v[2], v[3]);
    if (is_k) {
#pragma unroll
        for (int e = 0; e < HEAD_RUN; e++) {
            const uint16_t x = (uint16_t)((e < 2 ? low : high) >> e % 2 * 16);
            const unsigned chunk = key_chunk(8 * lane + 2 * e + slot / 8);
            *reinterpret_cast<uint16_t *>(room.keys + at + 16 * chunk + slot % 8 * 2) = x;
            reinterpret_cast<uint16_t *>(head)[(HEAD_RUN * lane + e) * KV_BLOCK + slot] = x;
        }
    } else {
        const unsigned chunk = value_chunk(slot * (n / 8) + lane / 2, n);
        const uint2 x = make_uint2(low, high);
        *reinterpret_cast<uint2 *>(room.values + at + 16 * chunk + lane % 2 * 8) = x;
        *reinterpret_cast<uint2 *>(head + part + (slot * n + HEAD_RUN * lane) * 2) = x;
    }
}

/* v = the sum of up to MOST parts. */
template <int MOST>
DEVICE void add_parts(float v[HEAD_RUN], const float *part, size_t ld, int n_parts, unsigned phase)
{
    float4 y[MOST];
    grid_collect(y, phase, [&](int p) { return part + (p < n_parts ? p * ld : 0); });
#pragma unroll
    for (int p = 0; p < MOST; p++)
        y[p] = p < n_parts ? y[p] : make_float4(0, 0, 0, 0);
#pragma unroll
    for (int p = 1; p < MOST; p++)
        y[0].x += y[p].x, y[0].y += y[p].y, y[0].z += y[p].z, y[0].w += y[p].w;
    v[0] = y[0].x, v[1] = y[0].y, v[2] = y[0].z, v[3] = y[0].w;
}

/* Norm and rotate a head whose row is the sum of parts, by one warp.  x [n]: shared memory.  Query
 * i of the group goes to q, a key or value to the copy and to its KV block.  head, block: as for
 * the copies; phase: of the parts. */
DEVICE void prepare_token_head(const token_room &room, const gpu_attention &a, const token_split &j, head_kind kind,
                               int i, const head_factors &f, float *x, uint8_t *head, const int32_t *block,
                               unsigned phase, unsigned lane)
{
    const struct gpu_prepare &o = a.prepare;
    const gpu_part_sums &s = o.parts[0];        /* all have one row length and number */
    const unsigned n = o.head_dim, d = HEAD_RUN * lane;
    float v[HEAD_RUN];
    if (s.n_parts <= 2)
        add_parts<2>(v, f.part, s.ld, f.here ? s.n_parts : 0, phase);
    else
        add_parts<GPU_TURN_PARTS>(v, f.part, s.ld, f.here ? s.n_parts : 0, phase);
    if (f.norms) {
        const float sum = warp_sum(fmaf(v[0], v[0], fmaf(v[1], v[1], fmaf(v[2], v[2], v[3] * v[3])))),
                    inverse = rsqrtf(fmaf(sum, 1 / (float)n, o.eps));
#pragma unroll
        for (int e = 0; e < HEAD_RUN; e++)
            v[e] *= inverse;
    }
#pragma unroll
    for (int e = 0; e < HEAD_RUN; e++)
        v[e] *= f.by[e];
    if (f.here)
        *reinterpret_cast<float4 *>(x + d) = make_float4(v[0], v[1], v[2], v[3]);
    __syncwarp();
    if (f.slow)
        prepare_slowly(x, o, kind, i + j.first_head, f.last, lane);
    if (!f.here)
        return;
    if (f.slow) {
        const float4 y = *reinterpret_cast<const float4 *>(x + d);
        v[0] = y.x, v[1] = y.y, v[2] = y.z, v[3] = y.w;
    } else if (f.rotates) {
        const unsigned half = (unsigned)o.rope_dim / 2;
        float4 y = make_float4(v[1], v[0], v[3], v[2]);
        if (!o.rope_pairs)
            y = *reinterpret_cast<const float4 *>(x + (d < half ? d + half : d < 2 * half ? d - half : d));
        const float other[HEAD_RUN] = { y.x, y.y, y.z, y.w };
#pragma unroll
        for (int e = 0; e < HEAD_RUN; e++)
            v[e] = fmaf(v[e], f.cosine[e], other[e] * f.sine[e]);
    }
    if (kind == HEAD_OF_QUERY) {
        const uint4 p = pairs_of(v);    /* rows i and i + 8 of the product, first and second k */
        *reinterpret_cast<uint4 *>(room.q + lane / 4 * QUERY_STEP + (4 * i + lane % 4) * 16) =
            make_uint4(p.x, p.z, p.y, p.w);
    } else {
        const int at = block[(unsigned)(j.pos - j.start) / KV_BLOCK];
        store_newest(room, j, a.kv.blocks.part, head_in(head, at, (uint32_t)a.kv.blocks.stride), kind == HEAD_OF_KEY, n,
                     v, lane);
    }
}

/* Zeros for values after the newest in its KV block, whose weights are 0: they may be NaN. */
DEVICE void clear_after_newest(const token_room &room, const token_split &j, unsigned part, unsigned n,
                               unsigned thread, unsigned threads)
{
    const unsigned block = (unsigned)(j.pos - j.start) / KV_BLOCK, first = ((unsigned)j.pos % KV_BLOCK + 1) * (n / 8);
    for (unsigned c = first + thread; c < KV_BLOCK * (n / 8); c += threads)
        *reinterpret_cast<uint4 *>(room.values + block * part + 16 * value_chunk(c, n)) = make_uint4(0, 0, 0, 0);
}

/* ---- products ---- */

/* The words of a split for 32 elements of a head, in gpu_token_step.sums: the sums of values, then
 * the largest score and the sum of weights. */
DEVICE float *split_sums(const token_sums &all, unsigned head, unsigned of_32, unsigned split)
{
    return all.at + ((head * all.n_32 + of_32) * all.n_splits + split) * GPU_TOKEN_SUM;
}

/* c += the products of queries with N steps of 16 elements of the keys of 16 positions. */
template <int N> DEVICE void multiply_keys(float c[2][2][4], const uint8_t *keys, const uint8_t *q)
{
    uint32_t b[N][4];
    uint4 a[N];
#pragma unroll
    for (int k = 0; k < N; k++) {
        load_matrices_transposed(b[k], keys + 512 * k);
        a[k] = load16(q + QUERY_STEP * k);
    }
#pragma unroll
    for (int k = 0; k < N; k++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            mma_f16(c[k % 2][i], a[k].x, a[k].y, a[k].z, a[k].w, b[k][2 * i], b[k][2 * i + 1]);
}

/* A warp computes the scores of a KV block, and stores the largest of each head.  Lane 4g + t has
 * those of head g, and of positions 2t, 2t + 1, 2t + 8 and 2t + 9.  The logical k of the product
 * are permuted, so that a lane has four elements of q that follow each other. */
DEVICE void score_block(float s[4], const token_room &room, const gpu_attention &o, const token_split &j, unsigned part,
                        int block, unsigned lane)
{
    const unsigned g = lane / 4, t = lane % 4, h = min((int)g, j.share - 1),
                   row = lane % 8 / 2 * 4 + lane % 2 + lane / 8 % 2 * 2;
    const uint8_t *keys = room.keys + block * part + 16 * key_chunk(2 * row + lane / 16),
                  *q = room.q + (4 * h + t) * 16;
    float c[2][2][4] = {}, most = -INFINITY;    /* of odd and even steps, for 8 positions each */
    int steps = (unsigned)o.head_dim / 16;
#pragma unroll 1
    for (; steps >= 4; steps -= 4, keys += 4 * 512, q += 4 * QUERY_STEP)
        multiply_keys<4>(c, keys, q);
    if (steps)
        multiply_keys<2>(c, keys, q);
#pragma unroll
    for (int i = 0; i < 4; i++)         /* rows 8 to 15 are those of the second halves of queries */
        s[i] = c[0][i / 2][i % 2] + c[1][i / 2][i % 2] + (c[0][i / 2][i % 2 + 2] + c[1][i / 2][i % 2 + 2]);
    const int p0 = j.start + block * KV_BLOCK + 2 * t;
    if (o.softcap > 0 || o.alibi) {
#pragma unroll 1
        for (int i = 0; i < 4; i++) {
            float v = i == 0 ? s[0] : i == 1 ? s[1] : i == 2 ? s[2] : s[3];
            if (o.softcap > 0)
                v = o.softcap * tanhf(v / o.softcap);
            if (o.alibi)
                v = fmaf(o.alibi[j.first_head + h], (float)(p0 + i % 2 + i / 2 * 8 - j.pos), v);
            s[0] = i == 0 ? v : s[0], s[1] = i == 1 ? v : s[1], s[2] = i == 2 ? v : s[2], s[3] = i == 3 ? v : s[3];
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int p = p0 + i % 2 + i / 2 * 8;
        s[i] = p >= j.from && p < j.to ? s[i] : -INFINITY;
        most = fmaxf(most, s[i]);
    }
    most = fmaxf(most, __shfl_xor_sync(FULL_WARP, most, 1));
    most = fmaxf(most, __shfl_xor_sync(FULL_WARP, most, 2));
    if (t == 0)
        room.most[g * SPLIT_KV + block] = most;
}

/* The largest score of a head. */
DEVICE float most_of(const token_room &room, int h)
{
    float most = -INFINITY;
#pragma unroll
    for (int b = 0; b < SPLIT_KV; b += 4) {
        const float4 m = *reinterpret_cast<const float4 *>(room.most + h * SPLIT_KV + b);
        most = fmaxf(most, fmaxf(fmaxf(m.x, m.y), fmaxf(m.z, m.w)));
    }
    return most;
}

/* Turn a lane's scores into weights. */
DEVICE void weigh_block(float s[4], const token_room &room, int block, unsigned lane)
{
    const float most = most_of(room, lane / 4);
#pragma unroll
    for (int i = 0; i < 4; i++)
        s[i] = fast_exp(s[i] - most);
    const uint4 w = pairs_of(s);
    room.weight[block * 32 + lane] = w;
    room.sum[block * 32 + lane] = s[0] + s[1] + (s[2] + s[3]);
}

/* c += the products of N KV blocks of values with their weights. */
template <int N> DEVICE void multiply_values(float c[2][2][4], const uint8_t *values, const uint4 *weight,
                                             unsigned part)
{
    uint32_t a[N][4];
    uint4 w[N];
#pragma unroll
    for (int k = 0; k < N; k++) {
        load_matrices_transposed(a[k], values + k * part);
        w[k] = weight[32 * k];
    }
#pragma unroll
    for (int k = 0; k < N; k++) {
        mma_f16(c[k % 2][0], a[k][0], a[k][1], a[k][2], a[k][3], w[k].x, w[k].y);
        mma_f16(c[k % 2][1], a[k][0], a[k][1], a[k][2], a[k][3], w[k].z, w[k].w);
    }
}

/* A warp computes the sums of 16 elements of values from d on, and stores them. */
DEVICE void add_token_values(const token_sums &all, const token_room &room, const token_split &j, unsigned part,
                             unsigned n, unsigned d, unsigned lane)
{
    const unsigned g = lane / 4, t = lane % 4, slot = lane % 8 + lane / 16 * 8;
    const uint8_t *values = room.values + j.first * part + 16 * value_chunk((slot * n + d) / 8 + lane / 8 % 2, n);
    const uint4 *weight = room.weight + j.first * 32 + lane;
    float c[2][2][4] = {};              /* of odd and even KV blocks: first and second halves */
    int left = j.end - j.first;
#pragma unroll 1
    for (; left >= 4; left -= 4, values += 4 * part, weight += 4 * 32)
        multiply_values<4>(c, values, weight, part);
#pragma unroll 1
    for (; left > 0; left--, values += part, weight += 32)
        multiply_values<1>(c, values, weight, part);
    float *const to = split_sums(all, j.first_head + 2 * t, d / 32, j.split) + d % 32 + g;
#pragma unroll
    for (int i = 0; i < 4; i++)
        if ((int)(2 * t + i % 2) < j.share)
            grid_send(to + i % 2 * all.n_32 * all.n_splits * GPU_TOKEN_SUM + i / 2 * 8,
                      c[0][0][i] + c[1][0][i] + (c[0][1][i] + c[1][1][i]));
}

/* A warp adds up the weights, and sends the largest score and the sum of each head with each 32 of
 * its elements. */
DEVICE void add_token_weights(const token_sums &all, const token_room &room, const token_split &j, unsigned lane)
{
    const int g = (int)(lane / 4);
    float sum = 0;
#pragma unroll 1
    for (int b = j.first; b < j.end; b++)
        sum += room.sum[b * 32 + lane];
    sum += __shfl_xor_sync(FULL_WARP, sum, 1);
    sum += __shfl_xor_sync(FULL_WARP, sum, 2);
    if (lane % 4 >= all.n_32 || g >= j.share)
        return;
    float *const to = split_sums(all, j.first_head + g, lane % 4, j.split) + 32;
    grid_send(to, most_of(room, g));
    grid_send(to + 1, sum);
    grid_send(to + 2, 0);
    grid_send(to + 3, 0);
}

/* ---- the merge ---- */

/* Sums relative to the largest score.  Sums of nothing have the score NOTHING. */
struct merged { float most, total; float4 sum; };
constexpr float NOTHING = -1e38f;

/* exp(x - most) */
DEVICE float relative(float x, float most) { return fast_exp2((x - most) * 1.44269504f); }

DEVICE void scale_merged(merged &m, float by)
{
    m.total *= by;
    m.sum.x *= by, m.sum.y *= by, m.sum.z *= by, m.sum.w *= by;
}

/* Add sums that are relative to the score `most`, which is not above m.most. */
DEVICE void add_merged(merged &m, float most, float total, const float4 &sum)
{
    const float by = relative(most, m.most);
    m.total = fmaf(total, by, m.total);
    m.sum.x = fmaf(sum.x, by, m.sum.x);
    m.sum.y = fmaf(sum.y, by, m.sum.y);
    m.sum.z = fmaf(sum.z, by, m.sum.z);
    m.sum.w = fmaf(sum.w, by, m.sum.w);
}

/* Make the sums relative to a score that is not below theirs. */
DEVICE void raise_merged(merged &m, float most)
{
    scale_merged(m, relative(m.most, most));
    m.most = most;
}

/* Add splits 4 * i + (lane / 8), i < N, of the n that are left from `split` on: four elements of
 * each. */
template <int N>
DEVICE void add_splits(merged &m, const token_sums &all, unsigned head, unsigned of_32, unsigned split, int n,
                       unsigned lane)
{
    float4 y[2 * N];
    float most = m.most;
    const auto there = [&](int i) { return 4 * i + (int)(lane / 8) < n; };
    /* in place of a split that is not there, the first one again */
    const auto place = [&](int i) {
        return split_sums(all, head, of_32, split + (there(i / 2) ? 4 * (i / 2) + lane / 8 : 0)) +
               (i % 2 ? 32 : 4 * (lane % 8));
    };
    grid_receive(y, place);
    __syncwarp();                       /* all lanes have read the words */
#pragma unroll
    for (int i = 0; i < N; i++) {
        if (there(i)) {
            grid_empty(place(2 * i));
            if (lane % 8 == 0)
                grid_empty(place(2 * i + 1));
        }
        y[2 * i + 1].x = there(i) ? y[2 * i + 1].x : NOTHING;
        most = fmaxf(most, y[2 * i + 1].x);
    }
    raise_merged(m, most);
#pragma unroll
    for (int i = 0; i < N; i++)
        add_merged(m, y[2 * i + 1].x, y[2 * i + 1].y, y[2 * i]);
}

/* Add the sums of lanes i, i + 8, i + 16 and i + 24. */
DEVICE void merge_lanes(merged &m)
{
    float most = m.most;
    for (int i = 8; i < 32; i *= 2)
        most = fmaxf(most, __shfl_xor_sync(FULL_WARP, most, i));
    raise_merged(m, most);
#pragma unroll
    for (int i = 8; i < 32; i *= 2) {
        m.total += __shfl_xor_sync(FULL_WARP, m.total, i);
        m.sum.x += __shfl_xor_sync(FULL_WARP, m.sum.x, i);
        m.sum.y += __shfl_xor_sync(FULL_WARP, m.sum.y, i);
        m.sum.z += __shfl_xor_sync(FULL_WARP, m.sum.z, i);
        m.sum.w += __shfl_xor_sync(FULL_WARP, m.sum.w, i);
    }
}

/* Merge n splits, from `first` on, for 32 elements of a head, and publish these at `to`.  All
 * threads of a block call it; warps have MERGED splits each in turn.  room: [GPU_TOKEN_WARPS]
 * [GPU_TOKEN_SUM] floats, which are used if there are more. */
enum { MERGED = 8 };
DEVICE void merge_splits(float *to, unsigned phase, const token_sums &all, const float *sinks, unsigned head,
                         unsigned of_32, unsigned first, int n, float *room)
{
    const unsigned lane = threadIdx.x % 32, at = 4 * (lane % 8);
    const int warp = (int)threadIdx.x / 32;
    merged m = { NOTHING, 0, make_float4(0, 0, 0, 0) };
    if (threadIdx.x < 8 && sinks)
        m.most = sinks[head], m.total = 1;
    if (n <= 4 && warp == 0)
        add_splits<1>(m, all, head, of_32, first, n, lane);
#pragma unroll 1
    for (int from = MERGED * warp; n > 4 && from < n; from += MERGED * GPU_TOKEN_WARPS)
        add_splits<MERGED / 4>(m, all, head, of_32, first + from, n - from, lane);
    if (MERGED * warp < n)
        merge_lanes(m);
    if (n > MERGED) {
        float *const mine = room + warp * GPU_TOKEN_SUM;
        if (lane < 8)
            *reinterpret_cast<float4 *>(mine + at) = m.sum;
        if (lane == 0)
            *reinterpret_cast<float2 *>(mine + 32) = make_float2(m.most, m.total);
        __syncthreads();                /* the sums of all warps are there */
#pragma unroll 1
        for (int w = 1; warp == 0 && w < GPU_TOKEN_WARPS && w * MERGED < n; w++) {
            const float *const one = room + w * GPU_TOKEN_SUM;
            raise_merged(m, fmaxf(m.most, one[32]));
            add_merged(m, one[32], one[33], *reinterpret_cast<const float4 *>(one + at));
        }
        __syncthreads();                /* they are read */
    }
    if (threadIdx.x >= 8)
        return;
    scale_merged(m, EITHER(__fdividef(1, m.total), 1 / m.total));
    grid_publish(to + at, m.sum, phase);
}

/* ---- a block's work ---- */

/* Attend to a split, with all threads of a block, and send the sums.  block: the numbers of its KV
 * blocks; phase: of the parts of q, k and v.  shared: gpu_token_split_bytes(), 16-byte aligned; the
 * caller's threads may still use what lies before room.keys.  After it they may still read all of
 * it. */
DEVICE void attend_to_split(const gpu_attention &o, const token_split &j, const int32_t *block,
                            const token_sums &all, unsigned phase, uint8_t *shared)
{
    const unsigned thread = threadIdx.x, lane = thread % 32, n = o.head_dim, part = o.kv.blocks.part;
    const int warp = (int)(thread / 32);
    const token_room room(shared, n, part, j.share);
    const head_kind kind = warp < j.share ? HEAD_OF_QUERY : warp == j.share ? HEAD_OF_KEY : HEAD_OF_VALUE;
    const int h = warp < j.share ? j.first_head + warp : j.kv_head, n_prepared = j.share + (j.has_newest() ? 2 : 0);
    uint8_t *const head = o.kv.blocks.base + o.kv.blocks.layer_offset + j.kv_head * 2 * part;
    head_factors f;
    if (j.idle())
        return;
    copy_token_split(room, o.kv.blocks, j, head, block, n, thread);
    if (warp < n_prepared)
        f.load(o.prepare, kind, h, o.scale, j.pos, lane);
    copy_wait<0>();
    __syncthreads();                    /* the copies are there, and the rest of the room is free */
    if (warp < n_prepared)
        prepare_token_head(room, o, j, kind, h - j.first_head, f, room.head + warp * n, head, block, phase, lane);
    else if (j.has_newest())
        clear_after_newest(room, j, part, n, thread - 32 * n_prepared, TOKEN_THREADS - 32 * n_prepared);
    __syncthreads();                    /* queries, the newest key and value are there */
    const bool scores = warp >= j.first && warp < j.end;
    float s[4];
    if (scores)
        score_block(s, room, o, j, part, warp, lane);
    else if (warp < SPLIT_KV && lane < GPU_ATTN_GROUP)
        room.most[lane * SPLIT_KV + warp] = -INFINITY;
    __syncthreads();                    /* the scores are there */
    if (scores)
        weigh_block(s, room, warp, lane);
    __syncthreads();                    /* the weights are there */
    if (warp == SPLIT_KV)
        add_token_weights(all, room, j, lane);
    else if (16 * warp < (int)n)
        add_token_values(all, room, j, part, n, 16 * warp, lane);
}

#endif
