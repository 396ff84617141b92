/* statistics.c - GET /api/stats and /api/analytics: figures of the machine, its GPUs, the models
 * and their requests. */
#include "libcommon/serve/admin/statistics.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "libcommon/base/clock.h"
#include "libcommon/engine/device_show.h"
#include "libcommon/hw/machine.h"
#include "libcommon/serve/internal.h"

static const double GB = 1e9;

double server_uptime_s(const struct server *s) { return (double)(clock_ns() - s->start_ns) * 1e-9; }
double round2(double x) { return floor(x * 100 + 0.5) / 100; }

int server_n_calls(const struct server *s)
{
    int n = 0;
    for (const struct loaded_model *lm = s->models; lm; lm = lm->next)
        n += lm->n_calls;
    return n;
}

/* ---- GPUs ---- */

/* Read the GPUs from NVML, which is loaded at the first call.  Returns their number, or 0 with
 * the reason in `why`.  With o.sysroot set the server describes another machine, whose GPUs NVML
 * does not know. */
static int read_gpus(struct server *s, struct machine_gpu *gpu, char why[160])
{
    if (s->o.sysroot) {
        snprintf(why, 160, "proc and sys are those of another machine");
        return 0;
    }
    if (!s->nvml && !s->no_nvml[0])
        s->nvml = nvml_open(s->no_nvml);
    if (s->nvml)
        return nvml_gpus(s->nvml, gpu, MACHINE_GPUS, why);
    snprintf(why, 160, "%s", s->no_nvml);
    return 0;
}

int server_has_gpu(struct server *s)
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

/* List each model on a GPU with its planned memory there. */
static json_t *on_gpus(const struct server *s)
{
    json_t *list = json_array();
    for (const struct loaded_model *lm = s->models; lm; lm = lm->next) {
        struct engine_stats e;
        if (!lm->worker || !lm->vram_bytes)
            continue;
        worker_stats(lm->worker, &e, NULL);
        json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:b, s:i, s:i, s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:I, s:s?, s:o, s:o, s:o, s:o}",
                                              "model_id", lm->id, "device", lm->device, "gpu_name", e.device.name,
                                              "tensor_parallel", e.device.tp, "gpu_layers", e.device.n_layers, "layers", lm->m.model->config.n_layers,
                                              "gpu_experts", e.device.n_experts, "experts",
                                              lm->m.model->config.moe.n_experts,
                                              "weight_bytes", (json_int_t)e.device.weights, "kv_bytes",
                                              (json_int_t)e.device.kv, "workspace_bytes", (json_int_t)e.device.work,
                                              "reserve_bytes", (json_int_t)e.device.reserve, "taken_bytes",
                                              (json_int_t)e.device.taken, "total_memory_bytes",
                                              (json_int_t)e.device.total, "lost", e.device.lost, "cached_bytes",
                                              (json_int_t)e.device.cached, "cache_weights_off", e.device.cache_off,
                                              "cuda_graphs", device_graphs_json(&e.device.graphs), "expert_use",
                                              device_experts_json(&e.device), "stream",
                                              device_stream_json(&e.device.stream), "gpus",
                                              device_ranks_json(&e.device)));
    }
    return list;
}

/* ---- the machine and the models ---- */

/* Read total and available bytes from /proc/meminfo, which counts in kB. */
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

/* The average utilization of all processors, in percent, since the last call; at the first call,
 * since the machine started. */
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

/* Figures of the memory of requests: see account.h. */
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
    uint64_t files;
    const uint64_t resident = memory_resident(&files);
    json_t *models = json_array();
    gethostname(host, sizeof host - 1);
    memory_info(&total, &available);
    for (const struct loaded_model *lm = s->models; lm; lm = lm->next)
        if (lm->state == MODEL_READY)
            json_array_append_new(models, json_pack("{s:s, s:s}", "id", lm->id, "name", lm->path));
    return json_pack("{s:s, s:f, s:f, s:f, s:f, s:o, s:o, s:f, s:f, s:f, s:f, s:i, s:i, s:o}", "hostname", host,
                     "cpu_percent", cpu_percent(s), "memory_percent",
                     total > 0 ? round2(100 * (total - available) / total) : 0.0, "memory_used_gb",
                     round2((total - available) / GB), "memory_total_gb", round2(total / GB), "gpus",
                     gpus_array(s, why), "models_loaded", models, "uptime_seconds", round2(server_uptime_s(s)),
                     "process_memory_gb", round2((double)resident / GB), "process_file_memory_gb",
                     round2((double)files / GB), "tokens_per_sec",
                     metrics_rate(&s->metrics), "active_requests", server_n_calls(s), "connections",
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
    if (!lm->worker)                             /* another thread is opening or closing it */
        return json_pack("{s:s, s:s, s:s}", "model_id", lm->id, "model_name", lm->path, "state", state_name(lm->state));
    worker_stats(lm->worker, &e, NULL);
    json_t *j = json_pack("{s:s, s:s, s:s, s:s, s:f, s:f, s:I, s:I, s:I, s:I}", "model_id", lm->id, "model_name",
                          lm->path, "state", state_name(lm->state), "quantization",
                          lm->m.quantization ? lm->m.quantization : "", "vram_used_gb",
                          round2((double)lm->vram_bytes / GB), "load_time", lm->load_s, "request_count",
                          (json_int_t)lm->metrics.requests, "tokens_generated", (json_int_t)lm->metrics.tokens,
                          "prompt_tokens", (json_int_t)lm->metrics.prompt_tokens, "cached_tokens",
                          (json_int_t)lm->metrics.cached_tokens);
    json_object_update_new(j, json_pack("{s:I, s:I}", "weight_bytes", (json_int_t)lm->m.model->weight_bytes,
                                        "private_bytes", (json_int_t)e.private_bytes));
    json_object_update_new(j, json_pack("{s:I, s:I, s:i, s:i, s:i, s:i, s:i, s:i, s:i}", "memory_bytes",
                                        (json_int_t)lm->memory_bytes, "kv_bytes", (json_int_t)e.kv_bytes,
                                        "kv_blocks", e.n_blocks, "kv_blocks_free", e.n_free_blocks, "kv_blocks_prefix",
                                        e.n_cached_blocks, "running", e.n_running, "waiting", e.n_waiting,
                                        "open_requests", lm->n_calls, "context", lm->m.max_len));
    json_object_update_new(j, json_pack("{s:I, s:I}", "drafted_tokens", (json_int_t)e.drafted, "accepted_tokens",
                                        (json_int_t)e.accepted));
    json_object_update_new(j, json_pack("{s:f, s:I, s:I}", "kv_use", round2(kv_use(&e)), "kv_copies",
                                        (json_int_t)e.copies, "kv_evictions", (json_int_t)e.evictions));
    json_object_update_new(j, json_pack("{s:I, s:I, s:I, s:I}", "prefix_files_read", (json_int_t)e.disk_read,
                                        "prefix_files_written", (json_int_t)e.disk_written, "prefix_files_damaged",
                                        (json_int_t)e.disk_damaged, "prefix_files_failed", (json_int_t)e.disk_failed));
    json_object_update_new(j, json_pack("{s:I, s:I}", "resumed_tokens_read", (json_int_t)e.resumed_read,
                                        "resumed_tokens_computed", (json_int_t)e.resumed_computed));
    return j;
}

json_t *model_stats_array(const struct server *s)
{
    json_t *list = json_array();
    for (const struct loaded_model *lm = s->models; lm; lm = lm->next)
        json_array_append_new(list, model_stats(lm));
    return list;
}

void handle_stats_models(struct server *s, struct conn *c, const char *rest)
{
    (void)rest;
    reply_object(s, c, 200, json_pack("{s:o}", "models", model_stats_array(s)));
}

/* ---- requests ---- */

json_t *analytics_object(struct server *s)
{
    const struct metrics *m = &s->metrics;
    json_t *used = json_object();
    int64_t now = (int64_t)time(NULL) / 60;
    uint64_t lately = 0;
    double minutes = server_uptime_s(s) / 60;
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
                     round2((double)m->peak_memory / GB), "uptime_seconds", round2(server_uptime_s(s)),
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
