/* tmpl_parse.c - tokens to tree: recursive descent with the precedence of Jinja's grammar
 * (https://jinja.palletsprojects.com/en/3.1.x/templates/), from "a if b else c" down to filters. */
#include "libcommon/template/tmpl_ast.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_EXPR_DEPTH = 300, MAX_BLOCK_DEPTH = 100 };

struct parser {
    struct vm *vm;
    struct token *t;            /* the current one */
    struct dict *names;
    struct tmpl *special;       /* for the interned names of loop, caller, kwargs, varargs */
    struct nodes blocks;        /* every {% block %}, to refuse one name twice */
    struct node *macro[MAX_BLOCK_DEPTH + 2];    /* macros and call blocks around us: they note caller, kwargs, varargs */
    struct node *loop[MAX_BLOCK_DEPTH + 2];     /* loops around us, NULL where a macro's body begins */
    int n_macros, n_loops, block_depth;
};

static struct node *parse_expr(struct parser *p);
static struct node *parse_cond(struct parser *p, int with_if);
static struct node *parse_primary(struct parser *p);
static struct node *parse_postfix(struct parser *p, struct node *n);
static void parse_body(struct parser *p, struct nodes *body, const char *ends);

/* ---- tokens */

static const char *describe(const struct token *t)
{
    switch (t->kind) {
    case T_END: return "end of template";
    case T_DATA: return "template text";
    case T_PRINT_BEGIN: return "'{{'";
    case T_PRINT_END: return "'}}'";
    case T_BLOCK_BEGIN: return "'{%'";
    case T_BLOCK_END: return "'%}'";
    case T_STRING: return "a string";
    case T_INT: case T_FLOAT: return "a number";
    case T_NAME: return NULL;
    default: return t->op;
    }
}

static _Noreturn void unexpected(struct parser *p, const char *expected)
{
    const struct token *t = p->t;
    const char *text = describe(t);
    p->vm->line = t->line;
    if (!text)
        fail(p->vm, "expected %s, got '%.*s'", expected, t->value.s->size > 100 ? 100 : (int)t->value.s->size,
             t->value.s->data);
    fail(p->vm, "expected %s, got %s", expected, text);
}

static int is_op(const struct token *t, const char *op) { return t->kind == T_OP && !strcmp(t->op, op); }

static int is_name(const struct token *t, const char *name)
{
    return t->kind == T_NAME && t->value.s->size == strlen(name) && !memcmp(t->value.s->data, name, t->value.s->size);
}

static int skip_op(struct parser *p, const char *op)
{
    if (!is_op(p->t, op))
        return 0;
    p->t++;
    return 1;
}

static int skip_name(struct parser *p, const char *name)
{
    if (!is_name(p->t, name))
        return 0;
    p->t++;
    return 1;
}

static void expect_op(struct parser *p, const char *op)
{
    if (!skip_op(p, op)) {
        char text[8] = "'";
        strcat(strcat(text, op), "'");
        unexpected(p, text);
    }
}

static void expect_block_end(struct parser *p)
{
    if (p->t->kind != T_BLOCK_END)
        unexpected(p, "'%}'");
    p->t++;
}

/* One pointer for each name, so that variables are found by comparing pointers. */
static const struct str *intern(struct parser *p, struct val name)
{
    struct val *known = dict_find(p->vm, p->names, name);
    if (!known) {
        dict_set(p->vm, p->names, name, name);
        return name.s;
    }
    return known->s;
}

static const struct str *expect_name(struct parser *p, const char *expected)
{
    if (p->t->kind != T_NAME)
        unexpected(p, expected);
    return intern(p, p->t++->value);
}

/* ---- nodes */

static struct node *new_node(struct parser *p, enum node_kind kind, int line)
{
    struct node *n = vm_alloc(p->vm, sizeof *n);
    n->kind = (uint8_t)kind;
    n->line = line;
    n->depth = 1;
    return n;
}

/* n has child below it.  The evaluator recurses, so the depth is bounded here. */
static struct node *adopt(struct parser *p, struct node *n, const struct node *child)
{
    if (child && child->depth >= n->depth)
        n->depth = child->depth + 1;
    if (n->depth > MAX_EXPR_DEPTH) {
        p->vm->line = n->line;
        vm_fail(p->vm, ERR_LIMIT, "an expression is nested more than %d deep", MAX_EXPR_DEPTH);
    }
    return n;
}

static struct node *new_unary(struct parser *p, enum node_kind kind, int line, struct node *a)
{
    struct node *n = new_node(p, kind, line);
    n->a = a;
    return adopt(p, n, a);
}

static struct node *new_binary(struct parser *p, enum node_kind kind, int line, struct node *a, struct node *b)
{
    struct node *n = new_unary(p, kind, line, a);
    n->b = b;
    return adopt(p, n, b);
}

static void nodes_push(struct parser *p, struct nodes *l, struct node *n)
{
    if (l->n == l->cap) {
        int cap = l->cap ? l->cap * 2 : 4;
        struct node **v = vm_array(p->vm, (size_t)cap, sizeof *v);
        if (l->n)
            memcpy(v, l->v, (size_t)l->n * sizeof *v);
        l->v = v;
        l->cap = cap;
    }
    l->v[l->n++] = n;
}

/* ---- expressions */

static void note_special_name(struct parser *p, const struct str *name)
{
    for (int i = 0; i < p->n_macros; i++) {
        p->macro[i]->uses_caller |= name == p->special->caller;
        p->macro[i]->uses_kwargs |= name == p->special->kwargs;
        p->macro[i]->uses_varargs |= name == p->special->varargs;
    }
}

/* (args): positional, name=value, *list, **dict, in the order Python wants them. */
static void parse_args(struct parser *p, struct node *call)
{
    int cap = 4, stage = 0;             /* 0: positional, 1: keywords, 2: behind *x, 3: behind **x */
    call->args = vm_array(p->vm, (size_t)cap, sizeof *call->args);
    expect_op(p, "(");
    while (!is_op(p->t, ")")) {
        if (call->n_args) {
            expect_op(p, ",");
            if (is_op(p->t, ")"))
                break;
        }
        if (call->n_args == cap) {
            struct arg *more = vm_array(p->vm, (size_t)cap * 2, sizeof *more);
            memcpy(more, call->args, (size_t)cap * sizeof *more);
            call->args = more;
            cap *= 2;
        }
        struct arg *a = &call->args[call->n_args];
        *a = (struct arg){ 0 };
        if (is_op(p->t, "*") || is_op(p->t, "**")) {
            a->stars = (int)strlen(p->t++->op);
        } else if (p->t->kind == T_NAME && is_op(p->t + 1, "=")) {
            a->name = intern(p, p->t->value);
            p->t += 2;
        }
        int wants = a->stars ? a->stars + 1 : a->name ? 1 : 0;
        if ((wants == 0 && stage > 0) || (wants == 1 && stage > 2) || (wants > 1 && stage >= wants)) {
            p->vm->line = p->t->line;
            fail(p->vm, "invalid syntax for function call expression");
        }
        stage = wants > stage ? wants : stage;
        a->value = parse_expr(p);
        adopt(p, call, a->value);
        call->n_args++;
    }
    expect_op(p, ")");
}

static struct node *parse_tuple(struct parser *p, int with_if, const char *end_name, int parenthesised)
{
    int line = p->t->line, is_tuple = 0;
    struct nodes items = { 0 };
    for (;;) {
        if (items.n)
            expect_op(p, ",");
        if (p->t->kind == T_PRINT_END || p->t->kind == T_BLOCK_END || is_op(p->t, ")") ||
            (end_name && is_name(p->t, end_name)))
            break;
        nodes_push(p, &items, parse_cond(p, with_if));
        if (!is_op(p->t, ","))
            break;
        is_tuple = 1;
    }
    if (!is_tuple && items.n)
        return items.v[0];
    if (!is_tuple && !parenthesised)
        unexpected(p, "an expression");
    struct node *n = new_node(p, N_TUPLE, line);
    n->items = items;
    for (int i = 0; i < items.n; i++)
        adopt(p, n, items.v[i]);
    return n;
}

static struct node *parse_list(struct parser *p)
{
    struct node *n = new_node(p, N_LIST, p->t->line);
    expect_op(p, "[");
    while (!is_op(p->t, "]")) {
        if (n->items.n) {
            expect_op(p, ",");
            if (is_op(p->t, "]"))
                break;
        }
        nodes_push(p, &n->items, parse_expr(p));
        adopt(p, n, n->items.v[n->items.n - 1]);
    }
    expect_op(p, "]");
    return n;
}

static struct node *parse_dict(struct parser *p)
{
    struct node *n = new_node(p, N_DICT, p->t->line);   /* items: key, value, key, value */
    expect_op(p, "{");
    while (!is_op(p->t, "}")) {
        if (n->items.n) {
            expect_op(p, ",");
            if (is_op(p->t, "}"))
                break;
        }
        for (int i = 0; i < 2; i++) {
            nodes_push(p, &n->items, parse_expr(p));
            adopt(p, n, n->items.v[n->items.n - 1]);
            if (!i)
                expect_op(p, ":");
        }
    }
    expect_op(p, "}");
    return n;
}

static struct node *new_const(struct parser *p, struct val v, int line)
{
    struct node *n = new_node(p, N_CONST, line);
    n->value = v;
    return n;
}

static struct node *parse_name(struct parser *p)
{
    struct token *t = p->t++;
    static const struct { const char *name; uint8_t kind, value; } literals[] = {
        { "true", K_BOOL, 1 }, { "True", K_BOOL, 1 }, { "false", K_BOOL, 0 }, { "False", K_BOOL, 0 },
            { "none", K_NONE, 0 }, { "None", K_NONE, 0 },
    };
    for (size_t i = 0; i < sizeof literals / sizeof *literals; i++)
        if (is_name(t, literals[i].name))
            return new_const(p, VAL(literals[i].kind, i, literals[i].value), t->line);
    struct node *n = new_node(p, N_NAME, t->line);
    n->name = intern(p, t->value);
    note_special_name(p, n->name);
    return n;
}

static struct node *parse_primary(struct parser *p)
{
    struct token *t = p->t;
    if (t->kind == T_NAME)
        return parse_name(p);
    if (t->kind == T_STRING) {                  /* neighbours are one string */
        struct val v = t->value;
        for (p->t++; p->t->kind == T_STRING; p->t++)
            v = val_concat(p->vm, v, p->t->value);
        struct str *s = vm_alloc(p->vm, sizeof *s);
        *s = *v.s;
        s->grow = NULL;                         /* renders share the tree: they must not append to its strings */
        return new_const(p, VAL(K_STR, s, s), t->line);
    }
    if (t->kind == T_INT || t->kind == T_FLOAT) {
        p->t++;
        return new_const(p, t->value, t->line);
    }
    if (is_op(t, "(")) {
        p->t++;
        struct node *n = parse_tuple(p, 1, NULL, 1);
        expect_op(p, ")");
        return n;
    }
    if (is_op(t, "["))
        return parse_list(p);
    if (is_op(t, "{"))
        return parse_dict(p);
    unexpected(p, "an expression");
}

/* x[i], x[a:b:c] (a N_SLICE key: a, b, c, any of them NULL), x[i, j] (a tuple) */
static struct node *parse_index(struct parser *p)
{
    struct node *n, *first = is_op(p->t, ":") ? NULL : parse_expr(p);
    if (first && !is_op(p->t, ":"))
        return first;
    n = new_node(p, N_SLICE, p->t->line);
    n->a = first;
    struct node **rest[] = { &n->b, &n->c };
    for (int i = 0; i < 2 && skip_op(p, ":"); i++)
        if (!is_op(p->t, ":") && !is_op(p->t, "]") && !is_op(p->t, ","))
            *rest[i] = parse_expr(p);
    adopt(p, n, n->a);
    adopt(p, n, n->b);
    return adopt(p, n, n->c);
}

static struct node *parse_subscript(struct parser *p, struct node *base)
{
    int line = p->t->line;
    if (skip_op(p, ".")) {
        struct token *t = p->t++;
        if (t->kind == T_NAME) {
            struct node *n = new_unary(p, N_GETATTR, line, base);
            n->name = intern(p, t->value);
            return n;
        }
        if (t->kind == T_INT)
            return new_binary(p, N_GETITEM, line, base, new_const(p, t->value, t->line));
        p->t--;
        unexpected(p, "a name or a number");
    }
    expect_op(p, "[");
    struct nodes keys = { 0 };
    while (!is_op(p->t, "]")) {
        if (keys.n)
            expect_op(p, ",");
        nodes_push(p, &keys, parse_index(p));
    }
    expect_op(p, "]");
    struct node *key = keys.n == 1 ? keys.v[0] : new_node(p, N_TUPLE, line);
    if (keys.n != 1)
        key->items = keys;
    for (int i = 0; i < keys.n; i++) {
        if (keys.n > 1 && keys.v[i]->kind == N_SLICE) {
            p->vm->line = line;
            fail(p->vm, "a slice among several indexes is not supported");
        }
        adopt(p, key, keys.n > 1 ? keys.v[i] : NULL);
    }
    return new_binary(p, N_GETITEM, line, base, key);
}

static struct node *parse_call(struct parser *p, struct node *callee)
{
    struct node *n = new_unary(p, N_CALL, p->t->line, callee);
    parse_args(p, n);
    return n;
}

static struct node *parse_postfix(struct parser *p, struct node *n)
{
    for (;;) {
        if (is_op(p->t, ".") || is_op(p->t, "["))
            n = parse_subscript(p, n);
        else if (is_op(p->t, "("))
            n = parse_call(p, n);
        else
            return n;
    }
}

/* NAME or NAME.NAME of a filter or test */
static const struct str *dotted_name(struct parser *p, const char *expected)
{
    const struct str *first = expect_name(p, expected);
    struct val name = VAL(K_STR, s, first);
    while (skip_op(p, ".")) {
        name = val_concat(p->vm, name, val_cstr(p->vm, "."));
        name = val_concat(p->vm, name, VAL(K_STR, s, expect_name(p, expected)));
    }
    return name.s;
}

/* input | name(args); input is NULL in {% filter %} and {% set x | name %}: the text of the
 * block */
static struct node *parse_filter(struct parser *p, struct node *input)
{
    struct node *n = new_unary(p, N_FILTER, p->t->line, input);
    n->name = dotted_name(p, "the name of a filter");
    n->fn = tmpl_filter(n->name->data, n->name->size);
    if (is_op(p->t, "("))
        parse_args(p, n);
    return n;
}

static struct node *parse_test(struct parser *p, struct node *input)
{
    struct node *n = new_unary(p, N_TEST, p->t->line, input);
    n->negated = (uint8_t)skip_name(p, "not");
    n->name = dotted_name(p, "the name of a test");
    n->fn = tmpl_test(n->name->data, n->name->size);
    const struct token *t = p->t;
    int operand = t->kind == T_NAME || t->kind == T_STRING || t->kind == T_INT || t->kind == T_FLOAT ||
                  is_op(t, "[") || is_op(t, "{");
    if (is_op(t, "(")) {
        parse_args(p, n);
    } else if (operand && !is_name(t, "else") && !is_name(t, "or") && !is_name(t, "and")) {
        if (is_name(t, "is")) {
            p->vm->line = t->line;
            fail(p->vm, "You cannot chain multiple tests with is");
        }
        n->args = vm_array(p->vm, 1, sizeof *n->args);
        n->args[0].value = parse_postfix(p, parse_primary(p));
        n->n_args = 1;
        adopt(p, n, n->args[0].value);
    }
    return n;
}

static struct node *parse_unary(struct parser *p, int with_filter)
{
    struct node *n;
    int line = p->t->line;
    vm_enter(p->vm);
    if (is_op(p->t, "-") || is_op(p->t, "+")) {
        enum node_kind kind = is_op(p->t++, "-") ? N_NEG : N_POS;
        n = new_unary(p, kind, line, parse_unary(p, 0));
    } else {
        n = parse_primary(p);
    }
    n = parse_postfix(p, n);
    while (with_filter) {
        if (skip_op(p, "|"))
            n = parse_filter(p, n);
        else if (skip_name(p, "is"))
            n = parse_test(p, n);
        else if (is_op(p->t, "("))
            n = parse_call(p, n);
        else
            break;
    }
    vm_leave(p->vm);
    return n;
}

/* Binary operators from loose to tight; all of them associate to the left, ** included. */
static const struct { const char *op; enum op code; int level; } binary_ops[] = {
    { "+", OP_ADD, 0 }, { "-", OP_SUB, 0 }, { "~", OP_ADD, 1 }, { "*", OP_MUL, 2 }, { "/", OP_DIV, 2 },
        { "//", OP_FLOORDIV, 2 },
    { "%", OP_MOD, 2 }, { "**", OP_POW, 3 },
};
enum { LEVEL_CONCAT = 1, LEVEL_UNARY = 4 };

static struct node *parse_binary(struct parser *p, int level)
{
    if (level == LEVEL_UNARY)
        return parse_unary(p, 1);
    struct node *left = parse_binary(p, level + 1), *concat = NULL;
    for (;;) {
        int line = p->t->line, found = -1;
        for (int i = 0; i < (int)(sizeof binary_ops / sizeof *binary_ops); i++)
            if (binary_ops[i].level == level && is_op(p->t, binary_ops[i].op))
                found = i;
        if (found < 0)
            return left;
        p->t++;
        struct node *right = parse_binary(p, level + 1);
        if (level != LEVEL_CONCAT) {
            left = new_binary(p, N_BINARY, line, left, right);
            left->op = (uint8_t)binary_ops[found].code;
            continue;
        }
        if (!concat) {
            concat = new_unary(p, N_CONCAT, line, left);
            nodes_push(p, &concat->items, left);
            left = concat;
        }
        nodes_push(p, &concat->items, right);
        adopt(p, concat, right);
    }
}

static struct node *parse_compare(struct parser *p)
{
    static const struct { const char *op; enum op code; } compare[] = {
        { "==", OP_EQ }, { "!=", OP_NE }, { "<", OP_LT }, { "<=", OP_LE }, { ">", OP_GT }, { ">=", OP_GE },
    };
    struct node *n = NULL, *left = parse_binary(p, 0);
    uint8_t ops[64];
    for (;;) {
        int line = p->t->line, code = -1;
        for (size_t i = 0; i < sizeof compare / sizeof *compare; i++)
            if (is_op(p->t, compare[i].op))
                code = compare[i].code;
        if (is_name(p->t, "in"))
            code = OP_IN;
        if (is_name(p->t, "not") && is_name(p->t + 1, "in")) {
            p->t++;
            code = OP_NOTIN;
        }
        if (code < 0)
            break;
        p->t++;
        if (!n) {
            n = new_unary(p, N_COMPARE, line, left);
            nodes_push(p, &n->items, left);
        }
        if (n->items.n > (int)sizeof ops)
            vm_fail(p->vm, ERR_LIMIT, "more than %zu comparisons in a row", sizeof ops);
        ops[n->items.n - 1] = (uint8_t)code;
        nodes_push(p, &n->items, parse_binary(p, 0));
        adopt(p, n, n->items.v[n->items.n - 1]);
    }
    if (!n)
        return left;
    n->ops = vm_alloc(p->vm, sizeof ops);
    memcpy(n->ops, ops, (size_t)n->items.n - 1);
    return n;
}

static struct node *parse_not(struct parser *p)
{
    if (!is_name(p->t, "not"))
        return parse_compare(p);
    int line = p->t++->line;
    vm_enter(p->vm);
    struct node *n = new_unary(p, N_NOT, line, parse_not(p));
    vm_leave(p->vm);
    return n;
}

static struct node *parse_or(struct parser *p, int level)
{
    static const char *const words[] = { "or", "and" };
    if (level == 2)
        return parse_not(p);
    struct node *left = parse_or(p, level + 1);
    for (int line = p->t->line; skip_name(p, words[level]); line = p->t->line)
        left = new_binary(p, level ? N_AND : N_OR, line, left, parse_or(p, level + 1));
    return left;
}

/* a if b else c: a = condition, b = then, c = else or NULL */
static struct node *parse_cond(struct parser *p, int with_if)
{
    vm_enter(p->vm);
    struct node *value = parse_or(p, 0);
    for (int line = p->t->line; with_if && skip_name(p, "if"); line = p->t->line) {
        value = new_binary(p, N_COND, line, parse_or(p, 0), value);
        if (skip_name(p, "else")) {
            value->c = parse_cond(p, 1);
            adopt(p, value, value->c);
        }
    }
    vm_leave(p->vm);
    return value;
}

static struct node *parse_expr(struct parser *p) { return parse_cond(p, 1); }

/* ---- targets of assignments: a name, ns.name, or a tuple of them */

static struct node *parse_one_target(struct parser *p, int with_ns)
{
    int line = p->t->line;
    if (skip_op(p, "(")) {
        struct node *n = new_node(p, N_TUPLE, line);
        vm_enter(p->vm);
        while (!is_op(p->t, ")")) {
            nodes_push(p, &n->items, parse_one_target(p, with_ns));
            if (!skip_op(p, ","))
                break;
        }
        vm_leave(p->vm);
        int one = n->items.n == 1 && !is_op(p->t - 1, ",");
        expect_op(p, ")");
        return one ? n->items.v[0] : n;
    }
    if (p->t->kind != T_NAME)
        unexpected(p, "a name to assign to");
    static const char *const reserved[] = { "true", "false", "none", "True", "False", "None" };
    for (size_t i = 0; i < sizeof reserved / sizeof *reserved; i++)
        if (is_name(p->t, reserved[i]))
            unexpected(p, "a name to assign to");
    struct node *n = new_node(p, N_NAME, line);
    if (with_ns && is_op(p->t + 1, ".")) {
        n = new_node(p, N_NSREF, line);         /* a: the namespace; name: the attribute */
        n->a = new_node(p, N_NAME, line);
        n->a->name = expect_name(p, "a name");
        p->t++;
        n->name = expect_name(p, "a name");
        return n;
    }
    n->name = expect_name(p, "a name");
    return n;
}

static struct node *parse_target(struct parser *p, int with_ns, const char *end_name)
{
    int line = p->t->line;
    struct node *first = parse_one_target(p, with_ns);
    if (!is_op(p->t, ","))
        return first;
    struct node *n = new_node(p, N_TUPLE, line);
    nodes_push(p, &n->items, first);
    while (skip_op(p, ",")) {
        if (p->t->kind == T_BLOCK_END || is_op(p->t, "=") || (end_name && is_name(p->t, end_name)))
            break;
        nodes_push(p, &n->items, parse_one_target(p, with_ns));
    }
    return n;
}

/* ---- statements */

static struct node *parse_for(struct parser *p, int line)
{
    struct node *n = new_node(p, N_FOR, line);          /* a: target, b: what to walk, c: condition */
    n->a = parse_target(p, 0, "in");
    if (!skip_name(p, "in"))
        unexpected(p, "'in'");
    n->b = parse_tuple(p, 0, "recursive", 0);
    if (skip_name(p, "if"))
        n->c = parse_expr(p);
    n->recursive = (uint8_t)skip_name(p, "recursive");
    p->loop[p->n_loops++] = n;
    parse_body(p, &n->items, "endfor else");
    p->n_loops--;
    if (is_name(p->t++, "else")) {
        parse_body(p, &n->orelse, "endfor");
        p->t++;
    }
    return n;
}

static struct node *parse_if(struct parser *p, int line)
{
    struct node *first = new_node(p, N_IF, line), *n = first;   /* a: condition, b: the next elif */
    for (;;) {
        n->a = parse_tuple(p, 0, NULL, 0);
        parse_body(p, &n->items, "elif else endif");
        if (is_name(p->t, "elif")) {
            n->b = new_node(p, N_IF, p->t++->line);
            n = n->b;
            continue;
        }
        if (is_name(p->t++, "else")) {
            parse_body(p, &n->orelse, "endif");
            p->t++;
        }
        return first;
    }
}

static struct node *parse_set(struct parser *p, int line)
{
    struct node *n = new_node(p, N_SET, line);          /* a: target, b: value or filters of the block */
    n->a = parse_target(p, 1, NULL);
    if (skip_op(p, "=")) {
        n->b = parse_tuple(p, 1, NULL, 0);
        return n;
    }
    n->kind = N_SET_BLOCK;
    while (skip_op(p, "|"))
        n->b = parse_filter(p, n->b);
    parse_body(p, &n->items, "endset");
    p->t++;
    return n;
}

/* (a, b=1): n->args are the parameters, value NULL where there is no default */
static void parse_signature(struct parser *p, struct node *n)
{
    int defaults = 0, cap = 0;
    expect_op(p, "(");
    while (!is_op(p->t, ")")) {
        if (n->n_args) {
            expect_op(p, ",");
            if (is_op(p->t, ")"))
                unexpected(p, "the name of a parameter");
        }
        if (n->n_args == cap) {
            struct arg *more = vm_array(p->vm, (size_t)cap * 2 + 4, sizeof *more);
            if (cap)
                memcpy(more, n->args, (size_t)cap * sizeof *more);
            n->args = more;
            cap = cap * 2 + 4;
        }
        struct arg *a = &n->args[n->n_args++];
        a->name = expect_name(p, "the name of a parameter");
        if (skip_op(p, "=")) {
            a->value = parse_expr(p);
            defaults = 1;
        } else if (defaults) {
            p->vm->line = p->t->line;
            fail(p->vm, "non-default argument follows default argument");
        }
    }
    expect_op(p, ")");
}

/* The body of a macro, call or generation block: a scope of its own that break and continue
 * cannot leave. */
static void parse_macro_body(struct parser *p, struct node *n, const char *end)
{
    for (int i = 0; i < p->n_loops; i++)
        if (p->loop[i])
            p->loop[i]->captures = 1;
    p->macro[p->n_macros++] = n;
    p->loop[p->n_loops++] = NULL;
    parse_body(p, &n->items, end);
    p->n_loops--;
    p->n_macros--;
    p->t++;
    for (int i = 0; i < n->n_args; i++) {
        if (n->args[i].name == p->special->kwargs)
            n->uses_kwargs = 0;
        if (n->args[i].name == p->special->varargs)
            n->uses_varargs = 0;
        if (n->args[i].name == p->special->caller && n->uses_caller) {
            p->vm->line = n->line;
            if (!n->args[i].value)
                fail(p->vm, "the special \"caller\" argument must be omitted or be given a default");
            n->uses_caller = 0;
        }
    }
}

static struct node *parse_macro(struct parser *p, int line)
{
    struct node *n = new_node(p, N_MACRO, line);
    n->name = expect_name(p, "the name of a macro");
    parse_signature(p, n);
    parse_macro_body(p, n, "endmacro");
    return n;
}

static struct node *parse_call_block(struct parser *p, int line)
{
    struct node *n = new_node(p, N_CALL_BLOCK, line);   /* a: the call that gets the body as caller */
    if (is_op(p->t, "("))
        parse_signature(p, n);
    n->a = parse_expr(p);
    if (n->a->kind != N_CALL) {
        p->vm->line = line;
        fail(p->vm, "expected call");
    }
    parse_macro_body(p, n, "endcall");
    return n;
}

static struct node *parse_filter_block(struct parser *p, int line)
{
    struct node *n = new_node(p, N_FILTER_BLOCK, line);
    do
        n->b = parse_filter(p, n->b);
    while (skip_op(p, "|"));
    parse_body(p, &n->items, "endfilter");
    p->t++;
    return n;
}

static struct node *parse_with(struct parser *p, int line)
{
    struct node *n = new_node(p, N_WITH, line);         /* orelse: target, value, target, value */
    while (p->t->kind != T_BLOCK_END) {
        if (n->orelse.n)
            expect_op(p, ",");
        nodes_push(p, &n->orelse, parse_one_target(p, 0));
        expect_op(p, "=");
        nodes_push(p, &n->orelse, parse_expr(p));
    }
    parse_body(p, &n->items, "endwith");
    p->t++;
    return n;
}

static struct node *parse_block(struct parser *p, int line)
{
    struct node *n = new_node(p, N_BLOCK, line);
    n->name = expect_name(p, "the name of a block");
    n->recursive = (uint8_t)skip_name(p, "scoped");     /* scoped: sees the variables of the loop around it */
    if (skip_name(p, "required"))
        fail(p->vm, "a required block needs template inheritance, which is not supported");
    for (int i = 0; i < p->blocks.n; i++)
        if (p->blocks.v[i]->name == n->name)
            fail(p->vm, "block '%.*s' defined twice", n->name->size > 100 ? 100 : (int)n->name->size, n->name->data);
    nodes_push(p, &p->blocks, n);
    p->loop[p->n_loops++] = NULL;
    parse_body(p, &n->items, "endblock");
    p->n_loops--;
    p->t++;
    if (p->t->kind == T_NAME && intern(p, p->t->value) == n->name)
        p->t++;
    return n;
}

static struct node *parse_print(struct parser *p, int line)
{
    struct node *n = new_node(p, N_PRINT, line);
    while (p->t->kind != T_BLOCK_END) {
        if (n->items.n)
            expect_op(p, ",");
        nodes_push(p, &n->items, parse_expr(p));
    }
    return n;
}

static struct node *parse_autoescape(struct parser *p, int line)
{
    struct node *n = new_node(p, N_AUTOESCAPE, line);
    n->a = parse_expr(p);
    parse_body(p, &n->items, "endautoescape");
    p->t++;
    return n;
}

static struct node *parse_generation(struct parser *p, int line)
{
    struct node *n = new_node(p, N_SCOPE, line);
    parse_macro_body(p, n, "endgeneration");
    return n;
}

static struct node *parse_jump(struct parser *p, int line)
{
    enum node_kind kind = is_name(p->t - 1, "break") ? N_BREAK : N_CONTINUE;
    if (!p->n_loops || !p->loop[p->n_loops - 1])
        fail(p->vm, "'%s' outside of a loop", kind == N_BREAK ? "break" : "continue");
    return new_node(p, kind, line);
}

static _Noreturn struct node *parse_loader(struct parser *p, int line)
{
    const struct str *tag = p->t[-1].value.s;
    p->vm->line = line;
    vm_fail(p->vm, ERR_UNSUPPORTED, "'%.*s' is not supported: a chat template stands alone", (int)tag->size, tag->data);
}

static const struct { const char *tag; struct node *(*parse)(struct parser *p, int line); } statements[] = {
    { "for", parse_for }, { "if", parse_if }, { "set", parse_set }, { "macro", parse_macro },
        { "call", parse_call_block },
    { "filter", parse_filter_block }, { "with", parse_with }, { "block", parse_block }, { "print", parse_print },
    { "autoescape", parse_autoescape }, { "generation", parse_generation }, { "break", parse_jump },
    { "continue", parse_jump },
    { "include", parse_loader }, { "import", parse_loader }, { "from", parse_loader }, { "extends", parse_loader },
};

static int is_one_of(const struct token *t, const char *words)
{
    for (size_t n; t->kind == T_NAME && *words; words += n + (words[n] == ' ')) {
        n = strcspn(words, " ");
        if (t->value.s->size == n && !memcmp(t->value.s->data, words, n))
            return 1;
    }
    return 0;
}

static struct node *parse_statement(struct parser *p, const char *ends)
{
    struct token *t = p->t;
    if (t->kind != T_NAME)
        unexpected(p, "the name of a tag");
    p->vm->line = t->line;
    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++)
        if (is_name(t, statements[i].tag)) {
            p->t++;
            return statements[i].parse(p, t->line);
        }
    int n = t->value.s->size > 100 ? 100 : (int)t->value.s->size;
    if (ends)
        fail(p->vm, "unknown tag '%.*s'; expected one of: %s", n, t->value.s->data, ends);
    fail(p->vm, "unknown tag '%.*s'", n, t->value.s->data);
}

/* Statements up to {% one of ends; p->t is then that word.  ends NULL: to the end of the
 * template. */
static void parse_list_of(struct parser *p, struct nodes *body, const char *ends)
{
    int opened = p->t->line;
    while (p->t->kind != T_END) {
        struct token *t = p->t;
        if (t->kind == T_DATA) {
            struct node *n = new_node(p, N_DATA, t->line);
            n->value = t->value;
            nodes_push(p, body, n);
            p->t++;
        } else if (t->kind == T_PRINT_BEGIN) {
            struct node *n = new_node(p, N_PRINT, t->line);
            p->t++;
            nodes_push(p, &n->items, parse_tuple(p, 1, NULL, 0));
            if (p->t->kind != T_PRINT_END)
                unexpected(p, "'}}'");
            p->t++;
            nodes_push(p, body, n);
        } else {                                /* T_BLOCK_BEGIN: the lexer leaves nothing else */
            p->t++;
            if (ends && is_one_of(p->t, ends))
                return;
            nodes_push(p, body, parse_statement(p, ends));
            expect_block_end(p);
        }
    }
    if (ends) {
        p->vm->line = p->t->line;
        fail(p->vm, "the template ends; expected '{%% %s %%}' for the block of line %d", ends, opened);
    }
}

static void parse_body(struct parser *p, struct nodes *body, const char *ends)
{
    skip_op(p, ":");
    expect_block_end(p);
    if (++p->block_depth > MAX_BLOCK_DEPTH)
        vm_fail(p->vm, ERR_LIMIT, "blocks nested more than %d deep", MAX_BLOCK_DEPTH);
    parse_list_of(p, body, ends);
    p->block_depth--;
}

void tmpl_parse_tokens(struct vm *vm, struct token *tokens, struct tmpl *t)
{
    struct parser p = { .vm = vm, .t = tokens, .names = val_dict(vm).d };
    t->loop = intern(&p, val_cstr(vm, "loop"));
    t->caller = intern(&p, val_cstr(vm, "caller"));
    t->kwargs = intern(&p, val_cstr(vm, "kwargs"));
    t->varargs = intern(&p, val_cstr(vm, "varargs"));
    p.special = t;
    parse_list_of(&p, &t->body, NULL);
}
