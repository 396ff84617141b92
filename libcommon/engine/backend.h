/* backend.h - the interface of a device: whole steps, not single operations, so that a device may
 * fuse and reorder freely. */
#ifndef ZSE_ENGINE_BACKEND_H
#define ZSE_ENGINE_BACKEND_H

#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"
#include "libcommon/engine/draw.h"
#include "libcommon/model/model.h"
#include "libcommon/quant/kvtype.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A run of consecutive tokens of one sequence.  A batch is a list of them: prefill, decode,
 * chunked prefill, prefix reuse and verification of drafts are the same call. */
struct batch_item {
    const int32_t *tokens; int n_tokens;    /* >= 1 */
    /* tokens NULL, n_tokens 1: the token that the step begun last draws in this row of its logits
     * (see begin) */
    int follows;
    /* position of tokens[0]: keys and values of [0, pos) are in the cache already */
    int pos;
    const int32_t *table;                   /* KV block numbers: position p lies in block table[p / KV_BLOCK] */
    /* with n_window_blocks: the same of layers with a window, as far as one of the tokens sees, and
     * of the sinks */
    const int32_t *window_table;
    /* of models with recurrent layers: which of the n_states holds what [0, pos) left behind,
     * and gets what these tokens leave; at pos 0 it begins anew, whatever was there.  No two
     * items of a batch have the same */
    int state;
    /* NULL, or with n_logits 1 how to choose the next token: a backend that can needs no logits
     * (draw.h) */
    struct draw *draw;
    int n_logits;                           /* logits wanted for the last n_logits tokens, 0..n_tokens */
    /* tokens of the whole sequence, as far as known; 0: pos + n_tokens.  LongRoPE chooses its
     * factors by it: a sequence that comes to config_long_from() is computed again from position
     * 0 */
    int seq_len;
    /* Encoders, whose items are whole sequences: position of the first token of the second text,
     * which is of type 1 where the model has types; 0: there is one text. */
    int second;
    /* the last n_hidden tokens' states after the final norm [n_hidden][hidden_size] go there */
    float *hidden; int n_hidden;
};
struct batch { const struct batch_item *items; int n_items; };

/* Copies of packed weights as f16, for prompts; auto: where 3 times the weights and 2 GB are
 * free, and all the rest has room beside them. */
enum cache_weights { CACHE_WEIGHTS_OFF, CACHE_WEIGHTS_AUTO, CACHE_WEIGHTS_ON };

struct backend_options {
    int n_threads;                          /* 0: all processors */
    struct kv_types kv;
    int n_blocks;                           /* KV blocks of 16 tokens, for all layers together */
    /* Blocks of the keys and values of layers with a window (config_layer_window()), which then lie
     * in no others; 0: they have none of their own.  copy_block, drop_block, save_block and
     * load_block take the w-th of them as block n_blocks + w. */
    int n_window_blocks;
    /* No layer sees more than the newest `window` tokens and the first `sinks`; 0: as the model has
     * it.  Sinks are seen as if they lay right before the window.  With n_window_blocks only. */
    int window, sinks;
    /* states of sequences of models with recurrent layers, config_state_bytes() each; 0 for
     * others */
    int n_states;
    int max_tokens;                         /* most tokens in one batch */
    int max_logits;                         /* most rows of logits in one batch */
    int exact;                              /* f32 activations and the weights as stored */
    const char *kernels;                    /* NULL: the fastest this machine runs */
    size_t max_weights;                     /* bytes of the model's file that may be resident; 0: any */
    int device;                             /* index of the GPU; the CPU has one */
    /* so many of the last layers and the head are the GPU's, the others the CPU's; 0: all are the
     * GPU's */
    int device_layers;
    size_t max_device;                      /* bytes of the GPU's memory that may be taken; 0: what is free */
    /* on a GPU too results depend neither on chunks nor on prefixes nor on how many tokens a step
     * has; on the CPU they never do */
    int strict;
    int debug_sync;                         /* wait after every kernel of a GPU, so that a failure names it */
    int wgmma;                              /* products of many tokens by wgmma on compute capability 9.0 */
    int cache_weights;                      /* enum cache_weights, of a GPU */
    int no_graphs;                          /* a GPU's steps of decoding are launched kernel by kernel */
    /* a GPU multiplies matrices with one int8 scale a row (i8r) by activations rounded to int8, a
     * scale a token */
    int act_int8;
};

/* Steps of decoding alone as graphs, recorded once and replayed: [i]: of up to 2^i sequences. */
enum { BACKEND_BUCKETS = 7 };
struct backend_graphs {
    const char *off;                        /* why there are none, static; NULL: there may be */
    /* since it was opened; a bucket has one for each power of two of the context */
    int captured[BACKEND_BUCKETS];
    uint64_t replays[BACKEND_BUCKETS];
    /* that the device had no memory for: these steps are launched kernel by kernel */
    int refused;
};

/* The memory that a backend takes of a device, and the times when it was ready. */
struct backend_device {
    const char *name;                       /* "NVIDIA H200": borrowed until close; NULL: the processor alone */
    int index, n_layers;                    /* of the device; number of layers that it computes */
    size_t weights, cached, kv, work, reserve;      /* bytes: see gpu_plan */
    const char *cache_off;                  /* why there are no copies of weights as f16, static; NULL: there are */
    size_t total;                           /* bytes of its memory */
    int lost;                               /* it failed, and refuses all work from then on */
    struct backend_graphs graphs;
    /* clock_ns(): when it was asked for, was there, had all weights; copied_ns 0: not yet */
    uint64_t begun_ns, context_ns, copied_ns;
};

enum { BACKEND_STEP_TOKENS = 512 };
struct backend {
    const char *name;                       /* "cpu" */
    int always_strict;                      /* results are as with options.strict, without it too */
    int windows;                            /* it can have window blocks */
    /* Tokens of a step where the caller does not choose.  max_len: tokens of all contexts
     * together; kernels: as in backend_options.  NULL: BACKEND_STEP_TOKENS. */
    int (*step_tokens)(const struct config *c, int n_threads, int64_t max_len, const char *kernels);
    /* model is borrowed until close. All memory is taken here; forward allocates nothing. */
    void *(*open)(const struct model *m, const struct backend_options *o, struct err *e);
    /* Run the batch; logits [sum of n_logits][vocab_size] f32 in order of items. */
    int (*forward)(void *b, const struct batch *batch, float *logits, struct err *e);
    /* Steps that are not waited for; NULL: there are none.  1: it is begun, and nothing of the
     * batch is needed any more; 0: it can only be run by forward, nothing was done; -1.  Every
     * item has one row of logits and a draw.  Tokens may be those of the step begun last
     * (batch_item.follows) unless forward ran since.  Two steps at most are begun and not ended. */
    int (*begin)(void *b, const struct batch *batch, struct err *e);
    /* Wait for the step begun first, and the tokens into its items' draws; logits are nowhere:
     * where a token stays -1, forward makes them, with the same step again.  batch NULL: the
     * results are discarded. */
    int (*end)(void *b, const struct batch *batch, struct err *e);
    int (*copy_block)(void *b, int32_t from, int32_t to, struct err *e);
    size_t (*memory)(const void *b);        /* bytes of private memory it holds, KV included */
    size_t (*kv_bytes)(const void *b);
    const char *(*describe)(const void *b); /* "cpu avx512, 2 threads" */
    void (*close)(void *b);
    /* The contents of the block are not needed any more: return its memory until it is written
     * again.  NULL: no memory can be returned. */
    void (*drop_block)(void *b, int32_t block);
    int (*copy_state)(void *b, int from, int to, struct err *e);        /* NULL: it runs no models that have states */
    void (*drop_state)(void *b, int state);     /* as drop_block */
    void (*device)(const void *b, struct backend_device *d);    /* NULL: there is none */
    /* Copy a block (config_kv_bytes(), of which window blocks have config_window_bytes() where
     * there are some) or a state (config_state_bytes()) out of the backend's
     * memory and into it; the bytes mean something to this backend with this model, type of keys
     * and values and describe() only.  NULL: not possible. */
    void (*save_block)(const void *b, int32_t block, void *to);
    void (*load_block)(void *b, int32_t block, const void *from);
    void (*save_state)(const void *b, int state, void *to);
    void (*load_state)(void *b, int state, const void *from);
};

extern const struct backend backend_cpu;         /* libcommon/cpu */

#ifdef __cplusplus
}
#endif
#endif
