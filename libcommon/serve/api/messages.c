/* messages.c - POST /v1/messages and /v1/messages/count_tokens: Anthropic's Messages API. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/serve/api/calls.h"

static int prepare(struct call *c, struct problem *pr)
{
    if (c->rounds)                              /* in later rounds the messages exist already */
        return conversation_prepare(c, pr);
    return messages_read(c->json, &c->conversation, pr) == 0 &&
           rounds_open(c, pr) == 0 ? conversation_prepare(c, pr) : -1;
}

/* ---- the answer ---- */

/* prefix of the ids of calls */
#define OWN_ID "toolu_"
#define SERVER_ID "mcptoolu_"

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

/* Write the input of a call.  Arguments that were cut off are not valid JSON: their input is
 * empty. */
static void input_json(const struct answer_part *p, int whole, struct buf *out)
{
    json_error_t je;
    json_t *input = whole ? json_loadb(p->text.data ? p->text.data : "", p->text.size, 0, &je) : NULL;
    out->failed |= (whole && !input && js_no_memory(&je)) || p->text.failed;
    buf_str(out, ",\"input\":");
    if (json_is_object(input))
        buf_add(out, p->text.data, p->text.size);
    else
        buf_str(out, "{}");
    json_decref(input);
}

/* Write the blocks of a call that the server runs, and of its result, like Anthropic's MCP
 * connector. */
static void use_json(const struct call *c, const struct answer_part *p, int whole, struct buf *out)
{
    const char *server = rounds_server(c, p->name);
    buf_str(out, "{\"type\":\"mcp_tool_use\",\"id\":");
    call_id_json(p->id, SERVER_ID, out);
    buf_str(out, ",\"name\":");
    buf_json(out, p->name, strlen(p->name));
    buf_str(out, ",\"server_name\":");
    buf_json(out, server, strlen(server));
    input_json(p, whole, out);
    buf_str(out, "}");
}

static void result_json(const struct answer_part *p, const struct call_result *t, struct buf *out)
{
    buf_str(out, "{\"type\":\"mcp_tool_result\",\"tool_use_id\":");
    call_id_json(p->id, SERVER_ID, out);
    buf_printf(out, ",\"is_error\":%s,\"content\":[{\"type\":\"text\",\"text\":", t->is_error ? "true" : "false");
    buf_json(out, t->content, t->size);
    buf_str(out, "}]}");
}

/* Write a content block; whole 0: its beginning in a stream, without content. */
static void block_json(const struct answer_part *p, int whole, struct buf *out)
{
    const size_t n = whole ? p->text.size : 0;
    if (p->kind == PART_CALL) {
        buf_str(out, "{\"type\":\"tool_use\",\"id\":");
        call_id_json(p->id, OWN_ID, out);
        buf_str(out, ",\"name\":");
        buf_json(out, p->name, strlen(p->name));
        input_json(p, whole, out);
    } else if (p->kind == PART_REASONING) {
        buf_str(out, "{\"type\":\"thinking\",\"signature\":\"\",\"thinking\":");
        buf_json(out, p->text.data, n);
    } else {
        buf_str(out, "{\"type\":\"text\",\"text\":");
        buf_json(out, p->text.data, n);
    }
    buf_str(out, "}");
    out->failed |= p->text.failed;
}

/* Write the content blocks of the current round.  calls 0: leave out the calls, because the server
 * runs them. */
static void blocks_json(const struct choice *ch, int calls, struct buf *out)
{
    const int apart = ch->call->rounds != NULL;         /* calls come after the other parts */
    for (int pass = 0; pass <= apart; pass++)
        for (int i = 0; i < ch->n_parts; i++) {
            const struct answer_part *p = &ch->part[i];
            if ((apart && pass != (p->kind == PART_CALL)) || (p->kind == PART_CALL && !calls))
                continue;
            buf_str(out, out->size ? "," : "");
            block_json(p, 1, out);
        }
}

static void keep_result(struct call *c, const struct answer_part *p, const struct call_result *t)
{
    buf_str(&c->rounds->items, ",");
    result_json(p, t, &c->rounds->items);
    c->rounds->n_items++;
}

static void round_end(struct call *c, const struct choice *ch)
{
    struct tool_rounds *r = c->rounds;
    blocks_json(ch, 0, &r->items);
    r->n_items += ch->n_parts;
    for (int i = 0; i < choice_calls(ch); i++) {
        buf_str(&r->items, r->items.size ? "," : "");
        use_json(c, choice_call(ch, i), 1, &r->items);
    }
    rounds_each_result(c, keep_result);
}

static void message_head(const struct call *c, struct buf *out)
{
    buf_printf(out, "{\"id\":\"%s\",\"type\":\"message\",\"role\":\"assistant\",\"model\":", c->id);
    buf_json(out, call_model(c), strlen(call_model(c)));
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

static void begin_block(struct call *c, int number)
{
    event_head(c, "content_block_start");
    buf_printf(&c->line, ",\"index\":%d,\"content_block\":", number);
}

static void close_block(struct call *c, int number)
{
    event_head(c, "content_block_stop");
    buf_printf(&c->line, ",\"index\":%d", number);
    event_end(c);
}

static void part_delta(struct call *c, const struct choice *ch, const struct answer_part *p, const char *text,
                       size_t size)
{
    static const char *const delta[] = { [PART_TEXT] = "\"text_delta\",\"text\"",
                                         [PART_REASONING] = "\"thinking_delta\",\"thinking\"",
                                         [PART_CALL] = "\"input_json_delta\",\"partial_json\"" };
    event_head(c, "content_block_delta");
    buf_printf(&c->line, ",\"index\":%d,\"delta\":{\"type\":%s:", rounds_number(c, ch, p), delta[p->kind]);
    buf_json(&c->line, text, size);
    buf_str(&c->line, "}");
    event_end(c);
}

/* Send a call with its complete arguments as a block. */
static void whole_call(struct call *c, const struct choice *ch, const struct answer_part *p, int runs)
{
    begin_block(c, rounds_number(c, ch, p));
    if (runs)
        use_json(c, p, 0, &c->line);
    else
        block_json(p, 0, &c->line);
    event_end(c);
    if (p->text.size)
        part_delta(c, ch, p, p->text.data, p->text.size);
    close_block(c, rounds_number(c, ch, p));
}

static void tool_call(struct call *c, const struct answer_part *p) { whole_call(c, &c->choices[0], p, 1); }

static void tool_result(struct call *c, const struct answer_part *p, const struct call_result *t)
{
    const int number = c->rounds->n_items + c->choices[0].n_parts + c->rounds->n_results;
    begin_block(c, number);
    result_json(p, t, &c->line);
    event_end(c);
    close_block(c, number);
}

static void delta(struct call *c, struct choice *ch, const struct answer_part *p, int begins, const char *text,
                  size_t size)
{
    const struct answer_part *open = begins ? rounds_streamed(c, ch, p->index) : NULL;
    if (!call_is_stream(c) || (p->kind == PART_CALL && c->rounds))      /* calls of a round are sent by on_event */
        return;
    if (open)
        close_block(c, rounds_number(c, ch, open));
    if (begins) {
        begin_block(c, rounds_number(c, ch, p));
        block_json(p, 0, &c->line);
        event_end(c);
    }
    if (size)
        part_delta(c, ch, p, text, size);
}

static void on_event(struct call *c, struct choice *ch, const struct events *b, const struct event *ev)
{
    conversation_event(c, ch, b, ev);
    if (c->rounds && ev->last)
        rounds_judge(c, ch);
    if (!call_is_stream(c) || c->problem.status || !ev->last)
        return;
    const struct answer_part *open = rounds_streamed(c, ch, ch->n_parts);
    if (open)
        close_block(c, rounds_number(c, ch, open));
    for (int i = 0; c->rounds && !c->rounds->runs_next && i < choice_calls(ch); i++)
        whole_call(c, ch, choice_call(ch, i), 0);
}

static void end(struct call *c)
{
    const struct choice *ch = &c->choices[0];
    struct buf out = { 0 }, blocks = { 0 };
    if (call_is_stream(c)) {
        event_head(c, "message_delta");
        buf_str(&c->line, ",\"delta\":{");
        stop_json(c, &c->line);
        buf_str(&c->line, "},\"usage\":");
        usage(c, &c->line);
        rounds_stop_json(c, OWN_ID, &c->line);
        event_end(c);
        event_head(c, "message_stop");
        event_end(c);
        conn_end(c->conn);
        return;
    }
    message_head(c, &out);
    if (c->rounds)
        buf_add(&blocks, c->rounds->items.data, c->rounds->items.size);
    blocks_json(ch, 1, &blocks);
    buf_add(&out, blocks.data, blocks.size);
    out.failed |= blocks.failed;
    buf_release(&blocks);
    buf_str(&out, "],");
    stop_json(c, &out);
    buf_str(&out, ",\"usage\":");
    usage(c, &out);
    rounds_stop_json(c, OWN_ID, &out);
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
                                       .event = on_event, .delta = delta, .tool_call = tool_call,
                                       .tool_result = tool_result, .round_end = round_end, .end = end, .fail = fail };

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
    json_t *wanted = NULL;
    const int bad = messages_read(c->json, &c->conversation, pr) != 0 || rounds_add_tools(c, &wanted, pr) < 0;
    json_decref(wanted);
    if (bad || conversation_check_tools(&c->conversation, pr) != 0 ||
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
