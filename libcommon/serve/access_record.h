/* access_record.h - one record for each request: the data of its line in the audit log, and the key
 * by which it was admitted.
 *
 * A record lives from routes_request() to the last byte of the response or, if the client
 * disconnects before that, to the end of the work for the request. */
#ifndef ZSE_SERVE_ACCESS_RECORD_H
#define ZSE_SERVE_ACCESS_RECORD_H

#include "libcommon/access/keys.h"
#include "libcommon/http/problem.h"

struct server;
struct conn;

/* Maximum bytes of an X-Request-Id from a client, and of any id.  Ids of WebSocket messages are
 * longer, because a number is appended to the connection's id. */
enum { REQUEST_ID_GIVEN = 128, REQUEST_ID = REQUEST_ID_GIVEN + 12 };
enum { PROMPT_LOGGED = 4096 };          /* most bytes of a logged prompt */

struct access_record {
    /* X-Request-Id of the answer; for a message of a WebSocket: the connection's id, "/" and a
     * number */
    char id[REQUEST_ID + 1];
    unsigned n_messages;                /* messages of a WebSocket so far */
    char client[64];                    /* address of the client */
    char *method, *path, *agent, *model, *error, *prompt;       /* owned; NULL: none */
    int64_t at_ms;                      /* milliseconds since 1970 */
    uint64_t start_ns;
    int has_key;                        /* `key` is filled in, whether it is valid or not */
    int is_admin;                       /* admitted by the administrator's token */
    int by_key;                         /* the key is valid */
    int admitted;                       /* by its key or token, or as the server requires none */
    int kept; /* of a WebSocket: its line is written, but the record is kept to admit messages */
    int of_message;                     /* the record of one message of a WebSocket: record_end counts its status */
    int route;                          /* route of a WebSocket, set by its handshake */
    int64_t reserved;                   /* tokens of the key's limits, reserved until record_end */
    int64_t settled;                    /* tokens that guard_settle has charged */
    struct key_info key;
};

/* Attach a new record to the connection whose request starts, and set the response's header
 * X-Request-Id. */
void record_begin(struct server *s, struct conn *c);
/* Make a record for a message of a WebSocket whose own record is `from`; NULL: out of memory. */
struct access_record *record_message(struct server *s, struct conn *c, struct access_record *from);
/* Note the error of a refused request.  If the body was not understood, only the kind of error and
 * the field are noted, because the message quotes the client's text.  record NULL is fine. */
void record_error(struct access_record *record, const struct problem *p);
/* Note the model, unless one is noted.  record NULL is fine. */
void record_model(struct access_record *record, const char *model);
/* Note the prompt, if prompts are logged. */
void record_prompt(const struct server *s, struct access_record *record, const char *text, size_t size);
/* Charge the tokens to the key, write the line of the audit log, and free the record (with status
 * 101 it is kept).  A negative number of tokens means that the request has no such number. */
void record_end(struct server *s, struct access_record *record, int status, int prompt_tokens, int completion_tokens);

#endif
