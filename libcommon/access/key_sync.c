/* key_sync.c - the thread that talks to the database of keys. */
#include "libcommon/access/key_sync.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "libcommon/access/key_postgres.h"
#include "libcommon/access/key_usage.h"
#include "libcommon/base/clock.h"
#include "libcommon/base/thread.h"

enum { TRIM_S = 60, LAST_MS = 1000 };

struct key_sync {
    struct key_db *db;
    struct usage *u;
    int64_t server;                         /* identifies this server in the database */
    int64_t seen;                           /* version of the newest copy; -1: read it again */
    uint64_t trimmed_ns;
    pthread_t thread;
    pthread_mutex_t mutex;                  /* protects everything below */
    pthread_cond_t wake;
    struct key_copy copy; int has_copy;
    uint64_t n_changes;                     /* calls of key_sync_again() */
    uint64_t n_rounds, good_ns;             /* rounds without an error, and the time of the last one */
    int failing, stopping;
    struct err trouble;
};

/* ---- the thread ---- */

/* Pass on a copy of the keys, unless the caller has changed its own meanwhile. */
static void pass(struct key_sync *s, struct key_copy *c, uint64_t n_changes)
{
    struct key_copy unused = *c;
    pthread_mutex_lock(&s->mutex);
    if (s->n_changes == n_changes) {
        unused = s->has_copy ? s->copy : (struct key_copy){ 0 };
        s->copy = *c;
        s->has_copy = 1;
    }
    pthread_mutex_unlock(&s->mutex);
    free(unused.known);
}

static int read_keys(struct key_sync *s, uint64_t n_changes, struct err *e)
{
    struct key_copy c;
    int64_t version;
    if (s->db->class->version(s->db, &version, e))
        return -1;
    if (version == s->seen)
        return 0;
    if (key_copy_load(s->db, &c, e))
        return -1;
    s->seen = version;
    pass(s, &c, n_changes);
    return 0;
}

static int trim(struct key_sync *s, struct err *e)
{
    if (clock_ns() - s->trimmed_ns < TRIM_S * 1000000000ull)
        return 0;
    s->trimmed_ns = clock_ns();
    return key_usage_trim(key_postgres(s->db), e);
}

/* The keys come first, because reading them restores a lost connection: counts are only taken when
 * there is one. */
static int sync_once(struct key_sync *s, uint64_t n_changes, struct err *e)
{
    s->db->class->set_patience(s->db, SYNC_PATIENCE_MS);
    return read_keys(s, n_changes, e) || key_usage_exchange(key_postgres(s->db), s->u, s->server, e) || trim(s, e)
               ? -1 : 0;
}

/* Wait, unless key_sync_again() was called since the round began with n_changes. */
static void pause_for(struct key_sync *s, int ms, uint64_t n_changes)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)(ms % 1000) * 1000000;
    until.tv_sec += ms / 1000 + until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    while (!s->stopping && s->n_changes == n_changes &&
           pthread_cond_timedwait(&s->wake, &s->mutex, &until) != ETIMEDOUT)
        ;
}

static void *work(void *user)
{
    struct key_sync *s = user;
    uint64_t changes_read = 0;
    pthread_mutex_lock(&s->mutex);
    while (!s->stopping) {
        struct err e;
        const uint64_t n_changes = s->n_changes;
        pthread_mutex_unlock(&s->mutex);
        if (n_changes != changes_read)
            s->seen = -1;
        const int rc = sync_once(s, n_changes, &e);
        changes_read = rc ? changes_read : n_changes;
        if (rc)
            s->seen = -1;                   /* the database may have fallen back to an older state meanwhile */
        pthread_mutex_lock(&s->mutex);
        s->failing = rc != 0;
        if (rc) {
            s->trouble = e;
        } else {
            s->n_rounds++;
            s->good_ns = clock_ns();
        }
        pause_for(s, rc ? SYNC_AGAIN_MS : SYNC_MS, n_changes);
    }
    pthread_mutex_unlock(&s->mutex);
    return NULL;
}

/* ---- the caller ---- */

static void release(struct key_sync *s)
{
    if (s->has_copy)
        free(s->copy.known);
    pthread_cond_destroy(&s->wake);
    pthread_mutex_destroy(&s->mutex);
    free(s);
}

struct key_sync *key_sync_open(struct key_db *db, struct usage *u, int64_t seen, struct err *e)
{
    struct key_sync *s = calloc(1, sizeof *s);
    pthread_condattr_t monotonic;
    if (!s || getrandom(&s->server, sizeof s->server, 0) != sizeof s->server) {
        free(s);
        err_nomem(e, "the keys");
        return NULL;
    }
    s->db = db;
    s->u = u;
    s->seen = seen;
    s->good_ns = s->trimmed_ns = clock_ns();
    pthread_mutex_init(&s->mutex, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&s->wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (thread_start(&s->thread, work, s) == 0)
        return s;
    err_set(e, ERR_MEMORY, "no thread available for the keys");
    release(s);
    return NULL;
}

void key_sync_close(struct key_sync *s)
{
    struct err e;
    pthread_mutex_lock(&s->mutex);
    s->stopping = 1;
    pthread_cond_signal(&s->wake);
    const int failing = s->failing;
    pthread_mutex_unlock(&s->mutex);
    if (failing)
        postgres_stop(key_postgres(s->db));
    pthread_join(s->thread, NULL);
    s->db->class->set_patience(s->db, LAST_MS);
    if (!failing && postgres_is_connected(key_postgres(s->db)))
        key_usage_exchange(key_postgres(s->db), s->u, s->server, &e);
    release(s);
}

int key_sync_take(struct key_sync *s, struct key_copy *c, struct err *e)
{
    pthread_mutex_lock(&s->mutex);
    const int failing = s->failing, fresh = s->has_copy;
    if (fresh)
        *c = s->copy;
    s->has_copy = 0;
    if (failing && e)
        *e = s->trouble;
    pthread_mutex_unlock(&s->mutex);
    return fresh ? 1 : failing ? -1 : 0;
}

void key_sync_again(struct key_sync *s)
{
    pthread_mutex_lock(&s->mutex);
    s->n_changes++;
    if (s->has_copy)
        free(s->copy.known);
    s->has_copy = 0;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->mutex);
}

void key_sync_stats(struct key_sync *s, struct keys_sync_stats *out)
{
    pthread_mutex_lock(&s->mutex);
    *out = (struct keys_sync_stats){ s->n_rounds, (clock_ns() - s->good_ns) / 1000000, 0 };
    out->is_away = s->failing || out->age_ms > SYNC_LATE_MS;
    pthread_mutex_unlock(&s->mutex);
}
