/* convert.h - convert a Hugging Face folder or a GGUF file into one .zse file.
 *
 * Tensors stream from the source's mapping, a few rows at a time, into the new file, which replaces
 * the output only when it is complete.  The bytes of the result depend only on the source, the
 * options and the version, not on the number of threads, the kernel set, the time or paths.  (The
 * scales of good and best depend on pow, exp and log of the C library, as doubles that are
 * rounded to floats; glibc with and without fused multiplication gave the same files.)
 *
 * Quantization (effort):
 *   fast   the model is not run: every group gets the best of about 19 scales, with all weights
 *          counted equally
 *   good   the float model is run once over about 3000 tokens of text, layer by layer.  That
 *          measures the strength of each input channel of each linear layer, and the 64
 *          directions with most of the inputs' energy.  Channels are scaled, with the inverse
 *          scale folded into the preceding weights (alpha 0.5); scales of groups are searched for
 *          the least error weighted by these strengths; codes are chosen with error feedback
 *          (GPTQ) along those directions, and then improved by coordinate descent
 *   best   the same over about 16000 tokens with alpha 0.25.  Then, layer by layer and on the
 *          inputs that the already quantized layers compute, weights are corrected half way
 *          towards the float model's outputs, codes are chosen with error feedback (GPTQ) in
 *          order of falling strength, and improved by coordinate descent
 *   Layers with a state are run and scaled like attention.  An expert is calibrated on the tokens
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
    /* a type that represents the source's values exactly, or else the nearest type (see
     * convert_keep_type) */
    CONVERT_KEEP,
    CONVERT_MIXED,          /* 2 to 8 bits per tensor, chosen by measured error for a target size */
    CONVERT_FIT,            /* the finest single type that fits the target size */
};
struct convert_type { enum convert_kind kind; enum qtype qtype; };
/* Parse a name such as "nl4", "int4", "int8", "nf4", "ternary", "mixed", "f16", "fp16", "bf16",
 * "f32" or "keep".  Returns 0; -1 with *e, which lists all names. */
int convert_parse_type(struct convert_type *t, const char *name, struct err *e);

enum convert_effort { CONVERT_FAST, CONVERT_GOOD, CONVERT_BEST };
enum convert_part { PART_ATTENTION, PART_MLP, PART_EMBEDDINGS, PART_LM_HEAD, PART_EXPERTS, N_PARTS };
/* Returns the part (enum convert_part) named "attention", "mlp" (dense and shared ones; also
 * "dense_mlp"), "embeddings", "lm_head" or "experts"; -1 if no part has this name. */
int convert_part_find(const char *name, size_t size);
const char *convert_part_name(enum convert_part part);

/* A type for some matrices of some layers, of --quant: NAME=TYPE or NAME@FROM-TO=TYPE. */
struct convert_rule {
    /* set of 1 << enum role: the roles that a projection's name stands for; 0: the rule is for
     * part */
    uint64_t roles;
    enum convert_part part;
    int first_layer, last_layer;        /* -1, INT_MAX: all */
    struct convert_type type;
    const char *text; int text_len;     /* the rule as given by the user, for messages; borrowed */
};
/* Parse a rule.  Its NAME is a part, or q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj or
 * down_proj (also of experts); layers are counted from 0.  Returns 0; -1 with *e. */
int convert_parse_rule(struct convert_rule *r, const char *text, struct err *e);

/* bytes of buffers; the conversion takes 300 MB in all */
enum { CONVERT_MOE_MEMORY = 200 * 1000 * 1000 };
struct convert_report;
struct source_options;
struct convert_options {
    const char *source, *output;        /* output NULL: plan only (fill the report, write nothing) */
    /* options for files that are still being downloaded and for lost pages; may be NULL */
    const struct source_options *open;
    /* Make random weights in the shape of the model of this name (NAME:LAYERS: of its first LAYERS
     * layers), without reading a source; NULL: convert a source. */
    const char *synthetic;
    /* With synthetic (any name), output NULL and no skip: plan for bf16 weights in the shape of
     * this config.json; borrowed. */
    const json_t *config;
    struct convert_type type;
    /* keep the grid of matrices of a quantized checkpoint (not of a GGUF) if a type represents it
     * exactly; type applies to the others */
    int keep_grid;
    /* int4, int8: 32, 64, 128; -1: one scale per row (int8); 0: the type's default */
    int group_size;
    /* globs of names (ours or the source's) of tensors that are kept as stored */
    const char *const *skip; int n_skip;
    /* folders of LoRA adapters that are merged into the weights before they are rounded */
    const char *const *lora; int n_lora;
    struct { int set; struct convert_type type; } part[N_PARTS];        /* types for parts of the model */
    /* rules that precede part; if several apply to a matrix, the last one counts */
    const struct convert_rule *rules; int n_rules;
    uint64_t target_bytes;              /* 0: none; bytes of weights */
    /* the rule for rounding weights to ternary types if they were not trained to be ternary; rules
     * other than TERNARY_FIT do not run the model */
    enum ternary_fit ternary;
    int no_predictor;                   /* leave out a layer that predicts further tokens */
    /* heads that are stored with the model: the path for medusa_read() or the folder for
     * eagle_read(); NULL: none */
    const char *heads;
    enum convert_effort effort;
    const char *calibration;            /* a text file; NULL: the built-in text */
    /* Most bytes of memory for the buffers of calibration, besides one expert; the other buffers
     * are in spill files in the output's folder.  0: CONVERT_MOE_MEMORY for a mixture of
     * experts, else no limit.  Buffers of threads are always in memory. */
    uint64_t calibration_memory;
    int n_threads;                      /* 0: all processors */
    const char *kernels;                /* NULL: the fastest this machine runs */
    /* replace any file at output; otherwise only an empty file or a .zse made from the same source
     * is replaced */
    int overwrite;
    /* seconds: a checkpoint is made after a layer if the last one is at least this old */
    double checkpoint_s;
    /* make no checkpoints, and remove those of an interrupted conversion */
    int no_resume;
    /* Called if the output exists and is another kind of file, which `what` describes.  Returns 1
     * to replace it, 0 to refuse.  NULL: such a file is not replaced. */
    int (*replace)(void *user, const char *path, const char *what);
    void *replace_user;
    const struct progress *progress;    /* may be NULL */
    void (*note)(void *user, const char *text);         /* called with each warning; may be NULL */
    void *note_user;
    /* Called before any work, when weight_bytes and private_bytes are known; returns 0, or -1 with
     * *e to refuse the conversion.  May be NULL. */
    int (*before)(void *user, const struct convert_report *r, struct err *e);
    void *before_user;
    void (*layer)(void *user, int layer);               /* may be NULL; called before each layer is written */
    void *layer_user;
};
/* Set the defaults: type nl4, effort good, keep_grid, a checkpoint every 30 seconds, and 0
 * everywhere else. */
void convert_defaults(struct convert_options *o);

struct convert_tensor {
    char *name, *source_name;           /* owned by the report */
    int source_type;                    /* enum ggml_type; -1: random */
    enum qtype type;
    int group_size, act_group;          /* 0 for float types */
    int64_t rows, cols;
    int vector;                         /* a norm or bias: always f32 */
    /* number of tensors of this form: 1, or the number of experts if convert_options.config is set
     * and the first expert of a layer stands for all */
    int copies;
    int exact;                          /* every value is the source's (with channel scales folded in) */
    double max_error, rel_error;        /* largest |w - w'|; sqrt(sum (w - w')^2 / sum w^2) */
    uint64_t bytes, source_bytes;
};

struct convert_report {
    char arch[32];
    struct convert_type type;           /* after FIT: the chosen type */
    enum convert_effort effort;         /* CONVERT_FAST if the types need no calibration */
    int n_tensors;
    struct convert_tensor *tensors;
    uint64_t bytes_in, weight_bytes, file_bytes;        /* source tensors; our tensors; the file */
    uint64_t heads_bytes;               /* heads as stored, not in weight_bytes; 0: none */
    const char *heads_kind;             /* "Medusa", "EAGLE" */
    uint64_t n_params;
    int n_calibration_tokens;
    /* bytes of memory and of spill files that calibration takes at most; known before it starts */
    uint64_t private_bytes, scratch_bytes;
    double seconds, calibration_seconds;
    /* with CONVERT_KEEP: tensors whose grid no type represents */
    int n_inexact;
    int n_requantized;                  /* tensors already quantized in the source and rounded again */
    int n_damped;                       /* matrices whose damping had to be raised; best only */
};
void convert_report_release(struct convert_report *r);

/* Convert a model.  Returns 0; -1 with *e and the output unchanged: ERR_CANCELLED if progress asked
 * to stop.  After -1, hidden files beside the output may keep parts of the interrupted conversion
 * (resume.h), and the next conversion of the same source with the same options resumes from them.
 * r may be NULL; it is valid in any case, and must be released. */
int convert_run(const struct convert_options *o, struct convert_report *r, struct err *e);

/* Returns the type that `keep` uses for a source type of a GGUF or of plain tensors: one that
 * represents all values (*exact 1), or the smallest one that is nearly exact (*exact 0). */
enum qtype convert_keep_type(int source_type, int *group_size, int *exact);

#endif
