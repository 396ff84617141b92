/* tmpl_filters.c - the filters of a single value or text: x|upper, x|round, x|tojson ...  The table
 * is at the end. */
#include "libcommon/template/tmpl_filters.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "libcommon/base/utf8.h"

/* ---- numbers */

static FILTER(f_abs)
{
    if (!is_num(in))
        fail(vm, "bad operand type for abs(): '%s'", val_type(in));
    if (in.kind == K_FLOAT)
        return val_float(fabs(in.f));
    return in.i < 0 ? op_negate(vm, in, 1) : val_int(in.i);
}

static struct val trunc_to_int(struct vm *vm, double x)
{
    if (!(fabs(x) < 9223372036854775808.0))
        vm_fail(vm, ERR_LIMIT, "float %g does not fit an integer of 64 bits", x);
    return val_int((int64_t)x);
}

static FILTER(f_int)            /* default, base */
{
    struct val fallback = a[0].kind == K_MISSING ? val_int(0) : a[0];
    double x;
    int64_t i, base = arg_int(vm, a[1], 10);
    if (in.kind == K_UNDEF)
        val_fail_undef(vm, in);
    if (is_int(in))
        return val_int(in.i);
    if (in.kind == K_FLOAT)
        return isnan(in.f) ? fallback : trunc_to_int(vm, in.f);
    if (in.kind != K_STR)
        return fallback;
    if (base != 0 && (base < 2 || base > 36))
        fail(vm, "int: base %" PRId64 " is not 0 or 2 to 36", base);
    int done = str_to_int(in.s->data, in.s->size, (int)base, &i);
    if (done < 0)
        vm_fail(vm, ERR_LIMIT, "'%.*s' does not fit an integer of 64 bits", in.s->size > 60 ? 60 : (int)in.s->size,
                in.s->data);
    if (done)
        return val_int(i);
    if (!str_to_float(in.s->data, in.s->size, &x) || isnan(x) || isinf(x))
        return fallback;
    return trunc_to_int(vm, x);
}

static FILTER(f_float)          /* default */
{
    double x;
    if (in.kind == K_UNDEF)
        val_fail_undef(vm, in);
    if (is_num(in))
        return val_float(num_f(in));
    if (in.kind == K_STR && str_to_float(in.s->data, in.s->size, &x))
        return val_float(x);
    return a[0].kind == K_MISSING ? val_float(0) : a[0];
}

/* Python rounds the exact value of the double, ties to even; printf does the same. */
static double round_digits(double x, int64_t digits)
{
    char text[400];
    if (!isfinite(x) || digits > 300)
        return x;
    if (digits < 0) {
        double unit = pow(10, (double)-digits);
        return isinf(unit) ? 0 * x : rint(x / unit) * unit;
    }
    double r = x;
    if (snprintf(text, sizeof text, "%.*f", digits > 40 ? 40 : (int)digits, x) < (int)sizeof text)
        str_to_float(text, strlen(text), &r);
    return r;
}

static FILTER(f_round)          /* precision, method */
{
    int64_t precision = arg_int(vm, a[0], 0);
    struct val method = arg_str(vm, a[1], "common");
    if (in.kind == K_UNDEF)
        val_fail_undef(vm, in);
    if (!is_num(in))
        fail(vm, "type %s doesn't define round()", val_type(in));
    int is_common = method.s->size == 6 && !memcmp(method.s->data, "common", 6), is_ceil = method.s->size == 4 &&
        !memcmp(method.s->data, "ceil", 4);
    if (!is_common && !is_ceil && !(method.s->size == 5 && !memcmp(method.s->data, "floor", 5)))
        fail(vm, "method must be common, ceil or floor");
    if (is_common && in.kind == K_FLOAT)
        return val_float(round_digits(in.f, precision));
    if (is_common) {
        if (precision >= 0)
            return val_int(in.i);
        double r = precision < -18 ? 0 : round_digits((double)in.i, precision);
        return trunc_to_int(vm, r);
    }
    double unit = pow(10, (double)precision), x = num_f(in) * unit;
    return val_float((is_ceil ? ceil(x) : floor(x)) / unit);
}

static FILTER(f_filesizeformat) /* binary */
{
    static const char *const decimal[] = { "kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB" };
    static const char *const binary[] = { "KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB" };
    int is_binary = arg_bool(a[0], 0);
    double base = is_binary ? 1024 : 1000, x = 0, unit = base;
    if (is_num(in))
        x = num_f(in);
    else if (in.kind != K_STR || !str_to_float(in.s->data, in.s->size, &x))
        fail(vm, "filesizeformat: '%s' is not a number", val_type(in));
    if (x == 1)
        return val_cstr(vm, "1 Byte");
    if (x < base)
        return val_format(vm, "%.0f Bytes", trunc(x));
    int i = 0;
    for (unit = base * base; i < 7 && x >= unit; i++)
        unit *= base;
    return val_format(vm, "%.1f %s", base * x / unit, (is_binary ? binary : decimal)[i]);
}

/* ---- text */

static FILTER(f_case) { return str_case(vm, val_str(vm, in), (enum str_case)variant); }

/* Each word's first letter; words begin after blanks, '-' and opening brackets. */
static FILTER(f_title)
{
    struct val s = val_str(vm, in);
    struct sb b = { .vm = vm };
    size_t from = 0, size = s.s->size;
    for (size_t at = 0; at <= size; ) {
        int n = 1;
        uint32_t c = at < size ? utf8_next(s.s->data + at, size - at, &n) : ' ';
        if (c != '-' && c != '(' && c != '{' && c != '[' && c != '<' && !utf8_is_space(c)) {
            at += (size_t)n;
            continue;
        }
        if (at > from) {
            utf8_next(s.s->data + from, size - from, &n);
            sb_str(&b, str_case(vm, val_slice(vm, s, from, (size_t)n), CASE_UPPER));
            sb_str(&b, str_case(vm, val_slice(vm, s, from + (size_t)n, at - from - (size_t)n), CASE_LOWER));
        }
        if (at == size)
            break;
        utf8_next(s.s->data + at, size - at, &n);
        sb_add(&b, s.s->data + at, (size_t)n);
        from = at += (size_t)n;
    }
    return sb_done(&b);
}

static FILTER(f_center)         /* width */
{
    return str_pad(vm, val_str(vm, in), arg_int(vm, a[0], 80), val_cstr(vm, " "), 'c');
}

static FILTER(f_trim)           /* chars */
{
    return str_strip(vm, val_str(vm, in), arg_given(a[0]) ? arg_str(vm, a[0], NULL) : val_none(), 3);
}

static FILTER(f_replace)        /* old, new, count */
{
    struct val s = val_str(vm, in), old = val_str(vm, a[0]), new = val_str(vm, a[1]);
    int64_t count = arg_int(vm, a[2], -1);
    if (!vm->autoescape)
        return val_safe(str_replace(vm, s, old, new, count), 0);
    if (old.flag || (new.flag && !s.flag))
        s = val_escape(vm, s);
    return str_replace(vm, s, old, s.flag ? val_escape(vm, new) : new, count);
}

static FILTER(f_string) { return val_str(vm, in); }
static FILTER(f_safe) { return val_safe(val_str(vm, in), 1); }
static FILTER(f_escape) { return val_escape(vm, variant && in.kind == K_STR ? val_safe(in, 0) : in); }

static FILTER(f_indent)         /* width, first, blank */
{
    struct val s = arg_str(vm, in, NULL), pad;
    int first = arg_bool(a[1], 0), blank = arg_bool(a[2], 0);
    if (a[0].kind == K_STR) {
        pad = a[0];
    } else {
        struct sb b = { .vm = vm };
        int64_t n = arg_int(vm, a[0], 4);
        sb_fill(&b, val_cstr(vm, " "), n > 0 ? (size_t)n : 0);
        pad = sb_done(&b);
    }
    struct val lines = str_splitlines(vm, val_concat(vm, s, val_cstr(vm, "\n")), 0);
    struct sb b = { .vm = vm };
    for (size_t i = 0; i < lines.l->n; i++) {
        if (i)
            sb_add(&b, "\n", 1);
        if (i ? blank || lines.l->v[i].s->size : first)
            sb_str(&b, pad);
        sb_str(&b, lines.l->v[i]);
    }
    return val_safe(sb_done(&b), s.flag);
}

static FILTER(f_truncate)       /* length, killwords, end, leeway */
{
    int64_t length = arg_int(vm, a[0], 255), leeway = arg_int(vm, a[3], 5);
    struct val end = arg_str(vm, a[2], "...");
    size_t n;
    if (length < (int64_t)end.s->n_chars)
        fail(vm, "truncate: expected length >= %zu, got %" PRId64, end.s->n_chars, length);
    if (leeway < 0)
        fail(vm, "truncate: expected leeway >= 0, got %" PRId64, leeway);
    if (!val_len(in, &n))
        fail(vm, "object of type '%s' has no len()", val_type(in));
    if ((int64_t)n - leeway <= length)
        return in;
    struct val s = arg_str(vm, in, NULL);
    s = val_slice(vm, s, 0, utf8_offset(s.s->data, s.s->size, (size_t)length - end.s->n_chars));
    if (!arg_bool(a[1], 0))
        s = str_split(vm, s, val_cstr(vm, " "), 1, 1).l->v[0];
    return op_binary(vm, OP_ADD, s, end);
}

static FILTER(f_wordcount)
{
    struct val s = val_str(vm, in);
    int64_t words = 0;
    int n, inside = 0;
    for (size_t at = 0; at < s.s->size; at += (size_t)n) {
        int word = char_word(utf8_next(s.s->data + at, s.s->size - at, &n));
        words += word && !inside;
        inside = word;
    }
    vm_step(vm, s.s->size / 8);
    return val_int(words);
}

static FILTER(f_format)
{
    if (args->n_pos && args->n_kw)
        fail(vm, "format: can't handle positional and keyword arguments at the same time");
    struct val given = args->n_kw ? val_dict(vm) : val_list(vm, (size_t)args->n_pos);
    for (int i = 0; i < args->n_kw; i++)
        dict_set(vm, given.d, VAL(K_STR, s, args->kw[i].name), args->kw[i].v);
    for (int i = 0; i < args->n_pos; i++)
        list_push(vm, given.l, args->pos[i]);
    if (!args->n_kw)
        given.kind = K_TUPLE;
    return fmt_percent(vm, val_str(vm, in), given);
}

/* ---- wordwrap: lines as Python's textwrap makes them */

static int letter(uint32_t c) { return char_word(c) && !(c >= '0' && c <= '9') && c != 0; }
static int ascii_space(uint32_t c) { return c == ' ' || (c >= 9 && c <= 13); }
static int may_precede_dash(uint32_t c) { return char_word(c) || (c && c < 0x80 && strchr("!\"'&.,?", (int)c)); }

/* c[0..n): the end of the chunk that begins at i: blanks, a dash between words, or a word, cut
 * after hyphens. */
static size_t chunk_end(const uint32_t *c, size_t n, size_t i, int hyphens)
{
    size_t at = i;
    if (ascii_space(c[i])) {
        while (at < n && ascii_space(c[at]))
            at++;
        return at;
    }
    if (!hyphens) {
        while (at < n && !ascii_space(c[at]))
            at++;
        return at;
    }
    while (at < n && c[at] == '-')
        at++;
    if (at - i >= 2 && i > 0 && may_precede_dash(c[i - 1]) && at < n && char_word(c[at]))
        return at;
    for (at = i + 1; at < n && !ascii_space(c[at]); at++) {
        size_t dash = at;
        while (dash < n && c[dash] == '-')
            dash++;
        if (dash - at >= 2 && may_precede_dash(c[at - 1]) && dash < n && char_word(c[dash]))
            return at;
        if (c[at] != '-' || at - i < 1)
            continue;
        int before = at >= 2 && letter(c[at - 1]) &&
                     (letter(c[at - 2]) || (at >= 3 && c[at - 2] == '-' && letter(c[at - 3])));
        int after = at + 2 < n && letter(c[at + 1]) &&
                    (letter(c[at + 2]) || (c[at + 2] == '-' && at + 3 < n && letter(c[at + 3])));
        if (before && after)
            return at + 1;
    }
    return at;
}

struct wrap { struct vm *vm; struct sb out; struct val newline; size_t width; int break_long, hyphens, n_lines; };

static int blank_chunk(const uint32_t *c, size_t from, size_t to)
{
    while (from < to && utf8_is_space(c[from]))
        from++;
    return from == to;
}

static void wrap_line(struct wrap *w, const uint32_t *c, size_t n)
{
    size_t at = 0;
    int first = 1;
    while (at < n) {
        size_t end = chunk_end(c, n, at, w->hyphens), start = at, used = 0, last = at;
        vm_step(w->vm, 4);
        /* Remove blanks at the start of every line except the first of a paragraph. */
        if (!first && blank_chunk(c, at, end)) {
            at = end;
            continue;
        }
        while (at < n && used + (end - at) <= w->width) {
            used += end - at;
            last = at;
            at = end;
            end = at < n ? chunk_end(c, n, at, w->hyphens) : at;
        }
        if (at < n && end - at > w->width) {            /* a chunk longer than a line */
            size_t room = w->width - used;
            if (w->break_long) {
                size_t cut = at + room, hyphen = cut;
                while (w->hyphens && hyphen > at && c[hyphen - 1] != '-')
                    hyphen--;
                size_t other = at;
                while (other + 1 < hyphen && c[other] == '-')
                    other++;
                if (w->hyphens && hyphen > at + 1 && other + 1 < hyphen)
                    cut = hyphen;
                last = at;
                at = cut;
            } else if (at == start) {
                last = at;
                at = end;
            }
        }
        size_t stop = at;
        if (stop > start && blank_chunk(c, last, stop))
            stop = last;
        first = 0;
        if (stop == start)
            continue;
        if (w->n_lines++)
            sb_str(&w->out, w->newline);
        for (size_t i = start; i < stop; i++)
            sb_char(&w->out, c[i]);
    }
}

static FILTER(f_wordwrap)       /* width, break_long_words, wrapstring, break_on_hyphens */
{
    int64_t width = arg_int(vm, a[0], 79);
    struct val s = arg_str(vm, in, NULL), lines = str_splitlines(vm, s, 0);
    struct wrap w = { .vm = vm, .out = { .vm = vm },
                      .newline = arg_given(a[2]) ? arg_str(vm, a[2], NULL) : val_cstr(vm, "\n"),
        .width = (size_t)width, .break_long = arg_bool(a[1], 1), .hyphens = arg_bool(a[3], 1) };
    if (width <= 0)
        fail(vm, "wordwrap: invalid width %" PRId64 " (must be > 0)", width);
    for (size_t i = 0; i < lines.l->n; i++) {
        const struct str *line = lines.l->v[i].s;
        uint32_t *c = vm_array(vm, line->n_chars + 1, sizeof *c);
        size_t n = 0;
        int len;
        for (size_t at = 0; at < line->size; at += (size_t)len)
            c[n++] = utf8_next(line->data + at, line->size - at, &len);
        vm_step(vm, n);
        if (i)
            sb_str(&w.out, w.newline);
        w.n_lines = 0;
        wrap_line(&w, c, n);
    }
    return sb_done(&w.out);
}

/* ---- HTML and URLs */

static FILTER(f_striptags)
{
    static const struct { const char *entity; uint32_t c; } entities[] = {
        { "&amp;", '&' }, { "&lt;", '<' }, { "&gt;", '>' }, { "&#39;", '\'' }, { "&#34;", '"' }, { "&quot;", '"' },
            { "&nbsp;", 0xA0 },
    };
    struct val s = val_safe(val_str(vm, in), 0);
    struct sb b = { .vm = vm }, out = { .vm = vm };
    const char *p = s.s->data, *end = p + s.s->size;
    /* comments, then tags; an unclosed one is kept */
    while (p < end) {
        const char *open = memchr(p, '<', (size_t)(end - p));
        int comment = open && end - open >= 4 && !memcmp(open, "<!--", 4);
        const char *close = !open ? NULL : comment ? memmem(open + 4, (size_t)(end - open - 4), "-->", 3)
                                                   : memchr(open, '>', (size_t)(end - open));
        vm_step(vm, 1 + (size_t)((close ? close : end) - p) / 64);
        if (!close)
            break;
        sb_add(&b, p, (size_t)(open - p));
        p = close + (comment ? 3 : 1);
    }
    sb_add(&b, p, (size_t)(end - p));
    struct val words = str_split(vm, sb_done(&b), val_none(), -1, 0);
    for (size_t i = 0; i < words.l->n; i++) {
        const struct str *w = words.l->v[i].s;
        if (i)
            sb_add(&out, " ", 1);
        for (size_t at = 0; at < w->size; ) {
            size_t e = 0, n = sizeof entities / sizeof *entities, len = 0;
            for (; w->data[at] == '&' && e < n; e++) {
                len = strlen(entities[e].entity);
                if (w->size - at >= len && !memcmp(w->data + at, entities[e].entity, len))
                    break;
            }
            if (w->data[at] == '&' && e < n) {
                sb_char(&out, entities[e].c);
                at += len;
            } else {
                sb_add(&out, w->data + at++, 1);
            }
        }
    }
    return sb_done(&out);
}

static void quote_url(struct sb *b, struct val v, int query)
{
    struct val s = val_str(b->vm, v);
    for (size_t i = 0; i < s.s->size; i++) {
        unsigned char c = (unsigned char)s.s->data[i];
        char esc[4];
        int plain = c < 0x80 && c != '_' ? char_word(c) : c == '_';
        if (plain || c == '.' || c == '-' || c == '~' || (c == '/' && !query))
            sb_add(b, (const char *)&s.s->data[i], 1);
        else if (c == ' ' && query)
            sb_add(b, "+", 1);
        else
            sb_add(b, esc, (size_t)snprintf(esc, sizeof esc, "%%%02X", c));
    }
    vm_step(b->vm, s.s->size / 16);
}

static FILTER(f_urlencode)
{
    struct sb b = { .vm = vm };
    if (in.kind == K_STR || !iter_can(in)) {
        quote_url(&b, in, 0);
        return sb_done(&b);
    }
    struct iter it;
    struct val item, pairs = in.kind == K_DICT ? (struct val){ .kind = K_VIEW, .flag = VIEW_ITEMS, .d = in.d } : in;
    int n = 0;
    iter_init(vm, &it, pairs);
    while (iter_next(vm, &it, &item)) {
        struct val two = val_to_list(vm, item);
        if (two.l->n != 2)
            fail(vm, "urlencode: a pair has %zu items, not 2", two.l->n);
        sb_add(&b, "&", n++ > 0);
        quote_url(&b, two.l->v[0], 1);
        sb_add(&b, "=", 1);
        quote_url(&b, two.l->v[1], 1);
    }
    return sb_done(&b);
}

static FILTER(f_xmlattr)        /* autospace */
{
    struct sb b = { .vm = vm };
    if (in.kind == K_UNDEF)
        val_fail_undef(vm, in);
    if (in.kind != K_DICT)
        fail(vm, "xmlattr: expected a mapping, got '%s'", val_type(in));
    for (size_t i = 0; i < in.d->n; i++) {
        struct val key = arg_str(vm, in.d->v[i].key, NULL), value = in.d->v[i].value;
        if (value.kind == K_NONE || value.kind == K_UNDEF)
            continue;
        for (size_t k = 0; k < key.s->size; k++)
            if (strchr(" \t\n\r\f\v/>=", key.s->data[k]))
                fail(vm, "Invalid character in attribute name: '%.*s'", key.s->size > 100 ? 100 : (int)key.s->size,
                     key.s->data);
        if (b.size || arg_bool(a[0], 1))
            sb_add(&b, " ", 1);
        sb_str(&b, val_escape(vm, key));
        sb_add(&b, "=\"", 2);
        sb_str(&b, val_escape(vm, value));
        sb_add(&b, "\"", 1);
    }
    return val_safe(sb_done(&b), vm->autoescape);
}

/* ---- any value */

static FILTER(f_default)        /* default_value, boolean */
{
    if (in.kind == K_UNDEF || (arg_bool(a[1], 0) && !val_truth(in)))
        return a[0].kind == K_MISSING ? val_cstr(vm, "") : a[0];
    return in;
}

static FILTER(f_attr)           /* name */
{
    struct val name = val_str(vm, a[0]);
    if (in.kind == K_UNDEF)
        val_fail_undef(vm, in);
    struct val v = op_attr(vm, in, name.s);
    return v.kind == K_MISSING ? val_undef(vm, in, name) : v;
}

static FILTER(f_tojson)         /* ensure_ascii, indent, separators, sort_keys */
{
    return val_json(vm, in, arg_bool(a[0], 0), a[1], a[2], arg_bool(a[3], 0));
}

static FILTER(f_pprint) { return val_pprint(vm, in); }

static _Noreturn FILTER(f_random)
{
    vm_fail(vm, ERR_UNSUPPORTED, "random is not supported: the same input always renders the same text");
}

static const struct builtin value_filters[] = {
    { "abs", f_abs, "", 0, 0 },
    { "attr", f_attr, "name", 1, 0 },
    { "capitalize", f_case, "", 0, CASE_CAPITALIZE },
    { "center", f_center, "width", 0, 0 },
    { "d", f_default, "default_value boolean", 0, 0 },
    { "default", f_default, "default_value boolean", 0, 0 },
    { "e", f_escape, "", 0, 0 },
    { "escape", f_escape, "", 0, 0 },
    { "filesizeformat", f_filesizeformat, "binary", 0, 0 },
    { "float", f_float, "default", 0, 0 },
    { "forceescape", f_escape, "", 0, 1 },
    { "format", f_format, NULL, 0, 0 },
    { "indent", f_indent, "width first blank", 0, 0 },
    { "int", f_int, "default base", 0, 0 },
    { "lower", f_case, "", 0, CASE_LOWER },
    { "pprint", f_pprint, "", 0, 0 },
    { "random", f_random, "", 0, 0 },
    { "replace", f_replace, "old new count", 2, 0 },
    { "round", f_round, "precision method", 0, 0 },
    { "safe", f_safe, "", 0, 0 },
    { "string", f_string, "", 0, 0 },
    { "striptags", f_striptags, "", 0, 0 },
    { "title", f_title, "", 0, 0 },
    { "tojson", f_tojson, "ensure_ascii indent separators sort_keys", 0, 0 },
    { "trim", f_trim, "chars", 0, 0 },
    { "truncate", f_truncate, "length killwords end leeway", 0, 0 },
    { "upper", f_case, "", 0, CASE_UPPER },
    { "urlencode", f_urlencode, "", 0, 0 },
    { "wordcount", f_wordcount, "", 0, 0 },
    { "wordwrap", f_wordwrap, "width break_long_words wrapstring break_on_hyphens", 0, 0 },
    { "xmlattr", f_xmlattr, "autospace", 0, 0 },
};

const struct builtin *builtin_find(const struct builtin *table, size_t n, const char *name, size_t size)
{
    for (size_t i = 0; i < n; i++)
        if (strlen(table[i].name) == size && !memcmp(table[i].name, name, size))
            return &table[i];
    return NULL;
}

const struct builtin *tmpl_filter(const char *name, size_t size)
{
    const struct builtin *b = builtin_find(value_filters, sizeof value_filters / sizeof *value_filters, name, size);
    return b ? b : tmpl_sequence_filter(name, size);
}
