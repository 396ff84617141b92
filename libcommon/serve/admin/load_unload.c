/* load_unload.c - POST /api/models/load and /api/models/unload. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libcommon/base/plural.h"
#include "libcommon/serve/admin/statistics.h"
#include "libcommon/serve/exchange.h"
#include "libcommon/serve/internal.h"

/* Neither a pipe nor a device: opening one could block the thread that loads all models. */
static int is_file_or_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && (S_ISREG(st.st_mode) || S_ISDIR(st.st_mode));
}

/* The path that a request may load: with --model-dir, links resolved, below that folder; else any
 * path, but only for a client on this machine. malloc'd; NULL: *pr gives the reason, the same one
 * for files elsewhere and for missing ones. */
static char *allowed_path(const struct server *s, const struct conn *c, const char *path, struct problem *pr)
{
    if (!s->o.model_dir) {
        if (server_is_reachable(s, conn_is_local(c))) {
            problem_set(pr, 403, "model_path", "path_not_allowed",
                        "model_path: from other machines only what lies below --model-dir, which was not given");
            return NULL;
        }
        if (access(path, F_OK) == 0 && !is_file_or_folder(path)) {
            problem_set(pr, 400, "model_path", "invalid_value", "model_path: '%.200s' is no file or folder", path);
            return NULL;
        }
        return strdup(path);
    }
    char *dir = realpath(s->o.model_dir, NULL), *joined = NULL, *real = NULL;
    if (dir && asprintf(&joined, "%s%s%s", *path == '/' ? "" : dir, *path == '/' ? "" : "/", path) < 0)
        joined = NULL;
    if (joined)
        real = realpath(joined, NULL);
    const size_t n = dir ? strlen(dir) : 0;
    if (real && (strncmp(real, dir, n) != 0 || (real[n] != '/' && n > 1) || !is_file_or_folder(real))) {
        free(real);
        real = NULL;
    }
    if (!real)
        problem_set(pr, 403, "model_path", "path_not_allowed",
                    "model_path: '%.200s' is no file or folder below the one of --model-dir", path);
    free(joined);
    free(dir);
    return real;
}

/* A ready model of this path, and of this id if one is given. */
static struct loaded_model *find_loaded(const struct server *s, const char *path, const char *id)
{
    struct loaded_model *o = s->models;
    while (o && !(o->state == MODEL_READY && strcmp(o->path, path) == 0 && (!id || strcmp(o->id, id) == 0)))
        o = o->next;
    return o;
}

/* Begin to load; the connection waits for the end.  old: a model whose file may have changed and
 * that the new one replaces; NULL: none. */
static void begin_load(struct server *s, struct conn *c, const char *path, const char *id, struct loaded_model *old)
{
    struct exchange *x = calloc(1, sizeof *x);
    struct loaded_model *lm;
    struct problem pr;
    if (!x) {
        reply_refusal(s, c, 503, NULL, "out of memory");
    } else if (!(lm = models_load(s, path, old ? old->id : id, old, &pr))) {
        reply_problem(s, c, &pr);
        free(x);
    } else {
        x->kind = EXCHANGE_LOAD;
        lm->waiter = c;
        conn_set_exchange(c, x);
    }
}

void handle_load(struct server *s, struct conn *c, const char *rest)
{
    struct params p = { 0 };
    struct problem pr;
    json_t *body = read_body(s, c, BODY_LOAD, &p);
    (void)rest;
    if (!body)
        return;
    const char *named = p.model_path ? p.model_path : p.model_name, *id = p.model_path ? p.model_name : NULL;
    char *path = named ? allowed_path(s, c, named, &pr) : NULL;
    if (!named)
        reply_refusal(s, c, 400, "missing", "model_path: missing");
    else if (!path)
        reply_problem(s, c, &pr);
    if (path) {
        models_check(s);
        struct loaded_model *o = find_loaded(s, path, id);
        if (o && !o->comparing)
            reply_object(s, c, 200, json_pack("{s:b, s:s, s:s, s:s, s:s, s:f, s:f, s:s}", "success", 1, "model_id",
                                              o->id, "model_name", o->path, "quantization",
                                              o->m.quantization ? o->m.quantization : "", "device", o->device,
                                              "vram_used_gb", round2(gigabytes(o->vram_bytes)), "load_time_sec", 0.0,
                                              "message", "was loaded already"));
        else
            begin_load(s, c, path, id, o && models_successor(s, o) ? NULL : o);
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
    struct loaded_model *lm = models_find(s, p.model_id, &pr);
    if (!lm && pr.status == 404 && models_forget(s, p.model_id)) {
        reply_object(s, c, 200, json_pack("{s:b, s:s}", "success", 1, "message", "unloaded"));
    } else if (!lm) {
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
