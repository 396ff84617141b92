/* toolset.h - tools that a program runs for a model: the built-in ones, and those of the MCP
 * servers of a configuration.
 *
 * All functions may be called from any thread, but for open and close. */
#ifndef ZSE_MCP_TOOLSET_H
#define ZSE_MCP_TOOLSET_H

#include <stdatomic.h>

#include <jansson.h>

#include "libcommon/base/err.h"
#include "libcommon/mcp/mcp_config.h"

struct toolset;

/* config: path of a file as mcp_config_load() reads it; NULL: built-in tools only.  env and changed
 * are those of mcp_peer_open(); env is borrowed until toolset_close().  NULL with *e. */
struct toolset *toolset_open(const char *config, const char *const *env,
                             void (*changed)(void *user, const char *name, const char *text), void *user,
                             struct err *e);
/* Tell the MCP servers to end; running calls of their tools soon return errors.  Does not wait for
 * them. */
void toolset_stop(struct toolset *s);
void toolset_close(struct toolset *s);                  /* NULL is fine */

struct tool_facts {
    const char *server;                 /* borrowed until toolset_close; NULL: built in */
    int read_only, destructive;
    int confirm;                        /* runs only after a confirmation */
    int approved;                       /* the configuration approves its calls without a question */
};
/* 0: there is no such tool. */
int toolset_find(struct toolset *s, const char *name, struct tool_facts *facts);
/* A new list of {"type": "function", "function": {...}}, the built-in tools first, in an order that
 * does not change; NULL without memory.  wanted: names, in which a * at the end stands for any
 * characters; NULL: all tools. */
json_t *toolset_functions(struct toolset *s, const json_t *wanted);
/* The MCP servers: a new list of {"name", "transport", "state", "n_tools", "error"}; NULL without
 * memory. */
json_t *toolset_servers(struct toolset *s);
/* Wait until no MCP server is starting for the first time, but at most `seconds`.  0: a server is
 * still starting, or *cancelled was set. */
int toolset_await(struct toolset *s, double seconds, const atomic_int *cancelled);
int toolset_n_servers(const struct toolset *s);
/* The number of a tool's MCP server, from 0; -1: built in, or unknown. */
int toolset_server_of(const struct toolset *s, const char *name);

/* Run a tool: malloc'd UTF-8, also if the tool reports an error (*is_error is 1); NULL with *e. */
char *toolset_run(struct toolset *s, const char *name, const json_t *arguments, const atomic_int *cancelled,
                  int *is_error, struct err *e);

#endif
