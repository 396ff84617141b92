/* model.h - a decoder as hyper-parameters and weights, in the same plain facts for every
 * architecture.
 *
 * An architecture is data: config_parse (with one function for a model_type, a row in the table of
 * arch.c) fills struct config from config.json, and a table of names says where each weight comes
 * from.  The engine reads these facts and knows no architecture by name. */
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
/* HEAD: per head, one weight for all heads; EACH: per head, each with its own weights [n_heads *
 * head_dim] (cohere); FULL: over the whole projection (olmo2). */
enum qk_norm { QK_NORM_NONE, QK_NORM_HEAD, QK_NORM_EACH, QK_NORM_FULL };
/* CHANNEL: a gate for each element of the output, HEAD: one for each head. */
enum attn_gate { ATTN_GATE_NONE, ATTN_GATE_CHANNEL, ATTN_GATE_HEAD };
enum pos_kind { POS_ROPE, POS_LEARNED, POS_ALIBI, POS_NONE };

/* A layer is a mixer, which combines tokens, and a feed-forward part, which treats each token
 * alone; their kinds vary from layer to layer. */
enum mixer_kind {
    MIXER_ATTENTION,            /* q, k, v, o; keys and values in the cache */
    /* keys and values are made from one latent vector a token (arXiv:2405.04434, section 2.1);
     * the cache holds it and a rotated key */
    MIXER_MLA,
    /* Layers with a state: a fixed number of floats a sequence, and nothing in the cache. */
    MIXER_CONV,                 /* a short convolution between two gates (lfm2) */
    MIXER_MAMBA2,               /* a selective state space with one decay a head (arXiv:2405.21060) */
    MIXER_DELTA,                /* gated delta net (arXiv:2412.06464) */
    MIXER_MAMBA1,               /* a selective state space with a decay for each channel and state (arXiv:2312.00752) */
    MIXER_LIGHTNING,            /* linear attention with fixed decays (arXiv:2501.08313) */
    MIXER_BOTH,                 /* attention and MIXER_MAMBA2 side by side (falcon_h1) */
    /* one key a token, which is the value too, seen through a window, and entries that each sum up
     * a run of tokens (deepseek_v4); the sums of entries that are not complete are a state */
    MIXER_COMPRESSED,
    MIXER_NONE,                 /* the layer is only its feed-forward part (nemotron_h) */
};
enum ff_kind {
    FF_DENSE,                   /* down(act(gate(x)) * up(x)) */
    /* a weighted sum of experts, each such an MLP, chosen by a router, and of a shared one that
     * all tokens take */
    FF_MOE,
    FF_NONE,                    /* the layer is only its mixer (mamba2, nemotron_h) */
};

/* How the outputs of a router become a choice of top_k experts and their weights. */
enum router_kind {
    /* scores: softmax over all experts; the largest are chosen, their scores are the weights */
    ROUTER_SOFTMAX,
    ROUTER_SIGMOID,             /* the same with a sigmoid of each output */
    ROUTER_SQRT_SOFTPLUS,       /* the same with the root of softplus of each output (deepseek_v4) */
    /* the two largest outputs are chosen; the weight of each is its softmax over the outputs
     * that are not larger and not below it by more than a share `mask` (arXiv:2409.12136) */
    ROUTER_SPARSEMIXER,
    ROUTER_TOP_SOFTMAX,         /* the largest outputs are chosen, the softmax over them gives the weights */
};
struct moe {
    int n_experts, top_k;       /* 0: no layer has experts */
    int intermediate_size;      /* of one expert */
    int shared_size;            /* of the shared MLPs together; 0: none */
    /* the shared MLP's output is multiplied by the sigmoid of a router of its own (qwen2_moe) */
    int shared_gate;
    enum router_kind router;
    int correction;             /* a bias per expert, added to the scores for the choice only (arXiv:2408.15664) */
    int n_groups, top_groups;   /* only experts of the best groups are chosen; n_groups 0 or 1: no groups */
    int group_best;             /* the score of a group is the sum of this many best experts of it */
    int normalize;              /* weights are divided by their sum, after adding norm_add and at least norm_min, */
    float norm_min, norm_add;
    float scale;                /* and multiplied by this */
    float shared_scale;         /* factor on the shared MLP */
    float mask;                 /* ROUTER_SPARSEMIXER */
    /* an MLP of intermediate_size beside the experts, both with norms of their own; the router
     * reads the residual, normed and scaled by hidden_size^-0.5 (gemma4) */
    int beside;
    int weigh_input;            /* weights multiply the expert's input, not its output (llama4) */
    /* limit > 0: g * sigmoid(alpha * g) * (u + 1), g clamped from above, u on both sides
     * (gpt-oss); alpha 0: act(g) * u, clamped like that, also in the shared MLP (deepseek_v4) */
    float act_alpha, act_limit;
};
struct mla {
    int q_rank;                 /* 0: q is projected from the hidden state */
    int kv_rank;                /* width of the latent */
    int nope_dim, rope_dim;     /* of a head's query and key: dimensions without rotation, then those with it */
    int v_dim;                  /* a head's value */
    float norm_eps;             /* of the norms of both latents */
};

/* Sparse attention over latents (arXiv:2512.02556, section 2.1): a token attends to the top_k
 * tokens with the largest sum over heads of weight * relu(query * key), all of the indexer. */
struct indexer {
    int n_heads, head_dim, top_k;   /* 0 heads: none */
    int pairs;                      /* the rotation, as in struct rope */
    /* tokens of a run (plain attention, qwen4_exp): each run has one key, the normed mean of its
     * tokens' keys; top_k runs are chosen, and all tokens behind the last whole run are seen.
     * 0: each token has a key */
    int block;
};
enum index_kind { INDEX_NONE, INDEX_FULL, INDEX_SHARED };   /* SHARED: the choice of the last FULL layer */

/* MIXER_COMPRESSED.  Queries come from mla.q_rank channels, and mla.rope_dim dimensions at the
 * end of queries, keys and entries rotate, as do those of the output, back again.  The output
 * goes through a matrix for each of o_groups groups of heads, o_rank rows each. */
struct compressed { int o_groups, o_rank; };

/* Hyper-connections (arXiv:2409.19606): n residual streams; each half of a layer reads a mix of
 * them and adds its output to all.  0: one stream. */
struct hyper {
    int n;
    /* the streams are mixed by a matrix whose rows and columns sum up to 1; steps and epsilon of
     * the Sinkhorn iteration that makes it (arXiv:2512.24880) */
    int steps;
    float eps;
    /* channels of the gate (qwen4_exp): the streams are normed, a mix is gated by two matrices with
     * `rank` channels between them, and an output is added to each stream with a weight of its
     * own; 0: none */
    int rank;
};

/* Embeddings of the runs of 2 to `size` tokens that end with a token (qwen4_exp): `heads` rows
 * of dim elements for each length, chosen by a hash, of a table of the layer.  They make a value
 * for each stream, gated by how its key fits the stream, and a convolution over values `size`
 * tokens apart. */
struct ngram {
    int size, heads, dim, kernel;           /* size 0: none */
    int parts;                              /* of a table in the source */
    int32_t end;                            /* runs do not reach beyond this token */
    int n_layers;                           /* that have such embeddings */
    int *of;                                /* [config.n_layers] which of these a layer is, -1: none; owned */
    uint64_t *factor;                       /* [n_layers][size] of the hash; owned */
    int *rows;                              /* [n_layers][(size - 1) * heads] rows of each head; owned */
    int *all_rows;                          /* [n_layers] of the table; owned */
};

/* Layers with a state.  The state of a layer is, in floats: [conv_kernel - 1][recurrent_channels]
 * inputs of the convolution, oldest first, then [state_size][head_dim] for each head.  The input of
 * a layer is projected to one row:
 *   mamba2      z [heads * head_dim], the channels (x, B of all groups, C of all groups), dt
 *   [heads]
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
    /* delta net: `in` makes q of all groups, k of all groups, v of all heads; a matrix of its own
     * makes z of all heads */
    int z_apart;
    /* delta net: in_ba makes the rates of learning of all heads, then those of forgetting of all,
     * instead of both group by group */
    int ba_flat;
    /* GGUF: head h of the values reads key head h % n_groups, otherwise h / (n_heads / n_groups) */
    int tiled;
    int sigmoid_gate;           /* delta net: the gate is a sigmoid */
    float rate_scale;           /* delta net: factor on the rates of learning (olmo_hybrid: 2) */
    /* Kimi delta attention (arXiv:2510.26692): every row of a head's state decays at a rate of its
     * own, made by in_f [n_heads * state_size]; the gate is a sigmoid */
    int per_row;
    int gate_rank;              /* per_row: in_f and in_z read this many outputs of gate_a each; 0: the hidden state */
    int dt_rank;                /* mamba1: channels that make the time steps */
    int norm_first;             /* mamba2: the norm is before the gate */
    int scaled;                 /* mamba2: the projections of z, x, B, C and dt are multiplied by in_scale */
    float in_scale[5];
    float decay_least;          /* per_row: logarithms of decays are decay_least * sigmoid(..); 0: no such limit */
};

enum { MAX_ROPES = 8 };         /* granite_swa: one for each base */
struct rope {                   /* one table of rotations; layers choose one by index */
    int dim;                    /* rotated dimensions of a head */
    int pairs;                  /* 1: (0,1),(2,3)...; 0: (i, i + dim/2) */
    float *inv_freq;            /* [dim/2], owned by the config */
    float *inv_freq_long;       /* longrope: for the whole sequence when it is longer than original_max; else NULL */
    int original_max;
    float scale, scale_long;    /* factor on cos and sin (yarn's and longrope's attention factor), 1 otherwise */
};

/* Linear layers and norms with a bias. Of a GGUF the tensors decide: there a bit means "may
 * have". */
enum { BIAS_Q = 1, BIAS_K = 2, BIAS_V = 4, BIAS_O = 8, BIAS_GATE = 16, BIAS_UP = 32, BIAS_DOWN = 64, BIAS_NORM = 128,
       BIAS_HEAD = 256, BIAS_QK_NORM = 512,
       BIAS_ROUTER = 1024, BIAS_EXPERTS = 2048, BIAS_IN = 4096 /* in and o of layers with a state */,
       BIAS_OUT = 8192 /* state_o */, BIAS_INDEX = 16384 /* index_norm */, BIAS_DENSE_1 = 32768,
       BIAS_DENSE_2 = 65536, BIAS_DENSE_NORM = 131072, BIAS_QKV = 7, BIAS_MLP = 112 };

/* Parameters of the activation xIELU. */
enum xielu { XIELU_ALPHA_P, XIELU_ALPHA_N, XIELU_BETA, XIELU_EPS, N_XIELU };

/* How one vector is made of the final states of a text's tokens: their sum, the last, the first. */
/* STATE: the last one as it is, not scaled. */
enum embed { EMBED_NONE, EMBED_MEAN, EMBED_LAST, EMBED_FIRST, EMBED_STATE };

/* A model that makes vectors of texts, or scores of pairs of texts: one or two dense layers behind
 * the pooled state. */
enum dense_act { DENSE_PLAIN, DENSE_TANH, DENSE_RELU, DENSE_GELU };
enum { MAX_DENSE = 2 };
struct embedding {
    enum embed pooling;         /* EMBED_NONE: the model makes text */
    int normalize;              /* vectors have length 1 */
    int scores;                 /* a cross-encoder: the only element is the score of a pair */
    int max_len;                /* tokens of a text; 0: the context */
    int n_dense;
    struct dense { int in, out, biased; enum dense_act act; char stem[48] /* in the source */; } dense[MAX_DENSE];
    int raw_scores;             /* scores do not go through the sigmoid */
    int pair_types;             /* tokens of the second text of a pair are of type 1 */
    int pair_twice;             /* two separators between the texts of a pair (roberta) */
    int dense_norm;             /* a norm between the two (modernbert) */
    /* texts put before an input, by name, and the name of the one that is used unless another is
     * asked for; NULL: none; owned */
    json_t *prompts;
    char *default_prompt;
};

/* Layers that have sinks. */
enum sinks { SINKS_NONE, SINKS_ALL, SINKS_WINDOWED };

struct weight_names;                        /* arch.h */
struct wrapper;
struct config {
    char arch[32];              /* model_type */
    const struct wrapper *wrapper;          /* the source holds more than a language model; static, may be NULL */
    int n_layers, hidden_size, intermediate_size, n_heads, n_kv_heads, head_dim, vocab_size;
    int max_len;                /* max_position_embeddings */
    enum norm_kind norm;
    /* offset: gemma's (1 + w), and nemotron's, which model_bind adds to the weights of layer
     * norms */
    float norm_eps, norm_offset;
    /* olmo_hybrid: layers of attention have norms behind attention and MLP, others before them */
    int attn_post_norms;
    int norm_after_add;                     /* opt-350m: x = attn_post_norm(x + attn(x)), the same for the MLP */
    enum block_kind block;
    enum qk_norm qk_norm;
    enum norm_kind qk_norm_kind;
    int qk_norm_after_rope;                 /* hunyuan */
    float qk_norm_eps, qk_norm_offset;
    enum pos_kind pos;
    int pos_offset;                         /* opt: 2 */
    float alibi_max_bias, alibi_scale;      /* 8; factor on the slopes (falcon: 1/sqrt(head_dim)) */
    int n_ropes; struct rope ropes[MAX_ROPES];      /* gemma3: global and local */
    int act;                                /* enum act_kind of kernels.h by value: see arch.h */
    float *xielu;                           /* [n_layers][N_XIELU], of a GGUF; NULL: weights of the layers; owned */
    int gated;                              /* down(act(gate(x)) * up(x)) or down(act(up(x))) */
    float embed_scale, residual_scale, logit_scale, attn_scale;     /* 1, 1, 1, 1/sqrt(head_dim) by default */
    float attn_softcap, final_softcap, clip_qkv;                    /* 0: none */
    int embed_size;                         /* width of the embedding: hidden_size but for opt-350m */
    int tied;                               /* the head is the embedding */
    /* config.json has the key; otherwise the presence of a head in the weights decides */
    int tied_given;
    int biases;                             /* BIAS_: which linear layers and norms have one */
    /* the weights come from a GGUF file: its names, its order of q and k, norm offsets already
     * added */
    int gguf;
    const struct weight_names *names;       /* names of the weights in a source; static */
    unsigned char *mixer, *ff;              /* [n_layers] enum mixer_kind, enum ff_kind; owned */
    struct moe moe;
    /* For the cache and attention, MIXER_MLA is n_heads queries of one KV head of head_dim =
     * kv_rank + rope_dim, whose values are the first kv_rank elements of its keys. */
    struct mla mla;
    struct compressed compressed;
    int *rates;                             /* [n_layers] MIXER_COMPRESSED: tokens of an entry, 0: no entries; owned */
    struct hyper hyper;
    struct ngram ngram;
    /* [n_layers] FF_MOE: a table chooses the experts by the token; NULL: none; owned */
    unsigned char *hashed;
    struct indexer indexer;
    unsigned char *indexed;                 /* [n_layers] enum index_kind; NULL: none; owned */
    struct recurrent recurrent;
    /* attention's output is multiplied by the sigmoid of a projection of its own (qwen3_next) */
    enum attn_gate attn_gate;
    /* a score per head that takes part in the softmax and has no value (gpt-oss) */
    enum sinks sinks;
    int *window;                            /* [n_layers] sliding window in tokens, 0: full; owned */
    /* [n_layers] a token sees only its chunk of this many tokens, 0: all; owned */
    int *chunk;
    /* q *= log(1 + floor((pos + first) / floor)) * scale + 1; scale 0: off.  llama4: first 1, only
     * in layers without RoPE; ministral3: first 0, in all layers */
    float temperature_scale; int temperature_floor, temperature_first, temperature_roped;
    int qk_norm_roped;                      /* q and k are normed only where they rotate (llama4) */
    /* Layers of attention that differ (gemma4); NULL: all have head_dim and n_kv_heads, which are
     * otherwise the largest.  kv_from: the layer whose keys and values this one reads, itself or
     * an earlier one.  Owned. */
    int *head_dims, *kv_heads, *kv_from;
    int *mlp_sizes;                         /* [n_layers] widths of dense MLPs; NULL: intermediate_size; owned */
    /* Widths of a head's query and key, and of its value, where they differ (mimo_v2_flash); 0:
     * head_dim, which is the larger one: queries, keys and values are filled up with zeros for
     * attention. */
    int key_dim, value_dim;
    float value_scale;                      /* factor on the values */
    int v_norm;                             /* values are normed, without weights */
    int k_is_v;                             /* layers without a window: the keys before their norm are the values */
    /* A second embedding of the tokens, with ple_dim elements for each layer, each of which adds a
     * gated projection of its own (gemma3n, gemma4); 0: none.  Row 0 is for tokens beyond. */
    int ple_dim, ple_vocab;
    /* AltUp (arXiv:2301.13310, gemma3n): n_streams residuals, of which each layer computes on one,
     * and predicts and corrects the others; 0: one.  The ranks of LAuReL (arXiv:2411.07501); the
     * cutoff of gates per layer in standard deviations above the mean, NULL or 0: none; owned. */
    int n_streams, stream, scale_corrected, laurel_rank;
    float *cutoff;
    /* falcon_h1: factors on the outputs of attention and of the state, on the input of the gate's
     * activation, on the output of the MLP; 0: none */
    float attn_out_scale, state_out_scale, gate_scale, down_scale;
    /* minimax: the outputs of the norms times the first factor are the residuals, the second is on
     * the addend; of mixers with a state, of attention, of experts; 0: off */
    float renorm[3][2];
    /* layers of the source beyond n_layers that predict further tokens: not used */
    int n_extra_layers;
    int *rope_of;                           /* [n_layers] index into ropes, -1: none; owned */
    /* Encoders: a token also sees those behind it, in layers with a window those nearer than that
     * on both sides. */
    int both_ways;
    int n_types;                            /* types of tokens, which have embeddings (bert); 0: none */
    int bare_first;                         /* modernbert: the first layer has no norm before attention */
    struct embedding embedding;
    /* from config.json; the tokenizer and generation_config are better sources */
    int32_t bos, eos[8]; int n_eos;
};

/* Parse a normalised config.json. Unknown architectures, and unknown fields that would change
 * the result, are refused by name. */
int config_parse(struct config *c, const json_t *json, struct err *e);
void config_release(struct config *c);
/* How vectors of texts are pooled: the mean, if the model does not say it. */
enum embed config_pooling(const struct config *c);
/* The text that the model wants before a query, or before a document; NULL: none.  Borrowed. */
const char *config_prompt(const struct config *c, int document);
/* Elements of the vector that the model makes of a text. */
int config_embedding_size(const struct config *c);
/* Length from which a whole sequence uses LongRoPE's long factors; 0: never. */
int config_long_from(const struct config *c);
/* Name (model_type) of architecture i that runs, i = 0, 1, ...; NULL beyond the last. */
const char *config_architecture(int i);

/* ---- weights ---- */
struct linear { struct mat w; const float *bias; };     /* w.data NULL: absent; bias [rows] or NULL */
struct norm   { const float *w, *b; int present; };     /* present without w: a norm without weights (olmo) */

struct expert { struct linear gate, up, down; };

struct layer {
    struct norm attn_norm, attn_post_norm, mlp_norm, mlp_post_norm, q_norm, k_norm;
    /* [n_heads * head_dim], [intermediate_size]: of the inputs of o and down */
    struct norm attn_sub_norm, mlp_sub_norm;
    struct linear q, k, v, o;
    struct linear gate, up, down;   /* FF_MOE: the shared MLP */
    const float *act_alpha_p, *act_alpha_n, *act_beta, *act_eps;    /* [1] each, of xIELU (arXiv:2411.13010) */
    const float *sinks;             /* [n_heads] or NULL */
    /* MIXER_MLA: q reads q_norm(q_a(x)) if there is a q_a; kv_a makes latent and rotated key,
     * kv_norm norms the latent; k_b [n_heads * kv_rank, nope_dim] maps a head's query to the
     * space of the latents, v_b [n_heads * v_dim, kv_rank] a head's latent to its value */
    struct linear q_a, kv_a, k_b, v_b;
    struct norm q_a_norm, kv_norm;
    struct linear q_gate;           /* config.attn_gate */
    /* INDEX_FULL: queries from the input of q, keys, weights of heads; a layer norm of the keys */
    struct linear index_q, index_k, index_w;
    struct norm index_norm, index_q_norm;
    /* MIXER_COMPRESSED: what the entries sum up, and the scores of their softmax, by channel,
     * with a bias for each position in an entry; the same for the keys of an indexer, which
     * scores entries.  With an indexer there are two sums of each, one after the other: for the
     * next entry, and for this one.  o_a reads the output of attention, o what o_a makes */
    struct linear comp_value, comp_score, index_value, index_score, o_a;
    const float *comp_bias, *index_bias;
    struct norm comp_norm;
    /* config.hyper: [n * (n + 2), n * hidden_size] scores of mixes, their bias and scale, of both
     * halves */
    const float *hyper_attn, *hyper_attn_bias, *hyper_attn_scale, *hyper_ff, *hyper_ff_bias, *hyper_ff_scale;
    const float *hyper_attn_norm, *hyper_ff_norm;       /* [n * hidden_size], of hyper.rank */
    struct linear hyper_attn_down, hyper_attn_up, hyper_attn_inject, hyper_ff_down, hyper_ff_up, hyper_ff_inject;
    struct linear ngram_embed, ngram_key, ngram_value;
    const float *ngram_key_norm, *ngram_query_norm, *ngram_conv_norm;           /* [n * hidden_size] */
    const float *ngram_conv;                /* [kernel][n * hidden_size] */
    /* Layers with a state: in_ba makes the delta net's rates of learning and forgetting, per
     * group those of its heads; o is the output projection */
    struct linear in, in_ba, in_z;  /* in_z: recurrent.z_apart */
    struct linear x_proj, dt_proj;  /* mamba1: channels to time steps, B and C; time steps to channels */
    struct norm dt_norm, b_norm, c_norm;
    struct linear state_o;          /* MIXER_BOTH: the output projection of the state; o is that of attention */
    struct linear gate_a, in_f;     /* recurrent.per_row; gate_a [2 * gate_rank]: input of in_f, of in_z */
    const float *conv, *conv_bias;  /* [conv_kernel][channels], [channels] or NULL */
    const float *a_log, *dt_bias, *d;       /* [n_heads]; a_log from a GGUF: minus its exponential; d: mamba2 only */
    struct norm gate_norm;          /* mamba2: of all heads together; delta net: of one */
    /* FF_MOE */
    struct linear router, shared_router;
    const float *correction;        /* [n_experts] or NULL */
    const float *token_experts;     /* config.hashed: [vocab_size][top_k] numbers of experts */
    struct expert *experts;         /* [n_experts] */
    /* moe.beside: scales of the router's input, [n_experts] factors on the experts' weights */
    const float *router_scale, *expert_scale;
    struct norm dense_post_norm, expert_norm, expert_post_norm;
    struct linear ple_gate, ple_up;         /* config.ple_dim */
    struct norm ple_norm;
    /* AltUp: scores of the streams [n_streams, hidden_size] from a norm, coefficients [n_streams^2,
     * n_streams] of predictions, [n_streams, n_streams] of corrections, the scale of the result */
    struct norm altup_norm;
    const float *altup_router, *altup_predict, *altup_correct, *altup_scale;
    struct linear laurel_in, laurel_out;
    struct norm laurel_norm;
    const float *layer_scale;               /* [1]: the layer's output is multiplied by it; or NULL */
};

struct model {
    struct config config;
    struct layer *layers;
    /* outside of the layers: the rows of ends.def */
    struct linear embed;            /* [vocab_size, embed width] */
    struct linear embed_in, embed_out;  /* opt-350m: project_in, project_out; absent otherwise */
    struct linear ple_embed, ple_in;    /* config.ple_dim: [ple_vocab, n_layers * ple_dim], and from the embedding */
    /* [(n_streams - 1) * hidden_size, hidden_size]: streams from the embedding, and back */
    struct linear altup_in, altup_out;
    struct norm ple_in_norm;            /* of each layer's ple_dim elements */
    const float *hyper, *hyper_bias, *hyper_scale;      /* config.hyper: the mix that the final norm reads */
    const float *hyper_norm;                            /* of hyper.rank */
    struct linear hyper_down, hyper_up;
    const float *pos_embed;         /* [max_len + pos_offset, hidden_size] f32 or NULL */
    const float *type_embed;        /* [n_types, hidden_size] f32 or NULL */
    struct norm embed_norm, final_norm;
    struct linear dense_1, dense_2; /* behind the pooled state, see struct embedding */
    struct norm dense_norm;
    struct linear head;             /* the embedding if tied */
    struct zfile *file;             /* NULL for models assembled in memory; owned */
    void *owned;                    /* freed by model_close */
    uint64_t weight_bytes;          /* all weights */
};

/* Bind a .zse: every weight is found by name, its type and shape are checked against the config.
 * Owns z from then on, also on failure. */
struct model *model_bind(struct zfile *z, struct err *e);
void model_close(struct model *m);

/* Set `present` of all norms that the architecture has. */
void model_norms(struct model *m);
/* Allocate the experts of all layers that have some; model_close frees them. */
int model_experts(struct model *m, struct err *e);
/* Rows and cols of a linear layer by role, in this layer (any number for roles outside of
 * layers). */
void config_linear_shape(const struct config *c, int layer, int role, int64_t *rows, int64_t *cols);
/* Width of a layer's gate and up, of the dense or the shared MLP; 0: it has neither. */
int config_mlp_size(const struct config *c, int layer);
/* Attention of a layer: size of its heads, number of those with keys, and whether it reads the keys
 * and values of an earlier layer, or takes its keys as values. */
int config_head_dim(const struct config *c, int layer);
int config_kv_heads(const struct config *c, int layer);
int config_key_dim(const struct config *c, int layer);
int config_value_dim(const struct config *c, int layer);
int config_shares_kv(const struct config *c, int layer);
int config_key_is_value(const struct config *c, int layer);
/* Bytes of a layer's keys and values in a KV block, 0: it has none of its own. */
/* Entries of MIXER_COMPRESSED that begin or end in a KV block at most; their channels with scores:
 * those of an entry, or twice as many. */
int config_entries(const struct config *c, int layer);
/* The number of a layer among those with embeddings of runs of tokens, -1: it has none; floats of
 * their state. */
int config_ngram(const struct config *c, int layer);
size_t config_ngram_floats(const struct config *c, int layer);
int config_indexes(const struct config *c, int layer);      /* the layer has an indexer of its own */
size_t config_layer_kv_bytes(const struct config *c, int layer, struct kv_types types);
/* The first feature that calibration cannot run; NULL: it runs the model. */
const char *config_uncalibrated(const struct config *c);
/* Number of weights in a layer's matrices; per_token: of those that one token uses; of the mixer
 * alone. */
int64_t config_layer_parameters(const struct config *c, int layer, int per_token);
int64_t config_mixer_parameters(const struct config *c, int layer);
/* 1 if any layer is of this kind. */
int config_has_mixer(const struct config *c, enum mixer_kind kind);
int config_has_ff(const struct config *c, enum ff_kind kind);
/* Bytes of one KV block, all layers; 0 where no layer has attention. */
size_t config_kv_bytes(const struct config *c, struct kv_types types);
/* The layer's keys and values may lie in window blocks: it sees so many tokens at most; 0: all, or
 * more than attention reads them.  `most`: no layer sees more than its newest so many tokens (and
 * some at the beginning); 0: as the model has it. */
int config_layer_window(const struct config *c, int layer, int most);
int config_window(const struct config *c, int most);                /* the largest of them; 0: no layer has one */
/* Bytes of one window block: of all layers with a window, or, with a tail, of all layers as f16. */
size_t config_window_bytes(const struct config *c, struct kv_types types, int most);
/* Bytes of a KV block beside window blocks. */
size_t config_block_bytes(const struct config *c, struct kv_types types, int most);
/* Keys and values of these types have a tail (kvtype.h), whose f16 lie in window blocks: so many of
 * the newest tokens at most.  0: there is none, because the types need none or layers have
 * windows. */
int config_tail(const struct config *c, struct kv_types types, int most);
int config_streams(const struct config *c, int layer, int most);    /* `most` is less than the layer's own window */
/* Why no `most` can be set; NULL: it can. */
const char *config_stream_problem(const struct config *c);
/* Why this model's keys and values cannot be stored so; NULL: they can. */
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
/* Layers with a state: floats of a sequence's state in this layer (0: none), bytes of it in all
 * layers, channels of the convolution, width of o's input. */
size_t config_state_floats(const struct config *c, int layer);
size_t config_state_bytes(const struct config *c);
int recurrent_channels(const struct config *c, int layer);
int recurrent_width(const struct config *c, int layer);
/* The first feature that a backend with plain or windowed attention and dense MLPs only cannot
 * run; NULL: it can run the model. */
const char *config_beyond_dense(const struct config *c);

/* ---- where weights come from (used when converting) ---- */

/* One tensor of ours: its name, shape, and the part of a source tensor that makes it. */
struct weight_spec {
    char name[96];                  /* "layers.3.q_proj.weight" */
    char source[160];               /* "model.layers.3.self_attn.qkv_proj.weight" */
    struct row_map map;
    int64_t rows, cols;             /* rows 1 for vectors: cols = length */
    /* stored as plain f32: norms and biases (rows 1; the map selects elements), positions (rows
     * > 1) */
    int is_vector;
    int role;                       /* enum weight_role */
    int layer, expert;              /* -1: not in a layer, of no expert */
    /* enum layer_part (parts.h), outside of the layers enum end_part; of a bias that of its
     * matrix or norm */
    int part;
    int first_of_expert;            /* begins the range of an expert */
    int optional;                   /* may be missing in the source (a bias) */
};
enum weight_role {
    ROLE_EMBED, ROLE_POS, ROLE_NORM, ROLE_BIAS, ROLE_HEAD, ROLE_DENSE,
    N_ENDS_ROLES,               /* the roles above are outside of the layers, or of no matrix */
    /* matrices of a layer, see parts.def */
    ROLE_Q = N_ENDS_ROLES, ROLE_K, ROLE_V, ROLE_O, ROLE_GATE, ROLE_UP, ROLE_DOWN, ROLE_Q_A, ROLE_KV_A, ROLE_K_B,
    ROLE_V_B, ROLE_ROUTER, ROLE_SHARED_ROUTER, ROLE_EXPERT_GATE, ROLE_EXPERT_UP, ROLE_EXPERT_DOWN, ROLE_Q_GATE, ROLE_IN,
    ROLE_IN_BA, ROLE_IN_Z, ROLE_GATE_A, ROLE_IN_F, ROLE_PLE_GATE, ROLE_PLE_UP,
    ROLE_HYPER_ATTN_DOWN, ROLE_HYPER_ATTN_UP, ROLE_HYPER_ATTN_INJECT, ROLE_HYPER_FF_DOWN, ROLE_HYPER_FF_UP,
    ROLE_HYPER_FF_INJECT, ROLE_NGRAM_EMBED, ROLE_NGRAM_KEY, ROLE_NGRAM_VALUE, ROLE_COMP_VALUE, ROLE_COMP_SCORE,
    ROLE_INDEX_VALUE, ROLE_INDEX_SCORE, ROLE_O_A, ROLE_INDEX_Q, ROLE_INDEX_K,
    ROLE_INDEX_W, ROLE_LAUREL_IN, ROLE_LAUREL_OUT, ROLE_X_PROJ, ROLE_DT_PROJ, ROLE_STATE_O,
    N_ROLES
};

enum { WEIGHT_DIMS = 5 };       /* most dimensions of a source's tensor */

/* A source of weights: does a tensor exist, and with what shape? (import/ is above this layer.) */
struct weight_source {
    /* 0 with dim[] filled, or -1 if there is none. NULL: every tensor that the config asks for
     * exists (a model of which only the config is known). */
    int (*shape)(void *user, const char *name, int *n_dims, int64_t dim[WEIGHT_DIMS]);
    void *user;
    int is_gguf;
};
/* Every tensor of the model in forward order: embed, layer 0 .., final norm, head. Shapes of the
 * source are checked against the config; a missing tensor is an error that names it. *specs is
 * malloc'd. */
int weight_specs(const struct config *c, const struct weight_source *s, struct weight_spec **specs, int *n,
                 struct err *e);
/* Why a source tensor that no spec names may be left out. */
enum weight_skip {
    WEIGHT_UNKNOWN,             /* it may not */
    WEIGHT_BUFFER,              /* made from the configuration, or a copy: frequencies, masks, a tied head */
    WEIGHT_ENCODER,             /* part of an encoder of images, video or sound */
    WEIGHT_PREDICTOR,           /* predicts further tokens (multi-token prediction) */
    WEIGHT_TRAINING,            /* a head that was only used in training (encoders) */
    N_WEIGHT_SKIPS
};
enum weight_skip weight_skip(const struct config *c, const char *source_name);

#endif
