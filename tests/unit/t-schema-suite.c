/* t-schema-suite.c - the JSON Schema test suite ($ZSE_ORACLES/json-schema-suite) through the
 * grammar compiler, without a vocabulary.
 *
 * A schema may be refused, but a compiled one must accept no instance that the suite calls
 * invalid.  The numbers of compiled schemas and of accepted valid instances have lower limits, so
 * that they cannot shrink unnoticed.  Instances are written without blanks, with properties in the
 * order of the suite. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "libcommon/grammar/grammar.h"

struct counts { int schemas, compiled, valid, accepted, invalid, wrong; };

static const char *oracles;
static int verbose;                     /* ZSE_SUITE_VERBOSE: name what is refused */

static int accepts(struct grammar *g, const char *text)
{
    struct err e;
    struct matcher *m = matcher_open(g, &e);
    assert_non_null(m);
    int ok = matcher_accept_bytes(m, text, strlen(text)) == 0 && matcher_complete(m);
    matcher_close(m);
    return ok;
}

static void run_group(const char *folder, const char *file, json_t *group, struct counts *c)
{
    const char *what = json_string_value(json_object_get(group, "description"));
    json_t *of = json_object_get(group, "schema");
    if (!strncmp(folder, "draft7", 6) && json_is_object(of) && !json_object_get(of, "$schema"))
        json_object_set_new(of, "$schema", json_string("http://json-schema.org/draft-07/schema#"));
    char *schema = json_dumps(of, JSON_COMPACT | JSON_ENCODE_ANY);
    struct err e = { .msg = "" };
    struct grammar *g = grammar_compile_schema(NULL, schema, strlen(schema), NULL, &e);
    json_t *test;
    size_t i;
    /* for a schema that no value satisfies, refusing it counts as compiled, because all instances
     * are invalid */
    const int compiled = g || strstr(e.msg, "nothing can satisfy");
    c->schemas++;
    c->compiled += compiled;
    if (!compiled && verbose)
        print_message("# %s: %s: refused: %s\n", file, what, e.msg);
    json_array_foreach(json_object_get(group, "tests"), i, test) {
        char *text = json_dumps(json_object_get(test, "data"), JSON_COMPACT | JSON_ENCODE_ANY);
        const int valid = json_is_true(json_object_get(test, "valid")), taken = g && accepts(g, text);
        c->valid += valid;
        c->accepted += valid && taken;
        c->invalid += compiled && !valid;
        c->wrong += !valid && taken;
        if (!valid && taken)
            print_message("# %s: %s: %s: accepted, but not valid: %s\n#   %s\n", file, what,
                          json_string_value(json_object_get(test, "description")), text, schema);
        if (valid && compiled && !taken && verbose)
            print_message("# %s: %s: %s: valid, but not accepted: %s\n#   %s\n", file, what,
                          json_string_value(json_object_get(test, "description")), text, schema);
        free(text);
    }
    grammar_close(g);
    free(schema);
}

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* Files of the suite that are not run: numbers that do not fit a double, and keywords that are only
 * annotations here (other formats, contentMediaType). */
static int is_left_out(const char *folder, const char *name)
{
    static const char *const names[] = { "bignum.json", "float-overflow.json", "content.json", "format-assertion.json",
                                         "idn-hostname.json", "unknown.json" };
    if (!strstr(folder, "optional"))
        return 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(name, names[i]))
            return 1;
    return 0;
}

/* Every file of a folder in order of name. */
static void run_folder(const char *folder, struct counts *total)
{
    char path[1024], *names[200];
    size_t n = 0, i;
    struct dirent *entry;
    snprintf(path, sizeof path, "%s/json-schema-suite/%s", oracles, folder);
    DIR *dir = opendir(path);
    assert_non_null(dir);
    while ((entry = readdir(dir)) && n < 200)
        if (strstr(entry->d_name, ".json") && !is_left_out(folder, entry->d_name))
            names[n++] = strdup(entry->d_name);
    closedir(dir);
    qsort(names, n, sizeof *names, by_name);
    for (i = 0; i < n; i++) {
        struct counts c = { 0 };
        json_error_t je;
        json_t *group;
        size_t k;
        snprintf(path, sizeof path, "%s/json-schema-suite/%s/%s", oracles, folder, names[i]);
        json_t *groups = json_load_file(path, JSON_ALLOW_NUL, &je);
        if (!groups)
            fail_msg("%s: line %d: %s", path, je.line, je.text);
        json_array_foreach(groups, k, group)
            run_group(folder, names[i], group, &c);
        json_decref(groups);
        print_message("# %-13s %-28s schemas %3d of %3d, valid %3d of %3d, wrong %d of %d\n", folder, names[i],
                      c.compiled, c.schemas, c.accepted, c.valid, c.wrong, c.invalid);
        total->schemas += c.schemas, total->compiled += c.compiled, total->valid += c.valid,
            total->accepted += c.accepted, total->invalid += c.invalid, total->wrong += c.wrong;
        free(names[i]);
    }
}

static void run_suite(const char *const *folders, int min_compiled, int min_accepted)
{
    struct counts c = { 0 };
    if (!oracles) {
        print_message("# skipped: no json-schema-suite below $ZSE_ORACLES or ../shared/oracles\n");
        skip();
    }
    for (; *folders; folders++)
        run_folder(*folders, &c);
    print_message("# in all: schemas %d of %d, valid %d of %d, wrong %d of %d\n", c.compiled, c.schemas, c.accepted,
                  c.valid, c.wrong, c.invalid);
    assert_int_equal(c.wrong, 0);
    assert_in_range(c.compiled, min_compiled, c.schemas);
    assert_in_range(c.accepted, min_accepted, c.valid);
}

static void draft_2020_12_accepts_nothing_invalid(void **state)
{
    static const char *const folders[] = { "draft2020-12", "draft2020-12/optional", "draft2020-12/optional/format",
                                           NULL };
    (void)state;
    run_suite(folders, 400, 1013);
}

static void draft_7_accepts_nothing_invalid(void **state)
{
    static const char *const folders[] = { "draft7", "draft7/optional", "draft7/optional/format", NULL };
    (void)state;
    run_suite(folders, 280, 774);
}

int main(void)
{
    static char path[1024];
    const struct CMUnitTest tests[] = { cmocka_unit_test(draft_2020_12_accepts_nothing_invalid),
                                        cmocka_unit_test(draft_7_accepts_nothing_invalid) };
    oracles = getenv("ZSE_ORACLES") ? getenv("ZSE_ORACLES") : "../shared/oracles";
    verbose = getenv("ZSE_SUITE_VERBOSE") != NULL;
    snprintf(path, sizeof path, "%s/json-schema-suite", oracles);
    DIR *dir = opendir(path);
    if (dir)
        closedir(dir);
    else
        oracles = NULL;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
