/* audit_reader.c - read lines of the audit log and parse their fields. */
#include "libcommon/access/audit_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- lines ---- */

enum { CHUNK = 1 << 18, LINE_MAX_BYTES = 1 << 20 };

void audit_reader_close(struct audit_reader *r)
{
    for (int i = 0; r->z && i < r->files.n; i++)
        if (r->z[i])
            gzclose(r->z[i]);
    free(r->z);
    free(r->buffer);
    audit_files_release(&r->files);
}

int audit_reader_open(struct audit_reader *r, const char *folder, enum audit_chain chain, int64_t since_ms,
                      struct err *e)
{
    *r = (struct audit_reader){ .room = CHUNK + LINE_MAX_BYTES };
    if (access(folder, F_OK) && errno == ENOENT)
        return 0;
    struct err unused;
    /* The lock cannot be taken on a read-only disk, but such a disk has no writers either. */
    const int lock = audit_lock(folder, 0, &unused);
    r->has_head = audit_head_read(folder, chain, &r->head);
    int rc = audit_files_list(&r->files, folder, chain, e);
    if (rc == 0 && (!(r->buffer = malloc(r->room)) || !(r->z = calloc((size_t)r->files.n + 1, sizeof *r->z))))
        rc = err_nomem(e, "the audit log");
    for (int i = 0; rc == 0 && i < r->files.n; i++) {
        const struct audit_file *f = &r->files.file[i];
        if (since_ms && i + 1 < r->files.n && (f->changed_s + 1) * 1000 < since_ms)
            continue;
        int fd = open(f->path, O_RDONLY | O_CLOEXEC);
        if (fd < 0 || !(r->z[i] = gzdopen(fd, "r"))) {
            rc = err_sys(e, "%s", f->path);
            if (fd >= 0)
                close(fd);
        } else {
            /* small: plain files are then read directly into our buffer */
            gzbuffer(r->z[i], CHUNK / 16);
        }
    }
    if (lock >= 0)
        close(lock);
    if (rc)
        audit_reader_close(r);
    return rc;
}

int audit_reader_next(struct audit_reader *r, const char **line, size_t *size, int *whole, struct err *e)
{
    for (;;) {
        char *p = r->buffer + r->begin, *nl = r->end > r->begin ? memchr(p, '\n', r->end - r->begin) : NULL;
        if (nl) {
            *line = p;
            *size = (size_t)(nl - p);
            *whole = !r->skipping;
            r->skipping = 0;
            r->begin += *size + 1;
            r->line_no++;
            return 1;
        }
        if (r->at < r->files.n && r->z[r->at] && !r->ended) {
            memmove(r->buffer, p, r->end - r->begin);
            r->end -= r->begin;
            r->begin = 0;
            /* too long to be a line of ours: drop this part, and report the end of the line as
             * incomplete */
            if (r->end >= LINE_MAX_BYTES) {
                r->skipping = 1;
                r->end = 0;
            }
            const int n = gzread(r->z[r->at], r->buffer + r->end, CHUNK);
            int code;
            const char *why = gzerror(r->z[r->at], &code);
            if (n < 0)
                return code == Z_ERRNO ? err_sys(e, "%s", r->files.file[r->at].path)
                                       : err_set(e, ERR_FORMAT, "%s: %s", r->files.file[r->at].path, why);
            r->end += (size_t)n;
            r->ended = n == 0;
            continue;
        }
        if (r->end > r->begin || r->skipping) {         /* the file ends without '\n' */
            *line = p;
            *size = r->end - r->begin;
            *whole = r->skipping = 0;
            r->begin = r->end = 0;
            r->line_no++;
            return 1;
        }
        /* free its buffers before those of the next file are allocated */
        if (r->at < r->files.n && r->z[r->at]) {
            gzclose(r->z[r->at]);
            r->z[r->at] = NULL;
        }
        if (++r->at >= r->files.n)
            return 0;
        r->ended = 0;
        r->line_no = 0;
    }
}

/* ---- fields: one flat JSON object as the writer makes it; any other line is no entry ---- */

/* Skip the string at p (which is '"') and set *out to its contents.  NULL: it has no end. */
static const char *skip_string(struct audit_cursor *c, struct audit_text *out)
{
    const char *from = c->p + 1, *q = from;
    for (;;) {
        q = memchr(q, '"', (size_t)(c->end - q));
        if (!q)
            return NULL;
        const char *b = q;
        while (b > from && b[-1] == '\\')
            b--;
        if ((q - b) % 2 == 0)
            break;
        q++;
    }
    *out = (struct audit_text){ from, (size_t)(q - from) };
    return c->p = q + 1;
}

/* Read the value at p, up to the character that ends it. */
static int take_value(struct audit_cursor *c, struct audit_value *v)
{
    if (c->p >= c->end)
        return -1;
    if (*c->p == '"') {
        v->is_string = 1;
        return skip_string(c, &v->text) ? 1 : -1;
    }
    const char *from = c->p, *p = from;
    for (; p < c->end; p++) {
        const unsigned char ch = (unsigned char)*p;
        if (ch >= '-' && ch <= '9')
            continue;
        if (ch == ',' || ch == '}')
            break;
        if (ch <= ' ' || ch == '"' || ch == '{' || ch == '[')
            return -1;
    }
    *v = (struct audit_value){ .text = { from, (size_t)(p - from) } };
    c->p = p;
    return v->text.n ? 1 : -1;
}

int audit_next_field(struct audit_cursor *c, struct audit_text *key, struct audit_value *v)
{
    if (c->p < c->end && *c->p == '}')
        return c->p + 1 == c->end ? 0 : -1;
    if (c->p >= c->end || (*c->p != '{' && *c->p != ','))
        return -1;
    c->p++;
    if (c->p >= c->end || *c->p != '"' || !skip_string(c, key) || c->p >= c->end || *c->p++ != ':')
        return -1;
    return take_value(c, v);
}

int audit_text_is(const struct audit_text *t, const char *s) { return t->n == strlen(s) && memcmp(t->p, s, t->n) == 0; }

static struct audit_text text_of(const struct audit_value *v)
{
    return v->is_string ? v->text : (struct audit_text){ NULL, 0 };
}

/* The digits at p as a number; *rest: their end.  A number is always followed by another character
 * in the line, so this stops in time. */
static int64_t digits(const char *p, const char **rest)
{
    int64_t n = 0;
    const char *q = p;
    for (; *q >= '0' && *q <= '9' && q - p < 18; q++)
        n = 10 * n + (*q - '0');
    *rest = q;
    return n;
}

int64_t audit_int_of(const struct audit_value *v)
{
    const char *rest;
    if (v->is_string || v->text.p[0] == 'n')
        return -1;
    const int64_t n = digits(v->text.p, &rest);
    return rest > v->text.p && (*rest < '0' || *rest > '9') ? n : strtoll(v->text.p, NULL, 10);
}

/* The result of strtod: a whole number below 2^53 divided by a power of ten below 10^22 is rounded
 * once (Clinger, PLDI 1990). */
static double real_of(const struct audit_value *v)
{
    static const double tens[] = { 1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6 };
    const char *dot, *rest;
    if (v->is_string || v->text.p[0] == 'n')
        return 0;
    const int64_t whole = digits(v->text.p, &dot), part = *dot == '.' ? digits(dot + 1, &rest) : (rest = dot, 0);
    const long n = *dot == '.' ? rest - dot - 1 : 0, most = (long)v->text.n;
    if (dot == v->text.p || rest != v->text.p + most || most > 15 || n >= (long)(sizeof tens / sizeof *tens))
        return strtod(v->text.p, NULL);
    return ((double)whole * tens[n] + (double)part) / tens[n];
}

/* Seconds as milliseconds, limited to what fits. */
static int64_t in_ms(int64_t s)
{
    const int64_t most = INT64_MAX / 1000 - 1;
    return (s > most ? most : s < -most ? -most : s) * 1000;
}

/* 1726.003 as 1726003, exactly. */
static int64_t ms_of(const struct audit_value *v)
{
    const char *rest;
    const int64_t s = digits(v->text.p, &rest);
    int64_t ms = 0;
    if (rest == v->text.p || (*rest >= '0' && *rest <= '9'))
        return in_ms(strtoll(v->text.p, NULL, 10));
    if (*rest == '.')
        for (int i = 1, unit = 100; i <= 3 && rest[i] >= '0' && rest[i] <= '9'; i++, unit /= 10)
            ms += (rest[i] - '0') * unit;
    return in_ms(s) + ms;
}

enum field { OTHER, TIME, METHOD, PATH, STATUS, LATENCY, KEY, MODEL, PROMPT, COMPLETION, TOTAL, EVENT, COUNT, LAST };

static enum field field_of(const struct audit_text *key)
{
#define FIELD(name, field) { name, sizeof name - 1, field }
    static const struct { const char *name; size_t n; enum field field; } known[] = {
        FIELD("timestamp_unix", TIME), FIELD("method", METHOD), FIELD("path", PATH), FIELD("status_code", STATUS),
            FIELD("latency_ms", LATENCY), FIELD("api_key_name", KEY),
        FIELD("model_id", MODEL), FIELD("prompt_tokens", PROMPT), FIELD("completion_tokens", COMPLETION),
        FIELD("total_tokens", TOTAL), FIELD("event", EVENT), FIELD("count", COUNT), FIELD("last_timestamp_unix", LAST),
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].n == key->n && memcmp(known[i].name, key->p, key->n) == 0)
            return known[i].field;
    return OTHER;
}

static void note(struct audit_record *r, enum field field, const struct audit_value *v)
{
    switch (field) {
    case OTHER: case EVENT: break;
    case TIME: r->time_ms = v->is_string ? r->time_ms : ms_of(v); break;
    case METHOD: r->method = text_of(v); break;
    case PATH: r->path = text_of(v); break;
    case STATUS: r->status = (int)audit_int_of(v); break;
    case LATENCY: r->latency_ms = real_of(v); break;
    case KEY: r->key_name = text_of(v); break;
    case MODEL: r->model = text_of(v); break;
    case PROMPT: r->prompt_tokens = audit_int_of(v); break;
    case COMPLETION: r->completion_tokens = audit_int_of(v); break;
    case TOTAL: r->total_tokens = audit_int_of(v); break;
    case COUNT: r->count = audit_int_of(v) > 1 ? (uint64_t)audit_int_of(v) : 1; break;
    case LAST: r->last_ms = v->is_string ? r->last_ms : ms_of(v); break;
    }
}

/* ---- a fast path for lines whose fields are in the writer's order.  Functions return 0 for other
 * lines, which are then read field by field ---- */

#define NEXT(text) ((size_t)(c->end - c->p) > sizeof text && memcmp(c->p, text, sizeof text - 1) == 0 && \
                    (c->p += sizeof text - 1, 1))

static int is_null(struct audit_cursor *c)
{
    if (*c->p != 'n' || c->end - c->p < 5 || memcmp(c->p, "null", 4) != 0)
        return 0;
    c->p += 4;
    return 1;
}

static int next_text(struct audit_cursor *c, struct audit_text *out)
{
    *out = (struct audit_text){ NULL, 0 };
    if (*c->p != '"')
        return is_null(c);
    const char *from = c->p + 1, *q = memchr(from, '"', (size_t)(c->end - from));
    if (!q || q[-1] == '\\')
        return 0;
    *out = (struct audit_text){ from, (size_t)(q - from) };
    c->p = q + 1;
    return 1;
}

static int next_whole(struct audit_cursor *c, int64_t *n)
{
    const char *rest;
    *n = -1;
    if (is_null(c))
        return 1;
    const int64_t found = digits(c->p, &rest);
    if (rest == c->p || *rest != ',')
        return 0;
    *n = found;
    c->p = rest;
    return 1;
}

/* Read WHOLE.PART with `places` digits after the point; *n: the number times 10^places. */
static int next_fixed(struct audit_cursor *c, int places, int64_t *n)
{
    const char *dot, *rest;
    static const int64_t tens[] = { 1, 10, 100, 1000 };
    const int64_t whole = digits(c->p, &dot);
    if (dot == c->p || dot - c->p > 12 || *dot != '.')
        return 0;
    const int64_t part = digits(dot + 1, &rest);
    if (rest - dot - 1 != places || *rest != ',')
        return 0;
    *n = whole * tens[places] + part;
    c->p = rest;
    return 1;
}

static int parse_ours(struct audit_cursor *c, struct audit_record *r)
{
    struct audit_text ignored;
    int64_t status, latency_us, ignored_number;
    if (!(NEXT("{\"timestamp\":") && next_text(c, &ignored) && NEXT(",\"timestamp_unix\":") &&
          next_fixed(c, 3, &r->time_ms) && NEXT(",\"request_id\":") && next_text(c, &ignored) &&
          NEXT(",\"method\":") && next_text(c, &r->method) && NEXT(",\"path\":") && next_text(c, &r->path) &&
          NEXT(",\"status_code\":") && next_whole(c, &status) && NEXT(",\"latency_ms\":") &&
          next_fixed(c, 3, &latency_us) && NEXT(",\"api_key_name\":") && next_text(c, &r->key_name) &&
          NEXT(",\"client_ip\":") && next_text(c, &ignored) && NEXT(",\"user_agent\":") && next_text(c, &ignored) &&
          NEXT(",\"model_id\":") && next_text(c, &r->model) && NEXT(",\"prompt_tokens\":") &&
          next_whole(c, &r->prompt_tokens) && NEXT(",\"completion_tokens\":") &&
          next_whole(c, &r->completion_tokens) && NEXT(",\"total_tokens\":") && next_whole(c, &r->total_tokens) &&
          NEXT(",\"error_message\":") && next_text(c, &ignored)))
        return 0;
    if (NEXT(",\"seq\":") && !next_whole(c, &ignored_number))
        return 0;
    r->status = (int)status;
    /* a quotient of two exact numbers, rounded once, as by strtod */
    r->latency_ms = (double)latency_us / 1000;
    return 1;
}

int audit_reader_parse(const char *line, size_t size, struct audit_record *r)
{
    const struct audit_record none = { .line = line, .size = size, .time_ms = -1, .last_ms = -1, .count = 1,
                                       .status = -1, .prompt_tokens = -1, .completion_tokens = -1, .total_tokens = -1 };
    struct audit_cursor c = { line, line + size };
    struct audit_text key;
    struct audit_value v;
    int more;
    unsigned had = 1u << STATUS;
    *r = none;
    if (size < 2 || line[0] != '{')
        return -1;
    if (!parse_ours(&c, r)) {
        c.p = line;
        had = 0;
        *r = none;
    }
    while ((more = audit_next_field(&c, &key, &v)) > 0) {
        const enum field field = field_of(&key);
        had |= 1u << field;
        note(r, field, &v);
    }
    if (more < 0 || r->time_ms < 0)
        return -1;
    if (r->last_ms < r->time_ms)
        r->last_ms = r->time_ms;
    return had & 1u << EVENT ? 0 : had & 1u << STATUS ? 1 : -1;
}
