/* t-gpu-attention.c - head norms, rotation, the KV cache and both attentions on the device
 * against kernels_ref: KV formats, head sizes, shared heads, windows, caps, slopes, contexts
 * around the size of blocks, tiles and splits. */
#include "libcommon/cpu/hadamard.h"
#include "libcommon/quant/kvscale.h"
#include "tests/lib/gpu.h"

/* of setup.more; CHUNK: window is the size of chunks; TAIL: the first and the newest tokens are
 * read as f16 */
enum { SLOPES = 1, SINKS = 2, CHUNK = 4, GATES = 8, HEAD_GATES = 16, TAIL = 32 };
struct setup { int n_heads, n_kv, dim, pos, n, window, rope, pairs, norm,
               after; float softcap; int more; enum kv_type kv; };

/* A test case: keys and values of `pos` tokens and then n tokens, in a cache whose blocks are in
 * random order, beside those of another sequence.  q is replaced by the result of the plain
 * kernels. */
struct job {
    const struct setup *s;
    int len, n_blocks;
    size_t part, stride, tail_part, tail_stride, qrow, krow;    /* bytes; elements */
    float *q, *k, *v, *w, *slopes, *sinks, *cosine, *sine, *gates;
    int32_t *table, *tail, *pos, *table_of, *tail_of, *rows;    /* tail: part of table */
    uint8_t *cache, *tail_cache;
    struct gpu_kv kv;                   /* this and the following members point to device memory */
    struct gpu_step step;
    float *dq;
    struct gpu_prepare raw;             /* with q, k and v as projections leave them */
};

static float *uniforms(struct rng *r, size_t n, float from, float to)
{
    float *x = malloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = uniform(r, from, to);
    return x;
}

static void job_fill(struct job *j, const struct setup *s)
{
    const int hd = s->dim, half = s->rope / 2;
    struct rng r = { (uint64_t)(hd * 7 + s->pos * 3 + s->n + s->n_heads) };
    *j = (struct job){ .s = s, .len = s->pos + s->n, .part = kv_block_bytes(s->kv, hd),
                       .qrow = (size_t)s->n_heads * (size_t)hd, .krow = (size_t)s->n_kv * (size_t)hd };
    const size_t len = (size_t)j->len;
    j->n_blocks = (j->len + KV_BLOCK - 1) / KV_BLOCK;
    j->stride = 4 * j->part * (size_t)s->n_kv + 4 * kv_shared_bytes(s->kv);         /* of two layers */
    j->tail_part = kv_block_bytes(KV_F16, hd);
    j->tail_stride = 4 * j->tail_part * (size_t)s->n_kv;
    j->q = uniforms(&r, len * j->qrow, -1.5f, 1.5f);
    j->k = uniforms(&r, len * j->krow, -1, 1);
    j->v = uniforms(&r, len * j->krow, -1, 1);
    /* scales differ from token to token, and one vector is too small to have a scale */
    for (int d = 0; kv_has_scales(s->kv) && d < hd; d++)
        for (int t = 0; t < j->len; t++) {
            j->k[(size_t)t * j->krow + (size_t)d] *= t == 1 ? 1e-33f : t % 3 ? 0.3f : 1;
            j->v[(size_t)t * j->krow + (size_t)d] *= t == 2 ? 1e-33f : t % 4 ? 0.2f : 1;
        }
    j->w = uniforms(&r, (size_t)hd, 0.5f, 1.5f);
    j->slopes = uniforms(&r, (size_t)s->n_heads, 0, 0.3f);
    j->sinks = uniforms(&r, (size_t)s->n_heads, -1, 6);
    j->gates = uniforms(&r, len * j->qrow, -3, 3);
    j->cosine = calloc(len * (size_t)hd, 4), j->sine = calloc(len * (size_t)hd, 4);
    j->pos = malloc(len * 4), j->table_of = malloc(len * 4), j->tail_of = malloc(len * 4), j->rows = malloc(len * 4),
        j->table = malloc((size_t)(2 * j->n_blocks + 3) * 4);
    j->tail = j->table + 3 + j->n_blocks;
    for (int t = 0; t < j->len; t++) {
        j->pos[t] = t;
        j->table_of[t] = 3;
        j->tail_of[t] = 3 + j->n_blocks;
        j->rows[t] = s->pos + t % s->n;
        for (int d = 0; d < half; d++)
            j->cosine[t * half + d] = cosf((float)t * 0.3f / (float)(d + 1)),
                j->sine[t * half + d] = sinf((float)t * 0.3f / (float)(d + 1));
    }
    for (int i = 0; i < j->n_blocks + 3; i++)
        j->table[i] = i < 3 ? -1 : i - 3;
    for (int i = j->n_blocks - 1; i > 0; i--) {
        const int other = below(&r, i + 1), x = j->table[3 + i];
        j->table[3 + i] = j->table[3 + other];
        j->table[3 + other] = x;
    }
    for (int i = 0; i < j->n_blocks; i++)
        j->tail[i] = j->n_blocks - 1 - i;
}

static void job_free(struct job *j)
{
    gpu_free(device, j->kv.blocks.base), gpu_free(device, j->kv.tail.base), gpu_free(device, j->dq);
    free(j->q), free(j->k), free(j->v), free(j->w), free(j->slopes), free(j->sinks), free(j->gates);
    free(j->cosine), free(j->sine), free(j->table),
        free(j->pos), free(j->table_of), free(j->tail_of), free(j->rows), free(j->cache), free(j->tail_cache);
}

/* By the device. */
static void prepare(struct job *j)
{
    const struct setup *s = j->s;
    const size_t len = (size_t)j->len, tables = len * (size_t)s->dim * 4;
    j->kv = (struct gpu_kv){ .blocks = { .base = on_device((size_t)j->n_blocks * j->stride), .stride = j->stride,
                                         .head_stride = 2 * j->part, .layer_offset = j->stride / 2,
                                         .part = (uint32_t)j->part },
                             .type = s->kv, .scales = (uint32_t)(2 * j->part * (size_t)s->n_kv),
                             .rotated = kv_packed(s->kv) };
    if (s->more & TAIL)
        j->kv.tail = (struct gpu_kv_blocks){ .base = on_device((size_t)j->n_blocks * j->tail_stride),
                                             .stride = j->tail_stride, .head_stride = 2 * j->tail_part,
                                             .layer_offset = j->tail_stride / 2, .part = (uint32_t)j->tail_part };
    j->step = (struct gpu_step){ .pos = to_device(j->pos, len * 4), .table_of = to_device(j->table_of, len * 4),
                                 .tail_of = to_device(j->tail_of, len * 4),
                                 .tables = to_device(j->table, (size_t)(2 * j->n_blocks + 3) * 4), .n = j->len };
    const struct gpu_prepare p = { .q = j->dq = to_device(j->q, len * j->qrow * 4),
                                   .k = to_device(j->k, len * j->krow * 4), .v = to_device(j->v, len * j->krow * 4),
                                   .n_heads = s->n_heads,
                                   .n_kv_heads = s->n_kv, .head_dim = s->dim, .cosine = to_device(j->cosine, tables),
                                   .sine = to_device(j->sine, tables), .rope_dim = s->rope,
                                   .rope_pairs = s->pairs, .norm = s->norm, .norm_after_rope = s->after,
                                   .qw = to_device(j->w, (size_t)s->dim * 4), .kw = to_device(j->w, (size_t)s->dim * 4),
                                   .eps = 1e-5f, .offset = s->norm == 1 ? 0.25f : 0, .step = j->step, .kv = j->kv };
    OK(gpu_prepare(device, &p, &why));
    j->raw = p;
    j->raw.q = to_device(j->q, len * j->qrow * 4);
    j->raw.k = to_device(j->k, len * j->krow * 4);
    j->raw.v = to_device(j->v, len * j->krow * 4);
}

/* Round the keys and values of a token for the cache, and for the tail. */
static void store_plainly(const struct job *j, int t)
{
    const struct setup *s = j->s;
    const int hd = s->dim, slot = t % KV_BLOCK;
    uint8_t *block = j->cache + (size_t)j->table[3 + t / KV_BLOCK] * j->stride + j->kv.blocks.layer_offset,
            *tail = j->tail_cache + (size_t)j->tail[t / KV_BLOCK] * j->tail_stride + j->kv.tail.layer_offset;
    const float *k = j->k + (size_t)t * j->krow, *v = j->v + (size_t)t * j->krow;
    const float scale[2] = { kv_t2_scale(k, (int)j->krow), kv_t2_scale(v, (int)j->krow) };
    for (int i = 0; kv_shares_scale(s->kv) && i < 2; i++)
        memcpy(block + j->kv.scales + i * KV_BLOCK * 4 + slot * 4, &scale[i], sizeof scale[i]);
    for (int h = 0; h < s->n_kv; h++, block += 2 * j->part, tail += 2 * j->tail_part, k += hd, v += hd) {
        if (kv_shares_scale(s->kv)) {
            kv_t2_store(block, slot, 1, k, hd, scale[0]);
            kv_t2_store(block + j->part, slot, 0, v, hd, scale[1]);
        } else {
            kernels_ref.kv_store_key(s->kv, block, slot, k, hd);
            kernels_ref.kv_store_value(s->kv, block + j->part, slot, v, hd);
        }
        if (s->more & TAIL) {
            kernels_ref.kv_store_key(KV_F16, tail, slot, k, hd);
            kernels_ref.kv_store_value(KV_F16, tail + j->tail_part, slot, v, hd);
        }
    }
}

/* Compute what the device computed with the plain kernels: first q and k in place, then the
 * cache. */
static void prepare_plainly(struct job *j)
{
    const struct setup *s = j->s;
    const int hd = s->dim, half = s->rope / 2;
    j->cache = aligned_alloc(64, (size_t)j->n_blocks * j->stride);
    j->tail_cache = aligned_alloc(64, (size_t)j->n_blocks * j->tail_stride);
    memset(j->cache, 0xff, (size_t)j->n_blocks * j->stride);
    memset(j->tail_cache, 0xff, (size_t)j->n_blocks * j->tail_stride);
    for (int t = 0; t < j->len; t++) {
        for (int h = 0; h < s->n_heads + s->n_kv; h++) {
            const int key = h - s->n_heads;
            float *x = key < 0 ? j->q + (size_t)t * j->qrow + (size_t)(h * hd)
                               : j->k + (size_t)t * j->krow + (size_t)(key * hd);
            for (int pass = 0; pass < 2; pass++)
                if ((pass == 0) == (s->after != 0)) {
                    if (s->rope)
                        kernels_ref.rope(x, j->cosine + t * half, j->sine + t * half, 1, (size_t)hd, s->rope, s->pairs);
                } else if (s->norm == 1) {
                    kernels_ref.rms_norm(x, x, j->w, hd, 1e-5f, 0.25f);
                } else if (s->norm == 2) {
                    kernels_ref.layer_norm(x, x, j->w, NULL, hd, 1e-5f);
                }
            if (kv_packed(s->kv))
                hadamard_rotate(x, hd);
        }
        for (int h = 0; kv_packed(s->kv) && h < s->n_kv; h++)
            hadamard_rotate(j->v + (size_t)t * j->krow + (size_t)(h * hd), hd);
        store_plainly(j, t);
    }
}

/* Compare a cache with the device's, and replace it by that.  exact: the bytes must be equal, and
 * no other byte may change. */
static void compare_cache(uint8_t *cache, const uint8_t *device_cache, size_t bytes, int exact)
{
    uint8_t *got = malloc(bytes);
    from_device(got, device_cache, bytes);
    if (exact)
        assert_memory_equal(got, cache, bytes);
    memcpy(cache, got, bytes);
    free(got);
}

/* Compare the results of both.  Afterwards both use the device's cache, so that attention is
 * compared with the same keys. */
static void compare_prepared(struct job *j)
{
    const size_t n = (size_t)j->len * j->qrow;
    const int exact = j->s->norm == 0 && j->s->rope == 0;       /* nothing but rotations with sums in the same order */
    float *q = malloc(n * sizeof *q);
    compare_cache(j->cache, j->kv.blocks.base, (size_t)j->n_blocks * j->stride, exact);
    if (j->s->more & TAIL)
        compare_cache(j->tail_cache, j->kv.tail.base, (size_t)j->n_blocks * j->tail_stride, exact);
    from_device(q, j->dq, n * sizeof *q);
    for (size_t i = 0; i < n; i++)
        if (!(fabsf(q[i] - j->q[i]) <= 1e-5f * (1 + fabsf(j->q[i]))))
            fail_msg("q after norm and rotation: element %zu is %.9g, not %.9g", i, (double)q[i], (double)j->q[i]);
    free(q);
}

/* Element i of a block of i4 or i8 codes, times the scale of its slot. */
static float rounded_element(enum kv_type type, const uint8_t *block, int dim, int slot, int i)
{
    const int code = block[i / 16 * 8 + i % 8] >> (i % 16 < 8 ? 0 : 4) & 15;
    float scale;
    memcpy(&scale, block + kv_codes_bytes(type, dim) + (size_t)slot * sizeof scale, sizeof scale);
    return (float)(type == KV_I8 ? (int8_t)block[i] : (code ^ 8) - 8) * scale;
}

/* Replace the i4 or i8 keys and values in a by the same in f32: the device does not round queries
 * and weights for them, as kernels of the CPU do. */
static float *decode_rounded(const struct job *j, struct attn *a)
{
    const enum kv_type type = j->s->kv;
    const int hd = a->head_dim;
    const size_t half = (size_t)(KV_BLOCK * hd);
    float *blocks = malloc((size_t)j->n_blocks * 2 * half * sizeof *blocks);
    for (int b = 0; b < j->n_blocks; b++) {
        const uint8_t *k = a->base + (size_t)b * a->stride + a->k_offset, *v = k - a->k_offset + a->v_offset;
        float *key = blocks + (size_t)b * 2 * half, *value = key + half;
        for (int slot = 0; slot < KV_BLOCK; slot++)
            for (int d = 0; d < hd; d++) {
                key[d * KV_BLOCK + slot] = rounded_element(type, k, hd, slot, d * KV_BLOCK + slot);
                value[slot * hd + d] = rounded_element(type, v, hd, slot, slot * kv_padded(type, hd) + d);
            }
    }
    a->base = (const uint8_t *)blocks;
    a->stride = 2 * half * sizeof *blocks;
    a->k_offset = 0;
    a->v_offset = half * sizeof *blocks;
    a->kv = kv_both(KV_F32);
    return blocks;
}

/* Compute attention of the heads that share KV head h, of the token at pos. */
static void attend_head(const struct job *j, int h, int pos, float *want, void *scratch)
{
    const struct setup *s = j->s;
    const int group = s->n_heads / s->n_kv;
    const size_t first = (size_t)pos * j->qrow + (size_t)(h * group * s->dim), before = (size_t)h * 2 * j->part,
                 keys = j->kv.blocks.layer_offset + before,
                 tail = j->kv.tail.layer_offset + (size_t)h * 2 * j->tail_part;
    struct attn a = { .q = j->q + first, .q_token_stride = j->qrow, .q_head_stride = (size_t)s->dim,
                      .out = want + first, .out_token_stride = j->qrow,
                      .out_head_stride = (size_t)s->dim, .n_tokens = 1, .n_q_heads = group,
                      .head_dim = s->dim, .pos = pos, .window = s->more & CHUNK ? 0 : s->window,
                      .chunk = s->more & CHUNK ? s->window : 0, .base = j->cache,
                      .table = j->table + 3, .stride = j->stride, .k_offset = keys,
                      .v_offset = keys + j->part, .kv = kv_both(s->kv), .k_scales = j->kv.scales - before,
                      .v_scales = j->kv.scales - before - j->part + KV_BLOCK * 4, .scale = 0.3f, .softcap = s->softcap,
                      .alibi = s->more & SLOPES ? j->slopes + h * group : NULL,
                      .sinks = s->more & SINKS ? j->sinks + h * group : NULL };
    if (s->more & TAIL) {
        a.tail.base = j->tail_cache, a.tail.table = j->tail, a.tail.stride = j->tail_stride;
        a.tail.k_offset = tail, a.tail.v_offset = tail + j->tail_part;
        a.rounded_from = KV_SINKS, a.rounded_to = kv_tail_from(pos);
    }
    float *decoded = s->kv == KV_I4 || s->kv == KV_I8 ? decode_rounded(j, &a) : NULL;
    kernels_ref.attention(&a, scratch);
    free(decoded);
    for (int i = 0; kv_packed(s->kv) && i < group; i++)
        hadamard_rotate(want + first + (size_t)(i * s->dim), s->dim);
}

static void attend_plainly(const struct job *j, float *want)
{
    const struct setup *s = j->s;
    void *scratch = aligned_alloc(64, (kernels_ref.attention_scratch(s->dim) + 63) / 64 * 64);
    for (int h = 0; h < s->n_kv; h++)
        for (int pos = s->pos; pos < j->len; pos++)
            attend_head(j, h, pos, want, scratch);
    const size_t each = s->more & HEAD_GATES ? (size_t)s->dim : 1;
    for (size_t i = (size_t)s->pos * j->qrow; s->more & (GATES | HEAD_GATES) && i < (size_t)j->len * j->qrow; i++)
        want[i] /= 1 + expf(-j->gates[i / each]);
    free(scratch);
}

/* Compute attention for the n tokens by one of the kernels, with results in f32 and in f16; both
 * must agree with `want`. */
static void attend(const struct job *j, const struct gpu_attention *o, int by_tiles, const float *want)
{
    const struct setup *s = j->s;
    const size_t n = (size_t)j->len * j->qrow, n_act = (size_t)j->len * (size_t)o->act_stride;
    /* f32 differs by the order of sums; with tiles q, probabilities and keys are also rounded to
     * f16 */
    const float limit = by_tiles ? 4e-3f : 2e-5f;
    float *got = malloc(n * sizeof *got);
    uint16_t *act = malloc(n_act * sizeof *act);
    OK(gpu_fill(device, GPU_COMPUTE, o->out, 0xff, n * sizeof *got, &why));
    OK(gpu_fill(device, GPU_COMPUTE, o->act, 0xff, n_act * sizeof *act, &why));
    OK(by_tiles ? gpu_attn_prefill(device, o, &why) : gpu_attn_decode(device, o, &why));
    from_device(got, o->out, n * sizeof *got);
    from_device(act, o->act, n_act * sizeof *act);
    for (int t = s->pos; t < j->len; t++) {
        const uint16_t *row = act + (size_t)t * (size_t)o->act_stride;
        for (int i = 0; i < (int)j->qrow; i++) {
            const float a = got[(size_t)t * j->qrow + (size_t)i], b = want[(size_t)t * j->qrow + (size_t)i],
                        h = 16 * f16_to_f32(row[act_at(i, o->order)]);
            if (!(fabsf(a - b) <= limit) || !(fabsf(h - a) <= 1e-3f * (1 + fabsf(a))))
                fail_msg("%s, %d heads of %d on %d, kv %d, at %d + %d, window %d: token %d element %d is %.6g (f16 %.6g), not %.6g", by_tiles ? "prefill" : "decode", s->n_heads, s->dim,
                         s->n_kv, (int)s->kv, s->pos, s->n, s->window, t, i, (double)a, (double)h, (double)b);
        }
        for (int i = (int)j->qrow; i < o->act_stride; i++)
            assert_int_equal(row[act_at(i, o->order)], 0);
    }
    free(act), free(got);
}

static void same_bytes(const void *a, const void *b, size_t n, const char *what)
{
    uint8_t *x = malloc(n), *y = malloc(n);
    from_device(x, a, n);
    from_device(y, b, n);
    for (size_t i = 0; i < n; i++)
        if (x[i] != y[i])
            fail_msg("%s: byte %zu differs: %d, not %d", what, i, y[i], x[i]);
    free(x), free(y);
}

/* If attention prepares the last token, as the only one of its step, it stores the same bits and
 * has the same results as with gpu_prepare(). */
static void attend_at_once(const struct job *j, const struct gpu_attention *all)
{
    const struct setup *s = j->s;
    const size_t last = (size_t)j->len - 1, row = j->qrow * 4, act = (size_t)all->act_stride * 2,
                 cache = (size_t)j->n_blocks * j->stride, tail = (size_t)j->n_blocks * j->tail_stride;
    static const int32_t first = 0;
    struct gpu_prepare p = j->raw;
    p.temper = (struct gpu_temper){ 0.5f, 4, 1 };
    p.kv.blocks.base = on_device(cache);
    if (s->more & TAIL)
        p.kv.tail.base = on_device(tail);
    p.step.n = (int)last;
    if (last > 0)
        OK(gpu_prepare(device, &p, &why));
    p.q += last * j->qrow, p.k += last * j->krow, p.v += last * j->krow;
    p.cosine += last * (size_t)s->rope / 2, p.sine += last * (size_t)s->rope / 2;
    p.step.pos += last, p.step.table_of += last, p.step.tail_of += last;
    p.step.n = 1;
    struct gpu_attention o = *all;
    o.step = p.step;
    o.rows = to_device(&first, sizeof first);
    o.n_rows = 1;
    o.max_splits--;             /* the context's: with one split, blocks divide the heads of one key */
    o.gate = o.gate ? o.gate + last * j->qrow / (size_t)o.gate_each : NULL;
    if (gpu_attn_prepares(&p)) {
        float *out[2] = { on_device(row), on_device(row) };
        uint16_t *acts[2] = { on_device(act), on_device(act) };
        o.out = out[1], o.act = acts[1];
        o.kv = p.kv;
        o.prepare = p;
        OK(gpu_attn_decode(device, &o, &why));
        o.prepare.head_dim = 0;
        same_bytes(j->kv.blocks.base, p.kv.blocks.base, cache, "keys and values");
        if (s->more & TAIL)
            same_bytes(j->kv.tail.base, p.kv.tail.base, tail, "tail");
        OK(gpu_prepare(device, &p, &why));
        o.out = out[0], o.act = acts[0];
        o.q = p.q;
        OK(gpu_attn_decode(device, &o, &why));
        same_bytes(out[0], out[1], row, "results");
        same_bytes(acts[0], acts[1], act, "results as f16");
        gpu_free(device, out[0]), gpu_free(device, out[1]), gpu_free(device, acts[0]), gpu_free(device, acts[1]);
    }
    gpu_free(device, p.kv.blocks.base);
    if (s->more & TAIL)
        gpu_free(device, p.kv.tail.base);
}

/* Queries, keys and values that are still parts of sums: the bits of those added before. */
static void prepare_parts(const struct job *j)
{
    enum { PARTS = 3, TILE = 32 };
    const struct setup *s = j->s;
    const size_t len = (size_t)j->len, cols[3] = { j->qrow, j->krow, j->krow },
                 cache = (size_t)j->n_blocks * j->stride, tail = (size_t)j->n_blocks * j->tail_stride;
    size_t ld = 0, at = 0;
    for (int i = 0; i < 3; i++)
        ld += (cols[i] + TILE - 1) / TILE * TILE;
    struct rng r = { 17 };
    float *part = uniforms(&r, PARTS * len * ld, -1, 1), *scale = uniforms(&r, ld, 0.01f, 0.1f),
          *bias = uniforms(&r, ld, -1, 1), *on = to_device(part, PARTS * len * ld * 4), *x[3];
    const float *scales = to_device(scale, ld * 4), *biases = to_device(bias, ld * 4);
    struct gpu_prepare plain = j->raw, parts = j->raw;
    for (int i = 0; i < 3; i++) {
        x[i] = malloc(len * cols[i] * sizeof *x[i]);
        for (size_t t = 0; t < len; t++)
            for (size_t d = 0; d < cols[i]; d++) {
                float sum = 0;
                for (size_t p = 0; p < PARTS; p++)
                    sum += part[(p * len + t) * ld + at + d];
                x[i][t * cols[i] + d] = sum * (16 * scale[at + d]) + bias[at + d];
            }
        parts.parts[i] = (struct gpu_part_sums){ .part = on + at, .n_parts = PARTS, .ld = (int)ld,
                                                 .tiles = (const uint8_t *)(scales + at), .tile_bytes = TILE * 4,
                                                 .bias = biases + at };
        at += (cols[i] + TILE - 1) / TILE * TILE;
    }
    plain.q = to_device(x[0], len * j->qrow * 4), parts.q = on_device(len * j->qrow * 4);
    plain.k = to_device(x[1], len * j->krow * 4), parts.k = on_device(len * j->krow * 4);
    plain.v = to_device(x[2], len * j->krow * 4), parts.v = on_device(len * j->krow * 4);
    for (int i = 0; i < 2; i++) {
        struct gpu_prepare *p = i ? &parts : &plain;
        p->kv.blocks.base = on_device(cache);
        if (s->more & TAIL)
            p->kv.tail.base = on_device(tail);
        OK(gpu_prepare(device, p, &why));
    }
    same_bytes(plain.q, parts.q, len * j->qrow * 4, "queries of parts");
    same_bytes(plain.kv.blocks.base, parts.kv.blocks.base, cache, "keys and values of parts");
    if (s->more & TAIL)
        same_bytes(plain.kv.tail.base, parts.kv.tail.base, tail, "tail of parts");
    const void *const all[] = { on, scales, biases, plain.q, plain.k, plain.v, parts.q, parts.k, parts.v,
                                plain.kv.blocks.base, parts.kv.blocks.base };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        gpu_free(device, (void *)all[i]);
    free(part), free(scale), free(bias), free(x[0]), free(x[1]), free(x[2]);
}

static void check(const struct setup *s)
{
    struct job j;
    int32_t tiles[64];
    job_fill(&j, s);
    prepare(&j);
    prepare_plainly(&j);
    compare_prepared(&j);
    prepare_parts(&j);
    const int tile = GPU_ATTN_TILE(s->dim), splits = (j.len + GPU_SPLIT - 1) / GPU_SPLIT + 1,
              act_stride = ((int)j.qrow + 31) / 32 * 32;
    const size_t counters = (size_t)s->n * (size_t)s->n_heads * sizeof(unsigned);
    float *want = malloc((size_t)j.len * j.qrow * sizeof *want);
    struct gpu_attention o = { .q = j.dq, .out = on_device((size_t)j.len * j.qrow * 4),
                               .act = on_device((size_t)j.len * (size_t)act_stride * 2), .act_stride = act_stride,
                               .n_heads = s->n_heads, .n_kv_heads = s->n_kv, .head_dim = s->dim,
                               .window = s->more & CHUNK ? 0 : s->window, .chunk = s->more & CHUNK ? s->window : 0,
                               .gate = s->more & (GATES | HEAD_GATES) ? to_device(j.gates, (size_t)j.len * j.qrow * 4)
                                                                      : NULL,
                               .gate_each = s->more & HEAD_GATES ? s->dim : 1, .scale = 0.3f, .softcap = s->softcap,
                               .alibi = s->more & SLOPES ? to_device(j.slopes, (size_t)s->n_heads * 4) : NULL,
                               .sinks = s->more & SINKS ? to_device(j.sinks, (size_t)s->n_heads * 4) : NULL,
                               .step = j.step,
                               .kv = j.kv, .rows = to_device(j.rows, (size_t)j.len * 4), .n_rows = s->n,
                               .partial = on_device((size_t)s->n * (size_t)s->n_heads * (size_t)splits *
                                                    (size_t)(s->dim + 2) * 4), .max_splits = splits,
                               .arrived = on_device(counters) };
    OK(gpu_fill(device, GPU_COMPUTE, o.arrived, 0, counters, &why));
    for (int t = 0; t < s->n; t += tile) {
        tiles[2 * o.n_tiles] = s->pos + t;
        tiles[2 * o.n_tiles++ + 1] = s->n - t < tile ? s->n - t : tile;
    }
    o.tiles = to_device(tiles, sizeof tiles);
    attend_plainly(&j, want);
    for (int by_tiles = 0; by_tiles < (s->dim % 16 ? 1 : 2); by_tiles++) {
        o.order = (s->n + by_tiles) % 2 ? GPU_ACT_LANES : GPU_ACT_TILES;
        attend(&j, &o, by_tiles, want);
    }
    attend_at_once(&j, &o);
    gpu_free(device, o.out), gpu_free(device, o.act), gpu_free(device, o.partial), gpu_free(device, o.arrived);
    free(want);
    job_free(&j);
}

static void attention(void **state)
{
    (void)state;
    static const struct setup cases[] = {
        { 1, 1, 8, 0, 1, 0, 0, 0, 0, 0, 0, 0, KV_F32 },
        { 2, 2, 32, 0, 17, 0, 0, 0, 0, 0, 0, 0, KV_F16 },
        { 2, 2, 32, 0, 17, 0, 0, 0, 0, 0, 0, 0, KV_I8 },
        { 2, 2, 32, 0, 17, 0, 0, 0, 0, 0, 0, 0, KV_F32 },
        { 4, 2, 64, 5, 66, 0, 64, 0, 1, 0, 0, 0, KV_F16 },
        { 8, 2, 80, 60, 5, 20, 40, 1, 0, 0, 30, SINKS, KV_F16 },    /* window, part of a head rotated in pairs, cap */
        { 3, 1, 96, 15, 18, 0, 96, 0, 2, 1, 0, 0, KV_I8 },          /* layer norm after the rotation, 3 heads share */
        { 5, 1, 128, 0, 33, 0, 0, 0, 0, 0, 0, SLOPES, KV_F16 },     /* slopes, 5 heads share */
        { 16, 1, 16, 30, 3, 0, 0, 0, 0, 0, 0, 0, KV_F32 },          /* two passes of 8 heads */
        { 2, 1, 256, 0, 20, 0, 256, 0, 0, 0, 0, SINKS, KV_F16 },
        { 2, 2, 16, 250, 9, 0, 16, 0, 0, 0, 0, 0, KV_F16 },         /* across the end of a split */
        { 2, 1, 32, 520, 2, 0, 0, 0, 0, 0, 0, 0, KV_F16 },
        /* a window that begins in the first split */
        { 2, 1, 32, 530, 2, 300, 0, 0, 0, 0, 0, SLOPES | SINKS, KV_I8 },
        { 2, 1, 32, 600, 2, 40, 0, 0, 0, 0, 0, 0, KV_F32 },         /* a window that leaves out whole splits */
        { 2, 2, 32, 0, 17, 0, 0, 0, 0, 0, 0, 0, KV_BF16 },
        { 2, 2, 32, 0, 17, 0, 0, 0, 0, 0, 0, 0, KV_F8 },
        { 2, 1, 64, 5, 66, 0, 64, 1, 1, 0, 0, 0, KV_F8 },         /* a norm, then a rotation in
                                                                   * pairs, whose elements are in
                                                                   * other lanes than those of
                                                                   * halves */
        { 2, 1, 64, 3, 20, 0, 64, 1, 2, 0, 0, 0, KV_F16 },          /* the same with a layer norm */
        { 4, 1, 80, 30, 5, 20, 40, 1, 0, 0, 30, 0, KV_F8 },         /* window, cap */
        { 4, 1, 32, 30, 25, 20, 0, 0, 0, 0, 0, CHUNK | GATES, KV_F16 },
        { 2, 1, 16, 500, 30, 270, 0, 0, 0, 0, 0, CHUNK | HEAD_GATES, KV_F16 },      /* across splits */
        { 3, 1, 96, 0, 17, 0, 0, 0, 0, 0, 0, SLOPES, KV_BF16 },     /* slopes */
        { 1, 1, 256, 0, 5, 3, 0, 0, 0, 0, 0, 0, KV_F8 },
        { 1, 1, 64, 3, 145, 0, 0, 0, 0, 0, 0, 0, KV_F16 },          /* more than a tile of queries */
        /* more than a tile of queries, with a window shorter than a warp's queries, slopes,
         * sinks */
        { 2, 1, 112, 20, 133, 37, 0, 0, 0, 0, 0, SLOPES | SINKS, KV_I8 },
        /* tiles of positions without masks before those with masks, and between them with a window;
         * scores that grow from tile to tile */
        { 2, 1, 128, 94, 150, 0, 0, 0, 0, 0, 0, SINKS, KV_F16 },
        { 1, 1, 96, 100, 40, 111, 0, 0, 0, 0, 0, 0, KV_F16 },
        { 1, 1, 256, 63, 70, 0, 0, 0, 0, 0, 0, 0, KV_F16 },
        { 1, 1, 128, 130, 30, 0, 0, 0, 0, 0, 0, 0, KV_F8 },
        { 2, 1, 128, 70, 40, 0, 0, 0, 0, 0, 0, SLOPES, KV_F16 },
        /* more than a tile of queries with large heads, whose tiles are half as large */
        { 1, 1, 144, 0, 66, 0, 0, 0, 0, 0, 0, 0, KV_BF16 },
        { 2, 1, 192, 9, 18, 0, 0, 0, 0, 0, 0, 0, KV_F16 },
        { 2, 2, 16, 250, 9, 0, 16, 0, 0, 0, 0, 0, KV_BF16 },        /* across the end of a split */
        /* codes of tokens that share words, without a tail and with one: the queries of a tile
         * differ in the positions that they read as f16 */
        { 4, 2, 32, 0, 35, 0, 0, 0, 0, 0, 0, GATES, KV_I4 },
        { 4, 2, 32, 0, 35, 0, 0, 0, 0, 0, 0, SINKS, KV_T2 },
        { 3, 1, 96, 15, 18, 0, 96, 0, 2, 1, 0, 0, KV_I4 },          /* rotated in runs of 32 */
        { 2, 1, 64, 190, 145, 0, 64, 0, 1, 0, 0, TAIL, KV_I4 },
        { 2, 1, 64, 250, 135, 0, 0, 0, 0, 0, 0, TAIL | HEAD_GATES, KV_T2 },
        { 1, 1, 128, 300, 30, 0, 0, 0, 0, 0, 20, TAIL, KV_I4 },
        { 1, 1, 256, 260, 17, 0, 0, 0, 0, 0, 0, TAIL | SLOPES, KV_T2 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check(&cases[i]);
}

/* If one block is repeated through more splits than are merged at once, the result is that of the
 * block alone, because every weight is repeated equally often.  The step also has a row that is
 * only padding. */
static void many_splits(void **state)
{
    (void)state;
    enum { HD = 8, SPLITS = GPU_SPLIT + 22, LEN = SPLITS * GPU_SPLIT };
    const size_t part = kv_block_bytes(KV_F32, HD);
    static const int32_t table[LEN / KV_BLOCK], pos[3] = { KV_BLOCK - 1, LEN - 1, -1 }, table_of[3],
                         rows[3] = { 0, 1, 2 };
    static const unsigned none[3];
    unsigned left[3];
    struct rng r = { 3 };
    float q[3][HD], out[3][HD], *block = malloc(2 * part);
    for (size_t i = 0; i < 2 * part / 4; i++)
        block[i] = uniform(&r, -2, 2);
    for (int i = 0; i < HD; i++)
        q[0][i] = q[1][i] = q[2][i] = uniform(&r, -2, 2);
    const struct gpu_kv kv = { .blocks = { .base = to_device(block, 2 * part), .stride = 2 * part,
                                           .head_stride = 2 * part, .part = (uint32_t)part }, .type = KV_F32 };
    const struct gpu_attention o = { .q = to_device(q, sizeof q), .out = on_device(sizeof out), .n_heads = 1,
                                     .n_kv_heads = 1, .head_dim = HD, .scale = 1,
                                     .step = { .pos = to_device(pos, sizeof pos),
                                               .table_of = to_device(table_of, sizeof table_of),
                                               .tables = to_device(table, sizeof table), .n = 3 },
                                     .kv = kv, .rows = to_device(rows, sizeof rows), .n_rows = 3,
                                     .partial = on_device(3 * SPLITS * (HD + 2) * 4), .max_splits = SPLITS,
                                     .arrived = to_device(none, sizeof none) };
    OK(gpu_attn_decode(device, &o, &why));
    from_device(left, o.arrived, sizeof left);
    assert_memory_equal(left, none, sizeof left);
    from_device(out, o.out, sizeof out);
    for (int i = 0; i < HD; i++) {
        if (!(fabsf(out[0][i] - out[1][i]) <= SPLITS * 2e-8f))
            fail_msg("%d splits: element %d is %.9g, not %.9g", SPLITS, i, (double)out[1][i], (double)out[0][i]);
        assert_true(out[2][i] == 0);
    }
    free(block);
}

enum { L_HEADS = 9, L_NOPE = 6, L_ROPE = 8, L_RANK = 40, L_DIM = L_RANK + L_ROPE, L_QUERY = L_NOPE + L_ROPE,
       L_LEN = 262 };

/* The keys that latent attention stores, and the queries that it makes, in a plain loop. */
static void latents_plainly(float *key, float *q, float *heads, const float *w, const float *cosine, const float *sine,
                            const struct gpu_temper *temper)
{
    for (int t = 0; t < L_LEN; t++) {
        const size_t at = (size_t)(t * L_ROPE / 2);
        const float by = log1pf(floorf((float)(t + temper->first) / (float)temper->floor)) * temper->scale + 1;
        float *x = key + t * L_DIM;
        kernels_ref.rms_norm(x, x, w, L_RANK, 1e-5f, 0);
        kernels_ref.rope(x + L_RANK, cosine + at, sine + at, 1, L_ROPE, L_ROPE, 1);
        for (int h = 0; h < L_HEADS; h++) {
            float *from = heads + (t * L_HEADS + h) * L_QUERY, *to = q + (t * L_HEADS + h) * L_DIM + L_RANK;
            kernels_ref.rope(from + L_NOPE, cosine + at, sine + at, 1, L_ROPE, L_ROPE, 1);
            for (int i = 0; i < L_QUERY; i++)
                from[i] *= by;
            memcpy(to, from + L_NOPE, L_ROPE * sizeof *to);
        }
    }
}

/* The output of one head of the token at pos. */
static void attend_latents(float out[L_RANK], const float *q, const float *key, int pos, float scale)
{
    double sum = 0, most = -1e30, weight[L_LEN], y[L_RANK] = { 0 };
    for (int t = 0; t <= pos; t++) {
        weight[t] = 0;
        for (int d = 0; d < L_DIM; d++)
            weight[t] += (double)q[d] * key[t * L_DIM + d] * scale;
        most = fmax(most, weight[t]);
    }
    for (int t = 0; t <= pos; t++) {
        sum += weight[t] = exp(weight[t] - most);
        for (int d = 0; d < L_RANK; d++)
            y[d] += weight[t] * key[t * L_DIM + d];
    }
    for (int d = 0; d < L_RANK; d++)
        out[d] = (float)(y[d] / sum);
}

/* The same tokens in tiles, each of them from a token of the list on. */
static void latents_in_tiles(struct gpu_attention o, const float *q, const float *key, float limit)
{
    static const int32_t tiles[] = { 5, 20, L_LEN - 19, 19 };
    float *got = malloc(L_LEN * L_HEADS * L_RANK * sizeof *got), want[L_RANK];
    o.tiles = to_device(tiles, sizeof tiles);
    o.n_tiles = 2;
    OK(gpu_fill(device, GPU_COMPUTE, o.out, 0xff, L_LEN * L_HEADS * L_RANK * sizeof *got, &why));
    OK(gpu_attn_latent(device, &o, &why));
    from_device(got, o.out, L_LEN * L_HEADS * L_RANK * sizeof *got);
    for (int t = 0; t < L_LEN; t++) {
        const int in_tile = (t >= 5 && t < 25) || t >= L_LEN - 19;
        for (int h = 0; h < L_HEADS; h++) {
            const float *row = got + (t * L_HEADS + h) * L_RANK;
            if (in_tile)
                attend_latents(want, q + (t * L_HEADS + h) * L_DIM, key, t, 0.3f);
            for (int d = 0; d < L_RANK; d++)
                if (in_tile ? !(fabsf(row[d] - want[d]) <= limit) : row[d] == row[d])
                    fail_msg("tiles, kv %d: token %d head %d element %d is %.9g, not %.9g", (int)o.kv.type, t, h, d,
                             (double)row[d], in_tile ? (double)want[d] : NAN);
        }
    }
    free(got);
}

/* Latent attention over several splits, for two passes of heads, beside a row that is only
 * padding. */
static void latents(void **state)
{
    (void)state;
    enum { ROWS = 3, BLOCKS = (L_LEN + KV_BLOCK - 1) / KV_BLOCK, SPLITS = (L_LEN + GPU_SPLIT - 1) / GPU_SPLIT };
    static const struct { enum kv_type kv; float limit; } cases[] = { { KV_F32, 2e-5f }, { KV_F16, 2e-3f },
                                                                      { KV_I8, 3e-2f }, { KV_F8, 6e-2f } };
    const struct gpu_temper temper = { .scale = 0.3f, .floor = 40, .first = 1 };
    int32_t pos[L_LEN + 1], table_of[L_LEN + 1] = { 0 }, tables[BLOCKS], rows[ROWS] = { 17, L_LEN - 1, L_LEN };
    for (int i = 0; i < BLOCKS; i++)
        tables[i] = BLOCKS - 1 - i;
    for (int t = 0; t <= L_LEN; t++)
        pos[t] = t < L_LEN ? t : -1;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct rng r = { 31 };
        const size_t part = kv_block_bytes(cases[c].kv, L_DIM), n_out = (L_LEN + 1) * L_HEADS * L_RANK;
        float *heads = uniforms(&r, (L_LEN + 1) * L_HEADS * L_QUERY, -1, 1),
              *q = uniforms(&r, (L_LEN + 1) * L_HEADS * L_DIM, -1, 1), *key = uniforms(&r, (L_LEN + 1) * L_DIM, -1, 1),
              *w = uniforms(&r, L_RANK, 0.5f, 1.5f), *cosine = uniforms(&r, (L_LEN + 1) * L_ROPE / 2, -1, 1),
              *sine = uniforms(&r, (L_LEN + 1) * L_ROPE / 2, -1, 1), *got = malloc(n_out * sizeof *got), want[L_RANK];
        const struct gpu_kv kv = { .blocks = { .base = on_device(part * (BLOCKS + 1)), .stride = part,
                                               .layer_offset = part / 2, .head_stride = part, .part = (uint32_t)part },
                                   .type = cases[c].kv };
        const struct gpu_step step = { .pos = to_device(pos, sizeof pos),
                                       .table_of = to_device(table_of, sizeof table_of),
                                       .tables = to_device(tables, sizeof tables), .n = L_LEN + 1 };
        const struct gpu_latent l = { .heads = to_device(heads, (L_LEN + 1) * L_HEADS * L_QUERY * 4),
                                      .q = to_device(q, (L_LEN + 1) * L_HEADS * L_DIM * 4),
                                      .key = to_device(key, (L_LEN + 1) * L_DIM * 4), .n_heads = L_HEADS,
                                      .nope_dim = L_NOPE, .rope_dim = L_ROPE, .kv_rank = L_RANK,
                                      .cosine = to_device(cosine, (L_LEN + 1) * L_ROPE * 2),
                                      .sine = to_device(sine, (L_LEN + 1) * L_ROPE * 2), .rope_pairs = 1,
                                      .w = to_device(w, L_RANK * 4), .eps = 1e-5f, .temper = temper, .step = step,
                                      .kv = kv };
        const struct gpu_attention o = { .q = l.q, .out = on_device(n_out * 4), .n_heads = L_HEADS, .n_kv_heads = 1,
                                         .head_dim = L_DIM, .value_dim = L_RANK, .scale = 0.3f, .step = step, .kv = kv,
                                         .rows = to_device(rows, sizeof rows), .n_rows = ROWS,
                                         .partial = on_device(ROWS * L_HEADS * SPLITS * (L_RANK + 2) * 4),
                                         .max_splits = SPLITS, .arrived = on_device(ROWS * L_HEADS * 4) };
        OK(gpu_fill(device, GPU_COMPUTE, o.arrived, 0, ROWS * L_HEADS * 4, &why));
        OK(gpu_latent(device, &l, &why));
        OK(gpu_attn_decode(device, &o, &why));
        latents_plainly(key, q, heads, w, cosine, sine, &temper);
        from_device(got, l.heads, L_LEN * L_HEADS * L_QUERY * 4);
        for (int i = 0; i < L_LEN * L_HEADS * L_QUERY; i++)     /* the rotated parts are only in q */
            if (i % L_QUERY < L_NOPE)
                assert_true(fabsf(got[i] - heads[i]) <= 1e-5f);
        from_device(got, o.out, n_out * 4);
        for (int i = 0; i < ROWS * L_HEADS; i++) {
            const int t = rows[i / L_HEADS], h = i % L_HEADS;
            memset(want, 0, sizeof want);
            if (t < L_LEN)
                attend_latents(want, q + (t * L_HEADS + h) * L_DIM, key, t, 0.3f);
            for (int d = 0; d < L_RANK; d++)
                if (!(fabsf(got[(t * L_HEADS + h) * L_RANK + d] - want[d]) <= cases[c].limit))
                    fail_msg("kv %d: token %d head %d element %d is %.9g, not %.9g", (int)cases[c].kv, t, h, d,
                             (double)got[(t * L_HEADS + h) * L_RANK + d], (double)want[d]);
        }
        latents_in_tiles(o, q, key, 2 * cases[c].limit + 2e-3f);        /* fewer latents, whose rounding counts more */
        free(heads), free(q), free(key), free(w), free(cosine), free(sine), free(got);
    }
}

/* A tile of the largest latents. */
static void wide_latents(void **state)
{
    (void)state;
    enum { DIM = 576, RANK = 512, HEADS = 5, LEN = 21, BLOCKS = 2 };
    static uint16_t block[BLOCKS * KV_BLOCK * DIM];
    static float q[LEN * HEADS * DIM], got[LEN * HEADS * RANK];
    static const int32_t table[BLOCKS] = { 1, 0 }, tile[] = { 0, LEN };
    int32_t pos[LEN], table_of[LEN] = { 0 };
    float latent[LEN][DIM];
    struct rng r = { 5 };
    for (int t = 0; t < LEN; t++) {
        pos[t] = t;
        for (int d = 0; d < DIM; d++) {
            uint16_t *at = &block[(table[t / KV_BLOCK] * KV_BLOCK + t % KV_BLOCK) * DIM + d];
            *at = f32_to_f16(uniform(&r, -1, 1));
            latent[t][d] = f16_to_f32(*at);
        }
    }
    for (int i = 0; i < LEN * HEADS * DIM; i++)
        q[i] = f16_to_f32(f32_to_f16(uniform(&r, -1, 1)));
    const size_t part = sizeof block / BLOCKS;
    const struct gpu_attention o = { .q = to_device(q, sizeof q), .out = on_device(sizeof got), .n_heads = HEADS,
                                     .n_kv_heads = 1, .head_dim = DIM, .value_dim = RANK, .scale = 0.1f,
                                     .step = { .pos = to_device(pos, sizeof pos),
                                               .table_of = to_device(table_of, sizeof table_of),
                                               .tables = to_device(table, sizeof table), .n = LEN },
                                     .kv = { .blocks = { .base = to_device(block, sizeof block), .stride = part,
                                                         .head_stride = part, .part = (uint32_t)part },
                                             .type = KV_F16 },
                                     .tiles = to_device(tile, sizeof tile), .n_tiles = 1 };
    OK(gpu_attn_latent(device, &o, &why));
    from_device(got, o.out, sizeof got);
    for (int i = 0; i < LEN * HEADS; i++) {
        double weight[LEN], sum = 0;
        for (int t = 0; t <= i / HEADS; t++) {
            double s = 0;
            for (int d = 0; d < DIM; d++)
                s += (double)q[i * DIM + d] * latent[t][d];
            sum += weight[t] = exp(s * 0.1);
        }
        for (int d = 0; d < RANK; d++) {
            double want = 0;
            for (int t = 0; t <= i / HEADS; t++)
                want += weight[t] / sum * latent[t][d];
            if (!(fabs(got[i * RANK + d] - want) <= 1e-3))
                fail_msg("token %d head %d element %d is %.9g, not %.9g", i / HEADS, i % HEADS, d,
                         (double)got[i * RANK + d], want);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(attention), cmocka_unit_test(many_splits),
                                        cmocka_unit_test(latents), cmocka_unit_test(wide_latents) };
    return device_open() ? cmocka_run_group_tests(tests, NULL, NULL) : 0;
}
