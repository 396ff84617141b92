/* schema_number.c - numbers between bounds and multiples, as sets of digit strings.
 *
 * A value with F digits after the point is treated as the whole number value * 10^F.  Its digits
 * are read from left to right by a finite automaton: the state is whether they still equal those
 * of the lower or upper bound, and the remainder by the divisor. */
#include "libcommon/grammar/schema.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WHOLE_DIGITS = 18, REAL_DIGITS = 15, FREE_FRACTION = 6, MAX_DIVISOR = 4096 };

/* value = sign * digits * 10^exponent */
struct decimal { int sign, exponent; int64_t digits; };

static struct decimal decimal_of(const json_t *v)
{
    struct decimal d = { 1, 0, 0 };
    char text[64], *p = text;
    if (json_is_integer(v)) {
        snprintf(text, sizeof text, "%lld", (long long)json_integer_value(v));
    } else {
        double x = json_real_value(v);
        for (int k = 1; k <= 17; k++) {
            snprintf(text, sizeof text, "%.*e", k - 1, x);
            if (strtod(text, NULL) == x)
                break;
        }
    }
    if (*p == '-')
        d.sign = -1, p++;
    for (int point = 0; *p && *p != 'e'; p++) {
        if (*p == '.') {
            point = 1;
        } else if (d.digits < INT64_MAX / 10 - 1) {
            d.digits = d.digits * 10 + (*p - '0');
            d.exponent -= point;
        } else {
            d.exponent += !point;
        }
    }
    if (*p == 'e')
        d.exponent += atoi(p + 1);
    while (d.digits && d.digits % 10 == 0)
        d.digits /= 10, d.exponent++;
    return d;
}

static int fraction_digits(struct decimal d) { return d.digits && d.exponent < 0 ? -d.exponent : 0; }

/* d * 10^f, rounded up or down; *exact says that it was not rounded.  A larger result than 10^18
 * becomes 10^18. */
static int64_t scaled(struct decimal d, int f, int up, int *exact)
{
    const int64_t most = 1000000000000000000;
    int64_t v = d.digits, rest = 0;
    int e = d.exponent + f;
    for (; e > 0 && v; e--) {
        if (v > most / 10) {
            *exact = 1;
            return d.sign * most;
        }
        v *= 10;
    }
    for (; e < 0 && v; e++) {
        rest |= v % 10;
        v /= 10;
    }
    *exact = rest == 0;
    if (v > most)
        v = most;
    v *= d.sign;
    if (rest && up && d.sign > 0)
        v++;
    if (rest && !up && d.sign < 0)
        v--;
    return v;
}

struct digits {
    struct exprs *x;
    int whole, fraction;                /* digits before and after the point */
    int64_t divisor;
    char lo[WHOLE_DIGITS + 1], hi[WHOLE_DIGITS + 1];        /* all of them */
    /* [whole + fraction + 1][divisor] the continuations between the bounds; 0: not known, 1 +
     * expression. */
    uint32_t *open;
};

/* v with n digits, zeros in front. */
static void write_digits(char *to, int n, int64_t v)
{
    for (to[n] = '\0'; n--; v /= 10)
        to[n] = (char)('0' + v % 10);
}

static uint32_t follow(struct digits *d, int at, int64_t rest, int low, int high)
{
    const int n = d->whole + d->fraction;
    uint32_t *known = !low && !high ? &d->open[at * d->divisor + rest] : NULL;
    struct arm arms[11];
    uint32_t n_arms = 0, r = EXPR_NONE;
    if (known && *known)
        return *known - 1;
    int ends = at >= d->whole;          /* as if only zeros followed */
    for (int i = at; i < n && low; i++)
        ends &= d->lo[i] == '0';
    int64_t left = rest;
    for (int i = at; i < n; i++)
        left = left * 10 % d->divisor;
    ends &= left == 0;
    if (at < n) {
        int from = low ? d->lo[at] - '0' : 0, to = high ? d->hi[at] - '0' : 9;
        for (int c = from; c <= to; c++)
            arms[n_arms++] = (struct arm){ (uint8_t)('0' + c), (uint8_t)('0' + c),
                                           follow(d, at + 1, (rest * 10 + c) % d->divisor, low && c == from,
                                                  high && c == to) };
        r = expr_arms(d->x, arms, n_arms);
        if (at == d->whole && r != EXPR_NONE)
            r = expr_arms(d->x, &(struct arm){ '.', '.', r }, 1);
    }
    if (ends)
        r = expr_either(d->x, EXPR_EPSILON, r);
    if (known)
        *known = r + 1;
    return r;
}

/* Texts of the numbers n / 10^f, 0 <= lo <= n <= hi, n a multiple of the divisor. */
static uint32_t between(struct exprs *x, int64_t lo, int64_t hi, int f, int64_t divisor)
{
    uint32_t all[20], n_all = 0;
    int64_t unit = 1;
    for (int i = 0; i < f; i++)
        unit *= 10;
    int64_t from = 0, end = 10 * unit;  /* numbers of w digits before the point */
    for (int w = 1; w + f <= WHOLE_DIGITS && from <= hi; w++) {
        int64_t a = lo > from ? lo : from, b = hi < end - 1 ? hi : end - 1;
        if (a <= b) {
            struct digits d = { .x = x, .whole = w, .fraction = f, .divisor = divisor };
            d.open = calloc((size_t)(w + f + 1) * (size_t)divisor, sizeof *d.open);
            if (!d.open) {
                x->failed = EXPR_NO_MEMORY;
                return EXPR_NONE;
            }
            write_digits(d.lo, w + f, a);
            write_digits(d.hi, w + f, b);
            all[n_all++] = follow(&d, 0, 0, 1, 1);
            free(d.open);
        }
        from = end;
        end = end > INT64_MAX / 10 ? INT64_MAX : end * 10;
    }
    return expr_union(x, all, n_all);
}

static int64_t gcd(int64_t a, int64_t b)
{
    while (b) {
        int64_t t = a % b;
        a = b;
        b = t;
    }
    return a;
}

/* The bounds and divisors of all members. */
struct number_rules {
    struct number_bound { const json_t *v, *at; const char *key; int is_min, exclusive; } bound[64];
    int n_bounds;
    struct decimal multiple[16]; int n_multiples;
    const json_t *multiple_at;          /* the schema of one of them */
};

/* 0, or -1 with the schema failed. */
static int add_bounds(struct schema *s, struct number_rules *r, const json_t *m)
{
    static const char *const keys[] = { "minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum" };
    for (int k = 0; k < 4; k++) {
        const json_t *v = json_object_get(m, keys[k]);
        if (!v || (k % 2 && json_is_boolean(v)))
            continue;
        if (!json_is_number(v)) {
            schema_refuse(s, m, keys[k], "expected a number");
            return -1;
        }
        if (r->n_bounds == sizeof r->bound / sizeof *r->bound) {
            schema_limit(s, m, "too many bounds of one number");
            return -1;
        }
        /* draft 4 and OpenAPI 3.0 write true next to the bound */
        const int exclusive = k % 2 || json_is_true(json_object_get(m, keys[k + 1]));
        r->bound[r->n_bounds++] = (struct number_bound){ v, m, keys[k], k < 2, exclusive };
    }
    return 0;
}

/* 0, or -1 with the schema failed. */
static int add_multiple(struct schema *s, struct number_rules *r, const json_t *m)
{
    const json_t *v = json_object_get(m, "multipleOf");
    if (!v)
        return 0;
    if (!json_is_number(v) || !(json_number_value(v) > 0)) {
        schema_refuse(s, m, "multipleOf", "expected a number above 0");
        return -1;
    }
    if (r->n_multiples == sizeof r->multiple / sizeof *r->multiple) {
        schema_limit(s, m, "too many divisors of one number");
        return -1;
    }
    r->multiple[r->n_multiples++] = decimal_of(v);
    r->multiple_at = m;
    return 0;
}

/* Numbers without bounds and divisors. */
static uint32_t any_number(struct schema *s, int whole, int fraction)
{
    if (whole && fraction && s->one_form)
        return schema_regex(s, "0|-?[1-9][0-9]{0,14}|-?(?:0|[1-9][0-9]{0,8})\\.[0-9]{0,5}[1-9]", 0);
    if (whole && fraction)
        return schema_regex(s, "-?(?:0|[1-9][0-9]{0,17})(?:\\.[0-9]{1,17})?(?:[eE][+-]?[0-9]{1,2})?", 0);
    if (whole)
        return schema_regex(s, "0|-?[1-9][0-9]{0,17}", 0);
    return schema_regex(s, "-?(?:0|[1-9][0-9]{0,8})\\.[0-9]{0,5}[1-9]", 0);
}

/* Digits after the point of a number that need not be whole: those of the divisors, else of the
 * bounds, as long as REAL_DIGITS are enough for all digits (a double keeps them). */
static int digits_after_point(const struct number_rules *r)
{
    int f = r->n_multiples ? 0 : FREE_FRACTION;
    for (int i = 0; i < r->n_multiples; i++)
        f = fraction_digits(r->multiple[i]) > f ? fraction_digits(r->multiple[i]) : f;
    if (r->n_multiples)
        return f;
    for (int i = 0; i < r->n_bounds; i++) {
        const int k = fraction_digits(decimal_of(r->bound[i].v));
        f = k > f ? k : f;
    }
    for (int i = 0; i < r->n_bounds; i++) {
        const double v = fabs(json_number_value(r->bound[i].v));
        const int before = v >= 1 ? (int)floor(log10(v)) + 2 : 1;
        f = before + f > REAL_DIGITS ? REAL_DIGITS - before : f;
    }
    return f < 0 ? 0 : f;
}

/* The least common multiple of the divisors, in units of the last of f digits after the point; 0
 * with the schema failed.  whole: only whole numbers count. */
static int64_t common_divisor(struct schema *s, const struct number_rules *r, int f, int whole)
{
    int64_t divisor = 1;
    for (int i = 0; i < r->n_multiples; i++) {
        int exact;
        int64_t k = scaled(r->multiple[i], f, 0, &exact);
        /* Whole numbers that are multiples of 2.5 are those of 5: over the digits after its
         * point. */
        if (!exact && whole) {
            int64_t den = 1;
            for (int e = r->multiple[i].exponent; e < 0 && den < 1000000000; e++)
                den *= 10;
            k = r->multiple[i].digits / gcd(r->multiple[i].digits, den);
            exact = r->multiple[i].exponent >= -9;
        }
        if (!exact || k < 1) {
            schema_refuse(s, r->multiple_at, "multipleOf", "a divisor of so many digits cannot be enforced");
            return 0;
        }
        if (k > MAX_DIVISOR || divisor / gcd(divisor, k) * k > MAX_DIVISOR) {
            schema_refuse(s, r->multiple_at, "multipleOf",
                          "divisors above 4096 (in units of their last digit) cannot be enforced");
            return 0;
        }
        divisor = divisor / gcd(divisor, k) * k;
    }
    return divisor;
}

/* The range of value * 10^f that all bounds leave of numbers with so many digits. */
static void range_of(const struct number_rules *r, int f, int digits, int64_t *lo, int64_t *hi)
{
    int64_t top = 1;
    int exact;
    for (int i = 0; i < digits; i++)
        top *= 10;
    *lo = -(top - 1);
    *hi = top - 1;
    for (int i = 0; i < r->n_bounds; i++) {
        int64_t v = scaled(decimal_of(r->bound[i].v), f, r->bound[i].is_min, &exact);
        if (r->bound[i].is_min) {
            v += exact && r->bound[i].exclusive;
            *lo = v > *lo ? v : *lo;
        } else {
            v -= exact && r->bound[i].exclusive;
            *hi = v < *hi ? v : *hi;
        }
    }
}

uint32_t schema_number(struct schema *s, const struct member *m, int n, int whole, int fraction)
{
    struct exprs *x = &s->g->x;
    struct number_rules rules = { .n_bounds = 0 };
    const int only_whole = whole && !fraction;
    for (int i = 0; i < n; i++)
        if (add_bounds(s, &rules, m[i].s) != 0 || add_multiple(s, &rules, m[i].s) != 0)
            return EXPR_NONE;
    if (rules.n_bounds + rules.n_multiples == 0)
        return any_number(s, whole, fraction);
    const int f = only_whole ? 0 : digits_after_point(&rules);
    const int64_t divisor = common_divisor(s, &rules, f, only_whole);
    if (!divisor)
        return EXPR_NONE;
    int64_t lo, hi;
    range_of(&rules, f, only_whole ? WHOLE_DIGITS : REAL_DIGITS, &lo, &hi);
    uint32_t r = EXPR_NONE;
    if (hi >= 0 && lo <= hi)
        r = between(x, lo > 0 ? lo : 0, hi, f, divisor);
    if (lo < 0 && lo <= hi) {
        uint32_t negative = between(x, hi < 0 ? -hi : 1, -lo, f, divisor);
        r = expr_either(x, r, expr_concat(x, expr_byte(x, '-', '-'), negative));
    }
    if (s->one_form && fraction && whole)       /* no 0 at the end of a fraction */
        r = expr_both(x, r, schema_regex(s, "-?[0-9]+(?:\\.[0-9]*[1-9])?", 0));
    if (!whole) {                       /* a digit other than 0 after the point */
        uint32_t real = schema_regex(s, s->one_form ? "-?[0-9]+\\.[0-9]*[1-9]" : "-?[0-9]+\\.[0-9]*[1-9][0-9]*", 0);
        r = expr_both(x, r, real);
    }
    return r;
}

/* a is a multiple of b, as decimals. */
int schema_is_multiple(const json_t *a, const json_t *b)
{
    struct decimal x = decimal_of(a), y = decimal_of(b);
    int exact;
    if (x.digits == 0)
        return 1;
    int f = fraction_digits(x) > fraction_digits(y) ? fraction_digits(x) : fraction_digits(y);
    int64_t m = scaled(y, f, 0, &exact), v = scaled(x, f, 0, &exact);
    return m > 0 && v % m == 0;
}
