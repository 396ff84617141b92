/* progress.h - progress of a long library call.  The library never prints; cmd/cli.c turns the
 * calls into a bar with rate and ETA when stderr is a terminal. */
#ifndef ZSE_BASE_PROGRESS_H
#define ZSE_BASE_PROGRESS_H

#include <stdint.h>

/* `done` of `total` UNITs ("bytes", "layers", "tokens") of the step named by `what`.  A non-zero
 * return asks the callee to stop with ERR_CANCELLED. */
struct progress {
    int (*report)(void *user, const char *what, uint64_t done, uint64_t total, const char *unit);
    void *user;
};

static inline int progress_report(const struct progress *p, const char *what, uint64_t done, uint64_t total,
                                  const char *unit)
{
    return p && p->report ? p->report(p->user, what, done, total, unit) : 0;
}

#endif
