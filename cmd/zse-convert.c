/* zse-convert.c - make a .zse file from a Hugging Face folder, a GGUF file or a model on the
 * hub. */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cmd/cli.h"
#include "cmd/run_conversion.h"
#include "cmd/zse-convert.h"
#include "cmd/sigbus.h"
#include "cmd/memory_note.h"
#include "cmd/memory_watch.h"
#include "cmd/planning.h"
#include "cmd/preflight_convert.h"
#include "cmd/pull.h"
#include "libcommon/hw/memory.h"

static const char prog[] = "zse-convert";
static const char usage[] =
    "usage: zse-convert SRC -o OUT.zse [OPTIONS]\n"
    "       zse-convert pull NAME [OPTIONS]\n"
    "       zse-convert --synthetic NAME[:LAYERS] -o OUT.zse [OPTIONS]\n"
    "Make a .zse of SRC: a Hugging Face folder (safetensors and config.json), a GGUF file, or a model on the hub:\n"
    "org/name, org/name@revision or org/name:FILE, which is fetched into the cache of the Python tools.\n"
    "pull: make a model that has a name.  NAME is a model of zse-info models list, smollm2:135m,\n"
    "with a type at its end if not nl4, smollm2:135m-int8; org/name on the hub; a folder or a GGUF file.\n"
    "\n"
    "      --as NAME              with pull: another name for the model\n"
    "  -o, --output FILE          the new file; '-': standard output, if that is no terminal\n"
    "  -q, --quantize TYPE        "
#include "libcommon/quant/qtype_options.inc"
    "mixed, keep (default: nl4)\n"
    "  -g, --group-size N         weights that share a scale, int4, int8, t2: 32, 64, 128; int8 also 'row', t2 also 256\n"
    "      --quant NAME=TYPE,...  other types for attention, mlp, experts, embeddings, lm_head, q_proj, k_proj, v_proj, o_proj,\n"
    "                             gate_proj, up_proj, down_proj; of some layers: down_proj@0-3=int8\n"
    "      --ternary RULE         how other weights become ternary: fit, absmean, rms, adaptive, threshold, sign (default: fit)\n"
    "      --lora DIR             merge this LoRA adapter, a folder written by PEFT, into the weights (may be repeated)\n"
    "      --skip GLOB            keep these tensors as they are stored (may be repeated; GLOB,GLOB)\n"
    "      --no-mtp               leave out the layer that some models have to predict further tokens (zse-chat --spec mtp)\n"
    "      --heads FILE           store the Medusa heads of this safetensors file, or the EAGLE heads of this folder, with the model, as int8 (zse-chat --spec medusa, eagle)\n"
    "  -m, --target-memory SIZE   weights of at most this size, as 6GB or 900MiB: alone, the finest type that fits;\n"
    "                             with -q mixed, 2 to 8 bits a tensor where they count most\n"
    "      --quality LEVEL        fast, good, best: the effort of rounding (default: good)\n"
    "      --calibration FILE     text that good and best run through the model (default: built in)\n"
    "      --calibration-memory SIZE  limit of the memory of good and best, besides one expert; the rest is in unnamed files\n"
    "                             beside OUT (default: 200MB for a mixture of experts, else no limit)\n"
    "      --synthetic NAME[:LAYERS]  no SRC: random weights in the shape of a known model (Qwen2.5-7B ...), to measure speed and\n"
    "                             memory; with LAYERS only its first layers\n"
    "      --threads N            threads (default: one for each processor)\n"
    "      --kernels NAME         CPU kernels for runs: ref, avx2, avxvnni, avx512, amx, neon, dotprod, i8mm (default: the fastest)\n"
    "      --checkpoint SECONDS   save the state for a resumed conversion at most this often, after a layer (default: 30)\n"
    "      --no-resume            save no state, and remove that of an interrupted conversion to OUT\n"
    "  -n, --dry-run              print the conversion of each tensor, write nothing\n"
    "      --plan                 print sizes and speeds of SRC as bf16, int8 and nl4, and the types that fit here; SRC may be a config.json, a name of\n"
    "                             zse-info models list or one on the hub; only the configuration is read\n"
    "      --mode MODE            instead of -q: the type for this machine's memory: auto (the finest that is not much slower than the fastest),\n"
    "                             min_memory, balanced (int8), max_speed, for_vram=SIZE (the finest that fits; default with --plan: auto)\n"
    "      --tensors              list every tensor\n"
    "      --json                 a JSON object instead of text\n"
    "      --verbose              print the memory in use, every five layers\n"
    "      --progress bar|json    progress as a bar on a terminal, or as lines of JSON on standard error (default: bar)\n"
    "  -f, --force                replace any OUT, convert even if disk or memory seem too small\n"
    CLI_DEFAULTS_HELP
    "  -h, --help                 show this help\n"
    "  -V, --version              show the version\n"
    "Embeddings and the head get 8 bits where the type has fewer, 6 with ternary and nl4; with nl4 some matrices of the layers get 5 or 6, within 4 % of the size;\n"
    "norms and biases are always f32.  keep: the source's own grid where a type holds it exactly (Q4_0, Q4_1, Q5_0, Q8_0, IQ4_NL, MXFP4, F16 ...),\n"
    "else the nearest.\n";

enum { OPT_QUANT = 300, OPT_SKIP, OPT_QUALITY, OPT_CALIBRATION, OPT_SYNTHETIC, OPT_THREADS, OPT_KERNELS, OPT_TENSORS,
       OPT_JSON, OPT_PLAN, OPT_MODE, OPT_TERNARY, OPT_VERBOSE, OPT_CALIBRATION_MEMORY, OPT_CHECKPOINT, OPT_NO_RESUME,
       OPT_PROGRESS, OPT_AS, OPT_NO_MTP, OPT_LORA, OPT_HEADS };
static const struct option options[] = {
    { "output", required_argument, NULL, 'o' }, { "quantize", required_argument, NULL, 'q' },
        { "group-size", required_argument, NULL, 'g' },
    { "quant", required_argument, NULL, OPT_QUANT }, { "ternary", required_argument, NULL, OPT_TERNARY },
    { "lora", required_argument, NULL, OPT_LORA },
    { "skip", required_argument, NULL, OPT_SKIP },
    { "no-mtp", no_argument, NULL, OPT_NO_MTP }, { "heads", required_argument, NULL, OPT_HEADS },
    { "target-memory", required_argument, NULL, 'm' },
    { "quality", required_argument, NULL, OPT_QUALITY }, { "calibration", required_argument, NULL, OPT_CALIBRATION },
    { "calibration-memory", required_argument, NULL, OPT_CALIBRATION_MEMORY },
    { "synthetic", required_argument, NULL, OPT_SYNTHETIC },
    { "threads", required_argument, NULL, OPT_THREADS }, { "kernels", required_argument, NULL, OPT_KERNELS },
    { "checkpoint", required_argument, NULL, OPT_CHECKPOINT }, { "no-resume", no_argument, NULL, OPT_NO_RESUME },
    { "dry-run", no_argument, NULL, 'n' },
    { "plan", no_argument, NULL, OPT_PLAN }, { "mode", required_argument, NULL, OPT_MODE },
    { "tensors", no_argument, NULL, OPT_TENSORS }, { "json", no_argument, NULL, OPT_JSON },
    { "verbose", no_argument, NULL, OPT_VERBOSE }, { "force", no_argument, NULL, 'f' },
    { "progress", required_argument, NULL, OPT_PROGRESS }, { "as", required_argument, NULL, OPT_AS },
    CLI_DEFAULTS_OPTION, { "help", no_argument, NULL, 'h' }, { "version", no_argument, NULL, 'V' }, { NULL, 0, NULL, 0 },
};

struct arguments {
    struct convert_options o;
    struct convert_rule *rules;         /* --quant; owned */
    const char **skip; int n_skip;      /* point into argv's strings, cut at commas */
    const char **lora; int n_lora;      /* --lora; point into argv */
    int type_given, ternary_given, force, json, tensors, dry_run, plan, verbose;
    struct planned_mode mode;
    char *found;                        /* SRC, as a path; owned */
    int pull;                           /* SRC is to become a model with a name */
    const char *as;                     /* --as */
    struct pulled pulled;
};

static int add_globs(struct arguments *a, char *list)
{
    for (char *glob = strtok(list, ","); glob; glob = strtok(NULL, ",")) {
        const char **skip = realloc(a->skip, (size_t)(a->n_skip + 1) * sizeof *skip);
        if (!skip)
            return cli_wrong(prog, "--skip: out of memory");
        a->skip = skip;
        a->skip[a->n_skip++] = glob;
    }
    return 0;
}

/* Parse a list such as "attention=bf16,lm_head=int8,down_proj@0-3=int8".  Items for whole parts are
 * stored in o.part, all others as rules. */
static int add_parts(struct arguments *a, char *list)
{
    for (char *item = strtok(list, ","); item; item = strtok(NULL, ",")) {
        struct convert_rule r, *rules;
        struct err e;
        if (convert_parse_rule(&r, item, &e))
            return cli_wrong(prog, "--quant: %s", e.msg);
        if (!r.roles && r.first_layer < 0) {
            a->o.part[r.part].type = r.type;
            a->o.part[r.part].set = 1;
            continue;
        }
        if (!(rules = realloc(a->rules, (size_t)(a->o.n_rules + 1) * sizeof *rules)))
            return cli_wrong(prog, "--quant: out of memory");
        rules[a->o.n_rules++] = r;
        a->o.rules = a->rules = rules;
    }
    return 0;
}

static int add_lora(struct arguments *a, const char *folder)
{
    const char **lora = realloc(a->lora, (size_t)(a->n_lora + 1) * sizeof *lora);
    if (!lora)
        return cli_wrong(prog, "--lora: out of memory");
    a->lora = lora;
    a->lora[a->n_lora++] = folder;
    return 0;
}

static int parse_group(struct arguments *a, const char *text)
{
    long long v;
    if (strcmp(text, "row") == 0) {
        a->o.group_size = -1;
        return 0;
    }
    if (cli_parse_int(prog, "--group-size", text, 32, 256, &v))
        return CLI_USAGE;
    if (v & (v - 1))
        return cli_wrong(prog, "--group-size: %lld is not 32, 64, 128, 256 or 'row'", v);
    a->o.group_size = (int)v;
    return 0;
}

static int parse_quality(struct arguments *a, const char *text)
{
    static const char *const levels[] = { "fast", "good", "best" };
    for (int i = 0; i < 3; i++)
        if (strcmp(text, levels[i]) == 0) {
            a->o.effort = (enum convert_effort)i;
            return 0;
        }
    return cli_wrong(prog, "--quality: '%s' is not fast, good or best", text);
}

static int parse_ternary(struct arguments *a, const char *text)
{
    for (int i = 0; i < N_TERNARY; i++)
        if (strcmp(text, ternary_name((enum ternary_fit)i)) == 0) {
            a->o.ternary = (enum ternary_fit)i;
            a->ternary_given = 1;
            return 0;
        }
    return cli_wrong(prog, "--ternary: '%s' is not fit, absmean, rms, adaptive, threshold or sign", text);
}

static int take(struct arguments *a, int c, char *arg)
{
    struct err e;
    long long v;
    switch (c) {
    case 'o': a->o.output = arg; return 0;
    case 'q':
        a->type_given = 1;
        a->o.keep_grid = 0;
        return convert_parse_type(&a->o.type, arg, &e) ? cli_wrong(prog, "-q: %s", e.msg) : 0;
    case 'g':             return parse_group(a, arg);
    case OPT_QUANT:       return add_parts(a, arg);
    case OPT_SKIP:        return add_globs(a, arg);
    case OPT_LORA:        return add_lora(a, arg);
    case OPT_HEADS:
        a->o.heads = arg;
        return *arg ? 0 : cli_wrong(prog, "--heads: expected a FILE");
    case OPT_NO_MTP:      a->o.no_predictor = 1; return 0;
    case 'm':             return cli_parse_size(prog, "--target-memory", arg, &a->o.target_bytes);
    case OPT_QUALITY:     return parse_quality(a, arg);
    case OPT_TERNARY:     return parse_ternary(a, arg);
    case OPT_CALIBRATION: a->o.calibration = arg; return 0;
    case OPT_CALIBRATION_MEMORY: return cli_parse_size(prog, "--calibration-memory", arg, &a->o.calibration_memory);
    case OPT_SYNTHETIC:   a->o.synthetic = arg; return 0;
    case OPT_THREADS:
        if (cli_parse_int(prog, "--threads", arg, 1, 4096, &v))
            return CLI_USAGE;
        a->o.n_threads = (int)v;
        return 0;
    case OPT_KERNELS: a->o.kernels = arg; return 0;
    case OPT_CHECKPOINT:
        if (cli_parse_int(prog, "--checkpoint", arg, 0, 1 << 30, &v))
            return CLI_USAGE;
        a->o.checkpoint_s = (double)v;
        return 0;
    case OPT_NO_RESUME: a->o.no_resume = 1; return 0;
    case 'n':         a->dry_run = 1; return 0;
    case OPT_TENSORS: a->tensors = 1; return 0;
    case OPT_PLAN:    a->plan = 1; return 0;
    case OPT_MODE:    return planned_mode_parse(prog, arg, &a->mode);
    case OPT_JSON:    a->json = 1; return 0;
    case OPT_VERBOSE: a->verbose = 1; return 0;
    case OPT_PROGRESS: return cli_progress_form(prog, arg);
    case OPT_AS:      a->as = arg; return 0;
    case 'f':         a->force = a->o.overwrite = 1; return 0;
    default:          return CLI_USAGE;
    }
}

static int is_ternary(struct convert_type t)
{
    return t.kind == CONVERT_TYPE && qtype_is_ternary(qtype_info(t.qtype));
}

static int wants_ternary(const struct convert_options *o)
{
    int some = is_ternary(o->type);
    for (int i = 0; i < N_PARTS; i++)
        some |= o->part[i].set && is_ternary(o->part[i].type);
    for (int i = 0; i < o->n_rules; i++)
        some |= is_ternary(o->rules[i].type);
    return some;
}

/* zse-convert pull: derive source, type and output from the name.  0, or the exit code. */
static int name_pulled(struct arguments *a)
{
    struct err e;
    if (pull_resolve(&a->pulled, a->o.source, a->as, &e) != 0)
        return cli_fail(prog, &e);
    if (*a->pulled.type && a->type_given)
        return cli_wrong(prog, "%s names the type %s: it excludes -q", a->o.source, a->pulled.type);
    if (*a->pulled.type && convert_parse_type(&a->o.type, a->pulled.type, &e) == 0) {
        a->type_given = 1;
        a->o.keep_grid = 0;
    }
    a->o.source = a->pulled.source;
    a->o.output = a->pulled.path;
    return 0;
}

static int check(struct arguments *a, int argc, char **argv)
{
    if (argc - optind != (a->o.synthetic ? 0 : 1))
        return a->o.synthetic ? cli_wrong(prog, "--synthetic reads no SRC: unexpected argument '%s'", argv[optind])
                              : cli_usage(usage);
    a->o.source = a->o.synthetic ? a->o.synthetic : argv[optind];
    if (a->as && !a->pull)
        return cli_wrong(prog, "--as goes with pull");
    if (a->pull && (a->o.output || a->o.synthetic || a->plan))
        return cli_wrong(prog, "pull chooses the output by the model's name: it excludes -o, --synthetic and --plan");
    if (a->pull && *a->o.source) {
        const int rc = name_pulled(a);
        if (rc)
            return rc;
    }
    if (!*a->o.source || (a->o.output && !*a->o.output))
        return cli_wrong(prog, "%s is an empty name", *a->o.source ? "-o" : "SRC");
    a->o.skip = a->skip;
    a->o.n_skip = a->n_skip;
    a->o.lora = a->lora;
    a->o.n_lora = a->n_lora;
    if (a->n_lora && (a->o.synthetic || a->plan))
        return cli_wrong(prog, "--lora changes the weights of a source: it excludes --synthetic and --plan");
    if (a->o.heads && a->plan)
        return cli_wrong(prog, "--heads is stored with a converted model: it excludes --plan");
    if (a->mode.given && (a->type_given || a->o.target_bytes || a->o.synthetic))
        return cli_wrong(prog, "--mode chooses the type by this machine's memory: it excludes -q, --target-memory and --synthetic");
    if (a->plan && (a->o.output || a->dry_run || a->type_given || a->tensors || a->verbose || a->o.synthetic))
        return cli_wrong(prog, "--plan writes nothing and compares types: it excludes -o, -n, -q, --tensors, --verbose and --synthetic");
    if (a->plan)
        return 0;
    if (a->ternary_given && !wants_ternary(&a->o))
        return cli_wrong(prog, "--ternary goes with a ternary type, for all (-q ternary) or some (--quant)");
    if (!a->o.output && !a->dry_run)
        return cli_wrong(prog, "-o OUT.zse is needed: where to write");
    if (a->dry_run)
        a->o.output = NULL;
    if (a->o.output && strcmp(a->o.output, "-") == 0 && isatty(STDOUT_FILENO))
        return cli_wrong(prog, "-o -: a model is not written to a terminal");
    if (a->o.output && strcmp(a->o.output, "-") == 0 && (a->json || a->tensors))
        return cli_wrong(prog, "-o -: standard output is the model, so --json and --tensors have no place");
    if (a->o.target_bytes && !a->type_given)
        a->o.type = (struct convert_type){ CONVERT_FIT, 0 }, a->o.keep_grid = 0;
    if (a->o.type.kind == CONVERT_MIXED && !a->o.target_bytes)
        return cli_wrong(prog, "-q mixed: needs --target-memory");
    if (a->o.synthetic && (a->o.calibration || a->o.calibration_memory || a->o.type.kind == CONVERT_MIXED))
        return cli_wrong(prog, "--synthetic: random weights have no errors to weigh: neither --calibration, --calibration-memory nor -q mixed");
    if ((a->o.calibration || a->o.calibration_memory) && a->o.effort == CONVERT_FAST)
        return cli_wrong(prog, "--calibration%s: --quality fast runs no text", a->o.calibration ? "" : "-memory");
    return 0;
}

/* ---- standard output: the file is written first, because its header is known last ---- */

/* Copy the file at path to standard output.  It is unlinked first, because writing to a closed pipe
 * ends the program. */
static int copy_out(const char *path, const char *dir, struct err *e)
{
    char buf[1 << 16];
    FILE *f = fopen(path, "rb");
    size_t n;
    if (!f)
        return err_sys(e, "%s", path);
    unlink(path);
    rmdir(dir);
    while ((n = fread(buf, 1, sizeof buf, f)) > 0)
        if (fwrite(buf, 1, n, stdout) != n) {
            err_sys(e, "standard output");
            break;
        }
    int bad = n > 0 || ferror(f);
    fclose(f);
    return bad ? -1 : 0;
}

static int convert_to_stdout(struct arguments *a, struct hub_stream *stream, struct convert_report *r, struct err *e)
{
    const char *tmp = getenv("TMPDIR");
    char dir[4096], path[4096 + 16];
    if ((size_t)snprintf(dir, sizeof dir, "%s/zse-convert-XXXXXX", tmp && *tmp ? tmp : "/tmp") >= sizeof dir ||
        !mkdtemp(dir)) {
        err_sys(e, "%s", dir);
        if (stream)
            hub_stream_close(stream, -1, &a->found, e);
        return -1;
    }
    snprintf(path, sizeof path, "%s/model.zse", dir);
    a->o.output = path;
    a->o.no_resume = 1;                 /* the next run uses a folder with another name */
    int rc = run_conversion(prog, &a->o, stream, &a->found, r, e);
    if (rc == 0)
        rc = copy_out(path, dir, e);
    unlink(path);
    rmdir(dir);
    a->o.output = "-";
    return rc;
}

/* ---- running ---- */

static int writes_to_stdout(const struct arguments *a) { return a->o.output && strcmp(a->o.output, "-") == 0; }

/* --mode: choose the type that suits this machine. */
static int choose_type(struct arguments *a, struct err *e)
{
    enum { CONTEXT = 4096 };
    struct planned_choices s = { 0 };
    struct memory m;
    char *title, size[CLI_BYTES];
    json_t *config = planned_config(a->o.source, &title, e);
    const struct planned_query ask = { .name = a->o.source, .path = a->o.source, .config = config, .context = CONTEXT,
                                     .n_threads = a->o.n_threads, .kernels = a->o.kernels,
                                     .measure = a->mode.mode == PLAN_AUTO || a->mode.mode == PLAN_MAX_SPEED };
    int best = config && memory_read(&m, preflight_root(), e) == 0 &&
               planned_compare(&s, &ask, e) == 0 ? planned_choose(&s, a->o.source, &a->mode, memory_now(&m), e) : -1;
    const int rc = best < 0 ? -1 : convert_parse_type(&a->o.type, s.c[best].type, e);
    if (rc == 0) {
        a->o.keep_grid = 0;
        cli_note(prog, "--mode %s: %s, %s to run", plan_mode_name(a->mode.mode), s.c[best].type,
                 cli_bytes(size, s.c[best].bytes));
    }
    planned_choices_close(&s);
    json_decref(config);
    free(title);
    return rc;
}

static void say_memory(void *user, int layer)
{
    char what[40];
    if (layer % 5)
        return;
    (void)user;
    snprintf(what, sizeof what, "layer %d", layer);
    memory_note(prog, what);
}

/* Convert a->o.source, whose shards may still be downloading. */
static int convert(struct arguments *a, struct hub_stream *stream, struct convert_report *r, struct err *e)
{
    if (a->verbose) {
        a->o.layer = say_memory;
        memory_note(prog, "start");
    }
    const int rc = writes_to_stdout(a) ? convert_to_stdout(a, stream, r, e)
                                       : run_conversion(prog, &a->o, stream, &a->found, r, e);
    if (a->verbose && rc == 0)
        memory_note(prog, "end");
    return rc;
}

/* A convert_options.replace: ask the user on a terminal. */
static int ask_replace(void *user, const char *path, const char *what)
{
    (void)user;
    cli_progress_clear();
    const int yes = cli_ask("%s: %s exists (%s).  Replace it?", prog, path, what);
    cli_die_of_interrupt();             /* if Ctrl-C was pressed; nothing has been written yet */
    return yes;
}

/* Before a download, ask or refuse to replace OUT: if the model is not in the cache, OUT cannot
 * be an earlier conversion of it. */
static int check_before_download(struct arguments *a, struct err *e)
{
    struct hub_name name;
    struct stat st;
    char *path;
    if (a->o.synthetic || a->o.overwrite || !a->o.output || writes_to_stdout(a) || stat(a->o.output, &st) != 0 ||
        !S_ISREG(st.st_mode) || st.st_size == 0)
        return 0;
    const int rc = hub_is_name(a->o.source, &name, &path, e);
    if (rc == 1)
        path = hub_cached(&name);
    const int is_here = path != NULL;
    free(path);
    if (rc < 0 || is_here)
        return rc < 0 ? -1 : 0;
    a->o.overwrite = ask_replace(NULL, a->o.output, "not a conversion of this model");
    return a->o.overwrite ? 0 : err_set(e, ERR_IO, "%s: exists; it is only replaced with --force", a->o.output);
}

/* Resolve the source: a->o.source becomes a path. */
static int find_source(struct arguments *a, const struct hub_check *check, struct hub_stream **stream, struct err *e)
{
    *stream = NULL;
    if (a->o.synthetic)
        return 0;
    struct stat st;
    /* opening a pipe would wait for its writer */
    if (stat(a->o.source, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))
        return err_set(e, ERR_IO, "%s: neither a regular file nor a folder", a->o.source);
    const int rc = a->o.output && !a->mode.given ? hub_stream_open(stream, prog, a->o.source, 1, check, &a->found, e)
                                                 : hub_model_path(prog, a->o.source, 1, a->o.output ? check : NULL,
                                                                  &a->found, e);
    if (rc == 0)
        a->o.source = a->found;
    return rc;
}

static int run(struct arguments *a)
{
    struct convert_report r = { 0 };
    struct hub_stream *stream;
    struct err e = { 0 };
    const char *tmp = getenv("TMPDIR");
    const int to_stdout = writes_to_stdout(a);
    struct preflight_convert pre = { .prog = prog, .name = a->o.source, .output = !to_stdout ? a->o.output
        : tmp && *tmp ? tmp : "/tmp", .target_bytes = a->o.target_bytes,
                                     .type = a->o.type.kind == CONVERT_TYPE &&
                                     !a->mode.given ? convert_type_label(a->o.type) : NULL, .force = a->force };
    const struct hub_check check = { preflight_fetch, &pre };
    a->o.replace = ask_replace;
    if (!a->force)
        memory_watch_start(prog);
    if (check_before_download(a, &e) != 0 || find_source(a, &check, &stream, &e) != 0 ||
        (a->mode.given && choose_type(a, &e) != 0))
        return cli_fail(prog, &e);
    a->o.before = preflight_convert;
    a->o.before_user = &pre;
    if (convert(a, stream, &r, &e) != 0) {
        convert_report_release(&r);
        if (e.code == ERR_CANCELLED)
            cli_die_of_interrupt();
        return cli_fail(prog, &e);
    }
    if (r.n_requantized && a->o.output)
        cli_note(prog, r.n_requantized == 1 ? "warning: %d tensor was quantized in the source already and is rounded a second time; -q keep keeps its grid"
                                             : "warning: %d tensors were quantized in the source already and are rounded a second time; -q keep keeps their grid", r.n_requantized);
    if (a->o.output)
        convert_warn_inexact(prog, &r);
    if (a->pull && a->o.output)
        cli_note(prog, "%s is ready: zse-chat %s", a->pulled.name, a->pulled.name);
    if (a->json)
        convert_print_json(&a->o, &r, a->tensors);
    else if (!to_stdout)
        convert_print_text(&a->o, &r, a->tensors);
    convert_report_release(&r);
    return cli_finish(prog);
}

int main(int argc, char **argv)
{
    struct arguments a = { 0 };
    int c, rc;
    cli_start();
    sigbus_start(prog);
    convert_defaults(&a.o);
    if (argc > 1 && strcmp(argv[1], "pull") == 0 && access("pull", F_OK) != 0) {
        a.pull = 1;
        argc--;
        argv++;
    }
    while ((c = cli_getopt(argc, argv, "o:q:g:m:nfhV", options)) != -1) {
        if (c == 'h')
            return cli_help(usage);
        if (c == CLI_PRINT_DEFAULTS)
            return cli_defaults(usage);
        if (c == 'V')
            return cli_version(prog);
        if (c == '?')
            return cli_usage(usage);
        if ((rc = take(&a, c, optarg)) != 0)
            return rc;
    }
    if ((rc = check(&a, argc, argv)) == 0)
        rc = a.plan ? convert_plan(&a.o, &a.mode, a.json) : run(&a);
    free(a.rules);
    free(a.skip);
    free(a.lora);
    free(a.found);
    pull_release(&a.pulled);
    return rc;
}
