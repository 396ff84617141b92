/* peer.h - the client of one MCP server, which is a child process (standard input and output) or a
 * URL (streamable HTTP).
 *
 * A thread of its own connects and lists the tools.  It speaks revision 2026-07-28 if the server
 * does, or else one of the older revisions, which begin with initialize.  When the server has
 * failed, the thread connects again, after growing pauses.  A server that fails or hangs does not
 * delay the peers of other servers. */
#ifndef ZSE_MCP_PEER_H
#define ZSE_MCP_PEER_H

#include <stdatomic.h>

#include <jansson.h>

#include "libcommon/base/err.h"
#include "libcommon/mcp/mcp_config.h"

enum {
    MCP_MESSAGE_MAX = 8 << 20,          /* bytes of a message of a server */
    MCP_RESULT_MAX = 256 << 10,         /* bytes of the text of a result; the rest is cut off */
    MCP_TOOLS_MAX = 256,                /* tools of one server */
};

struct mcp_peer;
enum mcp_state { MCP_STARTING, MCP_READY, MCP_FAILED };

/* c and env (of child processes, NAME=VALUE, ends with NULL) are borrowed until mcp_peer_close.
 * changed is called in the peer's thread when its state has changed; it may be NULL. */
struct mcp_peer *mcp_peer_open(const struct mcp_server_config *c, const char *const *env,
                               void (*changed)(void *user, const char *name, const char *text), void *user,
                               struct err *e);
/* Tell the peer to end; running calls soon return errors.  Does not wait for it.  Any thread. */
void mcp_peer_stop(struct mcp_peer *p);
/* End the child process; all running calls return errors.  NULL is fine. */
void mcp_peer_close(struct mcp_peer *p);
const struct mcp_server_config *mcp_peer_config(const struct mcp_peer *p);
/* why: why it failed, or "" if it is ready or starts for the first time */
enum mcp_state mcp_peer_state(struct mcp_peer *p, int *n_tools, char why[300]);

/* The tools, in the server's order: a new list of {"full", "name", "description", "inputSchema",
 * "readOnly", "destructive", "confirm", "approved"}; full is SERVER__TOOL, in the letters and the
 * length that a chat request allows.  NULL without memory. */
json_t *mcp_peer_tools(struct mcp_peer *p);
/* The tool with this full name, a new reference; NULL: there is none. */
json_t *mcp_peer_tool(struct mcp_peer *p, const char *full);
/* Call a tool by its full name.  Returns malloc'd text; if the tool reports an error, *is_error is
 * 1 and the text is its message.  NULL with *e if there is no answer.  Ends soon after *cancelled
 * is set.  Any thread, several at once. */
char *mcp_peer_call(struct mcp_peer *p, const char *full, const json_t *arguments, const atomic_int *cancelled,
                    int *is_error, struct err *e);

#endif
