/* quantize.h - from f32 rows to codes: round to nearest, and scale search weighted by the
 * importance of inputs.  The quantizers with error feedback, which need activations, are in
 * convert/. */
#ifndef ZSE_QUANT_QUANTIZE_H
#define ZSE_QUANT_QUANTIZE_H

#include "libcommon/base/err.h"
#include "libcommon/quant/tile.h"

enum quant_effort {
    QUANT_ABSMAX,       /* scale from the largest magnitude */
    /* about 20 scales around that, both signs, least weighted squared error, refitted: never worse
     * than absmax, except for the rounding of the scale.  0.07 us per weight for nl4 (one core,
     * SSE2), 0.02 for i8 */
    QUANT_SEARCH,
};

/* Quantize one row x[cols] for m->type into q (arrays sized for m, the caller's).  importance
 * [cols] weights the squared error of each column (mean of the input's square); NULL: all equal.
 * Cannot fail for finite x; deterministic. */
void quantize_row(const struct mat *m, const float *x, const float *importance, enum quant_effort effort,
                  struct qrow *q);

/* Scales only (the first half of quantize_row); then codes for given scales, as error feedback
 * needs them. */
void quantize_scales(const struct mat *m, const float *x, const float *importance, enum quant_effort effort,
                     struct qrow *q);
/* Ties go to the lower code in codebooks, otherwise to the even number. */
void quantize_codes(const struct mat *m, const float *x, struct qrow *q);
/* Allocate q's arrays for m, all in .code. */
int qrow_init(struct qrow *q, const struct mat *m, struct err *e);
void qrow_release(struct qrow *q);
/* The row's values: out[cols]. */
void qrow_decode(const struct mat *m, const struct qrow *q, float *out);

#endif
