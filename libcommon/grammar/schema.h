/* schema.h - compiling a JSON Schema, for the files schema*.c.
 *
 * A place in the document must satisfy every schema of a set (its members).  $ref
 * and allOf add members; anyOf, oneOf, if and not split the set into alternatives; the rest is
 * compiled type by type.  Equal sets are compiled once, which ends recursion. */
#ifndef ZSE_GRAMMAR_SCHEMA_H
#define ZSE_GRAMMAR_SCHEMA_H

#include <jansson.h>

#include "libcommon/base/err.h"
#include "libcommon/grammar/internal.h"

/* Limits that several files check. */
enum {
    MAX_NESTING = 200,                  /* most schemas in each other */
    MAX_VALUE_DEPTH = 64,               /* most levels of values in enum and const */
    MAX_COUNTED = 4096,                 /* most items or properties that are counted */
    MAX_TABLE = 400000,                 /* largest product of the number of counted items and the
                                         * number of states */
};

enum {
    /* Bits of struct member.done: keywords that were split off the member. */
    DONE_ANY_OF = 1, DONE_ONE_OF = 2, DONE_IF = 4, DONE_NOT = 8, DONE_DEPENDENT = 16, DONE_SOME = 32,
    MEMBER_FLAT = 64,                   /* its $ref and allOf were added as members */
    /* A negated condition: it marks nothing as evaluated for unevaluatedProperties and
     * unevaluatedItems. */
    MEMBER_HIDDEN = 128,
};
struct member {
    json_t *s;                          /* borrowed: of the document, or of schema.owned */
    unsigned done;                      /* DONE_*, MEMBER_* */
    /* The innermost member that contains this one (by $ref, allOf, anyOf ...) and has
     * unevaluatedProperties or unevaluatedItems; NULL: none. */
    const json_t *scope;
};

/* A set of schemas that was compiled together: n members in `keys` from `first` on.  dropped: it
 * failed and cannot be used; partial, loose: see struct schema. */
struct memo { uint32_t first, n, result; int rule, used, dropped, partial, loose; };

/* Base URIs and names of the document's schemas: schema_ref.c. */
struct schema_refs {
    /* Hash table with open addressing. */
    struct { const json_t *schema; const char *base; } *slot; uint32_t n, room;
    json_t *names;                      /* URI with its fragment -> schema */
    json_t *dynamic;                    /* array: the names of all $dynamicAnchor */
    const char *root_base;
    /* old: draft 7 or older, where nothing next to $ref applies; draft4: draft 4 or older, where
     * $id is called id. */
    int old, draft4;
};

struct schema {
    struct grammar *g;
    struct schema_refs refs;
    json_t *root;
    /* Compiled regular expressions.  A key has the search mode and the text; its value is
     * [expression, min, max]. */
    json_t *regexes;
    json_t *owned;                      /* array of schemas made while compiling */
    /* Schemas that were made from one schema of the document.  A key has the kind and the address
     * of that schema; its value is [schema, partial]. */
    json_t *made;
    /* Pairs of a made schema and the schema from which it was made. */
    json_t **made_from; size_t n_made, made_room;
    struct memo *memo; uint32_t n_memo, memo_room;
    struct member *keys; uint32_t n_keys, keys_room;
    uint32_t *table; uint32_t n_table;
    uint32_t space, comma, colon, any_char, plain_char;             /* expressions */
    int depth, n_sets, n_set_members;
    /* too_many: a limit on sets or members was exceeded.  brief: each negation has only one
     * alternative, to stay within the limits; the grammar then allows less. */
    int too_many, brief;
    /* Number of uses of incomplete negations, which lack a part that cannot be expressed.  If it is
     * not 0, the grammar allows less than the schema, so an empty grammar does not prove that no
     * value satisfies the schema. */
    uint64_t n_partial;
    const json_t *partial_at; const char *partial_key;      /* the schema and keyword of the first of them */
    /* Set while two schemas are tested for a common value: the grammar may allow more than the
     * schema, but not less. */
    int loose;
    /* Every string and number can be written in one form only, because items are compared as texts
     * (distinct.h). */
    int one_form;
    int long_numbers;                   /* numbers were left out because they have too many digits */
    int failed;
    int quiet;                          /* in a trial, whose errors are discarded */
    /* receives a keyword that cannot be enforced; may be NULL */
    struct refusal *refusal;
    struct err *e;
};

/* A keyword of the schema `at` of the document that cannot be enforced; "": the schema as a
 * whole. */
struct refusal { const json_t *at; char keyword[256]; };

enum { TYPE_NULL = 1, TYPE_BOOLEAN = 2, TYPE_INTEGER = 4, TYPE_FRACTION = 8, TYPE_STRING = 16, TYPE_ARRAY = 32,
       TYPE_OBJECT = 64, TYPE_ALL = 127 };

/* Compile a schema as a part of g.  *comma and *colon become the expressions of these characters
 * with the blanks that may surround them.  Returns EXPR_NONE with *e set if it fails. */
uint32_t grammar_schema_expr(struct grammar *g, json_t *root, uint32_t *comma, uint32_t *colon, struct err *e);
/* Like grammar_schema_expr(), but removes keywords that cannot be enforced from root, and appends
 * their JSON pointers to the array `dropped`. */
uint32_t grammar_schema_relaxed(struct grammar *g, json_t *root, json_t *dropped, uint32_t *comma, uint32_t *colon,
                                struct err *e);

static inline int32_t larger(int32_t a, int64_t b) { return b > a ? (int32_t)b : a; }

/* ---- schema_error.c ---- */

/* A JSON pointer; truncated if it is too long. */
struct schema_path { char text[256]; size_t n; };
void schema_path_add(struct schema_path *p, const char *key);
/* Is the value `what` equal to `in` or contained in it?  Then its path is appended to *p. */
int schema_find_path(json_t *in, const json_t *what, struct schema_path *p, int depth);
/* Set the error about a keyword (NULL: the schema itself) of the schema `at`; only the first error
 * is kept.  Returns EXPR_NONE. */
uint32_t schema_report(struct schema *s, const json_t *at, const char *keyword, enum err_code code, const char *why);

/* ---- sets of members ---- */

struct member_set { struct member *v; int n, room; };       /* v is owned */
/* 1: added, 0: already a member, -1: failed. */
int schema_add_member(struct schema *s, struct member_set *to, const struct member *m);
/* Add a member and all that $ref and allOf add to it.  0; 1: nothing can satisfy it; -1: failed. */
int schema_flatten(struct schema *s, struct member_set *to, const struct member *given, int depth);
/* The scope of the schemas that a member applies in place. */
const json_t *schema_scope_inside(const struct member *m);

struct branch_list { uint32_t *v; uint32_t n, room; };      /* v is owned */
/* Add an alternative, unless it is EXPR_NONE. */
void schema_add_branch(struct schema *s, struct branch_list *to, uint32_t e);
/* Split one keyword with alternatives off the members.  Returns 1 if there was one, with *result
 * the union of its branches; 0 if there was none. */
int schema_split(struct schema *s, struct member *m, int n, uint32_t *result);
/* Compile members that have no alternatives left. */
uint32_t schema_compile_types(struct schema *s, const struct member *m, int n);

/* Text under construction. */
struct json_text { char *p; size_t n, room; int failed; };  /* p is owned */
void text_put(struct json_text *b, const void *p, size_t n);
/* Append a string in quotation marks, with only the necessary escapes. */
void text_put_string(struct json_text *b, const char *s, size_t n);

/* Compile members that must all hold.  EXPR_NONE: nothing satisfies them, or it failed. */
uint32_t schema_compile(struct schema *s, const struct member *m, int n);
/* Errors: "schema: /properties/a/pattern: ..."; all return EXPR_NONE and set failed. */
uint32_t schema_refuse(struct schema *s, const json_t *at, const char *keyword, const char *why);
uint32_t schema_limit(struct schema *s, const json_t *at, const char *why);
uint32_t schema_nomem(struct schema *s);
/* As regex_compile(), but each text is compiled only once. */
uint32_t schema_regex_cached(struct schema *s, const char *text, size_t size, int json, int search, int32_t *min,
                             int32_t *max, struct err *e);
/* Compile a regular expression of our own; json: it describes the inside of a string. */
uint32_t schema_regex(struct schema *s, const char *text, int json);
/* Compile the regular expression text[0..size) of a keyword of the schema `at`; search, min and max
 * are those of regex_compile(). */
uint32_t schema_regex_n(struct schema *s, const json_t *at, const char *keyword, const char *text, size_t size,
                        int search, int32_t *min, int32_t *max);
/* Compile the pattern of a member, or a key of its patternProperties.  Returns the expression of
 * the strings (without quotation marks) in which it is found. */
uint32_t schema_pattern(struct schema *s, const json_t *at, const char *keyword, const char *text, size_t size,
                        int32_t *min, int32_t *max);

/* Returns an expression for any of these JSON values; in the text, each value can be written in one
 * way only. */
uint32_t schema_values(struct schema *s, json_t *const *v, size_t n);
uint32_t schema_number(struct schema *s, const struct member *m, int n, int whole, int fraction);
/* Returns the expression of the strings that the members allow, without quotation marks. canonical:
 * 1: only with the necessary escapes. */
uint32_t schema_string(struct schema *s, const struct member *m, int n, int canonical);
uint32_t schema_array(struct schema *s, const struct member *m, int n);
uint32_t schema_object(struct schema *s, const struct member *m, int n);

/* 1 if the value satisfies the schema, 0 if not, -1 if that cannot be decided (failed is set). */
int schema_valid(struct schema *s, const json_t *schema, const json_t *v);
int schema_is_multiple(const json_t *a, const json_t *b);
/* Returns the negation of a schema as a JSON array of schemas, owned by s: a value matches one of
 * them if and only if it does not match the given schema.  NULL if that cannot be expressed (failed
 * is set). */
json_t *schema_negate(struct schema *s, json_t *schema, int depth);
int schema_refs_open(struct schema *s);
void schema_refs_close(struct schema_refs *r);
/* The schema that a $ref or $dynamicRef names; NULL with failed set. */
json_t *schema_resolve(struct schema *s, const json_t *at, const char *ref);
json_t *schema_resolve_dynamic(struct schema *s, const json_t *at, const char *ref);
/* Whether only the $ref of this schema applies, as in draft 7 and before. */
int schema_ref_alone(const struct schema *s, const json_t *schema);
unsigned schema_types(struct schema *s, const json_t *schema);
/* Returns the values of enum and const that all members allow, as an array that the caller decrefs;
 * NULL if no member has such a keyword. */
json_t *schema_enumerated(struct schema *s, const struct member *m, int n);
/* The number of a keyword like minLength; -1 if it is not there, or refused. */
int64_t schema_count(struct schema *s, const json_t *schema, const char *keyword);
/* The regular expression of a format; NULL: the format is not enforced. */
const char *schema_format(const char *name);
/* Like schema_format(), but returns NULL unless the regular expression matches every string of the
 * format, so that the result may be negated. */
const char *schema_exact_format(const char *name);
/* Like schema_format(), but without limits on the lengths of the parts, for texts of at most 63
 * characters.  Returns NULL if the format has no such limits. */
const char *schema_short_format(const char *name);
json_t *schema_keep(struct schema *s, json_t *made, const json_t *from);        /* steals made */
/* Returns schemas (as schema_negate() does) by which one of the members' declared properties
 * satisfies SOME_PROPERTY. */
json_t *schema_some_declared(struct schema *s, const struct member *m, int n, json_t *some);
/* Whether there may be properties that no member declares. */
int schema_may_have_further(const struct schema *s, const struct member *m, int n);
/* The names to which a SOME_PROPERTY applies, without its exceptions. */
uint32_t schema_needed_names(struct schema *s, const json_t *some);
/* Returns a new schema that declares the names of further properties, if only few names are
 * possible and it matters which of them exist; NULL otherwise, and if the members declare them
 * already. */
json_t *schema_few_names(struct schema *s, const struct member *m, int n);
/* One of the names of an array, inside quotation marks. */
uint32_t schema_texts(struct schema *s, const json_t *names);
json_t *schema_keys(const json_t *object);      /* the caller decrefs the array */
/* Returns the strings of a schema as a regular expression, without quotation marks and with the
 * necessary escapes only.  exact: it matches all of these strings, or is refused; otherwise some
 * strings may be missing. */
uint32_t schema_strings(struct schema *s, json_t *schema, int exact, int depth);
/* Returns 1 if x is in the scope of the member u (struct member.scope), so that the items or
 * properties that x evaluates count for u. */
int schema_evaluates(const struct member *m, int n, const struct member *x, const struct member *u);
#define NEGATION "its negation (of not, if or overlapping oneOf) cannot be enforced"

/* Private keywords, in schemas that schema_negate() makes.
 *
 * SOME_PROPERTY: {"except": [NAME...], "not": [PATTERN...], "pattern": PATTERN, "names": SCHEMA,
 * "value": SCHEMA} means: the object has a property whose value matches `value` and whose name is
 * none of `except`, matches no pattern of `not`, matches `pattern`, and does not match `names`. */
#define SOME_PROPERTY "\1some property"
#define NOT_VALUES "\1not values"
#define NOT_PATTERN "\1not pattern"
#define NOT_MULTIPLE "\1not multiple"   /* numbers that are no multiples of this one */
#define ONLY_FRACTION "\1fraction"       /* numbers that are not whole */
#define MADE "\1made"                   /* a made schema: it does not determine which properties are allowed */

#endif
