/* expert_threshold.c - the break-even between a link and a CPU for the experts of a long step. */
#include "libcommon/plan/expert_threshold.h"

#include <math.h>

static int is_known(double v) { return isfinite(v) && v > 0; }

/* The least number of tokens that choose this share of the missing experts, if one chooses `each`.
 * All of them are chosen by infinitely many tokens only. */
static double tokens_for(double share, double each)
{
    return share <= each ? 1 : share >= 1 ? INFINITY : log1p(-share) / log1p(-each);
}

int expert_threshold(int n_missing, double misses, const struct expert_speeds *s)
{
    if (n_missing <= 0 || !is_known(misses) || !is_known(s->link) || !is_known(s->read) || !is_known(s->products))
        return EXPERT_THRESHOLD;
    const double each = fmin(misses / n_missing, 1), half = tokens_for(0.5, each),
                 by_reading = tokens_for(s->read / s->link, each),
                 by_products = n_missing / misses * (s->products / s->link),
                 n = ceil(fmax(fmin(by_reading, by_products), half));
    return n < 1 ? 1 : n < EXPERT_THRESHOLD_MOST ? (int)n : EXPERT_THRESHOLD_MOST;
}
