/* roofline_neon.c - the loops of roofline.h on ARMv8: smull and sadalp, sdot, smmla.  Up to four
 * vectors a cycle at a latency of 4 keep 16 accumulators busy. */
#include "libcommon/hw/roofline.h"

#include <arm_neon.h>
#include <sys/auxv.h>

enum { SUMS = 16 };
#define EACH _Pragma("GCC unroll 16") for (int i = 0; i < SUMS; i++)

static int always(void) { return 1; }
static int has_dot(void) { return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0; }
static int has_mmla(void) { return (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0; }

static uint64_t read_all(const uint8_t *p, size_t n, int streams, size_t ahead)
{
    uint8x16_t sum[4] = { vdupq_n_u8(0), vdupq_n_u8(0), vdupq_n_u8(0), vdupq_n_u8(0) };
    const size_t each = n / (size_t)streams;
    for (size_t at = 0; at < each; at += 128)
        for (int s = 0; s < streams; s++) {
            const uint8_t *q = p + (size_t)s * each + at;
            if (ahead) {                        /* harmless beyond the end */
                __builtin_prefetch(q + ahead);
                __builtin_prefetch(q + ahead + 64);
            }
            for (int i = 0; i < 8; i++)
                sum[i % 4] = veorq_u8(sum[i % 4], vld1q_u8(q + 16 * i));
        }
    sum[0] = veorq_u8(veorq_u8(sum[0], sum[1]), veorq_u8(sum[2], sum[3]));
    return vgetq_lane_u64(vreinterpretq_u64_u8(sum[0]), 0);
}

/* Make the value of a register unknown to the compiler, so that it does not merge equal sums. */
#define KEEP(x) __asm__ volatile("" : "+w"(x))

static double int8_mull(int rounds)
{
    int32x4_t sum[SUMS];
    int8x8_t a = vdup_n_s8(3), b = vdup_n_s8(5);
    EACH sum[i] = vdupq_n_s32(0);
    for (int r = 0; r < rounds; r++)
        EACH {
            KEEP(a);                            /* otherwise the product is computed only once */
            sum[i] = vpadalq_s16(sum[i], vmull_s8(a, b));
            KEEP(sum[i]);
        }
    return 2.0 * 8 * SUMS * rounds;
}

#define INT8_LOOP(name, target_, product, macs) \
    __attribute__((target(target_))) static double name(int rounds) \
    { \
        int32x4_t sum[SUMS]; \
        int8x16_t a = vdupq_n_s8(3), b = vdupq_n_s8(5); \
        EACH sum[i] = vdupq_n_s32(0); \
        KEEP(a); \
        KEEP(b); \
        for (int r = 0; r < rounds; r++) \
            EACH { \
                sum[i] = product(sum[i], a, b); \
                KEEP(sum[i]); \
            } \
        return 2.0 * (macs) * SUMS * rounds; \
    }
INT8_LOOP(int8_dot, "arch=armv8.2-a+dotprod", vdotq_s32, 16)
INT8_LOOP(int8_mmla, "arch=armv8.2-a+i8mm", vmmlaq_s32, 32)

static double f32_fma(int rounds)
{
    float32x4_t sum[SUMS], a = vdupq_n_f32(1), b = vdupq_n_f32(0);
    EACH sum[i] = vdupq_n_f32(0);
    KEEP(a);
    KEEP(b);
    for (int r = 0; r < rounds; r++)
        EACH {
            sum[i] = vfmaq_f32(sum[i], a, b);
            KEEP(sum[i]);
        }
    return 2.0 * 4 * SUMS * rounds;
}

const struct roofline_loops roofline_neon = { "neon", always, read_all, int8_mull, f32_fma };
const struct roofline_loops roofline_dotprod = { "dotprod", has_dot, NULL, int8_dot, NULL };
const struct roofline_loops roofline_i8mm = { "i8mm", has_mmla, NULL, int8_mmla, NULL };
