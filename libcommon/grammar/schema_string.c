/* schema_string.c - strings: lengths, patterns and formats; and the sets of strings that names
 * satisfy. */
#include "libcommon/grammar/schema.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_PATTERN_STATES = 4096 };

/* Bounds of the length, and which of them the expression satisfies without a count. */
struct lengths { int32_t lo, hi; int sure_lo, sure_hi; };

static void imply(struct lengths *l, int32_t min, int32_t max)
{
    l->sure_lo |= min >= l->lo;
    l->sure_hi |= l->hi == EXPR_MANY || (max != EXPR_MANY && max <= l->hi);
}

/* The strings that the patterns and the format of a member allow.  anchored: the pattern must
 * match from the first character to the last, which needs fewer states. */
static uint32_t member_string(struct schema *s, const json_t *m, struct lengths *l, int anchored)
{
    struct exprs *x = &s->g->x;
    const json_t *pattern = json_object_get(m, "pattern"), *format = json_object_get(m, "format");
    uint32_t r = EXPR_ALL;
    int32_t min, max;
    json_t *not;
    size_t k;
    if (pattern) {
        const char *text = json_string_value(pattern);
        const size_t size = json_string_length(pattern);
        r = expr_both(x, r, anchored ? schema_regex_n(s, m, "pattern", text, size, 0, &min, &max)
                                     : schema_pattern(s, m, "pattern", text, size, &min, &max));
        imply(l, min, max);
    }
    json_array_foreach(json_object_get(m, NOT_PATTERN), k, not)
        r = expr_both(x, r, expr_not(x, schema_pattern(s, m, "pattern", json_string_value(not), json_string_length(not),
                                                       NULL, NULL)));
    if (format && schema_format(json_string_value(format)) && !s->failed) {
        const char *text = schema_format(json_string_value(format)),
                   *less = schema_short_format(json_string_value(format));
        uint32_t p = schema_regex_cached(s, text, strlen(text), 1, 0, &min, &max, s->e);
        const int fits = min >= l->lo && (l->hi == EXPR_MANY || (max != EXPR_MANY && max <= l->hi));
        /* Counting two lengths at once has too many states. */
        if (!fits && p != EXPR_NONE && less && !s->loose) {
            if (l->lo > 63)
                return schema_refuse(s, m, "minLength", "above 63 it cannot be enforced together with this format");
            p = schema_regex_cached(s, less, strlen(less), 1, 0, NULL, NULL, s->e);
            l->hi = l->hi == EXPR_MANY || l->hi > 63 ? 63 : l->hi;
        } else {
            imply(l, min, max);
        }
        if (p == EXPR_NONE)
            s->failed = 1;
        r = expr_both(x, r, p);
    }
    return r;
}

/* Set *result to r limited to lengths between the bounds; -1 if that has too many states, and
 * *result is not set. */
static int within_lengths(struct schema *s, uint32_t r, const struct lengths *l, uint32_t *result)
{
    struct exprs *x = &s->g->x;
    uint32_t bounded = r;
    if (!l->sure_hi && l->hi != EXPR_MANY) {
        bounded = exprs_settle(x, r, MAX_PATTERN_STATES);
        if (expr_within(x, bounded, l->hi, MAX_PATTERN_STATES, &bounded) != 0)
            return -1;
    }
    *result = l->sure_lo || l->lo == 0 ? bounded
                                       : expr_both(x, bounded, expr_repeat(x, s->plain_char, l->lo, EXPR_MANY));
    return 0;
}

uint32_t schema_string(struct schema *s, const struct member *m, int n, int canonical)
{
    struct exprs *x = &s->g->x;
    struct lengths given = { .lo = 0, .hi = EXPR_MANY };
    uint32_t r = EXPR_ALL;
    canonical |= s->one_form;
    for (int i = 0; i < n; i++) {
        int64_t least = schema_count(s, m[i].s, "minLength"), most = schema_count(s, m[i].s, "maxLength");
        given.lo = larger(given.lo, least);
        if (most >= 0 && (given.hi == EXPR_MANY || most < given.hi))
            given.hi = (int32_t)most;
        canonical |= json_array_size(json_object_get(m[i].s, NOT_PATTERN)) ||
                     json_array_size(json_object_get(m[i].s, NOT_VALUES));
    }
    if (given.hi != EXPR_MANY && given.lo > given.hi)
        return EXPR_NONE;
    for (int anchored = 0; anchored < 2 && !s->failed; anchored++) {
        struct lengths l = given;
        r = EXPR_ALL;
        for (int i = 0; i < n && !s->failed; i++)
            r = expr_both(x, r, member_string(s, m[i].s, &l, anchored));
        if (s->failed)
            break;
        if (r == EXPR_ALL)
            return expr_repeat(x, canonical ? s->plain_char : s->any_char, l.lo, l.hi);
        if (canonical)
            r = expr_both(x, r, expr_repeat(x, s->plain_char, 0, EXPR_MANY));
        if (within_lengths(s, r, &l, &r) == 0)
            return r;
        if (s->loose)
            break;
    }
    return s->failed ? (uint32_t)EXPR_NONE : schema_limit(s, m[0].s, "its pattern has too many states for its lengths to be counted next to it");
}

/* ---- sets of strings ---- */

/* The strings that a list of schemas allows: the union for anyOf, the intersection for allOf, and
 * for oneOf the strings that exactly one element allows. */
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

/* The strings that the keywords for values allow. */
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
        const char *text = exact ? schema_exact_format(json_string_value(format))
                                 : schema_format(json_string_value(format));
        r = text ? expr_both(x, r, schema_regex(s, text, 1)) : schema_refuse(s, schema, "format", NEGATION);
    }
    if (values) {
        uint32_t any = EXPR_NONE;
        json_array_foreach(values, i, v)
            if (json_is_string(v)) {
                struct json_text b = { 0 };
                text_put_string(&b, json_string_value(v), json_string_length(v));
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
