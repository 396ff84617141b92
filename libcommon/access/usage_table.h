/* usage_table.h - the counters of keys in memory, for rate_limits.c and usage_share.c. */
#ifndef ZSE_ACCESS_USAGE_TABLE_H
#define ZSE_ACCESS_USAGE_TABLE_H

#include <pthread.h>
#include <stdatomic.h>

#include "libcommon/access/rate_limits.h"
#include "libcommon/access/rate_window.h"
#include "libcommon/base/clock.h"

/* key of a slot whose key was deleted; a search must continue past it */
#define USAGE_TAKEN_AWAY UINT64_MAX

struct usage_slot {
    _Atomic uint64_t key;                   /* 0: free */
    _Atomic uint64_t requests, tokens, last_used_ms;
    window_bucket second[WINDOW_MINUTE], token_second[WINDOW_MINUTE], token_quarter[WINDOW_DAY];
};

struct usage_table {
    char magic[16], boot[48];
    struct usage_slot slot[USAGE_SLOTS];
    /* Files of version 0.1.0 end before these members.  server: the places of running servers, each
     * a random number << 32 | the second in which the server last renewed its place; 0: a free
     * place.  reserved: the tokens that each server has reserved. */
    _Atomic uint64_t server[USAGE_SERVERS];
    _Atomic uint64_t reserved[USAGE_SLOTS][USAGE_SERVERS];
};
_Static_assert(sizeof(struct usage_slot) == 32 + 8 * (2 * WINDOW_MINUTE + WINDOW_DAY) &&
               sizeof(struct usage_table) == 64 +
               USAGE_SLOTS * sizeof(struct usage_slot) + 8 * USAGE_SERVERS * (1 + USAGE_SLOTS),
               "the layout of a shared file");

/* counts of a slot that are not in the database yet */
struct usage_unsent {
    struct usage_slot counts;
    uint32_t looked_s;                      /* last use of the slot; 0: never */
    int64_t told;                           /* tokens reserved at the time of the last usage_take() */
};
/* places in usage_table.server, if counters are shared through a database */
enum { PLACE_OWN, PLACE_OTHERS };

struct usage {
    struct usage_table *t;
    int fd;
    pthread_mutex_t lock;   /* taken before flock(): threads share the descriptor, and so its lock */
    atomic_int server;      /* index of this process in t->server; -1: nothing reserved yet */
    uint32_t mark;
    /* for counters that are shared through a database; NULL: they are not */
    struct usage_unsent *unsent;
    pthread_mutex_t merging;                /* held while counters are read, changed or replaced */
};

/* Threads that count, and the thread that replaces counters, exclude each other. */
static inline void usage_enter(struct usage *u)
{
    if (u->unsent)
        pthread_mutex_lock(&u->merging);
}

static inline void usage_leave(struct usage *u)
{
    if (u->unsent)
        pthread_mutex_unlock(&u->merging);
}

static inline uint32_t usage_now_s(void) { return (uint32_t)(clock_ns() / 1000000000u); }

#endif
