/* schema_value.c - single values: as text, checked against a schema; and schemas for what
 * another does not allow. */
#include "libcommon/grammar/schema.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/utf8.h"

enum { MAX_VALUE_DEPTH = 64 };

/* ---- text ---- */

struct buffer { char *p; size_t n, room; int failed; };

static void put(struct buffer *b, const void *p, size_t n)
{
    if (b->n + n > b->room) {
        size_t room = 2 * b->room + n + 64;
        char *q = realloc(b->p, room);
        if (!q) {
            b->failed = 1;
            return;
        }
        b->p = q;
        b->room = room;
    }
    memcpy(b->p + b->n, p, n);
    b->n += n;
}

static void put_string(struct buffer *b, const char *s, size_t n)
{
    static const char names[] = "btn_fr";       /* 8 to 13 */
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        char esc[8];
        if (c == '"' || c == '\\')
            put(b, (char[]){ '\\', (char)c }, 2);
        else if (c >= 8 && c <= 13 && c != 11)
            put(b, (char[]){ '\\', names[c - 8] }, 2);
        else if (c < 0x20)
            put(b, esc, (size_t)snprintf(esc, sizeof esc, "\\u%04x", c));
        else
            put(b, s + i, 1);
    }
}

/* A value that is no array and no object. */
static void put_value(struct buffer *b, const json_t *v)
{
    char text[64];
    if (json_is_string(v)) {
        put(b, "\"", 1);
        put_string(b, json_string_value(v), json_string_length(v));
        put(b, "\"", 1);
    } else if (json_is_real(v)) {
        double d = json_real_value(v);
        for (int k = 1; k <= 17; k++) {
            snprintf(text, sizeof text, "%.*g", k, d);
            if (strtod(text, NULL) == d)
                break;
        }
        put(b, text, strlen(text));
    } else if (json_is_integer(v)) {
        put(b, text, (size_t)snprintf(text, sizeof text, "%lld", (long long)json_integer_value(v)));
    } else {
        const char *word = json_is_null(v) ? "null" : json_is_true(v) ? "true" : "false";
        put(b, word, strlen(word));
    }
}

/* An array or object, with the blanks that its punctuation may have. */
static uint32_t container(struct schema *s, const json_t *v, int depth)
{
    struct exprs *x = &s->g->x;
    struct buffer b = { 0 };
    uint32_t r;
    if (depth > MAX_VALUE_DEPTH)
        return schema_limit(s, s->root, "a value in it is nested too deep");
    if (!json_is_array(v) && !json_is_object(v)) {
        put_value(&b, v);
        r = b.failed ? schema_nomem(s) : expr_text(x, b.p, b.n);
        free(b.p);
        return r;
    }
    int is_object = json_is_object(v);
    size_t n = is_object ? json_object_size(v) : json_array_size(v), i = 0;
    const char *key;
    json_t *sub;
    uint32_t *parts = malloc((n + 1) * sizeof *parts);
    if (!parts)
        return schema_nomem(s);
    if (is_object) {
        json_object_foreach((json_t *)(uintptr_t)v, key, sub) {
            b.n = 0;
            put(&b, "\"", 1);
            put_string(&b, key, strlen(key));
            put(&b, "\"", 1);
            parts[i++] = expr_concat(x, b.failed ? (uint32_t)EXPR_NONE : expr_text(x, b.p, b.n),
                                     expr_concat(x, s->colon, container(s, sub, depth + 1)));
        }
    } else {
        json_array_foreach(v, i, sub)
            parts[i] = container(s, sub, depth + 1);
    }
    r = expr_text(x, is_object ? "}" : "]", 1);
    if (n)
        r = expr_concat(x, s->space, r);
    for (i = n; i--;) {
        r = expr_concat(x, parts[i], r);
        if (i)
            r = expr_concat(x, s->comma, r);
    }
    if (n)
        r = expr_concat(x, s->space, r);
    r = expr_concat(x, expr_text(x, is_object ? "{" : "[", 1), r);
    free(parts);
    free(b.p);
    return b.failed ? schema_nomem(s) : r;
}

uint32_t schema_values(struct schema *s, json_t *const *v, size_t n)
{
    struct buffer b = { 0 };
    struct byte_span *t = malloc((n + 1) * sizeof *t);
    size_t *end = malloc((n + 1) * sizeof *end), m = 0;
    uint32_t r = EXPR_NONE;
    if (!t || !end) {
        free(t);
        free(end);
        return schema_nomem(s);
    }
    for (size_t i = 0; i < n; i++) {
        if (!json_is_array(v[i]) && !json_is_object(v[i]))
            put_value(&b, v[i]);
        end[i] = b.n;
    }
    if (b.failed) {
        schema_nomem(s);
    } else {
        for (size_t i = 0; i < n; i++)
            t[i] = (struct byte_span){ b.p ? b.p + (i ? end[i - 1] : 0) : "", end[i] - (i ? end[i - 1] : 0) };
        qsort(t, n, sizeof *t, text_compare);
        for (size_t i = 0; i < n; i++)
            if (t[i].n && (!m || text_compare(&t[m - 1], &t[i]) != 0))
                t[m++] = t[i];
        r = expr_texts(&s->g->x, t, m);
        for (size_t i = 0; i < n; i++)
            if (json_is_array(v[i]) || json_is_object(v[i]))
                r = expr_either(&s->g->x, r, container(s, v[i], 0));
    }
    free(b.p);
    free(t);
    free(end);
    return r;
}

/* ---- checking ---- */

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

/* Equal as JSON Schema has it: 1 is 1.0. */
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
    struct buffer b = { 0 };
    uint32_t e = schema_pattern(s, at, keyword, pattern, n_pattern, NULL, NULL);
    if (e == EXPR_NONE)
        return -1;
    put_string(&b, text, n);
    int r = expr_matches(&s->g->x, e, b.p, b.n);
    free(b.p);
    return r;
}

static int valid(struct schema *s, const json_t *schema, const json_t *v, int depth);

/* Is this the name of a property that SOME_PROPERTY asks for? */
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

static int valid_object(struct schema *s, const json_t *schema, const json_t *v, int depth)
{
    const json_t *properties = json_object_get(schema, "properties"),
                 *patterns = json_object_get(schema, "patternProperties");
    const json_t *more = json_object_get(schema, "additionalProperties"),
                 *names = json_object_get(schema, "propertyNames");
    const json_t *left = json_object_get(schema, "unevaluatedProperties");
    json_t *x, *list;
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

static int valid(struct schema *s, const json_t *schema, const json_t *v, int depth)
{
    const json_t *x;
    json_t *sub;
    size_t i;
    int rc, n;
    unsigned type = type_of(v);
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
    if (!(schema_types(s, schema) & type))
        return s->failed ? -1 : 0;
    if ((x = json_object_get(schema, "const")) && !equal(x, v, 0))
        return 0;
    x = json_object_get(schema, "enum");
    s->g->x.meter.work += json_array_size(x);
    if (x && !contains(x, v))
        return 0;
    if (contains(json_object_get(schema, NOT_VALUES), v))
        return 0;
    if (json_is_number(v)) {
        double d = json_number_value(v);
        int open_min = json_is_true(json_object_get(schema, "exclusiveMinimum")),
            open_max = json_is_true(json_object_get(schema, "exclusiveMaximum"));
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
        if ((x = json_object_get(schema, "multipleOf")) && json_number_value(x) > 0 && !schema_is_multiple(v, x))
            return 0;
    }
    if (json_is_string(v)) {
        const char *text = json_string_value(v), *format = json_string_value(json_object_get(schema, "format"));
        size_t size = json_string_length(v);
        int64_t chars = (int64_t)utf8_count(text, size), count;
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
    }
    if (json_is_object(v) && (rc = valid_object(s, schema, v, depth)) != 1)
        return rc;
    if (json_is_array(v) && (rc = valid_array(s, schema, v, depth)) != 1)
        return rc;
    if ((x = json_object_get(schema, "$ref"))) {
        const json_t *target = schema_resolve(s, schema, json_string_value(x));
        if (!target || (rc = valid(s, target, v, depth + 1)) != 1)
            return target ? rc : -1;
    }
    if ((x = json_object_get(schema, "$dynamicRef"))) {
        const json_t *target = schema_resolve_dynamic(s, schema, json_string_value(x));
        if (!target || (rc = valid(s, target, v, depth + 1)) != 1)
            return target ? rc : -1;
    }
    json_array_foreach(json_object_get(schema, "allOf"), i, sub)
        if ((rc = valid(s, sub, v, depth + 1)) != 1)
            return rc;
    for (int one = 0; one < 2; one++)
        if ((x = json_object_get(schema, one ? "oneOf" : "anyOf"))) {
            n = 0;
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
    return s->failed ? -1 : 1;
}

int schema_valid(struct schema *s, const json_t *schema, const json_t *v) { return valid(s, schema, v, 0); }

/* ---- the opposite ---- */

/* The regular expression of a format that matches all of its strings, so that the opposite can
 * be said. */
static const char *exact_format(const char *name);

static void add(json_t *to, json_t *made)
{
    if (made && json_is_object(made))
        json_object_set_new(made, MADE, json_true());
    json_array_append_new(to, made);
}

static json_t *negated(struct schema *s, json_t *schema, int depth);

/* {KEY: {NAME: ALTERNATIVES}} for one property. */
static int negate_property(struct schema *s, json_t *to, const char *name, json_t *sub, int depth)
{
    json_t *alternatives = negated(s, sub, depth + 1);
    if (!alternatives)
        return -1;
    if (json_array_size(alternatives))
        add(to, json_pack("{s:s, s:[s], s:{s:{s:o}}}", "type", "object", "required", name, "properties", name, "anyOf",
                          alternatives));
    else
        json_decref(alternatives);
    return 0;
}

static int is_one_of(const char *key, const char *const *names)
{
    while (*names && strcmp(key, *names) != 0)
        names++;
    return *names != NULL;
}

static int negate_type(struct schema *s, json_t *to, const json_t *schema)
{
    static const char *const names[] = { "null", "boolean", NULL, NULL, "string", "array", "object" };
    unsigned types = schema_types(s, schema);
    json_t *others = json_array();
    for (int k = 0; k < 7; k++)
        if (!(types >> k & 1) && names[k])
            json_array_append_new(others, json_string(names[k]));
    if (!(types & TYPE_INTEGER))
        json_array_append_new(others, json_string(types & TYPE_FRACTION ? "integer" : "number"));
    else if (!(types & TYPE_FRACTION))
        add(to, json_pack("{s:s, s:b}", "type", "number", ONLY_FRACTION, 1));
    if (json_array_size(others))
        add(to, json_pack("{s:o}", "type", others));
    else
        json_decref(others);
    return s->failed ? -1 : 0;
}

/* A keyword whose opposite is another one with the same number, or the next. 1: it is none of
 * them. */
static int negate_bound(json_t *to, const json_t *schema, const char *key, json_t *v)
{
    static const struct { const char *key, *type, *opposite; int by; const char *draft4; } bounds[] = {
        { "minimum", "number", "exclusiveMaximum", 0, "exclusiveMinimum" },
            { "maximum", "number", "exclusiveMinimum", 0, "exclusiveMaximum" },
        { "exclusiveMinimum", "number", "maximum", 0, NULL }, { "exclusiveMaximum", "number", "minimum", 0, NULL },
        { "minLength", "string", "maxLength", -1, NULL }, { "maxLength", "string", "minLength", 1, NULL },
        { "minItems", "array", "maxItems", -1, NULL },
        { "maxItems", "array", "minItems", 1, NULL }, { "minProperties", "object", "maxProperties", -1, NULL },
        { "maxProperties", "object", "minProperties", 1, NULL },
    };
    size_t i = 0;
    while (i < sizeof bounds / sizeof *bounds && strcmp(key, bounds[i].key) != 0)
        i++;
    if (i == sizeof bounds / sizeof *bounds || (bounds[i].draft4 &&
                                                json_is_true(json_object_get(schema, bounds[i].draft4))) ||
                                                (!bounds[i].by && *key == 'e' && !json_is_number(v)))
        return 1;
    if (!bounds[i].by)
        add(to, json_pack("{s:s, s:O}", "type", bounds[i].type, bounds[i].opposite, v));
    else if (bounds[i].by > 0 || json_number_value(v) >= 1)
        add(to, json_pack("{s:s, s:f}", "type", bounds[i].type, bounds[i].opposite,
                          json_number_value(v) + bounds[i].by));
    return 0;
}

/* The alternatives of another schema are some of ours, too. */
static int extend_by(struct schema *s, json_t *to, json_t *other, int depth)
{
    json_t *alternatives = other ? negated(s, other, depth + 1) : NULL;
    int rc = alternatives ? 0 : -1;
    json_array_extend(to, alternatives);
    json_decref(alternatives);
    return rc;
}

/* {"type": "array", KEY: any of what is not v} */
static int negate_elements(struct schema *s, json_t *to, const char *opposite, json_t *v, int depth)
{
    json_t *alternatives = negated(s, v, depth + 1);
    if (alternatives)
        add(to, json_pack("{s:s, s:{s:o}}", "type", "array", opposite, "anyOf", alternatives));
    return alternatives ? 0 : -1;
}

static int negate_any_of(struct schema *s, json_t *to, json_t *list, int depth)
{
    json_t *all = json_array(), *x;
    size_t i;
    json_array_foreach(list, i, x) {
        json_t *alternatives = negated(s, x, depth + 1);
        if (!alternatives) {
            json_decref(all);
            return -1;
        }
        json_array_append_new(all, json_pack("{s:o}", "anyOf", alternatives));
    }
    add(to, json_pack("{s:o}", "allOf", all));
    return 0;
}

/* None of the alternatives, or two of them. */
static int negate_one_of(struct schema *s, json_t *to, json_t *list, int depth)
{
    enum { MAX_PAIRS = 28 };
    size_t n = json_array_size(list);
    if (negate_any_of(s, to, list, depth) != 0)
        return -1;
    if (n * (n - 1) / 2 > MAX_PAIRS)
        return 1;
    for (size_t i = 0; i < n; i++)
        for (size_t k = i + 1; k < n; k++)
            add(to, json_pack("{s:[O, O]}", "allOf", json_array_get(list, i), json_array_get(list, k)));
    return 0;
}

/* The condition and the opposite of what it asks for, or the other way. */
static int negate_if(struct schema *s, json_t *to, json_t *schema, int depth)
{
    json_t *test = json_object_get(schema, "if"), *yes = json_object_get(schema, "then"),
           *no = json_object_get(schema, "else");
    json_t *not_yes = yes ? negated(s, yes, depth + 1) : json_array(),
           *not_no = no ? negated(s, no, depth + 1) : json_array(), *not_test = NULL;
    int rc = not_yes && not_no ? 0 : -1;
    if (rc == 0 && json_array_size(not_yes))
        add(to, json_pack("{s:[O, {s:O}]}", "allOf", test, "anyOf", not_yes));
    if (rc == 0 && json_array_size(not_no)) {
        if ((not_test = negated(s, test, depth + 1)))
            add(to, json_pack("{s:[{s:O}, {s:O}]}", "allOf", "anyOf", not_test, "anyOf", not_no));
        else
            rc = -1;
    }
    json_decref(not_yes);
    json_decref(not_no);
    json_decref(not_test);
    return rc;
}

/* The property is there, and what it asks for is not so. */
static int negate_dependencies(struct schema *s, json_t *to, json_t *v, int depth)
{
    const char *name;
    json_t *x, *one;
    size_t i;
    json_object_foreach(v, name, x) {
        json_array_foreach(x, i, one)
            if (json_is_string(one) && strcmp(json_string_value(one), name) != 0)
                add(to, json_pack("{s:s, s:[s], s:{s:b}}", "type", "object", "required", name, "properties",
                                  json_string_value(one), 0));
        if (json_is_array(x))
            continue;
        json_t *alternatives = negated(s, x, depth + 1);
        if (!alternatives)
            return -1;
        add(to, json_pack("{s:s, s:[s], s:{s:{}}, s:o}", "type", "object", "required", name, "properties", name,
                          "anyOf", alternatives));
    }
    return 0;
}

/* One of the first items does not satisfy its schema. */
static int negate_first_items(struct schema *s, json_t *to, json_t *list, int depth)
{
    json_t *x;
    size_t i;
    json_array_foreach(list, i, x) {
        json_t *alternatives = negated(s, x, depth + 1), *first = json_array();
        if (!alternatives || !first) {
            json_decref(alternatives);
            json_decref(first);
            return -1;
        }
        for (size_t k = 0; k < i; k++)
            json_array_append_new(first, json_true());
        json_array_append_new(first, json_pack("{s:o}", "anyOf", alternatives));
        add(to, json_pack("{s:s, s:I, s:o}", "type", "array", "minItems", (json_int_t)i + 1, "prefixItems", first));
    }
    return 0;
}

/* Fewer of the items than minContains, or more than maxContains. */
static int negate_contains(struct schema *s, json_t *to, const json_t *schema, json_t *v, int depth)
{
    const int64_t least = schema_count(s, schema, "minContains"), most = schema_count(s, schema, "maxContains");
    if (least < 0 || least == 1) {
        if (negate_elements(s, to, "items", v, depth) != 0)
            return -1;
    } else if (least > 1) {
        add(to, json_pack("{s:s, s:O, s:i, s:I}", "type", "array", "contains", v, "minContains", 0, "maxContains",
                          (json_int_t)least - 1));
    }
    if (most >= 0)
        add(to, json_pack("{s:s, s:O, s:I}", "type", "array", "contains", v, "minContains", (json_int_t)most + 1));
    return s->failed ? -1 : 0;
}

static json_t *keys_of(const json_t *object)
{
    json_t *to = json_array(), *v;
    const char *key;
    json_object_foreach((json_t *)(uintptr_t)object, key, v)
        json_array_append_new(to, json_string(key));
    return to;
}

/* Some property is not as additionalProperties, patternProperties or propertyNames ask. */
static int negate_some(struct schema *s, json_t *to, const json_t *schema, const char *key, json_t *v, int depth)
{
    const char *pattern;
    json_t *x;
    if (!strcmp(key, "propertyNames")) {
        add(to, json_pack("{s:s, s:{s:O, s:b}}", "type", "object", SOME_PROPERTY, "names", v, "value", 1));
    } else if (!strcmp(key, "additionalProperties")) {
        json_t *alternatives = negated(s, v, depth + 1);
        if (!alternatives)
            return -1;
        add(to, json_pack("{s:s, s:{s:o, s:o, s:{s:o}}}", "type", "object", SOME_PROPERTY, "except",
                          keys_of(json_object_get(schema, "properties")), "not",
                          keys_of(json_object_get(schema, "patternProperties")), "value", "anyOf", alternatives));
    } else {
        json_object_foreach(v, pattern, x) {
            json_t *alternatives = negated(s, x, depth + 1);
            if (!alternatives)
                return -1;
            add(to, json_pack("{s:s, s:{s:s, s:{s:o}}}", "type", "object", SOME_PROPERTY, "pattern", pattern, "value",
                              "anyOf", alternatives));
        }
    }
    return 0;
}

/* Items behind those with a schema of their own: at least one more, if there may be none. */
static int negate_later_items(json_t *to, const json_t *first, const json_t *v)
{
    if (!json_is_false(v))
        return json_is_true(v) ? 0 : 1;
    add(to, json_pack("{s:s, s:I}", "type", "array", "minItems", (json_int_t)json_array_size(first) + 1));
    return 0;
}

/* Keywords that hold schemas. 1: it is none of them, or a part of its opposite is no schema. */
static int negate_nested(struct schema *s, json_t *to, json_t *schema, const char *key, json_t *v, int depth)
{
    const char *name;
    json_t *x, *items = json_object_get(schema, "items"),
           *first = json_is_array(items) ? items : json_object_get(schema, "prefixItems");
    size_t i;
    int rc = 0;
    if (!strcmp(key, "properties")) {
        json_object_foreach(v, name, x)
            if (rc == 0)
                rc = negate_property(s, to, name, x, depth);
    } else if (v == first) {
        rc = negate_first_items(s, to, v, depth);
    } else if (!strcmp(key, "items") || !strcmp(key, "additionalItems")) {
        if (!strcmp(key, "additionalItems") && !json_is_array(items))
            return 0;
        rc = first ? negate_later_items(to, first, v) : negate_elements(s, to, "contains", v, depth);
    } else if (!strcmp(key, "contains")) {
        rc = negate_contains(s, to, schema, v, depth);
    } else if (!strcmp(key, "allOf")) {
        json_array_foreach(v, i, x)
            if (rc == 0)
                rc = extend_by(s, to, x, depth);
    } else if (!strcmp(key, "anyOf")) {
        rc = negate_any_of(s, to, v, depth);
    } else if (!strcmp(key, "oneOf")) {
        rc = negate_one_of(s, to, v, depth);
    } else if (!strcmp(key, "if")) {
        rc = negate_if(s, to, schema, depth);
    } else if (!strcmp(key, "dependentRequired") || !strcmp(key, "dependentSchemas") || !strcmp(key, "dependencies")) {
        rc = negate_dependencies(s, to, v, depth);
    } else if (!strcmp(key, "additionalProperties") || !strcmp(key, "patternProperties") ||
               !strcmp(key, "propertyNames")) {
        rc = negate_some(s, to, schema, key, v, depth);
    } else if (!strcmp(key, "not")) {
        add(to, json_pack("{s:[O]}", "allOf", v));
    } else if (!strcmp(key, "$ref") && json_is_string(v)) {
        rc = extend_by(s, to, schema_resolve(s, schema, json_string_value(v)), depth);
    } else if (!strcmp(key, "$dynamicRef") && json_is_string(v)) {
        rc = extend_by(s, to, schema_resolve_dynamic(s, schema, json_string_value(v)), depth);
    } else {
        rc = 1;
    }
    return rc;
}

/* Not these values.  Empty arrays and objects are excluded by their size, as single ones cannot
 * be. */
static void negate_values(json_t *to, json_t *values)
{
    json_t *made = json_pack("{s:[]}", NOT_VALUES), *v;
    size_t i;
    json_array_foreach(values, i, v) {
        if ((json_is_array(v) && !json_array_size(v)) || (json_is_object(v) && !json_object_size(v)))
            json_object_set_new(made, json_is_array(v) ? "minItems" : "minProperties", json_integer(1));
        else
            json_array_append(json_object_get(made, NOT_VALUES), v);
    }
    add(to, made);
}

/* Keywords that hold values. 1: it is none of them. */
static int negate_plain(struct schema *s, json_t *to, const json_t *schema, const char *key, json_t *v)
{
    json_t *x;
    size_t i;
    if (!strcmp(key, "type"))
        return negate_type(s, to, schema);
    if (!strcmp(key, "const")) {
        json_t *values = json_pack("[O]", v);
        negate_values(to, values);
        json_decref(values);
    } else if (!strcmp(key, "enum")) {
        negate_values(to, v);
    } else if (!strcmp(key, "format")) {
        const char *format = exact_format(json_string_value(v));
        if (!format)
            return 1;
        add(to, json_pack("{s:s, s:[o]}", "type", "string", NOT_PATTERN, json_sprintf("^(?:%s)$", format)));
    } else if (!strcmp(key, NOT_VALUES))
        add(to, json_pack("{s:O}", "enum", v));
    else if (!strcmp(key, "pattern"))
        add(to, json_pack("{s:s, s:[O]}", "type", "string", NOT_PATTERN, v));
    else if (!strcmp(key, NOT_PATTERN)) {
        json_array_foreach(v, i, x)
            add(to, json_pack("{s:s, s:O}", "type", "string", "pattern", x));
    } else if (!strcmp(key, "required")) {
        json_array_foreach(v, i, x)
            if (json_is_string(x))
                add(to, json_pack("{s:s, s:{s:b}}", "type", "object", "properties", json_string_value(x), 0));
    } else {
        return negate_bound(to, schema, key, v);
    }
    return 0;
}

static json_t *negated(struct schema *s, json_t *schema, int depth)
{
    static const char *const silent[] = { "$schema", "$id", "$anchor", "$comment", "$defs", "definitions", "title",
                                          "description", "default", "examples", "deprecated", "readOnly", "writeOnly",
                                          "then", "else", "minContains", "maxContains", "contentMediaType",
                                          "contentEncoding", "contentSchema", "nullable", MADE, NULL };
    static const char *const hard[] = { "multipleOf", "format", "oneOf", "uniqueItems", "unevaluatedProperties",
                                        "unevaluatedItems", "items", "additionalItems", "$recursiveRef",
                                        "exclusiveMinimum", "exclusiveMaximum", "minimum", "maximum", NULL };
    json_t *to = json_array(), *v;
    const char *key, *left_out = NULL;
    if (json_is_boolean(schema)) {
        if (json_is_false(schema))
            add(to, json_object());
        return to;
    }
    if (depth > MAX_VALUE_DEPTH) {
        schema_limit(s, schema, "nested too deep");
        goto fail;
    }
    if (schema_ref_alone(s, schema)) {
        if (extend_by(s, to, schema_resolve(s, schema, json_string_value(json_object_get(schema, "$ref"))), depth) != 0)
            goto fail;
        return to;
    }
    json_object_foreach(schema, key, v) {
        if (is_one_of(key, silent) || (!strcmp(key, "additionalProperties") && json_is_true(v)) ||
            (!strcmp(key, "uniqueItems") && !json_is_true(v)) ||
            (!strncmp(key, "unevaluated", 11) && json_is_true(v)) ||
            (!strcmp(key, "format") && !schema_format(json_string_value(v) ? json_string_value(v) : "")))
            continue;
        int rc = negate_plain(s, to, schema, key, v);
        if (rc == 1)
            rc = negate_nested(s, to, schema, key, v, depth);
        if (rc == 1 && is_one_of(key, hard))
            left_out = key;
        if (rc < 0)
            goto fail;
    }
    if (left_out) {                     /* what can be said is enough for what uses it to be sound */
        if (!json_array_size(to)) {
            schema_refuse(s, schema, left_out, OPPOSITE);
            goto fail;
        }
        if (!s->n_partial++) {
            s->partial_at = schema;
            s->partial_key = left_out;
        }
    }
    return to;
fail:
    json_decref(to);
    return NULL;
}

json_t *schema_negate(struct schema *s, json_t *schema, int depth)
{
    json_t *to = negated(s, schema, depth);
    return to ? schema_keep(s, to, schema) : NULL;
}

/* ---- sets of strings ---- */

/* One of the lists of a schema: union for anyOf, intersection for allOf, exactly one for oneOf. */
static uint32_t combined_strings(struct schema *s, const json_t *list, char kind, int exact, int depth)
{
    struct exprs *x = &s->g->x;
    uint32_t once = EXPR_NONE, twice = EXPR_NONE, every = EXPR_ALL;
    json_t *v;
    size_t i;
    json_array_foreach(list, i, v) {
        uint32_t e = schema_strings(s, v, exact || kind == 'o', depth + 1);
        every = expr_both(x, every, e);
        if (kind == 'o')
            twice = expr_either(x, twice, expr_both(x, once, e));
        once = expr_either(x, once, e);
    }
    return kind == 'a' ? every : kind == 'y' ? once : expr_both(x, once, expr_not(x, twice));
}

/* What the keywords for values say. */
static uint32_t plain_strings(struct schema *s, json_t *schema, int exact)
{
    struct exprs *x = &s->g->x;
    const int64_t least = schema_count(s, schema, "minLength"), most = schema_count(s, schema, "maxLength");
    const json_t *pattern = json_object_get(schema, "pattern"), *format = json_object_get(schema, "format"),
                 *one = json_object_get(schema, "const");
    json_t *values = one ? json_pack("[O]", one) : json_incref(json_object_get(schema, "enum")), *v;
    uint32_t r = expr_repeat(x, s->plain_char, 0, EXPR_MANY);
    size_t i;
    if (least > 0 || most >= 0)
        r = most >= 0 && least > most ? (uint32_t)EXPR_NONE
                                      : expr_repeat(x, s->plain_char, least > 0 ? (int32_t)least : 0,
                                                    most < 0 ? EXPR_MANY : (int32_t)most);
    if (pattern)
        r = expr_both(x, r, schema_pattern(s, schema, "pattern", json_string_value(pattern),
                                           json_string_length(pattern), NULL, NULL));
    if (format && schema_format(json_string_value(format))) {
        const char *text = exact ? exact_format(json_string_value(format)) : schema_format(json_string_value(format));
        r = text ? expr_both(x, r, schema_regex(s, text, 1)) : schema_refuse(s, schema, "format", OPPOSITE);
    }
    if (values) {
        uint32_t any = EXPR_NONE;
        json_array_foreach(values, i, v)
            if (json_is_string(v)) {
                struct buffer b = { 0 };
                put_string(&b, json_string_value(v), json_string_length(v));
                any = expr_either(x, any, b.failed ? schema_nomem(s) : expr_text(x, b.p, b.n));
                free(b.p);
            }
        r = expr_both(x, r, any);
        json_decref(values);
    }
    return r;
}

uint32_t schema_strings(struct schema *s, json_t *schema, int exact, int depth)
{
    struct exprs *x = &s->g->x;
    json_t *v;
    if (json_is_boolean(schema))
        return json_is_true(schema) ? expr_repeat(x, s->plain_char, 0, EXPR_MANY) : (uint32_t)EXPR_NONE;
    if (depth > MAX_VALUE_DEPTH)
        return schema_limit(s, schema, "nested too deep");
    if (s->failed)
        return EXPR_NONE;
    s->g->x.meter.work += 10;
    if (schema_ref_alone(s, schema))
        return (v = schema_resolve(s, schema, json_string_value(json_object_get(schema, "$ref"))))
                   ? schema_strings(s, v, exact, depth + 1) : (uint32_t)EXPR_NONE;
    if (!(schema_types(s, schema) & TYPE_STRING))
        return EXPR_NONE;
    uint32_t r = plain_strings(s, schema, exact);
    if ((v = json_object_get(schema, "$ref")))
        r = (v = schema_resolve(s, schema, json_string_value(v)))
                ? expr_both(x, r, schema_strings(s, v, exact, depth + 1)) : (uint32_t)EXPR_NONE;
    if ((v = json_object_get(schema, "$dynamicRef")))
        r = (v = schema_resolve_dynamic(s, schema, json_string_value(v)))
                ? expr_both(x, r, schema_strings(s, v, exact, depth + 1)) : (uint32_t)EXPR_NONE;
    if ((v = json_object_get(schema, "allOf")))
        r = expr_both(x, r, combined_strings(s, v, 'a', exact, depth));
    if ((v = json_object_get(schema, "anyOf")))
        r = expr_both(x, r, combined_strings(s, v, 'y', exact, depth));
    if ((v = json_object_get(schema, "oneOf")))
        r = expr_both(x, r, combined_strings(s, v, 'o', exact, depth));
    if ((v = json_object_get(schema, "not")))
        r = expr_both(x, r, expr_not(x, schema_strings(s, v, 1, depth + 1)));
    if ((v = json_object_get(schema, "if"))) {
        json_t *yes = json_object_get(schema, "then"), *no = json_object_get(schema, "else");
        uint32_t test = schema_strings(s, v, 1, depth + 1);
        if (yes)
            r = expr_both(x, r, expr_either(x, expr_not(x, test), schema_strings(s, yes, exact, depth + 1)));
        if (no)
            r = expr_both(x, r, expr_either(x, test, schema_strings(s, no, exact, depth + 1)));
    }
    return s->failed ? (uint32_t)EXPR_NONE : r;
}

/* ---- formats ---- */

#define OCTET "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define IPV4 OCTET "(?:\\." OCTET "){3}"
#define H16 "[0-9A-Fa-f]{1,4}"
#define ALNUM "[A-Za-z0-9]"
#define LDH "[A-Za-z0-9-]"
/* RFC 1123, without "--" in the third and fourth place: such labels are encoded international
 * ones (RFC 5890), whose decoded form has rules of its own. */
#define LABEL ALNUM "(?:" ALNUM "|" LDH ALNUM "(?:" LDH "{0,59}" ALNUM ")?|" LDH "-" ALNUM "(?:" LDH "{0,58}" ALNUM ")?)?"
#define SHORT_LABEL ALNUM "(?:" ALNUM "|" LDH ALNUM "(?:" LDH "*" ALNUM ")?|" LDH "-" ALNUM "(?:" LDH "*" ALNUM ")?)?"
#define ATEXT "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
#define LEAP "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
#define DATE "(?:(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|" \
             "02-(?:0[1-9]|1[0-9]|2[0-8]))|" LEAP "-02-29)"
#define TIME "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
#define IPV6 "(?:(?:" H16 ":){7}" H16 "|(?:" H16 ":){1,7}:|(?:" H16 ":){1,6}:" H16 "|(?:" H16 ":){1,5}(?::" H16 "){1,2}|(?:" H16 ":){1,4}(?::" H16 "){1,3}|(?:" H16 ":){1,3}(?::" H16 "){1,4}|" \
             "(?:" H16 ":){1,2}(?::" H16 "){1,5}|" H16 ":(?::" H16 "){1,6}|:(?::" H16 "){1,7}|::)"

/* RFC 3986 (U: "") and 3987 (U: characters beyond ASCII). */
#define UCS "\\u{A0}-\\u{D7FF}\\u{F900}-\\u{FDCF}\\u{FDF0}-\\u{FFEF}\\u{10000}-\\u{1FFFD}\\u{20000}-\\u{2FFFD}"
#define PERCENT "%[0-9A-Fa-f]{2}"
#define PCHAR(u) "(?:[A-Za-z0-9._~!$&'()*+,;=:@" u "-]|" PERCENT ")"
#define NO_COLON(u) "(?:[A-Za-z0-9._~!$&'()*+,;=@" u "-]|" PERCENT ")"
#define USER(u) "(?:[A-Za-z0-9._~!$&'()*+,;=:" u "-]|" PERCENT ")*@"
#define HOST(u) "(?:[A-Za-z0-9" u "](?:[A-Za-z0-9." u "-]*[A-Za-z0-9" u "])?|\\[" IPV6 "\\])"
#define SEGMENTS(u) "(?:/" PCHAR(u) "*)*"
#define ROOTED(u) "//(?:" USER(u) ")?" HOST(u) "(?::[0-9]{1,5})?" SEGMENTS(u) "|/(?:" PCHAR(u) "+" SEGMENTS(u) ")?"
#define TAIL(u) "(?:\\?(?:" PCHAR(u) "|[/?])*)?(?:#(?:" PCHAR(u) "|[/?])*)?"
#define URI(u) "[A-Za-z][A-Za-z0-9+.-]*:(?:" ROOTED(u) "|" PCHAR(u) "+" SEGMENTS(u) ")" TAIL(u)
#define RELATIVE(u) "(?:" ROOTED(u) "|" NO_COLON(u) "+" SEGMENTS(u) "|)" TAIL(u)
#define VARIABLE "(?:[A-Za-z0-9_]|" PERCENT ")(?:\\.?(?:[A-Za-z0-9_]|" PERCENT "))*(?::[1-9][0-9]{0,3}|\\*)?"

static const char *exact_format(const char *name)
{
    static const char *const exact[] = { "date", "ipv4", "uuid", "json-pointer", NULL };
    return name && is_one_of(name, exact) ? schema_format(name) : NULL;
}

/* Each is what the RFC says, or a part of it: RFC 3339 (date, time, date-time, duration), RFC
 * 5321 without quoted names and address literals (email), RFC 1123 (hostname), RFC 2673 (ipv4),
 * RFC 4291 without embedded IPv4 (ipv6), RFC 3986 and 3987 with a host of letters, digits, dots
 * and hyphens or an IPv6 address (uri, uri-reference, iri, iri-reference), RFC 6570
 * (uri-template), RFC 6531 with an ASCII domain (idn-email), RFC 4122 (uuid), RFC 6901
 * (json-pointer) and its relative draft (relative-json-pointer). */
static const char short_email[] = ATEXT "+(?:\\." ATEXT "+)*@" SHORT_LABEL "(?:\\." SHORT_LABEL ")+",
                  short_hostname[] = SHORT_LABEL "(?:\\." SHORT_LABEL ")*";

const char *schema_short_format(const char *name)
{
    return !strcmp(name, "email") ? short_email : !strcmp(name, "hostname") ? short_hostname : NULL;
}

const char *schema_format(const char *name)
{
    static const struct { const char *name, *regex; } table[] = {
        { "date", DATE },
        { "time", TIME },
        { "date-time", DATE "T" TIME },
        { "duration", "P(?:[0-9]{1,9}W|(?:[0-9]{1,9}Y(?:[0-9]{1,9}M(?:[0-9]{1,9}D)?)?|[0-9]{1,9}M(?:[0-9]{1,9}D)?|[0-9]{1,9}D)"
                      "(?:T(?:[0-9]{1,9}H(?:[0-9]{1,9}M(?:[0-9]{1,9}S)?)?|[0-9]{1,9}M(?:[0-9]{1,9}S)?|[0-9]{1,9}S))?|"
                      "T(?:[0-9]{1,9}H(?:[0-9]{1,9}M(?:[0-9]{1,9}S)?)?|[0-9]{1,9}M(?:[0-9]{1,9}S)?|[0-9]{1,9}S))" },
        { "email", ATEXT "{1,31}(?:\\." ATEXT "{1,30})?@" LABEL "(?:\\." LABEL "){1,2}" },
        { "hostname", LABEL "(?:\\." LABEL "){0,2}" },
        { "ipv4", IPV4 },
        { "ipv6", IPV6 },
        { "uuid", "[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}" },
        { "uri", URI("") },
        { "uri-reference", URI("") "|" RELATIVE("") },
        { "iri", URI(UCS) },
        { "iri-reference", URI(UCS) "|" RELATIVE(UCS) },
        { "uri-template", "(?:[!#$&()*+,./0-9:;=?@A-Z[\\]_a-z~" UCS "-]|" PERCENT "|\\{[+#./;?&]?" VARIABLE "(?:,"
          VARIABLE ")*\\})*" },
        { "idn-email", "(?:" ATEXT "|[" UCS "]){1,31}(?:\\.(?:" ATEXT "|[" UCS "]){1,30})?@" LABEL "(?:\\." LABEL
          "){1,2}" },
        { "json-pointer", "(?:/(?:[^~/]|~[01])*)*" },
        { "relative-json-pointer", "(?:0|[1-9][0-9]{0,8})(?:#|(?:/(?:[^~/]|~[01])*)*)" },
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (!strcmp(name, table[i].name))
            return table[i].regex;
    return NULL;
}
