/* ollama_describe.c - describe models in Ollama's terms. */
#include "libcommon/serve/ollama/ollama_describe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/base/sha256.h"
#include "libcommon/model/parts.h"
#include "libcommon/store/store.h"

static const char *text(const json_t *o, const char *key)
{
    const char *s = json_string_value(js_get(o, key));
    return s ? s : "";
}

static double n_parameters(const struct zfile *f)
{
    double n = 0;
    for (int i = 0; f && i < zfile_n_tensors(f); i++) {
        const struct zfile_tensor *t = zfile_tensor(f, i);
        n += is_channel_scale(t->name) ? 0 : (double)t->dim[0] * (double)(t->n_dims > 1 ? t->dim[1] : 1);
    }
    return n;
}

/* A number of parameters as text: "134.5M", "7.6B". */
static json_t *size_of(double n)
{
    return n <= 0 ? json_string("") : n < 1e9 ? json_sprintf("%.2fM", n * 1e-6) : json_sprintf("%.1fB", n * 1e-9);
}

json_t *ollama_details(const json_t *head, const struct zfile *file)
{
    const char *arch = text(js_get(head, "config"), "model_type"), *type = text(js_get(head, "quantization"), "type");
    return json_pack("{s:s, s:s, s:s, s:[s], s:o, s:s}", "parent_model", "", "format", file ? "zse" : "", "family",
                     arch, "families", arch, "parameter_size", size_of(n_parameters(file)), "quantization_level", type);
}

json_t *ollama_info(const json_t *head, const struct zfile *file)
{
    static const char *const keys[][2] = {
        { "max_position_embeddings", "context_length" }, { "hidden_size", "embedding_length" },
        { "num_hidden_layers", "block_count" }, { "intermediate_size", "feed_forward_length" },
        { "num_attention_heads", "attention.head_count" }, { "num_key_value_heads", "attention.head_count_kv" },
        { "head_dim", "attention.key_length" }, { "vocab_size", "vocab_size" }, { "rope_theta", "rope.freq_base" } };
    const json_t *config = js_get(head, "config");
    const char *arch = text(config, "model_type");
    const double n = n_parameters(file);
    json_t *out = json_pack("{s:s, s:s}", "general.architecture", arch, "general.type", "model");
    int bad = n > 0 && json_object_set_new(out, "general.parameter_count", json_integer((json_int_t)n)) != 0;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        json_t *v = js_get(config, keys[i][0]);
        char key[128];
        snprintf(key, sizeof key, "%.64s.%s", arch, keys[i][1]);
        bad |= json_is_number(v) && json_object_set(out, key, v) != 0;
    }
    if (!bad && out)
        return out;
    json_decref(out);
    return NULL;
}

const char *ollama_template(const json_t *head)
{
    const char *own = text(head, "chat_template");
    return *own ? own : text(js_get(head, "chat_templates"), "default");
}

json_t *ollama_capabilities(const json_t *head)
{
    const char *tmpl = ollama_template(head);
    if (js_get(js_get(head, "config"), "zse_embedding"))
        return json_pack("[s]", "embedding");
    return json_pack("[s, s*, s*]", "completion", *tmpl ? "tools" : NULL,
                     strstr(tmpl, "</think>") ? "thinking" : NULL);
}

json_t *ollama_digest(uint64_t dev, uint64_t ino, uint64_t bytes, int64_t modified_s)
{
    char line[120], hex[SHA256_HEX + 1];
    uint8_t digest[SHA256_SIZE];
    const int n = snprintf(line, sizeof line, "%llu %llu %llu %lld", (unsigned long long)dev, (unsigned long long)ino,
                           (unsigned long long)bytes, (long long)modified_s);
    sha256_of(line, (size_t)n, digest);
    sha256_hex(digest, hex);
    return json_string(hex);
}

/* Describe a file; one that is no .zse has only a name, size and time. */
static json_t *describe(const char *folder, const struct store_model *m, int whole)
{
    struct err ignored;
    char *path = store_path(folder, *m->of ? m->of : m->name, &ignored);
    struct zfile *f = path ? zfile_open(path, &ignored) : NULL;
    const json_t *head = f ? zfile_json(f) : NULL;
    json_t *out = json_pack("{s:s, s:s, s:I, s:I, s:o, s:o}", "name", m->name, "of", m->of, "bytes",
                            (json_int_t)m->bytes, "modified", (json_int_t)m->modified_s, "digest",
                            ollama_digest(m->dev, m->ino, m->bytes, m->modified_s), "details",
                            ollama_details(head, f));
    if (out && whole) {
        const json_t *config = js_get(head, "config");
        const int bad = json_object_set_new(out, "info", ollama_info(head, f)) ||
                        json_object_set_new(out, "capabilities", ollama_capabilities(head)) ||
                        json_object_set_new(out, "template", json_string(ollama_template(head))) ||
                        json_object_set_new(out, "config", config ? json_deep_copy(config) : json_null());
        if (bad) {
            json_decref(out);
            out = NULL;
        }
    }
    zfile_close(f);
    free(path);
    return out;
}

json_t *ollama_store(const char *folder, const char *name, struct err *e)
{
    struct store_model *all = NULL;
    const int n = folder ? store_list(folder, &all, e) : 0;
    json_t *out = json_array();
    int bad = !out;
    for (int i = 0; i < n && !bad; i++)
        if (!*name || strcmp(all[i].name, name) == 0)
            bad = json_array_append_new(out, describe(folder, &all[i], *name != '\0')) != 0;
    free(all);
    if (n >= 0 && !bad)
        return out;
    json_decref(out);
    if (bad)
        err_nomem(e, "models");
    return NULL;
}
