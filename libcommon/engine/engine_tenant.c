/* engine_tenant.c - fair queueing: tenants get equal throughput, however many requests each has.
 *
 * While requests wait, each tenant is charged the tokens that are computed for it, and the tenant
 * with the smallest count goes first, both when a place among the running requests is free and when
 * a step has space for prompt tokens.  Tokens are charged as they are computed, because the length
 * of an answer is not known before (Sheng et al., arXiv:2401.00588).
 *
 * Tokens computed while nothing waits are not held against a tenant, and a tenant without waiting
 * requests gathers no credit: when a tenant begins to wait, its count is raised to that of the
 * least served tenant that waits already, and at least to the level, the average charge per tenant
 * since requests began to wait.  A tenant is kept while it has requests, so there are never more
 * tenants than requests.  A tenant that leaves and comes back at once starts with a new count, but
 * the level rises past the counts of tenants that stayed, so it cannot go before them for ever.
 *
 * When all places are taken, a tenant that runs at least two requests fewer than another one
 * preempts a request of that tenant; its computed tokens stay in the prefix tree while there are
 * blocks.  Places in a full queue are divided in the same way. */
#include <stdlib.h>
#include <string.h>

#include "libcommon/engine/internal.h"

/* Each step of priority below 0 counts as this many tokens charged: about the number computed in
 * AGEING_S seconds. */
enum { STEP_TOKENS = 1000 };

/* ---- the list of tenants ---- */

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

/* ---- charges ---- */

void tenant_charge(struct engine *g, struct request *r, int n)
{
    /* recomputed tokens are not charged */
    const int end = r->kv.n_tokens, from = end - n > r->charged ? end - n : r->charged;
    if (end <= from)
        return;
    r->tenant->served += (uint64_t)(end - from);
    g->level += (double)(end - from) / g->n_tenants;
    r->charged = end;
}

/* Raise the counts of tenants that begin to wait, and set `planned` to the number of prompt tokens
 * that the running requests of each tenant still have to compute. */
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

/* ---- order between requests ---- */

/* The priority of r in comparisons with requests of other tenants: only priorities below 0 count
 * there. */
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

/* Whether the waiting request r may preempt the running v.  It may only if r still goes first
 * afterwards, so that they do not preempt each other in turn. */
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
    /* count the preemptions that would follow, without preempting */
    for (int i; (g->n_running >= most || missing > 0) && (i = tenant_yields(g, r)) >= 0;) {
        struct request *v = g->running[i];
        missing -= kv_table_leave(&v->kv, g->pool);
        v->tenant->n_running--;
        g->n_running--;
        memmove(&g->running[i], &g->running[i + 1], (size_t)(g->n_running - i) * sizeof *g->running);
    }
    /* if nothing runs any more, reclaim() can take the blocks of waiting requests */
    const int fits = (g->n_running < most && missing <= 0) || g->n_running == 0;
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

/* Whether r may still be refused: no token and no end has been passed to a callback of r, or of
 * another request of its group (request_params.reported). */
static int can_leave(const struct request *r)
{
    return !r->first_ns && !r->cancelled && !r->n_reported && !(r->reported && *r->reported);
}

/* Number of queued requests of s that may be refused in favour of a tenant that will then have
 * `others` requests in the queue. */
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
        /* callbacks have ended other requests, so fewer than `spare` are left */
        if (!r)
            return 0;
        err_set(&e, ERR_LIMIT, "%d requests are waiting, expected at most %d; %d of them are of this client, and others have fewer", g->n_waiting + g->n_pending,
                g->limits.max_waiting, n_queued(most));
        request_finish_early(g, r, FINISH_REFUSED, &e);
    }
    return 1;
}
