/* t-resume.c - conversions that are killed resume where they stopped, and their files are those of
 * an undisturbed run, byte for byte. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "libcommon/base/file.h"
#include "libcommon/convert/convert.h"

static const char tiny[] = "models/tiny";
static char dir[64], out[128], want[128], text[128], notes[4096];

static char *in(const char *name)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static int setup(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/t-resume-XXXXXX");
    if (!mkdtemp(dir) || mkdir(in("o"), 0755))
        return -1;
    strcpy(out, in("o/m.zse"));
    strcpy(want, in("want.zse"));
    strcpy(text, in("text"));
    FILE *f = fopen(text, "w");
    for (int i = 0; f && i < 6; i++)
        fprintf(f, "Question %d: what is %d + %d? The answer is %d, said the fox to the crow; {x: [%d]}\n", i, i, 3 * i,
                4 * i, i * i);
    return f ? fclose(f) : -1;
}

static int teardown(void **state)
{
    char command[128];
    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command);
}

static void take_note(void *user, const char *line)
{
    (void)user;
    strncat(strncat(notes, line, sizeof notes - strlen(notes) - 2), "\n", 2);
}

static struct convert_options options(const char *source, const char *output, const char *type,
                                      enum convert_effort effort)
{
    struct convert_options o;
    convert_defaults(&o);
    o.source = source;
    o.output = output;
    assert_int_equal(convert_parse_type(&o.type, type, NULL), 0);
    o.keep_grid = 0;
    o.effort = effort;
    o.calibration = effort == CONVERT_FAST ? NULL : text;
    o.target_bytes = o.type.kind == CONVERT_MIXED ? 700000 : 0;
    o.checkpoint_s = 0;
    o.overwrite = 1;
    o.n_threads = 2;
    o.note = take_note;
    return o;
}

static void must(struct convert_options *o)
{
    struct err e = { 0 };
    *notes = '\0';
    if (convert_run(o, NULL, &e) != 0)
        fail_msg("%s", e.msg);
}

static void same_as_wanted(const char *what)
{
    struct map a, b;
    assert_int_equal(map_open(&a, want, NULL), 0);
    assert_int_equal(map_open(&b, out, NULL), 0);
    if (a.size != b.size || memcmp(a.data, b.data, a.size) != 0)
        fail_msg("%s: other bytes than without an interruption", what);
    map_close(&a);
    map_close(&b);
}

/* Number of files in the folder of the output, hidden ones included. */
static int n_files(void)
{
    int n = 0;
    DIR *d = opendir(in("o"));
    for (struct dirent *e; (e = readdir(d));)
        n += strcmp(e->d_name, ".") && strcmp(e->d_name, "..");
    closedir(d);
    return n;
}

static int last_layer, reports_left;

static void die_at_layer(void *user, int layer)
{
    (void)user;
    if (layer == last_layer)
        raise(SIGKILL);
}

static int die_after_reports(void *user, const char *label, uint64_t done, uint64_t total, const char *unit)
{
    (void)user, (void)label, (void)done, (void)total, (void)unit;
    if (reports_left-- == 0)
        raise(SIGKILL);
    return 0;
}

/* Run the conversion in a child process.  The child kills itself when it begins to write this layer
 * (-1: at none) or after this number of progress reports (-1: after none).  Returns 1 if it was
 * killed, 0 if it ended. */
static int killed(struct convert_options o, int layer, int reports)
{
    const struct progress p = { die_after_reports, NULL };
    int status;
    last_layer = layer;
    reports_left = reports;
    o.layer = die_at_layer;
    o.progress = reports >= 0 ? &p : NULL;
    o.note = NULL;
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        struct err e;
        _exit(convert_run(&o, NULL, &e) != 0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFSIGNALED(status)) {
        assert_int_equal(WTERMSIG(status), SIGKILL);
        return 1;
    }
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return 0;
}

static const char *oracle(const char *name)
{
    static char path[512];
    const char *root = getenv("ZSE_ORACLES");
    snprintf(path, sizeof path, "%s/models/%s", root ? root : "../shared/oracles", name);
    return access(path, R_OK) == 0 ? path : NULL;
}

struct run { const char *type, *folder; enum convert_effort effort; };
static const struct run runs[] = {
    { "mixed", NULL, CONVERT_BEST }, { "nl4", NULL, CONVERT_FAST },
    { "nl4", "hf/qwen3_next", CONVERT_BEST }, { "nl4", "hf-2026/gemma3n", CONVERT_BEST },
    { "keep", "gguf/Q4_K_M.gguf", CONVERT_GOOD },
};

static const char *source_of(const struct run *r)
{
    const char *source = r->folder ? oracle(r->folder) : tiny;
    if (!source)
        print_message("# not %s: no oracles\n", r->folder);
    return source;
}

/* Kill the conversion at each layer in turn; each run resumes where the one before was killed. */
static void conversions_killed_at_each_layer_resume(void **state)
{
    (void)state;
    /* these two runs execute the most code */
    for (size_t i = 0; i < (getenv("ZSE_SANITIZED") ? 1 : sizeof runs / sizeof *runs); i++) {
        const char *source = source_of(&runs[i]);
        if (!source)
            continue;
        struct convert_options o = options(source, want, runs[i].type, runs[i].effort);
        char said[64];
        int layer = 1;
        must(&o);
        o.output = out;
        while (killed(o, layer, -1)) {
            assert_true(n_files() >= 2 && access(out, F_OK) != 0);
            layer++;
        }
        assert_true(layer > 1);
        same_as_wanted(runs[i].type);
        assert_int_equal(n_files(), 1);
        unlink(out);
        assert_true(killed(o, layer - 1, -1));
        must(&o);
        snprintf(said, sizeof said, "m.zse: resuming at layer %d of %d", layer, layer);
        if (!strstr(notes, said))
            fail_msg("%s: '%s' does not say '%s'", runs[i].type, notes, said);
        same_as_wanted(runs[i].type);
        assert_int_equal(n_files(), 1);
        unlink(out);
    }
}

/* Kill the conversion in the middle of layers, and again after it has resumed. */
static void a_killed_conversion_ends_in_the_same_file(void **state)
{
    (void)state;
    for (size_t i = getenv("ZSE_SANITIZED") ? 1 : 0; i < 2; i++) {
        struct convert_options o = options(tiny, want, runs[i].type, runs[i].effort);
        must(&o);
        o.output = out;
        for (int after = 2; killed(o, -1, after); after += getenv("ZSE_SANITIZED") ? 45 : i ? 15 : 30) {
            (void)killed(o, -1, after / 2);
            o.n_threads = 1 + after % 2;
            must(&o);
            same_as_wanted(runs[i].type);
            assert_int_equal(n_files(), 1);
            unlink(out);
        }
        same_as_wanted(runs[i].type);
        unlink(out);
    }
}

static void flip(const char *name, long at)
{
    FILE *f = fopen(name, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, at, at < 0 ? SEEK_END : SEEK_SET), 0);
    const int c = fgetc(f);
    assert_int_equal(fseek(f, at, at < 0 ? SEEK_END : SEEK_SET), 0);
    fputc(c ^ 4, f);
    assert_int_equal(fclose(f), 0);
}

/* A damaged checkpoint cannot be resumed: a message says why, and the conversion starts again from
 * the beginning. */
static void a_damaged_checkpoint_is_not_resumed(void **state)
{
    (void)state;
    char command[256], copy[128], weights[160];
    strcpy(copy, in("copy"));
    snprintf(command, sizeof command, "cp -r %s %s", tiny, copy);
    assert_int_equal(system(command), 0);
    snprintf(weights, sizeof weights, "%s/model.safetensors", copy);
    struct convert_options o = options(copy, want, "nl4", CONVERT_GOOD);
    must(&o);
    o.output = out;
    /* the first with calibration */
    static const struct { const char *file; long at; const char *why; } damage[] = {
        { "o/.m.zse.zse-state-0", 5, "the state of its calibration is damaged" },
        { "o/.m.zse.zse-partial", 9000, "it is damaged" },
        { "o/.m.zse.zse-journal", 0, "zse-journal: " },                           { NULL, 0, "the source has changed" },
    };
    for (size_t i = 0; i < sizeof damage / sizeof *damage; i++) {
        if (i == 1) {
            o = options(copy, want, "nl4", CONVERT_FAST);
            must(&o);
            o.output = out;
        }
        assert_true(killed(o, 3, -1));
        if (damage[i].file) {
            if (strstr(damage[i].file, "state"))
                flip(in("o/.m.zse.zse-state-1"), damage[i].at);
            flip(in(damage[i].file), damage[i].at);
        } else {
            const struct timespec when[2] = { { 1, 0 }, { 1, 0 } };
            assert_int_equal(utimensat(AT_FDCWD, weights, when, 0), 0);
        }
        must(&o);
        if (!strstr(notes, damage[i].why) || strstr(notes, "resuming"))
            fail_msg("'%s' does not say '%s'", notes, damage[i].why);
        same_as_wanted(damage[i].why);
        assert_int_equal(n_files(), 1);
        unlink(out);
    }
    assert_true(killed(o, 3, -1));
    struct convert_options other = options(copy, out, "int8", CONVERT_FAST);
    must(&other);
    assert_non_null(strstr(notes, "it was made with other options"));
    assert_int_equal(n_files(), 1);
    unlink(out);
    /* with --no-resume there is no message */
    assert_true(killed(o, 3, -1));
    o.no_resume = 1;
    must(&o);
    assert_string_equal(notes, "");
    same_as_wanted("--no-resume");
    assert_int_equal(n_files(), 1);
    unlink(out);
    /* killed before the first checkpoint: the next run starts from the beginning, and no other
     * files are left */
    o.no_resume = 0;
    o.checkpoint_s = 1000;
    assert_true(killed(o, 3, -1));
    assert_int_equal(n_files(), 1);
    must(&o);
    assert_string_equal(notes, "");
    same_as_wanted("no checkpoint");
    assert_int_equal(n_files(), 1);
    unlink(out);
}

static int stop_after_reports(void *user, const char *label, uint64_t done, uint64_t total, const char *unit)
{
    (void)user, (void)label, (void)done, (void)total, (void)unit;
    return reports_left-- <= 0;
}

/* A cancelled conversion (Ctrl-C) also keeps its finished layers, and says so. */
static void a_cancelled_conversion_can_be_resumed(void **state)
{
    (void)state;
    const struct progress p = { stop_after_reports, NULL };
    struct convert_options o = options(tiny, want, "nl4", CONVERT_FAST);
    struct err e;
    must(&o);
    o.output = out;
    o.progress = &p;
    reports_left = 20;
    *notes = '\0';
    assert_int_equal(convert_run(&o, NULL, &e), -1);
    assert_int_equal(e.code, ERR_CANCELLED);
    assert_non_null(strstr(notes, "what is done is kept; the same command resumes at layer "));
    o.progress = NULL;
    must(&o);
    assert_non_null(strstr(notes, "resuming at layer "));
    same_as_wanted("cancelled");
    assert_int_equal(n_files(), 1);
    unlink(out);
}

/* While another process writes (it holds the lock), its partial files are left alone, and a second
 * conversion to the same output runs without them. */
static void a_second_conversion_leaves_the_first_alone(void **state)
{
    (void)state;
    struct convert_options o = options(tiny, want, "nl4", CONVERT_FAST);
    must(&o);
    o.output = out;
    assert_true(killed(o, 3, -1));
    const int before = n_files(), fd = open(in("o/.m.zse.zse-partial"), O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0);
    must(&o);
    same_as_wanted("beside another");
    assert_int_equal(n_files(), before + 1);
    assert_string_equal(notes, "");
    close(fd);
    unlink(out);
    must(&o);
    assert_non_null(strstr(notes, "resuming at layer "));
    same_as_wanted("after another");
    assert_int_equal(n_files(), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conversions_killed_at_each_layer_resume),
        cmocka_unit_test(a_killed_conversion_ends_in_the_same_file),
        cmocka_unit_test(a_damaged_checkpoint_is_not_resumed),
        cmocka_unit_test(a_cancelled_conversion_can_be_resumed),
        cmocka_unit_test(a_second_conversion_leaves_the_first_alone),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
