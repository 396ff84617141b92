/* guard.c - the guard's state: keys and their counters, the limits of addresses, the audit log. */
#include "libcommon/serve/guard.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/plural.h"
#include "libcommon/serve/internal.h"

/* ---- keys ---- */

/* Drop the counters of deleted keys, that is, of keys that had counters before the file of keys was
 * reread and are no longer in it.  Nothing else frees these counters if zse-apikey died between
 * writing its two files, or if the file of keys was replaced. */
static void sweep(struct guard *g)
{
    int64_t ids[USAGE_SLOTS];
    struct key_info k;
    struct err e;
    const int n = usage_keys(g->usage, ids);
    g->swept_ns = clock_ns();
    if (n <= keys_known(g->keys) || keys_refresh(g->keys, &e) != 0)
        return;
    for (int i = 0; i < n; i++)
        if (keys_check_id(g->keys, ids[i], &k) == KEY_UNKNOWN)
            usage_drop(g->usage, ids[i]);
}

static int open_shared_keys(struct server *s, struct err *e)
{
    struct guard *g = &s->guard;
    if (!(g->keys = keys_open(s->o.keys_url, e)) || keys_refresh(g->keys, e) != 0)
        return err_prefix(e, "the keys cannot be read");
    g->refreshed_ns = g->swept_ns = clock_ns();
    return (g->usage = usage_open_shared(e)) ? keys_follow(g->keys, g->usage, s->o.keys_grace_s, e) : -1;
}

static int open_keys(struct server *s, struct err *e)
{
    struct guard *g = &s->guard;
    struct stat st;
    char path[4096];
    if (s->o.keys_url)
        return open_shared_keys(s, e);
    if (!s->o.home)
        return 0;
    if (!(g->keys = keys_open(s->o.home, e))) {
        snprintf(path, sizeof path, "%s/keys.db", s->o.home);
        if (stat(path, &st) == 0 || errno != ENOENT)
            return err_prefix(e, "the keys cannot be read");
        server_log(s, "%s: no keys", e->msg);
        if (!(g->keys = keys_open_read(s->o.home, e)))
            return 0;
    }
    if (keys_refresh(g->keys, e) != 0)
        return err_prefix(e, "the keys cannot be read");
    g->refreshed_ns = clock_ns();
    keys_set_patience(g->keys, 0);              /* the loop retries instead of waiting for a lock */
    if (!(g->usage = usage_open(s->o.home, e))) {
        server_log(s, "%s: the use of keys is counted in this process only, and lost when it ends", e->msg);
        if (!(g->usage = usage_open_here(s->o.home, e)))
            return -1;
    }
    sweep(g);
    return 0;
}

void guard_refresh(struct server *s)
{
    struct guard *g = &s->guard;
    struct err e;
    const uint64_t now = clock_ns();
    if (!g->keys || now - g->refreshed_ns < 250000000u)
        return;
    g->refreshed_ns = now;
    const int rc = keys_refresh(g->keys, &e);
    if (rc == 0) {
        g->trouble.code = ERR_NONE;
        g->locked_ns = 0;
        if (now - g->swept_ns > 60000000000u)
            sweep(g);
        return;
    }
    if (rc > 0)
        g->refreshed_ns = 0;            /* the next request retries */
    if (rc > 0 && !g->locked_ns)
        g->locked_ns = now;
    /* a program that changes a key holds the lock for less than this second */
    if ((rc < 0 || now - g->locked_ns > 1000000000u) &&
        (g->trouble.code == ERR_NONE || strcmp(g->trouble.msg, e.msg) != 0)) {
        server_log(s, "%s; the keys read before stay valid", e.msg);
        g->trouble = e;
    }
}

int guard_has_keys(const struct server *s)
{
    const struct guard *g = &s->guard;
    return g->keys && keys_known_required(g->keys) && keys_known(g->keys) > 0;
}

/* ---- open, every second, close ---- */

int guard_open(struct server *s, struct err *e)
{
    struct guard *g = &s->guard;
    if (!s->o.no_auth && open_keys(s, e) != 0)
        return -1;
    if (s->o.audit_folder) {
        const struct audit_log_options ao = { .folder = s->o.audit_folder,
                                              .bytes = { s->o.audit_bytes, s->o.audit_anonymous_bytes
                                                         ? s->o.audit_anonymous_bytes : s->o.audit_bytes },
                                              .keep = s->o.audit_files, .waiting_bytes = AUDIT_WAITING_BYTES,
                                              .signer = s->o.audit_signer, .syslog = s->o.audit_syslog,
                                              .url = s->o.audit_url, .url_token = s->o.audit_token,
                                              .url_ca = s->o.audit_ca };
        if (!(g->audit = audit_log_open(&ao, e)))
            return -1;
    }
    g->anonymous = address_limits_open(ADDRESSES, s->o.anonymous_limit, e);
    g->refused = address_limits_open(ADDRESSES, REFUSALS_MINUTE, e);
    return g->anonymous && g->refused ? 0 : -1;
}

/* Warn when lines to another server begin to be dropped; the metrics say how many. */
static void watch_remote(struct server *s, enum audit_remote which)
{
    struct audit_remote_stats now;
    const uint64_t before = s->guard.remote[which].dropped;
    int *dropping = &s->guard.remote[which].dropping;
    if (!audit_log_remote_stats(s->guard.audit, which, &now))
        return;
    if (now.dropped > before && !*dropping && which == REMOTE_SYSLOG)
        server_warn(s, "--audit-syslog %s: messages are dropped from now on: %s", s->o.audit_syslog,
                    now.last_error[0] ? now.last_error : "more come than it takes");
    if (now.dropped > before && !*dropping && which == REMOTE_URL)
        server_warn(s, "--audit-url: lines are dropped from now on: %s",
                    now.last_error[0] ? now.last_error : "more come than the collector takes");
    *dropping = now.dropped > before || (*dropping && now.waiting);
    s->guard.remote[which].dropped = now.dropped;
}

void guard_tick(struct server *s)
{
    struct guard *g = &s->guard;
    struct audit_stats now;
    if (g->usage)
        usage_renew(g->usage);
    if (!g->audit)
        return;
    audit_log_tick(g->audit);
    for (int i = 0; i < AUDIT_REMOTES; i++)
        watch_remote(s, (enum audit_remote)i);
    audit_log_stats(g->audit, &now);
    const int lost = now.errors > g->errors, written = now.entries > g->entries;
    if (lost && !g->losing)
        server_warn(s, "the audit log lacks lines from now on: %s", now.last_error);
    g->losing = lost || (g->losing && !written);
    g->errors = now.errors;
    g->entries = now.entries;
}

int guard_finish_audit(struct server *s)
{
    struct guard *g = &s->guard;
    const int left = g->audit ? audit_log_finish(g->audit, AUDIT_PATIENCE_S) : 0;
    if (left) {
        server_warn(s, "%s: %d line%s of the audit log could not be written: its disk, or the program that holds its lock, does not answer", s->o.audit_folder, left, plural(left));
        g->audit = NULL;                    /* its thread still uses it */
        return -1;
    }
    guard_tick(s);                          /* reports lines lost since the last second */
    return 0;
}
