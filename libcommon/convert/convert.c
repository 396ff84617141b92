/* convert.c - convert a source to a .zse file: checks, report, the order of the steps. */
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
#include "libcommon/base/plural.h"
#include "libcommon/convert/source_weights.h"
#include "libcommon/convert/spill.h"
#include "libcommon/convert/describe.h"
#include "libcommon/convert/internal.h"
#include "libcommon/convert/eagle_source.h"
#include "libcommon/convert/resume.h"
#include "libcommon/convert/synthetic.h"
#include "libcommon/format/zfile.h"
#include "libcommon/import/lora_merge.h"
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

void conversion_note(const struct conversion *cv, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    if (!cv->o->note)
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    cv->o->note(cv->o->note_user, text);
}

/* ---- refusals before any work ---- */

static int same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* Whether the file `out` is one of the files of the folder, except an earlier .zse. */
static int in_folder(const char *folder, const struct stat *out)
{
    DIR *d = opendir(folder);
    int found = 0;
    for (struct dirent *entry; d && !found && (entry = readdir(d));) {
        struct stat s;
        found = fstatat(dirfd(d), entry->d_name, &s, 0) == 0 && S_ISREG(s.st_mode) && same_file(&s, out);
        size_t n = strlen(entry->d_name);
        if (found && n > 4 && strcmp(entry->d_name + n - 4, ".zse") == 0)
            /* the output is an earlier .zse in the source's folder */
            found = 0;
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
                       convert_type_name(o->type));
    if (o->group_size == -1 ? t->type != QT_I8 : o->group_size < 1 || (o->group_size & (o->group_size - 1)) ||
        !((unsigned)o->group_size & sizes))
        return err_set(e, ERR_UNSUPPORTED, "%s has groups of 32, 64%s", convert_type_name(o->type),
                       t->type == QT_I8 ? " or 128 (or one scale a row)" : sizes & 256 ? ", 128 or 256" : " or 128");
    return 0;
}

/* ---- the source's tensors ---- */

/* Bytes of the part of the source tensor t that makes the tensor s of the new file. */
static uint64_t share_of(const struct source_tensor *t, const struct weight_spec *s)
{
    double n = 1;
    for (int i = 0; i < t->n_dims; i++)
        n *= (double)t->dim[i];
    return n > 0 ? (uint64_t)((double)source_bytes(t) * ((double)s->rows * (double)s->cols / n) + 0.5) : 0;
}

static int open_files(struct conversion *cv, int *n_specs, struct err *e)
{
    if (source_detect(cv->o->source, e) == SOURCE_ZSE)
        return err_set(e, ERR_UNSUPPORTED, "%s: is a .zse file already; convert from its source to get another type",
                       cv->o->source);
    cv->source = source_open_with(cv->o->source, cv->o->open, e);
    if (!cv->source)
        return -1;
    for (int i = 0; i < cv->o->n_lora; i++)
        if (source_merge_lora(cv->source, cv->o->lora[i], e))
            return -1;
    if (!cv->source->config || cv->source->n_tensors == 0)
        return err_set(e, ERR_FORMAT, "%s: has no %s, so there is no model to convert", cv->source->path,
                       cv->source->config ? "weights" : "configuration");
    if (config_parse(&cv->config, cv->source->config, e))
        return err_prefix(e, "%s", cv->source->path);
    int skipped[N_WEIGHT_SKIPS] = { 0 };
    struct err left_out = { 0 };
    if (source_weights(&cv->config, cv->source, cv->o->no_predictor, &cv->specs, n_specs, skipped, &left_out, e)) {
        cv->specs = NULL;
        return -1;
    }
    if (skipped[WEIGHT_ENCODER])
        conversion_note(cv, "%d tensor%s of encoders %s skipped: image input is left out",
                        skipped[WEIGHT_ENCODER], plural(skipped[WEIGHT_ENCODER]), plural_are(skipped[WEIGHT_ENCODER]));
    if (skipped[WEIGHT_PREDICTOR] && !cv->o->no_predictor)
        conversion_note(cv, "%d tensor%s for predicting further tokens %s skipped%s%s", skipped[WEIGHT_PREDICTOR],
                        plural(skipped[WEIGHT_PREDICTOR]), plural_are(skipped[WEIGHT_PREDICTOR]),
                        left_out.code ? ": " : "", left_out.msg);
    if (skipped[WEIGHT_TRAINING])
        conversion_note(cv, "%d tensor%s of heads that only training used %s skipped",
                        skipped[WEIGHT_TRAINING], plural(skipped[WEIGHT_TRAINING]),
                        plural_are(skipped[WEIGHT_TRAINING]));
    return 0;
}

static int uses(const struct recipe *p, const struct source_tensor *t)
{
    int found = p->source == t;
    for (int i = 0; i < p->source->n_parts; i++)
        found |= p->source->parts[i] == t;
    return found;
}

/* Refuse a change by an adapter if the new file leaves out the changed tensor, or if the tensor is
 * both embedding and head. */
static int check_merged(const struct conversion *cv, struct err *e)
{
    for (int i = 0; i < source_n_merged(cv->source); i++) {
        const struct source_tensor *t = source_merged(cv->source, i);
        const struct recipe *user = NULL;
        for (int k = 0; k < cv->n_recipes && !user; k++)
            if (uses(&cv->recipes[k], t))
                user = &cv->recipes[k];
        if (!user)
            return err_set(e, ERR_UNSUPPORTED, "%s: an adapter changes '%s', which the conversion leaves out",
                           cv->source->path, t->name);
        if (cv->config.tied && user->spec->layer < 0 && user->spec->part == EP_EMBED)
            return err_set(e, ERR_UNSUPPORTED, "%s: an adapter changes '%s', which is also the head of this model: "
                           "the head of the adapted model would differ", cv->source->path, t->name);
    }
    return 0;
}

static int open_source(struct conversion *cv, struct err *e)
{
    int n_specs;
    if (cv->o->synthetic ? synthetic_open(cv, &n_specs, e) : open_files(cv, &n_specs, e))
        return -1;
    cv->recipes = calloc((size_t)n_specs + 1, sizeof *cv->recipes);
    if (!cv->recipes)
        return err_nomem(e, "the plan");
    int head = 0;
    for (int i = 0; i < n_specs; i++) {
        const struct weight_spec *s = &cv->specs[i];
        const struct source_tensor *t = cv->o->synthetic ? &cv->source->tensors[i] : source_find(cv->source, s->source);
        head |= s->layer < 0 && s->part == EP_HEAD;
        if (!t && s->optional)
            continue;
        if (!t)
            return err_set(e, ERR_FORMAT, "%s: tensor '%s' is missing", cv->source->path, s->source);
        cv->recipes[cv->n_recipes++] = (struct recipe){ .spec = s, .source = t, .source_bytes = share_of(t, s) };
    }
    cv->config.tied = !head;
    return check_merged(cv, e);
}

static int open_report(struct conversion *cv, struct err *e)
{
    struct convert_report *r = cv->report;
    snprintf(r->arch, sizeof r->arch, "%s", cv->config.arch);
    r->tensors = calloc((size_t)cv->n_recipes + 1, sizeof *r->tensors);
    if (!r->tensors)
        return err_nomem(e, "the report");
    for (int i = 0; i < cv->n_recipes; i++) {
        struct recipe *p = &cv->recipes[i];
        struct convert_tensor *t = &r->tensors[i];
        r->n_tensors = i + 1;
        *t = (struct convert_tensor){ .name = strdup(p->spec->name), .source_name = strdup(p->source->name),
                                      .source_type = p->source->type,
                                      .rows = p->spec->rows, .cols = p->spec->cols, .vector = p->spec->is_vector,
                                      .copies = p->spec->copies, .source_bytes = p->source_bytes };
        if (!t->name || !t->source_name)
            return err_nomem(e, "the report");
        if (cv->o->synthetic) {
            t->source_type = -1;
            t->source_bytes = 0;
        }
        p->report = t;
        r->n_params += (uint64_t)t->copies * (uint64_t)t->rows * (uint64_t)t->cols;
        r->bytes_in += t->source_bytes;
    }
    return 0;
}

/* Mark the tensors whose conversion is certain to be lossless, before anything is encoded. */
static void foresee_exact(struct conversion *cv)
{
    for (int i = 0; i < cv->n_recipes; i++) {
        const struct recipe *p = &cv->recipes[i];
        int from = p->source->type, to = p->m.type;
        p->report->exact = p->make == MAKE_COPY ||
                           (p->make == MAKE_FLOAT &&
                            (to == QT_F32 || (to == QT_F16 && from == GGML_F16) ||
                             (to == QT_BF16 && from == GGML_BF16)));
    }
}

/* Fill in types and sizes, as finally planned. */
static void fill_report(struct conversion *cv)
{
    struct convert_report *r = cv->report;
    r->weight_bytes = cv->total = recipes_bytes(cv);
    r->effort = cv->effort;
    r->n_inexact = r->n_requantized = 0;
    for (int i = 0; i < cv->n_recipes; i++) {
        struct recipe *p = &cv->recipes[i];
        struct convert_tensor *t = p->report;
        int quantized = !p->m.type || !qtype_info(p->m.type)->is_float;
        t->type = p->m.type;
        t->group_size = quantized && p->make != MAKE_VECTOR ? p->m.group_size : 0;
        t->act_group = p->make == MAKE_VECTOR ? 0 : p->m.act_group;
        t->bytes = p->m.size;
        int s = p->source->type;
        r->n_requantized += (p->make == MAKE_QUANT || p->make == MAKE_TERNARY) && !is_float_source(s);
        r->n_inexact += p->make == MAKE_NEAR && !t->exact;
    }
}

/* ---- writing ---- */

static int sink(void *user, const void *data, size_t n, struct err *e) { return zwriter_data(user, data, n, e); }

int conversion_begin_tensor(struct zwriter *w, const struct recipe *p, struct err *e)
{
    const struct weight_spec *s = p->spec;
    const struct source_tensor *t = p->source;
    struct zfile_tensor z = { .name = s->name, .source_name = t->name, .map = s->map, .tiled = p->make != MAKE_VECTOR,
                              .page = s->first_of_expert, .m = p->m };
    if (!is_float_source(t->type)) {
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

int conversion_group(const struct conversion *cv, struct zwriter *w, int layer, int seen_layers, struct err *e)
{
    if (layer == cv->config.n_layers)
        return zwriter_group(w, "mtp", -1, e);
    return zwriter_group(w, layer >= 0 ? "layer" : seen_layers ? "head" : "embed", layer, e);
}

/* Write the tensors from n_done on; earlier ones are in the file already. */
static int write_tensors(struct conversion *cv, struct zwriter *w, struct calibration *c, struct resume *resume,
                         int n_done, struct err *e)
{
    /* group: layer of the open group; expert: the expert being written */
    int group = n_done ? cv->recipes[n_done - 1].spec->layer : -2, expert = -1, seen_layers = 0;
    for (int i = 0; i < n_done; i++)
        seen_layers |= cv->recipes[i].spec->layer >= 0;
    for (int i = n_done; i < cv->n_recipes; i++) {
        struct recipe *p = &cv->recipes[i];
        int layer = p->spec->layer;
        /* calibration does not run layers that predict further tokens */
        const int calibrated = cv->effort != CONVERT_FAST && layer < cv->config.n_layers;
        if (layer != group) {
            if (resume_checkpoint(resume, w, i, e))
                return -1;
            if (group >= 0)
                calibrate_forget_experts(cv, group);
            if (layer >= 0 && calibrated &&
                (cv->effort == CONVERT_BEST ? quantize_layer_best : quantize_layer_good)(cv, c, layer, e))
                return -1;
            if (layer < 0 && seen_layers && cv->effort != CONVERT_FAST && !cv->config.tied && calibrate_head(cv, c, e))
                return -1;
            if (conversion_group(cv, w, layer, seen_layers, e) || channel_scale_write(cv, w, layer, 0, e))
                return -1;
            if (layer >= 0 && layer < cv->config.n_layers && cv->o->layer)
                cv->o->layer(cv->o->layer_user, layer);
            group = layer;
            expert = -1;
            seen_layers |= layer >= 0;
        }
        if (p->spec->expert != expert && p->spec->expert >= 0 && calibrated &&
            quantize_expert(cv, c, layer, p->spec->expert, e))
            return -1;
        expert = p->spec->expert;
        p->scaled = channel_scale_input(cv, p) != NULL;
        const int rc = conversion_begin_tensor(w, p, e) ||
                       (cv->o->synthetic ? synthetic_tensor : encode_tensor)(cv, p, sink, w, e);
        /* if the source's file was truncated, report that instead of a failure that it has
         * caused */
        if (source_check(cv->source, p->source, e) || rc)
            return -1;
        spill_free(p->data);
        p->data = NULL;
    }
    return 0;
}

static const struct map_guard *guard_of(const struct conversion *cv)
{
    return cv->o->open ? cv->o->open->guard : NULL;
}

/* Heads that are stored with the model. */
struct stored_heads { struct medusa *medusa; struct eagle *eagle; };

/* Make the checks of convert_options.heads that read no weights. */
static int check_heads(struct conversion *cv, struct err *e)
{
    struct convert_report *r = cv->report;
    const char *path = cv->o->heads;
    if (!path)
        return 0;
    const int is_eagle = eagle_is_at(path);
    r->heads_kind = is_eagle ? "EAGLE" : "Medusa";
    return is_eagle ? eagle_check(path, &cv->config, guard_of(cv), &r->heads_bytes, e)
                    : medusa_check(path, &cv->config, guard_of(cv), &r->heads_bytes, e);
}

/* Read and round the heads, which are borrowed by w. */
static int read_heads(struct conversion *cv, struct zwriter *w, struct stored_heads *h, struct err *e)
{
    const struct medusa_options o = { .n_threads = cv->o->n_threads, .guard = guard_of(cv) };
    const char *path = cv->o->heads;
    const int is_eagle = path && eagle_is_at(path);
    if (!path)
        return 0;
    if (is_eagle && (h->eagle = eagle_read(path, &cv->config, &o, e)))
        zwriter_heads(w, HEADS_EAGLE, h->eagle->section, h->eagle->section_bytes);
    else if (!is_eagle && (h->medusa = medusa_read(path, &cv->config, &o, e)))
        zwriter_heads(w, HEADS_MEDUSA, h->medusa->section, h->medusa->section_bytes);
    return h->eagle || h->medusa ? 0 : -1;
}

static int write_file(struct conversion *cv, struct calibration *c, struct err *e)
{
    struct zwriter *w;
    struct stored_heads heads = { NULL, NULL };
    json_t *json = NULL;
    int rc = -1, n_done;
    struct resume *resume = resume_open(cv, c, &w, &n_done, e);
    if (!resume)
        return -1;
    /* source_wait() also waits for the download of files that contain no used tensor */
    if (write_tensors(cv, w, c, resume, n_done, e) || describe_files(cv, w, e) || source_wait(cv->source, NULL, e) ||
        read_heads(cv, w, &heads, e))
        goto done;
    /* after the tensors, because it contains a key computed from all of their bytes */
    json = describe_json(cv, e);
    if (source_check(cv->source, NULL, e) || !json)
        goto done;
    rc = zwriter_commit(w, json, e);
    w = NULL;
    struct stat s;
    if (rc == 0 && stat(cv->o->output, &s) == 0)
        cv->report->file_bytes = (uint64_t)s.st_size;
done:
    resume_close(resume, w, rc, e);
    medusa_close(heads.medusa);
    eagle_close(heads.eagle);
    json_decref(json);
    return rc;
}

/* ---- a whole conversion ---- */

static int wants_calibration(const struct conversion *cv)
{
    if (config_uncalibrated(&cv->config))
        return 0;
    if (cv->o->synthetic || (cv->o->effort == CONVERT_FAST && cv->report->type.kind != CONVERT_MIXED))
        return 0;
    for (int i = 0; i < cv->n_recipes; i++)
        if (cv->recipes[i].make == MAKE_QUANT && (cv->recipes[i].input >= 0 || cv->recipes[i].spec->expert >= 0))
            return 1;
    return 0;
}

static int calibrate(struct conversion *cv, struct calibration **c, struct err *e)
{
    double start = clock_s();
    cv->calib = calloc((size_t)cv->config.n_layers + 1, sizeof *cv->calib);
    if (!cv->calib)
        return err_nomem(e, "calibration");
    if (calibrate_open(cv, c, e))
        return -1;
    if (cv->report->type.kind == CONVERT_MIXED &&
        (source_wait(cv->source, NULL, e) || calibrate_run(cv, *c, e) || mixed_assign(cv, e)))
        return -1;
    cv->report->calibration_seconds = clock_s() - start;
    return 0;
}

int conversion_open(struct conversion *cv, const struct convert_options *o, struct convert_report *r, struct err *e)
{
    *cv = (struct conversion){ .o = o, .report = r };
    if (check_options(o, e) || (o->output && check_output(o, e)) || open_source(cv, e) ||
        (o->output && conversion_check_replaced(cv, e)) || open_report(cv, e) || recipes_make(cv, e) ||
        check_heads(cv, e) != 0)
        return -1;
    const char *uncalibrated = config_uncalibrated(&cv->config);
    if (uncalibrated && r->type.kind == CONVERT_MIXED)
        return err_set(e, ERR_UNSUPPORTED, "mixed types need calibration, which does not run models with %s",
                       uncalibrated);
    cv->pool = pool_open(o->n_threads, e);
    return cv->pool ? 0 : -1;
}

static int run(struct conversion *cv, struct err *e)
{
    struct calibration *c = NULL;
    int rc = -1;
    cv->effort = wants_calibration(cv) ? cv->o->effort : CONVERT_FAST;
    if (config_uncalibrated(&cv->config) && cv->o->effort != CONVERT_FAST && cv->report->type.kind == CONVERT_TYPE)
        conversion_note(cv, "--quality fast: calibration does not run models with %s",
                        config_uncalibrated(&cv->config));
    if (!cv->o->output && cv->report->type.kind == CONVERT_MIXED) {
        conversion_note(cv, "the bits of each tensor are an estimate here: a conversion runs the model to find out");
        if (source_wait(cv->source, NULL, e) || mixed_assign(cv, e))
            return -1;
    }
    fill_report(cv);
    if (!cv->o->output) {
        foresee_exact(cv);
        return 0;
    }
    if (wants_calibration(cv) ? calibrate(cv, &c, e)
                              : cv->o->before && cv->o->before(cv->o->before_user, cv->report, e))
        goto done;
    if (cv->o->synthetic && recipes_activations(cv, e))
        goto done;
    fill_report(cv);
    rc = write_file(cv, c, e);
    fill_report(cv);
done:
    calibrate_close(c);
    return rc;
}

void conversion_close(struct conversion *cv)
{
    for (int i = 0; i < cv->n_recipes; i++)
        spill_free(cv->recipes[i].data);
    for (int i = 0; cv->calib && i < cv->config.n_layers; i++) {
        for (int k = 0; k < N_INPUTS; k++) {
            free(cv->calib[i].strength[k]);
            free(cv->calib[i].scale[k]);
        }
        free(cv->calib[i].v_scale);
        calibrate_forget_experts(cv, i);
    }
    free(cv->calib);
    free(cv->head_strength);
    free(cv->recipes);
    free(cv->specs);
    pool_close(cv->pool);
    if (cv->o->synthetic)
        synthetic_close(cv->source);
    else
        source_close(cv->source);
    config_release(&cv->config);
}

int convert_run(const struct convert_options *o, struct convert_report *r, struct err *e)
{
    struct convert_report own;
    if (!r)
        r = &own;
    memset(r, 0, sizeof *r);
    struct conversion j;
    double start = clock_s();
    int rc = conversion_open(&j, o, r, e);
    if (rc == 0)
        rc = run(&j, e);
    r->seconds = clock_s() - start;
    conversion_close(&j);
    if (r == &own)
        convert_report_release(r);
    return rc;
}
