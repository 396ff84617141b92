/* prometheus.c - GET /metrics, in the text format of Prometheus. */
#include <math.h>
#include <stddef.h>
#include <time.h>

#include "libcommon/serve/internal.h"

static void label(struct buf *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            buf_str(out, "\\");
        buf_add(out, *text == '\n' ? " " : text, 1);
    }
}

static void about(struct buf *out, const char *name, const char *type, const char *text)
{
    buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, text, name, type);
}

static void number(struct buf *out, double v)
{
    buf_printf(out, v < 1e15 && v == floor(v) ? "%.0f\n" : "%.9g\n", v);
}

/* One figure of every loaded model. */
static void of_models(const struct server *s, struct buf *out, const char *name, const char *type, const char *text,
                      double (*value)(const struct loaded_model *lm, const struct engine_stats *e))
{
    about(out, name, type, text);
    for (const struct loaded_model *lm = s->models; lm; lm = lm->next) {
        struct engine_stats e;
        if (!lm->worker)
            continue;
        worker_stats(lm->worker, &e, NULL);
        buf_printf(out, "%s{model=\"", name);
        label(out, lm->id);
        buf_str(out, "\"} ");
        number(out, value(lm, &e));
    }
}

static void histograms(const struct server *s, struct buf *out, const char *name, const char *text, size_t at)
{
    about(out, name, "histogram", text);
    for (const struct loaded_model *lm = s->models; lm; lm = lm->next) {
        const struct histogram *g = (const void *)((const char *)&lm->metrics + at);
        uint64_t sum = 0;
        if (!lm->worker)
            continue;
        for (int i = 0; i <= HISTOGRAM_BUCKETS; i++) {
            sum += g->bucket[i];
            buf_printf(out, "%s_bucket{model=\"", name);
            label(out, lm->id);
            if (i < HISTOGRAM_BUCKETS)
                buf_printf(out, "\",le=\"%g\"} %llu\n", histogram_bounds[i], (unsigned long long)sum);
            else
                buf_printf(out, "\",le=\"+Inf\"} %llu\n", (unsigned long long)sum);
        }
        buf_printf(out, "%s_sum{model=\"", name);
        label(out, lm->id);
        buf_printf(out, "\"} %.9g\n%s_count{model=\"", g->sum, name);
        label(out, lm->id);
        buf_printf(out, "\"} %llu\n", (unsigned long long)g->count);
    }
}

#define VALUE(name, expression) static double name(const struct loaded_model *lm, const struct engine_stats *e) { (void)lm; (void)e; return (double)(expression); }
VALUE(running, e->n_running)
VALUE(waiting, e->n_waiting)
VALUE(shares, e->n_tenants)
VALUE(kv_share, kv_use(e))
VALUE(kv_blocks, e->n_blocks)
VALUE(kv_free, e->n_free_blocks)
VALUE(kv_prefixes, e->n_cached_blocks)
VALUE(prompt_tokens, e->prompt_tokens)
VALUE(cached_tokens, e->cached_tokens)
VALUE(generated_tokens, e->generated_tokens)
VALUE(engine_requests, e->requests)
VALUE(cancelled, e->cancelled)
VALUE(preemptions, e->preemptions)
VALUE(evictions, e->evictions)
VALUE(copies, e->copies)
VALUE(steps, e->steps)
VALUE(step_seconds, (double)e->step_ns * 1e-9)
VALUE(memory, lm->memory_bytes)

static void work_memory(const struct server *s, struct buf *out)
{
    struct account_stats a;
    account_stats(s->account, &a);
    about(out, "zse_work_memory_bytes", "gauge",
          "Memory that requests hold: bodies, their JSON, prompts, answers that wait.");
    buf_printf(out, "zse_work_memory_bytes %zu\n", a.used);
    about(out, "zse_work_memory_peak_bytes", "gauge", "The most that they held at once.");
    buf_printf(out, "zse_work_memory_peak_bytes %zu\n", a.peak);
    about(out, "zse_work_memory_limit_bytes", "gauge", "The most that they may hold (--work-memory).");
    buf_printf(out, "zse_work_memory_limit_bytes %zu\n", a.total);
    about(out, "zse_work_memory_refused_total", "counter", "Times that a request was refused memory.");
    buf_printf(out, "zse_work_memory_refused_total %llu\n", (unsigned long long)a.refused);
}

void handle_metrics(struct server *s, struct conn *c, const char *rest)
{
    struct buf b = { 0 }, *out = &b;
    (void)rest;
    about(out, "zse_http_requests_total", "counter", "Responses by route and status.");
    for (int i = 0; i < s->metrics.n_counts; i++) {
        const struct route_count *n = &s->metrics.count[i];
        buf_printf(out, "zse_http_requests_total{method=\"%s\",route=\"%s\",code=\"%d\"} %llu\n",
                   n->route >= 0 ? routes[n->route].method : "", n->route >= 0 ? routes[n->route].path : "none",
                   n->status, (unsigned long long)n->n);
    }
    about(out, "zse_http_connections", "gauge", "Connections that are open.");
    buf_printf(out, "zse_http_connections %d\n", loop_n_connections(s->loop));
    about(out, "zse_http_connections_without_key", "gauge",
          "Of these, connections on which no request has shown a good key yet.");
    buf_printf(out, "zse_http_connections_without_key %d\n", loop_n_unknown(s->loop));
    about(out, "zse_http_connections_evicted_total", "counter", "Idle connections closed to make room for a new one.");
    buf_printf(out, "zse_http_connections_evicted_total %llu\n", (unsigned long long)loop_counts(s->loop)->evicted);
    about(out, "zse_http_connections_refused_total", "counter",
          "Connections refused for lack of room, in all or of one address.");
    buf_printf(out, "zse_http_connections_refused_total %llu\n", (unsigned long long)loop_counts(s->loop)->refused);
    about(out, "zse_http_sent_bytes_total", "counter", "Bytes sent to clients.");
    buf_printf(out, "zse_http_sent_bytes_total %llu\n", (unsigned long long)loop_bytes_sent(s->loop));
    if (s->guard.audit) {
        struct audit_stats a;
        audit_log_stats(s->guard.audit, &a);
        about(out, "zse_audit_entries_total", "counter", "Lines written to the audit log.");
        buf_printf(out, "zse_audit_entries_total %llu\n", (unsigned long long)a.entries);
        about(out, "zse_audit_waiting", "gauge", "Lines that wait for the disk.");
        buf_printf(out, "zse_audit_waiting %d\n", audit_log_waiting(s->guard.audit));
        about(out, "zse_audit_errors_total", "counter",
              "Lines that the disk did not take, and files that could not be compressed.");
        buf_printf(out, "zse_audit_errors_total %llu\n", (unsigned long long)a.errors);
        struct audit_syslog_stats syslog;
        if (audit_log_syslog_stats(s->guard.audit, &syslog)) {
            about(out, "zse_audit_syslog_sent_total", "counter",
                  "Lines of the audit log that were sent to the syslog server.");
            buf_printf(out, "zse_audit_syslog_sent_total %llu\n", (unsigned long long)syslog.sent);
            about(out, "zse_audit_syslog_dropped_total", "counter", "Lines that could not be sent to it.");
            buf_printf(out, "zse_audit_syslog_dropped_total %llu\n", (unsigned long long)syslog.dropped);
        }
    }
    about(out, "zse_uptime_seconds", "gauge", "Time since the start.");
    buf_printf(out, "zse_uptime_seconds %lld\n", (long long)time(NULL) - (long long)s->started);
    about(out, "process_resident_memory_bytes", "gauge", "Resident memory, file pages of the models included.");
    buf_printf(out, "process_resident_memory_bytes %llu\n", (unsigned long long)memory_resident());
    work_memory(s, out);
    of_models(s, out, "zse_requests_total", "counter", "Answers that were asked of the engine.", engine_requests);
    of_models(s, out, "zse_requests_cancelled_total", "counter", "Answers that were cancelled, or ran out of time.",
              cancelled);
    of_models(s, out, "zse_requests_running", "gauge", "Answers in the making.", running);
    of_models(s, out, "zse_requests_waiting", "gauge", "Answers that wait for their turn.", waiting);
    of_models(s, out, "zse_shares", "gauge", "Keys and addresses whose answers these are.", shares);
    of_models(s, out, "zse_prompt_tokens_total", "counter", "Tokens of prompts.", prompt_tokens);
    of_models(s, out, "zse_prefix_hit_tokens_total", "counter", "Tokens of prompts that the prefix cache had.",
              cached_tokens);
    of_models(s, out, "zse_generated_tokens_total", "counter", "Tokens of answers.", generated_tokens);
    of_models(s, out, "zse_kv_use_ratio", "gauge", "Share of KV blocks that running requests hold.", kv_share);
    of_models(s, out, "zse_kv_blocks", "gauge", "KV blocks.", kv_blocks);
    of_models(s, out, "zse_kv_blocks_free", "gauge", "KV blocks that hold nothing.", kv_free);
    of_models(s, out, "zse_kv_blocks_prefix", "gauge", "KV blocks that hold only prefixes for later.", kv_prefixes);
    of_models(s, out, "zse_kv_evictions_total", "counter", "KV blocks of prefixes that were given up.", evictions);
    of_models(s, out, "zse_kv_copies_total", "counter",
              "KV blocks that were copied before something was written to them.", copies);
    of_models(s, out, "zse_preemptions_total", "counter",
              "Answers sent back to wait, for KV blocks or so that another key has its share.", preemptions);
    of_models(s, out, "zse_engine_steps_total", "counter", "Steps of the engine.", steps);
    of_models(s, out, "zse_engine_step_seconds_total", "counter", "Time in them.", step_seconds);
    of_models(s, out, "zse_model_memory_bytes", "gauge", "Weights and private memory.", memory);
    histograms(s, out, "zse_time_to_first_token_seconds", "From request to first token.",
               offsetof(struct model_metrics, first_token));
    histograms(s, out, "zse_time_between_tokens_seconds", "Between the tokens of an answer.",
               offsetof(struct model_metrics, between_tokens));
    histograms(s, out, "zse_request_duration_seconds", "From request to the end of the answer.",
               offsetof(struct model_metrics, duration));
    if (out->failed) {
        reply_refusal(s, c, 503, NULL, "out of memory");
    } else {
        metrics_count(&s->metrics, conn_route(c), 200);
        conn_reply(c, 200, "text/plain; version=0.0.4; charset=utf-8", out->data, out->size);
    }
    buf_release(out);
}
