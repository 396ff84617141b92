/* vectors.h - vectors of chunks as int8 with a scale: stored in rag.db, searched in memory.
 *
 * A search compares every rounded vector, by kernels.dots_i8, so it is exact for the rounded
 * vectors.  A copy of each collection's vectors stays in memory.  The copy reads only the vectors
 * that were added since, and starts over after a document was deleted.  Of large collections only
 * the vectors of whole chunks are copied and compared, and those of parts are read for the nearest
 * chunks: that search is not exact (see nearest.c).  A struct rag_vectors may be used by any
 * thread. */
#ifndef ZSE_RAG_VECTORS_H
#define ZSE_RAG_VECTORS_H

#include "libcommon/rag/passage_parts.h"
#include "libcommon/rag/rag_store.h"

struct kernels;

/* A text to compute a vector of: a whole chunk after its document's name and headings (part 0), or
 * one of its parts. */
struct rag_pending { int64_t chunk, collection; int part; char *text; };        /* owned */
enum { RAG_CHUNK_TEXTS = PASSAGE_PARTS + 1 };
/* List texts that have no vector of this model yet.  *n: their number, at most `most`, which is
 * RAG_CHUNK_TEXTS or more.  *after: where the next call continues.  model is registered with its
 * size; the vectors of another model of the same name, whose size differs, are deleted. */
int rag_pending(struct rag_store *r, const char *model, int size, int64_t *after, struct rag_pending *list, int most,
                int *n, struct err *e);
void rag_pending_release(struct rag_pending *list, int n);
/* Store vectors [n][size], all of a chunk in one call; a chunk that was deleted meanwhile is left
 * out. */
int rag_put_vectors(struct rag_store *r, const char *model, const struct rag_pending *list, int n,
                    const float *vectors, int size, struct err *e);

/* most_bytes: limit of the copies of vectors in memory.  If the vectors of whole chunks alone
 * exceed the limit, each search reads vectors from the store. */
struct rag_vectors *rag_vectors_open(const struct kernels *k, size_t most_bytes, struct err *e);
void rag_vectors_close(struct rag_vectors *v);          /* NULL is fine */

struct near { int64_t chunk; float similarity; };
/* Find the `most` chunks of the collections that are most similar to `vector`, sorted by
 * similarity: the weighted mean of two cosines, that of the chunk and that of its nearest part.  If
 * n_ranges is not 0, only chunks with ids in one of ranges [n_ranges][2] (first, last) are
 * compared, so that a search can be limited to some documents.  *mean and *deviation describe the
 * similarities of all chunks that were compared.  Returns the number of chunks in out; -1 with
 * *e. */
int rag_nearest(struct rag_vectors *v, struct rag_store *r, const char *model, const float *vector, int size,
                const int64_t *collections, int n_collections, const int64_t *ranges, int n_ranges, struct near *out,
                int most, double *mean, double *deviation, struct err *e);

#endif
