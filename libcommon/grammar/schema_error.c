/* schema_error.c - errors of a schema, with the JSON pointer of the keyword. */
#include "libcommon/grammar/schema.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/utf8.h"

void schema_path_add(struct schema_path *p, const char *key)
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

/* Find the JSON pointer of a value in the document. */
int schema_find_path(json_t *in, const json_t *what, struct schema_path *p, int depth)
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
            schema_path_add(p, key);
            if (schema_find_path(v, what, p, depth + 1))
                return 1;
            p->text[p->n = n] = '\0';
        }
    json_array_foreach(in, i, v)
        if (json_is_object(v) || json_is_array(v)) {
            snprintf(number, sizeof number, "%zu", i);
            schema_path_add(p, number);
            if (schema_find_path(v, what, p, depth + 1))
                return 1;
            p->text[p->n = n] = '\0';
        }
    return 0;
}

/* Find a keyword of the schema `at` in the user's document: *p gets its JSON pointer.  Returns the
 * schema there that contains it. */
static const json_t *place(struct schema *s, const json_t *at, const char *keyword, struct schema_path *p)
{
    memset(p, 0, sizeof *p);
    /* A made schema has the location of the schema that it was made from, which may also be
     * made. */
    for (size_t i = s->n_made; at && i--;) {
        struct schema_path inside = { .n = 0 };
        if (schema_find_path(s->made_from[2 * i], at, &inside, 0))
            at = s->made_from[2 * i + 1];
    }
    schema_find_path(s->root, at, p, 0);
    if (keyword)
        schema_path_add(p, keyword);
    while (p->n && utf8_valid(p->text, p->n) != p->n)
        p->text[--p->n] = '\0';
    for (size_t i = 0; i < p->n; i++)
        if ((unsigned char)p->text[i] < 0x20)
            p->text[i] = '?';
    return at;
}

uint32_t schema_report(struct schema *s, const json_t *at, const char *keyword, enum err_code code, const char *why)
{
    struct schema_path p;
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
    return schema_report(s, at, keyword, ERR_UNSUPPORTED, why);
}
uint32_t schema_limit(struct schema *s, const json_t *at, const char *why)
{
    return schema_report(s, at, NULL, ERR_LIMIT, why);
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
