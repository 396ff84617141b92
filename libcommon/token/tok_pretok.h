/* tok_pretok.h - cut a text into the words that the model sees one by one. */
#ifndef ZSE_TOKEN_TOK_PRETOK_H
#define ZSE_TOKEN_TOK_PRETOK_H

#include "libcommon/token/tok_regex.h"
#include "libcommon/token/tok_text.h"
#include "libcommon/token/tokenizer_blob.h"

struct pretok_piece {
    size_t at, n;
    int first;                      /* it begins where the whole input begins */
};
struct pieces {
    struct pretok_piece *p;                /* owned */
    size_t n, room;
    int failed;
};
void pieces_release(struct pieces *l);

/* io holds the text, and afterwards the text of the pieces, because some steps rewrite it.  work
 * and spare are scratch buffers.  out gets the pieces; none is empty.  w may be NULL when no op has
 * an expression. */
int pretok_run(const struct tokb_op *op, uint32_t n, const char *text, struct regex *const *regex,
               struct regex_scratch *w, struct tbuf *io, struct tbuf *work, int at_start, struct pieces *out,
               struct pieces *spare, struct err *e);

#endif
