/* calibrate.h - run the model on text during a conversion, with one layer and one expert in memory.
 *
 * The residual stream of all tokens, the matrices of a layer and those of error feedback are in
 * memory or, if they exceed a limit, in spill files: see enum hold. */
#ifndef ZSE_CONVERT_CALIBRATE_H
#define ZSE_CONVERT_CALIBRATE_H

#include "libcommon/convert/internal.h"
#include "libcommon/convert/linalg.h"
#include "libcommon/cpu/cpu.h"

/* Kinds of buffers that may be in spill files (spill.h) if memory is limited.  The first kinds are
 * used most, so they get memory first.  One expert is always in memory. */
enum hold {
    HOLD_EXPERT,                /* matrices of one expert */
    HOLD_H, HOLD_LINV,          /* matrices of error feedback, see gptq.h */
    HOLD_WEIGHTS,               /* the layer's other matrices, as the source has them */
    HOLD_ROUNDED,               /* the same matrices, as they are in the new file */
    HOLD_C,                     /* matrix C of error feedback, see gptq.h */
    HOLD_STATES,                /* rows of all tokens: the residual stream, inputs of a layer */
    N_HOLDS
};

/* One input of a layer for all tokens: [n_tokens][ld], with zeros in the columns from n on. */
struct inputs { float *x; int n, ld; };

/* Number of tokens on which an expert is quantized besides those routed to it. */
enum { OTHER_TOKENS = 64 };

struct calibration {
    struct cpu_layers *run;
    const struct linalg_ops *ops;
    const char *output;         /* borrowed; spill files are created in its folder */
    unsigned in_file;           /* 1 << enum hold */
    int n_windows, window_len;
    /* [n_windows * window_len] tokens: numbered within `embed`, and as they are */
    int32_t *ids, *tokens;
    float *x;                   /* input of the next layer in the float model, [n_tokens, hidden_size] */
    float *xq;                  /* x after the quantized layers, for effort best; else NULL */
    /* [n_windows][kept_bytes] other data that a window keeps between layers, see cpu_layers_kept(),
     * for x and for xq; NULL: none */
    uint8_t *kept, *kept_q;
    size_t kept_bytes;          /* bytes kept of one window */
    /* the source's weights: those outside of the layers, and the loaded layer */
    struct model m;
    struct model q;             /* the weights of m, quantized; only for effort best */
    void **blocks; int n_blocks, room;      /* memory of the loaded weights */
    /* For the layer whose experts are being quantized: the experts' input, with scaled channels
     * (for effort best, computed by the quantized layers before it), and the choice of experts. */
    struct inputs h;
    struct cpu_choice choice;
    /* sums of the experts' outputs: [n_tokens][hidden_size] if a norm follows, or
     * [n_tokens][moe.latent] */
    float *sum;
    /* a copy of that norm, for effort best, because its tensor is freed before the norm is used */
    float *norm;
    /* likewise the matrix that maps the sum of latents back; the memory of its tiles and bias */
    struct linear latent_out;
    uint8_t *latent_copy;
};

/* Load the weights of layer `index` (-1: those before the first layer) from the source into
 * c->m, as floats. */
int calibrate_load(struct conversion *cv, struct calibration *c, int index, struct err *e);
/* Free the weights that calibrate_load() has loaded. */
void calibrate_unload(struct calibration *c);
/* Free c->h, the experts' input, and c->choice. */
void calibrate_end_experts(struct calibration *c);
/* Allocate zeroed memory of this kind, to be freed with spill_free(); `what` names it in errors. */
void *calibrate_hold(const struct calibration *c, enum hold kind, size_t size, const char *what, struct err *e);
/* Allocate memory of this kind that calibrate_unload() frees. */
void *calibrate_alloc(struct calibration *c, enum hold kind, size_t size, struct err *e);

/* Run layer `index` of c->m over c->x in place.  The strengths of its inputs are stored in the
 * conversion, the choice of experts in c, and the inputs themselves in keep (NULL: nowhere). */
int calibrate_layer(struct conversion *cv, struct calibration *c, int index, struct inputs keep[N_INPUTS],
                    struct err *e);

/* Select the window of text for the next run.  kept: c->kept or c->kept_q, whose part for this
 * window is used. */
void calibrate_window(struct calibration *c, uint8_t *kept, int window);

/* Choose the experts of all tokens, in c->choice; x is the residual stream.  The output of a shared
 * MLP is stored in c->sum if a norm follows, otherwise it is added to x. */
int calibrate_choose(const struct conversion *cv, struct calibration *c, int layer, const struct layer *w,
                     const struct inputs *h, float *x, const struct cpu_hook *hook, struct err *e);
/* Complete the layer's output in x, after all experts have added their outputs to c->sum (or to
 * x). */
void calibrate_add_experts(const struct conversion *cv, struct calibration *c, int layer, const struct layer *w,
                           float *x, uint8_t *kept);

enum layer_input calibrate_input(int role);
/* Report the progress of `what` for this window of a layer. */
int calibrate_progress(const struct conversion *cv, const struct calibration *c, const char *what, int layer,
                       int window, struct err *e);

#endif
