/* words.h - prepare text for the full-text index: put blanks around the characters of scripts that
 * have none, and turn queries into phrases that the syntax of FTS5 cannot misread. */
#ifndef ZSE_RAG_WORDS_H
#define ZSE_RAG_WORDS_H

#include <stddef.h>

#include "libcommon/base/err.h"

/* text with a blank around each character of Chinese, Japanese, Korean, Thai and the like, which
 * the tokenizer of FTS5 would take for one long word.  malloc'd, NULL without memory.  *n_words:
 * runs of letters and digits in it; may be NULL. */
char *words_spaced(const char *text, size_t size, int *n_words);

/* The words of a query, each as a quoted phrase of FTS5 ("foo-bar" becomes two words in a row).
 * Function words of a few languages are left out if other words remain.  In scripts without blanks
 * each pair of characters becomes a phrase. */
enum { QUERY_PHRASES = 64, QUERY_PHRASE_WORDS = 16, QUERY_PHRASE_BYTES = 256 };
struct query_words { char *phrase[QUERY_PHRASES]; int n; };            /* owned */
int words_of_query(const char *query, size_t size, struct query_words *w, struct err *e);
void query_words_release(struct query_words *w);

#endif
