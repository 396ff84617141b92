/* reply.c - answers of handlers, small bodies, the client's address. */
#include "libcommon/serve/reply.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "libcommon/base/json.h"
#include "libcommon/serve/internal.h"

void reply_json(struct server *s, struct conn *c, int status, const struct buf *json)
{
    if (json->failed) {
        reply_refusal(s, c, 503, NULL, "out of memory");
        return;
    }
    metrics_count(&s->metrics, conn_route(c), status);
    conn_reply(c, status, "application/json", json->data, json->size);
}

void reply_text(struct server *s, struct conn *c, const struct buf *text)
{
    if (text->failed) {
        reply_refusal(s, c, 503, NULL, "out of memory");
        return;
    }
    metrics_count(&s->metrics, conn_route(c), 200);
    conn_reply(c, 200, "text/plain; charset=utf-8", text->data, text->size);
}

/* Remove the folder from the paths in a message, so that clients see names of files only. */
static void hide_home(const struct server *s, struct problem *p)
{
    const size_t n = s->o.home ? strlen(s->o.home) : 0;
    char *at = p->message;
    while (n && (at = strstr(at, s->o.home)))
        if (at[n] == '/')
            memmove(at, at + n + 1, strlen(at + n + 1) + 1);
        else
            at += n;
}

void reply_problem(struct server *s, struct conn *c, const struct problem *p)
{
    struct buf out = { 0 };
    struct problem shown = *p;
    if (p->status >= 500)
        hide_home(s, &shown);
    if (route_is_ollama(conn_route(c)))
        problem_text_json(&shown, &out);
    else
        problem_json(&shown, &out);
    metrics_count(&s->metrics, conn_route(c), out.failed ? 503 : p->status);
    record_error(conn_record(c), p);
    if (out.failed)
        conn_reply(c, 503, "application/json", problem_unsaid, strlen(problem_unsaid));
    else
        conn_reply(c, p->status, "application/json", out.data, out.size);
    buf_release(&out);
}

void reply_refusal(struct server *s, struct conn *c, int status, const char *code, const char *fmt, ...)
{
    struct problem p;
    char text[500];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    problem_set(&p, status, NULL, code, "%s", text);
    reply_problem(s, c, &p);
}

void reply_object(struct server *s, struct conn *c, int status, json_t *json)
{
    struct buf out = { 0 };
    char *text = json ? json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(13)) : NULL;
    if (text)
        buf_str(&out, text);
    else
        out.failed = 1;
    reply_json(s, c, status, &out);
    buf_release(&out);
    free(text);
    json_decref(json);
}

json_t *read_body(struct server *s, struct conn *c, body_set kind, struct params *p)
{
    return read_body_upto(s, c, kind, INLINE_BODY, p);
}

json_t *read_body_upto(struct server *s, struct conn *c, body_set kind, size_t most, struct params *p)
{
    const struct http_request *r = conn_request(c);
    struct problem pr;
    struct err e;
    if (r->body.size > most) {
        reply_refusal(s, c, 413, "body_too_large", "a body of %zu bytes, expected at most %zu", r->body.size, most);
        return NULL;
    }
    json_t *body = js_parse("body", r->body.size ? r->body.data : "{}", r->body.size ? r->body.size : 2, &e);
    if (!body)
        problem_err(&pr, NULL, "invalid_json", &e);
    else if (fields_parse(body, kind, p, &pr) == 0)
        return body;
    reply_problem(s, c, &pr);
    json_decref(body);
    return NULL;
}

/* Copy the address without the port of "10.0.0.1:5678" or "[2001:db8::1]:5678", as some proxies
 * write it, because the port differs for each connection. */
static void without_port(const char *text, char out[64])
{
    const char *colon = strchr(text, ':');
    if (*text == '[')
        snprintf(out, 64, "%.*s", (int)strcspn(text + 1, "]"), text + 1);
    else if (colon && !strchr(colon + 1, ':'))
        snprintf(out, 64, "%.*s", (int)(colon - text), text);
    else
        snprintf(out, 64, "%s", text);
}

const char *client_address(const struct server *s, const struct conn *c, char out[64])
{
    const struct http_request *r = s->o.trust_proxy ? conn_request(c) : NULL;
    const char *list = NULL;
    /* use the last such field, because a proxy may add its own after the client's */
    for (int i = 0; r && i < r->n_fields; i++)
        if (strcasecmp(r->field[i].name, "X-Forwarded-For") == 0)
            list = r->field[i].value;
    const char *last = list ? strrchr(list, ',') : NULL;
    if (!list)
        return conn_peer(c);
    /* the element that our proxy added; the client may have forged the others */
    list = last ? last + 1 : list;
    without_port(list + strspn(list, " "), out);
    return out;
}
