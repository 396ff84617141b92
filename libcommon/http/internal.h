/* internal.h - what loop.c (listeners, epoll, time) and conn.c (bytes, HTTP, WebSocket of one
 * connection) share. */
#ifndef ZSE_HTTP_INTERNAL_H
#define ZSE_HTTP_INTERNAL_H

#include <openssl/ssl.h>

#include "libcommon/http/conn.h"
#include "libcommon/http/handshake.h"
#include "libcommon/http/places.h"
#include "libcommon/http/reaper.h"

enum source_kind { SOURCE_LISTENER, SOURCE_CONN, SOURCE_WAKE, SOURCE_HANDSHAKE, SOURCE_SIGNAL };
enum { MAX_LISTENERS = 8, PEER_SIZE = 48, MAX_AHEAD = 1 << 14 };        /* MAX_AHEAD: bytes of pipelined requests that are read */

struct source { enum source_kind kind; int fd; };       /* what epoll's data points to */

struct listener {
    struct source source;
    int tls, local;
    char name[80];              /* as a message calls it */
    char *path;                 /* of a Unix socket; owned */
    uint64_t dev, ino;          /* of that path: nobody else's is removed */
};

enum conn_mode { CONN_HANDSHAKE, CONN_HTTP, CONN_WEBSOCKET, CONN_LINGER };

struct conn {
    struct source source;
    struct conn *prev, *next;   /* of all, of those away, or of the dead */
    struct conn *next_dirty;
    struct loop *l;
    SSL *ssl;                   /* NULL: plain */
    enum conn_mode mode;
    uint32_t events;            /* what epoll watches */
    int local, dirty, dead;
    int eof;                    /* the client sends no more */
    int ssl_wants_write;        /* reading waits until the socket is writable */
    int hello_seen;             /* the beginning of a ClientHello was looked at */
    struct buf in, out, headers;
    struct hold hold;           /* of large buffers; what refused a body, and how large it was */
    enum hold_answer no_hold; size_t not_held;
    size_t sent;                /* of out */
    struct http_parser parser;
    struct ws_parser *ws;       /* owned; NULL: no WebSocket */
    int tag;
    /* the request that is being answered */
    int busy, begun, ended, chunked, head_only, close_after, status;
    int switching;              /* to WebSocket: its 101 is on the way */
    void *exchange, *record;
    /* time: by when something must have happened; 0: no limit */
    uint64_t deadline_ns, body_from_ns, progress_ns;
    size_t body_seen;
    uint64_t received_ns, pinged_ns;       /* of a WebSocket: when bytes came last; when it was sent a ping since then, 0: not */
    struct place place;
    struct handshake handshake; /* away: a thread may be at ssl and the socket, which stay as they are, even if the connection is dead */
    char peer[PEER_SIZE];
};

struct loop {
    struct loop_options o;
    int epoll, quit, listening;
    struct source wake, handshake_wake, signals;
    struct listener listener[MAX_LISTENERS];
    int n_listeners;
    int spare;                  /* a descriptor to give up when there are no more */
    int deaf;                   /* listeners are not watched until the next second */
    SSL_CTX *tls;
    struct handshakes *handshakes;      /* NULL: no TLS, or not listening */
    struct conn *conns, *away, *dead, *dirty;       /* away: dead ones whose handshake a thread is at */
    struct places *places;
    struct reaper *reaper;
    uint64_t second_ns, bytes_sent;
    struct loop_counts counts;
};

/* ---- conn.c ---- */
/* address: its owner in places. */
struct conn *conn_open(struct loop *l, int fd, const struct listener *at, const char *peer, uint64_t address);
void conn_ready(struct conn *c, uint32_t events);       /* epoll reported it */
void conn_handshake_back(struct conn *c);
void conn_flush(struct conn *c);            /* send what waits, then go on with the next request */
void conn_kill(struct conn *c);             /* close now; freed at the end of the round */
void conn_free(struct conn *c);
void conn_check_time(struct conn *c, uint64_t now);     /* close or refuse it if a time limit has passed */
uint64_t conn_deadline(double s);           /* so many seconds from now */
void conn_mark_dirty(struct conn *c);       /* flush it at the end of this round */
/* Tell places whether it may be evicted: not while a call works for it, nor, with a good key,
 * while it has a request or an unsent answer.  active: it did something just now. */
void conn_settle(struct conn *c, int active);
void conn_forget_request(struct conn *c);   /* free it; the parser is ready for the next */
void conn_end_record(struct conn *c);       /* on_answered, if it has a record */
enum hold_answer conn_hold_buffers(struct conn *c);     /* hold what its buffers take now */
/* Bytes read, plain or TLS: > 0 how many, 0 the end, -1 none yet, -2 broken. */
long conn_receive(struct conn *c, void *to, size_t n);
/* Send our end and read past what the client still sends: closing at once could destroy our answer
 * on its way (RFC 9112, 9.6). */
void conn_linger(struct conn *c);

/* ---- conn_request.c ---- */
void conn_read(struct conn *c);             /* the socket is readable */
void conn_next_request(struct conn *c);     /* go on with the bytes that are there */
void conn_refuse(struct conn *c, int status, const char *why);  /* answer a request that was not understood; closes */

#endif
