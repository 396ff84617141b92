/* health.c - GET /health, /livez and /. */
#include <stdio.h>

#include "libcommon/serve/admin/statistics.h"
#include "libcommon/serve/internal.h"

/* Answer {"status": status} with 503 and Retry-After.  reason NULL: none. */
static void reply_unhealthy(struct server *s, struct conn *c, const char *status, const char *reason, int wait_s)
{
    char wait[16];
    snprintf(wait, sizeof wait, "%d", wait_s);
    conn_add_header(c, "Retry-After", wait);
    reply_object(s, c, 503, json_pack("{s:s, s:s*}", "status", status, "reason", reason));
}

static void reply_stalled(struct server *s, struct conn *c, const struct loaded_model *lm)
{
    char why[160];
    snprintf(why, sizeof why, "%.80s: no step has ended for %.0f s", lm->id, worker_step_s(lm->worker));
    reply_unhealthy(s, c, "stalled", why, 1);
}

/* Whether a restart could help: supervisors restart a server that is not alive. */
void handle_live(struct server *s, struct conn *c, const char *rest)
{
    const struct loaded_model *stalled = stall_find(s);
    (void)rest;
    if (stalled)
        reply_stalled(s, c, stalled);
    else
        reply_object(s, c, 200, json_pack("{s:s}", "status", "alive"));
}

void handle_health(struct server *s, struct conn *c, const char *rest)
{
    struct problem ignored;
    const int ready = models_n(s, MODEL_READY), loading = models_n(s, MODEL_LOADING);
    const char *left = ready || loading || s->sleep.level ? NULL : models_left(s, NULL);
    const int wait_s = left ? models_wait_s(s, left) : 0;
    (void)rest;
    if (left && !wait_s)                /* load it: clients may be waiting for this answer */
        models_recall(s, left, &ignored);
    const struct loaded_model *stalled = s->draining ? NULL : stall_find(s);
    if (stalled) {
        reply_stalled(s, c, stalled);
    } else if (!s->draining && s->watch.state != WATCH_FINE) {
        reply_unhealthy(s, c, "memory_pressure", "memory is short: no new requests until there is more", 1);
    } else if (s->draining || left || (ready == 0 && loading > 0 && !s->o.store)) {
        reply_unhealthy(s, c, s->draining ? "stopping" : wait_s ? "failed" : "loading", NULL, wait_s ? wait_s : 1);
    } else {
        reply_object(s, c, 200, json_pack("{s:s, s:s, s:f, s:i, s:b}", "status",
                                          s->sleep.level ? "sleeping" : "healthy", "version", ZSE_VERSION,
                                          "uptime_seconds", round2(server_uptime_s(s)), "models_loaded", ready,
                                          "gpu_available", server_has_gpu(s)));
    }
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
                                       "total_requests", (json_int_t)s->metrics.requests, "active_requests",
                                       server_n_calls(s), "total_tokens", (json_int_t)s->metrics.tokens,
                                       "throughput_tok_s", metrics_rate(&s->metrics)));
}
