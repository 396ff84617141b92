/* string_ops.c - the tool string_ops: operations on text by code points. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "libcommon/base/json.h"
#include "libcommon/base/utf8.h"
#include "libcommon/tools/internal.h"

/* The arguments of one run; texts that were not given are NULL. */
struct string_request {
    const char *text, *old, *new, *separator;
    size_t n_text, n_old, n_new, n_separator;
    const json_t *items, *start, *end, *times;
};

static int is_letter(int32_t c)
{
    const utf8proc_category_t k = utf8proc_category(c);
    /* the enumeration has letters, marks and numbers in this order, each without gaps */
    return (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_NO) || c == '\'' || c == 0x2019;
}

static void add_char(struct tool_text *out, int32_t c)
{
    char bytes[4];
    text_add(out, bytes, (size_t)utf8_encode((uint32_t)c, bytes));
}

static void add_number(struct tool_text *out, size_t n)
{
    char text[24];
    text_add(out, text, (size_t)snprintf(text, sizeof text, "%zu", n));
}

static void add_list(struct tool_text *out, json_t *list)
{
    char *text = list ? json_dumps(list, JSON_COMPACT) : NULL;
    if (text)
        text_add(out, text, strlen(text));
    else
        out->error = ERR_MEMORY;
    free(text);
    json_decref(list);
}

/* ---- letters ---- */

enum letters { UPPER, LOWER, TITLE, CAPITALIZE };

static void change_letters(const struct string_request *r, enum letters how, struct tool_text *out)
{
    int n, inside = 0;
    for (size_t i = 0; i < r->n_text; i += (size_t)n) {
        const int32_t c = (int32_t)utf8_next(r->text + i, r->n_text - i, &n);
        const int first = how == TITLE ? !inside : i == 0;
        inside = is_letter(c);
        if (c == 0xDF && how == UPPER) /* the only common letter whose upper case is two letters */
            text_add(out, "SS", 2);
        else
            add_char(out, how == UPPER ? utf8proc_toupper(c) : how == LOWER || !first ? utf8proc_tolower(c)
                                                                                   : utf8proc_totitle(c));
    }
}

static void upper(const struct string_request *r, struct tool_text *out) { change_letters(r, UPPER, out); }
static void lower(const struct string_request *r, struct tool_text *out) { change_letters(r, LOWER, out); }
static void title(const struct string_request *r, struct tool_text *out) { change_letters(r, TITLE, out); }
static void capitalize(const struct string_request *r, struct tool_text *out) { change_letters(r, CAPITALIZE, out); }

/* ---- whole texts ---- */

static int space_at(const char *s, size_t size, size_t i, int *n)
{
    return utf8_is_space(utf8_next(s + i, size - i, n));
}

static void trim(const struct string_request *r, struct tool_text *out)
{
    size_t from = 0, to = r->n_text;
    int n;
    while (from < to && space_at(r->text, to, from, &n))
        from += (size_t)n;
    while (to > from && space_at(r->text, to, utf8_prev(r->text, to), &n))
        to = utf8_prev(r->text, to);
    text_add(out, r->text + from, to - from);
}

static void reverse(const struct string_request *r, struct tool_text *out)
{
    for (size_t i = r->n_text; i > 0;) {
        const size_t before = utf8_prev(r->text, i);
        text_add(out, r->text + before, i - before);
        i = before;
    }
}

static void length(const struct string_request *r, struct tool_text *out)
{
    add_number(out, utf8_count(r->text, r->n_text));
}

/* Call fn for each word, which is what white space separates.  Returns their number. */
static size_t each_word(const struct string_request *r, json_t *list)
{
    size_t i = 0, words = 0;
    int n;
    while (i < r->n_text) {
        while (i < r->n_text && space_at(r->text, r->n_text, i, &n))
            i += (size_t)n;
        const size_t from = i;
        while (i < r->n_text && !space_at(r->text, r->n_text, i, &n))
            i += (size_t)n;
        words += i > from;
        if (list && i > from)
            json_array_append_new(list, json_stringn(r->text + from, i - from));
    }
    return words;
}

static void words(const struct string_request *r, struct tool_text *out) { add_number(out, each_word(r, NULL)); }

/* ---- searching ---- */

/* The offset of the next occurrence from `from` on; n_text: none. */
static size_t find_next(const struct string_request *r, const char *what, size_t n_what, size_t from)
{
    const char *p = n_what ? memmem(r->text + from, r->n_text - from, what, n_what) : NULL;
    return p ? (size_t)(p - r->text) : r->n_text;
}

static void split(const struct string_request *r, struct tool_text *out)
{
    json_t *list = json_array();
    if (!r->n_separator) {
        each_word(r, list);
    } else {
        for (size_t i = 0;; i += r->n_separator) {
            const size_t at = find_next(r, r->separator, r->n_separator, i);
            json_array_append_new(list, json_stringn(r->text + i, at - i));
            i = at;
            if (at == r->n_text)
                break;
        }
    }
    add_list(out, list);
}

static void join(const struct string_request *r, struct tool_text *out)
{
    const json_t *item;
    size_t i;
    json_array_foreach(r->items, i, item) {
        if (i)
            text_add(out, r->separator ? r->separator : "", r->n_separator);
        text_add(out, json_string_value(item), json_string_length(item));
    }
}

static void replace(const struct string_request *r, struct tool_text *out)
{
    for (size_t i = 0; i < r->n_text && !out->error;) {
        const size_t at = find_next(r, r->old, r->n_old, i);
        text_add(out, r->text + i, at - i);
        if (at == r->n_text)
            break;
        text_add(out, r->new ? r->new : "", r->n_new);
        i = at + r->n_old;
    }
}

static void count(const struct string_request *r, struct tool_text *out)
{
    size_t n = 0;
    for (size_t at = 0; (at = find_next(r, r->old, r->n_old, at)) < r->n_text; at += r->n_old)
        n++;
    add_number(out, n);
}

static void find(const struct string_request *r, struct tool_text *out)
{
    const size_t at = find_next(r, r->old, r->n_old, 0);
    if (at == r->n_text)
        text_add(out, "-1", 2);
    else
        add_number(out, utf8_count(r->text, at));
}

/* A position of substring: negative ones count from the end. */
static size_t position(const json_t *v, size_t otherwise, size_t n)
{
    const json_int_t i = v ? json_integer_value(v) : (json_int_t)otherwise, at = i < 0 ? (json_int_t)n + i : i;
    return at < 0 ? 0 : (size_t)at > n ? n : (size_t)at;
}

static void substring(const struct string_request *r, struct tool_text *out)
{
    const size_t n = utf8_count(r->text, r->n_text), from = position(r->start, 0, n), to = position(r->end, n, n);
    const size_t a = utf8_offset(r->text, r->n_text, from), b = utf8_offset(r->text, r->n_text, to);
    if (a < b)
        text_add(out, r->text + a, b - a);
}

static void repeat(const struct string_request *r, struct tool_text *out)
{
    const json_int_t times = json_integer_value(r->times);
    for (json_int_t i = 0; i < times && r->n_text && !out->error; i++)
        text_add(out, r->text, r->n_text);
}

static const struct operation {
    const char *name;
    const char *needs[2];               /* arguments; NULL: no more */
    void (*run)(const struct string_request *r, struct tool_text *out);
} operations[] = {
    { "upper", { "text" }, upper }, { "lower", { "text" }, lower }, { "title", { "text" }, title },
    { "capitalize", { "text" }, capitalize }, { "trim", { "text" }, trim }, { "reverse", { "text" }, reverse },
    { "length", { "text" }, length }, { "words", { "text" }, words }, { "split", { "text" }, split },
    { "join", { "items" }, join }, { "replace", { "text", "old" }, replace }, { "count", { "text", "old" }, count },
    { "find", { "text", "old" }, find }, { "substring", { "text" }, substring }, { "repeat", { "text", "times" }, repeat },
};

static const char *text_of(const json_t *arguments, const char *name, size_t *n)
{
    const json_t *v = js_get(arguments, name);
    *n = json_string_length(v);
    return json_string_value(v);
}

char *run_string_ops(const struct native_env *env, const json_t *arguments, struct err *e)
{
    const char *name = json_string_value(json_object_get(arguments, "operation"));
    const struct operation *op = operations;
    struct tool_text out = { 0 };
    struct string_request r = { .items = js_get(arguments, "items"), .start = js_get(arguments, "start"),
                         .end = js_get(arguments, "end"), .times = js_get(arguments, "times") };
    (void)env;
    while (strcmp(op->name, name) != 0)         /* the schema lists the names of this table */
        op++;
    for (int i = 0; i < 2 && op->needs[i]; i++)
        if (!js_get(arguments, op->needs[i])) {
            err_set(e, ERR_FORMAT, "%s: missing, %s needs it", op->needs[i], name);
            return NULL;
        }
    r.text = text_of(arguments, "text", &r.n_text);
    r.old = text_of(arguments, "old", &r.n_old);
    r.new = text_of(arguments, "new", &r.n_new);
    r.separator = text_of(arguments, "separator", &r.n_separator);
    op->run(&r, &out);
    return text_finish(&out, e);
}
