/* audit_sign.c - sign and check heads of the audit log with Ed25519. */
#include "libcommon/access/audit_sign.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>

struct audit_signer { EVP_PKEY *key; char id[AUDIT_KEY_ID + 1]; };

static struct audit_signer *open_key(const char *path, int private, struct err *e)
{
    struct audit_signer *s = calloc(1, sizeof *s);
    uint8_t raw[32], digest[SHA256_SIZE];
    char hex[SHA256_HEX + 1];
    size_t n = sizeof raw;
    FILE *f = fopen(path, "re");
    if (!s || !f) {
        if (s)
            err_sys(e, "%s", path);
        else
            err_nomem(e, "a key");
        goto fail;
    }
    s->key = private ? PEM_read_PrivateKey(f, NULL, NULL, "") : PEM_read_PUBKEY(f, NULL, NULL, NULL);
    ERR_clear_error();
    if (!s->key || EVP_PKEY_id(s->key) != EVP_PKEY_ED25519 || EVP_PKEY_get_raw_public_key(s->key, raw, &n) != 1) {
        err_set(e, ERR_FORMAT, "%s: expected %s in PEM, without a passphrase", path,
                private ? "a private Ed25519 key" : "a public Ed25519 key");
        goto fail;
    }
    fclose(f);
    sha256_of(raw, n, digest);
    sha256_hex(digest, hex);
    memcpy(s->id, hex, AUDIT_KEY_ID);
    return s;
fail:
    if (f)
        fclose(f);
    audit_signer_close(s);
    return NULL;
}

struct audit_signer *audit_signer_open(const char *path, struct err *e) { return open_key(path, 1, e); }
struct audit_signer *audit_checker_open(const char *path, struct err *e) { return open_key(path, 0, e); }

void audit_signer_close(struct audit_signer *s)
{
    if (s)
        EVP_PKEY_free(s->key);
    free(s);
}

const char *audit_signer_id(const struct audit_signer *s) { return s->id; }

static size_t message(char out[160], enum audit_chain chain, const struct audit_end *end)
{
    return (size_t)snprintf(out, 160, "zse-audit 1\n%s\n%" PRIu64 "\n%.*s\n", audit_chain_name(chain), end->seq,
                            SHA256_HEX, end->hash);
}

int audit_sign(struct audit_signer *s, enum audit_chain chain, const struct audit_end *end,
               char hex[AUDIT_SIGNATURE_HEX + 1], struct err *e)
{
    uint8_t signature[AUDIT_SIGNATURE_SIZE];
    char text[160];
    size_t n = sizeof signature;
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    const int good = ctx && EVP_DigestSignInit(ctx, NULL, NULL, NULL, s->key) == 1 &&
                     EVP_DigestSign(ctx, signature, &n, (const unsigned char *)text, message(text, chain, end)) == 1 &&
                     n == sizeof signature;
    EVP_MD_CTX_free(ctx);
    if (!good)
        return err_nomem(e, "a signature");
    for (size_t i = 0; i < n; i++)
        sprintf(hex + 2 * i, "%02x", signature[i]);
    return 0;
}

static int digit(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; }

int audit_signature_is_good(struct audit_signer *s, enum audit_chain chain, const struct audit_end *end,
                            const char hex[AUDIT_SIGNATURE_HEX])
{
    uint8_t signature[AUDIT_SIGNATURE_SIZE];
    char text[160];
    for (int i = 0; i < AUDIT_SIGNATURE_SIZE; i++) {
        const int high = digit(hex[2 * i]), low = digit(hex[2 * i + 1]);
        if (high < 0 || low < 0)
            return 0;
        signature[i] = (uint8_t)(high << 4 | low);
    }
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    const int good = ctx && EVP_DigestVerifyInit(ctx, NULL, NULL, NULL, s->key) == 1 &&
                     EVP_DigestVerify(ctx, signature, sizeof signature, (const unsigned char *)text,
                                      message(text, chain, end)) == 1;
    EVP_MD_CTX_free(ctx);
    ERR_clear_error();
    return good;
}
