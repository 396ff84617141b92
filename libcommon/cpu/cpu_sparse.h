/* cpu_sparse.h - the common operations of sparse attention on the CPU: find keys in KV blocks,
 * score them by an indexer, choose the best, copy keys and values. */
#ifndef ZSE_CPU_CPU_SPARSE_H
#define ZSE_CPU_CPU_SPARSE_H

#include "libcommon/cpu/internal.h"

/* The item of a batch that a token belongs to. */
int sparse_item(const struct step *s, int token);
/* A KV block of an item, at the step's layer. */
uint8_t *sparse_block(const struct core *k, const struct step *s, int item, int block);

/* Keys, each of which stands for a run of `rate` tokens and is stored in the KV block of the run's
 * last token. */
struct sparse_keys {
    const struct core *k;
    const struct step *s;
    size_t at;                              /* offset of the keys in a KV block */
    int rate, slots;                        /* slots: keys in a KV block; KV_BLOCK if the rate is 1 */
};
/* The keys in the block that holds key i of an item, and the slot of key i there. */
uint8_t *sparse_place(const struct sparse_keys *p, int item, int i, int *slot);

/* Load the keys of a whole KV block, stored as `type`: out [dim][KV_BLOCK].  scales: the offset of
 * their scales from the keys, for packed types. */
void sparse_load_block(enum kv_type type, const uint8_t *keys, size_t scales, int dim, float *out);
/* Copy a key of dim elements with its scale, between blocks with to_slots and from_slots keys. */
void sparse_copy_key(enum kv_type type, int dim, uint8_t *to, int to_slots, int to_slot, const uint8_t *from,
                     int from_slots, int from_slot);
/* Copy a value of dim elements with its scale, between blocks of KV_BLOCK values. */
void sparse_copy_value(enum kv_type type, int dim, uint8_t *to, int to_slot, const uint8_t *from, int from_slot);

/* Cosines and sines for the first token of run i of `rate` tokens; each [r->dim / 2]. */
void sparse_angles(const struct rope *r, int i, int rate, float *cosine, float *sine);

/* Scores of complete runs for the queries of the model's indexer. */
struct sparse_scores {
    struct sparse_keys keys;
    const float *q, *weight;                /* [tokens][n_heads][head_dim]; [tokens][n_heads] */
    int weight_stride;                      /* n_heads; 0: all tokens have the same weights */
    float *out;                             /* [batch][room] */
    int room;                               /* a multiple of KV_BLOCK */
};
/* Score all keys before each of n tokens.  Tokens that see at most top_k keys are skipped, because
 * no choice is needed for them. */
void sparse_score(const struct sparse_scores *x, int first_token, int n);
/* Set `to` to the indexes of the `most` largest of n scores, ascending; of equal scores the first
 * are taken.  Returns the number of indexes. */
int sparse_choose(const float *score, int n, int most, int *to);

#endif
