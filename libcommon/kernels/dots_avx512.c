/* dots_avx512.c - products of one int8 vector with many, in AVX-512 VNNI.
 *
 * vpdpbusd needs one unsigned operand: the row with its sign bit flipped is the row + 128, so 128
 * times the sum of the query is subtracted. */
#include <immintrin.h>

#include "libcommon/kernels/set.h"

enum { ROWS = 4 };

INLINE void some(int32_t *out, const int8_t *rows, size_t stride, const int8_t *q, int32_t less, int n)
{
    const __m512i flip = _mm512_set1_epi8((char)0x80);
    __m512i sum[ROWS];
    UNROLL for (int r = 0; r < n; r++)
        sum[r] = _mm512_setzero_si512();
    for (size_t i = 0; i < stride; i += 64) {
        const __m512i x = _mm512_load_si512(q + i);
        UNROLL for (int r = 0; r < n; r++) {
            const __m512i w = _mm512_load_si512(rows + (size_t)r * stride + i);
            sum[r] = _mm512_dpbusd_epi32(sum[r], _mm512_xor_si512(w, flip), x);
        }
    }
    UNROLL for (int r = 0; r < n; r++)
        out[r] = _mm512_reduce_add_epi32(sum[r]) - less;
}

void avx512_dots_i8(int32_t *out, const int8_t *rows, size_t stride, int n_rows, const int8_t *q)
{
    int32_t less = 0;
    int r = 0;
    for (size_t i = 0; i < stride; i++)
        less += 128 * q[i];
    for (; r + ROWS <= n_rows; r += ROWS)
        some(out + r, rows + (size_t)r * stride, stride, q, less, ROWS);
    for (; r < n_rows; r++)
        some(out + r, rows + (size_t)r * stride, stride, q, less, 1);
}
