/* audit_writer.h - write one chain of the audit log: append, rotate, clear, each under the lock of
 * the folder.  One thread at a time. */
#ifndef ZSE_ACCESS_AUDIT_WRITER_H
#define ZSE_ACCESS_AUDIT_WRITER_H

#include "libcommon/access/audit.h"
#include "libcommon/access/audit_files.h"

struct audit_writer {
    char *folder, *path;                    /* owned; path: of the current file */
    enum audit_chain chain;
    uint64_t max_bytes;
    int keep;
    int fd;                                 /* descriptor of the current file; -1: not open */
    uint64_t end;                           /* its size after this process last wrote; UINT64_MAX: unknown */
    struct audit_end last;                  /* the line that ends there */
    struct sha256 *sha;
    /* the newest rotated file whose end is known, so that it is not read again for each line that
     * fails */
    char known_path[4200];
    struct audit_end known;
    uint64_t n_rotations;
    struct audit_signer *signer;            /* borrowed; NULL: heads are not signed */
    struct audit_remotes remotes;
    uint64_t n_unsigned;                    /* lines of this process after its last signature */
};

/* After a failure, too, audit_writer_close must be called. */
int audit_writer_open(struct audit_writer *w, const struct audit_options *o, struct err *e);
void audit_writer_close(struct audit_writer *w);
/* Create the current file if there is none; record gaps and a changed retention. */
int audit_writer_begin(struct audit_writer *w, struct err *e);
/* Append a line of *n bytes; text must have room for AUDIT_CHAIN_TAIL more.  *n becomes the length
 * of the whole line without '\n', which is replaced by '\0' in memory. */
int audit_writer_add(struct audit_writer *w, char *text, size_t *n, struct err *e);
/* Sign the end of the chain if this process has written to it since its last signature. */
int audit_writer_sign(struct audit_writer *w, struct err *e);
/* Pass a line to the servers that receive them.  Never waits. */
void audit_remotes_add(const struct audit_remotes *r, enum audit_chain chain, const char *line, size_t n);

#endif
