/* tool_grammar.c - grammars of answers with function calls, in the format of each family. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/grammar/internal.h"
#include "libcommon/grammar/schema.h"
#include "libcommon/grammar/tool_format.h"

struct tool_builder {
    struct grammar *g;
    struct exprs *x;
    const struct tool_format *f;
    const struct tool_grammar_options *o;       /* NULL: no calls */
    int thinking;
    uint32_t character, comma, colon;
    /* All keywords of the current function are enforced, or refused. */
    int strict;
    const json_t *loose;                /* an object: functions that may have any object; NULL: none */
    /* Array of strings: functions and their keywords that are not enforced; owned. */
    json_t *relaxed;
    struct err *e;
    int failed;
};

static int is_eos(const struct grammar_vocab *v, int32_t id)
{
    for (int i = 0; i < v->n_eos; i++)
        if (v->eos[i] == id)
            return 1;
    return 0;
}

/* An expression for the text, in which special tokens of the vocabulary match themselves.  *first:
 * the id of the token that it starts with, -1: it starts with plain text. */
static uint32_t marker(struct tool_builder *k, const char *text, int32_t *first)
{
    const struct grammar_vocab *v = k->g->v;
    int32_t *ids = NULL, none;
    size_t n_ids = 0, at = 0, n = strlen(text), size;
    unsigned char name[VOCAB_NAME];
    uint32_t r = EXPR_EPSILON;
    if (!first)
        first = &none;
    *first = -1;
    if (tokenizer_encode(v->t, text, n, TOKENIZE_PARSE_SPECIAL, &ids, &n_ids, k->e) != 0) {
        k->failed = 1;
        return EXPR_NONE;
    }
    for (size_t i = 0; i < n_ids; i++) {
        const char *p = vocab_name(v, ids[i], name) == 0 ? tokenizer_token(v->t, ids[i], &size) : NULL;
        const char *hit = p && size && !is_eos(v, ids[i]) ? memmem(text + at, n - at, p, size) : NULL;
        if (!hit)
            continue;
        size_t before = (size_t)(hit - text) - at;
        if (at == 0 && before == 0)
            *first = ids[i];
        r = expr_concat(k->x, r, expr_concat(k->x, expr_text(k->x, text + at, before),
                                             expr_text(k->x, name, sizeof name)));
        at += before + size;
    }
    free(ids);
    return expr_concat(k->x, r, expr_text(k->x, text + at, n - at));
}

/* Any text that does not contain the first line of the marker.  Special tokens are allowed, except
 * one with which the marker starts. */
static uint32_t text_before(struct tool_builder *k, const char *stop, int specials)
{
    const struct grammar_vocab *v = k->g->v;
    char line[128];
    int32_t first = -1;
    size_t n = strcspn(stop, "\n");
    if (n >= sizeof line)
        n = sizeof line - 1;
    memcpy(line, stop, n);
    line[n] = '\0';
    uint32_t m = n ? marker(k, line, &first) : (uint32_t)EXPR_NONE, any = k->character;
    if (specials) {
        struct byte_span *t = malloc(((size_t)v->size + 1) * sizeof *t);
        unsigned char (*names)[VOCAB_NAME] = malloc(((size_t)v->size + 1) * sizeof *names);
        size_t count = 0;
        if (!t || !names)
            k->x->failed = EXPR_NO_MEMORY;
        for (int32_t id = 0; t && names && id < v->size; id++)
            if (id != first && !is_eos(v, id) && vocab_name(v, id, names[count]) == 0) {
                t[count] = (struct byte_span){ (const char *)names[count], VOCAB_NAME };
                count++;
            }
        if (t && names && count)
            any = expr_either(k->x, any, expr_texts(k->x, t, count));
        free(t);
        free(names);
    }
    uint32_t r = expr_repeat(k->x, any, 0, EXPR_MANY);
    if (n && first < 0)                 /* plain text must not contain it */
        r = expr_both(k->x, r, expr_not(k->x, expr_concat(k->x, EXPR_ALL, expr_concat(k->x, m, EXPR_ALL))));
    return r;
}

static uint32_t term(struct tool_builder *k, uint32_t e) { return grammar_term(k->g, e); }

static uint32_t literal(struct tool_builder *k, const char *text) { return term(k, marker(k, text, NULL)); }

static void no_memory(struct tool_builder *k)
{
    if (!k->failed)
        err_nomem(k->e, "a grammar");
    k->failed = 1;
}

/* Note that a keyword of a function is not enforced. */
static void relax(struct tool_builder *k, const char *function, const char *place)
{
    if (json_array_append_new(k->relaxed, json_sprintf("function '%s': %s", function, place)) != 0)
        no_memory(k);
}

/* Compile the schema of a function's arguments, or that of its argument `key` (NULL: all of them).
 * Keywords that cannot be enforced are dropped first, unless tools are strict. */
static uint32_t schema_expr(struct tool_builder *k, const char *function, const char *key, json_t *schema)
{
    if (k->strict)
        return grammar_schema_expr(k->g, schema, &k->comma, &k->colon, k->e);
    json_t *copy = json_deep_copy(schema), *dropped = json_array(), *place;
    uint32_t r = EXPR_NONE;
    size_t i;
    /* Jansson leaves values out when memory runs out. */
    if (copy && dropped && json_equal(copy, schema))
        r = grammar_schema_relaxed(k->g, copy, dropped, &k->comma, &k->colon, k->e);
    else
        no_memory(k);
    json_array_foreach(dropped, i, place) {
        char whole[512];
        snprintf(whole, sizeof whole, "%s%s%s", key ? "/properties/" : "", key ? key : "", json_string_value(place));
        relax(k, function, whole);
    }
    json_decref(dropped);
    json_decref(copy);
    return k->failed ? (uint32_t)EXPR_NONE : r;
}

/* The arguments of a function as JSON. */
static uint32_t json_arguments(struct tool_builder *k, const char *name, const json_t *tool)
{
    json_t *schema = json_object_get(tool, "parameters");
    json_t *none = schema && !json_is_null(schema) ? NULL : json_pack("{s:s, s:{}, s:b}", "type", "object",
                                                                      "properties", "additionalProperties", 0);
    uint32_t r;
    if (!none && !json_is_object(schema)) {
        k->failed = 1;
        err_set(k->e, ERR_FORMAT, "function '%s': parameters: expected an object", name);
        return EXPR_NONE;
    }
    if (!none && !json_object_get(schema, "type")) {    /* arguments are an object in any case */
        json_t *typed = json_copy(schema);
        json_object_set_new(typed, "type", json_string("object"));
        r = schema_expr(k, name, NULL, typed);
        json_decref(typed);
    } else {
        r = schema_expr(k, name, NULL, none ? none : schema);
    }
    json_decref(none);
    if (r == EXPR_NONE) {
        k->failed = 1;
        err_prefix(k->e, "function '%s': parameters", name);
    }
    return r;
}

/* One argument that is written as text between tags. */
static uint32_t tag_value(struct tool_builder *k, const char *function, const char *key, const json_t *root,
                          json_t *schema)
{
    static const char *const cannot[] = { "pattern", "format", "minLength", "maxLength", "anyOf", "oneOf", "allOf",
                                          "not", "if", "$ref" };
    const char *type = json_string_value(json_object_get(schema, "type")), *end = k->f->value_close;
    json_t *values = json_object_get(schema, "enum"), *one = json_object_get(schema, "const"), *v;
    size_t i;
    while (*end == '\n')
        end++;
    if (type && !strcmp(type, "string")) {
        for (i = 0; i < sizeof cannot / sizeof *cannot; i++)
            if (json_object_get(schema, cannot[i]) &&
                !(i == 1 && !schema_format(json_string_value(json_object_get(schema, "format"))
                                           ? json_string_value(json_object_get(schema, "format")) : ""))) {
                if (!k->strict) {
                    char place[256];
                    snprintf(place, sizeof place, "/properties/%s/%s", key, cannot[i]);
                    relax(k, function, place);
                    continue;
                }
                k->failed = 1;
                err_set(k->e, ERR_UNSUPPORTED, "function '%s': parameters: schema: /properties/%s/%s: it cannot be enforced for strings that this model writes without quotation marks", function, key, cannot[i]);
                return EXPR_NONE;
            }
        uint32_t r = EXPR_NONE;
        if (json_is_string(one))
            return term(k, expr_text(k->x, json_string_value(one), json_string_length(one)));
        json_array_foreach(values, i, v)
            if (json_is_string(v))
                r = expr_either(k->x, r, expr_text(k->x, json_string_value(v), json_string_length(v)));
        return term(k, values ? r : text_before(k, end, 0));
    }
    /* the value is JSON; references in it point into the whole schema, so keep its definitions */
    json_t *whole = json_is_object(schema) ? json_copy(schema) : json_object();
    if (json_object_get(root, "$defs") && !json_object_get(whole, "$defs"))
        json_object_set(whole, "$defs", json_object_get(root, "$defs"));
    if (json_object_get(root, "definitions") && !json_object_get(whole, "definitions"))
        json_object_set(whole, "definitions", json_object_get(root, "definitions"));
    uint32_t r = schema_expr(k, function, key, whole);
    json_decref(whole);
    if (r == EXPR_NONE) {
        k->failed = 1;
        err_prefix(k->e, "function '%s': parameters: %s", function, key);
    }
    return r;
}

static int is_required(const json_t *schema, const char *key)
{
    json_t *v;
    size_t i;
    json_array_foreach(json_object_get(schema, "required"), i, v)
        if (json_is_string(v) && !strcmp(json_string_value(v), key))
            return 1;
    return 0;
}

/* r, then the member `one`, which may be left out unless it is required. */
static uint32_t then_member(struct tool_builder *k, uint32_t r, uint32_t one, int required)
{
    return expr_seq(k->x, r, required ? one : expr_any_of(k->x, (uint32_t[]){ EXPR_EPSILON, one }, 2));
}

static uint32_t element_members(struct tool_builder *k, const char *function, const char *place, const json_t *root,
                                const json_t *schema, int depth);

/* An element: the tags with the name around a value. */
static uint32_t element(struct tool_builder *k, const char *name, uint32_t value)
{
    const uint32_t word = term(k, expr_text(k->x, name, strlen(name)));
    const uint32_t tail = expr_seq(k->x, literal(k, k->f->value_close), expr_seq(k->x, word,
                                                                              literal(k, k->f->key_close)));
    return expr_seq(k->x, literal(k, k->f->key_open),
                    expr_seq(k->x, word, expr_seq(k->x, literal(k, k->f->key_close), expr_seq(k->x, value, tail))));
}

/* A value between the tags of an element: text, the elements of a list or an object, or JSON where
 * a schema has no such form. */
static uint32_t element_value(struct tool_builder *k, const char *function, const char *place, const json_t *root,
                              json_t *schema, int depth)
{
    enum { MOST_DEPTH = 16, MOST_ITEMS = 1000 };
    const char *type = json_string_value(json_object_get(schema, "type"));
    json_t *items = json_object_get(schema, "items"), *most = json_object_get(schema, "maxItems");
    const json_int_t lo = json_integer_value(json_object_get(schema, "minItems")), hi = json_integer_value(most);
    const int chosen = json_object_get(schema, "enum") || json_object_get(schema, "const");
    if (type && !chosen && depth < MOST_DEPTH && !strcmp(type, "array") && json_is_object(items) && lo >= 0 &&
        lo <= MOST_ITEMS && hi >= 0 && hi <= MOST_ITEMS && (!most || lo <= hi)) {
        char inner[256];
        snprintf(inner, sizeof inner, "%s/items", place);
        const uint32_t one = element(k, "item", element_value(k, function, inner, root, items, depth + 1));
        return expr_times(k->x, one, (int32_t)lo, most ? (int32_t)hi : (int32_t)EXPR_MANY);
    }
    if (type && !chosen && depth < MOST_DEPTH && !strcmp(type, "object") &&
        json_object_size(json_object_get(schema, "properties")))
        return element_members(k, function, place, root, schema, depth + 1);
    return tag_value(k, function, place, root, schema);
}

static uint32_t element_members(struct tool_builder *k, const char *function, const char *place, const json_t *root,
                                const json_t *schema, int depth)
{
    const char *key;
    json_t *v;
    uint32_t r = EXPR_EPSILON;
    json_object_foreach(json_object_get(schema, "properties"), key, v) {
        char inner[256];
        snprintf(inner, sizeof inner, "%s/properties/%s", place, key);
        uint32_t one = element(k, key, element_value(k, function, depth ? inner : key, root, v, depth));
        r = then_member(k, r, one, is_required(schema, key));
        if (k->failed)
            return EXPR_NONE;
    }
    return r;
}

static uint32_t tag_arguments(struct tool_builder *k, const char *name, const json_t *tool)
{
    static const char *const known[] = { "type", "properties", "required", "additionalProperties", "$defs",
                                         "definitions", "title", "description", "$schema", "strict" };
    json_t *schema = json_object_get(tool, "parameters"), *v;
    const char *key;
    uint32_t r = EXPR_EPSILON;
    json_object_foreach(schema, key, v) {
        int ok = 0;
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            ok |= !strcmp(key, known[i]);
        if (!ok && !k->strict) {
            char place[256];
            snprintf(place, sizeof place, "/%s", key);
            relax(k, name, place);
        } else if (!ok) {
            k->failed = 1;
            err_set(k->e, ERR_UNSUPPORTED, "function '%s': parameters: schema: /%s: it cannot be enforced for arguments that this model writes as tags", name, key);
            return EXPR_NONE;
        }
    }
    if (k->f->style == TOOL_ELEMENTS)
        return element_members(k, name, "", schema, schema, 0);
    json_object_foreach(json_object_get(schema, "properties"), key, v) {
        const char *type = json_string_value(json_object_get(v, "type"));
        const int json = k->f->key_close_json && (!type || strcmp(type, "string") != 0);
        uint32_t open = literal(k, k->f->key_open), close = literal(k, k->f->value_close),
                 after = literal(k, json ? k->f->key_close_json : k->f->key_close);
        uint32_t one = expr_seq(k->x, open, expr_seq(k->x, term(k, expr_text(k->x, key, strlen(key))),
                                                     expr_seq(k->x, after,
                                                              expr_seq(k->x, tag_value(k, name, key, schema, v),
                                                                       close))));
        r = then_member(k, r, one, is_required(schema, key));
        if (k->failed)
            return EXPR_NONE;
    }
    return r;
}

/* Any arguments between tags. */
static uint32_t any_tags(struct tool_builder *k)
{
    const struct tool_format *f = k->f;
    const char *end = f->value_close;
    while (*end == '\n')
        end++;
    uint32_t key = expr_seq(k->x, literal(k, f->key_open),
                            expr_seq(k->x, term(k, text_before(k, f->key_close, 0)), literal(k, f->key_close)));
    return expr_times(k->x, expr_seq(k->x, key, expr_seq(k->x, term(k, text_before(k, end, 0)),
                                                         literal(k, f->value_close))), 0, EXPR_MANY);
}

/* Any text as each of a function's arguments.  A grammar cannot repeat a name that it does not
 * know. */
static uint32_t any_elements(struct tool_builder *k, const json_t *tool)
{
    json_t *properties = json_object_get(json_object_get(tool, "parameters"), "properties"), *v;
    const char *key;
    uint32_t r = EXPR_EPSILON;
    json_object_foreach(properties, key, v) {
        const uint32_t one = element(k, key, term(k, text_before(k, k->f->value_close, 0)));
        r = then_member(k, r, one, 0);
    }
    return r;
}

/* ---- arguments in a notation of their own ---- */

static uint32_t any_of(struct tool_builder *k, uint32_t a, uint32_t b)
{
    return expr_any_of(k->x, (uint32_t[]){ a, b }, 2);
}

/* How members_of() makes the expression of an object's members: for each property its key, `assign`
 * and value, with `comma` between members, in the order of the schema.  value() makes the
 * expression of one property's value. */
struct members {
    const char *function;
    char assign;
    uint32_t comma;
    uint32_t (*value)(struct tool_builder *k, const struct members *m, const char *key, json_t *schema,
                             int depth);
    const json_t *root;
};

static int by_key(const void *a, const void *b) { return strcasecmp(*(const char *const *)a, *(const char *const *)b); }

/* Build the members of an object from the last property to the first: `first` is used if no
 * property came before, `more` after one. */
static uint32_t members_of(struct tool_builder *k, const struct members *m, const json_t *schema, int depth)
{
    json_t *properties = json_object_get(schema, "properties"), *v;
    const size_t n = json_object_size(properties);
    const char **keys = calloc(n + 1, sizeof *keys), *key;
    uint32_t first = EXPR_EPSILON, more = EXPR_EPSILON;
    size_t i = 0;
    if (!keys) {
        no_memory(k);
        return EXPR_NONE;
    }
    json_object_foreach(properties, key, v)
        keys[i++] = key;
    if (k->f->style == TOOL_QUOTED)             /* templates sort them */
        qsort(keys, n, sizeof *keys, by_key);
    for (i = n; i-- > 0 && !k->failed;) {
        const char assign[2] = { m->assign, '\0' };
        const uint32_t name = term(k, expr_concat(k->x, expr_text(k->x, keys[i], strlen(keys[i])),
                                                  expr_text(k->x, assign, 1)));
        const uint32_t one = expr_seq(k->x, name, m->value(k, m, keys[i], json_object_get(properties, keys[i]), depth));
        const uint32_t begins = expr_seq(k->x, one, more), follows = expr_seq(k->x, m->comma, begins);
        const int must = is_required(schema, keys[i]);
        first = must ? begins : any_of(k, begins, first);
        more = must ? follows : any_of(k, follows, more);
    }
    free(keys);
    return k->failed ? (uint32_t)EXPR_NONE : first;
}

/* JSON is Python except for true, false and null. */
static uint32_t python_value(struct tool_builder *k, const struct members *m, const char *key, json_t *schema,
                             int depth)
{
    const char *type = json_string_value(json_object_get(schema, "type"));
    (void)depth;
    if (type && !strcmp(type, "boolean") && !json_object_get(schema, "enum") && !json_object_get(schema, "const"))
        return any_of(k, literal(k, "True"), literal(k, "False"));
    if (type && !strcmp(type, "null"))
        return literal(k, "None");
    json_t *whole = json_is_object(schema) ? json_copy(schema) : json_object();
    static const char *const shared[] = { "$defs", "definitions" };
    for (int i = 0; i < 2; i++)
        if (json_object_get(m->root, shared[i]) && !json_object_get(whole, shared[i]))
            json_object_set(whole, shared[i], json_object_get(m->root, shared[i]));
    const uint32_t r = schema_expr(k, m->function, key, whole);
    json_decref(whole);
    if (r == EXPR_NONE)
        k->failed = 1;
    return r;
}

/* A text between two marks, which does not contain them. */
static uint32_t marked(struct tool_builder *k, uint32_t text)
{
    const uint32_t mark = literal(k, k->f->value_close);
    return expr_seq(k->x, mark, expr_seq(k->x, text, mark));
}

static uint32_t quoted_value(struct tool_builder *k, const struct members *m, const char *key, json_t *schema,
                             int depth);

static uint32_t quoted_list(struct tool_builder *k, const struct members *m, const char *key, json_t *schema,
                             int depth)
{
    json_t *items = json_object_get(schema, "items"), *most = json_object_get(schema, "maxItems");
    const json_int_t lo = json_integer_value(json_object_get(schema, "minItems")), hi = json_integer_value(most);
    char place[256];
    if (most && hi == 0 && lo == 0)
        return literal(k, "[]");
    snprintf(place, sizeof place, "%s/items", key);
    const uint32_t one = quoted_value(k, m, place, items, depth + 1);
    if (k->failed || (lo < 0 || lo > 1000 || hi < 0 || hi > 1000))
        return EXPR_NONE;
    const uint32_t rest = expr_times(k->x, expr_seq(k->x, m->comma, one), lo > 1 ? (int32_t)lo - 1 : 0,
                                     hi > 0 ? (int32_t)hi - 1 : (int32_t)EXPR_MANY);
    uint32_t all = expr_seq(k->x, one, rest);
    if (lo == 0)
        all = any_of(k, EXPR_EPSILON, all);
    return expr_seq(k->x, literal(k, "["), expr_seq(k->x, all, literal(k, "]")));
}

/* One of some values, or JSON of any kind, whose strings have quotation marks. */
static uint32_t quoted_choice(struct tool_builder *k, const struct members *m, const char *key, const json_t *values)
{
    uint32_t r = EXPR_NONE;
    json_t *v;
    size_t i;
    json_array_foreach(values, i, v) {
        json_t *one = json_pack("{s:O}", "const", v);
        const uint32_t e = json_is_string(v) ? marked(k, term(k, expr_text(k->x, json_string_value(v),
                                                                           json_string_length(v))))
                                             : one ? schema_expr(k, m->function, key, one) : (uint32_t)EXPR_NONE;
        json_decref(one);
        r = i ? any_of(k, r, e) : e;
    }
    return r;
}

static uint32_t quoted_value(struct tool_builder *k, const struct members *m, const char *key, json_t *schema,
                             int depth)
{
    enum { MOST_DEPTH = 16 };
    static const char *const plain[] = { "integer", "number", "boolean", "null" };
    const char *type = json_string_value(json_object_get(schema, "type"));
    json_t *values = json_object_get(schema, "enum"), *one = json_object_get(schema, "const");
    uint32_t r = EXPR_NONE;
    if (json_array_size(values))
        return quoted_choice(k, m, key, values);
    if (one) {
        json_t *list = json_pack("[O]", one);
        r = quoted_choice(k, m, key, list);
        json_decref(list);
        return r;
    }
    if (type && !strcmp(type, "string"))
        return marked(k, tag_value(k, m->function, key, m->root, schema));
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (type && !strcmp(type, plain[i]))
            return schema_expr(k, m->function, key, schema);
    if (type && depth < MOST_DEPTH && !strcmp(type, "array"))
        r = quoted_list(k, m, key, schema, depth);
    else if (type && depth < MOST_DEPTH && !strcmp(type, "object") &&
             json_object_size(json_object_get(schema, "properties")))
        r = expr_seq(k->x, literal(k, "{"), expr_seq(k->x, members_of(k, m, schema, depth + 1), literal(k, "}")));
    if (r != EXPR_NONE || k->failed)
        return r;
    if (k->strict && json_object_size(schema)) {
        k->failed = 1;
        err_set(k->e, ERR_UNSUPPORTED, "function '%s': parameters: schema: /properties/%s: it cannot be enforced in the notation of this model", m->function, key);
        return EXPR_NONE;
    }
    json_t *any = json_pack("{s:[s,s,s,s,s]}", "type", "object", "array", "number", "boolean", "null");
    r = any_of(k, marked(k, term(k, text_before(k, k->f->value_close, 0))), schema_expr(k, m->function, key, any));
    json_decref(any);
    return r;
}

static uint32_t own_arguments(struct tool_builder *k, const char *name, const json_t *tool)
{
    const int python = k->f->style == TOOL_PYTHON;
    const json_t *schema = json_object_get(tool, "parameters");
    const struct members m = { name, python ? '=' : ':', python ? literal(k, ", ") : literal(k, ","),
                               python ? python_value : quoted_value, schema };
    uint32_t r = members_of(k, &m, schema, 0);
    if (k->failed || r == EXPR_NONE) {
        if (!k->e->code)
            err_set(k->e, ERR_UNSUPPORTED, "function '%s': parameters cannot be enforced", name);
        k->failed = 1;
        return EXPR_NONE;
    }
    return expr_seq(k->x, r, literal(k, python ? ")" : "}"));
}

/* An expression for any arguments in the family's own notation, without a schema. */
static uint32_t any_own(struct tool_builder *k, const char *name)
{
    const int python = k->f->style == TOOL_PYTHON;
    const struct members m = { name, python ? '=' : ':', literal(k, ","), python ? python_value : quoted_value, NULL };
    static const struct char_range letters[] = { { '0', '9' }, { 'A', 'Z' }, { '_', '_' }, { 'a', 'z' } };
    const uint32_t key = term(k, expr_repeat(k->x, expr_chars(k->x, letters, 4), 1, EXPR_MANY));
    const uint32_t one = expr_seq(k->x, key, expr_seq(k->x, literal(k, python ? "=" : ":"),
                                                      m.value(k, &m, "", NULL, 0)));
    const uint32_t all = expr_seq(k->x, one, expr_times(k->x, expr_seq(k->x, m.comma, one), 0, EXPR_MANY));
    return expr_seq(k->x, any_of(k, EXPR_EPSILON, all), literal(k, python ? ")" : "}"));
}

static uint32_t arguments_of(struct tool_builder *k, const char *name, const json_t *tool)
{
    const int elements = k->f->style == TOOL_ELEMENTS, tags = elements || k->f->style == TOOL_TAGS;
    const int own = k->f->style == TOOL_PYTHON || k->f->style == TOOL_QUOTED;
    const int loose = json_object_get(k->loose, name) != NULL;
    uint32_t r = EXPR_NONE;
    k->strict = json_object_get(k->o->strict, name) != NULL;
    if (!loose) {
        r = own ? own_arguments(k, name, tool) : tags ? tag_arguments(k, name, tool) : json_arguments(k, name, tool);
        if (!k->failed || k->e->code != ERR_UNSUPPORTED || k->strict)
            return r;
    }
    k->failed = 0;                      /* too many keywords cannot be enforced: allow any object */
    relax(k, name, "/");
    if (tags || own)
        return elements ? any_elements(k, tool) : tags ? any_tags(k) : any_own(k, name);
    json_t *any = json_pack("{s:{s:s}}", "parameters", "type", "object");
    r = json_arguments(k, name, any);
    json_decref(any);
    return r;
}

/* The key of a member and the colon after it. */
static uint32_t member_key(struct tool_builder *k, const char *key)
{
    struct exprs *x = k->x;
    return expr_concat(x, expr_text(x, "\"", 1),
                       expr_concat(x, expr_text(x, key, strlen(key)),
                                   expr_concat(x, expr_text(x, "\"", 1), k->colon)));
}

/* A call as JSON up to its arguments; quoted: the function's name with quotation marks. */
static uint32_t object_head(struct tool_builder *k, const char *quoted)
{
    const struct tool_format *f = k->f;
    struct exprs *x = k->x;
    uint32_t head = expr_text(x, "{", 1), name = expr_text(x, quoted, strlen(quoted));
    if (!f->arguments)
        return expr_concat(x, head, expr_concat(x, name, k->colon));
    if (f->id_key)
        head = expr_concat(x, head,
                           expr_concat(x, member_key(k, f->id_key),
                                       expr_concat(x, expr_text(x, "\"", 1),
                                                   expr_concat(x, expr_repeat(x, expr_byte(x, '0', '9'), 1, 4),
                                                               expr_concat(x, expr_text(x, "\"", 1), k->comma)))));
    name = expr_concat(x, member_key(k, f->name_key ? f->name_key : "name"), name);
    return expr_concat(x, head, expr_concat(x, name, expr_concat(x, k->comma, member_key(k, f->arguments))));
}

/* One call of one function, without the opening marker of its family if `bare`. */
static uint32_t call(struct tool_builder *k, const json_t *tool, int bare)
{
    const struct tool_format *f = k->f;
    const char *name = json_string_value(json_object_get(tool, "name"));
    struct exprs *x = k->x;
    uint32_t arguments = arguments_of(k, name, tool), head, tail = EXPR_EPSILON;
    if (k->failed)
        return EXPR_NONE;
    if (f->style == TOOL_JSON || f->style == TOOL_JSON_LIST) {
        json_t *text = json_string(name);
        char *quoted = json_dumps(text, JSON_ENCODE_ANY);
        json_decref(text);
        if (!quoted) {
            x->failed = EXPR_NO_MEMORY;
            return EXPR_NONE;
        }
        head = object_head(k, quoted);
        free(quoted);
        if (f->style == TOOL_JSON && !bare)
            head = expr_concat(x, marker(k, f->open, NULL), head);
        tail = expr_text(x, "}", 1);
        if (f->style == TOOL_JSON && !bare)
            tail = expr_concat(x, tail, marker(k, f->close, NULL));
    } else {
        head = expr_text(x, name, strlen(name));
        if (f->id_close) {
            const uint32_t id = expr_repeat(x, expr_either(x, expr_byte(x, '0', '9'), expr_byte(x, 'a', 'z')), 10, 10);
            head = expr_concat(x, id, expr_concat(x, marker(k, f->id_close, NULL), head));
        }
        if (!bare && f->style != TOOL_PYTHON)
            head = expr_concat(x, marker(k, f->open, NULL), head);
        if (!strcmp(f->name, "kimi-k2"))
            head = expr_concat(x, head, expr_concat(x, expr_byte(x, ':', ':'),
                                                    expr_repeat(x, expr_byte(x, '0', '9'), 1, 4)));
        head = expr_concat(x, head, marker(k, f->before_arguments, NULL));
        /* gpt-oss's <|call|> is an EOS */
        if (strcmp(f->name, "gpt-oss") != 0 && f->style != TOOL_PYTHON)
            tail = marker(k, f->close, NULL);
    }
    return expr_seq(x, term(k, head), expr_seq(x, arguments, term(k, tail)));
}

/* All calls of an answer. bare: the first one has no opening marker. */
static uint32_t calls(struct tool_builder *k, const json_t *const *tools, int n, int bare)
{
    const struct tool_format *f = k->f;
    struct exprs *x = k->x;
    uint32_t with[MAX_TOOLS], first[MAX_TOOLS], one, begin;
    for (int i = 0; i < n && !k->failed; i++) {
        with[i] = call(k, tools[i], 0);
        first[i] = bare ? call(k, tools[i], 1) : with[i];
    }
    if (k->failed)
        return EXPR_NONE;
    one = expr_any_of(x, with, (uint32_t)n);
    begin = expr_any_of(x, first, (uint32_t)n);
    int parallel = k->o->parallel && !k->o->only && !f->single && !(f->style == TOOL_JSON && !*f->open);
    if (f->style == TOOL_JSON_LIST || f->style == TOOL_PYTHON) {
        const char *open = f->list_open ? f->list_open : "[", *close = f->list_close ? f->list_close : "]";
        const uint32_t comma = f->style == TOOL_PYTHON ? literal(k, ", ") : *f->between ? literal(k, f->between)
                                                                                        : term(k, k->comma);
        uint32_t list = begin;
        if (parallel)
            list = expr_seq(x, begin, expr_times(x, expr_seq(x, comma, one), 0, EXPR_MANY));
        return expr_seq(x, literal(k, f->open), expr_seq(x, literal(k, open),
                                                         expr_seq(x, list,
                                                                  expr_seq(x, literal(k, close),
                                                                           literal(k, f->close)))));
    }
    uint32_t all = begin;
    if (parallel && !(f->style == TOOL_JSON && bare))
        all = expr_seq(x, begin, expr_times(x, expr_seq(x, literal(k, f->between), one), 0, EXPR_MANY));
    if (*f->section)
        all = expr_seq(x, literal(k, f->section), expr_seq(x, all, literal(k, f->section_end)));
    return all;
}

/* The reasoning before the answer: its rest, if it started in the prompt, or all of it. */
static uint32_t thought(struct tool_builder *k)
{
    struct exprs *x = k->x;
    if (k->o && k->o->no_reasoning && !k->thinking)
        return EXPR_EPSILON;
    const char *open = k->f->think ? k->f->think : "<think>", *close = k->f->think ? k->f->think_end : "</think>";
    uint32_t after = expr_repeat(x, expr_either(x, expr_byte(x, '\n', '\n'), expr_byte(x, ' ', ' ')), 0, 4);
    uint32_t rest = expr_seq(x, term(k, text_before(k, close, 0)),
                             term(k, expr_concat(x, marker(k, close, NULL), after)));
    if (k->thinking)
        return rest;
    if (k->f->next_part)
        rest = expr_seq(x, rest, literal(k, k->f->next_part));
    return expr_any_of(x, (uint32_t[]){ EXPR_EPSILON, expr_seq(x, literal(k, open), rest) }, 2);
}

int grammar_after_thought(struct grammar *g, uint32_t *root, struct err *e)
{
    static const struct char_range every[] = { { 0, 0x10FFFF } };
    struct tool_builder k = { .g = g, .x = &g->x, .f = g->options.thinker, .thinking = g->options.thinking, .e = e };
    if (!k.f)
        return 0;
    k.character = expr_chars(k.x, every, 1);
    if (k.f->text_open)
        *root = expr_seq(k.x, literal(&k, k.f->text_open), *root);
    *root = expr_seq(k.x, thought(&k), *root);
    return k.failed ? -1 : 0;
}

/* An answer without calls, as options.content prescribes. */
static uint32_t content_only(struct tool_builder *k)
{
    k->g->options.open_objects = k->o->content_open;
    uint32_t r = grammar_schema_expr(k->g, k->o->content, &k->comma, &k->colon, k->e);
    k->g->options.open_objects = 0;
    k->failed |= r == EXPR_NONE;
    return r;
}

static uint32_t answer(struct tool_builder *k, const json_t *const *tools, int n)
{
    const struct tool_format *f = k->f;
    struct exprs *x = k->x;
    int functionary = !strcmp(f->name, "functionary-3.2"), bare = functionary ||
        (f->style == TOOL_JSON && (!*f->open || !strcmp(f->name, "llama3")));
    uint32_t all = calls(k, tools, n, bare);
    if (k->failed)
        return EXPR_NONE;
    if (k->o->choice == TOOL_REQUIRED)
        return expr_seq(x, thought(k), all);
    if (k->o->content) {
        uint32_t said = content_only(k);
        if (f->text_open)
            said = expr_seq(x, literal(k, f->text_open), said);
        if (functionary)
            said = expr_seq(x, literal(k, "all\n"), said);
        return expr_seq(x, thought(k), expr_any_of(x, (uint32_t[]){ said, all }, 2));
    }
    if (f->text_open) {
        uint32_t said = expr_seq(x, literal(k, f->text_open), term(k, text_before(k, "", 0)));
        return expr_seq(x, thought(k), expr_any_of(x, (uint32_t[]){ said, all }, 2));
    }
    if (functionary) {
        uint32_t later = calls(k, tools, n, 0);
        uint32_t said = expr_seq(x, literal(k, "all\n"),
                                 expr_seq(x, term(k, text_before(k, ">>>", 1)),
                                          expr_any_of(x, (uint32_t[]){ EXPR_EPSILON, later }, 2)));
        return expr_any_of(x, (uint32_t[]){ said, all }, 2);
    }
    const char *trigger = *f->section ? f->section : f->open;
    uint32_t before = k->o->reasoning ? thought(k) : (uint32_t)EXPR_EPSILON;
    /* JSON alone starts with a brace, which other text does not; after <|python_tag|> only a call
     * may come. */
    if (!*trigger || bare) {
        static const struct char_range no_brace[] = { { 0, 'z' }, { '|', 0x10FFFF } };
        uint32_t said = expr_concat(x, expr_chars(x, no_brace, 2), text_before(k, trigger, 0));
        uint32_t tagged = EXPR_NONE;
        if (*trigger) {
            uint32_t one[MAX_TOOLS];
            for (int i = 0; i < n && !k->failed; i++)
                one[i] = call(k, tools[i], 0);
            tagged = expr_any_of(x, one, (uint32_t)n);
        }
        return expr_seq(x, before, expr_any_of(x, (uint32_t[]){ EXPR_EPSILON, term(k, said), all, tagged }, 4));
    }
    return expr_seq(x, before, expr_seq(x, term(k, text_before(k, trigger, 1)),
                                        expr_any_of(x, (uint32_t[]){ EXPR_EPSILON, all }, 2)));
}

/* The list as a text that is allowed in a header: printable ASCII. */
static char *list_text(const json_t *list)
{
    char *text = malloc(GRAMMAR_RELAXED + 1);
    size_t n = 0, i, k;
    const json_t *v;
    if (!text)
        return NULL;
    json_array_foreach(list, i, v) {
        for (k = 0; k < i && !json_equal(json_array_get(list, k), v); k++)
            ;
        /* Calls are compiled with and without their opening marker. */
        if (k == i && n < GRAMMAR_RELAXED)
            n += (size_t)snprintf(text + n, GRAMMAR_RELAXED + 1 - n, "%s%s", n ? ", " : "", json_string_value(v));
    }
    for (char *c = text; *c; c++)
        if (*c < ' ' || *c > '~')
            *c = '?';
    return text;
}

const char *grammar_relaxed(const struct grammar *g) { return g->relaxed; }

static struct grammar *compile(const struct grammar_vocab *v, const struct tool_format *f,
                               const struct tool_grammar_options *o, const json_t *loose, struct err *e)
{
    static const struct char_range every[] = { { 0, 0x10FFFF } };
    const json_t *tools[MAX_TOOLS], *t;
    int n = 0;
    size_t i;
    json_array_foreach(o->tools, i, t) {
        const json_t *function = json_object_get(t, "function");
        const char *name = json_string_value(json_object_get(function ? function : t, "name"));
        if (!name || !*name) {
            err_set(e, ERR_FORMAT, "tools: number %zu has no name", i + 1);
            return NULL;
        }
        if (o->only && strcmp(o->only, name) != 0)
            continue;
        if (n == MAX_TOOLS) {
            err_set(e, ERR_LIMIT, "tools: more than %d", MAX_TOOLS);
            return NULL;
        }
        tools[n++] = function ? function : t;
    }
    if (n == 0) {
        err_set(e, ERR_FORMAT, o->only ? "tool_choice: there is no function '%s'" : "tools: there are none%s",
                o->only ? o->only : "");
        return NULL;
    }
    struct grammar *g = grammar_new(v, &o->grammar, e);
    if (!g)
        return NULL;
    struct tool_builder k = { .g = g, .x = &g->x, .f = f, .o = o, .loose = loose, .thinking = o->reasoning,
                              .relaxed = json_array(), .e = e };
    json_t *nothing = json_pack("{s:s}", "type", "null");
    grammar_schema_expr(g, nothing, &k.comma, &k.colon, e);
    json_decref(nothing);
    k.character = expr_chars(k.x, every, 1);
    uint32_t root = answer(&k, tools, n);
    if (json_array_size(k.relaxed) && !(g->relaxed = list_text(k.relaxed)))
        no_memory(&k);
    json_decref(k.relaxed);
    if (k.failed || grammar_finish(g, root, e) != 0) {
        grammar_close(g);
        return NULL;
    }
    return g;
}

/* Find the lenient functions whose schema cannot be compiled on its own.  After a few failures all
 * remaining functions are treated as if they failed, too, because each try may take long.  New
 * reference; NULL: out of memory. */
static json_t *find_loose(const struct grammar_vocab *v, const struct tool_format *f,
                          const struct tool_grammar_options *o)
{
    enum { MOST_TRIES = 4 };
    struct tool_grammar_options one = { .choice = TOOL_REQUIRED, .no_reasoning = 1, .grammar = o->grammar };
    json_t *loose = json_object();
    const json_t *t;
    size_t i;
    int bad = !loose;
    json_array_foreach(o->tools, i, t) {
        const json_t *function = json_object_get(t, "function");
        const char *name = json_string_value(json_object_get(function ? function : t, "name"));
        if (!name || !json_object_get(o->lenient, name))
            continue;
        struct grammar *g = NULL;
        struct err e;
        json_t *list = json_object_size(loose) < MOST_TRIES ? json_pack("[O]", t) : NULL;
        one.tools = list;
        if (list)
            g = compile(v, f, &one, NULL, &e);
        if (!g)
            bad |= json_object_set_new(loose, name, json_true());
        grammar_close(g);
        json_decref(list);
    }
    if (!bad)
        return loose;
    json_decref(loose);
    return NULL;
}

static int may_loosen(const struct tool_grammar_options *o, const struct err *e)
{
    return json_object_size(o->lenient) && e->code != ERR_MEMORY && e->code != ERR_CANCELLED;
}

struct grammar *tool_grammar_compile(const struct grammar_vocab *v, const struct tool_format *f,
                                     const struct tool_grammar_options *o, struct err *e)
{
    struct grammar *g = compile(v, f, o, NULL, e);
    if (g || !may_loosen(o, e))
        return g;
    json_t *loose = find_loose(v, f, o);
    if (json_object_size(loose))
        g = compile(v, f, o, loose, e);
    json_decref(loose);
    return g || !may_loosen(o, e) ? g : compile(v, f, o, o->lenient, e);      /* too large only together */
}
