/* schema_member.c - the keywords of a schema, and the set of schemas that hold at one place. */
#include "libcommon/grammar/schema.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_MEMBERS = 512 };

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

/* The keywords and the kinds of their values: o object, a array of schemas, s string, S schema, b
 * boolean, A any array, I array of schemas or a schema; X: the keyword is never enforced.  Sorted
 * by key. */
struct keyword { const char *key; char kind; };
static const struct keyword keywords[] = {
    { "$dynamicRef", 's' }, { "$recursiveRef", 'X' }, { "$ref", 's' }, { "additionalItems", 'S' },
    { "additionalProperties", 'S' }, { "allOf", 'a' }, { "anyOf", 'a' }, { "contains", 'S' },
    { "dependencies", 'o' }, { "dependentRequired", 'o' }, { "dependentSchemas", 'o' }, { "else", 'S' },
    { "enum", 'A' }, { "format", 's' }, { "if", 'S' }, { "items", 'I' }, { "not", 'S' }, { "oneOf", 'a' },
    { "pattern", 's' }, { "patternProperties", 'o' }, { "prefixItems", 'a' }, { "properties", 'o' },
    { "propertyNames", 'S' }, { "required", 'A' }, { "then", 'S' }, { "unevaluatedItems", 'S' },
    { "unevaluatedProperties", 'S' }, { "uniqueItems", 'b' },
};

static int by_key(const void *key, const void *keyword)
{
    return strcmp(key, ((const struct keyword *)keyword)->key);
}

static int is_schema(const json_t *v) { return json_is_object(v) || json_is_boolean(v); }

static int has_kind(const json_t *v, char kind)
{
    const json_t *x;
    size_t i;
    switch (kind) {
    case 'o': return json_is_object(v);
    case 'A': return json_is_array(v);
    case 's': return json_is_string(v);
    case 'b': return json_is_boolean(v);
    case 'S': return is_schema(v);
    case 'I':
        if (is_schema(v))
            return 1;
        break;
    }
    json_array_foreach(v, i, x)
        if (!is_schema(x))
            return 0;
    return json_is_array(v);
}

/* Refuse keywords that are never enforced, and values of the wrong type, so that later code can
 * rely on the types.  Iterates over the schema's keys, because most schemas have few. */
static int check_keywords(struct schema *s, json_t *m)
{
    const char *key;
    json_t *v;
    json_object_foreach(m, key, v) {
        const struct keyword *k =
            bsearch(key, keywords, sizeof keywords / sizeof *keywords, sizeof *keywords, by_key);
        if (!k || (k->kind != 'X' && has_kind(v, k->kind)))
            continue;
        schema_refuse(s, m, key, k->kind == 'X' ? "cannot be enforced; use $ref" : "a value of the wrong kind");
        return -1;
    }
    return 0;
}

int schema_add_member(struct schema *s, struct member_set *to, const struct member *m)
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
const json_t *schema_scope_inside(const struct member *m) { return is_unevaluated(m->s) ? m->s : m->scope; }

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

/* Does the schema only refer to others?  Then it need not be a member, so that equal targets are
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

/* Add m and everything that $ref and allOf add to it.  0; 1: nothing can satisfy it; -1: failed. */
int schema_flatten(struct schema *s, struct member_set *to, const struct member *given, int depth)
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
        return target ? schema_flatten(s, to, &(struct member){ target, given->done, given->scope }, depth + 1) : -1;
    }
    if (check_keywords(s, m) != 0)
        return -1;
    if (!is_wrapper(m)) {
        if ((rc = schema_add_member(s, to, given)) <= 0)
            return rc;
    }
    struct member inside = { NULL, given->done & MEMBER_HIDDEN, schema_scope_inside(given) };
    for (int k = 0; k < 2; k++) {
        if (!(k ? dynamic : ref))
            continue;
        if (!(inside.s = k ? schema_resolve_dynamic(s, m, dynamic) : schema_resolve(s, m, ref)))
            return -1;
        if ((rc = schema_flatten(s, to, &inside, depth + 1)) != 0)
            return rc;
    }
    json_array_foreach(json_object_get(m, "allOf"), i, v) {
        inside.s = v;
        if ((rc = schema_flatten(s, to, &inside, depth + 1)) != 0)
            return rc;
    }
    return 0;
}
