/* peer_http.c - MCP servers at a URL: streamable HTTP by libcurl, one POST for each request. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "libcommon/base/json.h"
#include "libcommon/hub/net.h"
#include "libcommon/mcp/internal.h"

/* A request that was sent, and what has arrived of its response. */
struct post {
    struct mcp_peer *p;
    const atomic_int *cancelled;
    char *body; size_t size, room;
    size_t scanned;                     /* bytes of body, an event stream, that were scanned */
    int is_stream, too_large;
    json_int_t id;
    json_t *answer;                     /* owned; NULL: none yet */
    char session[256];
};

/* ---- the answer ---- */

static void take_answer(struct post *t, const char *text, size_t n)
{
    struct err ignored;
    json_t *m = t->answer ? NULL : js_parse("answer", text, n, &ignored);
    if (m && json_is_integer(js_get(m, "id")) && json_integer_value(js_get(m, "id")) == t->id && !js_get(m, "method"))
        t->answer = json_incref(m);
    else if (m && t->id && js_get(m, "error") && !js_get(m, "method") && !js_get(m, "id"))
        t->answer = json_incref(m);             /* the server could not read the id */
    json_decref(m);
}

/* Read the whole lines of an event stream; the data of one event are one message. */
static void scan_events(struct post *t)
{
    for (char *end; (end = memchr(t->body + t->scanned, '\n', t->size - t->scanned));) {
        const char *line = t->body + t->scanned;
        const size_t n = (size_t)(end - line);
        if (n > 5 && strncmp(line, "data:", 5) == 0)
            take_answer(t, line + 5, n - 5);
        t->scanned += n + 1;
    }
}

static size_t on_body(char *data, size_t one, size_t n, void *user)
{
    struct post *t = user;
    (void)one;
    if (t->size + n > MCP_MESSAGE_MAX) {
        t->too_large = 1;
        return 0;
    }
    if (t->room < t->size + n + 1) {
        char *body = realloc(t->body, 2 * (t->size + n) + 1);
        if (!body)
            return 0;
        t->body = body;
        t->room = 2 * (t->size + n) + 1;
    }
    memcpy(t->body + t->size, data, n);
    t->size += n;
    if (t->is_stream)
        scan_events(t);
    /* the answer is here, but the server may keep the stream open: end it */
    return t->is_stream && t->answer ? 0 : n;
}

static size_t on_header(char *data, size_t one, size_t n, void *user)
{
    static const char session[] = "mcp-session-id:", type[] = "content-type:";
    struct post *t = user;
    (void)one;
    if (n > sizeof session && strncasecmp(data, session, sizeof session - 1) == 0) {
        const char *v = data + sizeof session - 1;
        size_t k = n - (sizeof session - 1);
        while (k && *v == ' ')
            v++, k--;
        while (k && (v[k - 1] == '\r' || v[k - 1] == '\n' || v[k - 1] == ' '))
            k--;
        snprintf(t->session, sizeof t->session, "%.*s", (int)(k < sizeof t->session ? k : 0), v);
    } else if (n > sizeof type && strncasecmp(data, type, sizeof type - 1) == 0) {
        t->is_stream = memmem(data, n, "text/event-stream", 17) != NULL;
    }
    return n;
}

static int on_progress(void *user, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    const struct post *t = user;
    (void)a, (void)b, (void)c, (void)d;
    return atomic_load(&t->p->stop) || (t->cancelled && atomic_load(t->cancelled));
}

/* ---- the headers ---- */

/* Append "NAME: VALUE", with the value in base64 if it is not allowed in a header. */
static void add_header(const struct net *net, struct curl_slist **list, const char *name, const char *value)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const size_t n = strlen(value);
    int plain = n == 0 || (value[0] != ' ' && value[n - 1] != ' ' && strncmp(value, "=?base64?", 9) != 0);
    for (size_t i = 0; i < n; i++)
        plain &= value[i] >= ' ' && value[i] < 127;
    char *text = malloc(strlen(name) + 2 * n + 40), *p;
    if (!text)
        return;
    p = text + sprintf(text, "%s: %s", name, plain ? value : "=?base64?");
    for (size_t i = 0; i < n && !plain; i += 3) {
        const unsigned a = (unsigned char)value[i], b = i + 1 < n ? (unsigned char)value[i + 1] : 0,
                       c = i + 2 < n ? (unsigned char)value[i + 2] : 0, v = a << 16 | b << 8 | c;
        *p++ = digits[v >> 18];
        *p++ = digits[v >> 12 & 63];
        *p++ = i + 1 < n ? digits[v >> 6 & 63] : '=';
        *p++ = i + 2 < n ? digits[v & 63] : '=';
    }
    strcpy(p, plain ? "" : "?=");
    struct curl_slist *more = net->slist_append(*list, text);
    if (more)
        *list = more;
    free(text);
}

/* Add a header for each argument of the top level for which the schema requires one
 * (x-mcp-header). */
static void add_param_headers(const struct net *net, struct curl_slist **list, const json_t *schema,
                              const json_t *arguments)
{
    union { const json_t *in; json_t *out; } u = { .in = js_get(schema, "properties") };
    const char *key;
    json_t *property;
    json_object_foreach(u.out, key, property) {
        const char *header = json_string_value(js_get(property, "x-mcp-header"));
        const json_t *v = js_get(arguments, key);
        char name[96], number[32];
        if (!header || !v || strlen(header) > 64 || strspn(header, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.") != strlen(header))
            continue;
        snprintf(name, sizeof name, "Mcp-Param-%s", header);
        snprintf(number, sizeof number, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
        if (json_is_string(v) || json_is_boolean(v) || json_is_integer(v))
            add_header(net, list, name, json_is_string(v) ? json_string_value(v) : json_is_true(v) ? "true" :
                       json_is_false(v) ? "false" : number);
    }
}

static struct curl_slist *headers_of(struct mcp_peer *p, const struct net *net, const char *method,
                                     const json_t *message, const json_t *schema)
{
    union { const json_t *in; json_t *out; } u = { .in = p->c->headers };
    const json_t *params = js_get(message, "params");
    const char *named = strcmp(method, "tools/call") == 0 ? json_string_value(js_get(params, "name")) : NULL, *key;
    struct curl_slist *list = NULL;
    json_t *v;
    add_header(net, &list, "Content-Type", "application/json");
    add_header(net, &list, "Accept", "application/json, text/event-stream");
    add_header(net, &list, "Expect", "");
    json_object_foreach(u.out, key, v)
        add_header(net, &list, key, json_string_value(v));
    if (p->modern) {
        add_header(net, &list, "MCP-Protocol-Version", MCP_MODERN);
        add_header(net, &list, "Mcp-Method", method);
        if (named)
            add_header(net, &list, "Mcp-Name", named);
        add_param_headers(net, &list, schema, js_get(params, "arguments"));
        return list;
    }
    if (p->version[0] && strcmp(method, "initialize") != 0)
        add_header(net, &list, "MCP-Protocol-Version", p->version);
    pthread_mutex_lock(&p->lock);
    if (p->session[0] && strcmp(method, "initialize") != 0)
        add_header(net, &list, "Mcp-Session-Id", p->session);
    pthread_mutex_unlock(&p->lock);
    return list;
}

/* ---- the request ---- */

static void set_options(const struct net *net, CURL *c, struct post *t, const char *text, struct curl_slist *headers,
                        double timeout_s)
{
    net->easy_setopt(c, CURLOPT_URL, t->p->c->url);
    net->easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
    net->easy_setopt(c, CURLOPT_HTTPHEADER, headers);
    net->easy_setopt(c, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(text));
    net->easy_setopt(c, CURLOPT_POSTFIELDS, text);
    net->easy_setopt(c, CURLOPT_TIMEOUT_MS, (long)(timeout_s * 1000));
    net->easy_setopt(c, CURLOPT_CONNECTTIMEOUT_MS, 10000L);
    net->easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    net->easy_setopt(c, CURLOPT_USERAGENT, "zse/" ZSE_VERSION);
    net->easy_setopt(c, CURLOPT_WRITEFUNCTION, on_body);
    net->easy_setopt(c, CURLOPT_WRITEDATA, t);
    net->easy_setopt(c, CURLOPT_HEADERFUNCTION, on_header);
    net->easy_setopt(c, CURLOPT_HEADERDATA, t);
    net->easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
    net->easy_setopt(c, CURLOPT_XFERINFOFUNCTION, on_progress);
    net->easy_setopt(c, CURLOPT_XFERINFODATA, t);
}

/* Set *e if there is no answer. */
static void judge(struct mcp_peer *p, struct post *t, const struct net *net, CURLcode rc, long status, struct err *e)
{
    if (!t->answer && !t->is_stream && t->size)
        take_answer(t, t->body, t->size);
    if (t->answer)
        return;
    if (status == 404 && p->session[0]) {
        pthread_mutex_lock(&p->lock);
        p->stale = 1;                           /* the session has ended: the thread begins another one */
        pthread_mutex_unlock(&p->lock);
    }
    if (on_progress(t, 0, 0, 0, 0))
        err_set(e, ERR_CANCELLED, "%s: cancelled", p->c->name);
    else if (t->too_large)
        err_set(e, ERR_FORMAT, "%s: a message of more than %d bytes", p->c->name, MCP_MESSAGE_MAX);
    else if (rc == CURLE_OPERATION_TIMEDOUT)
        err_set(e, ERR_LIMIT, "%s: no answer in time", p->c->name);
    else if (rc != CURLE_OK)
        err_set(e, ERR_IO, "%s: %s: %s", p->c->name, p->c->url, net->easy_strerror(rc));
    else
        err_set(e, ERR_FORMAT, "%s: %s: HTTP status %ld without an answer", p->c->name, p->c->url, status);
}

json_t *http_request(struct mcp_peer *p, const char *method, const json_t *message, const json_t *schema,
                     double timeout_s, const atomic_int *cancelled, struct err *e)
{
    struct post t = { .p = p, .cancelled = cancelled, .id = json_integer_value(js_get(message, "id")) };
    struct net net;
    long status = 0;
    if (net_open(&net, e) != 0)
        return NULL;
    char *text = json_dumps(message, JSON_COMPACT);
    CURL *c = net.easy_init();
    struct curl_slist *headers = c && text ? headers_of(p, &net, method, message, schema) : NULL;
    if (headers) {
        set_options(&net, c, &t, text, headers, timeout_s);
        const CURLcode rc = net.easy_perform(c);
        net.easy_getinfo(c, CURLINFO_RESPONSE_CODE, &status);
        judge(p, &t, &net, rc, status, e);
    } else {
        err_nomem(e, p->c->name);
    }
    if (t.answer && strcmp(method, "initialize") == 0) {
        pthread_mutex_lock(&p->lock);
        snprintf(p->session, sizeof p->session, "%s", t.session);
        pthread_mutex_unlock(&p->lock);
    }
    net.slist_free_all(headers);
    if (c)
        net.easy_cleanup(c);
    free(text);
    free(t.body);
    return t.answer;
}
