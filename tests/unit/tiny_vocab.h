/* tiny_vocab.h - the vocabulary of models/tiny, with 100 ids more than it has tokens. */
#ifndef ZSE_TESTS_UNIT_TINY_VOCAB_H
#define ZSE_TESTS_UNIT_TINY_VOCAB_H

#include "libcommon/convert/tokenizer_source.h"
#include "libcommon/grammar/grammar.h"

static struct tokenizer *tokenizer;
static struct grammar_vocab *vocab;
static void *blob;

static int open_vocab(void **state)
{
    struct err e;
    size_t size;
    (void)state;
    if (tokenizer_from_path("models/tiny", &blob, &size, &e) != 0) {
        print_message("%s\n", e.msg);
        return -1;
    }
    tokenizer = tokenizer_open(blob, size, &e);
    vocab = tokenizer ? grammar_vocab_open(tokenizer, tokenizer_vocab_size(tokenizer) + 100, &e) : NULL;
    return vocab ? 0 : -1;
}

static int close_vocab(void **state)
{
    (void)state;
    grammar_vocab_close(vocab);
    tokenizer_close(tokenizer);
    free(blob);
    return 0;
}

static int bit(const uint32_t *mask, int32_t id) { return mask[id >> 5] >> (id & 31) & 1; }

#endif
