/* sha256.h - SHA-256 (FIPS 180-4) through libcrypto, which uses the processor's SHA
 * instructions. */
#ifndef ZSE_BASE_SHA256_H
#define ZSE_BASE_SHA256_H

#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"

enum { SHA256_SIZE = 32, SHA256_HEX = 64 };

/* For many digests in sequence: sha256_start, sha256_add ..., sha256_end, and again. */
struct sha256;
struct sha256 *sha256_open(struct err *e);
void sha256_close(struct sha256 *s);                    /* NULL is fine */
void sha256_start(struct sha256 *s);
void sha256_add(struct sha256 *s, const void *data, size_t n);
void sha256_end(struct sha256 *s, uint8_t out[SHA256_SIZE]);

/* A single digest. */
void sha256_of(const void *data, size_t n, uint8_t out[SHA256_SIZE]);
/* 64 lower-case hexadecimal digits and '\0'. */
void sha256_hex(const uint8_t digest[SHA256_SIZE], char out[SHA256_HEX + 1]);

#endif
