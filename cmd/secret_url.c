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
