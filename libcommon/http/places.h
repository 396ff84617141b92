/* places.h - room for connections: how many there may be, how many of one owner, and which one is
 * evicted for a new one.
 *
 * The owner of a connection is the address it comes from (a number that the caller makes), and
 * from the first request with a good key on, that key.  Until then it is unknown: an address may
 * have per_address unknown connections, and all unknown ones together leave an eighth of the
 * places to those with a key.  A new connection that finds no room evicts one that can be
 * spared: unknown before known, the largest owner's among the PLACES_LOOK that were quiet
 * longest.  So idle connections never lock anyone out, and who has few connections keeps them.
 * No sockets here; one thread. */
#ifndef ZSE_HTTP_PLACES_H
#define ZSE_HTTP_PLACES_H

#include <stdint.h>

#include "libcommon/base/err.h"

enum { PLACES_LOOK = 64 };
struct place_owner;

/* In the connection. */
struct place {
    struct { struct place *older, *newer; } all, own;   /* of those that can be spared, of all owners and of its own, by their last activity */
    struct place_owner *owner;          /* NULL: outside */
    uint64_t active_ns;
    int known, spare;                   /* spare: in the lists */
};

struct places;
struct places *places_open(int max, int per_address, struct err *e);        /* per_address 0: any number */
void places_close(struct places *p);    /* NULL is fine; no connection may be left */
/* Is there room for a connection of this address?  1, perhaps only after *evict (else NULL) has
 * left; 0: no.  limited 0: per_address does not hold, as for a socket whose clients all have one
 * address.  Of its own address only a connection that was quiet for a second is evicted, so that
 * a burst is refused instead of broken off. */
int places_room(struct places *p, uint64_t address, int limited, uint64_t now_ns, struct place **evict);
int places_enter(struct places *p, struct place *x, uint64_t address, uint64_t now_ns);         /* -1: out of memory; can be spared */
void places_leave(struct places *p, struct place *x);
/* It is this owner's from now on, and known.  Where memory runs out it stays as it was. */
void places_own(struct places *p, struct place *x, uint64_t owner);
/* Can it be spared?  active: it did something just now. */
void places_update(struct places *p, struct place *x, int spare, int active, uint64_t now_ns);
int places_n(const struct places *p);
int places_n_unknown(const struct places *p);

#endif
