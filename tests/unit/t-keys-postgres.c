/* t-keys-postgres.c - keys in a database whose server never ends its answer, sends rows without
 * end, or returns other columns than the query asks for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "libcommon/access/keys.h"
#include "libcommon/access/postgres.h"
#include "libcommon/base/clock.h"

/* n_columns: of the row "1", "1" ... with which the server answers each statement; until the
 * client has gone it sends notices (NOTICES) or long rows (ROWS). */
enum { NOTICES = -1, ROWS = -2 };
struct liar { int fd, n_columns; char url[128]; pthread_t thread; };

static struct err e;

/* Messages of the protocol (PostgreSQL's documentation, section 55.7), after one another. */
struct message { unsigned char text[512]; size_t n, from; };

static void put(struct message *m, const void *data, size_t n)
{
    memcpy(m->text + m->n, data, n);
    m->n += n;
}

static void put_number(struct message *m, uint64_t x, int bytes)
{
    for (int i = bytes - 1; i >= 0; i--)
        put(m, &(unsigned char){ (unsigned char)(x >> 8 * i) }, 1);
}

static void begin(struct message *m, char kind)
{
    put(m, &kind, 1);
    m->from = m->n;
    put_number(m, 0, 4);
}

static void end(struct message *m)
{
    const size_t n = m->n, size = n - m->from;
    m->n = m->from;
    put_number(m, size, 4);
    m->n = n;
}

static void put_empty(struct message *m, const char *kinds)
{
    for (; *kinds; kinds++) {
        begin(m, *kinds);
        end(m);
    }
}

static void put_ready(struct message *m)
{
    begin(m, 'Z');
    put(m, "I", 1);
    end(m);
}

static int send_all(int fd, const struct message *m)
{
    return send(fd, m->text, m->n, MSG_NOSIGNAL) == (ssize_t)m->n ? 0 : -1;
}

static int send_row(int fd, int n_columns)
{
    struct message m = { .n = 0 };
    put_empty(&m, "12");
    begin(&m, 'T');
    put_number(&m, (uint32_t)n_columns, 2);
    for (int i = 0; i < n_columns; i++) {
        put(&m, "x", 2);
        put_number(&m, 0, 4);               /* table and column */
        put_number(&m, 0, 2);
        put_number(&m, 25, 4);              /* text */
        put_number(&m, 0xffff, 2);
        put_number(&m, 0xffffffff, 4);
        put_number(&m, 0, 2);
    }
    end(&m);
    begin(&m, 'D');
    put_number(&m, (uint32_t)n_columns, 2);
    for (int i = 0; i < n_columns; i++) {
        put_number(&m, 1, 4);
        put(&m, "1", 1);
    }
    end(&m);
    begin(&m, 'C');
    put(&m, "SELECT 1", 9);
    end(&m);
    put_ready(&m);
    return send_all(fd, &m);
}

static void send_notices(int fd)
{
    struct message m = { .n = 0 };
    begin(&m, 'N');
    put(&m, "SNOTICE\0Mwait\0", 15);
    end(&m);
    while (send_all(fd, &m) == 0)
        poll(NULL, 0, 5);
}

static void send_rows(int fd)
{
    enum { BYTES = 1 << 20 };
    struct message m = { .n = 0 };
    char *row = calloc(1, BYTES);
    put_empty(&m, "12");
    begin(&m, 'T');
    put_number(&m, 1, 2);
    put(&m, "x", 2);
    put_number(&m, 0, 6);
    put_number(&m, 25, 4);
    put_number(&m, 0, 8);
    end(&m);
    int rc = send_all(fd, &m);
    m.n = 0;
    put(&m, "D", 1);
    put_number(&m, BYTES + 10, 4);
    put_number(&m, 1, 2);
    put_number(&m, BYTES, 4);
    for (ssize_t sent = 0, n; rc == 0 && (rc = send_all(fd, &m)) == 0; sent = 0)
        while (sent < BYTES && rc == 0) {
            n = send(fd, row + sent, (size_t)(BYTES - sent), MSG_NOSIGNAL);
            rc = n > 0 ? 0 : -1;
            sent += n;
        }
    free(row);
}

static int read_all(int fd, void *to, size_t n) { return recv(fd, to, n, MSG_WAITALL) == (ssize_t)n ? 0 : -1; }

/* Read a message with this head and return its kind; 0 at the end. */
static int read_message(int fd, size_t head)
{
    unsigned char h[5];
    char rest[4096];
    if (read_all(fd, h, head) != 0)
        return 0;
    const unsigned char *size = h + head - 4;
    const size_t n = ((size_t)size[0] << 24 | (size_t)size[1] << 16 | (size_t)size[2] << 8 | size[3]) - 4;
    assert_in_range(n, 0, sizeof rest);
    return n && read_all(fd, rest, n) != 0 ? 0 : head == 5 ? h[0] : 1;
}

static void *serve(void *user)
{
    struct liar *l = user;
    struct message hello = { .n = 0 };
    const int fd = accept(l->fd, NULL, NULL);
    begin(&hello, 'R');
    put_number(&hello, 0, 4);
    end(&hello);
    put_ready(&hello);
    int kind = read_message(fd, 4) && send_all(fd, &hello) == 0;
    while (kind && (kind = read_message(fd, 5))) {
        if (kind == 'S' && l->n_columns < 0)
            (l->n_columns == ROWS ? send_rows : send_notices)(fd);
        else if (kind == 'S' && send_row(fd, l->n_columns) != 0)
            break;
    }
    close(fd);
    return NULL;
}

static void open_liar(struct liar *l, int n_columns)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t n = sizeof a;
    l->n_columns = n_columns;
    l->fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(l->fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(getsockname(l->fd, (struct sockaddr *)&a, &n), 0);
    assert_int_equal(listen(l->fd, 1), 0);
    snprintf(l->url, sizeof l->url, "postgresql://u:pass@127.0.0.1:%d/d?sslmode=disable&gssencmode=disable",
             ntohs(a.sin_port));
    assert_int_equal(pthread_create(&l->thread, NULL, serve, l), 0);
}

static void close_liar(struct liar *l)
{
    pthread_join(l->thread, NULL);
    close(l->fd);
}

static int has_libpq(void)
{
    struct postgres *p = postgres_open("postgresql://h/d", &e);
    postgres_close(p);
    return p != NULL;
}

static void a_server_that_never_ends_is_left_at_the_deadline(void **state)
{
    (void)state;
    struct liar l;
    if (!has_libpq())
        skip();
    open_liar(&l, NOTICES);
    struct postgres *p = postgres_open(l.url, &e);
    assert_non_null(p);
    assert_int_equal(postgres_connect(p, &e), 0);
    postgres_set_patience(p, 100);
    const uint64_t from = clock_ns();
    assert_null(postgres_run(p, "SELECT 1", NULL, 0, &e));
    assert_in_range(clock_ns() - from, 90000000u, 20000000000u);
    assert_non_null(strstr(e.msg, "no answer in time"));
    assert_null(strstr(e.msg, "pass"));
    assert_int_equal(postgres_is_connected(p), 0);
    close_liar(&l);
    postgres_close(p);
}

static void a_server_that_sends_rows_without_end_is_left(void **state)
{
    (void)state;
    struct liar l;
    if (!has_libpq())
        skip();
    open_liar(&l, ROWS);
    struct postgres *p = postgres_open(l.url, &e);
    assert_non_null(p);
    assert_int_equal(postgres_connect(p, &e), 0);
    postgres_set_patience(p, 60000);
    assert_null(postgres_run(p, "SELECT 1", NULL, 0, &e));
    if (!strstr(e.msg, "an answer of more than 64 MiB"))
        fail_msg("%s", e.msg);
    assert_int_equal(postgres_is_connected(p), 0);
    close_liar(&l);
    postgres_close(p);
}

static void rows_of_other_columns_are_read_as_empty(void **state)
{
    (void)state;
    struct liar l;
    struct key_info *list;
    int n;
    if (!has_libpq())
        skip();
    open_liar(&l, 0);
    assert_null(keys_open_again(l.url, &e));
    assert_non_null(strstr(e.msg, "has no keys"));
    close_liar(&l);
    open_liar(&l, 1);
    struct keys *k = keys_open_again(l.url, &e);
    assert_non_null(k);
    assert_int_equal(keys_list(k, &list, &n, &e), 0);
    assert_int_equal(n, 1);
    assert_int_equal(list[0].id, 1);
    assert_string_equal(list[0].name, "");
    assert_string_equal(list[0].models, "");
    assert_int_equal(list[0].expires_s, 0);
    free(list);
    keys_close(k);
    close_liar(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_server_that_never_ends_is_left_at_the_deadline),
        cmocka_unit_test(a_server_that_sends_rows_without_end_is_left),
        cmocka_unit_test(rows_of_other_columns_are_read_as_empty),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
