/* chat_wrap.h - break the lines of a text between words, so that they fit a terminal.
 *
 * The text arrives in pieces.  A word is held back until it ends, which shows whether it fits on
 * the line.  Code between Markdown fences and rows of tables are left as they are, and so is a word
 * that is wider than a line.  Wide characters, as those of Chinese, are words of their own. */
#ifndef ZSE_CMD_CHAT_WRAP_H
#define ZSE_CMD_CHAT_WRAP_H

#include <stddef.h>
#include <stdint.h>

struct line_wrap {
    void (*write)(const char *text, size_t size);
    int (*width)(void);         /* columns of a line, asked at each one; 0: lines are not broken */
    int columns, is_asked;      /* of this line */
    int at;                     /* columns written on this line */
    int line;                   /* enum wrap_line of chat_wrap.c */
    char fence; size_t n_fence; /* code stands between fences of at least n_fence of these; 0: none */
    /* n_gap bytes of blanks and the word after them, both of this line and not yet written */
    char held[1024]; size_t n_gap, n_held;
    int word_columns;
    int is_passing;             /* the rest of a word that is wider than a line is written at once */
    uint32_t before; int32_t state;     /* the character before, and the state between graphemes */
    char part[4]; size_t n_part;        /* bytes of a character that has not arrived whole */
};

/* Begin a text at this column.  write and width must be set, all else may be 0. */
void wrap_begin(struct line_wrap *w, int at);
void wrap_write(struct line_wrap *w, const char *text, size_t size);
void wrap_end(struct line_wrap *w);  /* write what is held back */

#endif
