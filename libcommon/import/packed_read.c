/* packed_read.c - values and codes of the matrices of quantized checkpoints. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/import/packed.h"
#include "libcommon/quant/ggml.h"
#include "libcommon/quant/half.h"

static uint32_t word(const struct source_tensor *t, int64_t i)
{
    uint32_t w;
    memcpy(&w, t->data + 4 * (size_t)i, 4);
    return w;
}

static float number(const struct source_tensor *t, int64_t i)
{
    float f;
    ggml_decode(t->type, t->data + (size_t)i * (size_t)ggml_type_info(t->type)->block_bytes, &f, 1);
    return f;
}

/* Place of each of eight neighbouring rows in a word of AWQ. */
static const int awq_place[8] = { 0, 4, 1, 5, 2, 6, 3, 7 };

static float group_scale_at(const struct packed *p, int64_t row, int64_t group)
{
    return number(&p->scale, row / p->row_group * p->row_step + group * p->group_step);
}

static float scale_at(const struct packed *p, int64_t row, int64_t group)
{
    return p->tensor_scale * group_scale_at(p, row, group);
}

static int zero_at(const struct packed *p, int64_t row, int64_t group)
{
    if (!p->zeros.data)
        return p->zero;
    int64_t per = 32 / p->bits, width = (p->rows + per - 1) / per;
    uint32_t mask = (1u << p->bits) - 1;
    switch (p->layout) {
    case PACKED_GPTQ:  return (int)(((word(&p->zeros, group * width + row / per) >> p->bits * (int)(row % per)) +
                                     (uint32_t)p->zero_add) & mask);
    case PACKED_AWQ:   return (int)(word(&p->zeros, group * width + row / per) >> 4 * awq_place[row % 8] & mask);
    case PACKED_WORDS: return (int)(word(&p->zeros, row / per * p->n_groups + group) >> p->bits *
                                    (int)(row % per) & mask);
    default:           return (int8_t)p->zeros.data[row / p->row_group * p->row_step + group * p->group_step];
    }
}

/* E2M1, times 2. */
static const int8_t e2m1_twice[16] = { 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12 };

static int fp4_code(const struct packed *p, int64_t row, int64_t k)
{
    return p->code.data[(size_t)(row * p->cols + k) / 2] >> k % 2 * 4 & 15;
}

/* The code of (row, k) as a number, before zero and scale. */
static float code_at(const struct packed *p, int64_t row, int64_t k)
{
    int64_t per = 32 / p->bits;
    uint32_t mask = (1u << p->bits) - 1;
    switch (p->layout) {
    case PACKED_GPTQ:    return (float)(word(&p->code, k / per * p->rows + row) >> p->bits * (int)(k % per) & mask);
    case PACKED_AWQ:     return (float)(word(&p->code, k * (p->rows / 8) + row / 8) >> 4 * awq_place[row % 8] & mask);
    case PACKED_WORDS:   return (float)(word(&p->code, row * ((p->cols + per - 1) / per) + k / per) >> p->bits *
                                        (int)(k % per) & mask);
    case PACKED_I8:      return (float)(int8_t)p->code.data[row * p->cols + k];
    case PACKED_F8: case PACKED_MXFP8: return number(&p->code, row * p->cols + k);
    case PACKED_MXFP4: case PACKED_NVFP4: return (float)e2m1_twice[fp4_code(p, row, k)] * 0.5f;
    case PACKED_TERNARY: {
        int64_t quarter = p->rows / 4;
        int c = p->code.data[row % quarter * p->cols + k] >> 2 * (int)(row / quarter) & 3;
        return c == 3 ? NAN : (float)(c - 1);
    }
    }
    return NAN;
}

static int64_t group_at(const struct packed *p, int64_t k)
{
    return p->order.data ? (int64_t)word(&p->order, k) : k / p->col_group;
}

static void values(const struct packed *p, int64_t row, int64_t k, int64_t n, float *out, int64_t step)
{
    int64_t group = -1;
    float scale = 0, zero = 0;
    for (int64_t end = k + n; k < end; k++, out += step) {
        int64_t g = group_at(p, k);
        if (g != group) {
            group = g;
            scale = scale_at(p, row, g);
            zero = (float)zero_at(p, row, g);
        }
        float x = code_at(p, row, k) - zero;
        *out = p->divide ? x / scale : x * scale;
    }
}

void packed_read(const struct packed *p, int64_t row, int64_t n, float *out)
{
    if (!p->expert_rows) {
        for (int64_t i = 0; i < n; i++)
            values(p, row + i, 0, p->cols, out + i * p->cols, 1);
        return;
    }
    /* a row is an input, its columns the outputs of the expert */
    for (int64_t end = row + n; row < end;) {
        int64_t expert = row / p->cols, k = row % p->cols, left = p->cols - k < end - row ? p->cols - k : end - row;
        for (int64_t j = 0; j < p->expert_rows; j++)
            values(p, expert * p->expert_rows + j, k, left, out + j, p->expert_rows);
        row += left;
        out += left * p->expert_rows;
    }
}

size_t packed_bytes(const struct packed *p)
{
    return p->code.size + p->scale.size + p->zeros.size + p->order.size;
}

/* ---- straight to our codes ---- */

static int scales_fit_f16(const struct packed *p)
{
    int64_t n = (int64_t)(p->scale.size / (size_t)ggml_type_info(p->scale.type)->block_bytes);
    for (int64_t i = 0; i < n; i++) {
        float s = number(&p->scale, i);
        if (!isfinite(s) || f16_to_f32(f32_to_f16(s)) != s)
            return 0;
    }
    return 1;
}

/* Returns 1 if all scales are 0 or so far from f32's limits that scale * code neither overflows nor
 * loses bits. */
static int scales_fit_fp8(const struct packed *p)
{
    int64_t n = (int64_t)(p->scale.size / (size_t)ggml_type_info(p->scale.type)->block_bytes);
    for (int64_t i = 0; i < n; i++) {
        const float s = fabsf(number(&p->scale, i));
        if (!(s == 0 || (s > 0x1p-100f && s < 0x1p100f)))
            return 0;
    }
    return 1;
}

/* Returns 1 if all scales are numbers, and so small that scale * code does not overflow.  The
 * smallest, 2^-127, which groups of zeros have, is exact with every code. */
static int scales_fit_mxfp8(const struct packed *p)
{
    for (size_t i = 0; i < p->scale.size; i++)
        if (p->scale.data[i] > 127 + 100)
            return 0;
    return 1;
}

/* 1 if tensor_scale * scale * code is always a normal f32 number. */
static int scales_fit_nvfp4(const struct packed *p)
{
    return p->tensor_scale > 0x1p-100f && p->tensor_scale < 0x1p100f;
}

/* Returns the largest of our group sizes (128, 64, 32) that divides the source's group size; 0 if
 * none does.  If the source has one group per row, every size will do. */
static int our_group(const struct packed *p)
{
    for (int g = 128; g >= 32; g /= 2)
        if (p->col_group >= p->cols || p->col_group % g == 0)
            return g;
    return 0;
}

/* Is every zero point the middle of the codes? */
static int zero_in_the_middle(const struct packed *p)
{
    int middle = p->layout == PACKED_I8 ? 0 : 1 << (p->bits - 1);
    if (!p->zeros.data)
        return p->zero == middle;
    for (int64_t g = 0; g < p->n_groups; g++)
        for (int64_t row = 0; row < p->rows; row++)
            if (zero_at(p, row, g) != middle)
                return 0;
    return 1;
}

int packed_exact(const struct packed *p, int *group_size)
{
    if (p->layout == PACKED_NVFP4) {
        *group_size = 16;
        return scales_fit_nvfp4(p) ? QT_NVFP4 : -1;
    }
    int group = our_group(p);
    if (p->order.data || p->divide || !group)
        return -1;
    *group_size = group;
    if (p->layout == PACKED_MXFP8) {
        *group_size = 32;
        return p->code.type == SRC_F8_E4M3 && scales_fit_mxfp8(p) ? QT_MXFP8 : -1;
    }
    if (p->layout == PACKED_F8)
        return p->code.type == SRC_F8_E4M3 && group == 128 && scales_fit_fp8(p) ? QT_FP8 : -1;
    if (p->layout == PACKED_MXFP4) {
        *group_size = 32;
        return p->col_group == 32 ? QT_MXFP4 : -1;
    }
    if (p->layout == PACKED_TERNARY)
        return scales_fit_f16(p) ? QT_T2 : -1;
    int middle = zero_in_the_middle(p);
    if (p->bits > 4 && !middle)
        return -1;                                          /* code - zero point would take 9 bits */
    if (p->bits > 4 && p->col_group >= p->cols) {
        *group_size = 32;
        return QT_I8R;
    }
    if (!scales_fit_f16(p))
        return -1;
    return p->bits > 4 ? QT_I8 : middle ? QT_I4 : QT_I4Z;
}

void packed_row(const struct packed *p, const struct mat *m, int64_t row, struct qrow *q)
{
    int64_t group = -1;
    int zero = 0;
    const int whole = m->type == QT_I8R;
    q->row_scale = whole ? scale_at(p, row, 0) : p->tensor_scale;
    memset(q->code, qtype_info(m->type)->code_zero, (size_t)m->cols_padded);
    for (int g = 0; g < m->n_groups; g++) {
        int64_t k = (int64_t)g * m->group_size;
        q->scale[g] = whole ? 1 : k < p->cols ? group_scale_at(p, row, k / p->col_group) : 0;
        if (q->extra)
            q->extra[g] = k < p->cols ? (float)zero_at(p, row, k / p->col_group) : 0;
    }
    for (int64_t k = 0; k < p->cols; k++) {
        if (k / p->col_group != group) {
            group = k / p->col_group;
            zero = zero_at(p, row, group);
        }
        if (p->layout == PACKED_F8 || p->layout == PACKED_MXFP8)
            q->code[k] = p->code.data[row * p->cols + k];
        else if (p->layout == PACKED_MXFP4 || p->layout == PACKED_NVFP4)
            q->code[k] = (uint8_t)fp4_code(p, row, k);
        else if (m->type == QT_I4Z)
            q->code[k] = (uint8_t)(int)code_at(p, row, k);
        else
            q->code[k] = (uint8_t)((int)code_at(p, row, k) - zero +
                                   (m->type == QT_I4 ? 8 : m->type == QT_T2 || m->type == QT_T3 ? 1 : 0));
    }
}
