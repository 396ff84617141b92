/* serve_user.h - zse-serve --user: start as root, continue as another user. */
#ifndef ZSE_CMD_SERVE_USER_H
#define ZSE_CMD_SERVE_USER_H

#include <sys/types.h>

#include "libcommon/base/err.h"

struct serve_user {
    char *name, *home;                  /* owned */
    uid_t uid;
    gid_t gid;
};
/* Parse NAME or NAME:GROUP, by names or numbers of the system.  Fails for root, and if the process
 * is not root's. */
int serve_user_find(struct serve_user *u, const char *text, struct err *e);
void serve_user_release(struct serve_user *u);
/* Set HOME, USER and LOGNAME to the user's. */
int serve_user_environment(const struct serve_user *u, struct err *e);
/* Make a folder that belongs to the user, mode 0700; an existing one is left unchanged. */
int serve_user_folder(const struct serve_user *u, const char *path, struct err *e);
/* Make the user the owner of a Unix socket that root has bound. */
int serve_user_socket(const struct serve_user *u, const char *path, struct err *e);
/* Drop identity, groups and capabilities permanently, and verify that they cannot be regained.
 * Call it before there are other threads. */
int serve_user_become(const struct serve_user *u, struct err *e);

#endif
