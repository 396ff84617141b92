/* members.c - values of the members of conversations and messages. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "libcommon/base/json.h"
#include "libcommon/base/utf8.h"
#include "libcommon/history/internal.h"

enum presence field_presence(const json_t *fields, const char *name)
{
    const json_t *v = json_object_get(fields, name);
    return !v ? ABSENT : json_is_null(v) ? GIVEN_NULL : GIVEN;
}

static int wrong_kind(const json_t *v, const char *name, const char *expected, struct history_problem *p)
{
    return fault_set(p, HISTORY_BAD_VALUE, name, "%s: found %s, expected %s", name, v ? js_kind(v) : "nothing",
                     expected);
}

int field_text(const json_t *fields, const char *name, size_t least, size_t most, const char **out,
               struct history_problem *p)
{
    const json_t *v = json_object_get(fields, name);
    const size_t n = json_string_length(v);
    if (!json_is_string(v) || strlen(json_string_value(v)) != n)
        return wrong_kind(v, name, "a string without zero bytes", p);
    if (n > most)
        return fault_set(p, HISTORY_TOO_LARGE, name, "%s: %zu bytes, expected at most %zu", name, n, most);
    if (n < least)
        return fault_set(p, HISTORY_BAD_VALUE, name, "%s: is empty", name);
    *out = json_string_value(v);
    return 0;
}

int field_number(const json_t *fields, const char *name, int64_t least, int64_t most, int64_t *out,
                 struct history_problem *p)
{
    const json_t *v = json_object_get(fields, name);
    const double x = json_number_value(v);
    if (!json_is_number(v))
        return wrong_kind(v, name, "a number", p);
    if (!(x >= (double)least && x <= (double)most) || x != (double)(int64_t)x)
        return fault_set(p, HISTORY_BAD_VALUE, name, "%s: %.15g, expected a whole number from %lld to %lld", name, x,
                         (long long)least, (long long)most);
    *out = json_is_integer(v) ? (int64_t)json_integer_value(v) : (int64_t)x;
    return 0;
}

int field_bool(const json_t *fields, const char *name, int *out, struct history_problem *p)
{
    const json_t *v = json_object_get(fields, name);
    if (!json_is_boolean(v))
        return wrong_kind(v, name, "true or false", p);
    *out = json_is_true(v);
    return 0;
}

int field_json(const json_t *fields, const char *name, int is_list, size_t most, json_t *text, const char **out,
               struct history_problem *p)
{
    const json_t *v = json_object_get(fields, name);
    if (is_list ? !json_is_array(v) : !json_is_object(v))
        return wrong_kind(v, name, is_list ? "a list" : "an object", p);
    /* 15 digits: a number of at most 15 digits comes back as it was written */
    char *dump = json_dumps(v, JSON_COMPACT | JSON_REAL_PRECISION(15));
    const size_t n = dump ? strlen(dump) : 0;
    if (!dump)
        return fault_nomem(p);
    json_t *kept = n <= most ? json_string(dump) : NULL;
    free(dump);
    if (n > most)
        return fault_set(p, HISTORY_TOO_LARGE, name, "%s: %zu bytes as JSON, expected at most %zu", name, n, most);
    if (!kept || json_array_append_new(text, kept) != 0)
        return fault_nomem(p);
    *out = json_string_value(kept);
    return 0;
}

int time_parse(const char *text, int64_t *ms)
{
    struct tm t = { 0 };
    int milli = 0, n = 0;
    if (sscanf(text, "%4d-%2d-%2dT%2d:%2d:%2d%n", &t.tm_year, &t.tm_mon, &t.tm_mday, &t.tm_hour, &t.tm_min, &t.tm_sec,
               &n) != 6 || n != 19)
        return -1;
    text += n;
    if (*text == '.') {
        if (sscanf(text, ".%3d%n", &milli, &n) != 1 || n != 4 || milli < 0)
            return -1;
        text += n;
    }
    if (strcmp(text, "Z") != 0 || t.tm_year < 1970 || t.tm_mon < 1 || t.tm_mon > 12 || t.tm_mday < 1 ||
        t.tm_mday > 31 || t.tm_hour > 23 || t.tm_min > 59 || t.tm_sec > 60 || t.tm_hour < 0 || t.tm_min < 0 ||
        t.tm_sec < 0)
        return -1;
    t.tm_year -= 1900;
    t.tm_mon -= 1;
    *ms = (int64_t)timegm(&t) * 1000 + milli;
    return 0;
}
