/* eagle.h - EAGLE heads: a layer that was trained beside a model to predict its next states, and so
 * further tokens (EAGLE-1 and -2: arXiv:2401.15077, section 4; EAGLE-3: arXiv:2503.01840,
 * section 3).
 *
 * The layer is a model of one layer (config.predicts).  Its entry i is computed from the main
 * model's state after token i and from token i + 1, and predicts token i + 2; further tokens are
 * predicted from its own state.  EAGLE-1 reads the main model's final state, and its logits are
 * those of the main model's head.  EAGLE-3 reads a projection of the states before a few layers
 * (auxiliary states), and has a head of its own, over a part of the vocabulary. */
#ifndef ZSE_MODEL_EAGLE_H
#define ZSE_MODEL_EAGLE_H

#include "libcommon/model/model.h"

enum { EAGLE_MOST_AUX = 8 };

struct eagle {
    /* embed is the main model's, head too unless `target` is set; borrowed.  The head may have
     * fewer rows than config.vocab_size. */
    struct model model;
    struct config config;           /* owns the arrays of model.config */
    int hidden_size, vocab_size;    /* those of the main model */
    /* The state before layer aux_layer[i] (n_layers: after the last), multiplied by aux[i]
     * [hidden_size, hidden_size], summed over i.  n_aux 0: the final state. */
    int n_aux, aux_layer[EAGLE_MOST_AUX];
    struct linear aux[EAGLE_MOST_AUX];
    /* target [n_own]: the main model's token of each row of the head; NULL: the same */
    int n_own; int32_t *target;
    size_t bytes;                   /* memory of the weights */
    uint8_t *data;                  /* owned; all weights but the embedding and EAGLE-1's head */
};

#endif
