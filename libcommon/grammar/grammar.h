/* grammar.h - constrained output: JSON Schema, regular expressions and grammars as masks over the
 * vocabulary.
 *
 * Three steps.  A grammar_vocab holds the bytes of every token as a trie; one per tokenizer.  A
 * grammar is compiled from text, with a vocab or without (then it can only match bytes).  A matcher
 * follows one answer.
 *
 * Conditions that cannot be enforced are refused when the grammar is compiled, with a message that
 * names the keyword and the place (the JSON pointer of a schema, line and column of a grammar, the
 * character of a regular expression); nothing is ignored.  zse(7) lists what is enforced.
 *
 * Bounded: every limit of grammar_options gives ERR_LIMIT.  Work is limited in counted steps, never
 * in time, and a cached result counts as much as computing it, so an answer stays within its limits
 * or exceeds them regardless of other uses of the grammar.  A failure affects one matcher; the
 * grammar stays usable.
 *
 * A vocab is read-only.  A grammar may be shared between threads: its caches (states, masks) have a
 * lock, which every call holds while it runs.  A matcher belongs to one thread at a time, except
 * for matcher_cancel. */
#ifndef ZSE_GRAMMAR_GRAMMAR_H
#define ZSE_GRAMMAR_GRAMMAR_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"
#include "libcommon/token/tokenizer.h"

/* ---- a vocabulary ---- */

struct grammar_vocab;
/* Collect the bytes of all tokens of t, which is borrowed until close.  vocab_size: number of
 * logits, at least the number of tokens of t; 0: equal to it.  Any number of grammars may use the
 * result.  Takes about 50 ms for 150,000 tokens.  Returns NULL with *e for WordPiece, because its
 * tokens have no bytes. */
struct grammar_vocab *grammar_vocab_open(const struct tokenizer *t, int vocab_size, struct err *e);
void grammar_vocab_close(struct grammar_vocab *v);
/* The bytes that a token adds to an answer, borrowed; NULL for special and added tokens and for
 * ids without text. */
const char *grammar_vocab_bytes(const struct grammar_vocab *v, int32_t id, size_t *size);

/* ---- a grammar ---- */

enum grammar_whitespace {
    GRAMMAR_WS_SINGLE,          /* JSON: at most one space, after ':' and ','; none elsewhere */
    /* Also line breaks with up to 40 blanks after them around every part. */
    GRAMMAR_WS_FLEXIBLE,
};
enum { GRAMMAR_STEPS = 20000000 };
struct tool_format;
struct grammar_options {
    enum grammar_whitespace whitespace;
    /* For schemas.  1: an object schema with properties and without additionalProperties allows
     * further properties, as JSON Schema says; 0: it allows none. */
    int open_objects;
    /* Most parts of a grammar and its states, or of one call; 0: 2,000,000 (about 100 MB). */
    uint32_t max_exprs;
    uint64_t max_work;          /* steps that compiling may take; 0: 20,000,000 (about a second) */
    /* Most steps of one call of a matcher; 0: GRAMMAR_STEPS.  An answer may take 8 times as many,
     * and a 16th of that more for each token. */
    uint64_t max_steps;
    /* A flag that cancels compiling when it becomes nonzero; borrowed while compiling.  NULL:
     * compiling cannot be cancelled. */
    const atomic_int *cancel;
    /* The model writes its reasoning before the answer, in the format of this family (tools.h);
     * NULL: no reasoning.  Needs a vocab. */
    const struct tool_format *thinker;
    /* With thinker: whether the prompt ended inside the reasoning.  If not, the answer may start
     * with reasoning. */
    int thinking;
};

struct grammar;
/* Compile a JSON Schema, draft 2020-12.  v is borrowed until close; v and o may be NULL.  Returns
 * NULL with *e. */
struct grammar *grammar_compile_schema(const struct grammar_vocab *v, const char *text, size_t size,
                                       const struct grammar_options *o, struct err *e);
enum { GRAMMAR_REGEX_BYTES = 8192 };    /* most of a regular expression */
/* A regular expression in ECMAScript's syntax; it must match the whole answer. */
struct grammar *grammar_compile_regex(const struct grammar_vocab *v, const char *text, size_t size,
                                      const struct grammar_options *o, struct err *e);
/* Rules in the syntax of llama.cpp's GBNF; the answer is a `root`.  <name> is the special token
 * with that text, <[id]> the token with that id. */
struct grammar *grammar_compile_gbnf(const struct grammar_vocab *v, const char *text, size_t size,
                                     const struct grammar_options *o, struct err *e);
void grammar_close(struct grammar *g);          /* after its matchers */

/* ---- a matcher: one answer ---- */

struct matcher;
struct matcher *matcher_open(struct grammar *g, struct err *e);
void matcher_close(struct matcher *m);
struct matcher *matcher_fork(const struct matcher *m);                  /* NULL: out of memory */

/* Returns the mask of the next token: bit id is set if token id may follow.  EOS ids are set if and
 * only if the text may end.  The mask has (vocab size + 31) / 32 words and is borrowed until the
 * next call with m.  Never NULL; no bit is set if a limit was exceeded or memory ran out
 * (matcher_error() says which).  Needs a vocab. */
const uint32_t *matcher_mask(struct matcher *m);
/* Append a token to the text of m.  Returns 0; -1 if the token may not come next, and m is
 * unchanged.  An EOS is accepted if the text may end; after an EOS only further EOS are
 * accepted. */
int matcher_accept(struct matcher *m, int32_t id);
int matcher_accept_bytes(struct matcher *m, const void *bytes, size_t n);   /* the same for bytes */
/* Write to ids up to `room` tokens that must come next, split as the tokenizer would split their
 * text; they are not accepted yet.  Returns their number: 0 if the next byte is not determined, or
 * the split into tokens is not.  The token that contains the end of the determined text is
 * excluded, because later text could join it. */
int matcher_forced(struct matcher *m, int32_t *ids, int room);
int matcher_complete(const struct matcher *m);                          /* may the text end here? */
/* Is the text complete, with no possible continuation? */
int matcher_ended(const struct matcher *m);
/* 0, or -1 with the error of an earlier call. */
int matcher_error(const struct matcher *m, struct err *e);

/* Limit the steps of each later call of mask, accept and forced; 0: no limit.  A call that reaches
 * the limit, or finds the grammar's lock taken, has no result: matcher_busy() then returns 1, and m
 * is unchanged.  Repeating the call continues with the states found so far, so doubling the steps
 * each time succeeds in the end. */
void matcher_hurry(struct matcher *m, uint64_t steps);
int matcher_busy(const struct matcher *m);
/* From any thread: the running call and all later ones fail soon. */
void matcher_cancel(struct matcher *m);

/* Returns the keywords that are not enforced (possible only in functions that are not strict), as
 * "function 'f': /properties/a/pattern", separated by commas: printable ASCII, at most
 * GRAMMAR_RELAXED bytes, borrowed.  NULL: every keyword is enforced. */
enum { GRAMMAR_RELAXED = 1000 };
const char *grammar_relaxed(const struct grammar *g);

/* The bytes that g took at the end of the last finished call; takes no lock. */
size_t grammar_bytes(const struct grammar *g);

/* A limit on the total bytes of several grammars.  While it is exceeded, each grammar drops its
 * cached results before a call of a matcher; the compiled part stays. */
struct grammar_budget { atomic_size_t used; size_t limit; };
/* Count the bytes of g in this budget.  Call it before the first matcher of g is opened; b is
 * borrowed until close. */
void grammar_share(struct grammar *g, struct grammar_budget *b);

struct grammar_stats { uint32_t n_exprs, n_rules, n_states, n_masks; size_t bytes; uint64_t work; };
void grammar_stats(struct grammar *g, struct grammar_stats *s);

#endif
