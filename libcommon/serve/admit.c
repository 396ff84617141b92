/* admit.c - admit requests: find their key, and check its permissions and limits. */
#include "libcommon/serve/guard.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include <openssl/crypto.h>

#include "libcommon/base/address.h"
#include "libcommon/base/siphash.h"
#include "libcommon/serve/internal.h"

/* The key in the subprotocols of a WebSocket, or NULL.  A script in a browser can set no other
 * header field, so it offers the subprotocols "zse" and "zse-key.KEY". */
static const char *protocol_key(const struct http_request *r, char *out, size_t room)
{
    static const char prefix[] = "zse-key.";
    const char *list = http_field(r, "Sec-WebSocket-Protocol");
    while (list && *list) {
        list += strspn(list, " \t,");
        const size_t n = strcspn(list, " \t,"), skip = sizeof prefix - 1;
        if (n > skip && n - skip < room && strncmp(list, prefix, skip) == 0) {
            snprintf(out, room, "%.*s", (int)(n - skip), list + skip);
            return out;
        }
        list += n;
    }
    return NULL;
}

/* The key that the client sent, or NULL. A key from a subprotocol or the query is copied to text
 * [room]. */
static const char *given_key(const struct server *s, const struct conn *c, char *text, size_t room)
{
    const struct http_request *r = conn_request(c);
    const char *key = http_field(r, "X-API-Key"), *bearer = http_field(r, "Authorization");
    if (key)
        return key;
    if (bearer && strncasecmp(bearer, "Bearer ", 7) == 0)
        return bearer + 7 + strspn(bearer + 7, " ");
    if ((key = protocol_key(r, text, room)))
        return key;
    return s->o.query_keys ? http_query(r, "api_key", text, room) : NULL;
}

static int is_admin_token(const struct server *s, const char *given)
{
    const size_t n = s->admin_token ? strlen(s->admin_token) : 0;
    return n && given && strlen(given) == n && CRYPTO_memcmp(given, s->admin_token, n) == 0;
}

/* The scopes that permit the access; a key needs one of them. */
static unsigned needs(enum access a)
{
    switch (a) {
    case ACCESS_CHAT:  return SCOPE_CHAT;
    case ACCESS_EMBED: return SCOPE_EMBEDDINGS;
    case ACCESS_READ:  return SCOPE_MODELS | SCOPE_ADMIN;
    case ACCESS_ADMIN: case ACCESS_ADMIN_MODEL: return SCOPE_ADMIN;
    default:           return SCOPE_ALL;
    }
}

static int has_scope(const struct key_info *k, const struct route *r) { return (k->scopes & needs(r->access)) != 0; }

/* A key that is limited to models cannot administer the server: see routes.h. */
static int is_too_narrow(const struct key_info *k, const struct route *r)
{
    return r->access == ACCESS_ADMIN && k->models[0];
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

/* Refuse a request without a valid key. A 401 counts against the address, which limits guessing. */
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

/* Whether the database of keys is away, and so this key, known or not, cannot be judged; without a
 * key: whether it has been away for so long that the server may require one by now. */
static int is_unknowable(const struct guard *g, const char *key, enum key_state state)
{
    const enum keys_standing standing = g->keys ? keys_standing(g->keys) : KEYS_CURRENT;
    if (!key)
        return standing == KEYS_LOST && !keys_known_required(g->keys);
    return standing == KEYS_LOST || (standing == KEYS_AWAY && state == KEY_UNKNOWN);
}

/* Refuse a key that cannot be judged.  It counts against the address like a wrong one. */
static int refuse_unknowable(struct server *s, struct conn *c)
{
    char address[64], wait[16];
    const struct verdict v = address_admit(s->guard.refused, client_address(s, c, address));
    if (!v.allowed) {
        limit_headers(c, &v);
        return too_many(s, c, &v);
    }
    snprintf(wait, sizeof wait, "%d", KEYS_AWAY_RETRY_S);
    conn_add_header(c, "Retry-After", wait);
    reply_refusal(s, c, 503, "keys_unavailable", "API keys cannot be checked, as the database of keys does not answer");
    return 0;
}

/* ---- guesses ---- */

/* The slot of guard.seen for this key (0: the administrator's token) and the client's address.
 * *mark is set to the value that the slot has if the key was valid at this address before. */
static uint64_t *seen_at(struct server *s, struct conn *c, int64_t key, uint64_t *mark)
{
    char address[64];
    uint64_t h = 1469598103934665603u ^ (uint64_t)key;          /* FNV-1a */
    for (const char *p = client_address(s, c, address); *p; p++)
        h = (h ^ (unsigned char)*p) * 1099511628211u;
    *mark = h | 1;
    /* multiply, because the hashes of neighbouring addresses differ in few bits */
    return &s->guard.seen[(h ^ h >> 29) * 0x9e3779b97f4a7c15u >> 54 & (SEEN - 1)];
}

/* Could a valid key be a lucky guess?  After too many wrong keys from an address, only keys that
 * were valid at that address before are accepted.  So the client cannot tell a correct guess
 * from a wrong one, and other users behind the same address are not locked out. */
static int may_be_guess(struct server *s, struct conn *c, int64_t key, struct verdict *v)
{
    char address[64];
    uint64_t mark;
    const uint64_t *seen = seen_at(s, c, key, &mark);
    *v = address_peek(s->guard.refused, client_address(s, c, address));
    return !v->allowed && *seen != mark;
}

/* Admit a valid key, unless it may be a guess. 0: refused. */
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

/* ---- admission ---- */

/* Whether guard_message counts each message of this WebSocket as a request.  If so, the handshake
 * is not counted. */
static int counts_messages(const struct route *r) { return r->kind == ROUTE_WEBSOCKET && r->body; }

static struct verdict admit_usage(struct server *s, const struct route *r, const struct key_info *k)
{
    struct usage_stats used;
    if (!counts_messages(r))
        return usage_admit(s->guard.usage, k->id, &k->limit);
    usage_read(s->guard.usage, k->id, &k->limit, &used);
    return used.verdict;
}

static int admit_key(struct server *s, struct conn *c, const struct route *r, struct access_record *record)
{
    char scopes[32];
    if (!has_scope(&record->key, r)) {
        reply_refusal(s, c, 403, "insufficient_scope", "%s needs a key of scope %s", r->path,
                      key_scopes_text(needs(r->access), scopes));
        return 0;
    }
    if (is_too_narrow(&record->key, r)) {
        reply_refusal(s, c, 403, "limited_to_models", "the key '%s' administers the models that it may use, not %s",
                      record->key.name, r->path);
        return 0;
    }
    const struct verdict w = admit_usage(s, r, &record->key);
    limit_headers(c, &w);
    record->admitted = w.allowed;
    return w.allowed || too_many(s, c, &w);
}

static int admit_anonymous(struct server *s, struct conn *c, const struct route *r, struct access_record *record)
{
    char address[64];
    const struct verdict w = (counts_messages(r) ? address_peek : address_admit)(s->guard.anonymous,
                                                                                 client_address(s, c, address));
    limit_headers(c, &w);
    record->admitted = w.allowed;
    return w.allowed || too_many(s, c, &w);
}

/* A listener that other machines can reach always needs a key, even if the setting or the file of
 * keys has changed since the start.  A setting that cannot be read any more does not count. */
int guard_needs_key(const struct server *s, const struct conn *c)
{
    const struct keys *keys = s->guard.keys;
    return keys && (keys_known_required(keys) || keys_standing(keys) == KEYS_LOST ||
                    server_is_reachable(s, conn_is_local(c)));
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
    guard_refresh(s);
    if (key && g->keys && keys_check(g->keys, key, &k) == KEY_GOOD && keys_standing(g->keys) != KEYS_LOST) {
        struct usage_stats used;
        *owner = (uint64_t)k.id << 1 | 1;
        usage_read(g->usage, k.id, &k.limit, &used);
        return has_scope(&k, r) && !is_too_narrow(&k, r) && !may_be_guess(s, c, k.id, &v) && used.verdict.allowed;
    }
    *owner = address_number(client_address(s, c, address)) << 1;
    return !route_administers(r) && !guard_needs_key(s, c) &&
           address_peek(g->anonymous, client_address(s, c, address)).allowed;
}

int guard_admits(struct server *s, struct conn *c, const struct route *r)
{
    struct guard *g = &s->guard;
    struct access_record *record = conn_record(c);
    char query[128];
    if (!s->o.query_keys && http_query(conn_request(c), "api_key", query, sizeof query)) {
        reply_refusal(s, c, 400, "key_in_query", "api_key in the URL would be written to logs: send it as X-API-Key or Authorization: Bearer (--allow-query-key lets it through)");
        return 0;
    }
    if (r->access == ACCESS_PUBLIC)
        return 1;
    if (!record) {
        reply_refusal(s, c, 503, NULL, "out of memory");
        return 0;
    }
    const char *key = given_key(s, c, query, sizeof query);
    if (is_admin_token(s, key)) {
        if (!admit_guess(s, c, 0))
            return 0;           /* refused: the response has freed the record */
        return record->is_admin = record->admitted = 1;
    }
    guard_refresh(s);
    const int required = guard_needs_key(s, c);
    const enum key_state state = key && g->keys ? keys_check(g->keys, key, &record->key) : KEY_UNKNOWN;
    record->has_key = state != KEY_UNKNOWN;
    if (is_unknowable(g, key, state) && (required || route_administers(r) || state != KEY_UNKNOWN))
        return refuse_unknowable(s, c);
    if (state == KEY_GOOD)
        return admit_guess(s, c, record->key.id) && (record->by_key = 1) && admit_key(s, c, r, record);
    if (required || (route_administers(r) && g->keys && state != KEY_UNKNOWN)) {
        if (!key)
            return refuse(s, c, 401, "missing_api_key",
                          "API key required. Provide via X-API-Key header or Bearer token.");
        return refuse(s, c, 401, "invalid_api_key", state == KEY_EXPIRED ? "Invalid API key: it has expired" : state ==
                      KEY_DISABLED ? "Invalid API key: it is disabled" : "Invalid API key");
    }
    if (route_administers(r)) {
        char text[320];
        snprintf(text, sizeof text, "%.120s needs the administrator's token or a key of scope admin: Authorization: Bearer TOKEN, from admin.token", r->path);
        return refuse(s, c, 401, "invalid_admin_token", text);
    }
    record->has_key = 0;
    return admit_anonymous(s, c, r, record);
}

/* ---- WebSockets ---- */

/* Whether the key or token that admitted a WebSocket is still valid; for a WebSocket that was
 * admitted without a key: whether the server still requires none. */
static int still_good(const struct server *s, const struct conn *c, const struct access_record *record,
                      struct key_info *k)
{
    const struct guard *g = &s->guard;
    if (record->is_admin)
        return 1;
    if (!record->has_key)
        return !guard_needs_key(s, c);
    return keys_check_id(g->keys, record->key.id, k) == KEY_GOOD && k->secret == record->key.secret &&
           keys_standing(g->keys) != KEYS_LOST;
}

int guard_still(struct server *s, struct conn *c)
{
    struct key_info k;
    guard_refresh(s);
    return conn_record(c) && still_good(s, c, conn_record(c), &k);
}

struct access_record *guard_message(struct server *s, struct conn *c, struct problem *pr)
{
    struct guard *g = &s->guard;
    struct access_record *from = conn_record(c), *record = from ? record_message(s, c, from) : NULL;
    char text[160];
    if (!record) {
        problem_nomem(pr);
        return NULL;
    }
    guard_refresh(s);
    if (!still_good(s, c, from, &record->key)) {
        problem_set(pr, 401, NULL, "invalid_api_key", "Invalid API key");
    } else {
        record->has_key = from->has_key;
        record->admitted = 1;
        if (record->is_admin)
            return record;
        const struct verdict w = record->has_key ? usage_admit(g->usage, record->key.id, &record->key.limit)
                                                 : address_admit(g->anonymous, record->client);
        if (w.allowed)
            return record;
        record->admitted = 0;
        verdict_text(&w, text, sizeof text);
        problem_set(pr, 429, NULL, "rate_limit_exceeded", "%s", text);
    }
    record_error(record, pr);
    record_end(s, record, pr->status, -1, -1);
    return NULL;
}

/* ---- what a key may use ---- */

int guard_model(struct access_record *record, const char *model, struct problem *pr)
{
    if (!record)
        return 0;
    record_model(record, model);
    if (!record->has_key || key_allows_model(&record->key, model))
        return 0;
    return problem_set(pr, 403, "model", "model_not_allowed", "model: the key '%s' may not use %.200s",
                       record->key.name, model);
}

int guard_lists_model(const struct access_record *record, const char *model)
{
    return !record || !record->has_key || key_allows_model(&record->key, model);
}

int guard_may_load(const struct access_record *record)
{
    return !record || !record->has_key || (record->key.scopes & ~(unsigned)SCOPE_MODELS);
}

int guard_administers(const struct server *s, const struct conn *c)
{
    const struct access_record *record = c ? conn_record(c) : NULL;
    return record && (record->is_admin || (record->has_key ? (record->key.scopes & SCOPE_ADMIN) != 0
                                                           : !server_is_reachable(s, conn_is_local(c))));
}

int guard_reserve(struct server *s, struct conn *c, struct access_record *record, int64_t least, int64_t most,
                  int64_t *granted, struct problem *pr)
{
    char text[200], wait[16];
    *granted = most;
    if (!record || !record->has_key || !s->guard.usage)
        return 0;
    const struct verdict w = usage_reserve(s->guard.usage, record->key.id, &record->key.limit, least, most,
                                           &record->reserved);
    if (c && (!w.allowed || !record->key.limit.requests_minute))
        limit_headers(c, &w);
    if (w.allowed) {
        *granted = w.limit ? record->reserved : most;
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

void guard_settle(struct server *s, struct access_record *record, int64_t used)
{
    if (!record || !record->has_key || !s->guard.usage)
        return;
    usage_settle(s->guard.usage, record->key.id, record->reserved, used);
    record->reserved = 0;
    record->settled += used;
}

uint64_t guard_tenant(const struct access_record *record)
{
    if (!record)
        return 0;
    return record->has_key ? (uint64_t)record->key.id << 1 | 1 : record->is_admin ? 1
                                                                                  : address_number(record->client) << 1;
}

uint64_t guard_scope(const struct access_record *record)
{
    /* a constant key, so that scopes are the same after a restart */
    static const uint64_t key[2] = { 0x7a73652d73636f70u, 0x652d707265666978u };
    if (!record || (!record->has_key && !record->is_admin))
        return 0;
    /* a new database numbers keys from the beginning, so the time of creation is hashed as well */
    const int64_t who[2] = { record->has_key ? record->key.id : 0, record->has_key ? record->key.created_s : 0 };
    return siphash(key, who, sizeof who) | 1;
}
