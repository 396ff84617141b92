/* dots_avx2.c - products of one int8 vector with many, in AVX2.
 *
 * maddubs multiplies |row| and the query with the row's signs: 2 * 127 * 127 fits into 16 bits.
 * Four rows at a time share the loads of the query; that is as fast as one core reads memory. */
#include <immintrin.h>

#include "libcommon/kernels/set.h"

enum { ROWS = 4 };

INLINE __m256i step(__m256i sum, const int8_t *row, __m256i q)
{
    const __m256i w = _mm256_load_si256((const void *)row), ones = _mm256_set1_epi16(1);
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_sign_epi8(w, w), _mm256_sign_epi8(q, w));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
}

INLINE int32_t total(__m256i v)
{
    __m128i x = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    x = _mm_add_epi32(x, _mm_shuffle_epi32(x, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(x, _mm_shuffle_epi32(x, 0xb1)));
}

INLINE void some(int32_t *out, const int8_t *rows, size_t stride, const int8_t *q, int n)
{
    __m256i sum[ROWS];
    UNROLL for (int r = 0; r < n; r++)
        sum[r] = _mm256_setzero_si256();
    for (size_t i = 0; i < stride; i += 32) {
        const __m256i x = _mm256_load_si256((const void *)(q + i));
        UNROLL for (int r = 0; r < n; r++)
            sum[r] = step(sum[r], rows + (size_t)r * stride + i, x);
    }
    UNROLL for (int r = 0; r < n; r++)
        out[r] = total(sum[r]);
}

void avx2_dots_i8(int32_t *out, const int8_t *rows, size_t stride, int n_rows, const int8_t *q)
{
    int r = 0;
    for (; r + ROWS <= n_rows; r += ROWS)
        some(out + r, rows + (size_t)r * stride, stride, q, ROWS);
    for (; r < n_rows; r++)
        some(out + r, rows + (size_t)r * stride, stride, q, 1);
}
