/* engine_tenant.c - requests that belong together have one share of the engine, however many they
 * are.
 *
 * While somebody waits, each share is counted the tokens that are computed for it; who was given
 * the fewest goes first: into a place among those that run, and with its prompt into a step.  That
 * is fair queueing by tokens as they are computed, as nobody knows how long an answer becomes
 * (Sheng et al., arXiv:2401.00588).  What was computed while nobody waited is no debt, and who did
 * not wait has no claim: who begins to wait is counted as much as the least served of those that
 * wait already, and no less than the level, what each share got on average since somebody waits.  A
 * share lasts as long as it has requests, so there are never more of them than requests; who comes
 * back at once has forgotten what it got, but the level rises past those who stayed, so nobody is
 * passed for ever.
 *
 * Where all places are taken, a share that runs two or more requests fewer than another gets one
 * of that one's; what was computed of the request that makes room stays in the tree of prefixes
 * while there are blocks.  A full queue is shared in the same way. */
#include <stdlib.h>
#include <string.h>

#include "libcommon/engine/engine_core.h"

enum { STEP_TOKENS = 1000 };            /* one step of priority below 0 counts as so many tokens: about what is computed in AGEING_S */

/* ---- the list ---- */

struct tenant_queue *tenant_get(struct engine *g, uint64_t id)
{
    struct tenant_queue **link = &g->tenants;
    while (*link && (*link)->id != id)
        link = &(*link)->next;
    if (!*link && (*link = calloc(1, sizeof **link))) {
        g->n_tenants++;
        (*link)->id = id;
        (*link)->waiting.which = BY_TURN;
    }
    return *link;
}

void tenant_put(struct engine *g, struct tenant_queue *s)
{
    struct tenant_queue **link = &g->tenants;
    if (s->n > 0 || s->held > 0)
        return;
    while (*link != s)
        link = &(*link)->next;
    *link = s->next;
    g->n_tenants--;
    free(s->waiting.r);
    free(s);
}

void wait_add(struct engine *g, struct request *r)
{
    r->state = WAITING;
    queue_add(&r->tenant->waiting, r);
    g->n_waiting++;
}

void wait_remove(struct engine *g, struct request *r)
{
    queue_remove(&r->tenant->waiting, r);
    g->n_waiting--;
}

/* ---- what was computed for whom ---- */

void tenant_charge(struct engine *g, struct request *r, int n)
{
    const int end = r->kv.n_tokens, from = end - n > r->charged ? end - n : r->charged;         /* what is computed a second time is nobody's wish */
    if (end <= from)
        return;
    r->tenant->served += (uint64_t)(end - from);
    g->level += (double)(end - from) / g->n_tenants;
    r->charged = end;
}

/* Counts of those that begin to wait; ahead is what their running prompts will get. */
void tenants_settle(struct engine *g)
{
    uint64_t least = UINT64_MAX;
    for (struct tenant_queue *s = g->tenants; s; s = s->next) {
        s->waited = s->waits;
        s->waits = s->waiting.n > 0;
        s->planned = 0;
    }
    for (int i = 0; i < g->n_running; i++) {
        const struct request *r = g->running[i];
        if (decodes(r))
            continue;
        r->tenant->waits = 1;
        r->tenant->planned += r->n_ids - r->kv.n_tokens;
    }
    for (const struct tenant_queue *s = g->tenants; s; s = s->next)
        if (s->waits && s->waited && s->served < least)
            least = s->served;
    if (least == UINT64_MAX)
        g->level = 0;
    else if (least < (uint64_t)g->level)
        least = (uint64_t)g->level;
    for (struct tenant_queue *s = g->tenants; s; s = s->next)
        if (least == UINT64_MAX)
            s->served = 0;
        else if (s->waits && !s->waited && s->served < least)
            s->served = least;
}

/* ---- who goes first ---- */

/* Others see that a request stands back, not that it is in a hurry. */
static int standing(const struct request *r) { return r->priority < 0 ? r->priority : 0; }

static int64_t tokens(const struct request *r)
{
    return (int64_t)r->tenant->served + r->tenant->planned - (int64_t)standing(r) * STEP_TOKENS;
}

int tenant_goes_before(const struct request *a, const struct request *b)
{
    if (a->tenant == b->tenant)
        return goes_before(a, b, BY_TURN);
    if (tokens(a) != tokens(b))
        return tokens(a) < tokens(b);
    return a->tenant->n_running != b->tenant->n_running ? a->tenant->n_running < b->tenant->n_running
                                                      : goes_before(a, b, BY_TURN);
}

struct request *tenant_next(const struct engine *g)
{
    struct request *best = NULL;
    for (const struct tenant_queue *s = g->tenants; s; s = s->next)
        if (s->waiting.n && (!best || tenant_goes_before(s->waiting.r[0], best)))
            best = s->waiting.r[0];
    return best;
}

/* Does r, which waits, get the place of the running v?  Only where r goes before v also
 * afterwards, so that they do not take turns with it. */
static int yields(const struct request *v, const struct request *r)
{
    if (v->tenant == r->tenant)
        return v->priority < r->priority && goes_before(r, v, BY_TURN);
    if (!tenant_goes_before(r, v))
        return 0;
    if (standing(v) != standing(r))
        return standing(v) < standing(r) && goes_before(r, v, BY_TURN);
    return v->tenant->n_running >= r->tenant->n_running + 2;
}

int tenant_yields(const struct engine *g, const struct request *r)
{
    int best = -1;
    for (int i = g->n_running - 1; i >= 0; i--)
        if (yields(g->running[i], r) && (best < 0 ||
                                         g->running[i]->tenant->n_running > g->running[best]->tenant->n_running))
            best = i;
    return best;
}

int tenant_would_fit(struct engine *g, const struct request *r, int missing)
{
    const int n = g->n_running, most = g->limits.max_running;
    if (n < most && missing <= 0)
        return 1;
    memcpy(g->to_plan, g->running, (size_t)n * sizeof *g->running);
    for (int i; (g->n_running >= most || missing > 0) && (i = tenant_yields(g, r)) >= 0;) {       /* as if they were gone */
        struct request *v = g->running[i];
        missing -= kv_table_leave(&v->kv, g->pool);
        v->tenant->n_running--;
        g->n_running--;
        memmove(&g->running[i], &g->running[i + 1], (size_t)(g->n_running - i) * sizeof *g->running);
    }
    const int fits = (g->n_running < most && missing <= 0) || g->n_running == 0;        /* with nobody there, those who wait give theirs */
    for (int i = 0, at = 0; i < n; i++) {
        struct request *v = g->to_plan[i];
        if (at < g->n_running && g->running[at] == v) {
            at++;
            continue;
        }
        kv_table_return(&v->kv, g->pool);
        v->tenant->n_running++;
    }
    memcpy(g->running, g->to_plan, (size_t)n * sizeof *g->running);
    g->n_running = n;
    return fits;
}

int tenant_of_most(const struct engine *g)
{
    int best = g->n_running - 1;
    for (int i = best - 1; i >= 0; i--)
        if (g->running[i]->tenant->n_running > g->running[best]->tenant->n_running)
            best = i;
    return best;
}

/* ---- a full queue ---- */

static int n_queued(const struct tenant_queue *s) { return s->n - s->n_running; }

/* May it be refused still?  Nobody has heard of an answer, nor of one that fails with it; the
 * leader of others takes none of them along. */
static int can_leave(const struct request *r)
{
    return !r->first_ns && !r->cancelled && !r->n_heard && !(r->heard && *r->heard);
}

/* How many of s would leave for one that then has `others` in the queue. */
static int n_spare(const struct tenant_queue *s, int others)
{
    int n = 0;
    for (int i = 0; i < s->waiting.n; i++)
        if (can_leave(s->waiting.r[i])) {
            n++;
            for (const struct request *r = s->waiting.r[i]->siblings; r; r = r->next_sibling)
                n += !r->cancelled;
        }
    return n < n_queued(s) - others ? n : n_queued(s) - others > 0 ? n_queued(s) - others : 0;
}

static struct request *last_in_turn(const struct tenant_queue *s)
{
    struct request *last = NULL;
    for (int i = 0; i < s->waiting.n; i++)
        if (can_leave(s->waiting.r[i]) && (!last || goes_before(last, s->waiting.r[i], BY_TURN)))
            last = s->waiting.r[i];
    return last;
}

int tenant_make_room(struct engine *g, const struct tenant_queue *own, int n, int missing)
{
    const int others = n_queued(own) + n;
    struct err e;
    int spare = 0;
    for (const struct tenant_queue *s = g->tenants; s; s = s->next)
        spare += s == own ? 0 : n_spare(s, others);
    if (spare < missing)
        return 0;
    while (missing-- > 0) {
        const struct tenant_queue *most = NULL;
        for (const struct tenant_queue *s = g->tenants; s; s = s->next)
            if (s != own && n_spare(s, others) > 0 && (!most || n_queued(s) > n_queued(most)))
                most = s;
        struct request *r = most ? last_in_turn(most) : NULL;
        if (!r)                         /* somebody who heard of it has done more than that */
            return 0;
        err_set(&e, ERR_LIMIT, "%d requests are waiting, expected at most %d; %d of them are of this client, and others have fewer", g->n_waiting + g->n_pending,
                g->limits.max_waiting, n_queued(most));
        request_finish_early(g, r, FINISH_REFUSED, &e);
    }
    return 1;
}
