/* tool_parser.c - read the calls in an answer while its text comes. */
#include "libcommon/grammar/tools.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/rng.h"
#include "libcommon/base/utf8.h"
#include "libcommon/grammar/tool_format.h"
#include "libcommon/grammar/tool_values.h"

struct tool_parser {
    const struct tool_format *f;
    struct tool_parser_options o;
    struct rng rng;
    char *text; size_t n, room, at;     /* text[at..n) has not been reported yet */
    /* in_list: text[at] is behind a call of a list. */
    int thinking, in_list, in_section, said, n_calls;
    const char *think, *think_end;
    char **ids;                         /* [n_calls], owned */
    /* stream_arguments: bytes of the arguments of the call at `at` that were reported. */
    size_t shown;
    int named;                          /* its TOOL_CALL was reported */
    int waiting;                        /* text[at] begins a call that is not complete */
    int failed;                         /* memory ran out */
};

enum { MORE = 0, DONE = 1, BAD = -1 };

/* The parts of one call, in text from `at` on. */
struct parsed_call {
    char *name, *arguments, *id;        /* owned; arguments is JSON */
    /* The arguments so far, if the text has them as JSON. */
    const char *raw; size_t n_raw;
    size_t end;                         /* bytes from at to behind it */
};

static void call_release(struct parsed_call *c)
{
    free(c->name);
    free(c->arguments);
    free(c->id);
    memset(c, 0, sizeof *c);
}

struct json_cursor { const char *p, *end; };

static void blanks(struct json_cursor *c)
{
    while (c->p < c->end && strchr(" \t\r\n", *c->p) && *c->p)
        c->p++;
}

/* Read a marker, with any blanks in and around it: DONE, MORE (it may come) or BAD. */
static int marker(struct json_cursor *c, const char *m)
{
    blanks(c);
    for (; *m; m++) {
        if (strchr(" \t\r\n", *m)) {
            blanks(c);
            continue;
        }
        if (c->p == c->end)
            return MORE;
        if (*c->p != *m)
            return BAD;
        c->p++;
    }
    return DONE;
}

/* Read a whole JSON value: DONE with c behind it, MORE, or BAD where it cannot become one. */
static int json_text(struct json_cursor *c, const char **from)
{
    int depth = 0, in_string = 0;
    blanks(c);
    *from = c->p;
    if (c->p == c->end)
        return MORE;
    if (*c->p != '{' && *c->p != '[')
        return BAD;
    for (; c->p < c->end; c->p++) {
        char x = *c->p;
        if (in_string) {
            if (x == '\\') {
                if (c->p + 1 == c->end)
                    return MORE;
                c->p++;
            } else if (x == '"') {
                in_string = 0;
            }
        } else if (x == '"') {
            in_string = 1;
        } else if (x == '{' || x == '[') {
            depth++;
        } else if (x == '}' || x == ']') {
            if (--depth == 0) {
                c->p++;
                return DONE;
            }
        }
    }
    return MORE;
}

static const json_t *tool_of(const struct tool_parser *p, const char *name)
{
    const json_t *t;
    size_t i;
    json_array_foreach(p->o.tools, i, t) {
        const json_t *f = json_object_get(t, "function");
        const char *n = json_string_value(json_object_get(f ? f : t, "name"));
        if (n && !strcmp(n, name))
            return f ? f : t;
    }
    return NULL;
}

static int known_name(const struct tool_parser *p, const char *name)
{
    return *name && (!p->o.tools || tool_of(p, name));
}

/* NULL with p->failed set.  The parser then reads no more of the text: it would report text that
 * it could not read as text of the answer. */
static char *copy(struct tool_parser *p, const char *s, size_t n)
{
    char *own = malloc(n + 1);
    if (!own) {
        p->failed = 1;
        return NULL;
    }
    memcpy(own, s, n);
    own[n] = '\0';
    return own;
}

/* The text of an object's member; the object has been parsed, so that it is JSON. */
static const char *raw_member(const char *text, size_t n, const char *key, size_t *size)
{
    const char *end = text + n, *from = NULL;
    int depth = 0, is_key = 0, in_key = 0;
    const size_t m = strlen(key);
    for (const char *c = text; c < end; c++) {
        if (depth == 1 && !from && !strchr(" \t\r\n:,{[", *c) && in_key && is_key && *c != '}' && *c != ']')
            from = c;
        if (from && depth == 1 && (*c == ',' || *c == '}' || *c == ']')) {
            while (c > from && strchr(" \t\r\n", c[-1]))
                c--;
            *size = (size_t)(c - from);
            return from;
        }
        if (*c == '"') {
            const char *word = ++c;
            while (c < end && *c != '"')
                c += *c == '\\' ? 2 : 1;
            if (depth == 1 && !in_key && !from)
                is_key = (size_t)(c - word) == m && !memcmp(word, key, m);
        } else if (*c == ':' && depth == 1) {
            in_key = 1;
        } else if (*c == '{' || *c == '[') {
            if (depth == 1 && !from && in_key && is_key)
                from = c;
            depth++;
        } else if (*c == '}' || *c == ']') {
            depth--;
        } else if (*c == ',' && depth == 1) {
            in_key = is_key = 0;
        }
    }
    return NULL;
}

/* One {"name", "arguments"} object. */
static int object_call(struct tool_parser *p, const char *text, size_t n, struct parsed_call *c)
{
    /* A schema allows a key twice. */
    json_t *v = json_loadb(text, n, 0, NULL), *inside = v;
    int rc = BAD;
    if (json_is_object(json_object_get(v, "function")))
        inside = json_object_get(v, "function");
    const int named = p->f->arguments != NULL;
    const char *name = named ? json_string_value(json_object_get(inside, p->f->name_key ? p->f->name_key : "name"))
                             : json_object_iter_key(json_object_iter(v));
    const char *key = !named ? name : json_object_get(inside, "arguments") ? "arguments" : "parameters";
    json_t *a = key ? json_object_get(inside, key) : NULL, *id = named ? json_object_get(v, "id") : NULL;
    const char *raw = text;             /* numbers stay as they were written */
    if (json_is_object(a) && inside != v)
        raw = raw_member(text, n, "function", &n);
    if (json_is_object(a) && raw)
        raw = raw_member(raw, n, key, &n);
    if (name && known_name(p, name) && (!a || json_is_object(a) || json_is_string(a))) {
        c->name = copy(p, name, strlen(name));
        c->arguments = !a ? copy(p, "{}", 2) : json_is_string(a) ? copy(p, json_string_value(a), json_string_length(a))
                                                                 : raw ? copy(p, raw, n) : NULL;
        c->id = json_is_string(id) ? copy(p, json_string_value(id), json_string_length(id)) : NULL;
        rc = c->name && c->arguments ? DONE : BAD;
    }
    json_decref(v);
    return rc;
}

/* Read `"key" : "` and the text up to the next quotation mark; NULL where there is none. */
static const char *text_member(struct json_cursor *k, const char *key, size_t *n)
{
    char head[64];
    snprintf(head, sizeof head, "%s%s\"", key, *key ? "\" : " : "");
    if (*key && marker(k, "\"") != DONE)
        return NULL;
    if (marker(k, head) != DONE)
        return NULL;
    const char *text = k->p, *end = memchr(text, '"', (size_t)(k->end - text));
    if (end)
        k->p = end + 1;
    *n = end ? (size_t)(end - text) : 0;
    return end ? text : NULL;
}

/* {"name": ..., "arguments": {...}} in this order, perhaps incomplete: its name, and its
 * arguments as far as they are there. */
static void object_head(struct tool_parser *p, struct json_cursor k, struct parsed_call *c)
{
    const struct tool_format *f = p->f;
    const char *from, *name;
    char head[64];
    size_t n;
    if (marker(&k, "{") != DONE ||
        (f->id_key && (!text_member(&k, f->id_key, &n) || marker(&k, ",") != DONE)) ||
        !(name = text_member(&k, !f->arguments ? "" : f->name_key ? f->name_key : "name", &n)))
        return;
    if (f->arguments)
        snprintf(head, sizeof head, ", \"%s\" : ", f->arguments);
    else
        strcpy(head, ": ");
    char *word = marker(&k, head) == DONE ? copy(p, name, n) : NULL;
    if (!word || !known_name(p, word) || k.p == k.end || *k.p != '{') {
        free(word);
        return;
    }
    free(c->name);
    c->name = word;
    json_text(&k, &from);
    c->raw = from;
    c->n_raw = (size_t)(k.p - from);
}

/* Read up to the first `end`: DONE with the text between, or MORE. */
static int until(struct json_cursor *c, const char *end, const char **from, size_t *n)
{
    size_t m = strlen(end);
    while (m && strchr(" \t\r\n", end[m - 1]))
        m--;                            /* blanks at its end are read loosely */
    const char *hit = memmem(c->p, (size_t)(c->end - c->p), end, m);
    if (!hit)
        return MORE;
    *from = c->p;
    *n = (size_t)(hit - c->p);
    c->p = hit + m;
    return DONE;
}

/* ---- arguments between tags ---- */

static int is_string(const json_t *tool, const char *key)
{
    const json_t *properties = json_object_get(json_object_get(tool, "parameters"), "properties");
    const char *type = json_string_value(json_object_get(json_object_get(properties, key), "type"));
    return type && !strcmp(type, "string");
}

/* An argument that was written as text: a string, or JSON if it is JSON. */
static json_t *tag_value(int string, const char *text, size_t n)
{
    json_t *v = string ? NULL : json_loadb(text, n, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, NULL);
    return v ? v : json_stringn(text, n);
}

/* Add text to the arguments, which are a string of their own. */
static void add(struct tool_parser *p, struct parsed_call *c, const char *text)
{
    const size_t before = c->arguments ? strlen(c->arguments) : 0, n = strlen(text);
    char *longer = realloc(c->arguments, before + n + 1);
    if (!longer) {
        p->failed = 1;
        return;
    }
    memcpy(longer + before, text, n + 1);
    c->arguments = longer;
}

/* Add `"key":value`.  An incomplete value has no closing quotation mark. */
static void add_member(struct tool_parser *p, struct parsed_call *c, const char *key, const json_t *value, int complete)
{
    json_t *name = json_string(key);
    char *k = name ? json_dumps(name, JSON_ENCODE_ANY) : NULL, *v = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    if (k && v) {
        if (!complete)
            v[strlen(v) - 1] = '\0';
        if (c->arguments && c->arguments[1])
            add(p, c, ",");
        add(p, c, k);
        add(p, c, ":");
        add(p, c, v);
    }
    p->failed |= !k || !v;
    json_decref(name);
    free(k);
    free(v);
}

enum tag_type { TAG_BY_SCHEMA, TAG_STRING, TAG_JSON };
struct tag { const char *key, *value; size_t n_key, n_value; enum tag_type type; };

/* Remove the blanks at the ends of a value that belong to the markers; at the end of an
 * incomplete value, remove a possible beginning of the closing marker, too. */
static void trim(const struct tool_format *f, const char *after_key, struct tag *t, int complete)
{
    const char *end = f->value_close + strspn(f->value_close, "\n");
    size_t held = complete ? 0 : strlen(end) - 1;
    if (held > t->n_value)
        held = t->n_value;
    while (held && memcmp(t->value + t->n_value - held, end, held) != 0)
        held--;
    t->n_value -= held;
    if (strchr(f->key_close, '\n') && !strchr(after_key, '<') && t->n_value && t->value[0] == '\n')
        t->value++, t->n_value--;
    if (f->value_close[0] == '\n' && t->n_value && t->value[t->n_value - 1] == '\n')
        t->n_value--;
}

/* Read the rest of the marker behind a key: it says whether the value is a string. */
static int type_of_tag(const struct tool_format *f, struct json_cursor *c, struct tag *t)
{
    struct json_cursor json = *c;
    const int rc = marker(c, f->key_close + 1), other = marker(&json, f->key_close_json + 1);
    t->type = rc == DONE ? TAG_STRING : TAG_JSON;
    if (other == DONE)
        *c = json;
    return rc == DONE || other == DONE ? DONE : rc == MORE || other == MORE ? MORE : BAD;
}

/* Read the next argument.  MORE with a key: its value is incomplete. */
static int read_tag(const struct tool_format *f, struct json_cursor *c, struct tag *t)
{
    /* with key_close_json, the name ends at the quotation mark that both begin with */
    const size_t n = f->key_close_json ? 1 : strcspn(f->key_close, ">") + 1;
    const char *after_key = f->key_close_json ? "" : f->key_close + n;     /* "" or a line break and <arg_value> */
    char first[32];
    int rc;
    memset(t, 0, sizeof *t);
    memcpy(first, f->key_close, n);
    first[n] = '\0';
    if ((rc = marker(c, f->key_open)) != DONE || (rc = until(c, first, &t->key, &t->n_key)) != DONE)
        return rc;
    if (strchr(after_key, '<') && (rc = marker(c, strchr(after_key, '<'))) != DONE) {
        t->key = NULL;
        return rc;
    }
    if (f->key_close_json && (rc = type_of_tag(f, c, t)) != DONE) {
        t->key = NULL;
        return rc;
    }
    const char *from = c->p;
    rc = until(c, f->value_close + strspn(f->value_close, "\n"), &t->value, &t->n_value);
    if (rc == MORE) {
        t->value = from;
        t->n_value = (size_t)(c->end - from);
    }
    trim(f, after_key, t, rc == DONE);
    return rc;
}

/* Add an argument to the JSON text; the first of two with the same name counts. */
static int take_tag(struct tool_parser *p, struct parsed_call *call, json_t *seen, const struct tag *t, int complete)
{
    const json_t *tool = tool_of(p, call->name);
    char *name = copy(p, t->key, t->n_key);
    const int text_only = name && !complete, known = name && json_object_get(seen, name),
              string = name && (t->type == TAG_BY_SCHEMA ? is_string(tool, name) : t->type == TAG_STRING);
    int rc = DONE;
    if (!name || utf8_valid(name, t->n_key) != t->n_key) {
        rc = BAD;
    } else if (!known && (!text_only || string)) {
        const size_t n = complete ? t->n_value : utf8_valid(t->value, t->n_value);
        json_t *v = tag_value(string, t->value, n);
        if (v) {
            add_member(p, call, name, v, complete);
            p->failed |= json_object_set_new(seen, name, json_true()) != 0;
        }
        rc = v ? DONE : BAD;
        json_decref(v);
    }
    free(name);
    return rc;
}

static int read_tags(struct tool_parser *p, struct json_cursor *c, struct parsed_call *call)
{
    const struct tool_format *f = p->f;
    json_t *seen = json_object();
    struct tag t;
    int rc = DONE;
    add(p, call, "{");
    while (rc == DONE && !p->failed) {
        struct json_cursor close = *c, k = *c;
        const int ends = marker(&close, f->close);
        if (ends == DONE) {
            *c = close;
            add(p, call, "}");
            break;
        }
        rc = read_tag(f, &k, &t);
        if (rc == BAD && ends == MORE)
            rc = MORE;
        if (rc == DONE)
            rc = take_tag(p, call, seen, &t, 1);
        else if (rc == MORE && t.key && p->o.stream_arguments)
            rc = take_tag(p, call, seen, &t, 0) == BAD ? BAD : MORE;
        if (rc == DONE)
            *c = k;
    }
    json_decref(seen);
    call->raw = call->arguments;
    call->n_raw = call->arguments ? strlen(call->arguments) : 0;
    return p->failed ? BAD : rc;
}

/* ---- one call ---- */

/* Read the closing marker, if the family has one: MORE while it may still come.  At the end of
 * the answer a part of it is enough. */
static int closing(const struct tool_parser *p, struct json_cursor *k, int end)
{
    struct json_cursor close = *k;
    const int rc = *p->f->close ? marker(&close, p->f->close) : DONE;
    if (rc == DONE || (rc == MORE && end)) {
        *k = close;
        return DONE;
    }
    return rc;
}

static int read_object_call(struct tool_parser *p, struct json_cursor *k, struct parsed_call *c, int end)
{
    const int list = p->f->style == TOOL_JSON_LIST, bare = p->in_list || (!list && k->p < k->end && *k->p == '{');
    const char *from;
    int rc;
    if (!bare && ((rc = marker(k, p->f->open)) != DONE || (list && (rc = marker(k, "[")) != DONE)))
        return rc;
    struct json_cursor object = *k;
    rc = json_text(k, &from);
    const int bad = rc == DONE && object_call(p, from, (size_t)(k->p - from), c) != DONE;
    if (p->o.stream_arguments)
        object_head(p, object, c);
    if (bad)
        return BAD;
    return rc == DONE && !bare && !list ? closing(p, k, end) : rc;
}

/* The text between the name and the arguments. */
static int after_name(struct tool_parser *p, struct json_cursor *k, struct parsed_call *c, int end)
{
    const struct tool_format *f = p->f;
    if (!strcmp(f->name, "kimi-k2") && k->p < k->end && *k->p == ':')       /* functions.name:0 */
        for (k->p++; k->p < k->end && *k->p >= '0' && *k->p <= '9'; k->p++)
            ;
    if (!strcmp(f->name, "mistral-args")) {
        struct json_cursor id = *k;
        int rc = marker(&id, "[CALL_ID]");
        if (rc == DONE) {
            const char *word = id.p;
            while (id.p < id.end && *id.p != '[')
                id.p++;
            if (id.p == id.end)
                return end ? BAD : MORE;
            c->id = copy(p, word, (size_t)(id.p - word));
            *k = id;
        } else if (rc == MORE && !end) {
            return MORE;
        }
    }
    if (strcmp(f->name, "gpt-oss") != 0)
        return marker(k, f->before_arguments);
    /* " <|constrain|>json<|message|>" or only "<|message|>". */
    const char *hit = memmem(k->p, (size_t)(k->end - k->p), "<|message|>", 11);
    if (!hit)
        return end || k->end - k->p > 64 ? BAD : MORE;
    k->p = hit + 11;
    return DONE;
}

static int read_named_call(struct tool_parser *p, struct json_cursor *k, struct parsed_call *c, int end)
{
    const char *from;
    const int python = p->f->style == TOOL_PYTHON;
    int rc = p->in_list ? DONE : marker(k, p->f->open);
    if (rc != DONE || (python && !p->in_list && (rc = marker(k, "[")) != DONE))
        return rc;
    blanks(k);
    if (p->f->id_close) {
        size_t n_id;
        if (until(k, p->f->id_close, &from, &n_id) != DONE)
            return end || k->end - k->p > 256 ? BAD : MORE;
        c->id = copy(p, from, n_id);
    }
    /* the name ends where its characters do */
    from = k->p;
    while (k->p < k->end && (strchr("_-.", *k->p) ? *k->p != '\0' : (*k->p >= '0' && *k->p <= '9') ||
                             ((*k->p | 32) >= 'a' && (*k->p | 32) <= 'z')))
        k->p++;
    const size_t n = (size_t)(k->p - from);
    if (k->p == k->end && !end)
        return n > 256 ? BAD : MORE;
    c->name = copy(p, from, n);
    if (!c->name || !known_name(p, c->name))
        return BAD;
    if ((rc = after_name(p, k, c, end)) != DONE)
        return rc;
    if (p->f->style == TOOL_TAGS)
        return read_tags(p, k, c);
    if (python || p->f->style == TOOL_QUOTED) {
        rc = (int)tool_values_read(p->f, &k->p, k->end, &c->arguments);
        p->failed |= !c->arguments;
        c->raw = c->arguments;
        c->n_raw = c->arguments ? strlen(c->arguments) : 0;
        return rc == DONE && !python ? closing(p, k, end) : rc;
    }
    rc = json_text(k, &from);
    c->raw = from;
    c->n_raw = (size_t)(k->p - from);
    if (rc != DONE)
        return rc;
    json_t *v = json_loadb(from, c->n_raw, 0, NULL);
    json_decref(v);
    if (!v)
        return BAD;
    c->arguments = copy(p, from, c->n_raw);
    return closing(p, k, end);
}

/* Read a call in text[at..n), which begins with the opening marker, or in a list.  `end`: no more
 * text comes. */
static int read_call(struct tool_parser *p, struct parsed_call *c, int end)
{
    struct json_cursor k = { p->text + p->at, p->text + p->n };
    memset(c, 0, sizeof *c);
    const int is_object = p->f->style == TOOL_JSON || p->f->style == TOOL_JSON_LIST;
    int rc = (is_object ? read_object_call : read_named_call)(p, &k, c, end);
    if (rc == DONE)
        c->end = (size_t)(k.p - (p->text + p->at));
    return rc;
}

static void hand_on(struct tool_parser *p, enum tool_event_kind kind, const char *text, size_t n, const char *id)
{
    const struct tool_event ev = { kind, text, n, kind == TOOL_CALL || kind == TOOL_ARGUMENTS ? p->n_calls - 1 : 0,
                                   id };
    if (n || kind == TOOL_CALL)
        p->o.on_event(p->o.user, &ev);
}

static int begin_call(struct tool_parser *p, const char *name, const char *id)
{
    char **ids = realloc(p->ids, ((size_t)p->n_calls + 1) * sizeof *ids), *own = NULL;
    if (ids)
        p->ids = ids;
    if (id)
        own = copy(p, id, strlen(id));
    else if (asprintf(&own, "call_%016llx%08llx", (unsigned long long)rng_u64(&p->rng),
                      (unsigned long long)(rng_u64(&p->rng) & 0xFFFFFFFF)) < 0)
        own = NULL;
    if (!ids || !own) {
        free(own);
        p->failed = 1;
        return -1;
    }
    ids[p->n_calls++] = own;
    hand_on(p, TOOL_CALL, name, strlen(name), own);
    return 0;
}

/* Offset of the first marker at or after `from`.  Blanks in it do not matter: its first line
 * counts.  n minus the length of a possible beginning of it, if there is none. */
static size_t find_marker(const struct tool_parser *p, size_t from, const char *m, int *found)
{
    size_t len = strcspn(m, "\n");
    *found = 0;
    if (!len)
        return p->n;
    const char *hit = memmem(p->text + from, p->n - from, m, len);
    if (hit) {
        *found = 1;
        return (size_t)(hit - p->text);
    }
    size_t k = len - 1 < p->n - from ? len - 1 : p->n - from;
    while (k && memcmp(p->text + p->n - k, m, k) != 0)
        k--;
    return p->n - k;
}

static void content(struct tool_parser *p, size_t to)
{
    const char *s = p->text + p->at;
    size_t n = to - p->at;
    if (!p->said)                       /* blanks before the first word are dropped */
        while (n && strchr(" \t\r\n", *s) && *s && (p->n_calls || p->think))
            s++, n--;
    p->said |= n > 0;
    hand_on(p, TOOL_CONTENT, s, n, NULL);
    p->at = to;
}

enum { MARK_NONE, MARK_THINK, MARK_CALL, MARK_SECTION, MARK_SECTION_END, MARK_NOISE };

/* The first marker in the text that was not reported: its kind, offset and length.  MARK_NONE:
 * there is surely none up to *at. */
static int next_mark(const struct tool_parser *p, size_t *at, size_t *size)
{
    const struct tool_format *f = p->f;
    enum { MOST_NOISE = 8 };
    const char *marks[4 + MOST_NOISE] = { p->think, p->o.no_calls ? "" : f->open, p->o.no_calls ? "" : f->section,
                                 p->o.no_calls ? "" : f->section_end };
    int n_marks = 4, which = MARK_NONE;
    *at = p->n;
    for (const char *const *noise = f->noise; noise && *noise && n_marks < 4 + MOST_NOISE; noise++)
        marks[n_marks++] = *noise;
    for (int i = 0; i < n_marks; i++) {
        int found;
        if (!marks[i] || !*marks[i])
            continue;
        size_t here = find_marker(p, p->at, marks[i], &found);
        if (here < *at || (here == *at && found && !which)) {
            *at = here;
            which = !found ? MARK_NONE : i < 4 ? i + 1 : MARK_NOISE;
            *size = strcspn(marks[i], "\n");   /* without blanks, which may not be there yet */
        }
    }
    /* JSON alone counts only as the whole answer, or after another call; the >>> of
     * functionary's first call is in the prompt */
    struct json_cursor k = { p->text + p->at, p->text + p->n };
    blanks(&k);
    if (!p->o.no_calls && f->style == TOOL_JSON && !p->said && k.p < k.end && *k.p == '{' &&
        (!strcmp(f->name, "json") || !strcmp(f->name, "llama3"))) {
        *at = (size_t)(k.p - p->text);
        which = MARK_CALL;
    }
    return which;
}

/* Report text up to `to`, where a marker begins or may begin.  0: it may turn out to stand
 * between calls. */
static int text_until(struct tool_parser *p, size_t to, int which, int end)
{
    if ((p->n_calls || p->in_section) && which && to - p->at <= 4) {       /* before a call, behind another marker */
        struct json_cursor b = { p->text + p->at, p->text + to };
        while (b.p < b.end && strchr(" \t\r\n;,", *b.p) && *b.p)
            b.p++;
        if (b.p == b.end)
            p->at = to;
    }
    if (to <= p->at)
        return 1;
    if (!which && !end) {
        size_t last = to;
        while (last > p->at && strchr(" \t\r\n;", p->text[last - 1]) && p->text[last - 1])
            last--;
        if (last == p->at)
            return 0;
        to = last;
    }
    content(p, end && !which ? p->n : to);
    return 1;
}

/* Read the rest of the reasoning.  0: it needs more text. */
static int think_on(struct tool_parser *p, int end)
{
    int found;
    size_t at = find_marker(p, p->at, p->think_end, &found);
    if (end && !found)
        at = p->n;
    hand_on(p, TOOL_REASONING, p->text + p->at, at - p->at, NULL);
    p->at = at;
    if (!found)
        return 0;
    p->at += strlen(p->think_end);
    p->thinking = 0;
    p->said = 0;
    return 1;
}

/* Read a call that begins here, or a list of calls.  0: it needs more text. */
static int call_on(struct tool_parser *p, int end)
{
    struct parsed_call c;
    const int rc = read_call(p, &c, end);
    if (p->failed) {
        call_release(&c);
        return 0;
    }
    if (p->o.stream_arguments && c.name && c.raw && (rc != BAD || p->named)) {
        if (!p->named)
            p->named = begin_call(p, c.name, c.id) == 0;
        if (p->named && c.n_raw > p->shown) {
            hand_on(p, TOOL_ARGUMENTS, c.raw + p->shown, c.n_raw - p->shown, NULL);
            p->shown = c.n_raw;
        }
    }
    if (rc == MORE && !end) {
        call_release(&c);
        p->waiting = 1;
        return 0;
    }
    p->in_list = rc == DONE && (p->f->style == TOOL_JSON_LIST || p->f->style == TOOL_PYTHON);
    if (rc == DONE) {
        if (!p->named && begin_call(p, c.name, c.id) == 0)
            hand_on(p, TOOL_ARGUMENTS, c.arguments, strlen(c.arguments), NULL);
        p->at += c.end;
    } else if (!p->named) {             /* it is text: at least the first byte, up to the next marker */
        content(p, p->at + 1 <= p->n ? p->at + 1 : p->n);
    } else {
        p->at = p->n;                   /* its beginning was reported: nothing to add */
    }
    if (rc != MORE) {
        p->named = 0;
        p->shown = 0;
    }
    call_release(&c);
    return 1;
}

/* Whether a call of a list begins here, behind blanks. */
static int begins_call(const struct tool_parser *p, struct json_cursor *k)
{
    blanks(k);
    if (k->p == k->end)
        return MORE;
    if (p->f->style == TOOL_PYTHON)
        return *k->p == '_' || ((*k->p | 32) >= 'a' && (*k->p | 32) <= 'z') ? DONE : BAD;
    return *k->p == '{' ? DONE : BAD;
}

/* After a call of a list, read the next one, or the end of the list.  0: it needs more text. */
static int list_on(struct tool_parser *p, int end)
{
    struct json_cursor k = { p->text + p->at, p->text + p->n }, next = k;
    if (begins_call(p, &k) == DONE)     /* the comma before it was read */
        return call_on(p, end);
    int rc = marker(&k, "]");
    if (rc == DONE) {
        if ((rc = closing(p, &k, end)) == MORE)
            return 0;
    } else if (rc == BAD && (rc = marker(&next, ",")) == DONE && (rc = begins_call(p, &next)) == DONE) {
        p->at = (size_t)(next.p - p->text);
        return call_on(p, end);
    }
    if (rc == MORE && !end)
        return 0;
    p->in_list = 0;                     /* it has ended, or text follows */
    p->at = rc == MORE ? p->n : (size_t)(k.p - p->text);
    return 1;
}

/* Take one step; 0: it needs more text. */
static int step(struct tool_parser *p, int end)
{
    size_t at, size = 0;
    if (p->at == p->n)
        return 0;
    if (p->thinking)
        return think_on(p, end);
    if (p->in_list)
        return list_on(p, end);
    const int which = next_mark(p, &at, &size);
    if (!text_until(p, at, which, end))
        return 0;
    switch (which) {
    case MARK_NONE:
        if (end && p->at < p->n)
            content(p, p->n);
        return 0;
    case MARK_CALL:
        return call_on(p, end);
    case MARK_THINK:
        p->thinking = 1;
        break;
    case MARK_SECTION: case MARK_SECTION_END:
        p->in_section = which == MARK_SECTION;
        break;
    case MARK_NOISE:
        p->said = 0;                    /* the blanks behind it belong to it */
        break;
    default:
        break;
    }
    p->at += size;
    return 1;
}

struct tool_parser *tool_parser_open(const struct tool_format *f, const struct tool_parser_options *o, struct err *e)
{
    struct tool_parser *p = calloc(1, sizeof *p);
    if (!p) {
        err_nomem(e, "a parser of tool calls");
        return NULL;
    }
    p->f = f;
    p->o = *o;
    p->rng.state = o->seed;
    p->think = f->think ? f->think : "<think>";
    p->think_end = f->think ? f->think_end : "</think>";
    p->thinking = o->reasoning;
    if (!strcmp(f->name, "functionary-3.2") && !o->no_calls && tool_parser_push(p, ">>>", 3, e) != 0) {
        tool_parser_close(p);
        return NULL;
    }
    return p;
}

/* The last bytes that a call may have: of JSON, of a marker, of arguments in Python. */
static int has_end(const char *s, size_t n)
{
    return memchr(s, '}', n) || memchr(s, ']', n) || memchr(s, '>', n) || memchr(s, ')', n);
}

int tool_parser_push(struct tool_parser *p, const char *text, size_t size, struct err *e)
{
    if (p->at > 65536) {
        memmove(p->text, p->text + p->at, p->n - p->at);
        p->n -= p->at;
        p->at = 0;
    }
    if (p->n + size + 1 > p->room) {
        size_t room = 2 * p->room + size + 256;
        char *t = realloc(p->text, room);
        if (!t)
            return err_nomem(e, "a parser of tool calls");
        p->text = t;
        p->room = room;
    }
    memcpy(p->text + p->n, text, size);
    p->n += size;
    p->text[p->n] = '\0';
    /* functionary: "all" is the recipient of plain text */
    if (!strcmp(p->f->name, "functionary-3.2") && !p->said && p->n - p->at >= 7 &&
        !memcmp(p->text + p->at, ">>>all\n", 7))
        p->at += 7;
    /* A call that needs more text cannot end with these bytes: do not read it again from its
     * beginning */
    if (p->waiting && !p->o.stream_arguments && !has_end(text, size))
        return 0;
    p->waiting = 0;
    while (!p->failed && step(p, 0))
        ;
    return p->failed ? err_nomem(e, "a parser of tool calls") : 0;
}

int tool_parser_finish(struct tool_parser *p, struct err *e)
{
    while (!p->failed && p->at < p->n && step(p, 1))
        ;
    return p->failed ? err_nomem(e, "a parser of tool calls") : 0;
}

int tool_parser_thinking(const struct tool_parser *p) { return p->thinking; }

void tool_parser_close(struct tool_parser *p)
{
    if (!p)
        return;
    for (int i = 0; i < p->n_calls; i++)
        free(p->ids[i]);
    free(p->ids);
    free(p->text);
    free(p);
}
