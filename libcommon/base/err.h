/* err.h - errors: a code for the program, a sentence for the person. */
#ifndef ZSE_BASE_ERR_H
#define ZSE_BASE_ERR_H

#ifdef __cplusplus
extern "C" {
#endif

enum err_code {
    ERR_NONE,
    ERR_IO,             /* a system call failed: open, read, write, full disk */
    ERR_FORMAT,         /* a file or text is malformed */
    ERR_SHAPE,          /* sizes that do not fit together */
    ERR_UNSUPPORTED,    /* valid, but not supported: an architecture, a type, a config field */
    ERR_MEMORY,
    ERR_DEVICE,
    ERR_LIMIT,          /* over a limit: context length, nesting, number of tools ... */
    ERR_CANCELLED,
};

struct err {
    enum err_code code;
    char msg[512];      /* fixed, so that it works when malloc does not */
};

/* Fill *e and return -1, so that a failing function can say `return err_set(...)`.  e may be
 * NULL. */
int err_set(struct err *e, enum err_code code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Like err_set(), after a failed system call: appends ": " and strerror(errno); code ERR_IO. */
int err_sys(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Put "WORDS: " before an existing message; returns -1. */
int err_prefix(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Out of memory while allocating WHAT; returns -1. */
int err_nomem(struct err *e, const char *what);

#ifdef __cplusplus
}
#endif
#endif
