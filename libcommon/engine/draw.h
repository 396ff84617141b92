/* draw.h - options for a token that the backend draws itself, so that its logits need not be copied
 * to the host. */
#ifndef ZSE_ENGINE_DRAW_H
#define ZSE_ENGINE_DRAW_H

#include <stdint.h>

/* The options of sampling.def that gpu/kernels/sample.cu applies, in this order.  sampler_draw()
 * leaves a token to the host if any other option, a constraint or a log probability is asked
 * for. */
struct draw {
    float temperature;          /* 0: the largest logit, ties to the lower id */
    int top_k;                  /* 0: off */
    float top_p, min_p;         /* 1, 0: off */
    /* random number n of this seed (philox.h), independent of the rest of the batch */
    uint64_t seed, n;
    /* Set to -1 before the step.  A backend that draws the token writes it here, and does not
     * return the row of logits.  A backend that cannot draw (the CPU), or that finds NaN or
     * infinities, leaves -1 and returns the logits. */
    int32_t id;
};

#endif
