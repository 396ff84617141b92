/* arch.h - an architecture as one row of facts, private to this folder (and plan/shape.c). */
#ifndef ZSE_MODEL_ARCH_H
#define ZSE_MODEL_ARCH_H

#include "libcommon/model/model.h"

/* Values of enum act_kind of kernels.h, which this layer may not include; cpu_linear.c asserts that
 * they agree. */
enum config_act { CONFIG_ACT_SILU, CONFIG_ACT_GELU, CONFIG_ACT_GELU_TANH, CONFIG_ACT_RELU, CONFIG_ACT_RELU2,
                  CONFIG_ACT_GELU_QUICK, CONFIG_ACT_XIELU /* cpu_linear.c computes it */ };

/* How a source stores the experts of a layer. */
enum experts_form {
    EXPERTS_APART,              /* one tensor for each expert */
    EXPERTS_STACKED,            /* all gates [n_experts, rows, cols], all ups, all downs (GGUF) */
    /* STACKED, with gates and ups in one tensor, gate first (granitemoe) */
    EXPERTS_FUSED,
    EXPERTS_FUSED_BARE,         /* FUSED, names without ".weight" (mistral4) */
    EXPERTS_FUSED_IN_OUT,       /* FUSED_BARE, matrices stored as [in, out] (llama4) */
    /* FUSED_IN_OUT, gate and up interleaved column by column (gpt-oss) */
    EXPERTS_PAIRED_IN_OUT,
};

/* Names of the source's tensors without ".weight" and ".bias". NULL: the architecture has no
 * such tensor; "": a norm without weights. */
struct weight_names {
    const char *embed, *pos, *types, *distance_bias, *embed_norm, *embed_in, *embed_out, *final_norm, *head;
    /* dense NULL: the names are those in struct embedding */
    const char *dense, *dense_norm;
    const char *layer;                      /* "layers.": followed by the number and a dot */
    const char *attn_norm, *attn_post_norm, *mlp_norm, *mlp_post_norm, *q_norm, *k_norm;
    const char *attn_sub_norm, *mlp_sub_norm;       /* bitnet: norms of the inputs of o and down */
    const char *qkv;                        /* one matrix for q, k and v, which are then NULL */
    const char *q, *k, *v, *o, *q_gate;
    const char *gate_up;                    /* gate first */
    const char *gate, *up, *down;
    /* multi-head latent attention; kv_b has a head's key rows, then its value rows; a GGUF may
     * store them separately (k_b, v_b) */
    const char *q_a, *q_a_norm, *q_b, *kv_a, *kv_norm, *kv_b, *k_b, *v_b;
    const char *index_q, *index_k, *index_w, *index_norm;
    /* compressed attention; without ".weight", except for the biases */
    const char *comp_value, *comp_score, *comp_norm, *comp_bias, *index_value, *index_score, *index_bias, *o_a;
    /* hyper-connections; whole names, of the model's end, of attention and of the MLP */
    const char *hyper, *hyper_bias, *hyper_scale, *hyper_attn, *hyper_attn_bias, *hyper_attn_scale, *hyper_ff,
        *hyper_ff_bias, *hyper_ff_scale;
    /* hyper-connections with gates (struct hyper.rank); the norms are whole names */
    const char *hyper_norm, *hyper_down, *hyper_up, *hyper_attn_norm, *hyper_attn_down, *hyper_attn_up,
        *hyper_attn_inject, *hyper_ff_norm, *hyper_ff_down, *hyper_ff_up, *hyper_ff_inject;
    /* n-gram embeddings; the norms and the convolution are whole names */
    const char *ngram_embed, *ngram_key, *ngram_value, *ngram_key_norm, *ngram_query_norm, *ngram_conv_norm,
        *ngram_conv, *index_q_norm;
    const char *token_experts;              /* whole name */
    const char *act_alpha_p, *act_alpha_n, *act_beta, *act_eps;     /* whole names */
    const char *sinks;                      /* whole name */
    /* gemma4's experts beside an MLP; whole names except for the norms */
    const char *router_scale, *expert_scale, *dense_post_norm, *expert_norm, *expert_post_norm;
    /* per-layer embeddings: tensors of the model, then of a layer; layer_scale is a whole name */
    const char *ple_embed, *ple_in, *ple_in_norm, *ple_gate, *ple_up, *ple_norm, *layer_scale;
    /* AltUp.  altup_in and altup_out belong to the model, and the number of a stream follows their
     * names.  The others belong to a layer; all of them except altup_norm are whole names (no
     * ".weight" is added) */
    const char *altup_in, *altup_out, *altup_router, *altup_norm, *altup_predict, *altup_correct, *altup_scale;
    const char *laurel_in, *laurel_out, *laurel_norm;
    /* mixture of experts */
    const char *router, *correction /* whole name */, *shared_router, *shared_gate, *shared_up, *shared_down;
    enum experts_form experts_form;
    /* "mlp.experts.", followed by expert_gate and so on; with EXPERTS_APART the number of the
     * expert and a dot come in between */
    const char *experts;
    const char *expert_gate, *expert_up, *expert_down, *latent_in, *latent_out;
    /* one matrix instead of shared_gate and shared_up, which are then NULL; gate first */
    const char *shared_gate_up;
    /* layers with a state.  conv: the name before ".weight" and ".bias"; a_log, dt_bias and d are
     * whole names.  state_o NULL: the output projection is `o` */
    const char *in, *in_ba, *in_z, *gate_a, *in_f, *conv, *a_log, *dt_bias, *d, *gate_norm;
    const char *x_proj, *dt_proj, *dt_norm, *b_norm, *c_norm, *state_o;
    int q_gated;                            /* 1: the rows of q are each head's query, followed by its gate */
    /* 1: the rows of qkv are, for each KV head, its query heads, its key and its value; 0: all q,
     * all k, all v */
    int qkv_grouped;
    int conv1d;                             /* matrices of the layers are stored as [in, out] */
    int gguf_permuted;                      /* 1: a GGUF interleaves the halves of q and k */
};
extern const struct weight_names gguf_names;

/* A cursor for config.json: every key that is looked up counts as known; after the first failure
 * all reads fail. */
struct parse {
    const json_t *json;
    json_t *seen;                           /* keys that were looked up */
    const char *where;                      /* "config.json" or "config.json: rope_parameters" */
    struct err *e;
    int bad;
};
/* Returns the value of the first key that is present and not null, or NULL.  keys: one or several
 * spellings, "num_hidden_layers|n_layer".  *key: the spelling that was found; may be NULL. */
json_t *parse_find(struct parse *p, const char *keys, const char **key);
int64_t parse_int(struct parse *p, const char *keys, int64_t min, int64_t max, int64_t otherwise);
double parse_real(struct parse *p, const char *keys, double otherwise);
int parse_bool(struct parse *p, const char *keys, int otherwise);
const char *parse_string(struct parse *p, const char *keys, const char *otherwise);
void parse_fail(struct parse *p, enum err_code code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Refuse a key that has any other value than this. */
void parse_must_be(struct parse *p, const char *key, int value);
void parse_must_equal(struct parse *p, const char *key, int value);
/* Refuse keys that were not looked up, unless they are null, false or in `ignored`. */
void parse_leftovers(struct parse *p, const char *const *ignored);

struct arch {
    const char *name;                       /* model_type */
    const struct weight_names *names;
    /* defaults of keys that config.json leaves out */
    int vocab_size, hidden_size, intermediate_size /* 0: 4 * hidden_size */;
    int n_layers, n_heads, n_kv_heads /* 0: n_heads */;
    int head_dim /* 0: hidden_size / n_heads */, max_len;
    /* partial: fraction of a head's dimensions that rotate; 0: all */
    double eps, rope_theta, partial;
    const char *act;
    int tied;
    /* facts */
    enum norm_kind norm;
    enum block_kind block;
    enum pos_kind pos;
    enum qk_norm qk_norm;
    int not_gated, rope_pairs, biases;
    int rotary_dim;                         /* gpt-j: number of dimensions that rotate */
    /* phi3: default of original_max_position_embeddings; 0: max_position_embeddings */
    int original_max;
    /* gemma3: base of a second RoPE for layers with a window; 0: none */
    double local_theta;
    int local_plain;                        /* olmo3: frequencies are scaled only in layers without a window */
    int layer_thetas;                       /* granite_swa: a base per layer */
    int rope_reversed;                      /* nanochat: rotates in the other direction */
    int rope_tempers;                       /* ministral3: rope_parameters also scale queries by position */
    /* deepseek_v4: layers with compressed entries have a RoPE table of their own */
    int rope_compress;
    /* phimoe: rope_parameters contain the factors on cos and sin */
    int rope_mscales;
    int ntk_alpha;                          /* hunyuan: rope_type "dynamic" with a fixed alpha */
    /* reads further keys; c is complete except for RoPE */
    void (*more)(struct parse *p, struct config *c);
};
#define ROW(type, table, v, hid, ff, layers, heads, kv, len) \
    .name = type, .names = &table, .vocab_size = v, .hidden_size = hid, .intermediate_size = ff, .n_layers = layers, \
        .n_heads = heads, .n_kv_heads = kv, .max_len = len
#define ROPE(theta) .pos = POS_ROPE, .rope_theta = theta
#define LAYER(bits) .norm = NORM_LAYER, .eps = 1e-5, .biases = bits
/* The tables; each ends with a row without a name. */
extern const struct arch state_archs[];                 /* arch_state.c: layers with a state */
extern const struct arch moe_archs[];                   /* arch_moe.c: mixtures of experts, latent attention */
extern const struct arch hybrid_archs[];                /* arch_hybrid.c: delta nets beside attention */
extern const struct arch mamba_archs[];                 /* arch_mamba.c: Mamba beside attention */
extern const struct arch stream_archs[];                /* arch_streams.c: hyper-connections */
extern const struct arch gemma_archs[];                 /* arch_gemma.c: Gemma 3n and 4 */
extern const struct arch encoder_archs[];               /* arch_encoder.c: BERT and its successors */
const struct arch *arch_find(const char *name);         /* NULL: not found */

/* wrapper.c: a checkpoint that contains a language model, by its outer model_type. */
struct wrapper {
    const char *name;
    /* "a|b": keys that are not about the language model; NULL: none */
    const char *keys;
    /* "a.|b.": prefixes of the names of other tensors */
    const char *tensors;
};
const struct wrapper *wrapper_find(const char *name);               /* NULL: not found */
int wrapper_skips(const struct wrapper *w, const char *tensor);     /* w may be NULL */

extern const char *const arch_ignored[];                /* keys that do not affect results */

/* embedding.c: pooling and dense layers from zse_embedding, or from the head of a classifier. */
void embedding_parse(struct parse *p, struct config *c);

/* RoPE tables from rope_parameters. */
void rope_parse(struct parse *p, const struct arch *a, struct config *c);
/* Read "layer_types", if present, which says which layers see only `window` tokens (0: such layers
 * are refused).  Before the call c->window holds the default. */
void layer_types_parse(struct parse *p, struct config *c, int64_t window);

/* Keys that several architectures use. */
/* sliding_window; 0: missing or null */
int window_parse(struct parse *p, int absent);
void attention_bias_parse(struct parse *p, struct config *c);
void multipliers_parse(struct parse *p, struct config *c);      /* granite's factors */
void qwen_window_parse(struct parse *p, struct config *c);
/* windows in all layers except every sliding_window_pattern-th, which does not rotate */
void exaone_windows_parse(struct parse *p, struct config *c);
/* Mixtures of experts (arch_moe.c).  experts_parse() reads the sizes and gives all layers experts.
 * sparse_layers_parse() then leaves experts only in every decoder_sparse_step-th layer, and in none
 * of mlp_only_layers. */
void experts_parse(struct parse *p, struct config *c, int n_experts, int top_k, int intermediate_size);
void sparse_layers_parse(struct parse *p, struct config *c);
void dense_first(struct parse *p, struct config *c, int otherwise);
void mlp_types_parse(struct parse *p, struct config *c);        /* mlp_layer_types, if present */
void groups_parse(struct parse *p, struct config *c, int n_groups, int top_groups);
void shared_parse(struct parse *p, struct config *c, const char *keys, int otherwise);
void sigmoid_router(struct parse *p, struct config *c, int normalize, double scale);
/* Refuse a key of the router that is neither a, which a missing key means, nor b. */
void router_must_be(struct parse *p, const char *key, const char *a, const char *b);
void mla_parse(struct parse *p, struct config *c);
/* Layers with a state (arch_state.c).  kinds_parse() reads the kinds of layers from layer_types;
 * delta_parse() reads the sizes and the layers of the delta net. */
struct layer_kind { const char *name; int mixer, ff; };
void kinds_parse(struct parse *p, struct config *c, const char *keys, const struct layer_kind *kinds);
void silu_only(struct parse *p, const struct config *c);
void delta_parse(struct parse *p, struct config *c);
int64_t inner_parse(struct parse *p, const struct config *c, const char *key);
void mamba_parse(struct parse *p, struct config *c, const struct recurrent *otherwise, int64_t inner);
void delta_check(struct parse *p, const struct recurrent *r);

#endif
