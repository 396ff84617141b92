/* draw.h - a token that the backend chooses where the logits are, which then need not be copied to
 * the host. */
#ifndef ZSE_ENGINE_DRAW_H
#define ZSE_ENGINE_DRAW_H

#include <stdint.h>

/* The options of sampler.h that need neither a history nor a mask, in the order in which they
 * apply. Biases, penalties, DRY, XTC, top_n_sigma, typical_p, constraints and log probabilities are
 * left to the host. */
struct draw {
    float temperature;          /* 0: the largest logit, ties to the lower id */
    int top_k;                  /* 0: off */
    float top_p, min_p;         /* 1, 0: off */
    /* random number n of this seed (philox.h), independent of the rest of the batch */
    uint64_t seed, n;
    /* -1 before the step.  A backend that draws writes the token and no row of logits; one that
     * does not (the CPU), or that finds NaN or infinities, leaves -1 and writes the logits. */
    int32_t id;
};

#endif
