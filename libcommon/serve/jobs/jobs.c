/* jobs.c - the list of jobs, the thread that runs them, and the clients that watch them. */
#include "libcommon/serve/jobs/jobs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/json.h"
#include "libcommon/base/thread.h"
#include "libcommon/serve/internal.h"

#define TELL_NS UINT64_C(250000000)             /* shortest time between two reports to watchers */

/* ---- the thread ---- */

static struct job *first_queued(struct jobs *js)
{
    struct job *j = js->list;
    while (j && j->state != JOB_QUEUED)
        j = j->next;
    return j;
}

static void *run_jobs(void *arg)
{
    struct jobs *js = arg;
    pthread_mutex_lock(&js->lock);
    for (;;) {
        struct job *j;
        while (!(j = first_queued(js)) && !atomic_load(&js->stop))
            pthread_cond_wait(&js->work, &js->lock);
        if (atomic_load(&js->stop))
            break;
        j->state = JOB_RUNNING;
        j->started_s = (int64_t)time(NULL);
        pthread_mutex_unlock(&js->lock);
        const int rc = job_run(js, j);
        struct stat st;
        const uint64_t bytes = rc == 0 && j->path && stat(j->path, &st) == 0 ? (uint64_t)st.st_size : 0;
        pthread_mutex_lock(&js->lock);
        j->state = rc == 0 ? JOB_DONE : atomic_load(&j->cancel) || atomic_load(&js->stop) ? JOB_CANCELLED : JOB_FAILED;
        j->bytes = bytes;
        j->ended_s = (int64_t)time(NULL);
        atomic_store(&js->moved, 1);
        loop_wake(js->s->loop);
    }
    pthread_mutex_unlock(&js->lock);
    return NULL;
}

/* ---- the list ---- */

void job_free(struct job *j)
{
    if (!j)
        return;
    for (char **word = j->command; word && *word; word++)
        free(*word);
    free(j->command);
    free(j->source);
    free(j->path);
    free(j);
}

static int is_open(const struct job *j) { return j->state == JOB_QUEUED || j->state == JOB_RUNNING; }

struct job *job_find(struct jobs *js, const char *id)
{
    struct job *j = js->list;
    while (j && strcmp(j->id, id) != 0)
        j = j->next;
    return j;
}

int jobs_n_open(struct jobs *js)
{
    int n = 0;
    for (const struct job *j = js->list; j; j = j->next)
        n += is_open(j);
    return n;
}

void jobs_remove(struct jobs *js, struct job *j)
{
    struct job **at = &js->list;
    while (*at != j)
        at = &(*at)->next;
    *at = j->next;
    job_free(j);
}

/* Remove the oldest ended jobs if there are too many. */
static void trim(struct jobs *js)
{
    int n = 0;
    for (const struct job *j = js->list; j; j = j->next)
        n++;
    for (struct job *j = js->list, *next; j && n > MAX_JOBS; j = next) {
        next = j->next;
        if (!is_open(j) && j->told) {
            jobs_remove(js, j);
            n--;
        }
    }
}

int jobs_add(struct jobs *js, struct job *j, struct err *e)
{
    struct job **end = &js->list;
    if (!js->started && thread_start(&js->thread, run_jobs, js) != 0)
        return err_set(e, ERR_MEMORY, "no thread available");
    js->started = 1;
    pthread_mutex_lock(&js->lock);
    snprintf(j->id, sizeof j->id, "%d", ++js->n_made);
    while (*end)
        end = &(*end)->next;
    *end = j;
    trim(js);
    pthread_cond_signal(&js->work);
    pthread_mutex_unlock(&js->lock);
    return 0;
}

void jobs_again(struct jobs *js, struct job *j)
{
    pthread_mutex_lock(&js->lock);
    atomic_store(&j->cancel, 0);
    j->state = JOB_QUEUED;
    j->progress = (struct job_progress){ .done = 0 };
    j->message[0] = '\0';
    j->started_s = j->ended_s = 0;
    j->told = 0;
    pthread_cond_signal(&js->work);
    pthread_mutex_unlock(&js->lock);
}

static json_t *progress_object(const struct job_progress *p)
{
    if (!*p->step)
        return json_null();
    const double left = p->rate > 0 && p->total > p->done ? (double)(p->total - p->done) / p->rate : -1;
    return json_pack("{s:o, s:s, s:I, s:I, s:f, s:o}", "step", js_text(p->step), "unit", p->unit, "done",
                     (json_int_t)p->done, "total", (json_int_t)p->total, "rate", p->rate, "eta_s",
                     left >= 0 ? json_real(left) : json_null());
}

static json_t *time_or_null(int64_t s) { return s ? json_integer((json_int_t)s) : json_null(); }

json_t *job_object(const struct job *j)
{
    static const char *const states[] = { "queued", "running", "done", "failed", "cancelled" };
    return json_pack("{s:s, s:s, s:s, s:s, s:s?, s:s?, s:s?, s:s?, s:b, s:o, s:o, s:o, s:o, s:o, s:I}", "id", j->id,
                     "kind", j->path ? "convert" : "download", "state", states[j->state], "source", j->source, "name",
                     j->path ? j->name : NULL, "path", j->path, "quantization",
                     *j->quantization ? j->quantization : NULL, "quality", *j->quality ? j->quality : NULL, "load",
                     j->load, "progress", progress_object(&j->progress), "message",
                     *j->message ? js_text(j->message) : json_null(), "created_at", time_or_null(j->created_s),
                     "started_at", time_or_null(j->started_s), "ended_at", time_or_null(j->ended_s), "bytes",
                     (json_int_t)j->bytes);
}

/* ---- watchers ---- */

static void drop_watcher(struct jobs *js, struct job_watcher *w)
{
    struct job_watcher **at = &js->watchers;
    while (*at != w)
        at = &(*at)->next;
    *at = w->next;
    free(w);
}

/* Send reports to the clients that watch a single job. */
static void tell_waiting(struct jobs *js)
{
    for (struct job_watcher *w = js->watchers, *next; w; w = next) {
        next = w->next;
        if (!*w->id)
            continue;
        pthread_mutex_lock(&js->lock);
        const struct job *j = job_find(js, w->id);
        json_t *state = j ? job_object(j) : NULL;
        const int last = !j || (!is_open(j) && j->told);
        pthread_mutex_unlock(&js->lock);
        struct conn *c = w->conn;
        job_report *report = w->report;
        if (last) {
            drop_watcher(js, w);
            conn_set_exchange(c, NULL);
        }
        report(js->s, c, state, last);
        json_decref(state);
    }
}

void jobs_tell(struct jobs *js, struct conn *c)
{
    if (!c)
        tell_waiting(js);
    json_t *list = json_array();
    pthread_mutex_lock(&js->lock);
    for (const struct job *j = js->list; j; j = j->next)
        json_array_append_new(list, job_object(j));
    pthread_mutex_unlock(&js->lock);
    json_t *event = json_pack("{s:o}", "jobs", list);
    char *text = event ? json_dumps(event, JSON_COMPACT) : NULL;
    json_decref(event);
    for (struct job_watcher *w = js->watchers; text && w; w = w->next)
        if (!*w->id && (!c || w->conn == c)) {
            conn_write(w->conn, "data: ", 6);
            conn_write(w->conn, text, strlen(text));
            conn_write(w->conn, "\n\n", 2);
        }
    free(text);
}

void jobs_gone(struct conn *c)
{
    struct job_watcher *w = conn_exchange(c);
    drop_watcher(w->in, w);
}

/* End the streams whose time is over at `now`; UINT64_MAX: of all clients. */
static void end_streams(struct jobs *js, uint64_t now)
{
    for (struct job_watcher *w = js->watchers, *next; w; w = next) {
        struct conn *c = w->conn;
        next = w->next;
        if (now < w->until_ns)
            continue;
        job_report *report = w->report;
        drop_watcher(js, w);
        conn_set_exchange(c, NULL);
        if (report)
            report(js->s, c, NULL, 1);
        else
            conn_end(c);
    }
}

/* ---- functions that the server calls ---- */

static void write_line(struct server *s, const struct job *j)
{
    char path[64];
    snprintf(path, sizeof path, "/api/models/jobs/%s", j->id);
    const struct audit_entry x = { .time_ms = j->started_s * 1000, .request_id = j->request, .method = "JOB",
                                   .path = path,
                                   .status = j->state == JOB_DONE ? 200 : j->state == JOB_FAILED ? 500 : 499,
                                   .latency_ms = (double)(j->ended_s - j->started_s) * 1e3,
                                   .key_name = j->key[0] ? j->key : NULL, .client_ip = j->client, .model = j->source,
                                   .prompt_tokens = -1, .completion_tokens = -1,
                                   .error = j->state == JOB_DONE ? NULL : j->message };
    if (s->guard.audit)
        audit_log_add(s->guard.audit, &x, j->has_key, 1);
}

/* Load the model that a job made, in place of an older version. */
static void load_result(struct server *s, struct job *j)
{
    struct problem pr;
    struct loaded_model *old = s->models;
    if (s->sleep.level) {
        snprintf(j->message, sizeof j->message, "made, but not loaded: the server sleeps");
        return;
    }
    while (old && !(old->state == MODEL_READY && strcmp(old->path, j->path) == 0))
        old = old->next;
    if (!models_load(s, j->path, old ? old->id : NULL, old ? &old->how : NULL, old, &pr))
        snprintf(j->message, sizeof j->message, "made, but not loaded: %.480s", pr.message);
}

void jobs_events(struct server *s)
{
    struct jobs *js = s->jobs;
    if (!js || !atomic_load(&js->moved))
        return;
    int ended = 0;
    pthread_mutex_lock(&js->lock);
    for (struct job *j = js->list; j; j = j->next) {
        if (is_open(j) || j->told)
            continue;
        j->told = ended = 1;
        write_line(s, j);
        server_log(s, "job %s: %s: %s", j->id, j->source, j->state == JOB_DONE ? "done" : j->message);
        if (j->state == JOB_DONE && j->load && j->path && !s->draining)
            load_result(s, j);
    }
    pthread_mutex_unlock(&js->lock);
    const uint64_t now = clock_ns();
    if (!ended && now - js->told_ns < TELL_NS)
        return;                                 /* jobs_tick retries it */
    atomic_store(&js->moved, 0);
    js->told_ns = now;
    jobs_tell(js, NULL);
}

void jobs_tick(struct server *s)
{
    if (!s->jobs)
        return;
    jobs_events(s);
    end_streams(s->jobs, clock_ns());
}

int jobs_open(struct server *s, struct err *e)
{
    if (!s->o.maker.command)
        return 0;
    struct jobs *js = s->jobs = calloc(1, sizeof *js);
    if (!js)
        return err_nomem(e, "jobs");
    js->s = s;
    pthread_mutex_init(&js->lock, NULL);
    pthread_cond_init(&js->work, NULL);
    return 0;
}

void jobs_stop(struct server *s)
{
    if (!s->jobs || atomic_exchange(&s->jobs->stop, 1))
        return;
    pthread_mutex_lock(&s->jobs->lock);
    pthread_cond_signal(&s->jobs->work);
    pthread_mutex_unlock(&s->jobs->lock);
    end_streams(s->jobs, UINT64_MAX);
}

void jobs_join(struct server *s)
{
    struct jobs *js = s->jobs;
    if (!js)
        return;
    jobs_stop(s);
    if (js->started)
        pthread_join(js->thread, NULL);
    js->started = 0;
    atomic_store(&js->moved, 1);
    jobs_events(s);                             /* write the audit lines of jobs that have ended */
}

void jobs_close(struct server *s)
{
    struct jobs *js = s->jobs;
    if (!js)
        return;
    while (js->list)
        jobs_remove(js, js->list);
    pthread_cond_destroy(&js->work);
    pthread_mutex_destroy(&js->lock);
    free(js);
    s->jobs = NULL;
}
