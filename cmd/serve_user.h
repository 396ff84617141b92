/* serve_user.h - zse-serve --user: begin as root, go on as somebody else. */
#ifndef ZSE_CMD_SERVE_USER_H
#define ZSE_CMD_SERVE_USER_H

#include <sys/types.h>

#include "libcommon/base/err.h"

struct serve_user {
    char *name, *home;                  /* owned */
    uid_t uid;
    gid_t gid;
};
/* NAME or NAME:GROUP, names or numbers that the system knows. Fails for root, and where the
 * process is not root's. */
int serve_user_find(struct serve_user *u, const char *text, struct err *e);
void serve_user_release(struct serve_user *u);
/* HOME, USER and LOGNAME become the user's. */
int serve_user_environment(const struct serve_user *u, struct err *e);
/* A folder that is made here if it is missing, mode 0700, is the user's; one that is there stays
 * as it is. */
int serve_user_folder(const struct serve_user *u, const char *path, struct err *e);
/* A Unix socket that root has bound. */
int serve_user_socket(const struct serve_user *u, const char *path, struct err *e);
/* For good: identity, groups and capabilities go, and it is tried that they do not come back.
 * Before there are other threads. */
int serve_user_become(const struct serve_user *u, struct err *e);

#endif
