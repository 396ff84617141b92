/* tile.c - matrices in kernel order. */
#include "libcommon/quant/tile.h"

#include <assert.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "libcommon/quant/half.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "a .zse file is mapped as it lies: little endian");
QTYPE_SCALES_HERE(7);
QTYPE_EXTRAS_HERE(3);
QTYPE_CODES_HERE(9);

/* STEP: the number of k that kernels process at a time */
enum { LINE = 128, MAX_GROUP = 256, T3_LINES = 13, STEP = 32 };

static size_t scale_size(const struct qtype_info *t) { return (size_t)scale_bytes(t->scale); }
static size_t extra_size(const struct qtype_info *t) { return (size_t)extra_bytes(t->extra); }

/* Number of groups in a full unit. */
static int unit_groups(const struct qtype_info *t, int group_size)
{
    static const int groups[] = {
#define QTYPE_SCALE(KIND, bytes, unit) [SCALE_##KIND] = unit,
#include "libcommon/quant/qtype.def"
    };
    return group_size == MAX_GROUP ? 1 : groups[t->scale];
}

/* Bytes of the scale or extra area of a unit of n groups. */
static size_t area(int n, size_t size)
{
    return ((size_t)n * TILE_ROWS * size + 63) / 64 * 64;
}

/* Fail with a message such as "i8: group size is 16, not 32, 64 or 128". */
static int group_size_fail(const struct qtype_info *t, int group_size, struct err *e)
{
    char sizes[64];
    int at = 0;
    for (unsigned left = t->group_sizes; left; left &= left - 1) {
        const unsigned size = left & -left;
        at += snprintf(sizes + at, sizeof sizes - (size_t)at, "%s%u", !at ? "" : size == left ? " or " : ", ", size);
    }
    return err_set(e, ERR_SHAPE, "%s: group size is %d, not %s", t->name, group_size, sizes);
}

int mat_init(struct mat *m, enum qtype type, int group_size, int act_group, int64_t rows, int64_t cols, struct err *e)
{
    const struct qtype_info *t = qtype_info(type);
    if (!t)
        return err_set(e, ERR_UNSUPPORTED, "number format %d is unknown", (int)type);
    if (!t->has_kernels)
        return err_set(e, ERR_UNSUPPORTED, "number format %s is reserved, this version cannot compute on it", t->name);
    if (group_size < 1 || (group_size & (group_size - 1)) || !(t->group_sizes & (unsigned)group_size))
        return group_size_fail(t, group_size, e);
    if (qtype_takes_floats(t) ? act_group != 0 : act_group != 128 &&
        (t->acts == ACTS_I8_128 || (act_group != 32 && act_group != 64)))
        return err_set(e, ERR_SHAPE, "%s: activation group is %d, not %s", t->name, act_group,
                       qtype_takes_floats(t) ? "0" : t->acts == ACTS_I8_128 ? "128" : "32, 64 or 128");
    if (rows < 1 || rows > INT_MAX - MAX_GROUP || cols < 1 || cols > INT_MAX - MAX_GROUP)
        return err_set(e, ERR_SHAPE, "%s: a matrix of %" PRId64 " x %" PRId64 " is not between 1 and 2^31 - 257 a side",
                       t->name, rows, cols);

    int pad = group_size > act_group ? group_size : act_group;
    pad = pad > STEP ? pad : STEP;
    memset(m, 0, sizeof *m);
    m->type = type;
    m->group_size = group_size;
    m->act_group = act_group;
    m->rows = (int)rows;
    m->cols = (int)cols;
    m->cols_padded = (int)((cols + pad - 1) / pad * pad);
    m->n_groups = m->cols_padded / group_size;
    m->unit_groups = unit_groups(t, group_size);
    m->n_tiles = (int)((rows + TILE_ROWS - 1) / TILE_ROWS);
    m->row_scale_bytes = t->row_scale ? TILE_ROWS * sizeof(float) : 0;
    m->group_bytes = t->codes == CODES_BASE3 ? (size_t)T3_LINES * LINE
                                             : (size_t)group_size * (size_t)t->bits / 32 * LINE;
    m->unit_bytes = area(m->unit_groups, scale_size(t)) + area(m->unit_groups, extra_size(t))
                  + (size_t)m->unit_groups * m->group_bytes;
    int full = m->n_groups / m->unit_groups, rest = m->n_groups % m->unit_groups;
    m->tile_bytes = m->row_scale_bytes + (size_t)full * m->unit_bytes
                  + area(rest, scale_size(t)) + area(rest, extra_size(t)) + (size_t)rest * m->group_bytes;
    if (__builtin_mul_overflow((size_t)m->n_tiles, m->tile_bytes, &m->size) || m->size > PTRDIFF_MAX)
        return err_set(e, ERR_SHAPE, "%s: a matrix of %" PRId64 " x %" PRId64 " does not fit into memory", t->name,
                       rows, cols);
    return 0;
}

size_t mat_unit_offset(const struct mat *m, int unit)
{
    return m->row_scale_bytes + (size_t)unit * m->unit_bytes;
}

int mat_unit_n(const struct mat *m, int unit)
{
    int left = m->n_groups - unit * m->unit_groups;
    return left < m->unit_groups ? left : m->unit_groups;
}

/* Offset of (group, row) within an area whose elements have `size` bytes. */
static size_t in_area(const struct mat *m, int group, int row, size_t size)
{
    int n = mat_unit_n(m, group / m->unit_groups), i = group % m->unit_groups;
    return (size_t)((row / 4 * n + i) * 4 + row % 4) * size;
}

size_t mat_scale_offset(const struct mat *m, int group, int row_in_tile)
{
    return mat_unit_offset(m, group / m->unit_groups) + in_area(m, group, row_in_tile, scale_size(qtype_info(m->type)));
}

size_t mat_extra_offset(const struct mat *m, int group, int row_in_tile)
{
    const struct qtype_info *t = qtype_info(m->type);
    int unit = group / m->unit_groups;
    return mat_unit_offset(m, unit) + area(mat_unit_n(m, unit), scale_size(t)) +
           in_area(m, group, row_in_tile, extra_size(t));
}

size_t mat_group_offset(const struct mat *m, int group)
{
    const struct qtype_info *t = qtype_info(m->type);
    int unit = group / m->unit_groups, n = mat_unit_n(m, unit);
    return mat_unit_offset(m, unit) + area(n, scale_size(t)) + area(n, extra_size(t))
         + (size_t)(group % m->unit_groups) * m->group_bytes;
}

/* Read one plane of a row's codes of a group, four k at a time, because these are adjacent in a
 * dword.  p points to the row's dword of the first line.  The plane has `bits` bits, and its lowest
 * bit is bit `shift` of the code. */
static inline void plane_get(const uint8_t *p, uint8_t *code, int n, int bits, int shift)
{
    const uint32_t mask = 0x01010101u * ((1u << bits) - 1);
    for (int k = 0; k < n; k += 32 / bits, p += LINE) {
        uint32_t w, c;
        memcpy(&w, p, 4);
        for (int i = 0; i < 8 / bits; i++) {
            memcpy(&c, code + k + 4 * i, 4);
            c = (shift ? c : 0) | (w >> bits * i & mask) << shift;
            memcpy(code + k + 4 * i, &c, 4);
        }
    }
}

static inline void plane_put(uint8_t *p, const uint8_t *code, int n, int bits, int shift)
{
    const uint32_t mask = 0x01010101u * ((1u << bits) - 1);
    for (int k = 0; k < n; k += 32 / bits, p += LINE) {
        uint32_t w = 0, c;
        for (int i = 0; i < 8 / bits; i++) {
            memcpy(&c, code + k + 4 * i, 4);
            w |= (c >> shift & mask) << bits * i;
        }
        memcpy(p, &w, 4);
    }
}

/* Read the codes of a row of a group in base 3: 20 k per line, 16 in the last (qtype.h).  p
 * points to the row's dword of the first line. */
static void base3_get(const uint8_t *p, uint8_t *code)
{
    for (int line = 0; line < T3_LINES; line++, p += LINE)
        for (int j = 0; j < 4; j++) {
            unsigned byte = p[j];
            for (int k = 20 * line + j, i = 0; i < 5 && k < 256; i++, k += 4, byte = byte * 3 & 255)
                code[k] = (uint8_t)(byte * 3 >> 8);
        }
}

static void base3_put(uint8_t *p, const uint8_t *code)
{
    for (int line = 0; line < T3_LINES; line++, p += LINE)
        for (int j = 0; j < 4; j++) {
            unsigned v = 0;
            for (int i = 0, k = 20 * line + j; i < 5; i++, k += 4)
                v = v * 3 + (k < 256 ? code[k] : 0);
            p[j] = (uint8_t)((256 * v + 242) / 243);
        }
}

/* Read all planes of a row's codes of one group; p points to the group's codes.  The widths are
 * constants, so that the loops are unrolled. */
static void group_get(const struct mat *m, const struct qtype_info *t, const uint8_t *p, int row, uint8_t *code)
{
    int n = m->group_size;
    p += 4 * row;
    if (t->codes == CODES_BASE3) {
        base3_get(p, code);
        return;
    }
    switch (t->plane[0]) {
    case 8: plane_get(p, code, n, 8, 0); break;
    case 4: plane_get(p, code, n, 4, 0); break;
    case 2: plane_get(p, code, n, 2, 0); break;
    default: assert(0);
    }
    p += (size_t)n * (size_t)t->plane[0] / 32 * LINE;
    if (t->plane[1] == 2)
        plane_get(p, code, n, 2, t->plane[0]);
    else if (t->plane[1] == 1)
        plane_get(p, code, n, 1, t->plane[0]);
}

static void group_put(const struct mat *m, const struct qtype_info *t, uint8_t *p, int row, const uint8_t *code)
{
    p += 4 * row;
    if (t->codes == CODES_BASE3) {
        base3_put(p, code);
        return;
    }
    for (int i = 0, shift = 0; i < 2 && t->plane[i]; shift += t->plane[i++]) {
        plane_put(p, code, m->group_size, t->plane[i], shift);
        p += (size_t)m->group_size * (size_t)t->plane[i] / 32 * LINE;
    }
}

static float scale_get(const struct qtype_info *t, const uint8_t *p)
{
    f16 h;
    float f;
    switch (t->scale) {
    case SCALE_F32: memcpy(&f, p, 4); return f;
    case SCALE_F16: memcpy(&h, p, 2); return f16_to_f32(h);
    case SCALE_S8:  return (float)(int8_t)*p;
    case SCALE_U8:  return (float)*p;
    case SCALE_E4M3: return f8e4m3_to_f32(*p);
    /* code 0 is 2^-127, which is subnormal */
    case SCALE_E8M0: return f32_from_bits(*p ? (uint32_t)*p << 23 : 0x00400000);
    default:        return 1;
    }
}

static float extra_get(const struct qtype_info *t, const uint8_t *p)
{
    f16 h;
    switch (t->extra) {
    case EXTRA_MIN_F16: memcpy(&h, p, 2); return f16_to_f32(h);
    case EXTRA_ZERO_U8: return (float)*p;
    default:            return 0;
    }
}

void tile_clear(const struct mat *m, uint8_t *tile)
{
    const struct qtype_info *t = qtype_info(m->type);
    memset(tile, 0, m->tile_bytes);
    if (!t->code_zero)
        return;
    uint8_t code[MAX_GROUP];
    memset(code, t->code_zero, sizeof code);
    for (int g = 0; g < m->n_groups; g++)
        for (int row = 0; row < TILE_ROWS; row++)
            group_put(m, t, tile + mat_group_offset(m, g), row, code);
}

void tile_put(const struct mat *m, uint8_t *tile, int row_in_tile, const struct qrow *q)
{
    const struct qtype_info *t = qtype_info(m->type);
    assert(!t->is_float);
    if (t->row_scale)
        memcpy(tile + 4 * row_in_tile, &q->row_scale, 4);
    for (int g = 0; g < m->n_groups; g++) {
        uint8_t *s = tile + mat_scale_offset(m, g, row_in_tile), *x = tile + mat_extra_offset(m, g, row_in_tile);
        f16 h;
        switch (t->scale) {
        case SCALE_F32: memcpy(s, &q->scale[g], 4); break;
        case SCALE_F16: h = f32_to_f16(q->scale[g]); memcpy(s, &h, 2); break;
        case SCALE_S8:  *s = (uint8_t)(int8_t)q->scale[g]; break;
        case SCALE_U8:  *s = (uint8_t)q->scale[g]; break;
        case SCALE_E4M3: *s = f32_to_f8e4m3(q->scale[g]); break;
        case SCALE_E8M0: *s = (uint8_t)(f32_bits(q->scale[g]) >> 23); break;
        default:        break;
        }
        switch (t->extra) {
        case EXTRA_MIN_F16: h = f32_to_f16(q->extra[g]); memcpy(x, &h, 2); break;
        case EXTRA_ZERO_U8: *x = (uint8_t)q->extra[g]; break;
        default:            break;
        }
        group_put(m, t, tile + mat_group_offset(m, g), row_in_tile, q->code + (size_t)g * (size_t)m->group_size);
    }
}

void tile_get(const struct mat *m, const uint8_t *tile, int row_in_tile, struct qrow *q)
{
    const struct qtype_info *t = qtype_info(m->type);
    assert(!t->is_float);
    q->row_scale = 1;
    if (t->row_scale)
        memcpy(&q->row_scale, tile + 4 * row_in_tile, 4);
    for (int g = 0; g < m->n_groups; g++) {
        q->scale[g] = scale_get(t, tile + mat_scale_offset(m, g, row_in_tile));
        if (t->extra != EXTRA_NONE)
            q->extra[g] = extra_get(t, tile + mat_extra_offset(m, g, row_in_tile));
        group_get(m, t, tile + mat_group_offset(m, g), row_in_tile, q->code + (size_t)g * (size_t)m->group_size);
    }
}

void tile_put_float(const struct mat *m, uint8_t *tile, int row_in_tile, const float *x)
{
    uint8_t *p = tile + 4 * row_in_tile;
    enum qtype type = m->type;
    assert(qtype_info(type)->is_float);
    for (int k = 0; k < m->cols_padded; p += LINE) {
        uint32_t w = 0;
        if (type == QT_F32) {
            w = k < m->cols ? f32_bits(x[k]) : 0;
            k++;
        } else {
            for (int i = 0; i < 2 && k + i < m->cols; i++)
                w |= (uint32_t)(type == QT_F16 ? f32_to_f16(x[k + i]) : f32_to_bf16(x[k + i])) << 16 * i;
            k += 2;
        }
        memcpy(p, &w, 4);
    }
}

void codes_decode(const struct mat *m, const uint8_t *code, int n, float row_scale, float scale, float extra,
                  float *out)
{
    const struct qtype_info *t = qtype_info(m->type);
    float s = t->row_scale ? row_scale * scale : scale;
    if (t->codes == CODES_E4M3)
        for (int i = 0; i < n; i++)
            out[i] = s * f8e4m3_to_f32(code[i]);
    else if (!t->value)
        for (int i = 0; i < n; i++)
            out[i] = s * (float)(int8_t)code[i];
    else if (t->extra == EXTRA_NONE)
        for (int i = 0; i < n; i++)
            out[i] = s * t->value[code[i]];
    else if (t->extra == EXTRA_MIN_F16)
        for (int i = 0; i < n; i++)
            out[i] = s * (float)code[i] + extra;
    else
        for (int i = 0; i < n; i++)
            out[i] = s * ((float)code[i] - extra);
}

/* Decode a row of a float matrix; p points to the row's dword of the first line. */
static void decode_float(enum qtype type, const uint8_t *p, float *out, int cols)
{
    uint32_t w;
    for (int k = 0; k < cols; p += LINE) {
        memcpy(&w, p, 4);
        if (type == QT_F32) {
            out[k++] = f32_from_bits(w);
            continue;
        }
        out[k++] = type == QT_F16 ? f16_to_f32((f16)w) : bf16_to_f32((bf16)w);
        if (k < cols)
            out[k++] = type == QT_F16 ? f16_to_f32((f16)(w >> 16)) : bf16_to_f32((bf16)(w >> 16));
    }
}

void mat_decode_row(const struct mat *m, int64_t row, float *out)
{
    const struct qtype_info *t = qtype_info(m->type);
    const uint8_t *tile = m->data + (size_t)(row / TILE_ROWS) * m->tile_bytes;
    int r = (int)(row % TILE_ROWS), n = m->group_size;
    float row_scale = 1, extra = 0;
    uint8_t code[MAX_GROUP];
    if (t->is_float) {
        decode_float(m->type, tile + 4 * r, out, m->cols);
        return;
    }
    if (t->row_scale)
        memcpy(&row_scale, tile + 4 * r, 4);
    for (int g = 0, k = 0; k < m->cols; g++, k += n) {
        float scale = scale_get(t, tile + mat_scale_offset(m, g, r));
        if (t->extra != EXTRA_NONE)
            extra = extra_get(t, tile + mat_extra_offset(m, g, r));
        group_get(m, t, tile + mat_group_offset(m, g), r, code);
        codes_decode(m, code, m->cols - k < n ? m->cols - k : n, row_scale, scale, extra, out + k);
    }
}
