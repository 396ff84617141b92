/* bm25.h - the matches of a query in the full-text index, ranked; used by search.c. */
#ifndef ZSE_RAG_BM25_H
#define ZSE_RAG_BM25_H

#include "libcommon/rag/internal.h"
#include "libcommon/rag/words.h"

/* The scope of a query: rows of collections, or of documents within them. */
struct scope {
    int64_t *collection; int n_collections;             /* owned */
    int64_t *document; int n_documents;                 /* owned; 0: all of the collections */
    int64_t chunks, words;                              /* totals of the collections */
};

struct ranked { int64_t chunk; double score, coverage; };
/* coverage: the fraction of the query's words that the chunk contains, each weighted by its
 * rarity. */
struct ranking { struct ranked *row; int n; };          /* owned; by descending score, then by chunk */
/* The best `most` matches. */
int bm25_rank(struct rag_store *r, const struct scope *where, const struct query_words *words, int most,
              struct ranking *out, struct err *e);

#endif
