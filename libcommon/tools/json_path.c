/* json_path.c - paths into JSON values, and the tool parse_json. */
#include "libcommon/tools/json_path.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/tools/internal.h"

enum { MAX_NAME = 256 };

struct path_step { enum { STEP_NAME, STEP_INDEX, STEP_ALL } kind; char name[MAX_NAME]; long index; };

static int malformed(const char *path, const char *p, const char *expected, struct err *e)
{
    return err_set(e, ERR_FORMAT, "path: character %zu: expected %s", (size_t)(p - path) + 1, expected);
}

/* Read a quoted name after '['; a \ takes the next character as it is. */
static int quoted_name(const char *path, const char **at, struct path_step *s, struct err *e)
{
    const char *p = *at;
    const char quote = *p++;
    size_t n = 0;
    while (*p && *p != quote && n < MAX_NAME - 1) {
        if (*p == '\\' && p[1])
            p++;
        s->name[n++] = *p++;
    }
    s->name[n] = '\0';
    if (*p != quote)
        return malformed(path, p, "a closing quote", e);
    *at = p + 1;
    return 0;
}

static int bracket(const char *path, const char **at, struct path_step *s, struct err *e)
{
    const char *p = *at;
    char *end;
    if (*p == '"' || *p == '\'') {
        s->kind = STEP_NAME;
        if (quoted_name(path, &p, s, e) != 0)
            return -1;
    } else if (*p == '*') {
        s->kind = STEP_ALL;
        p++;
    } else {
        s->kind = STEP_INDEX;
        if (strspn(p + (*p == '-'), "0123456789") == 0 || strspn(p + (*p == '-'), "0123456789") > 9)
            return malformed(path, p, "an index, a quoted name or *", e);
        s->index = strtol(p, &end, 10);
        p = end;
    }
    if (*p != ']')
        return malformed(path, p, "]", e);
    *at = p + 1;
    return 0;
}

/* Read the next step of the path at *at. */
static int read_step(const char *path, const char **at, struct path_step *s, struct err *e)
{
    const char *p = *at;
    if (*p == '[') {
        p++;
        if (bracket(path, &p, s, e) != 0)
            return -1;
        *at = p;
        return 0;
    }
    if (p != path && *p != '.')
        return malformed(path, p, ". or [", e);
    p += *p == '.';
    const size_t n = strcspn(p, ".[");
    if (n == 0 || n >= MAX_NAME)
        return malformed(path, p, "a name", e);
    s->kind = n == 1 && *p == '*' ? STEP_ALL : STEP_NAME;
    snprintf(s->name, sizeof s->name, "%.*s", (int)n, p);
    *at = p + n;
    return 0;
}

static json_t *walk(json_t *v, const char *path, const char *at, int steps, struct err *e)
{
    struct path_step s;
    json_t *next = NULL, *x;
    size_t i;
    const char *from = at;
    if (!*at)
        return json_incref(v);
    if (steps == JSON_PATH_MAX_STEPS) {
        err_set(e, ERR_LIMIT, "path: more than %d steps", JSON_PATH_MAX_STEPS);
        return NULL;
    }
    if (read_step(path, &at, &s, e) != 0)
        return NULL;
    if (s.kind == STEP_ALL && json_is_array(v)) {
        json_t *list = json_array();
        json_array_foreach(v, i, x)
            if (!(next = walk(x, path, at, steps + 1, e)) || json_array_append_new(list, next) != 0) {
                if (next)
                    err_nomem(e, "path");
                json_decref(list);
                return NULL;
            }
        return list;
    }
    if (s.kind == STEP_NAME)
        next = json_object_get(v, s.name);
    else if (s.kind == STEP_INDEX && json_is_array(v))
        next = json_array_get(v, s.index >= 0 ? (size_t)s.index : json_array_size(v) - (size_t)-s.index);
    if (next)
        return walk(next, path, at, steps + 1, e);
    err_set(e, ERR_FORMAT, "there is nothing at %.*s: the value before it is %s%s", (int)(at - path < 200 ? at - path : 200),
            path, js_kind(v), json_is_array(v) && from[0] == '[' ? " with fewer elements" : "");
    return NULL;
}

json_t *json_path_get(json_t *v, const char *path, struct err *e)
{
    if (*path == '$')                           /* the next character is . or [ */
        path++;
    return walk(v, path, path, 0, e);
}

char *run_parse_json(const struct native_env *env, const json_t *arguments, struct err *e)
{
    const json_t *text = json_object_get(arguments, "json");
    const char *path = json_string_value(js_get(arguments, "path"));
    struct tool_text out = { 0 };
    json_t *v = js_parse("json", json_string_value(text), json_string_length(text), e), *found;
    (void)env;
    if (!v)
        return NULL;
    found = json_path_get(v, path ? path : "", e);
    json_decref(v);
    if (!found)
        return NULL;
    char *dump = json_is_string(found) ? NULL : json_dumps(found, JSON_ENCODE_ANY | JSON_COMPACT);
    if (json_is_string(found))
        text_add(&out, json_string_value(found), json_string_length(found));
    else if (dump)
        text_add(&out, dump, strlen(dump));
    else
        out.error = ERR_MEMORY;
    free(dump);
    json_decref(found);
    return text_finish(&out, e);
}
