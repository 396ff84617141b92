/* exchange.h - work that goes on behind a request: API calls (api/calls.c), a model being
 * loaded, a report. */
#ifndef ZSE_SERVE_EXCHANGE_H
#define ZSE_SERVE_EXCHANGE_H

#include <stdint.h>

#include "libcommon/base/err.h"

struct call;
struct conn;
struct loaded_model;
struct server;

enum exchange_kind { EXCHANGE_CALL, EXCHANGE_LOAD, EXCHANGE_REPORT };
struct exchange { enum exchange_kind kind; };           /* what conn_exchange points to begins with this */

/* ---- API calls ---- */
void call_charge(const struct call *c, int *prompt, int *completion);     /* tokens that count against a key */
void call_gone(struct call *c, struct conn *client);    /* the client is; its record becomes the call's, but for a WebSocket's */
void calls_cancel(struct loaded_model *lm);                    /* all of them */
void calls_drop(struct loaded_model *lm);                      /* its worker is closed: nothing more will come */
/* Its engine is in a step that does not end: the clients of calls that began by then are
 * answered, and the calls have their lines in the log. */
void calls_give_up(struct loaded_model *lm, uint64_t before_ns);
void calls_events(struct server *s);                    /* on_wake: what the engines and the preparing thread have done */
int calls_open(struct server *s, struct err *e);
void calls_close(struct server *s);

#endif
