/* round.h - a round of an answer with tools: the calls of the model, the results of the tools, and
 * the messages with which the next round begins.
 *
 * A model calls tools, they run, and the model continues with their results, until it answers
 * without a call.  All loops keep to the same bounds. */
#ifndef ZSE_TOOLS_ROUND_H
#define ZSE_TOOLS_ROUND_H

#include <stddef.h>

#include <jansson.h>

enum {
    ROUNDS_DEFAULT = 8, ROUNDS_MAX = 32,                /* rounds of one answer */
    ROUND_CALLS_MAX = 64,                               /* calls in a round */
    ROUND_RESULT_MAX = 64 << 10,                        /* bytes of a result; the rest is cut off */
};

/* The content of a tool's message: the result, or the message of an error, cut to
 * ROUND_RESULT_MAX.  malloc'd, *n bytes; NULL without memory. */
char *round_content(const char *text, size_t size, int is_error, size_t *n);

struct round_call { const char *id, *name, *arguments; size_t size; };      /* arguments: JSON text */
/* The message of a model that calls tools, as OpenAI writes it; NULL without memory, or if a text
 * is not UTF-8. */
json_t *round_message(const char *text, size_t size, const struct round_call *call, int n);
/* The message with the result of a call, as OpenAI writes it; NULL without memory. */
json_t *round_result(const char *id, const char *text, size_t size, int is_error);

#endif
