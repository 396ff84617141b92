/* expert_moves.c - counts of chosen experts, and the moves that follow from them. */
#include "libcommon/plan/expert_moves.h"

#include <stdlib.h>

enum {
    /* an expert moves if it is chosen by at least MARGIN tokens and a quarter more often */
    MARGIN = 4,
    HALVED_AFTER = 2048,                /* tokens after which all counts are halved */
};

int moves_open(struct expert_moves *m, int first, int end, int n_experts)
{
    *m = (struct expert_moves){ .first = first, .end = end, .n_experts = n_experts };
    m->count = calloc((size_t)end * (size_t)n_experts, sizeof *m->count);
    return m->count ? 0 : -1;
}

void moves_close(struct expert_moves *m)
{
    free(m->count);
    *m = (struct expert_moves){ 0 };
}

void moves_count(struct expert_moves *m, int layer, const int32_t *id, int n_ids, int n)
{
    float *count = m->count + (size_t)layer * (size_t)m->n_experts;
    for (int i = 0; i < n_ids; i++)
        if (id[i] >= 0)
            count[id[i]]++;
    m->n_counted += n;
}

void moves_step(struct expert_moves *m)
{
    if (m->n_counted < (int64_t)HALVED_AFTER * (m->end - m->first))
        return;
    m->n_counted = 0;
    for (size_t i = 0; i < (size_t)m->end * (size_t)m->n_experts; i++)
        m->count[i] /= 2;
}

struct expert_move moves_best(const struct expert_moves *m, const int32_t *place)
{
    struct expert_move best = { 0 };
    for (int i = m->first; i < m->end; i++) {
        const float *count = m->count + (size_t)i * (size_t)m->n_experts;
        const int32_t *slot = place + (size_t)i * (size_t)m->n_experts;
        int in = -1, out = -1;
        for (int x = 0; x < m->n_experts; x++) {
            if (slot[x] < 0 && (in < 0 || count[x] > count[in]))
                in = x;
            if (slot[x] >= 0 && (out < 0 || count[x] < count[out]))
                out = x;
        }
        if (in >= 0 && out >= 0 && count[in] >= MARGIN && count[in] > 1.25f * count[out] &&
            count[in] - count[out] > best.gain)
            best = (struct expert_move){ i, in, out, count[in] - count[out] };
    }
    return best;
}
