/* chats_endpoints.c - turn requests to /api/chat into jobs; paths and queries are checked here. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/serve/chats/chats.h"

/* ---- queries ---- */

/* Read a whole number from the query string, or take the default.  0: refused, and the client has
 * the answer. */
static int query_number(struct server *s, struct conn *c, const char *name, int64_t least, int64_t most,
                        int64_t otherwise, int64_t *out)
{
    char text[32], *end;
    *out = otherwise;
    if (!http_query(conn_request(c), name, text, sizeof text))
        return 1;
    *out = strtoll(text, &end, 10);
    if (end != text && !*end && *out >= least && *out <= most)
        return 1;
    reply_refusal(s, c, 400, "out_of_range", "%s: '%.30s', expected a whole number from %lld to %lld", name, text,
                  (long long)least, (long long)most);
    return 0;
}

static int is_true(const struct conn *c, const char *name)
{
    char text[8];
    const char *v = http_query(conn_request(c), name, text, sizeof text);
    return v && (strcmp(v, "true") == 0 || strcmp(v, "1") == 0);
}

/* Check that a parameter of the query string is one of two words.  *second: it is the second.  0:
 * refused, and the client has the answer. */
static int query_choice(struct server *s, struct conn *c, const char *name, const char *first, const char *other,
                        int *second)
{
    char text[32];
    const char *v = http_query(conn_request(c), name, text, sizeof text);
    *second = v && strcmp(v, other) == 0;
    if (!v || *second || strcmp(v, first) == 0)
        return 1;
    reply_refusal(s, c, 400, "invalid_value", "%s: '%.30s', expected %s or %s", name, v, first, other);
    return 0;
}

/* ---- jobs ---- */

/* The owner of the conversations that a request can use: its key or, without a key, this
 * machine. */
static void owner_of(const struct access_record *record, char out[32])
{
    if (record && record->has_key)
        snprintf(out, 32, "key %lld", (long long)record->key.id);
    else
        strcpy(out, "");
}

/* Read the ids of a path "ID/messages/NUMBER".  0: no such message can exist, and the client has
 * the answer. */
static int read_ids(struct server *s, struct conn *c, const char *rest, struct chat_job *j)
{
    const size_t n = strcspn(rest, "/");
    const char *last = strrchr(rest + n, '/');
    char *end;
    snprintf(j->id, sizeof j->id, "%.*s", (int)(n < sizeof j->id ? n : sizeof j->id - 1), rest);
    if (j->work != CHATS_MESSAGE && j->work != CHATS_EDIT && j->work != CHATS_REMOVE)
        return 1;
    if (!last || strcmp(last, "/messages") == 0)        /* the path names all messages */
        return 1;
    j->number = strtoll(last + 1, &end, 10);
    if (last[1] >= '1' && last[1] <= '9' && !*end)
        return 1;
    reply_refusal(s, c, 404, "not_found", "there is no message '%.40s'", last + 1);
    return 0;
}

/* Make a job; NULL: refused, and the client has the answer. */
static struct chat_job *new_job(struct server *s, struct conn *c, const char *rest, enum chat_work work)
{
    struct chat_job *j = s->chats ? calloc(1, sizeof *j) : NULL;
    const struct access_record *record = conn_record(c);
    if (!s->chats) {
        reply_refusal(s, c, 404, "no_history", "no chat history is kept (--no-history)");
        return NULL;
    }
    if (!j) {
        reply_refusal(s, c, 503, NULL, "out of memory");
        return NULL;
    }
    j->exchange.kind = EXCHANGE_CHATS;
    j->s = s;
    j->conn = c;
    j->work = work;
    j->tenant = guard_tenant(record);
    j->hold = hold_for(s->account, j->tenant);
    owner_of(record, j->owner);
    if (read_ids(s, c, rest, j))
        return j;
    free(j);
    return NULL;
}

static void submit(struct server *s, struct conn *c, const char *rest, enum chat_work work)
{
    struct chat_job *j = new_job(s, c, rest, work);
    if (j)
        chats_submit(j);
}

/* Make a job with the request's body and submit it. */
static void submit_body(struct server *s, struct conn *c, const char *rest, enum chat_work work)
{
    struct chat_job *j = new_job(s, c, rest, work);
    struct problem pr;
    if (!j)
        return;
    const size_t size = conn_request(c)->body.size;
    record_prompt(s, conn_record(c), conn_request(c)->body.data, size);
    conn_take_body(c, &j->body);
    const enum hold_answer why = hold_set(&j->hold, j->body.room);
    j->copy = is_true(c, "copy");
    if (why == HOLD_OK) {
        chats_submit(j);
        return;
    }
    hold_problem(&j->hold, why, j->body.room, &pr);
    reply_problem(s, c, &pr);
    buf_release(&j->body);
    free(j);
}

#define PLAIN(name, work) \
    void handle_##name(struct server *s, struct conn *c, const char *rest) { submit(s, c, rest, work); }
#define BODY(name, work) \
    void handle_##name(struct server *s, struct conn *c, const char *rest) { submit_body(s, c, rest, work); }

PLAIN(chats_get, CHATS_GET)
PLAIN(chats_delete, CHATS_DELETE)
PLAIN(chats_message, CHATS_MESSAGE)
PLAIN(chats_remove, CHATS_REMOVE)
PLAIN(chats_remove_all, CHATS_REMOVE)
PLAIN(chats_stats, CHATS_STATS)
BODY(chats_create, CHATS_CREATE)
BODY(chats_update, CHATS_UPDATE)
BODY(chats_add, CHATS_ADD)
BODY(chats_edit, CHATS_EDIT)
BODY(chats_import, CHATS_IMPORT)

void handle_chats_delete_all(struct server *s, struct conn *c, const char *rest)
{
    if (is_true(c, "all"))
        submit(s, c, rest, CHATS_DELETE_ALL);
    else
        reply_refusal(s, c, 400, "missing", "all: expected ?all=true, which deletes every conversation");
}

void handle_chats_list(struct server *s, struct conn *c, const char *rest)
{
    int64_t limit, offset;
    if (!query_number(s, c, "limit", 1, 200, 50, &limit) ||
        !query_number(s, c, "offset", 0, INT64_C(1) << 40, 0, &offset))
        return;
    struct chat_job *j = new_job(s, c, rest, CHATS_LIST);
    if (!j)
        return;
    const struct { const char *name; char *text; size_t room; } filters[] = {
        { "folder", j->folder, sizeof j->folder }, { "tag", j->tag, sizeof j->tag },
    };
    for (int i = 0; i < 2; i++)
        if (http_query_has(conn_request(c), filters[i].name) &&
            !http_query(conn_request(c), filters[i].name, filters[i].text, filters[i].room)) {
            reply_refusal(s, c, 400, "invalid_value", "%s: expected at most %zu bytes of text", filters[i].name,
                          filters[i].room - 1);
            hold_release(&j->hold);
            free(j);
            return;
        }
    j->filter = (struct history_filter){ .folder = http_query(conn_request(c), "folder", j->folder, sizeof j->folder),
                                         .tag = http_query(conn_request(c), "tag", j->tag, sizeof j->tag),
                                         .limit = (int)limit, .offset = offset };
    chats_submit(j);
}

void handle_chats_messages(struct server *s, struct conn *c, const char *rest)
{
    int64_t limit, after;
    int active;
    if (!query_number(s, c, "limit", 1, 10000, 1000, &limit) ||
        !query_number(s, c, "after", 0, INT64_C(1) << 40, 0, &after) ||
        !query_choice(s, c, "branch", "all", "active", &active))
        return;
    struct chat_job *j = new_job(s, c, rest, CHATS_MESSAGES);
    if (!j)
        return;
    j->page = (struct history_page){ .after = after, .limit = (int)limit, .active = active };
    chats_submit(j);
}

void handle_chats_search(struct server *s, struct conn *c, const char *rest)
{
    char text[HISTORY_QUERY + 1];
    int64_t limit;
    const char *q = *rest ? rest : http_query(conn_request(c), "q", text, sizeof text);
    if (!query_number(s, c, "limit", 1, 100, 20, &limit))
        return;
    if (!q || !*q || strlen(q) > HISTORY_QUERY) {
        reply_refusal(s, c, 400, "missing", "q: expected 1 to %d bytes of text to search for", HISTORY_QUERY);
        return;
    }
    struct chat_job *j = new_job(s, c, "", CHATS_SEARCH);
    if (!j)
        return;
    strcpy(j->query, q);
    j->filter.limit = (int)limit;
    chats_submit(j);
}

void handle_chats_export(struct server *s, struct conn *c, const char *rest)
{
    int markdown;
    if (!query_choice(s, c, "format", "json", "markdown", &markdown))
        return;
    struct chat_job *j = new_job(s, c, rest, CHATS_EXPORT);
    if (!j)
        return;
    j->markdown = markdown;
    j->download = is_true(c, "download");
    chats_submit(j);
}
