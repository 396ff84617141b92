/* draft_model.h - private to engine_draft_model.c, engine_predictor.c and engine_medusa.c: the
 * model or the heads that make drafts. */
#ifndef ZSE_ENGINE_DRAFT_MODEL_H
#define ZSE_ENGINE_DRAFT_MODEL_H

#include "libcommon/engine/internal.h"

struct medusa_run;

struct draft_model {
    const struct model *m;              /* borrowed, or &part; NULL: heads of the main model draft */
    struct model part;                  /* the first layers of the main model */
    void *b;
    struct kv_pool *pool;
    int max_len, failed, vocab_size;
    int most;                           /* most tokens of a draft */
    /* [max_seqs] each: the items of a pass and their requests; the requests with drafts in this
     * step and the lengths of these drafts */
    struct batch_item *items; struct request **batched, **drafting; int *length; int n_drafting;
    /* [DRAFT_ROWS][vocab_size] with engine_options.draft_distribution, else NULL: the distributions
     * that the tokens of this step's drafts were drawn from */
    float *proposals; int n_proposals;
    /* logits of the draft model [max_seqs][vocab_size]; a row of the main model [vocab_size] */
    float *logits, *row;
    /* For a predictor (engine_predictor.c) or heads, else NULL: rows [max_tokens][hidden_size],
     * final states of the main model's last step. */
    float *rows;
    /* For a predictor, else NULL.  states [max_tokens][hidden_size]: input of a pass; own
     * [max_seqs][hidden_size]: the predictor's own state after the last token of each draft. */
    float *states, *own;
    /* EAGLE heads that are the predictor (borrowed); NULL: the predictor is the model's own
     * layer */
    const struct eagle *eagle;
    struct disk *disk;                  /* a predictor's prefixes on disk; NULL: none */
    struct medusa_run *heads;           /* NULL: a model */
    /* time of a pass, or of a head, that adds a token to each draft; 0: unknown */
    float pass_ns;
    uint64_t spent_ns;                  /* time in passes before this step */
};

/* Reserve blocks for n_tokens tokens of r; the block that is written next is copied if it is
 * shared.  Returns 0; -1 if no block is free or the draft model has failed. */
int draft_reserve(struct engine *g, struct request *r, int n_tokens);
/* Run a pass of n items and append a token to each draft that has a row of logits in the pass.
 * Returns 1; 0 if n is 0 or the draft model has failed. */
int draft_pass(struct engine *g, int n);
/* Append the next token of r's draft, from logits of the draft model. */
void draft_append(struct engine *g, struct request *r, const float *logits);

/* ---- engine_predictor.c ---- */
int predictor_open(struct engine *g, struct draft_model *d, struct err *e);
void predictor_close(struct draft_model *d);
size_t predictor_bytes(const struct engine *g);
/* Add states that the main model has computed for r to the pass, which has *n items and *used
 * tokens so far.  A state is added when the token after it is known.  Runs the pass when it is
 * full. length: length of r's draft; 0: r has no draft, and its states may wait. */
void predictor_feed(struct engine *g, struct request *r, int length, int n_decoding, int *n, int *used);
/* Keep the keys and values of r as a prefix, and forget its states. */
void predictor_release(struct engine *g, struct request *r);

/* ---- engine_predictor_disk.c ---- */
/* Queue the predictor's keys and values of r, which ends or is preempted, to be saved.  All of them
 * are made of states from ids[0] on. */
void predictor_save(struct engine *g, const struct request *r);
/* Read up to `known` of the first entries of r from the folder into the predictor's prefix tree;
 * done once per request. */
void predictor_load(struct engine *g, struct request *r, int known);

/* ---- engine_medusa.c ---- */
/* Open d->heads and d->rows. */
int medusa_run_open(struct engine *g, struct draft_model *d, const struct engine_options *o, struct err *e);
void medusa_run_close(struct medusa_run *h);            /* NULL is fine */
size_t medusa_run_bytes(const struct medusa_run *h);
/* Add r to the requests that draft in this step, if length > 0 and r's state is known.  length:
 * number of tokens of its draft. */
void medusa_feed(struct engine *g, struct request *r, int length);
/* Make the drafts.  Returns the number of heads that were computed. */
int medusa_guess(struct engine *g);

#endif
