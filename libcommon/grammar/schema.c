/* schema.c - compile a JSON Schema: every set of members once, from the root on. */
#include "libcommon/grammar/schema.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"

enum { MAX_SCHEMA = 8 << 20 };

/* Limits of the two tries of compile_root(): sets of schemas that one value must satisfy together,
 * and members of all these sets.  The first try takes all alternatives of a negation.  If that
 * exceeds a limit, the second try takes one of each.  Both together take less than a second. */
static const struct { int sets, members; } limits[] = { { 20000, 290000 }, { 12000, 190000 } };

uint32_t schema_regex_cached(struct schema *s, const char *text, size_t size, int json, int search, int32_t *min,
                             int32_t *max, struct err *e)
{
    char few[256], *key = size + 4 > sizeof few ? malloc(size + 4) : few;
    int32_t lo, hi;
    if (!key)
        return err_nomem(e, "a schema"), (uint32_t)EXPR_NONE;
    key[0] = json ? 'j' : 't';
    key[1] = (char)('0' + search);
    memcpy(key + 2, text, size);
    key[size + 2] = '\0';
    const json_t *known = json_object_get(s->regexes, key);
    uint32_t r = (uint32_t)json_integer_value(json_array_get(known, 0));
    lo = (int32_t)json_integer_value(json_array_get(known, 1));
    hi = (int32_t)json_integer_value(json_array_get(known, 2));
    if (known)
        s->g->x.meter.work += 10;
    else if ((r = regex_compile(s->g, text, size, json, search, &lo, &hi, e)) != EXPR_NONE)
        /* Without memory, compiled again. */
        json_object_set_new(s->regexes, key, json_pack("[I, i, i]", (json_int_t)r, lo, hi));
    if (min)
        *min = lo;
    if (max)
        *max = hi;
    if (key != few)
        free(key);
    return r;
}

uint32_t schema_regex(struct schema *s, const char *text, int json)
{
    struct err why;
    return schema_regex_cached(s, text, strlen(text), json, 0, NULL, NULL, s->failed ? &why : s->e);
}

uint32_t schema_regex_n(struct schema *s, const json_t *at, const char *keyword, const char *text, size_t size,
                        int search, int32_t *min, int32_t *max)
{
    struct err e = { .msg = "" };
    uint32_t r = schema_regex_cached(s, text, size, 1, search, min, max, &e);
    if (r != EXPR_NONE)
        return r;
    return schema_report(s, at, keyword, e.code, e.msg);
}

uint32_t schema_pattern(struct schema *s, const json_t *at, const char *keyword, const char *text, size_t size,
                        int32_t *min, int32_t *max)
{
    return schema_regex_n(s, at, keyword, text, size, 1, min, max);
}

static int by_member(const void *a, const void *b)
{
    uintptr_t x = (uintptr_t)((const struct member *)a)->s, y = (uintptr_t)((const struct member *)b)->s;
    return x < y ? -1 : x > y;
}

static uint32_t hash_members(const struct member *m, int n)
{
    uint64_t h = 14695981039346656037u;
    for (int i = 0; i < n; i++)
        h = (h ^ (uintptr_t)m[i].s ^ (uint64_t)m[i].done << 56 ^ (uintptr_t)m[i].scope << 20) * 1099511628211u;
    return (uint32_t)(h >> 32 ^ h);
}

static struct memo *recall(struct schema *s, const struct member *m, int n)
{
    uint32_t h = hash_members(m, n);
    if (2 * s->n_memo >= s->n_table) {
        uint32_t size = s->n_table ? 2 * s->n_table : 256, *t = calloc(size, sizeof *t);
        if (!t) {
            schema_nomem(s);
            return NULL;
        }
        for (uint32_t i = 0; i < s->n_memo; i++) {
            uint32_t k = hash_members(s->keys + s->memo[i].first, (int)s->memo[i].n);
            while (t[k & (size - 1)])
                k++;
            t[k & (size - 1)] = i + 1;
        }
        free(s->table);
        s->table = t;
        s->n_table = size;
    }
    for (; s->table[h & (s->n_table - 1)]; h++) {
        struct memo *x = &s->memo[s->table[h & (s->n_table - 1)] - 1];
        int same = x->n == (uint32_t)n && !x->dropped && x->loose == s->loose;
        for (int i = 0; same && i < n; i++)
            same = s->keys[x->first + (uint32_t)i].s == m[i].s && s->keys[x->first + (uint32_t)i].done == m[i].done &&
                   s->keys[x->first + (uint32_t)i].scope == m[i].scope;
        if (same)
            return x;
    }
    if (s->n_memo == s->memo_room) {
        const uint32_t room = 2 * s->memo_room + 64;
        struct memo *v = realloc(s->memo, room * sizeof *v);
        if (!v) {
            schema_nomem(s);
            return NULL;
        }
        s->memo = v;
        s->memo_room = room;
    }
    if (s->n_keys + (uint32_t)n > s->keys_room) {
        const uint32_t room = 2 * s->keys_room + 64 + (uint32_t)n;
        struct member *v = realloc(s->keys, room * sizeof *v);
        if (!v) {
            schema_nomem(s);
            return NULL;
        }
        s->keys = v;
        s->keys_room = room;
    }
    if (n)
        memcpy(s->keys + s->n_keys, m, (size_t)n * sizeof *m);
    s->memo[s->n_memo] = (struct memo){ s->n_keys, (uint32_t)n, EXPR_NONE, -1, 0, 0, 0, s->loose };
    s->n_keys += (uint32_t)n;
    s->table[h & (s->n_table - 1)] = ++s->n_memo;
    return &s->memo[s->n_memo - 1];
}

/* Returns the entry of a set, which does not depend on the order of its members; *is_new: it was
 * created by this call.  NULL if memory ran out. */
static struct memo *recall_set(struct schema *s, const struct member_set *set, int *is_new)
{
    struct member *sorted = malloc(((size_t)set->n + 1) * sizeof *sorted);
    const uint32_t before = s->n_memo;
    if (!sorted) {
        schema_nomem(s);
        return NULL;
    }
    if (set->n)
        memcpy(sorted, set->v, (size_t)set->n * sizeof *sorted);
    if (set->n > 1)
        qsort(sorted, (size_t)set->n, sizeof *sorted, by_member);
    struct memo *memo = recall(s, sorted, set->n);
    free(sorted);
    *is_new = s->n_memo != before;
    return memo;
}

/* Returns the result of a set that was compiled before.  If the set is still being compiled (a
 * recursion), the result is a rule for it. */
static uint32_t known_result(struct schema *s, struct memo *memo)
{
    s->n_partial += (uint64_t)memo->partial;
    if (memo->rule < 0)
        return memo->result;
    memo->used = 1;
    return expr_rule(&s->g->x, memo->rule);
}

/* Compile a set for the first time. */
static uint32_t compile_set(struct schema *s, struct member_set *set, uint32_t index)
{
    const int rule = grammar_rule(s->g);
    const uint64_t partial = s->n_partial;
    uint32_t r = EXPR_NONE;
    s->memo[index].rule = rule;
    s->depth++;
    json_t *names = schema_few_names(s, set->v, set->n);
    if (names)
        schema_add_member(s, set, &(struct member){ names, MEMBER_HIDDEN, NULL });
    if (!schema_split(s, set->v, set->n, &r))
        r = schema_compile_types(s, set->v, set->n);
    s->depth--;
    struct memo *memo = &s->memo[index];
    memo->partial = s->n_partial != partial;
    if (memo->used) {                   /* recursive */
        s->g->rule[rule] = r;
        r = r == EXPR_NONE ? r : expr_rule(&s->g->x, rule);
        if (s->failed || r == EXPR_NONE)
            memo->rule = -1, memo->result = EXPR_NONE;
    } else {
        memo->rule = -1;
        memo->result = r;
    }
    if (s->failed)                      /* a failed try must not be remembered as empty */
        memo->dropped = 1;
    return r;
}

uint32_t schema_compile(struct schema *s, const struct member *given, int n)
{
    struct member_set all = { 0 };
    struct memo *memo = NULL;
    uint32_t r = EXPR_NONE;
    int rc = 0, is_new = 0;
    if (s->failed)
        return EXPR_NONE;
    if (s->depth > MAX_NESTING)
        return schema_limit(s, n ? given[0].s : s->root, "nested too deep");
    for (int i = 0; i < n && rc == 0; i++)
        rc = given[i].done & MEMBER_FLAT ? (schema_add_member(s, &all, &given[i]) < 0 ? -1 : 0)
                                         : schema_flatten(s, &all, &given[i], 0);
    if (rc == 0)
        memo = recall_set(s, &all, &is_new);
    if (memo && !is_new) {
        r = known_result(s, memo);
    } else if (!memo) {
        r = EXPR_NONE;                  /* nothing satisfies it, or it failed */
    } else if (++s->n_sets > limits[s->brief].sets || (s->n_set_members += all.n) > limits[s->brief].members) {
        if (s->brief)
            schema_limit(s, n ? given[0].s : s->root, "too many combinations of alternatives");
        s->failed = s->too_many = 1;
    } else if (s->g->x.meter.work > s->g->options.max_work || s->g->x.failed) {
        if (grammar_check_work(s->g, s->failed ? NULL : s->e) != 0)
            s->failed = 1;
    } else {
        r = compile_set(s, &all, (uint32_t)(memo - s->memo));
    }
    free(all.v);
    return s->failed ? (uint32_t)EXPR_NONE : r;
}

/* Compile the document.  If the alternatives of its negations have too many combinations, compile
 * it again with only one alternative of each negation. */
static uint32_t compile_root(struct schema *s)
{
    const struct member m = { s->root, 0, NULL };
    const uint32_t r = schema_compile(s, &m, 1);
    if (!s->too_many)
        return r;
    s->brief = 1;
    s->failed = s->depth = s->n_sets = s->n_set_members = 0;
    s->n_memo = s->n_keys = 0;
    memset(s->table, 0, s->n_table * sizeof *s->table);
    return schema_compile(s, &m, 1);
}

static void release(struct schema *s)
{
    json_decref(s->root);
    json_decref(s->owned);
    json_decref(s->made);
    json_decref(s->regexes);
    schema_refs_close(&s->refs);
    free(s->made_from);
    free(s->memo);
    free(s->keys);
    free(s->table);
}

/* Whether uniqueItems occurs anywhere in the document. */
static int has_unique(json_t *v)
{
    const char *key;
    json_t *x;
    size_t i;
    json_object_foreach(v, key, x)
        if ((json_is_true(x) && !strcmp(key, "uniqueItems")) || has_unique(x))
            return 1;
    json_array_foreach(v, i, x)
        if (has_unique(x))
            return 1;
    return 0;
}

static int init(struct schema *s, struct grammar *g, struct err *e)
{
    static const struct char_range every = { 1, 0x10FFFF };
    struct exprs *x = &g->x;
    memset(s, 0, sizeof *s);
    s->g = g;
    s->e = e;
    s->owned = json_array();
    s->regexes = json_object();
    s->made = json_object();
    if (!s->owned || !s->regexes || !s->made)
        return err_nomem(e, "a schema");
    s->plain_char = expr_json_chars(x, &every, 1);
    s->any_char = schema_regex(s, "[^\"\\\\\\x00-\\x1F]|\\\\(?:[\"\\\\/bfnrt]|u(?:[1-9A-CE-Fa-ce-f][0-9A-Fa-f]{3}|0[1-9A-Fa-f][0-9A-Fa-f]{2}|00[1-9A-Fa-f][0-9A-Fa-f]|000[1-9A-Fa-f]|"
                                  "[Dd][0-7][0-9A-Fa-f]{2}|[Dd][89ABab][0-9A-Fa-f]{2}\\\\u[Dd][C-Fc-f][0-9A-Fa-f]{2}))",
                                  0);
    g->string_char[0] = s->any_char;
    g->string_char[1] = x->one_char = s->plain_char;
    int flexible = g->options.whitespace == GRAMMAR_WS_FLEXIBLE;
    s->space = flexible ? schema_regex(s, "| |\\n[ \\t]{0,40}", 0) : (uint32_t)EXPR_EPSILON;
    uint32_t blank = flexible ? s->space : schema_regex(s, " ?", 0);
    s->comma = expr_concat(x, s->space, expr_concat(x, expr_byte(x, ',', ','), blank));
    s->colon = expr_concat(x, s->space, expr_concat(x, expr_byte(x, ':', ':'), blank));
    return exprs_check(x, e);
}

/* Set the error of an empty grammar. */
static int nothing_left(struct schema *s)
{
    if (!s->n_partial)
        return s->long_numbers ? err_set(s->e, ERR_LIMIT, "schema: nothing but numbers of more digits than are supported can satisfy it")
                               : err_set(s->e, ERR_FORMAT, "schema: nothing can satisfy it");
    schema_refuse(s, s->partial_at, s->partial_key, NEGATION);
    return -1;
}

/* The grammar of s->root; closes g on failure. */
static struct grammar *finish(struct schema *s, struct grammar *g, struct err *e)
{
    s->one_form = !s->failed && has_unique(s->root);
    uint32_t r = s->failed || schema_refs_open(s) != 0 ? (uint32_t)EXPR_NONE : compile_root(s);
    int rc = s->failed ? -1 : grammar_check_work(g, e);
    if (rc == 0 && r == EXPR_NONE)
        rc = nothing_left(s);
    if (rc == 0 && grammar_after_thought(g, &r, e) != 0)
        rc = -1;
    else if (rc == 0 && (rc = grammar_finish(g, r, e)) != 0)
        err_prefix(e, "schema");
    release(s);
    if (rc == 0)
        return g;
    grammar_close(g);
    return NULL;
}

static uint32_t compile_part(struct grammar *g, json_t *root, uint32_t *comma, uint32_t *colon, struct refusal *refusal,
                             struct err *e)
{
    struct schema s;
    uint32_t r = EXPR_NONE;
    if (init(&s, g, e) == 0) {
        s.refusal = refusal;
        s.root = json_incref(root);
        s.one_form = has_unique(root);
        r = schema_refs_open(&s) != 0 ? (uint32_t)EXPR_NONE : compile_root(&s);
        if (grammar_check_work(g, s.failed ? NULL : e) != 0)
            r = EXPR_NONE;
        else if (!s.failed && r == EXPR_NONE)
            nothing_left(&s);
        *comma = s.comma;
        *colon = s.colon;
    }
    release(&s);
    return r;
}

uint32_t grammar_schema_expr(struct grammar *g, json_t *root, uint32_t *comma, uint32_t *colon, struct err *e)
{
    return compile_part(g, root, comma, colon, NULL, e);
}

uint32_t grammar_schema_relaxed(struct grammar *g, json_t *root, json_t *dropped, uint32_t *comma, uint32_t *colon,
                                struct err *e)
{
    enum { MOST_DROPPED = 32 };
    for (int i = 0; i < MOST_DROPPED; i++) {
        struct refusal refusal = { .at = NULL };
        struct schema_path p = { .n = 0 };
        struct err why = { .code = ERR_NONE };
        const uint32_t r = compile_part(g, root, comma, colon, &refusal, &why);
        /* A part of root, which the caller may change. */
        json_t *at = (json_t *)(uintptr_t)refusal.at;
        if (r != EXPR_NONE || why.code != ERR_UNSUPPORTED || !schema_find_path(root, at, &p, 0)) {
            if (r == EXPR_NONE)
                *e = why;
            return r;
        }
        if (refusal.keyword[0])
            schema_path_add(&p, refusal.keyword);
        if (json_array_append_new(dropped, json_string(p.n ? p.text : "/")) != 0) {
            err_nomem(e, "a schema");
            return EXPR_NONE;
        }
        if (!refusal.keyword[0])
            json_object_clear(at);
        else if (json_object_del(at, refusal.keyword) != 0) {   /* the refused keyword is not in this schema */
            *e = why;
            return EXPR_NONE;
        }
    }
    err_set(e, ERR_UNSUPPORTED, "schema: more than %d keywords cannot be enforced", MOST_DROPPED);
    return EXPR_NONE;
}

static int is_word(const char *text, size_t size, const char *word)
{
    while (size && strchr(" \t\r\n", *text) && *text)
        text++, size--;
    size_t n = strlen(word);
    if (size < n || memcmp(text, word, n) != 0)
        return 0;
    while (n < size && text[n] && strchr(" \t\r\n", text[n]))
        n++;
    return n == size;
}

struct grammar *grammar_compile_schema(const struct grammar_vocab *v, const char *text, size_t size,
                                       const struct grammar_options *o, struct err *e)
{
    struct schema s;
    if (size > MAX_SCHEMA) {
        err_set(e, ERR_LIMIT, "schema: %zu bytes, more than %d", size, MAX_SCHEMA);
        return NULL;
    }
    struct grammar *g = grammar_new(v, o, e);
    if (!g)
        return NULL;
    if (init(&s, g, e) != 0) {
        release(&s);
        grammar_close(g);
        return NULL;
    }
    s.root = is_word(text, size, "true") ? json_true() : is_word(text, size, "false")
                 ? json_false() : js_parse("schema", text, size, e);
    if (!s.root)
        s.failed = 1;
    else if (!json_is_object(s.root) && !json_is_boolean(s.root)) {
        err_set(e, ERR_FORMAT, "schema: %s, not an object", js_kind(s.root));
        s.failed = 1;
    }
    return finish(&s, g, e);
}
