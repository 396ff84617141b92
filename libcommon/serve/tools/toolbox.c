/* toolbox.c - the threads that run tools, and the queue of calls for them. */
#include "libcommon/serve/tools/toolbox.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/json.h"
#include "libcommon/base/thread.h"
#include "libcommon/serve/exchange.h"
#include "libcommon/serve/internal.h"
#include "libcommon/serve/tools/rag_tool.h"
#include "libcommon/tools/native.h"

/* OF_GROUP: most calls that run at the same time in each group (the built-in tools, each MCP
 * server), so that a server that never answers does not block all threads. */
enum { OF_GROUP = 4, MAX_THREADS = OF_GROUP * (1 + MCP_MAX_SERVERS), MAX_WAITING = 256, MAX_OF_TENANT = 64 };

/* One call.  The queue and the threads handle runs, the loop handles batches. */
struct tool_run {
    struct tool_run *next;              /* link in the queue, or in the list of finished runs */
    struct tool_batch *batch;           /* NULL: the batch was freed and the result is not needed; loop only */
    struct toolbox *box;                /* NULL: the loop has taken the run back; loop only */
    uint64_t tenant;
    int group;                          /* index of its MCP server + 1; 0: built in */
    char id[TOOL_ID_MAX + 1], name[TOOL_NAME_MAX + 1];
    json_t *arguments;                  /* owned */
    void *search;                       /* running search of documents, for rag_cancel; NULL: none; loop only */
    atomic_int cancelled;
    char *text;                         /* the result; owned; NULL: the error is in e */
    int is_error;                       /* text is an error message */
    struct err e;
    uint64_t start_ns, end_ns;
    int64_t at_ms;                      /* Unix time when it started */
    /* the client, for the audit log */
    char request[REQUEST_ID + 1], client[64], key[KEY_NAME_MAX + 1], *agent;
    int has_key;
};

struct tool_batch {
    int n, n_left;
    void (*result)(void *user, int i);
    void (*done)(void *user);
    void *user;
    struct tool_run *run[];             /* [n] */
};

struct toolbox {
    struct server *s;
    pthread_mutex_t lock;
    pthread_cond_t work;
    struct tool_run *first, *last;      /* the queue of runs */
    struct tool_run *done, **done_last; /* finished runs for the loop, oldest first */
    int n_waiting, n_threads, n_idle, stop;
    pthread_t thread[MAX_THREADS];
    int running[1 + MCP_MAX_SERVERS];   /* number of running calls of each group */
    struct tool_run *searches;          /* running calls of rag_search; loop only */
    struct toolset *tools;
};

/* ---- the list of tools ---- */

static int is_rag(const char *name) { return strcmp(name, rag_tool.name) == 0; }

int toolbox_find(struct toolbox *b, const char *name, struct tool_facts *facts)
{
    return toolset_find(b->tools, name, facts) || is_rag(name);
}

json_t *toolbox_servers(struct toolbox *b) { return toolset_servers(b->tools); }

json_t *toolbox_functions(struct toolbox *b, const json_t *wanted)
{
    json_t *list = toolset_functions(b->tools, wanted);
    if (!list || (wanted && !mcp_named(wanted, rag_tool.name)))
        return list;
    /* MCP tools come after the built-in ones */
    size_t i = 0;
    const json_t *f;
    while ((f = json_array_get(list, i)) && native_find(json_string_value(json_object_get(json_object_get(f, "function"), "name"))))
        i++;
    if (json_array_insert_new(list, i, native_function(&rag_tool)) == 0)
        return list;
    json_decref(list);
    return NULL;
}

json_t *toolbox_mcp_tools(struct toolbox *b)
{
    json_t *list = native_mcp_tools();
    (void)b;
    if (list && json_array_append_new(list, native_mcp_tool(&rag_tool)) == 0)
        return list;
    json_decref(list);
    return NULL;
}

/* ---- in the threads ---- */

/* Take the first run of the queue whose group may run another call.  The caller holds the lock. */
static struct tool_run *take_run(struct toolbox *b)
{
    struct tool_run **at = &b->first, *before = NULL, *r;
    while ((r = *at) && b->running[r->group] >= OF_GROUP) {
        before = r;
        at = &r->next;
    }
    if (!r)
        return NULL;
    *at = r->next;
    if (b->last == r)
        b->last = before;
    b->n_waiting--;
    b->running[r->group]++;
    return r;
}

static void *work(void *arg)
{
    struct toolbox *b = arg;
    pthread_mutex_lock(&b->lock);
    for (;;) {
        struct tool_run *r = NULL;
        b->n_idle++;
        while (!b->stop && !(r = take_run(b)))
            pthread_cond_wait(&b->work, &b->lock);
        b->n_idle--;
        if (b->stop && !r)
            break;
        pthread_mutex_unlock(&b->lock);
        r->start_ns = clock_ns();
        r->text = toolset_run(b->tools, r->name, r->arguments, &r->cancelled, &r->is_error, &r->e);
        r->end_ns = clock_ns();
        pthread_mutex_lock(&b->lock);
        b->running[r->group]--;
        pthread_cond_broadcast(&b->work);       /* a waiting run of this group may start now */
        r->next = NULL;
        *b->done_last = r;
        b->done_last = &r->next;
        loop_wake(b->s->loop);
    }
    pthread_mutex_unlock(&b->lock);
    return NULL;
}

/* ---- in the loop ---- */

static void run_free(struct tool_run *r)
{
    json_decref(r->arguments);
    free(r->text);
    free(r->agent);
    free(r);
}

static struct tool_run *run_new(struct server *s, const struct access_record *record, const struct tool_call *c)
{
    struct tool_run *r = calloc(1, sizeof *r);
    struct timespec now;
    if (!r)
        return NULL;
    clock_gettime(CLOCK_REALTIME, &now);
    r->at_ms = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
    r->box = s->toolbox;
    r->tenant = guard_tenant(record);
    r->group = 1 + toolset_server_of(s->toolbox->tools, c->name);
    snprintf(r->id, sizeof r->id, "%s", c->id);
    snprintf(r->name, sizeof r->name, "%s", c->name);
    if (record) {
        snprintf(r->request, sizeof r->request, "%s", record->id);
        snprintf(r->client, sizeof r->client, "%s", record->client);
        snprintf(r->key, sizeof r->key, "%s", record->has_key ? record->key.name :
                 record->is_admin ? "(admin.token)" : "");
        r->agent = record->agent ? strdup(record->agent) : NULL;
        r->has_key = record->by_key || record->is_admin;
    }
    r->arguments = json_deep_copy(c->arguments);
    /* if memory ran out, the copy lacks values */
    if (r->arguments && json_equal(r->arguments, c->arguments))
        return r;
    run_free(r);
    return NULL;
}

/* Start a thread if all are busy.  The caller holds the lock. */
static int more_threads(struct toolbox *b, int n)
{
    while (b->n_idle < n && b->n_threads < OF_GROUP * (1 + toolset_n_servers(b->tools))) {
        if (thread_start(&b->thread[b->n_threads], work, b) != 0)
            break;
        b->n_threads++;
        n--;
    }
    return b->n_threads > 0 ? 0 : -1;
}

/* Queue the runs, except searches of documents.  -1 with *e. */
static int queue(struct toolbox *b, struct tool_batch *batch, struct err *e)
{
    int rc = 0, of_tenant = 0, n = 0;
    for (int i = 0; i < batch->n; i++)
        n += !is_rag(batch->run[i]->name);
    pthread_mutex_lock(&b->lock);
    for (const struct tool_run *r = b->first; r; r = r->next)
        of_tenant += r->tenant == batch->run[0]->tenant;
    if (b->n_waiting + batch->n > MAX_WAITING || of_tenant + batch->n > MAX_OF_TENANT)
        rc = err_set(e, ERR_LIMIT, "%d calls of tools wait already, expected at most %d, %d of one client", b->n_waiting,
                     MAX_WAITING, MAX_OF_TENANT);
    else if (n && more_threads(b, n) != 0)
        rc = err_set(e, ERR_IO, "no thread for tools");
    for (int i = 0; rc == 0 && i < batch->n; i++) {
        struct tool_run *r = batch->run[i];
        if (is_rag(r->name))
            continue;
        if (b->first)
            b->last->next = r;
        else
            b->first = r;
        b->last = r;
        b->n_waiting++;
    }
    pthread_cond_broadcast(&b->work);
    pthread_mutex_unlock(&b->lock);
    return rc;
}

/* Pass a run that has ended, in a thread or in the loop, back to the loop. */
static void run_ended(struct toolbox *b, struct tool_run *r)
{
    pthread_mutex_lock(&b->lock);
    r->next = NULL;
    *b->done_last = r;
    b->done_last = &r->next;
    pthread_mutex_unlock(&b->lock);
    loop_wake(b->s->loop);
}

static void on_search(void *user, char *text, const struct err *e)
{
    struct tool_run *r = user, **at = &r->box->searches;
    while (*at != r)
        at = &(*at)->next;
    *at = r->next;
    r->search = NULL;
    r->text = text;
    r->e = *e;
    r->end_ns = clock_ns();
    run_ended(r->box, r);
}

static void start_search(struct server *s, const struct access_record *record, struct tool_run *r)
{
    r->start_ns = r->end_ns = clock_ns();
    if ((r->search = rag_tool_start(s, record, r->arguments, on_search, r, &r->e))) {
        r->next = s->toolbox->searches;
        s->toolbox->searches = r;
    } else {
        run_ended(s->toolbox, r);
    }
}

struct tool_batch *toolbox_start(struct server *s, const struct access_record *record, const struct tool_call *call,
                                 int n, void (*result)(void *user, int i), void (*done)(void *user), void *user,
                                 struct err *e)
{
    struct tool_batch *b = calloc(1, sizeof *b + (size_t)n * sizeof *b->run);
    if (!b) {
        err_nomem(e, "calls");
        return NULL;
    }
    *b = (struct tool_batch){ .n_left = n, .result = result, .done = done, .user = user };
    for (; b->n < n && (b->run[b->n] = run_new(s, record, &call[b->n])); b->n++)
        b->run[b->n]->batch = b;
    if (b->n < n)
        err_nomem(e, "calls");
    if (b->n == n && queue(s->toolbox, b, e) == 0) {
        for (int i = 0; i < n; i++)
            if (is_rag(b->run[i]->name))
                start_search(s, record, b->run[i]);
        return b;
    }
    for (int i = 0; i < b->n; i++)
        run_free(b->run[i]);
    free(b);
    return NULL;
}

int batch_size(const struct tool_batch *b) { return b->n; }

struct tool_result batch_result(const struct tool_batch *b, int i)
{
    const struct tool_run *r = b->run[i];
    const char *text = r->text ? r->text : r->e.msg;
    const double ms = (double)(r->end_ns - r->start_ns) * 1e-6;
    return (struct tool_result){ r->id, r->name, text, strlen(text), !r->text || r->is_error, ms };
}

void batch_cancel(struct tool_batch *b)
{
    for (int i = 0; i < b->n; i++) {
        atomic_store(&b->run[i]->cancelled, 1);
        if (b->run[i]->search)
            rag_cancel(b->run[i]->box->s, b->run[i]->search);
    }
}

void batch_free(struct tool_batch *b)
{
    if (!b)
        return;
    batch_cancel(b);
    for (int i = 0; i < b->n; i++) {
        if (!b->run[i]->box)                    /* run i was taken back already */
            run_free(b->run[i]);
        else
            b->run[i]->batch = NULL;
    }
    free(b);
}

static void write_line(struct server *s, const struct tool_run *r)
{
    char path[TOOL_NAME_MAX + 16], id[sizeof r->request + sizeof r->id + 1];
    struct tool_facts facts;
    /* the log omits names of unknown tools and messages, because they quote the client or the
     * model */
    const int known = toolbox_find(s->toolbox, r->name, &facts);
    const char *error = s->o.audit_prompts && !r->text ? r->e.msg : r->e.code == ERR_CANCELLED ? "cancelled" : "the tool reported an error";
    snprintf(path, sizeof path, "/api/tools/%s", known ? r->name : "(unknown)");
    snprintf(id, sizeof id, "%s/%s", r->request, r->id);
    const struct audit_entry x = { .time_ms = r->at_ms, .request_id = id, .method = "TOOL", .path = path,
                                   .status = r->text && !r->is_error ? 200 : r->e.code == ERR_CANCELLED ? 499 : 422,
                                   .latency_ms = (double)(r->end_ns - r->start_ns) * 1e-6,
                                   .key_name = r->key[0] ? r->key : NULL, .client_ip = r->client,
                                   .user_agent = r->agent, .prompt_tokens = -1,
                                   .completion_tokens = -1,
                                   .error = r->text && !r->is_error ? NULL : error };
    if (s->guard.audit)
        audit_log_add(s->guard.audit, &x, r->has_key, 1);
}

static void take_back(struct server *s, struct tool_run *r)
{
    struct tool_batch *b = r->batch;
    write_line(s, r);
    r->box = NULL;
    if (!b) {
        run_free(r);
        return;
    }
    int i = 0;
    while (b->run[i] != r)
        i++;
    b->n_left--;
    const int last = b->n_left == 0;
    if (b->result)
        b->result(b->user, i);          /* result must not free the batch; done may */
    if (last)
        b->done(b->user);
}

void tools_done(struct server *s)
{
    struct toolbox *b = s->toolbox;
    pthread_mutex_lock(&b->lock);
    struct tool_run *r = b->done;
    b->done = NULL;
    b->done_last = &b->done;
    pthread_mutex_unlock(&b->lock);
    for (struct tool_run *next; r; r = next) {
        next = r->next;
        take_back(s, r);
    }
}

/* ---- opening and closing ---- */

/* Log a change of a peer; called in the peer's thread. */
static void peer_changed(void *user, const char *name, const char *text)
{
    server_log(user, "MCP server %s: %s", name, text);
}

int tools_open(struct server *s, struct err *e)
{
    struct toolbox *b = calloc(1, sizeof *b);
    if (!b)
        return err_nomem(e, "tools");
    b->s = s;
    b->done_last = &b->done;
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->work, NULL);
    s->toolbox = b;
    b->tools = toolset_open(s->o.mcp_config, s->o.mcp_env, peer_changed, s, e);
    return b->tools ? 0 : -1;
}

void tools_close(struct server *s)
{
    struct toolbox *b = s->toolbox;
    if (!b)
        return;
    pthread_mutex_lock(&b->lock);
    b->stop = 1;
    pthread_cond_broadcast(&b->work);
    pthread_mutex_unlock(&b->lock);
    if (b->tools)
        toolset_stop(b->tools);
    for (int i = 0; i < b->n_threads; i++)
        pthread_join(b->thread[i], NULL);
    for (int k = 0; k < 3; k++)
        for (struct tool_run *r = k == 0 ? b->first : k == 1 ? b->done : b->searches, *next; r; r = next) {
            next = r->next;
            write_line(s, r);
            run_free(r);
        }
    toolset_close(b->tools);
    pthread_cond_destroy(&b->work);
    pthread_mutex_destroy(&b->lock);
    free(b);
    s->toolbox = NULL;
}
