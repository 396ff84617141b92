/* t-conn.c - the event loop with real sockets: WebSockets whose clients are gone, responses larger
 * than the limit of unsent bytes, memory that a thread frees, and the queue of TLS handshakes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <openssl/pem.h>
#include <openssl/x509.h>

#include "libcommon/http/account.h"
#include "libcommon/http/conn.h"
#include "libcommon/http/handshake.h"
#include "libcommon/http/internal.h"
#include "libcommon/http/reaper.h"

enum { LARGE = 8 << 20 };
static const char large[LARGE];

static void on_request(void *user, struct conn *c)
{
    assert_string_equal(conn_peer(c), "127.0.0.1");
    if (strcmp(conn_request(c)->path, "/large") == 0)
        conn_reply(c, 200, "text/plain", large, LARGE);
    else if (strcmp(conn_request(c)->path, "/small") == 0)
        conn_reply(c, 200, "text/plain", "ok", 2);
    else if (strcmp(conn_request(c)->path, "/stream") == 0) {
        assert_int_equal(loop_n_busy(*(struct loop **)user), 1);
        conn_begin(c, 200, "text/plain");
        conn_write(c, large, LARGE);
    } else
        conn_upgrade(c);
}
static void on_message(void *user, struct conn *c, const char *text, size_t size)
{
    (void)text;
    (void)size;
    (void)c;
    loop_quit(*(struct loop **)user);
}
static void *run(void *l)
{
    loop_run(l);
    return NULL;
}

/* A loop in a thread, and its port. */
struct served { struct loop *loop; pthread_t thread; int port; };

static void serve(struct served *s, struct loop_options *o)
{
    struct err e;
    *s = (struct served){ 0 };
    o->http = (struct http_limits){ .head_bytes = 4096, .body_bytes = 16 << 20 };
    o->max_connections = 8;
    o->head_s = o->body_s = o->idle_s = o->stalled_s = 20;
    o->on_request = on_request;
    o->on_message = on_message;
    o->user = &s->loop;
    assert_non_null(s->loop = loop_open(o, &e));
    assert_int_equal(loop_bind(s->loop, "127.0.0.1", &s->port, &e), 0);
    assert_int_equal(loop_listen(s->loop, &e), 0);
    assert_int_equal(pthread_create(&s->thread, NULL, run, s->loop), 0);
}

/* Connect and send this head.  Returns the connection, and in `answer` the response up to its blank
 * line; room 0: the response is not read. */
static int client(int port, const char *head, char *answer, size_t room)
{
    const struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    const struct timeval most = { .tv_sec = 20 };
    size_t n = 0;
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
    assert_int_equal(connect(fd, (const struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(send(fd, head, strlen(head), 0), strlen(head));
    while (room && (n < 4 || memcmp(answer + n - 4, "\r\n\r\n", 4) != 0)) {
        assert_true(n < room - 1);
        assert_int_equal(recv(fd, answer + n++, 1, 0), 1);
    }
    if (room)
        answer[n] = '\0';
    return fd;
}

static int websocket(int port)
{
    char answer[1024];
    const int fd = client(port, "GET / HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n", answer, sizeof answer);
    assert_memory_equal(answer, "HTTP/1.1 101", 12);
    return fd;
}

static void finish(struct served *s)
{
    static const unsigned char text[7] = { 0x81, 0x81 };
    const int fd = websocket(s->port);
    assert_int_equal(send(fd, text, sizeof text, 0), sizeof text);          /* ends the loop */
    pthread_join(s->thread, NULL);
    close(fd);
    loop_close(s->loop);
}

/* Both clients get a ping: the one that answers stays connected, the other one is disconnected. */
static void clients_without_a_pong_are_disconnected(void **state)
{
    static const unsigned char ping[2] = { 0x89, 0 }, pong[6] = { 0x8a, 0x80 };
    struct loop_options o = { .max_unsent = 1 << 20, .ping_s = 0.4 };
    struct served s;
    unsigned char got[2];
    (void)state;
    serve(&s, &o);
    const int alive = websocket(s.port), gone = websocket(s.port);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(recv(alive, got, 2, MSG_WAITALL), 2);
        assert_memory_equal(got, ping, 2);
        assert_int_equal(send(alive, pong, sizeof pong, 0), sizeof pong);
    }
    assert_int_equal(recv(gone, got, 2, MSG_WAITALL), 2);
    assert_memory_equal(got, ping, 2);
    assert_int_equal(recv(gone, got, 1, 0), 0);
    close(alive);
    close(gone);
    finish(&s);
}

/* max_unsent applies to streams only: a whole response does not grow while it waits, so it is sent
 * completely. */
static void test_large_answer(void **state)
{
    struct loop_options o = { .max_unsent = 1 << 16 };
    static char got[1 << 16];
    struct served s;
    char answer[1024];
    size_t n = 0;
    (void)state;
    serve(&s, &o);
    const int fd = client(s.port, "GET /large HTTP/1.1\r\nHost: h\r\n\r\n", answer, sizeof answer);
    assert_non_null(strstr(answer, "Content-Length: 8388608\r\n"));
    while (n < LARGE) {
        const ssize_t k = recv(fd, got, sizeof got, 0);
        assert_true(k > 0);
        n += (size_t)k;
    }
    assert_int_equal(n, LARGE);
    close(fd);
    finish(&s);
}

/* Read everything until the connection ends. */
static size_t rest_of(int fd, char *to, size_t room)
{
    size_t n = 0;
    for (ssize_t k; n < room && (k = recv(fd, to + n, room - n, 0)) > 0;)
        n += (size_t)k;
    return n;
}

static int connect_to(int port)
{
    const struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    const struct timeval most = { .tv_sec = 20 };
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
    assert_int_equal(connect(fd, (const struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

/* A stream is ended if more than max_unsent bytes of it wait for its client. */
static void test_slow_reader(void **state)
{
    struct loop_options o = { .max_unsent = 1 << 16 };
    static char got[1 << 16];
    struct served s;
    size_t n = 0;
    ssize_t k;
    (void)state;
    serve(&s, &o);
    const int fd = client(s.port, "GET /stream HTTP/1.1\r\nHost: h\r\n\r\n", got, sizeof got);
    while ((k = recv(fd, got, sizeof got, 0)) > 0)
        n += (size_t)k;
    assert_true(n < LARGE);
    close(fd);
    finish(&s);
}

/* The exact bytes of refused upgrades, of 100 Continue, of responses that end a connection, and of
 * the refusal of surplus connections. */
static void test_exact_bytes(void **state)
{
    static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n",
                      full[] = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
    static const char *const no_upgrade[] = {
        "GET / HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: short\r\n\r\n",
    };
    enum { MOST = 6 };
    struct loop_options o = { .max_unsent = 1 << 16, .max_per_address = MOST };
    struct served s;
    char answer[4096];
    int many[MOST + 1];
    (void)state;
    serve(&s, &o);
    for (size_t i = 0; i < sizeof no_upgrade / sizeof *no_upgrade; i++) {
        close(client(s.port, no_upgrade[i], answer, sizeof answer));
        assert_memory_equal(answer, "HTTP/1.1 426 ", 13);
    }
    int fd = client(s.port, "POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n", answer,
                    sizeof answer);
    assert_string_equal(answer, go_on);
    assert_int_equal(send(fd, "hi", 2, 0), 2);
    assert_int_equal(shutdown(fd, SHUT_WR), 0);         /* no more requests: the answer, and the end */
    const size_t n = rest_of(fd, answer, sizeof answer);
    assert_in_range(n, 20, sizeof answer - 1);
    assert_memory_equal(answer, "HTTP/1.1 426 ", 13);
    close(fd);
    fd = websocket(s.port);                             /* a close frame is answered by a close
                                                         * frame, then the connection ends */
    static const unsigned char close_frame[6] = { 0x88, 0x80 };
    assert_int_equal(send(fd, close_frame, sizeof close_frame, 0), sizeof close_frame);
    assert_int_equal(rest_of(fd, answer, sizeof answer), 4);
    assert_memory_equal(answer, "\x88\x02\x03\xe8", 4);      /* status 1000 */
    close(fd);
    for (int i = 0; i <= MOST; i++)
        many[i] = connect_to(s.port);
    const size_t refused = rest_of(many[MOST], answer, sizeof answer);
    assert_int_equal(refused, sizeof full - 1);
    assert_memory_equal(answer, full, refused);
    for (int i = 0; i <= MOST; i++) {
        shutdown(many[i], SHUT_WR);
        assert_int_equal(rest_of(many[i], answer, sizeof answer), 0);   /* the server has closed the
                                                                         * connection, too */
        close(many[i]);
    }
    finish(&s);
}

/* If the account does not admit a body, the response names the option that sets the limit. */
static void test_body_without_memory(void **state)
{
    struct err e;
    struct loop_options o = { .max_unsent = 1 << 16, .account = account_open(1 << 20, 2 << 20, &e) };
    struct served s;
    char answer[4096];
    (void)state;
    assert_non_null(o.account);
    serve(&s, &o);
    const int fd = client(s.port, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 15000000\r\n\r\n", answer,
                          sizeof answer);
    assert_memory_equal(answer, "HTTP/1.1 413 ", 13);
    const size_t n = rest_of(fd, answer, sizeof answer - 1);
    answer[n] = '\0';
    assert_non_null(strstr(answer, "--max-request-memory"));
    close(fd);
    finish(&s);
    account_close(o.account);
}

/* A connection stays open for further requests until one asks for its end. */
static void test_keep_alive(void **state)
{
    struct loop_options o = { .max_unsent = 1 << 16 };
    struct served s;
    char answer[4096];
    (void)state;
    serve(&s, &o);
    const int fd = connect_to(s.port);
    for (int last = 0; last < 2; last++) {
        const char *head = last ? "GET /small HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
                                : "GET /small HTTP/1.1\r\nHost: h\r\n\r\n";
        size_t n = 0;
        assert_int_equal(send(fd, head, strlen(head), 0), strlen(head));
        for (answer[0] = '\0'; !strstr(answer, "\r\n\r\nok"); answer[n] = '\0')
            assert_int_equal(recv(fd, answer + n++, 1, 0), 1);
        assert_memory_equal(answer, "HTTP/1.1 200 ", 13);
        assert_int_equal(strstr(answer, "Connection: close") != NULL, last);
    }
    assert_int_equal(recv(fd, answer, 1, 0), 0);
    close(fd);
    finish(&s);
}

/* A client that has shut down its side still gets all responses; then the connection ends. */
static void test_half_closed(void **state)
{
    static const char heads[] = "GET /large HTTP/1.1\r\nHost: h\r\n\r\nGET /small HTTP/1.1\r\nHost: h\r\n\r\n"
                                "GET /small HTTP/1.1\r\nHost: h\r\n\r\n";
    struct loop_options o = { .max_unsent = LARGE };
    struct served s;
    char *all = malloc(2 * LARGE);
    size_t n = 0;
    ssize_t got;
    (void)state;
    assert_non_null(all);
    serve(&s, &o);
    const int fd = connect_to(s.port);
    assert_int_equal(send(fd, heads, strlen(heads), 0), strlen(heads));
    assert_int_equal(shutdown(fd, SHUT_WR), 0);
    while ((got = recv(fd, all + n, 2 * LARGE - n, 0)) > 0)
        n += (size_t)got;
    assert_int_equal(got, 0);
    int answers = 0;
    for (const char *p = all; (p = memmem(p, (size_t)(all + n - p), "HTTP/1.1 200 ", 13)); p++)
        answers++;
    assert_int_equal(answers, 3);
    close(fd);
    free(all);
    finish(&s);
}

static int open_files(void)
{
    int n = 0;
    for (int fd = 0; fd < 1024; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

/* Write a key and its self-signed certificate as PEM; closes fd. */
static void write_certificate(int fd)
{
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *x = X509_new();
    FILE *f = fdopen(fd, "w");
    assert_true(key && x && f);
    X509_gmtime_adj(X509_getm_notBefore(x), 0);
    X509_gmtime_adj(X509_getm_notAfter(x), 3600);
    assert_int_equal(X509_set_pubkey(x, key), 1);
    assert_true(X509_sign(x, key, EVP_sha256()) > 0);
    assert_int_equal(PEM_write_PrivateKey(f, key, NULL, NULL, 0, NULL, NULL), 1);
    assert_int_equal(PEM_write_X509(f, x), 1);
    fclose(f);
    X509_free(x);
    EVP_PKEY_free(key);
}

/* Run in a thread of handshakes: make the handshake last until its connection is closed. */
static int last_until_closed(SSL *ssl, void *loop)
{
    struct conn *volatile *away = &((struct loop *)loop)->away;
    (void)ssl;
    while (!*away)
        sched_yield();
    return 1;
}

static void quit(void *loop) { loop_quit(*(struct loop **)loop); }

/* A connection whose time limit passes while a thread works on its handshake is closed once, after
 * the thread has finished. */
static void test_closed_in_handshake(void **state)
{
    struct loop *l = NULL;
    struct loop_options o = { .http = { .head_bytes = 4096, .body_bytes = 4096 }, .max_connections = 8,
                              .on_request = on_request, .on_wake = quit, .user = &l, .head_s = 0.01, .body_s = 20,
                              .idle_s = 20, .stalled_s = 20 };
    char path[] = "/tmp/t-conn-XXXXXX";
    const int file = mkstemp(path);
    pthread_t thread;
    struct err e;
    int port = 0;
    char byte;
    (void)state;
    assert_true(file >= 0);
    signal(SIGPIPE, SIG_IGN);                   /* the client may write to the closed connection */
    write_certificate(file);
    assert_non_null(l = loop_open(&o, &e));
    assert_int_equal(loop_tls(l, path, path, &e), 0);
    unlink(path);
    SSL_CTX_set_cert_cb(l->tls, last_until_closed, l);
    assert_int_equal(loop_bind(l, "127.0.0.1", &port, &e), 0);
    assert_int_equal(loop_listen(l, &e), 0);
    assert_int_equal(pthread_create(&thread, NULL, run, l), 0);
    SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
    SSL *ssl = SSL_new(ctx);
    const int fd = client(port, "", NULL, 0);
    assert_int_equal(SSL_set_fd(ssl, fd), 1);
    if (SSL_connect(ssl) == 1)
        assert_true(SSL_read(ssl, &byte, 1) <= 0);          /* the server has closed it */
    loop_wake(l);
    pthread_join(thread, NULL);
    assert_null(l->away);
    loop_close(l);
    SSL_free(ssl);
    SSL_CTX_free(ctx);
    close(fd);
}

/* A closed loop leaves no file open. */
static void test_no_file_stays(void **state)
{
    const int before = open_files();
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct loop_options o = { .max_unsent = 1 << 16 };
        struct served s;
        serve(&s, &o);
        finish(&s);
    }
    assert_int_equal(open_files(), before);
    /* with the threads of TLS */
    char path[] = "/tmp/t-conn-XXXXXX";
    const int file = mkstemp(path);
    assert_true(file >= 0);
    write_certificate(file);
    struct loop_options o = { .http = { .head_bytes = 4096, .body_bytes = 4096 }, .max_connections = 8,
                              .on_request = on_request };
    struct err e;
    int port = 0;
    struct loop *l = loop_open(&o, &e);
    assert_non_null(l);
    assert_int_equal(loop_tls(l, path, path, &e), 0);
    assert_int_equal(loop_bind(l, "127.0.0.1", &port, &e), 0);
    assert_int_equal(loop_listen(l, &e), 0);
    loop_close(l);
    unlink(path);
    assert_int_equal(open_files(), before);
}

/* Every buffer is freed: by the reaper's thread, when the reaper is closed, or at once if the
 * buffer is small or there is no reaper. */
static void every_buffer_is_freed_by_the_reaper(void **state)
{
    struct reaper *r = reaper_open();
    (void)state;
    assert_non_null(r);
    for (int i = 0; i < 100; i++) {
        struct buf b = { 0 };
        assert_non_null(buf_reserve(&b, i % 2 ? 100 : 2 << 20));
        b.size = 100;
        reaper_take(i % 10 == 9 ? NULL : r, &b);
        assert_null(b.data);
        assert_int_equal(b.size + b.room, 0);
    }
    struct buf none = { 0 };
    reaper_take(r, &none);
    reaper_close(r);
    reaper_close(NULL);
}

static void wake(void *user) { (void)user; }

static int threads(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/task");
    assert_non_null(d);
    for (const struct dirent *x; (x = readdir(d));)
        n += x->d_name[0] != '.';
    closedir(d);
    return n;
}

/* The limits of the queue of handshakes, and which handshake is dropped when it is full.  There are
 * no threads, so nothing leaves the queue. */
static void test_handshake_queue(void **state)
{
    static struct handshake a[HANDSHAKES_WAITING + 1], b[2];
    struct handshake *dropped;
    struct err e;
    const int before = threads();
    struct handshakes *h = handshakes_open(0, wake, NULL, &e);
    (void)state;
    assert_non_null(h);
    assert_true(threads() <= before);           /* fewer if a thread of an earlier test has ended meanwhile */
    for (int i = 0; i <= HANDSHAKES_PER_OWNER; i++) {
        a[i].owner = 7;
        assert_int_equal(handshakes_submit(h, &a[i], 1, &dropped), i < HANDSHAKES_PER_OWNER ? 0 : -1);
        assert_null(dropped);
        assert_int_equal(a[i].away, i < HANDSHAKES_PER_OWNER);
    }
    /* handshakes of a proxy's clients: the limit per address does not apply */
    for (int i = HANDSHAKES_PER_OWNER; i < HANDSHAKES_WAITING; i++) {
        a[i].owner = 7;
        assert_int_equal(handshakes_submit(h, &a[i], 0, &dropped), 0);
    }
    a[HANDSHAKES_WAITING].owner = 7;
    assert_int_equal(handshakes_submit(h, &a[HANDSHAKES_WAITING], 0, &dropped), -1);
    b[0].owner = b[1].owner = 8;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(handshakes_submit(h, &b[i], 1, &dropped), 0);
        assert_ptr_equal(dropped, &a[HANDSHAKES_WAITING - 1 - i]);         /* the newest one of the
                                                                            * address that has the
                                                                            * most */
        assert_false(dropped->away);
    }
    assert_int_equal(handshakes_withdraw(h, &b[0]), 1);
    assert_false(b[0].away);
    assert_int_equal(handshakes_submit(h, &b[0], 1, &dropped), 0);
    assert_null(dropped);
    assert_null(handshakes_back(h));
    handshakes_close(h);
    assert_false(a[0].away || b[1].away);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clients_without_a_pong_are_disconnected), cmocka_unit_test(test_large_answer),
        cmocka_unit_test(test_slow_reader), cmocka_unit_test(test_exact_bytes),
        cmocka_unit_test(test_body_without_memory), cmocka_unit_test(test_keep_alive),
        cmocka_unit_test(test_half_closed), cmocka_unit_test(test_closed_in_handshake),
        cmocka_unit_test(test_no_file_stays), cmocka_unit_test(every_buffer_is_freed_by_the_reaper),
        cmocka_unit_test(test_handshake_queue),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
