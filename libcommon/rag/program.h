/* program.h - run programs that read a file from memory and print text: with limits of time, memory
 * and output, a clean environment, and no files of their own. */
#ifndef ZSE_RAG_PROGRAM_H
#define ZSE_RAG_PROGRAM_H

#include <stdatomic.h>
#include <stddef.h>

#include "libcommon/base/err.h"
#include "libcommon/rag/text_build.h"

struct program_limits {
    double timeout_s;                   /* limit of wall time and of processor time */
    size_t memory_bytes;                /* address space of each program */
    const atomic_int *cancel;           /* NULL: never */
};
/* Path of a program in the usual folders of programs; NULL: it is not installed. */
const char *program_find(const char *name, char path[256]);
/* A program to run, and its result. */
struct program {
    const char *const *argv;            /* NULL at the end; argv[0] is the path */
    struct text_build *out;             /* its output is appended here */
    int status;                         /* its exit status */
    char said[512];                     /* its messages */
};
enum { PROGRAMS_MAX = 2 };
/* Run p[0 .. n), n <= PROGRAMS_MAX, at the same time, each with data as the file /dev/stdin.  0, or
 * -1 with *e: ERR_LIMIT (time, memory or output), ERR_CANCELLED, ERR_IO. */
int program_run(struct program *p, int n, const void *data, size_t size, const struct program_limits *l,
                struct err *e);

#endif
