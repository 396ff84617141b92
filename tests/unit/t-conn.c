/* t-conn.c - the event loop with real sockets: WebSockets whose clients are gone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <arpa/inet.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "libcommon/serve/conn.h"

static void on_request(void *user, struct conn *c)
{
    (void)user;
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

static int client(int port)
{
    static const char head[] = "GET / HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    const struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    const struct timeval most = { .tv_sec = 20 };
    char answer[1024];
    size_t n = 0;
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
    assert_int_equal(connect(fd, (const struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(send(fd, head, sizeof head - 1, 0), sizeof head - 1);
    while (n < 4 || memcmp(answer + n - 4, "\r\n\r\n", 4) != 0) {
        assert_true(n < sizeof answer);
        assert_int_equal(recv(fd, answer + n++, 1, 0), 1);
    }
    assert_memory_equal(answer, "HTTP/1.1 101", 12);
    return fd;
}

/* Both get a ping; the one that answers stays, the other one is closed. */
static void test_pings(void **state)
{
    static const unsigned char ping[2] = { 0x89, 0 }, pong[6] = { 0x8a, 0x80 }, text[7] = { 0x81, 0x81 };
    struct loop_options o = { .http = { .head_bytes = 4096, .body_bytes = 1000 }, .max_connections = 8, .max_unsent = 1 << 20, .head_s = 10, .body_s = 10, .idle_s = 10, .stalled_s = 10,
                              .ping_s = 0.4, .on_request = on_request, .on_message = on_message };
    struct loop *l = NULL;
    struct err e;
    pthread_t thread;
    unsigned char got[2];
    int port = 0;
    (void)state;
    o.user = &l;
    assert_non_null(l = loop_open(&o, &e));
    assert_int_equal(loop_bind(l, "127.0.0.1", &port, &e), 0);
    assert_int_equal(loop_listen(l, &e), 0);
    assert_int_equal(pthread_create(&thread, NULL, run, l), 0);
    const int alive = client(port), gone = client(port);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(recv(alive, got, 2, MSG_WAITALL), 2);
        assert_memory_equal(got, ping, 2);
        assert_int_equal(send(alive, pong, sizeof pong, 0), sizeof pong);
    }
    assert_int_equal(recv(gone, got, 2, MSG_WAITALL), 2);
    assert_memory_equal(got, ping, 2);
    assert_int_equal(recv(gone, got, 1, 0), 0);
    assert_int_equal(send(alive, text, sizeof text, 0), sizeof text);       /* ends the loop */
    pthread_join(thread, NULL);
    close(alive);
    close(gone);
    loop_close(l);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_pings) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
