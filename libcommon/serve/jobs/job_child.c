/* job_child.c - run the program that downloads or converts, and read its output. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/json.h"
#include "libcommon/base/spawn.h"
#include "libcommon/base/utf8.h"
#include "libcommon/serve/internal.h"
#include "libcommon/serve/jobs/jobs.h"

/* GRACE_*: seconds between SIGTERM and SIGKILL, for a cancelled job and when the server stops.
 * RATE_NS: longest period over which a rate is measured; it begins when the step begins. */
enum { POLL_MS = 100, LINE = 4096, GRACE_CANCEL_S = 15, GRACE_STOP_S = 4, MOST_S = 48 * 3600 };
#define RATE_NS UINT64_C(30000000000)

static void measure(struct job_progress *p, uint64_t done, uint64_t now)
{
    if (now - p->first_ns > RATE_NS) {          /* forget half of the period, so that the rate follows the network */
        const double half = (double)(now - p->first_ns) / 2;
        p->first = done - (uint64_t)((double)(done - p->first) / 2);
        p->first_ns = now - (uint64_t)half;
    }
    if (now > p->first_ns + 500000000u && done > p->first)
        p->rate = (double)(done - p->first) / ((double)(now - p->first_ns) * 1e-9);
}

int job_read_line(const char *line, struct job_progress *p, char *message, size_t room, uint64_t now_ns)
{
    struct err ignored;
    const char *step = NULL, *unit = NULL;
    int64_t done = 0, total = 0;
    json_t *j = *line == '{' ? js_parse("progress", line, strlen(line), &ignored) : NULL;
    if (j && js_string(j, "step", &step, &ignored) == 0 && js_string(j, "unit", &unit, &ignored) == 0 &&
        js_int(j, "done", 0, INT64_MAX, &done, &ignored) == 0 &&
        js_int(j, "total", 0, INT64_MAX, &total, &ignored) == 0) {
        if (strncmp(p->step, step, sizeof p->step - 1) != 0 || (uint64_t)done < p->done) {
            snprintf(p->step, sizeof p->step, "%s", step);
            p->rate = 0;
            p->first = (uint64_t)done;
            p->first_ns = now_ns;
        }
        snprintf(p->unit, sizeof p->unit, "%s", unit);
        p->done = (uint64_t)done;
        p->total = (uint64_t)total;
        p->at_ns = now_ns;
        measure(p, p->done, now_ns);
    } else if (*line) {                         /* "zse-convert: message" */
        const char *colon = strncmp(line, "zse-", 4) == 0 ? strstr(line, ": ") : NULL;
        const char *said = colon ? colon + 2 : line;
        static const char nothing_here[] = "no such file or folder here; on the hub: ";
        if (strncmp(said, nothing_here, sizeof nothing_here - 1) == 0)
            said += sizeof nothing_here - 1;
        snprintf(message, room, "%s", said);
        step = NULL;
    }
    json_decref(j);
    return step != NULL;
}

/* ---- the process ---- */

/* Let the OOM killer choose the child before the server. */
static void offer_to_oom_killer(pid_t pid)
{
    char path[40];
    snprintf(path, sizeof path, "/proc/%ld/oom_score_adj", (long)pid);
    const int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    if (write(fd, "1000", 4) < 0)               /* the job runs even if this fails */
        errno = 0;
    close(fd);
}

/* The current line of the child's messages; a longer line is cut. */
struct line_reader { char text[LINE]; size_t n; };

static void take_line(struct jobs *js, struct job *j, struct line_reader *r)
{
    r->text[r->n] = '\0';
    if (r->n && utf8_valid(r->text, r->n) != r->n)
        for (size_t i = 0; i < r->n; i++)
            r->text[i] = (unsigned char)r->text[i] < 128 ? r->text[i] : '?';
    pthread_mutex_lock(&js->lock);
    job_read_line(r->text, &j->progress, j->message, sizeof j->message, clock_ns());
    pthread_mutex_unlock(&js->lock);
    r->n = 0;
    if (!atomic_exchange(&js->moved, 1))
        loop_wake(js->s->loop);
}

/* Read the child's messages once.  1: more may come; 0: end of file. */
static int read_some(struct jobs *js, struct job *j, int fd, struct line_reader *r)
{
    char bytes[4096];
    const ssize_t n = read(fd, bytes, sizeof bytes);
    if (n < 0)
        return errno == EINTR || errno == EAGAIN;
    for (ssize_t i = 0; i < n; i++) {
        if (bytes[i] == '\n')
            take_line(js, j, r);
        else if (r->n < LINE - 1)
            r->text[r->n++] = bytes[i];
    }
    return n > 0;
}

/* Read until the child ends, and send it signals when the job is cancelled.  Returns its status. */
static int wait_for(struct jobs *js, struct job *j, pid_t pid, int fd, int *ended)
{
    struct line_reader r = { .n = 0 };
    struct pollfd p = { fd, POLLIN, 0 };
    uint64_t start = clock_ns(), asked = 0;
    int status = 0, open = 1;
    for (;;) {
        if (open && poll(&p, 1, POLL_MS) > 0)
            open = read_some(js, j, fd, &r);
        else if (!open)
            nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL);
        if (!open && waitpid(pid, &status, WNOHANG) == pid)
            break;
        const uint64_t now = clock_ns();
        const int stop = atomic_load(&js->stop), late = now - start > (uint64_t)MOST_S * 1000000000u;
        if (!asked && (stop || late || atomic_load(&j->cancel))) {
            *ended = 1;
            asked = now;
            kill(-pid, SIGTERM);
        }
        if (asked && now - asked > (uint64_t)(stop ? GRACE_STOP_S : GRACE_CANCEL_S) * 1000000000u) {
            kill(-pid, SIGKILL);
            while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
                ;
            break;
        }
    }
    if (r.n)
        take_line(js, j, &r);
    return status;
}

int job_run(struct jobs *js, struct job *j)
{
    struct err e;
    pid_t pid;
    int fd, ended = 0;
    /* run it in the folder of models, so that org/name can mean a model on the hub or a model in
     * that folder, but no other file */
    const struct spawn program = { .argv = (const char *const *)j->command, .env = js->s->o.maker.env,
                                   .folder = js->s->o.maker.folder, .in = -1, .err = &fd };
    if (spawn_start(&program, &pid, &e) != 0) {
        pthread_mutex_lock(&js->lock);
        snprintf(j->message, sizeof j->message, "%s", e.msg);
        pthread_mutex_unlock(&js->lock);
        return -1;
    }
    setpriority(PRIO_PROCESS, (id_t)pid, 10);   /* low priority: answers are more urgent */
    offer_to_oom_killer(pid);
    const int status = wait_for(js, j, pid, fd, &ended);
    close(fd);
    pthread_mutex_lock(&js->lock);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
        if (strncmp(j->message, "downloading ", 12) == 0)       /* clear the progress; warnings stay */
            j->message[0] = '\0';
        pthread_mutex_unlock(&js->lock);
        return 0;
    }
    if (ended)
        snprintf(j->message, sizeof j->message, "cancelled; the same request resumes it");
    else if (WIFSIGNALED(status))
        snprintf(j->message, sizeof j->message, "%s was ended by signal %d", strrchr(j->command[0], '/') + 1,
                 WTERMSIG(status));
    else if (!*j->message)
        snprintf(j->message, sizeof j->message, "exit status %d", WEXITSTATUS(status));
    pthread_mutex_unlock(&js->lock);
    return -1;
}
