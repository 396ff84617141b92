/* models.c - what is loaded: opening and closing in a thread of its own, draining, the memory
 * limit, reload. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/file.h"
#include "libcommon/base/json.h"
#include "libcommon/base/plural.h"
#include "libcommon/format/zfile.h"
#include "libcommon/serve/exchange.h"
#include "libcommon/serve/internal.h"
#include "libcommon/template/chat.h"

enum task_kind { TASK_OPEN, TASK_CLOSE };
/* What is to be closed, taken out of the loaded model, which the loop goes on looking at. */
struct closing { struct worker *worker; struct tmpl *tmpl; struct served_model m; int opened, stuck; };
enum { PATIENCE_S = 3 };                /* for the step that an engine is in */
struct task { struct task *next; enum task_kind kind; struct loaded_model *lm; struct closing closing; };

struct opening {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t work;
    struct task *todo, *done;
    int stop;
    struct server *s;
};

/* ---- in the thread ---- */

static char *token_text(const struct tokenizer *t, int32_t id)
{
    size_t size = 0;
    const char *text = id >= 0 ? tokenizer_token(t, id, &size) : NULL;
    return strndup(text ? text : "", text ? size : 0);
}

static int read_template(struct loaded_model *lm, struct err *e)
{
    const json_t *own = js_get(lm->m.json, "chat_template"), *named = js_get(lm->m.json, "chat_templates");
    int n_eos = 0;
    const int32_t *eos = tokenizer_eos(lm->m.tokenizer, &n_eos);
    lm->bos = token_text(lm->m.tokenizer, tokenizer_bos(lm->m.tokenizer));
    lm->eos = token_text(lm->m.tokenizer, n_eos ? eos[0] : -1);
    if (!lm->bos || !lm->eos)
        return err_nomem(e, "model");
    lm->calls_form = tool_format_detect(NULL, 0);
    if (!(lm->grammars = grammars_open(lm->m.tokenizer, e)))
        return -1;
    if (!own && json_is_object(named))
        own = js_get(named, "default");
    if (!json_is_string(own))
        return 0;
    const char *text = json_string_value(own);
    lm->thinks = strstr(text, "</think>") != NULL;
    lm->knows_tools = strstr(text, "tools") != NULL;
    lm->calls_form = tool_format_detect(text, json_string_length(own));
    lm->tmpl = tmpl_parse(json_string_value(own), json_string_length(own), "chat template", e);
    return lm->tmpl ? 0 : -1;
}

/* What a request gets that says nothing: the model's generation_config, else sampling_defaults. */
static int read_sampling(struct loaded_model *lm, struct err *e)
{
    lm->sampling = sampling_defaults();
    return sampling_config(&lm->sampling, js_get(lm->m.json, "generation_config"), e) == 0 &&
           sampling_check(&lm->sampling, lm->m.model->config.vocab_size, e) == 0 ? 0
                                                                                 : err_prefix(e, "generation_config");
}

static void open_model(struct loaded_model *lm)
{
    struct server *s = lm->s;
    struct engine_stats es;
    if (s->o.opener.open(s->o.opener.user, lm->path, &lm->m, &lm->error) != 0)
        return;
    lm->opened = 1;
    if ((lm->m.tokenizer && read_template(lm, &lm->error) != 0) || read_sampling(lm, &lm->error) != 0)
        return;
    engine_stats(lm->m.engine, &es);
    engine_limits(lm->m.engine, &lm->limits);
    lm->most_running = lm->limits.max_running;
    lm->memory_bytes = lm->m.file_bytes + es.private_bytes;       /* the private ones have keys and values among them */
    lm->vram_bytes = es.device.weights + es.device.cached + es.device.kv + es.device.work;
    if (es.device.name)
        snprintf(lm->device, sizeof lm->device, "%.*s:%d", (int)strcspn(es.backend, " "), es.backend, es.device.index);
    else
        snprintf(lm->device, sizeof lm->device, "cpu");
    device_line(lm->about, &es, lm->m.model->config.n_layers);
    lm->load_s = (double)(clock_ns() - lm->started_ns) * 1e-9;
    lm->error.code = ERR_NONE;
}

static void close_model(struct server *s, struct closing *c)
{
    if (worker_close(c->worker, PATIENCE_S) != 0) {
        c->stuck = 1;
        s->n_stuck++;
        return;
    }
    if (c->tmpl)
        tmpl_free(c->tmpl);
    if (c->opened)
        s->o.opener.close(s->o.opener.user, &c->m);
}

static void *run_tasks(void *arg)
{
    struct opening *o = arg;
    for (;;) {
        pthread_mutex_lock(&o->lock);
        while (!o->todo && !o->stop)
            pthread_cond_wait(&o->work, &o->lock);
        struct task *t = o->todo;
        if (t)
            o->todo = t->next;
        pthread_mutex_unlock(&o->lock);
        if (!t)
            return NULL;
        if (t->kind == TASK_OPEN)
            open_model(t->lm);
        else
            close_model(o->s, &t->closing);
        pthread_mutex_lock(&o->lock);
        struct task **end = &o->done;
        while (*end)
            end = &(*end)->next;
        t->next = NULL;
        *end = t;
        pthread_mutex_unlock(&o->lock);
        loop_wake(o->s->loop);
    }
}

static struct closing take_out(struct loaded_model *lm)
{
    const struct closing c = { lm->worker, lm->tmpl, lm->m, lm->opened, 0 };
    lm->worker = NULL;
    lm->tmpl = NULL;
    lm->opened = 0;
    memset(&lm->m, 0, sizeof lm->m);
    lm->state = MODEL_CLOSING;
    return c;
}

static int give_task(struct server *s, enum task_kind kind, struct loaded_model *lm)
{
    struct opening *o = s->opening;
    struct task *t = calloc(1, sizeof *t), **end = &o->todo;
    if (!t)
        return -1;
    t->kind = kind;
    t->lm = lm;
    if (kind == TASK_CLOSE)
        t->closing = take_out(lm);
    pthread_mutex_lock(&o->lock);
    while (*end)
        end = &(*end)->next;
    *end = t;
    pthread_cond_signal(&o->work);
    pthread_mutex_unlock(&o->lock);
    return 0;
}

int models_start(struct server *s, struct err *e)
{
    struct opening *o = calloc(1, sizeof *o);
    if (!o)
        return err_nomem(e, "server");
    o->s = s;
    pthread_mutex_init(&o->lock, NULL);
    pthread_cond_init(&o->work, NULL);
    int rc = pthread_create(&o->thread, NULL, run_tasks, o);
    if (rc != 0) {
        free(o);
        return err_set(e, ERR_IO, "thread: %s", strerror(rc));
    }
    s->opening = o;
    return 0;
}

/* ---- in the loop's thread ---- */

char *models_default_id(const char *path)
{
    static const char *const ends[] = { ".zse", ".gguf" };
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    const char *slash = memrchr(path, '/', n), *name = slash && slash + 1 < path + n ? slash + 1 : path;
    n -= (size_t)(name - path);
    for (size_t i = 0; i < 2; i++) {
        size_t k = strlen(ends[i]);
        if (n > k && memcmp(name + n - k, ends[i], k) == 0)
            n -= k;
    }
    return strndup(name, n);
}

static void free_model(struct loaded_model *lm)
{
    struct loaded_model **at = &lm->s->models;
    while (*at && *at != lm)
        at = &(*at)->next;
    if (*at)
        *at = lm->next;
    for (struct loaded_model *o = lm->s->models; o; o = o->next)
        if (o->replaces == lm)
            o->replaces = NULL;
    grammars_close(lm->grammars);                /* its engine, which follows them, is closed */
    free(lm->bos);
    free(lm->eos);
    free(lm->path);
    free(lm->id);
    free(lm);
}

int models_n(const struct server *s, enum model_state state)
{
    int n = 0;
    for (const struct loaded_model *lm = s->models; lm; lm = lm->next)
        n += lm->state == state;
    return n;
}

struct loaded_model *models_find(struct server *s, const char *id, struct problem *pr)
{
    int any = !id || strcmp(id, "default") == 0, loading = 0;
    models_check(s);
    for (struct loaded_model *lm = s->models; lm; lm = lm->next) {
        int named = !any && strcmp(lm->id, id) == 0;
        if (lm->state == MODEL_READY && (any || named))
            return lm;
        loading |= lm->state == MODEL_LOADING && (any || named);
    }
    if (s->draining)
        problem_set(pr, 503, NULL, "shutting_down", "the server stops");
    else if (loading)
        problem_set(pr, 503, "model", "model_loading", "the model %.80s is being loaded", any ? "" : id);
    else if (any)
        problem_set(pr, 404, "model", "model_not_found", "no model is loaded; load one with POST /api/models/load");
    else
        problem_set(pr, 404, "model", "model_not_found",
                    "model '%.80s' is not loaded; load it first with POST /api/models/load", id);
    return NULL;
}

/* ---- models that left for others ---- */

static void free_evicted(struct evicted *v)
{
    free(v->id);
    free(v->path);
    free(v);
}

/* Take it out of the list: NULL if it is not in it. */
static struct evicted *take_evicted(struct server *s, const char *id)
{
    struct evicted **at = &s->evicted, *v;
    while (*at && strcmp((*at)->id, id) != 0)
        at = &(*at)->next;
    if ((v = *at))
        *at = v->next;
    return v;
}

static void put_evicted(struct server *s, struct evicted *v)
{
    struct evicted **end = &s->evicted;
    while (*end)
        end = &(*end)->next;
    v->next = NULL;
    *end = v;
}

int models_forget(struct server *s, const char *id)
{
    struct evicted *v = take_evicted(s, id);
    if (v)
        free_evicted(v);
    return v != NULL;
}

/* Without memory it is forgotten: then a request for it says that it is not loaded. */
static void remember_evicted(struct server *s, const struct loaded_model *lm, int changed)
{
    struct evicted *v = calloc(1, sizeof *v);
    if (!v || !(v->id = strdup(lm->id)) || !(v->path = strdup(lm->path))) {
        if (v)
            free_evicted(v);
        return;
    }
    v->changed = changed;
    v->failures = lm->failures;
    v->failed_ns = clock_ns();
    models_forget(s, lm->id);
    put_evicted(s, v);
}

const char *models_left(const struct server *s, const char *id)
{
    const int any = !id || strcmp(id, "default") == 0;
    const struct evicted *found = NULL;
    for (const struct evicted *v = s->draining ? NULL : s->evicted; v; v = v->next)
        if (any ? !found || (v->changed && !found->changed) : strcmp(v->id, id) == 0)
            found = v;
    return found ? found->id : NULL;
}

int models_wait_s(const struct server *s, const char *id)
{
    const struct evicted *v = s->evicted;
    while (v && strcmp(v->id, id) != 0)
        v = v->next;
    if (!v || !v->failures)
        return 0;
    const uint64_t until = v->failed_ns + (UINT64_C(1000000000) << (v->failures < 6 ? v->failures : 6)),
                   now = clock_ns();
    return now < until ? (int)((until - now) / 1000000000u) + 1 : 0;
}

/* v is in no list; it is again where it cannot be loaded. */
static void bring_back(struct server *s, struct evicted *v, struct problem *pr)
{
    struct loaded_model *lm = models_load(s, v->path, v->id, NULL, pr);
    if (!lm) {
        put_evicted(s, v);
        return;
    }
    lm->recalled = 1;
    lm->changed = v->changed;
    lm->failures = v->failures;
    problem_set(pr, 503, "model", "model_loading", "the model %.80s left when another one needed its memory or its file changed, and is being loaded again", lm->id);
    free_evicted(v);
}

int models_recall(struct server *s, const char *id, struct problem *pr)
{
    struct evicted *v = s->draining ? NULL : take_evicted(s, id);
    if (!v)
        return 0;
    server_log(s, "%s: is asked for, loading %s again", v->id, v->path);
    bring_back(s, v, pr);
    return 1;
}

struct loaded_model *models_load(struct server *s, const char *path, const char *id, struct loaded_model *replaces,
                           struct problem *pr)
{
    struct loaded_model *lm = calloc(1, sizeof *lm), **end = &s->models;
    if (!lm || !(lm->path = strdup(path)) || !(lm->id = id ? strdup(id) : models_default_id(path))) {
        problem_nomem(pr);
        goto fail;
    }
    for (struct loaded_model *o = s->models; o; o = o->next)
        if (o != replaces && (o->state == MODEL_READY || o->state == MODEL_LOADING) && strcmp(o->id, lm->id) == 0 &&
            !(replaces && o->replaces == replaces)) {
            problem_set(pr, 409, "model_name", "model_exists", "a model with the id '%.80s' is there already", lm->id);
            goto fail;
        }
    models_forget(s, lm->id);                    /* this one takes its place */
    lm->s = s;
    lm->created = (int64_t)time(NULL);
    lm->started_ns = lm->used_ns = clock_ns();
    lm->replaces = replaces;
    lm->batching = 1;
    while (*end)
        end = &(*end)->next;
    *end = lm;
    if (give_task(s, TASK_OPEN, lm) == 0)
        return lm;
    problem_nomem(pr);
    free_model(lm);
    return NULL;
fail:
    if (lm) {
        free(lm->path);
        free(lm->id);
    }
    free(lm);
    return NULL;
}

void models_unload(struct server *s, struct loaded_model *lm)
{
    if (lm->state != MODEL_READY)
        return;
    lm->state = MODEL_LEAVING;
    lm->leave_by_ns = clock_ns() + (uint64_t)(s->o.drain_s * 1e9);
    server_log(s, "%s: unloading, %d running request%s", lm->id, lm->n_calls, plural(lm->n_calls));
    models_tick(s);
}

struct loaded_model *models_successor(struct server *s, const struct loaded_model *lm)
{
    struct loaded_model *o = s->models;
    while (o && o->replaces != lm)
        o = o->next;
    return o;
}

void models_reload(struct server *s)
{
    struct problem pr;
    struct evicted *left, *v;
    for (struct loaded_model *lm = s->models; lm; lm = lm->next) {
        if (lm->state != MODEL_READY || models_successor(s, lm))
            continue;
        server_log(s, "%s: loading %s again", lm->id, lm->path);
        if (!models_load(s, lm->path, lm->id, lm, &pr))
            server_log(s, "%s: %s", lm->id, pr.message);
    }
    left = s->evicted;
    s->evicted = NULL;
    while ((v = left)) {                        /* those whose files were written to; for the others there was no memory */
        left = v->next;
        if (!v->changed) {
            put_evicted(s, v);
            continue;
        }
        server_log(s, "%s: loading %s again", v->id, v->path);
        bring_back(s, v, &pr);
    }
}

static void tell_waiter(struct loaded_model *lm, const struct problem *p)
{
    struct conn *c = lm->waiter;
    if (!c)
        return;
    struct exchange *x = conn_exchange(c);
    lm->waiter = NULL;
    if (p)
        reply_problem(lm->s, c, p);
    else
        reply_object(lm->s, c, 200, json_pack("{s:b, s:s, s:s, s:s, s:s, s:f, s:f, s:s}", "success", 1, "model_id",
                                             lm->id, "model_name", lm->path, "quantization",
                                              lm->m.quantization ? lm->m.quantization : "", "device", lm->device,
                                              "vram_used_gb", (double)lm->vram_bytes * 1e-9, "load_time_sec",
                                              lm->load_s, "message", "loaded"));
    conn_set_exchange(c, NULL);
    free(x);
}

/* Make room for lm: the least recently used of the others leave. -1: it is too large by itself. */
static int make_room(struct server *s, const struct loaded_model *lm, struct problem *pr)
{
    uint64_t limit = s->o.max_memory;
    if (!limit)
        return 0;
    if (lm->memory_bytes > limit)
        return problem_set(pr, 503, "model_path", "out_of_memory",
                           "%s takes %llu bytes, the limit for all models is %llu", lm->id,
                           (unsigned long long)lm->memory_bytes, (unsigned long long)limit);
    for (;;) {
        uint64_t sum = lm->memory_bytes;
        struct loaded_model *oldest = NULL;
        for (struct loaded_model *o = s->models; o; o = o->next) {
            if (o == lm || o == lm->replaces || o->state != MODEL_READY)
                continue;
            sum += o->memory_bytes;
            if (!oldest || o->used_ns < oldest->used_ns)
                oldest = o;
        }
        if (sum <= limit || !oldest)
            return 0;
        server_log(s, "%s: leaves, as %s needs its memory", oldest->id, lm->id);
        remember_evicted(s, oldest, 0);
        models_unload(s, oldest);
    }
}

static void wake(void *user) { loop_wake(user); }

/* In the list where the one before stood, which may be where `default` looks; that one leaves. */
static void take_place(struct loaded_model *lm)
{
    struct server *s = lm->s;
    struct loaded_model **at = &s->models;
    while (*at != lm)
        at = &(*at)->next;
    *at = lm->next;
    for (at = &s->models; *at != lm->replaces; at = &(*at)->next)
        ;
    lm->next = *at;
    *at = lm;
    models_unload(s, lm->replaces);
    lm->replaces = NULL;
}

static void on_opened(struct server *s, struct loaded_model *lm)
{
    struct problem pr = { 0 };
    struct err e;
    if (lm->error.code != ERR_NONE || !lm->m.engine)
        problem_set(&pr, lm->error.code == ERR_IO ? 404 : lm->error.code == ERR_MEMORY ? 503 : 400, "model_path",
                    "load_failed", "%s", lm->error.msg);
    else if (make_room(s, lm, &pr) == 0 && !(lm->worker = worker_open(lm->m.engine, wake, s->loop, &e)))
        problem_set(&pr, 503, NULL, NULL, "%s", e.msg);
    if (pr.status) {
        if (lm->wanted && models_n(s, MODEL_READY) + models_n(s, MODEL_LOADING) == 1) {     /* the program was started for this one: its error says why it ends */
            s->failed = 1;
            err_set(&s->error, lm->error.code ? lm->error.code : ERR_MEMORY, "%s", pr.message);
            loop_quit(s->loop);
        } else {
            server_log(s, "%s: %s", lm->id, pr.message);
        }
        if (lm->recalled) {
            lm->failures++;
            remember_evicted(s, lm, lm->changed);         /* the next request tries again */
        }
        tell_waiter(lm, &pr);
        if (give_task(s, TASK_CLOSE, lm) != 0)
            lm->state = MODEL_LEAVING;          /* models_tick tries again */
        return;
    }
    lm->state = MODEL_READY;
    lm->failures = 0;
    if (lm->replaces)
        take_place(lm);
    server_log(s, "%s: ready after %.3f s, %s, context %d", lm->id, lm->load_s,
               lm->m.quantization ? lm->m.quantization : "?", lm->m.max_len);
    server_log(s, "%s: %s", lm->id, lm->about);
    tell_waiter(lm, NULL);
}

void models_opened(struct server *s)
{
    struct opening *o = s->opening;
    pthread_mutex_lock(&o->lock);
    struct task *t = o->done;
    o->done = NULL;
    pthread_mutex_unlock(&o->lock);
    while (t) {
        struct task *next = t->next;
        if (t->kind == TASK_OPEN) {
            on_opened(s, t->lm);
        } else if (t->closing.stuck) {
            server_warn(s, "%s: its engine is in a step that does not end; its memory stays until the server ends",
                        t->lm->id);
        } else {
            server_log(s, "%s: closed", t->lm->id);
            free_model(t->lm);
        }
        free(t);
        t = next;
    }
}

/* Is the file still what was opened?  -1: no. */
static int check_file(struct server *s, struct loaded_model *lm, struct err *e)
{
    struct engine_stats es;
    const int rc = zfile_check(lm->m.model->file, e);
    worker_stats(lm->worker, &es, NULL);
    if (rc < 0 || es.broken)
        return rc == 0 ? err_set(e, ERR_IO, "%s: " MAP_CHANGED, lm->path) : -1;
    if (rc > 0)
        worker_check(lm->worker);        /* also while it compares: the file may have been touched again */
    lm->comparing = rc;
    if (es.touched > lm->touched)
        server_log(s, "%s: %s was touched while it was in use; its contents are what they were", lm->id, lm->path);
    lm->touched = es.touched;
    return 0;
}

void models_check(struct server *s)
{
    struct err e;
    for (struct loaded_model *lm = s->models; lm; lm = lm->next) {
        if (lm->state != MODEL_READY || !lm->m.model->file || check_file(s, lm, &e) == 0)
            continue;
        struct loaded_model *next = models_successor(s, lm);
        server_log(s, "%s: %s", lm->id, e.msg);
        if (next)
            next->recalled = next->changed = 1; /* there is nothing to fall back on: if it fails, the next request tries again */
        else
            remember_evicted(s, lm, 1);          /* who asks for it gets what is there then */
        models_unload(s, lm);
    }
}

void models_tick(struct server *s)
{
    uint64_t now = clock_ns();
    for (struct loaded_model *lm = s->models; lm; lm = lm->next) {
        if (lm->state != MODEL_LEAVING)
            continue;
        if (lm->n_calls == 0 && lm->preparing == 0) {
            give_task(s, TASK_CLOSE, lm);        /* without memory: again in a second */
        } else if (now > lm->leave_by_ns) {
            calls_cancel(lm);
            if (now > lm->leave_by_ns + PATIENCE_S * 1000000000u && lm->worker &&
                worker_step_s(lm->worker) > PATIENCE_S)
                calls_give_up(lm, now);
        }
    }
}

int models_halt(struct server *s)
{
    const uint64_t until = clock_ns() + PATIENCE_S * 1000000000u;
    for (struct loaded_model *lm = s->models; lm; lm = lm->next) {
        const uint64_t now = clock_ns();
        if (worker_close(lm->worker, now < until ? (double)(until - now) * 1e-9 : 0) == 0) {
            lm->worker = NULL;
            continue;
        }
        server_warn(s, "%s: its engine has been in one step for %.0f s", lm->id, worker_step_s(lm->worker));
        s->n_stuck++;
        calls_give_up(lm, now);
    }
    return s->n_stuck ? -1 : 0;
}

void models_leave(struct server *s)
{
    for (struct loaded_model *lm = s->models; lm; lm = lm->next)
        calls_drop(lm);
}

/* Nothing of the loop runs any more. */
void models_stop(struct server *s)
{
    struct opening *o = s->opening;
    if (!o)
        return;
    pthread_mutex_lock(&o->lock);
    struct task *t = o->todo;
    o->todo = NULL;
    o->stop = 1;
    pthread_cond_signal(&o->work);
    pthread_mutex_unlock(&o->lock);
    pthread_join(o->thread, NULL);
    if (s->n_stuck)
        return;                                 /* the process is about to end */
    for (int k = 0; k < 2; k++, t = o->done)
        while (t) {
            struct task *next = t->next;
            if (t->kind == TASK_CLOSE && k == 0)
                close_model(s, &t->closing);    /* nobody has come to it */
            free(t);
            t = next;
        }
    for (struct evicted *v; (v = s->evicted); free_evicted(v))
        s->evicted = v->next;
    while (s->models) {
        struct closing c = take_out(s->models);
        close_model(s, &c);
        calls_drop(s->models);
        free_model(s->models);
    }
    pthread_cond_destroy(&o->work);
    pthread_mutex_destroy(&o->lock);
    free(o);
    s->opening = NULL;
}

void model_json(const struct loaded_model *lm, struct buf *out)
{
    buf_str(out, "{\"id\":");
    buf_json(out, lm->id, strlen(lm->id));
    buf_printf(out, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"zse\",\"max_model_len\":%d}",
               (long long)lm->created, lm->m.max_len);
}
