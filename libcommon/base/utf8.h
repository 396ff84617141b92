/* utf8.h - code points in UTF-8: decode, encode, validate, count (RFC 3629). */
#ifndef ZSE_BASE_UTF8_H
#define ZSE_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The code point at s[0..size); *n is its number of bytes (1 to 4).  Invalid UTF-8 (overlong,
 * surrogate, above U+10FFFF, cut short) gives -1 and *n = 1; size must not be 0. */
int32_t utf8_decode(const char *s, size_t size, int *n);

/* Like utf8_decode(), but invalid bytes give U+FFFD. */
static inline uint32_t utf8_next(const char *s, size_t size, int *n)
{
    if ((unsigned char)*s < 0x80) {
        *n = 1;
        return (unsigned char)*s;
    }
    int32_t c = utf8_decode(s, size, n);
    return c < 0 ? 0xFFFD : (uint32_t)c;
}

/* Write c into out[0..4).  Returns the number of bytes, 0 if c is not a scalar value (surrogate,
 * too large). */
int utf8_encode(uint32_t c, char *out);

/* Offset of the first byte that is not part of valid UTF-8; size if all are. */
size_t utf8_valid(const char *s, size_t size);

/* Number of bytes (0 to 3) of an incomplete character at the end of s.  A writer that sends text in
 * pieces holds them back until the rest arrives. */
size_t utf8_incomplete(const char *s, size_t size);

/* Number of code points; an invalid byte counts as one. */
size_t utf8_count(const char *s, size_t size);

/* Byte offset of the i-th code point; size if there are fewer. */
size_t utf8_offset(const char *s, size_t size, size_t i);

/* Offset of the code point that ends before byte `at` (at > 0). */
size_t utf8_prev(const char *s, size_t at);

/* 1 if c is white space by Unicode's White_Space or by Python's str.isspace() (U+001C to
 * U+001F). */
int utf8_is_space(uint32_t c);

/* 1 if a terminal, or a program that splits text into lines, may interpret c: control characters,
 * line separators, changes of direction. */
int utf8_is_steering(uint32_t c);

#ifdef __cplusplus
}
#endif
#endif
