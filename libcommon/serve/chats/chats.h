/* chats.h - the endpoints of the chat history, and the threads that use its database.
 *
 * A request becomes a job.  Two threads, each with its own connection, take jobs in rounds: the
 * first job of each tenant, then the second of each, so that a tenant with many waiting jobs delays
 * only its own.  The loop never waits for the disk.  If the database cannot be used, jobs are
 * answered with the reason; the rest of the server continues.
 *
 * The memory of a job is reserved in the account (http/account.h): its body, the JSON tree of the
 * body, and the response as it grows. */
#ifndef ZSE_SERVE_CHATS_CHATS_H
#define ZSE_SERVE_CHATS_CHATS_H

#include <stdatomic.h>

#include "libcommon/history/history.h"
#include "libcommon/serve/exchange.h"
#include "libcommon/serve/internal.h"

enum chat_work {
    CHATS_CREATE, CHATS_LIST, CHATS_DELETE_ALL, CHATS_GET, CHATS_UPDATE, CHATS_DELETE, CHATS_ADD, CHATS_MESSAGES,
    CHATS_MESSAGE, CHATS_EDIT, CHATS_REMOVE, CHATS_SEARCH, CHATS_EXPORT, CHATS_IMPORT, CHATS_STATS,
    CHATS_EXPIRE,                       /* delete expired conversations; this is no request */
};

struct chat_job {
    struct exchange exchange;           /* must be the first member: see exchange.h */
    struct chat_job *next;
    struct server *s;
    /* used by the loop; NULL: the client has disconnected, or there was none */
    struct conn *conn;
    atomic_int gone;                    /* the client has disconnected: do not start the job; end it if it only reads */
    enum chat_work work;
    uint64_t tenant, round;
    char owner[32];
    char id[48];                        /* id of a conversation; none is longer */
    int64_t number;                     /* number of a message; 0: all */
    struct history_page page;
    struct history_filter filter;
    char folder[HISTORY_NAME + 1], tag[HISTORY_TAG + 1], query[HISTORY_QUERY + 1];      /* values of the filter */
    int markdown, download, copy;
    struct buf body;
    struct hold hold;
    size_t body_bytes;                  /* bytes reserved for the body and its tree */
    /* the answer */
    struct problem problem;             /* status 0: none */
    char *text; size_t text_size;       /* the response; owned */
    char *name;                         /* file name of a download; owned */
};

/* ---- chats.c ---- */
/* Queue a job, or answer its request with a refusal; takes over the job. */
void chats_submit(struct chat_job *j);

/* ---- chats_jobs.c ---- */
/* Run a job in a thread: sets text or problem. */
void chats_run(struct chat_job *j, struct history *h);
/* Does the job only read?  Then it ends early if its client disconnects. */
int chats_reads(const struct chat_job *j);
/* Translate a problem of the history into one of a response; returns -1. */
int chats_problem(const struct history_problem *p, struct problem *pr);

#endif
