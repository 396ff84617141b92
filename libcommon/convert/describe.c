/* describe.c - write the metadata of a .zse file. */
#include "libcommon/convert/describe.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/convert/template_source.h"
#include "libcommon/convert/tokenizer_source.h"
#include "libcommon/import/gguf.h"

static const char *base_name(const char *path)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    size_t at = n;
    while (at > 0 && path[at - 1] != '/')
        at--;
    return path + at;
}

/* The last component of a path, so that the file contains no folder names of this machine. */
static json_t *json_base_name(const char *path)
{
    const char *base = base_name(path);
    size_t n = strcspn(base, "/");
    json_t *s = json_stringn(base, n);
    return s ? s : json_string("?");
}

int describe_files(struct conversion *cv, struct zwriter *w, struct err *e)
{
    void *blob = NULL;
    size_t size;
    int found = tokenizer_from_source(cv->source, &blob, &size, e);
    if (found == 0)
        conversion_note(cv, "%s: has no tokenizer, so the new file has none either", cv->source->path);
    int rc = found > 0 ? zwriter_tokenizer(w, blob, size, e) : found;
    free(blob);
    if (rc)
        return -1;
    for (int i = 0; i < cv->source->n_files; i++) {
        const struct source_file *f = &cv->source->files[i];
        if (zwriter_original(w, f->name, f->data, f->size, e))
            return -1;
    }
    return 0;
}

/* The license from the front matter of a model card ("license: apache-2.0"); NULL: none. */
static json_t *license_of_card(const struct source_file *readme)
{
    static const char key[] = "license:";
    const char *p = readme->data, *end = p + readme->size;
    if (readme->size < 4 || memcmp(p, "---", 3) != 0)
        return NULL;
    for (p = memchr(p, '\n', (size_t)(end - p)); p && ++p < end; p = memchr(p, '\n', (size_t)(end - p))) {
        size_t n = (size_t)(end - p);
        if (n >= 3 && memcmp(p, "---", 3) == 0)
            return NULL;
        if (n < sizeof key || memcmp(p, key, sizeof key - 1) != 0)
            continue;
        p += sizeof key - 1;
        while (p < end && (*p == ' ' || *p == '"' || *p == '\''))
            p++;
        size_t size = 0;
        while (p + size < end && !strchr("\r\n\"' #", p[size]))
            size++;
        return size ? json_stringn(p, size) : NULL;
    }
    return NULL;
}

static json_t *license_of(const struct conversion *cv)
{
    const struct source_file *readme = source_file(cv->source, "README.md");
    const struct gguf_str *s = cv->source->gguf ? gguf_str(cv->source->gguf, "general.license") : NULL;
    return s ? json_stringn(s->s, s->n) : readme ? license_of_card(readme) : NULL;
}

static json_t *quantization(const struct conversion *cv)
{
    static const char *const efforts[] = { "fast", "good", "best" };
    const struct convert_report *r = cv->report;
    const char *type = r->type.kind == CONVERT_KEEP ? "keep" : r->type.kind == CONVERT_MIXED ? "mixed"
        : convert_type_name(r->type);
    json_t *q = json_pack("{s:s,s:I}", "type", type, "weight_bytes", (json_int_t)r->weight_bytes),
           *types = json_object();
    int rounded = 0, ruled = 0, folded = 0;
    for (int i = 0; i < cv->n_recipes; i++) {
        const struct recipe *p = &cv->recipes[i];
        const char *name = qtype_info(p->m.type)->name;
        rounded |= p->make == MAKE_QUANT;
        ruled |= p->make == MAKE_TERNARY;
        folded |= p->scaled;
        json_object_set_new(types, name, json_integer(json_integer_value(json_object_get(types, name)) +
                                                      (json_int_t)p->m.size));
    }
    json_object_set_new(q, "bytes_by_type", types);
    if (rounded && !cv->o->synthetic)
        json_object_set_new(q, "quality", json_string(efforts[cv->effort]));
    if (ruled)
        json_object_set_new(q, "ternary", json_string(ternary_name(cv->o->ternary)));
    if (r->n_calibration_tokens) {
        json_object_set_new(q, "calibration", cv->o->calibration ? json_base_name(cv->o->calibration)
                                                                : json_string("built-in"));
        json_object_set_new(q, "calibration_tokens", json_integer(r->n_calibration_tokens));
    }
    json_object_set_new(q, "channels_scaled", json_boolean(folded));
    return q;
}

static json_t *provenance(const struct conversion *cv, struct err *e)
{
    char key[33];
    if (cv->o->synthetic)
        return json_pack("{s:s,s:s,s:s}", "source", cv->source->path, "source_format", "random", "converter",
                         "zse-convert " ZSE_VERSION);
    if (source_key(cv->source, key, e))
        return NULL;
    json_t *p = json_pack("{s:o,s:s,s:s,s:s}", "source", json_base_name(cv->source->path), "source_format",
                          cv->source->kind == SOURCE_GGUF ? "gguf" : "safetensors", "source_key", key, "converter",
                          "zse-convert " ZSE_VERSION);
    static const char *const fields[][2] = { { "_name_or_path", "source_model" }, { "_commit_hash", "source_revision" },
                                             { "dtype", "source_dtype" } };
    for (size_t i = 0; p && i < sizeof fields / sizeof *fields; i++) {
        const char *text = json_string_value(json_object_get(cv->source->config, fields[i][0]));
        if (text && *text)
            json_object_set_new(p, fields[i][1], json_string(text));
    }
    for (int i = 0; p && i < cv->o->n_lora; i++) {
        if (i == 0)
            json_object_set_new(p, "merged_lora", json_array());
        json_array_append_new(json_object_get(p, "merged_lora"), json_base_name(cv->o->lora[i]));
    }
    if (p && cv->source->quantization)
        json_object_set(p, "source_quantization", cv->source->quantization);
    const struct gguf_str *s = cv->source->gguf ? gguf_str(cv->source->gguf, "general.name") : NULL;
    json_t *name = s ? json_stringn(s->s, s->n) : NULL;
    if (p && name)
        json_object_set_new(p, "source_model", name);
    return p;
}

/* Add the default chat template as "chat_template", and the others by name under
 * "chat_templates". */
static int add_templates(const struct conversion *cv, json_t *json, struct err *e)
{
    char *bos = NULL, *eos = NULL;
    json_t *all = template_collect(cv->source, &bos, &eos, e), *one;
    free(bos);
    free(eos);
    if (!all)
        return -1;
    one = json_object_get(all, "default");
    if (one)
        json_object_set(json, "chat_template", one);
    json_object_del(all, "default");
    if (json_object_size(all))
        json_object_set(json, "chat_templates", all);
    json_decref(all);
    return 0;
}

json_t *describe_json(struct conversion *cv, struct err *e)
{
    json_t *json = json_object(), *from = provenance(cv, e), *license = license_of(cv);
    if (!json || !from || add_templates(cv, json, e)) {
        json_decref(json);
        json_decref(from);
        json_decref(license);
        return NULL;
    }
    json_object_set_new(json, "architecture", json_string(cv->config.arch));
    json_object_set(json, "config", cv->source->config);
    if (cv->source->generation_config)
        json_object_set(json, "generation_config", cv->source->generation_config);
    json_object_set_new(json, "quantization", quantization(cv));
    json_object_set_new(json, "provenance", from);
    if (license)
        json_object_set_new(json, "license", license);
    return json;
}
