/* sysfile.h - read small files of /proc and /sys under a root: NULL is "/", tests pass a folder of
 * prepared files. */
#ifndef ZSE_HW_SYSFILE_H
#define ZSE_HW_SYSFILE_H

#include <stddef.h>
#include <stdint.h>

/* Read the file at root + path, cut to fit, and append '\0'.  Returns the number of bytes, or -1 if
 * there is no such file. */
long sys_read(const char *root, const char *path, char *out, size_t room);
/* Read a file of one line into out, without its newline and surrounding blanks.  The path is root,
 * followed by fmt and its arguments.  0, or -1 if there is no such file. */
int sys_line(char *out, size_t room, const char *root, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
/* The whole number in a file that has one line, as sys_line() reads it; `otherwise` if there is
 * none. */
long long sys_number(long long otherwise, const char *root, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* The number in a line "KEY 123" or "KEY: 123 kB" of text, without its unit; `otherwise` if there
 * is no such line. */
long long sys_field(const char *text, const char *key, long long otherwise);
/* The number of processors in a list like "0-3,8"; *first: the first of them. */
int sys_list(const char *list, int *first);

#endif
