/* t-tools.c - the built-in tools: values, errors, time zones against the C library, files cut at
 * every byte. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "libcommon/base/json.h"
#include "libcommon/base/rng.h"
#include "libcommon/tools/native.h"
#include "libcommon/base/clock.h"
#include "libcommon/tools/call_scan.h"
#include "libcommon/tools/calculator.h"
#include "libcommon/tools/json_path.h"
#include "libcommon/tools/tzif.h"

#define ZONES "/usr/share/zoneinfo"

static const struct native_env env = { ZONES, 1795456331 };            /* 2026-11-23 17:52:11 UTC */

/* The result of a tool, or "error: " and its message; freed by the next call. */
static const char *run_in(const struct native_env *where, const char *name, const char *arguments)
{
    static char text[4096];
    struct err e = { .msg = "" };
    json_t *a = js_parse("arguments", arguments, strlen(arguments), &e);
    if (!a)
        fail_msg("%s: %s", arguments, e.msg);
    char *out = native_run(native_find(name), where, a, &e);
    snprintf(text, sizeof text, "%s%s", out ? "" : "error: ", out ? out : e.msg);
    free(out);
    json_decref(a);
    return text;
}

static const char *run(const char *name, const char *arguments) { return run_in(&env, name, arguments); }

static void every_tool_has_an_object_schema(void **state)
{
    (void)state;
    for (int i = 0; i < n_native_tools; i++) {
        struct err e;
        const char *text = native_tools[i].parameters;
        json_t *schema = js_parse(native_tools[i].name, text, strlen(text), &e);
        if (!schema)
            fail_msg("%s", e.msg);
        assert_string_equal(json_string_value(json_object_get(schema, "type")), "object");
        json_decref(schema);
        assert_ptr_equal(native_find(native_tools[i].name), &native_tools[i]);
    }
    assert_null(native_find("eval"));
    assert_string_equal(run("calculator", "{}"), "error: expression: missing");
    assert_string_equal(run("calculator", "[]"), "error: arguments: found an array, expected an object");
    assert_string_equal(run("calculator", "{\"expression\":1}"),
                        "error: expression: found a whole number, expected a value of type string");
    assert_string_equal(run("calculator", "{\"expression\":\"1\",\"x\":1}"), "error: x: there is no such argument");
    assert_non_null(strstr(run("string_ops", "{\"operation\":\"eval\"}"), "error: operation: 'eval', expected one of [\"upper\""));
}

/* ---- calculator ---- */

static void expressions_have_the_expected_values(void **state)
{
    static const struct { const char *text; double value; } cases[] = {
        { "2+2*3", 8 }, { "sqrt(16)+log(100)", 6 }, { "2**10", 1024 }, { "2^10", 1024 }, { "-2**2", -4 },
        { "2**3**2", 512 }, { "2**-1", 0.5 }, { "(1+2)*3", 9 }, { "7//2", 3 }, { "-7//2", -4 }, { "-7%3", 2 },
        { "7%-3", -2 }, { "1e3", 1000 }, { "1.5E-2", 0.015 }, { ".5", 0.5 }, { "5.", 5 }, { "--3", 3 }, { "+3", 3 },
        { "3!", 6 }, { "factorial(5)", 120 }, { "factorial(0)", 1 }, { "-3!", -6 }, { "sin(0)", 0 }, { "cos(PI)", -1 },
        { "atan(1)*4", M_PI }, { "atan2(1,1)", M_PI / 4 }, { "ln(e)", 1 }, { "log2(8)", 3 }, { "log(8,2)", 3 },
        { "exp(0)", 1 }, { "abs(-3)", 3 }, { "min(3,1,2)", 1 }, { "max(3,1,2)", 3 }, { "round(2.5)", 3 },
        { "round(-2.5)", -3 }, { "round(2.675, 2)", 2.68 }, { "round(1234,-2)", 1200 }, { "floor(-1.5)", -2 },
        { "ceil(1.2)", 2 }, { "2 * pi", 2 * M_PI }, { "10 - 4 - 3", 3 }, { "100/10/5", 2 }, { "2×3÷4", 1.5 },
        { "5 − 3", 2 }, { "π", M_PI }, { "degrees(pi)", 180 }, { "pow(2,0.5)", M_SQRT2 }, { "0*-1", 0 },
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err e;
        double v;
        if (calculate(cases[i].text, strlen(cases[i].text), &v, &e) != 0)
            fail_msg("%s: %s", cases[i].text, e.msg);
        if (fabs(v - cases[i].value) > 1e-12 * (1 + fabs(cases[i].value)))
            fail_msg("%s: %.17g, expected %.17g", cases[i].text, v, cases[i].value);
    }
}

static void bad_expressions_are_refused(void **state)
{
    static const struct { const char *text, *why; } cases[] = {
        { "1/0", "division by zero" }, { "1//0", "division by zero" }, { "1%0", "division by zero" },
        { "0**-1", "division by zero" }, { "sqrt(-1)", "no real number" }, { "log(0)", "no real number" },
        { "ln(-1)", "no real number" }, { "asin(2)", "no real number" }, { "factorial(-1)", "no real number" },
        { "factorial(1.5)", "no real number" }, { "171!", "too large" }, { "10**400", "too large" },
        { "1e999", "too large" }, { "", "the expression ends here" }, { "2+", "the expression ends here" },
        { "(1", "expected ')'" }, { "1)", "expected an operator" }, { "foo", "unknown name 'foo'" },
        { "foo(1)", "unknown function 'foo'" }, { "__import__('os')", "expected a number" }, { "sqrt()", "expected a number" },
        { "sqrt(1,2)", "2 arguments, expected 1" }, { "1,000", "expected an operator" }, { "1.2.3", "malformed" },
        { "2 $ 3", "character 3: expected an operator" }, { "min(", "the expression ends here" }, { "(-8)**0.5", "no real number" },
    };
    struct err e;
    double v;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (calculate(cases[i].text, strlen(cases[i].text), &v, &e) == 0)
            fail_msg("%s: %g", cases[i].text, v);
        if (!strstr(e.msg, cases[i].why))
            fail_msg("%s: %s, expected %s", cases[i].text, e.msg, cases[i].why);
    }
    char deep[CALCULATOR_MAX_BYTES + 1];
    memset(deep, '(', sizeof deep);
    assert_int_equal(calculate(deep, sizeof deep - 1, &v, &e), -1);
    assert_non_null(strstr(e.msg, "too deeply nested"));
    assert_int_equal(calculate(deep, sizeof deep, &v, &e), -1);
    memset(deep, '-', sizeof deep);
    assert_int_equal(calculate(deep, sizeof deep - 1, &v, &e), -1);
}

static void the_calculator_prints_rounded_results(void **state)
{
    (void)state;
    assert_string_equal(run("calculator", "{\"expression\":\"2+2*3\"}"), "8");
    assert_string_equal(run("calculator", "{\"expression\":\"0.1+0.2\"}"), "0.3");
    assert_string_equal(run("calculator", "{\"expression\":\"2**62\"}"), "4611686018427387904");
    assert_string_equal(run("calculator", "{\"expression\":\"1/3\"}"), "0.333333333333333");
    assert_string_equal(run("calculator", "{\"expression\":\"2**0.5*1e30\"}"), "1.4142135623731e+30");
    assert_string_equal(run("calculator", "{\"expression\":\"1/0\"}"), "error: character 4: division by zero");
}

/* ---- time zones ---- */

static void dates_agree_with_gmtime(void **state)
{
    struct rng r = { 7 };
    (void)state;
    for (int i = 0; i < 20000; i++) {
        const int64_t s = (int64_t)(rng_u64(&r) % 500000000000) - 62135596800;
        const time_t t = (time_t)s;
        struct tm want;
        gmtime_r(&t, &want);
        const struct civil c = civil_of(s);
        if (c.year != want.tm_year + 1900 || c.month != want.tm_mon + 1 || c.day != want.tm_mday ||
            c.hour != want.tm_hour || c.minute != want.tm_min || c.second != want.tm_sec || c.weekday != want.tm_wday)
            fail_msg("%lld", (long long)s);
        assert_int_equal(civil_days(c.year, c.month, c.day), (s - c.hour * 3600 - c.minute * 60 - c.second) / 86400);
    }
}

/* Local times in every zone are those of localtime_r(), which reads the same files with other
 * code. */
static void local_times_agree_with_localtime(void **state)
{
    static const char *const zones[] = { "America/New_York", "Europe/Berlin", "Asia/Kolkata", "Australia/Lord_Howe",
                                         "America/Sao_Paulo", "Africa/Casablanca", "Asia/Tehran", "Europe/Dublin",
                                         "Pacific/Apia", "Antarctica/Troll", "America/Nuuk", "Etc/UTC", "Asia/Gaza" };
    struct rng r = { 3 };
    (void)state;
    if (access(ZONES "/Europe/Berlin", R_OK) != 0) {
        print_message("skipped: %s: no tzdata\n", ZONES);
        skip();
    }
    for (size_t i = 0; i < sizeof zones / sizeof *zones; i++) {
        struct err e;
        struct tz *z = tz_open(ZONES, zones[i], &e);
        if (!z)
            fail_msg("%s", e.msg);
        setenv("TZ", zones[i], 1);
        tzset();
        for (int k = 0; k < 3000; k++) {
            const int64_t s = (int64_t)(rng_u64(&r) % 8000000000) - 2000000000;
            const time_t t = (time_t)s;
            struct tm want;
            localtime_r(&t, &want);
            const struct tz_moment m = tz_at(z, s);
            if (m.offset_s != want.tm_gmtoff || m.is_dst != want.tm_isdst || strcmp(m.name, want.tm_zone) != 0)
                fail_msg("%s at %lld: %d %d %s, expected %ld %d %s", zones[i], (long long)s, m.offset_s, m.is_dst, m.name,
                         want.tm_gmtoff, want.tm_isdst, want.tm_zone);
        }
        tz_close(z);
    }
    unsetenv("TZ");
    tzset();
}

static void datetime_answers_or_says_what_is_wrong(void **state)
{
    static const struct native_env none = { "/nonexistent", 0 };
    (void)state;
    assert_string_equal(run("datetime", "{}"), "2026-11-23T17:52:11+00:00 UTC (Monday)");
    assert_string_equal(run("datetime", "{\"operation\":\"date\"}"), "2026-11-23");
    assert_string_equal(run("datetime", "{\"operation\":\"time\",\"timezone\":\"+05:30\"}"), "23:22:11");
    assert_string_equal(run("datetime", "{\"operation\":\"timestamp\"}"), "1795456331");
    assert_string_equal(run("datetime", "{\"operation\":\"weekday\",\"timezone\":\"UTC+9\"}"), "Tuesday");
    assert_string_equal(run("datetime", "{\"timestamp\":0,\"timezone\":\"-0330\"}"), "1969-12-31T20:30:00-03:30 -0330 (Wednesday)");
    assert_non_null(strstr(run("datetime", "{\"timezone\":\"../../etc/passwd\"}"), "is not the name of a time zone"));
    assert_non_null(strstr(run("datetime", "{\"timezone\":\"/etc/localtime\"}"), "is not the name of a time zone"));
    assert_non_null(strstr(run("datetime", "{\"timezone\":\"\"}"), "is not the name of a time zone"));
    assert_non_null(strstr(run("datetime", "{\"timestamp\":9e18}"), "error: timestamp: found a number, expected"));
    assert_non_null(strstr(run("datetime", "{\"timestamp\":9000000000000000000}"), "is not between the years"));
    assert_non_null(strstr(run_in(&none, "datetime", "{\"timezone\":\"Europe/Berlin\"}"), "this machine has no time zones"));
    assert_non_null(strstr(run_in(&none, "datetime", "{\"timezone\":\"Z\"}"), "1970-01-01T00:00:00+00:00 UTC"));
    if (access(ZONES "/America/New_York", R_OK) != 0)
        return;
    assert_string_equal(run("datetime", "{\"timezone\":\"America/New_York\"}"), "2026-11-23T12:52:11-05:00 EST (Monday)");
    assert_non_null(strstr(run("datetime", "{\"timezone\":\"America/Nowhere\"}"), "there is no time zone 'America/Nowhere'"));
    assert_non_null(strstr(run("datetime", "{\"timezone\":\"America\"}"), "is not a time zone"));
}

/* A file with 64-bit times, one transition and a rule: cut at every byte, and each byte changed. */
static void damaged_zone_files_never_crash(void **state)
{
    uint8_t file[2 * 44 + 6 + 4 + 9 + 12 + 8 + 40] = "TZif2";
    size_t n = 0;
    struct err e;
    (void)state;
    file[39] = 1;                                       /* typecnt */
    file[43] = 4;                                       /* charcnt */
    memcpy(file + 44 + 6, "LMT", 4);
    n = 54;
    memcpy(file + n, "TZif2", 5);
    file[n + 35] = 1;                                   /* timecnt */
    file[n + 39] = 2;
    file[n + 43] = 8;
    n += 44;
    memcpy(file + n, "\0\0\0\0\x10\0\0\0\1", 9);
    n += 9;
    memcpy(file + n, "\0\0\0\x64\0\0\0\0\x0e\x10\0\4", 12);
    n += 12;
    memcpy(file + n, "LMT\0CET\0", 8);
    n += 8;
    memcpy(file + n, "\nCET-1CEST,M3.5.0,M10.5.0/3\n", 28);
    n += 28;
    struct tz *z = tz_parse("zone", file, n, &e);
    if (!z)
        fail_msg("%s", e.msg);
    assert_int_equal(tz_at(z, 0).offset_s, 100);
    assert_int_equal(tz_at(z, 1795456331).offset_s, 3600);
    assert_int_equal(tz_at(z, 1783000000).offset_s, 7200);
    tz_close(z);
    for (size_t i = 0; i < n; i++) {
        e.msg[0] = '\0';
        z = tz_parse("zone", file, i, &e);
        if (z || !e.msg[0])
            fail_msg("cut at %zu", i);
    }
    for (size_t i = 0; i < n; i++) {
        uint8_t old = file[i];
        file[i] ^= 0xff;
        z = tz_parse("zone", file, n, &e);
        if (z)
            tz_at(z, 1795456331);
        tz_close(z);
        file[i] = old;
    }
}

static void malformed_zone_rules_are_refused(void **state)
{
    static const char *const bad[] = { "", "A", "UTC", "UTC0,", "CET-1CEST", "CET-1CEST,", "CET-1CEST,M3.5.0", "CET-25",
                                       "CET-1CEST,M13.5.0,M10.5.0", "CET-1CEST,M3.6.0,M10.5.0", "CET-1CEST,M3.5.7,M10.5.0",
                                       "CET-1CEST,J0,J365", "CET-1CEST,M3.5.0,M10.5.0/168", "<+01-1", "CET-1:60" };
    struct tz_rule r;
    struct err e;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (tz_rule_parse(bad[i], strlen(bad[i]), &r, &e) == 0)
            fail_msg("%s", bad[i]);
    assert_int_equal(tz_rule_parse("<-03>3<-02>,M3.5.0/-2,M10.5.0/-1", 32, &r, &e), 0);
    assert_int_equal(r.start.time_s, -7200);
    assert_int_equal(tz_rule_parse("XXX3EDT4,0/0,J365/23", 20, &r, &e), 0);           /* daylight time all year */
    assert_int_equal(tz_rule_at(&r, 1795456331).is_dst, 1);
}

/* ---- JSON and text ---- */

static void paths_select_parts_of_json(void **state)
{
    static const char doc[] = "{\"data\":{\"items\":[{\"name\":\"first\",\"n\":1.5},{\"name\":\"zweit\\u00e9\"}],\"a.b\":true}}";
    static const struct { const char *path, *want; } cases[] = {
        { "data.items[0].name", "first" }, { "$.data.items[-1].name", "zweit\xc3\xa9" }, { "data.items[0]", "{\"name\":\"first\",\"n\":1.5}" },
        { "data.items[*].name", "[\"first\",\"zweit\xc3\xa9\"]" }, { "data[\"a.b\"]", "true" }, { "data['a.b']", "true" },
        { "data.items.*.name", "[\"first\",\"zweit\xc3\xa9\"]" }, { "data.items[0].n", "1.5" },
        { "data.items[2]", "error: there is nothing at data.items[2]: the value before it is an array with fewer elements" },
        { "data.items[-3]", "error: there is nothing at data.items[-3]: the value before it is an array with fewer elements" },
        { "data.none.x", "error: there is nothing at data.none: the value before it is an object" },
        { "data[0]", "error: there is nothing at data[0]: the value before it is an object" },
        { "data..items", "error: path: character 6: expected a name" }, { "data[", "error: path: character 6: expected an index, a quoted name or *" },
        { "data[0", "error: path: character 7: expected ]" }, { "data[\"x", "error: path: character 8: expected a closing quote" },
        { "data]x", "error: there is nothing at data]x: the value before it is an object" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *a = json_pack("{s:s, s:s}", "json", doc, "path", cases[i].path);
        char *text = json_dumps(a, 0);
        const char *got = run("parse_json", text);
        if (strcmp(got, cases[i].want) != 0)
            fail_msg("%s: %s", cases[i].path, got);
        free(text);
        json_decref(a);
    }
    assert_string_equal(run("parse_json", "{\"json\":\"[1, 2]\"}"), "[1,2]");
    assert_non_null(strstr(run("parse_json", "{\"json\":\"{\\\"a\\\": \"}"), "error: json: line 1"));
    char path[2 * JSON_PATH_MAX_STEPS + 8] = "", nested[8 * JSON_PATH_MAX_STEPS] = "";
    struct err e;
    for (int i = 0; i <= JSON_PATH_MAX_STEPS; i++) {
        strcat(path, i ? ".a" : "a");
        strcat(nested, "{\"a\":");
    }
    strcat(nested, "1");
    for (int i = 0; i <= JSON_PATH_MAX_STEPS; i++)
        strcat(nested, "}");
    json_t *v = js_parse("nested", nested, strlen(nested), &e);
    assert_non_null(v);
    assert_null(json_path_get(v, path, &e));
    assert_int_equal(e.code, ERR_LIMIT);
    json_decref(v);
}

static void text_operations_give_the_expected_text(void **state)
{
    static const struct { const char *arguments, *want; } cases[] = {
        { "{\"operation\":\"upper\",\"text\":\"straße été\"}", "STRASSE ÉTÉ" },
        { "{\"operation\":\"lower\",\"text\":\"ÀÉ İX\"}", NULL },
        { "{\"operation\":\"title\",\"text\":\"it's a ǆ day\"}", "It's A ǅ Day" },
        { "{\"operation\":\"capitalize\",\"text\":\"hELLO World\"}", "Hello world" },
        { "{\"operation\":\"trim\",\"text\":\"\\u2003 a b\\n\"}", "a b" },
        { "{\"operation\":\"reverse\",\"text\":\"añ😀b\"}", "b😀ña" },
        { "{\"operation\":\"length\",\"text\":\"añ😀b\"}", "4" },
        { "{\"operation\":\"words\",\"text\":\" one  two\\nthree \"}", "3" },
        { "{\"operation\":\"split\",\"text\":\"a,b,,c\",\"separator\":\",\"}", "[\"a\",\"b\",\"\",\"c\"]" },
        { "{\"operation\":\"split\",\"text\":\" a  b \"}", "[\"a\",\"b\"]" },
        { "{\"operation\":\"split\",\"text\":\"\",\"separator\":\",\"}", "[\"\"]" },
        { "{\"operation\":\"join\",\"items\":[\"a\",\"b\"],\"separator\":\"-\"}", "a-b" },
        { "{\"operation\":\"replace\",\"text\":\"aXbX\",\"old\":\"X\",\"new\":\"yy\"}", "ayybyy" },
        { "{\"operation\":\"replace\",\"text\":\"aXb\",\"old\":\"X\"}", "ab" },
        { "{\"operation\":\"replace\",\"text\":\"ab\",\"old\":\"\",\"new\":\"x\"}", "ab" },
        { "{\"operation\":\"count\",\"text\":\"banana\",\"old\":\"an\"}", "2" },
        { "{\"operation\":\"find\",\"text\":\"éxa\",\"old\":\"a\"}", "2" },
        { "{\"operation\":\"find\",\"text\":\"abc\",\"old\":\"z\"}", "-1" },
        { "{\"operation\":\"substring\",\"text\":\"añ😀b\",\"start\":1,\"end\":3}", "ñ😀" },
        { "{\"operation\":\"substring\",\"text\":\"abcd\",\"start\":-2}", "cd" },
        { "{\"operation\":\"substring\",\"text\":\"abcd\",\"start\":3,\"end\":1}", "" },
        { "{\"operation\":\"substring\",\"text\":\"abcd\",\"start\":-9000000000,\"end\":9000000000}", "abcd" },
        { "{\"operation\":\"repeat\",\"text\":\"ab\",\"times\":3}", "ababab" },
        { "{\"operation\":\"repeat\",\"text\":\"ab\",\"times\":9000000000000}", "error: the result has more than 262144 bytes" },
        { "{\"operation\":\"repeat\",\"text\":\"\",\"times\":9000000000000}", "" },
        { "{\"operation\":\"upper\"}", "error: text: missing, upper needs it" },
        { "{\"operation\":\"replace\",\"text\":\"a\"}", "error: old: missing, replace needs it" },
        { "{\"operation\":\"join\",\"items\":[1]}", "error: items: found a whole number, expected a value of type string" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *got = run("string_ops", cases[i].arguments);
        if (cases[i].want && strcmp(got, cases[i].want) != 0)
            fail_msg("%s: %s, expected %s", cases[i].arguments, got, cases[i].want);
    }
}

/* ---- calls in text ---- */

/* "f({...}) g({...})" */
static const char *calls_in(const char *text, size_t size)
{
    static char out[4096];
    struct err e;
    json_t *calls = call_scan(text, size, &e), *call;
    size_t i;
    if (!calls)
        return strcpy(out, e.msg);
    out[0] = '\0';
    json_array_foreach(calls, i, call) {
        char *arguments = json_dumps(json_object_get(call, "arguments"), JSON_COMPACT);
        sprintf(out + strlen(out), "%s%s(%s)", i ? " " : "", json_string_value(json_object_get(call, "name")), arguments);
        free(arguments);
    }
    json_decref(calls);
    return out;
}

/* The time for a text of many brackets is linear: no bracket makes the parser read to the end of
 * the text. */
static void test_calls_of_brackets(void **state)
{
    enum { SIZE = 1 << 20 };
    struct err e;
    char *text = malloc(SIZE);
    (void)state;
    assert_non_null(text);
    memset(text, '[', SIZE);
    const double began = clock_s();
    json_t *calls = call_scan(text, SIZE, &e);
    assert_int_equal(json_array_size(calls), 0);
    assert_true(clock_s() - began < 60);
    json_decref(calls);
    free(text);
}

static void tool_calls_are_found_in_text(void **state)
{
    static const struct { const char *text, *want; } cases[] = {
        { "no call {\"name\": \"Bob\"} at [1] all {", "" },
        { "{\"name\":\"f\",\"arguments\":{\"a\":{\"b\":[{}]},\"c\":\"}\"}}", "f({\"a\":{\"b\":[{}]},\"c\":\"}\"})" },
        { "Sure:\n```json\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n```\nDone.", "f({\"x\":1})" },
        { "```tool\n{\"tool\": \"f\", \"parameters\": {\"x\": 1}}\n```", "f({\"x\":1})" },
        { "```tool_call\n{\"name\": \"f\"}\n``` {\"name\": \"g\"}", "f({})" },
        { "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n<tool_call>{\"name\": \"g\"}</tool_call>", "f({}) g({})" },
        { "<tool_call name=\"f\">{\"a\": {\"b\": 1}}</tool_call> {\"a\": 1}", "f({\"a\":{\"b\":1}})" },
        { "<tool_call name=f>{\"a\": 1}</tool_call>", "f({\"a\":1})" },
        { "<function=f>{\"a\": 1}</function>", "f({\"a\":1})" },
        { "[{\"name\":\"f\",\"arguments\":{}},{\"name\":\"g\",\"arguments\":\"{\\\"a\\\":2}\"}]", "f({}) g({\"a\":2})" },
        { "{\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]}", "f({})" },
        { "{\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{}}}", "f({})" },
        { "{\"name\":\"f\",\"arguments\":\"not JSON\"}", "" },
        { "{\"x\": {\"name\":\"f\",\"arguments\":{}}}", "" },
        { "if (a) { b; } {\"name\":\"f\",\"arguments\":{}}", "f({})" },
        { "{\"name\":\"f\",\"arguments\":{\"a\":1}", "" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *got = calls_in(cases[i].text, strlen(cases[i].text));
        if (strcmp(got, cases[i].want) != 0)
            fail_msg("%s: %s, expected %s", cases[i].text, got, cases[i].want);
        for (size_t n = 0; n < strlen(cases[i].text); n++)
            calls_in(cases[i].text, n);
    }
    size_t n = 1 << 16;
    char *many = malloc(n);
    for (int k = 0; k < 3; k++) {
        for (size_t i = 0; i < n; i++)
            many[i] = "[{[\"[1,"[k == 0 ? 0 : k == 1 ? 1 + (i & 1) : 3 + i % 4];
        assert_string_equal(calls_in(many, n), "");
    }
    strcpy(many, "[");
    for (int i = 0; i <= SCAN_MAX_CALLS; i++)
        strcat(many, i ? ",{\"name\":\"f\",\"arguments\":{}}" : "{\"name\":\"f\",\"arguments\":{}}");
    strcat(many, "]");
    assert_string_equal(calls_in(many, strlen(many)), "more than 64 calls");
    free(many);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_tool_has_an_object_schema),
        cmocka_unit_test(expressions_have_the_expected_values), cmocka_unit_test(bad_expressions_are_refused),
        cmocka_unit_test(the_calculator_prints_rounded_results), cmocka_unit_test(dates_agree_with_gmtime),
        cmocka_unit_test(local_times_agree_with_localtime),
        cmocka_unit_test(datetime_answers_or_says_what_is_wrong),
        cmocka_unit_test(damaged_zone_files_never_crash), cmocka_unit_test(malformed_zone_rules_are_refused),
        cmocka_unit_test(paths_select_parts_of_json),
        cmocka_unit_test(text_operations_give_the_expected_text), cmocka_unit_test(tool_calls_are_found_in_text),
        cmocka_unit_test(test_calls_of_brackets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
