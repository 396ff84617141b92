/* tmpl_tests.c - tests such as "x is odd", and the global functions: range(), namespace(),
 * raise_exception() ... */
#include "libcommon/template/tmpl_filters.h"

#include <inttypes.h>
#include <string.h>

#include "libcommon/base/utf8.h"

/* ---- tests */

enum type_test { IS_DEFINED, IS_UNDEFINED, IS_NONE, IS_BOOLEAN, IS_TRUE, IS_FALSE, IS_INTEGER, IS_FLOAT, IS_NUMBER,
                 IS_STRING, IS_MAPPING,
    IS_SEQUENCE, IS_ITERABLE, IS_CALLABLE, IS_ESCAPED };

static FILTER(t_type)
{
    int k = in.kind;
    switch ((enum type_test)variant) {
    case IS_DEFINED:   return val_bool(k != K_UNDEF);
    case IS_UNDEFINED: return val_bool(k == K_UNDEF);
    case IS_NONE:      return val_bool(k == K_NONE);
    case IS_BOOLEAN:   return val_bool(k == K_BOOL);
    case IS_TRUE:      return val_bool(k == K_BOOL && in.i);
    case IS_FALSE:     return val_bool(k == K_BOOL && !in.i);
    case IS_INTEGER:   return val_bool(k == K_INT);
    case IS_FLOAT:     return val_bool(k == K_FLOAT);
    case IS_NUMBER:    return val_bool(is_num(in));
    case IS_STRING:    return val_bool(k == K_STR);
    case IS_MAPPING:   return val_bool(k == K_DICT);
    case IS_SEQUENCE:  return val_bool(k == K_UNDEF || k == K_STR || k == K_LIST || k == K_TUPLE || k == K_DICT ||
                                       k == K_RANGE);
    case IS_ITERABLE:  return val_bool(iter_can(in) || k == K_LOOP);
    case IS_CALLABLE:  return val_bool(k == K_UNDEF || k == K_FUNC || k == K_METHOD || k == K_MACRO || k == K_LOOP ||
                                       k == K_JOINER);
    default:           return val_bool(k == K_STR && in.flag);
    }
}

static FILTER(t_modulo)         /* variant 0: even, 1: odd, 2: divisibleby(num) */
{
    struct val rest = op_binary(vm, OP_MOD, in, variant == 2 ? a[0] : val_int(2));
    return val_bool(val_equal(vm, rest, val_int(variant == 1)));
}

static FILTER(t_compare) { return val_bool(op_compare(vm, (enum op)variant, in, a[0])); }

/* lower, upper: all cased letters have that case, and there is at least one */
static FILTER(t_case)
{
    struct val s = val_str(vm, in);
    int cased = 0, n;
    for (size_t at = 0; at < s.s->size; at += (size_t)n) {
        int c = char_case(utf8_next(s.s->data + at, s.s->size - at, &n));
        if (c && c != variant)
            return val_bool(0);
        cased |= c != 0;
    }
    vm_step(vm, s.s->size / 4);
    return val_bool(cased);
}

static FILTER(t_known)          /* "upper" is filter, "odd" is test */
{
    if (in.kind != K_STR)
        return val_bool(0);
    return val_bool((variant ? tmpl_test(in.s->data, in.s->size) : tmpl_filter(in.s->data, in.s->size)) != NULL);
}

static FILTER(t_sameas)         /* other */
{
    struct val b = a[0];
    if (in.kind != b.kind)
        return val_bool(0);
    if (in.kind == K_NONE || in.kind == K_UNDEF)
        return val_bool(1);
    if (in.kind == K_FLOAT || in.kind == K_STR)
        return val_bool(val_equal(vm, in, b));
    return val_bool(in.i == b.i);
}

static const struct builtin tests[] = {
    { "!=", t_compare, "other", 1, OP_NE }, { "<", t_compare, "other", 1, OP_LT },
        { "<=", t_compare, "other", 1, OP_LE },
    { "==", t_compare, "other", 1, OP_EQ }, { ">", t_compare, "other", 1, OP_GT },
    { ">=", t_compare, "other", 1, OP_GE },
    { "boolean", t_type, "", 0, IS_BOOLEAN },
    { "callable", t_type, "", 0, IS_CALLABLE },
    { "defined", t_type, "", 0, IS_DEFINED },
    { "divisibleby", t_modulo, "num", 1, 2 },
    { "eq", t_compare, "other", 1, OP_EQ }, { "equalto", t_compare, "other", 1, OP_EQ },
    { "escaped", t_type, "", 0, IS_ESCAPED },
    { "even", t_modulo, "", 0, 0 },
    { "false", t_type, "", 0, IS_FALSE },
    { "filter", t_known, "", 0, 0 },
    { "float", t_type, "", 0, IS_FLOAT },
    { "ge", t_compare, "other", 1, OP_GE },
    { "greaterthan", t_compare, "other", 1, OP_GT }, { "gt", t_compare, "other", 1, OP_GT },
    { "in", t_compare, "seq", 1, OP_IN },
    { "integer", t_type, "", 0, IS_INTEGER },
    { "iterable", t_type, "", 0, IS_ITERABLE },
    { "le", t_compare, "other", 1, OP_LE }, { "lessthan", t_compare, "other", 1, OP_LT },
    { "lt", t_compare, "other", 1, OP_LT },
    { "lower", t_case, "", 0, 'l' },
    { "mapping", t_type, "", 0, IS_MAPPING },
    { "ne", t_compare, "other", 1, OP_NE },
    { "none", t_type, "", 0, IS_NONE },
    { "number", t_type, "", 0, IS_NUMBER },
    { "odd", t_modulo, "", 0, 1 },
    { "sameas", t_sameas, "other", 1, 0 },
    { "sequence", t_type, "", 0, IS_SEQUENCE },
    { "string", t_type, "", 0, IS_STRING },
    { "test", t_known, "", 0, 1 },
    { "true", t_type, "", 0, IS_TRUE },
    { "undefined", t_type, "", 0, IS_UNDEFINED },
    { "upper", t_case, "", 0, 'u' },
};

const struct builtin *tmpl_test(const char *name, size_t size)
{
    return builtin_find(tests, sizeof tests / sizeof *tests, name, size);
}

/* ---- global functions */

enum { MAX_RANGE = 100000 };    /* the limit of Jinja's sandbox */

static FILTER(g_range)          /* stop | start, stop, step */
{
    struct range *r = vm_alloc(vm, sizeof *r);
    for (int i = 0; i < 3; i++)
        if (a[i].kind == K_NONE)
            fail(vm, "'NoneType' object cannot be interpreted as an integer");
    int one = a[1].kind == K_MISSING;
    r->start = one ? 0 : arg_int(vm, a[0], 0);
    r->stop = arg_int(vm, a[one ? 0 : 1], 0);
    r->step = arg_int(vm, a[2], 1);
    if (!r->step)
        fail(vm, "range() arg 3 must not be zero");
    uint64_t gap = r->step > 0 ? (uint64_t)r->stop - (uint64_t)r->start : (uint64_t)r->start - (uint64_t)r->stop;
    uint64_t step = r->step > 0 ? (uint64_t)r->step : 0 - (uint64_t)r->step;
    int empty = r->step > 0 ? r->stop <= r->start : r->stop >= r->start;
    uint64_t n = empty ? 0 : (gap - 1) / step + 1;
    if (n > MAX_RANGE)
        vm_fail(vm, ERR_LIMIT, "Range too big. The sandbox blocks ranges larger than %d.", MAX_RANGE);
    r->n = (size_t)n;
    return VAL(K_RANGE, r, r);
}

static FILTER(g_dict)           /* [mapping or pairs,] name=value...; variant 1: namespace */
{
    struct val r = val_dict(vm);
    if (args->n_pos > 1)
        fail(vm, "%s expected at most 1 argument, got %d", variant ? "namespace" : "dict", args->n_pos);
    if (args->n_pos)
        dict_update(vm, r.d, args->pos[0]);
    for (int i = 0; i < args->n_kw; i++)
        dict_set(vm, r.d, VAL(K_STR, s, args->kw[i].name), args->kw[i].v);
    for (size_t i = 0; variant && i < r.d->n; i++) {
        struct val key = r.d->v[i].key;
        if (key.kind == K_STR && key.s->size && key.s->data[0] == '_')
            fail(vm, "a namespace takes no attribute that begins with an underscore: '%.*s'",
                 key.s->size > 100 ? 100 : (int)key.s->size, key.s->data);
    }
    r.kind = variant ? K_NS : K_DICT;
    return r;
}

static FILTER(g_cycler)
{
    if (!args->n_pos)
        fail(vm, "cycler: at least one item has to be provided");
    struct val r = val_list(vm, (size_t)args->n_pos);
    for (int i = 0; i < args->n_pos; i++)
        list_push(vm, r.l, args->pos[i]);
    r.kind = K_CYCLER;
    return r;
}

static FILTER(g_joiner)         /* sep */
{
    struct joiner *j = vm_alloc(vm, sizeof *j);
    j->sep = a[0].kind == K_MISSING ? val_cstr(vm, ", ") : a[0];
    return VAL(K_JOINER, j, j);
}

static _Noreturn FILTER(g_raise)        /* message */
{
    struct val s = val_str(vm, a[0]);
    fail(vm, "%.*s", s.s->size > 500 ? 500 : (int)s.s->size, s.s->data);
}

static FILTER(g_strftime)       /* format */
{
    return fmt_strftime(vm, arg_str(vm, a[0], NULL), vm->now);
}

static const struct builtin globals[] = {
    { "cycler", g_cycler, NULL, 0, 0 },
    { "dict", g_dict, NULL, 0, 0 },
    { "joiner", g_joiner, "sep", 0, 0 },
    { "namespace", g_dict, NULL, 0, 1 },
    { "raise_exception", g_raise, "message", 1, 0 },
    { "range", g_range, "start stop step", 1, 0 },
    { "strftime_now", g_strftime, "format", 1, 0 },
};

const struct builtin *tmpl_global(const char *name, size_t size)
{
    return builtin_find(globals, sizeof globals / sizeof *globals, name, size);
}
