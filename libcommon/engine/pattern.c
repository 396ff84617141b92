/* pattern.c - mark and count the keys that queries see. */
#include "libcommon/engine/pattern.h"

#include <string.h>

#include "libcommon/base/rng.h"

const struct sparse_pattern patterns[PATTERN_KINDS] = {
    { .name = "sliding", .window = 512 },
    { .name = "longformer", .window = 512, .globals = 1 },
    { .name = "bigbird", .window = 256, .random = 64, .seed = 42 },
    { .name = "blocks", .unit = 64, .stride = 4 },
};

/* Mark the elements [begin, end), as far as they exist. */
static void mark(uint8_t *seen, int n, int begin, int end)
{
    begin = begin > 0 ? begin : 0;
    end = end < n ? end : n;
    if (begin < end)
        memset(seen + begin, 1, (size_t)(end - begin));
}

void pattern_units(const struct sparse_pattern *p, int n, int i, uint8_t *seen)
{
    const int end = p->causal && i + 1 < n ? i + 1 : n;
    memset(seen, 0, (size_t)n);
    mark(seen, end, i - p->window, i < INT32_MAX - p->window ? i + p->window + 1 : n);
    mark(seen, end, 0, i < p->globals ? n : p->globals);
    for (int j = p->stride ? i % p->stride : end; j < end; j += p->stride)
        seen[j] = 1;
    struct rng r = { p->seed + (uint64_t)i };
    for (int k = 0; k < p->random; k++)
        seen[rng_u64(&r) % (uint64_t)end] = 1;
}

void pattern_row(const struct sparse_pattern *p, int n, int i, uint8_t *seen)
{
    const int unit = p->unit ? p->unit : 1, end = p->causal ? i + 1 : n;
    pattern_units(p, (n + unit - 1) / unit, i / unit, seen);
    /* in place, from the end: unit u is read before its tokens are written */
    for (int j = n - 1; j >= 0; j--)
        seen[j] = j < end && seen[j / unit];
}

int64_t pattern_pairs(const struct sparse_pattern *p, int n, uint8_t *row)
{
    int64_t pairs = 0;
    for (int i = 0; i < n; i++) {
        int seen = 0;
        pattern_row(p, n, i, row);
        for (int j = 0; j < n; j++)
            seen += row[j];
        pairs += seen;
    }
    return pairs;
}
