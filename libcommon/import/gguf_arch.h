/* gguf_arch.h - the parts of gguf_config.c: GGUF keys, config.json fields, architectures. */
#ifndef ZSE_IMPORT_GGUF_ARCH_H
#define ZSE_IMPORT_GGUF_ARCH_H

#include "libcommon/import/gguf.h"

/* One translation of the keys of g into the fields of out. */
struct gguf_translator {
    const struct gguf *g;
    const struct source_tensor **by_name;       /* its tensors, sorted by name */
    char arch[64];              /* general.architecture, the prefix of the keys */
    json_t *out;
    struct err *bad;            /* the first error of a key that was read without an err */
    int64_t n_blocks;           /* block_count; n_layers leaves out layers that predict further tokens (MTP) */
    int64_t n_layers, hidden, heads, kv_heads, head_dim, value_dim, n_rot, ff, context;
    int hybrid;                 /* some keys have one number for each layer, 0 for layers without the part */
};

/* ---- gguf_keys.c: keys, given without "ARCH.", and fields ---- */

/* Write "ARCH.KEY", with the name of the architecture, to buf; returns buf. */
const char *gguf_full_key(const struct gguf_translator *t, const char *key, char *buf, size_t room);
int gguf_has_key(const struct gguf_translator *t, const char *key);
const struct source_tensor *gguf_find_tensor(const struct gguf_translator *t, const char *name);        /* NULL: none */
/* Note a fault: the translation fails with the first one. */
void gguf_fail(const struct gguf_translator *t, enum err_code code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* If a key exists but its value is wrong, gguf_key_float(), gguf_key_at(), and gguf_key_int()
 * without an err record the error in the translator. */
double gguf_key_float(const struct gguf_translator *t, const char *key, double otherwise);
/* Read a whole number, or an array that has the same number for every layer.  otherwise < 0: the
 * key must exist.  Returns 0; -1 on failure, and *out keeps its value. */
int gguf_key_int(const struct gguf_translator *t, const char *key, int64_t otherwise, int64_t *out, struct err *e);
/* The number of layer i, for keys that may have one for each layer. */
int64_t gguf_key_at(const struct gguf_translator *t, const char *key, int64_t i, int64_t otherwise);
/* Read real numbers from least to most, one for each layer or one for all, to out[n_layers].
 * Returns 1; 0 without this key, which is given with its prefix; -1 after a fault. */
int gguf_floats(const struct gguf_translator *t, const char *full_key, double least, double most, double *out);
/* The largest number of any layer in a hybrid model; gguf_key_int for all others. */
int gguf_key_most(const struct gguf_translator *t, const char *key, int64_t otherwise, int64_t *out, struct err *e);

void gguf_set_int(struct gguf_translator *t, const char *name, int64_t v);
void gguf_set_bool(struct gguf_translator *t, const char *name, int v);
void gguf_set_string(struct gguf_translator *t, const char *name, const char *v);
/* Returns a number that was an f32, written with the fewest digits that give the same f32 again:
 * 1e-05, not 9.999999747378752e-06.  NULL if it is not finite. */
json_t *gguf_real(double v);
void gguf_set_real(struct gguf_translator *t, const char *name, double v);
/* "layer_types": windows in all layers but every `period`-th, unless a key lists them. */
void gguf_set_layer_types(struct gguf_translator *t, int64_t period);

/* Facts that only the tensors show, one function each: whether layer 0 has "blk.0.PART.bias";
 * whether it has a bias of q, or of q, k and v together; whether the name of some tensor ends in
 * `end`. */
int gguf_has_bias(const struct gguf_translator *t, const char *part);
int gguf_any_attn_bias(const struct gguf_translator *t);
int gguf_any_layer_has(const struct gguf_translator *t, const char *end);
/* Does layer i have the tensor "blk.i.PART"? */
int gguf_layer_has(const struct gguf_translator *t, int64_t i, const char *part);

/* Fields that several architectures have. */
void gguf_copy_int(struct gguf_translator *t, const char *key, const char *name);       /* if it exists */
void gguf_window(struct gguf_translator *t);
void gguf_add_biases(struct gguf_translator *t);
/* Refuse a file without a head (output.weight), for architectures whose models all have one. */
void gguf_check_head(const struct gguf_translator *t);
void gguf_add_experts(struct gguf_translator *t);
/* Write the number of shared experts, the groups of experts, and the factor on the router's
 * weights.  normalizes: 1 if the weights are normalized when no key tells. */
void gguf_add_router(struct gguf_translator *t, int normalizes);
/* Write the number of layers that predict more tokens (MTP), which GGUF counts among the blocks.
 * Returns the number of the other layers. */
int64_t gguf_add_extra_layers(struct gguf_translator *t);
/* The fraction n / of, as a number that gives n again when multiplied by `of` and truncated. */
double gguf_share(int64_t n, int64_t of);

/* Write how the model makes one vector of a text, if it is a model for embeddings. */
void gguf_add_pooling(struct gguf_translator *t);
/* Refuse a direction of attention other than the architecture's. */
void gguf_check_direction(const struct gguf_translator *t);

/* ---- gguf_router.c ---- */

/* The numbers of "expert_gating_func" (GATE_NONE: not given): scores are the softmax of all
 * outputs, their sigmoids, the softmax of only the chosen outputs, or the square roots of their
 * softplus. */
enum gguf_gate { GATE_NONE, GATE_SOFTMAX, GATE_SIGMOID, GATE_CHOSEN, GATE_SQRT_SOFTPLUS, N_GATES };
/* Read the router's scoring function.  A function that the architecture cannot have is an error. */
enum gguf_gate gguf_gate(const struct gguf_translator *t);
/* Refuse a factor on the router's weights that the written fields cannot express. */
void gguf_check_factor(const struct gguf_translator *t);

/* ---- gguf_arch_*.c: fields of single architectures ---- */

void gguf_add_lfm2(struct gguf_translator *t);
void gguf_add_lfm2moe(struct gguf_translator *t);
void gguf_add_mamba2(struct gguf_translator *t);
void gguf_add_granitehybrid(struct gguf_translator *t);
void gguf_add_jamba(struct gguf_translator *t);
void gguf_add_falcon_h1(struct gguf_translator *t);
void gguf_add_nemotron_h(struct gguf_translator *t);
void gguf_add_nemotron_h_moe(struct gguf_translator *t);
void gguf_add_qwen35(struct gguf_translator *t);
void gguf_add_qwen35moe(struct gguf_translator *t);
void gguf_add_qwen3next(struct gguf_translator *t);
void gguf_add_qwen4exp(struct gguf_translator *t);
void gguf_add_kimi_linear(struct gguf_translator *t);
void gguf_add_bailing(struct gguf_translator *t);
void gguf_add_minimax(struct gguf_translator *t);
void gguf_add_gemma2(struct gguf_translator *t);
void gguf_add_gemma3(struct gguf_translator *t);
void gguf_add_gemma3n(struct gguf_translator *t);
void gguf_add_gemma4(struct gguf_translator *t);
void gguf_add_gemma_embedding(struct gguf_translator *t);
void gguf_add_bert(struct gguf_translator *t);
void gguf_add_nomic_bert(struct gguf_translator *t);
void gguf_add_modern_bert(struct gguf_translator *t);

/* ---- gguf_arch.c: the architectures ---- */

void gguf_add_granite(struct gguf_translator *t);
/* Write the sizes of latent attention (MLA).  Files that store kv_b in two parts have the sizes of
 * a head under other keys. */
void gguf_add_latent(struct gguf_translator *t);

/* The names of the fields that hold an architecture's sizes. */
enum gguf_spelling {
    SPELLING_CURRENT,           /* hidden_size, num_hidden_layers ... */
    SPELLING_HYBRID,            /* as SPELLING_CURRENT, but keys may have one number for each layer */
    SPELLING_VALUES,            /* as SPELLING_HYBRID, and values may have other sizes than keys */
    SPELLING_GPT2,              /* n_embd, n_layer ... */
    SPELLING_OWN,               /* add() writes these fields */
};

/* ROPE_ONE: the same rotary positions in all layers; ROPE_TWO: one set for layers of full
 * attention, one for layers with a window. */
enum { ROPE_ONE = 1, ROPE_TWO };

struct gguf_arch {
    const char *gguf, *model_type, *class_name;         /* general.architecture; "model_type" and "architectures" */
    const char *eps, *act_key, *act;            /* names of the fields for the norm's epsilon and
                                                 * the activation; act: the activation */
    enum gguf_spelling spelling;
    int rope;                                           /* rope_parameters: ROPE_ONE, ROPE_TWO or 0 */
    void (*add)(struct gguf_translator *t);             /* fields of this architecture; NULL: none */
};
/* NULL: unknown. */
const struct gguf_arch *gguf_arch_find(const char *name);

#endif
