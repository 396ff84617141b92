/* conn.h - the event loop and its connections: listeners, requests, time limits, responses.
 *
 * One thread on epoll, which makes all calls except loop_wake.  A connection has one request at a
 * time; further ones that the client sends (pipelining) wait.  An idle connection has no buffers.
 * Writing never blocks: bytes that the socket does not take are buffered.  A client that reads
 * nothing for stalled_s, or lets more than max_unsent accumulate, is dropped.
 *
 * Memory of a connection whose bodies are not kept: the head (http.head_bytes), MAX_PIPELINED and
 * READ_SMALL bytes of what follows it, and its response.
 *
 * Why not libwebsockets (4.1 in Debian 12): it does not accept chunked request bodies, chooses its
 * own statuses for limits, and keeps more than 4 KB for an idle connection; most of this would have
 * to be written anyway.  TLS is OpenSSL. */
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
    /* Most connections of one address without a key (places.h); 0: no limit.  Unix sockets have no
     * addresses. */
    int max_per_address;
    size_t max_unsent;              /* bytes of a response that may wait for a slow client */
    double head_s;                  /* time limit of a head */
    double body_s;                  /* a body may take body_s, plus a second for each KB received */
    struct account *account;        /* counts bodies and responses beyond HELD_FROM; NULL: not counted */
    double idle_s, stalled_s;       /* longest time between requests; longest without progress of a response */
    /* a WebSocket that is silent for this long gets a ping, and is closed after the same time
     * again; 0: never */
    double ping_s;
    /* Called before a body of SIZE bytes (SIZE_MAX: chunked) is read.  Returns 1 to keep it.  After
     * 0, a small body is read and discarded, so that the connection can continue; for a large one
     * on_request is called immediately, and the connection closes after the response.  NULL: keep
     * every body. */
    int (*on_body)(void *user, struct conn *c, size_t size);
    /* Called when a request (conn_request(c)) is complete.  Respond to it once, now or later. */
    void (*on_request)(void *user, struct conn *c);
    /* Called if the client disconnects before its response is complete while an exchange is set.  c
     * is freed after this call. */
    void (*on_gone)(void *user, struct conn *c);
    /* Called if a record is set: when the response is complete (its exchange is still set), or when
     * the client has disconnected (the exchange is no longer set).  conn_status(c) is the
     * status. */
    void (*on_answered)(void *user, struct conn *c);
    /* Called when a head or body is refused: send a response, after which the connection closes.
     * NULL: a plain one is sent. */
    void (*on_refused)(void *user, struct conn *c, int status, const char *why);
    /* Called with a message of a WebSocket; text is '\0'-terminated. */
    void (*on_message)(void *user, struct conn *c, const char *text, size_t size);
    void (*on_wake)(void *user);                /* called after loop_wake() */
    void (*on_second)(void *user);              /* called about once a second */
    void (*on_signal)(void *user, int number);
    void *user;
};
struct loop *loop_open(const struct loop_options *o, struct err *e);
void loop_close(struct loop *l);                /* NULL is fine */
void loop_drop_all(struct loop *l);             /* close all listeners and connections */
/* Use TLS for the TCP listeners that follow.  cert, key: PEM files. */
int loop_tls(struct loop *l, const char *cert, const char *key, struct err *e);
/* Bind a TCP listener; it accepts connections from loop_listen on.  host: a name or a number;
 * *port 0: any, and it is filled in. */
int loop_bind(struct loop *l, const char *host, int *port, struct err *e);
/* Bind a Unix socket of mode 0600.  It replaces a stale socket; a socket on which a program
 * listens, and a file of another kind, is an error. */
int loop_bind_unix(struct loop *l, const char *path, struct err *e);
/* Add a listening socket that another program has opened: a stream socket of IPv4, IPv6 or Unix.
 * The loop owns fd, also after a failure.  name: for messages.  address: filled in, as
 * "http://127.0.0.1:8000" or "unix:/run/zse". */
enum { ADDRESS_SIZE = 128 };
int loop_inherit(struct loop *l, int fd, const char *name, char address[ADDRESS_SIZE], struct err *e);
int loop_listen(struct loop *l, struct err *e); /* on all bound sockets */
/* Deliver these signals, which must be blocked in every thread, to on_signal. */
int loop_signals(struct loop *l, const int *numbers, int n, struct err *e);
int loop_is_local(const struct loop *l);        /* every listener is loopback or a Unix socket */
/* the name of a listener that is neither loopback nor a Unix socket; NULL: there is none */
const char *loop_reachable(const struct loop *l);
void loop_stop_listening(struct loop *l);       /* removes the Unix socket; idle connections close */
void loop_run(struct loop *l);                  /* runs until loop_quit */
void loop_quit(struct loop *l);
void loop_wake(struct loop *l);                 /* any thread: on_wake will be called in the loop's thread */
/* Counts since the start.  refused: connections that got 503 because there were too many, in total
 * or from the address. */
struct loop_counts { uint64_t accepted, evicted, refused; };
const struct loop_counts *loop_counts(const struct loop *l);
int loop_n_connections(const struct loop *l);
/* connections on which no request has had a valid key */
int loop_n_unknown(const struct loop *l);
/* Connections with an unanswered request or unsent bytes, and WebSockets with an exchange. */
int loop_n_busy(const struct loop *l);
uint64_t loop_bytes_sent(const struct loop *l);

/* ---- one connection ---- */
const struct http_request *conn_request(const struct conn *c);
/* moves the body, and releases its hold */
void conn_take_body(struct conn *c, struct buf *to);
enum { HELD_FROM = 1 << 16 };                   /* smaller buffers are not counted: max_connections bounds them */
/* From on_body: reserve memory in the name of this tenant for a body of SIZE bytes (SIZE_MAX:
 * chunked) and for the response.  1, or 0: conn_hold_problem has the reason. */
int conn_hold_body(struct conn *c, uint64_t tenant, size_t size);
int conn_hold_problem(const struct conn *c, struct problem *pr);        /* 0: none; -1 with *pr */
int conn_has_body(const struct conn *c);        /* the body was kept, or the request has none */
const char *conn_peer(const struct conn *c);    /* "127.0.0.1", "unix" */
int conn_is_local(const struct conn *c);        /* its listener is loopback or a Unix socket */
/* Call this when the request is admitted.  From then on c counts as a connection of `owner`, a
 * number for an API key, or for an address if no key is required (places.h). */
void conn_own(struct conn *c, uint64_t owner);
/* The work for the current request; NULL: none.  on_gone is called only while it is set. */
void conn_set_exchange(struct conn *c, void *exchange);
void *conn_exchange(const struct conn *c);
/* Attach the caller's record to the current request.  on_answered is called when the request ends,
 * and resets the record. */
void conn_set_record(struct conn *c, void *record);
void *conn_record(const struct conn *c);
/* Header fields of the next response. */
void conn_add_header(struct conn *c, const char *name, const char *value);
/* replaces an earlier one of this name */
void conn_set_header(struct conn *c, const char *name, const char *value);
/* Send a whole response. */
void conn_reply(struct conn *c, int status, const char *type, const void *body, size_t size);
/* Send a response in pieces: chunked, or, for HTTP/1.0, ended by closing the connection.  Pieces
 * are sent at the end of the loop's round. */
void conn_begin(struct conn *c, int status, const char *type);
void conn_write(struct conn *c, const void *data, size_t size);
void conn_end(struct conn *c);
/* out of memory: close the connection, so that the client sees that the response is incomplete */
void conn_break(struct conn *c);
int conn_is_complete(const struct conn *c);     /* is the last response written completely? */
/* status of the last response; 0: none was started */
int conn_status(const struct conn *c);
/* WebSockets.  Accept the request's upgrade: 0, or -1 after a refusal was sent. */
int conn_upgrade(struct conn *c);
int conn_is_websocket(const struct conn *c);
void conn_send_text(struct conn *c, const char *text, size_t size);
void conn_websocket_close(struct conn *c, int status);
void loop_each_websocket(struct loop *l, void (*fn)(void *user, struct conn *c), void *user);
void conn_set_tag(struct conn *c, int tag);     /* mark the kind of a WebSocket, for the caller */
int conn_tag(const struct conn *c);

#endif
