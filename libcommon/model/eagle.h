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

#include <jansson.h>

#include "libcommon/model/model.h"

enum { EAGLE_MOST_AUX = 8, EAGLE_MOST_PARTS = 32 };

struct eagle {
    /* embed is the main model's, head too unless is_3; borrowed.  The head may have fewer rows than
     * config.vocab_size. */
    struct model model;
    struct config config;           /* owns the arrays of model.config */
    int is_3;                       /* EAGLE-3 */
    int hidden_size, vocab_size;    /* those of the main model */
    /* The state before layer aux_layer[i] (n_layers: after the last), multiplied by aux[i]
     * [hidden_size, hidden_size], summed over i.  n_aux 0: the final state. */
    int n_aux, aux_layer[EAGLE_MOST_AUX];
    struct linear aux[EAGLE_MOST_AUX];
    /* target [n_own]: the main model's token of each row of the head; NULL: the same */
    int n_own; const int32_t *target;
    size_t bytes;                   /* memory of the weights */
    /* The section EAGL of a file (FORMAT.md, section 8), which has target and all weights but the
     * embedding and EAGLE-1's head: borrowed, or the same memory as `owned`. */
    const uint8_t *section; size_t section_bytes;
    uint8_t *owned;                 /* NULL: the section is borrowed */
};

/* A matrix (linear), a bias or a norm (vector) of the heads: columns [first, first + cols) of a
 * tensor of `width` columns. */
struct eagle_part {
    const char *name; int in_layer; /* in_layer: the name follows the layer's prefix */
    struct linear *linear; const float **vector;
    int64_t rows, cols, first, width;
    int optional, present;          /* present: 1 unless it is optional */
    size_t at;                      /* offset in the section */
};

/* Allocate heads for a model of configuration `main`, without parts.  own: their config.json.  The
 * message does not name the file. */
struct eagle *eagle_open(const json_t *own, int is_3, const struct config *main, struct err *e);
/* List the parts of the heads, whose n_aux, is_3 and n_own are set.  Returns their number. */
int eagle_parts(struct eagle *g, struct eagle_part parts[EAGLE_MOST_PARTS]);
/* Set the shapes of the parts that are present, their offsets, g->bytes and g->section_bytes. */
int eagle_lay_out(struct eagle *g, struct eagle_part *parts, int n, size_t config_bytes, int has_map, struct err *e);
/* Allocate the section of heads that are laid out, and fill in what comes before the parts. */
int eagle_begin_section(struct eagle *g, const struct eagle_part *parts, int n, const char *config,
                        const int32_t *target, struct err *e);
/* Make heads of a file's section, which is borrowed until eagle_close() and aligned to 64 bytes.
 * They are for a model of configuration `main`.  NULL with *e, without the name of the file. */
struct eagle *eagle_bind(const void *section, size_t size, const struct config *main, struct err *e);
/* Let the heads use the embedding and, unless they have their own, the head of the main model,
 * which is borrowed. */
void eagle_attach(struct eagle *g, const struct model *main);
void eagle_close(struct eagle *g);      /* NULL is fine */

#endif
