/* open_model.h - MODEL on the command line becomes a model, its tokenizer and an engine: what
 * zse-chat and zse-bench share.
 *
 * MODEL is a .zse, a GGUF file or a Hugging Face folder, told apart by content, or else the name of
 * a model on the hub (cmd/hub_cli.h), which is fetched once; GGUF files and folders are converted
 * once into
 * $XDG_CACHE_HOME/zse (or ~/.cache/zse; by one process, others wait), keyed by samples of their
 *   content, the time of its last change, and the type.  No MODEL: $ZSE_MODEL. */
#ifndef ZSE_CMD_OPEN_MODEL_H
#define ZSE_CMD_OPEN_MODEL_H

#include <getopt.h>
#include <pthread.h>

#include <jansson.h>

#include "cmd/planning.h"
#include "cmd/model_verify.h"
#include "libcommon/engine/engine.h"
#include "libcommon/model/model.h"
#include "libcommon/token/tokenizer.h"

/* ---- options about how a model runs ---- */
struct run_options {
    const char *type;               /* -q: what to convert to; NULL: $ZSE_QUANTIZATION, else as stored */
    const char *kernels;
    int threads, ctx;               /* 0: all processors; the model's context, at most 8192 */
    uint64_t max_memory;            /* bytes of weights that may be resident; 0: any */
    enum kv_type kv; int kv_given;
    int exact;
    int no_prefix_cache;            /* no option: zse-bench computes every prompt */
    const char *device;             /* --device; NULL: $ZSE_DEVICE, else auto */
    int force;                      /* --force: open a model although memory does not suffice */
    enum verify_mode verify;        /* --verify */
    int verbose;                    /* --verbose: say what memory each step takes */
    struct planned_mode mode;       /* --mode: the type by memory, instead of -q */
    int max_seqs; uint64_t kv_most; /* no options: with --mode, sequences and keys and values to be planned for; 0: one sequence */
    int gpu_layers, gpu_layers_given;       /* --gpu-layers: GPU_LAYERS_AUTO, or how many */
    int strict;                     /* --strict */
    int no_graphs, graphs_given;    /* --cuda-graphs */
    int act_int8, act_given;        /* --act */
    int cache_weights, cache_given; /* --cache-weights: enum cache_weights */
    int gpu, gpu_index, gpu_auto;   /* what run_options_check made of it: on a GPU, which, and only because there is one */
};
enum { GPU_LAYERS_AUTO = -1 };
enum { OPT_THREADS = 1000, OPT_CTX, OPT_KV, OPT_KERNELS, OPT_DEVICE, OPT_EXACT, OPT_FORCE, OPT_MAX_MEMORY, OPT_RUN_MODE,
       OPT_VERBOSE, OPT_GPU_LAYERS, OPT_STRICT, OPT_GRAPHS, OPT_ACT, OPT_CACHE_WEIGHTS, OPT_VERIFY };
#define RUN_LONG_OPTIONS \
    { "quantize", required_argument, NULL, 'q' }, { "mode", required_argument, NULL, OPT_RUN_MODE }, { "threads", required_argument, NULL, OPT_THREADS }, { "ctx", required_argument, NULL, OPT_CTX }, \
    { "kv", required_argument, NULL, OPT_KV }, { "kernels", required_argument, NULL, OPT_KERNELS }, { "device", required_argument, NULL, OPT_DEVICE }, \
    { "gpu-layers", required_argument, NULL, OPT_GPU_LAYERS }, { "strict", no_argument, NULL, OPT_STRICT }, \
    { "cuda-graphs", required_argument, NULL, OPT_GRAPHS }, { "act", required_argument, NULL, OPT_ACT }, \
    { "cache-weights", required_argument, NULL, OPT_CACHE_WEIGHTS }, \
    { "exact", no_argument, NULL, OPT_EXACT }, { "force", no_argument, NULL, OPT_FORCE }, \
    { "verify", required_argument, NULL, OPT_VERIFY }, { "verbose", no_argument, NULL, OPT_VERBOSE }
#define RUN_HELP \
    "  -q, --quantize TYPE        type for a GGUF file or folder: nl4, int4, int8, nf4, bf16 ... (default: keep)\n" \
    "      --mode MODE            instead of -q, the type by this machine's memory: auto (the finest that is not much slower than the fastest),\n" \
    "                             min_memory, balanced (int8), max_speed, for_vram=SIZE (the finest that fits)\n" \
    "      --threads N            threads (default: one for each processor)\n" \
    "      --ctx N                context in tokens (default: the model's, at most 8192)\n" \
    "      --kv f32|bf16|f16|fp8|i8  how keys and values are stored (default: f16)\n" \
    "      --exact                f32 activations and f32 keys and values\n" \
    "      --kernels NAME         CPU kernels: ref, avx2, avxvnni, avx512, amx (default: the fastest that run here)\n" \
    "      --device DEVICE        where to compute: auto, cpu, cuda, cuda:N (default: auto)\n" \
    "      --gpu-layers N|auto    the last N layers on the GPU, the others on the processor; auto: as many as fit (default: all)\n" \
    "      --strict               no answer depends on chunks, reused prefixes or batches, on a GPU either (there it is slower)\n" \
    "      --cuda-graphs on|off   a GPU's steps of decoding are recorded once and replayed: the same answers, fewer launches (default: on)\n" \
    "      --act f16|int8         what a GPU rounds activations to before matrices of int8 with one scale a row (default: f16)\n" \
    "      --cache-weights auto|on|off  keep a GPU's packed weights once more as f16, for long prompts: the same answers, more memory (default: off)\n" \
    "      --force                open a model although there is too little memory for it\n" \
    "      --verify auto|first|never  compare a changed file's checksums beside the first answers, before them (zse-bench's default) or not at all\n" \
    "      --verbose              say what memory is in use as the model opens, and how far that is from what was planned\n"
/* Of programs with one model; zse-serve bounds all of its models together. */
#define MEMORY_LONG_OPTION { "max-memory", required_argument, NULL, OPT_MAX_MEMORY }
#define MEMORY_HELP "      --max-memory SIZE      keep at most SIZE of the weights in memory, like 4GB; of a GPU's memory: take at most SIZE (default: all)\n"
/* Take option c.  0 if it was one of these; 2 after a sentence on stderr; -1: it is somebody
 * else's. */
int run_option(const char *prog, int c, const char *arg, struct run_options *r);
const char *run_cache_name(int cache_weights);          /* "off", "auto", "on" */
/* After the last option: combinations, the device, $ZSE_DEVICE.  0, or the exit code after a
 * sentence on stderr. */
int run_options_check(const char *prog, struct run_options *r);

/* ---- models ---- */
struct opened_model {
    struct model *model;
    struct tokenizer *tokenizer;    /* NULL: the file has none */
    const char *name, *prog;        /* as it was asked for, and by whom; borrowed */
    char *path;                     /* of the .zse that is used */
    const json_t *json;             /* zfile_json: borrowed from the model */
    int bounded;                    /* --max-memory: do not bring weights in early */
    enum verify_mode verify;        /* --verify */
    struct model_verify *check;           /* of the file's checksums, as long as it lasts; NULL: none */
    int in_cache;                   /* an automatic conversion */
    uint64_t mapped_ns;             /* when the .zse was mapped and checked: clock_ns() */
    pthread_t warmer; int warming;  /* makes the GPU's context beside the opening */
};
/* Neither path nor ZSE_MODEL names one: 2 after a sentence on stderr; else 0. */
int open_model_unnamed(const char *prog, const char *path);
/* path NULL: $ZSE_MODEL.  Notes about conversions go to stderr in the name of prog. */
int open_model(const char *prog, const char *path, const struct run_options *r, struct opened_model *o, struct err *e);
/* Wait for the check of the file's checksums where one is going on: -1 with *e: it is damaged,
 * and so may be what was computed. */
int open_model_verified(struct opened_model *o, struct err *e);
void close_model(struct opened_model *o);
/* What a GGUF file or folder at path is converted to: -q, --mode, $ZSE_QUANTIZATION, else "keep".
 * Static or of r; NULL with *e.  The same of -q and
 * $ZSE_QUANTIZATION alone; NULL: neither. */
const char *open_model_type(const char *prog, const char *path, const struct run_options *r, const char *name,
                            struct err *e);
const char *open_model_given_type(const struct run_options *r);
/* What r asks of an engine for max_seqs sequences of max_len tokens. */
struct engine_options run_engine_options(const struct run_options *r, int max_seqs, int max_len);
/* An engine for max_seqs sequences of max_len tokens (0: --ctx, else the default), max_tokens a
 * step (0: default).  Refused if memory does not suffice. */
struct engine *open_engine(const struct opened_model *o, const struct run_options *r, int max_seqs, int max_len,
                           int max_tokens, struct err *e);
/* The context that --ctx or the model gives. */
int context_of(const struct config *c, const struct run_options *r);
int context_len(const struct opened_model *o, const struct run_options *r);

#endif
