/* internal.h - an open tokenizer, for the files that use one. */
#ifndef ZSE_TOKEN_INTERNAL_H
#define ZSE_TOKEN_INTERNAL_H

#include "libcommon/token/tok_pretok.h"
#include "libcommon/token/tok_regex.h"
#include "libcommon/token/tok_text.h"
#include "libcommon/token/tokenizer.h"
#include "libcommon/token/tokenizer_blob.h"

struct tokenizer {
    struct tokb_header h;               /* a copy */
    const char *text, *tokens;          /* the rest is borrowed from the block */
    size_t n_token_bytes;
    const uint32_t *offsets;
    const uint8_t *flags, *pairs;
    const struct tokb_slot *vocab;
    const struct tokb_merge *merges;
    const double *scores;
    const int32_t *chars, *bytes;
    const struct tokb_added *added[2];
    const uint32_t *added_first[2];
    const struct tokb_op *op[3];
    const int32_t *prefix, *suffix, *eos;
    struct regex **regex[3];            /* for each operation; NULL if it has none */
    int uses_regex;
};

/* The id of a text with this hash, -1 if the vocabulary has none. */
int32_t tok_lookup(const struct tokenizer *t, uint32_t hash, const char *p, size_t n);
int32_t tok_lookup_text(const struct tokenizer *t, const char *p, size_t n);

struct tok_ids {
    int32_t *p;                         /* owned */
    size_t n, room;
    int failed;
};
void tok_ids_add(struct tok_ids *v, int32_t id);

/* Scratch for encoding words; one for each call of tokenizer_encode. */
struct model_work {
    struct model_symbol *sym;
    struct model_span *span;
    size_t sym_room, span_room;
    uint64_t *heap;
    size_t n_heap, heap_room;
    struct model_node *node;
    size_t node_room;
    int failed;
};
/* Append the ids of one word (valid UTF-8, not empty) to out.  whole: 0 if it is a part of a longer
 * word that was cut with the help of PAIRS. */
int model_word(const struct tokenizer *t, struct model_work *w, const char *s, size_t n, int whole, struct tok_ids *out,
               struct err *e);
void model_work_release(struct model_work *w);

#endif
