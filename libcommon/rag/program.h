/* program.h - run a program that reads a file from memory and prints text: with limits of time,
 * memory and output, a clean environment, and no files of its own. */
#ifndef ZSE_RAG_PROGRAM_H
#define ZSE_RAG_PROGRAM_H

#include <stdatomic.h>
#include <stddef.h>

#include "libcommon/base/err.h"
#include "libcommon/rag/text_build.h"

struct program_limits {
    double timeout_s;                   /* limit of wall time and of processor time */
    size_t memory_bytes;                /* address space */
    const atomic_int *cancel;           /* NULL: never */
};
/* Path of a program in the usual folders of programs; NULL: it is not installed. */
const char *program_find(const char *name, char path[256]);
/* Run argv (NULL at the end; argv[0] is the path) with data as the file /dev/stdin, and append what
 * it prints to out.  *status: its exit status; said [room]: its messages.  0, or -1 with *e:
 * ERR_LIMIT (time, memory or output), ERR_CANCELLED, ERR_IO. */
int program_run(const char *const *argv, const void *data, size_t size, const struct program_limits *l,
              struct text_build *out, int *status, char *said, size_t room, struct err *e);

#endif
