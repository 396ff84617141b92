/* sentence.c - read the files of sentence-transformers: see sentence.h. */
#include "libcommon/import/sentence.h"

#include <stdio.h>
#include <string.h>

#include "libcommon/base/json.h"

enum module { MODULE_TRANSFORMER, MODULE_POOLING, MODULE_DENSE, MODULE_NORMALIZE, N_MODULES };
static const char *const module_names[N_MODULES] = { "Transformer", "Pooling", "Dense", "Normalize" };

/* The last part of "sentence_transformers.models.Pooling". */
static int type_of(const json_t *module)
{
    const char *type = json_string_value(json_object_get(module, "type")), *dot = type ? strrchr(type, '.') : NULL;
    int i = 0;
    while (dot && i < N_MODULES && strcmp(dot + 1, module_names[i]) != 0)
        i++;
    return dot ? i : N_MODULES;
}

const char *sentence_folder(const json_t *list, size_t i)
{
    return json_string_value(json_object_get(json_array_get(list, i), "path"));
}

const char *sentence_weights(const json_t *list, size_t i)
{
    const char *folder = sentence_folder(list, i);
    return folder && type_of(json_array_get(list, i)) != MODULE_DENSE ? "" : folder;
}

static json_t *parse_file(const struct source *s, const char *name, json_type type, struct err *e)
{
    const struct source_file *f = source_file(s, name);
    if (!f) {
        err_set(e, ERR_FORMAT, "%s: %s is missing", s->path, name);
        return NULL;
    }
    json_t *j = js_parse_python(name, f->data, f->size, e);
    if (j && json_typeof(j) != type) {
        err_set(e, ERR_FORMAT, "%s: %s: found %s, expected an %s", s->path, name, js_kind(j),
                type == JSON_ARRAY ? "array" : "object");
        json_decref(j);
        return NULL;
    }
    return j;
}

json_t *sentence_modules(const struct source *s, int *found, struct err *e)
{
    size_t i;
    const json_t *m;
    *found = source_file(s, "modules.json") != NULL;
    json_t *list = *found ? parse_file(s, "modules.json", JSON_ARRAY, e) : NULL;
    json_array_foreach(list, i, m) {
        const char *type = json_string_value(json_object_get(m, "type")), *folder = sentence_folder(list, i);
        const int kind = type_of(m);
        if (kind == N_MODULES)
            err_set(e, ERR_UNSUPPORTED, "%s: modules.json: module %zu of type \"%.80s\" is not supported", s->path, i,
                    type ? type : "?");
        else if (!folder || strchr(folder, '/') || *folder == '.' || strlen(folder) > 32)
            err_set(e, ERR_FORMAT, "%s: modules.json: module %zu: path \"%.80s\", expected the name of a folder", s->path,
                    i, folder ? folder : "?");
        else if ((kind == MODULE_TRANSFORMER) != (i == 0) || (kind == MODULE_TRANSFORMER && *folder))
            err_set(e, ERR_UNSUPPORTED, "%s: modules.json: module %zu: expected the transformer first, in the folder itself",
                    s->path, i);
        else
            continue;
        json_decref(list);
        return NULL;
    }
    return list;
}

/* "mean", from pooling_mode or from the one flag pooling_mode_... that is true. */
static const char *pooling_of(const struct source *s, const char *file, const json_t *config, struct err *e)
{
    static const char *const known[][2] = { { "pooling_mode_mean_tokens", "mean" }, { "pooling_mode_cls_token", "cls" },
                                            { "pooling_mode_lasttoken", "last" } };
    const json_t *mode = js_get(config, "pooling_mode");
    const char *key, *pooling = json_string_value(mode), *which = pooling;
    json_t *v;
    int n = pooling != NULL;
    json_object_foreach((json_t *)config, key, v) {
        if (strncmp(key, "pooling_mode_", 13) != 0 || !json_is_true(v))
            continue;
        n++;
        which = key;
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            if (strcmp(key, known[i][0]) == 0)
                pooling = known[i][1];
    }
    if (pooling && strcmp(pooling, "lasttoken") == 0)
        pooling = "last";
    const int includes = !js_get(config, "include_prompt") || json_is_true(js_get(config, "include_prompt"));
    if (n == 1 && pooling && includes)
        return pooling;
    if (!includes)
        err_set(e, ERR_UNSUPPORTED, "%s: %s: include_prompt false is not supported", s->path, file);
    else
        err_set(e, ERR_UNSUPPORTED, "%s: %s: %d ways of pooling (%.60s), expected one: mean, cls or lasttoken", s->path,
                file, n, which ? which : "none");
    return NULL;
}

/* {"in_features", "out_features", "bias", "activation_function"} of a dense layer in our words. */
static json_t *dense_of(const char *folder, const json_t *config)
{
    static const char *const acts[][2] = { { "Identity", "identity" }, { "Tanh", "tanh" }, { "ReLU", "relu" },
                                           { "GELU", "gelu" } };
    const char *given = json_string_value(js_get(config, "activation_function")),
               *dot = given ? strrchr(given, '.') : NULL, *act = given ? given : "tanh";
    char name[48];
    snprintf(name, sizeof name, "%s.linear", folder);
    for (size_t i = 0; dot && i < sizeof acts / sizeof *acts; i++)
        if (strcmp(dot + 1, acts[i][0]) == 0)
            act = acts[i][1];
    const json_t *bias = js_get(config, "bias");
    return json_pack("{s:s, s:I, s:I, s:b, s:s}", "name", name, "in",
                     json_integer_value(js_get(config, "in_features")), "out",
                     json_integer_value(js_get(config, "out_features")), "bias", !bias || json_is_true(bias),
                     "activation", act);
}

static int add_module(const struct source *s, const json_t *modules, size_t i, json_t *out, struct err *e)
{
    const char *folder = sentence_folder(modules, i);
    const int kind = type_of(json_array_get(modules, i));
    char file[64];
    if (kind == MODULE_NORMALIZE)
        return json_object_set_new(out, "normalize", json_true());
    if (kind == MODULE_TRANSFORMER)
        return 0;
    if (js_get(out, "normalize"))
        return err_set(e, ERR_UNSUPPORTED, "%s: modules.json: module %zu behind a normalization", s->path, i);
    snprintf(file, sizeof file, "%s/config.json", folder);
    json_t *config = parse_file(s, file, JSON_OBJECT, e);
    int rc = config ? 0 : -1;
    const char *pooling = config && kind == MODULE_POOLING ? pooling_of(s, file, config, e) : NULL;
    if (config && kind == MODULE_POOLING)
        rc = pooling ? json_object_set_new(out, "pooling", json_string(pooling)) : -1;
    if (config && kind == MODULE_DENSE)
        rc = json_array_append_new(json_object_get(out, "dense"), dense_of(folder, config));
    json_decref(config);
    return rc;
}

/* Copy keys of a file that may be missing. */
static int copy_keys(const struct source *s, const char *file, const char *const *keys, json_t *out, struct err *e)
{
    if (!source_file(s, file))
        return 0;
    json_t *config = parse_file(s, file, JSON_OBJECT, e);
    for (int i = 0; config && keys[i]; i++)
        if (js_get(config, keys[i]))
            json_object_set(out, keys[i], js_get(config, keys[i]));
    json_decref(config);
    return config ? 0 : -1;
}

json_t *sentence_describe(const struct source *s, const json_t *modules, struct err *e)
{
    static const char *const lengths[] = { "max_seq_length", NULL },
                            *const prompts[] = { "prompts", "default_prompt_name", NULL };
    json_t *out = json_pack("{s:[]}", "dense");
    int rc = out ? 0 : err_nomem(e, "modules.json");
    for (size_t i = 0; rc == 0 && i < json_array_size(modules); i++)
        rc = add_module(s, modules, i, out, e);
    if (rc == 0)
        rc = copy_keys(s, "sentence_bert_config.json", lengths, out, e);
    if (rc == 0)
        rc = copy_keys(s, "config_sentence_transformers.json", prompts, out, e);
    if (rc == 0 && !js_get(out, "pooling"))
        rc = err_set(e, ERR_UNSUPPORTED, "%s: modules.json has no pooling", s->path);
    if (rc == 0)
        return out;
    json_decref(out);
    return NULL;
}

int sentence_pair_types(const struct source *s)
{
    const struct source_file *f = source_file(s, "tokenizer_config.json");
    struct err ignored;
    json_t *config = f ? js_parse_python(f->name, f->data, f->size, &ignored) : NULL, *name;
    const json_t *names = js_get(config, "model_input_names");
    const char *class = json_string_value(js_get(config, "tokenizer_class"));
    int types = !class || strcmp(class, "PreTrainedTokenizerFast") != 0;
    size_t i;
    if (json_is_array(names))
        types = 0;
    json_array_foreach(names, i, name)
        types |= json_is_string(name) && strcmp(json_string_value(name), "token_type_ids") == 0;
    json_decref(config);
    return types;
}
