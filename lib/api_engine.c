/* api_engine.c - the thread of an engine: requests in, steps, events out. */
#include "lib/internal.h"

#include <fenv.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu/gpu.h"
#include "libcommon/base/thread.h"

enum { MAX_REQUESTS = 4096, MAX_THREADS = 1024, MAX_CONTEXT = 1 << 24, GPU_STEP_TOKENS = 1024 };

/* ---- options ---- */

static const struct kv_name { const char *name; enum kv_type type; } kv_names[] = {
#define KVTYPE(id, name, ...) { name, KV_##id },
#define KVTYPE_SPELLING(id, name) { name, KV_##id },
#include "libcommon/quant/kvtype.def"
};

static int find_kv(const struct zse_engine_options *o, struct kv_types *kv, struct err *e)
{
    *kv = kv_both(o->exact ? KV_F32 : KV_F16);
    if (!o->kv)
        return 0;
    size_t i = 0;
    const size_t n = sizeof kv_names / sizeof *kv_names;
    while (i < n && strcmp(kv_names[i].name, o->kv) != 0)
        i++;
    if (i == n)
        return err_set(e, ERR_FORMAT, "kv: '%.20s', expected f32, bf16, f16, fp8, i8, i4 or ternary", o->kv);
    *kv = kv_both(kv_names[i].type);
    return o->exact && kv->key != KV_F32 ? err_set(e, ERR_UNSUPPORTED, "kv: '%.20s', expected f32 with exact", o->kv) : 0;
}

static int find_device(const struct zse_engine_options *o, struct engine_options *eo, struct err *e)
{
    const size_t kind = strlen(gpu_kind);
    const char *name = o->device;
    if (!name || strcmp(name, "cpu") == 0)
        return 0;
    if (strcmp(gpu_kind, "none") == 0 && strncmp(name, "cuda", 4) == 0) {
        gpu_count(e);
        return -1;
    }
    char *end = NULL;
    const long n = strncmp(name, gpu_kind, kind) != 0 ? -1 : !name[kind] ? 0 : name[kind] == ':' && name[kind + 1]
                   ? strtol(name + kind + 1, &end, 10) : -1;
    if (n < 0 || n > 1023 || (end && *end))
        return err_set(e, ERR_FORMAT, "device: '%.40s', expected cpu, cuda or cuda:N", name);
    eo->backend = &backend_gpu;
    eo->device = (int)n;
    eo->expert_uploads = EXPERT_UPLOADS_AUTO;
    eo->max_tokens = GPU_STEP_TOKENS;
    eo->wgmma = 1;
    return 0;
}

static int range(const char *name, int v, int most, struct err *e)
{
    return v >= 0 && v <= most ? 0 : err_set(e, ERR_LIMIT, "%s is %d, expected 0 to %d", name, v, most);
}

/* Bytes of keys and values: enough for all requests of full length, but at most max_kv_bytes, or a
 * quarter of the machine's memory if that is 0.  Never less than one request of full length needs.
 * Requests for which there is no space wait. */
static size_t kv_bytes(const struct zse_engine_options *o, const struct config *c, const struct engine_options *eo)
{
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    const uint64_t quarter = pages > 0 && page > 0 ? (uint64_t)pages / 4 * (uint64_t)page : 0,
                   limit = o->max_kv_bytes ? o->max_kv_bytes : quarter,
                   all = engine_kv_needs(c, eo, eo->max_seqs), one = engine_kv_needs(c, eo, 1);
    return (size_t)(all <= limit ? all : one > limit ? one : limit);
}

static int engine_options_of(const struct zse_model *m, const struct zse_engine_options *o, struct engine_options *eo,
                             struct err *e)
{
    const struct config *c = &m->model->config;
    const int most = c->embedding.max_len ? c->embedding.max_len : c->max_len;
    *eo = (struct engine_options){ .n_threads = o->n_threads, .exact = o->exact, .no_prefix_cache = o->no_prefix_cache,
                                   .max_seqs = o->max_requests ? o->max_requests : 8,
                                   .max_len = o->max_len ? o->max_len : most > 0 && most < 8192 ? most : 8192,
                                   .drafter = o->ngram_drafts ? &drafter_ngram : NULL };
    if (range("n_threads", o->n_threads, MAX_THREADS, e) || range("max_len", o->max_len, MAX_CONTEXT, e) ||
        range("max_requests", o->max_requests, MAX_REQUESTS, e) || find_kv(o, &eo->kv, e) || find_device(o, eo, e))
        return -1;
    if (o->max_len == 1)
        return err_set(e, ERR_LIMIT, "max_len is 1, expected at least 2");
    if (most > 0 && o->max_len > most)
        return err_set(e, ERR_LIMIT, "max_len is %d: the model was made for at most %d tokens", o->max_len, most);
    if (!eo->backend)
        eo->kv_bytes = kv_bytes(o, c, eo);
    else
        eo->kv_bytes = o->max_kv_bytes;
    return 0;
}

/* ---- the thread ---- */

static void begin(struct zse_engine *g, struct zse_request *r, int stop)
{
    struct err e;
    pthread_mutex_lock(&g->lock);
    const int cancelled = r->is_cancelled || stop;
    pthread_mutex_unlock(&g->lock);
    if (cancelled) {
        api_request_refuse(r, ZSE_FINISH_CANCELLED, NULL);
        return;
    }
    if (r->constraint.state)
        r->params.constraint = &r->constraint;
    r->request = engine_submit(g->engine, &r->params, &e);
    if (!r->request) {
        api_request_refuse(r, ZSE_FINISH_ERROR, &e);
        return;
    }
    r->constraint.state = NULL;
    if ((r->next = g->running))
        r->next->link = &r->next;
    r->link = &g->running;
    g->running = r;
}

static void cancel(struct zse_engine *g, int all)
{
    for (struct zse_request *r = g->running; r; r = r->next) {
        pthread_mutex_lock(&g->lock);
        const int wanted = all || r->is_cancelled;
        pthread_mutex_unlock(&g->lock);
        if (wanted && !r->cancel_sent)
            engine_cancel(g->engine, r->request);
        r->cancel_sent |= wanted;
    }
}

/* Let callers of zse_wait() go on, after the engine has freed the requests that ended. */
static void release_ended(struct zse_engine *g)
{
    while (g->ended) {
        struct zse_request *r = g->ended;
        g->ended = r->next;
        api_request_end(r);
    }
}

static void *work(void *arg)
{
    struct zse_engine *g = arg;
    struct err e;
    int busy = 0, stop = 0;
    fesetenv(FE_DFL_ENV);               /* answers do not depend on the rounding of the thread that opened it */
    while (!stop || g->running) {
        pthread_mutex_lock(&g->lock);
        while (!g->first && !g->running && !busy && !g->stop)
            pthread_cond_wait(&g->work, &g->lock);
        struct zse_request *list = g->first;
        const int cancels = g->cancels;
        stop = g->stop;
        g->first = NULL;
        g->last = &g->first;
        g->cancels = 0;
        pthread_mutex_unlock(&g->lock);
        while (list) {
            struct zse_request *next = list->next;
            begin(g, list, stop);
            list = next;
        }
        if (cancels || stop)
            cancel(g, stop);
        /* a failure of the backend is reported to each request */
        busy = engine_step(g->engine, &e) > 0;
        struct engine_stats s;
        engine_stats(g->engine, &s);
        pthread_mutex_lock(&g->lock);
        g->stats = s;
        pthread_mutex_unlock(&g->lock);
        release_ended(g);
    }
    return NULL;
}

/* ---- from any thread ---- */

static void free_engine(struct zse_engine *g)
{
    engine_close(g->engine);
    pthread_mutex_destroy(&g->lock);
    pthread_cond_destroy(&g->work);
    free(g);
}

static int start(struct zse_engine *g, const struct engine_options *eo, struct err *e)
{
    if (!(g->engine = engine_open(g->model->model, g->model->tokenizer, eo, e)))
        return -1;
    engine_stats(g->engine, &g->stats);
    const int rc = thread_start(&g->thread, work, g);
    return rc == 0 ? 0 : err_set(e, ERR_IO, "engine thread: %s", strerror(rc));
}

struct zse_engine *zse_engine_open(struct zse_model *m, const struct zse_engine_options *o, struct zse_error *e)
{
    struct zse_engine_options options;
    struct engine_options eo;
    struct err why;
    if (!m) {
        api_wrong(e, "zse_engine_open: the model is NULL");
        return NULL;
    }
    if (api_options(&options, sizeof options, o, "zse_engine_options", e) != 0)
        return NULL;
    if (options.reserved) {
        api_wrong(e, "zse_engine_options: reserved is %d, expected 0", options.reserved);
        return NULL;
    }
    if (engine_options_of(m, &options, &eo, &why) != 0) {
        api_fail(e, &why);
        return NULL;
    }
    struct zse_engine *g = calloc(1, sizeof *g);
    if (!g) {
        err_nomem(&why, "engine");
        api_fail(e, &why);
        return NULL;
    }
    g->model = m;
    g->max_len = eo.max_len;
    g->max_requests = eo.max_seqs;
    g->last = &g->first;
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->work, NULL);
    if (start(g, &eo, &why) == 0)
        return g;
    free_engine(g);
    api_fail(e, &why);
    return NULL;
}

void zse_engine_close(struct zse_engine *g)
{
    if (!g || pthread_equal(pthread_self(), g->thread))
        return;
    pthread_mutex_lock(&g->lock);
    g->stop = 1;
    pthread_cond_signal(&g->work);
    pthread_mutex_unlock(&g->lock);
    pthread_join(g->thread, NULL);
    free_engine(g);
}

int zse_engine_info(struct zse_engine *g, char **text, struct zse_error *e)
{
    struct err why;
    if (!g || !text)
        return api_wrong(e, "zse_engine_info: an argument is NULL");
    pthread_mutex_lock(&g->lock);
    const struct engine_stats s = g->stats;
    pthread_mutex_unlock(&g->lock);
    json_t *j = json_pack("{s:s, s:i, s:i, s:I, s:I, s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:I}", "backend", s.backend,
                          "max_len", g->max_len, "max_requests", g->max_requests, "kv_bytes", (json_int_t)s.kv_bytes,
                          "private_bytes", (json_int_t)s.private_bytes, "running", s.n_running, "waiting", s.n_waiting,
                          "steps", (json_int_t)s.steps, "prompt_tokens", (json_int_t)s.prompt_tokens, "cached_tokens",
                          (json_int_t)s.cached_tokens, "generated_tokens", (json_int_t)s.generated_tokens,
                          "drafted_tokens", (json_int_t)s.drafted, "accepted_tokens", (json_int_t)s.accepted);
    if ((*text = api_json_text(j)))
        return 0;
    err_nomem(&why, "engine");
    return api_fail(e, &why);
}
