/* tmpl_parse_expr.c - expressions of a template: recursive descent with the precedence of Jinja's
 * grammar (https://jinja.palletsprojects.com/en/3.1.x/templates/), from "a if b else c" down to
 * filters. */
#include "libcommon/template/tmpl_parse.h"

enum { MAX_EXPR_DEPTH = 300 };

static struct tmpl_node *parse_cond(struct tmpl_parser *p, int with_if);
static struct tmpl_node *parse_primary(struct tmpl_parser *p);
static struct tmpl_node *parse_postfix(struct tmpl_parser *p, struct tmpl_node *n);

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

_Noreturn void tmpl_unexpected(struct tmpl_parser *p, const char *expected)
{
    const struct token *t = p->t;
    const char *text = describe(t);
    p->vm->line = t->line;
    if (!text)
        fail(p->vm, "expected %s, got '%.*s'", expected, t->value.s->size > 100 ? 100 : (int)t->value.s->size,
             t->value.s->data);
    fail(p->vm, "expected %s, got %s", expected, text);
}

int tmpl_skip_op(struct tmpl_parser *p, const char *op)
{
    if (!token_is_op(p->t, op))
        return 0;
    p->t++;
    return 1;
}

int tmpl_skip_name(struct tmpl_parser *p, const char *name)
{
    if (!token_is_name(p->t, name))
        return 0;
    p->t++;
    return 1;
}

void tmpl_expect_op(struct tmpl_parser *p, const char *op)
{
    if (!tmpl_skip_op(p, op)) {
        char text[8] = "'";
        strcat(strcat(text, op), "'");
        tmpl_unexpected(p, text);
    }
}

void tmpl_expect_block_end(struct tmpl_parser *p)
{
    if (p->t->kind != T_BLOCK_END)
        tmpl_unexpected(p, "'%}'");
    p->t++;
}

/* One pointer for each name, so that variables are found by comparing pointers. */
const struct str *tmpl_intern(struct tmpl_parser *p, struct val name)
{
    struct val *known = dict_find(p->vm, p->names, name);
    if (!known) {
        dict_set(p->vm, p->names, name, name);
        return name.s;
    }
    return known->s;
}

const struct str *tmpl_expect_name(struct tmpl_parser *p, const char *expected)
{
    if (p->t->kind != T_NAME)
        tmpl_unexpected(p, expected);
    return tmpl_intern(p, p->t++->value);
}

/* ---- nodes */

struct tmpl_node *tmpl_new_node(struct tmpl_parser *p, enum node_kind kind, int line)
{
    struct tmpl_node *n = vm_alloc(p->vm, sizeof *n);
    n->kind = (uint8_t)kind;
    n->line = line;
    n->depth = 1;
    return n;
}

/* Account for child below n.  The evaluator recurses, so the depth is bounded here. */
static struct tmpl_node *adopt(struct tmpl_parser *p, struct tmpl_node *n, const struct tmpl_node *child)
{
    if (child && child->depth >= n->depth)
        n->depth = child->depth + 1;
    if (n->depth > MAX_EXPR_DEPTH) {
        p->vm->line = n->line;
        vm_fail(p->vm, ERR_LIMIT, "an expression is nested more than %d deep", MAX_EXPR_DEPTH);
    }
    return n;
}

static struct tmpl_node *new_unary(struct tmpl_parser *p, enum node_kind kind, int line, struct tmpl_node *a)
{
    struct tmpl_node *n = tmpl_new_node(p, kind, line);
    n->a = a;
    return adopt(p, n, a);
}

static struct tmpl_node *new_binary(struct tmpl_parser *p, enum node_kind kind, int line, struct tmpl_node *a,
                                    struct tmpl_node *b)
{
    struct tmpl_node *n = new_unary(p, kind, line, a);
    n->b = b;
    return adopt(p, n, b);
}

void tmpl_nodes_push(struct tmpl_parser *p, struct nodes *l, struct tmpl_node *n)
{
    if (l->n == l->cap) {
        int cap = l->cap ? l->cap * 2 : 4;
        struct tmpl_node **v = vm_array(p->vm, (size_t)cap, sizeof *v);
        if (l->n)
            memcpy(v, l->v, (size_t)l->n * sizeof *v);
        l->v = v;
        l->cap = cap;
    }
    l->v[l->n++] = n;
}

/* ---- expressions */

static void note_special_name(struct tmpl_parser *p, const struct str *name)
{
    for (int i = 0; i < p->n_macros; i++) {
        p->macro[i]->uses_caller |= name == p->special->caller;
        p->macro[i]->uses_kwargs |= name == p->special->kwargs;
        p->macro[i]->uses_varargs |= name == p->special->varargs;
    }
}

/* (args): positional, name=value, *list, **dict, in the order that Python requires. */
static void parse_args(struct tmpl_parser *p, struct tmpl_node *call)
{
    /* 0: positional, 1: keywords, 2: after *x, 3: after **x. */
    int cap = 4, stage = 0;
    call->args = vm_array(p->vm, (size_t)cap, sizeof *call->args);
    tmpl_expect_op(p, "(");
    while (!token_is_op(p->t, ")")) {
        if (call->n_args) {
            tmpl_expect_op(p, ",");
            if (token_is_op(p->t, ")"))
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
        if (token_is_op(p->t, "*") || token_is_op(p->t, "**")) {
            a->stars = (int)strlen(p->t++->op);
        } else if (p->t->kind == T_NAME && token_is_op(p->t + 1, "=")) {
            a->name = tmpl_intern(p, p->t->value);
            p->t += 2;
        }
        int wants = a->stars ? a->stars + 1 : a->name ? 1 : 0;
        if ((wants == 0 && stage > 0) || (wants == 1 && stage > 2) || (wants > 1 && stage >= wants)) {
            p->vm->line = p->t->line;
            fail(p->vm, "invalid syntax for function call expression");
        }
        stage = wants > stage ? wants : stage;
        a->value = tmpl_parse_expr(p);
        adopt(p, call, a->value);
        call->n_args++;
    }
    tmpl_expect_op(p, ")");
}

struct tmpl_node *tmpl_parse_tuple(struct tmpl_parser *p, int with_if, const char *end_name, int parenthesised)
{
    int line = p->t->line, is_tuple = 0;
    struct nodes items = { 0 };
    for (;;) {
        if (items.n)
            tmpl_expect_op(p, ",");
        if (p->t->kind == T_PRINT_END || p->t->kind == T_BLOCK_END || token_is_op(p->t, ")") ||
            (end_name && token_is_name(p->t, end_name)))
            break;
        tmpl_nodes_push(p, &items, parse_cond(p, with_if));
        if (!token_is_op(p->t, ","))
            break;
        is_tuple = 1;
    }
    if (!is_tuple && items.n)
        return items.v[0];
    if (!is_tuple && !parenthesised)
        tmpl_unexpected(p, "an expression");
    struct tmpl_node *n = tmpl_new_node(p, N_TUPLE, line);
    n->items = items;
    for (int i = 0; i < items.n; i++)
        adopt(p, n, items.v[i]);
    return n;
}

static struct tmpl_node *parse_list(struct tmpl_parser *p)
{
    struct tmpl_node *n = tmpl_new_node(p, N_LIST, p->t->line);
    tmpl_expect_op(p, "[");
    while (!token_is_op(p->t, "]")) {
        if (n->items.n) {
            tmpl_expect_op(p, ",");
            if (token_is_op(p->t, "]"))
                break;
        }
        tmpl_nodes_push(p, &n->items, tmpl_parse_expr(p));
        adopt(p, n, n->items.v[n->items.n - 1]);
    }
    tmpl_expect_op(p, "]");
    return n;
}

static struct tmpl_node *parse_dict(struct tmpl_parser *p)
{
    /* items: key, value, key, value. */
    struct tmpl_node *n = tmpl_new_node(p, N_DICT, p->t->line);
    tmpl_expect_op(p, "{");
    while (!token_is_op(p->t, "}")) {
        if (n->items.n) {
            tmpl_expect_op(p, ",");
            if (token_is_op(p->t, "}"))
                break;
        }
        for (int i = 0; i < 2; i++) {
            tmpl_nodes_push(p, &n->items, tmpl_parse_expr(p));
            adopt(p, n, n->items.v[n->items.n - 1]);
            if (!i)
                tmpl_expect_op(p, ":");
        }
    }
    tmpl_expect_op(p, "}");
    return n;
}

static struct tmpl_node *new_const(struct tmpl_parser *p, struct val v, int line)
{
    struct tmpl_node *n = tmpl_new_node(p, N_CONST, line);
    n->value = v;
    return n;
}

static struct tmpl_node *parse_name(struct tmpl_parser *p)
{
    struct token *t = p->t++;
    static const struct { const char *name; uint8_t kind, value; } literals[] = {
        { "true", K_BOOL, 1 }, { "True", K_BOOL, 1 }, { "false", K_BOOL, 0 }, { "False", K_BOOL, 0 },
            { "none", K_NONE, 0 }, { "None", K_NONE, 0 },
    };
    for (size_t i = 0; i < sizeof literals / sizeof *literals; i++)
        if (token_is_name(t, literals[i].name))
            return new_const(p, VAL(literals[i].kind, i, literals[i].value), t->line);
    struct tmpl_node *n = tmpl_new_node(p, N_NAME, t->line);
    n->name = tmpl_intern(p, t->value);
    note_special_name(p, n->name);
    return n;
}

static struct tmpl_node *parse_primary(struct tmpl_parser *p)
{
    struct token *t = p->t;
    if (t->kind == T_NAME)
        return parse_name(p);
    if (t->kind == T_STRING) {                  /* adjacent literals form one string */
        struct val v = t->value;
        for (p->t++; p->t->kind == T_STRING; p->t++)
            v = val_concat(p->vm, v, p->t->value);
        struct str *s = vm_alloc(p->vm, sizeof *s);
        *s = *v.s;
        /* Renders share the tree: they must not append to its strings. */
        s->grow = NULL;
        return new_const(p, VAL(K_STR, s, s), t->line);
    }
    if (t->kind == T_INT || t->kind == T_FLOAT) {
        p->t++;
        return new_const(p, t->value, t->line);
    }
    if (token_is_op(t, "(")) {
        p->t++;
        struct tmpl_node *n = tmpl_parse_tuple(p, 1, NULL, 1);
        tmpl_expect_op(p, ")");
        return n;
    }
    if (token_is_op(t, "["))
        return parse_list(p);
    if (token_is_op(t, "{"))
        return parse_dict(p);
    tmpl_unexpected(p, "an expression");
}

/* x[i], x[a:b:c] (a N_SLICE key: a, b, c, any of them NULL), x[i, j] (a tuple) */
static struct tmpl_node *parse_index(struct tmpl_parser *p)
{
    struct tmpl_node *n, *first = token_is_op(p->t, ":") ? NULL : tmpl_parse_expr(p);
    if (first && !token_is_op(p->t, ":"))
        return first;
    n = tmpl_new_node(p, N_SLICE, p->t->line);
    n->a = first;
    struct tmpl_node **rest[] = { &n->b, &n->c };
    for (int i = 0; i < 2 && tmpl_skip_op(p, ":"); i++)
        if (!token_is_op(p->t, ":") && !token_is_op(p->t, "]") && !token_is_op(p->t, ","))
            *rest[i] = tmpl_parse_expr(p);
    adopt(p, n, n->a);
    adopt(p, n, n->b);
    return adopt(p, n, n->c);
}

static struct tmpl_node *parse_subscript(struct tmpl_parser *p, struct tmpl_node *base)
{
    int line = p->t->line;
    if (tmpl_skip_op(p, ".")) {
        struct token *t = p->t++;
        if (t->kind == T_NAME) {
            struct tmpl_node *n = new_unary(p, N_GETATTR, line, base);
            n->name = tmpl_intern(p, t->value);
            return n;
        }
        if (t->kind == T_INT)
            return new_binary(p, N_GETITEM, line, base, new_const(p, t->value, t->line));
        p->t--;
        tmpl_unexpected(p, "a name or a number");
    }
    tmpl_expect_op(p, "[");
    struct nodes keys = { 0 };
    while (!token_is_op(p->t, "]")) {
        if (keys.n)
            tmpl_expect_op(p, ",");
        tmpl_nodes_push(p, &keys, parse_index(p));
    }
    tmpl_expect_op(p, "]");
    struct tmpl_node *key = keys.n == 1 ? keys.v[0] : tmpl_new_node(p, N_TUPLE, line);
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

static struct tmpl_node *parse_call(struct tmpl_parser *p, struct tmpl_node *callee)
{
    struct tmpl_node *n = new_unary(p, N_CALL, p->t->line, callee);
    parse_args(p, n);
    return n;
}

static struct tmpl_node *parse_postfix(struct tmpl_parser *p, struct tmpl_node *n)
{
    for (;;) {
        if (token_is_op(p->t, ".") || token_is_op(p->t, "["))
            n = parse_subscript(p, n);
        else if (token_is_op(p->t, "("))
            n = parse_call(p, n);
        else
            return n;
    }
}

/* NAME or NAME.NAME of a filter or test */
static const struct str *dotted_name(struct tmpl_parser *p, const char *expected)
{
    const struct str *first = tmpl_expect_name(p, expected);
    struct val name = VAL(K_STR, s, first);
    while (tmpl_skip_op(p, ".")) {
        name = val_concat(p->vm, name, val_cstr(p->vm, "."));
        name = val_concat(p->vm, name, VAL(K_STR, s, tmpl_expect_name(p, expected)));
    }
    return name.s;
}

/* input | name(args); input is NULL in {% filter %} and {% set x | name %}: the text of the
 * block */
struct tmpl_node *tmpl_parse_filter(struct tmpl_parser *p, struct tmpl_node *input)
{
    struct tmpl_node *n = new_unary(p, N_FILTER, p->t->line, input);
    n->name = dotted_name(p, "the name of a filter");
    n->fn = tmpl_filter(n->name->data, n->name->size);
    if (token_is_op(p->t, "("))
        parse_args(p, n);
    return n;
}

static struct tmpl_node *parse_test(struct tmpl_parser *p, struct tmpl_node *input)
{
    struct tmpl_node *n = new_unary(p, N_TEST, p->t->line, input);
    n->negated = (uint8_t)tmpl_skip_name(p, "not");
    n->name = dotted_name(p, "the name of a test");
    n->fn = tmpl_test(n->name->data, n->name->size);
    const struct token *t = p->t;
    int operand = t->kind == T_NAME || t->kind == T_STRING || t->kind == T_INT || t->kind == T_FLOAT ||
                  token_is_op(t, "[") || token_is_op(t, "{");
    if (token_is_op(t, "(")) {
        parse_args(p, n);
    } else if (operand && !token_is_name(t, "else") && !token_is_name(t, "or") && !token_is_name(t, "and")) {
        if (token_is_name(t, "is")) {
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

static struct tmpl_node *parse_unary(struct tmpl_parser *p, int with_filter)
{
    struct tmpl_node *n;
    int line = p->t->line;
    vm_enter(p->vm);
    if (token_is_op(p->t, "-") || token_is_op(p->t, "+")) {
        enum node_kind kind = token_is_op(p->t++, "-") ? N_NEG : N_POS;
        n = new_unary(p, kind, line, parse_unary(p, 0));
    } else {
        n = parse_primary(p);
    }
    n = parse_postfix(p, n);
    while (with_filter) {
        if (tmpl_skip_op(p, "|"))
            n = tmpl_parse_filter(p, n);
        else if (tmpl_skip_name(p, "is"))
            n = parse_test(p, n);
        else if (token_is_op(p->t, "("))
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

static struct tmpl_node *parse_binary(struct tmpl_parser *p, int level)
{
    if (level == LEVEL_UNARY)
        return parse_unary(p, 1);
    struct tmpl_node *left = parse_binary(p, level + 1), *concat = NULL;
    for (;;) {
        int line = p->t->line, found = -1;
        for (int i = 0; i < (int)(sizeof binary_ops / sizeof *binary_ops); i++)
            if (binary_ops[i].level == level && token_is_op(p->t, binary_ops[i].op))
                found = i;
        if (found < 0)
            return left;
        p->t++;
        struct tmpl_node *right = parse_binary(p, level + 1);
        if (level != LEVEL_CONCAT) {
            left = new_binary(p, N_BINARY, line, left, right);
            left->op = (uint8_t)binary_ops[found].code;
            continue;
        }
        if (!concat) {
            concat = new_unary(p, N_CONCAT, line, left);
            tmpl_nodes_push(p, &concat->items, left);
            left = concat;
        }
        tmpl_nodes_push(p, &concat->items, right);
        adopt(p, concat, right);
    }
}

static struct tmpl_node *parse_compare(struct tmpl_parser *p)
{
    static const struct { const char *op; enum op code; } compare[] = {
        { "==", OP_EQ }, { "!=", OP_NE }, { "<", OP_LT }, { "<=", OP_LE }, { ">", OP_GT }, { ">=", OP_GE },
    };
    struct tmpl_node *n = NULL, *left = parse_binary(p, 0);
    uint8_t ops[64];
    for (;;) {
        int line = p->t->line, code = -1;
        for (size_t i = 0; i < sizeof compare / sizeof *compare; i++)
            if (token_is_op(p->t, compare[i].op))
                code = compare[i].code;
        if (token_is_name(p->t, "in"))
            code = OP_IN;
        if (token_is_name(p->t, "not") && token_is_name(p->t + 1, "in")) {
            p->t++;
            code = OP_NOTIN;
        }
        if (code < 0)
            break;
        p->t++;
        if (!n) {
            n = new_unary(p, N_COMPARE, line, left);
            tmpl_nodes_push(p, &n->items, left);
        }
        if (n->items.n > (int)sizeof ops)
            vm_fail(p->vm, ERR_LIMIT, "more than %zu comparisons in a row", sizeof ops);
        ops[n->items.n - 1] = (uint8_t)code;
        tmpl_nodes_push(p, &n->items, parse_binary(p, 0));
        adopt(p, n, n->items.v[n->items.n - 1]);
    }
    if (!n)
        return left;
    n->ops = vm_alloc(p->vm, sizeof ops);
    memcpy(n->ops, ops, (size_t)n->items.n - 1);
    return n;
}

static struct tmpl_node *parse_not(struct tmpl_parser *p)
{
    if (!token_is_name(p->t, "not"))
        return parse_compare(p);
    int line = p->t++->line;
    vm_enter(p->vm);
    struct tmpl_node *n = new_unary(p, N_NOT, line, parse_not(p));
    vm_leave(p->vm);
    return n;
}

static struct tmpl_node *parse_or(struct tmpl_parser *p, int level)
{
    static const char *const words[] = { "or", "and" };
    if (level == 2)
        return parse_not(p);
    struct tmpl_node *left = parse_or(p, level + 1);
    for (int line = p->t->line; tmpl_skip_name(p, words[level]); line = p->t->line)
        left = new_binary(p, level ? N_AND : N_OR, line, left, parse_or(p, level + 1));
    return left;
}

/* a if b else c: a = condition, b = then, c = else or NULL */
static struct tmpl_node *parse_cond(struct tmpl_parser *p, int with_if)
{
    vm_enter(p->vm);
    struct tmpl_node *value = parse_or(p, 0);
    for (int line = p->t->line; with_if && tmpl_skip_name(p, "if"); line = p->t->line) {
        value = new_binary(p, N_COND, line, parse_or(p, 0), value);
        if (tmpl_skip_name(p, "else")) {
            value->c = parse_cond(p, 1);
            adopt(p, value, value->c);
        }
    }
    vm_leave(p->vm);
    return value;
}

struct tmpl_node *tmpl_parse_expr(struct tmpl_parser *p) { return parse_cond(p, 1); }
