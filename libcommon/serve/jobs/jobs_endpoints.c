/* jobs_endpoints.c - /api/models/jobs: start a download or a conversion, watch it, cancel it. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>

#include "libcommon/base/clock.h"
#include "libcommon/serve/internal.h"
#include "libcommon/serve/jobs/jobs.h"
#include "libcommon/serve/model_paths.h"

enum { WATCH_S = 600 };                         /* a stream ends after this time, because keys expire */

static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";

/* The jobs of this server; NULL: it has none, and the client has the answer. */
static struct jobs *jobs_of(struct server *s, struct conn *c)
{
    if (!s->jobs)
        reply_refusal(s, c, 404, "no_jobs", "this program makes no models");
    return s->jobs;
}

/* ---- a request for a job ---- */

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Choose the name of the new model: the given one, else "NAME-TYPE".  -1 with *pr. */
static int choose_name(struct job *j, const struct params *p, struct problem *pr)
{
    char base[JOB_NAME_MAX + 1];
    const char *given = p->name ? p->name : NULL, *from = last_part(j->source);
    size_t n = given ? strlen(given) : strcspn(from, "@:");
    if (given && (n == 0 || n > JOB_NAME_MAX || strspn(given, letters) != n || *given == '.'))
        return problem_set(pr, 400, "name", "invalid_value",
                           "name: '%.80s', expected letters, digits and . _ - of %d bytes at most", given,
                           JOB_NAME_MAX);
    snprintf(base, sizeof base, "%.*s", (int)(n < 100 ? n : 100), given ? given : from);
    if (given && (n = strlen(given)) < sizeof base)
        strcpy(base, given);
    for (char *q = base; *q; q++)
        if (!strchr(letters, *q))
            *q = '-';
    n = strlen(base);
    if (n > 4 && (strcasecmp(base + n - 4, ".zse") == 0))
        base[n - 4] = '\0';
    else if (!given && n > 5 && strcasecmp(base + n - 5, ".gguf") == 0)
        base[n - 5] = '\0';
    snprintf(j->name, sizeof j->name, "%s%.100s%s%.30s", *base == '.' ? "_" : "", base, given ? "" : "-",
             given ? "" : *j->quantization ? j->quantization : j->target_gb > 0 ? "fit" : "nl4");
    if (given)
        snprintf(j->name, sizeof j->name, "%s", base);
    return 0;
}

/* Create all missing folders of path. */
static int make_folder(const char *path, struct problem *pr)
{
    char *copy = strdup(path);
    int rc = copy ? 0 : problem_nomem(pr);
    for (char *at = copy; rc == 0 && at; ) {
        at = strchr(at + 1, '/');
        if (at)
            *at = '\0';
        if (mkdir(copy, 0777) != 0 && errno != EEXIST)
            rc = problem_set(pr, 503, NULL, "no_folder", "%.200s: %s", copy, strerror(errno));
        if (at)
            *at = '/';
    }
    free(copy);
    return rc;
}

/* The source's absolute path, valid in every working folder.  Caller frees; NULL with *pr. */
static char *real_source(const struct server *s, const struct conn *c, const char *source, struct problem *pr)
{
    char *path = model_path_allowed(s, c, source, pr), *real = path ? realpath(path, NULL) : NULL;
    if (path && !real)
        problem_set(pr, 400, "source", "invalid_value", "source: %.200s: %s", source, strerror(errno));
    free(path);
    return real;
}

static int place_output(const struct server *s, struct job *j, struct problem *pr)
{
    char *folder = realpath(s->o.maker.folder, NULL);
    if (!folder)
        return problem_set(pr, 503, NULL, "no_folder", "%.200s: %s", s->o.maker.folder, strerror(errno));
    if (asprintf(&j->path, "%s/%s.zse", folder, j->name) < 0)
        j->path = NULL;
    free(folder);
    return j->path ? 0 : problem_nomem(pr);
}

/* Set the fields of the body, the paths, and the command.  -1 with *pr. */
static int fill_in(struct server *s, struct conn *c, struct job *j, const struct params *p, struct problem *pr)
{
    struct err e;
    const char *source = p->source;
    const int download = p->kind && strcmp(p->kind, "download") == 0;
    if (p->kind && !download && strcmp(p->kind, "convert") != 0)
        return problem_set(pr, 400, "kind", "invalid_value", "kind: '%.40s', expected download or convert", p->kind);
    if (!source || !*source)
        return problem_set(pr, 400, "source", "missing", "source: missing");
    if (strlen(p->quantization ? p->quantization : "") >= sizeof j->quantization ||
        strlen(p->quality ? p->quality : "") >= sizeof j->quality)
        return problem_set(pr, 400, "quantization", "invalid_value", "quantization or quality: no such one");
    if (download && (p->quantization || p->quality || p->name || p->target_gb > 0 || p->load))
        return problem_set(pr, 400, "kind", "invalid_value",
                           "kind: a download takes source alone; name, quantization, quality, target_gb and load are of a conversion");
    j->is_path = *source == '/' || *source == '.';
    char *path = j->is_path ? real_source(s, c, source, pr) : NULL;
    if (j->is_path && !path)
        return -1;
    if (!(j->source = path ? path : strdup(source)))
        return problem_nomem(pr);
    if (download && j->is_path)
        return problem_set(pr, 400, "source", "invalid_value", "source: it is on this machine already");
    strcpy(j->quantization, p->quantization ? p->quantization : "");
    strcpy(j->quality, p->quality ? p->quality : "");
    j->target_gb = (double)p->target_gb;
    j->load = p->load;
    if (make_folder(s->o.maker.folder, pr) != 0 ||
        (!download && (choose_name(j, p, pr) != 0 || place_output(s, j, pr) != 0)))
        return -1;
    const struct model_order o = { .source = j->source, .is_path = j->is_path, .output = j->path,
                                   .quantization = p->quantization, .quality = p->quality, .target_gb = j->target_gb };
    if ((j->command = s->o.maker.command(&o, &e)))
        return 0;
    return problem_set(pr, e.code == ERR_FORMAT ? 400 : 503, NULL,
                       e.code == ERR_FORMAT ? "invalid_value" : "no_program", "%s", e.msg);
}

static void note_client(struct job *j, const struct access_record *record)
{
    if (!record)
        return;
    snprintf(j->request, sizeof j->request, "%s", record->id);
    snprintf(j->client, sizeof j->client, "%s", record->client);
    snprintf(j->key, sizeof j->key, "%s", record->has_key ? record->key.name : record->is_admin ? "(admin.token)" : "");
    j->has_key = record->is_admin || record->by_key;
}

/* Check that the job can be added.  -1 with *pr: an unfinished job does the same, or there are too
 * many. */
static int has_room(struct jobs *js, const struct job *j, struct problem *pr)
{
    int n = 0;
    const struct job *same = NULL;
    pthread_mutex_lock(&js->lock);
    n = jobs_n_open(js);
    for (const struct job *o = js->list; o && !same; o = o->next)
        if (o != j && (o->state == JOB_QUEUED || o->state == JOB_RUNNING) &&
            (j->path && o->path ? strcmp(o->path, j->path) == 0
                                : !j->path && !o->path && strcmp(o->source, j->source) == 0))
            same = o;
    pthread_mutex_unlock(&js->lock);
    if (same)
        return problem_set(pr, 409, NULL, "job_exists", "job %s does that already", same->id);
    if (n >= MAX_OPEN_JOBS)
        return problem_set(pr, 503, NULL, "too_many_jobs", "%d jobs wait already", n);
    return 0;
}

static void reply_job(struct server *s, struct conn *c, int status, const struct job *j)
{
    pthread_mutex_lock(&s->jobs->lock);
    json_t *o = job_object(j);
    pthread_mutex_unlock(&s->jobs->lock);
    reply_object(s, c, status, o);
    atomic_store(&s->jobs->moved, 1);
    jobs_events(s);
}

void handle_job_create(struct server *s, struct conn *c, const char *rest)
{
    struct params p = { 0 };
    struct problem pr;
    struct err e;
    json_t *body = jobs_of(s, c) ? read_body(s, c, BODY_JOB, &p) : NULL;
    (void)rest;
    if (!body)
        return;
    struct job *j = calloc(1, sizeof *j);
    int rc = j ? fill_in(s, c, j, &p, &pr) : problem_nomem(&pr);
    if (rc == 0)
        rc = has_room(s->jobs, j, &pr);
    if (rc == 0) {
        j->created_s = (int64_t)time(NULL);
        note_client(j, conn_record(c));
        if (jobs_add(s->jobs, j, &e) != 0)
            rc = problem_set(&pr, 503, NULL, NULL, "%s", e.msg);
    }
    if (rc == 0) {
        reply_job(s, c, 202, j);
    } else {
        job_free(j);
        reply_problem(s, c, &pr);
    }
    json_decref(body);
}

struct job *jobs_convert(struct server *s, struct conn *c, const char *source, const char *path, const char *name,
                         const char *type, struct problem *pr)
{
    const struct model_order o = { .source = source, .output = path, .quantization = *type ? type : NULL };
    struct err e;
    struct job *j = calloc(1, sizeof *j);
    if (!j || !(j->source = strdup(source)) || !(j->path = strdup(path))) {
        problem_nomem(pr);
        goto fail;
    }
    snprintf(j->name, sizeof j->name, "%s", name);
    snprintf(j->quantization, sizeof j->quantization, "%s", type);
    if (make_folder(s->o.store, pr) != 0)
        goto fail;
    if (!(j->command = s->o.maker.command(&o, &e))) {
        problem_set(pr, e.code == ERR_FORMAT ? 400 : 503, NULL, NULL, "%s", e.msg);
        goto fail;
    }
    if (has_room(s->jobs, j, pr) != 0)
        goto fail;
    j->created_s = (int64_t)time(NULL);
    note_client(j, conn_record(c));
    if (jobs_add(s->jobs, j, &e) == 0)
        return j;
    problem_set(pr, 503, NULL, NULL, "%s", e.msg);
fail:
    job_free(j);
    return NULL;
}

/* ---- the other endpoints ---- */

void handle_jobs(struct server *s, struct conn *c, const char *rest)
{
    struct jobs *js = jobs_of(s, c);
    (void)rest;
    if (!js)
        return;
    json_t *list = json_array();
    pthread_mutex_lock(&js->lock);
    for (const struct job *j = js->list; j; j = j->next)
        json_array_append_new(list, job_object(j));
    pthread_mutex_unlock(&js->lock);
    reply_object(s, c, 200, json_pack("{s:o, s:s}", "jobs", list, "folder", s->o.maker.folder));
}

/* Find the job of a path "ID" or "ID/resume"; NULL: there is none, and the client has the answer.
 * The audit line of a job that has just ended is written first. */
static struct job *find(struct server *s, struct conn *c, const char *rest)
{
    char id[sizeof ((struct job *)0)->id];
    const size_t n = strcspn(rest, "/");
    if (!jobs_of(s, c))
        return NULL;
    jobs_events(s);
    snprintf(id, sizeof id, "%.*s", (int)(n < sizeof id ? n : sizeof id - 1), rest);
    struct job *j = job_find(s->jobs, id);
    if (!j)
        reply_refusal(s, c, 404, "not_found", "there is no job '%.40s'", rest);
    return j;
}

void handle_job(struct server *s, struct conn *c, const char *rest)
{
    struct job *j = find(s, c, rest);
    if (j)
        reply_job(s, c, 200, j);
}

/* Cancel a running or waiting job, or remove an ended one from the list.  A job that has ended
 * since find() is reported as "cancelling", because its audit line is not written yet. */
void handle_job_delete(struct server *s, struct conn *c, const char *rest)
{
    struct job *j = find(s, c, rest);
    if (!j)
        return;
    struct jobs *js = s->jobs;
    const char *said = "removed";
    pthread_mutex_lock(&js->lock);
    if (j->state == JOB_RUNNING || (j->state != JOB_QUEUED && !j->told)) {
        atomic_store(&j->cancel, 1);
        said = "cancelling";
    } else if (j->state == JOB_QUEUED) {
        j->state = JOB_CANCELLED;
        j->started_s = j->ended_s = (int64_t)time(NULL);
        snprintf(j->message, sizeof j->message, "cancelled before it began");
        said = "cancelled";
    }
    json_t *answer = json_pack("{s:s, s:s}", "status", said, "id", j->id);
    if (*said == 'r')
        jobs_remove(js, j);
    pthread_mutex_unlock(&js->lock);
    reply_object(s, c, 200, answer);
    atomic_store(&js->moved, 1);
    jobs_events(s);
}

void handle_job_resume(struct server *s, struct conn *c, const char *rest)
{
    struct job *j = find(s, c, rest);
    struct problem pr;
    if (!j)
        return;
    pthread_mutex_lock(&s->jobs->lock);
    const int over = j->told && (j->state == JOB_FAILED || j->state == JOB_CANCELLED);
    pthread_mutex_unlock(&s->jobs->lock);
    if (!over) {
        reply_refusal(s, c, 409, "job_not_ended", "job %s has not failed, and was not cancelled", j->id);
    } else if (has_room(s->jobs, j, &pr) != 0) {
        reply_problem(s, c, &pr);
    } else {
        note_client(j, conn_record(c));
        jobs_again(s->jobs, j);
        reply_job(s, c, 202, j);
    }
}

/* Add a watcher; NULL with *pr: there are too many, or the server stops. */
static struct job_watcher *add_watcher(struct server *s, struct conn *c, struct problem *pr)
{
    struct jobs *js = s->jobs;
    int n = 0;
    for (const struct job_watcher *w = js->watchers; w; w = w->next)
        n++;
    struct job_watcher *w = n < MAX_WATCHERS && !s->draining ? calloc(1, sizeof *w) : NULL;
    if (!w) {
        problem_set(pr, 503, NULL, "busy", "%d clients watch the jobs already", n);
        return NULL;
    }
    w->exchange.kind = EXCHANGE_JOBS;
    w->in = js;
    w->conn = c;
    w->next = js->watchers;
    js->watchers = w;
    conn_set_exchange(c, w);
    return w;
}

int jobs_watch(struct server *s, struct conn *c, const struct job *j, job_report *report, struct problem *pr)
{
    struct job_watcher *w = add_watcher(s, c, pr);
    if (!w)
        return -1;
    snprintf(w->id, sizeof w->id, "%s", j->id);
    w->report = report;
    w->until_ns = UINT64_MAX;                   /* watch until the job or the server ends */
    return 0;
}

void handle_job_events(struct server *s, struct conn *c, const char *rest)
{
    struct jobs *js = jobs_of(s, c);
    struct problem pr;
    (void)rest;
    if (!js)
        return;
    if (strcmp(conn_request(c)->method, "HEAD") == 0) {
        reply_refusal(s, c, 405, "method_not_allowed", "a stream of events has no length: expected GET");
        return;
    }
    struct job_watcher *w = add_watcher(s, c, &pr);
    if (!w) {
        reply_problem(s, c, &pr);
        return;
    }
    w->until_ns = clock_ns() + (uint64_t)WATCH_S * 1000000000u;
    metrics_count(&s->metrics, conn_route(c), 200);
    conn_add_header(c, "Cache-Control", "no-store");
    conn_begin(c, 200, "text/event-stream");
    jobs_tell(js, c);
}
