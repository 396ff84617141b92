/* tile.h - matrices in kernel order.
 *
 * A matrix [rows, cols] (out_features, in_features) is cut into tiles of 32 rows.  A tile is
 *     [32 f32 row scales, if the type has them] unit unit ... unit
 * A unit holds the scales and then the codes of U groups: U is 4 with 8-bit scales, 2 with f16
 * scales, and 1 with f32 scales, without scales, or in groups of 256.  The last unit of a tile may
 * hold fewer groups.  The scale area is
 *     for each quad of 4 rows (0..7): for each group of the unit: 4 scales
 * so that one 16-byte load of a GPU lane has the scales of its 4 rows for all groups.  If the type
 * has an extra (min or zero), another area has the extras in the same order.  Every area is padded
 * with zeros to a multiple of 64 bytes.  Then come the codes, group by group, and in a group plane
 * by plane.  A plane of b bits is a sequence of 128-byte lines of 32/b consecutive k; in a line row
 * r has the 4 bytes at 4*r, which contain
 *     b <= 8:  byte j, bits b*i ..     = k  4*i + j     (so (dword >> b*i) & 0x0..0x0.. is a VNNI
 *                                                       operand)
 *     b = 16:  the two halves          = k  0, 1
 *     b = 32:  the word                = k  0
 * A group of t3 is 13 lines of bytes with five digits each (qtype.h).  Rows beyond `rows` in the
 * last tile have scale 0 and code_zero; columns beyond `cols` have code_zero. */
#ifndef ZSE_QUANT_TILE_H
#define ZSE_QUANT_TILE_H

#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"
#include "libcommon/quant/qtype.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { TILE_ROWS = 32 };

/* A matrix that kernels compute on.  `data` is borrowed from a mapping, or from the code that
 * allocated it. */
struct mat {
    enum qtype type;
    /* number of k (columns) that share a scale; types without group scales: 32, for padding only */
    int group_size;
    /* number of k for which rounded activations share a scale: 32, 64, 128 (t3: 128); 0:
     * activations are never rounded to int8 (float types and fp8) */
    int act_group;
    int rows, cols;
    int cols_padded;            /* cols, rounded up to a multiple of max(group_size, act_group) */
    int n_groups;               /* cols_padded / group_size */
    int unit_groups;            /* groups of a full unit */
    int n_tiles;
    size_t row_scale_bytes;     /* 0 or 128 */
    size_t group_bytes;         /* codes of one group */
    size_t unit_bytes;          /* bytes of a full unit: areas and codes */
    size_t tile_bytes;
    size_t size;                /* n_tiles * tile_bytes */
    const uint8_t *data;        /* 64-byte aligned */
};

/* Fill in everything but data.  Refuses types, group sizes and act groups that do not match, and
 * sizes that overflow. */
int mat_init(struct mat *m, enum qtype type, int group_size, int act_group, int64_t rows, int64_t cols, struct err *e);

/* Offsets in bytes from the start of a tile; mat_unit_n: number of groups in a unit. */
size_t mat_unit_offset(const struct mat *m, int unit);
int mat_unit_n(const struct mat *m, int unit);
size_t mat_scale_offset(const struct mat *m, int group, int row_in_tile);
size_t mat_extra_offset(const struct mat *m, int group, int row_in_tile);
size_t mat_group_offset(const struct mat *m, int group);                            /* codes of a group */

/* One quantized row: the result of a quantizer, which tile_put() stores. */
struct qrow {
    uint8_t *code;              /* [cols_padded]; int8 codes as two's complement bytes */
    float row_scale;            /* 1 if the type has none */
    /* [n_groups] scales in units of row_scale.  They are exactly representable: by an f16, an 8-bit
     * integer or (e8m0) a power of two, unless the type's scales are f32 */
    float *scale;
    /* [n_groups] minima (exact f16) or zero points (integers); NULL: the type has none */
    float *extra;
};
/* Make an empty tile: all scales 0, all codes code_zero, padding 0.  Call it before the first
 * tile_put() or tile_put_float() of a tile. */
void tile_clear(const struct mat *m, uint8_t *tile);
/* Store or load one row of the tile whose bytes are at `tile`; for float types there is
 * tile_put_float().  Only for little-endian hosts. */
void tile_put(const struct mat *m, uint8_t *tile, int row_in_tile, const struct qrow *q);
void tile_get(const struct mat *m, const uint8_t *tile, int row_in_tile, struct qrow *q);
void tile_put_float(const struct mat *m, uint8_t *tile, int row_in_tile, const float *x /* [cols] */);

/* The values of n codes of an integer type that share a scale.  These f32 operations, with their
 * roundings, define the types:
 *     s = row_scale * scale (or the only one that the type has);  out = s * value[code]
 *     i4m: out = scale * code + min;  i4z: out = scale * (code - zero) */
void codes_decode(const struct mat *m, const uint8_t *code, int n, float row_scale, float scale, float extra,
                  float *out);

/* Decode row `row` of the matrix to out [cols], exactly the values that the type defines. */
void mat_decode_row(const struct mat *m, int64_t row, float *out);

#ifdef __cplusplus
}
#endif
#endif
