/* calibrate.h - running the model on text while it is converted, one layer at a time, and of its
 * experts one.
 *
 * What tokens have between layers, and the matrices of a layer and of error feedback, are in
 * memory or, beyond a limit, in files without a name: see enum hold. */
#ifndef ZSE_CONVERT_CALIBRATE_H
#define ZSE_CONVERT_CALIBRATE_H

#include "libcommon/convert/internal.h"
#include "libcommon/convert/linalg.h"
#include "libcommon/cpu/cpu.h"

/* What lies in memory and what in a file (big.h) if there is a limit: those used most go into
 * memory first.  One expert's always do. */
enum hold {
    HOLD_EXPERT,                /* matrices of one expert */
    HOLD_H, HOLD_LINV,          /* of error feedback, see gptq.h */
    HOLD_WEIGHTS,               /* the layer's other matrices as the source has them */
    HOLD_ROUNDED,               /* and as the new file will */
    HOLD_C,                     /* of error feedback */
    HOLD_STATES,                /* what all tokens have somewhere */
    N_HOLDS
};

/* The inputs of one kind of a layer for all tokens, [n_tokens][ld], columns beyond n zero. */
struct inputs { float *x; int n, ld; };

/* An expert is quantized on the tokens that go there and so many others. */
enum { OTHER_TOKENS = 64 };

struct calibration {
    struct cpu_layers *run;
    const struct linalg_ops *ops;
    const char *output;         /* borrowed; files lie beside it */
    unsigned in_file;           /* 1 << enum hold */
    int n_windows, window_len;
    int32_t *ids;               /* [n_windows * window_len], numbered within `embed` */
    float *x;                   /* what enters the next layer in the float model, [n_tokens, hidden_size] */
    float *xq;                  /* the same behind the quantized layers (best), or NULL */
    struct model m;             /* the source's weights: ends, and the layer that is loaded */
    struct model q;             /* its quantized twin (best) */
    void **blocks; int n_blocks, room;      /* memory of the loaded weights */
    /* Of the layer whose experts are being quantized: what enters them, channels scaled (best:
     * behind the quantized layers), and who goes where. */
    struct inputs h;
    struct cpu_choice choice;
};

/* Weights of layer `index` (-1: what comes before the first) from the source as floats into
 * c->m. */
int calibrate_load(struct conversion *cv, struct calibration *c, int index, struct err *e);
/* Forget them. */
void calibrate_unload(struct calibration *c);
/* Forget what experts read. */
void calibrate_end_experts(struct calibration *c);
/* Memory of its kind, zero, to be freed with spill_free; what: for the error. */
void *calibrate_hold(const struct calibration *c, enum hold kind, size_t size, const char *what, struct err *e);
/* The same that lives until calibrate_unload. */
void *calibrate_alloc(struct calibration *c, enum hold kind, size_t size, struct err *e);

/* Run layer `index` of c->m over c->x in place: strengths of its inputs into the job, the choice
 * of experts into c, and, if keep is not NULL, the inputs themselves. */
int calibrate_layer(struct conversion *cv, struct calibration *c, int index, struct inputs keep[N_INPUTS],
                    struct err *e);

enum layer_input calibrate_input(int role);
/* Progress of a model run: window of all windows of a layer. */
int calibrate_progress(const struct conversion *cv, const struct calibration *c, const char *what, int layer,
                       int window, struct err *e);

#endif
