/* access_endpoints.c - /api/keys and /api/audit.
 *
 * Each request, a query or a change, is served by a thread of its own (struct access_report), so
 * that the event loop never waits: a query of the audit log may read gigabytes, and the file of
 * keys may be locked by another program or lie on a slow disk.  One query of the audit log runs at
 * a time. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "libcommon/access/audit_query.h"
#include "libcommon/serve/exchange.h"
#include "libcommon/serve/internal.h"

enum report_kind { REPORT_SUMMARY, REPORT_QUERY, REPORT_STATS, REPORT_CLEAR, KEYS_LIST, KEYS_CREATE, KEYS_DELETE,
                   KEYS_ENABLE, KEYS_ROTATE, KEYS_REQUIRED };
enum { MAX_KEY_REPORTS = 16 };

struct access_report {
    struct exchange exchange;
    struct access_report *next;
    enum report_kind kind;
    struct server *s;
    struct conn *conn;                  /* NULL: the client has disconnected */
    pthread_t thread;
    atomic_int done;
    const char *folder;
    double hours;
    int limit, all;
    struct audit_filter filter;
    char key[128], path[256], method[16];
    struct key_info info;               /* for KEYS_*: the key to create or change */
    int enabled;                        /* for KEYS_ENABLE */
    int required; /* whether keys are required after KEYS_REQUIRED or KEYS_CREATE (the first key sets it) */
    int outlived;                       /* KEYS_CREATE: another request has since deleted a key of this name */
    json_t *answer;                     /* NULL: the error is in e */
    struct err e;
};

/* ---- keys, in the thread ---- */

static json_t *count_or_null(int64_t n) { return n ? json_integer(n) : json_null(); }

static json_t *key_object(struct usage *usage, const struct key_info *k)
{
    char scopes[32];
    struct usage_stats u;
    usage_read(usage, k->id, &k->limit, &u);
    return json_pack("{s:s,s:I,s:o,s:s,s:s,s:b,s:o,s:o,s:o,s:o,s:I,s:I,s:I}", "name", k->name, "created_at",
                     (json_int_t)k->created_s, "expires_at", count_or_null(k->expires_s),
                     "scopes", key_scopes_text(k->scopes, scopes), "models", k->models, "enabled", k->enabled,
                     "rate_limit", count_or_null(k->limit.requests_minute), "token_limit_minute",
                     count_or_null(k->limit.tokens_minute), "token_limit_day", count_or_null(k->limit.tokens_day),
                     "last_used", count_or_null(u.last_used_ms / 1000), "request_count", (json_int_t)u.requests,
                     "token_count", (json_int_t)u.tokens, "current", (json_int_t)u.requests_minute);
}

static json_t *list_keys(struct access_report *r, struct keys *k)
{
    struct key_info *list;
    int n, required;
    /* counters in a database are read there, as this server knows only keys that it serves */
    struct usage *shared = r->s->o.keys_url ? usage_open_shared(&r->e) : NULL;
    if ((r->s->o.keys_url && !shared) || keys_list(k, &list, &n, &r->e)) {
        usage_close(shared);
        return NULL;
    }
    json_t *keys = keys_required(k, &required, &r->e) == 0 &&
                   (!shared || keys_read_usage(k, shared, list, n, &r->e) == 0) ? json_array() : NULL;
    for (int i = 0; keys && i < n; i++)
        json_array_append_new(keys, key_object(shared ? shared : r->s->guard.usage, &list[i]));
    usage_close(shared);
    free(list);
    return keys ? json_pack("{s:b,s:o}", "enabled", required, "keys", keys) : NULL;
}

static json_t *create_key(struct access_report *r, struct keys *k)
{
    char text[KEY_TEXT + 1];
    if (keys_create(k, &r->info, text, &r->e))
        return NULL;
    r->required = keys_known_required(k);
    return json_pack("{s:b,s:s,s:s}", "success", 1, "name", r->info.name, "key", text);
}

static json_t *delete_key(struct access_report *r, struct keys *k)
{
    char name[KEY_NAME_MAX + 1];
    strcpy(name, r->info.name);
    return keys_find(k, name, &r->info, &r->e) ||
           keys_delete(k, name, &r->e) ? NULL : json_pack("{s:b,s:s}", "success", 1, "name", name);
}

static json_t *enable_key(struct access_report *r, struct keys *k)
{
    const char *name = r->info.name;
    if (keys_set_enabled(k, name, r->enabled, &r->e) || keys_find(k, name, &r->info, &r->e))
        return NULL;
    return json_pack("{s:b,s:s,s:b}", "success", 1, "name", name, "enabled", r->enabled);
}

static json_t *rotate_key(struct access_report *r, struct keys *k)
{
    char text[KEY_TEXT + 1];
    const char *name = r->info.name;
    if (keys_rotate(k, name, text, &r->e) || keys_find(k, name, &r->info, &r->e))
        return NULL;
    return json_pack("{s:b,s:s,s:s}", "success", 1, "name", name, "key", text);
}

static json_t *require_keys(struct access_report *r, struct keys *k)
{
    return keys_set_required(k, r->required, &r->e) ? NULL
                                                    : json_pack("{s:b,s:b}", "success", 1, "enabled", r->required);
}

static json_t *ask_keys(struct access_report *r)
{
    struct keys *k = keys_open_again(r->s->o.keys_url ? r->s->o.keys_url : r->s->o.home, &r->e);
    if (!k)
        return NULL;
    static json_t *(*const changes[])(struct access_report *r, struct keys *k) = {
        [KEYS_LIST] = list_keys, [KEYS_CREATE] = create_key, [KEYS_DELETE] = delete_key, [KEYS_ENABLE] = enable_key,
        [KEYS_ROTATE] = rotate_key, [KEYS_REQUIRED] = require_keys,
    };
    json_t *answer = changes[r->kind](r, k);
    keys_close(k);
    return answer;
}

/* ---- the audit log, in the thread ---- */

static json_t *newest(struct access_report *r)
{
    struct audit_scan scan;
    char **lines;
    int n;
    if (audit_newest(r->folder, &r->filter, r->limit, &lines, &n, &scan, &r->e))
        return NULL;
    json_t *list = json_array();
    for (int i = 0; i < n; i++) {
        json_t *o = json_loads(lines[i], 0, NULL);
        if (o)
            json_array_append_new(list, o);
        free(lines[i]);
    }
    free(lines);
    return json_pack("{s:i,s:o}", "count", (int)json_array_size(list), "entries", list);
}

static json_t *clear(struct access_report *r)
{
    uint64_t n;
    if (audit_clear(r->folder, r->all, &n, &r->e))
        return NULL;
    return json_pack("{s:s,s:b,s:I}", "status", "cleared", "all_logs", r->all, "lines", (json_int_t)n);
}

static void *make_report(void *user)
{
    struct access_report *r = user;
    switch (r->kind) {
    case REPORT_SUMMARY: r->answer = audit_summary(r->folder, r->hours, 0, &r->e); break;
    case REPORT_QUERY:   r->answer = newest(r); break;
    case REPORT_STATS:   r->answer = audit_files_json(r->folder, &r->e); break;
    case REPORT_CLEAR:   r->answer = clear(r); break;
    case KEYS_LIST: case KEYS_CREATE: case KEYS_DELETE: case KEYS_ENABLE: case KEYS_ROTATE: case KEYS_REQUIRED:
        r->answer = ask_keys(r);
        break;
    }
    if (!r->answer && r->e.code == ERR_NONE)
        err_nomem(&r->e, "answer");
    atomic_store(&r->done, 1);
    loop_wake(r->s->loop);
    return NULL;
}

/* ---- in the loop ---- */

static int is_of_keys(const struct access_report *r) { return r->kind >= KEYS_LIST; }

static void start_report(struct server *s, struct conn *c, struct access_report *r)
{
    int same = 0;
    for (const struct access_report *o = s->guard.reports; o; o = o->next)
        same += is_of_keys(o) == is_of_keys(r);
    r->exchange.kind = EXCHANGE_REPORT;
    r->s = s;
    r->conn = c;
    r->folder = s->o.audit_folder;
    if (!is_of_keys(r) && same)
        reply_refusal(s, c, 503, "busy", "another question to the audit log is being answered");
    else if (same >= MAX_KEY_REPORTS)
        reply_refusal(s, c, 503, "busy", "%d questions and changes to the keys are waiting for their file, expected at most %d", same, MAX_KEY_REPORTS);
    else if (pthread_create(&r->thread, NULL, make_report, r) != 0)
        reply_refusal(s, c, 503, NULL, "no thread available");
    else {
        r->next = s->guard.reports;
        s->guard.reports = r;
        conn_set_exchange(c, r);
        return;
    }
    free(r);
}

static json_t *remote_object(struct server *s, enum audit_remote which)
{
    struct audit_remote_stats r;
    if (!audit_log_remote_stats(s->guard.audit, which, &r))
        return json_null();
    return json_pack("{s:I,s:I,s:i,s:o}", "sent", (json_int_t)r.sent, "dropped", (json_int_t)r.dropped, "waiting",
                     r.waiting, "last_error", r.last_error[0] ? json_string(r.last_error) : json_null());
}

static void add_counters(struct server *s, json_t *o)
{
    struct audit_stats a;
    audit_log_stats(s->guard.audit, &a);
    json_object_set_new(o, "buffer_entries", json_integer(a.recent));
    json_object_set_new(o, "written", json_integer((json_int_t)a.entries));
    json_object_set_new(o, "waiting", json_integer(audit_log_waiting(s->guard.audit)));
    json_object_set_new(o, "errors", json_integer((json_int_t)a.errors));
    json_object_set_new(o, "rotations", json_integer((json_int_t)a.rotations));
    json_object_set_new(o, "syslog", remote_object(s, REMOTE_SYSLOG));
    json_object_set_new(o, "url", remote_object(s, REMOTE_URL));
    json_object_set_new(o, "last_error", a.last_error[0] ? json_string(a.last_error) : json_null());
}

static void refuse_report(struct server *s, const struct access_report *r)
{
    if (r->e.code != ERR_FORMAT || r->kind == KEYS_LIST || r->kind == KEYS_REQUIRED || !is_of_keys(r))
        reply_refusal(s, r->conn, 503, NULL, "%s", r->e.msg);
    else if (r->kind == KEYS_CREATE)
        reply_refusal(s, r->conn, 409, "key_not_made", "%s", r->e.msg);
    else
        reply_refusal(s, r->conn, 404, "no_such_key", "%s", r->e.msg);
}

/* Apply a change to the keys in memory before the request is answered, because the file of keys may
 * be locked and so cannot always be reread immediately. */
static void apply(struct server *s, struct access_report *r)
{
    struct guard *g = &s->guard;
    struct err ignored;
    if (is_of_keys(r))
        g->refreshed_ns = 0;                    /* read the file again at the next request */
    if (!r->answer)
        return;
    if (r->kind == KEYS_DELETE) {
        keys_forget(g->keys, r->info.id);
        usage_drop(g->usage, r->info.id);
        for (struct access_report *o = g->reports; o; o = o->next)
            o->outlived |= o->kind == KEYS_CREATE && strcmp(o->info.name, r->info.name) == 0;
    }
    if (r->kind == KEYS_ROTATE || (r->kind == KEYS_ENABLE && !r->enabled))
        keys_forget(g->keys, r->info.id);       /* the old key is invalid from now on */
    if ((r->kind == KEYS_CREATE && !r->outlived) || r->kind == KEYS_ROTATE)
        /* if memory runs out here, the next refresh adds the key */
        keys_learn(g->keys, &r->info, json_string_value(json_object_get(r->answer, "key")), &ignored);
    if (r->kind == KEYS_REQUIRED || (r->kind == KEYS_CREATE && r->required))
        keys_learn_required(g->keys, r->required);
}

/* Answer a finished report, which is no longer in the list. */
static void end_report(struct server *s, struct access_report *r)
{
    pthread_join(r->thread, NULL);
    apply(s, r);
    if (r->conn && r->answer) {
        if (r->kind == REPORT_STATS)
            add_counters(s, r->answer);
        reply_object(s, r->conn, 200, r->answer);
        r->answer = NULL;
    } else if (r->conn) {
        refuse_report(s, r);
    }
    json_decref(r->answer);
    free(r);
}

void guard_reports(struct server *s)
{
    for (struct access_report **at = &s->guard.reports, *r; (r = *at);) {
        if (!atomic_load(&r->done)) {
            at = &r->next;
            continue;
        }
        *at = r->next;
        end_report(s, r);
    }
}

void report_gone(struct conn *c) { ((struct access_report *)conn_exchange(c))->conn = NULL; }

int guard_close(struct server *s)
{
    struct guard *g = &s->guard;
    for (struct access_report *r; (r = g->reports);) {
        g->reports = r->next;
        pthread_join(r->thread, NULL);
        json_decref(r->answer);
        free(r);
    }
    const int rc = guard_finish_audit(s);
    audit_log_close(g->audit);
    keys_close(g->keys);                    /* its thread uses the counters */
    usage_close(g->usage);
    address_limits_close(g->anonymous);
    address_limits_close(g->refused);
    return rc;
}

/* ---- keys, the routes ---- */

/* Start a report about keys; NULL: refused, and the client has the answer. */
static struct access_report *keys_report(struct server *s, struct conn *c, enum report_kind kind)
{
    struct access_report *r = s->guard.keys ? calloc(1, sizeof *r) : NULL;
    if (!s->guard.keys)
        reply_refusal(s, c, 400, "no_keys", s->o.no_auth ? "the server was started with --no-auth: it has no keys"
                                                         : "there is no folder for keys ($ZSE_HOME)");
    else if (!r)
        reply_refusal(s, c, 503, NULL, "out of memory");
    else
        r->kind = kind;
    return r;
}

void handle_keys(struct server *s, struct conn *c, const char *rest)
{
    struct access_report *r = keys_report(s, c, KEYS_LIST);
    (void)rest;
    if (r)
        start_report(s, c, r);
}

/* Read the body into *k.  0: refused, and the client has the answer. */
static int read_key(struct server *s, struct conn *c, const struct params *p, struct key_info *k)
{
    struct err e;
    *k = (struct key_info){ .scopes = SCOPE_CHAT | SCOPE_EMBEDDINGS,
                            .limit = { p->rate_limit, p->token_limit_minute, p->token_limit_day },
                            .expires_s = (int64_t)p->expires_at };
    if (!p->name || strlen(p->name) > KEY_NAME_MAX)
        reply_refusal(s, c, 400, "missing", "name: %s, expected 1 to %d characters", p->name ? "too long" : "missing",
                      KEY_NAME_MAX);
    else if (p->scopes && key_scopes_parse(p->scopes, &k->scopes, &e))
        reply_refusal(s, c, 400, "invalid_value", "scopes: %s", e.msg);
    else if (p->models && strlen(p->models) >= sizeof k->models)
        reply_refusal(s, c, 400, "invalid_value", "models: %zu bytes, expected at most %zu", strlen(p->models),
                      sizeof k->models - 1);
    else {
        strcpy(k->name, p->name);
        strcpy(k->models, p->models ? p->models : "");
        return 1;
    }
    return 0;
}

void handle_key_create(struct server *s, struct conn *c, const char *rest)
{
    struct params p = { 0 };
    struct access_report *r = keys_report(s, c, KEYS_CREATE);
    json_t *body = r ? read_body(s, c, BODY_KEY, &p) : NULL;
    (void)rest;
    if (body && read_key(s, c, &p, &r->info))
        start_report(s, c, r);
    else
        free(r);
    json_decref(body);
}

/* Start a report about the key of this name, of n bytes.  NULL: refused, and the client has the
 * answer. */
static struct access_report *named_report(struct server *s, struct conn *c, enum report_kind kind, const char *name,
                                          size_t n)
{
    struct access_report *r = keys_report(s, c, kind);
    if (r && n > KEY_NAME_MAX) {
        reply_refusal(s, c, 404, "no_such_key", "there is no key '%.80s...'", name);
        free(r);
        return NULL;
    }
    if (r)
        snprintf(r->info.name, sizeof r->info.name, "%.*s", (int)n, name);
    return r;
}

void handle_key_delete(struct server *s, struct conn *c, const char *rest)
{
    struct access_report *r = named_report(s, c, KEYS_DELETE, rest, strlen(rest));
    if (r)
        start_report(s, c, r);
}

void handle_key_rotate(struct server *s, struct conn *c, const char *rest)
{
    struct access_report *r = named_report(s, c, KEYS_ROTATE, rest, strcspn(rest, "/"));
    if (r)
        start_report(s, c, r);
}

void handle_key_enable(struct server *s, struct conn *c, const char *rest)
{
    struct params p = { .enabled = -1 };
    struct access_report *r = named_report(s, c, KEYS_ENABLE, rest, strlen(rest));
    json_t *body = r ? read_body(s, c, BODY_ENABLE, &p) : NULL;
    if (body && p.enabled < 0)
        reply_refusal(s, c, 400, "missing", "enabled: missing");
    else if (body) {
        r->enabled = p.enabled;
        start_report(s, c, r);
        r = NULL;
    }
    free(r);
    json_decref(body);
}

void handle_keys_required(struct server *s, struct conn *c, const char *rest)
{
    struct params p = { .enabled = -1 };
    struct access_report *r = keys_report(s, c, KEYS_REQUIRED);
    json_t *body = r ? read_body(s, c, BODY_ENABLE, &p) : NULL;
    (void)rest;
    if (body && p.enabled < 0)
        reply_refusal(s, c, 400, "missing", "enabled: missing");
    else if (body && !p.enabled && (s->draining || !loop_is_local(s->loop)))
        reply_refusal(s, c, 409, "not_allowed", "this server is reachable from other machines: without keys only with --no-auth");
    else if (body) {
        r->required = p.enabled;
        start_report(s, c, r);
        r = NULL;
    }
    free(r);
    json_decref(body);
}

/* ---- the audit log, the routes ---- */

/* Set *out to a number from the query string, or to the default.  0: refused as out of range. */
static int query_number(struct server *s, struct conn *c, const char *name, double least, double most, double otherwise,
                        double *out)
{
    char text[64], *end;
    *out = otherwise;
    if (!http_query_has(conn_request(c), name))
        return 1;
    if (!http_query(conn_request(c), name, text, sizeof text))
        *text = '\0';
    *out = strtod(text, &end);
    if (end != text && !*end && *out >= least && *out <= most)
        return 1;
    reply_refusal(s, c, 400, "out_of_range", "%s: '%.40s', expected %g to %g", name, text, least, most);
    return 0;
}

/* Set *out to a text from the query string, copied to text [room]; NULL: there is none.  0: refused
 * as too long. */
static int query_text(struct server *s, struct conn *c, const char *name, char *text, size_t room, const char **out)
{
    *out = http_query(conn_request(c), name, text, room);
    if (*out || !http_query_has(conn_request(c), name))
        return 1;
    reply_refusal(s, c, 400, "invalid_value", "%s: expected at most %zu bytes", name, room - 1);
    return 0;
}

static struct access_report *new_report(struct server *s, struct conn *c, enum report_kind kind)
{
    struct access_report *r = s->guard.audit ? calloc(1, sizeof *r) : NULL;
    if (!s->guard.audit)
        reply_refusal(s, c, 404, "no_audit", "nothing is logged (--no-audit)");
    else if (!r)
        reply_refusal(s, c, 503, NULL, "out of memory");
    else
        r->kind = kind;
    return r;
}

void handle_audit_summary(struct server *s, struct conn *c, const char *rest)
{
    double hours;
    (void)rest;
    struct access_report *r = query_number(s, c, "hours", 0.001, 720, 24, &hours) ? new_report(s, c, REPORT_SUMMARY)
                                                                                  : NULL;
    if (!r)
        return;
    r->hours = hours;
    start_report(s, c, r);
}

void handle_audit_query(struct server *s, struct conn *c, const char *rest)
{
    const char *key, *path, *method;
    double hours, limit, status, latency;
    (void)rest;
    if (!query_number(s, c, "hours", 0.001, 1e6, 24, &hours) || !query_number(s, c, "limit", 1, 1000, 100, &limit) ||
        !query_number(s, c, "status", 1, 599, 0, &status) || !query_number(s, c, "min_latency", 0, 1e12, 0, &latency))
        return;
    struct access_report *r = new_report(s, c, REPORT_QUERY);
    if (!r)
        return;
    if (!query_text(s, c, "key", r->key, sizeof r->key, &key) ||
        !query_text(s, c, "path", r->path, sizeof r->path, &path) ||
        !query_text(s, c, "method", r->method, sizeof r->method, &method)) {
        free(r);
        return;
    }
    r->limit = (int)limit;
    r->filter = (struct audit_filter){ .since_ms = (int64_t)time(NULL) * 1000 - (int64_t)(hours * 3600e3),
                                       .status = (int)status, .min_latency_ms = latency,
                                       .key_name = key, .path = path, .method = method };
    start_report(s, c, r);
}

void handle_audit_stats(struct server *s, struct conn *c, const char *rest)
{
    (void)rest;
    struct access_report *r = new_report(s, c, REPORT_STATS);
    if (r)
        start_report(s, c, r);
}

void handle_audit_clear(struct server *s, struct conn *c, const char *rest)
{
    char text[8];
    (void)rest;
    struct access_report *r = new_report(s, c, REPORT_CLEAR);
    if (!r)
        return;
    const char *all = http_query(conn_request(c), "all_logs", text, sizeof text);
    r->all = all && (strcmp(all, "true") == 0 || strcmp(all, "1") == 0);
    start_report(s, c, r);
}

/* Answer with the last lines, which are in memory: no file is read. */
void handle_audit_recent(struct server *s, struct conn *c, const char *rest)
{
    enum { MOST = 500 };
    double limit;
    char *lines[MOST];
    (void)rest;
    if (!query_number(s, c, "limit", 1, MOST, 50, &limit))
        return;
    if (!s->guard.audit) {
        reply_refusal(s, c, 404, "no_audit", "nothing is logged (--no-audit)");
        return;
    }
    json_t *list = json_array();
    const int n = audit_log_recent(s->guard.audit, (int)limit, lines);
    for (int i = 0; i < n; i++) {
        json_t *o = json_loads(lines[i], 0, NULL);
        if (o)
            json_array_append_new(list, o);
        free(lines[i]);
    }
    reply_object(s, c, 200, json_pack("{s:i,s:o}", "count", (int)json_array_size(list), "entries", list));
}
