/* tmpl_ast.h - private to the template engine: tokens and the syntax tree.  Both are allocated in
 * the arena of the parse. */
#ifndef ZSE_TEMPLATE_TMPL_AST_H
#define ZSE_TEMPLATE_TMPL_AST_H

#include "libcommon/template/tmpl_value.h"

enum token_kind { T_END, T_DATA, T_PRINT_BEGIN, T_PRINT_END, T_BLOCK_BEGIN, T_BLOCK_END, T_NAME, T_STRING, T_INT,
                  T_FLOAT, T_OP };
struct token {
    enum token_kind kind;
    int line;
    char op[3];                 /* T_OP: "+", "**", "==" */
    struct val value;           /* T_DATA, T_NAME, T_STRING: text; T_INT, T_FLOAT */
};

/* All tokens of the source, T_END last.  White space control has been applied: T_DATA is the text
 * to output. */
struct token *tmpl_lex(struct vm *vm, const char *source, size_t size);

enum node_kind {
    /* expressions */
    N_CONST, N_NAME, N_LIST, N_TUPLE, N_DICT, N_GETATTR, N_GETITEM, N_SLICE, N_CALL, N_FILTER, N_TEST, N_COND, N_AND,
        N_OR, N_NOT,
    N_NEG, N_POS, N_BINARY, N_CONCAT, N_COMPARE, N_NSREF,
    /* statements */
    N_DATA, N_PRINT, N_FOR, N_IF, N_SET, N_SET_BLOCK, N_MACRO, N_CALL_BLOCK, N_FILTER_BLOCK, N_WITH, N_SCOPE, N_BLOCK,
        N_AUTOESCAPE,
    N_BREAK, N_CONTINUE,
};

struct nodes { struct tmpl_node **v; int n, cap; };
/* f(x), f(name=x), f(*x), f(**x). */
struct arg { const struct str *name; int stars; struct tmpl_node *value; };

/* a, b and c are documented where the parser makes the node. */
struct tmpl_node {
    uint8_t kind, op;           /* op: enum op of N_BINARY */
    uint8_t recursive, negated;
    /* N_MACRO, N_CALL_BLOCK: the body uses these names. */
    uint8_t uses_caller, uses_kwargs, uses_varargs;
    /* N_FOR: the body defines macros, which keep the scope of their iteration. */
    uint8_t captures;
    int line, depth;            /* depth of the expression below */
    /* names, attributes, macros; points into the table of names: equal names are the same
     * pointer. */
    const struct str *name;
    struct val value;           /* N_CONST, N_DATA */
    struct tmpl_node *a, *b, *c;
    /* elements; statements of a body; N_COMPARE: operands, ops[] between them. */
    struct nodes items;
    struct nodes orelse;
    uint8_t *ops;
    struct arg *args;
    int n_args;
    const struct builtin *fn;   /* N_FILTER, N_TEST: NULL if the name is unknown */
};

struct tmpl {
    struct arena_chunk *chunks;
    char *name;
    struct nodes body;
    const struct str *loop, *caller, *kwargs, *varargs;     /* interned: the pointers used in the tree */
};

/* Tokens to tree; fills t->body and the names. */
void tmpl_parse_tokens(struct vm *vm, struct token *tokens, struct tmpl *t);

#endif
