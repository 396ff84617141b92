/* chat.c - POST /v1/chat/completions. */
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/serve/calls.h"

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
    buf_release(&bytes);
}

/* An element of logprobs.content. */
static void logprob_entry(const struct call *c, const struct events *b, const struct event *ev, struct buf *out)
{
    const struct tokenizer *t = c->h->m.tokenizer;
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

static void stream_head(struct call *c, const char *object)
{
    buf_printf(&c->head, "data: {\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", c->id, object, (long long)c->created);
    buf_json(&c->head, c->h->id, strlen(c->h->id));
    buf_str(&c->head, ",\"system_fingerprint\":\"zse-" ZSE_VERSION "\",\"choices\":[");
}

static void begin(struct call *c)
{
    stream_head(c, "chat.completion.chunk");
    conn_add_header(c->conn, "Cache-Control", "no-cache");
    conn_add_header(c->conn, "X-Accel-Buffering", "no");        /* nginx would collect events */
    conn_begin(c->conn, 200, "text/event-stream; charset=utf-8");
    metrics_count(&c->s->metrics, c->route, 200);
}

/* One event with what is new. */
static void send_delta(struct call *c, struct choice *ch, const struct buf *reasoning, const struct buf *text, const struct buf *logprobs, int last)
{
    struct buf *out = &c->line;
    const char *comma = "";
    buf_add(out, c->head.data, c->head.size);
    buf_printf(out, "{\"index\":%d,\"delta\":{", ch->index);
    if (!ch->said_role) {
        buf_str(out, "\"role\":\"assistant\"");
        comma = ",";
        if (reasoning->size == 0 && text->size == 0)
            buf_str(out, ",\"content\":\"\"");
        ch->said_role = 1;
    }
    if (reasoning->size) {
        buf_printf(out, "%s\"reasoning_content\":", comma);
        buf_json(out, reasoning->data, reasoning->size);
        comma = ",";
    }
    if (text->size) {
        buf_printf(out, "%s\"content\":", comma);
        buf_json(out, text->data, text->size);
    }
    buf_str(out, "},\"logprobs\":");
    if (logprobs->size) {
        buf_str(out, "{\"content\":[");
        buf_add(out, logprobs->data, logprobs->size);
        buf_str(out, "],\"refusal\":null}");
    } else {
        buf_str(out, "null");
    }
    if (last)
        buf_printf(out, ",\"finish_reason\":\"%s\"}]", call_finish_name(ch->finish));
    else
        buf_str(out, ",\"finish_reason\":null}]");
    buf_str(out, c->include_usage ? ",\"usage\":null}\n\n" : "}\n\n");
    call_send_event(c);
}

static void on_event(struct call *c, struct choice *ch, const struct events *b, const struct event *ev)
{
    struct buf reasoning = { 0 }, text = { 0 }, entry = { 0 };
    const char *piece = ev->text_size ? b->bytes.data + ev->text : "";
    int thinking = ch->split.state != SPLIT_ANSWER;
    splitter_push(&ch->split, piece, ev->text_size, ev->last, &reasoning, &text);
    if (c->h->thinks && ev->id >= 0 && thinking && (ch->split.state == SPLIT_REASONING || ch->n_reasoning))
        ch->n_reasoning++;
    if (c->n_logprobs >= 0 && ev->id >= 0)
        logprob_entry(c, b, ev, &entry);
    if (call_is_stream(c)) {
        if (ev->last && (text.size || reasoning.size || entry.size)) {      /* the last event is an empty delta with the reason */
            send_delta(c, ch, &reasoning, &text, &entry, 0);
            text.size = reasoning.size = entry.size = 0;
        }
        if (ev->last || !ch->said_role || text.size || reasoning.size || entry.size)
            send_delta(c, ch, &reasoning, &text, &entry, ev->last);
    } else {
        buf_add(&ch->reasoning, reasoning.data, reasoning.size);
        buf_add(&ch->text, text.data, text.size);
        if (entry.size) {
            if (ch->logprobs.size)
                buf_str(&ch->logprobs, ",");
            buf_add(&ch->logprobs, entry.data, entry.size);
        }
    }
    buf_release(&reasoning);
    buf_release(&text);
    buf_release(&entry);
}

static void end_stream(struct call *c)
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

static void end(struct call *c)
{
    struct buf out = { 0 };
    if (call_is_stream(c)) {
        end_stream(c);
        return;
    }
    buf_printf(&out, "{\"id\":\"%s\",\"object\":\"chat.completion\",\"created\":%lld,\"model\":", c->id, (long long)c->created);
    buf_json(&out, c->h->id, strlen(c->h->id));
    buf_str(&out, ",\"system_fingerprint\":\"zse-" ZSE_VERSION "\",\"choices\":[");
    for (int i = 0; i < c->n_choices; i++) {
        const struct choice *ch = &c->choices[i];
        buf_printf(&out, "%s{\"index\":%d,\"message\":{\"role\":\"assistant\",\"content\":", i ? "," : "", i);
        buf_json(&out, ch->text.data, ch->text.size);
        if (ch->reasoning.size) {
            buf_str(&out, ",\"reasoning_content\":");
            buf_json(&out, ch->reasoning.data, ch->reasoning.size);
        }
        buf_str(&out, ",\"refusal\":null},\"logprobs\":");
        if (c->n_logprobs >= 0) {
            buf_str(&out, "{\"content\":[");
            buf_add(&out, ch->logprobs.data, ch->logprobs.size);
            buf_str(&out, "],\"refusal\":null}");
        } else {
            buf_str(&out, "null");
        }
        buf_printf(&out, ",\"finish_reason\":\"%s\"}", call_finish_name(ch->finish));
        out.failed |= ch->text.failed | ch->reasoning.failed | ch->logprobs.failed;
    }
    buf_str(&out, "],\"usage\":");
    call_usage(c, &out);
    buf_str(&out, "}");
    reply_json(c->s, c->conn, 200, &out);
    buf_release(&out);
}

static int prepare(struct call *c, struct problem *pr)
{
    char *text;
    size_t size;
    if (call_prompts(c, 1, pr) != 0 || call_render(c->h, c->json, 1, &text, &size, pr) != 0)
        return -1;
    c->starts_thinking = c->h->thinks && splitter_begun(text, size);
    int rc = call_tokenize(c, 0, text, size, 1, 0, pr, "messages");
    free(text);
    return rc;
}

static const struct call_form form = { BODY_CHAT, "chatcmpl-", prepare, begin, on_event, end, call_fail_answer };

void handle_chat(struct server *s, struct conn *c, const char *rest)
{
    const struct http_request *r = conn_request(c);
    (void)rest;
    call_start(s, c, NULL, &form, r->body.data, r->body.size);
}
