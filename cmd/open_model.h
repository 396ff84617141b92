/* open_model.h - open MODEL of the command line: a model, its tokenizer and an engine, for
 * zse-chat, zse-bench and zse-serve.
 *
 * MODEL is a .zse, a GGUF file or a Hugging Face folder, which are told apart by their content, or
 * else the name of a model on the hub (cmd/hub_cli.h), which is fetched once.  GGUF files and
 * folders are converted once, by one process while others wait, into $XDG_CACHE_HOME/zse (or
 * ~/.cache/zse).  The key of a conversion is made of samples of the content, the time of its last
 * change, and the type.  Without MODEL $ZSE_MODEL is used, or else the default
 * (home_model_named). */
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

/* ---- options that control how a model runs ---- */
enum { MOST_LORA_OPTIONS = 64 };
/* Kinds of speculative decoding.  SPEC_AUTO uses ngram, and mtp or else eagle or medusa if the
 * model's file has it, each only if model and device support it.  The other kinds are refused if
 * model or device do not support them. */
enum spec { SPEC_OFF, SPEC_AUTO, SPEC_NGRAM, SPEC_MTP, SPEC_DRAFT, SPEC_SELF, SPEC_MEDUSA, SPEC_EAGLE };
struct run_options {
    const char *type;               /* -q: the type to convert to; NULL: $ZSE_QUANTIZATION, else as stored */
    const char *kernels;
    int threads, ctx;               /* 0: all processors; 0: the model's context, at most 8192 */
    uint64_t max_memory;            /* most bytes of weights that may be resident; 0: no limit */
    uint64_t most_adapted;          /* most bytes of weights and adapters together; 0: no limit */
    /* the last --kv and the one before it, and the number of times that --kv was given */
    struct kv_types kv, kv_before; int kv_given;
    int window, sinks, sinks_given; /* --window, --sinks; window 0: as the model has it */
    int pages, sliding, sliding_sinks;      /* --attention pages:N, sliding:N+S; 0: neither */
    struct sparse_pattern pattern;  /* --attention bigbird:N+R, blocks:S+N; unit 0: neither */
    int exact;
    int no_prefix_cache;            /* has no option: set by zse-bench, which computes every prompt */
    /* not options: the folder of prefixes (NULL: none), its largest size (0: the engine's
     * default), and the program's name in messages about its failures */
    const char *prefix_folder, *prefix_prog; uint64_t prefix_bytes;
    /* not options: zse-serve also opens models that only embed, and it can unload other models: a
     * dense model that does not fit is refused */
    int embeds, shares_memory;
    const char *device;             /* --device; NULL: $ZSE_DEVICE, else auto */
    /* --gpus and --pp-split; their texts, NULL: not given; n_split: numbers in --pp-split.  After
     * run_options_check, gpus.n is 0 unless there are several. */
    struct backend_gpus gpus; const char *gpus_text, *split_text; int n_split;
    int tp;                         /* --tp: GPUs that share every layer; 0, 1: none */
    int force;                      /* --force: open a model even if memory does not suffice */
    enum verify_mode verify;        /* --verify */
    int verbose;                    /* --verbose: print the memory that each step takes */
    struct planned_mode mode;       /* --mode: choose the type by memory, instead of -q */
    /* not options: with --mode, the number of sequences (0: one) and the limit of keys and values
     * to plan for */
    int max_seqs; uint64_t kv_most;
    int gpu_layers, gpu_layers_given;       /* --gpu-layers: GPU_LAYERS_AUTO, or a number */
    int moe, moe_given;             /* --moe: enum moe_place */
    int gpu_experts, experts_given; /* --gpu-experts */
    int prefill_threshold, threshold_given; /* --gpu-prefill-threshold: tokens, or 0: auto */
    int no_gpu_prefill;             /* --no-gpu-prefill */
    int expert_uploads, uploads_given;      /* --expert-uploads: percent, or EXPERT_UPLOADS_AUTO */
    /* --layer-window: enum layer_stream, the number of layers (0: as many as fit), and whether all
     * pass through the window; --prefetch; --max-device: bytes, 0: no limit */
    int layer_stream, stream_window, stream_sequential, stream_given;
    int prefetch, prefetch_given;
    uint64_t max_device;
    int strict;                     /* --strict */
    enum spec spec; int spec_given; /* --spec */
    /* the parts of ngram:N, mtp:N, draft:N:MODEL, self:N:LAYERS, medusa:N:FILE, eagle:N:DIR:
     * N (0: chosen by measured times), LAYERS, MODEL, FILE or DIR (NULL: the heads
     * in the model's file) */
    int draft, draft_layers; const char *draft_model, *heads;
    int draft_distribution, exact_given;    /* --spec-exact */
    int no_graphs, graphs_given;    /* --cuda-graphs */
    int act_codes, act_given;       /* --act: enum act_codes */
    int cache_weights, cache_given; /* --cache-weights: enum cache_weights */
    /* set by run_options_check: run on a GPU, its index, and whether --device auto chose it */
    int gpu, gpu_index, gpu_auto;       /* gpu_index: of several, the first */
    /* --lora: LoRA adapters, each a name (not terminated) and a folder */
    int n_loras;
    struct lora_option { const char *name; int name_len; const char *folder; } loras[MOST_LORA_OPTIONS];
};
enum { GPU_LAYERS_AUTO = -1 };
enum { OPT_THREADS = 1000, OPT_CTX, OPT_KV, OPT_KERNELS, OPT_DEVICE, OPT_EXACT, OPT_FORCE, OPT_MAX_MEMORY, OPT_RUN_MODE,
       OPT_LAYER_WINDOW, OPT_PREFETCH, OPT_MAX_DEVICE, OPT_GPUS, OPT_PP_SPLIT, OPT_TP,
       OPT_VERBOSE, OPT_SPEC, OPT_GPU_LAYERS, OPT_STRICT, OPT_GRAPHS, OPT_ACT, OPT_CACHE_WEIGHTS, OPT_VERIFY,
       OPT_STREAM, OPT_SINKS, OPT_SPEC_EXACT, OPT_LORA, OPT_ATTENTION, OPT_MOE, OPT_GPU_EXPERTS, OPT_PREFILL_THRESHOLD,
       OPT_NO_GPU_PREFILL, OPT_EXPERT_UPLOADS };
#define RUN_LONG_OPTIONS \
    { "quantize", required_argument, NULL, 'q' }, \
    { "mode", required_argument, NULL, OPT_RUN_MODE }, \
    { "threads", required_argument, NULL, OPT_THREADS }, \
    { "ctx", required_argument, NULL, OPT_CTX }, \
    { "kv", required_argument, NULL, OPT_KV }, \
    { "attention", required_argument, NULL, OPT_ATTENTION }, \
    { "kernels", required_argument, NULL, OPT_KERNELS }, \
    { "device", required_argument, NULL, OPT_DEVICE }, \
    { "gpus", required_argument, NULL, OPT_GPUS }, \
    { "pp-split", required_argument, NULL, OPT_PP_SPLIT }, \
    { "tp", required_argument, NULL, OPT_TP }, \
    { "gpu-layers", required_argument, NULL, OPT_GPU_LAYERS }, \
    { "moe", required_argument, NULL, OPT_MOE }, \
    { "gpu-experts", required_argument, NULL, OPT_GPU_EXPERTS }, \
    { "gpu-prefill-threshold", required_argument, NULL, OPT_PREFILL_THRESHOLD }, \
    { "no-gpu-prefill", no_argument, NULL, OPT_NO_GPU_PREFILL }, \
    { "expert-uploads", required_argument, NULL, OPT_EXPERT_UPLOADS }, \
    { "layer-window", required_argument, NULL, OPT_LAYER_WINDOW }, \
    { "prefetch", required_argument, NULL, OPT_PREFETCH }, \
    { "max-device", required_argument, NULL, OPT_MAX_DEVICE }, \
    { "strict", no_argument, NULL, OPT_STRICT }, \
    { "cuda-graphs", required_argument, NULL, OPT_GRAPHS }, \
    { "act", required_argument, NULL, OPT_ACT }, \
    { "cache-weights", required_argument, NULL, OPT_CACHE_WEIGHTS }, \
    { "exact", no_argument, NULL, OPT_EXACT }, \
    { "force", no_argument, NULL, OPT_FORCE }, \
    { "verify", required_argument, NULL, OPT_VERIFY }, \
    { "verbose", no_argument, NULL, OPT_VERBOSE }
/* Help texts, which follow cmd/quantize_help.inc. */
#define RUN_HELP \
    "      --mode MODE            instead of -q, the type by this machine's memory: auto (the finest that is not much slower than the fastest),\n" \
    "                             min_memory, balanced (int8), max_speed, for_vram=SIZE (the finest that fits)\n" \
    "      --threads N            threads (default: one for each processor)\n" \
    "      --ctx N                context in tokens (default: the model's, at most 8192)\n" \
    "      --kv f32|bf16|f16|fp8|i8|i4|ternary  the type of keys and values, or of each: k=i8,v=i4 (default: f16)\n" \
    "      --attention WAY        the tokens that a token sees: exact: all; pages:N: in long contexts the N pages of 16 that may matter most; sliding:N[+S]: the newest N, and the first S;\n" \
    "                             bigbird:N+R, blocks:S[+N]: of the blocks of 64 tokens its own, the first, the N before it, and R random ones or every S-th (default: exact)\n" \
    "      --exact                f32 activations and f32 keys and values\n" \
    "      --kernels NAME         CPU kernels: ref, avx2, avxvnni, avx512, amx, neon, dotprod, i8mm (default: the fastest)\n" \
    "      --device DEVICE        where to compute: auto, cpu, cuda, cuda:N (default: auto)\n" \
    "      --gpus LIST            divide the layers between these GPUs, like 0,1: each holds and computes its own\n" \
    "      --pp-split LIST        with --gpus, the number of layers of each, with --tp of each N, like 20,21,20 (default: evenly, the remainder to the first)\n" \
    "      --tp N                 share every layer between N GPUs, the first ones or each N of --gpus: each computes some heads, a part of the MLP, some experts\n" \
    "      --gpu-layers N|auto    the last N layers on the GPU, the others on the CPU; auto: as many as fit (default: all)\n" \
    "      --moe hybrid|cpu|gpu   where a GPU's layers compute the experts that a router chooses: on both, as many on the GPU as fit; on the CPU;\n" \
    "                             or all on the GPU (default: hybrid)\n" \
    "      --gpu-experts N        keep N experts of each layer on the GPU; for the others see --expert-uploads (default: as many as fit)\n" \
    "      --gpu-prefill-threshold auto|N  in steps of at least N tokens the GPU computes all experts, and those that it lacks are uploaded;\n" \
    "                             auto: from the measured break-even of link and CPU (default: auto)\n" \
    "      --no-gpu-prefill       never upload all experts for long prompts\n" \
    "      --expert-uploads auto|N  of the chosen experts that the GPU lacks, upload N percent for it while the CPU computes the others;\n" \
    "                             auto: by the measured speeds of link and CPU (default: auto)\n" \
    "      --layer-window auto|off|[sequential:]N  hold N layers in a GPU's memory and upload the others at every step; auto: if they do not all fit (default: auto)\n" \
    "      --prefetch N           with a window of layers, upload N of them ahead (default: 2)\n" \
    "      --max-device SIZE      take at most SIZE of each GPU's memory, like 4GB (default: what is free)\n" \
    "      --strict               no answer depends on chunks, reused prefixes or batches, on a GPU either (there it is slower)\n" \
    "      --cuda-graphs on|off   record a GPU's decoding steps once and replay them: the same answers, fewer launches (default: on)\n" \
    "      --act f16|int8|fp8     the type of a GPU's activations: int8 before int8 matrices with one scale per row, fp8 before\n" \
    "                             fp8 ones with more than 128 tokens (default: f16)\n" \
    "      --cache-weights auto|on|off  keep an f16 copy of a GPU's packed weights, for long prompts: the same answers, more memory (default: off)\n" \
    "      --force                open a model even if there is too little memory for it\n" \
    "      --verify auto|first|never  compare a changed file's checksums during the first answers, before them (zse-bench's default), or never\n" \
    "      --verbose              print the memory in use while the model opens, compared with the plan\n"
/* Options of programs that generate answers. */
#define SPEC_LONG_OPTIONS { "spec", required_argument, NULL, OPT_SPEC }, { "spec-exact", required_argument, NULL, OPT_SPEC_EXACT }
#define SPEC_HELP \
    "      --spec auto|ngram|mtp|off  guess next tokens and check several in a step where that pays, for the same answers sooner;\n" \
    "                             ngram: guesses from earlier text; mtp: from the model's own layer that predicts further tokens; auto: from both;\n" \
    "                             draft:MODEL: from a smaller model with the same tokenizer; self:LAYERS: from the model's first layers;\n" \
    "                             medusa: from heads that were trained for the model, in its file, medusa:FILE: in a safetensors file;\n" \
    "                             eagle, eagle:DIR: from a layer that was trained beside the model (EAGLE, EAGLE-3), likewise (default: auto)\n" \
    "      --spec-exact tokens|distribution  answers with guesses are the same as without, or only as likely, and sooner (default: tokens)\n"
#define LORA_LONG_OPTION { "lora", required_argument, NULL, OPT_LORA }
/* Options of programs whose answers may be longer than the model's context. */
#define STREAM_LONG_OPTIONS { "window", required_argument, NULL, OPT_STREAM }, { "sinks", required_argument, NULL, OPT_SINKS }
#define STREAM_HELP \
    "      --window N             see the newest N tokens and the sinks only, so that keys and values take no more memory up to --ctx\n" \
    "      --sinks S              with --window, also see the first S tokens (default: 4)\n"
/* An option of programs with one model; zse-serve limits all of its models together. */
#define MEMORY_LONG_OPTION { "max-memory", required_argument, NULL, OPT_MAX_MEMORY }
#define MEMORY_HELP "      --max-memory SIZE      keep at most SIZE of the weights in memory, like 4GB; of a GPU's memory: take at most SIZE (default: all)\n"
/* Handle option c.  0: it was one of these options; 2: it was one with a wrong argument, after a
 * message on stderr; -1: it is not one of these. */
int run_option(const char *prog, int c, const char *arg, struct run_options *r);
/* Write the types in the form that --kv takes.  Returns out. */
enum { KV_TEXT = 24 };
const char *kv_text(struct kv_types kv, char out[KV_TEXT]);
/* Write the way in the form that --attention takes.  Returns out. */
enum { ATTENTION_TEXT = 32 };
const char *run_attention_text(const struct run_options *r, char out[ATTENTION_TEXT]);
const char *run_moe_name(int moe);                      /* "hybrid", "cpu", "gpu" */
const char *run_cache_name(int cache_weights);          /* "off", "auto", "on" */
/* Call after the last option: checks combinations, the device, $ZSE_DEVICE.  0, or the exit code
 * after a message on stderr. */
int run_options_check(const char *prog, struct run_options *r);

/* ---- models ---- */
struct opened_model {
    struct model *model;
    struct tokenizer *tokenizer;    /* NULL: the file has none */
    const char *name, *prog;        /* the name as given, and the program; borrowed */
    char *path;                     /* path of the .zse that is used */
    const json_t *json;             /* zfile_json: borrowed from the model */
    int bounded;                    /* --max-memory was given: do not read weights in advance */
    enum verify_mode verify;        /* --verify */
    struct model_verify *check;           /* the running check of the checksums; NULL: none */
    struct opened_model *draft;     /* model of --spec draft:MODEL, owned; NULL: none */
    struct medusa *heads;           /* of --spec medusa:FILE, owned; NULL: none */
    struct eagle *eagle;            /* of --spec eagle:DIR, owned; NULL: none */
    int in_cache;                   /* the .zse is an automatic conversion in the cache */
    uint64_t mapped_ns;             /* clock_ns() when the .zse was mapped and checked */
    pthread_t warmer; int warming;  /* creates the GPU's context while the file is opened */
};
/* 0 if path, $ZSE_MODEL or a default names a model; otherwise 2, after a message on stderr. */
int open_model_unnamed(const char *prog, const char *path);
/* Read the header and the lists of a file or folder, and compare them with the file's size,
 * which takes milliseconds.  -1 with *e: open_model() would fail. */
int open_model_check(const char *prog, const char *path, struct err *e);
/* Open a model.  path NULL: $ZSE_MODEL or the default.  Notes about conversions go to stderr, with
 * the name prog. */
int open_model(const char *prog, const char *path, const struct run_options *r, struct opened_model *o, struct err *e);
/* Finish a running check of the file's checksums.  -1 with *e: the file is damaged, and results
 * computed from it may be wrong. */
int open_model_verified(struct opened_model *o, struct err *e);
void close_model(struct opened_model *o);
/* The type to which a GGUF file or folder at path is converted: that of -q, --mode or
 * $ZSE_QUANTIZATION, or else "keep".  Static, or borrowed from r; NULL with *e.
 * open_model_given_type() considers only -q and $ZSE_QUANTIZATION; NULL: neither is given. */
const char *open_model_type(const char *prog, const char *path, const struct run_options *r, const char *name,
                            struct err *e);
const char *open_model_given_type(const struct run_options *r);
/* The engine options of r, for max_seqs sequences of max_len tokens. */
struct engine_options run_engine_options(const struct run_options *r, int max_seqs, int max_len);
/* Set the options of --spec in *eo, which run_engine_options() has made.  -1: this model or device
 * does not support that kind of speculative decoding, or there is no memory for the draft model. */
int run_spec(const struct run_options *r, const struct opened_model *o, struct engine_options *eo, struct err *e);
/* Open an engine for max_seqs sequences of max_len tokens (0: --ctx, else the default) and
 * max_tokens per step (0: default).  Refused if memory does not suffice. */
struct engine *open_engine(const struct opened_model *o, const struct run_options *r, int max_seqs, int max_len,
                           int max_tokens, struct err *e);
/* The context length of --ctx or the model. */
int context_of(const struct config *c, const struct run_options *r);
int context_len(const struct opened_model *o, const struct run_options *r);

struct lora_plan;
/* The memory of the adapters of --lora (model/lora_plan.h): of their matrices, and for computing
 * with adapters of this rank. */
int plan_loras(struct lora_plan *p, const struct zfile *z, const struct run_options *r, struct err *e);
uint64_t lora_work_memory(int rank, const struct run_options *r);
/* Bind the LoRA adapter in folder to a model that is in use (lora_bind), if it fits: most_bytes is
 * the memory that --max-memory leaves, 0: no limit.  NULL with *e. */
struct lora_bound;
struct lora_bound *open_lora(const struct model *m, const char *name, const char *folder, uint64_t most_bytes,
                             const struct run_options *r, struct err *e);

#endif
