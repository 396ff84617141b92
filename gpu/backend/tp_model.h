/* tp_model.h - the part of a model that one of several GPUs computes in every layer (tensor
 * parallelism): a model of its own, with fewer heads and a narrower MLP.
 *
 * Heads are divided with their rows of q, k and v and their columns of o; MLPs by rows of gate and
 * up and columns of down; experts whole.  Rows are cut at tiles of 32, columns at units of scale
 * groups (quant/tile.h), so every part consists of bytes of the file, and each rank loads only its
 * own.  The outputs of o, down and the experts are partial sums then, which the ranks add
 * (all_reduce.h).  If there are fewer KV heads than ranks, several ranks share one, and its query
 * heads are divided.
 *
 * Every rank computes mixers with a state, attention with norms over all heads, and parts that are
 * too small, because these cannot be divided.  A shared MLP that cannot be divided belongs to the
 * first rank alone, as do the embedding and the head.  In a pipeline each stage is divided like
 * this, and loads its layers only. */
#ifndef ZSE_GPU_BACKEND_TP_MODEL_H
#define ZSE_GPU_BACKEND_TP_MODEL_H

#include "libcommon/model/model.h"

/* The columns of a matrix that a rank has, as units [first, first + n) of each tile of `whole`;
 * whole NULL: the rank has all. */
struct tp_columns { const struct mat *whole; int first, n; };

enum { TP_MIXER = 1, TP_FF = 2 };
struct tp_model {
    struct model m;                     /* shares everything but its layers with the whole model */
    const struct model *whole;
    int rank, n_ranks;
    /* [n_layers] the halves of a layer whose outputs are partial sums: TP_MIXER, TP_FF */
    unsigned char *split;
    struct tp_columns *o, *down;        /* [n_layers] */
    int first_head;                     /* its first query head in the whole model */
    int first_expert, n_experts;
};

/* The part of rank `rank` of n.  m stays open until tp_model_close().  NULL with *e: no memory, or
 * nothing in the model can be divided. */
struct tp_model *tp_model_open(const struct model *m, int n, int rank, struct err *e);
void tp_model_close(struct tp_model *t);        /* NULL is fine */

#endif
