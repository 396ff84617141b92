/* chunks.h - cut a text into passages for retrieval: at headings, paragraphs and sentences, as far
 * as the wanted size allows, never inside a character (an extended grapheme cluster, UAX #29).
 *
 * Form feeds separate pages.  Headings are those of Markdown (# and underlined), to which the
 * extraction of other formats converts theirs.  In plain text, a short line between blank lines is
 * a heading if it is in capitals or has a number. */
#ifndef ZSE_RAG_CHUNKS_H
#define ZSE_RAG_CHUNKS_H

#include <stddef.h>

#include "libcommon/base/err.h"

/* Size of a text in tokens.  count NULL: a quarter of its code points. */
struct token_counter { size_t (*count)(void *user, const char *text, size_t size); void *user; };
size_t token_count(const struct token_counter *c, const char *text, size_t size);

enum { CHUNK_TOKENS = 256, CHUNK_OVERLAP = 32 };

struct chunk_options {
    size_t tokens, overlap;             /* most tokens of a chunk, and most that repeat the chunk before; 0: defaults */
    int markdown;                       /* headings of Markdown, else of plain text */
    struct token_counter counter;
};

struct chunk {
    size_t offset, size;                /* place in the text; never empty */
    int page;                           /* page of its first byte, from 1 */
    const char *heading;                /* "Guide > Install"; "" if there is none; borrowed from the list */
};
struct chunk_list {
    struct chunk *chunk; int n;         /* owned */
    int pages;                          /* pages of the text: 1 more than its form feeds */
    char **headings; int n_headings;    /* owned */
};
/* text is valid UTF-8.  0, or -1 with *e: out of memory, or more than MAX_CHUNKS chunks. */
enum { MAX_CHUNKS = 200000 };
/* Upper bound of the memory that cutting a text takes, with its chunks. */
size_t chunks_bytes(size_t size);
int chunks_cut(const char *text, size_t size, const struct chunk_options *o, struct chunk_list *list, struct err *e);
void chunks_release(struct chunk_list *list);

#endif
