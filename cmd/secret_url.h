/* secret_url.h - options whose URL may hold a password. */
#ifndef ZSE_CMD_SECRET_URL_H
#define ZSE_CMD_SECRET_URL_H

/* Copy the URL to *out (owned; an earlier one is freed), and hide it in arg, which other users see
 * in the list of processes.  0, or the exit code of wrong usage.  keys: of a PostgreSQL database;
 * audit: http or https. */
int keys_url_take(const char *prog, char *arg, char **out);
int audit_url_take(const char *prog, char *arg, char **out);
/* Whether what is sent to this http or https URL cannot be read on the network: it is https, or its
 * host is this machine. */
int audit_url_is_private(const char *url);

#endif
