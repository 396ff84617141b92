/* shape.h - the sizes of a model, layer by layer, from its configuration alone.
 *
 * Of an architecture that runs they come out of the model library's own reading of config.json;
 * of others they are guessed from the keys that most configurations share.  What the counts
 * leave out (biases, norms of single heads) is far less than one per cent.  convert_run with a
 * config has the bytes to the last one, for the architectures that run. */
#ifndef ZSE_PLAN_SHAPE_H
#define ZSE_PLAN_SHAPE_H

#include <stdint.h>

#include <jansson.h>

#include "libcommon/base/err.h"
#include "libcommon/model/model.h"

struct plan_layer {
    /* parameters */
    int64_t mixer;                          /* what lets tokens see each other: attention, latent attention, a convolution, a recurrence; 0: none */
    int64_t dense_mlp, shared_mlp, router;  /* 0: none */
    int64_t norms;
    int has_experts;                        /* n_experts of them, each of plan_shape.expert parameters */
    /* in the cache and in attention */
    int kv_rows, kv_width;                  /* of one token: keys and values of all heads, or with MLA the latent and the rotated key in one row; 0: nothing */
    int64_t attended;                       /* multiplications (and additions) of a token with each token that it sees */
    int window;                             /* tokens that it sees at most, 0: all */
    int64_t state_bytes;                    /* of a sequence in a layer with a state, whatever its length; 0: none */
};

struct plan_shape {
    int n_layers, hidden_size, intermediate_size, vocab_size, max_len;
    int tied;                               /* the head is the embedding */
    int64_t positions;                      /* parameters of learned positions; 0: none */
    int n_experts, top_k;                   /* 0: none */
    int64_t expert, shared;                 /* parameters of one expert; experts' worth of the shared MLP: shared_size / expert_size */
    struct plan_layer *layer;               /* [n_layers], owned */
};
/* From the parsed configuration of an architecture that runs. */
int plan_shape_of(struct plan_shape *s, const struct config *c, struct err *e);
/* From config.json as it is on the hub, for architectures that do not run; a text_config inside
 * of it is what counts.  Fields that are missing and not implied are refused by name. */
int plan_shape_guess(struct plan_shape *s, const json_t *config, struct err *e);
void plan_shape_release(struct plan_shape *s);

/* Parameters of the whole. */
struct plan_params {
    int64_t embedding, head;                /* head 0: tied */
    int64_t norms;                          /* of all layers and the last one */
    int n_expert_layers;
    int64_t total, active;                  /* active: what one token is multiplied by, the embedding not counted unless it is the head */
};
void plan_count(const struct plan_shape *s, struct plan_params *p);

/* Elements that a token adds to the cache of one layer: the latent and the rotated key with MLA,
 * else keys and values of all heads, 0 without attention. */
static inline int64_t plan_kv_elements(const struct plan_layer *l) { return (int64_t)l->kv_rows * l->kv_width; }
/* Bytes of one sequence's states, all layers. */
uint64_t plan_state_bytes(const struct plan_shape *s);

/* Linear layers at so many bytes a parameter, embedding and head at others; norms as bf16. */
double plan_rough_bytes(const struct plan_shape *s, double linear_bytes, double ends_bytes);

#endif
