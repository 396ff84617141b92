/* schema_shape.c - strings, arrays and objects. */
#include "libcommon/grammar/schema.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_CONTAINS = 3, MAX_UNIQUE = 8, MAX_COUNTED = 4096, MAX_TABLE = 400000, MAX_KEY_PATTERNS = 10,
       MAX_PATTERN_STATES = 4096 };

static int32_t larger(int32_t a, int64_t b) { return b > a ? (int32_t)b : a; }

/* ---- strings ---- */

/* Bounds of the length, and which of them the expression keeps anyway. */
struct lengths { int32_t lo, hi; int sure_lo, sure_hi; };

static void imply(struct lengths *l, int32_t min, int32_t max)
{
    l->sure_lo |= min >= l->lo;
    l->sure_hi |= l->hi == EXPR_MANY || (max != EXPR_MANY && max <= l->hi);
}

/* What the patterns and the format of a member say.  anchored: a match from the first character
 * to the last, which fewer states can find. */
static uint32_t member_string(struct schema *s, const json_t *m, struct lengths *l, int anchored)
{
    struct exprs *x = &s->g->x;
    const json_t *pattern = json_object_get(m, "pattern"), *format = json_object_get(m, "format");
    uint32_t r = EXPR_ALL;
    int32_t min, max;
    json_t *not;
    size_t k;
    if (pattern) {
        const char *text = json_string_value(pattern);
        const size_t size = json_string_length(pattern);
        r = expr_both(x, r, anchored ? schema_regex_n(s, m, "pattern", text, size, 0, &min, &max)
                                     : schema_pattern(s, m, "pattern", text, size, &min, &max));
        imply(l, min, max);
    }
    json_array_foreach(json_object_get(m, NOT_PATTERN), k, not)
        r = expr_both(x, r, expr_not(x, schema_pattern(s, m, "pattern", json_string_value(not), json_string_length(not),
                                                       NULL, NULL)));
    if (format && schema_format(json_string_value(format)) && !s->failed) {
        const char *text = schema_format(json_string_value(format)),
                   *less = schema_short_format(json_string_value(format));
        uint32_t p = schema_regex_cached(s, text, strlen(text), 1, 0, &min, &max, s->e);
        const int fits = min >= l->lo && (l->hi == EXPR_MANY || (max != EXPR_MANY && max <= l->hi));
        if (!fits && p != EXPR_NONE && less && !s->loose) {      /* counting two lengths at once has too many states */
            if (l->lo > 63)
                return schema_refuse(s, m, "minLength", "above 63 it cannot be enforced together with this format");
            p = schema_regex_cached(s, less, strlen(less), 1, 0, NULL, NULL, s->e);
            l->hi = l->hi == EXPR_MANY || l->hi > 63 ? 63 : l->hi;
        } else {
            imply(l, min, max);
        }
        if (p == EXPR_NONE)
            s->failed = 1;
        r = expr_both(x, r, p);
    }
    return r;
}

/* r with lengths between the bounds; -1 if it has too many states, then *result is not set. */
static int within_lengths(struct schema *s, uint32_t r, const struct lengths *l, uint32_t *result)
{
    struct exprs *x = &s->g->x;
    uint32_t bounded = r;
    if (!l->sure_hi && l->hi != EXPR_MANY) {
        bounded = exprs_settle(x, r, MAX_PATTERN_STATES);
        if (expr_within(x, bounded, l->hi, MAX_PATTERN_STATES, &bounded) != 0)
            return -1;
    }
    *result = l->sure_lo || l->lo == 0 ? bounded
                                       : expr_both(x, bounded, expr_repeat(x, s->plain_char, l->lo, EXPR_MANY));
    return 0;
}

uint32_t schema_string(struct schema *s, const struct member *m, int n, int canonical)
{
    struct exprs *x = &s->g->x;
    struct lengths given = { .lo = 0, .hi = EXPR_MANY };
    uint32_t r = EXPR_ALL;
    canonical |= s->one_form;
    for (int i = 0; i < n; i++) {
        int64_t least = schema_count(s, m[i].s, "minLength"), most = schema_count(s, m[i].s, "maxLength");
        given.lo = larger(given.lo, least);
        if (most >= 0 && (given.hi == EXPR_MANY || most < given.hi))
            given.hi = (int32_t)most;
        canonical |= json_array_size(json_object_get(m[i].s, NOT_PATTERN)) ||
                     json_array_size(json_object_get(m[i].s, NOT_VALUES));
    }
    if (given.hi != EXPR_MANY && given.lo > given.hi)
        return EXPR_NONE;
    for (int anchored = 0; anchored < 2 && !s->failed; anchored++) {
        struct lengths l = given;
        r = EXPR_ALL;
        for (int i = 0; i < n && !s->failed; i++)
            r = expr_both(x, r, member_string(s, m[i].s, &l, anchored));
        if (s->failed)
            break;
        if (r == EXPR_ALL)
            return expr_repeat(x, canonical ? s->plain_char : s->any_char, l.lo, l.hi);
        if (canonical)
            r = expr_both(x, r, expr_repeat(x, s->plain_char, 0, EXPR_MANY));
        if (within_lengths(s, r, &l, &r) == 0)
            return r;
        if (s->loose)
            break;
    }
    return s->failed ? (uint32_t)EXPR_NONE : schema_limit(s, m[0].s, "its pattern has too many states for its lengths to be counted next to it");
}

/* ---- arrays ---- */

/* A `contains` whose matches count.  cap: counts above it make no difference, or are not
 * allowed. */
struct contains { json_t *schema, *opposite; int32_t min, max, cap; };

struct array {
    struct schema *s;
    const struct member *m; int n;
    int32_t min, max;
    uint32_t n_first;                   /* places with a schema of their own */
    struct contains counted[MAX_CONTAINS]; int n_counted;
    uint32_t n_states;                  /* combinations of counts; the index is a mixed-radix number */
    uint32_t *items;                    /* [n_first + 1][1 << n_counted]: the last row is for all later places, columns by the set of contains that the item matches */
};

/* Is item i (-1: all later ones) evaluated by a member next to u or inside of it?  *some: the
 * contains among them, which evaluate what they match. */
static int is_item_evaluated(const struct member *m, int n, const struct member *u, int64_t i, json_t *some)
{
    for (int j = 0; j < n; j++) {
        const json_t *x = m[j].s, *items = json_object_get(x, "items"),
                     *first = json_is_array(items) ? items : json_object_get(x, "prefixItems");
        if (!schema_evaluates(m, n, &m[j], u))
            continue;
        if ((items && !json_is_array(items)) || (json_is_array(items) && json_object_get(x, "additionalItems")) ||
            (i >= 0 && (size_t)i < json_array_size(first)) || (x != u->s && json_object_get(x, "unevaluatedItems")))
            return 1;
        if (json_object_get(x, "contains"))
            json_array_append(some, json_object_get(x, "contains"));
    }
    return 0;
}

/* The schema of item i by the unevaluatedItems of u; NULL: none, or it failed. */
static json_t *unevaluated_item(struct schema *s, const struct member *m, int n, const struct member *u, int64_t i)
{
    json_t *left = json_object_get(u->s, "unevaluatedItems"), *some = json_array(), *r = NULL;
    if (!some)
        schema_nomem(s);
    else if (!is_item_evaluated(m, n, u, i, some)) {
        json_array_append(some, left);
        r = json_array_size(some) == 1 ? left : schema_keep(s, json_pack("{s:O}", "anyOf", some), left);
    }
    json_decref(some);
    return r;
}

/* The schemas of item i (those of all later ones for i < 0), and `more`. */
static uint32_t item(struct schema *s, const struct member *m, int n, int64_t i, json_t *const *more, int n_more)
{
    struct member *v = calloc((size_t)(2 * n + n_more + 1), sizeof *v);
    int k = 0;
    if (!v)
        return schema_nomem(s);
    for (int j = 0; j < n; j++) {
        json_t *items = json_object_get(m[j].s, "items"), *first = json_object_get(m[j].s, "prefixItems"),
               *left = json_object_get(m[j].s, "unevaluatedItems"), *sub = NULL;
        if (json_is_array(items)) {
            first = items;
            items = json_object_get(m[j].s, "additionalItems");
        }
        if (i >= 0)
            sub = json_array_get(first, (size_t)i);
        if (!sub)
            sub = items;
        if (sub)
            v[k++].s = sub;
        if (left && !json_is_true(left) && !s->loose && (left = unevaluated_item(s, m, n, &m[j], i)))
            v[k++].s = left;
    }
    for (int j = 0; j < n_more; j++)
        v[k++].s = more[j];
    uint32_t r = schema_compile(s, v, k);
    free(v);
    return r;
}

static uint32_t after_comma(struct schema *s, int first, uint32_t e)
{
    return first ? e : expr_seq(&s->g->x, expr_term(&s->g->x, s->comma), e);
}

/* The schemas of place i (n_first: all later ones) for an item that counts for the contains of
 * the set. */
static uint32_t counted_item(struct array *a, uint32_t i, uint32_t set)
{
    json_t *more[MAX_CONTAINS];
    int n = 0;
    for (int k = 0; k < a->n_counted; k++) {
        if (set >> k & 1)
            more[n++] = a->counted[k].schema;
        else if (a->counted[k].max != EXPR_MANY)
            more[n++] = a->counted[k].opposite;
    }
    return item(a->s, a->m, a->n, i < a->n_first ? (int64_t)i : -1, more, n);
}

/* The state after an item that counts for the set; n_states: not allowed, or the same as with a
 * smaller set. */
static uint32_t count_items(const struct array *a, uint32_t state, uint32_t set)
{
    uint32_t unit = 1, to = state;
    for (int k = 0; k < a->n_counted; k++) {
        const uint32_t range = (uint32_t)a->counted[k].cap + 1, count = state / unit % range;
        if (set >> k & 1) {
            if (count + 1 == range)
                return a->n_states;
            to += unit;
        }
        unit *= range;
    }
    return to;
}

static int enough_counted(const struct array *a, uint32_t state)
{
    for (int k = 0; k < a->n_counted; k++) {
        const uint32_t range = (uint32_t)a->counted[k].cap + 1;
        if (state % range < (uint32_t)a->counted[k].min)
            return 0;
        state /= range;
    }
    return 1;
}

/* All items behind place `last`, where every later place is the same: one expression for each
 * state. */
static void later_items(struct array *a, int32_t last, uint32_t *next)
{
    struct exprs *x = &a->s->g->x;
    const uint32_t n_sets = 1u << a->n_counted, *rest = a->items + a->n_first * n_sets;
    const int32_t lo = a->min > last ? a->min - last : 0, hi = a->max == EXPR_MANY ? EXPR_MANY : a->max - last;
    if (hi != EXPR_MANY && hi <= 0) {
        for (uint32_t state = 0; state < a->n_states; state++)
            next[state] = enough_counted(a, state) ? (uint32_t)EXPR_EPSILON : (uint32_t)EXPR_NONE;
    } else if (!a->n_counted) {
        next[0] = expr_times(x, after_comma(a->s, 0, rest[0]), lo, hi);
        if (last == 0 && rest[0] != EXPR_NONE) {        /* the first one has no comma */
            uint32_t tail = expr_seq(x, rest[0],
                                     expr_times(x, after_comma(a->s, 0, rest[0]), lo ? lo - 1 : 0,
                                                hi == EXPR_MANY ? hi : hi - 1));
            next[0] = lo ? tail : expr_any_of(x, (uint32_t[]){ EXPR_EPSILON, tail }, 2);
        }
    } else {                            /* any number that change no count, then the end or one that does */
        for (uint32_t state = a->n_states; state--;) {
            uint32_t v[(1 << MAX_CONTAINS) + 1], n = 0;
            v[n++] = enough_counted(a, state) ? (uint32_t)EXPR_EPSILON : (uint32_t)EXPR_NONE;
            for (uint32_t set = 1; set < n_sets; set++) {
                uint32_t to = count_items(a, state, set);
                if (to < a->n_states)
                    v[n++] = expr_seq(x, after_comma(a->s, 0, rest[set]), next[to]);
            }
            next[state] = expr_seq(x, expr_times(x, after_comma(a->s, 0, rest[0]), 0, EXPR_MANY), expr_any_of(x, v, n));
        }
    }
}

/* All items, from the back: an expression for each state of the counts in front of each place. */
static uint32_t items_in_turn(struct array *a)
{
    struct exprs *x = &a->s->g->x;
    const uint32_t n_sets = 1u << a->n_counted;
    /* from place `last` on, a loop or the end */
    int32_t last = (int32_t)a->n_first;
    if (a->items[a->n_first * n_sets] == EXPR_NONE || a->n_counted)
        last = last > a->min ? last : a->min;           /* else later_items() counts to the minimum */
    if (a->n_counted && last == 0)
        last = 1;
    if (a->max != EXPR_MANY && (a->n_counted || a->max < last))
        last = a->max;
    if (last > MAX_COUNTED || (int64_t)last * a->n_states * n_sets > MAX_TABLE)
        return schema_limit(a->s, a->m[0].s, "more items that must be counted one by one than can be enforced (4096, fewer with contains)");
    uint32_t *rows = calloc(2 * (size_t)a->n_states, sizeof *rows), *next = rows,
             *now = rows ? rows + a->n_states : NULL, v[(1 << MAX_CONTAINS) + 1];
    if (!rows)
        return schema_nomem(a->s);
    later_items(a, last, next);
    for (int32_t i = last - 1; i >= 0; i--) {
        const uint32_t *each = a->items + (i < (int32_t)a->n_first ? (uint32_t)i : a->n_first) * n_sets;
        for (uint32_t state = 0; state < a->n_states; state++) {
            uint32_t n = 0;
            v[n++] = i >= a->min && enough_counted(a, state) ? (uint32_t)EXPR_EPSILON : (uint32_t)EXPR_NONE;
            for (uint32_t set = 0; set < n_sets; set++) {
                uint32_t to = count_items(a, state, set);
                if (to < a->n_states)
                    v[n++] = expr_seq(x, after_comma(a->s, i == 0, each[set]), next[to]);
            }
            now[state] = expr_any_of(x, v, n);
        }
        uint32_t *t = now;
        now = next;
        next = t;
    }
    uint32_t r = next[0];
    free(rows);
    return r;
}

/* Take in the contains of a member, if it has one that asks for anything. */
static void add_counted(struct array *a, const struct member *m)
{
    struct schema *s = a->s;
    json_t *some = json_object_get(m->s, "contains");
    const int64_t least = schema_count(s, m->s, "minContains"), most = schema_count(s, m->s, "maxContains");
    if (!some || s->failed || (least == 0 && most < 0))
        return;
    struct contains c = { .schema = some, .min = least < 0 ? 1 : (int32_t)least,
                         .max = most < 0 ? EXPR_MANY : (int32_t)most };
    c.cap = c.max == EXPR_MANY ? c.min : c.max;
    if (a->n_counted == MAX_CONTAINS || (int64_t)a->n_states * (c.cap + 1) > MAX_COUNTED) {
        schema_refuse(s, m->s, "contains", "more of them, or of their counts, than can be enforced for one array (3, 4096 in all)");
        return;
    }
    if (c.max != EXPR_MANY) {
        json_t *opposite = schema_negate(s, some, 0);
        if (!opposite || !(c.opposite = schema_keep(s, json_pack("{s:O}", "anyOf", opposite), some)))
            return;
    }
    a->n_states *= (uint32_t)c.cap + 1;
    a->counted[a->n_counted++] = c;
}

static uint32_t counted_items(struct array *a)
{
    const uint32_t n_sets = 1u << a->n_counted;
    uint32_t r = EXPR_NONE;
    a->items = calloc(((size_t)a->n_first + 1) * n_sets, sizeof *a->items);
    if (!a->items)
        return schema_nomem(a->s);
    for (uint32_t i = 0; i <= a->n_first; i++)
        for (uint32_t set = 0; set < n_sets && !a->s->failed && (a->max == EXPR_MANY || (int32_t)i < a->max); set++)
            a->items[i * n_sets + set] = counted_item(a, i, set);
    if (!a->s->failed)
        r = items_in_turn(a);
    free(a->items);
    return r;
}

/* Arrays of distinct ones of a few values, in any order.  0: the items are not that, or too
 * many; then *most is their number. */
static int few_values(struct schema *s, const struct member *m, int n, int32_t min, int32_t max, int32_t *most,
                      uint32_t *r)
{
    struct exprs *x = &s->g->x;
    struct member sub[64] = { { 0 } };
    int k = 0;
    for (int j = 0; j < n && k < 64; j++) {
        json_t *items = json_object_get(m[j].s, "items");
        if (json_object_get(m[j].s, "prefixItems") || json_object_get(m[j].s, "contains") ||
            json_object_get(m[j].s, "unevaluatedItems") || json_is_array(items))
            return 0;
        for (int hop = 0; json_is_object(items) && hop < 16; hop++) {
            const char *ref = json_string_value(json_object_get(items, "$ref"));
            sub[k++].s = items;
            if (!ref || k == 64)
                break;
            items = schema_resolve(s, items, ref);
        }
    }
    json_t *values = schema_enumerated(s, sub, k), *v;
    size_t n_values = json_array_size(values), i;
    if (!values)
        return s->failed;
    if (n_values > MAX_UNIQUE) {
        json_decref(values);
        *most = max == EXPR_MANY || max > (int32_t)n_values ? (int32_t)n_values : max;
        return 0;
    }
    uint32_t term[MAX_UNIQUE], table[1 << MAX_UNIQUE];
    json_array_foreach(values, i, v)
        term[i] = grammar_term(s->g, schema_values(s, &v, 1));
    json_decref(values);
    if (max == EXPR_MANY || max > (int32_t)n_values)
        max = (int32_t)n_values;
    for (int used = (1 << n_values) - 1; used >= 0; used--) {       /* by the set of those that were there */
        uint32_t to[MAX_UNIQUE + 1], c = 0;
        int count = __builtin_popcount((unsigned)used);
        to[c++] = count >= min && count <= max ? (uint32_t)EXPR_EPSILON : (uint32_t)EXPR_NONE;
        for (i = 0; i < n_values && count < max; i++)
            if (!(used >> i & 1))
                to[c++] = expr_seq(x, after_comma(s, used == 0, term[i]), table[used | 1 << i]);
        table[used] = expr_any_of(x, to, c);
    }
    *r = table[0];
    return 1;
}

/* The end of an array whose items must differ: a rule that is empty, so that it stands on the
 * stack as long as the array is open. */
static uint32_t distinct_mark(struct schema *s)
{
    struct grammar *g = s->g;
    if (!g->distinct) {
        const int32_t rule = grammar_rule(g);
        if (g->x.failed)
            return EXPR_NONE;
        g->rule[rule] = EXPR_EPSILON;
        g->distinct = expr_rule(&g->x, rule);
    }
    return g->distinct;
}

uint32_t schema_array(struct schema *s, const struct member *m, int n)
{
    struct exprs *x = &s->g->x;
    struct array a = { .s = s, .m = m, .n = n, .max = EXPR_MANY, .n_states = 1 };
    int unique = 0;
    for (int i = 0; i < n && !s->failed; i++) {
        json_t *items = json_object_get(m[i].s, "items");
        int64_t most = schema_count(s, m[i].s, "maxItems");
        a.min = larger(a.min, schema_count(s, m[i].s, "minItems"));
        if (most >= 0 && (a.max == EXPR_MANY || most < a.max))
            a.max = (int32_t)most;
        uint32_t k = (uint32_t)json_array_size(json_is_array(items) ? items : json_object_get(m[i].s, "prefixItems"));
        a.n_first = k > a.n_first ? k : a.n_first;
        unique |= json_is_true(json_object_get(m[i].s, "uniqueItems"));
        add_counted(&a, &m[i]);
    }
    if (s->failed || (a.max != EXPR_MANY && a.min > a.max))
        return EXPR_NONE;
    if (a.n_first > MAX_COUNTED)
        return schema_limit(s, m[0].s, "prefixItems of more than 4096 items");
    uint32_t r = EXPR_NONE;
    unique &= !s->loose && (a.max == EXPR_MANY || a.max > 1);
    if (unique && few_values(s, m, n, a.min, a.max, &a.max, &r))
        unique = 0;
    else
        r = counted_items(&a);
    /* [ space items space ], and [] without one */
    uint32_t open = expr_term(x, expr_concat(x, expr_byte(x, '[', '['), s->space)),
             close = expr_term(x, expr_concat(x, s->space, expr_byte(x, ']', ']')));
    r = expr_seq(x, r, close);
    if (unique && r != EXPR_NONE)       /* behind the bracket, so that it is on the stack only once that has been written */
        r = expr_seq(x, r, distinct_mark(s));
    return expr_seq(x, open, r);
}

/* ---- objects ---- */

struct property { const char *name; uint32_t key, value; int required; };

struct object {
    struct schema *s;
    const struct member *m; int n;
    struct property *p; int n_p, room;
    int32_t min, max;
    uint32_t extra;                     /* KEY : VALUE of further properties, without the first quotation mark; EXPR_NONE: none */
    const json_t *some;                 /* SOME_PROPERTY, if a further property must be as it says */
    uint32_t needed;                    /* KEY : VALUE of that property */
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

/* Is a property evaluated by a member next to u or inside of it?  name: NULL for a further one,
 * which matches the patterns that `matched` (an object) has as keys. */
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

/* What applies to the value of a property of this name; EXPR_NONE: it must not be there. */
static uint32_t value_of(struct object *o, const char *name)
{
    struct schema *s = o->s;
    struct member *v = NULL;
    int k = 0, room = 0;
    uint32_t r = EXPR_NONE;
    for (int i = 0; i < o->n; i++) {
        json_t *sub = json_object_get(json_object_get(o->m[i].s, "properties"), name), *x,
               *names = json_object_get(o->m[i].s, "propertyNames");
        json_t *patterns = json_object_get(o->m[i].s, "patternProperties"),
               *more = json_object_get(o->m[i].s, "additionalProperties");
        json_t *left = json_object_get(o->m[i].s, "unevaluatedProperties");
        const char *pattern;
        int known = sub != NULL, n_patterns = (int)json_object_size(patterns);
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
        json_object_foreach(patterns, pattern, x)
            if (name_matches(s, &o->m[i], pattern, name)) {
                known = 1;
                v[k++] = (struct member){ x, 0, NULL };
            }
        if (!known && more)
            v[k++] = (struct member){ more, 0, NULL };
        if (left && !json_is_true(left) && !s->loose && !is_property_evaluated(o, &o->m[i], name, NULL))
            v[k++] = (struct member){ left, 0, NULL };
        if (names) {
            json_t *text = json_string(name);
            int ok = schema_valid(s, names, text);
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

/* Texts that e matches and that do not go on as one of t (sorted, with the closing quotation
 * mark). */
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
            /* one that ends here is left out as a whole: its last byte is the quotation mark */
            to = t[i].n == depth + 1 ? (uint32_t)EXPR_NONE : without_texts(x, to, t + i, rest, depth + 1);
        }
        i = j;
        arms[n_arms++] = (struct arm){ (uint8_t)lo, (uint8_t)b, to };
        lo = b + 1;
    }
    return expr_arms(x, arms, n_arms);
}

/* A name as put_string in schema_value.c writes it, with the closing quotation mark; the end of
 * it. */
static char *write_key(char *at, const char *name)
{
    static const char hex[] = "0123456789abcdef", esc[] = "btn?fr";
    for (const unsigned char *c = (const unsigned char *)name; *c; c++) {
        if (*c == '"' || *c == '\\') {
            *at++ = '\\';
            *at++ = (char)*c;
        } else if (*c >= 8 && *c <= 13 && *c != 11) {
            *at++ = '\\';
            *at++ = esc[*c - 8];
        } else if (*c < 0x20) {
            memcpy(at, "\\u00", 4);
            at[4] = hex[*c >> 4];
            at[5] = hex[*c & 15];
            at += 6;
        } else {
            *at++ = (char)*c;
        }
    }
    *at++ = '"';
    return at;
}

/* The keys (to the closing quotation mark) of e without the declared properties and the names of
 * the list. */
static uint32_t without_names(struct object *o, uint32_t e, const json_t *list)
{
    struct exprs *x = &o->s->g->x;
    const size_t n_all = (size_t)o->n_p + json_array_size(list);
    struct byte_span *t = malloc((n_all + 1) * sizeof *t);
    size_t n = 0, total = 1;
    for (size_t i = 0; i < n_all; i++)
        total += 6 * strlen(i < (size_t)o->n_p ? o->p[i].name
                                               : json_string_value(json_array_get(list, i - (size_t)o->n_p))) + 2;
    char *copy = malloc(total), *at = copy;
    if (!t || !copy) {
        free(t);
        free(copy);
        return schema_nomem(o->s);
    }
    for (size_t i = 0; i < n_all; i++) {
        char *end = write_key(at, i < (size_t)o->n_p ? o->p[i].name
                                                     : json_string_value(json_array_get(list, i - (size_t)o->n_p)));
        t[n++] = (struct byte_span){ at, (size_t)(end - at) };
        at = end;
    }
    qsort(t, n, sizeof *t, text_compare);
    uint32_t r = without_texts(x, exprs_settle(x, e, 1 << 14), t, n, 0);
    free(t);
    free(copy);
    return r;
}

/* Keys (to the closing quotation mark) that are none of the declared properties and satisfy
 * propertyNames; some: the SOME_PROPERTY that they are for, or NULL. */
static uint32_t other_keys(struct object *o, const json_t *some)
{
    struct schema *s = o->s;
    struct exprs *x = &s->g->x;
    uint32_t e = expr_repeat(x, s->plain_char, 0, EXPR_MANY);
    json_t *v;
    size_t k;
    for (int i = 0; i < o->n && !s->failed; i++)
        if ((v = json_object_get(o->m[i].s, "propertyNames")))
            e = expr_both(x, e, schema_strings(s, v, 0, 0));
    if ((v = json_object_get(some, "names")))
        e = expr_both(x, e, expr_not(x, schema_strings(s, v, 1, 0)));
    if ((v = json_object_get(some, "pattern")))
        e = expr_both(x, e, schema_pattern(s, some, NULL, json_string_value(v), json_string_length(v), NULL, NULL));
    json_array_foreach(json_object_get(some, "not"), k, v)
        e = expr_both(x, e, expr_not(x, schema_pattern(s, some, NULL, json_string_value(v), json_string_length(v), NULL,
                                                       NULL)));
    return s->failed ? (uint32_t)EXPR_NONE : without_names(o, expr_concat(x, e, expr_byte(x, '"', '"')),
                                                           json_object_get(some, "except"));
}

struct key_pattern { const char *text; uint32_t e; };

/* The distinct patternProperties of all members; -1: too many, or one that cannot be. */
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

/* The schemas of a further property that matches those patterns (keys of `matched`): their
 * number in v, -1: there must be none. */
static int further_schemas(struct object *o, const json_t *matched, const json_t *some, struct member *v, int room)
{
    int k = 0;
    if (some)
        v[k++] = (struct member){ json_object_get(some, "value"), 0, NULL };
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

/* May there be further properties at all? */
static int may_have_further(const struct object *o)
{
    int declared = 0, open = 0;
    for (int i = 0; i < o->n; i++) {
        const json_t *m = o->m[i].s, *more = json_object_get(m, "additionalProperties"),
                     *left = json_object_get(m, "unevaluatedProperties");
        json_t *patterns = json_object_get(m, "patternProperties");
        if (is_made(&o->m[i]))
            continue;
        if (json_is_false(more) && json_object_size(patterns) == 0)
            return 0;
        declared |= json_object_size(json_object_get(m, "properties")) > 0;
        open |= (more && !json_is_false(more)) || (left && !json_is_false(left)) || json_object_size(patterns) > 0;
    }
    return open || !declared || o->s->loose;
}

/* Further properties, those that SOME_PROPERTY (or NULL) asks for: for each way in which the
 * patterns may match the key, its keys and what applies to the value. */
static uint32_t further(struct object *o, const json_t *some)
{
    struct schema *s = o->s;
    struct exprs *x = &s->g->x;
    struct key_pattern pattern[MAX_KEY_PATTERNS];
    uint32_t ways[1 << MAX_KEY_PATTERNS], n_ways = 0;
    if (!may_have_further(o))
        return EXPR_NONE;
    const int n = key_patterns(o, pattern);
    if (n < 0)
        return EXPR_NONE;
    uint32_t keys = other_keys(o, some), quote = expr_byte(x, '"', '"');
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
        const int k = further_schemas(o, matched, some, v, 256);
        json_decref(matched);
        if (k < 0)
            continue;
        e = exprs_settle(x, e, 1 << 14);
        if (e != EXPR_NONE)
            ways[n_ways++] = expr_seq(x, grammar_term(s->g, expr_concat(x, e, s->colon)), schema_compile(s, v, k));
    }
    return s->failed ? (uint32_t)EXPR_NONE : expr_any_of(x, ways, n_ways);
}

/* After all declared properties: key[c] is what follows a quotation mark with c properties so
 * far, done[c] what follows a value.  A needed property comes last, as of equal names the last
 * one counts. */
static void further_rows(const struct object *o, int32_t cap, uint32_t comma, uint32_t end, uint32_t *key,
                         uint32_t *done)
{
    struct exprs *x = &o->s->g->x;
    const uint32_t again = expr_seq(x, comma, o->extra), before = expr_seq(x, o->extra, comma);
    for (int32_t c = cap; c >= 0; c--) {
        const int32_t room = o->max == EXPR_MANY ? EXPR_MANY : o->max - c;
        key[c] = EXPR_NONE;
        if (room == 0 || c + 1 < o->min)
            ;
        else if (o->some)
            key[c] = expr_seq(x, expr_times(x, before, 0, room == EXPR_MANY ? room : room - 1),
                              expr_seq(x, o->needed, end));
        else
            key[c] = expr_seq(x, o->extra, expr_seq(x, expr_times(x, again, 0, room == EXPR_MANY ? room : room - 1),
                                                    end));
        done[c] = expr_any_of(x, (uint32_t[]){ c >= o->min && !o->some ? end : (uint32_t)EXPR_NONE,
                                               expr_seq(x, comma, key[c]) }, 2);
    }
}

/* From property i on; at least one has been written.  next: the part after it, without the
 * comma. */
static uint32_t sequence(struct object *o)
{
    struct schema *s = o->s;
    struct exprs *x = &s->g->x;
    uint32_t end = expr_term(x, expr_concat(x, s->space, expr_byte(x, '}', '}'))),
             comma = expr_term(x, expr_concat(x, s->comma, expr_byte(x, '"', '"')));
    uint32_t quote = expr_term(x, expr_concat(x, s->space, expr_byte(x, '"', '"')));
    /* The numbers of properties that make a difference.  Names of further ones cannot be told
     * apart, so that for the minimum they count as one. */
    int32_t cap = o->max != EXPR_MANY ? o->max : o->min;
    if ((int64_t)(cap + 1) * (o->n_p + 2) > MAX_TABLE || cap > MAX_COUNTED)
        return schema_limit(s, o->m[0].s, "too many properties that must be counted");
    size_t n = (size_t)cap + 2;
    uint32_t *rows = calloc(4 * n, sizeof *rows), *key = rows, *done = rows + n, *key2 = rows + 2 * n,
             *done2 = rows + 3 * n;
    if (!rows)
        return schema_nomem(s);
    int needed = 0;                     /* required ones from here on */
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
            done2[c] = expr_any_of(x, (uint32_t[]){ !needed && !o->some && c >= o->min ? end : (uint32_t)EXPR_NONE,
                                                    expr_seq(x, comma, key2[c]) }, 2);
        uint32_t *t = key;
        key = key2;
        key2 = t;
        t = done;
        done = done2;
        done2 = t;
    }
    uint32_t r = expr_any_of(x, (uint32_t[]){ !needed && !o->some && o->min == 0 ? end : (uint32_t)EXPR_NONE,
                                              expr_seq(x, quote, key[0]) }, 2);
    free(rows);
    return expr_seq(x, expr_term(x, expr_byte(x, '{', '{')), r);
}

uint32_t schema_object(struct schema *s, const struct member *m, int n)
{
    struct object o = { .s = s, .m = m, .n = n, .max = EXPR_MANY };
    struct exprs *x = &s->g->x;
    json_t *seen = json_object(), *v;
    const char *name;
    size_t i;
    uint32_t r = EXPR_NONE;
    for (int k = 0; k < n && !s->failed; k++) {
        int64_t most = schema_count(s, m[k].s, "maxProperties");
        o.min = larger(o.min, schema_count(s, m[k].s, "minProperties"));
        if (most >= 0 && (o.max == EXPR_MANY || most < o.max))
            o.max = (int32_t)most;
    }
    /* declared properties in the order of the schema; those of schemas that were made say
     * nothing about the order */
    for (int made = 0; made < 2; made++)
        for (int k = 0; k < n && !s->failed; k++)
            if (is_made(&m[k]) == made)
                json_object_foreach(json_object_get(m[k].s, "properties"), name, v)
                    if (add_property(&o, seen, name) != 0)
                        goto done;
    for (int k = 0; k < n && !s->failed; k++)
        json_array_foreach(json_object_get(m[k].s, "required"), i, v) {
            if (!json_is_string(v)) {
                schema_refuse(s, m[k].s, "required", "expected a list of strings");
                goto done;
            }
            if (add_property(&o, seen, json_string_value(v)) != 0)
                goto done;
        }
    if (s->failed || (o.max != EXPR_MANY && o.min > o.max))
        goto done;
    for (int k = 0; k < n; k++)
        json_array_foreach(json_object_get(m[k].s, "required"), i, v) {
            struct property *p = NULL;
            /* names are often in the same order in both lists */
            p = i < (size_t)o.n_p && !strcmp(o.p[i].name, json_string_value(v))
                    ? &o.p[i] : find_property(&o, json_string_value(v));
            p->required = 1;
        }
    int n_possible = 0;
    for (int k = 0; k < o.n_p && !s->failed; k++) {
        struct property *p = &o.p[k];
        p->value = value_of(&o, p->name);
        n_possible += p->value != EXPR_NONE;
        if (p->required && p->value == EXPR_NONE)
            goto done;
        json_t *key = json_string(p->name);
        uint32_t text = schema_values(s, &key, 1);
        p->key = expr_term(x, expr_concat(x, expr_step(x, text, '"'), s->colon));
        json_decref(key);
    }
    if (s->failed)
        goto done;
    o.extra = further(&o, NULL);
    for (int k = 0; k < n && !s->failed; k++) {
        json_t *some = json_object_get(m[k].s, SOME_PROPERTY);
        if (!some)
            continue;
        if (o.some) {                   /* two at once are left out */
            if (!s->n_partial++)
                s->partial_at = m[k].s;
            goto done;
        }
        o.some = some;
        o.needed = further(&o, some);
    }
    if (!s->failed && o.min > n_possible + 1 && o.extra != EXPR_NONE) {
        const struct member *of = NULL;
        for (int k = 0; k < n; k++)
            if (json_object_get(m[k].s, "minProperties") && (!of || !is_made(&m[k])))
                of = &m[k];
        if (!of || is_made(of)) {       /* a part of an opposite */
            if (!s->n_partial++)
                s->partial_at = of ? of->s : NULL;
        } else {
            schema_refuse(s, of->s, "minProperties", "beyond the declared properties it can be enforced for one more only, as two others might have the same name");
        }
        goto done;
    }
    if (!s->failed)
        r = sequence(&o);
done:
    json_decref(seen);
    free(o.p);
    return s->failed ? (uint32_t)EXPR_NONE : r;
}
