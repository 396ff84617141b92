/* chat_completions.c - POST /v1/chat/completions. */
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/serve/api/calls.h"

/* ---- parts of the answer ---- */

static void token_entry(const struct tokenizer *t, int32_t id, float logprob, struct buf *out)
{
    struct buf bytes = { 0 };
    token_bytes(t, id, &bytes);
    buf_str(out, "{\"token\":");
    token_json(bytes.data, bytes.size, out);
    buf_str(out, ",\"logprob\":");
    logprob_json(logprob, out);
    buf_str(out, ",\"bytes\":[");
    for (size_t i = 0; i < bytes.size; i++)
        buf_printf(out, i ? ",%d" : "%d", (unsigned char)bytes.data[i]);
    buf_str(out, "]");
    out->failed |= bytes.failed;
    buf_release(&bytes);
}

/* Write an element of logprobs.content. */
static void logprob_entry(const struct call *c, const struct events *b, const struct event *ev, struct buf *out)
{
    const struct tokenizer *t = c->lm->m.tokenizer;
    const struct top_logprob *top = event_top(b, ev);
    token_entry(t, ev->id, ev->logprob, out);
    buf_str(out, ",\"top_logprobs\":[");
    for (int i = 0; i < ev->n_top; i++) {
        if (i)
            buf_str(out, ",");
        token_entry(t, top[i].id, top[i].logprob, out);
        buf_str(out, "}");
    }
    buf_str(out, "]}");
}

/* ---- a stream ---- */

static void begin(struct call *c)
{
    buf_str(&c->head, call_event_begin(c));
    call_head(c, "chat.completion.chunk", &c->head);
    call_begin_stream(c);
    if (c->documents) {                         /* send an event without choices before the first token */
        buf_add(&c->line, c->head.data, c->head.size);
        buf_str(&c->line, "]");
        documents_json(c, &c->line);
        buf_printf(&c->line, "}%s", call_event_end(c));
        call_send_event(c);
    }
}

static const char *finish_of(const struct choice *ch)
{
    return ch->finish == FINISH_STOP && choice_calls(ch) &&
           !choice_cut(ch) ? "tool_calls" : call_finish_name(ch->finish);
}

/* Begin a delta; the first delta of a choice has the role. */
static void begin_delta(struct call *c, struct choice *ch, const char *content)
{
    buf_add(&c->line, c->head.data, c->head.size);
    buf_printf(&c->line, "{\"index\":%d,\"delta\":{", ch->index);
    if (!ch->said_role)
        buf_printf(&c->line, "\"role\":\"assistant\"%s", content);
    ch->said_role = 1;
}

/* End a delta, with the logprobs of its tokens. */
static void end_delta(struct call *c, struct choice *ch, const char *finish)
{
    buf_str(&c->line, "},\"logprobs\":");
    if (ch->logprobs.size) {
        buf_str(&c->line, "{\"content\":[");
        buf_add(&c->line, ch->logprobs.data, ch->logprobs.size);
        buf_str(&c->line, "],\"refusal\":null}");
    } else {
        buf_str(&c->line, "null");
    }
    c->line.failed |= ch->logprobs.failed;
    ch->logprobs.size = 0;
    call_end_event(c, finish);
}

static void delta(struct call *c, struct choice *ch, const struct answer_part *p, int begins, const char *text,
                  size_t size)
{
    const char *comma = ch->said_role ? "" : ",";
    if (!call_is_stream(c) || (p->kind == PART_CALL && c->rounds))      /* calls of a round are sent by send_calls */
        return;
    if (p->kind == PART_CALL) {
        begin_delta(c, ch, ",\"content\":null");
        buf_printf(&c->line, "%s\"tool_calls\":[{\"index\":%d,", comma, choice_call_index(ch, p));
        if (begins) {
            buf_str(&c->line, "\"id\":");
            buf_json(&c->line, p->id, strlen(p->id));
            buf_str(&c->line, ",\"type\":\"function\",\"function\":{\"name\":");
            buf_json(&c->line, p->name, strlen(p->name));
            buf_str(&c->line, ",\"arguments\":\"\"}}]");
        } else {
            buf_str(&c->line, "\"function\":{\"arguments\":");
            buf_json(&c->line, text, size);
            buf_str(&c->line, "}}]");
        }
    } else {
        begin_delta(c, ch, "");
        struct buf all = { 0 };
        buf_str(&all, begins ? rounds_gap(c, ch, p) : "");
        buf_add(&all, text, size);
        buf_printf(&c->line, "%s\"%s\":", comma, p->kind == PART_REASONING ? "reasoning_content" : "content");
        buf_json(&c->line, all.data, all.size);
        c->line.failed |= all.failed;
        buf_release(&all);
    }
    end_delta(c, ch, NULL);
}

/* Send the calls of a round that the client has to run.  They are sent whole, because only the
 * end of the round decides whether the server runs them. */
static void send_calls(struct call *c, struct choice *ch)
{
    for (int i = 0; i < ch->n_parts; i++) {
        const struct answer_part *p = &ch->part[i];
        if (p->kind != PART_CALL)
            continue;
        const char *comma = ch->said_role ? "" : ",";
        begin_delta(c, ch, ",\"content\":null");
        buf_printf(&c->line, "%s\"tool_calls\":[{\"index\":%d,\"id\":", comma, choice_call_index(ch, p));
        buf_json(&c->line, p->id, strlen(p->id));
        buf_str(&c->line, ",\"type\":\"function\",\"function\":{\"name\":");
        buf_json(&c->line, p->name, strlen(p->name));
        buf_str(&c->line, ",\"arguments\":");
        buf_json(&c->line, p->text.data, p->text.size);
        buf_str(&c->line, "}}]");
        end_delta(c, ch, NULL);
    }
}

static void tool_call(struct call *c, const struct answer_part *p)
{
    begin_delta(c, &c->choices[0], ",\"content\":\"\"");
    buf_str(&c->more, ",\"tool_event\":");
    rounds_call_json(c, p, &c->more);
    end_delta(c, &c->choices[0], NULL);
}

static void tool_result(struct call *c, const struct answer_part *p, const struct call_result *t)
{
    begin_delta(c, &c->choices[0], ",\"content\":\"\"");
    buf_str(&c->more, ",\"tool_event\":");
    rounds_result_json(c, p, t, &c->more);
    end_delta(c, &c->choices[0], NULL);
}

static void on_event(struct call *c, struct choice *ch, const struct events *b, const struct event *ev)
{
    if (c->n_logprobs >= 0 && ev->id >= 0) {
        if (ch->logprobs.size)
            buf_str(&ch->logprobs, ",");
        logprob_entry(c, b, ev, &ch->logprobs);
    }
    conversation_event(c, ch, b, ev);
    if (c->rounds && ev->last)
        rounds_judge(c, ch);
    if (!call_is_stream(c) || c->problem.status || (c->rounds && c->rounds->runs_next))
        return;
    /* send an empty text for the first token or for logprobs; tokens of a call may have no text */
    if ((!ch->said_role && !ch->parser) || ch->logprobs.size) {
        begin_delta(c, ch, ",\"content\":\"\"");
        end_delta(c, ch, NULL);
    }
    if (ev->last && c->rounds) {
        send_calls(c, ch);
        rounds_stop_json(c, "call_", &c->more);
    }
    if (ev->last) {                             /* the last event has an empty delta and the finish reason */
        begin_delta(c, ch, ",\"content\":\"\"");
        end_delta(c, ch, finish_of(ch));
    }
}

/* ---- a whole answer ---- */

static void message(const struct choice *ch, struct buf *out)
{
    struct buf text = { 0 }, reasoning = { 0 };
    int n = 0, calls = choice_calls(ch);
    rounds_text(ch, PART_TEXT, &text);
    rounds_text(ch, PART_REASONING, &reasoning);
    buf_str(out, "{\"role\":\"assistant\",\"content\":");
    if (calls && text.size == 0)
        buf_str(out, "null");
    else
        buf_json(out, text.data, text.size);
    if (reasoning.size) {
        buf_str(out, ",\"reasoning_content\":");
        buf_json(out, reasoning.data, reasoning.size);
    }
    for (int i = 0; i < ch->n_parts; i++) {
        const struct answer_part *p = &ch->part[i];
        if (p->kind != PART_CALL)
            continue;
        buf_str(out, n++ ? ",{\"id\":" : ",\"tool_calls\":[{\"id\":");
        buf_json(out, p->id, strlen(p->id));
        buf_str(out, ",\"type\":\"function\",\"function\":{\"name\":");
        buf_json(out, p->name, strlen(p->name));
        buf_str(out, ",\"arguments\":");
        buf_json(out, p->text.data, p->text.size);
        buf_str(out, n == calls ? "}}]" : "}}");
        out->failed |= p->text.failed;
    }
    buf_str(out, ",\"refusal\":null}");
    out->failed |= text.failed | reasoning.failed;
    buf_release(&text);
    buf_release(&reasoning);
}

static void end(struct call *c)
{
    struct buf out = { 0 };
    if (call_is_stream(c)) {
        call_end_stream(c);
        return;
    }
    call_head(c, "chat.completion", &out);
    for (int i = 0; i < c->n_choices; i++) {
        const struct choice *ch = &c->choices[i];
        buf_printf(&out, "%s{\"index\":%d,\"message\":", i ? "," : "", i);
        message(ch, &out);
        buf_str(&out, ",\"logprobs\":");
        if (c->n_logprobs >= 0) {
            buf_str(&out, "{\"content\":[");
            buf_add(&out, ch->logprobs.data, ch->logprobs.size);
            buf_str(&out, "],\"refusal\":null}");
        } else {
            buf_str(&out, "null");
        }
        buf_printf(&out, ",\"finish_reason\":\"%s\"}", finish_of(ch));
        out.failed |= ch->logprobs.failed;
    }
    call_end_answer(c, &out);
}

/* ---- the body ---- */

static int prepare(struct call *c, struct problem *pr)
{
    if (c->rounds)                              /* in later rounds the messages exist already */
        return conversation_prepare(c, pr);
    return chat_read(c->json, c->params.parallel_calls, &c->conversation, pr) == 0 &&
           documents_insert(c, pr) == 0 && rounds_open(c, pr) == 0 ? conversation_prepare(c, pr) : -1;
}

#define FORM .body = BODY_CHAT, .prefix = "chatcmpl-", .prepare = prepare, .begin = begin, .event = on_event, \
             .delta = delta, .tool_call = tool_call, .tool_result = tool_result, .end = end, .fail = call_fail_answer
static const struct call_form form = { FORM };
const struct call_form chat_socket_form = { FORM, .on_socket = 1 };

void handle_chat(struct server *s, struct conn *c, const char *rest)
{
    const struct http_request *r = conn_request(c);
    (void)rest;
    call_start(s, c, NULL, &form, r->body.data, r->body.size);
}
