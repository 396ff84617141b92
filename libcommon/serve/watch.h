/* watch.h - the machine's memory and the engines' steps, watched once a second.
 *
 * When memory runs short the server takes no new requests and keeps no prefix cache; when it runs
 * out the server ends cleanly, before the kernel's OOM killer ends it.  When the step of an engine
 * does not end, /health reports it. */
#ifndef ZSE_SERVE_WATCH_H
#define ZSE_SERVE_WATCH_H

#include "libcommon/hw/memory.h"

enum watch_state {
    WATCH_FINE,
    /* Begins when less than 3 % and less than 1 GiB of memory are left, and ends when 4 % or
     * 1.25 GiB are left again.  (Models are admitted up to 95 %.)  Also begins when less than 15
     * % is left and all tasks of this process's own control group stall on memory for a quarter
     * of the time, and ends when they stall for less than a tenth. */
    WATCH_TRIM,
    /* memory_runs_out(), and TRIM began at least a second ago */
    WATCH_END,
};
/* Returns the state that follows from one reading m and the state `before`.  In the conditions
 * above, percentages are of memory_most(m), and what is left is memory_now(m) bytes. */
enum watch_state watch_next(enum watch_state before, const struct memory *m);
/* asked: the state that followed from the last reading.  `state` becomes better after a single
 * reading, but worse only after two readings in a row that result in a worse state. */
struct memory_watch { enum watch_state state, asked; };
void watch_step(struct memory_watch *w, const struct memory *m);

struct server;
void watch_tick(struct server *s);      /* once a second: read the memory and act */
void stall_tick(struct server *s);      /* once a second: warn when an engine stalls, and when it continues */
struct loaded_model;
/* A model whose engine has been in one step for longer than server_options.stall_s; NULL: none. */
const struct loaded_model *stall_find(const struct server *s);

#endif
