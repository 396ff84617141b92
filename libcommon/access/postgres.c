/* postgres.c - load libpq, connect, and run statements, with a deadline for every wait. */
#include "libcommon/access/postgres.h"

#include <dlfcn.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "libcommon/base/clock.h"

/* ---- libpq: what libpq-fe.h declares, of the stable interface of version 5 ---- */

enum { CONNECTION_OK = 0, CONNECTION_BAD = 1, POLLING_FAILED = 0, POLLING_READING = 1, POLLING_WRITING = 2,
       POLLING_OK = 3, COMMAND_OK = 1, TUPLES_OK = 2, BYTEA = 17, LOOK_MS = 50, MAX_VALUES = 16,
       MOST_MB = 64 };
struct pq_option { char *keyword, *envvar, *compiled, *value, *label, *dispchar; int dispsize; };

struct pq {
    void *(*start)(const char *const *keywords, const char *const *values, int expand);
    int (*connect_poll)(void *c);
    int (*status)(const void *c);
    int (*socket)(const void *c);
    char *(*error)(const void *c);
    void (*finish)(void *c);
    void *(*set_notices)(void *c, void (*receive)(void *user, const void *result), void *user);
    int (*set_nonblocking)(void *c, int on);
    int (*send)(void *c, const char *sql, int n, const unsigned *types, const char *const *values, const int *sizes,
                const int *formats, int result_format);
    int (*flush)(void *c);
    int (*consume)(void *c);
    int (*is_busy)(void *c);
    void *(*result)(void *c);
    int (*result_status)(const void *r);
    char *(*result_error)(const void *r);
    int (*n_rows)(const void *r);
    int (*n_columns)(const void *r);
    char *(*value)(const void *r, int row, int column);
    unsigned (*type)(const void *r, int column);
    char *(*n_changed)(void *r);
    void (*clear)(void *r);
    struct pq_option *(*parse)(const char *url, char **message);
    struct pq_option *(*defaults)(void);
    void (*free_options)(struct pq_option *o);
    void (*free_memory)(void *p);
};
#define SYMBOL(name, member) { name, offsetof(struct pq, member) }
static const struct { const char *name; size_t at; } symbols[] = {
    SYMBOL("PQconnectStartParams", start), SYMBOL("PQconnectPoll", connect_poll), SYMBOL("PQstatus", status),
    SYMBOL("PQsocket", socket), SYMBOL("PQerrorMessage", error), SYMBOL("PQfinish", finish),
    SYMBOL("PQsetNoticeReceiver", set_notices), SYMBOL("PQsetnonblocking", set_nonblocking),
    SYMBOL("PQsendQueryParams", send), SYMBOL("PQflush", flush), SYMBOL("PQconsumeInput", consume),
    SYMBOL("PQisBusy", is_busy), SYMBOL("PQgetResult", result), SYMBOL("PQresultStatus", result_status),
    SYMBOL("PQresultErrorMessage", result_error), SYMBOL("PQntuples", n_rows), SYMBOL("PQnfields", n_columns),
    SYMBOL("PQgetvalue", value), SYMBOL("PQftype", type), SYMBOL("PQcmdTuples", n_changed), SYMBOL("PQclear", clear),
    SYMBOL("PQconninfoParse", parse), SYMBOL("PQconndefaults", defaults), SYMBOL("PQconninfoFree", free_options),
    SYMBOL("PQfreemem", free_memory),
};

struct postgres {
    struct pq pq;
    char *url, *name;
    void *c;                                /* the connection; NULL: none */
    uint64_t until_ns;
    uint64_t received;                      /* bytes from the server when the statement began */
    uint64_t read;                          /* of a Unix socket: bytes that were read since it is open */
    atomic_int stopping;
};
struct postgres_result { const struct pq *pq; void *r; };

static int load_pq(struct pq *pq, struct err *e)
{
    void *lib = dlopen("libpq.so.5", RTLD_NOW | RTLD_LOCAL);
    if (!lib)
        return err_set(e, ERR_UNSUPPORTED, "--keys: libpq.so.5 cannot be loaded (Debian: libpq5): %s", dlerror());
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *f = dlsym(lib, symbols[i].name);
        if (!f)
            return err_set(e, ERR_UNSUPPORTED, "--keys: libpq.so.5 has no %s", symbols[i].name);
        memcpy((char *)pq + symbols[i].at, &f, sizeof f);
    }
    return 0;
}

/* ---- the URL ---- */

/* The value of an option in the URL, otherwise libpq's own; "" if there is none. */
static const char *option(const struct pq_option *given, const struct pq_option *defaults, const char *keyword)
{
    for (const struct pq_option *o = given; o && o->keyword; o++)
        if (strcmp(o->keyword, keyword) == 0 && o->value && *o->value)
            return o->value;
    return defaults ? option(defaults, NULL, keyword) : "";
}

/* Whether an '@' follows the one that ends the user and the password, or a '/' precedes it: for
 * libpq the rest of such a password is a host or a database, which messages quote. */
static int splits_password(const char *url)
{
    const char *rest = strstr(url, "://") + 3;
    rest += strcspn(rest, "@/");
    rest += *rest == '@';
    return memchr(rest, '@', strcspn(rest, "?")) != NULL;
}

/* Set the name to the URL without user, password and parameters.  libpq's own message about a URL
 * that it cannot read would quote the password. */
static int name_it(struct postgres *p, struct err *e)
{
    struct pq_option *o = splits_password(p->url) ? NULL : p->pq.parse(p->url, NULL), *d = p->pq.defaults();
    int rc = -1;
    if (!o)
        err_set(e, ERR_FORMAT, "--keys: the URL cannot be read, expected postgresql://USER@HOST:PORT/DATABASE?NAME=VALUE (%% in a part of it is written %%25, @ is %%40, / is %%2F)");
    else if (asprintf(&p->name, "postgresql://%s:%s/%s", option(o, d, "host"), option(o, d, "port"),
                      option(o, d, "dbname")) < 0) {
        p->name = NULL;
        err_nomem(e, "--keys");
    } else {
        rc = 0;
    }
    p->pq.free_options(o);
    p->pq.free_options(d);
    return rc;
}

struct postgres *postgres_open(const char *url, struct err *e)
{
    struct postgres *p = calloc(1, sizeof *p);
    if (!p || !(p->url = strdup(url))) {
        free(p);
        err_nomem(e, "--keys");
        return NULL;
    }
    postgres_set_patience(p, 5000);
    if (load_pq(&p->pq, e) == 0 && name_it(p, e) == 0)
        return p;
    postgres_close(p);
    return NULL;
}

static void disconnect(struct postgres *p)
{
    if (p->c)
        p->pq.finish(p->c);
    p->c = NULL;
}

void postgres_close(struct postgres *p)
{
    if (!p)
        return;
    disconnect(p);
    if (p->url)
        explicit_bzero(p->url, strlen(p->url));
    free(p->url);
    free(p->name);
    free(p);
}

const char *postgres_name(const struct postgres *p) { return p->name; }
void postgres_set_patience(struct postgres *p, int ms) { p->until_ns = clock_ns() + (uint64_t)ms * 1000000u; }
void postgres_stop(struct postgres *p) { atomic_store(&p->stopping, 1); }
int postgres_is_connected(const struct postgres *p) { return p->c != NULL; }

/* ---- waiting ---- */

/* Wait for these events of the connection's socket: 0; -1: the deadline has passed. */
static int wait_for(struct postgres *p, short events, struct err *e)
{
    struct pollfd f = { .fd = p->pq.socket(p->c), .events = events };
    while (!atomic_load(&p->stopping)) {
        /* also when there are data: a server that sends a little at a time never ends */
        if (clock_ns() >= p->until_ns)
            return err_set(e, ERR_IO, "%s: no answer in time", p->name);
        if (f.fd < 0 || poll(&f, 1, LOOK_MS) > 0)
            return 0;
    }
    return err_set(e, ERR_CANCELLED, "%s: stopped", p->name);
}

/* The first line of a message of libpq. */
static int fail(const struct postgres *p, const char *message, struct err *e)
{
    return err_set(e, ERR_IO, "%s: %.*s", p->name, (int)strcspn(message, "\n"), message);
}

static void ignore_notice(void *user, const void *result) { (void)user; (void)result; }

int postgres_connect(struct postgres *p, struct err *e)
{
    static const char *const keywords[] = { "fallback_application_name", "dbname", NULL };
    const char *values[] = { "zse", p->url, NULL };
    int rc = 0, state = POLLING_WRITING;
    disconnect(p);
    if (!(p->c = p->pq.start(keywords, values, 1)))
        return err_nomem(e, p->name);
    if (p->pq.status(p->c) == CONNECTION_BAD)
        state = POLLING_FAILED;
    while (rc == 0 && state != POLLING_OK && state != POLLING_FAILED) {
        rc = wait_for(p, state == POLLING_READING ? POLLIN : POLLOUT, e);
        if (rc == 0)
            state = p->pq.connect_poll(p->c);
    }
    if (rc == 0 && (state == POLLING_FAILED || p->pq.set_nonblocking(p->c, 1) != 0))
        rc = fail(p, p->pq.error(p->c), e);
    if (rc == 0)
        p->pq.set_notices(p->c, ignore_notice, NULL);
    else
        disconnect(p);
    return rc;
}

/* ---- statements ---- */

/* Bytes that the server has sent on this connection. */
static uint64_t received(const struct postgres *p)
{
    struct tcp_info info = { 0 };
    socklen_t size = sizeof info;
    const int rc = getsockopt(p->pq.socket(p->c), IPPROTO_TCP, TCP_INFO, &info, &size);
    return rc == 0 && size > offsetof(struct tcp_info, tcpi_bytes_received) ? info.tcpi_bytes_received : p->read;
}

/* Let libpq read what has arrived.  It keeps rows in memory until the last one, however many the
 * server sends, so an answer of more than MOST_MB is refused; one row is limited by libpq alone. */
static int consume(struct postgres *p, struct err *e)
{
    int before = 0, after = 0;
    ioctl(p->pq.socket(p->c), FIONREAD, &before);
    if (!p->pq.consume(p->c))
        return fail(p, p->pq.error(p->c), e);
    ioctl(p->pq.socket(p->c), FIONREAD, &after);
    p->read += before > after ? (uint64_t)(before - after) : before > 0;
    return received(p) - p->received <= (uint64_t)MOST_MB << 20 ? 0
        : err_set(e, ERR_LIMIT, "%s: an answer of more than %d MiB", p->name, MOST_MB);
}

static int send_query(struct postgres *p, const char *sql, const struct postgres_value *v, int n, struct err *e)
{
    const char *data[MAX_VALUES];
    int sizes[MAX_VALUES], formats[MAX_VALUES], left;
    for (int i = 0; i < n; i++) {
        data[i] = v[i].data;
        sizes[i] = v[i].size;
        formats[i] = v[i].size > 0;
    }
    if (!p->pq.send(p->c, sql, n, NULL, data, sizes, formats, 0))
        return fail(p, p->pq.error(p->c), e);
    while ((left = p->pq.flush(p->c)) > 0) {
        if (wait_for(p, POLLIN | POLLOUT, e) || consume(p, e))
            return -1;
    }
    return left ? fail(p, p->pq.error(p->c), e) : 0;
}

/* The next result, or NULL after the last one; -1: the connection failed. */
static int next_result(struct postgres *p, void **r, struct err *e)
{
    while (p->pq.is_busy(p->c)) {
        if (wait_for(p, POLLIN, e) || consume(p, e))
            return -1;
    }
    *r = p->pq.result(p->c);
    return 0;
}

struct postgres_result *postgres_run(struct postgres *p, const char *sql, const struct postgres_value *v, int n,
                                     struct err *e)
{
    struct postgres_result *out = calloc(1, sizeof *out);
    void *r = NULL;
    if (p->c)
        p->received = received(p);
    int rc = !out ? err_nomem(e, p->name) : !p->c ? err_set(e, ERR_IO, "%s: not connected", p->name)
        : send_query(p, sql, v, n, e);
    while (rc == 0 && (rc = next_result(p, &r, e)) == 0 && r) {
        if (out->r)
            p->pq.clear(out->r);
        out->r = r;
    }
    if (rc)
        disconnect(p);
    else if (!out->r)
        rc = err_set(e, ERR_IO, "%s: no result", p->name);
    else if (p->pq.result_status(out->r) != COMMAND_OK && p->pq.result_status(out->r) != TUPLES_OK)
        rc = fail(p, p->pq.result_error(out->r), e);
    if (p->c && p->pq.status(p->c) != CONNECTION_OK)
        disconnect(p);
    if (out)
        out->pq = &p->pq;
    if (rc == 0)
        return out;
    postgres_clear(out);
    return NULL;
}

int postgres_n_rows(const struct postgres_result *r) { return r->pq->n_rows(r->r); }
int postgres_n_columns(const struct postgres_result *r) { return r->pq->n_columns(r->r); }

const char *postgres_text(const struct postgres_result *r, int row, int column)
{
    const char *text = r->pq->value(r->r, row, column);
    return text ? text : "";
}

int postgres_is_bytes(const struct postgres_result *r, int column) { return r->pq->type(r->r, column) == BYTEA; }
int64_t postgres_n_changed(const struct postgres_result *r) { return strtoll(r->pq->n_changed(r->r), NULL, 10); }

void postgres_clear(struct postgres_result *r)
{
    if (r && r->r)
        r->pq->clear(r->r);
    free(r);
}
