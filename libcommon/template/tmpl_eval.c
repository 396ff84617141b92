/* tmpl_eval.c - walk the tree: expressions to values, statements to output. */
#include "libcommon/template/tmpl_ast.h"

#include <string.h>

/* Variables of one block.  A name is found in the innermost scope that has it, then among the
 * caller's variables, then among the global functions.  Macros keep the scope they were defined
 * in. */
struct tmpl_scope {
    struct tmpl_scope *parent;
    struct binding { const struct str *name; struct val v; } *b;
    int n, cap;
};

struct loop_state {
    const struct tmpl_node *node;
    struct tmpl_scope *scope;        /* the scope around the loop, in which loop(...) runs the loop again */
    struct iter it;
    struct val sequence, before, now, after, changed;
    int64_t index0;
    size_t length;
    int has_after, has_length, depth0;
};

enum flow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE };

static struct val eval(struct vm *vm, const struct tmpl_node *n);
static enum flow exec_all(struct vm *vm, const struct nodes *body);

/* ---- scopes */

static struct tmpl_scope *push_scope(struct vm *vm, struct tmpl_scope *parent)
{
    struct tmpl_scope *s = vm_alloc(vm, sizeof *s);
    s->parent = parent;
    return s;
}

static void bind(struct vm *vm, struct tmpl_scope *s, const struct str *name, struct val v)
{
    for (int i = 0; i < s->n; i++)
        if (s->b[i].name == name) {
            s->b[i].v = v;
            return;
        }
    vm_step(vm, (size_t)s->n / 16);
    if (s->n == s->cap) {
        int cap = s->cap ? s->cap * 2 : 4;
        struct binding *b = vm_array(vm, (size_t)cap, sizeof *b);
        if (s->n)
            memcpy(b, s->b, (size_t)s->n * sizeof *b);
        s->b = b;
        s->cap = cap;
    }
    s->b[s->n++] = (struct binding){ name, v };
}

static struct val lookup(struct vm *vm, const struct str *name)
{
    for (const struct tmpl_scope *s = vm->scope; s; s = s->parent) {
        for (int i = 0; i < s->n; i++)
            if (s->b[i].name == name)
                return s->b[i].v;
        vm_step(vm, (size_t)s->n / 16);
    }
    struct val key = VAL(K_STR, s, name), *found = dict_find(vm, vm->vars.d, key), v;
    if (found) {
        v = *found;
    } else {
        const struct builtin *fn = tmpl_global(name->data, name->size);
        if (!fn)
            return val_undef(vm, val_missing(), key);
        v = VAL(K_FUNC, fn, fn);
    }
    bind(vm, vm->root, name, v);                /* found faster the next time */
    return v;
}

static void deeper(struct vm *vm)
{
    vm_enter(vm);
    if (++vm->depth > vm->max_depth)
        vm_fail(vm, ERR_LIMIT, "calls and blocks nested more than %d deep", vm->max_depth);
}

static void shallower(struct vm *vm)
{
    vm->depth--;
    vm_leave(vm);
}

/* The output of a body, as a string. */
static struct val capture(struct vm *vm, const struct nodes *body, enum flow *flow)
{
    size_t from = vm->out.size;
    *flow = exec_all(vm, body);
    struct val text = val_text(vm, from < vm->out.size ? vm->out.data + from : "", vm->out.size - from);
    vm->out.size = from;
    return val_safe(text, vm->autoescape);
}

/* ---- assignment */

static void assign(struct vm *vm, const struct tmpl_node *target, struct val v)
{
    vm->line = target->line;
    if (target->kind == N_NAME) {
        bind(vm, vm->scope, target->name, v);
        return;
    }
    if (target->kind == N_NSREF) {
        struct val ns = lookup(vm, target->a->name);
        if (ns.kind != K_NS)
            fail(vm, "cannot assign attribute on non-namespace object");
        if (target->name->data[0] == '_')
            fail(vm, "a namespace takes no attribute that begins with an underscore: '%.*s'",
                target->name->size > 100 ? 100 : (int)target->name->size, target->name->data);
        dict_set(vm, ns.d, VAL(K_STR, s, target->name), v);
        return;
    }
    if (!iter_can(v))
        fail(vm, "cannot unpack non-iterable %s object", val_type(v));
    struct iter it;
    struct val item;
    iter_init(vm, &it, v);
    for (int i = 0; i < target->items.n; i++) {
        if (!iter_next(vm, &it, &item))
            fail(vm, "not enough values to unpack (expected %d, got %d)", target->items.n, i);
        assign(vm, target->items.v[i], item);
    }
    if (iter_next(vm, &it, &item))
        fail(vm, "too many values to unpack (expected %d)", target->items.n);
}

/* ---- calls */

enum { SMALL = 6 };
struct arg_space { struct val pos[SMALL]; struct kwarg kw[SMALL]; };

static void push_kwarg(struct vm *vm, struct args *a, int *cap, const struct str *name, struct val v)
{
    for (int i = 0; i < a->n_kw; i++)
        if (a->kw[i].name->size == name->size && !memcmp(a->kw[i].name->data, name->data, name->size))
            fail(vm, "got multiple values for keyword argument '%.*s'", name->size > 100 ? 100 : (int)name->size,
                 name->data);
    vm_step(vm, (size_t)a->n_kw / 8);
    if (a->n_kw == *cap) {
        struct kwarg *more = vm_array(vm, (size_t)*cap * 2, sizeof *more);
        memcpy(more, a->kw, (size_t)a->n_kw * sizeof *more);
        a->kw = more;
        *cap *= 2;
    }
    a->kw[a->n_kw++] = (struct kwarg){ name, v };
}

static void push_arg(struct vm *vm, struct args *a, int *cap, struct val v)
{
    if (a->n_pos == *cap) {
        struct val *more = vm_array(vm, (size_t)*cap * 2, sizeof *more);
        memcpy(more, a->pos, (size_t)a->n_pos * sizeof *more);
        a->pos = more;
        *cap *= 2;
    }
    a->pos[a->n_pos++] = v;
}

/* The arguments of a call, filter or test, valid as long as *space. */
static struct args eval_args(struct vm *vm, const struct tmpl_node *n, struct arg_space *space)
{
    struct args a = { space->pos, 0, 0, space->kw };
    int cap_pos = SMALL, cap_kw = SMALL;
    for (int i = 0; i < n->n_args; i++) {
        const struct arg *arg = &n->args[i];
        struct val v = eval(vm, arg->value), item;
        if (arg->stars == 1) {
            struct iter it;
            iter_init(vm, &it, v);
            while (iter_next(vm, &it, &item))
                push_arg(vm, &a, &cap_pos, item);
        } else if (arg->stars == 2) {
            if (v.kind != K_DICT)
                fail(vm, "argument after ** must be a mapping, not %s", val_type(v));
            for (size_t k = 0; k < v.d->n; k++)
                push_kwarg(vm, &a, &cap_kw, arg_str(vm, v.d->v[k].key, NULL).s, v.d->v[k].value);
        } else if (arg->name) {
            push_kwarg(vm, &a, &cap_kw, arg->name, v);
        } else {
            push_arg(vm, &a, &cap_pos, v);
        }
    }
    vm->line = n->line;
    return a;
}

/* Sort the arguments into the parameters of b; an argument without a parameter is an error. */
struct val builtin_call(struct vm *vm, const struct builtin *b, struct val in, const struct args *args)
{
    struct val a[MAX_PARAMS];
    vm_step(vm, 1);
    if (!b->params)
        return b->fn(vm, in, NULL, args, b->variant);
    int n = 0, used = 0;
    for (const char *p = b->params; *p; n++) {
        size_t len = strcspn(p, " ");
        a[n] = n < args->n_pos ? args->pos[n] : val_missing();
        for (int i = 0; i < args->n_kw; i++) {
            const struct str *name = args->kw[i].name;
            if (name->size != len || memcmp(name->data, p, len))
                continue;
            if (n < args->n_pos)
                fail(vm, "%s() got multiple values for argument '%.*s'", b->name, (int)len, p);
            a[n] = args->kw[i].v;
            used++;
        }
        if (n < b->n_required && a[n].kind == K_MISSING)
            fail(vm, "%s() misses the argument '%.*s'", b->name, (int)len, p);
        p += len + (p[len] == ' ');
    }
    if (args->n_pos > n)
        fail(vm, "%s() takes at most %d argument%s, got %d", b->name, n, n == 1 ? "" : "s", args->n_pos);
    if (used < args->n_kw)
        fail(vm, "%s() got an unexpected keyword argument", b->name);
    return b->fn(vm, in, a, args, b->variant);
}

static const struct kwarg *find_kwarg(const struct args *args, const struct str *name)
{
    for (int i = 0; i < args->n_kw; i++)
        if (args->kw[i].name == name || (args->kw[i].name->size == name->size &&
                                         !memcmp(args->kw[i].name->data, name->data, name->size)))
            return &args->kw[i];
    return NULL;
}

/* The keyword arguments that match no parameter. */
static struct val extra_kwargs(struct vm *vm, const struct tmpl_node *def, const struct args *args)
{
    struct val rest = val_dict(vm);
    vm_step(vm, (size_t)args->n_kw * (size_t)def->n_args / 8);
    for (int i = 0; i < args->n_kw; i++) {
        const struct str *name = args->kw[i].name;
        int taken = def->uses_caller && name->size == 6 && !memcmp(name->data, "caller", 6);
        for (int k = args->n_pos; k < def->n_args; k++)
            taken |= find_kwarg(args, def->args[k].name) == &args->kw[i];
        if (!taken)
            dict_set(vm, rest.d, VAL(K_STR, s, name), args->kw[i].v);
    }
    return rest;
}

static struct val call_macro(struct vm *vm, const struct macro *m, const struct args *args)
{
    const struct tmpl_node *def = m->def;
    int name_size = def->name ? def->name->size > 100 ? 100 : (int)def->name->size : 6;
    const char *name = def->name ? def->name->data : "caller";
    struct tmpl_scope *s = push_scope(vm, m->closure), *outer = vm->scope;
    int line = vm->line;
    struct val rest = extra_kwargs(vm, def, args);
    if (def->uses_kwargs)
        bind(vm, s, vm->t->kwargs, rest);
    else if (rest.d->n)
        fail(vm, "macro '%.*s' takes no keyword argument '%.*s'", name_size, name,
            rest.d->v[0].key.s->size > 100 ? 100 : (int)rest.d->v[0].key.s->size, rest.d->v[0].key.s->data);
    if (def->uses_varargs) {
        struct val more = val_list(vm, 0);
        more.kind = K_TUPLE;
        for (int i = def->n_args; i < args->n_pos; i++)
            list_push(vm, more.l, args->pos[i]);
        bind(vm, s, vm->t->varargs, more);
    } else if (args->n_pos > def->n_args) {
        fail(vm, "macro '%.*s' takes not more than %d argument(s)", name_size, name, def->n_args);
    }
    if (def->uses_caller) {
        const struct kwarg *caller = find_kwarg(args, vm->t->caller);
        bind(vm, s, vm->t->caller, caller ? caller->v : val_hint(vm, "No caller defined"));
    }
    deeper(vm);
    vm->scope = s;
    for (int i = 0; i < def->n_args; i++) {
        const struct kwarg *given = i < args->n_pos ? NULL : find_kwarg(args, def->args[i].name);
        struct val v = i < args->n_pos ? args->pos[i] : given ? given->v : def->args[i].value
                           ? eval(vm, def->args[i].value)
            : val_hint(vm, val_format(vm, "parameter '%.100s' was not provided", def->args[i].name->data).s->data);
        bind(vm, s, def->args[i].name, v);
    }
    enum flow flow;
    struct val text = capture(vm, &def->items, &flow);
    vm->scope = outer;
    vm->line = line;
    shallower(vm);
    return text;
}

static enum flow exec_for(struct vm *vm, const struct tmpl_node *n, struct val sequence, int depth0);

static struct val call_loop(struct vm *vm, const struct loop_state *l, const struct args *args)
{
    if (!l->node->recursive)
        fail(vm, "The loop must have the 'recursive' marker to be called recursively.");
    if (args->n_pos != 1 || args->n_kw)
        fail(vm, "loop() takes one argument: the sequence to walk");
    size_t from = vm->out.size;
    struct tmpl_scope *outer = vm->scope;
    vm->scope = l->scope;
    exec_for(vm, l->node, args->pos[0], l->depth0 + 1);
    vm->scope = outer;
    struct val text = val_text(vm, from < vm->out.size ? vm->out.data + from : "", vm->out.size - from);
    vm->out.size = from;
    return val_safe(text, vm->autoescape);
}

static struct val val_call(struct vm *vm, struct val f, const struct args *args)
{
    switch (f.kind) {
    case K_FUNC:   return builtin_call(vm, f.fn, val_missing(), args);
    case K_METHOD: return builtin_call(vm, f.m->fn, f.m->self, args);
    case K_MACRO:  return call_macro(vm, f.macro, args);
    case K_LOOP:   return call_loop(vm, f.loop, args);
    case K_JOINER:
        if (!f.j->used++)
            return val_text(vm, "", 0);
        return f.j->sep;
    case K_UNDEF:  val_fail_undef(vm, f);
    default:       fail(vm, "'%s' object is not callable", val_type(f));
    }
}

/* ---- expressions */

static struct val eval_sequence(struct vm *vm, const struct tmpl_node *n)
{
    struct val r = val_list(vm, (size_t)n->items.n);
    r.kind = n->kind == N_LIST ? K_LIST : K_TUPLE;
    for (int i = 0; i < n->items.n; i++)
        list_push(vm, r.l, eval(vm, n->items.v[i]));
    return r;
}

static struct val eval_dict(struct vm *vm, const struct tmpl_node *n)
{
    struct val r = val_dict(vm);
    for (int i = 0; i < n->items.n; i += 2) {
        struct val key = eval(vm, n->items.v[i]), value = eval(vm, n->items.v[i + 1]);
        dict_set(vm, r.d, key, value);
    }
    return r;
}

static struct val eval_getitem(struct vm *vm, const struct tmpl_node *n)
{
    struct val base = eval(vm, n->a);
    if (n->b->kind != N_SLICE) {
        struct val key = eval(vm, n->b);
        vm->line = n->line;
        return op_getitem(vm, base, key);
    }
    const struct tmpl_node *parts[] = { n->b->a, n->b->b, n->b->c };
    struct val v[3];
    for (int i = 0; i < 3; i++)
        v[i] = parts[i] ? eval(vm, parts[i]) : val_none();
    vm->line = n->line;
    return op_slice(vm, base, v[0], v[1], v[2]);
}

static struct val eval_call(struct vm *vm, const struct tmpl_node *n, struct val caller)
{
    struct arg_space space;
    struct val callee = eval(vm, n->a);
    struct args args = eval_args(vm, n, &space);
    int cap = args.kw == space.kw ? SMALL : args.n_kw;
    if (caller.kind == K_MACRO)
        push_kwarg(vm, &args, &cap, vm->t->caller, caller);
    return val_call(vm, callee, &args);
}

/* Apply a filter or test.  block_text: the text of a block, for a chain of filters that does not
 * start with an expression. */
static struct val eval_apply(struct vm *vm, const struct tmpl_node *n, struct val block_text)
{
    struct arg_space space;
    struct val in = !n->a ? block_text : n->a->kind == N_FILTER &&
                    block_text.kind == K_STR ? eval_apply(vm, n->a, block_text) : eval(vm, n->a);
    struct args args = eval_args(vm, n, &space);
    if (!n->fn)
        fail(vm, "No %s named '%.*s'.", n->kind == N_FILTER ? "filter" : "test",
             n->name->size > 100 ? 100 : (int)n->name->size, n->name->data);
    struct val r = builtin_call(vm, n->fn, in, &args);
    return n->negated ? val_bool(!val_truth(r)) : r;
}

static struct val eval_compare(struct vm *vm, const struct tmpl_node *n)
{
    struct val left = eval(vm, n->items.v[0]);
    for (int i = 1; i < n->items.n; i++) {
        struct val right = eval(vm, n->items.v[i]);
        vm->line = n->line;
        if (!op_compare(vm, n->ops[i - 1], left, right))
            return val_bool(0);
        left = right;
    }
    return val_bool(1);
}

static struct val eval_concat(struct vm *vm, const struct tmpl_node *n)
{
    struct val parts = val_list(vm, (size_t)n->items.n), r = val_text(vm, "", 0);
    int safe = 0;
    for (int i = 0; i < n->items.n; i++) {
        struct val v = eval(vm, n->items.v[i]);
        safe |= vm->autoescape && v.kind == K_STR && v.flag;
        list_push(vm, parts.l, v);
    }
    for (size_t i = 0; i < parts.l->n; i++)
        r = val_concat(vm, r, safe ? val_escape(vm, parts.l->v[i]) : val_str(vm, parts.l->v[i]));
    return val_safe(r, safe);
}

static struct val eval_cond(struct vm *vm, const struct tmpl_node *n)
{
    if (val_truth(eval(vm, n->a)))
        return eval(vm, n->b);
    if (n->c)
        return eval(vm, n->c);
    return val_hint(vm, "the inline if-expression evaluated to false and no else section was defined");
}

static struct val eval_inner(struct vm *vm, const struct tmpl_node *n)
{
    struct val a, b;
    switch (n->kind) {
    case N_CONST: return n->value;
    case N_NAME:  return lookup(vm, n->name);
    case N_LIST: case N_TUPLE: return eval_sequence(vm, n);
    case N_DICT:  return eval_dict(vm, n);
    case N_GETATTR:
        a = eval(vm, n->a);
        vm->line = n->line;
        return op_getattr(vm, a, n->name);
    case N_GETITEM: return eval_getitem(vm, n);
    case N_CALL:  return eval_call(vm, n, val_missing());
    case N_FILTER: case N_TEST: return eval_apply(vm, n, val_missing());
    case N_COND:  return eval_cond(vm, n);
    case N_AND: case N_OR:
        a = eval(vm, n->a);
        return val_truth(a) == (n->kind == N_AND) ? eval(vm, n->b) : a;
    case N_NOT:   return val_bool(!val_truth(eval(vm, n->a)));
    case N_NEG: case N_POS:
        a = eval(vm, n->a);
        vm->line = n->line;
        return op_negate(vm, a, n->kind == N_NEG);
    case N_BINARY:
        a = eval(vm, n->a);
        b = eval(vm, n->b);
        vm->line = n->line;
        return op_binary(vm, n->op, a, b);
    case N_CONCAT: return eval_concat(vm, n);
    default:       return eval_compare(vm, n);       /* N_COMPARE; slices and targets are never evaluated alone */
    }
}

static struct val eval(struct vm *vm, const struct tmpl_node *n)
{
    vm_step(vm, 1);
    vm_enter(vm);
    struct val v = eval_inner(vm, n);
    vm_leave(vm);
    return v;
}

/* ---- the loop variable */

static int loop_peek(struct vm *vm, struct loop_state *l)
{
    if (!l->has_after)
        l->has_after = iter_next(vm, &l->it, &l->after) ? 1 : -1;
    return l->has_after > 0;
}

static size_t loop_length(struct vm *vm, struct loop_state *l)
{
    if (!l->has_length) {
        l->has_length = 1;
        /* A generator: read all of it, then walk the items. */
        if (!val_len(l->sequence, &l->length)) {
            struct val rest = val_list(vm, 0), item;
            size_t seen = (size_t)l->index0 + 1 + (loop_peek(vm, l) ? 1 : 0);
            while (l->has_after > 0 && iter_next(vm, &l->it, &item))
                list_push(vm, rest.l, item);
            l->length = seen + rest.l->n;
            iter_init(vm, &l->it, rest);
        }
    }
    return l->length;
}

struct val loop_attr(struct vm *vm, struct loop_state *l, const char *name)
{
    static const char *const names[] = { "index", "index0", "first", "last", "length", "revindex", "revindex0", "depth",
                                         "depth0", "previtem",
        "nextitem" };
    int which = 0;
    while (which < (int)(sizeof names / sizeof *names) && strcmp(names[which], name))
        which++;
    switch (which) {
    case 0: return val_int(l->index0 + 1);
    case 1: return val_int(l->index0);
    case 2: return val_bool(l->index0 == 0);
    case 3: return val_bool(!loop_peek(vm, l));
    case 4: return val_int((int64_t)loop_length(vm, l));
    case 5: return val_int((int64_t)loop_length(vm, l) - l->index0);
    case 6: return val_int((int64_t)loop_length(vm, l) - l->index0 - 1);
    case 7: return val_int(l->depth0 + 1);
    case 8: return val_int(l->depth0);
    case 9: return l->index0 ? l->before : val_hint(vm, "there is no previous item");
    case 10: return loop_peek(vm, l) ? l->after : val_hint(vm, "there is no next item");
    }
    const struct builtin *fn = tmpl_method(VAL(K_LOOP, loop, l), name, strlen(name));
    if (!fn)
        return val_missing();
    struct bound_method *m = vm_alloc(vm, sizeof *m);
    *m = (struct bound_method){ VAL(K_LOOP, loop, l), fn };
    return VAL(K_METHOD, m, m);
}

struct val loop_cycle(struct vm *vm, struct loop_state *l, const struct args *args)
{
    if (!args->n_pos)
        fail(vm, "no items for cycling given");
    return args->pos[l->index0 % args->n_pos];
}

struct val loop_changed(struct vm *vm, struct loop_state *l, const struct args *args)
{
    struct val now = val_list(vm, (size_t)args->n_pos);
    for (int i = 0; i < args->n_pos; i++)
        list_push(vm, now.l, args->pos[i]);
    int changed = !val_equal(vm, now, l->changed);
    l->changed = now;
    return val_bool(changed);
}

struct val macro_attr(struct vm *vm, const struct macro *m, const char *name)
{
    if (!strcmp(name, "name"))
        return m->def->name ? VAL(K_STR, s, m->def->name) : val_none();
    if (!strcmp(name, "caller"))
        return val_bool(m->def->uses_caller);
    if (!strcmp(name, "catch_kwargs"))
        return val_bool(m->def->uses_kwargs);
    if (!strcmp(name, "catch_varargs"))
        return val_bool(m->def->uses_varargs);
    if (strcmp(name, "arguments"))
        return val_missing();
    struct val names = val_list(vm, (size_t)m->def->n_args);
    for (int i = 0; i < m->def->n_args; i++)
        list_push(vm, names.l, VAL(K_STR, s, m->def->args[i].name));
    names.kind = K_TUPLE;
    return names;
}

/* ---- statements */

/* Items that pass the condition of "for x in y if cond"; each is tried with x bound to it. */
static struct val filtered(struct vm *vm, const struct tmpl_node *n, struct val sequence)
{
    struct val kept = val_list(vm, 0), item;
    struct tmpl_scope *outer = vm->scope;
    struct iter it;
    vm->scope = push_scope(vm, outer);
    iter_init(vm, &it, sequence);
    while (iter_next(vm, &it, &item)) {
        vm->scope->n = 0;
        assign(vm, n->a, item);
        if (val_truth(eval(vm, n->c)))
            list_push(vm, kept.l, item);
    }
    vm->scope = outer;
    return kept;
}

static enum flow exec_for(struct vm *vm, const struct tmpl_node *n, struct val sequence, int depth0)
{
    struct tmpl_scope *outer = vm->scope, *inner = NULL;
    struct loop_state *l = vm_alloc(vm, sizeof *l);
    enum flow flow = FLOW_NEXT;
    int completed = 0;
    deeper(vm);
    vm->line = n->line;
    if (n->c)
        sequence = filtered(vm, n, sequence);
    *l = (struct loop_state){ .node = n, .scope = outer, .sequence = sequence, .index0 = -1, .depth0 = depth0 };
    iter_init(vm, &l->it, sequence);
    while (flow != FLOW_BREAK && loop_peek(vm, l)) {
        l->has_after = 0;
        l->before = l->now;
        l->now = l->after;
        l->index0++;
        if (!inner || n->captures)
            inner = push_scope(vm, outer);
        inner->n = 0;
        vm->scope = inner;
        bind(vm, inner, vm->t->loop, VAL(K_LOOP, loop, l));
        assign(vm, n->a, l->now);
        flow = exec_all(vm, &n->items);
        completed |= flow == FLOW_NEXT;
    }
    /* as in Jinja, also if every iteration ended by break or continue */
    if (!completed && n->orelse.n) {
        vm->scope = push_scope(vm, outer);
        exec_all(vm, &n->orelse);
    }
    vm->scope = outer;
    shallower(vm);
    return FLOW_NEXT;
}

static enum flow exec_if(struct vm *vm, const struct tmpl_node *n)
{
    for (; n; n = n->b) {
        vm_step(vm, 1);
        if (val_truth(eval(vm, n->a)))
            return exec_all(vm, &n->items);
        if (!n->b)
            return exec_all(vm, &n->orelse);
    }
    return FLOW_NEXT;
}

static void print(struct vm *vm, struct val v)
{
    struct val s = vm->autoescape ? val_escape(vm, v) : val_str(vm, v);
    vm_write(vm, s.s->data, s.s->size);
}

/* Statements in a scope of their own. */
static enum flow exec_scoped(struct vm *vm, const struct nodes *body, struct tmpl_scope *parent)
{
    struct tmpl_scope *outer = vm->scope;
    deeper(vm);
    vm->scope = push_scope(vm, parent);
    enum flow flow = exec_all(vm, body);
    vm->scope = outer;
    shallower(vm);
    return flow;
}

/* {% set x %}...{% endset %} and {% filter f %}...{% endfilter %}: the text of the body,
 * filtered. */
static enum flow exec_text_block(struct vm *vm, const struct tmpl_node *n)
{
    enum flow flow;
    struct tmpl_scope *outer = vm->scope;
    deeper(vm);
    vm->scope = push_scope(vm, outer);
    struct val text = capture(vm, &n->items, &flow);
    vm->scope = outer;
    shallower(vm);
    if (flow != FLOW_NEXT)
        return flow;
    if (n->b)
        text = eval_apply(vm, n->b, text);
    if (n->kind == N_SET_BLOCK)
        assign(vm, n->a, text);
    else if (text.kind != K_STR)
        fail(vm, "a filter block must give a string, not %s", val_type(text));
    else
        print(vm, text);
    return FLOW_NEXT;
}

static enum flow exec_with(struct vm *vm, const struct tmpl_node *n)
{
    struct tmpl_scope *outer = vm->scope, *inner = push_scope(vm, outer);
    deeper(vm);
    for (int i = 0; i < n->orelse.n; i += 2) {          /* all values are evaluated in the outer scope */
        vm->scope = outer;
        struct val v = eval(vm, n->orelse.v[i + 1]);
        vm->scope = inner;
        assign(vm, n->orelse.v[i], v);
    }
    vm->scope = inner;
    enum flow flow = exec_all(vm, &n->items);
    vm->scope = outer;
    shallower(vm);
    return flow;
}

static struct val new_macro(struct vm *vm, const struct tmpl_node *n)
{
    struct macro *m = vm_alloc(vm, sizeof *m);
    *m = (struct macro){ n, vm->scope };
    return VAL(K_MACRO, macro, m);
}

static enum flow exec_autoescape(struct vm *vm, const struct tmpl_node *n)
{
    int was = vm->autoescape;
    vm->autoescape = val_truth(eval(vm, n->a));
    enum flow flow = exec_scoped(vm, &n->items, vm->scope);
    vm->autoescape = was;
    return flow;
}

static enum flow exec(struct vm *vm, const struct tmpl_node *n)
{
    vm_step(vm, 1);
    vm->line = n->line;
    switch (n->kind) {
    case N_DATA:      vm_write(vm, n->value.s->data, n->value.s->size); return FLOW_NEXT;
    case N_PRINT:
        for (int i = 0; i < n->items.n; i++)
            print(vm, eval(vm, n->items.v[i]));
        return FLOW_NEXT;
    case N_FOR:       return exec_for(vm, n, eval(vm, n->b), 0);
    case N_IF:        return exec_if(vm, n);
    case N_SET:       assign(vm, n->a, eval(vm, n->b)); return FLOW_NEXT;
    case N_SET_BLOCK: case N_FILTER_BLOCK: return exec_text_block(vm, n);
    case N_MACRO:     bind(vm, vm->scope, n->name, new_macro(vm, n)); return FLOW_NEXT;
    case N_CALL_BLOCK: print(vm, eval_call(vm, n->a, new_macro(vm, n))); return FLOW_NEXT;
    case N_WITH:      return exec_with(vm, n);
    case N_SCOPE:     exec_scoped(vm, &n->items, vm->scope); return FLOW_NEXT;
    case N_BLOCK:     exec_scoped(vm, &n->items, n->recursive ? vm->scope : vm->root); return FLOW_NEXT;
    case N_AUTOESCAPE: return exec_autoescape(vm, n);
    case N_BREAK:     return FLOW_BREAK;
    default:          return FLOW_CONTINUE;
    }
}

static enum flow exec_all(struct vm *vm, const struct nodes *body)
{
    enum flow flow = FLOW_NEXT;
    vm_enter(vm);
    for (int i = 0; i < body->n && flow == FLOW_NEXT; i++)
        flow = exec(vm, body->v[i]);
    vm_leave(vm);
    return flow;
}

void tmpl_exec(struct vm *vm)
{
    vm->root = vm->scope = push_scope(vm, NULL);
    exec_all(vm, &vm->t->body);
}
