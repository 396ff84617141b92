/* matcher_forced.c - find the tokens that must come next. */
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/utf8.h"
#include "libcommon/grammar/matcher.h"

enum { FORCED_BYTES = 256 };

/* The only byte of the set; -1: it has several. */
static int only_byte(const uint64_t set[4])
{
    int byte = -1;
    for (int i = 0; i < 4; i++) {
        if (!set[i])
            continue;
        if (byte >= 0 || set[i] & (set[i] - 1))
            return -1;
        byte = 64 * i + __builtin_ctzll(set[i]);
    }
    return byte;
}

/* Returns how many of the n_ids tokens of the text stay the same when more text follows it, for
 * each first byte in `set`. */
static size_t certain(const struct tokenizer *t, char *text, size_t n, const uint64_t set[4], const int32_t *ids,
                      size_t n_ids, struct err *e)
{
    for (int b = 0, probes = 0; b <= 0x80 && n_ids; b++) {
        int32_t *other;
        size_t n_other, k = 0;
        if (b == 0x80 ? !(set[2] | set[3]) : !(set[b >> 6] >> (b & 63) & 1))
            continue;
        int alike = b < 0x80 && b > 0 && set[(b - 1) >> 6] >> ((b - 1) & 63) & 1 &&
                    (set[(b + 1) >> 6] >> ((b + 1) & 63) & 1) && b != 'e' && b != '1';
        if (alike)
            /* Try only both ends of each run of bytes, one letter and one digit, because tokenizers
             * distinguish no other kinds of bytes. */
            continue;
        if (++probes > 24)
            return 0;
        text[n] = (char)b;
        if (b == 0x80)
            memcpy(text + n, "\xC3\xA9", 2);        /* any character beyond ASCII */
        if (tokenizer_encode(t, text, n + (b == 0x80 ? 2 : 1), 0, &other, &n_other, e) != 0)
            return 0;
        while (k < n_ids && k < n_other && other[k] == ids[k])
            k++;
        n_ids = k;
        free(other);
    }
    return n_ids;
}

enum byte_class { LETTER, DIGIT, BLANK, SYMBOL };

static enum byte_class class_of(unsigned char c)
{
    return c >= 0x80 || ((c | 32) >= 'a' && (c | 32) <= 'z') ? LETTER : c >= '0' && c <= '9' ? DIGIT
           : c == ' ' || (c >= '\t' && c <= '\r') ? BLANK : SYMBOL;
}

/* Returns the number of bytes before the last word if that word may continue, else all.  Tokenizers
 * first split text into words (runs of characters of one kind, which may start with a blank or a
 * symbol); if a word gets longer, all of its tokens may change. */
static size_t before_open_word(const char *text, size_t n, const uint64_t follow[4])
{
    const enum byte_class c = class_of((unsigned char)text[n - 1]);
    int goes_on = 0;
    for (int b = 0; b < 256; b++)
        goes_on |= follow[b >> 6] >> (b & 63) & 1 && class_of((unsigned char)b) == c;
    size_t i = n;
    while (goes_on && i > 0 && class_of((unsigned char)text[i - 1]) == c)
        i--;
    if (i < n && i > 0 && (text[i - 1] == ' ' || (c == LETTER && class_of((unsigned char)text[i - 1]) == SYMBOL)))
        i--;
    return i;
}

/* Store the text that must come next, at most FORCED_BYTES, and the set of bytes that may follow
 * it.  Returns 0; -1 if the call has no result. */
static int certain_text(struct matcher *m, char *text, size_t *size, uint64_t follow[4])
{
    struct grammar *g = m->g;
    int left, cut = 0;
    do {
        size_t n = 0;
        int end = 0, byte = -1, known = 0;
        uint64_t set[4] = { 0 };        /* a copy: the configs move */
        uint32_t c;
        if (matcher_enter(m, &c) != 0)
            return -1;
        while (c && n < FORCED_BYTES && !g->x.failed) {
            memcpy(set, config_first(g, c), sizeof set);
            known = 1;
            byte = only_byte(set);
            end = g->config[c].accepting && !(set[0] | set[1] | set[2] | set[3]);
            if (byte < 0 || g->config[c].accepting || (byte == VOCAB_TOKEN && n))
                break;
            uint32_t to = config_step(g, c, byte);
            if (!to)
                break;
            text[n++] = (char)byte;
            c = to;
            if (n == VOCAB_NAME && (unsigned char)text[0] == VOCAB_TOKEN)
                break;
        }
        /* a single special token comes next: tokens never join across it */
        const int named = byte == VOCAB_TOKEN && n && (unsigned char)text[0] != VOCAB_TOKEN;
        memset(follow, named || end ? 0 : 0xFF, 4 * sizeof *follow);
        if (known && c && n < FORCED_BYTES && !named && !end)
            memcpy(follow, set, sizeof set);
        *size = n;
        left = matcher_leave(m, &cut);
    } while (left > 0);
    return left;
}

int matcher_forced(struct matcher *m, int32_t *out, int room)
{
    struct grammar *g = m->g;
    char text[FORCED_BYTES + 8];
    size_t n = 0;
    uint64_t follow[4];
    int k = 0;
    m->busy = 0;
    if (!g->v || m->ended || room <= 0 || certain_text(m, text, &n, follow) != 0)
        return 0;
    if (n && (unsigned char)text[0] == VOCAB_TOKEN) {
        if (n == VOCAB_NAME)
            out[k++] = (int32_t)((unsigned char)text[1] << 16 | (unsigned char)text[2] << 8 | (unsigned char)text[3]);
        return k;
    }
    int32_t *ids = NULL;
    size_t n_ids = 0, at = 0;
    struct err e = { .code = ERR_NONE };
    if (n < 2 || utf8_valid(text, n) != n)
        return 0;
    if (tokenizer_encode(g->v->t, text, n, 0, &ids, &n_ids, &e) == 0)
        n_ids = certain(g->v->t, text, n, follow, ids, n_ids, &e);
    if (e.code == ERR_MEMORY) {         /* continuing without the tokens would change the answer */
        m->error = e;
        free(ids);
        return 0;
    }
    if (!ids)
        return 0;
    const size_t most = before_open_word(text, n, follow);
    for (size_t i = 0; i < n_ids && k < room; i++) {
        size_t size;
        const char *p = grammar_vocab_bytes(g->v, ids[i], &size);
        if (!p || at + size > most || memcmp(p, text + at, size) != 0)
            /* The tokenizer puts a blank before the text, or normalizes it. */
            break;
        at += size;
        out[k++] = ids[i];
    }
    free(ids);
    return k;
}
