/* tensor_map.h - the stand-in for CUtensorMap: a matrix of f16, copied in tiles of box_rows x 64
 * elements.  cudart.cc writes it, hopper.cc reads it. */
#ifndef ZSE_TESTS_PTX_TENSOR_MAP_H
#define ZSE_TESTS_PTX_TENSOR_MAP_H

#include <stdint.h>

struct tensor_map {
    enum : uint32_t { MAGIC = 0x746d6170 };
    uint64_t base, stride;
    int64_t cols, rows;
    int box_rows;
    uint32_t magic;
};

#endif
