/* t-convert.c - a folder or a GGUF file to a .zse: exactness, determinism, channel scaling,
 * target sizes, refusals.  Uses models/tiny; more architectures and every GGUF type where
 * $ZSE_ORACLES (../shared/oracles) is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libcommon/base/file.h"
#include "libcommon/base/rng.h"
#include "libcommon/convert/gptq.h"
#include "libcommon/convert/source_weights.h"
#include "libcommon/convert/internal.h"
#include "libcommon/cpu/cpu.h"
#include "libcommon/format/zfile.h"
#include "libcommon/quant/ggml.h"
#include "tests/lib/encode.h"

static const char tiny[] = "models/tiny";
static char dir[64];

/* The path of a file in the test's folder.  Equal names give the same pointer, which is valid until
 * the end. */
static const char *at(const char *name)
{
    static char paths[16][256];
    char path[256];
    int i = 0;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    while (i < 16 && *paths[i] && strcmp(paths[i], path))
        i++;
    assert_true(i < 16);
    strcpy(paths[i], path);
    return paths[i];
}

static const char *oracle(const char *name)
{
    static char path[512];
    const char *root = getenv("ZSE_ORACLES");
    snprintf(path, sizeof path, "%s/models/%s", root ? root : "../shared/oracles", name);
    return path;
}

static int setup(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/t-convert-XXXXXX");
    if (!mkdtemp(dir))
        return -1;
    FILE *f = fopen(at("text"), "w");           /* enough for a few windows of the tiny tokenizer */
    for (int i = 0; f && i < 24; i++)
        fprintf(f, "Question %d: what is %d + %d? The answer is %d, said the fox to the crow; \xc3\xbc \xe2\x82\xac {x: [%d]}\n", i, i, 3 * i, 4 * i, i * i);
    if (!f || fclose(f))
        return -1;
    f = fopen(at("less"), "w");
    for (int i = 0; f && i < 13; i++)
        fprintf(f, "Question %d: what is %d + %d? The answer is %d, said the fox to the crow; \xc3\xbc \xe2\x82\xac {x: [%d]}\n", i, i, 3 * i, 4 * i, i * i);
    return f ? fclose(f) : -1;
}

static void remove_tree(const char *path)
{
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d));) {
        char name[512];
        snprintf(name, sizeof name, "%s/%s", path, e->d_name);
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..") && unlink(name))
            remove_tree(name);
    }
    if (d)
        closedir(d);
    rmdir(path);
}

static int teardown(void **state)
{
    (void)state;
    remove_tree(dir);
    return 0;
}

static struct convert_options options(const char *source, const char *output, const char *type,
                                      enum convert_effort effort)
{
    struct convert_options o;
    struct err e;
    convert_defaults(&o);
    o.source = source;
    o.output = output;
    o.effort = effort;
    o.overwrite = 1;                    /* different sources are converted to the same name */
    o.n_threads = 2;
    if (getenv("ZSE_SANITIZED") && effort != CONVERT_FAST)
        o.calibration = at("text");                 /* a sanitizer makes the built-in text last minutes */
    if (convert_parse_type(&o.type, type, &e))
        fail_msg("%s", e.msg);
    return o;
}

/* 1; under a sanitizer, n: only each n-th case is tested there, because the cases differ in their
 * numbers, not in the addresses that they access. */
static size_t each(size_t n) { return getenv("ZSE_SANITIZED") ? n : 1; }

static void must(const struct convert_options *o, struct convert_report *r)
{
    struct err e = { 0 };
    if (convert_run(o, r, &e))
        fail_msg("%s: %s", o->source, e.msg);
}

static void must_fail(const struct convert_options *o, const char *words)
{
    struct err e = { 0 };
    assert_int_equal(convert_run(o, NULL, &e), -1);
    if (!strstr(e.msg, words))
        fail_msg("'%s' does not say '%s'", e.msg, words);
}

/* ---- every type: the report agrees with the contents of the file ---- */

static void check_file(const struct convert_options *o, const struct convert_report *r)
{
    struct err e;
    struct zfile *z = zfile_open(o->output, &e);
    struct source *s = source_open(o->source, &e);
    assert_non_null(z);
    assert_non_null(s);
    assert_int_equal(zfile_verify(z, &e), 0);
    assert_int_equal(zfile_n_tensors(z), r->n_tensors);
    assert_int_equal(zfile_size(z), r->file_bytes);
    uint64_t bytes = 0;
    for (int i = 0; i < r->n_tensors; i++) {
        const struct convert_tensor *t = &r->tensors[i];
        const struct zfile_tensor *f = zfile_find(z, t->name);
        struct row_reader rows;
        assert_non_null(f);
        assert_string_equal(f->source_name, t->source_name);
        assert_int_equal(f->m.type, t->type);
        bytes += f->m.size;
        assert_int_equal(row_reader_open(&rows, s, source_find(s, t->source_name), &f->map, t->rows, t->cols,
                                   t->vector && t->rows == 1, &e), 0);
        float *want = malloc((size_t)t->cols * 8), *got = want + t->cols;
        double max = 0;
        for (int64_t row = 0; row < t->rows; row++) {
            assert_int_equal(row_reader_read(&rows, row, 1, want, &e), 0);
            if (f->tiled)
                mat_decode_row(&f->m, row, got);
            else
                memcpy(got, (const float *)(const void *)f->m.data + row * t->cols, (size_t)t->cols * 4);
            for (int64_t k = 0; k < t->cols; k++)
                max = fmax(max, fabs((double)want[k] - (double)got[k]));
        }
        if (r->effort == CONVERT_FAST && fabs(max - t->max_error) > 1e-12)
            fail_msg("%s: largest error %g, the report says %g", t->name, max, t->max_error);
        assert_true(!t->exact || max == 0 || r->effort != CONVERT_FAST);
        free(want);
        row_reader_close(&rows);
    }
    assert_int_equal(bytes, r->weight_bytes);
    zfile_close(z);
    source_close(s);
}

static void every_type_stays_within_its_error(void **state)
{
    (void)state;
    /* the largest relative error of a matrix of the tiny model */
    static const struct { const char *name; double worst; } types[] = {
        { "f32", 1e-12 }, { "bf16", 2e-3 }, { "f16", 3e-4 }, { "keep", 1e-12 }, { "int8", 9e-3 }, { "nl4", .1 },
        { "int4", .14 }, { "nf4", .12 },
        { "int4m", .11 }, { "int4z", .13 }, { "m2", .45 }, { "m3", .22 }, { "m5", .06 }, { "m6", .03 },
    };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        struct convert_options o = options(tiny, at("types.zse"), types[i].name, CONVERT_FAST);
        struct convert_report r;
        must(&o, &r);
        check_file(&o, &r);
        double worst = 0;
        for (int k = 0; k < r.n_tensors; k++)
            worst = fmax(worst, r.tensors[k].rel_error);
        print_message("# %-5s worst relative error %.2e, %llu bytes of weights\n", types[i].name, worst,
                      (unsigned long long)r.weight_bytes);
        assert_true(worst <= types[i].worst);
        convert_report_release(&r);
    }
}

/* ---- GGUF types that a .zse type represents exactly are converted bit for bit ---- */

static void gguf_types_with_an_equal_are_kept_exactly(void **state)
{
    (void)state;
    static const struct { const char *file; int type; enum qtype to; } files[] = {
        { "F32", GGML_F32, QT_F32 }, { "F16", GGML_F16, QT_F16 }, { "BF16", GGML_BF16, QT_BF16 },
        { "Q4_0", GGML_Q4_0, QT_I4 }, { "Q4_1", GGML_Q4_1, QT_I4M },
        { "Q5_0", GGML_Q5_0, QT_I8 }, { "Q8_0", GGML_Q8_0, QT_I8 }, { "IQ4_NL", GGML_IQ4_NL, QT_I8 },
        { "MXFP4", GGML_MXFP4, QT_MXFP4 },
        { "TQ1_0", GGML_TQ1_0, QT_T3 }, { "TQ2_0", GGML_TQ2_0, QT_T2 },
    };
    if (access(oracle("gguf"), R_OK)) {
        print_message("# skipped: no oracles (set ZSE_ORACLES)\n");
        skip();
    }
    for (size_t i = 0; i < sizeof files / sizeof *files; i += each(4)) {
        char name[64];
        snprintf(name, sizeof name, "gguf/%s.gguf", strcmp(files[i].file, "F32") ? files[i].file : "f32");
        struct convert_options o = options(oracle(name), at("keep.zse"), "keep", CONVERT_GOOD);
        struct convert_report r;
        int n = 0;
        must(&o, &r);
        check_file(&o, &r);
        for (int k = 0; k < r.n_tensors; k++)
            if (r.tensors[k].source_type == files[i].type && !r.tensors[k].vector) {
                if (r.tensors[k].type != files[i].to || !r.tensors[k].exact || r.tensors[k].max_error != 0)
                    fail_msg("%s: %s became %s with an error of %g", files[i].file, r.tensors[k].name,
                             qtype_info(r.tensors[k].type)->name, r.tensors[k].max_error);
                n++;
            }
        assert_true(n > 5);
        convert_report_release(&r);
    }
}

/* Ternary matrices of a GGUF stay exact in every type that can represent them, with and without
 * calibration. */
static void ternary_matrices_are_converted_exactly(void **state)
{
    (void)state;
    static const struct { const char *file; int type; const char *to; int group; enum qtype becomes; } runs[] = {
        { "TQ1_0", GGML_TQ1_0, "ternary", 0, QT_T3 }, { "TQ2_0", GGML_TQ2_0, "ternary", 0, QT_T3 },
        { "TQ1_0", GGML_TQ1_0, "t2", 0, QT_T2 },
        { "TQ2_0", GGML_TQ2_0, "t2", 64, QT_T2 },     { "TQ1_0", GGML_TQ1_0, "int4", 0, QT_I4 },
        { "TQ2_0", GGML_TQ2_0, "int4", 32, QT_I4 },
    };
    if (access(oracle("gguf"), R_OK)) {
        print_message("# skipped: no oracles (set ZSE_ORACLES)\n");
        skip();
    }
    for (size_t i = 0; i < 2 * sizeof runs / sizeof *runs; i += each(5)) {
        char name[64];
        snprintf(name, sizeof name, "gguf/%s.gguf", runs[i / 2].file);
        struct convert_options o = options(oracle(name), at("ternary.zse"), runs[i / 2].to,
                                           i % 2 ? CONVERT_GOOD : CONVERT_FAST);
        struct convert_report r;
        int n = 0;
        o.calibration = i % 2 ? at("text") : NULL;
        o.group_size = runs[i / 2].group;
        must(&o, &r);
        check_file(&o, &r);
        for (int k = 0; k < r.n_tensors; k++)
            if (r.tensors[k].source_type == runs[i / 2].type && !r.tensors[k].vector) {
                if (r.tensors[k].type != runs[i / 2].becomes || !r.tensors[k].exact || r.tensors[k].max_error != 0)
                    fail_msg("%s as %s: %s became %s with an error of %g", runs[i / 2].file, runs[i / 2].to,
                             r.tensors[k].name, qtype_info(r.tensors[k].type)->name, r.tensors[k].max_error);
                n++;
            }
        assert_true(n > 5);
        convert_report_release(&r);
    }
}

/* All other types are converted with errors of a thousandth to a hundredth of the weights' size,
 * and the report says that they are not exact. */
static void other_gguf_types_are_kept_with_small_errors(void **state)
{
    (void)state;
    static const struct { const char *file; double worst; } files[] = { { "Q4_K_M", 6e-3 }, { "Q5_1", 6e-3 },
        { "Q5_K_M", 6e-3 }, { "Q6_K", 6e-3 },
                                                                      { "Q3_K_M", 7e-3 }, { "Q2_K", 7e-3 },
                                                                      { "IQ4_XS", 6e-3 }, { "IQ2_XXS", 8e-3 } };
    if (access(oracle("gguf"), R_OK)) {
        print_message("# skipped: no oracles (set ZSE_ORACLES)\n");
        skip();
    }
    for (size_t i = 0; i < sizeof files / sizeof *files; i += each(4)) {
        char name[64];
        snprintf(name, sizeof name, "gguf/%s.gguf", files[i].file);
        struct convert_options o = options(oracle(name), at("near.zse"), "keep", CONVERT_GOOD);
        struct convert_report r;
        double worst = 0;
        must(&o, &r);
        check_file(&o, &r);
        for (int k = 0; k < r.n_tensors; k++)
            worst = fmax(worst, r.tensors[k].rel_error);
        print_message("# %-7s worst relative error %.2e, %d tensors not exact\n", files[i].file, worst, r.n_inexact);
        assert_true(worst < files[i].worst && r.n_inexact > 0);
        convert_report_release(&r);
    }
}

/* ---- the same bytes with any number of threads ---- */

static int same_content(const char *a, const char *b)
{
    struct map x, y;
    struct err e;
    assert_int_equal(map_open(&x, a, &e), 0);
    assert_int_equal(map_open(&y, b, &e), 0);
    int same = x.size == y.size && memcmp(x.data, y.data, x.size) == 0;
    map_close(&x);
    map_close(&y);
    return same;
}

static void the_number_of_threads_changes_no_byte(void **state)
{
    (void)state;
    static const struct { const char *type; enum convert_effort effort; const char *folder; } runs[] = {
        { "nl4", CONVERT_FAST, NULL }, { "nl4", CONVERT_GOOD, NULL }, { "nl4", CONVERT_BEST, NULL },
        { "int8", CONVERT_GOOD, NULL }, { "mixed", CONVERT_GOOD, NULL },
        /* a layer with a state, gated attention, experts and a shared expert */
        { "nl4", CONVERT_GOOD, "hf/qwen3_next" }, { "nl4", CONVERT_BEST, "hf/qwen3_next" },
    };
    /* Under a sanitizer only the last case runs: it has the most kinds of layers, and all steps of
     * quality best. */
    const size_t n_runs = sizeof runs / sizeof *runs;
    for (size_t i = getenv("ZSE_SANITIZED") ? n_runs - 1 : 0; i < n_runs; i++) {
        if (runs[i].folder && access(oracle(runs[i].folder), F_OK) != 0) {
            print_message("# not %s: no oracles\n", runs[i].folder);
            continue;
        }
        struct convert_options o = options(runs[i].folder ? oracle(runs[i].folder) : tiny, at("one.zse"), runs[i].type,
                                           runs[i].effort);
        struct convert_report r;
        o.calibration = runs[i].effort == CONVERT_FAST ? NULL : at("text");
        o.target_bytes = o.type.kind == CONVERT_MIXED ? 900000 : 0;
        o.n_threads = 1;
        must(&o, &r);
        assert_int_equal(r.effort, runs[i].effort);
        assert_true(runs[i].effort == CONVERT_FAST || r.n_calibration_tokens >= 512);
        convert_report_release(&r);
        for (int n = 2; n <= (getenv("ZSE_SANITIZED") ? 2 : 3); n++) {
            o.n_threads = n;
            o.output = at("more.zse");
            must(&o, NULL);
            if (!same_content(at("one.zse"), at("more.zse")))
                fail_msg("%s, effort %d: other bytes with %d threads", runs[i].type, (int)runs[i].effort, n);
        }
    }
}

/* Keep the plan, and end the conversion. */
struct calibration_plan { uint64_t bytes, tokens; };
static int keep_plan(void *user, const struct convert_report *r, struct err *e)
{
    *(struct calibration_plan *)user = (struct calibration_plan){ r->private_bytes, (uint64_t)r->n_calibration_tokens };
    return err_set(e, ERR_CANCELLED, "planned");
}

/* A mixture with a norm behind its experts holds their sum beside the states. */
static void sums_before_a_norm_are_planned(void **state)
{
    (void)state;
    static const char *const texts[] = { "less", "text" };
    struct calibration_plan p[2];
    struct err e;
    if (access(oracle("hf-2026/afmoe"), F_OK) != 0)
        skip();
    for (int i = 0; i < 2; i++) {
        struct convert_options o = options(oracle("hf-2026/afmoe"), at("one.zse"), "nl4", CONVERT_GOOD);
        o.calibration = at(texts[i]);
        o.before = keep_plan;
        o.before_user = &p[i];
        assert_int_equal(convert_run(&o, NULL, &e), -1);
        assert_string_equal(e.msg, "planned");
    }
    /* the states and all inputs of a layer, the samples of error feedback, and the sum, in f32; the
     * choices of three experts */
    const uint64_t a_token = 4 * (64 + (64 + 128 + 64 + 128) + GOOD_RANK + 64) + 3 * 16;
    assert_true(p[1].tokens > p[0].tokens);
    assert_int_equal(p[1].bytes - p[0].bytes, (p[1].tokens - p[0].tokens) * a_token);
}

/* The result is the same whether the buffers of calibration are in memory or in spill files, and no
 * file is left. */
static void spill_files_change_no_byte_and_are_removed(void **state)
{
    (void)state;
    static const struct { enum convert_effort effort; const char *type, *folder; } runs[] = {
        /* latent attention, experts and a shared expert */
        { CONVERT_BEST, "nl4", "hf/deepseek_v3" }, { CONVERT_GOOD, "nl4", "hf/deepseek_v3" },
        { CONVERT_BEST, "ternary", NULL },         { CONVERT_GOOD, "mixed", NULL },
    };
    char folder[128];
    snprintf(folder, sizeof folder, "%s/files", dir);
    mkdir(folder, 0755);
    for (size_t i = 0; i < (getenv("ZSE_SANITIZED") ? 1 : sizeof runs / sizeof *runs); i++) {
        if (runs[i].folder && access(oracle(runs[i].folder), F_OK) != 0) {
            print_message("# not %s: no oracles\n", runs[i].folder);
            continue;
        }
        struct convert_options o = options(runs[i].folder ? oracle(runs[i].folder) : tiny, at("one.zse"), runs[i].type,
                                           runs[i].effort);
        struct convert_report whole, files;
        o.calibration = at("text");
        o.target_bytes = o.type.kind == CONVERT_MIXED ? 900000 : 0;
        must(&o, &whole);
        assert_int_equal(whole.scratch_bytes, 0);
        o.output = at("files/m.zse");
        o.calibration_memory = 1;
        must(&o, &files);
        assert_int_equal(files.private_bytes + files.scratch_bytes, whole.private_bytes);
        assert_true(files.scratch_bytes > 500000);
        if (!same_content(at("one.zse"), at("files/m.zse")))
            fail_msg("%s, effort %d, %s: other bytes with arrays in files", runs[i].type, (int)runs[i].effort,
                     runs[i].folder ? runs[i].folder : tiny);
        int n = 0;
        DIR *d = opendir(folder);
        for (struct dirent *entry; (entry = readdir(d));)
            n += strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..");
        closedir(d);
        assert_int_equal(n, 1);
        convert_report_release(&whole);
        convert_report_release(&files);
    }
    /* if the disk has no space for the spill files, the conversion fails before anything is
     * written */
    struct convert_options o = options(tiny, at("files/no.zse"), "nl4", CONVERT_GOOD);
    struct rlimit old;
    o.calibration = at("text");
    o.calibration_memory = 1;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &(struct rlimit){ 100000, old.rlim_max }), 0);
    must_fail(&o, "files/no.zse: a temporary file of ");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, handler);
    assert_int_equal(access(o.output, F_OK), -1);
}

/* ---- channel scaling does not change what the layers compute ---- */

static float *random_strengths(int n, struct rng *r)
{
    float *x = malloc((size_t)n * 4);
    for (int i = 0; i < n; i++)
        x[i] = (float)exp(6 * rng_double(r) - 3);
    return x;
}

static void random_calib(struct conversion *j, struct rng *r)
{
    const struct config *c = &j->config;
    j->calib = calloc((size_t)c->n_layers, sizeof *j->calib);
    for (int l = 0; l < c->n_layers; l++) {
        for (int i = 0; i < N_INPUTS; i++) {
            const int width = calibrate_width(c, l, i);
            if (!width)
                continue;
            j->calib[l].strength[i] = random_strengths(width, r);
            if (i == INPUT_MLP && c->block == BLOCK_PARALLEL)
                memcpy(j->calib[l].strength[i], j->calib[l].strength[INPUT_QKV], (size_t)width * 4);
        }
        if (c->ff[l] != FF_MOE)
            continue;
        j->calib[l].down_strength = random_strengths(c->moe.intermediate_size, r);
        j->calib[l].experts = calloc((size_t)c->moe.n_experts, sizeof *j->calib[l].experts);
        for (int i = 0; i < c->moe.n_experts; i++)          /* some that no token reached */
            j->calib[l].experts[i] = (struct expert_calib){ .n_tokens = i % 3 * 20,
                                                            .up = random_strengths(c->hidden_size, r),
                                                            .down = random_strengths(c->moe.intermediate_size, r) };
    }
}

/* 1 if the layers that run have this weight: layers that predict further tokens are not
 * calibrated. */
static int runs(const struct conversion *j, const struct weight_spec *s)
{
    return s->layer >= 0 && s->layer < j->config.n_layers;
}

/* Store all weights of the plan in m as f32, with or without channel scaling. */
static void build(struct conversion *j, struct model *m, int scaled)
{
    struct err e = { 0 };
    m->config = j->config;
    m->layers = calloc((size_t)j->config.n_layers, sizeof *m->layers);
    model_norms(m);
    assert_int_equal(model_experts(m, &e), 0);
    for (int i = 0; i < j->n_recipes; i++) {
        struct recipe *p = &j->recipes[i];
        const struct weight_spec *s = p->spec;
        struct row_reader rows;
        if (!runs(j, s))
            continue;
        struct weight_place place = weight_place(m, s);
        struct channel_scale fold = channel_scale_of(j, p);
        float *x = malloc((size_t)s->rows * (size_t)s->cols * 4);
        assert_int_equal(row_reader_open(&rows, j->source, p->source, &s->map, s->rows, s->cols,
                                         s->is_vector && s->rows == 1,
                                   &e), 0);
        assert_int_equal(row_reader_read(&rows, 0, s->rows, x, &e), 0);
        row_reader_close(&rows);
        if (s->is_vector) {
            for (int64_t r = 0; scaled && r < s->rows; r++)
                channel_scale_vector(&fold, x + r * s->cols, s->cols);
            if (place.norm && place.plain == &place.norm->w && j->config.norm == NORM_LAYER &&
                s->cols == j->config.hidden_size)
                for (int64_t k = 0; k < s->cols; k++)
                    x[k] += j->config.norm_offset;
            *place.plain = x;
            continue;
        }
        for (int64_t r = 0; scaled && r < s->rows; r++)
            channel_scale_row(&fold, r, x + r * s->cols, s->cols);
        struct mat w;
        assert_int_equal(mat_init(&w, QT_F32, 32, 0, s->rows, s->cols, &e), 0);
        uint8_t *data = aligned_alloc(64, w.size);
        mat_encode_float(&w, data, x, (size_t)s->cols);
        w.data = data;
        place.linear->w = w;
        free(x);
    }
}

static void drop(struct conversion *j, struct model *m)
{
    for (int i = 0; i < j->n_recipes; i++) {
        const struct weight_spec *s = j->recipes[i].spec;
        if (!runs(j, s))
            continue;
        struct weight_place place = weight_place(m, s);
        free(s->is_vector ? (void *)(uintptr_t)*place.plain : (void *)(uintptr_t)place.linear->w.data);
    }
    for (int i = 0; i < j->config.n_layers; i++)
        free(m->layers[i].experts);
    free(m->layers);
}

static int n_scaled(const struct conversion *j)
{
    int n = 0;
    for (int l = 0; l < j->config.n_layers; l++)
        for (int i = 0; i < N_INPUTS; i++)
            n += j->calib[l].scale[i] != NULL;
    return n;
}

/* The outputs of layers for T tokens: the residual stream x, and what else a window keeps between
 * layers. */
enum { T = 40 };
struct outputs { float *x, *kept; size_t n, n_kept; };

static struct outputs random_inputs(const struct conversion *j, const struct cpu_layers *run, struct rng rng)
{
    const size_t kept = cpu_layers_kept(run);
    struct outputs o = { .n = T * (size_t)j->config.hidden_size, .n_kept = kept / sizeof *o.kept };
    o.x = malloc(o.n * sizeof *o.x);
    o.kept = aligned_alloc(64, (kept + 64) / 64 * 64);
    for (size_t i = 0; i < o.n; i++)
        o.x[i] = (float)(rng_double(&rng) * 2 - 1);
    for (size_t i = 0; i < o.n_kept; i++)
        o.kept[i] = (float)(rng_double(&rng) * 2 - 1);
    return o;
}

static void run_layers(struct cpu_layers *run, const struct model *m, int layer, const struct outputs *o)
{
    struct err e;
    if (o->n_kept)
        cpu_layers_keep(run, o->kept);
    assert_int_equal(cpu_layers_run(run, layer, &m->layers[layer], 1, o->x, NULL, &e), 0);
}

static void compare(const float *a, const float *b, size_t n, double *diff, double *size)
{
    for (size_t i = 0; i < n; i++) {
        *diff = fmax(*diff, fabs((double)a[i] - (double)b[i]));
        *size = fmax(*size, fabs((double)a[i]));
    }
}

/* The largest difference between the outputs of the scaled and the original layers for the same
 * input, relative to their size; -1: the source cannot be opened. */
static double scaling_error(const char *path, int *scaled)
{
    struct convert_options o = options(path, NULL, "nl4", CONVERT_GOOD);
    struct convert_report r;
    struct conversion j;
    struct err e = { 0 };
    memset(&r, 0, sizeof r);
    double worst = -1;
    if (conversion_open(&j, &o, &r, &e) == 0) {
        struct rng rng = { 77 };
        struct model plain = { 0 }, folded = { 0 };
        int32_t tokens[T];
        random_calib(&j, &rng);
        for (int l = 0; l < j.config.n_layers; l++)
            assert_int_equal(channel_scale_layer(&j, l, 0.5f, &e), 0);
        *scaled = n_scaled(&j);
        build(&j, &plain, 0);
        build(&j, &folded, 1);
        for (int i = 0; i < T; i++)
            tokens[i] = i % 20;
        struct cpu_layers *run = cpu_layers_open(&j.config, 1, T, 1, NULL, &e);
        assert_non_null(run);
        cpu_layers_tokens(run, tokens);
        const struct outputs a = random_inputs(&j, run, rng), b = random_inputs(&j, run, rng);
        double diff = 0, size = 0;
        for (int l = 0; l < j.config.n_layers; l++) {
            run_layers(run, &plain, l, &a);
            run_layers(run, &folded, l, &b);
        }
        compare(a.x, b.x, a.n, &diff, &size);
        compare(a.kept, b.kept, a.n_kept, &diff, &size);
        worst = diff / size;
        cpu_layers_close(run);
        drop(&j, &plain);
        drop(&j, &folded);
        free(a.x);
        free(b.x);
        free(a.kept);
        free(b.kept);
    }
    conversion_close(&j);
    convert_report_release(&r);
    return worst;
}

static int scaled_model(const char *folder, const char *model)
{
    char name[300];
    int scaled = 0;
    snprintf(name, sizeof name, "%s/%s", folder, model);
    const double worst = scaling_error(oracle(name), &scaled);
    print_message("# %-18s %.1e, %d inputs scaled\n", model, worst, scaled);
    /* the gated delta net scales keys to length 1, however short they are, which enlarges rounding
     * errors */
    assert_true(worst >= 0 && worst < 5e-5);
    return scaled > 0;
}

static void channel_scaling_keeps_the_logits(void **state)
{
    /* one of each mixer, router and kind of residual streams */
    static const char *const latest[] = { "falcon_h1", "bamba", "jamba", "kimi_linear", "bailing_hybrid", "olmo_hybrid",
                                          "mistral4", "minicpm3", "afmoe", "phimoe", "mimo_v2_flash", "qwen3_5",
                                          "qwen3_5_moe", "exaone_moe", "glm4_moe_lite", "qwen4_exp",
                                          "deepseek_v4", "gemma3n", "gemma4-e" };
    (void)state;
    int scaled = 0, n = 0;
    double worst = scaling_error(tiny, &scaled);
    print_message("# %-18s %.1e, %d inputs scaled\n", "tiny", worst, scaled);
    assert_true(worst >= 0 && worst < 1e-5 && scaled > 0 && scaled % 4 == 0);
    DIR *d = opendir(oracle("hf"));
    for (struct dirent *entry; d && (entry = readdir(d));)
        if (entry->d_name[0] != '.')
            n += scaled_model("hf", entry->d_name);
    if (d) {
        closedir(d);
        assert_true(n >= 50);
        for (size_t i = 0; i < sizeof latest / sizeof *latest; i++)
            assert_true(scaled_model("hf-2026", latest[i]));
    } else {
        print_message("# only models/tiny: no oracles (set ZSE_ORACLES)\n");
    }
}

/* A layer may have attention and Mamba2 side by side.  The norm of Mamba2's gate has other channels
 * than v, so v's scales must not change it. */
static void v_scales_leave_the_gate_norm_beside_attention(void **state)
{
    (void)state;
    float scales[2] = { 2, 4 };
    unsigned char mixer = MIXER_BOTH;
    struct layer_calib calib = { .v_scale = scales };
    struct conversion j = { .calib = &calib };
    struct weight_spec spec = { .name = "layers.0.gate_norm.weight", .is_vector = 1, .rows = 1, .cols = 6, .expert = -1 };
    const struct recipe p = { .spec = &spec };
    j.config.n_layers = 1;
    j.config.mixer = &mixer;
    for (int i = 0; i < 2; i++, mixer = MIXER_MAMBA2) {
        const struct channel_scale fold = channel_scale_of(&j, &p);
        assert_ptr_equal(fold.col, i ? scales : NULL);
    }
}

/* ---- sizes ---- */

static void target_sizes_are_met_or_refused(void **state)
{
    (void)state;
    struct convert_options o = options(tiny, NULL, "f16", CONVERT_FAST);
    struct convert_report r;
    uint64_t size[4];
    static const char *const types[] = { "f32", "f16", "int8", "nl4" };
    for (int i = 0; i < 4; i++) {
        o = options(tiny, NULL, types[i], CONVERT_FAST);
        must(&o, &r);
        size[i] = r.weight_bytes;
        convert_report_release(&r);
    }
    o.type.kind = CONVERT_FIT;
    for (int i = 1; i < 4; i++) {           /* the exact size of a type, and a byte less */
        o.target_bytes = size[i];
        must(&o, &r);
        assert_true(r.weight_bytes <= size[i] && r.type.kind == CONVERT_TYPE);
        assert_true(r.type.qtype == (i == 1 ? QT_F16 : i == 2 ? QT_I8 : QT_NL4) || (i == 1 && r.type.qtype == QT_BF16));
        convert_report_release(&r);
        o.target_bytes = size[i] - 1;
        must(&o, &r);
        assert_true(r.weight_bytes < size[i] || r.type.kind == CONVERT_MIXED);
        convert_report_release(&r);
    }
    o = options(tiny, NULL, "int8", CONVERT_FAST);
    o.target_bytes = size[2] - 1;
    must_fail(&o, "more than the target");
    o = options(tiny, at("mixed.zse"), "mixed", CONVERT_GOOD);
    must_fail(&o, "target size");
    o.calibration = at("text");
    double last = 1e9;
    for (uint64_t target = size[3] * 3 / 4; target <= size[2]; target += (size[2] - size[3]) /
         (getenv("ZSE_SANITIZED") ? 1 : 3)) {
        unsigned kinds = 0;
        double error = 0;
        o.target_bytes = target;
        must(&o, &r);
        assert_true(r.weight_bytes <= target && r.weight_bytes > target * 95 / 100);
        for (int i = 0; i < r.n_tensors; i++) {
            kinds |= r.tensors[i].vector ? 0 : 1u << qtype_info(r.tensors[i].type)->bits;
            error += r.tensors[i].rel_error;
        }
        print_message("# mixed, at most %llu bytes: %llu, bits 0x%x, sum of relative errors %.3f\n",
                      (unsigned long long)target, (unsigned long long)r.weight_bytes, kinds, error);
        assert_true(error < last);
        last = error;
        convert_report_release(&r);
    }
    o.target_bytes = 1000;
    must_fail(&o, "2 bits everywhere");
}

static void parts_and_globs(void **state)
{
    (void)state;
    struct convert_options o = options(tiny, NULL, "nl4", CONVERT_FAST);
    struct convert_report r;
    const char *skip[] = { "layers.0.*", "*.down_proj.weight" };
    struct err e;
    o.skip = skip;
    o.n_skip = 2;
    o.part[PART_ATTENTION].set = 1;
    assert_int_equal(convert_parse_type(&o.part[PART_ATTENTION].type, "int8", &e), 0);
    must(&o, &r);
    for (int i = 0; i < r.n_tensors; i++) {
        const struct convert_tensor *t = &r.tensors[i];
        if (t->vector)
            continue;
        int kept = strncmp(t->name, "layers.0.", 9) == 0 || strstr(t->name, "down_proj");
        enum qtype want = kept ? (t->source_type == GGML_F32 ? QT_F32 : t->source_type == GGML_BF16 ? QT_BF16 : QT_F16)
                        : strstr(t->name, "q_proj") || strstr(t->name, "k_proj") || strstr(t->name, "v_proj") ||
                            strstr(t->name, "o_proj") ? QT_I8
                        /* gate and up: the bytes saved by 6 bits in the embedding suffice for all
                         * layers */
                        : strstr(t->name, "embed") || strstr(t->name, "head") ? QT_M6 : QT_M5;
        if (t->type != want)
            fail_msg("%s is %s, expected %s", t->name, qtype_info(t->type)->name, qtype_info(want)->name);
    }
    convert_report_release(&r);
    assert_int_equal(convert_part_find("lm_head", 7), PART_LM_HEAD);
    assert_int_equal(convert_part_find("lm_hea", 6), -1);
    assert_int_equal(convert_parse_type(&o.type, "int3", &e), -1);
}

/* ---- refusals ---- */

/* A folder like models/tiny whose safetensors can be changed. */
static const char *copy_of_tiny(struct map *weights, struct err *e)
{
    static char folder[128];
    char from[512], to[512], *cwd = getcwd(NULL, 0);
    snprintf(folder, sizeof folder, "%s/copy", dir);
    remove_tree(folder);
    mkdir(folder, 0755);
    DIR *d = opendir(tiny);
    for (struct dirent *entry; d && (entry = readdir(d));) {
        snprintf(from, sizeof from, "%s/%s/%s", cwd, tiny, entry->d_name);
        snprintf(to, sizeof to, "%s/%s", folder, entry->d_name);
        if (entry->d_name[0] != '.' && strcmp(entry->d_name, "model.safetensors"))
            assert_int_equal(symlink(from, to), 0);
    }
    closedir(d);
    free(cwd);
    snprintf(from, sizeof from, "%s/model.safetensors", tiny);
    assert_int_equal(map_open(weights, from, e), 0);
    return folder;
}

static void a_nan_is_refused_with_its_row_and_column(void **state)
{
    (void)state;
    struct map w;
    struct err e = { 0 };
    const char *folder = copy_of_tiny(&w, &e);
    struct source *s = source_open(tiny, &e);
    assert_non_null(s);
    for (int i = 0; i < s->n_tensors; i += s->n_tensors / 3) {
        const struct source_tensor *t = &s->tensors[i];
        const struct ggml_type_info *info = ggml_type_info(t->type);
        size_t element = (size_t)(t->n_dims > 1 ? t->dim[1] + 5 : 5) * (size_t)info->block_bytes;
        uint8_t *bytes = malloc(w.size);
        char path[256];
        memcpy(bytes, w.data, w.size);
        memset(bytes + t->offset + element, 0xff, (size_t)info->block_bytes);         /* a NaN in every float format */
        snprintf(path, sizeof path, "%s/model.safetensors", folder);
        FILE *f = fopen(path, "wb");
        assert_int_equal(fwrite(bytes, 1, w.size, f), w.size);
        fclose(f);
        for (int effort = CONVERT_FAST; effort <= CONVERT_BEST; effort += getenv("ZSE_SANITIZED")
             ? CONVERT_BEST - CONVERT_FAST : 1) {
            struct convert_options o = options(folder, at("nan.zse"), "nl4", (enum convert_effort)effort);
            o.calibration = effort == CONVERT_FAST ? NULL : at("text");
            char words[256];
            snprintf(words, sizeof words, "%s: %scolumn 5: is not a number", t->name, t->n_dims > 1 ? "row 1, " : "");
            must_fail(&o, words);
            assert_int_equal(access(at("nan.zse"), F_OK), -1);
        }
        free(bytes);
    }
    map_close(&w);
    source_close(s);
}

static void outputs_that_cannot_be_written_are_refused(void **state)
{
    (void)state;
    struct convert_options o = options(tiny, at("x/y.zse"), "f16", CONVERT_FAST);
    struct map w;
    struct err e = { 0 };
    o.overwrite = 0;
    must_fail(&o, "y.zse: No such file");
    o.output = dir;
    must_fail(&o, "is a folder");
    o.output = "-";
    must_fail(&o, "standard output");
    o.output = "/dev/null";
    must_fail(&o, "no regular file");
    o.output = at("text");
    must_fail(&o, "--force");
    o.source = copy_of_tiny(&w, &e);
    map_close(&w);
    char own[256];
    snprintf(own, sizeof own, "%s/config.json", o.source);
    o.output = own;
    o.overwrite = 1;
    must_fail(&o, "part of");
    o = options("/no/such", at("x.zse"), "f16", CONVERT_FAST);
    must_fail(&o, "/no/such: No such file");
    o.source = dir;
    must_fail(&o, "without config.json");
    o = options(tiny, at("x.zse"), "nl4", CONVERT_FAST);
    o.group_size = 64;
    must_fail(&o, "not for nl4");
    must(&(struct convert_options){ .source = tiny, .output = at("x.zse"), .type = { CONVERT_TYPE, QT_NL4 } }, NULL);
    /* made from the same source, so it is replaced */
    must(&(struct convert_options){ .source = tiny, .output = at("x.zse"), .type = { CONVERT_TYPE, QT_NL4 } }, NULL);
    o = options(at("x.zse"), at("z.zse"), "nl4", CONVERT_FAST);
    must_fail(&o, "is a .zse file already");
}

/* A progress callback that asks to stop after some calls: whenever that is, the old file stays and
 * no other file is left behind. */
struct stop { int after, calls; };
static int stop_after(void *user, const char *what, uint64_t done, uint64_t total, const char *unit)
{
    struct stop *s = user;
    (void)what, (void)unit;
    assert_true(done <= total);
    return ++s->calls > s->after;
}

static void cancelling_leaves_no_files(void **state)
{
    (void)state;
    static const enum convert_effort efforts[] = { CONVERT_FAST, CONVERT_GOOD, CONVERT_BEST };
    char folder[128];
    snprintf(folder, sizeof folder, "%s/stop", dir);
    mkdir(folder, 0755);
    const char *out = at("stop/m.zse");
    for (int k = 0; k < 3; k += getenv("ZSE_SANITIZED") ? 2 : 1)
        for (int after = 0; after < 36; after += getenv("ZSE_SANITIZED") ? 15 : 7) {
            struct stop s = { after, 0 };
            struct progress p = { stop_after, &s };
            struct convert_options o = options(tiny, out, "nl4", efforts[k]);
            struct err e = { 0 };
            struct stat st;
            int n = 0;
            FILE *f = fopen(out, "w");
            fclose(f);                      /* an empty file may be replaced */
            o.progress = &p;
            o.calibration = k ? at("text") : NULL;
            assert_int_equal(convert_run(&o, NULL, &e), -1);
            if (e.code != ERR_CANCELLED)
                fail_msg("effort %d, after %d reports: %s", k, after, e.msg);
            assert_true(stat(out, &st) == 0 && st.st_size == 0);
            DIR *d = opendir(folder);
            for (struct dirent *entry; (entry = readdir(d));)
                n += strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..");
            closedir(d);
            assert_int_equal(n, 1);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_stays_within_its_error),
        cmocka_unit_test(gguf_types_with_an_equal_are_kept_exactly),
        cmocka_unit_test(ternary_matrices_are_converted_exactly),
        cmocka_unit_test(other_gguf_types_are_kept_with_small_errors),
        cmocka_unit_test(the_number_of_threads_changes_no_byte),
        cmocka_unit_test(spill_files_change_no_byte_and_are_removed), cmocka_unit_test(sums_before_a_norm_are_planned),
        cmocka_unit_test(channel_scaling_keeps_the_logits), cmocka_unit_test(target_sizes_are_met_or_refused),
        cmocka_unit_test(v_scales_leave_the_gate_norm_beside_attention),
        cmocka_unit_test(parts_and_globs), cmocka_unit_test(a_nan_is_refused_with_its_row_and_column),
        cmocka_unit_test(outputs_that_cannot_be_written_are_refused),
        cmocka_unit_test(cancelling_leaves_no_files),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
