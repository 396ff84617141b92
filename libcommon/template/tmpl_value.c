/* tmpl_value.c - make, compare and walk values, and stop at limits. */
#include "libcommon/template/tmpl_value.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/utf8.h"

/* ---- failing, memory, limits */

struct arena_chunk { struct arena_chunk *next; size_t used, size; };        /* the memory follows */
enum { CHUNK_HEAD = 32, CHUNK_SIZE = 1 << 16, MAX_NEST = 2000 };

void vm_fail(struct vm *vm, enum err_code code, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    err_set(vm->e, code, "%s: line %d: %s", vm->name, vm->line, text);
    if (vm->e) {                                /* the name was cut inside a character */
        char *msg = vm->e->msg;
        for (size_t n = strlen(msg), at = 0; (at += utf8_valid(msg + at, n - at)) < n; at++)
            msg[at] = '?';
    }
    longjmp(vm->fail, 1);
}

void *vm_alloc(struct vm *vm, size_t size)
{
    struct arena_chunk *c = vm->chunks;
    if (size > vm->max_arena)
        vm_fail(vm, ERR_LIMIT, "the template needs more than %zu bytes of memory", vm->max_arena);
    size = (size + 15) & ~(size_t)15;
    if (!c || c->size - c->used < size) {
        size_t want = size > CHUNK_SIZE / 4 ? size : CHUNK_SIZE;
        if (want > vm->max_arena - vm->arena_bytes)
            vm_fail(vm, ERR_LIMIT, "the template needs more than %zu bytes of memory", vm->max_arena);
        struct arena_chunk *fresh = calloc(1, CHUNK_HEAD + want);
        if (!fresh)
            vm_fail(vm, ERR_MEMORY, "out of memory");
        vm->arena_bytes += want;
        fresh->size = want;
        /* a large block has a chunk of its own: continue to fill the current chunk */
        if (c && want != CHUNK_SIZE) {
            fresh->next = c->next;
            c->next = fresh;
        } else {
            fresh->next = c;
            vm->chunks = fresh;
        }
        c = fresh;
    }
    void *p = (char *)c + CHUNK_HEAD + c->used;
    c->used += size;
    return p;
}

void *vm_array(struct vm *vm, size_t n, size_t size)
{
    if (n > SIZE_MAX / 2 / size)
        vm_fail(vm, ERR_LIMIT, "the template needs more than %zu bytes of memory", vm->max_arena);
    return vm_alloc(vm, n * size);
}

void vm_free_arena(struct arena_chunk *c)
{
    while (c) {
        struct arena_chunk *next = c->next;
        free(c);
        c = next;
    }
}

void vm_step(struct vm *vm, size_t n)
{
    vm->steps += n;
    if (vm->steps > vm->max_steps)
        vm_fail(vm, ERR_LIMIT, "the template took more than %llu steps", (unsigned long long)vm->max_steps);
}

void vm_enter(struct vm *vm)
{
    if (++vm->nest > MAX_NEST)
        vm_fail(vm, ERR_LIMIT, "nested more than %d deep", MAX_NEST);
}

void vm_write(struct vm *vm, const char *data, size_t size)
{
    struct out *o = &vm->out;
    if (size > vm->max_output - o->size)
        vm_fail(vm, ERR_LIMIT, "the output is longer than %zu bytes", vm->max_output);
    if (o->cap - o->size <= size) {             /* one byte stays for the final '\0' */
        size_t cap = o->cap * 2 > o->size + size + 1 ? o->cap * 2 : o->size + size + 1024;
        char *p = realloc(o->data, cap);
        if (!p)
            vm_fail(vm, ERR_MEMORY, "out of memory");
        o->data = p;
        o->cap = cap;
    }
    if (size)
        memcpy(o->data + o->size, data, size);
    o->size += size;
    vm->steps += size / 64;
}

/* ---- making values */

struct grow { char *data; size_t used, cap; };

static struct val new_str(struct vm *vm, const char *data, size_t size, size_t n_chars, struct grow *grow)
{
    struct str *s = vm_alloc(vm, sizeof *s);
    *s = (struct str){ data, size, n_chars, grow };
    return VAL(K_STR, s, s);
}

struct val val_text(struct vm *vm, const char *data, size_t size)
{
    char *p = vm_alloc(vm, size + 1);
    if (size)
        memcpy(p, data, size);
    vm_step(vm, size / 64);
    return new_str(vm, p, size, utf8_count(p, size), NULL);
}

struct val val_cstr(struct vm *vm, const char *s) { return val_text(vm, s, strlen(s)); }

struct val val_format(struct vm *vm, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return val_cstr(vm, text);
}

struct val val_slice(struct vm *vm, struct val s, size_t at, size_t size)
{
    if (at == 0 && size == s.s->size)
        return s;
    size_t n = s.s->n_chars == s.s->size ? size : utf8_count(s.s->data + at, size);
    vm_step(vm, n / 64);
    struct val r = new_str(vm, s.s->data + at, size, n, NULL);
    r.flag = s.flag;
    return r;
}

/* {% set text = text ~ part %} in a loop must not copy the whole text each time: the result extends
 * the left string into the free bytes after it, unless another string already uses them.  Other
 * references to the left string are not affected. */
struct val val_concat(struct vm *vm, struct val a, struct val b)
{
    const struct str *x = a.s, *y = b.s;
    if (!y->size || !x->size)
        return y->size ? val_safe(b, 0) : val_safe(a, 0);
    size_t size = x->size + y->size;
    struct grow *g = x->grow;
    vm_step(vm, 1 + y->size / 64);
    if (g && g->data + g->used == x->data + x->size && g->cap - g->used >= y->size) {
        memcpy(g->data + g->used, y->data, y->size);
        g->used += y->size;
        return new_str(vm, x->data, size, x->n_chars + y->n_chars, g);
    }
    vm_step(vm, x->size / 64);
    char *p;
    if (size < 256) {
        p = vm_alloc(vm, size);
        g = NULL;
    } else {
        g = vm_alloc(vm, sizeof *g);
        *g = (struct grow){ p = vm_array(vm, size, 2), size, size * 2 };
    }
    memcpy(p, x->data, x->size);
    memcpy(p + x->size, y->data, y->size);
    return new_str(vm, p, size, x->n_chars + y->n_chars, g);
}

struct val val_undef(struct vm *vm, struct val owner, struct val key)
{
    struct undef *u = vm_alloc(vm, sizeof *u);
    *u = (struct undef){ key, owner.kind, NULL };
    return VAL(K_UNDEF, u, u);
}

struct val val_hint(struct vm *vm, const char *hint)
{
    struct undef *u = vm_alloc(vm, sizeof *u);
    u->hint = hint;
    return VAL(K_UNDEF, u, u);
}

void val_fail_undef(struct vm *vm, struct val v)
{
    const struct undef *u = v.u;
    if (!u || u->hint)
        fail(vm, "%s", u ? u->hint : "undefined value");
    struct val key = val_repr(vm, u->key);
    int n = key.s->size > 200 ? 200 : (int)key.s->size;
    if (u->owner == K_MISSING)
        fail(vm, "%.*s is undefined", n, key.s->data);
    const char *type = val_type((struct val){ .kind = u->owner });
    if (u->owner == K_NONE)
        fail(vm, "None has no %s %.*s", u->key.kind == K_STR ? "attribute" : "element", n, key.s->data);
    fail(vm, "'%s object' has no %s %.*s", type, u->key.kind == K_STR ? "attribute" : "element", n, key.s->data);
}

struct val val_list(struct vm *vm, size_t cap)
{
    struct val_list *l = vm_alloc(vm, sizeof *l);
    l->v = cap ? vm_array(vm, cap, sizeof *l->v) : NULL;
    l->cap = cap;
    return VAL(K_LIST, l, l);
}

struct val val_dict(struct vm *vm)
{
    return VAL(K_DICT, d, vm_alloc(vm, sizeof(struct dict)));
}

struct val val_from_json(struct vm *vm, const json_t *j)
{
    struct val r = val_none();
    vm_enter(vm);
    switch (json_typeof(j)) {
    case JSON_NULL:    break;
    case JSON_TRUE:    r = val_bool(1); break;
    case JSON_FALSE:   r = val_bool(0); break;
    case JSON_INTEGER: r = val_int(json_integer_value(j)); break;
    case JSON_REAL:    r = val_float(json_real_value(j)); break;
    case JSON_STRING:  r = val_text(vm, json_string_value(j), json_string_length(j)); break;
    case JSON_ARRAY:
        r = val_list(vm, json_array_size(j));
        for (size_t i = 0; i < json_array_size(j); i++)
            list_push(vm, r.l, val_from_json(vm, json_array_get(j, i)));
        break;
    case JSON_OBJECT: {
        const char *key;
        json_t *value;
        r = val_dict(vm);
        /* Iterating does not change it. */
        json_object_foreach((json_t *)(uintptr_t)j, key, value)
            dict_set(vm, r.d, val_cstr(vm, key), val_from_json(vm, value));
        break;
    }
    }
    vm_leave(vm);
    return r;
}

/* ---- lists and dicts */

void list_push(struct vm *vm, struct val_list *l, struct val v)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 4;
        struct val *p = vm_array(vm, cap, sizeof *p);
        if (l->n)
            memcpy(p, l->v, l->n * sizeof *p);
        l->v = p;
        l->cap = cap;
        vm_step(vm, l->n / 16);
    }
    l->v[l->n++] = v;
}

static uint64_t mix(uint64_t h, uint64_t x)
{
    h = (h ^ x) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 29;
}

static uint64_t hash(struct vm *vm, struct val v)
{
    uint64_t h = 0x243f6a8885a308d3u;
    switch (v.kind) {
    case K_STR:
        for (size_t i = 0; i < v.s->size; i++)
            h = (h ^ (unsigned char)v.s->data[i]) * 0x100000001b3u;
        vm_step(vm, v.s->size / 64);
        return mix(h, v.s->size);
    case K_FLOAT:
        if (v.f >= -9e18 && v.f <= 9e18 && v.f == floor(v.f))           /* 1.0 and 1 are one key */
            return mix(h, (uint64_t)(int64_t)v.f);
        memcpy(&h, &v.f, sizeof h);
        return mix(h, 1);
    case K_NONE: case K_BOOL: case K_INT:
        return mix(h, (uint64_t)v.i + (v.kind == K_NONE ? 77 : 0));
    case K_TUPLE:
        vm_enter(vm);
        for (size_t i = 0; i < v.l->n; i++)
            h = mix(h, hash(vm, v.l->v[i]));
        vm_leave(vm);
        return h;
    case K_UNDEF:
        return 1;
    case K_LIST: case K_DICT: case K_VIEW:
        fail(vm, "unhashable type: '%s'", val_type(v));
    default:
        return mix(h, (uint64_t)(uintptr_t)v.d);
    }
}

static struct dict_entry *find(struct vm *vm, const struct dict *d, struct val key, uint64_t h)
{
    if (!d->slot) {
        for (size_t i = 0; i < d->n; i++)
            if (d->v[i].hash == h && val_equal(vm, d->v[i].key, key))
                return &d->v[i];
        return NULL;
    }
    for (size_t i = h & (d->n_slots - 1); d->slot[i]; i = (i + 1) & (d->n_slots - 1)) {
        struct dict_entry *e = &d->v[d->slot[i] - 1];
        if (e->hash == h && val_equal(vm, e->key, key))
            return e;
        vm_step(vm, 1);
    }
    return NULL;
}

struct val *dict_find(struct vm *vm, const struct dict *d, struct val key)
{
    struct dict_entry *e = find(vm, d, key, hash(vm, key));
    return e ? &e->value : NULL;
}

static void index_entries(struct vm *vm, struct dict *d)
{
    size_t want = 16;
    while (want < d->n * 2 + 2)
        want *= 2;
    if (d->n_slots < want) {
        d->slot = vm_array(vm, want * 2, sizeof *d->slot);
        d->n_slots = want * 2;
    } else {
        memset(d->slot, 0, d->n_slots * sizeof *d->slot);
    }
    for (size_t i = 0; i < d->n; i++) {
        size_t at = d->v[i].hash & (d->n_slots - 1);
        while (d->slot[at])
            at = (at + 1) & (d->n_slots - 1);
        d->slot[at] = (uint32_t)i + 1;
    }
    vm_step(vm, d->n / 4);
}

void dict_set(struct vm *vm, struct dict *d, struct val key, struct val value)
{
    uint64_t h = hash(vm, key);
    struct dict_entry *e = find(vm, d, key, h);
    if (e) {
        e->value = value;
        return;
    }
    if (d->n == d->cap) {
        size_t cap = d->cap ? d->cap * 2 : 4;
        if (cap > UINT32_MAX / 2)
            vm_fail(vm, ERR_LIMIT, "a dict is too large");
        struct dict_entry *p = vm_array(vm, cap, sizeof *p);
        if (d->n)
            memcpy(p, d->v, d->n * sizeof *p);
        d->v = p;
        d->cap = cap;
    }
    d->v[d->n++] = (struct dict_entry){ key, value, h };
    if (d->n <= 8)
        return;
    if (!d->slot || d->n * 2 > d->n_slots) {
        index_entries(vm, d);
        return;
    }
    size_t at = h & (d->n_slots - 1);
    while (d->slot[at])
        at = (at + 1) & (d->n_slots - 1);
    d->slot[at] = (uint32_t)d->n;
}

int dict_remove(struct vm *vm, struct dict *d, struct val key, struct val *was)
{
    struct dict_entry *e = find(vm, d, key, hash(vm, key));
    if (!e)
        return 0;
    *was = e->value;
    size_t i = (size_t)(e - d->v);
    memmove(e, e + 1, (d->n - i - 1) * sizeof *e);
    d->n--;
    vm_step(vm, d->n / 4);
    if (d->slot)
        index_entries(vm, d);
    return 1;
}

void dict_update(struct vm *vm, struct dict *d, struct val from)
{
    if (from.kind == K_DICT || from.kind == K_NS) {
        for (size_t i = 0; i < from.d->n; i++)
            dict_set(vm, d, from.d->v[i].key, from.d->v[i].value);
        return;
    }
    struct iter it;
    struct val pair;
    if (from.kind == K_UNDEF)
        val_fail_undef(vm, from);
    iter_init(vm, &it, from);
    while (iter_next(vm, &it, &pair)) {
        struct val two = val_to_list(vm, pair);
        if (two.l->n != 2)
            fail(vm, "a pair for a dict has %zu items, not 2", two.l->n);
        dict_set(vm, d, two.l->v[0], two.l->v[1]);
    }
}

/* ---- what values are */

const char *val_type(struct val v)
{
    static const char *const names[N_KINDS] = {
        [K_MISSING] = "missing", [K_UNDEF] = "Undefined", [K_NONE] = "NoneType", [K_BOOL] = "bool", [K_INT] = "int",
        [K_FLOAT] = "float", [K_STR] = "str", [K_LIST] = "list", [K_TUPLE] = "tuple", [K_DICT] = "dict",
        [K_VIEW] = "dict_view", [K_RANGE] = "range", [K_GEN] = "generator", [K_FUNC] = "function",
        [K_METHOD] = "method", [K_MACRO] = "Macro", [K_LOOP] = "LoopContext", [K_NS] = "Namespace",
        [K_CYCLER] = "Cycler", [K_JOINER] = "Joiner",
    };
    static const char *const views[] = { "dict_keys", "dict_values", "dict_items" };
    return v.kind == K_VIEW ? views[v.flag] : v.kind < N_KINDS ? names[v.kind] : "object";
}

int val_len(struct val v, size_t *n)
{
    switch (v.kind) {
    case K_UNDEF: *n = 0; return 1;
    case K_STR:   *n = v.s->n_chars; return 1;
    case K_LIST: case K_TUPLE: *n = v.l->n; return 1;
    case K_DICT: case K_VIEW:  *n = v.d->n; return 1;
    case K_RANGE: *n = v.r->n; return 1;
    default: return 0;
    }
}

int val_truth(struct val v)
{
    size_t n;
    switch (v.kind) {
    case K_NONE: case K_MISSING: return 0;
    case K_BOOL: case K_INT: return v.i != 0;
    case K_FLOAT: return v.f != 0;
    default: return val_len(v, &n) ? n > 0 : 1;
    }
}

static int equal_lists(struct vm *vm, const struct val_list *a, const struct val_list *b)
{
    if (a->n != b->n)
        return 0;
    vm_enter(vm);
    size_t i = 0;
    while (i < a->n && i < b->n && val_equal(vm, a->v[i], b->v[i]))
        i++;
    vm_leave(vm);
    return i == a->n;
}

static int equal_dicts(struct vm *vm, const struct dict *a, const struct dict *b)
{
    if (a->n != b->n)
        return 0;
    vm_enter(vm);
    size_t i = 0;
    for (; i < a->n; i++) {
        struct dict_entry *e = find(vm, b, a->v[i].key, a->v[i].hash);
        if (!e || !val_equal(vm, a->v[i].value, e->value))
            break;
    }
    vm_leave(vm);
    return i == a->n;
}

int val_equal(struct vm *vm, struct val a, struct val b)
{
    vm_step(vm, 1);
    if (is_num(a) && is_num(b))
        return a.kind == K_FLOAT || b.kind == K_FLOAT ? num_f(a) == num_f(b) : a.i == b.i;
    if (a.kind != b.kind)
        return 0;
    switch (a.kind) {
    case K_UNDEF: case K_NONE: return 1;
    case K_STR:
        vm_step(vm, a.s->size / 64);
        return a.s->size == b.s->size && !memcmp(a.s->data, b.s->data, a.s->size);
    case K_LIST: case K_TUPLE: return a.l == b.l || equal_lists(vm, a.l, b.l);
    case K_DICT: return a.d == b.d || equal_dicts(vm, a.d, b.d);
    case K_RANGE:
        return a.r->n == b.r->n && (!a.r->n || (a.r->start == b.r->start && (a.r->n == 1 || a.r->step == b.r->step)));
    case K_METHOD: return a.m->fn == b.m->fn && a.m->self.kind == b.m->self.kind && a.m->self.i == b.m->self.i;
    case K_VIEW:
        return a.flag == b.flag && a.flag != VIEW_VALUES && equal_lists(vm, val_to_list(vm, a).l, val_to_list(vm, b).l);
    default: return a.d == b.d;
    }
}

int val_compare(struct vm *vm, struct val a, struct val b, const char *op)
{
    vm_step(vm, 1);
    if (is_num(a) && is_num(b)) {
        if (a.kind == K_FLOAT || b.kind == K_FLOAT) {
            double x = num_f(a), y = num_f(b);
            return isnan(x) || isnan(y) ? 2 : (x > y) - (x < y);
        }
        return (a.i > b.i) - (a.i < b.i);
    }
    /* The order of UTF-8 bytes is that of code points. */
    if (a.kind == K_STR && b.kind == K_STR) {
        size_t n = a.s->size < b.s->size ? a.s->size : b.s->size;
        int c = memcmp(a.s->data, b.s->data, n);
        vm_step(vm, n / 64);
        return c ? (c > 0) - (c < 0) : (a.s->size > b.s->size) - (a.s->size < b.s->size);
    }
    if (a.kind == b.kind && (a.kind == K_LIST || a.kind == K_TUPLE)) {
        vm_enter(vm);
        for (size_t i = 0; i < a.l->n && i < b.l->n; i++)
            if (!val_equal(vm, a.l->v[i], b.l->v[i])) {
                int c = val_compare(vm, a.l->v[i], b.l->v[i], op);
                vm_leave(vm);
                return c;
            }
        vm_leave(vm);
        return (a.l->n > b.l->n) - (a.l->n < b.l->n);
    }
    if (a.kind == K_UNDEF || b.kind == K_UNDEF)
        val_fail_undef(vm, a.kind == K_UNDEF ? a : b);
    fail(vm, "'%s' not supported between instances of '%s' and '%s'", op, val_type(a), val_type(b));
}

int val_contains(struct vm *vm, struct val seq, struct val x)
{
    switch (seq.kind) {
    case K_STR:
        if (x.kind != K_STR)
            fail(vm, "'in <string>' requires string as left operand, not %s", val_type(x));
        return str_find(vm, seq.s, 0, x.s) != SIZE_MAX;
    case K_DICT:
        return dict_find(vm, seq.d, x) != NULL;
    case K_RANGE:
        if (is_int(x)) {
            const struct range *r = seq.r;
            int64_t last = r->start + (r->n ? (int64_t)(r->n - 1) : 0) * r->step;
            int64_t lo = r->step > 0 ? r->start : last, hi = r->step > 0 ? last : r->start;
            uint64_t step = r->step < 0 ? 0 - (uint64_t)r->step : (uint64_t)r->step;
            return r->n && x.i >= lo && x.i <= hi && ((uint64_t)x.i - (uint64_t)lo) % step == 0;
        }
        break;
    case K_VIEW:
        if (seq.flag == VIEW_KEYS)
            return dict_find(vm, seq.d, x) != NULL;
        break;
    }
    if (!iter_can(seq))
        fail(vm, "argument of type '%s' is not iterable", val_type(seq));
    struct iter it;
    struct val item;
    iter_init(vm, &it, seq);
    while (iter_next(vm, &it, &item))
        if (val_equal(vm, item, x))
            return 1;
    return 0;
}

int iter_can(struct val v)
{
    return v.kind == K_UNDEF || v.kind == K_STR || v.kind == K_LIST || v.kind == K_TUPLE || v.kind == K_DICT ||
           v.kind == K_VIEW
        || v.kind == K_RANGE || v.kind == K_GEN;
}

void iter_init(struct vm *vm, struct iter *it, struct val v)
{
    if (!iter_can(v))
        fail(vm, "'%s' object is not iterable", val_type(v));
    *it = (struct iter){ .of = v, .n = v.kind == K_DICT || v.kind == K_VIEW ? v.d->n : 0 };
}

static struct val pair(struct vm *vm, struct val a, struct val b)
{
    struct val t = val_list(vm, 2);
    t.kind = K_TUPLE;
    list_push(vm, t.l, a);
    list_push(vm, t.l, b);
    return t;
}

int iter_next(struct vm *vm, struct iter *it, struct val *out)
{
    struct val v = it->of;
    vm_step(vm, 1);
    switch (v.kind) {
    case K_STR: {
        int n;
        if (it->i >= v.s->size)
            return 0;
        utf8_next(v.s->data + it->i, v.s->size - it->i, &n);
        /* As in Python (markupsafe), the characters of a safe string are not safe themselves. */
        *out = val_safe(val_slice(vm, v, it->i, (size_t)n), 0);
        it->i += (size_t)n;
        return 1;
    }
    case K_LIST: case K_TUPLE:
        if (it->i >= v.l->n)
            return 0;
        *out = v.l->v[it->i++];
        return 1;
    case K_DICT: case K_VIEW: {
        if (v.d->n != it->n)
            fail(vm, "dictionary changed size during iteration");
        if (it->i >= v.d->n)
            return 0;
        const struct dict_entry *e = &v.d->v[it->i++];
        int which = v.kind == K_VIEW ? v.flag : VIEW_KEYS;
        *out = which == VIEW_KEYS ? e->key : which == VIEW_VALUES ? e->value : pair(vm, e->key, e->value);
        return 1;
    }
    case K_RANGE:
        if (it->i >= v.r->n)
            return 0;
        *out = val_int(v.r->start + (int64_t)it->i++ * v.r->step);
        return 1;
    case K_GEN: {
        vm_enter(vm);
        int more = v.g->next(vm, v.g, out);
        vm_leave(vm);
        return more;
    }
    default:
        return 0;
    }
}

struct val val_to_list(struct vm *vm, struct val v)
{
    struct iter it;
    struct val item, r = val_list(vm, 0);
    iter_init(vm, &it, v);
    while (iter_next(vm, &it, &item))
        list_push(vm, r.l, item);
    return r;
}

/* ---- arguments of builtins */

int64_t arg_int(struct vm *vm, struct val v, int64_t absent)
{
    if (!arg_given(v))
        return absent;
    if (v.kind == K_UNDEF)
        val_fail_undef(vm, v);
    if (!is_int(v))
        fail(vm, "expected an integer, got '%s'", val_type(v));
    return v.i;
}

int arg_bool(struct val v, int absent) { return v.kind == K_MISSING ? absent : val_truth(v); }

struct val arg_str(struct vm *vm, struct val v, const char *absent)
{
    if (v.kind == K_MISSING && absent)
        return val_cstr(vm, absent);
    if (v.kind == K_UNDEF)
        val_fail_undef(vm, v);
    if (v.kind != K_STR)
        fail(vm, "expected a string, got '%s'", val_type(v));
    return v;
}
