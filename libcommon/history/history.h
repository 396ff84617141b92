/* history.h - conversations and their messages in the SQLite file FOLDER/chats.db (mode 0600).
 *
 * The file is in WAL mode and written with synchronous=FULL: a change that was reported as done is
 * on the disk, a process that is killed loses at most the change it was writing, and several
 * processes may use one file.  Each conversation has an owner: "" or the name of a key; one owner
 * never sees the conversations of another.  Messages form a tree (parent_id): the branch that is
 * shown ends at the conversation's active leaf.
 *
 * Conversations and messages go in and out as JSON objects, whose members zse-serve(1) lists.  A
 * handle belongs to one thread.  A damaged file is never deleted or replaced. */
#ifndef ZSE_HISTORY_HISTORY_H
#define ZSE_HISTORY_HISTORY_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "libcommon/base/err.h"

enum {
    HISTORY_TITLE = 512, HISTORY_NAME = 256, HISTORY_SYSTEM = 1 << 20, HISTORY_SETTINGS = 64 << 10,
    HISTORY_METADATA = 256 << 10, HISTORY_MESSAGE = 4 << 20, HISTORY_TAGS = 32, HISTORY_TAG = 64,
    HISTORY_MESSAGES = 100000,          /* most messages of a conversation */
    HISTORY_QUERY = 512,                /* bytes of a search */
    HISTORY_ID = 16,                    /* characters of a conversation's id */
    HISTORY_PAGE_BYTES = 8 << 20,       /* most bytes in a page of messages */
};

enum history_fault {
    HISTORY_FINE,
    HISTORY_NOT_FOUND, HISTORY_BAD_VALUE, HISTORY_EXISTS, HISTORY_TOO_LARGE, HISTORY_QUOTA, /* faults of the caller */
    HISTORY_NO_MEMORY, HISTORY_BUSY, HISTORY_DAMAGED, HISTORY_READ_ONLY, HISTORY_FULL, HISTORY_UNAVAILABLE,
};
struct history_problem {
    enum history_fault fault;
    const char *field;                  /* the member with a bad value; NULL: none.  A constant. */
    struct err e;
};

/* Limits of one owner.  0: the default, which history_default_limits has. */
struct history_limits { int64_t conversations, bytes; };
extern const struct history_limits history_default_limits;

struct history;
/* Opens or creates the file; the folder is created, too.  limits NULL: the defaults.  NULL with
 * *p. */
struct history *history_open(const char *folder, const struct history_limits *limits, struct history_problem *p);
/* Open the file for reading: nothing is created or changed.  NULL with *p. */
struct history *history_open_read(const char *folder, struct history_problem *p);
void history_close(struct history *h);          /* NULL is fine */
/* Make the running operation end with HISTORY_UNAVAILABLE.  May be called by any thread while h is
 * open. */
void history_interrupt(struct history *h);
/* Set the time limit of each operation, in seconds; an operation that takes longer ends with
 * HISTORY_UNAVAILABLE. */
void history_set_deadline(struct history *h, double seconds);
/* End operations with HISTORY_UNAVAILABLE soon after *flag is no longer 0; NULL: never. */
void history_set_cancel(struct history *h, const atomic_int *flag);
/* ask(user, bytes) is called before an answer grows to `bytes` of memory.  If it returns -1, the
 * operation ends with HISTORY_TOO_LARGE. */
void history_set_budget(struct history *h, int (*ask)(void *user, size_t bytes), void *user);

/* ---- conversations: new references, NULL with *p ---- */
json_t *history_create(struct history *h, const char *owner, const json_t *fields, struct history_problem *p);
json_t *history_get(struct history *h, const char *owner, const char *id, struct history_problem *p);
struct history_filter { const char *folder, *tag; int limit; int64_t offset; };         /* NULL: any */
/* {"conversations", "total", "limit", "offset"}: pinned ones first, then the newest change
 * first. */
json_t *history_list(struct history *h, const char *owner, const struct history_filter *f, struct history_problem *p);
/* Change a conversation: an absent field keeps its value, null resets it. */
json_t *history_update(struct history *h, const char *owner, const char *id, const json_t *fields,
                       struct history_problem *p);
int history_delete(struct history *h, const char *owner, const char *id, struct history_problem *p);
/* Delete up to MOST conversations: all of an owner; or, owner NULL, those of any owner without a
 * change since before_ms.  Returns their number, -1 with *p. */
int history_delete_many(struct history *h, const char *owner, int64_t before_ms, int most, struct history_problem *p);
/* The full id of the conversation whose id begins with PREFIX ("": of the one changed last).
 * 0, -1 with *p: there is none, or more than one. */
int history_find(struct history *h, const char *owner, const char *prefix, char id[HISTORY_ID + 1],
                 struct history_problem *p);

/* ---- messages ---- */
json_t *history_add(struct history *h, const char *owner, const char *id, const json_t *fields,
                    struct history_problem *p);
struct history_page { int64_t after; int limit, active; };      /* active: only the active branch */
/* {"conversation_id", "messages", "active_leaf", "total", "more"} */
json_t *history_messages(struct history *h, const char *owner, const char *id, const struct history_page *page,
                         struct history_problem *p);
json_t *history_message(struct history *h, const char *owner, const char *id, int64_t number,
                        struct history_problem *p);
json_t *history_edit(struct history *h, const char *owner, const char *id, int64_t number, const json_t *fields,
                     struct history_problem *p);
/* Delete a message and all below it; number 0: all messages.  Returns how many, -1 with *p. */
int64_t history_remove(struct history *h, const char *owner, const char *id, int64_t number,
                       struct history_problem *p);

/* ---- search, export, import, statistics ---- */
/* {"query", "results": [{"conversation", "title_match", "matches"}], "more"} */
json_t *history_search(struct history *h, const char *owner, const char *query, int limit, struct history_problem *p);
/* The exported text of a conversation, malloc'd; *name: a name for its file, malloc'd. */
char *history_export_json(struct history *h, const char *owner, const char *id, char **name,
                          struct history_problem *p);
char *history_export_markdown(struct history *h, const char *owner, const char *id, char **name,
                              struct history_problem *p);
/* doc: an exported conversation, {format: "markdown", content}, or {format, conversation} of
 * another program (foreign.h); the last two get a new id.  copy: import an exported one under a new
 * id, too.  Otherwise it keeps its id, and if a conversation with this id exists, the import fails
 * with HISTORY_EXISTS. */
json_t *history_import(struct history *h, const char *owner, const json_t *doc, int copy, struct history_problem *p);
/* {"conversations", "messages", "total_tokens", "bytes", "limits"} */
json_t *history_stats(struct history *h, const char *owner, struct history_problem *p);

#endif
