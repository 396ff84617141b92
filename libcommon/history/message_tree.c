/* message_tree.c - add, read, change and delete messages; the tree that they form. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/base/utf8.h"
#include "libcommon/history/internal.h"

enum { MESSAGE_ROW_BYTES = 100, TITLE_CHARACTERS = 60 };

/* ---- rows ---- */

static const char *const roles[] = { "user", "assistant", "system", "tool" };   /* numbers in the file */

int message_role(const char *name)
{
    for (int i = 0; i < (int)(sizeof roles / sizeof *roles); i++)
        if (strcmp(roles[i], name) == 0)
            return i;
    return -1;
}

const char *message_role_name(int role)
{
    return role >= 0 && role < (int)(sizeof roles / sizeof *roles) ? roles[role] : "user";
}

static int64_t number_of(sqlite3_stmt *s, int column)
{
    return sqlite3_column_type(s, column) == SQLITE_NULL ? -1 : sqlite3_column_int64(s, column);
}

void message_read(sqlite3_stmt *s, struct message_row *m)
{
    *m = (struct message_row){
        .row = sqlite3_column_int64(s, 0), .number = sqlite3_column_int64(s, 1), .parent = number_of(s, 2),
        .role = sqlite3_column_int(s, 3), .content = (const char *)sqlite3_column_text(s, 4), .tokens = number_of(s, 5),
        .latency = sqlite3_column_type(s, 6) == SQLITE_NULL ? -1 : sqlite3_column_double(s, 6),
        .metadata = (const char *)sqlite3_column_text(s, 7), .created = sqlite3_column_int64(s, 8),
    };
    if (!m->content)
        m->content = "";
    if (!m->metadata)
        m->metadata = "{}";
}

int64_t message_bytes(const struct message_row *m)
{
    return MESSAGE_ROW_BYTES + text_size(m->content) + text_size(m->metadata);
}

json_t *message_json(const struct message_row *m, const char *conversation)
{
    json_t *metadata = json_loads(m->metadata, 0, NULL);
    json_t *j = json_pack("{s:I, s:o, s:s, s:s, s:o, s:o, s:o, s:o}", "id", (json_int_t)m->number, "parent_id",
                          m->parent < 0 ? json_null() : json_integer((json_int_t)m->parent), "role",
                          message_role_name(m->role), "content", m->content, "tokens",
                          m->tokens < 0 ? json_null() : json_integer((json_int_t)m->tokens), "latency_ms",
                          m->latency < 0 ? json_null() : json_real(m->latency), "metadata",
                          metadata ? metadata : json_object(), "created_at", js_time(m->created));
    if (j && conversation && json_object_set_new(j, "conversation_id", json_string(conversation)) != 0) {
        json_decref(j);
        return NULL;
    }
    return j;
}

static json_t *json_or_nomem(const struct message_row *m, const char *conversation, struct history_problem *p)
{
    json_t *j = message_json(m, conversation);
    if (!j)
        fault_nomem(p);
    return j;
}

/* Read a message of the conversation into *m.  0, or -1 with *p: there is none. */
static int find_message(struct history *h, const struct conversation_row *c, int64_t number, struct message_row *m,
                        struct history_problem *p)
{
    sqlite3_stmt *s = sql_bind(h, SQL_MESSAGE_FIND, p, "ii", c->row, number);
    const int rc = s ? sql_step(h, s, p) : -1;
    if (rc == 1)
        message_read(s, m);
    return rc == 1 ? 0 : rc < 0 ? -1 : fault_set(p, HISTORY_NOT_FOUND, NULL, "the conversation has no message %" PRId64,
                                                 number);
}

/* ---- fields ---- */

int message_fields(const json_t *fields, struct message_row *m, json_t *text, struct history_problem *p)
{
    const char *role;
    const json_t *latency = json_object_get(fields, "latency_ms");
    if (field_presence(fields, "role") != ABSENT) {
        if (field_text(fields, "role", 1, 64, &role, p))
            return -1;
        if ((m->role = message_role(role)) < 0)
            return fault_set(p, HISTORY_BAD_VALUE, "role", "role: '%.40s', expected user, assistant, system or tool",
                             role);
    }
    if (field_presence(fields, "content") != ABSENT &&
        field_text(fields, "content", 0, HISTORY_MESSAGE, &m->content, p))
        return -1;
    if (field_presence(fields, "tokens") == GIVEN_NULL)
        m->tokens = -1;
    if (field_presence(fields, "tokens") == GIVEN && field_number(fields, "tokens", 0, INT64_C(1) << 40, &m->tokens, p))
        return -1;
    if (latency && !json_is_null(latency) &&
        !(json_is_number(latency) && json_number_value(latency) >= 0 && json_number_value(latency) < 1e15))
        return fault_set(p, HISTORY_BAD_VALUE, "latency_ms", "latency_ms: expected a number of milliseconds, or null");
    if (latency)
        m->latency = json_is_null(latency) ? -1 : json_number_value(latency);
    if (field_presence(fields, "metadata") == GIVEN_NULL)
        m->metadata = "{}";
    return field_presence(fields, "metadata") == GIVEN &&
           field_json(fields, "metadata", 0, HISTORY_METADATA, text, &m->metadata, p) ? -1 : 0;
}

static int index_message(struct history *h, enum statement which, const struct message_row *m,
                         struct history_problem *p)
{
    char *words = words_of(m->content, strlen(m->content));
    const int rc = words ? sql_run(h, sql_bind(h, which, p, "it", m->row, words), p) : fault_nomem(p);
    free(words);
    return rc;
}

/* ---- add ---- */

/* Give a conversation without a title one: the first line of its first question. */
static int title_from(struct history *h, struct conversation_row *c, const char *content, struct history_problem *p)
{
    content += strspn(content, " \t\r\n");
    size_t n = strcspn(content, "\r\n");
    const size_t most = utf8_offset(content, n, TITLE_CHARACTERS);
    char title[HISTORY_TITLE + 1];
    n = most < n ? most : n;
    if (!n || n > HISTORY_TITLE)
        return 0;
    memcpy(title, content, n);
    title[n] = '\0';
    if (conversation_retitle(h, c, title, p))
        return -1;
    const int64_t more = (int64_t)n - text_size(c->title);
    c->bytes += more;
    return sql_run(h, sql_bind(h, SQL_CONVERSATION_SET, p, "ititttttiin", c->row, title, INT64_C(1), c->model,
                               c->system_prompt, c->settings, c->folder, c->tags, (int64_t)c->pinned, c->bytes,
                               c->active), p) ||
           owner_count(h, c->row >> OWNER_SHIFT, 0, 0, 0, more, p) ? -1 : 0;
}

int message_insert(struct history *h, struct owner *o, struct conversation_row *c, struct message_row *m, int64_t now,
                   struct history_problem *p)
{
    const int64_t bytes = message_bytes(m), tokens = m->tokens > 0 ? m->tokens : 0;
    if (c->messages >= HISTORY_MESSAGES)
        return fault_set(p, HISTORY_QUOTA, NULL, "the conversation holds %d messages, expected at most that many",
                         HISTORY_MESSAGES);
    if (owner_has_room(h, o, bytes, p) || owner_next(h, o, &m->row, p) ||
        sql_run(h, sql_bind(h, SQL_MESSAGE_ADD, p, "iiinitnDti", m->row, c->row, m->number,
                            m->parent, (int64_t)m->role, m->content, m->tokens, m->latency, m->metadata, m->created),
                            p))
        return -1;
    c->active = m->number;
    c->messages++;
    c->bytes += bytes;
    o->bytes += bytes;
    return index_message(h, SQL_TEXT_ADD, m, p) ||
           sql_run(h, sql_bind(h, SQL_CONVERSATION_COUNT, p, "iiiiiin", c->row, INT64_C(1), tokens, bytes, now,
                               m->number + 1, c->active), p) ||
           owner_count(h, o->id, 0, 1, tokens, bytes, p) ? -1 : 0;
}

/* Check that the parent exists.  0, or -1 with *p, which names parent_id. */
static int check_parent(struct history *h, const struct conversation_row *c, int64_t parent, struct history_problem *p)
{
    sqlite3_stmt *s = sql_bind(h, SQL_MESSAGE_PARENT, p, "ii", c->row, parent);
    const int rc = s ? sql_step(h, s, p) : -1;
    return rc == 1 ? 0 : rc < 0 ? -1 : fault_set(p, HISTORY_BAD_VALUE, "parent_id",
                                                 "parent_id: the conversation has no message %" PRId64, parent);
}

static json_t *add(struct history *h, const struct history_change *x, struct history_problem *p)
{
    static const char *const needed[] = { "role", "content" };
    struct conversation_row c;
    struct owner o;
    struct message_row m = { .tokens = -1, .latency = -1, .content = "", .metadata = "{}" };
    const enum presence parent = field_presence(x->fields, "parent_id");
    for (size_t i = 0; i < 2; i++)
        if (field_presence(x->fields, needed[i]) == ABSENT) {
            fault_set(p, HISTORY_BAD_VALUE, needed[i], "%s: missing", needed[i]);
            return NULL;
        }
    if (message_fields(x->fields, &m, x->text, p) || conversation_find(h, x->owner, x->id, &o, &c, p))
        return NULL;
    m.parent = parent == GIVEN_NULL ? -1 : c.active;
    if (parent == GIVEN && (field_number(x->fields, "parent_id", 1, INT64_C(1) << 40, &m.parent, p) ||
                            check_parent(h, &c, m.parent, p)))
        return NULL;
    m.created = history_now_ms();
    m.number = c.next_message;
    if (message_insert(h, &o, &c, &m, m.created, p) ||
        (!c.titled && m.role == message_role("user") && title_from(h, &c, m.content, p)))
        return NULL;
    return json_or_nomem(&m, x->id, p);
}

json_t *history_add(struct history *h, const char *owner, const char *id, const json_t *fields,
                    struct history_problem *p)
{
    return sql_write(h, add, (struct history_change){ .owner = owner, .id = id, .fields = fields }, p);
}

/* ---- read ---- */

/* Memory of a message in an answer: its JSON tree and its text, escaped. */
static size_t answer_bytes(const struct message_row *m)
{
    size_t n = 0, controls = 0;
    for (const char *s = m->content; *s; s++, n++)
        controls += (unsigned char)*s < ' ' || *s == '"' || *s == '\\';
    return 2 * n + 6 * controls + 60 * strlen(m->metadata) + 2048;
}

/* Numbers of the messages from a root to `leaf`, malloc'd; *n of them.  NULL with *p. */
static int64_t *branch_to(struct history *h, const struct conversation_row *c, int64_t leaf, int64_t *n,
                          struct history_problem *p)
{
    int64_t *list = malloc((size_t)(c->messages + 1) * sizeof *list), k = c->messages;
    int rc = 1;
    *n = 0;
    if (!list) {
        fault_nomem(p);
        return NULL;
    }
    /* a parent has a smaller number than its children: this ends, whatever the file holds */
    for (int64_t at = leaf, before = INT64_MAX; at > 0 && at < before && k > 0;) {
        sqlite3_stmt *s = sql_bind(h, SQL_MESSAGE_PARENT, p, "ii", c->row, at);
        if ((rc = s ? sql_step(h, s, p) : -1) != 1)
            break;
        list[--k] = before = at;
        at = number_of(s, 0);
    }
    if (rc < 0) {
        free(list);
        return NULL;
    }
    *n = c->messages - k;
    memmove(list, list + k, (size_t)*n * sizeof *list);
    return list;
}

/* held: bytes of earlier pages of the same answer. */
struct page { json_t *messages; const char *id; size_t bytes, held; int n, limit, more; };

/* Add a message to the page.  1: it is full; 0: it has room; -1 with *p. */
static int page_add(struct history *h, struct page *page, const struct message_row *m, struct history_problem *p)
{
    page->bytes += answer_bytes(m);
    if (page->n == page->limit || (page->n && page->bytes > HISTORY_PAGE_BYTES)) {
        page->more = 1;
        return 1;
    }
    page->n++;
    if (ask_memory(h, page->held + page->bytes, p))
        return -1;
    json_t *j = json_or_nomem(m, page->id, p);
    return j && json_array_append_new(page->messages, j) == 0 ? 0 : -1;
}

static int page_active(struct history *h, const struct conversation_row *c, int64_t after, struct page *page,
                       struct history_problem *p)
{
    struct message_row m;
    int64_t n, *list = branch_to(h, c, c->active, &n, p);
    int rc = list ? 0 : -1;
    for (int64_t i = 0; i < n && rc == 0; i++)
        if (list[i] > after && (rc = find_message(h, c, list[i], &m, p)) == 0)
            rc = page_add(h, page, &m, p);
    free(list);
    return rc < 0 ? -1 : 0;
}

static int page_all(struct history *h, const struct conversation_row *c, int64_t after, struct page *page,
                    struct history_problem *p)
{
    struct message_row m;
    int rc, full = 0;
    sqlite3_stmt *s = sql_bind(h, SQL_MESSAGE_LIST, p, "ii", c->row, after);
    while (!full && (rc = s ? sql_step(h, s, p) : -1) == 1) {
        message_read(s, &m);
        full = page_add(h, page, &m, p);
    }
    return full == 1 || (!full && rc == 0) ? 0 : -1;
}

json_t *history_messages_in(struct history *h, const char *owner, const char *id, const struct history_page *want,
                            size_t *held, struct history_problem *p)
{
    struct conversation_row c;
    struct owner o;
    struct page page = { .id = id, .limit = want->limit, .held = *held };
    if (conversation_find(h, owner, id, &o, &c, p))
        return NULL;
    page.messages = json_array();
    if (want->active ? page_active(h, &c, want->after, &page, p) : page_all(h, &c, want->after, &page, p)) {
        json_decref(page.messages);
        return NULL;
    }
    *held += page.bytes;
    json_t *out = json_pack("{s:s, s:o, s:o, s:I, s:b}", "conversation_id", id, "messages", page.messages,
                            "active_leaf", c.active < 0 ? json_null() : json_integer((json_int_t)c.active), "total",
                            (json_int_t)c.messages, "more", page.more);
    if (!out)
        fault_nomem(p);
    return out;
}

json_t *history_messages(struct history *h, const char *owner, const char *id, const struct history_page *page,
                         struct history_problem *p)
{
    size_t held = 0;
    if (sql_begin(h, 0, p))
        return NULL;
    return sql_end_json(h, history_messages_in(h, owner, id, page, &held, p), p);
}

static json_t *message(struct history *h, const char *owner, const char *id, int64_t number, struct history_problem *p)
{
    struct conversation_row c;
    struct owner o;
    struct message_row m;
    return conversation_find(h, owner, id, &o, &c, p) || find_message(h, &c, number, &m, p) ||
           ask_memory(h, answer_bytes(&m), p) ? NULL : json_or_nomem(&m, id, p);
}

json_t *history_message(struct history *h, const char *owner, const char *id, int64_t number,
                        struct history_problem *p)
{
    if (sql_begin(h, 0, p))
        return NULL;
    return sql_end_json(h, message(h, owner, id, number, p), p);
}

/* ---- change ---- */

static json_t *edit(struct history *h, const struct history_change *x, struct history_problem *p)
{
    struct conversation_row c;
    struct owner o;
    struct message_row m, old;
    if (conversation_find(h, x->owner, x->id, &o, &c, p) || find_message(h, &c, x->number, &m, p))
        return NULL;
    old = m;
    if (message_fields(x->fields, &m, x->text, p))
        return NULL;
    const int64_t more = message_bytes(&m) - message_bytes(&old),
                  tokens = (m.tokens > 0 ? m.tokens : 0) - (old.tokens > 0 ? old.tokens : 0);
    const int is_new = m.content != old.content;
    m.role = old.role;
    if (owner_has_room(h, &o, more, p) || (is_new && index_message(h, SQL_TEXT_DROP, &old, p)) ||
        sql_run(h, sql_bind(h, SQL_MESSAGE_SET, p, "itnDt", m.row, m.content, m.tokens,
                            m.latency, m.metadata), p) ||
        (is_new && index_message(h, SQL_TEXT_ADD, &m, p)) ||
        sql_run(h, sql_bind(h, SQL_CONVERSATION_COUNT, p, "iiiiiin", c.row, INT64_C(0), tokens, more, history_now_ms(),
                            INT64_C(0), c.active), p) ||
        owner_count(h, o.id, 0, 0, tokens, more, p))
        return NULL;
    return json_or_nomem(&m, x->id, p);
}

json_t *history_edit(struct history *h, const char *owner, const char *id, int64_t number, const json_t *fields,
                     struct history_problem *p)
{
    return sql_write(h, edit, (struct history_change){ .owner = owner, .id = id, .number = number,
                                                       .fields = fields }, p);
}

/* ---- delete ---- */

struct message_node { int64_t number, parent; int gone; };

/* All messages of a conversation by number, malloc'd.  NULL with *p. */
static struct message_node *read_tree(struct history *h, const struct conversation_row *c, int64_t *n,
                                      struct history_problem *p)
{
    struct message_node *tree = malloc((size_t)(c->messages + 1) * sizeof *tree);
    sqlite3_stmt *s = tree ? sql_bind(h, SQL_MESSAGE_TREE, p, "i", c->row) : NULL;
    int rc = -1;
    *n = 0;
    if (!tree)
        fault_nomem(p);
    while (*n < c->messages && (rc = s ? sql_step(h, s, p) : -1) == 1)
        tree[(*n)++] = (struct message_node){ sqlite3_column_int64(s, 0), number_of(s, 1), 0 };
    if (rc >= 0 || (s && c->messages == 0))
        return tree;
    free(tree);
    return NULL;
}

static struct message_node *node_of(struct message_node *tree, int64_t n, int64_t number)
{
    for (int64_t low = 0, high = n; low < high;) {
        const int64_t at = (low + high) / 2;
        if (tree[at].number == number)
            return &tree[at];
        if (tree[at].number < number)
            low = at + 1;
        else
            high = at;
    }
    return NULL;
}

/* Returns the newest message that is not deleted and is `top` or below it (top -1: the newest of
 * all); -1 if there is none.  Parents come before their children in the tree. */
static int64_t newest_leaf(struct message_node *tree, int64_t n, int64_t top)
{
    int64_t leaf = -1;
    for (int64_t i = 0; i < n; i++) {
        const struct message_node *up = tree[i].parent < 0 ? NULL : node_of(tree, n, tree[i].parent);
        const int below = top < 0 || tree[i].number == top || (up && up->gone == 2);
        if (tree[i].gone == 1 || !below)
            continue;
        tree[i].gone = 2;               /* 2: the message stays, and is `top` or below it */
        leaf = tree[i].number;
    }
    return leaf;
}

/* Delete the marked messages. */
static int delete_marked(struct history *h, const struct conversation_row *c, const struct owner *o,
                         struct message_node *tree, int64_t n, int64_t active, struct history_problem *p)
{
    int64_t gone = 0, tokens = 0, bytes = 0;
    struct message_row m;
    for (int64_t i = 0; i < n; i++) {
        if (tree[i].gone != 1)
            continue;
        if (find_message(h, c, tree[i].number, &m, p) || index_message(h, SQL_TEXT_DROP, &m, p))
            return -1;
        gone++;
        tokens += m.tokens > 0 ? m.tokens : 0;
        bytes += message_bytes(&m);
        const int64_t row = m.row;
        if (sql_run(h, sql_bind(h, SQL_MESSAGE_DELETE, p, "i", row), p))
            return -1;
    }
    return sql_run(h, sql_bind(h, SQL_CONVERSATION_COUNT, p, "iiiiiin", c->row, -gone, -tokens, -bytes,
                               history_now_ms(), INT64_C(0), active), p) ||
           owner_count(h, o->id, 0, -gone, -tokens, -bytes, p) ? -1 : 0;
}

static int64_t remove_below(struct history *h, const char *owner, const char *id, int64_t number,
                            struct history_problem *p)
{
    struct conversation_row c;
    struct owner o;
    int64_t n = 0, gone = 0, rc = -1;
    if (conversation_find(h, owner, id, &o, &c, p))
        return -1;
    struct message_node *tree = read_tree(h, &c, &n, p);
    if (!tree)
        return -1;
    const struct message_node *top = number ? node_of(tree, n, number) : NULL;
    const int64_t parent = top ? top->parent : -1;
    if (number && !top) {
        fault_set(p, HISTORY_NOT_FOUND, NULL, "the conversation has no message %" PRId64, number);
        goto done;
    }
    for (int64_t i = 0; i < n; i++) {
        const struct message_node *up = tree[i].parent < 0 ? NULL : node_of(tree, n, tree[i].parent);
        tree[i].gone = !number || tree[i].number == number || (up && up->gone);
        gone += tree[i].gone;
    }
    const struct message_node *active = c.active < 0 ? NULL : node_of(tree, n, c.active);
    if (delete_marked(h, &c, &o, tree, n, active && !active->gone ? c.active : newest_leaf(tree, n, parent), p) == 0)
        rc = gone;
done:
    free(tree);
    return rc;
}

int64_t history_remove(struct history *h, const char *owner, const char *id, int64_t number, struct history_problem *p)
{
    if (sql_begin(h, 1, p))
        return -1;
    const int64_t n = remove_below(h, owner, id, number, p);
    return sql_end(h, n < 0 ? -1 : 0, p) ? -1 : n;
}
