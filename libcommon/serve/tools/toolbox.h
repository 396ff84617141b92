/* toolbox.h - the tools that the server runs for its clients: the built-in ones, and those of the
 * MCP servers of --mcp-config.
 *
 * A batch is one or more calls that run side by side in threads of the toolbox, which are started
 * when needed.  The loop starts a batch and is called back when it is complete; each call is
 * recorded in the audit log.  All functions are for the loop's thread unless stated otherwise. */
#ifndef ZSE_SERVE_TOOLS_TOOLBOX_H
#define ZSE_SERVE_TOOLS_TOOLBOX_H

#include <stddef.h>

#include <jansson.h>

#include "libcommon/base/err.h"
#include "libcommon/mcp/toolset.h"

struct server;
struct access_record;
struct toolbox;
struct tool_batch;

enum { TOOL_NAME_MAX = 128, TOOL_ID_MAX = 64, TOOL_BODY = 256 << 10 };        /* bytes; body: of a request */

/* ---- the list of tools: any thread ---- */
/* Describe a tool in *facts.  1; 0: there is no tool of this name. */
int toolbox_find(struct toolbox *b, const char *name, struct tool_facts *facts);
/* Return a new list of {"type": "function", "function": {...}} in a constant order; NULL without
 * memory.  wanted: the names of the tools to list, where a * at the end stands for any further
 * characters; NULL: all tools. */
json_t *toolbox_functions(struct toolbox *b, const json_t *wanted);
/* Return the built-in tools in MCP's form; NULL without memory. */
json_t *toolbox_mcp_tools(struct toolbox *b);
/* Return the MCP servers as a new list of {"name", "transport", "state", "n_tools", "error"}; NULL
 * without memory. */
json_t *toolbox_servers(struct toolbox *b);

/* ---- calls ---- */
struct tool_call {
    const char *id, *name;              /* copied */
    json_t *arguments;                  /* an object, copied */
};
struct tool_result {
    const char *id, *name;
    const char *text; size_t size;      /* the result, or the error message; valid UTF-8 */
    int is_error;
    double ms;
};
/* Start n calls for the client of the record (NULL: unknown).  After this function has returned,
 * the loop calls `result` (unless it is NULL) when a call has ended, and `done` when all have
 * ended. NULL with *e: no memory, no thread, or too many calls wait. */
struct tool_batch *toolbox_start(struct server *s, const struct access_record *record, const struct tool_call *call,
                                 int n, void (*result)(void *user, int i), void (*done)(void *user), void *user,
                                 struct err *e);
int batch_size(const struct tool_batch *b);
/* The result of call i, which has ended; borrowed from the batch. */
struct tool_result batch_result(const struct tool_batch *b, int i);
/* Free a batch.  A running batch is stopped without calling back.  NULL is fine. */
void batch_free(struct tool_batch *b);
/* Cancel the calls: they end soon, with an error. */
void batch_cancel(struct tool_batch *b);

#endif
