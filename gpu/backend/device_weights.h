/* device_weights.h - a model's weights in device memory: several threads load them through pinned
 * buffers, in the order of the layers, while the loaded layers already compute.
 *
 * If the layers do not all fit, a window of them is on the device: some layers stay, the others
 * pass through slots at every step.  The threads go on loading then.  A step never waits for a copy
 * on the host: a slot is filled behind an event of the kernels that read it last, and kernels run
 * behind the event of the copies that they need.  The kernels are the same as without a window, and
 * so is every bit of the result.  Such steps are not recorded as graphs, because a graph's replay
 * has no place where the host could queue copies. */
#ifndef ZSE_GPU_BACKEND_DEVICE_WEIGHTS_H
#define ZSE_GPU_BACKEND_DEVICE_WEIGHTS_H

#include "gpu/backend/tp_model.h"
#include "gpu/gpu.h"
#include "gpu/kernels/operations.h"
#include "gpu/rt/rt.h"
#include "libcommon/model/parts.h"
#include "libcommon/plan/layer_window.h"

/* w.data NULL: absent; decoded.data NULL: no f16 copy */
struct dlinear { struct gpu_mat w, decoded; const float *bias; };
struct dnorm { const float *w, *b; int present; };
/* The matrices of all experts of a layer, by the names that they have in struct expert; w.data
 * NULL: the layer has none. */
struct dexperts {
#define NORM(...)
#define VECTOR(...)
#define MATRIX(...)
#define EXPERT(id, field, ...) struct gpu_expert_mat field;
#include "libcommon/model/parts.def"
};
/* The weights of a layer, by the names that they have in struct layer. */
struct dlayer {
#define KEEP_DENSE(field) field
#define KEEP_EXTRA(field) field
#define KEEP_BEYOND(field)
#define NORM(id, field, name, scope, ...) KEEP_##scope(struct dnorm field;)
#define VECTOR(id, field, name, scope, ...) KEEP_##scope(const float *field;)
#define MATRIX(id, field, name, scope, ...) KEEP_##scope(struct dlinear field;)
#define EXPERT(...)
#include "libcommon/model/parts.def"
    struct dexperts experts;
};

struct dweights;
/* Layers [first, end). */
struct layer_range { int first, end; };
/* The weights that are on the device: those of its layers, with n_experts experts of each; of the
 * embedding if it has the first layer, and of the head if it has the last one. */
struct dweights_options {
    struct layer_range layers;
    int n_experts;
    /* the model is the part of a tensor-parallel rank; NULL: it is whole */
    const struct tp_model *part;
    /* decoded: also make f16 copies of the layers' quantized matrices, which prompts use; with
     * act_codes those that dweights_reads_codes() have no copy */
    int decoded, act_codes;
    /* n_slots > 0: some layers pass through these slots at every step (plan/layer_window.h), and
     * nothing is decoded */
    struct window_shape window;
};
/* Returns the bytes of device memory that the weights take without a window. */
size_t dweights_size(const struct model *m, struct layer_range layers, int n_experts);
/* Returns the bytes of the weights outside of the layers; *largest: the bytes of the largest layer,
 * as much as a slot or a layer that stays takes at most. */
size_t dweights_ends_size(const struct model *m, struct layer_range layers, int n_experts, size_t *largest);
/* Returns the bytes of the weights that the processor computes with: with host_layers > 0 the
 * embedding and the first host_layers layers, and experts [n_experts, all) of the device's
 * layers. */
size_t dweights_host_size(const struct model *m, int host_layers, struct layer_range layers, int n_experts);
/* Returns the bytes of the f16 copies. */
size_t dweights_decoded_size(const struct model *m, struct layer_range layers, int act_codes);
/* Whether the matrix is multiplied by activations of 8 bits (enum act_codes), as it is. */
int dweights_reads_codes(int act_codes, const struct gpu_mat *m);
/* Start to load the weights; m stays open until loading ends or dweights_close().  The compute
 * stream makes the copies of a layer when it first needs the layer, and the missing ones once all
 * weights are loaded.  If there is too little memory for the layers of a window, the window becomes
 * smaller. */
struct dweights *dweights_open(struct gpu *g, const struct model *m, const struct dweights_options *o, struct err *e);
void dweights_close(struct dweights *w);        /* stops loading; NULL is fine */

/* parts: DWEIGHTS_FIRST the embedding with its norms, 0 .. n_layers - 1 the layers, n_layers
 * final norm and head */
enum { DWEIGHTS_FIRST = -1 };
/* Let the compute stream wait for a part.  The host waits only until the part's copies are
 * queued. */
int dweights_need(struct dweights *w, int part, struct err *e);
/* The kernels that use a layer are launched: its slot, if it has one, is filled again behind
 * them. */
int dweights_done(struct dweights *w, int layer, struct err *e);
/* 1 once everything is loaded and dweights_need() no longer waits; never with a window. */
int dweights_complete(struct dweights *w, struct err *e);
/* Return the memory of a layer of the window to the device, between two steps: fewer layers stay,
 * or there are fewer slots.  1: done; 0: there is no window, or its last slot is left; -1 with
 * *e. */
int dweights_shrink(struct dweights *w, struct err *e);
/* Take memory for a layer again that dweights_shrink() has returned, between two steps.  1: done;
 * 0: there is no window, it has its first size, or the device has no memory; -1 with *e. */
int dweights_grow(struct dweights *w, struct err *e);
/* Bytes that a layer of the window takes at most. */
size_t dweights_window_bytes(const struct dweights *w);
/* The window and its counts; window 0: there is none. */
void dweights_stream(struct dweights *w, struct backend_stream *s);

/* Experts on the device are in slots of equal size: the matrices and biases of an expert, each
 * 256-byte aligned.  dweights_expert() lists these with their offsets in a slot and returns the
 * size of the slot; dweights_slots() describes slots from `at` on, for experts of the shape of
 * x. */
enum { EXPERT_PARTS = 6 };
struct dweights_part { const void *from; size_t offset, size; };
size_t dweights_expert(const struct expert *x, struct dweights_part part[EXPERT_PARTS], int *n);
struct dexperts dweights_slots(const struct expert *x, const uint8_t *at);

const struct dlayer *dweights_layer(const struct dweights *w, int layer);
/* The weights outside of the layers, by the names that they have in struct model. */
struct dends {
#define NORM(id, field, source, side, scope, ...) KEEP_##scope(struct dnorm field;)
#define VECTOR(id, field, source, side, scope, ...) KEEP_##scope(const float *field;)
#define MATRIX(id, field, source, side, scope, ...) KEEP_##scope(struct dlinear field;)
#include "libcommon/model/ends.def"
};
const struct dends *dweights_ends(const struct dweights *w);

/* clock_ns() when the last byte arrived; 0: not yet. */
uint64_t dweights_copied_ns(struct dweights *w);

#endif
