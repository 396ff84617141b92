/* rate_limits.h - may this request begin?  Requests and tokens a minute, tokens a day, for a key or
 * for an address without one.
 *
 * Counters of keys live in a small file that all servers of one $ZSE_HOME and zse-apikey map:
 * what one counts the others see at once, and a reset works at once.  Nothing in it is secret or
 * needed: a file that is missing or damaged is made anew, empty.  Time is the monotonic clock;
 * after a reboot the windows begin empty. */
#ifndef ZSE_ACCESS_RATE_LIMITS_H
#define ZSE_ACCESS_RATE_LIMITS_H

#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"

struct limit {
    int requests_minute;                    /* 0: no limit, everywhere here */
    int64_t tokens_minute, tokens_day;
};

struct verdict {
    int allowed;
    int never;                              /* usage_reserve: not even an empty window holds the request */
    const char *unit;                       /* of the limit that refused, or of requests: "/min", " tokens/min", " tokens/day" */
    int64_t limit, current, remaining;      /* of that limit; limit 0: there is none */
    int64_t reserved, wanted;               /* tokens: part of current that running requests may still use; what usage_reserve asked for */
    int reset_s, retry_s;                   /* until the window's oldest request leaves it; until it is worth trying again (0 if allowed) */
};
/* "Rate limit exceeded. Limit: 60/min, Current: 60. Try again in 45s." */
void verdict_text(const struct verdict *v, char *out, size_t size);

/* ---- keys ---- */
struct usage;
/* FOLDER/usage; any number of processes and threads at once. */
struct usage *usage_open(const char *folder, struct err *e);
/* The same to look only: nothing is written, and what this process counts stays with it. A file
 * that is not there holds nothing. */
struct usage *usage_open_here(const char *folder, struct err *e);
void usage_close(struct usage *u);          /* NULL is fine */

enum { USAGE_MAX_KEYS = 4000, USAGE_SLOTS = 4096 };
/* Count a request of this key, unless a limit refuses it. Where every slot has a key, the one
 * that was used longest ago loses its counters. */
struct verdict usage_admit(struct usage *u, int64_t key, const struct limit *l);

/* Tokens are reserved before a request runs, so that a limit holds however many requests run at
 * once: LEAST to MOST of them, as many as the limits leave, into *reserved (0 for a key without
 * token limits).  usage_settle charges what was used and frees the rest.  A server renews its
 * reservations by usage_renew, about once a second; those of a server that has not for
 * USAGE_LEASE_S are void.  More than USAGE_SERVERS servers of one folder share the last place:
 * what a dead one of those has reserved stays until all of them have ended. */
enum { USAGE_SERVERS = 16, USAGE_LEASE_S = 15 };
struct verdict usage_reserve(struct usage *u, int64_t key, const struct limit *l, int64_t least, int64_t most,
                             int64_t *reserved);
void usage_settle(struct usage *u, int64_t key, int64_t reserved, int64_t used);
void usage_renew(struct usage *u);

struct usage_stats { uint64_t requests, tokens; int64_t last_used_ms; int64_t requests_minute, tokens_minute,
                     tokens_day, reserved; struct verdict verdict; };
/* Without counting a request; the verdict is that of the next one. */
void usage_read(struct usage *u, int64_t key, const struct limit *l, struct usage_stats *s);
void usage_reset(struct usage *u, int64_t key);         /* the windows; totals stay */
void usage_drop(struct usage *u, int64_t key);          /* of a key that is gone */
/* Whose counters there are: how many, at most USAGE_SLOTS. */
int usage_keys(const struct usage *u, int64_t ids[USAGE_SLOTS]);

/* ---- addresses ---- */
/* The last n addresses in memory; the one that was quiet longest makes room.  IPv6 counts by its
 * first 64 bits: a host has all that follow (RFC 6177, RFC 4291 section 2.5.4). One thread. */
struct address_limits;
struct address_limits *address_limits_open(int n, int requests_minute, struct err *e);
void address_limits_close(struct address_limits *a);
struct verdict address_admit(struct address_limits *a, const char *address);
struct verdict address_peek(struct address_limits *a, const char *address);     /* without counting */

#endif
