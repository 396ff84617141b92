#include "libcommon/grammar/schema.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/base/utf8.h"

enum { MAX_NESTING = 200, MAX_SETS = 20000, MAX_MEMBERS = 512, MAX_SCHEMA = 8 << 20, MAX_ONE_OF = 256 };

/* ---- errors ---- */

struct path { char text[256]; size_t n; };

static void path_add(struct path *p, const char *key)
{
    if (p->n + 2 >= sizeof p->text)
        return;
    p->text[p->n++] = '/';
    for (; *key && p->n + 3 < sizeof p->text; key++) {
        if (*key == '~' || *key == '/') {
            p->text[p->n++] = '~';
            p->text[p->n++] = *key == '~' ? '0' : '1';
        } else {
            p->text[p->n++] = *key;
        }
    }
    p->text[p->n] = '\0';
}

/* Where in the document a value stands: its JSON pointer in p. */
static int find_path(json_t *in, const json_t *what, struct path *p, int depth)
{
    size_t n = p->n, i;
    const char *key;
    json_t *v;
    char number[24];
    if (in == what)
        return 1;
    if (depth > MAX_NESTING * 10)
        return 0;
    json_object_foreach(in, key, v)
        if (json_is_object(v) || json_is_array(v)) {
            path_add(p, key);
            if (find_path(v, what, p, depth + 1))
                return 1;
            p->text[p->n = n] = '\0';
        }
    json_array_foreach(in, i, v)
        if (json_is_object(v) || json_is_array(v)) {
            snprintf(number, sizeof number, "%zu", i);
            path_add(p, number);
            if (find_path(v, what, p, depth + 1))
                return 1;
            p->text[p->n = n] = '\0';
        }
    return 0;
}

/* *p: the JSON pointer of the keyword.  Returns the schema of the document that it is in. */
static const json_t *place(struct schema *s, const json_t *at, const char *keyword, struct path *p)
{
    memset(p, 0, sizeof *p);
    /* what was made stands where that stands of which it was made; later ones may come from
     * earlier ones */
    for (size_t i = s->n_made; at && i--;) {
        struct path inside = { .n = 0 };
        if (find_path(s->made_from[2 * i], at, &inside, 0))
            at = s->made_from[2 * i + 1];
    }
    find_path(s->root, at, p, 0);
    if (keyword)
        path_add(p, keyword);
    while (p->n && utf8_valid(p->text, p->n) != p->n)
        p->text[--p->n] = '\0';
    for (size_t i = 0; i < p->n; i++)
        if ((unsigned char)p->text[i] < 0x20)
            p->text[i] = '?';
    return at;
}

static uint32_t report(struct schema *s, const json_t *at, const char *keyword, enum err_code code, const char *why)
{
    struct path p;
    if (!s->failed && !s->quiet) {
        at = place(s, at, keyword, &p);
        err_set(s->e, code, p.n ? "schema: %s: %s" : "schema: %s%s", p.text, why);
        if (s->refusal && code == ERR_UNSUPPORTED) {
            s->refusal->at = at;
            snprintf(s->refusal->keyword, sizeof s->refusal->keyword, "%s", keyword ? keyword : "");
        }
    }
    s->failed = 1;
    return EXPR_NONE;
}

uint32_t schema_refuse(struct schema *s, const json_t *at, const char *keyword, const char *why)
{
    return report(s, at, keyword, ERR_UNSUPPORTED, why);
}
uint32_t schema_limit(struct schema *s, const json_t *at, const char *why)
{
    return report(s, at, NULL, ERR_LIMIT, why);
}

uint32_t schema_nomem(struct schema *s)
{
    if (!s->failed)
        err_nomem(s->e, "a schema");
    s->failed = 1;
    return EXPR_NONE;
}

json_t *schema_keep(struct schema *s, json_t *made, const json_t *from)
{
    if (s->n_made == s->made_room) {
        size_t room = 2 * s->made_room + 64;
        json_t **p = realloc(s->made_from, 2 * room * sizeof *p);
        if (!p) {
            json_decref(made);
            schema_nomem(s);
            return NULL;
        }
        s->made_from = p;
        s->made_room = room;
    }
    if (!made || json_array_append_new(s->owned, made) != 0) {
        schema_nomem(s);
        return NULL;
    }
    s->made_from[2 * s->n_made] = made;
    s->made_from[2 * s->n_made++ + 1] = (json_t *)(uintptr_t)from;
    return made;
}

/* ---- regular expressions ---- */

uint32_t schema_regex_cached(struct schema *s, const char *text, size_t size, int json, int search, int32_t *min,
                             int32_t *max, struct err *e)
{
    char few[256], *key = size + 4 > sizeof few ? malloc(size + 4) : few;
    int32_t lo, hi;
    if (!key)
        return err_nomem(e, "a schema"), (uint32_t)EXPR_NONE;
    key[0] = json ? 'j' : 't';
    key[1] = (char)('0' + search);
    memcpy(key + 2, text, size);
    key[size + 2] = '\0';
    const json_t *known = json_object_get(s->regexes, key);
    uint32_t r = (uint32_t)json_integer_value(json_array_get(known, 0));
    lo = (int32_t)json_integer_value(json_array_get(known, 1));
    hi = (int32_t)json_integer_value(json_array_get(known, 2));
    if (known)
        s->g->x.meter.work += 10;
    else if ((r = regex_compile(s->g, text, size, json, search, &lo, &hi, e)) != EXPR_NONE)
        json_object_set_new(s->regexes, key, json_pack("[I, i, i]", (json_int_t)r, lo, hi));    /* without memory, compiled again */
    if (min)
        *min = lo;
    if (max)
        *max = hi;
    if (key != few)
        free(key);
    return r;
}

uint32_t schema_regex(struct schema *s, const char *text, int json)
{
    struct err why;
    return schema_regex_cached(s, text, strlen(text), json, 0, NULL, NULL, s->failed ? &why : s->e);
}

uint32_t schema_regex_n(struct schema *s, const json_t *at, const char *keyword, const char *text, size_t size,
                        int search, int32_t *min, int32_t *max)
{
    struct err e = { .msg = "" };
    uint32_t r = schema_regex_cached(s, text, size, 1, search, min, max, &e);
    if (r != EXPR_NONE)
        return r;
    return report(s, at, keyword, e.code, e.msg);
}

uint32_t schema_pattern(struct schema *s, const json_t *at, const char *keyword, const char *text, size_t size,
                        int32_t *min, int32_t *max)
{
    return schema_regex_n(s, at, keyword, text, size, 1, min, max);
}

/* ---- keywords ---- */

int64_t schema_count(struct schema *s, const json_t *schema, const char *keyword)
{
    const json_t *v = json_object_get(schema, keyword);
    if (!v)
        return -1;
    double x = json_number_value(v);
    if (!json_is_number(v) || x < 0 || x != floor(x)) {
        schema_refuse(s, schema, keyword, "expected a whole number of at least 0");
        return -1;
    }
    return x > 1e9 ? 1000000000 : (int64_t)x;
}

static unsigned type_of_name(const char *name)
{
    static const struct { const char *name; unsigned type; } table[] = {
        { "null", TYPE_NULL }, { "boolean", TYPE_BOOLEAN }, { "integer", TYPE_INTEGER },
            { "number", TYPE_INTEGER | TYPE_FRACTION },
        { "string", TYPE_STRING }, { "array", TYPE_ARRAY }, { "object", TYPE_OBJECT },
    };
    for (size_t i = 0; name && i < sizeof table / sizeof *table; i++)
        if (!strcmp(name, table[i].name))
            return table[i].type;
    return 0;
}

unsigned schema_types(struct schema *s, const json_t *schema)
{
    const json_t *t = json_object_get(schema, "type"), *v;
    unsigned types = 0, one;
    size_t i;
    if (!t)
        return TYPE_ALL;
    if (json_object_get(schema, ONLY_FRACTION))
        return TYPE_FRACTION;
    if (json_is_string(t)) {
        types = type_of_name(json_string_value(t));
    } else {
        json_array_foreach(t, i, v) {
            if (!(one = type_of_name(json_string_value(v))))
                t = NULL;
            types |= one;
            if (!t)
                break;
        }
    }
    if (!t || !types) {
        schema_refuse(s, schema, "type", "expected null, boolean, integer, number, string, array or object, or a list of them");
        return 0;
    }
    return types | (json_is_true(json_object_get(schema, "nullable")) ? TYPE_NULL : 0u);
}

/* What cannot be done anywhere; types of keywords that later code relies on. */
static int check_keywords(struct schema *s, json_t *m)
{
    static const struct { const char *key; char kind; } table[] = {     /* o object, a array of schemas, s string, S schema, b boolean, A any array */
        { "properties", 'o' }, { "patternProperties", 'o' }, { "additionalProperties", 'S' }, { "propertyNames", 'S' },
            { "required", 'A' }, { "dependentRequired", 'o' },
        { "dependentSchemas", 'o' }, { "dependencies", 'o' }, { "items", 'I' }, { "additionalItems", 'S' },
        { "prefixItems", 'a' }, { "contains", 'S' }, { "uniqueItems", 'b' }, { "enum", 'A' },
        { "anyOf", 'a' }, { "oneOf", 'a' }, { "allOf", 'a' }, { "not", 'S' }, { "if", 'S' }, { "then", 'S' },
        { "else", 'S' }, { "$ref", 's' }, { "$dynamicRef", 's' }, { "pattern", 's' }, { "format", 's' },
        { "unevaluatedProperties", 'S' }, { "unevaluatedItems", 'S' },
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        json_t *v = json_object_get(m, table[i].key), *x;
        int ok = 1;
        size_t k;
        if (!v)
            continue;
        switch (table[i].kind) {
        case 'o': ok = json_is_object(v); break;
        case 'A': ok = json_is_array(v); break;
        case 's': ok = json_is_string(v); break;
        case 'b': ok = json_is_boolean(v); break;
        case 'S': ok = json_is_object(v) || json_is_boolean(v); break;
        default:
            ok = json_is_array(v) || (table[i].kind == 'I' && (json_is_object(v) || json_is_boolean(v)));
            json_array_foreach(v, k, x)
                ok &= json_is_object(x) || json_is_boolean(x);
        }
        if (!ok) {
            schema_refuse(s, m, table[i].key, "a value of the wrong kind");
            return -1;
        }
    }
    if (json_object_get(m, "$recursiveRef")) {
        schema_refuse(s, m, "$recursiveRef", "cannot be enforced; use $ref");
        return -1;
    }
    return 0;
}

/* ---- sets of members ---- */

struct members { struct member *v; int n, room; };

static int add_member(struct schema *s, struct members *to, const struct member *m)
{
    for (int i = 0; i < to->n; i++)
        if (to->v[i].s == m->s) {
            to->v[i].done |= m->done;
            return 0;
        }
    if (to->n == MAX_MEMBERS) {
        schema_limit(s, m->s, "more than 512 schemas for one place");
        return -1;
    }
    if (to->n == to->room) {
        const int room = 2 * to->room + 8;
        struct member *v = realloc(to->v, (size_t)room * sizeof *v);
        if (!v) {
            schema_nomem(s);
            return -1;
        }
        to->v = v;
        to->room = room;
    }
    to->v[to->n] = *m;
    to->v[to->n++].done |= MEMBER_FLAT;
    return 1;
}

static int is_unevaluated(const json_t *schema)
{
    const json_t *p = json_object_get(schema, "unevaluatedProperties"),
                 *i = json_object_get(schema, "unevaluatedItems");
    return (p && !json_is_true(p)) || (i && !json_is_true(i));
}

/* The scope of what a member applies in place. */
static const json_t *scope_inside(const struct member *m) { return is_unevaluated(m->s) ? m->s : m->scope; }

int schema_evaluates(const struct member *m, int n, const struct member *x, const struct member *u)
{
    if (x->done & MEMBER_HIDDEN || json_object_get(x->s, MADE))
        return 0;
    const json_t *scope = x->s == u->s ? u->s : x->scope;
    for (int hop = 0; scope && scope != u->s && hop < n; hop++) {
        int i = 0;
        while (i < n && m[i].s != scope)
            i++;
        scope = i < n ? m[i].scope : NULL;
    }
    return scope == u->s;
}

/* Does it only lead to other schemas?  Then it need not be a member, and equal targets are
 * compiled once. */
static int is_wrapper(json_t *m)
{
    static const char *const passive[] = { "$ref", "allOf", "title", "description", "default", "examples", "$comment",
                                           "$schema", "$id", "$anchor", "$defs", "definitions", "deprecated",
                                           "readOnly", "writeOnly" };
    const char *key;
    json_t *v;
    if (json_object_size(m) > 8)
        return 0;
    json_object_foreach(m, key, v) {
        size_t i = 0;
        while (i < sizeof passive / sizeof *passive && strcmp(key, passive[i]) != 0)
            i++;
        if (i == sizeof passive / sizeof *passive)
            return 0;
    }
    return 1;
}

/* m and all that $ref and allOf add to it: 0, 1 if nothing can satisfy it, -1. */
static int flatten(struct schema *s, struct members *to, const struct member *given, int depth)
{
    json_t *m = given->s, *v;
    size_t i;
    int rc;
    if (json_is_true(m))
        return 0;
    if (json_is_false(m))
        return 1;
    if (depth > MAX_NESTING) {
        schema_limit(s, m, "nested too deep");
        return -1;
    }
    s->g->x.meter.work += 10;
    const char *ref = json_string_value(json_object_get(m, "$ref")),
               *dynamic = json_string_value(json_object_get(m, "$dynamicRef"));
    if (schema_ref_alone(s, m)) {
        json_t *target = schema_resolve(s, m, ref);
        return target ? flatten(s, to, &(struct member){ target, given->done, given->scope }, depth + 1) : -1;
    }
    if (check_keywords(s, m) != 0)
        return -1;
    if (!is_wrapper(m)) {
        if ((rc = add_member(s, to, given)) <= 0)
            return rc;
    }
    struct member inside = { NULL, given->done & MEMBER_HIDDEN, scope_inside(given) };
    for (int k = 0; k < 2; k++) {
        if (!(k ? dynamic : ref))
            continue;
        if (!(inside.s = k ? schema_resolve_dynamic(s, m, dynamic) : schema_resolve(s, m, ref)))
            return -1;
        if ((rc = flatten(s, to, &inside, depth + 1)) != 0)
            return rc;
    }
    json_array_foreach(json_object_get(m, "allOf"), i, v) {
        inside.s = v;
        if ((rc = flatten(s, to, &inside, depth + 1)) != 0)
            return rc;
    }
    return 0;
}

static int by_member(const void *a, const void *b)
{
    uintptr_t x = (uintptr_t)((const struct member *)a)->s, y = (uintptr_t)((const struct member *)b)->s;
    return x < y ? -1 : x > y;
}

/* ---- splitting ---- */

struct branches { uint32_t *v; uint32_t n, room; };

static void add_branch(struct schema *s, struct branches *to, uint32_t e)
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
static void any_with(struct schema *s, struct branches *to, const struct member *m, int n, const struct member *of,
                     json_t *alternatives, unsigned flags)
{
    json_t *v;
    size_t i;
    json_array_foreach(alternatives, i, v) {
        if (s->failed)
            return;
        add_branch(s, to, compile_with(s, m, n, &(struct member){ v, flags, scope_inside(of) }, 1));
    }
}

/* Do two schemas, with the members, allow nothing together?  Answers no where it cannot be found
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

/* Exactly one: each alternative, without what others allow too. */
static void one_with(struct schema *s, struct branches *to, const struct member *m, int n, const struct member *of,
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
        extra[k++] = (struct member){ v, 0, scope_inside(of) };
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
            add_branch(s, to, compile_with(s, m, n, extra, k));
    }
}

/* Each entry of dependentRequired and dependentSchemas: without the property, or with it and
 * what it asks for. */
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

static void split_if(struct schema *s, struct branches *to, const struct member *m, int n, const struct member *of)
{
    json_t *test = json_object_get(of->s, "if"), *yes = json_object_get(of->s, "then"),
           *no = json_object_get(of->s, "else"), *a;
    const json_t *scope = scope_inside(of);
    size_t k;
    add_branch(s, to, compile_with(s, m, n, (struct member[]){ { test, 0, scope },
                                                               { yes ? yes : json_true(), 0, scope } }, 2));
    json_t *alternatives = s->failed ? NULL : schema_negate(s, test, 0);
    json_array_foreach(alternatives, k, a)
        add_branch(s, to, compile_with(s, m, n, (struct member[]){ { a, MEMBER_HIDDEN, NULL },
                                                                   { no ? no : json_true(), 0, scope } }, 2));
}

static void split_dependencies(struct schema *s, struct branches *to, const struct member *m, int n,
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
            extra[count++] = (struct member){ a, 0, scope_inside(of) };
        add_branch(s, to, compile_with(s, m, n, extra, count));
    }
    free(extra);
}

/* Alternatives for SOME_PROPERTY: each declared property that may be the one; or it is a further
 * one, which schema_object() sees to. */
static void split_some(struct schema *s, struct branches *to, const struct member *m, int n, int of)
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
        add_branch(s, to, compile_with(s, others, n - 1, &(struct member){ a, MEMBER_HIDDEN, NULL }, 1));
    free(others);
    if (!s->failed)
        add_branch(s, to, schema_compile(s, m, n));
}

/* Split off one keyword with alternatives: 1 if there was one. */
static int split(struct schema *s, struct member *m, int n, uint32_t *result)
{
    struct branches to = { 0 };
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
                i--;                    /* says nothing; the member may have more to split */
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

/* ---- one set of members without alternatives ---- */

/* What is left of a member when its values need not be looked for in itself (own), without the
 * keywords that were split off and those whose schemas are members, too: the branch has members
 * for these, and what only tries two alternatives together must not hear of the others. */
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

/* Texts without the values that NOT_VALUES of a member names. */
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
                /* other ways to write it have an exponent */
                if (type & TYPE_FRACTION)
                    e = expr_both(&s->g->x, e, expr_not(&s->g->x, schema_regex(s, ".*[eE].*", 0)));
            }
        }
    return e;
}

static uint32_t compile_types(struct schema *s, const struct member *m, int n)
{
    struct exprs *x = &s->g->x;
    struct branches to = { 0 };
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
        add_branch(s, &to, grammar_term(s->g, scalars[i]));
    if (types & TYPE_STRING && !s->failed) {
        uint32_t quote = expr_byte(x, '"', '"');
        r = expr_concat(x, quote, expr_concat(x, schema_string(s, m, n, 0), quote));
        add_branch(s, &to, grammar_term(s->g, without_values(s, m, n, TYPE_STRING, r)));
    }
    if (types & TYPE_ARRAY && !s->failed) {
        without_values(s, m, n, TYPE_ARRAY, EXPR_NONE);
        add_branch(s, &to, schema_array(s, m, n));
    }
    if (types & TYPE_OBJECT && !s->failed) {
        without_values(s, m, n, TYPE_OBJECT, EXPR_NONE);
        add_branch(s, &to, schema_object(s, m, n));
    }
    r = s->failed ? (uint32_t)EXPR_NONE : expr_any_of(x, to.v, to.n);
    free(to.v);
    return r;
}

static uint32_t hash_members(const struct member *m, int n)
{
    uint64_t h = 14695981039346656037u;
    for (int i = 0; i < n; i++)
        h = (h ^ (uintptr_t)m[i].s ^ (uint64_t)m[i].done << 56 ^ (uintptr_t)m[i].scope << 20) * 1099511628211u;
    return (uint32_t)(h >> 32 ^ h);
}

static struct memo *recall(struct schema *s, const struct member *m, int n)
{
    uint32_t h = hash_members(m, n);
    if (2 * s->n_memo >= s->n_table) {
        uint32_t size = s->n_table ? 2 * s->n_table : 256, *t = calloc(size, sizeof *t);
        if (!t) {
            schema_nomem(s);
            return NULL;
        }
        for (uint32_t i = 0; i < s->n_memo; i++) {
            uint32_t k = hash_members(s->keys + s->memo[i].first, (int)s->memo[i].n);
            while (t[k & (size - 1)])
                k++;
            t[k & (size - 1)] = i + 1;
        }
        free(s->table);
        s->table = t;
        s->n_table = size;
    }
    for (; s->table[h & (s->n_table - 1)]; h++) {
        struct memo *x = &s->memo[s->table[h & (s->n_table - 1)] - 1];
        int same = x->n == (uint32_t)n && !x->dropped && x->loose == s->loose;
        for (int i = 0; same && i < n; i++)
            same = s->keys[x->first + (uint32_t)i].s == m[i].s && s->keys[x->first + (uint32_t)i].done == m[i].done &&
                   s->keys[x->first + (uint32_t)i].scope == m[i].scope;
        if (same)
            return x;
    }
    if (s->n_memo == s->memo_room) {
        const uint32_t room = 2 * s->memo_room + 64;
        struct memo *v = realloc(s->memo, room * sizeof *v);
        if (!v) {
            schema_nomem(s);
            return NULL;
        }
        s->memo = v;
        s->memo_room = room;
    }
    if (s->n_keys + (uint32_t)n > s->keys_room) {
        const uint32_t room = 2 * s->keys_room + 64 + (uint32_t)n;
        struct member *v = realloc(s->keys, room * sizeof *v);
        if (!v) {
            schema_nomem(s);
            return NULL;
        }
        s->keys = v;
        s->keys_room = room;
    }
    if (n)
        memcpy(s->keys + s->n_keys, m, (size_t)n * sizeof *m);
    s->memo[s->n_memo] = (struct memo){ s->n_keys, (uint32_t)n, EXPR_NONE, -1, 0, 0, 0, s->loose };
    s->n_keys += (uint32_t)n;
    s->table[h & (s->n_table - 1)] = ++s->n_memo;
    return &s->memo[s->n_memo - 1];
}

uint32_t schema_compile(struct schema *s, const struct member *given, int n)
{
    struct members all = { 0 };
    uint32_t r = EXPR_NONE;
    int rc = 0;
    if (s->failed)
        return EXPR_NONE;
    if (s->depth > MAX_NESTING)
        return schema_limit(s, n ? given[0].s : s->root, "nested too deep");
    for (int i = 0; i < n && rc == 0; i++)
        rc = given[i].done & MEMBER_FLAT ? (add_member(s, &all, &given[i]) < 0 ? -1 : 0)
                                         : flatten(s, &all, &given[i], 0);
    if (rc != 0)
        goto done;
    struct member *sorted = malloc(((size_t)all.n + 1) * sizeof *sorted);
    uint32_t before = s->n_memo;
    struct memo *memo = NULL;
    if (sorted && all.n)
        memcpy(sorted, all.v, (size_t)all.n * sizeof *sorted);
    if (sorted && all.n > 1)
        qsort(sorted, (size_t)all.n, sizeof *sorted, by_member);
    if (sorted)
        memo = recall(s, sorted, all.n);
    else
        schema_nomem(s);
    free(sorted);
    if (!memo)
        goto done;
    if (s->n_memo == before) {
        if (memo->rule >= 0) {
            memo->used = 1;
            r = expr_rule(&s->g->x, memo->rule);
        } else {
            r = memo->result;
        }
        s->n_partial += (uint64_t)memo->partial;
        goto done;
    }
    if (++s->n_sets > MAX_SETS) {
        schema_limit(s, n ? given[0].s : s->root, "too many combinations of alternatives");
        goto done;
    }
    if (s->g->x.meter.work > s->g->options.max_work || s->g->x.failed) {
        if (grammar_check_work(s->g, s->failed ? NULL : s->e) != 0)
            s->failed = 1;
        goto done;
    }
    uint32_t index = (uint32_t)(memo - s->memo);
    int rule = grammar_rule(s->g);
    const uint64_t partial = s->n_partial;
    memo->rule = rule;
    s->depth++;
    if (!split(s, all.v, all.n, &r))
        r = compile_types(s, all.v, all.n);
    s->depth--;
    memo = &s->memo[index];
    memo->partial = s->n_partial != partial;
    if (memo->used) {                   /* recursive */
        s->g->rule[rule] = r;
        r = r == EXPR_NONE ? r : expr_rule(&s->g->x, rule);
        if (s->failed || r == EXPR_NONE)
            memo->rule = -1, memo->result = EXPR_NONE;
    } else {
        memo->rule = -1;
        memo->result = r;
    }
    if (s->failed)                      /* a failed try must not be remembered as empty */
        memo->dropped = 1;
done:
    free(all.v);
    return s->failed ? (uint32_t)EXPR_NONE : r;
}

static void release(struct schema *s)
{
    json_decref(s->root);
    json_decref(s->owned);
    json_decref(s->regexes);
    schema_refs_close(&s->refs);
    free(s->made_from);
    free(s->memo);
    free(s->keys);
    free(s->table);
}

/* Does uniqueItems stand anywhere in the document? */
static int has_unique(json_t *v)
{
    const char *key;
    json_t *x;
    size_t i;
    json_object_foreach(v, key, x)
        if ((json_is_true(x) && !strcmp(key, "uniqueItems")) || has_unique(x))
            return 1;
    json_array_foreach(v, i, x)
        if (has_unique(x))
            return 1;
    return 0;
}

static int init(struct schema *s, struct grammar *g, struct err *e)
{
    static const struct char_range every = { 1, 0x10FFFF };
    struct exprs *x = &g->x;
    memset(s, 0, sizeof *s);
    s->g = g;
    s->e = e;
    s->owned = json_array();
    s->regexes = json_object();
    if (!s->owned || !s->regexes)
        return err_nomem(e, "a schema");
    s->plain_char = expr_json_chars(x, &every, 1);
    s->any_char = schema_regex(s, "[^\"\\\\\\x00-\\x1F]|\\\\(?:[\"\\\\/bfnrt]|u(?:[1-9A-CE-Fa-ce-f][0-9A-Fa-f]{3}|0[1-9A-Fa-f][0-9A-Fa-f]{2}|00[1-9A-Fa-f][0-9A-Fa-f]|000[1-9A-Fa-f]|"
                                  "[Dd][0-7][0-9A-Fa-f]{2}|[Dd][89ABab][0-9A-Fa-f]{2}\\\\u[Dd][C-Fc-f][0-9A-Fa-f]{2}))",
                                  0);
    g->string_char[0] = s->any_char;
    g->string_char[1] = x->one_char = s->plain_char;
    int flexible = g->options.whitespace == GRAMMAR_WS_FLEXIBLE;
    s->space = flexible ? schema_regex(s, "| |\\n[ \\t]{0,40}", 0) : (uint32_t)EXPR_EPSILON;
    uint32_t blank = flexible ? s->space : schema_regex(s, " ?", 0);
    s->comma = expr_concat(x, s->space, expr_concat(x, expr_byte(x, ',', ','), blank));
    s->colon = expr_concat(x, s->space, expr_concat(x, expr_byte(x, ':', ':'), blank));
    return exprs_check(x, e);
}

/* The error of a schema of which nothing was left. */
static int nothing_left(struct schema *s)
{
    if (!s->n_partial)
        return err_set(s->e, ERR_FORMAT, "schema: nothing can satisfy it");
    schema_refuse(s, s->partial_at, s->partial_key, OPPOSITE);
    return -1;
}

/* The grammar of s->root; closes g on failure. */
static struct grammar *finish(struct schema *s, struct grammar *g, struct err *e)
{
    struct member m = { s->root, 0, NULL };
    s->one_form = !s->failed && has_unique(s->root);
    uint32_t r = s->failed || schema_refs_open(s) != 0 ? (uint32_t)EXPR_NONE : schema_compile(s, &m, 1);
    int rc = s->failed ? -1 : grammar_check_work(g, e);
    if (rc == 0 && r == EXPR_NONE)
        rc = nothing_left(s);
    if (rc == 0 && grammar_after_thought(g, &r, e) != 0)
        rc = -1;
    else if (rc == 0 && (rc = grammar_finish(g, r, e)) != 0)
        err_prefix(e, "schema");
    release(s);
    if (rc == 0)
        return g;
    grammar_close(g);
    return NULL;
}

static uint32_t compile_part(struct grammar *g, json_t *root, uint32_t *comma, uint32_t *colon, struct refusal *refusal,
                             struct err *e)
{
    struct schema s;
    uint32_t r = EXPR_NONE;
    if (init(&s, g, e) == 0) {
        s.refusal = refusal;
        struct member m = { root, 0, NULL };
        s.root = json_incref(root);
        s.one_form = has_unique(root);
        r = schema_refs_open(&s) != 0 ? (uint32_t)EXPR_NONE : schema_compile(&s, &m, 1);
        if (grammar_check_work(g, s.failed ? NULL : e) != 0)
            r = EXPR_NONE;
        else if (!s.failed && r == EXPR_NONE)
            nothing_left(&s);
        *comma = s.comma;
        *colon = s.colon;
    }
    release(&s);
    return r;
}

uint32_t grammar_schema_expr(struct grammar *g, json_t *root, uint32_t *comma, uint32_t *colon, struct err *e)
{
    return compile_part(g, root, comma, colon, NULL, e);
}

uint32_t grammar_schema_relaxed(struct grammar *g, json_t *root, json_t *dropped, uint32_t *comma, uint32_t *colon,
                                struct err *e)
{
    enum { MOST_DROPPED = 32 };
    for (int i = 0; i < MOST_DROPPED; i++) {
        struct refusal refusal = { .at = NULL };
        struct path p = { .n = 0 };
        struct err why = { .code = ERR_NONE };
        const uint32_t r = compile_part(g, root, comma, colon, &refusal, &why);
        json_t *at = (json_t *)(uintptr_t)refusal.at;   /* a part of root, which is the caller's to change */
        if (r != EXPR_NONE || why.code != ERR_UNSUPPORTED || !find_path(root, at, &p, 0)) {
            if (r == EXPR_NONE)
                *e = why;
            return r;
        }
        if (refusal.keyword[0])
            path_add(&p, refusal.keyword);
        if (json_array_append_new(dropped, json_string(p.n ? p.text : "/")) != 0) {
            err_nomem(e, "a schema");
            return EXPR_NONE;
        }
        if (!refusal.keyword[0])
            json_object_clear(at);
        else if (json_object_del(at, refusal.keyword) != 0) {   /* it is not a keyword of this schema alone */
            *e = why;
            return EXPR_NONE;
        }
    }
    err_set(e, ERR_UNSUPPORTED, "schema: more than %d keywords cannot be enforced", MOST_DROPPED);
    return EXPR_NONE;
}

static int is_word(const char *text, size_t size, const char *word)
{
    while (size && strchr(" \t\r\n", *text) && *text)
        text++, size--;
    size_t n = strlen(word);
    if (size < n || memcmp(text, word, n) != 0)
        return 0;
    while (n < size && text[n] && strchr(" \t\r\n", text[n]))
        n++;
    return n == size;
}

struct grammar *grammar_compile_schema(const struct grammar_vocab *v, const char *text, size_t size,
                                       const struct grammar_options *o, struct err *e)
{
    struct schema s;
    if (size > MAX_SCHEMA) {
        err_set(e, ERR_LIMIT, "schema: %zu bytes, more than %d", size, MAX_SCHEMA);
        return NULL;
    }
    struct grammar *g = grammar_new(v, o, e);
    if (!g)
        return NULL;
    if (init(&s, g, e) != 0) {
        release(&s);
        grammar_close(g);
        return NULL;
    }
    s.root = is_word(text, size, "true") ? json_true() : is_word(text, size, "false")
                 ? json_false() : js_parse("schema", text, size, e);
    if (!s.root)
        s.failed = 1;
    else if (!json_is_object(s.root) && !json_is_boolean(s.root)) {
        err_set(e, ERR_FORMAT, "schema: %s, not an object", js_kind(s.root));
        s.failed = 1;
    }
    return finish(&s, g, e);
}

struct grammar *grammar_compile_json(const struct grammar_vocab *v, int object, const struct grammar_options *o,
                                     struct err *e)
{
    static const char any[] = "true", objects[] = "{\"type\": \"object\"}";
    return grammar_compile_schema(v, object ? objects : any, object ? sizeof objects - 1 : sizeof any - 1, o, e);
}
