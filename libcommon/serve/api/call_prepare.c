/* call_prepare.c - the threads that prepare calls: they parse large bodies and compile grammars,
 * while the event loop continues to send the tokens of other calls.
 *
 * The queue is ordered in rounds: the first call of each tenant, then the second of each, and so
 * on, so that a tenant with many waiting calls delays only its own. */
#include "libcommon/serve/api/internal.h"

#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/plural.h"

enum { N_PREPARING = 2, LARGE_CALL = 256 << 10, TRIM_BYTES = 32 << 20, TRIM_IDLE_S = 1 };
static const uint64_t second_ns = 1000000000;

struct preparing {
    pthread_t thread[N_PREPARING];
    int n_threads, n_started;
    pthread_mutex_t lock;
    pthread_cond_t work;
    struct call *first;                 /* the queue, in order of round */
    int n;                              /* length of the queue */
    uint64_t round;                     /* the round of the call that was taken last */
    struct call *done, **done_last;     /* calls for the loop to continue with, oldest first */
    struct call *current[N_PREPARING];  /* the call each thread works on; NULL: none */
    struct call *dropped;               /* ended calls that are too large for the loop to free */
    size_t freed_bytes;                 /* bytes freed since memory was last returned to the system */
    int untrimmed;                      /* a call has begun or ended since memory was last returned */
    uint64_t changed_ns;                /* time when the last call began or ended */
    int stop;
    struct loop *loop;
};

/* Move a call to the done list.  The caller holds the lock. */
static void add_done(struct preparing *p, struct call *c)
{
    c->next_preparing = NULL;
    *p->done_last = c;
    p->done_last = &c->next_preparing;
}

static int refuse_queued(struct call *c, int most)
{
    return problem_set(&c->problem, 503, NULL, "overloaded",
                       "%d request%s already waiting to be prepared, expected at most %d", most, plural(most), most);
}

/* The round for a new call of this tenant: the one after that of its last queued call, but not
 * before the current round.  *last: the link to the last call of the queue.  The caller holds
 * the lock. */
static uint64_t next_round(struct preparing *p, uint64_t tenant, struct call ***last)
{
    uint64_t round = p->round + 1;
    for (struct call **q = &p->first; *q; q = &(*q)->next_preparing) {
        if ((*q)->tenant == tenant && (*q)->round >= round)
            round = (*q)->round + 1;
        *last = q;
    }
    return round;
}

int prepare_submit(struct call *c)
{
    struct preparing *p = c->s->preparing;
    const int most = c->s->o.max_queue;
    struct call **at = &p->first, **last = NULL;
    int rc = 0;
    pthread_mutex_lock(&p->lock);
    c->round = next_round(p, c->tenant, &last);
    /* drop a queued call of a later round, and queue this one */
    if (most && p->n >= most && last && (*last)->round > c->round) {
        struct call *out = *last;
        *last = NULL;
        p->n--;
        refuse_queued(out, most);
        add_done(p, out);
        loop_wake(p->loop);
    }
    if (most && p->n >= most) {
        rc = refuse_queued(c, most);
    } else {
        while (*at && (*at)->round <= c->round)
            at = &(*at)->next_preparing;
        c->next_preparing = *at;
        *at = c;
        p->n++;
        pthread_cond_signal(&p->work);
    }
    pthread_mutex_unlock(&p->lock);
    return rc;
}

void prepare_withdraw(struct call *c)
{
    struct preparing *p = c->s->preparing;
    if (!p)
        return;                                 /* the server is closing */
    pthread_mutex_lock(&p->lock);
    struct call **at = &p->first;
    while (*at && *at != c)
        at = &(*at)->next_preparing;
    const int found = *at != NULL;
    if (found) {
        *at = c->next_preparing;
        p->n--;
        add_done(p, c);
    }
    pthread_mutex_unlock(&p->lock);
    if (found)
        loop_wake(p->loop);
}

int prepare_free(struct call *c)
{
    struct preparing *p = c->s->preparing;
    if (!p)
        return -1;
    const int large = c->hold.bytes >= LARGE_CALL;
    pthread_mutex_lock(&p->lock);
    if (large) {
        c->next_preparing = p->dropped;
        p->dropped = c;
    }
    if (large || !p->untrimmed)
        pthread_cond_signal(&p->work);
    p->untrimmed = 1;
    p->changed_ns = clock_ns();
    pthread_mutex_unlock(&p->lock);
    return large ? 0 : -1;
}

static void give_memory_back(void)
{
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}

/* Number of bytes that these calls hold. */
static size_t bytes_of_dropped(const struct call *c)
{
    size_t n = 0;
    for (; c; c = c->next_preparing)
        n += c->hold.bytes;
    return n;
}

static void destroy_calls(struct call *c)
{
    for (struct call *next; c; c = next) {
        next = c->next_preparing;
        call_destroy(c);
    }
}

/* Wait for work, or until no call has begun or ended for TRIM_IDLE_S seconds, so that memory can be
 * returned to the system.  The caller holds the lock. */
static void wait_for_work(struct preparing *p)
{
    while (!p->first && !p->dropped && !p->stop) {
        const uint64_t idle_ns = p->changed_ns + TRIM_IDLE_S * second_ns;
        const struct timespec until = { (time_t)(idle_ns / second_ns), (long)(idle_ns % second_ns) };
        if (!p->untrimmed)
            pthread_cond_wait(&p->work, &p->lock);
        else if (clock_ns() >= idle_ns)
            return;
        else
            pthread_cond_timedwait(&p->work, &p->lock, &until);
    }
}

/* Take the next call of the queue (NULL: none) and all calls to be freed.  The caller holds the
 * lock. */
static struct call *take_work(struct preparing *p, struct call **dropped, int *trim)
{
    struct call *c = p->first;
    *dropped = p->dropped;
    p->dropped = NULL;
    *trim = *dropped ? (p->freed_bytes += bytes_of_dropped(*dropped)) > TRIM_BYTES : !c && p->untrimmed;
    if (*trim)
        p->freed_bytes = 0;
    p->untrimmed = c || (*dropped && !*trim);
    p->changed_ns = clock_ns();
    if (c) {
        p->n--;
        p->first = c->next_preparing;
        p->round = c->round;
    }
    return c;
}

static void *prepare(void *arg)
{
    struct preparing *p = arg;
    pthread_mutex_lock(&p->lock);
    const int i = p->n_started++;
    for (;;) {                          /* each iteration begins and ends with the lock held */
        struct call *dropped;
        int trim;
        wait_for_work(p);
        if (p->stop)
            break;
        struct call *c = p->current[i] = take_work(p, &dropped, &trim);
        pthread_mutex_unlock(&p->lock);
        destroy_calls(dropped);
        if (trim)
            give_memory_back();
        if (c)
            call_work(c);
        pthread_mutex_lock(&p->lock);
        p->current[i] = NULL;
        if (c) {
            add_done(p, c);
            loop_wake(p->loop);
        }
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

int calls_open(struct server *s, struct err *e)
{
    struct preparing *p = calloc(1, sizeof *p);
    if (!p)
        return err_nomem(e, "server");
    p->done_last = &p->done;
    p->loop = s->loop;
    pthread_mutex_init(&p->lock, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&p->work, &attr);
    pthread_condattr_destroy(&attr);
    s->preparing = p;
    for (int rc; p->n_threads < N_PREPARING; p->n_threads++)
        if ((rc = pthread_create(&p->thread[p->n_threads], NULL, prepare, p)) != 0)
            return err_set(e, ERR_IO, "thread: %s", strerror(rc));
    return 0;
}

static void free_calls(struct call *c)
{
    while (c) {
        struct call *next = c->next_preparing;
        call_free(c);
        c = next;
    }
}

void calls_close(struct server *s)
{
    struct preparing *p = s->preparing;
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->stop = 1;
    for (int i = 0; i < N_PREPARING; i++)
        if (p->current[i])
            atomic_store(&p->current[i]->cancelled, 1);
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    while (p->n_threads > 0)
        pthread_join(p->thread[--p->n_threads], NULL);
    s->preparing = NULL;                        /* from now on call_free frees in the calling thread */
    free_calls(p->first);
    free_calls(p->done);
    destroy_calls(p->dropped);
    pthread_cond_destroy(&p->work);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

struct call *prepare_take_done(struct server *s)
{
    struct preparing *p = s->preparing;
    pthread_mutex_lock(&p->lock);
    struct call *c = p->done;
    p->done = NULL;
    p->done_last = &p->done;
    pthread_mutex_unlock(&p->lock);
    return c;
}
