/* experts.cuh - primitives of the kernels of experts: the address of a tile's weights, biases, and
 * the activation that makes the input of down from the outputs of gate and up. */
#ifndef ZSE_GPU_PRIM_EXPERTS_CUH
#define ZSE_GPU_PRIM_EXPERTS_CUH

#include "gpu/prim/weights.cuh"

/* Returns the address of tile `tile`, of 32 rows, of an expert's matrix. */
DEVICE const uint8_t *expert_rows(const gpu_expert_mat &m, int expert, int tile)
{
    return m.w.data + expert * m.stride + (size_t)tile * m.w.tile_bytes;
}

/* Returns y plus the expert's bias for this row. */
DEVICE float expert_biased(const gpu_expert_mat &m, int expert, int row, float y)
{
    return m.bias ? y + m.bias[(size_t)expert * m.bias_stride + row] : y;
}

/* An element of the input of down of a pair, from the outputs of gate and up for it. */
DEVICE float expert_activation(const gpu_experts &o, int pair, float gate, float up)
{
    if (o.weigh_input) {
        gate *= o.choice.weight[pair];
        up *= o.choice.weight[pair];
    }
    if (o.alpha > 0) {
        gate = gate > o.limit ? o.limit : gate;
        up = up < -o.limit ? -o.limit : up > o.limit ? o.limit : up;
        return gate / (1 + expf(-o.alpha * gate)) * (up + 1);
    }
    return activation(gate, o.function) * up;
}

#endif
