/* call_scan.c - find calls of tools in free text. */
#include "libcommon/tools/call_scan.h"

#include <string.h>

#include "libcommon/base/json.h"

/* Limits of the work.  In a text of nothing but open brackets the scan would read the rest again
 * from each bracket.  So it ends when the bytes that were read without finding a value exceed
 * SCAN_WORK times the text's size plus SCAN_FREE. */
enum { MAX_NAME = 128, SCAN_WORK = 8, SCAN_FREE = 65536 };

/* ---- the end of a JSON value ---- */

struct text_span { const char *p, *end; };

static void skip_blanks(struct text_span *s)
{
    while (s->p < s->end && strchr(" \t\r\n", *s->p) && *s->p)
        s->p++;
}

static int skip_string(struct text_span *s)
{
    for (s->p++; s->p < s->end && *s->p != '"'; s->p++)
        if (*s->p == '\\' && ++s->p == s->end)
            return -1;
    return s->p++ < s->end ? 0 : -1;
}

static int skip_value(struct text_span *s, int depth);

static int skip_members(struct text_span *s, int depth, char close)
{
    s->p++;
    skip_blanks(s);
    if (s->p < s->end && *s->p == close) {
        s->p++;
        return 0;
    }
    for (;;) {
        skip_blanks(s);
        if (close == '}') {
            if (s->p == s->end || *s->p != '"' || skip_string(s) != 0)
                return -1;
            skip_blanks(s);
            if (s->p == s->end || *s->p++ != ':')
                return -1;
        }
        if (skip_value(s, depth + 1) != 0)
            return -1;
        skip_blanks(s);
        if (s->p == s->end)
            return -1;
        const char c = *s->p++;
        if (c == close)
            return 0;
        if (c != ',')
            return -1;
    }
}

/* Move after the value at s->p.  -1: there is none, or it is not complete; strings and numbers are
 * checked later, by the parser.  The limited depth bounds the work. */
static int skip_value(struct text_span *s, int depth)
{
    skip_blanks(s);
    if (s->p == s->end || depth > SCAN_MAX_DEPTH)
        return -1;
    if (*s->p == '"')
        return skip_string(s);
    if (*s->p == '{' || *s->p == '[')
        return skip_members(s, depth, *s->p == '{' ? '}' : ']');
    const char *from = s->p;
    while (s->p < s->end && ((*s->p >= 'a' && *s->p <= 'z') || (*s->p >= '0' && *s->p <= '9') ||
                             *s->p == '-' || *s->p == '+' || *s->p == '.' || *s->p == 'E'))
        s->p++;
    return s->p > from ? 0 : -1;
}

/* ---- calls in a value ---- */

struct scan {
    json_t *calls;
    int marked;                         /* inside of a ```tool fence or <tool_call> */
    char name[MAX_NAME + 1];            /* name in <tool_call name=...>; "": none */
    struct err *e;
    int failed;
};

static void add_call(struct scan *s, const char *name, json_t *arguments)
{
    if (s->failed)
        return;
    json_t *call = json_pack("{s:s, s:O}", "name", name, "arguments", arguments);
    if (json_array_size(s->calls) == SCAN_MAX_CALLS) {
        s->failed = err_set(s->e, ERR_LIMIT, "more than %d calls", SCAN_MAX_CALLS);
        json_decref(call);
    } else if (json_array_append_new(s->calls, call) != 0) {
        s->failed = err_nomem(s->e, "calls");
    }
}

/* The arguments: an object, or JSON text of one.  New reference; NULL: neither. */
static json_t *arguments_of(json_t *v)
{
    struct err ignored;
    if (json_is_object(v))
        return json_incref(v);
    if (!json_is_string(v))
        return NULL;
    json_t *parsed = js_parse("arguments", json_string_value(v), json_string_length(v), &ignored);
    if (json_is_object(parsed))
        return parsed;
    json_decref(parsed);
    return NULL;
}

/* Is v {"name", "arguments"}?  If so, add it. */
static int is_call(struct scan *s, const json_t *v)
{
    static const char *const names[] = { "name", "tool", "function" }, *const keys[] = { "arguments", "parameters" };
    const char *name = NULL;
    json_t *arguments = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names && !name; i++)
        name = json_string_value(js_get(v, names[i]));
    for (size_t i = 0; i < sizeof keys / sizeof *keys && !arguments; i++)
        arguments = arguments_of(js_get(v, keys[i]));
    if (name && !arguments && s->marked && !js_get(v, "arguments") && !js_get(v, "parameters"))
        arguments = json_object();
    const int yes = name && *name && strlen(name) <= MAX_NAME && arguments;
    if (yes)
        add_call(s, name, arguments);
    json_decref(arguments);
    return yes;
}

static void value_calls(struct scan *s, json_t *v)
{
    json_t *item;
    size_t i;
    if (s->name[0] && json_is_object(v)) {
        add_call(s, s->name, v);
        s->name[0] = '\0';
        return;
    }
    if (json_is_array(v)) {
        json_array_foreach(v, i, item)
            if (json_is_object(item))
                value_calls(s, item);
        return;
    }
    if (is_call(s, v))
        return;
    if (json_is_object(js_get(v, "function")))
        is_call(s, js_get(v, "function"));
    else if (json_is_array(js_get(v, "tool_calls")))
        value_calls(s, js_get(v, "tool_calls"));
}

/* ---- marks around JSON ---- */

static int starts(const struct text_span *s, const char *word)
{
    const size_t n = strlen(word);
    return (size_t)(s->end - s->p) >= n && memcmp(s->p, word, n) == 0;
}

/* Read a name, up to one of the bytes in `stop`, into s->name. */
static void take_name(struct scan *s, struct text_span *t, const char *stop)
{
    size_t n = 0;
    while (t->p < t->end && !strchr(stop, *t->p) && n < MAX_NAME)
        s->name[n++] = *t->p++;
    s->name[n] = '\0';
}

/* Skip a fence or tag, if there is one at t->p.  0: there is none. */
static int mark(struct scan *s, struct text_span *t)
{
    if (starts(t, "```")) {
        t->p += 3;
        s->marked = starts(t, "tool");
        return 1;
    }
    if (starts(t, "</tool_call") || starts(t, "</function")) {
        s->marked = 0;
        s->name[0] = '\0';
        t->p += 2;
        return 1;
    }
    if (starts(t, "<function=")) {
        t->p += strlen("<function=");
        take_name(s, t, ">\n{");
        return 1;
    }
    if (!starts(t, "<tool_call"))
        return 0;
    t->p += strlen("<tool_call");
    s->marked = 1;
    s->name[0] = '\0';
    skip_blanks(t);
    if (starts(t, "name=")) {
        t->p += strlen("name=");
        const int quoted = t->p < t->end && (*t->p == '"' || *t->p == '\'');
        t->p += quoted;
        take_name(s, t, quoted ? "\"'\n" : "> \n");
    }
    return 1;
}

json_t *call_scan(const char *text, size_t size, struct err *e)
{
    struct scan s = { .calls = json_array(), .e = e };
    struct text_span t = { text, text + size };
    struct err ignored;
    size_t work = 0;                    /* bytes read that turned out to be no JSON value */
    if (!s.calls) {
        err_nomem(e, "calls");
        return NULL;
    }
    while (t.p < t.end && !s.failed && work <= SCAN_WORK * size + SCAN_FREE) {
        if (mark(&s, &t))
            continue;
        struct text_span v = t;
        json_t *json = NULL;
        if ((*t.p == '{' || *t.p == '[') && skip_value(&v, 0) == 0)
            json = js_parse("call", t.p, (size_t)(v.p - t.p), &ignored);
        if (json)
            value_calls(&s, json);
        work += json ? 0 : (size_t)(v.p - t.p);
        t.p = json ? v.p : t.p + 1;
        json_decref(json);
    }
    if (!s.failed)
        return s.calls;
    json_decref(s.calls);
    return NULL;
}
