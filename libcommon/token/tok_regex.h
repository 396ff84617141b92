/* tok_regex.h - the regular expressions of tokenizer.json, written for Oniguruma (Ruby syntax), run
 * by PCRE2.
 *
 * regex_translate is used when a tokenizer is compiled; the block keeps its result, and
 * regex_open gives that to PCRE2. */
#ifndef ZSE_TOKEN_TOK_REGEX_H
#define ZSE_TOKEN_TOK_REGEX_H

#include <stddef.h>

#include "libcommon/base/err.h"
#include "libcommon/token/tok_text.h"

/* Append to out a PCRE2 pattern (UTF and UCP on, multi-line) that matches what `pattern` matches in
 * Oniguruma: \s \w \b \h \v have Oniguruma's meaning, scripts do not include extensions, sets may
 * contain && and other sets, and options reach to the end of their group.  -1: the pattern is not
 * valid, or a part of it has no counterpart. */
int regex_translate(struct tbuf *out, const char *pattern, size_t n, struct err *e);

struct regex;                       /* read-only after opening: threads may share it */
struct regex *regex_open(const char *pattern, size_t n, struct err *e);
void regex_close(struct regex *r);  /* NULL is fine */

struct regex_scratch;               /* one a thread and call */
struct regex_scratch *regex_scratch_open(void);
void regex_scratch_close(struct regex_scratch *s);

/* Find the first match in valid UTF-8 s[0..n) at or after `from`: 1 with its bounds; 0: there is
 * none; -1 with *e: the match exceeds PCRE2's limits. */
int regex_find(const struct regex *r, struct regex_scratch *w, const char *s, size_t n, size_t from, size_t *begin,
               size_t *end, struct err *e);

#endif
