/* resume.c - make checkpoints of a conversion and resume from them. */
#include "libcommon/convert/resume.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <zlib.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/file.h"
#include "libcommon/base/json.h"

enum { MAX_JOURNAL = 256 << 20, FORMAT = 1 };

struct resume {
    struct conversion *cv;
    struct calibration *c;          /* NULL: no state is carried from layer to layer */
    int off;                        /* 1: make no checkpoints */
    /* 1: a checkpoint exists: the file is parked, and the journal refers to it */
    int kept;
    int layer;                      /* layers in the last checkpoint */
    double last_s;
    char *journal, *state[2];       /* paths of the journal and of the two state files */
    int slot;                       /* index of the next state file */
    json_t *source, *plan;          /* must be equal in a resumed run; source NULL: not known yet */
};

/* The layer to name in messages, counted from 1, at most the number of layers. */
static int next_layer(const struct resume *r)
{
    return r->layer + 1 < r->cv->config.n_layers ? r->layer + 1 : r->cv->config.n_layers;
}

/* ---- identity of source, plan and program ---- */

/* Describe this build of the program, because another build may round differently. */
static json_t *program(void)
{
    struct stat st;
    if (stat("/proc/self/exe", &st) != 0)
        return json_string(ZSE_VERSION);
    return json_sprintf("%s %lld %lld.%09ld", ZSE_VERSION, (long long)st.st_size, (long long)st.st_mtim.tv_sec,
                        st.st_mtim.tv_nsec);
}

static int describe_source(struct resume *r, struct err *e)
{
    char key[33];
    if (source_key(r->cv->source, key, e))
        return -1;
    r->source = json_pack("{s:s, s:I}", "key", key, "stamp", (json_int_t)source_stamp(r->cv->source));
    return r->source ? 0 : err_nomem(e, "the journal of the conversion");
}

/* Describe the types and all options on which codes depend.  Activation groups, which may still
 * change, are stored with the written tensors instead. */
static int describe_plan(struct resume *r, struct err *e)
{
    const struct conversion *cv = r->cv;
    const size_t n_ids = r->c ? (size_t)r->c->n_windows * (size_t)r->c->window_len * sizeof *r->c->ids : 0;
    json_t *list = json_array();
    for (int i = 0; list && i < cv->n_recipes; i++) {
        const struct recipe *p = &cv->recipes[i];
        json_array_append_new(list, json_pack("[s, s, i, i, i, I]", p->spec->name, p->source->name, (int)p->make,
                                              (int)p->m.type, p->m.group_size, (json_int_t)p->m.size));
    }
    r->plan = json_pack("{s:o, s:i, s:i, s:i, s:i, s:i, s:I, s:s}", "tensors", list,
                        "effort", (int)cv->effort,
                        "ternary", (int)cv->o->ternary, "kind", (int)cv->report->type.kind, "type",
                        (int)cv->report->type.qtype, "windows", r->c ? r->c->n_windows : 0,
                        "tokens", (json_int_t)(r->c ? crc32_z(0, (const Bytef *)r->c->ids, n_ids) : 0), "text",
                        cv->o->calibration ? cv->o->calibration : "");
    return r->plan ? 0 : err_nomem(e, "the journal of the conversion");
}

/* ---- the state of calibration ---- */

enum { MOST_BLOCKS = 4 };
struct state_block { void *data; size_t size; };

/* List the memory blocks of the state: the input of the next layer, and other data kept between
 * layers. */
static int state_blocks(const struct resume *r, struct state_block out[MOST_BLOCKS])
{
    if (!r->c || r->cv->effort == CONVERT_FAST)
        return 0;
    const size_t size = (size_t)r->c->n_windows * (size_t)r->c->window_len * (size_t)r->cv->config.hidden_size *
                        sizeof(float), kept = (size_t)r->c->n_windows * r->c->kept_bytes;
    const struct state_block all[MOST_BLOCKS] = { { r->c->x, size }, { r->c->xq, size }, { r->c->kept, kept },
                                                  { r->c->kept_q, kept } };
    int n = 0;
    for (int i = 0; i < MOST_BLOCKS; i++)
        if (all[i].data)
            out[n++] = all[i];
    return n;
}

static int write_all(int fd, const void *data, size_t n)
{
    for (const char *p = data; n;) {
        const ssize_t put = write(fd, p, n);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return -1;
        p += put;
        n -= (size_t)put;
    }
    return 0;
}

/* Write the state; *crc: the checksum of all blocks.  -1: there is no space, or writing failed. */
static int write_state(const struct resume *r, uint32_t *crc)
{
    struct state_block p[MOST_BLOCKS];
    const int n = state_blocks(r, p), fd = n ? open(r->state[r->slot],
                                                    O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW,
                                              0600) : -1;
    struct statvfs v;
    *crc = 0;
    if (n == 0)
        return 0;
    const uint64_t left = r->cv->total - r->cv->done;
    uint64_t size = 0;
    for (int i = 0; i < n; i++)
        size += p[i].size;
    /* leave space for the model itself */
    int rc = fd >= 0 && fstatvfs(fd, &v) == 0 && (uint64_t)v.f_bavail * v.f_frsize > size + left ? 0 : -1;
    for (int i = 0; i < n && rc == 0; i++) {
        *crc = (uint32_t)crc32_z(*crc, (const Bytef *)p[i].data, p[i].size);
        rc = write_all(fd, p[i].data, p[i].size);
    }
    if (rc == 0)
        rc = fsync(fd);
    if (fd >= 0 && close(fd) != 0)
        rc = -1;
    if (rc != 0)
        unlink(r->state[r->slot]);
    return rc;
}

/* Compute the state's checksum, and with `keep` read the state into memory. */
static int read_state(const struct resume *r, int slot, int keep, uint32_t *crc)
{
    struct state_block p[MOST_BLOCKS];
    char buffer[1 << 16];
    const int n = state_blocks(r, p), fd = n ? open(r->state[slot], O_RDONLY | O_CLOEXEC | O_NOFOLLOW) : -1;
    int rc = n == 0 || fd >= 0 ? 0 : -1;
    *crc = 0;
    for (int i = 0; i < n && rc == 0; i++)
        for (size_t at = 0; at < p[i].size && rc == 0;) {
            const size_t left = p[i].size - at;
            char *to = keep ? (char *)p[i].data + at : buffer;
            const ssize_t got = read(fd, to, keep || left < sizeof buffer ? left : sizeof buffer);
            if (got > 0)
                *crc = (uint32_t)crc32_z(*crc, (const Bytef *)to, (size_t)got);
            rc = got > 0 || (got < 0 && errno == EINTR) ? 0 : -1;
            at += got > 0 ? (size_t)got : 0;
        }
    if (fd >= 0)
        close(fd);
    return rc;
}

/* ---- the journal ---- */

static json_t *tensors_json(const struct conversion *cv, int n_done)
{
    json_t *list = json_array();
    for (int i = 0; list && i < n_done; i++) {
        const struct recipe *p = &cv->recipes[i];
        json_array_append_new(list, json_pack("[i, b, b, f, f]", p->m.act_group, p->report->exact, p->scaled,
                                              p->report->max_error, p->report->rel_error));
    }
    return list;
}

/* List the layer_calib.stored of all layers. */
static json_t *stored_json(const struct conversion *cv)
{
    json_t *list = json_array();
    for (int i = 0; list && cv->calib && i < cv->config.n_layers; i++)
        json_array_append_new(list, json_integer(cv->calib[i].stored));
    return list;
}

static int write_journal(struct resume *r, const struct zwriter *w, int n_done, uint32_t crc)
{
    struct err ignored;
    struct atomic_file f;
    json_t *j = json_pack("{s:i, s:o, s:O, s:O, s:o, s:o, s:o, s:i, s:I, s:i, s:i}", "zse_conversion", FORMAT, "program",
                          program(), "source", r->source, "plan", r->plan, "tensors", tensors_json(r->cv, n_done),
                          "channel_scales", stored_json(r->cv),
                          "groups", json_deep_copy(zwriter_groups(w)), "state", r->slot, "state_crc", (json_int_t)crc,
                          "damped", r->cv->report->n_damped, "layers", r->layer);
    char *text = j ? json_dumps(j, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;
    int rc = text ? atomic_open(&f, r->journal, &ignored) : -1;
    if (rc == 0 && (rc = atomic_write(&f, text, strlen(text), &ignored)) == 0)
        rc = atomic_commit(&f, &ignored);
    else if (text)
        atomic_abort(&f);
    free(text);
    json_decref(j);
    return rc;
}

static void forget(const struct resume *r)
{
    struct atomic_file f;
    struct err ignored;
    /* opening removes the remains of a file that a crash has left */
    if (atomic_open(&f, r->journal, &ignored) == 0)
        atomic_abort(&f);
    unlink(r->journal);
    unlink(r->state[0]);
    unlink(r->state[1]);
}

/* Restore one tensor from the journal. */
static int restore_tensor(struct recipe *p, const json_t *row, struct err *e)
{
    int act_group, exact, scaled;
    if (json_unpack((json_t *)row, "[i, b, b, F, F]", &act_group, &exact, &scaled, &p->report->max_error,
                    &p->report->rel_error) != 0)
        return err_set(e, ERR_FORMAT, "its journal has something else in the place of a tensor");
    p->report->exact = exact;
    p->scaled = scaled;
    if (p->make == MAKE_VECTOR || act_group == p->m.act_group)
        return 0;
    return mat_init(&p->m, p->m.type, p->m.group_size, act_group, p->spec->rows, p->spec->cols, e);
}

/* Read the journal, and check that it is for this source, plan and program.  Returns NULL if not,
 * with the reason in *e, worded as the end of a sentence. */
static json_t *read_journal(struct resume *r, struct err *e)
{
    size_t size;
    char *text = file_read(r->journal, MAX_JOURNAL, &size, e);
    json_t *j = text ? js_parse(r->journal, text, size, e) : NULL, *mine = program();
    const char *different = NULL;
    free(text);
    if (!j) {
        json_decref(mine);
        return NULL;
    }
    if (json_integer_value(json_object_get(j, "zse_conversion")) != FORMAT ||
        !json_equal(json_object_get(j, "program"), mine))
        different = "another build of this program made it";
    else if (!json_equal(json_object_get(j, "source"), r->source))
        different = "the source has changed";
    else if (!json_equal(json_object_get(j, "plan"), r->plan))
        different = "it was made with other options";
    json_decref(mine);
    if (!different)
        return j;
    err_set(e, ERR_FORMAT, "%s", different);
    json_decref(j);
    return NULL;
}

/* ---- resuming ---- */

/* Restore the lists, positions and checksums of the file's contents in w, and the recipes of the
 * tensors. */
static int replay(struct resume *r, struct zwriter *w, const json_t *journal, int *n_done, struct err *e)
{
    const json_t *rows = json_object_get(journal, "tensors"), *stored = json_object_get(journal, "channel_scales");
    const int n = (int)json_array_size(rows);
    int group = -2, seen_layers = 0;
    for (int i = 0; r->cv->calib && i < r->cv->config.n_layers; i++)
        r->cv->calib[i].stored = (unsigned)json_integer_value(json_array_get(stored, (size_t)i));
    if (n < 1 || n >= r->cv->n_recipes)
        return err_set(e, ERR_FORMAT, "its journal is damaged");
    for (int i = 0; i < n; i++) {
        struct recipe *p = &r->cv->recipes[i];
        const int layer = p->spec->layer;
        if (restore_tensor(p, json_array_get(rows, (size_t)i), e))
            return -1;
        if (layer != group && (conversion_group(r->cv, w, layer, seen_layers, e) ||
                               channel_scale_write(r->cv, w, layer, 1, e)))
            return -1;
        group = layer;
        seen_layers |= layer >= 0;
        if (conversion_begin_tensor(w, p, e) || zwriter_skip(w, p->m.size, e))
            return -1;
        r->cv->done += p->m.size;
    }
    if (zwriter_replayed(w, e))
        return -1;
    if (!json_equal(zwriter_groups(w), json_object_get(journal, "groups")))
        return err_set(e, ERR_FORMAT, "it is damaged");
    *n_done = n;
    return 0;
}

/* Bring w and the state to the point that the journal describes.  Returns 1; 0 if the conversion
 * has to start over, with the reason in *e, worded as the end of a sentence. */
static int take_up(struct resume *r, struct zwriter *w, int *n_done, struct err *e)
{
    int64_t slot = 0, crc = 0, damped = 0, layers = 0;
    uint32_t found = 0;
    json_t *journal = describe_source(r, e) == 0 ? read_journal(r, e) : NULL;
    if (!journal)
        return 0;
    int rc = js_int(journal, "state", 0, 1, &slot, e) || js_int(journal, "state_crc", 0, UINT32_MAX, &crc, e) ||
             js_int(journal, "damped", 0, INT32_MAX, &damped, e) || js_int(journal, "layers", 0, INT32_MAX, &layers, e);
    if (rc == 0 && (read_state(r, (int)slot, 0, &found) != 0 || found != (uint32_t)crc))
        rc = err_set(e, ERR_FORMAT, "the state of its calibration is damaged");
    if (rc == 0)
        rc = replay(r, w, journal, n_done, e);
    json_decref(journal);
    if (rc != 0)
        return 0;
    r->slot = (int)slot;
    r->layer = (int)layers;
    r->cv->report->n_damped = (int)damped;
    return 1;
}

static int names(struct resume *r, struct err *e)
{
    char *parked = atomic_parked_name(r->cv->o->output);
    const int n = parked ? (int)(strlen(parked) - strlen("partial")) : 0;
    const int ok = parked && asprintf(&r->journal, "%.*sjournal", n, parked) > 0 &&
                   asprintf(&r->state[0], "%.*sstate-0", n, parked) > 0 &&
                   asprintf(&r->state[1], "%.*sstate-1", n, parked) > 0;
    free(parked);
    return ok ? 0 : err_nomem(e, r->cv->o->output);
}

/* Undo the changes of replay() to recipes. */
static void begin_again(struct resume *r, const struct mat *before)
{
    for (int i = 0; i < r->cv->n_recipes; i++) {
        r->cv->recipes[i].m = before[i];
        r->cv->recipes[i].scaled = 0;
    }
    for (int i = 0; r->cv->calib && i < r->cv->config.n_layers; i++)
        r->cv->calib[i].stored = 0;
    r->cv->done = 0;
}

/* Resume the parked file *w, or remove it. */
static int go_on(struct resume *r, struct zwriter **w, int *n_done, struct err *e)
{
    struct err why = { 0 };
    struct mat *before = calloc((size_t)r->cv->n_recipes + 1, sizeof *before);
    if (!before)
        return err_nomem(e, "the plan");
    for (int i = 0; i < r->cv->n_recipes; i++)
        before[i] = r->cv->recipes[i].m;
    int rc = 0;
    uint32_t crc;
    if (!r->off && take_up(r, *w, n_done, &why)) {
        r->kept = 1;
        if (read_state(r, r->slot, 1, &crc) != 0)
            rc = err_set(e, ERR_IO, "%s: cannot be read any more", r->state[r->slot]);
        r->slot = !r->slot;
        conversion_note(r->cv, "%s: resuming at layer %d of %d", r->cv->o->output, next_layer(r),
                        r->cv->config.n_layers);
    } else {
        if (!r->off)
            conversion_note(r->cv, "%s: an interrupted conversion cannot be resumed (%s); starting anew",
                            r->cv->o->output,
                     why.msg);
        zwriter_abort(*w);
        *w = NULL;
        *n_done = 0;
        forget(r);
        begin_again(r, before);
    }
    free(before);
    return rc;
}

struct resume *resume_open(struct conversion *cv, struct calibration *c, struct zwriter **w, int *n_done, struct err *e)
{
    struct resume *r = calloc(1, sizeof *r);
    *w = NULL;
    *n_done = 0;
    if (!r) {
        err_nomem(e, "a journal");
        return NULL;
    }
    r->cv = cv;
    r->c = c;
    r->off = cv->o->no_resume || cv->o->synthetic || (cv->o->open && cv->o->open->arriving);
    if (names(r, e) || describe_plan(r, e))
        goto fail;
    const int found = zwriter_resume(w, cv->o->output, e);
    if (found < 0 || (found == 1 && go_on(r, w, n_done, e)))
        goto fail;
    r->off |= found == 2;                   /* another process is converting to this name */
    if (found == 0)
        forget(r);                          /* the file was committed before the process died */
    if (!*w && !(*w = zwriter_open(cv->o->output, e)))
        goto fail;
    r->last_s = clock_s();
    return r;
fail:
    resume_close(r, *w, -1, e);
    *w = NULL;
    return NULL;
}

/* ---- checkpoints ---- */

int resume_checkpoint(struct resume *r, struct zwriter *w, int n_done, struct err *e)
{
    uint32_t crc;
    if (r->off || n_done == 0 || clock_s() - r->last_s < r->cv->o->checkpoint_s)
        return 0;
    if (!r->source && (describe_source(r, e) || source_check(r->cv->source, NULL, e)))
        return -1;
    const int parked = zwriter_park(w, e);
    if (parked < 0)
        return -1;
    r->off = parked == 1;
    const int layer = r->cv->recipes[n_done - 1].spec->layer, before = r->layer;
    r->layer = layer >= 0 ? layer + 1 : before;
    if (parked == 0 && write_state(r, &crc) == 0 && write_journal(r, w, n_done, crc) == 0) {
        r->kept = 1;
        r->slot = !r->slot;
    } else {
        r->layer = before;                  /* the previous checkpoint stays valid */
    }
    r->last_s = clock_s();
    return 0;
}

void resume_close(struct resume *r, struct zwriter *w, int rc, const struct err *e)
{
    const int keep = rc != 0 && r && r->kept && (e->code == ERR_CANCELLED || e->code == ERR_IO ||
                                                 e->code == ERR_MEMORY);
    if (keep && w) {
        conversion_note(r->cv, "%s: what is done is kept; the same command resumes at layer %d of %d", r->cv->o->output,
                 next_layer(r), r->cv->config.n_layers);
        zwriter_leave(w);
    } else {
        zwriter_abort(w);
        if (r && r->journal && r->kept)
            forget(r);
    }
    if (!r)
        return;
    free(r->journal);
    free(r->state[0]);
    free(r->state[1]);
    json_decref(r->source);
    json_decref(r->plan);
    free(r);
}
