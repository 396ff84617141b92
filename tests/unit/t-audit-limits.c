/* t-audit-limits.c - the audit log at its limits: links to missing files, broken heads, paths that
 * are no folders, foreign fields, a queue that is exactly full, syslog servers that hang up. */
#include "tests/unit/audit_folder.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utime.h>

#include "libcommon/access/audit_files.h"
#include "libcommon/access/audit_queue.h"
#include "libcommon/access/audit_reader.h"
#include "libcommon/access/audit_syslog.h"

/* A missing folder counts as an empty log; a path through a file is an error. */
static void a_path_that_is_no_folder(void **state)
{
    (void)state;
    struct audit_check c;
    assert_int_equal(audit_verify(in_folder("none"), AUDIT_KEYS, NULL, &c, &e), 0);
    assert_int_equal(c.files, 0);
    make("file");
    assert_int_equal(audit_verify(in_folder("file/none"), AUDIT_KEYS, NULL, &c, &e), -1);
}

/* A link to a missing file is treated like a file that was removed meanwhile. */
static void a_name_without_a_file(void **state)
{
    (void)state;
    struct audit_files f;
    audit_close(open_with(0, 0, 3));
    assert_int_equal(symlink("/no/such/file", in_folder("requests_20200101_000000.jsonl.gz")), 0);
    assert_int_equal(audit_files_list(&f, folder, AUDIT_KEYS, &e), 0);
    assert_int_equal(f.n, 1);
    audit_files_release(&f);
}

static void heads_that_are_broken(void **state)
{
    (void)state;
    struct audit_head h;
    char good[256], *text, path[256];
    size_t size;
    audit_close(open_with(0, 0, 3));
    strcpy(path, in_folder("requests.head"));
    assert_int_equal(audit_head_read(folder, AUDIT_KEYS, &h), 1);
    assert_true(h.end.seq >= 3);
    read_all(path, &text, &size);
    assert_true(size < sizeof good);
    memcpy(good, text, size);
    free(text);
    write_all(path, good, size - 1);                    /* cut */
    assert_int_equal(audit_head_read(folder, AUDIT_KEYS, &h), 0);
    for (size_t at = 0; at + 1 < size; at++) {          /* replace each byte, so that a digit of the
                                                         * number, a digit of the hash or a blank is
                                                         * missing */
        char bad[256];
        memcpy(bad, good, size);
        bad[at] = good[at] == ' ' ? '0' : 'x';
        write_all(path, bad, size);
        assert_int_equal(audit_head_read(folder, AUDIT_KEYS, &h), 0);
    }
    write_all(path, good, size);
    assert_int_equal(audit_head_read(folder, AUDIT_KEYS, &h), 1);
}

/* No byte before the line is read: the page before it cannot be read. */
static void the_end_of_a_line_without_a_beginning(void **state)
{
    (void)state;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *line = pages + page;
    const char *hash;
    uint64_t seq;
    assert_true(pages != MAP_FAILED);
    assert_int_equal(mprotect(pages, page, PROT_NONE), 0);
    const size_t size = (size_t)sprintf(line, "1234,\"hash\":\"%s\"}", AUDIT_ZEROS);
    const size_t end = audit_line_end(line, size, &hash, &seq);
    assert_true(end == 4 && seq == 0 && memcmp(hash, AUDIT_ZEROS, 64) == 0);
    assert_int_equal(audit_line_end(line + 4, size - 4, &hash, &seq), 0);      /* no { */
    munmap(pages, 2 * page);
}

/* Lines of other programs may have numbers of any size as times.  Times before 1970 are refused. */
static void times_of_any_size(void **state)
{
    (void)state;
    static const struct { const char *time; int64_t ms; } cases[] = {
        { "0", 0 }, { "-5", -1 }, { "1726.0039", 1726003 }, { "1726.5", 1726500 },
        { "99999999999999999999", (INT64_MAX / 1000 - 1) * 1000 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct audit_record r;
        char line[200];
        const int n = sprintf(line, "{\"status_code\":200,\"timestamp_unix\":%s,\"path\":\"/\"}", cases[i].time);
        assert_int_equal(audit_reader_parse(line, (size_t)n, &r), cases[i].ms < 0 ? -1 : 1);
        assert_true(cases[i].ms < 0 || r.time_ms == cases[i].ms);
    }
}

/* A time that is written with fewer digits is read as that time. */
static void times_of_fewer_digits(void **state)
{
    (void)state;
    const struct audit_entry x = { .time_ms = 1795273726003, .request_id = "id", .method = "GET", .path = "/",
                                   .status = 200, .latency_ms = 1.5, .prompt_tokens = -1, .completion_tokens = -1 };
    struct audit_record r;
    char text[1000];
    size_t n;
    char *line = audit_line(&x, &n);
    assert_true(line && n + 2 <= sizeof text);
    snprintf(text, sizeof text, "%.*s}", (int)n++, line);       /* without the member that ends the chain */
    free(line);
    char *part = strstr(text, "1795273726.003,");
    assert_non_null(part);
    assert_int_equal(audit_reader_parse(text, n, &r), 1);
    assert_true(r.time_ms == 1795273726003);
    memmove(part + 11, part + 13, strlen(part + 13) + 1);       /* .3 */
    assert_int_equal(audit_reader_parse(text, n - 2, &r), 1);
    assert_true(r.time_ms == 1795273726300);
}

static int to_stream(void *user, const char *text, size_t n) { return fwrite(text, 1, n, user) != n; }

static int count_records(void *user, const struct audit_record *r)
{
    (void)r;
    ++*(int *)user;
    return 0;
}

/* Unknown fields become columns of the export.  The current file is read even if its lines have
 * very old times. */
static void fields_and_dates_of_others(void **state)
{
    (void)state;
    char *text;
    size_t size;
    uint64_t rows;
    int n = 0;
    struct audit_scan s;
    const struct audit_filter all = { 0 }, late = { .since_ms = 1795273726003 + 2 };
    audit_close(open_with(0, 0, 4));
    FILE *f = fopen(in_folder(AUDIT_FILE), "a");
    fputs("{\"timestamp_unix\":9,\"status_code\":200,\"mine\":\"x y\"}\n", f);
    fclose(f);
    f = open_memstream(&text, &size);
    assert_int_equal(audit_csv(folder, &all, to_stream, f, &rows, &e), 0);
    fclose(f);
    assert_int_equal(rows, 5);
    assert_non_null(strstr(text, "error_message,mine\r\n"));
    assert_non_null(strstr(text, ",x y\r\n"));
    free(text);
    assert_int_equal(utime(in_folder(AUDIT_FILE), &(struct utimbuf){ 1000, 1000 }), 0);
    assert_int_equal(audit_scan(folder, &late, count_records, &n, &s, &e), 0);
    assert_int_equal(n, 2);
}

/* Lines that fill the queue to the last byte wait there; the next line is dropped and counted. */
static void a_queue_that_is_just_full(void **state)
{
    (void)state;
    enum { N = 4 };
    const struct audit_entry x = { .time_ms = 1, .request_id = "id", .prompt_tokens = -1, .completion_tokens = -1 };
    size_t n;
    struct audit_stats s;
    free(audit_line(&x, &n));
    struct audit *a = open_log(0, 0);
    const int lock = audit_lock(folder, 1, &e);
    struct audit_queue *w = audit_queue_open(a, N * n, &e);
    assert_non_null(w);
    for (int i = 0; i < N; i++)
        audit_queue_add(w, &x);
    audit_stats(a, &s);
    assert_int_equal(s.errors, 0);
    assert_int_equal(audit_queue_waiting(w), N);
    audit_queue_add(w, &x);
    audit_stats(a, &s);
    assert_int_equal(s.errors, 1);
    close(lock);
    assert_int_equal(audit_queue_close(w, 60), 0);
    audit_stats(a, &s);
    assert_int_equal(s.entries, N);
    audit_close(a);
}

static void targets_of_syslog(void **state)
{
    (void)state;
    static const char *const good[] = { "host:514", "tcp:host:514", "udp:[::1]:514", "[::1]:514", "/dev/log" };
    static const char *const bad[] = { "host", "host:", ":514", "udp::514", "::1:514", "tcp:a:b:514",
                                       "host:a-port-that-has-far-too-many-characters-to-be-one" };
    struct audit_remote_stats st;
    char name[400];
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct audit_syslog *s = audit_syslog_open(good[i], &e);
        assert_non_null(s);
        assert_int_equal(audit_syslog_close(s, 0, &st), 0);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_null(audit_syslog_open(bad[i], &e));
    for (int i = 0; i < 2; i++) {                       /* a host name, then a path, each too long
                                                         * for its buffer */
        memset(name, 'h', sizeof name);
        name[0] = i ? '/' : 'h';
        strcpy(name + 390, ":514");
        assert_null(audit_syslog_open(name, &e));
    }
}

/* If a syslog server hangs up, the client connects again and sends later lines. */
static void a_syslog_server_that_hangs_up(void **state)
{
    (void)state;
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t n = sizeof at;
    char target[64], text[4096];
    struct audit_remote_stats st;
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &n), 0);
    assert_int_equal(listen(fd, 5), 0);
    const struct timeval patience = { .tv_sec = 10 };
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience), 0);
    snprintf(target, sizeof target, "tcp:127.0.0.1:%d", ntohs(at.sin_port));
    struct audit_syslog *s = audit_syslog_open(target, &e);
    audit_syslog_add(s, AUDIT_KEYS, "first", 5);
    int in = accept(fd, NULL, NULL);
    assert_true(in >= 0 && read(in, text, sizeof text) > 0);
    setsockopt(in, SOL_SOCKET, SO_LINGER, &(struct linger){ 1, 0 }, sizeof(struct linger));
    close(in);                                          /* a reset */
    audit_syslog_add(s, AUDIT_KEYS, "second", 6);
    in = accept(fd, NULL, NULL);
    assert_true(in >= 0);
    size_t got = 0;
    for (ssize_t more; !memmem(text, got, "second", 6); got += (size_t)more)
        assert_true((more = read(in, text + got, sizeof text - got)) > 0);
    assert_int_equal(audit_syslog_close(s, 5, &st), 0);
    assert_int_equal(st.dropped, 0);
    assert_true(*st.last_error);
    close(in);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_FOLDER(a_path_that_is_no_folder), IN_FOLDER(a_name_without_a_file), IN_FOLDER(heads_that_are_broken),
        cmocka_unit_test(the_end_of_a_line_without_a_beginning), cmocka_unit_test(times_of_any_size),
        cmocka_unit_test(times_of_fewer_digits),
        IN_FOLDER(fields_and_dates_of_others), IN_FOLDER(a_queue_that_is_just_full),
        cmocka_unit_test(targets_of_syslog),
        cmocka_unit_test(a_syslog_server_that_hangs_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
