/* engine_draft.c - speculation: a step computes the last token of an answer and a draft of those
 * that may follow, and the draft is kept as far as it is what the model chooses.
 *
 * The rows of such a step are the logits after each of its tokens.  From the first row the next
 * token is chosen as in any step; while it is the drafted one, the next row is that of the next
 * step, bit for bit (backend.always_strict), and the next token is chosen from it.  So an answer
 * is the same with any drafter: sampler, penalties, stop strings and log probabilities see the
 * same rows in the same order, and the sampler's random numbers are counted by tokens.  Keys and
 * values of a draft that was wrong lie behind the last valid position, where the next step
 * writes.
 *
 * Recurrent states cannot be cut back, and a constraint's mask needs the token before it: those
 * requests have no drafts.
 *
 * How long a draft is, unless engine_limits.draft says it: of each grade a request knows how often
 * a drafted token was right behind right ones (of a draft that was not used: its first one), and
 * an engine what a drafted token adds to a step.  With probability p and a cost of c steps a token,
 * a draft of k tokens makes (1 + p + p^2 + .. + p^k) / (1 + kc) tokens in the time of one.  The
 * best k is taken. */
#include <stdlib.h>
#include <string.h>

#include "libcommon/engine/engine_core.h"

/* Before anything was measured: trust in drafts by grade; time of a drafted token in steps. */
static const float FIRST_TRUST[DRAFT_GRADES] = { 0.3f, 0.5f, 0.7f, 0.85f, [GRADE_RESUMED] = 0.8f, [GRADE_EDIT] = 0.4f,
                                                  [GRADE_PREDICTED] = 0.7f },
                   FIRST_COST = 0.125f;
static const float LEARNING = 1 / 8.0f;

int draft_init(struct engine *g, struct request *r, const struct draft_params *p, struct err *e)
{
    struct drafting *d = &r->draft;
    const int on = p->use == DRAFT_ON || (p->use == DRAFT_DEFAULT && (g->drafter || p->n_predicted));
    if (!on || g->no_drafts)
        return 0;
    d->drafter = g->drafter ? g->drafter : &drafter_ngram;
    d->most = p->most ? p->most : DRAFT_MOST;
    g->n_rows = g->n_rows > g->max_seqs + DRAFT_ROWS ? g->n_rows : g->max_seqs + DRAFT_ROWS;
    if (!p->n_predicted)
        return 0;
    if (!(d->predicted = malloc((size_t)p->n_predicted * sizeof *d->predicted)))
        return err_nomem(e, "prediction");
    memcpy(d->predicted, p->predicted, (size_t)p->n_predicted * sizeof *d->predicted);
    d->n_predicted = p->n_predicted;
    return 0;
}

/* Whether r has a drafter, which is opened for its first draft; without memory it has none. */
static int has_drafter(const struct engine *g, struct request *r)
{
    struct drafting *d = &r->draft;
    if (!d->drafter || r->constrained || g->states)
        return 0;
    if (!d->state && !d->opened && (d->state = d->drafter->open(d->predicted, d->n_predicted)))
        memcpy(d->trust, FIRST_TRUST, sizeof FIRST_TRUST);
    d->opened = 1;
    return d->state != NULL;
}

void draft_release(struct request *r)
{
    if (r->draft.state)
        r->draft.drafter->close(r->draft.state);
    free(r->draft.predicted);
}

/* Most tokens of a draft: all of them and the token after them fit into the answer, and LongRoPE's
 * factors stay what they are. */
static int draft_room(const struct engine *g, const struct request *r, int room)
{
    const int long_from = config_long_from(&g->m->config);
    int most = r->limit - r->n_ids - 1;
    if (long_from && r->n_ids < long_from && most > long_from - r->n_ids - 2)
        most = long_from - r->n_ids - 2;
    return most < room ? most : room;
}

/* Number of drafted tokens, up to `most`, that gives most tokens a second beside n_decoding
 * requests. */
static int best_length(const struct engine *g, float trust, int n_decoding, int most)
{
    const float alone = pace_alone(g, n_decoding), each = g->pace.draft_ns[n_decoding];
    const float cost = each > 0 ? each * (float)n_decoding / alone : FIRST_COST;
    float right = 1, tokens = 1, best_rate = 1;
    int best = 0;
    if (alone <= 0)
        return 0;
    for (int k = 1; k <= most; k++) {
        right *= trust;
        tokens += right;
        if (tokens > best_rate * (1 + (float)k * cost)) {
            best_rate = tokens / (1 + (float)k * cost);
            best = k;
        }
    }
    return best;
}

int draft_plan(struct engine *g, struct request *r, int n_decoding, int room)
{
    struct drafting *d = &r->draft;
    struct draft *next = &d->next;
    next->n = d->n_used = 0;
    if (r->n_ids - r->kv.n_tokens != 1 || !has_drafter(g, r))
        return 0;
    d->drafter->guess(d->state, r->ids, r->n_ids, DRAFT_MOST, next);
    for (int i = 0; i < next->n; i++)
        if (next->token[i] < 0 || next->token[i] >= g->vocab_size)
            next->n = i;
    int most = draft_room(g, r, next->n < room ? next->n : room);
    most = d->most < most ? d->most : most;
    if (most <= 0)
        return 0;
    d->n_used = g->limits.draft ? (g->limits.draft < most ? g->limits.draft : most)
                                : best_length(g, d->trust[next->grade], n_decoding, most);
    memcpy(r->ids + r->n_ids, next->token, (size_t)d->n_used * sizeof *r->ids);
    return d->n_used;
}

void draft_drop(struct request *r) { r->draft.n_used = 0; }

/* The token after the first n_right drafted ones is known: it is the drafted one or not. */
static void learn(struct drafting *d, int right)
{
    float *trust = &d->trust[d->next.grade];
    *trust += ((float)right - *trust) * LEARNING;
}

void draft_heard(struct request *r, int32_t id)
{
    if (r->draft.next.n > 0)
        learn(&r->draft, id == r->draft.next.token[0]);
    r->draft.next.n = 0;
}

/* The last token of r is the drafted one, so its keys and values are there already. */
static void take_drafted(struct engine *g, struct request *r)
{
    r->kv.n_tokens++;
    r->draft.accepted++;
    r->draft.accepted_predicted += r->draft.next.predicted;
    g->count.tokens++;
    g->count.accepted++;
    tenant_charge(g, r, 1);
}

void draft_deliver(struct engine *g, int item, float *logits)
{
    struct request *r = g->batched[item];
    const int n = r->draft.n_used, at = r->n_ids;
    g->count.drafted += (uint64_t)n;
    r->draft.drafted += n;
    r->draft.drafted_predicted += r->draft.next.predicted ? n : 0;
    r->draft.next.n = r->draft.n_used = 0;
    for (int i = 0;; i++, logits += g->vocab_size) {
        deliver_row(g, r, logits);
        if (g->batched[item] != r || r->cancelled || i == n)    /* it ended, or all of the draft was right */
            return;
        const int right = r->ids[at + i] == r->draft.next.token[i];
        learn(&r->draft, right);
        if (!right)
            return;
        take_drafted(g, r);
    }
}
