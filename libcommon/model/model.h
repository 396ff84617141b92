/* model.h - a decoder as hyper-parameters and weights, described by the same facts for every
 * architecture.
 *
 * An architecture is data: config_parse (with one function for a model_type, from a row of the
 * table in arch.c) fills struct config from config.json, and a table of names maps each weight to
 * its source.  The engine reads these facts only, never the name of an architecture. */
#ifndef ZSE_MODEL_MODEL_H
#define ZSE_MODEL_MODEL_H

#include <stdint.h>

#include <jansson.h>

#include "libcommon/base/err.h"
#include "libcommon/format/zfile.h"
#include "libcommon/quant/kvtype.h"
#include "libcommon/quant/tile.h"

enum norm_kind { NORM_RMS, NORM_LAYER };
enum block_kind {
    BLOCK_SEQUENTIAL,           /* x += attn(n1(x)); x += mlp(n2(x)) */
    BLOCK_PARALLEL,             /* x += attn(n1(x)) + mlp(n1(x)): one norm (cohere, gpt-j, phi, falcon-7b) */
    BLOCK_PARALLEL2,            /* x += attn(n1(x)) + mlp(n2(x)): two norms (gpt-neox, new falcon) */
};
/* HEAD: each head is normed by itself, with one weight vector for all heads.  EACH: the same, but
 * each head has its own weights [n_heads * head_dim] (cohere).  FULL: the norm is over the whole
 * projection (olmo2). */
enum qk_norm { QK_NORM_NONE, QK_NORM_HEAD, QK_NORM_EACH, QK_NORM_FULL };
/* CHANNEL: a gate per element of the output; HEAD: a gate per head. */
enum attn_gate { ATTN_GATE_NONE, ATTN_GATE_CHANNEL, ATTN_GATE_HEAD };
enum pos_kind { POS_ROPE, POS_LEARNED, POS_ALIBI, POS_NONE };

/* A layer is a mixer, which combines tokens, and a feed-forward part, which treats each token
 * alone; their kinds vary from layer to layer. */
enum mixer_kind {
    MIXER_ATTENTION,            /* q, k, v, o; keys and values in the cache */
    /* keys and values are made from one latent vector per token (arXiv:2405.04434, section 2.1);
     * the cache holds the latent and a rotated key */
    MIXER_MLA,
    /* Layers with a state: a fixed number of floats per sequence, and nothing in the KV cache. */
    MIXER_CONV,                 /* a short convolution between two gates (lfm2) */
    /* a selective state space with one decay per head (arXiv:2405.21060) */
    MIXER_MAMBA2,
    MIXER_DELTA,                /* gated delta net (arXiv:2412.06464) */
    /* a selective state space with a decay per channel and state (arXiv:2312.00752) */
    MIXER_MAMBA1,
    MIXER_LIGHTNING,            /* linear attention with fixed decays (arXiv:2501.08313) */
    MIXER_BOTH,                 /* attention and MIXER_MAMBA2 in parallel (falcon_h1) */
    /* compressed attention (deepseek_v4): a window of tokens with one key each, which is also the
     * value, and entries, each of which summarizes a run of tokens; the sums of incomplete entries
     * are a state */
    MIXER_COMPRESSED,
    MIXER_NONE,                 /* the layer has only its feed-forward part (nemotron_h) */
};
enum ff_kind {
    FF_DENSE,                   /* down(act(gate(x)) * up(x)) */
    /* a weighted sum of experts, plus a shared MLP that all tokens use; each expert is an MLP like
     * FF_DENSE, and a router chooses the experts of a token */
    FF_MOE,
    FF_NONE,                    /* the layer has only its mixer (mamba2, nemotron_h) */
};

/* How the outputs of a router determine top_k experts and their weights. */
enum router_kind {
    /* scores are the softmax over all experts; the largest are chosen and become the weights */
    ROUTER_SOFTMAX,
    ROUTER_SIGMOID,             /* like ROUTER_SOFTMAX, but scores are the sigmoids of the outputs */
    /* like ROUTER_SOFTMAX, but scores are the square roots of the softplus of the outputs
     * (deepseek_v4) */
    ROUTER_SQRT_SOFTPLUS,
    /* the two largest outputs are chosen; the weight of each is its softmax over those outputs that
     * are not larger than it and at most a fraction `mask` below it (arXiv:2409.12136) */
    ROUTER_SPARSEMIXER,
    /* the largest outputs are chosen; the softmax over them gives the weights */
    ROUTER_TOP_SOFTMAX,
};
struct moe {
    int n_experts, top_k;       /* 0: no layer has experts */
    int intermediate_size;      /* width of one expert */
    int shared_size;            /* width of the shared MLPs together; 0: none */
    /* the shared MLP's output is multiplied by the sigmoid of a router of its own (qwen2_moe) */
    int shared_gate;
    enum router_kind router;
    /* a bias per expert, added to the scores for choosing only (arXiv:2408.15664) */
    int correction;
    int n_groups, top_groups;   /* only experts of the best groups are chosen; n_groups 0 or 1: no groups */
    int group_best;             /* the score of a group is the sum of its group_best best experts */
    int normalize;              /* weights are divided by the larger of norm_min and their sum + norm_add, */
    float norm_min, norm_add;
    float scale;                /* and multiplied by this */
    float shared_scale;         /* factor on the shared MLP */
    float mask;                 /* ROUTER_SPARSEMIXER */
    /* an MLP of intermediate_size beside the experts, both with their own norms; the router reads
     * the residual, normed and scaled by hidden_size^-0.5 (gemma4) */
    int beside;
    /* experts read and write vectors of this size: latent_in makes them of the hidden state, and
     * latent_out maps the sum of the experts back (nemotron_h); 0: hidden states themselves */
    int latent;
    int weigh_input;            /* weights multiply the expert's input, not its output (llama4) */
    /* limit > 0: g * sigmoid(alpha * g) * (u + 1), g clamped from above, u on both sides (gpt-oss);
     * alpha 0: act(g) * u, with the same clamps, also in the shared MLP (deepseek_v4) */
    float act_alpha, act_limit;
};
struct mla {
    int q_rank;                 /* 0: q is projected from the hidden state */
    int kv_rank;                /* width of the latent */
    /* dimensions of a head's query and key: those without rotation, then those with it */
    int nope_dim, rope_dim;
    int v_dim;                  /* size of a head's value */
    float norm_eps;             /* epsilon of the norms of both latents */
};

/* Sparse attention over latents (arXiv:2512.02556, section 2.1): a token attends to the top_k
 * tokens with the largest sum over the indexer's heads of weight * relu(query * key). */
struct indexer {
    int n_heads, head_dim, top_k;   /* 0 heads: none */
    int pairs;                      /* rotation, as in struct rope */
    /* plain attention (qwen4_exp): tokens per run.  Each run has one key, the normed mean of its
     * tokens' keys; top_k runs are chosen, and all tokens after the last complete run are seen. 0:
     * each token has a key */
    int block;
};
/* SHARED: reuses the choice of the last FULL layer */
enum index_kind { INDEX_NONE, INDEX_FULL, INDEX_SHARED };

/* MIXER_COMPRESSED.  Queries are projected through mla.q_rank channels.  The last mla.rope_dim
 * dimensions of queries, keys and entries are rotated, and those of the output rotated back.  The
 * output passes through a matrix of o_rank rows for each of o_groups groups of heads. */
struct compressed { int o_groups, o_rank; };

/* Hyper-connections (arXiv:2409.19606): n residual streams; each half of a layer reads a mix of
 * them and adds its output to all.  n 0: one stream. */
struct hyper {
    int n;
    /* the streams are mixed by a matrix whose rows and columns sum to 1; steps and epsilon of the
     * Sinkhorn iteration that computes it (arXiv:2512.24880) */
    int steps;
    float eps;
    /* channels of the gate (qwen4_exp): the streams are normed, a mix is gated by two matrices with
     * `rank` channels between them, and the output is added to each stream with a weight of its
     * own; 0: no gate */
    int rank;
};

/* N-gram embeddings (qwen4_exp).  For each token and each length from 2 to `size`, a hash of the
 * last tokens chooses `heads` rows of dim elements from a per-layer table.  These rows give a
 * value, and a key for each stream.  In each stream the value is multiplied by a gate that depends
 * on how well the key matches the stream; a convolution over values that are `size` tokens apart
 * follows. */
struct ngram {
    int size, heads, dim, kernel;           /* size 0: none */
    /* number of tensors that the table is divided into in the source */
    int parts;
    int32_t end;                            /* runs do not extend past this token */
    int n_layers;                           /* number of layers with such embeddings */
    /* [config.n_layers] index of each layer among the layers that have such embeddings, -1: it has
     * none; owned */
    int *of;
    uint64_t *factor;                       /* [n_layers][size] factors of the hash; owned */
    int *rows;                              /* [n_layers][(size - 1) * heads] rows of each head; owned */
    int *all_rows;                          /* [n_layers] rows of the whole table; owned */
};

/* Layers with a state.  The state of a layer is, in floats: [conv_kernel - 1][recurrent_channels]
 * inputs of the convolution, oldest first, then [state_size][head_dim] for each head.  The input of
 * a layer is projected to one row:
 *   mamba2      z [heads * head_dim], the channels (x, B of all groups, C of all groups),
 *               dt [heads]
 *   delta net   for each group q, k [state_size], then v, z of its heads; its channels are all q,
 *               all k, all v
 *   lfm2        two gates and the input of the convolution between them */
struct recurrent {
    int conv_kernel, conv_bias;
    int n_heads, head_dim;      /* value heads; lfm2: none */
    int n_groups, state_size;   /* mamba2: B and C; delta net: key heads */
    float dt_min, dt_max;       /* limits of mamba2's time step */
    float norm_eps;
    int norm_groups;            /* mamba2: parts of the gated norm */
    /* delta net: `in` makes q of all groups, k of all groups and v of all heads; z of all heads has
     * a matrix of its own */
    int z_apart;
    /* delta net: 1: in_ba makes the learning rates of all heads, then the decay rates of all heads;
     * 0: learning and decay rates group by group */
    int ba_flat;
    /* GGUF: value head h reads key head h % n_groups, otherwise h / (n_heads / n_groups) */
    int tiled;
    int sigmoid_gate;           /* delta net: the gate is a sigmoid */
    float rate_scale;           /* delta net: factor on the learning rates (olmo_hybrid: 2) */
    /* Kimi delta attention (arXiv:2510.26692): every row of a head's state has a decay rate of its
     * own, made by in_f [n_heads * state_size]; the gate is a sigmoid */
    int per_row;
    /* per_row: number of outputs of gate_a that in_f and in_z each read; 0: they read the hidden
     * state */
    int gate_rank;
    int dt_rank;                /* mamba1: channels from which time steps are made */
    int norm_first;             /* mamba2: the norm is before the gate */
    int scaled;                 /* mamba2: the projections of z, x, B, C and dt are multiplied by in_scale */
    float in_scale[5];
    /* per_row: logarithms of decays are decay_least * sigmoid(..); 0: no such limit */
    float decay_least;
};

enum { MAX_ROPES = 8 };         /* granite_swa: one per base */
struct rope {                   /* a table of rotations; layers refer to it by index */
    int dim;                    /* rotated dimensions of a head */
    int pairs;                  /* 1: (0,1),(2,3)...; 0: (i, i + dim/2) */
    float *inv_freq;            /* [dim/2], owned by the config */
    /* longrope: used for all positions of a sequence that is longer than original_max; otherwise
     * NULL */
    float *inv_freq_long;
    int original_max;
    /* factor on cos and sin (the attention factor of yarn and longrope), otherwise 1 */
    float scale, scale_long;
};

/* Linear layers and norms with a bias.  For a GGUF the tensors decide: there a bit means "may
 * have". */
enum { BIAS_Q = 1, BIAS_K = 2, BIAS_V = 4, BIAS_O = 8, BIAS_GATE = 16, BIAS_UP = 32, BIAS_DOWN = 64, BIAS_NORM = 128,
       BIAS_HEAD = 256, BIAS_QK_NORM = 512,
       BIAS_ROUTER = 1024, BIAS_EXPERTS = 2048, BIAS_IN = 4096 /* `in` and `o` of layers with a state */,
       BIAS_OUT = 8192 /* state_o */, BIAS_INDEX = 16384 /* index_norm */, BIAS_DENSE_1 = 32768,
       BIAS_DENSE_2 = 65536, BIAS_DENSE_NORM = 131072, BIAS_QKV = 7, BIAS_MLP = 112 };

/* Parameters of the activation xIELU. */
enum xielu { XIELU_ALPHA_P, XIELU_ALPHA_N, XIELU_BETA, XIELU_EPS, N_XIELU };

/* How the final states of a text's tokens become one vector: their mean, the last, the first. */
/* STATE: the last one, never scaled to length 1. */
enum embed { EMBED_NONE, EMBED_MEAN, EMBED_LAST, EMBED_FIRST, EMBED_STATE };

/* A model that makes vectors of texts, or scores of pairs of texts: the pooled state, followed by
 * up to two dense layers. */
enum dense_act { DENSE_PLAIN, DENSE_TANH, DENSE_RELU, DENSE_GELU };
enum { MAX_DENSE = 2 };
struct embedding {
    enum embed pooling;         /* EMBED_NONE: the model makes text */
    int normalize;              /* vectors are scaled to length 1 */
    int scores;                 /* a cross-encoder: the only element is the score of a pair */
    int max_len;                /* most tokens of a text; 0: the context */
    int n_dense;
    struct dense { int in, out, biased; enum dense_act act; char stem[48] /* in the source */; } dense[MAX_DENSE];
    int raw_scores;             /* scores are not passed through the sigmoid */
    int pair_types;             /* tokens of the second text of a pair are of type 1 */
    int pair_twice;             /* two separators between the texts of a pair (roberta) */
    int dense_norm;             /* a norm between the two (modernbert) */
    /* texts put before an input, by name, and the name of the default one; NULL: none; owned */
    json_t *prompts;
    char *default_prompt;
};

/* The layers whose attention has sinks. */
enum sinks { SINKS_NONE, SINKS_ALL, SINKS_WINDOWED };

struct weight_names;                        /* arch.h */
struct wrapper;
/* How a layer that predicts further tokens reads the embedding and the state, each normed if there
 * is a norm: next_in maps both to the layer's input; or attention reads both, side by side, and the
 * residual is the state (EAGLE-3). */
enum predicts { PREDICTS_SUM = 1, PREDICTS_BESIDE };

struct config {
    char arch[32];              /* model_type */
    /* set if the source contains more than a language model; static, may be NULL */
    const struct wrapper *wrapper;
    int n_layers, hidden_size, intermediate_size, n_heads, n_kv_heads, head_dim, vocab_size;
    int max_len;                /* max_position_embeddings */
    enum norm_kind norm;
    /* offset of norm weights: gemma's (1 + w), and nemotron's, which model_bind adds to the weights
     * of layer norms */
    float norm_eps, norm_offset;
    /* olmo_hybrid: layers of attention have norms after attention and MLP, others before them */
    int attn_post_norms;
    /* opt-350m: x = attn_post_norm(x + attn(x)), and the same for the MLP */
    int norm_after_add;
    enum block_kind block;
    enum qk_norm qk_norm;
    enum norm_kind qk_norm_kind;
    int qk_norm_after_rope;                 /* hunyuan */
    float qk_norm_eps, qk_norm_offset;
    enum pos_kind pos;
    int pos_offset;                         /* opt: 2 */
    /* scores of attention have a bias for each head and bucket of distances (mpnet); 0: none */
    int distance_buckets;
    /* alibi_max_bias: 8 if the config has no value; alibi_scale: factor on the slopes (falcon:
     * 1/sqrt(head_dim)) */
    float alibi_max_bias, alibi_scale;
    int n_ropes; struct rope ropes[MAX_ROPES];      /* gemma3: global and local */
    int act;                                /* enum act_kind of kernels.h by value: see arch.h */
    /* [n_layers][N_XIELU] from the configuration of a GGUF; NULL: they are weights; owned */
    float *xielu;
    int gated;                              /* down(act(gate(x)) * up(x)) or down(act(up(x))) */
    float embed_scale, residual_scale, logit_scale, attn_scale;     /* 1, 1, 1, 1/sqrt(head_dim) by default */
    float attn_softcap, final_softcap, clip_qkv;                    /* 0: none */
    /* width of the embedding: hidden_size except for opt-350m */
    int embed_size;
    int tied;                               /* the head uses the embedding's weights */
    /* 1: config.json says whether the head is tied; 0: it is tied unless the weights have a head */
    int tied_given;
    int biases;                             /* BIAS_: linear layers and norms that have one */
    /* the weights are those of a GGUF file: its names, its order of q and k, norm offsets already
     * added */
    int gguf;
    const struct weight_names *names;       /* names of the weights in a source; static */
    unsigned char *mixer, *ff;              /* [n_layers] enum mixer_kind, enum ff_kind; owned */
    struct moe moe;
    /* For the cache and attention, MIXER_MLA is n_heads queries and one KV head of head_dim =
     * kv_rank + rope_dim, whose values are the first kv_rank elements of its keys. */
    struct mla mla;
    struct compressed compressed;
    /* [n_layers] MIXER_COMPRESSED: tokens per entry, 0: no entries; owned */
    int *rates;
    struct hyper hyper;
    struct ngram ngram;
    /* [n_layers] FF_MOE: experts are looked up in a table by token; NULL: nowhere; owned */
    unsigned char *hashed;
    struct indexer indexer;
    unsigned char *indexed;                 /* [n_layers] enum index_kind; NULL: none; owned */
    struct recurrent recurrent;
    /* the output of attention is multiplied by the sigmoid of a projection (qwen3_next) */
    enum attn_gate attn_gate;
    /* a score per head that takes part in the softmax but has no value (gpt-oss) */
    enum sinks sinks;
    int *window;                            /* [n_layers] sliding window in tokens, 0: full; owned */
    /* [n_layers] a token sees only its chunk of this size, 0: everything; owned */
    int *chunk;
    /* q *= log(1 + floor((pos + first) / floor)) * scale + 1; scale 0: off.  llama4: first 1, only
     * in layers without RoPE; ministral3: first 0, in all layers */
    float temperature_scale; int temperature_floor, temperature_first, temperature_roped;
    int qk_norm_roped;                      /* q and k are normed only where they rotate (llama4) */
    /* Attention layers of different shapes (gemma4): head_dim and number of KV heads of each layer.
     * kv_from: the layer whose keys and values a layer reads, which is itself or an earlier one.
     * Owned.  NULL: all layers have config.head_dim and n_kv_heads, which otherwise are the
     * maxima. */
    int *head_dims, *kv_heads, *kv_from;
    int *mlp_sizes;                         /* [n_layers] widths of dense MLPs; NULL: intermediate_size; owned */
    /* Sizes of a head's query and key, and of its value, if they differ (mimo_v2_flash); 0:
     * head_dim, the larger one.  Attention pads queries, keys and values with zeros. */
    int key_dim, value_dim;
    float value_scale;                      /* factor on the values */
    int v_norm;                             /* values are normed, without weights */
    /* layers without a window: values are the keys before their norm */
    int k_is_v;
    /* A second embedding with ple_dim elements for each layer, which adds a gated projection of
     * them (gemma3n, gemma4); 0: none.  Tokens from ple_vocab on use row 0. */
    int ple_dim, ple_vocab;
    /* AltUp (arXiv:2301.13310, gemma3n): n_streams is the number of residual streams (0: one).
     * Each layer computes stream number `stream` and predicts and corrects the others; with
     * scale_corrected the result is multiplied by altup_scale.
     *
     * laurel_rank: rank of LAuReL (arXiv:2411.07501).  cutoff [n_layers], owned: gates less than
     * this number of standard deviations above the mean are cut off; NULL or 0: none. */
    int n_streams, stream, scale_corrected, laurel_rank;
    float *cutoff;
    /* falcon_h1: factors on the outputs of attention and of the state, on the input of the gate's
     * activation, on the output of the MLP; 0: none */
    float attn_out_scale, state_out_scale, gate_scale, down_scale;
    /* minimax: the residual is the norm's output times the first factor, and what is added to it is
     * multiplied by the second.  One pair each for mixers with a state, attention, and experts; 0:
     * not used */
    float renorm[3][2];
    /* layers of the source after layer n_layers - 1, which predict further tokens */
    int n_extra_layers;
    int next_embeds;            /* 1: these layers have an embedding of their own */
    /* this config describes such a layer, as a model with one layer (config_predictor()): enum
     * predicts; 0: it does not */
    int predicts;
    int *rope_of;                           /* [n_layers] index into ropes, -1: none; owned */
    /* Encoders: a token also sees later tokens; in layers with a window, those of the window on
     * both sides. */
    int both_ways;
    /* number of token types, which have embeddings (bert); 0: none */
    int n_types;
    int bare_first;                         /* modernbert: the first layer has no norm before attention */
    struct embedding embedding;
    /* from config.json; the tokenizer and generation_config take precedence */
    int32_t bos, eos[8]; int n_eos;
};

/* Parse a normalised config.json.  Returns 0; -1 with *e.  Unknown architectures, and unknown
 * fields that would change the result, are refused by name. */
int config_parse(struct config *c, const json_t *json, struct err *e);
void config_release(struct config *c);
/* Make *out the config of a layer that predicts a further token: a model of one layer, with the
 * same parameters as the last attention layer (MHA or MLA) of c.  Its arrays are those of c, so
 * *out is not released.  Returns 0; -1 if c has properties that such a layer does not support. */
int config_predictor(const struct config *c, struct config *out);
/* How vectors of texts are pooled: by the mean, unless the model says otherwise. */
enum embed config_pooling(const struct config *c);
/* The text that the model expects before a query or a document; NULL: none.  Borrowed. */
const char *config_prompt(const struct config *c, int document);
/* Returns the index of the token from which on tokens have type 1, in a pair whose second text
 * begins at token `at`; 0: all tokens have type 0. */
int config_second_type(const struct config *c, int at);
/* The number of elements of the vector that the model makes of a text. */
int config_embedding_size(const struct config *c);
/* Length from which sequences use LongRoPE's long factors; 0: never. */
int config_long_from(const struct config *c);
/* Name (model_type) of supported architecture i = 0, 1, ...; NULL after the last. */
const char *config_architecture(int i);

/* ---- weights ---- */
/* w.data NULL: the layer is absent; bias [rows], NULL: none; lora [n_loras], owned by the model:
 * the changes by LoRA adapters (lora.h), NULL: none */
struct lora_linear;
struct linear { struct mat w; const float *bias; struct lora_linear *lora; };
/* present, but w NULL: a norm without weights (olmo) */
struct norm   { const float *w, *b; int present; };

struct expert { struct linear gate, up, down; };

struct layer {
    struct norm attn_norm, attn_post_norm, mlp_norm, mlp_post_norm, q_norm, k_norm;
    /* [n_heads * head_dim], [intermediate_size]: norms of the inputs of o and down */
    struct norm attn_sub_norm, mlp_sub_norm;
    struct linear q, k, v, o;
    struct linear gate, up, down;   /* FF_MOE: the shared MLP */
    const float *act_alpha_p, *act_alpha_n, *act_beta, *act_eps;    /* [1] each, of xIELU (arXiv:2411.13010) */
    const float *sinks;             /* [n_heads] or NULL */
    /* MIXER_MLA: q reads q_norm(q_a(x)) if q_a exists; kv_a makes the latent and the rotated key,
     * kv_norm norms the latent; k_b [n_heads * kv_rank, nope_dim] maps a head's query to the space
     * of the latents, v_b [n_heads * v_dim, kv_rank] a head's latent to its value */
    struct linear q_a, kv_a, k_b, v_b;
    struct norm q_a_norm, kv_norm;
    struct linear q_gate;           /* config.attn_gate */
    /* INDEX_FULL: index_q makes the indexer's queries from the input of q, index_k its keys,
     * index_w the weights of its heads; index_norm norms the keys, index_q_norm the queries */
    struct linear index_q, index_k, index_w;
    struct norm index_norm, index_q_norm;
    /* MIXER_COMPRESSED: an entry summarizes a run of tokens; each of its channels is the mean of
     * the tokens' comp_value, weighted by the softmax of their comp_score + comp_bias (one for
     * each position in the run).  index_value, index_score and index_bias make the keys of the
     * entries for an indexer in the same way.  With an indexer the runs overlap and each token
     * counts in two entries: the first half of the rows is for the next entry, the second half for
     * the current one.  o_a reads the output of attention, o the output of o_a */
    struct linear comp_value, comp_score, index_value, index_score, o_a;
    const float *comp_bias, *index_bias;
    struct norm comp_norm;
    /* config.hyper, for each half of the layer: the matrix [n * (n + 2), n * hidden_size] that maps
     * the streams to the scores of their mix, the bias of the scores, and their scales */
    const float *hyper_attn, *hyper_attn_bias, *hyper_attn_scale, *hyper_ff, *hyper_ff_bias, *hyper_ff_scale;
    const float *hyper_attn_norm, *hyper_ff_norm;       /* [n * hidden_size], of hyper.rank */
    struct linear hyper_attn_down, hyper_attn_up, hyper_attn_inject, hyper_ff_down, hyper_ff_up, hyper_ff_inject;
    struct linear ngram_embed, ngram_key, ngram_value;
    const float *ngram_key_norm, *ngram_query_norm, *ngram_conv_norm;           /* [n * hidden_size] */
    const float *ngram_conv;                /* [kernel][n * hidden_size] */
    /* Layers with a state: in_ba makes the delta net's learning and decay rates, group by group for
     * its heads; o is the output projection */
    struct linear in, in_ba, in_z;  /* in_z: recurrent.z_apart */
    /* mamba1: x_proj maps channels to the low-rank time steps, B and C; dt_proj maps those time
     * steps to channels */
    struct linear x_proj, dt_proj;
    struct norm dt_norm, b_norm, c_norm;
    struct linear state_o;          /* MIXER_BOTH: the output projection of the state; o is that of attention */
    /* recurrent.per_row; the outputs of gate_a [2 * gate_rank] are the inputs of in_f and of
     * in_z */
    struct linear gate_a, in_f;
    const float *conv, *conv_bias;  /* [conv_kernel][channels], [channels] or NULL */
    const float *a_log, *dt_bias, *d;       /* [n_heads]; a_log: in a GGUF -exp(a_log) or its size; d: mamba2 only */
    struct norm gate_norm;          /* mamba2: a norm over all heads together; delta net: over one head */
    /* FF_MOE */
    struct linear router, shared_router, latent_in, latent_out;
    const float *correction;        /* [n_experts] or NULL */
    const float *token_experts;     /* config.hashed: [vocab_size][top_k] numbers of experts */
    struct expert *experts;         /* [n_experts] */
    /* moe.beside: router_scale [hidden_size] scales the router's input, expert_scale [n_experts]
     * the weights of the experts */
    const float *router_scale, *expert_scale;
    struct norm dense_post_norm, expert_norm, expert_post_norm;
    struct linear ple_gate, ple_up;         /* config.ple_dim */
    struct norm ple_norm;
    /* AltUp: altup_norm norms the computed stream; altup_router [n_streams, hidden_size] makes
     * scores of it; altup_predict [n_streams^2, n_streams] and altup_correct [n_streams, n_streams]
     * make the coefficients of predictions and corrections from the scores; altup_scale multiplies
     * the result */
    struct norm altup_norm;
    const float *altup_router, *altup_predict, *altup_correct, *altup_scale;
    struct linear laurel_in, laurel_out;
    struct norm laurel_norm;
    const float *layer_scale;               /* [1] factor on the layer's output, or NULL */
    /* config.predicts: next_embed_norm and next_state_norm norm the embedding and the state;
     * next_in [hidden_size, 2 * hidden_size] makes the layer's input of both; next_final_norm is
     * the norm before the head */
    struct norm next_embed_norm, next_state_norm, next_final_norm;
    struct linear next_in;
};

struct model {
    struct config config;
    struct layer *layers;
    /* outside of the layers: the rows of ends.def */
    struct linear embed;            /* [vocab_size, embed width] */
    struct linear embed_in, embed_out;  /* opt-350m: project_in, project_out; absent otherwise */
    /* config.ple_dim: [ple_vocab, n_layers * ple_dim]; ple_in maps the embedding to the same row */
    struct linear ple_embed, ple_in;
    /* [(n_streams - 1) * hidden_size, hidden_size]: altup_in maps the embedding to the other
     * streams, altup_out maps these back */
    struct linear altup_in, altup_out;
    struct norm ple_in_norm;            /* norm of each layer's ple_dim elements */
    /* config.hyper: scores, bias and scale of the mix that the final norm reads */
    const float *hyper, *hyper_bias, *hyper_scale;
    const float *hyper_norm;                            /* norm of the streams, if hyper.rank > 0 */
    struct linear hyper_down, hyper_up;
    const float *pos_embed;         /* [max_len + pos_offset, hidden_size] f32 or NULL */
    const float *type_embed;        /* [n_types, hidden_size] f32 or NULL */
    const float *distance_bias;     /* [distance_buckets, n_heads] f32 or NULL */
    struct norm embed_norm, final_norm;
    struct linear dense_1, dense_2; /* after the pooled state, see struct embedding */
    struct norm dense_norm;
    struct linear head;             /* the embedding if tied */
    struct zfile *file;             /* owned; NULL for models assembled in memory */
    void *owned;                    /* freed by model_close */
    /* The layer that predicts a further token, as a model with one layer and without a file: it
     * shares the arrays of config, the embedding and the head.  NULL: there is none.  Owned. */
    struct model *predictor;
    struct medusa *medusa;          /* heads in the file (medusa.h), owned; NULL: none */
    struct eagle *eagle;            /* heads in the file (eagle.h), owned; NULL: none */
    uint64_t weight_bytes;          /* size of all weights */
    int n_loras;
    struct lora *loras;             /* LoRA adapters (lora.h); owned */
};

/* Make a model from a .zse: every weight is found by name, and its type and shape are checked
 * against the config.  Returns NULL with *e.  Takes ownership of z, also on failure. */
struct model *model_bind(struct zfile *z, struct err *e);
void model_close(struct model *m);

/* Allocate m->predictor, whose weights are unset. */
int model_predictor(struct model *m, struct err *e);
/* Set `present` in all norms that the architecture has. */
void model_norms(struct model *m);
/* Allocate the experts of all layers that have them; model_close frees them. */
int model_experts(struct model *m, struct err *e);
/* *rows and *cols become the shape of the linear layer with this role in this layer (`layer` is
 * ignored for roles outside layers). */
void config_linear_shape(const struct config *c, int layer, int role, int64_t *rows, int64_t *cols);
/* Width of a layer's gate and up, in the dense or the shared MLP; 0: it has neither. */
int config_mlp_size(const struct config *c, int layer);
int config_expert_width(const struct config *c);        /* size of the inputs and outputs of experts */
/* Facts about the attention of a layer, one function each: the size of its heads, the number of its
 * KV heads, the sizes of a key and of a value without padding, whether it reads the keys and values
 * of an earlier layer, whether it uses its keys as values. */
int config_head_dim(const struct config *c, int layer);
int config_kv_heads(const struct config *c, int layer);
int config_key_dim(const struct config *c, int layer);
int config_value_dim(const struct config *c, int layer);
int config_shares_kv(const struct config *c, int layer);
int config_key_is_value(const struct config *c, int layer);
/* Returns the largest number of entries of MIXER_COMPRESSED, or keys of runs of tokens (struct
 * indexer.block), that end in one KV block; 0: the layer has neither. */
int config_entries(const struct config *c, int layer);
/* config_ngram() returns the index of a layer among the layers with n-gram embeddings, or -1 if it
 * has none.  config_ngram_floats() returns the size of their state in this layer. */
int config_ngram(const struct config *c, int layer);
size_t config_ngram_floats(const struct config *c, int layer);
int config_indexes(const struct config *c, int layer);      /* the layer has an indexer of its own */
/* Bytes of a layer's keys and values in a KV block; 0: it stores none. */
size_t config_layer_kv_bytes(const struct config *c, int layer, struct kv_types types);
/* Returns the first feature of the model that calibration does not support; NULL: it supports
 * all. */
const char *config_uncalibrated(const struct config *c);
/* config_layer_parameters() returns the number of weights in a layer's matrices, or with per_token
 * only of those that one token uses.  config_mixer_parameters() counts only those of the mixer. */
int64_t config_layer_parameters(const struct config *c, int layer, int per_token);
int64_t config_mixer_parameters(const struct config *c, int layer);
/* 1 if any layer is of this kind. */
int config_has_mixer(const struct config *c, enum mixer_kind kind);
int config_has_ff(const struct config *c, enum ff_kind kind);
/* Bytes of one KV block of all layers; 0: no layer has attention. */
size_t config_kv_bytes(const struct config *c, struct kv_types types);
/* Returns the largest number of tokens that the layer sees, if its keys and values may therefore be
 * in window blocks.  Returns 0 if it sees all tokens, or if its keys are read by more than plain
 * attention.  most: limit on the newest tokens that any layer sees (besides the sinks); 0: only the
 * model's own windows apply. */
int config_layer_window(const struct config *c, int layer, int most);
/* the largest window of all layers; 0: none */
int config_window(const struct config *c, int most);
/* Bytes of one window block: of all layers with a window or, with a tail, of all layers as f16. */
size_t config_window_bytes(const struct config *c, struct kv_types types, int most);
/* Bytes of a KV block without its window block. */
size_t config_block_bytes(const struct config *c, struct kv_types types, int most);
/* In a model with a tail, layers with a sliding window store their keys and values only as f16.
 * Models with wider windows have no tail, because this would cost more than the types save. */
enum { KV_WIDEST_TAIL = 1024 };
/* Returns the number of newest tokens whose keys and values are kept as f16 in window blocks (the
 * tail, see kvtype.h): layers with a window store theirs only there, other layers also in KV blocks
 * in these types.  Returns 0 if there is no tail, because the types need none, windows are wider
 * than KV_WIDEST_TAIL, or `most` is set. */
int config_tail(const struct config *c, struct kv_types types, int most);
/* Returns 1 if `most` limits this layer, which has no window of its own or a larger one. */
int config_streams(const struct config *c, int layer, int most);
/* The reason why `most` cannot be set; NULL: it can. */
const char *config_stream_problem(const struct config *c);
/* Attention to pages (backend_options.pages), in layers without a window.  Bytes of a page's
 * summary: config_page_row() for one KV head, config_layer_page_bytes() for all heads of a layer
 * (0: it has none), config_page_bytes() for all layers.  config_pages_problem() returns the reason
 * why the model cannot attend to pages, or NULL. */
size_t config_page_row(int head_dim);
size_t config_layer_page_bytes(const struct config *c, int layer);
size_t config_page_bytes(const struct config *c);
const char *config_pages_problem(const struct config *c);
/* The reason why this model's keys and values cannot be stored in these types; NULL: they can. */
const char *config_kv_problem(const struct config *c, struct kv_types types);
int config_kv_layers(const struct config *c);                       /* number of layers with keys and values */
static inline int mixer_has_kv(int kind)
{
    return kind == MIXER_ATTENTION || kind == MIXER_MLA || kind == MIXER_BOTH || kind == MIXER_COMPRESSED;
}
static inline int mixer_has_state(int kind)
{
    return kind == MIXER_CONV || (kind >= MIXER_MAMBA2 && kind <= MIXER_BOTH);
}
/* Layers with a state, one function each: the number of floats in a sequence's state in this layer
 * (0: it has none); the bytes of the states of all layers; the number of channels of the
 * convolution; the width of the input of o. */
size_t config_state_floats(const struct config *c, int layer);
size_t config_state_bytes(const struct config *c);
int recurrent_channels(const struct config *c, int layer);
int recurrent_width(const struct config *c, int layer);
/* Features that a backend may support besides plain and windowed attention and dense MLPs.  STATES:
 * short convolutions, Mamba2, gated delta nets, and layers without a mixer or an MLP; GATES: gated
 * attention; LATENTS: multi-head latent attention; VARIANTS: chunked attention, queries scaled by
 * their position, norms of q and k in some layers or without weights, norms inside of attention and
 * MLP, weights on the inputs of experts, experts without a gate. */
enum { FEATURE_EXPERTS = 1, FEATURE_SINKS = 2, FEATURE_STATES = 4, FEATURE_GATES = 8, FEATURE_LATENTS = 16,
       FEATURE_VARIANTS = 32 };
/* Returns the first feature of the model that is not among these features of a backend; NULL: the
 * backend supports the model. */
const char *config_beyond(const struct config *c, unsigned features);

/* ---- where weights come from (used when converting) ---- */

/* One of our tensors: its name, its shape, and the part of a source tensor that it is made from. */
struct weight_spec {
    char name[96];                  /* "layers.3.q_proj.weight" */
    char source[160];               /* "model.layers.3.self_attn.qkv_proj.weight" */
    struct row_map map;
    int64_t rows, cols;             /* rows 1 for vectors: cols = length */
    /* stored as plain f32: norms and biases (rows 1; the map selects elements), positions (rows >
     * 1) */
    int is_vector;
    int role;                       /* enum weight_role */
    /* layer -1: outside the layers; layer n_layers: the layer of config_predictor(); expert -1: not
     * of an expert */
    int layer, expert;
    /* enum layer_part (parts.h); outside layers enum end_part; for a bias, the part that it belongs
     * to */
    int part;
    /* 1: the first tensor of an expert, which starts on a page of its own in the file */
    int first_of_expert;
    int copies;                     /* number of equal tensors that it stands for: see one_expert */
    int optional;                   /* may be missing in the source (biases) */
};
enum weight_role {
    ROLE_EMBED, ROLE_POS, ROLE_NORM, ROLE_BIAS, ROLE_HEAD, ROLE_DENSE,
    N_ENDS_ROLES,               /* the roles above are outside layers, or of no matrix */
    /* matrices of a layer, see parts.def */
    ROLE_Q = N_ENDS_ROLES, ROLE_K, ROLE_V, ROLE_O, ROLE_GATE, ROLE_UP, ROLE_DOWN, ROLE_Q_A, ROLE_KV_A, ROLE_K_B,
    ROLE_V_B, ROLE_ROUTER, ROLE_SHARED_ROUTER, ROLE_EXPERT_GATE, ROLE_EXPERT_UP, ROLE_EXPERT_DOWN, ROLE_Q_GATE, ROLE_IN,
    ROLE_IN_BA, ROLE_IN_Z, ROLE_GATE_A, ROLE_IN_F, ROLE_PLE_GATE, ROLE_PLE_UP,
    ROLE_HYPER_ATTN_DOWN, ROLE_HYPER_ATTN_UP, ROLE_HYPER_ATTN_INJECT, ROLE_HYPER_FF_DOWN, ROLE_HYPER_FF_UP,
    ROLE_HYPER_FF_INJECT, ROLE_NGRAM_EMBED, ROLE_NGRAM_KEY, ROLE_NGRAM_VALUE, ROLE_COMP_VALUE, ROLE_COMP_SCORE,
    ROLE_INDEX_VALUE, ROLE_INDEX_SCORE, ROLE_O_A, ROLE_INDEX_Q, ROLE_INDEX_K,
    ROLE_INDEX_W, ROLE_LAUREL_IN, ROLE_LAUREL_OUT, ROLE_X_PROJ, ROLE_DT_PROJ, ROLE_STATE_O, ROLE_NEXT_IN,
    ROLE_LATENT_IN, ROLE_LATENT_OUT,
    N_ROLES
};

enum { WEIGHT_DIMS = 5 };       /* most dimensions of a source's tensor */

/* A source of weights: whether a tensor exists, and its shape.  (import/ is above this layer.) */
struct weight_source {
    /* Fill in *n_dims and dim[].  Returns 0; -1 if there is no such tensor.  shape NULL: every
     * tensor that the config needs exists (a model of which only the config is known). */
    int (*shape)(void *user, const char *name, int *n_dims, int64_t dim[WEIGHT_DIMS]);
    void *user;
    /* for callers that need only sizes: list only the first expert of each layer, with copies =
     * n_experts (otherwise copies is 1) */
    int one_expert;
    int no_predictor;           /* leave out a layer that predicts further tokens */
    /* output, may be NULL: why such a layer is not listed */
    struct err *left_out;
};
/* List every tensor of the model in forward order: embed, layer 0 .., final norm, head.  Returns 0
 * with *specs, which the caller frees; -1 with *e.  Shapes of the source are checked against the
 * config; a missing tensor is an error that names it. */
int weight_specs(const struct config *c, const struct weight_source *s, struct weight_spec **specs, int *n,
                 struct err *e);
/* The reason why a source tensor that no spec names may be skipped. */
enum weight_skip {
    WEIGHT_UNKNOWN,             /* it may not be skipped */
    /* computed from the configuration, or a copy: frequencies, masks, a tied head */
    WEIGHT_BUFFER,
    WEIGHT_ENCODER,             /* part of an encoder of images, video or sound */
    WEIGHT_PREDICTOR,           /* predicts further tokens (multi-token prediction) */
    WEIGHT_TRAINING,            /* a head used only in training (encoders) */
    N_WEIGHT_SKIPS
};
enum weight_skip weight_skip(const struct config *c, const char *source_name);

#endif
