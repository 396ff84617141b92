/* mcp_env.h - the environment of MCP servers that are child processes. */
#ifndef ZSE_CMD_MCP_ENV_H
#define ZSE_CMD_MCP_ENV_H

/* The variables of our environment that MCP servers get, ending with NULL; borrowed, caller frees
 * the list; NULL without memory. */
const char **mcp_env(void);

#endif
