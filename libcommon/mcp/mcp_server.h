/* mcp_server.h - the answers of an MCP server to JSON-RPC messages, without a transport: they are
 * the same over HTTP and over standard input, except for headers and statuses.
 *
 * Nothing is kept between two messages: a legacy client gets no session, so each of its requests is
 * answered independently. */
#ifndef ZSE_MCP_MCP_SERVER_H
#define ZSE_MCP_MCP_SERVER_H

#include <jansson.h>

#include "libcommon/mcp/protocol.h"

/* The tools and resources that a server offers.  Functions return new references, NULL without
 * memory. */
struct mcp_host {
    json_t *(*tools)(void *user);       /* [{"name", "description", "inputSchema", "annotations"}] */
    int (*has_tool)(void *user, const char *name);
    json_t *(*resources)(void *user);   /* [{"uri", "name", "mimeType"}] */
    json_t *(*read)(void *user, const char *uri);       /* JSON; NULL: there is no such resource */
    int documents;                      /* there are also resources MCP_DOCUMENT_URI ID: see mcp_answer */
    void *user;
};
#define MCP_DOCUMENT_URI "zse://documents/"
enum { MCP_PAGE = 1000 };               /* documents in an answer to resources/list */

/* Header fields of a request over HTTP; NULL: missing. */
struct mcp_headers { const char *version, *method, *name, *session; };

struct mcp_answer {
    int status;                         /* HTTP status */
    /* owned; NULL: none is sent (to a notification), or the caller makes it: see below */
    json_t *message;
    /* A call of a tool, which the caller runs and answers with mcp_call_answer: */
    int is_call;
    const char *name;                   /* borrowed from the message */
    json_t *arguments, *id;             /* arguments is an object, id that of the request; owned */
    int modern;
    /* A list of resources.  The caller finds the documents from number `from` on, and answers with
     * mcp_list_answer: */
    int is_list;
    json_t *resources;                  /* owned: those before the documents */
    int64_t from;
    int is_read;                        /* the request reads the document `name`: mcp_read_answer */
};
/* Answer one message.  headers NULL: not over HTTP.  Never fails: without memory the status is 503
 * and the message NULL. */
void mcp_answer(const struct mcp_host *h, const json_t *message, const struct mcp_headers *headers,
                struct mcp_answer *a);
/* The answer to text that is not JSON. */
json_t *mcp_parse_error(const char *why);
/* The answer to a call, from its result or the message of its error.  NULL without memory. */
json_t *mcp_call_answer(const struct mcp_answer *a, const char *text, int is_error);
/* The answer to a list.  Takes ownership of documents, a list of resources; more: 1 if further ones
 * follow.  NULL without memory. */
json_t *mcp_list_answer(struct mcp_answer *a, json_t *documents, int more);
/* The answer to the reading of a document, with its text.  NULL without memory. */
json_t *mcp_read_answer(const struct mcp_answer *a, const char *uri, const char *mime_type, const char *text);
json_t *mcp_no_resource(const struct mcp_answer *a, const char *why);
void mcp_answer_release(struct mcp_answer *a);

/* ---- prompts.c ---- */
json_t *mcp_prompts(void);                              /* the list */
/* The prompt with its arguments put in.  NULL with the reason in why; if why is "", memory ran
 * out. */
json_t *mcp_prompt(const char *name, const json_t *arguments, char why[160]);

#endif
