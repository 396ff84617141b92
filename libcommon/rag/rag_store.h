/* rag_store.h - documents, their chunks, the full-text index and vectors in FOLDER/rag.db (SQLite).
 *
 * A connection belongs to one thread at a time.  Any number of threads and programs may have the
 * file open: writing is one transaction per document, readers see whole documents (write-ahead
 * log).  Every document belongs to an owner (a key of the server, "" for the local user) and to one
 * of the owner's collections.  No function shows an owner the documents of another, and no score
 * depends on them.
 *
 * Errors.  ERR_FORMAT: the request is wrong (no such document); ERR_LIMIT: a quota; ERR_CANCELLED;
 * ERR_IO: the file cannot be used, so other requests will fail, too. */
#ifndef ZSE_RAG_RAG_STORE_H
#define ZSE_RAG_RAG_STORE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"
#include "libcommon/base/sha256.h"
#include "libcommon/rag/chunks.h"

enum { RAG_OWNER = 64, RAG_ID = 24, RAG_NAME = 512, RAG_COLLECTION = 64, RAG_METADATA = 16 << 10,
       RAG_MAX_COLLECTIONS = 1000 };
#define RAG_DEFAULT_COLLECTION "default"

struct rag_store;
/* create: make the folder and the file if they are missing; else a missing file is ERR_FORMAT. */
struct rag_store *rag_open(const char *folder, int create, struct err *e);
void rag_close(struct rag_store *r);                    /* NULL is fine */
/* Is the file still the one that was opened? */
int rag_is_current(const struct rag_store *r);
/* Statements end with ERR_CANCELLED soon after *flag is not 0.  NULL: never. */
void rag_set_cancel(struct rag_store *r, const atomic_int *flag);
/* From now on statements fail with ERR_CANCELLED after this many seconds; 0: never. */
void rag_set_time(struct rag_store *r, double seconds);

/* ---- documents ---- */

struct rag_document {
    int64_t row;                        /* row of the table; not for clients */
    char id[RAG_ID];                    /* "doc-" and 16 hexadecimal digits */
    char owner[RAG_OWNER + 1], collection[RAG_COLLECTION + 1];
    char *name, *type, *metadata;       /* owned; metadata: JSON text */
    int64_t created_s;              /* Unix time */
    uint64_t file_size, text_size;
    int n_chunks, n_pages, n_vectors;   /* vectors of the model that was asked about */
    uint8_t sha256[SHA256_SIZE];
};
void rag_document_release(struct rag_document *d);

/* Is name a name of a collection: 1 to RAG_COLLECTION bytes of UTF-8 without control characters? */
int rag_check_collection(const char *name, struct err *e);

struct rag_quota { int64_t documents; uint64_t bytes; };        /* limits of an owner; 0: any number */
/* Could a document of file_size bytes with this hash be added?  0: yes; 1: the same one exists
 * already (*there is filled in); -1 with *e. */
int rag_admit(struct rag_store *r, const struct rag_document *d, const struct rag_quota *q, struct rag_document *there,
              struct err *e);
/* Store d and the chunks of its text; row, id, created_s, n_chunks and n_pages are filled in.
 * Results as rag_admit. */
int rag_add(struct rag_store *r, struct rag_document *d, const char *text, const struct chunk_list *chunks,
            const struct rag_quota *q, struct rag_document *there, struct err *e);
/* Also its chunks, index entries and vectors.  ERR_FORMAT: there is none. */
int rag_delete(struct rag_store *r, const char *owner, const char *id, struct err *e);
/* *n: documents that were deleted. */
int rag_delete_collection(struct rag_store *r, const char *owner, const char *name, int64_t *n, struct err *e);

/* model: whose vectors are counted; NULL: none */
int rag_find(struct rag_store *r, const char *owner, const char *id, const char *model, struct rag_document *d,
             struct err *e);
/* Newest first.  collection NULL: all.  *total: without limit and offset. */
int rag_list(struct rag_store *r, const char *owner, const char *collection, const char *model, int limit,
             int64_t offset, struct rag_document **list, int *n, int64_t *total, struct err *e);
void rag_documents_free(struct rag_document *list, int n);

struct rag_chunk {
    int64_t id;
    int number, page;                   /* number: from 0 in its document; page: from 1 */
    uint64_t offset;                    /* offset in the extracted text */
    char *heading, *text;               /* owned */
};
void rag_chunks_free(struct rag_chunk *list, int n);
int rag_chunks(struct rag_store *r, const struct rag_document *d, struct rag_chunk **list, int *n, struct err *e);

struct rag_collection { char name[RAG_COLLECTION + 1]; int64_t documents, chunks, bytes; };
int rag_collections(struct rag_store *r, const char *owner, struct rag_collection **list, int *n, struct err *e);

struct rag_totals { int64_t documents, chunks, collections, vectors; uint64_t bytes; };
int rag_totals(struct rag_store *r, const char *owner, const char *model, struct rag_totals *t, struct err *e);

#endif
