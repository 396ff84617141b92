/* t-template.c - the template engine against Python's jinja2, set up as in transformers: every
 * recorded case of the oracles (chat-templates/) and our own cases of the language, with a table of
 * how many passed; then limits, bad templates, and conversations.
 *
 * The first line of template-language.jsonl has two sets of variables.  Every other line is a case:
 * t: the template, v: which set, x: what jinja2 3.1.6 printed, or e: 1 if it failed.  Oracles are
 * read from $ZSE_ORACLES, else ../shared/oracles; where they are absent those tests are skipped. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <jansson.h>

#include "libcommon/base/file.h"
#include "libcommon/template/chat.h"
#include "libcommon/template/template.h"

static const int64_t now = 1795262400;      /* 2026-11-21 12:00:00 UTC */
enum { MAX_FILE = 1 << 26 };

static char *oracle(const char *name, size_t *size)
{
    char path[1024];
    const char *dir = getenv("ZSE_ORACLES");
    struct err e;
    snprintf(path, sizeof path, "%s/chat-templates/%s", dir ? dir : "../shared/oracles", name);
    char *text = file_read(path, MAX_FILE, size, &e);
    if (!text)
        print_message("# SKIP %s\n", e.msg);
    return text;
}

/* Render; returns the text, or NULL with the message in e. */
static char *render(const char *source, size_t source_size, const json_t *vars, size_t *size, struct err *e)
{
    char *out = NULL;
    struct tmpl *t = tmpl_parse(source, source_size, NULL, e);
    if (!t)
        return NULL;
    if (tmpl_render(t, vars, now, NULL, &out, size, e) < 0)
        out = NULL;
    tmpl_free(t);
    return out;
}

static int ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && !strcmp(s + n - m, end);
}

/* Returns 1 if rendering gives the text `expected`.  If `expected` is NULL rendering must fail, and
 * if `error` is "TemplateError: text", with that text. */
static int check(const char *name, const char *source, size_t source_size, const json_t *vars, const json_t *expected,
                 const char *error)
{
    struct err e = { .msg = "" };
    size_t size = 0;
    char *got = render(source, source_size, vars, &size, &e);
    const char *raised = error && !strncmp(error, "TemplateError: ", 15) ? error + 15 : NULL;
    int ok = error ? !got && e.msg[0] && (!raised || ends_with(e.msg, raised))
        : got && size == json_string_length(expected) && !memcmp(got, json_string_value(expected), size);
    if (!ok) {
        print_error("%s\n  expected %s%s\n", name, error ? "error " : "", error ? error : json_string_value(expected));
        print_error("  got      %s%s\n", got ? "" : "error ", got ? got : e.msg);
    }
    free(got);
    return ok;
}

static void report(const char *file, int passed, int total)
{
    print_message("# %-20s %4d of %4d\n", file, passed, total);
    assert_int_equal(passed, total);
    assert_int_not_equal(total, 0);
}

/* The next line of a .jsonl file, parsed; NULL at the end. */
static json_t *next_line(char **text)
{
    json_error_t je;
    if (!**text)
        return NULL;
    char *end = strchr(*text, '\n'), *line = *text;
    *text = end ? end + 1 : line + strlen(line);
    json_t *j = json_loadb(line, end ? (size_t)(end - line) : strlen(line), 0, &je);
    if (!j)
        fail_msg("%s", je.text);
    return j;
}

static void jinja_tests_render_as_expected(void **state)
{
    (void)state;
    int passed = 0, total = 0;
    size_t size;
    char *text = oracle("jinja-tests.jsonl", &size), *at = text;
    if (!text)
        skip();
    for (json_t *j; (j = next_line(&at)); json_decref(j), total++) {
        const json_t *source = json_object_get(j, "template");
        passed += check(json_string_value(json_object_get(j, "name")), json_string_value(source),
                        json_string_length(source), json_object_get(j, "vars"),
            json_object_get(j, "expected"), NULL);
    }
    free(text);
    report("jinja-tests.jsonl", passed, total);
}

static void chat_templates_render_as_recorded(void **state)
{
    (void)state;
    int passed = 0, total = 0;
    size_t size;
    char *text = oracle("rendered.jsonl", &size), *at = text;
    if (!text)
        skip();
    for (json_t *j; (j = next_line(&at)); json_decref(j), total++) {
        const char *file = json_string_value(json_object_get(j, "template"));
        char name[256];
        size_t source_size;
        char *source = oracle(file, &source_size);
        assert_non_null(source);
        json_t *vars = json_deep_copy(json_object_get(j, "variables"));
        json_object_set(vars, "messages", json_object_get(j, "messages"));
        json_object_set(vars, "tools", json_object_get(j, "tools"));
        snprintf(name, sizeof name, "%s, %s", file, json_string_value(json_object_get(j, "conversation")));
        passed += check(name, source, source_size, vars, json_object_get(j, "expected"),
                        json_string_value(json_object_get(j, "error")));
        json_decref(vars);
        free(source);
    }
    free(text);
    report("rendered.jsonl", passed, total);
}

/* The output of jinja2 is in plain_jinja2 ({expected | error}) where it differs from what llama.cpp
 * expects (expected_jinja). */
static void output_is_that_of_jinja2(void **state)
{
    (void)state;
    int passed = 0, total = 0;
    size_t size, i;
    char *text = oracle("expected.json", &size);
    json_t *item;
    if (!text)
        skip();
    json_t *all = json_loadb(text, size, 0, NULL);
    assert_non_null(all);
    json_array_foreach(all, i, item) {
        const json_t *source = json_object_get(item, "template"), *plain = json_object_get(item, "plain_jinja2");
        static const char *const keys[] = { "messages", "bos_token", "eos_token", "add_generation_prompt" };
        json_t *vars = json_object();
        for (size_t k = 0; k < 4; k++)
            json_object_set(vars, keys[k], json_object_get(item, keys[k]));
        total++;
        passed += check(json_string_value(json_object_get(item, "name")), json_string_value(source),
                        json_string_length(source), vars,
            plain ? json_object_get(plain, "expected") : json_object_get(item, "expected_jinja"),
            json_string_value(json_object_get(plain, "error")));
        json_decref(vars);
    }
    json_decref(all);
    free(text);
    report("expected.json", passed, total);
}

static void language_cases_render_as_expected(void **state)
{
    (void)state;
    int passed = 0, total = 0;
    size_t size;
    struct err e;
    char *text = file_read("tests/unit/template-language.jsonl", MAX_FILE, &size, &e), *at = text;
    if (!text)
        fail_msg("%s (run from the root of the repository)", e.msg);
    json_t *sets = next_line(&at);
    for (json_t *j; (j = next_line(&at)); json_decref(j), total++) {
        const json_t *source = json_object_get(j, "t");
        char set[2] = { (char)('0' + json_integer_value(json_object_get(j, "v"))), '\0' };
        passed += check(json_string_value(source), json_string_value(source), json_string_length(source),
                        json_object_get(sets, set),
            json_object_get(j, "x"), json_object_get(j, "e") ? "any" : NULL);
    }
    json_decref(sets);
    free(text);
    report("language", passed, total);
}

/* Each template fails with a message that has this line number and these words. */
static void bad_templates_are_refused_with_a_line(void **state)
{
    (void)state;
    static const struct { const char *source; int line; const char *words; } cases[] = {
        { "a\nb {{ x", 2, "the template ends inside a tag" }, { "\n\n{% if x %}a", 3, "endif" },
            { "{% endif %}", 1, "unknown tag 'endif'" },
        { "{% for x in y %}\n{% endif %}{% endfor %}", 2, "expected one of: endfor else" },
        { "\n{{ 'a }}", 2, "the string has no end" },
        { "{{ a ? b }}", 1, "unexpected char '?'" }, { "{{ (1] }}", 1, "expected ')'" },
        { "{# x", 1, "Missing end of comment" },
        { "{% raw %}x", 1, "Missing end of raw" }, { "{% include 'x' %}", 1, "'include' is not supported" },
        { "a\n\n\xFF", 3, "0xFF is not UTF-8" },
        { "\n{{ missing.x }}", 2, "'missing' is undefined" },
        { "\n{{ {}.x.y }}", 2, "'dict object' has no attribute 'x'" },
        { "{{ 1\n+\n'a' }}", 2, "unsupported operand" }, { "\n{{ 1|nope }}", 2, "No filter named 'nope'" },
        { "{{ 1 is nope }}", 1, "No test named 'nope'" },
        { "{{ 9223372036854775807 + 1 }}", 1, "does not fit 64 bits" },
        { "{{ 99999999999999999999 }}", 1, "does not fit 64 bits" },
        { "{% macro m() %}\n{{ 1 / 0 }}{% endmacro %}\n\n{{ m() }}", 2, "division by zero" },
        { "{{ raise_exception('no\\nway') }}", 1, "no\nway" },
        { "{% break %}", 1, "'break' outside of a loop" }, { "{{ [1]|random }}", 1, "random is not supported" },
        { "{{ f(a=1, 2) }}", 1, "invalid syntax" },
        { "{{ 'x'|center(9999999999999) }}", 1, "memory" }, { "{{ '%99999999d'|format(1) }}", 1, "width" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err e = { .msg = "" };
        size_t size;
        char line[32], *got = render(cases[i].source, strlen(cases[i].source), NULL, &size, &e);
        snprintf(line, sizeof line, "template: line %d: ", cases[i].line);
        if (got || strncmp(e.msg, line, strlen(line)) || !strstr(e.msg, cases[i].words))
            fail_msg("%s\n expected %s...%s\n got %s", cases[i].source, line, cases[i].words, got ? got : e.msg);
    }
}

/* A template that would run forever, or use all memory or the whole stack, ends with ERR_LIMIT.
 * The limit is a number of steps, not a time, so that the result is always the same. */
static void endless_templates_reach_a_limit(void **state)
{
    (void)state;
    static const struct { const char *source; struct tmpl_limits limits; } cases[] = {
        { "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", { .max_steps = 100000 } },
        { "{% set l = [1] %}{% for x in l %}{% set _ = l.append(1) %}{% endfor %}", { .max_steps = 100000 } },
        { "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", { .max_depth = 0 } },
        { "{% macro m(n) %}{{ m(n + 1) if n < 150 }}{% endmacro %}{{ m(0) }}", { .max_depth = 100 } },
        { "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", { .max_depth = 0 } },
        { "{% for x in range(9999) %}0123456789{% endfor %}", { .max_output = 1000 } },
        { "{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
          { .max_output = 1000 } },
        { "{% set ns = namespace(l=[1]) %}{% for i in range(99) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
          { .max_output = 1000 } },
        { "{{ 'x' * 9223372036854775807 }}", { .max_output = 0 } },
        { "{{ [1, 2] * 4611686018427387905 }}", { .max_output = 0 } },
        { "{% set l = [] %}{% set _ = l.append(l) %}{{ l }}", { .max_output = 0 } },
        { "{% set l = [] %}{% set _ = l.append(l) %}{{ l|tojson }}", { .max_output = 0 } },
        { "{{ range(100001) }}", { .max_output = 0 } }, { "{{ 2 ** 64 }}", { .max_output = 0 } },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err e = { .code = ERR_NONE };
        char *out = NULL;
        size_t size;
        struct tmpl *t = tmpl_parse(cases[i].source, strlen(cases[i].source), NULL, &e);
        assert_non_null(t);
        if (tmpl_render(t, NULL, now, &cases[i].limits, &out, &size, &e) == 0 || e.code != ERR_LIMIT)
            fail_msg("%s\n gave %s", cases[i].source, out ? out : e.msg);
        tmpl_free(t);
    }
}

/* Very deep nesting is refused or rendered, and never overflows the stack. */
static void deep_nesting_never_overflows_the_stack(void **state)
{
    (void)state;
    static const struct { const char *open, *close; } cases[] = {
        { "{{ (", "" }, { "{{ not ", "" }, { "{{ -", "" }, { "{% if a %}", "" }, { "{% for a in b %}", "" },
            { "{{ [", "" }, { "{{ 1 if 1 else ", "" },
        { "{{ a|b", "|b" }, { "{{ a.b", ".b" }, { "{{ a + b", " + b" }, { "{{ a ~ b", " ~ b" }, { "{{ a(", "" },
        { "{{ a < b", " < b" }, { "{% set (", "(" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *unit = *cases[i].close ? cases[i].close
                                           : cases[i].open + (strncmp(cases[i].open, "{{ ", 3) ? 0 : 3);
        size_t n = strlen(unit), size = strlen(cases[i].open);
        char *source = malloc(size + n * 50000 + 1);
        assert_non_null(source);
        memcpy(source, cases[i].open, size);
        for (int k = 0; k < 50000; k++, size += n)
            memcpy(source + size, unit, n);
        struct err e = { .msg = "" };
        size_t got_size;
        char *got = render(source, size, NULL, &got_size, &e);
        assert_null(got);
        assert_true(e.msg[0] != '\0');
        free(source);
    }
    json_t *vars = json_object(), *inner = json_array();
    for (int k = 0; k < 5000; k++) {
        json_t *outer = json_array();
        json_array_append_new(outer, inner);
        inner = outer;
    }
    json_object_set_new(vars, "x", inner);
    struct err e;
    size_t size;
    assert_null(render("{{ x }}", 7, vars, &size, &e));
    assert_int_equal(e.code, ERR_LIMIT);
    json_decref(vars);
}

/* A template cut at any byte is parsed or refused; if it is parsed, rendering it succeeds or fails
 * without a crash. */
static void a_cut_template_never_crashes(void **state)
{
    (void)state;
    static const char source[] =
        "{%- set ns = namespace(n=0, t='') -%}\n{# all \xC3\xA9 kinds #}{% macro m(a, b=[1, 'x'], c={'k': 1.5e3}) %}{{ a ~ b[0:-1:1] }}{{ varargs }}{{ caller(c.k) }}{% endmacro %}\n"
        "{% for k, v in messages|selectattr('role', 'ne', 'x')|map('dictsort')|first if (k is defined and not k is none) recursive %}\n"
        "  {%- if loop.first or v not in ['a', \"b\\u00e9\\n\"] %}{{ '%s' % v|upper }}{% elif 1 <= 2 != 3 %}{% continue %}{% else %}{{ -1 ** 2 // 3 }}{% endif -%}\n"
        "{% endfor %}{% call(x) m(*[1], **{'c': {'k': 3}}) %}{{ x }}{% endcall %}{% raw %}{{ no }}{% endraw %}{% set x | trim %} y {% endset %}\n"
        "{% with q = x %}{% filter upper %}{{ q if q else 'z' }}{% endfilter %}{% endwith %}{% generation %}{{ messages[0].role }}{% endgeneration %}";
    json_t *vars = json_pack("{s:[{s:s, s:s}]}", "messages", "role", "user", "content", "hi");
    int whole = 0;
    for (size_t n = 0; n < sizeof source; n++) {
        struct err e = { .msg = "" };
        size_t size;
        char *got = render(source, n, vars, &size, &e);
        assert_true(got || e.msg[0]);
        whole += got != NULL;
        if (n == sizeof source - 1)
            assert_string_equal(got ? got : e.msg, "HIUSER1[1]()3{{ no }}Yuser");
        free(got);
    }
    json_decref(vars);
    assert_in_range(whole, 10, sizeof source - 100);          /* most are cut inside something */
}

/* Two renderings of one template with different variables do not affect each other.  A rendering
 * that changes a list changes its own copy. */
static void renderings_do_not_affect_each_other(void **state)
{
    (void)state;
    struct err e;
    static const char source[] = "{% set _ = l.append('!') %}{{ l|join }}{% set s = 'a' ~ 'b' %}{{ s ~ l[0] }}";
    struct tmpl *t = tmpl_parse(source, sizeof source - 1, NULL, &e);
    assert_non_null(t);
    for (int i = 0; i < 3; i++) {
        char text[2] = { (char)('x' + i), '\0' }, want[16], *got;
        json_t *vars = json_pack("{s:[s]}", "l", text);
        size_t size;
        assert_int_equal(tmpl_render(t, vars, now, NULL, &got, &size, &e), 0);
        snprintf(want, sizeof want, "%s!ab%s", text, text);
        assert_string_equal(got, want);
        assert_int_equal(json_array_size(json_object_get(vars, "l")), 1);
        free(got);
        json_decref(vars);
    }
    tmpl_free(t);
    tmpl_free(NULL);
}

static void chat_templates_get_the_expected_variables(void **state)
{
    (void)state;
    struct err e;
    char *got;
    size_t size;
    struct tmpl *t = tmpl_parse(chat_fallback_template, strlen(chat_fallback_template), NULL, &e);
    json_t *messages = json_pack("[{s:s, s:s}, {s:s, s:s}]", "role", "user", "content", "hi", "role", "assistant",
                                 "content", "yo");
    assert_int_equal(chat_render(t, messages, NULL, 1, NULL, NULL, now, NULL, NULL, &got, &size, &e), 0);
    assert_string_equal(got, "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nyo<|im_end|>\n<|im_start|>assistant\n");
    free(got);
    tmpl_free(t);

    static const char source[] = "{{ bos_token }}{{ tools }}{{ tools is defined }}{{ documents }}{{ add_generation_prompt }}{{ eos_token }}"
        "{{ messages[0].thinking }}{{ messages[0].reasoning_content }}{{ think }}{{ strftime_now('%Y') }}";
    t = tmpl_parse(source, sizeof source - 1, NULL, &e);
    json_t *extra = json_pack("{s:b, s:s}", "think", 1, "eos_token", "E"), *tools = json_pack("[i]", 1);
    json_object_set_new(json_array_get(messages, 0), "reasoning", json_string("why"));
    assert_int_equal(chat_render(t, messages, tools, 0, "B", "other", now, extra, NULL, &got, &size, &e), 0);
    assert_string_equal(got, "B[1]TrueNoneFalseEwhywhyTrue2026");
    /* The caller's message is as it was. */
    assert_null(json_object_get(json_array_get(messages, 0), "thinking"));
    free(got);
    assert_int_equal(chat_render(t, extra, NULL, 0, NULL, NULL, now, NULL, NULL, &got, &size, &e), -1);
    assert_string_equal(e.msg, "messages: expected an array of objects");
    assert_int_equal(chat_render(t, tools, NULL, 0, NULL, NULL, now, NULL, NULL, &got, &size, &e), -1);
    assert_string_equal(e.msg, "messages[0]: found a whole number, expected an object");
    tmpl_free(t);

    static const char modes[] = "{{ thinking_mode is defined and thinking_mode }}";
    static const struct { const char *vars, *want; } thinks[] = {
        { "{}", "False" }, { "{\"enable_thinking\": true}", "enabled" }, { "{\"enable_thinking\": false}", "disabled" },
        { "{\"enable_thinking\": false, \"thinking_mode\": \"adaptive\"}", "adaptive" },
    };
    t = tmpl_parse(modes, sizeof modes - 1, NULL, &e);
    for (size_t i = 0; i < sizeof thinks / sizeof *thinks; i++) {
        json_t *vars = json_loads(thinks[i].vars, 0, NULL);
        assert_int_equal(chat_render(t, messages, NULL, 0, NULL, NULL, now, vars, NULL, &got, &size, &e), 0);
        assert_string_equal(got, thinks[i].want);
        free(got);
        json_decref(vars);
    }
    tmpl_free(t);
    json_decref(messages);
    json_decref(extra);
    json_decref(tools);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(jinja_tests_render_as_expected),
        cmocka_unit_test(chat_templates_render_as_recorded), cmocka_unit_test(output_is_that_of_jinja2),
        cmocka_unit_test(language_cases_render_as_expected), cmocka_unit_test(bad_templates_are_refused_with_a_line),
        cmocka_unit_test(endless_templates_reach_a_limit),
        cmocka_unit_test(deep_nesting_never_overflows_the_stack),
        cmocka_unit_test(a_cut_template_never_crashes), cmocka_unit_test(renderings_do_not_affect_each_other),
        cmocka_unit_test(chat_templates_get_the_expected_variables),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
