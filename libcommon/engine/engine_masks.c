/* engine_masks.c - the slow work of constraints: computing masks, accepting tokens, finding forced
 * tokens.
 *
 * Masks are computed in a thread while the backend computes the logits that they apply to.  A
 * request whose constraint takes longer skips steps until its work is done (it is late), keeping
 * its KV blocks and a copy of its logits; its output does not change.  The engine's own thread only
 * makes calls that give up after QUICK steps.
 *
 * Fairness: work is divided into turns.  The first turn of a constraint has FIRST steps and runs in
 * the first thread; its later turns run in the second thread, each with twice as many steps as the
 * one before, and shorter turns go first.  So a slow constraint delays others by FIRST steps in the
 * first thread, and by one turn in the second. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/thread.h"
#include "libcommon/engine/internal.h"

enum { N_THREADS = 2 };
static const uint64_t QUICK = 50000, FIRST = 500000;            /* about 0.5 ms and 5 ms */
static const uint64_t GRACE_NS = 20000000, IDLE_NS = 5000000;

struct masks {
    pthread_t thread[N_THREADS]; int n_threads;
    pthread_mutex_t lock;
    pthread_cond_t begun, ended;
    /* the members below are protected by the lock */
    struct request *first;              /* the queue: fewest steps first, then by arrival */
    struct request *current[N_THREADS]; /* the request that each thread works on, or NULL */
    int n_first;                        /* number of first turns that have not ended */
    int stop;
};

/* Whether r's next token will be chosen from the logits of this item, so that its mask is
 * needed. */
static int is_needed(const struct request *r, const struct batch_item *item)
{
    return r->constrained && item->n_logits > 0 && r->at_forced == r->n_forced &&
           item->pos + item->n_tokens - r->draft.n_used == r->n_ids && !r->cancelled && !r->has_allowed;
}

static int is_busy(const struct constraint *c) { return c->busy && c->busy(c->state); }

/* Do one turn of r's work.  0: the work is done; -1: another turn is needed. */
static int take_turn(struct request *r, uint64_t steps)
{
    const struct constraint *c = &r->constraint;
    struct constraint_work *w = &r->work;
    if (c->hurry)
        c->hurry(c->state, steps);
    if (w->accept) {
        const int rc = c->accept(c->state, w->id);
        if (is_busy(c))
            return -1;
        w->accept = 0;
        if ((w->refused = rc != 0))
            return 0;
    }
    if (w->forced) {
        const int n = c->forced(c->state, r->forced, FORCED_AT_ONCE);
        if (is_busy(c))
            return -1;
        w->forced = r->at_forced = 0;
        w->asked = 1;
        r->n_forced = n;
    }
    if (w->mask) {
        const uint32_t *allowed = c->mask(c->state);
        if (is_busy(c))
            return -1;
        w->mask = 0;
        r->allowed = allowed;
        r->has_allowed = 1;
    }
    return 0;
}

/* Insert r into the queue.  The caller holds the lock. */
static void enqueue(struct masks *m, struct request *r)
{
    struct request **at = &m->first;
    while (*at && (*at)->work.steps <= r->work.steps)
        at = &(*at)->work.next;
    r->work.next = *at;
    *at = r;
    r->work.state = WORK_QUEUED;
    m->n_first += r->work.steps == FIRST;
    pthread_cond_broadcast(&m->begun);
}

/* The next request for thread i; NULL: none.  The caller holds the lock. */
static struct request *dequeue(struct masks *m, int i)
{
    struct request **at = &m->first;
    while (i > 0 && *at && (*at)->work.steps == FIRST)
        at = &(*at)->work.next;
    struct request *r = *at;
    if (!r || (i == 0 && r->work.steps != FIRST))
        return NULL;
    *at = r->work.next;
    r->work.state = WORK_RUNNING;
    return m->current[i] = r;
}

struct start { struct masks *m; int i; };

static void *work(void *arg)
{
    struct start *start = arg;
    struct masks *m = start->m;
    const int i = start->i;
    free(start);
    pthread_mutex_lock(&m->lock);
    while (!m->stop) {
        struct request *r = dequeue(m, i);
        if (!r) {
            pthread_cond_wait(&m->begun, &m->lock);
            continue;
        }
        const uint64_t steps = r->work.steps;
        pthread_mutex_unlock(&m->lock);
        const int rc = take_turn(r, steps);
        pthread_mutex_lock(&m->lock);
        m->current[i] = NULL;
        m->n_first -= steps == FIRST;
        r->work.state = WORK_DONE;
        if (rc != 0) {
            r->work.steps *= 2;
            enqueue(m, r);
        }
        pthread_cond_broadcast(&m->ended);
    }
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

static struct masks *start(void)
{
    struct masks *m = calloc(1, sizeof *m);
    if (!m)
        return NULL;
    pthread_condattr_t a;
    pthread_condattr_init(&a);
    pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->begun, NULL);
    pthread_cond_init(&m->ended, &a);
    pthread_condattr_destroy(&a);
    for (; m->n_threads < N_THREADS; m->n_threads++) {
        struct start *s = malloc(sizeof *s);
        if (s)
            *s = (struct start){ m, m->n_threads };
        if (!s || thread_start(&m->thread[m->n_threads], work, s) != 0) {
            free(s);
            masks_close(m);
            return NULL;
        }
    }
    return m;
}

/* Queue r's work for the threads and return 0.  If no thread can be started, do the work now, and
 * return whether it is done. */
static int hand_over(struct engine *g, struct request *r)
{
    if (!g->masks && !(g->masks = start()))
        return take_turn(r, 0) == 0;
    r->work.steps = FIRST;
    pthread_mutex_lock(&g->masks->lock);
    enqueue(g->masks, r);
    pthread_mutex_unlock(&g->masks->lock);
    return 0;
}

/* Take back the work of r from the threads; 0: it is not done yet. */
static int collect(struct engine *g, struct request *r)
{
    if (!g->masks)
        return 1;
    pthread_mutex_lock(&g->masks->lock);
    if (r->work.state == WORK_DONE)
        r->work.state = WORK_NONE;
    const int done = r->work.state == WORK_NONE;
    pthread_mutex_unlock(&g->masks->lock);
    return done;
}

void masks_begin(struct engine *g, int n_items)
{
    for (int i = 0; i < n_items; i++) {
        struct request *r = g->batched[i];
        if (is_needed(r, &g->items[i]) && collect(g, r)) {
            r->work.mask = 1;
            hand_over(g, r);
        }
    }
}

/* Wait for the end of a turn, at most until the time `until`.  The caller holds the lock. */
static int wait_until(struct masks *m, uint64_t until)
{
    const struct timespec t = { (time_t)(until / 1000000000), (long)(until % 1000000000) };
    return pthread_cond_timedwait(&m->ended, &m->lock, &t) != ETIMEDOUT;
}

void masks_end(struct engine *g)
{
    struct masks *m = g->masks;
    if (!m)
        return;
    const uint64_t until = clock_ns() + GRACE_NS;
    pthread_mutex_lock(&m->lock);
    while (m->n_first && wait_until(m, until))
        ;
    pthread_mutex_unlock(&m->lock);
}

int masks_ready(struct engine *g, struct request *r)
{
    if (!collect(g, r))
        return 0;
    if (r->has_allowed)
        return 1;
    r->work.mask = 1;
    return take_turn(r, QUICK) == 0 || hand_over(g, r);
}

int masks_advance(struct engine *g, struct request *r)
{
    if (!collect(g, r))
        return 0;
    r->work.forced = r->at_forced == r->n_forced && r->constraint.forced && !r->work.asked;
    if (!r->work.accept && !r->work.forced)
        return 1;
    return take_turn(r, QUICK) == 0 || hand_over(g, r);
}

void masks_wait(struct engine *g)
{
    struct masks *m = g->masks;
    const uint64_t until = clock_ns() + IDLE_NS;
    if (!m)
        return;
    pthread_mutex_lock(&m->lock);
    for (int any = 0, more = 1; more && !any;) {
        for (int i = 0; i < g->n_running; i++)
            any |= g->running[i]->late && g->running[i]->work.state == WORK_DONE;
        more = any || wait_until(m, until);
    }
    pthread_mutex_unlock(&m->lock);
}

void masks_forget(struct engine *g, struct request *r)
{
    struct masks *m = g->masks;
    if (!m)
        return;
    pthread_mutex_lock(&m->lock);
    while (r->work.state == WORK_RUNNING) {
        if (r->constraint.cancel)
            r->constraint.cancel(r->constraint.state);
        pthread_cond_wait(&m->ended, &m->lock);
    }
    if (r->work.state == WORK_QUEUED) {
        struct request **at = &m->first;
        while (*at != r)
            at = &(*at)->work.next;
        *at = r->work.next;
        m->n_first -= r->work.steps == FIRST;
    }
    r->work.state = WORK_NONE;
    pthread_mutex_unlock(&m->lock);
}

void masks_close(struct masks *m)
{
    if (!m)
        return;
    pthread_mutex_lock(&m->lock);
    m->stop = 1;
    m->first = NULL;
    for (int i = 0; i < N_THREADS; i++)
        if (m->current[i] && m->current[i]->constraint.cancel)
            m->current[i]->constraint.cancel(m->current[i]->constraint.state);
    pthread_cond_broadcast(&m->begun);
    pthread_mutex_unlock(&m->lock);
    while (m->n_threads > 0)
        pthread_join(m->thread[--m->n_threads], NULL);
    pthread_cond_destroy(&m->ended);
    pthread_cond_destroy(&m->begun);
    pthread_mutex_destroy(&m->lock);
    free(m);
}
