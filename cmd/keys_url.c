/* keys_url.c - read the URL of the database of keys, which may hold a password. */
#include "cmd/keys_url.h"

#include <stdlib.h>
#include <string.h>

#include "cmd/cli.h"
#include "libcommon/access/keys.h"

int keys_url_take(const char *prog, char *arg, char **out)
{
    if (!keys_are_shared(arg))      /* it is not quoted: it may hold a password all the same */
        return cli_wrong(prog, "--keys: the URL does not begin with postgresql://");
    free(*out);
    *out = strdup(arg);
    for (char *p = strstr(arg, "://") + 3; *p; p++)
        *p = '*';
    return *out ? 0 : cli_wrong(prog, "--keys: out of memory");
}
