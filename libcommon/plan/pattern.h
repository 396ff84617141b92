/* pattern.h - patterns of sparse attention: which keys each query sees, and how much memory the
 * scores take. */
#ifndef ZSE_PLAN_PATTERN_H
#define ZSE_PLAN_PATTERN_H

#include <stdint.h>

/* Query i sees key j
 *     SLIDING     if |i - j| <= window
 *     LONGFORMER  also if i or j is one of the first `globals` tokens (arXiv:2004.05150)
 *     BIGBIRD     if |i - j| <= window, or j is one of `random` keys drawn for i, which may be
 *                 equal (arXiv:2007.14062)
 *     BLOCKS      if i and j lie in blocks of `block` tokens, `stride` or a multiple of it apart
 * causal: and if j <= i. */
enum pattern_kind { PATTERN_SLIDING, PATTERN_LONGFORMER, PATTERN_BIGBIRD, PATTERN_BLOCKS, PATTERN_KINDS };
struct sparse_pattern {
    const char *name;
    enum pattern_kind kind;
    int window, globals, random, block, stride, causal;
    uint64_t seed;
};

/* A pattern of each kind with the usual sizes, not causal, in the order of enum pattern_kind. */
extern const struct sparse_pattern patterns[PATTERN_KINDS];

/* seen [n]: 1 for each key of n that query i sees, else 0. */
void pattern_row(const struct sparse_pattern *p, int n, int i, uint8_t *seen);
/* Number of pairs of a query and a key that it sees.  row: [n] scratch. */
int64_t pattern_pairs(const struct sparse_pattern *p, int n, uint8_t *row);
/* Bytes of the scores of one head as f16. */
static inline double pattern_bytes(int64_t pairs) { return 2.0 * (double)pairs; }

#endif
