/* internal.h - the documents of the server: /api/rag.
 *
 * A request becomes a job, and a thread does its disk work: one thread makes short changes, some
 * add documents (one at a time for each tenant, so that no key waits for the files of another), and
 * some read, so that a search does not wait for a large file.  Each thread has its own connection
 * to rag.db.  Threads and connections are made when the first request needs them; if the file
 * cannot be used, requests fail and the server continues.
 *
 *   service.c     threads, queues, the return of jobs to the loop
 *   endpoints.c   the routes: turn requests into jobs
 *   documents.c   jobs that list and delete
 *   additions.c   jobs that add
 *   passages.c    jobs that search and make contexts
 *   embed.c       vectors of queries and chunks, by the worker of a model
 *   rank.c        scores of passages, by a reranker */
#ifndef ZSE_SERVE_RAG_INTERNAL_H
#define ZSE_SERVE_RAG_INTERNAL_H

#include "libcommon/rag/search.h"
#include "libcommon/rag/rag_store.h"
#include "libcommon/rag/vectors.h"
#include "libcommon/serve/exchange.h"
#include "libcommon/serve/internal.h"

/* RAG_ADD: extract the text of documents, which takes up to a minute, and store it; RAG_WRITE:
 * short changes. */
enum rag_lane { RAG_READ, RAG_WRITE, RAG_ADD, RAG_LANES };
/* RAG_READERS, RAG_ADDERS, RAG_THREADS: numbers of threads.  RAG_WAITING: most jobs that may wait
 * in a lane, and RAG_WAITING_TENANT: of one tenant.  RAG_SEARCHES: most searches that may wait for
 * a thread or a model, and RAG_SEARCHES_TENANT: of one tenant. */
enum { RAG_READERS = 2, RAG_ADDERS = 3, RAG_THREADS = RAG_READERS + RAG_ADDERS + 1, RAG_WAITING = 64,
       RAG_WAITING_TENANT = 8, RAG_SEARCHES = 1024, RAG_SEARCHES_TENANT = 128 };
enum { RAG_TEXTS = 24 };                 /* texts of chunks that are embedded together */
/* RAG_RANKED: number of passages that a reranker scores (top_k if that is more).  RAG_ASKED: most
 * texts of a job. */
enum { RAG_RANKED = 20, RAG_ASKED = RAG_MAX_TOP_K };
enum { RAG_READ_S = 10 };               /* time limit of a job of RAG_READ, in seconds */
enum { RAG_QUERY = 64 << 10 };          /* largest query, in bytes */
enum { RAG_JOB_BYTES = 32 << 10 };      /* bytes that the smallest job reserves in the account */

struct rag_job {
    struct exchange exchange;           /* must be the first member: see exchange.h */
    struct rag_job *next;
    struct server *s;
    struct conn *conn;                  /* NULL: the client has disconnected */
    enum rag_lane lane;
    /* Set answer or problem; called in a thread of the lane. */
    void (*run)(struct rag_job *j, struct rag_store *r);
    uint64_t tenant, round;             /* round: see the queue in service.c */
    char owner[RAG_OWNER + 1];
    struct hold hold;
    size_t kept;                        /* bytes reserved besides the body, as long as the job lives */
    atomic_int cancelled;
    struct loaded_model *lm;            /* the model whose tokenizer counts tokens; NULL: code points are counted */
    /* the request */
    struct buf body;
    char id[RAG_COLLECTION + 1];        /* id of the document, or name of the collection */
    char collection[RAG_COLLECTION + 1];                /* collection of the query; "": none */
    int limit, with_chunks; int64_t offset;
    char *content_type;                 /* content type of an upload; owned */
    /* set only for jobs without a connection: the loop calls it when the job ends */
    void (*done)(void *user, json_t *answer, const struct problem *p);
    void *user;
    /* Vectors or scores of texts (embed.c): a run requests them, and the next run finds them
     * here. */
    struct loaded_model *embedder;      /* the model that embeds; NULL: none is ready; kept while the job lives */
    struct loaded_model *reranker;      /* the model that scores passages; the same */
    char model[128];                    /* name of the model of the vectors; "": none */
    enum rag_asked { RAG_IDLE, RAG_WANTED, RAG_COMPUTED, RAG_NOT_COMPUTED } embedding, ranking;
    /* ids: owned; second: index of the first token of a pair's second text; open: the engine works
     * on it */
    struct rag_text_ids { int32_t *ids; int n, second, open, cancelled; } texts[RAG_ASKED];
    struct worker_job jobs[RAG_ASKED];
    int n_texts, n_sent, n_open, n_cancelling, failed, reported;
    float *vectors;                     /* [n_texts][size], or scores [n_texts]; owned */
    struct rag_hits hits;               /* passages whose scores are being computed; owned */
    /* chunks without vectors that the index job works on */
    struct rag_pending pending[RAG_TEXTS]; int n_pending; int64_t after;
    /* the answer */
    json_t *answer;                     /* NULL: the answer is text, or problem */
    char *text;                         /* the answer to a connection, written in the thread */
    struct problem problem;
};

/* Make a job for the connection's request; NULL: refused, and the client has the answer. */
struct rag_job *rag_job_new(struct server *s, struct conn *c, enum rag_lane lane,
                            void (*run)(struct rag_job *j, struct rag_store *r));
/* Queue the job, or refuse it; takes it over. */
void rag_job_submit(struct rag_job *j);
void rag_job_free(struct rag_job *j);

/* ---- in the thread ---- */
/* Reserve `more` bytes besides the body and j->kept.  0, or -1 with j->problem. */
int rag_hold(struct rag_job *j, size_t more);
/* Parse the body as JSON of this kind.  NULL with j->problem. */
json_t *rag_body(struct rag_job *j, body_set kind, struct params *p);
/* Set j->problem to an error of the store. code: for ERR_FORMAT, "no_such_document".  Returns
 * -1. */
int rag_problem(struct rag_job *j, const struct err *e, const char *code);
struct token_counter rag_counter(const struct rag_job *j);
/* ---- embed.c ---- */
void rag_use_models(struct rag_job *j);                 /* in the loop: the job may then request vectors and scores */
/* The id of the model whose vectors the job uses; NULL: none. */
const char *rag_model(const struct rag_job *j);
int rag_vector_size(const struct rag_job *j);
/* Called in a run: ask for the vector of a text.  0, or -1 with j->problem. */
int rag_add_text(struct rag_job *j, const char *text, size_t size);
void rag_drop_texts(struct rag_job *j);
void rag_run_index(struct rag_job *j, struct rag_store *r);
/* For the event loop.  rag_wants() returns 1 if the job has texts whose vectors or scores must be
 * computed.  rag_compute() computes them and then runs the job again. */
int rag_wants(const struct rag_job *j);
void rag_compute(struct rag_job *j);
/* Send texts to the engines, and cancel those of jobs that were cancelled or whose model leaves. */
void rag_compute_more(struct server *s);
void rag_index_ended(struct server *s, int failed);
/* ---- rank.c ---- */
/* Called in a run: order the passages by the reranker's scores, and keep top_k with min_score or
 * more.  Returns 1 if the scores must be computed first: j->hits keeps the passages, and the job
 * runs again then.  Returns 0 if the passages are ordered; -1 with j->problem. */
int rag_rank(struct rag_job *j, const struct rag_query *q, int top_k, double min_score, struct rag_hits *hits);
/* The reranker that ordered the passages; NULL: none did. */
const char *rag_ranked_by(const struct rag_job *j);
/* dirty: there may be chunks without vectors */
struct rag_index { int dirty, running; uint64_t retry_ns; };

/* ---- service.c, for embed.c ---- */
struct rag_index *rag_index_of(struct server *s);
/* The list of jobs whose vectors or scores are to be computed or are being computed.  round: the
 * round of the job whose text was sent last; stopped: no more texts are sent. */
struct rag_computing { struct rag_job *first; uint64_t round; int stopped; };
struct rag_computing *rag_computing_of(struct server *s);
/* Insert the job into a list that is ordered by rounds, of which `current` has begun.  A round has
 * one search and one other job of each tenant, so a tenant with many jobs delays only its own. */
void rag_insert(struct rag_job **list, struct rag_job *j, uint64_t current);
struct rag_job *rag_job_internal(struct server *s, enum rag_lane lane,
                                 void (*run)(struct rag_job *j, struct rag_store *r));
void rag_job_push(struct rag_job *j);                   /* queue the job again, without regard to limits */
struct rag_vectors *rag_vectors_of(struct server *s);

json_t *rag_document_object(struct rag_job *j, const struct rag_document *d);
void rag_run_add(struct rag_job *j, struct rag_store *r);
void rag_run_upload(struct rag_job *j, struct rag_store *r);
void rag_run_list(struct rag_job *j, struct rag_store *r);
void rag_run_get(struct rag_job *j, struct rag_store *r);
/* most bytes of text in the answer of rag_run_text() */
enum { RAG_TEXT = 4 << 20 };
void rag_run_text(struct rag_job *j, struct rag_store *r);
void rag_run_delete(struct rag_job *j, struct rag_store *r);
void rag_run_collections(struct rag_job *j, struct rag_store *r);
void rag_run_drop(struct rag_job *j, struct rag_store *r);
void rag_run_stats(struct rag_job *j, struct rag_store *r);
void rag_run_search(struct rag_job *j, struct rag_store *r);
void rag_run_context(struct rag_job *j, struct rag_store *r);

#endif
