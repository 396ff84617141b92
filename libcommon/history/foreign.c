/* foreign.c - convert conversations of ChatGPT, Open WebUI and LM Studio to our own form.
 *
 * Exports of the first two contain trees: an object of nodes by id, each with the id of its parent
 * and a list of its children.  The tree is walked from its roots, so a node that is listed twice,
 * or a node of a cycle, is visited at most once.  LM Studio has a list of messages, each in several
 * versions, one of which is selected: the next message goes below the selected version. */
#include "libcommon/history/foreign.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/base/utf8.h"
#include "libcommon/history/internal.h"

static const char *text_of(const json_t *o, const char *name) { return json_string_value(json_object_get(o, name)); }

int foreign_is(const char *format)
{
    return strcmp(format, "chatgpt") == 0 || strcmp(format, "open-webui") == 0 || strcmp(format, "lm-studio") == 0;
}

/* Add a time; the number counts seconds, or milliseconds if it is too large for seconds. */
static void put_time(json_t *out, const char *name, const json_t *time)
{
    double v = json_is_number(time) ? json_number_value(time) : 0;
    if (v > 0 && v < 1e11)
        v *= 1000;
    if (v > 0 && v < 2.5e14)
        json_object_set_new(out, name, js_time((int64_t)v));
}

/* The text, cut to at most `most` bytes at the end of a character. */
static json_t *cut(const char *text, size_t most)
{
    size_t n = strlen(text);
    if (n > most) {
        n = most;
        while (n && ((unsigned char)text[n] & 0xc0) == 0x80)
            n--;
    }
    return json_stringn(text, n);
}

/* ---- texts ---- */

/* The text of a list of parts: strings, {text}, pictures.  malloc'd. */
static char *join_parts(const json_t *parts)
{
    size_t i, size = 1;
    const json_t *part;
    json_array_foreach(parts, i, part) {
        const char *t = json_is_string(part) ? json_string_value(part) : text_of(part, "text");
        size += (t ? strlen(t) : 7) + 1;
    }
    char *out = malloc(size), *end = out;
    json_array_foreach(parts, i, part) {
        const char *t = json_is_string(part) ? json_string_value(part) : text_of(part, "text");
        if (!t && !json_is_object(part))
            continue;
        if (!out || (t && !*t))
            continue;
        if (end > out)
            *end++ = '\n';
        end = stpcpy(end, t ? t : "[image]");
    }
    if (out)
        *end = '\0';
    return out;
}

/* The text of a message of either program; NULL: it has none to show.  malloc'd. */
static char *message_text(const json_t *m)
{
    const json_t *content = json_object_get(m, "content"), *parts = json_object_get(content, "parts");
    const char *plain = json_is_string(content) ? json_string_value(content) : text_of(content, "text");
    char *out = plain ? strdup(plain) : NULL;
    if (!out && json_is_array(parts))
        out = join_parts(parts);
    else if (!out && json_is_array(content))
        out = join_parts(content);
    if (out && *out)
        return out;
    free(out);
    return NULL;
}

/* ---- the tree ---- */

struct tree_walk {
    const json_t *nodes;
    const char *parent, *children, *active_id;
    json_t *seen, *messages;            /* seen: node id to number of its message, or of the nearest one above */
    json_t *stack;                      /* ids of nodes to visit */
    int64_t n, active;
    struct history_problem *p;
};

static const json_t *message_of(const json_t *node)
{
    const json_t *m = json_object_get(node, "message");
    return m ? m : node;                /* in Open WebUI's export a node is the message */
}

/* Add the node's message, if it has one to show, below the message `above` (0: none).  Returns the
 * number below which its children go; -1 with *p. */
static int64_t add_message(struct tree_walk *w, const json_t *node, int64_t above)
{
    const json_t *m = message_of(node), *time = json_object_get(m, "create_time");
    const char *role = text_of(m, "role"), *model = text_of(json_object_get(m, "metadata"), "model_slug");
    if (!role)
        role = text_of(json_object_get(m, "author"), "role");
    if (!role || (strcmp(role, "user") != 0 && strcmp(role, "assistant") != 0 && strcmp(role, "system") != 0))
        return above;
    if (json_is_true(json_object_get(json_object_get(m, "metadata"), "is_visually_hidden_from_conversation")))
        return above;
    char *text = message_text(m);
    if (!text)
        return above;
    if (!model)
        model = text_of(m, "model");
    json_t *out = json_pack("{s:I, s:o, s:s, s:o, s:o}", "id", (json_int_t)++w->n, "parent_id",
                            above ? json_integer(above) : json_null(), "role", role, "content", js_text(text),
                            "metadata", model ? json_pack("{s:o}", "model", js_text(model)) : json_object());
    free(text);
    if (out)
        put_time(out, "created_at", time ? time : json_object_get(m, "timestamp"));
    return out && json_array_append_new(w->messages, out) == 0 ? w->n : fault_nomem(w->p);
}

static int visit(struct tree_walk *w, const char *id, int64_t above)
{
    const json_t *node = json_object_get(w->nodes, id), *children = json_object_get(node, w->children);
    if (!json_is_object(node) || json_object_get(w->seen, id))
        return 0;
    const int64_t number = add_message(w, node, above);
    if (number < 0 || json_object_set_new(w->seen, id, json_integer(number)) != 0)
        return number < 0 ? -1 : fault_nomem(w->p);
    if (w->active_id && strcmp(w->active_id, id) == 0)
        w->active = number;
    for (size_t i = json_array_size(children); i-- > 0;) {
        const char *child = json_string_value(json_array_get(children, i));
        if (child && json_array_append_new(w->stack, json_pack("[s, I]", child, (json_int_t)number)) != 0)
            return fault_nomem(w->p);
    }
    if (json_array_size(w->messages) > HISTORY_MESSAGES)
        return fault_set(w->p, HISTORY_QUOTA, "conversation", "conversation: expected at most %d messages",
                         HISTORY_MESSAGES);
    return 0;
}

static int walk(struct tree_walk *w)
{
    const char *id;
    json_t *node;
    json_object_foreach((json_t *)(uintptr_t)w->nodes, id, node) {
        const char *parent = text_of(node, w->parent);
        if (parent && json_object_get(w->nodes, parent))
            continue;
        if (visit(w, id, 0))
            return -1;
        for (size_t n; (n = json_array_size(w->stack));) {
            json_t *top = json_incref(json_array_get(w->stack, n - 1));
            json_array_remove(w->stack, n - 1);
            const int rc = visit(w, json_string_value(json_array_get(top, 0)),
                                 json_integer_value(json_array_get(top, 1)));
            json_decref(top);
            if (rc)
                return -1;
        }
    }
    return 0;
}

/* The document; takes the references of fields and messages. */
static json_t *document(json_t *fields, json_t *messages, struct history_problem *p)
{
    json_t *out = json_pack("{s:s, s:i, s:o, s:o}", "format", HISTORY_FORMAT, "version", HISTORY_VERSION, "conversation", fields,
                            "messages", messages);
    if (!out)
        fault_nomem(p);
    return out;
}

/* ---- LM Studio ---- */

/* The text of a version: of its content, or of its steps without thoughts.  malloc'd, or NULL. */
static char *version_text(const json_t *version)
{
    const json_t *step, *steps = json_object_get(version, "steps");
    json_t *all = json_array();
    size_t i;
    if (!steps)
        json_array_extend(all, json_object_get(version, "content"));
    json_array_foreach(steps, i, step) {
        const char *type = text_of(step, "type"), *style = text_of(json_object_get(step, "style"), "type");
        if (type && strcmp(type, "contentBlock") == 0 && !(style && strcmp(style, "thinking") == 0))
            json_array_extend(all, json_object_get(step, "content"));
    }
    char *out = join_parts(all);
    json_decref(all);
    if (out && *out)
        return out;
    free(out);
    return NULL;
}

/* Add one version below the message `above`.  Returns its number, or `above` if it has nothing to
 * show; -1 with *p. */
static int64_t add_version(json_t *messages, const json_t *version, int64_t above, struct history_problem *p)
{
    const char *role = text_of(version, "role"), *model = text_of(json_object_get(version, "senderInfo"), "senderName");
    if (!role || (strcmp(role, "user") != 0 && strcmp(role, "assistant") != 0 && strcmp(role, "system") != 0))
        return above;
    if (json_array_size(messages) >= HISTORY_MESSAGES)
        return fault_set(p, HISTORY_QUOTA, "conversation", "conversation: expected at most %d messages", HISTORY_MESSAGES);
    char *text = version_text(version);
    if (!text)
        return above;
    const int64_t number = (int64_t)json_array_size(messages) + 1;
    const int named = model && strcmp(role, "assistant") == 0;
    json_t *out = json_pack("{s:I, s:o, s:s, s:o, s:o}", "id", (json_int_t)number, "parent_id",
                            above ? json_integer(above) : json_null(), "role", role, "content", js_text(text),
                            "metadata", named ? json_pack("{s:o}", "model", js_text(model)) : json_object());
    free(text);
    return out && json_array_append_new(messages, out) == 0 ? number : fault_nomem(p);
}

/* Add all versions of a message.  Returns the number of the selected one, or `above` if that has
 * nothing to show; -1 with *p. */
static int64_t add_versions(json_t *messages, const json_t *message, int64_t above, struct history_problem *p)
{
    const json_t *version, *versions = json_object_get(message, "versions");
    const json_int_t selected = json_integer_value(json_object_get(message, "currentlySelected"));
    int64_t below = above;
    size_t i;
    json_array_foreach(versions, i, version) {
        const int64_t number = add_version(messages, version, above, p);
        if (number < 0)
            return -1;
        if ((json_int_t)i == selected)
            below = number;
    }
    return below;
}

static json_t *lm_studio_document(const json_t *conversation, struct history_problem *p)
{
    const json_t *message, *list = json_object_get(conversation, "messages"), *made = json_object_get(conversation, "createdAt");
    const char *title = text_of(conversation, "name"), *system = text_of(conversation, "systemPrompt");
    int64_t leaf = 0;
    size_t i;
    if (!json_is_array(list)) {
        fault_set(p, HISTORY_BAD_VALUE, "conversation", "conversation: expected messages, a list of {versions, currentlySelected}");
        return NULL;
    }
    json_t *fields = json_object(), *messages = json_array();
    json_array_foreach(list, i, message)
        if ((leaf = add_versions(messages, message, leaf, p)) < 0) {
            json_decref(fields);
            json_decref(messages);
            return NULL;
        }
    if (title && *title)
        json_object_set_new(fields, "title", cut(title, HISTORY_TITLE));
    if (system && *system)
        json_object_set_new(fields, "system_prompt", js_text(system));
    put_time(fields, "created_at", made);
    put_time(fields, "updated_at", made);
    if (leaf)
        json_object_set_new(fields, "active_leaf", json_integer(leaf));
    return document(fields, messages, p);
}

json_t *foreign_document(const char *format, const json_t *conversation, struct history_problem *p)
{
    if (strcmp(format, "lm-studio") == 0)
        return lm_studio_document(conversation, p);
    const int is_webui = strcmp(format, "open-webui") == 0;
    const json_t *chat = is_webui && json_object_get(conversation, "chat") ? json_object_get(conversation, "chat")
                                                                           : conversation;
    const json_t *tree = is_webui ? json_object_get(chat, "history") : conversation;
    struct tree_walk w = { .nodes = json_object_get(tree, is_webui ? "messages" : "mapping"),
                      .parent = is_webui ? "parentId" : "parent",
                      .children = is_webui ? "childrenIds" : "children",
                      .active_id = text_of(tree, is_webui ? "currentId" : "current_node"), .p = p };
    if (!json_is_object(w.nodes)) {
        fault_set(p, HISTORY_BAD_VALUE, "conversation", "conversation: expected %s, an object of messages by id",
                  is_webui ? "chat.history.messages" : "mapping");
        return NULL;
    }
    w.seen = json_object();
    w.messages = json_array();
    w.stack = json_array();
    const char *title = text_of(chat, "title");
    if (!title)
        title = text_of(conversation, "title");
    json_t *fields = json_object(), *out = NULL;
    if (title && *title)
        json_object_set_new(fields, "title", cut(title, HISTORY_TITLE));
    const json_t *made = json_object_get(conversation, is_webui ? "created_at" : "create_time"),
                 *changed = json_object_get(conversation, is_webui ? "updated_at" : "update_time");
    put_time(fields, "created_at", made);
    put_time(fields, "updated_at", changed ? changed : made);
    if (walk(&w) == 0) {
        if (w.active)
            json_object_set_new(fields, "active_leaf", json_integer(w.active));
        out = document(json_incref(fields), json_incref(w.messages), p);
    }
    json_decref(fields);
    json_decref(w.seen);
    json_decref(w.messages);
    json_decref(w.stack);
    return out;
}
