/* template_source.c - read the chat templates of a folder, a GGUF or a .zse file. */
#include "libcommon/convert/template_source.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/format/zfile.h"
#include "libcommon/import/gguf.h"
#include "libcommon/token/tokenizer.h"

/* ---- a folder */

static json_t *parse_file(const struct source *s, const char *name, struct err *e)
{
    const struct source_file *f = source_file(s, name);
    if (!f)
        return json_object();
    json_t *j = js_parse(name, f->data, f->size, e);
    if (!j)
        err_prefix(e, "%s", s->path);
    return j;
}

/* *out: a copy of s; NULL if s is NULL. */
static int copy(const char *s, size_t n, char **out, struct err *e)
{
    *out = s ? strndup(s, n) : NULL;
    return s && !*out ? err_nomem(e, "the text of a token") : 0;
}

/* *out: the text of the token with this key, which is written as a string or as {"content": text,
 * ...}. */
static int token_text(const json_t *config, const char *key, char **out, struct err *e)
{
    const json_t *t = js_get(config, key);
    if (json_is_object(t))
        t = json_object_get(t, "content");
    return copy(json_string_value(t), json_string_length(t), out, e);
}

static int add_text(json_t *all, const char *name, const char *path, const void *text, size_t size, struct err *e)
{
    json_t *j = json_stringn(text, size);
    if (!j)
        return err_set(e, ERR_FORMAT, "%s: the chat template is not UTF-8", path);
    return json_object_set_new(all, name, j) < 0 ? err_nomem(e, "chat template") : 0;
}

/* Add the templates of "chat_template", which is a text, or a list [{"name": ..., "template":
 * ...}]. */
static int add_from_config(json_t *all, const json_t *config, const char *path, struct err *e)
{
    const json_t *t = js_get(config, "chat_template"), *item;
    size_t i;
    if (json_is_string(t))
        return add_text(all, "default", path, json_string_value(t), json_string_length(t), e);
    if (t && !json_is_array(t))
        return err_set(e, ERR_FORMAT, "%s: chat_template: found %s, expected a string or an array", path, js_kind(t));
    json_array_foreach(t, i, item) {
        const json_t *name = json_object_get(item, "name"), *text = json_object_get(item, "template");
        if (!json_is_string(name) || !json_is_string(text))
            return err_set(e, ERR_FORMAT, "%s: chat_template[%zu]: expected an object with name and template", path, i);
        if (add_text(all, json_string_value(name), path, json_string_value(text), json_string_length(text), e) < 0)
            return -1;
    }
    return 0;
}

/* Collect the templates of a folder.  Templates of tokenizer_config.json, the older form, replace
 * those of chat_template.json; separate files, the newer form, replace both. */
static int collect_folder(const struct source *s, json_t *all, char **bos, char **eos, struct err *e)
{
    static const char folder[] = "additional_chat_templates/";
    json_t *config = parse_file(s, "tokenizer_config.json", e), *special = NULL, *processor = NULL;
    int r = -1;
    if (!config || !(special = parse_file(s, "special_tokens_map.json", e)) ||
        !(processor = parse_file(s, "chat_template.json", e)))
        goto done;
    if (token_text(json_object_get(config, "bos_token") ? config : special, "bos_token", bos, e) < 0 ||
        token_text(json_object_get(config, "eos_token") ? config : special, "eos_token", eos, e) < 0)
        goto done;
    if (add_from_config(all, processor, s->path, e) < 0 || add_from_config(all, config, s->path, e) < 0)
        goto done;
    for (int i = 0; i < s->n_files; i++) {
        const struct source_file *f = &s->files[i];
        size_t n = strlen(f->name), skip = sizeof folder - 1;
        if (!strcmp(f->name, "chat_template.jinja") && add_text(all, "default", f->name, f->data, f->size, e) < 0)
            goto done;
        if (strncmp(f->name, folder, skip) || n <= skip + 6)
            continue;
        char *name = strndup(f->name + skip, n - skip - 6);                     /* without .jinja */
        int added = name ? add_text(all, name, f->name, f->data, f->size, e) : err_nomem(e, "chat template");
        free(name);
        if (added < 0)
            goto done;
    }
    r = 0;
done:
    json_decref(config);
    json_decref(special);
    json_decref(processor);
    return r;
}

/* ---- a GGUF file: tokenizer.chat_template, and tokenizer.chat_template.NAME */

static int gguf_token(const struct gguf *g, const char *key, char **out, struct err *e)
{
    int64_t id = gguf_int(g, key, -1);
    const struct gguf_kv *tokens = gguf_find(g, "tokenizer.ggml.tokens");
    const struct gguf_str *s = id >= 0 && tokens && tokens->str && (uint64_t)id < tokens->n ? &tokens->str[id] : NULL;
    return copy(s ? s->s : NULL, s ? s->n : 0, out, e);
}

static int collect_gguf(const struct source *s, json_t *all, char **bos, char **eos, struct err *e)
{
    static const char key[] = "tokenizer.chat_template";
    const struct gguf *g = s->gguf;
    if (gguf_token(g, "tokenizer.ggml.bos_token_id", bos, e) < 0 ||
        gguf_token(g, "tokenizer.ggml.eos_token_id", eos, e) < 0)
        return -1;
    for (int i = 0; i < g->n_kv; i++) {
        const struct gguf_kv *kv = &g->kv[i];
        size_t n = sizeof key - 1;
        if (strncmp(kv->key, key, n) || (kv->key[n] && kv->key[n] != '.') || kv->type != GGUF_STR || !kv->str)
            continue;
        if (add_text(all, kv->key[n] ? kv->key + n + 1 : "default", s->path, kv->str->s, kv->str->n, e) < 0)
            return -1;
    }
    return 0;
}

json_t *template_collect(const struct source *s, char **bos, char **eos, struct err *e)
{
    json_t *all = json_object();
    *bos = *eos = NULL;
    if (!all) {
        err_nomem(e, "chat templates");
        return NULL;
    }
    if ((s->gguf ? collect_gguf(s, all, bos, eos, e) : collect_folder(s, all, bos, eos, e)) < 0) {
        free(*bos);
        free(*eos);
        *bos = *eos = NULL;
        json_decref(all);
        return NULL;
    }
    return all;
}

/* ---- a .zse file */

/* The texts of BOS and EOS, from the kept tokenizer_config.json, or else from their ids. */
static int zse_tokens(const struct zfile *z, char **bos, char **eos, struct err *e)
{
    size_t size, n_token;
    for (int i = 0; i < zfile_n_originals(z); i++) {
        if (strcmp(zfile_original_name(z, i, &size), "tokenizer_config.json"))
            continue;
        char *text = malloc(size + 1);
        if (!text)
            return err_nomem(e, "tokenizer_config.json");
        if (zfile_original_read(z, i, text, e) < 0) {
            free(text);
            return -1;
        }
        json_t *config = js_parse("tokenizer_config.json", text, size, e);
        free(text);
        if (!config)
            return err_prefix(e, "%s", zfile_path(z));
        int rc = token_text(config, "bos_token", bos, e) < 0 ? -1 : token_text(config, "eos_token", eos, e);
        json_decref(config);
        return rc;
    }
    const void *blob = zfile_tokenizer(z, &size);
    struct tokenizer *t = blob ? tokenizer_open(blob, size, e) : NULL;
    if (!t)
        return blob ? -1 : 0;
    int n_eos = 0;
    const int32_t *ends = tokenizer_eos(t, &n_eos);
    const char *first = tokenizer_bos(t) >= 0 ? tokenizer_token(t, tokenizer_bos(t), &n_token) : NULL;
    int rc = copy(first, first ? n_token : 0, bos, e);
    const char *last = n_eos ? tokenizer_token(t, ends[0], &n_token) : NULL;
    if (rc == 0)
        rc = copy(last, last ? n_token : 0, eos, e);
    tokenizer_close(t);
    return rc;
}

static json_t *collect_zse(const struct zfile *z, char **bos, char **eos, struct err *e)
{
    const json_t *one = js_get(zfile_json(z), "chat_template"), *named = js_get(zfile_json(z), "chat_templates");
    /* the cast is safe: json_copy() does not change it */
    json_t *all = json_is_object(named) ? json_copy((json_t *)(uintptr_t)named) : json_object();
    if (!all) {
        err_nomem(e, "chat templates");
        return NULL;
    }
    if ((json_is_string(one) && add_text(all, "default", zfile_path(z), json_string_value(one), json_string_length(one),
                                         e) < 0)
        || zse_tokens(z, bos, eos, e) < 0) {
        json_decref(all);
        return NULL;
    }
    return all;
}

int template_from_path(const char *path, const char *name, char **text, char **bos, char **eos, struct err *e)
{
    struct zfile *z = NULL;
    struct source *s = NULL;
    json_t *all = NULL;
    int r = -1;
    *text = *bos = *eos = NULL;
    enum source_kind kind = source_detect(path, e);
    if (kind == SOURCE_NONE)
        return -1;
    if (kind == SOURCE_ZSE)
        all = (z = zfile_open(path, e)) ? collect_zse(z, bos, eos, e) : NULL;
    else
        all = (s = source_open(path, e)) ? template_collect(s, bos, eos, e) : NULL;
    if (!all)
        goto done;
    const json_t *found = json_object_get(all, name ? name : "default");
    if (json_is_string(found)) {
        *text = strdup(json_string_value(found));
        r = *text ? 0 : err_nomem(e, "chat template");
    } else if (name) {
        err_set(e, ERR_FORMAT, "%s: has no chat template '%s', but %zu of other names", path, name,
                json_object_size(all));
    } else {
        r = 0;
    }
done:
    json_decref(all);
    source_close(s);
    zfile_close(z);
    if (r < 0) {
        free(*bos);
        free(*eos);
        *bos = *eos = NULL;
    }
    return r;
}
