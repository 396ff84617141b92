/* bench_client.h - send streaming requests to an OpenAI server, many at once from one thread, for
 * zse-bench serve. */
#ifndef ZSE_CMD_BENCH_CLIENT_H
#define ZSE_CMD_BENCH_CLIENT_H

#include <jansson.h>

#include "libcommon/base/err.h"

struct client;
/* url of the server, with or without /v1.  key NULL: none is sent.  timeout_s bounds each request;
 * 0: no limit. */
struct client *client_open(const char *url, const char *key, double timeout_s, struct err *e);
void client_close(struct client *c);            /* cancels running requests; NULL is fine */

/* Send one request and wait for its answer.  path like "/models"; body NULL: GET.  Returns a new
 * reference, or NULL on failure: an HTTP error or an answer that is not JSON.  If the server is
 * busy (503, for example while it loads its model), the request is repeated for wait_s seconds. */
json_t *client_ask(struct client *c, const char *path, const char *body, double wait_s, struct err *e);

/* A streaming request.  Times are of clock_s(), taken when the bytes arrive. */
struct client_stream {
    void *user;
    int kind, n_own;                            /* for the caller: a kind of stream, and a counter */
    /* first_s, last_s: when its first and its newest text arrived; 0: no text yet */
    double start_s, first_s, last_s, end_s;
    int n_events;                               /* events that had text */
    int prompt_tokens, cached_tokens, completion_tokens;        /* counted by the server, -1: not reported */
    char error[256];                            /* "": it ended without an error */
};
struct client_events {
    /* Text arrived.  last_s is still the time of the previous text, 0 at the first; first_s is
     * set. */
    void (*on_text)(struct client_stream *s, double now_s);
    void (*on_end)(struct client_stream *s);                           /* s is freed afterwards */
};
/* POST body, a JSON text that requests a stream, to path.  NULL on failure.  body is copied; the
 * client owns the stream. */
struct client_stream *client_start(struct client *c, const char *path, const char *body,
                                   const struct client_events *events,
                            void *user, int kind, struct err *e);
/* Wait at most timeout_ms for events and call back for each.  Returns the number of running
 * requests, or -1. */
int client_wait(struct client *c, int timeout_ms, struct err *e);

#endif
