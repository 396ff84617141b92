/* tool_parser.c - find the calls in an answer while its text arrives, and report text and calls. */
#include "libcommon/grammar/tool_call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/grammar/tool_elements.h"
#include "libcommon/grammar/tool_format.h"

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
        own = call_copy(p, id, strlen(id));
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

/* Returns the offset of the first marker at or after `from`.  Only the first line of the marker is
 * searched, because the text may have other blanks after that line.  If it is not found, returns
 * the offset of its possible beginning at the end of the text, or n. */
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

/* The first marker in the unreported text: its kind, offset and length.  MARK_NONE: there is
 * certainly none before *at. */
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
            *size = strcspn(marks[i], "\n");   /* without blanks, which may not have arrived yet */
        }
    }
    /* JSON alone counts only as the whole answer, or after another call; the >>> of
     * functionary's first call is in the prompt */
    struct json_cursor k = { p->text + p->at, p->text + p->n };
    call_blanks(&k);
    if (!p->o.no_calls && f->style == TOOL_JSON && !p->said && k.p < k.end && *k.p == '{' &&
        (!strcmp(f->name, "json") || !strcmp(f->name, "llama3"))) {
        *at = (size_t)(k.p - p->text);
        which = MARK_CALL;
    }
    return which;
}

/* Report text up to `to`, where a marker starts or may start.  1; 0: wait for more text, because
 * these are blanks that may stand between calls. */
static int text_until(struct tool_parser *p, size_t to, int which, int end)
{
    /* short text between markers, before a call */
    if ((p->n_calls || p->in_section) && which && to - p->at <= 4) {
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

/* Read a call that starts here, or a list of calls.  0: it needs more text. */
static int call_on(struct tool_parser *p, int end)
{
    struct parsed_call c;
    p->n_read += p->n - p->at - p->read.at;
    const int rc = call_read(p, &c, end);
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
        p->waiting = 1;
        p->open = c.open;
        call_release(&c);
        return 0;
    }
    arguments_forget(&p->read);
    p->in_list = rc == DONE && (p->f->style == TOOL_JSON_LIST || p->f->style == TOOL_PYTHON);
    if (rc == DONE) {
        if (!p->named && begin_call(p, c.name, c.id) == 0)
            hand_on(p, TOOL_ARGUMENTS, c.arguments, strlen(c.arguments), NULL);
        p->at += c.end;
    } else if (!p->named) {             /* no call: report the text up to the next marker, at least its first byte */
        content(p, p->at + 1 <= p->n ? p->at + 1 : p->n);
    } else {
        p->at = p->n;                   /* not a call after all, but its beginning was reported: drop the rest */
    }
    if (rc != MORE) {
        p->named = 0;
        p->shown = 0;
    }
    call_release(&c);
    return 1;
}

/* Whether a call of a list starts here, after blanks. */
static int begins_call(const struct tool_parser *p, struct json_cursor *k)
{
    call_blanks(k);
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
    if (begins_call(p, &k) == DONE)     /* the comma before this call was read earlier */
        return call_on(p, end);
    int rc = call_marker(&k, "]");
    if (rc == DONE) {
        if ((rc = call_closing(p, &k, end)) == MORE)
            return 0;
    } else if (rc == BAD && (rc = call_marker(&next, ",")) == DONE && (rc = begins_call(p, &next)) == DONE) {
        p->at = (size_t)(next.p - p->text);
        return call_on(p, end);
    }
    if (rc == MORE && !end)
        return 0;
    p->in_list = 0;                     /* the list has ended, or other text follows */
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
    if (p->read.at)                     /* a call begins here: search no marker in its text */
        return call_on(p, end);
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
        p->said = 0;                    /* blanks after the marker are dropped with it */
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

/* Continue reading the incomplete part at the end of the last call.  Returns 1 if all new text
 * belongs to this part; 0 if the part may end in this text, so that the call must be read again
 * from its beginning. */
static int part_on(struct tool_parser *p)
{
    struct open_part *o = &p->open;
    const char *base = p->text + p->at, *from = base + o->at, *text = from;
    struct json_cursor k = { from, p->text + p->n };
    char *json = NULL;
    size_t n = 0;
    p->n_read += (uint64_t)(k.end - from);
    if (o->kind == OPEN_JSON) {
        if (call_json_on(&k, o) == DONE)
            return 0;
        n = (size_t)(k.p - from);
        o->at += n;
    } else if (o->kind == OPEN_NESTED) {
        return open_nested_on(o, p->f, base, k.end) == TOOL_READ_MORE;
    } else if (o->kind == OPEN_ELEMENTS) {
        return elements_on(o, p->f, base, k.end) == TOOL_READ_MORE;
    } else {
        if (open_string_on(o, p->f, base, k.end, &json) == TOOL_READ_DONE)
            return 0;
        p->failed |= !json;
        text = json;
        n = json ? strlen(json) : 0;
    }
    if (p->named && !o->silent && !p->failed) {
        hand_on(p, TOOL_ARGUMENTS, text, n, NULL);
        p->shown += n;
    }
    free(json);
    return 1;
}

/* Returns 1 if the text has a byte that can be the last one of a call: it ends JSON, a marker, or
 * arguments in Python's syntax. */
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
    if (p->waiting && p->open.kind && part_on(p))
        return p->failed ? err_nomem(e, "a parser of tool calls") : 0;
    /* a call that needs more text is not complete with these bytes: do not read it again from its
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
    arguments_forget(&p->read);
    free(p->text);
    free(p);
}
