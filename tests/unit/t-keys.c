/* t-keys.c - API keys: check each promise of keys.h by breaking the conditions that it covers. */
#include "tests/unit/folder.h"

#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <limits.h>
#include <sqlite3.h>

#include "libcommon/access/keys.h"
#include "libcommon/base/clock.h"

static void new_key(struct keys *k, const char *name, char text[KEY_TEXT + 1])
{
    struct key_info info = { .scopes = SCOPE_CHAT };
    snprintf(info.name, sizeof info.name, "%s", name);
    assert_int_equal(keys_create(k, &info, text, &e), 0);
}

static void keys_live_and_die(void **state)
{
    (void)state;
    char text[KEY_TEXT + 1], other[KEY_TEXT + 1];
    struct key_info info;
    int required;
    struct keys *cli = keys_open(folder, &e), *server = keys_open(folder, &e);
    assert_non_null(cli);
    assert_non_null(server);
    assert_int_equal(keys_required(cli, &required, &e), 0);
    assert_false(required);
    new_key(cli, "app", text);
    assert_int_equal(strlen(text), KEY_TEXT);
    assert_memory_equal(text, "zse-", 4);
    assert_int_equal(strspn(text + 4, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"), 43);
    assert_int_equal(keys_required(cli, &required, &e), 0);
    assert_true(required);                  /* the first key makes keys required */

    assert_int_equal(keys_check(server, text, &info), KEY_UNKNOWN);
    assert_int_equal(keys_refresh(server, &e), 0);
    assert_int_equal(keys_check(server, text, &info), KEY_GOOD);
    assert_string_equal(info.name, "app");
    text[20] ^= 1;
    assert_int_equal(keys_check(server, text, &info), KEY_UNKNOWN);
    text[20] ^= 1;
    assert_int_equal(keys_check(server, "", &info), KEY_UNKNOWN);

    struct key_info twice = { .name = "app", .scopes = SCOPE_CHAT };
    assert_int_equal(keys_create(cli, &twice, other, &e), -1);
    assert_non_null(strstr(e.msg, "'app' exists already"));
    struct key_info odd = { .name = "a b" };
    assert_int_equal(keys_create(cli, &odd, other, &e), -1);

    assert_int_equal(keys_set_enabled(cli, "app", 0, &e), 0);
    assert_int_equal(keys_refresh(server, &e), 0);
    assert_int_equal(keys_check(server, text, &info), KEY_DISABLED);
    assert_int_equal(keys_set_enabled(cli, "app", 1, &e), 0);
    assert_int_equal(keys_rotate(cli, "app", other, &e), 0);
    assert_int_equal(keys_refresh(server, &e), 0);
    assert_int_equal(keys_check(server, text, &info), KEY_UNKNOWN);
    assert_int_equal(keys_check(server, other, &info), KEY_GOOD);
    assert_int_equal(keys_delete(cli, "app", &e), 0);
    assert_int_equal(keys_refresh(server, &e), 0);
    assert_int_equal(keys_check(server, other, &info), KEY_UNKNOWN);
    assert_int_equal(keys_delete(cli, "app", &e), -1);
    assert_true(keys_known_required(server));           /* deleting all keys does not open the server */

    struct key_info past = { .name = "past", .scopes = SCOPE_CHAT, .expires_s = 1000000 };
    assert_int_equal(keys_create(cli, &past, text, &e), 0);
    assert_int_equal(keys_refresh(server, &e), 0);
    assert_int_equal(keys_check(server, text, &info), KEY_EXPIRED);
    keys_close(cli);
    keys_close(server);
}

static void no_secret_is_stored(void **state)
{
    (void)state;
    char text[KEY_TEXT + 1], command[256];
    struct stat st;
    struct keys *k = keys_open(folder, &e);
    new_key(k, "app", text);
    assert_int_equal(stat(in_folder("keys.db"), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    snprintf(command, sizeof command, "grep -rqF -e %s %s", text + 4, folder);
    assert_int_not_equal(system(command), 0);
    keys_close(k);
    assert_int_equal(chmod(in_folder("keys.db"), 0644), 0);
    assert_null(keys_open(folder, &e));
    assert_non_null(strstr(e.msg, "mode 644, expected 600"));
}

/* Limits that another program wrote, of which one would be 0 as an int, are never no limit. */
static void limits_beyond_their_range_stay_limits(void **state)
{
    static const struct { const char *sql; int64_t requests, day; } cases[] = {
        { "UPDATE keys SET requests_minute = 4294967296, tokens_day = 9223372036854775807", INT_MAX, INT64_MAX },
        { "UPDATE keys SET requests_minute = -5, tokens_day = -9223372036854775807", 1, 1 },
        { "UPDATE keys SET requests_minute = 0, tokens_day = 7", 0, 7 },
    };
    char text[KEY_TEXT + 1];
    struct key_info info;
    (void)state;
    struct keys *k = keys_open(folder, &e);
    new_key(k, "app", text);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sqlite3 *other;
        assert_int_equal(sqlite3_open(in_folder("keys.db"), &other), SQLITE_OK);
        assert_int_equal(sqlite3_exec(other, cases[i].sql, NULL, NULL, NULL), SQLITE_OK);
        sqlite3_close(other);
        assert_int_equal(keys_refresh(k, &e), 0);
        assert_int_equal(keys_check(k, text, &info), KEY_GOOD);
        assert_int_equal(info.limit.requests_minute, cases[i].requests);
        assert_int_equal(info.limit.tokens_day, cases[i].day);
    }
    keys_close(k);
}

static void a_locked_or_damaged_file_keeps_known_keys(void **state)
{
    (void)state;
    char text[KEY_TEXT + 1];
    struct key_info info;
    sqlite3 *other;
    struct keys *cli = keys_open(folder, &e), *server = keys_open(folder, &e);
    new_key(cli, "app", text);
    assert_int_equal(keys_refresh(server, &e), 0);
    assert_int_equal(sqlite3_open(in_folder("keys.db"), &other), SQLITE_OK);
    assert_int_equal(sqlite3_exec(other, "BEGIN EXCLUSIVE", NULL, NULL, NULL), SQLITE_OK);
    keys_set_patience(server, 0);
    assert_int_equal(keys_refresh(server, &e), 1);
    assert_non_null(strstr(e.msg, "locked"));
    assert_int_equal(keys_check(server, text, &info), KEY_GOOD);
    sqlite3_close(other);
    assert_int_equal(keys_refresh(server, &e), 0);
    keys_close(cli);

    int fd = open(in_folder("keys.db.new"), O_WRONLY | O_CREAT, 0600);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(write(fd, "this is no database ", 20), 20);
    close(fd);
    char from[256];
    strcpy(from, in_folder("keys.db.new"));
    assert_int_equal(rename(from, in_folder("keys.db")), 0);
    assert_int_equal(keys_refresh(server, &e), -1);
    assert_non_null(strstr(e.msg, "damaged"));
    assert_int_equal(keys_check(server, text, &info), KEY_GOOD);
    assert_int_equal(unlink(in_folder("keys.db")), 0);
    assert_int_equal(keys_refresh(server, &e), -1);
    assert_int_equal(keys_check(server, text, &info), KEY_GOOD);
    assert_null(keys_open_again(folder, &e));               /* no empty file takes its place */
    assert_int_equal(access(in_folder("keys.db"), F_OK), -1);
    keys_forget(server, info.id);
    assert_int_equal(keys_check(server, text, &info), KEY_UNKNOWN);
    keys_close(server);
}

static sqlite3 *lock_file(const char *name)
{
    sqlite3 *other;
    assert_int_equal(sqlite3_open(in_folder(name), &other), SQLITE_OK);
    assert_int_equal(sqlite3_exec(other, "BEGIN EXCLUSIVE", NULL, NULL, NULL), SQLITE_OK);
    return other;
}

static void a_change_is_learnt_while_the_file_is_locked(void **state)
{
    (void)state;
    char text[KEY_TEXT + 1];
    struct key_info info = { .name = "app", .scopes = SCOPE_CHAT }, got;
    struct keys *cli = keys_open(folder, &e), *server = keys_open(folder, &e);
    keys_set_patience(server, 0);
    assert_int_equal(keys_refresh(server, &e), 0);
    assert_false(keys_known_required(server));
    assert_int_equal(keys_create(cli, &info, text, &e), 0);
    assert_true(keys_known_required(cli)); /* creating the first key makes keys required */
    sqlite3 *other = lock_file("keys.db");
    assert_int_equal(keys_refresh(server, &e), 1);
    assert_int_equal(keys_check(server, text, &got), KEY_UNKNOWN);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(keys_learn(server, &info, text, &e), 0);
        keys_learn_required(server, 1);
        assert_int_equal(keys_check(server, text, &got), KEY_GOOD);
        assert_int_equal(got.id, info.id);
        assert_int_not_equal(got.secret, 0);
        assert_int_equal(keys_known(server), 1);
        assert_true(keys_known_required(server));
    }
    const uint64_t secret = got.secret;
    sqlite3_close(other);
    assert_int_equal(keys_refresh(server, &e), 0);
    assert_int_equal(keys_check(server, text, &got), KEY_GOOD);
    assert_true(got.secret == secret);
    /* a key that is learnt after its deletion disappears with the next refresh */
    assert_int_equal(keys_delete(cli, "app", &e), 0);
    assert_int_equal(keys_set_required(cli, 0, &e), 0);
    assert_int_equal(keys_refresh(server, &e), 0);
    assert_int_equal(keys_learn(server, &info, text, &e), 0);
    keys_learn_required(server, 1);
    assert_int_equal(keys_refresh(server, &e), 0);
    assert_int_equal(keys_check(server, text, &got), KEY_UNKNOWN);
    assert_false(keys_known_required(server));
    keys_close(cli);
    keys_close(server);
}

static void put_in_its_place(const char *name)
{
    char from[256];
    strcpy(from, in_folder(name));
    assert_int_equal(rename(from, in_folder("keys.db")), 0);
}

/* Opening an existing file read-only does not wait for a program that creates one.  A file that
 * another program is creating does not count as damaged.  An empty file in the place of the old one
 * removes no key. */
static void a_file_that_others_make_is_locked_not_damaged(void **state)
{
    (void)state;
    char text[KEY_TEXT + 1];
    struct key_info info = { .name = "app", .scopes = SCOPE_CHAT }, got;
    struct keys *maker = keys_open(folder, &e);
    assert_int_equal(keys_create(maker, &info, text, &e), 0);
    keys_close(maker);
    const int fd = open(in_folder("keys.db.lock"), O_RDWR | O_CREAT, 0600);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    struct keys *server = keys_open_again(folder, &e);
    assert_non_null(server);
    keys_set_patience(server, 0);
    assert_int_equal(keys_refresh(server, &e), 0);
    close(open(in_folder("new"), O_WRONLY | O_CREAT, 0600));        /* without tables */
    put_in_its_place("new");
    assert_int_equal(keys_refresh(server, &e), 1);
    assert_non_null(strstr(e.msg, "keys.db: another program holds it locked"));
    close(fd);
    assert_int_equal(keys_refresh(server, &e), -1);
    assert_non_null(strstr(e.msg, "keys.db: is empty"));
    close(open(in_folder("new"), O_WRONLY | O_CREAT, 0600));
    sqlite3 *other = lock_file("new");
    put_in_its_place("new");
    assert_int_equal(keys_refresh(server, &e), 1);
    assert_non_null(strstr(e.msg, "keys.db: another program holds it locked"));
    sqlite3_close(other);
    assert_int_equal(keys_refresh(server, &e), -1);
    assert_int_equal(keys_check(server, text, &got), KEY_GOOD);
    assert_true(keys_known_required(server));
    keys_close(server);
}

/* If a program has no standard input, the file of keys is opened as descriptor 0. */
static void a_file_with_the_number_0(void **state)
{
    (void)state;
    int status;
    const pid_t child = fork();
    if (child == 0) {
        close(0);
        struct keys *k = keys_open(folder, &e);
        _exit(k ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* A file of another user, or in a folder that others can write to, is refused.  Only root can make
 * and open such a file. */
static void a_file_of_another_user_is_refused(void **state)
{
    (void)state;
    keys_close(keys_open(folder, &e));
    assert_int_equal(chmod(folder, 0770), 0);
    assert_null(keys_open(folder, &e));
    assert_non_null(strstr(e.msg, "mode 770, expected 700"));
    assert_int_equal(chmod(folder, 0750), 0);
    if (geteuid() != 0) {
        print_message("a file of another user: not tried, only root can make one\n");
        return;
    }
    assert_int_equal(chown(in_folder("keys.db"), 65534, 65534), 0);
    assert_null(keys_open(folder, &e));
    assert_non_null(strstr(e.msg, "keys.db: belongs to user 65534"));
    assert_int_equal(chown(folder, 65534, 65534), 0);               /* root reads another user's keys */
    struct keys *k = keys_open(folder, &e);
    assert_non_null(k);
    keys_close(k);
    assert_int_equal(chown(folder, 0, 0), 0);
}

/* The server does not block while another program writes. */
static void a_locked_file_is_waited_for_as_long_as_asked(void **state)
{
    (void)state;
    char text[KEY_TEXT + 1];
    struct key_info info = { .name = "late", .scopes = SCOPE_CHAT };
    sqlite3 *other;
    struct keys *k = keys_open(folder, &e);
    assert_int_equal(sqlite3_open(in_folder("keys.db"), &other), SQLITE_OK);
    assert_int_equal(sqlite3_exec(other, "BEGIN EXCLUSIVE", NULL, NULL, NULL), SQLITE_OK);
    keys_set_patience(k, 50);
    double least = 1e9;
    for (int i = 0; i < 10 && least >= 2; i++) {            /* a busy machine may delay a call, but
                                                             * not each of ten */
        const double before = clock_s();
        assert_int_equal(keys_create(k, &info, text, &e), -1);
        assert_non_null(strstr(e.msg, "locked"));
        least = fmin(least, clock_s() - before);
    }
    assert_true(least < 2);
    assert_int_equal(sqlite3_exec(other, "ROLLBACK", NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(keys_create(k, &info, text, &e), 0);
    sqlite3_close(other);
    keys_close(k);
}

/* A child makes a key for each byte it receives and reports it, until it is killed in the middle of
 * one. */
static void a_key_that_was_shown_outlives_kill_9(void **state)
{
    (void)state;
    enum { ROUNDS = 12 };
    char text[KEY_TEXT + 1] = "";
    int n_shown = 0;
    for (int round = 0; round < ROUNDS; round++) {
        int fd[2], go[2];
        assert_int_equal(pipe(fd), 0);
        assert_int_equal(pipe(go), 0);
        const pid_t child = fork();
        if (child == 0) {
            struct keys *k = keys_open(folder, &e);
            for (int i = 0;; i++) {
                struct key_info info = { .scopes = SCOPE_CHAT };
                char byte;
                snprintf(info.name, sizeof info.name, "r%d-%d", round, i);
                if (!k || read(go[0], &byte, 1) != 1 || keys_create(k, &info, text, &e) ||
                    write(fd[1], text, KEY_TEXT) != KEY_TEXT)
                    _exit(1);
            }
        }
        close(fd[1]);
        static char shown[5][KEY_TEXT + 1];
        const int stop_at = 1 + round % 3;
        int n = 0;
        assert_int_equal(write(go[1], "1", 1), 1);
        while (read(fd[0], shown[n], KEY_TEXT) == KEY_TEXT) {
            if (++n <= stop_at)
                assert_int_equal(write(go[1], "1", 1), 1);
            if (n == stop_at) {             /* the child is making the next key, which is the last */
                nanosleep(&(struct timespec){ .tv_nsec = round * 300000 }, NULL);
                kill(child, SIGKILL);
            }
        }
        close(fd[0]);
        close(go[0]);
        close(go[1]);
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));
        struct key_info info;
        struct keys *k = keys_open(folder, &e);
        assert_non_null(k);
        assert_int_equal(keys_refresh(k, &e), 0);
        for (int i = 0; i < n; i++)
            assert_int_equal(keys_check(k, shown[i], &info), KEY_GOOD);
        n_shown += n;
        /* in each round at most one more key was made, but not reported */
        assert_in_range(keys_known(k), n_shown, n_shown + round + 1);
        keys_close(k);
    }
}

/* Run by a traced child: rounds in which each text is checked once, each check between two
 * signals. */
enum { CHECKS = 5, TEXT_ROOM = 64 };
static void check_each(struct keys *k, char kinds[][TEXT_ROOM], int n)
{
    struct key_info info;
    ptrace(PTRACE_TRACEME, 0, NULL, NULL);
    for (int i = 0; i < n; i++)
        keys_check(k, kinds[i], &info);         /* get one-time work done */
    for (int i = 0; i < n * CHECKS; i++) {
        raise(SIGUSR1);
        keys_check(k, kinds[i % n], &info);
        raise(SIGUSR1);
    }
    _exit(0);
}

/* Number of instructions between two signals of the child; -1: the child has ended. */
static long count_instructions(pid_t child)
{
    int status;
    long n = 0;
    ptrace(PTRACE_CONT, child, NULL, NULL);
    if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status))
        return -1;
    assert_int_equal(WSTOPSIG(status), SIGUSR1);
    for (;; n++) {
        assert_int_equal(ptrace(PTRACE_SINGLESTEP, child, NULL, NULL), 0);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSTOPPED(status));
        if (WSTOPSIG(status) == SIGUSR1)
            return n;
        assert_int_equal(WSTOPSIG(status), SIGTRAP);
    }
}

static int by_number(const void *a, const void *b)
{
    const long x = *(const long *)a, y = *(const long *)b;
    return (x > y) - (x < y);
}

/* Whether the time of a check reveals a key, or how much of a key was guessed.  All checks must
 * execute the same number of instructions; clock times on a busy machine would tell less. */
static void a_check_takes_the_same_time(void **state)
{
    (void)state;
#if defined(__SANITIZE_ADDRESS__)
    print_message("a sanitizer's own instructions are not always as many\n");
    skip();
#endif
    enum { KEYS = 16, KINDS = 6 };
    /* strlen() takes an instruction more where a text is less than 32 bytes from the end of a
     * page, so all lie in one */
    _Alignas(512) char kinds[KINDS][TEXT_ROOM];
    char key[KEYS][KEY_TEXT + 1];
    long n[KINDS], counts[KINDS][CHECKS];
    struct keys *k = keys_open(folder, &e);
    for (int i = 0; i < KEYS; i++) {
        char name[16];
        snprintf(name, sizeof name, "k%d", i);
        new_key(k, name, key[i]);
    }
    assert_int_equal(keys_refresh(k, &e), 0);
    strcpy(kinds[0], key[0]);
    strcpy(kinds[1], key[KEYS - 1]);
    strcpy(kinds[2], key[0]);
    kinds[2][KEY_TEXT - 1] ^= 1;            /* all but the last */
    strcpy(kinds[3], key[KEYS - 1]);
    kinds[3][KEY_TEXT - 1] ^= 1;
    strcpy(kinds[4], key[0]);
    kinds[4][4] ^= 1;                       /* the first character of the secret part */
    memset(kinds[5], 'x', KEY_TEXT);
    kinds[5][KEY_TEXT] = '\0';
    const pid_t child = fork();
    if (child == 0)
        check_each(k, kinds, KINDS);
    for (int i = 0; i < KINDS * CHECKS; i++)
        counts[i % KINDS][i / KINDS] = count_instructions(child);
    /* the median: on a busy machine a trap may be lost, or reading the clock may take more */
    for (int i = 0; i < KINDS; i++) {
        qsort(counts[i], CHECKS, sizeof counts[i][0], by_number);
        n[i] = counts[i][CHECKS / 2];
    }
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    keys_close(k);
    if (n[0] < 0) {
        print_message("the instructions of a check cannot be counted: ptrace is refused\n");
        skip();
    }
    assert_in_range(n[0], 1000, 100000000);
    assert_int_equal(n[0], n[1]);           /* a good key */
    for (int i = 3; i < KINDS; i++)
        if (n[i] != n[2])
            fail_msg("text %d takes %ld instructions, text 2 %ld", i, n[i], n[2]);
}

static void scopes_are_parsed_and_model_patterns_match(void **state)
{
    (void)state;
    unsigned bits;
    char text[32];
    assert_int_equal(key_scopes_parse("admin,chat", &bits, &e), 0);
    assert_string_equal(key_scopes_text(bits, text), "chat,admin");
    assert_int_equal(key_scopes_parse("chat,root", &bits, &e), -1);
    assert_int_equal(key_scopes_parse("", &bits, &e), -1);
    struct key_info k = { .models = "Smol*,qwen-?" };
    assert_true(key_allows_model(&k, "SmolLM2"));
    assert_true(key_allows_model(&k, "qwen-3"));
    assert_false(key_allows_model(&k, "qwen-30"));
    k.models[0] = '\0';
    assert_true(key_allows_model(&k, "anything"));
}

/* Opening read-only creates no file, and notices a file that another program creates. */
static void looking_writes_nothing(void **state)
{
    (void)state;
    char text[KEY_TEXT + 1], path[128];
    struct key_info info, *list;
    int n, required;
    snprintf(path, sizeof path, "%s/home", folder);
    struct keys *look = keys_open_read(path, &e);
    assert_non_null(look);
    assert_int_equal(keys_list(look, &list, &n, &e), 0);
    assert_int_equal(n, 0);
    free(list);
    assert_int_equal(keys_required(look, &required, &e), 0);
    assert_false(required);
    assert_int_equal(keys_refresh(look, &e), 0);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/home/keys.db", folder);
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);       /* another program is creating it */
    assert_true(fd >= 0);
    assert_int_equal(keys_refresh(look, &e), 0);
    assert_int_equal(keys_refresh(look, &e), 0);
    assert_int_equal(lseek(fd, 0, SEEK_END), 0);
    close(fd);
    snprintf(path, sizeof path, "%s/home", folder);
    struct keys *k = keys_open(path, &e);
    assert_non_null(k);
    new_key(k, "app", text);
    assert_int_equal(keys_refresh(look, &e), 0);
    assert_int_equal(keys_check(look, text, &info), KEY_GOOD);
    assert_true(keys_known_required(look));
    assert_int_equal(keys_delete(k, "app", &e), 0);
    assert_int_equal(keys_refresh(look, &e), 0);
    assert_int_equal(keys_check(look, text, &info), KEY_UNKNOWN);
    keys_close(k);
    keys_close(look);
    snprintf(path, sizeof path, "%s/home/keys.db", folder);
    assert_int_equal(chmod(path, 0644), 0);             /* its mode is checked, too */
    snprintf(path, sizeof path, "%s/home", folder);
    assert_null(keys_open_read(path, &e));
    assert_non_null(strstr(e.msg, "expected 600"));
}

/* A file that is damaged and also cannot be written is reported as damaged.  The test runs in a
 * process of its own without root's privileges, because root may write everything. */
static void a_damaged_file_is_no_question_of_rights(void **state)
{
    (void)state;
    int status;
    char text[KEY_TEXT + 1];
    struct keys *k = keys_open(folder, &e);
    new_key(k, "app", text);
    keys_close(k);
    FILE *f = fopen(in_folder("keys.db"), "r+b");
    assert_non_null(f);
    for (int i = 0; i < 4096; i++)
        assert_int_equal(putc('x', f), 'x');
    assert_int_equal(fclose(f), 0);
    assert_int_equal(chmod(in_folder("keys.db"), 0400), 0);
    if (geteuid() == 0)
        assert_true(chown(in_folder("keys.db"), 65534, 65534) == 0 && chown(folder, 65534, 65534) == 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (geteuid() == 0 && setresuid(65534, 65534, 65534) != 0)
            _exit(3);
        struct keys *look = keys_open_read(folder, &e);
        if (look && keys_refresh(look, &e) == 0)
            _exit(2);
        _exit(strstr(e.msg, "is damaged") ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_FOLDER(a_locked_file_is_waited_for_as_long_as_asked), IN_FOLDER(a_key_that_was_shown_outlives_kill_9),
        IN_FOLDER(a_check_takes_the_same_time), IN_FOLDER(keys_live_and_die), IN_FOLDER(no_secret_is_stored),
        IN_FOLDER(a_locked_or_damaged_file_keeps_known_keys), IN_FOLDER(a_change_is_learnt_while_the_file_is_locked),
        IN_FOLDER(a_file_that_others_make_is_locked_not_damaged), IN_FOLDER(a_file_with_the_number_0),
        IN_FOLDER(a_file_of_another_user_is_refused),
        cmocka_unit_test(scopes_are_parsed_and_model_patterns_match), IN_FOLDER(looking_writes_nothing),
        IN_FOLDER(limits_beyond_their_range_stay_limits),
        IN_FOLDER(a_damaged_file_is_no_question_of_rights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
