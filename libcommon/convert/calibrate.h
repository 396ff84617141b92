/* calibrate.h - run the model on text during a conversion, with one layer and one expert in memory.
 *
 * The residual stream of all tokens, and the matrices of a layer and of error feedback, are in
 * memory or, beyond a limit, in spill files: see enum hold. */
#ifndef ZSE_CONVERT_CALIBRATE_H
#define ZSE_CONVERT_CALIBRATE_H

#include "libcommon/convert/internal.h"
#include "libcommon/convert/linalg.h"
#include "libcommon/cpu/cpu.h"

/* Buffers that may be in spill files (spill.h) if memory is limited; the first ones, which are used
 * most, get memory first.  One expert is always in memory. */
enum hold {
    HOLD_EXPERT,                /* matrices of one expert */
    HOLD_H, HOLD_LINV,          /* matrices of error feedback, see gptq.h */
    HOLD_WEIGHTS,               /* the layer's other matrices as the source has them */
    HOLD_ROUNDED,               /* these matrices as in the new file */
    HOLD_C,                     /* C of error feedback */
    HOLD_STATES,                /* rows of all tokens: the stream, inputs of a layer */
    N_HOLDS
};

/* One input of a layer for all tokens, [n_tokens][ld], columns beyond n zero. */
struct inputs { float *x; int n, ld; };

/* An expert is quantized on the tokens routed to it and this many others. */
enum { OTHER_TOKENS = 64 };

struct calibration {
    struct cpu_layers *run;
    const struct linalg_ops *ops;
    const char *output;         /* borrowed; spill files are created in its folder */
    unsigned in_file;           /* 1 << enum hold */
    int n_windows, window_len;
    int32_t *ids;               /* [n_windows * window_len], numbered within `embed` */
    float *x;                   /* input of the next layer in the float model, [n_tokens, hidden_size] */
    float *xq;                  /* x after the quantized layers (best), or NULL */
    /* [n_windows] of the memory that a window keeps between layers besides, see cpu_layers_kept();
     * NULL: none */
    uint8_t *kept, *kept_q;
    size_t kept_bytes;          /* bytes kept of one window */
    /* the source's weights: those outside the layers, and the loaded layer */
    struct model m;
    struct model q;             /* its quantized twin (best) */
    void **blocks; int n_blocks, room;      /* memory of the loaded weights */
    /* Inputs of the layer whose experts are being quantized, channels scaled (best: after the
     * quantized layers), and the choice of experts. */
    struct inputs h;
    struct cpu_choice choice;
    float *sum;                 /* sums of the experts' outputs [n_tokens][hidden_size], if a norm follows */
    float *norm;                /* the norm for the experts alone (best), written before their outputs */
};

/* Load the weights of layer `index` (-1: those before the first) from the source as floats into
 * c->m. */
int calibrate_load(struct conversion *cv, struct calibration *c, int index, struct err *e);
/* Free them. */
void calibrate_unload(struct calibration *c);
/* Free the input of experts and their choice. */
void calibrate_end_experts(struct calibration *c);
/* Zeroed memory of this kind, freed with spill_free; `what` names it in the error. */
void *calibrate_hold(const struct calibration *c, enum hold kind, size_t size, const char *what, struct err *e);
/* The same, valid until calibrate_unload. */
void *calibrate_alloc(struct calibration *c, enum hold kind, size_t size, struct err *e);

/* Run layer `index` of c->m over c->x in place: strengths of its inputs into the conversion, the
 * choice of experts into c, and, unless keep is NULL, the inputs themselves into keep. */
int calibrate_layer(struct conversion *cv, struct calibration *c, int index, struct inputs keep[N_INPUTS],
                    struct err *e);

/* Select the window of the next run; kept is c->kept or c->kept_q. */
void calibrate_window(struct calibration *c, uint8_t *kept, int window);

/* Choose the experts of all tokens, x being the residual stream: c->choice, and c->sum with the
 * output of a shared MLP, where a norm follows (else it is added to x). */
int calibrate_choose(const struct conversion *cv, struct calibration *c, int layer, const struct layer *w,
                     const struct inputs *h, float *x, const struct cpu_hook *hook, struct err *e);
/* x = the output of the layer, once all experts have added theirs to c->sum (or to x). */
void calibrate_add_experts(const struct conversion *cv, struct calibration *c, int layer, const struct layer *w,
                           float *x, uint8_t *kept);

enum layer_input calibrate_input(int role);
/* Report progress: a window of the windows of a layer. */
int calibrate_progress(const struct conversion *cv, const struct calibration *c, const char *what, int layer,
                       int window, struct err *e);

#endif
