#include "libcommon/serve/api/calls.h"

#include <malloc.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/json.h"
#include "libcommon/base/plural.h"
#include "libcommon/base/utf8.h"

/* Large bodies, and those with something to compile, go through threads of their own, so that
 * the tokens of others need not wait for them. */
enum { N_PREPARING = 2 };
struct preparing {
    pthread_t thread[N_PREPARING]; int n_threads, n_started;
    pthread_mutex_t lock;
    pthread_cond_t work;
    struct call *first; int n;          /* to do, by round: the first of each share, then the second of each ... */
    uint64_t round;                     /* of the one that was taken last */
    struct call *done, **done_last;
    struct call *current[N_PREPARING];  /* what each thread works on */
    struct call *dropped;               /* ended, and too large to be freed by the loop */
    size_t freed_bytes;                 /* since memory was last given back to the system */
    int stop;
    struct loop *loop;
};

enum { STAGE_PARSE, STAGE_PROMPTS, STAGE_READY };

static void end_record(struct call *c);
static void forget_preparing(struct call *c);

/* ---- memory ----
 *
 * Everything that a client determines the size of is held of the account before it is allocated:
 * the body, its tree (prescan.h), the template's values, what tokenizing takes, ids, and for
 * each answer what the engine keeps for it.  Text of answers is held in steps of ANSWER_STEP as
 * it comes. */

enum { CALL_BYTES = 16 << 10, CHOICE_BYTES = 4 << 10, ANSWER_STEP = 64 << 10, LARGE_CALL = 256 << 10,
       TRIM_BYTES = 32 << 20 };
enum { ANSWER_COPIES = 3 };             /* of an answer: its parts, the JSON, what waits for the client */

int call_hold(struct call *c, size_t more, struct problem *pr)
{
    const size_t bytes = CALL_BYTES + c->kept_bytes + ANSWER_COPIES * c->held_answers + more;
    const enum hold_answer why = hold_set(&c->hold, bytes);
    return why == HOLD_OK ? 0 : hold_problem(&c->hold, why, bytes, pr);
}

int call_keep(struct call *c, size_t more, struct problem *pr)
{
    c->kept_bytes += more;
    if (call_hold(c, 0, pr) == 0)
        return 0;
    c->kept_bytes -= more;
    return -1;
}

static size_t bytes_of(const struct choice *ch)
{
    size_t n = ch->text.room + ch->logprobs.room + ch->values.room + ch->tops.room + ch->offsets.room;
    for (int i = 0; i < ch->n_parts; i++)
        n += sizeof *ch->part + ch->part[i].text.room;
    return n;
}

/* What an answer has come to since it was last counted. */
static int hold_answer(struct call *c, struct choice *ch)
{
    const size_t n = bytes_of(ch);
    c->answer_bytes += n - ch->n_bytes;
    ch->n_bytes = n;
    if (c->answer_bytes <= c->held_answers)
        return 0;
    c->held_answers = c->answer_bytes + ANSWER_STEP;
    return call_hold(c, 0, &c->problem);
}

/* An upper bound of what a tree takes, as prescan.c counts. */
static size_t tree_bytes(const json_t *v)
{
    size_t n = 0, i;
    const char *key;
    json_t *x;
    union { const json_t *in; json_t *out; } u = { .in = v };
    if (json_is_string(v))
        return 160 + json_string_length(v);
    if (!json_is_object(v) && !json_is_array(v))
        return 64;
    json_object_foreach(u.out, key, x)
        n += 160 + strlen(key) + tree_bytes(x);
    json_array_foreach(v, i, x)
        n += tree_bytes(x);
    return n + 280;
}

/* The prompt has its ids: what the body said of it is freed at once, in the thread that made it. */
static void drop_prompt(struct call *c)
{
    static const char *const names[] = { "messages", "input", "prompt", "system", "chat_template_kwargs", "logit_bias",
                                         "content", "tokens", "grammar", "regex" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        json_object_del(c->json, names[i]);
    json_decref(c->conversation.vars);
    c->conversation.vars = NULL;
    const size_t tree = tree_bytes(c->json);
    if (tree >= c->scan.tree_bytes)
        return;
    c->kept_bytes -= c->scan.tree_bytes - tree;
    c->scan.tree_bytes = tree;
}

static void call_destroy(struct call *c)
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
    conversation_release(&c->conversation);
    free(c->prompts);
    free(c->choices);
    free(c->jobs);
    free(c->bias);
    buf_release(&c->body);
    buf_release(&c->head);
    buf_release(&c->line);
    json_decref(c->json);
    hold_release(&c->hold);
    free(c);
}

/* A large one is freed in a preparing thread: a tree of a million values takes the better part
 * of a second. */
static void call_free(struct call *c)
{
    struct preparing *p = c->s->preparing;
    end_record(c);                               /* one that the server's end cut off */
    for (int i = 0; i < c->n_prompts; i++)
        if (c->prompts[i].constraint.state)
            c->prompts[i].constraint.close(c->prompts[i].constraint.state);
    if (c->lm) {
        if (c->prev)
            c->prev->next = c->next;
        else
            c->lm->calls = c->next;
        if (c->next)
            c->next->prev = c->prev;
        c->lm->n_calls--;
        grammars_release(c->grammar);           /* before its model may go */
        c->grammar = NULL;
    }
    if (!p || c->hold.bytes < LARGE_CALL) {
        call_destroy(c);
        return;
    }
    pthread_mutex_lock(&p->lock);
    c->next_preparing = p->dropped;
    p->dropped = c;
    pthread_cond_signal(&p->work);
    pthread_mutex_unlock(&p->lock);
}

void calls_cancel(struct loaded_model *lm)
{
    for (struct call *c = lm->calls; c; c = c->next)
        call_cancel(c);
}

void calls_drop(struct loaded_model *lm)
{
    while (lm->calls)
        call_free(lm->calls);
}

/* ---- figures ---- */

void call_totals(const struct call *c, int *prompt, int *completion, int *cached, int *reasoning)
{
    *prompt = *completion = *cached = *reasoning = 0;
    for (int i = 0; i < c->n_prompts; i++)
        *prompt += c->prompts[i].n_ids;
    for (int i = 0; i < c->n_choices; i++) {
        const struct choice *ch = &c->choices[i];
        *completion += ch->stats.n_generated;
        *reasoning += ch->n_reasoning;
        if (i == 0 || ch->prompt != c->choices[i - 1].prompt)       /* siblings share their prompt: what the first found is what was saved */
            *cached += ch->stats.n_cached;
    }
}

void call_usage(const struct call *c, struct buf *out)
{
    int prompt, completion, cached, reasoning;
    call_totals(c, &prompt, &completion, &cached, &reasoning);
    if (c->form->body == BODY_EMBEDDING) {
        buf_printf(out, "{\"prompt_tokens\":%d,\"total_tokens\":%d}", prompt, prompt);
        return;
    }
    buf_printf(out, "{\"prompt_tokens\":%d,\"completion_tokens\":%d,\"total_tokens\":%d,\"prompt_tokens_details\":{\"cached_tokens\":%d}", prompt,
               completion, prompt + completion, cached);
    if (c->lm->thinks || tool_format_has_channels(c->lm->calls_form))
        buf_printf(out, ",\"completion_tokens_details\":{\"reasoning_tokens\":%d}", reasoning);
    buf_str(out, "}");
}

static void record(struct call *c)
{
    struct recent_call r = { .route = c->route, .status = c->status };
    struct timespec now;
    int cached, reasoning;
    double decode_s = 0;
    call_totals(c, &r.prompt_tokens, &r.completion_tokens, &cached, &reasoning);
    clock_gettime(CLOCK_REALTIME, &now);
    r.at = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
    r.latency_s = (double)(clock_ns() - c->start_ns) * 1e-9;
    r.first_token_s = c->first_ns ? (double)(c->first_ns - c->start_ns) * 1e-9 : 0;
    snprintf(r.id, sizeof r.id, "%s", c->id);
    snprintf(r.model, sizeof r.model, "%s", c->lm ? c->lm->id : "");
    snprintf(r.user, sizeof r.user, "%s", c->params.user ? c->params.user : "");
    snprintf(r.client, sizeof r.client, "%s", c->client);
    for (int i = 0; i < c->n_choices; i++)
        decode_s += c->choices[i].stats.decode_s;
    if (c->lm) {
        struct model_metrics *m = &c->lm->metrics;
        m->requests++;
        m->prompt_tokens += (uint64_t)r.prompt_tokens;
        m->cached_tokens += (uint64_t)cached;
        histogram_add(&m->duration, r.latency_s);
    }
    metrics_call_ended(&c->s->metrics, &r, decode_s);
}

/* Tokens that a refused request would have had cost nobody anything. */
void call_charge(const struct call *c, int *prompt, int *completion)
{
    int cached, reasoning;
    call_totals(c, prompt, completion, &cached, &reasoning);
    if (!c->submitted || (c->problem.status && !c->first_ns))
        *prompt = *completion = 0;
}

/* The line of a call whose connection does not write it: a WebSocket's, or of a client that is
 * gone. */
static void end_record(struct call *c)
{
    int prompt, completion;
    call_charge(c, &prompt, &completion);
    record_end(c->s, c->record, c->status ? c->status : 499, prompt, completion);
    c->record = NULL;
}

struct access_record *call_record(const struct call *c)
{
    return c->record ? c->record : c->conn ? conn_record(c->conn) : NULL;
}


/* ---- the end ---- */

const char *call_finish_name(enum finish f) { return f == FINISH_LENGTH ? "length" : "stop"; }

void call_send_event(struct call *c)
{
    if (c->conn && (c->line.failed || c->head.failed)) {
        conn_break(c->conn);
        buf_release(&c->line);
    }
    if (c->conn)
        conn_write(c->conn, c->line.data, c->line.size);
    c->line.size = 0;
}

void call_begin_stream(struct call *c)
{
    conn_add_header(c->conn, "Cache-Control", "no-cache");
    conn_add_header(c->conn, "X-Accel-Buffering", "no");        /* nginx would collect events */
    conn_begin(c->conn, 200, "text/event-stream; charset=utf-8");
    metrics_count(&c->s->metrics, c->route, 200);
}

void call_head(const struct call *c, const char *object, struct buf *out)
{
    buf_printf(out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", c->id, object,
               (long long)c->created);
    buf_json(out, c->lm->id, strlen(c->lm->id));
    buf_str(out, ",\"system_fingerprint\":\"zse-" ZSE_VERSION "\",\"choices\":[");
}

void call_end_event(struct call *c, const char *finish)
{
    if (finish)
        buf_printf(&c->line, ",\"finish_reason\":\"%s\"}]", finish);
    else
        buf_str(&c->line, ",\"finish_reason\":null}]");
    buf_str(&c->line, c->include_usage ? ",\"usage\":null}\n\n" : "}\n\n");
    call_send_event(c);
}

void call_end_stream(struct call *c)
{
    if (c->include_usage) {
        buf_add(&c->line, c->head.data, c->head.size);
        buf_str(&c->line, "],\"usage\":");
        call_usage(c, &c->line);
        buf_str(&c->line, "}\n\n");
    }
    buf_str(&c->line, "data: [DONE]\n\n");
    call_send_event(c);
    conn_end(c->conn);
}

void call_end_answer(struct call *c, struct buf *out)
{
    buf_str(out, "],\"usage\":");
    call_usage(c, out);
    buf_str(out, "}");
    reply_json(c->s, c->conn, 200, out);
    buf_release(out);
}

void call_fail_answer(struct call *c, const struct problem *p)
{
    if (!c->conn)
        return;
    if (conn_status(c->conn) == 0) {
        if (p->status == 503 || (p->status == 429 && strcmp(p->code, "tenant_memory") == 0))
            conn_set_header(c->conn, "Retry-After", "1");
        reply_problem(c->s, c->conn, p);
        return;
    }
    record_error(call_record(c), p);
    buf_str(&c->line, "data: ");                /* a stream has begun: the status is out already */
    problem_json(p, &c->line);
    buf_str(&c->line, "\n\n");
    call_send_event(c);
    conn_end(c->conn);
}

/* Nothing runs any more for this call. */
static void conclude(struct call *c)
{
    if (c->conn) {
        if (c->problem.status)
            c->form->fail(c, &c->problem);
        else
            c->form->end(c);
        c->status = c->problem.status ? c->problem.status : 200;
        if (c->conn)
            conn_set_exchange(c->conn, NULL);
    } else {
        c->status = 499;                        /* as nginx calls it: the client closed */
    }
    if (c->form->event)
        record(c);
    end_record(c);
    call_free(c);
}

static int is_over(const struct call *c)
{
    for (int i = 0; i < c->n_choices; i++)
        if (!c->choices[i].ended || (c->choices[i].cancel_sent && !c->choices[i].cancel_heard))
            return 0;
    return 1;
}

void call_cancel(struct call *c)
{
    for (int i = 0; c->submitted && i < c->n_choices; i++) {
        struct choice *ch = &c->choices[i];
        if (!ch->ended && !ch->cancel_sent && worker_cancel(c->lm->worker, ch->job) == 0)
            ch->cancel_sent = 1;
    }
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
    forget_preparing(c);                        /* what a thread has begun is looked at afterwards */
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
    conclude(c);
}

/* ---- events of the engine ---- */

static void on_finish(struct call *c, struct choice *ch, const struct events *b, const struct event *ev)
{
    const char *why = ev->error && b->bytes.data ? b->bytes.data + ev->why : "";
    ch->ended = 1;
    ch->finish = ev->finish;
    ch->stop = ev->stop;
    ch->stats = ev->stats;
    c->n_open--;
    if (c->problem.status)
        return;
    if (ev->finish == FINISH_ERROR && ev->error == ERR_IO) {
        problem_set(&c->problem, 503, NULL, "model_unavailable", "the file of the model %.80s was changed or cannot be read any more; the next request gets what is there now", c->lm->id);
    } else if (ev->finish == FINISH_REFUSED) {
        problem_set(&c->problem, 503, NULL, "overloaded", "the queue is full: %s", why);
    } else if (ev->refused && ev->finish == FINISH_ERROR) {
        if (ev->error == ERR_LIMIT || ev->error == ERR_MEMORY)
            problem_set(&c->problem, 503, NULL, "overloaded", "the queue is full: %s", why);
        else
            problem_set(&c->problem, ev->error == ERR_UNSUPPORTED ? 501 : 400, NULL, NULL, "%s", why);
    } else if (ev->finish == FINISH_ERROR && ev->error == ERR_LIMIT && c->grammar) {
        problem_set(&c->problem, 400, NULL, "grammar_too_costly", "%s", why);
    } else if (ev->finish == FINISH_ERROR) {
        problem_set(&c->problem, 500, NULL, NULL, "%s", why);
    } else if (ev->finish == FINISH_CANCELLED) {
        problem_set(&c->problem, 503, NULL, "cancelled", "the model %s is being unloaded, or the server stops",
                    c->lm->id);
    } else if (ev->finish == FINISH_DEADLINE) {
        problem_set(&c->problem, 504, NULL, "timeout", "no complete answer within %g s", c->s->o.timeout_s);
    }
    if (c->problem.status)
        call_cancel(c);                         /* the others of this call */
}

static void on_token(struct call *c, struct choice *ch, uint64_t now)
{
    struct model_metrics *m = &c->lm->metrics;
    if (!c->first_ns) {
        c->first_ns = now;
        histogram_add(&m->first_token, (double)(now - c->start_ns) * 1e-9);
    }
    if (ch->last_ns)
        histogram_add(&m->between_tokens, (double)(now - ch->last_ns) * 1e-9);
    ch->last_ns = now;
    m->tokens++;
    metrics_tokens(&c->s->metrics, 1);
}

static void end_if_over(struct call *c)
{
    if (c->n_open == 0 && is_over(c))
        conclude(c);
}

static void on_event(struct events *b, const struct event *ev, uint64_t now)
{
    struct choice *ch = ev->job->user;
    struct call *c = ch->call;
    if (ev->id >= 0 && !ev->is_prompt)
        on_token(c, ch, now);
    if (ev->last)
        on_finish(c, ch, b, ev);
    if (c->conn && !c->problem.status) {
        if (call_is_stream(c) && !c->begun) {           /* not before: a refusal still finds its status unsent */
            c->begun = 1;
            c->form->begin(c);
        }
        c->form->event(c, ch, b, ev);
        if (hold_answer(c, ch) != 0)
            call_cancel(c);
    }
    end_if_over(c);
}

/* Its end was lost for want of memory. */
static void on_lost(struct choice *ch)
{
    struct call *c = ch->call;
    ch->ended = 1;
    c->n_open--;
    if (!c->problem.status)
        problem_nomem(&c->problem);
    call_cancel(c);
    end_if_over(c);
}

static void on_heard(struct choice *ch)
{
    ch->cancel_heard = 1;
    end_if_over(ch->call);
}

static void events_of(struct loaded_model *lm)
{
    struct events *list = lm->worker ? worker_take(lm->worker) : NULL;
    uint64_t now = clock_ns();
    for (struct events *b = list; b; b = b->next) {
        for (int i = 0; i < b->n_events; i++)
            on_event(b, &b->event[i], now);
        for (struct job *j = b->lost, *next; j; j = next) {     /* with its call it may go */
            next = j->next_lost;
            on_lost(j->user);
        }
        for (struct job *j = b->heard, *next; j; j = next) {
            next = j->next_heard;
            on_heard(j->user);
        }
    }
    if (list)
        worker_give_back(lm->worker, list);
}

/* ---- from the body to the engine ---- */

int call_is_stream(const struct call *c) { return c->params.stream; }

int call_prompts(struct call *c, int n, struct problem *pr)
{
    if (n < 1 || n > MAX_CHOICES)
        return problem_set(pr, 400, c->form->body == BODY_EMBEDDING ? "input" : "prompt", "out_of_range",
                           "%d prompts, expected 1 to %d", n, MAX_CHOICES);
    if (!(c->prompts = calloc((size_t)n, sizeof *c->prompts)))
        return problem_nomem(pr);
    c->n_prompts = n;
    return 0;
}

static int check_length(const struct call *c, const struct prompt *p, const char *field, struct problem *pr)
{
    int room = c->form->body == BODY_EMBEDDING ? 0 : 1, max_len = c->lm->m.max_len;
    if (p->n_ids < 1)
        return problem_set(pr, 400, field, "empty", "%s: the prompt is empty, expected at least 1 token", field);
    if (p->n_ids + room > max_len && c->form->body != BODY_COUNT)
        return problem_set(pr, 400, field, "context_length_exceeded",
                           "%s: the prompt has %d tokens, the context of %s is %d tokens%s", field, p->n_ids, c->lm->id,
                           max_len, room ? ", and an answer needs at least 1" : "");
    return 0;
}

/* A text that is far too long for the context is refused by its beginning: tokenizing all of it
 * would take its time, and TOKENIZE_BYTES a byte.  SLACK: tokens that the end of a text, which a
 * beginning lacks, could have joined with those before it. */
static int check_beginning(struct call *c, const char *text, size_t size, unsigned flags, const char *field,
                           struct problem *pr)
{
    enum { LONG_TOKEN = 16, SLACK = 64 };
    const int max_len = c->lm->m.max_len;
    size_t part = (size_t)max_len * LONG_TOKEN + 4096, n;
    int32_t *ids;
    struct err e;
    if (c->form->body == BODY_COUNT || size / 4 < part)
        return 0;
    part -= utf8_incomplete(text, part);
    if (call_hold(c, TOKENIZE_BYTES * part, pr) != 0)
        return -1;
    if (tokenizer_encode(c->lm->m.tokenizer, text, part, flags, &ids, &n, &e) != 0)
        return problem_err(pr, field, NULL, &e);
    free(ids);
    if (n <= (size_t)max_len + SLACK)
        return 0;
    return problem_set(pr, 400, field, "context_length_exceeded",
                       "%s: the prompt has more than %zu tokens, the context of %s is %d tokens", field, n - SLACK,
                       c->lm->id, max_len);
}

int call_tokenize(struct call *c, int i, const char *text, size_t size, int special, int bos, struct problem *pr,
                  const char *field)
{
    const struct tokenizer *t = c->lm->m.tokenizer;
    struct prompt *p = &c->prompts[i];
    struct err e;
    size_t n;
    const unsigned flags = (special ? TOKENIZE_PARSE_SPECIAL : 0) | (bos ? TOKENIZE_ADD_SPECIAL : 0);
    if (check_beginning(c, text, size, flags, field, pr) != 0 || call_hold(c, (TOKENIZE_BYTES + 1) * size, pr) != 0)
        return -1;
    if (tokenizer_encode(t, text, size, flags, &p->ids, &n, &e) != 0)
        return problem_err(pr, field, NULL, &e);
    if (call_keep(c, n * sizeof *p->ids, pr) != 0)
        return -1;
    p->n_ids = n > INT32_MAX ? INT32_MAX : (int)n;
    if (bos && c->form->body != BODY_EMBEDDING) {       /* a tokenizer that closes every text with EOS would end the answer before it begins */
        int n_eos;
        const int32_t *eos = tokenizer_eos(t, &n_eos);
        for (int k = 0; k < n_eos && p->n_ids > 1; k++)
            if (p->ids[p->n_ids - 1] == eos[k]) {
                p->n_ids--;
                break;
            }
    }
    return check_length(c, p, field, pr);
}

static int ids_prompt(struct call *c, int i, const json_t *list, const char *field, struct problem *pr)
{
    struct prompt *p = &c->prompts[i];
    size_t n = json_array_size(list);
    int vocab = c->lm->m.model->config.vocab_size;
    if (call_keep(c, (n + 1) * sizeof *p->ids, pr) != 0)
        return -1;
    if (!(p->ids = malloc((n + 1) * sizeof *p->ids)))
        return problem_nomem(pr);
    for (size_t k = 0; k < n; k++) {
        const json_t *v = json_array_get(list, k);
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= vocab)
            return problem_set(pr, 400, field, "out_of_range",
                               "%s: token %zu is %s, expected a whole number from 0 to %d", field, k,
                               json_is_integer(v) ? "out of range" : js_kind(v), vocab - 1);
        p->ids[k] = (int32_t)json_integer_value(v);
    }
    p->n_ids = (int)n;
    return check_length(c, p, field, pr);
}

static int keep_text(struct prompt *p, const char *text, size_t size)
{
    if ((p->text = malloc(size + 1)))
        memcpy(p->text, text, size);
    p->text_size = size;
    return p->text ? 0 : -1;
}

static int one_prompt(struct call *c, int i, const json_t *v, const char *field, int special, struct problem *pr)
{
    struct prompt *p = &c->prompts[i];
    struct err e;
    if (json_is_array(v)) {
        if (ids_prompt(c, i, v, field, pr) != 0)
            return -1;
        if (c->params.echo && tokenizer_decode(c->lm->m.tokenizer, p->ids, (size_t)p->n_ids, 0, &p->text, &p->text_size,
                                               &e) != 0)
            return problem_err(pr, field, NULL, &e);
        return 0;
    }
    if (!json_is_string(v))
        return problem_set(pr, 400, field, "invalid_type", "%s: found %s in the list, expected text or token ids",
                           field, js_kind(v));
    if (c->params.echo && call_keep(c, ANSWER_COPIES * json_string_length(v), pr) != 0)
        return -1;
    if (c->params.echo && keep_text(p, json_string_value(v), json_string_length(v)) != 0)
        return problem_nomem(pr);
    return call_tokenize(c, i, json_string_value(v), json_string_length(v), special, 1, pr, field);
}

int call_any_prompts(struct call *c, const char *field, int special, struct problem *pr)
{
    const json_t *v = js_get(c->json, field);
    if (!v)
        return problem_set(pr, 400, field, "missing", "%s: missing", field);
    if (!json_is_array(v) && !json_is_string(v))
        return problem_set(pr, 400, field, "invalid_type",
                           "%s: found %s, expected text, token ids, or a list of either", field, js_kind(v));
    int list = json_is_array(v) && !json_is_integer(json_array_get(v, 0)),
        n = list ? (int)(json_array_size(v) < MAX_CHOICES + 1 ? json_array_size(v) : MAX_CHOICES + 1) : 1;
    if (call_prompts(c, n, pr) != 0)
        return -1;
    for (int i = 0; i < n; i++)
        if (one_prompt(c, i, list ? json_array_get(v, (size_t)i) : v, field, special, pr) != 0)
            return -1;
    return 0;
}

static int parse_stop(struct call *c, struct problem *pr)
{
    const char *name = c->form->body == BODY_MESSAGES ? "stop_sequences" : "stop";
    json_t *v = js_get(c->json, name);
    size_t n = json_is_array(v) ? json_array_size(v) : v != NULL;
    if (v && !json_is_array(v) && !json_is_string(v))
        return problem_set(pr, 400, name, "invalid_type", "%s: found %s, expected a string or a list of strings", name,
                           js_kind(v));
    if (n > MAX_STOP)
        return problem_set(pr, 400, name, "out_of_range", "%s: %zu texts, expected at most %d", name, n, MAX_STOP);
    for (size_t i = 0; i < n; i++) {
        const json_t *s = json_is_array(v) ? json_array_get(v, i) : v;
        if (!json_is_string(s) || json_string_length(s) == 0 || strlen(json_string_value(s)) != json_string_length(s))
            return problem_set(pr, 400, name, "invalid_type", "%s: text %zu is %s", name, i + 1,
                               !json_is_string(s) ? js_kind(s) : json_string_length(s) ? "with a zero byte" : "empty");
        if (json_string_length(s) > MAX_STOP_BYTES)
            return problem_set(pr, 400, name, "out_of_range", "%s: text %zu has %zu bytes, expected at most %d", name,
                               i + 1, json_string_length(s), MAX_STOP_BYTES);
        c->stop[c->n_stop++] = json_string_value(s);
    }
    return 0;
}

static int parse_bias(struct call *c, struct problem *pr)
{
    json_t *v = js_get(c->json, "logit_bias"), *x;
    const char *key;
    int vocab = c->lm->m.model->config.vocab_size, n = 0;
    if (!v)
        return 0;
    if (!json_is_object(v))
        return problem_set(pr, 400, "logit_bias", "invalid_type",
                           "logit_bias: found %s, expected an object of token ids", js_kind(v));
    if (call_keep(c, (json_object_size(v) + 1) * sizeof *c->bias, pr) != 0)
        return -1;
    if (!(c->bias = calloc(json_object_size(v) + 1, sizeof *c->bias)))
        return problem_nomem(pr);
    json_object_foreach(v, key, x) {
        char *end;
        long id = strtol(key, &end, 10);
        if (*key < '0' || *key > '9' || *end || id < 0 || id >= vocab)
            return problem_set(pr, 400, "logit_bias", "out_of_range",
                               "logit_bias: token '%.40s' is not in the range 0 to %d", key, vocab - 1);
        double bias = json_number_value(x);
        if (!json_is_number(x) || !(bias >= -100 && bias <= 100))
            return problem_set(pr, 400, "logit_bias", "out_of_range",
                               "logit_bias: %g of token %ld is not in the range -100 to 100", bias, id);
        c->bias[n++] = (struct logit_bias){ (int32_t)id, bias <= -100 ? -INFINITY : (float)bias };
    }
    c->params.sampling.bias = c->bias;
    c->params.sampling.n_bias = n;
    return 0;
}

static int parse_stream_options(struct call *c, struct problem *pr)
{
    json_t *v = js_get(c->json, "stream_options"), *x;
    const char *key;
    if (!v)
        return 0;
    if (!json_is_object(v))
        return problem_set(pr, 400, "stream_options", "invalid_type", "stream_options: found %s, expected an object",
                           js_kind(v));
    if (!c->params.stream)
        return problem_set(pr, 400, "stream_options", NULL, "stream_options: only with stream = true");
    json_object_foreach(v, key, x) {
        int known = strcmp(key, "include_usage") == 0;
        if (!known && strcmp(key, "include_obfuscation") != 0)
            return problem_set(pr, 400, "stream_options", "unknown_parameter", "stream_options: %.40s: no such field",
                               key);
        if (!json_is_boolean(x) && !json_is_null(x))
            return problem_set(pr, 400, "stream_options", "invalid_type",
                               "stream_options: %s: found %s, expected true or false", key, js_kind(x));
        if (known)
            c->include_usage = json_is_true(x);
    }
    return 0;
}

static int check_params(struct call *c, struct problem *pr)
{
    struct params *p = &c->params;
    if (p->given & GIVEN_MAX_TOKENS && p->given & GIVEN_MAX_COMPLETION_TOKENS &&
        p->max_tokens != p->max_completion_tokens)
        return problem_set(pr, 400, "max_completion_tokens", NULL,
                           "max_completion_tokens: %d, but max_tokens is %d: one of the two", p->max_completion_tokens,
                           p->max_tokens);
    c->max_tokens = p->given & GIVEN_MAX_COMPLETION_TOKENS ? p->max_completion_tokens : p->max_tokens;
    if (c->form->delta && p->given & GIVEN_MAX_TOKENS && p->max_tokens == 0)
        return problem_set(pr, 400, "max_tokens", "out_of_range", "max_tokens: 0 is not in the range 1 to %d",
                           INT32_MAX);
    c->n_logprobs = -1;
    if (c->form->body == BODY_CHAT) {
        if (p->top_logprobs > 0 && !p->logprobs)
            return problem_set(pr, 400, "top_logprobs", NULL, "top_logprobs: %d, but logprobs is not true",
                               p->top_logprobs);
        c->n_logprobs = p->logprobs ? p->top_logprobs : -1;
    } else if (p->given & GIVEN_LOGPROBS) {
        c->n_logprobs = p->logprobs_count;
    }
    if (p->best_of && p->best_of != p->n)
        return problem_set(pr, 400, "best_of", "unsupported_parameter",
                           "best_of: %d, but n is %d: there is no search for the best", p->best_of, p->n);
    if (p->sampling.top_k < 0)
        p->sampling.top_k = 0;
    if (p->given & GIVEN_SEED)
        p->sampling.seed = (uint64_t)(int64_t)p->seed;
    else
        p->sampling.seed = (uint32_t)rng_u64(&c->s->ids);
    return 0;
}

/* The model, and every field of the body. */
static int bind(struct call *c, struct problem *pr)
{
    const json_t *name = js_get(c->json, "model");
    if (!json_is_object(c->json))
        return problem_set(pr, 400, NULL, "invalid_type", "the body: found %s, expected an object", js_kind(c->json));
    if (name && !json_is_string(name))
        return problem_set(pr, 400, "model", "invalid_type", "model: found %s, expected a string", js_kind(name));
    if (c->s->watch.state != WATCH_FINE)
        return problem_set(pr, 503, NULL, "memory_pressure", "memory is short: no new requests until there is more");
    struct loaded_model *lm = models_find(c->s, json_string_value(name), pr);
    struct problem recalled;
    const char *left = lm || pr->status != 404 ? NULL : models_left(c->s, json_string_value(name));
    if (left && guard_model(call_record(c), left, &recalled) == 0 && models_recall(c->s, left, &recalled))
        *pr = recalled;
    if (!lm || guard_model(call_record(c), lm->id, pr) != 0)
        return -1;
    c->lm = lm;
    c->next = lm->calls;
    if (c->next)
        c->next->prev = c;
    lm->calls = c;
    lm->n_calls++;
    lm->used_ns = clock_ns();
    c->params = (struct params){ .sampling = lm->sampling, .n = 1,
                                 .max_tokens = c->form->body == BODY_COMPLETION ? 16 : 0,
                                  .parse_special = 1, .add_generation_prompt = 1, .parallel_calls = 1 };
    if (!lm->m.tokenizer)
        return problem_set(pr, 400, "model", NULL, "model: %s has no tokenizer", lm->id);
    if (fields_parse(c->json, c->form->body, &c->params, pr) != 0)
        return -1;
    if (c->form->body & (BODY_EMBEDDING | BODY_TOKENIZE | BODY_DETOKENIZE | BODY_TEMPLATE | BODY_COUNT))
        return 0;
    return check_params(c, pr) || parse_stop(c, pr) || parse_bias(c, pr) || parse_stream_options(c, pr) ? -1 : 0;
}

/* What the engine and the answers take for n answers to each prompt, but for keys, values and
 * the text of answers. */
static size_t engine_bytes(const struct call *c, int n)
{
    const int embed = c->form->body == BODY_EMBEDDING, max_len = c->lm->m.max_len;
    const size_t embedding = embed ? (size_t)c->lm->m.model->config.hidden_size * 64 : 0;       /* twice, and as text */
    size_t bytes = 0, stops = 0;
    for (int i = 0; i < c->n_stop; i++)
        stops += strlen(c->stop[i]) + 64;
    for (int i = 0; i < c->n_prompts; i++) {
        const int room = max_len - c->prompts[i].n_ids;
        const size_t len = (size_t)c->prompts[i].n_ids +
                           (size_t)(c->max_tokens && c->max_tokens < room ? c->max_tokens : room);
        bytes += (size_t)n * (CHOICE_BYTES + embedding + stops + (size_t)c->params.sampling.n_bias * sizeof *c->bias +
                              2 * len * sizeof(int32_t) + (size_t)max_len);
    }
    return bytes;
}

static int make_choices(struct call *c, struct problem *pr)
{
    int n = c->form->body == BODY_EMBEDDING ? 1 : c->params.n;
    if (c->n_prompts * n > MAX_CHOICES)
        return problem_set(pr, 400, "n", "out_of_range", "n: %d answers to %d prompts, expected at most %d together", n,
                           c->n_prompts, MAX_CHOICES);
    if (call_keep(c, engine_bytes(c, n), pr) != 0)
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
        ch->prompt = i / n;
        ch->split.state = !c->lm->thinks ? SPLIT_ANSWER : c->starts_thinking ? SPLIT_REASONING : SPLIT_UNDECIDED;
        if (c->form->delta && conversation_open_parser(ch) != 0)
            return problem_nomem(pr);
    }
    return 0;
}

/* Reserve what prompts and answers may come to of the key's token limits.  An answer without
 * max_tokens gets what is left of them, at least LEAST_ANSWER. */
static int reserve_tokens(struct call *c, struct problem *pr)
{
    enum { LEAST_ANSWER = 16 };
    const int embed = c->form->body == BODY_EMBEDDING, open_end = !embed && c->form->body != BODY_COMPLETION &&
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

/* Say which keywords of functions that are not strict an answer need not satisfy. */
static void show_relaxed(const struct call *c)
{
    const char *relaxed = c->grammar ? grammar_relaxed(shared_grammar(c->grammar)) : NULL;
    if (relaxed && c->conn && !conn_is_websocket(c->conn))
        conn_set_header(c->conn, "X-Not-Enforced", relaxed);
}

static void submit(struct call *c)
{
    struct problem pr;
    struct params *p = &c->params;
    if (reserve_tokens(c, &pr) != 0 || make_choices(c, &pr) != 0) {
        refuse(c, &pr);
        return;
    }
    int embed = c->form->body == BODY_EMBEDDING, n = embed ? 1 : p->n;
    struct request_params rp = { .sampling = p->sampling,
                                 .max_tokens = c->max_tokens ? c->max_tokens : c->form->body == BODY_COMPLETION &&
                                 p->given & GIVEN_MAX_TOKENS ? 1 : 0,
                                 .stop = c->stop, .n_stop = c->n_stop, .ignore_eos = p->ignore_eos,
                                 .keep_special = c->raw_text, .n_logprobs = embed ? -1 : c->n_logprobs,
                                 .prompt_logprobs = p->echo && c->n_logprobs >= 0,
                                 .embed = embed ? EMBED_MEAN : EMBED_NONE, .priority = p->priority, .tenant = c->tenant,
                                 .heard = &c->heard, .n = n };
    if (c->s->o.timeout_s > 0)
        rp.deadline_ns = c->start_ns + (uint64_t)(c->s->o.timeout_s * 1e9);
    show_relaxed(c);
    c->n_open = c->n_choices;
    c->submitted = 1;
    for (int i = 0; i < c->n_prompts; i++) {
        rp.ids = c->prompts[i].ids;
        rp.n_ids = c->prompts[i].n_ids;
        rp.constraint = c->prompts[i].constraint.state ? &c->prompts[i].constraint : NULL;
        if (worker_submit(c->lm->worker, &rp, &c->jobs[i * n]) == 0) {
            c->prompts[i].constraint.state = NULL;
            continue;
        }
        for (int k = i * n; k < c->n_choices; k++) {
            c->choices[k].ended = 1;
            c->n_open--;
        }
        problem_nomem(&c->problem);
        call_cancel(c);
        break;
    }
    if (c->n_open == 0)
        conclude(c);
}

/* The body becomes a tree; it is not needed any more. */
static void parse(struct call *c, struct problem *pr)
{
    struct err e;
    if (prescan_body(c->body.data, c->body.size, c->form->body, &c->scan, pr) != 0 ||
        call_keep(c, c->scan.tree_bytes, pr) != 0)
        return;
    c->body_bytes -= c->scan.n_blanked;
    c->json = js_parse("body", c->body.data ? c->body.data : "", c->body.size, &e);
    c->kept_bytes -= c->body.room;
    buf_release(&c->body);
    call_hold(c, 0, pr);
    if (!c->json)
        problem_err(pr, NULL, "invalid_json", &e);
}

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

/* A conversation has two more trees besides the template's values and the text, for which there
 * is so much by the body's size, or what else a request may take. */
static int hold_prompts(struct call *c, struct problem *pr)
{
    enum { TEMPLATED = BODY_CHAT | BODY_RESPONSES | BODY_MESSAGES | BODY_COUNT | BODY_TEMPLATE | BODY_WS_CHAT };
    static const size_t mib = 1 << 20;
    if (!(c->form->body & TEMPLATED))
        return 0;
    const size_t b = c->body_bytes, trees = 2 * (c->scan.tree_bytes + c->scan.text_bytes),
                 all = account_request_limit(c->s->account);
    const size_t others = CALL_BYTES + c->kept_bytes + trees, left = all > others ? all - others : 0;
    const size_t output = least(least(mib + 8 * b, 16 * mib), left / 4),
                 values = least(least(16 * mib + 32 * b, 192 * mib), left - output);
    c->conversation.limits = (struct tmpl_limits){ .max_output = output, .max_memory = values };
    return call_hold(c, trees + (left ? output + values : mib), pr);
}

/* One stage; any thread. */
static void work_on(struct call *c)
{
    struct problem *pr = &c->problem;
    const double limit = c->s->o.timeout_s;
    if (limit > 0 && (double)(clock_ns() - c->start_ns) * 1e-9 > limit) {
        problem_set(pr, 504, NULL, "timeout", "no complete answer within %g s", limit);
    } else if (c->stage == STAGE_PROMPTS) {
        if (hold_prompts(c, pr) == 0 && c->form->prepare(c, pr) != 0 && !pr->status)
            problem_nomem(pr);
        if (!pr->status) {
            drop_prompt(c);
            call_keep(c, c->form->event ? 0 : ANSWER_COPIES * c->line.size, pr);
        }
    } else {
        parse(c, pr);
    }
}

static void be_done(struct preparing *p, struct call *c)
{
    c->next_preparing = NULL;
    *p->done_last = c;
    p->done_last = &c->next_preparing;
}

static int refuse_queued(struct call *c, int most)
{
    return problem_set(&c->problem, 503, NULL, "overloaded",
                       "%d request%s already waiting to be prepared, expected at most %d", most, plural(most), most);
}

/* -1 with c->problem: as many wait already as --max-queue lets wait, and nobody has more of them
 * than this one's share. */
static int to_thread(struct call *c)
{
    struct preparing *p = c->s->preparing;
    const int most = c->s->o.max_queue;
    struct call **at = &p->first, **last = NULL;
    int rc = 0;
    pthread_mutex_lock(&p->lock);
    c->round = p->round + 1;            /* whoever was just served goes behind those that wait in the next round */
    for (struct call **q = &p->first; *q; q = &(*q)->next_preparing) {
        if ((*q)->tenant == c->tenant && (*q)->round >= c->round)
            c->round = (*q)->round + 1;
        last = q;
    }
    if (most && p->n >= most && last && (*last)->round > c->round) {
        struct call *out = *last;
        *last = NULL;
        p->n--;
        refuse_queued(out, most);
        be_done(p, out);
        loop_wake(p->loop);
    }
    if (most && p->n >= most) {
        rc = refuse_queued(c, most);
    } else {
        while (*at && (*at)->round <= c->round)
            at = &(*at)->next_preparing;
        c->next_preparing = *at;
        *at = c;
        p->n++;
        pthread_cond_signal(&p->work);
    }
    pthread_mutex_unlock(&p->lock);
    return rc;
}

/* Nobody waits for it any more: it is done, if no thread has begun with it. */
static void forget_preparing(struct call *c)
{
    struct preparing *p = c->s->preparing;
    if (!p)
        return;                                 /* the server ends */
    pthread_mutex_lock(&p->lock);
    struct call **at = &p->first;
    while (*at && *at != c)
        at = &(*at)->next_preparing;
    const int found = *at != NULL;
    if (found) {
        *at = c->next_preparing;
        p->n--;
        be_done(p, c);
    }
    pthread_mutex_unlock(&p->lock);
    if (found)
        loop_wake(p->loop);
}

/* Must something be compiled? */
static int takes_long(const struct call *c)
{
    static const char *const names[] = { "response_format", "grammar", "regex", "tools", "text", "output_config" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (js_get(c->json, names[i]))
            return 1;
    return 0;
}

/* A stage is done: on to the next, here or in the thread. */
static void advance(struct call *c, int large)
{
    while (c->conn && !c->problem.status) {
        if (c->stage == STAGE_PARSE) {
            c->stage = STAGE_PROMPTS;
            if (bind(c, &c->problem) != 0)
                break;
            if (large || takes_long(c)) {
                if (to_thread(c) != 0)
                    break;
                c->lm->preparing++;
                return;
            }
            work_on(c);
        } else {
            c->stage = STAGE_READY;
            if (!c->form->event)
                break;
            submit(c);
            return;
        }
    }
    conclude(c);
}

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

void call_start(struct server *s, struct conn *conn, struct access_record *record, const struct call_form *form,
                const char *text, size_t size)
{
    struct call *c = calloc(1, sizeof *c);
    int large = size > INLINE_BODY;
    char address[64];
    if (!c) {
        if (record) {                            /* a WebSocket's: nothing to say it with */
            record_end(s, record, 503, -1, -1);
            conn_websocket_close(conn, 1011);
            return;
        }
        reply_refusal(s, conn, 503, NULL, "out of memory");
        return;
    }
    c->exchange.kind = EXCHANGE_CALL;
    c->s = s;
    c->conn = conn;
    c->record = record;
    c->form = form;
    c->route = form->body == BODY_WS_CHAT ? route_of(handle_ws_chat) : conn_route(conn);
    c->created = (int64_t)time(NULL);
    c->start_ns = clock_ns();
    server_id(s, form->prefix, c->id);
    snprintf(c->client, sizeof c->client, "%s", record ? record->client : client_address(s, conn, address));
    conn_set_exchange(conn, c);
    c->tenant = guard_tenant(call_record(c));
    c->hold = hold_for(s->account, c->tenant);
    c->body_bytes = size;
    record_prompt(s, call_record(c), text, size);
    take_body(c, record == NULL, text, size);
    if (large && !c->problem.status && to_thread(c) == 0)
        return;
    if (!c->problem.status)
        work_on(c);
    advance(c, 0);
}

/* ---- the preparing thread ---- */

static void give_memory_back(void)
{
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}

static size_t bytes_of_dropped(const struct call *c)
{
    size_t n = 0;
    for (; c; c = c->next_preparing)
        n += c->hold.bytes;
    return n;
}

static void *prepare(void *arg)
{
    struct preparing *p = arg;
    pthread_mutex_lock(&p->lock);
    const int i = p->n_started++;
    pthread_mutex_unlock(&p->lock);
    for (;;) {
        pthread_mutex_lock(&p->lock);
        while (!p->first && !p->dropped && !p->stop)
            pthread_cond_wait(&p->work, &p->lock);
        int stop = p->stop;
        struct call *c = stop ? NULL : p->first, *dropped = stop ? NULL : p->dropped;
        p->dropped = stop ? p->dropped : NULL;
        const int trim = dropped && (p->freed_bytes += bytes_of_dropped(dropped)) > TRIM_BYTES;
        p->freed_bytes = trim ? 0 : p->freed_bytes;
        if (c) {
            p->n--;
            p->first = c->next_preparing;
            p->round = c->round;
        }
        p->current[i] = c;
        pthread_mutex_unlock(&p->lock);
        for (struct call *next; dropped; dropped = next) {
            next = dropped->next_preparing;
            call_destroy(dropped);
        }
        if (trim)
            give_memory_back();
        if (!c && !stop)
            continue;                   /* the other thread took it */
        if (stop)
            return NULL;
        work_on(c);
        pthread_mutex_lock(&p->lock);
        p->current[i] = NULL;
        be_done(p, c);
        pthread_mutex_unlock(&p->lock);
        loop_wake(p->loop);
    }
}

int calls_open(struct server *s, struct err *e)
{
    struct preparing *p = calloc(1, sizeof *p);
    if (!p)
        return err_nomem(e, "server");
    p->done_last = &p->done;
    p->loop = s->loop;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    s->preparing = p;
    for (int rc; p->n_threads < N_PREPARING; p->n_threads++)
        if ((rc = pthread_create(&p->thread[p->n_threads], NULL, prepare, p)) != 0)
            return err_set(e, ERR_IO, "thread: %s", strerror(rc));
    return 0;
}

static void free_calls(struct call *c)
{
    while (c) {
        struct call *next = c->next_preparing;
        call_free(c);
        c = next;
    }
}

void calls_close(struct server *s)
{
    struct preparing *p = s->preparing;
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->stop = 1;
    for (int i = 0; i < N_PREPARING; i++)
        if (p->current[i])
            atomic_store(&p->current[i]->cancelled, 1);
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    while (p->n_threads > 0)
        pthread_join(p->thread[--p->n_threads], NULL);
    s->preparing = NULL;                        /* from here on calls are freed at once */
    free_calls(p->first);
    free_calls(p->done);
    for (struct call *c = p->dropped, *next; c; c = next) {
        next = c->next_preparing;
        call_destroy(c);
    }
    pthread_cond_destroy(&p->work);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

void calls_events(struct server *s)
{
    struct preparing *p = s->preparing;
    pthread_mutex_lock(&p->lock);
    struct call *c = p->done;
    p->done = NULL;
    p->done_last = &p->done;
    pthread_mutex_unlock(&p->lock);
    while (c) {
        struct call *next = c->next_preparing;
        if (c->stage == STAGE_PROMPTS)
            c->lm->preparing--;
        advance(c, 1);
        c = next;
    }
    for (struct loaded_model *lm = s->models; lm; lm = lm->next)
        events_of(lm);
}
