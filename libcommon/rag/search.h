/* search.h - find passages: BM25 over the full-text index, and similar vectors, joined by
 * reciprocal rank fusion (Cormack, Clarke, Buettcher, SIGIR 2009).
 *
 * BM25 (Robertson, Zaragoza 2009) is computed here, with the counts of the searched collections
 * only.  The statistics of FTS5 cover the whole file, so that a score would tell one owner about
 * the documents of another.
 *
 * Some vector is always the nearest, so being the nearest does not make a passage relevant: a
 * passage found by its vector alone counts only if it is far nearer than the searched passages
 * usually are, see search.c. */
#ifndef ZSE_RAG_SEARCH_H
#define ZSE_RAG_SEARCH_H

#include "libcommon/rag/rag_store.h"

enum rag_mode { RAG_HYBRID, RAG_BM25, RAG_VECTOR };
int rag_mode_parse(const char *text, enum rag_mode *mode);      /* "hybrid", "bm25", "vector"; -1: another */
const char *rag_mode_name(enum rag_mode mode);

enum { RAG_MAX_TOP_K = 100, RAG_MAX_FILTER = 1000 };

struct rag_vectors;
struct rag_query {
    const char *owner, *text; size_t size;
    const char *const *collections; int n_collections;      /* 0: all of the owner */
    const char *const *documents; int n_documents;          /* ids; 0: all */
    enum rag_mode mode;
    int top_k;
    double min_score;
    /* the query's vector of length 1 by this model; NULL: none, so that only BM25 runs */
    const char *model; const float *vector; int n_vector;
    struct rag_vectors *vectors;            /* given together with model: vectors.h */
};

struct rag_hit {
    struct rag_chunk chunk;
    char document[RAG_ID], collection[RAG_COLLECTION + 1];
    char *name;                             /* name of the document; owned */
    int has_pages;                          /* 1: the document has several pages */
    double score;                           /* 0 to 1 */
    double own;                             /* score by its own relevance alone, which is compared with min_score */
    double bm25, similarity;                /* NAN: that search did not find it */
};
struct rag_hits {
    struct rag_hit *hit; int n;             /* hits by descending score; owned */
    enum rag_mode mode;                     /* the searches that ran */
    char reason[160];                       /* why there is no hit; "": there is one */
};
/* ERR_FORMAT: an unknown collection or document. */
int rag_search(struct rag_store *r, const struct rag_query *q, struct rag_hits *hits, struct err *e);
/* Keep the first top_k hits whose own score is min_score or more. */
void rag_hits_keep(struct rag_hits *hits, int top_k, double min_score);
void rag_hits_release(struct rag_hits *h);

/* ---- a context for a prompt ---- */

struct rag_passage { int hit; size_t size; };           /* the first size bytes of a hit's text */
struct rag_context {
    char *text; size_t size, tokens;        /* owned */
    struct rag_passage *passage; int n;     /* owned; passage i is cited as [i + 1] */
};
/* Number the passages of the hits, at most max_tokens in all; the last is cut at a word. */
int rag_context(const struct rag_hits *h, size_t max_tokens, const struct token_counter *counter,
                struct rag_context *out, struct err *e);
void rag_context_release(struct rag_context *c);

#endif
