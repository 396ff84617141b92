/* engine_predictor.c - drafts of a layer that was trained with the model to predict a further token
 * (multi-token prediction, arXiv:2412.19437, section 2.2).
 *
 * The layer (the predictor) reads the model's final state after a token, and the next token, and
 * predicts the token after that.  So every step of the main model also returns its final states,
 * and the predictor computes its own keys and values from them before the next step overwrites the
 * rows.  Further tokens of a draft are made from the predictor's own state; their keys and values
 * are computed again with the model's states when the tokens are known.
 *
 * While a request has no drafts, the predictor computes nothing: copies of the newest KEPT states
 * wait for the next draft, which computes their keys and values in one pass.  The keys and values
 * of prompts are computed at once.
 *
 * Entry i of the predictor's keys and values is computed from the model's state after ids[base + i]
 * and from the token ids[base + i + 1].  States can be missing, because drafts were paused for
 * long, or because the main model took a prefix from the cache that the predictor's prefix tree
 * lacks.  Then the entries before the gap stay, the entries behind it follow them directly, and
 * `base` grows by the length of the gap.  So distances within the newer entries are right, and
 * distances across the gap are too short: drafts become a little worse, answers do not change. */
#include <stdlib.h>
#include <string.h>

#include "libcommon/engine/draft_model.h"

enum { KEPT = ENGINE_KEPT_STATES };

static size_t row_floats(const struct engine *g) { return (size_t)g->m->config.hidden_size; }

int predictor_open(struct engine *g, struct draft_model *d, struct err *e)
{
    const size_t row = row_floats(g) * sizeof(float);
    d->rows = malloc((size_t)g->max_tokens * row);
    d->states = malloc((size_t)g->max_tokens * row);
    d->own = malloc((size_t)g->max_seqs * row);
    return d->rows && d->states && d->own ? 0 : err_nomem(e, "states for drafts");
}

void predictor_close(struct draft_model *d)
{
    free(d->states);
    free(d->own);
}

size_t predictor_bytes(const struct engine *g)
{
    return g->draft_model->own ? (2 * (size_t)g->max_tokens + (1 + KEPT) * (size_t)g->max_seqs) * row_floats(g) *
                                  sizeof(float) : 0;
}

/* Forget the keys and values of r. */
static void restart(struct engine *g, struct request *r)
{
    kv_table_truncate(&r->draft.kv, g->draft_model->pool, 0);
    r->draft.base = 0;
    r->draft.whole = -1;
}

void predictor_release(struct engine *g, struct request *r)
{
    struct drafting *x = &r->draft;
    if (x->whole >= 0)
        kv_table_truncate(&x->kv, g->draft_model->pool, x->whole);
    predictor_save(g, r);
    if (x->kv.n_tokens > 0 && g->prefixes)
        prefix_enter(&x->kv, g->draft_model->pool, r->ids + 1, 1);
    restart(g, r);
    x->next.n = x->n_fed = x->n_rows = x->n_kept = 0;
    free(x->kept);
    x->kept = NULL;
}

/* Whether the rows of the last step continue the kept states, without a gap; they may also replace
 * some of these. */
static int rows_follow(const struct drafting *x, int row_pos)
{
    return x->n_kept && row_pos > x->kept_pos && row_pos <= x->kept_pos + x->n_kept;
}

/* Index of the first token such that its state and all later ones are known. */
static int first_known(const struct drafting *x)
{
    return x->n_rows && !rows_follow(x, x->row_pos) ? x->row_pos : x->kept_pos;
}

/* The state after ids[pos].  It must be known. */
static const float *state_after(const struct engine *g, const struct drafting *x, int pos)
{
    return x->n_rows && pos >= x->row_pos ? x->rows + (size_t)(pos - x->row_pos) * row_floats(g)
                                          : x->kept + (size_t)(pos % KEPT) * row_floats(g);
}

/* Copy the states after ids [from, from + n) to the input of a pass. */
static void copy_states(const struct engine *g, const struct drafting *x, int from, int n, float *to)
{
    for (int i = 0; i < n; i++, to += row_floats(g))
        memcpy(to, state_after(g, x, from + i), row_floats(g) * sizeof *to);
}

/* Copy the newest rows of the last step to the kept states; if memory is short, keep none. */
static void keep_rows(const struct engine *g, struct drafting *x)
{
    const int n = x->n_rows < KEPT ? x->n_rows : KEPT, from = x->row_pos + x->n_rows - n;
    x->n_rows = 0;
    if (n == 0 || (!x->kept && !(x->kept = malloc(KEPT * row_floats(g) * sizeof *x->kept))))
        return;
    if (rows_follow(x, from)) {
        x->n_kept = from - x->kept_pos;
    } else {
        x->kept_pos = from;
        x->n_kept = 0;
    }
    for (int pos = from; pos < from + n; pos++)
        memcpy(x->kept + (size_t)(pos % KEPT) * row_floats(g), x->rows + (size_t)(pos - x->row_pos) * row_floats(g),
               row_floats(g) * sizeof *x->kept);
    x->n_kept += n;
    if (x->n_kept > KEPT) {
        x->kept_pos += x->n_kept - KEPT;
        x->n_kept = KEPT;
    }
}

/* Take the cached keys and values of the tokens before ids[known], as far as the prefix tree has
 * them. */
static void take_prefix(struct engine *g, struct request *r, int known)
{
    struct draft_model *d = g->draft_model;
    struct kv_table *kv = &r->draft.kv;
    struct err ignored;
    int32_t from, to;
    prefix_take(kv, d->pool, r->ids + 1, known);
    if (prefix_copy(kv, d->pool, r->ids + 1, known, &from, &to) &&
        g->backend->copy_block(d->b, from, to, &ignored) != 0)
        d->failed = 1;
}

/* Return the index in ids of the first entry of r that must be computed before entry `end`.
 * drafts: the logits of entry end - 1 are needed, so it is computed again even if it is cached,
 * unless its block is in the tree or its state is not kept. */
static int first_entry(struct engine *g, struct request *r, int end, int drafts)
{
    struct drafting *x = &r->draft;
    struct kv_table *kv = &x->kv;
    const int known = first_known(x);
    if (kv->n_blocks == 0 && x->whole < 0 && g->prefixes && known > 0) {
        predictor_load(g, r, known);
        take_prefix(g, r, known);
    }
    const int next = x->base + kv->n_tokens;
    if (next < known) {
        x->whole = x->whole < 0 ? kv->n_tokens : x->whole;
        x->base = known - kv->n_tokens;
        return known;
    }
    if (drafts && next == end && end > known && kv->n_tokens > kv->n_nodes * KV_BLOCK) {
        kv->n_tokens--;
        return next - 1;
    }
    return next;
}

/* Add the states of r's tokens from `at` to `end` to the pass. */
static void add_entries(struct engine *g, struct request *r, int at, int end, int length, int *n, int *used)
{
    struct draft_model *d = g->draft_model;
    struct drafting *x = &r->draft;
    while (at < end) {
        const int room = g->max_tokens - *used, count = end - at < room ? end - at : room,
                  last = at + count == r->n_ids - 1 && length > 0;
        if (draft_reserve(g, r, at - x->base + count) != 0) {
            restart(g, r);
            return;
        }
        float *states = d->states + (size_t)*used * row_floats(g);
        copy_states(g, x, at, count, states);
        d->items[*n] = (struct batch_item){ .tokens = r->ids + at + 1, .n_tokens = count, .pos = at - x->base,
                                            .table = x->kv.block, .n_logits = last, .seq_len = r->n_ids,
                                            .states = states, .n_hidden = last,
                                            .hidden = d->own + (size_t)d->n_drafting * row_floats(g) };
        d->batched[(*n)++] = r;
        if (last) {
            d->length[d->n_drafting] = length;
            d->drafting[d->n_drafting++] = r;
        }
        x->kv.n_tokens += count;
        *used += count;
        at += count;
        if (*used == g->max_tokens) {
            draft_pass(g, *n);
            *n = *used = 0;
        }
    }
}

void predictor_feed(struct engine *g, struct request *r, int length, int n_decoding, int *n, int *used)
{
    struct drafting *x = &r->draft;
    const int newest = x->n_rows ? x->row_pos + x->n_rows : x->kept_pos + x->n_kept,
              end = newest < r->n_ids - 1 ? newest : r->n_ids - 1,
              waits = !length && decodes(r) && x->n_rows <= KEPT;
    x->n_fed = 0;
    if ((x->n_rows || x->n_kept) && !waits && !draft_is_full(g, n_decoding))
        add_entries(g, r, first_entry(g, r, end, length > 0), end, length, n, used);
    keep_rows(g, x);
}
