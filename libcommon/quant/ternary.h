/* ternary.h - rules for rounding the weights of a group to -1, 0 and 1, for models that were not
 * trained with such weights.
 *
 * All rules but TERNARY_FIT choose the codes by a threshold, and then an f16 scale for them.
 * Cosine of the angle between 100,000 nearly normal numbers and the numbers that they are rounded
 * to, in groups of 128: fit .904, adaptive .903, rms .900, absmean .891, threshold .888, sign .803
 * (tested in t-quantize). */
#ifndef ZSE_QUANT_TERNARY_H
#define ZSE_QUANT_TERNARY_H

#include "libcommon/quant/tile.h"

enum ternary_fit {
    TERNARY_FIT,        /* the scale that leaves the least squared error (quantize_row) */
    /* scale = mean |x|, codes = x / scale rounded: as in BitNet b1.58 (arXiv:2402.17764), where the
     * scale is that of the whole matrix */
    TERNARY_ABSMEAN,
    TERNARY_RMS,        /* 0 if |x| is below half the root mean square; scale = mean |x| of the others */
    /* 0 if |x| is below 0.7 times mean |x|; scale = mean |x| of the others: Ternary Weight
     * Networks, arXiv:1605.04711 */
    TERNARY_ADAPTIVE,
    TERNARY_THRESHOLD,  /* 0 below 0.3 times the largest |x|; scale = mean |x| of the others */
    TERNARY_SIGN,       /* no zeros; scale = mean |x| */
    N_TERNARY
};
/* The name of a rule, such as "fit"; NULL: there is no such rule. */
const char *ternary_name(enum ternary_fit fit);

/* Quantize one row x [cols] for a ternary m->type into q, by any rule but TERNARY_FIT. */
void ternary_row(const struct mat *m, const float *x, enum ternary_fit fit, struct qrow *q);

#endif
