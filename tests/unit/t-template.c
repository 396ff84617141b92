/* t-template.c - the template engine against Python's jinja2, set up as transformers does: every recorded case of the
 * oracles (chat-templates/), as a table of what passed; then limits, bad templates and errors of our own.
 *
 * Oracles are read from $ZSE_ORACLES, else ../shared/oracles; where they are absent those tests are skipped. */
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
#include "libcommon/token/template.h"

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

/* 1 if rendering gives expected (or, where expected is NULL, fails; "TemplateError: text" must fail with that text). */
static int check(const char *name, const char *source, size_t source_size, const json_t *vars, const json_t *expected, const char *error)
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

/* The lines of a .jsonl file, one at a time; NULL at the end. */
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

static void test_cases(void **state)
{
    (void)state;
    int passed = 0, total = 0;
    size_t size;
    char *text = oracle("jinja-tests.jsonl", &size), *at = text;
    if (!text)
        skip();
    for (json_t *j; (j = next_line(&at)); json_decref(j), total++) {
        const json_t *source = json_object_get(j, "template");
        passed += check(json_string_value(json_object_get(j, "name")), json_string_value(source), json_string_length(source), json_object_get(j, "vars"),
            json_object_get(j, "expected"), NULL);
    }
    free(text);
    report("jinja-tests.jsonl", passed, total);
}

static void test_rendered(void **state)
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
        passed += check(name, source, source_size, vars, json_object_get(j, "expected"), json_string_value(json_object_get(j, "error")));
        json_decref(vars);
        free(source);
    }
    free(text);
    report("rendered.jsonl", passed, total);
}

/* What jinja2 gives is in plain_jinja2 ({expected | error}) where it differs from what llama.cpp expects (expected_jinja). */
static void test_expected(void **state)
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
        passed += check(json_string_value(json_object_get(item, "name")), json_string_value(source), json_string_length(source), vars,
            plain ? json_object_get(plain, "expected") : json_object_get(item, "expected_jinja"), json_string_value(json_object_get(plain, "error")));
        json_decref(vars);
    }
    json_decref(all);
    free(text);
    report("expected.json", passed, total);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases), cmocka_unit_test(test_rendered), cmocka_unit_test(test_expected),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
