/* conversation.c - render a conversation as a prompt, also for templates that know no tools. */
#include "libcommon/serve/api/conversation.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "libcommon/base/json.h"
#include "libcommon/base/sha256.h"
#include "libcommon/serve/api/calls.h"
#include "libcommon/template/chat.h"

/* ---- templates that know no tools ---- */

/* Write the calls and results of a message as text.  -1 without memory. */
static int calls_as_text(json_t *m)
{
    const char *role = json_string_value(json_object_get(m, "role"));
    const json_t *calls = json_object_get(m, "tool_calls"), *call;
    struct buf text = { 0 };
    size_t i;
    int rc = 0;
    const int result = strcmp(role, "tool") == 0 || strcmp(role, "function") == 0;
    buf_str(&text, result ? "Result of the function: " : "");
    buf_str(&text, json_string_value(json_object_get(m, "content")));
    json_array_foreach(calls, i, call) {
        const json_t *f = json_object_get(call, "function");
        json_t *said = json_pack("{s:O, s:O}", "name", json_object_get(f, "name"), "arguments",
                                 json_object_get(f, "arguments"));
        char *line = said ? json_dumps(said, 0) : NULL;
        buf_str(&text, text.size ? "\n" : "");
        buf_str(&text, line ? line : "");
        text.failed |= !line;
        free(line);
        json_decref(said);
    }
    if (result)
        rc |= json_object_set_new(m, "role", json_string("user"));
    if (calls || result)
        rc |= json_object_set_new(m, "content", conversation_string(&text));
    if (calls)
        json_object_del(m, "tool_calls");
    buf_release(&text);
    return rc;
}

/* Describe the functions in the first message of this role: "system", which is added if it is
 * missing, or "user" for templates that refuse a system message.  -1 without memory. */
static int describe_tools(json_t *messages, const json_t *tools, const char *role)
{
    struct buf text = { 0 };
    const json_t *tool;
    size_t i, at = 0;
    while (at < json_array_size(messages) && strcmp(json_string_value(json_object_get(json_array_get(messages, at),
                                                                                      "role")), role) != 0)
        at++;
    json_t *own = json_array_get(messages, at), *m;
    buf_str(&text, "You may call these functions. To call one, answer with nothing but a JSON object {\"name\": ..., \"arguments\": {...}}.\n");
    json_array_foreach(tools, i, tool) {
        char *line = json_dumps(json_object_get(tool, "function"), 0);
        buf_str(&text, line ? line : "");
        buf_str(&text, "\n");
        text.failed |= !line;
        free(line);
    }
    if (own) {
        buf_str(&text, "\n");
        buf_str(&text, json_string_value(json_object_get(own, "content")));
    }
    m = json_pack("{s:s, s:o}", "role", role, "content", conversation_string(&text));
    buf_release(&text);
    return own ? json_array_set_new(messages, at, m) : json_array_insert_new(messages, 0, m);
}

/* ---- families with special needs ---- */

/* Mistral's templates refuse ids of calls that are not 9 letters or digits. -1 without memory. */
static int shorten_id(json_t *o, const char *key)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    const char *id = json_string_value(json_object_get(o, key));
    uint8_t hash[SHA256_SIZE];
    char text[10] = { 0 };
    if (!id || (strlen(id) == 9 && strspn(id, letters) == 9))
        return 0;
    sha256_of(id, strlen(id), hash);
    for (int i = 0; i < 9; i++)
        text[i] = letters[hash[i] % (sizeof letters - 1)];
    return json_object_set_new(o, key, json_string(text));
}

/* Turn arguments into JSON text, for templates that insert them as they are.  -1 without memory. */
static int arguments_as_text(json_t *messages)
{
    json_t *m, *call;
    size_t i, k;
    int rc = 0;
    json_array_foreach(messages, i, m)
        json_array_foreach(json_object_get(m, "tool_calls"), k, call) {
            json_t *f = json_object_get(call, "function"), *a = json_object_get(f, "arguments");
            char *text = json_is_object(a) ? json_dumps(a, 0) : NULL;
            if (json_is_object(a))
                rc |= json_object_set_new(f, "arguments", text ? json_string(text) : NULL);
            free(text);
        }
    return rc;
}

/* ---- to the prompt ---- */

/* Ways to write a conversation, tried in this order until the template accepts one. */
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

/* The messages as the template needs them.  New reference; NULL without memory. */
static json_t *template_messages(const struct loaded_model *lm, const struct conversation *t, const json_t *tools,
                                 int way)
{
    json_t *messages = json_deep_copy(t->messages), *m, *call;
    size_t i, k;
    if (!json_equal(messages, t->messages)) {           /* without memory jansson leaves out values */
        json_decref(messages);
        return NULL;
    }
    int rc = 0;
    if (tools && !lm->knows_tools)
        rc |= describe_tools(messages, tools, way == NO_SYSTEM ? "user" : "system");
    json_array_foreach(messages, i, m) {
        if (!lm->knows_tools)
            rc |= calls_as_text(m);
        if (strncmp(tool_format_name(lm->calls_form), "mistral", 7) == 0) {
            rc |= shorten_id(m, "tool_call_id");
            json_array_foreach(json_object_get(m, "tool_calls"), k, call)
                rc |= shorten_id(call, "id");
        }
    }
    if (way == ARGUMENTS_AS_TEXT)
        rc |= arguments_as_text(messages);
    if (rc == 0)
        return messages;
    json_decref(messages);
    return NULL;
}

int conversation_render(const struct loaded_model *lm, const struct conversation *t, int generation_prompt, char **text,
                        size_t *size,
                struct problem *pr)
{
    struct err e, first;
    const json_t *tools = t->choice == CALLS_NONE ? NULL : t->tools;
    if (!lm->tmpl)
        return problem_set(pr, 400, "model", NULL,
                           "model: %s has no chat template; /v1/completions takes text as it is", lm->id);
    for (int way = PLAIN; way < N_WAYS; way++) {
        if ((way == ARGUMENTS_AS_TEXT && !has_calls(t->messages)) || (way == NO_SYSTEM && (!tools || lm->knows_tools)))
            continue;
        json_t *messages = template_messages(lm, t, tools, way);
        int rc = messages ? chat_render(lm->tmpl, messages, lm->knows_tools ? tools : NULL, generation_prompt, lm->bos,
                                        lm->eos, (int64_t)time(NULL), t->vars, &t->limits, text, size, &e) : -1;
        json_decref(messages);
        if (!messages)
            return problem_nomem(pr);
        if (rc == 0)
            return 0;
        if (e.code == ERR_MEMORY)
            return problem_nomem(pr);
        if (way == PLAIN)
            first = e;
    }
    return problem_set(pr, 400, t->param, "template_error", "%s: %s", t->param, first.msg);
}

/* Do the answers need a parser of calls, besides the splitting at </think>? */
static int reads_calls(const struct call *c)
{
    return (c->conversation.tools && c->conversation.choice != CALLS_NONE) ||
           tool_format_has_channels(c->lm->calls_form);
}

int conversation_prepare(struct call *c, struct problem *pr)
{
    char *text;
    size_t size;
    if (call_prompts(c, 1, pr) != 0 || conversation_check_tools(&c->conversation, pr) != 0 ||
        conversation_render(c->lm, &c->conversation, 1, &text, &size, pr) != 0)
        return -1;
    c->starts_thinking = c->lm->thinks && splitter_begun(text, size);
    c->raw_text = reads_calls(c);
    if (!c->rounds) {
        json_decref(c->conversation.messages);          /* the text contains them */
        c->conversation.messages = NULL;
    }
    int rc = call_tokenize(c, 0, text, size, 1, 0, pr, c->conversation.param);
    free(text);
    return rc == 0 ? call_answer_grammar(c, pr) : -1;
}
