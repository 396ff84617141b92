/* websocket.h - WebSocket frames (RFC 6455): from bytes to complete messages, and frames to send.
 * Uses no sockets. */
#ifndef ZSE_HTTP_WEBSOCKET_H
#define ZSE_HTTP_WEBSOCKET_H

#include <stddef.h>

#include "libcommon/http/buf.h"

enum ws_opcode { WS_CONTINUATION = 0, WS_TEXT = 1, WS_BINARY = 2, WS_CLOSE = 8, WS_PING = 9, WS_PONG = 10 };

struct ws_parser {
    struct buf message;         /* the fragments so far */
    int opcode;                 /* opcode of the current message; 0: none */
    int closed;                 /* a close frame has arrived: everything after it is ignored */
};

enum ws_event { WS_MORE, WS_MESSAGE, WS_GOT_PING, WS_GOT_PONG, WS_GOT_CLOSE, WS_FRAGMENT, WS_BAD };

/* Take one frame from `in` at *at, which is advanced; the caller discards the consumed bytes once
 * no complete frame is left, so that many small frames are discarded together.
 *   WS_MORE                  there is no complete frame
 *   WS_MESSAGE               p->message is a complete text (valid UTF-8) until ws_next
 *   WS_GOT_PING              send a pong with data [*size], at most 125 bytes
 *   WS_FRAGMENT, WS_GOT_PONG nothing to do; call again
 *   WS_GOT_CLOSE, WS_BAD     *status is the code to close with */
enum ws_event ws_parse(struct ws_parser *p, struct buf *in, size_t *at, size_t max_message, char data[125],
                       size_t *size, int *status);
/* frees the message; ready for the next one */
void ws_next(struct ws_parser *p);
void ws_frame(struct buf *out, enum ws_opcode opcode, const void *data, size_t size);
void ws_close_frame(struct buf *out, int status);
/* Sec-WebSocket-Accept for a Sec-WebSocket-Key: 28 characters and '\0'.  0, or -1: the key is not
 * valid. */
int ws_accept(const char *key, char out[29]);

#endif
