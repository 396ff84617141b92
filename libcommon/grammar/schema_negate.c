/* schema_negate.c - schemas for the values that another schema does not allow. */
#include "libcommon/grammar/schema.h"

#include <stdlib.h>
#include <string.h>

static void add(json_t *to, json_t *made)
{
    if (made && json_is_object(made))
        json_object_set_new(made, MADE, json_true());
    json_array_append_new(to, made);
}

static json_t *negated(struct schema *s, json_t *schema, int depth);

/* Negate `properties` for one property: it exists and has a value that its schema does not
 * allow. */
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

/* Negate a keyword of one of two kinds: the negation is another keyword with the same number, or
 * with the next number.  Returns 1 if the keyword is neither. */
static int negate_bound(json_t *to, const json_t *schema, const char *key, json_t *v)
{
    static const struct { const char *key, *type, *negation; int by; const char *draft4; } bounds[] = {
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
        add(to, json_pack("{s:s, s:O}", "type", bounds[i].type, bounds[i].negation, v));
    else if (bounds[i].by > 0 || json_number_value(v) >= 1)
        add(to, json_pack("{s:s, s:f}", "type", bounds[i].type, bounds[i].negation,
                          json_number_value(v) + bounds[i].by));
    return 0;
}

/* Add the alternatives to another schema. */
static int extend_by(struct schema *s, json_t *to, json_t *other, int depth)
{
    json_t *alternatives = other ? negated(s, other, depth + 1) : NULL;
    int rc = alternatives ? 0 : -1;
    json_array_extend(to, alternatives);
    json_decref(alternatives);
    return rc;
}

/* Add a schema for arrays whose keyword `negation` (items or contains) describes the values that v
 * does not allow. */
static int negate_elements(struct schema *s, json_t *to, const char *negation, json_t *v, int depth)
{
    json_t *alternatives = negated(s, v, depth + 1);
    if (alternatives)
        add(to, json_pack("{s:s, s:{s:o}}", "type", "array", negation, "anyOf", alternatives));
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

/* Negate oneOf: none of the alternatives holds, or two of them do.  1: there are too many pairs. */
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

/* Negate if: the condition holds and `then` does not, or neither the condition nor `else` holds. */
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

/* Negate dependencies: the property is there, and its dependency is not satisfied. */
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

/* Negate prefixItems: one of the first items does not satisfy its schema. */
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

/* Negate contains: it matches fewer items than minContains, or more than maxContains. */
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

json_t *schema_keys(const json_t *object)
{
    json_t *to = json_array(), *v;
    const char *key;
    json_object_foreach((json_t *)(uintptr_t)object, key, v)
        json_array_append_new(to, json_string(key));
    return to;
}

/* Negate additionalProperties, patternProperties or propertyNames: some property does not satisfy
 * it. */
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
                          schema_keys(json_object_get(schema, "properties")), "not",
                          schema_keys(json_object_get(schema, "patternProperties")), "value", "anyOf", alternatives));
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

/* Negate `items: false` after prefixItems: there is at least one more item.  Returns 1 if v is a
 * schema other than true and false. */
static int negate_later_items(json_t *to, const json_t *first, const json_t *v)
{
    if (!json_is_false(v))
        return json_is_true(v) ? 0 : 1;
    add(to, json_pack("{s:s, s:I}", "type", "array", "minItems", (json_int_t)json_array_size(first) + 1));
    return 0;
}

/* Negate a keyword that holds schemas.  Returns 1 if the keyword is none of these, or the negation
 * would have a part that is no schema. */
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

/* A schema for the array or object v, part by part. */
static json_t *schema_of(const json_t *v)
{
    json_t *parts = json_is_array(v) ? json_array() : json_object(), *x;
    const char *name;
    size_t i;
    json_array_foreach(v, i, x)
        json_array_append_new(parts, json_pack("{s:O}", "const", x));
    json_object_foreach((json_t *)(uintptr_t)v, name, x)
        json_object_set_new(parts, name, json_pack("{s:O}", "const", x));
    if (json_is_array(v))
        return json_pack("{s:s, s:I, s:I, s:o}", "type", "array", "minItems", (json_int_t)json_array_size(v),
                         "maxItems", (json_int_t)json_array_size(v), "prefixItems", parts);
    return json_pack("{s:s, s:I, s:o, s:o}", "type", "object", "maxProperties", (json_int_t)json_object_size(v),
                     "required", schema_keys(v), "properties", parts);
}

/* Exclude these values: empty arrays and objects by their size, others part by part. */
static int negate_values(struct schema *s, json_t *to, const json_t *at, json_t *values, int depth)
{
    enum { MAX_EXCLUDED = 8 };          /* a limit on arrays and objects, because each adds several alternatives */
    json_t *made = json_pack("{s:[]}", NOT_VALUES), *all = json_pack("[O]", made), *v;
    size_t i;
    int rc = 0;
    json_array_foreach(values, i, v) {
        if ((json_is_array(v) && !json_array_size(v)) || (json_is_object(v) && !json_object_size(v))) {
            json_object_set_new(made, json_is_array(v) ? "minItems" : "minProperties", json_integer(1));
        } else if ((json_is_array(v) || json_is_object(v)) && rc == 0) {
            json_t *like = schema_keep(s, schema_of(v), at), *others = like ? negated(s, like, depth + 1) : NULL;
            if (others && json_array_size(all) > MAX_EXCLUDED)
                schema_refuse(s, at, NULL, "more than 8 arrays or objects cannot be excluded");
            rc = s->failed || !others ? -1 : json_array_append_new(all, json_pack("{s:O}", "anyOf", others));
            json_decref(others);
        } else {
            json_array_append(json_object_get(made, NOT_VALUES), v);
        }
    }
    if (json_array_size(all) > 1) {
        json_object_set_new(made, MADE, json_true());
        add(to, json_pack("{s:O}", "allOf", all));
    } else {
        add(to, json_incref(made));
    }
    json_decref(all);
    json_decref(made);
    return rc;
}

/* Negate a keyword that holds values.  1: the keyword is none of these. */
static int negate_plain(struct schema *s, json_t *to, const json_t *schema, const char *key, json_t *v, int depth)
{
    json_t *x;
    size_t i;
    if (!strcmp(key, "type"))
        return negate_type(s, to, schema);
    if (!strcmp(key, "const")) {
        json_t *values = json_pack("[O]", v);
        const int rc = negate_values(s, to, schema, values, depth);
        json_decref(values);
        return rc;
    } else if (!strcmp(key, "enum")) {
        return negate_values(s, to, schema, v, depth);
    } else if (!strcmp(key, "multipleOf") || !strcmp(key, NOT_MULTIPLE)) {
        if (!(json_number_value(v) > 0))
            return 1;
        add(to, json_pack("{s:s, s:O}", "type", "number", *key == 'm' ? NOT_MULTIPLE : "multipleOf", v));
    } else if (!strcmp(key, "format")) {
        const char *format = schema_exact_format(json_string_value(v));
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
        int rc = negate_plain(s, to, schema, key, v, depth);
        if (rc == 1)
            rc = negate_nested(s, to, schema, key, v, depth);
        if (rc == 1 && is_one_of(key, hard))
            left_out = key;
        if (rc < 0)
            goto fail;
    }
    /* If a part is left out, the negation allows less than it could, but nothing wrong. */
    if (left_out) {
        if (!json_array_size(to)) {
            schema_refuse(s, schema, left_out, NEGATION);
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
