/* responses.c - POST /v1/responses: OpenAI's Responses, without memory: every request brings its whole conversation. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "libcommon/base/json.h"
#include "libcommon/serve/calls.h"

/* ---- the body ---- */

/* The message of the model that calls and reasoning go to: the last one, if nothing came after it. Borrowed; NULL: out of memory. */
static json_t *open_answer(json_t *messages, const char *closed_by)
{
    const size_t n = json_array_size(messages);
    json_t *last = n ? json_array_get(messages, n - 1) : NULL;
    const char *role = json_string_value(json_object_get(last, "role"));
    if (role && strcmp(role, "assistant") == 0 && !(closed_by && json_object_get(last, closed_by)))
        return last;
    json_t *m = json_pack("{s:s}", "role", "assistant");
    return m && json_array_append_new(messages, m) == 0 ? m : NULL;
}

static int add_message(json_t *messages, const json_t *item, const char *param, struct problem *pr)
{
    static const char *const types[] = { "input_text", "output_text", "text", "refusal", NULL };
    const char *role = json_string_value(json_object_get(item, "role"));
    struct buf text = { 0 };
    int rc = talk_text(json_object_get(item, "content"), types, param, &text, pr);
    if (rc == 0 && !role)
        rc = problem_set(pr, 400, param, "invalid_role", "%s: role is missing, expected system, developer, user or assistant", param);
    if (rc == 0) {
        json_t *content = json_stringn(text.data ? text.data : "", text.size), *m;
        if (strcmp(role, "assistant") == 0)
            m = open_answer(messages, "content");
        else if ((m = json_pack("{s:s}", "role", role)) && json_array_append_new(messages, m) != 0)
            m = NULL;
        if (!m || json_object_set_new(m, "content", content) != 0)
            rc = problem_set(pr, 503, NULL, NULL, "out of memory");
    }
    buf_release(&text);
    return rc;
}

static int add_call(json_t *messages, const json_t *item, const char *param, struct problem *pr)
{
    json_t *id = json_object_get(item, "call_id"), *name = json_object_get(item, "name"), *arguments = json_object_get(item, "arguments");
    if (!json_is_string(id) || !json_is_string(name) || !json_is_string(arguments))
        return problem_set(pr, 400, param, "invalid_type", "%s: expected {type: \"function_call\", call_id, name, arguments}", param);
    json_t *m = open_answer(messages, NULL), *calls = json_object_get(m, "tool_calls");
    if (!calls && m) {
        calls = json_array();
        json_object_set_new(m, "tool_calls", calls);
    }
    json_t *call = json_pack("{s:O, s:s, s:{s:O, s:O}}", "id", id, "type", "function", "function", "name", name, "arguments", arguments);
    return m && json_array_append_new(calls, call) == 0 ? 0 : problem_set(pr, 503, NULL, NULL, "out of memory");
}

static int add_output(json_t *messages, const json_t *item, const char *param, struct problem *pr)
{
    static const char *const types[] = { "input_text", "output_text", "text", NULL };
    json_t *id = json_object_get(item, "call_id");
    struct buf text = { 0 };
    int rc = json_is_string(id) ? talk_text(json_object_get(item, "output"), types, param, &text, pr)
                                : problem_set(pr, 400, param, "invalid_type", "%s: expected {type: \"function_call_output\", call_id, output}", param);
    if (rc == 0 && json_array_append_new(messages, json_pack("{s:s, s:O, s:o}", "role", "tool", "tool_call_id", id, "content", json_stringn(text.data ? text.data : "", text.size))) != 0)
        rc = problem_set(pr, 503, NULL, NULL, "out of memory");
    buf_release(&text);
    return rc;
}

static int add_reasoning(json_t *messages, const json_t *item, struct problem *pr)
{
    const json_t *part, *list = json_object_get(item, "content");
    struct buf text = { 0 };
    size_t i;
    int rc = 0;
    json_array_foreach(list, i, part) {
        const json_t *words = json_object_get(part, "text");
        buf_add(&text, json_string_value(words), json_string_length(words));
    }
    if (text.size) {
        json_t *m = open_answer(messages, "content");
        if (!m || json_object_set_new(m, "reasoning_content", json_stringn(text.data, text.size)) != 0)
            rc = problem_set(pr, 503, NULL, NULL, "out of memory");
    }
    buf_release(&text);
    return rc;
}

static int read_input(struct call *c, json_t *messages, struct problem *pr)
{
    json_t *input = js_get(c->json, "input"), *item;
    size_t i;
    if (json_is_string(input))
        return json_array_append_new(messages, json_pack("{s:s, s:O}", "role", "user", "content", input));
    if (!json_is_array(input) || json_array_size(input) == 0)
        return problem_set(pr, 400, "input", input ? "invalid_type" : "missing", "input: %s, expected text or a list of items", !input ? "missing" : json_is_array(input) ? "empty" : js_kind(input));
    json_array_foreach(input, i, item) {
        const char *type = json_string_value(json_object_get(item, "type"));
        char param[40];
        int rc;
        snprintf(param, sizeof param, "input[%zu]", i);
        if (!type || strcmp(type, "message") == 0)
            rc = add_message(messages, item, param, pr);
        else if (strcmp(type, "function_call") == 0)
            rc = add_call(messages, item, param, pr);
        else if (strcmp(type, "function_call_output") == 0)
            rc = add_output(messages, item, param, pr);
        else if (strcmp(type, "reasoning") == 0)
            rc = add_reasoning(messages, item, pr);
        else
            rc = problem_set(pr, 400, param, "unsupported_parameter", "%s: type is '%.40s', expected message, function_call, function_call_output or reasoning", param, type);
        if (rc != 0)
            return -1;
    }
    return 0;
}

static int read_tools(struct call *c, struct problem *pr)
{
    json_t *tools = js_get(c->json, "tools"), *tool, *v = js_get(c->json, "tool_choice");
    const char *word = json_string_value(v), *type = json_string_value(json_object_get(v, "type"));
    struct talk *t = &c->talk;
    size_t i;
    if (tools && !json_is_array(tools))
        return problem_set(pr, 400, "tools", "invalid_type", "tools: found %s, expected a list", js_kind(tools));
    json_array_foreach(tools, i, tool) {
        const char *kind = json_string_value(json_object_get(tool, "type"));
        char param[32];
        snprintf(param, sizeof param, "tools[%zu]", i);
        if (!kind || strcmp(kind, "function") != 0)
            return problem_set(pr, 400, param, "unsupported_parameter", "%s: type is '%.40s', expected function", param, kind ? kind : "");
        if (talk_add_tool(t, json_string_value(json_object_get(tool, "name")), js_get(tool, "description"), js_get(tool, "parameters"), param, pr) != 0)
            return -1;
    }
    if (!v || (word && strcmp(word, "auto") == 0))
        return 0;
    t->choice = word && strcmp(word, "none") == 0 ? CALLS_NONE : CALLS_REQUIRED;
    t->only = json_string_value(json_object_get(v, "name"));
    if (t->choice == CALLS_NONE || (word && strcmp(word, "required") == 0) || (type && strcmp(type, "function") == 0 && t->only))
        return 0;
    return problem_set(pr, 400, "tool_choice", "invalid_type", "tool_choice: expected none, auto, required, or {type: \"function\", name}");
}

static int read_text(struct call *c, struct problem *pr)
{
    json_t *text = js_get(c->json, "text"), *v;
    const char *key;
    if (text && !json_is_object(text))
        return problem_set(pr, 400, "text", "invalid_type", "text: found %s, expected an object", js_kind(text));
    json_object_foreach(text, key, v)
        if (strcmp(key, "format") != 0 && !json_is_null(v) && !(json_is_string(v) && strcmp(json_string_value(v), "medium") == 0))
            return problem_set(pr, 400, "text", "unsupported_parameter", "text: %.40s: only format is here", key);
    c->talk.format = js_get(text, "format");
    c->talk.format_param = "text.format";
    return 0;
}

static int prepare(struct call *c, struct problem *pr)
{
    json_t *instructions = js_get(c->json, "instructions"), *messages = json_array(), *vars = js_get(c->json, "chat_template_kwargs");
    struct talk *t = &c->talk;
    if (vars && !json_is_object(vars)) {
        json_decref(messages);
        return problem_set(pr, 400, "chat_template_kwargs", "invalid_type", "chat_template_kwargs: found %s, expected an object", js_kind(vars));
    }
    t->vars = json_incref(vars);
    t->serial = !c->params.parallel_calls;
    if (instructions)                   /* fields_parse has seen that it is text */
        json_array_append_new(messages, json_pack("{s:s, s:O}", "role", "system", "content", instructions));
    int rc = read_input(c, messages, pr);
    t->messages = rc == 0 ? talk_messages(messages, pr) : NULL;
    t->param = "input";
    json_decref(messages);
    return t->messages && read_tools(c, pr) == 0 && read_text(c, pr) == 0 ? talk_prepare(c, pr) : -1;
}

/* ---- the answer ---- */

static void item_id(const struct call *c, const struct part *p, char out[64])
{
    static const char *const prefixes[] = { [PART_TEXT] = "msg", [PART_REASONING] = "rs", [PART_CALL] = "fc" };
    snprintf(out, 64, "%s_%s%02d", prefixes[p->kind], c->id + 5, p->index);
}

static void text_part(const struct part *p, int whole, struct buf *out)
{
    buf_str(out, p->kind == PART_TEXT ? "{\"type\":\"output_text\",\"annotations\":[],\"logprobs\":[],\"text\":" : "{\"type\":\"reasoning_text\",\"text\":");
    buf_json(out, p->text.data, whole ? p->text.size : 0);
    buf_str(out, "}");
}

/* An element of output; status "in_progress": as it begins, without content. */
static void item_json(const struct call *c, const struct part *p, const char *status, struct buf *out)
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
        buf_str(out, p->kind == PART_TEXT ? "\"type\":\"message\",\"role\":\"assistant\",\"content\":[" : "\"type\":\"reasoning\",\"summary\":[],\"content\":[");
        if (whole)
            text_part(p, 1, out);
        buf_str(out, "]");
    }
    buf_str(out, "}");
    out->failed |= p->text.failed;
}

static const char *end_status(const struct choice *ch) { return ch->finish == FINISH_LENGTH ? "incomplete" : "completed"; }

static void field_json(const struct call *c, const char *name, const char *otherwise, struct buf *out)
{
    const json_t *v = js_get(c->json, name);
    char *text = v ? json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    buf_printf(out, ",\"%s\":", name);
    buf_str(out, text ? text : otherwise);
    free(text);
}

/* The response object. status "in_progress": nothing is there yet. p: what went wrong, or NULL. */
static void response_json(const struct call *c, const char *status, const struct problem *p, struct buf *out)
{
    const struct choice *ch = &c->choices[0];
    int prompt, completion, cached, reasoning, whole = strcmp(status, "in_progress") != 0;
    buf_printf(out, "{\"id\":\"%s\",\"object\":\"response\",\"created_at\":%lld,\"status\":\"%s\",\"background\":false,\"error\":", c->id, (long long)c->created, status);
    if (p) {
        buf_printf(out, "{\"code\":\"%s\",\"message\":", p->status == 429 ? "rate_limit_exceeded" : "server_error");
        buf_json(out, p->message, strlen(p->message));
        buf_str(out, "}");
    } else {
        buf_str(out, "null");
    }
    buf_str(out, strcmp(status, "incomplete") == 0 ? ",\"incomplete_details\":{\"reason\":\"max_output_tokens\"}" : ",\"incomplete_details\":null");
    buf_str(out, ",\"model\":");
    buf_json(out, c->h->id, strlen(c->h->id));
    field_json(c, "instructions", "null", out);
    field_json(c, "max_output_tokens", "null", out);
    field_json(c, "metadata", "{}", out);
    field_json(c, "tools", "[]", out);
    field_json(c, "tool_choice", "\"auto\"", out);
    field_json(c, "text", "{\"format\":{\"type\":\"text\"}}", out);
    field_json(c, "user", "null", out);
    buf_printf(out, ",\"parallel_tool_calls\":%s,\"temperature\":%.9g,\"top_p\":%.9g,\"previous_response_id\":null,\"reasoning\":{\"effort\":null,\"summary\":null},"
               "\"service_tier\":\"default\",\"store\":false,\"truncation\":\"disabled\",\"output\":[", c->params.parallel_calls ? "true" : "false",
               (double)c->params.sampling.temperature, (double)c->params.sampling.top_p);
    for (int i = 0; whole && i < ch->n_parts; i++) {
        buf_str(out, i ? "," : "");
        item_json(c, &ch->part[i], i + 1 == ch->n_parts ? end_status(ch) : "completed", out);
    }
    buf_str(out, "],\"usage\":");
    if (whole) {
        call_totals(c, &prompt, &completion, &cached, &reasoning);
        buf_printf(out, "{\"input_tokens\":%d,\"input_tokens_details\":{\"cached_tokens\":%d,\"cache_write_tokens\":0},\"output_tokens\":%d,\"output_tokens_details\":{\"reasoning_tokens\":%d},"
                   "\"total_tokens\":%d}}", prompt, cached, completion, reasoning, prompt + completion);
    } else {
        buf_str(out, "null}");
    }
}

/* ---- the stream ---- */

static void event_head(struct call *c, const char *type)
{
    buf_printf(&c->line, "event: %s\ndata: {\"type\":\"%s\",\"sequence_number\":%d", type, type, c->n_events++);
}

static void event_end(struct call *c)
{
    buf_str(&c->line, "}\n\n");
    call_send_event(c);
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

static void part_event(struct call *c, const struct part *p, const char *type)
{
    char id[64];
    item_id(c, p, id);
    event_head(c, type);
    buf_printf(&c->line, ",\"item_id\":\"%s\",\"output_index\":%d%s", id, p->index, p->kind == PART_CALL ? "" : ",\"content_index\":0");
}

static void item_event(struct call *c, const struct part *p, const char *type, const char *status)
{
    event_head(c, type);
    buf_printf(&c->line, ",\"output_index\":%d,\"item\":", p->index);
    item_json(c, p, status, &c->line);
    event_end(c);
}

static void close_item(struct call *c, const struct part *p, const char *status)
{
    static const char *const done[] = { [PART_TEXT] = "response.output_text.done", [PART_REASONING] = "response.reasoning_text.done", [PART_CALL] = "response.function_call_arguments.done" };
    part_event(c, p, done[p->kind]);
    if (p->kind == PART_CALL) {
        buf_str(&c->line, ",\"name\":");
        buf_json(&c->line, p->name, strlen(p->name));
    }
    buf_str(&c->line, p->kind == PART_CALL ? ",\"arguments\":" : p->kind == PART_TEXT ? ",\"logprobs\":[],\"text\":" : ",\"text\":");
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

static void piece(struct call *c, struct choice *ch, const struct part *p, int begins, const char *text, size_t size)
{
    static const char *const delta[] = { [PART_TEXT] = "response.output_text.delta", [PART_REASONING] = "response.reasoning_text.delta", [PART_CALL] = "response.function_call_arguments.delta" };
    if (!call_is_stream(c))
        return;
    if (begins) {
        if (p->index > 0)
            close_item(c, &ch->part[p->index - 1], "completed");
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

static void end(struct call *c)
{
    const struct choice *ch = &c->choices[0];
    if (!call_is_stream(c)) {
        struct buf out = { 0 };
        response_json(c, end_status(ch), NULL, &out);
        reply_json(c->s, c->conn, 200, &out);
        buf_release(&out);
        return;
    }
    if (ch->n_parts)
        close_item(c, &ch->part[ch->n_parts - 1], end_status(ch));
    response_event(c, ch->finish == FINISH_LENGTH ? "response.incomplete" : "response.completed", end_status(ch), NULL);
    conn_end(c->conn);
}

static void fail(struct call *c, const struct problem *p)
{
    if (!c->conn || conn_status(c->conn) == 0) {
        call_fail_answer(c, p);
        return;
    }
    visit_error(call_visit(c), p->message);
    response_event(c, "response.failed", "failed", p);
    conn_end(c->conn);
}

static const struct call_form form = { .body = BODY_RESPONSES, .prefix = "resp_", .prepare = prepare, .begin = begin, .event = talk_event, .piece = piece, .end = end, .fail = fail };

void handle_responses(struct server *s, struct conn *c, const char *rest)
{
    const struct http_request *r = conn_request(c);
    (void)rest;
    call_start(s, c, NULL, &form, r->body.data, r->body.size);
}
