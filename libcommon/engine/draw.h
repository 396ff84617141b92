/* draw.h - a token that the backend chooses where the logits are, so that they need not come to
 * the host. */
#ifndef ZSE_ENGINE_DRAW_H
#define ZSE_ENGINE_DRAW_H

#include <stdint.h>

/* The options of sampler.h that need neither a history nor a mask, in its order: temperature,
 * top_k, top_p, min_p, the draw.  Biases, penalties, DRY, XTC, top_n_sigma,
 * typical_p, constraints and log probabilities stay with the host. */
struct draw {
    float temperature;          /* 0: the largest logit, ties to the lower id */
    int top_k;                  /* 0: off */
    float top_p, min_p;         /* 1, 0: off */
    uint64_t seed, n;           /* philox.h: the number n of this seed decides, whatever else is in the batch */
    /* Before the step -1.  A backend that draws writes the token, and leaves its row of logits
     * alone; one that does not (the CPU's), or finds NaN or infinities, leaves -1 and the
     * logits. */
    int32_t id;
};

#endif
