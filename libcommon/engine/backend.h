/* backend.h - the interface of a device: whole steps, not single operations, so that a device may
 * fuse and reorder freely. */
#ifndef ZSE_ENGINE_BACKEND_H
#define ZSE_ENGINE_BACKEND_H

#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"
#include "libcommon/engine/draw.h"
#include "libcommon/engine/pattern.h"
#include "libcommon/model/model.h"
#include "libcommon/quant/kvtype.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A run of consecutive tokens of one sequence.  A batch is a list of them: prefill, decode,
 * chunked prefill, prefix reuse and verification of drafts are the same call. */
struct batch_item {
    const int32_t *tokens; int n_tokens;    /* >= 1 */
    /* If tokens is NULL, n_tokens is 1, and the token is still unknown: the step that was launched
     * last (see `begin`) draws it from row `follows` of its logits. */
    int follows;
    /* absolute position of tokens[0]; keys and values of [0, pos) are cached already */
    int pos;
    const int32_t *table;                   /* KV block numbers: position p is in block table[p / KV_BLOCK] */
    /* If n_window_blocks > 0: the block table of the layers with a window, or of the tail
     * (config_tail()).  Only two kinds of entries are valid: those of the sinks' blocks, and those
     * of blocks that these tokens attend to. */
    const int32_t *window_table;
    /* Models with recurrent layers: index of the recurrent state after tokens [0, pos), which these
     * tokens update.  At pos 0 the state is initialized first.  No two items of a batch have the
     * same index. */
    int state;
    /* With n_logits 1: options with which the backend may draw the next token itself instead of
     * returning logits (draw.h); NULL: the backend returns logits. */
    struct draw *draw;
    /* logits are wanted for this number of the last tokens, 0..n_tokens */
    int n_logits;
    /* With backend_options.pages: tokens before this position attend to all tokens. */
    int exact_until;
    /* number of the sequence's LoRA adapter, counted from 1 (model/lora.h); 0: none */
    int lora;
    /* Length of the whole sequence as far as it is known; 0: pos + n_tokens.  LongRoPE chooses its
     * factors by this length, so a sequence that reaches config_long_from() is recomputed from
     * position 0. */
    int seq_len;
    /* Encoders, where an item is a whole sequence: position of the first token of the second text
     * of a pair; 0: there is one text.  The second text's tokens have token type 1 if the model has
     * token types. */
    int second;
    /* For a layer that predicts further tokens (config.predicts): the final hidden states of the
     * tokens before these, [n_tokens][hidden_size].  They come from the main model or, for drafted
     * tokens, from the predicting layer itself.  May be the same memory as `hidden`. */
    const float *states;
    /* output: states of the last n_hidden tokens after the final norm, [n_hidden][hidden_size];
     * aux: the states that backend_options.eagle reads */
    float *hidden; int n_hidden, aux;
};
struct batch { const struct batch_item *items; int n_items; };

/* Whether a GPU holds only a window of a model's layers and uploads the others at every step.
 * AUTO: if they do not all fit. */
enum layer_stream { LAYER_STREAM_OFF, LAYER_STREAM_AUTO };
/* Whether a GPU keeps f16 copies of packed weights, which speed up prompts.  AUTO: it keeps them if
 * free memory is at least three times the size of the weights plus 2 GB, and everything else fits
 * beside the copies. */
enum cache_weights { CACHE_WEIGHTS_OFF, CACHE_WEIGHTS_AUTO, CACHE_WEIGHTS_ON };

/* Steps of one token whose layers are one launch on a GPU.  AUTO: of mixtures of experts, and of
 * all models where kernels cannot begin before the kernel before them has ended. */
enum one_launch { ONE_LAUNCH_AUTO, ONE_LAUNCH_ON, ONE_LAUNCH_OFF };

/* 8-bit activations of a GPU, with one scale per token.  INT8: for matrices with one int8 scale per
 * row (i8r).  FP8: E4M3 for fp8 matrices in steps of more than 128 tokens, from compute
 * capability 8.9 on; not with strict. */
enum act_codes { ACT_CODES_NONE, ACT_CODES_INT8, ACT_CODES_FP8 };
static inline const char *act_codes_name(int codes)
{
    return codes == ACT_CODES_INT8 ? "int8" : codes == ACT_CODES_FP8 ? "fp8" : "f16";
}

/* The processors that compute the experts of a GPU's layers: both, each some of them; the CPU
 * alone; the GPU alone; both, but no expert stays on the GPU. */
enum moe_place { MOE_HYBRID, MOE_CPU, MOE_GPU, MOE_PASSING };
enum { EXPERT_UPLOADS_AUTO = -1 };

/* Several GPUs: a pipeline of stages, each with consecutive layers of those that GPUs compute.  A
 * stage is one GPU, or with tp this number of GPUs, which share its layers. */
enum { BACKEND_MOST_GPUS = 8 };
struct backend_gpus {
    int n;                                  /* of all stages; 0, 1: backend_options.device alone */
    int tp;                                 /* 0, 1: a stage is one GPU; else n is a multiple */
    int index[BACKEND_MOST_GPUS];           /* stage after stage */
    /* numbers of layers of the stages; all 0: evenly, the first ones take the remainder */
    int layers[BACKEND_MOST_GPUS];
    int rank;                               /* set by the backend, for the options of each rank */
};

/* Functions that get the results of a step, called by the thread that runs it.  A GPU copies them
 * to the host and waits after every layer. */
struct step_watch {
    void *user;
    /* x [n_tokens][cols]: the states behind a layer; layer -1: the embeddings */
    void (*states)(void *user, int layer, const float *x, int n_tokens, int cols);
    /* id, weight [n_tokens][top_k]: the experts that a layer chose */
    void (*experts)(void *user, int layer, const int *id, const float *weight, int n_tokens, int top_k);
    /* logits [n_rows][cols]; of the CPU only, because a GPU may draw tokens itself; may be NULL */
    void (*logits)(void *user, const float *logits, int n_rows, int cols);
};

struct eagle;
struct backend_options {
    const struct step_watch *watch;         /* borrowed until close; NULL: none */
    /* Heads that read the model's states (model/eagle.h), for batch_item.aux; NULL: none.
     * Borrowed until close; CPU only. */
    const struct eagle *eagle;
    int n_threads;                          /* 0: all processors */
    struct kv_types kv;
    int n_blocks;                           /* KV blocks of 16 tokens, for all layers together */
    /* Number of separate blocks for layers with a window (config_layer_window()), or for the tail
     * (config_tail()); 0: these layers use the common blocks, and there is no tail.  copy_block,
     * drop_block, save_block and load_block take window block w as block n_blocks + w. */
    int n_window_blocks;
    /* Every layer attends to at most the newest `window` tokens and the first `sinks` tokens, which
     * are given the positions just before the window; window 0: the model's own windows.  Needs
     * n_window_blocks. */
    int window, sinks;
    /* Layers without a window attend to the first and the newest tokens and to this number of KV
     * blocks between them, chosen for each token (cpu_pages.c); a multiple of 4.  0: to all.  See
     * batch_item.exact_until. */
    int pages;
    /* Causal; tokens attend by it in layers without a window, and its unit is PATTERN_UNIT; unit 0:
     * they attend to all tokens. */
    struct sparse_pattern pattern;
    /* states of sequences with recurrent layers, config_state_bytes() each; 0 for other models */
    int n_states;
    int max_tokens;                         /* most tokens in one batch */
    int max_logits;                         /* most rows of logits in one batch */
    int exact;                              /* f32 activations and the weights as stored */
    const char *kernels;                    /* NULL: the fastest this machine runs */
    /* most bytes of the model's file that may be resident; 0: no limit */
    size_t max_weights;
    int device;                             /* index of the GPU; the CPU has one */
    struct backend_gpus gpus;
    /* The last device_layers layers and the head run on the GPU, the others on the CPU; 0: all
     * layers run on the GPU. */
    int device_layers;
    /* moe: enum moe_place.  gpu_experts: number of experts of each layer on the GPU with
     * MOE_HYBRID; 0: as many as fit. */
    int moe, gpu_experts;
    /* Experts that the GPU lacks: in a step of at least prefill_threshold tokens (0: by
     * the measured speeds of link and CPU, see plan/expert_threshold.h; with `strict`
     * EXPERT_THRESHOLD) the GPU computes them, too, and each is uploaded once for each layer; never
     * with no_gpu_prefill, nor with MOE_CPU and `strict` together.
     * expert_uploads: in other steps, the part of the chosen experts, in percent, that is uploaded
     * for the GPU, or EXPERT_UPLOADS_AUTO: by the measured speeds of link and CPU; the CPU computes
     * the others.  With MOE_CPU it computes all, otherwise with `strict` none. */
    int prefill_threshold, no_gpu_prefill, expert_uploads;
    /* most bytes of memory to take of each GPU; 0: all that is free */
    size_t max_device;
    /* Make a GPU's results independent of chunks, prefixes and the number of tokens in a step.  The
     * CPU's results always are. */
    int strict;
    int debug_sync;                         /* wait after every kernel of a GPU, so that a failure names it */
    /* multiply many tokens by wgmma on compute capability 9.0 */
    int wgmma;
    /* let a kernel of a step begin only when the one before it has ended, also where the GPU could
     * overlap them */
    int no_dependent_launches;
    int one_launch;                         /* enum one_launch, of a GPU */
    int cache_weights;                      /* enum cache_weights, of a GPU */
    /* layer_stream: enum layer_stream, of a GPU; stream_window: the number of layers in its memory,
     * 0: as many as fit; stream_prefetch: the number of layers that are uploaded ahead; with
     * stream_sequential, all layers pass through the window, else as many as possible stay */
    int layer_stream, stream_window, stream_prefetch, stream_sequential;
    /* launch a GPU's decoding steps kernel by kernel, without graphs */
    int no_graphs;
    int act_codes;                          /* enum act_codes; GPU only */
};

/* Graphs of steps that only decode, recorded once and replayed.  Element i: steps of up to 2^i
 * sequences. */
enum { BACKEND_BUCKETS = 7 };
struct backend_graphs {
    /* the reason why there are no graphs, static; NULL: they are possible */
    const char *off;
    /* Counts since open.  A bucket has a graph for each power of two of the context length. */
    int captured[BACKEND_BUCKETS];
    uint64_t replays[BACKEND_BUCKETS];
    /* graphs for which the device had no memory; their steps are launched kernel by kernel */
    int refused;
};

/* A model with more layers than fit in a device's memory: a window of them is there. */
struct backend_stream {
    /* layers in the window, of GPUs that share layers the smallest one, 0: all layers fit, and the
     * other fields are 0.  kept: those that always stay; the others are slots, through which all
     * other layers pass.  given_back: layers by which the window is smaller than at first, because
     * memory is short */
    int window, kept, slots, prefetch, given_back;
    /* static: "adaptive", "sequential" */
    const char *strategy;
    /* counts since open: see window_counts (plan/layer_window.h) */
    uint64_t uses, hits, evictions;
    uint64_t bytes;                         /* uploaded, the weights that stay included */
    /* time in which steps waited for copies to be queued, and threads for the link */
    uint64_t step_wait_ns, link_wait_ns;
};

/* Experts of a GPU's layers that the GPU does not hold all at once: counts since open. */
struct backend_experts {
    /* choices whose expert was on the GPU, and was not, in steps whose experts were not uploaded */
    uint64_t hits, misses;
    /* experts that moved to the GPU because they were chosen often; experts uploaded for long
     * prompts; experts uploaded because a step chose them */
    uint64_t moved, moved_bytes, streamed, streamed_bytes, uploaded, uploaded_bytes;
};

/* One of several GPUs. */
struct backend_rank {
    char name[64];
    int index, first_layer, n_layers;
    size_t weights, kv, work, total;        /* bytes */
    /* hidden states arrive directly from the GPU of the stage before, with tp partial sums from all
     * others of the stage, too; 0: through the host, or only this GPU is in the first stage */
    int direct;
    int n_heads, n_experts;                 /* query heads and experts of each of its layers */
};

/* Memory that a backend takes of its devices together, and when all of them were ready. */
struct backend_device {
    /* "NVIDIA H200": borrowed until close; NULL: no device, only the CPU */
    const char *name;
    /* index: the device's index, of several the first one's; n_layers: number of layers that the
     * devices compute; n_experts: number of experts of each of these that they have, at least */
    int index, n_layers, n_experts;
    int n_ranks; struct backend_rank ranks[BACKEND_MOST_GPUS];
    int tp;                                 /* GPUs that share every layer; 0: one has it */
    struct backend_experts experts;
    /* tokens of a step from which all experts that the device lacks are uploaded, of several the
     * smallest number, and its source, static ("measured"); 0 and NULL: they never are */
    int prefill_threshold; const char *threshold_from;
    size_t weights, cached, kv, work, reserve;      /* bytes: see gpu_plan */
    /* bytes by which the free memory of the devices fell while the backend opened, by whatever
     * program; 0: unknown */
    size_t taken;
    /* the reason why there is no f16 weight cache, static; NULL: there is one */
    const char *cache_off;
    size_t total;                           /* bytes of the device's memory */
    int lost;                               /* a device has failed; all further work is refused */
    struct backend_stream stream;
    struct backend_graphs graphs;
    /* clock_ns() when opening began, when the context existed and when the weights were copied;
     * copied_ns 0: not yet */
    uint64_t begun_ns, context_ns, copied_ns;
};

enum { BACKEND_STEP_TOKENS = 512 };
struct backend {
    const char *name;                       /* "cpu" */
    int always_strict;                      /* results are always as with options.strict */
    int windows;                            /* supports window blocks */
    int tails;                              /* supports them for the tail (config_tail()) only */
    int pages;                              /* supports attention to pages and by patterns */
    /* Allocate the memory for the model's LoRA adapters; called between two steps after some were
     * added. Returns 0; -1 with *e.  NULL: the backend does not run models with adapters. */
    int (*loras)(void *b, struct err *e);
    /* Returns the number of tokens in a step if the caller does not choose one.  max_len: tokens of
     * all contexts together; kernels: as in backend_options.  NULL: the number is
     * BACKEND_STEP_TOKENS. */
    int (*step_tokens)(const struct config *c, int n_threads, int64_t max_len, const char *kernels);
    /* model is borrowed until close.  All memory is taken here; forward allocates nothing. */
    void *(*open)(const struct model *m, const struct backend_options *o, struct err *e);
    /* Run the batch and wait for it.  logits: output, [sum of n_logits][vocab_size] f32 in order of
     * items.  Returns 0, or -1 with *e. */
    int (*forward)(void *b, const struct batch *batch, float *logits, struct err *e);
    /* Launch a step without waiting for it; NULL: not supported.  Returns 1 if the step was
     * launched (the batch may then be freed); 0 if nothing was done because only forward can run
     * it; -1 with *e.
     *
     * Every item has one row of logits and a draw.  An item's token may be one that the step
     * launched last draws (batch_item.follows), unless forward ran since then.  At most two steps
     * may be launched and not ended. */
    int (*begin)(void *b, const struct batch *batch, struct err *e);
    /* Wait for the oldest step that was launched, and store its tokens in the draws of its items.
     * Logits are not returned: if a token stays -1 (it could not be drawn), the caller computes the
     * same step again with forward. batch NULL: discard the results. */
    int (*end)(void *b, const struct batch *batch, struct err *e);
    int (*copy_block)(void *b, int32_t from, int32_t to, struct err *e);
    size_t (*memory)(const void *b);        /* bytes of private memory in use, KV included */
    size_t (*kv_bytes)(const void *b);
    const char *(*describe)(const void *b); /* "cpu avx512, 2 threads" */
    void (*close)(void *b);
    /* Return the memory of a block, whose contents are no longer needed, to the system until the
     * block is written again.  NULL: not supported. */
    void (*drop_block)(void *b, int32_t block);
    /* NULL: the backend does not run models with recurrent layers */
    int (*copy_state)(void *b, int from, int to, struct err *e);
    void (*drop_state)(void *b, int state);     /* like drop_block, for a state */
    void (*device)(const void *b, struct backend_device *d);    /* NULL: there is no device */
    /* Copy a block or a state out of the backend's memory and back.  Sizes: config_kv_bytes(), or
     * with window blocks config_block_bytes() and config_window_bytes(), and with pages
     * config_page_bytes() more for each block; config_state_bytes().
     * The bytes are valid only for the same backend, model, types of keys and values, and
     * describe().  NULL: not supported. */
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
