/* sysfile.h - the small files of /proc and /sys, under a root of the caller's choice: NULL is
 * "/", a test gives a folder of canned ones. */
#ifndef ZSE_HW_SYSFILE_H
#define ZSE_HW_SYSFILE_H

#include <stddef.h>
#include <stdint.h>

/* The file at root + the path, '\0' appended; what does not fit in is left out.  Bytes read, or
 * -1 where there is no such file. */
long sys_read(const char *root, const char *path, char *out, size_t room);
/* The same for a text of one line: without its newline and blanks around it. 0 or -1. */
int sys_line(char *out, size_t room, const char *root, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
/* The same for a whole number; `otherwise` where there is none. */
long long sys_number(long long otherwise, const char *root, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* "KEY 123" or "KEY: 123 kB" in a text of such lines, as written; `otherwise` where there is no
 * such line. */
long long sys_field(const char *text, const char *key, long long otherwise);
/* A list of processors like "0-3,8": how many; *first the first one. */
int sys_list(const char *list, int *first);

#endif
