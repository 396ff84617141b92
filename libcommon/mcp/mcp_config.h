/* mcp_config.h - the servers of an MCP configuration: a JSON file {"mcpServers": {NAME: {...}}}, as
 * other clients of MCP have it. */
#ifndef ZSE_MCP_MCP_CONFIG_H
#define ZSE_MCP_MCP_CONFIG_H

#include <jansson.h>

#include "libcommon/base/err.h"

enum { MCP_MAX_SERVERS = 32, MCP_NAME_MAX = 32 };

struct mcp_server_config {
    const char *name;                   /* letters, digits, _ and - */
    const char *command, *cwd;          /* command: of a child process; NULL: it has a url; cwd NULL: our own */
    const char **args; int n_args;      /* owned; borrowed texts */
    const char *url;                    /* http:// or https:// */
    const json_t *env, *headers;        /* objects of texts; NULL: none */
    const json_t *tools;                /* patterns of the tools that are offered; NULL: all */
    const json_t *confirm;              /* patterns of tools that need a confirmation, besides destructive ones */
    const json_t *auto_approve;         /* patterns of tools that need no confirmation */
    double timeout_s;                   /* time limit of a call */
};
struct mcp_config {
    json_t *json;                       /* owned; everything above is borrowed from it */
    struct mcp_server_config server[MCP_MAX_SERVERS];
    int n;
};
/* 0, or -1 with *e naming server and field.  Release it either way. */
int mcp_config_load(struct mcp_config *c, const char *path, struct err *e);
/* Like mcp_config_load(), for the text of such a file; path is only used in messages. */
int mcp_config_parse(struct mcp_config *c, const char *path, const char *text, size_t size, struct err *e);
void mcp_config_release(struct mcp_config *c);
/* 1 if name is in a list of names, in which a * at the end stands for any characters; patterns
 * NULL: 0. */
int mcp_named(const json_t *patterns, const char *name);

#endif
