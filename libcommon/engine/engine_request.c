/* engine_request.c - the life of a request: from engine_submit to the last callback. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/plural.h"
#include "libcommon/base/siphash.h"
#include "libcommon/engine/internal.h"
#include "libcommon/model/lora.h"

/* ---- submit ---- */

static int range(const char *name, int64_t v, int64_t min, int64_t max, struct err *e)
{
    if (v >= min && v <= max)
        return 0;
    return err_set(e, ERR_LIMIT, "%s is %lld, expected %lld to %lld", name, (long long)v, (long long)min,
                   (long long)max);
}

static int n_answers(const struct request_params *p) { return p->n ? p->n : 1; }

static int check_params(const struct engine *g, const struct request_params *p, struct err *e)
{
    if (p->n_ids < 1)
        return err_set(e, ERR_LIMIT, "the prompt is empty, expected at least 1 token");
    if (p->embed ? p->n_ids > g->max_len : p->n_ids >= g->max_len)
        return err_set(e, ERR_LIMIT, "the prompt has %d tokens: with a context of %d %s", p->n_ids, g->max_len,
                       p->embed ? "they have no room" : "no room is left for an answer");
    for (int i = 0; i < p->n_ids; i++)
        if (p->ids[i] < 0 || p->ids[i] >= g->vocab_size)
            return err_set(e, ERR_LIMIT, "token %d of the prompt is %d, expected 0 to %d", i, (int)p->ids[i],
                           g->vocab_size - 1);
    if (range("max_tokens", p->max_tokens, 0, INT32_MAX, e) ||
        range("logprobs", p->n_logprobs, -1, MAX_TOP_LOGPROBS, e) ||
        range("min_tokens", p->min_tokens, 0, INT32_MAX, e) ||
        range("stop ids", p->n_stop_ids, 0, MAX_STOP_IDS, e) ||
        range("priority", p->priority, -MAX_PRIORITY, MAX_PRIORITY, e) || range("n", p->n, 0, 1024, e) ||
        range("the number of a LoRA adapter", p->lora, 0, g->m->n_loras, e) ||
        range("tokens of a draft", p->draft.most, 0, DRAFT_MOST, e) ||
        range("predicted tokens", p->draft.n_predicted, 0, INT32_MAX / 4, e))
        return -1;
    for (int i = 0; i < p->n_stop_ids; i++)
        if (range("a stop id", p->stop_ids[i], 0, g->vocab_size - 1, e) != 0)
            return -1;
    if (p->lora && !g->m->loras[p->lora - 1].name)
        return err_set(e, ERR_UNSUPPORTED, "LoRA adapter %d was removed", p->lora);
    if (p->prompt_logprobs && p->n_logprobs < 0)
        return err_set(e, ERR_UNSUPPORTED, "logprobs of the prompt without logprobs of the answer");
    if (p->draft.use == DRAFT_MODEL && !g->draft_model)
        return err_set(e, ERR_UNSUPPORTED, "drafts of a draft model, and the engine has none");
    if (g->m->config.embedding.pooling && !p->embed)
        return err_set(e, ERR_UNSUPPORTED, "a model that makes vectors of texts cannot answer");
    if (p->embed && (p->n > 1 || p->constraint || p->n_logprobs >= 0))
        return err_set(e, ERR_UNSUPPORTED, "embeddings have no answer: expected no n, no constraint and no logprobs");
    if (p->constraint && p->n > 1 && !p->constraint->fork)
        return err_set(e, ERR_UNSUPPORTED, "%d answers under a constraint that cannot be forked", p->n);
    return 0;
}

/* Check that the queue has space for n requests; if not, refuse requests of other tenants.  -1:
 * there is no space. */
static int check_queue(struct engine *g, const struct tenant_queue *s, int n, struct err *e)
{
    const int room = g->limits.max_waiting + g->limits.max_running - g->n_running - g->n_waiting - g->n_pending;
    if (!g->limits.max_waiting || n <= room || tenant_make_room(g, s, n, n - room))
        return 0;
    return err_set(e, ERR_LIMIT, "%d request%s %s waiting, expected at most %d", g->n_waiting + g->n_pending,
                   plural(g->n_waiting + g->n_pending), plural_are(g->n_waiting + g->n_pending), g->limits.max_waiting);
}

static void find_stop_ids(const struct engine *g, struct request *r, const struct request_params *p)
{
    for (int i = 0; i < p->n_stop; i++) {
        int32_t id = tokenizer_find(g->t, p->stop[i], strlen(p->stop[i]));
        r->stop_ids[r->n_stop_ids++] = id >= 0 && tokenizer_is_special(g->t, id) ? id : -1;
    }
}

/* Returns the scope within which a request shares prefixes.  Adapters change keys and values, so
 * with an adapter it is a mix of the request's scope and of a hash of the adapter's files.  (The
 * adapter's number would not do, as it depends on the order of loading.) */
static uint64_t prefix_scope(const struct engine *g, const struct request_params *p)
{
    if (!p->lora)
        return p->scope;
    const uint64_t key[2] = { 0x4c6f5241, p->scope }, scope = siphash(key, &g->m->loras[p->lora - 1].key, sizeof scope);
    return scope ? scope : 1;
}

/* Make the i-th of the n requests, not linked anywhere and without its constraint. */
static struct request *make_request(struct engine *g, struct tenant_queue *s, const struct request_params *p, int i,
                                    struct err *e)
{
    struct sampling sampling = p->sampling;
    struct request *r = calloc(1, sizeof *r);
    if (!r) {
        err_nomem(e, "request");
        return NULL;
    }
    r->tenant = s;
    s->n++;
    const int room = p->embed ? 0 : g->max_len - p->n_ids, hidden = g->m->config.hidden_size;
    r->n_ids = r->n_prompt = p->n_ids;
    r->limit = p->n_ids + (p->max_tokens && p->max_tokens < room ? p->max_tokens : room);
    r->at[BY_TURN] = r->at[BY_DEADLINE] = r->slot = r->draft.spare = -1;
    r->ignore_eos = p->ignore_eos;
    r->min_tokens = p->min_tokens;
    r->priority = p->priority;
    r->n_logprobs = p->n_logprobs;
    r->prompt_logprobs = p->prompt_logprobs;
    r->embed = p->embed;
    r->second = p->second;
    r->scope = prefix_scope(g, p);
    r->lora = p->lora;
    r->on_token = p->on_token;
    r->reported = p->reported;
    r->user = p->users ? p->users[i] : p->user;
    r->order = ++g->orders;
    r->submitted_ns = clock_ns();
    r->key[BY_TURN] = (int64_t)r->submitted_ns - r->priority * (int64_t)AGEING_S * 1000000000;
    r->key[BY_DEADLINE] = (int64_t)p->deadline_ns;
    r->ids = malloc((size_t)r->limit * sizeof *r->ids);
    r->stop_ids = malloc(((size_t)p->n_stop + 1) * sizeof *r->stop_ids);
    r->end_ids = malloc(((size_t)p->n_stop_ids + 1) * sizeof *r->end_ids);
    if (!r->ids || !r->stop_ids || !r->end_ids ||
        (p->embed && !(r->pooled = calloc((size_t)hidden, sizeof *r->pooled)))) {
        err_nomem(e, "request");
        goto fail;
    }
    memcpy(r->ids, p->ids, (size_t)p->n_ids * sizeof *r->ids);
    if ((r->n_end_ids = p->n_stop_ids))
        memcpy(r->end_ids, p->stop_ids, (size_t)p->n_stop_ids * sizeof *r->end_ids);
    sampling.seed = p->seeds ? p->seeds[i] : sampling.seed + (uint64_t)i;
    if (kv_table_init(&r->kv, g->max_len, e) != 0 ||
        answer_text_init(&r->text, g->t, p->keep_special, p->stop, p->n_stop, e) != 0 ||
        !(r->sampler = sampler_open(&sampling, g->vocab_size, r->limit, g->scratch, e)) ||
        (!p->embed && draft_init(g, r, &p->draft, e) != 0))
        goto fail;
    find_stop_ids(g, r, p);
    const int long_from = long_rope_from(g);
    if (kv_table_scope(&r->kv, g->pool, r->scope, e) < 0)
        goto fail;
    r->kv.root += long_from && r->n_ids >= long_from;
    for (int j = 0; j < r->n_prompt; j++)
        sampler_accept(r->sampler, r->ids[j], 0);
    return r;
fail:
    request_free(g, r);
    return NULL;
}

void request_free(struct engine *g, struct request *r)
{
    while (r->siblings) {               /* siblings are left only when the engine closes */
        struct request *s = r->siblings;
        r->siblings = s->next_sibling;
        request_free(g, s);
    }
    if (r->constrained)
        masks_forget(g, r);
    free(r->late_logits);
    if (r->slot >= 0)
        state_drop(g->states, r->slot);
    kv_table_release(&r->kv, g->pool);
    draft_model_free(g, r);
    answer_text_release(&r->text);
    sampler_close(r->sampler);
    draft_release(r);
    if (r->constrained)
        r->constraint.close(r->constraint.state);
    free(r->pooled);
    free(r->stop_ids);
    free(r->end_ids);
    free(r->ids);
    r->tenant->n--;
    tenant_put(g, r->tenant);
    free(r);
}

/* Grow the queues, and the buffers that only some requests need. */
static int make_room(struct engine *g, struct tenant_queue *s, const struct request_params *p, struct err *e)
{
    const int n = g->n_waiting + g->n_running + g->n_pending + n_answers(p);
    if (queue_reserve(&s->waiting, s->n + n_answers(p)) != 0 || queue_reserve(&g->deadlines, n) != 0)
        return err_nomem(e, "queue");
    if (p->prompt_logprobs)
        g->n_rows = g->max_seqs + PROMPT_ROWS;
    if (p->embed && !g->hidden && !(g->hidden = malloc((size_t)g->max_tokens * (size_t)g->m->config.hidden_size *
                                                       sizeof *g->hidden)))
        return err_nomem(e, "hidden states");
    if (p->embed && !g->dense && !(g->dense = malloc(embed_work(&g->m->config) * sizeof *g->dense)))
        return err_nomem(e, "dense layers");
    return 0;
}

/* Link the request into the queue of its tenant. */
static struct request *enter(struct engine *g, struct tenant_queue *s, const struct request_params *p, struct err *e)
{
    const int n = n_answers(p);
    struct request *first = NULL, **link = &first;
    if (check_queue(g, s, n, e) != 0 || make_room(g, s, p, e) != 0)
        return NULL;
    for (int i = 0; i < n; i++) {
        struct request *r = make_request(g, s, p, i, e);
        if (!r)
            goto fail;
        *link = r;
        link = i == 0 ? &first->siblings : &r->next_sibling;
        r->leader = i ? first : NULL;
        if (i && p->constraint) {
            r->constraint = *p->constraint;
            if (!(r->constraint.state = p->constraint->fork(p->constraint->state))) {
                err_nomem(e, "constraint");
                goto fail;
            }
            r->constrained = 1;
        }
    }
    if (p->constraint) {
        first->constraint = *p->constraint;
        first->constrained = 1;
    }
    wait_add(g, first);
    int i = 0;
    for (struct request *r = first; r; r = r == first ? first->siblings : r->next_sibling, i++) {
        if (p->deadline_ns)
            queue_add(&g->deadlines, r);
        if (p->requests)
            p->requests[i] = r;
    }
    g->n_pending += n - 1;
    g->count.requests += (uint64_t)n;
    return first;
fail:
    if (first)
        request_free(g, first);
    return NULL;
}

struct request *engine_submit(struct engine *g, const struct request_params *p, struct err *e)
{
    if (engine_check(g, e) != 0 || check_params(g, p, e) != 0)
        return NULL;
    struct tenant_queue *s = tenant_get(g, p->tenant);
    if (!s) {
        err_nomem(e, "request");
        return NULL;
    }
    s->held++;
    struct request *r = enter(g, s, p, e);
    s->held--;
    tenant_put(g, s);
    return r;
}

/* ---- ending a request ---- */

void request_release(struct engine *g, struct request *r, int enter)
{
    enter = enter && enters_prefixes(g, r);
    /* Only tokens up to the limit become a prefix.  The recurrent state is the one after all
     * tokens, so it is kept only if no token is cut off. */
    const int cut = enter && r->kv.n_tokens > prefix_limit(g, r);
    if (cut)
        r->kv.n_tokens = prefix_limit(g, r);
    if (enter)
        prefix_enter(&r->kv, g->pool, r->ids, 1);
    const int32_t end = enter && !cut ? prefix_end(&r->kv, g->pool) : -1;
    if (enter && !(cut && g->states))
        prefixes_save_end(g, r);
    if (r->slot >= 0 && end >= 0)
        state_keep(g->states, g->pool, end, r->slot);
    else if (r->slot >= 0)
        state_drop(g->states, r->slot);
    r->slot = -1;
    draft_drop(g, r);
    draft_model_release(g, r);
    kv_table_truncate(&r->kv, g->pool, 0);
    if (!r->first_ns)
        r->n_cached = 0;
    if (r->pooled)
        memset(r->pooled, 0, (size_t)g->m->config.hidden_size * sizeof *r->pooled);
    g->n_holding -= r->holds;
    r->holds = 0;
}

void engine_cancel(struct engine *g, struct request *r)
{
    if (r->cancelled)
        return;
    r->cancelled = 1;
    r->next_cancelled = g->cancelled;
    g->cancelled = r;
    if (r->constrained && r->constraint.cancel)
        r->constraint.cancel(r->constraint.state);
    request_release(g, r, 1);
}

static void unlink_request(struct engine *g, struct request *r)
{
    if (r->at[BY_DEADLINE] >= 0)
        queue_remove(&g->deadlines, r);
    if (r->state == WAITING) {
        wait_remove(g, r);
    } else if (r->state == RUNNING) {
        int i = 0;
        while (g->running[i] != r)
            i++;
        g->n_running--;
        r->tenant->n_running--;
        memmove(&g->running[i], &g->running[i + 1], (size_t)(g->n_running - i) * sizeof *g->running);
    } else {
        struct request **link = &r->leader->siblings;
        while (*link != r)
            link = &(*link)->next_sibling;
        *link = r->next_sibling;
        g->n_pending--;
    }
}

/* r ends before its prompt is computed: make its first sibling continue in its place. */
static void hand_over(struct engine *g, struct request *r)
{
    struct request *heir = r->siblings;
    if (!heir)
        return;
    heir->siblings = heir->next_sibling;
    for (struct request *s = heir->siblings; s; s = s->next_sibling)
        s->leader = heir;
    heir->n_reported = r->n_reported;
    heir->leader = r->siblings = NULL;
    g->n_pending--;
    wait_add(g, heir);
}

void request_finish(struct engine *g, struct request *r, const struct token_event *ev)
{
    unlink_request(g, r);
    hand_over(g, r);
    request_release(g, r, ev->finish != FINISH_ERROR);
    lookahead_forget(g, r);
    *(ev->finish == FINISH_STOP || ev->finish == FINISH_LENGTH ? &g->count.finished : ev->finish == FINISH_ERROR ||
      ev->finish == FINISH_REFUSED ? &g->count.failed : &g->count.cancelled) += 1;
    if (r->cancelled) {                 /* it may be in the list of cancelled requests */
        struct request **link = &g->cancelled;
        while (*link && *link != r)
            link = &(*link)->next_cancelled;
        if (*link)
            *link = r->next_cancelled;
    }
    r->cancelled = 1;                   /* so that engine_cancel() in the callback does nothing */
    if (r->on_token)
        r->on_token(r->user, ev);
    request_free(g, r);
}

void request_finish_early(struct engine *g, struct request *r, enum finish why, const struct err *error)
{
    struct token_event ev = { .id = -1, .text = "", .finish = why, .error = error };
    int stopped;
    struct err ignored;
    if (answer_text_push(&r->text, -1, 1, &ev.text, &ev.size, &stopped, &ignored) != 0)
        ev.size = 0;
    request_finish(g, r, &ev);
}

void requests_sweep(struct engine *g, uint64_t now)
{
    for (;;) {
        if (g->cancelled)
            request_finish_early(g, g->cancelled, FINISH_CANCELLED, NULL);
        else if (g->deadlines.n && (uint64_t)g->deadlines.r[0]->key[BY_DEADLINE] <= now)
            request_finish_early(g, g->deadlines.r[0], FINISH_DEADLINE, NULL);
        else
            return;
    }
}

/* ---- figures ---- */

void request_stats(const struct request *r, struct request_stats *s)
{
    *s = (struct request_stats){ .n_prompt = r->n_prompt, .n_cached = r->n_cached,
                                 .n_generated = r->n_ids - r->n_prompt, .n_drafted = r->draft.drafted,
                                 .n_accepted = r->draft.accepted,
                                 .n_predicted_right = r->draft.accepted_predicted,
                                 .n_predicted_wrong = r->draft.drafted_predicted - r->draft.accepted_predicted };
    if (r->started_ns)
        s->queue_s = (double)(r->started_ns - r->submitted_ns) * 1e-9;
    if (r->first_ns) {
        s->prefill_s = (double)(r->first_ns - r->started_ns) * 1e-9;
        s->decode_s = (double)(r->last_ns - r->first_ns) * 1e-9;
        s->first_token_s = (double)(r->first_ns - r->submitted_ns) * 1e-9;
    }
}
