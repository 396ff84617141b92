/* gpu.h - the public interface of the device engine.  The build selects one of three
 * implementations: CUDA; the same kernels emulated on the CPU (for tests); or stub.c, which fails
 * with the reason why this build has no device engine. */
#ifndef ZSE_GPU_GPU_H
#define ZSE_GPU_GPU_H

#include "libcommon/engine/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

extern const char gpu_kind[];           /* "cuda", "emulated" or "none" */
extern const struct backend backend_gpu;
/* Number of usable devices; -1 with the reason if there is none. */
int gpu_count(struct err *e);
/* Create the context of a device in advance, so that opening a model is faster.  This takes time:
 * call it from a separate thread. */
void gpu_warm_up(int device);

/* The part of a plan of one of several GPUs. */
struct gpu_plan_rank {
    char name[128];
    int index, first_layer, n_layers;
    size_t weights, cached, kv, work, reserve, needed, limit, total;
};

/* The memory that backend_gpu.open takes with the same options, in bytes, rounded up to pages.  Of
 * several GPUs, sizes are sums, numbers of layers are sums over stages (struct backend_gpus),
 * n_experts is the smallest number that a stage has, and texts are those of the first GPU that has
 * one. */
struct gpu_plan {
    char name[128];                     /* name of the device */
    int n_ranks; struct gpu_plan_rank ranks[BACKEND_MOST_GPUS];         /* n_ranks >= 1 */
    int tp;                             /* GPUs that share every layer; 0: one has it */
    /* n_layers: number of layers, the last ones, that the device would compute besides the head;
     * most_layers: the largest number that fits (0: none) */
    int n_layers, most_layers;
    int n_experts;                      /* experts of each layer on the device */
    int prefill_threshold; const char *threshold_from;          /* as in struct backend_device */
    /* kv: keys, values and states; cached: f16 weight cache; work: activations and the step;
     * reserve: an allowance for the driver's own copies of graphs and kernels */
    size_t weights, cached, kv, work, reserve;
    size_t needed;                      /* sum of those five */
    size_t limit;                       /* the free memory, or max_device if that is less */
    size_t total, free;                 /* the device's memory, now */
    size_t host_weights, host_kv;       /* bytes of the layers and experts that stay on the CPU */
    /* static texts: the reason why cached is 0 (NULL: it is not 0), and the reason why no graphs
     * are replayed (NULL: graphs are replayed) */
    const char *cache_off;
    const char *graphs_off;
    /* window: the number of layers in the device's memory, if the others are uploaded at every
     * step, and 0 if all layers fit.  kept: those of them that stay; slots, prefetch: see struct
     * backend_stream; stream_bytes: bytes that a step uploads.  Of GPUs that share layers, the
     * smallest window counts. */
    int window, kept, slots, prefetch;
    size_t stream_bytes;
    int most_window;                    /* of one GPU: the largest window that fits */
};
/* -1 with *e if there is no device, or if it cannot compute the model (ERR_UNSUPPORTED). */
int gpu_plan(const struct model *m, const struct backend_options *o, struct gpu_plan *p, struct err *e);
/* 0, or -1 with *e listing all sizes if the plan of a GPU does not fit into its limit. */
int gpu_plan_fits(const struct gpu_plan *p, const struct backend_options *o, struct err *e);

/* copy: measured bytes per second of the device's memory, reads plus writes of a copy; upload:
 * measured bytes per second from pinned host memory; mma: dense f16 operations per second, from the
 * clock and number of multiprocessors (0: unknown architecture).  gpu_measure temporarily allocates
 * device memory of 16 times the size of L2, and half as much pinned memory.  Allocating that and
 * touching it first takes most of the time: tenths of a second for an L2 of 50 MB (estimated). */
struct gpu_speeds { double copy, upload, mma; };
int gpu_measure(int device, struct gpu_speeds *out, struct err *e);

/* Measure every kernel on random operands of a model's shape, and call row() for each kernel and
 * number of tokens, in order. */
struct gpu_bench_row {
    /* kernel: such as "matvec"; type: such as "nl4", for attention the type of keys and values, for
     * sample the way of drawing */
    const char *kernel, *type;
    int tokens;                         /* attn_decode: number of sequences */
    double bytes, flop;                 /* traffic and operations of a launch; flop 0: not counted */
    double seconds;                     /* median time of a launch over the repeats */
    /* the operations are integer mma, whose peak rate is twice gpu_speeds.mma */
    int int8;
    /* with autotune: 1 if the engine would choose this kernel for this product */
    int taken;
};
struct gpu_bench_options {
    /* shape of the widest matrices; width of hidden states; size of the vocabulary */
    int rows, cols, vocab;
    int n_heads, n_kv_heads, head_dim, context;     /* context: of sequences that decode */
    const int *tokens; int n_tokens;
    int repeats;
    /* autotune: measure only products that several kernels can compute, with each of these kernels;
     * wgmma: backend_options.wgmma, on which the engine's choice depends */
    int autotune, wgmma;
    void (*row)(void *user, const struct gpu_bench_row *r);
    void *user;
};
int gpu_bench(int device, const struct gpu_bench_options *o, struct err *e);

#ifdef __cplusplus
}
#endif
#endif
