/* t-gpu-attention.c - head norms, rotation, the KV cache and both attentions on the device against kernels_ref: KV formats, head sizes, shared heads, windows, caps, slopes,
 * contexts around the size of blocks, tiles and splits. */
#include "tests/lib/gpu.h"

struct setup { int n_heads, n_kv, dim, pos, n, window, rope, pairs, norm, after; float softcap; int alibi; enum kv_type kv; };

/* Keys and values of `pos` tokens and then n tokens through prepare; attention of the n by both kernels. */
static void check(const struct setup *s)
{
    const int hd = s->dim, len = s->pos + s->n, n_blocks = (len + KV_BLOCK - 1) / KV_BLOCK, group = s->n_heads / s->n_kv;
    const size_t part = kv_block_bytes(s->kv, hd), stride = 2 * (2 * part * (size_t)s->n_kv), qrow = (size_t)s->n_heads * (size_t)hd, krow = (size_t)s->n_kv * (size_t)hd;
    struct rng r = { (uint64_t)(hd * 7 + s->pos * 3 + s->n + s->n_heads) };
    float *q = malloc((size_t)len * qrow * 4), *k = malloc((size_t)len * krow * 4), *v = malloc((size_t)len * krow * 4), *w = malloc((size_t)hd * 4), *slopes = malloc((size_t)s->n_heads * 4);
    float *cosine = calloc((size_t)len * (size_t)hd, 4), *sine = calloc((size_t)len * (size_t)hd, 4);
    int32_t *table = malloc((size_t)(n_blocks + 3) * 4), *pos = malloc((size_t)len * 4), *table_of = malloc((size_t)len * 4), *rows = malloc((size_t)len * 4);
    for (size_t i = 0; i < (size_t)len * qrow; i++)
        q[i] = uniform(&r, -1.5f, 1.5f);
    for (size_t i = 0; i < (size_t)len * krow; i++)
        k[i] = uniform(&r, -1, 1), v[i] = uniform(&r, -1, 1);
    for (int d = 0; kv_has_scales(s->kv) && d < hd; d++)        /* scales differ from token to token, and one vector is too small for any */
        for (int t = 0; t < len; t++) {
            k[(size_t)t * krow + (size_t)d] *= t == 1 ? 1e-33f : t % 3 ? 0.3f : 1;
            v[(size_t)t * krow + (size_t)d] *= t == 2 ? 1e-33f : t % 4 ? 0.2f : 1;
        }
    for (int i = 0; i < hd; i++)
        w[i] = uniform(&r, 0.5f, 1.5f);
    for (int i = 0; i < s->n_heads; i++)
        slopes[i] = uniform(&r, 0, 0.3f);
    for (int t = 0; t < len; t++) {
        pos[t] = t;
        table_of[t] = 3;
        rows[t] = s->pos + t % s->n;
        for (int d = 0; d < s->rope / 2; d++)
            cosine[t * s->rope / 2 + d] = cosf((float)t * 0.3f / (float)(d + 1)), sine[t * s->rope / 2 + d] = sinf((float)t * 0.3f / (float)(d + 1));
    }
    for (int i = 0; i < 3; i++)
        table[i] = -1;                  /* another sequence's */
    for (int i = 0; i < n_blocks; i++)
        table[3 + i] = i;
    for (int i = n_blocks - 1; i > 0; i--) {
        const int j = below(&r, i + 1), x = table[3 + i];
        table[3 + i] = table[3 + j];
        table[3 + j] = x;
    }

    struct gpu_kv kv = { .base = on_device((size_t)n_blocks * stride), .stride = stride, .head_stride = 2 * part, .layer_offset = 2 * part * (size_t)s->n_kv, .part = (uint32_t)part,
                         .type = s->kv };
    struct gpu_step step = { .pos = to_device(pos, (size_t)len * 4), .table_of = to_device(table_of, (size_t)len * 4), .tables = to_device(table, (size_t)(n_blocks + 3) * 4), .n = len };
    struct gpu_prepare p = { .q = to_device(q, (size_t)len * qrow * 4), .k = to_device(k, (size_t)len * krow * 4), .v = to_device(v, (size_t)len * krow * 4), .n_heads = s->n_heads,
                             .n_kv_heads = s->n_kv, .head_dim = hd, .cosine = to_device(cosine, (size_t)len * (size_t)hd * 4), .sine = to_device(sine, (size_t)len * (size_t)hd * 4),
                             .rope_dim = s->rope, .rope_pairs = s->pairs, .norm = s->norm, .norm_after_rope = s->after, .qw = to_device(w, (size_t)hd * 4), .kw = to_device(w, (size_t)hd * 4),
                             .eps = 1e-5f, .offset = s->norm == 1 ? 0.25f : 0, .step = step, .kv = kv };
    OK(gpu_prepare(device, &p, &why));

    /* the same by the plain kernels */
    uint8_t *cache = aligned_alloc(64, (size_t)n_blocks * stride), *got_cache = malloc((size_t)n_blocks * stride);
    memset(cache, 0xff, (size_t)n_blocks * stride);
    for (int t = 0; t < len; t++)
        for (int h = 0; h < s->n_heads + s->n_kv; h++) {
            float *x = h < s->n_heads ? q + (size_t)t * qrow + (size_t)(h * hd) : k + (size_t)t * krow + (size_t)((h - s->n_heads) * hd);
            for (int pass = 0; pass < 2; pass++)
                if ((pass == 0) == (s->after != 0)) {
                    if (s->rope)
                        kernels_ref.rope(x, cosine + t * s->rope / 2, sine + t * s->rope / 2, 1, (size_t)hd, s->rope, s->pairs);
                } else if (s->norm == 1) {
                    kernels_ref.rms_norm(x, x, w, hd, 1e-5f, 0.25f);
                } else if (s->norm == 2) {
                    kernels_ref.layer_norm(x, x, w, NULL, hd, 1e-5f);
                }
            if (h < s->n_heads)
                continue;
            uint8_t *block = cache + (size_t)table[3 + t / KV_BLOCK] * stride + kv.layer_offset + (size_t)(h - s->n_heads) * 2 * part;
            kernels_ref.kv_store_key(s->kv, block, t % KV_BLOCK, x, hd);
            kernels_ref.kv_store_value(s->kv, block + part, t % KV_BLOCK, v + (size_t)t * krow + (size_t)((h - s->n_heads) * hd), hd);
        }
    from_device(got_cache, kv.base, (size_t)n_blocks * stride);
    if (s->norm == 0 && s->rope == 0)
        assert_memory_equal(got_cache, cache, (size_t)n_blocks * stride);       /* nothing is computed: the same bytes, and nothing else touched */
    memcpy(cache, got_cache, (size_t)n_blocks * stride);                        /* attention is compared on the same keys */
    float *got_q = malloc((size_t)len * qrow * 4);
    from_device(got_q, p.q, (size_t)len * qrow * 4);
    for (size_t i = 0; i < (size_t)len * qrow; i++)
        if (!(fabsf(got_q[i] - q[i]) <= 1e-5f * (1 + fabsf(q[i]))))
            fail_msg("q after norm and rotation: element %zu is %.9g, not %.9g", i, (double)got_q[i], (double)q[i]);

    float *want = malloc((size_t)len * qrow * 4), *got = malloc((size_t)len * qrow * 4);
    for (int h = 0; h < s->n_kv; h++) {
        const struct attn a = { .q = q + (size_t)s->pos * qrow + (size_t)(h * group * hd), .q_token_stride = qrow, .q_head_stride = (size_t)hd, .out = want + (size_t)s->pos * qrow + (size_t)(h * group * hd),
                                .out_token_stride = qrow, .out_head_stride = (size_t)hd, .n_tokens = s->n, .n_q_heads = group, .head_dim = hd, .pos = s->pos, .window = s->window, .base = cache,
                                .table = table + 3, .stride = stride, .k_offset = kv.layer_offset + (size_t)h * 2 * part, .v_offset = kv.layer_offset + (size_t)h * 2 * part + part,
                                .kv_type = s->kv, .scale = 0.3f, .softcap = s->softcap, .alibi = s->alibi ? slopes + h * group : NULL };
        void *scratch = aligned_alloc(64, (kernels_ref.attention_scratch(hd) + 63) / 64 * 64);
        kernels_ref.attention(&a, scratch);
        free(scratch);
    }
    int32_t tiles[64];
    int n_tiles = 0;
    for (int t = 0; t < s->n; t += GPU_ATTN_TILE, n_tiles++) {
        tiles[2 * n_tiles] = s->pos + t;
        tiles[2 * n_tiles + 1] = s->n - t < GPU_ATTN_TILE ? s->n - t : GPU_ATTN_TILE;
    }
    const int splits = (len + GPU_SPLIT - 1) / GPU_SPLIT + 1, act_stride = ((int)qrow + 31) / 32 * 32;
    uint16_t *act = malloc((size_t)len * (size_t)act_stride * 2);
    struct gpu_attention o = { .q = p.q, .out = on_device((size_t)len * qrow * 4), .act = on_device((size_t)len * (size_t)act_stride * 2), .act_stride = act_stride, .n_heads = s->n_heads,
                               .n_kv_heads = s->n_kv, .head_dim = hd, .window = s->window, .scale = 0.3f, .softcap = s->softcap, .alibi = s->alibi ? to_device(slopes, (size_t)s->n_heads * 4) : NULL,
                               .step = step, .kv = kv, .rows = to_device(rows, (size_t)len * 4), .n_rows = s->n,
                               .partial = on_device((size_t)s->n * (size_t)s->n_heads * (size_t)splits * (size_t)(hd + 2) * 4), .max_splits = splits, .tiles = to_device(tiles, sizeof tiles), .n_tiles = n_tiles };
    for (int way = 0; way < (hd % 16 ? 1 : 2); way++) {
        o.order = (s->n + way) % 2 ? GPU_ACT_LANES : GPU_ACT_TILES;
        OK(gpu_fill(device, GPU_COMPUTE, o.out, 0xff, (size_t)len * qrow * 4, &why));
        OK(gpu_fill(device, GPU_COMPUTE, o.act, 0xff, (size_t)len * (size_t)act_stride * 2, &why));
        OK(way ? gpu_attn_prefill(device, &o, &why) : gpu_attn_decode(device, &o, &why));
        from_device(got, o.out, (size_t)len * qrow * 4);
        from_device(act, o.act, (size_t)len * (size_t)act_stride * 2);
        /* f32: other orders of sums; tiles: q, p and keys rounded to f16 */
        const float limit = way ? 4e-3f : 2e-5f;
        for (int t = s->pos; t < len; t++)
            for (int i = 0; i < (int)qrow; i++) {
                const float a = got[(size_t)t * qrow + (size_t)i], b = want[(size_t)t * qrow + (size_t)i];
                const float h = 16 * f16_to_f32(act[(size_t)t * (size_t)act_stride + (size_t)act_at((int)i, o.order)]);
                if (!(fabsf(a - b) <= limit) || !(fabsf(h - a) <= 1e-3f * (1 + fabsf(a))))
                    fail_msg("%s, %d heads of %d on %d, kv %d, at %d + %d, window %d: token %d element %d is %.6g (f16 %.6g), not %.6g", way ? "prefill" : "decode", s->n_heads, hd, s->n_kv,
                             (int)s->kv, s->pos, s->n, s->window, t, i, (double)a, (double)h, (double)b);
            }
        for (int t = s->pos; t < len; t++)
            for (int i = (int)qrow; i < act_stride; i++)
                assert_int_equal(act[(size_t)t * (size_t)act_stride + (size_t)act_at(i, o.order)], 0);
    }
    gpu_free(device, kv.base), gpu_free(device, p.q), gpu_free(device, o.out), gpu_free(device, o.act), gpu_free(device, o.partial);
    free(q), free(k), free(v), free(w), free(slopes), free(cosine), free(sine), free(table), free(pos), free(table_of), free(rows), free(cache), free(got_cache), free(got_q), free(want), free(got);
    free(act);
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
        { 8, 2, 80, 60, 5, 20, 40, 1, 0, 0, 30, 0, KV_F16 },        /* window, part of a head rotated in pairs, cap */
        { 3, 1, 96, 15, 18, 0, 96, 0, 2, 1, 0, 0, KV_I8 },          /* layer norm after the rotation, 3 heads share */
        { 5, 1, 128, 0, 33, 0, 0, 0, 0, 0, 0, 1, KV_F16 },          /* slopes, 5 heads share */
        { 16, 1, 16, 30, 3, 0, 0, 0, 0, 0, 0, 0, KV_F32 },          /* two passes of 8 heads */
        { 2, 1, 256, 0, 20, 0, 256, 0, 0, 0, 0, 0, KV_F16 },
        { 2, 2, 16, 250, 9, 0, 16, 0, 0, 0, 0, 0, KV_F16 },         /* across the end of a split */
        { 2, 1, 32, 520, 2, 0, 0, 0, 0, 0, 0, 0, KV_F16 },
        { 2, 1, 32, 530, 2, 300, 0, 0, 0, 0, 0, 1, KV_I8 },         /* a window that begins in the first split */
        { 2, 1, 32, 600, 2, 40, 0, 0, 0, 0, 0, 0, KV_F32 },         /* a window that leaves out whole splits */
        { 2, 2, 32, 0, 17, 0, 0, 0, 0, 0, 0, 0, KV_BF16 },
        { 2, 2, 32, 0, 17, 0, 0, 0, 0, 0, 0, 0, KV_F8 },
        { 2, 1, 64, 5, 66, 0, 64, 0, 1, 0, 0, 0, KV_F8 },
        { 4, 1, 80, 30, 5, 20, 40, 1, 0, 0, 30, 0, KV_F8 },         /* window, cap */
        { 3, 1, 96, 0, 17, 0, 0, 0, 0, 0, 0, 1, KV_BF16 },          /* slopes */
        { 1, 1, 256, 0, 5, 3, 0, 0, 0, 0, 0, 0, KV_F8 },
        { 2, 2, 16, 250, 9, 0, 16, 0, 0, 0, 0, 0, KV_BF16 },        /* across the end of a split */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check(&cases[i]);
}

/* A block repeated through more splits than a warp has lanes is that block: every weight is repeated as often.  With a row that only pads the step beside it. */
static void many_splits(void **state)
{
    (void)state;
    enum { HD = 8, SPLITS = 70, LEN = SPLITS * GPU_SPLIT };
    const size_t part = kv_block_bytes(KV_F32, HD);
    static const int32_t table[LEN / KV_BLOCK], pos[3] = { KV_BLOCK - 1, LEN - 1, -1 }, table_of[3], rows[3] = { 0, 1, 2 };
    struct rng r = { 3 };
    float q[3][HD], out[3][HD], *block = malloc(2 * part);
    for (size_t i = 0; i < 2 * part / 4; i++)
        block[i] = uniform(&r, -2, 2);
    for (int i = 0; i < HD; i++)
        q[0][i] = q[1][i] = q[2][i] = uniform(&r, -2, 2);
    const struct gpu_kv kv = { .base = to_device(block, 2 * part), .stride = 2 * part, .head_stride = 2 * part, .part = (uint32_t)part, .type = KV_F32 };
    const struct gpu_attention o = { .q = to_device(q, sizeof q), .out = on_device(sizeof out), .n_heads = 1, .n_kv_heads = 1, .head_dim = HD, .scale = 1,
                                     .step = { .pos = to_device(pos, sizeof pos), .table_of = to_device(table_of, sizeof table_of), .tables = to_device(table, sizeof table), .n = 3 },
                                     .kv = kv, .rows = to_device(rows, sizeof rows), .n_rows = 3, .partial = on_device(3 * SPLITS * (HD + 2) * 4), .max_splits = SPLITS };
    OK(gpu_attn_decode(device, &o, &why));
    from_device(out, o.out, sizeof out);
    for (int i = 0; i < HD; i++) {
        if (!(fabsf(out[0][i] - out[1][i]) <= 2e-6f))
            fail_msg("%d splits: element %d is %.9g, not %.9g", SPLITS, i, (double)out[1][i], (double)out[0][i]);
        assert_true(out[2][i] == 0);
    }
    free(block);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(attention), cmocka_unit_test(many_splits) };
    return device_open() ? cmocka_run_group_tests(tests, NULL, NULL) : 0;
}
