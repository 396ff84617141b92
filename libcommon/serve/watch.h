/* watch.h - when memory runs short: no new requests and no prefix cache, then a clean end before
 * the kernel's OOM killer makes one.  And when the step of an engine does not end: /health says
 * so. */
#ifndef ZSE_SERVE_WATCH_H
#define ZSE_SERVE_WATCH_H

#include "libcommon/hw/memory.h"

enum watch_state {
    WATCH_FINE,
    /* less than 3 % (and 1 GiB) is left, until there are 4 % (or 1.25 GiB): models are let in up
     * to 95 %.  Or less than 15 %, and all tasks of this process's own control group wait for
     * memory a quarter of the time, until they wait less than a tenth of it. */
    WATCH_TRIM,
    WATCH_END,              /* less than 2 % (and 256 MiB) is left below limits at which the system ends processes, a second after shedding began */
};
/* What one reading asks for after the state `before`.  Of the memory that this process may have
 * (memory_most), memory_now is left. */
enum watch_state watch_next(enum watch_state before, const struct memory *m);
/* Two readings one after the other must ask for what is worse; one is enough for what is better. */
struct watch { enum watch_state state, asked; };
void watch_step(struct watch *w, const struct memory *m);

struct server;
/* Once a second, from the loop. */
void watch_tick(struct server *s);
/* Once a second, too: a line in the log when a model begins to stall, and when it goes on. */
void stall_tick(struct server *s);
struct loaded_model;
/* A model whose engine has been in one step for longer than server_options.stall_s; NULL: none. */
const struct loaded_model *stall_find(const struct server *s);

#endif
