/* zse-bench.h - the parts of zse-bench. */
#ifndef ZSE_CMD_ZSE_BENCH_H
#define ZSE_CMD_ZSE_BENCH_H

#include "cmd/open_model.h"
#include "gpu/gpu.h"
#include "libcommon/hw/roofline.h"

enum { BENCH_LIST = 16 };
struct bench_list { int n, v[BENCH_LIST]; };

enum bench_api { BENCH_CHAT, BENCH_COMPLETIONS, BENCH_TOKENS };

struct bench_options {
    struct run_options run;
    int prompt, generate, batch, repeats, warmup, json, autotune;
    int window, windows;                /* windows 0: all that the text fills */
    const char *ids, *output, *ref;
    const char *file;                   /* limits */
    const char *peer, *peer_model;      /* coldstart */
    struct bench_list contexts, tokens; /* kv; matmul, gpu */
    int rows, cols;                     /* matmul, ternary, gpu */
    double load_s;
    /* serve; requests 0: by batch, rate 0: batch at once, seed 0: another each time, served
     * NULL: the server's first model */
    int requests, shared, background, ignore_eos;
    double rate, timeout_s, temperature;
    uint64_t seed;
    enum bench_api api;
    const char *served, *key;
};

/* Each returns an exit code. */
int bench_speed(const struct bench_options *o, const char *model);                                      /* bench_speed.c */
int bench_logits(const struct bench_options *o, const char *model);                                     /* bench_score.c */
int bench_perplexity(const struct bench_options *o, const char *model, const char *text);
int bench_quality(const struct bench_options *o, const char *reference, const char *model, const char *text);
int bench_limits(const struct bench_options *o);                                                        /* bench_limits.c */
int bench_batch(const struct bench_options *o, const char *model);                                      /* bench_step.c */
int bench_kv(const struct bench_options *o, const char *model);
int bench_moe(const struct bench_options *o, const char *model);
int bench_threads(const struct bench_options *o, const char *model);
int bench_matmul(const struct bench_options *o);                                                        /* bench_matmul.c */
int bench_ternary(const struct bench_options *o);                                                       /* bench_ternary.c */
int bench_dequant(const struct bench_options *o);                                                       /* bench_dequant.c */
int bench_gpu(const struct bench_options *o);                                                           /* bench_gpu.c */
int bench_coldstart(const struct bench_options *o, const char *model);                                  /* bench_cold.c */
int bench_serve(const struct bench_options *o, const char *url);                                        /* bench_serve.c */
int bench_layers(const struct bench_options *o, const char *model);                                     /* bench_layers.c */

/* The token ids of --ids, '1 5 9'; NULL with *e.  Caller frees.  (bench_score.c) */
int32_t *bench_ids(const char *text, int *n, struct err *e);

/* ---- bench_speed.c, for others ---- */
struct summary { double median, mean, min, max; };
struct summary summarise(double *v, int n);             /* sorts v; n >= 1 */
json_t *summary_json(const struct summary *s);
const char *bench_quantization(const struct opened_model *m);       /* "nl4": what the converter wrote down */
/* Seconds from a submitted prompt of n random tokens to its first token, the best of `repeats`
 * in an engine that ran before; gpu_bytes: of the weights that are a GPU's, 0: none. */
int bench_prefill_alone(const struct bench_options *o, const struct opened_model *m, int n, double *seconds,
                        size_t *gpu_bytes, struct err *e);

/* ---- bench_limits.c: shares of the machine's limits ---- */
struct share {
    struct roofline l;
    double int8_op, f32_op;             /* of the linear layers, a token; the head is not counted: prefill computes it once */
    double weight_bytes;                /* read for a step: layers and head; of experts those of one token */
    double expert_bytes;                /* the latter, all layers together */
    double kv_bytes;                    /* of one token in the cache */
    struct gpu_speeds gpu; int on_gpu;  /* its limits instead of l */
};
/* What a token costs in m as r runs it, and the limits of n_threads (0: all). */
int share_init(struct share *s, const struct model *m, const struct run_options *r, int n_threads, struct err *e);
/* The same with the limits of a GPU. */
int share_init_gpu(struct share *s, const struct model *m, const struct run_options *r, int device, struct err *e);
/* Of the limit of arithmetic; with amx: of the tiles' (0 where there are none). */
double share_prefill(const struct share *s, double tokens_per_s, int amx);
/* Of the limit of reading: a step that reads all weights once and kv_tokens from the cache. */
double share_decode(const struct share *s, double step_s, double kv_tokens);
/* The limits a share goes by: {"threads", "read_bytes_per_s", "int8_op_per_s", "amx_op_per_s",
 * "f32_flop_per_s"}; what was not measured is left out. */
json_t *share_limits_json(const struct roofline *l);
/* Of a GPU: {"copy_bytes_per_s", "upload_bytes_per_s", "mma_flop_per_s"}. */
json_t *share_gpu_json(const struct gpu_speeds *g);

#endif
