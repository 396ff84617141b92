/* distinct.c - follow the text of arrays with uniqueItems and keep their items. */
#include "libcommon/grammar/distinct.h"

#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "libcommon/grammar/grow.h"

void distinct_release(struct distinct *d)
{
    free(d->text);
    free(d->level);
    free(d->item);
    memset(d, 0, sizeof *d);
}

int distinct_copy(struct distinct *to, const struct distinct *from)
{
    memset(to, 0, sizeof *to);
    if (!from->n_levels)
        return 0;
    if (grow((void **)&to->text, &to->room, from->n + 1, 1) != 0 ||
        grow((void **)&to->level, &to->room_levels, from->n_levels, sizeof *to->level) != 0 ||
        grow((void **)&to->item, &to->room_items, from->n_items + 1, sizeof *to->item) != 0) {
        distinct_release(to);
        return -1;
    }
    memcpy(to->text, from->text, from->n);
    memcpy(to->level, from->level, from->n_levels * sizeof *to->level);
    if (from->n_items)
        memcpy(to->item, from->item, from->n_items * sizeof *to->item);
    to->n = from->n;
    to->n_levels = from->n_levels;
    to->n_items = from->n_items;
    to->marks = from->marks;
    to->in_string = from->in_string;
    to->escaped = from->escaped;
    return 0;
}

void distinct_follow(struct distinct_place *p, int byte)
{
    if (!p->in_string)
        p->in_string = byte == '"';
    else if (p->escaped)
        p->escaped = 0;
    else if (byte == '\\')
        p->escaped = 1;
    else if (byte == '"')
        p->in_string = 0;
}

/* Whether two values of the same length are equal: objects may have their properties in another
 * order. */
static int same_value(const char *a, const char *b, uint32_t n)
{
    if (!memcmp(a, b, n))
        return 1;
    if (*a != *b || (*a != '{' && *a != '['))
        return 0;
    json_t *x = json_loadb(a, n, JSON_ALLOW_NUL, NULL), *y = json_loadb(b, n, JSON_ALLOW_NUL, NULL);
    const int same = x && y && json_equal(x, y);
    json_decref(x);
    json_decref(y);
    return same;
}

/* Returns 1 if an object in the text has a name twice.  Such an object is refused, because when
 * parsed it would equal an object with another text. */
static int has_name_twice(const char *text, uint32_t n)
{
    if (*text != '{' && *text != '[')
        return 0;
    json_t *v = json_loadb(text, n, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, NULL);
    json_decref(v);
    return !v;
}

/* End the item of the innermost level.  Returns 0; 1 if an earlier item equals it, or an object in
 * it has a name twice; -1 if memory ran out. */
static int end_item(struct distinct *d)
{
    struct distinct_level *l = d->n_levels ? &d->level[d->n_levels - 1] : NULL;
    if (!l || !l->is_array || !l->in_item || l->ended)
        return 0;
    const struct distinct_item it = { l->start, d->n - l->start };
    l->ended = 1;
    if (!l->is_distinct)
        return 0;
    if (has_name_twice(d->text + it.start, it.size))
        return 1;
    for (uint32_t i = l->first; i < d->n_items; i++)
        if (d->item[i].size == it.size && same_value(d->text + d->item[i].start, d->text + it.start, it.size))
            return 1;
    if (grow((void **)&d->item, &d->room_items, d->n_items + 1, sizeof *d->item) != 0)
        return -1;
    d->item[d->n_items++] = it;
    return 0;
}

static void begin_item(struct distinct *d)
{
    struct distinct_level *l = d->n_levels ? &d->level[d->n_levels - 1] : NULL;
    if (!l || !l->is_array || l->in_item)
        return;
    l->in_item = 1;
    l->ended = 0;
    l->start = d->n;
}

static int open_level(struct distinct *d, int byte, uint32_t marks)
{
    if (grow((void **)&d->level, &d->room_levels, d->n_levels + 1, sizeof *d->level) != 0)
        return -1;
    const uint8_t is_distinct = byte == '[' && marks > d->marks;
    d->level[d->n_levels++] = (struct distinct_level){ .is_array = byte == '[', .is_distinct = is_distinct,
                                                       .first = d->n_items };
    d->marks += is_distinct;
    return 0;
}

static void close_level(struct distinct *d)
{
    const struct distinct_level *l = &d->level[--d->n_levels];
    d->n_items = l->first;
    d->marks -= l->is_distinct;
}

static int put(struct distinct *d, int byte)
{
    if (grow((void **)&d->text, &d->room, d->n + 1, 1) != 0)
        return -1;
    d->text[d->n++] = (char)byte;
    return 0;
}

static int is_blank(int byte) { return byte == ' ' || byte == '\n' || byte == '\t' || byte == '\r'; }

int distinct_byte(struct distinct *d, int byte, uint32_t marks)
{
    struct distinct_place place = { d->in_string, d->escaped };
    int rc = 0;
    if (!d->n_levels && (byte != '[' || !marks))
        return 0;
    if (!d->in_string && is_blank(byte))
        return 0;
    const int was_string = d->in_string;
    distinct_follow(&place, byte);
    d->in_string = place.in_string;
    d->escaped = place.escaped;
    if (was_string)
        return put(d, byte) != 0 ? -1 : d->in_string || (d->level[d->n_levels - 1].is_array == 0) ? 0 : end_item(d);
    switch (byte) {
    case '[': case '{':
        begin_item(d);
        return put(d, byte) != 0 || open_level(d, byte, marks) != 0 ? -1 : 0;
    case ']': case '}':
        if ((rc = end_item(d)) != 0)
            return rc;
        close_level(d);
        if (!d->n_levels) {
            d->n = 0;
            return 0;
        }
        return put(d, byte) != 0 ? -1 : end_item(d);
    case ',':
        if ((rc = end_item(d)) != 0)
            return rc;
        d->level[d->n_levels - 1].in_item = 0;
        return put(d, byte);
    default:
        begin_item(d);
        return put(d, byte);
    }
}

/* The number of earlier items of a level. */
static uint32_t distinct_count(const struct distinct *d, const struct distinct_level *l)
{
    const uint32_t end = l + 1 < d->level + d->n_levels ? l[1].first : d->n_items;
    return l->is_distinct ? end - l->first : 0;
}

int distinct_rests(const struct distinct *d, const struct distinct_level *l, struct distinct_rests *r)
{
    const uint32_t count = distinct_count(d, l), had = l->in_item && !l->ended ? d->n - l->start : 0;
    *r = (struct distinct_rests){ .comma = l->in_item && l->ended, .in_string = d->in_string, .escaped = d->escaped };
    if (!count)
        return 0;
    if (!(r->v = malloc(count * sizeof *r->v)))
        return -1;
    for (uint32_t i = 0; i < count; i++) {
        const struct distinct_item it = d->item[l->first + i];
        if (had <= it.size && (!had || !memcmp(d->text + l->start, d->text + it.start, had)))
            r->v[r->n++] = (struct byte_span){ d->text + it.start + had, it.size - had };
    }
    if (r->n > 1)
        qsort(r->v, r->n, sizeof *r->v, text_compare);
    return 0;
}
