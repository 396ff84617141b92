/* tool_call.c - read one function call, in the format of a family of models. */
#include "libcommon/grammar/tool_call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/utf8.h"
#include "libcommon/grammar/tool_elements.h"
#include "libcommon/grammar/tool_format.h"
#include "libcommon/grammar/tool_values.h"

void call_release(struct parsed_call *c)
{
    free(c->name);
    free(c->arguments);
    free(c->id);
    memset(c, 0, sizeof *c);
}

void arguments_forget(struct arguments_read *t)
{
    free(t->arguments);
    json_decref(t->seen);
    memset(t, 0, sizeof *t);
}

void call_blanks(struct json_cursor *c)
{
    while (c->p < c->end && strchr(" \t\r\n", *c->p) && *c->p)
        c->p++;
}

int call_marker(struct json_cursor *c, const char *m)
{
    call_blanks(c);
    for (; *m; m++) {
        if (strchr(" \t\r\n", *m)) {
            call_blanks(c);
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

int call_json_on(struct json_cursor *c, struct open_part *o)
{
    for (; c->p < c->end; c->p++) {
        const char x = *c->p;
        if (o->in_string) {
            if (x == '\\') {
                if (c->p + 1 == c->end)
                    return MORE;
                c->p++;
            } else if (x == '"') {
                o->in_string = 0;
            }
        } else if (x == '"') {
            o->in_string = 1;
        } else if (x == '{' || x == '[') {
            o->depth++;
        } else if ((x == '}' || x == ']') && --o->depth == 0) {
            c->p++;
            return DONE;
        }
    }
    return MORE;
}

/* Read a whole JSON value: DONE with c after it, MORE with *open, or BAD if it cannot become
 * one. */
static int json_text(const struct tool_parser *p, struct json_cursor *c, const char **from, struct open_part *open)
{
    struct open_part o = { .kind = OPEN_JSON };
    call_blanks(c);
    *from = c->p;
    *open = (struct open_part){ .kind = OPEN_NONE };
    if (c->p == c->end)
        return MORE;
    if (*c->p != '{' && *c->p != '[')
        return BAD;
    const int rc = call_json_on(c, &o);
    o.at = (size_t)(c->p - (p->text + p->at));
    if (rc == MORE)
        *open = o;
    return rc;
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

char *call_copy(struct tool_parser *p, const char *s, size_t n)
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

/* Read a call that is one {"name", "arguments"} object. */
static int object_call(struct tool_parser *p, const char *text, size_t n, struct parsed_call *c)
{
    /* Duplicate keys are accepted, as a schema does not forbid them. */
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
        c->name = call_copy(p, name, strlen(name));
        c->arguments = !a ? call_copy(p, "{}", 2)
                     : json_is_string(a) ? call_copy(p, json_string_value(a), json_string_length(a))
                     : raw ? call_copy(p, raw, n) : NULL;
        c->id = json_is_string(id) ? call_copy(p, json_string_value(id), json_string_length(id)) : NULL;
        rc = c->name && c->arguments ? DONE : BAD;
    }
    json_decref(v);
    return rc;
}

/* Read `"key" : "` and the text up to the next quotation mark; NULL if it is missing. */
static const char *text_member(struct json_cursor *k, const char *key, size_t *n)
{
    char head[64];
    snprintf(head, sizeof head, "%s%s\"", key, *key ? "\" : " : "");
    if (*key && call_marker(k, "\"") != DONE)
        return NULL;
    if (call_marker(k, head) != DONE)
        return NULL;
    const char *text = k->p, *end = memchr(text, '"', (size_t)(k->end - text));
    if (end)
        k->p = end + 1;
    *n = end ? (size_t)(end - text) : 0;
    return end ? text : NULL;
}

/* Read the start of {"name": ..., "arguments": {...}}, with the members in this order: set the
 * name, and the part of the arguments that has arrived. */
static void object_head(struct tool_parser *p, struct json_cursor k, struct parsed_call *c)
{
    const struct tool_format *f = p->f;
    const char *from, *name;
    char head[64];
    size_t n;
    if (call_marker(&k, "{") != DONE ||
        (f->id_key && (!text_member(&k, f->id_key, &n) || call_marker(&k, ",") != DONE)) ||
        !(name = text_member(&k, !f->arguments ? "" : f->name_key ? f->name_key : "name", &n)))
        return;
    if (f->arguments)
        snprintf(head, sizeof head, ", \"%s\" : ", f->arguments);
    else
        strcpy(head, ": ");
    char *word = call_marker(&k, head) == DONE ? call_copy(p, name, n) : NULL;
    if (!word || !known_name(p, word) || k.p == k.end || *k.p != '{') {
        free(word);
        return;
    }
    free(c->name);
    c->name = word;
    json_text(p, &k, &from, &c->open);
    c->raw = from;
    c->n_raw = (size_t)(k.p - from);
}

/* Read up to the first `end`: DONE with the text between, or MORE. */
static int until(struct json_cursor *c, const char *end, const char **from, size_t *n)
{
    size_t m = strlen(end);
    while (m && strchr(" \t\r\n", end[m - 1]))
        m--;                            /* blanks at the end of the marker may be missing in the text */
    const char *hit = memmem(c->p, (size_t)(c->end - c->p), end, m);
    if (!hit)
        return MORE;
    *from = c->p;
    *n = (size_t)(hit - c->p);
    c->p = hit + m;
    return DONE;
}

/* ---- arguments between tags ---- */

static const json_t *property(const json_t *tool, const char *key)
{
    return json_object_get(json_object_get(json_object_get(tool, "parameters"), "properties"), key);
}

static int is_string(const json_t *tool, const char *key)
{
    const char *type = json_string_value(json_object_get(property(tool, key), "type"));
    return type && !strcmp(type, "string");
}

/* The value of an argument that was written as text.  With `string`, it is that text; otherwise the
 * JSON value that the text is, or the text itself if it is not JSON. */
static json_t *tag_value(int string, const char *text, size_t n)
{
    json_t *v = string ? NULL : json_loadb(text, n, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, NULL);
    return v ? v : json_stringn(text, n);
}

/* Append text to the arguments, which have a buffer of their own. */
static void add(struct tool_parser *p, struct parsed_call *c, const char *text)
{
    const size_t before = c->n_arguments, n = strlen(text);
    char *longer = realloc(c->arguments, before + n + 1);
    if (!longer) {
        p->failed = 1;
        return;
    }
    memcpy(longer + before, text, n + 1);
    c->arguments = longer;
    c->n_arguments = before + n;
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
struct tag {
    const char *key, *value; size_t n_key, n_value; enum tag_type type;
    json_t *whole;                      /* the complete value, if it was read as an element; owned */
};

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

/* Read the rest of the marker after a key, which tells whether the value is a string. */
static int type_of_tag(const struct tool_format *f, struct json_cursor *c, struct tag *t)
{
    struct json_cursor json = *c;
    const int rc = call_marker(c, f->key_close + 1), other = call_marker(&json, f->key_close_json + 1);
    t->type = rc == DONE ? TAG_STRING : TAG_JSON;
    if (other == DONE)
        *c = json;
    return rc == DONE || other == DONE ? DONE : rc == MORE || other == MORE ? MORE : BAD;
}

/* Read the next argument.  MORE with a key: its value is incomplete. */
static int read_tag(const struct tool_format *f, struct json_cursor *c, struct tag *t)
{
    /* with key_close_json, both markers begin with a quotation mark, at which the name ends */
    const size_t n = f->key_close_json ? 1 : strcspn(f->key_close, ">") + 1;
    const char *after_key = f->key_close_json ? "" : f->key_close + n;     /* "" or a line break and <arg_value> */
    char first[32];
    int rc;
    memset(t, 0, sizeof *t);
    memcpy(first, f->key_close, n);
    first[n] = '\0';
    if ((rc = call_marker(c, f->key_open)) != DONE || (rc = until(c, first, &t->key, &t->n_key)) != DONE)
        return rc;
    if (strchr(after_key, '<') && (rc = call_marker(c, strchr(after_key, '<'))) != DONE) {
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

/* Read the value of an element and its closing tag, after the opening tag with t->key. */
static int read_value(const struct tool_parser *p, const json_t *schema, struct json_cursor *c, struct tag *t,
                      struct open_part *open)
{
    const struct tool_format *f = p->f;
    const char *type = json_string_value(json_object_get(schema, "type"));
    const int nested = type && !strcmp(type, "string") ? BAD : (int)element_at(f, c->p, c->end);
    if (nested != BAD) {
        const char *from = c->p;
        const int rc = nested == MORE ? MORE : (int)elements_read(f, &c->p, c->end, schema, &t->whole);
        if (rc == MORE)
            elements_open(open, p->text + p->at, from, c->end);
        return rc == DONE ? (int)element_end(f, &c->p, c->end, t->key, t->n_key) : rc;
    }
    const char *hit = memmem(c->p, (size_t)(c->end - c->p), f->value_close, strlen(f->value_close));
    t->value = c->p;
    t->n_value = (size_t)((hit ? hit : c->end) - c->p);
    trim(f, "", t, hit != NULL);
    if (!hit)
        return MORE;
    c->p = hit;
    t->whole = element_text(schema, t->value, t->n_value);
    return t->whole ? (int)element_end(f, &c->p, c->end, t->key, t->n_key) : BAD;
}

/* Read the next argument as an element.  MORE with a value: its text is incomplete. */
static int read_element(struct tool_parser *p, struct parsed_call *call, struct json_cursor *c, struct tag *t)
{
    memset(t, 0, sizeof *t);
    int rc = (int)element_begin(p->f, &c->p, c->end, &t->key, &t->n_key);
    char *name = rc == DONE ? call_copy(p, t->key, t->n_key) : NULL;
    if (rc == DONE)
        rc = name ? read_value(p, property(tool_of(p, call->name), name), c, t, &call->open) : BAD;
    free(name);
    if (!t->value)
        t->key = rc == DONE ? t->key : NULL;
    return rc;
}

/* Add an argument to the JSON text; the first of two with the same name counts. */
static int take_tag(struct tool_parser *p, struct parsed_call *call, json_t *seen, const struct tag *t, int complete)
{
    const json_t *tool = tool_of(p, call->name);
    char *name = call_copy(p, t->key, t->n_key);
    const int text_only = name && !complete, known = name && json_object_get(seen, name),
              string = name && (t->type == TAG_BY_SCHEMA ? is_string(tool, name) : t->type == TAG_STRING);
    int rc = DONE;
    if (!name || utf8_valid(name, t->n_key) != t->n_key) {
        rc = BAD;
    } else if (!known && (!text_only || string)) {
        const size_t n = complete ? t->n_value : utf8_valid(t->value, t->n_value);
        json_t *v = t->whole && complete ? json_incref(t->whole) : tag_value(string, t->value, n);
        if (v) {
            add_member(p, call, name, v, complete);
            call->open.silent = 0;
            if (complete)
                p->failed |= json_object_set_new(seen, name, json_true()) != 0;
        }
        rc = v ? DONE : BAD;
        json_decref(v);
    }
    free(name);
    return rc;
}

/* Begin or continue with the arguments of the call that starts at text[at]. */
static void tags_begin(struct tool_parser *p, struct json_cursor *c, struct parsed_call *call)
{
    struct arguments_read *r = &p->read;
    if (!r->at) {
        r->seen = json_object();
        add(p, call, "{");
        return;
    }
    c->p = p->text + p->at + r->at;
    r->arguments[r->n] = '\0';          /* without the incomplete argument after them */
    call->arguments = r->arguments;
    call->n_arguments = r->n;
    r->arguments = NULL;
}

/* After reading up to c: remember the complete arguments, of which `n` bytes are JSON text, if more
 * text is expected. */
static void tags_end(struct tool_parser *p, const struct json_cursor *c, struct parsed_call *call, size_t n, int rc)
{
    struct arguments_read *r = &p->read;
    call->raw = call->arguments;
    call->n_raw = call->n_arguments;
    if (rc != MORE || p->failed) {
        arguments_forget(r);
        return;
    }
    r->at = (size_t)(c->p - (p->text + p->at));
    r->arguments = call->arguments;
    r->n = n;
    call->arguments = NULL;             /* call->raw borrows them */
}

/* Read one argument, and add it if it is complete, or if an incomplete one can be reported. */
static int next_tag(struct tool_parser *p, struct json_cursor *c, struct parsed_call *call, int ends)
{
    const struct tool_format *f = p->f;
    struct json_cursor k = *c;
    struct tag t;
    int rc = f->style == TOOL_ELEMENTS ? read_element(p, call, &k, &t) : read_tag(f, &k, &t);
    if (rc == BAD && ends == MORE)
        rc = MORE;
    if (rc == MORE && t.key && t.n_value) {
        open_marked(&call->open, p->text + p->at, t.value, t.n_value);
        call->open.silent = 1;
    }
    if (rc == DONE)
        rc = take_tag(p, call, p->read.seen, &t, 1);
    else if (rc == MORE && t.key && p->o.stream_arguments)
        rc = take_tag(p, call, p->read.seen, &t, 0) == BAD ? BAD : MORE;
    json_decref(t.whole);
    if (rc == DONE)
        *c = k;
    return rc;
}

static int read_tags(struct tool_parser *p, struct json_cursor *c, struct parsed_call *call)
{
    int rc = DONE;
    size_t n;
    tags_begin(p, c, call);
    do {
        struct json_cursor close = *c;
        const int ends = call_marker(&close, p->f->close);
        n = call->n_arguments;
        if (ends == DONE) {
            *c = close;
            add(p, call, "}");
            break;
        }
        rc = next_tag(p, c, call, ends);
    } while (rc == DONE && !p->failed);
    tags_end(p, c, call, n, rc);
    return p->failed ? BAD : rc;
}

/* ---- one call ---- */

int call_closing(const struct tool_parser *p, struct json_cursor *k, int end)
{
    struct json_cursor close = *k;
    const int rc = *p->f->close ? call_marker(&close, p->f->close) : DONE;
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
    if (!bare && ((rc = call_marker(k, p->f->open)) != DONE || (list && (rc = call_marker(k, "[")) != DONE)))
        return rc;
    struct json_cursor object = *k;
    rc = json_text(p, k, &from, &c->open);
    const int bad = rc == DONE && object_call(p, from, (size_t)(k->p - from), c) != DONE;
    if (p->o.stream_arguments) {
        c->open.kind = OPEN_NONE;       /* of an incomplete call, only the arguments are reported */
        object_head(p, object, c);
    }
    if (bad)
        return BAD;
    return rc == DONE && !bare && !list ? call_closing(p, k, end) : rc;
}

/* Read the text between the name and the arguments. */
static int after_name(struct tool_parser *p, struct json_cursor *k, struct parsed_call *c, int end)
{
    const struct tool_format *f = p->f;
    if (!strcmp(f->name, "kimi-k2") && k->p < k->end && *k->p == ':')       /* functions.name:0 */
        for (k->p++; k->p < k->end && *k->p >= '0' && *k->p <= '9'; k->p++)
            ;
    if (!strcmp(f->name, "mistral-args")) {
        struct json_cursor id = *k;
        int rc = call_marker(&id, "[CALL_ID]");
        if (rc == DONE) {
            const char *word = id.p;
            while (id.p < id.end && *id.p != '[')
                id.p++;
            if (id.p == id.end)
                return end ? BAD : MORE;
            c->id = call_copy(p, word, (size_t)(id.p - word));
            *k = id;
        } else if (rc == MORE && !end) {
            return MORE;
        }
    }
    if (strcmp(f->name, "gpt-oss") != 0)
        return call_marker(k, f->before_arguments);
    /* " <|constrain|>json<|message|>" or only "<|message|>". */
    const char *hit = memmem(k->p, (size_t)(k->end - k->p), "<|message|>", 11);
    if (!hit)
        return end || k->end - k->p > 64 ? BAD : MORE;
    k->p = hit + 11;
    return DONE;
}

/* Read the arguments of a call in the syntax of tool_values_read(), and its end. */
static int read_values(struct tool_parser *p, struct json_cursor *k, struct parsed_call *c, int end)
{
    struct arguments_read *r = &p->read;
    const size_t base = (size_t)(k->p - (p->text + p->at));
    r->at -= r->at ? base : 0;
    int rc = (int)tool_values_read(p->f, &k->p, k->end, &c->arguments, &c->open, r);
    c->open.at += base;
    p->failed |= !c->arguments;
    c->raw = c->arguments;
    c->n_raw = c->arguments ? strlen(c->arguments) : 0;
    if (rc == DONE && p->f->style != TOOL_PYTHON)
        rc = call_closing(p, k, end);
    if (rc != MORE || !r->at) {
        arguments_forget(r);
        return rc;
    }
    r->at += base;
    r->arguments = c->arguments;
    c->arguments = NULL;                /* c->raw borrows them */
    return rc;
}

static int read_named_call(struct tool_parser *p, struct json_cursor *k, struct parsed_call *c, int end)
{
    const char *from;
    const int python = p->f->style == TOOL_PYTHON;
    int rc = p->in_list ? DONE : call_marker(k, p->f->open);
    if (rc != DONE || (python && !p->in_list && (rc = call_marker(k, "[")) != DONE))
        return rc;
    call_blanks(k);
    if (p->f->id_close) {
        size_t n_id;
        if (until(k, p->f->id_close, &from, &n_id) != DONE)
            return end || k->end - k->p > 256 ? BAD : MORE;
        c->id = call_copy(p, from, n_id);
    }
    /* the name ends before the first character that cannot be in a name */
    from = k->p;
    while (k->p < k->end && (strchr("_-.", *k->p) ? *k->p != '\0' : (*k->p >= '0' && *k->p <= '9') ||
                             ((*k->p | 32) >= 'a' && (*k->p | 32) <= 'z')))
        k->p++;
    const size_t n = (size_t)(k->p - from);
    if (k->p == k->end && !end)
        return n > 256 ? BAD : MORE;
    c->name = call_copy(p, from, n);
    if (!c->name || !known_name(p, c->name))
        return BAD;
    if ((rc = after_name(p, k, c, end)) != DONE)
        return rc;
    if (p->f->style == TOOL_TAGS || p->f->style == TOOL_ELEMENTS)
        return read_tags(p, k, c);
    if (python || p->f->style == TOOL_QUOTED)
        return read_values(p, k, c, end);
    rc = json_text(p, k, &from, &c->open);
    c->raw = from;
    c->n_raw = (size_t)(k->p - from);
    if (rc != DONE)
        return rc;
    json_t *v = json_loadb(from, c->n_raw, 0, NULL);
    json_decref(v);
    if (!v)
        return BAD;
    c->arguments = call_copy(p, from, c->n_raw);
    return call_closing(p, k, end);
}

int call_read(struct tool_parser *p, struct parsed_call *c, int end)
{
    struct json_cursor k = { p->text + p->at, p->text + p->n };
    memset(c, 0, sizeof *c);
    const int is_object = p->f->style == TOOL_JSON || p->f->style == TOOL_JSON_LIST;
    int rc = (is_object ? read_object_call : read_named_call)(p, &k, c, end);
    if (rc == DONE)
        c->end = (size_t)(k.p - (p->text + p->at));
    return rc;
}
