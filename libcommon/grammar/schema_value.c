/* schema_value.c - JSON values as texts. */
#include "libcommon/grammar/schema.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void text_put(struct json_text *b, const void *p, size_t n)
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

void text_put_string(struct json_text *b, const char *s, size_t n)
{
    static const char names[] = "btn_fr";       /* 8 to 13 */
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        char esc[8];
        if (c == '"' || c == '\\')
            text_put(b, (char[]){ '\\', (char)c }, 2);
        else if (c >= 8 && c <= 13 && c != 11)
            text_put(b, (char[]){ '\\', names[c - 8] }, 2);
        else if (c < 0x20)
            text_put(b, esc, (size_t)snprintf(esc, sizeof esc, "\\u%04x", c));
        else
            text_put(b, s + i, 1);
    }
}

/* Write a value that is neither an array nor an object. */
static void put_value(struct json_text *b, const json_t *v)
{
    char text[64];
    if (json_is_string(v)) {
        text_put(b, "\"", 1);
        text_put_string(b, json_string_value(v), json_string_length(v));
        text_put(b, "\"", 1);
    } else if (json_is_real(v)) {
        double d = json_real_value(v);
        for (int k = 1; k <= 17; k++) {
            snprintf(text, sizeof text, "%.*g", k, d);
            if (strtod(text, NULL) == d)
                break;
        }
        /* the locale of the process may have another decimal point, of several bytes */
        const size_t whole = strspn(text, "-0123456789"), point = strcspn(text + whole, "-+0123456789e");
        text_put(b, text, whole);
        text_put(b, ".", point > 0);
        text_put(b, text + whole + point, strlen(text + whole + point));
    } else if (json_is_integer(v)) {
        text_put(b, text, (size_t)snprintf(text, sizeof text, "%lld", (long long)json_integer_value(v)));
    } else {
        const char *word = json_is_null(v) ? "null" : json_is_true(v) ? "true" : "false";
        text_put(b, word, strlen(word));
    }
}

/* An expression for an array or object, with the blanks that its punctuation may have. */
static uint32_t container(struct schema *s, const json_t *v, int depth)
{
    struct exprs *x = &s->g->x;
    struct json_text b = { 0 };
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
            text_put(&b, "\"", 1);
            text_put_string(&b, key, strlen(key));
            text_put(&b, "\"", 1);
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
    struct json_text b = { 0 };
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
