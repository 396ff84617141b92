/* conn.c - one connection: its lifetime, memory, TLS handshakes, time limits and sending.
 *
 * conn_request.c reads requests and messages, conn_response.c writes responses. */
#include "libcommon/http/conn.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <openssl/err.h>

#include "libcommon/base/clock.h"
#include "libcommon/http/internal.h"

enum { MAX_FLUSH = 1 << 20 };           /* bytes that one connection sends in a round of the loop */
enum { HELLO_HEAD = 9, MAX_HELLO = 1 << 14 };
static const double second = 1e9;

uint64_t conn_deadline(double s) { return clock_ns() + (uint64_t)(s * second); }

/* ---- life ---- */

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
    c->source = (struct event_source){ SOURCE_CONN, fd };
    c->l = l;
    c->hold = hold_for(l->o.account, 0);
    c->local = at->local;
    c->mode = at->tls ? CONN_HANDSHAKE : CONN_HTTP;
    c->events = EPOLLIN;
    c->deadline_ns = conn_deadline(l->o.head_s);
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

void conn_forget_request(struct conn *c)
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
    conn_forget_request(c);
    if (c->ws)
        ws_next(c->ws);
    free(c->ws);
    hold_release(&c->hold);
    free(c);
}

void conn_end_record(struct conn *c)
{
    if (c->record && c->l->o.on_answered)
        c->l->o.on_answered(c->l->o.user, c);
}

/* Schedule the connection to be freed at the end of the loop's round. */
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
    conn_end_record(c);
    const int away = c->handshake.away && !handshakes_withdraw(l->handshakes, &c->handshake);
    if (!away) {
        /* close() does not suffice: a child between fork and exec may still hold the socket */
        epoll_ctl(l->epoll, EPOLL_CTL_DEL, c->source.fd, NULL);
        close(c->source.fd);
    }
    list_remove(&l->conns, c);
    if (away)
        list_add(&l->away, c);
    else
        bury(c);
    places_leave(l->places, &c->place);
}

void conn_settle(struct conn *c, int active)
{
    if (!c->dead)
        places_update(c->l->places, &c->place, !c->exchange && !(c->place.known && (c->busy || c->out.size > 0)),
                      active, clock_ns());
}

void conn_own(struct conn *c, uint64_t owner)
{
    places_own(c->l->places, &c->place, owner);
    conn_settle(c, 1);
}

/* Update the events that epoll reports for this connection. */
static void watch(struct conn *c)
{
    int may_read = !c->eof && !c->more && !(c->busy && c->mode == CONN_HTTP && c->in.size >= MAX_PIPELINED);
    uint32_t want = (may_read ? (uint32_t)EPOLLIN : 0) |
                    (c->out.size > 0 || c->ssl_wants_write ? (uint32_t)EPOLLOUT : 0);
    if (want == c->events)
        return;
    struct epoll_event ev = { .events = want, .data.ptr = c };
    c->events = want;
    epoll_ctl(c->l->epoll, EPOLL_CTL_MOD, c->source.fd, &ev);
}

void conn_mark_dirty(struct conn *c)
{
    if (c->dirty || c->dead)
        return;
    c->dirty = 1;
    c->next_dirty = c->l->dirty;
    c->l->dirty = c;
}

/* ---- memory ---- */

/* The bytes of a buffer that count for the account. */
static size_t held(size_t bytes) { return bytes > HELD_FROM ? bytes : 0; }

/* Bytes that a body of this size may allocate: a growing buffer can be half as large again. */
static size_t body_room(size_t size) { return held(size + size / 2); }

enum hold_answer conn_hold_buffers(struct conn *c)
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
    conn_hold_buffers(c);
}

/* ---- bytes ---- */

/* The result of an SSL_read or SSL_write that failed.  0: end of the stream; -1: try again later;
 * -2: the connection is broken.  OpenSSL's queue of errors must have been empty before the call,
 * because SSL_get_error(3) would take an older entry for the error of this call. */
static long tls_result(struct conn *c, int rc)
{
    int why = SSL_get_error(c->ssl, rc);
    c->ssl_wants_write = why == SSL_ERROR_WANT_WRITE;
    return why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE ? -1 : why == SSL_ERROR_ZERO_RETURN ? 0 : -2;
}

long conn_receive(struct conn *c, void *to, size_t n)
{
    if (c->ssl) {
        ERR_clear_error();
        int rc = SSL_read(c->ssl, to, (int)n);
        return rc > 0 ? rc : tls_result(c, rc);
    }
    ssize_t rc = recv(c->source.fd, to, n, 0);
    return rc >= 0 ? (long)rc : errno == EAGAIN || errno == EINTR ? -1 : -2;
}

/* Send bytes; results as of conn_receive, but never 0. */
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

void conn_linger(struct conn *c)
{
    if (c->mode == CONN_LINGER)
        return;
    if (c->ssl)
        SSL_shutdown(c->ssl);
    shutdown(c->source.fd, SHUT_WR);
    c->mode = CONN_LINGER;
    c->deadline_ns = conn_deadline(2);
    c->body_seen = 0;
    buf_release(&c->in);
    if (c->eof)
        conn_kill(c);
}

/* Called when all of the response has been sent. */
static void response_complete(struct conn *c)
{
    int switching = c->switching;
    conn_forget_request(c);
    c->busy = c->begun = c->ended = c->switching = 0;
    c->deadline_ns = 0;
    if (switching) {
        c->mode = CONN_WEBSOCKET;
        return;
    }
    if (c->close_after || (c->eof && c->in.size == 0) || !c->l->listening) {
        conn_linger(c);
        return;
    }
    c->deadline_ns = conn_deadline(c->l->o.idle_s);
}

void conn_flush(struct conn *c)
{
    const uint64_t sent = c->l->bytes_sent;
    /* send the rest in the next round, so that other connections get their turn */
    while (c->sent < c->out.size && !c->out.failed && c->l->bytes_sent - sent < MAX_FLUSH) {
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
    /* the client reads too slowly; the limit is not for complete responses, which cannot grow */
    if (c->out.failed || (!c->ended && c->out.size - c->sent > c->l->o.max_unsent)) {
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
        conn_linger(c);
    if (!c->dead && !c->busy && c->mode != CONN_LINGER)
        conn_next_request(c);
    if (!c->dead && conn_hold_buffers(c) != HOLD_OK && c->out.size > HELD_FROM) {
        /* no memory for the bytes that the client has not read: the response cannot continue */
        conn_kill(c);
        return;
    }
    if (!c->dead && !c->busy && !c->more && c->ssl && SSL_pending(c->ssl) > 0 && !c->eof)
        conn_read(c);
    if (c->dead)
        return;
    conn_settle(c, c->l->bytes_sent != sent);
    watch(c);
}

/* ---- handshakes ---- */

/* Check the sizes that a ClientHello announces before OpenSSL parses it, because OpenSSL allocates
 * as many bytes, up to 131 kB; a real ClientHello has 2 kB at most.  The first bytes are a record
 * of type 22 and length L, which contains a message of type 1 and its length (RFC 8446, 4 and 5.1).
 * SO_RCVLOWAT guarantees that they have arrived. */
static int hello_is_fine(struct conn *c)
{
    unsigned char b[HELLO_HEAD];
    const int one = 1;
    const ssize_t n = recv(c->source.fd, b, sizeof b, MSG_PEEK);
    c->hello_seen = 1;
    setsockopt(c->source.fd, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof one);
    if (n < HELLO_HEAD)
        return 1;                       /* the client has closed, which SSL_accept will report */
    return b[0] == 22 && (b[3] || b[4] >= 4) && b[5] == 1 && (b[6] << 16 | b[7] << 8 | b[8]) <= MAX_HELLO;
}

/* Submit the next step of the handshake to a thread.  Until the thread returns it, epoll does not
 * watch the socket, because an error on the socket would be reported again in every round. */
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
        conn_ready(c, EPOLLIN);         /* the request may have arrived with the end of the handshake */
    }
}

/* ---- events and time ---- */

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
        conn_read(c);
    if (!c->dead)
        conn_flush(c);
}

/* Ping a WebSocket that was silent for ping_s. -1: the last ping was not answered in time. */
static int ping(struct conn *c, uint64_t now)
{
    const uint64_t patience_ns = (uint64_t)(c->l->o.ping_s * second);
    if (c->pinged_ns)
        return now - c->pinged_ns > patience_ns ? -1 : 0;
    if (now - c->received_ns > patience_ns && !c->close_after) {
        c->pinged_ns = now;
        ws_frame(&c->out, WS_PING, "", 0);
        conn_mark_dirty(c);
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
            conn_refuse(c, 408, late);
            return;
        }
    } else if (c->deadline_ns && now > c->deadline_ns) {
        if (c->mode == CONN_HTTP && !c->busy && c->in.size > 0)
            conn_refuse(c, 408, late);
        else
            conn_kill(c);
    }
}
