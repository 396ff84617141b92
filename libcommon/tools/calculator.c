/* calculator.c - parse and evaluate arithmetic expressions in one pass. */
#include "libcommon/tools/calculator.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/utf8.h"
#include "libcommon/tools/internal.h"

enum { MAX_ARGUMENTS = 64, MAX_NAME = 16 };

struct calc {
    const char *text;
    size_t at, size;
    int depth;
    struct err *e;
};

static int sum(struct calc *c, double *v);

static int fail(const struct calc *c, const char *what)
{
    return err_set(c->e, ERR_FORMAT, "character %zu: %s", utf8_count(c->text, c->at) + 1, what);
}

/* ---- functions ---- */

static double minimum(const double *a, int n)
{
    double v = a[0];
    for (int i = 1; i < n; i++)
        v = a[i] < v ? a[i] : v;
    return v;
}

static double maximum(const double *a, int n)
{
    double v = a[0];
    for (int i = 1; i < n; i++)
        v = a[i] > v ? a[i] : v;
    return v;
}

static double absolute(const double *a, int n) { (void)n; return fabs(a[0]); }
static double square_root(const double *a, int n) { (void)n; return sqrt(a[0]); }
static double cube_root(const double *a, int n) { (void)n; return cbrt(a[0]); }
static double sine(const double *a, int n) { (void)n; return sin(a[0]); }
static double cosine(const double *a, int n) { (void)n; return cos(a[0]); }
static double tangent(const double *a, int n) { (void)n; return tan(a[0]); }
static double arc_sine(const double *a, int n) { (void)n; return asin(a[0]); }
static double arc_cosine(const double *a, int n) { (void)n; return acos(a[0]); }
static double arc_tangent(const double *a, int n) { return n == 2 ? atan2(a[0], a[1]) : atan(a[0]); }
static double logarithm(const double *a, int n) { return n == 2 ? log(a[0]) / log(a[1]) : log10(a[0]); }
static double natural_log(const double *a, int n) { (void)n; return log(a[0]); }
static double binary_log(const double *a, int n) { (void)n; return log2(a[0]); }
static double exponential(const double *a, int n) { (void)n; return exp(a[0]); }
static double power_of(const double *a, int n) { (void)n; return pow(a[0], a[1]); }
static double round_down(const double *a, int n) { (void)n; return floor(a[0]); }
static double round_up(const double *a, int n) { (void)n; return ceil(a[0]); }
static double degrees(const double *a, int n) { (void)n; return a[0] * 180 / M_PI; }
static double radians(const double *a, int n) { (void)n; return a[0] * M_PI / 180; }

/* Round by the decimal digits of the number: 2.675 to 2 digits is 2.68, although the double is
 * slightly less than 2.675. */
static double round_to(const double *a, int n)
{
    char text[400];
    const double digits = n == 2 ? a[1] : 0;
    if (digits != floor(digits) || digits > 15 || digits < -300)
        return NAN;
    if (digits <= 0) {
        const double unit = pow(10, -digits);
        return round(a[0] / unit) * unit;
    }
    if (fabs(a[0]) >= 0x1p53)
        return a[0];
    const double nudged = nextafter(a[0], a[0] < 0 ? -INFINITY : INFINITY);
    snprintf(text, sizeof text, "%.*f", (int)digits, nudged);
    return strtod(text, NULL);
}

static double factorial(const double *a, int n)
{
    double v = 1;
    (void)n;
    if (a[0] < 0 || a[0] != floor(a[0]))
        return NAN;
    if (a[0] > 170)
        return INFINITY;
    for (int i = 2; i <= (int)a[0]; i++)
        v *= i;
    return v;
}

static const struct function {
    const char *name;
    int least, most;                    /* number of arguments */
    double (*value)(const double *a, int n);
} functions[] = {
    { "abs", 1, 1, absolute }, { "sqrt", 1, 1, square_root }, { "cbrt", 1, 1, cube_root },
    { "sin", 1, 1, sine }, { "cos", 1, 1, cosine }, { "tan", 1, 1, tangent },
    { "asin", 1, 1, arc_sine }, { "acos", 1, 1, arc_cosine }, { "atan", 1, 1, arc_tangent },
    { "atan2", 2, 2, arc_tangent }, { "log", 1, 2, logarithm }, { "log10", 1, 1, logarithm },
    { "ln", 1, 1, natural_log }, { "log2", 1, 1, binary_log }, { "exp", 1, 1, exponential },
    { "pow", 2, 2, power_of }, { "min", 1, MAX_ARGUMENTS, minimum }, { "max", 1, MAX_ARGUMENTS, maximum },
    { "round", 1, 2, round_to }, { "floor", 1, 1, round_down }, { "ceil", 1, 1, round_up },
    { "factorial", 1, 1, factorial }, { "degrees", 1, 1, degrees }, { "radians", 1, 1, radians },
};
static const struct constant { const char *name; double value; } constants[] = {
    { "pi", M_PI }, { "e", M_E }, { "tau", 2 * M_PI },
};

/* ---- tokens ---- */

static void blanks(struct calc *c)
{
    while (c->at < c->size && isspace((unsigned char)c->text[c->at]))
        c->at++;
}

/* Does the text continue with this operator?  If so, skip it. */
static int take(struct calc *c, const char *op)
{
    const size_t n = strlen(op);
    blanks(c);
    if (c->size - c->at < n || memcmp(c->text + c->at, op, n) != 0)
        return 0;
    c->at += n;
    return 1;
}

static int take_power(struct calc *c) { return take(c, "**") || take(c, "^"); }
static int take_minus(struct calc *c) { return take(c, "-") || take(c, "\u2212"); }

/* Set *out to v, the result of a function or operator, if it is finite; otherwise report an
 * error. */
static int checked(const struct calc *c, const char *what, double v, double *out)
{
    char text[80];
    if (isfinite(v)) {
        *out = v;
        return 0;
    }
    snprintf(text, sizeof text, isnan(v) ? "%s: no real number is the result" : "%s: the result is too large", what);
    return fail(c, text);
}

/* ---- the grammar ---- */

static int number(struct calc *c, double *v)
{
    char text[64];
    size_t n = 0;
    int dot = 0;
    while (c->at + n < c->size && n < sizeof text - 8) {
        const char ch = c->text[c->at + n];
        if (ch == '.' && !dot)
            dot = 1;
        else if (ch < '0' || ch > '9')
            break;
        n++;
    }
    if (n == (size_t)dot)
        return fail(c, "expected a number");
    if (c->at + n + 1 < c->size && (c->text[c->at + n] | 32) == 'e') {
        size_t k = n + 1;
        if (c->text[c->at + k] == '-' || c->text[c->at + k] == '+')
            k++;
        const size_t digits = k;
        while (c->at + k < c->size && k < digits + 4 && isdigit((unsigned char)c->text[c->at + k]))
            k++;
        n = k > digits ? k : n;
    }
    if (c->at + n < c->size && (isdigit((unsigned char)c->text[c->at + n]) || c->text[c->at + n] == '.'))
        return fail(c, "a number that is malformed or too long");
    memcpy(text, c->text + c->at, n);
    text[n] = '\0';
    c->at += n;
    return checked(c, "number", strtod(text, NULL), v);
}

static int arguments_of(struct calc *c, const struct function *f, double *v)
{
    double a[MAX_ARGUMENTS];
    int n = 0;
    char text[80];
    do {
        if (n == MAX_ARGUMENTS)
            return fail(c, "too many arguments");
        if (sum(c, &a[n++]) != 0)
            return -1;
    } while (take(c, ","));
    if (!take(c, ")"))
        return fail(c, "expected ')' or ','");
    if (n < f->least || n > f->most) {
        snprintf(text, sizeof text, "%s: %d arguments, expected %d", f->name, n, f->least);
        return fail(c, text);
    }
    const double value = f->value(a, n);
    if (strncmp(f->name, "log", 3) == 0 || strcmp(f->name, "ln") == 0)
        return checked(c, f->name, a[0] > 0 ? value : NAN, v);
    return checked(c, f->name, value, v);
}

static int name(struct calc *c, double *v)
{
    char word[MAX_NAME + 1], text[80];
    size_t n = 0;
    while (c->at < c->size && (isalnum((unsigned char)c->text[c->at]) || c->text[c->at] == '_') && n < MAX_NAME)
        word[n++] = (char)tolower((unsigned char)c->text[c->at++]);
    word[n] = '\0';
    const int call = take(c, "(");
    for (size_t i = 0; call && i < sizeof functions / sizeof *functions; i++)
        if (strcmp(functions[i].name, word) == 0)
            return arguments_of(c, &functions[i], v);
    for (size_t i = 0; !call && i < sizeof constants / sizeof *constants; i++)
        if (strcmp(constants[i].name, word) == 0) {
            *v = constants[i].value;
            return 0;
        }
    snprintf(text, sizeof text, "unknown %s '%s'", call ? "function" : "name", word);
    return fail(c, text);
}

static int factor(struct calc *c, double *v)
{
    blanks(c);
    const unsigned char ch = c->at < c->size ? (unsigned char)c->text[c->at] : 0;
    int rc;
    if (take(c, "("))
        rc = sum(c, v) != 0 ? -1 : take(c, ")") ? 0 : fail(c, "expected ')'");
    else if (isdigit(ch) || ch == '.')
        rc = number(c, v);
    else if (isalpha(ch))
        rc = name(c, v);
    else if (take(c, "π")) {
        *v = M_PI;
        rc = 0;
    } else {
        rc = fail(c, ch ? "expected a number, a function or '('" : "the expression ends here, expected a number");
    }
    while (rc == 0 && take(c, "!"))
        rc = checked(c, "factorial", factorial(v, 1), v);
    return rc;
}

static int unary(struct calc *c, double *v);

static int power(struct calc *c, double *v)
{
    double exponent;
    if (factor(c, v) != 0)
        return -1;
    if (!take_power(c))
        return 0;
    if (unary(c, &exponent) != 0)
        return -1;
    if (*v == 0 && exponent < 0)
        return fail(c, "division by zero");
    return checked(c, "power", pow(*v, exponent), v);
}

static int unary(struct calc *c, double *v)
{
    int rc;
    if (++c->depth > CALCULATOR_MAX_DEPTH)
        return fail(c, "too deeply nested");
    if (take_minus(c)) {
        rc = unary(c, v);
        *v = rc == 0 ? -*v : 0;
    } else if (take(c, "+")) {
        rc = unary(c, v);
    } else {
        rc = power(c, v);
    }
    c->depth--;
    return rc;
}

/* '*', '/', 'f' (//) or '%'; 0: none of them follows. */
static char take_product(struct calc *c)
{
    return take(c, "//") ? 'f' : take(c, "/") || take(c, "÷") ? '/' : take(c, "*") || take(c, "×") ? '*' :
           take(c, "%") ? '%' : '\0';
}

static int product(struct calc *c, double *v)
{
    double right;
    if (unary(c, v) != 0)
        return -1;
    for (char op; (op = take_product(c));) {
        if (unary(c, &right) != 0)
            return -1;
        if (op != '*' && right == 0)
            return fail(c, "division by zero");
        const double rest = op == '%' ? fmod(*v, right) : 0,
                     value = op == '*' ? *v * right : op == '/' ? *v / right : op == 'f' ? floor(*v / right) :
                             rest && (rest < 0) != (right < 0) ? rest + right : rest;
        if (checked(c, "product", value, v) != 0)
            return -1;
    }
    return 0;
}

static int sum(struct calc *c, double *v)
{
    double right;
    int rc = ++c->depth > CALCULATOR_MAX_DEPTH ? fail(c, "too deeply nested") : product(c, v);
    while (rc == 0) {
        const int minus = take_minus(c);
        if (!minus && !take(c, "+"))
            break;
        if ((rc = product(c, &right)) == 0)
            rc = checked(c, "sum", minus ? *v - right : *v + right, v);
    }
    c->depth--;
    return rc;
}

int calculate(const char *text, size_t size, double *value, struct err *e)
{
    struct calc c = { .text = text, .size = size, .e = e };
    if (size > CALCULATOR_MAX_BYTES)
        return err_set(e, ERR_LIMIT, "an expression of %zu bytes, expected at most %d", size, CALCULATOR_MAX_BYTES);
    if (sum(&c, value) != 0)
        return -1;
    blanks(&c);
    if (c.at < size)
        return fail(&c, "expected an operator or the end");
    *value += 0.0;                      /* -0 is 0 */
    return 0;
}

char *run_calculator(const struct native_env *env, const json_t *arguments, struct err *e)
{
    const json_t *text = json_object_get(arguments, "expression");
    char out[40];
    double v;
    (void)env;
    if (calculate(json_string_value(text), json_string_length(text), &v, e) != 0)
        return NULL;
    /* 15 digits: 0.1 + 0.2 is 0.3 */
    snprintf(out, sizeof out, v == floor(v) && fabs(v) < 0x1p63 ? "%.0f" : "%.15g", v);
    struct tool_text t = { 0 };
    text_add(&t, out, strlen(out));
    return text_finish(&t, e);
}
