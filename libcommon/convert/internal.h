/* internal.h - the state of a conversion, private to this folder. */
#ifndef ZSE_CONVERT_INTERNAL_H
#define ZSE_CONVERT_INTERNAL_H

#include "libcommon/base/pool.h"
#include "libcommon/convert/convert.h"
#include "libcommon/convert/row_reader.h"
#include "libcommon/import/source.h"
#include "libcommon/model/model.h"
#include "libcommon/model/parts.h"
#include "libcommon/quant/tile.h"

/* How the bytes of a tensor are made. */
enum make {
    MAKE_VECTOR,            /* plain f32 */
    MAKE_FLOAT,             /* a matrix of f32, f16 or bf16 */
    MAKE_COPY,              /* codes and scales of the source, without rounding */
    MAKE_NEAR,              /* rounded to a linear grid that has the source's values, or nearly */
    MAKE_QUANT,             /* quantized */
    MAKE_TERNARY,           /* rounded by one of the rules of quant/ternary.h */
    MAKE_ABSMEAN,           /* ternary, as BitNet was trained: the scale is the tensor's mean |x| */
};

struct recipe {
    const struct weight_spec *spec;
    const struct source_tensor *source;
    enum make make;
    struct mat m;
    int input;              /* enum layer_input whose channels may be scaled */
    /* the type that represents the source's values without loss; -1: none */
    int exact;
    int exact_group;        /* the group size of that type */
    int scaled;             /* its columns were scaled after calibration */
    int fixed;              /* --skip or --quant chose the type, so mixed does not change it */
    uint64_t source_bytes;  /* the part of the source tensor that it uses */
    /* with the qualities good and best: the encoded bytes, from spill_alloc(), owned; NULL: they
     * are encoded when they are written */
    uint8_t *data;
    struct convert_tensor *report;
};

/* Sums over the tokens routed to one expert: squares of the inputs of gate and up (`up`), and of
 * the inputs of down.  scale: channel scales of down's columns, or NULL. */
struct expert_calib { int n_tokens; float *up, *down; float *scale; };

/* Results of calibration for one layer.  All vectors are malloc'd; NULL: not known, or not
 * scaled. */
struct layer_calib {
    float *strength[N_INPUTS];      /* mean of the square of each input channel, before scaling */
    /* channel scales of an input: columns that read it are multiplied by them, and the weights that
     * produce it are divided */
    float *scale[N_INPUTS];
    unsigned stored;                /* bit i: scale[i] is in the new file */
    /* scale[INPUT_O] in the form that divides the producer of o's input: one value per row of v
     * (common to the heads that share a KV head), per element of a gated norm (delta net: of one
     * head, common to all heads), or per channel of a short convolution */
    float *v_scale;
    struct expert_calib *experts;   /* [n_experts] */
    float *down_strength;           /* strength of the inputs of down, over all experts */
    /* strengths of the experts' gate and up, if experts beside an MLP have a norm of their own */
    float *experts_strength;
};

struct conversion {
    const struct convert_options *o;
    struct convert_report *report;
    struct source *source;
    struct config config;
    struct weight_spec *specs;
    int n_recipes;
    struct recipe *recipes;             /* recipes of the tensors that exist, in forward order */
    struct pool *pool;
    /* [n_layers + 1], NULL without calibration; the last element, for predictors, is empty */
    struct layer_calib *calib;
    float *head_strength;           /* [hidden_size] or NULL */
    enum convert_effort effort;
    uint64_t done, total;           /* bytes of weights, for progress */
};

/* Open the source, make the recipes (as they are before calibration) and start threads.  Returns 0;
 * -1 with *e.  conversion_close() must be called in both cases. */
int conversion_open(struct conversion *cv, const struct convert_options *o, struct convert_report *r, struct err *e);
void conversion_close(struct conversion *cv);
/* Start tensor p in the new file; its bytes follow. */
struct zwriter;
int conversion_begin_tensor(struct zwriter *w, const struct recipe *p, struct err *e);
/* Begin the group of this layer in the new file.  Layer -1 is the group of the weights before the
 * layers or, with seen_layers, of those after them.  Returns 0; -1 with *e. */
int conversion_group(const struct conversion *cv, struct zwriter *w, int layer, int seen_layers, struct err *e);
void conversion_note(const struct conversion *cv, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* ---- replace.c ---- */
/* Refuse to replace an existing file at the output, unless it is empty, or a .zse of the same
 * source, or the caller allows it.  Returns 0; -1 with *e. */
int conversion_check_replaced(const struct conversion *cv, struct err *e);

/* ---- recipe.c: the form of each tensor ---- */
int recipes_make(struct conversion *cv, struct err *e);
uint64_t recipes_bytes(const struct conversion *cv);
/* Whether p is a tensor of a layer that predicts further tokens. */
int recipe_is_next(const struct conversion *cv, const struct recipe *p);
/* Choose a number format for one tensor; may be called again. */
int recipe_set(struct recipe *p, enum qtype type, int group_size, struct err *e);
/* After calibration: set the activation groups of tensors according to the channels that were
 * scaled. */
int recipes_activations(struct conversion *cv, struct err *e);
enum convert_part recipe_part(const struct weight_spec *s);
int is_float_source(int source_type);
const char *convert_type_name(struct convert_type t);

/* ---- channel_scale.c: scales of channels, folded into the layer before ---- */
/* Compute the mean squares of an expert's input channels from their sums.  They are smoothed by
 * some imaginary tokens that have the average strengths, `all`. */
void expert_strength(const float *sum, int n_tokens, const float *all, int n, float *out);
/* Compute channel scales from strengths for the inputs where two conditions hold: the architecture
 * has weights into which the inverse scales can be folded exactly, and all matrices concerned are
 * quantized.  Returns 0; -1 with *e. */
int channel_scale_layer(struct conversion *cv, int layer, float alpha, struct err *e);
/* Factors on rows and columns of a tensor: value' = value * (col ? col[c] : 1) / (row ?
 * pow(row[r], row_power) : 1). */
struct channel_scale {
    const float *col, *row;
    float row_power;
    int is_norm;            /* vector: (w + offset) / col - offset */
    float offset;
};
/* The channel scales of the layer's input that p reads, one for each of its columns, or NULL. */
const float *channel_scale_input(const struct conversion *cv, const struct recipe *p);
struct channel_scale channel_scale_of(const struct conversion *cv, const struct recipe *p);
/* Apply the factors to a row of a matrix. */
void channel_scale_row(const struct channel_scale *f, int64_t row, float *x, int64_t cols);
void channel_scale_vector(const struct channel_scale *f, float *x, int64_t n);                    /* a norm or bias */

/* Write the layer's channel scales to the new file, in the group of the layer, before its tensors.
 * With `replay` they are in the file already, those of layer_calib.stored, and are skipped. */
int channel_scale_write(const struct conversion *cv, struct zwriter *w, int layer, int replay, struct err *e);

/* ---- encode.c: rows to tiles ---- */
/* Encode tensor p, pass every byte to sink, in order, and fill in p->report. */
int encode_tensor(struct conversion *cv, struct recipe *p,
                  int (*sink)(void *user, const void *data, size_t n, struct err *e),
                  void *user, struct err *e);
/* Errors of a tensor: the largest one, the sum of the squares of all errors, and the sum of the
 * squares of the weights, added in the order of the rows. */
struct error_sums { double max, err2, sum2; };
void error_add(struct error_sums *s, const float *x, const float *decoded, int64_t n);
void error_merge(struct error_sums *to, const struct error_sums *from);
void error_report(struct convert_tensor *t, const struct error_sums *s);
/* Store the importance of p's columns, after scaling, in out [cols].  1; 0: it is not known. */
int encode_importance(const struct conversion *cv, const struct recipe *p, float *out);

/* ---- calibrate.c, quantize_layer.c: running the model ---- */
/* Number of columns of this input of a layer; 0: no matrix reads it. */
int calibrate_width(const struct config *c, int layer, int input);
/* Free the results of a layer's experts. */
void calibrate_forget_experts(struct conversion *cv, int layer);

struct calibration;
/* Read the text, tokenize it, and look up embeddings. */
int calibrate_open(struct conversion *cv, struct calibration **c, struct err *e);
void calibrate_close(struct calibration *c);
/* Run all layers of the float model, to measure strengths and compute channel scales of every
 * layer. */
int calibrate_run(struct conversion *cv, struct calibration *c, struct err *e);
/* Measure the strengths of the head's inputs, once all layers are done. */
int calibrate_head(struct conversion *cv, struct calibration *c, struct err *e);
/* Quantize layer `index` with error feedback: fill in the data of its recipes, its strengths and
 * its scales.  good uses the inputs of the float model, described by few directions; best uses
 * the whole H of the inputs after the quantized layers. */
int quantize_layer_good(struct conversion *cv, struct calibration *c, int index, struct err *e);
int quantize_layer_best(struct conversion *cv, struct calibration *c, int index, struct err *e);
/* Quantize one expert of the layer that was quantized last, in the same way.  Experts must be
 * quantized in order; with best all of them must be, because the next layer reads their outputs. */
int quantize_expert(struct conversion *cv, struct calibration *c, int layer, int expert, struct err *e);

/* ---- mixed.c ---- */
int mixed_assign(struct conversion *cv, struct err *e);

/* The built-in text (calibration_text.c): our own prose, code and dialogue, in several
 * languages. */
extern const char calibration_text[];
extern const size_t calibration_text_size;

#endif
