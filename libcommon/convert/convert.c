#include "libcommon/convert/convert.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libcommon/base/clock.h"
#include "libcommon/convert/assemble.h"
#include "libcommon/convert/big.h"
#include "libcommon/convert/describe.h"
#include "libcommon/convert/job.h"
#include "libcommon/convert/resume.h"
#include "libcommon/convert/synthetic.h"
#include "libcommon/format/zfile.h"
#include "libcommon/kernels/kernels.h"
#include "libcommon/quant/ggml.h"

void convert_defaults(struct convert_options *o)
{
    *o = (struct convert_options){ .type = { CONVERT_TYPE, QT_NL4 }, .effort = CONVERT_GOOD, .keep_grid = 1,
                                   .checkpoint_s = 30 };
}

void convert_report_release(struct convert_report *r)
{
    for (int i = 0; i < r->n_tensors; i++) {
        free(r->tensors[i].name);
        free(r->tensors[i].source_name);
    }
    free(r->tensors);
    r->tensors = NULL;
    r->n_tensors = 0;
}

void job_note(const struct job *j, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    if (!j->o->note)
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    j->o->note(j->o->note_user, text);
}

/* ---- refusals before any work ---- */

static int same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* Is out one of the files of the folder? */
static int in_folder(const char *folder, const struct stat *out)
{
    DIR *d = opendir(folder);
    int found = 0;
    for (struct dirent *entry; d && !found && (entry = readdir(d));) {
        struct stat s;
        found = fstatat(dirfd(d), entry->d_name, &s, 0) == 0 && S_ISREG(s.st_mode) && same_file(&s, out);
        size_t n = strlen(entry->d_name);
        if (found && n > 4 && strcmp(entry->d_name + n - 4, ".zse") == 0)
            found = 0;                      /* an earlier result kept beside its source */
    }
    if (d)
        closedir(d);
    return found;
}

static int check_output(const struct convert_options *o, struct err *e)
{
    struct stat in, out;
    if (strcmp(o->output, "-") == 0)
        return err_set(e, ERR_UNSUPPORTED, "a model cannot be written to standard output: its header is filled in last; name a file");
    if (stat(o->output, &out))
        return errno == ENOENT ? 0 : err_sys(e, "%s", o->output);
    if (S_ISDIR(out.st_mode))
        return err_set(e, ERR_IO, "%s: is a folder, expected the name of a file", o->output);
    if (!S_ISREG(out.st_mode))
        return err_set(e, ERR_IO, "%s: is no regular file", o->output);
    if (!o->synthetic && stat(o->source, &in) == 0 &&
        (same_file(&in, &out) || (S_ISDIR(in.st_mode) && in_folder(o->source, &out))))
        return err_set(e, ERR_IO, "%s: is (part of) the source %s and would be overwritten", o->output, o->source);
    return 0;
}

static int check_options(const struct convert_options *o, struct err *e)
{
    if (o->kernels && !kernels_pick(o->kernels, e))
        return -1;
    for (int i = 0; i < N_PARTS; i++)
        if (o->part[i].set && o->part[i].type.kind == CONVERT_MIXED && o->type.kind != CONVERT_MIXED)
            return err_set(e, ERR_UNSUPPORTED, "%s=mixed: mixed weighs all parts of a model against each other, so it can only be the type of the whole",
                           convert_part_name((enum convert_part)i));
    for (int i = 0; i < o->n_rules; i++)
        if (o->rules[i].type.kind == CONVERT_MIXED && o->type.kind != CONVERT_MIXED)
            return err_set(e, ERR_UNSUPPORTED, "%s: mixed weighs all parts of a model against each other, so it can only be the type of the whole", o->rules[i].text);
    if (o->synthetic && (o->type.kind == CONVERT_MIXED || o->calibration))
        return err_set(e, ERR_UNSUPPORTED, "%s: random weights have no errors to weigh against each other, so there is no mixed and no calibration", o->synthetic);
    if (!o->group_size)
        return 0;
    const struct qtype_info *t = o->type.kind == CONVERT_TYPE ? qtype_info(o->type.qtype) : NULL;
    unsigned sizes = t && !t->is_float ? t->group_sizes : 0;
    if ((sizes & (sizes - 1)) == 0)
        return err_set(e, ERR_UNSUPPORTED, "a group size can be chosen for int4, int8 and t2, not for %s",
                       plan_type_name(o->type));
    if (o->group_size == -1 ? t->type != QT_I8 : o->group_size < 1 || (o->group_size & (o->group_size - 1)) ||
        !((unsigned)o->group_size & sizes))
        return err_set(e, ERR_UNSUPPORTED, "%s has groups of 32, 64%s", plan_type_name(o->type),
                       t->type == QT_I8 ? " or 128 (or one scale a row)" : sizes & 256 ? ", 128 or 256" : " or 128");
    return 0;
}

/* ---- what is in the source ---- */

/* Elements of the source tensor that this one uses, in its bytes. */
static uint64_t share_of(const struct source_tensor *t, const struct weight_spec *s)
{
    double n = 1;
    for (int i = 0; i < t->n_dims; i++)
        n *= (double)t->dim[i];
    return n > 0 ? (uint64_t)((double)source_bytes(t) * ((double)s->rows * (double)s->cols / n) + 0.5) : 0;
}

static int open_files(struct job *j, int *n_specs, struct err *e)
{
    if (source_detect(j->o->source, e) == SOURCE_ZSE)
        return err_set(e, ERR_UNSUPPORTED, "%s: is a .zse file already; convert from its source to get another type",
                       j->o->source);
    j->source = source_open_with(j->o->source, j->o->open, e);
    if (!j->source)
        return -1;
    if (!j->source->config || j->source->n_tensors == 0)
        return err_set(e, ERR_FORMAT, "%s: has no %s, so there is no model to convert", j->source->path,
                       j->source->config ? "weights" : "configuration");
    if (config_parse(&j->config, j->source->config, e))
        return err_prefix(e, "%s", j->source->path);
    if (source_weights(&j->config, j->source, &j->specs, n_specs, e)) {
        j->specs = NULL;
        return -1;
    }
    return 0;
}

static int open_source(struct job *j, struct err *e)
{
    int n_specs;
    if (j->o->synthetic ? synthetic_open(j, &n_specs, e) : open_files(j, &n_specs, e))
        return -1;
    j->plans = calloc((size_t)n_specs + 1, sizeof *j->plans);
    if (!j->plans)
        return err_nomem(e, "the plan");
    int head = 0;
    for (int i = 0; i < n_specs; i++) {
        const struct weight_spec *s = &j->specs[i];
        const struct source_tensor *t = j->o->synthetic ? &j->source->tensors[i] : source_find(j->source, s->source);
        head |= strcmp(s->name, "head.weight") == 0;
        if (!t && s->optional)
            continue;
        if (!t)
            return err_set(e, ERR_FORMAT, "%s: tensor '%s' is missing", j->source->path, s->source);
        j->plans[j->n_plans++] = (struct plan){ .spec = s, .source = t, .source_bytes = share_of(t, s) };
    }
    j->config.tied = !head;
    return 0;
}

static int open_report(struct job *j, struct err *e)
{
    struct convert_report *r = j->report;
    snprintf(r->arch, sizeof r->arch, "%s", j->config.arch);
    r->tensors = calloc((size_t)j->n_plans + 1, sizeof *r->tensors);
    if (!r->tensors)
        return err_nomem(e, "the report");
    for (int i = 0; i < j->n_plans; i++) {
        struct plan *p = &j->plans[i];
        struct convert_tensor *t = &r->tensors[i];
        r->n_tensors = i + 1;
        *t = (struct convert_tensor){ .name = strdup(p->spec->name), .source_name = strdup(p->source->name),
                                      .source_type = p->source->type,
                                      .rows = p->spec->rows, .cols = p->spec->cols, .vector = p->spec->is_vector,
                                      .source_bytes = p->source_bytes };
        if (!t->name || !t->source_name)
            return err_nomem(e, "the report");
        if (j->o->synthetic) {
            t->source_type = -1;
            t->source_bytes = 0;
        }
        p->report = t;
        r->n_params += (uint64_t)t->rows * (uint64_t)t->cols;
        r->bytes_in += t->source_bytes;
    }
    return 0;
}

/* What is exact for certain, before anything is encoded. */
static void foresee_exact(struct job *j)
{
    for (int i = 0; i < j->n_plans; i++) {
        const struct plan *p = &j->plans[i];
        int from = p->source->type, to = p->m.type;
        p->report->exact = p->make == MAKE_COPY ||
                           (p->make == MAKE_FLOAT &&
                            (to == QT_F32 || (to == QT_F16 && from == GGML_F16) ||
                             (to == QT_BF16 && from == GGML_BF16)));
    }
}

/* Types and sizes, as finally planned. */
static void fill_report(struct job *j)
{
    struct convert_report *r = j->report;
    r->weight_bytes = j->total = plan_bytes(j);
    r->effort = j->effort;
    r->n_inexact = r->n_requantized = 0;
    for (int i = 0; i < j->n_plans; i++) {
        struct plan *p = &j->plans[i];
        struct convert_tensor *t = p->report;
        int quantized = !p->m.type || !qtype_info(p->m.type)->is_float;
        t->type = p->m.type;
        t->group_size = quantized && p->make != MAKE_VECTOR ? p->m.group_size : 0;
        t->act_group = p->make == MAKE_VECTOR ? 0 : p->m.act_group;
        t->bytes = p->m.size;
        int s = p->source->type;
        r->n_requantized += (p->make == MAKE_QUANT || p->make == MAKE_TERNARY) && !plan_is_float(s);
        r->n_inexact += p->make == MAKE_NEAR && !t->exact;
    }
}

/* ---- writing ---- */

static int sink(void *user, const void *data, size_t n, struct err *e) { return zwriter_data(user, data, n, e); }

int job_begin_tensor(struct zwriter *w, const struct plan *p, struct err *e)
{
    const struct weight_spec *s = p->spec;
    const struct source_tensor *t = p->source;
    struct zfile_tensor z = { .name = s->name, .source_name = t->name, .map = s->map, .tiled = p->make != MAKE_VECTOR,
                              .page = s->first_of_expert, .m = p->m };
    if (!plan_is_float(t->type)) {
        z.source_type = ggml_type_info(t->type)->name;
        z.grid_kept = p->make == MAKE_COPY;
    }
    z.n_dims = s->is_vector && s->rows == 1 ? 1 : 2;
    z.dim[0] = z.n_dims == 1 ? s->cols : s->rows;
    z.dim[1] = z.n_dims == 1 ? 0 : s->cols;
    z.source_rows = 1;
    z.source_cols = t->n_dims ? t->dim[t->n_dims - 1] : 1;
    for (int i = 0; i < t->n_dims - 1; i++)
        z.source_rows *= t->dim[i];
    return zwriter_tensor(w, &z, e);
}

/* From tensor n_done on: those before it are in the file already. */
static int write_tensors(struct job *j, struct zwriter *w, struct calibration *c, struct resume *resume, int n_done,
                         struct err *e)
{
    int group = n_done ? j->plans[n_done - 1].spec->layer : -2, expert = -1, seen_layers = 0;       /* layer of the group that is open; expert that is written */
    for (int i = 0; i < n_done; i++)
        seen_layers |= j->plans[i].spec->layer >= 0;
    for (int i = n_done; i < j->n_plans; i++) {
        struct plan *p = &j->plans[i];
        int layer = p->spec->layer;
        if (layer != group) {
            if (resume_checkpoint(resume, w, i, e))
                return -1;
            if (group >= 0)
                calibrate_forget_experts(j, group);
            if (layer >= 0 && j->effort != CONVERT_FAST &&
                (j->effort == CONVERT_BEST ? best_layer : good_layer)(j, c, layer, e))
                return -1;
            if (layer < 0 && seen_layers && j->effort != CONVERT_FAST && !j->config.tied && calibrate_head(j, c, e))
                return -1;
            if (zwriter_group(w, layer >= 0 ? "layer" : seen_layers ? "head" : "embed", layer, e))
                return -1;
            if (layer >= 0 && j->o->layer)
                j->o->layer(j->o->layer_user, layer);
            group = layer;
            expert = -1;
            seen_layers |= layer >= 0;
        }
        if (p->spec->expert != expert && p->spec->expert >= 0 && j->effort != CONVERT_FAST &&
            quantize_expert(j, c, layer, p->spec->expert, e))
            return -1;
        expert = p->spec->expert;
        p->scaled = j->calib && p->input >= 0 && j->calib[layer].scale[p->input];
        const int rc = job_begin_tensor(w, p, e) ||
                       (j->o->synthetic ? synthetic_tensor : encode_tensor)(j, p, sink, w, e);
        if (source_check(j->source, p->source, e) || rc)        /* a file that was cut is the cause, whatever else went wrong */
            return -1;
        big_free(p->data);
        p->data = NULL;
    }
    return 0;
}

static int write_file(struct job *j, struct calibration *c, struct err *e)
{
    struct zwriter *w;
    json_t *json = NULL;
    int rc = -1, n_done;
    struct resume *resume = resume_open(j, c, &w, &n_done, e);
    if (!resume)
        return -1;
    if (write_tensors(j, w, c, resume, n_done, e) || describe_files(j, w, e) || source_wait(j->source, NULL, e))    /* also a file of which no tensor is used must come */
        goto done;
    json = describe_json(j, e);         /* has a key made of the bytes of all tensors */
    if (source_check(j->source, NULL, e) || !json)
        goto done;
    rc = zwriter_commit(w, json, e);
    w = NULL;
    struct stat s;
    if (rc == 0 && stat(j->o->output, &s) == 0)
        j->report->file_bytes = (uint64_t)s.st_size;
done:
    resume_close(resume, w, rc, e);
    json_decref(json);
    return rc;
}

/* ---- the whole ---- */

static int wants_calibration(const struct job *j)
{
    if (j->o->synthetic || (j->o->effort == CONVERT_FAST && j->report->type.kind != CONVERT_MIXED))
        return 0;
    for (int i = 0; i < j->n_plans; i++)
        if (j->plans[i].make == MAKE_QUANT && (j->plans[i].input >= 0 || j->plans[i].spec->expert >= 0))
            return 1;
    return 0;
}

static int calibrate(struct job *j, struct calibration **c, struct err *e)
{
    double start = clock_s();
    j->calib = calloc((size_t)j->config.n_layers, sizeof *j->calib);
    if (!j->calib)
        return err_nomem(e, "calibration");
    if (calibrate_open(j, c, e))
        return -1;
    if (j->report->type.kind == CONVERT_MIXED &&
        (source_wait(j->source, NULL, e) || calibrate_run(j, *c, e) || mixed_assign(j, e)))
        return -1;
    j->report->calibration_seconds = clock_s() - start;
    return 0;
}

int job_open(struct job *j, const struct convert_options *o, struct convert_report *r, struct err *e)
{
    *j = (struct job){ .o = o, .report = r };
    if (check_options(o, e) || (o->output && check_output(o, e)) || open_source(j, e) ||
        (o->output && job_check_replaced(j, e)) || open_report(j, e) || plan_make(j, e))
        return -1;
    j->pool = pool_open(o->n_threads, e);
    return j->pool ? 0 : -1;
}

static int run(struct job *j, struct err *e)
{
    struct calibration *c = NULL;
    int rc = -1;
    j->effort = wants_calibration(j) ? j->o->effort : CONVERT_FAST;
    if (!j->o->output && j->report->type.kind == CONVERT_MIXED) {
        job_note(j, "which tensors get how many bits is an estimate here: a conversion runs the model to find out");
        if (source_wait(j->source, NULL, e) || mixed_assign(j, e))
            return -1;
    }
    fill_report(j);
    if (!j->o->output) {
        foresee_exact(j);
        return 0;
    }
    if (wants_calibration(j) ? calibrate(j, &c, e) : j->o->before && j->o->before(j->o->before_user, j->report, e))
        goto done;
    if (j->o->synthetic && plan_activations(j, e))
        goto done;
    fill_report(j);
    rc = write_file(j, c, e);
    fill_report(j);
done:
    calibrate_close(c);
    return rc;
}

void job_close(struct job *j)
{
    for (int i = 0; i < j->n_plans; i++)
        big_free(j->plans[i].data);
    for (int i = 0; j->calib && i < j->config.n_layers; i++) {
        for (int k = 0; k < N_INPUTS; k++) {
            free(j->calib[i].strength[k]);
            free(j->calib[i].scale[k]);
        }
        free(j->calib[i].v_scale);
        calibrate_forget_experts(j, i);
    }
    free(j->calib);
    free(j->head_strength);
    free(j->plans);
    free(j->specs);
    pool_close(j->pool);
    if (j->o->synthetic)
        synthetic_close(j->source);
    else
        source_close(j->source);
    config_release(&j->config);
}

int convert_run(const struct convert_options *o, struct convert_report *r, struct err *e)
{
    struct convert_report own;
    if (!r)
        r = &own;
    memset(r, 0, sizeof *r);
    struct job j;
    double start = clock_s();
    int rc = job_open(&j, o, r, e);
    if (rc == 0)
        rc = run(&j, e);
    r->seconds = clock_s() - start;
    job_close(&j);
    if (r == &own)
        convert_report_release(r);
    return rc;
}
