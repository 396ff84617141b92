/* internal.h - a compiled grammar, for the files of this folder. */
#ifndef ZSE_GRAMMAR_INTERNAL_H
#define ZSE_GRAMMAR_INTERNAL_H

#include <pthread.h>

#include "libcommon/grammar/expr.h"
#include "libcommon/grammar/grammar.h"
#include "libcommon/grammar/id_map.h"
#include "libcommon/grammar/vocab.h"

/* A position in the grammar: the rest of the current terminal, and the stack below it. */
struct parse_thread { uint32_t e, stack; };

/* A set of all positions in the grammar at which a text may be, sorted and distinct; equal sets
 * have the same number. */
struct parse_config {
    uint32_t first, n;                  /* in threads */
    uint8_t accepting, first_known;
    uint32_t hash;
    /* cost of computing first_bytes and mask: see struct meter */
    uint32_t first_cost, mask_cost;
    uint64_t first_bytes[4];
    uint32_t call;                      /* the call to which used_first and used_next belong */
    /* used_first 1: in that call the cost of the first bytes was counted in full; bit b of
     * used_next: so was the cost of the step by byte b */
    uint8_t used_first; uint64_t used_next[4];
    /* owned: first [256] numbers, 1 + the config after each byte, 0: unknown; then [256] bytes, the
     * costs.  NULL: no entry is known. */
    uint32_t *next;
    uint32_t *mask;                     /* owned; NULL: not computed */
};

/* The effect of every token on one terminal, which does not depend on the stack below. */
struct terminal {
    /* cost: see struct meter; call: the last call that used this terminal */
    uint32_t e, cost, call;
    uint32_t n_ids, n_exits[2];         /* n_ids UINT32_MAX: bits */
    /* owned: tokens that lie within the terminal or end where it ends, as a list or a bit set. */
    uint32_t *ids;
    /* owned: nodes where the terminal may end inside tokens, in the vocabulary's tries `all` and
     * `rest`. */
    uint32_t *exits[2];
};

/* Characters of one general category. */
struct category_run { uint32_t lo, hi; uint8_t category; };

struct grammar {
    const struct grammar_vocab *v;      /* borrowed; may be NULL */
    struct grammar_options options;
    struct exprs x;
    /* The initial config of every answer. */
    struct parse_thread *root_thread; uint32_t n_root_threads;
    int root_accepting;
    struct exprs_mark compiled;         /* the size of x when compiling ended */
    uint32_t *rule; uint32_t n_rules, rule_room;        /* bodies */
    /* index + 1 of a rule that starts with itself, if grammar_finish() found one */
    int32_t left_recursive;
    /* expressions for one character inside a JSON string: with every escape allowed; with only the
     * necessary escapes; 0: not used */
    uint32_t string_char[2];
    /* The categories of all characters; NULL until a regular expression uses them. */
    struct category_run *categories; uint32_t n_categories, category_room;
    /* the mark on the stack below each array whose items must differ (distinct.h); 0: not used */
    uint32_t distinct;
    uint64_t compile_work;
    char *relaxed;                      /* owned; see grammar_relaxed() */
    atomic_size_t bytes;                /* grammar_bytes(), to be read without the lock */
    size_t least_bytes;                 /* bytes at the end of compiling, or after shrinking */
    struct grammar_budget *budget;      /* borrowed; NULL: none */

    pthread_mutex_t lock;               /* protects everything below, and x after compiling */
    uint32_t call;                      /* number of the call of a matcher that runs */
    uint32_t store;                     /* counts how often x was truncated to the compiled part */
    uint32_t generation;                /* counts how often configs were dropped */
    struct parse_config *config; uint32_t n_configs, config_room;
    struct parse_thread *thread; uint32_t n_threads, thread_room;
    uint32_t *config_table; uint32_t n_config_table;
    /* owned: tokens with a comma or a closing bracket, made when distinct.h needs them. */
    int32_t *delimited; uint32_t n_delimited;
    /* maps stack + 1 to 1 + the config after its top is popped */
    struct id_map after;
    struct id_map terminals;               /* maps expression + 1 to 1 + its terminal */
    struct terminal *terminal; uint32_t n_terminals, terminal_room;
    size_t cache_bytes;
    uint32_t n_masks;
    /* scratch */
    struct parse_thread *found; uint32_t n_found, found_room;
    struct parse_thread *work; uint32_t n_work, work_room;
    struct id_map seen;
    int found_end;
};

#define LEFT_RECURSION "a rule begins with itself (left recursion; write the repetition with * or at the end of the rule)"
struct grammar *grammar_new(const struct grammar_vocab *v, const struct grammar_options *o, struct err *e);
/* Reserve a number for a rule whose body is set later. */
int32_t grammar_rule(struct grammar *g);
/* Make a terminal; EXPR_NONE if no text matches it. */
uint32_t grammar_term(struct grammar *g, uint32_t regular);
/* Visit the first states of a regular expression, so that an expression with too many alternatives
 * fails at compile time. */
int grammar_probe(struct grammar *g, uint32_t regular, struct err *e);
/* Put the reasoning of options.thinker before *root. */
int grammar_after_thought(struct grammar *g, uint32_t *root, struct err *e);
/* Check and finish a complete grammar; rules that cannot end and left recursion are refused.
 * Returns 0; -1 with *e, and the caller still closes the grammar. */
int grammar_finish(struct grammar *g, uint32_t root, struct err *e);
/* 0, or -1 if compiling exceeded a limit. */
int grammar_check_work(const struct grammar *g, struct err *e);

/* In gbnf_lower.c: replace rules that do not contain themselves by regular expressions, in the
 * other rules and in *root. */
int grammar_lower(struct grammar *g, uint32_t *root, struct err *e);

/* In regex.c: compile a regular expression.  json: it matches the inside of a JSON string, with its
 * escapes.  search: a match may be a part of the text.  *min and *max become the limits of the
 * number of characters of a match (EXPR_MANY: no limit); either pointer may be NULL.  Returns
 * EXPR_NONE with *e if the expression is refused. */
uint32_t regex_compile(struct grammar *g, const char *text, size_t size, int json, int search, int32_t *min,
                       int32_t *max, struct err *e);

#endif
