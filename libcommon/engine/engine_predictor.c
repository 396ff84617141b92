/* engine_predictor.c - drafts of a layer that was trained with the model to predict a further token
 * (multi-token prediction, arXiv:2412.19437, section 2.2).
 *
 * The layer reads the model's final state after a token, and the next token, and predicts the token
 * after that.  So every step of the main model also returns its final states, and the predictor
 * computes its own keys and values from them before the next step overwrites the rows.  Further
 * tokens of a draft are made from the predictor's own state; their keys and values are computed
 * again with the model's states when the tokens are known.
 *
 * Entry i of its keys and values is made of the state after ids[base + i] and of the token after
 * that.  Where the main model took a prefix from the cache, states are missing: the predictor looks
 * the prefix up in a tree of its own; in place of the states of a short gap it reads zeros, and
 * after a long gap it begins anew.  That makes drafts worse, but does not change answers. */
#include <stdlib.h>
#include <string.h>

#include "libcommon/engine/draft_model.h"

enum { LONG_GAP = 2 * KV_BLOCK };

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
    free(d->rows);
    free(d->states);
    free(d->own);
}

size_t predictor_bytes(const struct engine *g)
{
    return g->draft_model->rows ? (2 * (size_t)g->max_tokens + 2 * (size_t)g->max_seqs) * row_floats(g) *
                                  sizeof(float) : 0;
}

/* Forget the keys and values of r. */
static void restart(struct engine *g, struct request *r)
{
    kv_table_truncate(&r->draft.kv, g->draft_model->pool, 0);
    r->draft.base = 0;
}

void predictor_release(struct engine *g, struct request *r)
{
    struct drafting *x = &r->draft;
    if (x->kv.n_tokens > 0 && x->base == 0 && g->prefixes)
        prefix_enter(&x->kv, g->draft_model->pool, r->ids + 1, 1);
    restart(g, r);
    x->next.n = x->n_fed = x->n_rows = 0;
    x->last_pos = -1;
}

/* The main model's state after ids[pos]; NULL: it is not known. */
static const float *state_after(const struct engine *g, const struct drafting *x, int pos)
{
    if (pos >= x->row_pos && pos < x->row_pos + x->n_rows)
        return x->rows + (size_t)(pos - x->row_pos) * row_floats(g);
    return pos == x->last_pos ? x->last : NULL;
}

/* Copy the states after ids [from, from + n) to `to`, with zeros for those that are not known. */
static void copy_states(const struct engine *g, const struct drafting *x, int from, int n, float *to)
{
    for (int i = 0; i < n; i++, to += row_floats(g)) {
        const float *state = state_after(g, x, from + i);
        if (state)
            memcpy(to, state, row_floats(g) * sizeof *to);
        else
            memset(to, 0, row_floats(g) * sizeof *to);
    }
}

/* Choose the first entry of r to compute before `end`, and return its index in ids.  drafts: a
 * draft is made, so the last entry is computed again if it is computed already, for its logits. */
static int first_entry(struct engine *g, struct request *r, int end, int drafts)
{
    struct drafting *x = &r->draft;
    struct kv_table *kv = &x->kv;
    if (x->n_rows && x->last_pos < x->row_pos - 1)
        x->last_pos = -1;
    const int known = x->last_pos >= 0 && (!x->n_rows || x->last_pos < x->row_pos) ? x->last_pos : x->row_pos;
    if (kv->n_blocks == 0 && x->base == 0 && g->prefixes && known > 0)
        prefix_take(kv, g->draft_model->pool, r->ids + 1, known);
    const int next = x->base + kv->n_tokens;
    if (next < known && (kv->n_tokens == 0 || known - next > LONG_GAP)) {
        restart(g, r);
        x->base = known;
        return known;
    }
    if (drafts && next == end && kv->n_tokens > kv->n_nodes * KV_BLOCK && state_after(g, x, end - 1)) {
        kv->n_tokens--;
        return next - 1;
    }
    return next;
}

/* Keep a copy of the last state for the next step, because its next token may not be known yet. */
static void keep_last(const struct engine *g, struct drafting *x)
{
    if (x->n_rows) {
        x->last_pos = x->row_pos + x->n_rows - 1;
        memcpy(x->last, x->rows + (size_t)(x->n_rows - 1) * row_floats(g), row_floats(g) * sizeof *x->last);
    }
    x->n_rows = 0;
}

void predictor_feed(struct engine *g, struct request *r, int length, int *n, int *used)
{
    struct draft_model *d = g->draft_model;
    struct drafting *x = &r->draft;
    x->n_fed = 0;
    if (!x->n_rows && x->last_pos < 0)
        return;
    const int newest = x->n_rows ? x->row_pos + x->n_rows : x->last_pos + 1,
              end = newest < r->n_ids - 1 ? newest : r->n_ids - 1;
    int at = first_entry(g, r, end, length > 0);
    while (at < end) {
        const int room = g->max_tokens - *used, count = end - at < room ? end - at : room,
                  last = at + count == r->n_ids - 1 && length > 0;
        if (draft_reserve(g, r, at - x->base + count) != 0) {
            restart(g, r);
            break;
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
    keep_last(g, x);
}
