/* ternary.c - round a row to -1, 0 and 1 by the rules of ternary.h. */
#include "libcommon/quant/ternary.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "libcommon/quant/half.h"

const char *ternary_name(enum ternary_fit fit)
{
    static const char *const names[N_TERNARY] = { "fit", "absmean", "rms", "adaptive", "threshold", "sign" };
    return (unsigned)fit < N_TERNARY ? names[fit] : NULL;
}

/* The magnitude below which a weight is rounded to 0. */
static double threshold(enum ternary_fit fit, double mean, double rms, double amax)
{
    switch (fit) {
    case TERNARY_ABSMEAN:   return mean / 2;
    case TERNARY_RMS:       return rms / 2;
    case TERNARY_ADAPTIVE:  return 0.7 * mean;
    case TERNARY_THRESHOLD: return 0.3 * amax;
    default:                return 0;
    }
}

void ternary_row(const struct mat *m, const float *x, enum ternary_fit fit, struct qrow *q)
{
    const uint8_t zero = (uint8_t)qtype_info(m->type)->code_zero;
    assert(qtype_is_ternary(qtype_info(m->type)) && fit != TERNARY_FIT);
    q->row_scale = 1;
    memset(q->code, zero, (size_t)m->cols_padded);
    for (int g = 0, k = 0; g < m->n_groups; g++, k += m->group_size) {
        const int n = m->cols - k < m->group_size ? m->cols - k : m->group_size;
        double sum = 0, square = 0, amax = 0, kept = 0;
        int n_kept = 0;
        q->scale[g] = 0;
        for (int i = k; i < k + n; i++) {
            const double a = fabs((double)x[i]);
            sum += a;
            square += a * a;
            amax = a > amax ? a : amax;
        }
        if (n <= 0 || !(amax > 0))
            continue;
        const double least = threshold(fit, sum / n, sqrt(square / n), amax);
        for (int i = k; i < k + n; i++) {
            const double a = fabs((double)x[i]);
            if (a < least)
                continue;
            q->code[i] = (uint8_t)(x[i] < 0 ? zero - 1 : zero + 1);
            kept += a;
            n_kept++;
        }
        const double scale = fit == TERNARY_ABSMEAN ? sum / n : kept / n_kept;
        q->scale[g] = f16_to_f32(f32_to_f16((float)fmin(scale, 65504)));
    }
}
