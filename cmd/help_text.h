/* help_text.h - fit usage texts to a terminal. */
#ifndef ZSE_CMD_HELP_TEXT_H
#define ZSE_CMD_HELP_TEXT_H

#include <stddef.h>
#include <stdio.h>

enum { HELP_COLUMNS = 80 };
/* Print a usage text of n bytes, made of lines, in at most HELP_COLUMNS columns.  A line is a
 * synopsis, prose that begins in the first column, or "  head  description"; a line that begins
 * below a description continues it.  Words that are too long for a line stay whole. */
void help_print(FILE *out, const char *text, size_t n);
/* Print the long options whose descriptions have "(default: X)", one a line with X. */
void help_print_defaults(FILE *out, const char *text, size_t n);

#endif
