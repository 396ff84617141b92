/* handshake.h - TLS handshakes in separate threads: a signature with an RSA key of 4096 bits takes
 * 5 to 15 ms, during which the event loop could not do anything else.
 *
 * A connection submits its SSL whenever its socket has bytes for SSL_accept, and must not use it
 * until it is returned.  Addresses take turns.  Each may have HANDSHAKES_PER_OWNER waiting; when
 * the queue is full, the address with the most handshakes in it loses its last one. */
#ifndef ZSE_HTTP_HANDSHAKE_H
#define ZSE_HTTP_HANDSHAKE_H

#include <stdint.h>

#include <openssl/ssl.h>

#include "libcommon/base/err.h"

/* a client that fills its pool of connections may open hundreds at once */
enum { HANDSHAKES_WAITING = 1024, HANDSHAKES_PER_OWNER = 512 };

/* READ, WRITE: submit again once the socket is ready for it */
enum handshake_result { HANDSHAKE_DONE, HANDSHAKE_READ, HANDSHAKE_WRITE, HANDSHAKE_FAILED };

/* A member of the connection. */
struct handshake {
    struct handshake *next;
    SSL *ssl;
    uint64_t owner, round;
    enum handshake_result result;
    int away;                           /* submitted, and not yet returned */
};

struct handshakes;
/* wake is called by a thread when handshakes_back has results. */
struct handshakes *handshakes_open(int n_threads, void (*wake)(void *user), void *user, struct err *e);
/* Wait until each thread has finished its step; afterwards no handshake is away.  NULL is fine. */
void handshakes_close(struct handshakes *h);
/* Queue x.  0; -1: the address has too many waiting, or the queue is full and x would be dropped.
 * limited: HANDSHAKES_PER_OWNER applies.  *dropped: the handshake that left the queue to make space
 * for x, no longer away; NULL: none. */
int handshakes_submit(struct handshakes *h, struct handshake *x, int limited, struct handshake **dropped);
/* Remove x from the queue.  1: x is no longer away; 0: a thread is working on x, and
 * handshakes_back will return it. */
int handshakes_withdraw(struct handshakes *h, struct handshake *x);
/* list of finished handshakes; NULL: none */
struct handshake *handshakes_back(struct handshakes *h);

#endif
