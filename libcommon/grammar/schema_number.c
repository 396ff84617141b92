/* schema_number.c - numbers between bounds and multiples, as sets of digit strings.
 *
 * A value with F digits after the point is treated as the whole number value * 10^F.  Its digits
 * are read from left to right by a finite automaton.  The state has two parts: whether the digits
 * so far equal those of the lower or upper bound, and their remainder by the divisor. */
#include "libcommon/grammar/schema.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WHOLE_DIGITS = 18, REAL_DIGITS = 15, FREE_FRACTION = 6, MAX_DIVISORS = 16 };
/* MAX_MODULUS: the largest modulus for ranges of any size, because the table has a row for each
 * remainder; MAX_FEW: the most numbers that are listed one by one, without a table. */
enum { MAX_MODULUS = 16384, MAX_FEW = 4096 };
static const int64_t LARGEST_MODULUS = 100000000000000000;

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
        if (*p < '0' || *p > '9') {     /* the decimal point of the process's locale */
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

/* Returns d * 10^f, rounded up or down, and at most 10^18; *exact: it was not rounded. */
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

/* Numbers that are multiples of `multiple` and of no element of `avoid`, all in units of the last
 * digit after the point.  modulus: the least common multiple of all these; the remainder of a
 * number by it decides whether the number is allowed. */
struct residues { int64_t modulus, multiple, avoid[MAX_DIVISORS]; int n_avoid; };

static int is_wanted(const struct residues *r, int64_t rest)
{
    int wanted = rest % r->multiple == 0;
    for (int i = 0; i < r->n_avoid; i++)
        wanted &= rest % r->avoid[i] != 0;
    return wanted;
}

struct digits {
    struct exprs *x;
    int whole, fraction;                /* digits before and after the point */
    const struct residues *residues;
    char lo[WHOLE_DIGITS + 1], hi[WHOLE_DIGITS + 1];        /* the bounds, with all digits before and after the point */
    /* [digits left][remainder] the continuations of numbers that no longer equal a bound: 0:
     * unknown, else 1 + expression.  Shared by numbers of every length.  NULL: not used, because
     * the bounds leave few numbers. */
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
    const int64_t modulus = d->residues->modulus;
    uint32_t *known = d->open && !low && !high ? &d->open[(n - at) * modulus + rest] : NULL;
    struct arm arms[11];
    uint32_t n_arms = 0, r = EXPR_NONE;
    if (known && *known)
        return *known - 1;
    d->x->meter.work += 8;
    int ends = at >= d->whole;          /* 1 if the number may end here, with zeros for the remaining digits */
    for (int i = at; i < n && low; i++)
        ends &= d->lo[i] == '0';
    int64_t left = rest;
    for (int i = at; i < n; i++)
        left = left * 10 % modulus;
    ends &= is_wanted(d->residues, left);
    if (at < n) {
        int from = low ? d->lo[at] - '0' : 0, to = high ? d->hi[at] - '0' : 9;
        for (int c = from; c <= to; c++)
            arms[n_arms++] = (struct arm){ (uint8_t)('0' + c), (uint8_t)('0' + c),
                                           follow(d, at + 1, (rest * 10 + c) % modulus, low && c == from,
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

/* The texts of the numbers n / 10^f with lo <= n <= hi whose n the residues allow; lo >= 0. */
static uint32_t between(struct exprs *x, int64_t lo, int64_t hi, int f, const struct residues *residues)
{
    const int few = hi - lo < MAX_FEW;
    uint32_t all[20], n_all = 0, *open = few ? NULL : calloc((WHOLE_DIGITS + 1) * (size_t)residues->modulus,
                                                             sizeof *open);
    int64_t unit = 1;
    if (!open && !few) {
        x->failed = EXPR_NO_MEMORY;
        return EXPR_NONE;
    }
    for (int i = 0; i < f; i++)
        unit *= 10;
    int64_t from = 0, end = 10 * unit;  /* numbers of w digits before the point */
    for (int w = 1; w + f <= WHOLE_DIGITS && from <= hi; w++) {
        int64_t a = lo > from ? lo : from, b = hi < end - 1 ? hi : end - 1;
        if (a <= b) {
            struct digits d = { .x = x, .whole = w, .fraction = f, .residues = residues, .open = open };
            write_digits(d.lo, w + f, a);
            write_digits(d.hi, w + f, b);
            all[n_all++] = follow(&d, 0, 0, 1, 1);
        }
        from = end;
        end = end > INT64_MAX / 10 ? INT64_MAX : end * 10;
    }
    free(open);
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
    /* from multipleOf and NOT_MULTIPLE */
    struct number_divisor { struct decimal d; int avoid; } divisor[MAX_DIVISORS]; int n_divisors, n_multiples;
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
static int add_divisors(struct schema *s, struct number_rules *r, const json_t *m)
{
    static const char *const keys[] = { "multipleOf", NOT_MULTIPLE };
    for (int avoid = 0; avoid < 2; avoid++) {
        const json_t *v = json_object_get(m, keys[avoid]);
        if (!v)
            continue;
        if (!json_is_number(v) || !(json_number_value(v) > 0)) {
            schema_refuse(s, m, "multipleOf", "expected a number above 0");
            return -1;
        }
        if (r->n_divisors == MAX_DIVISORS) {
            schema_limit(s, m, "too many divisors of one number");
            return -1;
        }
        r->divisor[r->n_divisors++] = (struct number_divisor){ decimal_of(v), avoid };
        r->n_multiples += !avoid;
        r->multiple_at = m;
    }
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

/* The most digits after the point of a divisor. */
static int divisor_digits(const struct number_rules *r)
{
    int f = 0;
    for (int i = 0; i < r->n_divisors; i++)
        f = fraction_digits(r->divisor[i].d) > f ? fraction_digits(r->divisor[i].d) : f;
    return f;
}

/* Returns how many digits after the point a number may have if it need not be an integer: as many
 * as the divisors have if it must be a multiple, else as many as the bounds have.  The number is
 * smaller if all digits together would exceed REAL_DIGITS, which is what a double preserves. */
static int digits_after_point(const struct number_rules *r)
{
    int f = FREE_FRACTION;
    if (r->n_multiples)
        return divisor_digits(r);
    if (r->n_divisors && divisor_digits(r) >= f)
        f = divisor_digits(r) + 1;
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

static int64_t power_of_10(int n)
{
    int64_t v = 1;
    for (int i = 0; i < n; i++)
        v *= 10;
    return v;
}

/* The range of value * 10^f, for numbers of at most `digits` digits that satisfy all bounds. */
static void range_of(const struct number_rules *r, int f, int digits, int64_t *lo, int64_t *hi)
{
    const int64_t top = power_of_10(digits);
    int exact;
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

/* Returns a divisor in units of the last of f digits after the point; 0: the divisor has more than
 * f digits there.  whole: only integers are checked. */
static int64_t divisor_units(struct decimal d, int f, int whole)
{
    int exact;
    int64_t k = scaled(d, f, 0, &exact);
    /* Integers that are multiples of 2.5 = 5/2 are multiples of 5: take the numerator of the
     * reduced fraction. */
    if (!exact && whole) {
        int64_t den = 1;
        for (int e = d.exponent; e < 0 && den < 1000000000; e++)
            den *= 10;
        k = d.digits / gcd(d.digits, den);
        exact = d.exponent >= -9;
    }
    return exact ? k : 0;
}

/* Multiply *a until it is a multiple of b: 0, or -1 if it is too large. */
static int common_multiple(int64_t *a, int64_t b)
{
    const int64_t more = b / gcd(*a, b);
    if (more > LARGEST_MODULUS / *a)
        return -1;
    *a *= more;
    return 0;
}

/* Set *to to the remainders that the divisors allow, for value * 10^f.  Returns 0; -1 if the schema
 * has failed. */
static int find_residues(struct schema *s, const struct number_rules *r, int f, int whole, struct residues *to)
{
    int64_t lo, hi;
    range_of(r, f, whole ? WHOLE_DIGITS : REAL_DIGITS, &lo, &hi);
    const int64_t most = hi - lo < MAX_FEW ? LARGEST_MODULUS : MAX_MODULUS;
    *to = (struct residues){ .modulus = 1, .multiple = 1 };
    for (int i = 0; i < r->n_divisors; i++) {
        const int64_t k = divisor_units(r->divisor[i].d, f, whole);
        if (k < 1) {
            schema_refuse(s, r->multiple_at, "multipleOf", "the divisor has too many digits to be enforced");
            return -1;
        }
        if (common_multiple(&to->modulus, k) != 0 || to->modulus > most ||
            (!r->divisor[i].avoid && common_multiple(&to->multiple, k) != 0)) {
            schema_refuse(s, r->multiple_at, "multipleOf",
                          "divisors above 16384 together (in units of their last digit) cannot be enforced");
            return -1;
        }
        if (r->divisor[i].avoid)
            to->avoid[to->n_avoid++] = k;
    }
    return 0;
}

/* Numbers between the bounds, with f digits after the point, that the residues allow. */
static uint32_t in_range(struct schema *s, const struct number_rules *rules, int f, int digits,
                         const struct residues *residues)
{
    struct exprs *x = &s->g->x;
    int64_t lo, hi;
    range_of(rules, f, digits, &lo, &hi);
    if (lo >= power_of_10(digits) || hi <= -power_of_10(digits))
        s->long_numbers = 1;
    uint32_t r = EXPR_NONE;
    if (hi >= 0 && lo <= hi)
        r = between(x, lo > 0 ? lo : 0, hi, f, residues);
    if (lo < 0 && lo <= hi) {
        uint32_t negative = between(x, hi < 0 ? -hi : 1, -lo, f, residues);
        r = expr_either(x, r, expr_concat(x, expr_byte(x, '-', '-'), negative));
    }
    return r;
}

/* Numbers with more than `digits` digits after the point.  They are no multiples of divisors that
 * have `digits` or fewer. */
static uint32_t finer_numbers(struct schema *s, const struct number_rules *rules, int digits)
{
    static const struct residues every = { .modulus = 1, .multiple = 1 };
    const int f = digits_after_point(rules);
    char text[64];
    if (f <= digits)
        return EXPR_NONE;
    snprintf(text, sizeof text, "-?[0-9]+\\.[0-9]{%d}[0-9]*[1-9][0-9]*", digits);
    return expr_both(&s->g->x, in_range(s, rules, f, REAL_DIGITS, &every), schema_regex(s, text, 0));
}

uint32_t schema_number(struct schema *s, const struct member *m, int n, int whole, int fraction)
{
    struct exprs *x = &s->g->x;
    struct number_rules rules = { .n_bounds = 0 };
    struct residues residues;
    const int only_whole = whole && !fraction;
    for (int i = 0; i < n; i++)
        if (add_bounds(s, &rules, m[i].s) != 0 || add_divisors(s, &rules, m[i].s) != 0)
            return EXPR_NONE;
    if (rules.n_bounds + rules.n_divisors == 0)
        return any_number(s, whole, fraction);
    const int f = only_whole ? 0 : rules.n_divisors ? divisor_digits(&rules) : digits_after_point(&rules);
    if (find_residues(s, &rules, f, only_whole, &residues) != 0)
        return EXPR_NONE;
    uint32_t r = in_range(s, &rules, f, only_whole ? WHOLE_DIGITS : REAL_DIGITS, &residues);
    if (fraction && rules.n_divisors && !rules.n_multiples)
        r = expr_either(x, r, finer_numbers(s, &rules, f));
    if (s->one_form && fraction && whole)       /* no 0 at the end of a fraction */
        r = expr_both(x, r, schema_regex(s, "-?[0-9]+(?:\\.[0-9]*[1-9])?", 0));
    if (!whole) {                       /* a digit other than 0 after the point */
        uint32_t real = schema_regex(s, s->one_form ? "-?[0-9]+\\.[0-9]*[1-9]" : "-?[0-9]+\\.[0-9]*[1-9][0-9]*", 0);
        r = expr_both(x, r, real);
    }
    return r;
}

/* 1 if a is a multiple of b; both are taken as decimal numbers. */
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
