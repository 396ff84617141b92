/* utf8.c - decode, encode and validate UTF-8. */
#include "libcommon/base/utf8.h"

#include <string.h>

int32_t utf8_decode(const char *s, size_t size, int *n)
{
    /* smallest code point of each length; a smaller one is overlong */
    static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
    const unsigned char *p = (const unsigned char *)s;
    *n = 1;
    if (p[0] < 0x80)
        return p[0];
    int len = p[0] >= 0xC2 && p[0] < 0xE0 ? 2 : p[0] >= 0xE0 && p[0] < 0xF0 ? 3 : p[0] >= 0xF0 && p[0] < 0xF5 ? 4 : 0;
    if (!len || size < (size_t)len)
        return -1;
    uint32_t c = p[0] & (0x7Fu >> len);
    for (int i = 1; i < len; i++) {
        if ((p[i] & 0xC0) != 0x80)
            return -1;
        c = c << 6 | (p[i] & 0x3F);
    }
    if (c < least[len] || c > 0x10FFFF || (c >= 0xD800 && c < 0xE000))
        return -1;
    *n = len;
    return (int32_t)c;
}

int utf8_encode(uint32_t c, char *out)
{
    unsigned char *p = (unsigned char *)out;
    if (c < 0x80) {
        p[0] = (unsigned char)c;
        return 1;
    }
    if (c < 0x800) {
        p[0] = (unsigned char)(0xC0 | c >> 6);
        p[1] = (unsigned char)(0x80 | (c & 0x3F));
        return 2;
    }
    if (c < 0x10000) {
        if (c >= 0xD800 && c < 0xE000)
            return 0;
        p[0] = (unsigned char)(0xE0 | c >> 12);
        p[1] = (unsigned char)(0x80 | (c >> 6 & 0x3F));
        p[2] = (unsigned char)(0x80 | (c & 0x3F));
        return 3;
    }
    if (c > 0x10FFFF)
        return 0;
    p[0] = (unsigned char)(0xF0 | c >> 18);
    p[1] = (unsigned char)(0x80 | (c >> 12 & 0x3F));
    p[2] = (unsigned char)(0x80 | (c >> 6 & 0x3F));
    p[3] = (unsigned char)(0x80 | (c & 0x3F));
    return 4;
}

/* Skip ASCII eight bytes at a time. */
static size_t skip_ascii(const char *s, size_t i, size_t size)
{
    uint64_t eight;
    for (; size - i >= sizeof eight; i += sizeof eight) {
        memcpy(&eight, s + i, sizeof eight);
        if (eight & 0x8080808080808080u)
            break;
    }
    while (i < size && (unsigned char)s[i] < 0x80)
        i++;
    return i;
}

size_t utf8_valid(const char *s, size_t size)
{
    for (size_t i = 0; (i = skip_ascii(s, i, size)) < size;) {
        int n;
        if (utf8_decode(s + i, size - i, &n) < 0)
            return i;
        i += (size_t)n;
    }
    return size;
}

size_t utf8_incomplete(const char *s, size_t size)
{
    for (size_t back = 1; back <= 3 && back <= size; back++) {
        unsigned char c = (unsigned char)s[size - back];
        if ((c & 0xC0) == 0x80)
            continue;
        size_t len = c >= 0xC2 && c < 0xE0 ? 2 : c >= 0xE0 && c < 0xF0 ? 3 : c >= 0xF0 && c < 0xF5 ? 4 : 1;
        if (len <= back)
            return 0;
        /* E0 80, ED A0, F0 80, F4 90 and the like can never become a character */
        if (back > 1) {
            unsigned char d = (unsigned char)s[size - back + 1];
            if ((c == 0xE0 && d < 0xA0) || (c == 0xED && d > 0x9F) || (c == 0xF0 && d < 0x90) ||
                (c == 0xF4 && d > 0x8F))
                return 0;
        }
        return back;
    }
    return 0;
}

size_t utf8_count(const char *s, size_t size)
{
    size_t count = 0;
    for (size_t i = 0; i < size; count++) {
        int n;
        utf8_next(s + i, size - i, &n);
        i += (size_t)n;
    }
    return count;
}

size_t utf8_offset(const char *s, size_t size, size_t i)
{
    size_t at = 0;
    while (i-- > 0 && at < size) {
        int n;
        utf8_next(s + at, size - at, &n);
        at += (size_t)n;
    }
    return at;
}

size_t utf8_prev(const char *s, size_t at)
{
    for (size_t back = 1; back <= 4 && back <= at; back++) {
        int n;
        if (((unsigned char)s[at - back] & 0xC0) == 0x80)
            continue;
        if (utf8_decode(s + at - back, back, &n) >= 0 && (size_t)n == back)
            return at - back;
        break;
    }
    return at - 1;
}

int utf8_is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A)
        || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

int utf8_is_steering(uint32_t c)
{
    return c < 0x20 || (c >= 0x7f && c < 0xa0) || (c >= 0x2028 && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069);
}
