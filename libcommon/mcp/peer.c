/* peer.c - the thread of a peer: connect, list tools, connect again; calls from other threads. */
#include "libcommon/mcp/peer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/json.h"
#include "libcommon/base/plural.h"
#include "libcommon/base/siphash.h"
#include "libcommon/base/thread.h"
#include "libcommon/base/utf8.h"
#include "libcommon/mcp/internal.h"

enum { FULL_NAME = 64, MAX_PAGES = 64, LONGEST_PAUSE_S = 64 };
/* Limits of a tool's schema and description, which would otherwise fill the prompt. */
enum { SCHEMA_DEPTH = 40, SCHEMA_BYTES = 64 << 10, DESCRIPTION_BYTES = 8 << 10 };
#define PROBE_S 10.0                    /* time for the answer to server/discover, including the start of the server */
#define CONNECT_S 60.0
#define RELIST_S 1.0                    /* least time between two requests for the list of tools */
#define FRESH_S 300.0                   /* the tools of a server at a URL are listed again after this time */

/* ---- requests ---- */

json_t *peer_message(struct mcp_peer *p, const char *method, const json_t *params, json_int_t id)
{
    json_t *m = json_pack("{s:s, s:s}", "jsonrpc", "2.0", "method", method),
           *all = params ? json_deep_copy(params) : json_object();
    int bad = !m || !all;
    if (id)
        bad |= json_object_set_new(m, "id", json_integer(id));
    if (p->modern)
        bad |= json_object_set_new(all, "_meta", json_pack("{s:s, s:o, s:{}}", MCP_META "protocolVersion", MCP_MODERN,
                                                           MCP_META "clientInfo", mcp_implementation(),
                                                           MCP_META "clientCapabilities"));
    bad |= json_object_set_new(m, "params", all);
    if (!bad)
        return m;
    json_decref(m);
    return NULL;
}

static void remove_pending(struct mcp_peer *p, struct pending *w)
{
    struct pending **at = &p->pending;
    while (*at != w)
        at = &(*at)->next;
    *at = w->next;
}

/* Wait for an answer.  Only the peer's thread reads messages; if the caller is that thread, it
 * reads them while it waits. */
static int wait_answer(struct mcp_peer *p, struct pending *w, double until, const atomic_int *cancelled, struct err *e)
{
    const int reads = pthread_equal(pthread_self(), p->thread);
    for (;;) {
        pthread_mutex_lock(&p->lock);
        if (!reads && !w->answer && !w->failed) {
            struct timespec t;
            clock_gettime(CLOCK_REALTIME, &t);
            t.tv_nsec += 100000000;
            t.tv_sec += t.tv_nsec / 1000000000;
            t.tv_nsec %= 1000000000;
            pthread_cond_timedwait(&p->news, &p->lock, &t);
        }
        const int done = w->answer != NULL, failed = w->failed;
        if (failed)
            err_set(e, ERR_IO, "%s", p->error);
        pthread_mutex_unlock(&p->lock);
        if (done || failed)
            return done ? 0 : -1;
        if (atomic_load(&p->stop) || (cancelled && atomic_load(cancelled)))
            return err_set(e, ERR_CANCELLED, "%s: cancelled", p->c->name);
        if (clock_s() > until)
            return err_set(e, ERR_LIMIT, "%s: no answer in time", p->c->name);
        if (reads && stdio_read(p, 100, e) != 0)
            return -1;
    }
}

static json_t *stdio_request(struct mcp_peer *p, json_t *message, json_int_t id, double timeout_s,
                             const atomic_int *cancelled, struct err *e)
{
    struct pending w = { .id = id };
    struct err ignored;
    pthread_mutex_lock(&p->lock);
    w.next = p->pending;
    p->pending = &w;
    pthread_mutex_unlock(&p->lock);
    int rc = stdio_write(p, message, timeout_s, e);
    const int written = rc == 0;
    if (rc == 0)
        rc = wait_answer(p, &w, clock_s() + timeout_s, cancelled, e);
    pthread_mutex_lock(&p->lock);
    remove_pending(p, &w);
    pthread_mutex_unlock(&p->lock);
    if (rc != 0 && written && !w.failed) {
        json_t *params = json_pack("{s:I, s:s}", "requestId", id, "reason", "no longer needed"),
               *cancel = peer_message(p, "notifications/cancelled", params, 0);
        if (cancel)
            stdio_write(p, cancel, 0.2, &ignored);
        json_decref(cancel);
        json_decref(params);
    }
    if (rc == 0)
        return w.answer;
    json_decref(w.answer);
    return NULL;
}

json_t *peer_request(struct mcp_peer *p, const char *method, const json_t *params, const json_t *schema,
                     double timeout_s, const atomic_int *cancelled, struct err *e)
{
    pthread_mutex_lock(&p->lock);
    const json_int_t id = ++p->next_id;
    pthread_mutex_unlock(&p->lock);
    json_t *message = peer_message(p, method, params, id), *answer = NULL;
    if (!message)
        err_nomem(e, p->c->name);
    else if (p->c->url)
        answer = http_request(p, method, message, schema, timeout_s, cancelled, e);
    else
        answer = stdio_request(p, message, id, timeout_s, cancelled, e);
    json_decref(message);
    return answer;
}

/* The result of a request: a new reference; NULL with *e, also if the server answers an error. */
static json_t *request(struct mcp_peer *p, const char *method, const json_t *params, double timeout_s, struct err *e)
{
    json_t *answer = peer_request(p, method, params, NULL, timeout_s, NULL, e), *result = js_get(answer, "result");
    const char *why = json_string_value(js_get(js_get(answer, "error"), "message"));
    json_incref(result);
    if (answer && !json_is_object(result)) {
        err_set(e, ERR_FORMAT, "%s: %s: %.200s", p->c->name, method, why ? why : "an answer without a result");
        json_decref(result);
        result = NULL;
    }
    json_decref(answer);
    return result;
}

/* ---- connecting ---- */

static int knows_modern(const json_t *versions)
{
    const json_t *v;
    size_t i;
    json_array_foreach(versions, i, v)
        if (json_is_string(v) && strcmp(json_string_value(v), MCP_MODERN) == 0)
            return 1;
    return 0;
}

/* Whether the server supports revision 2026-07-28.  -1 with *e: the server has ended. */
static int probe(struct mcp_peer *p, struct err *e)
{
    p->modern = 1;
    json_t *answer = peer_request(p, "server/discover", NULL, NULL, PROBE_S, NULL, e);
    const int gone = !answer && e->code != ERR_LIMIT && e->code != ERR_FORMAT;
    p->modern = knows_modern(js_get(js_get(answer, "result"), "supportedVersions"));
    json_decref(answer);
    return gone ? -1 : p->modern;
}

static int initialize(struct mcp_peer *p, struct err *e)
{
    struct err ignored;
    p->session[0] = p->version[0] = '\0';
    json_t *params = json_pack("{s:s, s:{}, s:o}", "protocolVersion", MCP_LEGACY, "capabilities", "clientInfo",
                               mcp_implementation()),
           *result = request(p, "initialize", params, CONNECT_S, e);
    const char *version = json_string_value(js_get(result, "protocolVersion"));
    int rc = result ? 0 : -1;
    if (result && !mcp_is_legacy(version))
        rc = err_set(e, ERR_UNSUPPORTED, "%s: the server speaks revision '%.20s', which is unknown", p->c->name,
                     version ? version : "?");
    if (rc == 0)
        snprintf(p->version, sizeof p->version, "%s", version);
    json_decref(params);
    json_decref(result);
    if (rc != 0)
        return -1;
    json_t *done = json_pack("{s:s, s:s}", "jsonrpc", "2.0", "method", "notifications/initialized");
    if (p->c->url)
        json_decref(http_request(p, "notifications/initialized", done, NULL, CONNECT_S, NULL, &ignored));
    else
        rc = stdio_write(p, done, PROBE_S, e);
    json_decref(done);
    return rc;
}

/* ---- tools ---- */

/* SERVER__TOOL in letters that a chat request allows; a name that is too long or has other letters
 * gets a hash of the whole at its end. */
static void full_name(const struct mcp_peer *p, const char *tool, char out[FULL_NAME + 1])
{
    char text[512];
    int changed = snprintf(text, sizeof text, "%s__%s", p->c->name, tool) > FULL_NAME;
    for (char *c = text; *c; c++)
        if (!strchr("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.", *c)) {
            *c = '_';
            changed = 1;
        }
    if (changed) {
        static const uint64_t key[2] = { 1, 2 };
        const uint64_t h = siphash(key, tool, strlen(tool));
        snprintf(out, FULL_NAME + 1, "%.55s_%08x", text, (unsigned)(h & 0xffffffff));
    } else {
        snprintf(out, FULL_NAME + 1, "%.*s", FULL_NAME, text);
    }
}

/* 1 if arrays and objects in v are nested at most `depth` levels deep. */
static int is_flat(const json_t *v, int depth)
{
    union { const json_t *in; json_t *out; } u = { .in = v };
    const json_t *item;
    const char *key;
    json_t *member;
    size_t i;
    if (!json_is_array(v) && !json_is_object(v))
        return 1;
    if (depth == 0)
        return 0;
    json_array_foreach(v, i, item)
        if (!is_flat(item, depth - 1))
            return 0;
    json_object_foreach(u.out, key, member)
        if (!is_flat(member, depth - 1))
            return 0;
    return 1;
}

/* The schema of a tool; one that is too large for a prompt becomes any object.  New reference;
 * NULL: out of memory. */
static json_t *bounded_schema(json_t *schema)
{
    const size_t n = is_flat(schema, SCHEMA_DEPTH) ? json_dumpb(schema, NULL, 0, JSON_COMPACT) : 0;
    return n && n <= SCHEMA_BYTES ? json_incref(schema) : json_pack("{s:s}", "type", "object");
}

static json_t *bounded_text(const json_t *text)
{
    const char *s = json_string_value(text);
    size_t n = json_string_length(text);
    if (n > DESCRIPTION_BYTES)
        n = DESCRIPTION_BYTES - utf8_incomplete(s, DESCRIPTION_BYTES);
    return json_stringn(s ? s : "", s ? n : 0);
}

static int add_tool(struct mcp_peer *p, json_t *list, const json_t *t, struct err *e)
{
    const char *name = json_string_value(js_get(t, "name"));
    json_t *schema = js_get(t, "inputSchema"), *hints = js_get(t, "annotations");
    const json_t *other;
    char full[FULL_NAME + 1];
    size_t i;
    if (!name || !*name || !json_is_object(schema))
        return err_set(e, ERR_FORMAT, "%s: tools/list: a tool without name or inputSchema", p->c->name);
    if (p->c->tools && !mcp_named(p->c->tools, name))
        return 0;
    if (json_array_size(list) == MCP_TOOLS_MAX)
        return err_set(e, ERR_LIMIT, "%s: more than %d tools: expected fewer, or a list in \"tools\"", p->c->name, MCP_TOOLS_MAX);
    full_name(p, name, full);
    json_array_foreach(list, i, other)
        if (strcmp(json_string_value(json_object_get(other, "full")), full) == 0)
            return 0;                           /* of tools with the same name, only the first is kept */
    const int read_only = json_is_true(js_get(hints, "readOnlyHint")),
              destructive = json_is_true(js_get(hints, "destructiveHint")) && !read_only,
              approved = mcp_named(p->c->auto_approve, name),
              confirm = (destructive || mcp_named(p->c->confirm, name)) && !approved;
    json_t *entry = json_pack("{s:s, s:s, s:o, s:o, s:b, s:b, s:b, s:b}", "full", full, "name", name, "description",
                              bounded_text(js_get(t, "description")), "inputSchema", bounded_schema(schema), "readOnly", read_only, "destructive", destructive,
                              "confirm", confirm, "approved", approved);
    return json_array_append_new(list, entry) == 0 ? 0 : err_nomem(e, p->c->name);
}

static int list_tools(struct mcp_peer *p, struct err *e)
{
    json_t *list = json_array(), *params = json_object(), *t;
    int rc = list && params ? 0 : err_nomem(e, p->c->name), more = 1;
    for (int page = 0; rc == 0 && more; page++) {
        json_t *result = request(p, "tools/list", params, CONNECT_S, e), *next = js_get(result, "nextCursor");
        size_t i;
        rc = !result ? -1 : page == MAX_PAGES ? err_set(e, ERR_LIMIT, "%s: tools/list: more than %d pages", p->c->name,
                                                        MAX_PAGES) : 0;
        json_array_foreach(js_get(result, "tools"), i, t)
            if (rc == 0)
                rc = add_tool(p, list, t, e);
        more = json_is_string(next);
        if (more && json_object_set(params, "cursor", next) != 0)
            rc = err_nomem(e, p->c->name);
        json_decref(result);
    }
    json_decref(params);
    if (rc != 0) {
        json_decref(list);
        return -1;
    }
    pthread_mutex_lock(&p->lock);
    json_decref(p->tools);
    p->tools = list;
    pthread_mutex_unlock(&p->lock);
    return 0;
}

/* ---- the thread ---- */

/* Copy a reason without control characters: it may quote the server, and goes to logs. */
static void copy_plain(char *out, size_t room, const char *text)
{
    size_t n = 0;
    for (; *text && n + 1 < room; text++) {
        const unsigned char c = (unsigned char)*text, next = (unsigned char)text[1];
        const int c1 = c == 0xC2 && next >= 0x80 && next < 0xA0;        /* U+009B is like ESC [ */
        out[n++] = c < ' ' || c == 0x7f || c1 ? '?' : *text;
        text += c1;
    }
    out[n] = '\0';
}

/* Set the state.  reason NULL: keep the last reason, which is shown while the server starts
 * again. */
static void set_state(struct mcp_peer *p, enum mcp_state state, const char *reason)
{
    char text[400], plain[sizeof p->error];
    const char *why = reason ? plain : NULL;
    copy_plain(plain, sizeof plain, reason ? reason : "");
    pthread_mutex_lock(&p->lock);
    p->state = state;
    if (why)
        snprintf(p->error, sizeof p->error, "%s", why);
    if (state == MCP_FAILED)
        for (struct pending *w = p->pending; w; w = w->next)
            w->failed = 1;
    snprintf(text, sizeof text, "ready, %zu tool%s, revision %s", json_array_size(p->tools),
             plural((int64_t)json_array_size(p->tools)), p->modern ? MCP_MODERN : p->version);
    pthread_cond_broadcast(&p->news);
    pthread_mutex_unlock(&p->lock);
    /* if a server fails in the same way again and again, report it only once */
    const char *said = state == MCP_READY ? text : why;
    if (!said || strcmp(p->said, said) == 0 || !p->changed || atomic_load(&p->stop))
        return;
    snprintf(p->said, sizeof p->said, "%.299s", said);
    p->changed(p->user, p->c->name, said);
}

static int connect_peer(struct mcp_peer *p, struct err *e)
{
    e->code = ERR_NONE;
    p->session[0] = '\0';
    if (!p->c->url && stdio_open(p, e) != 0)
        return -1;
    const int modern = p->no_probe ? 0 : probe(p, e);
    /* an old server may exit on an unknown message: the next attempt sends none */
    p->no_probe = modern < 0 && !p->c->url;
    if (modern < 0 || (!modern && initialize(p, e) != 0))
        return -1;
    return list_tools(p, e);
}

/* 1 if the tools have to be listed again: the server said that they have changed, or (at a URL)
 * FRESH_S have passed since `listed`. */
static int take_stale(struct mcp_peer *p, double listed)
{
    if (clock_s() < listed + RELIST_S)
        return 0;
    pthread_mutex_lock(&p->lock);
    const int stale = p->stale || (p->c->url && clock_s() > listed + FRESH_S);
    p->stale = 0;
    pthread_mutex_unlock(&p->lock);
    return stale;
}

/* A request failed.  If it could not be written because the server has ended, replace *e by how it
 * ended, which is known at the end of its output. */
static void describe_failure(struct mcp_peer *p, struct err *e)
{
    enum { MOST_READS = 10 };
    struct err end;
    for (int i = 0; !p->c->url && i < MOST_READS; i++)
        if (stdio_read(p, 100, &end) != 0) {
            *e = end;
            return;
        }
}

/* While the server works: read, and list the tools again when they have changed. */
static void attend(struct mcp_peer *p, struct err *e)
{
    double listed = clock_s();
    while (!atomic_load(&p->stop)) {
        if (p->c->url)
            nanosleep(&(struct timespec){ .tv_nsec = 100000000 }, NULL);
        else if (stdio_read(p, 100, e) != 0)
            return;
        if (!take_stale(p, listed))
            continue;
        if (p->c->url && !p->modern && initialize(p, e) != 0)           /* its session may have ended */
            return;
        if (list_tools(p, e) != 0) {
            describe_failure(p, e);
            return;
        }
        listed = clock_s();
    }
}

static void *run(void *arg)
{
    struct mcp_peer *p = arg;
    int pause_s = 1;
    pthread_mutex_lock(&p->lock);               /* p->thread is set now */
    pthread_mutex_unlock(&p->lock);
    while (!atomic_load(&p->stop)) {
        struct err e = { .msg = "" };
        const double began = clock_s();
        if (connect_peer(p, &e) == 0) {
            set_state(p, MCP_READY, "");
            attend(p, &e);
        } else if (e.code == ERR_IO && p->child.pid > 0) {
            describe_failure(p, &e);
        }
        set_state(p, MCP_FAILED, e.msg);
        if (!p->c->url) {
            stdio_close(p);
            set_state(p, MCP_FAILED, e.msg);    /* for requests that came in meanwhile */
        }
        pause_s = clock_s() - began > LONGEST_PAUSE_S ? 1 : pause_s;
        for (double until = clock_s() + pause_s; clock_s() < until && !atomic_load(&p->stop);)
            nanosleep(&(struct timespec){ .tv_nsec = 50000000 }, NULL);
        pause_s = pause_s < LONGEST_PAUSE_S ? 2 * pause_s : LONGEST_PAUSE_S;
        if (!atomic_load(&p->stop))
            set_state(p, MCP_STARTING, NULL);
    }
    return NULL;
}

struct mcp_peer *mcp_peer_open(const struct mcp_server_config *c, const char *const *env,
                               void (*changed)(void *user, const char *name, const char *text), void *user,
                               struct err *e)
{
    struct mcp_peer *p = calloc(1, sizeof *p);
    if (!p) {
        err_nomem(e, c->name);
        return NULL;
    }
    *p = (struct mcp_peer){ .c = c, .base_env = env, .changed = changed, .user = user, .child = { -1, -1, -1, -1 } };
    pthread_mutex_init(&p->lock, NULL);
    pthread_mutex_init(&p->writing, NULL);
    pthread_cond_init(&p->news, NULL);
    pthread_mutex_lock(&p->lock);
    const int rc = thread_start(&p->thread, run, p);
    pthread_mutex_unlock(&p->lock);
    if (rc == 0)
        return p;
    err_set(e, ERR_IO, "thread: %s", strerror(rc));
    free(p);
    return NULL;
}

void mcp_peer_stop(struct mcp_peer *p) { atomic_store(&p->stop, 1); }

void mcp_peer_close(struct mcp_peer *p)
{
    if (!p)
        return;
    atomic_store(&p->stop, 1);
    pthread_join(p->thread, NULL);
    json_decref(p->tools);
    pthread_cond_destroy(&p->news);
    pthread_mutex_destroy(&p->writing);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

/* ---- for other threads ---- */

const struct mcp_server_config *mcp_peer_config(const struct mcp_peer *p) { return p->c; }

enum mcp_state mcp_peer_state(struct mcp_peer *p, int *n_tools, char why[300])
{
    pthread_mutex_lock(&p->lock);
    const enum mcp_state state = p->state;
    *n_tools = (int)json_array_size(p->tools);
    snprintf(why, 300, "%s", p->error);
    pthread_mutex_unlock(&p->lock);
    return state;
}

json_t *mcp_peer_tools(struct mcp_peer *p)
{
    pthread_mutex_lock(&p->lock);
    json_t *list = p->tools ? json_deep_copy(p->tools) : json_array();
    pthread_mutex_unlock(&p->lock);
    return list;
}

json_t *mcp_peer_tool(struct mcp_peer *p, const char *full)
{
    json_t *t, *found = NULL;
    size_t i;
    pthread_mutex_lock(&p->lock);
    json_array_foreach(p->tools, i, t)
        if (!found && strcmp(json_string_value(json_object_get(t, "full")), full) == 0)
            found = json_deep_copy(t);
    pthread_mutex_unlock(&p->lock);
    return found;
}

/* Is the server ready?  If not, wait a little: it may be restarting. */
static int await_ready(struct mcp_peer *p, const atomic_int *cancelled, struct err *e)
{
    for (const double until = clock_s() + 3;;) {
        pthread_mutex_lock(&p->lock);
        const enum mcp_state state = p->state;
        if (state == MCP_FAILED)
            err_set(e, ERR_IO, "%s", p->error);
        pthread_mutex_unlock(&p->lock);
        if (state == MCP_READY)
            return 0;
        if (state == MCP_FAILED)
            return -1;
        if (clock_s() > until || atomic_load(cancelled) || atomic_load(&p->stop))
            return err_set(e, ERR_IO, "%s: the server is still starting", p->c->name);
        nanosleep(&(struct timespec){ .tv_nsec = 20000000 }, NULL);
    }
}

char *mcp_peer_call(struct mcp_peer *p, const char *full, const json_t *arguments, const atomic_int *cancelled,
                    int *is_error, struct err *e)
{
    json_t *tool = mcp_peer_tool(p, full), *params = NULL, *answer = NULL;
    union { const json_t *in; json_t *out; } u = { .in = arguments };
    char *text = NULL;
    if (!tool)
        err_set(e, ERR_FORMAT, "the server %s has no tool '%.80s' any more", p->c->name, full);
    else if (await_ready(p, cancelled, e) == 0 &&
             !(params = json_pack("{s:O, s:O}", "name", json_object_get(tool, "name"), "arguments", u.out)))
        err_nomem(e, p->c->name);
    if (params)
        answer = peer_request(p, "tools/call", params, json_object_get(tool, "inputSchema"), p->c->timeout_s, cancelled, e);
    const json_t *why = js_get(js_get(answer, "error"), "message");
    if (answer && js_get(answer, "result"))
        text = result_text(js_get(answer, "result"), is_error, e);
    else if (answer)
        err_set(e, ERR_FORMAT, "%s: %.300s", p->c->name, json_is_string(why) ? json_string_value(why) : "a malformed answer");
    else if (e->code == ERR_LIMIT)
        err_set(e, ERR_LIMIT, "%s: no answer within %g s", p->c->name, p->c->timeout_s);
    json_decref(answer);
    json_decref(params);
    json_decref(tool);
    return text;
}
