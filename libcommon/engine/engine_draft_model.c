/* engine_draft_model.c - drafts made by a second, smaller model, by the first layers of the model
 * itself, by its layer that predicts further tokens or by Medusa heads.
 *
 * Before a step is planned, the draft model catches up on the requests that are to have drafts,
 * then computes one token of each draft per pass, for all of them together.  It samples with the
 * request's own options and with the random number that the answer will use at that position, so
 * that both models often agree at temperature 1, too.  Its keys and values have blocks and a prefix
 * tree of their own; those of wrong tokens lie after the last valid position.
 *
 * It computes prompts in chunks, beside the main model.  A request that gets no block has no draft.
 * A failure of the draft model ends drafts, not answers.
 *
 * A request whose drafts do not pay pauses them; each trial that still does not pay doubles the
 * number of steps until the next one. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/clock.h"
#include "libcommon/engine/draft_model.h"
#include "libcommon/model/eagle.h"

enum { FIRST_PAUSE = 16, LONGEST_PAUSE = 256 };

/* ---- the two models ---- */

static void printable(char *out, size_t room, const char *text, size_t size)
{
    size_t n = 0;
    for (; text && n < size && n + 1 < room; n++)
        out[n] = text[n] < ' ' || text[n] > '~' ? '?' : text[n];
    out[n] = '\0';
}

static int same_token(const struct tokenizer *a, const struct tokenizer *b, int32_t id, struct err *e)
{
    enum { SHOWN = 40 };
    char x[SHOWN], y[SHOWN];
    size_t n_a = 0, n_b = 0;
    const char *t_a = id < tokenizer_vocab_size(a) ? tokenizer_token(a, id, &n_a) : NULL,
               *t_b = id < tokenizer_vocab_size(b) ? tokenizer_token(b, id, &n_b) : NULL;
    if (!t_a && !t_b)
        return 1;
    if (t_a && t_b && n_a == n_b && memcmp(t_a, t_b, n_a) == 0 &&
        tokenizer_is_special(a, id) == tokenizer_is_special(b, id))
        return 1;
    printable(x, sizeof x, t_a, n_a);
    printable(y, sizeof y, t_b, n_b);
    err_set(e, ERR_UNSUPPORTED, "the draft model has another tokenizer: its token %d is %s%s%s, expected %s%s%s", (int)id,
            t_b ? "'" : "unused", y, t_b ? "'" : "", t_a ? "'" : "none", x, t_a ? "'" : "");
    return 0;
}

int engine_check_draft_model(const struct model *draft, const struct tokenizer *a, const struct tokenizer *b,
                             struct err *e)
{
    if (draft->config.both_ways || draft->config.embedding.pooling)
        return err_set(e, ERR_UNSUPPORTED, "the draft model makes vectors of texts, expected one that answers");
    if (config_state_bytes(&draft->config))
        return err_set(e, ERR_UNSUPPORTED, "the draft model has recurrent layers, expected one without");
    if (!a || !b)
        return err_set(e, ERR_UNSUPPORTED, "a model without a tokenizer cannot be compared with a draft model");
    const int n_a = tokenizer_vocab_size(a), n_b = tokenizer_vocab_size(b);
    for (int32_t id = 0; id < (n_a > n_b ? n_a : n_b); id++)
        if (!same_token(a, b, id, e))
            return -1;
    return 0;
}

int engine_check_draft_layers(const struct config *c, const struct engine_options *o, int n, struct err *e)
{
    const char *beyond = config_beyond(c, 0);
    if (o->backend && o->backend->device)
        return err_set(e, ERR_UNSUPPORTED, "drafts of the first layers are made by the CPU only");
    if (beyond)
        return err_set(e, ERR_UNSUPPORTED, "no drafts of the first layers: %s", beyond);
    if (c->n_layers < 2)
        return err_set(e, ERR_LIMIT, "the model has one layer, drafts of the first layers need two");
    if (n < 1 || n >= c->n_layers)
        return err_set(e, ERR_LIMIT, "drafts of %d layers, expected 1 to %d: the model has %d", n, c->n_layers - 1,
                       c->n_layers);
    return 0;
}

void engine_draft_device(struct backend_gpus *gpus, int *device)
{
    if (gpus->n > 1)
        *device = gpus->index[gpus->n - 1];
    gpus->n = 0;
}

static int open_sizes(struct engine *g, struct draft_model *d, struct err *e)
{
    const size_t n = (size_t)g->max_seqs;
    const int max_len = d->m ? d->m->config.max_len : 0;
    d->max_len = max_len > 0 && max_len < g->max_len ? max_len : g->max_len;
    d->items = calloc(n, sizeof *d->items);
    d->batched = calloc(n, sizeof(struct request *));
    d->drafting = calloc(n, sizeof(struct request *));
    d->length = calloc(n, sizeof *d->length);
    d->logits = malloc(n * (size_t)d->vocab_size * sizeof *d->logits);
    d->row = malloc((size_t)g->vocab_size * sizeof *d->row);
    return d->items && d->batched && d->drafting && d->length && d->logits && d->row ? 0
                                                                                    : err_nomem(e, "draft model");
}

int engine_check_predictor(const struct model *m, const struct engine_options *o, struct err *e)
{
    if (o->backend && o->backend->device)
        return err_set(e, ERR_UNSUPPORTED, "drafts of a layer that predicts further tokens are made by the CPU only");
    if (!m->predictor)
        return err_set(e, ERR_UNSUPPORTED, "the model has no layer that predicts further tokens");
    return 0;
}

int engine_check_medusa(const struct medusa *h, const struct config *c, const struct engine_options *o, struct err *e)
{
    if (o->backend && o->backend->device)
        return err_set(e, ERR_UNSUPPORTED, "drafts of Medusa heads are made by the CPU only");
    if (h->hidden_size != c->hidden_size || h->vocab_size != c->vocab_size)
        return err_set(e, ERR_UNSUPPORTED,
                       "Medusa heads of a model with hidden_size %d and %d tokens, this one has %d and %d", h->hidden_size,
                       h->vocab_size, c->hidden_size, c->vocab_size);
    return 0;
}

int engine_check_eagle(const struct eagle *g, const struct model *m, const struct engine_options *o, struct err *e)
{
    const struct config *c = &m->config;
    if (o->backend && o->backend->device)
        return err_set(e, ERR_UNSUPPORTED, "drafts of EAGLE heads are made by the CPU only");
    if (g->hidden_size != c->hidden_size || g->vocab_size != c->vocab_size)
        return err_set(e, ERR_UNSUPPORTED, "EAGLE heads of a model with hidden_size %d and %d tokens, this one has %d and %d",
                       g->hidden_size, g->vocab_size, c->hidden_size, c->vocab_size);
    if (c->n_streams || c->hyper.n || c->embed_size != c->hidden_size)
        return err_set(e, ERR_UNSUPPORTED, "EAGLE heads cannot read the states of %s", c->arch);
    return 0;
}

static int check_drafting(const struct engine *g, const struct engine_options *o, struct err *e)
{
    if (o->eagle)
        return engine_check_eagle(o->eagle, g->m, o, e);
    if (o->predictor)
        return engine_check_predictor(g->m, o, e);
    return o->draft_model ? 0 : engine_check_draft_layers(&g->m->config, o, o->draft_layers, e);
}

/* Open the memory and the backend of a model that makes drafts. */
static int open_drafting(struct engine *g, struct draft_model *d, const struct engine_options *o,
                         const struct backend_options *bo, struct err *e)
{
    struct backend_options own = *bo;
    if (g->window)
        return err_set(e, ERR_UNSUPPORTED, "a draft model has no window");
    d->eagle = o->eagle;
    const int predicts = o->predictor || o->eagle;
    if (check_drafting(g, o, e) != 0)
        return -1;
    d->m = o->eagle ? &o->eagle->model : o->predictor ? g->m->predictor : o->draft_model;
    if (!d->m) {
        d->part = *g->m;
        d->part.config.n_layers = o->draft_layers;
        d->m = &d->part;
    }
    d->vocab_size = d->m->config.vocab_size;
    d->most = o->predictor && !o->eagle ? ENGINE_PREDICTED_MOST : DRAFT_MOST;
    own.eagle = NULL;
    own.n_states = own.n_window_blocks = own.pages = own.device_layers = 0;
    own.pattern = (struct sparse_pattern){ 0 };
    own.max_weights = own.max_device = 0;
    engine_draft_device(&own.gpus, &own.device);
    own.layer_stream = own.stream_window = 0;
    own.max_logits = g->max_seqs;
    if (open_sizes(g, d, e) != 0 || (predicts && predictor_open(g, d, e) != 0) ||
        !(d->pool = kv_pool_open(bo->n_blocks, e)))
        return -1;
    return (d->b = g->backend->open(d->m, &own, e)) ? 0 : err_prefix(e, "draft model");
}

static int open_heads(struct engine *g, struct draft_model *d, const struct engine_options *o, struct err *e)
{
    if (engine_check_medusa(o->medusa, &g->m->config, o, e) != 0)
        return -1;
    d->vocab_size = o->medusa->vocab_size;
    d->most = o->medusa->n_heads;
    return open_sizes(g, d, e) != 0 ? -1 : medusa_run_open(g, d, o, e);
}

int draft_model_open(struct engine *g, const struct engine_options *o, const struct backend_options *bo,
                     struct err *e)
{
    if (g->no_drafts || (!o->draft_model && !o->draft_layers && !o->predictor && !o->medusa && !o->eagle))
        return 0;
    if (!(g->draft_model = calloc(1, sizeof *g->draft_model)))
        return err_nomem(e, "draft model");
    struct draft_model *d = g->draft_model;
    if (o->draft_distribution &&
        !(d->proposals = malloc(DRAFT_ROWS * (size_t)g->vocab_size * sizeof *d->proposals)))
        return err_nomem(e, "draft model");
    return o->medusa && !o->eagle ? open_heads(g, d, o, e) : open_drafting(g, d, o, bo, e);
}

void draft_model_close(struct engine *g)
{
    struct draft_model *d = g->draft_model;
    if (!d)
        return;
    disk_close(d->disk);
    if (d->b)
        g->backend->close(d->b);
    kv_pool_close(d->pool);
    free(d->items);
    free(d->batched);
    free(d->drafting);
    free(d->length);
    free(d->logits);
    free(d->row);
    free(d->proposals);
    free(d->rows);
    predictor_close(d);
    medusa_run_close(d->heads);
    free(d);
    g->draft_model = NULL;
}

size_t draft_model_bytes(const struct engine *g)
{
    const struct draft_model *d = g->draft_model;
    const size_t row = (size_t)g->vocab_size * sizeof *d->row;
    if (!d)
        return 0;
    return ((size_t)g->max_seqs + 1 + (d->proposals ? DRAFT_ROWS : 0)) * row + (d->heads ? medusa_run_bytes(d->heads)
                                              : g->backend->memory(d->b) + kv_pool_bytes(d->pool) + predictor_bytes(g));
}

int engine_draws_by_distribution(const struct engine *g) { return g->draft_model && g->draft_model->proposals; }

static void drop_block(void *user, int32_t block)
{
    const struct engine *g = user;
    if (g->backend->drop_block)
        g->backend->drop_block(g->draft_model->b, block);
}

void draft_model_trim(struct engine *g)
{
    if (g->draft_model && g->draft_model->pool)
        kv_pool_trim(g->draft_model->pool, drop_block, g);
}

/* ---- a request ---- */

int draft_model_init(struct engine *g, struct request *r, struct err *e)
{
    struct draft_model *d = g->draft_model;
    r->draft.by_model = 1;
    r->draft.whole = -1;
    if (d->heads)
        return 0;
    return kv_table_init(&r->draft.kv, d->max_len, e) != 0 ? -1 : kv_table_scope(&r->draft.kv, d->pool, r->scope, e);
}

/* Drafted tokens that were accepted need not be computed again by the draft model: count them in
 * kv.n_tokens, except the last token if its logits are needed again. */
static void count_seen(struct request *r)
{
    struct drafting *d = &r->draft;
    for (int i = 0; i < d->n_fed && d->kv.n_tokens < r->n_ids && d->fed[i] == r->ids[d->kv.n_tokens]; i++)
        d->kv.n_tokens++;
    d->n_fed = 0;
    if (d->kv.n_tokens == r->n_ids)
        d->kv.n_tokens--;
}

void draft_model_release(struct engine *g, struct request *r)
{
    struct drafting *d = &r->draft;
    if (!d->by_model)
        return;
    if (g->draft_model->heads) {
        d->next.n = d->n_rows = 0;
        return;
    }
    if (g->draft_model->rows) {
        predictor_release(g, r);
        return;
    }
    count_seen(r);
    if (d->kv.n_tokens > 0 && g->prefixes)
        prefix_enter(&d->kv, g->draft_model->pool, r->ids, 1);
    kv_table_truncate(&d->kv, g->draft_model->pool, 0);
    d->next.n = 0;
}

void draft_model_free(struct engine *g, struct request *r)
{
    if (r->draft.by_model && g->draft_model->pool)
        kv_table_release(&r->draft.kv, g->draft_model->pool);
    free(r->draft.kept);
}

float *draft_model_rows(const struct engine *g, const struct request *r, int n, int *aux)
{
    const struct draft_model *d = g->draft_model;
    const int has_rows = r->draft.by_model && d->rows;
    *aux = has_rows && d->eagle && d->eagle->n_aux;
    return has_rows ? d->rows + (size_t)n * (size_t)g->m->config.hidden_size : NULL;
}

/* ---- passes ---- */

int draft_reserve(struct engine *g, struct request *r, int n_tokens)
{
    struct draft_model *d = g->draft_model;
    struct err ignored;
    int32_t from, to;
    const int rc = kv_table_unshare(&r->draft.kv, d->pool, &from, &to);
    if (rc > 0 && g->backend->copy_block(d->b, from, to, &ignored) != 0)
        d->failed = 1;
    return rc < 0 || d->failed ? -1 : kv_table_reserve(&r->draft.kv, d->pool, n_tokens);
}

/* Copy logits of the draft model to d->row, which has the vocabulary of the main model; tokens that
 * the draft model lacks get -inf. */
static void draft_row(struct engine *g, const float *logits)
{
    struct draft_model *d = g->draft_model;
    const int32_t *target = d->eagle ? d->eagle->target : NULL;
    const int theirs = target ? d->eagle->n_own : d->vocab_size, n = theirs < g->vocab_size ? theirs : g->vocab_size;
    if (!target)
        memcpy(d->row, logits, (size_t)n * sizeof *logits);
    for (int i = target ? 0 : n; i < g->vocab_size; i++)
        d->row[i] = -INFINITY;
    for (int i = 0; target && i < n; i++)
        d->row[target[i]] = logits[i];
}

void draft_append(struct engine *g, struct request *r, const float *logits)
{
    struct draft_model *d = g->draft_model;
    struct draft *next = &r->draft.next;
    struct err ignored;
    int32_t id;
    draft_row(g, logits);
    if (d->proposals && !r->draft.same_tokens && !sampler_is_greedy(r->sampler)) {
        float *proposal = d->proposals + (size_t)d->n_proposals * (size_t)g->vocab_size;
        struct proposed *p = &r->draft.proposed[r->draft.n_proposed];
        if (d->n_proposals == DRAFT_ROWS || sampler_propose(r->sampler, d->row, proposal, p, &ignored) != 0)
            return;
        d->n_proposals++;
        r->draft.n_proposed++;
        next->token[next->n++] = p->id;
        return;
    }
    if (sampler_guess(r->sampler, d->row, next->n, &id, &ignored) == 0)
        next->token[next->n++] = id;
}

/* Append a token to each draft from the rows of a pass of n items. */
static void take_rows(struct engine *g, int n)
{
    struct draft_model *d = g->draft_model;
    const float *logits = d->logits;
    for (int i = 0; i < n; i++) {
        if (!d->items[i].n_logits)
            continue;
        draft_append(g, d->batched[i], logits);
        logits += d->vocab_size;
    }
}

int draft_pass(struct engine *g, int n)
{
    struct draft_model *d = g->draft_model;
    struct err ignored;
    if (!n || d->failed)
        return 0;
    if (g->backend->forward(d->b, &(struct batch){ d->items, n }, d->logits, &ignored) != 0) {
        d->failed = 1;
        return 0;
    }
    take_rows(g, n);
    return 1;
}

/* Take the guess of r's drafter, if it yields more than `rate` tokens in the time of one. */
static int takes_other(struct engine *g, struct request *r, int n_decoding, int room, float rate)
{
    struct drafting *x = &r->draft;
    float other_rate;
    const int most = x->other.n < room ? x->other.n : room,
              n = draft_length(g, r, x->other.grade, n_decoding, most, 0, &other_rate);
    if (n <= 0 || other_rate <= rate)
        return 0;
    x->next = x->other;
    x->next.n = n;
    x->n_proposed = 0;
    x->other.n = 0;
    return 1;
}

/* Length of r's draft by the model; 0: none, or a draft by its drafter, in x->next. */
static int wanted(struct engine *g, struct request *r, int n_decoding, int room)
{
    struct draft_model *d = g->draft_model;
    struct drafting *x = &r->draft;
    const int longest = d->max_len - r->n_ids, left = longest < d->most ? longest : d->most;
    float rate;
    if (!decodes(r) || pace_alone(g, n_decoding) <= 0)
        return 0;
    const int n = draft_length(g, r, GRADE_MODEL, n_decoding, room < left ? room : left, d->pass_ns, &rate);
    if (n > 0)
        x->pause = x->rest = 0;
    if (takes_other(g, r, n_decoding, room, rate))
        return 0;
    if (n > 0)
        return n;
    if (n < 0 || x->rest-- > 0)
        return 0;
    x->pause = x->pause ? 2 * x->pause : FIRST_PAUSE;
    x->rest = x->pause = x->pause < LONGEST_PAUSE ? x->pause : LONGEST_PAUSE;
    return 1;
}

/* Space left in the first pass: `total` for all tokens, `chunk` for tokens of long prompts, which
 * are computed in chunks. */
struct draft_budget { int total, chunk; };

/* Returns 1 if the draft model has all new tokens of r.  Its vocabulary may be smaller by ids that
 * no text produces. */
static int knows(const struct draft_model *d, const struct request *r)
{
    for (int i = r->draft.kv.n_tokens; i < r->n_ids; i++)
        if (r->ids[i] >= d->vocab_size)
            return 0;
    return 1;
}

/* Add the tokens of r that the draft model has not computed to the first pass.  length: length of
 * r's draft. */
static void plan_first(struct engine *g, struct request *r, int length, int *n, struct draft_budget *left)
{
    struct draft_model *d = g->draft_model;
    struct kv_table *kv = &r->draft.kv;
    count_seen(r);
    if (kv->n_blocks == 0 && g->prefixes)
        prefix_take(kv, d->pool, r->ids, r->n_ids - 1);
    else if (g->prefixes)
        prefix_enter(kv, d->pool, r->ids, 0);
    if (!knows(d, r)) {
        draft_model_release(g, r);
        r->draft.unknown = 1;
        return;
    }
    const int lag = r->n_ids - kv->n_tokens, small = lag <= 2 * FORCED,
              most = small || left->chunk > left->total ? left->total : left->chunk,
              n_tokens = lag - !length < most ? lag - !length : most;
    if (n_tokens <= 0 || draft_reserve(g, r, kv->n_tokens + n_tokens) != 0)
        return;
    left->total -= n_tokens;
    left->chunk -= small ? 0 : n_tokens;
    d->items[*n] = (struct batch_item){ .tokens = r->ids + kv->n_tokens, .n_tokens = n_tokens, .pos = kv->n_tokens,
                                        .table = kv->block, .n_logits = n_tokens == lag, .seq_len = r->n_ids };
    d->batched[(*n)++] = r;
    kv->n_tokens += n_tokens;
    if (n_tokens < lag)
        return;
    d->length[d->n_drafting] = length;
    d->drafting[d->n_drafting++] = r;
}

/* Add the last token of each incomplete draft to the next pass. */
static int plan_next(struct engine *g)
{
    struct draft_model *d = g->draft_model;
    int n = 0;
    for (int i = 0; i < d->n_drafting; i++) {
        struct request *r = d->drafting[i];
        struct drafting *x = &r->draft;
        const int pos = x->kv.n_tokens + x->n_fed;
        if (x->next.n <= x->n_fed || x->next.n >= d->length[i] || draft_reserve(g, r, pos + 1) != 0)
            continue;
        x->fed[x->n_fed] = x->next.token[x->n_fed];
        float *own = d->rows ? d->own + (size_t)i * (size_t)g->m->config.hidden_size : NULL;
        d->items[n] = (struct batch_item){ .tokens = &x->fed[x->n_fed++], .n_tokens = 1, .pos = pos,
                                           .table = x->kv.block, .n_logits = 1, .seq_len = pos + 1,
                                           .states = own, .hidden = own, .n_hidden = own != NULL };
        d->batched[n++] = r;
    }
    return n;
}

/* Forget the last step's drafts.  Returns the number of requests that are to have drafts in this
 * step. */
static int begin_drafts(struct engine *g, int n_decoding)
{
    int n_sharing = 0;
    g->draft_model->n_proposals = 0;
    for (int i = 0; i < g->n_running; i++) {
        struct request *r = g->running[i];
        struct drafting *x = &r->draft;
        if (!x->by_model)
            continue;
        x->next = (struct draft){ .grade = GRADE_MODEL };
        x->n_proposed = 0;
        x->other.n = 0;
        if (!r->late && decodes(r))
            draft_by_text(g, r, n_decoding, &x->other);
        n_sharing += decodes(r);
    }
    return n_sharing ? n_sharing : 1;
}

/* Whether the draft model can go on with r. */
static int can_draft(const struct draft_model *d, const struct request *r)
{
    return !r->draft.unknown && !d->failed && r->n_ids < d->max_len && (!r->late || d->rows);
}

void draft_model_guess(struct engine *g, int n_decoding, int chunk)
{
    struct draft_model *d = g->draft_model;
    const uint64_t begin = clock_ns();
    struct draft_budget left = { g->max_tokens, chunk };
    int n = 0, used = 0, n_passes = 0, only_drafts = 1;
    if (!d)
        return;
    d->n_drafting = 0;
    d->spent_ns = 0;
    const int room = DRAFT_ROWS / begin_drafts(g, n_decoding);
    for (int i = 0; i < g->n_running; i++) {
        struct request *r = g->running[i];
        if (!r->draft.by_model)
            continue;
        if (!can_draft(d, r)) {
            takes_other(g, r, n_decoding, room, 1);
            continue;
        }
        const int length = r->late ? 0 : wanted(g, r, n_decoding, room);
        only_drafts &= decodes(r);
        if (d->heads)
            medusa_feed(g, r, length);
        else if (d->rows)
            predictor_feed(g, r, length, n_decoding, &n, &used);
        else if (length || !decodes(r))
            plan_first(g, r, length, &n, &left);
    }
    /* measure this step only if no request had states that waited to be computed */
    only_drafts = d->heads || (d->rows ? only_drafts && used <= 4 * d->n_drafting : n == d->n_drafting);
    n_passes = d->heads ? medusa_guess(g) : 0;
    while (draft_pass(g, n)) {
        n = plan_next(g);
        n_passes++;
    }
    if (d->failed)
        for (int i = 0; i < d->n_drafting; i++)
            d->drafting[i]->draft.next.n = 0;
    d->spent_ns = n_passes || n || d->rows ? clock_ns() - begin : 0;
    if (n_passes && d->n_drafting && only_drafts) {
        const float each = (float)d->spent_ns / (float)n_passes;
        d->pass_ns += d->pass_ns > 0 ? ((each < 2 * d->pass_ns ? each : 2 * d->pass_ns) - d->pass_ns) / 8 : each;
    }
}

uint64_t draft_model_spent(const struct engine *g) { return g->draft_model ? g->draft_model->spent_ns : 0; }
