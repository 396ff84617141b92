/* engine_deliver.c - turn the results of a step into events of its requests: logits into tokens and
 * text, hidden states into embeddings. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/clock.h"
#include "libcommon/engine/internal.h"

/* Number (from 1) of the stop string that equals this special token; 0: none does. */
static int stop_of(const struct request *r, int32_t id)
{
    for (int i = 0; i < r->n_stop_ids; i++)
        if (r->stop_ids[i] == id)
            return i + 1;
    return 0;
}

static const int32_t *eos_ids(const struct engine *g, int *n)
{
    const int32_t *eos = g->t ? tokenizer_eos(g->t, n) : NULL;
    if (eos && *n)
        return eos;
    *n = g->m->config.n_eos;
    return g->m->config.eos;
}

static int is_among(const int32_t *ids, int n, int32_t id)
{
    for (int i = 0; i < n; i++)
        if (ids[i] == id)
            return 1;
    return 0;
}

static int is_end(const struct engine *g, const struct request *r, int32_t id)
{
    int n = 0;
    const int32_t *eos = eos_ids(g, &n);
    return is_among(r->end_ids, r->n_end_ids, id) || ((!r->ignore_eos || r->constrained) && is_among(eos, n, id));
}

static void forbid(uint32_t *mask, const int32_t *ids, int n, int vocab_size)
{
    for (int i = 0; i < n; i++)
        if (ids[i] >= 0 && ids[i] < vocab_size)
            mask[ids[i] / 32] &= ~(1u << ids[i] % 32);
}

/* Before min_tokens: remove the tokens that end an answer from *a, EOS tokens even with ignore_eos.
 * If no other token is allowed, *a does not change, because a complete grammar has to end. */
static void forbid_ends(struct engine *g, const struct request *r, struct allowed *a)
{
    int n_eos = 0;
    const int32_t *eos = eos_ids(g, &n_eos);
    const int n = a->bits ? a->n : g->vocab_size, n_words = (n + 31) / 32;
    uint32_t any = 0;
    if (a->bits)
        memcpy(g->mask, a->bits, (size_t)n_words * sizeof *g->mask);
    else
        memset(g->mask, 0xff, (size_t)n_words * sizeof *g->mask);
    if (n % 32)
        g->mask[n_words - 1] &= (1u << n % 32) - 1;
    forbid(g->mask, eos, n_eos, n);
    forbid(g->mask, r->end_ids, r->n_end_ids, n);
    forbid(g->mask, r->stop_ids, r->n_stop_ids, n);
    for (int i = 0; i < n_words; i++)
        any |= g->mask[i];
    if (any)
        *a = (struct allowed){ g->mask, n };
}

static void note_heard(struct request *r)
{
    if (r->reported)
        *r->reported = 1;
}

static int constraint_failed(const struct request *r, struct err *e)
{
    return r->constrained && r->constraint.error && r->constraint.error(r->constraint.state, e) != 0;
}

/* Append a new token of the answer to the sequence, the sampler and the text, and call the
 * callback.  Returns 1 if the answer has ended: r may then be freed already. */
static int add_token(struct engine *g, struct request *r, int32_t id, const struct logprobs *lp)
{
    struct token_event ev = { .id = id, .text = "" };
    struct err e;
    int stopped;
    if (lp) {
        ev.logprob = lp->logprob;
        ev.top = lp->top;
        ev.n_top = lp->n_top;
    }
    r->has_allowed = 0;
    r->work.accept = r->constrained;
    r->work.asked = 0;
    r->work.id = id;
    g->count.generated_tokens++;
    r->ids[r->n_ids++] = id;
    /* from this length on LongRoPE has other factors, so the next step recomputes all keys */
    if (r->n_ids == long_rope_from(g)) {
        request_release(g, r, 1);
        r->kv.root++;
        r->n_saved = 0;
    }
    sampler_accept(r->sampler, id, 1);
    const int stop = stop_of(r, id), ended = stop || is_end(g, r, id), last = ended || r->n_ids == r->limit;
    r->text.no_stops = r->n_ids - r->n_prompt <= r->min_tokens;
    if (answer_text_push(&r->text, ended ? -1 : id, last, &ev.text, &ev.size, &stopped, &e) != 0) {
        ev.finish = FINISH_ERROR;
        ev.error = &e;
    } else if (last || stopped) {
        ev.finish = ended || stopped ? FINISH_STOP : FINISH_LENGTH;
        ev.stop = stopped ? stopped : stop;
    }
    if (ev.finish) {
        request_finish(g, r, &ev);
        return 1;
    }
    if (r->on_token)
        r->on_token(r->user, &ev);
    return r->cancelled;
}

/* Pass the last token to the constraint, and append the tokens that it forces.  If log
 * probabilities are wanted, each forced token waits for its logits.  A run of more than AT_ONCE
 * forced tokens continues in the next step, so that it does not delay other requests. */
static void go_on(struct engine *g, struct request *r)
{
    enum { AT_ONCE = 4 * FORCED_AT_ONCE };
    struct err e;
    for (int n = 0; r->constrained; n++) {
        if (!masks_advance(g, r)) {
            r->late = LATE_ADVANCE;
            g->count.late++;
            return;
        }
        r->late = LATE_NOT;
        if (r->work.refused || constraint_failed(r, &e)) {
            if (!constraint_failed(r, &e))
                err_set(&e, ERR_FORMAT, "constraint: token %d is not allowed", (int)r->work.id);
            request_finish_early(g, r, FINISH_ERROR, &e);
            return;
        }
        if (r->at_forced == r->n_forced || r->n_logprobs >= 0 || n >= AT_ONCE ||
            add_token(g, r, r->forced[r->at_forced++], NULL))
            return;
    }
}

/* Keep a copy of the logits until the constraint has computed its mask for them. */
static void sit_out(struct engine *g, struct request *r, const float *logits)
{
    struct err e;
    if (!(r->late_logits = malloc((size_t)g->vocab_size * sizeof *logits))) {
        err_nomem(&e, "constraint");
        request_finish_early(g, r, FINISH_ERROR, &e);
        return;
    }
    memcpy(r->late_logits, logits, (size_t)g->vocab_size * sizeof *logits);
    r->late = LATE_MASK;
    g->count.late++;
}

/* Choose the next token from its logits, which are changed; drawn: the backend's choice, or -1. */
static void choose(struct engine *g, struct request *r, float *logits, int32_t drawn)
{
    struct allowed allowed = { .n = g->n_allowed };
    struct logprobs lp = { .n_top = r->n_logprobs };
    struct err e;
    int32_t id;
    if (r->constrained && r->at_forced == r->n_forced && !masks_ready(g, r)) {
        sit_out(g, r, logits);
        return;
    }
    r->last_ns = clock_ns();
    if (!r->first_ns) {
        r->first_ns = r->last_ns;
        note_heard(r);
        g->count.prompt_tokens += (uint64_t)r->n_prompt;
        g->count.cached_tokens += (uint64_t)r->n_cached;
    }
    int rc = 0;
    if (drawn >= 0) {
        id = drawn;
    } else if (r->at_forced < r->n_forced) {
        /* a forced token draws no random number, with logits or without */
        id = r->forced[r->at_forced++];
        if (r->n_logprobs >= 0)
            rc = logprobs_of(g->scratch, logits, g->vocab_size, id, &lp, &e);
    } else {
        if (r->constrained)
            allowed.bits = r->allowed;
        if (r->n_ids - r->n_prompt < r->min_tokens)
            forbid_ends(g, r, &allowed);
        rc = constraint_failed(r, &e) ? -1 : sampler_verify(r->sampler, logits, allowed.bits ? &allowed : NULL,
                                                            r->draft.verify, &id, r->n_logprobs >= 0 ? &lp : NULL, &e);
    }
    if (rc == 0)
        draft_observe(g, r, id);
    if (rc != 0)
        request_finish_early(g, r, FINISH_ERROR, &e);
    else if (!add_token(g, r, id, r->n_logprobs >= 0 ? &lp : NULL))
        go_on(g, r);
}

void deliver_row(struct engine *g, struct request *r, float *logits) { choose(g, r, logits, -1); }

/* r's prompt is computed: start its siblings with its blocks and its last logits. */
static void start_siblings(struct engine *g, struct request *r, const float *logits)
{
    struct request *s;
    while ((s = r->siblings)) {
        r->siblings = s->next_sibling;
        s->leader = NULL;
        s->next_sibling = NULL;
        s->n_reported = r->n_reported;
        s->started_ns = r->started_ns;
        g->n_pending--;
        wait_add(g, s);
        if (s->cancelled)
            continue;
        memcpy(g->row, logits, (size_t)g->vocab_size * sizeof *logits);
        /* if no state is free, the sibling computes the prompt again */
        if (g->states && (r->slot < 0 || (s->slot = state_take(g->states, g->pool)) < 0)) {
            choose(g, s, g->row, -1);
            continue;
        }
        if (g->states)
            copy_state(g, r->slot, s->slot);
        kv_table_share(&s->kv, g->pool, &r->kv);
        s->holds = 1;
        g->n_holding++;
        s->n_cached = s->n_prompt;
        choose(g, s, g->row, -1);
    }
}

/* ---- prompts ---- */

static void tell(const struct request *r, const struct token_event *ev)
{
    if (!r->cancelled && r->on_token)
        r->on_token(r->user, ev);
}

/* Report the next token of the prompt to the callbacks of r and its siblings. */
static void tell_prompt(struct request *r, const struct logprobs *lp)
{
    struct token_event ev = { .id = r->ids[r->n_reported++], .text = "", .is_prompt = 1, .logprob = NAN };
    if (lp) {
        ev.logprob = lp->logprob;
        ev.top = lp->top;
        ev.n_top = lp->n_top;
    }
    note_heard(r);
    tell(r, &ev);
    for (const struct request *s = r->siblings; s; s = s->next_sibling)
        tell(s, &ev);
}

/* Handle the logits of the n tokens before position `end`: those within the prompt are reported,
 * and the last one may choose the next token of the answer. */
static void deliver_logits(struct engine *g, struct request *r, float *logits, int n, int end, int32_t drawn)
{
    for (int i = 0; i < n && !r->cancelled; i++, logits += g->vocab_size) {
        const int next = end - n + i + 1;       /* index of the token that these logits predict */
        if (r->prompt_logprobs && r->n_reported == 0)
            tell_prompt(r, NULL);
        if (next < r->n_prompt) {
            struct logprobs lp = { .n_top = r->n_logprobs };
            struct err e;
            if (logprobs_of(g->scratch, logits, g->vocab_size, r->ids[next], &lp, &e) != 0) {
                request_finish_early(g, r, FINISH_ERROR, &e);
                return;
            }
            tell_prompt(r, &lp);
        } else {
            start_siblings(g, r, logits);
            if (!r->cancelled)
                choose(g, r, logits, drawn);
            return;                             /* r may be freed */
        }
    }
}

/* Add the states h [n][hidden_size] of a step to r->pooled; end: the position after the last of
 * them.  They are added one by one, so that the sum does not depend on chunks. */
static void pool_states(const struct engine *g, struct request *r, const float *h, int n, int end)
{
    const int hidden = g->m->config.hidden_size, first = end == n;
    for (int t = 0; t < (r->embed == EMBED_FIRST ? first : n); t++)
        for (int i = 0; i < hidden; i++)
            r->pooled[i] += h[(size_t)t * (size_t)hidden + (size_t)i];
}

static void deliver_hidden(struct engine *g, struct request *r, const float *h, int n, int end)
{
    struct err e;
    pool_states(g, r, h, n, end);
    if (end < r->n_ids)
        return;
    /* points into g->dense */
    const float *out;
    const int size = embed_finish(g->m, r->embed, r->n_ids, r->pooled, g->dense, &e, &out);
    if (size < 0) {
        request_finish_early(g, r, FINISH_ERROR, &e);
        return;
    }
    r->first_ns = r->last_ns = clock_ns();
    note_heard(r);
    g->count.prompt_tokens += (uint64_t)r->n_prompt;
    request_finish(g, r, &(struct token_event){ .id = -1, .text = "", .finish = FINISH_STOP, .embedding = out,
                                                .n_embedding = size });
}

/* Store a copy of r's recurrent state in the prefix tree. */
static void take_snapshot(struct engine *g, const struct request *r)
{
    const int32_t end = prefix_end(&r->kv, g->pool);
    const int known = end < 0 || state_find(g->states, g->pool, end) >= 0,
              state = known ? -1 : state_take(g->states, g->pool);
    if (state < 0)
        return;
    copy_state(g, r->slot, state);
    if (g->copy_failed) {
        state_drop(g->states, state);
        return;
    }
    state_keep(g->states, g->pool, end, state);
}

void deliver_late(struct engine *g)
{
    const int n = g->n_running;
    /* a copy of the list, because requests end in the loop (each only in its own iteration) */
    memcpy(g->to_plan, g->running, (size_t)n * sizeof(struct request *));
    for (int i = 0; i < n; i++) {
        struct request *r = g->to_plan[i];
        float *logits = r->late_logits;
        if (r->cancelled || r->late == LATE_NOT)
            continue;
        if (r->late == LATE_ADVANCE) {
            go_on(g, r);
        } else if (masks_ready(g, r)) {
            r->late = LATE_NOT;
            r->late_logits = NULL;
            choose(g, r, logits, -1);
            free(logits);
        }
    }
}

void step_computed(struct engine *g, struct request *r, int n)
{
    r->kv.n_tokens += n;
    g->count.tokens += (uint64_t)n;
    tenant_charge(g, r, n);
    if (!enters_prefixes(g, r))
        return;
    g->entering = r->lora;
    enter_prefix(g, r);
    prefixes_save(g, r);
    /* The prompt is complete.  Evict its window blocks late: the same prompt may come again, or a
     * conversation that leaves out this answer. */
    if (r->kv.n_tokens >= r->n_prompt && r->kv.n_tokens - n < r->n_prompt)
        kv_table_keep(&r->kv, g->pool);
    if (g->states && r->slot >= 0 && r->kv.n_tokens % g->snapshot_every == 0) {
        take_snapshot(g, r);
        prefixes_save_state(g, r);
    }
}

void deliver_step(struct engine *g, int n_items)
{
    float *logits = g->logits;
    for (int i = 0; i < n_items; i++) {
        struct request *r = g->batched[i];
        if (!r || r->cancelled)                 /* cancelled since the step was begun */
            continue;
        r->draft.rows = g->items[i].hidden;
        r->draft.row_pos = g->items[i].pos;
        r->draft.n_rows = r->draft.by_model && g->items[i].n_hidden ? g->items[i].n_tokens - r->draft.n_used : 0;
        /* the number of valid tokens is known only after draft_deliver() */
        if (r->draft.spare >= 0)
            draft_return_state(r);
        else
            step_computed(g, r, g->items[i].n_tokens - r->draft.n_used);
    }
    for (int i = 0; i < n_items; i++) {
        const struct batch_item *item = &g->items[i];
        struct request *r = g->batched[i];
        const int end = item->pos + item->n_tokens;
        if (!r || r->cancelled)
            ;
        else if (r->embed)
            deliver_hidden(g, r, item->hidden, item->n_hidden, end);
        else if (r->draft.n_used)
            draft_deliver(g, i, logits);
        else
            deliver_logits(g, r, logits, item->n_logits, end, item->draw ? item->draw->id : -1);
        logits += (size_t)item->n_logits * (size_t)g->vocab_size;
    }
}
