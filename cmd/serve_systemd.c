/* serve_systemd.c - systemd's protocols for services. */
#include "cmd/serve_systemd.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmd/cli.h"

static const char prog[] = "zse-serve";
enum { FIRST_FD = 3 };                          /* SD_LISTEN_FDS_START */

/* Parse a decimal number from 0 to most; -1: it is not one. */
static long number(const char *text, long most)
{
    char *end;
    if (!text || *text < '0' || *text > '9')
        return -1;
    errno = 0;
    const long n = strtol(text, &end, 10);
    return errno == 0 && !*end && n <= most ? n : -1;
}

/* Name the sockets: LISTEN_FDNAMES has their names, separated by colons, if they have any. */
static void name_sockets(struct systemd *d, const char *names)
{
    for (int i = 0; i < d->n_sockets; i++) {
        const size_t n = names ? strcspn(names, ":") : 0;
        snprintf(d->names[i], sizeof d->names[i], "socket %d of LISTEN_FDS%s%.*s", i + 1, n ? ", " : "",
                 n < 60 ? (int)n : 60, names ? names : "");
        d->sockets[i] = (struct inherited_socket){ .fd = FIRST_FD + i, .name = d->names[i] };
        names = names && names[n] ? names + n + 1 : NULL;
    }
}

static int find_sockets(struct systemd *d, struct err *e)
{
    const char *pid = getenv("LISTEN_PID"), *fds = getenv("LISTEN_FDS");
    if (!pid || !fds)
        return 0;
    if (number(pid, INT32_MAX) != (long)getpid()) {
        cli_note(prog, "LISTEN_PID is '%s', this is process %ld: the sockets are not used", pid, (long)getpid());
        return 0;
    }
    const long n = number(fds, MOST_INHERITED);
    if (n < 0)
        return err_set(e, ERR_LIMIT, "LISTEN_FDS is '%s', expected a number of sockets, at most %d", fds, MOST_INHERITED);
    d->n_sockets = (int)n;
    name_sockets(d, getenv("LISTEN_FDNAMES"));
    /* this runs before the process opens any file: the file could get the number of a missing
     * socket and be taken for it */
    for (int i = 0; i < d->n_sockets; i++)
        if (fcntl(d->sockets[i].fd, F_SETFD, FD_CLOEXEC) != 0)
            return err_sys(e, "%s", d->sockets[i].name);
    return 0;
}

static void find_notify(struct systemd *d)
{
    const char *path = getenv("NOTIFY_SOCKET"), *pid = getenv("WATCHDOG_PID");
    if (!path || !*path)
        return;
    const size_t n = strlen(path);
    if ((*path != '/' && *path != '@') || n >= sizeof d->to.sun_path) {
        cli_note(prog, "NOTIFY_SOCKET is '%s', expected the path of a Unix socket: systemd is told nothing", path);
        return;
    }
    d->to.sun_family = AF_UNIX;
    memcpy(d->to.sun_path, path, n);
    if (*path == '@')                           /* the abstract name space */
        d->to.sun_path[0] = '\0';
    d->to_size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n + (*path == '/'));
    d->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    d->watchdog = number(getenv("WATCHDOG_USEC"), INT64_MAX) > 0 &&
                  (!pid || number(pid, INT32_MAX) == (long)getpid());
}

int systemd_open(struct systemd *d, struct err *e)
{
    static const char *const variables[] = { "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "NOTIFY_SOCKET",
                                             "WATCHDOG_USEC", "WATCHDOG_PID" };
    *d = (struct systemd){ .fd = -1 };
    const int rc = find_sockets(d, e);
    find_notify(d);
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++)
        unsetenv(variables[i]);
    return rc;
}

void systemd_release(struct systemd *d)
{
    if (d->fd >= 0)
        close(d->fd);
    d->fd = -1;
}

static int tell(struct systemd *d, const char *text)
{
    const struct sockaddr *to = (const struct sockaddr *)&d->to;
    if (sendto(d->fd, text, strlen(text), MSG_DONTWAIT | MSG_NOSIGNAL, to, d->to_size) >= 0)
        return 0;
    if (!d->failed)
        cli_note(prog, "NOTIFY_SOCKET: %s", strerror(errno));
    d->failed = 1;
    return -1;
}

/* Loading and stopping may take longer than the unit's limits (a conversion, --drain): both are
 * extended as long as the loop runs. */
#define MORE_TIME "EXTEND_TIMEOUT_USEC=30000000"

void systemd_state(struct systemd *d, enum server_state state)
{
    static const char *const changes[] = {
        [SERVER_LOADING] = "STATUS=loading models", [SERVER_READY] = "READY=1\nSTATUS=ready",
        [SERVER_STALLED] = "STATUS=a step of a model does not end",
        [SERVER_STOPPING] = "STOPPING=1\nSTATUS=waiting for running requests",
    };
    if (d->fd < 0)
        return;
    if (d->told != 1 + (int)state && tell(d, changes[state]) == 0)      /* else it is sent next time */
        d->told = 1 + (int)state;
    if (state == SERVER_LOADING || state == SERVER_STOPPING)
        tell(d, MORE_TIME);
    if (d->watchdog && state != SERVER_STALLED)
        tell(d, "WATCHDOG=1");
}
