/* tile_order.cuh - the order in which blocks take the tiles of a product with many tokens. */
#ifndef ZSE_GPU_PRIM_TILE_ORDER_CUH
#define ZSE_GPU_PRIM_TILE_ORDER_CUH

#include "gpu/prim/prim.cuh"

/* The numbers of tiles of rows, of all matrices, and of tokens. */
struct work { int n_rows, n_tokens; };
struct tile_of_work { int row, token; };

/* The number of tiles of tokens that are computed before the next tile of rows, so that weights and
 * activations stay in L2. */
enum { TILES_TOGETHER = 16 };

/* The i-th pair of a tile of rows and a tile of tokens. */
DEVICE tile_of_work tile_at(const work &w, int i)
{
    const int first = i / (TILES_TOGETHER * w.n_rows) * TILES_TOGETHER, in = i - first * w.n_rows,
              n = min(TILES_TOGETHER + 0, w.n_tokens - first);
    return { in / n, first + in % n };
}

#endif
