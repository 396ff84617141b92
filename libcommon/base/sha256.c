#include "libcommon/base/sha256.h"

#include <assert.h>
#include <stdlib.h>

#include <openssl/evp.h>
#include <openssl/sha.h>

struct sha256 { EVP_MD_CTX *ctx; EVP_MD *md; };

struct sha256 *sha256_open(struct err *e)
{
    struct sha256 *s = calloc(1, sizeof *s);
    if (s && (s->ctx = EVP_MD_CTX_new()) && (s->md = EVP_MD_fetch(NULL, "SHA256", NULL)) && EVP_DigestInit_ex2(s->ctx, s->md, NULL))
        return s;
    sha256_close(s);
    err_nomem(e, "SHA-256");
    return NULL;
}

void sha256_close(struct sha256 *s)
{
    if (!s)
        return;
    EVP_MD_free(s->md);
    EVP_MD_CTX_free(s->ctx);
    free(s);
}

/* With a fetched digest and a context that has worked once none of these can fail. */
void sha256_start(struct sha256 *s)
{
    int ok = EVP_DigestInit_ex2(s->ctx, s->md, NULL);
    assert(ok);
    (void)ok;
}

void sha256_add(struct sha256 *s, const void *data, size_t n) { EVP_DigestUpdate(s->ctx, data, n); }

void sha256_end(struct sha256 *s, uint8_t out[SHA256_SIZE]) { EVP_DigestFinal_ex(s->ctx, out, NULL); }

void sha256_of(const void *data, size_t n, uint8_t out[SHA256_SIZE]) { SHA256(data, n, out); }

void sha256_hex(const uint8_t digest[SHA256_SIZE], char out[SHA256_HEX + 1])
{
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < SHA256_SIZE; i++) {
        out[2 * i] = digits[digest[i] >> 4];
        out[2 * i + 1] = digits[digest[i] & 15];
    }
    out[SHA256_HEX] = '\0';
}
