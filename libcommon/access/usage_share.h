/* usage_share.h - exchange the counters of usage_open_shared() with those of other servers.
 *
 * usage_take() hands over what this process has counted; once it is stored, usage_replace() sets
 * the counters to the totals of all servers.  In between requests go on counting.  So a limit can
 * be exceeded by what other servers admit between two exchanges. */
#ifndef ZSE_ACCESS_USAGE_SHARE_H
#define ZSE_ACCESS_USAGE_SHARE_H

#include "libcommon/access/rate_limits.h"

/* Counts are numbers of a key: requests or tokens of a second, tokens of a quarter of an hour (age:
 * how many of these ago, 0 is the present one); the rest has no age.  OTHERS: tokens that other
 * servers have reserved. */
enum usage_kind { USAGE_REQUESTS_SECOND, USAGE_TOKENS_SECOND, USAGE_TOKENS_QUARTER, USAGE_OTHERS, USAGE_REQUESTS,
                  USAGE_TOKENS, USAGE_LAST_MS };
struct usage_count { int64_t key; enum usage_kind kind; int age; int64_t n; };
/* reserved: by this server; told: the same, at the previous usage_take() */
struct usage_key { int64_t key, requests, tokens, last_ms, reserved, told; };
/* the keys that were used within a minute, and their counts since the last usage_take() */
struct usage_part { struct usage_key *key; int n_keys; struct usage_count *count; int n_counts; uint32_t taken_s; };

void usage_make(struct usage *u, int64_t key);          /* a slot for this key, in a new table */
int usage_take(struct usage *u, struct usage_part *p, struct err *e);
/* Take back the counts of a usage_take() that could not be stored. */
void usage_untake(struct usage *u, const struct usage_part *p);
/* Set the counters of the keys of p to these totals of all servers. */
void usage_replace(struct usage *u, const struct usage_part *p, const struct usage_count *total, int n);
void usage_part_release(struct usage_part *p);

#endif
