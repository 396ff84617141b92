/* internal.h - private parts of the loop (loop.c: listeners, epoll, time) and of its connections
 * (conn*.c). */
#ifndef ZSE_HTTP_INTERNAL_H
#define ZSE_HTTP_INTERNAL_H

#include <openssl/ssl.h>
#include <pthread.h>

#include "libcommon/http/conn.h"
#include "libcommon/http/handshake.h"
#include "libcommon/http/places.h"
#include "libcommon/http/reaper.h"

enum event_source_kind { SOURCE_LISTENER, SOURCE_CONN, SOURCE_WAKE, SOURCE_HANDSHAKE, SOURCE_SIGNAL };
/* MAX_PIPELINED: most bytes of pipelined requests that are read ahead */
enum { MAX_LISTENERS = 10, PEER_SIZE = 48, MAX_PIPELINED = 1 << 14 };

/* The first member of every object that epoll's data points to. */
struct event_source { enum event_source_kind kind; int fd; };

enum { ACCOUNT_CHAINS = 256 };

struct tenant {
    struct tenant *next;
    uint64_t id;
    size_t bytes;
    int n_holds;
};

struct account {
    pthread_mutex_t lock;
    size_t request, tenant, total;              /* limits */
    size_t used, peak;
    int n_holds;
    uint64_t refused;
    struct tenant *chain[ACCOUNT_CHAINS];             /* tenants with a hold, by id */
};

struct listener {
    struct event_source source;
    int tls, local;
    int is_unix;
    char name[160];             /* its name in messages */
    char *path;                 /* path of a Unix socket to remove at the end; owned; NULL: none */
    uint64_t dev, ino;          /* identity of the socket at path, so that no other file is removed */
};

enum conn_mode { CONN_HANDSHAKE, CONN_HTTP, CONN_WEBSOCKET, CONN_LINGER };

struct conn {
    struct event_source source;
    struct conn *prev, *next;   /* in loop.conns, loop.away or loop.dead */
    struct conn *next_dirty;
    struct loop *l;
    SSL *ssl;                   /* NULL: plain */
    enum conn_mode mode;
    uint32_t events;            /* watched by epoll */
    int local, dirty, dead;
    int eof;                    /* the client has closed its side */
    int ssl_wants_write;        /* reading waits until the socket is writable */
    int hello_seen;             /* the beginning of the ClientHello was checked */
    struct buf in, out, headers;
    struct hold hold;           /* reservation for large buffers */
    enum hold_answer no_hold;   /* result of the last hold_set; not_held: its bytes */
    size_t not_held;
    size_t sent;                /* how many bytes of out have been sent */
    struct http_parser parser;
    struct ws_parser *ws;       /* owned; NULL: not a WebSocket */
    int tag;
    /* state of the current request */
    int busy, begun, ended, chunked, head_only, close_after, status;
    int switching;              /* to WebSocket: the 101 is being sent */
    int more;                   /* WebSocket: messages in `in` wait for the next round of the loop */
    void *exchange, *record;
    uint64_t deadline_ns;       /* for a head, an idle connection, a handshake, lingering; 0: none */
    uint64_t body_from_ns;      /* when the body started; 0: it has not */
    uint64_t progress_ns;       /* when bytes of a response were last sent */
    size_t body_seen;           /* HTTP: 1 once a head has begun; LINGER: discarded bytes */
    /* for a WebSocket: when bytes last arrived; when a ping was sent since, 0: none */
    uint64_t received_ns, pinged_ns;
    struct place place;
    /* away: a thread may use ssl and the socket, which must stay even if the connection is dead */
    struct handshake handshake;
    char peer[PEER_SIZE];
};

struct loop {
    struct loop_options o;
    int epoll, quit, listening;
    struct event_source wake, handshake_wake, signals;
    struct listener listener[MAX_LISTENERS];
    int n_listeners;
    int spare;                  /* a descriptor to close when none are left */
    int paused;                 /* do not watch the listeners until the next second */
    SSL_CTX *tls;
    struct handshakes *handshakes;      /* NULL: no TLS, or not listening */
    /* away: dead connections whose handshake is still in a thread */
    struct conn *conns, *away, *dead, *dirty;
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
/* send what is buffered, then continue with the next request */
void conn_flush(struct conn *c);
void conn_kill(struct conn *c);             /* close now; freed at the end of the round */
void conn_free(struct conn *c);
void conn_check_time(struct conn *c, uint64_t now);     /* close or refuse it if a time limit has passed */
uint64_t conn_deadline(double s);           /* clock_ns() in s seconds */
void conn_mark_dirty(struct conn *c);       /* flush it at the end of this round */
/* Tell the places (places.h) whether they may evict the connection: not while it has a running
 * call; if it has a valid key, not while it has any request or unsent bytes.  active: the
 * connection was used just now. */
void conn_settle(struct conn *c, int active);
void conn_forget_request(struct conn *c);   /* free it; the parser is ready for the next */
void conn_end_record(struct conn *c);       /* on_answered, if it has a record */
/* raise the hold to the current size of its buffers */
enum hold_answer conn_hold_buffers(struct conn *c);
/* Bytes read, plain or TLS: > 0 how many, 0 the end, -1 none yet, -2 broken. */
long conn_receive(struct conn *c, void *to, size_t n);
/* Shut down our side and discard further bytes of the client: closing immediately could destroy our
 * response in flight (RFC 9112, 9.6). */
void conn_linger(struct conn *c);

/* ---- conn_request.c ---- */
void conn_read(struct conn *c);             /* the socket is readable */
void conn_next_request(struct conn *c);     /* parse the bytes received so far */
void conn_refuse(struct conn *c, int status, const char *why);  /* answer a malformed request and close */

#endif
