/* t-disk.c - prefixes in a folder: a prefix that is read is the one that was written for the same
 * model, scope and tokens, even if files were damaged or exchanged; scopes share no tree. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <cmocka.h>

#include "libcommon/cache/disk.h"
#include "libcommon/cache/kv.h"

enum { BLOCK = 24, STATE = 10 };
static char folder[256];
static int32_t ids[3 * DISK_RUN];
static int n_notes;
static size_t window_bytes;             /* 0 but in the test of window blocks */

static void count_note(void *user, const char *text)
{
    (void)user;
    (void)text;
    n_notes++;
}

static struct disk *open_with(const char *model, uint64_t max_bytes)
{
    struct err e;
    const struct disk_options o = { .folder = folder, .max_bytes = max_bytes, .model = model, .n_model = strlen(model),
                                    .block_bytes = BLOCK, .window_bytes = window_bytes, .state_bytes = STATE,
                                    .note = count_note };
    struct disk *d = disk_open(&o, &e);
    if (!d)
        fail_msg("%s", e.msg);
    return d;
}

/* The number of files whose names have this ending; with and_remove they are removed. */
static int files(const char *ending, int and_remove)
{
    char path[512];
    int n = 0;
    DIR *dir = opendir(folder);
    for (const struct dirent *x; (x = readdir(dir));) {
        const size_t at = strlen(x->d_name), k = strlen(ending);
        if (x->d_name[0] == '.' || at < k || strcmp(x->d_name + at - k, ending) != 0)
            continue;
        n++;
        snprintf(path, sizeof path, "%s/%s", folder, x->d_name);
        if (and_remove)
            unlink(path);
    }
    closedir(dir);
    return n;
}

static int find_file(const char *ending, char path[512])
{
    int found = 0;
    DIR *dir = opendir(folder);
    for (const struct dirent *x; (x = readdir(dir));)
        if (strstr(x->d_name, ending)) {
            snprintf(path, 512, "%s/%s", folder, x->d_name);
            found = 1;
        }
    closedir(dir);
    return found;
}

static int empty_folder(void **state)
{
    (void)state;
    files("", 1);
    n_notes = 0;
    return 0;
}

static void write_run(struct disk *d, const struct disk_key *k, const int32_t *tokens, int first)
{
    struct disk_write *w = disk_begin(d, DISK_IS_RUN, k, tokens, DISK_RUN);
    assert_non_null(w);
    for (int i = 0; i < DISK_RUN / KV_BLOCK; i++)
        memset(disk_block(w, i), first + i, BLOCK);
    disk_commit(d, w);
}

static void runs_are_found_by_their_chain_of_keys(void **state)
{
    (void)state;
    struct disk_key k, first;
    struct disk_data data;
    struct disk *d = open_with("model", 1 << 20);
    disk_first(d, 0, 0, &first);
    k = first;
    for (int i = 0; i < 2; i++) {
        write_run(d, &k, ids + i * DISK_RUN, 10 * i);
        disk_next(d, &k, ids + i * DISK_RUN);
    }
    struct disk_write *w = disk_begin(d, DISK_IS_TAIL, &k, ids + 2 * DISK_RUN, 20);
    memset(disk_block(w, 0), 77, BLOCK);
    memset(disk_block(w, 1), 78, BLOCK);
    memset(disk_state(w), 79, STATE);
    disk_commit(d, w);
    w = disk_begin(d, DISK_IS_STATE, &k, NULL, 0);
    memset(disk_state(w), 80, STATE);
    disk_commit(d, w);
    disk_close(d);                                      /* writes all of it */

    d = open_with("model", 1 << 20);
    disk_first(d, 0, 0, &k);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(disk_read(d, DISK_IS_RUN, &k, ids + i * DISK_RUN, &data), 1);
        assert_int_equal(data.n_tokens, DISK_RUN);
        for (int b = 0; b < DISK_RUN / KV_BLOCK * BLOCK; b++)
            assert_int_equal(data.blocks[b], 10 * i + b / BLOCK);
        disk_next(d, &k, ids + i * DISK_RUN);
    }
    assert_int_equal(disk_read(d, DISK_IS_TAIL, &k, NULL, &data), 1);
    assert_int_equal(data.n_tokens, 20);
    assert_memory_equal(data.ids, ids + 2 * DISK_RUN, 20 * sizeof *ids);
    assert_int_equal(data.blocks[BLOCK], 78);
    assert_int_equal(data.state[STATE - 1], 79);
    assert_int_equal(disk_read(d, DISK_IS_STATE, &k, NULL, &data), 1);
    assert_int_equal(data.state[0], 80);
    /* the second run does not follow the first key, and no run has these other tokens */
    assert_int_equal(disk_read(d, DISK_IS_RUN, &first, ids + DISK_RUN, &data), 0);
    assert_int_equal(disk_has(d, DISK_IS_RUN, &first, ids), 1);
    disk_first(d, 1, 0, &k);
    assert_int_equal(disk_read(d, DISK_IS_RUN, &k, ids, &data), 0);     /* another scope */
    disk_first(d, 0, 1, &k);
    assert_int_equal(disk_read(d, DISK_IS_RUN, &k, ids, &data), 0);     /* LongRoPE's other tree */
    disk_close(d);
    d = open_with("model of another version", 1 << 20);
    disk_first(d, 0, 0, &k);
    assert_int_equal(disk_read(d, DISK_IS_RUN, &k, ids, &data), 0);
    disk_close(d);
    assert_int_equal(files(".run", 0), 2);              /* no file of another model was removed */
}

/* A run of blocks may be stored without some or all of its window blocks.  A tail (the partial run
 * at the end) always has them.  Files with window blocks of another size are not accepted. */
static void window_blocks_are_optional_except_in_tails(void **state)
{
    (void)state;
    enum { WINDOW = 12 };
    struct disk_key k, next, part;
    struct disk_data data;
    window_bytes = WINDOW;
    struct disk *d = open_with("model", 1 << 20);
    disk_first(d, 0, 0, &k);
    for (int i = 0; i < 2; i++) {
        struct disk_write *w = disk_begin(d, i ? DISK_IS_TAIL : DISK_IS_RUN, &k, ids + i, i ? 20 : DISK_RUN);
        for (int b = 0; b < (i ? 2 : 4); b++) {
            memset(disk_block(w, b), 1 + b, BLOCK);
            memset(disk_window(w, b), 11 + b, WINDOW);
        }
        if (i)
            memset(disk_state(w), 21, STATE);
        disk_commit(d, w);
    }
    next = k;
    disk_next(d, &next, ids);
    struct disk_write *w = disk_begin(d, DISK_IS_RUN, &next, ids + 3, DISK_RUN);
    memset(disk_block(w, 0), 31, 4 * BLOCK);
    for (int b = 0; b < 4; b++)
        disk_no_window(w, b);
    disk_commit(d, w);
    part = next;
    disk_next(d, &part, ids + 3);
    w = disk_begin(d, DISK_IS_RUN, &part, ids, DISK_RUN);
    memset(disk_block(w, 0), 41, 4 * BLOCK);
    memset(disk_window(w, 0), 51, 4 * WINDOW);
    disk_no_window(w, 1);
    disk_no_window(w, 2);
    disk_commit(d, w);
    disk_close(d);
    d = open_with("model", 1 << 20);
    assert_int_equal(disk_read(d, DISK_IS_RUN, &k, ids, &data), 1);
    assert_int_equal(data.blocks[4 * BLOCK - 1], 4);
    assert_int_equal(data.windows[0], 11);
    assert_int_equal(data.windows[4 * WINDOW - 1], 14);
    assert_int_equal(data.lacks, 0);
    assert_int_equal(disk_read(d, DISK_IS_TAIL, &k, NULL, &data), 1);
    assert_int_equal(data.windows[2 * WINDOW - 1], 12);
    assert_int_equal(data.state[0], 21);
    assert_int_equal(disk_read(d, DISK_IS_RUN, &next, ids + 3, &data), 1);
    assert_null(data.windows);
    assert_int_equal(data.blocks[4 * BLOCK - 1], 31);
    assert_int_equal(disk_read(d, DISK_IS_RUN, &part, ids, &data), 1);
    assert_int_equal(data.lacks, 6);
    assert_int_equal(data.windows[0], 51);
    assert_int_equal(data.windows[4 * WINDOW - 1], 51);
    assert_int_equal(data.blocks[4 * BLOCK - 1], 41);
    disk_close(d);
    window_bytes = 0;
    d = open_with("model", 1 << 20);
    assert_int_equal(disk_read(d, DISK_IS_RUN, &k, ids, &data), 0);
    disk_close(d);
}

static uint8_t *read_file(const char *path, size_t *size)
{
    static uint8_t bytes[4096];
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    *size = fread(bytes, 1, sizeof bytes, f);
    fclose(f);
    return bytes;
}

static void write_file(const char *path, const uint8_t *bytes, size_t size)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, size, f), size);
    fclose(f);
}

/* Files with any byte changed, cut at any byte, or longer than they should be are never accepted,
 * and always removed. */
static void damaged_files_are_refused_and_removed(void **state)
{
    (void)state;
    static const enum disk_kind kinds[] = { DISK_IS_RUN, DISK_IS_TAIL, DISK_IS_STATE };
    static const char *const endings[] = { ".run", ".tail", ".state" };
    struct disk_key k;
    struct disk_data data;
    char path[512];
    size_t size;
    struct disk *d = open_with("model", 1 << 20);
    disk_first(d, 0, 0, &k);
    for (int i = 0; i < 3; i++) {
        struct disk_write *w = disk_begin(d, kinds[i], &k, ids, i == 0 ? DISK_RUN : i == 1 ? 20 : 0);
        for (int b = 0; b < (i == 0 ? 4 : i == 1 ? 2 : 0); b++)
            memset(disk_block(w, b), b, BLOCK);
        if (i)
            memset(disk_state(w), 5, STATE);
        disk_commit(d, w);
    }
    disk_close(d);
    d = open_with("model", 1 << 20);
    for (int i = 0; i < 3; i++) {
        assert_true(find_file(endings[i], path));
        const uint8_t *bytes = read_file(path, &size);
        for (size_t at = 0; at < 2 * size + 1; at++) {
            uint8_t bad[4096] = { 0 };
            memcpy(bad, bytes, size);
            if (at < size)
                bad[at] ^= 1 << at % 8;
            write_file(path, bad, at < size ? size : at < 2 * size ? at - size : size + 1);
            if (disk_read(d, kinds[i], &k, ids, &data))
                fail_msg("%s: accepted with change %zu of %zu", endings[i], at, size);
            assert_int_equal(access(path, F_OK), -1);
        }
        write_file(path, bytes, size);
        assert_int_equal(disk_read(d, kinds[i], &k, ids, &data), 1);
    }
    struct disk_stats s;
    disk_stats(d, &s);
    assert_true(s.damaged > 900);
    disk_close(d);
}

/* A link, a folder or a pipe with the name of a run is not accepted as a run. */
static void test_no_files(void **state)
{
    (void)state;
    struct disk_key k;
    struct disk_data data;
    char path[512];
    struct disk *d = open_with("model", 1 << 20);
    disk_first(d, 0, 0, &k);
    write_run(d, &k, ids, 0);
    disk_close(d);
    d = open_with("model", 1 << 20);
    assert_true(find_file(".run", path));
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(disk_read(d, DISK_IS_RUN, &k, ids, &data), 0);
    unlink(path);
    assert_int_equal(symlink("/dev/zero", path), 0);
    assert_int_equal(disk_read(d, DISK_IS_RUN, &k, ids, &data), 0);
    unlink(path);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(disk_read(d, DISK_IS_RUN, &k, ids, &data), 0);
    assert_int_equal(rmdir(path), 0);
    disk_close(d);
}

/* Above the limit the least recently used files are removed; a time in the future counts as now. */
static void the_least_recently_used_files_are_evicted(void **state)
{
    (void)state;
    enum { RUN_FILE = 336 + 4 * BLOCK, N = 40 };
    struct disk_key k, key[N];
    struct disk_data data;
    char path[512];
    struct disk *d = open_with("model", 1 << 20);
    disk_first(d, 0, 0, &k);
    for (int i = 0; i < N; i++) {
        key[i] = k;
        write_run(d, &k, ids, i);
        disk_next(d, &k, ids);
    }
    disk_close(d);
    d = open_with("model", 1 << 20);
    DIR *dir = opendir(folder);                         /* make all files old, then use the first run */
    for (const struct dirent *x; (x = readdir(dir));) {
        const struct timespec old[2] = { { 1000, 0 }, { 1000, 0 } };
        utimensat(dirfd(dir), x->d_name, old, 0);
    }
    closedir(dir);
    assert_int_equal(disk_read(d, DISK_IS_RUN, &key[0], ids, &data), 1);
    disk_close(d);
    d = open_with("model", 20 * RUN_FILE);
    write_run(d, &k, ids, 1);
    disk_close(d);
    assert_int_equal(files(".run", 0), 18);             /* the files fill at most nine tenths of the
                                                         * limit, including the new one */
    d = open_with("model", 20 * RUN_FILE);
    assert_int_equal(disk_read(d, DISK_IS_RUN, &key[0], ids, &data), 1);
    assert_int_equal(disk_read(d, DISK_IS_RUN, &k, ids, &data), 1);
    assert_true(find_file(".run", path));
    const struct timespec later[2] = { { 4000000000, 0 }, { 4000000000, 0 } };
    utimensat(AT_FDCWD, path, later, 0);                /* the clock went back: evicted like the others */
    for (int i = 0; i < 60; i++) {
        disk_next(d, &k, ids);
        write_run(d, &k, ids, i);
    }
    disk_close(d);
    assert_in_range(files(".run", 0), 10, 20);
    assert_int_equal(n_notes, 0);
    d = open_with("model", RUN_FILE - 1);               /* holds nothing: said once */
    for (int i = 0; i < 3; i++) {
        disk_next(d, &k, ids);
        write_run(d, &k, ids, i);
    }
    disk_close(d);
    assert_int_equal(n_notes, 1);
}

/* A folder that cannot be written to is read; the temporary file of a dead writer is removed. */
static void read_only_folders_are_read_and_dead_files_removed(void **state)
{
    (void)state;
    struct disk_key k;
    struct disk_data data;
    struct err e;
    char path[600];
    struct disk *d = open_with("model", 1 << 20);
    disk_first(d, 0, 0, &k);
    write_run(d, &k, ids, 3);
    snprintf(path, sizeof path, "%s/.zse-1-2-3", folder);
    write_file(path, (const uint8_t *)"part", 4);
    disk_close(d);
    d = open_with("model", 1 << 20);
    disk_close(d);
    assert_int_equal(access(path, F_OK), -1);
    if (geteuid() != 0) {                               /* root may write anywhere */
        chmod(folder, 0500);
        d = open_with("model", 1 << 20);
        assert_int_equal(n_notes, 1);
        assert_int_equal(disk_read(d, DISK_IS_RUN, &k, ids, &data), 1);
        assert_null(disk_begin(d, DISK_IS_RUN, &k, ids, DISK_RUN));
        disk_close(d);
    }
    chmod(folder, 0777);
    struct disk_options o = { .folder = folder, .max_bytes = 1 << 20, .model = "m", .n_model = 1,
                              .block_bytes = BLOCK };
    assert_null(disk_open(&o, &e));
    assert_non_null(strstr(e.msg, "mode 777"));
    if (access("/sys", F_OK) == 0) {                    /* not even root can make a folder in /sys */
        o.folder = "/sys/zse-none";
        assert_null(disk_open(&o, &e));
        assert_null(strstr(e.msg, "No such file"));     /* the error must be that of creating the folder */
    }
    chmod(folder, 0700);
    snprintf(path, sizeof path, "%s/secret", folder);
    write_file(path, (const uint8_t *)"cut", 3);        /* with a damaged secret new keys are made:
                                                         * no old file is found, and no error is
                                                         * reported */
    d = open_with("model", 1 << 20);
    assert_int_equal(disk_read(d, DISK_IS_RUN, &k, ids, &data), 0);
    disk_close(d);
}

/* These replace the functions of the C library in this program: on a failing disk they fail, writes
 * after half of the bytes. */
static atomic_int reads_fail, writes_fail;
ssize_t pread(int fd, void *p, size_t n, off_t at)
{
    if (reads_fail) {
        errno = EIO;
        return -1;
    }
    return syscall(SYS_pread64, fd, p, n, at);
}
ssize_t write(int fd, const void *p, size_t n)
{
    if (writes_fail && n < 2) {
        errno = EIO;
        return -1;
    }
    return syscall(SYS_write, fd, p, writes_fail ? n / 2 : n);
}

/* A failing disk: nothing is stored, which is said once, and no part of a file stays; a file that
 * cannot be read is computed again, but not removed.  When the disk works again, all is as
 * before. */
static void failing_disks_lose_nothing_but_time(void **state)
{
    (void)state;
    struct disk_key k, first;
    struct disk_data data;
    struct disk_stats s;
    struct disk *d = open_with("model", 1 << 20);
    disk_first(d, 0, 0, &first);
    k = first;
    write_run(d, &k, ids, 6);
    disk_close(d);
    d = open_with("model", 1 << 20);
    writes_fail = 1;
    for (int i = 0; i < 3; i++) {
        disk_next(d, &k, ids);
        write_run(d, &k, ids, i);
    }
    do                                  /* until the thread has tried all */
        disk_stats(d, &s);
    while (s.failed < 3);
    writes_fail = 0;
    assert_int_equal(s.written, 0);
    assert_int_equal(n_notes, 1);
    assert_int_equal(files("", 0), 2);  /* the secret and the first run; no temporary file (below) */
    reads_fail = 1;
    assert_int_equal(disk_read(d, DISK_IS_RUN, &first, ids, &data), 0);
    reads_fail = 0;
    assert_int_equal(disk_read(d, DISK_IS_RUN, &first, ids, &data), 1);
    write_run(d, &k, ids, 7);
    disk_close(d);
    assert_int_equal(files("", 0), 3);
    char path[512];
    assert_false(find_file(".zse-", path));
    d = open_with("model", 1 << 20);
    assert_int_equal(disk_read(d, DISK_IS_RUN, &k, ids, &data), 1);
    assert_int_equal(data.blocks[0], 7);
    disk_stats(d, &s);
    assert_int_equal(s.damaged, 0);
    disk_close(d);
}

/* Two servers write the same folder: each finds what the other wrote. */
static void two_servers_share_a_folder(void **state)
{
    (void)state;
    struct disk_key k, l;
    struct disk_data data;
    struct disk *a = open_with("model", 1 << 20), *b = open_with("model", 1 << 20);
    disk_first(a, 0, 0, &k);
    disk_first(b, 0, 0, &l);
    assert_memory_equal(&k, &l, sizeof k);
    for (int i = 0; i < 50; i++) {
        write_run(a, &k, ids, 4);
        write_run(b, &k, ids, 4);
        disk_next(a, &k, ids);
    }
    disk_close(a);
    disk_close(b);
    a = open_with("model", 1 << 20);
    for (int i = 0; i < 50; i++) {
        assert_int_equal(disk_read(a, DISK_IS_RUN, &l, ids, &data), 1);
        disk_next(a, &l, ids);
    }
    disk_close(a);
    assert_int_equal(files(".run", 0), 50);
}

/* Another model, or the same one with another version of the blocks, has files of its own for the
 * same tokens, and refuses a file of the first one that has its name. */
static void other_models_and_versions_find_nothing(void **state)
{
    (void)state;
    static const char *const others[] = { "[\"0.1.0\", 6, \"model\"]", "[\"0.1.1\", 5, \"model\"]",
                                          "[\"0.1.0\", 5, \"model\", 1]" };
    struct disk_key k, l;
    struct disk_data data;
    struct disk_stats s;
    char own[512], theirs[512];
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        empty_folder(NULL);
        struct disk *d = open_with("[\"0.1.0\", 5, \"model\"]", 1 << 20), *other;
        disk_first(d, 0, 0, &k);
        write_run(d, &k, ids, 1);
        disk_close(d);
        assert_true(find_file(".run", own));
        other = open_with(others[i], 1 << 20);
        disk_first(other, 0, 0, &l);
        assert_int_equal(disk_read(other, DISK_IS_RUN, &l, ids, &data), 0);
        write_run(other, &l, ids, 2);
        disk_close(other);
        assert_int_equal(files(".run", 0), 2);
        snprintf(theirs, sizeof theirs, "%s/kept", folder);
        assert_int_equal(rename(own, theirs), 0);
        assert_true(find_file(".run", own));
        assert_int_equal(rename(theirs, own), 0);       /* now a file of the first model has this name */
        other = open_with(others[i], 1 << 20);
        assert_int_equal(disk_read(other, DISK_IS_RUN, &l, ids, &data), 0);
        disk_stats(other, &s);
        assert_int_equal(s.damaged, 1);
        disk_close(other);
    }
}

/* Two servers write to the same folder in turn, without knowing of each other's files: each lists
 * the folder again, so the limit holds. */
static void test_shared_limit(void **state)
{
    (void)state;
    enum { RUN_FILE = 336 + 4 * BLOCK, ROOM = 100, N = 4 };
    struct disk_key k;
    struct disk *d[N];
    for (int i = 0; i < N; i++)
        d[i] = open_with("model", ROOM * RUN_FILE);
    for (int i = 0; i < N; i++) {
        disk_first(d[i], (uint64_t)i, 0, &k);
        for (int j = 0; j < ROOM * 8 / 10; j++) {
            write_run(d[i], &k, ids, j);
            disk_next(d[i], &k, ids);
        }
    }
    for (int i = 0; i < N; i++)
        disk_close(d[i]);
    assert_in_range(files(".run", 0), ROOM / 2, ROOM * (100 + 6 * N) / 100);
}

static int gate[2];

static void wait_at_gate(void *user, const char *text)
{
    char c;
    count_note(user, text);
    assert_int_equal(read(gate[0], &c, 1), 1);
}

/* A slow disk delays no request: a run that does not fit into the queue is not stored. */
static void test_full_queue(void **state)
{
    (void)state;
    enum { LARGE = 9 << 20 };                           /* a run: more than half of the queue */
    struct err e;
    struct disk_key k;
    struct disk_stats s;
    const struct disk_options o = { .folder = folder, .max_bytes = 1 << 20, .model = "m", .n_model = 1,
                                    .block_bytes = LARGE, .note = wait_at_gate };
    assert_int_equal(pipe(gate), 0);
    struct disk *d = disk_open(&o, &e);
    assert_non_null(d);
    disk_first(d, 0, 0, &k);
    struct disk_write *w = disk_begin(d, DISK_IS_RUN, &k, ids, DISK_RUN);
    assert_non_null(w);
    disk_commit(d, w);                                  /* larger than the folder's limit: the
                                                         * writing thread reports it */
    assert_null(disk_begin(d, DISK_IS_RUN, &k, ids, DISK_RUN));
    disk_stats(d, &s);
    assert_true(s.bytes > 4 * LARGE);
    assert_int_equal(write(gate[1], "x", 1), 1);
    disk_close(d);
    assert_int_equal(n_notes, 1);
    assert_int_equal(files(".run", 0), 0);
    close(gate[0]);
    close(gate[1]);
}

/* A file that cannot be written completely leaves nothing behind, and later files are written
 * again. */
static void test_full_disk(void **state)
{
    (void)state;
    enum { RUN_FILE = 336 + 4 * BLOCK };
    struct disk_key k;
    struct disk_data data;
    struct disk_stats s = { 0 };
    char path[512];
    struct rlimit before, small;
    struct disk *d = open_with("model", 1 << 20);
    disk_first(d, 0, 0, &k);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = (struct rlimit){ RUN_FILE - 1, before.rlim_max };
    setrlimit(RLIMIT_FSIZE, &small);
    write_run(d, &k, ids, 1);
    write_run(d, &k, ids, 1);
    while (s.failed < 2 && s.written == 0)
        disk_stats(d, &s);
    setrlimit(RLIMIT_FSIZE, &before);
    assert_int_equal(s.written, 0);
    assert_int_equal(n_notes, 1);
    assert_false(find_file("-", path));                 /* no temporary file */
    assert_int_equal(files(".run", 0), 0);
    write_run(d, &k, ids, 1);
    disk_close(d);
    d = open_with("model", 1 << 20);
    assert_int_equal(disk_read(d, DISK_IS_RUN, &k, ids, &data), 1);
    disk_close(d);
}

static void ignore_block(void *user, int32_t block)
{
    (void)user;
    (void)block;
}

static void scopes_share_no_prefixes(void **state)
{
    (void)state;
    struct err e;
    struct kv_pool *p = kv_pool_open(8, &e);
    struct kv_table t;
    int roots[3];
    for (int i = 0; i < 3; i++) {                       /* two scopes and the common one, with the
                                                         * same tokens */
        assert_int_equal(kv_table_init(&t, 64, &e), 0);
        assert_int_equal(kv_table_scope(&t, p, (uint64_t)i, &e), 0);
        roots[i] = t.root;
        assert_int_equal(prefix_take(&t, p, ids, 32), 0);
        assert_int_equal(kv_table_reserve(&t, p, 32), 0);
        t.n_tokens = 32;
        prefix_enter(&t, p, ids, 0);
        kv_table_release(&t, p);
    }
    assert_true(roots[0] == 0 && roots[1] != roots[0] && roots[2] != roots[1] && roots[2] != roots[0]);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(kv_table_init(&t, 64, &e), 0);
        assert_int_equal(kv_table_scope(&t, p, (uint64_t)i, &e), 0);
        assert_int_equal(t.root, roots[i]);
        assert_int_equal(prefix_take(&t, p, ids, 32), 32);
        kv_table_release(&t, p);
    }
    kv_pool_trim(p, ignore_block, NULL);
    for (uint64_t i = 100; i < 400; i++) {              /* empty scopes are used again */
        assert_int_equal(kv_table_init(&t, 64, &e), 0);
        assert_int_equal(kv_table_scope(&t, p, i, &e), 0);
        assert_true(t.root <= 2 * KV_ROOTS);
        kv_table_release(&t, p);
    }
    kv_pool_close(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(runs_are_found_by_their_chain_of_keys, empty_folder),
        cmocka_unit_test_setup(window_blocks_are_optional_except_in_tails, empty_folder),
        cmocka_unit_test_setup(damaged_files_are_refused_and_removed, empty_folder),
        cmocka_unit_test_setup(test_no_files, empty_folder),
        cmocka_unit_test_setup(the_least_recently_used_files_are_evicted, empty_folder),
        cmocka_unit_test_setup(read_only_folders_are_read_and_dead_files_removed, empty_folder),
        cmocka_unit_test_setup(failing_disks_lose_nothing_but_time, empty_folder),
        cmocka_unit_test_setup(two_servers_share_a_folder, empty_folder),
        cmocka_unit_test_setup(other_models_and_versions_find_nothing, empty_folder),
        cmocka_unit_test_setup(test_shared_limit, empty_folder),
        cmocka_unit_test_setup(test_full_queue, empty_folder),
        cmocka_unit_test_setup(test_full_disk, empty_folder), cmocka_unit_test(scopes_share_no_prefixes),
    };
    for (int i = 0; i < 3 * DISK_RUN; i++)
        ids[i] = i;
    const char *tmp = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/t-disk-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(folder))
        return 1;
    const int rc = cmocka_run_group_tests(tests, NULL, NULL);
    files("", 1);
    rmdir(folder);
    return rc;
}
