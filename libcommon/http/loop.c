/* loop.c - the event loop: listeners, epoll, accepting, rounds. */
#include "libcommon/http/conn.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <openssl/err.h>

#include "libcommon/base/address.h"
#include "libcommon/base/clock.h"
#include "libcommon/http/internal.h"

/* Unsent bytes that the kernel buffers for each connection; its default is several megabytes
 * (tcp_wmem). */
enum { MAX_UNSENT_KERNEL = 1 << 16 };
/* time for which a session can be resumed without using the private key */
enum { TICKET_S = 3600 };
static const uint64_t second = 1000000000u;

static int watch(struct loop *l, struct event_source *s, struct err *e)
{
    struct epoll_event ev = { .events = EPOLLIN, .data.ptr = s };
    return epoll_ctl(l->epoll, EPOLL_CTL_ADD, s->fd, &ev) == 0 ? 0 : err_sys(e, "epoll_ctl");
}

struct loop *loop_open(const struct loop_options *o, struct err *e)
{
    struct loop *l = calloc(1, sizeof *l);
    if (!l) {
        err_nomem(e, "event loop");
        return NULL;
    }
    l->o = *o;
    l->o.http.ask = 1;
    l->listening = 1;
    l->epoll = epoll_create1(EPOLL_CLOEXEC);
    l->wake = (struct event_source){ SOURCE_WAKE, eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC) };
    l->handshake_wake = (struct event_source){ SOURCE_HANDSHAKE, -1 };
    l->signals = (struct event_source){ SOURCE_SIGNAL, -1 };
    l->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
    l->second_ns = clock_ns();
    l->reaper = reaper_open();
    l->places = places_open(o->max_connections, o->max_per_address, e);
    if (l->epoll < 0 || l->wake.fd < 0)
        err_sys(e, "event loop");
    else if (l->places && watch(l, &l->wake, e) == 0)
        return l;
    loop_close(l);
    return NULL;
}

static void close_fd(int fd)
{
    if (fd >= 0)
        close(fd);
}

static void free_dead(struct loop *l)
{
    while (l->dead) {
        struct conn *c = l->dead;
        l->dead = c->next;
        conn_free(c);
    }
}

void loop_drop_all(struct loop *l)
{
    loop_stop_listening(l);
    handshakes_close(l->handshakes);
    l->handshakes = NULL;
    while (l->away)
        conn_handshake_back(l->away);
    while (l->conns)
        conn_kill(l->conns);
    free_dead(l);
}

void loop_close(struct loop *l)
{
    if (!l)
        return;
    loop_drop_all(l);
    close_fd(l->spare);
    close_fd(l->signals.fd);
    close_fd(l->handshake_wake.fd);
    close_fd(l->wake.fd);
    close_fd(l->epoll);
    SSL_CTX_free(l->tls);
    places_close(l->places);
    reaper_close(l->reaper);
    free(l);
}

static int tls_error(struct err *e, const char *path)
{
    char why[200];
    ERR_error_string_n(ERR_get_error(), why, sizeof why);
    ERR_clear_error();
    return err_set(e, ERR_FORMAT, "%s: %s", path, why);
}

int loop_tls(struct loop *l, const char *cert, const char *key, struct err *e)
{
    if (!(l->tls = SSL_CTX_new(TLS_server_method())))
        return err_nomem(e, "TLS");
    SSL_CTX_set_min_proto_version(l->tls, TLS1_2_VERSION);
    SSL_CTX_set_mode(l->tls, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                     SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_options(l->tls, SSL_OP_NO_RENEGOTIATION | SSL_OP_IGNORE_UNEXPECTED_EOF);
    /* sessions are resumed by tickets, which clients store */
    SSL_CTX_set_session_cache_mode(l->tls, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_timeout(l->tls, TICKET_S);
    if (access(cert, R_OK) != 0)
        return err_sys(e, "%s", cert);
    if (access(key, R_OK) != 0)
        return err_sys(e, "%s", key);
    if (SSL_CTX_use_certificate_chain_file(l->tls, cert) != 1)
        return tls_error(e, cert);
    if (SSL_CTX_use_PrivateKey_file(l->tls, key, SSL_FILETYPE_PEM) != 1 || SSL_CTX_check_private_key(l->tls) != 1)
        return tls_error(e, key);
    return 0;
}

/* ---- listeners ---- */

static int add_listener(struct loop *l, int fd, const struct listener *what, struct err *e)
{
    if (l->n_listeners == MAX_LISTENERS) {
        close(fd);
        free(what->path);
        return err_set(e, ERR_LIMIT, "more than %d listeners", MAX_LISTENERS);
    }
    struct listener *at = &l->listener[l->n_listeners++];
    *at = *what;
    at->source = (struct event_source){ SOURCE_LISTENER, fd };
    return 0;
}

static void wake_for_handshakes(void *user)
{
    const struct loop *l = user;
    const uint64_t one = 1;
    const ssize_t n = write(l->handshake_wake.fd, &one, sizeof one);
    (void)n;                            /* EAGAIN: the counter is full, so the loop will wake up anyway */
}

/* Called by loop_listen, so that the threads start after the process has changed its user. */
static int open_handshakes(struct loop *l, struct err *e)
{
    /* a flood of handshakes may use a quarter of the processors, at low priority */
    const long n = sysconf(_SC_NPROCESSORS_ONLN) / 4;
    l->handshake_wake.fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (l->handshake_wake.fd < 0)
        return err_sys(e, "TLS");
    if (watch(l, &l->handshake_wake, e) != 0)
        return -1;
    l->handshakes = handshakes_open(n < 1 ? 1 : (int)n, wake_for_handshakes, l, e);
    return l->handshakes ? 0 : -1;
}

int loop_listen(struct loop *l, struct err *e)
{
    if (l->tls && open_handshakes(l, e) != 0)
        return -1;
    for (int i = 0; i < l->n_listeners; i++) {
        struct listener *at = &l->listener[i];
        if (listen(at->source.fd, 1024) != 0)
            return err_sys(e, "%s", at->name);
        if (watch(l, &at->source, e) != 0)
            return -1;
    }
    return 0;
}

static int is_loopback(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET)
        return (ntohl(((const struct sockaddr_in *)a)->sin_addr.s_addr) >> 24) == 127;
    return a->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)a)->sin6_addr);
}

static int port_of(const struct sockaddr_storage *a)
{
    return ntohs(a->ss_family == AF_INET ? ((const struct sockaddr_in *)a)->sin_port
                                         : ((const struct sockaddr_in6 *)a)->sin6_port);
}

int loop_bind(struct loop *l, const char *host, int *port, struct err *e)
{
    struct addrinfo hints = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM,
                              .ai_flags = AI_PASSIVE | AI_ADDRCONFIG }, *list;
    struct sockaddr_storage bound;
    socklen_t size = sizeof bound;
    char service[8];
    int one = 1, zero = 0;
    snprintf(service, sizeof service, "%d", *port);
    if (strchr(host, ':') || strspn(host, "0123456789.") == strlen(host))
        hints.ai_flags = AI_PASSIVE | AI_NUMERICHOST;
    int rc = getaddrinfo(host, service, &hints, &list);
    if (rc != 0)
        return err_set(e, ERR_IO, "--host %s: %s", host, gai_strerror(rc));
    int fd = socket(list->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd >= 0) {
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (list->ai_family == AF_INET6)
            setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
    }
    struct listener what = { .tls = l->tls != NULL, .local = is_loopback(list->ai_addr) };
    if (fd < 0 || bind(fd, list->ai_addr, list->ai_addrlen) != 0 ||
        getsockname(fd, (struct sockaddr *)&bound, &size) != 0) {
        err_sys(e, "%s port %d", host, *port);
        close_fd(fd);
        freeaddrinfo(list);
        return -1;
    }
    freeaddrinfo(list);
    *port = port_of(&bound);
    snprintf(what.name, sizeof what.name, "--host %.100s", host);
    return add_listener(l, fd, &what, e);
}

/* Does a program listen on this socket? */
static int is_served(const struct sockaddr_un *a)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int answered = fd >= 0 && connect(fd, (const struct sockaddr *)a, sizeof *a) == 0;
    close_fd(fd);
    return answered;
}

int loop_bind_unix(struct loop *l, const char *path, struct err *e)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    struct stat st;
    if (strlen(path) >= sizeof a.sun_path)
        return err_set(e, ERR_LIMIT, "--socket %s: more than %zu bytes", path, sizeof a.sun_path - 1);
    strcpy(a.sun_path, path);
    if (lstat(path, &st) == 0) {
        if (!S_ISSOCK(st.st_mode))
            return err_set(e, ERR_IO, "--socket %s: the file exists and is not a socket", path);
        if (is_served(&a))
            return err_set(e, ERR_IO, "--socket %s: another program listens there", path);
        unlink(path);
    }
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    mode_t before = umask(0177);
    int rc = fd < 0 ? -1 : bind(fd, (const struct sockaddr *)&a, sizeof a);
    umask(before);
    /* listen before anything else, so that another server sees that the name is taken */
    if (rc != 0 || stat(path, &st) != 0 || listen(fd, 1024) != 0) {
        err_sys(e, "--socket %s", path);
        close_fd(fd);
        return -1;
    }
    struct listener what = { .local = 1, .is_unix = 1, .path = strdup(path), .dev = st.st_dev, .ino = st.st_ino };
    if (!what.path) {
        close(fd);
        unlink(path);
        return err_nomem(e, "path");
    }
    snprintf(what.name, sizeof what.name, "--socket %s", path);
    return add_listener(l, fd, &what, e);
}

/* Whether fd is a stream socket that listens: -1 with *e if not. */
static int check_inherited(int fd, const char *name, struct err *e)
{
    int type = 0, listens = 0;
    socklen_t size = sizeof type, bytes = sizeof listens;
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) != 0)
        return err_sys(e, "%s", name);
    if (type != SOCK_STREAM)
        return err_set(e, ERR_UNSUPPORTED, "%s: is no stream socket (ListenStream= makes one)", name);
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) != 0)
        return err_sys(e, "%s", name);
    return listens ? 0 : err_set(e, ERR_UNSUPPORTED, "%s: does not listen (Accept=no passes the socket that does)", name);
}

/* Write the address of an inherited socket; -1 with *e for other families of addresses. */
static int address_of(const struct sockaddr_storage *a, socklen_t size, int tls, const char *name,
                      char out[ADDRESS_SIZE], struct err *e)
{
    const struct sockaddr_un *u = (const struct sockaddr_un *)a;
    char text[INET6_ADDRSTRLEN];
    if (a->ss_family == AF_UNIX) {
        const int n = (int)(size - offsetof(struct sockaddr_un, sun_path)), abstract = n > 0 && !u->sun_path[0];
        snprintf(out, ADDRESS_SIZE, "unix:%s%.*s", abstract ? "@" : "", n > 0 ? n - abstract : 0, u->sun_path + abstract);
        return 0;
    }
    if (a->ss_family != AF_INET && a->ss_family != AF_INET6)
        return err_set(e, ERR_UNSUPPORTED, "%s: is a socket of address family %d, expected IPv4, IPv6 or Unix", name,
                       a->ss_family);
    inet_ntop(a->ss_family, a->ss_family == AF_INET ? (const void *)&((const struct sockaddr_in *)a)->sin_addr
                                                    : (const void *)&((const struct sockaddr_in6 *)a)->sin6_addr,
              text, sizeof text);
    snprintf(out, ADDRESS_SIZE, a->ss_family == AF_INET ? "http%s://%s:%d" : "http%s://[%s]:%d", tls ? "s" : "", text,
             port_of(a));
    return 0;
}

int loop_inherit(struct loop *l, int fd, const char *name, char address[ADDRESS_SIZE], struct err *e)
{
    struct sockaddr_storage a = { 0 };
    socklen_t size = sizeof a;
    int rc = check_inherited(fd, name, e);
    if (rc == 0 && getsockname(fd, (struct sockaddr *)&a, &size) != 0)
        rc = err_sys(e, "%s", name);
    const int is_unix = a.ss_family == AF_UNIX, flags = fcntl(fd, F_GETFL);
    struct listener what = { .is_unix = is_unix, .tls = l->tls && !is_unix,
                             .local = is_unix || is_loopback((const struct sockaddr *)&a) };
    if (rc == 0)
        rc = address_of(&a, size, what.tls, name, address, e);
    if (rc == 0 && (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) != 0))
        rc = err_sys(e, "%s", name);
    if (rc != 0) {
        close(fd);
        return -1;
    }
    snprintf(what.name, sizeof what.name, "%s, %.*s,", name, 100, address);
    return add_listener(l, fd, &what, e);
}

const char *loop_reachable(const struct loop *l)
{
    for (int i = 0; i < l->n_listeners; i++)
        if (!l->listener[i].local)
            return l->listener[i].name;
    return NULL;
}

int loop_is_local(const struct loop *l) { return loop_reachable(l) == NULL; }

void loop_stop_listening(struct loop *l)
{
    struct stat st;
    for (int i = 0; i < l->n_listeners; i++) {
        struct listener *at = &l->listener[i];
        epoll_ctl(l->epoll, EPOLL_CTL_DEL, at->source.fd, NULL);
        close(at->source.fd);
        if (at->path && stat(at->path, &st) == 0 && st.st_dev == at->dev && st.st_ino == at->ino)
            unlink(at->path);
        free(at->path);
    }
    l->n_listeners = 0;
    l->listening = 0;
    for (struct conn *c = l->conns, *next; c; c = next) {
        next = c->next;
        if (!c->busy && c->mode == CONN_HTTP && c->out.size == 0 && c->parser.state == HTTP_HEAD && c->in.size == 0)
            conn_kill(c);
    }
}

int loop_signals(struct loop *l, const int *numbers, int n, struct err *e)
{
    sigset_t set;
    sigemptyset(&set);
    for (int i = 0; i < n; i++)
        sigaddset(&set, numbers[i]);
    l->signals.fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    return l->signals.fd < 0 ? err_sys(e, "signalfd") : watch(l, &l->signals, e);
}

static void peer_name(const struct sockaddr_storage *a, char out[PEER_SIZE])
{
    const void *addr = a->ss_family == AF_INET ? (const void *)&((const struct sockaddr_in *)a)->sin_addr
                                               : (const void *)&((const struct sockaddr_in6 *)a)->sin6_addr;
    if ((a->ss_family != AF_INET && a->ss_family != AF_INET6) || !inet_ntop(a->ss_family, addr, out, PEER_SIZE))
        strcpy(out, "unix");
    else if (strncmp(out, "::ffff:", 7) == 0 && strchr(out, '.'))
        memmove(out, out + 7, strlen(out + 7) + 1);
}

/* Let epoll watch the listeners, or not. */
static void watch_listeners(struct loop *l, int on)
{
    l->paused = !on;
    for (int i = 0; i < l->n_listeners; i++) {
        struct epoll_event ev = { .events = on ? EPOLLIN : 0, .data.ptr = &l->listener[i].source };
        epoll_ctl(l->epoll, EPOLL_CTL_MOD, l->listener[i].source.fd, &ev);
    }
}

/* Out of descriptors: accept the connection with the spare one and close it, so that the client
 * notices immediately.  If even that fails (no spare descriptor is left, the kernel has no memory),
 * the listeners are not watched until the next second, because epoll would report them again and
 * again. */
static void turn_away(struct loop *l, int listener)
{
    close_fd(l->spare);
    const int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0 && errno != EAGAIN)
        watch_listeners(l, 0);
    close_fd(fd);
    l->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

/* Whether to accept another connection of this address; another connection may be evicted for
 * it. */
static int may_accept(struct loop *l, const struct listener *at, uint64_t address)
{
    struct place *evict;
    if (!places_room(l->places, address, !at->is_unix, clock_ns(), &evict))
        return 0;
    if (evict) {
        conn_kill((struct conn *)((char *)evict - offsetof(struct conn, place)));
        l->counts.evicted++;
    }
    return 1;
}

static void accept_some(struct loop *l, const struct listener *at)
{
    static const char full[] = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
    for (int i = 0; i < 64; i++) {
        struct sockaddr_storage a = { 0 };
        socklen_t size = sizeof a;
        char peer[PEER_SIZE];
        int one = 1, unsent = MAX_UNSENT_KERNEL,
            fd = accept4(at->source.fd, (struct sockaddr *)&a, &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
                turn_away(l, at->source.fd);
            return;
        }
        peer_name(&a, peer);
        const uint64_t address = address_number(peer) << 1;
        if (!may_accept(l, at, address)) {
            l->counts.refused++;
            if (!at->tls)
                send(fd, full, sizeof full - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
            close(fd);
            continue;
        }
        if (!at->is_unix) {
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
            setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof unsent);
        }
        if (!conn_open(l, fd, at, peer, address))
            close(fd);
    }
}

/* ---- running ---- */

static void on_signals(struct loop *l)
{
    struct signalfd_siginfo info;
    while (read(l->signals.fd, &info, sizeof info) == (ssize_t)sizeof info)
        if (l->o.on_signal)
            l->o.on_signal(l->o.user, (int)info.ssi_signo);
}

static void on_handshakes(struct loop *l)
{
    uint64_t n;
    if (read(l->handshake_wake.fd, &n, sizeof n) != (ssize_t)sizeof n)
        return;
    for (struct handshake *x = handshakes_back(l->handshakes), *next; x; x = next) {
        next = x->next;
        conn_handshake_back((struct conn *)((char *)x - offsetof(struct conn, handshake)));
    }
}

static void on_event(struct loop *l, const struct epoll_event *ev)
{
    uint64_t n;
    struct event_source *s = ev->data.ptr;
    switch (s->kind) {
    case SOURCE_LISTENER:
        if (l->listening)
            accept_some(l, (struct listener *)s);
        break;
    case SOURCE_CONN:
        if (!((struct conn *)s)->dead)
            conn_ready((struct conn *)s, ev->events);
        break;
    case SOURCE_WAKE:
        if (read(l->wake.fd, &n, sizeof n) == (ssize_t)sizeof n && l->o.on_wake)
            l->o.on_wake(l->o.user);
        break;
    case SOURCE_HANDSHAKE: on_handshakes(l); break;
    case SOURCE_SIGNAL: on_signals(l); break;
    }
}

static void each_second(struct loop *l, uint64_t now)
{
    if (now - l->second_ns < second)
        return;
    l->second_ns = now;
    if (l->paused)
        watch_listeners(l, 1);
    for (struct conn *c = l->conns, *next; c; c = next) {
        next = c->next;
        conn_check_time(c, now);
    }
    if (l->o.on_second)
        l->o.on_second(l->o.user);
}

/* Flush the connections written to in this round.  If flushing starts a pipelined request, its
 * answer is flushed in the next round, after all other connections. */
static void flush_dirty(struct loop *l)
{
    struct conn *c = l->dirty, *next;
    l->dirty = NULL;
    for (; c; c = next) {
        next = c->next_dirty;
        c->dirty = 0;
        if (!c->dead)
            conn_flush(c);
    }
    for (struct conn **at = &l->dirty; *at;)            /* unlink dead ones, which are freed next */
        if ((*at)->dead)
            *at = (*at)->next_dirty;
        else
            at = &(*at)->next_dirty;
}

void loop_run(struct loop *l)
{
    struct epoll_event events[128];
    while (!l->quit) {
        uint64_t now = clock_ns(), since = now - l->second_ns;
        int n = epoll_wait(l->epoll, events, 128,
                           l->dirty || since >= second ? 0 : (int)((second - since) / 1000000 + 1));
        for (int i = 0; i < n; i++)
            on_event(l, &events[i]);
        each_second(l, clock_ns());
        flush_dirty(l);
        free_dead(l);
    }
}

void loop_quit(struct loop *l) { l->quit = 1; }

void loop_wake(struct loop *l)
{
    uint64_t one = 1;
    ssize_t n = write(l->wake.fd, &one, sizeof one);
    (void)n;                            /* EAGAIN: the counter is full, so the loop will wake up anyway */
}

int loop_n_connections(const struct loop *l) { return places_n(l->places); }
int loop_n_unknown(const struct loop *l) { return places_n_unknown(l->places); }
const struct loop_counts *loop_counts(const struct loop *l) { return &l->counts; }
uint64_t loop_bytes_sent(const struct loop *l) { return l->bytes_sent; }

int loop_n_busy(const struct loop *l)
{
    int n = 0;
    for (const struct conn *c = l->conns; c; c = c->next)
        n += c->exchange || c->out.size > 0 || (c->busy && c->mode == CONN_HTTP);
    return n;
}

void loop_each_websocket(struct loop *l, void (*fn)(void *user, struct conn *c), void *user)
{
    for (struct conn *c = l->conns, *next; c; c = next) {
        next = c->next;
        if (c->mode == CONN_WEBSOCKET)
            fn(user, c);
    }
}
