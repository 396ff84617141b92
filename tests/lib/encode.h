/* encode.h - whole matrices as tiles, for tests. */
#ifndef ZSE_TESTS_ENCODE_H
#define ZSE_TESTS_ENCODE_H

#include "libcommon/quant/tile.h"

/* Encode a dense f32 matrix x [rows, ldx] into a float type in out[size]. */
static inline void mat_encode_float(const struct mat *m, uint8_t *out, const float *x, size_t ldx)
{
    for (int i = 0; i < m->n_tiles; i++) {
        uint8_t *tile = out + (size_t)i * m->tile_bytes;
        tile_clear(m, tile);
        for (int r = 0; r < TILE_ROWS && i * TILE_ROWS + r < m->rows; r++)
            tile_put_float(m, tile, r, x + (size_t)(i * TILE_ROWS + r) * ldx);
    }
}

#endif
