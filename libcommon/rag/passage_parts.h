/* passage_parts.h - cut a passage into parts of a few sentences, each of which gets a vector.
 *
 * If a passage is about several things, its vector is near none of them.  The vector of a part is
 * near one of them, but says little about the context.  A search uses a weighted
 * mean of both similarities. */
#ifndef ZSE_RAG_PASSAGE_PARTS_H
#define ZSE_RAG_PASSAGE_PARTS_H

#include <stddef.h>

enum { PASSAGE_PARTS = 8, PART_LEAST = 60, PART_MOST = 500 };   /* bytes of a part, but for the last one */
struct passage_part { const char *text; size_t size; };         /* borrowed from the passage */
/* Join or cut paragraphs into parts; cuts are at the ends of sentences.  Returns the number of
 * parts, 1 or more if the text is not blank. */
int passage_parts(const char *text, size_t size, struct passage_part out[PASSAGE_PARTS]);

#endif
