/* native.h - the tools that need no other program: one table with the name, the JSON Schema of the
 * arguments and the function of each.
 *
 * Tools are pure: they read their arguments and the environment that the caller passes, and write
 * text.  They run in bounded time and memory for any arguments, in any thread. */
#ifndef ZSE_TOOLS_NATIVE_H
#define ZSE_TOOLS_NATIVE_H

#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "libcommon/base/err.h"

/* Bytes of a result; a tool that would write more fails. */
enum { NATIVE_MAX_OUTPUT = 256 << 10 };

#define NATIVE_ZONEINFO "/usr/share/zoneinfo"
struct native_env {
    const char *zoneinfo;               /* folder of the time zones */
    int64_t now_s;                      /* Unix time */
};

struct native_tool {
    const char *name, *description;
    const char *parameters;             /* JSON Schema of an object */
    /* arguments obey the schema.  malloc'd text; NULL with *e. */
    char *(*run)(const struct native_env *env, const json_t *arguments, struct err *e);
};
extern const struct native_tool native_tools[];
extern const int n_native_tools;

const struct native_tool *native_find(const char *name);           /* NULL: none */
/* A tool as MCP describes it, and as OpenAI writes functions; NULL without memory. */
json_t *native_mcp_tool(const struct native_tool *t);
json_t *native_function(const struct native_tool *t);
json_t *native_mcp_tools(void);                         /* a new list of all of them */
/* Check the arguments against the schema and run the tool.  malloc'd text; NULL with *e, whose
 * message is meant for the model. */
char *native_run(const struct native_tool *t, const struct native_env *env, const json_t *arguments, struct err *e);
/* Check that the arguments satisfy the schema.  Only the keywords that the built-in tools use are
 * known: type, properties, required, enum, items, additionalProperties: false.  0, or -1 with *e
 * naming the argument. */
int native_check(const json_t *schema, const json_t *arguments, struct err *e);

#endif
