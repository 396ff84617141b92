/* conversations.c - create, list, change and delete conversations, and count what owners have. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "libcommon/base/json.h"
#include "libcommon/base/utf8.h"
#include "libcommon/history/internal.h"

enum { ROW_BYTES = 100 };               /* size of a row without its texts, for the quota */

/* ---- owners ---- */

int owner_find(struct history *h, const char *name, int make, struct owner *o, struct history_problem *p)
{
    sqlite3_stmt *s = sql_bind(h, SQL_OWNER_FIND, p, "t", name);
    const int rc = s ? sql_step(h, s, p) : -1;
    memset(o, 0, sizeof *o);
    if (rc == 0 && make) {
        if (sql_run(h, sql_bind(h, SQL_OWNER_ADD, p, "t", name), p))
            return -1;
        *o = (struct owner){ .id = sqlite3_last_insert_rowid(h->db), .next = 1 };
        return 1;
    }
    if (rc == 1)
        *o = (struct owner){ .id = sqlite3_column_int64(s, 0), .conversations = sqlite3_column_int64(s, 1),
                             .messages = sqlite3_column_int64(s, 2), .tokens = sqlite3_column_int64(s, 3),
                             .bytes = sqlite3_column_int64(s, 4), .next = sqlite3_column_int64(s, 5) };
    if (s)
        sqlite3_reset(s);
    return rc;
}

int owner_next(struct history *h, struct owner *o, int64_t *row, struct history_problem *p)
{
    *row = o->id << OWNER_SHIFT | o->next++;
    return sql_run(h, sql_bind(h, SQL_OWNER_NEXT, p, "i", o->id), p);
}

int owner_count(struct history *h, int64_t id, int conversations, int64_t messages, int64_t tokens, int64_t bytes,
                struct history_problem *p)
{
    return sql_run(h, sql_bind(h, SQL_OWNER_COUNT, p, "iiiii", id, (int64_t)conversations, messages, tokens, bytes), p);
}

int owner_has_room(const struct history *h, const struct owner *o, int64_t bytes, struct history_problem *p)
{
    if (bytes <= 0 || o->bytes + bytes <= h->limits.bytes)
        return 0;
    return fault_set(p, HISTORY_QUOTA, NULL, "the history holds %" PRId64 " bytes, and %" PRId64
                     " more are over its limit of %" PRId64 ": delete conversations",
                     o->bytes, bytes, h->limits.bytes);
}

/* ---- rows ---- */

static const char *text_of(sqlite3_stmt *s, int column) { return (const char *)sqlite3_column_text(s, column); }

static int64_t number_of(sqlite3_stmt *s, int column)
{
    return sqlite3_column_type(s, column) == SQLITE_NULL ? -1 : sqlite3_column_int64(s, column);
}

void conversation_read(sqlite3_stmt *s, struct conversation_row *c)
{
    *c = (struct conversation_row){
        .row = sqlite3_column_int64(s, 0), .id = text_of(s, 1), .title = text_of(s, 2),
        .titled = sqlite3_column_int(s, 3), .model = text_of(s, 4), .system_prompt = text_of(s, 5),
        .settings = text_of(s, 6), .folder = text_of(s, 7), .tags = text_of(s, 8), .pinned = sqlite3_column_int(s, 9),
        .created = sqlite3_column_int64(s, 10), .updated = sqlite3_column_int64(s, 11),
        .messages = sqlite3_column_int64(s, 12), .tokens = sqlite3_column_int64(s, 13),
        .bytes = sqlite3_column_int64(s, 14), .next_message = sqlite3_column_int64(s, 15), .active = number_of(s, 16),
    };
}

json_t *conversation_json(const struct conversation_row *c)
{
    json_t *settings = json_loads(c->settings ? c->settings : "{}", 0, NULL),
           *tags = json_loads(c->tags ? c->tags : "[]", 0, NULL);
    return json_pack("{s:s, s:s, s:s?, s:s?, s:o, s:s?, s:o, s:b, s:o, s:o, s:I, s:I, s:o}", "id", c->id, "title",
                     c->title, "model", c->model, "system_prompt", c->system_prompt, "settings",
                     settings ? settings : json_object(), "folder", c->folder, "tags", tags ? tags : json_array(),
                     "pinned", c->pinned, "created_at", js_time(c->created), "updated_at", js_time(c->updated),
                     "message_count", (json_int_t)c->messages, "total_tokens", (json_int_t)c->tokens, "active_leaf",
                     c->active < 0 ? json_null() : json_integer((json_int_t)c->active));
}

/* conversation_json, or NULL with *p. */
static json_t *json_or_nomem(const struct conversation_row *c, struct history_problem *p)
{
    json_t *j = conversation_json(c);
    if (!j)
        fault_nomem(p);
    return j;
}

static int no_conversation(const char *id, struct history_problem *p)
{
    return fault_set(p, HISTORY_NOT_FOUND, NULL, "there is no conversation '%.40s'", id);
}

int conversation_find(struct history *h, const char *owner, const char *id, struct owner *o, struct conversation_row *c,
                      struct history_problem *p)
{
    const int found = owner_find(h, owner, 0, o, p);
    sqlite3_stmt *s = found > 0 ? sql_bind(h, SQL_CONVERSATION_FIND, p, "it", o->id, id) : NULL;
    const int rc = s ? sql_step(h, s, p) : found;
    if (rc == 0)
        return no_conversation(id, p);
    if (rc == 1)
        conversation_read(s, c);
    return rc < 0 ? -1 : 0;
}

int conversation_by_row(struct history *h, int64_t row, struct conversation_row *c, struct history_problem *p)
{
    sqlite3_stmt *s = sql_bind(h, SQL_CONVERSATION_BY_ID, p, "i", row);
    const int rc = s ? sql_step(h, s, p) : -1;
    if (rc == 1)
        conversation_read(s, c);
    return rc == 1 ? 0 : rc < 0 ? -1 : no_conversation("", p);
}

int64_t text_size(const char *text) { return text ? (int64_t)strlen(text) : 0; }

int64_t conversation_bytes(const struct conversation_row *c)
{
    return ROW_BYTES + text_size(c->title) + text_size(c->model) + text_size(c->system_prompt) +
           text_size(c->settings) +
           text_size(c->folder) + text_size(c->tags);
}

/* ---- the index of titles ---- */

static int index_title(struct history *h, enum statement which, int64_t row, const char *title,
                       struct history_problem *p)
{
    char *words = words_of(title, strlen(title));
    const int rc = words ? sql_run(h, sql_bind(h, which, p, "it", row, words), p) : fault_nomem(p);
    free(words);
    return rc;
}

int conversation_retitle(struct history *h, const struct conversation_row *c, const char *title,
                         struct history_problem *p)
{
    return (c->title && index_title(h, SQL_TITLE_DROP, c->row, c->title, p)) ||
           index_title(h, SQL_TITLE_ADD, c->row, title, p) ? -1 : 0;
}

/* ---- fields ---- */

static int tags_field(const json_t *fields, json_t *text, const char **out, struct history_problem *p)
{
    const json_t *tags = json_object_get(fields, "tags");
    const size_t n = json_array_size(tags);
    if (n > HISTORY_TAGS)
        return fault_set(p, HISTORY_TOO_LARGE, "tags", "tags: %zu, expected at most %d", n, HISTORY_TAGS);
    for (size_t i = 0; i < n; i++) {
        const json_t *t = json_array_get(tags, i);
        if (!json_is_string(t) || !json_string_length(t) || json_string_length(t) > HISTORY_TAG)
            return fault_set(p, HISTORY_BAD_VALUE, "tags", "tags: number %zu is no string of 1 to %d bytes", i + 1,
                             HISTORY_TAG);
        for (size_t k = 0; k < i; k++)
            if (json_equal(t, json_array_get(tags, k)))
                return fault_set(p, HISTORY_BAD_VALUE, "tags", "tags: '%.64s' comes twice", json_string_value(t));
    }
    return field_json(fields, "tags", 1, HISTORY_SETTINGS, text, out, p);
}

int conversation_fields(const json_t *fields, struct conversation_row *c, json_t *text, struct history_problem *p)
{
    static const struct { const char *name; size_t at; size_t least, most; } texts[] = {
        { "title", offsetof(struct conversation_row, title), 1, HISTORY_TITLE },
        { "model", offsetof(struct conversation_row, model), 1, HISTORY_NAME },
        { "system_prompt", offsetof(struct conversation_row, system_prompt), 0, HISTORY_SYSTEM },
        { "folder", offsetof(struct conversation_row, folder), 1, HISTORY_NAME },
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const char **to = (const char **)((char *)c + texts[i].at);
        const enum presence there = field_presence(fields, texts[i].name);
        if (there == GIVEN && field_text(fields, texts[i].name, texts[i].least, texts[i].most, to, p))
            return -1;
        if (there == GIVEN_NULL)
            *to = NULL;
        if (i == 0 && there != ABSENT)
            c->titled = there == GIVEN;
    }
    if (!c->title)
        c->title = HISTORY_UNTITLED;
    if (field_presence(fields, "settings") == GIVEN_NULL)
        c->settings = "{}";
    if (field_presence(fields, "tags") == GIVEN_NULL)
        c->tags = "[]";
    if (field_presence(fields, "pinned") == GIVEN_NULL)
        c->pinned = 0;
    return (field_presence(fields, "settings") == GIVEN &&
            field_json(fields, "settings", 0, HISTORY_SETTINGS, text, &c->settings, p)) ||
           (field_presence(fields, "tags") == GIVEN && tags_field(fields, text, &c->tags, p)) ||
           (field_presence(fields, "pinned") == GIVEN && field_bool(fields, "pinned", &c->pinned, p)) ? -1 : 0;
}

/* ---- create ---- */

int conversation_new_id(char out[HISTORY_ID + 1], struct history_problem *p)
{
    uint64_t n;
    if (getrandom(&n, sizeof n, 0) != (ssize_t)sizeof n)
        return fault_set(p, HISTORY_UNAVAILABLE, NULL, "no random numbers");
    snprintf(out, HISTORY_ID + 1, "%016" PRIx64, n);
    return 0;
}

int conversation_insert(struct history *h, struct owner *o, const struct conversation_row *given,
                        struct history_problem *p)
{
    struct conversation_row c = *given;
    if (o->conversations >= h->limits.conversations)
        return fault_set(p, HISTORY_QUOTA, NULL,
                         "the history holds %" PRId64 " conversations, expected at most %" PRId64 ": delete some",
                         o->conversations, h->limits.conversations);
    if (owner_has_room(h, o, c.bytes, p) ||
        sql_run(h, sql_bind(h, SQL_CONVERSATION_ADD, p, "iittitttttiiii", c.row, o->id, c.id, c.title,
                            (int64_t)c.titled, c.model, c.system_prompt, c.settings, c.folder, c.tags,
                            (int64_t)c.pinned, c.created, c.updated, c.bytes), p))
        return -1;
    c.title = NULL;                     /* no title is in the index yet */
    return conversation_retitle(h, &c, given->title, p) || owner_count(h, o->id, 1, 0, 0, c.bytes, p) ? -1 : 0;
}

static json_t *create(struct history *h, const struct history_change *x, struct history_problem *p)
{
    struct conversation_row c = { .settings = "{}", .tags = "[]", .next_message = 1, .active = -1 };
    struct owner o;
    char id[HISTORY_ID + 1];
    c.created = c.updated = history_now_ms();
    c.id = id;
    if (conversation_fields(x->fields, &c, x->text, p) || conversation_new_id(id, p) ||
        owner_find(h, x->owner, 1, &o, p) < 0 || owner_next(h, &o, &c.row, p))
        return NULL;
    c.bytes = conversation_bytes(&c);
    return conversation_insert(h, &o, &c, p) ? NULL : json_or_nomem(&c, p);
}

json_t *history_create(struct history *h, const char *owner, const json_t *fields, struct history_problem *p)
{
    return sql_write(h, create, (struct history_change){ .owner = owner, .fields = fields }, p);
}

/* ---- read ---- */

json_t *history_get(struct history *h, const char *owner, const char *id, struct history_problem *p)
{
    struct conversation_row c;
    struct owner o;
    if (sql_begin(h, 0, p))
        return NULL;
    return sql_end_json(h, conversation_find(h, owner, id, &o, &c, p) == 0 ? json_or_nomem(&c, p) : NULL, p);
}

static json_t *empty_list(int64_t total, const struct history_filter *f)
{
    return json_pack("{s:[], s:I, s:i, s:I}", "conversations", "total", (json_int_t)total, "limit", f->limit, "offset",
                     (json_int_t)f->offset);
}

/* The number of conversations that match; -1 with *p. */
static int64_t count_some(struct history *h, const struct owner *o, const struct history_filter *f,
                          struct history_problem *p)
{
    if (!f->folder && !f->tag)
        return o->conversations;
    sqlite3_stmt *s = sql_bind(h, SQL_CONVERSATION_COUNT_SOME, p, "itt", o->id, f->folder, f->tag);
    return s && sql_step(h, s, p) == 1 ? sqlite3_column_int64(s, 0) : -1;
}

static json_t *list(struct history *h, const char *owner, const struct history_filter *f, struct history_problem *p)
{
    struct owner o;
    struct conversation_row c;
    size_t bytes = 0;
    int rc;
    if (owner_find(h, owner, 0, &o, p) < 0)
        return NULL;
    const int64_t total = count_some(h, &o, f, p);
    json_t *out = total < 0 ? NULL : empty_list(total, f), *all = json_object_get(out, "conversations");
    sqlite3_stmt *s = !out ? NULL : f->folder || f->tag
                      ? sql_bind(h, SQL_CONVERSATION_LIST_SOME, p, "iiitt", o.id, (int64_t)f->limit, f->offset,
                                 f->folder, f->tag)
                      : sql_bind(h, SQL_CONVERSATION_LIST, p, "iii", o.id, (int64_t)f->limit, f->offset);
    while ((rc = s ? sql_step(h, s, p) : -1) == 1) {
        conversation_read(s, &c);
        bytes += (size_t)conversation_bytes(&c) * 8 + 2048;
        if (ask_memory(h, bytes, p) || json_array_append_new(all, json_or_nomem(&c, p)) != 0) {
            rc = -1;
            break;
        }
    }
    if (rc == 0)
        return out;
    json_decref(out);
    return NULL;
}

json_t *history_list(struct history *h, const char *owner, const struct history_filter *f, struct history_problem *p)
{
    if (sql_begin(h, 0, p))
        return NULL;
    return sql_end_json(h, list(h, owner, f, p), p);
}

static int find_prefix(struct history *h, const char *owner, const char *prefix, char id[HISTORY_ID + 1],
                       struct history_problem *p)
{
    struct owner o;
    char after[HISTORY_ID + 8];
    sqlite3_stmt *s;
    if (owner_find(h, owner, 0, &o, p) < 0)
        return -1;
    snprintf(after, sizeof after, "%.16s\x7f", prefix);
    s = *prefix ? sql_bind(h, SQL_CONVERSATION_PREFIX, p, "itt", o.id, prefix, after)
                : sql_bind(h, SQL_CONVERSATION_NEWEST, p, "i", o.id);
    int rc = s ? sql_step(h, s, p) : -1;
    if (rc == 0)
        return *prefix ? no_conversation(prefix, p)
                       : fault_set(p, HISTORY_NOT_FOUND, NULL, "no conversation is recorded yet; single prompts are not");
    if (rc < 0)
        return -1;
    snprintf(id, HISTORY_ID + 1, "%s", text_of(s, 0));
    rc = sql_step(h, s, p);
    return rc == 1 ? fault_set(p, HISTORY_NOT_FOUND, NULL, "the ids of several conversations begin with '%.40s'",
                               prefix)
                   : rc;
}

int history_find(struct history *h, const char *owner, const char *prefix, char id[HISTORY_ID + 1],
                 struct history_problem *p)
{
    if (sql_begin(h, 0, p))
        return -1;
    return sql_end(h, find_prefix(h, owner, prefix, id, p), p);
}

/* ---- change ---- */

/* active_leaf of an update: a message of the conversation. */
static int active_field(struct history *h, const json_t *fields, struct conversation_row *c, struct history_problem *p)
{
    int64_t number;
    const enum presence there = field_presence(fields, "active_leaf");
    if (there == ABSENT)
        return 0;
    if (there == GIVEN_NULL)
        return fault_set(p, HISTORY_BAD_VALUE, "active_leaf", "active_leaf: found null, expected the id of a message");
    if (field_number(fields, "active_leaf", 1, INT64_C(1) << 40, &number, p))
        return -1;
    sqlite3_stmt *s = sql_bind(h, SQL_MESSAGE_PARENT, p, "ii", c->row, number);
    const int rc = s ? sql_step(h, s, p) : -1;
    if (rc == 0)
        return fault_set(p, HISTORY_BAD_VALUE, "active_leaf", "active_leaf: the conversation has no message %" PRId64,
                         number);
    c->active = number;
    return rc < 0 ? -1 : 0;
}

static json_t *update(struct history *h, const struct history_change *x, struct history_problem *p)
{
    struct conversation_row c, old;
    struct owner o;
    if (conversation_find(h, x->owner, x->id, &o, &c, p))
        return NULL;
    old = c;
    if (conversation_fields(x->fields, &c, x->text, p) || active_field(h, x->fields, &c, p))
        return NULL;
    const int64_t more = conversation_bytes(&c) - conversation_bytes(&old);
    c.bytes += more;
    if (owner_has_room(h, &o, more, p) || (strcmp(old.title, c.title) != 0 &&
                                           conversation_retitle(h, &old, c.title, p)) ||
        sql_run(h, sql_bind(h, SQL_CONVERSATION_SET, p, "ititttttiin", c.row, c.title, (int64_t)c.titled, c.model,
                            c.system_prompt, c.settings, c.folder, c.tags, (int64_t)c.pinned, c.bytes, c.active), p) ||
        owner_count(h, o.id, 0, 0, 0, more, p))
        return NULL;
    return json_or_nomem(&c, p);
}

json_t *history_update(struct history *h, const char *owner, const char *id, const json_t *fields,
                       struct history_problem *p)
{
    return sql_write(h, update, (struct history_change){ .owner = owner, .id = id, .fields = fields }, p);
}

/* ---- delete ---- */

/* Delete a row, its messages and their index. */
static int delete_row(struct history *h, int64_t owner, int64_t row, struct history_problem *p)
{
    struct conversation_row c;
    int rc;
    sqlite3_stmt *s = sql_bind(h, SQL_MESSAGE_TEXTS, p, "i", row);
    while ((rc = s ? sql_step(h, s, p) : -1) == 1) {
        const char *content = text_of(s, 1);
        char *words = content ? words_of(content, strlen(content)) : NULL;
        const int bad = words ? sql_run(h, sql_bind(h, SQL_TEXT_DROP, p, "it", sqlite3_column_int64(s, 0), words), p)
                              : fault_nomem(p);
        free(words);
        if (bad)
            return -1;
    }
    return rc || conversation_by_row(h, row, &c, p) || index_title(h, SQL_TITLE_DROP, row, c.title, p) ||
           owner_count(h, owner, -1, -c.messages, -c.tokens, -c.bytes, p) ||
           sql_run(h, sql_bind(h, SQL_CONVERSATION_DELETE, p, "i", row), p) ? -1 : 0;
}

int history_delete(struct history *h, const char *owner, const char *id, struct history_problem *p)
{
    struct conversation_row c;
    struct owner o;
    if (sql_begin(h, 1, p))
        return -1;
    return sql_end(h, conversation_find(h, owner, id, &o, &c, p) || delete_row(h, o.id, c.row, p) ? -1 : 0, p);
}

static int delete_many(struct history *h, const char *owner, int64_t before_ms, int most, struct history_problem *p)
{
    struct { int64_t row, owner; } found[64];
    struct owner o = { 0 };
    int n = 0, rc = 0;
    if (owner && owner_find(h, owner, 0, &o, p) < 0)
        return -1;
    if (most > (int)(sizeof found / sizeof *found))
        most = sizeof found / sizeof *found;
    sqlite3_stmt *s = owner ? sql_bind(h, SQL_CONVERSATIONS_OF, p, "ii", o.id, (int64_t)most)
                            : sql_bind(h, SQL_CONVERSATIONS_OLD, p, "ii", before_ms, (int64_t)most);
    while (n < most && (rc = s ? sql_step(h, s, p) : -1) == 1) {
        found[n].row = sqlite3_column_int64(s, 0);
        found[n++].owner = sqlite3_column_int64(s, 1);
    }
    if (n < most && rc < 0)
        return -1;
    for (int i = 0; i < n; i++)
        if (delete_row(h, found[i].owner, found[i].row, p))
            return -1;
    return n;
}

int history_delete_many(struct history *h, const char *owner, int64_t before_ms, int most, struct history_problem *p)
{
    if (sql_begin(h, 1, p))
        return -1;
    const int n = delete_many(h, owner, before_ms, most, p);
    if (sql_end(h, n < 0 ? -1 : 0, p))
        return -1;
    if (n > 0)                          /* return free pages to the disk; a failure does not matter */
        sqlite3_exec(h->db, "PRAGMA incremental_vacuum(1000)", NULL, NULL, NULL);
    return n;
}

json_t *history_stats(struct history *h, const char *owner, struct history_problem *p)
{
    struct owner o;
    if (owner_find(h, owner, 0, &o, p) < 0)
        return NULL;
    json_t *out = json_pack("{s:I, s:I, s:I, s:I, s:{s:I, s:I, s:i}}", "conversations", (json_int_t)o.conversations,
                            "messages", (json_int_t)o.messages, "total_tokens", (json_int_t)o.tokens, "bytes",
                            (json_int_t)o.bytes, "limits", "conversations", (json_int_t)h->limits.conversations,
                            "bytes", (json_int_t)h->limits.bytes, "message_bytes", HISTORY_MESSAGE);
    if (!out)
        fault_nomem(p);
    return out;
}
