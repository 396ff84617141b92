/* metrics.h - the server's counters and histograms for /metrics, and the records of the last calls
 * and of the last hour for /api/analytics. */
#ifndef ZSE_SERVE_METRICS_H
#define ZSE_SERVE_METRICS_H

#include <stddef.h>
#include <stdint.h>

enum { MAX_ROUTES = 64, HISTOGRAM_BUCKETS = 16, MINUTES = 60, MAX_RECENT_CALLS = 10000 };

/* Upper bounds of buckets, in seconds; a histogram has one more bucket, without a bound. */
extern const double histogram_bounds[HISTOGRAM_BUCKETS];
struct histogram {                      /* histogram of durations in seconds */
    uint64_t bucket[HISTOGRAM_BUCKETS + 1], count;
    double sum;
};
void histogram_add(struct histogram *h, double seconds);

struct model_metrics {                  /* figures of one model since it was loaded */
    uint64_t requests, tokens, prompt_tokens, cached_tokens;
    struct histogram first_token, between_tokens, duration;
};

/* An API call that has ended. */
struct recent_call {
    char id[48], model[64], user[64], client[64];
    int route, status, prompt_tokens, completion_tokens;
    double latency_s, first_token_s;
    int64_t at;                         /* milliseconds since 1970 */
};

/* Sums of one minute of the last hour.  memory: resident bytes when the minute's last call
 * ended. */
struct minute { int64_t minute; uint64_t requests, tokens; double latency_s; uint64_t memory; };

struct route_count { int route, status; uint64_t n; };

struct metrics {
    struct route_count *count; int n_counts, room;      /* counts by route and status; owned */
    uint64_t requests, failed, tokens, prompt_tokens;   /* counts of API calls */
    double latency_s, decode_s; uint64_t decoded;
    uint64_t peak_memory;
    /* a ring of MAX_RECENT_CALLS; NULL: none yet; owned */
    struct recent_call *recent_calls; int n_recent_calls, next;
    struct minute minute[MINUTES];
    /* tokens of each of the last seconds, for the current rate */
    uint64_t recent_tokens[10]; int64_t recent_second;
};

void metrics_release(struct metrics *m);
void metrics_count(struct metrics *m, int route, int status);
void metrics_call_ended(struct metrics *m, const struct recent_call *r, double decode_s);
void metrics_tokens(struct metrics *m, int n);          /* add n tokens generated just now */
double metrics_rate(struct metrics *m);                 /* tokens a second over the last 5 whole seconds */
/* Resident bytes of this process.  *files: how many of them are pages of mapped files, mainly
 * weights; may be NULL. */
uint64_t memory_resident(uint64_t *files);
struct engine_stats;
double kv_use(const struct engine_stats *e);            /* fraction of the KV blocks that running requests hold */

#endif
