/* draft.h - drafts: guesses of the next tokens of a sequence.  One step of the model checks all
 * tokens of a draft (engine_draft.c), so a drafter decides how fast an answer comes, never which
 * answer comes. */
#ifndef ZSE_ENGINE_DRAFT_H
#define ZSE_ENGINE_DRAFT_H

#include <stdint.h>

enum {
    DRAFT_MOST = 15,        /* tokens of a draft: with the last token of the answer they are a step of 16 */
    DRAFT_GRADES = 4,       /* how much speaks for a draft: 0 the least, DRAFT_GRADES - 1 the most */
};

struct drafter {
    const char *name;       /* as --spec says it */
    void *(*open)(void);    /* the state of one sequence; NULL: no memory */
    /* Guess the tokens after ids [0, n_ids), at most n <= DRAFT_MOST: returns their number, and
     * sets *grade if there are any.  ids are those of the call before, and at least one more. */
    int (*guess)(void *state, const int32_t *ids, int n_ids, int32_t *out, int n, int *grade);
    void (*close)(void *state);         /* NULL is fine */
};

/* Guesses that the tokens behind the longest earlier occurrence of the last ones (at least 3), in
 * the prompt or in the answer, follow again.  Takes 4 bytes a token and 64 kB. */
extern const struct drafter drafter_ngram;

#endif
