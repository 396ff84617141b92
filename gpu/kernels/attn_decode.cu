/* attn_decode.cu - attention of single tokens, the context cut into splits of GPU_SPLIT positions:
 * for decoding, and for prompts where --exact or --strict needs f32.
 *
 * tile     a block of 8 warps: one split of one token, for up to GPU_ATTN_GROUP heads that share a
 *          key (gpu/prim/attn_split.cuh, with the bytes and the limit).  Few splits leave
 *          multiprocessors idle, so these heads are divided between blocks (gpu_attn_group)
 * checked  tests/unit/t-gpu-attention.c */
#include "gpu/kernels/operations.h"
#include "gpu/prim/attn_split.cuh"
#include "gpu/rt/launch.cuh"

template <int KV, int GROUP, int LATENT, bool COPIED>
__global__ __launch_bounds__(SPLIT_THREADS) void attn_split_kernel(gpu_attention o, int passes)
{
    launch_dependents();
    SHARED(float, room);
    attn_split_block<KV, GROUP, LATENT, COPIED>(o, passes, room);
}

template <int KV, int GROUP, int LATENT, bool COPIED>
static int run(struct gpu *g, const gpu_attention *o, struct err *e)
{
    const int share = o->n_heads / o->n_kv_heads, passes = (share + GROUP - 1) / GROUP;
    return launch(g, "attn_split", attn_split_kernel<KV, GROUP, LATENT, COPIED>,
                  dim3((unsigned)o->max_splits, (unsigned)(o->n_kv_heads * passes), (unsigned)o->n_rows), SPLIT_THREADS,
                  attn_split_bytes<GROUP, LATENT, COPIED>(*o), e, *o, passes);
}

/* Run with up to GROUP heads in a block. */
template <int KV, int GROUP> static int run_group(struct gpu *g, const gpu_attention *o, struct err *e)
{
    if constexpr (GROUP > 1) {
        /* the blocks of a key that is not copied must not be several */
        const bool divides = !o->prepare.head_dim || attn_split_copies<KV, GROUP / 2>(*o);
        if (gpu_attn_group(o->n_heads / o->n_kv_heads, o->n_kv_heads * o->max_splits * o->n_rows,
                           divides ? gpu_n_sms(g) : 0) < GROUP)
            return run_group<KV, GROUP / 2>(g, o, e);
    }
    if constexpr (KV_COPIED<KV>)
        if (attn_split_copies<KV, GROUP>(*o))
            return run<KV, GROUP, 0, true>(g, o, e);
    return run<KV, GROUP, 0, false>(g, o, e);
}

template <int KV> static int run_kv(struct gpu *g, const gpu_attention *o, struct err *e)
{
    if (!KV_TAILED<KV> && o->value_dim)
        return run<KV_TAILED<KV> ? KV_F32 : KV, GPU_ATTN_GROUP, 1, false>(g, o, e);
    return run_group<KV, GPU_ATTN_GROUP>(g, o, e);
}

extern "C" int gpu_attn_decode(struct gpu *g, const struct gpu_attention *o,
                               struct err *e) { return KV_DISPATCH(o->kv.type, run_kv, g, o, e); }
