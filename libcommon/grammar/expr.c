#include "libcommon/grammar/expr.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_UNION = 4096, MAX_ROWS = 1 << 15, UNKNOWN = -1 };

static int grow(void **p, uint32_t *room, uint32_t need, size_t size)
{
    if (need <= *room)
        return 0;
    uint32_t n = *room + *room / 2 + 256;
    n = n < need ? need : n;
    void *q = realloc(*p, n * size);
    if (!q)
        return -1;
    *p = q;
    *room = n;
    return 0;
}

static int grow_nodes(struct exprs *s)
{
    uint32_t n = s->room ? s->room * 2 : 1024;
    struct expr *e = realloc(s->e, n * sizeof *e);
    if (e)
        s->e = e;
    uint32_t *m = realloc(s->memo, n * sizeof *m);
    if (m)
        s->memo = m;
    uint32_t *o = realloc(s->memo_of, n * sizeof *o);
    if (o)
        s->memo_of = o;
    uint32_t *t = realloc(s->state_of, n * sizeof *t);
    if (t)
        s->state_of = t;
    if (!e || !m || !o || !t)
        return -1;
    memset(s->memo_of + s->room, 0, (n - s->room) * sizeof *o);
    memset(s->state_of + s->room, 0, (n - s->room) * sizeof *t);
    s->room = n;
    return 0;
}

static uint32_t mix(uint32_t h, uint32_t x)
{
    h ^= x;
    h *= 0x9E3779B1u;
    return h ^ h >> 15;
}

static uint32_t hash(const struct exprs *s, const struct expr *x)
{
    uint32_t h = mix(mix(mix(x->kind, (uint32_t)x->lo), (uint32_t)x->hi), x->b);
    if (x->kind == EXPR_BRANCH) {
        for (uint32_t i = 0; i < x->b; i++) {
            const struct arm *r = &s->arms[x->a + i];
            h = mix(mix(h, (uint32_t)r->lo << 8 | r->hi), r->to);
        }
    } else if (x->kind == EXPR_UNION || x->kind == EXPR_BOTH || x->kind == EXPR_ANY_OF) {
        for (uint32_t i = 0; i < x->b; i++)
            h = mix(h, s->lists[x->a + i]);
    } else {
        h = mix(h, x->a);
    }
    return mix(h, h >> 7);
}

static int same(const struct exprs *s, const struct expr *x, const struct expr *y)
{
    if (x->kind != y->kind || x->b != y->b || x->lo != y->lo || x->hi != y->hi)
        return 0;
    if (x->kind == EXPR_UNION || x->kind == EXPR_BOTH || x->kind == EXPR_ANY_OF)
        return !memcmp(s->lists + x->a, s->lists + y->a, x->b * sizeof *s->lists);
    if (x->kind != EXPR_BRANCH)
        return x->a == y->a;
    for (uint32_t i = 0; i < x->b; i++) {
        const struct arm *p = &s->arms[x->a + i], *q = &s->arms[y->a + i];
        if (p->lo != q->lo || p->hi != q->hi || p->to != q->to)
            return 0;
    }
    return 1;
}

static void fail(struct exprs *s, enum expr_failure why)
{
    if (!s->failed)
        s->failed = why;
}

/* ---- counting ---- */

void meter_start(struct exprs *s, uint64_t most, uint64_t pause, const atomic_int *cancel)
{
    struct meter *m = &s->meter;
    m->spent = 0;
    m->derived_from = 0;
    m->most = most;
    m->pause_at = pause ? m->work + pause : UINT64_MAX;
    m->cancel = cancel;
    m->check_at = m->work + 1;
}

void meter_check(struct exprs *s)
{
    enum { EVERY = 1024 };
    struct meter *m = &s->meter;
    m->check_at = m->pause_at - m->work < EVERY ? m->pause_at : m->work + EVERY;
    if (m->cancel && atomic_load_explicit(m->cancel, memory_order_relaxed))
        fail(s, EXPR_CANCELLED);
    else if (m->spent + (m->derived_from ? m->work - m->derived_from : 0) > m->most)
        fail(s, EXPR_TOO_COSTLY);
    else if (m->work >= m->pause_at)
        fail(s, EXPR_PAUSED);
}

static int rehash(struct exprs *s)
{
    uint32_t n = s->n_table ? s->n_table * 2 : 4096;
    uint32_t *t = calloc(n, sizeof *t);
    if (!t)
        return -1;
    for (uint32_t i = 0; i < s->n; i++) {
        uint32_t k = hash(s, &s->e[i]) & (n - 1);
        while (t[k])
            k = (k + 1) & (n - 1);
        t[k] = i + 1;
    }
    free(s->table);
    s->table = t;
    s->n_table = n;
    return 0;
}

/* The number of x; its arms or list, if it has any, are the last ones of the pool and are given
 * back if x is known. */
static uint32_t intern(struct exprs *s, const struct expr *x)
{
    uint32_t k = hash(s, x) & (s->n_table - 1);
    meter_step(s, 0);
    for (; s->table[k]; k = (k + 1) & (s->n_table - 1))
        if (same(s, x, &s->e[s->table[k] - 1])) {
            if (x->kind == EXPR_BRANCH)
                s->n_arms = x->a;
            else if (x->kind == EXPR_UNION || x->kind == EXPR_BOTH || x->kind == EXPR_ANY_OF)
                s->n_lists = x->a;
            return s->table[k] - 1;
        }
    if (s->n >= s->limit) {
        fail(s, EXPR_TOO_LARGE);
        return EXPR_NONE;
    }
    if ((s->n == s->room && grow_nodes(s) != 0) || s->n + 1 == s->n_table) {
        fail(s, EXPR_NO_MEMORY);
        return EXPR_NONE;
    }
    s->e[s->n] = *x;
    s->table[k] = ++s->n;
    if (s->n * 2 > s->n_table && rehash(s) != 0)
        fail(s, EXPR_NO_MEMORY);
    return s->n - 1;
}

int exprs_init(struct exprs *s, uint32_t limit, struct err *e)
{
    memset(s, 0, sizeof *s);
    s->limit = limit;
    s->n_rows = 1;                      /* row 0: none */
    meter_start(s, UINT64_MAX, 0, NULL);
    if (grow_nodes(s) != 0 || rehash(s) != 0) {
        exprs_release(s);
        return err_nomem(e, "a grammar");
    }
    intern(s, &(struct expr){ .kind = EXPR_EMPTY });
    intern(s, &(struct expr){ .kind = EXPR_NULL, .flags = EXPR_NULLABLE });
    intern(s, &(struct expr){ .kind = EXPR_NOT, .a = EXPR_NONE, .flags = EXPR_NULLABLE });
    return 0;
}

void exprs_release(struct exprs *s)
{
    free(s->e);
    free(s->table);
    free(s->arms);
    free(s->lists);
    free(s->memo);
    free(s->memo_of);
    free(s->state_of);
    free(s->rows);
    free(s->costs);
    free(s->within);
    memset(s, 0, sizeof *s);
}

int exprs_check(const struct exprs *s, struct err *e)
{
    switch (s->failed) {
    case EXPR_OK: return 0;
    case EXPR_NO_MEMORY: return err_nomem(e, "a grammar");
    case EXPR_TOO_LARGE: return err_set(e, ERR_LIMIT, "the grammar is too large: more than %u parts", s->limit);
    case EXPR_TOO_COSTLY: return err_set(e, ERR_LIMIT, "the grammar is too costly: more than %llu steps for one token",
                                         (unsigned long long)s->meter.most);
    case EXPR_PAUSED: case EXPR_CANCELLED: return err_set(e, ERR_LIMIT, "the work on a grammar was cancelled");
    case EXPR_TOO_MANY_STATES: return err_set(e, ERR_LIMIT, "conditions that must all hold have too many states together (lengths next to a long pattern, lookahead)");
    default: return err_set(e, ERR_LIMIT, "the grammar is too ambiguous: more than %d ways to go on at one place",
                            MAX_UNION);
    }
}

/* ---- regular ---- */

uint32_t expr_arms(struct exprs *s, const struct arm *arms, uint32_t n)
{
    if (s->failed)
        return EXPR_NONE;
    if (s->n_arms + n > s->room_arms && grow((void **)&s->arms, &s->room_arms, s->n_arms + n, sizeof *arms) != 0) {
        fail(s, EXPR_NO_MEMORY);
        return EXPR_NONE;
    }
    uint32_t first = s->n_arms;
    uint8_t filtered = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (arms[i].to == EXPR_NONE)
            continue;
        struct arm *last = s->n_arms > first ? &s->arms[s->n_arms - 1] : NULL;
        if (last && last->to == arms[i].to && last->hi + 1 == arms[i].lo)
            last->hi = arms[i].hi;
        else
            s->arms[s->n_arms++] = arms[i];
        filtered |= s->e[arms[i].to].flags & EXPR_FILTERED;
    }
    if (s->n_arms == first)
        return EXPR_NONE;
    return intern(s, &(struct expr){ .kind = EXPR_BRANCH, .flags = filtered, .a = first, .b = s->n_arms - first });
}

uint32_t expr_byte(struct exprs *s, int lo, int hi)
{
    struct arm a = { (uint8_t)lo, (uint8_t)hi, EXPR_EPSILON };
    return expr_arms(s, &a, 1);
}

/* The text, then `then`. */
static uint32_t text_then(struct exprs *s, const unsigned char *p, size_t n, uint32_t then)
{
    while (n--)
        then = expr_arms(s, &(struct arm){ p[n], p[n], then }, 1);
    return then;
}

uint32_t expr_text(struct exprs *s, const void *bytes, size_t n) { return text_then(s, bytes, n, EXPR_EPSILON); }

/* a is no CONCAT. */
static uint32_t concat_one(struct exprs *s, uint32_t a, uint32_t b)
{
    if (s->failed || a == EXPR_NONE || b == EXPR_NONE)
        return EXPR_NONE;
    if (a == EXPR_EPSILON)
        return b;
    if (b == EXPR_EPSILON)
        return a;
    if (a == EXPR_ALL && b == EXPR_ALL)
        return a;
    const uint8_t fa = s->e[a].flags, fb = s->e[b].flags;
    const int32_t ahead = fa & EXPR_NULLABLE ? (s->e[b].kind == EXPR_CONCAT ? s->e[b].lo : 0) + 1 : 0;
    if (ahead > MAX_UNION) {                        /* each may be left out: a derivative looks at all of them, one within the other */
        fail(s, EXPR_AMBIGUOUS);
        return EXPR_NONE;
    }
    return intern(s, &(struct expr){ .kind = EXPR_CONCAT,
                                     .flags = (uint8_t)((fa & fb & EXPR_NULLABLE) | ((fa | fb) & EXPR_FILTERED)),
                                     .a = a, .b = b, .lo = ahead });
}

/* Nested to the right.  In loops: rules that double each other make a left side as long as the
 * limit lets it become. */
uint32_t expr_concat(struct exprs *s, uint32_t a, uint32_t b)
{
    uint32_t few[32], *heads = few, n = 0, tail = a;
    if (s->failed || b == EXPR_NONE)
        return EXPR_NONE;
    if (b == EXPR_EPSILON)
        return a;
    for (; s->e[tail].kind == EXPR_CONCAT; tail = s->e[tail].b)
        n++;
    if (n > 32 && !(heads = malloc(n * sizeof *heads))) {
        fail(s, EXPR_NO_MEMORY);
        return EXPR_NONE;
    }
    for (uint32_t i = 0, x = a; i < n; i++, x = s->e[x].b)
        heads[i] = s->e[x].a;
    uint32_t r = concat_one(s, tail, b);
    for (uint32_t i = n; i > 0; i--)
        r = concat_one(s, heads[i - 1], r);
    if (heads != few)
        free(heads);
    return r;
}

static int by_number(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* x{lo,hi} tail */
struct counted { uint32_t x, tail, e; int32_t lo, hi; };

static int by_body(const void *a, const void *b)
{
    const struct counted *x = a, *y = b;
    if (x->x != y->x)
        return x->x < y->x ? -1 : 1;
    if (x->tail != y->tail)
        return x->tail < y->tail ? -1 : 1;
    return x->lo < y->lo ? -1 : x->lo > y->lo;
}

/* x{2,5} t and x{3,9} t are together x{2,9} t: without this, what overlaps itself has as many
 * alternatives as its bounds are wide. */
static uint32_t merge_counted(struct exprs *s, uint32_t *v, uint32_t n)
{
    struct counted few[16], *c = few;
    uint32_t m = 0, k = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct expr *x = &s->e[v[i]];
        m += x->kind == EXPR_REPEAT || (x->kind == EXPR_CONCAT && s->e[x->a].kind == EXPR_REPEAT);
    }
    if (m < 2)
        return n;
    if (m > 16 && !(c = malloc(m * sizeof *c))) {
        fail(s, EXPR_NO_MEMORY);
        return n;
    }
    m = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct expr *x = &s->e[v[i]], *r = x->kind == EXPR_CONCAT ? &s->e[x->a] : x;
        if (r->kind == EXPR_REPEAT)
            c[m++] = (struct counted){ r->a, x->kind == EXPR_CONCAT ? x->b : (uint32_t)EXPR_EPSILON, v[i], r->lo,
                                       r->hi };
        else
            v[k++] = v[i];
    }
    qsort(c, m, sizeof *c, by_body);
    for (uint32_t i = 0, j; i < m; i = j) {
        int32_t hi = c[i].hi;
        for (j = i + 1; j < m && c[j].x == c[i].x && c[j].tail == c[i].tail &&
             (hi == EXPR_MANY || c[j].lo <= hi + 1); j++)
            if (hi != EXPR_MANY && (c[j].hi == EXPR_MANY || c[j].hi > hi))
                hi = c[j].hi;
        v[k++] = j == i + 1 ? c[i].e : expr_concat(s, expr_repeat(s, c[i].x, c[i].lo, hi), c[i].tail);
    }
    if (c != few)
        free(c);
    return k;
}

static uint32_t list_expr(struct exprs *s, uint8_t kind, uint8_t flags, const uint32_t *v, uint32_t n)
{
    if (n > MAX_UNION && kind != EXPR_ANY_OF) {
        fail(s, EXPR_AMBIGUOUS);
        return EXPR_NONE;
    }
    if (grow((void **)&s->lists, &s->room_lists, s->n_lists + n, sizeof *v) != 0) {
        fail(s, EXPR_NO_MEMORY);
        return EXPR_NONE;
    }
    memcpy(s->lists + s->n_lists, v, n * sizeof *v);
    s->n_lists += n;
    return intern(s, &(struct expr){ .kind = kind, .flags = flags, .a = s->n_lists - n, .b = n });
}

/* The parts of v, those of a `kind` among them taken apart, `unit` left out, in w (few if they
 * fit; the caller frees any other): their number.  NULL with failed set without memory. */
static uint32_t *parts_of(struct exprs *s, uint8_t kind, uint32_t unit, const uint32_t *v, uint32_t n, uint32_t few[32],
                          uint32_t *n_parts)
{
    uint32_t *w = few, m = 0, total = 0;
    for (uint32_t i = 0; i < n; i++)
        total += s->e[v[i]].kind == kind ? s->e[v[i]].b : 1;
    if (total > 32 && !(w = malloc(total * sizeof *w))) {
        fail(s, EXPR_NO_MEMORY);
        return NULL;
    }
    for (uint32_t i = 0; i < n; i++) {
        const struct expr *x = &s->e[v[i]];
        if (x->kind == kind) {
            memcpy(w + m, s->lists + x->a, x->b * sizeof *w);
            m += x->b;
        } else if (v[i] != unit) {
            w[m++] = v[i];
        }
    }
    *n_parts = m;
    return w;
}

/* In order, each once; *any and *all: flags that one of them, or all, have. */
static uint32_t sort_parts(const struct exprs *s, uint32_t *w, uint32_t n, uint8_t *any, uint8_t *all)
{
    uint32_t m = 0;
    qsort(w, n, sizeof *w, by_number);
    *any = 0;
    *all = 0xff;
    for (uint32_t i = 0; i < n; i++)
        if (!m || w[m - 1] != w[i]) {
            w[m++] = w[i];
            *any |= s->e[w[i]].flags;
            *all &= s->e[w[i]].flags;
        }
    return m;
}

uint32_t expr_union(struct exprs *s, const uint32_t *v, uint32_t n)
{
    uint32_t few[32], m, r = EXPR_NONE;
    uint8_t any, every;
    uint32_t *w = s->failed ? NULL : parts_of(s, EXPR_UNION, EXPR_NONE, v, n, few, &m);
    if (!w)
        return EXPR_NONE;
    s->meter.work += m;
    m = merge_counted(s, w, m);
    m = sort_parts(s, w, m, &any, &every);
    int all = 0, epsilon = 0;
    for (uint32_t i = 0; i < m && w[i] <= EXPR_ALL; i++) {
        all |= w[i] == EXPR_ALL;
        epsilon |= w[i] == EXPR_EPSILON;
    }
    if (epsilon && m > 1) {             /* not needed where something else matches the empty text */
        for (uint32_t i = 0; i < m && epsilon; i++)
            if (w[i] != EXPR_EPSILON && s->e[w[i]].flags & EXPR_NULLABLE)
                epsilon = 0;
        if (!epsilon) {
            uint32_t k = 0;
            for (uint32_t i = 0; i < m; i++)
                if (w[i] != EXPR_EPSILON)
                    w[k++] = w[i];
            m = k;
        }
    }
    if (all)
        r = EXPR_ALL;
    else if (m == 1)
        r = w[0];
    else if (m > 1)
        r = list_expr(s, EXPR_UNION, any & (EXPR_NULLABLE | EXPR_FILTERED), w, m);
    if (w != few)
        free(w);
    return r;
}

uint32_t expr_either(struct exprs *s, uint32_t a, uint32_t b)
{
    if (a == b || b == EXPR_NONE)
        return a;
    if (a == EXPR_NONE)
        return b;
    return expr_union(s, (uint32_t[]){ a, b }, 2);
}

uint32_t expr_repeat(struct exprs *s, uint32_t a, int32_t lo, int32_t hi)
{
    if (s->failed)
        return EXPR_NONE;
    if (hi == 0 || a == EXPR_EPSILON)
        return EXPR_EPSILON;
    if (a == EXPR_NONE)
        return lo ? EXPR_NONE : EXPR_EPSILON;
    const struct expr x = s->e[a];
    if (x.flags & EXPR_NULLABLE)
        lo = 0;
    if (lo == 1 && hi == 1)
        return a;
    if (a == EXPR_ALL)
        return a;
    if (x.kind == EXPR_REPEAT && x.hi == EXPR_MANY && x.lo <= 1 && (hi == EXPR_MANY || hi > 0)) {
        if (x.lo == 0 || lo == 0)       /* (x*){..} and (x+)? */
            return expr_repeat(s, x.a, 0, EXPR_MANY);
        return expr_repeat(s, x.a, lo, EXPR_MANY);      /* (x+){lo,} */
    }
    return intern(s, &(struct expr){ .kind = EXPR_REPEAT,
                                     .flags = (uint8_t)((lo ? 0 : EXPR_NULLABLE) | (x.flags & EXPR_FILTERED)), .a = a,
                                     .lo = lo, .hi = hi });
}

/* Next to an expr_within() any number of characters says nothing. */
static uint32_t without_implied(const struct exprs *s, uint32_t *w, uint32_t n)
{
    int counted = 0;
    uint32_t m = 0;
    for (uint32_t i = 0; i < n; i++)
        counted |= s->e[w[i]].kind == EXPR_WITHIN && s->e[w[i]].b == EXPR_EPSILON;
    for (uint32_t i = 0; i < n; i++) {
        const struct expr *x = &s->e[w[i]];
        if (!counted || x->kind != EXPR_REPEAT || x->a != s->one_char || x->lo != 0 || x->hi != EXPR_MANY)
            w[m++] = w[i];
    }
    return m;
}

static uint32_t both_list(struct exprs *s, const uint32_t *v, uint32_t n)
{
    uint32_t few[32], m, r;
    uint8_t any, every;
    uint32_t *w = s->failed ? NULL : parts_of(s, EXPR_BOTH, EXPR_ALL, v, n, few, &m);
    if (!w)
        return EXPR_NONE;
    m = sort_parts(s, w, m, &any, &every);
    m = without_implied(s, w, m);
    if (m && w[0] == EXPR_NONE)
        r = EXPR_NONE;
    else if (m > 1 && w[0] == EXPR_EPSILON)
        r = every & EXPR_NULLABLE ? EXPR_EPSILON : EXPR_NONE;
    else if (m == 0)
        r = EXPR_ALL;
    else if (m == 1)
        r = w[0];
    else
        r = list_expr(s, EXPR_BOTH, (uint8_t)((every & EXPR_NULLABLE) | EXPR_FILTERED), w, m);
    if (w != few)
        free(w);
    return r;
}

uint32_t expr_both(struct exprs *s, uint32_t a, uint32_t b) { return both_list(s, (uint32_t[]){ a, b }, 2); }

uint32_t expr_not(struct exprs *s, uint32_t a)
{
    if (s->failed)
        return EXPR_NONE;
    if (a == EXPR_NONE)
        return EXPR_ALL;
    if (s->e[a].kind == EXPR_NOT)
        return s->e[a].a;
    return intern(s, &(struct expr){ .kind = EXPR_NOT,
                                     .flags = (uint8_t)(EXPR_FILTERED |
                                                        (s->e[a].flags & EXPR_NULLABLE ? 0 : EXPR_NULLABLE)), .a = a });
}

int text_compare(const void *a, const void *b)
{
    const struct text *x = a, *y = b;
    const size_t n = x->n < y->n ? x->n : y->n;
    const int c = n ? memcmp(x->p, y->p, n) : 0;
    return c ? c : x->n < y->n ? -1 : x->n > y->n;
}

static uint32_t texts_from(struct exprs *s, const struct text *t, size_t n, size_t depth)
{
    struct arm arms[256];
    uint32_t n_arms = 0, ends = 0;
    size_t i = 0;
    if (n == 1)
        return text_then(s, (const unsigned char *)t->p + depth, t->n - depth, EXPR_EPSILON);
    if (n && t[0].n == depth)
        ends = 1, i = 1;
    while (i < n) {
        size_t j = i, common = depth + 1;
        unsigned char c = (unsigned char)t[i].p[depth];
        while (j < n && (unsigned char)t[j].p[depth] == c)
            j++;
        while (j > i + 1 && common < t[i].n && common < t[j - 1].n && t[i].p[common] == t[j - 1].p[common])
            common++;                   /* the first and the last share it, so all between do */
        uint32_t to = texts_from(s, t + i, j - i, j == i + 1 ? depth + 1 : common);
        if (j > i + 1)
            to = text_then(s, (const unsigned char *)t[i].p + depth + 1, common - depth - 1, to);
        arms[n_arms++] = (struct arm){ c, c, to };
        i = j;
    }
    uint32_t r = n_arms ? expr_arms(s, arms, n_arms) : EXPR_NONE;
    return ends ? expr_either(s, EXPR_EPSILON, r) : r;
}

uint32_t expr_texts(struct exprs *s, const struct text *t, size_t n) { return texts_from(s, t, n, 0); }

/* ---- characters ---- */

/* Those of the ranges that lie in lo to hi: 0 none, 1 all, 2 some. */
static int cover(const struct range *r, int n, uint32_t lo, uint32_t hi)
{
    int a = 0, b = n;                   /* the first range that ends at lo or later */
    while (a < b) {
        int m = (a + b) / 2;
        if (r[m].hi < lo)
            a = m + 1;
        else
            b = m;
    }
    if (a == n || r[a].lo > hi)
        return 0;
    return r[a].lo <= lo && r[a].hi >= hi ? 1 : 2;
}

/* Continuation bytes for the characters of the ranges from base to base + 64^k - 1. */
static uint32_t continuation(struct exprs *s, const struct range *r, int n, uint32_t base, int k)
{
    uint32_t size = 1u << 6 * k, sub = size >> 6;
    int c = cover(r, n, base, base + size - 1);
    if (k == 0)
        return c ? EXPR_EPSILON : EXPR_NONE;
    if (c == 0)
        return EXPR_NONE;
    if (c == 1) {
        uint32_t e = EXPR_EPSILON;
        while (k--)
            e = expr_arms(s, &(struct arm){ 0x80, 0xBF, e }, 1);
        return e;
    }
    struct arm arms[64];
    for (int i = 0; i < 64; i++)
        arms[i] = (struct arm){ (uint8_t)(0x80 + i), (uint8_t)(0x80 + i),
                                continuation(s, r, n, base + (uint32_t)i * sub, k - 1) };
    return expr_arms(s, arms, 64);
}

static uint32_t chars(struct exprs *s, const struct range *given, int n, uint32_t escape)
{
    struct range few[64], *r = few;
    struct arm arms[256];
    uint32_t k = 0;
    int m = 0;
    if (n + 1 > 64 && !(r = malloc((size_t)(n + 1) * sizeof *r))) {
        fail(s, EXPR_NO_MEMORY);
        return EXPR_NONE;
    }
    for (int i = 0; i < n; i++) {       /* without surrogates */
        if (given[i].lo < 0xD800)
            r[m++] = (struct range){ given[i].lo, given[i].hi < 0xD7FF ? given[i].hi : 0xD7FF };
        if (given[i].hi > 0xDFFF)
            r[m++] = (struct range){ given[i].lo > 0xE000 ? given[i].lo : 0xE000,
                                     given[i].hi < 0x10FFFF ? given[i].hi : 0x10FFFF };
    }
    s->meter.work += 256;               /* far more bytes are looked at than parts made */
    for (int b = 0; b < 0x80; b++) {
        uint32_t to = cover(r, m, (uint32_t)b, (uint32_t)b) ? EXPR_EPSILON : EXPR_NONE;
        if (escape != EXPR_ALL && (b < 0x20 || b == '"' || b == '\\'))
            to = b == '\\' ? escape : (uint32_t)EXPR_NONE;
        arms[k++] = (struct arm){ (uint8_t)b, (uint8_t)b, to };
    }
    for (int b = 0xC2; b <= 0xF4; b++) {
        int len = b < 0xE0 ? 1 : b < 0xF0 ? 2 : 3;
        uint32_t base = (uint32_t)(b & (len == 1 ? 0x1F : len == 2 ? 0x0F : 0x07)) << 6 * len;
        uint32_t to;
        if (b == 0xE0 || b == 0xF0) {   /* no overlong forms: ranges below 0x800 and 0x10000 do not count here */
            uint32_t low = b == 0xE0 ? 0x800 : 0x10000, part = 1u << 6 * (len - 1);
            struct arm sub[64];
            for (int i = 0; i < 64; i++) {
                uint32_t at = base + (uint32_t)i * part;
                sub[i] = (struct arm){ (uint8_t)(0x80 + i), (uint8_t)(0x80 + i),
                                       at < low ? (uint32_t)EXPR_NONE : continuation(s, r, m, at, len - 1) };
            }
            to = expr_arms(s, sub, 64);
        } else {
            to = continuation(s, r, m, base, len);
        }
        arms[k++] = (struct arm){ (uint8_t)b, (uint8_t)b, to };
    }
    if (r != few)
        free(r);
    return expr_arms(s, arms, k);
}

uint32_t expr_chars(struct exprs *s, const struct range *r, int n) { return chars(s, r, n, EXPR_ALL); }

uint32_t expr_json_chars(struct exprs *s, const struct range *r, int n)
{
    static const char name[] = "\"\\bfnrt", code[] = "\"\\\b\f\n\r\t";
    struct arm one[2][32], arms[8];
    uint32_t k[2] = { 0, 0 }, m = 0;
    for (int i = 0; i < 7; i++)         /* in the order of bytes: " \ b f n r t, then u */
        if (cover(r, n, (unsigned char)code[i], (unsigned char)code[i]))
            arms[m++] = (struct arm){ (uint8_t)name[i], (uint8_t)name[i], EXPR_EPSILON };
    for (uint32_t c = 1; c < 0x20; c++)
        if (cover(r, n, c, c) && !memchr("\b\f\n\r\t", (int)c, 5)) {
            uint32_t x = c & 15, h = c >> 4;
            uint8_t digit = (uint8_t)(x < 10 ? '0' + x : 'a' + x - 10);
            one[h][k[h]++] = (struct arm){ digit, digit, EXPR_EPSILON };
        }
    uint32_t hex = expr_arms(s, (struct arm[]){ { '0', '0', k[0] ? expr_arms(s, one[0], k[0]) : (uint32_t)EXPR_NONE },
                                                { '1', '1', k[1] ? expr_arms(s, one[1], k[1]) : (uint32_t)EXPR_NONE } },
                                                2);
    if (hex != EXPR_NONE)
        arms[m++] = (struct arm){ 'u', 'u', text_then(s, (const unsigned char *)"00", 2, hex) };
    return chars(s, r, n, m ? expr_arms(s, arms, m) : (uint32_t)EXPR_NONE);
}

/* ---- derivatives ---- */

static uint32_t arm_of(const struct exprs *s, const struct expr *x, int byte)
{
    const struct arm *r = s->arms + x->a;
    uint32_t a = 0, b = x->b;
    while (a < b) {
        uint32_t m = (a + b) / 2;
        if (r[m].hi < byte)
            a = m + 1;
        else
            b = m;
    }
    return a < x->b && r[a].lo <= byte ? r[a].to : (uint32_t)EXPR_NONE;
}

static struct within *find_within(const struct exprs *s, uint32_t e, uint32_t part)
{
    uint32_t k = mix(mix(7, e), part) & (s->room_within - 1);
    while (s->within[k].e && (s->within[k].e != e || s->within[k].part != part))
        k = (k + 1) & (s->room_within - 1);
    return &s->within[k];
}

/* What is left of an expr_within(). */
static uint32_t within(struct exprs *s, uint32_t e, uint32_t part, int32_t hi)
{
    if (s->failed || e == EXPR_NONE || part == EXPR_NONE || s->e[e].flags & EXPR_DEAD)
        return EXPR_NONE;
    const struct within *w = find_within(s, e, part);
    if (!w->e || w->chars > (uint32_t)hi)
        return EXPR_NONE;
    if (e == EXPR_EPSILON)
        return e;
    return intern(s, &(struct expr){ .kind = EXPR_WITHIN, .flags = part == EXPR_EPSILON
                                     ? s->e[e].flags & EXPR_NULLABLE : 0, .a = e, .b = part, .hi = hi });
}

static uint32_t derive(struct exprs *s, uint32_t e, int byte)
{
    const struct expr x = s->e[e];      /* a copy: the array moves */
    uint32_t r = EXPR_NONE;
    meter_step(s, 0);
    switch (x.kind) {
    case EXPR_BRANCH:
        return arm_of(s, &x, byte);
    case EXPR_CONCAT: case EXPR_UNION: case EXPR_REPEAT: case EXPR_BOTH: case EXPR_NOT: case EXPR_WITHIN:
        break;
    default:
        return EXPR_NONE;
    }
    if (s->memo_of[e] == s->epoch)
        return s->memo[e];
    if (s->failed)
        return EXPR_NONE;
    if (x.kind == EXPR_CONCAT) {
        r = expr_concat(s, derive(s, x.a, byte), x.b);
        if (s->e[x.a].flags & EXPR_NULLABLE)
            r = expr_either(s, r, derive(s, x.b, byte));
    } else if (x.kind == EXPR_REPEAT) {
        r = expr_concat(s, derive(s, x.a, byte),
                        expr_repeat(s, x.a, x.lo ? x.lo - 1 : 0, x.hi == EXPR_MANY ? x.hi : x.hi - 1));
    } else if (x.kind == EXPR_NOT) {
        r = expr_not(s, derive(s, x.a, byte));
    } else if (x.kind == EXPR_WITHIN) {
        const int begins = x.b == EXPR_EPSILON;
        if (!begins || x.hi)
            r = within(s, derive(s, x.a, byte), derive(s, begins ? s->one_char : x.b, byte), x.hi - begins);
    } else {
        uint32_t few[32], *v = x.b > 32 ? malloc(x.b * sizeof *v) : few, n = 0;
        if (!v) {
            fail(s, EXPR_NO_MEMORY);
            return EXPR_NONE;
        }
        for (uint32_t i = 0; i < x.b; i++) {
            uint32_t d = derive(s, s->lists[x.a + i], byte);
            if (d != EXPR_NONE || x.kind == EXPR_BOTH)
                v[n++] = d;
            if (d == EXPR_NONE && x.kind == EXPR_BOTH)
                break;
        }
        r = x.kind == EXPR_UNION ? expr_union(s, v, n) : both_list(s, v, n);
        if (v != few)
            free(v);
    }
    if (e < s->n) {
        s->memo[e] = r;
        s->memo_of[e] = s->epoch;
    }
    return r;
}

void exprs_forget_rows(struct exprs *s)
{
    memset(s->state_of, 0, s->room * sizeof *s->state_of);
    s->n_rows = 1;
}

struct exprs_mark exprs_mark(const struct exprs *s) { return (struct exprs_mark){ s->n, s->n_arms, s->n_lists }; }

void exprs_cut(struct exprs *s, const struct exprs_mark *m)
{
    exprs_forget_rows(s);
    s->n = m->n;
    s->n_arms = m->n_arms;
    s->n_lists = m->n_lists;
    memset(s->table, 0, s->n_table * sizeof *s->table);
    for (uint32_t i = 0; i < s->n; i++) {
        uint32_t k = hash(s, &s->e[i]) & (s->n_table - 1);
        while (s->table[k])
            k = (k + 1) & (s->n_table - 1);
        s->table[k] = i + 1;
    }
    s->failed = EXPR_OK;
}

static void new_epoch(struct exprs *s)
{
    if (++s->epoch == 0) {
        memset(s->memo_of, 0, s->room * sizeof *s->memo_of);
        s->epoch = 1;
    }
}

/* A row with nothing known in it; 0: no memory. */
static uint32_t new_row(struct exprs *s)
{
    if (s->n_rows >= MAX_ROWS)
        exprs_forget_rows(s);
    if (s->n_rows >= s->room_rows) {
        const uint32_t n = s->room_rows ? s->room_rows * 2 : 64;
        uint32_t *p = realloc(s->rows, (size_t)n * 256 * sizeof *p);
        if (p)
            s->rows = p;
        struct row_costs *c = p ? realloc(s->costs, (size_t)n * sizeof *c) : NULL;
        if (!c) {
            fail(s, EXPR_NO_MEMORY);
            return 0;
        }
        s->costs = c;
        s->room_rows = n;
    }
    memset(s->rows + (size_t)s->n_rows * 256, 0xFF, 256 * sizeof *s->rows);
    s->costs[s->n_rows].walk = s->walk;
    memset(s->costs[s->n_rows].used, 0, sizeof s->costs->used);
    return s->n_rows++;
}

/* Look up one step that no row has yet: *cost is what it took. */
static uint32_t find_step(struct exprs *s, uint32_t e, int byte, uint32_t row, uint8_t *cost)
{
    const uint64_t from = s->meter.work;
    new_epoch(s);
    s->meter.derived_from = from;
    uint32_t r = derive(s, e, byte);
    s->meter.derived_from = 0;
    *cost = cost_code(s->meter.work - from + 1);
    if (s->failed)
        return EXPR_NONE;
    if (s->e[r].flags & EXPR_DEAD)
        r = EXPR_NONE;
    s->costs[row].cost[byte] = *cost;
    return s->rows[(size_t)row * 256 + (size_t)byte] = r;
}

/* once: count in full only the first time in this walk. */
static inline uint32_t step(struct exprs *s, uint32_t e, int byte, int once)
{
    const struct expr *x = &s->e[e];
    if (x->kind == EXPR_BRANCH) {
        uint32_t r = arm_of(s, x, byte);
        meter_step(s, 1);
        return s->e[r].flags & EXPR_DEAD ? (uint32_t)EXPR_NONE : r;
    }
    if (e <= EXPR_EPSILON)
        return EXPR_NONE;
    uint32_t row = s->state_of[e], r;
    if (!row && !(row = s->state_of[e] = new_row(s)))
        return EXPR_NONE;
    struct row_costs *c = &s->costs[row];
    int full = 1;
    if (once) {
        if (c->walk != s->walk) {
            c->walk = s->walk;
            memset(c->used, 0, sizeof c->used);
        }
        full = first_use(c->used, byte);
    }
    if ((r = s->rows[(size_t)row * 256 + (size_t)byte]) != (uint32_t)UNKNOWN) {
        meter_step(s, full ? cost_of(c->cost[byte]) : 1);
        return r;
    }
    uint8_t cost;
    r = find_step(s, e, byte, row, &cost);
    s->meter.spent += full ? cost_of(cost) : 1;
    return r;
}

uint32_t expr_step(struct exprs *s, uint32_t e, int byte) { return step(s, e, byte, 0); }
uint32_t expr_walk_first(struct exprs *s, uint32_t e, int byte) { return step(s, e, byte, 1); }

void expr_walk_start(struct exprs *s)
{
    if (++s->walk == 0)                 /* the numbers begin again: none of the old ones may be taken for one of them */
        for (uint32_t i = 1; i < s->n_rows; i++)
            s->costs[i].walk = UINT32_MAX;
}

int expr_matches(struct exprs *s, uint32_t e, const void *text, size_t n)
{
    const unsigned char *p = text;
    for (size_t i = 0; i < n && e != EXPR_NONE; i++)
        e = expr_step(s, e, p[i]);
    return expr_nullable(s, e) != 0;
}

static void edge(uint64_t set[4], int b)
{
    if (b < 256)
        set[b >> 6] |= (uint64_t)1 << (b & 63);
}

static void edges_of(struct exprs *s, uint32_t e, uint64_t set[4])
{
    const struct expr *x = &s->e[e];
    if (x->kind == EXPR_BRANCH) {
        for (uint32_t i = 0; i < x->b; i++) {
            edge(set, s->arms[x->a + i].lo);
            edge(set, s->arms[x->a + i].hi + 1);
        }
        return;
    }
    if (s->memo_of[e] == s->epoch)
        return;
    s->memo_of[e] = s->epoch;
    meter_step(s, 0);
    if (x->kind == EXPR_CONCAT) {
        edges_of(s, x->a, set);
        if (s->e[x->a].flags & EXPR_NULLABLE)
            edges_of(s, x->b, set);
    } else if (x->kind == EXPR_UNION || x->kind == EXPR_BOTH) {
        for (uint32_t i = 0; i < x->b; i++)
            edges_of(s, s->lists[x->a + i], set);
    } else if (x->kind == EXPR_REPEAT || x->kind == EXPR_NOT) {
        edges_of(s, x->a, set);
    } else if (x->kind == EXPR_WITHIN) {
        edges_of(s, x->a, set);
        edges_of(s, x->b == EXPR_EPSILON ? s->one_char : x->b, set);
    }
}

void expr_edges(struct exprs *s, uint32_t e, uint64_t set[4])
{
    const uint64_t from = s->meter.work;
    new_epoch(s);
    edges_of(s, e, set);
    s->meter.spent += s->meter.work - from;
}

void expr_first(struct exprs *s, uint32_t e, uint64_t set[4])
{
    uint64_t edges[4] = { 1, 0, 0, 0 };
    int alive = 0;
    expr_edges(s, e, edges);
    for (int b = 0; b < 256; b++) {
        if (edges[b >> 6] >> (b & 63) & 1)
            alive = expr_step(s, e, b) != EXPR_NONE;
        if (alive)
            set[b >> 6] |= (uint64_t)1 << (b & 63);
    }
}

uint32_t exprs_settle(struct exprs *s, uint32_t e, uint32_t max_states)
{
    if (s->failed || e == EXPR_NONE)
        return EXPR_NONE;
    if (!(s->e[e].flags & EXPR_FILTERED) || s->e[e].flags & EXPR_SETTLED)
        return s->e[e].flags & EXPR_DEAD ? (uint32_t)EXPR_NONE : e;
    /* All states, then backwards from those that match the empty text.  from/to: the edges
     * between states. */
    uint32_t *v = NULL, n = 1, room = 0, n_edges = 0, room_edges = 0, *order = NULL;
    struct link { uint32_t from, to; } *link = NULL;
    uint32_t *index = NULL;             /* of an expression among the states, by open addressing */
    uint32_t n_index = 1;
    while (n_index < max_states * 2 + 2)
        n_index *= 2;
    uint32_t result = EXPR_NONE;
    uint8_t *alive = NULL;
    index = calloc(n_index, sizeof *index);
    if (!index || grow((void **)&v, &room, 64, sizeof *v) != 0)
        goto memory;
    v[0] = e;
    index[mix(7, e) & (n_index - 1)] = 1;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t edges[4] = { 1, 0, 0, 0 };
        uint32_t last = EXPR_NONE;
        if (!(s->e[v[i]].flags & EXPR_FILTERED))
            continue;                   /* matches something: see EXPR_FILTERED */
        expr_edges(s, v[i], edges);
        for (int b = 0; b < 256; b++) {
            if (!(edges[b >> 6] >> (b & 63) & 1))
                continue;
            uint32_t to = expr_step(s, v[i], b), k;
            if (s->failed)
                goto done;
            if (to == EXPR_NONE || to == last)
                continue;
            last = to;
            for (k = mix(7, to) & (n_index - 1); index[k] && v[index[k] - 1] != to; k = (k + 1) & (n_index - 1))
                ;
            if (!index[k]) {
                if (n == max_states) {
                    fail(s, EXPR_TOO_MANY_STATES);
                    goto done;
                }
                if (grow((void **)&v, &room, n + 1, sizeof *v) != 0)
                    goto memory;
                v[n] = to;
                index[k] = ++n;
            }
            if (grow((void **)&link, &room_edges, n_edges + 1, sizeof *link) != 0)
                goto memory;
            link[n_edges++] = (struct link){ i, index[k] - 1 };
        }
    }
    /* links by target: counting sort */
    alive = calloc(n, 1);
    order = calloc((size_t)n + 1 + n_edges + n, sizeof *order);
    if (!alive || !order)
        goto memory;
    uint32_t *sorted = order + n + 1, *queue = sorted + n_edges, head = 0, tail = 0;
    for (uint32_t i = 0; i < n_edges; i++)
        order[link[i].to + 1]++;
    for (uint32_t i = 0; i < n; i++)
        order[i + 1] += order[i];
    for (uint32_t i = n_edges; i--;)
        sorted[--order[link[i].to + 1]] = link[i].from;
    /* now order[t + 1] is where the sources of t begin; they end where those of t + 1 begin */
    for (uint32_t i = 0; i < n; i++)
        if (s->e[v[i]].flags & EXPR_NULLABLE || !(s->e[v[i]].flags & EXPR_FILTERED)) {
            alive[i] = 1;
            queue[tail++] = i;
        }
    while (head < tail) {
        uint32_t t = queue[head++], end = t + 2 <= n ? order[t + 2] : n_edges;
        for (uint32_t k = order[t + 1]; k < end; k++)
            if (!alive[sorted[k]]) {
                alive[sorted[k]] = 1;
                queue[tail++] = sorted[k];
            }
    }
    int dead = 0;
    for (uint32_t i = 0; i < n; i++) {
        s->e[v[i]].flags |= alive[i] ? EXPR_SETTLED : EXPR_SETTLED | EXPR_DEAD;
        dead |= !alive[i];
    }
    if (dead)
        exprs_forget_rows(s);
    result = alive[0] ? e : (uint32_t)EXPR_NONE;
    goto done;
memory:
    fail(s, EXPR_NO_MEMORY);
done:
    free(v);
    free(index);
    free(link);
    free(alive);
    free(order);
    return result;
}

/* ---- lengths ---- */

/* States of an expression with its characters, and the steps between them. */
struct steps {
    struct within *state; uint32_t n, room;
    struct step { uint32_t from, to; } *step; uint32_t n_steps, room_steps;
    uint32_t *index, n_index;           /* of a state + 1, by open addressing */
};

/* The number of a state, a new one if it was not known; max_states if there is no room. */
static uint32_t number_of(struct steps *w, uint32_t e, uint32_t part, uint32_t max_states, int *memory)
{
    uint32_t k = mix(mix(7, e), part) & (w->n_index - 1);
    for (; w->index[k]; k = (k + 1) & (w->n_index - 1))
        if (w->state[w->index[k] - 1].e == e && w->state[w->index[k] - 1].part == part)
            return w->index[k] - 1;
    if (w->n == max_states)
        return max_states;
    if (grow((void **)&w->state, &w->room, w->n + 1, sizeof *w->state) != 0) {
        *memory = 1;
        return max_states;
    }
    w->state[w->n] = (struct within){ e, part, UINT32_MAX };
    w->index[k] = w->n + 1;
    return w->n++;
}

/* Find all states from number i on: 0, -1 if there are too many (or *memory ran out). */
static int find_steps(struct exprs *s, struct steps *w, uint32_t max_states, int *memory)
{
    const uint64_t most = s->meter.work + (uint64_t)max_states * 256;
    for (uint32_t i = 0; i < w->n; i++) {
        uint64_t edges[4] = { 1, 0, 0, 0 };
        const uint32_t e = w->state[i].e, part = w->state[i].part == EXPR_EPSILON ? s->one_char : w->state[i].part;
        expr_edges(s, e, edges);
        edges_of(s, part, edges);
        for (int b = 0; b < 256; b++) {
            if (!(edges[b >> 6] >> (b & 63) & 1))
                continue;
            const uint32_t next = expr_step(s, part, b),
                           to = next == EXPR_NONE ? (uint32_t)EXPR_NONE : expr_step(s, e, b);
            if (s->failed || s->meter.work > most)
                return -1;
            if (to == EXPR_NONE)
                continue;
            const uint32_t k = number_of(w, to, next, max_states, memory);
            if (k == max_states)
                return -1;
            if (w->n_steps && w->step[w->n_steps - 1].from == i && w->step[w->n_steps - 1].to == k)
                continue;
            if (grow((void **)&w->step, &w->room_steps, w->n_steps + 1, sizeof *w->step) != 0) {
                *memory = 1;
                return -1;
            }
            w->step[w->n_steps++] = (struct step){ i, k };
        }
    }
    return 0;
}

/* The fewest characters from each state to an end.  Backwards from the ends, breadth first;
 * steps inside of a character count nothing, so a state may improve again. */
static int fewest_characters(const struct exprs *s, struct steps *w)
{
    uint32_t *first = calloc((size_t)w->n + 2 + w->n_steps, sizeof *first), *sources = first + w->n + 2;
    uint32_t *queue = malloc(((size_t)w->n + 1) * sizeof *queue), head = 0, waiting = 0;
    uint8_t *queued = calloc((size_t)w->n + 1, 1);
    const uint32_t room = w->n + 1;
    int rc = first && queue && queued ? 0 : -1;
    for (uint32_t i = 0; rc == 0 && i < w->n_steps; i++)
        first[w->step[i].to + 2]++;
    for (uint32_t i = 0; rc == 0 && i < w->n; i++)
        first[i + 2] += first[i + 1];
    for (uint32_t i = 0; rc == 0 && i < w->n_steps; i++)
        sources[first[w->step[i].to + 1]++] = w->step[i].from;
    for (uint32_t i = 0; rc == 0 && i < w->n; i++)
        if (w->state[i].part == EXPR_EPSILON && expr_nullable(s, w->state[i].e)) {
            w->state[i].chars = 0;
            queue[waiting++] = i;
            queued[i] = 1;
        }
    while (rc == 0 && waiting) {
        const uint32_t to = queue[head];
        head = (head + 1) % room;
        waiting--;
        queued[to] = 0;
        for (uint32_t k = first[to]; k < first[to + 1]; k++) {
            struct within *from = &w->state[sources[k]];
            const uint32_t chars = w->state[to].chars + (from->part == EXPR_EPSILON);
            if (chars >= from->chars)
                continue;
            from->chars = chars;
            if (!queued[sources[k]]) {
                queue[(head + waiting++) % room] = sources[k];
                queued[sources[k]] = 1;
            }
        }
    }
    free(first);
    free(queue);
    free(queued);
    return rc;
}

/* Keep the states from which there is an end. */
static int keep_within(struct exprs *s, const struct steps *w)
{
    uint32_t room = s->room_within ? s->room_within : 256;
    while (room < 2 * (s->n_within + w->n + 1))
        room *= 2;
    if (room != s->room_within) {
        struct within *old = s->within, *v = calloc(room, sizeof *v);
        const uint32_t n_old = s->room_within;
        if (!v)
            return -1;
        s->within = v;
        s->room_within = room;
        for (uint32_t i = 0; i < n_old; i++)
            if (old[i].e)
                *find_within(s, old[i].e, old[i].part) = old[i];
        free(old);
    }
    for (uint32_t i = 0; i < w->n; i++) {
        struct within *to = find_within(s, w->state[i].e, w->state[i].part);
        s->n_within += !to->e && w->state[i].chars != UINT32_MAX;
        if (w->state[i].chars != UINT32_MAX)
            *to = w->state[i];
    }
    return 0;
}

int expr_within(struct exprs *s, uint32_t e, int32_t hi, uint32_t max_states, uint32_t *result)
{
    struct steps w = { .n_index = 1024 };
    int rc = 0, memory = 0;
    *result = EXPR_NONE;
    if (s->failed || e == EXPR_NONE)
        return 0;
    while (w.n_index < 2 * max_states)
        w.n_index *= 2;
    if (!(w.index = calloc(w.n_index, sizeof *w.index)))
        memory = 1;
    else if (number_of(&w, e, EXPR_EPSILON, max_states, &memory) != max_states)
        rc = find_steps(s, &w, max_states, &memory);
    if (!memory && rc == 0)
        memory = fewest_characters(s, &w) != 0 || keep_within(s, &w) != 0;
    if (memory)
        fail(s, EXPR_NO_MEMORY);
    if (rc == 0)
        *result = within(s, e, EXPR_EPSILON, hi);
    free(w.state);
    free(w.step);
    free(w.index);
    return s->failed ? 0 : rc;
}

/* ---- context-free ---- */

uint32_t expr_term(struct exprs *s, uint32_t regular)
{
    if (s->failed || regular == EXPR_NONE)
        return EXPR_NONE;
    if (regular == EXPR_EPSILON)
        return EXPR_EPSILON;
    return intern(s, &(struct expr){ .kind = EXPR_TERM, .a = regular });
}

uint32_t expr_seq(struct exprs *s, uint32_t a, uint32_t b)
{
    if (s->failed || a == EXPR_NONE || b == EXPR_NONE)
        return EXPR_NONE;
    if (a == EXPR_EPSILON || b == EXPR_EPSILON)
        return a == EXPR_EPSILON ? b : a;
    return intern(s, &(struct expr){ .kind = EXPR_SEQ, .a = a, .b = b });
}

uint32_t expr_any_of(struct exprs *s, const uint32_t *v, uint32_t n)
{
    uint32_t few[32], m, r = EXPR_NONE;
    uint8_t any, every;
    uint32_t *w = s->failed ? NULL : parts_of(s, EXPR_ANY_OF, EXPR_NONE, v, n, few, &m);
    if (!w)
        return EXPR_NONE;
    s->meter.work += m;
    m = sort_parts(s, w, m, &any, &every);
    if (m == 1)
        r = w[0];
    else if (m)
        r = list_expr(s, EXPR_ANY_OF, 0, w, m);
    if (w != few)
        free(w);
    return r;
}

uint32_t expr_times(struct exprs *s, uint32_t a, int32_t lo, int32_t hi)
{
    if (s->failed)
        return EXPR_NONE;
    if (hi == 0 || a == EXPR_EPSILON)
        return EXPR_EPSILON;
    if (a == EXPR_NONE)
        return lo ? EXPR_NONE : EXPR_EPSILON;
    if (lo == 1 && hi == 1)
        return a;
    return intern(s, &(struct expr){ .kind = EXPR_TIMES, .a = a, .lo = lo, .hi = hi });
}

uint32_t expr_rule(struct exprs *s, int32_t index)
{
    return s->failed ? (uint32_t)EXPR_NONE : intern(s, &(struct expr){ .kind = EXPR_RULE, .lo = index });
}

uint32_t expr_cell(struct exprs *s, uint32_t top, uint32_t rest)
{
    if (s->failed)
        return EXPR_NONE;
    return intern(s, &(struct expr){ .kind = EXPR_CELL, .a = top, .b = rest });
}
