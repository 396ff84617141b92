/* bench_client.h - streaming requests to an OpenAI server, many at once from one thread: what
 * zse-bench serve measures with. */
#ifndef ZSE_CMD_BENCH_CLIENT_H
#define ZSE_CMD_BENCH_CLIENT_H

#include <jansson.h>

#include "libcommon/base/err.h"

struct client;
/* url: of the server, with or without /v1. key NULL: none is sent. timeout_s bounds each
 * request; 0: none. */
struct client *client_open(const char *url, const char *key, double timeout_s, struct err *e);
void client_close(struct client *c);            /* requests that still run are given up; NULL is fine */

/* One request and its answer, waited for. path like "/models"; body NULL: GET. New reference,
 * NULL on failure: HTTP errors, what is not JSON.  A server that is busy, as while it loads its
 * model (503), is asked again for wait_s seconds. */
json_t *client_ask(struct client *c, const char *path, const char *body, double wait_s, struct err *e);

/* What is heard of a streaming request. Times are of clock_s(), taken when the bytes arrive. */
struct stream {
    void *user;
    int kind, n_own;                            /* the caller's own: what it is, and something to count */
    double start_s, first_s, last_s, end_s;     /* first_s, last_s: of its text; 0: none came */
    int n_events;                               /* with text */
    int prompt_tokens, cached_tokens, completion_tokens;        /* as the server counts them, -1: it did not say */
    char error[256];                            /* "": it ended as it should */
};
struct client_events {
    void (*on_text)(struct stream *s, double now_s);            /* after first_s or before last_s is set to now: it is the one before, 0 with the first */
    void (*on_end)(struct stream *s);                           /* s is gone after it */
};
/* POST body, a JSON text that asks for a stream, to path. NULL on failure. The stream is the
 * client's; body is copied. */
struct stream *client_start(struct client *c, const char *path, const char *body, const struct client_events *events,
                            void *user, int kind, struct err *e);
void client_stop(struct client *c, struct stream *s);           /* hang up; no on_end */
/* Wait for something to happen, at most timeout_ms, and call for what did. How many requests
 * still run, or -1. */
int client_wait(struct client *c, int timeout_ms, struct err *e);

#endif
