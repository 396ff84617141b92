/* transfer.c - export a conversation as JSON or Markdown, and import it. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/history/foreign.h"
#include "libcommon/history/internal.h"

/* ---- export ---- */

/* A file name from a title: ASCII letters and digits, the rest as single dashes. */
static char *file_name(const char *title, const char *ending)
{
    char name[64];
    size_t n = 0;
    for (const char *s = title; *s && n < 48; s++) {
        const int plain = (*s >= '0' && *s <= '9') || ((*s | 32) >= 'a' && (*s | 32) <= 'z');
        if (plain)
            name[n++] = *s;
        else if (n && name[n - 1] != '-')
            name[n++] = '-';
    }
    while (n && name[n - 1] == '-')
        n--;
    name[n] = '\0';
    char *out;
    return asprintf(&out, "%s.%s", n ? name : "chat", ending) < 0 ? NULL : out;
}

/* Every message, or those of the active branch, in a list. */
static json_t *all_messages(struct history *h, const char *owner, const char *id, int active, struct history_problem *p)
{
    json_t *all = json_array();
    size_t held = 0;
    for (struct history_page page = { .limit = 1000, .active = active };;) {
        json_t *part = history_messages_in(h, owner, id, &page, &held, p), *list = json_object_get(part, "messages");
        const int more = json_is_true(json_object_get(part, "more")), bad = !part || json_array_extend(all, list) != 0;
        const json_t *last = json_array_get(list, json_array_size(list) - 1);
        page.after = json_integer_value(json_object_get(last, "id"));
        json_decref(part);
        if (bad) {
            json_decref(all);
            return NULL;
        }
        if (!more)
            return all;
    }
}

static char *write_json(json_t *conversation, json_t *messages, struct history_problem *p)
{
    size_t i;
    json_t *m;
    json_array_foreach(messages, i, m)
        json_object_del(m, "conversation_id");
    json_t *doc = json_pack("{s:s, s:i, s:O, s:O}", "format", HISTORY_FORMAT, "version", HISTORY_VERSION, "conversation",
                            conversation, "messages", messages);
    char *out = doc ? json_dumps(doc, JSON_INDENT(1) | JSON_REAL_PRECISION(15)) : NULL;
    if (!out)
        fault_nomem(p);
    json_decref(doc);
    return out;
}

static const char *text_in(const json_t *o, const char *key, const char *otherwise)
{
    const char *text = json_string_value(json_object_get(o, key));
    return text ? text : otherwise;
}

static char *export(struct history *h, const char *owner, const char *id, int markdown, char **name,
                    struct history_problem *p)
{
    char *out = NULL;
    *name = NULL;
    if (sql_begin(h, 0, p))
        return NULL;
    struct conversation_row c;
    struct owner o;
    json_t *conversation = conversation_find(h, owner, id, &o, &c, p) ? NULL : conversation_json(&c),
           *messages = conversation ? all_messages(h, owner, id, markdown, p) : NULL;
    if (messages)
        out = markdown ? markdown_write(conversation, messages, p) : write_json(conversation, messages, p);
    if (out && !(*name = file_name(text_in(conversation, "title", ""), markdown ? "md" : "json"))) {
        fault_nomem(p);
        free(out);
        out = NULL;
    }
    json_decref(conversation);
    json_decref(messages);
    if (sql_end(h, out ? 0 : -1, p) == 0)
        return out;
    free(out);
    free(*name);
    *name = NULL;
    return NULL;
}

char *history_export_json(struct history *h, const char *owner, const char *id, char **name, struct history_problem *p)
{
    return export(h, owner, id, 0, name, p);
}

char *history_export_markdown(struct history *h, const char *owner, const char *id, char **name,
                              struct history_problem *p)
{
    return export(h, owner, id, 1, name, p);
}

/* ---- import ---- */

static int time_field(const json_t *o, const char *name, int64_t *ms, struct history_problem *p)
{
    const char *text;
    if (field_presence(o, name) == ABSENT)
        return 0;
    if (field_text(o, name, 1, 40, &text, p))
        return -1;
    return time_parse(text, ms) ? fault_set(p, HISTORY_BAD_VALUE, name,
                                            "%s: '%s', expected a time like 2026-11-23T17:52:11.123Z", name, text)
                                : 0;
}

/* Read the id of the document's conversation, and check its form.  0, or -1 with *p. */
static int id_field(const json_t *o, const char **id, struct history_problem *p)
{
    if (field_text(o, "id", HISTORY_ID, HISTORY_ID, id, p))
        return -1;
    if (strspn(*id, "0123456789abcdef") != HISTORY_ID)
        return fault_set(p, HISTORY_BAD_VALUE, "id", "id: '%.20s', expected %d hexadecimal digits in lower case", *id,
                         HISTORY_ID);
    return 0;
}

/* The numbers of the messages imported so far, in ascending order; a parent comes before its
 * children. */
struct numbers { int64_t *list, n; };

static int has_number(const struct numbers *k, int64_t number)
{
    int64_t low = 0, high = k->n;
    while (low < high) {
        const int64_t at = (low + high) / 2;
        if (k->list[at] == number)
            return 1;
        if (k->list[at] < number)
            low = at + 1;
        else
            high = at;
    }
    return 0;
}

static int tree_fields(const json_t *fields, struct message_row *m, struct numbers *k, struct history_problem *p)
{
    const int64_t before = k->n ? k->list[k->n - 1] : 0;
    m->parent = -1;
    if (field_number(fields, "id", 1, INT64_C(1) << 40, &m->number, p))
        return -1;
    if (m->number <= before)
        return fault_set(p, HISTORY_BAD_VALUE, "id",
                         "id: message %" PRId64 " comes after %" PRId64 ", expected ascending ids",
                         m->number, before);
    if (field_presence(fields, "parent_id") == GIVEN &&
        field_number(fields, "parent_id", 1, INT64_C(1) << 40, &m->parent, p))
        return -1;
    if (m->parent >= 0 && !has_number(k, m->parent))
        return fault_set(p, HISTORY_BAD_VALUE, "parent_id",
                         "parent_id: message %" PRId64 " has the parent %" PRId64 ", which does not come before it",
                         m->number, m->parent);
    k->list[k->n++] = m->number;
    return 0;
}

static int import_message(struct history *h, struct owner *o, struct conversation_row *c, const json_t *fields,
                          struct numbers *k, struct history_problem *p)
{
    struct message_row m = { .role = -1, .tokens = -1, .latency = -1, .metadata = "{}", .created = c->updated };
    if (!json_is_object(fields))
        return fault_set(p, HISTORY_BAD_VALUE, "messages", "messages: found %s, expected objects", js_kind(fields));
    json_t *text = json_array();
    int rc = tree_fields(fields, &m, k, p) || message_fields(fields, &m, text, p) ||
             time_field(fields, "created_at", &m.created, p);
    if (!rc && (m.role < 0 || !m.content))
        rc = fault_set(p, HISTORY_BAD_VALUE, m.content ? "role" : "content", "messages: one has no %s",
                       m.content ? "role" : "content");
    if (!rc)
        rc = message_insert(h, o, c, &m, c->updated, p);
    json_decref(text);
    return rc ? -1 : 0;
}

static int import_messages(struct history *h, struct owner *o, struct conversation_row *c, const json_t *list,
                           struct numbers *k, struct history_problem *p)
{
    size_t i;
    json_t *m;
    if (!json_is_array(list))
        return fault_set(p, HISTORY_BAD_VALUE, "messages", "messages: found %s, expected a list",
                         list ? js_kind(list) : "nothing");
    if (json_array_size(list) > HISTORY_MESSAGES)
        return fault_set(p, HISTORY_QUOTA, "messages", "messages: %zu, expected at most %d", json_array_size(list),
                         HISTORY_MESSAGES);
    if (!(k->list = malloc((json_array_size(list) + 1) * sizeof *k->list)))
        return fault_nomem(p);
    json_array_foreach(list, i, m)
        if (import_message(h, o, c, m, k, p))
            return -1;
    return 0;
}

/* Set active_leaf of the imported conversation; called after its messages have been added. */
static int import_active(struct history *h, struct conversation_row *c, const json_t *fields, const struct numbers *k,
                         struct history_problem *p)
{
    int64_t active = c->active;
    if (field_presence(fields, "active_leaf") == GIVEN &&
        field_number(fields, "active_leaf", 1, INT64_C(1) << 40, &active, p))
        return -1;
    if (active >= 0 && !has_number(k, active))
        return fault_set(p, HISTORY_BAD_VALUE, "active_leaf", "active_leaf: there is no message %" PRId64, active);
    c->active = active;
    return sql_run(h, sql_bind(h, SQL_CONVERSATION_COUNT, p, "iiiiiin", c->row, INT64_C(0), INT64_C(0), INT64_C(0),
                               c->updated, INT64_C(0), active), p);
}

static int exists(struct history *h, const struct owner *o, const char *id, struct history_problem *p)
{
    sqlite3_stmt *s = sql_bind(h, SQL_CONVERSATION_FIND, p, "it", o->id, id);
    const int rc = s ? sql_step(h, s, p) : -1;
    return rc == 1 ? fault_set(p, HISTORY_EXISTS, "id", "there is a conversation '%s' already", id) : rc;
}

/* The document's conversation; NULL with *p: it is not one of ours. */
static const json_t *conversation_of(const json_t *doc, struct history_problem *p)
{
    const json_t *conversation = json_object_get(doc, "conversation");
    const char *format = json_string_value(json_object_get(doc, "format"));
    const json_int_t version = json_integer_value(json_object_get(doc, "version"));
    if (!format || strcmp(format, HISTORY_FORMAT) != 0)
        fault_set(p, HISTORY_BAD_VALUE, "format", "format: expected \"" HISTORY_FORMAT "\", as an export has it");
    else if (version != HISTORY_VERSION)
        fault_set(p, HISTORY_BAD_VALUE, "version", "version: expected %d", HISTORY_VERSION);
    else if (!json_is_object(conversation))
        fault_set(p, HISTORY_BAD_VALUE, "conversation", "conversation: expected an object");
    else
        return conversation;
    return NULL;
}

static json_t *import(struct history *h, const char *owner, const json_t *doc, int copy, json_t *text,
                      struct numbers *k, struct history_problem *p)
{
    const json_t *fields = conversation_of(doc, p);
    struct conversation_row c = { .settings = "{}", .tags = "[]", .next_message = 1, .active = -1 };
    struct owner o;
    char id[HISTORY_ID + 1];
    c.created = c.updated = history_now_ms();
    c.id = id;
    if (!fields || conversation_fields(fields, &c, text, p) || time_field(fields, "created_at", &c.created, p) ||
        time_field(fields, "updated_at", &c.updated, p) ||
        (copy ? conversation_new_id(id, p) : id_field(fields, &c.id, p)) ||
        owner_find(h, owner, 1, &o, p) < 0 || exists(h, &o, c.id, p) || owner_next(h, &o, &c.row, p))
        return NULL;
    c.titled = strcmp(c.title, HISTORY_UNTITLED) != 0;
    c.bytes = conversation_bytes(&c);
    if (conversation_insert(h, &o, &c, p) ||
        import_messages(h, &o, &c, json_object_get(doc, "messages"), k, p) || import_active(h, &c, fields, k, p) ||
        conversation_by_row(h, c.row, &c, p))
        return NULL;
    json_t *out = conversation_json(&c);
    if (!out)
        fault_nomem(p);
    return out;
}

json_t *history_import(struct history *h, const char *owner, const json_t *doc, int copy, struct history_problem *p)
{
    struct numbers k = { .list = NULL };
    const char *format = json_string_value(json_object_get(doc, "format"));
    const char *content = json_string_value(json_object_get(doc, "content"));
    const int is_markdown = format && content && strcmp(format, "markdown") == 0;
    if (is_markdown || (format && foreign_is(format))) {        /* without an id of our form: make a new one */
        json_t *own = is_markdown ? markdown_read(h, content, p)
                                  : foreign_document(format, json_object_get(doc, "conversation"), p),
               *made = own ? history_import(h, owner, own, 1, p) : NULL;
        json_decref(own);
        return made;
    }
    if (sql_begin(h, 1, p))
        return NULL;
    json_t *text = json_array(), *out = import(h, owner, doc, copy, text, &k, p);
    out = sql_end_json(h, out, p);
    json_decref(text);
    free(k.list);
    return out;
}
