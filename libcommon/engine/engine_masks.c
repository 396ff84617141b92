/* engine_masks.c - what constraints allow next is worked out in a thread of its own while the backend computes the logits that it is for. */
#include <stdlib.h>

#include "libcommon/base/thread.h"
#include "libcommon/engine/engine_core.h"

struct masks {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t begun, ended;
    struct engine *g;
    int n_items;                        /* of the step whose masks are wanted; 0: nothing to do */
    int stop;
};

/* Will a token of r be chosen from the logits of this item? */
static int is_needed(const struct request *r, const struct batch_item *item)
{
    return r->constrained && item->n_logits > 0 && r->at_forced == r->n_forced && item->pos + item->n_tokens == r->n_ids && !r->cancelled;
}

static void *work(void *arg)
{
    struct masks *m = arg;
    pthread_mutex_lock(&m->lock);
    for (;;) {
        while (!m->n_items && !m->stop)
            pthread_cond_wait(&m->begun, &m->lock);
        if (m->stop)
            break;
        const int n = m->n_items;
        pthread_mutex_unlock(&m->lock);
        for (int i = 0; i < n; i++) {
            struct request *r = m->g->batched[i];
            if (is_needed(r, &m->g->items[i])) {
                r->allowed = r->constraint.mask(r->constraint.state);
                r->has_allowed = 1;
            }
        }
        pthread_mutex_lock(&m->lock);
        m->n_items = 0;
        pthread_cond_signal(&m->ended);
    }
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

static struct masks *start(struct engine *g)
{
    struct masks *m = calloc(1, sizeof *m);
    if (!m)
        return NULL;
    m->g = g;
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->begun, NULL);
    pthread_cond_init(&m->ended, NULL);
    if (thread_start(&m->thread, work, m) == 0)
        return m;
    pthread_cond_destroy(&m->ended);
    pthread_cond_destroy(&m->begun);
    pthread_mutex_destroy(&m->lock);
    free(m);
    return NULL;
}

void masks_begin(struct engine *g, int n_items)
{
    int any = 0;
    for (int i = 0; i < n_items; i++)
        any |= is_needed(g->batched[i], &g->items[i]);
    if (!any || (!g->masks && !(g->masks = start(g))))
        return;                         /* without the thread each is asked for when it is needed */
    pthread_mutex_lock(&g->masks->lock);
    g->masks->n_items = n_items;
    pthread_cond_signal(&g->masks->begun);
    pthread_mutex_unlock(&g->masks->lock);
}

void masks_end(struct engine *g)
{
    struct masks *m = g->masks;
    if (!m)
        return;
    pthread_mutex_lock(&m->lock);
    while (m->n_items)
        pthread_cond_wait(&m->ended, &m->lock);
    pthread_mutex_unlock(&m->lock);
}

void masks_close(struct masks *m)
{
    if (!m)
        return;
    pthread_mutex_lock(&m->lock);
    m->stop = 1;
    pthread_cond_signal(&m->begun);
    pthread_mutex_unlock(&m->lock);
    pthread_join(m->thread, NULL);
    pthread_cond_destroy(&m->ended);
    pthread_cond_destroy(&m->begun);
    pthread_mutex_destroy(&m->lock);
    free(m);
}
