/* audit_files.h - the files of an audit log: names, order, lock, end of the chain.  Shared by the
 * writer and the readers. */
#ifndef ZSE_ACCESS_AUDIT_FILES_H
#define ZSE_ACCESS_AUDIT_FILES_H

#include <stdint.h>
#include <sys/types.h>

#include "libcommon/access/audit.h"
#include "libcommon/base/err.h"
#include "libcommon/base/sha256.h"

struct audit_file {
    char *path;                             /* owned */
    int gz, current;                        /* gz: it is compressed; current: it is the file being written */
    uint64_t size;                          /* on disk */
    int64_t changed_s;                      /* Unix time of its last line, approximately */
};
struct audit_files { struct audit_file *file; int n; };        /* oldest first, the current file last */

/* List the files of one chain.  A rotated file that exists both plain and compressed counts
 * once. */
int audit_files_list(struct audit_files *f, const char *folder, enum audit_chain chain, struct err *e);
void audit_files_release(struct audit_files *f);
/* Remove all rotated files of a chain and temporaries of crashed writers.  Call it under the
 * lock. */
int audit_files_remove(const char *folder, enum audit_chain chain, struct err *e);

/* Lock FOLDER/audit.lock: a descriptor that unlocks when closed, or -1. */
int audit_lock(const char *folder, int exclusive, struct err *e);
/* Like audit_lock() with `exclusive` set, but without waiting; -2: another process or thread holds
 * the lock. */
int audit_try_lock(const char *folder, struct err *e);

/* The end of a chain: number and hash of its last line.  seq 0: the chain is empty, or its lines
 * have no numbers (older logs). */
struct audit_end { uint64_t seq; char hash[SHA256_HEX + 1]; };

/* The last complete line of an open log file (hash all zeros: none), and the offset of its end. */
int audit_tail(int fd, const char *path, struct audit_end *last, uint64_t *end, struct err *e);
/* Find the hash at the end of a line (given without '\n').  Returns the number of bytes that it
 * covers, or 0 if there is none.  *seq: the line's number, or 0. */
size_t audit_line_end(const char *line, size_t size, const char **hash, uint64_t *seq);

/* The contents of FOLDER/requests.head or anonymous.head: the end of the chain and the retention,
 * as the last writer left them.  A log that ends earlier was cut off.  Call these functions under
 * the lock. */
struct audit_head { struct audit_end end; int keep; };
/* 1; 0: missing or malformed */
int audit_head_read(const char *folder, enum audit_chain chain, struct audit_head *head);
int audit_head_write(const char *folder, enum audit_chain chain, const struct audit_head *head, struct err *e);

#define AUDIT_ZEROS "0000000000000000000000000000000000000000000000000000000000000000"
#define AUDIT_SEQ_FIELD ",\"seq\":"
#define AUDIT_HASH_FIELD ",\"hash\":\""
enum {
    /* after the covered bytes: the field, the digits, and "\"}" */
    AUDIT_HASH_TAIL = sizeof AUDIT_HASH_FIELD - 1 + SHA256_HEX + 2,
    /* added to a line at most: both fields, '\n' and '\0' */
    AUDIT_CHAIN_TAIL = sizeof AUDIT_SEQ_FIELD - 1 + 20 + AUDIT_HASH_TAIL + 2,
};

#endif
