/* sha256.c - SHA-256 through libcrypto. */
#include "libcommon/base/sha256.h"

#include <stdlib.h>

/* OpenSSL 3 deprecates these functions.  Their replacements allocate memory at every start, and so
 * may fail in the middle of a log. */
#define OPENSSL_SUPPRESS_DEPRECATED
#include <openssl/sha.h>

struct sha256 { SHA256_CTX ctx; };

struct sha256 *sha256_open(struct err *e)
{
    struct sha256 *s = malloc(sizeof *s);
    if (s)
        sha256_start(s);
    else
        err_nomem(e, "SHA-256");
    return s;
}

void sha256_close(struct sha256 *s) { free(s); }

void sha256_start(struct sha256 *s) { SHA256_Init(&s->ctx); }

void sha256_add(struct sha256 *s, const void *data, size_t n) { SHA256_Update(&s->ctx, data, n); }

void sha256_end(struct sha256 *s, uint8_t out[SHA256_SIZE]) { SHA256_Final(out, &s->ctx); }

void sha256_of(const void *data, size_t n, uint8_t out[SHA256_SIZE])
{
    struct sha256 s;
    sha256_start(&s);
    sha256_add(&s, data, n);
    sha256_end(&s, out);
}

void sha256_hex(const uint8_t digest[SHA256_SIZE], char out[SHA256_HEX + 1])
{
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < SHA256_SIZE; i++) {
        out[2 * i] = digits[digest[i] >> 4];
        out[2 * i + 1] = digits[digest[i] & 15];
    }
    out[SHA256_HEX] = '\0';
}
