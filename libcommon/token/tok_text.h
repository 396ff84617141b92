/* tok_text.h - text for all parts of the tokenizer: a growing buffer, character classes as
 * Rust's char has them, normal forms. */
#ifndef ZSE_TOKEN_TOK_TEXT_H
#define ZSE_TOKEN_TOK_TEXT_H

#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"

/* A growing array of bytes.  After a failed allocation `failed` stays set and further appends do
 * nothing: check it once at the end. */
struct tbuf {
    char *p;                        /* owned; NULL while room is 0 */
    size_t n, room;
    size_t limit;                   /* no more bytes than this; 0: no limit */
    int failed;                     /* enum tbuf_failure */
};
enum tbuf_failure { TBUF_NO_MEMORY = 1, TBUF_LIMIT = 2 };
int tbuf_reserve(struct tbuf *b, size_t more);          /* room for n + more bytes: 0 or -1 */
/* Limit of the size that the steps of a tokenizer may make of n bytes: far more than any real
 * tokenizer needs. */
static inline size_t tbuf_growth(size_t n) { return n > SIZE_MAX / 512 ? SIZE_MAX : (1 << 20) + 256 * n; }
void tbuf_add(struct tbuf *b, const void *p, size_t n);
void tbuf_char(struct tbuf *b, uint32_t c);             /* append a character as UTF-8 */
void tbuf_release(struct tbuf *b);
static inline void tbuf_swap(struct tbuf *a, struct tbuf *b)
{
    struct tbuf t = *a;
    *a = *b;
    *b = t;
}

/* Append s, with invalid UTF-8 replaced: the longest valid beginning of a character that is not
 * completed becomes one U+FFFD, and so does every other stray byte.  Returns the number of bytes
 * used; with `more` (text follows), an incomplete character at the end is not used yet. */
size_t text_sanitize(struct tbuf *out, const char *s, size_t n, int more);

/* The code point at s in valid UTF-8, and its length. */
static inline uint32_t text_next(const char *s, int *n)
{
    const unsigned char *p = (const unsigned char *)s;
    if (p[0] < 0x80)
        return *n = 1, p[0];
    if (p[0] < 0xE0)
        return *n = 2, (p[0] & 0x1Fu) << 6 | (p[1] & 0x3Fu);
    if (p[0] < 0xF0)
        return *n = 3, (p[0] & 0x0Fu) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu);
    return *n = 4, (p[0] & 0x07u) << 18 | (p[1] & 0x3Fu) << 12 | (p[2] & 0x3Fu) << 6 | (p[3] & 0x3Fu);
}
/* The code point that ends before s + at (at > 0), and its length. */
uint32_t text_prev(const char *s, size_t at, int *n);

/* Offset of the first `what` in s[0..n); n if there is none or `what` is empty.  Meant for short
 * texts.  Unlike memmem() it touches nothing behind a hit, so that a loop over all hits is linear
 * under AddressSanitizer, too. */
size_t text_find(const char *s, size_t n, const char *what, size_t n_what);

int text_is_space(uint32_t c);          /* White_Space */
int text_is_word(uint32_t c);           /* \w of Unicode: Alphabetic, M, Nd, Pc, joiners */
int text_is_control(uint32_t c);        /* Cc, Cf, Co, Cs but tab, LF, CR */
int text_is_mark(uint32_t c);           /* M */
int text_is_nonspacing(uint32_t c);     /* Mn */
int text_is_chinese(uint32_t c);        /* BERT's blocks of ideographs */

void text_lower(struct tbuf *out, const char *s, size_t n);

/* Normal forms; out is appended to.  Linear in n, whatever the marks. */
enum text_form { TEXT_NFC, TEXT_NFD, TEXT_NFKC, TEXT_NFKD };
void text_normalize(struct tbuf *out, const char *s, size_t n, enum text_form form);

/* GPT-2's printable stand-ins for bytes: a code point below 0x144 for each byte, and back (-1:
 * stands for none). */
uint32_t text_byte_char(unsigned char byte);
int text_char_byte(uint32_t c);
void text_to_byte_chars(struct tbuf *out, const char *s, size_t n);

#endif
