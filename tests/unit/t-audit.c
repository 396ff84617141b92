/* t-audit.c - write the audit log: lines, rotation, several writers, full disks, queue, syslog. */
#include "tests/unit/audit_folder.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "libcommon/access/audit_files.h"
#include "libcommon/access/audit_query.h"
#include "libcommon/access/audit_queue.h"
#include "libcommon/access/audit_syslog.h"
#include "libcommon/access/audit_verify.h"

static void every_line_is_json_with_all_fields(void **state)
{
    (void)state;
    struct audit *a = open_log(0, 0);
    char *line;
    for (int i = 0; i < 1200; i++)
        add_entry(a, i, i % 10 ? 200 : 429, "/v1/chat/completions");
    assert_false(audit_recent(a, AUDIT_RECENT, &line));
    assert_true(audit_recent(a, AUDIT_RECENT - 1, &line));
    assert_non_null(strstr(line, "\"id-200\""));
    free(line);
    assert_true(audit_recent(a, 0, &line));
    json_t *o = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(o);
    static const char *const fields[] = { "timestamp", "timestamp_unix", "request_id", "method", "path", "status_code",
                                          "latency_ms", "api_key_name", "client_ip", "user_agent", "model_id",
                                          "prompt_tokens", "completion_tokens", "total_tokens", "error_message",
                                          "hash" };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        assert_non_null(json_object_get(o, fields[i]));
    assert_string_equal(json_string_value(json_object_get(o, "timestamp")), "2026-11-21T15:08:47.202Z");
    assert_string_equal(json_string_value(json_object_get(o, "user_agent")), "t \"q\" \x01\xef\xbf\xbd");
    assert_int_equal(json_integer_value(json_object_get(o, "total_tokens")), 3 + 1199);
    json_decref(o);
    free(line);
    struct audit_stats s;
    audit_stats(a, &s);
    assert_int_equal(s.entries, 1200);
    assert_int_equal(s.errors, 0);
    audit_close(a);
}

/* Text in places where clients should not put it: keys are removed, and no character remains that a
 * terminal, or a program that splits text into lines, would interpret. */
static void nothing_of_a_line_is_obeyed_and_no_key_is_in_it(void **state)
{
    (void)state;
    static const char path[] = "/v1/zse-ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghij-_01234?",
                      agent[] = "zse-ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefgh",
                      model[] = "zse-tiny-8b\xc2\x9b\xe2\x80\xa8\xe2\x80\xae\xe2\x81\xa6\x7f\n";
    const struct audit_entry x = { .request_id = "id", .method = "GET", .path = path, .user_agent = agent,
                                   .model = model };
    size_t n;
    char *line = audit_line(&x, &n);
    assert_non_null(line);
    line[n] = '\0';
    assert_non_null(strstr(line, "\"path\":\"/v1/zse-...?\""));
    /* a truncated key is removed, too */
    assert_non_null(strstr(line, "\"user_agent\":\"zse-...\""));
    assert_non_null(strstr(line, "\"model_id\":\"zse-tiny-8b\\u009b\\u2028\\u202e\\u2066\\u007f\\u000a\""));
    free(line);
}

static void rotation_loses_nothing(void **state)
{
    (void)state;
    enum { N = 3000 };
    unsigned char *seen = calloc(N, 1);
    struct audit_scan s;
    struct audit_check c;
    struct audit_files f;
    const struct audit_filter all = { 0 };
    for (int round = 0; round < 3; round++) {           /* closed and opened in between */
        struct audit *a = open_log(20000, 100);
        for (int i = 0; i < N / 3; i++)
            add_entry(a, round * (N / 3) + i, 200, "/v1/x");
        audit_close(a);
    }
    assert_int_equal(audit_scan(folder, &all, count_ids, seen, &s, &e), 0);
    for (int i = 0; i < N; i++)
        assert_int_equal(seen[i], 1);
    assert_int_equal(s.bad, 0);
    assert_int_equal(audit_files_list(&f, folder, AUDIT_KEYS, &e), 0);
    assert_in_range(f.n, 40, 90);
    for (int i = 0; i + 1 < f.n; i++)
        assert_true(f.file[i].gz);
    audit_files_release(&f);
    assert_int_equal(verify(NULL, &c), 0);
    assert_false(c.broken);
    struct audit *a = open_with(20000, 3, 200);               /* keep fewer */
    audit_close(a);
    assert_int_equal(audit_files_list(&f, folder, AUDIT_KEYS, &e), 0);
    assert_int_equal(f.n, 4);
    audit_files_release(&f);
    assert_int_equal(verify(NULL, &c), 0);
    assert_true(!c.broken && c.older_gone);
    free(seen);
}

static void clearing_all_takes_what_a_crash_left(void **state)
{
    (void)state;
    uint64_t dropped;
    struct audit_check c;
    struct audit *a = open_with(20000, 100, 300);
    audit_close(a);
    /* a plain file whose complete .gz exists already, as just before the plain file is removed */
    make("requests_20200101_000000.jsonl");
    make("requests_20200101_000000.jsonl.gz");
    make("requests_20200101_000001_002.jsonl.gz.tmp");      /* half of a compressed file */
    make("requests_of_somebody.jsonl");
    assert_in_range(n_names("requests_2"), 5, 20);
    assert_int_equal(audit_clear(folder, 0, &dropped, &e), 0);
    assert_in_range(n_names("requests_2"), 5, 20);
    assert_int_equal(audit_clear(folder, 1, &dropped, &e), 0);
    assert_int_equal(dropped, 2);                           /* the first lines of the first file of
                                                             * each of the two chains */
    assert_int_equal(n_names("requests_2"), 0);
    assert_int_equal(n_names("requests_of_somebody.jsonl"), 1);
    assert_int_equal(verify(NULL, &c), 0);
    assert_false(c.broken);
}

/* The clock went back by years after a rotation, and the current file is missing: names keep
 * increasing and the chain continues. */
static void a_clock_that_steps_breaks_no_chain(void **state)
{
    (void)state;
    struct audit_check c;
    struct audit_files f;
    char head[SHA256_HEX + 1];
    struct audit *a = open_with(20000, 100, 20);
    audit_close(a);
    assert_int_equal(verify(NULL, &c), 0);
    strcpy(head, c.head);
    char from[256];
    strcpy(from, in_folder(AUDIT_FILE));
    assert_int_equal(rename(from, in_folder("requests_20991231_235959.jsonl")), 0);
    /* in the first round the last line is in a plain file, in the second round in a compressed
     * file */
    for (int round = 0; round < 2; round++) {
        a = open_with(20000, 100, 100);
        audit_close(a);
        assert_int_equal(verify(head, &c), 0);
        assert_true(!c.broken && c.found);
        assert_int_equal(audit_files_list(&f, folder, AUDIT_KEYS, &e), 0);
        assert_in_range(f.n, 3, 20);
        for (int i = 0; i + 1 < f.n; i++)
            assert_true(f.file[i].gz && strstr(f.file[i].path, "/requests_20991231_235959"));
        audit_files_release(&f);
        if (round == 0)
            assert_int_equal(audit_clear(folder, 1, &(uint64_t){ 0 }, &e), 0);
        if (round == 0) {
            strcpy(from, in_folder(AUDIT_FILE));
            assert_int_equal(rename(from, in_folder("requests_20991231_235959.jsonl")), 0);
            assert_int_equal(verify(NULL, &c), 0);
            strcpy(head, c.head);
        }
    }
}

static void processes_share_a_log(void **state)
{
    (void)state;
    enum { WRITERS = 4, EACH = 500 };
    unsigned char *seen = calloc(WRITERS * EACH, 1);
    struct audit_scan s;
    struct audit_check c;
    const struct audit_filter all = { 0 };
    for (int w = 0; w < WRITERS; w++)
        if (fork() == 0) {
            const struct audit_options o = { .folder = folder, .max_bytes = 30000, .keep = 1000 };
            struct err mine;
            struct audit *a = audit_open(&o, &mine);
            for (int i = 0; a && i < EACH; i++)
                add_entry(a, w * EACH + i, 200, "/v1/x");
            if (w == 0)
                kill(getpid(), SIGKILL);    /* without closing: added lines stay */
            audit_close(a);
            _exit(0);
        }
    while (wait(NULL) > 0)
        ;
    assert_int_equal(audit_scan(folder, &all, count_ids, seen, &s, &e), 0);
    for (int i = 0; i < WRITERS * EACH; i++)
        assert_int_equal(seen[i], 1);
    assert_int_equal(verify(NULL, &c), 0);
    assert_false(c.broken);
    assert_int_equal(c.bad, 0);
    free(seen);
}

/* A child that rotates every few lines reports each line that is written, until it is killed: those
 * lines are in the log once, in one chain. */
static void kill_9_while_rotating_loses_nothing(void **state)
{
    (void)state;
    enum { ROUNDS = 12, EACH = 200 };
    unsigned char *seen = calloc(ROUNDS * EACH, 1), *said = calloc(ROUNDS * EACH, 1);
    const struct audit_filter all = { 0 };
    struct audit_scan s;
    struct audit_check c;
    for (int round = 0; round < ROUNDS; round++) {
        int fd[2], id, n = 0;
        assert_int_equal(pipe(fd), 0);
        const pid_t child = fork();
        if (child == 0) {
            struct audit *a = open_log(2500, 1000);
            for (int i = round * EACH; i < (round + 1) * EACH; i++) {
                add_entry(a, i, 200, "/v1/x");
                if (write(fd[1], &i, sizeof i) != sizeof i)
                    break;
            }
            _exit(0);
        }
        close(fd[1]);
        while (read(fd[0], &id, sizeof id) == sizeof id) {
            said[id] = 1;
            if (++n == 10 + 7 * round)
                kill(child, SIGKILL);
        }
        close(fd[0]);
        assert_int_equal(waitpid(child, NULL, 0), child);
    }
    struct audit *a = open_log(2500, 1000);             /* the next writer continues */
    add_entry(a, 0, 200, "/v1/x");
    audit_close(a);
    assert_int_equal(audit_scan(folder, &all, count_ids, seen, &s, &e), 0);
    seen[0]--;
    for (int i = 0; i < ROUNDS * EACH; i++)
        assert_true(said[i] ? seen[i] == 1 : seen[i] <= 1);
    assert_int_equal(verify(NULL, &c), 0);
    if (c.broken)
        fail_msg("%s", c.where);
    free(seen);
    free(said);
}

static void half_a_line_is_ended(void **state)
{
    (void)state;
    struct audit_check c;
    struct audit_scan s;
    const struct audit_filter all = { 0 };
    unsigned char seen[10] = { 0 };
    struct audit *a = open_log(0, 0);
    add_entry(a, 0, 200, "/v1/x");
    audit_close(a);
    FILE *f = fopen(in_folder(AUDIT_FILE), "ab");
    fputs("{\"timestamp\":\"2026-11-", f);
    fclose(f);
    a = open_log(0, 0);
    add_entry(a, 1, 200, "/v1/x");
    audit_close(a);
    assert_int_equal(audit_scan(folder, &all, count_ids, seen, &s, &e), 0);
    assert_int_equal(seen[0] + seen[1], 2);
    assert_int_equal(s.bad, 1);
    assert_int_equal(verify(NULL, &c), 0);
    assert_false(c.broken);
    assert_int_equal(c.bad, 1);
}

static void trouble_is_counted_and_passes(void **state)
{
    (void)state;
    struct audit_stats s;
    struct audit_check c;
    struct audit *a = open_log(0, 0);
    add_entry(a, 0, 200, "/v1/x");
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit old, small;
    getrlimit(RLIMIT_FSIZE, &old);
    small = old;
    struct stat st;
    assert_int_equal(stat(in_folder(AUDIT_FILE), &st), 0);
    small.rlim_cur = (rlim_t)st.st_size + 100;          /* the disk takes only a part of the next line */
    setrlimit(RLIMIT_FSIZE, &small);
    add_entry(a, 1, 200, "/v1/x");
    setrlimit(RLIMIT_FSIZE, &old);
    audit_stats(a, &s);
    assert_int_equal(s.errors, 1);
    assert_true(s.last_error[0]);
    add_entry(a, 2, 200, "/v1/x");
    audit_stats(a, &s);
    assert_int_equal(s.entries, 2);
    audit_close(a);
    assert_int_equal(verify(NULL, &c), 0);
    assert_false(c.broken);
    assert_int_equal(c.bad, 0);
    assert_int_equal(c.lines, 3);
}

/* The disk is full when a file is rotated: lines are counted as lost until there is space again,
 * then the chain continues from the rotated file.  The end of that file is remembered, so that it
 * is not read again, in the server's loop, for each line that fails. */
static void a_full_disk_at_rotation_costs_no_reading(void **state)
{
    (void)state;
    struct audit_stats s;
    struct audit_check c;
    struct audit_files f = { 0 };
    struct rlimit old, small;
    char from[256], to[256], path[900] = "";
    struct audit *a = open_log(20000, 10);
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &old);
    small = old;
    add_entry(a, 0, 200, "/v1/x");
    struct stat st;
    assert_int_equal(stat(in_folder(AUDIT_FILE), &st), 0);
    for (int i = 1; st.st_size < 19200; i++) {
        add_entry(a, i, 200, "/v1/x");
        assert_int_equal(stat(in_folder(AUDIT_FILE), &st), 0);
    }
    assert_in_range(st.st_size, 19200, 19999);
    memset(path, 'x', sizeof path - 1);                 /* the next line does not fit */
    const int fd = open(in_folder(AUDIT_FILE), O_RDONLY);
    assert_int_equal(flock(fd, LOCK_EX), 0);            /* keeps the compressor away */
    small.rlim_cur = 50;
    setrlimit(RLIMIT_FSIZE, &small);
    for (int i = 0; i < 10; i++)
        add_entry(a, 1000 + i, 200, path);
    setrlimit(RLIMIT_FSIZE, &old);
    audit_stats(a, &s);
    assert_int_equal(s.errors, 10);
    assert_int_equal(s.rotations, 1);
    unlink(in_folder(AUDIT_FILE));                      /* it has no line */
    assert_int_equal(audit_files_list(&f, folder, AUDIT_KEYS, &e), 0);
    assert_int_equal(f.n, 1);
    strcpy(from, f.file[0].path);
    snprintf(to, sizeof to, "%s/aside", folder);
    assert_int_equal(rename(from, to), 0);
    write_all(from, "not a log\n", 10);                 /* a file without any valid line */
    add_entry(a, 2000, 200, "/v1/x");
    assert_int_equal(rename(to, from), 0);
    close(fd);
    audit_close(a);
    audit_files_release(&f);
    assert_int_equal(verify(NULL, &c), 0);
    if (c.broken)
        fail_msg("%s", c.where);
    assert_int_equal(c.files, 2);
}

static void clearing_goes_on_beside_a_writer(void **state)
{
    (void)state;
    uint64_t dropped;
    struct audit_check c;
    struct audit *a = open_with(5000, 100, 100);
    assert_int_equal(verify(NULL, &c), 0);
    char before[SHA256_HEX + 1];
    strcpy(before, c.head);
    assert_int_equal(audit_clear(folder, 1, &dropped, &e), 0);
    add_entry(a, 100, 200, "/v1/x");
    audit_close(a);
    assert_int_equal(verify(before, &c), 0);
    assert_false(c.broken);
    assert_int_equal(c.lines, 2);
    assert_true(c.found && c.older_gone);               /* the chain continues from the cleared lines */

    /* clear only the current file: the rotated ones stay part of the chain */
    a = open_with(5000, 100, 100);
    assert_int_equal(audit_clear(folder, 0, &dropped, &e), 0);
    assert_true(dropped > 0);
    add_entry(a, 100, 200, "/v1/x");
    audit_close(a);
    assert_int_equal(verify(before, &c), 0);
    assert_false(c.broken);
    assert_true(c.lines > 80 && c.files > 5);
}

/* ---- syslog ---- */

static int listen_on(int type, int *port)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t n = sizeof a;
    const int fd = socket(AF_INET, type, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &n), 0);
    if (type == SOCK_STREAM)
        assert_int_equal(listen(fd, 5), 0);
    *port = ntohs(a.sin_port);
    return fd;
}

static void is_message(const char *text, size_t n, int i)
{
    char want[64];
    assert_memory_equal(text, "<110>1 20", 9);          /* log audit, informational */
    assert_non_null(memmem(text, n, " zse-serve ", 11));
    snprintf(want, sizeof want, " requests - {\"line\":%d}", i);
    assert_non_null(memmem(text, n, want, strlen(want)));
}

static void lines_go_to_a_syslog_server(void **state)
{
    (void)state;
    char target[64], text[4096], line[40];
    struct audit_remote_stats st;
    for (int tcp = 0; tcp < 2; tcp++) {
        int port;
        const int fd = listen_on(tcp ? SOCK_STREAM : SOCK_DGRAM, &port);
        snprintf(target, sizeof target, tcp ? "tcp:127.0.0.1:%d" : "127.0.0.1:%d", port);
        struct audit_syslog *s = audit_syslog_open(target, &e);
        assert_non_null(s);
        for (int i = 0; i < 3; i++)
            audit_syslog_add(s, AUDIT_KEYS, line, (size_t)sprintf(line, "{\"line\":%d}", i));
        const int in = tcp ? accept(fd, NULL, NULL) : fd;
        for (int i = 0; i < 3; i++) {
            size_t n = 0, size = 0;
            for (char c; tcp && read(in, &c, 1) == 1 && c != ' ';)              /* RFC 6587: the length, a space */
                size = 10 * size + (size_t)(c - '0');
            while (tcp && n < size)
                n += (size_t)read(in, text + n, size - n);
            if (!tcp)
                n = (size_t)read(in, text, sizeof text);
            is_message(text, n, i);
        }
        assert_int_equal(audit_syslog_close(s, 5, &st), 0);
        assert_int_equal(st.sent, 3);
        assert_int_equal(st.dropped, 0);
        if (tcp)
            close(in);
        close(fd);
    }
    static const char *const bad[] = { "host", "host:", ":514", "tcp:", "::1:514", "" };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_null(audit_syslog_open(bad[i], &e));
}

/* No server listens: adding never waits, surplus messages are dropped and counted, and closing does
 * not wait. */
static void a_dead_syslog_server_holds_up_nothing(void **state)
{
    (void)state;
    enum { N = 3000, SIZE = 2000 };
    int port;
    char target[64], *line = calloc(1, SIZE);
    struct audit_remote_stats st;
    memset(line, 'x', SIZE);
    close(listen_on(SOCK_STREAM, &port));
    snprintf(target, sizeof target, "tcp:127.0.0.1:%d", port);
    struct audit_syslog *s = audit_syslog_open(target, &e);
    for (int i = 0; i < N; i++)
        audit_syslog_add(s, AUDIT_KEYS, line, SIZE);
    audit_syslog_stats(s, &st);
    assert_in_range(st.dropped, N - SYSLOG_BYTES / SIZE, N - 1);
    assert_int_equal(st.dropped + (uint64_t)st.waiting, N);
    assert_int_equal(audit_syslog_close(s, 0, &st), 0);
    assert_int_equal(st.dropped, N);
    assert_int_equal(st.waiting, 0);
    free(line);
}

static void queue_entry(struct audit_queue *w, int i)
{
    char id[40];
    snprintf(id, sizeof id, "id-%d", i);
    audit_queue_add(w, &(struct audit_entry){ .time_ms = 1795273726003 + i, .request_id = id, .prompt_tokens = -1,
                                              .completion_tokens = -1 });
}

struct order { int n, wrong; };

static int in_order(void *user, const struct audit_record *r)
{
    struct order *o = user;
    o->wrong += atoi(strstr(r->line, "\"id-") + 4) != o->n++;
    return 0;
}

/* Another process holds the lock and is stopped: lines are accepted at once up to the limit, and
 * written in order once it is released. */
static void lines_wait_for_who_holds_the_lock(void **state)
{
    (void)state;
    enum { N = 60, ROOM = 10000 };
    struct audit_stats s;
    struct audit_scan scan;
    struct audit_check c;
    struct order o = { 0 };
    const struct audit_filter all = { 0 };
    struct audit *a = open_log(2500, 1000);             /* small files, to rotate as well */
    struct audit_queue *w = audit_queue_open(a, ROOM, &e);
    assert_non_null(w);
    const int lock = audit_lock(folder, 1, &e);
    assert_true(lock >= 0);
    for (int i = 0; i < N; i++)
        queue_entry(w, i);
    audit_stats(a, &s);                                 /* does not wait either */
    const int waiting = audit_queue_waiting(w);
    assert_in_range(waiting, 20, N - 1);
    assert_int_equal(s.errors, N - waiting);
    assert_int_equal(s.entries, 0);
    assert_non_null(strstr(s.last_error, "waiting for the disk"));
    close(lock);
    assert_int_equal(audit_queue_close(w, 60), 0);
    audit_stats(a, &s);
    assert_int_equal(s.entries, waiting);
    audit_close(a);
    assert_int_equal(audit_scan(folder, &all, in_order, &o, &scan, &e), 0);
    assert_int_equal(o.n, waiting);
    assert_int_equal(o.wrong, 0);
    assert_int_equal(verify(NULL, &c), 0);
    assert_false(c.broken);
    assert_int_equal(audit_queue_close(NULL, 60), 0);
}

/* audit_queue_close() gives up after its patience; the thread then writes the remaining lines when
 * it can. */
static void the_end_does_not_wait_for_ever(void **state)
{
    (void)state;
    static struct audit *a;                             /* these stay for the rest of the process */
    static struct audit_queue *w;
    struct audit_stats s;
    a = open_log(0, 0);
    assert_non_null(w = audit_queue_open(a, 10000, &e));
    const int lock = audit_lock(folder, 1, &e);
    queue_entry(w, 0);
    queue_entry(w, 1);
    assert_int_equal(audit_queue_close(w, 0), 2);
    close(lock);
    do
        audit_stats(a, &s);
    while (s.entries < 2);
}

/* Closing does not wait for the lock in order to compress a file; the next process compresses
 * it. */
static void the_end_does_not_wait_for_compression(void **state)
{
    (void)state;
    struct audit_files f;
    struct audit *a = open_log(0, 0);
    add_entry(a, 0, 200, "/v1/x");
    audit_close(a);
    make("requests_20200101_000000.jsonl");
    const int lock = audit_lock(folder, 1, &e);
    assert_true(lock >= 0);
    audit_close(open_log(0, 0));
    assert_int_equal(audit_files_list(&f, folder, AUDIT_KEYS, &e), 0);
    assert_false(f.file[0].gz);
    audit_files_release(&f);
    assert_int_equal(n_names("requests_20200101_000000.jsonl.gz"), 0);
    close(lock);
    audit_close(open_log(0, 0));
    assert_int_equal(audit_files_list(&f, folder, AUDIT_KEYS, &e), 0);
    assert_true(f.file[0].gz);
    audit_files_release(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_of_a_line_is_obeyed_and_no_key_is_in_it),
        IN_FOLDER(clearing_all_takes_what_a_crash_left), IN_FOLDER(a_clock_that_steps_breaks_no_chain),
        IN_FOLDER(every_line_is_json_with_all_fields), IN_FOLDER(rotation_loses_nothing),
        IN_FOLDER(processes_share_a_log), IN_FOLDER(half_a_line_is_ended),
        IN_FOLDER(kill_9_while_rotating_loses_nothing), IN_FOLDER(trouble_is_counted_and_passes),
        IN_FOLDER(a_full_disk_at_rotation_costs_no_reading), IN_FOLDER(clearing_goes_on_beside_a_writer),
        cmocka_unit_test(lines_go_to_a_syslog_server), cmocka_unit_test(a_dead_syslog_server_holds_up_nothing),
        IN_FOLDER(lines_wait_for_who_holds_the_lock), IN_FOLDER(the_end_does_not_wait_for_ever),
        IN_FOLDER(the_end_does_not_wait_for_compression),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
