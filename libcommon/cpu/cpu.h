/* cpu.h - the CPU backend beyond struct backend: hooks on the inputs of linear layers
 * (calibration), the first layers beside a device, and single layers. */
#ifndef ZSE_CPU_CPU_H
#define ZSE_CPU_CPU_H

#include "libcommon/base/pool.h"
#include "libcommon/engine/backend.h"
#include "libcommon/kernels/kernels.h"

/* A hook on the inputs of linear layers, called from the caller's thread before each of them is
 * multiplied.
 *   x [n_tokens, ldx]   the input, cols valid columns
 *   role   ROLE_Q (q, k and v share it; latent attention: q_a or q, and kv_a), ROLE_Q_A (the input
 *          of q behind q_a), ROLE_O, ROLE_STATE_O (of a state beside attention), ROLE_GATE (gate
 *          and up; ROLE_UP where there is no gate), ROLE_DOWN, ROLE_HEAD
 * cpu_layers_run passes every input once for each window, n_tokens = window_len, in the order of
 * the windows.  If the hook returns non-zero, the rest of the layer is skipped for this window (the
 * next window still runs), and x then holds anything.  Other callers may ignore the result. */
struct cpu_hook {
    int (*input)(void *user, int layer, int role, const float *x, size_t ldx, int n_tokens, int cols);
    void *user;
    /* The inputs of one expert, for the tokens routed to it: role ROLE_EXPERT_GATE (gate and up)
     * or ROLE_EXPERT_DOWN. NULL: not wanted. */
    void (*expert)(void *user, int layer, int expert, int role, const float *x, size_t ldx, int n_tokens, int cols);
};
/* Call it before the first forward; NULL removes the hook. */
void cpu_set_hook(void *backend, const struct cpu_hook *hook);

/* Start to count the tokens routed to each expert: [n_layers][n_experts], all 0 at first;
 * another call starts again from 0. Borrowed until close. NULL with *e if the model has no
 * experts or memory is short. */
const unsigned *cpu_count_experts(void *backend, struct err *e);

/* ---- the first layers, where a device computes the others ----
 * A backend for backend_cpu's functions but forward: embedding and layers [0, n_layers), with the
 * keys and values of those only. */
void *cpu_first_open(const struct model *m, const struct backend_options *o, int n_layers, struct err *e);
/* The hidden states that enter layer n_layers [tokens of all items][hidden_size]: borrowed until
 * the next call; NULL with *e. */
const float *cpu_first_forward(void *backend, const struct batch *batch, struct err *e);

/* Statistics of experts that are read from the file on demand (backend_options.max_weights),
 * since the backend was opened; all 0 if none are. */
struct cpu_streamed {
    uint64_t max_bytes;                 /* most bytes of experts in memory */
    uint64_t wanted, there;             /* how often a layer of a step needed an expert, and found it in memory */
    uint64_t guessed, guessed_right;    /* experts prefetched for a layer by a guess, and of those the ones it needed */
    uint64_t bytes, read_ns;            /* bytes read, and the time it took */
};
void cpu_streamed(void *backend, struct cpu_streamed *s);

/* Bytes that the activations of a step may take: 26 MB. A large model with experts, each of
 * which gets few of a step's tokens, may take more: a 64th of its weights in 4 bits, at most 256
 * MB. */
enum { CPU_STEP_LEAST = 26 << 20 };
size_t cpu_step_memory(const struct config *c);
/* backend.step_tokens: 512, or as many as that memory allows (at least 32). */
int cpu_step_tokens(const struct config *c, int n_threads, int64_t max_len, const char *kernels);

/* ---- single layers, for quantization layer by layer ----
 * Windows of equal length: x [n_windows * window_len, hidden_size], each window a sequence of its
 * own from position 0. */
struct cpu_layers;
struct cpu_layers *cpu_layers_open(const struct config *c, int n_windows, int window_len, int n_threads,
                                   const char *kernels, struct err *e);
void cpu_layers_close(struct cpu_layers *l);
/* Bytes allocated so far; room for quantized inputs is allocated by the first run. */
size_t cpu_layers_memory(const struct cpu_layers *l);
/* x = layer(x) with these weights, in f32 activations if exact. hook may be NULL; its layer
 * argument is `index`. */
int cpu_layers_run(struct cpu_layers *l, int index, const struct layer *w, int exact, float *x,
                   const struct cpu_hook *hook, struct err *e);
/* The feed-forward half of a layer with experts, one expert's weights in memory at a time, in f32
 * activations.  h [n][ldh] is the input of router and experts; the output of the shared MLP is
 * added to x [n][hidden_size].  *c says which experts the tokens go to; on success free it with
 * cpu_choice_release(). */
struct cpu_choice {
    int *first;                         /* [n_experts + 1] the tokens of expert i are first[i] .. first[i + 1] - 1 of */
    int *token; float *share;           /* rows of h, ascending, and the router's weights for the expert's outputs */
};
int cpu_layers_choose(struct cpu_layers *l, int index, const struct layer *w, const float *h, size_t ldh, float *x,
                      int n, struct cpu_choice *c, const struct cpu_hook *hook, struct err *e);
/* x += norm(y) for n tokens, where the layer has a norm behind its experts; y is overwritten. */
void cpu_layers_add(struct cpu_layers *l, const struct layer *w, float *y, float *x, int n);
void cpu_choice_release(struct cpu_choice *c);
/* x += the output of w->experts[expert] for the tokens routed to it. */
void cpu_layers_expert(struct cpu_layers *l, int index, const struct layer *w, int expert, const float *h, size_t ldh,
                       float *x, const struct cpu_choice *c, const struct cpu_hook *hook);
/* The input of an expert's down for rows h [n][ldh], to mid [n][ldm], of which intermediate_size
 * columns are written. */
void cpu_layers_expert_mid(struct cpu_layers *l, const struct expert *x, const float *h, size_t ldh, int n, float *mid,
                           size_t ldm);
/* x = what enters layer 0 for ids [n_windows * window_len]: embeddings, positions, norm. Needs
 * embed, pos_embed, embed_norm of m. */
int cpu_layers_embed(struct cpu_layers *l, const struct model *m, const int32_t *ids, float *x, struct err *e);
/* The final norm and the head for rows x [n][hidden_size], n at most window_len: logits
 * [n][vocab_size]. */
int cpu_layers_logits(struct cpu_layers *l, const struct model *m, int exact, const float *x, int n, float *logits,
                      struct err *e);
const struct kernels *cpu_layers_kernels(struct cpu_layers *l);

#endif
