/* buf.h - bytes that grow: what is read from and written to connections, and the JSON that is
 * built by hand on the token path. */
#ifndef ZSE_HTTP_BUF_H
#define ZSE_HTTP_BUF_H

#include <stddef.h>

struct buf {
    char *data;                 /* owned; NULL while nothing was ever added */
    size_t size, room;
    int failed;                 /* memory ran out: everything added since is lost; the owner looks once, at the end */
};

void buf_release(struct buf *b);                        /* in place, ready for use again */
/* Room for n more bytes at data + size; NULL when memory ran out. The caller adds to size what
 * it used. */
char *buf_reserve(struct buf *b, size_t n);
void buf_add(struct buf *b, const void *data, size_t n);
void buf_str(struct buf *b, const char *s);
void buf_printf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Drop n bytes from the front. Memory goes back when nothing is left. */
void buf_drop(struct buf *b, size_t n);
/* "text" as a JSON string, quotes included. text is UTF-8; bytes that are not become U+FFFD. */
void buf_json(struct buf *b, const char *text, size_t n);

#endif
