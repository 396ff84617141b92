/* draft.h - drafts: guesses of the next tokens of a sequence.  One step of the model checks all
 * tokens of a draft (engine_draft.c), so a drafter affects the speed of an answer, never its
 * tokens. */
#ifndef ZSE_ENGINE_DRAFT_H
#define ZSE_ENGINE_DRAFT_H

#include <stdint.h>

enum {
    /* most tokens of a draft; with the last token of the answer they make a step of 16 tokens */
    DRAFT_MOST = 15,
    /* The evidence for a draft.  Grades 0 to 3 are higher if more tokens before the draft match. */
    GRADE_RESUMED = 4,      /* an edit has ended: the answer copies its source again */
    GRADE_EDIT,             /* a guess that the current edit ends here */
    GRADE_PREDICTED,        /* the answer is expected to start like the predicted tokens */
    GRADE_MODEL,            /* made by the draft model */
    DRAFT_GRADES,
};

struct draft {
    int32_t token[DRAFT_MOST]; int n;
    int grade;
    int predicted;          /* 1: the draft was copied from the predicted tokens */
};

struct drafter {
    const char *name;       /* its name for --spec */
    /* Make the state of one sequence.  predicted [n]: tokens that the answer is expected to have,
     * borrowed until close; n may be 0.  Returns NULL if memory ran out. */
    void *(*open)(const int32_t *predicted, int n);
    /* Guess at most `most` <= DRAFT_MOST tokens after ids [0, n_ids), and store them in *d; d->n 0:
     * no guess.  ids must be equal to those of the previous call or extend them. */
    void (*guess)(void *state, const int32_t *ids, int n_ids, int most, struct draft *d);
    void (*close)(void *state);         /* NULL is fine */
};

/* The drafts of one request. */
enum draft_use {
    DRAFT_DEFAULT,                      /* as in the engine's options */
    DRAFT_OFF,
    /* use the engine's draft model and its drafter, as far as the engine has them; if it has
     * neither, drafter_ngram */
    DRAFT_ON,
    DRAFT_NGRAM, /* use only the engine's drafter; if it has none, drafter_ngram */
    /* use only the engine's draft model; refused if it has none */
    DRAFT_MODEL,
};
struct draft_params {
    enum draft_use use;
    int most;                           /* tokens of a draft, 1 to DRAFT_MOST; 0: DRAFT_MOST */
    int same_tokens;                    /* 1: choose tokens as if engine_options.draft_distribution were 0 */
    /* Tokens that the answer is expected to have; copied.  If n_predicted > 0, DRAFT_DEFAULT
     * enables drafts even if the engine's options do not. */
    const int32_t *predicted; int n_predicted;
};

/* A drafter that looks for the longest earlier occurrence of the last tokens (at least 3) in the
 * predicted tokens, the prompt and the answer, and guesses that the text continues as it did there;
 * it also follows a copied text across an edit.  Takes 64 kB, and 6 bytes per token. */
extern const struct drafter drafter_ngram;

#endif
