/* ollama_text.c - POST /api/chat and /api/generate: write lines of JSON, or one object. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/json.h"
#include "libcommon/serve/ollama/ollama.h"

static int is_chat(const struct call *c) { return c->form->body == BODY_OLLAMA_CHAT; }

const char *ollama_model(const struct call *c) { return c->params.model ? c->params.model : c->lm->id; }

void ollama_time(struct buf *out, int64_t s, long ns)
{
    const time_t t = (time_t)s;
    struct tm tm = { .tm_mday = 1 };
    char text[32];
    gmtime_r(&t, &tm);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &tm);
    buf_printf(out, "\"%s.%06ldZ\"", text, ns / 1000);
}

static long long nanoseconds(uint64_t from, uint64_t to) { return to > from ? (long long)(to - from) : 0; }

void ollama_durations(const struct call *c, struct buf *out)
{
    buf_printf(out, ",\"total_duration\":%lld,\"load_duration\":%lld", nanoseconds(c->start_ns, clock_ns()),
               nanoseconds(c->start_ns, c->bound_ns));
}

/* ---- parts of the answer ---- */

static void begin_object(const struct call *c, struct buf *out)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    buf_str(out, "{\"model\":");
    buf_json(out, ollama_model(c), strlen(ollama_model(c)));
    buf_str(out, ",\"created_at\":");
    ollama_time(out, now.tv_sec, now.tv_nsec);
}

/* Write the calls of an answer, each with its arguments as an object: {} if they were cut off. */
static void calls_json(const struct choice *ch, struct buf *out)
{
    int n = 0;
    for (int i = 0; i < ch->n_parts; i++) {
        const struct answer_part *p = &ch->part[i];
        json_error_t je;
        if (p->kind != PART_CALL)
            continue;
        json_t *object = json_loadb(p->text.data ? p->text.data : "", p->text.size, 0, &je);
        out->failed |= (!object && js_no_memory(&je)) || p->text.failed;
        buf_str(out, n ? ",{\"id\":" : "{\"id\":");
        buf_json(out, p->id, strlen(p->id));
        buf_printf(out, ",\"function\":{\"index\":%d,\"name\":", n++);
        buf_json(out, p->name, strlen(p->name));
        buf_str(out, ",\"arguments\":");
        if (json_is_object(object))
            buf_add(out, p->text.data, p->text.size);
        else
            buf_str(out, "{}");
        buf_str(out, "}}");
        json_decref(object);
    }
}

/* Write the text and the reasoning of an object, and its calls if ch is given. */
static void content_json(const struct call *c, const struct choice *ch, const struct buf *text,
                         const struct buf *thought, struct buf *out)
{
    buf_str(out, is_chat(c) ? ",\"message\":{\"role\":\"assistant\",\"content\":" : ",\"response\":");
    buf_json(out, text->data, text->size);
    if (thought->size) {
        buf_str(out, ",\"thinking\":");
        buf_json(out, thought->data, thought->size);
    }
    if (ch && choice_calls(ch)) {
        buf_str(out, ",\"tool_calls\":[");
        calls_json(ch, out);
        buf_str(out, "]");
    }
    if (is_chat(c))
        buf_str(out, "}");
    out->failed |= text->failed | thought->failed;
}

/* Write the members of the last object: why the answer ended, counts and times. */
static void end_object(const struct call *c, const char *why, struct buf *out)
{
    struct token_counts t;
    buf_printf(out, ",\"done\":true,\"done_reason\":\"%s\"", why);
    if (c->n_choices) {
        const struct request_stats *s = &c->choices[0].stats;
        call_totals(c, &t);
        ollama_durations(c, out);
        buf_printf(out, ",\"prompt_eval_count\":%d,\"prompt_eval_duration\":%.0f,\"eval_count\":%d,\"eval_duration\":%.0f",
                   t.prompt, s->prefill_s * 1e9, t.completion, s->decode_s * 1e9);
    }
    buf_str(out, "}");
}

/* ---- a stream ---- */

static void begin(struct call *c) { call_begin_lines(c, "application/x-ndjson"); }

static void delta(struct call *c, struct choice *ch, const struct answer_part *p, int begins, const char *text,
                  size_t size)
{
    struct buf piece = { 0 };
    const struct buf none = { 0 };
    (void)ch;
    (void)begins;
    if (!call_is_stream(c) || p->kind == PART_CALL)     /* calls are sent whole, at the end */
        return;
    buf_add(&piece, text, size);
    begin_object(c, &c->line);
    content_json(c, NULL, p->kind == PART_TEXT ? &piece : &none, p->kind == PART_TEXT ? &none : &piece, &c->line);
    buf_str(&c->line, ",\"done\":false}\n");
    buf_release(&piece);
    call_send_event(c);
}

static void on_event(struct call *c, struct choice *ch, const struct events *b, const struct event *ev)
{
    const struct buf none = { 0 };
    conversation_event(c, ch, b, ev);
    if (!call_is_stream(c) || c->problem.status || !ev->last || !choice_calls(ch))
        return;
    begin_object(c, &c->line);
    content_json(c, ch, &none, &none, &c->line);
    buf_str(&c->line, ",\"done\":false}\n");
    call_send_event(c);
}

/* ---- the end ---- */

static void end(struct call *c)
{
    const struct choice *ch = &c->choices[0];
    const int stream = call_is_stream(c);
    struct buf out = { 0 }, text = { 0 }, thought = { 0 };
    if (!stream) {
        choice_text(ch, PART_TEXT, &text);
        choice_text(ch, PART_REASONING, &thought);
    }
    begin_object(c, &out);
    content_json(c, stream ? NULL : ch, &text, &thought, &out);
    end_object(c, call_finish_name(ch->finish), &out);
    if (stream) {
        buf_add(&c->line, out.data, out.size);
        buf_str(&c->line, "\n");
        c->line.failed |= out.failed;
        call_send_event(c);
        conn_end(c->conn);
    } else {
        reply_json(c->s, c->conn, 200, &out);
    }
    buf_release(&out);
    buf_release(&text);
    buf_release(&thought);
}

static void fail(struct call *c, const struct problem *p)
{
    if (!c->conn || conn_status(c->conn) == 0) {
        call_fail_answer(c, p);
        return;
    }
    record_error(call_record(c), p);
    problem_text_json(p, &c->line);             /* the status was sent when the stream began */
    buf_str(&c->line, "\n");
    call_send_event(c);
    conn_end(c->conn);
}

static const struct call_form chat = { .body = BODY_OLLAMA_CHAT, .prefix = "ollama-", .prepare = ollama_prepare_chat,
                                       .params = ollama_params, .latest = 1, .begin = begin, .event = on_event,
                                       .delta = delta, .end = end, .fail = fail };
static const struct call_form generate = { .body = BODY_OLLAMA_GENERATE, .prefix = "ollama-",
                                           .prepare = ollama_prepare_generate, .params = ollama_params, .latest = 1,
                                           .begin = begin, .event = on_event, .delta = delta, .end = end,
                                           .fail = fail };

/* ---- requests that only load or unload ---- */

static int prepare_nothing(struct call *c, struct problem *pr)
{
    (void)c;
    (void)pr;
    return 0;
}

static void idle_json(const struct call *c, const char *why, struct buf *out)
{
    const struct buf none = { 0 };
    begin_object(c, out);
    content_json(c, NULL, &none, &none, out);
    end_object(c, why, out);
}

static void end_load(struct call *c)
{
    struct buf out = { 0 };
    idle_json(c, "load", &out);
    reply_json(c->s, c->conn, 200, &out);
    buf_release(&out);
}

static const struct call_form load_chat = { .body = BODY_OLLAMA_CHAT, .prefix = "ollama-", .prepare = prepare_nothing,
                                            .params = ollama_params, .latest = 1, .end = end_load,
                                            .fail = call_fail_answer };
static const struct call_form load_generate = { .body = BODY_OLLAMA_GENERATE, .prefix = "ollama-",
                                                .prepare = prepare_nothing, .params = ollama_params, .latest = 1,
                                                .end = end_load, .fail = call_fail_answer };

/* Unload a named model, unless other clients use it. */
static void unload(struct server *s, struct conn *c, const struct call_form *form, const char *model)
{
    char name[STORE_NAME_BYTES];
    struct loaded_model *lm = ollama_find(s, c, model);
    struct access_record *record = conn_record(c);
    if (!lm && !ollama_named(s, c, model, name)) {
        reply_refusal(s, c, 404, "model_not_found", "model '%.120s' not found", model);
        return;
    }
    record_model(record, lm ? lm->id : name);
    if (!lm && ollama_is_loading(s, name)) {
        reply_refusal(s, c, 409, "model_loading", "model '%.120s' is being loaded: try again later", model);
        return;
    }
    if (lm && !lm->named) {
        reply_refusal(s, c, 400, "not_named", "%.120s was loaded by the administrator and cannot be unloaded here", model);
        return;
    }
    if (lm && !(record && record->is_admin) && (lm->shared || lm->loaded_by != guard_tenant(record))) {
        reply_refusal(s, c, 403, "model_shared", "%.120s: other clients use it, too", model);
        return;
    }
    struct call answer = { .form = form, .params.model = model };
    struct buf out = { 0 };
    idle_json(&answer, "unload", &out);
    if (lm)
        models_unload(s, lm);
    reply_json(s, c, 200, &out);
    buf_release(&out);
}

/* A body without a prompt only loads its model, or with keep_alive 0 unloads it.  1: it was such a
 * body with keep_alive 0, and is answered; -1: the caller has to load the model; 0: the body has a
 * prompt. */
static int only_loads(struct server *s, struct conn *c, const struct call_form *form)
{
    enum { SMALL = 4096 };                      /* larger bodies certainly have a prompt */
    const struct buf *b = &conn_request(c)->body;
    struct err e;
    json_t *body = b->size && b->size <= SMALL ? js_parse("body", b->data, b->size, &e) : NULL;
    const json_t *messages = js_get(body, "messages"), *prompt = js_get(body, "prompt"),
                 *keep = js_get(body, "keep_alive"), *images = js_get(body, "images");
    const char *model = json_string_value(js_get(body, "model"));
    struct problem ignored;
    double seconds = -1;
    const int loads = model && (form->body == BODY_OLLAMA_CHAT ? json_array_size(messages) == 0 &&
                                (!messages || json_is_array(messages))
                                : json_string_length(prompt) == 0 && (!prompt || json_is_string(prompt)) &&
                                json_array_size(images) == 0);
    const int unloads = loads && keep && ollama_keep_alive(keep, &seconds, &ignored) == 0 && !(seconds > 0) &&
                        !(seconds < 0);
    if (unloads)
        unload(s, c, form, model);
    json_decref(body);
    return unloads ? 1 : loads ? -1 : 0;
}

static void start(struct server *s, struct conn *c, const struct call_form *form, const struct call_form *load)
{
    const struct http_request *r = conn_request(c);
    const int loads = only_loads(s, c, form);
    if (loads <= 0)
        call_start(s, c, NULL, loads ? load : form, r->body.data, r->body.size);
}

void handle_ollama_chat(struct server *s, struct conn *c, const char *rest)
{
    (void)rest;
    start(s, c, &chat, &load_chat);
}

void handle_ollama_generate(struct server *s, struct conn *c, const char *rest)
{
    (void)rest;
    start(s, c, &generate, &load_generate);
}
