#include "libcommon/serve/guard.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>

#include <openssl/crypto.h>

#include "libcommon/base/address.h"
#include "libcommon/base/clock.h"
#include "libcommon/base/plural.h"
#include "libcommon/serve/exchange.h"
#include "libcommon/serve/internal.h"

/* ---- open and close ---- */

/* Counters of keys that are gone make room: those that had some before the keys were read again,
 * and are not among them.  Where zse-apikey dies between its two files, or a file of keys is
 * replaced, nobody else takes them away. */
static void sweep(struct guard *g)
{
    int64_t ids[USAGE_SLOTS];
    struct key_info k;
    struct err e;
    const int n = usage_keys(g->usage, ids);
    g->swept_ns = clock_ns();
    if (n <= keys_known(g->keys) || keys_refresh(g->keys, &e) != 0)
        return;
    for (int i = 0; i < n; i++)
        if (keys_check_id(g->keys, ids[i], &k) == KEY_UNKNOWN)
            usage_drop(g->usage, ids[i]);
}

static int open_keys(struct server *s, struct err *e)
{
    struct guard *g = &s->guard;
    struct stat st;
    char path[4096];
    if (!s->o.home)
        return 0;
    if (!(g->keys = keys_open(s->o.home, e))) {
        snprintf(path, sizeof path, "%s/keys.db", s->o.home);
        if (stat(path, &st) == 0 || errno != ENOENT)
            return err_prefix(e, "the keys cannot be read");
        server_log(s, "%s: no keys", e->msg);
        if (!(g->keys = keys_open_read(s->o.home, e)))
            return 0;
    }
    if (keys_refresh(g->keys, e) != 0)
        return err_prefix(e, "the keys cannot be read");
    g->refreshed_ns = clock_ns();
    keys_set_patience(g->keys, 0);              /* the loop waits for nobody: it asks again */
    if (!(g->usage = usage_open(s->o.home, e))) {
        server_log(s, "%s: what keys use is counted in this process only, and forgotten with it", e->msg);
        if (!(g->usage = usage_open_here(s->o.home, e)))
            return -1;
    }
    sweep(g);
    return 0;
}

int guard_open(struct server *s, struct err *e)
{
    struct guard *g = &s->guard;
    if (!s->o.no_auth && open_keys(s, e) != 0)
        return -1;
    if (s->o.audit_folder) {
        const struct audit_log_options ao = { .folder = s->o.audit_folder,
                                              .bytes = { s->o.audit_bytes, s->o.audit_anonymous_bytes
                                                         ? s->o.audit_anonymous_bytes : s->o.audit_bytes },
                                              .keep = s->o.audit_files, .waiting_bytes = AUDIT_WAITING_BYTES,
                                              .signer = s->o.audit_signer, .syslog = s->o.audit_syslog };
        if (!(g->audit = audit_log_open(&ao, e)))
            return -1;
    }
    g->anonymous = address_limits_open(ADDRESSES, s->o.anonymous_limit, e);
    g->refused = address_limits_open(ADDRESSES, REFUSALS_MINUTE, e);
    return g->anonymous && g->refused ? 0 : -1;
}

/* Warn when messages begin to be dropped; how many shows in the figures. */
static void watch_syslog(struct server *s)
{
    struct guard *g = &s->guard;
    struct audit_syslog_stats now;
    if (!audit_log_syslog_stats(g->audit, &now))
        return;
    if (now.dropped > g->dropped && !g->dropping)
        server_warn(s, "--audit-syslog %s: messages are dropped from now on: %s", s->o.audit_syslog,
                    now.last_error[0] ? now.last_error : "more come than it takes");
    g->dropping = now.dropped > g->dropped || (g->dropping && now.waiting);
    g->dropped = now.dropped;
}

void guard_tick(struct server *s)
{
    struct guard *g = &s->guard;
    struct audit_stats now;
    if (g->usage)
        usage_renew(g->usage);
    if (!g->audit)
        return;
    audit_log_tick(g->audit);
    watch_syslog(s);
    audit_log_stats(g->audit, &now);
    const int lost = now.errors > g->errors, written = now.entries > g->entries;
    if (lost && !g->losing)
        server_warn(s, "the audit log lacks lines from now on: %s", now.last_error);
    g->losing = lost || (g->losing && !written);
    g->errors = now.errors;
    g->entries = now.entries;
}

int guard_finish_audit(struct server *s)
{
    struct guard *g = &s->guard;
    const int left = g->audit ? audit_log_finish(g->audit, AUDIT_PATIENCE_S) : 0;
    if (left) {
        server_warn(s, "%s: %d line%s of the audit log could not be written: its disk, or the program that holds its lock, does not answer", s->o.audit_folder, left, plural(left));
        g->audit = NULL;                    /* the thread is at it still */
        return -1;
    }
    guard_tick(s);                          /* lines that were lost since the last one */
    return 0;
}

int guard_has_keys(const struct server *s)
{
    const struct guard *g = &s->guard;
    return g->keys && keys_known_required(g->keys) && keys_known(g->keys) > 0;
}

/* ---- access records ---- */

static void uuid(char out[37])
{
    uint8_t b[16] = { 0 };
    ssize_t n = getrandom(b, sizeof b, 0);
    (void)n;
    b[6] = (uint8_t)((b[6] & 0x0f) | 0x40);             /* RFC 9562, version 4 */
    b[8] = (uint8_t)((b[8] & 0x3f) | 0x80);
    for (int i = 0, at = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            out[at++] = '-';
        at += sprintf(out + at, "%02x", b[i]);
    }
}

/* The client's own id where it can stand in a header and in the log, else a new one. */
static void choose_id(const struct http_request *r, char out[REQUEST_ID + 1])
{
    static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:-";
    const char *given = r && r->method ? http_field(r, "X-Request-Id") : NULL;
    const size_t n = given ? strlen(given) : 0;
    if (n && n <= REQUEST_ID_GIVEN && strspn(given, allowed) == n && !audit_has_key(given))
        memcpy(out, given, n + 1);
    else
        uuid(out);
}

static char *copy(const char *s) { return s ? strdup(s) : NULL; }

static struct access_record *record_new(struct server *s, struct conn *c)
{
    const struct http_request *r = conn_request(c);
    struct access_record *v = calloc(1, sizeof *v);
    struct timespec now;
    char address[64];
    if (!v)
        return NULL;
    clock_gettime(CLOCK_REALTIME, &now);
    v->at_ms = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
    v->start_ns = clock_ns();
    choose_id(r, v->id);
    snprintf(v->client, sizeof v->client, "%s", client_address(s, c, address));
    if (r && r->method) {
        v->method = copy(r->method);
        v->path = copy(r->path);
        v->agent = copy(http_field(r, "User-Agent"));
    }
    return v;
}

void record_begin(struct server *s, struct conn *c)
{
    struct access_record *v = record_new(s, c);
    char id[REQUEST_ID + 1];
    if (!v)                                 /* no memory: the answer has an id all the same */
        choose_id(conn_request(c), id);
    conn_add_header(c, "X-Request-Id", v ? v->id : id);
    conn_set_record(c, v);
}

static void record_free(struct access_record *v)
{
    free(v->method);
    free(v->path);
    free(v->agent);
    free(v->model);
    free(v->error);
    free(v->prompt);
    free(v);
}

void record_error(struct access_record *v, const struct problem *p)
{
    char text[sizeof p->code + sizeof p->param + 2];
    if (!v || v->error)
        return;
    const int named = p->param[0] && strcmp(p->code, "unknown_parameter") != 0;         /* of ours */
    snprintf(text, sizeof text, "%s%s%s", p->code, p->code[0] && named ? ": " : "", named ? p->param : "");
    v->error = strdup(p->status == 400 && text[0] ? text : p->message);
}

void record_prompt(const struct server *s, struct access_record *v, const char *text, size_t size)
{
    if (!v || !text || v->prompt || !s->o.audit_prompts)
        return;
    if (size <= PROMPT_LOGGED)
        v->prompt = strndup(text, size);
    else if (asprintf(&v->prompt, "%.*s...[%zu bytes]", PROMPT_LOGGED, text, size) < 0)
        v->prompt = NULL;
}

void record_end(struct server *s, struct access_record *v, int status, int prompt_tokens, int completion_tokens)
{
    struct guard *g = &s->guard;
    if (!v)
        return;
    if (v->kept) {
        record_free(v);
        return;
    }
    if (v->has_key && g->usage)
        usage_settle(g->usage, v->key.id, v->reserved, (int64_t)prompt_tokens + completion_tokens);
    if (g->audit && !(v->path && (strcmp(v->path, "/health") == 0 || strcmp(v->path, "/openapi.json") == 0) &&
                      status < 400)) {
        const struct audit_entry x = { .time_ms = v->at_ms, .request_id = v->id, .method = v->method, .path = v->path,
                                       .status = status,
                                       .latency_ms = (double)(clock_ns() - v->start_ns) * 1e-6, .key_name = v->has_key
                                       ? v->key.name : v->is_admin ? "(admin.token)" : NULL, .client_ip = v->client,
                                       .user_agent = v->agent, .model = v->model, .prompt_tokens = prompt_tokens,
                                       .completion_tokens = completion_tokens,
                                       .error = v->error, .prompt = v->prompt };
        audit_log_add(g->audit, &x, v->is_admin || v->by_key, v->admitted);
    }
    if (status == 101)
        v->kept = 1;
    else
        record_free(v);
}

/* ---- who asks ---- */

static void refresh(struct server *s)
{
    struct guard *g = &s->guard;
    struct err e;
    const uint64_t now = clock_ns();
    if (!g->keys || now - g->refreshed_ns < 250000000u)
        return;
    g->refreshed_ns = now;
    const int rc = keys_refresh(g->keys, &e);
    if (rc == 0) {
        g->trouble.code = ERR_NONE;
        g->locked_ns = 0;
        if (now - g->swept_ns > 60000000000u)
            sweep(g);
        return;
    }
    if (rc > 0)
        g->refreshed_ns = 0;            /* the next request asks at once */
    if (rc > 0 && !g->locked_ns)
        g->locked_ns = now;
    if ((rc < 0 || now - g->locked_ns > 1000000000u) &&         /* who changes a key has it locked for less */
        (g->trouble.code == ERR_NONE || strcmp(g->trouble.msg, e.msg) != 0)) {
        server_log(s, "%s; the keys known so far stay good", e.msg);
        g->trouble = e;
    }
}

/* The key as it was sent, or NULL. */
static const char *given_key(const struct server *s, const struct conn *c, char *query, size_t room)
{
    const struct http_request *r = conn_request(c);
    const char *key = http_field(r, "X-API-Key"), *bearer = http_field(r, "Authorization");
    if (key)
        return key;
    if (bearer && strncasecmp(bearer, "Bearer ", 7) == 0)
        return bearer + 7 + strspn(bearer + 7, " ");
    return s->o.query_keys ? http_query(r, "api_key", query, room) : NULL;
}

static int is_admin_token(const struct server *s, const char *given)
{
    const size_t n = s->admin_token ? strlen(s->admin_token) : 0;
    return n && given && strlen(given) == n && CRYPTO_memcmp(given, s->admin_token, n) == 0;
}

static unsigned needs(enum access a)
{
    switch (a) {
    case ACCESS_CHAT:  return SCOPE_CHAT;
    case ACCESS_EMBED: return SCOPE_EMBEDDINGS;
    case ACCESS_READ:  return SCOPE_MODELS | SCOPE_ADMIN;
    case ACCESS_ADMIN: return SCOPE_ADMIN;
    default:           return SCOPE_ALL;
    }
}

static void limit_headers(struct conn *c, const struct verdict *v)
{
    char text[24];
    if (!v->limit)
        return;
    snprintf(text, sizeof text, "%lld", (long long)v->limit);
    conn_set_header(c, "X-RateLimit-Limit", text);
    snprintf(text, sizeof text, "%lld", (long long)v->remaining);
    conn_set_header(c, "X-RateLimit-Remaining", text);
    snprintf(text, sizeof text, "%d", v->reset_s);
    conn_set_header(c, "X-RateLimit-Reset", text);
}

static int too_many(struct server *s, struct conn *c, const struct verdict *v)
{
    char text[160], wait[16];
    verdict_text(v, text, sizeof text);
    snprintf(wait, sizeof wait, "%d", v->retry_s);
    conn_add_header(c, "Retry-After", wait);
    reply_refusal(s, c, 429, "rate_limit_exceeded", "%s", text);
    return 0;
}

/* No key, or no good one: guessing costs an address its turns. */
static int refuse(struct server *s, struct conn *c, int status, const char *code, const char *text)
{
    char address[64];
    const struct verdict v = address_admit(s->guard.refused, client_address(s, c, address));
    if (status == 401 && !v.allowed) {
        limit_headers(c, &v);
        return too_many(s, c, &v);
    }
    if (status == 401)
        conn_add_header(c, "WWW-Authenticate", "Bearer");
    reply_refusal(s, c, status, code, "%s", text);
    return 0;
}

/* ---- guesses ---- */

/* The place of a key (0: the administrator's token) at the address that asks, and what stands
 * there if it was good before. */
static uint64_t *seen_at(struct server *s, struct conn *c, int64_t key, uint64_t *mark)
{
    char address[64];
    uint64_t h = 1469598103934665603u ^ (uint64_t)key;          /* FNV-1a */
    for (const char *p = client_address(s, c, address); *p; p++)
        h = (h ^ (unsigned char)*p) * 1099511628211u;
    *mark = h | 1;
    return &s->guard.seen[(h ^ h >> 29) * 0x9e3779b97f4a7c15u >> 54 & (SEEN - 1)];      /* neighbours differ in few bits of h, and in few high ones */
}

/* May a good key be one?  From an address with too many wrong ones only keys are taken that were
 * good there before, so that a right guess looks like a wrong one, and a neighbour's guesses
 * lock nobody out. */
static int may_be_guess(struct server *s, struct conn *c, int64_t key, struct verdict *v)
{
    char address[64];
    uint64_t mark;
    const uint64_t *seen = seen_at(s, c, key, &mark);
    *v = address_peek(s->guard.refused, client_address(s, c, address));
    return !v->allowed && *seen != mark;
}

/* A good key. 0 after a refusal. */
static int admit_guess(struct server *s, struct conn *c, int64_t key)
{
    uint64_t mark;
    struct verdict v;
    if (may_be_guess(s, c, key, &v)) {
        limit_headers(c, &v);
        return too_many(s, c, &v);
    }
    uint64_t *seen = seen_at(s, c, key, &mark);
    *seen = mark;
    return 1;
}

static int admit_key(struct server *s, struct conn *c, const struct route *r, struct access_record *v)
{
    char scopes[32];
    if (!(v->key.scopes & needs(r->access))) {
        reply_refusal(s, c, 403, "insufficient_scope", "%s needs a key of scope %s", r->path,
                      key_scopes_text(needs(r->access), scopes));
        return 0;
    }
    const struct verdict w = usage_admit(s->guard.usage, v->key.id, &v->key.limit);
    limit_headers(c, &w);
    v->admitted = w.allowed;
    return w.allowed || too_many(s, c, &w);
}

static int admit_anonymous(struct server *s, struct conn *c, struct access_record *v)
{
    char address[64];
    const struct verdict w = address_admit(s->guard.anonymous, client_address(s, c, address));
    limit_headers(c, &w);
    v->admitted = w.allowed;
    return w.allowed || too_many(s, c, &w);
}

/* A reachable listener never answers without a key, whatever became of the setting and the key
 * file since the start. */
static int key_is_needed(const struct server *s, const struct conn *c)
{
    const struct keys *keys = s->guard.keys;
    return keys && (keys_known_required(keys) || server_is_reachable(s, conn_is_local(c)));
}

int guard_knows(struct server *s, struct conn *c, const struct route *r, uint64_t *owner)
{
    const struct guard *g = &s->guard;
    char query[128], address[64];
    struct key_info k;
    struct verdict v;
    const char *key = given_key(s, c, query, sizeof query);
    *owner = address_number(client_address(s, c, address)) << 1;
    if (r->access == ACCESS_PUBLIC)
        return 1;
    if (!s->o.query_keys && http_query(conn_request(c), "api_key", query, sizeof query))
        return 0;
    *owner = 1;
    if (is_admin_token(s, key))
        return !may_be_guess(s, c, 0, &v);
    refresh(s);
    if (key && g->keys && keys_check(g->keys, key, &k) == KEY_GOOD) {
        struct usage_stats used;
        *owner = (uint64_t)k.id << 1 | 1;
        usage_read(g->usage, k.id, &k.limit, &used);
        return (k.scopes & needs(r->access)) && !may_be_guess(s, c, k.id, &v) && used.verdict.allowed;
    }
    *owner = address_number(client_address(s, c, address)) << 1;
    return r->access != ACCESS_ADMIN && !key_is_needed(s, c) &&
           address_peek(g->anonymous, client_address(s, c, address)).allowed;
}

int guard_admits(struct server *s, struct conn *c, const struct route *r)
{
    struct guard *g = &s->guard;
    struct access_record *v = conn_record(c);
    char query[128];
    if (!s->o.query_keys && http_query(conn_request(c), "api_key", query, sizeof query)) {
        reply_refusal(s, c, 400, "key_in_query", "api_key in the address ends in logs: send it as X-API-Key or Authorization: Bearer (--allow-query-key lets it through)");
        return 0;
    }
    if (r->access == ACCESS_PUBLIC)
        return 1;
    if (!v) {
        reply_refusal(s, c, 503, NULL, "out of memory");
        return 0;
    }
    const char *key = given_key(s, c, query, sizeof query);
    if (is_admin_token(s, key)) {
        if (!admit_guess(s, c, 0))
            return 0;           /* answered: the record is over */
        return v->is_admin = v->admitted = 1;
    }
    refresh(s);
    const int required = key_is_needed(s, c);
    const enum key_state state = key && g->keys ? keys_check(g->keys, key, &v->key) : KEY_UNKNOWN;
    v->has_key = state != KEY_UNKNOWN;
    if (state == KEY_GOOD)
        return admit_guess(s, c, v->key.id) && (v->by_key = 1) && admit_key(s, c, r, v);
    if (required || (r->access == ACCESS_ADMIN && g->keys && state != KEY_UNKNOWN)) {
        if (!key)
            return refuse(s, c, 401, "missing_api_key",
                          "API key required. Provide via X-API-Key header or Bearer token.");
        return refuse(s, c, 401, "invalid_api_key", state == KEY_EXPIRED ? "Invalid API key: it has expired" : state ==
                      KEY_DISABLED ? "Invalid API key: it is disabled" : "Invalid API key");
    }
    if (r->access == ACCESS_ADMIN) {
        char text[320];
        snprintf(text, sizeof text, "%.120s needs the administrator's token or a key of scope admin: Authorization: Bearer TOKEN, from admin.token", r->path);
        return refuse(s, c, 401, "invalid_admin_token", text);
    }
    v->has_key = 0;
    return admit_anonymous(s, c, v);
}

/* Is what a WebSocket was let in by still good? */
static int still_good(const struct server *s, const struct conn *c, const struct access_record *v, struct key_info *k)
{
    const struct guard *g = &s->guard;
    if (v->is_admin)
        return 1;
    if (!v->has_key)
        return !key_is_needed(s, c);
    return keys_check_id(g->keys, v->key.id, k) == KEY_GOOD && k->secret == v->key.secret;
}

int guard_still(struct server *s, struct conn *c)
{
    struct key_info k;
    refresh(s);
    return conn_record(c) && still_good(s, c, conn_record(c), &k);
}

struct access_record *guard_message(struct server *s, struct conn *c, struct problem *pr)
{
    struct guard *g = &s->guard;
    struct access_record *from = conn_record(c);
    struct access_record *v = from ? record_new(s, c) : NULL;
    char text[160];
    if (!v) {
        problem_nomem(pr);
        return NULL;
    }
    snprintf(v->id, sizeof v->id, "%.*s/%u", REQUEST_ID_GIVEN, from->id, ++from->n_messages);
    snprintf(v->client, sizeof v->client, "%s", from->client);
    v->method = copy("WS");
    v->path = copy(from->path);
    v->agent = copy(from->agent);
    v->is_admin = from->is_admin;
    v->by_key = from->by_key;
    v->key = from->key;
    refresh(s);
    if (!still_good(s, c, from, &v->key)) {
        problem_set(pr, 401, NULL, "invalid_api_key", "Invalid API key");
    } else {
        v->has_key = from->has_key;
        v->admitted = 1;
        if (v->is_admin)
            return v;
        const struct verdict w = v->has_key ? usage_admit(g->usage, v->key.id, &v->key.limit)
                                            : address_admit(g->anonymous, v->client);
        if (w.allowed)
            return v;
        v->admitted = 0;
        verdict_text(&w, text, sizeof text);
        problem_set(pr, 429, NULL, "rate_limit_exceeded", "%s", text);
    }
    record_error(v, pr);
    record_end(s, v, pr->status, -1, -1);
    return NULL;
}

int guard_model(struct access_record *v, const char *model, struct problem *pr)
{
    if (!v)
        return 0;
    if (!v->model)
        v->model = strdup(model);
    if (!v->has_key || key_allows_model(&v->key, model))
        return 0;
    return problem_set(pr, 403, "model", "model_not_allowed", "model: the key '%s' may not use %.200s", v->key.name,
                       model);
}

int guard_reserve(struct server *s, struct conn *c, struct access_record *v, int64_t least, int64_t most,
                  int64_t *granted, struct problem *pr)
{
    char text[200], wait[16];
    *granted = most;
    if (!v || !v->has_key || !s->guard.usage)
        return 0;
    const struct verdict w = usage_reserve(s->guard.usage, v->key.id, &v->key.limit, least, most, &v->reserved);
    if (c && (!w.allowed || !v->key.limit.requests_minute))
        limit_headers(c, &w);
    if (w.allowed) {
        *granted = w.limit ? v->reserved : most;
        return 0;
    }
    verdict_text(&w, text, sizeof text);
    if (w.never)
        return problem_set(pr, 400, "max_tokens", "token_limit_exceeded", "%s", text);
    snprintf(wait, sizeof wait, "%d", w.retry_s);
    if (c)
        conn_set_header(c, "Retry-After", wait);
    return problem_set(pr, 429, NULL, "rate_limit_exceeded", "%s", text);
}

uint64_t guard_tenant(const struct access_record *v)
{
    if (!v)
        return 0;
    return v->has_key ? (uint64_t)v->key.id << 1 | 1 : v->is_admin ? 1 : address_number(v->client) << 1;
}
