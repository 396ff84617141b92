/* index_words.c - the words of a text, as the index of the search has them.
 *
 * A word is a run of letters, digits and marks, without case, accents and compatibility forms
 * (Unicode, UAX 15).  In scripts that are written without blanks, and in Hangul, every character is
 * a word, so that a search finds any part of a text.  The index gets the words separated by blanks.
 * Texts and queries go through the same function, so that their words match. */
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "libcommon/base/utf8.h"
#include "libcommon/history/internal.h"

enum { WORD_BYTES = 64 };               /* longer words are cut: a search for all digits of a long number is rare */

/* Is every character of this script a word? */
static int is_alone(uint32_t c)
{
    static const struct { uint32_t from, to; } ranges[] = {
        { 0x0E00, 0x0EFF }, { 0x1000, 0x109F }, { 0x1780, 0x17FF }, { 0x3040, 0x30FF }, { 0x31F0, 0x31FF },
        { 0x3400, 0x4DBF }, { 0x4E00, 0x9FFF }, { 0xAC00, 0xD7AF }, { 0xF900, 0xFAFF }, { 0x20000, 0x3FFFF },
    };
    for (size_t i = 0; c >= ranges[0].from && i < sizeof ranges / sizeof *ranges; i++)
        if (c >= ranges[i].from && c <= ranges[i].to)
            return 1;
    return 0;
}

static int is_part(uint32_t c)
{
    if (c < 0x80)
        return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z');
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_LU: case UTF8PROC_CATEGORY_LL: case UTF8PROC_CATEGORY_LT: case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO: case UTF8PROC_CATEGORY_MN: case UTF8PROC_CATEGORY_MC: case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL: case UTF8PROC_CATEGORY_NO: case UTF8PROC_CATEGORY_CO:
        return 1;
    default:
        return 0;
    }
}

static void put(struct word *w, uint32_t c)
{
    char bytes[4];
    const int n = utf8_encode(c, bytes);
    if (w->n + n > WORD_BYTES)
        return;
    memcpy(w->text + w->n, bytes, (size_t)n);
    w->n += n;
}

/* Add a character without case and accents. */
static void put_folded(struct word *w, uint32_t c)
{
    utf8proc_int32_t parts[32];
    int last;
    if (c < 0x80) {
        put(w, c >= 'A' && c <= 'Z' ? c | 32 : c);
        return;
    }
    if (is_alone(c)) {
        put(w, c);
        return;
    }
    const utf8proc_ssize_t n = utf8proc_decompose_char((utf8proc_int32_t)c, parts, 32, UTF8PROC_DECOMPOSE |
                                                       UTF8PROC_COMPAT | UTF8PROC_CASEFOLD, &last);
    for (utf8proc_ssize_t i = 0; i < n && i < 32; i++)
        if ((parts[i] < 0x300 || parts[i] > 0x36F) && (parts[i] >= 0x80 || is_part((uint32_t)parts[i])))
            put(w, (uint32_t)parts[i]);
}

int word_next(const char *text, size_t size, size_t *at, struct word *w)
{
    int n;
    size_t i = *at;
    *w = (struct word){ .n = 0 };
    while (i < size) {
        const uint32_t c = utf8_next(text + i, size - i, &n);
        const int part = is_part(c), alone = part && is_alone(c);
        if (w->n && (!part || alone))
            break;
        if (part && !w->n)
            w->at = i;
        if (part)
            put_folded(w, c);
        i += (size_t)n;
        w->end = i;
        if (alone)
            break;
    }
    *at = i;
    return w->n > 0;
}

char *words_of(const char *text, size_t size)
{
    struct word w;
    size_t n = 0, room = size + size / 4 + 80;
    char *out = malloc(room);
    for (size_t at = 0; out && word_next(text, size, &at, &w);) {
        if (n + (size_t)w.n + 2 > room) {
            char *more = realloc(out, room = 2 * room + (size_t)w.n);
            if (!more) {
                free(out);
                return NULL;
            }
            out = more;
        }
        if (n)
            out[n++] = ' ';
        memcpy(out + n, w.text, (size_t)w.n);
        n += (size_t)w.n;
    }
    if (out)
        out[n] = '\0';
    return out;
}
