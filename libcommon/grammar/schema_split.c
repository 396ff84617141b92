/* schema_split.c - alternatives: one branch for each way to satisfy anyOf, oneOf, if, not and
 * the like. */
#include "libcommon/grammar/schema.h"

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

/* The members, and these as well. */
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

/* A branch for each alternative, which comes from the member `of`. */
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

/* Whether two schemas allow no value together with the members.  0 where that cannot be found
 * out. */
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

/* oneOf: each alternative without the values that others allow, too. */
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
            json_t *without = schema_negate(s, other, 0);
            s->e = e;
            if (!without) {
                s->failed = 0;
                schema_refuse(s, of->s, "oneOf", "its alternatives overlap, or cannot be shown not to: give each a property with a const of its own, or use anyOf");
                return;
            }
            extra[k++] = (struct member){ schema_keep(s, json_pack("{s:O}", "anyOf", without), other), MEMBER_HIDDEN,
                                          NULL };
        }
        if (!s->failed)
            schema_add_branch(s, to, compile_with(s, m, n, extra, k));
    }
}

/* Each entry of dependentRequired and dependentSchemas: without the property, or with the
 * property and its dependency. */
static json_t *dependencies(struct schema *s, json_t *m)
{
    static const char *const keys[] = { "dependentRequired", "dependentSchemas", "dependencies" };
    json_t *all = json_array(), *v;
    const char *name;
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
    return schema_keep(s, all, m);
}

static void split_if(struct schema *s, struct branch_list *to, const struct member *m, int n, const struct member *of)
{
    json_t *test = json_object_get(of->s, "if"), *yes = json_object_get(of->s, "then"),
           *no = json_object_get(of->s, "else"), *a;
    const json_t *scope = schema_scope_inside(of);
    size_t k;
    schema_add_branch(s, to, compile_with(s, m, n, (struct member[]){ { test, 0, scope },
                                                               { yes ? yes : json_true(), 0, scope } }, 2));
    json_t *alternatives = s->failed ? NULL : schema_negate(s, test, 0);
    json_array_foreach(alternatives, k, a)
        schema_add_branch(s, to, compile_with(s, m, n, (struct member[]){ { a, MEMBER_HIDDEN, NULL },
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

/* Alternatives for SOME_PROPERTY: each declared property may be the one, or a further property
 * is (schema_object() compiles that). */
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

/* Split off one keyword with alternatives: 1 if there was one. */
int schema_split(struct schema *s, struct member *m, int n, uint32_t *result)
{
    struct branch_list to = { 0 };
    for (int i = 0; i < n; i++) {
        json_t *x = m[i].s, *v;
        const unsigned done = m[i].done;
        if ((v = json_object_get(x, "anyOf")) && !(done & DONE_ANY_OF)) {
            m[i].done |= DONE_ANY_OF;
            any_with(s, &to, m, n, &m[i], v, done & MEMBER_HIDDEN);
        } else if ((v = json_object_get(x, "oneOf")) && !(done & DONE_ONE_OF)) {
            m[i].done |= DONE_ONE_OF;
            one_with(s, &to, m, n, &m[i], v);
        } else if ((v = json_object_get(x, "not")) && !(done & DONE_NOT)) {
            m[i].done |= DONE_NOT;
            json_t *alternatives = schema_negate(s, v, 0);
            if (alternatives)
                any_with(s, &to, m, n, &m[i], alternatives, MEMBER_HIDDEN);
        } else if (json_object_get(x, "if") && !(done & DONE_IF)) {
            m[i].done |= DONE_IF;
            if (!json_object_get(x, "then") && !json_object_get(x, "else")) {
                i--;                    /* an if alone has no effect; the member may have more to split */
                continue;
            }
            split_if(s, &to, m, n, &m[i]);
        } else if ((json_object_get(x, "dependentRequired") || json_object_get(x, "dependentSchemas") ||
                    json_object_get(x, "dependencies")) && !(done & DONE_DEPENDENT)) {
            m[i].done |= DONE_DEPENDENT;
            split_dependencies(s, &to, m, n, &m[i]);
        } else {
            continue;
        }
        *result = s->failed ? (uint32_t)EXPR_NONE : expr_any_of(&s->g->x, to.v, to.n);
        free(to.v);
        return 1;
    }
    /* after the others: they may declare more properties */
    for (int i = 0; i < n; i++) {
        if (!json_object_get(m[i].s, SOME_PROPERTY) || m[i].done & DONE_SOME)
            continue;
        m[i].done |= DONE_SOME;
        split_some(s, &to, m, n, i);
        *result = s->failed ? (uint32_t)EXPR_NONE : expr_any_of(&s->g->x, to.v, to.n);
        free(to.v);
        return 1;
    }
    return 0;
}
