/* tmpl_sequences.c - the filters of sequences: x|map, x|select, x|sort, x|join ...  The table is at
 * the end.  Filters that are generators in Jinja are lazy here as well: they can be iterated once
 * and have no length. */
#include "libcommon/template/tmpl_filters.h"

#include <inttypes.h>
#include <string.h>

#include "libcommon/template/tmpl_sort.h"

/* ---- attributes and keys */

/* The key for sorting and comparing: the attribute, in lower case unless case matters. */
static struct val key_of(struct vm *vm, struct val item, struct val attribute, struct val fallback, int case_sensitive)
{
    struct val v = arg_given(attribute) ? op_path(vm, item, attribute, fallback) : item;
    return !case_sensitive && v.kind == K_STR ? str_case(vm, v, CASE_LOWER) : v;
}

/* sort(attribute="a,b.c") compares several attributes in turn. */
static struct val sort_key(struct vm *vm, struct val item, struct val attribute, int case_sensitive)
{
    if (attribute.kind != K_STR)
        return key_of(vm, item, attribute, val_missing(), case_sensitive);
    struct val names = str_split(vm, attribute, val_cstr(vm, ","), -1, 0);
    for (size_t i = 0; i < names.l->n; i++)
        names.l->v[i] = key_of(vm, item, names.l->v[i], val_missing(), case_sensitive);
    return names;
}

static struct val picked(struct vm *vm, const struct val *items, const size_t *order, size_t n)
{
    struct val r = val_list(vm, n);
    for (size_t i = 0; i < n; i++)
        list_push(vm, r.l, items[order[i]]);
    return r;
}

static FILTER(f_sort)           /* reverse, case_sensitive, attribute */
{
    struct val items = val_to_list(vm, in);
    size_t n = items.l->n, *order = vm_array(vm, n + 1, sizeof *order);
    struct val *keys = vm_array(vm, n + 1, sizeof *keys);
    for (size_t i = 0; i < n; i++)
        keys[i] = sort_key(vm, items.l->v[i], a[2], arg_bool(a[1], 0));
    val_sort(vm, keys, n, arg_bool(a[0], 0), 0, order);
    return picked(vm, items.l->v, order, n);
}

static int is_text(struct val v, const char *text)
{
    return v.kind == K_STR && v.s->size == strlen(text) && !memcmp(v.s->data, text, v.s->size);
}

static FILTER(f_dictsort)       /* case_sensitive, by, reverse */
{
    struct val by = arg_str(vm, a[1], "key");
    if (in.kind == K_UNDEF)
        val_fail_undef(vm, in);
    if (in.kind != K_DICT)
        fail(vm, "dictsort: expected a mapping, got '%s'", val_type(in));
    if (!is_text(by, "key") && !is_text(by, "value"))
        fail(vm, "You can only sort by either \"key\" or \"value\"");
    struct val items = val_to_list(vm, (struct val){ .kind = K_VIEW, .flag = VIEW_ITEMS, .d = in.d });
    size_t n = items.l->n, *order = vm_array(vm, n + 1, sizeof *order);
    struct val *keys = vm_array(vm, n + 1, sizeof *keys), none = val_missing();
    for (size_t i = 0; i < n; i++)
        keys[i] = key_of(vm, items.l->v[i].l->v[is_text(by, "value")], none, none, arg_bool(a[0], 0));
    val_sort(vm, keys, n, arg_bool(a[2], 0), 0, order);
    return picked(vm, items.l->v, order, n);
}

static FILTER(f_groupby)        /* attribute, default, case_sensitive */
{
    struct val items = val_to_list(vm, in), groups = val_list(vm, 0);
    int case_sensitive = arg_bool(a[2], 0);
    size_t n = items.l->n, *order = vm_array(vm, n + 1, sizeof *order);
    struct val *keys = vm_array(vm, n + 1, sizeof *keys), group = val_missing();
    for (size_t i = 0; i < n; i++)
        keys[i] = key_of(vm, items.l->v[i], a[0], a[1], case_sensitive);
    val_sort(vm, keys, n, 0, 0, order);
    for (size_t i = 0; i < n; i++) {
        struct val item = items.l->v[order[i]];
        if (!i || !val_equal(vm, keys[order[i]], keys[order[i - 1]])) {
            group = val_list(vm, 2);
            group.kind = K_TUPLE;
            group.flag = 1;
            /* in the spelling of the first item */
            list_push(vm, group.l, key_of(vm, item, a[0], a[1], 1));
            list_push(vm, group.l, val_list(vm, 0));
            list_push(vm, groups.l, group);
        }
        list_push(vm, group.l->v[1].l, item);
    }
    return groups;
}

static FILTER(f_minmax)         /* case_sensitive, attribute; variant 1: max */
{
    struct val items = val_to_list(vm, in), best = val_missing(), best_key = best;
    if (!items.l->n)
        return val_hint(vm, "No aggregated item, sequence was empty.");
    for (size_t i = 0; i < items.l->n; i++) {
        struct val key = key_of(vm, items.l->v[i], a[1], val_missing(), arg_bool(a[0], 0));
        int better = i == 0 || (variant ? val_compare(vm, key, best_key, ">") == 1
                                        : val_compare(vm, key, best_key, "<") == -1);
        if (better) {
            best = items.l->v[i];
            best_key = key;
        }
    }
    return best;
}

/* ---- whole sequences */

static FILTER(f_length)
{
    size_t n;
    if (in.kind == K_LOOP)
        return op_getattr(vm, in, val_cstr(vm, "length").s);
    if (!val_len(in, &n))
        fail(vm, "object of type '%s' has no len()", val_type(in));
    return val_int((int64_t)n);
}

static FILTER(f_first)
{
    struct iter it;
    struct val item;
    iter_init(vm, &it, in);
    return iter_next(vm, &it, &item) ? item : val_hint(vm, "No first item, sequence was empty.");
}

static FILTER(f_last)
{
    size_t n;
    if (!iter_can(in) || !val_len(in, &n))
        fail(vm, "'%s' object is not reversible", val_type(in));
    if (!n)
        return val_hint(vm, "No last item, sequence was empty.");
    if (in.kind == K_DICT || in.kind == K_VIEW) {
        struct val items = val_to_list(vm, in);
        return items.l->v[n - 1];
    }
    return op_getitem(vm, in, val_int(-1));
}

static FILTER(f_list) { return val_to_list(vm, in); }

static FILTER(f_sum)            /* arguments: attribute, start */
{
    struct iter it;
    struct val item, total = a[1].kind == K_MISSING ? val_int(0) : a[1];
    if (total.kind == K_STR)
        fail(vm, "sum() can't sum strings");
    iter_init(vm, &it, in);
    while (iter_next(vm, &it, &item))
        total = op_binary(vm, OP_ADD, total, arg_given(a[0]) ? op_path(vm, item, a[0], val_missing()) : item);
    return total;
}

static FILTER(f_join)           /* d, attribute */
{
    struct val items = val_to_list(vm, in), d = a[0].kind == K_MISSING ? val_cstr(vm, "") : a[0];
    struct sb b = { .vm = vm };
    int safe = vm->autoescape && d.kind == K_STR && d.flag;
    for (size_t i = 0; i < items.l->n; i++) {
        if (arg_given(a[1]))
            items.l->v[i] = op_path(vm, items.l->v[i], a[1], val_missing());
        safe |= vm->autoescape && items.l->v[i].kind == K_STR && items.l->v[i].flag;
    }
    d = safe ? val_escape(vm, d) : val_str(vm, d);
    for (size_t i = 0; i < items.l->n; i++) {
        if (i)
            sb_str(&b, d);
        sb_str(&b, safe ? val_escape(vm, items.l->v[i]) : val_str(vm, items.l->v[i]));
    }
    return val_safe(sb_done(&b), safe);
}

/* ---- generators */

static struct val new_gen(struct vm *vm, const char *type, int (*next)(struct vm *, struct gen *, struct val *),
                          struct val over)
{
    struct gen *g = vm_alloc(vm, sizeof *g);
    *g = (struct gen){ .type = type, .next = next, .attr = val_missing(), .fallback = val_missing() };
    iter_init(vm, &g->src, over);
    return VAL(K_GEN, g, g);
}

static int next_plain(struct vm *vm, struct gen *g, struct val *out) { return iter_next(vm, &g->src, out); }

static FILTER(f_reverse)
{
    if (in.kind == K_STR)
        return op_slice(vm, in, val_none(), val_none(), val_int(-1));
    if (in.kind != K_GEN && !iter_can(in))
        fail(vm, "argument must be iterable");
    struct val items = val_to_list(vm, in);
    for (size_t i = 0; i < items.l->n / 2; i++) {
        struct val t = items.l->v[i];
        items.l->v[i] = items.l->v[items.l->n - 1 - i];
        items.l->v[items.l->n - 1 - i] = t;
    }
    return in.kind == K_GEN ? items : new_gen(vm, "reversed", next_plain, items);
}

static FILTER(f_items)
{
    if (in.kind != K_UNDEF && in.kind != K_DICT)
        fail(vm, "Can only get item pairs from a mapping.");
    return new_gen(vm, "generator", next_plain, in.kind == K_UNDEF
                   ? in : (struct val){ .kind = K_VIEW, .flag = VIEW_ITEMS, .d = in.d });
}

static FILTER(f_batch)          /* linecount, fill_with */
{
    struct val items = val_to_list(vm, in), rows = val_list(vm, 0);
    int64_t size = arg_int(vm, a[0], 0);
    for (size_t i = 0; i < items.l->n; i++) {
        if (!rows.l->n)
            list_push(vm, rows.l, val_list(vm, 0));
        if ((int64_t)rows.l->v[rows.l->n - 1].l->n == size)
            list_push(vm, rows.l, val_list(vm, 0));
        list_push(vm, rows.l->v[rows.l->n - 1].l, items.l->v[i]);
    }
    while (rows.l->n && arg_given(a[1]) && (int64_t)rows.l->v[rows.l->n - 1].l->n < size) {
        list_push(vm, rows.l->v[rows.l->n - 1].l, a[1]);
        vm_step(vm, 1);
    }
    return new_gen(vm, "generator", next_plain, rows);
}

static FILTER(f_slice)          /* slices, fill_with */
{
    struct val items = val_to_list(vm, in), rows = val_list(vm, 0);
    int64_t n_rows = arg_int(vm, a[0], 0);
    if (n_rows == 0)
        fail(vm, "integer division or modulo by zero");
    size_t n = items.l->n, at = 0;
    for (int64_t row = 0; row < n_rows; row++) {
        size_t extra = (uint64_t)row < n % (uint64_t)n_rows, size = n / (size_t)n_rows + extra;
        struct val part = val_list(vm, size);
        vm_step(vm, 1);
        for (size_t i = 0; i < size; i++)
            list_push(vm, part.l, items.l->v[at++]);
        if (!extra && arg_given(a[1]))
            list_push(vm, part.l, a[1]);
        list_push(vm, rows.l, part);
    }
    return new_gen(vm, "generator", next_plain, rows);
}

static int next_unique(struct vm *vm, struct gen *g, struct val *out)
{
    while (iter_next(vm, &g->src, out)) {
        struct val key = key_of(vm, *out, g->attr, val_missing(), g->keep);
        if (dict_find(vm, g->seen, key))
            continue;
        dict_set(vm, g->seen, key, val_none());
        return 1;
    }
    return 0;
}

static FILTER(f_unique)         /* case_sensitive, attribute */
{
    struct val r = new_gen(vm, "generator", next_unique, in);
    r.g->keep = arg_bool(a[0], 0);
    r.g->attr = a[1];
    r.g->seen = val_dict(vm).d;
    return r;
}

/* The arguments after the first n, copied: they outlive the call. */
static struct args *keep_args(struct vm *vm, const struct args *args, int n)
{
    struct args *k = vm_alloc(vm, sizeof *k);
    k->n_pos = args->n_pos - n;
    k->n_kw = args->n_kw;
    k->pos = vm_array(vm, (size_t)k->n_pos + 1, sizeof *k->pos);
    k->kw = vm_array(vm, (size_t)k->n_kw + 1, sizeof *k->kw);
    if (k->n_pos)
        memcpy(k->pos, args->pos + n, (size_t)k->n_pos * sizeof *k->pos);
    if (k->n_kw)
        memcpy(k->kw, args->kw, (size_t)k->n_kw * sizeof *k->kw);
    return k;
}

static int next_map(struct vm *vm, struct gen *g, struct val *out)
{
    struct val item;
    if (!iter_next(vm, &g->src, &item))
        return 0;
    *out = g->fn ? builtin_call(vm, g->fn, item, g->args) : op_path(vm, item, g->attr, g->fallback);
    return 1;
}

static FILTER(f_map)            /* filter name and its arguments, or attribute= and default= */
{
    struct val r = new_gen(vm, "generator", next_map, val_truth(in) ? in : val_list(vm, 0));
    if (!val_truth(in))
        return r;
    if (!args->n_pos && args->n_kw) {
        for (int i = 0; i < args->n_kw; i++) {
            struct val name = VAL(K_STR, s, args->kw[i].name);
            if (is_text(name, "attribute"))
                r.g->attr = args->kw[i].v;
            else if (is_text(name, "default"))
                r.g->fallback = args->kw[i].v;
            else
                fail(vm, "map: unexpected keyword argument '%.*s'", name.s->size > 100 ? 100 : (int)name.s->size,
                     name.s->data);
        }
    }
    if (r.g->attr.kind != K_MISSING)
        return r;
    if (!args->n_pos)
        fail(vm, "map requires a filter argument");
    struct val name = arg_str(vm, args->pos[0], NULL);
    r.g->fn = tmpl_filter(name.s->data, name.s->size);
    if (!r.g->fn)
        fail(vm, "No filter named '%.*s'.", name.s->size > 100 ? 100 : (int)name.s->size, name.s->data);
    r.g->args = keep_args(vm, args, 1);
    return r;
}

static int next_select(struct vm *vm, struct gen *g, struct val *out)
{
    while (iter_next(vm, &g->src, out)) {
        struct val v = g->attr.kind == K_MISSING ? *out : op_path(vm, *out, g->attr, val_missing());
        if (val_truth(g->fn ? builtin_call(vm, g->fn, v, g->args) : v) == g->keep)
            return 1;
    }
    return 0;
}

enum { REJECT = 0, SELECT = 1, BY_ATTR = 2 };

static FILTER(f_select)         /* [attribute,] test name and its arguments */
{
    struct val r = new_gen(vm, "generator", next_select, val_truth(in) ? in : val_list(vm, 0));
    int off = variant & BY_ATTR ? 1 : 0;
    r.g->keep = variant & SELECT;
    if (!val_truth(in))
        return r;
    if (off) {
        if (!args->n_pos)
            fail(vm, "Missing parameter for attribute name");
        r.g->attr = args->pos[0];
    }
    if (args->n_pos > off) {
        struct val name = arg_str(vm, args->pos[off], NULL);
        r.g->fn = tmpl_test(name.s->data, name.s->size);
        if (!r.g->fn)
            fail(vm, "No test named '%.*s'.", name.s->size > 100 ? 100 : (int)name.s->size, name.s->data);
        r.g->args = keep_args(vm, args, off + 1);
    }
    return r;
}

static const struct builtin filters[] = {
    { "batch", f_batch, "linecount fill_with", 1, 0 },
    { "count", f_length, "", 0, 0 },
    { "dictsort", f_dictsort, "case_sensitive by reverse", 0, 0 },
    { "first", f_first, "", 0, 0 },
    { "groupby", f_groupby, "attribute default case_sensitive", 1, 0 },
    { "items", f_items, "", 0, 0 },
    { "join", f_join, "d attribute", 0, 0 },
    { "last", f_last, "", 0, 0 },
    { "length", f_length, "", 0, 0 },
    { "list", f_list, "", 0, 0 },
    { "map", f_map, NULL, 0, 0 },
    { "max", f_minmax, "case_sensitive attribute", 0, 1 },
    { "min", f_minmax, "case_sensitive attribute", 0, 0 },
    { "reject", f_select, NULL, 0, REJECT },
    { "rejectattr", f_select, NULL, 0, REJECT | BY_ATTR },
    { "reverse", f_reverse, "", 0, 0 },
    { "select", f_select, NULL, 0, SELECT },
    { "selectattr", f_select, NULL, 0, SELECT | BY_ATTR },
    { "slice", f_slice, "slices fill_with", 1, 0 },
    { "sort", f_sort, "reverse case_sensitive attribute", 0, 0 },
    { "sum", f_sum, "attribute start", 0, 0 },
    { "unique", f_unique, "case_sensitive attribute", 0, 0 },
};

const struct builtin *tmpl_sequence_filter(const char *name, size_t size)
{
    return builtin_find(filters, sizeof filters / sizeof *filters, name, size);
}
