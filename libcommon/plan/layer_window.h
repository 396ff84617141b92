/* layer_window.h - a model whose layers do not all fit in a device's memory: some layers stay
 * there, the others pass through a few slots, in order and again for every step.
 *
 * The module decides which layer is uploaded next and into which slot; it copies nothing.  A step
 * calls window_need() before a layer and window_done() behind it.  Then, as often as window_ahead()
 * returns a layer, the caller starts to upload it.  At the end of a step window_ahead() returns the
 * first layers, for the next step. */
#ifndef ZSE_PLAN_LAYER_WINDOW_H
#define ZSE_PLAN_LAYER_WINDOW_H

#include <stdint.h>

/* The number of layers of `layer` bytes that fit into `memory` beside other things, at least
 * `least`. */
int window_size(double memory, double beside, double layer, int least);

/* ADAPTIVE: as many layers as possible stay, evenly distributed, and the fewest bytes are uploaded;
 * SEQUENTIAL: all layers pass through all slots, and the least recently used layer is evicted. */
enum window_strategy { WINDOW_ADAPTIVE, WINDOW_SEQUENTIAL };
const char *window_strategy_name(enum window_strategy s);

enum { WINDOW_PREFETCH = 2, WINDOW_SLOTS = 64, WINDOW_KEPT = -1, WINDOW_ABSENT = -2 };
struct window_shape { int n_kept, n_slots, prefetch; };
/* Divide room for n layers.  prefetch: the number of layers to upload ahead; at most n - 1, and
 * never more slots than WINDOW_SLOTS. */
struct window_shape window_shape_of(int n, int prefetch, enum window_strategy s);

struct window_counts {
    /* layers that passed through slots: each is one upload, used once a step */
    uint64_t uses;
    uint64_t hits;              /* uses of layers whose upload had begun before a step needed them */
    uint64_t evictions;         /* uses for which a layer that had been used lost its slot */
};
struct window_slot { int layer, state, replaces; uint64_t order; };
struct layer_window {
    int first, n_layers;        /* of the layers [first, n_layers) of the model */
    struct window_shape shape, whole;   /* whole: before the window shrank */
    int next;                   /* the streamed layer to upload next; -1: there is none */
    uint64_t order;             /* number of uploads so far */
    struct window_counts counts;
    struct window_slot slot[WINDOW_SLOTS];
    int *place;                 /* [n_layers] WINDOW_KEPT, WINDOW_ABSENT, or a slot */
    unsigned char *stays;       /* [n_layers] 1: kept before the window shrank */
};
/* 0; -1: no memory. */
int window_open(struct layer_window *w, int first, int n_layers, struct window_shape shape);
void window_close(struct layer_window *w);

/* Choose the next layer to upload, and its slot.  -1: no slot is free, or enough layers are ahead.
 * *used: the slot may still be read by the step. */
int window_ahead(struct layer_window *w, int *slot, int *used);
/* A step is about to use a layer.  Returns its slot, or WINDOW_KEPT.  WINDOW_ABSENT: window_take()
 * has to choose a slot first. */
int window_need(struct layer_window *w, int layer);
/* Choose a slot for a layer that is absent, to upload it now; uploads ahead go on behind it.  -1:
 * no slot is free, because an earlier step ended early: call window_restart() first. */
int window_take(struct layer_window *w, int layer, int *used);
/* The step has used the layer: its slot may be filled again behind the step. */
void window_done(struct layer_window *w, int layer);
/* Forget what the slots hold. */
void window_restart(struct layer_window *w);
/* Give up room for a layer: the last one that stays becomes one of the others, or else one slot is
 * lost, the last one.  Call window_restart() before.  *kept: that layer, or -1.  Returns 0; -1:
 * there is one slot left, and nothing is given up. */
int window_shrink(struct layer_window *w, int *kept);
/* Whether the window has its first size. */
int window_is_whole(const struct layer_window *w);
/* Undo the last window_shrink(): there is room for a layer again.  Call window_restart() before.
 * *kept: the layer that stays from now on, or -1: there is one slot more, the last one.  Returns 0;
 * -1: the window has its first size, and nothing changes. */
int window_grow(struct layer_window *w, int *kept);

#endif
