/* tok_norm.h - run the normalizers of a tokenizer over a piece of text. */
#ifndef ZSE_TOKEN_TOK_NORM_H
#define ZSE_TOKEN_TOK_NORM_H

#include "libcommon/token/tok_regex.h"
#include "libcommon/token/tok_text.h"
#include "libcommon/token/tokenizer_blob.h"

/* Replace io (valid UTF-8) by its normalized form.  text: the arguments of op[0..n); regex:
 * opened expressions by index of op, or NULL to open them here. */
int norm_text(const struct tokb_op *op, uint32_t n, const char *text, struct regex *const *regex, struct tbuf *io,
              struct err *e);

/* Replace all matches in s by content. */
int norm_replace_regex(struct tbuf *out, const struct regex *r, struct regex_scratch *w, const char *s, size_t n,
                       const char *content, size_t n_content, struct err *e);
void norm_replace(struct tbuf *out, const char *s, size_t n, const char *what, size_t n_what, const char *content,
                  size_t n_content);

#endif
