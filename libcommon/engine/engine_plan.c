/* engine_plan.c - choose the requests that run, and the tokens of each in a step.
 *
 * Turns: a request's turn is its submission time minus AGEING_S seconds for each step of priority,
 * so the order of two requests of a tenant never changes and nothing starves.  For the order
 * between tenants see engine_tenant.c.  Running requests are kept in order of their turns.
 *
 * Memory: when blocks run out, unused prefixes are evicted first; then waiting requests lose their
 * blocks; then a running request is preempted: the last in turn of the tenant that runs most.  It
 * waits again and later recomputes the tokens that are no longer in the prefix tree; its sampler
 * and its ids stay, so its answer is the same.  The pool holds at least one sequence of full
 * length, so the first request in turn always advances.
 *
 * Pace: a step with decoding requests takes a number of prompt tokens that makes it about STRETCH
 * times as long as usual, where "usual" is the USUAL quantile of the last PACE_STEPS steps.  While
 * prompts are rare, the usual time is that without prompts.  While prompts are in most steps it
 * grows, up to MOST_STRETCH times the time without them: more prompt tokens in a step then make all
 * requests faster, and the gaps between tokens are long but even.  Longer steps mean that fewer
 * steps have prompts.  If most steps then became short again, the stretch would oscillate, so it
 * moves by a PACE_STEPSth of the difference at a time, and settles in between.
 *
 * Tried and dropped: following the median of the last steps at once oscillated, and one gap in a
 * hundred was up to 3.4 times the median gap.  With single steps of 100 ms, fewer than one in a
 * hundred, the first token of consecutive prompts of 512 tokens came no earlier, and one gap in a
 * hundred was three times the median. */
#include <assert.h>
#include <string.h>

#include "libcommon/base/clock.h"
#include "libcommon/engine/internal.h"

enum { LEAST_CHUNK = 8, FIRST_CHUNK = 32 };
/* STRETCH: a step with prompt tokens should last this many times as long as one without.  It is
 * below 2, so that noise seldom makes such a step last twice as long.  USUAL is below a half, so
 * that the median is a long step only if more than half of the steps are. */
static const float STRETCH = 1.8f, MOST_STRETCH = 4, USUAL = 0.4f;

/* ---- pace ---- */

float pace_alone(const struct engine *g, int n)
{
    for (int d = 0; d <= g->max_seqs; d++) {
        if (n - d > 0 && g->pace.alone_ns[n - d] > 0)
            return g->pace.alone_ns[n - d];
        if (n + d <= g->max_seqs && g->pace.alone_ns[n + d] > 0)
            return g->pace.alone_ns[n + d];
    }
    return 0;
}

/* Number of prompt tokens that make a step last `stretch` times as long as one without prompts,
 * which takes `alone` ns. */
static int stretched(const struct engine *g, float alone, float stretch)
{
    const float each = g->pace.token_ns, n = alone > 0 && each > 0 ? (stretch - 1) * alone / each : FIRST_CHUNK;
    return n < LEAST_CHUNK ? LEAST_CHUNK : n > (float)g->max_tokens ? g->max_tokens : (int)n;
}

/* Most tokens of a step. */
static int step_tokens(const struct engine *g)
{
    return g->limits.max_tokens && !g->m->config.both_ways ? g->limits.max_tokens : g->max_tokens;
}

/* Most prompt tokens of a step in which n_decoding requests decode. */
static int chunk_tokens(const struct engine *g, int n_decoding)
{
    if (n_decoding == 0)
        return g->max_tokens;
    if (g->limits.chunk)
        return g->limits.chunk;
    return stretched(g, pace_alone(g, n_decoding), g->pace.stretch);
}

/* Update a running mean with a sample.  A sample counts as at most twice the mean, so that outliers
 * on a busy machine change little. */
static void follow(float *mean, float sample, float weight)
{
    *mean += *mean > 0 ? ((sample < 2 * *mean ? sample : 2 * *mean) - *mean) * weight : sample;
}

/* Replace the oldest ratio by the newest one in `ratio` and in `sorted`. */
static void note_ratio(struct pace *p, float ratio)
{
    const float oldest = p->ratio[p->at];
    int i = 0;
    while (p->sorted[i] != oldest)
        i++;
    for (; i + 1 < PACE_STEPS && p->sorted[i + 1] < ratio; i++)
        p->sorted[i] = p->sorted[i + 1];
    for (; i > 0 && p->sorted[i - 1] > ratio; i--)
        p->sorted[i] = p->sorted[i - 1];
    p->sorted[i] = ratio;
    p->ratio[p->at] = ratio;
    p->at = (p->at + 1) % PACE_STEPS;
}

void pace_init(struct pace *p)
{
    for (int i = 0; i < PACE_STEPS; i++)
        p->ratio[i] = p->sorted[i] = 1;
    p->stretch = STRETCH;
}

void pace_learn(struct engine *g, uint64_t step_ns)
{
    struct pace *p = &g->pace;
    const float ns = (float)step_ns;
    /* a first estimate, which includes the time to read the weights */
    if (p->n_decoding == 0) {
        if (p->token_ns == 0 && p->n_prompt >= FIRST_CHUNK)
            p->token_ns = ns / (float)p->n_prompt;
        return;
    }
    const float alone = pace_alone(g, p->n_decoding), ratio = alone > 0 ? ns / alone : 1;
    if (p->n_drafted) {
        if (p->n_prompt == 0 && alone > 0)
            follow(&p->draft_ns[p->n_decoding], (ns > alone ? ns - alone : alone / 64) / (float)p->n_drafted, 1 / 8.0f);
        return;
    }
    /* measured whatever limits.chunk is, because the length of drafts depends on it */
    if (p->n_prompt == 0)
        follow(&p->alone_ns[p->n_decoding], ns, 1 / 8.0f);
    if (g->limits.chunk)
        return;
    note_ratio(p, ratio > 1 ? ratio : 1);
    const float wanted = STRETCH * p->sorted[(int)(USUAL * PACE_STEPS)];
    p->stretch += ((wanted < MOST_STRETCH ? wanted : MOST_STRETCH) - p->stretch) / PACE_STEPS;
    /* learn from large chunks only, because small ones cost more per token */
    if (p->n_prompt > 0 && alone > 0 && p->n_prompt >= p->chunk / 2)
        follow(&p->token_ns, ns > alone ? (ns - alone) / (float)p->n_prompt : p->token_ns / 2, 1 / 4.0f);
}

/* ---- prefixes ---- */

int enters_prefixes(const struct engine *g, const struct request *r) { return g->prefixes && !r->embed; }

int prefix_limit(const struct engine *g, const struct request *r)
{
    const int from = kv_pages_from(g->pages);
    return !g->pages ? r->limit : r->n_prompt > from ? r->n_prompt : from;
}

int prefix_most(const struct engine *g, const struct request *r)
{
    const int most = prefix_limit(g, r);
    return r->n_ids - 1 < most ? r->n_ids - 1 : most;
}

void enter_prefix(struct engine *g, struct request *r)
{
    const int n_tokens = r->kv.n_tokens, most = prefix_limit(g, r);
    r->kv.n_tokens = n_tokens < most ? n_tokens : most;
    prefix_enter(&r->kv, g->pool, r->ids, 0);
    r->kv.n_tokens = n_tokens;
}

static int takes_prefixes(const struct engine *g, const struct request *r)
{
    return enters_prefixes(g, r) && r->kv.n_tokens == r->kv.n_nodes * KV_BLOCK &&
           r->kv.n_tokens < prefix_limit(g, r) && !(r->prompt_logprobs && r->n_reported < r->n_prompt);
}

static void copy_block(struct engine *g, int32_t from, int32_t to)
{
    const int32_t size = kv_pool_size(g->pool), from_window = kv_pool_window(g->pool, from),
                  to_window = kv_pool_window(g->pool, to);
    g->count.copies++;
    if (!g->copy_failed && (g->backend->copy_block(g->b, from, to, &g->copy_error) != 0 ||
        (to_window >= 0 && g->backend->copy_block(g->b, size + from_window, size + to_window, &g->copy_error) != 0)))
        g->copy_failed = 1;
}

void copy_state(struct engine *g, int from, int to)
{
    g->count.copies++;
    if (!g->copy_failed && g->backend->copy_state(g->b, from, to, &g->copy_error) != 0)
        g->copy_failed = 1;
}

static void count_cached(struct request *r, int n)
{
    if (!r->first_ns)
        r->n_cached += n;
}

/* Whether r should wait, because another request computes the block of tokens that r needs next in
 * this step. */
static int awaits(const struct engine *g, const struct request *r)
{
    const int d = r->kv.n_nodes, at = d * KV_BLOCK;
    if (prefix_most(g, r) < at + KV_BLOCK)
        return 0;
    for (int j = 0; j < g->n_running; j++) {
        const struct request *q = g->running[j];
        if (q != r && q->planned && enters_prefixes(g, q) && q->kv.root == r->kv.root && q->kv.n_nodes == d &&
            q->n_ids >= at + KV_BLOCK && prefix_limit(g, q) >= at + KV_BLOCK &&
            (d == 0 || q->kv.block[d - 1] == r->kv.block[d - 1]) &&
            memcmp(q->ids + at, r->ids + at, KV_BLOCK * sizeof *r->ids) == 0)
            return 1;
    }
    return 0;
}

/* The start of a request with recurrent layers from the latest snapshot of one of its prefixes.
 * snapshot: its index, -1: there is none; before: number of tokens that the request had computed;
 * n_tokens: number of tokens that the snapshot covers. */
struct beginning { int snapshot, before, n_tokens; };

/* Find the latest snapshot of a prefix of r, and hold the complete blocks of that prefix.
 * Nothing is copied yet: if r can run, finish_beginning() follows; if not, drop_beginning()
 * releases them. */
static struct beginning find_beginning(struct engine *g, struct request *r)
{
    struct beginning b = { .snapshot = -1, .before = r->kv.n_tokens };
    if (r->begins_anew)
        return b;
    b.n_tokens = state_prefix(g->states, g->pool, &r->kv, r->ids, prefix_most(g, r), &b.snapshot);
    if (b.snapshot >= 0) {
        prefix_take(&r->kv, g->pool, r->ids, b.n_tokens);
        state_used(g->states, b.snapshot);
    }
    return b;
}

static void drop_beginning(struct engine *g, struct request *r, const struct beginning *b)
{
    if (b->snapshot >= 0 && kv_pool_n_windows(g->pool))
        /* the window before the former position is lost, so r starts from the first token again */
        request_release(g, r, 0);
    else if (b->snapshot >= 0)
        kv_table_truncate(&r->kv, g->pool, b->before);
}

/* Copy the snapshot into r's state, unless r took over the snapshot itself because no other state
 * was free. */
static void finish_beginning(struct engine *g, struct request *r, const struct beginning *b)
{
    int32_t from, to;
    if (b->snapshot < 0)
        return;
    if (r->kv.n_tokens < b->n_tokens && prefix_copy(&r->kv, g->pool, r->ids, b->n_tokens, &from, &to))
        copy_block(g, from, to);
    /* no block was free for the copy of the last, partial block */
    if (r->kv.n_tokens != b->n_tokens) {
        r->begins_anew = 1;
        drop_beginning(g, r, b);
        return;
    }
    if (r->slot != b->snapshot)
        copy_state(g, b->snapshot, r->slot);
    count_cached(r, b->n_tokens - b->before);
}

/* Release the blocks of a waiting request.  0: no waiting request has any. */
static int reclaim(struct engine *g)
{
    for (const struct tenant_queue *s = g->tenants; s && g->n_holding; s = s->next)
        for (int i = s->waiting.n - 1; i >= 0; i--)
            if (s->waiting.r[i]->holds) {
                request_release(g, s->waiting.r[i], 1);
                return 1;
            }
    return 0;
}

/* Take a state for a request that is about to run.  Besides the states reserved for drafts there is
 * one state for each request that may run, so if none is free, waiting requests hold some. */
static void take_state(struct engine *g, struct request *r)
{
    while (g->states && r->slot < 0 && (r->slot = state_take(g->states, g->pool)) < 0) {
        const int reclaimed = reclaim(g);
        assert(reclaimed);
        (void)reclaimed;
    }
}

/* Take the known prefix of r from the prefix tree before a chunk is computed.  0: another request
 * computes r's next block in this step, so r waits. */
static int take_prefix(struct engine *g, struct request *r)
{
    int32_t from, to;
    if (!takes_prefixes(g, r))
        return 1;
    if (g->states) {
        const struct beginning b = find_beginning(g, r);
        finish_beginning(g, r, &b);
        take_state(g, r);
        return 1;
    }
    count_cached(r, prefix_take(&r->kv, g->pool, r->ids, prefix_most(g, r)));
    if (awaits(g, r))
        return 0;
    int n = prefix_copy(&r->kv, g->pool, r->ids, prefix_most(g, r), &from, &to);
    if (n)
        copy_block(g, from, to);
    count_cached(r, n);
    return 1;
}

/* ---- memory ---- */

static int n_blocks(int n_tokens) { return (n_tokens + KV_BLOCK - 1) / KV_BLOCK; }
static int n_available(const struct engine *g) { return kv_pool_free(g->pool) + kv_pool_idle(g->pool); }

static void preempt(struct engine *g, int i)
{
    struct request *r = g->running[i];
    request_release(g, r, 1);
    g->n_running--;
    r->tenant->n_running--;
    memmove(&g->running[i], &g->running[i + 1], (size_t)(g->n_running - i) * sizeof *g->running);
    r->planned = r->searched = 0;
    r->preempted = 1;
    wait_add(g, r);
    g->count.preemptions++;
}

/* Reserve blocks for the planned tokens; a shared block that r writes to is copied.  -1: the
 * pool is empty. */
static int reserve(struct engine *g, struct request *r)
{
    int32_t from, to;
    int rc = kv_table_unshare(&r->kv, g->pool, &from, &to);
    if (rc > 0)
        copy_block(g, from, to);
    const int end = r->kv.n_tokens + r->planned;
    return rc < 0 || kv_table_reserve(&r->kv, g->pool, end) != 0 ? -1 : kv_table_windows(&r->kv, g->pool, end);
}

/* ---- admission ---- */

/* Whether enough window blocks for r are free, or idle so that they can be evicted. */
static int window_fits(const struct engine *g, const struct request *r)
{
    if (!kv_pool_n_windows(g->pool))
        return 1;
    const int window = n_blocks(g->kept_tokens) + 2 + n_blocks(g->kept_sinks);
    const int want = n_blocks(r->n_ids + 1);
    return (want < window ? want : window) - (r->kv.end_window - r->kv.first_window) <=
           kv_pool_free_windows(g->pool) + kv_pool_idle_windows(g->pool);
}

/* Give r a place and blocks for all of its tokens and one more token, and return 1; 0: r has to
 * wait.  Requests are preempted only if r fits then.  Blocks are copied only at the end, because
 * r may have to wait for long. */
static int make_fit(struct engine *g, struct request *r)
{
    struct beginning b = { .snapshot = -1 };
    const int held = r->holds;
    if (takes_prefixes(g, r))
        prefixes_load(g, r);
    if (takes_prefixes(g, r) && g->states)
        b = find_beginning(g, r);
    else if (takes_prefixes(g, r))
        count_cached(r, prefix_take(&r->kv, g->pool, r->ids, prefix_most(g, r)));
    const int want = n_blocks(r->n_ids < g->max_len ? r->n_ids + 1 : r->n_ids);
    int fits = tenant_would_fit(g, r, want - r->kv.n_blocks - n_available(g));
    while (fits && (g->n_running >= g->limits.max_running || want - r->kv.n_blocks > n_available(g) ||
                    !window_fits(g, r))) {
        const int i = tenant_yields(g, r);
        if (i >= 0)
            preempt(g, i);
        else if (g->n_running || !reclaim(g))
            fits = 0;
    }
    if (!fits) {
        if (r->holds)
            drop_beginning(g, r, &b);
        else
            request_release(g, r, 0);
        return 0;
    }
    if (held && !r->holds)
        /* the snapshot's prefix is gone: reclaim() released r's own blocks */
        b.snapshot = -1;
    take_state(g, r);
    finish_beginning(g, r, &b);
    return kv_table_reserve(&r->kv, g->pool, r->n_ids) == 0;
}

static void start(struct engine *g, struct request *r)
{
    wait_remove(g, r);
    g->n_holding -= r->holds;
    r->holds = 0;
    r->state = RUNNING;
    r->tenant->n_running++;
    r->tenant->planned += r->n_ids - r->kv.n_tokens;
    g->count.resumed_computed += r->preempted ? (uint64_t)(r->n_ids - r->kv.n_tokens) : 0;
    if (!r->started_ns)
        r->started_ns = clock_ns();
    int i = g->n_running++;
    for (; i > 0 && goes_before(r, g->running[i - 1], BY_TURN); i--)
        g->running[i] = g->running[i - 1];
    g->running[i] = r;
}

static void admit(struct engine *g)
{
    for (struct request *r; (r = tenant_next(g));) {
        if ((g->n_running >= g->limits.max_running && tenant_yields(g, r) < 0) || !make_fit(g, r))
            return;
        start(g, r);
    }
}

int may_admit(const struct engine *g)
{
    return g->n_waiting && (g->n_running < g->limits.max_running || tenant_yields(g, tenant_next(g)) >= 0);
}

/* ---- the step ---- */

int decodes(const struct request *r) { return r->first_ns && r->n_ids - r->kv.n_tokens <= FORCED; }

/* The largest chunk, in tokens, of which at most `rows` tokens need logits for prompt_logprobs. */
static int rows_limit(const struct request *r, int rows)
{
    if (!r->prompt_logprobs || r->n_reported >= r->n_prompt)
        return INT32_MAX;
    /* first position whose logits are still to be reported */
    const int first = r->n_reported > 0 ? r->n_reported - 1 : 0;
    return (first > r->kv.n_tokens ? first - r->kv.n_tokens : 0) + rows;
}

static int n_logits(const struct request *r)
{
    const int end = r->kv.n_tokens + r->planned;
    if (r->draft.n_used)
        return r->draft.n_used + 1;
    if (r->prompt_logprobs && r->n_reported < r->n_prompt) {
        const int first = r->n_reported > 0 ? r->n_reported - 1 : 0,
                  from = first > r->kv.n_tokens ? first : r->kv.n_tokens;
        return end > from ? end - from : 0;
    }
    return !r->embed && end == r->n_ids;
}

static int least(int a, int b) { return a < b ? a : b; }

/* The remaining budget of a step: tokens, prompt tokens, rows of logits for prompts, drafted
 * tokens; and the number of requests that decode in the step. */
struct room { int total, chunk, rows, drafts, n_decoding; };

/* Add a draft to r, which decodes, if there are free blocks for it. */
static void plan_draft(struct engine *g, struct request *r, struct room *room)
{
    const int n = draft_plan(g, r, room->n_decoding, least(room->drafts, room->total));
    r->planned += n;
    if (n && (reserve(g, r) != 0 || draft_save_state(g, r) != 0)) {
        r->planned -= n;
        draft_drop(g, r);
        return;
    }
    room->total -= n;
    room->drafts -= n;
    room->rows -= n;
}

static void plan_one(struct engine *g, struct request *r, struct room *room)
{
    const int decoding = decodes(r);
    take_state(g, r);                           /* a request that restarts has released its state */
    if (!decoding && !take_prefix(g, r))
        return;
    const int most = decoding ? room->total + 1 : least(least(room->total, room->chunk), rows_limit(r, room->rows));
    r->planned = least(r->n_ids - r->kv.n_tokens, most);
    /* an encoder computes a sequence as a whole, or not in this step */
    if (g->m->config.both_ways && r->planned < r->n_ids)
        r->planned = 0;
    if (g->states && enters_prefixes(g, r))             /* stop at the position of a snapshot */
        r->planned = least(r->planned, g->snapshot_every - r->kv.n_tokens % g->snapshot_every);
    room->total -= r->planned - decoding;
    room->chunk -= decoding ? 0 : r->planned;
    r->tenant->planned += decoding ? 0 : r->planned;
    if (r->planned && rows_limit(r, 0) != INT32_MAX)
        room->rows -= n_logits(r);
    while (r->planned && reserve(g, r) != 0)
        if (!reclaim(g))
            preempt(g, tenant_of_most(g));
    if (decoding && r->planned == r->n_ids - r->kv.n_tokens)
        plan_draft(g, r, room);
}

/* The first running request, in order of turns, that is not planned yet; NULL: none is left. */
static struct request *next_to_plan(struct engine *g, int n)
{
    int best = -1;
    for (int i = 0; i < n; i++)
        if (g->to_plan[i] && g->to_plan[i]->state == RUNNING &&
            (best < 0 || tenant_goes_before(g->to_plan[i], g->to_plan[best])))
            best = i;
    struct request *r = best < 0 ? NULL : g->to_plan[best];
    if (r)
        g->to_plan[best] = NULL;
    return r;
}

static int any_planned(const struct engine *g)
{
    for (int i = 0; i < g->n_running; i++)
        if (g->running[i]->planned)
            return 1;
    return 0;
}

void plan_step(struct engine *g)
{
    for (int i = 0; i < g->n_running; i++)
        kv_table_slide(&g->running[i]->kv, g->pool);
    tenants_settle(g);
    admit(g);
    struct request *r;
    const int n = g->n_running;
    int n_decoding = 0;
    for (int i = 0; i < n; i++) {
        g->to_plan[i] = g->running[i]->late ? NULL : g->running[i];
        g->running[i]->planned = 0;
        draft_drop(g, g->running[i]);
        n_decoding += !g->running[i]->late && decodes(g->running[i]);
    }
    for (struct tenant_queue *s = g->tenants; s; s = s->next)
        s->planned = 0;
    const int most = step_tokens(g);
    const struct room all = { most > n_decoding ? most - n_decoding : 0, chunk_tokens(g, n_decoding), PROMPT_ROWS,
                              DRAFT_ROWS, n_decoding };
    struct room room = all;
    g->pace.chunk = room.chunk;
    draft_model_guess(g, n_decoding, room.chunk);
    for (int i = 0; i < n; i++) {
        r = g->to_plan[i];
        if (!r || !decodes(r))
            continue;
        g->to_plan[i] = NULL;
        /* it was not preempted while other requests were planned */
        if (r->state == RUNNING)
            plan_one(g, r, &room);
    }
    while (room.total > 0 && room.chunk > 0 && (r = next_to_plan(g, n)))
        plan_one(g, r, &room);
    room = all;
    /* nothing is planned: all requests waited for blocks that another one would have computed in
     * this step, and that one was preempted; so plan one of them */
    if (!any_planned(g))
        for (int i = 0; i < g->n_running; i++)
            if (!g->running[i]->late) {
                plan_one(g, g->running[i], &room);
                break;
            }
}

/* Whether the backend may choose r's next token: not if a constraint, min_tokens, log probabilities
 * or siblings need the logits. */
static int can_draw(const struct request *r, const struct batch_item *item, struct draw *d)
{
    return item->n_logits == 1 && !r->constrained && r->n_logprobs < 0 && !r->siblings &&
           r->n_ids - r->n_prompt >= r->min_tokens && item->pos + item->n_tokens == r->n_ids &&
           sampler_draw(r->sampler, r->n_ids - r->n_prompt, d);
}

int plan_batch(struct engine *g)
{
    int n = 0, n_hidden = 0, n_states = 0;
    g->pace.n_decoding = g->pace.n_prompt = g->pace.n_drafted = 0;
    /* order items by adapter, so that the rows of each adapter are adjacent */
    const int n_groups = g->m->n_loras + 1;
    for (int group = 0; group < 2 * n_groups; group++) {
        const int decoding = group < n_groups, lora = group % n_groups;
        for (int i = 0; i < g->n_running; i++) {
            struct request *r = g->running[i];
            if (r->planned == 0 || decodes(r) != decoding || r->lora != lora)
                continue;
            struct batch_item *item = &g->items[n];
            *item = (struct batch_item){ .tokens = r->ids + r->kv.n_tokens, .n_tokens = r->planned,
                                         .pos = r->kv.n_tokens, .table = r->kv.block,
                                         .window_table = r->kv.window, .state = r->slot,
                                         .n_logits = n_logits(r),
                                         .exact_until = g->pages ? r->n_prompt : 0, .lora = r->lora,
                                         .seq_len = r->n_ids, .second = r->second };
            if (r->embed == EMBED_MEAN || r->embed == EMBED_FIRST)
                item->n_hidden = r->planned;
            else if (r->embed == EMBED_LAST || r->embed == EMBED_STATE)
                item->n_hidden = r->kv.n_tokens + r->planned == r->n_ids;
            if (!item->n_hidden && (item->hidden = draft_model_rows(g, r, n_states, &item->aux)))
                n_states += item->n_hidden = r->planned;
            else if (item->n_hidden)
                item->hidden = g->hidden + (size_t)n_hidden * (size_t)g->m->config.hidden_size;
            n_hidden += r->embed ? item->n_hidden : 0;
            /* tokens recomputed after a wrong draft cost as much as drafted ones */
            g->pace.n_drafted += g->states && decoding ? r->planned - 1 : r->draft.n_used;
            *(decoding ? &g->pace.n_decoding : &g->pace.n_prompt) += decoding ? 1 : r->planned;
            if (can_draw(r, item, &g->draws[n]))
                item->draw = &g->draws[n];
            g->batched[n++] = r;
        }
    }
    return n;
}
