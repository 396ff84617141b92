/* convert.h - convert a Hugging Face folder or a GGUF file into one .zse file.
 *
 * Tensors stream from the source's mapping, a few rows at a time, into the new file, which replaces
 * the output only when it is complete.  The bytes of the result depend only on the source, the
 * options and the version, not on the number of threads, the kernel set, the time or paths.  (pow,
 * exp and log of the C library enter the scales of good and best as doubles rounded to floats;
 * glibc with and without fused multiplication gave the same files.)
 *
 * Quantization (effort):
 *   fast   no model run: for every group the best of about 19 scales, with all weights equal
 *   good   one float pass over about 3000 tokens of text, layer by layer, measures the strength
 *          of each input channel of each linear layer, and the 64 directions with most of the
 *          inputs' energy; channels are scaled into the preceding weights (alpha 0.5), scales are
 *          searched for the least error weighted by these strengths, codes are chosen with error
 *          feedback (GPTQ) along those directions, then by coordinate descent
 *   best   the same over about 16000 tokens with alpha 0.25; then layer by layer, on the inputs
 *          made by the already quantized layers: a half-way correction towards the float model's
 *          outputs, error feedback (GPTQ) in order of falling strength, coordinate descent
 *   Layers with a state are run and scaled like attention; an expert is calibrated on the tokens
 *   routed to it, without correction. */
#ifndef ZSE_CONVERT_CONVERT_H
#define ZSE_CONVERT_CONVERT_H

#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "libcommon/base/err.h"
#include "libcommon/base/progress.h"
#include "libcommon/quant/qtype.h"
#include "libcommon/quant/ternary.h"

/* The target of a matrix: a number format, or a rule. */
enum convert_kind {
    CONVERT_TYPE,           /* .qtype */
    /* the source's own grid if a type represents it exactly, else that of the nearest type (see
     * convert_keep_type) */
    CONVERT_KEEP,
    CONVERT_MIXED,          /* 2 to 8 bits a tensor, chosen by measured error for a target size */
    CONVERT_FIT,            /* the finest single type that fits the target size */
};
struct convert_type { enum convert_kind kind; enum qtype qtype; };
/* "nl4" "int4" "int8" "nf4" "ternary" "mixed" "f16" "fp16" "bf16" "f32" "keep" ...; 0 or -1 with
 * *e listing them. */
int convert_parse_type(struct convert_type *t, const char *name, struct err *e);

enum convert_effort { CONVERT_FAST, CONVERT_GOOD, CONVERT_BEST };
enum convert_part { PART_ATTENTION, PART_MLP, PART_EMBEDDINGS, PART_LM_HEAD, PART_EXPERTS, N_PARTS };
/* "attention" "mlp" (dense and shared ones; also "dense_mlp") "embeddings" "lm_head" "experts";
 * -1: none. */
int convert_part_find(const char *name, size_t size);
const char *convert_part_name(enum convert_part part);

/* A type for some matrices of some layers, of --quant: NAME=TYPE or NAME@FROM-TO=TYPE. */
struct convert_rule {
    /* 1 << enum role: the roles of a projection's name; 0: those of part */
    uint64_t roles;
    enum convert_part part;
    int first_layer, last_layer;        /* -1, INT_MAX: all */
    struct convert_type type;
    const char *text; int text_len;     /* the rule as given by the user, for messages; borrowed */
};
/* NAME: a part, or q_proj k_proj v_proj o_proj gate_proj up_proj down_proj (experts' too);
 * layers count from 0.  -1 with *e. */
int convert_parse_rule(struct convert_rule *r, const char *text, struct err *e);

enum { CONVERT_MOE_MEMORY = 200 * 1000 * 1000 };     /* with the rest of a conversion 300 MB */
struct convert_report;
struct source_options;
struct convert_options {
    const char *source, *output;        /* output NULL: plan only (report filled, nothing written) */
    /* see import/source.h: files still being downloaded, handling of lost pages; may be NULL */
    const struct source_options *open;
    /* name of a model whose shape is used with random weights, or NULL; source is not read then */
    const char *synthetic;
    /* with synthetic (any name), output NULL and no skip: plan bf16 weights in the shape of this
     * config.json; borrowed */
    const json_t *config;
    struct convert_type type;
    /* keep the grid of matrices of a quantized checkpoint (not of a GGUF) if a type represents it
     * exactly; type applies to the others */
    int keep_grid;
    /* int4, int8: 32, 64, 128; -1: one scale per row (int8); 0: the type's default */
    int group_size;
    /* globs on the names of tensors (ours or the source's): kept as stored */
    const char *const *skip; int n_skip;
    struct { int set; struct convert_type type; } part[N_PARTS];        /* other types for parts of the model */
    const struct convert_rule *rules; int n_rules;      /* before part; of several that fit a matrix, the last */
    uint64_t target_bytes;              /* 0: none; bytes of weights */
    /* rule for weights that were not trained to be ternary; all but TERNARY_FIT work without a
     * model run */
    enum ternary_fit ternary;
    enum convert_effort effort;
    const char *calibration;            /* a text file; NULL: the built-in text */
    /* most memory of calibration, besides one expert; the rest is in spill files in the output's
     * folder.  0: CONVERT_MOE_MEMORY for a mixture of experts, else no limit.  Buffers of threads
     * always stay in memory. */
    uint64_t calibration_memory;
    int n_threads;                      /* 0: all processors */
    const char *kernels;                /* NULL: the fastest this machine runs */
    /* replace any file at output; otherwise only an empty file or a .zse made from the same source
     * is replaced */
    int overwrite;
    /* make a checkpoint after a layer if the last one is at least this old */
    double checkpoint_s;
    /* make no checkpoints, and remove those of an interrupted conversion */
    int no_resume;
    /* Called if the output is another kind of file, described by `what`: 1 replaces it, 0 refuses.
     * NULL: refused. */
    int (*replace)(void *user, const char *path, const char *what);
    void *replace_user;
    const struct progress *progress;    /* may be NULL */
    void (*note)(void *user, const char *text);         /* called with each warning; may be NULL */
    void *note_user;
    /* May be NULL. Called before any work, when weight_bytes and private_bytes are known: -1
     * with *e refuses. */
    int (*before)(void *user, const struct convert_report *r, struct err *e);
    void *before_user;
    void (*layer)(void *user, int layer);               /* may be NULL; called before each layer is written */
    void *layer_user;
};
/* nl4, good, grids kept, everything else as a zeroed struct. */
void convert_defaults(struct convert_options *o);

struct convert_tensor {
    char *name, *source_name;           /* owned by the report */
    int source_type;                    /* enum ggml_type; -1: random */
    enum qtype type;
    int group_size, act_group;          /* 0 for float types */
    int64_t rows, cols;
    int vector;                         /* a norm or bias: always f32 */
    /* 1; with convert_options.config the first expert of a layer stands for all: their number */
    int copies;
    int exact;                          /* every value as in the source (after folding: as in the folded source) */
    double max_error, rel_error;        /* largest |w - w'|; sqrt(sum (w - w')^2 / sum w^2) */
    uint64_t bytes, source_bytes;
};

struct convert_report {
    char arch[32];
    struct convert_type type;           /* after FIT: the chosen type */
    enum convert_effort effort;         /* actual effort: types that need no calibration are made with CONVERT_FAST */
    int n_tensors;
    struct convert_tensor *tensors;
    uint64_t bytes_in, weight_bytes, file_bytes;        /* source tensors; our tensors; the file */
    uint64_t n_params;
    int n_calibration_tokens;
    /* most memory of calibration, and most disk space of its spill files; known beforehand */
    uint64_t private_bytes, scratch_bytes;
    double seconds, calibration_seconds;
    /* with CONVERT_KEEP: tensors whose grid no type represents */
    int n_inexact;
    int n_requantized;                  /* tensors already quantized in the source and rounded again */
    int n_damped;                       /* matrices whose damping had to be raised (best) */
};
void convert_report_release(struct convert_report *r);

/* 0, or -1 with the output unchanged; parts of an interrupted conversion may stay hidden beside it
 * (resume.h), from which the next conversion of the same source with the same options resumes.
 * ERR_CANCELLED if progress returned stop.  r may be NULL; it is valid (and must be released) in
 * any case. */
int convert_run(const struct convert_options *o, struct convert_report *r, struct err *e);

/* The type used by `keep` for a source type of a GGUF or of plain tensors: its own grid (exact =
 * 1), or the smallest type that is nearly exact. */
enum qtype convert_keep_type(int source_type, int *group_size, int *exact);

#endif
