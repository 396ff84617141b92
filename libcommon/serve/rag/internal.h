/* internal.h - the documents of the server: /api/rag.
 *
 * A request becomes a job.  Its disk work runs in a thread: one thread makes short changes, some
 * add documents (of each tenant one at a time, so that no key waits for the files of another), and
 * some read, so that a search does not wait for a large file.
 * Each thread has its own connection to rag.db.  Threads and connections are made when the first
 * request needs them; a file that cannot be used makes requests fail, never the server.
 *
 *   service.c     threads, queues, the way back to the loop
 *   endpoints.c   the routes: from requests to jobs
 *   documents.c   jobs that list and delete
 *   additions.c   jobs that add
 *   passages.c    jobs that search and make contexts
 *   embed.c       vectors of queries and chunks */
#ifndef ZSE_SERVE_RAG_INTERNAL_H
#define ZSE_SERVE_RAG_INTERNAL_H

#include "libcommon/rag/search.h"
#include "libcommon/rag/rag_store.h"
#include "libcommon/rag/vectors.h"
#include "libcommon/serve/exchange.h"
#include "libcommon/serve/internal.h"

/* RAG_ADD: documents become text, which takes up to a minute, and are stored; RAG_WRITE: short
 * changes. */
enum rag_lane { RAG_READ, RAG_WRITE, RAG_ADD, RAG_LANES };
/* threads; jobs that may wait in a lane, in all and of one tenant */
enum { RAG_READERS = 2, RAG_ADDERS = 3, RAG_THREADS = RAG_READERS + RAG_ADDERS + 1, RAG_WAITING = 64,
       RAG_WAITING_TENANT = 8 };
enum { RAG_TEXTS = 8 };                  /* embedded together */
enum { RAG_READ_S = 10 };               /* seconds that a job of RAG_READ may take */
enum { RAG_QUERY = 64 << 10 };          /* bytes of a query */
enum { RAG_JOB_BYTES = 16 << 10 };      /* of the account, held by the smallest job */

struct rag_job {
    struct exchange exchange;           /* first: see exchange.h */
    struct rag_job *next;
    struct server *s;
    struct conn *conn;                  /* NULL: the client is gone */
    enum rag_lane lane;
    /* In a thread of the lane: fill in answer or problem. */
    void (*run)(struct rag_job *j, struct rag_store *r);
    uint64_t tenant, round;             /* round: of its place in the queue */
    char owner[RAG_OWNER + 1];
    struct hold hold;
    size_t kept;                        /* bytes held besides the body, as long as the job lives */
    atomic_int cancelled;
    struct loaded_model *lm;            /* its tokenizer counts tokens; NULL: code points are counted */
    /* the request */
    struct buf body;
    char id[RAG_COLLECTION + 1];        /* of the document, or the name of the collection */
    char collection[RAG_COLLECTION + 1];                /* of the query; "": none */
    int limit, with_chunks; int64_t offset;
    char *content_type;                 /* of an upload; owned */
    /* of a job without a connection: called by the loop at its end */
    void (*done)(void *user, json_t *answer, const struct problem *p);
    void *user;
    /* vectors of texts, which a run asks for and finds when it runs again: embed.c */
    struct loaded_model *embedder;      /* NULL: none is ready; as long as the job lives */
    char model[128];                    /* the name of its vectors; "": there is none */
    enum { RAG_IDLE, RAG_WANTED, RAG_EMBEDDED, RAG_NOT_EMBEDDED } embedding;
    struct rag_text_ids { int32_t *ids; int n; } texts[RAG_TEXTS];      /* owned */
    struct worker_job jobs[RAG_TEXTS];
    int n_texts, n_open, embed_failed, reported;
    float *vectors;                     /* [n_texts][size]; owned */
    struct rag_pending pending[RAG_TEXTS]; int n_pending; int64_t after;        /* of the index */
    /* the answer */
    json_t *answer;                     /* NULL: see text, else problem */
    char *text;                         /* of an answer to a connection, written in the thread */
    struct problem problem;
};

/* A job for the connection's request; NULL: it was refused. */
struct rag_job *rag_job_new(struct server *s, struct conn *c, enum rag_lane lane,
                            void (*run)(struct rag_job *j, struct rag_store *r));
/* Queue it, or refuse it; takes it over. */
void rag_job_submit(struct rag_job *j);
void rag_job_free(struct rag_job *j);

/* ---- in the thread ---- */
/* Hold `more` bytes besides the body and j->kept.  0, or -1 with j->problem. */
int rag_hold(struct rag_job *j, size_t more);
/* Parse the body as JSON of this kind.  NULL with j->problem. */
json_t *rag_body(struct rag_job *j, body_set kind, struct params *p);
/* j->problem of an error of the store; code: of ERR_FORMAT, "no_such_document".  -1. */
int rag_problem(struct rag_job *j, const struct err *e, const char *code);
struct token_counter rag_counter(const struct rag_job *j);
/* ---- embed.c ---- */
void rag_use_embedding(struct rag_job *j);              /* in the loop: the job may ask for vectors */
/* The id of the model whose vectors are used; NULL: none. */
const char *rag_model(const struct rag_job *j);
int rag_vector_size(const struct rag_job *j);
/* In a run: add a text to those of which vectors are wanted.  0, or -1 with j->problem. */
int rag_add_text(struct rag_job *j, const char *text, size_t size);
void rag_drop_texts(struct rag_job *j);
void rag_run_index(struct rag_job *j, struct rag_store *r);
void rag_embed(struct rag_job *j);      /* in the loop: compute the vectors, then run again */
void rag_index_ended(struct server *s, int failed);
/* dirty: there may be chunks without vectors */
struct rag_index { int dirty, running; uint64_t retry_ns; };

/* ---- service.c, for embed.c ---- */
struct rag_index *rag_index_of(struct server *s);
struct rag_job **rag_embedding_list(struct server *s);  /* jobs whose vectors are being computed */
struct rag_job *rag_job_internal(struct server *s, enum rag_lane lane,
                                 void (*run)(struct rag_job *j, struct rag_store *r));
void rag_job_push(struct rag_job *j);                   /* queue it, whatever waits */
struct rag_vectors *rag_vectors_of(struct server *s);

json_t *rag_document_object(struct rag_job *j, const struct rag_document *d);
void rag_run_add(struct rag_job *j, struct rag_store *r);
void rag_run_upload(struct rag_job *j, struct rag_store *r);
void rag_run_list(struct rag_job *j, struct rag_store *r);
void rag_run_get(struct rag_job *j, struct rag_store *r);
/* The document and its text, of at most RAG_TEXT bytes. */
enum { RAG_TEXT = 4 << 20 };
void rag_run_text(struct rag_job *j, struct rag_store *r);
void rag_run_delete(struct rag_job *j, struct rag_store *r);
void rag_run_collections(struct rag_job *j, struct rag_store *r);
void rag_run_drop(struct rag_job *j, struct rag_store *r);
void rag_run_stats(struct rag_job *j, struct rag_store *r);
void rag_run_search(struct rag_job *j, struct rag_store *r);
void rag_run_context(struct rag_job *j, struct rag_store *r);

#endif
