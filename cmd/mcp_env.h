/* mcp_env.h - the environment of MCP servers that are child processes. */
#ifndef ZSE_CMD_MCP_ENV_H
#define ZSE_CMD_MCP_ENV_H

/* A list of the variables of our environment that MCP servers get, ending with NULL.  The caller
 * frees the list; its strings are borrowed.  NULL without memory. */
const char **mcp_env(void);

#endif
