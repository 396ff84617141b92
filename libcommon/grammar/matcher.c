/* matcher.c - follow one answer over bytes and tokens.
 *
 * The answer so far is a config of its grammar (parse_config.c).  Configs and masks are numbered
 * and stored in the grammar, under its lock, for all matchers. */
#include <stdlib.h>
#include <string.h>

#include "libcommon/grammar/grow.h"
#include "libcommon/grammar/matcher.h"

enum { MAX_CONFIGS = 1 << 15, FORGET_STEPS = 1 << 22, BURST = 8, SUSTAINED = 16 };
static const size_t max_cache = (size_t)64 << 20;

/* Move m to a config. */
static int stand(struct matcher *m, uint32_t number)
{
    struct grammar *g = m->g;
    const struct parse_config *c = &g->config[number];
    if (grow((void **)&m->thread, &m->room, c->n, sizeof *m->thread) != 0)
        return -1;
    if (c->n)
        memcpy(m->thread, g->thread + c->first, c->n * sizeof *m->thread);
    m->n_threads = c->n;
    m->accepting = c->accepting;
    m->config = number;
    m->generation = g->generation;
    return 0;
}

static void next_call(struct grammar *g)
{
    if (++g->call != 0)
        return;
    for (uint32_t i = 0; i < g->n_configs; i++)         /* the numbers start over */
        g->config[i].call = UINT32_MAX;
    for (uint32_t i = 0; i < g->n_terminals; i++)
        g->terminal[i].call = UINT32_MAX;
}

/* Find the config of m again by its text, because the numbers of expressions changed when the store
 * was truncated. */
static void replay(struct matcher *m)
{
    struct grammar *g = m->g;
    g->n_found = 0;
    g->found_end = g->root_accepting;
    for (uint32_t i = 0; i < g->n_root_threads; i++)
        config_add(g, g->root_thread[i].e, g->root_thread[i].stack);
    uint32_t c = config_intern(g);
    for (size_t i = 0; i < m->n_text && !g->x.failed; i++)
        c = config_step(g, c, m->text[i]);
    if (!g->x.failed && stand(m, c) != 0)
        exprs_fail(&g->x, EXPR_NO_MEMORY);
    if (!g->x.failed)
        m->store = g->store;
}

/* Free all cached results. */
static void shrink(struct grammar *g)
{
    grammar_forget(g);
    free(g->config);
    free(g->thread);
    free(g->terminal);
    g->config = NULL;
    g->thread = NULL;
    g->terminal = NULL;
    g->config_room = g->thread_room = g->terminal_room = 0;
    exprs_cut(&g->x, &g->compiled);
    exprs_shrink(&g->x);
    g->store++;
    grammar_count(g);
    g->least_bytes = grammar_bytes(g);
}

/* Take the lock and start counting.  -1: busy, or m has failed before. */
int matcher_enter(struct matcher *m, uint32_t *config)
{
    struct grammar *g = m->g;
    m->busy = 0;
    if (m->error.msg[0])
        return -1;
    if (m->pause && pthread_mutex_trylock(&g->lock) != 0) {
        m->busy = 1;
        return -1;
    }
    if (!m->pause)
        pthread_mutex_lock(&g->lock);
    const int over = grammar_over_budget(g);
    if (over || g->cache_bytes > max_cache || g->n_configs > MAX_CONFIGS) {
        /* This takes some milliseconds: leave it to a call without a limit of time. */
        if (m->pause && m->pause < FORGET_STEPS) {
            m->busy = 1;
            pthread_mutex_unlock(&g->lock);
            return -1;
        }
        if (over)
            shrink(g);
        else
            grammar_forget(g);
    }
    meter_start(&g->x, g->options.max_steps, m->pause, &m->cancelled);
    next_call(g);
    if (m->store != g->store) {
        replay(m);
        g->x.meter.spent = 0;
        next_call(g);
    } else if (m->generation != g->generation) {
        g->n_found = 0;
        g->found_end = m->accepting;
        for (uint32_t i = 0; i < m->n_threads; i++)
            config_add(g, m->thread[i].e, m->thread[i].stack);
        m->config = config_intern(g);
        m->generation = g->generation - (g->x.failed != 0);
        g->x.meter.spent = 0;
    }
    *config = m->config;
    return 0;
}

/* Steps that this answer may have taken so far. */
static uint64_t allowance(const struct matcher *m)
{
    return m->g->options.max_steps * BURST + m->g->options.max_steps / SUSTAINED * m->n_tokens;
}

/* Release the lock.  A failure is assigned to this matcher, not to the grammar. */
int matcher_leave(struct matcher *m, int *cut)
{
    struct grammar *g = m->g;
    if (g->x.failed == EXPR_TOO_LARGE && !*cut) {
        grammar_forget(g);
        exprs_cut(&g->x, &g->compiled);
        g->store++;
        *cut = 1;
        pthread_mutex_unlock(&g->lock);
        return 1;
    }
    if (g->x.meter.spent > g->options.max_steps && (!g->x.failed || g->x.failed == EXPR_PAUSED))
        g->x.failed = EXPR_TOO_COSTLY;
    const enum expr_failure why = g->x.failed;
    m->busy = why == EXPR_PAUSED;
    if (why && !m->busy)
        exprs_check(&g->x, &m->error);
    if (!why && (m->spent += g->x.meter.spent) > allowance(m))
        err_set(&m->error, ERR_LIMIT, "the grammar is too costly: more than %llu steps after %llu tokens",
                (unsigned long long)allowance(m), (unsigned long long)m->n_tokens);
    g->x.failed = EXPR_OK;
    grammar_count(g);
    pthread_mutex_unlock(&g->lock);
    return m->busy || m->error.msg[0] ? -1 : 0;
}

struct matcher *matcher_open(struct grammar *g, struct err *e)
{
    struct matcher *m = calloc(1, sizeof *m);
    if (!m || (g->v && !(m->mask = calloc(g->v->n_words + 1, sizeof *m->mask)))) {
        free(m);
        err_nomem(e, "a matcher");
        return NULL;
    }
    m->g = g;
    m->room = m->n_threads = g->n_root_threads;
    m->accepting = g->root_accepting;
    if (!(m->thread = malloc((m->n_threads + 1) * sizeof *m->thread))) {
        matcher_close(m);
        err_nomem(e, "a matcher");
        return NULL;
    }
    if (m->n_threads)
        memcpy(m->thread, g->root_thread, m->n_threads * sizeof *m->thread);
    return m;                           /* generation 0: matcher_enter() looks its config up */
}

void matcher_close(struct matcher *m)
{
    if (!m)
        return;
    distinct_release(&m->distinct);
    free(m->thread);
    free(m->text);
    free(m->mask);
    free(m);
}

static int keep_text(struct matcher *m, const unsigned char *bytes, size_t n)
{
    if (m->n_text + n > m->text_room) {
        const size_t room = 2 * m->text_room + n + 64;
        unsigned char *p = realloc(m->text, room);
        if (!p)
            return -1;
        m->text = p;
        m->text_room = room;
    }
    if (n)
        memcpy(m->text + m->n_text, bytes, n);
    m->n_text += n;
    return 0;
}

struct matcher *matcher_fork(const struct matcher *m)
{
    struct matcher *n = malloc(sizeof *n);
    if (!n)
        return NULL;
    *n = *m;
    n->room = m->n_threads;
    n->thread = malloc((m->n_threads + 1) * sizeof *n->thread);
    n->mask = m->mask ? calloc(m->g->v->n_words + 1, sizeof *n->mask) : NULL;
    n->text = NULL;
    n->n_text = n->text_room = 0;
    if (distinct_copy(&n->distinct, &m->distinct) != 0 || !n->thread || keep_text(n, m->text, m->n_text) != 0 ||
        (m->mask && !n->mask)) {
        matcher_close(n);
        return NULL;
    }
    if (m->n_threads)
        memcpy(n->thread, m->thread, m->n_threads * sizeof *n->thread);
    return n;
}

static int is_eos(const struct grammar *g, int32_t id)
{
    for (int i = 0; g->v && i < g->v->n_eos; i++)
        if (g->v->eos[i] == id)
            return 1;
    return 0;
}

const uint32_t *matcher_mask(struct matcher *m)
{
    struct grammar *g = m->g;
    size_t n = g->v->n_words;
    if (m->ended) {
        memset(m->mask, 0, n * sizeof *m->mask);
        for (int i = 0; i < g->v->n_eos; i++)
            mask_set(m->mask, g->v->eos[i]);
        return m->mask;
    }
    uint32_t c = 0;
    int rc, cut = 0;
    do {
        const uint32_t *mask = NULL;
        if ((rc = matcher_enter(m, &c)) != 0)
            break;
        if (!g->x.failed && (mask = config_mask(g, c)))
            memcpy(m->mask, mask, n * sizeof *mask);
        if (mask && m->distinct.n_levels) {
            matcher_clear_repeated(m, c);
            size_t i = 0;
            while (i < n && !m->mask[i])
                i++;
            if (i == n && !g->x.failed)
                err_set(&m->error, ERR_LIMIT, "uniqueItems: every way to go on would repeat an item");
        }
        rc = matcher_leave(m, &cut);
        rc = rc == 0 && !mask ? -1 : rc;
    } while (rc > 0);
    if (rc != 0)
        memset(m->mask, 0, n * sizeof *m->mask);
    return m->mask;
}

int matcher_accept_bytes(struct matcher *m, const void *bytes, size_t n)
{
    const unsigned char *p = bytes;
    if (m->ended)
        return n ? -1 : 0;
    struct distinct next = { 0 };
    uint32_t c;
    int rc, left, cut = 0;
    do {
        distinct_release(&next);
        if (matcher_enter(m, &c) != 0)
            return -1;
        c = matcher_follow_bytes(m, c, p, n, &next);
        const int fits = c && !m->g->x.failed && m->g->x.meter.spent <= m->g->options.max_steps;
        rc = fits ? keep_text(m, p, n) || stand(m, c) ? -1 : 0 : -1;
        if (fits && rc != 0)
            err_nomem(&m->error, "a matcher");
        left = matcher_leave(m, &cut);
    } while (left > 0);
    if (left == 0 && rc == 0) {
        distinct_release(&m->distinct);
        m->distinct = next;
    } else {
        distinct_release(&next);
    }
    return left != 0 ? -1 : rc;
}

int matcher_accept(struct matcher *m, int32_t id)
{
    const struct grammar_vocab *v = m->g->v;
    unsigned char name[VOCAB_NAME];
    size_t n;
    m->busy = 0;
    if (!v || id < 0 || id >= v->size)
        return -1;
    if (is_eos(m->g, id) && (m->ended || m->accepting)) {
        m->ended = 1;
        return 0;
    }
    const char *p = grammar_vocab_bytes(v, id, &n);
    const int rc = p ? matcher_accept_bytes(m, p, n) : vocab_name(v, id, name) == 0
                       ? matcher_accept_bytes(m, name, sizeof name) : -1;
    m->n_tokens += rc == 0;
    return rc;
}

void matcher_hurry(struct matcher *m, uint64_t steps) { m->pause = steps; }
int matcher_busy(const struct matcher *m) { return m->busy; }
void matcher_cancel(struct matcher *m) { atomic_store_explicit(&m->cancelled, 1, memory_order_relaxed); }

int matcher_complete(const struct matcher *m) { return m->ended || m->accepting; }

int matcher_ended(const struct matcher *m) { return m->ended || (m->accepting && m->n_threads == 0); }

int matcher_error(const struct matcher *m, struct err *e)
{
    if (!m->error.msg[0])
        return 0;
    if (e)
        *e = m->error;
    return -1;
}
