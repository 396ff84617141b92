/* ollama_read.c - read the bodies of /api/chat and /api/generate. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/serve/ollama/ollama.h"

/* ---- keep_alive ---- */

/* Read a duration in Go's form, such as "1h30m" or "-1m"; a bare number means seconds.  -1: the
 * text is not a duration. */
static int read_duration(const char *text, double *seconds)
{
    static const struct { const char *name; double s; } units[] = {
        { "ns", 1e-9 }, { "us", 1e-6 }, { "ms", 1e-3 }, { "s", 1 }, { "m", 60 }, { "h", 3600 } };
    const double sign = *text == '-' ? -1 : 1;
    double sum = 0;
    text += *text == '-' || *text == '+';
    if (!*text)
        return -1;
    while (*text) {
        char *end;
        size_t i = 0;
        const size_t digits = strspn(text, "0123456789.");
        const double x = strtod(text, &end);
        if (digits == 0 || end != text + digits)        /* strtod accepts more than digits */
            return -1;
        const size_t n = strspn(end, "numsh");
        while (i < sizeof units / sizeof *units && !(strlen(units[i].name) == n && memcmp(units[i].name, end, n) == 0))
            i++;
        if (i == sizeof units / sizeof *units && (n || *end || sum > 0))
            return -1;
        sum += x * (n ? units[i].s : 1);
        text = end + n;
    }
    *seconds = sign * sum;
    return isfinite(sum) ? 0 : -1;
}

int ollama_keep_alive(const json_t *v, double *seconds, struct problem *pr)
{
    enum { LONGEST = 100 };
    const char *text = json_string_value(v);
    if (json_is_number(v))
        *seconds = json_number_value(v);
    else if (!text || json_string_length(v) > LONGEST || read_duration(text, seconds) != 0)
        return problem_set(pr, 400, "keep_alive", "invalid_value",
                           "keep_alive: %.40s, expected seconds or a duration such as 5m", text ? text : js_kind(v));
    return 0;
}

/* Keep the model loaded for as long as this client wants, if no other client uses it. */
static int read_keep_alive(struct call *c, struct problem *pr)
{
    const json_t *v = js_get(c->json, "keep_alive");
    double seconds;
    if (!v)
        return 0;
    if (ollama_keep_alive(v, &seconds, pr) != 0)
        return -1;
    named_set_keep(c->lm, seconds, guard_administers(c->s, c->conn));
    return 0;
}

/* ---- options ---- */

/* Move members that Ollama's bodies do not have, but other bodies do, from the body to
 * c->unknown. fields_parse() has limited their number, but freeing one may take long, so the
 * thread that prepares the call does it. */
static int move_unknown(struct call *c, struct problem *pr)
{
    const char *name;
    json_t *v;
    void *next;
    json_object_foreach_safe(c->json, next, name, v) {
        if (fields_find(name, strlen(name), c->form->body))
            continue;
        if (!c->unknown)
            c->unknown = json_object();
        if (json_object_set(c->unknown, name, v) != 0)
            return problem_nomem(pr);
        json_object_del(c->json, name);
    }
    return 0;
}

int ollama_params(struct call *c, struct problem *pr)
{
    const json_t *options = js_get(c->json, "options");
    struct params *p = &c->params;
    if (move_unknown(c, pr) != 0)
        return -1;
    if (options && fields_parse(options, BODY_OLLAMA_OPTIONS, p, pr) != 0)
        return -1;
    if (p->max_tokens <= 0)
        p->given &= ~(unsigned)GIVEN_MAX_TOKENS;
    if (p->max_tokens < 0)
        p->max_tokens = 0;
    if (p->seed < 0)                            /* -1: choose a random seed */
        p->given &= ~(unsigned)GIVEN_SEED;
    if (call_embeds(c))
        p->truncate = p->truncates ? -1 : 0;
    return read_keep_alive(c, pr);
}

/* ---- conversations ---- */

static int refuse_images(const json_t *m, const char *param, struct problem *pr)
{
    if (json_array_size(json_object_get(m, "images")) == 0)
        return 0;
    return problem_set(pr, 400, param, "unsupported_parameter", "%s: images: no model here sees images", param);
}

/* Copy the calls of a message and add ids, which Ollama's calls do not have; *n counts the calls of
 * the conversation.  New reference; NULL without memory. */
static json_t *with_ids(const json_t *calls, int *n)
{
    json_t *out = json_array();
    const json_t *call;
    size_t i;
    json_array_foreach(calls, i, call) {
        json_t *copy = json_pack("{s:s, s:o, s:O?}", "type", "function", "id", json_sprintf("call_%d", (*n)++),
                                 "function", json_object_get(call, "function"));
        if (json_array_append_new(out, copy) != 0) {
            json_decref(out);
            return NULL;
        }
    }
    return out;
}

/* Append a message in the form of chat completions.  *n_calls, *n_results: numbers of calls and
 * results in the conversation so far; results come in the order of the calls. */
static int add_message(json_t *out, const json_t *m, const char *param, int *n_calls, int *n_results,
                       struct problem *pr)
{
    const char *role = json_string_value(json_object_get(m, "role"));
    const json_t *calls = js_get(m, "tool_calls");
    json_t *thought = js_get(m, "thinking"), *name = js_get(m, "tool_name"), *content = js_get(m, "content");
    if (!json_is_object(m) || !role)
        return problem_set(pr, 400, param, "invalid_role", "%s: role: missing", param);
    if (calls && !json_is_array(calls))
        return problem_set(pr, 400, param, "invalid_type", "%s: tool_calls: found %s, expected a list", param,
                           js_kind(calls));
    if (refuse_images(m, param, pr) != 0)
        return -1;
    json_t *copy = json_pack("{s:s, s:o}", "role", role, "content", content ? json_incref(content) : json_string(""));
    int bad = !copy || (json_is_string(thought) && json_object_set(copy, "reasoning_content", thought) != 0) ||
              (json_is_string(name) && json_object_set(copy, "name", name) != 0);
    if (!bad && json_array_size(calls) > 0)
        bad = json_object_set_new(copy, "tool_calls", with_ids(calls, n_calls)) != 0;
    if (!bad && strcmp(role, "tool") == 0)
        bad = json_object_set_new(copy, "tool_call_id", json_sprintf("call_%d", (*n_results)++)) != 0;
    bad |= json_array_append(out, copy) != 0;
    json_decref(copy);
    return bad ? problem_nomem(pr) : 0;
}

static int read_messages(const json_t *list, json_t *out, struct problem *pr)
{
    const json_t *m;
    size_t i;
    int n_calls = 0, n_results = 0;
    if (conversation_check_list(list, "messages", "a list of at least 1 message", pr) != 0)
        return -1;
    json_array_foreach(list, i, m) {
        char param[40];
        snprintf(param, sizeof param, "messages[%zu]", i);
        if (add_message(out, m, param, &n_calls, &n_results, pr) != 0)
            return -1;
    }
    return 0;
}

/* Set a variable of the template. */
static int set_var(struct conversation *t, const char *name, json_t *value, struct problem *pr)
{
    if (!t->vars)
        t->vars = json_object();
    return json_object_set_new(t->vars, name, value) == 0 ? 0 : problem_nomem(pr);
}

static int read_think(struct call *c, struct problem *pr)
{
    const json_t *v = js_get(c->json, "think");
    const char *level = json_string_value(v);
    const int known = level && (strcmp(level, "high") == 0 || strcmp(level, "medium") == 0 ||
                                strcmp(level, "low") == 0);
    if (!v || (level && !*level))
        return 0;
    if (!json_is_boolean(v) && !known)
        return problem_set(pr, 400, "think", "invalid_value", "think: %.40s, expected true, false, high, medium or low",
                           level ? level : js_kind(v));
    if (!json_is_false(v) && !c->lm->thinks && !tool_format_has_channels(c->lm->calls_form))
        return problem_set(pr, 400, "think", "unsupported_parameter", "\"%.80s\" does not support thinking", c->lm->id);
    if (known && set_var(&c->conversation, "reasoning_effort", json_string(level), pr) != 0)
        return -1;
    return set_var(&c->conversation, "enable_thinking", json_boolean(!json_is_false(v)), pr);
}

/* Translate the field "format" to a response_format in c->json, which the conversation borrows. */
static int read_format(struct call *c, struct problem *pr)
{
    json_t *v = js_get(c->json, "format"), *format = NULL;
    const char *word = json_string_value(v);
    if (!v || (word && !*word))
        return 0;
    if (word && strcmp(word, "json") == 0)
        format = json_pack("{s:s}", "type", "json_object");
    else if (json_is_object(v))
        format = json_pack("{s:s, s:O}", "type", "json_schema", "schema", v);
    else
        return problem_set(pr, 400, "format", "invalid_value", "format: %.40s, expected \"json\" or a JSON Schema",
                           word ? word : js_kind(v));
    if (json_object_set_new(c->json, "format", format) != 0)
        return problem_nomem(pr);
    c->conversation.format = format;
    c->conversation.format_param = "format";
    return 0;
}

/* Make the prompt from the settings and the messages; takes ownership of messages. */
static int prepare(struct call *c, json_t *messages, int rc, struct problem *pr)
{
    struct conversation *t = &c->conversation;
    t->param = c->form->body == BODY_OLLAMA_CHAT ? "messages" : "prompt";
    t->messages = rc == 0 ? conversation_messages(messages, pr) : NULL;
    json_decref(messages);
    return t->messages && read_think(c, pr) == 0 && read_format(c, pr) == 0 ? conversation_prepare(c, pr) : -1;
}

int ollama_prepare_chat(struct call *c, struct problem *pr)
{
    const json_t *tools = js_get(c->json, "tools");
    json_t *messages = json_array();
    int rc = read_messages(js_get(c->json, "messages"), messages, pr);
    if (rc == 0 && tools && !json_is_array(tools))
        rc = problem_set(pr, 400, "tools", "invalid_type", "tools: found %s, expected a list", js_kind(tools));
    if (rc == 0)
        rc = conversation_read_tools(&c->conversation, c->json, "parameters", chat_function_of, pr);
    if (rc == 0)
        rc = chat_read_choice(c->json, &c->conversation, pr);
    return prepare(c, messages, rc, pr);
}

/* Read a string of the body; NULL: it has none.  -1 with *pr. */
static int text_of(const struct call *c, const char *name, const char **text, size_t *size, struct problem *pr)
{
    const json_t *v = js_get(c->json, name);
    if (v && !json_is_string(v))
        return problem_set(pr, 400, name, "invalid_type", "%s: found %s, expected a string", name, js_kind(v));
    *text = v ? json_string_value(v) : NULL;
    *size = v ? json_string_length(v) : 0;
    return 0;
}

static int add_text(json_t *messages, const char *role, const char *text, size_t size, struct problem *pr)
{
    struct buf b = { 0 };
    buf_add(&b, text, size);
    const int rc = conversation_add_message(messages, role, NULL, &b, pr);
    buf_release(&b);
    return rc;
}

/* Use the prompt without a template. */
static int prepare_raw(struct call *c, const char *text, size_t size, struct problem *pr)
{
    c->conversation.param = "prompt";
    if (call_prompts(c, 1, pr) != 0 || read_format(c, pr) != 0 ||
        call_tokenize(c, 0, text, size, 1, 1, pr, "prompt") != 0)
        return -1;
    return call_answer_grammar(c, pr);
}

int ollama_prepare_generate(struct call *c, struct problem *pr)
{
    const char *text, *system;
    size_t size, n_system;
    if (text_of(c, "prompt", &text, &size, pr) != 0 || text_of(c, "system", &system, &n_system, pr) != 0)
        return -1;
    if (!text)
        return problem_set(pr, 400, "prompt", "missing", "prompt: missing");
    if (c->params.raw && n_system)
        return problem_set(pr, 400, "system", "invalid_value", "raw mode does not support template, system, or context");
    if (!c->lm->tmpl && n_system)
        return problem_set(pr, 400, "system", "invalid_value", "system: %s has no chat template", c->lm->id);
    if (c->params.raw || !c->lm->tmpl)
        return prepare_raw(c, text, size, pr);
    json_t *messages = json_array();
    int rc = n_system ? add_text(messages, "system", system, n_system, pr) : 0;
    if (rc == 0)
        rc = add_text(messages, "user", text, size, pr);
    return prepare(c, messages, rc, pr);
}
