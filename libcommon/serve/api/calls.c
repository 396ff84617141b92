/* calls.c - the life of a call: its stages, its jobs for the engine, its end. */
#include "libcommon/serve/api/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/json.h"
#include "libcommon/serve/tools/toolbox.h"

const char *call_model(const struct call *c)
{
    return c->lora ? c->lm->adapters[c->lora - 1].name : c->lm->id;
}

static int stop_waiting(struct call *c);

/* ---- freeing ---- */

/* Free the prompts, answers and jobs of a round. */
static void free_round(struct call *c)
{
    for (int i = 0; i < c->n_prompts; i++) {
        free(c->prompts[i].ids);
        free(c->prompts[i].text);
    }
    for (int i = 0; c->choices && i < c->n_choices; i++) {
        struct choice *ch = &c->choices[i];
        buf_release(&ch->text);
        choice_release(ch);
        buf_release(&ch->logprobs);
        buf_release(&ch->values);
        buf_release(&ch->tops);
        buf_release(&ch->offsets);
        free(ch->embedding);
    }
    free(c->prompts);
    free(c->choices);
    free(c->jobs);
    c->prompts = NULL;
    c->choices = NULL;
    c->jobs = NULL;
    c->n_prompts = c->n_choices = 0;
}

void call_destroy(struct call *c)
{
    free_round(c);
    conversation_release(&c->conversation);
    free(c->bias);
    free(c->stop_ids);
    free(c->predicted);
    buf_release(&c->body);
    buf_release(&c->head);
    buf_release(&c->line);
    buf_release(&c->more);
    buf_release(&c->previous);
    buf_release(&c->kept);
    buf_release(&c->echo);
    json_decref(c->json);
    json_decref(c->unknown);
    json_decref(c->documents);
    hold_release(&c->hold);
    free(c);
}

struct access_record *call_record(const struct call *c)
{
    return c->record ? c->record : c->conn ? conn_record(c->conn) : NULL;
}

void call_charge(const struct call *c, int *prompt, int *completion)
{
    struct token_counts t;
    call_totals(c, &t);
    *prompt = t.prompt;
    *completion = t.completion;
    if (!c->submitted || (c->problem.status && !c->first_ns))
        *prompt = *completion = 0;
}

/* Finish the access record of a call that owns one: for a WebSocket's message, or after the client
 * has disconnected.  In all other cases the connection finishes it. */
static void end_record(struct call *c)
{
    int prompt, completion;
    call_charge(c, &prompt, &completion);
    record_end(c->s, c->record, c->status ? c->status : 499, prompt, completion);
    c->record = NULL;
}

void call_free(struct call *c)
{
    end_record(c);                               /* the record still exists if the server closes before the call ends */
    for (int i = 0; i < c->n_prompts; i++)
        if (c->prompts[i].constraint.state)
            c->prompts[i].constraint.close(c->prompts[i].constraint.state);
    rounds_close(c);
    if (c->lm) {
        if (c->prev)
            c->prev->next = c->next;
        else
            c->lm->calls = c->next;
        if (c->next)
            c->next->prev = c->prev;
        c->lm->n_calls--;
        adapters_release(c->lm, c->lora);
        c->lm->used_ns = clock_ns();
        grammars_release(c->grammar);           /* release it before its model may be closed */
        c->grammar = NULL;
    }
    if (prepare_free(c) != 0)
        call_destroy(c);
}

void calls_drop(struct loaded_model *lm)
{
    while (lm->calls)
        call_free(lm->calls);
}

/* ---- the end ---- */

/* Count an ended call in the metrics. */
static void count_call(struct call *c)
{
    struct recent_call r = { .route = c->route, .status = c->status };
    struct timespec now;
    struct token_counts t;
    double decode_s = 0;
    call_totals(c, &t);
    r.prompt_tokens = t.prompt;
    r.completion_tokens = t.completion;
    clock_gettime(CLOCK_REALTIME, &now);
    r.at = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
    r.latency_s = (double)(clock_ns() - c->start_ns) * 1e-9;
    r.first_token_s = c->first_ns ? (double)(c->first_ns - c->start_ns) * 1e-9 : 0;
    snprintf(r.id, sizeof r.id, "%s", c->id);
    snprintf(r.model, sizeof r.model, "%s", c->lm ? call_model(c) : "");
    snprintf(r.user, sizeof r.user, "%s", c->params.user ? c->params.user : "");
    snprintf(r.client, sizeof r.client, "%s", c->client);
    for (int i = 0; i < c->n_choices; i++)
        decode_s += c->choices[i].stats.decode_s;
    if (c->lm) {
        struct model_metrics *m = &c->lm->metrics;
        m->requests++;
        m->prompt_tokens += (uint64_t)r.prompt_tokens;
        m->cached_tokens += (uint64_t)t.cached;
        histogram_add(&m->duration, r.latency_s);
    }
    metrics_call_ended(&c->s->metrics, &r, decode_s);
}

void call_conclude(struct call *c)
{
    if (rounds_continue(c))
        return;
    if (c->conn) {
        if (c->problem.status)
            c->form->fail(c, &c->problem);
        else
            c->form->end(c);
        c->status = c->problem.status ? c->problem.status : 200;
        if (c->conn)
            conn_set_exchange(c->conn, NULL);
    } else {
        c->status = 499;                        /* nginx's status for a client that closed the connection */
    }
    if (c->form->event)
        count_call(c);
    end_record(c);
    call_free(c);
}

int call_is_over(const struct call *c)
{
    for (int i = 0; i < c->n_choices; i++)
        if (!c->choices[i].ended || (c->choices[i].cancel_sent && !c->choices[i].cancel_done))
            return 0;
    return 1;
}

/* End the answers that were never submitted to the engine. */
static void drop_unsent(struct call *c)
{
    for (; c->submitted && c->n_sent < c->n_choices; c->n_sent++) {
        c->choices[c->n_sent].ended = 1;
        c->n_open--;
    }
}

void call_cancel(struct call *c)
{
    if (rounds_waiting(c)) {
        c->rounds->cancelled = 1;
        batch_cancel(c->rounds->batch);
    }
    drop_unsent(c);
    for (int i = 0; c->submitted && i < c->n_sent; i++) {
        struct choice *ch = &c->choices[i];
        if (!ch->ended && !ch->cancel_sent && worker_cancel(c->lm->worker, ch->job) == 0)
            ch->cancel_sent = 1;
    }
}

void calls_cancel(struct loaded_model *lm)
{
    for (struct call *c = lm->calls; c; c = c->next)
        call_cancel(c);
}

void call_gone(struct call *c, struct conn *client)
{
    if (!c->record && !conn_is_websocket(client)) {
        c->record = conn_record(client);
        conn_set_record(client, NULL);
    }
    c->conn = NULL;
    atomic_store(&c->cancelled, 1);
    call_cancel(c);
    if (c->stage == STAGE_DOCUMENTS)
        rag_cancel(c->s, c);
    prepare_withdraw(c);
    if (rounds_waiting(c) || stop_waiting(c))
        call_conclude(c);
}

void calls_give_up(struct loaded_model *lm, uint64_t before_ns)
{
    struct problem pr;
    problem_set(&pr, 503, NULL, "model_unavailable", "the model %.80s does not answer", lm->id);
    for (struct call *c = lm->calls; c; c = c->next) {
        if (c->start_ns > before_ns)
            continue;
        if (c->conn) {
            c->form->fail(c, &pr);
            c->status = pr.status;
            if (c->conn)
                conn_set_exchange(c->conn, NULL);
            c->conn = NULL;
        }
        end_record(c);
    }
}

static void refuse(struct call *c, const struct problem *p)
{
    c->problem = *p;
    call_conclude(c);
}

/* ---- to the engine ---- */

int call_is_stream(const struct call *c) { return c->params.stream; }

static int make_choices(struct call *c, struct problem *pr)
{
    const int embed = call_embeds(c), n = embed ? 1 : c->params.n;
    if (!embed && c->n_prompts * n > MAX_CHOICES)
        return problem_set(pr, 400, "n", "out_of_range", "n: %d answers to %d prompts, expected at most %d together", n,
                           c->n_prompts, MAX_CHOICES);
    if (call_keep_answers(c, n, pr) != 0)
        return -1;
    c->n_choices = c->n_prompts * n;
    c->choices = calloc((size_t)c->n_choices, sizeof *c->choices);
    c->jobs = calloc((size_t)c->n_choices, sizeof *c->jobs);
    if (!c->choices || !c->jobs) {
        c->n_choices = 0;
        return problem_nomem(pr);
    }
    for (int i = 0; i < c->n_choices; i++) {
        struct choice *ch = &c->choices[i];
        ch->call = c;
        ch->job = &c->jobs[i];
        ch->job->user = ch;
        ch->index = i;
        ch->said_role = c->rounds && c->rounds->said_role;
        ch->prompt = i / n;
        ch->split.state = c->starts_thinking ? SPLIT_REASONING
                          : c->lm->thinks && !c->conversation.continues ? SPLIT_UNDECIDED : SPLIT_ANSWER;
        if (c->form->delta && conversation_open_parser(ch) != 0)
            return problem_nomem(pr);
    }
    return 0;
}

/* Reserve tokens of the prompts and answers from the key's limits.  An answer without max_tokens
 * gets the rest of the limits, at least LEAST_ANSWER. */
static int reserve_tokens(struct call *c, struct problem *pr)
{
    enum { LEAST_ANSWER = 16 };
    const int embed = call_embeds(c), open_end = !embed && c->form->body != BODY_COMPLETION &&
        c->max_tokens == 0;
    const int64_t n = embed ? 1 : c->params.n;
    int64_t prompts = 0, least = 0, most = 0, granted;
    for (int i = 0; i < c->n_prompts; i++) {
        const int64_t room = embed ? 0 : c->lm->m.max_len - c->prompts[i].n_ids,
                      asked = c->max_tokens ? c->max_tokens : open_end ? room : 1;
        const int64_t answer = asked < room ? asked : room;
        prompts += c->prompts[i].n_ids;
        most += n * answer;
        least += n * (open_end && answer > LEAST_ANSWER ? LEAST_ANSWER : answer);
    }
    struct conn *conn = c->conn && !conn_is_websocket(c->conn) ? c->conn : NULL;
    if (guard_reserve(c->s, conn, call_record(c), prompts + least, prompts + most, &granted, pr) != 0)
        return -1;
    if (open_end && granted < prompts + most) {
        const int64_t each = (granted - prompts) / (n * c->n_prompts);
        c->max_tokens = each > 1 ? (int)each : 1;
    }
    return 0;
}

/* List in a response header the schema keywords of functions that are not strict and that the
 * grammar does not enforce. */
static void show_relaxed(const struct call *c)
{
    const char *relaxed = c->grammar ? grammar_relaxed(shared_grammar(c->grammar)) : NULL;
    if (relaxed && c->conn && !conn_is_websocket(c->conn))
        conn_set_header(c->conn, "X-Not-Enforced", relaxed);
}

/* List in a response header the members of the body that were ignored. */
static void show_ignored(const struct call *c)
{
    if (*c->params.ignored.list && c->conn && conn_status(c->conn) == 0)
        conn_set_header(c->conn, "X-Ignored-Fields", c->params.ignored.list);
}

static enum embed pooling_of(const struct call *c)
{
    const struct config *config = &c->lm->m.model->config;
    /* a language model's score is computed from the state that predicts its next token */
    const int scores = (c->form->body & (BODY_RERANK | BODY_SCORE)) != 0;
    return scores && !config->embedding.pooling ? EMBED_STATE : config_pooling(config);
}

/* The parameters that all requests of this call to the engine share; ids and constraint differ. */
static struct request_params engine_request(struct call *c)
{
    const struct params *p = &c->params;
    const int embed = call_embeds(c);
    /* a completion with max_tokens 0 returns only the prompt; completions.c hides the one token
     * that the engine generates */
    const int prompt_only = c->form->body == BODY_COMPLETION && p->given & GIVEN_MAX_TOKENS;
    struct request_params rp = { .sampling = p->sampling, .max_tokens = c->max_tokens ? c->max_tokens : prompt_only,
                                 .stop = c->stop, .n_stop = c->n_stop, .ignore_eos = p->ignore_eos,
                                 .stop_ids = c->stop_ids, .n_stop_ids = c->n_stop_ids, .min_tokens = p->min_tokens,
                                 .keep_special = c->raw_text || !p->skip_special_tokens,
                                 .n_logprobs = embed ? -1 : c->n_logprobs,
                                 .prompt_logprobs = p->echo && c->n_logprobs >= 0,
                                 .embed = embed ? pooling_of(c) : EMBED_NONE,
                                 .priority = p->priority, .draft = c->draft, .scope = c->scope, .lora = c->lora,
                                 .tenant = c->tenant, .reported = &c->reported, .n = embed ? 1 : p->n };
    if (c->s->o.timeout_s > 0)
        rp.deadline_ns = c->start_ns + (uint64_t)(c->s->o.timeout_s * 1e9);
    return rp;
}

void call_submit_more(struct call *c)
{
    struct request_params rp = engine_request(c);
    const int n = rp.n, most = call_embeds(c) ? models_window(c->lm) : c->n_choices;
    while (c->n_sent < c->n_choices && c->n_sent - (c->n_choices - c->n_open) < most) {
        struct prompt *p = &c->prompts[c->n_sent / n];
        rp.ids = p->ids;
        rp.n_ids = p->n_ids;
        rp.second = config_second_type(&c->lm->m.model->config, p->second);
        rp.constraint = p->constraint.state ? &p->constraint : NULL;
        if (worker_submit(c->lm->worker, &rp, &c->jobs[c->n_sent]) != 0) {
            problem_nomem(&c->problem);
            call_cancel(c);
            return;
        }
        p->constraint.state = NULL;
        c->n_sent += n;
    }
}

static void submit(struct call *c)
{
    struct problem pr;
    if (reserve_tokens(c, &pr) != 0 || make_choices(c, &pr) != 0) {
        refuse(c, &pr);
        return;
    }
    show_relaxed(c);
    c->n_open = c->n_choices;
    c->n_sent = 0;
    c->submitted = 1;
    call_submit_more(c);
    if (c->n_open == 0)
        call_conclude(c);
}

/* ---- stages ---- */

/* Parse the body and free its text. */
static void parse(struct call *c, struct problem *pr)
{
    struct err e;
    if (prescan_body(c->body.data, c->body.size, c->form->body, &c->scan, pr) != 0 ||
        call_keep(c, c->scan.tree_bytes, pr) != 0)
        return;
    c->body_bytes -= c->scan.n_blanked;
    const int has_zero = c->body.size && memmem(c->body.data, c->body.size, "\\u0000", 6) != NULL;
    c->json = js_parse_nul("body", c->body.data ? c->body.data : "", c->body.size, &e);
    c->kept_bytes -= c->body.room;
    buf_release(&c->body);
    call_hold(c, 0, pr);
    if (!c->json)
        problem_err(pr, NULL, "invalid_json", &e);
    else if (has_zero && !pr->status)
        zero_byte_check(c->json, pr);
}

static int is_late(const struct call *c)
{
    const double limit = c->s->o.timeout_s;
    return limit > 0 && (double)(clock_ns() - c->start_ns) * 1e-9 > limit;
}

static void refuse_late(struct call *c)
{
    problem_set(&c->problem, 504, NULL, "timeout", "no complete answer within %g s", c->s->o.timeout_s);
}

void call_work(struct call *c)
{
    struct problem *pr = &c->problem;
    if (is_late(c)) {
        refuse_late(c);
    } else if (c->stage == STAGE_PROMPTS) {
        if (call_hold_prompts(c, pr) == 0 && (c->form->prepare(c, pr) != 0 || call_prediction(c, pr) != 0) &&
            !pr->status)
            problem_nomem(pr);
        if (!pr->status) {
            call_drop_prompt(c);
            call_keep(c, c->form->event ? 0 : ANSWER_COPIES * c->line.size, pr);
        }
    } else {
        parse(c, pr);
    }
}

/* Whether the call has a schema, grammar or regular expression to compile. */
static int must_compile(const struct call *c)
{
    static const char *const names[] = { "response_format", "grammar", "regex", "tools", "text", "output_config",
                                         "server_tools", "rag", "format" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (js_get(c->json, names[i]))
            return 1;
    return 0;
}

static void advance(struct call *c, int large);

/* ---- waiting for a model ---- */

static void wait_for_model(struct call *c)
{
    struct call **end = &c->s->waiting;         /* append: waiting calls run in the order of their arrival */
    while (*end)
        end = &(*end)->next_preparing;
    c->next_preparing = NULL;
    *end = c;
}

/* Remove the call from the list of waiting calls.  0: it is not in it. */
static int stop_waiting(struct call *c)
{
    struct call **at = &c->s->waiting;
    while (*at && *at != c)
        at = &(*at)->next_preparing;
    if (!*at)
        return 0;
    *at = c->next_preparing;
    c->next_preparing = NULL;
    c->awaited = NULL;
    return 1;
}

void calls_loaded(struct server *s, struct loaded_model *lm, const struct problem *p)
{
    struct call **at = &s->waiting, *mine = NULL, **end = &mine, *c;
    while ((c = *at)) {                         /* a call that continues may wait again, for another model */
        if (c->awaited != lm) {
            at = &c->next_preparing;
            continue;
        }
        *at = c->next_preparing;
        c->next_preparing = NULL;
        c->awaited = NULL;
        *end = c;
        end = &c->next_preparing;
    }
    while ((c = mine)) {
        mine = c->next_preparing;
        c->next_preparing = NULL;
        if (p)
            c->problem = *p;
        advance(c, c->body_bytes > INLINE_BODY);
    }
}

void calls_tick(struct server *s)
{
    struct call *late;
    do { /* restart from the beginning, because ending a call may change the list */
        late = s->waiting;
        while (late && !is_late(late))
            late = late->next_preparing;
        if (late) {
            stop_waiting(late);
            refuse_late(late);
            call_conclude(late);
        }
    } while (late);
}

static void documents_found(struct call *c) { advance(c, 1); }

/* Run the stage after the current one, here or in a preparing thread.  large: the body is large, so
 * a thread runs the stage. */
static void advance(struct call *c, int large)
{
    while (c->conn && !c->problem.status) {
        if (c->stage == STAGE_PARSE) {
            const int bound = call_bind(c, &c->problem);
            if (bound > 0) {
                wait_for_model(c);
                return;
            }
            c->stage = STAGE_DOCUMENTS;
            if (bound != 0)
                break;
            if (documents_wanted(c)) {
                if (documents_ask(c, documents_found, &c->problem) != 0)
                    break;
                return;
            }
        } else if (c->stage == STAGE_DOCUMENTS) {
            c->stage = STAGE_PROMPTS;
            if (large || must_compile(c)) {
                if (prepare_submit(c) != 0)
                    break;
                c->lm->preparing++;
                return;
            }
            call_work(c);
        } else {
            c->stage = STAGE_READY;
            show_ignored(c);
            if (!c->form->event)
                break;
            submit(c);
            return;
        }
    }
    call_conclude(c);
}

void call_end_round(struct call *c)
{
    const size_t ids = (size_t)c->prompts[0].n_ids * sizeof *c->prompts[0].ids;
    call_drop_answers(c, c->params.n);
    c->kept_bytes -= ids < c->kept_bytes ? ids : c->kept_bytes;
    free_round(c);
    grammars_release(c->grammar);
    c->grammar = NULL;
    c->starts_thinking = 0;
}

void call_prepare_again(struct call *c)
{
    c->stage = STAGE_PROMPTS;
    if (prepare_submit(c) == 0)
        c->lm->preparing++;
    else
        call_conclude(c);
}

/* Set c->body.  whole 1: take the body of the connection's request; 0: copy the text of a
 * WebSocket's message. */
static void take_body(struct call *c, int whole, const char *text, size_t size)
{
    if (whole)
        conn_take_body(c->conn, &c->body);
    else if (call_keep(c, size + 64, &c->problem) == 0)
        buf_add(&c->body, text, size);
    c->kept_bytes = c->body.room;
    if (c->body.failed)
        problem_nomem(&c->problem);
    else if (!c->problem.status)
        call_hold(c, 0, &c->problem);
}

/* Refuse a request for lack of memory. */
static void refuse_call(struct server *s, struct conn *conn, struct access_record *record)
{
    if (!record) {
        reply_refusal(s, conn, 503, NULL, "out of memory");
        return;
    }
    record_end(s, record, 503, -1, -1);
    conn_websocket_close(conn, 1011);
}

void call_start(struct server *s, struct conn *conn, struct access_record *record, const struct call_form *form,
                const char *text, size_t size)
{
    struct call *c = calloc(1, sizeof *c);
    int large = size > INLINE_BODY;
    char address[64];
    if (!c) {
        refuse_call(s, conn, record);
        return;
    }
    c->exchange.kind = EXCHANGE_CALL;
    c->s = s;
    c->conn = conn;
    c->record = record;
    c->form = form;
    c->route = form->body == BODY_WS_CHAT ? route_of(handle_ws_chat)
             : form == &responses_socket_form ? route_of(handle_ws_responses)
             : form->on_socket ? route_of(handle_ws_completions) : conn_route(conn);
    c->created = (int64_t)time(NULL);
    c->start_ns = clock_ns();
    server_id(s, form->prefix, c->id);
    snprintf(c->client, sizeof c->client, "%s", record ? record->client : client_address(s, conn, address));
    conn_set_exchange(conn, c);
    c->tenant = guard_tenant(call_record(c));
    c->scope = s->o.prefix_all ? 0 : guard_scope(call_record(c));
    c->hold = hold_for(s->account, c->tenant);
    c->body_bytes = size;
    record_prompt(s, call_record(c), text, size);
    take_body(c, record == NULL, text, size);
    if (large && !c->problem.status && prepare_submit(c) == 0)
        return;
    if (!c->problem.status)
        call_work(c);
    advance(c, 0);
}

void calls_events(struct server *s)
{
    struct call *c = prepare_take_done(s);
    while (c) {
        struct call *next = c->next_preparing;
        if (c->stage == STAGE_PROMPTS)
            c->lm->preparing--;
        advance(c, 1);
        c = next;
    }
    for (struct loaded_model *lm = s->models; lm; lm = lm->next)
        call_events(lm);
}
