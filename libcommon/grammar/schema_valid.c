/* schema_valid.c - check a value against a schema. */
#include "libcommon/grammar/schema.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/utf8.h"

static unsigned type_of(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_NULL: return TYPE_NULL;
    case JSON_TRUE: case JSON_FALSE: return TYPE_BOOLEAN;
    case JSON_STRING: return TYPE_STRING;
    case JSON_ARRAY: return TYPE_ARRAY;
    case JSON_OBJECT: return TYPE_OBJECT;
    case JSON_INTEGER: return TYPE_INTEGER;
    default: return json_real_value(v) == floor(json_real_value(v)) ? TYPE_INTEGER : TYPE_FRACTION;
    }
}

/* Equality of JSON Schema: 1 equals 1.0. */
static int equal(const json_t *a, const json_t *b, int depth)
{
    size_t i;
    const char *key;
    json_t *x;
    if (json_is_number(a) && json_is_number(b))
        return json_is_integer(a) && json_is_integer(b) ? json_integer_value(a) == json_integer_value(b)
                                                        : json_number_value(a) == json_number_value(b);
    if (json_typeof(a) != json_typeof(b) || depth > MAX_VALUE_DEPTH)
        return 0;
    if (json_is_array(a)) {
        if (json_array_size(a) != json_array_size(b))
            return 0;
        json_array_foreach(a, i, x)
            if (!equal(x, json_array_get(b, i), depth + 1))
                return 0;
        return 1;
    }
    if (json_is_object(a)) {
        if (json_object_size(a) != json_object_size(b))
            return 0;
        json_object_foreach((json_t *)(uintptr_t)a, key, x) {
            json_t *y = json_object_get(b, key);
            if (!y || !equal(x, y, depth + 1))
                return 0;
        }
        return 1;
    }
    return json_equal(a, b);
}

static int contains(const json_t *list, const json_t *v)
{
    json_t *x;
    size_t i;
    json_array_foreach(list, i, x)
        if (equal(x, v, 0))
            return 1;
    return 0;
}

static int matches(struct schema *s, const json_t *at, const char *keyword, const char *pattern, size_t n_pattern,
                   const char *text, size_t n)
{
    struct json_text b = { 0 };
    uint32_t e = schema_pattern(s, at, keyword, pattern, n_pattern, NULL, NULL);
    if (e == EXPR_NONE)
        return -1;
    text_put_string(&b, text, n);
    int r = expr_matches(&s->g->x, e, b.p, b.n);
    free(b.p);
    return r;
}

static int valid(struct schema *s, const json_t *schema, const json_t *v, int depth);

/* Does SOME_PROPERTY apply to this name? */
static int is_some_name(struct schema *s, const json_t *some, const char *name, int depth)
{
    const json_t *pattern = json_object_get(some, "pattern"), *names = json_object_get(some, "names");
    json_t *x;
    size_t i;
    int rc;
    json_array_foreach(json_object_get(some, "except"), i, x)
        if (!strcmp(json_string_value(x), name))
            return 0;
    json_array_foreach(json_object_get(some, "not"), i, x)
        if ((rc = matches(s, some, NULL, json_string_value(x), json_string_length(x), name, strlen(name))) != 0)
            return rc < 0 ? -1 : 0;
    if (pattern && (rc = matches(s, some, NULL, json_string_value(pattern), json_string_length(pattern), name,
                                 strlen(name))) != 1)
        return rc;
    if (names) {
        json_t *text = json_string(name);
        rc = valid(s, names, text, depth + 1);
        json_decref(text);
        return rc < 0 ? -1 : !rc;
    }
    return 1;
}

static int has_some_property(struct schema *s, const json_t *some, const json_t *v, int depth)
{
    const char *key;
    json_t *x;
    int rc;
    json_object_foreach((json_t *)(uintptr_t)v, key, x) {
        if ((rc = is_some_name(s, some, key, depth)) == 1)
            rc = valid(s, json_object_get(some, "value"), x, depth + 1);
        if (rc)
            return rc;
    }
    return 0;
}

json_t *schema_some_declared(struct schema *s, const struct member *m, int n, json_t *some)
{
    json_t *to = json_array(), *v;
    const char *name;
    for (int i = 0; i < n; i++)
        json_object_foreach(json_object_get(m[i].s, "properties"), name, v)
            if (!s->failed && is_some_name(s, some, name, 0) == 1)
                json_array_append_new(to, json_pack("{s:s, s:[s], s:{s:O}, s:b}", "type", "object", "required", name,
                                                    "properties", name, json_object_get(some, "value"), MADE, 1));
    return schema_keep(s, to, some);
}

/* dependentRequired and dependentSchemas; dependencies before draft 2019-09. */
static int valid_dependencies(struct schema *s, const json_t *schema, const json_t *v, int depth)
{
    json_t *x, *list;
    const char *key;
    size_t i;
    int rc;
    json_object_foreach(json_object_get(schema, "dependentRequired"), key, list)
        if (json_object_get(v, key))
            json_array_foreach(list, i, x)
                if (json_is_string(x) && !json_object_get(v, json_string_value(x)))
                    return 0;
    for (int old = 0; old < 2; old++)
        json_object_foreach(json_object_get(schema, old ? "dependencies" : "dependentSchemas"), key, x) {
            if (!json_object_get(v, key))
                continue;
            json_array_foreach(x, i, list)
                if (json_is_string(list) && !json_object_get(v, json_string_value(list)))
                    return 0;
            if (!json_is_array(x) && (rc = valid(s, x, v, depth + 1)) != 1)
                return rc;
        }
    return 1;
}

static int valid_object(struct schema *s, const json_t *schema, const json_t *v, int depth)
{
    const json_t *properties = json_object_get(schema, "properties"),
                 *patterns = json_object_get(schema, "patternProperties");
    const json_t *more = json_object_get(schema, "additionalProperties"),
                 *names = json_object_get(schema, "propertyNames");
    const json_t *left = json_object_get(schema, "unevaluatedProperties");
    json_t *x;
    const char *key, *pattern;
    size_t i;
    int64_t count;
    int rc;
    if ((x = json_object_get(schema, SOME_PROPERTY)) && (rc = has_some_property(s, x, v, depth)) != 1)
        return rc;
    if ((count = schema_count(s, schema, "minProperties")) >= 0 && json_object_size(v) < (size_t)count)
        return 0;
    if ((count = schema_count(s, schema, "maxProperties")) >= 0 && json_object_size(v) > (size_t)count)
        return 0;
    json_array_foreach(json_object_get(schema, "required"), i, x)
        if (json_is_string(x) && !json_object_get(v, json_string_value(x)))
            return 0;
    if ((rc = valid_dependencies(s, schema, v, depth)) != 1)
        return rc;
    json_object_foreach((json_t *)(uintptr_t)v, key, x) {
        json_t *sub = json_object_get(properties, key);
        int known = sub != NULL;
        if (sub && (rc = valid(s, sub, x, depth + 1)) != 1)
            return rc;
        json_object_foreach((json_t *)(uintptr_t)patterns, pattern, sub) {
            if ((rc = matches(s, schema, "patternProperties", pattern, strlen(pattern), key, strlen(key))) < 0)
                return -1;
            known |= rc;
            if (rc && (rc = valid(s, sub, x, depth + 1)) != 1)
                return rc;
        }
        if (!known && more && (rc = valid(s, more, x, depth + 1)) != 1)
            return rc;
        if (!known && !more && left && !json_is_true(left)) {
            schema_refuse(s, schema, "unevaluatedProperties",
                          "it can be checked in a value of enum or const for the properties of the same schema only");
            return -1;
        }
        if (names) {
            json_t *name = json_string(key);
            rc = valid(s, names, name, depth + 1);
            json_decref(name);
            if (rc != 1)
                return rc;
        }
    }
    return 1;
}

static int valid_array(struct schema *s, const json_t *schema, const json_t *v, int depth)
{
    const json_t *items = json_object_get(schema, "items"), *first = json_object_get(schema, "prefixItems"),
                 *some = json_object_get(schema, "contains");
    const json_t *left = json_object_get(schema, "unevaluatedItems");
    json_t *x;
    size_t i;
    int64_t count;
    int rc;
    if (json_is_array(items)) {
        first = items;
        items = json_object_get(schema, "additionalItems");
    }
    if ((count = schema_count(s, schema, "minItems")) >= 0 && json_array_size(v) < (size_t)count)
        return 0;
    if ((count = schema_count(s, schema, "maxItems")) >= 0 && json_array_size(v) > (size_t)count)
        return 0;
    int64_t found = 0;
    json_array_foreach(v, i, x) {
        const json_t *sub = i < json_array_size(first) ? json_array_get(first, i) : items;
        if (sub && (rc = valid(s, sub, x, depth + 1)) != 1)
            return rc;
        if (!sub && left && !json_is_true(left)) {
            schema_refuse(s, schema, "unevaluatedItems",
                          "it can be checked in a value of enum or const for the items of the same schema only");
            return -1;
        }
        if (some) {
            if ((rc = valid(s, some, x, depth + 1)) < 0)
                return -1;
            found += rc;
        }
        if (json_is_true(json_object_get(schema, "uniqueItems")))
            for (size_t k = 0; k < i; k++)
                if (equal(x, json_array_get(v, k), 0))
                    return 0;
    }
    int64_t least = schema_count(s, schema, "minContains"), most = schema_count(s, schema, "maxContains");
    return !some || (found >= (least < 0 ? 1 : least) && (most < 0 || found <= most));
}

static int valid_number(const json_t *schema, const json_t *v)
{
    const double d = json_number_value(v);
    const int open_min = json_is_true(json_object_get(schema, "exclusiveMinimum")),
              open_max = json_is_true(json_object_get(schema, "exclusiveMaximum"));
    const json_t *x;
    if ((x = json_object_get(schema, "minimum")) && json_is_number(x) &&
        (d < json_number_value(x) || (open_min && d == json_number_value(x))))
        return 0;
    if ((x = json_object_get(schema, "maximum")) && json_is_number(x) &&
        (d > json_number_value(x) || (open_max && d == json_number_value(x))))
        return 0;
    if ((x = json_object_get(schema, "exclusiveMinimum")) && json_is_number(x) && d <= json_number_value(x))
        return 0;
    if ((x = json_object_get(schema, "exclusiveMaximum")) && json_is_number(x) && d >= json_number_value(x))
        return 0;
    if ((x = json_object_get(schema, NOT_MULTIPLE)) && schema_is_multiple(v, x))
        return 0;
    x = json_object_get(schema, "multipleOf");
    return !x || !(json_number_value(x) > 0) || schema_is_multiple(v, x);
}

static int valid_string(struct schema *s, const json_t *schema, const json_t *v)
{
    const char *text = json_string_value(v), *format = json_string_value(json_object_get(schema, "format"));
    const size_t size = json_string_length(v);
    const int64_t chars = (int64_t)utf8_count(text, size);
    const json_t *x;
    json_t *sub;
    int64_t count;
    size_t i;
    int rc;
    if (((count = schema_count(s, schema, "minLength")) >= 0 && chars < count) ||
        ((count = schema_count(s, schema, "maxLength")) >= 0 && chars > count))
        return 0;
    if ((x = json_object_get(schema, "pattern")) &&
        (rc = matches(s, schema, "pattern", json_string_value(x), json_string_length(x), text, size)) != 1)
        return rc;
    json_array_foreach(json_object_get(schema, NOT_PATTERN), i, sub)
        if ((rc = matches(s, schema, "pattern", json_string_value(sub), json_string_length(sub), text, size)) != 0)
            return rc < 0 ? -1 : 0;
    if (format && (format = schema_format(format))) {
        uint32_t e = schema_regex(s, format, 1);
        if (e == EXPR_NONE || !expr_matches(&s->g->x, e, text, size))
            return e == EXPR_NONE ? -1 : 0;
    }
    return 1;
}

/* $ref and $dynamicRef. */
static int valid_references(struct schema *s, const json_t *schema, const json_t *v, int depth)
{
    for (int dynamic = 0; dynamic < 2; dynamic++) {
        const json_t *x = json_object_get(schema, dynamic ? "$dynamicRef" : "$ref"), *target;
        int rc;
        if (!x)
            continue;
        target = dynamic ? schema_resolve_dynamic(s, schema, json_string_value(x))
                         : schema_resolve(s, schema, json_string_value(x));
        if (!target || (rc = valid(s, target, v, depth + 1)) != 1)
            return target ? rc : -1;
    }
    return 1;
}

/* allOf, anyOf, oneOf, not and if. */
static int valid_combined(struct schema *s, const json_t *schema, const json_t *v, int depth)
{
    const json_t *x;
    json_t *sub;
    size_t i;
    int rc;
    json_array_foreach(json_object_get(schema, "allOf"), i, sub)
        if ((rc = valid(s, sub, v, depth + 1)) != 1)
            return rc;
    for (int one = 0; one < 2; one++) {
        int n = 0;
        if (!(x = json_object_get(schema, one ? "oneOf" : "anyOf")))
            continue;
        json_array_foreach(x, i, sub) {
            if ((rc = valid(s, sub, v, depth + 1)) < 0)
                return -1;
            n += rc;
        }
        if (one ? n != 1 : n == 0)
            return 0;
    }
    if ((x = json_object_get(schema, "not")) && (rc = valid(s, x, v, depth + 1)) != 0)
        return rc < 0 ? -1 : 0;
    if ((x = json_object_get(schema, "if"))) {
        if ((rc = valid(s, x, v, depth + 1)) < 0)
            return -1;
        if ((x = json_object_get(schema, rc ? "then" : "else")) && (rc = valid(s, x, v, depth + 1)) != 1)
            return rc;
    }
    return 1;
}

static int valid(struct schema *s, const json_t *schema, const json_t *v, int depth)
{
    const json_t *x;
    int rc = 1;
    if (json_is_boolean(schema))
        return json_is_true(schema);
    if (depth > MAX_VALUE_DEPTH) {
        schema_limit(s, schema, "nested too deep");
        return -1;
    }
    s->g->x.meter.work += 10;
    if (schema_ref_alone(s, schema)) {
        const json_t *target = schema_resolve(s, schema, json_string_value(json_object_get(schema, "$ref")));
        return target ? valid(s, target, v, depth + 1) : -1;
    }
    if (!(schema_types(s, schema) & type_of(v)))
        return s->failed ? -1 : 0;
    if ((x = json_object_get(schema, "const")) && !equal(x, v, 0))
        return 0;
    x = json_object_get(schema, "enum");
    s->g->x.meter.work += json_array_size(x);
    if ((x && !contains(x, v)) || contains(json_object_get(schema, NOT_VALUES), v))
        return 0;
    if (json_is_number(v))
        rc = valid_number(schema, v);
    else if (json_is_string(v))
        rc = valid_string(s, schema, v);
    else if (json_is_object(v))
        rc = valid_object(s, schema, v, depth);
    else if (json_is_array(v))
        rc = valid_array(s, schema, v, depth);
    if (rc != 1 || (rc = valid_references(s, schema, v, depth)) != 1 ||
        (rc = valid_combined(s, schema, v, depth)) != 1)
        return rc;
    return s->failed ? -1 : 1;
}

int schema_valid(struct schema *s, const json_t *schema, const json_t *v) { return valid(s, schema, v, 0); }
