/* token_text.c - the bytes of single tokens, and logprobs, as JSON. */
#include "libcommon/serve/api/calls.h"

#include <math.h>
#include <string.h>

#include "libcommon/base/utf8.h"
#include "libcommon/token/tok_text.h"

static int hex(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1; }

/* Decode a token of a byte-level vocabulary, in which each byte is a printable character.  0: it is
 * not of that form. */
static int byte_level(const char *s, size_t n, struct buf *out)
{
    size_t before = out->size;
    for (size_t i = 0; i < n;) {
        int len;
        int32_t c = utf8_decode(s + i, n - i, &len);
        int byte = c < 0 ? -1 : text_char_byte((uint32_t)c);
        char ch = (char)byte;
        if (byte < 0) {
            out->size = before;
            return 0;
        }
        buf_add(out, &ch, 1);
        i += (size_t)len;
    }
    return 1;
}

void token_bytes(const struct tokenizer *t, int32_t id, struct buf *out)
{
    size_t n;
    const char *s = tokenizer_token(t, id, &n);
    if (!s)
        return;
    if (tokenizer_is_special(t, id)) {
        buf_add(out, s, n);
        return;
    }
    if (strcmp(tokenizer_kind(t), "bpe") == 0 && byte_level(s, n, out))
        return;
    if (n == 6 && memcmp(s, "<0x", 3) == 0 && s[5] == '>' && hex(s[3]) >= 0 && hex(s[4]) >= 0) {
        char byte = (char)(hex(s[3]) << 4 | hex(s[4]));
        buf_add(out, &byte, 1);
        return;
    }
    for (size_t i = 0; i < n;) {                /* SentencePiece has U+2581 in place of a blank */
        int blank = n - i >= 3 && memcmp(s + i, "\xE2\x96\x81", 3) == 0;
        buf_add(out, blank ? " " : s + i, 1);
        i += blank ? 3 : 1;
    }
}

void token_json(const char *bytes, size_t n, struct buf *out)
{
    if (utf8_valid(bytes ? bytes : "", n) == n) {
        buf_json(out, bytes, n);
        return;
    }
    buf_str(out, "\"bytes:");
    for (size_t i = 0; i < n; i++)
        buf_printf(out, "\\\\x%02x", (unsigned char)bytes[i]);
    buf_str(out, "\"");
}

void logprob_json(float x, struct buf *out)
{
    if (isnan(x))
        buf_str(out, "null");
    else
        buf_printf(out, "%.7g", x > -9999.0f ? (double)x : -9999.0);   /* JSON has no infinity */
}
