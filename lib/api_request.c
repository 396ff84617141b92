/* api_request.c - requests: zse_submit(), the events that the engine's thread reports, and
 * zse_request_free(). */
#include "lib/internal.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/json.h"
#include "libcommon/grammar/constrain.h"

enum { MOST_STOPS = 1024, MOST_RESULT = 4096 };

/* ---- life ---- */

struct zse_request *api_request_new(struct zse_engine *g)
{
    struct zse_request *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    atomic_init(&r->refs, 1);
    r->thread = g->thread;
    r->params.n_logprobs = -1;
    r->params.sampling = g->model->sampling;
    r->params.on_token = api_request_event;
    r->params.user = r;
    pthread_mutex_init(&r->lock, NULL);
    pthread_mutex_init(&r->callback, NULL);
    pthread_cond_init(&r->over, NULL);
    return r;
}

void api_request_unref(struct zse_request *r)
{
    if (atomic_fetch_sub(&r->refs, 1) != 1)
        return;
    if (r->constraint.state)
        r->constraint.close(r->constraint.state);
    api_grammar_unref(r->grammar);
    for (int i = 0; r->stop && i < r->params.n_stop; i++)
        free(r->stop[i]);
    free(r->stop);
    free(r->prompt);
    free(r->text);
    free(r->ids);
    free(r->vector);
    pthread_mutex_destroy(&r->lock);
    pthread_mutex_destroy(&r->callback);
    pthread_cond_destroy(&r->over);
    free(r);
}

int api_request_queue(struct zse_engine *g, struct zse_request *r, struct err *e)
{
    r->params.ids = r->prompt;
    r->params.stop = (const char *const *)r->stop;
    pthread_mutex_lock(&g->lock);
    const int stop = g->stop;
    if (!stop) {
        r->engine = g;
        atomic_fetch_add(&r->refs, 1);
        *g->last = r;
        g->last = &r->next;
        pthread_cond_signal(&g->work);
    }
    pthread_mutex_unlock(&g->lock);
    return stop ? err_set(e, ERR_CANCELLED, "the engine is being closed") : 0;
}

/* ---- options ---- */

static int set_sampling(struct sampling *s, const char *key, const json_t *object, struct err *e)
{
    int64_t whole;
    double v;
    if (strcmp(key, "seed") == 0) {
        if (js_int(object, key, 0, INT64_MAX, &whole, e) != 0)
            return -1;
        s->seed = (uint64_t)whole;
        return 0;
    }
    for (int i = 0; i < N_SAMPLING_OPTIONS; i++) {
        const struct sampling_option *o = &sampling_options[i];
        if (strcmp(o->name, key) != 0)
            continue;
        if (o->is_whole ? js_int(object, key, INT32_MIN, INT32_MAX, &whole, e)
                        : js_real_or(object, key, o->value, &v, e))
            return -1;
        sampling_set(s, o, o->is_whole ? (double)whole : v);
        return 0;
    }
    return err_set(e, ERR_FORMAT, "'%.40s' is no sampling option", key);
}

static int parse_sampling(struct zse_request *r, const struct zse_model *m, const char *text, struct err *e)
{
    const char *key;
    json_t *v, *j = text ? js_parse("sampling", text, strlen(text), e) : NULL;
    int rc = text && !j ? -1 : 0;
    if (!text || !j)
        return rc;
    if (!json_is_object(j))
        rc = err_set(e, ERR_FORMAT, "found %s, expected an object", js_kind(j));
    json_object_foreach(j, key, v)
        if (rc == 0)
            rc = set_sampling(&r->params.sampling, key, j, e);
    json_decref(j);
    if (rc == 0)
        rc = sampling_check(&r->params.sampling, m->model->config.vocab_size, e);
    return rc == 0 ? 0 : err_prefix(e, "sampling");
}

/* Remove the EOS of a tokenizer that ends every text with one: it would end the answer before it
 * begins. */
static void remove_eos(struct zse_request *r, const struct tokenizer *t)
{
    int n;
    const int32_t *eos = tokenizer_eos(t, &n);
    for (int i = 0; i < n && r->params.n_ids > 1; i++)
        if (r->prompt[r->params.n_ids - 1] == eos[i]) {
            r->params.n_ids--;
            return;
        }
}

static int copy_prompt(struct zse_request *r, const struct zse_model *m, const struct zse_request_options *o,
                       struct err *e)
{
    if (!o->n_ids) {
        const unsigned flags = TOKENIZE_PARSE_SPECIAL | (o->add_special ? TOKENIZE_ADD_SPECIAL : 0u);
        if (api_prompt(m, o->prompt, strlen(o->prompt), flags, &r->prompt, &r->params.n_ids, e) != 0)
            return -1;
        if (o->add_special)
            remove_eos(r, m->tokenizer);
        return 0;
    }
    if (o->n_ids > INT32_MAX / 4)
        return err_set(e, ERR_LIMIT, "the prompt has %zu tokens", o->n_ids);
    if (!(r->prompt = malloc(o->n_ids * sizeof *r->prompt)))
        return err_nomem(e, "prompt");
    memcpy(r->prompt, o->ids, o->n_ids * sizeof *r->prompt);
    r->params.n_ids = (int)o->n_ids;
    return 0;
}

static int copy_stops(struct zse_request *r, const struct zse_request_options *o, struct err *e)
{
    if (!(r->stop = calloc((size_t)o->n_stop + 1, sizeof *r->stop)))
        return err_nomem(e, "stop strings");
    for (int i = 0; i < o->n_stop; i++) {
        if (!(r->stop[i] = strdup(o->stop[i])))
            return err_nomem(e, "stop strings");
        r->params.n_stop = i + 1;
    }
    return 0;
}

/* Mistakes of the caller. */
static int check_usage(const struct zse_engine *g, const struct zse_request_options *o, struct zse_error *e)
{
    if ((!o->ids && o->n_ids) || (!o->n_ids && !o->prompt))
        return api_wrong(e, "zse_submit: neither ids nor prompt, expected one of them");
    if (o->n_ids && o->prompt)
        return api_wrong(e, "zse_submit: ids and prompt, expected one of them");
    if (o->n_stop < 0 || o->n_stop > MOST_STOPS || (o->n_stop && !o->stop))
        return api_wrong(e, "zse_submit: n_stop is %d, expected 0 to %d strings", o->n_stop, MOST_STOPS);
    for (int i = 0; i < o->n_stop; i++)
        if (!o->stop[i] || !*o->stop[i])
            return api_wrong(e, "zse_submit: stop string %d is empty", i);
    if (o->grammar && o->grammar->model != g->model)
        return api_wrong(e, "zse_submit: the grammar was made for another model");
    if (!(o->timeout_s >= 0 && o->timeout_s < 1e9))
        return api_wrong(e, "zse_submit: timeout_s is %g, expected 0 to 1e9", o->timeout_s);
    if (o->max_tokens < 0 || o->min_tokens < 0)
        return api_wrong(e, "zse_submit: max_tokens is %d, min_tokens %d, expected 0 or more", o->max_tokens,
                         o->min_tokens);
    if (o->priority < -1000 || o->priority > 1000)
        return api_wrong(e, "zse_submit: priority is %d, expected -1000 to 1000", o->priority);
    if (o->top_logprobs < 0 || o->top_logprobs > MAX_TOP_LOGPROBS || (o->top_logprobs && !o->logprobs))
        return api_wrong(e, "zse_submit: top_logprobs is %d, expected 0 to %d, and logprobs", o->top_logprobs,
                         MAX_TOP_LOGPROBS);
    return 0;
}

static int fill(struct zse_request *r, struct zse_model *m, const struct zse_request_options *o, struct err *e)
{
    struct request_params *p = &r->params;
    if (parse_sampling(r, m, o->sampling, e) != 0 || copy_prompt(r, m, o, e) != 0 || copy_stops(r, o, e) != 0)
        return -1;
    if (o->grammar) {
        if (constrain(&r->constraint, o->grammar->grammar, e) != 0)
            return -1;
        r->grammar = o->grammar;
        atomic_fetch_add(&r->grammar->refs, 1);
    }
    p->max_tokens = o->max_tokens;
    p->min_tokens = o->min_tokens;
    p->ignore_eos = o->ignore_eos;
    p->keep_special = o->keep_special;
    p->priority = o->priority;
    p->n_logprobs = o->logprobs ? o->top_logprobs : -1;
    p->deadline_ns = o->timeout_s > 0 ? clock_ns() + (uint64_t)(o->timeout_s * 1e9) : 0;
    r->on_event = o->on_event;
    r->user = o->user;
    return 0;
}

struct zse_request *zse_submit(struct zse_engine *g, const struct zse_request_options *o, struct zse_error *e)
{
    struct zse_request_options options;
    struct err why;
    if (!g || !o) {
        api_wrong(e, "zse_submit: an argument is NULL");
        return NULL;
    }
    if (api_options(&options, sizeof options, o, "zse_request_options", e) != 0 || check_usage(g, &options, e) != 0)
        return NULL;
    struct zse_request *r = api_request_new(g);
    if (!r)
        err_nomem(&why, "request");
    else if (fill(r, g->model, &options, &why) == 0 && api_request_queue(g, r, &why) == 0)
        return r;
    if (r)
        api_request_unref(r);
    api_fail(e, &why);
    return NULL;
}

/* ---- events, in the engine's thread ---- */

static enum zse_finish public_finish(enum finish f)
{
    static const enum zse_finish names[] = { [FINISH_NONE] = ZSE_FINISH_NONE, [FINISH_STOP] = ZSE_FINISH_STOP,
                                             [FINISH_LENGTH] = ZSE_FINISH_LENGTH,
                                             [FINISH_CANCELLED] = ZSE_FINISH_CANCELLED,
                                             [FINISH_ERROR] = ZSE_FINISH_ERROR, [FINISH_DEADLINE] = ZSE_FINISH_TIMEOUT,
                                             [FINISH_REFUSED] = ZSE_FINISH_ERROR };
    return names[f];
}

/* Append to the answer; -1: out of memory. */
static int keep(struct zse_request *r, const struct token_event *t)
{
    if (t->id >= 0 && r->n_ids == r->ids_room) {
        const size_t room = 2 * r->ids_room + 64;
        int32_t *p = realloc(r->ids, room * sizeof *p);
        if (!p)
            return -1;
        r->ids = p;
        r->ids_room = room;
    }
    if (t->id >= 0)
        r->ids[r->n_ids++] = t->id;
    if (!r->text || t->size > r->text_room - r->text_size) {
        const size_t room = 2 * r->text_room + t->size + 256;
        char *p = realloc(r->text, room + 1);
        if (!p)
            return -1;
        r->text = p;
        r->text_room = room;
    }
    if (t->size)
        memcpy(r->text + r->text_size, t->text, t->size);
    r->text_size += t->size;
    r->text[r->text_size] = '\0';
    if (t->n_embedding) {
        if (!(r->vector = malloc((size_t)t->n_embedding * sizeof *r->vector)))
            return -1;
        memcpy(r->vector, t->embedding, (size_t)t->n_embedding * sizeof *r->vector);
    }
    return 0;
}

/* Call on_event.  Not 0: the callback cancels the request. */
static int tell(struct zse_request *r, const struct token_event *t)
{
    struct zse_logprob top[MAX_TOP_LOGPROBS];
    struct zse_error error;
    struct zse_event ev = { .size = sizeof ev, .id = t->id, .finish = r->finish, .text = t->size ? t->text : "",
                            .text_size = t->size,
                            .logprob = t->logprob, .top = top, .n_top = t->n_top };
    int leave = 0;
    for (int i = 0; i < t->n_top; i++)
        top[i] = (struct zse_logprob){ t->top[i].id, t->top[i].logprob };
    if (r->finish == ZSE_FINISH_ERROR) {
        api_fail(&error, &r->error);
        ev.error = &error;
    }
    pthread_mutex_lock(&r->callback);
    if (r->on_event && !atomic_load(&r->silent))
        leave = r->on_event(r->user, &ev);
    pthread_mutex_unlock(&r->callback);
    return leave;
}

static void end(struct zse_request *r)
{
    struct zse_engine *g = r->engine;
    if ((*r->link = r->next))
        r->next->link = r->link;
    r->next = g->ended;
    g->ended = r;
    request_stats(r->request, &r->stats);
    r->request = NULL;
}

void api_request_event(void *user, const struct token_event *t)
{
    struct zse_request *r = user;
    const int last = t->finish != FINISH_NONE;
    r->finish = public_finish(t->finish);
    if (t->error)
        r->error = *t->error;
    if (keep(r, t) != 0)
        err_nomem(&r->error, "answer");
    if (last && r->error.code != ERR_NONE)
        r->finish = ZSE_FINISH_ERROR;
    const int leave = tell(r, t) != 0 || r->error.code != ERR_NONE;
    if (last) {
        end(r);
    } else if (leave && !r->cancel_sent) {
        r->cancel_sent = 1;
        engine_cancel(r->engine->engine, r->request);
    }
}

void api_request_refuse(struct zse_request *r, enum zse_finish finish, const struct err *e)
{
    r->finish = finish;
    if (e)
        r->error = *e;
    tell(r, &(struct token_event){ .id = -1 });
    api_request_end(r);
}

void api_request_end(struct zse_request *r)
{
    pthread_mutex_lock(&r->lock);
    r->engine = NULL;
    pthread_cond_broadcast(&r->over);
    pthread_mutex_unlock(&r->lock);
    api_request_unref(r);
}

/* ---- from any thread ---- */

int zse_wait(struct zse_request *r, struct zse_result *result, struct zse_error *e)
{
    if (!r)
        return api_wrong(e, "zse_wait: the request is NULL");
    const size_t size = result ? result->size : 0;
    if (result && (size <= sizeof size || size > MOST_RESULT))
        return api_wrong(e, "zse_result: size is %zu, expected sizeof the struct", size);
    pthread_mutex_lock(&r->lock);
    const int waits = r->engine && pthread_equal(pthread_self(), r->thread);
    while (r->engine && !waits)
        pthread_cond_wait(&r->over, &r->lock);
    pthread_mutex_unlock(&r->lock);
    if (waits)
        return api_wrong(e, "zse_wait: called by a callback of the same engine");
    const struct zse_result all = { .size = size, .finish = r->finish, .text = r->text ? r->text : "",
                               .text_size = r->text_size, .ids = r->ids, .n_ids = r->n_ids,
                               .n_prompt = r->stats.n_prompt, .n_cached = r->stats.n_cached,
                               .queue_s = r->stats.queue_s, .prefill_s = r->stats.prefill_s,
                               .decode_s = r->stats.decode_s };
    if (result) {
        memset(result, 0, size);
        memcpy(result, &all, size < sizeof all ? size : sizeof all);
    }
    return r->finish == ZSE_FINISH_ERROR ? api_fail(e, &r->error) : 0;
}

void zse_cancel(struct zse_request *r)
{
    if (!r)
        return;
    pthread_mutex_lock(&r->lock);
    if (r->engine) {
        pthread_mutex_lock(&r->engine->lock);
        r->is_cancelled = r->engine->cancels = 1;
        pthread_cond_signal(&r->engine->work);
        pthread_mutex_unlock(&r->engine->lock);
    }
    pthread_mutex_unlock(&r->lock);
}

void zse_request_free(struct zse_request *r)
{
    if (!r)
        return;
    zse_cancel(r);
    /* the engine's thread may be inside of this request's callback, which holds the lock */
    const int inside = pthread_equal(pthread_self(), r->thread);
    if (!inside)
        pthread_mutex_lock(&r->callback);
    atomic_store(&r->silent, 1);
    if (!inside)
        pthread_mutex_unlock(&r->callback);
    api_request_unref(r);
}
