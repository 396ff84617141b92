/* engine.c - the scheduler.
 *
 * A step plans, computes, delivers.  Planning goes through the running requests in the order in which they came: one that decodes
 * gets its token, one whose prompt is not finished gets what is left of the step's tokens; each reserves KV blocks for them.  When the
 * pool is empty, first the KV of finished conversations goes, then that of requests that wait, then the youngest running request
 * goes back to waiting and will compute everything again: its sampler and its ids stay, so its answer is the same.  The pool
 * holds at least one sequence of full length: the oldest request always gets on. */
#include "libcommon/engine/engine.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/pool.h"
#include "libcommon/cache/kv.h"
#include "libcommon/engine/engine_text.h"

enum state { WAITING, RUNNING, KEPT };

struct request {
    struct request *next;               /* in the list of waiting or of kept requests */
    enum state state;
    uint64_t order;                     /* of submission: the smaller goes first */
    int32_t *ids;                       /* [limit] prompt and answer */
    int n_ids, n_prompt, n_cached, limit;
    struct kv_table kv;
    struct sampler *sampler;
    struct answer_text text;
    int32_t *stop_ids; int n_stop_ids;  /* stop strings that are one special token: these never appear in the text */
    int ignore_eos, keep, cancelled;
    int planned;                        /* tokens of this step */
    void (*on_token)(void *user, const struct token_event *ev);
    void *user;
    uint64_t submitted_ns, started_ns, first_ns, last_ns;
};

struct engine {
    const struct model *m;              /* borrowed */
    const struct tokenizer *t;          /* borrowed, may be NULL */
    const struct backend *backend;
    void *b;
    int vocab_size, max_len, max_seqs, max_tokens;
    struct kv_pool *pool;
    struct request **running; int n_running;        /* [max_seqs] by order */
    struct request *waiting, *kept;     /* lists by order */
    struct request **batched;           /* [max_seqs] whose item is items[i] */
    struct batch_item *items;           /* [max_seqs] */
    float *logits;                      /* [max_seqs, vocab_size] */
    struct engine_limits limits;
    uint64_t orders, steps, tokens;
};

static size_t block_bytes(const struct config *c, enum kv_type type)
{
    return 2 * (size_t)c->n_layers * (size_t)c->n_kv_heads * kv_block_bytes(type, c->head_dim);
}

/* Blocks of the pool, or -1. */
static int pool_blocks(const struct engine *g, const struct engine_options *o, struct err *e)
{
    int one = (g->max_len + KV_BLOCK - 1) / KV_BLOCK;
    size_t n = (size_t)one * (size_t)g->max_seqs;
    if (o->kv_bytes) {
        n = o->kv_bytes / block_bytes(&g->m->config, o->kv_type);
        if (n < (size_t)one)
            return err_set(e, ERR_LIMIT, "KV memory of %zu bytes holds %zu tokens, expected at least the context of %d", o->kv_bytes, n * KV_BLOCK, g->max_len);
    }
    if (n > INT32_MAX / KV_BLOCK)
        return err_set(e, ERR_LIMIT, "%d sequences of %d tokens need %zu KV blocks, expected at most %d", g->max_seqs, g->max_len, n, INT32_MAX / KV_BLOCK);
    return (int)n;
}

/* Tokens of a step: as many as make the most of the weights that are read for them, fewer where their activations would take more than 24 MB:
 * private memory stays small for large models. */
static int default_tokens(const struct config *c, int n_threads)
{
    enum { MOST = 512, LEAST = 32, MEMORY = 24 << 20 };
    const size_t q = (size_t)c->n_heads * (size_t)c->head_dim, kv = (size_t)c->n_kv_heads * (size_t)c->head_dim;
    const size_t hidden = (size_t)c->hidden_size, mlp = (size_t)c->intermediate_size, widest = mlp > q ? mlp : q;
    /* about what cpu_core.c takes for each: floats, the widest row rounded, a piece of outputs for each thread */
    const size_t floats = (c->block == BLOCK_PARALLEL2 ? 3 : 2) * hidden + 2 * q + 2 * kv + mlp;
    const size_t bytes = floats * sizeof(float) + widest + 640 * (size_t)(n_threads > 0 ? n_threads : pool_n_cpus());
    const size_t n = MEMORY / bytes / LEAST * LEAST;
    return n < LEAST ? LEAST : n > MOST ? MOST : (int)n;
}

struct engine *engine_open(const struct model *m, const struct tokenizer *t, const struct engine_options *o, struct err *e)
{
    struct engine *g = calloc(1, sizeof *g);
    if (!g) {
        err_nomem(e, "engine");
        return NULL;
    }
    const struct config *c = &m->config;
    int default_len = c->max_len > 0 && c->max_len < 8192 ? c->max_len : 8192;
    g->m = m;
    g->t = t;
    g->backend = o->backend ? o->backend : &backend_cpu;
    g->vocab_size = c->vocab_size;
    g->max_len = o->max_len > 0 ? o->max_len : default_len;
    g->max_seqs = o->max_seqs > 0 ? o->max_seqs : 1;
    g->max_tokens = o->max_tokens > 0 ? o->max_tokens : default_tokens(c, o->n_threads);
    if (g->max_tokens < g->max_seqs)
        g->max_tokens = g->max_seqs;
    g->limits = (struct engine_limits){ .max_running = g->max_seqs, .max_waiting = o->max_waiting };
    if (c->max_len > 0 && g->max_len > c->max_len) {
        err_set(e, ERR_LIMIT, "a context of %d tokens, expected at most the model's %d", g->max_len, c->max_len);
        goto fail;
    }
    int n_blocks = pool_blocks(g, o, e);
    if (n_blocks < 0 || !(g->pool = kv_pool_open(n_blocks, e)))
        goto fail;
    g->running = calloc((size_t)g->max_seqs, sizeof(struct request *));
    g->batched = calloc((size_t)g->max_seqs, sizeof(struct request *));
    g->items = calloc((size_t)g->max_seqs, sizeof *g->items);
    g->logits = malloc((size_t)g->max_seqs * (size_t)g->vocab_size * sizeof *g->logits);
    if (!g->running || !g->batched || !g->items || !g->logits) {
        err_nomem(e, "engine");
        goto fail;
    }
    const struct backend_options bo = { .n_threads = o->n_threads, .kv_type = o->kv_type, .n_blocks = n_blocks, .max_tokens = g->max_tokens,
                                        .max_logits = g->max_tokens, .exact = o->exact, .kernels = o->kernels };
    if ((g->b = g->backend->open(m, &bo, e)))
        return g;
fail:
    engine_close(g);
    return NULL;
}

int engine_set_limits(struct engine *g, const struct engine_limits *l, struct err *e)
{
    if (l->max_running < 1 || l->max_running > g->max_seqs)
        return err_set(e, ERR_LIMIT, "max_running is %d, expected 1 to %d", l->max_running, g->max_seqs);
    if (l->chunk < 0 || l->chunk > g->max_tokens)
        return err_set(e, ERR_LIMIT, "chunk is %d, expected 0 to %d", l->chunk, g->max_tokens);
    if (l->max_waiting < 0)
        return err_set(e, ERR_LIMIT, "max_waiting is %d, expected 0 or more", l->max_waiting);
    g->limits = *l;
    return 0;
}

void engine_limits(const struct engine *g, struct engine_limits *l) { *l = g->limits; }

static void free_request(struct engine *g, struct request *r)
{
    kv_table_release(&r->kv, g->pool);
    answer_text_release(&r->text);
    sampler_close(r->sampler);
    free(r->stop_ids);
    free(r->ids);
    free(r);
}

static void free_list(struct engine *g, struct request *r)
{
    while (r) {
        struct request *next = r->next;
        free_request(g, r);
        r = next;
    }
}

void engine_close(struct engine *g)
{
    if (!g)
        return;
    for (int i = 0; i < g->n_running; i++)
        free_request(g, g->running[i]);
    free_list(g, g->waiting);
    free_list(g, g->kept);
    if (g->b)
        g->backend->close(g->b);
    kv_pool_close(g->pool);
    free(g->running);
    free(g->batched);
    free(g->items);
    free(g->logits);
    free(g);
}

static void insert(struct request **list, struct request *r)
{
    while (*list && (*list)->order < r->order)
        list = &(*list)->next;
    r->next = *list;
    *list = r;
}

static void take_out(struct request **list, struct request *r)
{
    while (*list != r)
        list = &(*list)->next;
    *list = r->next;
    r->next = NULL;
}

static void stop_running(struct engine *g, struct request *r)
{
    int i = 0;
    while (g->running[i] != r)
        i++;
    g->n_running--;
    memmove(&g->running[i], &g->running[i + 1], (size_t)(g->n_running - i) * sizeof *g->running);
}

/* ---- requests ---- */

static int check_params(const struct engine *g, const struct request_params *p, struct err *e)
{
    if (p->n_ids < 1)
        return err_set(e, ERR_LIMIT, "the prompt is empty, expected at least 1 token");
    if (p->n_ids >= g->max_len)
        return err_set(e, ERR_LIMIT, "the prompt has %d tokens: with a context of %d no room is left for an answer", p->n_ids, g->max_len);
    for (int i = 0; i < p->n_ids; i++)
        if (p->ids[i] < 0 || p->ids[i] >= g->vocab_size)
            return err_set(e, ERR_LIMIT, "token %d of the prompt is %d, expected 0 to %d", i, (int)p->ids[i], g->vocab_size - 1);
    if (p->max_tokens < 0)
        return err_set(e, ERR_LIMIT, "max_tokens is %d, expected 0 or more", p->max_tokens);
    if (p->n_logprobs >= 0 || p->embed || p->priority || p->deadline_ns || p->constraint || p->n > 1)
        return err_set(e, ERR_UNSUPPORTED, "logprobs, embed, priority, deadline, constraint and n > 1 are not done yet");
    return 0;
}

static void find_stop_ids(const struct engine *g, struct request *r, const struct request_params *p)
{
    for (int i = 0; i < p->n_stop; i++) {
        int32_t id = tokenizer_find(g->t, p->stop[i], strlen(p->stop[i]));
        if (id >= 0 && tokenizer_is_special(g->t, id))
            r->stop_ids[r->n_stop_ids++] = id;
    }
}

static struct request *make_request(struct engine *g, const struct request_params *p, struct err *e)
{
    if (check_params(g, p, e) != 0)
        return NULL;
    struct request *r = calloc(1, sizeof *r);
    if (!r) {
        err_nomem(e, "request");
        return NULL;
    }
    int room = g->max_len - p->n_ids;
    r->n_ids = r->n_prompt = p->n_ids;
    r->limit = p->n_ids + (p->max_tokens && p->max_tokens < room ? p->max_tokens : room);
    r->ignore_eos = p->ignore_eos;
    r->keep = p->keep;
    r->on_token = p->on_token;
    r->user = p->user;
    r->submitted_ns = clock_ns();
    r->ids = malloc((size_t)r->limit * sizeof *r->ids);
    r->stop_ids = malloc(((size_t)p->n_stop + 1) * sizeof *r->stop_ids);
    if (!r->ids || !r->stop_ids) {
        err_nomem(e, "request");
        goto fail;
    }
    memcpy(r->ids, p->ids, (size_t)p->n_ids * sizeof *r->ids);
    if (kv_table_init(&r->kv, g->max_len, e) != 0 || answer_text_init(&r->text, g->t, p->stop, p->n_stop, e) != 0 ||
        !(r->sampler = sampler_open(&p->sampling, g->vocab_size, r->limit, e)))
        goto fail;
    find_stop_ids(g, r, p);
    for (int i = 0; i < r->n_prompt; i++)
        sampler_accept(r->sampler, r->ids[i], 0);
    return r;
fail:
    free_request(g, r);
    return NULL;
}

static struct request *enqueue(struct engine *g, struct request *r)
{
    r->order = ++g->orders;
    r->state = WAITING;
    insert(&g->waiting, r);
    return r;
}

struct request *engine_submit(struct engine *g, const struct request_params *p, struct err *e)
{
    struct request *r = make_request(g, p, e);
    return r ? enqueue(g, r) : NULL;
}

struct request *engine_continue(struct engine *g, struct request *kept, const struct request_params *p, struct err *e)
{
    assert(kept->state == KEPT);
    struct request *r = make_request(g, p, e);
    if (!r)
        return NULL;
    int same = 0, most = r->n_prompt - 1;       /* the last token is computed in any case: its logits are needed */
    most = kept->kv.n_tokens < most ? kept->kv.n_tokens : most;
    while (same < most && kept->ids[same] == r->ids[same])
        same++;
    const int long_from = config_long_from(&g->m->config);
    if (long_from && (kept->n_ids >= long_from) != (r->n_ids >= long_from))
        same = 0;                               /* its keys are rotated otherwise */
    kv_table_release(&r->kv, g->pool);
    r->kv = kept->kv;
    memset(&kept->kv, 0, sizeof kept->kv);
    kv_table_truncate(&r->kv, g->pool, same);
    r->n_cached = same;
    engine_forget(g, kept);
    return enqueue(g, r);
}

void engine_cancel(struct engine *g, struct request *r)
{
    (void)g;
    r->cancelled = 1;
}

void engine_forget(struct engine *g, struct request *r)
{
    if (r->state == KEPT) {
        take_out(&g->kept, r);
        free_request(g, r);
    } else {
        r->cancelled = 1;
        r->keep = 0;
    }
}

/* The last callback; after it r is kept or gone. */
static void finish(struct engine *g, struct request *r, int32_t id, const char *text, size_t size, enum finish why, const struct err *error)
{
    if (r->state == RUNNING)
        stop_running(g, r);
    else
        take_out(&g->waiting, r);
    int keep = r->keep;
    if (keep) {
        r->state = KEPT;
        insert(&g->kept, r);
    }
    if (r->on_token)
        r->on_token(r->user, &(struct token_event){ .id = id, .text = text, .size = size, .finish = why, .error = error });
    if (!keep)
        free_request(g, r);
}

/* End without another token: what was held back comes out now. */
static void finish_early(struct engine *g, struct request *r, enum finish why, const struct err *error)
{
    const char *text;
    size_t size;
    int stopped;
    struct err ignored;
    if (answer_text_push(&r->text, -1, 1, &text, &size, &stopped, &ignored) != 0)
        size = 0;
    finish(g, r, -1, text, size, why, error);
}

static void finish_cancelled(struct engine *g)
{
    for (int i = g->n_running - 1; i >= 0; i--)
        if (g->running[i]->cancelled)
            finish_early(g, g->running[i], FINISH_CANCELLED, NULL);
    for (struct request *r = g->waiting, *next; r; r = next) {
        next = r->next;
        if (r->cancelled)
            finish_early(g, r, FINISH_CANCELLED, NULL);
    }
}

/* ---- memory ---- */

static int n_blocks(int n_tokens) { return (n_tokens + KV_BLOCK - 1) / KV_BLOCK; }

/* Give the blocks of the first (or last) request of a list that has any back to the pool. */
static int evict(struct engine *g, struct request *list, int last)
{
    struct request *victim = NULL;
    for (struct request *r = list; r && (last || !victim); r = r->next)
        if (r->kv.n_blocks)
            victim = r;
    if (!victim)
        return 0;
    kv_table_truncate(&victim->kv, g->pool, 0);
    if (victim->state == WAITING && !victim->first_ns)
        victim->n_cached = 0;
    return 1;
}

/* Of the oldest kept conversation, else of the youngest request that waits. */
static int evict_idle(struct engine *g) { return evict(g, g->kept, 0) || evict(g, g->waiting, 1); }

static void preempt(struct engine *g, struct request *r)
{
    kv_table_truncate(&r->kv, g->pool, 0);
    stop_running(g, r);
    r->state = WAITING;
    r->planned = 0;
    if (!r->first_ns)
        r->n_cached = 0;
    insert(&g->waiting, r);
}

/* Let waiting requests begin, in order, as long as their whole sequence and one block more would fit now. */
static void admit(struct engine *g)
{
    while (g->waiting && g->n_running < g->limits.max_running) {
        struct request *r = g->waiting;
        int missing = n_blocks(r->n_ids + 1) - r->kv.n_blocks;
        while (missing > kv_pool_free(g->pool) && evict(g, g->kept, 0))
            ;
        if (missing > kv_pool_free(g->pool) && g->n_running > 0)
            return;
        take_out(&g->waiting, r);
        r->state = RUNNING;
        if (!r->started_ns)
            r->started_ns = clock_ns();
        int i = g->n_running++;
        for (; i > 0 && g->running[i - 1]->order > r->order; i--)
            g->running[i] = g->running[i - 1];
        g->running[i] = r;
    }
}

/* ---- one step ---- */

static void plan(struct engine *g)
{
    int budget = g->max_tokens;
    for (int i = 0; i < g->n_running; i++)
        budget -= g->running[i]->n_ids - g->running[i]->kv.n_tokens == 1;
    for (int i = 0; i < g->n_running; i++) {
        struct request *r = g->running[i];
        int want = r->n_ids - r->kv.n_tokens;
        if (want > 1) {
            want = want < budget ? want : budget;
            budget -= want;
        }
        r->planned = want;
        while (want && r->state == RUNNING && kv_table_reserve(&r->kv, g->pool, r->kv.n_tokens + want) != 0)
            if (!evict_idle(g))
                preempt(g, g->running[g->n_running - 1]);
    }
}

static int make_batch(struct engine *g)
{
    int n = 0;
    for (int decoding = 1; decoding >= 0; decoding--) {
        for (int i = 0; i < g->n_running; i++) {
            struct request *r = g->running[i];
            int rest = r->n_ids - r->kv.n_tokens;
            if (r->planned == 0 || (rest == 1) != decoding)
                continue;
            g->items[n] = (struct batch_item){ .tokens = r->ids + r->kv.n_tokens, .n_tokens = r->planned, .pos = r->kv.n_tokens,
                                               .table = r->kv.block, .n_logits = r->planned == rest, .seq_len = r->n_ids };
            g->batched[n++] = r;
        }
    }
    return n;
}

static int ends_answer(const struct engine *g, const struct request *r, int32_t id)
{
    for (int i = 0; i < r->n_stop_ids; i++)
        if (r->stop_ids[i] == id)
            return 1;
    if (r->ignore_eos)
        return 0;
    int n = 0;
    const int32_t *eos = g->t ? tokenizer_eos(g->t, &n) : NULL;
    if (n == 0) {
        eos = g->m->config.eos;
        n = g->m->config.n_eos;
    }
    for (int i = 0; i < n; i++)
        if (eos[i] == id)
            return 1;
    return 0;
}

/* One new token from its logits, to the sampler, the text, and the callback. */
static void deliver(struct engine *g, struct request *r, float *logits)
{
    int32_t id;
    const char *text;
    size_t size;
    int stopped;
    struct err e;
    r->last_ns = clock_ns();
    if (!r->first_ns)
        r->first_ns = r->last_ns;
    if (sampler_pick(r->sampler, logits, &id, NULL, &e) != 0) {
        finish_early(g, r, FINISH_ERROR, &e);
        return;
    }
    r->ids[r->n_ids++] = id;
    if (r->n_ids == config_long_from(&g->m->config))
        kv_table_truncate(&r->kv, g->pool, 0);      /* other rotations from here on: the next step computes all keys again */
    sampler_accept(r->sampler, id, 1);
    int ended = ends_answer(g, r, id), last = ended || r->n_ids == r->limit;
    if (answer_text_push(&r->text, ended ? -1 : id, last, &text, &size, &stopped, &e) != 0) {
        finish(g, r, id, "", 0, FINISH_ERROR, &e);
        return;
    }
    if (last || stopped)
        finish(g, r, id, text, size, ended || stopped ? FINISH_STOP : FINISH_LENGTH, NULL);
    else if (r->on_token)
        r->on_token(r->user, &(struct token_event){ .id = id, .text = text, .size = size });
}

static int n_waiting(const struct engine *g)
{
    int n = 0;
    for (const struct request *r = g->waiting; r; r = r->next)
        n++;
    return n;
}

int engine_step(struct engine *g, struct err *e)
{
    struct err mine;
    finish_cancelled(g);
    admit(g);
    plan(g);
    const struct batch batch = { g->items, make_batch(g) };
    if (batch.n_items == 0)
        return 0;
    g->steps++;
    if (g->backend->forward(g->b, &batch, g->logits, &mine) != 0) {
        while (g->n_running > 0)
            finish_early(g, g->running[g->n_running - 1], FINISH_ERROR, &mine);
        if (e)
            *e = mine;
        return -1;
    }
    float *logits = g->logits;
    for (int i = 0; i < batch.n_items; i++) {
        g->batched[i]->kv.n_tokens += g->items[i].n_tokens;
        g->tokens += (uint64_t)g->items[i].n_tokens;
    }
    for (int i = 0; i < batch.n_items; i++) {
        if (g->items[i].n_logits) {
            deliver(g, g->batched[i], logits);
            logits += g->vocab_size;
        }
    }
    return g->n_running + n_waiting(g);
}

void request_stats(const struct request *r, struct request_stats *s)
{
    *s = (struct request_stats){ .n_prompt = r->n_prompt, .n_cached = r->n_cached, .n_generated = r->n_ids - r->n_prompt };
    if (r->started_ns)
        s->queue_s = (double)(r->started_ns - r->submitted_ns) * 1e-9;
    if (r->first_ns) {
        s->prefill_s = (double)(r->first_ns - r->started_ns) * 1e-9;
        s->decode_s = (double)(r->last_ns - r->first_ns) * 1e-9;
        s->first_token_s = (double)(r->first_ns - r->submitted_ns) * 1e-9;
    }
}

const int32_t *request_ids(const struct request *r, int *n)
{
    *n = r->n_ids;
    return r->ids;
}

void engine_stats(const struct engine *g, struct engine_stats *s)
{
    size_t mine = (size_t)g->max_seqs * ((size_t)g->vocab_size * sizeof(float) + sizeof *g->items + 2 * sizeof *g->running) +
                  2 * (size_t)kv_pool_size(g->pool) * sizeof(int32_t);
    *s = (struct engine_stats){ .kv_bytes = g->backend->kv_bytes(g->b), .private_bytes = g->backend->memory(g->b) + mine,
                                .n_blocks = kv_pool_size(g->pool), .n_free_blocks = kv_pool_free(g->pool), .n_running = g->n_running,
                                .n_waiting = n_waiting(g), .steps = g->steps, .tokens = g->tokens, .backend = g->backend->describe(g->b) };
}

int engine_logits(struct engine *g, const int32_t *ids, int n_ids, int from, float *logits, struct err *e)
{
    struct kv_table kv;
    int rc = -1;
    if (n_ids > g->max_len)
        return err_set(e, ERR_LIMIT, "%d tokens, expected at most the context of %d", n_ids, g->max_len);
    for (int i = 0; i < n_ids; i++)
        if (ids[i] < 0 || ids[i] >= g->vocab_size)
            return err_set(e, ERR_LIMIT, "token %d is %d, expected 0 to %d", i, (int)ids[i], g->vocab_size - 1);
    if (kv_table_init(&kv, n_ids, e) != 0)
        return -1;
    while (kv_table_reserve(&kv, g->pool, n_ids) != 0) {
        if (!evict_idle(g)) {
            err_set(e, ERR_LIMIT, "%d KV blocks are free, %d tokens need %d", kv_pool_free(g->pool), n_ids, n_blocks(n_ids));
            goto done;
        }
    }
    for (int pos = 0; pos < n_ids;) {
        int n = n_ids - pos < g->max_tokens ? n_ids - pos : g->max_tokens, end = pos + n;
        int n_logits = end <= from ? 0 : end - (pos > from ? pos : from);
        const struct batch_item item = { .tokens = ids + pos, .n_tokens = n, .pos = pos, .table = kv.block, .n_logits = n_logits, .seq_len = n_ids };
        if (g->backend->forward(g->b, &(struct batch){ &item, 1 }, logits, e) != 0)
            goto done;
        logits += (size_t)n_logits * (size_t)g->vocab_size;
        pos = end;
    }
    rc = 0;
done:
    kv_table_release(&kv, g->pool);
    return rc;
}
