/* internal.h - the statements, rows and faults of the history. */
#ifndef ZSE_HISTORY_INTERNAL_H
#define ZSE_HISTORY_INTERNAL_H

#include <sqlite3.h>

#include "libcommon/history/history.h"

enum statement {
#define STATEMENT(name, sql) SQL_##name,
#include "libcommon/history/statements.def"
    N_STATEMENTS
};

struct history {
    sqlite3 *db;
    char *path;
    struct history_limits limits;
    sqlite3_stmt *stmt[N_STATEMENTS];   /* prepared at first use */
    uint64_t deadline_ns;               /* deadline of the operation; 0: none */
    const atomic_int *cancel;           /* NULL: never */
    int (*ask)(void *user, size_t bytes); void *ask_user;       /* NULL: any size */
};

/* ---- database.c ---- */
/* Fill *p and return -1. */
int fault_set(struct history_problem *p, enum history_fault f, const char *field, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
int fault_nomem(struct history_problem *p);
int fault_sql(struct history *h, struct history_problem *p);    /* the fault of SQLite's last call */
/* Reset a statement and bind its values.  types has a letter for each value: i and n int64_t, D
 * double, t text (NULL: null); a negative n or D is null.  Borrowed; NULL with *p. */
sqlite3_stmt *sql_bind(struct history *h, enum statement which, struct history_problem *p, const char *types, ...);
int sql_step(struct history *h, sqlite3_stmt *s, struct history_problem *p);    /* 1: a row, 0: the end, -1 with *p */
/* run a statement that returns no rows; 0 or -1 */
int sql_run(struct history *h, sqlite3_stmt *s, struct history_problem *p);
/* -1 with *p: the deadline has passed, or the operation was cancelled. */
int sql_go_on(struct history *h, struct history_problem *p);
int sql_begin(struct history *h, int write, struct history_problem *p);
/* Commit if rc is 0, else roll back.  0, or -1 with *p. */
int sql_end(struct history *h, int rc, struct history_problem *p);
/* sql_end() for a JSON result: commits and returns it; result NULL: rolls back */
json_t *sql_end_json(struct history *h, json_t *result, struct history_problem *p);
/* A change to a conversation, or with a number to one of its messages.  text: a list of json_t
 * strings that live until the change is made. */
struct history_change { const char *owner, *id; int64_t number; const json_t *fields; json_t *text; };
typedef json_t *sql_change(struct history *h, const struct history_change *x, struct history_problem *p);
/* Make a change in a transaction and return its result; NULL with *p. */
json_t *sql_write(struct history *h, sql_change *make, struct history_change x, struct history_problem *p);
/* Charge these bytes of memory to the answer.  0, or -1 with *p: it may not have them. */
int ask_memory(struct history *h, size_t bytes, struct history_problem *p);
int64_t history_now_ms(void);

/* ---- owners and conversations: conversations.c ---- */
/* Row ids of an owner's conversations and messages are OWNER << OWNER_SHIFT | number, so that a
 * search visits only those of its owner, the newest first. */
enum { OWNER_SHIFT = 40 };
#define HISTORY_UNTITLED "New Chat"
struct owner { int64_t id, conversations, messages, tokens, bytes, next; };
/* Find an owner.  make 1: a missing owner is added.  1: found; 0: there is no such owner (only with
 * make 0); -1 with *p. */
int owner_find(struct history *h, const char *name, int make, struct owner *o, struct history_problem *p);
int owner_next(struct history *h, struct owner *o, int64_t *row, struct history_problem *p);   /* a new row id */
int owner_count(struct history *h, int64_t id, int conversations, int64_t messages, int64_t tokens, int64_t bytes,
                struct history_problem *p);
int owner_has_room(const struct history *h, const struct owner *o, int64_t bytes, struct history_problem *p);

struct conversation_row {                   /* a row; strings are borrowed from the statement until it is used again */
    int64_t row, created, updated, messages, tokens, bytes, next_message, active;       /* active -1: none */
    const char *id, *title, *model, *system_prompt, *settings, *folder, *tags;
    int titled, pinned;
};
void conversation_read(sqlite3_stmt *s, struct conversation_row *c);
json_t *conversation_json(const struct conversation_row *c);
/* Find a conversation and its owner.  0, or -1 with *p. */
int conversation_find(struct history *h, const char *owner, const char *id, struct owner *o, struct conversation_row *c,
                      struct history_problem *p);
/* Read the conversation with this row id into *c: 0, or -1 with *p. */
int conversation_by_row(struct history *h, int64_t row, struct conversation_row *c, struct history_problem *p);
int conversation_insert(struct history *h, struct owner *o, const struct conversation_row *c,
                        struct history_problem *p);
/* Read the members of fields into *c, whose strings then belong to fields or to *text (a list of
 * json_t strings); absent members leave *c unchanged.  0, or -1 with *p. */
int conversation_fields(const json_t *fields, struct conversation_row *c, json_t *text, struct history_problem *p);
int conversation_retitle(struct history *h, const struct conversation_row *c, const char *title,
                         struct history_problem *p);
int conversation_new_id(char out[HISTORY_ID + 1], struct history_problem *p);
int64_t conversation_bytes(const struct conversation_row *c);
int64_t text_size(const char *text);

/* ---- message_tree.c ---- */
struct message_row {
    int64_t row, number, parent, tokens, created;       /* -1: null */
    double latency;                     /* negative: null */
    int role;
    const char *content, *metadata;     /* borrowed */
};
void message_read(sqlite3_stmt *s, struct message_row *m);
json_t *message_json(const struct message_row *m, const char *conversation);
int64_t message_bytes(const struct message_row *m);
int message_fields(const json_t *fields, struct message_row *m, json_t *text, struct history_problem *p);
/* Add a message: its row, its words in the index, and the counters of its conversation and owner;
 * updates c to match. */
int message_insert(struct history *h, struct owner *o, struct conversation_row *c, struct message_row *m, int64_t now,
                   struct history_problem *p);
/* history_messages inside a transaction; *held: bytes that the answer takes so far. */
json_t *history_messages_in(struct history *h, const char *owner, const char *id, const struct history_page *page,
                            size_t *held, struct history_problem *p);
int message_role(const char *name);                     /* -1: none */
const char *message_role_name(int role);

/* ---- members.c: values of members ---- */
enum presence { ABSENT, GIVEN_NULL, GIVEN };
enum presence field_presence(const json_t *fields, const char *name);
/* Read a member of `fields` that is present.  0, or -1 with *p.  Strings are borrowed from
 * fields. */
int field_text(const json_t *fields, const char *name, size_t least, size_t most, const char **out,
               struct history_problem *p);
int field_number(const json_t *fields, const char *name, int64_t least, int64_t most, int64_t *out,
                 struct history_problem *p);
int field_bool(const json_t *fields, const char *name, int *out, struct history_problem *p);
/* An object or a list as JSON text, kept alive by `text`. */
int field_json(const json_t *fields, const char *name, int is_list, size_t most, json_t *text, const char **out,
               struct history_problem *p);
int time_parse(const char *text, int64_t *ms);          /* reverses js_time(); -1: the text has another form */

/* ---- markdown.c: conversations as Markdown ---- */
#define HISTORY_FORMAT "zse-chat"           /* of an exported document */
enum { HISTORY_VERSION = 1 };
/* The conversation and a list of its messages as Markdown, malloc'd; NULL with *p. */
char *markdown_write(const json_t *conversation, const json_t *messages, struct history_problem *p);
/* Read such a text into a document of history_import without an id.  New reference; NULL with
 * *p. */
json_t *markdown_read(struct history *h, const char *text, struct history_problem *p);

/* ---- index_words.c: text to words of the index ---- */
/* at, end: its bytes in the source; text [n]: the folded word, not terminated */
struct word { size_t at, end; char text[72]; int n; };
/* The next word at or after *at; 0: there is none. */
int word_next(const char *text, size_t size, size_t *at, struct word *w);
/* All words of a text, with blanks between them, malloc'd; NULL: out of memory. */
char *words_of(const char *text, size_t size);

#endif
