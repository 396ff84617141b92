/* dots_neon.c - products of one int8 vector with many, in NEON.  Four rows at a time share the
 * loads of the query. */
#include <arm_neon.h>

#include "libcommon/kernels/set.h"

enum { ROWS = 4 };

INLINE void some(int32_t *out, const int8_t *rows, size_t stride, const int8_t *q, int n)
{
    int32x4_t sum[ROWS];
    UNROLL for (int r = 0; r < n; r++)
        sum[r] = vdupq_n_s32(0);
    for (size_t i = 0; i < stride; i += 16) {
        const int8x16_t x = vld1q_s8(q + i);
        UNROLL for (int r = 0; r < n; r++) {
            const int8x16_t w = vld1q_s8(rows + (size_t)r * stride + i);
            const int16x8_t pairs = vmlal_high_s8(vmull_s8(vget_low_s8(w), vget_low_s8(x)), w, x);
            /* each element of `pairs` is the sum of two products, at most 2 * 127 * 127 */
            sum[r] = vpadalq_s16(sum[r], pairs);
        }
    }
    UNROLL for (int r = 0; r < n; r++)
        out[r] = vaddvq_s32(sum[r]);
}

void neon_dots_i8(int32_t *out, const int8_t *rows, size_t stride, int n_rows, const int8_t *q)
{
    int r = 0;
    for (; r + ROWS <= n_rows; r += ROWS)
        some(out + r, rows + (size_t)r * stride, stride, q, ROWS);
    for (; r < n_rows; r++)
        some(out + r, rows + (size_t)r * stride, stride, q, 1);
}
