/* info_model.c - describe a .zse, a GGUF, a folder or a config.json as one JSON object. */
#include "cmd/zse-info.h"

#include <assert.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/base/utf8.h"
#include "libcommon/import/gguf.h"
#include "libcommon/model/eagle.h"
#include "libcommon/model/medusa.h"
#include "libcommon/model/parts.h"
#include "libcommon/quant/ggml.h"
#include "libcommon/quant/kvtype.h"

int info_open(struct info *i, const char *path, struct err *e)
{
    memset(i, 0, sizeof *i);
    i->path = path;
    i->kind = source_detect(path, e);
    if (i->kind == SOURCE_NONE)
        return -1;
    if (i->kind == SOURCE_ZSE) {
        i->z = zfile_open(path, e);
        i->config = i->z ? js_get(zfile_json(i->z), "config") : NULL;
    } else {
        i->s = source_open(path, e);
        i->config = i->s ? i->s->config : NULL;
    }
    if (!i->z && !i->s)
        return -1;
    if (i->config)
        i->runs = config_parse(&i->c, i->config, &i->why_not) == 0;
    return 0;
}

void info_close(struct info *i)
{
    if (i->runs)
        config_release(&i->c);
    zfile_close(i->z);
    source_close(i->s);
}

/* ---- names ---- */

static int has(const char *name, const char *const *parts)
{
    for (; *parts; parts++)
        if (strstr(name, *parts))
            return 1;
    return 0;
}

/* Whether a name is that of an expert in a .zse, such as "layers.3.experts.17...". */
static int is_our_expert(const char *name)
{
    if (strncmp(name, "layers.", 7) != 0)
        return 0;
    name += 7 + strspn(name + 7, "0123456789");
    return strncmp(name, ".experts.", 9) == 0;
}

/* The role of a tensor, from its name in a .zse, a GGUF or a folder. */
static const char *role_of(const char *name)
{
    static const char *const norm[] = { "norm", "ln_", "layernorm", "layer_norm", NULL };
    static const char *const embed[] = { "embed", "token_embd", "position_embd", "wte", "wpe", NULL };
    static const char *const attention[] = { "attn", "attention", "q_proj", "k_proj", "v_proj", "o_proj", "qkv",
                                             "query_key_value", "in_proj", "in_ba_proj", "in_z_proj", "ssm_",
                                             "shortconv.", "mixer.", "mamba.", NULL };
    static const char *const experts[] = { "experts.", "block_sparse_moe.", "_exps", NULL },
        *const routers[] = { "router", ".gate.weight", "ffn_gate_inp", NULL };
    static const char *const mlp[] = { "mlp", "ffn", "gate_proj", "up_proj", "down_proj", "gate_up_proj", "fc1", "fc2",
                                       "fc_in", "fc_out", NULL };
    size_t n = strlen(name);
    if (is_our_expert(name))
        return "experts";
    if (strncmp(name, "lm_head", 7) == 0 || strcmp(name, "output.weight") == 0 || strncmp(name, "head.", 5) == 0 ||
        strncmp(name, "embed_out", 9) == 0)
        return "lm_head";
    if (has(name, norm))
        return "norms";
    if (has(name, routers) && !strstr(name, "shared"))
        return "router";
    if (has(name, experts) && !strstr(name, "shared_experts."))
        return "experts";
    if (n > 5 && strcmp(name + n - 5, ".bias") == 0)
        return "biases";
    if (has(name, embed))
        return "embeddings";
    if (has(name, attention))
        return "attention";
    return has(name, mlp) ? "mlp" : "other";
}

/* The first number between dots: "model.layers.12.x" -> 12; -1: none. */
static int layer_of(const char *name)
{
    for (const char *p = strchr(name, '.'); p; p = strchr(p + 1, '.')) {
        char *end;
        if (isdigit((unsigned char)p[1])) {
            long v = strtol(p + 1, &end, 10);
            if (*end == '.' && v < 1000000)
                return (int)v;
        }
    }
    return -1;
}

static json_t *text(const char *s, size_t n)
{
    return utf8_valid(s, n) == n ? json_stringn(s, n) : NULL;
}

/* ---- tensors ---- */

static json_t *zse_tensor(const struct info *i, const struct zfile_tensor *t)
{
    const struct qtype_info *q = qtype_info(t->m.type);
    json_t *j = json_pack("{s:s, s:s, s:o}", "name", t->name, "type", q->name, "shape",
                          t->n_dims == 1 ? json_pack("[I]", (json_int_t)t->dim[0])
                                         : json_pack("[I,I]", (json_int_t)t->dim[0], (json_int_t)t->dim[1]));
    json_object_set_new(j, "offset", json_integer((json_int_t)t->offset));
    json_object_set_new(j, "size_bytes", json_integer((json_int_t)t->m.size));
    json_object_set_new(j, "layer", json_integer(zfile_group(i->z, t->group)->layer));
    json_object_set_new(j, "role", json_string(role_of(t->name)));
    if (t->source_name)
        json_object_set_new(j, "source_name", json_string(t->source_name));
    if (t->source_type) {
        json_object_set_new(j, "source_type", json_string(t->source_type));
        json_object_set_new(j, "grid_kept", json_boolean(t->grid_kept));
    }
    if (t->tiled && !q->is_float) {
        json_object_set_new(j, "group_size", json_integer(q->scale == SCALE_NONE ? 0 : t->m.group_size));
        json_object_set_new(j, "act_group", json_integer(t->m.act_group));
    }
    return j;
}

static json_t *source_tensor_json(const struct info *i, const struct source_tensor *t)
{
    json_t *shape = json_array();
    for (int d = 0; d < t->n_dims; d++)
        json_array_append_new(shape, json_integer(t->dim[d]));
    json_t *j = json_pack("{s:s, s:s, s:o}", "name", t->name, "type", ggml_type_info(t->type)->name, "shape", shape);
    json_object_set_new(j, "offset", json_integer((json_int_t)t->offset));
    json_object_set_new(j, "size_bytes", json_integer((json_int_t)t->size));
    json_object_set_new(j, "layer", json_integer(layer_of(t->name)));
    json_object_set_new(j, "role", json_string(role_of(t->name)));
    if (i->kind == SOURCE_FOLDER)
        json_object_set_new(j, "shard", json_integer(t->shard));
    return j;
}

static int n_tensors(const struct info *i) { return i->z ? zfile_n_tensors(i->z) : i->s->n_tensors; }

static json_t *all_tensors(const struct info *i)
{
    json_t *a = json_array();
    for (int k = 0; k < n_tensors(i); k++)
        json_array_append_new(a, i->z ? zse_tensor(i, zfile_tensor(i->z, k))
                                      : source_tensor_json(i, &i->s->tensors[k]));
    return a;
}

static int64_t int_of(const json_t *o, const char *key) { return json_integer_value(json_object_get(o, key)); }
/* The groups of a .zse, in file order. */
static json_t *zse_groups(const struct info *i)
{
    json_t *a = json_array();
    int n = 0;
    for (int g = 0; g < zfile_n_groups(i->z); g++) {
        const struct zfile_group *z = zfile_group(i->z, g);
        json_t *names = json_array();
        for (; n < zfile_n_tensors(i->z) && zfile_tensor(i->z, n)->group == g; n++)
            json_array_append_new(names, json_string(zfile_tensor(i->z, n)->name));
        json_array_append_new(a, json_pack("{s:s, s:i, s:I, s:I, s:o}", "kind", z->kind, "layer_idx", z->layer,
                                           "offset", (json_int_t)z->offset, "size_bytes", (json_int_t)z->size,
                                           "tensor_names", names));
    }
    return a;
}

/* The groups of other files: the tensors whose names have the same layer number. */
static json_t *source_groups(const struct info *i)
{
    json_t *a = json_array();
    for (int k = 0; k < i->s->n_tensors; k++) {
        const struct source_tensor *t = &i->s->tensors[k];
        const int layer = layer_of(t->name);
        json_t *g = NULL, *other;
        size_t n;
        if (layer < 0)
            continue;
        json_array_foreach(a, n, other)
            if (int_of(other, "layer_idx") == layer)
                g = other;
        if (!g) {
            g = json_pack("{s:s, s:i, s:I, s:[]}", "kind", "layer", "layer_idx", layer, "size_bytes", (json_int_t)0,
                          "tensor_names");
            json_array_append_new(a, g);
        }
        json_object_set_new(g, "size_bytes", json_integer(int_of(g, "size_bytes") + (json_int_t)t->size));
        json_array_append_new(json_object_get(g, "tensor_names"), json_string(t->name));
    }
    return a;
}

/* ---- memory ---- */

/* Sums by number format or by role, in order of first occurrence. */
enum { SUMS = 64 };
struct sums { int n; struct { const char *key; int64_t tensors, parameters, bytes; } row[SUMS]; };

static void add_to(struct sums *s, const char *key, int64_t parameters, uint64_t bytes)
{
    int k = 0;
    while (k < s->n && strcmp(s->row[k].key, key) != 0)
        k++;
    assert(k < SUMS);                   /* there are fewer types and roles */
    s->n += k == s->n;
    s->row[k].key = key;
    s->row[k].tensors++;
    s->row[k].parameters += parameters;
    s->row[k].bytes += (int64_t)bytes;
}

static json_t *sums_json(const struct sums *s)
{
    json_t *j = json_object();
    for (int k = 0; k < s->n; k++)
        json_object_set_new(j, s->row[k].key, json_pack("{s:I, s:I, s:I}", "tensors", (json_int_t)s->row[k].tensors,
                                                        "parameters", (json_int_t)s->row[k].parameters, "bytes",
                                                        (json_int_t)s->row[k].bytes));
    return j;
}

static uint64_t kv_bytes(const struct config *c, enum kv_type type)
{
    return config_kv_bytes(c, kv_both(type)) / KV_BLOCK;
}

static uint64_t file_bytes(const struct info *i)
{
    if (i->z)
        return zfile_size(i->z);
    uint64_t n = i->s->gguf ? i->s->gguf->map.size : 0;
    for (int k = 0; i->s->gguf && k < i->s->gguf->n_parts; k++)
        n += i->s->gguf->parts[k]->map.size;
    if (i->s->gguf)
        return n;
    for (int k = 0; k < i->s->n_tensors; k++)
        n += i->s->tensors[k].size;
    for (int k = 0; k < i->s->n_files; k++)
        n += i->s->files[k].size;
    return n;
}

/* The memory of the weights, by format and by role; *parameters: the number of parameters. */
static json_t *memory(const struct info *i, int64_t *parameters)
{
    struct sums types = { 0 }, roles = { 0 };
    uint64_t weights = 0, total = file_bytes(i);
    *parameters = 0;
    for (int k = 0; k < n_tensors(i); k++) {
        const struct zfile_tensor *z = i->z ? zfile_tensor(i->z, k) : NULL;
        const struct source_tensor *t = i->z ? NULL : &i->s->tensors[k];
        const uint64_t bytes = z ? z->m.size : t->size;
        int64_t n = z && is_channel_scale(z->name) ? 0 : 1;
        for (int d = 0; d < (z ? z->n_dims : t->n_dims); d++)
            n *= z ? z->dim[d] : t->dim[d];
        add_to(&types, z ? qtype_info(z->m.type)->name : ggml_type_info(t->type)->name, n, bytes);
        add_to(&roles, role_of(z ? z->name : t->name), n, bytes);
        weights += bytes;
        *parameters += n;
    }
    json_t *m = json_pack("{s:I, s:I, s:I, s:o, s:o}", "file_bytes", (json_int_t)total, "weights_bytes",
                          (json_int_t)weights, "other_bytes", (json_int_t)(total - weights), "by_type",
                          sums_json(&types), "by_role", sums_json(&roles));
    if (i->runs) {
        uint64_t f16 = kv_bytes(&i->c, KV_F16);
        json_t *kv = json_object();
        for (int type = 0; type < KV_TYPES; type++) {
            if (config_kv_problem(&i->c, kv_both((enum kv_type)type)))
                continue;
            json_object_set_new(kv, kv_type_name((enum kv_type)type),
                                json_integer((json_int_t)kv_bytes(&i->c, (enum kv_type)type)));
        }
        json_object_set_new(m, "kv_bytes_per_token", kv);
        if (config_state_bytes(&i->c))
            json_object_set_new(m, "state_bytes_per_sequence", json_integer((json_int_t)config_state_bytes(&i->c)));
        json_object_set_new(m, "kv_bytes_full_context_f16", json_integer((json_int_t)(f16 * (uint64_t)i->c.max_len)));
    }
    return m;
}

/* ---- the model ---- */

/* The number of parameters that the configuration implies, for files without weights. */
static int64_t parameters_of_config(const struct config *c)
{
    int64_t n = (int64_t)c->vocab_size * c->embed_size * (c->tied ? 1 : 2) + c->hidden_size;
    for (int i = 0; i < c->n_layers; i++)
        n += config_layer_parameters(c, i, 0) + 2 * (int64_t)c->hidden_size;
    return n;
}

/* Add the fields of a mixture of experts, and the number of parameters that one token uses. */
static void add_mixture(const struct config *c, json_t *d)
{
    const struct moe *m = &c->moe;
    int64_t active = (int64_t)c->vocab_size * c->embed_size;
    int layers = 0;
    if (!m->n_experts)
        return;
    for (int i = 0; i < c->n_layers; i++) {
        active += config_layer_parameters(c, i, 1);
        layers += c->ff[i] == FF_MOE;
    }
    json_object_set_new(d, "num_experts", json_integer(m->n_experts));
    json_object_set_new(d, "num_experts_per_tok", json_integer(m->top_k));
    json_object_set_new(d, "moe_intermediate_size", json_integer(m->intermediate_size));
    json_object_set_new(d, "shared_expert_size", json_integer(m->shared_size));
    json_object_set_new(d, "moe_layers", json_integer(layers));
    json_object_set_new(d, "parameters_per_token", json_integer(active));
}

static void add_numbers(const struct info *i, json_t *d)
{
    const struct config *c = &i->c;
    const json_t *rope = js_get(i->config, "rope_parameters"), *theta = js_get(rope, "rope_theta");
    if (!theta)
        theta = js_get(js_get(rope, "full_attention"), "rope_theta");
    json_object_set_new(d, "hidden_size", json_integer(c->hidden_size));
    json_object_set_new(d, "intermediate_size", json_integer(c->intermediate_size));
    json_object_set_new(d, "num_hidden_layers", json_integer(c->n_layers));
    json_object_set_new(d, "num_attention_heads", json_integer(c->n_heads));
    json_object_set_new(d, "num_key_value_heads", json_integer(c->n_kv_heads));
    json_object_set_new(d, "head_dim", json_integer(c->head_dim));
    json_object_set_new(d, "vocab_size", json_integer(c->vocab_size));
    json_object_set_new(d, "max_position_embeddings", json_integer(c->max_len));
    if (theta)
        json_object_set(d, "rope_theta", (json_t *)theta);
    json_object_set_new(d, c->norm == NORM_RMS ? "rms_norm_eps" : "layer_norm_eps", json_real((double)c->norm_eps));
    json_object_set_new(d, "tie_word_embeddings", json_boolean(c->tied));
    json_object_set_new(d, "attention_type", json_string(config_has_mixer(c, MIXER_MLA)
                                                         ? "mla" : config_kv_layers(c) == 0 ? "none" : c->n_kv_heads ==
                                                         c->n_heads ? "mha" : c->n_kv_heads == 1 ? "mqa" : "gqa"));
    add_mixture(c, d);
    int windows = 0;
    for (int k = 0; k < c->n_layers; k++)
        windows += c->window[k] > 0;
    int recurrent = 0;
    for (int k = 0; k < c->n_layers; k++)
        recurrent += mixer_has_state(c->mixer[k]);
    if (recurrent)
        json_object_set_new(d, "recurrent_layers", json_integer(recurrent));
    if (windows)
        json_object_set_new(d, "sliding_window_layers", json_integer(windows));
    static const char *const poolings[] = { "", "mean", "last", "cls" };
    const struct embedding *m = &c->embedding;
    if (m->pooling)
        json_object_set_new(d, "embedding",
                            json_pack("{s:b, s:i, s:s, s:b, s:i, s:o}", "scores", m->scores, "dimensions",
                                      config_embedding_size(c), "pooling", poolings[m->pooling], "normalized",
                                      m->normalize, "max_tokens", m->max_len ? m->max_len : c->max_len, "prompts",
                                      m->prompts ? json_deep_copy(m->prompts) : json_object()));
}

static void add_model(const struct info *i, json_t *d)
{
    const json_t *type = js_get(i->config, "model_type"), *classes = js_get(i->config, "architectures");
    if (type)
        json_object_set(d, "model_type", (json_t *)type);
    if (json_is_array(classes) && json_array_size(classes))
        json_object_set(d, "architecture", json_array_get(classes, 0));
    else if (type)
        json_object_set(d, "architecture", (json_t *)type);
    if (!i->config)
        return;
    json_object_set_new(d, "supported", json_boolean(i->runs));
    if (i->runs)
        add_numbers(i, d);
    else
        json_object_set_new(d, "unsupported_reason", json_string(i->why_not.msg));
    json_object_set(d, "config", (json_t *)i->config);
}

/* The published config.json, if it was kept. */
static json_t *original_config(const struct info *i)
{
    const struct source_file *f = i->s ? source_file(i->s, "config.json") : NULL;
    if (f)
        return json_loadb(f->data, f->size, 0, NULL);
    for (int k = 0; i->z && k < zfile_n_originals(i->z); k++) {
        size_t size;
        struct err e;
        if (strcmp(zfile_original_name(i->z, k, &size), "config.json") != 0)
            continue;
        char *copy = malloc(size + 1);
        json_t *j = copy && zfile_original_read(i->z, k, copy, &e) == 0 ? json_loadb(copy, size, 0, NULL) : NULL;
        free(copy);
        return j;
    }
    return NULL;
}

/* Describe heads that cannot be used, in a section of `size` bytes. */
static json_t *unusable_heads(const struct info *i, size_t size, const struct err *broken)
{
    return json_pack("{s:I, s:s}", "bytes", (json_int_t)size, "unsupported_reason",
                     i->runs ? broken->msg : "the model is not supported");
}

/* Describe the EAGLE heads in the file. */
static void add_eagle(const struct info *i, json_t *d)
{
    size_t size;
    struct err broken = { 0 };
    const void *section = zfile_heads(i->z, HEADS_EAGLE, &size);
    struct eagle *g = section && i->runs ? eagle_bind(section, size, &i->c, &broken) : NULL;
    if (g)
        json_object_set_new(d, "eagle", json_pack("{s:i, s:i, s:I}", "version", g->is_3 ? 3 : 1, "vocab_size", g->n_own,
                                                  "bytes", (json_int_t)g->bytes));
    else if (section)
        json_object_set_new(d, "eagle", unusable_heads(i, size, &broken));
    eagle_close(g);
}

/* Describe the Medusa heads in the file. */
static void add_heads(const struct info *i, json_t *d)
{
    size_t size;
    struct err broken = { 0 };
    const void *section = zfile_heads(i->z, HEADS_MEDUSA, &size);
    struct medusa *m = section && i->runs ? medusa_bind(section, size, &i->c, &broken) : NULL;
    if (m)
        json_object_set_new(d, "medusa", json_pack("{s:i, s:i, s:I}", "heads", m->n_heads, "blocks", m->n_blocks, "bytes",
                                                   (json_int_t)m->bytes));
    else if (section)
        json_object_set_new(d, "medusa", unusable_heads(i, size, &broken));
    medusa_close(m);
}

static void add_zse(const struct info *i, json_t *d)
{
    static const char *const keys[] = { "name", "quantization", "provenance", "license", "quality" };
    int major, minor, patch;
    char version[40];
    zfile_version(i->z, &major, &minor, &patch);
    snprintf(version, sizeof version, "%d.%d.%d", major, minor, patch);
    json_object_set_new(d, "version", json_string(version));
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
        if (js_get(zfile_json(i->z), keys[k]))
            json_object_set(d, keys[k], js_get(zfile_json(i->z), keys[k]));
    size_t size;
    const uint8_t *tokenizer = zfile_tokenizer(i->z, &size);
    if (tokenizer) {
        json_object_set_new(d, "tokenizer_offset",
                            json_integer((json_int_t)(tokenizer - (const uint8_t *)zfile_data(i->z))));
        json_object_set_new(d, "tokenizer_size", json_integer((json_int_t)size));
    }
    if (zfile_n_groups(i->z))
        json_object_set_new(d, "tensor_data_offset", json_integer((json_int_t)zfile_group(i->z, 0)->offset));
    for (int k = 0; k < zfile_n_groups(i->z); k++)
        if (strcmp(zfile_group(i->z, k)->kind, "mtp") == 0)
            json_object_set_new(d, "mtp_bytes", json_integer((json_int_t)zfile_group(i->z, k)->size));
    add_heads(i, d);
    add_eagle(i, d);
    json_t *names = json_array();
    for (int k = 0; k < zfile_n_originals(i->z); k++)
        json_array_append_new(names, json_string(zfile_original_name(i->z, k, NULL)));
    json_object_set_new(d, "originals", names);
    json_object_set_new(d, "chat_template", json_boolean(js_get(zfile_json(i->z), "chat_template") ||
                                                         js_get(zfile_json(i->z), "chat_templates")));
}

static void add_gguf(const struct info *i, json_t *d)
{
    static const char *const keys[][2] = { { "name", "general.name" }, { "license", "general.license" },
                                           { "source_model", "general.source.huggingface.repository" } };
    const struct gguf *g = i->s->gguf;
    const struct gguf_kv *tokens = gguf_find(g, "tokenizer.ggml.tokens");
    json_object_set_new(d, "version", json_integer(g->version));
    json_object_set_new(d, "metadata_keys", json_integer(g->n_kv));
    json_object_set_new(d, "tensor_data_offset", json_integer((json_int_t)g->data_offset));
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
        const struct gguf_str *s = gguf_str(g, keys[k][1]);
        if (s)
            json_object_set_new(d, keys[k][0], text(s->s, s->n));
    }
    if (!js_get(d, "model_type") && gguf_str(g, "general.architecture"))
        json_object_set_new(d, "architecture", text(gguf_str(g, "general.architecture")->s,
                                                    gguf_str(g, "general.architecture")->n));
    if (tokens && !js_get(d, "vocab_size"))
        json_object_set_new(d, "vocab_size", json_integer((json_int_t)tokens->n));
    json_object_set_new(d, "chat_template", json_boolean(gguf_find(g, "tokenizer.chat_template") != NULL));
}

static void add_folder(const struct info *i, json_t *d)
{
    json_t *names = json_array();
    int shards = 0;
    for (int k = 0; k < i->s->n_files; k++)
        json_array_append_new(names, json_string(i->s->files[k].name));
    for (int k = 0; k < i->s->n_tensors; k++)
        shards = i->s->tensors[k].shard + 1 > shards ? i->s->tensors[k].shard + 1 : shards;
    json_object_set_new(d, "originals", names);
    json_object_set_new(d, "shards", json_integer(shards));
    const json_t *q = i->s->quantization ? i->s->quantization : js_get(i->config, "quantization_config");
    if (q)
        json_object_set(d, "quantization", (json_t *)q);
}

/* A list of the elements of array whose `key` is this layer. */
static json_t *only_layer(json_t *array, const char *key, int layer)
{
    json_t *out = json_array(), *v;
    size_t k;
    json_array_foreach(array, k, v)
        if (int_of(v, key) == layer)
            json_array_append(out, v);
    json_decref(array);
    return out;
}

json_t *info_describe(const struct info *i, int layer, unsigned lists)
{
    static const char *const kinds[] = { [SOURCE_ZSE] = "zse", [SOURCE_GGUF] = "gguf", [SOURCE_FOLDER] = "folder",
                                         [SOURCE_CONFIG] = "config", [SOURCE_TOKENIZER] = "tokenizer" };
    json_t *d = json_pack("{s:s, s:s}", "file", i->path, "kind", kinds[i->kind]), *types = json_array(), *t;
    if (!d)                                         /* a path that is not UTF-8 */
        d = json_pack("{s:n, s:s}", "file", "kind", kinds[i->kind]);
    add_model(i, d);
    if (i->z)
        add_zse(i, d);
    else if (i->s->gguf)
        add_gguf(i, d);
    else
        add_folder(i, d);
    int64_t parameters;
    json_t *published = original_config(i), *m = memory(i, &parameters);
    if (published)
        json_object_set_new(d, "hf_config_json", published);
    if (!n_tensors(i) && i->runs)
        parameters = parameters_of_config(&i->c);
    const char *type;
    json_object_foreach(json_object_get(m, "by_type"), type, t)
        json_array_append_new(types, json_string(type));
    json_object_set_new(d, "parameters", json_integer(parameters));
    json_object_set_new(d, "quant_types", types);
    json_object_set_new(d, "memory", m);
    if (lists & INFO_LAYERS) {
        json_t *groups = i->z ? zse_groups(i) : source_groups(i);
        json_object_set_new(d, "layer_groups", layer >= 0 ? only_layer(groups, "layer_idx", layer) : groups);
    }
    if (lists & INFO_TENSORS) {
        json_t *tensors = all_tensors(i);
        json_object_set_new(d, "tensors", layer >= 0 ? only_layer(tensors, "layer", layer) : tensors);
    }
    return d;
}
