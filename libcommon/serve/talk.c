#include "libcommon/serve/talk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "libcommon/base/json.h"
#include "libcommon/base/sha256.h"
#include "libcommon/serve/calls.h"
#include "libcommon/token/chat.h"

void talk_release(struct talk *t)
{
    json_decref(t->messages);
    json_decref(t->tools);
    json_decref(t->vars);
    memset(t, 0, sizeof *t);
}

static int out_of_memory(struct problem *pr) { return problem_set(pr, 503, NULL, NULL, "out of memory"); }

/* ---- messages ---- */

int talk_text(const json_t *content, const char *const *types, const char *param, struct buf *out, struct problem *pr)
{
    const json_t *part;
    size_t i;
    if (json_is_string(content)) {
        buf_add(out, json_string_value(content), json_string_length(content));
        return out->failed ? out_of_memory(pr) : 0;
    }
    if (!json_is_array(content))
        return problem_set(pr, 400, param, "invalid_type", "%s: content: found %s, expected text or a list of text parts", param, js_kind(content));
    json_array_foreach(content, i, part) {
        const char *type = json_string_value(json_object_get(part, "type"));
        const json_t *words = json_object_get(part, type && strcmp(type, "refusal") == 0 ? "refusal" : "text");
        int ok = 0;
        for (size_t k = 0; type && types[k]; k++)
            ok |= strcmp(type, types[k]) == 0;
        if (!ok || !json_is_string(words))
            return problem_set(pr, 400, param, "unsupported_parameter", "%s: content part %zu is of type '%.40s', expected text", param, i, type ? type : "?");
        buf_add(out, json_string_value(words), json_string_length(words));
    }
    return out->failed ? out_of_memory(pr) : 0;
}

/* Calls in a message of the model: their arguments become objects, as templates expect them. New reference. */
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
        if (!json_is_string(json_object_get(function, "name")) || !(json_is_string(arguments) || json_is_object(arguments))) {
            problem_set(pr, 400, param, "invalid_type", "%s: tool_calls: number %zu: expected {id, type, function: {name, arguments}}", param, i);
            goto fail;
        }
        json_t *copy = json_deep_copy(call);
        json_t *object = json_is_string(arguments) ? json_loadb(json_string_value(arguments), json_string_length(arguments), 0, NULL) : NULL;
        if (json_is_object(object))     /* what is cut off or malformed stays text */
            json_object_set(json_object_get(copy, "function"), "arguments", object);
        json_decref(object);
        if (!copy || json_array_append_new(out, copy) != 0) {
            out_of_memory(pr);
            goto fail;
        }
    }
    return out;
fail:
    json_decref(out);
    return NULL;
}

/* One message, with content as text. New reference. */
static json_t *plain_message(const json_t *m, const char *param, struct problem *pr)
{
    static const char *const roles[] = { "system", "developer", "user", "assistant", "tool", "function" };
    static const char *const types[] = { "text", "refusal", NULL };
    const char *role = json_string_value(json_is_object(m) ? json_object_get(m, "role") : NULL), *key;
    json_t *copy = json_object(), *v, *content = js_get(m, "content"), *calls = js_get(m, "tool_calls");
    struct buf text = { 0 };
    int known = 0;
    for (size_t k = 0; role && k < sizeof roles / sizeof *roles; k++)
        known |= strcmp(role, roles[k]) == 0;
    if (!known) {
        problem_set(pr, 400, param, "invalid_role", "%s: role is %.60s, expected system, user, assistant or tool", param, role ? role : "missing");
        goto fail;
    }
    union { const json_t *in; json_t *out; } u = { .in = m };
    json_object_foreach(u.out, key, v)
        if (!json_is_null(v))           /* templates ask whether a key is there */
            json_object_set(copy, key, v);
    if (strcmp(role, "developer") == 0) /* OpenAI's later name for it; templates know the old one */
        json_object_set_new(copy, "role", json_string("system"));
    if (!content && strcmp(role, "assistant") != 0) {
        problem_set(pr, 400, param, "missing", "%s: content: missing", param);
        goto fail;
    }
    if (content && talk_text(content, types, param, &text, pr) != 0)
        goto fail;
    if (json_object_set_new(copy, "content", json_stringn(text.data ? text.data : "", text.size)) != 0) {
        out_of_memory(pr);
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

json_t *talk_messages(const json_t *messages, struct problem *pr)
{
    json_t *list = json_array();
    const json_t *m;
    size_t i;
    if (!json_is_array(messages) || json_array_size(messages) == 0) {
        problem_set(pr, 400, "messages", messages ? "invalid_type" : "missing", messages ? "messages: %s, expected a list of at least 1 message" : "messages: %s",
                    !messages ? "missing" : json_is_array(messages) ? "empty" : js_kind(messages));
        json_decref(list);
        return NULL;
    }
    json_array_foreach(messages, i, m) {
        char param[40];
        snprintf(param, sizeof param, "messages[%zu]", i);
        json_t *plain = plain_message(m, param, pr);
        if (plain && json_array_append_new(list, plain) == 0)
            continue;
        if (plain)
            out_of_memory(pr);
        json_decref(list);
        return NULL;
    }
    return list;
}

/* ---- tools ---- */

int talk_add_tool(struct talk *t, const char *name, const json_t *description, const json_t *parameters, const char *param, struct problem *pr)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.";
    const size_t n = name ? strlen(name) : 0;
    const json_t *tool;
    size_t i;
    if (n == 0 || n > 64 || strspn(name, letters) != n)
        return problem_set(pr, 400, param, "invalid_tool", "%s: name: '%.80s', expected 1 to 64 letters, digits, and _ - .", param, name ? name : "");
    if (parameters && !json_is_object(parameters))
        return problem_set(pr, 400, param, "invalid_tool", "%s: %s: parameters: found %s, expected an object", param, name, js_kind(parameters));
    if (description && !json_is_string(description))
        return problem_set(pr, 400, param, "invalid_tool", "%s: %s: description: found %s, expected text", param, name, js_kind(description));
    json_array_foreach(t->tools, i, tool)
        if (strcmp(json_string_value(json_object_get(json_object_get(tool, "function"), "name")), name) == 0)
            return problem_set(pr, 400, param, "invalid_tool", "%s: there are two functions '%s'", param, name);
    if (!t->tools)
        t->tools = json_array();
    json_t *function = json_pack("{s:s}", "name", name), *entry = json_pack("{s:s, s:O}", "type", "function", "function", function);
    union { const json_t *in; json_t *out; } words = { .in = description }, form = { .in = parameters };
    int rc = !function || !entry || (description && json_object_set(function, "description", words.out) != 0) ||
             (parameters && json_object_set(function, "parameters", form.out) != 0) || json_array_append(t->tools, entry) != 0;
    json_decref(function);
    json_decref(entry);
    return rc ? out_of_memory(pr) : 0;
}

int talk_check_tools(struct talk *t, struct problem *pr)
{
    const json_t *tool;
    size_t i;
    int found = 0;
    if (t->choice == CALLS_REQUIRED && !t->tools)
        return problem_set(pr, 400, "tool_choice", NULL, "tool_choice: a call is required, but there are no tools");
    json_array_foreach(t->tools, i, tool)
        found |= t->only && strcmp(json_string_value(json_object_get(json_object_get(tool, "function"), "name")), t->only) == 0;
    if (t->only && !found)
        return problem_set(pr, 400, "tool_choice", "not_found", "tool_choice: there is no function '%.80s' among the tools", t->only);
    return 0;
}

/* ---- templates that know no tools ---- */

/* Calls and results become words. */
static void say_calls(json_t *m)
{
    const char *role = json_string_value(json_object_get(m, "role"));
    const json_t *calls = json_object_get(m, "tool_calls"), *call;
    struct buf text = { 0 };
    size_t i;
    const int result = strcmp(role, "tool") == 0 || strcmp(role, "function") == 0;
    buf_str(&text, result ? "Result of the function: " : "");
    buf_str(&text, json_string_value(json_object_get(m, "content")));
    json_array_foreach(calls, i, call) {
        const json_t *f = json_object_get(call, "function");
        json_t *said = json_pack("{s:O, s:O}", "name", json_object_get(f, "name"), "arguments", json_object_get(f, "arguments"));
        char *line = said ? json_dumps(said, 0) : NULL;
        buf_str(&text, text.size ? "\n" : "");
        buf_str(&text, line ? line : "");
        free(line);
        json_decref(said);
    }
    if (result)
        json_object_set_new(m, "role", json_string("user"));
    if (calls || result)
        json_object_set_new(m, "content", json_stringn(text.data ? text.data : "", text.size));
    if (calls)
        json_object_del(m, "tool_calls");
    buf_release(&text);
}

/* The functions are described in the first message of this role: "system", which is made if it is not there, or "user" where templates refuse that. */
static void say_tools(json_t *messages, const json_t *tools, const char *role)
{
    struct buf text = { 0 };
    const json_t *tool;
    size_t i, at = 0;
    while (at < json_array_size(messages) && strcmp(json_string_value(json_object_get(json_array_get(messages, at), "role")), role) != 0)
        at++;
    json_t *own = json_array_get(messages, at), *m;
    buf_str(&text, "You may call these functions. To call one, answer with nothing but a JSON object {\"name\": ..., \"arguments\": {...}}.\n");
    json_array_foreach(tools, i, tool) {
        char *line = json_dumps(json_object_get(tool, "function"), 0);
        buf_str(&text, line ? line : "");
        buf_str(&text, "\n");
        free(line);
    }
    if (own) {
        buf_str(&text, "\n");
        buf_str(&text, json_string_value(json_object_get(own, "content")));
    }
    m = json_pack("{s:s, s:o}", "role", role, "content", json_stringn(text.data ? text.data : "", text.size));
    if (own)
        json_array_set_new(messages, at, m);
    else
        json_array_insert_new(messages, 0, m);
    buf_release(&text);
}

/* ---- what single families need ---- */

/* Mistral's templates refuse ids of calls that are not 9 letters or digits. */
static void shorten_id(json_t *o, const char *key)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    const char *id = json_string_value(json_object_get(o, key));
    uint8_t hash[SHA256_SIZE];
    char text[10] = { 0 };
    if (!id || (strlen(id) == 9 && strspn(id, letters) == 9))
        return;
    sha256_of(id, strlen(id), hash);
    for (int i = 0; i < 9; i++)
        text[i] = letters[hash[i] % (sizeof letters - 1)];
    json_object_set_new(o, key, json_string(text));
}

/* Some templates paste arguments into text: they want JSON, not an object. */
static void arguments_as_text(json_t *messages)
{
    json_t *m, *call;
    size_t i, k;
    json_array_foreach(messages, i, m)
        json_array_foreach(json_object_get(m, "tool_calls"), k, call) {
            json_t *f = json_object_get(call, "function"), *a = json_object_get(f, "arguments");
            char *text = json_is_object(a) ? json_dumps(a, 0) : NULL;
            if (text)
                json_object_set_new(f, "arguments", json_string(text));
            free(text);
        }
}

/* ---- to the prompt ---- */

/* Ways to write a conversation, one after the other until the template takes one. */
enum { PLAIN, ARGUMENTS_AS_TEXT, NO_SYSTEM, N_WAYS };

static int has_calls(const json_t *messages)
{
    const json_t *m;
    size_t i;
    json_array_foreach(messages, i, m)
        if (json_object_get(m, "tool_calls"))
            return 1;
    return 0;
}

static json_t *written(const struct hosted *h, const struct talk *t, const json_t *tools, int way)
{
    json_t *messages = json_deep_copy(t->messages), *m, *call;
    size_t i, k;
    if (tools && !h->knows_tools)
        say_tools(messages, tools, way == NO_SYSTEM ? "user" : "system");
    json_array_foreach(messages, i, m) {
        if (!h->knows_tools)
            say_calls(m);
        if (strncmp(tool_format_name(h->calls_form), "mistral", 7) == 0) {
            shorten_id(m, "tool_call_id");
            json_array_foreach(json_object_get(m, "tool_calls"), k, call)
                shorten_id(call, "id");
        }
    }
    if (way == ARGUMENTS_AS_TEXT)
        arguments_as_text(messages);
    return messages;
}

int talk_render(const struct hosted *h, const struct talk *t, int generation_prompt, char **text, size_t *size, struct problem *pr)
{
    struct err e, first;
    const json_t *tools = t->choice == CALLS_NONE ? NULL : t->tools;
    if (!h->tmpl)
        return problem_set(pr, 400, "model", NULL, "model: %s has no chat template; /v1/completions takes text as it is", h->id);
    for (int way = PLAIN; way < N_WAYS; way++) {
        if ((way == ARGUMENTS_AS_TEXT && !has_calls(t->messages)) || (way == NO_SYSTEM && (!tools || h->knows_tools)))
            continue;
        json_t *messages = written(h, t, tools, way);
        int rc = messages ? chat_render(h->tmpl, messages, h->knows_tools ? tools : NULL, generation_prompt, h->bos, h->eos, (int64_t)time(NULL), t->vars, text, size, &e) : -1;
        json_decref(messages);
        if (!messages)
            return out_of_memory(pr);
        if (rc == 0)
            return 0;
        if (way == PLAIN)
            first = e;
    }
    return problem_set(pr, 400, t->param, "template_error", "%s: %s", t->param, first.msg);
}

/* Do the answers need more than to be told from what stands in <think>? */
static int reads_calls(const struct call *c) { return (c->talk.tools && c->talk.choice != CALLS_NONE) || tool_format_has_channels(c->h->calls_form); }

int talk_prepare(struct call *c, struct problem *pr)
{
    char *text;
    size_t size;
    if (call_prompts(c, 1, pr) != 0 || talk_check_tools(&c->talk, pr) != 0 || talk_render(c->h, &c->talk, 1, &text, &size, pr) != 0)
        return -1;
    c->starts_thinking = c->h->thinks && splitter_begun(text, size);
    c->raw_text = reads_calls(c);
    int rc = call_tokenize(c, 0, text, size, 1, 0, pr, c->talk.param);
    free(text);
    return rc == 0 ? call_shape(c, pr) : -1;
}
