/* t-hf-config.c - all spellings of a config.json give the same. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <unistd.h>

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/import/hf_config.h"

static void older_spellings_are_normalized(void **state)
{
    (void)state;
    static const struct { const char *in, *out; } cases[] = {
        { "{'model_type':'gpt2'}", "{'model_type':'gpt2'}" },
        { "{'torch_dtype':'float16'}", "{'dtype':'float16'}" },
        { "{'dtype':'float32','torch_dtype':'float16'}", "{'dtype':'float32'}" },
        { "{'rope_theta':1e4,'rope_scaling':null}", "{'rope_parameters':{'rope_type':'default','rope_theta':1e4}}" },
        { "{'rope_parameters':{'rope_theta':1e4}}", "{'rope_parameters':{'rope_type':'default','rope_theta':1e4}}" },
        { "{'rope_theta':1e4,'rope_scaling':{'type':'linear','factor':2.0}}",
          "{'rope_parameters':{'rope_type':'linear','factor':2.0,'rope_theta':1e4}}" },
        { "{'rope_theta':1e4,'rope_scaling':{'rope_type':'linear','type':'linear','factor':2.0}}",
          "{'rope_parameters':{'rope_type':'linear','factor':2.0,'rope_theta':1e4}}" },
        { "{'rope_theta':1e4,'original_max_position_embeddings':64,'rope_scaling':{'type':'su','short_factor':[1],'long_factor':[2]}}",
          "{'original_max_position_embeddings':64,'rope_parameters':{'rope_type':'longrope','rope_theta':1e4,'short_factor':[1],'long_factor':[2],"
          "'original_max_position_embeddings':64}}" },
        { "{'rope_theta':1e4,'partial_rotary_factor':0.5}",
          "{'partial_rotary_factor':0.5,'rope_parameters':{'rope_type':'default','rope_theta':1e4}}" },
        { "{'rope_parameters':{'rope_theta':1e4,'partial_rotary_factor':0.5}}",
          "{'partial_rotary_factor':0.5,'rope_parameters':{'rope_type':'default','rope_theta':1e4}}" },
        { "{'rotary_pct':0.25,'rotary_emb_base':10000}",
          "{'partial_rotary_factor':0.25,'rope_parameters':{'rope_type':'default','rope_theta':10000}}" },
        { "{'rope_theta':1e6,'rope_local_base_freq':1e4,'rope_scaling':{'rope_type':'linear','factor':8.0}}",
          "{'rope_parameters':{'full_attention':{'rope_type':'linear','factor':8.0,'rope_theta':1e6},'sliding_attention':{'rope_type':'default','rope_theta':1e4}}}" },
        { "{'rope_parameters':{'full_attention':{'rope_theta':1e6},'sliding_attention':{'rope_theta':1e4,'rope_type':'default'}}}",
          "{'rope_parameters':{'full_attention':{'rope_theta':1e6,'rope_type':'default'},'sliding_attention':{'rope_theta':1e4,'rope_type':'default'}}}" },
        { "{'model_type':'gemma3','eos_token_id':[1,106],'vision_config':{'x':1},'text_config':{'model_type':'gemma3_text','rope_theta':1e6}}",
          "{'model_type':'gemma3_text','zse_wrapper':'gemma3','eos_token_id':[1,106],'rope_parameters':{'rope_type':'default','rope_theta':1e6}}" },
        { "{'model_type':'qwen3_vl','tie_word_embeddings':false,'text_config':{'model_type':'qwen3_vl_text','tie_word_embeddings':true}}",
          "{'model_type':'qwen3_vl_text','zse_wrapper':'qwen3_vl','tie_word_embeddings':false}" },
        { "{'model_type':'qwen2_5_vl','hidden_size':64,'vision_config':{'hidden_size':32}}",
          "{'model_type':'qwen2_5_vl','zse_wrapper':'qwen2_5_vl','hidden_size':64}" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err e = { 0 };
        char *texts[2] = { strdup(cases[i].in), strdup(cases[i].out) };
        json_t *j[2];
        for (int k = 0; k < 2; k++) {
            for (char *p = texts[k]; *p; p++)
                *p = *p == '\'' ? '"' : *p;
            j[k] = js_parse("case", texts[k], strlen(texts[k]), &e);
            if (!j[k])
                fail_msg("%s", e.msg);
            free(texts[k]);
        }
        json_t *before = json_deep_copy(j[0]), *got = hf_config_normalize(j[0], &e);
        if (!got || !json_equal(got, j[1]))
            fail_msg("%s: got %s %s", cases[i].in, got ? json_dumps(got, JSON_COMPACT) : "", e.msg);
        assert_true(json_equal(before, j[0]));              /* the input is unchanged */
        json_t *again = hf_config_normalize(got, &e);
        assert_true(json_equal(again, got));                /* normalizing again changes nothing */
        json_decref(before);
        json_decref(again);
        json_decref(got);
        json_decref(j[0]);
        json_decref(j[1]);
    }
}

static void fields_of_wrong_types_are_refused(void **state)
{
    (void)state;
    static const struct { const char *in, *words; } cases[] = {
        { "[]", "found an array, expected an object" },
        { "{\"rope_scaling\":[1]}", "rope_scaling: found an array" },
        { "{\"rope_parameters\":3}", "rope_parameters: found a whole number" },
        { "{\"rope_parameters\":{\"rope_type\":3}}", "rope_parameters: rope_type: found a whole number" },
        { "{\"rope_theta\":1,\"rope_scaling\":{\"type\":[]}}", "rope_scaling: rope_type: found an array" },
        { "{\"rope_parameters\":{\"full_attention\":{\"rope_type\":false}}}",
          "rope_parameters.full_attention: rope_type: found false" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err e = { 0 };
        json_t *j = js_parse("case", cases[i].in, strlen(cases[i].in), &e);
        assert_non_null(j);
        if (hf_config_normalize(j, &e) || !strstr(e.msg, cases[i].words))
            fail_msg("%s: expected '%s', got '%s'", cases[i].in, cases[i].words, e.msg);
        json_decref(j);
    }
}

/* Test the functions of base/json.h that read fields. */
static void json_fields_are_read_within_their_ranges(void **state)
{
    (void)state;
    static const char text[] = "{\"i\":3,\"r\":2.5,\"w\":4.0,\"s\":\"x\",\"t\":true,\"n\":null}";
    struct err e = { 0 };
    json_t *o = js_parse("x.json", text, strlen(text), &e);
    int64_t i;
    double r;
    int b;
    const char *s;
    assert_int_equal(js_int(o, "i", 0, 3, &i, &e), 0);
    assert_int_equal(i, 3);
    assert_int_equal(js_int(o, "w", 0, 9, &i, &e), 0);
    assert_int_equal(i, 4);
    assert_int_equal(js_int(o, "i", 4, 9, &i, &e), -1);
    assert_string_equal(e.msg, "i: 3 is not in the range 4 to 9");
    assert_int_equal(js_int(o, "r", 0, 9, &i, &e), -1);
    assert_string_equal(e.msg, "r: 2.5 is not a whole number");
    assert_int_equal(js_int(o, "s", 0, 9, &i, &e), -1);
    assert_string_equal(e.msg, "s: found a string, expected a whole number");
    assert_int_equal(js_int(o, "n", 0, 9, &i, &e), -1);
    assert_string_equal(e.msg, "n: the field is missing");
    assert_int_equal(js_int_or(o, "n", 0, 9, 7, &i, &e), 0);
    assert_int_equal(i, 7);
    assert_int_equal(js_real_or(o, "i", 0, &r, &e), 0);
    assert_true(r == 3);
    assert_int_equal(js_real_or(o, "z", 1.5, &r, &e), 0);
    assert_true(r == 1.5);
    assert_int_equal(js_bool_or(o, "t", 0, &b, &e), 0);
    assert_int_equal(b, 1);
    assert_int_equal(js_bool_or(o, "i", 0, &b, &e), -1);
    assert_int_equal(js_string(o, "s", &s, &e), 0);
    assert_string_equal(s, "x");
    assert_int_equal(js_string(o, "t", &s, &e), -1);
    assert_string_equal(e.msg, "t: found true, expected a string");
    json_decref(o);
    assert_null(js_parse("x.json", "{\n\"a\":1,\"a\":2}", 14, &e));
    assert_non_null(strstr(e.msg, "x.json: line 2"));
    assert_null(js_load("/nonexistent.json", 100, &e));
    char path[] = "/tmp/zse-json-XXXXXX";
    const int fd = mkstemp(path);
    static const char python[] = "{\"a\": [0.0, Infinity], \"b\": \"NaN \\\" Infinity\", \"c\": NaN}";
    assert_true(fd >= 0 && write(fd, python, sizeof python - 1) == (ssize_t)sizeof python - 1);
    close(fd);
    json_t *j = js_load(path, 1000, &e);
    unlink(path);
    assert_non_null(j);
    assert_string_equal(json_string_value(json_array_get(json_object_get(j, "a"), 1)), "Infinity");
    assert_string_equal(json_string_value(json_object_get(j, "b")), "NaN \" Infinity");
    assert_string_equal(json_string_value(json_object_get(j, "c")), "NaN");
    json_decref(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(older_spellings_are_normalized), cmocka_unit_test(fields_of_wrong_types_are_refused),
        cmocka_unit_test(json_fields_are_read_within_their_ranges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
