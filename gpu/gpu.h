/* gpu.h - the public interface of the device engine.  The build selects one of three: CUDA; the
 * same kernels emulated on the CPU (for tests); or stub.c, whose errors give the reason why there
 * is none. */
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
/* Create the context of a device in advance, so that opening a model is faster; for a thread. */
void gpu_warm_up(int device);

/* The memory that backend_gpu.open takes with the same options, to the page, in bytes. */
struct gpu_plan {
    char name[128];                     /* name of the device */
    /* layers that it would compute, the last ones and the head; most layers that fit (0: none) */
    int n_layers, most_layers;
    /* cached: f16 weight cache; work: activations and the step; reserve: an allowance for
     * the driver's own copies of graphs and kernels */
    size_t weights, cached, kv, work, reserve;
    size_t needed;                      /* all five */
    size_t limit;                       /* the free memory, or max_device if that is less */
    size_t total, free;                 /* the device's memory, now */
    size_t host_weights, host_kv;       /* bytes of the layers that stay on the CPU */
    const char *cache_off;              /* why cached is 0, static; NULL: it is not */
    const char *graphs_off;             /* why no graphs are replayed, static; NULL: they are */
};
/* -1: no device, or a model that it cannot compute (ERR_UNSUPPORTED). */
int gpu_plan(const struct model *m, const struct backend_options *o, struct gpu_plan *p, struct err *e);
/* -1 with all numbers if it does not fit. */
int gpu_plan_fits(const struct gpu_plan *p, const struct backend_options *o, struct err *e);

/* Measured bytes per second: of the device's memory (reads and writes of a copy), and from pinned
 * host memory; dense f16 operations per second, from the clock and number of its multiprocessors
 * (0: unknown architecture).  Temporarily takes 16 times the device's L2 of its memory, and half of
 * that of pinned memory, whose allocation and first touch take most of the time: tenths of a second
 * for an L2 of 50 MB (estimated). */
struct gpu_speeds { double copy, upload, mma; };
int gpu_measure(int device, struct gpu_speeds *out, struct err *e);

/* Measures every kernel on random operands of a model's shape: row() is called for each kernel and
 * number of tokens, in order. */
struct gpu_bench_row {
    const char *kernel, *type;          /* "matvec", "nl4"; attention: the type of keys and values; sample: the way */
    int tokens;                         /* attn_decode: number of sequences */
    double bytes, flop;                 /* traffic and operations of a launch; flop 0: not counted */
    double seconds;                     /* median time of a launch over the repeats */
    /* the operations are integer mma, of which a device does twice as many as of gpu_speeds.mma */
    int int8;
    int taken;                          /* with autotune: the engine takes this kernel for such a product */
};
struct gpu_bench_options {
    /* shape of the widest matrices; width of hidden states; size of the vocabulary */
    int rows, cols, vocab;
    int n_heads, n_kv_heads, head_dim, context;     /* context: of sequences that decode */
    const int *tokens; int n_tokens;
    int repeats;
    /* only products that several kernels can compute, by each of them; the engine's choice by
     * backend_options.wgmma */
    int autotune, wgmma;
    void (*row)(void *user, const struct gpu_bench_row *r);
    void *user;
};
int gpu_bench(int device, const struct gpu_bench_options *o, struct err *e);

#ifdef __cplusplus
}
#endif
#endif
