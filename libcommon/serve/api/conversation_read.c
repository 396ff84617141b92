/* conversation_read.c - read the messages, functions and response formats of bodies, and the body
 * of chat completions. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/serve/api/conversation.h"
#include "libcommon/serve/fields.h"

void conversation_release(struct conversation *t)
{
    json_decref(t->messages);
    json_decref(t->previous);
    json_decref(t->tools);
    json_decref(t->allowed);
    json_decref(t->strict);
    json_decref(t->lenient);
    json_decref(t->vars);
    memset(t, 0, sizeof *t);
}

/* ---- messages ---- */

int conversation_text(const json_t *content, const char *const *types, const char *param, struct buf *out,
                      struct problem *pr)
{
    const json_t *part;
    size_t i;
    if (json_is_string(content)) {
        buf_add(out, json_string_value(content), json_string_length(content));
        return out->failed ? problem_nomem(pr) : 0;
    }
    if (!json_is_array(content))
        return problem_set(pr, 400, param, "invalid_type",
                           "%s: content: found %s, expected text or a list of text parts", param, js_kind(content));
    json_array_foreach(content, i, part) {
        const char *type = json_string_value(json_object_get(part, "type"));
        const json_t *words = json_object_get(part, type && strcmp(type, "refusal") == 0 ? "refusal" : "text");
        int ok = 0;
        for (size_t k = 0; type && types[k]; k++)
            ok |= strcmp(type, types[k]) == 0;
        if (!ok || !json_is_string(words))
            return problem_set(pr, 400, param, "unsupported_parameter",
                               "%s: content part %zu is of type '%.40s', expected text", param, i, type ? type : "?");
        buf_add(out, json_string_value(words), json_string_length(words));
    }
    return out->failed ? problem_nomem(pr) : 0;
}

/* Copy the calls of a message of the model, with their arguments as objects, which templates
 * expect.  New reference; NULL with *pr. */
static json_t *calls_of(const json_t *list, const char *param, struct problem *pr)
{
    json_t *out = json_array();
    const json_t *call;
    size_t i;
    if (!json_is_array(list)) {
        problem_set(pr, 400, param, "invalid_type", "%s: tool_calls: found %s, expected a list", param, js_kind(list));
        goto fail;
    }
    json_array_foreach(list, i, call) {
        const json_t *function = json_object_get(call, "function"), *arguments = json_object_get(function, "arguments");
        if (!json_is_string(json_object_get(function, "name")) ||
            !(json_is_string(arguments) || json_is_object(arguments))) {
            problem_set(pr, 400, param, "invalid_type",
                        "%s: tool_calls: number %zu: expected {id, type, function: {name, arguments}}", param, i);
            goto fail;
        }
        json_error_t je;
        json_t *copy = json_deep_copy(call);            /* if memory runs out, values are missing */
        json_t *object = json_is_string(arguments)
                             ? json_loadb(json_string_value(arguments), json_string_length(arguments), 0, &je) : NULL;
        int bad = !json_equal(copy, call) || (json_is_string(arguments) && !object && js_no_memory(&je));
        if (json_is_object(object))     /* malformed arguments stay text */
            bad |= json_object_set(json_object_get(copy, "function"), "arguments", object);
        json_decref(object);
        if (bad)
            json_decref(copy);
        if (bad || json_array_append_new(out, copy) != 0) {
            problem_nomem(pr);
            goto fail;
        }
    }
    return out;
fail:
    json_decref(out);
    return NULL;
}

/* Copy a message with its content as text.  New reference; NULL with *pr. */
static json_t *plain_message(const json_t *m, const char *param, struct problem *pr)
{
    static const char *const roles[] = { "system", "developer", "user", "assistant", "tool", "function" };
    static const char *const types[] = { "text", "refusal", NULL };
    const char *role = json_string_value(json_is_object(m) ? json_object_get(m, "role") : NULL), *key;
    json_t *copy = json_object(), *v, *content = js_get(m, "content"), *calls = js_get(m, "tool_calls");
    struct buf text = { 0 };
    int known = 0, bad = 0;
    for (size_t k = 0; role && k < sizeof roles / sizeof *roles; k++)
        known |= strcmp(role, roles[k]) == 0;
    if (!known) {
        problem_set(pr, 400, param, "invalid_role", "%s: role is %.60s, expected system, user, assistant or tool",
                    param, role ? role : "missing");
        goto fail;
    }
    union { const json_t *in; json_t *out; } u = { .in = m };
    json_object_foreach(u.out, key, v)
        if (!json_is_null(v))           /* no key for null: templates test whether a key exists */
            bad |= json_object_set(copy, key, v);
    if (strcmp(role, "developer") == 0) /* templates know OpenAI's older name, "system" */
        bad |= json_object_set_new(copy, "role", json_string("system"));
    if (bad) {
        problem_nomem(pr);
        goto fail;
    }
    if (!content && strcmp(role, "assistant") != 0) {
        problem_set(pr, 400, param, "missing", "%s: content: missing", param);
        goto fail;
    }
    if (content && conversation_text(content, types, param, &text, pr) != 0)
        goto fail;
    if (json_object_set_new(copy, "content", json_stringn(text.data ? text.data : "", text.size)) != 0) {
        problem_nomem(pr);
        goto fail;
    }
    if (calls && json_object_set_new(copy, "tool_calls", calls_of(calls, param, pr)) != 0)
        goto fail;
    if (calls && json_array_size(calls) == 0)
        json_object_del(copy, "tool_calls");
    buf_release(&text);
    return copy;
fail:
    buf_release(&text);
    json_decref(copy);
    return NULL;
}

int conversation_check_list(const json_t *v, const char *name, const char *expected, struct problem *pr)
{
    if (json_array_size(v) > 0)
        return 0;
    return problem_set(pr, 400, name, v ? "invalid_type" : "missing", "%s: %s, expected %s", name,
                       !v ? "missing" : json_is_array(v) ? "empty" : js_kind(v), expected);
}

json_t *conversation_messages(const json_t *messages, struct problem *pr)
{
    const json_t *m;
    size_t i;
    if (conversation_check_list(messages, "messages", "a list of at least 1 message", pr) != 0)
        return NULL;
    json_t *list = json_array();
    json_array_foreach(messages, i, m) {
        char param[40];
        snprintf(param, sizeof param, "messages[%zu]", i);
        json_t *plain = plain_message(m, param, pr);
        if (plain && json_array_append_new(list, plain) == 0)
            continue;
        if (plain)
            problem_nomem(pr);
        json_decref(list);
        return NULL;
    }
    return list;
}

int conversation_check_continued(const struct conversation *t, const json_t *body, struct problem *pr)
{
    const json_t *last = json_array_get(t->messages, json_array_size(t->messages) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    if (!t->continues)
        return 0;
    if (json_is_true(js_get(body, "add_generation_prompt")))
        return problem_set(pr, 400, "continue_final_message", "invalid_value",
                           "continue_final_message: found add_generation_prompt, too, expected one of the two");
    if (strcmp(role, "assistant") != 0)
        return problem_set(pr, 400, t->param, "invalid_role",
                           "%s: the last one is of role %.40s, expected assistant: only its message can be continued",
                           t->param, role);
    if (json_object_get(last, "tool_calls"))
        return problem_set(pr, 400, t->param, "invalid_value",
                           "%s: the last one has calls of tools, expected their results or a text to continue", t->param);
    return 0;
}

json_t *conversation_string(const struct buf *text)
{
    return text->failed ? NULL : json_stringn(text->data ? text->data : "", text->size);
}

int conversation_add_message(json_t *messages, const char *role, json_t *id, const struct buf *text, struct problem *pr)
{
    json_t *m = json_pack("{s:s, s:o}", "role", role, "content", conversation_string(text));
    int rc = m && (!id || json_object_set(m, "tool_call_id", id) == 0) &&
             json_array_append(messages, m) == 0 ? 0 : problem_nomem(pr);
    json_decref(m);
    return rc;
}

int conversation_add_call(json_t *message, json_t *id, json_t *name, json_t *arguments, struct problem *pr)
{
    if (!json_object_get(message, "tool_calls"))
        json_object_set_new(message, "tool_calls", json_array());
    json_t *call = json_pack("{s:O, s:s, s:{s:O, s:O}}", "id", id, "type", "function", "function", "name", name,
                             "arguments", arguments);
    return json_array_append_new(json_object_get(message, "tool_calls"), call) == 0 ? 0 : problem_nomem(pr);
}

int conversation_add_reasoning(json_t *message, const char *text, size_t size, struct problem *pr)
{
    const json_t *before = json_object_get(message, "reasoning_content");
    struct buf all = { 0 };
    if (before)
        buf_add(&all, json_string_value(before), json_string_length(before));
    buf_add(&all, text, size);
    int rc = json_object_set_new(message, "reasoning_content", conversation_string(&all)) == 0 ? 0 : problem_nomem(pr);
    buf_release(&all);
    return rc;
}

/* The reasoning effort of a body, from the field that the body's API has for it. */
static json_t *find_effort(const json_t *body)
{
    json_t *v = js_get(body, "reasoning_effort");
    v = v ? v : js_get(js_get(body, "reasoning"), "effort");
    return v ? v : js_get(js_get(body, "output_config"), "effort");
}

/* Set a variable of the template to v, unless chat_template_kwargs of the body sets it.  v must be
 * one of the `known` words. */
static int add_word(struct conversation *t, const char *name, json_t *v, const char *const *known, struct problem *pr)
{
    const char *text = json_string_value(v);
    char all[100] = "";
    size_t i = 0, n = 0;
    for (; known[i] && !(text && strcmp(known[i], text) == 0); i++)
        n += (size_t)snprintf(all + n, sizeof all - n, "%s%s", i ? ", " : "", known[i]);
    if (!known[i])
        return problem_set(pr, 400, name, text ? "invalid_value" : "invalid_type", "%s: found %.40s, expected one of %s",
                           name, text ? text : js_kind(v), all);
    if (!t->vars && !(t->vars = json_object()))
        return problem_nomem(pr);
    return json_object_get(t->vars, name) || json_object_set(t->vars, name, v) == 0 ? 0 : problem_nomem(pr);
}

/* Handle the members of "reasoning" that its API does not have. */
static int check_reasoning(const struct conversation *t, const json_t *body, struct problem *pr)
{
    static const char *const known[] = { "effort", "summary", "generate_summary" };
    json_t *all = js_get(body, "reasoning"), *v;
    const char *key;
    if (all && !json_is_object(all))
        return problem_set(pr, 400, "reasoning", "invalid_type", "reasoning: found %s, expected an object", js_kind(all));
    json_object_foreach(all, key, v) {
        size_t k = 0;
        while (k < sizeof known / sizeof *known && strcmp(key, known[k]) != 0)
            k++;
        if (k == sizeof known / sizeof *known && fields_unknown(t->ignored, "reasoning", key, pr) != 0)
            return -1;
    }
    return 0;
}

/* Copy reasoning_effort and verbosity to the template's variables. */
static int read_effort(struct conversation *t, const json_t *body, struct problem *pr)
{
    static const char *const efforts[] = { "none", "minimal", "low", "medium", "high", "xhigh", "max", NULL },
        *const verbosities[] = { "low", "medium", "high", NULL };
    json_t *effort = find_effort(body), *verbosity = js_get(body, "verbosity");
    if (!verbosity)
        verbosity = js_get(js_get(body, "text"), "verbosity");
    if (check_reasoning(t, body, pr) != 0 || (effort && add_word(t, "reasoning_effort", effort, efforts, pr) != 0) ||
        (verbosity && add_word(t, "verbosity", verbosity, verbosities, pr) != 0))
        return -1;
    if (!effort || strcmp(json_string_value(effort), "none") != 0 || json_object_get(t->vars, "enable_thinking"))
        return 0;
    return json_object_set_new(t->vars, "enable_thinking", json_false()) == 0 ? 0 : problem_nomem(pr);
}

int conversation_read_vars(struct conversation *t, const json_t *body, struct problem *pr)
{
    json_t *vars = js_get(body, "chat_template_kwargs");
    if (vars && !json_is_object(vars))
        return problem_set(pr, 400, "chat_template_kwargs", "invalid_type",
                           "chat_template_kwargs: found %s, expected an object", js_kind(vars));
    if (t->vars && vars && json_object_update(t->vars, vars) != 0)
        return problem_nomem(pr);
    if (!t->vars && vars)
        t->vars = json_copy(vars);
    return vars && !t->vars ? problem_nomem(pr) : read_effort(t, body, pr);
}

/* ---- tools ---- */

int conversation_add_tool(struct conversation *t, const char *name, const json_t *description, const json_t *parameters,
                  const char *param, struct problem *pr)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.";
    const size_t n = name ? strlen(name) : 0;
    const json_t *tool;
    size_t i;
    if (n == 0 || n > 64 || strspn(name, letters) != n)
        return problem_set(pr, 400, param, "invalid_tool",
                           "%s: name: '%.80s', expected 1 to 64 letters, digits, and _ - .", param, name ? name : "");
    if (parameters && !json_is_object(parameters))
        return problem_set(pr, 400, param, "invalid_tool", "%s: %s: parameters: found %s, expected an object", param,
                           name, js_kind(parameters));
    if (description && !json_is_string(description))
        return problem_set(pr, 400, param, "invalid_tool", "%s: %s: description: found %s, expected text", param, name,
                           js_kind(description));
    json_array_foreach(t->tools, i, tool)
        if (strcmp(json_string_value(json_object_get(json_object_get(tool, "function"), "name")), name) == 0)
            return problem_set(pr, 400, param, "invalid_tool", "%s: there are two functions '%s'", param, name);
    if (json_array_size(t->tools) == MAX_TOOLS)
        return problem_set(pr, 400, "tools", "out_of_range", "tools: more than %d", MAX_TOOLS);
    if (!t->tools)
        t->tools = json_array();
    json_t *function = json_pack("{s:s}", "name", name),
           *entry = json_pack("{s:s, s:O}", "type", "function", "function", function);
    union { const json_t *in; json_t *out; } words = { .in = description }, form = { .in = parameters };
    int rc = !function || !entry || (description && json_object_set(function, "description", words.out) != 0) ||
             (parameters && json_object_set(function, "parameters", form.out) != 0) ||
             json_array_append(t->tools, entry) != 0;
    json_decref(function);
    json_decref(entry);
    return rc ? problem_nomem(pr) : 0;
}

/* Remember whether the function that was added last is strict. */
static int add_strict(struct conversation *t, const json_t *strict, struct problem *pr)
{
    const json_t *last = json_array_get(t->tools, json_array_size(t->tools) - 1);
    if (!json_is_true(strict))
        return 0;
    if (!t->strict)
        t->strict = json_object();
    return json_object_set_new(t->strict, json_string_value(json_object_get(json_object_get(last, "function"), "name")),
                               json_true()) == 0 ? 0 : problem_nomem(pr);
}

int conversation_read_tools(struct conversation *t, const json_t *body, const char *parameters,
                    const json_t *(*function_of)(const json_t *tool, const char *param, struct problem *pr),
                    struct problem *pr)
{
    const json_t *tools = js_get(body, "tools"), *tool;
    const char *word = json_string_value(tools);
    size_t i;
    if (word && strcmp(word, "server") == 0) {
        t->all_tools = 1;
        return 0;
    }
    if (word)
        return problem_set(pr, 400, "tools", "invalid_type", "tools: '%.40s', expected \"server\" or a list", word);
    if (tools && !json_is_array(tools))
        return problem_set(pr, 400, "tools", "invalid_type", "tools: found %s, expected a list", js_kind(tools));
    json_array_foreach(tools, i, tool) {
        char param[32];
        snprintf(param, sizeof param, "tools[%zu]", i);
        const json_t *f = function_of(tool, param, pr);
        if (!f || conversation_add_tool(t, json_string_value(json_object_get(f, "name")), js_get(f, "description"),
                                js_get(f, parameters), param, pr) != 0 ||
            add_strict(t, js_get(f, "strict"), pr) != 0)
            return -1;
    }
    return 0;
}

int conversation_read_allowed(const json_t *choice, struct conversation *t, struct problem *pr)
{
    const char *mode = json_string_value(json_object_get(choice, "mode"));
    t->allowed_names = json_object_get(choice, "tools");
    if (!mode && !json_object_get(choice, "mode"))
        mode = "auto";
    if (!mode || (strcmp(mode, "auto") != 0 && strcmp(mode, "required") != 0) || json_array_size(t->allowed_names) == 0)
        return problem_set(pr, 400, "tool_choice", "invalid_value",
                           "tool_choice: allowed_tools: expected mode auto or required, and a list of tools");
    t->choice = *mode == 'a' ? CALLS_AUTO : CALLS_REQUIRED;
    return 0;
}

static const char *name_of(const json_t *tool)
{
    const json_t *function = json_object_get(tool, "function");
    return json_string_value(json_object_get(function ? function : tool, "name"));
}

/* Collect the functions of allowed_names. */
static int find_allowed(struct conversation *t, struct problem *pr)
{
    json_t *tool;
    const json_t *named;
    size_t i, k;
    if (!(t->allowed = json_array()))
        return problem_nomem(pr);
    json_array_foreach(t->allowed_names, i, named) {
        const char *name = name_of(named);
        int found = 0;
        json_array_foreach(t->tools, k, tool) {
            if (!name || strcmp(name_of(tool), name) != 0)
                continue;
            found = 1;
            if (json_array_append(t->allowed, tool) != 0)
                return problem_nomem(pr);
        }
        if (!found)
            return problem_set(pr, 400, "tool_choice", "not_found",
                               "tool_choice: there is no function '%.80s' among the tools", name ? name : "");
    }
    return 0;
}

int conversation_check_tools(struct conversation *t, struct problem *pr)
{
    const json_t *tool;
    size_t i;
    int found = 0;
    if (t->choice == CALLS_REQUIRED && !t->tools)
        return problem_set(pr, 400, "tool_choice", NULL, "tool_choice: a call is required, but there are no tools");
    json_array_foreach(t->tools, i, tool)
        found |= t->only && strcmp(json_string_value(json_object_get(json_object_get(tool, "function"), "name")),
                                   t->only) == 0;
    if (t->only && !found)
        return problem_set(pr, 400, "tool_choice", "not_found",
                           "tool_choice: there is no function '%.80s' among the tools", t->only);
    return t->allowed_names && !t->allowed ? find_allowed(t, pr) : 0;
}

int format_is_loose(const json_t *format)
{
    const json_t *inside = js_get(format, "json_schema");
    return json_is_false(js_get(inside ? inside : format, "strict"));
}

/* Handle the members of a response_format, or of its member json_schema, that are not known. */
static int check_format(const json_t *format, const char *param, struct ignored_names *ig, struct problem *pr)
{
    static const char *const known[] = { "type", "json_schema", "name", "description", "strict", "schema" };
    union { const json_t *in; json_t *out; } u = { .in = format };
    const char *key;
    json_t *v;
    json_object_foreach(u.out, key, v) {
        size_t k = 0;
        while (k < sizeof known / sizeof *known && strcmp(key, known[k]) != 0)
            k++;
        if (k == sizeof known / sizeof *known && fields_unknown(ig, param, key, pr) != 0)
            return -1;
    }
    return 0;
}

json_t *format_schema(const json_t *format, const char *param, struct ignored_names *ig, struct problem *pr)
{
    const json_t *type = json_is_object(format) ? json_object_get(format, "type") : NULL;
    const char *kind = json_string_value(type);
    pr->status = 0;
    if (!kind) {
        problem_set(pr, 400, param, "invalid_type", "%s: expected an object with a type", param);
        return NULL;
    }
    char inner[48];
    snprintf(inner, sizeof inner, "%s.json_schema", param);
    if (check_format(format, param, ig, pr) != 0 ||
        check_format(json_object_get(format, "json_schema"), inner, ig, pr) != 0)
        return NULL;
    if (strcmp(kind, "text") == 0)
        return NULL;
    const int any_object = strcmp(kind, "json_object") == 0;
    if (any_object && !js_get(format, "schema")) {
        json_t *object = json_pack("{s:s}", "type", "object");
        if (!object)
            problem_nomem(pr);
        return object;
    }
    if (!any_object && strcmp(kind, "json_schema") != 0) {
        problem_set(pr, 400, param, "unsupported_parameter",
                    "%s: type is '%.60s', expected text, json_object or json_schema", param, kind);
        return NULL;
    }
    const json_t *inside = js_get(format, "json_schema");
    /* Chat Completions nests the schema one level deeper than Responses */
    json_t *schema = js_get(inside ? inside : format, "schema");
    if (!json_is_object(schema) && !json_is_boolean(schema)) {
        problem_set(pr, 400, param, schema ? "invalid_type" : "missing",
                    schema ? "%s: schema: found %s, expected an object" : "%s: schema: missing", param,
                    schema ? js_kind(schema) : "");
        return NULL;
    }
    return json_incref(schema);
}

/* ---- chat completions ---- */

const json_t *chat_function_of(const json_t *tool, const char *param, struct problem *pr)
{
    const char *type = json_string_value(json_object_get(tool, "type"));
    const json_t *f = json_object_get(tool, "function");
    if (type && strcmp(type, "function") == 0 && json_is_object(f))
        return f;
    problem_set(pr, 400, param, "invalid_tool", "%s: type is '%.40s', expected {type: \"function\", function: {name, description, parameters}}", param, type ? type : "");
    return NULL;
}

int chat_read_choice(const json_t *body, struct conversation *t, struct problem *pr)
{
    json_t *v = js_get(body, "tool_choice");
    const char *word = json_string_value(v), *type = json_string_value(json_object_get(v, "type"));
    if (!v || (word && strcmp(word, "auto") == 0))
        return 0;
    if (word && strcmp(word, "none") == 0) {
        t->choice = CALLS_NONE;
        return 0;
    }
    if (type && strcmp(type, "allowed_tools") == 0)
        return conversation_read_allowed(json_object_get(v, "allowed_tools"), t, pr);
    t->choice = CALLS_REQUIRED;
    if (word && strcmp(word, "required") == 0)
        return 0;
    t->only = json_string_value(json_object_get(json_object_get(v, "function"), "name"));
    if (!type || strcmp(type, "function") != 0 || !t->only)
        return problem_set(pr, 400, "tool_choice", "invalid_type",
                           "tool_choice: expected none, auto, required, or {type: \"function\", function: {name}}");
    return 0;
}

int chat_read(const json_t *body, int parallel, struct conversation *t, struct problem *pr)
{
    if (conversation_read_vars(t, body, pr) != 0)
        return -1;
    t->param = "messages";
    t->format = js_get(body, "response_format");
    t->format_param = "response_format";
    t->serial = !parallel;
    t->continues = json_is_true(js_get(body, "continue_final_message"));
    if (!(t->messages = conversation_messages(js_get(body, "messages"), pr)) ||
        conversation_check_continued(t, body, pr) != 0)
        return -1;
    if (conversation_read_tools(t, body, "parameters", chat_function_of, pr) != 0)
        return -1;
    return chat_read_choice(body, t, pr);
}
