/* responses_read.c - the body of POST /v1/responses as a conversation. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/serve/api/conversation.h"
#include "libcommon/serve/fields.h"

/* The message of the assistant to which an item belongs: the last message, if its role is
 * assistant and it does not have the key closed_by yet, otherwise a new one.  Borrowed; NULL:
 * out of memory. */
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
    int rc = conversation_text(json_object_get(item, "content"), types, param, &text, pr);
    if (rc == 0 && !role)
        rc = problem_set(pr, 400, param, "invalid_role",
                         "%s: role is missing, expected system, developer, user or assistant", param);
    if (rc == 0) {
        json_t *content = json_stringn(text.data ? text.data : "", text.size), *m;
        if (strcmp(role, "assistant") == 0)
            m = open_answer(messages, "content");
        else if ((m = json_pack("{s:s}", "role", role)) && json_array_append_new(messages, m) != 0)
            m = NULL;
        if (!m || json_object_set_new(m, "content", content) != 0)
            rc = problem_nomem(pr);
    }
    buf_release(&text);
    return rc;
}

static int add_call(json_t *messages, const json_t *item, const char *param, struct problem *pr)
{
    json_t *id = json_object_get(item, "call_id"), *name = json_object_get(item, "name"),
           *arguments = json_object_get(item, "arguments");
    if (!json_is_string(id) || !json_is_string(name) || !json_is_string(arguments))
        return problem_set(pr, 400, param, "invalid_type",
                           "%s: expected {type: \"function_call\", call_id, name, arguments}", param);
    json_t *m = open_answer(messages, NULL);
    return m ? conversation_add_call(m, id, name, arguments, pr) : problem_nomem(pr);
}

static int add_output(json_t *messages, const json_t *item, const char *param, struct problem *pr)
{
    static const char *const types[] = { "input_text", "output_text", "text", NULL };
    json_t *id = json_object_get(item, "call_id");
    struct buf text = { 0 };
    int rc = json_is_string(id) ? conversation_text(json_object_get(item, "output"), types, param, &text, pr)
                                : problem_set(pr, 400, param, "invalid_type",
                                              "%s: expected {type: \"function_call_output\", call_id, output}", param);
    if (rc == 0)
        rc = conversation_add_message(messages, "tool", id, &text, pr);
    buf_release(&text);
    return rc;
}

/* Add a call that the server ran, and its result. */
static int add_server_call(json_t *messages, const json_t *item, const char *param, struct problem *pr)
{
    json_t *id = json_object_get(item, "id"), *name = json_object_get(item, "name"),
           *arguments = json_object_get(item, "arguments"), *output = js_get(item, "output"), *error = js_get(item, "error");
    const json_t *said = output ? output : error;
    struct buf text = { 0 };
    if (!json_is_string(id) || !json_is_string(name) || !json_is_string(arguments) || (said && !json_is_string(said)))
        return problem_set(pr, 400, param, "invalid_type",
                           "%s: expected {type: \"mcp_call\", id, name, arguments, output, error}", param);
    json_t *m = open_answer(messages, NULL);
    int rc = m ? conversation_add_call(m, id, name, arguments, pr) : problem_nomem(pr);
    buf_add(&text, json_string_value(said), json_string_length(said));
    if (rc == 0)
        rc = conversation_add_message(messages, "tool", id, &text, pr);
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
        rc = m ? conversation_add_reasoning(m, text.data, text.size, pr) : problem_nomem(pr);
    }
    buf_release(&text);
    return rc;
}

static int read_item(json_t *messages, const json_t *item, const char *param, struct problem *pr)
{
    const char *type = json_string_value(json_object_get(item, "type"));
    if (!type || strcmp(type, "message") == 0)
        return add_message(messages, item, param, pr);
    if (strcmp(type, "function_call") == 0)
        return add_call(messages, item, param, pr);
    if (strcmp(type, "function_call_output") == 0)
        return add_output(messages, item, param, pr);
    if (strcmp(type, "mcp_call") == 0)
        return add_server_call(messages, item, param, pr);
    if (strcmp(type, "reasoning") == 0)
        return add_reasoning(messages, item, pr);
    return problem_set(pr, 400, param, "unsupported_parameter",
                       "%s: type is '%.40s', expected message, function_call, function_call_output, mcp_call or reasoning",
                       param, type);
}

static int read_items(json_t *messages, const json_t *items, const char *name, struct problem *pr)
{
    const json_t *item;
    size_t i;
    json_array_foreach(items, i, item) {
        char param[60];
        snprintf(param, sizeof param, "%s[%zu]", name, i);
        if (read_item(messages, item, param, pr) != 0)
            return -1;
    }
    return 0;
}

static int read_input(const json_t *body, json_t *messages, struct problem *pr)
{
    json_t *input = js_get(body, "input");
    if (json_is_string(input))
        return json_array_append_new(messages, json_pack("{s:s, s:O}", "role", "user", "content", input)) == 0 ? 0
            : problem_nomem(pr);
    if (conversation_check_list(input, "input", "text or a list of items", pr) != 0)
        return -1;
    return read_items(messages, input, "input", pr);
}

static const json_t *function_of(const json_t *tool, const char *param, struct problem *pr)
{
    const char *kind = json_string_value(json_object_get(tool, "type"));
    if (kind && strcmp(kind, "function") == 0)
        return tool;
    problem_set(pr, 400, param, "unsupported_parameter", "%s: type is '%.40s', expected function", param,
                kind ? kind : "");
    return NULL;
}

static int read_choice(const json_t *body, struct conversation *t, struct problem *pr)
{
    const json_t *v = js_get(body, "tool_choice");
    const char *word = json_string_value(v), *type = json_string_value(json_object_get(v, "type"));
    if (!v || (word && strcmp(word, "auto") == 0))
        return 0;
    if (type && strcmp(type, "allowed_tools") == 0)
        return conversation_read_allowed(v, t, pr);
    t->choice = word && strcmp(word, "none") == 0 ? CALLS_NONE : CALLS_REQUIRED;
    t->only = json_string_value(json_object_get(v, "name"));
    if (t->choice == CALLS_NONE || (word && strcmp(word, "required") == 0) ||
        (type && strcmp(type, "function") == 0 && t->only))
        return 0;
    return problem_set(pr, 400, "tool_choice", "invalid_type",
                       "tool_choice: expected none, auto, required, or {type: \"function\", name}");
}

static int read_text(const json_t *body, struct conversation *t, struct problem *pr)
{
    json_t *text = js_get(body, "text"), *v;
    const char *key;
    if (text && !json_is_object(text))
        return problem_set(pr, 400, "text", "invalid_type", "text: found %s, expected an object", js_kind(text));
    json_object_foreach(text, key, v)
        if (strcmp(key, "format") != 0 && strcmp(key, "verbosity") != 0 && !json_is_null(v) &&
            fields_unknown(t->ignored, "text", key, pr) != 0)
            return -1;
    t->format = js_get(text, "format");
    t->format_param = "text.format";
    return 0;
}

/* The client's own strings, which the answer repeats. */
static int check_metadata(const json_t *body, struct problem *pr)
{
    static const char name[] = "metadata";
    json_t *all = js_get(body, name), *v;
    const char *key;
    if (all && !json_is_object(all))
        return problem_set(pr, 400, name, "invalid_type", "%s: found %s, expected an object of strings", name,
                           js_kind(all));
    json_object_foreach(all, key, v)
        if (!json_is_string(v))
            return problem_set(pr, 400, name, "invalid_type", "%s: %.64s: found %s, expected a string", name, key,
                               js_kind(v));
    return 0;
}

int responses_read(const json_t *body, int parallel, struct conversation *t, struct problem *pr)
{
    json_t *instructions = js_get(body, "instructions");
    if (conversation_read_vars(t, body, pr) != 0 || check_metadata(body, pr) != 0)
        return -1;
    json_t *messages = json_array();
    t->serial = !parallel;
    if (instructions)                   /* fields_parse has checked that it is text */
        json_array_append_new(messages, json_pack("{s:s, s:O}", "role", "system", "content", instructions));
    int rc = read_items(messages, t->previous, "previous_response_id", pr) || read_input(body, messages, pr) ? -1 : 0;
    t->messages = rc == 0 ? conversation_messages(messages, pr) : NULL;
    t->param = "input";
    json_decref(messages);
    return t->messages && conversation_read_tools(t, body, "parameters", function_of, pr) == 0 &&
           read_choice(body, t, pr) == 0 && read_text(body, t, pr) == 0 ? 0 : -1;
}
