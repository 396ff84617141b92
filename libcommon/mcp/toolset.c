/* toolset.c - built-in tools and MCP servers as one set. */
#include "libcommon/mcp/toolset.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/json.h"
#include "libcommon/base/utf8.h"
#include "libcommon/mcp/peer.h"
#include "libcommon/tools/native.h"

struct toolset {
    struct mcp_config config;
    struct mcp_peer *peer[MCP_MAX_SERVERS]; int n_peers;
};

struct toolset *toolset_open(const char *config, const char *const *env,
                             void (*changed)(void *user, const char *name, const char *text), void *user,
                             struct err *e)
{
    struct toolset *s = calloc(1, sizeof *s);
    if (!s) {
        err_nomem(e, "tools");
        return NULL;
    }
    int rc = config ? mcp_config_load(&s->config, config, e) : 0;
    for (; rc == 0 && s->n_peers < s->config.n; s->n_peers++)
        if (!(s->peer[s->n_peers] = mcp_peer_open(&s->config.server[s->n_peers], env, changed, user, e))) {
            rc = -1;
            break;
        }
    if (rc == 0)
        return s;
    toolset_close(s);
    return NULL;
}

void toolset_stop(struct toolset *s)
{
    for (int i = 0; i < s->n_peers; i++)
        mcp_peer_stop(s->peer[i]);
}

void toolset_close(struct toolset *s)
{
    if (!s)
        return;
    toolset_stop(s);                            /* tell all of them before waiting for the first one */
    for (int i = 0; i < s->n_peers; i++)
        mcp_peer_close(s->peer[i]);
    mcp_config_release(&s->config);
    free(s);
}

/* ---- which tools there are ---- */

int toolset_n_servers(const struct toolset *s) { return s->n_peers; }

int toolset_server_of(const struct toolset *s, const char *name)
{
    for (int i = 0; i < s->n_peers; i++) {
        const char *server = mcp_peer_config(s->peer[i])->name;
        const size_t n = strlen(server);
        if (strncmp(name, server, n) == 0 && strncmp(name + n, "__", 2) == 0)
            return i;
    }
    return -1;
}

static int is_true(const json_t *tool, const char *key) { return json_is_true(json_object_get(tool, key)); }

int toolset_find(struct toolset *s, const char *name, struct tool_facts *facts)
{
    const int i = toolset_server_of(s, name);
    *facts = (struct tool_facts){ .read_only = 1 };
    if (i < 0)
        return native_find(name) != NULL;
    json_t *tool = mcp_peer_tool(s->peer[i], name);
    if (!tool)
        return 0;
    *facts = (struct tool_facts){ .server = mcp_peer_config(s->peer[i])->name, .read_only = is_true(tool, "readOnly"),
                                  .destructive = is_true(tool, "destructive"), .confirm = is_true(tool, "confirm"),
                                  .approved = is_true(tool, "approved") };
    json_decref(tool);
    return 1;
}

/* Append the tools of an MCP server.  -1: no memory. */
static int peer_functions(struct mcp_peer *p, const json_t *wanted, json_t *list)
{
    json_t *tools = mcp_peer_tools(p), *t;
    size_t i;
    int bad = !tools;
    json_array_foreach(tools, i, t) {
        json_t *full = json_object_get(t, "full");
        if (wanted && !mcp_named(wanted, json_string_value(full)))
            continue;
        bad |= json_array_append_new(list, json_pack("{s:s, s:{s:O, s:O, s:O}}", "type", "function", "function", "name", full,
                                                     "description", json_object_get(t, "description"), "parameters",
                                                     json_object_get(t, "inputSchema")));
    }
    json_decref(tools);
    return bad ? -1 : 0;
}

json_t *toolset_functions(struct toolset *s, const json_t *wanted)
{
    json_t *list = json_array();
    int bad = !list;
    for (int i = 0; i < n_native_tools; i++)
        if (!wanted || mcp_named(wanted, native_tools[i].name))
            bad |= json_array_append_new(list, native_function(&native_tools[i]));
    for (int i = 0; i < s->n_peers && !bad; i++)
        bad |= peer_functions(s->peer[i], wanted, list);
    if (!bad)
        return list;
    json_decref(list);
    return NULL;
}

json_t *toolset_servers(struct toolset *s)
{
    static const char *const states[] = { "starting", "ready", "failed" };
    json_t *list = json_array();
    int bad = !list;
    for (int i = 0; i < s->n_peers; i++) {
        char why[300];
        int n;
        const enum mcp_state state = mcp_peer_state(s->peer[i], &n, why);
        const struct mcp_server_config *c = mcp_peer_config(s->peer[i]);
        json_t *error = *why ? js_text(why) : json_null();
        bad |= !error || json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:i, s:o}", "name", c->name, "transport",
                                                               c->url ? "http" : "stdio", "state", states[state],
                                                               "n_tools", n, "error", error));
    }
    if (!bad)
        return list;
    json_decref(list);
    return NULL;
}

int toolset_await(struct toolset *s, double seconds, const atomic_int *cancelled)
{
    const double until = clock_s() + seconds;
    for (int i = 0; i < s->n_peers;) {
        char why[300];
        int n;
        if (mcp_peer_state(s->peer[i], &n, why) != MCP_STARTING || *why)
            i++;
        else if (clock_s() > until || (cancelled && atomic_load(cancelled)))
            return 0;
        else
            nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL);
    }
    return 1;
}

/* ---- running ---- */

char *toolset_run(struct toolset *s, const char *name, const json_t *arguments, const atomic_int *cancelled,
                  int *is_error, struct err *e)
{
    const int i = toolset_server_of(s, name);
    const struct native_tool *t = native_find(name);
    const struct native_env env = { NATIVE_ZONEINFO, (int64_t)time(NULL) };
    char *text = NULL;
    *is_error = 0;
    if (cancelled && atomic_load(cancelled))
        err_set(e, ERR_CANCELLED, "cancelled");
    else if (i >= 0)
        text = mcp_peer_call(s->peer[i], name, arguments, cancelled, is_error, e);
    else if (t)
        text = native_run(t, &env, arguments, e);
    else
        err_set(e, ERR_FORMAT, "there is no tool '%.80s'", name);
    if (!text || utf8_valid(text, strlen(text)) == strlen(text))
        return text;
    free(text);
    err_set(e, ERR_FORMAT, "the result is not UTF-8");
    return NULL;
}
