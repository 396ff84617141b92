/* audit_sign.h - Ed25519 signatures (RFC 8032) of heads of the audit log: proof that the holder of
 * the private key saw this line at the end of this chain.
 *
 * The signed text is "zse-audit 1\nCHAIN\nSEQ\nHASH\n" of the line before the signature.  Keys are
 * PEM files as openssl writes them:
 *   openssl genpkey -algorithm ed25519 -out audit.key
 *   openssl pkey -in audit.key -pubout -out audit.pub */
#ifndef ZSE_ACCESS_AUDIT_SIGN_H
#define ZSE_ACCESS_AUDIT_SIGN_H

#include "libcommon/access/audit_files.h"

enum { AUDIT_SIGNATURE_SIZE = 64, AUDIT_SIGNATURE_HEX = 128, AUDIT_KEY_ID = 16 };

struct audit_signer;                        /* a private key, or a public key to check with */
struct audit_signer *audit_signer_open(const char *path, struct err *e);        /* reads a private key */
struct audit_signer *audit_checker_open(const char *path, struct err *e);       /* reads a public key */
void audit_signer_close(struct audit_signer *s);        /* NULL is fine */
/* The first digits of the SHA-256 of the public key, hexadecimal. */
const char *audit_signer_id(const struct audit_signer *s);
int audit_sign(struct audit_signer *s, enum audit_chain chain, const struct audit_end *end,
               char hex[AUDIT_SIGNATURE_HEX + 1], struct err *e);
int audit_signature_is_good(struct audit_signer *s, enum audit_chain chain, const struct audit_end *end,
                            const char hex[AUDIT_SIGNATURE_HEX]);

#endif
