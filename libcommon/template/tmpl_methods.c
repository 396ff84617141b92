/* tmpl_methods.c - "text".split(), list.append(), dict.items() ...: Python's methods, a table
 * for each type. */
#include "libcommon/template/tmpl_filters.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include <utf8proc.h>

#include "libcommon/base/utf8.h"
#include "libcommon/template/tmpl_sort.h"

/* ---- str */

/* The start and stop of find(), count() and others are counted in code points; negative ones count
 * from the end.  Sets *from and *to, in bytes; 0 if not even "" is found there. */
static int str_range(struct vm *vm, struct val s, struct val start, struct val stop, size_t *from, size_t *to)
{
    int64_t n = (int64_t)s.s->n_chars, i = arg_int(vm, start, 0), k = arg_int(vm, stop, n);
    *from = 0;
    *to = s.s->size;
    if (i == 0 && k >= n)
        return 1;
    vm_step(vm, s.s->size / 16);
    i = i < 0 ? i + n : i;
    k = k < 0 ? k + n : k > n ? n : k;
    i = i < 0 ? 0 : i;
    k = k < 0 ? 0 : k;
    if (i > k)
        return 0;
    *from = utf8_offset(s.s->data, s.s->size, (size_t)i);
    *to = *from + utf8_offset(s.s->data + *from, s.s->size - *from, (size_t)(k - i));
    return 1;
}

enum { FIND_LAST = 1, FIND_OR_FAIL = 2 };

static FILTER(s_find)           /* sub, start, end */
{
    struct val sub = arg_str(vm, a[0], NULL);
    size_t from, to, hit = SIZE_MAX;
    if (str_range(vm, in, a[1], a[2], &from, &to)) {
        struct str part = { in.s->data, to, 0, NULL };
        hit = variant & FIND_LAST ? str_find_last(vm, in.s, from, to, sub.s) : str_find(vm, &part, from, sub.s);
    }
    if (hit == SIZE_MAX && variant & FIND_OR_FAIL)
        fail(vm, "substring not found");
    if (hit == SIZE_MAX)
        return val_int(-1);
    vm_step(vm, hit / 16);
    return val_int((int64_t)utf8_count(in.s->data, hit));
}

static FILTER(s_count)          /* sub, start, end */
{
    struct val sub = arg_str(vm, a[0], NULL);
    size_t from, to;
    int64_t n = 0;
    if (!str_range(vm, in, a[1], a[2], &from, &to))
        return val_int(0);
    if (!sub.s->size)
        return val_int((int64_t)utf8_count(in.s->data + from, to - from) + 1);
    struct str part = { in.s->data, to, 0, NULL };
    for (size_t hit = from; (hit = str_find(vm, &part, hit, sub.s)) != SIZE_MAX; hit += sub.s->size)
        n++;
    return val_int(n);
}

static FILTER(s_affix)          /* prefix, start, end; variant 1: endswith */
{
    size_t from, to;
    struct val affixes = a[0];
    if (affixes.kind != K_TUPLE) {
        affixes = val_list(vm, 1);
        list_push(vm, affixes.l, arg_str(vm, a[0], NULL));
    }
    if (!str_range(vm, in, a[1], a[2], &from, &to))
        return val_bool(0);
    for (size_t i = 0; i < affixes.l->n; i++) {
        const struct str *x = arg_str(vm, affixes.l->v[i], NULL).s;
        if (x->size <= to - from && !memcmp(in.s->data + (variant ? to - x->size : from), x->data, x->size))
            return val_bool(1);
    }
    return val_bool(0);
}

static FILTER(s_strip)          /* variant: 1 left, 2 right, 3 both ends */
{
    return str_strip(vm, in, arg_given(a[0]) ? arg_str(vm, a[0], NULL) : val_none(), variant);
}

static FILTER(s_split)          /* sep, maxsplit; variant 1: rsplit */
{
    return str_split(vm, in, arg_given(a[0]) ? arg_str(vm, a[0], NULL) : val_none(), arg_int(vm, a[1], -1), variant);
}

static FILTER(s_splitlines) { return str_splitlines(vm, in, arg_bool(a[0], 0)); }
static FILTER(s_case) { return str_case(vm, in, (enum str_case)variant); }

static FILTER(s_replace)        /* old, new, count */
{
    struct val new = arg_str(vm, a[1], NULL);
    return str_replace(vm, in, arg_str(vm, a[0], NULL), in.flag ? val_escape(vm, new) : new, arg_int(vm, a[2], -1));
}

static FILTER(s_removeaffix)    /* affix; variant 1: suffix */
{
    const struct str *x = arg_str(vm, a[0], NULL).s;
    size_t size = in.s->size;
    if (x->size > size || memcmp(in.s->data + (variant ? size - x->size : 0), x->data, x->size))
        return in;
    return val_slice(vm, in, variant ? 0 : x->size, size - x->size);
}

static FILTER(s_join)           /* iterable */
{
    struct sb b = { .vm = vm };
    struct iter it;
    struct val item;
    int64_t n = 0;
    iter_init(vm, &it, a[0]);
    while (iter_next(vm, &it, &item)) {
        if (item.kind != K_STR)
            fail(vm, "sequence item %" PRId64 ": expected str instance, %s found", n, val_type(item));
        if (n++)
            sb_str(&b, in);
        sb_str(&b, in.flag ? val_escape(vm, item) : item);
    }
    return val_safe(sb_done(&b), in.flag);
}

static FILTER(s_pad)            /* width, fillchar; variant: alignment */
{
    struct val fill = arg_str(vm, a[1], " ");
    return str_pad(vm, in, arg_int(vm, a[0], 0), in.flag ? val_escape(vm, fill) : fill, variant);
}

static FILTER(s_zfill)          /* width */
{
    int64_t width = arg_int(vm, a[0], 0);
    int sign = in.s->size && (in.s->data[0] == '-' || in.s->data[0] == '+');
    struct val rest = str_pad(vm, val_slice(vm, in, (size_t)sign, in.s->size - (size_t)sign), width - sign,
                              val_cstr(vm, "0"), '>');
    return val_safe(val_concat(vm, val_slice(vm, val_safe(in, 0), 0, (size_t)sign), rest), in.flag);
}

static FILTER(s_expandtabs)     /* tabsize */
{
    struct sb b = { .vm = vm };
    int64_t tab = arg_int(vm, a[0], 8), column = 0;
    int n;
    for (size_t at = 0; at < in.s->size; at += (size_t)n) {
        uint32_t c = utf8_next(in.s->data + at, in.s->size - at, &n);
        if (c == '\t') {
            int64_t blanks = tab > 0 ? tab - column % tab : 0;
            sb_fill(&b, val_cstr(vm, " "), (size_t)blanks);
            column += blanks;
            continue;
        }
        sb_add(&b, in.s->data + at, (size_t)n);
        column = c == '\n' || c == '\r' ? 0 : column + 1;
    }
    return val_safe(sb_done(&b), in.flag);
}

static FILTER(s_partition)      /* sep; variant 1: rpartition */
{
    struct val sep = arg_str(vm, a[0], NULL), r = val_list(vm, 3);
    struct val parts = str_split(vm, in, sep, 1, variant), empty = val_safe(val_text(vm, "", 0), in.flag);
    int found = parts.l->n == 2;
    r.kind = K_TUPLE;
    list_push(vm, r.l, !found && variant ? empty : parts.l->v[0]);
    list_push(vm, r.l, found ? val_safe(sep, in.flag) : empty);
    list_push(vm, r.l, found ? parts.l->v[1] : variant ? parts.l->v[0] : empty);
    return r;
}

static FILTER(s_format) { return fmt_braces(vm, in, args); }

static FILTER(s_format_map)     /* mapping */
{
    if (a[0].kind != K_DICT)
        fail(vm, "format_map() argument must be a mapping, not %s", val_type(a[0]));
    struct args named = { .kw = vm_array(vm, a[0].d->n + 1, sizeof *named.kw) };
    for (size_t i = 0; i < a[0].d->n; i++)
        if (a[0].d->v[i].key.kind == K_STR)
            named.kw[named.n_kw++] = (struct kwarg){ a[0].d->v[i].key.s, a[0].d->v[i].value };
    return fmt_braces(vm, in, &named);
}

/* ---- str.isdigit() and the like: 1 if all characters are of a kind, and there is at least one */

static int is_decimal(uint32_t c) { return utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_ND; }

/* Decimal digits, superscripts and subscripts; digits in circles or parentheses, or with a full
 * stop. */
static int is_digit(uint32_t c)
{
    return is_decimal(c) || c == 0xB2 || c == 0xB3 || c == 0xB9 || c == 0x2070 || (c >= 0x2074 && c <= 0x2079) ||
           (c >= 0x2080 && c <= 0x2089)
        || (c >= 0x2460 && c <= 0x2468) || (c >= 0x2474 && c <= 0x247C) || (c >= 0x2488 && c <= 0x2490) || c == 0x24EA
        || (c >= 0x24F5 && c <= 0x24FD) || c == 0x24FF || (c >= 0x2776 && c <= 0x277E) ||
        (c >= 0x2780 && c <= 0x2788) || (c >= 0x278A && c <= 0x2792);
}

static int is_numeric(uint32_t c)
{
    int cat = utf8proc_category((utf8proc_int32_t)c);
    static const uint16_t han[] = { 0x3007, 0x4E00, 0x4E03, 0x4E09, 0x4E5D, 0x4E8C, 0x4E94, 0x516B, 0x516D, 0x5341,
                                    0x56DB, 0x767E, 0x5343, 0x4E07 };
    for (size_t i = 0; i < sizeof han / sizeof *han; i++)
        if (c == han[i])
            return 1;
    return cat >= UTF8PROC_CATEGORY_ND && cat <= UTF8PROC_CATEGORY_NO;
}

static int is_alpha(uint32_t c)
{
    int cat = utf8proc_category((utf8proc_int32_t)c);
    return cat >= UTF8PROC_CATEGORY_LU && cat <= UTF8PROC_CATEGORY_LO;
}

static int is_alnum(uint32_t c) { return is_alpha(c) || is_numeric(c); }
static int is_ascii(uint32_t c) { return c < 0x80; }

enum is_what { IS_ALNUM, IS_ALPHA, IS_ASCII, IS_DECIMAL, IS_DIGIT, IS_NUMERIC, IS_PRINTABLE, IS_SPACE };

static FILTER(s_is)
{
    static int (*const kinds[])(uint32_t) = { is_alnum, is_alpha, is_ascii, is_decimal, is_digit, is_numeric,
                                              char_printable, utf8_is_space };
    int n;
    for (size_t at = 0; at < in.s->size; at += (size_t)n)
        if (!kinds[variant](utf8_next(in.s->data + at, in.s->size - at, &n)))
            return val_bool(0);
    vm_step(vm, in.s->size / 4);
    return val_bool(in.s->size || variant == IS_ASCII || variant == IS_PRINTABLE);
}

static FILTER(s_iscase)         /* variant: 'l', 'u'; 't': title case */
{
    int cased = 0, previous = 0, n;
    for (size_t at = 0; at < in.s->size; at += (size_t)n) {
        int c = char_case(utf8_next(in.s->data + at, in.s->size - at, &n));
        if (variant == 't' ? (c == 'l' && !previous) || ((c == 'u' || c == 't') && previous) : c && c != variant)
            return val_bool(0);
        previous = c != 0;
        cased |= previous;
    }
    vm_step(vm, in.s->size / 4);
    return val_bool(cased);
}

static FILTER(s_isidentifier)
{
    int n;
    for (size_t at = 0; at < in.s->size; at += (size_t)n) {
        uint32_t c = utf8_next(in.s->data + at, in.s->size - at, &n);
        if (!(c == '_' || is_alpha(c) || (at && char_word(c))))
            return val_bool(0);
    }
    vm_step(vm, in.s->size / 4);
    return val_bool(in.s->size > 0);
}

static const struct builtin str_methods[] = {
    { "capitalize", s_case, "", 0, CASE_CAPITALIZE }, { "casefold", s_case, "", 0, CASE_FOLD },
    { "center", s_pad, "width fillchar", 1, 'c' }, { "count", s_count, "sub start end", 1, 0 },
    { "endswith", s_affix, "suffix start end", 1, 1 }, { "expandtabs", s_expandtabs, "tabsize", 0, 0 },
    { "find", s_find, "sub start end", 1, 0 }, { "format", s_format, NULL, 0, 0 },
    { "format_map", s_format_map, "mapping", 1, 0 },
    { "index", s_find, "sub start end", 1, FIND_OR_FAIL }, { "isalnum", s_is, "", 0, IS_ALNUM },
    { "isalpha", s_is, "", 0, IS_ALPHA },
    { "isascii", s_is, "", 0, IS_ASCII }, { "isdecimal", s_is, "", 0, IS_DECIMAL },
    { "isdigit", s_is, "", 0, IS_DIGIT },
    { "isidentifier", s_isidentifier, "", 0, 0 }, { "islower", s_iscase, "", 0, 'l' },
    { "isnumeric", s_is, "", 0, IS_NUMERIC },
    { "isprintable", s_is, "", 0, IS_PRINTABLE }, { "isspace", s_is, "", 0, IS_SPACE },
    { "istitle", s_iscase, "", 0, 't' },
    { "isupper", s_iscase, "", 0, 'u' }, { "join", s_join, "iterable", 1, 0 },
    { "ljust", s_pad, "width fillchar", 1, '<' },
    { "lower", s_case, "", 0, CASE_LOWER }, { "lstrip", s_strip, "chars", 0, 1 },
    { "partition", s_partition, "sep", 1, 0 },
    { "removeprefix", s_removeaffix, "prefix", 1, 0 }, { "removesuffix", s_removeaffix, "suffix", 1, 1 },
    { "replace", s_replace, "old new count", 2, 0 }, { "rfind", s_find, "sub start end", 1, FIND_LAST },
    { "rindex", s_find, "sub start end", 1, FIND_LAST | FIND_OR_FAIL }, { "rjust", s_pad, "width fillchar", 1, '>' },
    { "rpartition", s_partition, "sep", 1, 1 }, { "rsplit", s_split, "sep maxsplit", 0, 1 },
    { "rstrip", s_strip, "chars", 0, 2 },
    { "split", s_split, "sep maxsplit", 0, 0 }, { "splitlines", s_splitlines, "keepends", 0, 0 },
    { "startswith", s_affix, "prefix start end", 1, 0 }, { "strip", s_strip, "chars", 0, 3 },
    { "swapcase", s_case, "", 0, CASE_SWAP },
    { "title", s_case, "", 0, CASE_TITLE }, { "upper", s_case, "", 0, CASE_UPPER }, { "zfill", s_zfill, "width", 1, 0 },
};

/* ---- list and tuple */

/* index of an insertion or removal: negative from the end, clipped to [0, n] */
static size_t clip(int64_t i, size_t n)
{
    i = i < 0 ? i + (int64_t)n : i;
    return i < 0 ? 0 : i > (int64_t)n ? n : (size_t)i;
}

static void list_insert(struct vm *vm, struct val_list *l, size_t at, struct val v)
{
    list_push(vm, l, v);
    memmove(l->v + at + 1, l->v + at, (l->n - at - 1) * sizeof *l->v);
    l->v[at] = v;
    vm_step(vm, (l->n - at) / 16);
}

static struct val list_take(struct vm *vm, struct val_list *l, size_t at)
{
    struct val v = l->v[at];
    memmove(l->v + at, l->v + at + 1, (l->n - at - 1) * sizeof *l->v);
    l->n--;
    vm_step(vm, (l->n - at) / 16);
    return v;
}

static FILTER(l_append)         /* object */
{
    list_push(vm, in.l, a[0]);
    return val_none();
}

static FILTER(l_extend)         /* iterable */
{
    struct val more = val_to_list(vm, a[0]);
    for (size_t i = 0; i < more.l->n; i++)
        list_push(vm, in.l, more.l->v[i]);
    return val_none();
}

static FILTER(l_insert)         /* index, object */
{
    list_insert(vm, in.l, clip(arg_int(vm, a[0], 0), in.l->n), a[1]);
    return val_none();
}

static FILTER(l_pop)            /* index */
{
    int64_t i = arg_int(vm, a[0], -1);
    i = i < 0 ? i + (int64_t)in.l->n : i;
    if (i < 0 || i >= (int64_t)in.l->n)
        fail(vm, in.l->n ? "pop index out of range" : "pop from empty list");
    return list_take(vm, in.l, (size_t)i);
}

static size_t position(struct vm *vm, const struct val_list *l, struct val x, size_t from, size_t to)
{
    for (size_t i = from; i < to && i < l->n; i++)
        if (val_equal(vm, l->v[i], x))
            return i;
    return SIZE_MAX;
}

static FILTER(l_index)          /* value, start, stop */
{
    size_t i = position(vm, in.l, a[0], clip(arg_int(vm, a[1], 0), in.l->n),
                        clip(arg_int(vm, a[2], (int64_t)in.l->n), in.l->n));
    if (i == SIZE_MAX)
        fail(vm, "the value is not in the %s", val_type(in));
    return val_int((int64_t)i);
}

static FILTER(l_remove)         /* value */
{
    size_t i = position(vm, in.l, a[0], 0, in.l->n);
    if (i == SIZE_MAX)
        fail(vm, "list.remove(x): x not in list");
    list_take(vm, in.l, i);
    return val_none();
}

static FILTER(l_count)          /* value */
{
    int64_t n = 0;
    for (size_t i = 0; i < in.l->n; i++)
        n += val_equal(vm, in.l->v[i], a[0]);
    return val_int(n);
}

static FILTER(l_copy) { return val_to_list(vm, in); }

static FILTER(l_clear)
{
    in.l->n = 0;
    return val_none();
}

static FILTER(l_reverse)
{
    for (size_t i = 0, n = in.l->n; i < n / 2; i++) {
        struct val t = in.l->v[i];
        in.l->v[i] = in.l->v[n - 1 - i];
        in.l->v[n - 1 - i] = t;
    }
    vm_step(vm, in.l->n / 16);
    return val_none();
}

static FILTER(l_sort)           /* key, reverse */
{
    if (arg_given(a[0]))
        fail(vm, "list.sort: key functions are not supported; use the sort filter");
    size_t n = in.l->n, *order = vm_array(vm, n + 1, sizeof *order);
    struct val copy = val_to_list(vm, in);
    val_sort(vm, copy.l->v, n, arg_bool(a[1], 0), 0, order);
    for (size_t i = 0; i < n; i++)
        in.l->v[i] = copy.l->v[order[i]];
    return val_none();
}

static const struct builtin list_methods[] = {
    { "append", l_append, "object", 1, 0 }, { "clear", l_clear, "", 0, 0 }, { "copy", l_copy, "", 0, 0 },
        { "count", l_count, "value", 1, 0 },
    { "extend", l_extend, "iterable", 1, 0 }, { "index", l_index, "value start stop", 1, 0 },
    { "insert", l_insert, "index object", 2, 0 },
    { "pop", l_pop, "index", 0, 0 }, { "remove", l_remove, "value", 1, 0 }, { "reverse", l_reverse, "", 0, 0 },
    { "sort", l_sort, "key reverse", 0, 0 },
};
static const struct builtin tuple_methods[] = {
    { "count", l_count, "value", 1, 0 }, { "index", l_index, "value start stop", 1, 0 },
};

/* ---- dict */

static FILTER(d_view) { return (struct val){ .kind = K_VIEW, .flag = (uint8_t)variant, .d = in.d }; }

static FILTER(d_get)            /* key, default; variant 1: setdefault */
{
    struct val *found = dict_find(vm, in.d, a[0]), fallback = a[1].kind == K_MISSING ? val_none() : a[1];
    if (!found && variant)
        dict_set(vm, in.d, a[0], fallback);
    return found ? *found : fallback;
}

static FILTER(d_pop)            /* key, default */
{
    struct val was;
    if (dict_remove(vm, in.d, a[0], &was))
        return was;
    if (a[1].kind == K_MISSING) {
        struct val key = val_repr(vm, a[0]);
        fail(vm, "dict.pop: no key %.*s", key.s->size > 100 ? 100 : (int)key.s->size, key.s->data);
    }
    return a[1];
}

static FILTER(d_popitem)
{
    if (!in.d->n)
        fail(vm, "popitem(): dictionary is empty");
    struct val pair = val_list(vm, 2), was;
    struct dict_entry last = in.d->v[in.d->n - 1];
    pair.kind = K_TUPLE;
    list_push(vm, pair.l, last.key);
    list_push(vm, pair.l, last.value);
    dict_remove(vm, in.d, last.key, &was);
    return pair;
}

static FILTER(d_update)         /* [mapping or pairs,] name=value... */
{
    if (args->n_pos > 1)
        fail(vm, "update expected at most 1 argument, got %d", args->n_pos);
    if (args->n_pos)
        dict_update(vm, in.d, args->pos[0]);
    for (int i = 0; i < args->n_kw; i++)
        dict_set(vm, in.d, VAL(K_STR, s, args->kw[i].name), args->kw[i].v);
    return val_none();
}

static FILTER(d_copy)
{
    struct val r = val_dict(vm);
    dict_update(vm, r.d, in);
    return r;
}

static FILTER(d_clear)
{
    *in.d = (struct dict){ 0 };
    return val_none();
}

static const struct builtin dict_methods[] = {
    { "clear", d_clear, "", 0, 0 }, { "copy", d_copy, "", 0, 0 }, { "get", d_get, "key default", 1, 0 },
        { "items", d_view, "", 0, VIEW_ITEMS },
    { "keys", d_view, "", 0, VIEW_KEYS }, { "pop", d_pop, "key default", 1, 0 }, { "popitem", d_popitem, "", 0, 0 },
    { "setdefault", d_get, "key default", 1, 1 }, { "update", d_update, NULL, 0, 0 },
    { "values", d_view, "", 0, VIEW_VALUES },
};

/* ---- the others */

static FILTER(n_is_integer) { return val_bool(isfinite(in.f) && in.f == floor(in.f)); }

static FILTER(n_bit_length)
{
    uint64_t x = in.i < 0 ? 0 - (uint64_t)in.i : (uint64_t)in.i;
    int64_t n = 0;
    for (; x; x >>= 1)
        n++;
    return val_int(n);
}

static FILTER(c_next)           /* variant 1: reset */
{
    struct val now = in.l->v[in.l->pos];
    in.l->pos = variant ? 0 : (in.l->pos + 1) % in.l->n;
    return variant ? val_none() : now;
}

static FILTER(lp_cycle) { return loop_cycle(vm, in.loop, args); }
static FILTER(lp_changed) { return loop_changed(vm, in.loop, args); }

static const struct builtin int_methods[] = { { "bit_length", n_bit_length, "", 0, 0 } };
static const struct builtin float_methods[] = { { "is_integer", n_is_integer, "", 0, 0 } };
static const struct builtin cycler_methods[] = { { "next", c_next, "", 0, 0 }, { "reset", c_next, "", 0, 1 } };
static const struct builtin loop_methods[] = { { "changed", lp_changed, NULL, 0, 0 },
                                               { "cycle", lp_cycle, NULL, 0, 0 } };

#define TABLE(t) { t, sizeof t / sizeof *t }
static const struct { const struct builtin *rows; size_t n; } methods[N_KINDS] = {
    [K_STR] = TABLE(str_methods), [K_LIST] = TABLE(list_methods), [K_TUPLE] = TABLE(tuple_methods),
        [K_DICT] = TABLE(dict_methods),
    [K_INT] = TABLE(int_methods), [K_BOOL] = TABLE(int_methods), [K_FLOAT] = TABLE(float_methods),
    [K_CYCLER] = TABLE(cycler_methods), [K_LOOP] = TABLE(loop_methods),
};

const struct builtin *tmpl_method(struct val self, const char *name, size_t size)
{
    return builtin_find(methods[self.kind].rows, methods[self.kind].n, name, size);
}
