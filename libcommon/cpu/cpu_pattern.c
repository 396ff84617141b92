/* cpu_pattern.c - attention by a pattern (backend_options.pattern): the kernels see the units that
 * a unit of queries sees as a context of their own, in order of position, which ends with the unit
 * of the queries.  So the work and the reads are those of that shorter context.  The units that a
 * token sees depend only on its position, and not on chunks of the prompt, the batch or the
 * threads. */
#include "libcommon/cpu/cpu_pattern.h"

#include <assert.h>
#include <stdlib.h>

enum { UNIT_BLOCKS = PATTERN_UNIT / KV_BLOCK };
static_assert((int)PATTERN_UNIT == (int)KV_TAIL_STEP && (int)PATTERN_UNIT == (int)KV_SINKS,
              "runs of tokens end at multiples of KV_TAIL_STEP, and the sinks are the first unit");

/* Buffers of a thread. */
struct pattern_tables { int32_t *table, *tail_table; uint8_t *seen; };

static size_t to_lines(size_t n) { return (n + 63) / 64 * 64; }

int pattern_open(struct core *k, const struct sparse_pattern *p, int n_blocks, struct err *e)
{
    const size_t table = to_lines(sizeof(int32_t) * ((size_t)n_blocks + UNIT_BLOCKS)),
                 seen = to_lines((size_t)n_blocks / UNIT_BLOCKS + 2), n = (size_t)pool_size(k->pool);
    struct pattern_tables *w = calloc(n, sizeof *w);
    uint8_t *at = k->pattern_memory = aligned_alloc(64, (2 * table + seen) * n);
    if (!(k->pattern_work = w) || !at)
        return err_nomem(e, "attention by a pattern");
    for (; w < k->pattern_work + n; w++) {
        w->table = (int32_t *)(void *)at, at += table;
        w->tail_table = (int32_t *)(void *)at, at += table;
        w->seen = at, at += seen;
    }
    k->pattern = *p;
    k->bytes += (2 * table + seen + sizeof *w) * n;
    return 0;
}

void pattern_close(struct core *k)
{
    free(k->pattern_work);
    free(k->pattern_memory);
    k->pattern_work = NULL;
    k->pattern_memory = NULL;
}

void pattern_attend(const struct core *k, const struct batch_item *it, struct attn *a, int thread)
{
    struct pattern_tables *w = &k->pattern_work[thread];
    const int own = a->pos / PATTERN_UNIT, in_own = a->pos % PATTERN_UNIT, last = (a->pos + a->n_tokens - 1) / KV_BLOCK,
              tail_from = kv_tail_from(a->pos);
    int n = 0, rounded = 0;
    pattern_units(&k->pattern, own + 1, own, w->seen);
    for (int unit = 0; unit <= own; unit++) {
        const int in_tail = a->tail.base && (unit == 0 || unit * PATTERN_UNIT >= tail_from);
        for (int i = unit * UNIT_BLOCKS; w->seen[unit] && i < (unit + 1) * UNIT_BLOCKS && i <= last; i++, n++) {
            w->table[n] = it->table[i];
            w->tail_table[n] = in_tail ? it->window_table[i] : 0;
        }
        if (unit * PATTERN_UNIT < tail_from)
            rounded = n * KV_BLOCK;
    }
    a->table = w->table;
    if (a->tail.base)
        a->tail.table = w->tail_table;
    a->rounded_from = w->seen[0] ? KV_SINKS : 0;
    a->rounded_to = rounded;
    a->pos = (n - (last - own * UNIT_BLOCKS + 1)) * KV_BLOCK + in_own;
}
