/* tok_text.c - buffers, character classes and normal forms. */
#include "libcommon/token/tok_text.h"

#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "libcommon/base/utf8.h"

int tbuf_reserve(struct tbuf *b, size_t more)
{
    if (b->failed)
        return -1;
    if (b->limit && (b->n > b->limit || more > b->limit - b->n)) {
        b->failed |= TBUF_LIMIT;
        return -1;
    }
    if (more <= b->room - b->n)
        return 0;
    size_t room = b->room ? b->room : 64;
    while (room - b->n < more) {
        if (room > SIZE_MAX / 2) {
            b->failed |= TBUF_NO_MEMORY;
            return -1;
        }
        room *= 2;
    }
    char *p = realloc(b->p, room);
    if (!p) {
        b->failed |= TBUF_NO_MEMORY;
        return -1;
    }
    b->p = p;
    b->room = room;
    return 0;
}

void tbuf_add(struct tbuf *b, const void *p, size_t n)
{
    if (n && tbuf_reserve(b, n) == 0) {
        memcpy(b->p + b->n, p, n);
        b->n += n;
    }
}

void tbuf_char(struct tbuf *b, uint32_t c)
{
    if (tbuf_reserve(b, 4) == 0)
        b->n += (size_t)utf8_encode(c, b->p + b->n);
}

void tbuf_release(struct tbuf *b)
{
    free(b->p);
    memset(b, 0, sizeof *b);
}

/* Length of the longest beginning of a well-formed character at s (Unicode 15, table 3-7), 0 if
 * the first byte begins none. */
static size_t wellformed_prefix(const unsigned char *s, size_t n)
{
    unsigned char lo = 0x80, hi = 0xBF;
    size_t len;
    if (s[0] >= 0xC2 && s[0] <= 0xDF)
        len = 2;
    else if (s[0] >= 0xE0 && s[0] <= 0xEF)
        len = 3, lo = s[0] == 0xE0 ? 0xA0 : 0x80, hi = s[0] == 0xED ? 0x9F : 0xBF;
    else if (s[0] >= 0xF0 && s[0] <= 0xF4)
        len = 4, lo = s[0] == 0xF0 ? 0x90 : 0x80, hi = s[0] == 0xF4 ? 0x8F : 0xBF;
    else
        return 0;
    size_t i = 1;
    while (i < len && i < n && s[i] >= lo && s[i] <= hi) {
        i++;
        lo = 0x80;
        hi = 0xBF;
    }
    return i;
}

size_t text_sanitize(struct tbuf *out, const char *s, size_t n, int more)
{
    size_t i = 0;
    while (i < n) {
        size_t ok = utf8_valid(s + i, n - i);
        tbuf_add(out, s + i, ok);
        i += ok;
        if (i == n)
            break;
        size_t part = wellformed_prefix((const unsigned char *)s + i, n - i);
        if (more && part && i + part == n)
            break;
        tbuf_add(out, "\xEF\xBF\xBD", 3);
        i += part ? part : 1;
    }
    return i;
}

uint32_t text_prev(const char *s, size_t at, int *n)
{
    size_t i = at - 1;
    while (i > 0 && ((unsigned char)s[i] & 0xC0) == 0x80)
        i--;
    return text_next(s + i, n);
}

size_t text_find(const char *s, size_t n, const char *what, size_t n_what)
{
    for (size_t i = 0; n_what && n_what <= n && i <= n - n_what; i++) {
        const char *p = memchr(s + i, what[0], n - n_what - i + 1);
        if (!p)
            return n;
        i = (size_t)(p - s);
        if (!memcmp(p, what, n_what))
            return i;
    }
    return n;
}

int text_is_space(uint32_t c)
{
    if (c < 0x80)
        return c == ' ' || (c >= 9 && c <= 13);
    utf8proc_category_t cat = utf8proc_category((utf8proc_int32_t)c);
    return c == 0x85 || cat == UTF8PROC_CATEGORY_ZS || cat == UTF8PROC_CATEGORY_ZL || cat == UTF8PROC_CATEGORY_ZP;
}

int text_is_word(uint32_t c)
{
    if (c < 0x80)
        return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_LU: case UTF8PROC_CATEGORY_LL: case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM: case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN: case UTF8PROC_CATEGORY_MC: case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND: case UTF8PROC_CATEGORY_NL: case UTF8PROC_CATEGORY_PC:
        return 1;
    default:
        /* joiners; circled letters are Alphabetic. */
        return c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9);
    }
}

int text_is_control(uint32_t c)
{
    if (c < 0x80)
        return (c < 0x20 && c != '\t' && c != '\n' && c != '\r') || c == 0x7F;
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_CC: case UTF8PROC_CATEGORY_CF: case UTF8PROC_CATEGORY_CO: case UTF8PROC_CATEGORY_CS:
        return 1;
    default:
        return 0;
    }
}

int text_is_nonspacing(uint32_t c)
{
    return c >= 0x300 && utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_MN;
}

int text_is_mark(uint32_t c)
{
    if (c < 0x300)
        return 0;
    utf8proc_category_t cat = utf8proc_category((utf8proc_int32_t)c);
    return cat == UTF8PROC_CATEGORY_MN || cat == UTF8PROC_CATEGORY_MC || cat == UTF8PROC_CATEGORY_ME;
}

int text_is_chinese(uint32_t c)
{
    /* 0x2B920 instead of 0x2B820: the Hugging Face library begins the block there, and models
     * were trained so */
    return c >= 0x3400 && (c <= 0x4DBF || (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0xF900 && c <= 0xFAFF) ||
                           (c >= 0x20000 && c <= 0x2A6DF) ||
           (c >= 0x2A700 && c <= 0x2B73F) || (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
           (c >= 0x2F800 && c <= 0x2FA1F));
}

void text_lower(struct tbuf *out, const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        int len;
        uint32_t c = text_next(s + i, &len);
        i += (size_t)len;
        if (c == 0x130)                 /* the only character whose lower case is two */
            tbuf_add(out, "i\xCC\x87", 3);
        else
            tbuf_char(out, c < 0x80 ? (c >= 'A' && c <= 'Z' ? c + 32 : c)
                                    : (uint32_t)utf8proc_tolower((utf8proc_int32_t)c));
    }
}

/* Put the marks c[0..n) in order of combining class, equal ones as they came (Unicode 15,
 * section 3.11, D109). */
static void order_marks(utf8proc_int32_t *c, utf8proc_int32_t *tmp, size_t n)
{
    size_t at[257] = { 0 };
    int sorted = 1, last = 0;
    for (size_t i = 0; i < n; i++) {
        int ccc = utf8proc_get_property(c[i])->combining_class;
        at[ccc + 1]++;
        sorted &= ccc >= last;
        last = ccc;
    }
    if (sorted)
        return;
    for (int k = 1; k < 257; k++)
        at[k] += at[k - 1];
    for (size_t i = 0; i < n; i++)
        tmp[at[utf8proc_get_property(c[i])->combining_class]++] = c[i];
    memcpy(c, tmp, n * sizeof *c);
}

/* utf8proc's own decomposition orders marks by exchanging neighbours, which takes a minute for a
 * megabyte of marks. */
static void normalize_run(struct tbuf *out, struct tbuf *work, const char *s, size_t n, enum text_form form)
{
    int opt = UTF8PROC_DECOMPOSE | (form == TEXT_NFKC || form == TEXT_NFKD ? UTF8PROC_COMPAT : 0),
        bound = UTF8PROC_BOUNDCLASS_START;
    const size_t most = 18;             /* the longest decomposition (U+FDFA) */
    work->n = 0;
    for (size_t i = 0; i < n;) {
        int len;
        uint32_t c = text_next(s + i, &len);
        i += (size_t)len;
        if (tbuf_reserve(work, most * sizeof(utf8proc_int32_t)))
            return;
        utf8proc_ssize_t k = utf8proc_decompose_char((utf8proc_int32_t)c,
                                                     (utf8proc_int32_t *)(void *)(work->p + work->n),
                                                     (utf8proc_ssize_t)most, opt, &bound);
        if (k > 0 && (size_t)k <= most)
            work->n += (size_t)k * sizeof(utf8proc_int32_t);
    }
    size_t count = work->n / sizeof(utf8proc_int32_t);
    if (tbuf_reserve(work, work->n + sizeof(utf8proc_int32_t)))
        return;
    utf8proc_int32_t *c = (utf8proc_int32_t *)(void *)work->p;
    for (size_t i = 0; i < count;) {
        size_t j = i;
        while (j < count && utf8proc_get_property(c[j])->combining_class)
            j++;
        if (j > i + 1)
            order_marks(c + i, c + count, j - i);
        i = j > i ? j : i + 1;
    }
    utf8proc_ssize_t left = (utf8proc_ssize_t)count;
    if (form == TEXT_NFC || form == TEXT_NFKC)
        left = utf8proc_normalize_utf32(c, left, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    for (utf8proc_ssize_t i = 0; i < left; i++)
        tbuf_char(out, (uint32_t)c[i]);
}

void text_normalize(struct tbuf *out, const char *s, size_t n, enum text_form form)
{
    /* Characters below the limit do not change and do not compose with what comes before them, so
     * the text is cut before such a character. */
    uint32_t limit = form == TEXT_NFC ? 0x300 : form == TEXT_NFD ? 0xC0 : 0xA0;
    struct tbuf work = { 0 };
    for (size_t i = 0; i < n;) {
        /* last: the last plain character may compose with marks after it. */
        size_t plain = i, last = i;
        int len = 0;
        while (plain < n && text_next(s + plain, &len) < limit) {
            last = plain;
            plain += (size_t)len;
        }
        if (plain == n) {
            tbuf_add(out, s + i, n - i);
            break;
        }
        tbuf_add(out, s + i, last - i);
        size_t end = plain;
        while (end < n && text_next(s + end, &len) >= limit)
            end += (size_t)len;
        normalize_run(out, &work, s + last, end - last, form);
        i = end;
    }
    out->failed |= work.failed;
    tbuf_release(&work);
}

/* 1 if a byte is a printable Latin-1 character, which stands for itself.  The other 68 bytes stand
 * for U+0100 and on, in order (GPT-2's encoder). */
static int printable(unsigned b)
{
    return (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
}

uint32_t text_byte_char(unsigned char byte)
{
    if (printable(byte))
        return byte;
    return 0x100u + (byte <= 0x20 ? byte : byte == 0xAD ? 67u : byte - 0x7Fu + 33u);
}

int text_char_byte(uint32_t c)
{
    if (c < 0x100)
        return printable(c) ? (int)c : -1;
    c -= 0x100;
    return c > 67 ? -1 : c <= 0x20 ? (int)c : c == 67 ? 0xAD : (int)(c - 33 + 0x7F);
}

void text_to_byte_chars(struct tbuf *out, const char *s, size_t n)
{
    if (n > SIZE_MAX / 2 || tbuf_reserve(out, 2 * n)) {
        out->failed |= TBUF_NO_MEMORY;
        return;
    }
    char *w = out->p + out->n;
    for (size_t i = 0; i < n; i++) {
        uint32_t c = text_byte_char((unsigned char)s[i]);
        if (c < 0x80) {
            *w++ = (char)c;
        } else {
            *w++ = (char)(0xC0 | c >> 6);
            *w++ = (char)(0x80 | (c & 0x3F));
        }
    }
    out->n = (size_t)(w - out->p);
}
