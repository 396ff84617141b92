/* responses_echo.c - the members of a response that repeat its request: instructions, tools, the
 * format of the text.  They can be as large as the body, numbers even larger (0.1 is written with
 * 17 digits), and a stream has three response objects, so they are written once, by the thread that
 * prepares the prompt, and the event loop copies them. */
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/serve/api/calls.h"

/* The tools as the request has them, with null for the members that it leaves out. */
static json_t *echo_tools(const json_t *body)
{
    static const char *const names[] = { "description", "parameters", "strict" };
    json_t *tools = js_get(body, "tools"), *tool, *all = json_array();
    size_t i;
    json_array_foreach(tools, i, tool) {
        json_t *copy = json_copy(tool);
        for (size_t k = 0; k < sizeof names / sizeof *names; k++)
            if (copy && !json_object_get(copy, names[k]))
                json_object_set_new(copy, names[k], json_null());
        if (json_array_append_new(all, copy) != 0) {
            json_decref(all);
            return NULL;
        }
    }
    return all;
}

/* The format and the verbosity of the text. */
static json_t *echo_text(const json_t *body)
{
    json_t *asked = js_get(body, "text"), *format = js_get(asked, "format");
    const char *type = json_string_value(json_object_get(format, "type"));
    json_t *shown = format ? json_copy(format) : json_pack("{s:s}", "type", "text");
    if (type && strcmp(type, "json_schema") == 0) {
        if (!json_object_get(shown, "description"))
            json_object_set_new(shown, "description", json_null());
        if (!json_is_boolean(json_object_get(shown, "strict")))
            json_object_set_new(shown, "strict", json_true());
        if (!json_object_get(shown, "name"))
            json_object_set_new(shown, "name", json_string(""));
    }
    return json_pack("{s:o, s:O*}", "format", shown, "verbosity", js_get(asked, "verbosity"));
}

/* The members of a response that repeat the request; NULL: out of memory. */
static json_t *echo_of(const json_t *body)
{
    static const struct {
        const char *name, *otherwise;
    } members[] = {
        { "instructions", "null" }, { "max_output_tokens", "null" }, { "max_tool_calls", "null" },
        { "metadata", "{}" }, { "tool_choice", "\"auto\"" }, { "user", "null" }, { "previous_response_id", "null" },
        { "safety_identifier", "null" }, { "prompt_cache_key", "null" }, { "truncation", "\"disabled\"" },
    };
    json_t *all = json_object();
    int failed = !all;
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        json_t *v = json_incref(js_get(body, members[i].name));
        v = v ? v : json_loads(members[i].otherwise, JSON_DECODE_ANY, NULL);
        failed |= json_object_set_new(all, members[i].name, v) != 0;
    }
    failed |= json_object_set_new(all, "tools", echo_tools(body)) != 0;
    failed |= json_object_set_new(all, "text", echo_text(body)) != 0;
    if (!failed)
        return all;
    json_decref(all);
    return NULL;
}

int responses_echo(struct call *c, struct problem *pr)
{
    /* this one, and a response and an event, whose buffers can be half as large again */
    enum { COPIES = 4, FLAGS = JSON_COMPACT };
    const size_t work = c->scan.tree_bytes + JSON_WRITER_BYTES;
    if (call_hold(c, work, pr) != 0)
        return -1;
    json_t *all = echo_of(c->json);
    const size_t size = all ? json_dumpb(all, NULL, 0, FLAGS) : 0;
    const int fits = call_keep(c, COPIES * size, pr) == 0 && call_hold(c, work, pr) == 0;
    struct buf *out = &c->echo;
    buf_release(out);
    if (size && fits) {
        char *to = buf_reserve(out, size);
        out->failed |= !to || json_dumpb(all, to, size, FLAGS) != size;
        out->size = size;
    }
    json_decref(all);
    return !fits ? -1 : !size || out->failed ? problem_nomem(pr) : 0;
}
