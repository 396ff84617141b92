/* audit_verify.c - walk a chain of the audit log and compare hashes, numbers, signatures and
 * retention. */
#include "libcommon/access/audit_verify.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "libcommon/access/audit_reader.h"
#include "libcommon/access/audit_sign.h"

enum { UNSIGNED_MS = 300000 };              /* a server signs every minute */

struct chain_walk {
    struct audit_check *c;
    const struct audit_want *want;
    const struct audit_reader *in;
    const char *folder, *name;              /* folder and name of the chain */
    struct sha256 *sha;
    char prev[SHA256_HEX + 1]; int have_prev;
    uint64_t seq;                           /* number of the previous line; 0: it has none */
    enum audit_chain chain;
    int64_t now_ms, ended_ms;               /* time of this line; time at which its request ended */
    int64_t unsigned_ms, late_ms;           /* earliest and latest end of the lines after the last signature */
    int n_begun;                            /* files begun so far */
    /* number of files that the announced retention should have removed; < 0: not known yet */
    int beyond;
    int keep;                               /* retention announced last; 0: never */
    /* whether the first line of the oldest file has a number, and whether it says that everything
     * before was cleared */
    int oldest_numbered, oldest_cleared;
};

/* ---- findings ---- */

static int broken(struct chain_walk *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static int broken(struct chain_walk *w, const char *fmt, ...)
{
    va_list ap;
    if (w->c->broken)
        return 1;
    const int n = snprintf(w->c->where, sizeof w->c->where, "%.300s: line %" PRIu64 ": ",
                           w->in->files.file[w->in->at].path, w->in->line_no);
    va_start(ap, fmt);
    vsnprintf(w->c->where + n, sizeof w->c->where - (size_t)n, fmt, ap);
    va_end(ap);
    return w->c->broken = 1;
}

static void missing(struct chain_walk *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void missing(struct chain_walk *w, const char *fmt, ...)
{
    va_list ap;
    if (w->c->missing)
        return;
    w->c->missing = 1;
    va_start(ap, fmt);
    vsnprintf(w->c->what, sizeof w->c->what, fmt, ap);
    va_end(ap);
}

/* 1 if the caller requires that no line is missing at this position of the log: after since_hash
 * and from since_ms on, or everywhere if neither is given. */
static int is_asked(const struct chain_walk *w)
{
    return (!w->want->since_hash || w->c->since_found) && (!w->want->since_ms || w->now_ms >= w->want->since_ms);
}

static const char *date(char out[32], int64_t ms)
{
    struct tm t;
    const time_t s = (time_t)(ms / 1000);
    if (!gmtime_r(&s, &t) || !strftime(out, 32, "%Y-%m-%dT%H:%M:%SZ", &t))
        strcpy(out, "an unknown time");
    return out;
}

static void look_for(struct chain_walk *w, const char *hash)
{
    w->c->found |= w->want->expect && memcmp(hash, w->want->expect, SHA256_HEX) == 0;
    w->c->since_found |= w->want->since_hash && memcmp(hash, w->want->since_hash, SHA256_HEX) == 0;
}

/* ---- lines about the chain ---- */

struct parsed_event { int begin, gap; struct audit_text prev, after, key, signature; int keep, all; int64_t cleared; };

static int read_event(const char *line, size_t size, struct parsed_event *x)
{
    struct audit_cursor c = { line, line + size };
    struct audit_text key;
    struct audit_value v;
    int is_event = 0;
    *x = (struct parsed_event){ .cleared = -1 };
    while (audit_next_field(&c, &key, &v) > 0) {
        const int is_hash = v.is_string && v.text.n == SHA256_HEX;
        if (audit_text_is(&key, "event") && v.is_string) {
            is_event = 1;
            x->begin = audit_text_is(&v.text, "begin");
            x->gap = audit_text_is(&v.text, "gap");
        } else if (audit_text_is(&key, "prev") && is_hash) {
            x->prev = v.text;
        } else if (audit_text_is(&key, "after") && is_hash) {
            x->after = v.text;
        } else if (audit_text_is(&key, "signature") && v.is_string) {
            x->signature = v.text;
        } else if (audit_text_is(&key, "key") && v.is_string) {
            x->key = v.text;
        } else if (audit_text_is(&key, "keep")) {
            const int64_t n = audit_int_of(&v);
            x->keep = n > 0 && n < 1000000 ? (int)n : 0;
        } else if (audit_text_is(&key, "cleared")) {
            x->cleared = audit_int_of(&v);
        } else if (audit_text_is(&key, "cleared_all")) {
            x->all = audit_text_is(&v.text, "true");
        }
    }
    return is_event;
}

static int is_same(const struct audit_text *hash, const char *other)
{
    return hash->p && memcmp(hash->p, other, SHA256_HEX) == 0;
}

/* Handle a line about the chain whose "prev" is not the previous line's hash. */
static void note_jump(struct chain_walk *w, const struct parsed_event *x, uint64_t seq)
{
    char numbers[96] = "", at[32];
    const uint64_t n = w->seq && seq > w->seq + 1 ? seq - w->seq - 1 : 0;
    if (n == 1)
        snprintf(numbers, sizeof numbers, "line %" PRIu64 " is", w->seq + 1);
    else if (n)
        snprintf(numbers, sizeof numbers, "lines %" PRIu64 " to %" PRIu64 " are", w->seq + 1, seq - 1);
    else
        strcpy(numbers, "lines are");
    if (x->cleared >= 0) {
        w->c->cleared += n ? n : (uint64_t)x->cleared;
        if (is_asked(w) && (w->want->since_hash || w->want->since_ms))
            missing(w, "%s/%s.jsonl: %s missing: the log was cleared on %s", w->folder, w->name, numbers,
                    date(at, w->now_ms));
    } else if (is_asked(w)) {
        missing(w, "%s: line %" PRIu64 ": %s missing before it: %s", w->in->files.file[w->in->at].path, w->in->line_no,
                numbers, x->after.p ? "the end of the log was cut or replaced, or the system crashed"
                                    : "a file was removed or replaced");
    }
}

/* Check a line that begins a file, or that continues after a gap.  1: broken. */
static int begin(struct chain_walk *w, const struct parsed_event *x, uint64_t seq)
{
    w->n_begun += x->begin;
    if (!w->have_prev) {
        w->c->older_gone = !is_same(&x->prev, AUDIT_ZEROS);
        w->c->first_ms = w->now_ms;
        w->oldest_numbered = seq > 0;
        w->oldest_cleared = x->cleared >= 0 && (x->all || is_same(&x->after, AUDIT_ZEROS));
        w->c->cleared += x->cleared > 0 ? (uint64_t)x->cleared : 0;
    } else if (!is_same(&x->prev, w->prev)) {
        w->c->older_gone |= x->cleared >= 0 && is_same(&x->after, w->prev);
        note_jump(w, x, seq);
    } else if (w->seq && seq && seq != w->seq + 1) {
        return broken(w, "its number is %" PRIu64 ", expected %" PRIu64, seq, w->seq + 1);
    }
    memcpy(w->prev, x->prev.p, SHA256_HEX);
    w->have_prev = 1;
    w->seq = seq ? seq - 1 : 0;
    look_for(w, w->prev);
    return 0;
}

/* Check a line that signs the previous one.  1: broken. */
static int check_signature(struct chain_walk *w, const struct parsed_event *x)
{
    struct audit_end end = { .seq = w->seq };
    const char *id = audit_signer_id(w->want->key);
    memcpy(end.hash, w->prev, sizeof end.hash);
    if (x->key.n != AUDIT_KEY_ID || memcmp(x->key.p, id, AUDIT_KEY_ID) != 0)
        return broken(w, "signed with another key: %.*s, expected %s", (int)(x->key.n < 64 ? x->key.n : 64),
                      x->key.p ? x->key.p : "", id);
    if (x->signature.n != AUDIT_SIGNATURE_HEX || !audit_signature_is_good(w->want->key, w->chain, &end, x->signature.p))
        return broken(w, "the signature is not that of key %s for the line before it", id);
    w->c->signatures++;
    w->c->unsigned_lines = 0;
    return 0;
}

static void count_unsigned(struct chain_walk *w)
{
    if (w->c->unsigned_lines++ == 0)
        w->unsigned_ms = w->late_ms = w->ended_ms;
    w->unsigned_ms = w->ended_ms < w->unsigned_ms ? w->ended_ms : w->unsigned_ms;
    w->late_ms = w->ended_ms > w->late_ms ? w->ended_ms : w->late_ms;
}

/* ---- one line ---- */

static int walk_line(struct chain_walk *w, const char *line, size_t size, int whole)
{
    struct audit_check *c = w->c;
    struct audit_record r;
    struct parsed_event x;
    const char *hex;
    uint64_t seq;
    const size_t covered = whole ? audit_line_end(line, size, &hex, &seq) : 0;
    if (!covered) {
        c->bad += size > 0;
        return 0;   /* partial or foreign; the next line shows whether anything is missing */
    }
    if (audit_reader_parse(line, size, &r) >= 0) {
        w->now_ms = r.last_ms;
        w->ended_ms = r.last_ms + (r.latency_ms > 0 && r.latency_ms < 1e12 ? (int64_t)r.latency_ms : 0);
    }
    const int is_event = read_event(line, size, &x), first = w->in->line_no == 1 || !w->have_prev;
    if (first && !(is_event && x.begin && x.prev.p))
        return broken(w, w->have_prev ? "a file does not begin with a line of its own: its beginning was cut"
                                      : "the log does not begin with a line of its own: its beginning was cut");
    if (is_event && x.prev.p && (first || x.gap) && begin(w, &x, seq))
        return 1;
    if (is_event && x.keep) {
        w->keep = x.keep;
        w->beyond = w->n_begun - 1 - x.keep > w->beyond ? w->n_begun - 1 - x.keep : w->beyond;
    }
    uint8_t digest[SHA256_SIZE];
    char want[SHA256_HEX + 1];
    sha256_start(w->sha);
    sha256_add(w->sha, w->prev, SHA256_HEX);
    sha256_add(w->sha, line, covered);
    sha256_end(w->sha, digest);
    sha256_hex(digest, want);
    if (memcmp(want, hex, SHA256_HEX) != 0)
        return broken(w, "this line, or the one before it, was changed, inserted or removed");
    if (w->seq && seq && seq != w->seq + 1)
        return broken(w, "its number is %" PRIu64 ", expected %" PRIu64, seq, w->seq + 1);
    if (w->in->has_head && seq && seq == w->in->head.end.seq && memcmp(hex, w->in->head.end.hash, SHA256_HEX) != 0)
        return broken(w, "line %" PRIu64 " of the chain has another hash than in %s.head: the log was written anew",
                      seq, w->name);
    if (w->want->key && is_event && x.signature.p) {
        if (check_signature(w, &x))
            return 1;
    } else if (w->want->key) {
        count_unsigned(w);
    }
    memcpy(w->prev, hex, SHA256_HEX);
    w->seq = seq;
    look_for(w, hex);
    c->head_ms = w->now_ms;
    c->lines++;
    return 0;
}

/* ---- the whole chain ---- */

/* Judge the beginning of the log: were older files rotated away as announced, cleared, or
 * removed? */
static void judge_beginning(struct chain_walk *w)
{
    char at[32], from[32];
    const struct audit_check *c = w->c;
    const struct audit_want *want = w->want;
    const int absent = w->in->files.n == 0 && !w->in->has_head;
    const int excused = !c->older_gone || w->oldest_cleared || !w->oldest_numbered || w->beyond >= 0;
    const char *why = !c->older_gone ? "it begins there" : w->oldest_cleared ? "it was cleared" : w->beyond >= 0 ||
                      !w->oldest_numbered ? "older files were rotated away" : "older files were removed";
    if (want->since_hash && !c->since_found)
        missing(w, "%s/%s.jsonl: no line has the hash %s: the log reaches back to %s (%s)", w->folder, w->name,
                want->since_hash, c->first_ms ? date(at, c->first_ms) : "no line", why);
    else if (want->since_ms && !absent && (!c->first_ms || c->first_ms > want->since_ms))
        missing(w, "%s/%s.jsonl: what came after %s is missing: the log reaches back to %s (%s)", w->folder, w->name,
                date(from, want->since_ms), c->first_ms ? date(at, c->first_ms) : "no line",
                c->first_ms ? why : "it is empty");
    else if (!excused && !want->since_hash && !want->since_ms)
        missing(w, "%s: files before those of %s.jsonl that are there were removed: the log keeps %d rotated files, and there are %d", w->folder, w->name, w->keep, w->n_begun - 1);
}

/* Judge the end of the log: does it match the head? */
static void judge_end(struct chain_walk *w)
{
    const struct audit_reader *in = w->in;
    if (in->has_head && in->head.end.seq > w->seq)
        missing(w, "%s/%s.jsonl: the log ends with line %" PRIu64 ", %s.head says %" PRIu64
                ": its end was cut or removed", w->folder, w->name, w->seq, w->name, in->head.end.seq);
    else if (!in->has_head && w->seq)
        missing(w, "%s/%s.head is missing or damaged: whether the end of the log was cut cannot be told", w->folder,
                w->name);
}

static void judge_signatures(struct chain_walk *w)
{
    char from[32], to[32];
    const struct audit_check *c = w->c;
    if (w->want->key && c->unsigned_lines && w->late_ms - w->unsigned_ms > UNSIGNED_MS)
        missing(w, "%s/%s.jsonl: the last %" PRIu64 " lines, from %s to %s, have no signature of this key after them",
                w->folder, w->name, c->unsigned_lines, date(from, w->unsigned_ms), date(to, w->late_ms));
}

int audit_verify(const char *folder, enum audit_chain chain, const struct audit_want *want, struct audit_check *c,
                 struct err *e)
{
    static const struct audit_want nothing = { 0 };
    struct audit_reader in;
    struct chain_walk w = { .c = c, .want = want ? want : &nothing, .in = &in, .folder = folder,
                      .name = audit_chain_name(chain), .chain = chain, .beyond = -1 };
    const char *line;
    size_t size;
    int more = 0, whole, stop = 0;
    *c = (struct audit_check){ .head = AUDIT_ZEROS };
    if (!(w.sha = sha256_open(e)))
        return -1;
    if (audit_reader_open(&in, folder, chain, 0, e)) {
        sha256_close(w.sha);
        return -1;
    }
    while (!stop && (more = audit_reader_next(&in, &line, &size, &whole, e)) > 0)
        stop = walk_line(&w, line, size, whole);
    c->files = in.files.n;
    c->last_seq = w.seq;
    if (w.have_prev)
        memcpy(c->head, w.prev, SHA256_HEX);
    if (more == 0) {
        judge_end(&w);
        judge_signatures(&w);
        judge_beginning(&w);
    }
    audit_reader_close(&in);
    sha256_close(w.sha);
    return more < 0 ? -1 : 0;
}
