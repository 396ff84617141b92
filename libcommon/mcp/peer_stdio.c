/* peer_stdio.c - MCP servers that are child processes: one JSON-RPC message a line. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/json.h"
#include "libcommon/mcp/internal.h"

enum { MAX_RUBBISH = 100, READ_BYTES = 64 << 10, MAX_ENV = 256 };

/* ---- the process ---- */

/* The base environment, in which variables of the configuration replace those of the same name.
 * Returns a list of texts, which are borrowed up to *own and owned from *own on; NULL without
 * memory. */
static const char **make_env(const struct mcp_peer *p, int *own)
{
    union { const json_t *in; json_t *out; } u = { .in = p->c->env };
    const char **env = calloc(MAX_ENV + 1, sizeof *env), *key;
    json_t *v;
    int n = 0;
    for (int i = 0; env && p->base_env && p->base_env[i] && n < MAX_ENV; i++) {
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(p->base_env[i], "="), p->base_env[i]);
        if (!json_object_get(p->c->env, name))
            env[n++] = p->base_env[i];
    }
    *own = n;
    if (env)
        json_object_foreach(u.out, key, v) {
            char *text;
            if (n == MAX_ENV || asprintf(&text, "%s=%s", key, json_string_value(v)) < 0)
                break;
            env[n++] = text;
        }
    return env;
}

static void free_env(const char **env, int own)
{
    for (int i = own; env && env[i]; i++) {
        union { const char *in; void *out; } u = { .in = env[i] };
        free(u.out);
    }
    free(env);
}

int stdio_open(struct mcp_peer *p, struct err *e)
{
    const char **argv = calloc((size_t)p->c->n_args + 2, sizeof *argv);
    int own = 0;
    const char **env = make_env(p, &own);
    int rc = argv && env ? 0 : err_nomem(e, p->c->name);
    if (rc == 0) {
        argv[0] = p->c->command;
        for (int i = 0; i < p->c->n_args; i++)
            argv[i + 1] = p->c->args[i];
        rc = child_start(&p->child, argv, env, p->c->cwd, e);
    }
    free(argv);
    free_env(env, own);
    p->n_line = p->n_tail = 0;
    p->n_rubbish = 0;
    atomic_store(&p->torn, 0);
    return rc;
}

void stdio_close(struct mcp_peer *p)
{
    pthread_mutex_lock(&p->writing);
    child_end(&p->child, 2);
    pthread_mutex_unlock(&p->writing);
    free(p->line);
    p->line = NULL;
    p->n_line = p->room = 0;
}

/* ---- writing ---- */

static int write_all(struct mcp_peer *p, const char *s, size_t n, double timeout_s, struct err *e)
{
    const double until = clock_s() + timeout_s;
    const size_t all = n;
    while (n) {
        struct pollfd f = { .fd = p->child.in, .events = POLLOUT };
        const ssize_t k = p->child.pid > 0 ? write(p->child.in, s, n) : -1;
        if (k > 0) {
            s += k;
            n -= (size_t)k;
        } else if (p->child.pid <= 0 || (errno != EAGAIN && errno != EINTR)) {
            return err_set(e, ERR_IO, "%s: the server has ended", p->c->name);
        } else if (clock_s() > until || atomic_load(&p->stop)) {
            if (n < all)
                atomic_store(&p->torn, 1);
            return err_set(e, ERR_IO, "%s: the server reads nothing", p->c->name);
        } else {
            poll(&f, 1, 100);
        }
    }
    return 0;
}

int stdio_write(struct mcp_peer *p, const json_t *message, double timeout_s, struct err *e)
{
    char *text = json_dumps(message, JSON_COMPACT);
    const size_t n = text ? strlen(text) : 0;
    int rc = text ? 0 : err_nomem(e, p->c->name);
    if (text) {
        text[n] = '\n';                         /* instead of the '\0' */
        pthread_mutex_lock(&p->writing);
        rc = write_all(p, text, n + 1, timeout_s, e);
        pthread_mutex_unlock(&p->writing);
    }
    free(text);
    return rc;
}

/* ---- reading ---- */

/* Answer a request of the server: only ping is known.  The answer is small enough for a single
 * write; if the server does not read, the answer is dropped. */
static void answer_server(struct mcp_peer *p, const json_t *id, const char *method)
{
    enum { MOST_ID = 256 };
    struct err ignored;
    if (!json_is_integer(id) && !(json_is_string(id) && json_string_length(id) <= MOST_ID))
        return;
    union { const json_t *in; json_t *out; } u = { .in = id };
    json_t *m = strcmp(method, "ping") == 0
                    ? json_pack("{s:s, s:O, s:{}}", "jsonrpc", "2.0", "id", u.out, "result")
                    : json_pack("{s:s, s:O, s:{s:i, s:s}}", "jsonrpc", "2.0", "id", u.out, "error", "code", MCP_NO_METHOD,
                                "message", "Method not found");
    if (m)
        stdio_write(p, m, 0, &ignored);
    json_decref(m);
}

static void take_message(struct mcp_peer *p, json_t *m)
{
    const char *method = json_string_value(js_get(m, "method"));
    const json_t *id = js_get(m, "id");
    pthread_mutex_lock(&p->lock);
    for (struct pending *w = p->pending; w && !method && json_is_integer(id); w = w->next)
        if (w->id == json_integer_value(id) && !w->answer) {
            w->answer = json_incref(m);
            pthread_cond_broadcast(&p->news);
            break;
        }
    if (method && strcmp(method, "notifications/tools/list_changed") == 0)
        p->stale = 1;
    pthread_mutex_unlock(&p->lock);
    if (method && id)
        answer_server(p, id, method);
}

static int take_line(struct mcp_peer *p, const char *s, size_t n, struct err *e)
{
    struct err why;
    while (n && (s[n - 1] == '\r' || s[n - 1] == ' '))
        n--;
    json_t *m = n ? js_parse("message", s, n, &why) : NULL;
    if (n && !m && s[0] == '{' && memmem(s, n < 4096 ? n : 4096, "\"jsonrpc\"", 9))        /* no line of a log */
        return err_set(e, ERR_FORMAT, "%s: the server sends a malformed %.200s", p->c->name, why.msg);
    if (json_is_object(m)) {
        p->n_rubbish = 0;
        take_message(p, m);
    } else if (n && ++p->n_rubbish > MAX_RUBBISH)
        err_set(e, ERR_FORMAT, "%s: the server prints lines that are no messages: '%.60s'", p->c->name, s);
    json_decref(m);
    return p->n_rubbish > MAX_RUBBISH ? -1 : 0;
}

/* Hand out the whole lines of p->line. */
static int take_lines(struct mcp_peer *p, size_t from, struct err *e)
{
    size_t begin = 0;
    for (char *end; (end = memchr(p->line + from, '\n', p->n_line - from));) {
        *end = '\0';
        if (take_line(p, p->line + begin, (size_t)(end - p->line) - begin, e) != 0)
            return -1;
        begin = from = (size_t)(end - p->line) + 1;
    }
    memmove(p->line, p->line + begin, p->n_line - begin);
    p->n_line -= begin;
    if (p->n_line > MCP_MESSAGE_MAX)
        return err_set(e, ERR_LIMIT, "%s: a message of more than %d bytes", p->c->name, MCP_MESSAGE_MAX);
    return 0;
}

/* Keep the last bytes that the server has written to its standard error, for error messages. */
static void read_stderr(struct mcp_peer *p)
{
    char text[4096];
    ssize_t n;
    for (int i = 0; i < 64 && (n = read(p->child.err, text, sizeof text)) > 0; i++) {
        const size_t most = sizeof p->stderr_tail - 1, k = (size_t)n < most ? (size_t)n : most,
                     keep = p->n_tail + k > most ? most - k : p->n_tail;
        memmove(p->stderr_tail, p->stderr_tail + p->n_tail - keep, keep);
        memcpy(p->stderr_tail + keep, text + n - (ssize_t)k, k);
        p->n_tail = keep + k;
        p->stderr_tail[p->n_tail] = '\0';
    }
}

/* The server's output has ended: describe its exit status and quote the last line of its standard
 * error in *e.  Returns -1. */
static int describe_end(struct mcp_peer *p, struct err *e)
{
    siginfo_t info = { 0 };
    for (const double until = clock_s() + 2; info.si_pid == 0 && clock_s() < until; poll(NULL, 0, 5))
        waitid(P_PID, (id_t)p->child.pid, &info, WEXITED | WNOHANG | WNOWAIT);
    read_stderr(p);
    while (p->n_tail && (p->stderr_tail[p->n_tail - 1] == '\n' || p->stderr_tail[p->n_tail - 1] == '\r'))
        p->stderr_tail[--p->n_tail] = '\0';
    const char *last = p->n_tail ? strrchr(p->stderr_tail, '\n') : NULL, *words = last ? last + 1 : p->n_tail
                                                                                        ? p->stderr_tail : "";
    if (info.si_pid == 0)
        return err_set(e, ERR_IO, "%s: the server has closed its output", p->c->name);
    return err_set(e, ERR_IO, "%s: the server ended with %s %d%s%.160s", p->c->name,
                   info.si_code == CLD_EXITED ? "status" : "signal", info.si_status, *words ? ": " : "", words);
}

int stdio_read(struct mcp_peer *p, int ms, struct err *e)
{
    if (atomic_load(&p->torn))
        return err_set(e, ERR_IO, "%s: the server stopped reading in the middle of a message", p->c->name);
    struct pollfd f[2] = { { .fd = p->child.out, .events = POLLIN }, { .fd = p->child.err, .events = POLLIN } };
    if (poll(f, 2, ms) <= 0)
        return 0;
    if (f[1].revents & POLLIN)
        read_stderr(p);
    else if (f[1].revents & POLLHUP && !(f[0].revents))
        /* wait for output only: with a closed standard error, polling both would return at once */
        poll(f, 1, ms);
    if (!f[0].revents)
        return 0;
    if (p->room < p->n_line + READ_BYTES + 1) {
        char *line = realloc(p->line, 2 * p->n_line + READ_BYTES + 1);
        if (!line)
            return err_nomem(e, p->c->name);
        p->line = line;
        p->room = 2 * p->n_line + READ_BYTES + 1;
    }
    const ssize_t n = read(p->child.out, p->line + p->n_line, READ_BYTES);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
        return describe_end(p, e);
    if (n < 0)
        return 0;
    const size_t from = p->n_line;
    p->n_line += (size_t)n;
    return take_lines(p, from, e);
}
