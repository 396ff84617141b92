/* bench_client.c - stream answers of an OpenAI server with libcurl, many at once in one thread. */
#include "cmd/bench_client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/json.h"
#include "libcommon/hub/net.h"
#include "libcommon/http/buf.h"

enum { MOST_ANSWER = 1 << 24,           /* bytes of a line of a stream, or of an answer that is not streamed */
       BUSY_NS = 20000000 };            /* pause before a busy server is asked again */

struct transfer {
    struct client_stream s;
    struct client *client;
    struct transfer *next;               /* list of running transfers */
    CURL *curl;
    const struct client_events *events;
    struct buf body, got;               /* got: the incomplete last line of a stream, or an answer so far */
    /* streams: the request asks for a stream; ended: "[DONE]" or a finish_reason came */
    int streams, ended;
};

struct client {
    struct net net;
    CURLM *multi;
    struct curl_slist *headers;
    char *base;                         /* "http://host:port/v1" */
    long timeout_ms;
    struct transfer *running;
};

/* ---- open and close ---- */

static char *base_of(const char *url)
{
    char *base;
    size_t n = strlen(url);
    while (n > 0 && url[n - 1] == '/')
        n--;
    const int whole = n > 3 && memcmp(url + n - 3, "/v1", 3) == 0;
    return asprintf(&base, "%.*s%s", (int)n, url, whole ? "" : "/v1") < 0 ? NULL : base;
}

static int add_header(struct client *c, const char *text)
{
    struct curl_slist *more = c->net.slist_append(c->headers, text);
    if (more)
        c->headers = more;
    return more ? 0 : -1;
}

struct client *client_open(const char *url, const char *key, double timeout_s, struct err *e)
{
    struct client *c = calloc(1, sizeof *c);
    char *auth = NULL;
    if (strncmp(url, "http://", 7) != 0 && strncmp(url, "https://", 8) != 0) {
        err_set(e, ERR_IO, "%s: expected an address like http://127.0.0.1:8000", url);
        free(c);
        return NULL;
    }
    if (c && net_open(&c->net, e) != 0) {
        free(c);
        return NULL;
    }
    int ok = c && (c->multi = c->net.multi_init()) && (c->base = base_of(url)) &&
             add_header(c, "Content-Type: application/json") == 0 && add_header(c, "Expect:") == 0;
    if (ok && key)
        ok = asprintf(&auth, "Authorization: Bearer %s", key) >= 0 && add_header(c, auth) == 0;
    free(auth);
    if (ok) {
        c->timeout_ms = (long)(timeout_s * 1e3);
        return c;
    }
    err_nomem(e, "client");
    client_close(c);
    return NULL;
}

static void free_transfer(struct client *c, struct transfer *r)
{
    struct transfer **at = &c->running;
    while (*at && *at != r)
        at = &(*at)->next;
    if (*at)
        *at = r->next;
    c->net.multi_remove_handle(c->multi, r->curl);
    c->net.easy_cleanup(r->curl);
    buf_release(&r->body);
    buf_release(&r->got);
    free(r);
}

void client_close(struct client *c)
{
    if (!c)
        return;
    while (c->running)
        free_transfer(c, c->running);
    if (c->multi)
        c->net.multi_cleanup(c->multi);
    c->net.slist_free_all(c->headers);
    free(c->base);
    free(c);
}

/* ---- answers ---- */

static const char *text_of(const json_t *o, const char *name)
{
    const json_t *v = js_get(o, name);
    return json_is_string(v) ? json_string_value(v) : "";
}

static void take_count(const json_t *o, const char *name, int *out)
{
    const json_t *v = js_get(o, name);
    if (json_is_integer(v))
        *out = (int)json_integer_value(v);
}

static void take_usage(struct client_stream *s, const json_t *usage)
{
    take_count(usage, "prompt_tokens", &s->prompt_tokens);
    take_count(usage, "completion_tokens", &s->completion_tokens);
    take_count(js_get(usage, "prompt_tokens_details"), "cached_tokens", &s->cached_tokens);
}

/* {"error":{"message":...}} or {"error":"..."} as a sentence. */
static void take_error(struct client_stream *s, const json_t *error)
{
    const char *text = json_is_string(error) ? json_string_value(error) : text_of(error, "message");
    if (!*s->error)
        snprintf(s->error, sizeof s->error, "%.200s", *text ? text : "an error without a message");
}

/* Handle one event of the stream, given its data. */
static void take_event(struct transfer *r, const char *data, size_t n)
{
    struct client_stream *s = &r->s;
    if (n == 6 && memcmp(data, "[DONE]", 6) == 0) {
        r->ended = 1;
        return;
    }
    json_t *j = json_loadb(data, n, 0, NULL);
    const json_t *choice = json_array_get(js_get(j, "choices"), 0), *delta = js_get(choice, "delta");
    if (!j && !*s->error)
        snprintf(s->error, sizeof s->error, "an event of the stream is no JSON");
    if (js_get(j, "error"))
        take_error(s, js_get(j, "error"));
    if (js_get(j, "usage"))
        take_usage(s, js_get(j, "usage"));
    r->ended |= json_is_string(js_get(choice, "finish_reason"));
    if (*text_of(choice, "text") || *text_of(delta, "content") || *text_of(delta, "reasoning_content") ||
        *text_of(delta, "reasoning")) {
        const double now = clock_s();
        s->n_events++;
        if (s->n_events == 1)
            s->first_s = now;
        if (r->events->on_text)
            r->events->on_text(s, now);
        s->last_s = now;
    }
    json_decref(j);
}

static void take_lines(struct transfer *r)
{
    char *begin = r->got.data, *end = begin + r->got.size, *nl;
    for (; begin < end && (nl = memchr(begin, '\n', (size_t)(end - begin))); begin = nl + 1) {
        size_t n = (size_t)(nl - begin);
        n -= n > 0 && begin[n - 1] == '\r';
        if (n < 5 || memcmp(begin, "data:", 5) != 0)
            continue;                   /* an empty line, a comment, or another field */
        const size_t skip = n > 5 && begin[5] == ' ' ? 6 : 5;
        take_event(r, begin + skip, n - skip);
    }
    buf_drop(&r->got, (size_t)(begin - r->got.data));
}

static size_t on_bytes(char *data, size_t size, size_t n, void *user)
{
    struct transfer *r = user;
    long status = 0;
    r->client->net.easy_getinfo(r->curl, CURLINFO_RESPONSE_CODE, &status);
    buf_add(&r->got, data, size * n);
    if (r->got.failed || r->got.size > MOST_ANSWER)
        return 0;                       /* makes curl abort the transfer */
    if (r->streams && status == 200)
        take_lines(r);
    return size * n;
}

/* ---- requests ---- */

static struct transfer *new_transfer(struct client *c, const char *path, const char *body, int streams, struct err *e)
{
    struct transfer *r = calloc(1, sizeof *r);
    char *url = NULL;
    if (!r || !(r->curl = c->net.easy_init()) || asprintf(&url, "%s%s", c->base, path) < 0) {
        err_nomem(e, "request");
        if (r && r->curl)
            c->net.easy_cleanup(r->curl);
        free(r);
        return NULL;
    }
    r->client = c;
    r->streams = streams;
    r->s.prompt_tokens = r->s.cached_tokens = r->s.completion_tokens = -1;
    c->net.easy_setopt(r->curl, CURLOPT_URL, url);
    c->net.easy_setopt(r->curl, CURLOPT_HTTPHEADER, c->headers);
    c->net.easy_setopt(r->curl, CURLOPT_WRITEFUNCTION, on_bytes);
    c->net.easy_setopt(r->curl, CURLOPT_WRITEDATA, r);
    c->net.easy_setopt(r->curl, CURLOPT_PRIVATE, r);
    c->net.easy_setopt(r->curl, CURLOPT_NOSIGNAL, 1L);
    c->net.easy_setopt(r->curl, CURLOPT_TCP_NODELAY, 1L);
    c->net.easy_setopt(r->curl, CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_1_1);
    c->net.easy_setopt(r->curl, CURLOPT_PROTOCOLS_STR, "http,https");
    c->net.easy_setopt(r->curl, CURLOPT_TIMEOUT_MS, c->timeout_ms);
    c->net.easy_setopt(r->curl, CURLOPT_CONNECTTIMEOUT_MS, 10000L);
    free(url);
    if (body) {
        buf_str(&r->body, body);
        if (r->body.failed)
            r->body.size = 0;
        c->net.easy_setopt(r->curl, CURLOPT_POSTFIELDS, r->body.data);
        c->net.easy_setopt(r->curl, CURLOPT_POSTFIELDSIZE, (long)r->body.size);
    }
    return r;
}

/* Set r->s.error from an answer whose status is not 200. */
static void refusal(struct transfer *r, long status)
{
    json_t *j = json_loadb(r->got.data ? r->got.data : "", r->got.size, 0, NULL);
    char text[sizeof r->s.error];
    take_error(&r->s, js_get(j, "error") ? js_get(j, "error") : j);
    snprintf(text, sizeof text, "HTTP %ld: %.200s", status, r->s.error);
    memcpy(r->s.error, text, sizeof text);
    json_decref(j);
}

static void judge(struct transfer *r, CURLcode code)
{
    long status = 0;
    r->client->net.easy_getinfo(r->curl, CURLINFO_RESPONSE_CODE, &status);
    if (code != CURLE_OK && !*r->s.error)
        snprintf(r->s.error, sizeof r->s.error, "%s", r->client->net.easy_strerror(code));
    else if (status != 200)
        refusal(r, status);
    else if (r->streams && !r->ended && !*r->s.error)
        snprintf(r->s.error, sizeof r->s.error, "the stream ended early");
}

json_t *client_ask(struct client *c, const char *path, const char *body, double wait_s, struct err *e)
{
    const double until = clock_s() + wait_s;
    struct transfer *r = new_transfer(c, path, body, 0, e);
    json_t *j = NULL;
    long status = 0;
    if (!r)
        return NULL;
    for (;;) {
        judge(r, c->net.easy_perform(r->curl));
        r->client->net.easy_getinfo(r->curl, CURLINFO_RESPONSE_CODE, &status);
        if (status != 503 || clock_s() >= until)
            break;
        nanosleep(&(struct timespec){ .tv_nsec = BUSY_NS }, NULL);
        *r->s.error = '\0';
        r->got.size = 0;
    }
    if (*r->s.error)
        err_set(e, ERR_IO, "%s%s: %s", c->base, path, r->s.error);
    else if (!(j = json_loadb(r->got.data ? r->got.data : "", r->got.size, 0, NULL)))
        err_set(e, ERR_FORMAT, "%s%s: the answer is no JSON", c->base, path);
    free_transfer(c, r);
    return j;
}

struct client_stream *client_start(struct client *c, const char *path, const char *body,
                                   const struct client_events *events,
                            void *user, int kind, struct err *e)
{
    struct transfer *r = new_transfer(c, path, body, 1, e);
    if (!r)
        return NULL;
    r->s.user = user;
    r->s.kind = kind;
    r->events = events;
    r->s.start_s = clock_s();
    if (r->body.failed || c->net.multi_add_handle(c->multi, r->curl) != CURLM_OK) {
        err_nomem(e, "request");
        free_transfer(c, r);
        return NULL;
    }
    r->next = c->running;
    c->running = r;
    return &r->s;
}

/* Report transfers that have ended and free them; returns their number. */
static int finish_ended(struct client *c)
{
    int n = 0, left;
    CURLMsg *m;
    while ((m = c->net.multi_info_read(c->multi, &left))) {
        struct transfer *r;
        if (m->msg != CURLMSG_DONE)
            continue;
        c->net.easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&r);
        r->s.end_s = clock_s();
        judge(r, m->data.result);
        r->events->on_end(&r->s);
        free_transfer(c, r);
        n++;
    }
    return n;
}

int client_wait(struct client *c, int timeout_ms, struct err *e)
{
    int n = 0;
    CURLMcode code = c->net.multi_perform(c->multi, &n);      /* send new requests before waiting */
    if (code == CURLM_OK && finish_ended(c) == 0 && timeout_ms > 0) {
        code = c->net.multi_poll(c->multi, NULL, 0, timeout_ms, NULL);
        if (code == CURLM_OK)
            code = c->net.multi_perform(c->multi, &n);
        finish_ended(c);
    }
    if (code != CURLM_OK)
        return err_set(e, ERR_IO, "libcurl: error %d", (int)code);
    n = 0;
    for (const struct transfer *r = c->running; r; r = r->next)
        n++;
    return n;
}
