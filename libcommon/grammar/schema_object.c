/* schema_object.c - objects: declared properties in order, then further ones. */
#include "libcommon/grammar/schema.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_KEY_PATTERNS = 10, KEY_STATES = 1 << 14, MAX_NEEDED = 4, N_CLASSES = 1 << MAX_NEEDED };

struct property { const char *name; uint32_t key, value; int required; };

/* The keywords of a member that concern properties; NULL: it has none. */
struct property_rules { json_t *properties, *patterns, *more, *left, *names; };

struct object {
    struct schema *s;
    const struct member *m; int n;
    /* rules of each member; read once, because each property uses them */
    struct property_rules *rules;
    struct property *p; int n_p, room;
    int32_t min, max;
    /* KEY : VALUE of further properties, without the first quotation mark; EXPR_NONE: none. */
    uint32_t extra;
    /* Each SOME_PROPERTY, which a further property must satisfy. */
    const json_t *some[MAX_NEEDED]; int n_some;
};

static int is_made(const struct member *m) { return json_object_get(m->s, MADE) != NULL; }

static struct property *find_property(struct object *o, const char *name)
{
    for (int i = 0; i < o->n_p; i++)
        if (!strcmp(o->p[i].name, name))
            return &o->p[i];
    return NULL;
}

static int add_property(struct object *o, json_t *seen, const char *name)
{
    if (json_object_get(seen, name))
        return 0;
    if (o->n_p == o->room) {
        const int room = 2 * o->room + 16;
        struct property *p = realloc(o->p, (size_t)room * sizeof *p);
        if (!p) {
            schema_nomem(o->s);
            return -1;
        }
        o->p = p;
        o->room = room;
    }
    memset(&o->p[o->n_p], 0, sizeof *o->p);
    o->p[o->n_p++].name = name;
    json_object_set_new(seen, name, json_true());
    return 0;
}

static int name_matches(struct schema *s, const struct member *m, const char *pattern, const char *name)
{
    json_t *v = json_string(name), *one = json_pack("{s:s}", "pattern", pattern);
    (void)m;
    int r = schema_valid(s, one, v);
    json_decref(v);
    json_decref(one);
    return r > 0;
}

/* Returns 1 if a property is evaluated by a member next to u or inside of it.  name: NULL for a
 * further property, whose name matches the patterns that are keys of `matched`. */
static int is_property_evaluated(struct object *o, const struct member *u, const char *name, const json_t *matched)
{
    const char *pattern;
    json_t *v;
    for (int j = 0; j < o->n; j++) {
        const json_t *x = o->m[j].s;
        if (!schema_evaluates(o->m, o->n, &o->m[j], u))
            continue;
        if (json_object_get(x, "additionalProperties") ||
            (name && json_object_get(json_object_get(x, "properties"), name)) ||
            (x != u->s && json_object_get(x, "unevaluatedProperties")))
            return 1;
        json_object_foreach(json_object_get(x, "patternProperties"), pattern, v)
            if (name ? name_matches(o->s, &o->m[j], pattern, name) : json_object_get(matched, pattern) != NULL)
                return 1;
    }
    return 0;
}

static int read_rules(struct object *o)
{
    if (!(o->rules = malloc(((size_t)o->n + 1) * sizeof *o->rules))) {
        schema_nomem(o->s);
        return -1;
    }
    for (int i = 0; i < o->n; i++) {
        const json_t *m = o->m[i].s;
        o->rules[i] = (struct property_rules){
            .properties = json_object_get(m, "properties"), .patterns = json_object_get(m, "patternProperties"),
            .more = json_object_get(m, "additionalProperties"), .left = json_object_get(m, "unevaluatedProperties"),
            .names = json_object_get(m, "propertyNames"),
        };
    }
    return 0;
}

/* The value of a property of this name; EXPR_NONE: the property must not be there. */
static uint32_t value_of(struct object *o, const char *name)
{
    struct schema *s = o->s;
    struct member *v = NULL;
    int k = 0, room = 0;
    uint32_t r = EXPR_NONE;
    for (int i = 0; i < o->n; i++) {
        const struct property_rules *rules = &o->rules[i];
        json_t *sub = rules->properties ? json_object_get(rules->properties, name) : NULL, *x;
        const char *pattern;
        int known = sub != NULL, n_patterns = (int)json_object_size(rules->patterns);
        if (k + n_patterns + 3 > room) {
            struct member *w = realloc(v, (size_t)(room = 2 * room + n_patterns + 8) * sizeof *w);
            if (!w) {
                schema_nomem(s);
                goto done;
            }
            v = w;
        }
        if (sub)
            v[k++] = (struct member){ sub, 0, NULL };
        json_object_foreach(rules->patterns, pattern, x)
            if (name_matches(s, &o->m[i], pattern, name)) {
                known = 1;
                v[k++] = (struct member){ x, 0, NULL };
            }
        if (!known && rules->more)
            v[k++] = (struct member){ rules->more, 0, NULL };
        if (rules->left && !json_is_true(rules->left) && !s->loose && !is_property_evaluated(o, &o->m[i], name, NULL))
            v[k++] = (struct member){ rules->left, 0, NULL };
        if (rules->names) {
            json_t *text = json_string(name);
            int ok = schema_valid(s, rules->names, text);
            json_decref(text);
            if (ok <= 0)
                goto done;
        }
        if (s->failed)
            goto done;
    }
    r = schema_compile(s, v, k);
done:
    free(v);
    return r;
}

/* The texts that e matches, without those that begin with one of the texts t (t is sorted, and its
 * texts include the closing quotation mark).  depth: number of bytes of t that were read
 * already. */
static uint32_t without_texts(struct exprs *x, uint32_t e, const struct byte_span *t, size_t n, size_t depth)
{
    struct arm arms[256];
    uint64_t edges[4] = { 1, 0, 0, 0 };
    uint32_t n_arms = 0;
    size_t i = 0;
    if (n == 0)
        return e;
    expr_edges(x, e, edges);
    for (size_t k = 0; k < n; k++)
        if (t[k].n > depth) {
            unsigned c = (unsigned char)t[k].p[depth];
            edges[c >> 6] |= (uint64_t)1 << (c & 63);
            c++;
            if (c < 256)
                edges[c >> 6] |= (uint64_t)1 << (c & 63);
        }
    while (i < n && t[i].n == depth)
        i++;
    for (int b = 0, lo = 0; b < 256; b++) {
        if (b < 255 && !(edges[(b + 1) >> 6] >> ((b + 1) & 63) & 1))
            continue;
        uint32_t to = expr_step(x, e, lo);
        size_t j = i;
        while (j < n && (unsigned char)t[j].p[depth] == lo)
            j++;
        if (j > i && to != EXPR_NONE) {
            size_t rest = j - i;
            /* a text that ends here is excluded as a whole: its last byte is the quotation mark */
            to = t[i].n == depth + 1 ? (uint32_t)EXPR_NONE : without_texts(x, to, t + i, rest, depth + 1);
        }
        i = j;
        arms[n_arms++] = (struct arm){ (uint8_t)lo, (uint8_t)b, to };
        lo = b + 1;
    }
    return expr_arms(x, arms, n_arms);
}

/* The keys (to the closing quotation mark) of e without the declared properties and the names of
 * the list. */
static uint32_t without_names(struct object *o, uint32_t e, const json_t *list)
{
    struct exprs *x = &o->s->g->x;
    const size_t n_declared = (size_t)o->n_p, n = n_declared + json_array_size(list);
    struct byte_span *t = malloc((n + 1) * sizeof *t);
    size_t *end = malloc((n + 1) * sizeof *end);
    struct json_text b = { 0 };
    uint32_t r = EXPR_NONE;
    for (size_t i = 0; t && end && i < n; i++) {
        const char *name = i < n_declared ? o->p[i].name : json_string_value(json_array_get(list, i - n_declared));
        text_put_string(&b, name, strlen(name));
        text_put(&b, "\"", 1);
        end[i] = b.n;
    }
    if (!t || !end || b.failed) {
        schema_nomem(o->s);
    } else {
        for (size_t i = 0; i < n; i++)
            t[i] = (struct byte_span){ b.p + (i ? end[i - 1] : 0), end[i] - (i ? end[i - 1] : 0) };
        if (n)
            qsort(t, n, sizeof *t, text_compare);
        r = without_texts(x, exprs_settle(x, e, KEY_STATES), t, n, 0);
    }
    free(t);
    free(end);
    free(b.p);
    return r;
}

uint32_t schema_needed_names(struct schema *s, const json_t *some)
{
    struct exprs *x = &s->g->x;
    uint32_t e = EXPR_ALL;
    json_t *v;
    size_t k;
    if ((v = json_object_get(some, "names")))
        e = expr_both(x, e, expr_not(x, schema_strings(s, v, 1, 0)));
    if ((v = json_object_get(some, "pattern")))
        e = expr_both(x, e, schema_pattern(s, some, NULL, json_string_value(v), json_string_length(v), NULL, NULL));
    json_array_foreach(json_object_get(some, "not"), k, v)
        e = expr_both(x, e, expr_not(x, schema_pattern(s, some, NULL, json_string_value(v), json_string_length(v), NULL,
                                                       NULL)));
    return e;
}

/* Keys (to the closing quotation mark) of further properties, which satisfy propertyNames.  class:
 * the set of SOME_PROPERTY that apply to the keys; 0: keys of any class. */
static uint32_t other_keys(struct object *o, unsigned class)
{
    struct schema *s = o->s;
    struct exprs *x = &s->g->x;
    uint32_t e = expr_repeat(x, s->plain_char, 0, EXPR_MANY);
    json_t *v, *except = json_array();
    for (int i = 0; i < o->n && !s->failed; i++)
        if ((v = json_object_get(o->m[i].s, "propertyNames")))
            e = expr_both(x, e, schema_strings(s, v, 0, 0));
    for (int i = 0; i < o->n_some && class && !s->failed; i++) {
        const uint32_t names = schema_needed_names(s, o->some[i]);
        v = json_object_get(o->some[i], "except");
        if (class >> i & 1)
            json_array_extend(except, v);
        e = expr_both(x, e, class >> i & 1 ? names : expr_either(x, expr_not(x, names), schema_texts(s, v)));
    }
    e = s->failed ? (uint32_t)EXPR_NONE : without_names(o, expr_concat(x, e, expr_byte(x, '"', '"')), except);
    json_decref(except);
    return e;
}

struct key_pattern { const char *text; uint32_t e; };

/* Collect the distinct patternProperties of all members.  Returns their number; -1 if there are too
 * many or one is refused. */
static int key_patterns(struct object *o, struct key_pattern *to)
{
    int n = 0;
    for (int i = 0; i < o->n; i++) {
        const json_t *m = o->m[i].s;
        const char *text;
        json_t *v;
        json_object_foreach(json_object_get(m, "patternProperties"), text, v) {
            int k = 0;
            while (k < n && strcmp(to[k].text, text) != 0)
                k++;
            if (k < n)
                continue;
            if (n == MAX_KEY_PATTERNS) {
                schema_limit(o->s, m, "more patternProperties than can be enforced for one object (10)");
                return -1;
            }
            to[n].text = text;
            to[n++].e = schema_pattern(o->s, m, "patternProperties", text, strlen(text), NULL, NULL);
        }
    }
    return o->s->failed ? -1 : n;
}

/* Collect in v the schemas for the value of a further property.  Its name matches exactly the
 * patterns that are keys of `matched`, and the property is to satisfy the conditions SOME_PROPERTY
 * of the set `served`.  Returns their number, or -1 if no such property is allowed. */
static int further_schemas(struct object *o, const json_t *matched, unsigned served, struct member *v, int room)
{
    int k = 0;
    for (int i = 0; i < o->n_some; i++)
        if (served >> i & 1)
            v[k++] = (struct member){ json_object_get(o->some[i], "value"), 0, NULL };
    for (int i = 0; i < o->n; i++) {
        const json_t *m = o->m[i].s;
        json_t *patterns = json_object_get(m, "patternProperties"), *more = json_object_get(m, "additionalProperties"),
               *left = json_object_get(m, "unevaluatedProperties"), *sub;
        const char *text;
        int known = 0;
        json_object_foreach(patterns, text, sub) {
            if (!json_object_get(matched, text))
                continue;
            known = 1;
            if (json_is_false(sub) || k == room)
                return -1;
            v[k++] = (struct member){ sub, 0, NULL };
        }
        if (known || !more)
            more = NULL;
        if (!left || json_is_true(left) || o->s->loose || is_property_evaluated(o, &o->m[i], NULL, matched))
            left = NULL;
        if (json_is_false(more) || json_is_false(left) || k + 2 > room)
            return -1;
        if (more)
            v[k++] = (struct member){ more, 0, NULL };
        if (left)
            v[k++] = (struct member){ left, 0, NULL };
    }
    return k;
}

int schema_may_have_further(const struct schema *s, const struct member *m, int n)
{
    int declared = 0, open = 0;
    for (int i = 0; i < n; i++) {
        const json_t *x = m[i].s, *more = json_object_get(x, "additionalProperties"),
                     *left = json_object_get(x, "unevaluatedProperties");
        json_t *patterns = json_object_get(x, "patternProperties");
        if (is_made(&m[i]))
            continue;
        if (json_is_false(more) && json_object_size(patterns) == 0)
            return 0;
        declared |= json_object_size(json_object_get(x, "properties")) > 0;
        open |= (more && !json_is_false(more)) || (left && !json_is_false(left)) || json_object_size(patterns) > 0;
    }
    return open || !declared || s->loose || s->g->options.open_objects;
}

/* Compile one further property.  class 0: its name may be of any class.  Otherwise its name is of
 * this class (the set of conditions SOME_PROPERTY that apply to it), and the property satisfies the
 * conditions of the set `served`.  For each set of patterns that a key may match, there is a branch
 * with these keys and the schemas of their value. */
static uint32_t further(struct object *o, unsigned class, unsigned served)
{
    struct schema *s = o->s;
    struct exprs *x = &s->g->x;
    struct key_pattern pattern[MAX_KEY_PATTERNS];
    uint32_t ways[1 << MAX_KEY_PATTERNS], n_ways = 0;
    if (!schema_may_have_further(s, o->m, o->n))
        return EXPR_NONE;
    const int n = key_patterns(o, pattern);
    if (n < 0)
        return EXPR_NONE;
    uint32_t keys = other_keys(o, class), quote = expr_byte(x, '"', '"');
    for (uint32_t which = 0; which < 1u << n && !s->failed && keys != EXPR_NONE; which++) {
        struct member v[256];
        json_t *matched = json_object();
        uint32_t e = keys;
        for (int p = 0; p < n; p++) {
            uint32_t q = expr_concat(x, pattern[p].e, quote);
            e = expr_both(x, e, which >> p & 1 ? q : expr_not(x, q));
            if (which >> p & 1)
                json_object_set_new(matched, pattern[p].text, json_true());
        }
        const int k = further_schemas(o, matched, served, v, 256);
        json_decref(matched);
        if (k < 0)
            continue;
        e = exprs_settle(x, e, KEY_STATES);
        if (e != EXPR_NONE)
            ways[n_ways++] = expr_seq(x, grammar_term(s->g, expr_concat(x, e, s->colon)), schema_compile(s, v, k));
    }
    return s->failed ? (uint32_t)EXPR_NONE : expr_any_of(x, ways, n_ways);
}

/* The further properties that the conditions SOME_PROPERTY require, and the end of the object. They
 * come last, because the last of several equal names counts.
 *
 * A class of names is the set of conditions that apply to them.  The required properties have names
 * of different classes, so no two names are equal.  The classes come in a fixed order. */
struct needed {
    struct object *o;
    uint32_t comma, end;
    uint32_t property[N_CLASSES][N_CLASSES];    /* 1 + expression, by class and served set; 0: not known */
    /* by the next class, the served set, and the number of properties still to come; 0: unknown,
     * else 1 + expression */
    uint32_t rest[N_CLASSES + 1][N_CLASSES][MAX_NEEDED + 1];
};

static uint32_t needed_property(struct needed *d, unsigned class, unsigned served)
{
    uint32_t *known = &d->property[class][served];
    if (!*known)
        *known = 1 + further(d->o, class, served);
    return *known - 1;
}

/* Compile `count` more properties and the end of the object.  Their names are of `class` or later
 * classes; together the properties satisfy all conditions SOME_PROPERTY that are not in
 * `served`. */
static uint32_t needed_rest(struct needed *d, unsigned class, unsigned served, int count)
{
    struct exprs *x = &d->o->s->g->x;
    const unsigned n_classes = 1u << d->o->n_some;
    uint32_t *known = &d->rest[class][served][count], way[N_CLASSES + 1], n = 0;
    if (served == n_classes - 1 || count == 0 || class == n_classes)
        return served == n_classes - 1 && count == 0 ? d->end : (uint32_t)EXPR_NONE;
    if (*known)
        return *known - 1;
    way[n++] = needed_rest(d, class + 1, served, count);
    const unsigned open = class & ~served;
    for (unsigned set = open; set; set = (set - 1) & open) {
        uint32_t rest = needed_rest(d, class + 1, served | set, count - 1);
        if (rest == EXPR_NONE)
            continue;
        if (count > 1)
            rest = expr_seq(x, d->comma, rest);
        way[n++] = expr_seq(x, needed_property(d, class, set), rest);
    }
    *known = 1 + expr_any_of(x, way, n);
    return *known - 1;
}

/* Set needed[t] to the expression of t properties, which together satisfy all conditions
 * SOME_PROPERTY, and the end of the object. */
static void needed_ends(struct object *o, uint32_t comma, uint32_t end, uint32_t needed[MAX_NEEDED + 1])
{
    struct needed *d = calloc(1, sizeof *d);
    if (!d) {
        schema_nomem(o->s);
        return;
    }
    d->o = o;
    d->comma = comma;
    d->end = end;
    for (int t = 1; t <= o->n_some; t++)
        needed[t] = needed_rest(d, 1, 0, t);
    free(d);
}

/* Compute expressions for the text that may follow all declared properties of an object.  Both are
 * indexed by c, the number of properties the object has so far: key[c] is the text after the
 * opening quotation mark of a further key, done[c] the text after the value of the last
 * property. */
static void further_rows(struct object *o, int32_t cap, uint32_t comma, uint32_t end, uint32_t *key, uint32_t *done)
{
    struct exprs *x = &o->s->g->x;
    const uint32_t again = expr_seq(x, comma, o->extra), before = expr_seq(x, o->extra, comma);
    uint32_t needed[MAX_NEEDED + 1] = { 0 };
    if (o->n_some)
        needed_ends(o, comma, end, needed);
    for (int32_t c = cap; c >= 0; c--) {
        const int32_t room = o->max == EXPR_MANY ? EXPR_MANY : o->max - c;
        key[c] = EXPR_NONE;
        for (int t = 1; t <= o->n_some; t++)
            if ((room == EXPR_MANY || t <= room) && c + t >= o->min)
                key[c] = expr_any_of(x, (uint32_t[]){ key[c], expr_seq(x, expr_times(x, before, 0, room == EXPR_MANY
                                                                       ? room : room - t), needed[t]) }, 2);
        if (!o->n_some && room != 0 && c + 1 >= o->min)
            key[c] = expr_seq(x, o->extra, expr_seq(x, expr_times(x, again, 0, room == EXPR_MANY ? room : room - 1),
                                                    end));
        done[c] = expr_any_of(x, (uint32_t[]){ c >= o->min && !o->n_some ? end : (uint32_t)EXPR_NONE,
                                               expr_seq(x, comma, key[c]) }, 2);
    }
}

/* Compile the properties of the object and its end.  The declared properties come in order and are
 * compiled from the last one to the first.  For property i, key[c] and done[c] are the text that
 * may follow from i on, if the object has c properties so far: key[c] after the opening quotation
 * mark of a key, done[c] after a value. */
static uint32_t sequence(struct object *o)
{
    struct schema *s = o->s;
    struct exprs *x = &s->g->x;
    uint32_t end = expr_term(x, expr_concat(x, s->space, expr_byte(x, '}', '}'))),
             comma = expr_term(x, expr_concat(x, s->comma, expr_byte(x, '"', '"')));
    uint32_t quote = expr_term(x, expr_concat(x, s->space, expr_byte(x, '"', '"')));
    /* Counts of properties matter up to cap.  The names of further properties cannot be
     * distinguished, so they count as one for the minimum. */
    int32_t cap = o->max != EXPR_MANY ? o->max : o->min;
    if ((int64_t)(cap + 1) * (o->n_p + 2) > MAX_TABLE || cap > MAX_COUNTED)
        return schema_limit(s, o->m[0].s, "too many properties that must be counted");
    size_t n = (size_t)cap + 2;
    uint32_t *rows = calloc(4 * n, sizeof *rows), *key = rows, *done = rows + n, *key2 = rows + 2 * n,
             *done2 = rows + 3 * n;
    if (!rows)
        return schema_nomem(s);
    int needed = 0;                     /* number of required properties from property i on */
    further_rows(o, cap, comma, end, key, done);
    for (int i = o->n_p - 1; i >= 0; i--) {
        const struct property *p = &o->p[i];
        for (int32_t c = 0; c <= cap; c++) {
            int32_t c1 = o->max == EXPR_MANY ? (c < cap ? c + 1 : cap) : c + 1;
            uint32_t with = c1 <= cap && p->value != EXPR_NONE ? expr_seq(x, p->key, expr_seq(x, p->value, done[c1]))
                                                               : (uint32_t)EXPR_NONE;
            key2[c] = p->required ? with : expr_any_of(x, (uint32_t[]){ with, key[c] }, 2);
        }
        needed += p->required;
        for (int32_t c = 0; c <= cap; c++)
            done2[c] = expr_any_of(x, (uint32_t[]){ !needed && !o->n_some && c >= o->min ? end : (uint32_t)EXPR_NONE,
                                                    expr_seq(x, comma, key2[c]) }, 2);
        uint32_t *t = key;
        key = key2;
        key2 = t;
        t = done;
        done = done2;
        done2 = t;
    }
    uint32_t r = expr_any_of(x, (uint32_t[]){ !needed && !o->n_some && o->min == 0 ? end : (uint32_t)EXPR_NONE,
                                              expr_seq(x, quote, key[0]) }, 2);
    free(rows);
    return expr_seq(x, expr_term(x, expr_byte(x, '{', '{')), r);
}

/* Read minProperties and maxProperties of all members. */
static void count_bounds(struct object *o)
{
    for (int k = 0; k < o->n && !o->s->failed; k++) {
        const int64_t most = schema_count(o->s, o->m[k].s, "maxProperties");
        o->min = larger(o->min, schema_count(o->s, o->m[k].s, "minProperties"));
        if (most >= 0 && (o->max == EXPR_MANY || most < o->max))
            o->max = (int32_t)most;
    }
}

/* List the declared properties in the order of the schema, then required ones that no member
 * declares.  Properties of made schemas come last, because their order is arbitrary.  Returns 0; -1
 * if the schema has failed. */
static int declare_properties(struct object *o)
{
    json_t *seen = json_object(), *v;
    const char *name;
    size_t i;
    int rc = 0;
    for (int made = 0; made < 2; made++)
        for (int k = 0; k < o->n && rc == 0; k++)
            if (is_made(&o->m[k]) == made)
                json_object_foreach(json_object_get(o->m[k].s, "properties"), name, v)
                    if (rc == 0)
                        rc = add_property(o, seen, name);
    for (int k = 0; k < o->n && rc == 0; k++)
        json_array_foreach(json_object_get(o->m[k].s, "required"), i, v) {
            if (rc == 0 && !json_is_string(v)) {
                schema_refuse(o->s, o->m[k].s, "required", "expected a list of strings");
                rc = -1;
            }
            if (rc == 0)
                rc = add_property(o, seen, json_string_value(v));
        }
    json_decref(seen);
    return rc;
}

static void mark_required(struct object *o)
{
    json_t *v;
    size_t i;
    for (int k = 0; k < o->n; k++)
        json_array_foreach(json_object_get(o->m[k].s, "required"), i, v) {
            const char *name = json_string_value(v);
            /* names are often in the same order in both lists */
            struct property *p = i < (size_t)o->n_p && !strcmp(o->p[i].name, name) ? &o->p[i] : find_property(o, name);
            p->required = 1;
        }
}

/* Compile key and value of each declared property.  Returns the number of those that are allowed;
 * -1 if the schema has failed or a required property is not allowed. */
static int compile_properties(struct object *o)
{
    struct exprs *x = &o->s->g->x;
    int n_possible = 0;
    for (int k = 0; k < o->n_p && !o->s->failed; k++) {
        struct property *p = &o->p[k];
        p->value = value_of(o, p->name);
        n_possible += p->value != EXPR_NONE;
        if (p->required && p->value == EXPR_NONE)
            return -1;
        json_t *key = json_string(p->name);
        uint32_t text = schema_values(o->s, &key, 1);
        p->key = expr_term(x, expr_concat(x, expr_step(x, text, '"'), o->s->colon));
        json_decref(key);
    }
    return o->s->failed ? -1 : n_possible;
}

/* Compile further properties (those that are not declared), and collect the members' conditions
 * SOME_PROPERTY, each of which requires a property of a certain kind.
 *
 * A class of names is the set of conditions that apply to them.  Objects with two required
 * properties of one class are not accepted, because their names could not be told apart.  Returns
 * 0; -1 if there are more conditions than classes can distinguish, so that no object is
 * accepted. */
static int compile_further(struct object *o)
{
    struct schema *s = o->s;
    const json_t *at = NULL;
    int n = 0;
    for (int k = 0; k < o->n; k++) {
        const json_t *some = json_object_get(o->m[k].s, SOME_PROPERTY);
        if (!some)
            continue;
        at = o->m[k].s;
        if (n++ < MAX_NEEDED)
            o->some[o->n_some++] = some;
    }
    if (n > 1 && !s->n_partial++)
        s->partial_at = at;
    if (n > MAX_NEEDED)
        return -1;
    o->extra = further(o, 0, 0);
    return 0;
}

/* Called if minProperties requires more than one further property; their names could be equal.
 * Ignore minProperties in a negation, else refuse it. */
static void refuse_min_properties(struct object *o)
{
    struct schema *s = o->s;
    const struct member *of = NULL;
    for (int k = 0; k < o->n; k++)
        if (json_object_get(o->m[k].s, "minProperties") && (!of || !is_made(&o->m[k])))
            of = &o->m[k];
    if (of && !is_made(of))
        schema_refuse(s, of->s, "minProperties", "beyond the declared properties it can be enforced for one more only, as two others might have the same name");
    else if (!s->n_partial++)
        s->partial_at = of ? of->s : NULL;
}

uint32_t schema_object(struct schema *s, const struct member *m, int n)
{
    struct object o = { .s = s, .m = m, .n = n, .max = EXPR_MANY };
    uint32_t r = EXPR_NONE;
    int n_possible;
    count_bounds(&o);
    if (s->failed || read_rules(&o) != 0 || declare_properties(&o) != 0 || (o.max != EXPR_MANY && o.min > o.max))
        goto done;
    mark_required(&o);
    if ((n_possible = compile_properties(&o)) < 0 || compile_further(&o) != 0 || s->failed)
        goto done;
    if (o.min > n_possible + 1 && o.min > n_possible + o.n_some && o.extra != EXPR_NONE)
        refuse_min_properties(&o);
    else
        r = sequence(&o);
done:
    free(o.rules);
    free(o.p);
    return s->failed ? (uint32_t)EXPR_NONE : r;
}
