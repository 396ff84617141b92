/* calibrate.h - running the model on text while it is converted, one layer in memory at a time. */
#ifndef ZSE_CONVERT_CALIBRATE_H
#define ZSE_CONVERT_CALIBRATE_H

#include "libcommon/convert/job.h"
#include "libcommon/convert/linalg.h"
#include "libcommon/engine/cpu.h"

/* The inputs of one kind of a layer for all tokens, [n_tokens][ld], columns beyond n zero. */
struct inputs { float *x; int n, ld; };

struct calibration {
    struct cpu_layers *run;
    const struct linalg_ops *ops;
    int n_windows, window_len;
    int32_t *ids;               /* [n_windows * window_len], numbered within `embed` */
    float *x;                   /* what enters the next layer in the float model, [n_tokens, hidden_size] */
    float *xq;                  /* the same behind the quantized layers (best), or NULL */
    struct model m;             /* the source's weights: ends, and the layer that is loaded */
    struct model q;             /* its quantized twin (best) */
    void **blocks; int n_blocks, room;      /* memory of the loaded weights */
    /* Of the layer whose experts are being quantized: what enters them, channels scaled (best: behind the quantized layers), and who goes where. */
    struct inputs h;
    struct cpu_choice choice;
};

/* Weights of layer `index` (-1: what comes before the first) from the source as floats into c->m. */
int calibrate_load(struct job *j, struct calibration *c, int index, struct err *e);
/* Forget them. */
void calibrate_unload(struct calibration *c);
/* Forget what experts read. */
void calibrate_end_experts(struct calibration *c);
/* Memory that lives until calibrate_unload, 64-byte aligned. */
void *calibrate_alloc(struct calibration *c, size_t size, struct err *e);

/* Run layer `index` of c->m over c->x in place: strengths of its inputs into the job, the choice of experts into c, and, if keep is not NULL, the inputs themselves. */
int calibrate_layer(struct job *j, struct calibration *c, int index, struct inputs keep[N_INPUTS], struct err *e);

enum input calibrate_input(int role);
/* Progress of a model run: window of all windows of a layer. */
int calibrate_progress(const struct job *j, const struct calibration *c, const char *what, int layer, int window, struct err *e);

#endif
