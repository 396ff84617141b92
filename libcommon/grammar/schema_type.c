/* schema_type.c - one set of members without alternatives, type by type. */
#include "libcommon/grammar/schema.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Returns the schema of a member without the keywords that are handled elsewhere: alternatives that
 * schema_split() has split off, because one branch must not be checked against the others; and $ref
 * and allOf, whose schemas are members of their own.  own 1: also without enum, for a member whose
 * enum supplied the values to check. */
static json_t *left_of(struct schema *s, const struct member *m, int own)
{
    static const struct { unsigned done; const char *key[3]; } split[] = {
        { DONE_ANY_OF, { "anyOf" } }, { DONE_ONE_OF, { "oneOf" } }, { DONE_IF, { "if", "then", "else" } },
            { DONE_NOT, { "not" } },
        { DONE_DEPENDENT, { "dependentRequired", "dependentSchemas", "dependencies" } },
        { MEMBER_FLAT, { "$ref", "$dynamicRef", "allOf" } },
    };
    json_t *rest = NULL;
    for (size_t i = 0; i < sizeof split / sizeof *split; i++)
        for (size_t k = 0; k < 3 && m->done & split[i].done && split[i].key[k]; k++)
            if (json_object_get(m->s, split[i].key[k])) {
                rest = rest ? rest : json_copy(m->s);
                json_object_del(rest, split[i].key[k]);
            }
    if (own) {
        rest = rest ? rest : json_copy(m->s);
        json_object_del(rest, "enum");
    }
    return rest ? schema_keep(s, rest, m->s) : m->s;
}

json_t *schema_enumerated(struct schema *s, const struct member *m, int n)
{
    json_t *from = NULL, *to, *v;
    size_t k;
    int source = -1;
    for (int i = 0; i < n && !from; i++) {
        json_t *one = json_object_get(m[i].s, "const");
        from = one ? json_pack("[O]", one) : NULL;
        source = i;
    }
    for (int i = 0; i < n && !from; i++) {
        from = json_incref(json_object_get(m[i].s, "enum"));
        source = i;
    }
    if (!from)
        return NULL;
    to = json_array();
    json_t **left = malloc(((size_t)n + 1) * sizeof *left);
    if (!left)
        schema_nomem(s);
    for (int i = 0; left && i < n; i++)
        left[i] = left_of(s, &m[i], i == source && json_object_get(m[i].s, "enum") &&
                          !json_object_get(m[i].s, "const"));
    json_array_foreach(from, k, v) {
        int ok = left != NULL;
        for (int i = 0; i < n && ok > 0; i++)
            ok = schema_valid(s, left[i], v);
        if (ok > 0)
            json_array_append(to, v);
    }
    free(left);
    json_decref(from);
    return to;
}

/* Remove from e the values listed by NOT_VALUES of a member. */
static uint32_t without_values(struct schema *s, const struct member *m, int n, unsigned type, uint32_t e)
{
    json_t *v;
    size_t k;
    for (int i = 0; i < n; i++)
        json_array_foreach(json_object_get(m[i].s, NOT_VALUES), k, v) {
            if ((json_is_array(v) && type & TYPE_ARRAY) || (json_is_object(v) && type & TYPE_OBJECT))
                return schema_refuse(s, m[i].s, NULL, "a single array or object cannot be excluded");
            if ((json_is_null(v) && type & TYPE_NULL) || (json_is_boolean(v) && type & TYPE_BOOLEAN) ||
                (json_is_string(v) && type & TYPE_STRING))
                e = expr_both(&s->g->x, e, expr_not(&s->g->x, schema_values(s, &v, 1)));
            if (json_is_number(v) && type & (TYPE_INTEGER | TYPE_FRACTION)) {
                char text[64];
                double x = json_number_value(v);
                if (x == floor(x) && fabs(x) < 1e15)        /* also 1.0, 1e0 and -0 */
                    snprintf(text, sizeof text, x == 0 ? "-?0+(\\.0*)?([eE].*)?" : "%.0f(\\.0*)?", x);
                else
                    return schema_refuse(s, m[i].s, NULL, "a number with a fraction cannot be excluded");
                e = expr_both(&s->g->x, e, expr_not(&s->g->x, schema_regex(s, text, 0)));
                /* the number can also be written with an exponent: exclude all such texts */
                if (type & TYPE_FRACTION)
                    e = expr_both(&s->g->x, e, expr_not(&s->g->x, schema_regex(s, ".*[eE].*", 0)));
            }
        }
    return e;
}

uint32_t schema_compile_types(struct schema *s, const struct member *m, int n)
{
    struct exprs *x = &s->g->x;
    struct branch_list to = { 0 };
    unsigned types = TYPE_ALL;
    uint32_t scalars[4], n_scalars = 0, r;
    json_t *values = schema_enumerated(s, m, n);
    if (values) {
        json_t **v = malloc((json_array_size(values) + 1) * sizeof *v), *one;
        size_t i;
        if (!v) {
            json_decref(values);
            return schema_nomem(s);
        }
        json_array_foreach(values, i, one)
            v[i] = one;
        r = s->failed ? (uint32_t)EXPR_NONE : grammar_term(s->g, schema_values(s, v, json_array_size(values)));
        free(v);
        json_decref(values);
        return r;
    }
    for (int i = 0; i < n; i++)
        types &= schema_types(s, m[i].s);
    if (s->failed)
        return EXPR_NONE;
    if (types & TYPE_NULL)
        scalars[n_scalars++] = without_values(s, m, n, TYPE_NULL, expr_text(x, "null", 4));
    if (types & TYPE_BOOLEAN)
        scalars[n_scalars++] = without_values(s, m, n, TYPE_BOOLEAN,
                                              expr_either(x, expr_text(x, "false", 5), expr_text(x, "true", 4)));
    if (types & (TYPE_INTEGER | TYPE_FRACTION))
        scalars[n_scalars++] = without_values(s, m, n, types & (TYPE_INTEGER | TYPE_FRACTION),
                                              schema_number(s, m, n, (types & TYPE_INTEGER) != 0,
                                                            (types & TYPE_FRACTION) != 0));
    for (uint32_t i = 0; i < n_scalars; i++)
        schema_add_branch(s, &to, grammar_term(s->g, scalars[i]));
    if (types & TYPE_STRING && !s->failed) {
        uint32_t quote = expr_byte(x, '"', '"');
        r = expr_concat(x, quote, expr_concat(x, schema_string(s, m, n, 0), quote));
        schema_add_branch(s, &to, grammar_term(s->g, without_values(s, m, n, TYPE_STRING, r)));
    }
    if (types & TYPE_ARRAY && !s->failed) {
        without_values(s, m, n, TYPE_ARRAY, EXPR_NONE);
        schema_add_branch(s, &to, schema_array(s, m, n));
    }
    if (types & TYPE_OBJECT && !s->failed) {
        without_values(s, m, n, TYPE_OBJECT, EXPR_NONE);
        schema_add_branch(s, &to, schema_object(s, m, n));
    }
    r = s->failed ? (uint32_t)EXPR_NONE : expr_any_of(x, to.v, to.n);
    free(to.v);
    return r;
}
