/* chats.c - the threads of the chat history and the queue of their jobs. */
#include "libcommon/serve/chats/chats.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/plural.h"

enum { N_THREADS = 2, MAX_WAITING = 512, MAX_OF_TENANT = 64, EXPIRE_EVERY_S = 60 };
#define RETRY_NS 2000000000u            /* delay before a database that could not be opened is tried again */

struct chats {
    struct server *s;
    pthread_t thread[N_THREADS];
    int n_threads;
    pthread_mutex_t lock;
    pthread_cond_t work;
    /* the members below are protected by the lock */
    struct chat_job *first;             /* the queue, in order of round */
    int n;
    uint64_t round;                     /* round of the job that was taken last */
    struct chat_job *done, **done_last;
    struct history *busy[N_THREADS];    /* the connection that a job of each thread uses; NULL: none */
    int n_started;
    char trouble[600];                  /* a message for the log; "": none */
    char logged[600];                   /* the last message that was logged */
    int stop;
    /* used by the loop only */
    uint64_t expired_ns;                /* when the last job of CHATS_EXPIRE was queued */
    int expiring;
};

/* ---- the queue ---- */

static void add_done(struct chats *h, struct chat_job *j)
{
    j->next = NULL;
    *h->done_last = j;
    h->done_last = &j->next;
}

/* Insert the job into the queue, which is ordered by rounds; within a round jobs keep the order of
 * their arrival.  Each waiting job of a tenant is in a later round than the tenant's job before it.
 * Returns 0; -1 if too many jobs wait. */
static int enqueue(struct chats *h, struct chat_job *j)
{
    struct chat_job **at = &h->first;
    int same = 0;
    j->round = h->round + 1;
    for (struct chat_job *o = h->first; o; o = o->next)
        if (o->tenant == j->tenant && ++same && o->round >= j->round)
            j->round = o->round + 1;
    if (h->n >= MAX_WAITING || same >= MAX_OF_TENANT)
        return -1;
    while (*at && (*at)->round <= j->round)
        at = &(*at)->next;
    j->next = *at;
    *at = j;
    h->n++;
    pthread_cond_signal(&h->work);
    return 0;
}

static void free_job(struct chat_job *j)
{
    hold_release(&j->hold);
    buf_release(&j->body);
    free(j->text);
    free(j->name);
    free(j);
}

void chats_submit(struct chat_job *j)
{
    struct chats *h = j->s->chats;
    struct conn *c = j->conn;
    pthread_mutex_lock(&h->lock);
    const int rc = enqueue(h, j);
    pthread_mutex_unlock(&h->lock);
    if (rc == 0) {
        if (c)
            conn_set_exchange(c, j);
        return;
    }
    if (c) {
        conn_set_header(c, "Retry-After", "1");
        reply_refusal(j->s, c, 503, "history_busy", "too many requests to the chat history are waiting");
    }
    free_job(j);
}

/* ---- a thread ---- */

struct connection { struct history *h; struct history_problem why; uint64_t tried_ns; dev_t dev; ino_t ino; };

static void file_of(const struct server *s, char path[4096]) { snprintf(path, 4096, "%s/chats.db", s->o.home); }

/* Keep a problem of the file for the log, unless it is the one that was logged last. */
static void note(struct chats *h, const char *text)
{
    pthread_mutex_lock(&h->lock);
    if (strcmp(h->logged, text) != 0) {
        snprintf(h->trouble, sizeof h->trouble, "%s", text);
        snprintf(h->logged, sizeof h->logged, "%s", text);
    }
    pthread_mutex_unlock(&h->lock);
}

static void disconnect(struct connection *x)
{
    history_close(x->h);
    x->h = NULL;
}

/* Open the file, or reopen it after it was replaced.  -1 with x->why. */
static int connect_file(struct chats *h, struct connection *x)
{
    char path[4096];
    struct stat st;
    const struct server_options *o = &h->s->o;
    const struct history_limits limits = { .conversations = o->history_conversations,
                                           .bytes = (int64_t)o->history_bytes };
    file_of(h->s, path);
    if (x->h && (stat(path, &st) || st.st_ino != x->ino || st.st_dev != x->dev))
        disconnect(x);
    if (x->h)
        return 0;
    if (x->tried_ns && clock_ns() - x->tried_ns < RETRY_NS)
        return -1;
    x->tried_ns = clock_ns();
    if (!(x->h = history_open(o->home, &limits, &x->why))) {
        if (x->why.fault == HISTORY_NO_MEMORY || x->why.fault == HISTORY_BUSY)
            x->tried_ns = 0;
        return -1;
    }
    if (stat(path, &st) == 0) {
        x->dev = st.st_dev;
        x->ino = st.st_ino;
    }
    x->tried_ns = 0;
    return 0;
}

/* Record the connection that thread i uses, for chats_close.  0: the server is closing. */
static int set_busy(struct chats *h, int i, struct history *used)
{
    pthread_mutex_lock(&h->lock);
    h->busy[i] = used;
    const int go_on = !h->stop;
    pthread_mutex_unlock(&h->lock);
    return go_on;
}

static void do_job(struct chats *h, int i, struct connection *x, struct chat_job *j)
{
    if (atomic_load(&j->gone))
        return;
    if (connect_file(h, x) == 0) {
        if (set_busy(h, i, x->h))
            chats_run(j, x->h);
        set_busy(h, i, NULL);
        /* after an error reopen the file: a damaged one may have been replaced, and FTS5 stays
         * broken after it ran out of memory */
        if (atomic_load(&j->gone) && chats_reads(j))
            return;                         /* the job was cancelled; nothing is wrong with the file */
        if (j->problem.status == 503)
            disconnect(x);
        else if (!j->problem.status)
            note(h, "");
    } else {
        chats_problem(&x->why, &j->problem);
    }
    if (j->problem.status >= 500 && *j->problem.code)
        note(h, j->problem.message);
}

static void *work(void *arg)
{
    struct chats *h = arg;
    struct connection x = { 0 };
    char path[4096];
    file_of(h->s, path);
    /* a missing file is not opened here: the first job that uses it creates it */
    if (access(path, F_OK) == 0 && connect_file(h, &x) != 0)
        note(h, x.why.e.msg);
    loop_wake(h->s->loop);
    pthread_mutex_lock(&h->lock);
    const int i = h->n_started++;
    for (;;) {                          /* each iteration begins and ends with the lock held */
        while (!h->first && !h->stop)
            pthread_cond_wait(&h->work, &h->lock);
        struct chat_job *j = h->first;
        if (!j)
            break;
        h->first = j->next;
        h->n--;
        h->round = j->round;
        pthread_mutex_unlock(&h->lock);
        do_job(h, i, &x, j);
        pthread_mutex_lock(&h->lock);
        add_done(h, j);
        loop_wake(h->s->loop);
    }
    pthread_mutex_unlock(&h->lock);
    server_syncs(h->s, 1);
    disconnect(&x);
    server_syncs(h->s, -1);
    return NULL;
}

int chats_open(struct server *s, struct err *e)
{
    if (s->o.no_history || !s->o.home)
        return 0;
    struct chats *h = calloc(1, sizeof *h);
    if (!h)
        return err_nomem(e, "server");
    h->s = s;
    h->done_last = &h->done;
    pthread_mutex_init(&h->lock, NULL);
    pthread_cond_init(&h->work, NULL);
    s->chats = h;
    for (int rc; h->n_threads < N_THREADS; h->n_threads++)
        if ((rc = pthread_create(&h->thread[h->n_threads], NULL, work, h)) != 0)
            return err_set(e, ERR_IO, "thread: %s", strerror(rc));
    return 0;
}

void chats_close(struct server *s)
{
    struct chats *h = s->chats;
    if (!h)
        return;
    pthread_mutex_lock(&h->lock);
    h->stop = 1;
    for (int i = 0; i < N_THREADS; i++)
        if (h->busy[i])
            history_interrupt(h->busy[i]);
    pthread_cond_broadcast(&h->work);
    pthread_mutex_unlock(&h->lock);
    while (h->n_threads > 0)
        pthread_join(h->thread[--h->n_threads], NULL);
    for (struct chat_job *j; (j = h->done);) {
        h->done = j->next;
        free_job(j);
    }
    pthread_cond_destroy(&h->work);
    pthread_mutex_destroy(&h->lock);
    free(h);
    s->chats = NULL;
}

/* ---- in the loop ---- */

static void answer(struct server *s, struct chat_job *j)
{
    struct conn *c = j->conn;
    char disposition[128];
    if (j->problem.status) {
        if (j->problem.status == 503)
            conn_set_header(c, "Retry-After", "2");
        reply_problem(s, c, &j->problem);
        return;
    }
    if (j->download) {
        snprintf(disposition, sizeof disposition, "attachment; filename=\"%s\"", j->name);
        conn_add_header(c, "Content-Disposition", disposition);
    }
    metrics_count(&s->metrics, conn_route(c), 200);
    conn_reply(c, 200, j->download && j->markdown ? "text/markdown; charset=utf-8" : "application/json", j->text,
               j->text_size);
}

void chats_done(struct server *s)
{
    struct chats *h = s->chats;
    char trouble[sizeof h->trouble];
    if (!h)
        return;
    pthread_mutex_lock(&h->lock);
    struct chat_job *j = h->done;
    h->done = NULL;
    h->done_last = &h->done;
    strcpy(trouble, h->trouble);
    h->trouble[0] = '\0';
    pthread_mutex_unlock(&h->lock);
    if (*trouble)
        server_warn(s, "chat history: %s", trouble);
    for (struct chat_job *next; j; j = next) {
        next = j->next;
        if (j->work == CHATS_EXPIRE)
            h->expiring = j->number > 0;        /* continue immediately while more have expired */
        if (j->conn)
            answer(s, j);
        free_job(j);
    }
}

void chats_gone(struct conn *c)
{
    struct chat_job *j = conn_exchange(c);
    j->conn = NULL;
    atomic_store(&j->gone, 1);
}

void chats_tick(struct server *s)
{
    struct chats *h = s->chats;
    const uint64_t now = clock_ns();
    if (!h || !s->o.history_days || s->draining ||
        (h->expired_ns && !h->expiring && now - h->expired_ns < EXPIRE_EVERY_S * 1000000000ull))
        return;
    char path[4096];
    file_of(s, path);
    struct chat_job *j = access(path, F_OK) == 0 ? calloc(1, sizeof *j) : NULL;
    h->expired_ns = now;
    h->expiring = 0;
    if (!j)
        return;
    j->exchange.kind = EXCHANGE_CHATS;
    j->s = s;
    j->work = CHATS_EXPIRE;
    chats_submit(j);
}
