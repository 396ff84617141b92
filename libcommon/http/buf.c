/* buf.c - growing byte buffers, and JSON strings into them. */
#include "libcommon/http/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/utf8.h"

void buf_release(struct buf *b)
{
    free(b->data);
    memset(b, 0, sizeof *b);
}

char *buf_reserve(struct buf *b, size_t n)
{
    if (b->failed)
        return NULL;
    if (n > b->room - b->size) {
        size_t room = b->room + b->room / 2 + n + 64;
        char *p = room > n ? realloc(b->data, room) : NULL;
        if (!p) {
            b->failed = 1;
            return NULL;
        }
        b->data = p;
        b->room = room;
    }
    return b->data + b->size;
}

void buf_add(struct buf *b, const void *data, size_t n)
{
    char *to = n ? buf_reserve(b, n) : NULL;
    if (!to)
        return;
    memcpy(to, data, n);
    b->size += n;
}

void buf_str(struct buf *b, const char *s)
{
    buf_add(b, s, strlen(s));
}

void buf_printf(struct buf *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    char *to = n >= 0 ? buf_reserve(b, (size_t)n + 1) : NULL;
    b->failed |= n < 0;
    if (!to)
        return;
    va_start(ap, fmt);
    vsnprintf(to, (size_t)n + 1, fmt, ap);
    va_end(ap);
    b->size += (size_t)n;
}

void buf_drop(struct buf *b, size_t n)
{
    b->size -= n;
    if (b->size)
        memmove(b->data, b->data + n, b->size);
    else if (!b->failed)
        buf_release(b);
}

void buf_json(struct buf *b, const char *text, size_t n)
{
    static const char hex[] = "0123456789abcdef";
    char *to = buf_reserve(b, 6 * n + 2);       /* the worst case: every byte a control character */
    if (!to)
        return;
    char *at = to;
    *at++ = '"';
    for (size_t i = 0; i < n;) {
        unsigned char c = (unsigned char)text[i];
        if (c >= 0x80) {
            int k;
            if (utf8_decode(text + i, n - i, &k) < 0) {
                memcpy(at, "\xEF\xBF\xBD", 3);
                at += 3;
            } else {
                memcpy(at, text + i, (size_t)k);
                at += k;
            }
            i += (size_t)k;
            continue;
        }
        i++;
        const char *letter = c < ' ' ? strchr("\bb\tt\nn\ff\rr", c) : NULL;
        if (c == '"' || c == '\\') {
            *at++ = '\\';
            *at++ = (char)c;
        } else if (c && letter) {
            *at++ = '\\';
            *at++ = letter[1];
        } else if (c < ' ' || c == 0x7f) {
            memcpy(at, "\\u00", 4);
            at[4] = hex[c >> 4];
            at[5] = hex[c & 15];
            at += 6;
        } else {
            *at++ = (char)c;
        }
    }
    *at++ = '"';
    b->size += (size_t)(at - to);
}
