/* text_build.h - a growing text with a limit, to which the extractors write. */
#ifndef ZSE_RAG_TEXT_BUILD_H
#define ZSE_RAG_TEXT_BUILD_H

#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"

struct rag_budget;
struct text_build {
    char *data; size_t size, room;
    enum { TEXT_GOOD, TEXT_NOMEM, TEXT_FULL, TEXT_DENIED } state;
    struct rag_budget *budget;          /* to which allocations are announced; NULL: none */
};


void build_add(struct text_build *t, const char *s, size_t n);
void build_char(struct text_build *t, uint32_t c);       /* append c as UTF-8, or a blank instead of
                                                          * a control character */
/* End with at least n newlines (1 or 2), unless the text is empty. */
void build_break(struct text_build *t, int n);
/* A blank, unless the text ends with one or with a newline. */
void build_blank(struct text_build *t);
/* 0, or -1 with *e, and data is freed. */
int build_end(struct text_build *t, struct err *e);
void build_release(struct text_build *t);
/* Announce `more` bytes.  0, or -1: they must not be allocated. */
int budget_take(struct rag_budget *b, size_t more);
void budget_return(struct rag_budget *b, size_t less);

/* ---- extractors ---- */
/* HTML or XHTML; title 1: with the title as a heading. */
void html_text(const char *s, size_t size, int title, struct text_build *out);
/* JSON: a line for each value, with its key. */
void json_text(const char *s, size_t size, struct text_build *out);
/* The character that an entity at s ("&amp;", "&#233;") stands for, and its length; 0: none. */
uint32_t html_entity(const char *s, size_t size, size_t *n);

#endif
