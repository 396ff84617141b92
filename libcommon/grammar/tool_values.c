/* tool_values.c - read arguments in Python's syntax (LFM2), and those with strings between marks
 * (Gemma 4). */
#include "libcommon/grammar/tool_values.h"

#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "libcommon/base/utf8.h"

enum { MORE = TOOL_READ_MORE, DONE = TOOL_READ_DONE, BAD = TOOL_READ_BAD, MOST_DEPTH = 64 };

struct value_text { char *s; size_t n, room; int failed; };

struct value_reader {
    const struct tool_format *f;
    const char *p, *end;
    struct value_text out;
    json_t *seen;                       /* names of the outermost object */
    char *newest;                       /* name of its member after the last comma, if that is new; owned */
    const char *base; struct open_part *open;           /* the string at the end, from base on */
    struct arguments_read *so_far;      /* up to the last comma of the outermost object; at: from base on */
};

static void put(struct value_text *t, const char *s, size_t n)
{
    if (t->n + n + 1 > t->room && !t->failed) {
        const size_t room = 2 * t->room + n + 64;
        char *longer = realloc(t->s, room);
        t->failed = !longer;
        t->s = longer ? longer : t->s;
        t->room = longer ? room : t->room;
    }
    if (t->failed)
        return;
    memcpy(t->s + t->n, s, n);
    t->n += n;
    t->s[t->n] = '\0';
}

/* Write a JSON string; `open`: without its closing quotation mark. */
static int put_string(struct value_text *t, const char *s, size_t n, int open)
{
    if (utf8_valid(s, n) != n && !open)
        return BAD;
    json_t *v = json_stringn(s, utf8_valid(s, n));
    char *own = v ? json_dumps(v, JSON_ENCODE_ANY) : NULL;
    t->failed |= !own;
    if (own)
        put(t, own, strlen(own) - (size_t)open);
    free(own);
    json_decref(v);
    return DONE;
}

static void blanks(struct value_reader *r)
{
    while (r->p < r->end && (*r->p == ' ' || *r->p == '\t' || *r->p == '\n' || *r->p == '\r'))
        r->p++;
}

static int is_word(char c)
{
    return c == '_' || c == '-' || c == '.' || (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') ||
           (c & 0x80);
}

/* Read a word: letters, digits and the like. */
static size_t word(struct value_reader *r, const char **from)
{
    *from = r->p;
    while (r->p < r->end && (is_word(*r->p) || *r->p == '+'))
        r->p++;
    return (size_t)(r->p - *from);
}

/* ---- strings ---- */

/* Find the mark that ends the text [*from, end).  MORE: only *n bytes of the text are certainly
 * before it. */
static int find_close(const struct tool_format *f, const char *from, const char *end, size_t *n)
{
    const char *mark = f->value_close + strspn(f->value_close, "\n");
    size_t m = strlen(mark);
    while (m && mark[m - 1] == '\n')
        m--;
    const size_t all = (size_t)(end - from);
    const char *hit = memmem(from, all, mark, m);
    if (hit) {
        *n = (size_t)(hit - from);
        return DONE;
    }
    size_t held = m - 1 < all ? m - 1 : all;
    while (held && memcmp(end - held, mark, held) != 0)
        held--;
    *n = all - held;
    if (f->value_close[0] == '\n' && *n && from[*n - 1] == '\n')
        --*n;
    return MORE;
}

/* Read the text between two marks.  MORE: only *n bytes of it have arrived. */
static int marked(struct value_reader *r, const char **from, size_t *n)
{
    const size_t m = strlen(r->f->value_close);
    *from = r->p + m;
    const int rc = find_close(r->f, *from, r->end, n);
    if (rc == DONE)
        r->p = *from + *n + m;
    return rc;
}

/* Whether the quotation mark at `at` is the last of its string.  Templates do not escape the marks
 * in a string, so the one followed by a comma or a bracket counts.  MORE: the text ends. */
static int closes(const struct value_reader *r, const char *at)
{
    const char *p = at + 1;
    while (p < r->end && (*p == ' ' || *p == '\n'))
        p++;
    return p == r->end ? MORE : memchr(",)]}:", *p, 5) ? DONE : BAD;
}

static int hex(const char *s, int n)
{
    int v = 0;
    for (int i = 0; i < n; i++) {
        const int c = s[i] | 32, digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (digit < 0)
            return -1;
        v = 16 * v + digit;
    }
    return v;
}

/* Read the escape after a backslash at s: returns its bytes; unknown ones stand for themselves. */
static size_t escape(const char *s, size_t n, struct value_text *to)
{
    static const char from[] = "nrtbf\\'\"/", into[] = "\n\r\t\b\f\\'\"/";
    const char *known = *s ? strchr(from, *s) : NULL;
    const int size = *s == 'u' ? 4 : *s == 'x' ? 2 : 0, code = size && n > (size_t)size ? hex(s + 1, size) : -1;
    if (known) {
        put(to, &into[known - from], 1);
        return 1;
    }
    char c[4];
    if (code > 0 && (code < 0xD800 || code > 0xDFFF)) {
        const size_t bytes = code < 0x80 ? 1 : code < 0x800 ? 2 : 3;
        c[0] = (char)(bytes == 1 ? code : bytes == 2 ? 0xC0 | code >> 6 : 0xE0 | code >> 12);
        c[bytes - 1] = (char)(bytes == 1 ? code : 0x80 | (code & 0x3F));
        if (bytes == 3)
            c[1] = (char)(0x80 | (code >> 6 & 0x3F));
        put(to, c, bytes);
        return 1 + (size_t)size;
    }
    put(to, "\\", 1);
    put(to, s, 1);
    return 1;
}

/* Read a string of Python or JSON from *at to its quotation mark into `to`.  *at: after the mark,
 * or the text that cannot be read yet. */
static int quoted(const struct value_reader *r, char quote, const char **at, struct value_text *to)
{
    for (const char *p = *at; ; p++) {
        const int last = p < r->end && *p == quote ? closes(r, p) : BAD;
        *at = last == DONE ? p + 1 : p;
        if (p == r->end || last != BAD)
            return last == DONE ? DONE : MORE;
        if (*p != '\\')
            put(to, p, 1);
        else if (p + 6 > r->end && (p + 1 == r->end || p[1] == 'u' || p[1] == 'x'))
            return MORE;
        else
            p += escape(p + 1, (size_t)(r->end - p - 1), to);
    }
}

/* The bytes at the end of a text that are not a whole character; -1: it is not UTF-8. */
static int incomplete(const char *s, size_t n)
{
    const size_t rest = n - utf8_valid(s, n);
    return rest == utf8_incomplete(s, n) ? (int)rest : -1;
}

void open_marked(struct open_part *o, const char *base, const char *text, size_t n)
{
    const int rest = incomplete(text, n);
    if (rest >= 0)
        *o = (struct open_part){ .kind = OPEN_MARKED, .at = (size_t)(text - base) + n - (size_t)rest };
}

enum tool_read open_string_on(struct open_part *o, const struct tool_format *f, const char *base, const char *end,
                              char **json)
{
    const struct value_reader r = { .f = f, .end = end };
    struct value_text t = { 0 }, out = { 0 };
    const char *from = base + o->at, *at = from;
    size_t n = 0;
    int rc = o->kind == OPEN_MARKED ? find_close(f, from, end, &n) : quoted(&r, o->quote, &at, &t);
    const char *s = o->kind == OPEN_MARKED ? from : t.s ? t.s : "";
    n = o->kind == OPEN_MARKED ? n : t.n;
    at = o->kind == OPEN_MARKED ? from + n : at;
    const int rest = rc == MORE ? incomplete(s, n) : -1;
    *json = NULL;
    if (rest < 0) {
        rc = DONE;
    } else {
        put_string(&out, s, n - (size_t)rest, 1);
        o->at = (size_t)(at - base) - (size_t)rest;
        if (!t.failed && !out.failed) {
            memmove(out.s, out.s + 1, out.n);           /* without the quotation mark before it */
            *json = out.s;
        } else {
            free(out.s);
        }
    }
    free(t.s);
    return (enum tool_read)rc;
}

/* DONE: the text begins with the mark of a string; MORE: it may, but more text is needed; BAD: it
 * does not, or strings have no mark. */
static int at_mark(const struct value_reader *r)
{
    const char *mark = r->f->style == TOOL_QUOTED ? r->f->value_close : "";
    const size_t m = strlen(mark), there = (size_t)(r->end - r->p) < m ? (size_t)(r->end - r->p) : m;
    return !m || memcmp(r->p, mark, there) != 0 ? BAD : there == m ? DONE : MORE;
}

/* Read a part of a string in a list or an object.  0: it needs more text. */
static int nested_string(struct open_part *o, struct value_reader *r)
{
    const char c = *r->p;
    if (!o->quote) {
        size_t n;
        const int rc = find_close(r->f, r->p, r->end, &n);
        o->in_string = rc == MORE;
        r->p += n + (rc == DONE ? strlen(r->f->value_close) : 0);
        return rc == DONE;
    }
    if (o->in_string == 2 && (c == ' ' || c == '\n')) {
        r->p++;
    } else if (o->in_string == 2 && memchr(",)]}:", c, 5)) {     /* as in closes() */
        o->in_string = 0;
    } else if (c == '\\') {
        if (r->end - r->p < 2)
            return 0;
        r->p += 2;
        o->in_string = 1;
    } else {
        r->p++;
        o->in_string = c == o->quote ? 2 : 1;
    }
    return 1;
}

/* Read the next byte, or mark, of a list or an object, outside its strings.  0: it needs more
 * text. */
static int nested_byte(struct open_part *o, struct value_reader *r)
{
    const int mark = at_mark(r);
    if (mark == MORE)
        return 0;
    o->in_string = 1;
    o->quote = '\0';
    r->p += mark == DONE ? strlen(r->f->value_close) : 1;
    if (mark == DONE)
        return 1;
    const char c = r->p[-1];
    if (c == '"' || c == '\'') {
        o->quote = c;
        return 1;
    }
    o->in_string = 0;
    if (c == '[' || c == '{')
        o->depth++;
    else if (c == ']' || c == '}')
        o->depth--;
    else if (!is_word(c) && !strchr("+,: \t\r\n", c))
        o->depth = 0;                   /* not valid */
    return 1;
}

enum tool_read open_nested_on(struct open_part *o, const struct tool_format *f, const char *base, const char *end)
{
    struct value_reader r = { .f = f, .p = base + o->at, .end = end };
    while (r.p < end && (o->in_string ? nested_string(o, &r) : nested_byte(o, &r)))
        if (!o->depth) {
            o->kind = OPEN_NONE;
            return TOOL_READ_DONE;
        }
    o->at = (size_t)(r.p - base);
    return TOOL_READ_MORE;
}

/* Read a string.  outer: it is a member of the outermost object, whose incomplete strings are
 * reported. */
static int string(struct value_reader *r, int outer)
{
    const int mark = at_mark(r);
    const char *from;
    size_t n;
    if (mark == MORE)
        return MORE;
    if (mark == DONE) {
        const int rc = marked(r, &from, &n);
        if (rc == DONE)
            return put_string(&r->out, from, n, 0);
        open_marked(r->open, r->base, from, n);
        r->open->silent = !outer;
        return outer && put_string(&r->out, from, n, 1) == BAD ? BAD : MORE;
    }
    struct value_text t = { 0 };
    const char quote = *r->p, *at = r->p + 1;
    int rc = quoted(r, quote, &at, &t);
    const char *text = t.s ? t.s : "";
    const int rest = incomplete(text, t.n);
    if (rc == DONE)
        r->p = at;
    else if (rest >= 0)
        *r->open = (struct open_part){ .kind = OPEN_QUOTED, .at = (size_t)(at - r->base) - (size_t)rest, .quote = quote,
                                       .silent = !outer };
    if ((rc == DONE || (rc == MORE && outer)) && put_string(&r->out, text, t.n, rc == MORE) == BAD)
        rc = BAD;
    r->out.failed |= t.failed;
    free(t.s);
    return rc;
}

/* ---- values ---- */

static int value(struct value_reader *r, int depth);

/* Read a word or a number, such as true, None or 1.5.  Other text must follow, because a word at
 * the end of the text may not be complete. */
static int scalar(struct value_reader *r)
{
    static const char *const words[][2] = { { "True", "true" }, { "False", "false" }, { "None", "null" } };
    const char *from;
    const size_t n = word(r, &from);
    if (r->p == r->end)
        return n > 512 ? BAD : MORE;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (n == strlen(words[i][0]) && !memcmp(from, words[i][0], n)) {
            put(&r->out, words[i][1], strlen(words[i][1]));
            return DONE;
        }
    json_t *v = json_loadb(from, n, JSON_DECODE_ANY, NULL);
    json_decref(v);
    if (!v)
        return BAD;
    put(&r->out, from, n);
    return DONE;
}

/* Read what follows a value: a comma (returns 2) or the closing bracket (returns DONE). */
static int goes_on(struct value_reader *r, char bracket)
{
    blanks(r);
    if (r->p == r->end)
        return MORE;
    if (*r->p != ',' && *r->p != bracket)
        return BAD;
    return *r->p++ == ',' ? 2 : DONE;
}

static int list(struct value_reader *r, int depth)
{
    int n = 0;
    r->p++;
    put(&r->out, "[", 1);
    for (;; n++) {
        blanks(r);
        if (r->p == r->end)
            return MORE;
        if (*r->p == ']') {                     /* the list is empty, or ends with a comma */
            r->p++;
            break;
        }
        if (n)
            put(&r->out, ",", 1);
        int rc = value(r, depth + 1);
        if (rc == DONE && (rc = goes_on(r, ']')) == DONE)
            break;
        if (rc != 2)
            return rc;
    }
    put(&r->out, "]", 1);
    return DONE;
}

/* Read a member's name, a word or a string, and convert it to a JSON string. */
static int name_of(struct value_reader *r, struct value_text *name)
{
    const struct value_text all = r->out;
    const char *from;
    int rc = BAD;
    if (at_mark(r) != BAD || *r->p == '"' || *r->p == '\'') {
        r->out = (struct value_text){ 0 };
        rc = string(r, 0);
        *name = r->out;
        r->out = all;
        return rc;
    }
    const size_t n = word(r, &from);
    if (r->p == r->end)
        return n > 512 ? BAD : MORE;
    return n ? put_string(name, from, n, 0) : BAD;
}

static int member(struct value_reader *r, char assign, int first, int depth)
{
    struct value_text name = { 0 };
    int rc = name_of(r, &name);
    r->out.failed |= name.failed;
    if (rc == DONE && !name.failed) {
        blanks(r);
        rc = r->p == r->end ? MORE : *r->p == assign ? DONE : BAD;
    }
    const struct value_text before = r->out;
    const int again = !depth && rc == DONE && json_object_get(r->seen, name.s) != NULL;
    if (rc == DONE && !name.failed) {
        r->p++;
        if (!first)
            put(&r->out, ",", 1);
        put(&r->out, name.s, name.n);
        put(&r->out, ":", 1);
        blanks(r);
        rc = r->p == r->end ? MORE : value(r, depth + 1);
        if (rc == DONE && !depth && !again) {
            r->out.failed |= json_object_set_new(r->seen, name.s, json_true()) != 0;
            r->newest = name.s;
        }
        /* a value that is not complete is shown only if it is a string of the outermost object */
        if (again || (rc == MORE && (depth || r->out.n == before.n + name.n + (size_t)(first ? 1 : 2)))) {
            r->out.n = before.n;
            r->open->silent = 1;
        }
    }
    if (r->newest != name.s)
        free(name.s);
    return rc;
}

/* After the comma behind a member of the outermost object: remember that it is complete. */
static void member_complete(struct value_reader *r)
{
    free(r->newest);
    r->newest = NULL;
    r->so_far->at = (size_t)(r->p - r->base);
    r->so_far->n = r->out.n;
}

/* Read the members NAME assign VALUE, ... and the closing bracket, from the first name on; of the
 * outermost object: from the first name that was not read before. */
static int object(struct value_reader *r, char assign, char bracket, int depth)
{
    const size_t begin = depth ? r->out.n + 1 : 1;
    if (depth || !r->out.n)
        put(&r->out, "{", 1);
    for (;;) {
        blanks(r);
        if (r->p == r->end)
            return MORE;
        if (*r->p == bracket) {
            r->p++;
            break;
        }
        int rc = member(r, assign, r->out.n == begin, depth);
        if (rc == DONE && (rc = goes_on(r, bracket)) == DONE)
            break;
        if (rc != 2)
            return rc;
        if (!depth)
            member_complete(r);
    }
    put(&r->out, "}", 1);
    return DONE;
}

static int value(struct value_reader *r, int depth)
{
    const size_t before = r->out.n;
    const struct open_part here = { .kind = OPEN_NESTED, .at = (size_t)(r->p - r->base), .silent = 1 };
    int rc;
    if (depth > MOST_DEPTH)
        return BAD;
    if (at_mark(r) != BAD || *r->p == '"' || *r->p == '\'')
        return string(r, depth == 1);
    const int nested = *r->p == '[' || *r->p == '{';
    if (*r->p == '[') {
        rc = list(r, depth);
    } else if (nested) {
        r->p++;
        rc = object(r, ':', '}', depth);
    } else {
        rc = scalar(r);
    }
    if (rc == MORE)
        r->out.n = before;              /* a part of a value is not shown */
    if (rc == MORE && nested && depth == 1)
        *r->open = here;
    return rc;
}

enum tool_read tool_values_read(const struct tool_format *f, const char **at, const char *end, char **json,
                                struct open_part *o, struct arguments_read *so_far)
{
    struct value_reader r = { .f = f, .p = *at + so_far->at, .end = end, .base = *at, .open = o, .so_far = so_far,
                              .seen = so_far->seen ? so_far->seen : json_object(),
                              .out = { so_far->arguments, so_far->n, so_far->n ? so_far->n + 1 : 0, 0 } };
    const int python = f->style == TOOL_PYTHON;
    so_far->arguments = NULL;
    int rc = object(&r, python ? '=' : ':', python ? ')' : '}', 0);
    if (r.newest)                       /* it is read again with the comma, or the bracket */
        json_object_del(r.seen, r.newest);
    free(r.newest);
    so_far->seen = r.seen;
    if (r.out.s)
        r.out.s[r.out.n] = '\0';
    if (r.out.failed || !r.out.s || !r.seen) {
        free(r.out.s);
        r.out.s = NULL;
        rc = BAD;
    }
    *json = r.out.s;
    *at = r.p;
    return (enum tool_read)rc;
}
