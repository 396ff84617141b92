/* tmpl_parse.c - tokens to tree: the statements and bodies of a template. */
#include "libcommon/template/tmpl_parse.h"

static void parse_body(struct tmpl_parser *p, struct nodes *body, const char *ends);

/* ---- targets of assignments: a name, ns.name, or a tuple of them */

static struct tmpl_node *parse_one_target(struct tmpl_parser *p, int with_ns)
{
    int line = p->t->line;
    if (tmpl_skip_op(p, "(")) {
        struct tmpl_node *n = tmpl_new_node(p, N_TUPLE, line);
        vm_enter(p->vm);
        while (!token_is_op(p->t, ")")) {
            tmpl_nodes_push(p, &n->items, parse_one_target(p, with_ns));
            if (!tmpl_skip_op(p, ","))
                break;
        }
        vm_leave(p->vm);
        int one = n->items.n == 1 && !token_is_op(p->t - 1, ",");
        tmpl_expect_op(p, ")");
        return one ? n->items.v[0] : n;
    }
    if (p->t->kind != T_NAME)
        tmpl_unexpected(p, "a name to assign to");
    static const char *const reserved[] = { "true", "false", "none", "True", "False", "None" };
    for (size_t i = 0; i < sizeof reserved / sizeof *reserved; i++)
        if (token_is_name(p->t, reserved[i]))
            tmpl_unexpected(p, "a name to assign to");
    struct tmpl_node *n = tmpl_new_node(p, N_NAME, line);
    if (with_ns && token_is_op(p->t + 1, ".")) {
        n = tmpl_new_node(p, N_NSREF, line);         /* a: the namespace; name: the attribute */
        n->a = tmpl_new_node(p, N_NAME, line);
        n->a->name = tmpl_expect_name(p, "a name");
        p->t++;
        n->name = tmpl_expect_name(p, "a name");
        return n;
    }
    n->name = tmpl_expect_name(p, "a name");
    return n;
}

static struct tmpl_node *parse_target(struct tmpl_parser *p, int with_ns, const char *end_name)
{
    int line = p->t->line;
    struct tmpl_node *first = parse_one_target(p, with_ns);
    if (!token_is_op(p->t, ","))
        return first;
    struct tmpl_node *n = tmpl_new_node(p, N_TUPLE, line);
    tmpl_nodes_push(p, &n->items, first);
    while (tmpl_skip_op(p, ",")) {
        if (p->t->kind == T_BLOCK_END || token_is_op(p->t, "=") || (end_name && token_is_name(p->t, end_name)))
            break;
        tmpl_nodes_push(p, &n->items, parse_one_target(p, with_ns));
    }
    return n;
}

/* ---- statements */

static struct tmpl_node *parse_for(struct tmpl_parser *p, int line)
{
    /* a: target, b: iterable, c: condition */
    struct tmpl_node *n = tmpl_new_node(p, N_FOR, line);
    n->a = parse_target(p, 0, "in");
    if (!tmpl_skip_name(p, "in"))
        tmpl_unexpected(p, "'in'");
    n->b = tmpl_parse_tuple(p, 0, "recursive", 0);
    if (tmpl_skip_name(p, "if"))
        n->c = tmpl_parse_expr(p);
    n->recursive = (uint8_t)tmpl_skip_name(p, "recursive");
    p->loop[p->n_loops++] = n;
    parse_body(p, &n->items, "endfor else");
    p->n_loops--;
    if (token_is_name(p->t++, "else")) {
        parse_body(p, &n->orelse, "endfor");
        p->t++;
    }
    return n;
}

static struct tmpl_node *parse_if(struct tmpl_parser *p, int line)
{
    /* a: condition, b: the next elif. */
    struct tmpl_node *first = tmpl_new_node(p, N_IF, line), *n = first;
    for (;;) {
        n->a = tmpl_parse_tuple(p, 0, NULL, 0);
        parse_body(p, &n->items, "elif else endif");
        if (token_is_name(p->t, "elif")) {
            n->b = tmpl_new_node(p, N_IF, p->t++->line);
            n = n->b;
            continue;
        }
        if (token_is_name(p->t++, "else")) {
            parse_body(p, &n->orelse, "endif");
            p->t++;
        }
        return first;
    }
}

static struct tmpl_node *parse_set(struct tmpl_parser *p, int line)
{
    /* a: target, b: value or filters of the block. */
    struct tmpl_node *n = tmpl_new_node(p, N_SET, line);
    n->a = parse_target(p, 1, NULL);
    if (tmpl_skip_op(p, "=")) {
        n->b = tmpl_parse_tuple(p, 1, NULL, 0);
        return n;
    }
    n->kind = N_SET_BLOCK;
    while (tmpl_skip_op(p, "|"))
        n->b = tmpl_parse_filter(p, n->b);
    parse_body(p, &n->items, "endset");
    p->t++;
    return n;
}

/* (a, b=1): n->args are the parameters; value NULL: no default */
static void parse_signature(struct tmpl_parser *p, struct tmpl_node *n)
{
    int defaults = 0, cap = 0;
    tmpl_expect_op(p, "(");
    while (!token_is_op(p->t, ")")) {
        if (n->n_args) {
            tmpl_expect_op(p, ",");
            if (token_is_op(p->t, ")"))
                tmpl_unexpected(p, "the name of a parameter");
        }
        if (n->n_args == cap) {
            struct arg *more = vm_array(p->vm, (size_t)cap * 2 + 4, sizeof *more);
            if (cap)
                memcpy(more, n->args, (size_t)cap * sizeof *more);
            n->args = more;
            cap = cap * 2 + 4;
        }
        struct arg *a = &n->args[n->n_args++];
        a->name = tmpl_expect_name(p, "the name of a parameter");
        if (tmpl_skip_op(p, "=")) {
            a->value = tmpl_parse_expr(p);
            defaults = 1;
        } else if (defaults) {
            p->vm->line = p->t->line;
            fail(p->vm, "non-default argument follows default argument");
        }
    }
    tmpl_expect_op(p, ")");
}

/* Parse the body of a macro, call or generation block.  It is a scope of its own that break and
 * continue cannot leave. */
static void parse_macro_body(struct tmpl_parser *p, struct tmpl_node *n, const char *end)
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

static struct tmpl_node *parse_macro(struct tmpl_parser *p, int line)
{
    struct tmpl_node *n = tmpl_new_node(p, N_MACRO, line);
    n->name = tmpl_expect_name(p, "the name of a macro");
    parse_signature(p, n);
    parse_macro_body(p, n, "endmacro");
    return n;
}

static struct tmpl_node *parse_call_block(struct tmpl_parser *p, int line)
{
    /* a: the call that gets the body as caller. */
    struct tmpl_node *n = tmpl_new_node(p, N_CALL_BLOCK, line);
    if (token_is_op(p->t, "("))
        parse_signature(p, n);
    n->a = tmpl_parse_expr(p);
    if (n->a->kind != N_CALL) {
        p->vm->line = line;
        fail(p->vm, "expected call");
    }
    parse_macro_body(p, n, "endcall");
    return n;
}

static struct tmpl_node *parse_filter_block(struct tmpl_parser *p, int line)
{
    struct tmpl_node *n = tmpl_new_node(p, N_FILTER_BLOCK, line);
    do
        n->b = tmpl_parse_filter(p, n->b);
    while (tmpl_skip_op(p, "|"));
    parse_body(p, &n->items, "endfilter");
    p->t++;
    return n;
}

static struct tmpl_node *parse_with(struct tmpl_parser *p, int line)
{
    /* orelse: target, value, target, value. */
    struct tmpl_node *n = tmpl_new_node(p, N_WITH, line);
    while (p->t->kind != T_BLOCK_END) {
        if (n->orelse.n)
            tmpl_expect_op(p, ",");
        tmpl_nodes_push(p, &n->orelse, parse_one_target(p, 0));
        tmpl_expect_op(p, "=");
        tmpl_nodes_push(p, &n->orelse, tmpl_parse_expr(p));
    }
    parse_body(p, &n->items, "endwith");
    p->t++;
    return n;
}

static struct tmpl_node *parse_block(struct tmpl_parser *p, int line)
{
    struct tmpl_node *n = tmpl_new_node(p, N_BLOCK, line);
    n->name = tmpl_expect_name(p, "the name of a block");
    /* scoped: sees the variables of the loop around it. */
    n->recursive = (uint8_t)tmpl_skip_name(p, "scoped");
    if (tmpl_skip_name(p, "required"))
        fail(p->vm, "a required block needs template inheritance, which is not supported");
    for (int i = 0; i < p->blocks.n; i++)
        if (p->blocks.v[i]->name == n->name)
            fail(p->vm, "block '%.*s' defined twice", n->name->size > 100 ? 100 : (int)n->name->size, n->name->data);
    tmpl_nodes_push(p, &p->blocks, n);
    p->loop[p->n_loops++] = NULL;
    parse_body(p, &n->items, "endblock");
    p->n_loops--;
    p->t++;
    if (p->t->kind == T_NAME && tmpl_intern(p, p->t->value) == n->name)
        p->t++;
    return n;
}

static struct tmpl_node *parse_print(struct tmpl_parser *p, int line)
{
    struct tmpl_node *n = tmpl_new_node(p, N_PRINT, line);
    while (p->t->kind != T_BLOCK_END) {
        if (n->items.n)
            tmpl_expect_op(p, ",");
        tmpl_nodes_push(p, &n->items, tmpl_parse_expr(p));
    }
    return n;
}

static struct tmpl_node *parse_autoescape(struct tmpl_parser *p, int line)
{
    struct tmpl_node *n = tmpl_new_node(p, N_AUTOESCAPE, line);
    n->a = tmpl_parse_expr(p);
    parse_body(p, &n->items, "endautoescape");
    p->t++;
    return n;
}

static struct tmpl_node *parse_generation(struct tmpl_parser *p, int line)
{
    struct tmpl_node *n = tmpl_new_node(p, N_SCOPE, line);
    parse_macro_body(p, n, "endgeneration");
    return n;
}

static struct tmpl_node *parse_jump(struct tmpl_parser *p, int line)
{
    enum node_kind kind = token_is_name(p->t - 1, "break") ? N_BREAK : N_CONTINUE;
    if (!p->n_loops || !p->loop[p->n_loops - 1])
        fail(p->vm, "'%s' outside of a loop", kind == N_BREAK ? "break" : "continue");
    return tmpl_new_node(p, kind, line);
}

static _Noreturn struct tmpl_node *parse_loader(struct tmpl_parser *p, int line)
{
    const struct str *tag = p->t[-1].value.s;
    p->vm->line = line;
    vm_fail(p->vm, ERR_UNSUPPORTED, "'%.*s' is not supported: a chat template stands alone", (int)tag->size, tag->data);
}

static const struct { const char *tag; struct tmpl_node *(*parse)(struct tmpl_parser *p, int line); } statements[] = {
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

static struct tmpl_node *parse_statement(struct tmpl_parser *p, const char *ends)
{
    struct token *t = p->t;
    if (t->kind != T_NAME)
        tmpl_unexpected(p, "the name of a tag");
    p->vm->line = t->line;
    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++)
        if (token_is_name(t, statements[i].tag)) {
            p->t++;
            return statements[i].parse(p, t->line);
        }
    int n = t->value.s->size > 100 ? 100 : (int)t->value.s->size;
    if (ends)
        fail(p->vm, "unknown tag '%.*s'; expected one of: %s", n, t->value.s->data, ends);
    fail(p->vm, "unknown tag '%.*s'", n, t->value.s->data);
}

/* Read statements up to a {% followed by one of the words in ends; p->t is then that word.  ends
 * NULL: to the end of the template. */
static void parse_list_of(struct tmpl_parser *p, struct nodes *body, const char *ends)
{
    int opened = p->t->line;
    while (p->t->kind != T_END) {
        struct token *t = p->t;
        if (t->kind == T_DATA) {
            struct tmpl_node *n = tmpl_new_node(p, N_DATA, t->line);
            n->value = t->value;
            tmpl_nodes_push(p, body, n);
            p->t++;
        } else if (t->kind == T_PRINT_BEGIN) {
            struct tmpl_node *n = tmpl_new_node(p, N_PRINT, t->line);
            p->t++;
            tmpl_nodes_push(p, &n->items, tmpl_parse_tuple(p, 1, NULL, 0));
            if (p->t->kind != T_PRINT_END)
                tmpl_unexpected(p, "'}}'");
            p->t++;
            tmpl_nodes_push(p, body, n);
        } else {                                /* T_BLOCK_BEGIN: the lexer leaves nothing else */
            p->t++;
            if (ends && is_one_of(p->t, ends))
                return;
            tmpl_nodes_push(p, body, parse_statement(p, ends));
            tmpl_expect_block_end(p);
        }
    }
    if (ends) {
        p->vm->line = p->t->line;
        fail(p->vm, "the template ends; expected '{%% %s %%}' for the block of line %d", ends, opened);
    }
}

static void parse_body(struct tmpl_parser *p, struct nodes *body, const char *ends)
{
    tmpl_skip_op(p, ":");
    tmpl_expect_block_end(p);
    if (++p->block_depth > MAX_BLOCK_DEPTH)
        vm_fail(p->vm, ERR_LIMIT, "blocks nested more than %d deep", MAX_BLOCK_DEPTH);
    parse_list_of(p, body, ends);
    p->block_depth--;
}

void tmpl_parse_tokens(struct vm *vm, struct token *tokens, struct tmpl *t)
{
    struct tmpl_parser p = { .vm = vm, .t = tokens, .names = val_dict(vm).d };
    t->loop = tmpl_intern(&p, val_cstr(vm, "loop"));
    t->caller = tmpl_intern(&p, val_cstr(vm, "caller"));
    t->kwargs = tmpl_intern(&p, val_cstr(vm, "kwargs"));
    t->varargs = tmpl_intern(&p, val_cstr(vm, "varargs"));
    p.special = t;
    parse_list_of(&p, &t->body, NULL);
}
