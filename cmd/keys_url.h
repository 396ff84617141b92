/* keys_url.h - the option --keys URL of zse-serve and zse-apikey. */
#ifndef ZSE_CMD_KEYS_URL_H
#define ZSE_CMD_KEYS_URL_H

/* Copy the URL of a PostgreSQL database to *out (owned; an earlier one is freed), and hide it in
 * arg, which other users see in the list of processes.  0, or the exit code of wrong usage. */
int keys_url_take(const char *prog, char *arg, char **out);

#endif
