#include "libcommon/access/audit_query.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <zlib.h>

#include "libcommon/access/audit.h"
#include "libcommon/access/audit_files.h"

/* ---- lines ---- */

enum { CHUNK = 1 << 18, LINE_MAX_BYTES = 1 << 20 };

/* The lines of all files, the oldest first. Files are opened under the lock, so that none is rotated away in between. */
struct reader {
    struct audit_files files;
    gzFile *z;
    int at;                                 /* file */
    char *buffer; size_t room, begin, end;
    int skipping, ended;                    /* inside a line that is too long; at the end of the file */
    uint64_t line_no;                       /* in the file, from 1 */
};

static void reader_close(struct reader *r)
{
    for (int i = 0; r->z && i < r->files.n; i++)
        if (r->z[i])
            gzclose(r->z[i]);
    free(r->z);
    free(r->buffer);
    audit_files_release(&r->files);
}

/* since_ms: files that ended before need not be read; 0: all. */
static int reader_open(struct reader *r, const char *folder, int64_t since_ms, struct err *e)
{
    *r = (struct reader){ .room = CHUNK + LINE_MAX_BYTES };
    if (access(folder, F_OK) && errno == ENOENT)
        return 0;
    struct err unused;
    int lock = audit_lock(folder, 0, &unused);          /* on a disk that is read-only there is no lock, and no writer */
    int rc = audit_files_list(&r->files, folder, e);
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
            gzbuffer(r->z[i], CHUNK / 16);      /* little beside what is asked for: plain files are read to where they are parsed */
        }
    }
    if (lock >= 0)
        close(lock);
    if (rc)
        reader_close(r);
    return rc;
}

/* 1 and a line ('\n' not included; *whole 0: the file ends in it, or it is longer than any of ours), 0 at the end of all, -1. */
static int reader_next(struct reader *r, const char **line, size_t *size, int *whole, struct err *e)
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
            if (r->end >= LINE_MAX_BYTES) {             /* the rest of it will come as another piece that is not whole */
                r->skipping = 1;
                r->end = 0;
            }
            const int n = gzread(r->z[r->at], r->buffer + r->end, CHUNK);
            int code;
            const char *why = gzerror(r->z[r->at], &code);
            if (n < 0)
                return code == Z_ERRNO ? err_sys(e, "%s", r->files.file[r->at].path) : err_set(e, ERR_FORMAT, "%s: %s", r->files.file[r->at].path, why);
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
        if (r->at < r->files.n && r->z[r->at]) {        /* its buffers make room for the next one's */
            gzclose(r->z[r->at]);
            r->z[r->at] = NULL;
        }
        if (++r->at >= r->files.n)
            return 0;
        r->ended = 0;
        r->line_no = 0;
    }
}

/* ---- fields: one flat JSON object, as our writer makes them; anything else is no entry ---- */

struct cursor { const char *p, *end; };
struct value { struct audit_text text; int is_string; };

/* The string at p (which is '"'): its inside; NULL if it has no end. */
static const char *skip_string(struct cursor *c, struct audit_text *out)
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

/* The value at p, up to what ends it. */
static int take_value(struct cursor *c, struct value *v)
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
    *v = (struct value){ .text = { from, (size_t)(p - from) } };
    c->p = p;
    return v->text.n ? 1 : -1;
}

/* The next "key":value; 1, 0 after the last, -1: this is not how we write. */
static int next_field(struct cursor *c, struct audit_text *key, struct value *v)
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

static int is(const struct audit_text *t, const char *s) { return t->n == strlen(s) && memcmp(t->p, s, t->n) == 0; }

static struct audit_text text_of(const struct value *v) { return v->is_string ? v->text : (struct audit_text){ NULL, 0 }; }

/* What stands behind a number's text ends it, so these stop in time.  The digits at p, and where they end. */
static int64_t digits(const char *p, const char **rest)
{
    int64_t n = 0;
    const char *q = p;
    for (; *q >= '0' && *q <= '9' && q - p < 18; q++)
        n = 10 * n + (*q - '0');
    *rest = q;
    return n;
}

static int64_t int_of(const struct value *v)
{
    const char *rest;
    if (v->is_string || v->text.p[0] == 'n')
        return -1;
    const int64_t n = digits(v->text.p, &rest);
    return rest > v->text.p && (*rest < '0' || *rest > '9') ? n : strtoll(v->text.p, NULL, 10);
}

/* As strtod: a whole number below 2^53 divided by a power of ten below 10^22 is rounded once (Clinger, PLDI 1990). */
static double real_of(const struct value *v)
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

/* Seconds that nobody's clock has shown are the last that fit. */
static int64_t in_ms(int64_t s)
{
    const int64_t most = INT64_MAX / 1000 - 1;
    return (s > most ? most : s < -most ? -most : s) * 1000;
}

/* 1726.003 as 1726003, exactly. */
static int64_t ms_of(const struct value *v)
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

enum field { OTHER, TIME, METHOD, PATH, STATUS, LATENCY, KEY, MODEL, PROMPT, COMPLETION, TOTAL, EVENT };

static enum field field_of(const struct audit_text *key)
{
#define FIELD(name, field) { name, sizeof name - 1, field }
    static const struct { const char *name; size_t n; enum field field; } known[] = {
        FIELD("timestamp_unix", TIME), FIELD("method", METHOD), FIELD("path", PATH), FIELD("status_code", STATUS), FIELD("latency_ms", LATENCY), FIELD("api_key_name", KEY),
        FIELD("model_id", MODEL), FIELD("prompt_tokens", PROMPT), FIELD("completion_tokens", COMPLETION), FIELD("total_tokens", TOTAL), FIELD("event", EVENT),
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].n == key->n && memcmp(known[i].name, key->p, key->n) == 0)
            return known[i].field;
    return OTHER;
}

static void note(struct audit_record *r, enum field field, const struct value *v)
{
    switch (field) {
    case OTHER: case EVENT: break;
    case TIME: r->time_ms = v->is_string ? r->time_ms : ms_of(v); break;
    case METHOD: r->method = text_of(v); break;
    case PATH: r->path = text_of(v); break;
    case STATUS: r->status = (int)int_of(v); break;
    case LATENCY: r->latency_ms = real_of(v); break;
    case KEY: r->key_name = text_of(v); break;
    case MODEL: r->model = text_of(v); break;
    case PROMPT: r->prompt_tokens = int_of(v); break;
    case COMPLETION: r->completion_tokens = int_of(v); break;
    case TOTAL: r->total_tokens = int_of(v); break;
    }
}

/* ---- the same at once, for a line whose fields come in the order of our writer: 0 where it is another one, which is then read field by field ---- */

#define NEXT(text) ((size_t)(c->end - c->p) > sizeof text && memcmp(c->p, text, sizeof text - 1) == 0 && (c->p += sizeof text - 1, 1))

static int is_null(struct cursor *c)
{
    if (*c->p != 'n' || c->end - c->p < 5 || memcmp(c->p, "null", 4) != 0)
        return 0;
    c->p += 4;
    return 1;
}

static int next_text(struct cursor *c, struct audit_text *out)
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

static int next_whole(struct cursor *c, int64_t *n)
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

/* WHOLE.PART with `places` digits behind the point: so many times the number. */
static int next_fixed(struct cursor *c, int places, int64_t *n)
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

static int parse_ours(struct cursor *c, struct audit_record *r)
{
    struct audit_text ignored;
    int64_t status, latency_us;
    if (!(NEXT("{\"timestamp\":") && next_text(c, &ignored) && NEXT(",\"timestamp_unix\":") && next_fixed(c, 3, &r->time_ms) &&
          NEXT(",\"request_id\":") && next_text(c, &ignored) && NEXT(",\"method\":") && next_text(c, &r->method) && NEXT(",\"path\":") && next_text(c, &r->path) &&
          NEXT(",\"status_code\":") && next_whole(c, &status) && NEXT(",\"latency_ms\":") && next_fixed(c, 3, &latency_us) &&
          NEXT(",\"api_key_name\":") && next_text(c, &r->key_name) && NEXT(",\"client_ip\":") && next_text(c, &ignored) && NEXT(",\"user_agent\":") && next_text(c, &ignored) &&
          NEXT(",\"model_id\":") && next_text(c, &r->model) && NEXT(",\"prompt_tokens\":") && next_whole(c, &r->prompt_tokens) &&
          NEXT(",\"completion_tokens\":") && next_whole(c, &r->completion_tokens) && NEXT(",\"total_tokens\":") && next_whole(c, &r->total_tokens) &&
          NEXT(",\"error_message\":") && next_text(c, &ignored)))
        return 0;
    r->status = (int)status;
    r->latency_ms = (double)latency_us / 1000;      /* the quotient of two exact numbers, rounded once: as strtod */
    return 1;
}

/* 1: an entry; 0: a line of ours that is none (where a file begins); -1: foreign, or cut. */
static int parse(const char *line, size_t size, struct audit_record *r)
{
    const struct audit_record none = { .line = line, .size = size, .time_ms = -1, .status = -1, .prompt_tokens = -1, .completion_tokens = -1, .total_tokens = -1 };
    struct cursor c = { line, line + size };
    struct audit_text key;
    struct value v;
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
    while ((more = next_field(&c, &key, &v)) > 0) {
        const enum field field = field_of(&key);
        had |= 1u << field;
        note(r, field, &v);
    }
    if (more < 0 || r->time_ms < 0)
        return -1;
    return had & 1u << EVENT ? 0 : had & 1u << STATUS ? 1 : -1;
}

static int same(const struct audit_text *t, const char *s) { return t->p && is(t, s); }

static int takes(const struct audit_filter *f, const struct audit_record *r)
{
    if ((f->since_ms && r->time_ms < f->since_ms) || (f->until_ms && r->time_ms >= f->until_ms))
        return 0;
    if ((f->key_name && !same(&r->key_name, f->key_name)) || (f->method && !same(&r->method, f->method)))
        return 0;
    if (f->path && (!r->path.p || r->path.n < strlen(f->path) || memcmp(r->path.p, f->path, strlen(f->path)) != 0))
        return 0;
    if (f->status && (f->status < 10 ? r->status / 100 != f->status : r->status != f->status))
        return 0;
    return r->latency_ms >= f->min_latency_ms;
}

int audit_scan(const char *folder, const struct audit_filter *f, int (*fn)(void *user, const struct audit_record *r), void *user,
               struct audit_scan *s, struct err *e)
{
    struct reader in;
    struct audit_record r;
    const char *line;
    size_t size;
    int more, whole;
    *s = (struct audit_scan){ 0 };
    if (reader_open(&in, folder, f->since_ms, e))
        return -1;
    while ((more = reader_next(&in, &line, &size, &whole, e)) > 0) {
        if (size == 0 && whole)
            continue;
        const int kind = whole ? parse(line, size, &r) : -1;
        s->lines += kind > 0;
        s->bad += kind < 0;
        if (kind > 0 && takes(f, &r) && fn(user, &r))
            break;
    }
    s->files = in.files.n;
    reader_close(&in);
    return more < 0 ? -1 : 0;
}

/* ---- the newest ---- */

/* Their memory is used again: a line costs a copy. */
struct kept { char *text; size_t n, room; };
struct newest { struct kept *line; int room; uint64_t seen; int failed; };

static int keep_line(void *user, const struct audit_record *r)
{
    struct newest *k = user;
    struct kept *at = &k->line[k->seen % (uint64_t)k->room];
    if (at->room <= r->size) {
        free(at->text);
        at->room = 2 * r->size + 1;
        if (!(at->text = malloc(at->room))) {
            at->room = 0;
            return k->failed = 1;
        }
    }
    memcpy(at->text, r->line, r->size);
    at->n = r->size;
    k->seen++;
    return 0;
}

int audit_newest(const char *folder, const struct audit_filter *f, int n, char ***lines, int *found, struct audit_scan *s, struct err *e)
{
    struct newest k = { .line = calloc((size_t)n + 1, sizeof *k.line), .room = n > 0 ? n : 1 };
    char **out = calloc((size_t)n + 1, sizeof *out);
    *lines = NULL;
    *found = 0;
    int rc = k.line && out ? audit_scan(folder, f, keep_line, &k, s, e) : err_nomem(e, "the newest lines");
    if (rc == 0 && k.failed)
        rc = err_nomem(e, "the newest lines");
    if (rc == 0) {
        const int have = k.seen < (uint64_t)n ? (int)k.seen : n;
        for (int i = 0; i < have; i++) {
            struct kept *at = &k.line[(k.seen - 1 - (uint64_t)i) % (uint64_t)k.room];
            out[i] = at->text;
            out[i][at->n] = '\0';
            at->text = NULL;
        }
        *lines = out;
        *found = have;
        out = NULL;
    }
    for (int i = 0; k.line && i < k.room; i++)
        free(k.line[i].text);
    free(k.line);
    free(out);
    return rc;
}

/* ---- summary ---- */

enum { MAX_NAMES = 256, NAME_SLOTS = 1024 };
struct tally {
    char *name[MAX_NAMES]; size_t size[MAX_NAMES]; uint64_t count[MAX_NAMES];
    int n;
    uint16_t slot[NAME_SLOTS];              /* by hash, open addressing: a name's number and 1; 0: free */
    uint64_t other;
};

static int count_name(struct tally *t, const struct audit_text *x)
{
    uint64_t h = 1469598103934665603u;      /* FNV-1a */
    for (size_t i = 0; i < x->n; i++)
        h = (h ^ (unsigned char)x->p[i]) * 1099511628211u;
    uint16_t *at = &t->slot[h >> 32 & (NAME_SLOTS - 1)];
    for (; *at; at = at + 1 < t->slot + NAME_SLOTS ? at + 1 : t->slot) {
        const int i = *at - 1;
        if (t->size[i] == x->n && memcmp(t->name[i], x->p, x->n) == 0)
            return t->count[i]++, 0;
    }
    if (t->n == MAX_NAMES)
        return t->other++, 0;
    if (!(t->name[t->n] = strndup(x->p, x->n)))
        return -1;
    t->size[t->n] = x->n;
    t->count[t->n++] = 1;
    *at = (uint16_t)t->n;
    return 0;
}

static json_t *tally_json(const struct tally *t)
{
    json_t *o = json_object();
    for (int i = 0; i < t->n; i++) {
        char text[4096];                    /* back from how it is written in the log */
        snprintf(text, sizeof text, "[\"%s\"]", t->name[i]);
        json_t *a = json_loads(text, 0, NULL);
        const char *name = json_string_value(json_array_get(a, 0));
        json_object_set_new(o, name ? name : t->name[i], json_integer((json_int_t)t->count[i]));
        json_decref(a);
    }
    if (t->other)
        json_object_set_new(o, "(other)", json_integer((json_int_t)t->other));
    return o;
}

struct summary { struct tally paths, keys, models; uint64_t status[600], n, errors; double latency; int64_t prompt, completion, total; };

static int sum_up(void *user, const struct audit_record *r)
{
    struct summary *s = user;
    s->n++;
    s->status[r->status >= 0 && r->status < 600 ? r->status : 0]++;
    s->errors += r->status >= 400;
    s->latency += r->latency_ms;
    s->prompt += r->prompt_tokens > 0 ? r->prompt_tokens : 0;
    s->completion += r->completion_tokens > 0 ? r->completion_tokens : 0;
    s->total += r->total_tokens > 0 ? r->total_tokens : 0;
    return (r->path.p && count_name(&s->paths, &r->path)) || (r->key_name.p && count_name(&s->keys, &r->key_name)) ||
           (r->model.p && count_name(&s->models, &r->model));
}

static int64_t now_of(int64_t now_ms)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return now_ms ? now_ms : (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

json_t *audit_summary(const char *folder, double hours, int64_t now_ms, struct err *e)
{
    struct summary *s = calloc(1, sizeof *s);
    struct audit_scan scan;
    const struct audit_filter f = { .since_ms = now_of(now_ms) - (int64_t)(hours * 3600e3) };
    json_t *out = NULL;
    if (!s)
        return err_nomem(e, "the summary"), NULL;
    if (audit_scan(folder, &f, sum_up, s, &scan, e) == 0) {
        json_t *codes = json_object();
        for (int i = 0; i < 600; i++) {
            char code[12];
            snprintf(code, sizeof code, "%d", i);
            if (s->status[i])
                json_object_set_new(codes, code, json_integer((json_int_t)s->status[i]));
        }
        out = json_pack("{s:f,s:I,s:i,s:o,s:o,s:o,s:o,s:f,s:I,s:I,s:I,s:I,s:I}", "period_hours", hours, "total_requests", (json_int_t)s->n,
                        "unique_keys", s->keys.n + (int)(s->keys.other > 0), "endpoints", tally_json(&s->paths), "status_codes", codes,
                        "keys", tally_json(&s->keys), "models", tally_json(&s->models), "avg_latency_ms", s->n ? s->latency / (double)s->n : 0.0,
                        "prompt_tokens", (json_int_t)s->prompt, "completion_tokens", (json_int_t)s->completion, "total_tokens", (json_int_t)s->total,
                        "errors", (json_int_t)s->errors, "skipped_lines", (json_int_t)scan.bad);
        if (!out)
            err_nomem(e, "the summary");
    }
    for (int i = 0; i < MAX_NAMES; i++) {
        free(s->paths.name[i]);
        free(s->keys.name[i]);
        free(s->models.name[i]);
    }
    free(s);
    return out;
}

/* ---- CSV ---- */

enum { MAX_COLUMNS = 64 };
struct csv {
    char *column[MAX_COLUMNS]; int n;
    size_t name_size[MAX_COLUMNS];
    struct value cell[MAX_COLUMNS];         /* of this row */
    char *line; size_t room;                /* a copy of this line, for cells to end in */
    int (*write)(void *user, const char *text, size_t size);
    void *user;
    uint64_t rows;
    int failed;
};

/* Fields mostly come in the order of the columns: looked for from `at` on. */
static int find_column(const struct csv *c, const struct audit_text *name, int at)
{
    for (int k = 0; k < c->n; k++) {
        const int i = at + k < c->n ? at + k : at + k - c->n;
        if (c->name_size[i] == name->n && memcmp(c->column[i], name->p, name->n) == 0)
            return i;
    }
    return -1;
}

static int add_column(struct csv *c, const char *name, size_t n)
{
    if (!(c->column[c->n] = strndup(name, n))) {
        c->failed = 1;
        return -1;
    }
    c->name_size[c->n++] = n;
    return 0;
}

/* First pass: the fields that any line has. */
static int note_columns(void *user, const struct audit_record *r)
{
    struct csv *c = user;
    struct cursor at = { r->line, r->line + r->size };
    struct audit_text key;
    struct value v;
    for (int i = 0; next_field(&at, &key, &v) > 0; i++) {
        if (is(&key, "hash") || key.n >= 256 || memchr(key.p, '\0', key.n))        /* the last: of nobody's writer, and no name of a column */
            continue;
        const int found = find_column(c, &key, i < c->n ? i : 0);
        if (found < 0 && c->n < MAX_COLUMNS && add_column(c, key.p, key.n) != 0)
            return 1;
        i = found < 0 ? i : found;
    }
    return 0;
}

/* May a formula begin here?  The ASCII ones, and the full-width forms that some locales take for them (OWASP, "CSV Injection"). */
static int begins_formula(const char *p)
{
    static const char *const signs[] = { "=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20" };
    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++)
        if (strncmp(p, signs[i], strlen(signs[i])) == 0)
            return 1;
    return 0;
}

/* Bytes of what a spreadsheet may take away before a text: blanks, a no-break space, the mark of a byte order. */
static size_t blank(const char *p)
{
    static const char *const wide[] = { "\u00a0", "\u3000", "\u200b", "\ufeff" };
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++)
        if (strncmp(p, wide[i], strlen(wide[i])) == 0)
            return strlen(wide[i]);
    return *p == ' ' || (*p >= '\t' && *p <= '\r');
}

/* Is p where a cell may begin (in its text, or behind what cells are separated by where commas do not), blanks aside? */
static int is_formula(const char *p)
{
    for (size_t n; (n = blank(p)); p += n)
        ;
    return begins_formula(p);
}

static int put_cell(struct csv *c, const char *text, int is_string)
{
    static const char separators[] = ";\t\r\n|";
    if (!is_string || (!strpbrk(text, "\",;\t\r\n|") && !blank(text) && !begins_formula(text)))
        return c->write(c->user, text, strlen(text));
    int bad = c->write(c->user, "\"", 1);
    for (const char *p = text, *end; *p && !bad; p = end) {
        const int starts = p == text || strchr(separators, p[-1]) != NULL;
        end = p + strcspn(p, "\";\t\r\n|");
        end += *end != '\0';
        bad = (starts && is_formula(p) && c->write(c->user, "'", 1)) || c->write(c->user, p, (size_t)(end - p)) || (end[-1] == '"' && c->write(c->user, "\"", 1));
    }
    return bad || c->write(c->user, "\"", 1);
}

static int is_plain_number(const struct audit_text *t)
{
    const size_t sign = *t->p == '-', whole = strspn(t->p + sign, "0123456789"), dot = t->p[sign + whole] == '.', part = dot ? strspn(t->p + sign + whole + 1, "0123456789") : 0;
    return whole > 0 && part >= dot && sign + whole + dot + part == t->n;
}

/* A row whose cells are what the line has between quotes: plain ASCII without escapes, and numbers. 0: it is another one. */
static int plain_cells(struct csv *c, const struct audit_record *r)
{
    if (c->room <= r->size) {
        free(c->line);
        c->room = 2 * r->size + 1;
        if (!(c->line = malloc(c->room))) {
            c->room = 0;
            return 0;
        }
    }
    unsigned char odd = 0;
    for (size_t i = 0; i < r->size; i++) {
        const unsigned char ch = (unsigned char)r->line[i];
        odd |= ch & 0x80;
        odd |= ch == '\\';
        odd |= ch < ' ';
        c->line[i] = (char)ch;
    }
    if (odd)
        return 0;
    struct cursor at = { c->line, c->line + r->size };
    struct audit_text key;
    struct value v;
    memset(c->cell, 0, sizeof c->cell);
    for (int i = 0; next_field(&at, &key, &v) > 0; i++) {
        const int column = find_column(c, &key, i < c->n ? i : 0);
        if (column < 0)
            continue;
        if (is(&v.text, "null") && !v.is_string)
            v.text.n = 0;
        else if (!v.is_string && !is_plain_number(&v.text))
            return 0;
        c->cell[column] = v;
        i = column;
    }
    for (int i = 0; i < c->n; i++)
        if (c->cell[i].text.n)
            ((char *)c->cell[i].text.p)[c->cell[i].text.n] = '\0';
    return 1;
}

static int put_plain(struct csv *c)
{
    int bad = 0;
    for (int i = 0; i < c->n && !bad; i++)
        bad = (i && c->write(c->user, ",", 1)) || (c->cell[i].text.n && put_cell(c, c->cell[i].text.p, c->cell[i].is_string));
    return bad;
}

static int put_row(void *user, const struct audit_record *r)
{
    struct csv *c = user;
    int bad = 0;
    if (plain_cells(c, r)) {
        bad = put_plain(c);
    } else {
        json_t *o = json_loadb(r->line, r->size, 0, NULL);
        if (!o)
            return 0;                       /* it looked like ours and is no JSON: not worth a row */
        for (int i = 0; i < c->n && !bad; i++) {
            json_t *v = json_object_get(o, c->column[i]);
            char *text = json_is_string(v) ? strdup(json_string_value(v)) : v && !json_is_null(v) ? json_dumps(v, JSON_ENCODE_ANY | JSON_REAL_PRECISION(13)) : strdup("");
            bad = !text || (i && c->write(c->user, ",", 1)) || put_cell(c, text, json_is_string(v));
            free(text);
        }
        json_decref(o);
    }
    c->rows++;
    return c->failed = bad || c->write(c->user, "\r\n", 2);
}

int audit_csv(const char *folder, const struct audit_filter *f, int (*write)(void *user, const char *text, size_t n), void *user, uint64_t *rows, struct err *e)
{
    static const char *const usual[] = { "timestamp", "timestamp_unix", "request_id", "method", "path", "status_code", "latency_ms", "api_key_name", "client_ip",
                                         "user_agent", "model_id", "prompt_tokens", "completion_tokens", "total_tokens", "error_message" };
    struct csv c = { .write = write, .user = user };
    struct audit_filter until = *f;
    struct audit_scan s;
    int rc = -1;
    if (!until.until_ms)
        until.until_ms = now_of(0) + 1;     /* lines that come between the two passes have to wait */
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++)
        add_column(&c, usual[i], strlen(usual[i]));
    if (c.failed || audit_scan(folder, &until, note_columns, &c, &s, e) || c.failed) {
        if (c.failed)
            err_nomem(e, "the columns");
        goto done;
    }
    for (int i = 0; i < c.n && !c.failed; i++)
        c.failed = (i && write(user, ",", 1)) || put_cell(&c, c.column[i], 1);
    if (!c.failed && write(user, "\r\n", 2) == 0)
        rc = audit_scan(folder, &until, put_row, &c, &s, e);
    if (rc == 0 && c.failed)
        rc = err_set(e, ERR_IO, "writing the CSV stopped after %" PRIu64 " rows", c.rows);
done:
    for (int i = 0; i < c.n; i++)
        free(c.column[i]);
    free(c.line);
    *rows = c.rows;
    return rc;
}

/* ---- verify ---- */

struct walk { struct audit_check *c; char prev[SHA256_HEX + 1]; int have_prev; struct sha256 *sha; const char *expect; };

static int broken(struct walk *w, const struct reader *in, const char *what)
{
    if (!w->c->broken)
        snprintf(w->c->where, sizeof w->c->where, "%s: line %" PRIu64 ": %s", in->files.file[in->at].path, in->line_no, what);
    w->c->broken = 1;
    return 1;
}

/* What a file's first line says of the file before. */
static int begins(const char *line, size_t size, struct audit_text *prev, struct audit_text *after)
{
    struct cursor c = { line, line + size };
    struct audit_text key;
    struct value v;
    int begin = 0;
    *prev = *after = (struct audit_text){ NULL, 0 };
    while (next_field(&c, &key, &v) > 0) {
        if (is(&key, "after") && v.is_string && v.text.n == SHA256_HEX)
            *after = v.text;
        begin |= is(&key, "event") && v.is_string && is(&v.text, "begin");
        if (is(&key, "prev") && v.is_string)
            *prev = v.text;
    }
    return begin && prev->n == SHA256_HEX;
}

static int walk_line(struct walk *w, const struct reader *in, const char *line, size_t size, int whole)
{
    struct audit_check *c = w->c;
    struct audit_record r;
    struct audit_text prev, after;
    const char *hex;
    const size_t covered = whole ? audit_line_hash(line, size, &hex) : 0;
    if (!covered) {
        c->bad += size > 0;
        return 0;                           /* half a line of a crash, or a foreign one: whether something is missing shows in the next */
    }
    if (in->line_no == 1 || !w->have_prev) {
        if (!begins(line, size, &prev, &after))
            return broken(w, in, w->have_prev ? "a file does not begin with a line of its own: its beginning was cut" : "the log does not begin with a line of its own: its beginning was cut");
        const int cleared = w->have_prev && after.p && memcmp(w->prev, after.p, SHA256_HEX) == 0;
        c->older_gone |= cleared;
        if (w->have_prev && !cleared && memcmp(w->prev, prev.p, SHA256_HEX) != 0)
            return broken(w, in, "this file does not go on where the one before ends: lines between them are missing");
        if (!w->have_prev)
            c->older_gone = memcmp(prev.p, AUDIT_ZEROS, SHA256_HEX) != 0;
        memcpy(w->prev, prev.p, SHA256_HEX);
        w->have_prev = 1;
        if (w->expect && memcmp(w->prev, w->expect, SHA256_HEX) == 0)
            c->found = 1;
    }
    uint8_t digest[SHA256_SIZE];
    char want[SHA256_HEX + 1];
    sha256_start(w->sha);
    sha256_add(w->sha, w->prev, SHA256_HEX);
    sha256_add(w->sha, line, covered);
    sha256_end(w->sha, digest);
    sha256_hex(digest, want);
    if (memcmp(want, hex, SHA256_HEX) != 0)
        return broken(w, in, "this line, or the one before it, was changed, put in or taken out");
    memcpy(w->prev, hex, SHA256_HEX);
    if (w->expect && memcmp(hex, w->expect, SHA256_HEX) == 0)
        c->found = 1;
    if (parse(line, size, &r) >= 0)
        c->head_ms = r.time_ms;
    c->lines++;
    return 0;
}

int audit_verify(const char *folder, const char *expect, struct audit_check *c, struct err *e)
{
    struct walk w = { .c = c, .expect = expect };
    struct reader in;
    const char *line;
    size_t size;
    int more = 0, whole, stop = 0;
    *c = (struct audit_check){ .head = AUDIT_ZEROS };
    if (!(w.sha = sha256_open(e)))
        return -1;
    if (reader_open(&in, folder, 0, e)) {
        sha256_close(w.sha);
        return -1;
    }
    while (!stop && (more = reader_next(&in, &line, &size, &whole, e)) > 0)
        stop = walk_line(&w, &in, line, size, whole);
    c->files = in.files.n;
    if (w.have_prev)
        memcpy(c->head, w.prev, sizeof c->head);
    c->head[SHA256_HEX] = '\0';
    reader_close(&in);
    sha256_close(w.sha);
    return more < 0 ? -1 : 0;
}

/* ---- stats ---- */

static int count_only(void *user, const struct audit_record *r)
{
    uint64_t *errors = user;
    *errors += r->status >= 400;
    return 0;
}

json_t *audit_files_json(const char *folder, struct err *e)
{
    struct audit_files f;
    struct audit_scan s;
    const struct audit_filter all = { 0 };
    uint64_t errors = 0, bytes = 0, current = 0;
    if (audit_files_list(&f, folder, e))
        return NULL;
    int rotated = 0;
    for (int i = 0; i < f.n; i++) {
        const int is_current = strcmp(strrchr(f.file[i].path, '/') + 1, AUDIT_FILE) == 0;
        bytes += f.file[i].size;
        if (is_current)
            current = f.file[i].size;
        else
            rotated++;
    }
    audit_files_release(&f);
    if (audit_scan(folder, &all, count_only, &errors, &s, e))
        return NULL;
    char path[4096];
    snprintf(path, sizeof path, "%s/" AUDIT_FILE, folder);
    json_t *o = json_pack("{s:s,s:f,s:I,s:i,s:I,s:I,s:I}", "log_file", path, "size_mb", (double)current / 1e6, "total_bytes", (json_int_t)bytes, "rotated_files", rotated,
                          "total_entries", (json_int_t)s.lines, "error_entries", (json_int_t)errors, "skipped_lines", (json_int_t)s.bad);
    if (!o)
        err_nomem(e, "the log's figures");
    return o;
}
