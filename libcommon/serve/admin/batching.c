/* batching.c - /api/batching: show how the engines batch requests, and change it. */
#include "libcommon/serve/admin/statistics.h"
#include "libcommon/serve/exchange.h"
#include "libcommon/serve/internal.h"

/* The settings of an engine.  Requests join the batch of the next step, so that none waits for
 * others to arrive: batch_timeout_ms, which servers of fixed batches have, is 0. */
static json_t *config_object(const struct engine_limits *l, const struct engine_stats *e)
{
    return json_pack("{s:i, s:i, s:i, s:i, s:i, s:b}", "max_batch_size", l->max_running, "max_tokens_per_batch",
                     l->max_tokens ? l->max_tokens : e->max_tokens, "chunk", l->chunk, "max_queue", l->max_waiting,
                     "batch_timeout_ms", 0, "enable_cuda_graphs", e->device.name && !e->device.graphs.off);
}

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
        json_t *j = json_pack("{s:b, s:o, s:i, s:i, s:i, s:I, s:I, s:I, s:I}", "enabled", lm->batching, "config",
                              config_object(&l, &e), "processing", e.n_running, "queued", e.n_waiting, "tenants",
                              e.n_tenants, "submitted", (json_int_t)e.requests, "completed", (json_int_t)e.finished,
                              "cancelled", (json_int_t)e.cancelled, "failed", (json_int_t)e.failed);
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

/* Keep the settings of lm until POST /api/models/unload, for when it is loaded again. */
static int keep(struct loaded_model *lm)
{
    const struct engine_limits *l = &lm->limits;
    if (!lm->s->batching)
        lm->s->batching = json_object();
    return json_object_set_new(lm->s->batching, lm->id,
                               json_pack("{s:b, s:i, s:i, s:i, s:i}", "enabled", lm->batching, "running", l->max_running,
                                         "waiting", l->max_waiting, "chunk", l->chunk, "tokens", l->max_tokens));
}

/* Set the settings of lm to those of keep(). */
static void recall(struct loaded_model *lm, const json_t *kept)
{
    struct engine_limits *l = &lm->limits;
    struct engine_stats es;
    /* the new engine may have smaller limits: the file or the free memory may be another by now */
    worker_stats(lm->worker, &es, NULL);
    const int running = (int)json_integer_value(json_object_get(kept, "running")),
              tokens = (int)json_integer_value(json_object_get(kept, "tokens"));
    l->max_running = running < lm->most_running ? running : lm->most_running;
    l->max_waiting = (int)json_integer_value(json_object_get(kept, "waiting"));
    l->chunk = (int)json_integer_value(json_object_get(kept, "chunk"));
    l->max_tokens = tokens < es.max_tokens ? tokens : es.max_tokens;
    lm->batching = json_is_true(json_object_get(kept, "enabled"));
}

void batching_restore(struct loaded_model *lm)
{
    const json_t *kept = json_object_get(lm->s->batching, lm->id);
    lm->batching = !lm->s->no_batching;
    if (kept)
        recall(lm, kept);
    else if (lm->batching)
        return;
    struct engine_limits now = lm->limits;
    if (!lm->batching)
        now.max_running = 1;
    if (worker_limits(lm->worker, &now) != 0)
        server_log(lm->s, "%s: no memory to set its limits again, POST /api/batching sets them", lm->id);
}

/* Returns 0, or -1 without memory. */
static int set_batching(struct loaded_model *lm, int on)
{
    struct engine_limits l = lm->limits;
    lm->batching = on;
    if (!on)
        l.max_running = 1;
    return keep(lm) == 0 ? worker_limits(lm->worker, &l) : -1;
}

/* Models that load later begin with this setting, and so do those that were closed meanwhile. */
static void batching_all(struct server *s, struct conn *c, int on)
{
    const char *id;
    json_t *kept;
    int failed = 0;
    s->no_batching = !on;
    json_object_foreach(s->batching, id, kept)
        failed |= json_object_set_new(kept, "enabled", json_boolean(on)) != 0;
    for (struct loaded_model *lm = s->models; lm; lm = lm->next)
        failed |= lm->state == MODEL_READY && set_batching(lm, on) != 0;
    if (failed) {
        reply_refusal(s, c, 503, NULL, "out of memory: some models may have kept the old setting");
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

/* Change the limits of lm to those given, and reply. */
static void set_limits(struct server *s, struct conn *c, struct loaded_model *lm, const struct params *p)
{
    struct engine_stats e;
    worker_stats(lm->worker, &e, NULL);
    if (p->max_running > lm->most_running) {
        reply_refusal(s, c, 400, "out_of_range", "max_batch_size: %d is not in the range 1 to %d (--max-seqs)",
                      p->max_running, lm->most_running);
        return;
    }
    if (p->step_tokens > e.max_tokens) {
        reply_refusal(s, c, 400, "out_of_range", "max_tokens_per_batch: %d is not in the range 0 to %d", p->step_tokens,
                      e.max_tokens);
        return;
    }
    if (p->max_running)
        lm->limits.max_running = p->max_running;
    if (p->max_waiting >= 0)
        lm->limits.max_waiting = p->max_waiting;
    if (p->chunk >= 0)
        lm->limits.chunk = p->chunk;
    if (p->step_tokens >= 0)
        lm->limits.max_tokens = p->step_tokens;
    if (set_batching(lm, 1) != 0)
        reply_refusal(s, c, 503, NULL, "out of memory");
    else
        reply_object(s, c, 200, json_pack("{s:b, s:s, s:o}", "success", 1, "model", lm->id, "config",
                                          config_object(&lm->limits, &e)));
}

void handle_batching_set(struct server *s, struct conn *c, const char *rest)
{
    struct params p = { .max_waiting = -1, .chunk = -1, .step_tokens = -1 };
    struct problem pr;
    json_t *body = read_body(s, c, BODY_BATCHING, &p);
    (void)rest;
    if (!body)
        return;
    struct loaded_model *lm = models_find(s, p.model, &pr);
    if (lm && models_adapted(s, p.model)) {
        reply_refusal(s, c, 400, "invalid_value", "model: %.80s is a LoRA adapter, whose requests run in the batches of "
                      "its model: expected the id of a model", p.model);
    } else if (!lm) {
        reply_problem(s, c, &pr);
    } else {
        set_limits(s, c, lm, &p);
    }
    json_decref(body);
}
