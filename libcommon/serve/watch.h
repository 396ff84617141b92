/* watch.h - when memory runs short: no new requests and no prefix cache, then a clean end before the kernel's OOM killer makes one. */
#ifndef ZSE_SERVE_WATCH_H
#define ZSE_SERVE_WATCH_H

#include "libcommon/hw/memory.h"

enum watch_state {
    WATCH_FINE,
    WATCH_SHED,             /* less than 5 % is left, or all tasks wait for memory a quarter of the time; until there are 10 % and they wait less than a tenth of it */
    WATCH_END,              /* less than 2 % is left, a second after shedding began */
};
/* The state after `before`.  Of the memory that this process may have (memory_most), memory_now is left. */
enum watch_state watch_next(enum watch_state before, const struct memory *m);

struct server;
/* Once a second, from the loop. */
void watch_tick(struct server *s);

#endif
