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
    /* [max_seqs] items of a pass and their requests; requests with drafts in this step, and the
     * lengths of these */
    struct batch_item *items; struct request **batched, **drafting; int *length; int n_drafting;
    /* [max_seqs][vocab_size] of the draft model; [vocab_size] of the main model */
    float *logits, *row;
    /* Of a predictor (engine_predictor.c), of hidden_size each: [max_tokens] final states of the
     * main model's last step; [max_tokens] states that a pass reads; [max_seqs] the predictor's own
     * state after the last token of each draft.  NULL: the draft model is none. */
    float *rows, *states, *own;
    /* time of a pass that adds a token to each draft; 0: unknown */
    float pass_ns;
    uint64_t spent_ns;                  /* time in passes before this step */
};

/* Reserve blocks for n_tokens tokens of r, unshared where new ones are written.  -1: none are free,
 * or the model has failed. */
int draft_reserve(struct engine *g, struct request *r, int n_tokens);
/* Run a pass of n items and append a token to each draft that has a row in it.  0: n is 0, or the
 * model has failed. */
int draft_pass(struct engine *g, int n);

/* ---- engine_predictor.c ---- */
int predictor_open(struct engine *g, struct draft_model *d, struct err *e);
void predictor_close(struct draft_model *d);
size_t predictor_bytes(const struct engine *g);
/* Add the states that the main model has computed for r since the last call, as far as the tokens
 * after them are known, to the pass of *n items and *used tokens; runs it when it is full.  length:
 * of r's draft, 0: none. */
void predictor_feed(struct engine *g, struct request *r, int length, int *n, int *used);
/* Keep the keys and values of r as a prefix, and forget its states. */
void predictor_release(struct engine *g, struct request *r);

#endif
