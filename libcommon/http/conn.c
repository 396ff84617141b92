#include "libcommon/http/conn.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <openssl/err.h>

#include "libcommon/base/clock.h"
#include "libcommon/http/internal.h"

/* READ_SMALL: at a time where it may pile up; READ_SIZE: of what is parsed or dropped at once. */
enum { READ_SIZE = 1 << 16, READ_SMALL = 1 << 14, MAX_AHEAD = 1 << 14, DROPPED_BODY = 1 << 16, MAX_WS_MESSAGE = 4 << 20,
       LINGER_BYTES = 64 << 20, MAX_FLUSH = 1 << 20, HELLO_HEAD = 9, MAX_HELLO = 1 << 14 };
static const double second = 1e9;

static uint64_t after(double s) { return clock_ns() + (uint64_t)(s * second); }

static void list_add(struct conn **list, struct conn *c)
{
    c->prev = NULL;
    c->next = *list;
    if (c->next)
        c->next->prev = c;
    *list = c;
}

static void list_remove(struct conn **list, struct conn *c)
{
    if (c->prev)
        c->prev->next = c->next;
    else
        *list = c->next;
    if (c->next)
        c->next->prev = c->prev;
}

struct conn *conn_open(struct loop *l, int fd, const struct listener *at, const char *peer, uint64_t address)
{
    struct conn *c = calloc(1, sizeof *c);
    struct epoll_event ev = { .events = EPOLLIN, .data.ptr = c };
    if (!c)
        return NULL;
    c->source = (struct source){ SOURCE_CONN, fd };
    c->l = l;
    c->hold = hold_for(l->o.account, 0);
    c->local = at->local;
    c->mode = at->tls ? CONN_HANDSHAKE : CONN_HTTP;
    c->events = EPOLLIN;
    c->deadline_ns = after(l->o.head_s);
    snprintf(c->peer, sizeof c->peer, "%s", peer);
    if (at->tls && (!(c->ssl = SSL_new(l->tls)) || SSL_set_fd(c->ssl, fd) != 1)) {
        SSL_free(c->ssl);
        free(c);
        return NULL;
    }
    if (c->ssl) {
        SSL_set_accept_state(c->ssl);
        setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &(int){ HELLO_HEAD }, sizeof(int));
    }
    c->handshake = (struct handshake){ .ssl = c->ssl, .owner = address };
    if (places_enter(l->places, &c->place, address, clock_ns()) != 0 ||
        epoll_ctl(l->epoll, EPOLL_CTL_ADD, fd, &ev) != 0) {
        places_leave(l->places, &c->place);
        SSL_free(c->ssl);
        free(c);
        return NULL;
    }
    list_add(&l->conns, c);
    l->counts.accepted++;
    return c;
}

static void forget_request(struct conn *c)
{
    if (c->parser.req)
        reaper_take(c->l->reaper, &c->parser.req->body);
    http_reset(&c->parser);
}

void conn_free(struct conn *c)
{
    SSL_free(c->ssl);
    reaper_take(c->l->reaper, &c->in);
    reaper_take(c->l->reaper, &c->out);
    buf_release(&c->headers);
    forget_request(c);
    if (c->ws)
        ws_next(c->ws);
    free(c->ws);
    hold_release(&c->hold);
    free(c);
}

static void answered(struct conn *c)
{
    if (c->record && c->l->o.on_answered)
        c->l->o.on_answered(c->l->o.user, c);
}

/* It is freed at the end of the round. */
static void bury(struct conn *c)
{
    c->next = c->l->dead;
    c->l->dead = c;
}

void conn_kill(struct conn *c)
{
    struct loop *l = c->l;
    if (c->dead)
        return;
    c->dead = 1;
    if (c->exchange && l->o.on_gone)
        l->o.on_gone(l->o.user, c);
    c->exchange = NULL;
    answered(c);
    const int away = c->handshake.away && !handshakes_withdraw(l->handshakes, &c->handshake);
    if (!away)
        close(c->source.fd);
    list_remove(&l->conns, c);
    if (away)
        list_add(&l->away, c);
    else
        bury(c);
    places_leave(l->places, &c->place);
}

/* Work that an eviction would throw away keeps a connection; one without a good key has none,
 * only an answer that it does not take. */
static void settle(struct conn *c, int active)
{
    if (!c->dead)
        places_update(c->l->places, &c->place, !c->exchange && !(c->place.known && (c->busy || c->out.size > 0)),
                      active, clock_ns());
}

void conn_own(struct conn *c, uint64_t owner)
{
    places_own(c->l->places, &c->place, owner);
    settle(c, 1);
}

/* Tell epoll what this connection waits for. */
static void watch(struct conn *c)
{
    int may_read = !c->eof && !(c->busy && c->mode == CONN_HTTP && c->in.size >= MAX_AHEAD);
    uint32_t want = (may_read ? (uint32_t)EPOLLIN : 0) |
                    (c->out.size > 0 || c->ssl_wants_write ? (uint32_t)EPOLLOUT : 0);
    if (want == c->events)
        return;
    struct epoll_event ev = { .events = want, .data.ptr = c };
    c->events = want;
    epoll_ctl(c->l->epoll, EPOLL_CTL_MOD, c->source.fd, &ev);
}

/* Flush at the end of this round. */
static void dirty(struct conn *c)
{
    if (c->dirty || c->dead)
        return;
    c->dirty = 1;
    c->next_dirty = c->l->dirty;
    c->l->dirty = c;
}

/* ---- memory ---- */

static size_t held(size_t bytes) { return bytes > HELD_FROM ? bytes : 0; }

/* A body that grows has room for half as much again. */
static size_t body_room(size_t size) { return held(size + size / 2); }

/* What this connection holds, from now on. */
static enum hold_answer hold_buffers(struct conn *c)
{
    const struct http_parser *p = &c->parser;
    const int comes = p->req && !p->drop_body && (p->state == HTTP_BODY || p->state == HTTP_CHUNK);
    const size_t body = comes ? body_room(p->req->body.size + p->left) : p->req ? held(p->req->body.room) : 0;
    c->not_held = body + held(c->out.room) + held(c->in.room) + (c->ws ? held(c->ws->message.room) : 0);
    return c->no_hold = hold_set(&c->hold, c->not_held);
}

int conn_hold_body(struct conn *c, uint64_t tenant, size_t size)
{
    hold_release(&c->hold);
    c->hold.id = tenant;
    c->not_held = size == SIZE_MAX ? 0 : body_room(size);
    return (c->no_hold = hold_set(&c->hold, c->not_held)) == HOLD_OK;
}

int conn_hold_problem(const struct conn *c, struct problem *pr)
{
    return c->no_hold == HOLD_OK ? 0 : hold_problem(&c->hold, c->no_hold, c->not_held, pr);
}

void conn_take_body(struct conn *c, struct buf *to)
{
    *to = c->parser.req->body;
    c->parser.req->body = (struct buf){ 0 };
    hold_buffers(c);
}

/* ---- bytes ---- */

/* read() and write() of a connection, plain or TLS: > 0 bytes, 0 the end, -1 later, -2 broken.
 * What lies in OpenSSL's queue of errors before a call would be taken for the call's
 * (SSL_get_error(3)). */
static long tls_result(struct conn *c, int rc)
{
    int why = SSL_get_error(c->ssl, rc);
    c->ssl_wants_write = why == SSL_ERROR_WANT_WRITE;
    return why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE ? -1 : why == SSL_ERROR_ZERO_RETURN ? 0 : -2;
}

static long receive(struct conn *c, void *to, size_t n)
{
    if (c->ssl) {
        ERR_clear_error();
        int rc = SSL_read(c->ssl, to, (int)n);
        return rc > 0 ? rc : tls_result(c, rc);
    }
    ssize_t rc = recv(c->source.fd, to, n, 0);
    return rc >= 0 ? (long)rc : errno == EAGAIN || errno == EINTR ? -1 : -2;
}

static long transmit(struct conn *c, const void *from, size_t n)
{
    if (c->ssl) {
        ERR_clear_error();
        int rc = SSL_write(c->ssl, from, n > 1 << 20 ? 1 << 20 : (int)n);
        return rc > 0 ? rc : tls_result(c, rc) == -1 ? -1 : -2;
    }
    ssize_t rc = send(c->source.fd, from, n, MSG_NOSIGNAL);
    return rc >= 0 ? (long)rc : errno == EAGAIN || errno == EINTR ? -1 : -2;
}

/* The end of a connection to which the client may still be sending: close at once and it would
 * lose our answer (RFC 9112, 9.6). */
static void linger(struct conn *c)
{
    if (c->mode == CONN_LINGER)
        return;
    if (c->ssl)
        SSL_shutdown(c->ssl);
    shutdown(c->source.fd, SHUT_WR);
    c->mode = CONN_LINGER;
    c->deadline_ns = after(2);
    c->body_seen = 0;
    buf_release(&c->in);
    if (c->eof)
        conn_kill(c);
}

static void next_request(struct conn *c);
static void on_readable(struct conn *c);

static void response_complete(struct conn *c)
{
    int switching = c->switching;
    forget_request(c);
    c->busy = c->begun = c->ended = c->switching = 0;
    c->deadline_ns = 0;
    if (switching) {
        c->mode = CONN_WEBSOCKET;
        return;
    }
    if (c->close_after || (c->eof && c->in.size == 0) || !c->l->listening) {
        linger(c);
        return;
    }
    c->deadline_ns = after(c->l->o.idle_s);
}

void conn_flush(struct conn *c)
{
    const uint64_t sent = c->l->bytes_sent;
    while (c->sent < c->out.size && !c->out.failed && c->l->bytes_sent - sent < MAX_FLUSH) {       /* the rest when epoll comes round: others have their turns */
        long n = transmit(c, c->out.data + c->sent, c->out.size - c->sent);
        if (n == -2) {
            conn_kill(c);
            return;
        }
        if (n == -1)
            break;
        c->sent += (size_t)n;
        c->l->bytes_sent += (uint64_t)n;
        c->progress_ns = clock_ns();
    }
    if (c->out.failed || (!c->ended && c->out.size - c->sent > c->l->o.max_unsent)) {       /* it reads too slowly; a whole answer does not grow */
        conn_kill(c);
        return;
    }
    if (c->sent == c->out.size && !c->out.failed) {
        reaper_take(c->l->reaper, &c->out);
        c->sent = 0;
    } else if (c->sent > c->out.size / 2) {
        buf_drop(&c->out, c->sent);
        c->sent = 0;
    }
    if (c->out.size == 0 && c->ended)
        response_complete(c);
    else if (c->out.size == 0 && c->mode == CONN_WEBSOCKET && c->close_after)
        linger(c);
    if (!c->dead && !c->busy && c->mode != CONN_LINGER)
        next_request(c);
    if (!c->dead && hold_buffers(c) != HOLD_OK && c->out.size > HELD_FROM) {
        conn_kill(c);                       /* an answer that there is no memory for cannot be kept until the client reads it */
        return;
    }
    if (!c->dead && !c->busy && c->ssl && SSL_pending(c->ssl) > 0 && !c->eof)
        on_readable(c);
    if (c->dead)
        return;
    settle(c, c->l->bytes_sent != sent);
    watch(c);
}

/* ---- requests ---- */

static void refused(struct conn *c, int status, const char *why)
{
    const struct http_request *r = c->parser.req;
    c->busy = 1;
    c->close_after = 1;
    c->status = 0;
    c->head_only = r && r->method && strcmp(r->method, "HEAD") == 0;
    c->request_ns = clock_ns();
    if (c->l->o.on_refused)
        c->l->o.on_refused(c->l->o.user, c, status, why);
    else
        conn_reply(c, status, "text/plain", why, strlen(why));
}

static void refuse_memory(struct conn *c)
{
    struct problem pr;
    conn_hold_problem(c, &pr);
    refused(c, pr.status, pr.message);
}

static void on_head_seen(struct conn *c)
{
    static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";
    if (c->body_from_ns)
        return;
    c->body_from_ns = clock_ns();
    if (c->parser.req->expects_continue && c->parser.state != HTTP_COMPLETE && c->in.size == 0) {
        buf_add(&c->out, go_on, sizeof go_on - 1);
        dirty(c);
    }
}

static void hand_over(struct conn *c, int whole)
{
    c->busy = 1;
    c->body_from_ns = 0;
    c->body_seen = 0;
    c->deadline_ns = 0;
    c->status = 0;
    c->request_ns = clock_ns();
    c->close_after = !whole || !c->parser.req->keep_alive;
    c->head_only = strcmp(c->parser.req->method, "HEAD") == 0;
    c->l->o.on_request(c->l->o.user, c);
}

/* A head announces a body: is it to be kept, dropped as it comes, or not even read?  0: the
 * request was handed over without it. */
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

/* Parse what is there, and hand a whole request over. */
static void next_http(struct conn *c)
{
    if (c->in.size && c->parser.state == HTTP_HEAD && c->body_seen == 0) {      /* the first bytes of a request: from here its time counts */
        c->deadline_ns = after(c->l->o.head_s);
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
        else if (hold_buffers(c) != HOLD_OK)
            refuse_memory(c);
        else if (c->parser.req)
            on_head_seen(c);
        return;
    case HTTP_REFUSED:
        refused(c, c->parser.status, c->parser.why);
        return;
    case HTTP_DONE:
        hand_over(c, 1);
        return;
    }
}

static void next_message(struct conn *c)
{
    char data[125];
    size_t size, at = 0;
    int status, more = 1;
    while (more && !c->dead && c->mode == CONN_WEBSOCKET && !c->close_after) {
        switch (ws_parse(c->ws, &c->in, &at, MAX_WS_MESSAGE, data, &size, &status)) {
        case WS_MORE:
            more = 0;
            break;
        case WS_FRAGMENT: case WS_GOT_PONG:
            break;
        case WS_GOT_PING:
            ws_frame(&c->out, WS_PONG, data, size);
            dirty(c);
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
            break;
        }
    }
    buf_drop(&c->in, at);
}

static void next_request(struct conn *c)
{
    if (c->mode == CONN_WEBSOCKET)
        next_message(c);
    else if (c->mode == CONN_HTTP && (c->in.size || c->eof))
        next_http(c);
}

/* ---- events ---- */

/* As much as may be read now without piling up: a body that is being parsed goes on at once, a
 * head or the next request waits in c->in. */
static size_t read_size(const struct conn *c)
{
    return c->mode == CONN_HTTP && (c->busy || !c->parser.req) ? READ_SMALL : READ_SIZE;
}

/* Bytes that come after our end are neither decrypted nor, from TCP, copied (tcp(7), MSG_TRUNC). */
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

static void on_readable(struct conn *c)
{
    char bytes[READ_SIZE];
    if (c->mode == CONN_LINGER) {
        read_past(c);
        return;
    }
    for (int round = 0; round < 16 || (c->ssl && SSL_pending(c->ssl) > 0); round++) {       /* epoll does not know what OpenSSL has taken already */
        const size_t room = read_size(c);
        long n = receive(c, bytes, room);
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
        c->heard_ns = clock_ns();
        c->pinged_ns = 0;
        settle(c, 1);
        buf_add(&c->in, bytes, (size_t)n);
        if (c->in.failed) {
            conn_kill(c);
            return;
        }
        if (!c->busy)
            next_request(c);
        if (c->dead || (c->busy && c->in.size >= MAX_AHEAD))
            break;
        if (c->mode == CONN_LINGER || (!c->ssl && (size_t)n < room))
            break;
    }
    if (c->dead || !c->eof)
        return;
    /* No more comes: while an answer is being made this means that nobody waits for it. */
    if (c->exchange || c->mode != CONN_HTTP || (!c->busy && c->out.size == 0))
        conn_kill(c);
}

/* OpenSSL makes room for as much as a ClientHello announces, up to 131 kB, before any of it is
 * there; real ones have 2 kB at most.  So its first bytes are looked at here: a record of type
 * 22 and length L, in it a message of type 1 and a length (RFC 8446, 4 and 5.1).  SO_RCVLOWAT
 * has made sure that they are there. */
static int hello_is_fine(struct conn *c)
{
    unsigned char b[HELLO_HEAD];
    const int one = 1;
    const ssize_t n = recv(c->source.fd, b, sizeof b, MSG_PEEK);
    c->hello_seen = 1;
    setsockopt(c->source.fd, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof one);
    if (n < HELLO_HEAD)
        return 1;                       /* the client's end: SSL_accept will see it */
    return b[0] == 22 && (b[3] || b[4] >= 4) && b[5] == 1 && (b[6] << 16 | b[7] << 8 | b[8]) <= MAX_HELLO;
}

/* The next step, in a thread; until it is back epoll must not look at the socket (it would
 * report errors again and again). */
static void handshake(struct conn *c)
{
    struct loop *l = c->l;
    struct handshake *dropped;
    if (!c->hello_seen && !hello_is_fine(c)) {
        conn_kill(c);
        return;
    }
    epoll_ctl(l->epoll, EPOLL_CTL_DEL, c->source.fd, NULL);
    if (handshakes_submit(l->handshakes, &c->handshake, l->o.max_per_address != 0, &dropped) != 0)
        dropped = &c->handshake;
    if (dropped) {
        l->counts.refused++;
        conn_kill((struct conn *)((char *)dropped - offsetof(struct conn, handshake)));
    }
}

void conn_handshake_back(struct conn *c)
{
    const enum handshake_result result = c->handshake.result;
    struct epoll_event ev = { .events = result == HANDSHAKE_WRITE ? EPOLLOUT : EPOLLIN, .data.ptr = c };
    if (c->dead) {
        close(c->source.fd);
        list_remove(&c->l->away, c);
        bury(c);
        return;
    }
    c->events = ev.events;
    if (result == HANDSHAKE_FAILED || epoll_ctl(c->l->epoll, EPOLL_CTL_ADD, c->source.fd, &ev) != 0) {
        conn_kill(c);
        return;
    }
    if (result == HANDSHAKE_DONE) {
        c->mode = CONN_HTTP;
        conn_ready(c, EPOLLIN);         /* the request may have come with it */
    }
}

void conn_ready(struct conn *c, uint32_t events)
{
    if (events & (EPOLLERR | EPOLLHUP) && !(events & EPOLLIN)) {
        conn_kill(c);
        return;
    }
    if (c->mode == CONN_HANDSHAKE) {
        handshake(c);
        return;
    }
    if (events & EPOLLIN || c->ssl_wants_write)
        on_readable(c);
    if (!c->dead)
        conn_flush(c);
}

/* -1: the last ping was not answered in time. */
static int ping(struct conn *c, uint64_t now)
{
    const uint64_t patience_ns = (uint64_t)(c->l->o.ping_s * second);
    if (c->pinged_ns)
        return now - c->pinged_ns > patience_ns ? -1 : 0;
    if (now - c->heard_ns > patience_ns && !c->close_after) {
        c->pinged_ns = now;
        ws_frame(&c->out, WS_PING, "", 0);
        dirty(c);
    }
    return 0;
}

void conn_check_time(struct conn *c, uint64_t now)
{
    static const char late[] = "the request did not arrive in time";
    const struct loop_options *o = &c->l->o;
    if (c->out.size > 0 && c->progress_ns && now - c->progress_ns > (uint64_t)(o->stalled_s * second)) {
        conn_kill(c);
        return;
    }
    if (c->mode == CONN_WEBSOCKET && o->ping_s && ping(c, now) != 0) {
        conn_kill(c);
        return;
    }
    if (c->mode == CONN_HTTP && !c->busy && c->body_from_ns) {
        double allowed = o->body_s + (double)c->parser.body_bytes / 1024;
        if ((double)(now - c->body_from_ns) > allowed * second) {
            refused(c, 408, late);
            return;
        }
    } else if (c->deadline_ns && now > c->deadline_ns) {
        if (c->mode == CONN_HTTP && !c->busy && c->in.size > 0)
            refused(c, 408, late);
        else
            conn_kill(c);
    }
}

/* ---- responses ---- */

const struct http_request *conn_request(const struct conn *c) { return c->parser.req; }
int conn_has_body(const struct conn *c) { return c->parser.state == HTTP_COMPLETE && !c->parser.drop_body; }
const char *conn_peer(const struct conn *c) { return c->peer; }
int conn_is_local(const struct conn *c) { return c->local; }

void conn_set_exchange(struct conn *c, void *exchange)
{
    c->exchange = exchange;
    settle(c, 0);
}

void *conn_exchange(const struct conn *c) { return c->exchange; }
void conn_set_record(struct conn *c, void *record) { c->record = record; }
void *conn_record(const struct conn *c) { return c->record; }
int conn_is_complete(const struct conn *c) { return c->ended; }
int conn_status(const struct conn *c) { return c->status; }
uint64_t conn_started_ns(const struct conn *c) { return c->request_ns; }
int conn_is_websocket(const struct conn *c) { return c->mode == CONN_WEBSOCKET || c->switching; }
void conn_set_tag(struct conn *c, int tag) { c->tag = tag; }
int conn_tag(const struct conn *c) { return c->tag; }

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
    dirty(c);
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
    answered(c);
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
    dirty(c);
}

void conn_end(struct conn *c)
{
    if (c->chunked && !c->head_only)
        buf_str(&c->out, "0\r\n\r\n");
    c->ended = 1;
    answered(c);
    c->exchange = NULL;
    dirty(c);
}

void conn_break(struct conn *c)
{
    c->out.failed = 1;
    dirty(c);
}

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
    answered(c);
    return 0;
}

void conn_send_text(struct conn *c, const char *text, size_t size)
{
    if (c->dead || c->close_after)
        return;
    if (c->out.size == 0)
        c->progress_ns = clock_ns();
    ws_frame(&c->out, WS_TEXT, text, size);
    dirty(c);
}

void conn_websocket_close(struct conn *c, int status)
{
    if (c->dead || c->close_after)
        return;
    ws_close_frame(&c->out, status);
    c->close_after = 1;
    dirty(c);
}
