/* cpu.h - functions of the CPU backend that struct backend lacks: hooks on the inputs of linear
 * layers (calibration), running the first layers if a device runs the others, and running single
 * layers. */
#ifndef ZSE_CPU_CPU_H
#define ZSE_CPU_CPU_H

#include "libcommon/base/pool.h"
#include "libcommon/engine/backend.h"
#include "libcommon/kernels/kernels.h"

/* A hook on the inputs of linear layers, called by the caller's thread before each multiplication.
 *   x [n_tokens, ldx]   the input, cols valid columns
 *   role   ROLE_Q (for q, k and v; with latent attention for q_a or q, and kv_a), ROLE_Q_A (the
 *          input of q after q_a), ROLE_O, ROLE_STATE_O (of a state beside attention), ROLE_GATE
 *          (for gate and up; ROLE_UP if there is no gate), ROLE_DOWN, ROLE_EXPERT_GATE (for all
 *          experts, if they are beside an MLP), ROLE_HEAD
 * cpu_layers_run calls it for each input of each window, in the order of the windows, with n_tokens
 * = window_len.  If it returns non-zero, the rest of the layer is skipped for this window only,
 * and x of the window is undefined.  Other callers may ignore the result. */
struct cpu_hook {
    int (*input)(void *user, int layer, int role, const float *x, size_t ldx, int n_tokens, int cols);
    void *user;
    /* The inputs of one expert, for the tokens routed to it: role ROLE_EXPERT_GATE (gate and up) or
     * ROLE_EXPERT_DOWN.  May be NULL. */
    void (*expert)(void *user, int layer, int expert, int role, const float *x, size_t ldx, int n_tokens, int cols);
};

/* Start counting the tokens routed to each expert.  Returns the counts [n_layers][n_experts], all
 * 0, borrowed until close; another call sets them to 0 again.  NULL with *e if the model has no
 * experts or memory is short. */
const unsigned *cpu_count_experts(void *backend, struct err *e);

/* ---- the first layers, if a device computes the others ----
 * The result can be passed to all functions of backend_cpu except forward.  It computes the
 * embedding and layers [0, n_layers), and holds keys and values of these layers only.  experts: it
 * also computes experts of later layers, for cpu_experts_run(); n_layers may then be 0. */
void *cpu_first_open(const struct model *m, const struct backend_options *o, int n_layers, int experts, struct err *e);
/* Returns the hidden states that enter layer n_layers, [tokens of all items][hidden_size], borrowed
 * until the next call; NULL with *e. */
const float *cpu_first_forward(void *backend, const struct batch *batch, struct err *e);
/* Compute experts of a layer whose router runs on the device.  h [n][width]: the input of the
 * experts of n <= max_tokens tokens, width: config_expert_width(); id, weight [n * top_k]: their
 * choices.  A choice below 0 is left out.  Row i of out [choices that are not left out][width] is
 * set to the result of the i-th choice that is not, before it is weighed.  Returns their number.  A
 * result has the same bits in every batch. */
int cpu_experts_run(void *backend, int layer, const float *h, const int32_t *id, const float *weight, int n,
                    float *out);

/* Statistics, since the backend was opened, of experts that are read from the file on demand
 * (backend_options.max_weights); all 0 if there are no such experts. */
struct cpu_streamed {
    uint64_t max_bytes;                 /* most bytes of experts in memory */
    /* number of times that a layer of a step needed an expert, and that the expert was in memory */
    uint64_t wanted, there;
    /* experts prefetched by a guess, and how many of these were needed */
    uint64_t guessed, guessed_right;
    uint64_t bytes, read_ns;            /* bytes read, and the time it took */
};
void cpu_streamed(void *backend, struct cpu_streamed *s);

/* Weights that pass through memory (backend_options.max_weights), without the experts that are read
 * on demand: counts since the backend was opened; all 0 if everything fits. */
struct cpu_passing {
    int parts, kept;                    /* layers and slices of the head; those that stay in memory */
    /* times that a step came to a part that does not stay; that its reading had begun before; that
     * it had ended */
    uint64_t uses, hits, ready;
    uint64_t evictions, bytes;          /* parts dropped after use; bytes of the parts used */
};
void cpu_passing(void *backend, struct cpu_passing *p);

/* Memory for the activations of a step: 26 MB.  A large model with experts, each of which gets few
 * of a step's tokens, may take more: a 64th of the size of its weights in 4 bits, at most 256
 * MB. */
enum { CPU_STEP_LEAST = 26 << 20 };
size_t cpu_step_memory(const struct config *c);
/* Memory that LoRA adapters of at most this rank need in addition to the activations; n_threads 0:
 * one for each processor. */
size_t cpu_lora_memory(int rank, int max_tokens, int n_threads);
/* The value of backend.step_tokens: 512, or as many tokens as that memory allows (at least 32). */
int cpu_step_tokens(const struct config *c, int n_threads, int64_t max_len, const char *kernels);

/* ---- single layers, for quantization layer by layer ----
 * Windows of equal length: x [n_windows * window_len, hidden_size].  Each window is a sequence of
 * its own that starts at position 0. */
struct cpu_layers;
struct cpu_layers *cpu_layers_open(const struct config *c, int n_windows, int window_len, int n_threads,
                                   const char *kernels, struct err *e);
void cpu_layers_close(struct cpu_layers *l);
/* Bytes allocated so far; buffers of quantized inputs are allocated by the first run. */
size_t cpu_layers_memory(const struct cpu_layers *l);
/* Returns the bytes of a window, besides x, that must be kept from one layer to the next: per-layer
 * embeddings, residual streams, keys and values that later layers read.  0 for most models.  A
 * model that keeps any such bytes runs one window at a time: open it with n_windows 1. */
size_t cpu_layers_kept(const struct cpu_layers *l);
/* Keep the bytes of cpu_layers_kept() at `kept` (64-byte aligned, the caller's) from now on; NULL:
 * in memory that l owns.  cpu_layers_embed() fills them. */
void cpu_layers_keep(struct cpu_layers *l, void *kept);
/* Set the token of each row of x in later calls: of all windows, or of the n rows of a call that
 * takes n.  Borrowed; NULL: token 0 for every row.  Layers that choose experts by token or have
 * n-gram embeddings need them. */
void cpu_layers_tokens(struct cpu_layers *l, const int32_t *ids);
/* The part of the bytes of cpu_layers_kept() that holds the residual streams; *bytes 0: there are
 * none.  If a hook ends a run early, the streams are only partly updated. */
void *cpu_layers_streams(struct cpu_layers *l, size_t *bytes);
/* x = layer(x) with these weights; with `exact`, in f32 activations.  hook may be NULL; its
 * argument `layer` is `index`. */
int cpu_layers_run(struct cpu_layers *l, int index, const struct layer *w, int exact, float *x,
                   const struct cpu_hook *hook, struct err *e);
/* The following functions compute the feed-forward half of a layer with experts in f32 activations,
 * with the weights of one expert in memory at a time.  h [n][ldh] is the input of router and
 * experts; the output of the shared MLP is added to x [n][hidden_size].  *c receives the routing;
 * on success free it with cpu_choice_release(). */
struct cpu_choice {
    /* [n_experts + 1]: elements first[i] .. first[i + 1] - 1 of `token` and `share` belong to
     * expert i */
    int *first;
    /* rows of h, ascending for each expert, and the router's weights for the expert's outputs */
    int *token; float *share;
};
int cpu_layers_choose(struct cpu_layers *l, int index, const struct layer *w, const float *h, size_t ldh, float *x,
                      int n, struct cpu_choice *c, const struct cpu_hook *hook, struct err *e);
/* x += norm(y) for n tokens, if the layer has a norm after its experts; y is overwritten. */
void cpu_layers_add(struct cpu_layers *l, const struct layer *w, float *y, float *x, int n);
/* For experts beside an MLP, after a hook on ROLE_EXPERT_GATE has ended the run of the layer.
 * cpu_layers_router() computes the router's input, out [n][hidden_size], from x.
 * cpu_layers_finish() runs the rest of the layer for one window; it overwrites `experts`, the sum
 * of the experts' outputs.  With hyper-connections it only adds x to the residual streams: the
 * caller has added the experts' outputs to x before. */
void cpu_layers_router(struct cpu_layers *l, const struct layer *w, const float *x, float *out, int n);
void cpu_layers_finish(struct cpu_layers *l, int index, const struct layer *w, float *experts, float *x);
/* moe.latent, in f32 activations, for n tokens: compute the experts' input, out [n][ldo], from h;
 * x += l (latent_out) applied to sum [n][latent]. */
void cpu_layers_latents(struct cpu_layers *l, const struct layer *w, const float *h, size_t ldh, int n, float *out,
                        size_t ldo);
void cpu_layers_add_latents(struct cpu_layers *l, const struct linear *w, const float *sum, float *x, int n);
void cpu_choice_release(struct cpu_choice *c);
/* x += the output of w->experts[expert] for the tokens routed to it.  With moe.latent, h holds the
 * experts' inputs of cpu_layers_latents(), and x is the sum for cpu_layers_add_latents(). */
void cpu_layers_expert(struct cpu_layers *l, int index, const struct layer *w, int expert, const float *h, size_t ldh,
                       float *x, const struct cpu_choice *c, const struct cpu_hook *hook);
/* Compute the input of an expert's down for rows h [n][ldh]: mid [n][ldm], of which
 * intermediate_size columns are written. */
void cpu_layers_expert_mid(struct cpu_layers *l, const struct expert *x, const float *h, size_t ldh, int n, float *mid,
                           size_t ldm);
/* x = input of layer 0 for ids [n_windows * window_len]: embeddings, positions, norm.  Needs embed,
 * pos_embed, embed_norm of m. */
int cpu_layers_embed(struct cpu_layers *l, const struct model *m, const int32_t *ids, float *x, struct err *e);
/* Models with several residual streams: x = the output of the last layer, merged from the
 * streams. */
void cpu_layers_merge(struct cpu_layers *l, const struct model *m, float *x);
/* Apply the final norm and the head to rows x [n][hidden_size], n <= window_len: logits
 * [n][vocab_size]. */
int cpu_layers_logits(struct cpu_layers *l, const struct model *m, int exact, const float *x, int n, float *logits,
                      struct err *e);
const struct kernels *cpu_layers_kernels(struct cpu_layers *l);

#endif
