/* tmpl_ops.c - operators, attributes and items. */
#include "libcommon/template/tmpl_value.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/utf8.h"

static const char *const op_names[] = { "+", "-", "*", "/", "//", "%", "** or pow()", "==", "!=", "<", "<=", ">", ">=",
                                        "in", "not in" };

/* ---- arithmetic */

static _Noreturn void too_large(struct vm *vm) { vm_fail(vm, ERR_LIMIT, "an integer does not fit 64 bits"); }

static int64_t power(struct vm *vm, int64_t base, int64_t exponent)
{
    int64_t r = 1;
    while (exponent > 0) {
        if (exponent & 1 && __builtin_mul_overflow(r, base, &r))
            too_large(vm);
        exponent >>= 1;
        if (exponent && __builtin_mul_overflow(base, base, &base))
            too_large(vm);
    }
    return r;
}

static struct val int_op(struct vm *vm, enum op op, int64_t a, int64_t b)
{
    int64_t r = 0;
    int over = 0;
    switch (op) {
    case OP_ADD: over = __builtin_add_overflow(a, b, &r); break;
    case OP_SUB: over = __builtin_sub_overflow(a, b, &r); break;
    case OP_MUL: over = __builtin_mul_overflow(a, b, &r); break;
    case OP_DIV:
        if (!b)
            fail(vm, "division by zero");
        return val_float((double)a / (double)b);
    case OP_FLOORDIV: case OP_MOD:
        if (!b)
            fail(vm, "integer division or modulo by zero");
        if (b == -1) {                          /* INT64_MIN / -1 */
            over = op == OP_FLOORDIV && __builtin_sub_overflow((int64_t)0, a, &r);
            break;
        }
        r = op == OP_FLOORDIV ? a / b - (a % b != 0 && (a < 0) != (b < 0))
                              : a % b + (a % b != 0 && (a < 0) != (b < 0) ? b : 0);
        break;
    default:                                    /* OP_POW */
        if (b < 0 && a == 0)
            fail(vm, "0.0 cannot be raised to a negative power");
        return b < 0 ? val_float(pow((double)a, (double)b)) : val_int(power(vm, a, b));
    }
    if (over)
        too_large(vm);
    return val_int(r);
}

static struct val float_op(struct vm *vm, enum op op, double a, double b)
{
    double r;
    switch (op) {
    case OP_ADD: return val_float(a + b);
    case OP_SUB: return val_float(a - b);
    case OP_MUL: return val_float(a * b);
    case OP_POW:
        r = pow(a, b);
        if (isinf(r) && isfinite(a) && isfinite(b))
            fail(vm, a == 0 ? "0.0 cannot be raised to a negative power" : "Numerical result out of range");
        if (isnan(r) && !isnan(a) && !isnan(b))
            fail(vm, "the result would be a complex number");
        return val_float(r);
    default:
        if (b == 0)
            fail(vm, "float division by zero");
        if (op == OP_DIV)
            return val_float(a / b);
        r = fmod(a, b);                         /* the remainder gets the sign of the divisor, as in Python */
        if (r != 0 && (r < 0) != (b < 0))
            r += b;
        if (op == OP_MOD)
            return val_float(r == 0 ? copysign(0, b) : r);
        r = (a - r) / b;
        return val_float(r - floor(r) > 0.5 ? floor(r) + 1 : floor(r));
    }
}

static struct val repeat(struct vm *vm, struct val seq, int64_t n)
{
    if (n < 0)
        n = 0;
    if (seq.kind == K_STR) {
        struct sb b = { .vm = vm };
        sb_fill(&b, seq, (size_t)n);
        return val_safe(sb_done(&b), seq.flag);
    }
    size_t len = seq.l->n;
    if (len && (size_t)n > SIZE_MAX / 64 / len)
        vm_fail(vm, ERR_LIMIT, "a list is too long");
    struct val r = val_list(vm, len ? (size_t)n * len : 0);
    r.kind = seq.kind;
    vm_step(vm, (size_t)n * len);
    for (int64_t i = 0; len && i < n; i++)
        for (size_t k = 0; k < len; k++)
            list_push(vm, r.l, seq.l->v[k]);
    return r;
}

static struct val add_sequences(struct vm *vm, struct val a, struct val b)
{
    if (a.kind == K_STR) {
        int safe = a.flag | b.flag;             /* markup escapes the text that it is joined with */
        if (safe) {
            a = val_escape(vm, a);
            b = val_escape(vm, b);
        }
        return val_safe(val_concat(vm, a, b), safe);
    }
    struct val r = val_list(vm, a.l->n + b.l->n);
    r.kind = a.kind;
    vm_step(vm, a.l->n + b.l->n);
    for (size_t i = 0; i < a.l->n; i++)
        list_push(vm, r.l, a.l->v[i]);
    for (size_t i = 0; i < b.l->n; i++)
        list_push(vm, r.l, b.l->v[i]);
    return r;
}

struct val op_binary(struct vm *vm, enum op op, struct val a, struct val b)
{
    if (is_num(a) && is_num(b))
        return a.kind == K_FLOAT || b.kind == K_FLOAT ? float_op(vm, op, num_f(a), num_f(b)) : int_op(vm, op, a.i, b.i);
    int a_seq = a.kind == K_STR || a.kind == K_LIST || a.kind == K_TUPLE, b_seq = b.kind == K_STR ||
        b.kind == K_LIST || b.kind == K_TUPLE;
    if (op == OP_ADD && a_seq && a.kind == b.kind)
        return add_sequences(vm, a, b);
    if (op == OP_MUL && ((a_seq && is_int(b)) || (b_seq && is_int(a))))
        return a_seq ? repeat(vm, a, b.i) : repeat(vm, b, a.i);
    if (op == OP_MOD && a.kind == K_STR)
        return fmt_percent(vm, a, b);
    if (a.kind == K_UNDEF || b.kind == K_UNDEF)
        val_fail_undef(vm, a.kind == K_UNDEF ? a : b);
    if (op == OP_ADD && a_seq)
        fail(vm, "can only concatenate %s (not \"%s\") to %s", val_type(a), val_type(b), val_type(a));
    fail(vm, "unsupported operand type(s) for %s: '%s' and '%s'", op_names[op], val_type(a), val_type(b));
}

int op_compare(struct vm *vm, enum op op, struct val a, struct val b)
{
    switch (op) {
    case OP_EQ: return val_equal(vm, a, b);
    case OP_NE: return !val_equal(vm, a, b);
    case OP_IN: return val_contains(vm, b, a);
    case OP_NOTIN: return !val_contains(vm, b, a);
    default: {
        int c = val_compare(vm, a, b, op_names[op]);
        return c != 2 && (op == OP_LT ? c < 0 : op == OP_LE ? c <= 0 : op == OP_GT ? c > 0 : c >= 0);
    }
    }
}

struct val op_negate(struct vm *vm, struct val v, int minus)
{
    if (v.kind == K_UNDEF)
        val_fail_undef(vm, v);
    if (!is_num(v))
        fail(vm, "bad operand type for unary %c: '%s'", minus ? '-' : '+', val_type(v));
    if (v.kind == K_FLOAT)
        return val_float(minus ? -v.f : v.f);
    return minus ? int_op(vm, OP_SUB, 0, v.i) : val_int(v.i);
}

/* ---- attributes and items */

static struct val name_val(const struct str *name) { return VAL(K_STR, s, name); }

struct val op_attr(struct vm *vm, struct val v, const struct str *name)
{
    char text[64];
    if (name->size >= sizeof text || memchr(name->data, '\0', name->size))
        return val_missing();
    memcpy(text, name->data, name->size);
    text[name->size] = '\0';
    struct val *found;
    switch (v.kind) {
    case K_LOOP: return loop_attr(vm, v.loop, text);
    case K_MACRO: return macro_attr(vm, v.macro, text);
    case K_NS:
        found = dict_find(vm, v.d, VAL(K_STR, s, name));
        return found ? *found : val_missing();
    case K_TUPLE:                               /* an item of groupby */
        if (v.flag && v.l->n == 2 && (!strcmp(text, "grouper") || !strcmp(text, "list")))
            return v.l->v[*text == 'l'];
        break;
    case K_CYCLER:
        if (!strcmp(text, "current"))
            return v.l->v[v.l->pos];
        break;
    case K_BOOL: case K_INT: case K_FLOAT:
        if (!strcmp(text, "real"))
            return v.kind == K_FLOAT ? v : val_int(v.i);
        if (!strcmp(text, "imag"))
            return v.kind == K_FLOAT ? val_float(0) : val_int(0);
        break;
    }
    const struct builtin *fn = tmpl_method(v, text, name->size);
    if (!fn)
        return val_missing();
    struct bound_method *m = vm_alloc(vm, sizeof *m);
    *m = (struct bound_method){ v, fn };
    return VAL(K_METHOD, m, m);
}

static size_t index_of(int64_t i, size_t n, int *ok)
{
    if (i < 0)
        i += (int64_t)n;
    *ok = i >= 0 && (uint64_t)i < n;
    return (size_t)i;
}

/* v[key], items only.  K_MISSING: no such item, or the type has no items. */
static struct val type_item(struct vm *vm, struct val v, struct val key)
{
    int ok;
    size_t i;
    if (v.kind == K_DICT) {
        if (key.kind == K_LIST || key.kind == K_DICT)
            return val_missing();
        struct val *found = dict_find(vm, v.d, key);
        return found ? *found : val_missing();
    }
    if (!is_int(key))
        return val_missing();
    switch (v.kind) {
    case K_LIST: case K_TUPLE:
        i = index_of(key.i, v.l->n, &ok);
        return ok ? v.l->v[i] : val_missing();
    case K_RANGE:
        i = index_of(key.i, v.r->n, &ok);
        return ok ? val_int(v.r->start + (int64_t)i * v.r->step) : val_missing();
    case K_STR: {
        int n;
        i = index_of(key.i, v.s->n_chars, &ok);
        if (!ok)
            return val_missing();
        if (v.s->n_chars != v.s->size) {
            vm_step(vm, i / 16);
            i = utf8_offset(v.s->data, v.s->size, i);
        }
        utf8_next(v.s->data + i, v.s->size - i, &n);
        return val_slice(vm, v, i, (size_t)n);
    }
    default:
        return val_missing();
    }
}

/* v.name: attributes of the type take precedence over keys of a dict, so d.items is always the
 * method. */
struct val op_getattr(struct vm *vm, struct val v, const struct str *name)
{
    if (v.kind == K_UNDEF)
        val_fail_undef(vm, v);
    struct val r = op_attr(vm, v, name);
    if (r.kind == K_MISSING && v.kind == K_DICT)
        r = type_item(vm, v, name_val(name));
    return r.kind == K_MISSING ? val_undef(vm, v, name_val(name)) : r;
}

struct val op_getitem(struct vm *vm, struct val v, struct val key)
{
    if (v.kind == K_UNDEF)
        val_fail_undef(vm, v);
    struct val r = type_item(vm, v, key);
    if (r.kind == K_MISSING && key.kind == K_STR)
        r = op_attr(vm, v, key.s);
    return r.kind == K_MISSING ? val_undef(vm, v, key) : r;
}

/* One end of a slice, as Python clips it: into [0, n], or [-1, n-1] when walking backwards. */
static int64_t slice_end(struct vm *vm, struct val v, int64_t n, int64_t step, int64_t absent)
{
    if (!arg_given(v))
        return absent;
    if (v.kind == K_UNDEF)
        val_fail_undef(vm, v);
    if (!is_int(v))
        fail(vm, "slice indices must be integers or None");
    int64_t i = v.i < 0 ? v.i + n : v.i, lo = step < 0 ? -1 : 0, hi = step < 0 ? n - 1 : n;
    return i < lo ? lo : i > hi ? hi : i;
}

static struct val slice_str(struct vm *vm, struct val v, int64_t from, int64_t step, size_t count)
{
    const struct str *s = v.s;
    if (step == 1) {
        size_t a = s->n_chars == s->size ? (size_t)from : utf8_offset(s->data, s->size, (size_t)from);
        size_t b = s->n_chars == s->size ? a + count : a + utf8_offset(s->data + a, s->size - a, count);
        vm_step(vm, s->n_chars == s->size ? 1 : b / 16);
        return val_slice(vm, v, a, b - a);
    }
    struct sb b = { .vm = vm };
    size_t at = utf8_offset(s->data, s->size, (size_t)from);
    vm_step(vm, s->size / 4 + count);
    for (size_t k = 0; k < count; k++) {
        int n;
        utf8_next(s->data + at, s->size - at, &n);
        sb_add(&b, s->data + at, (size_t)n);
        if (k + 1 == count)
            break;
        if (step > 0)
            at += utf8_offset(s->data + at, s->size - at, (size_t)step);
        else
            for (int64_t back = 0; back < -step; back++)
                at = utf8_prev(s->data, at);
    }
    return val_safe(sb_done(&b), v.flag);
}

struct val op_slice(struct vm *vm, struct val v, struct val start, struct val stop, struct val step_val)
{
    size_t len;
    if (v.kind == K_UNDEF)
        val_fail_undef(vm, v);
    if (v.kind != K_STR && v.kind != K_LIST && v.kind != K_TUPLE && v.kind != K_RANGE)
        fail(vm, "'%s' object cannot be sliced", val_type(v));
    val_len(v, &len);
    int64_t n = (int64_t)len, step = arg_int(vm, step_val, 1);
    if (step == 0)
        fail(vm, "slice step cannot be zero");
    /* such a step takes one item at most; a smaller number does the same and cannot overflow */
    if (step > n + 1)
        step = n + 1;
    else if (step < -(n + 1))
        step = -(n + 1);
    int64_t from = slice_end(vm, start, n, step, step < 0 ? n - 1 : 0),
            to = slice_end(vm, stop, n, step, step < 0 ? -1 : n);
    size_t count = step > 0 ? (from < to ? (size_t)((to - from - 1) / step + 1) : 0)
                            : (from > to ? (size_t)((from - to - 1) / -step + 1) : 0);
    if (v.kind == K_STR)
        return count ? slice_str(vm, v, from, step, count) : val_safe(val_text(vm, "", 0), v.flag);
    if (v.kind == K_RANGE) {
        struct range *r = vm_alloc(vm, sizeof *r);
        /* unsigned: the unused end may wrap. */
        uint64_t base = (uint64_t)v.r->start, stride = (uint64_t)v.r->step;
        r->start = (int64_t)(base + (uint64_t)from * stride);
        r->step = (int64_t)(stride * (uint64_t)step);
        r->stop = (int64_t)(base + (uint64_t)to * stride);
        r->n = count;
        return VAL(K_RANGE, r, r);
    }
    struct val out = val_list(vm, count);
    out.kind = v.kind;
    vm_step(vm, count);
    for (size_t k = 0; k < count; k++, from += step)
        list_push(vm, out.l, v.l->v[from]);
    return out;
}

struct val op_path(struct vm *vm, struct val v, struct val path, struct val fallback)
{
    if (path.kind != K_STR) {
        if (arg_given(path))
            v = op_getitem(vm, v, path);
        return v.kind == K_UNDEF && arg_given(fallback) ? fallback : v;
    }
    for (size_t at = 0; at <= path.s->size; ) {
        const char *p = path.s->data + at, *dot = memchr(p, '.', path.s->size - at);
        size_t n = dot ? (size_t)(dot - p) : path.s->size - at;
        int64_t index;
        size_t digits = 0;
        while (digits < n && p[digits] >= '0' && p[digits] <= '9')
            digits++;
        int number = n > 0 && digits == n && str_to_int(p, n, 10, &index) == 1;
        v = op_getitem(vm, v, number ? val_int(index) : val_slice(vm, path, at, n));
        if (v.kind == K_UNDEF && arg_given(fallback))
            v = fallback;
        at += n + 1;
    }
    return v;
}
