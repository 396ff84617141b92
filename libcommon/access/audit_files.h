/* audit_files.h - the files of an audit log: their names, their order, the lock, the end of a
 * chain.  Shared by the writer and the readers. */
#ifndef ZSE_ACCESS_AUDIT_FILES_H
#define ZSE_ACCESS_AUDIT_FILES_H

#include <stdint.h>
#include <sys/types.h>

#include "libcommon/access/audit.h"
#include "libcommon/base/err.h"
#include "libcommon/base/sha256.h"

struct audit_file {
    char *path;                             /* owned */
    int gz, current;                        /* compressed; the file that is written */
    uint64_t size;                          /* on disk */
    int64_t changed_s;                      /* Unix time of its last line, about */
};
struct audit_files { struct audit_file *file; int n; };        /* oldest first; the current one, if there is one, last */

/* The files of one chain.  A rotated file of which only the compressed half is complete counts
 * once. */
int audit_files_list(struct audit_files *f, const char *folder, enum audit_chain chain, struct err *e);
void audit_files_release(struct audit_files *f);
/* Remove all rotated files of a chain, also what a crash left of them.  Under the lock. */
int audit_files_remove(const char *folder, enum audit_chain chain, struct err *e);

/* FOLDER/audit.lock, taken: a descriptor that gives it back when closed, or -1. */
int audit_lock(const char *folder, int exclusive, struct err *e);
/* The same, exclusive, without waiting; -2: another process or thread holds it. */
int audit_try_lock(const char *folder, struct err *e);

/* Where a chain ends: the number and the hash of a line.  seq 0: there is none, or it was
 * written before lines had numbers. */
struct audit_end { uint64_t seq; char hash[SHA256_HEX + 1]; };

/* The last whole line of an open log file (hash zeros: none), and the offset where it ends. */
int audit_tail(int fd, const char *path, struct audit_end *last, uint64_t *end, struct err *e);
/* The hash at the end of a line (its '\n' not counted), and how many bytes of the line it
 * covers; 0 if the line has none.  *seq: its number, or 0. */
size_t audit_line_end(const char *line, size_t size, const char **hash, uint64_t *seq);

/* FOLDER/requests.head and anonymous.head: the end of the chain as the last writer left it, so
 * that a cut tail shows, and the number of rotated files that it announced.  Under the lock. */
struct audit_head { struct audit_end end; int keep; };
int audit_head_read(const char *folder, enum audit_chain chain, struct audit_head *head);      /* 1; 0: no such file, or not one of ours */
int audit_head_write(const char *folder, enum audit_chain chain, const struct audit_head *head, struct err *e);

#define AUDIT_ZEROS "0000000000000000000000000000000000000000000000000000000000000000"
#define AUDIT_SEQ_FIELD ",\"seq\":"
#define AUDIT_HASH_FIELD ",\"hash\":\""
enum {
    AUDIT_HASH_TAIL = sizeof AUDIT_HASH_FIELD - 1 + SHA256_HEX + 2,             /* what follows the covered bytes: the field, the digits, and "\"}" */
    AUDIT_CHAIN_TAIL = sizeof AUDIT_SEQ_FIELD - 1 + 20 + AUDIT_HASH_TAIL + 2,   /* at most what is added to a line: both fields, '\n' and '\0' */
};

#endif
