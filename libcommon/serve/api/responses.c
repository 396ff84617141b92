/* responses.c - /v1/responses: the Responses API of OpenAI, as the specification of Open Responses
 * has it, over HTTP and as a WebSocket.  Responses are kept in memory (serve/response_store.h), so
 * that a request can continue one instead of sending the whole conversation. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "libcommon/base/json.h"
#include "libcommon/serve/api/calls.h"

/* ---- the body ---- */

/* Find the response that this one continues.  In the loop's thread. */
static int params(struct call *c, struct problem *pr)
{
    const char *id = c->params.previous_response_id;
    const struct kept_response *r =
        id ? response_store_find(c->s->responses, id, c->tenant, c->form->on_socket ? c->conn : NULL) : NULL;
    if (c->form->on_socket && !(c->params.event && strcmp(c->params.event, "response.create") == 0))
        return problem_set(pr, 400, "type", "invalid_value", "type: found '%.40s', expected response.create",
                           c->params.event ? c->params.event : "");
    if (id && !r)
        return problem_set(pr, 400, "previous_response_id", "previous_response_not_found",
                           "previous_response_id: '%.60s' is not kept: send the whole conversation as input", id);
    if (!r || call_keep(c, r->items_size + 1, pr) != 0)
        return r ? -1 : 0;
    buf_add(&c->previous, r->items, r->items_size);
    return c->previous.failed ? problem_nomem(pr) : 0;
}

/* Make a list of the items of the response that this one continues. */
static int read_previous(struct call *c, struct problem *pr)
{
    struct buf list = { 0 };
    struct err e;
    if (!c->previous.size)
        return 0;
    const size_t size = c->previous.size + 2;
    if (call_hold(c, 2 * c->scan.tree_bytes + size + prescan_tree(c->previous.data, c->previous.size), pr) != 0)
        return -1;
    buf_str(&list, "[");
    buf_add(&list, c->previous.data, c->previous.size);
    buf_str(&list, "]");
    c->conversation.previous = list.failed ? NULL : js_parse_nul("previous_response_id", list.data, list.size, &e);
    buf_release(&list);
    return c->conversation.previous ? 0 : problem_nomem(pr);
}

/* Whether a later request may continue this response. */
static int is_kept(const struct call *c) { return c->params.store || c->form->on_socket; }

enum { ITEM_FLAGS = JSON_COMPACT | JSON_ENCODE_ANY };

/* Bytes of an item that is kept, and of the comma before it.  They can be more than it had in the
 * request: 1e9 becomes 1000000000.0. */
static size_t item_bytes(const json_t *item) { return json_dumpb(item, NULL, 0, ITEM_FLAGS) + 1; }

/* Append an item to `out`, which has room for it. */
static void add_item(struct buf *out, const json_t *item)
{
    buf_str(out, out->size ? "," : "");
    const size_t size = json_dumpb(item, NULL, 0, ITEM_FLAGS);
    char *to = buf_reserve(out, size);
    out->failed |= !to || !size || json_dumpb(item, to, size, ITEM_FLAGS) != size;
    out->size += to ? size : 0;
}

/* Write the items to keep: those before the request, and its own. */
static int keep_items(struct call *c, struct problem *pr)
{
    json_t *input = js_get(c->json, "input"), *item, *message = NULL;
    size_t i, bytes = c->previous.size;
    if (!is_kept(c))
        return 0;
    if (json_is_string(input) && !(message = json_pack("[{s:s, s:s, s:O}]", "type", "message", "role", "user", "content",
                                                       input)))
        return problem_nomem(pr);
    input = message ? message : input;
    json_array_foreach(input, i, item)
        bytes += item_bytes(item);
    const int fits = call_keep(c, bytes, pr) == 0 && call_hold(c, JSON_WRITER_BYTES, pr) == 0;
    if (fits && buf_reserve(&c->kept, bytes)) {
        buf_add(&c->kept, c->previous.data, c->previous.size);
        json_array_foreach(input, i, item)
            add_item(&c->kept, item);
    }
    json_decref(message);
    buf_release(&c->previous);
    return !fits ? -1 : c->kept.failed ? problem_nomem(pr) : 0;
}

static int prepare(struct call *c, struct problem *pr)
{
    if (c->rounds)                              /* in later rounds the messages exist already */
        return conversation_prepare(c, pr);
    const int bad = read_previous(c, pr) != 0 ||
                    responses_read(c->json, c->params.parallel_calls, &c->conversation, pr) != 0;
    json_decref(c->conversation.previous);
    c->conversation.previous = NULL;
    return !bad && keep_items(c, pr) == 0 && responses_echo(c, pr) == 0 && rounds_open(c, pr) == 0
           ? conversation_prepare(c, pr) : -1;
}

/* ---- the answer ---- */

static void item_id(const struct call *c, const struct answer_part *p, char out[64])
{
    static const char *const prefixes[] = { [PART_TEXT] = "msg", [PART_REASONING] = "rs", [PART_CALL] = "fc" };
    snprintf(out, 64, "%s_%s%02d", prefixes[p->kind], c->id + 5, rounds_number(c, &c->choices[0], p));
}

static void call_item_id(const struct call *c, const struct answer_part *p, char out[64])
{
    snprintf(out, 64, "mcp_%s%02d", c->id + 5, rounds_number(c, &c->choices[0], p));
}

static void text_part(const struct answer_part *p, int whole, struct buf *out)
{
    buf_str(out, p->kind == PART_TEXT ? "{\"type\":\"output_text\",\"annotations\":[],\"logprobs\":[],\"text\":"
                                      : "{\"type\":\"reasoning_text\",\"text\":");
    buf_json(out, p->text.data, whole ? p->text.size : 0);
    buf_str(out, "}");
}

/* Write an element of `output`; with status "in_progress" its content is left out. */
static void item_json(const struct call *c, const struct answer_part *p, const char *status, struct buf *out)
{
    const int whole = strcmp(status, "in_progress") != 0;
    char id[64];
    item_id(c, p, id);
    buf_printf(out, "{\"id\":\"%s\",\"status\":\"%s\",", id, status);
    if (p->kind == PART_CALL) {
        buf_str(out, "\"type\":\"function_call\",\"call_id\":");
        buf_json(out, p->id, strlen(p->id));
        buf_str(out, ",\"name\":");
        buf_json(out, p->name, strlen(p->name));
        buf_str(out, ",\"arguments\":");
        buf_json(out, p->text.data, whole ? p->text.size : 0);
    } else {
        buf_str(out, p->kind == PART_TEXT ? "\"type\":\"message\",\"role\":\"assistant\",\"content\":["
                                          : "\"type\":\"reasoning\",\"summary\":[],\"content\":[");
        if (whole)
            text_part(p, 1, out);
        buf_str(out, "]");
    }
    buf_str(out, "}");
    out->failed |= p->text.failed;
}

static void string_json(const char *name, const char *text, size_t size, struct buf *out)
{
    buf_printf(out, ",\"%s\":", name);
    if (text)
        buf_json(out, text, size);
    else
        buf_str(out, "null");
}

/* Write a call that the server runs in the form that OpenAI has for calls of MCP servers; t NULL:
 * the call is still running. */
static void call_item_json(const struct call *c, const struct answer_part *p, const struct call_result *t,
                           struct buf *out)
{
    const char *server = rounds_server(c, p->name);
    char id[64];
    call_item_id(c, p, id);
    buf_printf(out, "{\"id\":\"%s\",\"type\":\"mcp_call\",\"status\":\"%s\",\"approval_request_id\":null", id,
               !t ? "in_progress" : t->is_error ? "failed" : "completed");
    string_json("server_label", server, strlen(server), out);
    string_json("name", p->name, strlen(p->name), out);
    string_json("arguments", p->text.data ? p->text.data : "", t ? p->text.size : 0, out);
    string_json("output", t && !t->is_error ? t->content : NULL, t ? t->size : 0, out);
    string_json("error", t && t->is_error ? t->content : NULL, t ? t->size : 0, out);
    buf_str(out, "}");
    out->failed |= p->text.failed;
}

/* Write the items of the current round.  calls 0: leave out the calls, because the server runs
 * them. */
static void items_json(const struct call *c, int calls, const char *last, struct buf *out)
{
    const struct choice *ch = &c->choices[0];
    const int apart = c->rounds != NULL;                /* calls come after the other parts */
    for (int pass = 0; pass <= apart; pass++)
        for (int i = 0; i < ch->n_parts; i++) {
            const struct answer_part *p = &ch->part[i];
            if ((apart && pass != (p->kind == PART_CALL)) || (p->kind == PART_CALL && !calls))
                continue;
            buf_str(out, out->size ? "," : "");
            item_json(c, p, i + 1 == ch->n_parts ? last : "completed", out);
        }
}

static void keep_call(struct call *c, const struct answer_part *p, const struct call_result *t)
{
    struct buf *items = &c->rounds->items;
    buf_str(items, items->size ? "," : "");
    call_item_json(c, p, t, items);
}

static void round_end(struct call *c, const struct choice *ch)
{
    items_json(c, 0, "completed", &c->rounds->items);
    rounds_each_result(c, keep_call);
    c->rounds->n_items += ch->n_parts;
}

static const char *end_status(const struct choice *ch)
{
    return ch->finish == FINISH_LENGTH || choice_cut(ch) ? "incomplete" : "completed";
}

/* Write the members that show what the request asked for. */
static void settings_json(const struct call *c, struct buf *out)
{
    const struct params *p = &c->params;
    const char *effort = json_string_value(js_get(js_get(c->json, "reasoning"), "effort"));
    buf_str(out, ",");
    buf_add(out, c->echo.data + 1, c->echo.size - 2);   /* without its braces */
    buf_printf(out, ",\"parallel_tool_calls\":%s,\"temperature\":%.9g,\"top_p\":%.9g,\"presence_penalty\":%.9g,\"frequency_penalty\":%.9g",
               p->parallel_calls ? "true" : "false", (double)p->sampling.temperature, (double)p->sampling.top_p,
               (double)p->sampling.presence_penalty, (double)p->sampling.frequency_penalty);
    buf_str(out, ",\"reasoning\":{\"summary\":null");
    string_json("effort", effort, effort ? strlen(effort) : 0, out);
    buf_printf(out, "},\"top_logprobs\":0,\"service_tier\":\"default\",\"store\":%s", p->store ? "true" : "false");
    if (c->form->on_socket && *p->ignored.list) /* there is no header for them */
        string_json("ignored_fields", p->ignored.list, strlen(p->ignored.list), out);
}

/* Write the response object; with status "in_progress" it has no content yet.  p: the error; NULL:
 * none. */
static void response_json(const struct call *c, const char *status, const struct problem *p, struct buf *out)
{
    const struct choice *ch = &c->choices[0];
    const int whole = strcmp(status, "in_progress") != 0;
    struct token_counts t;
    buf_printf(out, "{\"id\":\"%s\",\"object\":\"response\",\"created_at\":%lld,\"status\":\"", c->id, (long long)c->created);
    buf_str(out, status);
    buf_str(out, "\",\"completed_at\":");
    if (strcmp(status, "completed") == 0)
        buf_printf(out, "%lld", (long long)time(NULL));
    else
        buf_str(out, "null");
    buf_str(out, ",\"background\":false,\"error\":");
    if (p) {
        buf_printf(out, "{\"code\":\"%s\",\"message\":", p->status == 429 ? "rate_limit_exceeded" : "server_error");
        buf_json(out, p->message, strlen(p->message));
        buf_str(out, "}");
    } else {
        buf_str(out, "null");
    }
    if (strcmp(status, "incomplete") == 0)
        buf_printf(out, ",\"incomplete_details\":{\"reason\":\"%s\"}",
                   ch->finish == FINISH_LENGTH ? "max_output_tokens" : "stop");
    else
        buf_str(out, ",\"incomplete_details\":null");
    buf_str(out, ",\"model\":");
    buf_json(out, call_model(c), strlen(call_model(c)));
    settings_json(c, out);
    buf_str(out, ",\"output\":[");
    if (whole) {
        struct buf items = { 0 };
        if (c->rounds)
            buf_add(&items, c->rounds->items.data, c->rounds->items.size);
        items_json(c, 1, end_status(ch), &items);
        buf_add(out, items.data, items.size);
        out->failed |= items.failed;
        buf_release(&items);
    }
    buf_str(out, "]");
    if (whole)
        rounds_stop_json(c, "call_", out);
    buf_str(out, ",\"usage\":");
    if (whole) {
        call_totals(c, &t);
        buf_printf(out, "{\"input_tokens\":%d,\"input_tokens_details\":{\"cached_tokens\":%d,\"cache_write_tokens\":0},\"output_tokens\":%d,\"output_tokens_details\":{\"reasoning_tokens\":%d},"
                   "\"total_tokens\":%d", t.prompt, t.cached, t.completion, t.reasoning, t.prompt + t.completion);
        call_speculation(c, out);
        buf_str(out, "}}");
    } else {
        buf_str(out, "null}");
    }
}

/* ---- the stream ---- */

static void event_head(struct call *c, const char *type)
{
    if (!c->form->on_socket)
        buf_printf(&c->line, "event: %s\ndata: ", type);
    buf_printf(&c->line, "{\"type\":\"%s\",\"sequence_number\":%d", type, c->n_events++);
}

static void event_end(struct call *c)
{
    buf_printf(&c->line, "}%s", call_event_end(c));
    call_send_event(c);
}

/* End the stream, which over HTTP ends with [DONE]. */
static void stream_end(struct call *c)
{
    if (!c->form->on_socket) {
        buf_str(&c->line, "data: [DONE]\n\n");
        call_send_event(c);
    }
    call_close_stream(c);
}

static void response_event(struct call *c, const char *type, const char *status, const struct problem *p)
{
    event_head(c, type);
    buf_str(&c->line, ",\"response\":");
    response_json(c, status, p, &c->line);
    event_end(c);
}

static void begin(struct call *c)
{
    call_begin_stream(c);
    response_event(c, "response.created", "in_progress", NULL);
    response_event(c, "response.in_progress", "in_progress", NULL);
}

static void part_event(struct call *c, const struct answer_part *p, const char *type)
{
    char id[64];
    item_id(c, p, id);
    event_head(c, type);
    buf_printf(&c->line, ",\"item_id\":\"%s\",\"output_index\":%d%s", id, rounds_number(c, &c->choices[0], p),
               p->kind == PART_CALL ? "" : ",\"content_index\":0");
}

static void item_event(struct call *c, const struct answer_part *p, const char *type, const char *status)
{
    event_head(c, type);
    buf_printf(&c->line, ",\"output_index\":%d,\"item\":", rounds_number(c, &c->choices[0], p));
    item_json(c, p, status, &c->line);
    event_end(c);
}

static void call_event(struct call *c, const struct answer_part *p, const char *type)
{
    char id[64];
    call_item_id(c, p, id);
    event_head(c, type);
    buf_printf(&c->line, ",\"item_id\":\"%s\",\"output_index\":%d", id, rounds_number(c, &c->choices[0], p));
}

static void call_item_event(struct call *c, const struct answer_part *p, const char *type, const struct call_result *t)
{
    event_head(c, type);
    buf_printf(&c->line, ",\"output_index\":%d,\"item\":", rounds_number(c, &c->choices[0], p));
    call_item_json(c, p, t, &c->line);
    event_end(c);
}

static void tool_call(struct call *c, const struct answer_part *p)
{
    call_item_event(c, p, "response.output_item.added", NULL);
    call_event(c, p, "response.mcp_call.in_progress");
    event_end(c);
    call_event(c, p, "response.mcp_call_arguments.done");
    string_json("arguments", p->text.data ? p->text.data : "", p->text.size, &c->line);
    event_end(c);
}

static void tool_result(struct call *c, const struct answer_part *p, const struct call_result *t)
{
    call_event(c, p, t->is_error ? "response.mcp_call.failed" : "response.mcp_call.completed");
    event_end(c);
    call_item_event(c, p, "response.output_item.done", t);
}

static void close_item(struct call *c, const struct answer_part *p, const char *status)
{
    static const char *const done[] = { [PART_TEXT] = "response.output_text.done",
                                        [PART_REASONING] = "response.reasoning_text.done",
                                        [PART_CALL] = "response.function_call_arguments.done" };
    part_event(c, p, done[p->kind]);
    if (p->kind == PART_CALL) {
        buf_str(&c->line, ",\"name\":");
        buf_json(&c->line, p->name, strlen(p->name));
    }
    buf_str(&c->line, p->kind == PART_CALL ? ",\"arguments\":" : p->kind == PART_TEXT ? ",\"logprobs\":[],\"text\":"
                                                                                      : ",\"text\":");
    buf_json(&c->line, p->text.data, p->text.size);
    event_end(c);
    if (p->kind != PART_CALL) {
        part_event(c, p, "response.content_part.done");
        buf_str(&c->line, ",\"part\":");
        text_part(p, 1, &c->line);
        event_end(c);
    }
    item_event(c, p, "response.output_item.done", status);
}

static void delta(struct call *c, struct choice *ch, const struct answer_part *p, int begins, const char *text,
                  size_t size)
{
    static const char *const delta[] = { [PART_TEXT] = "response.output_text.delta",
                                         [PART_REASONING] = "response.reasoning_text.delta",
                                         [PART_CALL] = "response.function_call_arguments.delta" };
    const struct answer_part *open = begins ? rounds_streamed(c, ch, p->index) : NULL;
    if (!call_is_stream(c) || (p->kind == PART_CALL && c->rounds))      /* calls of a round are sent by on_event */
        return;
    if (open)
        close_item(c, open, "completed");
    if (begins) {
        item_event(c, p, "response.output_item.added", "in_progress");
        if (p->kind != PART_CALL) {
            part_event(c, p, "response.content_part.added");
            buf_str(&c->line, ",\"part\":");
            text_part(p, 0, &c->line);
            event_end(c);
        }
    }
    if (size == 0)
        return;
    part_event(c, p, delta[p->kind]);
    buf_str(&c->line, p->kind == PART_TEXT ? ",\"logprobs\":[],\"delta\":" : ",\"delta\":");
    buf_json(&c->line, text, size);
    event_end(c);
}

/* Send a call that the client has to run, when all calls of its round have ended. */
static void whole_call(struct call *c, const struct answer_part *p, const char *status)
{
    item_event(c, p, "response.output_item.added", "in_progress");
    part_event(c, p, "response.function_call_arguments.delta");
    string_json("delta", p->text.data ? p->text.data : "", p->text.size, &c->line);
    event_end(c);
    close_item(c, p, status);
}

static void on_event(struct call *c, struct choice *ch, const struct events *b, const struct event *ev)
{
    conversation_event(c, ch, b, ev);
    if (c->rounds && ev->last)
        rounds_judge(c, ch);
    if (!call_is_stream(c) || c->problem.status || !ev->last)
        return;
    const struct answer_part *open = rounds_streamed(c, ch, ch->n_parts),
                             *last = ch->n_parts ? &ch->part[ch->n_parts - 1] : NULL;
    if (open)
        close_item(c, open, open == last ? end_status(ch) : "completed");
    for (int i = 0; c->rounds && !c->rounds->runs_next && i < choice_calls(ch); i++) {
        const struct answer_part *p = choice_call(ch, i);
        whole_call(c, p, p == last ? end_status(ch) : "completed");
    }
}

/* Write the response object, and keep it if it was asked for and fits. */
static void final_json(struct call *c, struct buf *out)
{
    const char *status = end_status(&c->choices[0]);
    const struct conn *socket = c->params.store ? NULL : c->conn;
    struct buf items = { 0 };
    if (is_kept(c)) {
        if (c->rounds)
            buf_add(&items, c->rounds->items.data, c->rounds->items.size);
        items_json(c, 1, status, &items);
        buf_str(&c->kept, items.size ? "," : "");
        buf_add(&c->kept, items.data, items.size);
    }
    response_json(c, status, NULL, out);
    const struct kept_response r = { out->data, out->size, c->kept.data, c->kept.size };
    const int fits = response_store_fits(c->s->responses, r.json_size + r.items_size);
    if (c->params.store && !fits) {
        out->size = 0;
        c->params.store = 0;
        response_json(c, status, NULL, out);
    } else if (is_kept(c) && !out->failed && !c->kept.failed && !items.failed) {
        response_store_put(c->s->responses, c->id, c->tenant, socket, &r);
    }
    buf_release(&items);
}

static void end(struct call *c)
{
    const int cut = strcmp(end_status(&c->choices[0]), "incomplete") == 0;
    struct buf out = { 0 };
    final_json(c, &out);
    if (!call_is_stream(c)) {
        reply_json(c->s, c->conn, 200, &out);
    } else {
        event_head(c, cut ? "response.incomplete" : "response.completed");
        buf_str(&c->line, ",\"response\":");
        buf_add(&c->line, out.data, out.size);
        c->line.failed |= out.failed;
        event_end(c);
        stream_end(c);
    }
    buf_release(&out);
}

void responses_error_json(const struct problem *p, struct buf *out)
{
    problem_json(p, out);
    if (out->size)
        out->size--;                    /* the brace at the end */
    buf_printf(out, ",\"status\":%d}", p->status);
}

static void fail(struct call *c, const struct problem *p)
{
    if (!c->conn || (!c->form->on_socket && conn_status(c->conn) == 0)) {
        call_fail_answer(c, p);
        return;
    }
    record_error(call_record(c), p);
    struct buf error = { 0 };
    if (!c->begun) {                            /* a WebSocket: no event was sent */
        responses_error_json(p, &c->line);
        call_send_event(c);
        call_close_stream(c);
        return;
    }
    event_head(c, "error");
    problem_json(p, &error);
    buf_str(&c->line, ",");
    buf_add(&c->line, error.data + strlen("{\"type\":\"error\","), error.size - strlen("{\"type\":\"error\",}"));
    c->line.failed |= error.failed;
    buf_release(&error);
    event_end(c);
    response_event(c, "response.failed", "failed", p);
    stream_end(c);
}

#define FORM .body = BODY_RESPONSES, .prefix = "resp_", .prepare = prepare, .params = params, .begin = begin, \
             .event = on_event, .delta = delta, .tool_call = tool_call, .tool_result = tool_result, \
             .round_end = round_end, .end = end, .fail = fail
static const struct call_form form = { FORM };
const struct call_form responses_socket_form = { FORM, .on_socket = 1 };

void handle_responses(struct server *s, struct conn *c, const char *rest)
{
    const struct http_request *r = conn_request(c);
    (void)rest;
    call_start(s, c, NULL, &form, r->body.data, r->body.size);
}

/* ---- responses that are kept ---- */

static void reply_not_found(struct server *s, struct conn *c, const char *id)
{
    reply_refusal(s, c, 404, "response_not_found", "response '%.60s' is not kept", id);
}

void handle_response(struct server *s, struct conn *c, const char *rest)
{
    const struct kept_response *r = response_store_find(s->responses, rest, guard_tenant(conn_record(c)), NULL);
    if (!r) {
        reply_not_found(s, c, rest);
        return;
    }
    const struct buf out = { .data = r->json, .size = r->json_size };
    reply_json(s, c, 200, &out);
}

void handle_response_delete(struct server *s, struct conn *c, const char *rest)
{
    if (!response_store_delete(s->responses, rest, guard_tenant(conn_record(c))))
        reply_not_found(s, c, rest);
    else
        reply_object(s, c, 200, json_pack("{s:s, s:s, s:b}", "id", rest, "object", "response", "deleted", 1));
}
