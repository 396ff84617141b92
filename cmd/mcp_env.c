/* mcp_env.c - choose the variables of the environment that MCP servers get. */
#include "cmd/mcp_env.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char **mcp_env(void)
{
    static const char *const names[] = { "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ",
                                         "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME" };
    const char **env = calloc(sizeof names / sizeof *names + 1, sizeof *env);
    int n = 0;
    for (size_t i = 0; env && i < sizeof names / sizeof *names; i++)
        for (char **v = environ; *v; v++)
            if (strncmp(*v, names[i], strlen(names[i])) == 0 && (*v)[strlen(names[i])] == '=')
                env[n++] = *v;
    return env;
}
