/* websocket.h - WebSocket frames (RFC 6455): whole messages out of bytes, and frames to send.
 * No sockets here. */
#ifndef ZSE_HTTP_WEBSOCKET_H
#define ZSE_HTTP_WEBSOCKET_H

#include <stddef.h>

#include "libcommon/http/buf.h"

enum ws_opcode { WS_CONTINUATION = 0, WS_TEXT = 1, WS_BINARY = 2, WS_CLOSE = 8, WS_PING = 9, WS_PONG = 10 };

struct ws_parser {
    struct buf message;         /* fragments so far */
    int opcode;                 /* of the message; 0: none has begun */
    int closed;                 /* a close frame came: nothing more counts */
};

enum ws_event { WS_MORE, WS_MESSAGE, WS_GOT_PING, WS_GOT_PONG, WS_GOT_CLOSE, WS_FRAGMENT, WS_BAD };

/* Take one frame from in at *at, which moves behind it: the caller drops what was taken when no
 * more is whole, once for many small frames.  WS_MESSAGE: p->message is whole text (UTF-8
 * checked) until ws_next.  WS_GOT_PING: *data [*size], at most 125 bytes, is what the pong sends
 * back.  WS_FRAGMENT, WS_GOT_PONG: nothing to do but go on.  WS_GOT_CLOSE and WS_BAD: *status is
 * the code to close with. */
enum ws_event ws_parse(struct ws_parser *p, struct buf *in, size_t *at, size_t max_message, char data[125],
                       size_t *size, int *status);
void ws_next(struct ws_parser *p);                      /* ready for another message; also releases */
void ws_frame(struct buf *out, enum ws_opcode opcode, const void *data, size_t size);
void ws_close_frame(struct buf *out, int status);
/* Sec-WebSocket-Accept for a Sec-WebSocket-Key, 28 characters and '\0'; -1: no such key. */
int ws_accept(const char *key, char out[29]);

#endif
