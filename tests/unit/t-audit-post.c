/* t-audit-post.c - lines of the audit log posted to a collector that fails, hangs up, refuses, is
 * slow, or is not there. */
#include "tests/unit/audit_folder.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "libcommon/access/audit_post.h"
#include "libcommon/base/clock.h"

enum { ROOM = 1 << 20 };
struct collector { int fd; char url[64]; };
struct request { int in; size_t head, body; char *text; };      /* sizes of the header and of the body behind it */

static void listen_on(struct collector *c)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    const struct timeval patience = { .tv_sec = 60 };
    socklen_t n = sizeof a;
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(c->fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(getsockname(c->fd, (struct sockaddr *)&a, &n), 0);
    assert_int_equal(listen(c->fd, 5), 0);
    assert_int_equal(setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience), 0);
    snprintf(c->url, sizeof c->url, "http://u:pass@127.0.0.1:%d/in", ntohs(a.sin_port));
}

/* Read one request; its text ends in a zero byte. */
static struct request take(struct collector *c)
{
    struct request r = { .in = accept(c->fd, NULL, NULL), .text = malloc(ROOM) };
    size_t n = 0, want = SIZE_MAX;
    assert_true(r.in >= 0);
    while (n < want) {
        const ssize_t more = read(r.in, r.text + n, ROOM - 1 - n);
        assert_true(more > 0);
        r.text[n += (size_t)more] = '\0';
        const char *end = strstr(r.text, "\r\n\r\n"), *length = strstr(r.text, "Content-Length: ");
        if (end && want == SIZE_MAX) {
            assert_non_null(length);
            r.head = (size_t)(end - r.text) + 4;
            r.body = strtoul(length + 16, NULL, 10);
            want = r.head + r.body;
        }
    }
    assert_int_equal(n, want);
    return r;
}

static void answer(struct request *r, const char *status)
{
    char text[128];
    const int n = snprintf(text, sizeof text, "HTTP/1.1 %s\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", status);
    assert_int_equal(write(r->in, text, (size_t)n), n);
    close(r->in);
    free(r->text);
}

static void a_batch_is_posted_until_the_collector_has_it(void **state)
{
    (void)state;
    struct collector c;
    struct audit_remote_stats st;
    listen_on(&c);
    struct audit_post *p = audit_post_open(c.url, "s3cret", NULL, &e);
    assert_non_null(p);
    audit_post_add(p, AUDIT_KEYS, "{\"line\":1}", 10);
    audit_post_add(p, AUDIT_KEYS, "{\"line\":2}", 10);
    struct request r = take(&c);
    assert_memory_equal(r.text, "POST /in HTTP/1.1\r\n", 19);
    assert_non_null(strstr(r.text, "\r\nContent-Type: application/x-ndjson\r\n"));
    assert_non_null(strstr(r.text, "\r\nX-Audit-Chain: requests\r\n"));
    assert_non_null(strstr(r.text, "\r\nX-Audit-Host: "));
    assert_non_null(strstr(r.text, "\r\nAuthorization: Bearer s3cret\r\n"));
    assert_string_equal(r.text + r.head, "{\"line\":1}\n{\"line\":2}\n");
    answer(&r, "503 busy\r\nRetry-After: 0");
    const uint64_t refused_ns = clock_ns();
    r = take(&c);
    assert_true(clock_ns() - refused_ns > POST_AGAIN_MS * 900000ull);
    assert_string_equal(r.text + r.head, "{\"line\":1}\n{\"line\":2}\n");
    audit_post_stats(p, &st);
    assert_string_equal(st.last_error, "the collector answered with status 503");
    /* while it is slow, lines wait, and no call does */
    audit_post_add(p, AUDIT_ANONYMOUS, "{\"line\":3}", 10);
    audit_post_stats(p, &st);
    assert_int_equal(st.waiting, 3);
    assert_int_equal(st.sent, 0);
    close(r.in);                                        /* no answer at all */
    free(r.text);
    r = take(&c);
    assert_string_equal(r.text + r.head, "{\"line\":1}\n{\"line\":2}\n");
    answer(&r, "204 thanks");
    r = take(&c);
    assert_non_null(strstr(r.text, "\r\nX-Audit-Chain: anonymous\r\n"));
    assert_string_equal(r.text + r.head, "{\"line\":3}\n");
    answer(&r, "400 not this one");                     /* refused for good */
    audit_post_add(p, AUDIT_KEYS, "{\"line\":4}", 10);
    r = take(&c);
    assert_string_equal(r.text + r.head, "{\"line\":4}\n");
    answer(&r, "200 good");
    assert_int_equal(audit_post_close(p, 30, &st), 0);
    assert_int_equal(st.sent, 3);
    assert_int_equal(st.dropped, 1);
    assert_int_equal(st.waiting, 0);
    assert_null(strstr(st.last_error, "pass"));
    close(c.fd);
}

enum { N_LINES = 400, LINE = 2000 };

static void *collect(void *user)
{
    struct collector *c = user;
    for (int n = 0; n < N_LINES;) {
        struct request r = take(c);
        assert_in_range(r.body, 1, POST_BATCH_BYTES);
        assert_int_equal(r.body % (LINE + 1), 0);       /* whole lines */
        for (size_t i = LINE; i < r.body; i += LINE + 1, n++)
            assert_int_equal(r.text[r.head + i], '\n');
        answer(&r, "200 good");
    }
    return NULL;
}

static void many_lines_are_posted_in_parts_and_before_the_end(void **state)
{
    (void)state;
    struct collector c;
    struct audit_remote_stats st;
    pthread_t thread;
    char line[LINE];
    listen_on(&c);
    memset(line, 'x', sizeof line);
    struct audit_post *p = audit_post_open(c.url, NULL, NULL, &e);
    assert_non_null(p);
    for (int i = 0; i < N_LINES; i++)
        audit_post_add(p, AUDIT_KEYS, line, LINE);
    assert_int_equal(pthread_create(&thread, NULL, collect, &c), 0);
    assert_int_equal(audit_post_close(p, 30, &st), 0);
    pthread_join(thread, NULL);
    assert_int_equal(st.sent, N_LINES);
    assert_int_equal(st.dropped, 0);
    close(c.fd);
}

static void a_missing_collector_holds_up_nothing(void **state)
{
    (void)state;
    struct collector c;
    struct audit_remote_stats st;
    enum { N = POST_BYTES / (LINE + 1) };
    char line[LINE];
    memset(line, 'x', sizeof line);
    listen_on(&c);
    close(c.fd);
    struct audit_post *p = audit_post_open(c.url, NULL, NULL, &e);
    assert_non_null(p);
    for (int i = 0; i < N + 7; i++)
        audit_post_add(p, AUDIT_KEYS, line, LINE);
    audit_post_stats(p, &st);
    assert_int_equal(st.dropped, 7);
    assert_int_equal(st.waiting, N);
    const uint64_t from = clock_ns();
    assert_int_equal(audit_post_close(p, 0, &st), 0);
    assert_true(clock_ns() - from < 20000000000u);
    assert_int_equal(st.dropped, N + 7);
    assert_int_equal(st.waiting, 0);
}

static void a_url_is_http(void **state)
{
    (void)state;
    static const char *const bad[] = { "", "ftp://h/", "h/in", "https:/h", "/in" };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_null(audit_post_open(bad[i], NULL, NULL, &e));
    assert_string_equal(e.msg, "--audit-url: the URL begins neither with https:// nor with http://");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_batch_is_posted_until_the_collector_has_it),
        cmocka_unit_test(many_lines_are_posted_in_parts_and_before_the_end),
        cmocka_unit_test(a_missing_collector_holds_up_nothing), cmocka_unit_test(a_url_is_http),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
