/* arch_streams.c - list the architectures with hyper-connections: DeepSeek V4, which also
 * compresses keys and chooses experts by tables.  Facts: the configuration and modeling files of
 * transformers 5, config.json of the models on the hub, and arXiv:2512.24880. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/model/arch.h"

enum { MOST_WIDTH = 1 << 24, MOST_RATE = 1 << 20, MOST_STREAMS = 16, MOST_STEPS = 1000, MOST_INDEX_DIM = 4096 };

#define COMPRESSOR(at) .comp_value = at "wkv", .comp_score = at "wgate", .comp_norm = at "norm", .comp_bias = at "ape"
#define INDEXER(at)    .index_value = at "compressor.wkv", .index_score = at "compressor.wgate", \
                       .index_norm = at "compressor.norm", .index_bias = at "compressor.ape", .index_q = at "wq_b", \
                       .index_w = at "weights_proj"

static const struct weight_names
deepseek_v4_names = { .embed = "embed|embed_tokens", .final_norm = "norm", .head = "head", .layer = "layers.",
                      .attn_norm = "attn_norm", .mlp_norm = "ffn_norm", .q_a = "attn.wq_a", .q_a_norm = "attn.q_norm",
                      .q_b = "attn.wq_b", .k = "attn.wkv", .k_norm = "attn.norm", .o_a = "attn.wo_a", .o = "attn.wo_b",
                      .sinks = "attn.attn_sink", COMPRESSOR("attn.compressor."), INDEXER("attn.indexer."),
                      .router = "ffn.gate", .correction = "ffn.gate.bias", .token_experts = "ffn.gate.tid2eid",
                      .experts = "ffn.experts.", .expert_gate = "w1", .expert_up = "w3", .expert_down = "w2",
                      .shared_gate = "ffn.shared_experts.w1", .shared_up = "ffn.shared_experts.w3",
                      .shared_down = "ffn.shared_experts.w2", .hyper = "hc_head_fn|hc_head.hc_fn",
                      .hyper_bias = "hc_head_base|hc_head.hc_base", .hyper_scale = "hc_head_scale|hc_head.hc_scale",
                      .hyper_attn = "hc_attn_fn", .hyper_attn_bias = "hc_attn_base",
                      .hyper_attn_scale = "hc_attn_scale", .hyper_ff = "hc_ffn_fn", .hyper_ff_bias = "hc_ffn_base",
                      .hyper_ff_scale = "hc_ffn_scale" };

static void *list(struct parse *p, const struct config *c, size_t size)
{
    void *v = calloc((size_t)c->n_layers, size);
    if (!v) {
        err_nomem(p->e, "config");
        p->bad = 1;
    }
    return v;
}

/* The rates of both kinds of layers with entries: those with an indexer, and the others. */
static void rates_parse(struct parse *p, int rate[2])
{
    static const char *const names[2] = { "compressed_sparse_attention", "heavily_compressed_attention" };
    json_t *given = parse_find(p, "compress_rates", NULL);
    const char *key;
    json_t *v;
    rate[0] = (int)parse_int(p, "compress_rate_csa", 1, MOST_RATE, 4);
    rate[1] = (int)parse_int(p, "compress_rate_hca", 1, MOST_RATE, 128);
    if (given && !json_is_object(given))
        parse_fail(p, ERR_FORMAT, "compress_rates: found %s, expected an object", js_kind(given));
    json_object_foreach(given, key, v) {
        const int which = strcmp(key, names[0]) == 0 ? 0 : strcmp(key, names[1]) == 0 ? 1 : -1;
        if (which < 0 || !json_is_integer(v) || json_integer_value(v) < 1 || json_integer_value(v) > MOST_RATE)
            parse_fail(p, ERR_FORMAT, "compress_rates: \"%.40s\" is not the kind of a layer with a number from 1 to %d",
                       key, MOST_RATE);
        else
            rate[which] = (int)json_integer_value(v);
    }
}

/* Set what layer i is: -1 a window only, 0 with entries that an indexer chooses, 1 with entries. */
static void set_kind(struct config *c, int i, int kind, const int rate[2])
{
    c->rates[i] = kind < 0 ? 0 : rate[kind];
    c->indexed[i] = kind == 0 ? INDEX_FULL : INDEX_NONE;
}

/* The kinds of layers: layer_types, or compress_ratios, or the defaults. */
static void layers_parse(struct parse *p, struct config *c)
{
    static const char *const names[3] = { "sliding_attention", "compressed_sparse_attention",
                                          "heavily_compressed_attention" };
    const json_t *types = parse_find(p, "layer_types", NULL), *ratios = parse_find(p, "compress_ratios", NULL);
    const json_t *list = types ? types : ratios;
    int rate[2];
    rates_parse(p, rate);
    if (list && (!json_is_array(list) || json_array_size(list) < (size_t)c->n_layers)) {
        parse_fail(p, ERR_FORMAT, "%s: expected an array of num_hidden_layers = %d elements",
                   types ? "layer_types" : "compress_ratios", c->n_layers);
        return;
    }
    for (int i = 0; i < c->n_layers && !p->bad; i++) {
        const json_t *v = json_array_get(list, (size_t)i);
        const char *name = json_string_value(v);
        int kind = -2;
        if (!list)
            kind = i < 2 || i % 2 ? 1 : 0;
        for (int k = 0; k < 3 && types; k++)
            kind = name && strcmp(name, names[k]) == 0 ? k - 1 : kind;
        if (ratios && !types && json_is_integer(v))
            kind = json_integer_value(v) == 0 ? -1 : json_integer_value(v) == 4 ? 0
                   : json_integer_value(v) == 128 ? 1 : -2;
        if (kind == -2 && types)
            parse_fail(p, ERR_UNSUPPORTED, "layer_types: layer %d is \"%.40s\", expected one of %s, %s, %s", i,
                       name ? name : "?", names[0], names[1], names[2]);
        else if (kind == -2)
            parse_fail(p, ERR_UNSUPPORTED, "compress_ratios: element %d is not 0, 4 or 128", i);
        else
            set_kind(c, i, kind, rate);
    }
}

/* Layers whose experts a table chooses: mlp_layer_types, or the first num_hash_layers. */
static void hashes_parse(struct parse *p, struct config *c)
{
    const json_t *types = parse_find(p, "mlp_layer_types", NULL);
    const int first = (int)parse_int(p, "num_hash_layers", 0, INT32_MAX, 3);
    if (types && (!json_is_array(types) || json_array_size(types) < (size_t)c->n_layers)) {
        parse_fail(p, ERR_FORMAT, "mlp_layer_types: expected an array of num_hidden_layers = %d names", c->n_layers);
        return;
    }
    for (int i = 0; i < c->n_layers; i++) {
        const char *name = json_string_value(json_array_get(types, (size_t)i));
        c->hashed[i] = types ? name && strcmp(name, "hash_moe") == 0 : i < first;
        if (types && !c->hashed[i] && !(name && strcmp(name, "moe") == 0))
            parse_fail(p, ERR_UNSUPPORTED, "mlp_layer_types: layer %d is \"%.40s\", expected \"hash_moe\" or \"moe\"",
                       i, name ? name : "?");
    }
}

static void router_parse(struct parse *p, struct config *c)
{
    struct moe *m = &c->moe;
    const char *score = parse_string(p, "scoring_func", "sqrtsoftplus");
    experts_parse(p, c, 256, 6, 2048);
    shared_parse(p, c, "n_shared_experts", 1);
    m->router = strcmp(score, "sigmoid") == 0 ? ROUTER_SIGMOID
                : strcmp(score, "softmax") == 0 ? ROUTER_SOFTMAX : ROUTER_SQRT_SOFTPLUS;
    if (m->router == ROUTER_SQRT_SOFTPLUS && strcmp(score, "sqrtsoftplus") != 0)
        parse_fail(p, ERR_UNSUPPORTED, "scoring_func \"%.40s\" is not supported, expected sqrtsoftplus, sigmoid or softmax", score);
    const char *method = parse_string(p, "topk_method", "noaux_tc");
    if (strcmp(method, "noaux_tc") != 0)
        parse_fail(p, ERR_UNSUPPORTED, "topk_method \"%.40s\" is not supported, expected \"noaux_tc\"", method);
    m->correction = 1;
    m->normalize = 1;
    m->norm_add = 1e-20f;
    parse_must_be(p, "norm_topk_prob", 1);
    m->scale = (float)parse_real(p, "routed_scaling_factor", 1.5);
    m->act_limit = (float)parse_real(p, "swiglu_limit", 10);
    if (!(m->act_limit > 0))
        parse_fail(p, ERR_FORMAT, "swiglu_limit is %g, expected a positive number", (double)m->act_limit);
}

static void streams_parse(struct parse *p, struct config *c)
{
    struct hyper *h = &c->hyper;
    h->n = (int)parse_int(p, "hc_mult", 1, MOST_STREAMS, 4);
    h->steps = (int)parse_int(p, "hc_sinkhorn_iters", 1, MOST_STEPS, 20);
    h->eps = (float)parse_real(p, "hc_eps", 1e-6);
    if (!(h->eps >= 0) || !isfinite(h->eps))
        parse_fail(p, ERR_FORMAT, "hc_eps is %g, expected a number from 0 on", (double)h->eps);
    if ((int64_t)h->n * c->hidden_size > MOST_WIDTH)
        parse_fail(p, ERR_SHAPE, "hc_mult %d of hidden_size %d, expected a product of at most %d", h->n,
                   c->hidden_size, MOST_WIDTH);
}

static void more_deepseek_v4(struct parse *p, struct config *c)
{
    struct compressed *o = &c->compressed;
    struct indexer *x = &c->indexer;
    const double partial = parse_real(p, "partial_rotary_factor", 64.0 / 512);
    c->rates = list(p, c, sizeof *c->rates);
    c->indexed = list(p, c, sizeof *c->indexed);
    c->hashed = list(p, c, sizeof *c->hashed);
    silu_only(p, c);
    c->mla.q_rank = (int)parse_int(p, "q_lora_rank", 1, MOST_WIDTH, 1024);
    c->mla.norm_eps = c->norm_eps;
    c->mla.rope_dim = (int)parse_int(p, "qk_rope_head_dim", 2, c->head_dim, (int64_t)(c->head_dim * partial));
    o->o_groups = (int)parse_int(p, "o_groups", 1, MOST_WIDTH, 8);
    o->o_rank = (int)parse_int(p, "o_lora_rank", 1, MOST_WIDTH, 1024);
    x->n_heads = (int)parse_int(p, "index_n_heads", 1, MOST_WIDTH, 64);
    x->head_dim = (int)parse_int(p, "index_head_dim", 2, MOST_INDEX_DIM, 128);
    x->top_k = (int)parse_int(p, "index_topk", 1, INT32_MAX, 512);
    parse_must_be(p, "attention_bias", 0);
    parse_must_be(p, "mlp_bias", 0);
    if (p->bad)
        return;
    if (c->n_kv_heads != 1)
        parse_fail(p, ERR_UNSUPPORTED, "num_key_value_heads is %d, expected 1", c->n_kv_heads);
    if (c->n_heads % o->o_groups || (int64_t)o->o_groups * o->o_rank > MOST_WIDTH)
        parse_fail(p, ERR_SHAPE, "num_attention_heads %d in o_groups %d of o_lora_rank %d: does not fit", c->n_heads,
                   o->o_groups, o->o_rank);
    if (c->mla.rope_dim > x->head_dim || c->mla.rope_dim % 2 || (int64_t)x->n_heads * x->head_dim > MOST_WIDTH)
        parse_fail(p, ERR_SHAPE, "index_n_heads %d of index_head_dim %d, qk_rope_head_dim %d: does not fit", x->n_heads,
                   x->head_dim, c->mla.rope_dim);
    memset(c->mixer, MIXER_COMPRESSED, (size_t)c->n_layers);
    const int window = (int)parse_int(p, "sliding_window", 1, INT32_MAX, 128);
    for (int i = 0; i < c->n_layers; i++)
        c->window[i] = window;
    c->sinks = SINKS_ALL;
    layers_parse(p, c);
    hashes_parse(p, c);
    router_parse(p, c);
    streams_parse(p, c);
    c->n_extra_layers = (int)parse_int(p, "num_nextn_predict_layers|num_mtp_layers", 0, 65536, 0);
}

const struct arch stream_archs[] = {
    { ROW("deepseek_v4", deepseek_v4_names, 129280, 4096, 2048, 43, 64, 1, 1 << 20), ROPE(10000), .eps = 1e-6,
      .act = "silu", .head_dim = 512, .rope_pairs = 1, .rope_compress = 1, .more = more_deepseek_v4 },
    { 0 }
};
