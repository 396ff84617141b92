/* model_verify.c - compare the checksums of a model file once after it changed. */
#include "cmd/model_verify.h"

#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "cmd/conv_cache.h"
#include "libcommon/base/file.h"
#include "libcommon/base/thread.h"

enum { MONTH = 30 * 24 * 3600, LINE = 128 };

struct model_verify {
    struct zfile *z;
    char *record;                   /* path of the record; NULL: there is no folder for it */
    int in_cache;
    int at;                         /* how far the check has come, for zfile_verify_from() */
    int damaged; struct err damage;
    _Atomic int stop;
    pthread_t thread; int running;
};

int verify_mode_parse(const char *name, enum verify_mode *mode)
{
    static const char *const names[] = { [VERIFY_AUTO] = "auto", [VERIFY_FIRST] = "first", [VERIFY_NEVER] = "never" };
    for (int i = VERIFY_AUTO; i <= VERIFY_NEVER; i++)
        if (strcmp(name, names[i]) == 0) {
            *mode = (enum verify_mode)i;
            return 0;
        }
    return -1;
}

/* ---- the record of the last check ---- */

/* Write the record's line of text: the state of the file, and the result of its last check. */
static void describe(const struct zfile *z, const char *outcome, char line[LINE])
{
    const struct map *m = zfile_map((struct zfile *)(uintptr_t)z);
    snprintf(line, LINE, "%zu %" PRId64 " %" PRIu64 " %s\n", m->size, m->changed_ns, m->ino, outcome);
}

static int says(const struct model_verify *v, const char *outcome)
{
    char want[LINE];
    struct err ignored;
    char *text = v->record ? file_read(v->record, LINE, NULL, &ignored) : NULL;
    describe(v->z, outcome, want);
    const int same = text && strcmp(text, want) == 0;
    free(text);
    return same;
}

static int is_recent(const struct model_verify *v)
{
    struct stat st;
    return v->record && stat(v->record, &st) == 0 && time(NULL) - st.st_mtime < MONTH;
}

/* Write the record.  Failures are ignored: without a record the file is checked again. */
static void remember(const struct model_verify *v, const char *outcome)
{
    char line[LINE];
    struct atomic_file f;
    struct err ignored;
    const struct map *m = zfile_map(v->z);
    free(conv_cache_record(zfile_path(v->z), m->dev, m->ino, 1, &ignored));      /* makes the folder */
    if (!v->record || atomic_open(&f, v->record, &ignored) != 0)
        return;
    describe(v->z, outcome, line);
    if (atomic_write(&f, line, strlen(line), &ignored) == 0)
        atomic_commit(&f, &ignored);
    else
        atomic_abort(&f);
}

/* ---- the check ---- */

static void end_with_damage(struct model_verify *v, const struct err *e)
{
    const char *path = zfile_path(v->z);
    char *source = NULL;
    v->damage = *e;
    v->damaged = 1;
    if (v->in_cache && asprintf(&source, "%s.source", path) >= 0) {
        unlink(path);
        unlink(source);
        free(source);
    } else {
        remember(v, "damaged");
    }
    strncat(v->damage.msg, v->in_cache ? "; this conversion is damaged and was removed; the next run converts again"
                                       : "; the file is damaged",
            sizeof v->damage.msg - strlen(v->damage.msg) - 1);
    zfile_set_damage(v->z, &v->damage);
}

/* Check until done or until v->stop is set. */
static void check(struct model_verify *v)
{
    struct err e, changed;
    const int rc = zfile_verify_from(v->z, &v->at, &v->stop, &e);
    if (rc < 0 && (e.code != ERR_FORMAT || zfile_check(v->z, &changed) != 0))
        return;                             /* the file has changed, which the engine itself reports */
    if (rc < 0)
        end_with_damage(v, &e);
    else if (rc == 1)
        remember(v, "verified");
}

/* Let this thread run only when the CPU and the disk are otherwise idle. */
static void step_back(void)
{
    enum { IOPRIO_WHO_PROCESS = 1, IOPRIO_CLASS_IDLE = 3 << 13 };
    sched_setscheduler(0, SCHED_IDLE, &(struct sched_param){ 0 });
#ifdef SYS_ioprio_set
    syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, IOPRIO_CLASS_IDLE);
#endif
}

static void *run(void *arg)
{
    struct model_verify *v = arg;
    const struct timespec wait = { 0, 20000000 };
    step_back();
    while (!zfile_is_populated(v->z) && !v->stop)
        nanosleep(&wait, NULL);
    check(v);
    return NULL;
}

static void join(struct model_verify *v)
{
    v->stop = 1;
    if (v->running)
        pthread_join(v->thread, NULL);
    v->running = 0;
}

int model_verify_start(struct model_verify **out, struct zfile *z, enum verify_mode mode, int in_cache,
                       int in_background,
                 struct err *e)
{
    struct model_verify *v = *out = NULL;
    const struct map *m = zfile_map(z);
    struct err ignored;
    if (mode == VERIFY_NEVER || (mode == VERIFY_AUTO && !in_background))
        return 0;
    if (!(v = calloc(1, sizeof *v)))
        return err_nomem(e, "checking the model");
    v->z = z;
    v->in_cache = in_cache;
    v->record = conv_cache_record(zfile_path(z), m->dev, m->ino, 0, &ignored);
    int rc = 0;
    if (says(v, "verified") && is_recent(v)) {
        model_verify_stop(v);
        return 0;
    }
    if (mode == VERIFY_FIRST || says(v, "damaged"))
        rc = model_verify_finish(v, e);
    else
        v->running = thread_start(&v->thread, run, v) == 0;
    if (rc == 0)
        *out = v;
    else
        model_verify_stop(v);
    return rc;
}

int model_verify_finish(struct model_verify *v, struct err *e)
{
    if (!v)
        return 0;
    join(v);
    v->stop = 0;
    if (!v->damaged)
        check(v);
    if (v->damaged)
        *e = v->damage;
    return v->damaged ? -1 : 0;
}

void model_verify_stop(struct model_verify *v)
{
    if (!v)
        return;
    join(v);
    free(v->record);
    free(v);
}
