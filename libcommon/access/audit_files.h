/* audit_files.h - the files of an audit log: their names, their order, the lock, the end of the chain. What writer and readers share. */
#ifndef ZSE_ACCESS_AUDIT_FILES_H
#define ZSE_ACCESS_AUDIT_FILES_H

#include <stdint.h>
#include <sys/types.h>

#include "libcommon/base/err.h"
#include "libcommon/base/sha256.h"

struct audit_file {
    char *path;                             /* owned */
    int gz;
    uint64_t size;                          /* as it lies there */
    int64_t changed_s;                      /* Unix time of its last line, about */
};
struct audit_files { struct audit_file *file; int n; };        /* oldest first; the current one, if there is one, last */

/* A rotated file of which only the compressed half is complete counts once. */
int audit_files_list(struct audit_files *f, const char *folder, struct err *e);
void audit_files_release(struct audit_files *f);
/* Take away all that was rotated, also what a crash left of it. Under the lock. */
int audit_files_remove(const char *folder, struct err *e);

/* FOLDER/audit.lock, taken: a descriptor whose closing gives it back, or -1. */
int audit_lock(const char *folder, int exclusive, struct err *e);
/* The same, exclusive, where nobody else holds it now; -2: somebody does. */
int audit_try_lock(const char *folder, struct err *e);

/* The hash in the last whole line of an open log file (zeros: none), and where that line ends. */
int audit_tail(int fd, const char *path, char hash[SHA256_HEX + 1], uint64_t *end, struct err *e);
/* The hash at the end of a line (its '\n' not counted), and how many bytes of the line it covers; 0 if the line has none. */
size_t audit_line_hash(const char *line, size_t size, const char **hash);

#define AUDIT_ZEROS "0000000000000000000000000000000000000000000000000000000000000000"
#define AUDIT_HASH_FIELD ",\"hash\":\""
/* What follows the covered bytes: the field, the digits, and "\"}". */
enum { AUDIT_HASH_TAIL = sizeof AUDIT_HASH_FIELD - 1 + SHA256_HEX + 2 };

#endif
