/* medusa.h - Medusa heads (arXiv:2401.10774, section 2.1.1): drafts of a model's next tokens from
 * its final state alone.
 *
 * Head i reads the state x after a token and predicts the token i + 2 places after that token; the
 * model's own head predicts the token one place after it.  The head computes x += silu(W x + b) for
 * each of its blocks, then logits. */
#ifndef ZSE_MODEL_MEDUSA_H
#define ZSE_MODEL_MEDUSA_H

#include "libcommon/model/model.h"

enum { MEDUSA_MOST_HEADS = 15, MEDUSA_MOST_BLOCKS = 16 };

struct medusa {
    int n_heads, n_blocks, hidden_size, vocab_size;
    /* [n_heads][n_blocks + 1]: the blocks of a head, then its matrix of logits; all int8, with the
     * same groups */
    struct linear *linears;
    size_t bytes;                   /* size of the weights */
    /* The section MDSA of a file (FORMAT.md, section 7), which linears point into: borrowed, or the
     * same memory as `owned`. */
    const uint8_t *section; size_t section_bytes;
    uint8_t *owned;                 /* NULL: the section is borrowed */
};

/* Bytes of such heads; 0: the numbers are out of range. */
uint64_t medusa_bytes(int n_heads, int n_blocks, int hidden_size, int vocab_size);
/* Allocate heads whose weights are unset. */
struct medusa *medusa_open(int n_heads, int n_blocks, int hidden_size, int vocab_size, struct err *e);
/* Make heads of a file's section, which is borrowed until medusa_close() and aligned to 64 bytes.
 * The heads must be for a model of this shape.  NULL with *e, without the name of the file. */
struct medusa *medusa_bind(const void *section, size_t size, const struct config *c, struct err *e);
void medusa_close(struct medusa *m);    /* NULL is fine */
/* Linear layer i of a head: i < n_blocks, a block; n_blocks: the logits. */
struct linear *medusa_linear(const struct medusa *m, int head, int i);

#endif
