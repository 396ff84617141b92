/* engine_medusa.c - drafts of Medusa heads (libcommon/model/medusa.h).
 *
 * The heads read the model's final state after the last token but one, which the last step has
 * computed: head i guesses token i of the draft.  They have no keys and values that would have to
 * follow the sequence.  A request whose state is not known, because it started from a shared prompt
 * or its constraint was late, has no draft in this step.  Only the most likely chain is checked,
 * not a tree: a row of a tree costs a processor as much as a row of a longer chain, and is right
 * less often (HACKING.md has figures). */
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/pool.h"
#include "libcommon/engine/draft_model.h"
#include "libcommon/kernels/kernels.h"

enum { JOB_TILES = 8 };

struct medusa_run {
    const struct medusa *m;             /* borrowed */
    const struct kernels *kernels;
    struct pool *pool;
    /* [max_seqs][hidden_size] each.  states: of this step's drafts; x: the states in a head; y: the
     * output of a block */
    float *states, *x, *y;
    void *act, **scratch;               /* rounded x; scratch of each thread */
    size_t act_bytes, scratch_bytes, bytes;
};

static size_t up64(size_t n) { return (n + 63) / 64 * 64; }

int medusa_run_open(struct engine *g, struct draft_model *d, const struct engine_options *o, struct err *e)
{
    const struct medusa *m = o->medusa;
    const struct mat *w = &medusa_linear(m, 0, 0)->w;
    const size_t n = (size_t)g->max_seqs, row = n * (size_t)m->hidden_size * sizeof(float);
    struct medusa_run *h = d->heads = calloc(1, sizeof *h);
    if (!h)
        return err_nomem(e, "Medusa heads");
    h->m = m;
    if (!(h->kernels = kernels_pick(o->kernels, e)) || !(h->pool = pool_open(o->n_threads, e)))
        return -1;
    const size_t n_threads = (size_t)pool_size(h->pool);
    h->act_bytes = up64(h->kernels->act_bytes(g->max_seqs, w->cols_padded, w->act_group));
    h->scratch_bytes = up64(h->kernels->scratch_bytes(g->max_seqs, w->cols_padded));
    d->rows = malloc((size_t)g->max_tokens * (size_t)m->hidden_size * sizeof *d->rows);
    h->states = malloc(row);
    h->x = malloc(row);
    h->y = malloc(row);
    h->act = aligned_alloc(64, h->act_bytes);
    h->scratch = calloc(n_threads, sizeof *h->scratch);
    int complete = d->rows && h->states && h->x && h->y && h->act && h->scratch;
    for (size_t i = 0; complete && i < n_threads; i++)
        complete = (h->scratch[i] = aligned_alloc(64, h->scratch_bytes + 64)) != NULL;
    h->bytes = m->bytes + 3 * row + h->act_bytes + n_threads * h->scratch_bytes +
               (size_t)g->max_tokens * (size_t)m->hidden_size * sizeof *d->rows;
    return complete ? 0 : err_nomem(e, "Medusa heads");
}

void medusa_run_close(struct medusa_run *h)
{
    if (!h)
        return;
    for (int i = 0; h->scratch && i < pool_size(h->pool); i++)
        free(h->scratch[i]);
    pool_close(h->pool);
    free(h->states);
    free(h->x);
    free(h->y);
    free(h->act);
    free(h->scratch);
    free(h);
}

size_t medusa_run_bytes(const struct medusa_run *h) { return h->bytes; }

struct head_job { const struct medusa_run *h; const struct mat *w; float *out; int n; };

static void multiply_part(void *arg, int i, int thread)
{
    const struct head_job *j = arg;
    const int begin = i * JOB_TILES, end = begin + JOB_TILES < j->w->n_tiles ? begin + JOB_TILES : j->w->n_tiles;
    j->h->kernels->matmul(j->out, (size_t)j->w->rows, j->w, begin, end, j->h->act, j->n, j->h->scratch[thread]);
}

/* Compute out [n][rows] of x [n][hidden_size]. */
static void multiply(const struct medusa_run *h, const struct linear *l, int n, float *out)
{
    const struct mat *w = &l->w;
    const size_t rows = (size_t)w->rows;
    struct head_job job = { h, w, out, n };
    for (int part = 0; part < h->kernels->act_parts(n); part++)
        h->kernels->act_pack(h->act, h->x, (size_t)w->cols, n, w->cols, w->cols_padded, w->act_group, part);
    pool_run(h->pool, (w->n_tiles + JOB_TILES - 1) / JOB_TILES, multiply_part, &job);
    for (int t = 0; l->bias && t < n; t++)
        h->kernels->add(out + (size_t)t * rows, out + (size_t)t * rows, l->bias, 1, w->rows);
}

/* Compute the logits of a head for the states in x [n]. */
static void run_head(const struct medusa_run *h, int head, int n, float *logits)
{
    const struct medusa *m = h->m;
    const int all = n * m->hidden_size;
    for (int i = 0; i < m->n_blocks; i++) {
        multiply(h, medusa_linear(m, head, i), n, h->y);
        h->kernels->act_mul(h->y, h->y, NULL, all, ACT_SILU);
        h->kernels->add(h->x, h->x, h->y, 1, all);
    }
    multiply(h, medusa_linear(m, head, m->n_blocks), n, logits);
}

void medusa_feed(struct engine *g, struct request *r, int length)
{
    struct draft_model *d = g->draft_model;
    struct drafting *x = &r->draft;
    const size_t hidden = (size_t)g->m->config.hidden_size;
    const int n = x->n_rows, newest = x->row_pos + n - 1;
    x->n_rows = 0;                      /* the next step overwrites them */
    if (!length || !n || newest != r->n_ids - 2)
        return;
    memcpy(d->heads->states + (size_t)d->n_drafting * hidden, x->rows + (size_t)(n - 1) * hidden,
           hidden * sizeof *x->rows);
    d->length[d->n_drafting] = length;
    d->drafting[d->n_drafting++] = r;
}

int medusa_guess(struct engine *g)
{
    struct draft_model *d = g->draft_model;
    const struct medusa_run *h = d->heads;
    const size_t hidden = (size_t)h->m->hidden_size;
    int head = 0;
    for (; head < h->m->n_heads; head++) {
        int n = 0;
        for (int i = 0; i < d->n_drafting; i++)
            if (d->length[i] > head) {
                memcpy(h->x + (size_t)n++ * hidden, h->states + (size_t)i * hidden, hidden * sizeof *h->x);
            }
        if (n == 0)
            break;
        run_head(h, head, n, d->logits);
        const float *logits = d->logits;
        for (int i = 0; i < d->n_drafting; i++)
            if (d->length[i] > head) {
                draft_append(g, d->drafting[i], logits);
                logits += h->m->vocab_size;
            }
    }
    return head;
}
