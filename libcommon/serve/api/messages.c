/* messages.c - POST /v1/messages and /v1/messages/count_tokens: Anthropic's Messages. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/serve/api/calls.h"

static int prepare(struct call *c, struct problem *pr)
{
    return messages_read(c->json, &c->conversation, pr) == 0 ? conversation_prepare(c, pr) : -1;
}

/* ---- the answer ---- */

static void usage(const struct call *c, struct buf *out)
{
    struct token_counts t;
    call_totals(c, &t);
    buf_printf(out, "{\"input_tokens\":%d,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":%d,\"output_tokens\":%d",
               t.prompt - t.cached, t.cached, t.completion);
    call_speculation(c, out);
    buf_str(out, "}");
}

static void stop_json(const struct call *c, struct buf *out)
{
    const struct choice *ch = &c->choices[0];
    const char *why = ch->finish == FINISH_LENGTH ? "max_tokens" : ch->stop ? "stop_sequence" : choice_calls(ch)
                          ? "tool_use" : "end_turn";
    buf_printf(out, "\"stop_reason\":\"%s\",\"stop_sequence\":", why);
    if (ch->finish != FINISH_LENGTH && ch->stop)
        buf_json(out, c->stop[ch->stop - 1], strlen(c->stop[ch->stop - 1]));
    else
        buf_str(out, "null");
}

/* The id of a call: Anthropic's begin with "toolu_" instead of "call_". */
static void call_id(const struct answer_part *p, struct buf *out)
{
    struct buf id = { 0 };
    int ours = strncmp(p->id, "call_", 5) == 0;
    buf_str(&id, ours ? "toolu_" : "");
    buf_str(&id, ours ? p->id + 5 : p->id);
    buf_json(out, id.data, id.size);
    out->failed |= id.failed;
    buf_release(&id);
}

/* A content block; whole 0: as it begins in a stream, without content.  Arguments that were cut off
 * are not valid JSON: their input is empty, too. */
static void block_json(const struct answer_part *p, int whole, struct buf *out)
{
    const size_t n = whole ? p->text.size : 0;
    json_error_t je;
    json_t *input = whole && p->kind == PART_CALL ? json_loadb(p->text.data ? p->text.data : "", p->text.size, 0, &je)
                                                  : NULL;
    out->failed |= whole && p->kind == PART_CALL && !input && js_no_memory(&je);
    if (p->kind == PART_CALL) {
        buf_str(out, "{\"type\":\"tool_use\",\"id\":");
        call_id(p, out);
        buf_str(out, ",\"name\":");
        buf_json(out, p->name, strlen(p->name));
        buf_str(out, ",\"input\":");
        if (json_is_object(input))
            buf_add(out, p->text.data, n);
        else
            buf_str(out, "{}");
    } else if (p->kind == PART_REASONING) {
        buf_str(out, "{\"type\":\"thinking\",\"signature\":\"\",\"thinking\":");
        buf_json(out, p->text.data, n);
    } else {
        buf_str(out, "{\"type\":\"text\",\"text\":");
        buf_json(out, p->text.data, n);
    }
    buf_str(out, "}");
    json_decref(input);
    out->failed |= p->text.failed;
}

static void message_head(const struct call *c, struct buf *out)
{
    buf_printf(out, "{\"id\":\"%s\",\"type\":\"message\",\"role\":\"assistant\",\"model\":", c->id);
    buf_json(out, c->lm->id, strlen(c->lm->id));
    buf_str(out, ",\"content\":[");
}

/* ---- the stream ---- */

static void event_head(struct call *c, const char *type)
{
    buf_printf(&c->line, "event: %s\ndata: {\"type\":\"%s\"", type, type);
}

static void event_end(struct call *c)
{
    buf_str(&c->line, "}\n\n");
    call_send_event(c);
}

static void begin(struct call *c)
{
    call_begin_stream(c);
    event_head(c, "message_start");
    buf_str(&c->line, ",\"message\":");
    message_head(c, &c->line);
    buf_printf(&c->line, "],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":{\"input_tokens\":%d,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":0,\"output_tokens\":0}}",
               c->prompts[0].n_ids);
    event_end(c);
}

static void close_block(struct call *c, const struct answer_part *p)
{
    event_head(c, "content_block_stop");
    buf_printf(&c->line, ",\"index\":%d", p->index);
    event_end(c);
}

static void delta(struct call *c, struct choice *ch, const struct answer_part *p, int begins, const char *text,
                  size_t size)
{
    static const char *const delta[] = { [PART_TEXT] = "\"text_delta\",\"text\"",
                                         [PART_REASONING] = "\"thinking_delta\",\"thinking\"",
                                         [PART_CALL] = "\"input_json_delta\",\"partial_json\"" };
    if (!call_is_stream(c))
        return;
    if (begins) {
        if (p->index > 0)
            close_block(c, &ch->part[p->index - 1]);
        event_head(c, "content_block_start");
        buf_printf(&c->line, ",\"index\":%d,\"content_block\":", p->index);
        block_json(p, 0, &c->line);
        event_end(c);
    }
    if (size == 0)
        return;
    event_head(c, "content_block_delta");
    buf_printf(&c->line, ",\"index\":%d,\"delta\":{\"type\":%s:", p->index, delta[p->kind]);
    buf_json(&c->line, text, size);
    buf_str(&c->line, "}");
    event_end(c);
}

static void end(struct call *c)
{
    const struct choice *ch = &c->choices[0];
    struct buf out = { 0 };
    if (call_is_stream(c)) {
        if (ch->n_parts)
            close_block(c, &ch->part[ch->n_parts - 1]);
        event_head(c, "message_delta");
        buf_str(&c->line, ",\"delta\":{");
        stop_json(c, &c->line);
        buf_str(&c->line, "},\"usage\":");
        usage(c, &c->line);
        event_end(c);
        event_head(c, "message_stop");
        event_end(c);
        conn_end(c->conn);
        return;
    }
    message_head(c, &out);
    for (int i = 0; i < ch->n_parts; i++) {
        buf_str(&out, i ? "," : "");
        block_json(&ch->part[i], 1, &out);
    }
    buf_str(&out, "],");
    stop_json(c, &out);
    buf_str(&out, ",\"usage\":");
    usage(c, &out);
    buf_str(&out, "}");
    reply_json(c->s, c->conn, 200, &out);
    buf_release(&out);
}

static void fail(struct call *c, const struct problem *p)
{
    if (c->conn && conn_status(c->conn) != 0)
        buf_str(&c->line, "event: error\n");
    call_fail_answer(c, p);
}

static const struct call_form form = { .body = BODY_MESSAGES, .prefix = "msg_", .prepare = prepare, .begin = begin,
                                       .event = conversation_event, .delta = delta, .end = end, .fail = fail };

void handle_messages(struct server *s, struct conn *c, const char *rest)
{
    const struct http_request *r = conn_request(c);
    (void)rest;
    call_start(s, c, NULL, &form, r->body.data, r->body.size);
}

/* ---- count_tokens ---- */

static int count(struct call *c, struct problem *pr)
{
    char *text;
    size_t size;
    if (messages_read(c->json, &c->conversation, pr) != 0 || conversation_check_tools(&c->conversation, pr) != 0 ||
        call_prompts(c, 1, pr) != 0 || conversation_render(c->lm, &c->conversation, 1, &text, &size, pr) != 0)
        return -1;
    int rc = call_tokenize(c, 0, text, size, 1, 0, pr, "messages");
    free(text);
    buf_printf(&c->line, "{\"input_tokens\":%d}", c->prompts[0].n_ids);
    return rc;
}

static void end_count(struct call *c) { reply_json(c->s, c->conn, 200, &c->line); }

static const struct call_form count_form = { .body = BODY_COUNT, .prefix = "msg_", .prepare = count, .end = end_count,
                                             .fail = call_fail_answer };

void handle_count_tokens(struct server *s, struct conn *c, const char *rest)
{
    const struct http_request *r = conn_request(c);
    (void)rest;
    call_start(s, c, NULL, &count_form, r->body.data, r->body.size);
}
