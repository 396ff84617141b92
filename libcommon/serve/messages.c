/* messages.c - POST /v1/messages and /v1/messages/count_tokens: Anthropic's Messages. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/serve/calls.h"

static const char *const text_types[] = { "text", NULL };

/* ---- the body ---- */

static int out_of_memory(struct problem *pr) { return problem_set(pr, 503, NULL, NULL, "out of memory"); }

static int add_text_message(json_t *messages, const char *role, const struct buf *text, struct problem *pr)
{
    json_t *m = json_pack("{s:s, s:o}", "role", role, "content", json_stringn(text->data ? text->data : "", text->size));
    return !text->failed && m && json_array_append_new(messages, m) == 0 ? 0 : out_of_memory(pr);
}

static int add_result(json_t *messages, const json_t *block, const char *param, struct problem *pr)
{
    json_t *id = json_object_get(block, "tool_use_id"), *content = js_get(block, "content");
    struct buf text = { 0 };
    int rc = json_is_string(id) ? 0 : problem_set(pr, 400, param, "invalid_type", "%s: tool_result: expected a tool_use_id", param);
    if (rc == 0 && content)
        rc = talk_text(content, text_types, param, &text, pr);
    if (rc == 0) {
        json_t *m = json_pack("{s:s, s:O, s:o}", "role", "tool", "tool_call_id", id, "content", json_stringn(text.data ? text.data : "", text.size));
        if (text.failed || !m || json_array_append_new(messages, m) != 0)
            rc = out_of_memory(pr);
    }
    buf_release(&text);
    return rc;
}

/* A block of the model's own message, to m and its text. */
static int add_own_block(json_t *m, const json_t *block, const char *type, struct buf *text, const char *param, struct problem *pr)
{
    const json_t *words = json_object_get(block, "text");
    json_t *thought = json_object_get(block, "thinking"), *calls = json_object_get(m, "tool_calls");
    if (strcmp(type, "text") == 0 && json_is_string(words)) {
        buf_add(text, json_string_value(words), json_string_length(words));
        return 0;
    }
    if (strcmp(type, "thinking") == 0 && json_is_string(thought))
        return json_object_set(m, "reasoning_content", thought) == 0 ? 0 : out_of_memory(pr);
    if (strcmp(type, "redacted_thinking") == 0)
        return 0;                       /* nothing that a model here could read */
    json_t *id = json_object_get(block, "id"), *name = json_object_get(block, "name"), *input = json_object_get(block, "input");
    if (strcmp(type, "tool_use") != 0 || !json_is_string(id) || !json_is_string(name) || !json_is_object(input))
        return problem_set(pr, 400, param, "unsupported_parameter", "%s: a block of type '%.40s', expected text, thinking, or tool_use {id, name, input}", param, type);
    if (!calls) {
        calls = json_array();
        json_object_set_new(m, "tool_calls", calls);
    }
    return json_array_append_new(calls, json_pack("{s:O, s:s, s:{s:O, s:O}}", "id", id, "type", "function", "function", "name", name, "arguments", input)) == 0 ? 0 : out_of_memory(pr);
}

static int add_own(json_t *messages, const json_t *content, const char *param, struct problem *pr)
{
    json_t *m = json_pack("{s:s}", "role", "assistant");
    const json_t *block;
    struct buf text = { 0 };
    size_t i;
    int rc = 0;
    json_array_foreach(content, i, block) {
        const char *type = json_string_value(json_object_get(block, "type"));
        if ((rc = add_own_block(m, block, type ? type : "", &text, param, pr)) != 0)
            break;
    }
    if (rc == 0 && (text.failed || json_object_set_new(m, "content", json_stringn(text.data ? text.data : "", text.size)) != 0 || json_array_append(messages, m) != 0))
        rc = out_of_memory(pr);
    json_decref(m);
    buf_release(&text);
    return rc;
}

/* A user's blocks: results become messages of their own, before the text. */
static int add_users(json_t *messages, const json_t *content, const char *param, struct problem *pr)
{
    const json_t *block;
    struct buf text = { 0 };
    size_t i;
    int rc = 0, results = 0;
    json_array_foreach(content, i, block) {
        const char *type = json_string_value(json_object_get(block, "type"));
        const json_t *words = json_object_get(block, "text");
        if (type && strcmp(type, "tool_result") == 0) {
            rc = add_result(messages, block, param, pr);
            results++;
        } else if (type && strcmp(type, "text") == 0 && json_is_string(words)) {
            buf_add(&text, json_string_value(words), json_string_length(words));
        } else {
            rc = problem_set(pr, 400, param, "unsupported_parameter", "%s: a block of type '%.40s', expected text or tool_result", param, type ? type : "?");
        }
        if (rc != 0)
            break;
    }
    if (rc == 0 && (text.size || !results))
        rc = add_text_message(messages, "user", &text, pr);
    buf_release(&text);
    return rc;
}

static int read_messages(struct call *c, json_t *out, struct problem *pr)
{
    json_t *list = js_get(c->json, "messages"), *system = js_get(c->json, "system"), *m;
    const char *role = NULL;
    size_t i;
    if (system) {
        struct buf text = { 0 };
        int rc = talk_text(system, text_types, "system", &text, pr);
        if (rc == 0 && text.size)
            rc = add_text_message(out, "system", &text, pr);
        buf_release(&text);
        if (rc != 0)
            return -1;
    }
    if (!json_is_array(list) || json_array_size(list) == 0)
        return problem_set(pr, 400, "messages", list ? "invalid_type" : "missing", "messages: %s, expected a list of at least 1 message", !list ? "missing" : json_is_array(list) ? "empty" : js_kind(list));
    json_array_foreach(list, i, m) {
        const json_t *content = json_object_get(m, "content");
        char param[40];
        int rc;
        snprintf(param, sizeof param, "messages[%zu]", i);
        role = json_string_value(json_object_get(m, "role"));
        if (!role || (strcmp(role, "user") != 0 && strcmp(role, "assistant") != 0))
            return problem_set(pr, 400, param, "invalid_role", "%s: role is %.60s, expected user or assistant", param, role ? role : "missing");
        if (json_is_string(content)) {
            struct buf text = { 0 };
            buf_add(&text, json_string_value(content), json_string_length(content));
            rc = add_text_message(out, role, &text, pr);
            buf_release(&text);
        } else if (json_is_array(content)) {
            rc = strcmp(role, "user") == 0 ? add_users(out, content, param, pr) : add_own(out, content, param, pr);
        } else {
            rc = problem_set(pr, 400, param, "invalid_type", "%s: content: found %s, expected text or a list of blocks", param, js_kind(content));
        }
        if (rc != 0)
            return -1;
    }
    if (strcmp(role, "assistant") == 0)
        return problem_set(pr, 400, "messages", "unsupported_parameter", "messages: the last one is the assistant's: to continue it is not available");
    return 0;
}

static int read_tools(struct call *c, struct problem *pr)
{
    json_t *tools = js_get(c->json, "tools"), *tool, *v = js_get(c->json, "tool_choice");
    const char *type = json_string_value(json_object_get(v, "type"));
    struct talk *t = &c->talk;
    size_t i;
    if (tools && !json_is_array(tools))
        return problem_set(pr, 400, "tools", "invalid_type", "tools: found %s, expected a list", js_kind(tools));
    json_array_foreach(tools, i, tool) {
        const char *kind = json_string_value(json_object_get(tool, "type"));
        char param[32];
        snprintf(param, sizeof param, "tools[%zu]", i);
        if (kind && strcmp(kind, "custom") != 0)
            return problem_set(pr, 400, param, "unsupported_parameter", "%s: type is '%.40s': only tools of the client are here", param, kind);
        if (talk_add_tool(t, json_string_value(json_object_get(tool, "name")), js_get(tool, "description"), js_get(tool, "input_schema"), param, pr) != 0)
            return -1;
    }
    if (!v)
        return 0;
    t->serial = json_is_true(json_object_get(v, "disable_parallel_tool_use"));
    if (type && strcmp(type, "auto") == 0)
        return 0;
    t->choice = type && strcmp(type, "none") == 0 ? CALLS_NONE : CALLS_REQUIRED;
    t->only = json_string_value(json_object_get(v, "name"));
    if (type && (t->choice == CALLS_NONE || strcmp(type, "any") == 0 || (strcmp(type, "tool") == 0 && t->only)))
        return 0;
    return problem_set(pr, 400, "tool_choice", "invalid_type", "tool_choice: expected {type: auto}, {type: any}, {type: none} or {type: tool, name}");
}

/* thinking becomes the variable that templates go by; output_config.format is the form of the answer. */
static int read_settings(struct call *c, struct problem *pr)
{
    json_t *thinking = js_get(c->json, "thinking"), *output = js_get(c->json, "output_config"), *vars = js_get(c->json, "chat_template_kwargs"), *v;
    const char *type = json_string_value(json_object_get(thinking, "type")), *key;
    int wanted = type && (strcmp(type, "enabled") == 0 || strcmp(type, "adaptive") == 0);
    if (thinking && !wanted && !(type && strcmp(type, "disabled") == 0))
        return problem_set(pr, 400, "thinking", "invalid_type", "thinking: expected {type: enabled}, {type: adaptive} or {type: disabled}");
    if (vars && !json_is_object(vars))
        return problem_set(pr, 400, "chat_template_kwargs", "invalid_type", "chat_template_kwargs: found %s, expected an object", js_kind(vars));
    c->talk.vars = json_pack("{s:b}", "enable_thinking", wanted);
    if (vars)
        json_object_update(c->talk.vars, vars);
    if (output && !json_is_object(output))
        return problem_set(pr, 400, "output_config", "invalid_type", "output_config: found %s, expected an object", js_kind(output));
    json_object_foreach(output, key, v)
        if (strcmp(key, "format") != 0 && !json_is_null(v))
            return problem_set(pr, 400, "output_config", "unsupported_parameter", "output_config: %.40s: only format is here", key);
    c->talk.format = js_get(output, "format");
    c->talk.format_param = "output_config.format";
    return 0;
}

static int read_talk(struct call *c, struct problem *pr)
{
    struct talk *t = &c->talk;
    json_t *messages = json_array();
    int rc = read_messages(c, messages, pr);
    t->messages = rc == 0 ? talk_messages(messages, pr) : NULL;
    t->param = "messages";
    json_decref(messages);
    return t->messages && read_tools(c, pr) == 0 && read_settings(c, pr) == 0 ? 0 : -1;
}

static int prepare(struct call *c, struct problem *pr) { return read_talk(c, pr) == 0 ? talk_prepare(c, pr) : -1; }

/* ---- the answer ---- */

static void usage(const struct call *c, struct buf *out)
{
    int prompt, completion, cached, reasoning;
    call_totals(c, &prompt, &completion, &cached, &reasoning);
    buf_printf(out, "{\"input_tokens\":%d,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":%d,\"output_tokens\":%d}", prompt - cached, cached, completion);
}

static void stop_json(const struct call *c, struct buf *out)
{
    const struct choice *ch = &c->choices[0];
    const char *why = ch->finish == FINISH_LENGTH ? "max_tokens" : ch->stop ? "stop_sequence" : choice_calls(ch) ? "tool_use" : "end_turn";
    buf_printf(out, "\"stop_reason\":\"%s\",\"stop_sequence\":", why);
    if (ch->finish != FINISH_LENGTH && ch->stop)
        buf_json(out, c->stop[ch->stop - 1], strlen(c->stop[ch->stop - 1]));
    else
        buf_str(out, "null");
}

/* "call_..." is "toolu_..." here. */
static void call_id(const struct part *p, struct buf *out)
{
    struct buf id = { 0 };
    int ours = strncmp(p->id, "call_", 5) == 0;
    buf_str(&id, ours ? "toolu_" : "");
    buf_str(&id, ours ? p->id + 5 : p->id);
    buf_json(out, id.data, id.size);
    buf_release(&id);
}

/* A block; whole 0: as it begins.  Arguments that were cut off are no input: they are text. */
static void block_json(const struct part *p, int whole, struct buf *out)
{
    const size_t n = whole ? p->text.size : 0;
    json_t *input = whole && p->kind == PART_CALL ? json_loadb(p->text.data ? p->text.data : "", p->text.size, 0, NULL) : NULL;
    if (p->kind == PART_CALL && (!whole || json_is_object(input))) {
        buf_str(out, "{\"type\":\"tool_use\",\"id\":");
        call_id(p, out);
        buf_str(out, ",\"name\":");
        buf_json(out, p->name, strlen(p->name));
        buf_str(out, ",\"input\":");
        if (n)
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
    buf_json(out, c->h->id, strlen(c->h->id));
    buf_str(out, ",\"content\":[");
}

/* ---- the stream ---- */

static void event_head(struct call *c, const char *type) { buf_printf(&c->line, "event: %s\ndata: {\"type\":\"%s\"", type, type); }

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

static void close_block(struct call *c, const struct part *p)
{
    event_head(c, "content_block_stop");
    buf_printf(&c->line, ",\"index\":%d", p->index);
    event_end(c);
}

static void piece(struct call *c, struct choice *ch, const struct part *p, int begins, const char *text, size_t size)
{
    static const char *const delta[] = { [PART_TEXT] = "\"text_delta\",\"text\"", [PART_REASONING] = "\"thinking_delta\",\"thinking\"", [PART_CALL] = "\"input_json_delta\",\"partial_json\"" };
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

static const struct call_form form = { .body = BODY_MESSAGES, .prefix = "msg_", .prepare = prepare, .begin = begin, .event = talk_event, .piece = piece, .end = end, .fail = fail };

void handle_messages(struct server *s, struct conn *c, const char *rest)
{
    const struct http_request *r = conn_request(c);
    (void)rest;
    call_start(s, c, NULL, &form, r->body.data, r->body.size);
}

/* ---- only the count ---- */

static int count(struct call *c, struct problem *pr)
{
    char *text;
    size_t size;
    if (read_talk(c, pr) != 0 || talk_check_tools(&c->talk, pr) != 0 || call_prompts(c, 1, pr) != 0 || talk_render(c->h, &c->talk, 1, &text, &size, pr) != 0)
        return -1;
    int rc = call_tokenize(c, 0, text, size, 1, 0, pr, "messages");
    free(text);
    buf_printf(&c->line, "{\"input_tokens\":%d}", c->prompts[0].n_ids);
    return rc;
}

static void end_count(struct call *c) { reply_json(c->s, c->conn, 200, &c->line); }

static const struct call_form count_form = { .body = BODY_COUNT, .prefix = "msg_", .prepare = count, .end = end_count, .fail = call_fail_answer };

void handle_count_tokens(struct server *s, struct conn *c, const char *rest)
{
    const struct http_request *r = conn_request(c);
    (void)rest;
    call_start(s, c, NULL, &count_form, r->body.data, r->body.size);
}
