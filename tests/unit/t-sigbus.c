/* t-sigbus.c - the programs' handler of SIGBUS, when pages of a mapped file are lost. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cmd/sigbus.h"
#include "libcommon/convert/convert.h"
#include "libcommon/import/source.h"

enum { SIZE = 4 << 16 };                /* more than a page on every machine */
static char path[] = "/tmp/t-sigbus-XXXXXX";

static void open_map(struct map *m)
{
    struct err e;
    assert_int_equal(truncate(path, 0), 0);
    assert_int_equal(truncate(path, SIZE), 0);
    assert_int_equal(map_open(m, path, &e), 0);
}

static int byte_at(const struct map *m, size_t at) { return *(const volatile uint8_t *)(m->data + at); }

/* Lost pages of a guarded map read as zeros, and only the map that was read is marked as lost.  It
 * is the last of many maps of the same file. */
static void zeros(void)
{
    enum { MANY = 300 };                /* more than one block of the list has room for */
    static struct map many[MANY];
    struct err e;
    struct map m, other;
    open_map(&other);
    sigbus_guard(&other);
    for (int i = 0; i < MANY; i++) {
        assert_int_equal(map_open(&many[i], path, &e), 0);
        sigbus_guard(&many[i]);
    }
    assert_int_equal(map_open(&m, path, &e), 0);
    sigbus_guard(&m);
    assert_int_equal(truncate(path, SIZE / 4), 0);
    assert_int_equal(byte_at(&m, 0), 0);
    assert_false(m.lost);
    assert_int_equal(byte_at(&m, SIZE - 1), 0);
    assert_true(m.lost);
    assert_false(other.lost);
    assert_int_equal(map_check(&m, &e), -1);
    sigbus_unguard(&m);
    map_close(&m);
    for (int i = 0; i < MANY; i++) {
        assert_false(many[i].lost);
        sigbus_unguard(&many[i]);
        map_close(&many[i]);
    }
    assert_int_equal(byte_at(&other, SIZE / 2), 0);
    assert_true(other.lost);
    sigbus_unguard(&other);
    map_close(&other);
}

/* A lost page of a map that is not guarded, or no longer, ends the program with status 1 and the
 * file's name. */
static void the_end(void)
{
    struct map m;
    char text[400] = "";
    int end[2], status;
    open_map(&m);
    sigbus_guard(&m);
    sigbus_unguard(&m);
    assert_int_equal(truncate(path, 0), 0);
    assert_int_equal(pipe(end), 0);
    const pid_t pid = fork();
    if (pid == 0) {
        dup2(end[1], STDERR_FILENO);
        _exit(byte_at(&m, SIZE - 1) + 100);
    }
    close(end[1]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(read(end[0], text, sizeof text - 1) > 0);
    close(end[0]);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    char want[400];
    snprintf(want, sizeof want, "t-sigbus: %s: " MAP_LOST "\n", path);
    assert_string_equal(text, want);
    map_close(&m);
}

/* ---- a conversion whose source is cut ---- */

static char weights[200];

static int cut(void *user, const struct convert_report *r, struct err *e)
{
    (void)user;
    (void)e;
    assert_true(r->weight_bytes > 0);
    return truncate(weights, 40000);
}

/* The source is cut after its header, so that its tensors are missing: the conversion fails and
 * leaves no output. */
static void source_that_is_cut(void)
{
    static const struct map_guard guard = { sigbus_guard, sigbus_unguard };
    static const struct source_options open = { .guard = &guard };
    char folder[] = "/tmp/t-sigbus-XXXXXX", made[200], command[700];
    struct convert_options o;
    struct err e;
    assert_non_null(mkdtemp(folder));
    snprintf(weights, sizeof weights, "%s/model.safetensors", folder);
    snprintf(made, sizeof made, "%s/made.zse", folder);
    snprintf(command, sizeof command, "cp models/tiny/*.json models/tiny/model.safetensors %s", folder);
    assert_int_equal(system(command), 0);
    convert_defaults(&o);
    o.source = folder;
    o.output = made;
    o.open = &open;
    o.n_threads = 2;
    o.effort = CONVERT_FAST;
    o.before = cut;
    assert_int_equal(convert_run(&o, NULL, &e), -1);
    char want[400];
    snprintf(want, sizeof want, "%s: " MAP_LOST, weights);
    assert_string_equal(e.msg, want);
    snprintf(command, sizeof command, "test -z \"$(ls -A %s | grep made)\" && rm -r %s", folder, folder);
    assert_int_equal(system(command), 0);
}

/* All in one test, because cmocka installs its own signal handler before and after each test. */
static void lost_pages_end_in_zeros_or_a_message(void **state)
{
    (void)state;
    sigbus_start("t-sigbus");
    zeros();
    the_end();
    source_that_is_cut();
}

int main(void)
{
    const int fd = mkstemp(path);
    if (fd < 0)
        return 1;
    close(fd);
    const struct CMUnitTest tests[] = { cmocka_unit_test(lost_pages_end_in_zeros_or_a_message) };
    const int rc = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return rc;
}
