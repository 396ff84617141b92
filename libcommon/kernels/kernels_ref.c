/* kernels_ref.c - the operations of kernels.h in plain C, element by element: the reference for the
 * tests, and the kernels of machines for which there is no other set. */
#include <math.h>
#include <string.h>

#include "libcommon/kernels/approx.h"
#include "libcommon/kernels/kernels.h"
#include "libcommon/quant/half.h"
#include "libcommon/quant/kvscale.h"

QTYPE_SCALES_HERE(7);
QTYPE_EXTRAS_HERE(3);

static int supported(void) { return 1; }

/* ---- activations: for each token [act groups] f32 scales, then [cols_padded] int8 codes ---- */

static size_t token_bytes(int cols_padded, int act_group)
{
    return ((size_t)(cols_padded / act_group) * sizeof(float) + (size_t)cols_padded + 63) / 64 * 64;
}

static size_t act_bytes(int n_tokens, int cols_padded, int act_group)
{
    return (size_t)n_tokens * token_bytes(cols_padded, act_group);
}

static int act_parts(int n_tokens) { return n_tokens; }

/* The bits of the largest |x|: they are ordered like |x|, and NaN is above infinity. */
static uint32_t most_bits(const float *x, int n)
{
    uint32_t max = 0;
    for (int i = 0; i < n; i++) {
        uint32_t u = f32_bits(x[i]) & 0x7fffffff;
        max = u > max ? u : max;
    }
    return max;
}

/* The scale that maps n values to int8, and its inverse factor (0: all codes are 0). */
static float int8_scale(const float *x, int n, float *factor)
{
    const uint32_t max = most_bits(x, n);
    float amax = f32_from_bits(max);
    *factor = 0;
    if (max >= 0x7f800000)
        return NAN;
    if (amax < 0x1p-100f)
        return 0;
    *factor = 127.0f / amax;
    return amax / 127.0f;
}

static int8_t int8_round(float x, float factor) { return factor > 0 ? (int8_t)rintf(x * factor) : 0; }

static void act_pack(void *act, const float *x, size_t ldx, int n_tokens, int cols, int cols_padded, int act_group,
                     int part)
{
    (void)n_tokens;
    float *scale = (float *)((uint8_t *)act + (size_t)part * token_bytes(cols_padded, act_group));
    int8_t *a8 = (int8_t *)(scale + cols_padded / act_group);
    x += (size_t)part * ldx;
    for (int k = 0; k < cols_padded; k += act_group) {
        float group[128] = { 0 };
        int n = cols - k < act_group ? cols - k : act_group;
        if (n > 0)
            memcpy(group, x + k, (size_t)n * sizeof *group);
        float factor;
        scale[k / act_group] = int8_scale(group, act_group, &factor);
        for (int i = 0; i < act_group; i++)
            a8[k + i] = int8_round(group[i], factor);
    }
}

/* ---- matmul ---- */

/* Bytes of the scratch of a matmul: one row of weights, as codes and scales or as f32 values. */
static size_t scratch_bytes(int n_tokens, int cols_padded)
{
    (void)n_tokens;
    return (size_t)cols_padded * sizeof(float) + (size_t)(cols_padded / 32) * 2 * sizeof(float) + 64;
}

static float dot_row(const struct mat *w, const struct qtype_info *type, const struct qrow *q, const int8_t *code,
                     const float *a_scale, const int8_t *a8)
{
    const int step = w->group_size < w->act_group ? w->group_size : w->act_group,
              int_scale = type->scale == SCALE_S8 || type->scale == SCALE_U8;
    float acc = 0;
    for (int k = 0; k < w->cols_padded; k += w->act_group) {
        float inner = 0;
        int32_t whole = 0;
        for (int s = k; s < k + w->act_group; s += step) {
            int32_t isum = 0, asum = 0;
            for (int i = s; i < s + step; i++) {
                isum += code[i] * a8[i];
                asum += a8[i];
            }
            float scale = q->scale[s / w->group_size] * (type->codes == CODES_E2M1 ? 0.5f : 1);
            whole += int_scale ? isum * (int32_t)scale : 0;
            inner = fmaf((float)isum, scale, inner);
            if (type->extra != EXTRA_NONE) {
                float extra = q->extra[s / w->group_size];
                inner = fmaf(type->extra == EXTRA_MIN_F16 ? extra : -scale * extra, (float)asum, inner);
            }
        }
        acc = fmaf(int_scale ? (float)whole : inner, a_scale[k / w->act_group], acc);
    }
    return type->row_scale ? acc * q->row_scale : acc;
}

static void matmul(float *out, size_t ldo, const struct mat *w, int tile0, int tile1, const void *act, int n_tokens,
                   void *scratch)
{
    const struct qtype_info *type = qtype_info(w->type);
    struct qrow q = { .scale = scratch };
    q.extra = q.scale + w->n_groups;
    q.code = (uint8_t *)(q.extra + w->n_groups);
    for (int r = tile0 * TILE_ROWS; r < tile1 * TILE_ROWS && r < w->rows; r++) {
        tile_get(w, w->data + (size_t)(r / TILE_ROWS) * w->tile_bytes, r % TILE_ROWS, &q);
        for (int i = 0; type->value8 && i < w->cols_padded; i++)
            q.code[i] = (uint8_t)type->value8[q.code[i]];
        for (int t = 0; t < n_tokens; t++) {
            const float *a_scale = (const float *)((const uint8_t *)act + (size_t)t *
                                                   token_bytes(w->cols_padded, w->act_group));
            out[(size_t)t * ldo + (size_t)r] =
                dot_row(w, type, &q, (const int8_t *)q.code, a_scale,
                        (const int8_t *)(a_scale + w->cols_padded / w->act_group));
        }
    }
}

static void matmul_f32(float *out, size_t ldo, const struct mat *w, int tile0, int tile1, const float *x, size_t ldx,
                       int n_tokens, void *scratch)
{
    float *row = scratch;
    for (int r = tile0 * TILE_ROWS; r < tile1 * TILE_ROWS && r < w->rows; r++) {
        mat_decode_row(w, r, row);
        for (int t = 0; t < n_tokens; t++) {
            float sum = 0;
            for (int k = 0; k < w->cols; k++)
                sum = fmaf(row[k], x[(size_t)t * ldx + (size_t)k], sum);
            out[(size_t)t * ldo + (size_t)r] = sum;
        }
    }
}

/* ---- rows ---- */

static float sum16(float *s)
{
    for (int n = 8; n; n /= 2)
        for (int i = 0; i < n; i++)
            s[i] += s[i + n];
    return s[0];
}

static void rms_norm(float *out, const float *x, const float *w, int n, float eps, float w_offset)
{
    float s[16] = { 0 };
    for (int i = 0; i < n; i++)
        s[i % 16] = fmaf(x[i], x[i], s[i % 16]);
    float inverse = 1.0f / sqrtf(sum16(s) / (float)n + eps);
    for (int i = 0; i < n; i++)
        out[i] = w ? x[i] * inverse * (w[i] + w_offset) : x[i] * inverse;
}

static void layer_norm(float *out, const float *x, const float *w, const float *b, int n, float eps)
{
    float s[16] = { 0 };
    for (int i = 0; i < n; i++)
        s[i % 16] += x[i];
    float mean = sum16(s) / (float)n;
    memset(s, 0, sizeof s);
    for (int i = 0; i < n; i++)
        s[i % 16] = fmaf(x[i] - mean, x[i] - mean, s[i % 16]);
    float inverse = 1.0f / sqrtf(sum16(s) / (float)n + eps);
    for (int i = 0; i < n; i++)
        out[i] = fmaf((x[i] - mean) * inverse, w ? w[i] : 1.0f, b ? b[i] : 0.0f);
}

static void add(float *out, const float *a, const float *b, float scale_b, int n)
{
    for (int i = 0; i < n; i++)
        out[i] = fmaf(scale_b, b[i], a[i]);
}

static float activate(float x, int act)
{
    switch (act) {
    case ACT_SILU:       return x / (1.0f + approx_exp(-x));
    case ACT_GELU:       return 0.5f * x * (1.0f + approx_erf(x * GELU_SQRT_HALF));
    case ACT_GELU_TANH:  return x / (1.0f + approx_exp(x * GELU_TANH_1 * fmaf(x * x, GELU_TANH_3, 1.0f)));
    case ACT_RELU:       return 0 > x ? 0 : x;
    case ACT_RELU2:      return 0 > x ? 0 : x * x;
    default:             return x / (1.0f + approx_exp(x * GELU_QUICK));
    }
}

static void act_mul(float *out, const float *gate, const float *up, int n, int act)
{
    for (int i = 0; i < n; i++)
        out[i] = up ? activate(gate[i], act) * up[i] : activate(gate[i], act);
}

static void rope(float *x, const float *cos, const float *sin, int n_heads, size_t head_stride, int dim, int pairs)
{
    for (int h = 0; h < n_heads; h++, x += head_stride)
        for (int i = 0; i < dim / 2; i++) {
            float *a = pairs ? x + 2 * i : x + i, *b = pairs ? a + 1 : a + dim / 2, a0 = *a;
            *a = fmaf(a0, cos[i], -(*b * sin[i]));
            *b = fmaf(*b, cos[i], a0 * sin[i]);
        }
}

/* ---- attention ---- */

/* Store element d of a key or value at at[d * step]. */
static void kv_store(enum kv_type type, uint8_t *block, int slot, size_t at, size_t step, const float *x, int head_dim)
{
    if (type == KV_I8) {
        float factor, scale = int8_scale(x, head_dim, &factor);
        for (int d = 0; d < head_dim; d++)
            block[at + (size_t)d * step] = (uint8_t)int8_round(x[d], factor);
        memcpy(block + (size_t)KV_BLOCK * (size_t)head_dim + (size_t)slot * sizeof scale, &scale, sizeof scale);
        return;
    }
    if (type == KV_I4) {
        kv_i4_store(block, slot, step > 1, x, head_dim);
        return;
    }
    if (type == KV_F8) {
        float factor, scale = kv_f8_scale(x, head_dim, &factor);
        for (int d = 0; d < head_dim; d++)
            block[at + (size_t)d * step] = factor > 0 ? f32_to_f8e4m3(x[d] * factor) : 0;
        memcpy(block + (size_t)KV_BLOCK * (size_t)head_dim + (size_t)slot * sizeof scale, &scale, sizeof scale);
        return;
    }
    for (int d = 0; d < head_dim; d++) {
        size_t i = at + (size_t)d * step;
        if (type == KV_F32)
            ((float *)block)[i] = x[d];
        else
            ((uint16_t *)block)[i] = type == KV_F16 ? f32_to_f16(x[d]) : f32_to_bf16(x[d]);
    }
}

static void kv_store_key(enum kv_type type, uint8_t *block, int slot, const float *x, int head_dim)
{
    kv_store(type, block, slot, (size_t)slot, KV_BLOCK, x, head_dim);
}

static void kv_store_value(enum kv_type type, uint8_t *block, int slot, const float *x, int head_dim)
{
    kv_store(type, block, slot, (size_t)slot * (size_t)head_dim, 1, x, head_dim);
}

static float kv_load(enum kv_type type, const uint8_t *block, size_t i)
{
    static const float ternary[4] = { 0, 1, -1, 0 };
    switch (type) {
    case KV_F32: return ((const float *)block)[i];
    case KV_F16: return f16_to_f32(((const f16 *)block)[i]);
    case KV_BF16: return bf16_to_f32(((const bf16 *)block)[i]);
    case KV_F8: return f8e4m3_to_f32(block[i]);
    case KV_I4: return (float)((((block[i / 16 * 8 + i % 8] >> (i % 16 < 8 ? 0 : 4)) & 15) ^ 8) - 8);
    case KV_T2: return ternary[block[i / 4] >> (i % 4 * 2) & 3];
    default: return (float)(int8_t)block[i];
    }
}

static float kv_scale(const uint8_t *scales, int slot)
{
    float scale;
    memcpy(&scale, scales + (size_t)slot * sizeof scale, sizeof scale);
    return scale;
}

struct softmax { float m, l[16]; };

/* The block of a position, and the types of its keys and values. */
static const uint8_t *find_block(const struct attn *a, int position, struct kv_types *types)
{
    const int in_tail = attn_in_tail(a, position);
    *types = in_tail ? kv_both(KV_F16) : a->kv;
    return in_tail ? a->tail.base + (size_t)a->tail.table[position / KV_BLOCK] * a->tail.stride
                   : a->base + (size_t)a->table[position / KV_BLOCK] * a->stride;
}

static int first_seen(const struct attn *a, int at)
{
    return a->chunk ? at / a->chunk * a->chunk : a->window && at - a->window + 1 > 0 ? at - a->window + 1 : 0;
}

static int last_seen(const struct attn *a, int at)
{
    return !a->end ? at : a->window && at + a->window < a->end ? at + a->window - 1 : a->end - 1;
}

/* Sum up values that are the first elements of the keys (kernels.h: latent). */
static void attend_latent(const struct attn *a, const float *p, int begin, int end, float *o)
{
    const int base = begin / ATTN_PART * ATTN_PART;
    for (int d = 0; d < a->latent; d++) {
        float sum[16] = { 0 };
        for (int j = begin; j < end; j++) {
            const uint8_t *k = a->base + (size_t)a->table[j / KV_BLOCK] * a->stride + a->k_offset;
            const float pj = kv_has_scales(a->kv.key) ? p[j - base] * kv_scale(k + attn_key_scales(a), j % KV_BLOCK)
                                                      : p[j - base];
            sum[j % KV_BLOCK] = fmaf(pj, kv_load(a->kv.key, k, (size_t)(d * KV_BLOCK + j % KV_BLOCK)),
                                     sum[j % KV_BLOCK]);
        }
        o[d] = sum16(sum);
    }
}

/* Sum up the i4 or i8 values of the positions [begin, end) of a chunk with their weights p. */
static void attend_rounded(const struct attn *a, const float *p, int begin, int end, float *o)
{
    float w[64], factor;
    const size_t row = (size_t)kv_padded(a->kv.value, a->head_dim);
    const uint8_t *v[64];
    for (int j = begin; j < end; j++) {
        v[j - begin] = a->base + (size_t)a->table[j / KV_BLOCK] * a->stride + a->v_offset;
        w[j - begin] = p[j - begin] * kv_scale(v[j - begin] + attn_value_scales(a), j % KV_BLOCK);
    }
    const float scale = kv_code_scale(most_bits(w, end - begin), kv_weight_most(a->kv.value), &factor);
    for (int d = 0; d < a->head_dim; d++) {
        float sum = 0;
        for (int j = begin; j < end; j++)
            sum += (factor > 0 ? rintf(w[j - begin] * factor) : 0) *
                   kv_load(a->kv.value, v[j - begin], (size_t)(j % KV_BLOCK) * row + (size_t)d);
        o[d] = fmaf(sum, scale, o[d]);
    }
}

/* A query, rounded for i4 or i8 keys: its codes, and their scale. */
struct rounded { const float *q; float scale; };

/* The partial result of a query at position `at`, for the positions [begin, end) of one part. */
static void attend_part(const struct attn *a, const float *q, struct rounded rounded, int at, float slope,
                        const float *bias, int begin, int end, float *o, struct softmax *x)
{
    const size_t hd = (size_t)a->head_dim;
    const int plain = a->softcap <= 0 && !a->alibi && !bias, base = begin / ATTN_PART * ATTN_PART;
    const float f = plain ? a->scale * LOG2E : LOG2E;
    float p[ATTN_PART] = { 0 }, most = -INFINITY;
    struct kv_types types;
    for (int j = begin; j < end; j++) {
        const uint8_t *k = find_block(a, j, &types) + (attn_in_tail(a, j) ? a->tail.k_offset : a->k_offset);
        const float *qj = attn_rounds(a, types.key) ? rounded.q : q;
        float s = 0;
        for (size_t d = 0; d < hd; d++)
            s = fmaf(qj[d], kv_load(types.key, k, d * KV_BLOCK + (size_t)(j % KV_BLOCK)), s);
        if (kv_has_scales(types.key))
            s *= kv_scale(k + attn_key_scales(a), j % KV_BLOCK);
        if (attn_rounds(a, types.key))
            s *= rounded.scale;
        if (!plain)
            s *= a->scale;
        if (a->softcap > 0)
            s = a->softcap * approx_tanh(s / a->softcap);
        if (a->alibi)
            s = fmaf(slope, (float)(j - at), s);
        if (bias)
            s += bias[j - at];
        p[j - base] = s;
        most = s > most ? s : most;
    }
    *x = (struct softmax){ .m = f * most };
    for (int j = begin; j < end; j++)
        p[j - base] = approx_exp2(fmaf(f, p[j - base], -x->m));
    for (int c = 0; c < ATTN_PART; c += 64)
        for (int i = 0; i < 16; i++)
            x->l[i] += (p[c + i] + p[c + i + 16]) + (p[c + i + 32] + p[c + i + 48]);
    if (a->latent) {
        attend_latent(a, p, begin, end, o);
        return;
    }
    memset(o, 0, hd * sizeof *o);
    for (int j = begin; j < end; j++) {
        const uint8_t *v = find_block(a, j, &types) + (attn_in_tail(a, j) ? a->tail.v_offset : a->v_offset);
        if (attn_rounds(a, types.value)) {
            const int next = (j / 64 + 1) * 64 < end ? (j / 64 + 1) * 64 : end;
            attend_rounded(a, p + j - base, j, next, o);
            j = next - 1;
            continue;
        }
        const size_t row = (size_t)kv_padded(types.value, a->head_dim);
        const float w = types.value == KV_T2 && p[j - base] < ATTN_LEAST ? 0 : p[j - base];
        const float pj = kv_has_scales(types.value) ? w * kv_scale(v + attn_value_scales(a), j % KV_BLOCK) : w;
        for (size_t d = 0; d < hd; d++)
            o[d] = fmaf(pj, kv_load(types.value, v, (size_t)(j % KV_BLOCK) * row + d), o[d]);
    }
}

static void merge_part(float *o, struct softmax *x, const float *o1, const struct softmax *x1, int head_dim)
{
    const float m = x1->m > x->m ? x1->m : x->m, was = approx_exp2(x->m - m), now = approx_exp2(x1->m - m);
    for (int i = 0; i < 16; i++)
        x->l[i] = fmaf(x1->l[i], now, x->l[i] * was);
    for (int d = 0; d < head_dim; d++)
        o[d] = fmaf(o1[d], now, o[d] * was);
    x->m = m;
}

static void attend_finish(const struct attn *a, int head, float *o, struct softmax *x)
{
    const int n = attn_width(a);
    float sum = sum16(x->l);
    if (a->sinks) {
        const float s = a->sinks[head] * LOG2E, m = s > x->m ? s : x->m, by = approx_exp2(x->m - m);
        sum = fmaf(sum, by, approx_exp2(s - m));
        for (int d = 0; d < n; d++)
            o[d] *= by;
    }
    for (int d = 0; d < n; d++)
        o[d] /= sum;
}

/* Attention by parts; the scratch holds the sums o of one part, and a rounded query. */
static void attention(const struct attn *a, void *scratch)
{
    for (int row = 0; row < a->n_tokens * a->n_q_heads; row++) {
        const int i = row / a->n_q_heads, h = row % a->n_q_heads, at = a->pos + i, first = first_seen(a, at),
                  last = last_seen(a, at);
        const float *q = a->q + (size_t)i * a->q_token_stride + (size_t)h * a->q_head_stride,
                    slope = a->alibi ? a->alibi[h] : 0,
                    *bias = a->bias ? a->bias + (size_t)h * a->bias_stride : NULL;
        float *o = a->out + (size_t)i * a->out_token_stride + (size_t)h * a->out_head_stride,
              *codes = (float *)scratch + a->head_dim, factor;
        const struct rounded rounded = { codes, kv_code_scale(most_bits(q, a->head_dim),
                                                              kv_query_most(a->kv.key, a->head_dim), &factor) };
        for (int d = 0; d < a->head_dim; d++)
            codes[d] = factor > 0 ? rintf(q[d] * factor) : 0;
        struct softmax x, x1;
        for (int part = first / ATTN_PART; part <= last / ATTN_PART; part++) {
            const int begin = part * ATTN_PART > first ? part * ATTN_PART : first,
                      end = last < (part + 1) * ATTN_PART ? last + 1 : (part + 1) * ATTN_PART;
            if (a->partial) {
                if (part == a->part) {
                    float *to = a->partial + (size_t)row * attn_partial(a->head_dim);
                    attend_part(a, q, rounded, at, slope, bias, begin, end, to, &x);
                    memcpy(to + attn_partial(a->head_dim) - 32, x.l, sizeof x.l);
                    to[attn_partial(a->head_dim) - 16] = x.m;
                }
            } else if (part == first / ATTN_PART) {
                attend_part(a, q, rounded, at, slope, bias, begin, end, o, &x);
            } else {
                attend_part(a, q, rounded, at, slope, bias, begin, end, scratch, &x1);
                merge_part(o, &x, scratch, &x1, attn_width(a));
            }
        }
        if (!a->partial)
            attend_finish(a, h, o, &x);
    }
}

static void attention_merge(const struct attn *a)
{
    const size_t size = attn_partial(a->head_dim), part_size = (size_t)(a->n_tokens * a->n_q_heads) * size;
    for (int row = 0; row < a->n_tokens * a->n_q_heads; row++) {
        const int i = row / a->n_q_heads, h = row % a->n_q_heads, at = a->pos + i;
        float *o = a->out + (size_t)i * a->out_token_stride + (size_t)h * a->out_head_stride;
        struct softmax x[2];
        for (int n = 0, part = first_seen(a, at) / ATTN_PART; part <= last_seen(a, at) / ATTN_PART; part++, n = 1) {
            const float *from = a->partial + (size_t)(part - a->part) * part_size + (size_t)row * size;
            memcpy(x[n].l, from + size - 32, sizeof x[n].l);
            x[n].m = from[size - 16];
            if (n)
                merge_part(o, &x[0], from, &x[1], attn_width(a));
            else
                memcpy(o, from, (size_t)attn_width(a) * sizeof *o);
        }
        attend_finish(a, h, o, &x[0]);
    }
}

static size_t attention_scratch(int head_dim) { return (2 * (size_t)head_dim * sizeof(float) + 63) / 64 * 64; }

/* ---- recurrences ---- */

static void scan_mamba(float *state, const float *b, const float *c, const float *x, float *out, int n, int dim,
                       float decay, float dt, float d)
{
    for (int e = 0; e < dim; e++) {
        const float in = dt * x[e];
        float y = 0;
        for (int i = 0; i < n; i++) {
            float *s = state + (size_t)i * (size_t)dim + e;
            *s = fmaf(b[i], in, *s * decay);
            y = fmaf(c[i], *s, y);
        }
        out[e] = fmaf(d, x[e], y);
    }
}

static float largest(const float *x, int n)
{
    float best = -INFINITY;
    for (int i = 0; i < n; i++) {
        if (!(x[i] < INFINITY))
            return NAN;
        best = x[i] > best ? x[i] : best;
    }
    return best;
}

static void dots_i8(int32_t *out, const int8_t *rows, size_t stride, int n_rows, const int8_t *q)
{
    for (int r = 0; r < n_rows; r++) {
        out[r] = 0;
        for (size_t i = 0; i < stride; i++)
            out[r] += rows[(size_t)r * stride + i] * q[i];
    }
}

/* The decay of row i is decay[i * each]; each is 0 (one decay for all rows) or 1. */
static void delta(float *state, const float *q, const float *k, const float *v, float *out, int n, int dim,
                  const float *decay, int each, float rate)
{
    for (int e = 0; e < dim; e++) {
        float *s = state + e, y = 0;
        for (int i = 0; i < n; i++) {
            s[(size_t)i * (size_t)dim] *= decay[i * each];
            y = fmaf(k[i], s[(size_t)i * (size_t)dim], y);
        }
        const float w = (v[e] - y) * rate;
        y = 0;
        for (int i = 0; i < n; i++) {
            s[(size_t)i * (size_t)dim] = fmaf(k[i], w, s[(size_t)i * (size_t)dim]);
            y = fmaf(q[i], s[(size_t)i * (size_t)dim], y);
        }
        out[e] = y;
    }
}

static void scan_delta(float *state, const float *q, const float *k, const float *v, float *out, int n, int dim,
                       float decay, float rate)
{
    delta(state, q, k, v, out, n, dim, &decay, 0, rate);
}

static void scan_delta_rows(float *state, const float *q, const float *k, const float *v, float *out, int n, int dim,
                            const float *decay, float rate)
{
    delta(state, q, k, v, out, n, dim, decay, 1, rate);
}

static void scan_mamba1(float *state, const float *b, const float *c, const float *x, float *out, int n, int dim,
                        const float *a_log, size_t lda, const float *dt, const float *d)
{
    for (int e = 0; e < dim; e++) {
        const float in = dt[e] * x[e];
        float y = 0;
        for (int i = 0; i < n; i++) {
            float *s = state + (size_t)i * (size_t)dim + e;
            const float rate = approx_exp(a_log[(size_t)i * lda + (size_t)e]);
            *s = fmaf(b[i], in, *s * approx_exp(-(dt[e] * rate)));
            y = fmaf(c[i], *s, y);
        }
        out[e] = fmaf(d[e], x[e], y);
    }
}

static void index_block(float *out, const float *q, int n_heads, int dim, const float *weight, const float *k)
{
    for (int t = 0; t < 16; t++) {
        float sum = 0;
        for (int h = 0; h < n_heads; h++) {
            float a = 0;
            for (int d = 0; d < dim; d++)
                a = fmaf(q[(size_t)h * (size_t)dim + (size_t)d], k[(size_t)d * 16 + (size_t)t], a);
            sum = fmaf(weight[h], a > 0 ? a : 0, sum);
        }
        out[t] = sum;
    }
}

const struct kernels kernels_ref = {
    "ref", supported, act_bytes, act_parts, act_pack, matmul, matmul_f32, scratch_bytes,
    rms_norm, layer_norm, add, act_mul, largest, rope, dots_i8, scan_mamba, scan_delta, scan_delta_rows, scan_mamba1,
    index_block,
    kv_store_key, kv_store_value, attention,
    attention_merge, attention_scratch,
};
