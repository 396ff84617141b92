/* arch_streams.c - architectures with hyper-connections: DeepSeek V4, which also compresses keys
 * and chooses experts by tables, and Qwen4 preview.  Sources: the configuration and modeling files
 * of transformers 5, config.json of the models on the hub, and arXiv:2512.24880. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/model/arch.h"

enum { MOST_WIDTH = 1 << 24, MOST_RATE = 1 << 20, MOST_STREAMS = 16, MOST_STEPS = 1000, MOST_INDEX_DIM = 4096,
       MOST_NGRAM = 8, MOST_NGRAM_HEADS = 64, MOST_TABLES = 1024 };

#define COMPRESSOR(at) .comp_value = at "wkv", .comp_score = at "wgate", .comp_norm = at "norm", .comp_bias = at "ape"
#define INDEXER(at)    .index_value = at "compressor.wkv", .index_score = at "compressor.wgate", \
                       .index_norm = at "compressor.norm", .index_bias = at "compressor.ape", .index_q = at "wq_b", \
                       .index_w = at "weights_proj"

static const struct weight_names
deepseek_v4_names = { .embed = "embed|embed_tokens", .final_norm = "norm", .head = "head", .layer = "layers.",
                      .attn_norm = "attn_norm", .mlp_norm = "ffn_norm", .q_a = "attn.wq_a", .q_a_norm = "attn.q_norm",
                      .q_b = "attn.wq_b", .k = "attn.wkv", .k_norm = "attn.norm|attn.kv_norm", .o_a = "attn.wo_a", .o = "attn.wo_b",
                      .sinks = "attn.attn_sink", COMPRESSOR("attn.compressor."), INDEXER("attn.indexer."),
                      .router = "ffn.gate", .correction = "ffn.gate.bias", .token_experts = "ffn.gate.tid2eid",
                      .experts = "ffn.experts.", .expert_gate = "w1", .expert_up = "w3", .expert_down = "w2",
                      .shared_gate = "ffn.shared_experts.w1", .shared_up = "ffn.shared_experts.w3",
                      .shared_down = "ffn.shared_experts.w2", .hyper = "hc_head_fn|hc_head.hc_fn",
                      .hyper_bias = "hc_head_base|hc_head.hc_base", .hyper_scale = "hc_head_scale|hc_head.hc_scale",
                      .hyper_attn = "hc_attn_fn", .hyper_attn_bias = "hc_attn_base",
                      .hyper_attn_scale = "hc_attn_scale", .hyper_ff = "hc_ffn_fn", .hyper_ff_bias = "hc_ffn_base",
                      .hyper_ff_scale = "hc_ffn_scale" };

#define HYPER(at, to)  .hyper_##to##norm = at ".hc_norm.weight", .hyper_##to##down = at ".input_mix_weight_down", \
                       .hyper_##to##up = at ".input_mix_weight_up"
#define AT             "linear_attn."

static const struct weight_names
qwen4_names = { .embed = "embed_tokens", .head = "lm_head", .layer = "layers.", .q_gated = 1,
                .q = "self_attn.q_proj", .k = "self_attn.k_proj", .v = "self_attn.v_proj", .o = "self_attn.o_proj",
                .q_norm = "self_attn.q_norm", .k_norm = "self_attn.k_norm",
                .index_q = "self_attn.indexer.index_qk_proj", .index_q_norm = "self_attn.indexer.q_layernorm",
                .index_norm = "self_attn.indexer.k_layernorm", .router = "mlp.gate", .experts = "mlp.experts.",
                .expert_gate = "gate_proj", .expert_up = "up_proj", .expert_down = "down_proj",
                .shared_gate = "mlp.shared_expert.gate_proj", .shared_up = "mlp.shared_expert.up_proj",
                .shared_down = "mlp.shared_expert.down_proj", .shared_router = "mlp.shared_expert_gate",
                .in = AT "in_proj_qkv", .in_z = AT "in_proj_z", .in_ba = AT "in_proj_{b,a}", .conv = AT "conv1d",
                .a_log = AT "A_log", .dt_bias = AT "dt_bias", .gate_norm = AT "norm", .state_o = AT "out_proj",
                HYPER("hyper_connection_mixer", ), HYPER("attn_hyper_connection", attn_),
                .hyper_attn_inject = "attn_hyper_connection.block_inject_weight", HYPER("mlp_hyper_connection", ff_),
                .hyper_ff_inject = "mlp_hyper_connection.block_inject_weight",
                .ngram_embed = "ple.ple_embedding.ngram_embedding", .ngram_key = "ple.key_proj",
                .ngram_value = "ple.value_proj", .ngram_key_norm = "ple.norm_key.weight",
                .ngram_query_norm = "ple.norm_query.weight", .ngram_conv_norm = "ple.norm_conv.weight",
                .ngram_conv = "ple.conv1d.weight" };

static void *list(struct parse *p, const struct config *c, size_t size)
{
    void *v = calloc((size_t)c->n_layers, size);
    if (!v) {
        err_nomem(p->e, "config");
        p->bad = 1;
    }
    return v;
}

/* Read the compression rates (tokens per entry) of both kinds of layers with entries: those with an
 * indexer, and the others. */
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

/* Set the kind of layer i: -1 window only, 0 entries chosen by an indexer, 1 all entries. */
static void set_kind(struct config *c, int i, int kind, const int rate[2])
{
    c->rates[i] = kind < 0 ? 0 : rate[kind];
    c->indexed[i] = kind == 0 ? INDEX_FULL : INDEX_NONE;
}

/* Read the kinds of layers from layer_types or compress_ratios; without these keys, set the
 * defaults. */
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

/* Find the layers that choose experts by a table: those that mlp_layer_types marks, or the first
 * num_hash_layers. */
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
    parse_find(p, "expert_dtype", NULL);                /* the tensors show it */
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

/* ---- qwen4_exp ---- */

static int is_prime(int n)
{
    for (int d = 2; (int64_t)d * d <= n; d++)
        if (n % d == 0)
            return 0;
    return n > 1;
}

/* splitmix64 of Steele, Lea and Flood (2014). */
static uint64_t scramble(uint64_t x)
{
    x += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

/* Make the parameters of the hashes: the factors of tokens, from a seed; and for each head of each
 * layer a prime number of rows.  The primes are consecutive, from the smallest one that is at least
 * `base`. */
static void hashes_make(struct parse *p, struct config *c, int base, uint64_t seed, int64_t divisor)
{
    struct ngram *g = &c->ngram;
    const int heads = (g->size - 1) * g->heads;
    const uint64_t half = ((uint64_t)INT64_MAX / (uint64_t)c->vocab_size) / 2, bound = half > 1 ? half : 1;
    int prime = base - 1;
    for (int i = 0; i < g->n_layers; i++) {
        int64_t sum = 0;
        for (int t = 0; t < g->size; t++)
            g->factor[i * g->size + t] = 2 * (scramble(seed + 10007 * (uint64_t)i +
                                                       0x9e3779b97f4a7c15 * (uint64_t)(t + 1)) % bound) + 1;
        for (int h = 0; h < heads; h++) {
            do
                prime++;
            while (!is_prime(prime));
            g->rows[i * heads + h] = prime;
            sum += prime;
        }
        sum = (sum + divisor - 1) / divisor * divisor;
        if (sum > INT32_MAX)
            parse_fail(p, ERR_SHAPE, "ngram_vocab_size_base %d of %d heads: too many rows", base, heads);
        g->all_rows[i] = (int)(sum > INT32_MAX ? 0 : sum);
    }
}

/* Read element i of an array of n whole numbers; 0 after a failure. */
static int64_t number_at(struct parse *p, const char *key, int n, int i, int64_t most)
{
    const json_t *list = parse_find(p, key, NULL), *v = json_array_get(list, (size_t)i);
    const int64_t found = json_is_integer(v) ? json_integer_value(v) : 0;
    if (!p->bad && (json_array_size(list) != (size_t)n || found < 1 || found > most))
        parse_fail(p, ERR_FORMAT, "%s: expected an array of %d numbers from 1 to %" PRId64, key, n, most);
    return p->bad ? 0 : found;
}

/* Read the parameters of the hashes from the keys that the GGUF reader writes. */
static void hashes_read(struct parse *p, struct config *c)
{
    struct ngram *g = &c->ngram;
    const int heads = (g->size - 1) * g->heads, n = g->n_layers;
    for (int i = 0; i < n * g->size; i++)
        g->factor[i] = (uint64_t)number_at(p, "zse_ngram_factors", n * g->size, i, INT64_MAX);
    for (int i = 0; i < n; i++) {
        int64_t sum = 0;
        for (int h = i * heads; h < (i + 1) * heads; h++) {
            g->rows[h] = (int)number_at(p, "zse_ngram_rows", n * heads, h, INT32_MAX);
            sum += g->rows[h];
        }
        g->all_rows[i] = (int)number_at(p, "zse_ngram_all_rows", n, i, INT32_MAX);
        if (sum > g->all_rows[i])
            parse_fail(p, ERR_SHAPE, "zse_ngram_all_rows: %d rows, but zse_ngram_rows adds up to %" PRId64,
                       g->all_rows[i], sum);
    }
}

/* Read the layers, numbered from 1, that have embeddings of runs of tokens. */
static void ngram_layers(struct parse *p, struct config *c)
{
    const json_t *ids = parse_find(p, "ple_layer_ids", NULL), *v;
    struct ngram *g = &c->ngram;
    size_t at;
    if (ids && !json_is_array(ids))
        parse_fail(p, ERR_FORMAT, "ple_layer_ids: found %s, expected an array", js_kind(ids));
    for (int i = 0; i < c->n_layers && !p->bad; i++)
        g->of[i] = -1;
    json_array_foreach((json_t *)ids, at, v) {
        const int64_t id = json_is_integer(v) ? json_integer_value(v) : 0;
        if (p->bad)
            return;
        if (id < 1 || id > c->n_layers || c->mixer[id - 1] != MIXER_DELTA)
            parse_fail(p, ERR_FORMAT, "ple_layer_ids: element %zu is no layer of linear attention of 1 to %d", at,
                       c->n_layers);
        else
            g->of[id - 1] = 0;
    }
    for (int i = 0; i < c->n_layers && !p->bad; i++)
        if (g->of[i] == 0)
            g->of[i] = g->n_layers++;
}

static void ngram_parse(struct parse *p, struct config *c)
{
    struct ngram *g = &c->ngram;
    g->of = list(p, c, sizeof *g->of);
    const int size = (int)parse_int(p, "ngram_size", 2, MOST_NGRAM, 3),
              heads = (int)parse_int(p, "heads_per_ngram", 1, MOST_NGRAM_HEADS, 8),
              embed = (int)parse_int(p, "ple_embed_dim", 1, MOST_WIDTH, c->hidden_size),
              kernel = (int)parse_int(p, "ple_conv_kernel_size", 2, 64, 4),
              base = (int)parse_int(p, "ngram_vocab_size_base", 1, 1 << 28, 20000000),
              parts = (int)parse_int(p, "split_ngram_parts", 1, 512, 512),
              end = (int)parse_int(p, "zse_ngram_end", 0, c->vocab_size - 1, c->n_eos ? c->eos[0] : -1);
    const int64_t divisor = parse_int(p, "make_ngram_vocab_size_divisible_by", 1, 1 << 20, 128),
                  seed = parse_int(p, "seed", 0, INT64_MAX, 1234);
    const int listed = parse_find(p, "zse_ngram_factors", NULL) != NULL;
    parse_find(p, "number_of_conv_states", NULL);
    if (!p->bad)
        ngram_layers(p, c);
    if (p->bad || !g->n_layers)
        return;
    if (embed % ((size - 1) * heads))
        parse_fail(p, ERR_SHAPE, "ple_embed_dim %d is not a multiple of ngram_size - 1 times heads_per_ngram %d", embed,
                   heads);
    if ((int64_t)g->n_layers * heads > MOST_TABLES || end < 0)
        parse_fail(p, ERR_UNSUPPORTED, "ple_layer_ids: %d layers of %d heads, an eos_token_id is %s", g->n_layers,
                   heads, end < 0 ? "missing" : "there");
    *g = (struct ngram){ .size = size, .heads = heads, .dim = embed / ((size - 1) * heads), .kernel = kernel,
                         .parts = parts, .end = end, .n_layers = g->n_layers, .of = g->of,
                         .factor = calloc((size_t)(g->n_layers * size), sizeof *g->factor),
                         .rows = calloc((size_t)(g->n_layers * (size - 1) * heads), sizeof *g->rows),
                         .all_rows = calloc((size_t)g->n_layers, sizeof *g->all_rows) };
    if (!g->factor || !g->rows || !g->all_rows) {
        err_nomem(p->e, "config");
        p->bad = 1;
    }
    if (!p->bad && listed)
        hashes_read(p, c);
    else if (!p->bad)
        hashes_make(p, c, base, (uint64_t)seed, divisor);
}

/* Read the indexer of the layers with attention. */
static void blocks_parse(struct parse *p, struct config *c)
{
    struct indexer *x = &c->indexer;
    c->indexed = list(p, c, sizeof *c->indexed);
    x->n_heads = (int)parse_int(p, "indexer_n_heads", 1, MOST_WIDTH, 0);
    x->head_dim = (int)parse_int(p, "indexer_head_dim", 2, MOST_INDEX_DIM, 0);
    x->block = (int)parse_int(p, "indexer_compress_ratio", 1, MOST_RATE, 0);
    const int budget = (int)parse_int(p, "indexer_budget", 1, INT32_MAX, 0),
              rope_dim = (int)(c->head_dim * parse_real(p, "partial_rotary_factor", 0.25));
    parse_must_equal(p, "indexer_kv_heads", 1);
    if (p->bad || (!x->n_heads && !x->head_dim && !x->block && !budget))
        return;
    if (!x->n_heads || !x->head_dim || !x->block || budget < x->block || budget % x->block ||
        (int64_t)x->n_heads * x->head_dim > MOST_WIDTH || rope_dim > x->head_dim)
        parse_fail(p, ERR_SHAPE, "indexer_n_heads %d of indexer_head_dim %d, indexer_budget %d in runs of indexer_compress_ratio %d: does not fit",
                   x->n_heads, x->head_dim, budget, x->block);
    x->top_k = x->block ? budget / x->block : 0;
    for (int i = 0; i < c->n_layers && !p->bad; i++)
        c->indexed[i] = c->mixer[i] == MIXER_ATTENTION ? INDEX_FULL : INDEX_NONE;
}

static void more_qwen4_exp(struct parse *p, struct config *c)
{
    static const struct layer_kind kinds[] = { { "linear_attention", MIXER_DELTA, -1 },
                                               { "indexed_attention", MIXER_ATTENTION, -1 },
                                               { "full_attention", MIXER_ATTENTION, -1 }, { 0 } };
    struct recurrent *r = &c->recurrent;
    struct hyper *h = &c->hyper;
    silu_only(p, c);
    attention_bias_parse(p, c);
    parse_must_be(p, "attn_output_gate", 1);
    experts_parse(p, c, 512, 10, 512);
    c->moe.normalize = parse_bool(p, "norm_topk_prob", 1);
    c->moe.shared_size = (int)parse_int(p, "shared_expert_intermediate_size", 1, MOST_WIDTH, 512);
    c->moe.shared_gate = 1;
    c->norm_offset = c->qk_norm_offset = c->gguf ? 0 : 1;
    c->attn_gate = ATTN_GATE_CHANNEL;
    const int every = (int)parse_int(p, "full_attention_interval", 1, INT32_MAX, 4);
    for (int i = 0; i < c->n_layers; i++)
        c->mixer[i] = (i + 1) % every ? MIXER_DELTA : MIXER_ATTENTION;
    kinds_parse(p, c, "layer_types", kinds);
    *r = (struct recurrent){ .conv_kernel = (int)parse_int(p, "linear_conv_kernel_dim", 2, 64, 4),
                             .n_heads = (int)parse_int(p, "linear_num_value_heads", 1, MOST_WIDTH, 32),
                             .head_dim = (int)parse_int(p, "linear_value_head_dim", 1, MOST_WIDTH, 128),
                             .n_groups = (int)parse_int(p, "linear_num_key_heads", 1, MOST_WIDTH, 16),
                             .state_size = (int)parse_int(p, "linear_key_head_dim", 1, MOST_WIDTH, 128),
                             .norm_eps = c->norm_eps, .rate_scale = 1, .z_apart = 1, .ba_flat = 1, .tiled = c->gguf };
    delta_check(p, r);
    const char *gate = parse_string(p, "output_gate_type", "silu");
    r->sigmoid_gate = strcmp(gate, "sigmoid") == 0;
    if (!r->sigmoid_gate && strcmp(gate, "silu") != 0)
        parse_fail(p, ERR_UNSUPPORTED, "output_gate_type \"%.40s\" is not supported, expected silu or sigmoid", gate);
    h->n = (int)parse_int(p, "hc_count", 2, MOST_STREAMS, 4);
    h->rank = (int)parse_int(p, "hc_lowrank", 1, MOST_WIDTH, 320);
    if ((int64_t)h->n * c->hidden_size > MOST_WIDTH)
        parse_fail(p, ERR_SHAPE, "hc_count %d of hidden_size %d, expected a product of at most %d", h->n,
                   c->hidden_size, MOST_WIDTH);
    c->n_extra_layers = (int)parse_int(p, "num_nextn_predict_layers", 0, 65536, 0);
    c->next_embeds = parse_bool(p, "mtp_use_dedicated_embeddings", 0);
    parse_find(p, "mamba_ssm_dtype|mlp_only_layers|mtp_num_hidden_layers", NULL);
    if (!p->bad)
        ngram_parse(p, c);
    if (!p->bad)
        blocks_parse(p, c);
}

const struct arch stream_archs[] = {
    { ROW("deepseek_v4", deepseek_v4_names, 129280, 4096, 2048, 43, 64, 1, 1 << 20), ROPE(10000), .eps = 1e-6,
      .act = "silu", .head_dim = 512, .rope_pairs = 1, .rope_compress = 1, .more = more_deepseek_v4 },
    { ROW("qwen4_exp_text", qwen4_names, 248320, 2048, 5632, 40, 16, 2, 32768), ROPE(10000), .eps = 1e-6,
      .act = "silu", .head_dim = 256, .partial = 0.25, .qk_norm = QK_NORM_HEAD, .more = more_qwen4_exp },
    { 0 }
};
