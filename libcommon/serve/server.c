/* server.c - open and close a server, and handle the events of its loop. */
#include "libcommon/serve/server.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "libcommon/base/clock.h"
#include "libcommon/hw/machine.h"
#include "libcommon/base/json.h"
#include "libcommon/base/plural.h"
#include "libcommon/serve/exchange.h"
#include "libcommon/serve/internal.h"
#include "libcommon/serve/kv_events.h"
#include "libcommon/serve/named.h"

static const int signals[] = { SIGTERM, SIGINT, SIGHUP };
enum { N_SIGNALS = sizeof signals / sizeof *signals };

static void tell(const struct server *s, void (*print)(void *user, const char *text), const char *fmt, va_list ap)
{
    char text[800];
    vsnprintf(text, sizeof text, fmt, ap);
    if (print)
        print(s->o.user, text);
}

void server_log(struct server *s, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    tell(s, s->o.log, fmt, ap);
    va_end(ap);
}

void server_warn(struct server *s, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    tell(s, s->o.warn ? s->o.warn : s->o.log, fmt, ap);
    va_end(ap);
}

void server_id(struct server *s, const char *prefix, char out[48])
{
    unsigned long long a = rng_u64(&s->ids), b = rng_u64(&s->ids);
    snprintf(out, 48, "%s%016llx%08llx", prefix, a, b & 0xffffffff);
}

/* ---- callbacks of the loop ---- */

enum { SMALL_BODY = 1 << 16 };

/* Under memory pressure only small bodies are kept. */
static int on_body(void *user, struct conn *c, size_t size)
{
    struct server *s = user;
    uint64_t owner;
    return (size <= SMALL_BODY || s->watch.state == WATCH_FINE) && routes_wants_body(s, c, &owner) &&
           conn_hold_body(c, owner, size);
}

static void on_request(void *user, struct conn *c) { routes_request(user, c); }

/* Called when the answer is complete, or when the client has disconnected and no call has taken
 * over the record. */
static void on_answered(void *user, struct conn *c)
{
    struct server *s = user;
    struct exchange *x = conn_exchange(c);
    struct access_record *v = conn_record(c);
    int prompt = -1, completion = -1;
    if (x && x->kind == EXCHANGE_CALL)
        call_charge((struct call *)x, &prompt, &completion);
    const int status = conn_status(c);
    record_end(s, v, conn_is_complete(c) ? status : 499, prompt, completion);
    if (status != 101 || !conn_is_complete(c))
        conn_set_record(c, NULL);
}

static void on_gone(void *user, struct conn *c)
{
    struct server *s = user;
    struct exchange *x = conn_exchange(c);
    if (x->kind == EXCHANGE_CALL) {
        call_gone((struct call *)x, c);
        return;
    }
    if (x->kind == EXCHANGE_REPORT) {
        report_gone(c);
        return;
    }
    if (x->kind == EXCHANGE_TOOLS) {
        tool_request_gone(c);
        return;
    }
    if (x->kind == EXCHANGE_RAG) {
        rag_gone(c);
        return;
    }
    if (x->kind == EXCHANGE_CATALOG) {
        catalog_gone(c);
        return;
    }
    if (x->kind == EXCHANGE_CHATS) {
        chats_gone(c);
        return;
    }
    if (x->kind == EXCHANGE_JOBS) {
        jobs_gone(c);
        return;
    }
    for (struct loaded_model *lm = s->models; lm; lm = lm->next)
        if (lm->waiter == c)
            lm->waiter = NULL;
    if (s->sleep.waiter == c)
        s->sleep.waiter = NULL;
    adapters_gone(s, c);
    free(x);
}

static void on_refused(void *user, struct conn *c, int status, const char *why)
{
    if (!conn_record(c))
        record_begin(user, c);
    reply_refusal(user, c, status, NULL, "%s", why);
}

static void on_message(void *user, struct conn *c, const char *text, size_t size)
{
    if (conn_tag(c) == WS_TAG_CHAT || conn_tag(c) == WS_TAG_COMPLETIONS || conn_tag(c) == WS_TAG_RESPONSES)
        ws_chat_message(user, c, text, size);
}

static void finish_draining(struct server *s)
{
    if (!s->draining)
        return;
    int busy = loop_n_busy(s->loop);
    for (const struct loaded_model *lm = s->models; lm; lm = lm->next)
        busy += lm->n_calls;
    if (busy == 0)
        loop_quit(s->loop);
}

_Static_assert(sizeof (((struct inherited_socket *)0)->address) == ADDRESS_SIZE, "loop_inherit fills it");

/* Tell the program the state of the server. */
static void tell_state(struct server *s)
{
    if (!s->o.state || s->failed)
        return;
    s->was_ready |= models_n(s, MODEL_READY) > 0 || models_n(s, MODEL_LOADING) == 0;
    s->o.state(s->o.user, s->draining ? SERVER_STOPPING : !s->was_ready ? SERVER_LOADING
                          : stall_find(s) ? SERVER_STALLED : SERVER_READY);
}

static void on_wake(void *user)
{
    struct server *s = user;
    models_opened(s);
    calls_events(s);
    guard_reports(s);
    tools_done(s);
    rag_events(s);
    chats_done(s);
    catalog_done(s);
    jobs_events(s);
    models_tick(s);
    sleep_tick(s);
    if (!s->was_ready)
        tell_state(s);
    finish_draining(s);
}

static void on_second(void *user)
{
    struct server *s = user;
    models_check(s);
    models_tick(s);
    calls_tick(s);
    guard_tick(s);
    ws_stats_tick(s);
    watch_tick(s);
    stall_tick(s);
    named_tick(s);
    rag_tick(s);
    chats_tick(s);
    jobs_tick(s);
    sleep_tick(s);
    response_store_tick(s->responses, s->loop);
    if (s->draining && clock_ns() > s->drain_by_ns)
        for (struct loaded_model *lm = s->models; lm; lm = lm->next)
            calls_cancel(lm);
    if (s->draining && clock_ns() > s->drain_by_ns + 2000000000u)
        loop_quit(s->loop);
    tell_state(s);
    finish_draining(s);
}

static void close_websocket(void *user, struct conn *c)
{
    (void)user;
    if (!conn_exchange(c))
        conn_websocket_close(c, 1001);
}

void server_stop(struct server *s, double drain_s)
{
    s->draining = 1;
    s->drain_by_ns = clock_ns() + (uint64_t)(drain_s * 1e9);
    jobs_stop(s);
    loop_stop_listening(s->loop);
    loop_each_websocket(s->loop, close_websocket, NULL);
    tell_state(s);
    server_log(s, "stopping; %d running request%s", loop_n_busy(s->loop), plural(loop_n_busy(s->loop)));
    finish_draining(s);
}

static void on_signal(void *user, int number)
{
    struct server *s = user;
    if (number == SIGHUP) {
        models_reload(s);
        return;
    }
    if (s->draining) {
        server_log(s, "stopping at once");
        loop_quit(s->loop);
        return;
    }
    server_stop(s, s->o.drain_s);
}

/* ---- opening ---- */

void server_block_signals(void)
{
    sigset_t set;
    sigemptyset(&set);
    for (int i = 0; i < N_SIGNALS; i++)
        sigaddset(&set, signals[i]);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
}

static int bind_everywhere(struct server *s, struct err *e)
{
    const struct server_options *o = &s->o;
    if (o->tls_cert && loop_tls(s->loop, o->tls_cert, o->tls_key, e) != 0)
        return -1;
    s->port = o->port;
    if (o->host && loop_bind(s->loop, o->host, &s->port, e) != 0)
        return -1;
    if (o->socket_path && loop_bind_unix(s->loop, o->socket_path, e) != 0)
        return -1;
    for (int i = 0; i < o->n_inherited; i++)
        if (loop_inherit(s->loop, o->inherited[i].fd, o->inherited[i].name, o->inherited[i].address, e) != 0)
            return -1;
    return 0;
}

int server_is_reachable(const struct server *s, int local_listener) { return !local_listener || s->o.trust_proxy; }

/* Listen, unless clients on other machines would be admitted without a key. */
static int listen_if_guarded(struct server *s, struct err *e)
{
    if (s->o.no_auth || guard_has_keys(s) || !server_is_reachable(s, loop_is_local(s->loop)))
        return loop_listen(s->loop, e);
    if (loop_is_local(s->loop))
        return err_set(e, ERR_UNSUPPORTED, "--trust-proxy admits clients on other machines, and there are no keys: expected a key (zse-apikey create NAME), or --no-auth");
    return err_set(e, ERR_UNSUPPORTED, "%s is reachable from other machines, and there are no keys: expected 127.0.0.1 or ::1, a key (zse-apikey create NAME), or --no-auth", loop_reachable(s->loop));
}

/* Open the account of the requests' memory.  By default all requests together get an eighth of the
 * machine's memory, but at least 64 MiB and at most 1 GiB, and each request a quarter of that. */
static struct account *open_account(const struct server_options *o, struct err *e)
{
    static const size_t most = (size_t)1 << 30, least = (size_t)64 << 20;
    struct memory m;
    struct err ignored;
    const uint64_t machine = memory_read(&m, o->sysroot, &ignored) == 0 ? memory_most(&m) : 0;
    const size_t eighth = machine && machine / 8 < most ? (size_t)(machine / 8) : most;
    const size_t total = o->work_memory ? o->work_memory : eighth > least ? eighth : least;
    return account_open(o->max_request_memory ? o->max_request_memory : total / 4, total, e);
}

static struct loop *open_loop(struct server *s, struct err *e)
{
    const struct server_options *o = &s->o;
    const struct loop_options lo = { .account = s->account,
                                     .http = { .head_bytes = 16 << 10, .body_bytes = o->max_body },
                                     .max_connections = o->max_connections,
                                     .max_per_address = o->trust_proxy ? 0 : o->max_per_address, .max_unsent = 16 << 20,
                                     .head_s = 10, .body_s = 10, .idle_s = 75, .stalled_s = 30, .ping_s = 30,
                                     .on_body = on_body, .on_request = on_request, .on_gone = on_gone,
                                     .on_refused = on_refused, .on_answered = on_answered, .on_message = on_message,
                                     .on_wake = on_wake, .on_second = on_second, .on_signal = on_signal, .user = s };
    return loop_open(&lo, e);
}

struct server *server_bind(const struct server_options *o, struct err *e)
{
    struct server *s = calloc(1, sizeof *s);
    if (!s) {
        err_nomem(e, "server");
        return NULL;
    }
    s->o = *o;
    s->no_batching = o->no_batching;
    if (!(s->account = open_account(o, e))) {
        free(s);
        return NULL;
    }
    s->start_ns = clock_ns();
    s->started = (int64_t)time(NULL);
    if (getrandom(&s->ids.state, sizeof s->ids.state, 0) != (ssize_t)sizeof s->ids.state)
        err_sys(e, "random numbers");
    else if ((s->loop = open_loop(s, e)) && loop_signals(s->loop, signals, N_SIGNALS, e) == 0 &&
             bind_everywhere(s, e) == 0)
        return s;
    server_close(s);
    return NULL;
}

static int open_kv_events(struct server *s, struct err *e)
{
    const struct server_options *o = &s->o;
    char *topic = NULL;
    if (!o->kv_events)
        return 0;
    if (!o->kv_topic && asprintf(&topic, "kv@%s:%d@%s", o->host ? o->host : "", s->port, o->kv_model) < 0)
        return err_nomem(e, "--kv-events");
    s->kv_events = kv_events_open(o->kv_events, o->kv_replay, topic ? topic : o->kv_topic, e);
    free(topic);
    return s->kv_events ? 0 : -1;
}

static int open_responses(struct server *s, struct err *e)
{
    s->responses = response_store_open(s->o.responses_bytes);
    return s->responses ? 0 : err_nomem(e, "server");
}

int server_start(struct server *s, const char *admin_token, struct err *e)
{
    s->admin_token = admin_token;
    return guard_open(s, e) || listen_if_guarded(s, e) || open_kv_events(s, e) || models_start(s, e) ||
           calls_open(s, e) || open_responses(s, e) || tools_open(s, e) || rag_start(s, e) ||
           chats_open(s, e) || jobs_open(s, e) ? -1 : 0;
}

int server_leave(struct server *s)
{
    loop_drop_all(s->loop);
    rag_stop(s);
    calls_close(s);
    chats_close(s);
    jobs_join(s);
    if (models_halt(s) == 0)
        models_leave(s);
    return server_finish_audit(s);
}

void server_syncs(const struct server *s, int n)
{
    if (s->o.n_syncing)
        atomic_fetch_add(s->o.n_syncing, n);
}

int server_finish_audit(struct server *s) { return atomic_exchange(&s->audit_finished, 1) ? 0 : guard_finish_audit(s); }

int server_close(struct server *s)
{
    if (!s)
        return 0;
    if (s->loop)
        loop_drop_all(s->loop);                 /* the clients are gone; threads may still work on their requests */
    rag_stop(s);
    calls_close(s);
    chats_close(s);
    jobs_join(s);
    if (s->opening && models_halt(s) == 0)
        models_stop(s);
    if (s->n_stuck) {
        server_finish_audit(s);
        return SERVER_STUCK;
    }
    while (atomic_exchange(&s->audit_finished, 1))
        /* server_finish_audit() runs in another thread: the process is about to end */
        pause();
    kv_events_close(s->kv_events);
    catalog_close(s);
    jobs_close(s);
    tools_close(s);                             /* writes lines of the audit log */
    server_syncs(s, 1);                         /* for good: what follows only frees memory */
    const int rc = guard_close(s);              /* before loop_close: joins threads that wake the loop */
    loop_close(s->loop);
    rag_release(s);                             /* before account_close: its jobs hold memory */
    account_close(s->account);
    response_store_close(s->responses);
    json_decref(s->sleep.models);
    json_decref(s->batching);
    metrics_release(&s->metrics);
    free(s->openapi);
    nvml_close(s->nvml);
    free(s);
    return rc;
}

int server_is_loading(const struct server *s) { return models_n(s, MODEL_LOADING) > 0; }
int server_port(const struct server *s) { return s->o.host ? s->port : 0; }

int server_load(struct server *s, const char *path, const char *name, struct err *e)
{
    struct problem pr;
    struct loaded_model *lm = models_load(s, path, name, NULL, NULL, &pr);
    if (!lm)
        return err_set(e, ERR_LIMIT, "%s", pr.message);
    lm->wanted = 1;
    return 0;
}

int server_run(struct server *s, struct err *e)
{
    tell_state(s);
    loop_run(s->loop);
    if (s->failed && e)
        *e = s->error;
    return s->failed ? -1 : 0;
}

int server_memory_ran_out(const struct server *s) { return s->watch.state == WATCH_END; }
