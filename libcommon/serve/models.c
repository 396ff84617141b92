/* models.c - the list of loaded models: loading, draining, unloading, the memory limit, reload. */
#include "libcommon/serve/models.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/file.h"
#include "libcommon/base/plural.h"
#include "libcommon/format/zfile.h"
#include "libcommon/serve/exchange.h"
#include "libcommon/serve/internal.h"
#include "libcommon/serve/kv_events.h"
#include "libcommon/serve/model_tasks.h"
#include "libcommon/serve/named.h"



char *server_model_id(const char *path)
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
    if (lm->s->kv_source == lm->kv_source)
        lm->s->kv_source = NULL;
    kv_source_close(lm->kv_source);
    adapters_free(lm);
    grammars_close(lm->grammars);                /* the engine, which used them, is closed */
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

int models_window(const struct loaded_model *lm)
{
    const struct engine_limits *l = &lm->limits;
    const int wait = l->max_waiting && l->max_waiting < l->max_running ? l->max_waiting : l->max_running;
    return l->max_running + wait;
}

const char *models_adapted(const struct server *s, const char *name)
{
    for (int i = 0; name && i < s->o.n_adapters; i++)
        if (strcmp(s->o.adapters[i], name) == 0)
            return s->o.adapted;
    for (const struct loaded_model *lm = s->models; name && lm; lm = lm->next)
        if (lm->state == MODEL_READY && adapters_find(lm, name, 1))
            return lm->id;
    return NULL;
}

int models_lora(const struct loaded_model *lm, const char *name)
{
    return name && lm->state == MODEL_READY && strcmp(lm->id, name) != 0 ? adapters_find(lm, name, 0) : 0;
}

struct loaded_model *models_find(struct server *s, const char *id, struct problem *pr)
{
    char name[STORE_NAME_BYTES];
    const int named_rc = named_find(s, id, name, pr);
    if (named_rc < 0)
        return NULL;
    if (named_rc == 0)
        id = name;
    int any = !id || strcmp(id, "default") == 0, loading = 0;
    const char *base = models_adapted(s, id);
    models_check(s);
    for (struct loaded_model *lm = s->models; lm; lm = lm->next) {
        int named = !any && (strcmp(lm->id, id) == 0 || models_lora(lm, id));
        if (lm->state == MODEL_READY && (any || named))
            return lm;
        loading |= lm->state == MODEL_LOADING && (any || named || (base && strcmp(lm->id, base) == 0));
    }
    if (s->draining)
        problem_set(pr, 503, NULL, "shutting_down", "the server stops");
    else if (loading)
        problem_set(pr, 503, "model", "model_loading", "the model %.80s is being loaded", any ? "" : id);
    else if (any)
        problem_set(pr, 404, "model", "model_not_found", "no model is loaded; load one with POST /api/models/load");
    else
        problem_set(pr, 404, "model", "model_not_found", s->o.store
                    ? "no model here has the name '%.80s'; GET /v1/models lists those that are"
                    : "model '%.80s' is not loaded; load it first with POST /api/models/load", id);
    return NULL;
}

/* ---- loading ---- */

/* Whether this id is in use, except by the model `replaces` and its successors, which share an
 * id. */
static int id_is_taken(const struct server *s, const char *id, const struct loaded_model *replaces)
{
    for (const struct loaded_model *o = s->models; o; o = o->next)
        if (o != replaces && (o->state == MODEL_READY || o->state == MODEL_LOADING) && strcmp(o->id, id) == 0 &&
            !(replaces && o->replaces == replaces))
            return 1;
    return 0;
}

struct loaded_model *models_load(struct server *s, const char *path, const char *id, const struct model_choice *how,
                                 struct loaded_model *replaces, struct problem *pr)
{
    struct loaded_model *lm = calloc(1, sizeof *lm), **end = &s->models;
    if (!lm || !(lm->path = strdup(path)) || !(lm->id = id ? strdup(id) : server_model_id(path))) {
        problem_nomem(pr);
        goto fail;
    }
    if (id_is_taken(s, lm->id, replaces)) {
        problem_set(pr, 409, "model_name", "model_exists", "a model with the id '%.80s' exists already", lm->id);
        goto fail;
    }
    if (models_adapted(s, lm->id)) {
        problem_set(pr, 409, "model_name", "model_exists", "a LoRA adapter with the name '%.80s' exists already", lm->id);
        goto fail;
    }
    models_forget(s, lm->id);                   /* the new model replaces an evicted one */
    lm->s = s;
    lm->created = (int64_t)time(NULL);
    lm->started_ns = lm->used_ns = clock_ns();
    lm->replaces = replaces;
    lm->named = replaces && replaces->named;
    if (how)
        lm->how = *how;
    lm->how.adapters = s->o.adapted && strcmp(lm->id, s->o.adapted) == 0;
    while (*end)
        end = &(*end)->next;
    *end = lm;
    lm->queued = 1;
    loop_wake(s->loop);                         /* models_tick opens it */
    return lm;
fail:
    if (lm) {
        free(lm->path);
        free(lm->id);
    }
    free(lm);
    return NULL;
}

const char *models_file(const struct loaded_model *lm)
{
    return lm->m.model && lm->m.model->file ? zfile_path(lm->m.model->file) : lm->path;
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
    for (struct loaded_model *lm = s->models; lm; lm = lm->next) {
        if (lm->state != MODEL_READY || models_successor(s, lm))
            continue;
        server_log(s, "%s: loading %s again", lm->id, lm->path);
        if (!models_load(s, lm->path, lm->id, &lm->how, lm, &pr))
            server_log(s, "%s: %s", lm->id, pr.message);
    }
    models_recall_changed(s);
}

/* ---- opened ---- */

/* Answer the POST /api/models/load that waits for this model; p NULL: it is loaded. */
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

static int is_busy(const struct loaded_model *lm) { return lm->n_calls || lm->preparing; }

/* Whether o is evicted before p: idle models are evicted first, then the least recently used. */
static int goes_first(const struct loaded_model *o, const struct loaded_model *p)
{
    return is_busy(o) != is_busy(p) ? is_busy(p) : o->used_ns < p->used_ns;
}

/* Memory of the busy models that lm cannot evict.  A model loaded because a request named it evicts
 * only idle models, so that no client can end the requests of others. */
static uint64_t memory_of_busy(const struct server *s, const struct loaded_model *lm)
{
    uint64_t bytes = 0;
    for (const struct loaded_model *o = lm->named && !lm->replaces ? s->models : NULL; o; o = o->next)
        bytes += o->state == MODEL_READY && is_busy(o) ? o->memory_bytes : 0;
    return bytes;
}

/* Unload other models until lm fits into memory with the rest.  -1 with *pr if lm is too large, by
 * itself or together with busy models.  -1 with *wait 1 if it has to wait until models that are
 * being unloaded are closed. */
static int evict_for(struct server *s, const struct loaded_model *lm, int *wait, struct problem *pr)
{
    const uint64_t limit = s->o.max_memory;
    *wait = 0;
    if (!limit)
        return 0;
    if (lm->memory_bytes > limit)
        return problem_set(pr, 503, "model_path", "out_of_memory",
                           "%s takes %llu bytes, the limit for all models is %llu", lm->id,
                           (unsigned long long)lm->memory_bytes, (unsigned long long)limit);
    if (lm->memory_bytes + memory_of_busy(s, lm) > limit)
        return problem_set(pr, 503, "model_path", BUSY_CODE,
                           "%s does not fit beside the models that are answering requests: try again when they have ended", lm->id);
    for (;;) {
        uint64_t stay = lm->memory_bytes, leave = 0;
        struct loaded_model *first = NULL;
        for (struct loaded_model *o = s->models; o; o = o->next) {
            if (o == lm || o == lm->replaces)
                continue;
            if (o->state == MODEL_LEAVING || o->state == MODEL_CLOSING)
                leave += o->memory_bytes;
            if (o->state != MODEL_READY)
                continue;
            stay += o->memory_bytes;
            if (!first || goes_first(o, first))
                first = o;
        }
        if (stay <= limit || !first) {
            *wait = stay + leave > limit && leave > 0;
            return *wait ? -1 : 0;
        }
        server_log(s, "%s: unloading, because %s needs its memory", first->id, lm->id);
        if (!first->named)
            models_remember(s, first, 0);
        named_charge(s, lm, first);
        models_unload(s, first);
    }
}

static void wake(void *user) { loop_wake(user); }

/* Move lm to the place of its predecessor in the list (the first model is the default), and unload
 * the predecessor. */
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

/* Let the engine of lm send events of its prefix cache, if they are wanted of its id, instead of
 * the model that did until now.  0, or -1 with *pr. */
static int watch_blocks(struct server *s, struct loaded_model *lm, struct problem *pr)
{
    if (!s->kv_events || strcmp(lm->id, s->o.kv_model) != 0)
        return 0;
    if (s->kv_source)
        kv_source_mute(s->kv_source);
    if (!(lm->kv_source = kv_source_open(s->kv_events)))
        return problem_nomem(pr);
    s->kv_source = lm->kv_source;
    engine_watch_blocks(lm->m.engine, kv_source_watch(lm->kv_source));
    return 0;
}

/* Called when opening failed: log the error, answer the waiting client and close the model. */
static void on_load_failed(struct server *s, struct loaded_model *lm, const struct problem *pr)
{
    /* a model named at the server's start, and no other is open: its error ends the program */
    if (lm->wanted && models_n(s, MODEL_READY) + models_n(s, MODEL_LOADING) == 1) {
        s->failed = 1;
        err_set(&s->error, lm->error.code ? lm->error.code : ERR_MEMORY, "%s", pr->message);
        loop_quit(s->loop);
    } else {
        server_log(s, "%s: %s", lm->id, pr->message);
    }
    if (lm->recalled && !lm->named) {           /* a named model needs no record: requests find its file by the name */
        lm->failures++;
        models_remember(s, lm, lm->changed);    /* the next request retries */
    }
    tell_waiter(lm, pr);
    named_failed(s, lm, pr);
    const struct problem told = named_problem(s, pr);
    calls_loaded(s, lm, &told);
    if (task_give(s, TASK_CLOSE, lm) != 0)
        lm->state = MODEL_LEAVING;              /* models_tick retries */
}

/* Open the model that has been queued longest.  Models are opened one at a time, so that at most
 * one open model can turn out not to fit.  If the model's size is known, others are evicted
 * first. */
static void open_next(struct server *s)
{
    struct problem pr = { 0 };
    struct loaded_model *lm = s->models;
    int wait = 0;
    for (const struct loaded_model *o = s->models; o; o = o->next)
        if (o->state == MODEL_LOADING && !o->queued)
            return;
    while (lm && lm->state != MODEL_LOADING)
        lm = lm->next;
    if (!lm)
        return;
    lm->memory_bytes = named_size(s, lm);
    if (lm->memory_bytes && evict_for(s, lm, &wait, &pr) != 0) {
        if (wait)
            return;
        lm->queued = 0;
        lm->memory_bytes = 0;
        on_load_failed(s, lm, &pr);
        loop_wake(s->loop);                     /* open the next one as well */
    } else if (task_give(s, TASK_OPEN, lm) == 0) {
        lm->queued = 0;                         /* without memory: tried again in a second */
    }
}

static void on_opened(struct server *s, struct loaded_model *lm)
{
    struct problem pr = { 0 };
    struct err e;
    int wait = 0;
    if (lm->error.code != ERR_NONE && named_retry(s, lm))
        return;
    if (lm->error.code == ERR_NONE)
        named_note_size(s, lm, lm->memory_bytes);
    if (lm->error.code != ERR_NONE || !lm->m.engine)
        problem_set(&pr, lm->error.code == ERR_IO ? 404 : lm->error.code == ERR_MEMORY ? 503 : 400, "model_path",
                    "load_failed", "%s", lm->error.msg);
    else if (s->o.rerank_model && strcmp(s->o.rerank_model, lm->id) == 0 && !lm->m.model->config.embedding.scores)
        problem_set(&pr, 400, "model_path", "load_failed", "--rerank-model: %s is no reranker: it gives no scores to pairs",
                    lm->id);
    else if (evict_for(s, lm, &wait, &pr) == 0 && adapters_list(lm, &pr) == 0 &&
             watch_blocks(s, lm, &pr) == 0 && !(lm->worker = worker_open(lm->m.engine, wake, s->loop, &e)))
        problem_set(&pr, 503, NULL, NULL, "%s", e.msg);
    lm->held = wait;
    if (wait)
        return;
    if (pr.status) {
        on_load_failed(s, lm, &pr);
        return;
    }
    lm->state = MODEL_READY;
    lm->failures = 0;
    batching_restore(lm);
    if (lm->replaces)
        take_place(lm);
    server_log(s, "%s: ready after %.3f s, %s, context %d", lm->id, lm->load_s,
               lm->m.quantization ? lm->m.quantization : "?", lm->m.max_len);
    server_log(s, "%s: %s", lm->id, lm->about);
    for (int i = 0; i < lm->n_adapters; i++)
        server_log(s, "%s: LoRA adapter %s, rank %d", lm->id, lm->adapters[i].name, lm->adapters[i].rank);
    tell_waiter(lm, NULL);
    calls_loaded(s, lm, NULL);
}

/* Called when a model has been closed: continue with models that waited for its memory. */
static void on_closed(struct server *s)
{
    for (struct loaded_model *lm = s->models, *next; lm; lm = next) {
        next = lm->next;
        if (lm->state == MODEL_LOADING && lm->held)
            on_opened(s, lm);
    }
}

void models_opened(struct server *s)
{
    struct task *t = tasks_done(s);
    int closed = 0;
    while (t) {
        struct task *next = t->next;
        if (t->kind == TASK_OPEN) {
            on_opened(s, t->lm);
        } else if (t->kind == TASK_ADAPTER) {
            adapter_put(t->load);
        } else if (t->closing.stuck) {
            server_warn(s, "%s: the step of its engine does not end; its memory stays until the server ends",
                        t->lm->id);
            t->lm->memory_bytes = 0;            /* no model waits for it */
            closed = 1;
        } else {
            server_log(s, "%s: closed", t->lm->id);
            free_model(t->lm);
            closed = 1;
        }
        free(t);
        t = next;
    }
    if (closed)
        on_closed(s);
}

/* ---- unloading ---- */

static void close_drained(struct server *s)
{
    uint64_t now = clock_ns();
    for (struct loaded_model *lm = s->models; lm; lm = lm->next) {
        if (lm->state != MODEL_LEAVING)
            continue;
        if (lm->n_calls == 0 && lm->preparing == 0) {
            task_give(s, TASK_CLOSE, lm);        /* without memory: retried in a second */
        } else if (now > lm->leave_by_ns) {
            calls_cancel(lm);
            rag_unload(s);
            if (now > lm->leave_by_ns + ENGINE_PATIENCE_S * 1000000000u && lm->worker &&
                worker_step_s(lm->worker) > ENGINE_PATIENCE_S)
                calls_give_up(lm, now);
        }
    }
}

void models_unload(struct server *s, struct loaded_model *lm)
{
    if (lm->state != MODEL_READY)
        return;
    lm->state = MODEL_LEAVING;
    lm->leave_by_ns = clock_ns() + (uint64_t)(s->o.drain_s * 1e9);
    server_log(s, "%s: unloading, %d running request%s", lm->id, lm->n_calls, plural(lm->n_calls));
    close_drained(s);
}

/* Check that the model's file is still the one that was opened.  0, or -1 with *e. */
static int check_file(struct server *s, struct loaded_model *lm, struct err *e)
{
    struct engine_stats es;
    const int rc = zfile_check(lm->m.model->file, e);
    worker_stats(lm->worker, &es, NULL);
    if (rc < 0 || es.broken)
        return rc == 0 ? err_set(e, ERR_IO, "%s: " MAP_CHANGED, lm->path) : -1;
    if (rc > 0)
        worker_check(lm->worker);        /* also while a comparison runs: the file may have been touched again */
    lm->comparing = rc;
    if (es.touched > lm->touched)
        server_log(s, "%s: %s was touched while in use; its contents have not changed", lm->id, lm->path);
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
            next->recalled = next->changed = 1; /* if loading it fails, the next request tries again */
        else if (!lm->named)
            models_remember(s, lm, 1);          /* the next request loads the new contents */
        models_unload(s, lm);
    }
}

void models_tick(struct server *s)
{
    adapters_tick(s);
    close_drained(s);
    open_next(s);
}

/* ---- the end of the server ---- */

int models_start(struct server *s, struct err *e) { return tasks_open(s, e); }

int models_halt(struct server *s)
{
    const uint64_t until = clock_ns() + ENGINE_PATIENCE_S * 1000000000u;
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

void models_stop(struct server *s)
{
    if (!s->opening || tasks_stop(s) != 0)      /* an engine is stuck: the process is about to end */
        return;
    models_forget_all(s);
    while (s->models) {
        task_close_now(s->models);
        calls_drop(s->models);
        free_model(s->models);
    }
    tasks_close(s);
}

void model_json(const struct loaded_model *lm, int lora, struct buf *out)
{
    const struct adapter *a = lora ? &lm->adapters[lora - 1] : NULL;
    const char *id = a ? a->name : lm->id, *slash = a ? strrchr(a->folder, '/') : NULL;
    buf_str(out, "{\"id\":");
    buf_json(out, id, strlen(id));
    buf_printf(out, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"zse\",\"max_model_len\":%d",
               (long long)lm->created, lm->m.max_len);
    /* vLLM's clients expect both fields.  A model's root is its id, which reveals no path. */
    const char *root = !a ? id : slash && slash[1] ? slash + 1 : a->folder;
    buf_str(out, ",\"root\":");
    buf_json(out, root, strlen(root));
    buf_str(out, ",\"parent\":");
    if (a)
        buf_json(out, lm->id, strlen(lm->id));
    else
        buf_str(out, "null");
    buf_str(out, "}");
}
