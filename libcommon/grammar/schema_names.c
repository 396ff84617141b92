/* schema_names.c - names of further properties, if only few are possible: they are declared, so
 * that they can be counted and distinguished. */
#include "libcommon/grammar/schema.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NAMES = 24, MAX_NAME = 64, MAX_STEPS = 4000, NAME_STATES = 1 << 14 };

uint32_t schema_texts(struct schema *s, const json_t *names)
{
    const size_t n = json_array_size(names);
    struct byte_span *t = calloc(n + 1, sizeof *t);
    size_t *end = calloc(n + 1, sizeof *end);
    struct json_text b = { 0 };
    uint32_t e = EXPR_NONE;
    for (size_t i = 0; end && i < n; i++) {
        const json_t *name = json_array_get(names, i);
        text_put_string(&b, json_string_value(name), json_string_length(name));
        end[i + 1] = b.n;
    }
    if (!t || !end || b.failed) {
        schema_nomem(s);
    } else if (n) {
        for (size_t i = 0; i < n; i++)
            t[i] = (struct byte_span){ b.p + end[i], end[i + 1] - end[i] };
        qsort(t, n, sizeof *t, text_compare);
        size_t kept = 1;
        for (size_t i = 1; i < n; i++)
            if (text_compare(&t[kept - 1], &t[i]) != 0)
                t[kept++] = t[i];
        e = expr_texts(&s->g->x, t, kept);
    }
    free(t);
    free(end);
    free(b.p);
    return e;
}

/* The texts of an expression, if there are few. */
struct listing { struct exprs *x; json_t *names; char text[MAX_NAME]; int steps; };

static void add_name(struct listing *l, int n)
{
    char text[MAX_NAME + 3];
    snprintf(text, sizeof text, "\"%.*s\"", n, l->text);
    json_t *name = json_loads(text, JSON_DECODE_ANY, NULL);
    if (name)
        json_object_set_new(l->names, json_string_value(name), json_true());
    json_decref(name);
}

/* List the texts of e.  0, or -1: there are too many, or they are too long. */
static int list_texts(struct listing *l, uint32_t e, int n)
{
    uint64_t set[4];
    if (expr_nullable(l->x, e))
        add_name(l, n);
    if (json_object_size(l->names) > MAX_NAMES)
        return -1;
    expr_first(l->x, e, set);
    for (int byte = 0; byte < 256 && !l->x->failed; byte++) {
        if (!(set[byte >> 6] >> (byte & 63) & 1))
            continue;
        const uint32_t next = expr_step(l->x, e, byte);
        if (next == EXPR_NONE)
            continue;
        if (n == MAX_NAME - 1 || ++l->steps > MAX_STEPS)
            return -1;
        l->text[n] = (char)byte;
        if (list_texts(l, next, n + 1) != 0)
            return -1;
    }
    return l->x->failed ? -1 : 0;
}

/* Add the names of e to an object, if they are few. */
static void add_names(struct schema *s, json_t *to, uint32_t e)
{
    struct listing l = { .x = &s->g->x, .names = json_object() };
    if (!s->failed && list_texts(&l, exprs_settle(&s->g->x, e, NAME_STATES), 0) == 0)
        json_object_update(to, l.names);
    json_decref(l.names);
}

/* Names that additionalProperties and propertyNames of the members allow; EXPR_ALL: any. */
static uint32_t allowed_names(struct schema *s, const struct member *m, int n)
{
    struct exprs *x = &s->g->x;
    uint32_t e = EXPR_ALL;
    for (int i = 0; i < n && !s->failed; i++) {
        json_t *names = json_object_get(m[i].s, "propertyNames"), *v,
               *patterns = json_object_get(m[i].s, "patternProperties");
        const char *text;
        if (names)
            e = expr_both(x, e, schema_strings(s, names, 0, 0));
        if (!json_is_false(json_object_get(m[i].s, "additionalProperties")))
            continue;
        json_t *declared = schema_keys(json_object_get(m[i].s, "properties"));
        uint32_t known = schema_texts(s, declared);
        json_decref(declared);
        json_object_foreach(patterns, text, v)
            known = expr_either(x, known, schema_pattern(s, m[i].s, "patternProperties", text, strlen(text), NULL,
                                                         NULL));
        e = expr_both(x, e, known);
    }
    return e;
}

/* Returns 1 if objects need to count or distinguish further properties by name, for one of two
 * reasons: a SOME_PROPERTY must be satisfied, or minProperties requires more than one further
 * property. */
static int must_count(struct schema *s, const struct member *m, int n)
{
    int64_t least = 0, declared = 0, some = 0;
    for (int i = 0; i < n; i++) {
        if (!(schema_types(s, m[i].s) & TYPE_OBJECT))
            return 0;
        const int64_t count = schema_count(s, m[i].s, "minProperties");
        least = count > least ? count : least;
        declared += (int64_t)json_object_size(json_object_get(m[i].s, "properties"));
        some |= json_object_get(m[i].s, SOME_PROPERTY) != NULL;
    }
    return !s->failed && (some || least > declared + 1);
}

json_t *schema_few_names(struct schema *s, const struct member *m, int n)
{
    struct exprs *x = &s->g->x;
    struct err *e = s->e, dropped;
    const int quiet = s->quiet;
    json_t *found, *made = NULL, *v;
    const char *name;
    if (s->failed || !must_count(s, m, n))
        return NULL;
    found = json_object();
    s->e = &dropped;
    s->quiet = 1;
    const uint32_t any = expr_repeat(x, s->plain_char, 0, EXPR_MANY);
    const uint32_t allowed = expr_both(x, any, allowed_names(s, m, n));
    if (allowed != any)
        add_names(s, found, allowed);
    for (int i = 0; i < n && !s->failed; i++)
        if ((v = json_object_get(m[i].s, SOME_PROPERTY)))
            add_names(s, found, expr_both(x, allowed, schema_needed_names(s, v)));
    s->failed = 0;                      /* an unsupported keyword is refused when it is compiled */
    s->quiet = quiet;
    s->e = e;
    for (int i = 0; i < n; i++)
        json_object_foreach(json_object_get(m[i].s, "properties"), name, v)
            json_object_del(found, name);
    if (json_object_size(found) && (made = json_pack("{s:O, s:b}", "properties", found, MADE, 1)))
        made = schema_keep(s, made, m[0].s);
    json_decref(found);
    return made;
}
