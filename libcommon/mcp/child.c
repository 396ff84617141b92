/* child.c - start and end child processes. */
#include "libcommon/mcp/child.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "libcommon/base/clock.h"

/* Become the program argv: runs in the child between fork and exec, so it may only make calls that
 * are safe there. */
static void become(const int from[3], int report, const char *const *argv, const char *const *env, const char *cwd)
{
    union { const char *const *in; char *const *out; } a = { .in = argv }, v = { .in = env };
    sigset_t none;
    int fd[3];
    sigemptyset(&none);
    signal(SIGPIPE, SIG_DFL);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int i = 0; i < 3; i++)                 /* move them above 0, 1 and 2, so that dup2() overwrites none of them */
        fd[i] = fcntl(from[i], F_DUPFD, 10);
    report = fcntl(report, F_DUPFD_CLOEXEC, 20);
    for (int i = 0; i < 3; i++)
        if (fd[i] < 0 || dup2(fd[i], i) < 0)
            goto fail;
    close_range(3, (unsigned)report - 1, 0);
    close_range((unsigned)report + 1, ~0U, 0);
    if (!cwd || chdir(cwd) == 0)
        execvpe(argv[0], a.out, v.out);
fail:;
    const int why = errno;
    const ssize_t n = write(report, &why, sizeof why);
    (void)n;
    _Exit(127);
}

static void close_both(int p[2])
{
    for (int i = 0; i < 2; i++)
        if (p[i] >= 0)
            close(p[i]);
    p[0] = p[1] = -1;
}

int child_start(struct child *c, const char *const *argv, const char *const *env, const char *cwd, struct err *e)
{
    int in[2] = { -1, -1 }, out[2] = { -1, -1 }, err[2] = { -1, -1 }, report[2] = { -1, -1 }, why = 0, rc = -1;
    *c = (struct child){ -1, -1, -1, -1 };
    if (pipe2(in, O_CLOEXEC) || pipe2(out, O_CLOEXEC) || pipe2(err, O_CLOEXEC) || pipe2(report, O_CLOEXEC)) {
        err_sys(e, "pipe");
        goto done;
    }
    const int from[3] = { in[0], out[1], err[1] };
    const pid_t pid = fork();
    if (pid == 0)
        become(from, report[1], argv, env, cwd);
    if (pid < 0) {
        err_sys(e, "fork");
        goto done;
    }
    close(report[1]);
    report[1] = -1;
    if (read(report[0], &why, sizeof why) == (ssize_t)sizeof why) {
        waitpid(pid, NULL, 0);
        err_set(e, ERR_IO, "%s: %s", argv[0], strerror(why));
        goto done;
    }
    *c = (struct child){ pid, in[1], out[0], err[0] };
    fcntl(c->in, F_SETFL, O_NONBLOCK);
    fcntl(c->out, F_SETFL, O_NONBLOCK);
    fcntl(c->err, F_SETFL, O_NONBLOCK);
    in[1] = out[0] = err[0] = -1;
    rc = 0;
done:
    close_both(in);
    close_both(out);
    close_both(err);
    close_both(report);
    return rc;
}

/* Wait for the process until until_ns (clock_ns()) at most.  1: it has ended; 0: it still runs. */
static int wait_for(pid_t pid, int *status, uint64_t until_ns)
{
    for (;;) {
        if (waitpid(pid, status, WNOHANG) != 0)
            return 1;
        if (clock_ns() >= until_ns)
            return 0;
        nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL);
    }
}

int child_end(struct child *c, double patience_s)
{
    const uint64_t half = (uint64_t)(patience_s * 0.5e9), now = clock_ns();
    int status = 0;
    if (c->pid <= 0)
        return 0;
    close(c->in);
    int gone = wait_for(c->pid, &status, now + half);
    if (!gone) {
        kill(-c->pid, SIGTERM);
        gone = wait_for(c->pid, &status, now + 2 * half);
    }
    kill(-c->pid, SIGKILL);                     /* its own child processes may still run */
    if (!gone)
        waitpid(c->pid, &status, 0);
    close(c->out);
    close(c->err);
    *c = (struct child){ -1, -1, -1, -1 };
    return status;
}
