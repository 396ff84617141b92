/* engine.c - open and close an engine, set its limits, report figures, compute logits. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/file.h"
#include "libcommon/base/pool.h"
#include "libcommon/engine/internal.h"

static int check_window(struct engine *g, const struct config *c, const struct engine_options *o, struct err *e)
{
    if (o->window < 0 || o->window > INT32_MAX / 4 || (o->window && o->window < KV_BLOCK))
        return err_set(e, ERR_LIMIT, "a window of %d tokens, expected at least %d", o->window, KV_BLOCK);
    if (o->sinks < 0 || o->sinks > o->window || o->sinks > ENGINE_MOST_SINKS)
        return err_set(e, ERR_LIMIT, "%d sinks, expected at most %d, and no more than the window of %d", o->sinks,
                       ENGINE_MOST_SINKS, o->window);
    const char *problem = !o->window ? NULL : !g->backend->windows ? "only the processor has windows"
                                                                   : config_stream_problem(c);
    if (problem)
        return err_set(e, ERR_UNSUPPORTED, "a window of %d tokens: %s", o->window, problem);
    g->window = o->window;
    g->sinks = o->sinks;
    if (c->max_len > 0 && o->window + o->sinks > c->max_len)
        return err_set(e, ERR_LIMIT, "a window of %d tokens and %d sinks, expected at most the model's context of %d",
                       o->window, o->sinks, c->max_len);
    return 0;
}

static int check_pages(struct engine *g, const struct config *c, const struct engine_options *o, struct err *e)
{
    if (o->pages < 0 || o->pages > ENGINE_MOST_PAGES || o->pages % 4)
        return err_set(e, ERR_LIMIT, "attention to %d pages, expected a multiple of 4, at most %d", o->pages,
                       ENGINE_MOST_PAGES);
    const char *problem = !o->pages ? NULL : !g->backend->pages ? "only the processor chooses pages"
                          : o->window ? "a window leaves none to choose" : config_pages_problem(c);
    if (problem)
        return err_set(e, ERR_UNSUPPORTED, "attention to %d pages: %s", o->pages, problem);
    g->pages = o->pages;
    return 0;
}

static int check_pattern(struct engine *g, const struct config *c, const struct engine_options *o, struct err *e)
{
    const struct sparse_pattern *p = &o->pattern;
    if (!p->unit)
        return 0;
    const char *problem = !p->causal || p->unit != PATTERN_UNIT ? "expected a causal one of blocks of 64"
                          : !g->backend->pages ? "only the processor attends by patterns"
                          : o->window || o->pages ? "a window or pages exclude it" : config_pages_problem(c);
    if (problem)
        return err_set(e, ERR_UNSUPPORTED, "attention by a pattern: %s", problem);
    g->pattern = *p;
    return 0;
}

/* Apply the defaults of options. */
static int set_sizes(struct engine *g, const struct config *c, const struct engine_options *o, struct err *e)
{
    const int most_len = c->embedding.max_len ? c->embedding.max_len : c->max_len,
              default_len = most_len > 0 && most_len < 8192 ? most_len : 8192;
    if (o->draft < 0 || o->draft > DRAFT_MOST)
        return err_set(e, ERR_LIMIT, "draft is %d, expected 0 to %d", o->draft, DRAFT_MOST);
    g->backend = o->backend ? o->backend : &backend_cpu;
    g->prefixes = !o->no_prefix_cache && !c->both_ways;
    g->max_len = o->max_len > 0 ? o->max_len : default_len;
    g->max_seqs = o->max_seqs > 0 ? o->max_seqs : 1;
    g->max_tokens = o->max_tokens > 0        ? o->max_tokens
                    : g->backend->step_tokens ? g->backend->step_tokens(c, o->n_threads,
                                                                        (int64_t)g->max_len * g->max_seqs, o->kernels)
                                              : BACKEND_STEP_TOKENS;
    if (g->max_tokens < g->max_seqs)
        g->max_tokens = g->max_seqs;
    if (c->both_ways && g->max_tokens < g->max_len)         /* an encoder needs whole sequences */
        g->max_tokens = g->max_len;
    if (check_window(g, c, o, e) < 0 || check_pages(g, c, o, e) < 0 || check_pattern(g, c, o, e) < 0)
        return -1;
    const int tail = g->backend->windows || g->backend->tails ? config_tail(c, o->kv, g->window) : 0;
    g->kept_tokens = tail ? tail : g->backend->windows ? config_window(c, g->window) : 0;
    g->kept_sinks = tail ? KV_SINKS : g->sinks;
    g->kv = o->kv;
    if (c->max_len > 0 && g->max_len > c->max_len && !o->window)
        return err_set(e, ERR_LIMIT, "a context of %d tokens, expected at most the model's %d", g->max_len, c->max_len);
    return 0;
}

static int blocks_for(int64_t n_tokens) { return (int)((n_tokens + KV_BLOCK - 1) / KV_BLOCK); }

/* Numbers of blocks in the pool; windows 0: no separate window blocks. */
struct blocks { int64_t all, windows; };

/* Numbers of blocks for n_seqs sequences of full length.  A window needs two blocks more than its
 * tokens fill, because it can begin and end within a block.  The tokens of a step need window
 * blocks once, not once per sequence.  With `kept` there are up to twice as many window blocks, so
 * that ended conversations and common prefixes keep theirs. */
static struct blocks blocks_wanted(const struct engine *g, const struct config *c, int n_seqs, int kept)
{
    const int tail = config_tail(c, g->kv, g->window);
    const int64_t one = blocks_for(g->max_len), step = blocks_for(g->max_tokens),
                  wanted = blocks_for(g->kept_tokens) + 2 + blocks_for(g->kept_sinks),
                  window = tail && wanted > one ? one : wanted, saved = one - window - step;
    const int64_t more = !kept || saved < 0 ? 0 : saved / 2 < window ? saved / 2 : window;
    return (struct blocks){ .all = one * n_seqs, .windows = g->kept_tokens && (saved > 0 || g->window || tail)
                                                                ? (window + more) * n_seqs + step : 0 };
}

/* Bytes of a block of keys and values.  With has_windows the layers that use window blocks are not
 * counted. */
static size_t block_bytes(const struct engine *g, const struct config *c, struct kv_types kv, int has_windows)
{
    return (has_windows ? config_block_bytes(c, kv, g->window) : config_kv_bytes(c, kv)) +
           (g->pages ? config_page_bytes(c) : 0);
}

static uint64_t blocks_bytes(const struct engine *g, const struct config *c, struct kv_types kv, const struct blocks *b)
{
    return (uint64_t)b->all * block_bytes(g, c, kv, b->windows > 0) +
           (b->windows ? (uint64_t)b->windows * config_window_bytes(c, kv, g->window) : 0);
}

uint64_t engine_kv_needs(const struct config *c, const struct engine_options *o, int n_seqs)
{
    struct engine g = { 0 };
    struct err ignored;
    if (set_sizes(&g, c, o, &ignored) < 0)
        return 0;
    const struct blocks b = blocks_wanted(&g, c, n_seqs, g.prefixes);
    return blocks_bytes(&g, c, o->kv, &b);
}

/* Compute the numbers of blocks that fit into o->kv_bytes.  Returns 0; -1 with *e if that is less
 * than one sequence needs. */
static int fit_blocks(const struct engine *g, const struct config *c, const struct engine_options *o, struct blocks *b,
                      struct err *e)
{
    const struct blocks least = blocks_wanted(g, c, 1, 0);
    if (!b->windows) {
        const size_t block = block_bytes(g, c, o->kv, 0);
        b->all = (int64_t)(o->kv_bytes / block);
        return b->all >= least.all ? 0 : err_set(e, ERR_LIMIT,
            "KV memory of %zu bytes holds %zu tokens, expected at least the context of %d", o->kv_bytes,
            (size_t)b->all * KV_BLOCK, g->max_len);
    }
    const uint64_t few = blocks_bytes(g, c, o->kv, &least), many = blocks_bytes(g, c, o->kv, b);
    if (o->kv_bytes < few)
        return err_set(e, ERR_LIMIT, "KV memory of %zu bytes, expected at least %llu for the context of %d", o->kv_bytes,
                       (unsigned long long)few, g->max_len);
    if (o->kv_bytes >= many) {
        const double by = (double)o->kv_bytes / (double)many;
        *b = (struct blocks){ (int64_t)((double)b->all * by), (int64_t)((double)b->windows * by) };
        return 0;
    }
    const double part = (double)(o->kv_bytes - few) / (double)(many - few);
    if (block_bytes(g, c, o->kv, 1))                    /* otherwise blocks take no memory */
        b->all = least.all + (int64_t)((double)(b->all - least.all) * part);
    b->windows = least.windows + (int64_t)((double)(b->windows - least.windows) * part);
    return 0;
}

static int pool_blocks(const struct engine *g, const struct config *c, const struct engine_options *o, struct blocks *b,
                       struct err *e)
{
    *b = blocks_wanted(g, c, g->max_seqs, g->prefixes);
    if (o->kv_bytes && config_kv_bytes(c, o->kv) && fit_blocks(g, c, o, b, e) < 0)
        return -1;
    if (b->all + b->windows > INT32_MAX / KV_BLOCK)
        return err_set(e, ERR_LIMIT, "%d sequences of %d tokens need %lld KV blocks, expected at most %d", g->max_seqs,
                       g->max_len, (long long)(b->all + b->windows), INT32_MAX / KV_BLOCK);
    return 0;
}

static const char *no_drafts(const struct config *c, const struct engine_options *o)
{
    const struct backend *backend = o->backend ? o->backend : &backend_cpu;
    if (c->both_ways || c->embedding.pooling)
        return "a model that makes vectors of texts has no answers";
    return backend->always_strict || o->strict ? NULL : "on a GPU answers depend on it without --strict";
}

static int most_seqs(const struct engine_options *o) { return o->max_seqs > 0 ? o->max_seqs : 1; }

/* Number of states to reserve for drafts: each draft keeps a copy of the recurrent state before
 * it. */
static int draft_states(const struct config *c, const struct engine_options *o)
{
    return no_drafts(c, o) ? 0 : most_seqs(o) < ENGINE_DRAFT_STATES ? most_seqs(o) : ENGINE_DRAFT_STATES;
}

static int open_states(struct engine *g, const struct engine_options *o, int n, struct err *e)
{
    enum { EVERY = 512 };
    if (!config_state_bytes(&g->m->config))
        return 0;
    g->snapshot_every = o->snapshot_every ? o->snapshot_every : EVERY;
    if (o->snapshots < 0 || o->snapshots > 1 << 20 || g->snapshot_every < KV_BLOCK || g->snapshot_every % KV_BLOCK)
        return err_set(e, ERR_LIMIT, "%d snapshots of states, every %d tokens: expected 0 or more, and a multiple of %d", o->snapshots, g->snapshot_every, KV_BLOCK);
    if (!(g->states = state_pool_open(n, e)))
        return -1;
    state_set_aside(g->states, draft_states(&g->m->config, o));
    return 0;
}

static int ask_backend(const struct engine *g, const struct engine_options *o, struct backend_options *b, struct err *e)
{
    struct blocks blocks;
    if (pool_blocks(g, &g->m->config, o, &blocks, e) < 0)
        return -1;
    /* keys and values of texts to embed live for one step only, so rounding them would save
     * little */
    const struct kv_types kv = g->m->config.embedding.pooling ? kv_both(KV_F32) : o->kv;
    *b = (struct backend_options){ .n_threads = o->n_threads, .kv = kv, .n_blocks = (int)blocks.all,
                                   .n_window_blocks = (int)blocks.windows, .window = g->window, .sinks = g->sinks,
                                   .pages = g->pages, .pattern = g->pattern,
                                   .n_states = engine_n_states(&g->m->config, o), .max_tokens = g->max_tokens,
                                   .max_logits = g->max_tokens, .exact = o->exact, .kernels = o->kernels,
                                   .max_weights = o->max_weights,
                                   .device = o->device, .gpus = o->gpus,
                                   .device_layers = o->device_layers, .moe = o->moe,
                                   .gpu_experts = o->gpu_experts,
                                   .prefill_threshold = o->prefill_threshold, .no_gpu_prefill = o->no_gpu_prefill,
                                   .expert_uploads = o->expert_uploads,
                                   .max_device = o->max_device,
                                   .layer_stream = o->layer_stream, .stream_window = o->stream_window,
                                   .stream_prefetch = o->stream_prefetch, .stream_sequential = o->stream_sequential,
                                   .strict = o->strict,
                                   .debug_sync = o->debug_sync, .wgmma = o->wgmma,
                                   .no_dependent_launches = o->no_dependent_launches, .one_launch = o->one_launch,
                                   .no_graphs = o->no_graphs,
                                   .act_codes = o->act_codes, .cache_weights = o->cache_weights, .eagle = o->eagle,
                                   .watch = o->watch };
    return 0;
}

int engine_backend_options(const struct model *m, const struct engine_options *o, struct backend_options *b,
                           struct err *e)
{
    struct engine g = { .m = m };
    return set_sizes(&g, &m->config, o, e) < 0 ? -1 : ask_backend(&g, o, b, e);
}

const char *engine_no_drafts(const struct model *m, const struct engine_options *o)
{
    return no_drafts(&m->config, o);
}

int engine_n_states(const struct config *c, const struct engine_options *o)
{
    const int n_snapshots = o->no_prefix_cache || c->both_ways ? 0 : o->snapshots ? o->snapshots : ENGINE_SNAPSHOTS;
    return config_state_bytes(c) ? most_seqs(o) + draft_states(c, o) + n_snapshots : 0;
}

const char *engine_drafts(const struct engine *g) { return g->no_drafts; }
int engine_has_drafter(const struct engine *g) { return g->drafter || g->draft_model; }
int engine_has_draft_model(const struct engine *g) { return g->draft_model != NULL; }

static const char loras_need_cpu[] = "LoRA adapters are computed on the CPU alone: expected no GPU, or weights into "
                                     "which zse-convert --lora has merged the adapter";

struct engine *engine_open(const struct model *m, const struct tokenizer *t, const struct engine_options *o,
                           struct err *e)
{
    struct engine *g = calloc(1, sizeof *g);
    if (!g) {
        err_nomem(e, "engine");
        return NULL;
    }
    const struct config *c = &m->config;
    struct backend_options bo;
    g->m = m;
    g->t = t;
    g->vocab_size = g->n_allowed = c->vocab_size;
    if (t && tokenizer_vocab_size(t) < c->vocab_size)
        g->n_allowed = tokenizer_vocab_size(t);
    pace_init(&g->pace);
    draft_policy_init(g);
    g->deadlines.which = BY_DEADLINE;
    if (set_sizes(g, c, o, e) < 0 || ask_backend(g, o, &bo, e) < 0)
        goto fail;
    g->kv = bo.kv;
    if (m->n_loras && !g->backend->loras) {
        err_set(e, ERR_UNSUPPORTED, "%s", loras_need_cpu);
        goto fail;
    }
    if (!(g->pool = kv_pool_open(bo.n_blocks, e)) ||
        (bo.n_window_blocks && kv_pool_windows(g->pool, bo.n_window_blocks, g->kept_tokens, g->kept_sinks, e) < 0) ||
        open_states(g, o, bo.n_states, e) < 0)
        goto fail;
    g->limits = (struct engine_limits){ .max_running = g->max_seqs, .max_waiting = o->max_waiting,
                                        .draft = o->draft };
    g->running = calloc((size_t)g->max_seqs, sizeof(struct request *));
    g->to_plan = calloc((size_t)g->max_seqs, sizeof(struct request *));
    g->batched = calloc((size_t)g->max_seqs, sizeof(struct request *));
    g->items = calloc((size_t)g->max_seqs, sizeof *g->items);
    g->draws = calloc((size_t)g->max_seqs, sizeof *g->draws);
    g->lookahead = (struct lookahead){ calloc((size_t)g->max_seqs, sizeof(struct request *)),
                               calloc((size_t)g->max_seqs, sizeof *g->items),
                               calloc((size_t)g->max_seqs, sizeof *g->draws), 0 };
    g->no_drafts = engine_no_drafts(m, o);
    g->drafter = g->no_drafts ? NULL : o->drafter;
    g->n_rows = g->max_seqs;
    /* the system allocates pages at their first use, so unused rows take no memory */
    g->logits = malloc(((size_t)g->max_seqs + PROMPT_ROWS) * (size_t)g->vocab_size * sizeof *g->logits);
    g->row = malloc((size_t)(g->vocab_size > c->hidden_size ? g->vocab_size : c->hidden_size) * sizeof *g->row);
    g->pace.alone_ns = calloc((size_t)g->max_seqs + 1, sizeof *g->pace.alone_ns);
    g->pace.draft_ns = calloc((size_t)g->max_seqs + 1, sizeof *g->pace.draft_ns);
    g->mask = malloc(((size_t)g->vocab_size + 31) / 32 * sizeof *g->mask);
    if (!(g->scratch = sampler_scratch_open(t, e)))
        goto fail;
    if (!g->running || !g->to_plan || !g->batched || !g->items || !g->draws || !g->lookahead.batched ||
        !g->lookahead.items || !g->lookahead.draws || !g->logits || !g->row || !g->mask ||
        !g->pace.alone_ns || !g->pace.draft_ns) {
        err_nomem(e, "engine");
        goto fail;
    }
    if ((g->b = g->backend->open(m, &bo, e)) && draft_model_open(g, o, &bo, e) == 0 &&
        prefixes_open(g, o, &bo, e) == 0)
        return g;
fail:
    engine_close(g);
    return NULL;
}

int engine_set_limits(struct engine *g, const struct engine_limits *l, struct err *e)
{
    if (l->max_running < 1 || l->max_running > g->max_seqs)
        return err_set(e, ERR_LIMIT, "max_running is %d, expected 1 to %d", l->max_running, g->max_seqs);
    if (l->chunk < 0)
        return err_set(e, ERR_LIMIT, "chunk is %d, expected 0 or more", l->chunk);
    if (l->draft < 0 || l->draft > DRAFT_MOST)
        return err_set(e, ERR_LIMIT, "draft is %d, expected 0 to %d", l->draft, DRAFT_MOST);
    if (l->max_waiting < 0)
        return err_set(e, ERR_LIMIT, "max_waiting is %d, expected 0 or more", l->max_waiting);
    if (l->max_tokens < 0 || l->max_tokens > g->max_tokens)
        return err_set(e, ERR_LIMIT, "max_tokens is %d, expected 0 to %d", l->max_tokens, g->max_tokens);
    g->limits = *l;
    return 0;
}

void engine_limits(const struct engine *g, struct engine_limits *l) { *l = g->limits; }

void engine_close(struct engine *g)
{
    if (!g)
        return;
    masks_close(g->masks);
    g->masks = NULL;
    for (int i = 0; i < g->n_running; i++)
        request_free(g, g->running[i]);
    while (g->tenants) {                         /* remaining requests keep their tenants alive */
        struct request *r = g->tenants->waiting.r[0];
        wait_remove(g, r);
        request_free(g, r);
    }
    disk_close(g->disk);
    draft_model_close(g);
    if (g->b)
        g->backend->close(g->b);
    kv_pool_close(g->pool);
    state_pool_close(g->states);
    sampler_scratch_close(g->scratch);
    free(g->deadlines.r);
    free(g->running);
    free(g->to_plan);
    free(g->batched);
    free(g->items);
    free(g->draws);
    free(g->lookahead.batched);
    free(g->lookahead.items);
    free(g->lookahead.draws);
    free(g->logits);
    free(g->row);
    free(g->mask);
    free(g->hidden);
    free(g->dense);
    free(g->pace.alone_ns);
    free(g->pace.draft_ns);
    free(g);
}

static void mark_lora(uint64_t *words, const struct request *r)
{
    if (r->lora)
        words[(r->lora - 1) / 64] |= (uint64_t)1 << ((r->lora - 1) % 64);
}

static void count_loras(const struct engine *g, struct engine_stats *s)
{
    for (int i = 0; i < g->n_running; i++)
        mark_lora(s->loras_running, g->running[i]);
    for (const struct tenant_queue *t = g->tenants; t; t = t->next)
        for (int i = 0; i < t->waiting.n; i++)
            mark_lora(s->loras_waiting, t->waiting.r[i]);
}

int engine_set_lora(struct engine *g, struct model *m, int number, struct lora_bound *b, struct err *e)
{
    assert(m == g->m);
    if (!b) {
        model_remove_lora(m, number);
        return 0;
    }
    if (!g->backend->loras) {
        lora_bound_free(b);
        return err_set(e, ERR_UNSUPPORTED, "%s", loras_need_cpu);
    }
    if (model_put_lora(m, number, b, e) < 0)
        return -1;
    if (g->backend->loras(g->b, e) == 0)
        return 0;
    model_remove_lora(m, number);
    return -1;
}

void engine_count_requests(const struct engine *g, struct engine_stats *s)
{
    s->n_running = g->n_running;
    s->n_waiting = g->n_waiting + g->n_pending;
    s->n_tenants = g->n_tenants;
    s->requests = g->count.requests;
}

void engine_stats(const struct engine *g, struct engine_stats *s)
{
    const size_t vocab = (size_t)g->vocab_size * sizeof(float),
                 hidden = (size_t)g->m->config.hidden_size * sizeof(float);
    const size_t mine = (size_t)(g->n_rows + 1) * vocab + vocab / 32 + (size_t)g->max_seqs *
                        (2 * (sizeof *g->items + sizeof *g->draws) + 4 * sizeof *g->running + sizeof(float)) +
                        (g->hidden ? (size_t)g->max_tokens * hidden : 0) + kv_pool_bytes(g->pool) +
                        (g->states ? state_pool_bytes(g->states) : 0);
    *s = g->count;
    s->kv_bytes = g->backend->kv_bytes(g->b);
    s->draft_bytes = draft_model_bytes(g);
    s->private_bytes = g->backend->memory(g->b) + mine + s->draft_bytes;
    s->n_blocks = kv_pool_size(g->pool);
    s->n_free_blocks = kv_pool_free(g->pool);
    s->n_cached_blocks = kv_pool_idle(g->pool);
    s->n_window_blocks = kv_pool_n_windows(g->pool);
    s->n_free_window_blocks = kv_pool_free_windows(g->pool);
    s->n_cached_window_blocks = kv_pool_idle_windows(g->pool);
    s->evictions = kv_pool_evictions(g->pool);
    if (g->disk) {
        struct disk_stats d;
        disk_stats(g->disk, &d);
        s->disk_read = d.read;
        s->disk_written = d.written;
        s->disk_damaged = d.damaged;
        s->disk_failed = d.failed;
        s->private_bytes += d.bytes;
    }
    s->broken = g->broken;
    s->max_tokens = g->max_tokens;
    engine_count_requests(g, s);
    s->n_late = 0;
    for (int i = 0; i < g->n_running; i++)
        s->n_late += g->running[i]->late != LATE_NOT;
    if (g->m->n_loras)
        count_loras(g, s);
    s->backend = g->backend->describe(g->b);
    s->device = (struct backend_device){ .n_layers = 0 };
    if (g->backend->device)
        g->backend->device(g->b, &s->device);
}

static void drop_block(void *user, int32_t block)
{
    const struct engine *g = user;
    if (g->backend->drop_block)
        g->backend->drop_block(g->b, block);
}

static void drop_state(void *user, int state)
{
    const struct engine *g = user;
    if (g->backend->drop_state)
        g->backend->drop_state(g->b, state);
}

static void block_stored(void *user, uint64_t hash, uint64_t parent, const int32_t *token)
{
    const struct engine *g = user;
    g->watch.stored(g->watch.user, hash, parent, token, g->entering ? g->m->loras[g->entering - 1].name : NULL);
}

static void block_removed(void *user, uint64_t hash)
{
    const struct engine *g = user;
    g->watch.removed(g->watch.user, hash);
}

void engine_watch_blocks(struct engine *g, const struct engine_watch *w)
{
    g->watch = *w;
    kv_pool_watch(g->pool, &(struct kv_watch){ block_stored, block_removed, g });
}

void engine_watch_plan(struct engine *g, void (*planned)(void *user), void *user)
{
    g->planned = planned;
    g->planned_user = user;
}

void engine_trim(struct engine *g)
{
    kv_pool_trim(g->pool, drop_block, g);
    draft_model_trim(g);
    if (g->states)
        state_trim(g->states, g->pool, drop_state, g);
    if (g->watch.stepped)
        g->watch.stepped(g->watch.user);
}

/* A new sequence that is computed in chunks. */
struct sequence_scan {
    const int32_t *ids;
    /* Logits are computed for positions >= from.  exact_until: see batch_item. */
    int n_ids, from, exact_until;
    float *logits;                      /* rows of the next chunk */
    engine_rows rows;                   /* NULL: the rows of all chunks are kept, one after another */
    void *user;
};

static int scan_check(const struct engine *g, const struct sequence_scan *s, struct err *e)
{
    if (g->m->config.embedding.pooling)
        return err_set(e, ERR_UNSUPPORTED, "a model that makes vectors of texts has no logits");
    if (s->n_ids > g->max_len)
        return err_set(e, ERR_LIMIT, "%d tokens, expected at most the context of %d", s->n_ids, g->max_len);
    for (int i = 0; i < s->n_ids; i++)
        if (s->ids[i] < 0 || s->ids[i] >= g->vocab_size)
            return err_set(e, ERR_LIMIT, "token %d is %d, expected 0 to %d", i, (int)s->ids[i], g->vocab_size - 1);
    return 0;
}

/* Compute the n tokens from pos on. */
static int scan_chunk(struct engine *g, struct sequence_scan *s, struct kv_table *kv, int state, int pos, int n,
                      struct err *e)
{
    const int end = pos + n, n_logits = end <= s->from ? 0 : end - (pos > s->from ? pos : s->from);
    kv->n_tokens = pos;
    if (kv_table_windows(kv, g->pool, end) != 0)
        return err_set(e, ERR_LIMIT, "no window blocks are free: requests hold them");
    const struct batch_item item = { .tokens = s->ids + pos, .n_tokens = n, .pos = pos, .table = kv->block,
                                     .window_table = kv->window, .state = state, .n_logits = n_logits,
                                     .exact_until = s->exact_until, .seq_len = s->n_ids };
    if (g->backend->forward(g->b, &(struct batch){ &item, 1 }, s->logits, e) != 0 || engine_check(g, e) != 0)
        return -1;
    if (s->rows)
        return s->rows(s->user, pos, n_logits, s->logits);
    s->logits += (size_t)n_logits * (size_t)g->vocab_size;
    return 0;
}

/* Compute tokens [pos, end), for which kv gets blocks. */
static int scan_range(struct engine *g, struct sequence_scan *s, struct kv_table *kv, int state, int pos, int end,
                      struct err *e)
{
    int rc = 0;
    if (kv_table_reserve(kv, g->pool, end) != 0)
        return err_set(e, ERR_LIMIT, "%d KV blocks are free, %d tokens need %d",
                       kv_pool_free(g->pool) + kv_pool_idle(g->pool), end - pos,
                       (end + KV_BLOCK - 1) / KV_BLOCK - kv->n_blocks);
    for (int n; pos < end && rc == 0; pos += n) {
        n = end - pos < g->max_tokens ? end - pos : g->max_tokens;
        rc = scan_chunk(g, s, kv, state, pos, n, e);
    }
    kv->n_tokens = end;
    return rc;
}

/* Take a recurrent state if the model has one. */
static int scan_state(struct engine *g, int *state, struct err *e)
{
    *state = -1;
    if (g->states && (*state = state_take(g->states, g->pool)) < 0)
        return err_set(e, ERR_LIMIT, "no state is free: requests hold them all");
    return 0;
}

static int scan_sequence(struct engine *g, struct sequence_scan *s, struct err *e)
{
    struct kv_table kv;
    int state;
    if (scan_check(g, s, e) != 0 || kv_table_init(&kv, s->n_ids, e) != 0)
        return -1;
    int rc = scan_state(g, &state, e);
    if (rc == 0)
        rc = scan_range(g, s, &kv, state, 0, s->n_ids, e);
    if (state >= 0)
        state_drop(g->states, state);
    kv_table_release(&kv, g->pool);
    return rc;
}

int engine_logits(struct engine *g, const int32_t *ids, int n_ids, int from, float *logits, struct err *e)
{
    return scan_sequence(g, &(struct sequence_scan){ .ids = ids, .n_ids = n_ids, .from = from, .exact_until = from,
                                                     .logits = logits }, e);
}

int engine_logits_twice(struct engine *g, const int32_t *ids, int n_ids, int from, float *exact, float *paged,
                        struct err *e)
{
    struct sequence_scan s = { .ids = ids, .n_ids = n_ids, .from = from, .exact_until = n_ids, .logits = exact };
    struct kv_table kv = { 0 }, fork = { 0 };
    const int shared = from / KV_BLOCK * KV_BLOCK;
    int state, fork_state = -1;
    if (scan_check(g, &s, e) != 0)
        return -1;
    int rc = scan_state(g, &state, e);
    if (rc == 0)
        rc = scan_state(g, &fork_state, e);
    if (rc == 0 && (kv_table_init(&kv, n_ids, e) != 0 || kv_table_init(&fork, n_ids, e) != 0))
        rc = -1;
    if (rc == 0 && (rc = scan_range(g, &s, &kv, state, 0, shared, e)) == 0) {
        kv_table_share(&fork, g->pool, &kv);
        if (state >= 0 && shared)
            rc = g->backend->copy_state(g->b, state, fork_state, e);
    }
    if (rc == 0)
        rc = scan_range(g, &s, &kv, state, shared, n_ids, e);
    kv_table_release(&kv, g->pool);         /* the fork needs the blocks that kv does not share */
    s.exact_until = from;
    s.logits = paged;
    if (rc == 0)
        rc = scan_range(g, &s, &fork, fork_state, shared, n_ids, e);
    kv_table_release(&fork, g->pool);
    if (fork_state >= 0)
        state_drop(g->states, fork_state);
    if (state >= 0)
        state_drop(g->states, state);
    return rc;
}

int engine_scan(struct engine *g, const int32_t *ids, int n_ids, engine_rows rows, void *user, struct err *e)
{
    struct sequence_scan s = { .ids = ids, .n_ids = n_ids, .rows = rows, .user = user };
    if (!(s.logits = malloc((size_t)g->max_tokens * (size_t)g->vocab_size * sizeof *s.logits)))
        return err_nomem(e, "logits");
    const int rc = scan_sequence(g, &s, e);
    free(s.logits);
    return rc;
}

int long_rope_from(const struct engine *g)
{
    const int from = config_long_from(&g->m->config);
    return g->window && g->window + g->sinks < from ? 0 : from;
}
