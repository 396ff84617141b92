/* memory.h - the memory that this process can use (the machine's memory within the limits of the
 * process's control groups), and memory pressure.  Reads only a few small files, so it can be
 * called once a second. */
#ifndef ZSE_HW_MEMORY_H
#define ZSE_HW_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"

/* The folders of this process's control group, from the deepest up to the mount point. */
struct cgroup {
    int version;                /* 1 or 2; 0: there is no such controller */
    char dir[512];              /* "/sys/fs/cgroup/a/b", without root */
    size_t mount;               /* length of the mount point in dir */
};
/* Find controller "memory" or "cpu" by /proc/self/cgroup and /proc/self/mountinfo. */
void cgroup_find(struct cgroup *g, const char *root, const char *controller);
/* Move dir to its parent; 0 if it is the mount point. */
int cgroup_up(struct cgroup *g);

struct memory {                 /* bytes */
    uint64_t total, available, free, cached, swap_total, swap_free;     /* memory of the machine: /proc/meminfo */
    uint64_t limit;             /* smallest limit of this process's control groups; 0: none below total */
    /* bytes that can be allocated before that limit is reached; the group's page cache counts as
     * free, because it can be reclaimed */
    uint64_t left;
    uint64_t hard, hard_left;   /* like limit and left, but without memory.high, which only slows a process down */
    int limit_version;          /* version of the limiting group: 1 or 2 */
    /* percentage of the last 10 s in which all tasks waited for memory (PSI "full"), of the group
     * if the kernel reports it, else of the machine; -1: unknown */
    double stalled10;
    int stalled_own;            /* 1: stalled10 is the group's value; 0: the machine's */
};
/* -1: /proc/meminfo is missing or unusable. */
int memory_read(struct memory *m, const char *root, struct err *e);
/* The largest amount this process could ever have, and the amount it can have now. */
uint64_t memory_most(const struct memory *m);
uint64_t memory_now(const struct memory *m);
/* Whether less than the fraction `share` of `most` bytes and less than `bytes` are left.  The
 * fraction alone may still be plenty on a large machine; the amount alone may be all that a model
 * leaves on a small one. */
int memory_below(uint64_t left, uint64_t most, double share, uint64_t bytes);
/* Whether less than 2 % and less than 256 MiB are left below the limits at which the system ends
 * processes. */
int memory_runs_out(const struct memory *m);

/* Memory pressure by the used fraction of the total: below 50 %, 75 %, 90 %, 97 %, and above. */
enum pressure { PRESSURE_LOW, PRESSURE_NORMAL, PRESSURE_HIGH, PRESSURE_CRITICAL, PRESSURE_OOM };
enum pressure pressure_of(uint64_t used, uint64_t total);
const char *pressure_name(enum pressure p);         /* "LOW" */

#endif
