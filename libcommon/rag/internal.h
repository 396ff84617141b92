/* internal.h - a connection to rag.db, and the helpers around SQLite that its modules share. */
#ifndef ZSE_RAG_INTERNAL_H
#define ZSE_RAG_INTERNAL_H

#include <sqlite3.h>
#include <sys/types.h>

#include "libcommon/rag/rag_store.h"

struct collector;

struct rag_store {
    sqlite3 *db;
    char *path;
    dev_t dev; ino_t ino;
    uint64_t until_ns;                  /* deadline of waiting for other connections */
    uint64_t late_ns;                   /* deadline of statements; 0: none */
    const atomic_int *cancel;
    struct collector *collector;        /* collector of the running query: bm25.c */
};

/* *e from the last error of SQLite; returns -1. */
int rag_sql_error(struct rag_store *r, struct err *e);
sqlite3_stmt *rag_prepare(struct rag_store *r, const char *sql, struct err *e);
int rag_run(struct rag_store *r, const char *sql, struct err *e);
/* Run and finalize a statement that returns no rows. */
int rag_finish(struct rag_store *r, sqlite3_stmt *s, struct err *e);
/* Begin to write; rag_end commits, or rolls back if rc is not 0, and returns rc or -1. */
int rag_begin(struct rag_store *r, struct err *e);
int rag_end(struct rag_store *r, int rc, struct err *e);
/* The id of the row of the owner's collection; 0: there is none; -1 with *e. */
int64_t rag_collection_row(struct rag_store *r, const char *owner, const char *name, struct err *e);
/* The id of the row of a model in the table models; 0: there is none; -1 with *e. */
int64_t rag_model_row(struct rag_store *r, const char *model, struct err *e);

/* ---- vectors.c ---- */
/* Round x to int8; returns the scale. */
float rag_round_vector(const float *x, int size, int8_t *out);

/* ---- bm25.c ---- */
/* Register the function that collects matches with FTS5.  0, or -1 with *e. */
int rag_register_collector(struct rag_store *r, struct err *e);

#endif
