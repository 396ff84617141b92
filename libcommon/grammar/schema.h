/* schema.h - compiling a JSON Schema, for the files schema*.c.
 *
 * What a place in the document must satisfy is a set of schema objects that all hold (members).  $ref and allOf add members; anyOf, oneOf, if and not
 * split the set into alternatives; what remains is compiled type by type.  Equal sets are compiled once, which ends recursion. */
#ifndef ZSE_GRAMMAR_SCHEMA_H
#define ZSE_GRAMMAR_SCHEMA_H

#include <jansson.h>

#include "libcommon/grammar/grammar_impl.h"

enum { DONE_ANY_OF = 1, DONE_ONE_OF = 2, DONE_IF = 4, DONE_NOT = 8, DONE_DEPENDENT = 16, MEMBER_ALONE = 32 };
struct member {
    json_t *s;                          /* borrowed: of the document, or of schema.owned */
    unsigned done;                      /* DONE_*: keywords that were split off; MEMBER_ALONE: all other members come from it */
};

struct memo { uint32_t first, n, result; int rule, used, dropped; };    /* members in `keys`; dropped: it failed, do not use it */

/* Base URIs and names of the document's schemas: schema_ref.c. */
struct schema_refs {
    struct { const json_t *schema; const char *base; } *slot; uint32_t n, room;    /* by open addressing */
    json_t *names;                      /* URI with its fragment -> schema */
    json_t *dynamic;                    /* array: the names of all $dynamicAnchor */
    const char *root_base;
    int old, draft4;                    /* draft 7 or older: nothing next to $ref applies; draft 4 or older: id */
};

struct schema {
    struct grammar *g;
    struct schema_refs refs;
    json_t *root;
    json_t *owned;                      /* array of schemas that were made on the way */
    json_t **made_from; size_t n_made, made_room;                   /* pairs: a made schema, the one of the document that it comes from */
    struct memo *memo; uint32_t n_memo, memo_room;
    struct member *keys; uint32_t n_keys, keys_room;
    uint32_t *table; uint32_t n_table;
    uint32_t space, comma, colon, any_char, plain_char;             /* expressions */
    int depth, n_sets;
    int failed;
    int quiet;                          /* only trying: errors are not the schema's */
    struct err *e;
};

enum { TYPE_NULL = 1, TYPE_BOOLEAN = 2, TYPE_INTEGER = 4, TYPE_FRACTION = 8, TYPE_STRING = 16, TYPE_ARRAY = 32, TYPE_OBJECT = 64, TYPE_ALL = 127 };

/* A schema as a part of g; EXPR_NONE with *e set.  comma and colon: punctuation with its blanks. */
uint32_t grammar_schema_expr(struct grammar *g, json_t *root, uint32_t *comma, uint32_t *colon, struct err *e);

/* Members that must all hold, compiled.  EXPR_NONE: nothing satisfies them, or it failed. */
uint32_t schema_compile(struct schema *s, const struct member *m, int n);
/* Errors: "schema: /properties/a/pattern: ..."; all return EXPR_NONE and set failed. */
uint32_t schema_refuse(struct schema *s, const json_t *at, const char *keyword, const char *why);
uint32_t schema_limit(struct schema *s, const json_t *at, const char *why);
uint32_t schema_nomem(struct schema *s);
/* A regular expression of ours; json: of the inside of a string. */
uint32_t schema_regex(struct schema *s, const char *text, int json);
/* The pattern of a member, or a key of its patternProperties: what it finds inside of strings. */
uint32_t schema_pattern(struct schema *s, const json_t *at, const char *keyword, const char *text, size_t size, int32_t *min, int32_t *max);

/* A JSON value of the schema as one text. */
uint32_t schema_values(struct schema *s, json_t *const *v, size_t n);
uint32_t schema_number(struct schema *s, const struct member *m, int n, int whole, int fraction);
/* The inside of the strings that the members allow, without quotation marks. canonical: with the necessary escapes only. */
uint32_t schema_string(struct schema *s, const struct member *m, int n, int canonical);
uint32_t schema_array(struct schema *s, const struct member *m, int n);
uint32_t schema_object(struct schema *s, const struct member *m, int n);

/* Does the value satisfy the schema?  -1: cannot say (failed is set). */
int schema_valid(struct schema *s, const json_t *schema, const json_t *v);
int schema_is_multiple(const json_t *a, const json_t *b);
/* Schemas (a JSON array, owned by s) of which at least one holds exactly where the given one does not; NULL: that cannot be said (failed is set). */
json_t *schema_negate(struct schema *s, json_t *schema, int depth);
int schema_refs_open(struct schema *s);
void schema_refs_close(struct schema_refs *r);
/* The schema that a $ref or $dynamicRef names; NULL with failed set. */
json_t *schema_resolve(struct schema *s, const json_t *at, const char *ref);
json_t *schema_resolve_dynamic(struct schema *s, const json_t *at, const char *ref);
/* Does only the $ref of this schema apply, as in draft 7 and before? */
int schema_ref_alone(const struct schema *s, const json_t *schema);
unsigned schema_types(struct schema *s, const json_t *schema);
/* Values of enum and const of all members, those that all of them allow; NULL: there is no such keyword.  Array, caller decrefs. */
json_t *schema_enumerated(struct schema *s, const struct member *m, int n);
/* minLength and the like: -1 if it is not there, or refused. */
int64_t schema_count(struct schema *s, const json_t *schema, const char *keyword);
const char *schema_format(const char *name);    /* regular expression; NULL: not one of those that are enforced */
/* The same without lengths of its parts, for texts of at most 63 characters; NULL: it has no such lengths. */
const char *schema_short_format(const char *name);
json_t *schema_keep(struct schema *s, json_t *made, const json_t *from);        /* steals made */
/* Keywords of our own, in schemas that schema_negate makes. */
#define NOT_VALUES "\1not values"
#define NOT_PATTERN "\1not pattern"
#define ONLY_FRACTION "\1fraction"       /* numbers that are not whole */
#define MADE "\1made"                   /* says nothing about which properties there may be */

#endif
