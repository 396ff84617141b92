/* word_tokens.h - count the tokens of a long text word by word: a word that was seen before is not
 * tokenized again.
 *
 * Tokenizers rarely join characters over a blank, so the sum over the words, each with the blanks
 * before it, is the count of the text or close to it. */
#ifndef ZSE_RAG_WORD_TOKENS_H
#define ZSE_RAG_WORD_TOKENS_H

#include <stdint.h>

#include "libcommon/rag/chunks.h"

enum { WORD_TOKENS_SLOTS = 1 << 13 };
struct word_tokens {
    const struct token_counter *counter;        /* borrowed */
    size_t one;                                 /* tokens of the letter that stands before a measured word */
    struct word_count { uint64_t hash; size_t tokens; } *slot;  /* owned; NULL: every text is counted whole */
};
void word_tokens_init(struct word_tokens *w, const struct token_counter *counter);
void word_tokens_release(struct word_tokens *w);
size_t word_tokens_count(struct word_tokens *w, const char *text, size_t size);

#endif
