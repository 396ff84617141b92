/* ternary.h - ways to make -1, 0 and 1 of the weights of a group that were not trained to be that.
 *
 * All but the first choose the codes by a rule and then the scale (f16) as the rule says.
 * Cosine of the angle between 100,000 nearly normal numbers and what became of them, groups of
 * 128: fit .904, adaptive .903, rms .900, absmean .891, threshold .888, sign .803 (t-quantize
 * has them). */
#ifndef ZSE_QUANT_TERNARY_H
#define ZSE_QUANT_TERNARY_H

#include "libcommon/quant/tile.h"

enum ternary_fit {
    TERNARY_FIT,        /* the scale that leaves the least squared error (quantize_row) */
    /* scale = mean |x|, codes = x / scale rounded: BitNet b1.58, arXiv:2402.17764, there for the
     * whole matrix */
    TERNARY_ABSMEAN,
    TERNARY_RMS,        /* 0 below half the root mean square; scale = mean |x| of the others */
    TERNARY_ADAPTIVE,   /* 0 below 0.7 times mean |x|; scale likewise: Ternary Weight Networks, arXiv:1605.04711 */
    TERNARY_THRESHOLD,  /* 0 below 0.3 times the largest |x|; scale likewise */
    TERNARY_SIGN,       /* no zeros; scale = mean |x| */
    N_TERNARY
};
/* "fit" ...; NULL: no such. */
const char *ternary_name(enum ternary_fit fit);

/* One row x [cols] for a ternary m->type into q, by any rule but TERNARY_FIT. */
void ternary_row(const struct mat *m, const float *x, enum ternary_fit fit, struct qrow *q);

#endif
