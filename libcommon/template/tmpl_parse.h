/* tmpl_parse.h - the cursor, nodes and expressions, for the two files of the parser. */
#ifndef ZSE_TEMPLATE_TMPL_PARSE_H
#define ZSE_TEMPLATE_TMPL_PARSE_H

#include <string.h>

#include "libcommon/template/tmpl_ast.h"

enum { MAX_BLOCK_DEPTH = 100 };

struct tmpl_parser {
    struct vm *vm;
    struct token *t;            /* the current token */
    struct dict *names;
    struct tmpl *special;       /* for the interned names of loop, caller, kwargs, varargs */
    struct nodes blocks;        /* every {% block %}, to refuse a duplicate name */
    /* The enclosing macros and call blocks, which record uses of caller, kwargs, varargs. */
    struct tmpl_node *macro[MAX_BLOCK_DEPTH + 2];
    /* The enclosing loops; NULL marks the start of a macro's body. */
    struct tmpl_node *loop[MAX_BLOCK_DEPTH + 2];
    int n_macros, n_loops, block_depth;
};

/* Fail at the current token: "expected ..., got ...". */
_Noreturn void tmpl_unexpected(struct tmpl_parser *p, const char *expected);
/* If the current token is this one, skip it and return 1; else 0. */
int tmpl_skip_op(struct tmpl_parser *p, const char *op);
int tmpl_skip_name(struct tmpl_parser *p, const char *name);
void tmpl_expect_op(struct tmpl_parser *p, const char *op);
void tmpl_expect_block_end(struct tmpl_parser *p);
/* Intern a name: equal names are the same pointer. */
const struct str *tmpl_intern(struct tmpl_parser *p, struct val name);
const struct str *tmpl_expect_name(struct tmpl_parser *p, const char *expected);

struct tmpl_node *tmpl_new_node(struct tmpl_parser *p, enum node_kind kind, int line);
void tmpl_nodes_push(struct tmpl_parser *p, struct nodes *l, struct tmpl_node *n);

struct tmpl_node *tmpl_parse_expr(struct tmpl_parser *p);
/* An expression, or several with commas between them.  with_if: each may be "a if b else c";
 * end_name: a name that ends it, or NULL. */
struct tmpl_node *tmpl_parse_tuple(struct tmpl_parser *p, int with_if, const char *end_name, int parenthesised);
/* A filter after its |; input: NULL for a filter block. */
struct tmpl_node *tmpl_parse_filter(struct tmpl_parser *p, struct tmpl_node *input);

static inline int token_is_op(const struct token *t, const char *op) { return t->kind == T_OP && !strcmp(t->op, op); }

static inline int token_is_name(const struct token *t, const char *name)
{
    return t->kind == T_NAME && t->value.s->size == strlen(name) && !memcmp(t->value.s->data, name, t->value.s->size);
}

#endif
