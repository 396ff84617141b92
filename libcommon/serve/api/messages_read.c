/* messages_read.c - the body of POST /v1/messages as a conversation. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/serve/api/conversation.h"
#include "libcommon/serve/fields.h"

static const char *const text_types[] = { "text", NULL };

static int add_result(json_t *messages, const json_t *block, const char *param, struct problem *pr)
{
    json_t *id = json_object_get(block, "tool_use_id"), *content = js_get(block, "content");
    struct buf text = { 0 };
    int rc = json_is_string(id) ? 0 : problem_set(pr, 400, param, "invalid_type",
                                                  "%s: tool_result: expected a tool_use_id", param);
    if (rc == 0 && content)
        rc = conversation_text(content, text_types, param, &text, pr);
    if (rc == 0)
        rc = conversation_add_message(messages, "tool", id, &text, pr);
    buf_release(&text);
    return rc;
}

/* Add a block of the assistant to m, and its text to the text of m. */
static int add_own_block(json_t *m, const json_t *block, const char *type, struct buf *text, const char *param,
                         struct problem *pr)
{
    const json_t *words = json_object_get(block, "text");
    const json_t *thought = json_object_get(block, "thinking");
    if (strcmp(type, "text") == 0 && json_is_string(words)) {
        buf_add(text, json_string_value(words), json_string_length(words));
        return 0;
    }
    if (strcmp(type, "thinking") == 0 && json_is_string(thought))
        return conversation_add_reasoning(m, json_string_value(thought), json_string_length(thought), pr);
    if (strcmp(type, "redacted_thinking") == 0)
        return 0;                       /* skip it: encrypted content is of no use to a model here */
    json_t *id = json_object_get(block, "id"), *name = json_object_get(block, "name"),
           *input = json_object_get(block, "input");
    if ((strcmp(type, "tool_use") != 0 && strcmp(type, "mcp_tool_use") != 0) || !json_is_string(id) ||
        !json_is_string(name) || !json_is_object(input))
        return problem_set(pr, 400, param, "unsupported_parameter",
                           "%s: a block of type '%.40s', expected text, thinking, or tool_use {id, name, input}", param,
                           type);
    return conversation_add_call(m, id, name, input, pr);
}

/* Append the assistant's message m with the content `text`, and empty `text`.  Takes ownership of
 * m. */
static int end_own(json_t *messages, json_t *m, struct buf *text, struct problem *pr)
{
    const int rc = json_object_set_new(m, "content", conversation_string(text)) == 0 &&
                   json_array_append(messages, m) == 0 ? 0 : problem_nomem(pr);
    json_decref(m);
    text->size = 0;
    return rc;
}

/* Add the blocks of the assistant.  A result of a tool that the server ran ends a message: the next
 * block begins another one, as in the rounds of that answer. */
static int add_own(json_t *messages, const json_t *content, const char *param, struct problem *pr)
{
    json_t *m = json_pack("{s:s}", "role", "assistant");
    const json_t *block;
    struct buf text = { 0 };
    size_t i;
    int rc = m ? 0 : problem_nomem(pr);
    json_array_foreach(content, i, block) {
        const char *type = json_string_value(json_object_get(block, "type"));
        const int result = type && strcmp(type, "mcp_tool_result") == 0;
        if (result && m && rc == 0) {
            rc = end_own(messages, m, &text, pr);
            m = NULL;
        }
        if (rc == 0 && result)
            rc = add_result(messages, block, param, pr);
        else if (rc == 0 && !m && !(m = json_pack("{s:s}", "role", "assistant")))
            rc = problem_nomem(pr);
        if (rc == 0 && !result)
            rc = add_own_block(m, block, type ? type : "", &text, param, pr);
        if (rc != 0)
            break;
    }
    if (rc == 0 && m) {
        rc = end_own(messages, m, &text, pr);
        m = NULL;
    }
    json_decref(m);
    buf_release(&text);
    return rc;
}

/* Add the blocks of the user: results become messages of their own, before the text. */
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
            rc = problem_set(pr, 400, param, "unsupported_parameter",
                             "%s: a block of type '%.40s', expected text or tool_result", param, type ? type : "?");
        }
        if (rc != 0)
            break;
    }
    if (rc == 0 && (text.size || !results))
        rc = conversation_add_message(messages, "user", NULL, &text, pr);
    buf_release(&text);
    return rc;
}

static int read_messages(const json_t *body, json_t *out, struct problem *pr)
{
    json_t *list = js_get(body, "messages"), *system = js_get(body, "system"), *m;
    const char *role = NULL;
    size_t i;
    if (system) {
        struct buf text = { 0 };
        int rc = conversation_text(system, text_types, "system", &text, pr);
        if (rc == 0 && text.size)
            rc = conversation_add_message(out, "system", NULL, &text, pr);
        buf_release(&text);
        if (rc != 0)
            return -1;
    }
    if (conversation_check_list(list, "messages", "a list of at least 1 message", pr) != 0)
        return -1;
    json_array_foreach(list, i, m) {
        const json_t *content = json_object_get(m, "content");
        char param[40];
        int rc;
        snprintf(param, sizeof param, "messages[%zu]", i);
        role = json_string_value(json_object_get(m, "role"));
        if (!role || (strcmp(role, "user") != 0 && strcmp(role, "assistant") != 0))
            return problem_set(pr, 400, param, "invalid_role", "%s: role is %.60s, expected user or assistant", param,
                               role ? role : "missing");
        if (json_is_string(content)) {
            struct buf text = { 0 };
            buf_add(&text, json_string_value(content), json_string_length(content));
            rc = conversation_add_message(out, role, NULL, &text, pr);
            buf_release(&text);
        } else if (json_is_array(content)) {
            rc = strcmp(role, "user") == 0 ? add_users(out, content, param, pr) : add_own(out, content, param, pr);
        } else {
            rc = problem_set(pr, 400, param, "invalid_type", "%s: content: found %s, expected text or a list of blocks",
                             param, js_kind(content));
        }
        if (rc != 0)
            return -1;
    }
    return 0;
}

static const json_t *function_of(const json_t *tool, const char *param, struct problem *pr)
{
    const char *kind = json_string_value(json_object_get(tool, "type"));
    if (!kind || strcmp(kind, "custom") == 0)
        return tool;
    problem_set(pr, 400, param, "unsupported_parameter",
                "%s: type is '%.40s', expected custom; tools of the server are named in server_tools",
                param, kind);
    return NULL;
}

static int read_choice(const json_t *body, struct conversation *t, struct problem *pr)
{
    const json_t *v = js_get(body, "tool_choice");
    const char *type = json_string_value(json_object_get(v, "type"));
    if (!v)
        return 0;
    t->serial = json_is_true(json_object_get(v, "disable_parallel_tool_use"));
    if (type && strcmp(type, "auto") == 0)
        return 0;
    t->choice = type && strcmp(type, "none") == 0 ? CALLS_NONE : CALLS_REQUIRED;
    t->only = json_string_value(json_object_get(v, "name"));
    if (type && (t->choice == CALLS_NONE || strcmp(type, "any") == 0 || (strcmp(type, "tool") == 0 && t->only)))
        return 0;
    return problem_set(pr, 400, "tool_choice", "invalid_type",
                       "tool_choice: expected {type: auto}, {type: any}, {type: none} or {type: tool, name}");
}

/* Read "thinking", which becomes the template's variable enable_thinking, and the format of the
 * answer in output_config. */
static int read_settings(const json_t *body, struct conversation *t, struct problem *pr)
{
    json_t *thinking = js_get(body, "thinking"), *output = js_get(body, "output_config"), *v;
    const char *type = json_string_value(json_object_get(thinking, "type")), *key;
    int wanted = type && (strcmp(type, "enabled") == 0 || strcmp(type, "adaptive") == 0);
    if (thinking && !wanted && !(type && strcmp(type, "disabled") == 0))
        return problem_set(pr, 400, "thinking", "invalid_type",
                           "thinking: expected {type: enabled}, {type: adaptive} or {type: disabled}");
    t->vars = json_pack("{s:b}", "enable_thinking", wanted);
    if (conversation_read_vars(t, body, pr) != 0)
        return -1;
    if (output && !json_is_object(output))
        return problem_set(pr, 400, "output_config", "invalid_type", "output_config: found %s, expected an object",
                           js_kind(output));
    json_object_foreach(output, key, v)
        if (strcmp(key, "format") != 0 && strcmp(key, "effort") != 0 && !json_is_null(v) &&
            fields_unknown(t->ignored, "output_config", key, pr) != 0)
            return -1;
    t->format = js_get(output, "format");
    t->format_param = "output_config.format";
    return 0;
}

/* Whether the last message is the assistant's, which the answer continues. */
static int ends_with_assistant(const json_t *messages)
{
    const json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    return role && strcmp(role, "assistant") == 0;
}

int messages_read(const json_t *body, struct conversation *t, struct problem *pr)
{
    json_t *messages = json_array();
    int rc = read_messages(body, messages, pr);
    t->messages = rc == 0 ? conversation_messages(messages, pr) : NULL;
    t->param = "messages";
    t->continues = ends_with_assistant(t->messages);
    json_decref(messages);
    return t->messages && conversation_check_continued(t, body, pr) == 0 &&
           conversation_read_tools(t, body, "input_schema", function_of, pr) == 0 &&
           read_choice(body, t, pr) == 0 && read_settings(body, t, pr) == 0 ? 0 : -1;
}
