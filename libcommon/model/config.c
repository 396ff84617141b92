/* config.c - read config.json into hyper-parameters. Facts of single architectures are in
 * arch.c, rotations in rope.c. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/model/arch.h"

/* ---- reading keys ---- */

void parse_fail(struct parse *p, enum err_code code, const char *fmt, ...)
{
    if (p->bad)
        return;
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    err_set(p->e, code, "%s: %s", p->where, text);
    p->bad = 1;
}

json_t *parse_find(struct parse *p, const char *keys, const char **key)
{
    json_t *found = NULL;
    for (const char *s = keys, *end; *s; s = *end ? end + 1 : end) {
        end = strchrnul(s, '|');
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)(end - s), s);
        if (json_object_set_new(p->seen, name, json_true()) < 0) {
            err_nomem(p->e, "config");
            p->bad = 1;
        }
        json_t *v = js_get(p->json, name);
        if (v && !found) {
            found = v;
            if (key)
                *key = json_object_iter_key(json_object_iter_at((json_t *)p->json, name));
        }
    }
    return found;
}

static void wrong_kind(struct parse *p, const char *key, const json_t *v, const char *expected)
{
    parse_fail(p, ERR_FORMAT, "%s: found %s, expected %s", key, js_kind(v), expected);
}

int64_t parse_int(struct parse *p, const char *keys, int64_t min, int64_t max, int64_t otherwise)
{
    const char *key;
    const json_t *v = parse_find(p, keys, &key);
    if (!v)
        return otherwise;
    int64_t n = 0;
    if (json_is_integer(v))
        n = json_integer_value(v);
    else if (json_is_real(v) && json_real_value(v) == floor(json_real_value(v)) && fabs(json_real_value(v)) < 0x1p53)
        n = (int64_t)json_real_value(v);
    else
        wrong_kind(p, key, v, "a whole number");
    if (!p->bad && (n < min || n > max))
        parse_fail(p, ERR_FORMAT, "%s is %lld, expected %lld to %lld", key, (long long)n, (long long)min,
                   (long long)max);
    return p->bad ? otherwise : n;
}

double parse_real(struct parse *p, const char *keys, double otherwise)
{
    const char *key;
    const json_t *v = parse_find(p, keys, &key);
    if (!v)
        return otherwise;
    if (!json_is_number(v))
        wrong_kind(p, key, v, "a number");
    return p->bad ? otherwise : json_number_value(v);
}

int parse_bool(struct parse *p, const char *keys, int otherwise)
{
    const char *key;
    const json_t *v = parse_find(p, keys, &key);
    if (!v)
        return otherwise;
    if (json_is_integer(v) && (json_integer_value(v) == 0 || json_integer_value(v) == 1))
        return json_integer_value(v) == 1;
    if (!json_is_boolean(v))
        wrong_kind(p, key, v, "true or false");
    return p->bad ? otherwise : json_is_true(v);
}

const char *parse_string(struct parse *p, const char *keys, const char *otherwise)
{
    const char *key;
    const json_t *v = parse_find(p, keys, &key);
    if (!v)
        return otherwise;
    if (!json_is_string(v))
        wrong_kind(p, key, v, "a string");
    return p->bad ? otherwise : json_string_value(v);
}

void parse_must_be(struct parse *p, const char *key, int value)
{
    if (parse_bool(p, key, value) != value)
        parse_fail(p, ERR_UNSUPPORTED, "%s: %s is not supported", key, value ? "false" : "true");
}

void parse_must_equal(struct parse *p, const char *key, int value)
{
    const int64_t found = parse_int(p, key, 0, INT32_MAX, value);
    if (found != value)
        parse_fail(p, ERR_UNSUPPORTED, "%s: %lld is not supported, expected %d", key, (long long)found, value);
}

void parse_leftovers(struct parse *p, const char *const *ignored)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)p->json, key, v) {
        if (json_object_get(p->seen, key) || json_is_null(v) || json_is_false(v))
            continue;
        int i = 0;
        while (ignored[i] && strcmp(ignored[i], key) != 0)
            i++;
        if (ignored[i])
            continue;
        const char *method = strcmp(key, "quantization_config") == 0
                                 ? json_string_value(json_object_get(v, "quant_method")) : NULL;
        if (method) {
            parse_fail(p, ERR_UNSUPPORTED, "quantization_config: weights quantized by \"%s\" are not supported; take the model they were made from, or a GGUF of it", method);
            return;
        }
        char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
        parse_fail(p, ERR_UNSUPPORTED, "%s: %.60s is not understood by this architecture (keys that change nothing are listed in model/arch.c)", key, text ? text : "?");
        free(text);
        return;
    }
}

/* ---- keys of every architecture ---- */

static int act_parse(struct parse *p, const struct arch *a)
{
    static const struct { const char *name; enum config_act act; } acts[] = {
        { "silu", CONFIG_ACT_SILU }, { "swish", CONFIG_ACT_SILU }, { "gelu", CONFIG_ACT_GELU },
        { "gelu_python", CONFIG_ACT_GELU },
        { "gelu_new", CONFIG_ACT_GELU_TANH }, { "gelu_pytorch_tanh", CONFIG_ACT_GELU_TANH },
        { "gelu_fast", CONFIG_ACT_GELU_TANH },
        { "relu", CONFIG_ACT_RELU }, { "relu2", CONFIG_ACT_RELU2 }, { "quick_gelu", CONFIG_ACT_GELU_QUICK },
        { "xielu", CONFIG_ACT_XIELU },
    };
    const char *name = parse_string(p, "hidden_activation|hidden_act|activation_function|activation", a->act);
    for (size_t i = 0; i < sizeof acts / sizeof *acts; i++)
        if (strcmp(acts[i].name, name) == 0 && (acts[i].act != CONFIG_ACT_XIELU || a->names->act_alpha_p))
            return (int)acts[i].act;
    parse_fail(p, ERR_UNSUPPORTED, "hidden_act \"%.40s\" is not supported", name);
    return 0;
}

enum { MIN_INDEXED = 512 };      /* calibration uses no longer windows */

/* 1 if any layer reuses the choice of tokens of an earlier one. */
static int shares_choice(const struct config *c)
{
    int shares = 0;
    for (int i = 0; i < c->n_layers && c->indexed; i++)
        shares |= c->mixer[i] == MIXER_MLA && !config_indexes(c, i);
    return shares;
}

/* Limits that no model reaches; their products stay far below 63 bits. */
enum { MAX_LAYERS = 65536, MAX_WIDTH = 1 << 24, MAX_VOCAB = 1 << 28, MAX_LEN = 1 << 28, MAX_EXPERTS = 1 << 20 };

static void sizes_parse(struct parse *p, const struct arch *a, struct config *c)
{
    c->vocab_size = (int)parse_int(p, "vocab_size", 1, MAX_VOCAB, a->vocab_size);
    c->hidden_size = (int)parse_int(p, "hidden_size|n_embd|n_embed|d_model|dim", 1, MAX_WIDTH, a->hidden_size);
    c->n_layers = (int)parse_int(p, "num_hidden_layers|n_layer|n_layers", 1, MAX_LAYERS, a->n_layers);
    c->n_heads = (int)parse_int(p, "num_attention_heads|n_head|n_heads|num_heads", 1, MAX_WIDTH, a->n_heads);
    c->n_kv_heads = (int)parse_int(p, "num_kv_heads|n_head_kv|num_key_value_heads", 1, MAX_WIDTH,
                                   a->n_kv_heads ? a->n_kv_heads : c->n_heads);
    const json_t *list = js_get(p->json, "intermediate_size");          /* gemma3n: one per layer */
    if (json_is_array(list))
        c->intermediate_size = (int)json_integer_value(json_array_get(list, 0));
    else
        c->intermediate_size = (int)parse_int(p, "ffn_hidden_size|ffn_dim|n_inner|intermediate_size|hidden_dim", 1,
                                              MAX_WIDTH,
                                          a->intermediate_size ? a->intermediate_size : 4 * (int64_t)c->hidden_size);
    c->max_len = (int)parse_int(p, "max_position_embeddings|n_positions|max_seq_len|seq_length", 1, MAX_LEN,
                                a->max_len);
    c->head_dim = (int)parse_int(p, "head_dim|attention_head_dim|kv_channels", 1, MAX_WIDTH, a->head_dim);
    if (!c->head_dim && !p->bad) {
        if (c->hidden_size % c->n_heads)
            parse_fail(p, ERR_SHAPE, "hidden_size %d is not a multiple of num_attention_heads %d", c->hidden_size,
                       c->n_heads);
        c->head_dim = c->hidden_size / c->n_heads;
    }
    c->embed_size = c->hidden_size;
}

static void eos_parse(struct parse *p, struct config *c)
{
    c->bos = (int32_t)parse_int(p, "bos_token_id", INT32_MIN, INT32_MAX, -1);
    const json_t *eos = parse_find(p, "eos_token_id", NULL), *v;
    size_t i, room = sizeof c->eos / sizeof *c->eos;
    if (json_is_integer(eos)) {
        c->eos[c->n_eos++] = (int32_t)json_integer_value(eos);
    } else if (json_is_array(eos)) {
        if (json_array_size(eos) > room)
            parse_fail(p, ERR_UNSUPPORTED, "eos_token_id: %zu ids, expected at most %zu", json_array_size(eos), room);
        json_array_foreach((json_t *)eos, i, v)
            if (i < room && json_is_integer(v))
                c->eos[c->n_eos++] = (int32_t)json_integer_value(v);
    } else if (eos) {
        wrong_kind(p, "eos_token_id", eos, "a number or an array of numbers");
    }
}

void layer_types_parse(struct parse *p, struct config *c, int64_t window)
{
    const json_t *types = parse_find(p, "layer_types", NULL);
    if (!types)
        return;
    if (!json_is_array(types) || json_array_size(types) != (size_t)c->n_layers) {
        parse_fail(p, ERR_FORMAT, "layer_types: expected an array of num_hidden_layers = %d names", c->n_layers);
        return;
    }
    for (int i = 0; i < c->n_layers; i++) {
        const char *type = json_string_value(json_array_get(types, (size_t)i));
        int sliding = type && strcmp(type, "sliding_attention") == 0;
        if (type && strcmp(type, "chunked_attention") == 0 && c->chunk[i])
            continue;
        if (type && strcmp(type, "full_attention") == 0)
            c->chunk[i] = 0;
        if (!sliding && !(type && strcmp(type, "full_attention") == 0))
            parse_fail(p, ERR_UNSUPPORTED, "layer_types: layer %d is \"%.40s\", expected \"full_attention\" or \"sliding_attention\"", i, type ? type : "?");
        else if (sliding && window < 1)
            parse_fail(p, ERR_FORMAT, "layer_types: layer %d is \"sliding_attention\", but there is no sliding_window",
                       i);
        else
            c->window[i] = sliding ? (int)window : 0;
    }
}

/* Refuse values that are invalid for every architecture. */
static void check(struct parse *p, const struct config *c)
{
    if (c->n_heads % c->n_kv_heads)
        parse_fail(p, ERR_SHAPE, "num_attention_heads %d is not a multiple of num_key_value_heads %d", c->n_heads,
                   c->n_kv_heads);
    if ((int64_t)c->n_heads * c->head_dim > MAX_WIDTH)
        parse_fail(p, ERR_SHAPE, "num_attention_heads %d of head_dim %d, expected a product of at most %d", c->n_heads,
                   c->head_dim, MAX_WIDTH);
    const struct mla *a = &c->mla;
    if ((int64_t)c->n_heads * ((int64_t)a->nope_dim + a->rope_dim) > MAX_WIDTH || (int64_t)c->n_heads *
        a->v_dim > MAX_WIDTH)
        parse_fail(p, ERR_SHAPE, "num_attention_heads %d of qk_nope_head_dim %d, qk_rope_head_dim %d, v_head_dim %d, expected a width of at most %d", c->n_heads, a->nope_dim,
                   a->rope_dim, a->v_dim, MAX_WIDTH);
    const struct moe *m = &c->moe;
    if (m->top_k > m->n_experts)
        parse_fail(p, ERR_SHAPE, "num_experts_per_tok %d of %d experts", m->top_k, m->n_experts);
    if ((int64_t)c->n_layers * m->n_experts > MAX_EXPERTS)
        parse_fail(p, ERR_SHAPE, "%d experts in each of %d layers, expected a product of at most %d", m->n_experts,
                   c->n_layers, MAX_EXPERTS);
    if (m->n_groups > 1 && (m->n_experts % m->n_groups || m->top_groups > m->n_groups || m->n_experts /
                            m->n_groups < m->group_best || m->top_k > m->n_experts / m->n_groups * m->top_groups))
        parse_fail(p, ERR_SHAPE, "%d experts in n_group %d groups, %d of the best topk_group %d: does not fit",
                   m->n_experts, m->n_groups, m->top_k, m->top_groups);
    if (!(c->norm_eps >= 0) || !isfinite(c->norm_eps) || !isfinite(c->attn_scale) || !isfinite(c->embed_scale) ||
        !isfinite(c->residual_scale) || !isfinite(c->logit_scale) || !isfinite(c->moe.scale) ||
        !isfinite(c->moe.norm_min) || !isfinite(c->temperature_scale) || !isfinite(c->attn_softcap) ||
        !isfinite(c->final_softcap) || !isfinite(c->value_scale) || !isfinite(c->clip_qkv))
        parse_fail(p, ERR_FORMAT, "an epsilon, scale, cap or clip is not a finite number");
}

static void refuse_architecture(const char *name, struct err *e)
{
    char list[360] = "";
    const char *one;
    for (int i = 0; (one = config_architecture(i)); i++) {
        const int fits = strlen(list) + strlen(one) + 8 < sizeof list;
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i ? " " : "", fits ? one : "...");
        if (!fits)
            break;
    }
    err_set(e, ERR_UNSUPPORTED, "config.json: model_type \"%.40s\" is not supported; these are: %s", name, list);
}

static void common_parse(struct parse *p, const struct arch *a, struct config *c)
{
    snprintf(c->arch, sizeof c->arch, "%s", a->name);
    c->names = a->names;
    c->gguf = parse_bool(p, "zse_gguf", 0);
    c->wrapper = wrapper_find(parse_string(p, "zse_wrapper", NULL));
    if (c->wrapper && c->wrapper->keys)
        parse_find(p, c->wrapper->keys, NULL);
    sizes_parse(p, a, c);
    c->norm = a->norm;
    c->norm_eps = (float)parse_real(p, "rms_norm_eps|layernorm_epsilon|layer_norm_eps|layer_norm_epsilon|norm_epsilon|norm_eps", a->eps);
    c->block = a->block;
    c->qk_norm = a->qk_norm;
    c->qk_norm_kind = NORM_RMS;
    c->qk_norm_eps = c->norm_eps;
    c->pos = a->pos;
    c->alibi_scale = c->moe.scale = c->moe.shared_scale = c->value_scale = 1;
    c->act = act_parse(p, a);
    c->gated = !a->not_gated;
    c->embed_scale = c->residual_scale = c->logit_scale = 1;
    c->attn_scale = (float)(1 / sqrt((double)(c->head_dim ? c->head_dim : 1)));
    c->tied = parse_bool(p, "tie_word_embeddings", a->tied);
    c->tied_given = parse_find(p, "tie_word_embeddings", NULL) != NULL;
    c->biases = a->biases;
    eos_parse(p, c);
}

int config_parse(struct config *c, const json_t *json, struct err *e)
{
    *c = (struct config){ 0 };
    if (!json_is_object(json))
        return err_set(e, ERR_FORMAT, "config.json: found %s, expected an object", js_kind(json));
    struct parse p = { .json = json, .seen = json_object(), .where = "config.json", .e = e };
    if (!p.seen)
        return err_nomem(e, "config");
    const char *name = parse_string(&p, "model_type", NULL);
    const struct arch *a = name ? arch_find(name) : NULL;
    const char *foreign = parse_string(&p, "zse_gguf_architecture", NULL);
    /* known from Hugging Face's files, but not supported from a GGUF */
    if (a && foreign) {
        parse_fail(&p, ERR_UNSUPPORTED, "GGUF files of architecture \"%.40s\" are not supported, only the model's own",
                   foreign);
        goto fail;
    }
    if (!name)
        parse_fail(&p, ERR_FORMAT, "model_type is missing");
    else if (!a)
        refuse_architecture(name, e);
    if (!a)
        goto fail;
    common_parse(&p, a, c);
    if (p.bad)
        goto fail;
    c->mixer = calloc((size_t)c->n_layers, sizeof *c->mixer);
    c->ff = calloc((size_t)c->n_layers, sizeof *c->ff);
    c->chunk = calloc((size_t)c->n_layers, sizeof *c->chunk);
    c->window = calloc((size_t)c->n_layers, sizeof *c->window);
    c->rope_of = calloc((size_t)c->n_layers, sizeof *c->rope_of);
    if (!c->mixer || !c->ff || !c->chunk || !c->window || !c->rope_of) {
        err_nomem(e, "config");
        goto fail;
    }
    if (a->more)
        a->more(&p, c);
    if (!p.bad)
        embedding_parse(&p, c);
    if (!p.bad && !json_object_get(p.seen, "layer_types"))
        layer_types_parse(&p, c, 0);
    if (!p.bad && !json_object_get(p.seen, "scale_attn_weights"))
        parse_must_be(&p, "scale_attn_weights", 1);
    if (!p.bad)
        check(&p, c);
    if (!p.bad)
        rope_parse(&p, a, c);
    if (!p.bad)
        parse_leftovers(&p, arch_ignored);
    if (p.bad)
        goto fail;
    json_decref(p.seen);
    return 0;
fail:
    json_decref(p.seen);
    config_release(c);
    return -1;
}

void config_release(struct config *c)
{
    for (int i = 0; i < c->n_ropes; i++) {
        free(c->ropes[i].inv_freq);
        free(c->ropes[i].inv_freq_long);
    }
    free(c->xielu);
    free(c->head_dims);
    free(c->kv_heads);
    free(c->kv_from);
    free(c->mlp_sizes);
    free(c->cutoff);
    free(c->indexed);
    free(c->rates);
    free(c->ngram.of);
    free(c->ngram.factor);
    free(c->ngram.rows);
    free(c->ngram.all_rows);
    free(c->hashed);
    free(c->mixer);
    free(c->ff);
    free(c->chunk);
    free(c->window);
    free(c->rope_of);
    json_decref(c->embedding.prompts);
    free(c->embedding.default_prompt);
    *c = (struct config){ 0 };
}

int config_long_from(const struct config *c)
{
    for (int i = 0; i < c->n_ropes; i++)
        if (c->ropes[i].inv_freq_long)
            return c->ropes[i].original_max + 1;
    return 0;
}

int config_expert_width(const struct config *c) { return c->moe.latent ? c->moe.latent : c->hidden_size; }

int config_mlp_size(const struct config *c, int layer)
{
    const int kind = layer >= 0 ? c->ff[layer] : FF_DENSE;
    if (kind == FF_NONE || (kind == FF_MOE && !c->moe.beside))
        return kind == FF_NONE ? 0 : c->moe.shared_size;
    return layer >= 0 && c->mlp_sizes ? c->mlp_sizes[layer] : c->intermediate_size;
}

int config_head_dim(const struct config *c, int layer)
{
    return c->head_dims && layer >= 0 ? c->head_dims[layer] : c->head_dim;
}

int config_key_dim(const struct config *c, int layer) { return c->key_dim ? c->key_dim : config_head_dim(c, layer); }
int config_value_dim(const struct config *c, int layer)
{
    return c->value_dim ? c->value_dim : config_head_dim(c, layer);
}

int config_kv_heads(const struct config *c, int layer)
{
    return c->kv_heads && layer >= 0 ? c->kv_heads[layer] : c->n_kv_heads;
}

int config_shares_kv(const struct config *c, int layer)
{
    return c->kv_from && layer >= 0 && c->kv_from[layer] != layer;
}

int config_indexes(const struct config *c, int layer)
{
    return c->indexed && layer >= 0 && c->indexed[layer] == INDEX_FULL;
}

int config_ngram(const struct config *c, int layer) { return c->ngram.of && layer >= 0 ? c->ngram.of[layer] : -1; }

size_t config_ngram_floats(const struct config *c, int layer)
{
    const struct ngram *g = &c->ngram;
    return config_ngram(c, layer) < 0 ? 0 : (size_t)(g->size - 1) + (size_t)(g->kernel - 1) * (size_t)g->size *
                                            (size_t)c->hyper.n * (size_t)c->hidden_size;
}

int config_entries(const struct config *c, int layer)
{
    const int rate = c->rates && layer >= 0 ? c->rates[layer] : config_indexes(c, layer) ? c->indexer.block : 0;
    return rate ? (KV_BLOCK + rate - 1) / rate : 0;
}

int config_key_is_value(const struct config *c, int layer)
{
    return c->k_is_v && layer >= 0 && !c->window[layer];
}

int recurrent_width(const struct config *c, int layer)
{
    return c->mixer[layer] == MIXER_CONV ? c->hidden_size : c->recurrent.n_heads * c->recurrent.head_dim;
}

int recurrent_channels(const struct config *c, int layer)
{
    const struct recurrent *r = &c->recurrent;
    switch (c->mixer[layer]) {
    case MIXER_CONV: return c->hidden_size;
    case MIXER_MAMBA1: return r->n_heads * r->head_dim;
    case MIXER_LIGHTNING: return 3 * r->n_heads * r->head_dim;
    }
    return 2 * r->n_groups * r->state_size + r->n_heads * r->head_dim;
}

size_t config_state_floats(const struct config *c, int layer)
{
    const struct recurrent *r = &c->recurrent;
    if (c->indexer.block && config_indexes(c, layer))           /* the sum of the keys of a run */
        return (size_t)c->indexer.head_dim;
    /* for each channel: a maximum, a sum of weights, a weighted sum */
    if (config_entries(c, layer))
        return 3 * (size_t)(config_indexes(c, layer) ? 2 * (c->head_dim + c->indexer.head_dim) : c->head_dim);
    const size_t conv = config_ngram_floats(c, layer) + (mixer_has_state(c->mixer[layer])
                            ? (size_t)(r->conv_kernel - 1) * (size_t)recurrent_channels(c, layer) : 0);
    return conv + (mixer_has_state(c->mixer[layer]) && c->mixer[layer] != MIXER_CONV
                   ? (size_t)r->n_heads * (size_t)r->head_dim * (size_t)r->state_size : 0);
}

size_t config_state_bytes(const struct config *c)
{
    size_t n = 0;
    for (int i = 0; i < c->n_layers; i++)
        n += config_state_floats(c, i);
    return n * sizeof(float);
}

int64_t config_layer_parameters(const struct config *c, int layer, int per_token)
{
    const int moe = c->ff[layer] == FF_MOE, matrices = c->gated ? 3 : 2;
    int64_t n = config_mixer_parameters(c, layer) + (int64_t)matrices * config_mlp_size(c, layer) *
                c->hidden_size + 3 * (int64_t)c->hidden_size * c->ple_dim;
    if (moe)
        n += (int64_t)c->moe.n_experts * c->hidden_size + (int64_t)(per_token ? c->moe.top_k : c->moe.n_experts) *
             matrices * c->moe.intermediate_size * config_expert_width(c) + 2 * (int64_t)c->moe.latent * c->hidden_size;
    return n;
}

static int any(const unsigned char *kinds, int n, int kind) { return memchr(kinds, kind, (size_t)n) != NULL; }

int config_predictor(const struct config *c, struct config *out)
{
    int like = c->n_layers - 1;
    while (like >= 0 && c->mixer[like] != MIXER_ATTENTION && c->mixer[like] != MIXER_MLA)
        like--;
    if (like < 0 || c->both_ways || c->embed_size != c->hidden_size || c->pos != POS_ROPE ||
        c->norm != NORM_RMS || c->block != BLOCK_SEQUENTIAL || c->head_dims || c->kv_heads || c->kv_from ||
        c->mlp_sizes || c->rates || c->hashed || c->indexer.n_heads || c->hyper.n || c->ngram.size || c->ple_dim ||
        c->n_streams || c->laurel_rank || c->cutoff || c->xielu || c->moe.beside || c->renorm[0][0] != 0)
        return -1;
    *out = *c;
    out->predicts = out->n_layers = 1;
    out->n_extra_layers = 0;
    out->mixer += like;
    out->ff += like;
    out->window += like;
    out->chunk += like;
    out->rope_of += like;
    return 0;
}

enum embed config_pooling(const struct config *c)
{
    return c->embedding.pooling ? c->embedding.pooling : EMBED_MEAN;
}

int config_second_type(const struct config *c, int at) { return c->embedding.pair_types ? at : 0; }

int config_embedding_size(const struct config *c)
{
    return c->embedding.n_dense ? c->embedding.dense[c->embedding.n_dense - 1].out : c->hidden_size;
}

int config_has_mixer(const struct config *c, enum mixer_kind kind) { return any(c->mixer, c->n_layers, (int)kind); }
int config_has_ff(const struct config *c, enum ff_kind kind) { return any(c->ff, c->n_layers, (int)kind); }

const char *config_kv_problem(const struct config *c, struct kv_types types)
{
    const int i4 = types.key == KV_I4 || types.value == KV_I4;
    for (int i = 0; i < c->n_layers; i++) {
        if (i4 && (config_head_dim(c, i) > KV_I4_MOST || config_value_dim(c, i) > KV_I4_MOST))
            return "the model's heads have more than 4096 elements, which i4 has no room to add up";
        const int latents = c->mixer[i] == MIXER_MLA || c->mixer[i] == MIXER_COMPRESSED;
        if (!latents && !config_indexes(c, i))
            continue;
        if (types.key != types.value)
            return latents ? "the model's latents are keys and values at once, expected one type"
                           : "the model's sparse attention expects one type";
        if (kv_packed(types.key))
            return latents ? "the model's latents are stored with at least 8 bits"
                           : "the model's sparse attention copies elements of at least 8 bits";
    }
    return NULL;
}

size_t config_kv_bytes(const struct config *c, struct kv_types types)
{
    size_t n = 0;
    for (int i = 0; i < c->n_layers; i++)
        n += config_layer_kv_bytes(c, i, types);
    return n;
}

int config_layer_window(const struct config *c, int layer, int most)
{
    const int kind = c->mixer[layer];
    if (c->both_ways || config_indexes(c, layer) || (kind != MIXER_ATTENTION && kind != MIXER_BOTH))
        return 0;
    return config_streams(c, layer, most) ? most : c->window[layer] ? c->window[layer] : c->chunk[layer];
}

int config_streams(const struct config *c, int layer, int most)
{
    const int own = c->window[layer] ? c->window[layer] : c->chunk[layer];
    return most > 0 && (own == 0 || own > most);
}

const char *config_stream_problem(const struct config *c)
{
    if (c->both_ways || c->embedding.pooling)
        return "the model makes vectors of texts";
    if (c->pos == POS_LEARNED)
        return "the model has no positions beyond its context";
    if (c->qk_norm_after_rope && !(c->names->q_norm && !*c->names->q_norm))
        return "the model's attention depends on positions themselves, by weights behind their rotation";
    for (int i = 0; i < c->n_layers; i++) {
        if (c->mixer[i] == MIXER_MLA || c->mixer[i] == MIXER_COMPRESSED)
            return "the model's latents have no windows";
        if (config_indexes(c, i))
            return "the model's sparse attention chooses among all tokens";
        if (c->chunk[i])
            return "the model attends in chunks";
    }
    return NULL;
}

size_t config_page_row(int head_dim) { return (2 * (size_t)head_dim + 63) / 64 * 64; }

size_t config_layer_page_bytes(const struct config *c, int layer)
{
    const int kind = c->mixer[layer];
    if ((kind != MIXER_ATTENTION && kind != MIXER_BOTH) || config_shares_kv(c, layer) ||
        config_layer_window(c, layer, 0))
        return 0;
    const size_t heads = (size_t)config_kv_heads(c, layer);
    return (heads * (config_page_row(config_head_dim(c, layer)) + sizeof(float)) + 63) / 64 * 64;
}

size_t config_page_bytes(const struct config *c)
{
    size_t n = 0;
    for (int i = 0; i < c->n_layers; i++)
        n += config_layer_page_bytes(c, i);
    return n;
}

const char *config_pages_problem(const struct config *c)
{
    if (c->both_ways || c->embedding.pooling)
        return "the model makes vectors of texts";
    if (c->pos == POS_ALIBI)
        return "the model's attention depends on distances";
    for (int i = 0; i < c->n_layers; i++)
        if (c->mixer[i] == MIXER_MLA || c->mixer[i] == MIXER_COMPRESSED)
            return "the model attends to latents";
        else if (config_indexes(c, i))
            return "the model's sparse attention chooses by itself";
    return config_page_bytes(c) ? NULL : "no layer attends to all tokens";
}

int config_window(const struct config *c, int most)
{
    int n = 0;
    for (int i = 0; i < c->n_layers; i++)
        n = config_layer_window(c, i, most) > n ? config_layer_window(c, i, most) : n;
    return n;
}

int config_tail(const struct config *c, struct kv_types types, int most)
{
    enum { LEAST = KV_TAIL + KV_TAIL_STEP };
    const int window = config_window(c, 0);
    if (!kv_has_tail(types) || most || window > KV_WIDEST_TAIL || c->both_ways || c->embedding.pooling ||
        !config_kv_bytes(c, types))
        return 0;
    return window > LEAST ? window : LEAST;
}

/* Bytes of the layers with a window in a KV block in which all layers have these types. */
static size_t windowed_bytes(const struct config *c, struct kv_types types, int most)
{
    size_t n = 0;
    for (int i = 0; i < c->n_layers; i++)
        n += config_layer_window(c, i, most) ? config_layer_kv_bytes(c, i, types) : 0;
    return n;
}

size_t config_block_bytes(const struct config *c, struct kv_types types, int most)
{
    return config_kv_bytes(c, types) - windowed_bytes(c, types, most);
}

size_t config_window_bytes(const struct config *c, struct kv_types types, int most)
{
    return config_tail(c, types, most) ? config_kv_bytes(c, kv_both(KV_F16)) : windowed_bytes(c, types, most);
}

size_t config_layer_kv_bytes(const struct config *c, int layer, struct kv_types types)
{
    const enum kv_type type = types.key;
    const int kind = c->mixer[layer];
    if (!mixer_has_kv(kind) || config_shares_kv(c, layer))
        return 0;
    if (kind == MIXER_COMPRESSED) {
        const int n = config_entries(c, layer);
        return kv_block_bytes(type, c->head_dim) + kv_entries_bytes(type, c->head_dim, n) +
               (config_indexes(c, layer) ? kv_entries_bytes(type, c->indexer.head_dim, n) : 0);
    }
    return kind == MIXER_MLA ? kv_block_bytes(type, c->head_dim) +
                               (config_indexes(c, layer) ? kv_block_bytes(type, c->indexer.head_dim) : 0)
                             : kv_heads_bytes(type, config_head_dim(c, layer), config_kv_heads(c, layer)) +
                               kv_heads_bytes(types.value, config_head_dim(c, layer), config_kv_heads(c, layer)) +
                               (config_indexes(c, layer)
                                    ? kv_entries_bytes(type, c->indexer.head_dim, config_entries(c, layer)) : 0);
}

int config_kv_layers(const struct config *c)
{
    int n = 0;
    for (int i = 0; i < c->n_layers; i++)
        n += mixer_has_kv(c->mixer[i]);
    return n;
}

/* Returns the first feature of the mixture of experts besides a router, plain experts and a shared
 * MLP; NULL: there is none. */
static const char *beyond_mixture(const struct config *c, unsigned features)
{
    if (c->moe.beside)
        return "an MLP beside experts";
    if (c->moe.latent)
        return "experts in a latent space";
    if (c->hashed)
        return "experts chosen by a table of tokens";
    if (c->moe.weigh_input && !(features & FEATURE_VARIANTS))
        return "weights on the inputs of experts";
    if (!c->gated && !(features & FEATURE_VARIANTS))
        return "experts without a gate";
    return c->moe.act_limit > 0 && c->moe.act_alpha == 0 ? "MLPs with limits" : NULL;
}

/* Returns the first of FEATURE_VARIANTS that the model has; NULL: none. */
static const char *variant(const struct config *c)
{
    for (int i = 0; i < c->n_layers; i++)
        if (c->chunk[i])
            return "chunked attention";
    if (c->names->attn_sub_norm)
        return "norms inside of attention and MLP";
    if (c->qk_norm != QK_NORM_NONE && c->names->q_norm && !*c->names->q_norm)
        return "norms of q and k without weights";
    if (c->temperature_scale != 0)
        return "queries scaled by their position";
    return c->qk_norm_roped ? "norms of q and k in some layers" : NULL;
}

/* Returns the first kind of state besides those of FEATURE_STATES; NULL: there is none. */
static const char *beyond_state(const struct config *c)
{
    if (c->indexer.n_heads)
        return "attention to few chosen tokens";
    if (c->ngram.size)
        return "n-gram embeddings";
    if (config_has_mixer(c, MIXER_MAMBA1))
        return "Mamba1";
    if (config_has_mixer(c, MIXER_LIGHTNING))
        return "lightning attention";
    return config_has_mixer(c, MIXER_BOTH) ? "attention and a state in parallel" : NULL;
}

const char *config_beyond(const struct config *c, unsigned features)
{
    if (c->both_ways)
        return "attention to later tokens";
    if (c->embedding.n_dense)
        return "dense layers behind the pooled state";
    if (config_has_mixer(c, MIXER_COMPRESSED))
        return "compressed attention";
    if (c->hyper.n)
        return "hyper-connections";
    if (config_state_bytes(c) && !(features & FEATURE_STATES))
        return "recurrent layers";
    if (beyond_state(c))
        return beyond_state(c);
    if ((config_has_mixer(c, MIXER_NONE) || config_has_ff(c, FF_NONE)) && !(features & FEATURE_STATES))
        return "layers without a mixer or without an MLP";
    if (config_has_ff(c, FF_MOE) && !(features & FEATURE_EXPERTS))
        return "a mixture of experts";
    if (config_has_mixer(c, MIXER_MLA) && !(features & FEATURE_LATENTS))
        return "multi-head latent attention";
    if (config_has_mixer(c, MIXER_MLA) && c->attn_gate)
        return "gated latent attention";
    if (c->act == CONFIG_ACT_XIELU)
        return "an activation with parameters";
    if (c->head_dims || c->kv_heads || c->kv_from || c->mlp_sizes)
        return "layers of different shapes";
    if (c->ple_dim)
        return "embeddings of each layer";
    if (c->key_dim != c->value_dim || c->value_scale != 1)
        return "values of another width or scale";
    if (c->v_norm || c->names->layer_scale)
        return "normed values or scaled layers";
    if (config_has_ff(c, FF_MOE) && beyond_mixture(c, features))
        return beyond_mixture(c, features);
    if (!(features & FEATURE_VARIANTS) && variant(c))
        return variant(c);
    if (c->attn_gate && !(features & FEATURE_GATES))
        return "gated attention";
    return c->sinks && !(features & FEATURE_SINKS) ? "attention sinks" : NULL;
}

const char *config_uncalibrated(const struct config *c)
{
    return c->indexer.top_k < MIN_INDEXED && shares_choice(c) ? "a shared choice of few tokens" : NULL;
}
