/* job.h - what the files of convert/ share while one source is converted. */
#ifndef ZSE_CONVERT_INTERNAL_H
#define ZSE_CONVERT_INTERNAL_H

#include "libcommon/base/pool.h"
#include "libcommon/convert/convert.h"
#include "libcommon/convert/row_reader.h"
#include "libcommon/import/source.h"
#include "libcommon/model/model.h"
#include "libcommon/model/parts.h"
#include "libcommon/quant/tile.h"

/* How the bytes of a tensor come about. */
enum make {
    MAKE_VECTOR,            /* plain f32 */
    MAKE_FLOAT,             /* a matrix of f32, f16 or bf16 */
    MAKE_COPY,              /* codes and scales of the source, no rounding */
    MAKE_NEAR,              /* a linear grid laid over the source's grid: exact or next to it */
    MAKE_QUANT,             /* rounded */
    MAKE_TERNARY,           /* by one of the rules of quant/ternary.h */
    MAKE_ABSMEAN,           /* ternary, one scale for the tensor: the mean of its magnitudes, as BitNet was trained */
};

struct recipe {
    const struct weight_spec *spec;
    const struct source_tensor *source;
    enum make make;
    struct mat m;
    int input;              /* enum layer_input whose channels may be scaled; INPUT_NONE: none */
    int exact, exact_group; /* our type that holds the source's grid exactly, and its group; -1: none */
    int scaled;             /* its columns were, by what calibration found */
    int fixed;              /* type chosen by --skip or --quant: mixed leaves it alone */
    uint64_t source_bytes;  /* the share of the source tensor */
    uint8_t *data;          /* ready-made bytes (best), owned, of spill_alloc; NULL: made on the way out */
    struct convert_tensor *report;
};

/* Of one expert: sums over the tokens that went there of the squares of what gate and up read
 * and of what down reads. */
struct expert_calib { int n_tokens; float *up, *down; float *scale; /* of down's columns, or NULL */ };

/* What calibration found for one layer. All vectors are malloc'd, NULL: not known, or nothing to
 * scale. */
struct layer_calib {
    float *strength[N_INPUTS];      /* mean of the square of each input channel, before scaling */
    float *scale[N_INPUTS];         /* columns that read it are multiplied by this, what makes it is divided */
    /* scale[INPUT_O] as it divides what makes o's input: by row of v, shared by the heads of a
     * group; by element of a gated norm (delta net: of a head, shared by all); by channel of a
     * short convolution */
    float *v_scale;
    struct expert_calib *experts;   /* [n_experts] */
    float *down_strength;           /* of what experts' downs read, over all of them */
};

struct conversion {
    const struct convert_options *o;
    struct convert_report *report;
    struct source *source;
    struct config config;
    struct weight_spec *specs;
    int n_recipes;
    struct recipe *recipes;             /* tensors that are there, in forward order */
    struct pool *pool;
    struct layer_calib *calib;      /* [n_layers], NULL without calibration */
    float *head_strength;           /* [hidden_size] or NULL */
    enum convert_effort effort;
    uint64_t done, total;           /* bytes of weights, for progress */
};

/* Source, configuration, plan (before calibration) and threads.  conversion_close in any case. */
int conversion_open(struct conversion *cv, const struct convert_options *o, struct convert_report *r, struct err *e);
void conversion_close(struct conversion *cv);
/* Begin p in the new file; its bytes follow. */
struct zwriter;
int conversion_begin_tensor(struct zwriter *w, const struct recipe *p, struct err *e);
void conversion_note(const struct conversion *cv, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* ---- replace.c ---- */
/* Refuse to replace a file at the output that is neither empty nor a .zse of the same source,
 * unless the caller allows it. */
int conversion_check_replaced(const struct conversion *cv, struct err *e);

/* ---- plan.c: which tensor becomes what ---- */
int recipes_make(struct conversion *cv, struct err *e);
uint64_t recipes_bytes(const struct conversion *cv);
/* (Re)plan one tensor as a number format. */
int recipe_set(struct recipe *p, enum qtype type, int group_size, struct err *e);
/* After calibration: activation groups by what was scaled. */
int recipes_activations(struct conversion *cv, struct err *e);
enum convert_part recipe_part(const struct weight_spec *s);
int is_float_source(int source_type);
const char *convert_type_name(struct convert_type t);

/* ---- fold.c: scaling channels into the layer before ---- */
/* Mean squares of an expert's input channels out of their sums: as if some tokens of the average
 * kind, `all`, had come there too. */
void expert_strength(const float *sum, int n_tokens, const float *all, int n, float *out);
/* From strength to scale, where the architecture has an exact place for it and all matrices
 * concerned are rounded anyway. */
int channel_scale_layer(struct conversion *cv, int layer, float alpha, struct err *e);
/* Factors on rows and columns of a tensor: value' = value * (col ? col[c] : 1) / (row ?
 * pow(row[r], row_power) : 1). */
struct channel_scale {
    const float *col, *row;
    float row_power;
    int is_norm;            /* vector: (w + offset) / col - offset */
    float offset;
};
struct channel_scale channel_scale_of(const struct conversion *cv, const struct recipe *p);
void channel_scale_row(const struct channel_scale *f, int64_t row, float *x, int64_t cols);       /* a row of a matrix */
void channel_scale_vector(const struct channel_scale *f, float *x, int64_t n);                    /* a norm or bias */

/* ---- encode.c: rows to tiles ---- */
/* Every byte of tensor p, in order, to sink; fills p->report. */
int encode_tensor(struct conversion *cv, struct recipe *p,
                  int (*sink)(void *user, const void *data, size_t n, struct err *e),
                  void *user, struct err *e);
/* Importance of p's columns after scaling, to out [cols]; 0: none is known. */
int encode_importance(const struct conversion *cv, const struct recipe *p, float *out);

/* ---- calibrate.c, best.c: running the model ---- */
/* Columns that this input of a layer has; 0: nothing reads it. */
int calibrate_width(const struct config *c, int layer, int input);
/* Forget what is known of a layer's experts. */
void calibrate_forget_experts(struct conversion *cv, int layer);

struct calibration;
int calibrate_open(struct conversion *cv, struct calibration **c, struct err *e);      /* text, tokens, embeddings */
void calibrate_close(struct calibration *c);
/* One float pass through all layers: strengths (and scales) of every layer. */
int calibrate_run(struct conversion *cv, struct calibration *c, struct err *e);
/* What a model run shows about the inputs of the head, once all layers are done. */
int calibrate_head(struct conversion *cv, struct calibration *c, struct err *e);
/* Quantize layer `index` with error feedback: fills data of its plans, strengths and scales.
 * good: on the float model's inputs, described by few directions; best: on those behind the
 * quantized layers, in full. */
int quantize_layer_good(struct conversion *cv, struct calibration *c, int index, struct err *e);
int quantize_layer_best(struct conversion *cv, struct calibration *c, int index, struct err *e);
/* The same of one expert of the layer that was last quantized so; in order, and best: all of
 * them, as the next layer reads what they make. */
int quantize_expert(struct conversion *cv, struct calibration *c, int layer, int expert, struct err *e);

/* ---- mixed.c ---- */
int mixed_assign(struct conversion *cv, struct err *e);

/* calibration_text.c: ours; prose, code, dialogue in several languages */
extern const char calibration_text[];
extern const size_t calibration_text_size;

#endif
