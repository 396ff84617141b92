/* spawn.c - start a program with posix_spawn. */
#include "libcommon/base/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <unistd.h>

/* Make the program's file `fd` the write end `end` of a pipe, or /dev/null if there is none. */
static void give_output(posix_spawn_file_actions_t *files, int fd, int end)
{
    if (end >= 0)
        posix_spawn_file_actions_adddup2(files, end, fd);
    else
        posix_spawn_file_actions_addopen(files, fd, "/dev/null", O_WRONLY, 0);
}

static int start(const struct spawn *s, int out, int err, pid_t *pid)
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attr;
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attr);
    if (s->in >= 0)
        posix_spawn_file_actions_adddup2(&files, s->in, 0);
    else
        posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    give_output(&files, 1, out);
    give_output(&files, 2, err);
#if defined __GLIBC__ && __GLIBC_PREREQ(2, 34)
    posix_spawn_file_actions_addclosefrom_np(&files, 3);
#endif
    if (s->folder)
        posix_spawn_file_actions_addchdir_np(&files, s->folder);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setsigdefault(&attr, &all);
    posix_spawnattr_setpgroup(&attr, 0);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
    union { const char *const *in; char *const *out; } argv = { .in = s->argv }, env = { .in = s->env };
    const int rc = posix_spawn(pid, s->argv[0], &files, &attr, argv.out, env.out);
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attr);
    return rc;
}

static void close_fd(int fd)
{
    if (fd >= 0)
        close(fd);
}

int spawn_start(const struct spawn *s, pid_t *pid, struct err *e)
{
    int out[2] = { -1, -1 }, err[2] = { -1, -1 };
    int rc = (s->out && pipe2(out, O_CLOEXEC)) || (s->err && pipe2(err, O_CLOEXEC)) ? errno
                                                                                    : start(s, out[1], err[1], pid);
    close_fd(out[1]);
    close_fd(err[1]);
    if (rc) {
        close_fd(out[0]);
        close_fd(err[0]);
        errno = rc;
        return err_sys(e, "%s", s->argv[0]);
    }
    if (s->out)
        *s->out = out[0];
    if (s->err)
        *s->err = err[0];
    return 0;
}
