/* protocol.h - the names and numbers of the Model Context Protocol that client and server share.
 *
 * Both speak two kinds of revisions: 2026-07-28, in which every request stands alone and carries
 * its version in _meta, and those up to 2025-11-25, which begin with initialize ("legacy"). */
#ifndef ZSE_MCP_PROTOCOL_H
#define ZSE_MCP_PROTOCOL_H

#include <jansson.h>

#define MCP_MODERN "2026-07-28"
#define MCP_LEGACY "2025-11-25"
#define MCP_META "io.modelcontextprotocol/"

enum mcp_error {
    MCP_PARSE_ERROR = -32700, MCP_INVALID_REQUEST = -32600, MCP_NO_METHOD = -32601, MCP_INVALID_PARAMS = -32602,
    MCP_INTERNAL = -32603,
    MCP_NO_RESOURCE = -32002,           /* legacy only */
    MCP_HEADER_MISMATCH = -32020, MCP_UNSUPPORTED_VERSION = -32022,
};

/* Is this one of the revisions that begin with initialize? */
int mcp_is_legacy(const char *version);
/* {"name": "zse", "version"} */
json_t *mcp_implementation(void);

#endif
