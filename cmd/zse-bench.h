/* zse-bench.h - the commands of zse-bench, and functions that several of them use. */
#ifndef ZSE_CMD_ZSE_BENCH_H
#define ZSE_CMD_ZSE_BENCH_H

#include "cmd/open_model.h"
#include "gpu/gpu.h"
#include "libcommon/hw/roofline.h"

enum { BENCH_LIST = 16 };
struct bench_list { int n, v[BENCH_LIST]; };

/* Of the simulation of zse-bench stream.  window 0: several; layer_bytes and layer_s: of each
 * layer, on the link and in a step; link: bytes/s. */
struct bench_stream { int layers, window; uint64_t layer_bytes, link; double layer_s; };

/* Of moe --trace.  trace: a file, or drawn with this skew; cpu: bytes/s. */
struct bench_experts { const char *trace; int drawn; double skew; uint64_t expert_bytes, cpu; };

enum bench_api { BENCH_CHAT, BENCH_COMPLETIONS, BENCH_TOKENS };

struct bench_options {
    struct run_options run;
    int prompt, generate, batch, repeats, warmup, json, autotune, table;
    int window, windows, whole;         /* tokens of a window; number of windows, 0: all of the text; --whole */
    const char *ids, *output, *ref;
    const char *svg;                    /* batch, kv: the file of a picture; NULL: none */
    const char *file;                   /* limits */
    const char *limits;                 /* the file of --limits; NULL: the limits are measured */
    const char *peer, *peer_model;      /* coldstart */
    struct bench_list contexts, tokens; /* contexts: of kv; tokens: of matmul and gpu */
    int rows, cols;                     /* of matmul, ternary and gpu */
    double load_s;
    /* Options of serve; requests and shared are prefix's, too.  requests 0: as many as batch; rate
     * 0: keep `batch` requests running; seed 0: random; served NULL: the server's first model;
     * served is also the GPU of gpu --model. */
    int requests, shared, background, ignore_eos;
    double rate, timeout_s, temperature;
    uint64_t seed;
    enum bench_api api;
    const char *served, *key;
    int compare;                        /* prefill */
    int estimate;                       /* spec */
    struct bench_stream stream;         /* its link and layer_s are moe's, too */
    struct bench_experts experts;
    double accept; int accept_given;    /* spec: the probability that a guess is right */
};

/* Each returns an exit code.  bench_KEY() is in bench_KEY.c unless the comment names another
 * file. */
int bench_speed(const struct bench_options *o, const char *model);
int bench_logits(const struct bench_options *o, const char *model);         /* these three: bench_score.c */
int bench_perplexity(const struct bench_options *o, const char *model, const char *text);
int bench_quality(const struct bench_options *o, const char *reference, const char *model, const char *text);
int bench_limits(const struct bench_options *o);
int bench_batch(const struct bench_options *o, const char *model);          /* these four: bench_step.c */
int bench_kv(const struct bench_options *o, const char *model, const char *text);        /* text NULL: speed alone */
int bench_moe(const struct bench_options *o, const char *model);
int bench_experts(const struct bench_options *o);           /* moe --trace */
int bench_router(const struct bench_options *o, const char *model, const char *text);   /* moe -o */
int bench_threads(const struct bench_options *o, const char *model);
int bench_matmul(const struct bench_options *o);
int bench_ternary(const struct bench_options *o);
int bench_dequant(const struct bench_options *o);
int bench_sparse_check(const struct bench_options *o);      /* wrong --contexts: says so, and returns CLI_USAGE */
int bench_sparse(const struct bench_options *o);
int bench_sparse_table(const struct bench_options *o);
int bench_simd(const struct bench_options *o);              /* these three: bench_simd.c */
int bench_flash(const struct bench_options *o);
int bench_flash_check(const struct bench_options *o);       /* as bench_sparse_check() */
int bench_tiers(const struct bench_options *o);             /* these two: bench_tiers.c */
int bench_mmap(const struct bench_options *o);
int bench_stream(const struct bench_options *o, const char *model);         /* model NULL: simulated */
int bench_prefill(const struct bench_options *o, const char *model);
int bench_prefix(const struct bench_options *o, const char *model);
int bench_plot(const struct bench_options *o, const char *data);
int bench_gpu(const struct bench_options *o);
int bench_time(const struct bench_options *o, const char *model);           /* gpu --model; model NULL: three shapes */
int bench_coldstart(const struct bench_options *o, const char *model);      /* bench_cold.c */
int bench_serve(const struct bench_options *o, const char *url);
int bench_layers(const struct bench_options *o, const char *model);
int bench_spec(const struct bench_options *o, const char *model, const char *cases);

/* A way to store and read keys and values. */
struct kv_variant { struct kv_types kv; int pages; struct sparse_pattern pattern; };
/* kl [n]: the mean KL divergence between the outputs with kv[0] and with each of n variants, over
 * the last (at most 512) positions of the first `window` tokens of a text.  A variant with pages is
 * kv[1], and kv[0] has the same types.  (bench_score.c) */
int bench_kv_distance(const struct bench_options *o, const struct opened_model *m, const char *text, int window,
                      const struct kv_variant *kv, int n, double *kl, struct err *e);

/* The token ids of --ids, '1 5 9'; NULL with *e.  Caller frees.  (bench_score.c) */
int32_t *bench_ids(const char *text, int *n, struct err *e);

/* ---- bench_speed.c: functions that other commands call ---- */
struct summary { double median, mean, min, max; };
struct summary summarise(double *v, int n);             /* sorts v; n >= 1 */
json_t *summary_json(const struct summary *s);
const char *bench_quantization(const struct opened_model *m);       /* from the model's metadata, for example "nl4" */
/* seconds: the least time of o->repeats from submitting a prompt of n random tokens to its first
 * token, in an engine that is warmed up; gpu_bytes: weights in the GPU's memory, 0: none; uploaded:
 * bytes of layers and experts for one prompt. */
struct prefill_cost { double seconds; size_t gpu_bytes; uint64_t uploaded; };
int bench_prefill_alone(const struct bench_options *o, const struct opened_model *m, int n, struct prefill_cost *cost,
                        struct err *e);

/* ---- bench_limits.c: measured speed as a share of the machine's limits ---- */
/* The work of one token and the limits of the machine. */
struct work_limits {
    struct roofline l;
    /* operations of the linear layers per token, without the head, which prefill computes once */
    double int8_op, f32_op;
    /* bytes of weights that a decode step of one token reads: layers, head, and the token's
     * experts */
    double weight_bytes;
    double expert_bytes;                /* the part of weight_bytes that is experts, in all layers */
    const struct config *c;             /* borrowed */
    struct kv_types kv; int pages;      /* as in run_options */
    struct sparse_pattern pattern;
    struct gpu_speeds gpu; int on_gpu;  /* used instead of l if on_gpu */
};
/* The limits of n_threads (0: all) that `what` (ROOFLINE_ bits) names, from the file of --limits or
 * measured now. */
int share_limits(struct roofline *l, const struct bench_options *o, unsigned what, int n_threads, struct err *e);
/* Count the work of a token in m as r runs it, and take the limits of n_threads (0: all). */
int share_init(struct work_limits *s, const struct bench_options *o, const struct model *m, const struct run_options *r,
               int n_threads, struct err *e);
/* The same with the limits of a GPU. */
int share_init_gpu(struct work_limits *s, const struct model *m, const struct run_options *r, int device,
                   struct err *e);
/* Speed as a fraction of the arithmetic limit.  amx 1: of the limit of the AMX tiles (0 if the
 * processor has none). */
double share_prefill(const struct work_limits *s, double tokens_per_s, int amx);
/* Speed as a fraction of the limit of reading memory, for a step that takes step_s seconds and
 * reads all weights once and the keys and values of n_seqs sequences of n_tokens tokens. */
double share_decode(const struct work_limits *s, double step_s, int n_seqs, int n_tokens);
/* Number of tokens that the last of n_tokens sees; unit 0: all. */
int share_seen(const struct sparse_pattern *p, int n_tokens);
/* Bytes of keys and values that the last of n_tokens tokens reads.  has_tail: the sinks and the
 * newest tokens as f16, if the types have a tail in this model.  pages: as in run_options, whose
 * bounds are read, too. */
double share_kv_read(const struct config *c, struct kv_types kv, int pages, int has_tail, int n_tokens);
/* The limits as JSON: {"threads", "read_bytes_per_s", "int8_op_per_s", "amx_op_per_s",
 * "f32_flop_per_s"}, without those that were not measured. */
json_t *share_limits_json(const struct roofline *l);
/* The same for a GPU: {"copy_bytes_per_s", "upload_bytes_per_s", "mma_flop_per_s"}. */
json_t *share_gpu_json(const struct gpu_speeds *g);

#endif
