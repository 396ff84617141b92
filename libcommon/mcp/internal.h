/* internal.h - the parts of a peer: peer.c (thread, tools, calls), peer_stdio.c (child
 * processes), peer_http.c (URLs), peer_result.c (what tools return). */
#ifndef ZSE_MCP_INTERNAL_H
#define ZSE_MCP_INTERNAL_H

#include <pthread.h>
#include <stdint.h>

#include "libcommon/mcp/child.h"
#include "libcommon/mcp/peer.h"
#include "libcommon/mcp/protocol.h"

/* A request that waits for its answer. */
struct pending {
    struct pending *next;
    json_int_t id;
    json_t *answer;                     /* owned; NULL: none yet */
    int failed;                         /* the server is gone: peer.error */
};

struct mcp_peer {
    const struct mcp_server_config *c;
    const char *const *base_env;
    void (*changed)(void *user, const char *name, const char *text);
    void *user;
    pthread_t thread;
    pthread_mutex_t lock;               /* protects what follows, except `writing` and members for the thread only */
    pthread_cond_t news;                /* an answer, a state, stop */
    atomic_int stop;
    enum mcp_state state;
    char error[300];
    json_t *tools;                      /* owned; NULL: none yet */
    int modern;                         /* revision 2026-07-28 */
    char version[16];                   /* protocol version of a legacy server */
    int stale;                          /* its tools have changed: list them; or its session has ended: begin another */
    json_int_t next_id;
    struct pending *pending;
    /* child process */
    struct child child;
    pthread_mutex_t writing;
    atomic_int torn;                    /* a message was written only in part, so no other message may follow */
    char *line; size_t n_line, room;    /* used by the peer's thread: the part of a message that was read */
    int n_rubbish, no_probe;
    char said[300];                     /* used by the peer's thread: the last text passed to `changed` */
    char stderr_tail[200]; size_t n_tail;
    /* URL */
    char session[256];
};

/* Send a request and wait for its answer: the whole JSON-RPC message, a new reference; NULL with
 * *e.  params: borrowed, may be NULL; schema: of the tool's arguments, for tools/call over HTTP. */
json_t *peer_request(struct mcp_peer *p, const char *method, const json_t *params, const json_t *schema,
                     double timeout_s, const atomic_int *cancelled, struct err *e);
/* A message with our version and capabilities in params._meta, if the server's revision requires
 * that. */
json_t *peer_message(struct mcp_peer *p, const char *method, const json_t *params, json_int_t id);

/* ---- peer_stdio.c: called by the peer's thread only, except where noted ---- */
int stdio_open(struct mcp_peer *p, struct err *e);
void stdio_close(struct mcp_peer *p);
/* Read for at most ms milliseconds and deliver answers.  -1 with *e: the server has ended, or has
 * to be ended. */
int stdio_read(struct mcp_peer *p, int ms, struct err *e);
/* any thread */
int stdio_write(struct mcp_peer *p, const json_t *message, double timeout_s, struct err *e);

/* ---- peer_http.c; any thread ---- */
json_t *http_request(struct mcp_peer *p, const char *method, const json_t *message, const json_t *schema,
                     double timeout_s, const atomic_int *cancelled, struct err *e);

/* ---- peer_result.c ---- */
/* The text of a result of tools/call; NULL with *e. */
char *result_text(const json_t *result, int *is_error, struct err *e);

#endif
