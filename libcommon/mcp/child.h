/* child.h - a child process in a process group of its own, with pipes to its standard streams and
 * no other file of ours. */
#ifndef ZSE_MCP_CHILD_H
#define ZSE_MCP_CHILD_H

#include <sys/types.h>

#include "libcommon/base/err.h"

struct child { pid_t pid; int in, out, err; };          /* in: the pipe to its standard input; -1: closed */

/* Start a program (sought in PATH).  argv and env end with NULL.  The kernel kills the program if
 * the calling thread ends.  The pipes do not block. */
int child_start(struct child *c, const char *const *argv, const char *const *env, const char *cwd, struct err *e);
/* Close the pipes and end the process group: first its input ends, then it gets SIGTERM, then
 * SIGKILL, each after patience_s / 2.  Returns the status of waitpid. */
int child_end(struct child *c, double patience_s);

#endif
