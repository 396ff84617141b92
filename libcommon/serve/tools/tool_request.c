/* tool_request.c - requests that wait for calls of tools. */
#include "libcommon/serve/tools/tool_request.h"

#include <stdlib.h>

#include "libcommon/serve/internal.h"

static void release(struct tool_request *r)
{
    batch_free(r->batch);
    json_decref(r->calls);
    mcp_answer_release(&r->mcp);
}

static void on_done(void *user)
{
    struct tool_request *r = user;
    conn_set_exchange(r->conn, NULL);
    r->answer(r);
    release(r);
    free(r);
}

void tool_request_gone(struct conn *c)
{
    struct tool_request *r = conn_exchange(c);
    r->conn = NULL;
    if (!r->batch)                      /* a request for documents is freed by mcp_documents.c */
        return;
    release(r);
    free(r);
}

void tool_request_start(struct server *s, struct conn *c, const struct tool_call *call, int n, struct tool_request from)
{
    struct tool_request *r = malloc(sizeof *r);
    struct err e;
    if (r) {
        *r = from;
        r->exchange.kind = EXCHANGE_TOOLS;
        r->s = s;
        r->conn = c;
        if ((r->batch = toolbox_start(s, conn_record(c), call, n, NULL, on_done, r, &e))) {
            conn_set_exchange(c, r);
            return;
        }
    } else {
        err_nomem(&e, "request");
    }
    conn_set_header(c, "Retry-After", "1");
    reply_refusal(s, c, 503, "overloaded", "%s", e.msg);
    release(&from);
    free(r);
}
