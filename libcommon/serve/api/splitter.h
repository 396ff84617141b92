/* splitter.h - what a thinking model writes between <think> and </think>, told from its answer
 * as the text comes. */
#ifndef ZSE_SERVE_API_SPLITTER_H
#define ZSE_SERVE_API_SPLITTER_H

#include <stddef.h>

#include "libcommon/http/buf.h"

struct splitter {
    enum { SPLIT_UNDECIDED, SPLIT_REASONING, SPLIT_ANSWER } state;      /* where it begins is the caller's choice */
    int strip;                          /* blanks at the beginning of either do not count */
    char held[16]; size_t n_held;       /* may be the beginning of a tag */
};

/* New text: what of it is reasoning and what is answer is added to these.  last: nothing
 * follows, give out what was held back. */
void splitter_push(struct splitter *s, const char *text, size_t size, int last, struct buf *reasoning,
                   struct buf *answer);
/* Does a prompt end with <think>, so that the answer begins inside? */
int splitter_begun(const char *prompt, size_t size);

#endif
