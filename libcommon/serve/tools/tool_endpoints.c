/* tool_endpoints.c - /api/tools: list, execute, parse and process. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/serve/exchange.h"
#include "libcommon/serve/internal.h"
#include "libcommon/serve/tools/model_calls.h"
#include "libcommon/serve/tools/tool_request.h"
#include "libcommon/tools/round.h"

/* ---- lists ---- */

void handle_tool_functions(struct server *s, struct conn *c, const char *rest)
{
    (void)rest;
    reply_object(s, c, 200, json_pack("{s:o}", "functions", toolbox_functions(s->toolbox, NULL)));
}

/* Make an element of the list "tools". */
static json_t *tool_json(struct toolbox *b, const json_t *entry)
{
    const json_t *function = json_object_get(entry, "function");
    struct tool_facts facts;
    json_t *out = json_deep_copy(function);
    toolbox_find(b, json_string_value(json_object_get(function, "name")), &facts);
    const int bad = json_object_set_new(out, "server", facts.server ? json_string(facts.server) : json_null()) ||
                    json_object_set_new(out, "read_only", json_boolean(facts.read_only)) ||
                    json_object_set_new(out, "destructive", json_boolean(facts.destructive)) ||
                    json_object_set_new(out, "confirm", json_boolean(facts.confirm));
    if (!bad)
        return out;
    json_decref(out);
    return NULL;
}

void handle_tools(struct server *s, struct conn *c, const char *rest)
{
    json_t *functions = toolbox_functions(s->toolbox, NULL), *tools = json_array(), *entry;
    size_t i;
    int bad = !functions || !tools;
    (void)rest;
    json_array_foreach(functions, i, entry)
        bad |= json_array_append_new(tools, tool_json(s->toolbox, entry));
    json_t *all = bad ? NULL : json_pack("{s:O, s:O, s:o}", "tools", tools, "openai_format", functions,
                                         "servers", toolbox_servers(s->toolbox));
    json_decref(functions);
    json_decref(tools);
    reply_object(s, c, 200, all);
}

/* ---- calls ---- */

static json_t *result_json(const struct tool_result *r)
{
    json_t *text = json_stringn(r->text, r->size);
    return json_pack("{s:s, s:s, s:o, s:o}", "tool_call_id", r->id, "name", r->name, "result",
                     r->is_error ? json_null() : text, "error", r->is_error ? text : json_null());
}

static json_t *results_json(const struct tool_batch *b)
{
    json_t *list = json_array();
    int bad = !list;
    for (int i = 0; i < batch_size(b); i++) {
        const struct tool_result r = batch_result(b, i);
        bad |= json_array_append_new(list, result_json(&r));
    }
    if (!bad)
        return list;
    json_decref(list);
    return NULL;
}

static void answer_one(struct tool_request *r)
{
    const struct tool_result one = batch_result(r->batch, 0);
    reply_object(r->s, r->conn, 200, result_json(&one));
}

static void answer_all(struct tool_request *r)
{
    reply_object(r->s, r->conn, 200, json_pack("{s:O, s:o}", "tool_calls", r->calls, "results", results_json(r->batch)));
}

void handle_tool_execute(struct server *s, struct conn *c, const char *rest)
{
    struct params p = { 0 };
    struct tool_facts facts;
    char id[48];
    json_t *body = read_body_upto(s, c, BODY_TOOL, TOOL_BODY, &p), *none = NULL, *arguments = js_get(body, "arguments");
    (void)rest;
    if (!body)
        return;
    server_id(s, "call_", id);
    if (!arguments)
        arguments = none = json_object();
    const struct tool_call call = { p.tool_call_id ? p.tool_call_id : id, p.name, arguments };
    if (!p.name)
        reply_refusal(s, c, 400, "missing", "name: missing");
    else if (!json_is_object(arguments))
        reply_refusal(s, c, 400, "invalid_type", "arguments: found %s, expected an object", js_kind(arguments));
    else if (strlen(call.id) > TOOL_ID_MAX)
        reply_refusal(s, c, 400, "out_of_range", "tool_call_id: more than %d bytes", TOOL_ID_MAX);
    else if (!toolbox_find(s->toolbox, p.name, &facts))
        reply_refusal(s, c, 404, "unknown_tool", "there is no tool '%.80s': /api/tools lists them", p.name);
    else if (facts.confirm && !p.confirm)
        reply_refusal(s, c, 403, "confirmation_required", "%s may change or delete something: \"confirm\": true runs it",
                      p.name);
    else
        tool_request_start(s, c, &call, 1, (struct tool_request){ .answer = answer_one });
    json_decref(none);
    json_decref(body);
}

/* Find the calls in the body's content and give each an id.  New reference; NULL: refused, and the
 * client has the answer. */
static json_t *parse_content(struct server *s, struct conn *c, const json_t *body)
{
    const json_t *content = js_get(body, "content");
    struct err e;
    json_t *calls = NULL, *call;
    size_t i;
    if (!json_is_string(content)) {
        reply_refusal(s, c, 400, content ? "invalid_type" : "missing", "content: %s, expected text",
                      content ? js_kind(content) : "missing");
        return NULL;
    }
    if (!(calls = model_calls(json_string_value(content), json_string_length(content), &e))) {
        reply_refusal(s, c, e.code == ERR_MEMORY ? 503 : 400, e.code == ERR_MEMORY ? NULL : "too_many_calls",
                      "content: %s", e.msg);
        return NULL;
    }
    json_array_foreach(calls, i, call) {
        char id[48];
        server_id(s, "call_", id);
        json_object_set_new(call, "id", json_string(id));
    }
    return calls;
}

void handle_tool_parse(struct server *s, struct conn *c, const char *rest)
{
    struct params p = { 0 };
    json_t *body = read_body(s, c, BODY_TOOL_PARSE, &p),
           *calls = body ? parse_content(s, c, body) : NULL;
    (void)rest;
    if (calls)
        reply_object(s, c, 200, json_pack("{s:o}", "tool_calls", calls));
    json_decref(body);
}

void handle_tool_process(struct server *s, struct conn *c, const char *rest)
{
    struct params p = { .auto_execute = 1 };
    json_t *body = read_body(s, c, BODY_TOOL_PROCESS, &p),
           *calls = body ? parse_content(s, c, body) : NULL, *call;
    struct tool_call list[ROUND_CALLS_MAX];
    size_t i;
    int n = 0;
    (void)rest;
    json_decref(body);
    if (!calls)
        return;
    if (!p.auto_execute || json_array_size(calls) == 0) {
        reply_object(s, c, 200, json_pack("{s:o, s:[]}", "tool_calls", calls, "results"));
        return;
    }
    json_array_foreach(calls, i, call)
        list[n++] = (struct tool_call){ json_string_value(json_object_get(call, "id")),
                                        json_string_value(json_object_get(call, "name")),
                                        json_object_get(call, "arguments") };
    tool_request_start(s, c, list, n, (struct tool_request){ .answer = answer_all, .calls = calls });
}
