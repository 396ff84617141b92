/* audit_syslog.c - a queue of syslog messages and the thread that sends them. */
#include "libcommon/access/audit_syslog.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/thread.h"

enum { PRIORITY = 13 * 8 + 6, LOOK_MS = 100, CONNECT_MS = 5000, SEND_MS = 5000, AGAIN_MS = 1000 };

struct syslog_message { struct syslog_message *next; size_t n; char text[]; };

struct audit_syslog {
    int type;                               /* SOCK_DGRAM or SOCK_STREAM */
    struct sockaddr_un unix_address;        /* sun_path "": use host and port */
    char host[256], port[32], name[256];    /* name: host name of this machine */
    int fd;                                 /* used by the thread; -1: not connected */
    pthread_t thread;
    pthread_mutex_t mutex;                  /* protects everything below */
    pthread_cond_t wake, done;
    struct syslog_message *first, **last;
    size_t bytes;
    int stopping, ended;
    uint64_t until_ns;                      /* deadline once stopping */
    struct audit_remote_stats stats;
};

/* ---- the target ---- */

static int parse_target(struct audit_syslog *s, const char *target, struct err *e)
{
    s->type = SOCK_DGRAM;
    if (*target == '/') {
        s->unix_address.sun_family = AF_UNIX;
        if (strlen(target) >= sizeof s->unix_address.sun_path)
            return err_set(e, ERR_FORMAT, "--audit-syslog: %s: the path of a socket has at most %zu bytes", target,
                           sizeof s->unix_address.sun_path - 1);
        strcpy(s->unix_address.sun_path, target);
        return 0;
    }
    const char *at = target;
    if (strncmp(at, "tcp:", 4) == 0 || strncmp(at, "udp:", 4) == 0) {
        s->type = *at == 't' ? SOCK_STREAM : SOCK_DGRAM;
        at += 4;
    }
    const char *colon = strrchr(at, ':');
    const size_t n = colon ? (size_t)(colon - at) : 0;
    const int bracketed = n > 2 && at[0] == '[' && at[n - 1] == ']';
    if (!n || !colon[1] || strlen(colon + 1) >= sizeof s->port || n >= sizeof s->host ||
        (!bracketed && memchr(at, ':', n)))
        return err_set(e, ERR_FORMAT, "--audit-syslog: '%s' is neither HOST:PORT, tcp:HOST:PORT nor the path of a socket", target);
    snprintf(s->host, sizeof s->host, "%.*s", (int)(bracketed ? n - 2 : n), bracketed ? at + 1 : at);
    snprintf(s->port, sizeof s->port, "%s", colon + 1);
    return 0;
}

/* ---- waiting messages ---- */

static void complain(struct audit_syslog *s, const char *what, int number)
{
    pthread_mutex_lock(&s->mutex);
    snprintf(s->stats.last_error, sizeof s->stats.last_error, "%s", what);
    const size_t n = strlen(s->stats.last_error);
    if (number && n + 3 < sizeof s->stats.last_error)
        snprintf(s->stats.last_error + n, sizeof s->stats.last_error - n, ": %s", strerror(number));
    pthread_mutex_unlock(&s->mutex);
}

static void drop(struct audit_syslog *s)
{
    pthread_mutex_lock(&s->mutex);
    s->stats.dropped++;
    pthread_mutex_unlock(&s->mutex);
}

static int is_late(struct audit_syslog *s)
{
    pthread_mutex_lock(&s->mutex);
    const int late = s->stopping && clock_ns() >= s->until_ns;
    pthread_mutex_unlock(&s->mutex);
    return late;
}

void audit_syslog_add(struct audit_syslog *s, enum audit_chain chain, const char *line, size_t n)
{
    char head[512];
    struct timespec now;
    struct tm t;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &t);
    const int m = snprintf(head, sizeof head, "<%d>1 %04d-%02d-%02dT%02d:%02d:%02d.%03ldZ %.200s zse-serve %d %s - ",
                           PRIORITY, t.tm_year + 1900, t.tm_mon + 1, t.tm_mday, t.tm_hour, t.tm_min, t.tm_sec,
                           now.tv_nsec / 1000000, s->name, (int)getpid(), audit_chain_name(chain));
    struct syslog_message *x = malloc(sizeof *x + (size_t)m + n);
    if (x) {
        x->next = NULL;
        x->n = (size_t)m + n;
        memcpy(x->text, head, (size_t)m);
        memcpy(x->text + m, line, n);
    }
    pthread_mutex_lock(&s->mutex);
    const int room = x && !s->stopping && s->bytes + x->n <= SYSLOG_BYTES;
    if (room) {
        *s->last = x;
        s->last = &x->next;
        s->bytes += x->n;
        s->stats.waiting++;
        pthread_cond_signal(&s->wake);
    } else {
        s->stats.dropped++;
    }
    pthread_mutex_unlock(&s->mutex);
    if (!room)
        free(x);
}

void audit_syslog_stats(struct audit_syslog *s, struct audit_remote_stats *out)
{
    pthread_mutex_lock(&s->mutex);
    *out = s->stats;
    pthread_mutex_unlock(&s->mutex);
}

/* ---- the thread ---- */

/* Wait until fd is writable: 1; 0: not within ms milliseconds, or the deadline has passed. */
static int wait_writable(struct audit_syslog *s, int fd, int ms)
{
    struct pollfd p = { .fd = fd, .events = POLLOUT };
    for (; ms > 0 && !is_late(s); ms -= LOOK_MS)
        if (poll(&p, 1, LOOK_MS) > 0)
            return 1;
    return 0;
}

static int try_connect(struct audit_syslog *s, int family, int type, const struct sockaddr *address, socklen_t size)
{
    const int fd = socket(family, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int error = 0;
    socklen_t n = sizeof error;
    if (fd < 0)
        return -1;
    if (connect(fd, address, size) == 0)
        return fd;
    if (errno == EINPROGRESS && wait_writable(s, fd, CONNECT_MS) &&
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &n) == 0 && error == 0)
        return fd;
    error = error ? error : errno == EINPROGRESS ? ETIMEDOUT : errno;
    close(fd);
    errno = error;
    return -1;
}

static int connect_unix(struct audit_syslog *s)
{
    const struct sockaddr *a = (const struct sockaddr *)&s->unix_address;
    int fd = try_connect(s, AF_UNIX, SOCK_DGRAM, a, sizeof s->unix_address);
    s->type = SOCK_DGRAM;
    if (fd < 0 && errno == EPROTOTYPE) {
        s->type = SOCK_STREAM;
        fd = try_connect(s, AF_UNIX, SOCK_STREAM, a, sizeof s->unix_address);
    }
    if (fd < 0)
        complain(s, s->unix_address.sun_path, errno);
    return fd;
}

static int connect_host(struct audit_syslog *s)
{
    const struct addrinfo hints = { .ai_socktype = s->type, .ai_flags = AI_ADDRCONFIG };
    struct addrinfo *list;
    char what[320];
    int fd = -1;
    const int rc = getaddrinfo(s->host, s->port, &hints, &list);
    snprintf(what, sizeof what, "%s:%s%s%s", s->host, s->port, rc ? ": " : "", rc ? gai_strerror(rc) : "");
    if (rc) {
        complain(s, what, 0);
        return -1;
    }
    for (const struct addrinfo *a = list; a && fd < 0; a = a->ai_next)
        fd = try_connect(s, a->ai_family, a->ai_socktype, a->ai_addr, a->ai_addrlen);
    if (fd < 0)
        complain(s, what, errno);
    freeaddrinfo(list);
    return fd;
}

/* Wait a second before the next attempt, or until the deadline of a shutdown passes. */
static void pause_a_while(struct audit_syslog *s)
{
    for (int ms = 0; ms < AGAIN_MS && !is_late(s); ms += LOOK_MS)
        poll(NULL, 0, LOOK_MS);
}

static int is_connected(struct audit_syslog *s)
{
    if (s->fd < 0)
        s->fd = *s->unix_address.sun_path ? connect_unix(s) : connect_host(s);
    return s->fd >= 0;
}

static void disconnect(struct audit_syslog *s)
{
    complain(s, "the connection to the syslog server", errno);
    close(s->fd);
    s->fd = -1;
}

/* Send all bytes, or return -1 with errno; a datagram is sent by one call. */
static int send_all(struct audit_syslog *s, const char *text, size_t n)
{
    for (size_t done = 0; done < n;) {
        const ssize_t got = send(s->fd, text + done, n - done, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (got >= 0) {
            done += (size_t)got;
            continue;
        }
        if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR && errno != ENOBUFS)
            return -1;
        if (!wait_writable(s, s->fd, SEND_MS)) {
            errno = ETIMEDOUT;
            return -1;
        }
    }
    return 0;
}

/* A TCP stream has the length before each message (RFC 6587, 3.4.1); on a Unix stream messages end
 * in a line feed, as on /dev/log. */
static int send_message(struct audit_syslog *s, const struct syslog_message *x)
{
    char length[32];
    if (s->type == SOCK_DGRAM)
        return send_all(s, x->text, x->n);
    if (*s->unix_address.sun_path)
        return send_all(s, x->text, x->n) || send_all(s, "\n", 1) ? -1 : 0;
    return send_all(s, length, (size_t)snprintf(length, sizeof length, "%zu ", x->n)) ||
           send_all(s, x->text, x->n) ? -1 : 0;
}

/* 1: sent; 0: lost, or stopped. */
static int deliver(struct audit_syslog *s, const struct syslog_message *x)
{
    int tries = 0;
    while (!is_late(s)) {
        if (!is_connected(s)) {
            pause_a_while(s);
            continue;
        }
        if (send_message(s, x) == 0)
            return 1;
        const int is_large = errno == EMSGSIZE;
        disconnect(s);
        /* a datagram socket may report the error of the previous datagram: try again */
        if (is_large || (s->type == SOCK_DGRAM && ++tries == 2))
            return 0;
    }
    return 0;
}

static void *work(void *user)
{
    struct audit_syslog *s = user;
    pthread_mutex_lock(&s->mutex);
    for (;;) {
        while (!s->first && !s->stopping)
            pthread_cond_wait(&s->wake, &s->mutex);
        struct syslog_message *x = s->first;
        if (!x)
            break;
        if (!(s->first = x->next))
            s->last = &s->first;
        pthread_mutex_unlock(&s->mutex);
        const int sent = deliver(s, x);
        if (!sent)
            drop(s);
        pthread_mutex_lock(&s->mutex);
        s->stats.sent += (uint64_t)sent;
        s->stats.waiting--;
        s->bytes -= x->n;
        free(x);
    }
    s->ended = 1;
    pthread_cond_signal(&s->done);
    pthread_mutex_unlock(&s->mutex);
    return NULL;
}

/* ---- open and close ---- */

static void release(struct audit_syslog *s)
{
    if (s->fd >= 0)
        close(s->fd);
    pthread_cond_destroy(&s->done);
    pthread_cond_destroy(&s->wake);
    pthread_mutex_destroy(&s->mutex);
    free(s);
}

struct audit_syslog *audit_syslog_open(const char *target, struct err *e)
{
    struct audit_syslog *s = calloc(1, sizeof *s);
    pthread_condattr_t monotonic;
    if (!s)
        return err_nomem(e, "the audit log"), NULL;
    s->fd = -1;
    s->last = &s->first;
    pthread_mutex_init(&s->mutex, NULL);
    pthread_cond_init(&s->wake, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&s->done, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (gethostname(s->name, sizeof s->name - 1) || !*s->name)
        strcpy(s->name, "-");
    int rc = parse_target(s, target, e);
    if (rc == 0 && thread_start(&s->thread, work, s))
        rc = err_set(e, ERR_MEMORY, "no thread available for syslog");
    if (rc == 0)
        return s;
    release(s);
    return NULL;
}

int audit_syslog_close(struct audit_syslog *s, double patience_s, struct audit_remote_stats *last)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)patience_s + 1;
    pthread_mutex_lock(&s->mutex);
    s->stopping = 1;
    s->until_ns = clock_ns() + (uint64_t)(patience_s * 1e9);
    pthread_cond_signal(&s->wake);
    while (!s->ended && pthread_cond_timedwait(&s->done, &s->mutex, &until) != ETIMEDOUT)
        ;
    const int ended = s->ended;
    *last = s->stats;
    pthread_mutex_unlock(&s->mutex);
    if (!ended)
        return -1;
    pthread_join(s->thread, NULL);
    release(s);
    return 0;
}
