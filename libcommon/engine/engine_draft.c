/* engine_draft.c - speculative decoding: a step computes the last token of an answer and a draft of
 * the next ones, and the draft is kept as far as the model would have chosen the same tokens.
 *
 * The rows of such a step are the logits after each of its tokens.  The next token is chosen from
 * the first row as in any step.  If it is the drafted one, the next row equals that of the next
 * step, bit for bit (backend.always_strict), and the token after it is chosen from that row, and so
 * on.  So an answer is the same with any drafter: sampler, penalties, stop strings and log
 * probabilities see the same rows in the same order, and random numbers are counted by tokens.
 * Keys and values of a wrong draft lie after the last valid position, where the next step
 * overwrites them.
 *
 * A constraint sees only chosen tokens, never drafted ones, so nothing has to be undone.  The mask
 * of a row is computed when the tokens before it are known; if it takes long, the draft ends there,
 * and the row waits for it like any other.
 *
 * Recurrent states cannot be truncated.  The state is copied before the step; unless all of the
 * draft is right, the copy becomes the sequence's state again, and the next step recomputes the
 * right tokens, followed by a new draft if that pays.
 *
 * Length of a draft, unless engine_limits.draft sets it: a request tracks, for each grade, how
 * often a drafted token was right when all before it in the draft were (if a draft was guessed but
 * not used in a step, only its first token is compared), and starts from the average of earlier
 * requests.  The engine tracks the time that a drafted token adds to a step.  With probability p
 * and a cost of c steps per token, a draft of k tokens yields (1 + p + p^2 + .. + p^k) / (1 + kc)
 * tokens in the time of one.  The best k is taken.  While no draft pays, the measured cost slowly
 * decays, so that a cost measured on a busy machine is measured again.  When more than
 * MOST_DRAFTING requests decode, there are no drafts: such steps are bound by arithmetic rather
 * than by memory, and few rows are left for drafts.
 *
 * With engine_options.draft_distribution, tokens that a model or heads have drafted are not
 * compared with the one that would be chosen, but accepted with the probability that keeps the
 * distribution (sampler_verify).  A drafter's guess is a single token without a distribution;
 * comparing accepts it equally often.
 *
 * A request may have both a drafter and a draft model (engine_draft_model.c); each step takes the
 * draft that yields more tokens. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/engine/internal.h"

/* Before any measurement: acceptance rates by grade, and the time of a drafted token in steps. */
static const float FIRST_TRUST[DRAFT_GRADES] = { 0.3f, 0.5f, 0.7f, 0.85f, [GRADE_RESUMED] = 0.8f, [GRADE_EDIT] = 0.4f,
                                                  [GRADE_PREDICTED] = 0.7f, [GRADE_MODEL] = 0.7f },
                   FIRST_COST = 0.125f;
/* weight of a new observation for the request and for the average of all */
static const float LEARNING = 1 / 8.0f, LEARNING_ALL = 1 / 64.0f;
/* fraction by which the measured cost decays with each unused draft */
static const float FORGETTING = 1 / 1024.0f;

void draft_policy_init(struct engine *g) { memcpy(g->trust, FIRST_TRUST, sizeof FIRST_TRUST); }

int draft_init(struct engine *g, struct request *r, const struct draft_params *p, struct err *e)
{
    struct drafting *d = &r->draft;
    const int by_default = p->use == DRAFT_DEFAULT && (g->drafter || g->draft_model || p->n_predicted),
              by_model = g->draft_model && (p->use == DRAFT_MODEL || p->use == DRAFT_ON ||
                                            (by_default && !p->n_predicted));
    if (g->no_drafts || p->use == DRAFT_OFF || (p->use == DRAFT_DEFAULT && !by_default))
        return 0;
    d->most = p->most ? p->most : DRAFT_MOST;
    d->same_tokens = p->same_tokens;
    memcpy(d->trust, g->trust, sizeof d->trust);
    g->n_rows = g->n_rows > g->max_seqs + DRAFT_ROWS ? g->n_rows : g->max_seqs + DRAFT_ROWS;
    d->drafter = by_model || g->drafter ? g->drafter : &drafter_ngram;
    if (by_model) {
        if (p->use == DRAFT_MODEL)
            d->drafter = NULL;
        return draft_model_init(g, r, e);
    }
    if (!p->n_predicted)
        return 0;
    if (!(d->predicted = malloc((size_t)p->n_predicted * sizeof *d->predicted)))
        return err_nomem(e, "prediction");
    memcpy(d->predicted, p->predicted, (size_t)p->n_predicted * sizeof *d->predicted);
    d->n_predicted = p->n_predicted;
    return 0;
}

/* Whether r has a drafter; the drafter's state is opened at r's first draft.  If memory is short, r
 * has none. */
static int has_drafter(struct request *r)
{
    struct drafting *d = &r->draft;
    if (!d->drafter)
        return 0;
    if (!d->opened)
        d->state = d->drafter->open(d->predicted, d->n_predicted);
    d->opened = 1;
    return d->state != NULL;
}

void draft_release(struct request *r)
{
    assert(r->draft.spare < 0);
    if (r->draft.state)
        r->draft.drafter->close(r->draft.state);
    free(r->draft.predicted);
}

/* Returns the largest number of tokens that a draft may have.  The draft and the token after it
 * must fit into the answer, LongRoPE's factors must not change, and the request must still count as
 * decoding if the next step recomputes the draft.  With recurrent layers the draft must not pass
 * the next position of a snapshot. */
static int draft_room(const struct engine *g, const struct request *r, int room)
{
    const int pending = r->n_ids - r->kv.n_tokens;
    const int long_from = long_rope_from(g);
    int most = r->limit - r->n_ids - 1;
    if (long_from && r->n_ids < long_from && most > long_from - r->n_ids - 2)
        most = long_from - r->n_ids - 2;
    if (most > FORCED - pending)
        most = FORCED - pending;
    if (g->states && enters_prefixes(g, r) && most > (int)(-(unsigned)r->n_ids % (unsigned)g->snapshot_every))
        most = (int)(-(unsigned)r->n_ids % (unsigned)g->snapshot_every);
    return most < room ? most : room;
}

/* Returns the length of a draft, up to `most`, that gives the most tokens per unit of time beside
 * n_decoding requests.  *rate: number of tokens in the time that one token takes without a draft.
 * again: -1 if nothing is recomputed; otherwise, after a draft that is not entirely right, the next
 * step recomputes its right tokens and `again` other ones.  guess_ns: time to draft a token. */
static int best_length(const struct engine *g, float trust, int n_decoding, int most, int again, float guess_ns,
                       float *rate)
{
    const float alone = pace_alone(g, n_decoding), each = g->pace.draft_ns[n_decoding];
    const float verify = each > 0 ? each * (float)n_decoding / alone : FIRST_COST;
    float right = 1, tokens = 1;
    int best = 0;
    *rate = 1;
    if (alone <= 0)
        return 0;
    for (int k = 1; k <= most; k++) {
        right *= trust;
        tokens += right;
        float time = 1 + (float)k * (verify + guess_ns / alone);
        if (again >= 0)
            time += (1 - right) * ((float)again + tokens - 1) * verify;
        if (tokens > *rate * time) {
            *rate = tokens / time;
            best = k;
        }
    }
    return best;
}

/* Expected number of tokens from a step with a draft of n tokens. */
static float expected(float trust, int n)
{
    float right = 1, tokens = 1;
    for (int k = 0; k < n; k++)
        tokens += right *= trust;
    return tokens;
}

int draft_length(const struct engine *g, const struct request *r, int grade, int n_decoding, int room,
                 float guess_ns, float *rate)
{
    const float trust = r->draft.trust[grade];
    int most = draft_room(g, r, room);
    most = r->draft.most < most ? r->draft.most : most;
    *rate = 1;
    if (most <= 0 || draft_is_full(g, n_decoding))
        return -1;
    if (g->limits.draft) {
        most = g->limits.draft < most ? g->limits.draft : most;
        *rate = expected(trust, most);
        return most;
    }
    return best_length(g, trust, n_decoding, most, g->states ? r->n_ids - r->kv.n_tokens : -1, guess_ns, rate);
}

int draft_is_full(const struct engine *g, int n_decoding) { return n_decoding > MOST_DRAFTING && !g->limits.draft; }

/* Add the first n tokens of r's draft (`next`) to its ids for this step. */
static int use_draft(struct request *r, int n)
{
    r->draft.n_used = n > 0 ? n : 0;
    memcpy(r->ids + r->n_ids, r->draft.next.token, (size_t)r->draft.n_used * sizeof *r->ids);
    return r->draft.n_used;
}

void draft_by_text(const struct engine *g, struct request *r, int n_decoding, struct draft *out)
{
    struct drafting *d = &r->draft;
    out->n = 0;
    if (draft_is_full(g, n_decoding) || !has_drafter(r))
        return;
    d->drafter->guess(d->state, r->ids, r->n_ids, DRAFT_MOST, out);
    for (int i = 0; i < out->n; i++)
        if (out->token[i] < 0 || out->token[i] >= g->vocab_size)
            out->n = i;
}

int draft_plan(struct engine *g, struct request *r, int n_decoding, int room)
{
    struct draft *next = &r->draft.next;
    float rate;
    if (r->draft.by_model)
        return use_draft(r, draft_room(g, r, next->n < room ? next->n : room));
    r->draft.n_used = 0;
    draft_by_text(g, r, n_decoding, next);
    return use_draft(r, draft_length(g, r, next->grade, n_decoding, next->n < room ? next->n : room, 0, &rate));
}

void draft_drop(struct engine *g, struct request *r)
{
    r->draft.n_used = 0;
    if (r->draft.spare >= 0)
        state_drop_spare(g->states, r->draft.spare);
    r->draft.spare = -1;
}

int draft_save_state(struct engine *g, struct request *r)
{
    if (!g->states)
        return 0;
    if ((r->draft.spare = state_take_spare(g->states, g->pool)) < 0)
        return -1;
    copy_state(g, r->slot, r->draft.spare);
    return 0;
}

static void swap_states(struct request *r)
{
    const int slot = r->slot;
    r->slot = r->draft.spare;
    r->draft.spare = slot;
}

void draft_return_state(struct request *r) { swap_states(r); }

/* Update the acceptance rates with one more drafted token, right or not. */
static void learn(struct engine *g, struct drafting *d, int grade, int right)
{
    d->trust[grade] += ((float)right - d->trust[grade]) * LEARNING;
    g->trust[grade] += ((float)right - g->trust[grade]) * LEARNING_ALL;
}

void draft_observe(struct engine *g, struct request *r, int32_t id)
{
    struct drafting *d = &r->draft;
    if (d->next.n > 0) {
        learn(g, d, d->next.grade, id == d->next.token[0]);
        g->pace.draft_ns[g->pace.n_decoding] *= 1 - FORGETTING;
    }
    if (d->other.n > 0)
        learn(g, d, d->other.grade, id == d->other.token[0]);
    d->next.n = d->other.n = 0;
}

/* Count a drafted token of r that was accepted and whose keys and values are computed.  A recurrent
 * state is that after the whole draft, so in a model with one, tokens count only if the whole draft
 * is accepted. */
static void take_drafted(struct engine *g, struct request *r)
{
    r->draft.accepted++;
    r->draft.n_rows += r->draft.n_rows > 0;
    r->draft.accepted_predicted += r->draft.next.predicted;
    g->count.accepted++;
    if (g->states)
        return;
    r->kv.n_tokens++;
    g->count.tokens++;
    tenant_charge(g, r, 1);
}

/* Compare r's newest ids with the draft of n tokens, from its token *right on; the draft starts at
 * ids[first].  Returns 1 if all were right, so that the next token is chosen from the row after
 * them. */
static int take_right(struct engine *g, struct request *r, int first, int n, int *right)
{
    for (; *right < n && first + *right < r->n_ids; ++*right) {
        const int is_right = r->ids[first + *right] == r->draft.next.token[*right];
        learn(g, &r->draft, r->draft.next.grade, is_right);
        /* a late constraint has not seen the last token, so the next step recomputes it */
        if (!is_right || (r->late && first + *right + 1 == r->n_ids))
            return 0;
        take_drafted(g, r);
    }
    return first + *right == r->n_ids;
}

/* Keep the recurrent state after the draft, because all of the draft is right; it covers r's ids
 * before `end`. */
static void keep_state(struct engine *g, struct request *r, int end)
{
    swap_states(r);
    draft_drop(g, r);
    step_computed(g, r, end - r->kv.n_tokens);
}

void draft_deliver(struct engine *g, int item, float *logits)
{
    struct request *r = g->batched[item];
    const int n = r->draft.n_used, first = r->n_ids, before = r->kv.n_tokens;
    int right = 0, goes_on = 1;
    g->count.drafted += (uint64_t)n;
    r->draft.drafted += n;
    r->draft.drafted_predicted += r->draft.next.predicted ? n : 0;
    r->draft.next.n = r->draft.n_used = 0;
    while (goes_on) {
        r->draft.verify = right < n && right < r->draft.n_proposed ? &r->draft.proposed[right] : NULL;
        deliver_row(g, r, logits + (size_t)right * (size_t)g->vocab_size);
        if (g->batched[item] != r)                      /* r has ended */
            return;
        r->draft.verify = NULL;
        if (r->cancelled)
            return;
        /* r waits for a mask, or was restarted */
        if (r->late == LATE_MASK || r->kv.n_tokens != before + (g->states ? 0 : right))
            break;
        goes_on = right < n && take_right(g, r, first, n, &right);
    }
    if (g->states && right == n && r->kv.n_tokens == before)
        keep_state(g, r, first + n);
    draft_drop(g, r);
}
