/* conn_request.c - the reading side of a connection: bytes to requests and WebSocket messages. */
#include "libcommon/http/internal.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include <openssl/ssl.h>

#include "libcommon/base/clock.h"

/* Bytes per read.  READ_SIZE: if they are parsed or dropped immediately; READ_SMALL: if they may
 * accumulate. */
enum { READ_SIZE = 1 << 16, READ_SMALL = 1 << 14, DROPPED_BODY = 1 << 16, MAX_WS_MESSAGE = 4 << 20,
       MESSAGES_AT_ONCE = 8, LINGER_BYTES = 64 << 20 };

/* ---- requests ---- */

void conn_refuse(struct conn *c, int status, const char *why)
{
    const struct http_request *r = c->parser.req;
    c->busy = 1;
    c->close_after = 1;
    c->status = 0;
    c->head_only = r && r->method && strcmp(r->method, "HEAD") == 0;
    if (c->l->o.on_refused)
        c->l->o.on_refused(c->l->o.user, c, status, why);
    else
        conn_reply(c, status, "text/plain", why, strlen(why));
}

static void refuse_memory(struct conn *c)
{
    struct problem pr;
    conn_hold_problem(c, &pr);
    conn_refuse(c, pr.status, pr.message);
}

/* A head is complete and a body follows: start the body's time limit, and send 100 Continue if the
 * client expects it. */
static void on_head_seen(struct conn *c)
{
    static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";
    if (c->body_from_ns)
        return;
    c->body_from_ns = clock_ns();
    if (c->parser.req->expects_continue && c->parser.state != HTTP_COMPLETE && c->in.size == 0) {
        buf_add(&c->out, go_on, sizeof go_on - 1);
        conn_mark_dirty(c);
    }
}

/* Pass the request to on_request; whole 0: its body was not read. */
static void hand_over(struct conn *c, int whole)
{
    c->busy = 1;
    c->body_from_ns = 0;
    c->body_seen = 0;
    c->deadline_ns = 0;
    c->status = 0;
    c->close_after = !whole || !c->parser.req->keep_alive;
    c->head_only = strcmp(c->parser.req->method, "HEAD") == 0;
    c->l->o.on_request(c->l->o.user, c);
}

/* A head announces a body: keep it, discard it, or do not read it.  0: the request was passed on
 * without it. */
static int begin_body(struct conn *c)
{
    struct http_parser *p = &c->parser;
    const size_t size = p->state == HTTP_BODY ? p->left : SIZE_MAX;
    p->drop_body = c->l->o.on_body && !c->l->o.on_body(c->l->o.user, c, size);
    if (!p->drop_body || (!p->req->expects_continue && (size == SIZE_MAX || size <= DROPPED_BODY)))
        return 1;
    hand_over(c, 0);
    return 0;
}

/* Parse the received bytes, and pass on a complete request. */
static void next_http(struct conn *c)
{
    /* the first bytes of a request start its time limit */
    if (c->in.size && c->parser.state == HTTP_HEAD && c->body_seen == 0) {
        c->deadline_ns = conn_deadline(c->l->o.head_s);
        c->body_seen = 1;
    }
    enum http_answer a = http_parse(&c->parser, &c->in, &c->l->o.http);
    if (a == HTTP_BODY_FOLLOWS) {
        if (!begin_body(c))
            return;
        a = http_parse(&c->parser, &c->in, &c->l->o.http);
    }
    switch (a) {
    case HTTP_MORE: case HTTP_BODY_FOLLOWS:
        if (c->eof)
            conn_kill(c);
        else if (c->parser.drop_body && c->parser.body_bytes + c->parser.left > DROPPED_BODY)
            hand_over(c, 0);
        else if (conn_hold_buffers(c) != HOLD_OK)
            refuse_memory(c);
        else if (c->parser.req)
            on_head_seen(c);
        return;
    case HTTP_REFUSED:
        conn_refuse(c, c->parser.status, c->parser.why);
        return;
    case HTTP_DONE:
        hand_over(c, 1);
        return;
    }
}

/* Parse the received frames, and pass on complete messages, but only a few in a round of the loop,
 * so that other connections get their turn.  The account must admit the bytes that stay
 * buffered. */
static void next_message(struct conn *c)
{
    char data[125];
    size_t size, at = 0;
    int status, more = 1, n = 0;
    while (more && !c->dead && c->mode == CONN_WEBSOCKET && !c->close_after) {
        switch (ws_parse(c->ws, &c->in, &at, MAX_WS_MESSAGE, data, &size, &status)) {
        case WS_MORE:
            more = 0;
            break;
        case WS_FRAGMENT: case WS_GOT_PONG:
            break;
        case WS_GOT_PING:
            ws_frame(&c->out, WS_PONG, data, size);
            conn_mark_dirty(c);
            break;
        case WS_GOT_CLOSE: case WS_BAD:
            conn_websocket_close(c, status);
            more = 0;
            break;
        case WS_MESSAGE:
            buf_add(&c->ws->message, "", 1);
            if (c->ws->message.failed)
                conn_websocket_close(c, 1011);
            else
                c->l->o.on_message(c->l->o.user, c, c->ws->message.data, c->ws->message.size - 1);
            ws_next(c->ws);
            more = ++n < MESSAGES_AT_ONCE;
            break;
        }
    }
    if (c->dead)
        return;
    buf_drop(&c->in, at);
    c->more = n == MESSAGES_AT_ONCE && c->in.size > 0 && !c->close_after;
    if (c->more)
        conn_mark_dirty(c);
    if (!c->close_after && conn_hold_buffers(c) != HOLD_OK)
        conn_websocket_close(c, 1013);  /* try again later */
    if (c->close_after) {
        buf_release(&c->in);
        ws_next(c->ws);
        conn_hold_buffers(c);
    }
}

void conn_next_request(struct conn *c)
{
    if (c->mode == CONN_WEBSOCKET)
        next_message(c);
    else if (c->mode == CONN_HTTP && (c->in.size || c->eof))
        next_http(c);
}

/* ---- bytes ---- */

/* Bytes to read at once without buffering too many: a body is parsed immediately, but a head or a
 * pipelined request waits in c->in. */
static size_t read_size(const struct conn *c)
{
    return c->mode == CONN_HTTP && (c->busy || !c->parser.req) ? READ_SMALL : READ_SIZE;
}

/* Discard bytes that arrive after we have shut down our side.  They are not decrypted and, if they
 * come over TCP, not even copied (tcp(7), MSG_TRUNC). */
static void read_past(struct conn *c)
{
    char bytes[READ_SIZE];
    for (int round = 0; round < 16; round++) {
        ssize_t n = recv(c->source.fd, bytes, sizeof bytes, MSG_TRUNC);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n <= 0 || (c->body_seen += (size_t)n) > LINGER_BYTES) {
            conn_kill(c);
            return;
        }
    }
}

void conn_read(struct conn *c)
{
    char bytes[READ_SIZE];
    if (c->mode == CONN_LINGER) {
        read_past(c);
        return;
    }
    /* epoll does not report the bytes that OpenSSL has read already */
    for (int round = 0; round < 16 || (c->ssl && SSL_pending(c->ssl) > 0); round++) {
        const size_t room = read_size(c);
        long n = conn_receive(c, bytes, room);
        if (n == -1)
            break;
        if (n == -2) {
            conn_kill(c);
            return;
        }
        if (n == 0) {
            c->eof = 1;
            break;
        }
        c->received_ns = clock_ns();
        c->pinged_ns = 0;
        /* the bytes of an incomplete head do not count as activity: a client that sends heads
         * slowly must not occupy places that other clients of its address need */
        conn_settle(c, c->place.known || c->busy || c->mode != CONN_HTTP || c->parser.req != NULL);
        if (c->mode == CONN_WEBSOCKET && c->close_after)
            continue;                   /* nothing after our close frame counts */
        buf_add(&c->in, bytes, (size_t)n);
        if (c->in.failed) {
            conn_kill(c);
            return;
        }
        if (!c->busy)
            conn_next_request(c);
        if (c->dead || c->more || (c->busy && c->in.size >= MAX_PIPELINED))
            break;
        if (c->mode == CONN_LINGER || (!c->ssl && (size_t)n < room))
            break;
    }
    if (c->dead || !c->eof)
        return;
    /* The client has closed, so it will not read a response in progress. */
    if (c->exchange || c->mode != CONN_HTTP || (!c->busy && c->out.size == 0))
        conn_kill(c);
}
