/* tile.h - matrices in kernel order.
 *
 * A matrix [rows, cols] (out_features, in_features) is cut into tiles of 32 rows.  A tile is
 *     [32 f32 row scales, if the type has them] unit unit ... unit
 * A unit holds the scales and then the codes of U groups (U = 4 with 8-bit scales, 2 with f16
 * scales, 1 with f32 scales, groups of 256 or without scales; the last unit of a tile may hold
 * fewer: n).  The scale area is
 *     for each quad of 4 rows (0..7): for each group of the unit: 4 scales
 * so that one 16-byte load of a GPU lane has its 4 rows' scales of all groups; then, if the type
 * has an extra (min or zero), its area in the same order; every area is padded with zeros to a
 * multiple of 64 bytes.  Then the codes, group by group; in a group plane by plane; a plane of b
 * bits is a sequence of 128-byte lines of 32/b consecutive k: row r has the 4 bytes at 4*r, and in
 * them
 *     b <= 8:  byte j, bits b*i ..     = k  4*i + j     (so (dword >> b*i) & 0x0..0x0.. is a VNNI
 *                                                       operand)
 *     b = 16:  the two halves          = k  0, 1
 *     b = 32:  the word                = k  0
 * and t3's groups are 13 lines of five digits a byte (qtype.h).  Rows beyond `rows` in the last
 * tile have scale 0 and code_zero; columns beyond `cols` have code_zero. */
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

/* A matrix that kernels compute on.  Plain facts; data is borrowed from a mapping or from
 * its allocator. */
struct mat {
    enum qtype type;
    int group_size;             /* k per scale; 32 for types without group scales (only pads k) */
    /* activations are rounded to int8 per this many k: 32, 64, 128 (t3: 128); 0: float types and
     * fp8, never rounded */
    int act_group;
    int rows, cols;
    int cols_padded;            /* to a multiple of max(group_size, act_group) */
    int n_groups;               /* cols_padded / group_size */
    int unit_groups;            /* groups of a full unit */
    int n_tiles;
    size_t row_scale_bytes;     /* 0 or 128 */
    size_t group_bytes;         /* codes of one group */
    size_t unit_bytes;          /* a full unit: areas and codes */
    size_t tile_bytes;
    size_t size;                /* n_tiles * tile_bytes */
    const uint8_t *data;        /* 64-byte aligned */
};

/* Fill everything but data.  Refuses types, group sizes and act groups that do not fit together,
 * and sizes that overflow. */
int mat_init(struct mat *m, enum qtype type, int group_size, int act_group, int64_t rows, int64_t cols, struct err *e);

/* Where things lie, in bytes from the start of a tile. */
size_t mat_unit_offset(const struct mat *m, int unit);                              /* start of a unit */
int mat_unit_n(const struct mat *m, int unit);                                      /* its groups */
size_t mat_scale_offset(const struct mat *m, int group, int row_in_tile);           /* scale of (group, row) */
size_t mat_extra_offset(const struct mat *m, int group, int row_in_tile);
size_t mat_group_offset(const struct mat *m, int group);                            /* codes of a group */

/* One row, quantized: what a quantizer makes and tile_put stores. */
struct qrow {
    uint8_t *code;              /* [cols_padded]; int8 codes as two's complement bytes */
    float row_scale;            /* 1 if the type has none */
    /* [n_groups]: f16 types: the exact f16 value; f32: itself; 8-bit scales: the integer; e8m0: the
     * power of 2; in units of row_scale */
    float *scale;
    float *extra;               /* [n_groups] min (exact f16) or zero point (integer), NULL if the type has none */
};
/* An empty tile: all scales 0, all codes code_zero, padding 0.  Before the first tile_put or
 * tile_put_float of a tile. */
void tile_clear(const struct mat *m, uint8_t *tile);
/* Store / load one row of a tile. tile points to the tile's bytes; float types use
 * tile_put_float.  Little-endian hosts. */
void tile_put(const struct mat *m, uint8_t *tile, int row_in_tile, const struct qrow *q);
void tile_get(const struct mat *m, const uint8_t *tile, int row_in_tile, struct qrow *q);
void tile_put_float(const struct mat *m, uint8_t *tile, int row_in_tile, const float *x /* [cols] */);

/* The values of n codes that share a scale (integer types), f32 with these roundings, which define
 * the type:
 *     s = row_scale * scale (types with both; else the one there is);  out = s * value[code]
 *     i4m: out = scale * code + min;  i4z: out = scale * (code - zero) */
void codes_decode(const struct mat *m, const uint8_t *code, int n, float row_scale, float scale, float extra,
                  float *out);

/* Row `row` of the matrix as f32, exactly the values the type defines.  out [cols]. */
void mat_decode_row(const struct mat *m, int64_t row, float *out);

#ifdef __cplusplus
}
#endif
#endif
