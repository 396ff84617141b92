/* gguf_keys.c - read keys of a GGUF file and write fields of a config.json. */
#include "libcommon/import/gguf_arch.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
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

void gguf_fail(const struct gguf_translator *t, enum err_code code, const char *fmt, ...)
{
    char text[sizeof t->bad->msg];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (!t->bad->code)
        err_set(t->bad, code, "%s: %s", t->g->map.path, text);
}

/* The place for an error: e, or the first fault of the translation. */
static struct err *place(const struct gguf_translator *t, struct err *e)
{
    return e ? e : t->bad->code ? NULL : t->bad;
}

double gguf_key_float(const struct gguf_translator *t, const char *key, double otherwise)
{
    char k[160];
    const struct gguf_kv *kv = gguf_find(t->g, gguf_full_key(t, key, k, sizeof k));
    int good = kv && kv->elem != GGUF_STR && kv->n > 0 && isfinite(gguf_array_float(kv, 0));
    for (uint64_t i = 1; good && i < kv->n; i++)
        good = gguf_array_float(kv, i) == gguf_array_float(kv, 0);
    if (kv && !good)
        gguf_fail(t, ERR_FORMAT, "key %s: expected a finite number", k);
    return good ? gguf_array_float(kv, 0) : otherwise;
}

/* Read element i as a whole number from 0 to INT32_MAX.  0, or -1 with *e. */
static int whole(const struct gguf_translator *t, const struct gguf_kv *kv, uint64_t i, int64_t *out, struct err *e)
{
    const double v = gguf_array_float(kv, i);
    if (!(v >= 0 && v <= INT32_MAX && v == floor(v)))
        return err_set(e, ERR_FORMAT, "%s: key %s: %.17g is out of range, expected 0 to %d", t->g->map.path, kv->key, v,
                       INT32_MAX);
    *out = (int64_t)v;
    return 0;
}

/* 1 if the key has one number, or one for each layer. */
static int fits(const struct gguf_translator *t, const struct gguf_kv *kv)
{
    return kv->elem != GGUF_STR && (kv->type != GGUF_ARR || kv->n == (uint64_t)t->n_blocks ||
                                    kv->n == (uint64_t)t->n_layers);
}

int gguf_key_int(const struct gguf_translator *t, const char *key, int64_t otherwise, int64_t *out, struct err *e)
{
    char k[160];
    const struct gguf_kv *kv = gguf_find(t->g, gguf_full_key(t, key, k, sizeof k));
    int64_t first = 0, v = 0;
    e = place(t, e);
    if (!kv && otherwise >= 0) {
        *out = otherwise;
        return 0;
    }
    if (!kv)
        return err_set(e, ERR_FORMAT, "%s: key %s is missing", t->g->map.path, k);
    if (kv->elem == GGUF_STR || kv->n < 1)
        return err_set(e, ERR_FORMAT, "%s: key %s: expected a number", t->g->map.path, k);
    if (whole(t, kv, 0, &first, e) < 0)
        return -1;
    for (uint64_t i = 1; i < kv->n; i++)
        if (whole(t, kv, i, &v, e) < 0)
            return -1;
        else if (v != first)
            return err_set(e, ERR_UNSUPPORTED, "%s: key %s: %" PRId64 " in layer 0 but %" PRId64 " in layer %" PRIu64,
                           t->g->map.path, k, first, v, i);
    *out = first;
    return 0;
}

int64_t gguf_key_at(const struct gguf_translator *t, const char *key, int64_t i, int64_t otherwise)
{
    char k[160];
    const struct gguf_kv *kv = gguf_find(t->g, gguf_full_key(t, key, k, sizeof k));
    int64_t v = otherwise;
    if (kv && !fits(t, kv))
        gguf_fail(t, ERR_FORMAT, "key %s: expected a number, or %" PRId64 " of them", k, t->n_blocks);
    else if (kv && (kv->type != GGUF_ARR || (uint64_t)i < kv->n))
        whole(t, kv, kv->type == GGUF_ARR ? (uint64_t)i : 0, &v, place(t, NULL));
    return v;
}

int gguf_floats(const struct gguf_translator *t, const char *full_key, double least, double most, double *out)
{
    const struct gguf_kv *kv = gguf_find(t->g, full_key);
    if (!kv)
        return 0;
    if ((kv->elem != GGUF_F32 && kv->elem != GGUF_F64) || !fits(t, kv)) {
        gguf_fail(t, ERR_FORMAT, "key %s: expected a real number, or %" PRId64 " of them", full_key, t->n_layers);
        return -1;
    }
    for (int64_t i = 0; i < t->n_layers; i++) {
        out[i] = gguf_array_float(kv, kv->type == GGUF_ARR ? (uint64_t)i : 0);
        if (!(out[i] >= least && out[i] <= most)) {
            gguf_fail(t, ERR_FORMAT, "key %s: layer %" PRId64 ": %g is out of range", full_key, i, out[i]);
            return -1;
        }
    }
    return 1;
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
    int64_t most = 0, n = 0;
    for (uint64_t i = 0; i < kv->n; i++) {
        if (whole(t, kv, i, &n, place(t, e)) < 0)
            return -1;
        most = n > most ? n : most;
    }
    *out = most;
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
    if (kv && kv->type != GGUF_ARR && gguf_key_int(t, "attention.sliding_window_pattern", period, &period, NULL) == 0 &&
        period == 0)
        gguf_fail(t, ERR_FORMAT, "key %s: 0 is out of range, expected at least 1", k);
    json_t *types = json_array();
    for (int64_t i = 0; i < t->n_layers; i++) {
        int window = period > 0 && (i + 1) % period != 0;
        if (kv && kv->type == GGUF_ARR)
            window = gguf_key_at(t, "attention.sliding_window_pattern", i, 0) != 0;
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

void gguf_check_head(const struct gguf_translator *t)
{
    if (!gguf_find_tensor(t, "output.weight"))
        gguf_fail(t, ERR_FORMAT, "tensor output.weight is missing");
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

void gguf_add_router(struct gguf_translator *t, int normalizes)
{
    gguf_copy_int(t, "expert_shared_count", "n_shared_experts");
    gguf_copy_int(t, "expert_group_count", "n_group");
    gguf_copy_int(t, "expert_group_used_count", "topk_group");
    gguf_set_real(t, "routed_scaling_factor", gguf_key_float(t, "expert_weights_scale", 1));
    gguf_set_bool(t, "norm_topk_prob", gguf_key_float(t, "expert_weights_norm", normalizes) != 0);
}

int64_t gguf_add_extra_layers(struct gguf_translator *t)
{
    int64_t extra;
    if (gguf_key_int(t, "nextn_predict_layers", 0, &extra, NULL) != 0 || extra == 0)
        return t->n_layers;
    if (extra >= t->n_layers) {
        gguf_fail(t, ERR_FORMAT, "key %s.nextn_predict_layers: %" PRId64 " of %" PRId64 " layers", t->arch, extra,
                  t->n_layers);
        return t->n_layers;
    }
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
