/* chat_calls.c - render conversations with calls of functions, for all families of templates. */
#include "libcommon/template/chat_calls.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/siphash.h"

/* ---- templates without support for tools ---- */

static const char *role_of(const json_t *m)
{
    const char *role = json_string_value(json_object_get(m, "role"));
    return role ? role : "";
}

static const char *content_of(const json_t *m)
{
    const char *content = json_string_value(json_object_get(m, "content"));
    return content ? content : "";
}

/* The text written to f, as a JSON string; NULL without memory. */
static json_t *finish_text(FILE *f, char **text, const size_t *size)
{
    const int bad = ferror(f) | fclose(f);
    json_t *v = bad ? NULL : json_stringn(*text, *size);
    free(*text);
    return v;
}

/* Write a value on a line of its own. */
static int put_line(FILE *f, const json_t *v)
{
    char *line = v ? json_dumps(v, 0) : NULL;
    const int bad = !line || fputs(line, f) < 0;
    free(line);
    return bad;
}

/* Write the calls and results of a message as text.  Returns nonzero if memory runs out. */
static int calls_as_text(json_t *m)
{
    const json_t *calls = json_object_get(m, "tool_calls"), *call;
    const int is_result = strcmp(role_of(m), "tool") == 0 || strcmp(role_of(m), "function") == 0;
    char *text;
    size_t size, i;
    int bad = 0;
    if (!calls && !is_result)
        return 0;
    FILE *f = open_memstream(&text, &size);
    if (!f)
        return -1;
    fprintf(f, "%s%s", is_result ? "Result of the function: " : "", content_of(m));
    json_array_foreach(calls, i, call) {
        const json_t *function = json_object_get(call, "function");
        json_t *said = json_pack("{s:O, s:O}", "name", json_object_get(function, "name"), "arguments",
                                 json_object_get(function, "arguments"));
        if (i || *content_of(m))
            putc('\n', f);
        bad |= put_line(f, said);
        json_decref(said);
    }
    if (is_result)
        bad |= json_object_set_new(m, "role", json_string("user"));
    json_t *content = finish_text(f, &text, &size);
    bad |= json_object_set_new(m, "content", content);
    if (calls)
        json_object_del(m, "tool_calls");
    return bad;
}

/* Describe the functions in the first message of this role: "system", which is added if it is
 * missing, or "user" for templates that refuse a system message.  Returns nonzero if memory runs
 * out. */
static int describe_tools(json_t *messages, const json_t *tools, const char *role)
{
    const json_t *tool;
    char *text;
    size_t size, i, at = 0;
    int bad = 0;
    while (at < json_array_size(messages) && strcmp(role_of(json_array_get(messages, at)), role) != 0)
        at++;
    const json_t *own = json_array_get(messages, at);
    FILE *f = open_memstream(&text, &size);
    if (!f)
        return -1;
    fputs("You may call these functions. To call one, answer with nothing but a JSON object {\"name\": ..., \"arguments\": {...}}.\n", f);
    json_array_foreach(tools, i, tool) {
        bad |= put_line(f, json_object_get(tool, "function"));
        putc('\n', f);
    }
    if (own)
        fprintf(f, "\n%s", content_of(own));
    json_t *content = finish_text(f, &text, &size), *m = content ? json_pack("{s:s, s:o}", "role", role, "content", content)
                                                                 : NULL;
    return bad | (own ? json_array_set_new(messages, at, m) : json_array_insert_new(messages, 0, m));
}

/* ---- families with special needs ---- */

/* Make an id of 9 letters or digits.  Returns nonzero if memory runs out. */
static int shorten_id(json_t *o, const char *key)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    const char *id = json_string_value(json_object_get(o, key));
    static const uint64_t key_of_hash[2] = { 9, 62 };
    char text[10] = { 0 };
    if (!id || (strlen(id) == 9 && strspn(id, letters) == 9))
        return 0;
    uint64_t hash = siphash(key_of_hash, id, strlen(id));
    for (int i = 0; i < 9; i++, hash /= sizeof letters - 1)
        text[i] = letters[hash % (sizeof letters - 1)];
    return json_object_set_new(o, key, json_string(text));
}

static int shorten_ids(json_t *m)
{
    json_t *call;
    size_t i;
    int bad = shorten_id(m, "tool_call_id");
    json_array_foreach(json_object_get(m, "tool_calls"), i, call)
        bad |= shorten_id(call, "id");
    return bad;
}

/* Convert arguments to JSON text, for templates that insert them verbatim, or to objects.  Returns
 * nonzero if memory runs out. */
static int convert_arguments(json_t *m, int to_text)
{
    json_t *call;
    size_t i;
    int bad = 0;
    json_array_foreach(json_object_get(m, "tool_calls"), i, call) {
        json_t *f = json_object_get(call, "function"), *a = json_object_get(f, "arguments");
        if (to_text && json_is_object(a)) {
            char *text = json_dumps(a, 0);
            bad |= json_object_set_new(f, "arguments", text ? json_string(text) : NULL);
            free(text);
        } else if (!to_text && json_is_string(a)) {
            json_t *v = json_loadb(json_string_value(a), json_string_length(a), 0, NULL);
            if (json_is_object(v))              /* malformed arguments stay text */
                bad |= json_object_set(f, "arguments", v);
            json_decref(v);
        }
    }
    return bad;
}

/* ---- to the prompt ---- */

/* Forms of a conversation, tried in this order until the template accepts one. */
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
static json_t *template_messages(const struct chat_style *style, const json_t *from, const json_t *tools, int way)
{
    json_t *messages = json_deep_copy(from), *m;
    size_t i;
    int bad = !json_equal(messages, from);              /* without memory jansson leaves out values */
    if (tools && !style->knows_tools)
        bad |= describe_tools(messages, tools, way == NO_SYSTEM ? "user" : "system");
    json_array_foreach(messages, i, m) {
        bad |= convert_arguments(m, 0);
        if (!style->knows_tools)
            bad |= calls_as_text(m);
        else if (way == ARGUMENTS_AS_TEXT)
            bad |= convert_arguments(m, 1);
        if (style->short_ids)
            bad |= shorten_ids(m);
    }
    if (!bad)
        return messages;
    json_decref(messages);
    return NULL;
}

int chat_render_tools(const struct tmpl *t, const struct chat_style *style, const json_t *messages, const json_t *tools,
                      int add_generation_prompt, const char *bos, const char *eos, int64_t now,
                      const json_t *extra_vars, const struct tmpl_limits *limits, char **out, size_t *size,
                      struct err *e)
{
    struct err first = { 0 };
    for (int way = PLAIN; way < N_WAYS; way++) {
        if ((way == ARGUMENTS_AS_TEXT && !has_calls(messages)) || (way == NO_SYSTEM && (!tools || style->knows_tools)))
            continue;
        json_t *own = template_messages(style, messages, tools, way);
        const int rc = own ? chat_render(t, own, style->knows_tools ? tools : NULL, add_generation_prompt, bos, eos,
                                         now, extra_vars, limits, out, size, e) : err_nomem(e, "conversation");
        json_decref(own);
        if (rc == 0 || e->code == ERR_MEMORY)
            return rc;
        if (way == PLAIN)
            first = *e;
    }
    *e = first;
    return -1;
}
