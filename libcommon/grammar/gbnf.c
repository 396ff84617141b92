/* gbnf.c - grammars as rules, in the manner of llama.cpp's GBNF:
 *
 *   root  ::= "yes" | "no" ws reason?        # alternatives, sequences, * + ? {2} {2,} {2,5}, ( )
 *   reason ::= [a-zA-Z ]{1,80} [.!\n]        # classes: ranges, ^ negates; . is any character
 *   think ::= <think> [^<]* </think>         # special tokens of the vocabulary, by text or as
 *                                            <[id]>
 *
 * A rule that does not contain itself becomes part of a regular expression; only the others use
 * the stack. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/utf8.h"
#include "libcommon/grammar/internal.h"

enum { MAX_DEPTH = 200, MAX_COUNT = 1000000, MAX_TEXT = 4 << 20 };

struct rule_name { const char *p; size_t n; int32_t rule; size_t used_at, defined_at; int defined; };

struct gbnf_parser {
    struct grammar *g;
    struct exprs *x;
    const char *text; size_t n, at;
    struct rule_name *names; uint32_t n_names, room;
    uint32_t *table; uint32_t n_table;          /* hash table of names: index + 1 */
    int depth, failed;
    struct err *e;
};

static int bad(struct gbnf_parser *p, size_t at, enum err_code code, const char *what)
{
    size_t line = 1, from = 0;
    for (size_t i = 0; i < at && i < p->n; i++)
        if (p->text[i] == '\n')
            line++, from = i + 1;
    if (!p->failed)
        err_set(p->e, code, "grammar: line %zu, column %zu: %s", line, utf8_count(p->text + from, at - from) + 1, what);
    p->failed = 1;
    return -1;
}

static int bad_rule(struct gbnf_parser *p, size_t at, enum err_code code, const char *what, const struct rule_name *x)
{
    char text[200];
    snprintf(text, sizeof text, "%s %.*s", what, x->n > 64 ? 64 : (int)x->n, x->p);
    return bad(p, at, code, text);
}

static int peek(const struct gbnf_parser *p) { return p->at < p->n ? (unsigned char)p->text[p->at] : -1; }
static int starts(const struct gbnf_parser *p, const char *what)
{
    return p->n - p->at >= strlen(what) && !memcmp(p->text + p->at, what, strlen(what));
}
static int is_name(int c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

/* Skip blanks and comments; with `lines`, line breaks too. */
static void skip(struct gbnf_parser *p, int lines)
{
    for (; p->at < p->n; p->at++) {
        int c = peek(p);
        if (c == '#')
            while (p->at + 1 < p->n && p->text[p->at + 1] != '\n')
                p->at++;
        else if (c != ' ' && c != '\t' && !(lines && (c == '\n' || c == '\r')))
            break;
    }
}

static struct rule_name *find(struct gbnf_parser *p, const char *s, size_t n, size_t at)
{
    uint32_t h = 2166136261u;
    if (2 * p->n_names >= p->n_table) {
        uint32_t size = p->n_table ? 2 * p->n_table : 256, *t = calloc(size, sizeof *t);
        if (!t) {
            p->failed = 1;
            err_nomem(p->e, "a grammar");
            return NULL;
        }
        for (uint32_t i = 0; i < p->n_names; i++) {
            h = 2166136261u;
            for (size_t k = 0; k < p->names[i].n; k++)
                h = (h ^ (unsigned char)p->names[i].p[k]) * 16777619u;
            for (h ^= h >> 15; t[h & (size - 1)]; h++)
                ;
            t[h & (size - 1)] = i + 1;
        }
        free(p->table);
        p->table = t;
        p->n_table = size;
    }
    h = 2166136261u;
    for (size_t k = 0; k < n; k++)
        h = (h ^ (unsigned char)s[k]) * 16777619u;
    for (h ^= h >> 15; p->table[h & (p->n_table - 1)]; h++) {
        struct rule_name *x = &p->names[p->table[h & (p->n_table - 1)] - 1];
        if (x->n == n && !memcmp(x->p, s, n))
            return x;
    }
    if (p->n_names == p->room) {
        const uint32_t room = 2 * p->room + 64;
        struct rule_name *v = realloc(p->names, room * sizeof *v);
        if (!v) {
            p->failed = 1;
            err_nomem(p->e, "a grammar");
            return NULL;
        }
        p->names = v;
        p->room = room;
    }
    p->names[p->n_names] = (struct rule_name){ .p = s, .n = n, .rule = grammar_rule(p->g), .used_at = at };
    p->table[h & (p->n_table - 1)] = p->n_names + 1;
    return &p->names[p->n_names++];
}

static int hex_digits(struct gbnf_parser *p, int count, uint32_t *c)
{
    size_t start = p->at;
    *c = 0;
    for (int i = 0; i < count; i++, p->at++) {
        int d = peek(p), h = d >= '0' && d <= '9' ? d - '0' : d >= 'a' && d <= 'f' ? d - 'a' + 10 : d >= 'A' &&
                             d <= 'F' ? d - 'A' + 10 : -1;
        if (h < 0)
            return bad(p, start, ERR_FORMAT, "expected hexadecimal digits");
        *c = *c << 4 | (uint32_t)h;
    }
    return 0;
}

/* Read one character of a literal or class, or an escape, into *c.  0, or -1 on an error. */
static int character(struct gbnf_parser *p, uint32_t *c)
{
    size_t start = p->at;
    int len;
    if (peek(p) < 0)
        return bad(p, start, ERR_FORMAT, "the grammar ends inside of quotes or a class");
    if (peek(p) != '\\') {
        *c = utf8_next(p->text + p->at, p->n - p->at, &len);
        p->at += (size_t)len;
        return 0;
    }
    p->at++;
    int k = peek(p);
    p->at++;
    switch (k) {
    case 'n': *c = '\n'; return 0;
    case 't': *c = '\t'; return 0;
    case 'r': *c = '\r'; return 0;
    case 'x': return hex_digits(p, 2, c);
    case 'u': return hex_digits(p, 4, c);
    case 'U': return hex_digits(p, 8, c);
    default:
        if (k > 0 && strchr("\"\\[]-^/'.(){}|*+?", k)) {
            *c = (uint32_t)k;
            return 0;
        }
        return bad(p, start, ERR_FORMAT, "an unknown escape");
    }
}

static uint32_t literal(struct gbnf_parser *p)
{
    char *text = malloc(p->n - p->at + 4);
    size_t n = 0, start = p->at++;
    uint32_t c, r = EXPR_NONE;
    if (!text) {
        p->failed = 1;
        err_nomem(p->e, "a grammar");
        return EXPR_NONE;
    }
    while (!p->failed && peek(p) != '"')
        if (character(p, &c) == 0) {
            int len = utf8_encode(c, text + n);
            if (!len)
                bad(p, start, ERR_FORMAT, "an escape that is no character");
            n += (size_t)len;
        }
    p->at++;
    if (!p->failed)
        r = expr_term(p->x, expr_text(p->x, text, n));
    free(text);
    return r;
}

static int by_lo(const void *a, const void *b)
{
    const struct char_range *x = a, *y = b;
    return x->lo < y->lo ? -1 : x->lo > y->lo;
}

static uint32_t class_of(struct gbnf_parser *p)
{
    size_t start = p->at++, room = 0;
    struct char_range *r = NULL, *to = NULL;
    int n = 0, m = 0, negated = peek(p) == '^';
    uint32_t e = EXPR_NONE, from = 0;
    p->at += (size_t)negated;
    while (!p->failed && peek(p) != ']') {
        uint32_t lo, hi;
        if (character(p, &lo) != 0)
            break;
        hi = lo;
        if (peek(p) == '-' && p->at + 1 < p->n && p->text[p->at + 1] != ']') {
            p->at++;
            if (character(p, &hi) != 0)
                break;
        }
        if (hi < lo || hi > 0x10FFFF) {
            bad(p, start, ERR_FORMAT, hi < lo ? "a range whose end comes before its beginning"
                                              : "an escape that is no character");
            break;
        }
        if ((size_t)n == room) {
            struct char_range *v = realloc(r, (room = 2 * room + 16) * sizeof *v);
            if (!v) {
                p->failed = 1;
                err_nomem(p->e, "a grammar");
                break;
            }
            r = v;
        }
        r[n++] = (struct char_range){ lo, hi };
    }
    p->at++;
    if (!p->failed && (to = malloc(((size_t)n + 1) * sizeof *to))) {
        if (n)
            qsort(r, (size_t)n, sizeof *r, by_lo);
        for (int i = 0; i < n; i++) {
            if (negated) {
                if (r[i].lo > from)
                    to[m++] = (struct char_range){ from, r[i].lo - 1 };
                from = r[i].hi + 1 > from ? r[i].hi + 1 : from;
            } else if (m && r[i].lo <= to[m - 1].hi + 1) {
                to[m - 1].hi = r[i].hi > to[m - 1].hi ? r[i].hi : to[m - 1].hi;
            } else {
                to[m++] = r[i];
            }
        }
        if (negated && from <= 0x10FFFF)
            to[m++] = (struct char_range){ from, 0x10FFFF };
        e = expr_term(p->x, expr_chars(p->x, to, m));
        if (e == EXPR_NONE && !p->x->failed)
            bad(p, start, ERR_FORMAT, "a class without characters");
    } else if (!p->failed) {
        p->failed = 1;
        err_nomem(p->e, "a grammar");
    }
    free(r);
    free(to);
    return e;
}

/* <text> or <[id]> */
static uint32_t named(struct gbnf_parser *p)
{
    size_t start = p->at;
    const char *end = memchr(p->text + start, '>', p->n - start);
    unsigned char name[VOCAB_NAME];
    int32_t id = -1;
    if (!end) {
        bad(p, start, ERR_FORMAT, "a token without >");
        return EXPR_NONE;
    }
    p->at = (size_t)(end + 1 - p->text);
    if (!p->g->v) {
        bad(p, start, ERR_UNSUPPORTED, "tokens can be named only where there is a vocabulary");
        return EXPR_NONE;
    }
    if (p->text[start + 1] == '[') {
        int64_t v = 0;
        size_t i = start + 2;
        for (; p->text[i] >= '0' && p->text[i] <= '9' && v < 1 << 28; i++)
            v = v * 10 + (p->text[i] - '0');
        if (p->text[i] == ']' && i > start + 2 && p->text + i + 1 == end)
            id = (int32_t)v;
    } else {
        id = tokenizer_find(p->g->v->t, p->text + start, p->at - start);
    }
    if (id < 0 || vocab_name(p->g->v, id, name) != 0) {
        bad(p, start, ERR_FORMAT, "no special or added token of the vocabulary has this text or id");
        return EXPR_NONE;
    }
    return expr_term(p->x, expr_text(p->x, name, sizeof name));
}

static int number(struct gbnf_parser *p, int32_t *v)
{
    size_t at = p->at;
    *v = 0;
    while (peek(p) >= '0' && peek(p) <= '9') {
        *v = *v > MAX_COUNT ? *v : *v * 10 + (peek(p) - '0');
        p->at++;
    }
    return p->at > at;
}

static uint32_t repeated(struct gbnf_parser *p, uint32_t e)
{
    int32_t lo, hi;
    size_t start = p->at;
    switch (peek(p)) {
    case '*': lo = 0, hi = EXPR_MANY; break;
    case '+': lo = 1, hi = EXPR_MANY; break;
    case '?': lo = 0, hi = 1; break;
    case '{':
        p->at++;
        skip(p, 0);
        if (!number(p, &lo)) {
            if (peek(p) != ',') {
                bad(p, p->at, ERR_FORMAT, "expected a number");
                return EXPR_NONE;
            }
            lo = 0;
        }
        skip(p, 0);
        hi = lo;
        if (peek(p) == ',') {
            p->at++;
            skip(p, 0);
            if (!number(p, &hi))
                hi = EXPR_MANY;
            skip(p, 0);
        }
        if (peek(p) != '}')
            bad(p, p->at, ERR_FORMAT, "expected }");
        else if (lo > MAX_COUNT || hi > MAX_COUNT)
            bad(p, start, ERR_LIMIT, "a repetition of more than 1000000");
        else if (hi != EXPR_MANY && hi < lo)
            bad(p, start, ERR_FORMAT, "a repetition whose end is below its beginning");
        if (p->failed)
            return EXPR_NONE;
        break;
    default:
        return e;
    }
    p->at++;
    return repeated(p, expr_times(p->x, e, lo, hi));
}

struct expr_list { uint32_t *e, n, room; };     /* e owned */

/* Append e; does nothing after a failure. */
static void append(struct gbnf_parser *p, struct expr_list *list, uint32_t e)
{
    if (p->failed)
        return;
    if (list->n == list->room) {
        uint32_t *w = realloc(list->e, (list->room = 2 * list->room + 16) * sizeof *w);
        if (!w) {
            p->failed = 1;
            err_nomem(p->e, "a grammar");
            return;
        }
        list->e = w;
    }
    list->e[list->n++] = e;
}

static uint32_t alternatives(struct gbnf_parser *p, int nested);

static uint32_t sequence(struct gbnf_parser *p, int nested)
{
    struct expr_list list = { 0 };
    uint32_t r = EXPR_EPSILON;
    while (!p->failed) {
        uint32_t e;
        int c = peek(p);
        size_t start = p->at;
        if (c == '"') {
            e = literal(p);
        } else if (c == '[') {
            e = class_of(p);
        } else if (c == '.') {
            static const struct char_range every = { 0, 0x10FFFF };
            p->at++;
            e = expr_term(p->x, expr_chars(p->x, &every, 1));
        } else if (c == '<') {
            e = named(p);
        } else if (c == '(') {
            if (++p->depth > MAX_DEPTH) {
                bad(p, start, ERR_LIMIT, "groups nested more than 200 deep");
                break;
            }
            p->at++;
            skip(p, 1);
            e = alternatives(p, 1);
            p->depth--;
            if (!p->failed && peek(p) != ')')
                bad(p, start, ERR_FORMAT, "a group without )");
            p->at++;
        } else if (is_name(c)) {
            while (is_name(peek(p)))
                p->at++;
            size_t after = p->at;
            skip(p, 1);
            if (starts(p, "::=")) {     /* the next rule */
                p->at = start;
                break;
            }
            p->at = after;
            struct rule_name *x = find(p, p->text + start, after - start, start);
            e = x ? expr_rule(p->x, x->rule) : (uint32_t)EXPR_NONE;
        } else {
            break;
        }
        if (p->failed)
            break;
        e = repeated(p, e);
        skip(p, nested);
        append(p, &list, e);
    }
    while (!p->failed && list.n--)
        r = expr_seq(p->x, list.e[list.n], r);
    free(list.e);
    return r;
}

static uint32_t alternatives(struct gbnf_parser *p, int nested)
{
    struct expr_list list = { 0 };
    uint32_t r = EXPR_NONE;
    for (;;) {
        append(p, &list, sequence(p, nested));
        if (p->failed)
            break;
        size_t at = p->at;
        /* a line may start with | */
        skip(p, 1);
        if (peek(p) != '|') {
            p->at = at;
            break;
        }
        p->at++;
        skip(p, 1);
    }
    if (!p->failed)
        r = expr_any_of(p->x, list.e, list.n);
    free(list.e);
    return r;
}

static int parse(struct gbnf_parser *p, uint32_t *root)
{
    struct rule_name *first = find(p, "root", 4, 0);
    int32_t root_rule = first ? first->rule : 0;
    for (skip(p, 1); !p->failed && p->at < p->n; skip(p, 1)) {
        size_t start = p->at;
        while (is_name(peek(p)))
            p->at++;
        size_t end = p->at;
        if (end == start)
            return bad(p, start, ERR_FORMAT, "expected the name of a rule");
        skip(p, 1);
        if (!starts(p, "::="))
            return bad(p, p->at, ERR_FORMAT, "expected ::=");
        p->at += 3;
        skip(p, 1);
        struct rule_name *x = find(p, p->text + start, end - start, start);
        if (!x)
            return -1;
        if (x->defined)
            return bad(p, start, ERR_FORMAT, "this rule is there already");
        x->defined = 1;
        x->defined_at = start;
        int32_t rule = x->rule;
        uint32_t body = alternatives(p, 0);
        if (p->failed)
            return -1;
        p->g->rule[rule] = body;
        skip(p, 0);
        if (peek(p) >= 0 && peek(p) != '\n' && peek(p) != '\r' && !is_name(peek(p)))
            return bad(p, p->at, ERR_FORMAT, "expected a literal, a class, a name, a group or the end of the line");
    }
    for (uint32_t i = 0; !p->failed && i < p->n_names; i++)
        if (!p->names[i].defined)
            return i == 0 ? bad(p, p->n, ERR_FORMAT, "there is no rule called root")
                          : bad_rule(p, p->names[i].used_at, ERR_FORMAT, "there is no rule called", &p->names[i]);
    *root = expr_rule(p->x, root_rule);
    return p->failed ? -1 : 0;
}

struct grammar *grammar_compile_gbnf(const struct grammar_vocab *v, const char *text, size_t size,
                                     const struct grammar_options *o, struct err *e)
{
    struct grammar *g = grammar_new(v, o, e);
    if (!g)
        return NULL;
    struct gbnf_parser p = { .g = g, .x = &g->x, .text = text, .n = size, .e = e };
    uint32_t root = EXPR_NONE;
    int rc;
    if (size > MAX_TEXT)
        rc = err_set(e, ERR_LIMIT, "grammar: %zu bytes, more than %d", size, MAX_TEXT);
    else if (utf8_valid(text, size) != size)
        rc = err_set(e, ERR_FORMAT, "grammar: not UTF-8 at offset %zu", utf8_valid(text, size));
    else
        rc = parse(&p, &root);
    if (rc == 0)
        rc = grammar_check_work(g, e);
    if (rc == 0)
        rc = grammar_lower(g, &root, e);
    if (rc == 0)
        rc = grammar_after_thought(g, &root, e) != 0 ? -1 : grammar_finish(g, root, e);
    for (uint32_t i = 0; rc != 0 && g->left_recursive && i < p.n_names; i++)
        if (p.names[i].rule == g->left_recursive - 1)
            bad_rule(&p, p.names[i].defined_at, ERR_UNSUPPORTED, LEFT_RECURSION ": rule", &p.names[i]);
    free(p.names);
    free(p.table);
    if (rc == 0)
        return g;
    grammar_close(g);
    return NULL;
}
