/* t-audit.c - the audit log, written and read: each promise of audit.h, audit_queue.h and
 * audit_query.h, by breaking what it guards against. */
#include "tests/unit/folder.h"

#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <openssl/evp.h>
#include <openssl/pem.h>

#include "libcommon/access/audit_queue.h"
#include "libcommon/access/audit_files.h"
#include "libcommon/access/audit_log.h"
#include "libcommon/access/audit_merge.h"
#include "libcommon/access/audit_query.h"
#include "libcommon/access/audit_sign.h"
#include "libcommon/access/audit_syslog.h"
#include "libcommon/access/audit_verify.h"
#include "libcommon/access/keys.h"

static struct audit *open_log(uint64_t max_bytes, int keep)
{
    const struct audit_options o = { .folder = folder, .max_bytes = max_bytes, .keep = keep };
    struct audit *a = audit_open(&o, &e);
    assert_non_null(a);
    return a;
}

static int verify(const char *expect, struct audit_check *c)
{
    const struct audit_want want = { .expect = expect };
    return audit_verify(folder, AUDIT_KEYS, &want, c, &e);
}

static void audit_add(struct audit *a, const struct audit_entry *x)
{
    size_t n;
    char *line = audit_line(x, &n);
    assert_non_null(line);
    audit_write(a, line, n);
}

static void add_entry(struct audit *a, int i, int status, const char *path)
{
    char id[40];
    snprintf(id, sizeof id, "id-%d", i);
    audit_add(a, &(struct audit_entry){ .time_ms = 1795273726003 + i, .request_id = id, .method = "POST", .path = path,
                                        .status = status, .latency_ms = 1.5 * i,
                                        .key_name = i % 2 ? "app" : NULL, .client_ip = "127.0.0.1",
                                        .user_agent = "t \"q\" \x01\xff", .model = "m", .prompt_tokens = 3,
                                        .completion_tokens = i, .error = status >= 400 ? "no" : NULL });
}

/* With so many lines. */
static struct audit *open_with(uint64_t max_bytes, int keep, int n)
{
    struct audit *a = open_log(max_bytes, keep);
    for (int i = 0; i < n; i++)
        add_entry(a, i, 200, "/v1/x");
    return a;
}

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

/* What a client puts where it does not belong: keys are left out, and nothing is there that a
 * terminal, or who splits text into lines, obeys. */
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
    assert_non_null(strstr(line, "\"user_agent\":\"zse-...\""));         /* most of one: a message had room for no more */
    assert_non_null(strstr(line, "\"model_id\":\"zse-tiny-8b\\u009b\\u2028\\u202e\\u2066\\u007f\\u000a\""));
    free(line);
}

static void read_all(const char *path, char **text, size_t *size)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    *size = (size_t)ftell(f);
    rewind(f);
    *text = malloc(*size + 1);
    assert_int_equal(fread(*text, 1, *size, f), *size);
    (*text)[*size] = '\0';
    fclose(f);
}

static void write_all(const char *path, const char *text, size_t size)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, size, f), size);
    fclose(f);
}

static void verify_finds_every_change(void **state)
{
    (void)state;
    struct audit *a = open_log(0, 0);
    struct audit_check c;
    char *text, head[SHA256_HEX + 1];
    size_t size;
    for (int i = 0; i < 20; i++)
        add_entry(a, i, 200, "/v1/x");
    audit_close(a);
    assert_int_equal(verify(NULL, &c), 0);
    assert_false(c.broken);
    assert_int_equal(c.lines, 21);          /* and the line where the file begins */
    strcpy(head, c.head);
    read_all(in_folder(AUDIT_FILE), &text, &size);
    for (size_t at = 0; at < size; at += 17) {          /* any byte changed */
        if (text[at] == '\n')
            continue;
        char *changed = malloc(size);
        memcpy(changed, text, size);
        changed[at] ^= 1;
        write_all(in_folder(AUDIT_FILE), changed, size);
        free(changed);
        assert_int_equal(verify(head, &c), 0);
        assert_true(c.broken || c.bad || !c.found);
    }
    for (int line = 0; line < 21; line++) {             /* any line taken out; the last shows against the hash */
        char *from = text, *cut = malloc(size);
        for (int i = 0; i < line; i++)
            from = strchr(from, '\n') + 1;
        char *to = strchr(from, '\n') + 1;
        memcpy(cut, text, (size_t)(from - text));
        memcpy(cut + (from - text), to, size - (size_t)(to - text));
        write_all(in_folder(AUDIT_FILE), cut, size - (size_t)(to - from));
        free(cut);
        assert_int_equal(verify(head, &c), 0);
        assert_true(line < 20 ? c.broken : !c.found);
    }
    write_all(in_folder(AUDIT_FILE), text, size);
    assert_int_equal(verify(head, &c), 0);
    assert_true(!c.broken && c.found);
    free(text);
}

static int no_hurry(void *user, const struct audit_record *r) { return (void)user, (void)r, 0; }

static int count_ids(void *user, const struct audit_record *r)
{
    unsigned char *seen = user;
    const char *id = strstr(r->line, "\"id-");
    seen[atoi(id + 4)]++;
    return 0;
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

static int n_names(const char *part)
{
    char command[256];
    snprintf(command, sizeof command, "ls %s | grep -c -- '%s'", folder, part);
    FILE *f = popen(command, "r");
    int n = -1;
    assert_int_equal(fscanf(f, "%d", &n), 1);
    pclose(f);
    return n;
}

static void make(const char *name)
{
    FILE *f = fopen(in_folder(name), "w");
    assert_non_null(f);
    fputs("rest\n", f);
    fclose(f);
}

static void clearing_all_takes_what_a_crash_left(void **state)
{
    (void)state;
    uint64_t dropped;
    struct audit_check c;
    struct audit *a = open_with(20000, 100, 300);
    audit_close(a);
    make("requests_20200101_000000.jsonl");                 /* beside its whole .gz: not taken away yet */
    make("requests_20200101_000000.jsonl.gz");
    make("requests_20200101_000001_002.jsonl.gz.tmp");      /* half of one */
    make("requests_of_somebody.jsonl");
    assert_in_range(n_names("requests_2"), 5, 20);
    assert_int_equal(audit_clear(folder, 0, &dropped, &e), 0);
    assert_in_range(n_names("requests_2"), 5, 20);
    assert_int_equal(audit_clear(folder, 1, &dropped, &e), 0);
    assert_int_equal(dropped, 2);                           /* the lines that begin the files of both chains */
    assert_int_equal(n_names("requests_2"), 0);
    assert_int_equal(n_names("requests_of_somebody.jsonl"), 1);
    assert_int_equal(verify(NULL, &c), 0);
    assert_false(c.broken);
}

/* The clock went back by years after a rotation, and the current file is missing: names and the
 * chain go on. */
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
    for (int round = 0; round < 2; round++) {               /* its end is found in the plain file, then in the packed one */
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
                kill(getpid(), SIGKILL);    /* without closing: what was added is there */
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

/* A child that rotates every few lines says of each that it is written, until it is killed:
 * those lines are there, once, in one chain. */
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
    struct audit *a = open_log(2500, 1000);             /* who comes next goes on */
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
    small.rlim_cur = (rlim_t)st.st_size + 100;          /* the disk takes a part of the next line */
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

/* The disk is full when a file is rotated: lines are counted as lost until there is room, then
 * the chain goes on from what was rotated, whose end is known: nothing of it is read for each
 * line, in the server's loop. */
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
    assert_int_equal(flock(fd, LOCK_EX), 0);            /* whoever compresses leaves it to us */
    small.rlim_cur = 50;
    setrlimit(RLIMIT_FSIZE, &small);
    for (int i = 0; i < 10; i++)
        add_entry(a, 1000 + i, 200, path);
    setrlimit(RLIMIT_FSIZE, &old);
    audit_stats(a, &s);
    assert_int_equal(s.errors, 10);
    assert_int_equal(s.rotations, 1);
    unlink(in_folder(AUDIT_FILE));                      /* no line went into it */
    assert_int_equal(audit_files_list(&f, folder, AUDIT_KEYS, &e), 0);
    assert_int_equal(f.n, 1);
    strcpy(from, f.file[0].path);
    snprintf(to, sizeof to, "%s/aside", folder);
    assert_int_equal(rename(from, to), 0);
    write_all(from, "not a log\n", 10);                 /* who reads it goes on from nothing */
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
    assert_true(c.found && c.older_gone);               /* the chain goes on from what was cleared */

    a = open_with(5000, 100, 100);                            /* the current file alone: rotated ones before it stay part of the chain */
    assert_int_equal(audit_clear(folder, 0, &dropped, &e), 0);
    assert_true(dropped > 0);
    add_entry(a, 100, 200, "/v1/x");
    audit_close(a);
    assert_int_equal(verify(before, &c), 0);
    assert_false(c.broken);
    assert_true(c.lines > 80 && c.files > 5);
}

static void queries(void **state)
{
    (void)state;
    char **lines;
    int n;
    struct audit_scan s;
    struct audit *a = open_log(4000, 100);
    for (int i = 0; i < 100; i++)
        add_entry(a, i, i % 10 ? 200 : 429, i % 2 ? "/v1/chat/completions" : "/health");
    audit_close(a);
    FILE *f = fopen(in_folder(AUDIT_FILE), "ab");       /* what an attacker might leave */
    fputs("\n{}\n{\"timestamp_unix\":9,\"status_code\":\nnull\n[1,2]\n{\"a\":{\"timestamp_unix\":1}}\n\xff\xfe\n{\"timestamp_unix\":5,\"path\":\"/\\", f);
    fclose(f);
    struct audit_filter q = { .key_name = "app" };
    assert_int_equal(audit_newest(folder, &q, 7, &lines, &n, &s, &e), 0);
    assert_int_equal(n, 7);
    assert_int_equal(s.bad, 7);
    assert_non_null(strstr(lines[0], "\"id-99\""));
    assert_non_null(strstr(lines[6], "\"id-87\""));
    for (int i = 0; i < n; i++)
        free(lines[i]);
    free(lines);
    static const struct { struct audit_filter f; int n; } cases[] = {
        { { .status = 429 }, 10 }, { { .status = 4 }, 10 }, { { .path = "/v1/" }, 50 },
            { { .path = "/v1/chat/completions/" }, 0 }, { { .method = "GET" }, 0 },
        { { .min_latency_ms = 1.5 * 90 }, 10 }, { { .since_ms = 1795273726003 + 60 }, 40 },
        { { .until_ms = 1795273726003 + 60 }, 60 },
        { { .key_name = "app", .status = 200, .path = "/v1" }, 50 }, { { .key_name = "" }, 0 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(audit_newest(folder, &cases[i].f, 1000, &lines, &n, &s, &e), 0);
        assert_int_equal(n, cases[i].n);
        for (int k = 0; k < n; k++)
            free(lines[k]);
        free(lines);
    }
    json_t *sum = audit_summary(folder, 1, 1795273726003 + 99 + 1, &e);
    assert_int_equal(json_integer_value(json_object_get(sum, "total_requests")), 100);
    assert_int_equal(json_integer_value(json_object_get(sum, "errors")), 10);
    assert_int_equal(json_integer_value(json_object_get(sum, "unique_keys")), 1);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(sum, "endpoints"), "/health")), 50);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(sum, "status_codes"), "429")), 10);
    assert_int_equal(json_integer_value(json_object_get(sum, "total_tokens")), 300 + 99 * 100 / 2);
    json_decref(sum);
}

struct wanted { const char *text; int64_t time_ms, prompt; int status, seen; double latency_ms; };

static int check_record(void *user, const struct audit_record *r)
{
    struct wanted *w = user;
    w->seen++;
    if (r->time_ms != w->time_ms || r->status != w->status || r->latency_ms != w->latency_ms ||
        r->prompt_tokens != w->prompt)
        fail_msg("%s: %" PRId64 " %d %.17g %" PRId64, w->text, r->time_ms, r->status, r->latency_ms, r->prompt_tokens);
    return 0;
}

/* Lines are read by the order of our fields where they have it: another order, other fields,
 * numbers of any form say the same. */
static void fields_in_any_order(void **state)
{
    (void)state;
    static const struct wanted cases[] = {
        { "{\"timestamp\":\"x\",\"timestamp_unix\":1795273726.003,\"request_id\":\"a\\\"b\",\"method\":\"POST\",\"path\":\"/\",\"status_code\":200,\"latency_ms\":12.345,\"prompt_tokens\":7}", 1795273726003, 7, 200, 1, 12.345 },
        { "{\"status_code\":200,\"timestamp_unix\":1795273726.003,\"latency_ms\":12.345,\"prompt_tokens\":7,\"timestamp\":\"x\"}", 1795273726003, 7, 200, 1, 12.345 },
        { "{\"timestamp\":\"x\",\"status_code\":500,\"timestamp_unix\":9,\"status_code\":404,\"prompt_tokens\":null}",
          9000, -1, 404, 1, 0 },
        { "{\"timestamp\":\"x\",\"timestamp_unix\":9.5,\"mine\":true,\"status_code\":-3,\"latency_ms\":1e3,\"prompt_tokens\":123456789012345678}", 9500, 123456789012345678, -3, 1, 1000 },
        { "{\"timestamp_unix\":9.0625,\"status_code\":200,\"latency_ms\":0.1,\"prompt_tokens\":12345678901234567890}",
          9062, INT64_MAX, 200, 1, 0.1 },
        { "{\"timestamp_unix\":9.0625,\"status_code\":200,\"latency_ms\":1234567.1234567,\"prompt_tokens\":-1}", 9062,
          -1, 200, 1, 1234567.1234567 },
        { "{\"timestamp_unix\":9.0625,\"status_code\":200,\"latency_ms\":99999999.999999,\"prompt_tokens\":0}", 9062, 0,
          200, 1, 99999999.999999 },
        { "{\"timestamp_unix\":9,\"event\":\"begin\",\"status_code\":200}", 0, 0, 0, 0, 0 },
        { "{\"timestamp_unix\":9,\"status_code\": 200}", 0, 0, 0, 0, 0 },
        { "{\"timestamp_unix\":9,\"status_code\":200}}", 0, 0, 0, 0, 0 },
        { "{\"timestamp_unix\":9,\"status_code\":", 0, 0, 0, 0, 0 },
        { "{\"timestamp\":", 0, 0, 0, 0, 0 },
        { "{\"timestamp\":\"x\",\"timestamp_unix\":9,\"status_code\":200", 0, 0, 0, 0, 0 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct audit_filter all = { 0 };
        struct audit_scan s;
        struct wanted w = cases[i];
        write_all(in_folder(AUDIT_FILE), w.text, strlen(w.text));
        FILE *f = fopen(in_folder(AUDIT_FILE), "ab");
        fputc('\n', f);
        fclose(f);
        w.seen = 0;
        assert_int_equal(audit_scan(folder, &all, check_record, &w, &s, &e), 0);
        assert_int_equal(w.seen, cases[i].seen);
        assert_int_equal(s.bad, !cases[i].seen && !strstr(w.text, "event"));
    }
}

/* ---- history that is gone ---- */

/* Since a hash, or a time, or everything (both none). */
static struct audit_check check_since(const char *hash, int64_t ms)
{
    struct audit_check c;
    const struct audit_want want = { .since_hash = hash, .since_ms = ms };
    assert_int_equal(audit_verify(folder, AUDIT_KEYS, &want, &c, &e), 0);
    assert_false(c.broken);
    return c;
}

static void nothing_is_missing(const char *hash, int64_t ms)
{
    const struct audit_check c = check_since(hash, ms);
    if (c.missing)
        fail_msg("%s", c.what);
}

static void misses(const char *hash, int64_t ms, const char *words)
{
    const struct audit_check c = check_since(hash, ms);
    if (!c.missing || !strstr(c.what, words))
        fail_msg("expected '%s' in '%s'", words, c.what);
}

/* The files of a log; first: the hash of an early line of the first one; head: the last hash of
 * each. */
struct made { struct audit_files f; char first[SHA256_HEX + 1], head[40][SHA256_HEX + 1]; };

static void make_files(struct made *m, int n, int keep)
{
    struct audit *a = open_log(3000, keep);
    struct audit_files *f = &m->f;
    struct audit_check c;
    for (int i = 0;; i++) {
        add_entry(a, i, 200, "/v1/x");
        assert_int_equal(audit_files_list(f, folder, AUDIT_KEYS, &e), 0);
        assert_true(f->n <= n);
        assert_int_equal(verify(NULL, &c), 0);
        strcpy(i ? m->head[f->n - 1] : m->first, c.head);
        if (f->n == n)
            break;
        audit_files_release(f);
    }
    audit_files_release(f);
    audit_close(a);
    assert_int_equal(audit_files_list(f, folder, AUDIT_KEYS, &e), 0);
    assert_int_equal(f->n, n);
}

static void move_aside(const char *path, int back)
{
    char aside[256];
    snprintf(aside, sizeof aside, "%s/aside", folder);
    assert_int_equal(back ? rename(aside, path) : rename(path, aside), 0);
}

/* Any file of the log taken away: the first, one in the middle, the newest rotated one, the
 * current one; then whatever a writer adds. */
static void a_removed_file_is_missed(void **state)
{
    (void)state;
    enum { N = 6 };
    struct made m;
    make_files(&m, N, 10);
    nothing_is_missing(NULL, 0);
    nothing_is_missing(m.first, 0);
    for (int i = 0; i < N; i++) {
        move_aside(m.f.file[i].path, 0);
        misses(NULL, 0, i == 0 ? "the log keeps 10 rotated files" : i < N - 1 ? "a file was removed"
                                                                              : "its end was cut or removed");
        misses(m.first, 0, i == 0 ? "no line has the hash" : i < N - 1 ? "a file was removed"
                                                                       : "its end was cut or removed");
        if (i < N - 2)
            nothing_is_missing(m.head[N - 2], 0);       /* of the time after it all is there */
        move_aside(m.f.file[i].path, 1);
        nothing_is_missing(m.first, 0);
    }
    move_aside(m.f.file[N - 1].path, 0);
    struct audit *a = open_log(3000, 10);
    audit_begin(a);
    audit_close(a);
    misses(NULL, 0, "the end of the log was cut or replaced");
    misses(m.first, 0, "missing before it");
    nothing_is_missing(m.head[N - 1], 0);               /* the chain says that it goes on from there */
    audit_files_release(&m.f);
}

/* Lines cut from the end: against the head, and by the next writer. */
static void a_cut_tail_is_missed(void **state)
{
    (void)state;
    char *text, begun[SHA256_HEX + 1];
    size_t size;
    struct audit_check c;
    for (int restart = 0; restart < 2; restart++) {
        assert_int_equal(verify(NULL, &c), 0);
        strcpy(begun, c.head);
        const char *since = restart ? begun : NULL;
        struct audit *a = open_with(0, 0, 20);
        read_all(in_folder(AUDIT_FILE), &text, &size);
        char *cut = text + size;
        for (int i = 0; i < 4; i++)
            for (cut--; cut[-1] != '\n'; cut--)
                ;
        write_all(in_folder(AUDIT_FILE), text, (size_t)(cut - text));
        free(text);
        misses(since, 0, restart ? "the log ends with line" : "the log ends with line 17, requests.head says 21");
        if (restart) {                                  /* another process, which knows the head only */
            audit_close(a);
            a = open_log(0, 0);
        }
        add_entry(a, 20, 200, "/v1/x");
        audit_close(a);
        misses(since, 0, restart ? "are missing before it"
                                 : "lines 18 to 21 are missing before it: the end of the log was cut");
        assert_int_equal(verify(NULL, &c), 0);
        nothing_is_missing(c.head, 0);
    }
    strcpy(begun, c.head);
    unlink(in_folder("requests.head"));
    misses(begun, 0, "requests.head is missing or damaged");
}

static int64_t now_ms(void) { return audit_now_ms(); }

static void rotation_and_clearing_are_told_apart(void **state)
{
    (void)state;
    struct audit_check c;
    uint64_t dropped;
    char first[SHA256_HEX + 1];
    const int64_t begun = now_ms();
    struct audit *a = open_with(3000, 3, 1);
    assert_int_equal(verify(NULL, &c), 0);
    strcpy(first, c.head);
    for (int i = 1; i < 100; i++)
        add_entry(a, i, 200, "/v1/x");
    audit_close(a);
    assert_int_equal(verify(NULL, &c), 0);
    assert_int_equal(c.files, 4);
    nothing_is_missing(NULL, 0);                        /* as announced */
    misses(first, 0, "older files were rotated away");
    misses(NULL, begun - 60000, "older files were rotated away");
    nothing_is_missing(NULL, now_ms() + 60000);
    struct audit_files f;
    assert_int_equal(audit_files_list(&f, folder, AUDIT_KEYS, &e), 0);
    unlink(f.file[0].path);
    misses(NULL, 0, "the log keeps 3 rotated files, and there are 2");
    audit_files_release(&f);
    assert_int_equal(verify(NULL, &c), 0);
    strcpy(first, c.head);
    assert_int_equal(audit_clear(folder, 1, &dropped, &e), 0);
    nothing_is_missing(NULL, 0);                        /* the chain says what was cleared */
    assert_int_equal(verify(NULL, &c), 0);
    assert_int_equal(c.cleared, dropped);
    nothing_is_missing(first, 0);
    misses(NULL, begun - 60000, "it was cleared");
    a = open_with(3000, 10, 40);
    audit_close(a);
    assert_int_equal(verify(NULL, &c), 0);
    strcpy(first, c.head);
    a = open_with(0, 10, 2);
    audit_close(a);
    assert_int_equal(audit_clear(folder, 0, &dropped, &e), 0);
    nothing_is_missing(NULL, 0);
    misses(NULL, begun - 60000, "was cleared");
    unlink(in_folder(AUDIT_FILE));
    misses(NULL, 0, "its end was cut or removed");
}

/* A server starts with another number of files to keep: the chain announces it before any file
 * goes. */
static void a_changed_retention_is_announced(void **state)
{
    (void)state;
    struct made m;
    make_files(&m, 8, 20);
    audit_files_release(&m.f);
    struct audit *a = open_log(0, 2);
    audit_begin(a);
    audit_close(a);
    assert_int_equal(audit_files_list(&m.f, folder, AUDIT_KEYS, &e), 0);
    assert_int_equal(m.f.n, 3);
    audit_files_release(&m.f);
    nothing_is_missing(NULL, 0);
    misses(m.head[1], 0, "older files were rotated away");
}

/* A log of the time before lines had numbers: it verifies, it goes on, and what is added is
 * watched. */
static void old_logs_still_verify(void **state)
{
    (void)state;
    static const char body[] = "{\"timestamp\":\"x\",\"timestamp_unix\":1795273726.003,\"status_code\":200";
    char hash[SHA256_HEX + 1] = AUDIT_ZEROS, covered[512];
    struct audit_check c;
    FILE *f = fopen(in_folder(AUDIT_FILE), "wb");
    assert_non_null(f);
    for (int i = 0; i < 5; i++) {
        uint8_t digest[SHA256_SIZE];
        const char *text = i ? body : "{\"timestamp\":\"x\",\"timestamp_unix\":1.000,\"event\":\"begin\",\"prev\":\""
            AUDIT_ZEROS "\"";
        snprintf(covered, sizeof covered, "%s%s", hash, text);
        sha256_of(covered, strlen(covered), digest);
        sha256_hex(digest, hash);
        fprintf(f, "%s,\"hash\":\"%s\"}\n", text, hash);
    }
    fclose(f);
    nothing_is_missing(NULL, 0);
    nothing_is_missing(hash, 0);
    struct audit *a = open_with(1200, 10, 10);
    audit_close(a);
    nothing_is_missing(NULL, 0);
    nothing_is_missing(hash, 0);
    assert_int_equal(verify(NULL, &c), 0);
    assert_int_equal(c.bad, 0);
    assert_true(c.files > 2 && c.last_seq > 10);
    unlink(in_folder(AUDIT_FILE));
    misses(NULL, 0, "its end was cut or removed");
}

/* ---- merging ---- */

static struct audit_entry request_of(const char *ip, const char *path, int status)
{
    return (struct audit_entry){ .time_ms = 1795273726003, .request_id = "id", .method = "GET", .path = path,
                                 .status = status, .latency_ms = 2, .client_ip = ip,
                                 .prompt_tokens = -1, .completion_tokens = -1, .error = "not_found" };
}

struct merged { int n; uint64_t requests; struct audit_entry last; char path[600], client[80], id[40], last_id[40]; };

static void take_merged(void *user, const struct audit_entry *x)
{
    struct merged *m = user;
    size_t n;
    char *line = audit_line(x, &n);
    assert_non_null(line);
    assert_true(n < 3000);
    free(line);
    m->n++;
    m->requests += x->count;
    m->last = *x;
    snprintf(m->path, sizeof m->path, "%s", x->path ? x->path : "(none)");
    snprintf(m->client, sizeof m->client, "%s", x->client_ip);
    snprintf(m->id, sizeof m->id, "%s", x->request_id);
    snprintf(m->last_id, sizeof m->last_id, "%s", x->last_id);
}

static void repeated_requests_become_one_line(void **state)
{
    (void)state;
    struct audit_merge *m = audit_merge_open(&e);
    struct merged got = { 0 };
    char path[64], id[20];
    for (int i = 0; i < 100; i++) {
        snprintf(path, sizeof path, "/v1/models/x%d", i);
        snprintf(id, sizeof id, "id-%d", i);
        struct audit_entry x = request_of(i % 2 ? "2001:db8::1" : "2001:db8::ffff:2", path, 404);
        x.request_id = id;
        x.time_ms += i;
        x.prompt_tokens = 3;
        assert_int_equal(audit_merge_add(m, &x, AUDIT_REFUSED, 10), i < 10);
    }
    struct audit_entry other = request_of("2001:db8::1", "/v1/models/x", 401);
    assert_int_equal(audit_merge_add(m, &other, AUDIT_ADMITTED, 1), 1);         /* of another kind: lines of its own */
    audit_merge_flush(m, take_merged, &got);
    assert_int_equal(got.n, 1);
    assert_int_equal(got.requests, 90);
    assert_string_equal(got.path, "/v1/models/x*");
    assert_string_equal(got.client, "2001:db8::/64");
    assert_string_equal(got.id, "id-10");
    assert_string_equal(got.last_id, "id-99");
    assert_int_equal(got.last.time_ms, 1795273726003 + 10);
    assert_int_equal(got.last.last_ms, 1795273726003 + 99);
    assert_int_equal(got.last.prompt_tokens, 270);
    assert_true(got.last.latency_ms == 2);
    assert_string_equal(got.last.error, "not_found");
    audit_merge_flush(m, take_merged, &got);            /* nothing is left */
    assert_int_equal(got.n, 1);
    assert_int_equal(audit_merge_add(m, &other, AUDIT_REFUSED, 10), 1);         /* lines of its own again */
    audit_merge_close(m);
}

/* Any paths, of any addresses, with any status: a bounded number of lines, and every request is
 * counted. */
static void a_flood_makes_few_lines(void **state)
{
    (void)state;
    enum { N = 20000 };
    struct audit_merge *m = audit_merge_open(&e);
    char path[3000], ip[40];
    for (int addresses = 0; addresses < 2; addresses++) {
        struct merged got = { 0 };
        for (int i = 0; i < N; i++) {
            memset(path, '\1', sizeof path - 1);
            path[sizeof path - 1] = '\0';
            snprintf(path, 20, "/%d/%d", i, i * 7);
            path[strlen(path)] = '\1';
            snprintf(ip, sizeof ip, "10.%d.%d.%d", addresses * i / 65536, addresses * i / 256 % 256,
                     addresses * i % 256);
            struct audit_entry x = request_of(ip, path, 400 + i % 20);
            x.user_agent = path;
            x.error = path;
            audit_merge_add(m, &x, AUDIT_REFUSED, 0);
        }
        audit_merge_flush(m, take_merged, &got);
        assert_int_equal(got.requests, N);
        assert_true(got.n <= (addresses ? MERGE_GROUPS : MERGE_PATHS + 20));
    }
    audit_merge_close(m);
}

/* Most of a key at the place where a text is cut. */
static void merging_keeps_no_part_of_a_key(void **state)
{
    (void)state;
    char path[400];
    struct merged got = { 0 };
    struct audit_merge *m = audit_merge_open(&e);
    for (int n = 1; n < 300; n++) {
        memset(path, 'a', sizeof path);
        path[0] = '/';
        memcpy(path + n, "zse-ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghij-_01234", 48);
        struct audit_entry x = request_of("10.0.0.1", path, 404);
        audit_merge_add(m, &x, AUDIT_REFUSED, 0);
        audit_merge_flush(m, take_merged, &got);
        assert_null(strstr(got.path, "ABCD"));
    }
    audit_merge_close(m);
}

/* What merged lines count is in every sum. */
static void merged_lines_count_all_their_requests(void **state)
{
    (void)state;
    struct audit_scan s;
    const struct audit_filter all = { 0 };
    const int64_t now = audit_now_ms();
    const struct audit_log_options o = { .folder = folder, .waiting_bytes = 1 << 20 };
    struct audit_log *l = audit_log_open(&o, &e);
    assert_non_null(l);
    for (int i = 0; i < 1000; i++) {
        struct audit_entry x = request_of("10.0.0.1", "/none", 404);
        x.time_ms = now + i % 7;
        audit_log_add(l, &x, 0, 0);
    }
    for (int i = 0; i < 100; i++) {
        struct audit_entry x = request_of("10.0.0.1", "/v1/models", i % 2 ? 200 : 429);
        x.time_ms = now;
        x.key_name = "app";
        audit_log_add(l, &x, 1, i % 2);
    }
    char *lines[5];
    while (audit_log_waiting(l))
        ;
    assert_int_equal(audit_log_recent(l, 5, lines), 5);
    for (int i = 0; i < 5; i++)
        free(lines[i]);
    assert_int_equal(audit_log_finish(l, 60), 0);
    audit_log_close(l);
    json_t *sum = audit_summary(folder, 1, now + 1000, &e), *files = audit_files_json(folder, &e);
    assert_int_equal(json_integer_value(json_object_get(sum, "total_requests")), 1100);
    assert_int_equal(json_integer_value(json_object_get(sum, "errors")), 1050);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(sum, "status_codes"), "404")), 1000);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(sum, "endpoints"), "/none")), 1000);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(sum, "keys"), "app")), 100);
    assert_true(json_real_value(json_object_get(sum, "avg_latency_ms")) == 2);
    assert_int_equal(json_integer_value(json_object_get(files, "total_entries")), 1100);
    assert_int_equal(json_integer_value(json_object_get(files, "lines")), MERGE_OWN_LINES + 1 + 100);
    json_decref(sum);
    json_decref(files);
    assert_int_equal(audit_scan(folder, &all, no_hurry, NULL, &s, &e), 0);
    assert_int_equal(s.requests, 1100);
    nothing_is_missing(NULL, 0);
    struct audit_check c;
    assert_int_equal(audit_verify(folder, AUDIT_ANONYMOUS, NULL, &c, &e), 0);
    assert_false(c.broken || c.missing);
    assert_int_equal(c.lines, 1 + MERGE_OWN_LINES + 1);
}

/* No number of requests without a key takes a line of a key away. */
static void the_anonymous_displace_no_keys(void **state)
{
    (void)state;
    struct audit_check c;
    const struct audit_log_options o = { .folder = folder, .bytes = { 3000, 3000 }, .keep = 2,
                                         .waiting_bytes = 8 << 20 };
    struct audit_log *l = audit_log_open(&o, &e);
    struct audit_entry x = request_of("10.0.0.1", "/v1/models", 200);
    audit_log_add(l, &x, 1, 1);
    for (int i = 0; i < 2000; i++) {                    /* those of an open server have lines, too */
        x = request_of("10.0.0.1", "/v1/models", 200);
        audit_log_add(l, &x, 0, i % 2);
    }
    assert_int_equal(audit_log_finish(l, 60), 0);
    audit_log_close(l);
    nothing_is_missing(NULL, 0);
    assert_int_equal(verify(NULL, &c), 0);
    assert_int_equal(c.lines, 2);
    assert_int_equal(audit_verify(folder, AUDIT_ANONYMOUS, NULL, &c, &e), 0);
    assert_false(c.broken || c.missing);
    assert_true(c.older_gone && c.files <= 3);
}

/* ---- signatures ---- */

/* A key pair in the folder: NAME.key and NAME.pub. */
static void make_key(const char *name)
{
    char path[256];
    EVP_PKEY *key = EVP_PKEY_Q_keygen(NULL, NULL, "ED25519");
    assert_non_null(key);
    for (int public = 0; public < 2; public++) {
        snprintf(path, sizeof path, "%s/%s.%s", folder, name, public ? "pub" : "key");
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        assert_int_equal(public ? PEM_write_PUBKEY(f, key) : PEM_write_PrivateKey(f, key, NULL, NULL, 0, NULL, NULL),
                         1);
        fclose(f);
    }
    EVP_PKEY_free(key);
}

static struct audit_check check_signed(const char *key_name)
{
    struct audit_check c;
    struct audit_signer *key = audit_checker_open(in_folder(key_name), &e);
    assert_non_null(key);
    assert_int_equal(audit_verify(folder, AUDIT_KEYS, &(struct audit_want){ .key = key }, &c, &e), 0);
    audit_signer_close(key);
    return c;
}

static void sign_log(int n, int max_bytes)
{
    struct audit_signer *key = audit_signer_open(in_folder("a.key"), &e);
    assert_non_null(key);
    struct audit *a = audit_open(&(struct audit_options){ .folder = folder, .signer = key,
                                                          .max_bytes = (uint64_t)max_bytes }, &e);
    for (int i = 0; i < n; i++)
        add_entry(a, i, 200, "/v1/x");
    audit_sign_head(a);
    audit_sign_head(a);                                 /* no line came: nothing to sign */
    audit_close(a);
    audit_signer_close(key);
}

/* The line of the log file at `from` is written anew, and the chain after it, as one can who may
 * write into the folder but has no key. */
static void rewrite_chain(const char *from, const char *to)
{
    char *text, hash[SHA256_HEX + 1] = AUDIT_ZEROS, *covered = malloc(1 << 16);
    const char *hex;
    uint64_t seq = 0;
    size_t size;
    read_all(in_folder(AUDIT_FILE), &text, &size);
    FILE *f = fopen(in_folder(AUDIT_FILE), "wb");
    for (char *p = text, *end; (end = strchr(p, '\n')); p = end + 1) {
        uint8_t digest[SHA256_SIZE];
        const size_t n = audit_line_end(p, (size_t)(end - p), &hex, &seq);
        char *at = memmem(p, n, from, strlen(from));
        const size_t before = at ? (size_t)(at - p) : n;
        const int m = sprintf(covered, "%s%.*s%s%.*s", hash, (int)before, p, at ? to : "",
                              at ? (int)(n - before - strlen(from)) : 0, at ? at + strlen(from) : "");
        sha256_of(covered, (size_t)m, digest);
        sha256_hex(digest, hash);
        fprintf(f, "%s,\"hash\":\"%s\"}\n", covered + SHA256_HEX, hash);
    }
    fclose(f);
    struct audit_head head = { .end.seq = seq, .keep = AUDIT_KEEP };
    strcpy(head.end.hash, hash);
    assert_int_equal(audit_head_write(folder, AUDIT_KEYS, &head, &e), 0);
    free(text);
    free(covered);
}

static void a_signed_log_cannot_be_written_anew(void **state)
{
    (void)state;
    make_key("a");
    make_key("b");
    sign_log(40, 3000);                                 /* at rotations, too */
    struct audit_check c = check_signed("a.pub");
    assert_false(c.broken || c.missing);
    assert_int_equal(c.signatures, c.files);
    assert_int_equal(c.unsigned_lines, 0);
    c = check_signed("b.pub");
    assert_true(c.broken && strstr(c.where, "signed with another key"));
    assert_null(audit_signer_open(in_folder("a.pub"), &e));
    assert_non_null(strstr(e.msg, "expected a private Ed25519 key"));
    assert_null(audit_checker_open(in_folder("a.key"), &e));
    assert_null(audit_signer_open(in_folder("none"), &e));

    assert_int_equal(audit_clear(folder, 1, &(uint64_t){ 0 }, &e), 0);
    unlink(in_folder(AUDIT_FILE));
    unlink(in_folder("requests.head"));
    sign_log(10, 0);
    rewrite_chain("\"id-5\"", "\"id-6\"");
    nothing_is_missing(NULL, 0);                        /* without the key all looks well */
    c = check_signed("a.pub");
    assert_true(c.broken && strstr(c.where, "the signature is not that of key"));
    rewrite_chain("\"event\":\"signature\"", "\"event\":\"nothing\"");
    rewrite_chain("\"signature\":", "\"sign\":");
    nothing_is_missing(NULL, 0);
    c = check_signed("a.pub");                          /* the file begins now, its requests were made on another day */
    assert_true(c.missing && strstr(c.what, "have no signature of this key"));
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
    struct audit_syslog_stats st;
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

/* Nothing listens: adding waits for nothing, what finds no room is dropped and counted, and the
 * end is not held up. */
static void a_dead_syslog_server_holds_up_nothing(void **state)
{
    (void)state;
    enum { N = 3000, SIZE = 2000 };
    int port;
    char target[64], *line = calloc(1, SIZE);
    struct audit_syslog_stats st;
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

static int to_memory(void *user, const char *text, size_t n) { return fwrite(text, 1, n, user) != n; }

static void csv_is_safe(void **state)
{
    (void)state;
    char *text;
    size_t size;
    uint64_t rows;
    const struct audit_filter all = { 0 };
    struct audit *a = open_log(0, 0);
    audit_add(a, &(struct audit_entry){ .time_ms = 1, .path = "=cmd|' /C calc'!A0", .method = "a,b",
                                        .user_agent = "say \"hi\"\n", .prompt_tokens = -1, .completion_tokens = -1 });
    audit_close(a);
    FILE *f = open_memstream(&text, &size);
    assert_int_equal(audit_csv(folder, &all, to_memory, f, &rows, &e), 0);
    fclose(f);
    assert_int_equal(rows, 1);
    assert_memory_equal(text, "timestamp,timestamp_unix,request_id,method,path,", 48);
    assert_non_null(strstr(text, ",\"a,b\",\"'=cmd|' /C calc'!A0\","));
    assert_non_null(strstr(text, ",\"say \"\"hi\"\"\n\","));
    assert_null(strstr(text, "hash"));
    free(text);
}

/* A cell as the export writes it for a user agent. */
static void cell_is(const char *given, const char *want)
{
    char *text, expected[256];
    size_t size;
    uint64_t rows, dropped;
    const struct audit_filter all = { 0 };
    assert_int_equal(audit_clear(folder, 1, &dropped, &e), 0);
    struct audit *a = open_log(0, 0);
    audit_add(a, &(struct audit_entry){ .time_ms = 1, .user_agent = given, .prompt_tokens = -1,
                                        .completion_tokens = -1 });
    audit_close(a);
    FILE *f = open_memstream(&text, &size);
    assert_int_equal(audit_csv(folder, &all, to_memory, f, &rows, &e), 0);
    fclose(f);
    snprintf(expected, sizeof expected, ",,,%s,,,,,\r\n", want);
    if (!strstr(text, expected))
        fail_msg("%s: expected %s in %s", given, expected, text);
    free(text);
}

static void formulas_begin_nowhere(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        { "plain", "plain" }, { "Mozilla/5.0 (X11; Linux)", "\"Mozilla/5.0 (X11; Linux)\"" }, { "a-b+c", "a-b+c" },
            { "=1", "\"'=1\"" }, { "+1", "\"'+1\"" }, { "-1", "\"'-1\"" },
        { "@SUM(A1)", "\"'@SUM(A1)\"" }, { "\t=1", "\"'\t'=1\"" }, { "\r=1", "\"'\r'=1\"" }, { "\n=1", "\"'\n'=1\"" },
        { "  =1", "\"'  =1\"" }, { " a", "\" a\"" },
        { "\ufeff=1", "\"'\ufeff=1\"" }, { "\u00a0\u3000-1", "\"'\u00a0\u3000-1\"" }, { "\uff1d1", "\"'\uff1d1\"" },
        { "\uff20x", "\"'\uff20x\"" },
        { "\"=1", "\"\"\"=1\"" }, { "a\";=1", "\"a\"\";'=1\"" }, { "a;=1", "\"a;'=1\"" }, { "a; @b", "\"a;' @b\"" },
        { "a|=1", "\"a|'=1\"" }, { "a\t+1", "\"a\t'+1\"" }, { "'=1", "'=1" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        cell_is(cases[i][0], cases[i][1]);
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

/* Somebody holds the lock and stands still: lines are taken at once, as many as there is room
 * for, and written in order when it goes. */
static void lines_wait_for_who_holds_the_lock(void **state)
{
    (void)state;
    enum { N = 60, ROOM = 10000 };
    struct audit_stats s;
    struct audit_scan scan;
    struct audit_check c;
    struct order o = { 0 };
    const struct audit_filter all = { 0 };
    struct audit *a = open_log(2500, 1000);             /* rotates, too */
    struct audit_queue *w = audit_queue_open(a, ROOM, &e);
    assert_non_null(w);
    const int lock = audit_lock(folder, 1, &e);
    assert_true(lock >= 0);
    for (int i = 0; i < N; i++)
        queue_entry(w, i);
    audit_stats(a, &s);                                 /* answers, too */
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

/* The end does not wait for ever; what is left to the thread it writes when it can. */
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

/* Nor for who holds the lock when a file is to be compressed: the next one does it. */
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
        IN_FOLDER(every_line_is_json_with_all_fields), IN_FOLDER(verify_finds_every_change),
        IN_FOLDER(rotation_loses_nothing), IN_FOLDER(processes_share_a_log), IN_FOLDER(half_a_line_is_ended),
        IN_FOLDER(kill_9_while_rotating_loses_nothing), IN_FOLDER(trouble_is_counted_and_passes),
        IN_FOLDER(a_full_disk_at_rotation_costs_no_reading), IN_FOLDER(clearing_goes_on_beside_a_writer),
        IN_FOLDER(queries), IN_FOLDER(csv_is_safe), IN_FOLDER(formulas_begin_nowhere),
        IN_FOLDER(fields_in_any_order), IN_FOLDER(a_removed_file_is_missed), IN_FOLDER(a_cut_tail_is_missed),
        IN_FOLDER(rotation_and_clearing_are_told_apart), cmocka_unit_test(repeated_requests_become_one_line),
        cmocka_unit_test(a_flood_makes_few_lines), cmocka_unit_test(merging_keeps_no_part_of_a_key),
        IN_FOLDER(merged_lines_count_all_their_requests), IN_FOLDER(the_anonymous_displace_no_keys),
        IN_FOLDER(a_signed_log_cannot_be_written_anew), cmocka_unit_test(lines_go_to_a_syslog_server),
        cmocka_unit_test(a_dead_syslog_server_holds_up_nothing), IN_FOLDER(a_changed_retention_is_announced),
        IN_FOLDER(old_logs_still_verify), IN_FOLDER(lines_wait_for_who_holds_the_lock),
        IN_FOLDER(the_end_does_not_wait_for_ever), IN_FOLDER(the_end_does_not_wait_for_compression),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
