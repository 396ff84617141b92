/* buf.h - growing byte buffers: for bytes read and written, and for JSON built by hand on the token
 * path. */
#ifndef ZSE_HTTP_BUF_H
#define ZSE_HTTP_BUF_H

#include <stddef.h>

struct buf {
    char *data;                 /* owned; NULL until something is added */
    size_t size, room;
    int failed;                 /* memory ran out, and later additions are lost: the owner checks once, at the end */
};

void buf_release(struct buf *b);                        /* empty again, ready for use */
/* Space for n more bytes at data + size, or NULL without memory.  The caller adds the bytes it used
 * to size. */
char *buf_reserve(struct buf *b, size_t n);
void buf_add(struct buf *b, const void *data, size_t n);
void buf_str(struct buf *b, const char *s);
void buf_printf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Drop n bytes from the front.  An empty buffer frees its memory. */
void buf_drop(struct buf *b, size_t n);
/* Append text as a JSON string with quotes.  Bytes that are not UTF-8 become U+FFFD. */
void buf_json(struct buf *b, const char *text, size_t n);

#endif
