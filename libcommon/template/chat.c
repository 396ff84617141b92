/* chat.c - render a conversation as the text that the model reads. */
#include "libcommon/template/chat.h"

#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/base/utf8.h"

const char chat_fallback_template[] =
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/* Returns j without const, for jansson's functions that take a reference; they change only the
 * reference count. */
static json_t *shared(const json_t *j)
{
    union { const json_t *in; json_t *out; } u = { .in = j };
    return json_incref(u.out);
}

/* The message with its reasoning under both names; new reference. */
static json_t *with_reasoning(const json_t *message)
{
    static const char *const names[] = { "reasoning_content", "thinking", "reasoning" };
    json_t *reasoning = NULL;
    for (size_t i = 0; i < 3 && !reasoning; i++)
        reasoning = js_get(message, names[i]);
    json_t *own = shared(message), *copy = reasoning ? json_object() : NULL;
    if (!reasoning)
        return own;
    int thinks = json_object_get(own, "thinking") != NULL;
    if (!copy || (!thinks && json_object_set(copy, "thinking", reasoning) < 0) || json_object_update(copy, own) < 0
        || json_object_set(copy, "reasoning_content", reasoning) < 0) {
        json_decref(copy);
        copy = NULL;
    }
    json_decref(own);
    return copy;
}

/* Set thinking_mode, which MiniMax M3's template reads instead of enable_thinking. */
static int set_thinking_mode(json_t *vars, const json_t *extra)
{
    const json_t *thinks = json_object_get(extra, "enable_thinking");
    if (!json_is_boolean(thinks))
        return 0;
    return json_object_set_new(vars, "thinking_mode", json_string(json_is_true(thinks) ? "enabled" : "disabled"));
}

static int is_text(const char *s) { return !s || utf8_valid(s, strlen(s)) == strlen(s); }

int chat_render(const struct tmpl *t, const json_t *messages, const json_t *tools, int add_generation_prompt,
                const char *bos, const char *eos, int64_t now, const json_t *extra_vars,
                const struct tmpl_limits *limits, char **out, size_t *size, struct err *e)
{
    json_t *vars = json_object(), *list = json_array(), *extra = extra_vars ? shared(extra_vars) : NULL;
    int r = -1;
    size_t n = json_array_size(messages);
    if (!json_is_array(messages)) {
        err_set(e, ERR_FORMAT, "messages: expected an array of objects");
        goto done;
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *m = json_array_get(messages, i);
        if (!json_is_object(m)) {
            err_set(e, ERR_FORMAT, "messages[%zu]: found %s, expected an object", i, js_kind(m));
            goto done;
        }
        if (json_array_append_new(list, with_reasoning(m)) < 0) {
            err_nomem(e, "messages");
            goto done;
        }
    }
    if (json_object_set(vars, "messages", list) < 0 ||
        json_object_set_new(vars, "tools", tools ? shared(tools) : json_null()) < 0
        || json_object_set_new(vars, "documents", json_null()) < 0
        || json_object_set_new(vars, "add_generation_prompt", json_boolean(add_generation_prompt)) < 0
        || json_object_set_new(vars, "bos_token", json_string(bos ? bos : "")) < 0
        || json_object_set_new(vars, "eos_token", json_string(eos ? eos : "")) < 0
        || set_thinking_mode(vars, extra) < 0
        || (extra && json_object_update(vars, extra) < 0)) {
        if (is_text(bos) && is_text(eos))
            err_nomem(e, "the variables of the chat template");
        else
            err_set(e, ERR_FORMAT, "the variables of the chat template are not UTF-8");
        goto done;
    }
    r = tmpl_render(t, vars, now, limits, out, size, e);
done:
    json_decref(extra);
    json_decref(list);
    json_decref(vars);
    return r;
}
