/* extract.h - the text of a file: plain text, Markdown, HTML, JSON, PDF and office documents.
 *
 * The result is valid UTF-8 without control characters but for tab, newline and form feed (between
 * the pages of a PDF).  Headings of HTML and office documents become those of Markdown.  Files are
 * not trusted: work and memory are bounded by the size of the file and the limits here. */
#ifndef ZSE_RAG_EXTRACT_H
#define ZSE_RAG_EXTRACT_H

#include <stdatomic.h>
#include <stddef.h>

#include "libcommon/base/err.h"

enum rag_type { RAG_TXT, RAG_MD, RAG_HTML, RAG_JSON, RAG_PDF, RAG_DOCX, RAG_ODT, RAG_EPUB, RAG_TYPES };
const char *rag_type_name(enum rag_type t);             /* "txt" */
/* Find the type by its name or, if that is "", by the extension of the file's name.
 * ERR_UNSUPPORTED: there is no such type. */
int rag_type_of(const char *type, const char *name, enum rag_type *out, struct err *e);
int rag_type_works(enum rag_type t);                    /* is the program that it needs installed? */
/* Is the extension of this name one of txt, md, html or json? */
int rag_type_is_text(const char *name);
int rag_type_known(const char *name);                   /* does it say any type? */

enum { RAG_TEXT_MAX = 64 << 20 };       /* bytes of an extracted text */
/* An extraction announces its memory: before it allocates, it calls hold() with the total so far.
 * If hold() returns -1, the extraction ends with ERR_CANCELLED. */
struct rag_budget { int (*hold)(void *user, size_t bytes); void *user; size_t used; };
struct rag_extract_options {
    struct rag_budget *budget;          /* NULL: none; the bytes of the text stay in it */
    const atomic_int *cancel;           /* ends a program that runs; NULL: never */
    double timeout_s;                   /* time limit of a program; 0: 60 */
    size_t memory_bytes;                /* memory limit of a program; 0: 1 GiB */
};
struct rag_text { char *text; size_t size; int markdown; };     /* owned */
/* ERR_FORMAT: the file is damaged, encrypted, or has no text; ERR_UNSUPPORTED: no program for it;
 * ERR_LIMIT: more than RAG_TEXT_MAX, or it took too long; ERR_CANCELLED. */
int rag_extract(enum rag_type t, const void *data, size_t size, const struct rag_extract_options *o,
                struct rag_text *out, struct err *e);
void rag_text_release(struct rag_text *t);

#endif
