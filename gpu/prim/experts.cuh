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

/* Store element k of a token's sum.  The results of eight experts are loaded together. */
DEVICE void expert_sum_store(const struct gpu_expert_sum &o, int token, int k)
{
    enum { TOGETHER = 8 };
    const size_t at = (size_t)token * o.cols + k;
    const float before = o.x ? o.x[at] : 0;
    float sum = 0;
    if (o.shared)
        sum = o.shared_scale * (o.shared_weight ? o.shared_weight[token] : 1) * o.shared[at];
    for (int first = 0; first < o.top_k; first += TOGETHER) {
        float y[TOGETHER], weight[TOGETHER];
        bool here[TOGETHER];
#pragma unroll
        for (int j = 0; j < TOGETHER; j++) {
            const int i = token * o.top_k + first + j, id = first + j < o.top_k ? o.choice.id[i] : -1;
            here[j] = id >= 0 && (!o.place || o.place[id] >= 0);
            const int row = here[j] && o.row ? o.row[i] : -1;
            const float *from = row < 0 ? o.y + (size_t)i * o.cols : o.host + (size_t)row * o.cols;
            y[j] = 0;
            weight[j] = 1;
            /* with all results in y, loads need not wait for the choice */
            if (o.row ? here[j] : first + j < o.top_k)
                y[j] = load_shared_by_blocks(from + k);
            if (here[j] && !o.weighed)
                weight[j] = o.choice.weight[i];
        }
#pragma unroll
        for (int j = 0; j < TOGETHER; j++)
            sum = here[j] ? fmaf(weight[j], y[j], sum) : sum;
    }
    if (o.x)
        o.x[at] = fmaf(o.scale, sum, before);
    else
        o.out[at] = sum;
}

#endif
