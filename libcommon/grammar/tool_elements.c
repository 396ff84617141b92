/* tool_elements.c - read values that are XML elements (MiniMax M3). */
#include "libcommon/grammar/tool_elements.h"

#include <string.h>

enum { MORE = TOOL_READ_MORE, DONE = TOOL_READ_DONE, BAD = TOOL_READ_BAD, MOST_DEPTH = 64 };

static void blanks(const char **at, const char *end)
{
    while (*at < end && (**at == ' ' || **at == '\t' || **at == '\n' || **at == '\r'))
        ++*at;
}

/* Read text that must be s. */
static int exactly(const char **at, const char *end, const char *s, size_t n)
{
    const size_t there = (size_t)(end - *at) < n ? (size_t)(end - *at) : n;
    if (memcmp(*at, s, there) != 0)
        return BAD;
    *at += there;
    return there == n ? DONE : MORE;
}

enum tool_read element_at(const struct tool_format *f, const char *at, const char *end)
{
    blanks(&at, end);
    const int rc = exactly(&at, end, f->key_open, strlen(f->key_open));
    if (rc != DONE || at == end)
        return rc == BAD ? TOOL_READ_BAD : TOOL_READ_MORE;
    return *at == '/' ? TOOL_READ_BAD : TOOL_READ_DONE;
}

enum tool_read element_end(const struct tool_format *f, const char **at, const char *end, const char *key, size_t n)
{
    int rc = exactly(at, end, f->value_close, strlen(f->value_close));
    if (rc == DONE)
        rc = exactly(at, end, key, n);
    if (rc == DONE)
        rc = exactly(at, end, f->key_close, strlen(f->key_close));
    return (enum tool_read)rc;
}

enum tool_read element_begin(const struct tool_format *f, const char **at, const char *end, const char **key, size_t *n)
{
    blanks(at, end);
    const int rc = exactly(at, end, f->key_open, strlen(f->key_open));
    if (rc != DONE)
        return (enum tool_read)rc;
    if (*at < end && **at == '/')
        return TOOL_READ_BAD;
    *key = *at;
    const char *close = memmem(*at, (size_t)(end - *at), f->key_close, strlen(f->key_close));
    *n = (size_t)((close ? close : end) - *at);
    if (*n > ELEMENT_NAME || memchr(*key, '<', *n) || memchr(*key, '\0', *n) || (close && !*n))
        return TOOL_READ_BAD;
    if (!close)
        return TOOL_READ_MORE;
    *at = close + strlen(f->key_close);
    return TOOL_READ_DONE;
}

static int has_type(const json_t *schema, const char *type)
{
    const char *t = json_string_value(json_object_get(schema, "type"));
    return t && !strcmp(t, type);
}

json_t *element_text(const json_t *schema, const char *text, size_t n)
{
    if (!n && has_type(schema, "array"))
        return json_array();
    if (!n && has_type(schema, "object"))
        return json_object();
    json_t *v = has_type(schema, "string") ? NULL : json_loadb(text, n, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, NULL);
    return v ? v : json_stringn(text, n);
}

static int elements(const struct tool_format *f, const char **at, const char *end, const json_t *schema, int depth,
                    json_t **value);

/* Read what is between the tags of an element. */
static int inside(const struct tool_format *f, const char **at, const char *end, const json_t *schema, int depth,
                  json_t **value)
{
    const int nested = has_type(schema, "string") ? BAD : element_at(f, *at, end);
    if (nested != BAD)
        return nested == MORE ? MORE : elements(f, at, end, schema, depth + 1, value);
    const char *from = *at, *hit = memmem(from, (size_t)(end - from), f->value_close, strlen(f->value_close));
    if (!hit)
        return MORE;
    *value = element_text(schema, from, (size_t)(hit - from));
    *at = hit;
    return *value ? DONE : BAD;
}

/* Read one element and add it to the list or object *to, which the first element creates. */
static int element(const struct tool_format *f, const char **at, const char *end, const json_t *schema, int depth,
                   json_t **to)
{
    const char *key;
    char name[ELEMENT_NAME + 1];
    size_t n;
    json_t *v = NULL;
    int rc = element_begin(f, at, end, &key, &n);
    if (rc != DONE)
        return rc;
    memcpy(name, key, n);
    name[n] = '\0';
    const int item = !strcmp(name, "item"),
              list = *to ? json_is_array(*to) : has_type(schema, "array") || (item && !has_type(schema, "object"));
    if (list && !item)
        return BAD;
    *to = *to ? *to : list ? json_array() : json_object();
    const json_t *of = list ? json_object_get(schema, "items")
                            : json_object_get(json_object_get(schema, "properties"), name);
    if ((rc = inside(f, at, end, of, depth, &v)) == DONE)
        rc = element_end(f, at, end, key, n);
    if (rc == DONE && list)
        rc = json_array_append(*to, v) == 0 ? DONE : BAD;
    else if (rc == DONE && !json_object_get(*to, name))
        rc = json_object_set(*to, name, v) == 0 ? DONE : BAD;
    json_decref(v);
    return rc;
}

static int elements(const struct tool_format *f, const char **at, const char *end, const json_t *schema, int depth,
                    json_t **value)
{
    int rc = depth > MOST_DEPTH ? BAD : DONE, next = DONE;
    *value = NULL;
    while (rc == DONE && (next = element_at(f, *at, end)) == DONE)
        rc = element(f, at, end, schema, depth, value);
    if (rc == DONE && next == MORE)
        rc = MORE;
    if (rc == DONE)
        blanks(at, end);
    if (rc != DONE) {
        json_decref(*value);
        *value = NULL;
    }
    return rc;
}

enum tool_read elements_read(const struct tool_format *f, const char **at, const char *end, const json_t *schema,
                             json_t **value)
{
    return (enum tool_read)elements(f, at, end, schema, 0, value);
}

void elements_open(struct open_part *o, const char *base, const char *text, const char *end)
{
    enum { LEAST = 1024 };
    *o = (struct open_part){ .kind = OPEN_ELEMENTS, .at = (size_t)(text - base), .silent = 1, .depth = 1,
                             .again = 2 * (size_t)(end - base) + LEAST };
}

enum tool_read elements_on(struct open_part *o, const struct tool_format *f, const char *base, const char *end)
{
    const size_t mark = strlen(f->key_open);
    const char *at = base + o->at, *hit;
    while ((hit = memmem(at, (size_t)(end - at), f->key_open, mark)) && hit + mark < end) {
        o->depth += hit[mark] == '/' ? -1 : 1;
        at = hit + mark;
        if (o->depth == 0)
            return TOOL_READ_DONE;
    }
    /* a part of a mark may be at the end */
    o->at = (size_t)((hit ? hit : (size_t)(end - at) < mark ? at : end - mark + 1) - base);
    return (size_t)(end - base) >= o->again ? TOOL_READ_DONE : TOOL_READ_MORE;
}
