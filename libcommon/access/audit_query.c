/* audit_query.c - select and sum up entries of an audit log. */
#include "libcommon/access/audit_query.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "libcommon/access/audit_reader.h"

static int same(const struct audit_text *t, const char *s) { return t->p && audit_text_is(t, s); }

static int takes(const struct audit_filter *f, const struct audit_record *r)
{
    if ((f->since_ms && r->last_ms < f->since_ms) || (f->until_ms && r->time_ms >= f->until_ms))
        return 0;
    if ((f->key_name && !same(&r->key_name, f->key_name)) || (f->method && !same(&r->method, f->method)))
        return 0;
    if (f->path && (!r->path.p || r->path.n < strlen(f->path) || memcmp(r->path.p, f->path, strlen(f->path)) != 0))
        return 0;
    if (f->status && (f->status < 10 ? r->status / 100 != f->status : r->status != f->status))
        return 0;
    return r->latency_ms >= f->min_latency_ms;
}

/* One chain and its next entry. */
struct chain_stream { struct audit_reader in; struct audit_record r; int open, has_entry; };

/* Move to the next entry of the chain.  -1: it cannot be read. */
static int advance(struct chain_stream *t, struct audit_scan *s, struct err *e)
{
    const char *line;
    size_t size;
    int more, whole;
    t->has_entry = 0;
    while (!t->has_entry && (more = audit_reader_next(&t->in, &line, &size, &whole, e)) > 0) {
        if (size == 0 && whole)
            continue;
        const int kind = whole ? audit_reader_parse(line, size, &t->r) : -1;
        s->lines += kind > 0;
        s->requests += kind > 0 ? t->r.count : 0;
        s->bad += kind < 0;
        t->has_entry = kind > 0;
    }
    return t->has_entry || more == 0 ? 0 : -1;
}

/* The chain whose next entry is the earliest. */
static struct chain_stream *earliest(struct chain_stream *t)
{
    struct chain_stream *first = NULL;
    for (int i = 0; i < AUDIT_CHAINS; i++)
        if (t[i].has_entry && (!first || t[i].r.time_ms < first->r.time_ms))
            first = &t[i];
    return first;
}

int audit_scan(const char *folder, const struct audit_filter *f, int (*fn)(void *user, const struct audit_record *r),
               void *user, struct audit_scan *s, struct err *e)
{
    struct chain_stream chain[AUDIT_CHAINS], *next;
    int rc = 0;
    *s = (struct audit_scan){ 0 };
    for (int i = 0; i < AUDIT_CHAINS; i++)
        chain[i].open = chain[i].has_entry = 0;
    for (int i = 0; rc == 0 && i < AUDIT_CHAINS; i++) {
        rc = audit_reader_open(&chain[i].in, folder, (enum audit_chain)i, f->since_ms, e);
        chain[i].open = rc == 0;
        s->files += rc == 0 ? chain[i].in.files.n : 0;
        rc = rc ? rc : advance(&chain[i], s, e);
    }
    while (rc == 0 && (next = earliest(chain))) {
        if (takes(f, &next->r) && fn(user, &next->r))
            break;
        rc = advance(next, s, e);
    }
    for (int i = 0; i < AUDIT_CHAINS; i++)
        if (chain[i].open)
            audit_reader_close(&chain[i].in);
    return rc;
}

/* ---- the newest ---- */

/* A line of the ring; its memory is reused for later lines. */
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

int audit_newest(const char *folder, const struct audit_filter *f, int n, char ***lines, int *found,
                 struct audit_scan *s, struct err *e)
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
    uint16_t slot[NAME_SLOTS];  /* hash table with open addressing: index of a name plus 1; 0: free */
    uint64_t other;
};

static int count_name(struct tally *t, const struct audit_text *x, uint64_t n)
{
    uint64_t h = 1469598103934665603u;      /* FNV-1a */
    for (size_t i = 0; i < x->n; i++)
        h = (h ^ (unsigned char)x->p[i]) * 1099511628211u;
    uint16_t *at = &t->slot[h >> 32 & (NAME_SLOTS - 1)];
    for (; *at; at = at + 1 < t->slot + NAME_SLOTS ? at + 1 : t->slot) {
        const int i = *at - 1;
        if (t->size[i] == x->n && memcmp(t->name[i], x->p, x->n) == 0)
            return t->count[i] += n, 0;
    }
    if (t->n == MAX_NAMES)
        return t->other += n, 0;
    if (!(t->name[t->n] = strndup(x->p, x->n)))
        return -1;
    t->size[t->n] = x->n;
    t->count[t->n++] = n;
    *at = (uint16_t)t->n;
    return 0;
}

static json_t *tally_json(const struct tally *t)
{
    json_t *o = json_object();
    for (int i = 0; i < t->n; i++) {
        char text[4096];                    /* text without the log's escapes */
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

struct request_summary { struct tally paths, keys, models; uint64_t status[600], n,
                         errors; double latency; int64_t prompt,
                 completion, total; };

static int sum_up(void *user, const struct audit_record *r)
{
    struct request_summary *s = user;
    s->n += r->count;
    s->status[r->status >= 0 && r->status < 600 ? r->status : 0] += r->count;
    s->errors += r->status >= 400 ? r->count : 0;
    s->latency += r->latency_ms * (double)r->count;
    s->prompt += r->prompt_tokens > 0 ? r->prompt_tokens : 0;
    s->completion += r->completion_tokens > 0 ? r->completion_tokens : 0;
    s->total += r->total_tokens > 0 ? r->total_tokens : 0;
    return (r->path.p && count_name(&s->paths, &r->path, r->count)) ||
           (r->key_name.p && count_name(&s->keys, &r->key_name, r->count)) ||
           (r->model.p && count_name(&s->models, &r->model, r->count));
}

int64_t audit_now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

json_t *audit_summary(const char *folder, double hours, int64_t now_ms, struct err *e)
{
    struct request_summary *s = calloc(1, sizeof *s);
    struct audit_scan scan;
    const struct audit_filter f = { .since_ms = (now_ms ? now_ms : audit_now_ms()) - (int64_t)(hours * 3600e3) };
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
        out = json_pack("{s:f,s:I,s:i,s:o,s:o,s:o,s:o,s:f,s:I,s:I,s:I,s:I,s:I}", "period_hours", hours,
                        "total_requests", (json_int_t)s->n, "unique_keys", s->keys.n + (int)(s->keys.other > 0),
                        "endpoints", tally_json(&s->paths), "status_codes", codes, "keys", tally_json(&s->keys),
                        "models", tally_json(&s->models), "avg_latency_ms", s->n ? s->latency / (double)s->n : 0.0,
                        "prompt_tokens", (json_int_t)s->prompt, "completion_tokens", (json_int_t)s->completion,
                        "total_tokens", (json_int_t)s->total, "errors", (json_int_t)s->errors, "skipped_lines",
                        (json_int_t)scan.bad);
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

/* ---- stats ---- */

int audit_exists(const char *folder, struct err *e)
{
    for (int i = 0; i < AUDIT_CHAINS; i++) {
        struct audit_files f;
        if (audit_files_list(&f, folder, (enum audit_chain)i, e))
            return -1;
        const int found = f.n > 0;
        audit_files_release(&f);
        if (found)
            return 1;
    }
    return 0;
}

static int count_errors(void *user, const struct audit_record *r)
{
    uint64_t *errors = user;
    *errors += r->status >= 400 ? r->count : 0;
    return 0;
}

/* The files of one chain as JSON. */
static json_t *chain_json(const char *folder, enum audit_chain chain, struct err *e)
{
    struct audit_files f;
    uint64_t bytes = 0, current = 0;
    int rotated = 0;
    char path[4096];
    if (audit_files_list(&f, folder, chain, e))
        return NULL;
    for (int i = 0; i < f.n; i++) {
        bytes += f.file[i].size;
        current += f.file[i].current ? f.file[i].size : 0;
        rotated += !f.file[i].current;
    }
    audit_files_release(&f);
    snprintf(path, sizeof path, "%s/%s.jsonl", folder, audit_chain_name(chain));
    json_t *o = json_pack("{s:s,s:f,s:I,s:i}", "log_file", path, "size_mb", (double)current / 1e6, "total_bytes",
                          (json_int_t)bytes, "rotated_files", rotated);
    if (!o)
        err_nomem(e, "the log's figures");
    return o;
}

static void add_up(json_t *to, const json_t *from, const char *key)
{
    json_object_set_new(to, key, json_integer(json_integer_value(json_object_get(to, key)) +
                                              json_integer_value(json_object_get(from, key))));
}

json_t *audit_files_json(const char *folder, struct err *e)
{
    struct audit_scan s;
    const struct audit_filter all = { 0 };
    uint64_t errors = 0;
    json_t *o = chain_json(folder, AUDIT_KEYS, e), *anonymous = o ? chain_json(folder, AUDIT_ANONYMOUS, e) : NULL;
    if (!anonymous || audit_scan(folder, &all, count_errors, &errors, &s, e)) {
        json_decref(o);
        json_decref(anonymous);
        return NULL;
    }
    add_up(o, anonymous, "total_bytes");
    add_up(o, anonymous, "rotated_files");
    json_t *counts = json_pack("{s:I,s:I,s:I,s:I,s:o}", "total_entries", (json_int_t)s.requests, "error_entries",
                               (json_int_t)errors, "lines", (json_int_t)s.lines, "skipped_lines", (json_int_t)s.bad,
                               "anonymous", anonymous);
    if (!counts || json_object_update(o, counts))
        err_nomem(e, "the log's figures");
    json_decref(counts);
    return o;
}
