/* vocab.h - the bytes of all tokens as a trie, for the files of this folder. */
#ifndef ZSE_GRAMMAR_VOCAB_H
#define ZSE_GRAMMAR_VOCAB_H

#include "libcommon/grammar/grammar.h"

/* Special and added tokens are stored in the trie as VOCAB_TOKEN and three bytes of their id,
 * highest first.  That byte is not valid in UTF-8, so only a grammar that names such a token
 * accepts it. */
/* Tokens of more than MAX_TOKEN bytes are never allowed. */
enum { VOCAB_TOKEN = 0xFF, VOCAB_NAME = 4, VOCAB_RUNS = 32, MAX_TOKEN = 4096 };

/* Nodes in depth-first order; node 0 is the root.  The tokens that end in or below node i are
 * order[token[i] .. token[skip[i]]). */
struct trie {
    uint32_t n;
    uint8_t *byte; uint16_t *depth;
    uint32_t *skip;             /* the first node that is not below this one */
    uint32_t *token;            /* [n + 1] */
    int32_t *order;
};

struct grammar_vocab {
    const struct tokenizer *t;
    int size;                   /* ids */
    size_t n_words;             /* words of a mask */
    char *bytes; uint32_t *at;  /* [size + 1]: bytes of id are bytes[at[id] .. at[id + 1]) */
    /* [size], by id.  1: a special or added token; 2: never part of a text (its bytes are not valid
     * in UTF-8, or it has none). */
    uint8_t *named;
    const int32_t *eos; int n_eos;
    struct trie all;
    /* Most tokens are runs of characters that any JSON string may hold (no quotation mark,
     * backslash or control character).  run[k] is the set of runs of at most k + 1 characters;
     * `rest` is the trie of all tokens that are in no run. */
    uint32_t *run[VOCAB_RUNS];
    struct trie rest;
};

/* Masks: bit id is set if token id may come next. */
static inline void mask_set(uint32_t *mask, int32_t id) { mask[id >> 5] |= 1u << (id & 31); }
static inline void mask_clear(uint32_t *mask, int32_t id) { mask[id >> 5] &= ~(1u << (id & 31)); }
static inline int mask_has(const uint32_t *mask, int32_t id) { return mask[id >> 5] >> (id & 31) & 1; }

/* The four bytes that stand for a named token; -1 if no such id is named. */
int vocab_name(const struct grammar_vocab *v, int32_t id, unsigned char name[VOCAB_NAME]);

#endif
