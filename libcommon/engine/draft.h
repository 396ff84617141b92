/* draft.h - drafts: guesses of the next tokens of a sequence.  One step of the model checks all
 * tokens of a draft (engine_draft.c), so a drafter decides how fast an answer comes, never which
 * answer comes. */
#ifndef ZSE_ENGINE_DRAFT_H
#define ZSE_ENGINE_DRAFT_H

#include <stdint.h>

enum {
    DRAFT_MOST = 15,        /* tokens of a draft: with the last token of the answer they are a step of 16 */
    /* the evidence for a draft; 0 to 3: more and more equal tokens before it */
    GRADE_RESUMED = 4,      /* a copy goes on behind an edit */
    GRADE_EDIT,             /* an edit may be over */
    GRADE_PREDICTED,        /* the beginning of the predicted tokens */
    GRADE_MODEL,            /* by the draft model */
    DRAFT_GRADES,
};

struct draft {
    int32_t token[DRAFT_MOST]; int n;
    int grade;
    int predicted;          /* it comes from the predicted tokens */
};

struct drafter {
    const char *name;       /* as --spec says it */
    /* The state of one sequence.  predicted [n]: tokens that the answer is expected to have,
     * borrowed until close; n may be 0.  NULL: no memory */
    void *(*open)(const int32_t *predicted, int n);
    /* Guess the tokens after ids [0, n_ids), at most `most` <= DRAFT_MOST; d->n 0: no guess.  ids
     * are those of the call before, and at least one more. */
    void (*guess)(void *state, const int32_t *ids, int n_ids, int most, struct draft *d);
    void (*close)(void *state);         /* NULL is fine */
};

/* The drafts of one request. */
enum draft_use {
    DRAFT_DEFAULT,                      /* as the engine's options say */
    DRAFT_OFF,
    DRAFT_ON,                           /* by the engine's draft model or drafter, else drafter_ngram */
    DRAFT_NGRAM,                        /* by its drafter, else drafter_ngram */
    DRAFT_MODEL,                        /* by its draft model; refused if it has none */
};
struct draft_params {
    enum draft_use use;
    int most;                           /* tokens of a draft, 1 to DRAFT_MOST; 0: DRAFT_MOST */
    /* tokens that the answer is expected to have; copied.  With DRAFT_DEFAULT and some of them the
     * request has drafts, whatever the options say */
    const int32_t *predicted; int n_predicted;
};

/* Guesses that the tokens behind the longest earlier occurrence of the last ones (at least 3), in
 * the predicted tokens, the prompt or the answer, follow again, also behind an edit.  Takes 6 bytes
 * a token, and 64 kB. */
extern const struct drafter drafter_ngram;

#endif
