/* budget.h - the memory of each rank of a pipeline of GPUs, and the tokens of keys and values
 * that fit beside the weights. */
#ifndef ZSE_PLAN_BUDGET_H
#define ZSE_PLAN_BUDGET_H

#include "libcommon/plan/shape.h"

enum { BUDGET_RANKS = 64 };

struct budget_options {
    int n_ranks, layers[BUDGET_RANKS];      /* layers of each rank, in order; n_ranks 0: all on one */
    /* bytes for each parameter of attention, dense and shared MLPs: 2 (bf16), 1 (int8), 0.5 (int4);
     * router, norms, embedding and head are bf16 */
    double linear_bytes;
    int kv_element_bytes;                   /* 1 (fp8), 2 (bf16) */
    double rank_bytes;                      /* memory of a GPU */
    double headroom_bytes;                  /* memory of each GPU to leave free */
    int context;                            /* tokens wanted; 0: none in particular */
    /* bytes of one expert on the GPU, see budget_expert_bytes; 0: experts stay in host memory */
    double expert_bytes;
    /* with expert_bytes > 0: the buffer holds the experts of 1/divisor of the layers; 1: of all
     * layers; 0: of one layer */
    int divisor;
};

struct budget_rank {
    int first_layer, n_layers;
    double attention /* or another mixer */, dense_mlp, shared_mlp, router_norms, embedding, head;     /* bytes */
    double weights;                         /* the sum of those six */
    double experts;                         /* buffer for experts */
    double states;                          /* bytes of a sequence's states in recurrent layers */
    double free;                            /* left for keys and values; negative: it does not fit */
    double kv_token;                        /* bytes that a token's keys and values take */
    double tokens;
};
struct budget {
    int n_ranks;
    struct budget_rank rank[BUDGET_RANKS];
    int bottleneck;                         /* rank with the fewest tokens */
    double tokens;                          /* tokens that the bottleneck can hold: max_total_tokens */
    double context;                         /* tokens, at most max_position_embeddings */
    /* the fraction of a GPU's memory that weights, and keys and values of `context` tokens, take on
     * the fullest rank: mem_fraction_static */
    double fraction;
};
/* Returns -1 with *e if the given layers do not add up to the model's, or if there are more ranks
 * than BUDGET_RANKS. */
int budget_make(struct budget *b, const struct plan_shape *s, const struct budget_options *o, struct err *e);

/* Distribute n_layers over the ranks as evenly as possible; the first ranks take the remainder. */
void budget_partition(int n_layers, int n_ranks, int *layers);
/* Bytes of one routed expert: packed codes of `bits` bits, and a bf16 scale for each group of
 * weights. */
double budget_expert_bytes(const struct plan_shape *s, int bits, int group_size);
/* Bytes of the buffer for experts: those of all layers, shared ones included, divided by the
 * divisor; divisor 0: the routed experts of one layer. */
double budget_expert_buffer(const struct plan_shape *s, double expert_bytes, int divisor);

#endif
