/* tmpl_text.c - values as text: Python's str() and repr(), JSON, pretty printing, HTML escapes;
 * and numbers back. */
#include "libcommon/template/tmpl_value.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/utf8.h"
#include "libcommon/template/tmpl_sort.h"

/* ---- numbers */

/* Python writes the fewest digits that read back as the same double, and uses an exponent below
 * 1e-4 and from 1e16 on. */
void float_repr(double x, char out[32])
{
    if (isnan(x) || isinf(x)) {
        strcpy(out, isnan(x) ? "nan" : x < 0 ? "-inf" : "inf");
        return;
    }
    char digits[32];
    int precision = 0;
    do
        snprintf(digits, sizeof digits, "%.*e", precision, x);
    while (strtod(digits, NULL) != x && ++precision < 17);
    char *e = strchr(digits, 'e');
    int exponent = atoi(e + 1) % 1000;
    if (exponent < -4 || exponent >= 16) {
        *e = '\0';
        snprintf(out, 32, "%.20se%c%02d", digits, exponent < 0 ? '-' : '+', abs(exponent));
        return;
    }
    int decimals = precision - exponent;
    snprintf(out, 32, "%.*f", decimals < 1 ? 1 : decimals, x);
}

static void trim_text(const char **s, size_t *size)
{
    int n;
    while (*size && utf8_is_space(utf8_next(*s, *size, &n))) {
        *s += n;
        *size -= (size_t)n;
    }
    while (*size) {
        size_t prev = utf8_prev(*s, *size);
        if (!utf8_is_space(utf8_next(*s + prev, *size - prev, &n)))
            break;
        *size = prev;
    }
}

/* int(text, base) of Python.  1: done; 0: not an integer; -1: does not fit 64 bits. */
int str_to_int(const char *s, size_t size, int base, int64_t *out)
{
    trim_text(&s, &size);
    int negative = size && *s == '-';
    if (size && (*s == '-' || *s == '+')) {
        s++;
        size--;
    }
    if (size > 2 && s[0] == '0' && strchr("xXoObB", s[1])) {
        int prefix = strchr("xX", s[1]) ? 16 : strchr("oO", s[1]) ? 8 : 2;
        if (base == 0 || base == prefix) {
            base = prefix;
            s += 2;
            size -= 2;
            if (*s == '_') {
                s++;
                size--;
            }
        }
    }
    if (base == 0)
        base = 10;
    uint64_t x = 0;
    int over = 0, digits = 0, after_digit = 0;
    for (size_t i = 0; i < size; i++) {
        int c = (unsigned char)s[i], d = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' &&
                                         (c | 32) <= 'z' ? (c | 32) - 'a' + 10 : 99;
        if (c == '_' && after_digit && i + 1 < size) {
            after_digit = 0;
            continue;
        }
        if (d >= base)
            return 0;
        over |= x > (UINT64_MAX - (uint64_t)d) / (uint64_t)base;
        x = x * (uint64_t)base + (uint64_t)d;
        digits++;
        after_digit = 1;
    }
    if (!digits)
        return 0;
    if (over || x > (uint64_t)INT64_MAX + (uint64_t)negative)
        return -1;
    *out = negative ? (int64_t)(0 - x) : (int64_t)x;
    return 1;
}

/* float(text) of Python: 1 done, 0 not a number. */
int str_to_float(const char *s, size_t size, double *out)
{
    trim_text(&s, &size);
    char text[400];
    size_t n = 0, i = 0;
    if (size >= sizeof text)
        return 0;
    for (; i < size; i++) {
        int digit_before = n && text[n - 1] >= '0' && text[n - 1] <= '9';
        if (s[i] == '_' && digit_before && i + 1 < size && s[i + 1] >= '0' && s[i + 1] <= '9')
            continue;
        text[n++] = s[i] >= 'A' && s[i] <= 'Z' ? (char)(s[i] + 32) : s[i];
    }
    text[n] = '\0';
    const char *p = text + (*text == '-' || *text == '+');
    if (strcmp(p, "inf") && strcmp(p, "infinity") && strcmp(p, "nan")) {
        size_t whole = strspn(p, "0123456789"), part = 0;
        p += whole;
        if (*p == '.') {
            part = strspn(p + 1, "0123456789");
            p += 1 + part;
        }
        if (whole + part == 0)
            return 0;
        if (*p == 'e') {
            p += 1 + (p[1] == '-' || p[1] == '+');
            size_t e = strspn(p, "0123456789");
            if (!e)
                return 0;
            p += e;
        }
        if (*p)
            return 0;
    }
    *out = strtod(text, NULL);
    return 1;
}

/* ---- repr and str */

static void add_text(struct sb *b, const char *s) { sb_add(b, s, strlen(s)); }

static void add_code(struct sb *b, uint32_t c)
{
    char esc[16];
    sb_add(b, esc, (size_t)snprintf(esc, sizeof esc,
                                    c < 0x100 ? "\\x%02" PRIx32 : c < 0x10000 ? "\\u%04" PRIx32 : "\\U%08" PRIx32, c));
}

static void repr_str(struct sb *b, const struct str *s)
{
    char quote = memchr(s->data, '\'', s->size) && !memchr(s->data, '"', s->size) ? '"' : '\'',
         esc[2] = { '\\', quote };
    int n;
    sb_add(b, &quote, 1);
    for (size_t i = 0; i < s->size; i += (size_t)n) {
        uint32_t c = utf8_next(s->data + i, s->size - i, &n);
        const char *short_form = c == '\n' ? "\\n" : c == '\r' ? "\\r" : c == '\t' ? "\\t" : c == '\\' ? "\\\\" : NULL;
        if (short_form)
            add_text(b, short_form);
        else if (c == (uint32_t)quote)
            sb_add(b, esc, 2);
        else if (char_printable(c))
            sb_add(b, s->data + i, (size_t)n);
        else
            add_code(b, c);
    }
    sb_add(b, &quote, 1);
    vm_step(b->vm, s->size / 16);
}

/* Entries of a dict in order of their keys; keys of different types by the names of the types. */
static struct dict_entry *sorted_entries(struct vm *vm, const struct dict *d, int by_type)
{
    struct val *keys = vm_array(vm, d->n + 1, sizeof *keys);
    size_t *order = vm_array(vm, d->n + 1, sizeof *order);
    struct dict_entry *out = vm_array(vm, d->n + 1, sizeof *out);
    for (size_t i = 0; i < d->n; i++)
        keys[i] = d->v[i].key;
    val_sort(vm, keys, d->n, 0, by_type, order);
    for (size_t i = 0; i < d->n; i++)
        out[i] = d->v[order[i]];
    return out;
}

static void repr(struct sb *b, struct val v, int sorted);

static void repr_items(struct sb *b, const struct val_list *l, const char *open, const char *close, int sorted)
{
    add_text(b, open);
    for (size_t i = 0; i < l->n; i++) {
        if (i)
            sb_add(b, ", ", 2);
        repr(b, l->v[i], sorted);
    }
    add_text(b, close);
}

static void repr_dict(struct sb *b, const struct dict *d, int sorted)
{
    const struct dict_entry *e = sorted ? sorted_entries(b->vm, d, 1) : d->v;
    sb_add(b, "{", 1);
    for (size_t i = 0; i < d->n; i++) {
        if (i)
            sb_add(b, ", ", 2);
        repr(b, e[i].key, sorted);
        sb_add(b, ": ", 2);
        repr(b, e[i].value, sorted);
    }
    sb_add(b, "}", 1);
}

static void repr(struct sb *b, struct val v, int sorted)
{
    char num[64];
    vm_step(b->vm, 1);
    vm_enter(b->vm);
    switch (v.kind) {
    case K_NONE:  add_text(b, "None"); break;
    case K_BOOL:  add_text(b, v.i ? "True" : "False"); break;
    case K_INT:   sb_add(b, num, (size_t)snprintf(num, sizeof num, "%" PRId64, v.i)); break;
    case K_FLOAT: float_repr(v.f, num); add_text(b, num); break;
    case K_UNDEF: add_text(b, "Undefined"); break;
    case K_STR:
        if (v.flag)
            add_text(b, "Markup(");
        repr_str(b, v.s);
        if (v.flag)
            add_text(b, ")");
        break;
    case K_LIST:  repr_items(b, v.l, "[", "]", sorted); break;
    case K_TUPLE: repr_items(b, v.l, "(", v.l->n == 1 ? ",)" : ")", sorted); break;
    case K_DICT:  repr_dict(b, v.d, sorted); break;
    case K_VIEW:
        add_text(b, val_type(v));
        repr_items(b, val_to_list(b->vm, v).l, "([", "])", sorted);
        break;
    case K_NS:
        add_text(b, "<Namespace ");
        repr_dict(b, v.d, sorted);
        add_text(b, ">");
        break;
    case K_RANGE:
        sb_add(b, num, (size_t)snprintf(num, sizeof num, "range(%" PRId64 ", %" PRId64, v.r->start, v.r->stop));
        if (v.r->step != 1)
            sb_add(b, num, (size_t)snprintf(num, sizeof num, ", %" PRId64, v.r->step));
        add_text(b, ")");
        break;
    default:                            /* Python shows an address here; this is the same text each time */
        add_text(b, "<");
        add_text(b, v.kind == K_GEN ? v.g->type : val_type(v));
        add_text(b, v.kind == K_GEN ? " object>" : v.kind == K_FUNC ? " " : v.kind == K_METHOD ? " " : ">");
        if (v.kind == K_FUNC || v.kind == K_METHOD) {
            add_text(b, v.kind == K_FUNC ? v.fn->name : v.m->fn->name);
            add_text(b, ">");
        }
    }
    vm_leave(b->vm);
}

struct val val_repr(struct vm *vm, struct val v)
{
    struct sb b = { .vm = vm };
    repr(&b, v, 0);
    return sb_done(&b);
}

struct val val_ascii(struct vm *vm, struct val v)
{
    struct val s = val_repr(vm, v);
    struct sb b = { .vm = vm };
    int n;
    for (size_t i = 0; i < s.s->size; i += (size_t)n) {
        uint32_t c = utf8_next(s.s->data + i, s.s->size - i, &n);
        if (c < 0x80)
            sb_add(&b, s.s->data + i, 1);
        else
            add_code(&b, c);
    }
    return sb_done(&b);
}

struct val val_str(struct vm *vm, struct val v)
{
    if (v.kind == K_STR)
        return v;
    if (v.kind == K_UNDEF)
        return val_text(vm, "", 0);
    return val_repr(vm, v);
}

struct val val_escape(struct vm *vm, struct val v)
{
    if (v.kind == K_STR && v.flag)
        return v;
    struct val s = val_str(vm, v);
    struct sb b = { .vm = vm };
    for (size_t i = 0; i < s.s->size; i++) {
        char c = s.s->data[i];
        const char *e = c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '\'' ? "&#39;" : c == '"'
                            ? "&#34;" : NULL;
        sb_add(&b, e ? e : &c, e ? strlen(e) : 1);
    }
    vm_step(vm, s.s->size / 16);
    return val_safe(sb_done(&b), 1);
}

/* ---- JSON as json.dumps() writes it */

struct json_style { int ensure_ascii, sort_keys, pretty; struct val indent, item_sep, key_sep; };

static void json_str(struct sb *b, const struct str *s, int ensure_ascii)
{
    char esc[16];
    int n;
    sb_add(b, "\"", 1);
    for (size_t i = 0; i < s->size; i += (size_t)n) {
        uint32_t c = utf8_next(s->data + i, s->size - i, &n);
        const char *e = c == '"' ? "\\\"" : c == '\\' ? "\\\\" : c == '\n' ? "\\n" : c == '\r' ? "\\r" : c == '\t'
                            ? "\\t"
            : c == '\b' ? "\\b" : c == '\f' ? "\\f" : NULL;
        if (e)
            add_text(b, e);
        else if (c < 0x20 || (ensure_ascii && c >= 0x7F && c < 0x10000))
            sb_add(b, esc, (size_t)snprintf(esc, sizeof esc, "\\u%04" PRIx32, c));
        else if (ensure_ascii && c >= 0x10000)
            sb_add(b, esc, (size_t)snprintf(esc, sizeof esc, "\\u%04" PRIx32 "\\u%04" PRIx32,
                                            0xD800 + ((c - 0x10000) >> 10), 0xDC00 + (c & 0x3FF)));
        else
            sb_add(b, s->data + i, (size_t)n);
    }
    sb_add(b, "\"", 1);
    vm_step(b->vm, s->size / 16);
}

static void json_scalar(struct sb *b, struct val v)
{
    char num[32];
    switch (v.kind) {
    case K_NONE: add_text(b, "null"); break;
    case K_BOOL: add_text(b, v.i ? "true" : "false"); break;
    case K_INT:  sb_add(b, num, (size_t)snprintf(num, sizeof num, "%" PRId64, v.i)); break;
    case K_FLOAT:
        float_repr(v.f, num);
        add_text(b, isnan(v.f) ? "NaN" : isinf(v.f) ? v.f < 0 ? "-Infinity" : "Infinity" : num);
        break;
    default: fail(b->vm, "Object of type %s is not JSON serializable", val_type(v));
    }
}

static void json_break(struct sb *b, const struct json_style *st, size_t depth)
{
    if (st->pretty) {
        sb_add(b, "\n", 1);
        sb_fill(b, st->indent, depth);
    }
}

static void json_value(struct sb *b, const struct json_style *st, struct val v, size_t depth)
{
    vm_step(b->vm, 1);
    vm_enter(b->vm);
    if (v.kind == K_STR) {
        json_str(b, v.s, st->ensure_ascii);
    } else if (v.kind == K_LIST || v.kind == K_TUPLE) {
        sb_add(b, "[", 1);
        for (size_t i = 0; i < v.l->n; i++) {
            if (i)
                sb_str(b, st->item_sep);
            json_break(b, st, depth + 1);
            json_value(b, st, v.l->v[i], depth + 1);
        }
        if (v.l->n)
            json_break(b, st, depth);
        sb_add(b, "]", 1);
    } else if (v.kind == K_DICT) {
        const struct dict_entry *e = st->sort_keys ? sorted_entries(b->vm, v.d, 0) : v.d->v;
        sb_add(b, "{", 1);
        for (size_t i = 0; i < v.d->n; i++) {
            if (i)
                sb_str(b, st->item_sep);
            json_break(b, st, depth + 1);
            if (e[i].key.kind == K_STR) {
                json_str(b, e[i].key.s, st->ensure_ascii);
            } else {
                if (!is_num(e[i].key) && e[i].key.kind != K_NONE)
                    fail(b->vm, "keys must be str, int, float, bool or None, not %s", val_type(e[i].key));
                sb_add(b, "\"", 1);
                json_scalar(b, e[i].key);
                sb_add(b, "\"", 1);
            }
            sb_str(b, st->key_sep);
            json_value(b, st, e[i].value, depth + 1);
        }
        if (v.d->n)
            json_break(b, st, depth);
        sb_add(b, "}", 1);
    } else {
        json_scalar(b, v);
    }
    vm_leave(b->vm);
}

struct val val_json(struct vm *vm, struct val v, int ensure_ascii, struct val indent, struct val separators,
                    int sort_keys)
{
    struct json_style st = { .ensure_ascii = ensure_ascii, .sort_keys = sort_keys, .pretty = arg_given(indent) };
    struct sb b = { .vm = vm };
    st.indent = val_cstr(vm, "");
    if (indent.kind == K_STR) {
        st.indent = indent;
    } else if (st.pretty && arg_int(vm, indent, 0) > 0) {
        struct sb blanks = { .vm = vm };
        sb_fill(&blanks, val_cstr(vm, " "), (size_t)arg_int(vm, indent, 0));
        st.indent = sb_done(&blanks);
    }
    st.item_sep = val_cstr(vm, st.pretty ? "," : ", ");
    st.key_sep = val_cstr(vm, ": ");
    if (arg_given(separators)) {
        struct val two = val_to_list(vm, separators);
        if (two.l->n != 2)
            fail(vm, "tojson: separators has %zu items, not 2", two.l->n);
        st.item_sep = arg_str(vm, two.l->v[0], NULL);
        st.key_sep = arg_str(vm, two.l->v[1], NULL);
    }
    json_value(&b, &st, v, 0);
    return sb_done(&b);
}

/* ---- pretty printing as pprint.pformat() does it, at a width of 80 */

enum { PP_WIDTH = 80 };

static struct val sorted_repr(struct vm *vm, struct val v)
{
    struct sb b = { .vm = vm };
    repr(&b, v, 1);
    return sb_done(&b);
}

static void newline(struct sb *b, long indent)
{
    sb_add(b, "\n", 1);
    sb_fill(b, val_cstr(b->vm, " "), indent > 0 ? (size_t)indent : 0);
}

/* Write a string; a long one becomes several literals, cut after white space. */
static void pp_str(struct sb *b, struct val v, long indent, long allowance, int level)
{
    struct vm *vm = b->vm;
    struct val lines = str_splitlines(vm, v, 1), chunks = val_list(vm, 4);
    if (level == 1) {
        indent++;
        allowance++;
    }
    long width = PP_WIDTH - indent;
    for (size_t i = 0; i < lines.l->n; i++) {
        const struct str *line = lines.l->v[i].s;
        int last = i + 1 == lines.l->n;
        struct val whole = val_repr(vm, lines.l->v[i]);
        if ((long)whole.s->n_chars <= width - (last ? allowance : 0)) {
            list_push(vm, chunks.l, whole);
            continue;
        }
        size_t from = 0, at = 0;                /* the current chunk is [from, at) */
        while (at < line->size) {
            size_t end = at;
            int n = 0;
            while (end < line->size && !utf8_is_space(utf8_next(line->data + end, line->size - end, &n)))
                end += (size_t)n;
            while (end < line->size && utf8_is_space(utf8_next(line->data + end, line->size - end, &n)))
                end += (size_t)n;
            long room = width - (last && end == line->size ? allowance : 0);
            struct val candidate = val_repr(vm, val_slice(vm, lines.l->v[i], from, end - from));
            if ((long)candidate.s->n_chars > room && at > from) {
                list_push(vm, chunks.l, val_repr(vm, val_slice(vm, lines.l->v[i], from, at - from)));
                from = at;
            }
            at = end;
        }
        if (at > from)
            list_push(vm, chunks.l, val_repr(vm, val_slice(vm, lines.l->v[i], from, at - from)));
    }
    if (chunks.l->n == 1) {
        sb_str(b, chunks.l->v[0]);
        return;
    }
    add_text(b, level == 1 ? "(" : "");
    for (size_t i = 0; i < chunks.l->n; i++) {
        if (i)
            newline(b, indent);
        sb_str(b, chunks.l->v[i]);
    }
    add_text(b, level == 1 ? ")" : "");
}

static void pp(struct sb *b, struct val v, long indent, long allowance, int level)
{
    struct val one = sorted_repr(b->vm, v);
    int is_dict = v.kind == K_DICT && v.d->n, is_list = (v.kind == K_LIST || v.kind == K_TUPLE) && v.l->n;
    if ((long)one.s->n_chars <= PP_WIDTH - indent - allowance ||
        !(is_dict || is_list || (v.kind == K_STR && !v.flag && v.s->size))) {
        sb_str(b, one);
        return;
    }
    vm_enter(b->vm);
    if (v.kind == K_STR) {
        pp_str(b, v, indent, allowance, level);
    } else if (is_dict) {
        const struct dict_entry *e = sorted_entries(b->vm, v.d, 1);
        sb_add(b, "{", 1);
        for (size_t i = 0; i < v.d->n; i++) {
            struct val key = sorted_repr(b->vm, e[i].key);
            sb_str(b, key);
            sb_add(b, ": ", 2);
            int last = i + 1 == v.d->n;
            pp(b, e[i].value, indent + 1 + (long)key.s->n_chars + 2, last ? allowance + 1 : 1, level + 1);
            if (!last) {
                sb_add(b, ",", 1);
                newline(b, indent + 1);
            }
        }
        sb_add(b, "}", 1);
    } else {
        const char *close = v.kind == K_LIST ? "]" : v.l->n == 1 ? ",)" : ")";
        add_text(b, v.kind == K_LIST ? "[" : "(");
        for (size_t i = 0; i < v.l->n; i++) {
            int last = i + 1 == v.l->n;
            pp(b, v.l->v[i], indent + 1, last ? allowance + (long)strlen(close) : 1, level + 1);
            if (!last) {
                sb_add(b, ",", 1);
                newline(b, indent + 1);
            }
        }
        add_text(b, close);
    }
    vm_leave(b->vm);
}

struct val val_pprint(struct vm *vm, struct val v)
{
    struct sb b = { .vm = vm };
    pp(&b, v, 0, 0, 1);
    return sb_done(&b);
}
