/* pattern.c - mark and count the keys that queries see. */
#include "libcommon/plan/pattern.h"

#include <string.h>

#include "libcommon/base/rng.h"

const struct sparse_pattern patterns[PATTERN_KINDS] = {
    { .name = "sliding", .kind = PATTERN_SLIDING, .window = 512 },
    { .name = "longformer", .kind = PATTERN_LONGFORMER, .window = 512, .globals = 1 },
    { .name = "bigbird", .kind = PATTERN_BIGBIRD, .window = 256, .random = 64, .seed = 42 },
    { .name = "blocks", .kind = PATTERN_BLOCKS, .block = 64, .stride = 4 },
};

/* Mark the keys [begin, end), as far as they exist. */
static void mark(uint8_t *seen, int n, int begin, int end)
{
    begin = begin > 0 ? begin : 0;
    end = end < n ? end : n;
    if (begin < end)
        memset(seen + begin, 1, (size_t)(end - begin));
}

void pattern_row(const struct sparse_pattern *p, int n, int i, uint8_t *seen)
{
    const int end = p->causal ? i + 1 : n;
    memset(seen, 0, (size_t)n);
    if (p->kind == PATTERN_BLOCKS) {
        const int own = i / p->block;
        for (int b = own % p->stride; b * p->block < end; b += p->stride)
            mark(seen, end, b * p->block, (b + 1) * p->block);
        return;
    }
    mark(seen, end, i - p->window, i + p->window + 1);
    if (p->kind == PATTERN_LONGFORMER)
        mark(seen, end, 0, i < p->globals ? n : p->globals);
    struct rng r = { p->seed + (uint64_t)i };
    for (int k = 0; k < p->random && p->kind == PATTERN_BIGBIRD; k++)
        seen[rng_u64(&r) % (uint64_t)end] = 1;
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
