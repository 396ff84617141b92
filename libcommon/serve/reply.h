/* reply.h - helpers of the handlers: read a small body, answer, find the client's address. */
#ifndef ZSE_SERVE_REPLY_H
#define ZSE_SERVE_REPLY_H

#include <jansson.h>

#include "libcommon/http/conn.h"
#include "libcommon/http/problem.h"
#include "libcommon/serve/fields.h"

struct server;

enum { INLINE_BODY = 32 << 10 };        /* larger bodies are parsed in another thread */

/* Whole answers, each counted for its route. */
void reply_json(struct server *s, struct conn *c, int status, const struct buf *json);
void reply_text(struct server *s, struct conn *c, const struct buf *text);       /* status 200 */
void reply_problem(struct server *s, struct conn *c, const struct problem *p);
/* Answer with json, and take ownership of its reference; NULL (no memory): answer 503. */
void reply_object(struct server *s, struct conn *c, int status, json_t *json);
void reply_refusal(struct server *s, struct conn *c, int status, const char *code, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
/* Parse the body into p.  New reference; NULL: it was refused, and the client has its answer. */
json_t *read_body(struct server *s, struct conn *c, body_set kind, struct params *p);
/* most: largest size of the body, which is parsed in the loop's thread */
json_t *read_body_upto(struct server *s, struct conn *c, body_set kind, size_t most, struct params *p);
/* Returns 1 if clients on other machines can reach this listener, directly or through a trusted
 * proxy.  local_listener: the listener is loopback or a Unix socket. */
int server_is_reachable(const struct server *s, int local_listener);
/* The address of the client; with trust_proxy it is taken from X-Forwarded-For.  The text is in
 * out, or borrowed from c. */
const char *client_address(const struct server *s, const struct conn *c, char out[64]);

#endif
