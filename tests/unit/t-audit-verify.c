/* t-audit-verify.c - find changed and missing lines of an audit log, and check signatures. */
#include "tests/unit/audit_folder.h"

#include <unistd.h>

#include <openssl/evp.h>
#include <openssl/pem.h>

#include "libcommon/access/audit_files.h"
#include "libcommon/access/audit_query.h"
#include "libcommon/access/audit_sign.h"
#include "libcommon/access/audit_verify.h"

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
    assert_int_equal(c.lines, 21);          /* 20 requests and the line that begins the file */
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
    for (int line = 0; line < 21; line++) {             /* remove any line; a missing last line is
                                                         * detected by comparing with the head's
                                                         * hash */
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

static void misses(const char *hash, int64_t ms, const char *words)
{
    const struct audit_check c = check_since(hash, ms);
    if (!c.missing || !strstr(c.what, words))
        fail_msg("expected '%s' in '%s'", words, c.what);
}

/* A log with several files.  first: the hash of an early line of the first file; head: the last
 * hash of each file. */
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

/* A removed file is detected: the first one, one in the middle, the newest rotated one, or the
 * current one, and also after a writer has added lines. */
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
            nothing_is_missing(m.head[N - 2], 0);       /* after this hash nothing is missing */
        move_aside(m.f.file[i].path, 1);
        nothing_is_missing(m.first, 0);
    }
    move_aside(m.f.file[N - 1].path, 0);
    struct audit *a = open_log(3000, 10);
    audit_begin(a);
    audit_close(a);
    misses(NULL, 0, "the end of the log was cut or replaced");
    misses(m.first, 0, "missing before it");
    nothing_is_missing(m.head[N - 1], 0);               /* the chain tells that the next file
                                                         * continues from there */
    audit_files_release(&m.f);
}

/* Lines that are cut from the end are detected by the head, and by the next writer. */
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
        if (restart) {                                  /* a new process, which knows only the head */
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
    nothing_is_missing(NULL, 0);                        /* the chain records what was cleared */
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

/* If a server starts with another number of files to keep, the chain announces it before any file
 * is removed. */
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

/* Write a log with a single event, whose hash is right.  Returns whether the log counts as
 * broken. */
static int verify_first_event(const char *name, int has_prev)
{
    char covered[512], hash[SHA256_HEX + 1];
    uint8_t digest[SHA256_SIZE];
    struct audit_check c;
    FILE *f = fopen(in_folder(AUDIT_FILE), "wb");
    assert_non_null(f);
    const int n = snprintf(covered, sizeof covered, "%s{\"timestamp\":\"x\",\"timestamp_unix\":1.000,\"event\":\"%s\"%s",
                           AUDIT_ZEROS, name, has_prev ? ",\"prev\":\"" AUDIT_ZEROS "\"" : "");
    sha256_of(covered, (size_t)n, digest);
    sha256_hex(digest, hash);
    fprintf(f, "%s,\"hash\":\"%s\"}\n", covered + SHA256_HEX, hash);
    fclose(f);
    assert_int_equal(verify(NULL, &c), 0);
    unlink(in_folder(AUDIT_FILE));
    return c.broken;
}

/* The first line of a log must be the event "begin", which has the previous hash. */
static void a_log_begins_with_its_begin(void **state)
{
    (void)state;
    assert_int_equal(verify_first_event("begin", 1), 0);
    assert_int_not_equal(verify_first_event("begin", 0), 0);
    assert_int_not_equal(verify_first_event("gap", 1), 0);
    assert_int_not_equal(verify_first_event("retention", 0), 0);
}

/* A log whose lines have no numbers, from an older version, verifies; it can be continued, and the
 * new lines are protected. */
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

/* ---- signatures ---- */

/* Make a key pair in the folder: NAME.key and NAME.pub. */
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

/* Change a line of the log file and recompute all hashes after it, as an attacker can who may write
 * to the folder but has no signing key.  from, to: the old and the new text. */
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
    nothing_is_missing(NULL, 0);                        /* without the key nothing wrong is found */
    c = check_signed("a.pub");
    assert_true(c.broken && strstr(c.where, "the signature is not that of key"));
    rewrite_chain("\"event\":\"signature\"", "\"event\":\"nothing\"");
    rewrite_chain("\"signature\":", "\"sign\":");
    nothing_is_missing(NULL, 0);
    c = check_signed("a.pub");                          /* the file begins now, but its requests are
                                                         * dated on another day */
    assert_true(c.missing && strstr(c.what, "have no signature of this key"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_FOLDER(verify_finds_every_change), IN_FOLDER(a_removed_file_is_missed), IN_FOLDER(a_cut_tail_is_missed),
        IN_FOLDER(rotation_and_clearing_are_told_apart), IN_FOLDER(a_signed_log_cannot_be_written_anew),
        IN_FOLDER(a_changed_retention_is_announced), IN_FOLDER(old_logs_still_verify),
        IN_FOLDER(a_log_begins_with_its_begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
