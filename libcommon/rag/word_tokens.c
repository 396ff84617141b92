/* word_tokens.c - a table of the tokens of words, with one place for each hash. */
#include "libcommon/rag/word_tokens.h"

#include <stdlib.h>
#include <string.h>

enum { WORD_BYTES = 48 };                       /* longer words are counted each time */

void word_tokens_init(struct word_tokens *w, const struct token_counter *counter)
{
    *w = (struct word_tokens){ .counter = counter };
    if (!counter->count)                        /* code points are counted as fast as words are found */
        return;
    w->slot = calloc(WORD_TOKENS_SLOTS, sizeof *w->slot);
    w->one = token_count(counter, "a", 1);
}

void word_tokens_release(struct word_tokens *w)
{
    free(w->slot);
    w->slot = NULL;
}

/* FNV-1a.  If two words have the same hash, chunks have slightly other sizes; that is the only
 * effect. */
static uint64_t hash_of(const char *s, size_t n)
{
    uint64_t h = UINT64_C(14695981039346656037);
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)s[i]) * UINT64_C(1099511628211);
    return h ? h : 1;
}

static int is_blank(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

/* The number of tokens of a word together with the blanks before it.  They are counted after a
 * letter, whose tokens are subtracted, because some tokenizers insert a blank before the first word
 * of a text.  A word without blanks before it is counted alone. */
static size_t measure(const struct word_tokens *w, const char *word, size_t n)
{
    char text[1 + WORD_BYTES] = "a";
    if (!is_blank(*word))
        return token_count(w->counter, word, n);
    memcpy(text + 1, word, n);
    const size_t all = token_count(w->counter, text, n + 1);
    return all > w->one ? all - w->one : 0;
}

static size_t count_word(struct word_tokens *w, const char *word, size_t n)
{
    const uint64_t hash = hash_of(word, n);
    struct word_count *slot = &w->slot[(hash ^ hash >> 32) % WORD_TOKENS_SLOTS];
    if (slot->hash != hash)
        *slot = (struct word_count){ hash, measure(w, word, n) };
    return slot->tokens;
}

size_t word_tokens_count(struct word_tokens *w, const char *text, size_t size)
{
    size_t sum = 0;
    if (!w->slot)
        return token_count(w->counter, text, size);
    for (size_t at = 0, end; at < size; at = end) {
        for (end = at; end < size && is_blank(text[end]);)
            end++;
        while (end < size && !is_blank(text[end]))
            end++;
        sum += end - at > WORD_BYTES ? token_count(w->counter, text + at, end - at)
                                     : count_word(w, text + at, end - at);
    }
    return sum;
}
