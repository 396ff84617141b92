/* gguf_config.c - translate the hyper-parameters of a GGUF file into a config.json.
 *
 * GGUF has one vocabulary for all architectures ("llama.block_count"), omits facts that never vary
 * within an architecture, and keeps some facts only in tensors: biases and q/k norms exist or not,
 * a tied head has no output.weight, RoPE factors of Llama 3 and Phi 3 are f32 tensors.  All of
 * these are written as Hugging Face writes them.  "zse_gguf": true says that weights are stored as
 * in GGUF (norms with 1 added, permuted q and k).  RoPE factors from tensors become rope_type
 * "longrope", which lists factors. */
#include "libcommon/import/gguf_arch.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/base/utf8.h"
#include "libcommon/quant/ggml.h"

/* ---- RoPE ---- */

static json_t *factors(const struct source_tensor *t)
{
    if (t->type != GGML_F32)
        return NULL;
    json_t *a = json_array();
    for (size_t i = 0; i < t->size / 4; i++) {
        float f;
        memcpy(&f, t->data + 4 * i, 4);
        json_t *v = gguf_real(f);
        if (!v || json_array_append_new(a, v) < 0) {
            json_decref(a);
            return NULL;
        }
    }
    return a;
}

/* Read factors from tensors: rope_factors_short and _long (Phi 3), or rope_freqs (Llama 3). */
static int rope_factors(struct gguf_translator *t, json_t *rope, struct err *e)
{
    const struct source_tensor *both = gguf_find_tensor(t, "rope_freqs.weight");
    const struct source_tensor *small = gguf_find_tensor(t, "rope_factors_short.weight"),
                               *large = gguf_find_tensor(t, "rope_factors_long.weight");
    if (small || large)
        both = NULL;
    if (!both && !(small && large))
        return small || large ? err_set(e, ERR_FORMAT,
                                        "%s: one of rope_factors_short.weight and rope_factors_long.weight is missing",
                                        t->g->map.path) : 0;
    const struct source_tensor *pair[2] = { both ? both : small, both ? both : large };
    static const char *const names[2] = { "short_factor", "long_factor" };
    for (int i = 0; i < 2; i++) {
        json_t *f = factors(pair[i]);
        if (!f || (int64_t)json_array_size(f) != t->n_rot / 2) {
            json_decref(f);
            return err_set(e, ERR_FORMAT, "%s: tensor %s: expected %" PRId64 " finite f32 factors", t->g->map.path,
                           pair[i]->name, t->n_rot / 2);
        }
        json_object_set_new(rope, names[i], f);
    }
    int64_t original;
    if (gguf_key_int(t, "rope.scaling.original_context_length", t->context, &original, e) < 0)
        return -1;
    json_object_set_new(rope, "rope_type", json_string("longrope"));
    json_object_set_new(rope, "original_max_position_embeddings", json_integer(original));
    json_object_set_new(rope, "attention_factor",
                        gguf_real(both ? 1 : gguf_key_float(t, "rope.scaling.attn_factor", 1)));
    return 0;
}

static json_t *rope_parameters(struct gguf_translator *t, int kind, struct err *e)
{
    json_t *rope = json_pack("{s:s, s:o}", "rope_type", "default", "rope_theta",
                             gguf_real(gguf_key_float(t, "rope.freq_base", 10000)));
    char k[160];
    const struct gguf_str *type = gguf_str(t->g, gguf_full_key(t, "rope.scaling.type", k, sizeof k));
    double factor = gguf_key_float(t, "rope.scaling.factor", gguf_key_float(t, "rope.scale_linear", 1));
    if (type && type->n == 4 && memcmp(type->s, "yarn", 4) == 0) {
        int64_t original;
        double attn = gguf_key_float(t, "rope.scaling.attn_factor", 1);
        if (gguf_key_int(t, "rope.scaling.original_context_length", t->context, &original, e) < 0)
            goto fail;
        json_object_set_new(rope, "rope_type", json_string("yarn"));
        json_object_set_new(rope, "factor", gguf_real(factor));
        json_object_set_new(rope, "original_max_position_embeddings", json_integer(original));
        json_object_set_new(rope, "beta_fast", gguf_real(gguf_key_float(t, "rope.scaling.yarn_beta_fast", 32)));
        json_object_set_new(rope, "beta_slow", gguf_real(gguf_key_float(t, "rope.scaling.yarn_beta_slow", 1)));
        if (attn != 1 && factor > 0)
            json_object_set_new(rope, "attention_factor", gguf_real(attn * (0.1 * log(factor) + 1)));
    } else if (factor != 1 && factor > 0 && !(type && type->n == 4 && memcmp(type->s, "none", 4) == 0)) {
        json_object_set_new(rope, "rope_type", json_string("linear"));
        json_object_set_new(rope, "factor", gguf_real(factor));
    }
    if (rope_factors(t, rope, e) < 0)
        goto fail;
    if (kind == ROPE_TWO)
        rope = json_pack("{s:o, s:{s:s, s:o}}", "full_attention", rope, "sliding_attention", "rope_type", "default",
                         "rope_theta", gguf_real(gguf_key_float(t, "rope.freq_base_swa", 10000)));
    return rope;
fail:
    json_decref(rope);
    return NULL;
}

static void write_sizes(struct gguf_translator *t, const struct gguf_arch *a)
{
    if (a->spelling == SPELLING_GPT2) {
        gguf_set_int(t, "n_embd", t->hidden);
        gguf_set_int(t, "n_head", t->heads);
        gguf_set_int(t, "n_layer", t->n_layers);
        gguf_set_int(t, "n_inner", t->ff);
        gguf_set_int(t, "n_positions", t->context);
    } else if (a->spelling != SPELLING_OWN) {
        gguf_set_int(t, "hidden_size", t->hidden);
        gguf_set_int(t, "intermediate_size", t->ff);
        gguf_set_int(t, "num_hidden_layers", t->n_layers);
        gguf_set_int(t, "num_attention_heads", t->heads);
        gguf_set_int(t, "num_key_value_heads", t->kv_heads);
        gguf_set_int(t, "head_dim", t->head_dim);
        gguf_set_int(t, "max_position_embeddings", t->context);
    }
    const char *eps = a->eps && strncmp(a->eps, "rms", 3) == 0 ? "attention.layer_norm_rms_epsilon"
                                                                : "attention.layer_norm_epsilon";
    if (a->eps && !gguf_has_key(t, eps))
        gguf_fail(t, ERR_FORMAT, "key %s.%s is missing", t->arch, eps);
    if (a->eps)
        gguf_set_real(t, a->eps, gguf_key_float(t, eps, 1e-5));
    if (a->act_key)
        gguf_set_string(t, a->act_key, a->act);
}

static int read_sizes(struct gguf_translator *t, const struct gguf_arch *a, struct err *e)
{
    if (gguf_key_int(t, "block_count", -1, &t->n_layers, e) < 0 ||
        gguf_key_int(t, "embedding_length", -1, &t->hidden, e) < 0 ||
        gguf_key_int(t, "attention.head_count", -1, &t->heads, e) < 0)
        return -1;
    if (t->hybrid && t->heads == 0)
        t->heads = 1;                       /* mamba2 has no heads */
    if (t->n_layers < 1 || t->hidden < 1 || t->heads < 1)
        return err_set(e, ERR_FORMAT, "%s: keys %s.block_count, embedding_length, attention.head_count: %" PRId64
                       ", %" PRId64 ", %" PRId64 ", expected at least 1", t->g->map.path, t->arch, t->n_layers,
                       t->hidden, t->heads);
    if (t->n_layers > 65536)
        return err_set(e, ERR_FORMAT, "%s: key %s.block_count: %" PRId64 " layers", t->g->map.path, t->arch,
                       t->n_layers);
    t->n_blocks = t->n_layers;
    int64_t even = t->hidden / t->heads;
    if (gguf_key_most(t, "attention.head_count_kv", t->heads, &t->kv_heads, e) < 0 ||
        gguf_key_int(t, "attention.key_length", even, &t->head_dim, e) < 0 ||
        gguf_key_int(t, "attention.value_length", t->head_dim, &t->value_dim, e) < 0 ||
        gguf_key_int(t, "rope.dimension_count", t->head_dim, &t->n_rot, e) < 0 ||
        gguf_key_most(t, "feed_forward_length", 4 * t->hidden, &t->ff, e) < 0 ||
        gguf_key_int(t, "context_length", 2048, &t->context, e) < 0)
        return -1;
    if (t->value_dim != t->head_dim && gguf_has_key(t, "attention.key_length") &&
        !gguf_has_key(t, "attention.kv_lora_rank") && a->spelling != SPELLING_VALUES)
        return err_set(e, ERR_UNSUPPORTED, "%s: keys have %" PRId64 " values a head, values %" PRId64, t->g->map.path,
                       t->head_dim, t->value_dim);
    if (t->head_dim < 1 || t->n_rot < 1 || t->n_rot > t->head_dim)
        return err_set(e, ERR_FORMAT, "%s: key %s.rope.dimension_count: %" PRId64 ", expected 1 to head_dim %" PRId64,
                       t->g->map.path, t->arch, t->n_rot, t->head_dim);
    return 0;
}

static void write_vocabulary(struct gguf_translator *t)
{
    static const char *const ids[][2] = { { "bos_token_id", "tokenizer.ggml.bos_token_id" },
                                          { "eos_token_id", "tokenizer.ggml.eos_token_id" },
                                          { "pad_token_id", "tokenizer.ggml.padding_token_id" } };
    const struct source_tensor *embed = gguf_find_tensor(t, "token_embd.weight");
    const struct gguf_kv *tokens = gguf_find(t->g, "tokenizer.ggml.tokens");
    int64_t n;
    if (embed && embed->n_dims == 2)
        gguf_set_int(t, "vocab_size", embed->dim[0]);
    else if (gguf_key_int(t, "vocab_size", tokens ? (int64_t)tokens->n : 0, &n, NULL) == 0 && n > 0)
        gguf_set_int(t, "vocab_size", n);
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        int64_t id = gguf_int(t->g, ids[i][1], -1);
        if (id >= 0 && id <= INT32_MAX)
            gguf_set_int(t, ids[i][0], id);
    }
    gguf_set_bool(t, "tie_word_embeddings", !gguf_find_tensor(t, "output.weight"));
}

static int translate(struct gguf_translator *t, struct err *e)
{
    const char *name = strcmp(t->arch, "llama") == 0 && gguf_key_float(t, "expert_count", 0) > 0 ? "llama+experts" : t->arch;     /* mixtral */
    const struct gguf_arch *a = gguf_arch_find(name);
    static const struct gguf_arch unknown = { .eps = "rms_norm_eps", .spelling = SPELLING_CURRENT, .rope = 1 };
    /* an unknown type is shown by zse-info, and refused when the model is to run */
    gguf_set_string(t, "model_type", a ? a->model_type : t->arch);
    if (!a)
        gguf_set_string(t, "zse_gguf_architecture", t->arch);
    a = a ? a : &unknown;
    t->hybrid = a->spelling == SPELLING_HYBRID || a->spelling == SPELLING_VALUES;
    if (a->class_name)
        json_object_set_new(t->out, "architectures", json_pack("[s]", a->class_name));
    gguf_set_bool(t, "zse_gguf", 1);
    const int known = a != &unknown, sized = read_sizes(t, a, e) == 0;
    if (known && !sized && t->g->n_tensors)
        return -1;
    write_vocabulary(t);
    if (!sized)                                 /* a file without sizes can still serve as a tokenizer */
        return 0;
    write_sizes(t, a);
    int64_t experts;
    if (gguf_key_int(t, "expert_count", 0, &experts, NULL) == 0 && experts > 0)
        gguf_set_int(t, "num_local_experts", experts);
    if (a->rope) {
        json_t *rope = rope_parameters(t, a->rope, e);
        if (!rope)
            return -1;
        json_object_set_new(t->out, "rope_parameters", rope);
        if (t->n_rot != t->head_dim)
            json_object_set_new(t->out, "partial_rotary_factor", json_real(gguf_share(t->n_rot, t->head_dim)));
    }
    if (a->model_type)
        gguf_gate(t);
    if (a->add)
        a->add(t);
    if (a->model_type) {
        gguf_check_factor(t);
        gguf_add_pooling(t);
        gguf_check_direction(t);
    }
    if (known && t->g->n_tensors && t->bad->code)
        return err_set(e, t->bad->code, "%s", t->bad->msg);
    return 0;
}

/* Refuse NaN and infinity: JSON has neither, and no hyper-parameter may be one. */
static int check_finite(const struct gguf *g, struct err *e)
{
    for (int i = 0; i < g->n_kv; i++)
        if ((g->kv[i].type == GGUF_F32 || g->kv[i].type == GGUF_F64) && !isfinite(gguf_array_float(&g->kv[i], 0)))
            return err_set(e, ERR_FORMAT, "%s: offset %" PRIu64 ": key %s: is not a finite number", g->map.path,
                           g->kv[i].offset, g->kv[i].key);
    return 0;
}

static int by_name(const void *a, const void *b)
{
    const struct source_tensor *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

/* Sort the tensors by name: translating looks up several for each layer. */
static int sort_tensors(struct gguf_translator *t, struct err *e)
{
    const size_t n = (size_t)t->g->n_tensors;
    t->by_name = malloc((n + 1) * sizeof *t->by_name);
    if (!t->by_name)
        return err_nomem(e, "config");
    for (size_t i = 0; i < n; i++)
        t->by_name[i] = &t->g->tensors[i];
    qsort(t->by_name, n, sizeof *t->by_name, by_name);
    return 0;
}

json_t *gguf_config(const struct gguf *g, struct err *e)
{
    struct err bad = { 0 };
    struct gguf_translator t = { .g = g, .out = json_object(), .bad = &bad };
    const struct gguf_str *arch = gguf_str(g, "general.architecture");
    if (!t.out) {
        err_nomem(e, "config");
        return NULL;
    }
    if (!arch || arch->n == 0 || arch->n >= sizeof t.arch || memchr(arch->s, 0, arch->n) ||
        utf8_valid(arch->s, arch->n) != arch->n) {
        err_set(e, ERR_FORMAT, "%s: key general.architecture: expected a name", g->map.path);
        goto fail;
    }
    memcpy(t.arch, arch->s, arch->n);
    if (check_finite(g, e) == 0 && sort_tensors(&t, e) == 0 && translate(&t, e) == 0) {
        free(t.by_name);
        return t.out;
    }
fail:
    free(t.by_name);
    json_decref(t.out);
    return NULL;
}
