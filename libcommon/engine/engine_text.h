/* engine_text.h - turn the ids of an answer into text that may be shown: no incomplete characters,
 * special tokens only if they are wanted, and nothing that could still become a stop string. */
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
    /* set by the caller: held text is not searched for stop strings */
    int no_stops;
    /* owned; the first `given` bytes were returned by the last call */
    char *held; size_t n_held, room, given;
};

/* Initialize *a, which must be released even if this fails.  Returns 0; -1 with *e.  Stop strings
 * that are empty or not UTF-8 are refused, and without a tokenizer all stop strings are. */
int answer_text_init(struct answer_text *a, const struct tokenizer *t, int keep_special, const char *const *stop,
                     int n_stop, struct err *e);
/* Append id (-1: no token) and return the text that became final; with `last` all text that is
 * left.  *text is borrowed until the next call.  *stopped: number (from 1) of the stop string
 * that was completed (the text ends before it), or 0.  Allocates only for a token longer than
 * any before. */
int answer_text_push(struct answer_text *a, int32_t id, int last, const char **text, size_t *size, int *stopped,
                     struct err *e);
void answer_text_release(struct answer_text *a);

#endif
