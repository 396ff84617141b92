/* conn.h - the event loop: listeners, connections, time limits, and how a response goes out.
 *
 * One thread on epoll; all functions here but loop_wake belong to it.  A connection holds one
 * request at a time; what a client sends ahead (pipelining) waits.  An idle connection keeps no
 * buffers.  Writing never blocks: what the socket does not take is kept, and a client that takes
 * nothing for stalled_s, or lets more than max_unsent pile up, is dropped.
 *
 * Memory of a connection whose bodies are not kept: the head (http.head_bytes), MAX_AHEAD and
 * READ_SMALL of what follows it, and its response.
 *
 * Why not libwebsockets (4.1 in Debian 12): it takes no chunked request bodies, answers its
 * limits with statuses of its own, and keeps more than 4 KB for an idle connection; what is left
 * to do ourselves is the smaller part. TLS is OpenSSL. */
#ifndef ZSE_HTTP_CONN_H
#define ZSE_HTTP_CONN_H

#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"
#include "libcommon/http/account.h"
#include "libcommon/http/buf.h"
#include "libcommon/http/http.h"
#include "libcommon/http/websocket.h"

struct loop;
struct conn;

struct loop_options {
    struct http_limits http;
    int max_connections;
    int max_per_address;            /* connections of one address without a key, see places.h; 0: any number. Unix sockets have no addresses. */
    size_t max_unsent;              /* bytes of a response that may wait for a slow client */
    double head_s, body_s;          /* a head must be whole after head_s, a body must go on arriving at 1 KB/s, with body_s to begin with */
    struct account *account;        /* of bodies and responses beyond HELD_FROM; NULL: they are not counted */
    double idle_s, stalled_s;       /* between requests; without progress while there is something to send */
    double ping_s;                  /* a WebSocket that was silent for so long gets a ping, and after as long again it is closed; 0: never */
    /* A body is to come, of SIZE bytes or SIZE_MAX (chunked).  0: it is not kept, and
     * conn_has_body says so.  A small one is read past, so that the connection can go on; else
     * on_request is called at once and the connection closes after the answer.  NULL: every body
     * is kept. */
    int (*on_body)(void *user, struct conn *c, size_t size);
    /* A request is whole: conn_request(c). Answer now or later, once. */
    void (*on_request)(void *user, struct conn *c);
    /* The client is gone before its answer was complete (conn_set_exchange said that something
     * works on it). c dies on return. */
    void (*on_gone)(void *user, struct conn *c);
    /* The answer is complete (its exchange is still set), or the client is gone and nobody works
     * on one. conn_status says which. */
    void (*on_answered)(void *user, struct conn *c);
    /* The head or body was refused; default answer if NULL. The connection closes after it. */
    void (*on_refused)(void *user, struct conn *c, int status, const char *why);
    void (*on_message)(void *user, struct conn *c, const char *text, size_t size);     /* a WebSocket's; text is '\0'-terminated */
    void (*on_wake)(void *user);                /* after loop_wake */
    void (*on_second)(void *user);              /* about once a second */
    void (*on_signal)(void *user, int number);
    void *user;
};
struct loop *loop_open(const struct loop_options *o, struct err *e);
void loop_close(struct loop *l);                /* NULL is fine */
void loop_drop_all(struct loop *l);             /* no listener and no connection any more */
/* TLS for the TCP listeners that follow: PEM files. */
int loop_tls(struct loop *l, const char *cert, const char *key, struct err *e);
/* *port 0: any; it is filled in. host is a name or a number. Nobody can connect before
 * loop_listen. */
int loop_bind(struct loop *l, const char *host, int *port, struct err *e);
/* A Unix socket, mode 0600. Replaces a socket that nobody listens on; refuses one that somebody
 * does, and what is no socket. */
int loop_bind_unix(struct loop *l, const char *path, struct err *e);
int loop_listen(struct loop *l, struct err *e); /* at all that was bound */
/* These signals, blocked in every thread before, go to on_signal. */
int loop_signals(struct loop *l, const int *numbers, int n, struct err *e);
int loop_is_local(const struct loop *l);        /* every listener is loopback or a Unix socket */
void loop_stop_listening(struct loop *l);       /* removes the Unix socket; idle connections close */
void loop_run(struct loop *l);                  /* until loop_quit */
void loop_quit(struct loop *l);
void loop_wake(struct loop *l);                 /* from any thread: on_wake will be called in the loop's */
struct loop_counts { uint64_t accepted, evicted, refused; };     /* connections; refused: 503 as there was no room, for any or for one more of the address */
const struct loop_counts *loop_counts(const struct loop *l);
int loop_n_connections(const struct loop *l);
int loop_n_unknown(const struct loop *l);       /* of which no request has shown a good key */
int loop_n_busy(const struct loop *l);          /* with a request that is not answered, or unsent bytes; WebSockets with an exchange */
uint64_t loop_bytes_sent(const struct loop *l);

/* ---- one connection ---- */
const struct http_request *conn_request(const struct conn *c);
void conn_take_body(struct conn *c, struct buf *to);    /* moves it; what it takes is not this connection's any more */
/* Smaller buffers of a connection are not counted: max_connections bounds them. */
enum { HELD_FROM = 1 << 16 };
/* From on_body: bodies and responses of this connection count for this tenant; may a body of so
 * many bytes (SIZE_MAX: chunked) be kept?  0: conn_hold_problem says why. */
int conn_hold_body(struct conn *c, uint64_t tenant, size_t size);
int conn_hold_problem(const struct conn *c, struct problem *pr);       /* 0: none; -1 with *pr */
int conn_has_body(const struct conn *c);        /* its body was kept, or it has none */
const char *conn_peer(const struct conn *c);    /* "127.0.0.1", "unix" */
int conn_is_local(const struct conn *c);        /* its listener is loopback or a Unix socket */
/* Its request is good as this owner's (a key's number, or an address's where no key is needed):
 * see places.h. */
void conn_own(struct conn *c, uint64_t owner);
/* Whoever works on the answer; NULL: nobody. on_gone is called only while it is set. */
void conn_set_exchange(struct conn *c, void *exchange);
void *conn_exchange(const struct conn *c);
/* What is noted about the request, for its owner: on_answered hears of its end, and takes it
 * away. */
void conn_set_record(struct conn *c, void *record);
void *conn_record(const struct conn *c);
/* Header lines ("Name: value\r\n") for the next response. */
void conn_add_header(struct conn *c, const char *name, const char *value);
void conn_set_header(struct conn *c, const char *name, const char *value);      /* instead of an earlier one of this name */
/* The whole response. */
void conn_reply(struct conn *c, int status, const char *type, const void *body, size_t size);
/* A response in pieces: chunked, or until the connection closes for HTTP/1.0. Each piece goes
 * out at the end of the loop's round. */
void conn_begin(struct conn *c, int status, const char *type);
void conn_write(struct conn *c, const void *data, size_t size);
void conn_end(struct conn *c);
void conn_break(struct conn *c);                /* memory ran out: it closes, so that the client does not take what it got for the whole */
int conn_is_complete(const struct conn *c);     /* the last response is: all of it was handed over for sending */
int conn_status(const struct conn *c);          /* of the last response; 0: none was begun */
/* WebSocket: the request asked for it. 0, or -1 after a refusal was sent. */
int conn_upgrade(struct conn *c);
int conn_is_websocket(const struct conn *c);
void conn_send_text(struct conn *c, const char *text, size_t size);
void conn_websocket_close(struct conn *c, int status);
/* For every WebSocket. */
void loop_each_websocket(struct loop *l, void (*fn)(void *user, struct conn *c), void *user);
void conn_set_tag(struct conn *c, int tag);     /* what kind of WebSocket it is, for its owner */
int conn_tag(const struct conn *c);

#endif
