/* shape.h - the sizes of a model, layer by layer, from its configuration alone.
 *
 * For an architecture that runs, the model library reads config.json; for others the sizes are
 * guessed from the keys that most configurations share.  The counts leave out biases and norms of
 * single heads, far less than one per cent.  convert_run with a config gives the exact bytes, for
 * the architectures that run. */
#ifndef ZSE_PLAN_SHAPE_H
#define ZSE_PLAN_SHAPE_H

#include <stdint.h>

#include <jansson.h>

#include "libcommon/base/err.h"
#include "libcommon/model/model.h"

struct plan_layer {
    /* parameters */
    int64_t mixer;                          /* attention, latent attention, a convolution or a recurrence; 0: none */
    int64_t dense_mlp, shared_mlp, router;  /* 0: none */
    int64_t norms;
    int has_experts;                        /* n_experts of them, each of plan_shape.expert parameters */
    /* sizes of the cache and of attention */
    /* for one token: rows of keys and values, one of each for every head; with MLA or compressed
     * attention a single row; 0: it stores none */
    int kv_rows, kv_width;
    int index_width;                        /* elements of the indexer's key of a token; 0: none */
    /* compressed attention: entries that a KV block holds, and keys of an indexer for each; 0:
     * none */
    int entries;
    /* multiplications (and as many additions) of one token for each token that it attends to */
    int64_t attended;
    int window;                             /* most tokens that it attends to, 0: all */
    /* the window that its stored keys and values are limited to on the CPU (window blocks of
     * libcommon/cache/kv.h); 0: those of all tokens are stored */
    int stored;
    int64_t state_bytes; /* bytes of a sequence in a layer with a state, whatever its length; 0: none */
};

struct plan_shape {
    int n_layers, hidden_size, intermediate_size, vocab_size, max_len;
    int tied;                               /* the head is the embedding */
    int64_t positions;                      /* parameters of learned positions and embeddings of layers */
    int n_experts, top_k;                   /* 0: none */
    /* parameters of one expert; size of the shared MLP as a multiple of an expert's (shared_size /
     * expert_size) */
    int64_t expert, shared;
    struct plan_layer *layer;               /* [n_layers], owned */
};
/* Fill in the shape from the parsed configuration of an architecture that runs. */
int plan_shape_of(struct plan_shape *s, const struct config *c, struct err *e);
/* Guess the shape of a model whose architecture does not run from its config.json; if that contains
 * a text_config, it is used instead. Missing fields that are not implied are refused by name. */
int plan_shape_guess(struct plan_shape *s, const json_t *config, struct err *e);
void plan_shape_release(struct plan_shape *s);

/* Numbers of parameters of the whole model. */
struct plan_params {
    int64_t embedding, head;                /* head 0: tied */
    int64_t norms;                          /* elements of the norms of all layers and of the last norm */
    int n_expert_layers;
    /* parameters: all; those that one token uses, with the embedding only if it is also the head */
    int64_t total, active;
};
void plan_count(const struct plan_shape *s, struct plan_params *p);

/* Elements that a token adds to the cache of one layer: the latent and the rotated key with MLA,
 * else keys and values of all heads, 0 without attention. */
static inline int64_t plan_kv_elements(const struct plan_layer *l) { return (int64_t)l->kv_rows * l->kv_width; }
/* Bytes of one sequence's states, all layers. */
uint64_t plan_state_bytes(const struct plan_shape *s);

/* Bytes of a model with linear_bytes for each parameter of linear layers, ends_bytes for each
 * parameter of embedding and head, and norms as bf16. */
double plan_rough_bytes(const struct plan_shape *s, double linear_bytes, double ends_bytes);

#endif
