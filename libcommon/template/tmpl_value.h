/* tmpl_value.h - private to the template engine: values with Python's semantics, their arena, and
 * the handling of failures of a parse or a render.
 *
 * One struct vm lives for one tmpl_parse() or one tmpl_render().  All memory comes from its
 * arena, so nothing is freed singly, and vm_fail() jumps out of any depth to the one setjmp() of
 * the entry point. */
#ifndef ZSE_TEMPLATE_TMPL_VALUE_H
#define ZSE_TEMPLATE_TMPL_VALUE_H

#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "libcommon/base/err.h"

struct vm;

enum kind {
    K_MISSING,                  /* an argument that was not given; never reaches a template */
    K_UNDEF, K_NONE, K_BOOL, K_INT, K_FLOAT, K_STR, K_LIST, K_TUPLE, K_DICT,
    K_VIEW,                     /* dict.keys(), .values(), .items() */
    K_RANGE, K_GEN, K_FUNC, K_METHOD, K_MACRO, K_LOOP, K_NS, K_CYCLER, K_JOINER,
    N_KINDS
};
enum { VIEW_KEYS, VIEW_VALUES, VIEW_ITEMS };

struct val {
    uint8_t kind;               /* enum kind */
    /* K_STR: 1 if it is safe (markup); K_VIEW: VIEW_KEYS ...; K_TUPLE: 1 if it is an item of
     * groupby, with .grouper and .list */
    uint8_t flag;
    union {
        int64_t i;              /* K_BOOL, K_INT */
        double f;
        const struct str *s;
        struct val_list *l;         /* K_LIST, K_TUPLE, K_CYCLER (with pos) */
        struct dict *d;         /* K_DICT, K_VIEW, K_NS */
        const struct range *r;
        struct gen *g;
        const struct builtin *fn;
        const struct bound_method *m;
        const struct macro *macro;
        struct loop_state *loop;
        struct joiner *j;
        const struct undef *u;  /* may be NULL */
    };
};

struct str {
    const char *data;           /* '\0' does not end it */
    size_t size, n_chars;
    struct grow *grow;          /* the buffer at whose end data lies, if appending in place is possible */
};
struct val_list { struct val *v; size_t n, cap, pos; };
struct dict {                   /* keeps the order of insertion */
    struct dict_entry { struct val key, value; uint64_t hash; } *v;
    size_t n, cap;
    uint32_t *slot;             /* open addressing, entry + 1; NULL while n <= 8 */
    size_t n_slots;
};
struct range { int64_t start, stop, step; size_t n; };
/* the undefined result of looking up key in a value of kind owner; owner K_MISSING: the undefined
 * variable `key` */
struct undef { struct val key; uint8_t owner; const char *hint; };
struct bound_method { struct val self; const struct builtin *fn; };
struct joiner { struct val sep; int used; };
struct macro { const struct tmpl_node *def; struct tmpl_scope *closure; };

struct iter { struct val of; size_t i, n; };
struct gen {                    /* a lazy sequence; it can be walked once */
    int (*next)(struct vm *vm, struct gen *g, struct val *out);
    const char *type;
    struct iter src;
    struct val attr, fallback;  /* attribute path to look up first */
    const struct builtin *fn;   /* filter or test applied to each item */
    struct args *args;
    struct dict *seen;
    int keep;                   /* select: 1, reject: 0 */
};

struct args {
    struct val *pos;
    int n_pos, n_kw;
    struct kwarg { const struct str *name; struct val v; } *kw;
};
/* A filter, test, method or global function.  params names the parameters ("width first blank");
 * they arrive in a[] in that order, K_MISSING where not given.  params NULL: the function reads
 * args itself. */
struct builtin {
    const char *name;
    struct val (*fn)(struct vm *vm, struct val in, const struct val *a, const struct args *args, int variant);
    const char *params;
    int n_required, variant;
};
enum { MAX_PARAMS = 6 };

struct out { char *data; size_t size, cap; };
struct vm {
    jmp_buf fail;
    struct err *e;
    const char *name;           /* name of the template, for messages */
    int line;                   /* the line of the template being parsed or rendered */
    struct arena_chunk *chunks;
    size_t arena_bytes, max_arena;
    /* rendering only */
    struct out out;
    size_t max_output;
    uint64_t steps, max_steps;
    int depth, max_depth;       /* calls and blocks */
    int nest;                   /* depth of recursion in C */
    int autoescape;
    int64_t now;
    struct tmpl_scope *scope, *root;
    struct val vars;            /* the variables of the caller: K_DICT */
    const struct tmpl *t;
};

/* ---- failing, memory, limits */
_Noreturn void vm_fail(struct vm *vm, enum err_code code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
#define fail(vm, ...) vm_fail(vm, ERR_FORMAT, __VA_ARGS__)
void *vm_alloc(struct vm *vm, size_t size);                     /* zeroed, aligned to 16 */
void *vm_array(struct vm *vm, size_t n, size_t size);           /* vm_alloc(n * size); fails if that overflows */
void vm_free_arena(struct arena_chunk *chunks);
void vm_step(struct vm *vm, size_t n);                          /* count n steps */
/* Count one more level of nesting; vm_leave() undoes it. */
void vm_enter(struct vm *vm);
static inline void vm_leave(struct vm *vm) { vm->nest--; }
void vm_write(struct vm *vm, const char *data, size_t size);    /* to the output */

/* ---- making values */
struct val val_text(struct vm *vm, const char *data, size_t size);      /* copied */
struct val val_cstr(struct vm *vm, const char *s);
struct val val_format(struct vm *vm, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* a part of a string, which shares its bytes */
struct val val_slice(struct vm *vm, struct val s, size_t at, size_t size);
/* Concatenate two strings.  Appending to the same string again and again takes linear time. */
struct val val_concat(struct vm *vm, struct val a, struct val b);
/* The undefined value that a look-up of owner[key] gives; owner of kind K_MISSING: the one that a
 * look-up of the variable `key` gives. */
struct val val_undef(struct vm *vm, struct val owner, struct val key);
/* an undefined value whose use fails with this message */
struct val val_hint(struct vm *vm, const char *hint);
struct val val_list(struct vm *vm, size_t cap);
struct val val_dict(struct vm *vm);
struct val val_from_json(struct vm *vm, const json_t *j);
#define VAL(k, field, x) ((struct val){ .kind = (k), .field = (x) })
static inline struct val val_none(void) { return VAL(K_NONE, i, 0); }
static inline struct val val_bool(int x) { return VAL(K_BOOL, i, x != 0); }
static inline struct val val_int(int64_t x) { return VAL(K_INT, i, x); }
static inline struct val val_float(double x) { return VAL(K_FLOAT, f, x); }
static inline struct val val_missing(void) { return VAL(K_MISSING, i, 0); }
static inline struct val val_safe(struct val s, int safe) { s.flag = safe != 0; return s; }

/* ---- lists and dicts */
void list_push(struct vm *vm, struct val_list *l, struct val v);
/* The value of a key, NULL if it is missing.  Fails on a key that cannot be hashed. */
struct val *dict_find(struct vm *vm, const struct dict *d, struct val key);
void dict_set(struct vm *vm, struct dict *d, struct val key, struct val value);
int dict_remove(struct vm *vm, struct dict *d, struct val key, struct val *was);
/* from: a mapping, or a sequence of pairs */
void dict_update(struct vm *vm, struct dict *d, struct val from);

/* ---- what values are */
const char *val_type(struct val v);             /* Python's name: "str", "int", "NoneType" */
int val_truth(struct val v);
int val_equal(struct vm *vm, struct val a, struct val b);
/* -1, 0 or 1, as a < b, a == b or a > b; 2: they are unordered (NaN) */
int val_compare(struct vm *vm, struct val a, struct val b, const char *op);
int val_contains(struct vm *vm, struct val seq, struct val x);
int val_len(struct val v, size_t *n);           /* 0 if it has none */
_Noreturn void val_fail_undef(struct vm *vm, struct val v);
static inline int is_num(struct val v) { return v.kind == K_BOOL || v.kind == K_INT || v.kind == K_FLOAT; }
static inline int is_int(struct val v) { return v.kind == K_BOOL || v.kind == K_INT; }
static inline double num_f(struct val v) { return v.kind == K_FLOAT ? v.f : (double)v.i; }

void iter_init(struct vm *vm, struct iter *it, struct val v);   /* fails if v cannot be iterated */
int iter_can(struct val v);
int iter_next(struct vm *vm, struct iter *it, struct val *out);
struct val val_to_list(struct vm *vm, struct val v);            /* a fresh list of its items */

/* ---- text of values (tmpl_text.c) */
/* Python's str(v); a string is returned unchanged. */
struct val val_str(struct vm *vm, struct val v);
struct val val_repr(struct vm *vm, struct val v);
/* Python's ascii(v): val_repr() with escapes for all characters that are not ASCII. */
struct val val_ascii(struct vm *vm, struct val v);
struct val val_json(struct vm *vm, struct val v, int ensure_ascii, struct val indent, struct val separators,
                    int sort_keys);
struct val val_pprint(struct vm *vm, struct val v);
/* Escape &, <, >, ' and " for HTML.  The result is marked as safe. */
struct val val_escape(struct vm *vm, struct val v);
/* Write the fewest digits that read back as x, as Python does: 1.0, 1e+16. */
void float_repr(double x, char out[32]);
int str_to_int(const char *s, size_t size, int base, int64_t *out);
int str_to_float(const char *s, size_t size, double *out);

/* ---- formatting (tmpl_format.c) */
/* Python's format % arg. */
struct val fmt_percent(struct vm *vm, struct val format, struct val arg);
/* Python's format.format(args). */
struct val fmt_braces(struct vm *vm, struct val format, const struct args *args);
struct val fmt_strftime(struct vm *vm, struct val format, int64_t now);

/* ---- operators and access (tmpl_ops.c) */
enum op { OP_ADD, OP_SUB, OP_MUL, OP_DIV, OP_FLOORDIV, OP_MOD, OP_POW, OP_EQ, OP_NE, OP_LT, OP_LE, OP_GT, OP_GE, OP_IN,
          OP_NOTIN };
struct val op_binary(struct vm *vm, enum op op, struct val a, struct val b);
int op_compare(struct vm *vm, enum op op, struct val a, struct val b);
struct val op_negate(struct vm *vm, struct val v, int minus);
/* A method or a property of the type; K_MISSING: it has none of this name. */
struct val op_attr(struct vm *vm, struct val v, const struct str *name);
struct val op_getattr(struct vm *vm, struct val v, const struct str *name);     /* v.name */
struct val op_getitem(struct vm *vm, struct val v, struct val key);             /* v[key] */
struct val op_slice(struct vm *vm, struct val v, struct val start, struct val stop, struct val step);
/* Follow a path as in the filters' attribute="a.0.b". */
struct val op_path(struct vm *vm, struct val v, struct val path, struct val fallback);

/* ---- strings (tmpl_str.c): sizes in bytes, case mapping over code points */
/* Text being built in the arena. */
struct sb { struct vm *vm; char *data; size_t size, cap; };
void sb_add(struct sb *b, const char *data, size_t size);
void sb_str(struct sb *b, struct val s);
void sb_char(struct sb *b, uint32_t c);
void sb_fill(struct sb *b, struct val fill, size_t n);                  /* n times */
struct val sb_done(struct sb *b);
/* Offset of `what` at or after `from`; SIZE_MAX: there is none. */
size_t str_find(struct vm *vm, const struct str *s, size_t from, const struct str *what);
/* Offset of the last `what` that lies in [from, end); SIZE_MAX: there is none. */
size_t str_find_last(struct vm *vm, const struct str *s, size_t from, size_t end, const struct str *what);
struct val str_replace(struct vm *vm, struct val s, struct val old, struct val new, int64_t count);
/* sides: 1 left, 2 right, 3 both */
struct val str_strip(struct vm *vm, struct val s, struct val chars, int sides);
struct val str_split(struct vm *vm, struct val s, struct val sep, int64_t max, int from_right);
struct val str_splitlines(struct vm *vm, struct val s, int keep_ends);
enum str_case { CASE_UPPER, CASE_LOWER, CASE_TITLE, CASE_CAPITALIZE, CASE_SWAP, CASE_FOLD };
struct val str_case(struct vm *vm, struct val s, enum str_case how);
/* align: '<' left, '>' right, '^' centered */
struct val str_pad(struct vm *vm, struct val s, int64_t width, struct val fill, int align);
int char_printable(uint32_t c);
/* 1 for a letter, digit or underscore */
int char_word(uint32_t c);
int char_case(uint32_t c);                                              /* 'u', 'l', 't' or 0 */

/* ---- running (tmpl_eval.c), and the tables of functions */
/* Render vm->t with the variables vm->vars; appends to vm->out. */
void tmpl_exec(struct vm *vm);
struct val builtin_call(struct vm *vm, const struct builtin *b, struct val in, const struct args *args);
const struct builtin *tmpl_filter(const char *name, size_t size);       /* NULL: no such filter */
const struct builtin *tmpl_test(const char *name, size_t size);
const struct builtin *tmpl_global(const char *name, size_t size);
const struct builtin *tmpl_method(struct val self, const char *name, size_t size);
/* an attribute of the variable loop; K_MISSING: there is none of this name */
struct val loop_attr(struct vm *vm, struct loop_state *l, const char *name);
struct val loop_cycle(struct vm *vm, struct loop_state *l, const struct args *args);
struct val loop_changed(struct vm *vm, struct loop_state *l, const struct args *args);
struct val macro_attr(struct vm *vm, const struct macro *m, const char *name);

/* ---- arguments of builtins: `absent` for K_MISSING; a value of the wrong type is a failure */
int64_t arg_int(struct vm *vm, struct val v, int64_t absent);
int arg_bool(struct val v, int absent);
struct val arg_str(struct vm *vm, struct val v, const char *absent);
static inline int arg_given(struct val v) { return v.kind != K_MISSING && v.kind != K_NONE; }

#endif
