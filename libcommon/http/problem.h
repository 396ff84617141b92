/* problem.h - what is wrong with a request: an HTTP status and what OpenAI's clients read out of
 * the body. */
#ifndef ZSE_HTTP_PROBLEM_H
#define ZSE_HTTP_PROBLEM_H

#include "libcommon/base/err.h"
#include "libcommon/http/buf.h"

struct problem {
    int status;                 /* 0: none */
    char param[96];             /* the field that it is about, "" if none */
    char code[48];              /* "context_length_exceeded", "" if none */
    char message[600];
};

/* Fill *p and return -1.  param and code may be NULL. */
int problem_set(struct problem *p, int status, const char *param, const char *code, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
/* What e says of a field (NULL: of the body); where memory ran out it is nobody's fault. */
int problem_err(struct problem *p, const char *param, const char *code, const struct err *e);
int problem_nomem(struct problem *p);           /* 503, out of memory; -1 */
/* {"type":"error","error":{"message","type","param","code"},"detail"}: what clients of OpenAI
 * and of Anthropic read; error.type follows from the status. */
void problem_json(const struct problem *p, struct buf *out);
extern const char problem_unsaid[];               /* such a one where there is no memory to write it */
const char *problem_type(int status);           /* "invalid_request_error" */

#endif
