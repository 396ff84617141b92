/* audit_queue.c - write lines of the audit log in a thread of their own. */
#include "libcommon/access/audit_queue.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "libcommon/base/plural.h"
#include "libcommon/base/thread.h"

struct waiting { struct waiting *next; char *line; size_t n; };

struct audit_queue {
    struct audit *a;
    size_t max_bytes;
    pthread_t thread;
    pthread_mutex_t mutex;                  /* protects everything below */
    pthread_cond_t wake, done;
    struct waiting *first, **last;
    size_t bytes;
    int n, stopping, ended;                 /* n: waiting lines, including the one being written */
};

static void *work(void *user)
{
    struct audit_queue *w = user;
    audit_begin(w->a);
    pthread_mutex_lock(&w->mutex);
    for (;;) {
        while (!w->first && !w->stopping)
            pthread_cond_wait(&w->wake, &w->mutex);
        struct waiting *x = w->first;
        if (!x)
            break;
        if (!(w->first = x->next))
            w->last = &w->first;
        pthread_mutex_unlock(&w->mutex);
        const size_t n = x->n;
        if (x->line)
            audit_write(w->a, x->line, n);
        else
            audit_sign_head(w->a);
        free(x);
        pthread_mutex_lock(&w->mutex);
        w->bytes -= n;
        w->n--;
    }
    w->ended = 1;
    pthread_cond_signal(&w->done);
    pthread_mutex_unlock(&w->mutex);
    return NULL;
}

struct audit_queue *audit_queue_open(struct audit *a, size_t max_bytes, struct err *e)
{
    struct audit_queue *w = calloc(1, sizeof *w);
    pthread_condattr_t monotonic;
    if (!w)
        return err_nomem(e, "the audit log"), NULL;
    w->a = a;
    w->max_bytes = max_bytes;
    w->last = &w->first;
    pthread_mutex_init(&w->mutex, NULL);
    pthread_cond_init(&w->wake, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&w->done, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (thread_start(&w->thread, work, w) == 0)
        return w;
    err_set(e, ERR_MEMORY, "no thread available for the audit log");
    pthread_cond_destroy(&w->done);
    pthread_cond_destroy(&w->wake);
    pthread_mutex_destroy(&w->mutex);
    free(w);
    return NULL;
}

static void add(struct audit_queue *w, struct waiting *new)
{
    *w->last = new;
    w->last = &new->next;
    w->bytes += new->n;
    w->n++;
    pthread_cond_signal(&w->wake);
}

void audit_queue_sign(struct audit_queue *w)
{
    struct waiting *new = calloc(1, sizeof *new);
    if (!new)
        return;                             /* the next signature covers these lines too */
    pthread_mutex_lock(&w->mutex);
    add(w, new);
    pthread_mutex_unlock(&w->mutex);
}

void audit_queue_add(struct audit_queue *w, const struct audit_entry *x)
{
    struct err e;
    struct waiting *new = malloc(sizeof *new);
    size_t n = 0;
    char *line = new ? audit_line(x, &n) : NULL;
    pthread_mutex_lock(&w->mutex);
    const int n_waiting = w->n, room = w->bytes + n <= w->max_bytes;
    if (line && room) {
        *new = (struct waiting){ .line = line, .n = n };
        add(w, new);
    }
    pthread_mutex_unlock(&w->mutex);
    if (line && room)
        return;
    if (line)
        err_set(&e, ERR_LIMIT, "%d line%s of the log already waiting for the disk: no room for another one", n_waiting,
                plural(n_waiting));
    else
        err_nomem(&e, "a line of the log");
    audit_lost(w->a, &e);
    free(line);
    free(new);
}

int audit_queue_waiting(struct audit_queue *w)
{
    pthread_mutex_lock(&w->mutex);
    const int n = w->n;
    pthread_mutex_unlock(&w->mutex);
    return n;
}

int audit_queue_close(struct audit_queue *w, double patience_s)
{
    struct timespec until;
    if (!w)
        return 0;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)patience_s;
    pthread_mutex_lock(&w->mutex);
    w->stopping = 1;
    pthread_cond_signal(&w->wake);
    while (!w->ended && pthread_cond_timedwait(&w->done, &w->mutex, &until) != ETIMEDOUT)
        ;
    const int left = w->ended ? 0 : w->n;
    pthread_mutex_unlock(&w->mutex);
    if (left)
        return left;
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->done);
    pthread_cond_destroy(&w->wake);
    pthread_mutex_destroy(&w->mutex);
    free(w);
    return 0;
}
