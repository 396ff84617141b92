/* splitter.h - separate reasoning between <think> and </think> from the rest of an answer, as the
 * text arrives. */
#ifndef ZSE_SERVE_API_SPLITTER_H
#define ZSE_SERVE_API_SPLITTER_H

#include <stddef.h>

#include "libcommon/http/buf.h"

struct reasoning_splitter {
    enum { SPLIT_UNDECIDED, SPLIT_REASONING, SPLIT_ANSWER } state;      /* the caller sets the first one */
    int strip;                          /* drop blanks until other text comes */
    char held[16]; size_t n_held;       /* bytes that may be the beginning of a tag */
};

/* Append new text to reasoning and answer.  last: no text follows, so held bytes are released. */
void splitter_push(struct reasoning_splitter *s, const char *text, size_t size, int last, struct buf *reasoning,
                   struct buf *answer);

#endif
