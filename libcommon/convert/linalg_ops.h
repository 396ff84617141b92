/* linalg_ops.h - the panel operations for one vector width; included by linalg_plain.c, linalg_avx2.c and linalg_avx512.c after they
 * define WIDTH (floats in a register), BLOCK (rows of a register block), OPS (the name of the table) and FMA(a, b, c) = a * b + c, rounded once where
 * the processor can.  Vectors are gcc's and clang's own vector types. */
#include <string.h>

#include "libcommon/convert/linalg.h"

enum { N_VEC = PANEL / WIDTH };
typedef float vec __attribute__((vector_size(4 * WIDTH)));
typedef int32_t ivec __attribute__((vector_size(4 * WIDTH)));

#if defined(__clang__)
#define UNROLL                              /* does so by itself */
#else
#define UNROLL _Pragma("GCC unroll 16")     /* or the sums would live in memory */
#endif

static inline vec load(const float *p) { vec v; memcpy(&v, p, sizeof v); return v; }
static inline void store(float *p, vec v) { memcpy(p, &v, sizeof v); }

/* ROWS rows of the panel in registers; ROWS is a constant wherever this is inlined. */
static inline __attribute__((always_inline)) void rows(int n, float *p, size_t ldp, const float *u, ptrdiff_t sj, ptrdiff_t sk,
                                                       const float *e, size_t lde, int nj, float sign)
{
    vec acc[BLOCK][N_VEC];
    UNROLL for (int k = 0; k < n; k++)
        UNROLL for (int v = 0; v < N_VEC; v++)
            acc[k][v] = (vec){ 0 };
    for (int j = 0; j < nj; j++, u += sj, e += lde) {
        vec x[N_VEC];
        UNROLL for (int v = 0; v < N_VEC; v++)
            x[v] = load(e + v * WIDTH);
        UNROLL for (int k = 0; k < n; k++)
            UNROLL for (int v = 0; v < N_VEC; v++)
                acc[k][v] = FMA((vec){ 0 } + u[k * sk], x[v], acc[k][v]);
    }
    UNROLL for (int k = 0; k < n; k++)
        UNROLL for (int v = 0; v < N_VEC; v++)
            store(p + (size_t)k * ldp + v * WIDTH, load(p + (size_t)k * ldp + v * WIDTH) + sign * acc[k][v]);
}

static void panel(float *p, size_t ldp, int n, const float *u, ptrdiff_t sj, ptrdiff_t sk, const float *e, size_t lde, int nj, float sign)
{
    int k = 0;
    for (; k + BLOCK <= n; k += BLOCK)
        rows(BLOCK, p + (size_t)k * ldp, ldp, u + k * sk, sj, sk, e, lde, nj, sign);
    for (; k < n; k++)
        rows(1, p + (size_t)k * ldp, ldp, u + k * sk, sj, sk, e, lde, nj, sign);
}

static inline vec choose(ivec mask, vec a, vec b) { return (vec)((mask & (ivec)a) | (~mask & (ivec)b)); }

static void nearest(const struct grid *g, const float *t, float *level, int32_t *index)
{
    const float last = (float)(g->n - 1), magic = 0x1.8p23f;    /* adding and taking away 1.5 * 2^23 rounds to whole numbers, ties to even */
    for (int r = 0; r < PANEL; r += WIDTH) {
        vec x = load(t + r), y;
        ivec code = { 0 };
        if (g->linear) {
            x -= g->level[0];
            x = choose(x > 0, x, (vec){ 0 });
            x = choose(x < last, x, (vec){ 0 } + last);
            x = x + magic - magic;
            y = x + g->level[0];
            code = __builtin_convertvector(x, ivec);
        } else {
            y = (vec){ 0 } + g->level[0];
            for (int i = 0; i < g->n - 1; i++) {
                ivec above = x > g->middle[i];
                y = choose(above, (vec){ 0 } + g->level[i + 1], y);
                code -= above;
            }
        }
        store(level + r, y);
        memcpy(index + r, &code, sizeof code);
    }
}

const struct linalg_ops OPS = { NAME, supported, panel, nearest };
