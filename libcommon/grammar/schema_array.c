/* schema_array.c - arrays: items, counts of items that match a schema, distinct items. */
#include "libcommon/grammar/schema.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_CONTAINS = 3, MAX_UNIQUE = 8 };

/* A `contains` whose matches are counted.  cap: larger counts are equivalent, or not allowed. */
struct contains { json_t *schema, *negation; int32_t min, max, cap; };

struct array {
    struct schema *s;
    const struct member *m; int n;
    int32_t min, max;
    uint32_t n_first;                   /* places with a schema of their own */
    struct contains counted[MAX_CONTAINS]; int n_counted;
    /* Combinations of counts; the index is a mixed-radix number. */
    uint32_t n_states;
    /* [n_first + 1][1 << n_counted]: a row for each place, the last one for all later places; a
     * column for each set of the counted `contains` that the item matches */
    uint32_t *items;
};

/* Whether item i (-1: every later item) is evaluated by a keyword other than `contains`, of a
 * member next to u or inside it.  A `contains` evaluates only the items that match it; the schemas
 * of these `contains` are appended to *some. */
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

/* The schema that the unevaluatedItems of u requires of item i; NULL: none, or it failed. */
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

/* Compile item i (i < 0: any later item), which must also satisfy `more`. */
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

/* Compile an item at position i (i = n_first: at any later position) that matches the counted
 * `contains` of `set` (bit k: counted[k]).  It must not match the others that have a maximum,
 * because such a match would be counted. */
static uint32_t counted_item(struct array *a, uint32_t i, uint32_t set)
{
    json_t *more[MAX_CONTAINS];
    int n = 0;
    for (int k = 0; k < a->n_counted; k++) {
        if (set >> k & 1)
            more[n++] = a->counted[k].schema;
        else if (a->counted[k].max != EXPR_MANY)
            more[n++] = a->counted[k].negation;
    }
    return item(a->s, a->m, a->n, i < a->n_first ? (int64_t)i : -1, more, n);
}

/* Returns the state of the counts after an item that matches exactly the `contains` of `set`;
 * n_states if this item is not allowed, or if a smaller set leads to the same state. */
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

/* All items from position `last` on, where all positions are alike: sets next[] to an expression
 * for each state of the counts. */
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
    } else {                            /* items that change no count, then the end or an item that changes one */
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

/* Compile all items, from the last place to the first: at each place, an expression for each state
 * that the counts may have before it. */
static uint32_t items_in_turn(struct array *a)
{
    struct exprs *x = &a->s->g->x;
    const uint32_t n_sets = 1u << a->n_counted;
    /* from position `last` on, the expression is a loop over equal places, or the array ends */
    int32_t last = (int32_t)a->n_first;
    if (a->items[a->n_first * n_sets] == EXPR_NONE || a->n_counted)
        /* if the condition is false, later_items() counts up to the minimum */
        last = last > a->min ? last : a->min;
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

/* Add the contains of a member, if it limits the counts. */
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
        json_t *negation = schema_negate(s, some, 0);
        if (!negation || !(c.negation = schema_keep(s, json_pack("{s:O}", "anyOf", negation), some)))
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

/* Compile arrays of a few possible values without repetition, in any order.  Returns 0 if the items
 * are not such values, or there are too many of them.  *most: the smaller of max and the number of
 * values. */
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
    /* Indexed by the set of the values that are already in the array. */
    for (int used = (1 << n_values) - 1; used >= 0; used--) {
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

/* The end of an array whose items must differ: an empty rule, which is on the stack as long as the
 * array is open. */
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
    /* the array is [ space items space ], and [] without a space */
    uint32_t open = expr_term(x, expr_concat(x, expr_byte(x, '[', '['), s->space)),
             close = expr_term(x, expr_concat(x, s->space, expr_byte(x, ']', ']')));
    r = expr_seq(x, r, close);
    /* After the bracket, so that the mark is on the stack only once the bracket has been
     * written. */
    if (unique && r != EXPR_NONE)
        r = expr_seq(x, r, distinct_mark(s));
    return expr_seq(x, open, r);
}
