/* prometheus.c - GET /metrics: tables of metrics, in the text format of Prometheus. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "libcommon/serve/internal.h"

/* The data from which the server's metrics are computed. */
struct sources {
    const struct server *s;
    struct account_stats account;
    struct audit_stats audit;
    struct audit_remote_stats syslog, url;
    struct keys_sync_stats keys;
    int has_audit, has_syslog, has_url, has_keys_sync;
};

enum shown_when { ALWAYS, WITH_AUDIT, WITH_SYSLOG, WITH_URL, WITH_KEYS_DATABASE };

/* Arguments of METRIC: name, type, when it is shown, value (computed from x, a struct sources),
 * help text. */
#define SERVER_METRICS(METRIC) \
    METRIC(zse_http_connections, "gauge", ALWAYS, loop_n_connections(x->s->loop), \
           "Open connections.") \
    METRIC(zse_http_connections_without_key, "gauge", ALWAYS, loop_n_unknown(x->s->loop), \
           "Open connections on which no request has shown a valid key yet.") \
    METRIC(zse_http_connections_evicted_total, "counter", ALWAYS, loop_counts(x->s->loop)->evicted, \
           "Idle connections closed in favour of a new one.") \
    METRIC(zse_http_connections_refused_total, "counter", ALWAYS, loop_counts(x->s->loop)->refused, \
           "Connections refused because there were too many, in all or of one address.") \
    METRIC(zse_http_sent_bytes_total, "counter", ALWAYS, loop_bytes_sent(x->s->loop), \
           "Bytes sent to clients.") \
    METRIC(zse_audit_entries_total, "counter", WITH_AUDIT, x->audit.entries, \
           "Lines written to the audit log.") \
    METRIC(zse_audit_waiting, "gauge", WITH_AUDIT, audit_log_waiting(x->s->guard.audit), \
           "Lines of the audit log waiting for the disk.") \
    METRIC(zse_audit_errors_total, "counter", WITH_AUDIT, x->audit.errors, \
           "Lines lost because the disk did not take them, and files that could not be compressed.") \
    METRIC(zse_audit_syslog_sent_total, "counter", WITH_SYSLOG, x->syslog.sent, \
           "Lines of the audit log sent to the syslog server.") \
    METRIC(zse_audit_syslog_dropped_total, "counter", WITH_SYSLOG, x->syslog.dropped, \
           "Lines of the audit log that could not be sent to the syslog server.") \
    METRIC(zse_audit_url_sent_total, "counter", WITH_URL, x->url.sent, \
           "Lines of the audit log posted to the collector.") \
    METRIC(zse_audit_url_dropped_total, "counter", WITH_URL, x->url.dropped, \
           "Lines of the audit log that the collector refused, or that found no room in the queue.") \
    METRIC(zse_audit_url_waiting, "gauge", WITH_URL, x->url.waiting, \
           "Lines of the audit log waiting for the collector.") \
    METRIC(zse_keys_database_up, "gauge", WITH_KEYS_DATABASE, !x->keys.is_away, \
           "1 if the database of keys answers.") \
    METRIC(zse_keys_database_age_seconds, "gauge", WITH_KEYS_DATABASE, (double)x->keys.age_ms * 1e-3, \
           "Time since keys and counters were last exchanged with their database.") \
    METRIC(zse_keys_database_rounds_total, "counter", WITH_KEYS_DATABASE, x->keys.n_rounds, \
           "Exchanges of keys and counters with their database.") \
    METRIC(zse_uptime_seconds, "gauge", ALWAYS, (int64_t)time(NULL) - x->s->started, \
           "Time since the start.") \
    METRIC(process_resident_memory_bytes, "gauge", ALWAYS, memory_resident(NULL), \
           "Resident memory, including file pages of the models.") \
    METRIC(zse_work_memory_bytes, "gauge", ALWAYS, x->account.used, \
           "Memory that requests hold: bodies, their JSON, prompts, unsent answers.") \
    METRIC(zse_work_memory_peak_bytes, "gauge", ALWAYS, x->account.peak, \
           "Most memory that requests have held at once.") \
    METRIC(zse_work_memory_limit_bytes, "gauge", ALWAYS, x->account.total, \
           "Most memory that requests may hold (--work-memory).") \
    METRIC(zse_work_memory_refused_total, "counter", ALWAYS, x->account.refused, \
           "Times that a request was refused memory.")

/* Arguments of METRIC: name, type, value (computed from lm, a struct loaded_model, or e, its struct
 * engine_stats), help text. */
#define MODEL_METRICS(METRIC) \
    METRIC(zse_requests_total, "counter", e->requests, \
           "Answers requested of the engine.") \
    METRIC(zse_requests_cancelled_total, "counter", e->cancelled, \
           "Answers that were cancelled or ran out of time.") \
    METRIC(zse_requests_running, "gauge", e->n_running, \
           "Answers being generated.") \
    METRIC(zse_requests_waiting, "gauge", e->n_waiting, \
           "Answers waiting to be generated.") \
    METRIC(zse_tenants, "gauge", e->n_tenants, \
           "Tenants (keys and addresses) with running or waiting answers.") \
    METRIC(zse_prompt_tokens_total, "counter", e->prompt_tokens, \
           "Tokens of prompts.") \
    METRIC(zse_prefix_hit_tokens_total, "counter", e->cached_tokens, \
           "Tokens of prompts found in the prefix cache.") \
    METRIC(zse_generated_tokens_total, "counter", e->generated_tokens, \
           "Tokens of answers.") \
    METRIC(zse_drafted_tokens_total, "counter", e->drafted, \
           "Tokens of drafts that were checked (--spec).") \
    METRIC(zse_accepted_tokens_total, "counter", e->accepted, \
           "Tokens of drafts that became tokens of answers.") \
    METRIC(zse_kv_use_ratio, "gauge", kv_use(e), \
           "Fraction of KV blocks held by running requests.") \
    METRIC(zse_kv_blocks, "gauge", e->n_blocks, \
           "KV blocks.") \
    METRIC(zse_kv_blocks_free, "gauge", e->n_free_blocks, \
           "Free KV blocks.") \
    METRIC(zse_kv_blocks_prefix, "gauge", e->n_cached_blocks, \
           "KV blocks held only by the prefix cache.") \
    METRIC(zse_kv_evictions_total, "counter", e->evictions, \
           "KV blocks evicted from the prefix cache.") \
    METRIC(zse_prefix_files_read_total, "counter", e->disk_read, \
           "Files read from the folder of prefixes.") \
    METRIC(zse_prefix_files_written_total, "counter", e->disk_written, \
           "Files written to the folder of prefixes.") \
    METRIC(zse_prefix_files_damaged_total, "counter", e->disk_damaged, \
           "Damaged files removed from the folder of prefixes.") \
    METRIC(zse_prefix_files_failed_total, "counter", e->disk_failed, \
           "Files that could not be written to the folder of prefixes.") \
    METRIC(zse_kv_copies_total, "counter", e->copies, \
           "KV blocks copied on write.") \
    METRIC(zse_preemptions_total, "counter", e->preemptions, \
           "Answers preempted, for want of KV blocks or in favour of another tenant.") \
    METRIC(zse_resumed_tokens_read_total, "counter", e->resumed_read, \
           "Tokens of preempted answers that were read from the folder of prefixes.") \
    METRIC(zse_resumed_tokens_computed_total, "counter", e->resumed_computed, \
           "Tokens of preempted answers that were computed again.") \
    METRIC(zse_engine_steps_total, "counter", e->steps, \
           "Steps of the engine.") \
    METRIC(zse_engine_step_seconds_total, "counter", (double)e->step_ns * 1e-9, \
           "Time spent in steps of the engine.") \
    METRIC(zse_model_memory_bytes, "gauge", lm->memory_bytes, \
           "Weights and private memory of the model.") \
    METRIC(zse_grammar_memory_bytes, "gauge", grammars_bytes(lm->grammars), \
           "Compiled grammars and schemas, in use or kept for a later request.")

#define SERVER_VALUE(name, type, shown, value, help) \
    static double name(const struct sources *x) { (void)x; return (double)(value); }
SERVER_METRICS(SERVER_VALUE)

#define MODEL_VALUE(name, type, value, help) \
    static double name(const struct loaded_model *lm, const struct engine_stats *e) \
    { \
        (void)lm; \
        (void)e; \
        return (double)(value); \
    }
MODEL_METRICS(MODEL_VALUE)

static const struct server_metric {
    const char *name, *type, *help;
    enum shown_when shown;
    double (*value)(const struct sources *x);
} server_metrics[] = {
#define SERVER_ROW(name, type, shown, value, help) { #name, type, help, shown, name },
    SERVER_METRICS(SERVER_ROW)
};

static const struct model_metric {
    const char *name, *type, *help;
    double (*value)(const struct loaded_model *lm, const struct engine_stats *e);
} model_metrics[] = {
#define MODEL_ROW(name, type, value, help) { #name, type, help, name },
    MODEL_METRICS(MODEL_ROW)
};

/* The same values under vLLM's names, for routers and autoscalers written for vLLM. */
static const struct model_metric vllm_metrics[] = {
    { "vllm:num_requests_running", "gauge", "As zse_requests_running.", zse_requests_running },
    { "vllm:num_requests_waiting", "gauge", "As zse_requests_waiting.", zse_requests_waiting },
    { "vllm:kv_cache_usage_perc", "gauge", "The value of zse_kv_use_ratio; 1: all blocks.", zse_kv_use_ratio },
    { "vllm:gpu_cache_usage_perc", "gauge", "The older name of vllm:kv_cache_usage_perc.", zse_kv_use_ratio },
    { "vllm:prefix_cache_queries_total", "counter", "As zse_prompt_tokens_total.", zse_prompt_tokens_total },
    { "vllm:prefix_cache_hits_total", "counter", "As zse_prefix_hit_tokens_total.", zse_prefix_hit_tokens_total },
    { "vllm:gpu_prefix_cache_queries_total", "counter", "The older name of vllm:prefix_cache_queries_total.",
      zse_prompt_tokens_total },
    { "vllm:gpu_prefix_cache_hits_total", "counter", "The older name of vllm:prefix_cache_hits_total.",
      zse_prefix_hit_tokens_total },
    { "vllm:prompt_tokens_total", "counter", "As zse_prompt_tokens_total.", zse_prompt_tokens_total },
    { "vllm:generation_tokens_total", "counter", "As zse_generated_tokens_total.", zse_generated_tokens_total },
    { "vllm:num_preemptions_total", "counter", "As zse_preemptions_total.", zse_preemptions_total },
};

static const struct histogram_metric { const char *name, *help; size_t at; } histogram_metrics[] = {
    { "zse_time_to_first_token_seconds", "Time from request to first token.",
      offsetof(struct model_metrics, first_token) },
    { "zse_time_between_tokens_seconds", "Time between the tokens of an answer.",
      offsetof(struct model_metrics, between_tokens) },
    { "zse_request_duration_seconds", "Time from request to the end of the answer.",
      offsetof(struct model_metrics, duration) },
    { "vllm:time_to_first_token_seconds", "As zse_time_to_first_token_seconds.",
      offsetof(struct model_metrics, first_token) },
    { "vllm:inter_token_latency_seconds", "As zse_time_between_tokens_seconds.",
      offsetof(struct model_metrics, between_tokens) },
    { "vllm:time_per_output_token_seconds", "The older name of vllm:inter_token_latency_seconds.",
      offsetof(struct model_metrics, between_tokens) },
    { "vllm:e2e_request_latency_seconds", "As zse_request_duration_seconds.",
      offsetof(struct model_metrics, duration) },
};

#define LENGTH(array) (sizeof (array) / sizeof *(array))

/* Write a label's value; a line break becomes a blank. */
static void label(struct buf *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            buf_str(out, "\\");
        buf_add(out, *text == '\n' ? " " : text, 1);
    }
}

static void about(struct buf *out, const char *name, const char *type, const char *help)
{
    buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void number(struct buf *out, double v)
{
    buf_printf(out, v < 0x1p53 && v == floor(v) ? "%.0f\n" : "%.9g\n", v);
}

static void of_server(const struct server_metric *m, const struct sources *x, struct buf *out)
{
    if ((m->shown == WITH_AUDIT && !x->has_audit) || (m->shown == WITH_SYSLOG && !x->has_syslog) ||
        (m->shown == WITH_URL && !x->has_url) ||
        (m->shown == WITH_KEYS_DATABASE && !x->has_keys_sync))
        return;
    about(out, m->name, m->type, m->help);
    buf_printf(out, "%s ", m->name);
    number(out, m->value(x));
}

/* Write the beginning of a model's line; vLLM calls the label model_name. */
static void model_line(const char *name, const struct loaded_model *lm, struct buf *out)
{
    buf_printf(out, "%s{%s=\"", name, strncmp(name, "vllm:", 5) == 0 ? "model_name" : "model");
    label(out, lm->id);
    buf_str(out, "\"");
}

/* Write a line for every model that is not being opened or closed. */
static void of_models(const struct model_metric *m, const struct server *s, struct buf *out)
{
    about(out, m->name, m->type, m->help);
    for (const struct loaded_model *lm = s->models; lm; lm = lm->next) {
        struct engine_stats e;
        if (!lm->worker)
            continue;
        worker_stats(lm->worker, &e, NULL);
        model_line(m->name, lm, out);
        buf_str(out, "} ");
        number(out, m->value(lm, &e));
    }
}

/* Write the cache's configuration as labels, like vLLM. */
static void cache_config(const struct server *s, struct buf *out)
{
    static const char name[] = "vllm:cache_config_info";
    about(out, name, "gauge", "Tokens of a KV block, and number of blocks; always 1.");
    for (const struct loaded_model *lm = s->models; lm; lm = lm->next) {
        struct engine_stats e;
        if (!lm->worker)
            continue;
        worker_stats(lm->worker, &e, NULL);
        model_line(name, lm, out);
        buf_printf(out, ",block_size=\"%d\",num_gpu_blocks=\"%d\"} 1\n", KV_BLOCK, e.n_blocks);
    }
}

/* Write the names of the adapters whose bits are set, separated by commas. */
static void adapter_names(const struct loaded_model *lm, const uint64_t *bits, struct buf *out)
{
    int n = 0;
    for (int i = 0; i < lm->n_adapters; i++)
        if (bits[i / 64] >> (i % 64) & 1 && lm->adapters[i].name) {
            buf_str(out, n++ ? "," : "");
            label(out, lm->adapters[i].name);
        }
}

/* Write the LoRA adapters of running and waiting requests as labels, like vLLM; the value is the
 * time.  Only of models that have adapters. */
static void lora_requests(const struct server *s, struct buf *out)
{
    static const char name[] = "vllm:lora_requests_info";
    int n = 0;
    for (const struct loaded_model *lm = s->models; lm; lm = lm->next) {
        struct engine_stats e;
        struct engine_limits l;
        if (!lm->worker || !lm->n_adapters)
            continue;
        if (n++ == 0)
            about(out, name, "gauge", "LoRA adapters that requests use, as labels; the value is the time.");
        worker_stats(lm->worker, &e, &l);
        model_line(name, lm, out);
        buf_printf(out, ",max_lora=\"%d\",running_lora_adapters=\"", l.max_running < MOST_LORAS ? l.max_running
                                                                                               : MOST_LORAS);
        adapter_names(lm, e.loras_running, out);
        buf_str(out, "\",waiting_lora_adapters=\"");
        adapter_names(lm, e.loras_waiting, out);
        buf_str(out, "\"} ");
        number(out, (double)time(NULL));
    }
}

static void histograms(const struct histogram_metric *m, const struct server *s, struct buf *out)
{
    about(out, m->name, "histogram", m->help);
    for (const struct loaded_model *lm = s->models; lm; lm = lm->next) {
        const struct histogram *g = (const void *)((const char *)&lm->metrics + m->at);
        uint64_t sum = 0;
        char name[80];
        if (!lm->worker)
            continue;
        for (int i = 0; i <= HISTOGRAM_BUCKETS; i++) {
            sum += g->bucket[i];
            snprintf(name, sizeof name, "%s_bucket", m->name);
            model_line(name, lm, out);
            if (i < HISTOGRAM_BUCKETS)
                buf_printf(out, ",le=\"%g\"} %llu\n", histogram_bounds[i], (unsigned long long)sum);
            else
                buf_printf(out, ",le=\"+Inf\"} %llu\n", (unsigned long long)sum);
        }
        snprintf(name, sizeof name, "%s_sum", m->name);
        model_line(name, lm, out);
        buf_printf(out, "} %.9g\n", g->sum);
        snprintf(name, sizeof name, "%s_count", m->name);
        model_line(name, lm, out);
        buf_printf(out, "} %llu\n", (unsigned long long)g->count);
    }
}

static void responses(const struct server *s, struct buf *out)
{
    about(out, "zse_http_requests_total", "counter", "Responses by route and status.");
    for (int i = 0; i < s->metrics.n_counts; i++) {
        const struct route_count *n = &s->metrics.count[i];
        buf_printf(out, "zse_http_requests_total{method=\"%s\",route=\"%s\",code=\"%d\"} %llu\n",
                   n->route >= 0 ? routes[n->route].method : "", n->route >= 0 ? routes[n->route].path : "none",
                   n->status, (unsigned long long)n->n);
    }
}

void handle_metrics(struct server *s, struct conn *c, const char *rest)
{
    struct buf out = { 0 };
    struct sources x = { .s = s, .has_audit = s->guard.audit != NULL };
    (void)rest;
    account_stats(s->account, &x.account);
    x.has_keys_sync = s->guard.keys && keys_sync_stats(s->guard.keys, &x.keys);
    if (x.has_audit) {
        audit_log_stats(s->guard.audit, &x.audit);
        x.has_syslog = audit_log_remote_stats(s->guard.audit, REMOTE_SYSLOG, &x.syslog);
        x.has_url = audit_log_remote_stats(s->guard.audit, REMOTE_URL, &x.url);
    }
    responses(s, &out);
    for (size_t i = 0; i < LENGTH(server_metrics); i++)
        of_server(&server_metrics[i], &x, &out);
    for (size_t i = 0; i < LENGTH(model_metrics); i++)
        of_models(&model_metrics[i], s, &out);
    for (size_t i = 0; i < LENGTH(vllm_metrics); i++)
        of_models(&vllm_metrics[i], s, &out);
    cache_config(s, &out);
    lora_requests(s, &out);
    for (size_t i = 0; i < LENGTH(histogram_metrics); i++)
        histograms(&histogram_metrics[i], s, &out);
    if (out.failed) {
        reply_refusal(s, c, 503, NULL, "out of memory");
    } else {
        metrics_count(&s->metrics, conn_route(c), 200);
        conn_reply(c, 200, "text/plain; version=0.0.4; charset=utf-8", out.data, out.size);
    }
    buf_release(&out);
}
