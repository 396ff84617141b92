/* cpu.h - the CPU backend's own doors: watching the inputs of linear layers (calibration), and
 * running single layers. */
#ifndef ZSE_CPU_CPU_H
#define ZSE_CPU_CPU_H

#include "libcommon/base/pool.h"
#include "libcommon/engine/backend.h"
#include "libcommon/kernels/kernels.h"

/* Inputs of linear layers, called from the caller's thread before each is multiplied: x
 * [n_tokens, ldx], cols valid.  role: ROLE_Q (q, k and v share their input; of latent attention
 * q_a or q, and kv_a), ROLE_Q_A (what q reads behind q_a), ROLE_O, ROLE_GATE (gate and up;
 * ROLE_UP where there is no gate), ROLE_DOWN, ROLE_HEAD.  cpu_layers_run takes its windows one
 * after the other: every input comes once for each window, n_tokens = window_len, in order of
 * the windows.  A non-zero answer says that the rest of the layer is not needed for this window
 * (the next one still comes); x then holds anything.  (Other callers of a hook may ignore the
 * answer.) */
struct cpu_hook {
    int (*input)(void *user, int layer, int role, const float *x, size_t ldx, int n_tokens, int cols);
    void *user;
    /* The same of one expert, for the tokens that go there: role ROLE_EXPERT_GATE (gate and up)
     * or ROLE_EXPERT_DOWN.  NULL: not wanted. */
    void (*expert)(void *user, int layer, int expert, int role, const float *x, size_t ldx, int n_tokens, int cols);
};
/* Before the first forward; NULL ends it. */
void cpu_set_hook(void *backend, const struct cpu_hook *hook);

/* From now on count the tokens that each expert gets: [n_layers][n_experts], all 0 at first;
 * called again, from 0 again.  Borrowed until close.  NULL with *e where there are no experts or
 * no memory. */
const unsigned *cpu_count_experts(void *backend, struct err *e);

/* ---- the first layers, where a device computes the others ---- A backend for backend_cpu's
 * functions but forward: embedding and layers [0, n_layers), with keys and values of those only. */
void *cpu_first_open(const struct model *m, const struct backend_options *o, int n_layers, struct err *e);
/* The hidden states that enter layer n_layers [tokens of all items][hidden_size]: borrowed until
 * the next call; NULL with *e. */
const float *cpu_first_forward(void *backend, const struct batch *batch, struct err *e);

/* Experts that come from the file as they are used (backend_options.max_weights), since the
 * opening; all 0 where none do. */
struct cpu_streamed {
    uint64_t max_bytes;                 /* of them in memory */
    uint64_t wanted, there;             /* how often a layer of a step wanted one, and had it in memory */
    uint64_t guessed, guessed_right;    /* experts that a layer was thought to want, and did */
    uint64_t bytes, read_ns;            /* brought in, and the time that took */
};
void cpu_streamed(void *backend, struct cpu_streamed *s);

/* Bytes that the activations of a step may take: 26 MB; of a model with experts, which meet few
 * of a step's tokens each, more where it is large: a 64th of its weights in 4 bits, at most 256
 * MB. */
enum { CPU_STEP_LEAST = 26 << 20 };
size_t cpu_step_memory(const struct config *c);
/* backend.step_tokens: 512, or as many as that memory allows (at least 32). */
int cpu_step_tokens(const struct config *c, int n_threads, int64_t max_len, const char *kernels);

/* ---- single layers, for quantization layer by layer ---- A stack of equal windows: x
 * [n_windows * window_len, hidden_size], each window a fresh sequence from position 0. */
struct cpu_layers;
struct cpu_layers *cpu_layers_open(const struct config *c, int n_windows, int window_len, int n_threads,
                                   const char *kernels, struct err *e);
void cpu_layers_close(struct cpu_layers *l);
/* Bytes that it holds so far: rounded inputs come with the first run. */
size_t cpu_layers_memory(const struct cpu_layers *l);
/* x = block(x) with these weights, f32 activations if exact. hook may be NULL (its layer argument
 * is `index`). */
int cpu_layers_run(struct cpu_layers *l, int index, const struct layer *w, int exact, float *x,
                   const struct cpu_hook *hook, struct err *e);
/* The feed-forward part of a layer with experts, whose weights need be there one at a time only.
 * f32 activations.  h [n][ldh]: what enters router and experts; x [n][hidden_size] += what the
 * shared MLP makes of it.  *c says which experts the tokens go to: released by
 * cpu_choice_release() if it succeeds. */
struct cpu_choice {
    int *first;                         /* [n_experts + 1] those of expert i are first[i] to first[i + 1] - 1 of */
    int *token; float *share;           /* the rows of h, ascending, and the weights of what the expert makes of them */
};
int cpu_layers_choose(struct cpu_layers *l, int index, const struct layer *w, const float *h, size_t ldh, float *x,
                      int n, struct cpu_choice *c, const struct cpu_hook *hook, struct err *e);
void cpu_choice_release(struct cpu_choice *c);
/* x += what w->experts[expert] makes of the tokens that go there. */
void cpu_layers_expert(struct cpu_layers *l, int index, const struct layer *w, int expert, const float *h, size_t ldh,
                       float *x, const struct cpu_choice *c, const struct cpu_hook *hook);
/* What an expert's down reads for rows h [n][ldh]: mid [n][ldm], of which intermediate_size
 * columns are written. */
void cpu_layers_expert_mid(struct cpu_layers *l, const struct expert *x, const float *h, size_t ldh, int n, float *mid,
                           size_t ldm);
/* x = embedding rows (and what follows before layer 0) of ids [n_windows * window_len]. Needs
 * embed, pos_embed, embed_norm of m. */
int cpu_layers_embed(struct cpu_layers *l, const struct model *m, const int32_t *ids, float *x, struct err *e);
/* The final norm and the head for rows x [n][hidden_size], n at most window_len: logits
 * [n][vocab_size]. */
int cpu_layers_logits(struct cpu_layers *l, const struct model *m, int exact, const float *x, int n, float *logits,
                      struct err *e);
const struct kernels *cpu_layers_kernels(struct cpu_layers *l);

#endif
