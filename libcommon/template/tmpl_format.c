/* tmpl_format.c - text from a pattern: "%s" % x, "{:>8}".format(x), strftime. */
#include "libcommon/template/tmpl_value.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "libcommon/base/utf8.h"

enum { MAX_WIDTH = 1 << 20, MAX_PRECISION = 1000 };     /* larger ones are refused */

/* One conversion, from either language. */
struct spec {
    struct val fill;            /* one character */
    int align;                  /* '<' '>' '^' '=' or 0 */
    char sign;                  /* '+', ' ' or 0 */
    int alt, zero;              /* '#', '0' */
    char group;                 /* ',' '_' or 0 */
    int64_t width, precision;   /* -1: none */
    char type;                  /* 0: none */
};

static void check_sizes(struct vm *vm, const struct spec *sp)
{
    if (sp->width > MAX_WIDTH || sp->precision > MAX_PRECISION)
        vm_fail(vm, ERR_LIMIT, "a format asks for width %" PRId64 " and precision %" PRId64 "; at most %d and %d",
                sp->width, sp->precision, MAX_WIDTH, MAX_PRECISION);
}

/* Lay out a number.  Its digits are followed by any other text (a fraction, an exponent); only the
 * digits are grouped by group_size.  prefix: "0x". */
static struct val lay_out_number(struct vm *vm, const struct spec *sp, int negative, const char *prefix,
                                 const char *digits, int group_size)
{
    struct sb b = { .vm = vm };
    size_t whole = strspn(digits, group_size == 4 ? "0123456789abcdefABCDEF" : "0123456789"), zeros = 0;
    if (!isdigit((unsigned char)*digits) && group_size != 4)
        whole = 0;                                          /* inf, nan */
    size_t fixed = (negative || sp->sign) + strlen(prefix) + strlen(digits) - whole;
    int pad_zero = sp->align == '=' && sp->fill.s->data[0] == '0';
    if (sp->group && whole && pad_zero)                     /* zeros in front are grouped as well */
        while ((int64_t)(fixed + whole + zeros + (whole + zeros - 1) / (size_t)group_size) < sp->width)
            zeros++;
    size_t separators = sp->group && whole ? (whole + zeros - 1) / (size_t)group_size : 0;
    size_t size = fixed + whole + zeros + separators, pad = sp->width > (int64_t)size ? (size_t)sp->width - size : 0;
    size_t left = sp->align == '<' ? 0 : sp->align == '^' ? pad / 2 : pad;
    if (sp->align != '=')
        sb_fill(&b, sp->fill, left);
    if (negative || sp->sign)
        sb_add(&b, negative ? "-" : &sp->sign, 1);
    sb_add(&b, prefix, strlen(prefix));
    if (sp->align == '=') {
        sb_fill(&b, sp->fill, left);
    }
    for (size_t i = 0, n = whole + zeros; i < n; i++) {
        sb_add(&b, i < zeros ? "0" : digits + i - zeros, 1);
        if (sp->group && i + 1 < n && (n - i - 1) % (size_t)group_size == 0)
            sb_add(&b, &sp->group, 1);
    }
    sb_add(&b, digits + whole, strlen(digits + whole));
    sb_fill(&b, sp->fill, sp->align == '=' ? 0 : pad - left);
    return sb_done(&b);
}

static struct val format_int(struct vm *vm, const struct spec *sp, int64_t x)
{
    char digits[72];
    uint64_t u = x < 0 ? 0 - (uint64_t)x : (uint64_t)x;
    int base = sp->type == 'b' ? 2 : sp->type == 'o' ? 8 : sp->type == 'x' || sp->type == 'X' ? 16 : 10, n = 0;
    do {
        digits[n++] = (sp->type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef")[u % (unsigned)base];
        u /= (unsigned)base;
    } while (u);
    while (n < sp->precision && n < 64)             /* %.5d */
        digits[n++] = '0';
    digits[n] = '\0';
    for (int i = 0; i < n / 2; i++) {
        char t = digits[i];
        digits[i] = digits[n - 1 - i];
        digits[n - 1 - i] = t;
    }
    const char *prefix = !sp->alt || base == 10 ? "" : base == 2 ? "0b" : base == 8 ? "0o" : sp->type == 'X' ? "0X"
        : "0x";
    return lay_out_number(vm, sp, x < 0, prefix, digits, base == 10 ? 3 : 4);
}

static struct val format_float(struct vm *vm, const struct spec *sp, double x)
{
    size_t room = 400 + MAX_PRECISION;
    char *text = vm_alloc(vm, room), pattern[8], type = sp->type == 'n' ? 'g' : sp->type;
    int negative = signbit(x) && !isnan(x), percent = type == '%';
    if (!type && sp->precision < 0) {
        float_repr(fabs(x), text);
    } else {
        /* A precision without a type means 'g', with at least one decimal, and with an exponent
         * from one digit less on. */
        if (percent)
            x *= 100;
        int precision = sp->precision < 0 ? 6 : (int)sp->precision;
        int bare = !type;
        if (bare || percent)
            type = bare ? 'g' : 'f';
        if (bare && precision == 0)
            precision = 1;
        snprintf(pattern, sizeof pattern, "%%%s.*%c", sp->alt ? "#" : "", type);
        snprintf(text, room, pattern, precision, fabs(x));
        if (bare && !isinf(x) && !isnan(x) && !strchr(text, '.') && !strchr(text, 'e')) {
            if ((int)strlen(text) < precision)
                strcat(text, ".0");
            else
                snprintf(text, room, "%.*e", precision - 1, fabs(x));
        }
        if (percent)
            strcat(text, "%");
    }
    return lay_out_number(vm, sp, negative, "", text, 3);
}

static struct val lay_out_text(struct vm *vm, const struct spec *sp, struct val s)
{
    if (sp->precision >= 0 && sp->precision < (int64_t)s.s->n_chars)
        s = val_slice(vm, s, 0, utf8_offset(s.s->data, s.s->size, (size_t)sp->precision));
    return str_pad(vm, s, sp->width, sp->fill, sp->align);
}

/* ---- "..." % args */

static struct val percent_number(struct vm *vm, struct spec *sp, struct val v)
{
    if (v.kind == K_UNDEF)
        val_fail_undef(vm, v);
    if (!is_num(v))
        fail(vm, "%%%c format: a number is required, not %s", sp->type, val_type(v));
    if (strchr("eEfFgG", sp->type))
        return format_float(vm, sp, num_f(v));
    if (v.kind == K_FLOAT) {
        if (!strchr("diu", sp->type))
            fail(vm, "%%%c format: an integer is required, not float", sp->type);
        if (!(fabs(v.f) < 9.2e18))
            fail(vm, "cannot convert float %g to an integer of 64 bits", v.f);
        v = val_int((int64_t)v.f);
    }
    return format_int(vm, sp, v.i);
}

struct percent { struct vm *vm; const char *p, *end; struct val arg; size_t used; int mapped; };

static struct val next_arg(struct percent *f)
{
    if (f->arg.kind != K_TUPLE) {
        if (f->used++)
            fail(f->vm, "not enough arguments for format string");
        return f->arg;
    }
    if (f->used >= f->arg.l->n)
        fail(f->vm, "not enough arguments for format string");
    return f->arg.l->v[f->used++];
}

static int64_t percent_count(struct percent *f, int64_t absent)
{
    if (f->p < f->end && *f->p == '*') {
        f->p++;
        return arg_int(f->vm, next_arg(f), 0);
    }
    if (f->p >= f->end || !isdigit((unsigned char)*f->p))
        return absent;
    int64_t n = 0;
    while (f->p < f->end && isdigit((unsigned char)*f->p) && n < 1000000000)
        n = n * 10 + (*f->p++ - '0');
    return n;
}

static struct val percent_one(struct percent *f)
{
    struct vm *vm = f->vm;
    struct spec sp = { .fill = val_cstr(vm, " "), .align = '>', .precision = -1 };
    struct val v = val_missing();
    int left = 0;
    if (f->p < f->end && *f->p == '(') {
        const char *close = memchr(f->p, ')', (size_t)(f->end - f->p));
        if (f->arg.kind != K_DICT)
            fail(vm, "format requires a mapping");
        if (!close)
            fail(vm, "incomplete format key");
        struct val key = val_text(vm, f->p + 1, (size_t)(close - f->p - 1)), *found = dict_find(vm, f->arg.d, key);
        if (!found)
            fail(vm, "format: no key %s", val_format(vm, "'%.*s'", (int)key.s->size, key.s->data).s->data);
        v = *found;
        f->mapped = 1;
        f->p = close + 1;
    }
    for (; f->p < f->end && strchr("#0- +", *f->p) && *f->p; f->p++) {
        switch (*f->p) {
        case '#': sp.alt = 1; break;
        case '0': sp.zero = 1; break;
        case '-': left = 1; break;
        case '+': sp.sign = '+'; break;
        default:  sp.sign = sp.sign ? sp.sign : ' ';
        }
    }
    sp.width = percent_count(f, 0);
    if (sp.width < 0) {
        left = 1;
        sp.width = -sp.width;
    }
    if (f->p < f->end && *f->p == '.') {
        f->p++;
        sp.precision = percent_count(f, 0);
    }
    while (f->p < f->end && strchr("hlL", *f->p) && *f->p)
        f->p++;
    if (f->p >= f->end)
        fail(vm, "incomplete format");
    check_sizes(vm, &sp);
    sp.type = *f->p++;
    if (sp.type == '%' && f->p[-2] == '%')
        return val_cstr(vm, "%");
    if (!sp.type || !strchr("diuoxXeEfFgGcrsa", sp.type))
        fail(vm, "unsupported format character '%c'", isprint((unsigned char)sp.type) ? sp.type : '?');
    if (v.kind == K_MISSING)
        v = next_arg(f);
    if (strchr("crsa", sp.type)) {
        sp.align = left ? '<' : '>';
        if (sp.type == 'c' && is_int(v)) {
            char c[4];
            int n = v.i < 0 || v.i > 0x10FFFF ? 0 : utf8_encode((uint32_t)v.i, c);
            if (!n)
                fail(vm, "%%c arg is no character");
            return lay_out_text(vm, &sp, val_text(vm, c, (size_t)n));
        }
        if (sp.type == 'c' && (v.kind != K_STR || v.s->n_chars != 1))
            fail(vm, "%%c requires int or char");
        return lay_out_text(vm, &sp, sp.type == 's' || sp.type == 'c' ? val_str(vm, v) : sp.type == 'a'
                            ? val_ascii(vm, v) : val_repr(vm, v));
    }
    if (left || sp.zero) {
        sp.align = left ? '<' : '=';
        sp.fill = val_cstr(vm, left ? " " : "0");
    }
    return percent_number(vm, &sp, v);
}

struct val fmt_percent(struct vm *vm, struct val format, struct val arg)
{
    struct percent f = { vm, format.s->data, format.s->data + format.s->size, arg, 0, 0 };
    struct sb b = { .vm = vm };
    while (f.p < f.end) {
        const char *mark = memchr(f.p, '%', (size_t)(f.end - f.p));
        sb_add(&b, f.p, (size_t)((mark ? mark : f.end) - f.p));
        if (!mark)
            break;
        f.p = mark + 1;
        vm_step(vm, 1);
        struct val piece = percent_one(&f);
        sb_str(&b, format.flag && mark[1] != '%' ? val_escape(vm, piece) : piece);
    }
    if (arg.kind == K_TUPLE ? f.used < arg.l->n : !f.used && !f.mapped && arg.kind != K_DICT && arg.kind != K_LIST &&
        arg.kind != K_UNDEF)
        fail(vm, "not all arguments converted during string formatting");
    return val_safe(sb_done(&b), format.flag);
}

/* ---- "...".format(args) */

static struct spec parse_spec(struct vm *vm, struct val text)
{
    struct spec sp = { .fill = val_cstr(vm, " "), .precision = -1 };
    const char *p = text.s->data, *end = p + text.s->size;
    int n = 0, fill_given = 0;
    if (p < end)
        utf8_next(p, (size_t)(end - p), &n);
    if (n && p + n < end && strchr("<>^=", p[n]) && p[n]) {
        sp.fill = val_text(vm, p, (size_t)n);
        sp.align = p[n];
        p += n + 1;
        fill_given = 1;
    } else if (p < end && strchr("<>^=", *p) && *p) {
        sp.align = *p++;
    }
    if (p < end && strchr("+- ", *p) && *p) {
        sp.sign = *p == '-' ? 0 : *p;
        p++;
    }
    if (p < end && *p == '#') {
        sp.alt = 1;
        p++;
    }
    if (p < end && *p == '0') {
        sp.zero = 1;
        p++;
        sp.align = sp.align ? sp.align : '=';
        if (!fill_given)
            sp.fill = val_cstr(vm, "0");
    }
    for (; p < end && isdigit((unsigned char)*p) && sp.width < 1000000000; p++)
        sp.width = sp.width * 10 + (*p - '0');
    if (p < end && (*p == ',' || *p == '_'))
        sp.group = *p++;
    if (p < end && *p == '.') {
        if (++p >= end || !isdigit((unsigned char)*p))
            fail(vm, "Format specifier missing precision");
        for (sp.precision = 0; p < end && isdigit((unsigned char)*p) && sp.precision < 1000000000; p++)
            sp.precision = sp.precision * 10 + (*p - '0');
    }
    if (p < end)
        sp.type = *p++;
    if (p < end || (sp.type && !strchr("bcdeEfFgGnosxX%", sp.type)))
        fail(vm, "Invalid format specifier");
    check_sizes(vm, &sp);
    return sp;
}

static struct val format_value(struct vm *vm, struct val v, struct val spec_text)
{
    if (!spec_text.s->size)
        return val_str(vm, v);
    struct spec sp = parse_spec(vm, spec_text);
    if (v.kind == K_STR) {
        if ((sp.type && sp.type != 's') || sp.sign || sp.alt || sp.group || (sp.align == '=' && !sp.zero))
            fail(vm, "Invalid format specifier for object of type 'str'");
        sp.align = !sp.align || sp.align == '=' ? '<' : sp.align;
        return lay_out_text(vm, &sp, val_safe(v, 0));
    }
    if (!is_num(v))
        fail(vm, "unsupported format string passed to %s.__format__", val_type(v));
    sp.align = sp.align ? sp.align : '>';
    if (is_int(v) && (!sp.type || strchr("bcdoxXn", sp.type))) {
        if (sp.precision >= 0)
            fail(vm, "Precision not allowed in integer format specifier");
        if (sp.type == 'c') {
            char c[4];
            int n = v.i < 0 || v.i > 0x10FFFF ? 0 : utf8_encode((uint32_t)v.i, c);
            if (!n)
                fail(vm, "%%c arg is no character");
            return lay_out_text(vm, &sp, val_text(vm, c, (size_t)n));
        }
        return format_int(vm, &sp, v.i);
    }
    if (sp.type && strchr("bcdosxX", sp.type))
        fail(vm, "Unknown format code '%c' for object of type '%s'", sp.type, val_type(v));
    return format_float(vm, &sp, num_f(v));
}

struct braces { struct vm *vm; const struct args *args; int auto_index, manual, safe; };

static struct val braces_text(struct braces *f, const char *p, const char *end, int depth);

static int all_digits(const char *s, size_t size, int64_t *out)
{
    for (size_t i = 0; i < size; i++)
        if (!isdigit((unsigned char)s[i]))
            return 0;
    return str_to_int(s, size, 10, out) == 1;
}

/* name, then .attribute and [index] */
static struct val field_value(struct braces *f, const char *p, const char *end)
{
    struct vm *vm = f->vm;
    const char *name = p;
    int64_t index;
    while (p < end && *p != '.' && *p != '[')
        p++;
    struct val v = val_missing();
    if (p == name || all_digits(name, (size_t)(p - name), &index)) {
        int manual = p != name;
        if (!manual)
            index = f->auto_index++;
        if (manual ? f->auto_index > 0 : f->manual)
            fail(vm, "cannot mix manual field specification and automatic field numbering");
        f->manual |= manual;
        if (index < 0 || index >= f->args->n_pos)
            fail(vm, "Replacement index %" PRId64 " out of range for positional args tuple", index);
        v = f->args->pos[index];
    } else {
        for (int i = 0; i < f->args->n_kw; i++)
            if (f->args->kw[i].name->size == (size_t)(p - name) &&
                !memcmp(f->args->kw[i].name->data, name, (size_t)(p - name)))
                v = f->args->kw[i].v;
        if (v.kind == K_MISSING)
            fail(vm, "format: no argument '%.*s'", (int)(p - name), name);
    }
    while (p < end) {
        if (*p == '.') {
            const char *from = ++p;
            while (p < end && *p != '.' && *p != '[')
                p++;
            v = op_getattr(vm, v, val_text(vm, from, (size_t)(p - from)).s);
        } else {
            const char *from = ++p, *close = memchr(p, ']', (size_t)(end - p));
            if (!close)
                fail(vm, "Missing ']' in format string");
            int number = all_digits(from, (size_t)(close - from), &index);
            v = op_getitem(vm, v, number ? val_int(index) : val_text(vm, from, (size_t)(close - from)));
            p = close + 1;
            if (p < end && *p != '.' && *p != '[')
                fail(vm, "Only '.' or '[' may follow ']' in format field specifier");
        }
    }
    return v;
}

static struct val braces_field(struct braces *f, const char *p, const char *end, int depth)
{
    struct vm *vm = f->vm;
    const char *name = p;
    int conversion = 0, brackets = 0;
    for (; p < end && (brackets || (*p != '!' && *p != ':')); p++)
        brackets = *p == '[' ? 1 : *p == ']' ? 0 : brackets;
    struct val v = field_value(f, name, p);
    if (p < end && *p == '!') {
        if (p + 1 >= end || (p + 2 < end && p[2] != ':') || !strchr("rsa", p[1]))
            fail(vm, "Unknown conversion specifier in format string");
        conversion = p[1];
        p += 2;
    }
    if (conversion)
        v = conversion == 's' ? val_str(vm, v) : conversion == 'a' ? val_ascii(vm, v) : val_repr(vm, v);
    struct val spec = p < end ? braces_text(f, p + 1, end, depth + 1) : val_cstr(vm, "");
    v = format_value(vm, v, spec);
    return f->safe && !depth ? val_escape(vm, v) : v;
}

static struct val braces_text(struct braces *f, const char *p, const char *end, int depth)
{
    struct sb b = { .vm = f->vm };
    if (depth > 2)
        fail(f->vm, "Max string recursion exceeded");
    while (p < end) {
        const char *from = p;
        while (p < end && *p != '{' && *p != '}')
            p++;
        sb_add(&b, from, (size_t)(p - from));
        if (p >= end)
            break;
        vm_step(f->vm, 1);
        if (!depth && p + 1 < end && p[1] == *p) {
            sb_add(&b, p, 1);
            p += 2;
            continue;
        }
        if (*p == '}')
            fail(f->vm, "Single '}' encountered in format string");
        int open = 1;
        for (from = ++p; p < end && open; p++)
            open += *p == '{' ? 1 : *p == '}' ? -1 : 0;
        if (open)
            fail(f->vm, from == end ? "Single '{' encountered in format string" : "expected '}' before end of string");
        sb_str(&b, braces_field(f, from, p - 1, depth));
    }
    return sb_done(&b);
}

struct val fmt_braces(struct vm *vm, struct val format, const struct args *args)
{
    struct braces f = { .vm = vm, .args = args, .safe = format.flag };
    struct val r = braces_text(&f, format.s->data, format.s->data + format.s->size, 0);
    return val_safe(r, format.flag);
}

/* ---- strftime, in English whatever the locale, and in UTC */

static const char *const day_names[] = { "Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday" };
static const char *const month_names[] = { "January", "February", "March", "April", "May", "June", "July", "August",
                                           "September",
    "October", "November", "December" };

static int days_in_year(int64_t y) { return y % 4 == 0 && (y % 100 != 0 || y % 400 == 0) ? 366 : 365; }

/* ISO 8601: week 1 is the one with the year's first Thursday; the first and last days may belong
 * to a neighbour. */
static int iso_week(const struct tm *t, int64_t *year)
{
    int monday_based = (t->tm_wday + 6) % 7, week = (t->tm_yday - monday_based + 10) / 7;
    *year = t->tm_year + (int64_t)1900;
    if (week < 1) {
        (*year)--;
        return (t->tm_yday + days_in_year(*year) - monday_based + 10) / 7;
    }
    if (week == 53 && t->tm_yday - monday_based + 3 >= days_in_year(*year)) {
        (*year)++;
        return 1;
    }
    return week;
}

struct time_field { int64_t value; int width; char pad; const char *text, *again; };

/* Expand one letter of a format: to a number, a text, or (`again`) a format to expand in turn. */
static int time_field(char c, const struct tm *t, int64_t now, struct time_field *f)
{
    int64_t year = t->tm_year + (int64_t)1900, iso_year;
    int week = iso_week(t, &iso_year), hour12 = t->tm_hour % 12 ? t->tm_hour % 12 : 12;
    *f = (struct time_field){ .width = 2, .pad = '0' };
    switch (c) {
    case 'A': case 'a': f->text = day_names[t->tm_wday]; f->width = c == 'a' ? 3 : 0; break;
    case 'B': case 'b': case 'h': f->text = month_names[t->tm_mon]; f->width = c == 'B' ? 0 : 3; break;
    case 'p': f->text = t->tm_hour < 12 ? "AM" : "PM"; break;
    case 'P': f->text = t->tm_hour < 12 ? "am" : "pm"; break;
    case 'n': f->text = "\n"; break;
    case 't': f->text = "\t"; break;
    case '%': f->text = "%"; break;
    case 'z': case 'Z': f->text = ""; break;        /* a time without a zone */
    case 'c': f->again = "%a %b %e %H:%M:%S %Y"; break;
    case 'D': case 'x': f->again = "%m/%d/%y"; break;
    case 'F': f->again = "%Y-%m-%d"; break;
    case 'r': f->again = "%I:%M:%S %p"; break;
    case 'R': f->again = "%H:%M"; break;
    case 'T': case 'X': f->again = "%H:%M:%S"; break;
    case 'C': f->value = year / 100; break;
    case 'd': f->value = t->tm_mday; break;
    case 'e': f->value = t->tm_mday; f->pad = ' '; break;
    case 'f': f->width = 6; break;                  /* microseconds: the clock counts seconds */
    case 'G': f->value = iso_year; f->width = 1; break;
    case 'g': f->value = iso_year % 100; break;
    case 'H': f->value = t->tm_hour; break;
    case 'I': f->value = hour12; break;
    case 'j': f->value = t->tm_yday + 1; f->width = 3; break;
    case 'k': f->value = t->tm_hour; f->pad = ' '; break;
    case 'l': f->value = hour12; f->pad = ' '; break;
    case 'M': f->value = t->tm_min; break;
    case 'm': f->value = t->tm_mon + 1; break;
    case 'S': f->value = t->tm_sec; break;
    case 's': f->value = now; f->width = 1; break;
    case 'U': f->value = (t->tm_yday + 7 - t->tm_wday) / 7; break;
    case 'u': f->value = t->tm_wday ? t->tm_wday : 7; f->width = 1; break;
    case 'V': f->value = week; break;
    case 'W': f->value = (t->tm_yday + 7 - (t->tm_wday + 6) % 7) / 7; break;
    case 'w': f->value = t->tm_wday; f->width = 1; break;
    case 'Y': f->value = year; f->width = 1; break;
    case 'y': f->value = year % 100; break;
    default: return 0;
    }
    return 1;
}

static void add_time(struct sb *b, const char *p, const char *end, const struct tm *t, int64_t now)
{
    while (p < end) {
        struct time_field f;
        const char *mark = memchr(p, '%', (size_t)(end - p));
        sb_add(b, p, (size_t)((mark ? mark : end) - p));
        if (!mark)
            break;
        p = mark + 1;
        char flag = p < end && strchr("-_0^#", *p) && *p ? *p++ : 0;
        /* As in the C library, an unknown letter stays. */
        if (p >= end || !time_field(*p, t, now, &f)) {
            p += p < end;
            sb_add(b, mark, (size_t)(p - mark));
            continue;
        }
        p++;
        if (f.again) {
            add_time(b, f.again, f.again + strlen(f.again), t, now);
        } else if (f.text) {
            for (const char *s = f.text; *s && (f.width == 0 || s - f.text < f.width); s++) {
                int up = flag == '^' || (flag == '#' && p[-1] != 'p'), down = flag == '#' && p[-1] == 'p';
                char c = (char)(up ? toupper((unsigned char)*s) : down ? tolower((unsigned char)*s) : *s);
                sb_add(b, &c, 1);
            }
        } else {
            char num[32];
            char pad = flag == '_' ? ' ' : flag == '0' ? '0' : f.pad;
            int n = flag == '-' ? snprintf(num, sizeof num, "%" PRId64, f.value)
                : pad == '0' ? snprintf(num, sizeof num, "%0*" PRId64, f.width, f.value)
                             : snprintf(num, sizeof num, "%*" PRId64, f.width, f.value);
            sb_add(b, num, (size_t)n);
        }
    }
}

struct val fmt_strftime(struct vm *vm, struct val format, int64_t now)
{
    struct sb b = { .vm = vm };
    struct tm t;
    time_t seconds = (time_t)now;
    if (!gmtime_r(&seconds, &t))
        fail(vm, "strftime_now: %" PRId64 " seconds since 1970 is no date", now);
    add_time(&b, format.s->data, format.s->data + format.s->size, &t, now);
    return sb_done(&b);
}
