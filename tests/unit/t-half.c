/* t-half.c - f16 and bf16: every value, and every boundary between two values. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "libcommon/quant/half.h"

static void f16_values(void **state)
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

static void bf16_values(void **state)
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

/* Between neighbours the middle goes to the even one, a bit more or less to the nearer one. */
static void rounding(void **state)
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f16_values), cmocka_unit_test(bf16_values), cmocka_unit_test(rounding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
