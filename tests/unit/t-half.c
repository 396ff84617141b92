/* t-half.c - f16, bf16 and f8e4m3: every value, and every boundary between two values. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "libcommon/quant/half.h"
#include "libcommon/quant/kvscale.h"

static void every_f16_value_survives_the_way_to_f32_and_back(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) {
        int exp = h >> 10 & 31, man = h & 0x3ff;
        double want = exp ? ldexp(1024 + man, exp - 25) : ldexp(man, -24);
        if (exp == 31)
            want = man ? NAN : INFINITY;
        if (h & 0x8000)
            want = -want;
        float got = f16_to_f32((f16)h);
        if (isnan(want))
            assert_true(isnan(got) && f32_to_f16(got) == (f16)((h & 0x8000) | 0x7e00));
        else if (!((double)got == want && !signbit(got) == !signbit(want) && f32_to_f16(got) == h))
            fail_msg("f16 %04x: %a, back %04x", h, (double)got, f32_to_f16(got));
    }
}

static void every_bf16_value_survives_the_way_to_f32_and_back(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) {
        float f = bf16_to_f32((bf16)h);
        assert_int_equal(f32_bits(f), h << 16);
        if (isnan(f))
            assert_true(isnan(bf16_to_f32(f32_to_bf16(f))));
        else
            assert_int_equal(f32_to_bf16(f), h);
    }
    /* a NaN whose payload is only in the lower half must not become infinity */
    assert_true(isnan(bf16_to_f32(f32_to_bf16(f32_from_bits(0x7f800001)))));
}

/* The middle between two neighbours is rounded to the even one; a value one bit below or above it
 * to the nearer one. */
static void f16_is_rounded_to_the_nearest_even(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x7c00; h++) {
        float lo = f16_to_f32((f16)h), hi = h == 0x7bff ? 65536.0f : f16_to_f32((f16)(h + 1));
        float mid = (float)(((double)lo + (double)hi) / 2);         /* exact: one bit more than f16 */
        f16 even = (f16)(h + (h & 1));
        assert_int_equal(f32_to_f16(mid), even);
        assert_int_equal(f32_to_f16(-mid), even | 0x8000);
        assert_int_equal(f32_to_f16(nextafterf(mid, 0)), h);
        assert_int_equal(f32_to_f16(nextafterf(mid, INFINITY)), h + 1);
    }
    assert_int_equal(f32_to_f16(INFINITY), 0x7c00);
    assert_int_equal(f32_to_f16(-3e38f), 0xfc00);
    assert_int_equal(f32_to_f16(1e-40f), 0);
    for (uint32_t h = 0; h < 0x7f80; h++) {
        uint32_t mid = h << 16 | 0x8000;
        assert_int_equal(f32_to_bf16(f32_from_bits(mid)), h + (h & 1));
        assert_int_equal(f32_to_bf16(f32_from_bits(mid - 1)), h);
        assert_int_equal(f32_to_bf16(f32_from_bits(mid + 1)), h + 1);
    }
}

static void every_f8_value_survives_the_way_to_f32_and_back(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x100; h++) {
        const int exp = h >> 3 & 15, man = h & 7;
        double want = exp ? ldexp(8 + man, exp - 10) : ldexp(man, -9);
        const float got = f8e4m3_to_f32((f8e4m3)h);
        want = h & 0x80 ? -want : want;
        if ((h & 0x7f) == 0x7f)
            assert_true(isnan(got) && f32_to_f8e4m3(got) == h);
        else if (!((double)got == want && !signbit(got) == !signbit(want) && f32_to_f8e4m3(got) == h))
            fail_msg("f8e4m3 %02x: %a, back %02x", h, (double)got, f32_to_f8e4m3(got));
    }
    for (uint32_t h = 0; h < 0x7e; h++) {
        const float mid = (f8e4m3_to_f32((f8e4m3)h) + f8e4m3_to_f32((f8e4m3)(h + 1))) / 2;
        assert_int_equal(f32_to_f8e4m3(mid), h + (h & 1));
        assert_int_equal(f32_to_f8e4m3(-mid), (h + (h & 1)) | 0x80);
        assert_int_equal(f32_to_f8e4m3(nextafterf(mid, 0)), h);
        assert_int_equal(f32_to_f8e4m3(nextafterf(mid, INFINITY)), h + 1);
    }
    assert_int_equal(f32_to_f8e4m3(449), 0x7e);
    assert_int_equal(f32_to_f8e4m3(-INFINITY), 0xfe);
    assert_int_equal(f32_to_f8e4m3(1e-40f), 0);
}

/* The scale of a vector is the least power of two with which its largest value can be
 * represented. */
static void f8_scales_are_the_least_powers_of_two(void **state)
{
    (void)state;
    static const struct { float most, scale; } cases[] = {
        { 448, 1 }, { 448.00003f, 2 }, { 224, 0.5f }, { 225, 1 }, { 256, 1 }, { 0x1.cp-100f, 0x1p-108f },
            { 0x1p-100f, 0x1p-108f }, { 0x1.fffffep-101f, 0 }, { 0, 0 },
        { 0x1.cp127f, 0x1p119f }, { 0x1.fffffep127f, 0x1p120f }, { INFINITY, NAN }, { NAN, NAN },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const float x[3] = { 0.1f * cases[i].most, -cases[i].most, 0 };
        float factor;
        const float scale = kv_f8_scale(x, 3, &factor);
        if (isnan(cases[i].scale) ? !(isnan(scale) && factor == 0)
                                  : !(scale == cases[i].scale && factor == (scale > 0 ? 1 / scale : 0)))
            fail_msg("largest %a: scale %a, factor %a, expected %a", (double)cases[i].most, (double)scale,
                     (double)factor, (double)cases[i].scale);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_f16_value_survives_the_way_to_f32_and_back),
        cmocka_unit_test(every_bf16_value_survives_the_way_to_f32_and_back),
        cmocka_unit_test(f16_is_rounded_to_the_nearest_even),
        cmocka_unit_test(every_f8_value_survives_the_way_to_f32_and_back),
        cmocka_unit_test(f8_scales_are_the_least_powers_of_two),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
