/* hf_config.c - rewrite a config.json field by field: see hf_config.h. */
#include "libcommon/import/hf_config.h"

#include <string.h>

#include "libcommon/base/json.h"

/* Rename a field, or drop it if the new name exists. */
static void rename_field(json_t *o, const char *from, const char *to)
{
    json_t *v = json_object_get(o, from);
    if (!v)
        return;
    if (!js_get(o, to))
        json_object_set(o, to, v);
    json_object_del(o, from);
}

static json_t *lift_text_config(const json_t *config)
{
    static const char *const left_behind[] = { "text_config", "vision_config", "audio_config", "llm_config",
                                               "language_config" };
    const json_t *text = js_get(config, "text_config");
    json_t *wrapper = js_get(config, "model_type"), *tied = js_get(config, "tie_word_embeddings"), *v;
    const int nested = json_is_object(text), flat = !nested && json_is_object(js_get(config, "vision_config"));
    json_t *out = json_copy((json_t *)(nested ? text : config));
    if (!out || !(nested || flat))
        return out;
    if (wrapper)
        json_object_set(out, "zse_wrapper", wrapper);
    if (flat) {                         /* qwen2_vl before version 5: the text's fields are at the top */
        json_object_del(out, "vision_config");
        return out;
    }
    /* the wrapper says whether embeddings are tied, which its text_config need not repeat */
    if (tied)
        json_object_set(out, "tie_word_embeddings", tied);
    const char *key;
    json_object_foreach((json_t *)config, key, v)
        if (!js_get(out, key))
            json_object_set(out, key, v);
    for (size_t i = 0; i < sizeof left_behind / sizeof *left_behind; i++)
        json_object_del(out, left_behind[i]);
    return out;
}

/* Returns 1 if partial_rotary_factor is the fraction of frequencies that rotate, 0 if it is the
 * fraction of the head's dimensions. */
static int is_proportional(const json_t *rope)
{
    const char *type = json_string_value(js_get(rope, "rope_type"));
    return type && strcmp(type, "proportional") == 0;
}

/* Bring one set of RoPE parameters into the current spelling: "type" -> "rope_type", "su" ->
 * "longrope". */
static int normalize_rope(json_t *rope, const json_t *config, struct err *e)
{
    rename_field(rope, "type", "rope_type");
    json_t *type = js_get(rope, "rope_type");
    if (type && !json_is_string(type))
        return err_set(e, ERR_FORMAT, "rope_type: found %s, expected a string", js_kind(type));
    const char *name = type ? json_string_value(type) : "default";
    if (strcmp(name, "su") == 0)
        name = "longrope";
    if (strcmp(name, "default") != 0 && !js_get(rope, "original_max_position_embeddings") &&
        js_get(config, "original_max_position_embeddings"))
        json_object_set(rope, "original_max_position_embeddings", js_get(config, "original_max_position_embeddings"));
    json_t *s = json_string(name);              /* before the old string is freed: name may point into it */
    json_object_set_new(rope, "rope_type", s);
    if (js_get(rope, "partial_rotary_factor") && !is_proportional(rope))
        json_object_del(rope, "partial_rotary_factor");
    return 0;
}

/* Does it have an object for each layer type ("full_attention": {...})? */
static int is_per_layer_type(const json_t *rope)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)rope, key, v)
        if (json_is_object(v))
            return 1;
    return 0;
}

/* Make rope_parameters from rope_theta and rope_scaling. */
static json_t *rope_from_old(const json_t *config, struct err *e)
{
    json_t *scaling = js_get(config, "rope_scaling"), *theta = js_get(config, "rope_theta");
    if (scaling && !json_is_object(scaling)) {
        err_set(e, ERR_FORMAT, "rope_scaling: found %s, expected an object", js_kind(scaling));
        return NULL;
    }
    json_t *rope = scaling ? json_copy(scaling) : json_object();
    if (theta && !js_get(rope, "rope_theta"))
        json_object_set(rope, "rope_theta", theta);
    return rope;
}

static int normalize_ropes(json_t *out, struct err *e)
{
    json_t *given = js_get(out, "rope_parameters"), *local = js_get(out, "rope_local_base_freq"), *rope;
    if (given && !json_is_object(given))
        return err_set(e, ERR_FORMAT, "rope_parameters: found %s, expected an object", js_kind(given));
    if (!given && !js_get(out, "rope_theta") && !js_get(out, "rope_scaling") && !local)
        goto done;
    rope = given ? json_deep_copy(given) : rope_from_old(out, e);
    if (!rope)
        return -1;
    if (is_per_layer_type(rope)) {
        const char *key;
        json_t *v;
        json_object_foreach(rope, key, v) {
            if (!json_is_object(v))
                continue;
            if (!js_get(out, "partial_rotary_factor") && js_get(v, "partial_rotary_factor") && !is_proportional(v))
                json_object_set(out, "partial_rotary_factor", js_get(v, "partial_rotary_factor"));
            if (normalize_rope(v, out, e) < 0) {
                err_prefix(e, "rope_parameters.%s", key);
                json_decref(rope);
                return -1;
            }
        }
    } else {
        if (!js_get(out, "partial_rotary_factor") && js_get(rope, "partial_rotary_factor") && !is_proportional(rope))
            json_object_set(out, "partial_rotary_factor", js_get(rope, "partial_rotary_factor"));
        if (!js_get(rope, "rope_theta") && js_get(out, "rope_theta"))
            json_object_set(rope, "rope_theta", js_get(out, "rope_theta"));
        if (normalize_rope(rope, out, e) < 0) {
            err_prefix(e, given ? "rope_parameters" : "rope_scaling");
            json_decref(rope);
            return -1;
        }
        if (local) {                            /* gemma3: scaling is for the layers with full attention */
            json_t *both = json_pack("{s:o, s:{s:s, s:O}}", "full_attention", rope, "sliding_attention", "rope_type",
                                     "default", "rope_theta", local);
            if (!both)
                return err_nomem(e, "rope_parameters");
            rope = both;
        }
    }
    json_object_set_new(out, "rope_parameters", rope);
done:
    json_object_del(out, "rope_theta");
    json_object_del(out, "rope_scaling");
    json_object_del(out, "rope_local_base_freq");
    return 0;
}

json_t *hf_config_normalize(const json_t *config, struct err *e)
{
    if (!json_is_object(config)) {
        err_set(e, ERR_FORMAT, "found %s, expected an object", js_kind(config));
        return NULL;
    }
    json_t *out = lift_text_config(config);
    if (!out) {
        err_nomem(e, "config");
        return NULL;
    }
    rename_field(out, "torch_dtype", "dtype");
    rename_field(out, "rotary_emb_base", "rope_theta");
    rename_field(out, "rotary_pct", "partial_rotary_factor");
    rename_field(out, "swa_rope_theta", "rope_local_base_freq");
    rename_field(out, "global_rope_theta", "rope_theta");
    rename_field(out, "local_rope_theta", "rope_local_base_freq");
    rename_field(out, "rotary_emb_fraction", "partial_rotary_factor");
    if (normalize_ropes(out, e) < 0) {
        json_decref(out);
        return NULL;
    }
    return out;
}
