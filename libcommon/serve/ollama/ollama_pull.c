/* ollama_pull.c - POST /api/pull: start a job (serve/jobs) that downloads and converts a model, and
 * report its progress as lines of JSON. The job continues after the client disconnects;
 * /api/models/jobs cancels it. */
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/format/zfile.h"
#include "libcommon/serve/jobs/jobs.h"
#include "libcommon/serve/ollama/ollama.h"

static const char *state_of(const json_t *job)
{
    const char *state = json_string_value(json_object_get(job, "state"));
    return state ? state : "lost";
}

/* Why the job failed; NULL: it did not. */
static const char *failure(const json_t *job)
{
    const char *why = json_string_value(js_get(job, "message"));
    return strcmp(state_of(job), "done") == 0 ? NULL : why ? why : "the job has not ended";
}

/* Write a line of JSON and free it. */
static void write_line(struct conn *c, json_t *line)
{
    char *text = line ? json_dumps(line, JSON_COMPACT) : NULL;
    if (text) {
        conn_write(c, text, strlen(text));
        conn_write(c, "\n", 1);
    } else {
        conn_break(c);
    }
    free(text);
    json_decref(line);
}

static void report_line(struct server *s, struct conn *c, const json_t *job, int last)
{
    const json_t *p = js_get(job, "progress");
    const char *step = json_string_value(json_object_get(p, "step"));
    const json_int_t done = json_integer_value(json_object_get(p, "done")),
                     total = json_integer_value(json_object_get(p, "total"));
    (void)s;
    if (!last && step && total > 0)
        write_line(c, json_pack("{s:s, s:I, s:I}", "status", step, "total", total, "completed", done));
    else if (!last)
        write_line(c, json_pack("{s:s}", "status", step ? step : state_of(job)));
    else if (failure(job))
        write_line(c, json_pack("{s:s}", "error", failure(job)));
    else
        write_line(c, json_pack("{s:s}", "status", "success"));
    if (last)
        conn_end(c);
}

static void report_end(struct server *s, struct conn *c, const json_t *job, int last)
{
    if (last && failure(job))
        reply_refusal(s, c, 500, "job_failed", "%s", failure(job));
    else if (last)
        reply_object(s, c, 200, json_pack("{s:s}", "status", "success"));
}

static int is_here(const struct server *s, const char *name)
{
    struct problem ignored;
    char found[STORE_NAME_BYTES];
    return named_find(s, name, found, &ignored) == 0 && strcmp(found, name) == 0;
}

/* Whether the model's file records the given revision of the source as its origin. */
static int is_made_of(const char *path, const struct model_pulled *p)
{
    struct err ignored;
    struct zfile *f = *p->revision ? zfile_open(path, &ignored) : NULL;
    const char *source = f ? json_string_value(js_get(js_get(zfile_json(f), "provenance"), "source")) : NULL;
    const int same = source && strcmp(source, p->revision) == 0;
    zfile_close(f);
    return same;
}

/* Start the job.  1: the model exists already; -1 with *pr. */
static int begin(struct server *s, struct conn *c, const char *word, int stream, struct problem *pr)
{
    struct model_pulled pulled = { .source = NULL };
    struct err e;
    if (!s->jobs || !s->o.maker.resolve || !s->o.store)
        return problem_set(pr, 404, NULL, "no_jobs", "this server makes no models");
    if (is_here(s, word)) /* word is the name of a model that this server has, from whatever source */
        return guard_model(conn_record(c), word, pr) == 0 ? 1 : -1;
    if (s->o.maker.resolve(word, &pulled, &e) != 0)
        return problem_set(pr, e.code == ERR_MEMORY ? 503 : 404, "model", "model_not_found", "%s", e.msg);
    char *path = store_path(s->o.store, pulled.name, &e);
    int rc = guard_model(conn_record(c), pulled.name, pr);
    if (rc == 0 && !path) {
        rc = problem_set(pr, 400, "model", "invalid_value", "%s", e.msg);
    } else if (rc == 0 && is_here(s, pulled.name)) {
        rc = is_made_of(path, &pulled) ? 1
             : problem_set(pr, 409, "model", "model_exists",
                           "a model called %.120s is here, and not known to be made of %.140s: delete it first",
                           pulled.name, pulled.source);
    } else if (rc == 0) {
        const struct job *j = jobs_convert(s, c, pulled.source, path, pulled.name, pulled.type, pr);
        rc = j ? jobs_watch(s, c, j, stream ? report_line : report_end, pr) : -1;
    }
    free(path);
    free(pulled.source);
    return rc;
}

void handle_ollama_pull(struct server *s, struct conn *c, const char *rest)
{
    struct params p = { .stream = 1 };
    struct problem pr;
    char plain[STORE_NAME_BYTES];
    json_t *body = read_body(s, c, BODY_OLLAMA_PULL, &p);
    (void)rest;
    if (!body)
        return;
    const char *name = p.model && *p.model ? p.model : p.name;
    const int rc = name && *name ? begin(s, c, named_plain(s, name, plain), p.stream, &pr)
                                 : problem_set(&pr, 400, "model", "missing", "model is required");
    if (rc < 0) {
        reply_problem(s, c, &pr);
    } else if (rc > 0) {
        reply_object(s, c, 200, json_pack("{s:s}", "status", "success"));
    } else if (p.stream) {
        metrics_count(&s->metrics, conn_route(c), 200);
        conn_add_header(c, "Cache-Control", "no-store");
        conn_begin(c, 200, "application/x-ndjson");
        write_line(c, json_pack("{s:s}", "status", "pulling manifest"));
    }
    json_decref(body);
}
