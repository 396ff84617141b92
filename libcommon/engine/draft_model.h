/* draft_model.h - private to engine_draft_model.c and engine_predictor.c: the model that makes
 * drafts. */
#ifndef ZSE_ENGINE_DRAFT_MODEL_H
#define ZSE_ENGINE_DRAFT_MODEL_H

#include "libcommon/engine/internal.h"

struct draft_model {
    const struct model *m;              /* borrowed, or &part */
    struct model part;                  /* the first layers of the main model */
    void *b;
    struct kv_pool *pool;
    int max_len, failed;
    /* [max_seqs] each: the items of a pass and their requests; the requests with drafts in this
     * step and the lengths of these drafts */
    struct batch_item *items; struct request **batched, **drafting; int *length; int n_drafting;
    /* logits of the draft model [max_seqs][vocab_size]; a row of the main model [vocab_size] */
    float *logits, *row;
    /* For a predictor (engine_predictor.c), else NULL.  rows [max_tokens][hidden_size]: final
     * states of the main model's last step; states [max_tokens][hidden_size]: input of a pass;
     * own [max_seqs][hidden_size]: the predictor's own state after the last token of each draft. */
    float *rows, *states, *own;
    /* time of a pass that adds a token to each draft; 0: unknown */
    float pass_ns;
    uint64_t spent_ns;                  /* time in passes before this step */
};

/* Reserve blocks for n_tokens tokens of r; the block that is written next is copied if it is
 * shared. -1: no block is free, or the model has failed. */
int draft_reserve(struct engine *g, struct request *r, int n_tokens);
/* Run a pass of n items and append a token to each draft that has a row of logits in it.  0: n
 * is 0, or the model has failed. */
int draft_pass(struct engine *g, int n);

/* ---- engine_predictor.c ---- */
int predictor_open(struct engine *g, struct draft_model *d, struct err *e);
void predictor_close(struct draft_model *d);
size_t predictor_bytes(const struct engine *g);
/* Add the states that the main model has computed for r to the pass of *n items and *used tokens,
 * as far as the tokens after them are known; runs it when it is full.  length: of r's draft, 0:
 * none, so that states may wait. */
void predictor_feed(struct engine *g, struct request *r, int length, int n_decoding, int *n, int *used);
/* Keep the keys and values of r as a prefix, and forget its states. */
void predictor_release(struct engine *g, struct request *r);

#endif
