/* engine_lookahead.c - compute a step; if the backend can launch steps without waiting, launch the
 * next one before this one's tokens are read, so that the device never waits for the host.
 *
 * The next step depends only on this one's tokens, which are on the device.  It can be planned if
 * all running requests decode, none joins, and blocks are free.  If a request ends with the token
 * of this step, its row of the next step is discarded; the keys and values of that row come after
 * the last valid token, and the next user of the block overwrites them. */
#include <string.h>

#include "libcommon/engine/internal.h"

/* Whether the backend can launch a step of these n items without waiting for it. */
static int can_begin(const struct engine *g, int n)
{
    for (int i = 0; i < n; i++)
        if (!g->items[i].draw)
            return 0;
    return g->backend->begin && !g->states && n > 0;
}

/* Plan, in g->lookahead, the step that follows the step of the n items.  Returns the number of
 * items of the planned step; 0 if it cannot be planned yet. */
static int plan_lookahead(struct engine *g, int n)
{
    struct lookahead *a = &g->lookahead;
    int n_alive = 0;
    for (int i = 0; i < n; i++)
        n_alive += g->batched[i] != NULL;
    /* a late request joins only when its mask is ready, so it does not join this step */
    for (int i = 0; i < g->n_running; i++)
        n_alive += g->running[i]->late != LATE_NOT;
    a->n = 0;
    if (n_alive < g->n_running || may_admit(g))
        return 0;
    for (int i = 0; i < n; i++) {
        struct request *r = g->batched[i];
        if (!r || r->n_ids + 1 == r->limit)             /* r ends with the token of this step */
            continue;
        if (r->draft.by_model)                          /* the draft needs the token of this step */
            return a->n = 0;
        if (r->n_ids + 1 == long_rope_from(g) || kv_table_reserve(&r->kv, g->pool, r->n_ids + 1) != 0 ||
            kv_table_windows(&r->kv, g->pool, r->n_ids + 1) != 0 ||
            !sampler_draw(r->sampler, r->n_ids + 1 - r->n_prompt, &a->draws[a->n]))
            return a->n = 0;
        a->items[a->n] = (struct batch_item){ .follows = i, .n_tokens = 1, .pos = r->n_ids, .table = r->kv.block,
                                              .window_table = r->kv.window, .n_logits = 1, .seq_len = r->n_ids + 1,
                                              .draw = &a->draws[a->n] };
        a->batched[a->n++] = r;
    }
    return a->n;
}

/* Drain launched steps and discard their results. */
static void drop_begun(struct engine *g)
{
    struct err ignored;
    for (; g->n_begun; g->n_begun--)
        g->backend->end(g->b, NULL, &ignored);
    g->lookahead.n = 0;
}

/* Whether the backend left a row of the step without a token. */
static int any_missing(const struct engine *g, int n)
{
    for (int i = 0; i < n; i++)
        if (g->batched[i] && g->draws[i].id < 0)
            return 1;
    return 0;
}

/* The backend could not draw the token of some row, so its logits are needed: compute the current
 * step again for the remaining requests, and wait for it.  Returns the number of items. */
static int run_again(struct engine *g, int n, struct err *e)
{
    int n_left = 0;
    drop_begun(g);
    for (int i = 0; i < n; i++) {
        struct request *r = g->batched[i];
        if (!r)
            continue;
        struct batch_item *item = &g->items[n_left];
        *item = g->items[i];
        item->tokens = r->ids + item->pos;
        item->table = r->kv.block;
        item->draw->id = -1;
        g->batched[n_left++] = r;
    }
    g->n_items = n_left;
    return g->backend->forward(g->b, &(struct batch){ g->items, n_left }, g->logits, e) < 0 ? -1 : n_left;
}

/* The current step, of n items, is running already: launch the step after it if possible, then wait
 * for the current one.  Returns the number of items of the current step whose rows are valid, or -1
 * if the backend failed. */
static int finish_begun(struct engine *g, int n, struct err *e)
{
    if (plan_lookahead(g, n)) {
        const int rc = g->backend->begin(g->b, &(struct batch){ g->lookahead.items, g->lookahead.n }, e);
        if (rc < 0)
            return -1;
        g->n_begun += rc;
        g->lookahead.n = rc ? g->lookahead.n : 0;
    }
    g->n_begun--;
    if (g->backend->end(g->b, &(struct batch){ g->items, n }, e) < 0)
        return -1;
    return any_missing(g, n) ? run_again(g, n, e) : n;
}

static void swap(void *a, void *b)
{
    void *t;
    memcpy(&t, a, sizeof t);
    memcpy(a, b, sizeof t);
    memcpy(b, &t, sizeof t);
}

/* Make the step that was launched during the last one the current one.  Returns the number of its
 * items; 0: all their requests have ended. */
static int take_lookahead(struct engine *g)
{
    int n_alive = 0;
    swap(&g->items, &g->lookahead.items);
    swap(&g->batched, &g->lookahead.batched);
    swap(&g->draws, &g->lookahead.draws);
    g->n_items = g->lookahead.n;
    g->lookahead.n = 0;
    for (int i = 0; i < g->n_items; i++)
        n_alive += g->batched[i] != NULL;
    g->pace.n_decoding = n_alive;
    g->pace.n_prompt = 0;
    if (n_alive)
        return g->n_items;
    drop_begun(g);
    return g->n_items = 0;
}

int lookahead_run(struct engine *g, struct err *e)
{
    int n = g->n_begun ? take_lookahead(g) : 0, rc = 0;
    const int is_ahead = n > 0;
    if (!is_ahead) {
        plan_step(g);
        n = g->n_items = plan_batch(g);
    }
    if (g->planned)
        g->planned(g->planned_user);
    if (!is_ahead) {
        if (n == 0)
            return 0;
        if (g->copy_failed || g->broken) {
            *e = g->broken ? g->broken_error : g->copy_error;
            rc = -1;
        } else if (can_begin(g, n)) {
            rc = g->backend->begin(g->b, &(struct batch){ g->items, n }, e);
            g->n_begun = rc > 0;
        }
    }
    if (g->n_begun) {
        rc = finish_begun(g, n, e);
    } else if (rc == 0) {
        masks_begin(g, n);
        rc = g->backend->forward(g->b, &(struct batch){ g->items, n }, g->logits, e) < 0 ? -1 : n;
        masks_end(g);
    }
    g->copy_failed = 0;
    if (rc < 0)
        drop_begun(g);
    return rc;
}

void lookahead_forget(struct engine *g, const struct request *r)
{
    for (int i = 0; i < g->n_items; i++)
        if (g->batched[i] == r)
            g->batched[i] = NULL;
    for (int i = 0; i < g->lookahead.n; i++)
        if (g->lookahead.batched[i] == r)
            g->lookahead.batched[i] = NULL;
}
