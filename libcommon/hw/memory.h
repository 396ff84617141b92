/* memory.h - how much memory there is, for this process: what the machine has, less what a
 * control group allows of it, and whether it runs short.  Quick enough to ask once a second: a
 * handful of small files. */
#ifndef ZSE_HW_MEMORY_H
#define ZSE_HW_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"

/* Where a control group of this process keeps its files, from the deepest folder up to the
 * mount's. */
struct cgroup {
    int version;                /* 1 or 2; 0: no such controller here */
    char dir[512];              /* "/sys/fs/cgroup/a/b", without root */
    size_t mount;               /* length of the mount point in dir */
};
/* controller "memory" or "cpu" of /proc/self/cgroup, found through /proc/self/mountinfo. */
void cgroup_find(struct cgroup *g, const char *root, const char *controller);
/* dir becomes its parent's; 0 where the mount point was reached. */
int cgroup_up(struct cgroup *g);

struct memory {                 /* bytes */
    uint64_t total, available, free, cached, swap_total, swap_free;     /* of the machine: /proc/meminfo */
    uint64_t limit;             /* the least limit of this process's control groups; 0: none below total */
    uint64_t left;              /* what is left below it: the group's page cache can be given back and does not count as used */
    uint64_t hard, hard_left;   /* the same of limits at which processes are ended (without memory.high) */
    int limit_version;          /* of the group that limits: 1 or 2 */
    double stalled10;           /* per cent of the last 10 s in which all tasks waited for memory (PSI "full"; the group's own if there is one); -1: unknown */
    int stalled_own;            /* that is the group's own, not the whole machine's */
};
/* -1: /proc/meminfo is not there or says nothing. */
int memory_read(struct memory *m, const char *root, struct err *e);
/* The most this process could ever have, and what it can have now. */
uint64_t memory_most(const struct memory *m);
uint64_t memory_now(const struct memory *m);

/* How short memory is.  By the share of `most` that is used. */
enum pressure { PRESSURE_LOW, PRESSURE_NORMAL, PRESSURE_HIGH, PRESSURE_CRITICAL, PRESSURE_OOM };
/* below 50 %, 75 %, 90 %, 97 %, and above */
enum pressure pressure_of(uint64_t used, uint64_t total);
const char *pressure_name(enum pressure p);         /* "LOW" */

#endif
