/* metrics.c - counters, histograms, the rings of calls, minutes and seconds. */
#include "libcommon/serve/metrics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "libcommon/engine/engine.h"

const double histogram_bounds[HISTOGRAM_BUCKETS] = { 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5,
                                                     10, 30, 60, 300 };

void histogram_add(struct histogram *h, double seconds)
{
    int i = 0;
    while (i < HISTOGRAM_BUCKETS && seconds > histogram_bounds[i])
        i++;
    h->bucket[i]++;
    h->count++;
    h->sum += seconds;
}

void metrics_release(struct metrics *m)
{
    free(m->count);
    free(m->recent_calls);
    memset(m, 0, sizeof *m);
}

void metrics_count(struct metrics *m, int route, int status)
{
    for (int i = 0; i < m->n_counts; i++)
        if (m->count[i].route == route && m->count[i].status == status) {
            m->count[i].n++;
            return;
        }
    if (m->n_counts == m->room) {
        int room = 2 * m->room + 16;
        struct route_count *p = realloc(m->count, (size_t)room * sizeof *p);
        if (!p)
            return;
        m->count = p;
        m->room = room;
    }
    m->count[m->n_counts++] = (struct route_count){ route, status, 1 };
}

uint64_t memory_resident(uint64_t *files)
{
    unsigned long long size, resident = 0, shared = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (f) {
        if (fscanf(f, "%llu %llu %llu", &size, &resident, &shared) != 3)
            resident = shared = 0;
        fclose(f);
    }
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    if (files)
        *files = (uint64_t)shared * page;
    return (uint64_t)resident * page;
}

/* The slot of the current minute; a slot with an older minute is cleared first. */
static struct minute *this_minute(struct metrics *m)
{
    int64_t now = (int64_t)time(NULL) / 60;
    struct minute *at = &m->minute[now % MINUTES];
    if (at->minute != now)
        *at = (struct minute){ .minute = now };
    return at;
}

void metrics_call_ended(struct metrics *m, const struct recent_call *r, double decode_s)
{
    struct minute *at = this_minute(m);
    m->requests++;
    m->failed += r->status >= 400;
    m->tokens += (uint64_t)r->completion_tokens;
    m->prompt_tokens += (uint64_t)r->prompt_tokens;
    m->latency_s += r->latency_s;
    m->decode_s += decode_s;
    m->decoded += r->completion_tokens > 0 ? (uint64_t)r->completion_tokens - 1 : 0;
    at->requests++;
    at->tokens += (uint64_t)r->completion_tokens;
    at->latency_s += r->latency_s;
    at->memory = memory_resident(NULL);
    if (at->memory > m->peak_memory)
        m->peak_memory = at->memory;
    /* allocate the whole ring at once, because growing it would fragment the heap */
    if (!m->recent_calls && !(m->recent_calls = calloc(MAX_RECENT_CALLS, sizeof *m->recent_calls)))
        return;
    m->recent_calls[m->next] = *r;
    m->next = (m->next + 1) % MAX_RECENT_CALLS;
    if (m->n_recent_calls < MAX_RECENT_CALLS)
        m->n_recent_calls++;
}

static void forget_old_seconds(struct metrics *m, int64_t now)
{
    if (now - m->recent_second > 10)
        memset(m->recent_tokens, 0, sizeof m->recent_tokens);
    else
        for (int64_t s = m->recent_second + 1; s <= now; s++)
            m->recent_tokens[s % 10] = 0;
    m->recent_second = now;
}

void metrics_tokens(struct metrics *m, int n)
{
    int64_t now = (int64_t)time(NULL);
    if (now != m->recent_second)
        forget_old_seconds(m, now);
    m->recent_tokens[now % 10] += (uint64_t)n;
}

double metrics_rate(struct metrics *m)
{
    int64_t now = (int64_t)time(NULL);
    uint64_t sum = 0;
    if (now != m->recent_second)
        forget_old_seconds(m, now);
    for (int i = 1; i <= 5; i++)
        sum += m->recent_tokens[(now - i) % 10];
    return (double)sum / 5;
}

double kv_use(const struct engine_stats *e)
{
    return e->n_blocks ? (double)(e->n_blocks - e->n_free_blocks - e->n_cached_blocks) / e->n_blocks : 0;
}
