/* secret_url.c - read URLs that may hold a password; messages do not quote them. */
#include "cmd/secret_url.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "cmd/cli.h"
#include "libcommon/access/keys.h"

static int take(const char *prog, const char *option, char *arg, char **out)
{
    free(*out);
    *out = strdup(arg);
    for (char *p = strstr(arg, "://") + 3; *p; p++)
        *p = '*';
    return *out ? 0 : cli_wrong(prog, "%s: out of memory", option);
}

int keys_url_take(const char *prog, char *arg, char **out)
{
    return keys_are_shared(arg) ? take(prog, "--keys", arg, out)
                                : cli_wrong(prog, "--keys: the URL does not begin with postgresql://");
}

int audit_url_take(const char *prog, char *arg, char **out)
{
    return strncasecmp(arg, "https://", 8) == 0 || strncasecmp(arg, "http://", 7) == 0
               ? take(prog, "--audit-url", arg, out)
               : cli_wrong(prog, "--audit-url: the URL begins neither with https:// nor with http://");
}

int audit_url_is_private(const char *url)
{
    static const char *const hosts[] = { "localhost", "127.0.0.1", "[::1]" };
    if (strncasecmp(url, "http://", 7) != 0)
        return 1;
    const char *host = url + 7;
    const size_t whole = strcspn(host, "/?#");
    for (size_t i = 0; i < whole; i++)          /* skip user and password */
        if (url[7 + i] == '@')
            host = url + 7 + i + 1;
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) {
        const size_t n = strlen(hosts[i]);
        if (strncasecmp(host, hosts[i], n) == 0 && (!host[n] || strchr(":/?#", host[n])))
            return 1;
    }
    return 0;
}
