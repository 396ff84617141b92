/* completions.c - POST /v1/completions. */
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/base/utf8.h"
#include "libcommon/serve/api/calls.h"

static void comma(struct buf *out)
{
    if (out->size)
        buf_str(out, ",");
}

/* Append a token to the four lists of logprobs. */
static void add_logprobs(const struct call *c, struct choice *ch, const struct events *b, const struct event *ev)
{
    const struct tokenizer *t = c->lm->m.tokenizer;
    const struct top_logprob *top = event_top(b, ev);
    struct buf bytes = { 0 };
    token_bytes(t, ev->id, &bytes);
    comma(&ch->logprobs);
    token_json(bytes.data, bytes.size, &ch->logprobs);
    comma(&ch->values);
    logprob_json(ev->logprob, &ch->values);
    comma(&ch->offsets);
    buf_printf(&ch->offsets, "%zu", ch->n_chars);
    ch->n_chars += utf8_count(bytes.data ? bytes.data : "", bytes.size);
    comma(&ch->tops);
    if (ev->n_top == 0) {
        buf_str(&ch->tops, "null");
    } else {
        buf_str(&ch->tops, "{");
        for (int i = 0; i < ev->n_top; i++) {
            bytes.size = 0;
            token_bytes(t, top[i].id, &bytes);
            if (i)
                buf_str(&ch->tops, ",");
            token_json(bytes.data, bytes.size, &ch->tops);
            buf_str(&ch->tops, ":");
            logprob_json(top[i].logprob, &ch->tops);
        }
        buf_str(&ch->tops, "}");
    }
    ch->logprobs.failed |= bytes.failed;
    buf_release(&bytes);
}

static void logprobs_json(const struct call *c, const struct choice *ch, struct buf *out)
{
    if (c->n_logprobs < 0) {
        buf_str(out, "null");
        return;
    }
    buf_str(out, "{\"tokens\":[");
    buf_add(out, ch->logprobs.data, ch->logprobs.size);
    buf_str(out, "],\"token_logprobs\":[");
    buf_add(out, ch->values.data, ch->values.size);
    buf_str(out, "],\"top_logprobs\":[");
    buf_add(out, ch->tops.data, ch->tops.size);
    buf_str(out, "],\"text_offset\":[");
    buf_add(out, ch->offsets.data, ch->offsets.size);
    buf_str(out, "]}");
    out->failed |= ch->logprobs.failed | ch->values.failed | ch->tops.failed | ch->offsets.failed;
}

static void begin(struct call *c)
{
    buf_str(&c->head, call_event_begin(c));
    call_head(c, "text_completion", &c->head);
    call_begin_stream(c);
}

/* Whether the answer is only the prompt, as max_tokens 0 requests; the one token that the engine
 * generates is hidden. */
static int only_prompt(const struct call *c) { return c->max_tokens == 0; }

static void send_piece(struct call *c, struct choice *ch, const char *text, size_t size, int last)
{
    struct buf *out = &c->line;
    buf_add(out, c->head.data, c->head.size);
    buf_printf(out, "{\"index\":%d,\"text\":", ch->index);
    buf_json(out, text, size);
    buf_str(out, ",\"logprobs\":");
    if (ch->logprobs.size)
        logprobs_json(c, ch, out);
    else
        buf_str(out, "null");
    out->failed |= ch->text.failed | ch->logprobs.failed;
    ch->logprobs.size = ch->values.size = ch->tops.size = ch->offsets.size = 0;
    call_end_event(c, last ? call_finish_name(ch->finish) : NULL);
}

static void on_event(struct call *c, struct choice *ch, const struct events *b, const struct event *ev)
{
    const struct prompt *p = &c->prompts[ch->prompt];
    int hidden = only_prompt(c) && !ev->is_prompt;
    size_t size = hidden ? 0 : ev->text_size;
    const char *text = size ? b->bytes.data + ev->text : "";
    if (hidden && ev->last) {
        ch->stats.n_generated = 0;
        ch->finish = FINISH_LENGTH;
    }
    if (!ch->said_role && p->text && !ev->is_prompt) { /* the option echo: send the prompt before the first token */
        buf_add(&ch->text, p->text, p->text_size);
        if (c->n_logprobs < 0)
            ch->n_chars = utf8_count(p->text, p->text_size);
        ch->said_role = 1;
    }
    if (c->n_logprobs >= 0 && ev->id >= 0 && !hidden)
        add_logprobs(c, ch, b, ev);
    if (ev->is_prompt)
        return;
    buf_add(&ch->text, text, size);
    if (call_is_stream(c) && (ev->last || ch->text.size || ch->logprobs.size)) {
        send_piece(c, ch, ch->text.data, ch->text.size, ev->last);
        ch->text.size = 0;
    }
}

static void end(struct call *c)
{
    struct buf out = { 0 };
    if (call_is_stream(c)) {
        call_end_stream(c);
        return;
    }
    call_head(c, "text_completion", &out);
    for (int i = 0; i < c->n_choices; i++) {
        const struct choice *ch = &c->choices[i];
        buf_printf(&out, "%s{\"index\":%d,\"text\":", i ? "," : "", i);
        buf_json(&out, ch->text.data, ch->text.size);
        buf_str(&out, ",\"logprobs\":");
        logprobs_json(c, ch, &out);
        buf_printf(&out, ",\"finish_reason\":\"%s\"}", call_finish_name(ch->finish));
        out.failed |= ch->text.failed;
    }
    call_end_answer(c, &out);
}

static int prepare(struct call *c, struct problem *pr)
{
    c->conversation.format = js_get(c->json, "response_format");
    c->conversation.format_param = "response_format";
    return call_any_prompts(c, "prompt", 1, pr) == 0 ? call_answer_grammar(c, pr) : -1;
}

static const struct call_form form = { .body = BODY_COMPLETION, .prefix = "cmpl-", .prepare = prepare, .begin = begin,
                                       .event = on_event, .end = end, .fail = call_fail_answer };

void handle_completions(struct server *s, struct conn *c, const char *rest)
{
    const struct http_request *r = conn_request(c);
    (void)rest;
    call_start(s, c, NULL, &form, r->body.data, r->body.size);
}
