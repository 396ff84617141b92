/* pattern.h - patterns of sparse attention: which keys each query sees, and how much memory the
 * scores take. */
#ifndef ZSE_ENGINE_PATTERN_H
#define ZSE_ENGINE_PATTERN_H

#include <stdint.h>

/* Tokens are divided into units of `unit` tokens (0: one token).  Queries of unit i see all keys of
 * unit j
 *     if |i - j| <= window,
 *     if i or j is one of the first `globals` units (arXiv:2004.05150),
 *     if j is one of `random` units drawn for i, which may be equal (arXiv:2007.14062), or
 *     if |i - j| is a multiple of `stride` (0: never; arXiv:1904.10509).
 * causal: no query sees a later key. */
struct sparse_pattern {
    const char *name;
    int window, globals, random, unit, stride, causal;
    uint64_t seed;
};

enum {
    PATTERN_UNIT = 64,          /* unit of the patterns that models attend by */
    PATTERN_KINDS = 4,
};
/* Sliding windows, Longformer, BigBird and strided blocks with the usual sizes, not causal. */
extern const struct sparse_pattern patterns[PATTERN_KINDS];

/* seen [n]: 1 for each unit of n that queries of unit i see, else 0.  With `causal` units after i
 * are not seen. */
void pattern_units(const struct sparse_pattern *p, int n, int i, uint8_t *seen);
/* seen [n]: the same for each key of n tokens, and the query at position i. */
void pattern_row(const struct sparse_pattern *p, int n, int i, uint8_t *seen);
/* Number of pairs of a query and a key that it sees.  row: [n] scratch. */
int64_t pattern_pairs(const struct sparse_pattern *p, int n, uint8_t *row);
/* Bytes of the scores of one head as f16. */
static inline double pattern_bytes(int64_t pairs) { return 2.0 * (double)pairs; }

#endif
