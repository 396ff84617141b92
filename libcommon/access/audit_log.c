/* audit_log.c - route entries to the two chains, through merging and a queue. */
#include "libcommon/access/audit_log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "libcommon/access/audit_queue.h"
#include "libcommon/access/audit_merge.h"
#include "libcommon/base/clock.h"

struct chain { struct audit *audit; struct audit_queue *queue; struct audit_merge *merge; };
struct audit_log {
    struct chain chain[AUDIT_CHAINS];
    struct audit_remotes remotes;
    struct audit_remote_stats sent[AUDIT_REMOTES];      /* their counters when they were closed */
    int has[AUDIT_REMOTES];
    int is_signing;
    uint64_t merging_ns;                    /* clock_ns() of the last flush */
};

static int open_chain(struct chain *c, const struct audit_log_options *o, enum audit_chain which,
                      const struct audit_remotes *remotes, struct err *e)
{
    const struct audit_options ao = { .folder = o->folder, .chain = which, .max_bytes = o->bytes[which],
                                      .keep = o->keep,
                                      .signer = o->signer, .remotes = *remotes };
    return (c->audit = audit_open(&ao, e)) && (c->queue = audit_queue_open(c->audit, o->waiting_bytes, e)) &&
           (c->merge = audit_merge_open(e)) ? 0 : -1;
}

struct audit_log *audit_log_open(const struct audit_log_options *o, struct err *e)
{
    struct audit_log *l = calloc(1, sizeof *l);
    int rc = l ? 0 : err_nomem(e, "the audit log");
    if (rc == 0 && o->syslog && !(l->remotes.syslog = audit_syslog_open(o->syslog, e)))
        rc = -1;
    if (rc == 0 && o->url && !(l->remotes.post = audit_post_open(o->url, o->url_token, o->url_ca, e)))
        rc = -1;
    for (int i = 0; rc == 0 && i < AUDIT_CHAINS; i++)
        rc = open_chain(&l->chain[i], o, (enum audit_chain)i, &l->remotes, e);
    if (rc == 0) {
        l->merging_ns = clock_ns();
        l->has[REMOTE_SYSLOG] = o->syslog != NULL;
        l->has[REMOTE_URL] = o->url != NULL;
        l->is_signing = o->signer != NULL;
        return l;
    }
    if (l && audit_log_finish(l, 1) == 0)
        audit_log_close(l);
    return NULL;
}

static void add_merged(void *user, const struct audit_entry *x) { audit_queue_add(user, x); }

static void flush(struct audit_log *l)
{
    for (int i = 0; i < AUDIT_CHAINS; i++)
        if (l->chain[i].merge && l->chain[i].queue)
            audit_merge_flush(l->chain[i].merge, add_merged, l->chain[i].queue);
    for (int i = 0; i < AUDIT_CHAINS; i++)
        if (l->is_signing && l->chain[i].queue)
            audit_queue_sign(l->chain[i].queue);
    l->merging_ns = clock_ns();
}

int audit_log_finish(struct audit_log *l, double patience_s)
{
    int left = 0;
    flush(l);
    const uint64_t from = clock_ns();
    for (int i = 0; i < AUDIT_CHAINS; i++) {
        const double spent = (double)(clock_ns() - from) * 1e-9;
        left += audit_queue_close(l->chain[i].queue, spent < patience_s ? patience_s - spent : 0);
        l->chain[i].queue = NULL;
    }
    const double remote_s = patience_s < REMOTE_PATIENCE_S ? patience_s : REMOTE_PATIENCE_S;
    if (left == 0 && l->remotes.syslog)
        audit_syslog_close(l->remotes.syslog, remote_s, &l->sent[REMOTE_SYSLOG]);
    if (left == 0 && l->remotes.post)
        audit_post_close(l->remotes.post, remote_s, &l->sent[REMOTE_URL]);
    if (left == 0)
        l->remotes = (struct audit_remotes){ 0 };
    return left;
}

void audit_log_close(struct audit_log *l)
{
    if (!l)
        return;
    for (int i = 0; i < AUDIT_CHAINS; i++) {
        audit_close(l->chain[i].audit);
        audit_merge_close(l->chain[i].merge);
    }
    free(l);
}

void audit_log_add(struct audit_log *l, const struct audit_entry *x, int has_key, int admitted)
{
    const struct chain *c = &l->chain[has_key ? AUDIT_KEYS : AUDIT_ANONYMOUS];
    if (!c->queue)
        return;
    if ((has_key && admitted) || audit_merge_add(c->merge, x, admitted ? AUDIT_ADMITTED : AUDIT_REFUSED,
                                                 admitted ? OPEN_OWN_LINES : MERGE_OWN_LINES))
        audit_queue_add(c->queue, x);
}

void audit_log_tick(struct audit_log *l)
{
    if (clock_ns() - l->merging_ns >= AUDIT_MERGE_S * 1000000000ull)
        flush(l);
}

void audit_log_stats(struct audit_log *l, struct audit_stats *s)
{
    struct audit_stats one;
    *s = (struct audit_stats){ 0 };
    for (int i = 0; i < AUDIT_CHAINS; i++) {
        audit_stats(l->chain[i].audit, &one);
        s->entries += one.entries;
        s->errors += one.errors;
        s->rotations += one.rotations;
        s->recent += one.recent;
        if (one.last_error_ns > s->last_error_ns) {
            memcpy(s->last_error, one.last_error, sizeof s->last_error);
            s->last_error_ns = one.last_error_ns;
        }
    }
}

int audit_log_remote_stats(struct audit_log *l, enum audit_remote which, struct audit_remote_stats *s)
{
    *s = l->sent[which];
    if (which == REMOTE_SYSLOG && l->remotes.syslog)
        audit_syslog_stats(l->remotes.syslog, s);
    if (which == REMOTE_URL && l->remotes.post)
        audit_post_stats(l->remotes.post, s);
    return l->has[which];
}

int audit_log_waiting(struct audit_log *l)
{
    int n = 0;
    for (int i = 0; i < AUDIT_CHAINS; i++)
        n += l->chain[i].queue ? audit_queue_waiting(l->chain[i].queue) : 0;
    return n;
}

int audit_log_recent(struct audit_log *l, int n, char **lines)
{
    enum { STAMP = sizeof "{\"timestamp\":\"" - 1, STAMP_SIZE = sizeof "2026-11-21T15:08:46.003Z" - 1 };
    char *next[AUDIT_CHAINS];
    int at[AUDIT_CHAINS] = { 0 }, found = 0;
    for (int i = 0; i < AUDIT_CHAINS; i++)
        audit_recent(l->chain[i].audit, at[i]++, &next[i]);
    for (int from = 0; found < n && from >= 0; found += from >= 0) {
        from = -1;
        for (int i = 0; i < AUDIT_CHAINS; i++)
            if (next[i] && (from < 0 || strncmp(next[i] + STAMP, next[from] + STAMP, STAMP_SIZE) > 0))
                from = i;
        if (from >= 0) {
            lines[found] = next[from];
            audit_recent(l->chain[from].audit, at[from]++, &next[from]);
        }
    }
    for (int i = 0; i < AUDIT_CHAINS; i++)
        free(next[i]);
    return found;
}
