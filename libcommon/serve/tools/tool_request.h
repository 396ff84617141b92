/* tool_request.h - a request that waits for calls of tools. */
#ifndef ZSE_SERVE_TOOLS_TOOL_REQUEST_H
#define ZSE_SERVE_TOOLS_TOOL_REQUEST_H

#include "libcommon/mcp/mcp_server.h"
#include "libcommon/serve/exchange.h"
#include "libcommon/serve/tools/toolbox.h"

struct tool_request {
    struct exchange exchange;           /* EXCHANGE_TOOLS; this and the next three are set at the start */
    struct server *s;
    struct conn *conn;
    struct tool_batch *batch;           /* NULL: the request waits for documents */
    void (*answer)(struct tool_request *r);             /* all calls have ended: reply */
    json_t *calls;                      /* owned: the calls found in a text; NULL: none */
    struct mcp_answer mcp;              /* owned: the answer to a request to /mcp */
    char document[32];                  /* id of the document to read; "": list them */
};

/* Run the n calls and answer when all have ended; if memory or threads run out, refuse the request.
 * Takes over the owned members of `from`. */
void tool_request_start(struct server *s, struct conn *c, const struct tool_call *call, int n,
                        struct tool_request from);
/* Answer a request to /mcp for documents; takes over a. */
void mcp_documents_start(struct server *s, struct conn *c, struct mcp_answer *a);

#endif
