/* program.c - run programs with limits, and read what they print. */
#include "libcommon/rag/program.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/spawn.h"

enum { PATIENCE_MS = 50 };              /* between two looks at the flag of cancellation */

const char *program_find(const char *name, char path[256])
{
    static const char *const folders[] = { "/usr/bin", "/usr/local/bin", "/bin", "/opt/homebrew/bin" };
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        snprintf(path, 256, "%s/%s", folders[i], name);
        if (access(path, X_OK) == 0)
            return path;
    }
    return NULL;
}

/* Make a file in memory with these bytes, to be read from its beginning.  -1 with *e. */
static int file_of(const void *data, size_t size, struct err *e)
{
    const int fd = memfd_create("document", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    size_t done = 0;
    while (fd >= 0 && done < size) {
        const ssize_t n = write(fd, (const char *)data + done, size - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        done += (size_t)n;
    }
    if (fd >= 0 && done == size && lseek(fd, 0, SEEK_SET) == 0) {
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE);
        return fd;
    }
    err_sys(e, "a file in memory of %zu bytes", size);
    if (fd >= 0)
        close(fd);
    return -1;
}

struct process { pid_t pid; int out, err; const char *name; };

/* Set the program's limits from the parent process right after its start, before it can do harm. */
static void limit(pid_t pid, const struct program_limits *l)
{
    const rlim_t cpu = (rlim_t)l->timeout_s + 1;
    const struct { int what; rlim_t most; } limits[] = {
        { RLIMIT_AS, l->memory_bytes }, { RLIMIT_CPU, cpu }, { RLIMIT_FSIZE, 0 }, { RLIMIT_NOFILE, 32 },
        { RLIMIT_CORE, 0 },
    };
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        prlimit(pid, limits[i].what, &(struct rlimit){ limits[i].most, limits[i].most }, NULL);
    setpriority(PRIO_PROCESS, (id_t)pid, 10);
}

/* Read once from fd: output to out, or messages to said if out is NULL.  1: there may be more; 0:
 * its end. */
static int read_some(int fd, struct text_build *out, char *said, size_t room)
{
    char bytes[16384];
    const ssize_t n = read(fd, bytes, sizeof bytes);
    if (n < 0)
        return errno == EINTR || errno == EAGAIN;
    if (out) {
        build_add(out, bytes, (size_t)n);
    } else {
        const size_t had = strlen(said), left = room - 1 - had, take = (size_t)n < left ? (size_t)n : left;
        memcpy(said + had, bytes, take);
        said[had + take] = '\0';
    }
    return n > 0;
}

static int is_over(const struct program_limits *l, uint64_t until, const char *name, struct err *e)
{
    if (l->cancel && atomic_load(l->cancel))
        return err_set(e, ERR_CANCELLED, "the request was cancelled");
    if (clock_ns() >= until)
        return err_set(e, ERR_LIMIT, "%s did not read the document within %g s", name, l->timeout_s);
    return 0;
}

/* Read until all programs have closed their outputs. */
static int read_all(struct program *p, const struct process *run, int n, const struct program_limits *l,
                    uint64_t until, struct err *e)
{
    struct pollfd fds[2 * PROGRAMS_MAX];
    int open = 2 * n;
    for (int i = 0; i < 2 * n; i++)
        fds[i] = (struct pollfd){ i % 2 ? run[i / 2].err : run[i / 2].out, POLLIN, 0 };
    while (open > 0) {
        if (is_over(l, until, run->name, e))
            return -1;
        if (poll(fds, (nfds_t)(2 * n), PATIENCE_MS) <= 0)
            continue;
        for (int i = 0; i < 2 * n; i++) {
            struct program *it = &p[i / 2];
            if (fds[i].fd >= 0 && fds[i].revents &&
                !read_some(fds[i].fd, i % 2 ? NULL : it->out, it->said, sizeof it->said)) {
                fds[i].fd = -1;
                open--;
            }
            if (it->out->state != TEXT_GOOD)
                return build_end(it->out, e);
        }
    }
    return 0;
}

/* Wait for the end of a program; after `until`, or if rc is -1, it is killed. */
static int reap(const struct process *p, const struct program_limits *l, uint64_t until, int rc, int *status,
                struct err *e)
{
    int how = 0;
    pid_t got;
    while (rc == 0 && (got = waitpid(p->pid, &how, WNOHANG)) == 0) {
        rc = is_over(l, until, p->name, e);
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    }
    if (rc) {
        kill(-p->pid, SIGKILL);
        while (waitpid(p->pid, &how, 0) < 0 && errno == EINTR)
            ;
        return rc;
    }
    *status = WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how);
    if (WIFSIGNALED(how) && (WTERMSIG(how) == SIGXCPU || WTERMSIG(how) == SIGKILL))
        return err_set(e, ERR_LIMIT, "%s did not read the document within %g s", p->name, l->timeout_s);
    return 0;
}

static int start(struct program *p, int in, const struct program_limits *l, struct process *run, struct err *e)
{
    static const char *const environment[] = { "PATH=/usr/bin:/bin", "LC_ALL=C.UTF-8", "HOME=/nonexistent", NULL };
    const char *slash = strrchr(p->argv[0], '/');
    run->name = slash ? slash + 1 : p->argv[0];
    p->said[0] = '\0';
    const struct spawn s = { .argv = p->argv, .env = environment, .in = in, .out = &run->out, .err = &run->err };
    if (spawn_start(&s, &run->pid, e))
        return -1;
    limit(run->pid, l);
    return 0;
}

int program_run(struct program *p, int n, const void *data, size_t size, const struct program_limits *l,
                struct err *e)
{
    struct process run[PROGRAMS_MAX];
    int n_started = 0;
    const int in = file_of(data, size, e);
    if (in < 0)
        return -1;
    int rc = 0;
    while (n_started < n && (rc = start(&p[n_started], in, l, &run[n_started], e)) == 0)
        n_started++;
    close(in);
    const uint64_t until = clock_ns() + (uint64_t)(l->timeout_s * 1e9);
    if (rc == 0)
        rc = read_all(p, run, n, l, until, e);
    for (int i = 0; i < n_started; i++) {
        close(run[i].out);
        close(run[i].err);
        rc = reap(&run[i], l, until, rc, &p[i].status, e);
    }
    return rc;
}
