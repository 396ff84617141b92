/* serve_mcp.c - zse-serve --mcp-stdio: the tools over standard input and output, for programs that
 * start their MCP servers themselves. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cmd/cli.h"
#include "cmd/zse-serve.h"
#include "libcommon/base/json.h"
#include "libcommon/mcp/mcp_server.h"
#include "libcommon/tools/native.h"

enum { MAX_LINE = 4 << 20 };

static json_t *tools(void *user)
{
    (void)user;
    return native_mcp_tools();
}

static int has_tool(void *user, const char *name)
{
    (void)user;
    return native_find(name) != NULL;
}

static json_t *resources(void *user)
{
    (void)user;
    return json_array();
}

static json_t *no_resource(void *user, const char *uri)
{
    (void)user;
    (void)uri;
    return NULL;
}

/* Read a line into text [MAX_LINE] without its end.  Returns its size, MAX_LINE if it is too long
 * (the rest is skipped), -1 at the end of the input. */
static long read_line(char *text)
{
    long n = 0;
    int c;
    while ((c = getchar_unlocked()) != EOF && c != '\n')
        if (n < MAX_LINE)
            text[n++] = (char)c;
    return c == EOF && n == 0 ? -1 : n;
}

static json_t *run_call(const struct mcp_answer *a)
{
    const struct native_env env = { NATIVE_ZONEINFO, (int64_t)time(NULL) };
    struct err e = { .msg = "" };
    char *text = native_run(native_find(a->name), &env, a->arguments, &e);
    json_t *message = mcp_call_answer(a, text ? text : e.msg, !text);
    free(text);
    return message;
}

/* The answer to one line; NULL: the message needs none. */
static json_t *answer(const char *text, long size)
{
    static const struct mcp_host host = { .tools = tools, .has_tool = has_tool, .resources = resources,
                                          .read = no_resource };
    struct mcp_answer a;
    struct err e;
    if (size == MAX_LINE)
        return mcp_parse_error("a line of more than 4 MiB");
    json_t *message = js_parse("line", text, (size_t)size, &e);
    if (!message)
        return mcp_parse_error(e.msg);
    mcp_answer(&host, message, NULL, &a);
    json_t *out = a.is_call ? run_call(&a) : json_incref(a.message);
    mcp_answer_release(&a);
    json_decref(message);
    return out;
}

int serve_mcp_stdio(void)
{
    char *text = malloc(MAX_LINE);
    long n;
    while (text && (n = read_line(text)) >= 0) {
        json_t *out = n ? answer(text, n) : NULL;
        if (out && (json_dumpf(out, stdout, JSON_COMPACT) != 0 || putchar('\n') == EOF || fflush(stdout) != 0))
            n = -2;
        json_decref(out);
        if (n == -2)
            break;
    }
    free(text);
    return cli_finish("zse-serve");
}
