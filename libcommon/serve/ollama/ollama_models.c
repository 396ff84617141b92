/* ollama_models.c - /api/version, /api/tags, /api/ps, /api/show, /api/copy and /api/delete. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/json.h"
#include "libcommon/serve/ollama/ollama_describe.h"
#include "libcommon/serve/ollama/ollama.h"

void handle_ollama_version(struct server *s, struct conn *c, const char *rest)
{
    (void)rest;
    reply_object(s, c, 200, json_pack("{s:s, s:s}", "version", OLLAMA_VERSION, "zse", ZSE_VERSION));
}

static json_t *time_json(int64_t s)
{
    struct buf b = { 0 };
    ollama_time(&b, s, 0);
    json_t *out = b.failed ? NULL : json_stringn(b.data + 1, b.size - 2);
    buf_release(&b);
    return out;
}

/* ---- loaded models ---- */

static int is_listed(const struct access_record *record, const struct loaded_model *lm)
{
    return lm->state == MODEL_READY && guard_lists_model(record, lm->id);
}

struct loaded_model *ollama_find(struct server *s, struct conn *c, const char *name)
{
    char plain[STORE_NAME_BYTES];
    struct problem ignored;
    name = named_plain(s, name, plain);
    struct loaded_model *lm = models_find(s, name, &ignored);
    const int is_lora = lm && models_lora(lm, name),
              by_name = lm && (lm->named || is_lora) && guard_lists_model(conn_record(c), name);
    return lm && (by_name || (!is_lora && is_listed(conn_record(c), lm))) ? lm : NULL;
}

int ollama_named(struct server *s, struct conn *c, const char *name, char found[STORE_NAME_BYTES])
{
    struct problem ignored;
    char plain[STORE_NAME_BYTES];
    name = named_plain(s, name, plain);
    return named_find(s, name, found, &ignored) == 0 &&
           (guard_lists_model(conn_record(c), found) || guard_lists_model(conn_record(c), name));
}

int ollama_is_loading(const struct server *s, const char *name)
{
    const struct loaded_model *lm = s->models;
    while (lm && !(lm->named && lm->state == MODEL_LOADING && strcmp(lm->id, name) == 0))
        lm = lm->next;
    return lm != NULL;
}

static json_t *digest_of(const struct loaded_model *lm)
{
    struct stat st;
    if (stat(lm->path, &st) != 0)
        memset(&st, 0, sizeof st);
    return ollama_digest((uint64_t)st.st_dev, (uint64_t)st.st_ino, (uint64_t)st.st_size, (int64_t)st.st_mtime);
}

static json_t *tag_of(const char *name, json_int_t bytes, json_int_t modified_s, json_t *digest, json_t *details)
{
    return json_pack("{s:s, s:s, s:o, s:I, s:o, s:o}", "name", name, "model", name, "modified_at",
                     time_json(modified_s), "size", bytes, "digest", digest, "details", details);
}

static json_t *loaded_tag(const struct loaded_model *lm)
{
    return tag_of(lm->id, (json_int_t)lm->m.file_bytes, lm->created, digest_of(lm),
                  ollama_details(lm->m.json, lm->m.model->file));
}

/* The details of the model, or of its adapter with this number. */
static json_t *loaded_details(const struct loaded_model *lm, int lora)
{
    json_t *details = ollama_details(lm->m.json, lm->m.model->file);
    if (lora)
        json_object_set_new(details, "parent_model", json_string(lm->id));
    return details;
}

static json_t *adapter_tag(const struct loaded_model *lm, int lora)
{
    const struct adapter *a = &lm->adapters[lora - 1];
    return tag_of(a->name, (json_int_t)a->bytes, lm->created, ollama_digest(a->key, 0, a->bytes, 0),
                  loaded_details(lm, lora));
}

/* Append the adapters of the model that the record's key may use.  0, or -1 without memory. */
static int add_adapters(json_t *list, const struct access_record *record, const struct loaded_model *lm)
{
    for (int i = 1; i <= lm->n_adapters; i++) {
        const struct adapter *a = adapters_ready(lm, i);
        if (a && guard_lists_model(record, a->name) && json_array_append_new(list, adapter_tag(lm, i)) != 0)
            return -1;
    }
    return 0;
}

void handle_ollama_ps(struct server *s, struct conn *c, const char *rest)
{
    json_t *list = json_array();
    struct timespec now;
    int bad = !list;
    (void)rest;
    clock_gettime(CLOCK_REALTIME, &now);
    for (const struct loaded_model *lm = s->models; lm && !bad; lm = lm->next) {
        if (!is_listed(conn_record(c), lm))
            continue;
        /* For a model that is kept forever, write the last year that all clients can represent. */
        const double keep = named_keep(s, lm), used = (double)(clock_ns() - lm->used_ns) * 1e-9;
        json_t *m = loaded_tag(lm), *end = keep >= 0 && keep < 1e9
                        ? time_json((int64_t)((double)now.tv_sec + (keep > used ? keep - used : 0)))
                        : json_string("9999-12-31T00:00:00Z");
        bad = json_object_set_new(m, "expires_at", end) ||
              json_object_set_new(m, "size", json_integer((json_int_t)lm->memory_bytes)) ||
              json_object_set_new(m, "size_vram", json_integer((json_int_t)lm->vram_bytes)) ||
              json_object_set_new(m, "context_length", json_integer(lm->m.max_len));
        bad |= json_array_append_new(list, m) != 0;
    }
    reply_object(s, c, 200, bad ? NULL : json_pack("{s:O}", "models", list));
    json_decref(list);
}

/* ---- all models ---- */

static int may_list(const struct access_record *record, const json_t *m)
{
    const char *of = json_string_value(json_object_get(m, "of"));
    return guard_lists_model(record, json_string_value(json_object_get(m, "name"))) ||
           (*of && guard_lists_model(record, of));
}

static int has_name(const json_t *list, const char *name)
{
    const json_t *m;
    size_t i;
    json_array_foreach(list, i, m)
        if (strcmp(json_string_value(json_object_get(m, "name")), name) == 0)
            return 1;
    return 0;
}

static void reply_tags(struct server *s, struct conn *c, const char *word, json_t *answer, const struct err *e)
{
    json_t *list = json_array();
    const json_t *m;
    size_t i;
    int bad = !list;
    (void)word;
    (void)e;                                    /* an unreadable folder counts as one without models */
    for (const struct loaded_model *lm = s->models; lm && !bad; lm = lm->next)
        if (is_listed(conn_record(c), lm) && !has_name(answer, lm->id))
            bad = json_array_append_new(list, loaded_tag(lm)) != 0;
    for (const struct loaded_model *lm = s->models; lm && !bad; lm = lm->next)
        bad = add_adapters(list, conn_record(c), lm) != 0;
    json_array_foreach(answer, i, m)
        if (may_list(conn_record(c), m))
            bad |= json_array_append_new(list, tag_of(json_string_value(json_object_get(m, "name")),
                                                      json_integer_value(json_object_get(m, "bytes")),
                                                      json_integer_value(json_object_get(m, "modified")),
                                                      json_incref(json_object_get(m, "digest")),
                                                      json_incref(json_object_get(m, "details")))) != 0;
    reply_object(s, c, 200, bad ? NULL : json_pack("{s:O}", "models", list));
    json_decref(list);
}

void handle_ollama_tags(struct server *s, struct conn *c, const char *rest)
{
    (void)rest;
    catalog_ask(s, c, s->o.store, "", ollama_store, reply_tags);
}

/* ---- one model ---- */

static void not_found(struct server *s, struct conn *c, const char *name)
{
    reply_refusal(s, c, 404, "model_not_found", "model '%.120s' not found", name);
}

/* The field "model" or "name" of a body; NULL: refused, and the client has the answer. */
static const char *name_of(struct server *s, struct conn *c, const struct params *p)
{
    const char *name = p->model && *p->model ? p->model : p->name;
    if (name && *name)
        return name;
    reply_refusal(s, c, 400, "missing", "model is required");
    return NULL;
}

/* Make the answer of /api/show; takes ownership of details, info, capabilities and config (NULL:
 * not wanted). */
static json_t *show_json(const char *tmpl, int64_t modified_s, json_t *details, json_t *info, json_t *capabilities,
                         json_t *config)
{
    json_t *out = json_pack("{s:s, s:s, s:s, s:o, s:o, s:o, s:o}", "modelfile", "", "parameters", "", "template", tmpl,
                            "details", details, "model_info", info, "capabilities", capabilities, "modified_at",
                            time_json(modified_s));
    if (out && config)
        json_object_set(out, "config", config);
    json_decref(config);
    return out;
}

static void show(struct server *s, struct conn *c, const char *name, int verbose, json_t *answer, const struct err *e)
{
    json_t *m = json_array_get(answer, 0);
    if (!answer)
        reply_refusal(s, c, 503, "no_folder", "%s", e->msg);
    else if (!m || !may_list(conn_record(c), m))
        not_found(s, c, name);
    else
        reply_object(s, c, 200, show_json(json_string_value(json_object_get(m, "template")),
                                          json_integer_value(json_object_get(m, "modified")),
                                          json_incref(json_object_get(m, "details")),
                                          json_incref(json_object_get(m, "info")),
                                          json_incref(json_object_get(m, "capabilities")),
                                          verbose ? json_incref(json_object_get(m, "config")) : NULL));
}

static void reply_show(struct server *s, struct conn *c, const char *word, json_t *answer, const struct err *e)
{
    show(s, c, word, 0, answer, e);
}

static void reply_verbose(struct server *s, struct conn *c, const char *word, json_t *answer, const struct err *e)
{
    show(s, c, word, 1, answer, e);
}

static void show_loaded(struct server *s, struct conn *c, const struct loaded_model *lm, int lora, int verbose)
{
    const json_t *config = js_get(lm->m.json, "config");
    reply_object(s, c, 200, show_json(ollama_template(lm->m.json), lm->created,
                                      loaded_details(lm, lora),
                                      ollama_info(lm->m.json, lm->m.model->file), ollama_capabilities(lm->m.json),
                                      verbose && config ? json_deep_copy(config) : NULL));
}

void handle_ollama_show(struct server *s, struct conn *c, const char *rest)
{
    struct params p = { 0 };
    char plain[STORE_NAME_BYTES], found[STORE_NAME_BYTES];
    json_t *body = read_body(s, c, BODY_OLLAMA_MODEL, &p);
    const char *name = body ? name_of(s, c, &p) : NULL;
    (void)rest;
    if (name) {
        const struct loaded_model *lm = ollama_find(s, c, name);
        if (lm)
            show_loaded(s, c, lm, models_lora(lm, named_plain(s, name, plain)), p.verbose);
        else if (!ollama_named(s, c, name, found))
            not_found(s, c, name);
        else /* a key that may use only the alias must not learn the model's own name */
            catalog_ask(s, c, s->o.store,
                        guard_lists_model(conn_record(c), found) ? found : named_plain(s, name, plain), ollama_store,
                        p.verbose ? reply_verbose : reply_show);
    }
    json_decref(body);
}

/* ---- changes ---- */

/* Answer that the folder could not be changed, without its path. */
static void not_changed(struct server *s, struct conn *c, int status, const struct err *e)
{
    struct problem pr;
    problem_set(&pr, status, "model", status == 400 ? "invalid_value" : "not_changed", "%s", e->msg);
    pr = named_problem(s, &pr);
    reply_problem(s, c, &pr);
}

void handle_ollama_copy(struct server *s, struct conn *c, const char *rest)
{
    struct params p = { 0 };
    struct problem why;
    struct err e;
    char alias[STORE_NAME_BYTES], found[STORE_NAME_BYTES];
    json_t *body = read_body(s, c, BODY_OLLAMA_COPY, &p);
    (void)rest;
    if (!body)
        return;
    if (!p.source || !p.destination) {
        reply_refusal(s, c, 400, "missing", "source and destination are required");
    } else if (!ollama_named(s, c, p.source, found)) {
        not_found(s, c, p.source);
    } else {
        const char *to = named_plain(s, p.destination, alias);
        record_model(conn_record(c), found);
        if (guard_model(conn_record(c), to, &why) != 0)
            reply_problem(s, c, &why);
        else if (store_alias(s->o.store, to, found, &e) != 0)
            not_changed(s, c, e.code == ERR_FORMAT ? 400 : 500, &e);
        else
            reply_object(s, c, 200, json_object());
    }
    json_decref(body);
}

static json_t *remove_model(const char *folder, const char *name, struct err *e)
{
    if (store_remove(folder, name, e) != 0)
        return NULL;
    json_t *out = json_object();
    if (!out)
        err_nomem(e, "answer");
    return out;
}

/* Unload the model whose file was deleted, even if the client has disconnected (c NULL). */
static void reply_delete(struct server *s, struct conn *c, const char *word, json_t *answer, const struct err *e)
{
    for (struct loaded_model *lm = answer ? s->models : NULL; lm; lm = lm->next)
        if (lm->named && strcmp(lm->id, word) == 0)
            models_unload(s, lm);
    if (c && answer)
        reply_object(s, c, 200, json_object());
    else if (c && e->code == ERR_FORMAT)
        not_found(s, c, word);
    else if (c)
        not_changed(s, c, e->code == ERR_MEMORY ? 503 : 500, e);
}

void handle_ollama_delete(struct server *s, struct conn *c, const char *rest)
{
    struct params p = { 0 };
    char plain[STORE_NAME_BYTES];
    json_t *body = read_body(s, c, BODY_OLLAMA_MODEL, &p);
    const char *name = body ? name_of(s, c, &p) : NULL;
    (void)rest;
    if (name) {
        name = named_plain(s, name, plain);
        const int is_name = s->o.store && store_is_name(name), may = guard_lists_model(conn_record(c), name);
        if (is_name && may)
            record_model(conn_record(c), name);
        if (!is_name || !may)
            not_found(s, c, name);
        else if (ollama_is_loading(s, name))    /* or it would be served after its file was deleted */
            reply_refusal(s, c, 409, "model_loading", "model '%.120s' is being loaded: try again later", name);
        else
            catalog_remove(s, c, s->o.store, name, remove_model, reply_delete);
    }
    json_decref(body);
}
