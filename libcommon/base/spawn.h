/* spawn.h - start a program in a process group of its own, with few open files. */
#ifndef ZSE_BASE_SPAWN_H
#define ZSE_BASE_SPAWN_H

#include <sys/types.h>

#include "libcommon/base/err.h"

struct spawn {
    const char *const *argv, *const *env;   /* end with NULL; argv[0] is the path of the program */
    const char *folder;                     /* working directory; NULL: unchanged */
    int in;                                 /* its standard input; -1: /dev/null */
    int *out, *err;                         /* read ends of pipes from its outputs; NULL: /dev/null */
};

/* *pid = the new process.  It starts with no signals blocked or ignored, and inherits only the
 * files named in s.  The caller closes *out and *err.  -1 on failure, with *e; then there is
 * nothing to close. */
int spawn_start(const struct spawn *s, pid_t *pid, struct err *e);

#endif
