/* wschat.c - the WebSockets: /ws/chat, /ws/completions and /v1/responses, with one answer at a time
 * on a connection, and /ws/stats. */
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/clock.h"
#include "libcommon/serve/api/calls.h"

/* Accept the upgrade: 0, or -1 after a refusal.  A browser offers two subprotocols: "zse", which
 * the response accepts, and one that contains its key, see admit.c. */
static int upgrade(struct server *s, struct conn *c)
{
    const int route = conn_route(c);
    if (http_has_token(http_field(conn_request(c), "Sec-WebSocket-Protocol"), "zse"))
        conn_add_header(c, "Sec-WebSocket-Protocol", "zse");
    struct access_record *record = conn_record(c);
    const uint64_t tenant = guard_tenant(record);
    if (record)
        record->route = route;
    if (conn_upgrade(c) != 0)
        return -1;
    conn_hold_body(c, tenant, 0);       /* its buffers count for its key or address */
    metrics_count(&s->metrics, route, 101);
    return 0;
}

/* ---- /ws/chat ---- */

void handle_ws_chat(struct server *s, struct conn *c, const char *rest)
{
    (void)rest;
    if (upgrade(s, c) == 0)
        conn_set_tag(c, WS_TAG_CHAT);
}

/* Like handle_ws_chat(), but messages are the objects of /v1/chat/completions, which also have
 * reasoning and citations. */
void handle_ws_completions(struct server *s, struct conn *c, const char *rest)
{
    (void)rest;
    if (upgrade(s, c) == 0)
        conn_set_tag(c, WS_TAG_COMPLETIONS);
}

/* Like handle_ws_completions(), for the Responses API. */
void handle_ws_responses(struct server *s, struct conn *c, const char *rest)
{
    (void)rest;
    if (upgrade(s, c) == 0)
        conn_set_tag(c, WS_TAG_RESPONSES);
}

static void send_line(struct call *c)
{
    if (c->conn && c->line.failed) {
        conn_break(c->conn);
        buf_release(&c->line);
    }
    if (c->conn)
        conn_send_text(c->conn, c->line.data, c->line.size);
    c->line.size = 0;
}

static void begin(struct call *c) { (void)c; }

/* Whether the answer is split into parts.  Without tools it is not, and its text is sent
 * unchanged. */
static int has_parts(const struct call *c) { return c->conversation.tools != NULL; }

static void send_text(struct call *c, const char *type, const char *text, size_t size)
{
    buf_printf(&c->line, "{\"type\":\"%s\",\"content\":", type);
    buf_json(&c->line, text, size);
    buf_str(&c->line, "}");
    send_line(c);
}

/* Send new text of a part, unless it is a call: calls are sent when all have ended, because the
 * server may run them. */
static void delta(struct call *c, struct choice *ch, const struct answer_part *p, int begins, const char *text,
                  size_t size)
{
    struct buf all = { 0 };
    if (p->kind == PART_CALL || size == 0)
        return;
    buf_str(&all, begins ? rounds_gap(c, ch, p) : "");
    buf_add(&all, text, size);
    c->line.failed |= all.failed;
    send_text(c, p->kind == PART_TEXT ? "token" : "reasoning", all.data, all.size);
    buf_release(&all);
}

static void on_event(struct call *c, struct choice *ch, const struct events *b, const struct event *ev)
{
    if (has_parts(c)) {
        conversation_event(c, ch, b, ev);
        if (c->rounds && ev->last)
            rounds_judge(c, ch);
        return;
    }
    if (ev->text_size == 0)
        return;
    buf_add(&ch->text, b->bytes.data + ev->text, ev->text_size);
    c->line.failed |= ch->text.failed;
    send_text(c, "token", b->bytes.data + ev->text, ev->text_size);
}

static void tool_call(struct call *c, const struct answer_part *p)
{
    buf_str(&c->line, "{\"type\":\"tool_event\",\"tool_event\":");
    rounds_call_json(c, p, &c->line);
    buf_str(&c->line, "}");
    send_line(c);
}

static void tool_result(struct call *c, const struct answer_part *p, const struct call_result *t)
{
    buf_str(&c->line, "{\"type\":\"tool_event\",\"tool_event\":");
    rounds_result_json(c, p, t, &c->line);
    buf_str(&c->line, "}");
    send_line(c);
}

/* Write the calls of the last round that the client has to run. */
static void calls_json(const struct choice *ch, struct buf *out)
{
    for (int i = 0; i < choice_calls(ch); i++) {
        const struct answer_part *p = choice_call(ch, i);
        buf_str(out, i ? "," : ",\"tool_calls\":[");
        buf_str(out, "{\"id\":");
        buf_json(out, p->id, strlen(p->id));
        buf_str(out, ",\"type\":\"function\",\"function\":{\"name\":");
        buf_json(out, p->name, strlen(p->name));
        buf_str(out, ",\"arguments\":");
        buf_json(out, p->text.data ? p->text.data : "", p->text.size);
        buf_str(out, "}}");
        out->failed |= p->text.failed;
    }
    buf_str(out, choice_calls(ch) ? "]" : "");
}


static void end(struct call *c)
{
    const struct choice *ch = &c->choices[0];
    struct buf all = { 0 };
    struct token_counts t;
    buf_str(&c->line, "{\"type\":\"done\",\"full_response\":");
    buf_add(&all, ch->text.data, ch->text.size);
    rounds_text(ch, PART_TEXT, &all);
    buf_json(&c->line, all.data, all.size);
    c->line.failed |= all.failed;
    buf_release(&all);
    call_totals(c, &t);
    buf_printf(&c->line, ",\"tokens\":%d,\"latency_ms\":%.3f,\"finish_reason\":\"%s\"", t.completion,
               (double)(clock_ns() - c->start_ns) * 1e-6,
               ch->finish == FINISH_STOP && choice_calls(ch) && !choice_cut(ch) ? "tool_calls" : call_finish_name(ch->finish));
    calls_json(ch, &c->line);
    rounds_stop_json(c, "call_", &c->line);
    buf_str(&c->line, ",\"usage\":");
    call_usage(c, &c->line);
    buf_str(&c->line, "}");
    send_line(c);
    if (c->s->draining)
        conn_websocket_close(c->conn, 1001);
}

static void say_error(struct conn *c, const struct problem *p)
{
    struct buf out = { 0 };
    if (conn_tag(c) == WS_TAG_RESPONSES) {
        responses_error_json(p, &out);
    } else if (conn_tag(c) == WS_TAG_COMPLETIONS) {
        problem_json(p, &out);
    } else {
        buf_str(&out, "{\"type\":\"error\",\"message\":");
        buf_json(&out, p->message, strlen(p->message));
        buf_printf(&out, ",\"status\":%d}", p->status);
    }
    if (out.failed)
        conn_break(c);
    else
        conn_send_text(c, out.data, out.size);
    buf_release(&out);
}

static void fail(struct call *c, const struct problem *p)
{
    record_error(call_record(c), p);
    say_error(c->conn, p);
}

static int prepare(struct call *c, struct problem *pr)
{
    char *text;
    size_t size;
    if (c->rounds)                              /* in later rounds the messages exist already */
        return conversation_prepare(c, pr);
    if (chat_read(c->json, c->params.parallel_calls, &c->conversation, pr) != 0 || rounds_open(c, pr) != 0)
        return -1;
    if (has_parts(c))
        return conversation_prepare(c, pr);
    if (call_prompts(c, 1, pr) != 0 ||
        conversation_render(c->lm, &c->conversation, 1, &text, &size, pr) != 0)
        return -1;
    int rc = call_tokenize(c, 0, text, size, 1, 0, pr, "messages");
    free(text);
    return rc;
}

static const struct call_form form = { .body = BODY_WS_CHAT, .prefix = "ws-", .prepare = prepare, .begin = begin,
                                       .event = on_event, .delta = delta, .tool_call = tool_call,
                                       .tool_result = tool_result, .end = end, .fail = fail };

void ws_chat_message(struct server *s, struct conn *c, const char *text, size_t size)
{
    struct problem pr;
    if (conn_exchange(c)) {
        problem_set(&pr, 409, NULL, NULL, "the last answer is not complete: expected one message at a time on a connection");
        say_error(c, &pr);
        return;
    }
    struct access_record *v = guard_message(s, c, &pr);
    if (v)
        call_start(s, c, v, conn_tag(c) == WS_TAG_COMPLETIONS ? &chat_socket_form
                            : conn_tag(c) == WS_TAG_RESPONSES ? &responses_socket_form : &form, text, size);
    else
        say_error(c, &pr);
}

/* ---- /ws/stats ---- */

struct stats_out { struct server *s; struct buf text; };

static void send_stats(void *user, struct conn *c)
{
    const struct stats_out *out = user;
    if (conn_tag(c) != WS_TAG_STATS)
        return;
    if (guard_still(out->s, c))
        conn_send_text(c, out->text.data, out->text.size);
    else
        conn_websocket_close(c, 1008);
}

static void stats_text(struct server *s, struct buf *out)
{
    json_t *j = json_pack("{s:s, s:o, s:o, s:o}", "type", "stats", "system", stats_object(s), "analytics",
                          analytics_object(s), "models", model_stats_array(s));
    char *text = j ? json_dumps(j, JSON_COMPACT | JSON_REAL_PRECISION(13)) : NULL;
    if (text)
        buf_str(out, text);
    free(text);
    json_decref(j);
}

static void look_for_stats(void *user, struct conn *c) { *(int *)user |= conn_tag(c) == WS_TAG_STATS; }

void ws_stats_tick(struct server *s)
{
    struct stats_out out = { .s = s };
    uint64_t now = clock_ns();
    int any = 0;
    loop_each_websocket(s->loop, look_for_stats, &any);
    if (!any || now - s->ws_stats_ns < 1900000000u)
        return;
    s->ws_stats_ns = now;
    stats_text(s, &out.text);
    if (out.text.size)
        loop_each_websocket(s->loop, send_stats, &out);
    buf_release(&out.text);
}

void handle_ws_stats(struct server *s, struct conn *c, const char *rest)
{
    struct buf text = { 0 };
    (void)rest;
    if (upgrade(s, c) != 0)
        return;
    conn_set_tag(c, WS_TAG_STATS);
    stats_text(s, &text);
    if (text.size)
        conn_send_text(c, text.data, text.size);
    buf_release(&text);
}
