/* shape.h - the sizes of a model, counted from its config.json alone, whether or not the engine runs its architecture.
 *
 * What the counts leave out (biases, norms of single heads) is far less than one per cent.  convert/estimate.h has the bytes to the last one, for the
 * architectures that run. */
#ifndef ZSE_PLAN_SHAPE_H
#define ZSE_PLAN_SHAPE_H

#include <stdint.h>

#include <jansson.h>

#include "libcommon/base/err.h"

struct plan_shape {
    int n_layers, hidden_size, intermediate_size, n_heads, n_kv_heads, head_dim, vocab_size, max_len;
    int tied, gated;                        /* the head is the embedding; the MLP has a gate */
    /* mixture of experts; n_experts 0: none */
    int n_experts, top_k, expert_size, n_dense_layers /* the first ones */, expert_every /* 1: every layer after them */;
    int64_t shared_size;                    /* of the shared MLP, all its experts together */
    /* latent attention (MLA); kv_rank 0: none */
    int q_rank, kv_rank, nope_dim, rope_dim, v_dim;
    int window, n_windowed;                 /* sliding window in tokens, layers that have it */
};
/* config: as it is on the hub; a text_config inside of it is what counts.  Fields that are missing and not implied are refused by name. */
int plan_shape_parse(struct plan_shape *s, const json_t *config, struct err *e);

/* Parameters by part. */
struct plan_params {
    int64_t attention;                      /* of one layer */
    int64_t dense_mlp, shared_mlp, router, expert;      /* of one layer that has it; of one expert */
    int64_t norms;                          /* of one layer */
    int64_t embedding, head;                /* head 0: tied */
    int n_dense_layers, n_expert_layers;
    int64_t total, active;                  /* active: what one token is multiplied by, the embedding not counted unless it is the head */
};
void plan_count(const struct plan_shape *s, struct plan_params *p);
/* Does this layer have experts? */
int plan_has_experts(const struct plan_shape *s, int layer);

/* Bytes of one token in the cache of one layer, with elements of so many bytes: the latent and the rotated key with MLA, else keys and values of all heads. */
int64_t plan_kv_layer_bytes(const struct plan_shape *s, int element_bytes);

/* Linear layers at so many bytes a parameter, embedding and head at others; norms as bf16. */
double plan_rough_bytes(const struct plan_shape *s, double linear_bytes, double ends_bytes);

#endif
