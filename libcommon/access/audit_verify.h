/* audit_verify.h - is a chain of the audit log whole?  What changed, and what is missing that
 * should be there. */
#ifndef ZSE_ACCESS_AUDIT_VERIFY_H
#define ZSE_ACCESS_AUDIT_VERIFY_H

#include "libcommon/access/audit.h"

struct audit_want {                         /* NULL, 0: not asked */
    const char *expect;                     /* a hash noted earlier: it must be in the chain */
    const char *since_hash;                 /* the same, and nothing after it may be missing */
    struct audit_signer *key;               /* a public key (audit_sign.h): all signatures must be its own, and cover the log but for its newest minutes */
    int64_t since_ms;                       /* the chain must reach back to this Unix time, and nothing after it may be missing */
};

struct audit_check {
    uint64_t lines, bad;                    /* of the chain; that are no part of it, between whole ones */
    uint64_t last_seq;                      /* number of the last line; 0: lines have none */
    int files;
    char head[SHA256_HEX + 1];              /* the last hash */
    int64_t first_ms, head_ms;              /* when the first and the last line were written; 0: there is none */
    int older_gone;                         /* the oldest file goes on from one that is not there any more */
    uint64_t cleared;                       /* lines that were cleared, as the chain says */
    uint64_t signatures, unsigned_lines;    /* of the key that was asked for; lines after the last of them */
    int found, since_found;                 /* the expected hash, and the one of since, are part of the chain */
    int broken;                             /* a line was changed, taken out or put in */
    char where[512];
    int missing;                            /* lines are gone that should be there, by the retention the log announced or by what was asked for */
    char what[768];
};
/* Walk the chain.  want: NULL is as all zeros.  -1 only when the files cannot be read. */
int audit_verify(const char *folder, enum audit_chain chain, const struct audit_want *want, struct audit_check *c,
                 struct err *e);

#endif
