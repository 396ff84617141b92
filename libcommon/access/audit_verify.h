/* audit_verify.h - check a chain of the audit log for changed and missing lines. */
#ifndef ZSE_ACCESS_AUDIT_VERIFY_H
#define ZSE_ACCESS_AUDIT_VERIFY_H

#include "libcommon/access/audit.h"

struct audit_want {                         /* NULL, 0: not checked */
    const char *expect;                     /* a hash noted earlier, which must be in the chain */
    const char *since_hash;                 /* like expect, and no later line may be missing */
    /* a public key (audit_sign.h): all signatures must be made with it and cover the log except its
     * newest minutes */
    struct audit_signer *key;
    /* the chain must reach back to this Unix time, and no later line may be missing */
    int64_t since_ms;
};

struct audit_check {
    uint64_t lines, bad;                    /* lines of the chain; other complete lines between them */
    uint64_t last_seq;                      /* number of the last line; 0: lines have no numbers */
    int files;
    char head[SHA256_HEX + 1];              /* the last hash */
    int64_t first_ms, head_ms;              /* times of the first and the last line; 0: there is none */
    int older_gone;                         /* the oldest file continues a file that no longer exists */
    uint64_t cleared;                       /* cleared lines, according to the chain */
    uint64_t signatures, unsigned_lines;    /* signatures of the given key; lines after the last of them */
    int found, since_found;                 /* the chain contains the expected hash, and the hash of since_hash */
    int broken;                             /* a line was changed, removed or inserted */
    char where[512];
    /* lines are gone that should exist by the announced retention or by the caller's conditions */
    int missing;
    char what[768];
};
/* Walk the chain.  want NULL: no conditions.  Returns -1 only when the files cannot be read. */
int audit_verify(const char *folder, enum audit_chain chain, const struct audit_want *want, struct audit_check *c,
                 struct err *e);

#endif
