/* load_unload.c - POST /api/models/load and /api/models/unload. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/plural.h"
#include "libcommon/serve/admin/statistics.h"
#include "libcommon/serve/exchange.h"
#include "libcommon/serve/internal.h"
#include "libcommon/serve/model_paths.h"

/* Find a ready model of this path, and of this id if one is given. */
static struct loaded_model *find_loaded(const struct server *s, const char *path, const char *id)
{
    struct loaded_model *o = s->models;
    while (o && !(o->state == MODEL_READY && strcmp(o->path, path) == 0 && (!id || strcmp(o->id, id) == 0)))
        o = o->next;
    return o;
}

/* Start loading; the request is answered when the model is ready or has failed.  old: the loaded
 * model that the new one replaces, because its file may have changed; NULL: none. */
static void begin_load(struct server *s, struct conn *c, const char *path, const char *id,
                       const struct model_choice *how, struct loaded_model *old)
{
    struct exchange *x = calloc(1, sizeof *x);
    struct loaded_model *lm;
    struct problem pr;
    if (!x) {
        reply_refusal(s, c, 503, NULL, "out of memory");
    } else if (!(lm = models_load(s, path, old ? old->id : id, how, old, &pr))) {
        reply_problem(s, c, &pr);
        free(x);
    } else {
        x->kind = EXCHANGE_LOAD;
        lm->waiter = c;
        conn_set_exchange(c, x);
    }
}

/* Read the fields quantization, device and target_vram_gb.  -1 with *pr. */
static int read_choice(const struct params *p, struct model_choice *how, struct problem *pr)
{
    *how = (struct model_choice){ .target_gb = (double)p->target_gb };
    const char *type = p->quantization && strcmp(p->quantization, "auto") != 0 ? p->quantization : "";
    if (strlen(type) >= sizeof how->quantization)
        return problem_set(pr, 400, "quantization", "invalid_value", "quantization: '%.40s...' is no type", type);
    if (*type && how->target_gb > 0)
        return problem_set(pr, 400, "target_vram_gb", "invalid_value",
                           "target_vram_gb chooses the type: expected no quantization, or auto");
    if (p->device && strlen(p->device) >= sizeof how->device)
        return problem_set(pr, 400, "device", "invalid_value", "device: '%.40s...' is no device", p->device);
    strcpy(how->quantization, type);
    strcpy(how->device, p->device ? p->device : "");
    return 0;
}

/* Whether the client may load this file under this id (NULL: the id made from the path).  A key
 * that is limited to certain models needs permission for both ids.  Otherwise it could load a
 * forbidden model under a permitted id.  0: not allowed, with the reason in *pr. */
static int may_load(const struct conn *c, const char *path, const char *id, struct problem *pr)
{
    const struct access_record *record = conn_record(c);
    char *own = server_model_id(path);
    const int may = own && guard_lists_model(record, own) && (!id || guard_lists_model(record, id));
    if (!own)
        problem_nomem(pr);
    else if (!may)
        problem_set(pr, 403, "model_path", "model_not_allowed", "model_path: the key may not use %.200s",
                    guard_lists_model(record, own) ? id : own);
    free(own);
    return may;
}

static int is_same_choice(const struct model_choice *a, const struct model_choice *b)
{
    return strcmp(a->quantization, b->quantization) == 0 && strcmp(a->device, b->device) == 0 &&
           a->target_gb >= b->target_gb && a->target_gb <= b->target_gb;
}

void handle_load(struct server *s, struct conn *c, const char *rest)
{
    struct params p = { 0 };
    struct problem pr;
    (void)rest;
    if (s->sleep.level) {
        reply_refusal(s, c, 409, "sleeping", "the server sleeps: POST /wake_up first");
        return;
    }
    json_t *body = read_body(s, c, BODY_LOAD, &p);
    if (!body)
        return;
    const char *named = p.model_path ? p.model_path : p.model_name, *id = p.model_path ? p.model_name : NULL;
    struct model_choice how;
    if (read_choice(&p, &how, &pr) != 0) {
        reply_problem(s, c, &pr);
        json_decref(body);
        return;
    }
    char *path = named ? model_path_allowed(s, c, named, &pr) : NULL;
    if (path && !may_load(c, path, id, &pr)) {
        free(path);
        path = NULL;
    }
    if (!named)
        reply_refusal(s, c, 400, "missing", "model_path: missing");
    else if (!path)
        reply_problem(s, c, &pr);
    if (path) {
        models_check(s);
        struct loaded_model *o = find_loaded(s, path, id);
        if (o && !o->comparing && is_same_choice(&how, &o->how))
            reply_object(s, c, 200, json_pack("{s:b, s:s, s:s, s:s, s:s, s:f, s:f, s:s}", "success", 1, "model_id",
                                              o->id, "model_name", o->path, "quantization",
                                              o->m.quantization ? o->m.quantization : "", "device", o->device,
                                              "vram_used_gb", round2(gigabytes(o->vram_bytes)), "load_time_sec", 0.0,
                                              "message", "was loaded already"));
        else
            begin_load(s, c, path, id, &how, o && models_successor(s, o) ? NULL : o);
    }
    free(path);
    json_decref(body);
}

void handle_unload(struct server *s, struct conn *c, const char *rest)
{
    struct params p = { 0 };
    struct problem pr;
    json_t *body = read_body(s, c, BODY_UNLOAD, &p);
    (void)rest;
    if (!body)
        return;
    if (!p.model_id) {
        reply_refusal(s, c, 400, "missing", "model_id: missing");
        json_decref(body);
        return;
    }
    if (models_adapted(s, p.model_id)) {
        reply_refusal(s, c, 400, "invalid_value", "model_id: %.80s is a LoRA adapter, which is unloaded with its model: "
                      "expected the id of a model", p.model_id);
        json_decref(body);
        return;
    }
    struct loaded_model *lm = models_find(s, p.model_id, &pr);
    const int may_forget = !lm && pr.status == 404 && guard_lists_model(conn_record(c), p.model_id);
    if (may_forget || (lm && guard_lists_model(conn_record(c), lm->id)))
        json_object_del(s->batching, lm ? lm->id : p.model_id);
    if (may_forget && models_forget(s, p.model_id)) {
        reply_object(s, c, 200, json_pack("{s:b, s:s}", "success", 1, "message", "unloaded"));
    } else if (!lm || guard_model(conn_record(c), lm->id, &pr) != 0) {
        reply_problem(s, c, &pr);
    } else {
        int running = lm->n_calls;
        char text[80];
        snprintf(text, sizeof text, running ? "unloading; %d request%s to end first" : "unloaded", running,
                 plural(running));
        models_unload(s, lm);
        reply_object(s, c, 200, json_pack("{s:b, s:s}", "success", 1, "message", text));
    }
    json_decref(body);
}
