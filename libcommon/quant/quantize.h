/* quantize.h - quantize f32 rows to codes, by rounding to nearest or with a search of scales
 * that is weighted by the importance of inputs.  Quantizers with error feedback, which need
 * activations, are in convert/. */
#ifndef ZSE_QUANT_QUANTIZE_H
#define ZSE_QUANT_QUANTIZE_H

#include "libcommon/base/err.h"
#include "libcommon/quant/tile.h"

enum quant_effort {
    QUANT_ABSMAX,       /* scale from the largest magnitude */
    /* Try about 20 scales of both signs around that of QUANT_ABSMAX, take the one with the least
     * weighted squared error, and refit it by least squares.  Never worse than QUANT_ABSMAX, except
     * for the rounding of the scale.  Takes 0.07 us per weight for nl4 (one core, SSE2), 0.02 us
     * for i8 */
    QUANT_SEARCH,
};

/* Quantize one row x [cols] for m->type into the caller's q, whose arrays have sizes for m.
 * importance [cols] weights the squared error of each column (it is the mean square of that input);
 * NULL: all equal.  Cannot fail for finite x; deterministic. */
void quantize_row(const struct mat *m, const float *x, const float *importance, enum quant_effort effort,
                  struct qrow *q);

/* The two halves of quantize_row(), for error feedback: choose the scales; then choose codes for
 * the scales in q. */
void quantize_scales(const struct mat *m, const float *x, const float *importance, enum quant_effort effort,
                     struct qrow *q);
/* Round to the nearest value; ties go to the lower code in codebooks, otherwise to the even
 * number. */
void quantize_codes(const struct mat *m, const float *x, struct qrow *q);
/* Allocate q's arrays for m: one allocation that begins at q->code. */
int qrow_init(struct qrow *q, const struct mat *m, struct err *e);
void qrow_release(struct qrow *q);
/* The row's values: out[cols]. */
void qrow_decode(const struct mat *m, const struct qrow *q, float *out);

#endif
