/* schema_split.c - alternatives: one branch for each way to satisfy anyOf, oneOf, if, not and
 * the like. */
#include "libcommon/grammar/schema.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ONE_OF = 256 };

void schema_add_branch(struct schema *s, struct branch_list *to, uint32_t e)
{
    if (e == EXPR_NONE)
        return;
    if (to->n == to->room) {
        const uint32_t room = 2 * to->room + 16;
        uint32_t *v = realloc(to->v, room * sizeof *v);
        if (!v) {
            schema_nomem(s);
            return;
        }
        to->v = v;
        to->room = room;
    }
    to->v[to->n++] = e;
}

/* Compile the members together with some more. */
static uint32_t compile_with(struct schema *s, const struct member *m, int n, const struct member *extra, int n_extra)
{
    struct member *v = malloc((size_t)(n + n_extra + 1) * sizeof *v);
    if (!v)
        return schema_nomem(s);
    if (n)
        memcpy(v, m, (size_t)n * sizeof *v);
    if (n_extra)
        memcpy(v + n, extra, (size_t)n_extra * sizeof *v);
    uint32_t r = schema_compile(s, v, n + n_extra);
    free(v);
    return r;
}

/* Add a branch for each of the alternatives, which come from the member `of`. */
static void any_with(struct schema *s, struct branch_list *to, const struct member *m, int n, const struct member *of,
                     json_t *alternatives, unsigned flags)
{
    json_t *v;
    size_t i;
    json_array_foreach(alternatives, i, v) {
        if (s->failed)
            return;
        schema_add_branch(s, to, compile_with(s, m, n, &(struct member){ v, flags, schema_scope_inside(of) }, 1));
    }
}

/* From the alternatives of a negation, add the first one that any value matches.  Alternatives that
 * require no property are tried first. */
static void first_with(struct schema *s, struct branch_list *to, const struct member *m, int n, json_t *alternatives)
{
    json_t *v;
    size_t i;
    for (int required = 0; required < 2; required++)
        json_array_foreach(alternatives, i, v) {
            if (s->failed || to->n)
                return;
            if ((json_object_get(v, "required") != NULL) == required)
                schema_add_branch(s, to, compile_with(s, m, n, &(struct member){ v, MEMBER_HIDDEN, NULL }, 1));
            if (to->n && json_array_size(alternatives) > 1 && !s->n_partial++)
                s->partial_at = v;
        }
}

/* 1 if two schemas have no common value together with the members; 0 if they have one, or if that
 * cannot be determined. */
static int disjoint(struct schema *s, const struct member *m, int n, json_t *a, json_t *b)
{
    struct err *e = s->e, dropped;
    const uint64_t partial = s->n_partial;
    const int quiet = s->quiet, loose = s->loose;
    if (s->failed)
        return 0;
    s->e = &dropped;
    s->quiet = s->loose = 1;
    uint32_t r = compile_with(s, m, n, (struct member[]){ { a, 0, NULL }, { b, 0, NULL } }, 2);
    int failed = s->failed;
    s->quiet = quiet;
    s->loose = loose;
    s->e = e;
    s->failed = 0;
    return !failed && !s->g->x.failed && r == EXPR_NONE && s->n_partial == partial;
}

/* The schema that was made from another one earlier, or NULL. */
static json_t *made_before(struct schema *s, char kind, const json_t *of)
{
    char key[32];
    snprintf(key, sizeof key, "%c%p", kind, (const void *)of);
    const json_t *known = json_object_get(s->made, key);
    s->n_partial += (uint64_t)json_integer_value(json_array_get(known, 1));
    return json_array_get(known, 0);
}

/* Store a made schema, so that it is made only once.  partial: n_partial before it was made. */
static json_t *remember_made(struct schema *s, char kind, const json_t *of, json_t *made, uint64_t partial)
{
    char key[32];
    snprintf(key, sizeof key, "%c%p", kind, (const void *)of);
    if (made && json_object_set_new(s->made, key, json_pack("[O, i]", made, s->n_partial != partial)) != 0) {
        schema_nomem(s);
        return NULL;
    }
    return made;
}

/* A schema for the values that another one does not allow; NULL: schema_negate() failed. */
static json_t *negation_of(struct schema *s, json_t *schema)
{
    const uint64_t partial = s->n_partial;
    json_t *made = made_before(s, 'o', schema), *alternatives;
    if (made || !(alternatives = schema_negate(s, schema, 0)))
        return made;
    return remember_made(s, 'o', schema, schema_keep(s, json_pack("{s:O}", "anyOf", alternatives), schema), partial);
}

/* oneOf: add a branch for each alternative, without the values that other alternatives allow,
 * too. */
static void one_with(struct schema *s, struct branch_list *to, const struct member *m, int n, const struct member *of,
                     json_t *alternatives)
{
    size_t count = json_array_size(alternatives);
    if (count > MAX_ONE_OF) {
        schema_limit(s, of->s, "oneOf of more than 256 schemas");
        return;
    }
    for (size_t i = 0; i < count && !s->failed; i++) {
        struct member extra[MAX_ONE_OF + 1];
        int k = 0;
        json_t *v = json_array_get(alternatives, i);
        if (json_is_false(v))
            continue;
        extra[k++] = (struct member){ v, 0, schema_scope_inside(of) };
        for (size_t j = 0; j < count && !s->failed; j++) {
            json_t *other = json_array_get(alternatives, j);
            if (j == i || json_is_false(other) || disjoint(s, m, n, v, other))
                continue;
            struct err *e = s->e, why = { .msg = "" };
            s->e = &why;
            json_t *without = negation_of(s, other);
            s->e = e;
            if (!without) {
                s->failed = 0;
                schema_refuse(s, of->s, "oneOf", "its alternatives overlap, or cannot be shown not to: give each a property with a const of its own, or use anyOf");
                return;
            }
            extra[k++] = (struct member){ without, MEMBER_HIDDEN, NULL };
        }
        if (!s->failed)
            schema_add_branch(s, to, compile_with(s, m, n, extra, k));
    }
}

/* Make alternatives of each entry of dependentRequired and dependentSchemas: the property is
 * absent, or it is present and its dependency holds. */
static json_t *dependencies(struct schema *s, json_t *m)
{
    static const char *const keys[] = { "dependentRequired", "dependentSchemas", "dependencies" };
    json_t *all = made_before(s, 'd', m), *v;
    const char *name;
    if (all)
        return all;
    all = json_array();
    for (int k = 0; k < 3; k++)
        json_object_foreach(json_object_get(m, keys[k]), name, v) {
            json_t *without = json_pack("{s:{s:b}}", "properties", name, 0), *with;
            if (json_is_array(v))
                with = json_pack("{s:s, s:O, s:{s:{}}}", "type", "object", "required", v, "properties", name);
            else
                with = json_pack("{s:[O], s:s, s:{s:{}}}", "allOf", v, "type", "object", "properties", name);
            if (json_is_array(v)) {
                json_t *names = json_copy(v);
                json_array_append_new(names, json_string(name));
                json_object_set_new(with, "required", names);
            } else {
                json_object_set_new(with, "required", json_pack("[s]", name));
            }
            json_object_set_new(with, MADE, json_true());
            json_object_set_new(without, MADE, json_true());
            json_array_append_new(all, json_pack("{s:[o, o]}", "anyOf", without, with));
        }
    return remember_made(s, 'd', m, schema_keep(s, all, m), s->n_partial);
}

static void split_if(struct schema *s, struct branch_list *to, const struct member *m, int n, const struct member *of)
{
    json_t *test = json_object_get(of->s, "if"), *yes = json_object_get(of->s, "then"),
           *no = json_object_get(of->s, "else");
    const json_t *scope = schema_scope_inside(of);
    schema_add_branch(s, to, compile_with(s, m, n, (struct member[]){ { test, 0, scope },
                                                               { yes ? yes : json_true(), 0, scope } }, 2));
    json_t *negation = s->failed ? NULL : negation_of(s, test);
    if (negation)
        schema_add_branch(s, to, compile_with(s, m, n, (struct member[]){ { negation, MEMBER_HIDDEN, NULL },
                                                                   { no ? no : json_true(), 0, scope } }, 2));
}

static void split_dependencies(struct schema *s, struct branch_list *to, const struct member *m, int n,
                               const struct member *of)
{
    json_t *all = dependencies(s, of->s), *a;
    size_t k;
    int count = 0;
    struct member *extra = malloc((json_array_size(all) + 1) * sizeof *extra);
    if (!extra || !all) {
        schema_nomem(s);
    } else {
        json_array_foreach(all, k, a)
            extra[count++] = (struct member){ a, 0, schema_scope_inside(of) };
        schema_add_branch(s, to, compile_with(s, m, n, extra, count));
    }
    free(extra);
}

/* Add the alternatives of a SOME_PROPERTY: the property that it requires is one of the declared
 * ones, or a further one (which schema_object() compiles). */
static void split_some(struct schema *s, struct branch_list *to, const struct member *m, int n, int of)
{
    json_t *all = schema_some_declared(s, m, n, json_object_get(m[of].s, SOME_PROPERTY)), *a;
    struct member *others = malloc((size_t)n * sizeof *others);
    size_t k;
    if (!others) {
        schema_nomem(s);
        return;
    }
    memcpy(others, m, (size_t)of * sizeof *m);
    memcpy(others + of, m + of + 1, (size_t)(n - 1 - of) * sizeof *m);
    json_array_foreach(all, k, a)
        schema_add_branch(s, to, compile_with(s, others, n - 1, &(struct member){ a, MEMBER_HIDDEN, NULL }, 1));
    free(others);
    if (!s->failed)
        schema_add_branch(s, to, schema_compile(s, m, n));
}

/* Whether an alternative of a negation, "this property is absent", holds for every value: no member
 * declares the property, and no further ones are allowed. */
static int is_absent(struct schema *s, const struct member *m, int n, const json_t *alternative)
{
    json_t *properties = json_object_get(alternative, "properties"), *v, *x;
    const char *name = json_object_iter_key(json_object_iter(properties));
    size_t k;
    int closed = 0;
    if (json_object_size(properties) != 1 || !json_is_false(json_object_get(properties, name)) ||
        !json_object_get(alternative, MADE) || json_object_get(alternative, "required"))
        return 0;
    for (int i = 0; i < n; i++) {
        v = json_object_get(json_object_get(m[i].s, "properties"), name);
        if (json_is_false(v))
            return 1;
        if (v)
            return 0;
        json_array_foreach(json_object_get(m[i].s, "required"), k, x)
            if (json_is_string(x) && !strcmp(json_string_value(x), name))
                return 0;
        closed |= json_object_get(m[i].s, SOME_PROPERTY) == NULL;
    }
    return closed && !schema_may_have_further(s, m, n);
}

/* Whether everything that the other members allow satisfies one of the alternatives of a
 * negation. */
static int is_implied(struct schema *s, const struct member *m, int n, json_t *alternatives)
{
    unsigned types = TYPE_ALL;
    json_t *v;
    size_t k;
    for (int i = 0; i < n; i++) {
        /* the values of const and enum are checked one by one instead */
        if (json_object_get(m[i].s, "const") || json_object_get(m[i].s, "enum"))
            return 0;
        types &= schema_types(s, m[i].s);
    }
    if (types == TYPE_OBJECT && !s->failed)
        json_array_foreach(alternatives, k, v)
            if (is_absent(s, m, n, v))
                return 1;
    return 0;
}

static int is_negation(const struct member *m) { return m->done & MEMBER_HIDDEN && json_object_get(m->s, "anyOf"); }

static int has_dependencies(const json_t *x)
{
    return json_object_get(x, "dependentRequired") || json_object_get(x, "dependentSchemas") ||
           json_object_get(x, "dependencies");
}

/* Split member i, unless it has no (more) alternatives: 1 if it was split. */
static int split_member(struct schema *s, struct branch_list *to, struct member *m, int n, int i)
{
    json_t *x = m[i].s, *v;
    const unsigned done = m[i].done;
    if ((v = json_object_get(x, "anyOf")) && !(done & DONE_ANY_OF)) {
        m[i].done |= DONE_ANY_OF;
        if (s->brief && !s->loose && is_negation(&m[i]))
            first_with(s, to, m, n, v);
        else
            any_with(s, to, m, n, &m[i], v, done & MEMBER_HIDDEN);
    } else if ((v = json_object_get(x, "oneOf")) && !(done & DONE_ONE_OF)) {
        m[i].done |= DONE_ONE_OF;
        one_with(s, to, m, n, &m[i], v);
    } else if ((v = json_object_get(x, "not")) && !(done & DONE_NOT)) {
        m[i].done |= DONE_NOT;
        json_t *negation = negation_of(s, v);
        if (negation)
            schema_add_branch(s, to, compile_with(s, m, n, &(struct member){ negation, MEMBER_HIDDEN, NULL }, 1));
    } else if (json_object_get(x, "if") && !(done & DONE_IF)) {
        m[i].done |= DONE_IF;
        if (!json_object_get(x, "then") && !json_object_get(x, "else"))
            return split_member(s, to, m, n, i);        /* an if alone has no effect */
        split_if(s, to, m, n, &m[i]);
    } else if (has_dependencies(x) && !(done & DONE_DEPENDENT)) {
        m[i].done |= DONE_DEPENDENT;
        split_dependencies(s, to, m, n, &m[i]);
    } else {
        return 0;
    }
    return 1;
}

/* Split off one keyword with alternatives: 1 if there was one. */
int schema_split(struct schema *s, struct member *m, int n, uint32_t *result)
{
    struct branch_list to = { 0 };
    int split = 0;
    for (int i = 0; i < n && !split; i++)
        split = !is_negation(&m[i]) && split_member(s, &to, m, n, i);
    /* negations after the others, which may imply them */
    for (int i = 0; i < n && !split; i++) {
        if (!is_negation(&m[i]) || m[i].done & DONE_ANY_OF)
            continue;
        if (is_implied(s, m, n, json_object_get(m[i].s, "anyOf")))
            m[i].done |= DONE_ANY_OF;
        split = split_member(s, &to, m, n, i);
    }
    /* after the others: they may declare more properties */
    for (int i = 0; i < n && !split; i++) {
        if (!json_object_get(m[i].s, SOME_PROPERTY) || m[i].done & DONE_SOME)
            continue;
        m[i].done |= DONE_SOME;
        split_some(s, &to, m, n, i);
        split = 1;
    }
    if (split)
        *result = s->failed ? (uint32_t)EXPR_NONE : expr_any_of(&s->g->x, to.v, to.n);
    free(to.v);
    return split;
}
