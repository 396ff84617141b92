/* cpu_lora.h - LoRA adapters on the CPU.  A sequence may name an adapter; then scale * B (A x) is
 * added to its rows of the outputs of those linear layers that the adapter changes.
 *
 * A x is computed before the parallel loop of core_linear(), for all matrices of the loop.  The job
 * of a tile multiplies it by the tile's rows of B.  Each row of a step has sums of its own, in a
 * fixed order, so its result does not depend on the other rows. */
#ifndef ZSE_CPU_CPU_LORA_H
#define ZSE_CPU_CPU_LORA_H

#include "libcommon/base/err.h"
#include "libcommon/model/lora.h"

struct batch_item;
struct core;
struct linear;
struct op;

enum {
    LORA_MATRICES = 8,                  /* most matrices of a loop */
    LORA_ROWS = 16,                     /* most rows of a run */
    LORA_PREFETCH = 8,                  /* most runs whose B is prefetched */
};

/* A run: rows [first, first + n) of the step, which have the same adapter. */
struct lora_run { int first, n, lora; };
struct lora_work {
    int n_runs;                         /* number of runs in this step; 0: no row has an adapter */
    struct lora_run *runs;              /* [max_tokens] */
    /* the matrices of the loop that adapters change, and scale * A x of each:
     * low [LORA_MATRICES][max_tokens][ld] */
    int n_matrices;
    const struct linear *matrix[LORA_MATRICES];
    float *low;
    size_t ld;
    /* for each thread: [LORA_ROWS][tile_job * TILE_ROWS], or [LORA_ROWS * LORA_PARTS][TILE_ROWS] */
    float **tile; int n_tiles;
    size_t bytes;                       /* the memory that holds all of these */
};

/* Take the memory that the model's adapters need; without adapters none.  Called again when
 * adapters were added, between two steps; -1 with *e, and the old memory stays in use. */
int lora_open(struct core *k, const struct model *m, struct err *e);
void lora_close(struct core *k);
/* Find the runs of a step. */
void lora_step(struct core *k, const struct batch_item *items, int n_items);
/* Compute A x for the matrices of a loop. */
void lora_project(struct core *k, const struct op *ops, int n_ops);
/* Prefetch the tiles [t0, t1) of B of the adapters that lora_add() will read: they are short pieces
 * in many places, which the hardware does not prefetch. */
void lora_prefetch(const struct core *k, const struct linear *l, int t0, int t1);
/* Add B (A x) to tiles [t0, t1) of the output of l; out points to row 0. */
void lora_add(const struct core *k, const struct linear *l, int t0, int t1, float *out, size_t ldo, int thread);

#endif
