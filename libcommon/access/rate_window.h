/* rate_window.h - count events in the last minute or day by buckets: a sliding window, no locks.
 *
 * A bucket holds the number of its time span and a count in one word, so threads and processes add
 * with one compare-and-swap, and an outdated bucket is recognised.  A window consists of whole
 * buckets and reaches up to one bucket further back than its name says: limits hold in any span,
 * and events leave the window up to one bucket late. */
#ifndef ZSE_ACCESS_RATE_WINDOW_H
#define ZSE_ACCESS_RATE_WINDOW_H

#include <stdatomic.h>
#include <stdint.h>

enum { WINDOW_MINUTE = 64, WINDOW_DAY = 128 };          /* buckets of a second; of a quarter of an hour */
enum { MINUTE_SPAN = 60, DAY_SPAN = 96, QUARTER_S = 900 };

/* number of the span in the high half, count in the low half */
typedef _Atomic uint64_t window_bucket;

/* Add n to the count of span number `now` in a ring of `size` buckets; a negative n takes back an
 * earlier addition.  Counts saturate at 0 and at 2^32 - 1. */
static inline void window_add(window_bucket *ring, int size, uint32_t now, int64_t n)
{
    window_bucket *b = &ring[now % (uint32_t)size];
    uint64_t old = atomic_load_explicit(b, memory_order_relaxed), next;
    do {
        const int64_t count = (old >> 32 == now ? (int64_t)(old & UINT32_MAX) : 0) + n;
        next = (uint64_t)now << 32 | (uint64_t)(count < 0 ? 0 : count > UINT32_MAX ? UINT32_MAX : count);
    } while (!atomic_compare_exchange_weak_explicit(b, &old, next, memory_order_relaxed, memory_order_relaxed));
}

/* The sum of spans now - span ... now.  *oldest: the first of them with a count (now if none). */
static inline uint64_t window_sum(const window_bucket *ring, int size, uint32_t now, uint32_t span, uint32_t *oldest)
{
    uint64_t sum = 0;
    *oldest = now;
    for (uint32_t back = 0; back <= span && back <= now; back++) {
        const uint64_t b = atomic_load_explicit(&((window_bucket *)ring)[(now - back) % (uint32_t)size],
                                                memory_order_relaxed);
        if (b >> 32 == now - back && (b & UINT32_MAX)) {
            sum += b & UINT32_MAX;
            *oldest = now - back;
        }
    }
    return sum;
}

#endif
