/* native.c - /health, /, /api/...: the state of the server, its models and its requests, and
 * their administration. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/json.h"
#include "libcommon/base/plural.h"
#include "libcommon/engine/device_show.h"
#include "libcommon/hw/machine.h"
#include "libcommon/serve/exchange.h"
#include "libcommon/serve/internal.h"

static const double GB = 1e9;

static double uptime(const struct server *s) { return (double)(clock_ns() - s->start_ns) * 1e-9; }
static double round2(double x) { return floor(x * 100 + 0.5) / 100; }

/* ---- state ---- */

/* ---- GPUs ---- */

/* NVML, loaded when it is first asked for: its figures, or why there are none.  A machine that
 * only looks like one has none. */
static int read_gpus(struct server *s, struct machine_gpu *gpu, char why[160])
{
    if (s->o.sysroot) {
        snprintf(why, 160, "another machine's proc and sys are shown");
        return 0;
    }
    if (!s->nvml && !s->no_nvml[0])
        s->nvml = nvml_open(s->no_nvml);
    if (s->nvml)
        return nvml_gpus(s->nvml, gpu, MACHINE_GPUS, why);
    snprintf(why, 160, "%s", s->no_nvml);
    return 0;
}

static int gpus_are_there(struct server *s)
{
    struct machine_gpu gpu[MACHINE_GPUS];
    char why[160];
    for (const struct loaded_model *lm = s->models; lm; lm = lm->next)
        if (lm->state == MODEL_READY && lm->vram_bytes)
            return 1;
    return read_gpus(s, gpu, why) > 0;
}

static json_t *or_null(int v) { return v < 0 ? json_null() : json_integer(v); }

static json_t *gpus_array(struct server *s, char why[160])
{
    struct machine_gpu gpu[MACHINE_GPUS];
    json_t *list = json_array();
    const int n = read_gpus(s, gpu, why);
    for (int i = 0; i < n; i++)
        json_array_append_new(list, json_pack("{s:s, s:i, s:f, s:f, s:f, s:I, s:I, s:I, s:o, s:o}", "name", gpu[i].name,
                                              "index", i, "total_memory_gb", round2((double)gpu[i].total / GB),
                                              "used_memory_gb", round2((double)gpu[i].used / GB), "free_memory_gb",
                                              round2((double)gpu[i].free / GB), "total_memory_bytes",
                                              (json_int_t)gpu[i].total, "used_memory_bytes", (json_int_t)gpu[i].used,
                                              "free_memory_bytes", (json_int_t)gpu[i].free, "utilization_percent",
                                              or_null(gpu[i].utilization), "temperature_celsius",
                                              or_null(gpu[i].celsius)));
    return list;
}

/* What each model has taken of a GPU, as it was planned. */
static json_t *on_gpus(const struct server *s)
{
    json_t *list = json_array();
    for (const struct loaded_model *lm = s->models; lm; lm = lm->next) {
        struct engine_stats e;
        if (!lm->worker || !lm->vram_bytes)
            continue;
        worker_stats(lm->worker, &e, NULL);
        json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:b, s:I, s:s?, s:o}",
                                              "model_id", lm->id, "device", lm->device, "gpu_name", e.device.name,
                                              "gpu_layers", e.device.n_layers, "layers", lm->m.model->config.n_layers,
                                              "weight_bytes", (json_int_t)e.device.weights, "kv_bytes",
                                              (json_int_t)e.device.kv, "workspace_bytes", (json_int_t)e.device.work,
                                              "reserve_bytes", (json_int_t)e.device.reserve, "total_memory_bytes",
                                              (json_int_t)e.device.total, "lost", e.device.lost, "cached_bytes",
                                              (json_int_t)e.device.cached, "cache_weights_off", e.device.cache_off,
                                              "cuda_graphs", device_graphs_json(&e.device.graphs)));
    }
    return list;
}

/* ---- health ---- */

void handle_health(struct server *s, struct conn *c, const char *rest)
{
    struct problem ignored;
    const int ready = models_n(s, MODEL_READY), loading = models_n(s, MODEL_LOADING);
    const char *left = ready || loading ? NULL : models_left(s, NULL);      /* one comes back: another one could need its memory */
    const int wait_s = left ? models_wait_s(s, left) : 0;
    char wait[16];
    (void)rest;
    if (left && !wait_s)                /* a server without its model is not healthy, and who asks only here would wait for ever */
        models_recall(s, left, &ignored);
    const struct loaded_model *stalled = s->draining ? NULL : stall_find(s);
    if (stalled) {
        char why[160];
        snprintf(why, sizeof why, "%.80s: no step has ended for %.0f s", stalled->id, worker_step_s(stalled->worker));
        conn_add_header(c, "Retry-After", "1");
        reply_object(s, c, 503, json_pack("{s:s, s:s}", "status", "stalled", "reason", why));
        return;
    }
    if (s->draining || left || (ready == 0 && loading > 0)) {
        snprintf(wait, sizeof wait, "%d", wait_s ? wait_s : 1);
        conn_add_header(c, "Retry-After", wait);
        reply_object(s, c, 503, json_pack("{s:s}", "status", s->draining ? "stopping" : wait_s ? "failed" : "loading"));
        return;
    }
    reply_object(s, c, 200, json_pack("{s:s, s:s, s:f, s:i, s:b}", "status", "healthy", "version", ZSE_VERSION,
                                      "uptime_seconds", round2(uptime(s)), "models_loaded",
                                       ready, "gpu_available", gpus_are_there(s)));
}

static int active(const struct server *s)
{
    int n = 0;
    for (const struct loaded_model *lm = s->models; lm; lm = lm->next)
        n += lm->n_calls;
    return n;
}

void handle_root(struct server *s, struct conn *c, const char *rest)
{
    (void)rest;
    if (http_has_token(http_field(conn_request(c), "Accept"), "text/html")) {
        page_reply(s, c);
        return;
    }
    reply_object(s, c, 200, json_pack("{s:s, s:s, s:s, s:{s:I, s:i, s:I, s:f}}", "name", "zse-serve", "version",
                                      ZSE_VERSION, "docs", "/openapi.json", "metrics",
                                       "total_requests", (json_int_t)s->metrics.requests, "active_requests", active(s),
                                       "total_tokens", (json_int_t)s->metrics.tokens, "throughput_tok_s",
                                       metrics_rate(&s->metrics)));
}

void handle_dashboard(struct server *s, struct conn *c, const char *rest)
{
    (void)rest;
    page_reply(s, c);
}

/* /proc/meminfo in kB: total and available. */
static void memory_info(double *total, double *available)
{
    char line[200];
    FILE *f = fopen("/proc/meminfo", "re");
    *total = *available = 0;
    while (f && fgets(line, sizeof line, f)) {
        sscanf(line, "MemTotal: %lf", total);
        sscanf(line, "MemAvailable: %lf", available);
    }
    if (f)
        fclose(f);
    *total *= 1024;
    *available *= 1024;
}

/* Share of all processors that was busy since the last call, or since the machine started. */
static double cpu_percent(struct server *s)
{
    unsigned long long v[8] = { 0 }, sum = 0, idle;
    FILE *f = fopen("/proc/stat", "re");
    int n = f ? fscanf(f, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &v[0], &v[1], &v[2], &v[3], &v[4], &v[5],
                       &v[6], &v[7]) : 0;
    if (f)
        fclose(f);
    for (int i = 0; i < n; i++)
        sum += v[i];
    idle = v[3] + v[4];
    double total = (double)(sum - s->cpu_total), busy = total - (double)(idle - s->cpu_idle);
    s->cpu_total = sum;
    s->cpu_idle = idle;
    return total > 0 ? round2(100 * busy / total) : 0;
}

/* Memory of requests: see account.h. */
static json_t *work_memory(struct server *s)
{
    struct account_stats a;
    account_stats(s->account, &a);
    return json_pack("{s:I, s:I, s:I, s:I, s:i, s:I}", "used_bytes", (json_int_t)a.used, "peak_bytes",
                     (json_int_t)a.peak, "limit_bytes", (json_int_t)a.total, "request_limit_bytes",
                     (json_int_t)a.request, "holds", a.n_holds, "refused", (json_int_t)a.refused);
}

json_t *stats_object(struct server *s)
{
    char host[256] = "", why[160];
    double total, available;
    json_t *models = json_array();
    gethostname(host, sizeof host - 1);
    memory_info(&total, &available);
    for (const struct loaded_model *lm = s->models; lm; lm = lm->next)
        if (lm->state == MODEL_READY)
            json_array_append_new(models, json_pack("{s:s, s:s}", "id", lm->id, "name", lm->path));
    return json_pack("{s:s, s:f, s:f, s:f, s:f, s:o, s:o, s:f, s:f, s:f, s:i, s:i, s:o}", "hostname", host,
                     "cpu_percent", cpu_percent(s), "memory_percent",
                     total > 0 ? round2(100 * (total - available) / total) : 0.0, "memory_used_gb",
                     round2((total - available) / GB), "memory_total_gb", round2(total / GB), "gpus",
                     gpus_array(s, why), "models_loaded", models, "uptime_seconds", round2(uptime(s)),
                     "process_memory_gb", round2((double)memory_resident() / GB), "tokens_per_sec",
                     metrics_rate(&s->metrics), "active_requests", active(s), "connections",
                     loop_n_connections(s->loop), "work_memory", work_memory(s));
}

void handle_stats(struct server *s, struct conn *c, const char *rest)
{
    (void)rest;
    reply_object(s, c, 200, stats_object(s));
}

void handle_stats_gpu(struct server *s, struct conn *c, const char *rest)
{
    (void)rest;
    char why[160];
    json_t *gpus = gpus_array(s, why), *models = on_gpus(s);
    reply_object(s, c, 200, json_pack("{s:o, s:o, s:s?}", "gpus", gpus, "models", models, "no_gpu",
                                      why[0] ? why : NULL));
}

static const char *state_name(enum model_state state)
{
    static const char *const names[] = { "loading", "ready", "leaving", "closing" };
    return names[state];
}

static json_t *model_stats(const struct loaded_model *lm)
{
    struct engine_stats e = { 0 };
    if (!lm->worker)                             /* another thread is at work on it */
        return json_pack("{s:s, s:s, s:s}", "model_id", lm->id, "model_name", lm->path, "state", state_name(lm->state));
    worker_stats(lm->worker, &e, NULL);
    json_t *j = json_pack("{s:s, s:s, s:s, s:s, s:f, s:f, s:I, s:I, s:I, s:I}", "model_id", lm->id, "model_name",
                          lm->path, "state", state_name(lm->state), "quantization",
                          lm->m.quantization ? lm->m.quantization : "", "vram_used_gb",
                          round2((double)lm->vram_bytes / GB), "load_time", lm->load_s, "request_count",
                          (json_int_t)lm->metrics.requests, "tokens_generated", (json_int_t)lm->metrics.tokens,
                          "prompt_tokens", (json_int_t)lm->metrics.prompt_tokens, "cached_tokens",
                          (json_int_t)lm->metrics.cached_tokens);
    json_object_update_new(j, json_pack("{s:I, s:I, s:i, s:i, s:i, s:i, s:i, s:i, s:i}", "memory_bytes",
                                        (json_int_t)lm->memory_bytes, "kv_bytes", (json_int_t)e.kv_bytes,
                                        "kv_blocks", e.n_blocks, "kv_blocks_free", e.n_free_blocks, "kv_blocks_prefix",
                                        e.n_cached_blocks, "running", e.n_running, "waiting", e.n_waiting,
                                        "open_requests", lm->n_calls, "context", lm->m.max_len));
    json_object_update_new(j, json_pack("{s:f, s:I, s:I}", "kv_use", round2(kv_use(&e)), "kv_copies",
                                        (json_int_t)e.copies, "kv_evictions", (json_int_t)e.evictions));
    return j;
}

void handle_stats_models(struct server *s, struct conn *c, const char *rest)
{
    json_t *list = json_array();
    (void)rest;
    for (const struct loaded_model *lm = s->models; lm; lm = lm->next)
        json_array_append_new(list, model_stats(lm));
    reply_object(s, c, 200, json_pack("{s:o}", "models", list));
}

/* ---- requests ---- */

json_t *analytics_object(struct server *s)
{
    const struct metrics *m = &s->metrics;
    json_t *used = json_object();
    int64_t now = (int64_t)time(NULL) / 60;
    uint64_t lately = 0;
    double minutes = uptime(s) / 60;
    for (const struct loaded_model *lm = s->models; lm; lm = lm->next)
        json_object_set_new(used, lm->id, json_integer((json_int_t)lm->metrics.requests));
    for (int i = 0; i < MINUTES; i++)
        if (now - m->minute[i].minute < MINUTES)
            lately += m->minute[i].requests;
    minutes = minutes < 1 ? 1 : minutes > MINUTES ? MINUTES : minutes;
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:o}", "total_requests",
                     (json_int_t)m->requests, "successful_requests", (json_int_t)(m->requests - m->failed),
                     "failed_requests", (json_int_t)m->failed, "total_tokens_generated", (json_int_t)m->tokens,
                     "total_prompt_tokens", (json_int_t)m->prompt_tokens, "avg_latency_ms",
                     m->requests ? round2(1000 * m->latency_s / (double)m->requests) : 0.0,
                     "avg_tokens_per_sec", m->decode_s > 0 ? round2((double)m->decoded / m->decode_s) : 0.0,
                     "requests_per_minute", round2((double)lately / minutes), "peak_memory_gb",
                     round2((double)m->peak_memory / GB), "uptime_seconds", round2(uptime(s)),
                     "models_used", used);
}

void handle_analytics(struct server *s, struct conn *c, const char *rest)
{
    (void)rest;
    reply_object(s, c, 200, analytics_object(s));
}

void handle_timeseries(struct server *s, struct conn *c, const char *rest)
{
    json_t *at = json_array(), *requests = json_array(), *tokens = json_array(), *memory = json_array(),
           *latency = json_array();
    int64_t now = (int64_t)time(NULL) / 60;
    double last_memory = 0;
    (void)rest;
    for (int64_t minute = now - MINUTES + 1; minute <= now; minute++) {
        const struct minute *m = &s->metrics.minute[minute % MINUTES];
        int there = m->minute == minute;
        if (there)
            last_memory = round2((double)m->memory / GB);
        json_array_append_new(at, json_integer(minute * 60));
        json_array_append_new(requests, json_integer(there ? (json_int_t)m->requests : 0));
        json_array_append_new(tokens, json_real(there ? round2((double)m->tokens / 60) : 0));
        json_array_append_new(memory, json_real(last_memory));
        json_array_append_new(latency, json_real(there && m->requests
                                                 ? round2(1000 * m->latency_s / (double)m->requests) : 0));
    }
    reply_object(s, c, 200, json_pack("{s:o, s:o, s:o, s:o, s:o}", "timestamps", at, "requests_per_minute", requests,
                                      "tokens_per_second", tokens, "memory_usage_gb",
                                       memory, "latency_ms", latency));
}

void handle_requests(struct server *s, struct conn *c, const char *rest)
{
    const struct metrics *m = &s->metrics;
    char text[16];
    const char *given = http_query(conn_request(c), "limit", text, sizeof text);
    char *end = NULL;
    long limit = given ? strtol(given, &end, 10) : 100;
    (void)rest;
    if (given && (*end || end == given || limit < 1 || limit > 1000)) {
        reply_refusal(s, c, 400, "out_of_range", "limit: '%s' is not in the range 1 to 1000", given);
        return;
    }
    json_t *list = json_array();
    for (int i = 0; i < m->n_recent_calls && i < limit; i++) {
        const struct recent_call *r = &m->recent_calls[(m->next - 1 - i + 2 * MAX_RECENT_CALLS) % MAX_RECENT_CALLS];
        json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:i, s:i, s:i, s:f, s:f, s:f, s:f, s:i, s:s, s:s}",
                                              "request_id", r->id, "model", r->model, "endpoint",
                                              r->route >= 0 ? routes[r->route].path : "", "prompt_tokens",
                                              r->prompt_tokens, "completion_tokens", r->completion_tokens,
                                              "total_tokens", r->prompt_tokens + r->completion_tokens, "latency_ms",
                                              round2(1000 * r->latency_s), "first_token_ms",
                                              round2(1000 * r->first_token_s), "tokens_per_sec",
                                              r->latency_s > 0 ? round2(r->completion_tokens / r->latency_s) : 0.0,
                                              "timestamp", (double)r->at / 1000, "status", r->status, "user", r->user,
                                              "client", r->client));
    }
    reply_object(s, c, 200, json_pack("{s:o}", "requests", list));
}

/* ---- administration ---- */

/* A pipe would be waited for: by the thread that loads all models. */
static int is_file_or_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && (S_ISREG(st.st_mode) || S_ISDIR(st.st_mode));
}

/* The path that a request may load: what it names, links followed, lies below --model-dir;
 * without one, any path of a client on this machine.  malloc'd; NULL: *pr says why, the same of
 * what is elsewhere and of what is nowhere. */
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

void handle_load(struct server *s, struct conn *c, const char *rest)
{
    struct params p = { 0 };
    struct problem pr;
    json_t *body = read_body(s, c, BODY_LOAD, &p);
    (void)rest;
    if (!body)
        return;
    const char *named = p.model_path ? p.model_path : p.model_name, *id = p.model_path ? p.model_name : NULL;
    struct exchange *x = NULL;
    struct loaded_model *lm = NULL;
    char *path = NULL;
    if (!named) {
        reply_refusal(s, c, 400, "missing", "model_path: missing");
        goto done;
    }
    if (!(path = allowed_path(s, c, named, &pr))) {
        reply_problem(s, c, &pr);
        goto done;
    }
    models_check(s);
    struct loaded_model *o = s->models;
    while (o && !(o->state == MODEL_READY && strcmp(o->path, path) == 0 && (!id || strcmp(o->id, id) == 0)))
        o = o->next;
    if (o && !o->comparing) {
        reply_object(s, c, 200, json_pack("{s:b, s:s, s:s, s:s, s:s, s:f, s:f, s:s}", "success", 1, "model_id", o->id,
                                          "model_name", o->path, "quantization",
                                           o->m.quantization ? o->m.quantization : "", "device", o->device,
                                           "vram_used_gb", round2((double)o->vram_bytes / GB), "load_time_sec", 0.0,
                                           "message", "was loaded already"));
        goto done;
    }
    if (o && models_successor(s, o))            /* it is being loaded */
        o = NULL;
    if (!(x = calloc(1, sizeof *x))) {
        reply_refusal(s, c, 503, NULL, "out of memory");
    } else if (!(lm = models_load(s, path, o ? o->id : id, o, &pr))) {      /* in place of one whose file may be another one now */
        reply_problem(s, c, &pr);
        free(x);
    } else {
        x->kind = EXCHANGE_LOAD;
        lm->waiter = c;
        conn_set_exchange(c, x);
    }
done:
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

/* ---- batching ---- */

static json_t *batching_object(const struct server *s)
{
    json_t *engines = json_object();
    int enabled = 1;
    for (const struct loaded_model *lm = s->models; lm; lm = lm->next) {
        struct engine_stats e;
        struct engine_limits l;
        if (!lm->worker || lm->state != MODEL_READY)
            continue;
        worker_stats(lm->worker, &e, &l);
        enabled &= lm->batching;
        json_t *j = json_pack("{s:b, s:{s:i, s:i, s:i}, s:i, s:i, s:i, s:I, s:I, s:I, s:I}", "enabled", lm->batching,
                              "config", "max_batch_size", l.max_running, "chunk", l.chunk, "max_queue", l.max_waiting,
                              "processing", e.n_running, "queued", e.n_waiting, "shares", e.n_tenants, "submitted",
                              (json_int_t)e.requests, "completed", (json_int_t)e.finished, "cancelled",
                              (json_int_t)e.cancelled, "failed", (json_int_t)e.failed);
        json_object_update_new(j, json_pack("{s:I, s:I, s:I, s:f, s:f}", "iterations", (json_int_t)e.steps, "tokens",
                                            (json_int_t)e.tokens, "preemptions", (json_int_t)e.preemptions,
                                            "avg_tokens_per_iteration",
                                            e.steps ? round2((double)e.tokens / (double)e.steps) : 0.0,
                                            "throughput_tok_s", e.step_ns
                                            ? round2((double)e.generated_tokens / ((double)e.step_ns * 1e-9)) : 0.0));
        json_object_set_new(engines, lm->id, j);
    }
    return json_pack("{s:b, s:o}", "enabled", enabled, "engines", engines);
}

void handle_batching(struct server *s, struct conn *c, const char *rest)
{
    (void)rest;
    reply_object(s, c, 200, batching_object(s));
}

/* 0, or -1 without memory. */
static int set_batching(struct loaded_model *lm, int on)
{
    struct engine_limits l = lm->limits;
    lm->batching = on;
    if (!on)
        l.max_running = 1;
    return worker_limits(lm->worker, &l);
}

static void batching_all(struct server *s, struct conn *c, int on)
{
    for (struct loaded_model *lm = s->models; lm; lm = lm->next)
        if (lm->state == MODEL_READY && set_batching(lm, on) != 0) {
            reply_refusal(s, c, 503, NULL, "out of memory");
            return;
        }
    reply_object(s, c, 200, json_pack("{s:b, s:b, s:s}", "success", 1, "enabled", on, "message",
                                      on ? "requests run together" : "one request at a time"));
}

void handle_batching_enable(struct server *s, struct conn *c, const char *rest)
{
    (void)rest;
    batching_all(s, c, 1);
}

void handle_batching_disable(struct server *s, struct conn *c, const char *rest)
{
    (void)rest;
    batching_all(s, c, 0);
}

void handle_batching_set(struct server *s, struct conn *c, const char *rest)
{
    struct params p = { .max_waiting = -1, .chunk = -1 };
    struct problem pr;
    json_t *body = read_body(s, c, BODY_BATCHING, &p);
    (void)rest;
    if (!body)
        return;
    struct loaded_model *lm = models_find(s, p.model, &pr);
    if (!lm) {
        reply_problem(s, c, &pr);
    } else if (p.max_running > lm->most_running) {
        reply_refusal(s, c, 400, "out_of_range", "max_batch_size: %d is not in the range 1 to %d (--max-seqs)",
                      p.max_running, lm->most_running);
    } else {
        if (p.max_running)
            lm->limits.max_running = p.max_running;
        if (p.max_waiting >= 0)
            lm->limits.max_waiting = p.max_waiting;
        if (p.chunk >= 0)
            lm->limits.chunk = p.chunk;
        if (set_batching(lm, 1) != 0)
            reply_refusal(s, c, 503, NULL, "out of memory");
        else
            reply_object(s, c, 200, json_pack("{s:b, s:s, s:{s:i, s:i, s:i}}", "success", 1, "model", lm->id, "config",
                                              "max_batch_size", lm->limits.max_running, "chunk", lm->limits.chunk,
                                               "max_queue", lm->limits.max_waiting));
    }
    json_decref(body);
}
