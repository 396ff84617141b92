/* conn_response.c - the writing side of a connection: responses, WebSocket frames, and the pointers
 * that its owner attaches. */
#include "libcommon/http/internal.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "libcommon/base/clock.h"

const struct http_request *conn_request(const struct conn *c) { return c->parser.req; }
int conn_has_body(const struct conn *c) { return c->parser.state == HTTP_COMPLETE && !c->parser.drop_body; }
const char *conn_peer(const struct conn *c) { return c->peer; }
int conn_is_local(const struct conn *c) { return c->local; }

void conn_set_exchange(struct conn *c, void *exchange)
{
    c->exchange = exchange;
    conn_settle(c, 0);
}

void *conn_exchange(const struct conn *c) { return c->exchange; }
void conn_set_record(struct conn *c, void *record) { c->record = record; }
void *conn_record(const struct conn *c) { return c->record; }
int conn_is_complete(const struct conn *c) { return c->ended; }
int conn_status(const struct conn *c) { return c->status; }
int conn_is_websocket(const struct conn *c) { return c->mode == CONN_WEBSOCKET || c->switching; }
void conn_set_tag(struct conn *c, int tag) { c->tag = tag; }
int conn_tag(const struct conn *c) { return c->tag; }

/* ---- responses ---- */

void conn_add_header(struct conn *c, const char *name, const char *value)
{
    buf_printf(&c->headers, "%s: %s\r\n", name, value);
}

void conn_set_header(struct conn *c, const char *name, const char *value)
{
    const size_t n = strlen(name);
    size_t at = 0;
    while (at < c->headers.size) {
        char *line = c->headers.data + at, *end = memchr(line, '\n', c->headers.size - at);
        const size_t size = (size_t)(end - line) + 1;
        if (size > n && strncmp(line, name, n) == 0 && line[n] == ':') {
            memmove(line, end + 1, c->headers.size - at - size);
            c->headers.size -= size;
        } else {
            at += size;
        }
    }
    conn_add_header(c, name, value);
}

static void response_head(struct conn *c, int status, const char *type)
{
    char date[40];
    time_t now = time(NULL);
    struct tm tm;
    gmtime_r(&now, &tm);
    strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", &tm);
    buf_printf(&c->out, "HTTP/1.1 %d %s\r\nDate: %s\r\nServer: zse-serve/%s\r\n", status, http_reason(status), date,
               ZSE_VERSION);
    if (type)
        buf_printf(&c->out, "Content-Type: %s\r\n", type);
    buf_add(&c->out, c->headers.data, c->headers.size);
    c->out.failed |= c->headers.failed;
    buf_release(&c->headers);
    c->begun = 1;
    c->status = status;
    c->progress_ns = clock_ns();
    conn_mark_dirty(c);
}

static void connection_header(struct conn *c)
{
    const struct http_request *r = c->parser.req;
    if (!c->l->listening)
        c->close_after = 1;
    if (c->close_after)
        buf_str(&c->out, "Connection: close\r\n");
    else if (r && r->minor == 0)
        buf_str(&c->out, "Connection: keep-alive\r\n");
}

void conn_reply(struct conn *c, int status, const char *type, const void *body, size_t size)
{
    response_head(c, status, type);
    connection_header(c);
    if (status != 204 && status != 304)
        buf_printf(&c->out, "Content-Length: %zu\r\n", size);
    buf_str(&c->out, "\r\n");
    if (!c->head_only)
        buf_add(&c->out, body, size);
    c->ended = 1;
    conn_end_record(c);
    c->exchange = NULL;
}

void conn_begin(struct conn *c, int status, const char *type)
{
    const struct http_request *r = c->parser.req;
    response_head(c, status, type);
    c->chunked = r && r->minor == 1;
    if (c->chunked)
        buf_str(&c->out, "Transfer-Encoding: chunked\r\n");
    else
        c->close_after = 1;
    connection_header(c);
    buf_str(&c->out, "\r\n");
}

void conn_write(struct conn *c, const void *data, size_t size)
{
    if (size == 0 || c->head_only)
        return;
    if (c->out.size == 0)
        c->progress_ns = clock_ns();
    if (c->chunked)
        buf_printf(&c->out, "%zx\r\n", size);
    buf_add(&c->out, data, size);
    if (c->chunked)
        buf_add(&c->out, "\r\n", 2);
    conn_mark_dirty(c);
}

void conn_end(struct conn *c)
{
    if (c->chunked && !c->head_only)
        buf_str(&c->out, "0\r\n\r\n");
    c->ended = 1;
    conn_end_record(c);
    c->exchange = NULL;
    conn_mark_dirty(c);
}

void conn_break(struct conn *c)
{
    c->out.failed = 1;
    conn_mark_dirty(c);
}

/* ---- WebSockets ---- */

int conn_upgrade(struct conn *c)
{
    static const char wanted[] = "this address speaks WebSocket (RFC 6455, version 13)";
    const struct http_request *r = c->parser.req;
    const char *version = http_field(r, "Sec-WebSocket-Version");
    char accept[29];
    int asked = strcmp(r->method, "GET") == 0 && r->minor == 1 && c->parser.state == HTTP_COMPLETE &&
                http_has_token(http_field(r, "Upgrade"), "websocket") &&
                http_has_token(http_field(r, "Connection"), "upgrade");
    if (!asked || !version || strcmp(version, "13") != 0 ||
        ws_accept(http_field(r, "Sec-WebSocket-Key"), accept) != 0) {
        conn_add_header(c, "Upgrade", "websocket");
        conn_add_header(c, "Sec-WebSocket-Version", "13");
        if (c->l->o.on_refused)
            c->l->o.on_refused(c->l->o.user, c, 426, wanted);
        else
            conn_reply(c, 426, "text/plain", wanted, strlen(wanted));
        return -1;
    }
    if (!(c->ws = calloc(1, sizeof *c->ws))) {
        conn_reply(c, 503, "text/plain", "out of memory", 13);
        return -1;
    }
    conn_add_header(c, "Upgrade", "websocket");
    conn_add_header(c, "Connection", "Upgrade");
    conn_add_header(c, "Sec-WebSocket-Accept", accept);
    response_head(c, 101, NULL);
    buf_str(&c->out, "\r\n");
    c->close_after = 0;
    c->ended = c->switching = 1;
    conn_end_record(c);
    return 0;
}

void conn_send_text(struct conn *c, const char *text, size_t size)
{
    if (c->dead || c->close_after)
        return;
    if (c->out.size == 0)
        c->progress_ns = clock_ns();
    ws_frame(&c->out, WS_TEXT, text, size);
    conn_mark_dirty(c);
}

void conn_websocket_close(struct conn *c, int status)
{
    if (c->dead || c->close_after)
        return;
    ws_close_frame(&c->out, status);
    c->close_after = 1;
    conn_mark_dirty(c);
}
