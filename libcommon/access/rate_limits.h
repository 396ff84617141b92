/* rate_limits.h - rate limits: requests and tokens a minute, tokens a day, for a key or for an
 * address without one.
 *
 * The counters of keys are in a small file that all servers of one $ZSE_HOME and zse-apikey map, so
 * they share counts and resets at once.  Its contents are neither secret nor essential: a missing
 * or damaged file is created again, empty.  Time is the monotonic clock; after a reboot the windows
 * start empty.
 *
 * Servers on several machines share counts through a database (usage_share.h): each counts in
 * memory, and a thread exchanges the counts. */
#ifndef ZSE_ACCESS_RATE_LIMITS_H
#define ZSE_ACCESS_RATE_LIMITS_H

#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"

struct limit {
    int requests_minute;                    /* 0: no limit, here and below */
    int64_t tokens_minute, tokens_day;
};

struct verdict {
    int allowed;
    int never;                              /* usage_reserve: the request needs more than the whole limit */
    const char *unit;   /* unit of the refusing limit, or of requests: "/min", " tokens/min", " tokens/day" */
    int64_t limit, current, remaining;      /* values of that limit; limit 0: none */
    /* of a token limit: the part of current that is reserved for running requests, and the amount
     * that usage_reserve asked for */
    int64_t reserved, wanted;
    /* seconds until the oldest request leaves the window; until a retry may succeed (0 if
     * allowed) */
    int reset_s, retry_s;
};
/* "Rate limit exceeded. Limit: 60/min, Current: 60. Try again in 45s." */
void verdict_text(const struct verdict *v, char *out, size_t size);

/* ---- keys ---- */
struct usage;
/* FOLDER/usage; any number of processes and threads at once. */
struct usage *usage_open(const char *folder, struct err *e);
/* Read-only: nothing is written, and counts stay in this process.  A missing file has no counts. */
struct usage *usage_open_here(const char *folder, struct err *e);
/* In memory, for counts that are shared through a database. */
struct usage *usage_open_shared(struct err *e);
void usage_close(struct usage *u);          /* NULL is fine */

enum { USAGE_MAX_KEYS = 4000, USAGE_SLOTS = 4096 };
/* Count a request of this key, unless a limit refuses it.  If all slots are taken, the least
 * recently used key loses its counters. */
struct verdict usage_admit(struct usage *u, int64_t key, const struct limit *l);

/* Tokens are reserved before a request runs, so limits hold with any number of concurrent requests.
 * usage_reserve reserves LEAST to MOST tokens, as many as the limits leave; *reserved is their
 * number (0 for a key without token limits).  usage_settle charges the used tokens and releases the
 * rest.  A server calls usage_renew about once a second; reservations of a server that has not done
 * so for USAGE_LEASE_S are void.  If one folder has more than USAGE_SERVERS servers, the surplus
 * servers share the last place; if one of them dies, its reservations stay until all of them have
 * ended. */
enum { USAGE_SERVERS = 16, USAGE_LEASE_S = 15 };
struct verdict usage_reserve(struct usage *u, int64_t key, const struct limit *l, int64_t least, int64_t most,
                             int64_t *reserved);
void usage_settle(struct usage *u, int64_t key, int64_t reserved, int64_t used);
void usage_renew(struct usage *u);

struct usage_stats { uint64_t requests, tokens; int64_t last_used_ms; int64_t requests_minute, tokens_minute,
                     tokens_day, reserved; struct verdict verdict; };
/* Read the counters, and the verdict that a request would get now, without counting it. */
void usage_read(struct usage *u, int64_t key, const struct limit *l, struct usage_stats *s);
void usage_reset(struct usage *u, int64_t key);         /* clears the windows; totals stay */
void usage_drop(struct usage *u, int64_t key);          /* removes the slot of a deleted key */
/* The keys that have counters.  Returns their number, at most USAGE_SLOTS. */
int usage_keys(const struct usage *u, int64_t ids[USAGE_SLOTS]);

/* ---- addresses ---- */
/* The last n addresses, in memory; the least recently used one is replaced.  IPv6 counts by its
 * first 64 bits: a host has the rest to itself (RFC 6177, RFC 4291 section 2.5.4).  One thread. */
struct address_limits;
struct address_limits *address_limits_open(int n, int requests_minute, struct err *e);
void address_limits_close(struct address_limits *a);
struct verdict address_admit(struct address_limits *a, const char *address);
/* does not count a request */
struct verdict address_peek(struct address_limits *a, const char *address);

#endif
