/* engine_text.h - an answer's ids to text that may be shown: no half characters, special tokens
 * only where they are asked for, nothing that could still turn out to be the beginning of a stop
 * string. */
#ifndef ZSE_ENGINE_ENGINE_TEXT_H
#define ZSE_ENGINE_ENGINE_TEXT_H

#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"
#include "libcommon/token/tokenizer.h"

struct answer_text {
    const struct tokenizer *t;          /* borrowed; NULL: there is no text */
    struct detok detok;
    char **stop; size_t *stop_size; int n_stop;         /* owned */
    int no_stops;                       /* set by the caller: stop strings are not looked for in what is held */
    char *held; size_t n_held, room, given;             /* owned; its first `given` bytes went out last time */
};

/* Refuses stop strings that are empty or not UTF-8, and any without a tokenizer.  In place;
 * released also after a failure. */
int answer_text_init(struct answer_text *a, const struct tokenizer *t, int keep_special, const char *const *stop,
                     int n_stop, struct err *e);
/* The text that became certain with id (-1: none); last: no more follows, give out everything.
 * *text is borrowed until the next call.  *stopped: number (from 1) of the stop string that is
 * complete; the text ends before it.  Allocates only when a token is longer than any before. */
int answer_text_push(struct answer_text *a, int32_t id, int last, const char **text, size_t *size, int *stopped,
                     struct err *e);
void answer_text_release(struct answer_text *a);

#endif
