/* t-qtype.c - the table of number formats: numbers, names, values. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libcommon/quant/qtype.h"

/* The numbers in files never change. */
static void numbers_in_files_never_change(void **state)
{
    (void)state;
    static const struct { int number; const char *name; int bits, kernels; } want[] = {
        { 0, "f32", 32, 1 }, { 1, "f16", 16, 1 }, { 2, "bf16", 16, 1 }, { 8, "i8", 8, 1 }, { 9, "i8r", 8, 1 },
        { 16, "i4", 4, 1 }, { 17, "i4m", 4, 1 }, { 18, "i4z", 4, 1 }, { 20, "nl4", 4, 1 }, { 21, "nf4", 4, 1 },
        { 32, "m2", 2, 1 }, { 33, "m3", 3, 1 }, { 35, "m5", 5, 1 }, { 36, "m6", 6, 1 },
        { 48, "f8e4m3", 8, 0 }, { 49, "f8e5m2", 8, 0 }, { 50, "mxfp4", 4, 1 }, { 51, "fp8", 8, 1 }, { 52, "nvfp4", 4, 1 },
        { 53, "mxfp8", 8, 1 }, { 64, "t2", 2, 1 }, { 65, "t3", 2, 1 },
    };
    int known = 0;
    for (int type = 0; type < 256; type++)
        known += qtype_info((enum qtype)type) != NULL;
    assert_int_equal(known, sizeof want / sizeof *want);
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        const struct qtype_info *t = qtype_find(want[i].name);
        assert_non_null(t);
        assert_int_equal(t->type, want[i].number);
        assert_ptr_equal(qtype_info((enum qtype)want[i].number), t);
        assert_int_equal(t->bits, want[i].bits);
        assert_int_equal(t->has_kernels, want[i].kernels);
        if (t->type != QT_T3)
            assert_int_equal(t->plane[0] + t->plane[1], t->bits);
    }
    assert_null(qtype_find("nl5"));
    assert_null(qtype_find(""));
}

/* Values rise with the code; value8 is the value (nf4: rounded); code_zero is the code nearest
 * to 0. */
static void values_rise_with_the_code(void **state)
{
    (void)state;
    for (int type = 0; type < 48; type++) {
        const struct qtype_info *t = qtype_info((enum qtype)type);
        if (!t)
            continue;
        assert_int_equal(!t->value, !t->value8);
        assert_int_equal(!t->value, t->is_float || t->type == QT_I8 || t->type == QT_I8R);
        if (!t->value)
            continue;
        for (int c = 0; c < 1 << t->bits; c++) {
            assert_true(t->value8[c] >= -127);
            assert_int_equal(t->value8[c], (int)lrintf(t->value[c]));
            assert_true(type == QT_NF4 || t->value[c] == (float)t->value8[c]);
            assert_true(c == 0 || t->value[c] > t->value[c - 1]);
            assert_true(fabsf(t->value[c]) >= fabsf(t->value[t->code_zero]));
        }
    }
    static const int8_t nl4[16] = { -127, -97, -76, -59, -45, -31, -19, -8, 2, 12, 23, 34, 47, 62, 81, 111 };
    assert_memory_equal(nl4_value, nl4, 16);
    assert_memory_equal(qtype_info(QT_NL4)->value8, nl4, 16);
    assert_true(qtype_info(QT_NF4)->value[0] == -127 && qtype_info(QT_NF4)->value[7] == 0 &&
                qtype_info(QT_NF4)->value[15] == 127);
}

/* The types that zse-convert chooses by itself, the finest first. */
static void chosen_types_go_from_fine_to_coarse(void **state)
{
    (void)state;
    const struct qtype_info *t;
    char names[100] = "", compared[100] = "";
    for (int i = 0, bits = 100; (t = qtype_chosen(i)); bits = t->bits, i++) {
        assert_true(t->bits < bits);
        strcat(strcat(names, " "), t->name);
        if (t->chosen == CHOSEN_COMPARED)
            strcat(strcat(compared, " "), t->option);
    }
    assert_string_equal(names, " bf16 i8 m6 m5 nl4 m3 m2");
    assert_string_equal(compared, " bf16 int8 nl4");
}

/* The rule of type t3 in qtype.h: a byte holds five base-3 digits, and multiplications give them
 * back. */
static void multiplications_give_base_3_digits_back(void **state)
{
    (void)state;
    for (int v = 0; v < 243; v++) {
        int byte = (256 * v + 242) / 243, digits = v, c[5], pow3 = 1;
        for (int i = 4; i >= 0; i--, digits /= 3)
            c[i] = digits % 3;
        assert_in_range(byte, 0, 255);
        for (int i = 0; i < 5; i++, pow3 *= 3)
            assert_int_equal((byte * pow3 % 256 * 3) >> 8, c[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(numbers_in_files_never_change),
                                        cmocka_unit_test(values_rise_with_the_code),
                                        cmocka_unit_test(chosen_types_go_from_fine_to_coarse),
                                        cmocka_unit_test(multiplications_give_base_3_digits_back) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
