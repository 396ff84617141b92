/* websocket.c - parse and write WebSocket frames. */
#include "libcommon/http/websocket.h"

#include <stdint.h>
#include <string.h>

/* the newer functions allocate memory, and crash later if that fails in their first call
 * (OpenSSL 3.0) */
#define OPENSSL_SUPPRESS_DEPRECATED
#include <openssl/evp.h>
#include <openssl/sha.h>

#include "libcommon/base/utf8.h"

int ws_accept(const char *key, char out[29])
{
    char text[24 + 36 + 1];
    unsigned char digest[SHA_DIGEST_LENGTH];
    SHA_CTX sha;
    if (!key || strlen(key) != 24 || strcmp(key + 22, "==") != 0)
        return -1;
    memcpy(text, key, 24);
    memcpy(text + 24, "258EAFA5-E914-47DA-95CA-C5AB0DC85B11", 37);
    SHA1_Init(&sha);
    SHA1_Update(&sha, text, 60);
    SHA1_Final(digest, &sha);
    return EVP_EncodeBlock((unsigned char *)out, digest, sizeof digest) == 28 ? 0 : -1;
}

void ws_frame(struct buf *out, enum ws_opcode opcode, const void *data, size_t size)
{
    unsigned char head[10] = { (unsigned char)(0x80 | opcode) };
    size_t n = 2;
    if (size < 126) {
        head[1] = (unsigned char)size;
    } else {
        int bytes = size < 65536 ? 2 : 8;
        head[1] = bytes == 2 ? 126 : 127;
        for (int i = bytes - 1; i >= 0; i--)
            head[n++] = (unsigned char)((uint64_t)size >> 8 * i);
    }
    buf_add(out, head, n);
    buf_add(out, data, size);
}

void ws_close_frame(struct buf *out, int status)
{
    unsigned char code[2] = { (unsigned char)(status >> 8), (unsigned char)status };
    ws_frame(out, WS_CLOSE, code, 2);
}

void ws_next(struct ws_parser *p)
{
    buf_release(&p->message);
    p->opcode = 0;
}

static enum ws_event bad(struct ws_parser *p, int *status, int code)
{
    p->closed = 1;
    *status = code;
    return WS_BAD;
}

static enum ws_event on_control(struct ws_parser *p, int opcode, const char *data, size_t size, int *status)
{
    if (opcode == WS_PING)
        return WS_GOT_PING;
    if (opcode == WS_PONG)
        return WS_GOT_PONG;
    int code = size >= 2 ? (unsigned char)data[0] << 8 | (unsigned char)data[1] : 1000;
    int known = (code >= 1000 && code <= 1011 && code != 1004 && code != 1005 && code != 1006) ||
                (code >= 3000 && code <= 4999);
    if (size == 1 || !known || (size > 2 && utf8_valid(data + 2, size - 2) != size - 2))
        return bad(p, status, 1002);
    p->closed = 1;
    *status = code;
    return WS_GOT_CLOSE;
}

/* Length of the frame header at data; *size: bytes of the payload.  0: not complete; -1: not a
 * valid header. */
static int frame_header(const char *data, size_t n_bytes, uint64_t *size)
{
    const unsigned char *b = (const unsigned char *)data;
    if (n_bytes < 2)
        return 0;
    int n = 2, extra = (b[1] & 127) == 126 ? 2 : (b[1] & 127) == 127 ? 8 : 0, opcode = b[0] & 15;
    /* an extension bit; not masked; a reserved opcode */
    if (b[0] & 0x70 || !(b[1] & 0x80) || (opcode > 2 && opcode < 8) || opcode > 10)
        return -1;
    if (opcode >= 8 && (extra || !(b[0] & 0x80)))
        return -1;
    if (n_bytes < (size_t)(n + extra + 4))
        return 0;
    *size = extra ? 0 : b[1] & 127;
    for (int i = 0; i < extra; i++)
        *size = *size << 8 | b[n++];
    if ((extra == 2 && *size < 126) || (extra == 8 && (*size < 65536 || *size >> 63)))
        return -1;
    return n + 4;
}

enum ws_event ws_parse(struct ws_parser *p, struct buf *in, size_t *at, size_t max_message, char data[125],
                       size_t *size, int *status)
{
    uint64_t n;
    const size_t left = in->size - *at;
    char *frame = left ? in->data + *at : NULL;
    int head = p->closed ? 0 : frame_header(frame, left, &n);
    if (head == 0)
        return WS_MORE;
    if (head < 0)
        return bad(p, status, 1002);
    int opcode = frame[0] & 15, last = (frame[0] & 0x80) != 0;
    if (n > max_message || (opcode < 8 && p->message.size + n > max_message))
        return bad(p, status, 1009);
    if (left - (size_t)head < n)
        return WS_MORE;
    char *payload = frame + head;
    *at += (size_t)head + (size_t)n;
    for (size_t i = 0; i < n; i++)
        payload[i] = (char)(payload[i] ^ frame[head - 4 + (int)(i & 3)]);
    if (opcode >= 8) {
        memcpy(data, payload, (size_t)n);
        *size = (size_t)n;
        return on_control(p, opcode, data, (size_t)n, status);
    }
    if ((opcode == WS_CONTINUATION) != (p->opcode != 0))
        return bad(p, status, 1002);
    if (opcode == WS_BINARY)
        return bad(p, status, 1003);
    p->opcode = WS_TEXT;
    buf_add(&p->message, payload, (size_t)n);
    if (p->message.failed)
        return bad(p, status, 1011);
    if (!last)
        return WS_FRAGMENT;
    if (utf8_valid(p->message.data ? p->message.data : "", p->message.size) != p->message.size)
        return bad(p, status, 1007);
    return WS_MESSAGE;
}
