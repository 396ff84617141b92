/* places.h - the limits on connections, in total and per owner, and the choice of one to evict for
 * a new one.
 *
 * The owner of a connection is its address (a number that the caller makes) until its first request
 * with a valid key, and from then on that key.  Until then the connection is unknown: an address
 * may have per_address unknown connections, and an eighth of the places is reserved for connections
 * with a key.
 *
 * When no place is free, a new connection evicts an evictable one, and unknown ones first.  The
 * choice is among the PLACES_LOOK connections that have been idle longest: one of the owner with
 * the most connections is evicted.  So idle connections never lock a client out, and owners with
 * few connections keep them.
 *
 * The caller decides which bytes count as activity (conn_request.c: those of an unfinished head do
 * not).  Uses no sockets; one thread. */
#ifndef ZSE_HTTP_PLACES_H
#define ZSE_HTTP_PLACES_H

#include <stdint.h>

#include "libcommon/base/err.h"

enum { PLACES_LOOK = 64 };
struct place_owner;

/* A member of the connection. */
struct place {
    /* neighbours in two lists of evictable connections, all and those of its owner, by last
     * activity */
    struct { struct place *older, *newer; } all, own;
    struct place_owner *owner;          /* NULL: not entered */
    uint64_t active_ns;
    int known, spare;                   /* spare: evictable, in the lists */
};

struct places;
struct places *places_open(int max, int per_address, struct err *e);        /* per_address 0: any number */
void places_close(struct places *p);    /* NULL is fine; all connections must have left */
/* Whether a connection of this address may be accepted.  1: yes, once *evict (NULL: none) is
 * closed; 0: no.  limited 0: per_address does not apply, as for a Unix socket, whose clients all
 * have one address.  A connection of the same address is evicted only after a second without
 * activity, so that in a burst the new connections are refused and the existing ones continue. */
int places_room(struct places *p, uint64_t address, int limited, uint64_t now_ns, struct place **evict);
/* x starts as evictable.  0, or -1 without memory. */
int places_enter(struct places *p, struct place *x, uint64_t address, uint64_t now_ns);
void places_leave(struct places *p, struct place *x);
/* Set the owner of x and mark it as known.  Without memory nothing changes. */
void places_own(struct places *p, struct place *x, uint64_t owner);
/* spare: x is evictable; active: it was used just now. */
void places_update(struct places *p, struct place *x, int spare, int active, uint64_t now_ns);
int places_n(const struct places *p);
int places_n_unknown(const struct places *p);

#endif
