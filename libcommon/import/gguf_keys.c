/* gguf_keys.c - read keys of a GGUF file and write fields of a config.json. */
#include "libcommon/import/gguf_arch.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *gguf_full_key(const struct gguf_translator *t, const char *key, char *buf, size_t room)
{
    snprintf(buf, room, "%s.%s", t->arch, key);
    return buf;
}

int gguf_has_key(const struct gguf_translator *t, const char *key)
{
    char k[160];
    return gguf_find(t->g, gguf_full_key(t, key, k, sizeof k)) != NULL;
}

const struct source_tensor *gguf_find_tensor(const struct gguf_translator *t, const char *name)
{
    int low = 0, high = t->g->n_tensors;
    while (low < high) {
        const int middle = low + (high - low) / 2, order = strcmp(t->by_name[middle]->name, name);
        if (order == 0)
            return t->by_name[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

double gguf_key_float(const struct gguf_translator *t, const char *key, double otherwise)
{
    char k[160];
    return gguf_float(t->g, gguf_full_key(t, key, k, sizeof k), otherwise);
}

int gguf_key_int(const struct gguf_translator *t, const char *key, int64_t otherwise, int64_t *out, struct err *e)
{
    char k[160];
    const struct gguf_kv *kv = gguf_find(t->g, gguf_full_key(t, key, k, sizeof k));
    if (!kv) {
        *out = otherwise;
        return otherwise >= 0 ? 0 : err_set(e, ERR_FORMAT, "%s: key %s is missing", t->g->map.path, k);
    }
    if (kv->elem == GGUF_STR || kv->n < 1)
        return err_set(e, ERR_FORMAT, "%s: key %s: expected a number", t->g->map.path, k);
    *out = gguf_array_int(kv, 0);
    for (uint64_t i = 1; i < kv->n; i++)
        if (gguf_array_int(kv, i) != *out)
            return err_set(e, ERR_UNSUPPORTED, "%s: key %s: %" PRId64 " in layer 0 but %" PRId64 " in layer %" PRIu64,
                           t->g->map.path, k, *out, gguf_array_int(kv, i), i);
    if (*out < 0 || *out > INT32_MAX)
        return err_set(e, ERR_FORMAT, "%s: key %s: %" PRId64 " is out of range", t->g->map.path, k, *out);
    return 0;
}

int64_t gguf_key_at(const struct gguf_translator *t, const char *key, int64_t i, int64_t otherwise)
{
    char k[160];
    const struct gguf_kv *kv = gguf_find(t->g, gguf_full_key(t, key, k, sizeof k));
    if (!kv || kv->elem == GGUF_STR || kv->n < 1)
        return otherwise;
    return kv->type != GGUF_ARR ? gguf_array_int(kv, 0) : (uint64_t)i < kv->n ? gguf_array_int(kv, (uint64_t)i)
                                                                              : otherwise;
}

int gguf_key_most(const struct gguf_translator *t, const char *key, int64_t otherwise, int64_t *out, struct err *e)
{
    char k[160];
    if (!t->hybrid || !gguf_has_key(t, key))
        return gguf_key_int(t, key, otherwise, out, e);
    const struct gguf_kv *kv = gguf_find(t->g, gguf_full_key(t, key, k, sizeof k));
    if (kv->elem == GGUF_STR || kv->n < 1 || (kv->type == GGUF_ARR && kv->n != (uint64_t)t->n_layers))
        return err_set(e, ERR_FORMAT, "%s: key %s: expected a number, or %" PRId64 " of them", t->g->map.path, k,
                       t->n_layers);
    *out = 0;
    for (uint64_t i = 0; i < kv->n; i++) {
        const int64_t n = gguf_array_int(kv, i);
        if (n < 0 || n > INT32_MAX)
            return err_set(e, ERR_FORMAT, "%s: key %s: %" PRId64 " is out of range", t->g->map.path, k, n);
        *out = n > *out ? n : *out;
    }
    return 0;
}

void gguf_set_int(struct gguf_translator *t, const char *name, int64_t v)
{
    json_object_set_new(t->out, name, json_integer(v));
}
void gguf_set_bool(struct gguf_translator *t, const char *name, int v)
{
    json_object_set_new(t->out, name, json_boolean(v));
}
void gguf_set_string(struct gguf_translator *t, const char *name, const char *v)
{
    json_object_set_new(t->out, name, json_string(v));
}

json_t *gguf_real(double v)
{
    char text[40];
    for (int digits = 1; digits <= 9 && isfinite(v); digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        if (strtof(text, NULL) == (float)v)
            return json_real(strtod(text, NULL));
    }
    /* not finite: only possible for factors from a tensor, see check_finite */
    return isfinite(v) ? json_real(v) : NULL;
}

void gguf_set_real(struct gguf_translator *t, const char *name, double v)
{
    json_object_set_new(t->out, name, gguf_real(v));
}

void gguf_set_layer_types(struct gguf_translator *t, int64_t period)
{
    char k[160];
    const struct gguf_kv *kv = gguf_find(t->g, gguf_full_key(t, "attention.sliding_window_pattern", k, sizeof k));
    if (kv && kv->type != GGUF_ARR && kv->type != GGUF_STR && gguf_array_int(kv, 0) > 0)
        period = gguf_array_int(kv, 0);
    json_t *types = json_array();
    for (int64_t i = 0; i < t->n_layers; i++) {
        int window = period > 0 && (i + 1) % period != 0;
        if (kv && kv->type == GGUF_ARR && kv->elem != GGUF_STR && (uint64_t)i < kv->n)
            window = gguf_array_int(kv, (uint64_t)i) != 0;
        json_array_append_new(types, json_string(window ? "sliding_attention" : "full_attention"));
    }
    json_object_set_new(t->out, "layer_types", types);
}

int gguf_has_bias(const struct gguf_translator *t, const char *part)
{
    char name[96];
    snprintf(name, sizeof name, "blk.0.%s.bias", part);
    return gguf_find_tensor(t, name) != NULL;
}

int gguf_any_attn_bias(const struct gguf_translator *t)
{
    return gguf_has_bias(t, "attn_q") || gguf_has_bias(t, "attn_qkv");
}

int gguf_layer_has(const struct gguf_translator *t, int64_t i, const char *part)
{
    char name[96];
    snprintf(name, sizeof name, "blk.%" PRId64 ".%s", i, part);
    return gguf_find_tensor(t, name) != NULL;
}

void gguf_window(struct gguf_translator *t)
{
    int64_t n;
    if (gguf_key_int(t, "attention.sliding_window", 0, &n, NULL) == 0 && n > 0)
        gguf_set_int(t, "sliding_window", n);
    else
        json_object_set_new(t->out, "sliding_window", json_null());
}

void gguf_add_biases(struct gguf_translator *t)
{
    gguf_set_bool(t, "attention_bias", gguf_any_attn_bias(t));
    gguf_set_bool(t, "mlp_bias", gguf_has_bias(t, "ffn_down"));
}

void gguf_copy_int(struct gguf_translator *t, const char *key, const char *name)
{
    int64_t n;
    if (gguf_has_key(t, key) && gguf_key_int(t, key, 0, &n, NULL) == 0)
        gguf_set_int(t, name, n);
}

void gguf_add_experts(struct gguf_translator *t)
{
    gguf_copy_int(t, "expert_used_count", "num_experts_per_tok");
    gguf_copy_int(t, "expert_feed_forward_length", "moe_intermediate_size");
}

int64_t gguf_add_extra_layers(struct gguf_translator *t)
{
    int64_t extra;
    if (!gguf_has_key(t, "nextn_predict_layers") || gguf_key_int(t, "nextn_predict_layers", 0, &extra, NULL) != 0 ||
        extra <= 0 || extra >= t->n_layers)
        return t->n_layers;
    gguf_set_int(t, "num_nextn_predict_layers", extra);
    gguf_set_int(t, "num_hidden_layers", t->n_layers - extra);
    return t->n_layers - extra;
}

int gguf_any_layer_has(const struct gguf_translator *t, const char *end)
{
    const size_t m = strlen(end);
    for (int i = 0; i < t->g->n_tensors; i++) {
        const size_t n = strlen(t->g->tensors[i].name);
        if (n > m && strcmp(t->g->tensors[i].name + n - m, end) == 0)
            return 1;
    }
    return 0;
}

double gguf_share(int64_t n, int64_t of)
{
    double f = (double)n / (double)of;
    while ((int64_t)(f * (double)of) < n)
        f = nextafter(f, 2);
    return f;
}
