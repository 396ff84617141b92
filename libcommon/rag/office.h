/* office.h - the text of docx, odt and epub files, read without another program. */
#ifndef ZSE_RAG_OFFICE_H
#define ZSE_RAG_OFFICE_H

#include "libcommon/rag/extract.h"
#include "libcommon/rag/text_build.h"

enum { OFFICE_PART_MAX = 64 << 20 };    /* bytes of an unpacked part */
/* Append the text to out; the caller completes it with build_end().  ERR_FORMAT: the document is
 * damaged or encrypted; ERR_LIMIT: it is too large when unpacked. */
int office_text(enum rag_type type, const void *data, size_t size, struct text_build *out, struct err *e);

#endif
