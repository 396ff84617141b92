/* approx.h - exp, tanh and erf in f32, the same bits in every set of kernels.
 *
 * The polynomials are minimax fits (Lawson's iteration in double, then rounded to f32).  Every set
 * evaluates them by Horner's rule with fma, so the scalar functions here define the results of the
 * vector functions in math.inc.  Largest errors (tests/unit/t-kernels-rows.c):
 *     exp   1 ulp;  below -87: 0;  above 88: exp(88)
 *     exp2  2.1 ulp;  below -125: 0;  above 127: undefined (arguments of softmax are at most 0)
 *     tanh  2 ulp
 *     erf   2 ulp */
#ifndef ZSE_KERNELS_APPROX_H
#define ZSE_KERNELS_APPROX_H

#include <math.h>

#include "libcommon/quant/half.h"

#define EXP_MIN     -87.0f
#define EXP_MAX     88.0f
#define LOG2E       0x1.715476p+0f
#define LN2_HIGH    0x1.62e4p-1f        /* 15 bits: n * LN2_HIGH is exact for |n| <= 128 */
#define LN2_LOW     0x1.7f7d1cp-20f
/* exp(r) = 1 + r + r^2 P(r), |r| <= ln(2)/2 */
static const float exp_coef[5] = { 0x1.fffffcp-2f, 0x1.555482p-3f, 0x1.55593cp-5f, 0x1.1245c8p-7f, 0x1.6a107cp-10f };
/* exp2(n + r) = 2^n (1 + r P(r)), |r| <= 1/2.  Adding EXP2_MAGIC rounds to an integer and leaves
 * n + 127 in the low bits, from which a shift makes the f32 2^n. */
#define EXP2_MIN    -125.0f
#define EXP2_MAGIC  (0x1.8p+23f + 127.0f)
static const float exp2_coef[5] = { 0x1.62e42ap-1f, 0x1.ebf9bcp-3f, 0x1.c6b752p-5f, 0x1.3cea88p-7f, 0x1.5bba08p-10f };
/* tanh(x) = x + x^3 P(x^2), |x| < 0.55; else 1 - 2 / (exp(2|x|) + 1) */
#define TANH_SMALL  0.55f
static const float tanh_coef[5] = { -0x1.55554cp-2f, 0x1.110d3cp-3f, -0x1.b92bbap-5f, 0x1.59568ap-6f, -0x1.9bba7ep-8f };
/* erf(x) = x + x P(x^2), |x| < 0.92; else 1 - exp(-Q(|x|)), 1 from 3.95 on */
#define ERF_SMALL   0.92f
#define ERF_MAX     3.95f
static const float erf_coef[7] = { 0x1.06eba8p-3f, -0x1.812744p-2f, 0x1.ce2e24p-4f, -0x1.b810eap-6f, 0x1.54df2ap-8f,
                                   -0x1.ab10dap-11f, 0x1.5f96a6p-14f };
static const float erfc_coef[8] = { -0x1.6e57p-13f, 0x1.2127e4p+0f, 0x1.44460cp-1f, 0x1.bb83e8p-4f, -0x1.9b8e84p-6f,
                                    0x1.115ad4p-8f, -0x1.c7912cp-12f, 0x1.61ea8ep-16f };

/* GELU by erf(x / sqrt(2)); by tanh: x / (1 + exp(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3);
 * quick: x / (1 + exp(-1.702 x)) */
#define GELU_SQRT_HALF  0.70710678f
#define GELU_TANH_1     -1.5957691f
#define GELU_TANH_3     0.044715f
#define GELU_QUICK      -1.702f

static inline float approx_poly(float x, const float *c, int n)
{
    float y = c[n - 1];
    for (int i = n - 2; i >= 0; i--)
        y = fmaf(y, x, c[i]);
    return y;
}

static inline float approx_exp(float x)
{
    if (x != x)
        return x;
    if (x < EXP_MIN)
        return 0;
    x = x < EXP_MAX ? x : EXP_MAX;
    float n = rintf(x * LOG2E);
    float r = fmaf(-n, LN2_LOW, fmaf(-n, LN2_HIGH, x));
    float y = fmaf(r * r, approx_poly(r, exp_coef, 5), r) + 1.0f;
    return y * f32_from_bits((uint32_t)((int)n + 127) << 23);
}

static inline float approx_exp2(float x)
{
    if (x < EXP2_MIN)
        return 0;
    float y = x + EXP2_MAGIC, r = x - (y - EXP2_MAGIC);
    return fmaf(approx_poly(r, exp2_coef, 5), r, 1.0f) * f32_from_bits(f32_bits(y) << 23);
}

static inline float approx_tanh(float x)
{
    float a = fabsf(x), y;
    if (a < TANH_SMALL) {
        float s = a * a;
        y = fmaf(s * a, approx_poly(s, tanh_coef, 5), a);
    } else {
        y = 1.0f - 2.0f / (approx_exp(a + a) + 1.0f);
    }
    return copysignf(y, x);
}

static inline float approx_erf(float x)
{
    float a = fabsf(x), y;
    if (a < ERF_SMALL) {
        y = fmaf(a, approx_poly(a * a, erf_coef, 7), a);
    } else {
        float b = a > ERF_MAX ? ERF_MAX : a;
        y = 1.0f - approx_exp(-approx_poly(b, erfc_coef, 8));
    }
    return copysignf(y, x);
}

#endif
