/* fuzz-mcp.c - any JSON as a message to the MCP server, with and without headers, and any text as a
 * configuration of servers.  build: scripts/fuzz mcp */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "libcommon/base/json.h"
#include "libcommon/mcp/mcp_config.h"
#include "libcommon/mcp/mcp_server.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static json_t *list(void *user)
{
    (void)user;
    return json_array();
}

static int has(void *user, const char *name)
{
    (void)user;
    return name[0] == 'c';
}

static json_t *get(void *user, const char *uri)
{
    (void)user;
    return uri[0] == 'z' ? json_object() : NULL;
}

static void answer(const json_t *message, const struct mcp_headers *headers)
{
    static const struct mcp_host host = { .tools = list, .has_tool = has, .resources = list, .read = get };
    struct mcp_answer a;
    mcp_answer(&host, message, headers, &a);
    if (a.status == 503 || (a.is_call ? !json_is_object(a.arguments) || a.message : a.status != 202 && !a.message))
        abort();
    if (a.is_call)
        json_decref(mcp_call_answer(&a, "x", 0));
    mcp_answer_release(&a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct mcp_headers headers = { "2026-07-28", "tools/call", "=?base64?Y2FsYw==?=", NULL };
    struct mcp_config c;
    struct err e = { .msg = "" };
    json_t *message = js_parse("message", data, size, &e);
    if (message) {
        answer(message, NULL);
        answer(message, &headers);
    }
    json_decref(message);
    if (mcp_config_parse(&c, "config", (const char *)data, size, &e) != 0 && !e.msg[0])
        abort();
    mcp_config_release(&c);
    return 0;
}
