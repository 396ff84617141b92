/* t-mcp-peer.c - servers of MCP that fail in ways of their own, as child processes of a client. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "libcommon/base/clock.h"
#include "libcommon/mcp/peer.h"

static const char *const env[] = { "PATH=/usr/bin:/bin", NULL };

/* The configuration of one server, a shell script; release it after the peer. */
static void configure(struct mcp_config *c, const char *script)
{
    json_t *v = json_pack("{s:{s:{s:s, s:[s, s]}}}", "mcpServers", "s", "command", "/bin/sh", "args", "-c", script);
    char *text = json_dumps(v, 0);
    struct err e;
    if (mcp_config_parse(c, "config", text, strlen(text), &e) != 0)
        fail_msg("%s", e.msg);
    free(text);
    json_decref(v);
}

/* Wait for a state, at most a minute. */
static void await_state(struct mcp_peer *p, enum mcp_state wanted, char why[300])
{
    const double until = clock_s() + 60;
    int n;
    while (mcp_peer_state(p, &n, why) != wanted) {
        if (clock_s() > until)
            fail_msg("after a minute not in state %d: %s", wanted, why);
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    }
}

/* A server that ends after its start, and that hangs when it is started again. */
static void test_reason_while_restarting(void **state)
{
    struct mcp_config c;
    struct err e;
    char folder[] = "/tmp/zse-peer-XXXXXX", script[200], why[300];
    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(script, sizeof script, "cd %s && mkdir second 2>/dev/null && echo broken >&2 && exit 3; exec sleep 100", folder);
    configure(&c, script);
    struct mcp_peer *p = mcp_peer_open(&c.server[0], env, NULL, NULL, &e);
    assert_non_null(p);
    await_state(p, MCP_STARTING, why);
    assert_string_equal(why, "");
    await_state(p, MCP_FAILED, why);
    assert_string_equal(why, "s: the server ended with status 3: broken");
    await_state(p, MCP_STARTING, why);
    assert_string_equal(why, "s: the server ended with status 3: broken");
    mcp_peer_close(p);
    mcp_config_release(&c);
    snprintf(script, sizeof script, "%s/second", folder);
    rmdir(script);
    rmdir(folder);
}

/* A server that reads no more after its first answer: the next request cannot be written. */
static void test_reason_of_a_failed_write(void **state)
{
    struct mcp_config c;
    struct err e;
    char why[300];
    (void)state;
    configure(&c, "read -r line; exec <&-; id=${line#*\\\"id\\\":}; id=${id%%[!0-9]*}; "
                  "echo \"{\\\"jsonrpc\\\":\\\"2.0\\\",\\\"id\\\":$id,\\\"error\\\":{\\\"code\\\":-32601,"
                  "\\\"message\\\":\\\"unknown\\\"}}\"; sleep .3; echo broken >&2; exit 3");
    struct mcp_peer *p = mcp_peer_open(&c.server[0], env, NULL, NULL, &e);
    assert_non_null(p);
    await_state(p, MCP_FAILED, why);
    assert_string_equal(why, "s: the server ended with status 3: broken");
    mcp_peer_close(p);
    mcp_config_release(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reason_of_a_failed_write),
        cmocka_unit_test(test_reason_while_restarting),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
