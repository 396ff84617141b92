/* handshake.h - TLS handshakes in threads of their own: a signature with an RSA key of 4096 bits
 * takes 5 to 15 ms, in which the event loop would answer no request.
 *
 * A connection hands in its SSL whenever its socket has something for SSL_accept, and must not
 * touch it until it comes back.  Addresses take turns; one may have HANDSHAKES_PER_OWNER
 * waiting, and when the queue is full the last of the address with most gives way. */
#ifndef ZSE_HTTP_HANDSHAKE_H
#define ZSE_HTTP_HANDSHAKE_H

#include <stdint.h>

#include <openssl/ssl.h>

#include "libcommon/base/err.h"

enum { HANDSHAKES_WAITING = 1024, HANDSHAKES_PER_OWNER = 512 };        /* a pool of clients that starts may open hundreds at once */

enum handshake_result { HANDSHAKE_DONE, HANDSHAKE_READ, HANDSHAKE_WRITE, HANDSHAKE_FAILED };        /* READ, WRITE: once the socket is ready for it */

/* In the connection. */
struct handshake {
    struct handshake *next;
    SSL *ssl;
    uint64_t owner, round;
    enum handshake_result result;
    int away;                           /* handed in, and not back yet */
};

struct handshakes;
/* wake: called in a thread when handshakes_back has something. */
struct handshakes *handshakes_open(int n_threads, void (*wake)(void *user), void *user, struct err *e);
void handshakes_close(struct handshakes *h);            /* waits for the step that each thread is at; then nothing is away.  NULL is fine. */
/* 0, or -1: this address has enough waiting, or the queue is full of others that waited less.
 * *dropped: one that had to give way, not away any more; else NULL. */
int handshakes_submit(struct handshakes *h, struct handshake *x, int limited, struct handshake **dropped);
/* It is not wanted any more.  1: it is back at once; 0: a thread is at it, and it comes back by
 * handshakes_back. */
int handshakes_withdraw(struct handshakes *h, struct handshake *x);
struct handshake *handshakes_back(struct handshakes *h);        /* a list; NULL: none */

#endif
