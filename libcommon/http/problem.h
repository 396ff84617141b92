/* problem.h - the error of a request: an HTTP status, and the body that clients of OpenAI and of
 * Anthropic parse. */
#ifndef ZSE_HTTP_PROBLEM_H
#define ZSE_HTTP_PROBLEM_H

#include "libcommon/base/err.h"
#include "libcommon/http/buf.h"

struct problem {
    int status;                 /* 0: none */
    char param[96];             /* the field at fault; "": none */
    char code[48];              /* "context_length_exceeded"; "": none */
    char message[600];
};

/* Fill *p and return -1.  param and code may be NULL. */
int problem_set(struct problem *p, int status, const char *param, const char *code, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
/* 400 with the message of e about a field (NULL: the body); 503 if memory ran out.  -1. */
int problem_err(struct problem *p, const char *param, const char *code, const struct err *e);
int problem_nomem(struct problem *p);           /* 503, out of memory; -1 */
/* Append {"type":"error","error":{"message","type","param","code"},"detail"}; error.type follows
 * from the status. */
void problem_json(const struct problem *p, struct buf *out);
/* Append {"error": message}, which Ollama's clients read. */
void problem_text_json(const struct problem *p, struct buf *out);
/* the JSON to send if there is no memory for any other */
extern const char problem_unsaid[];

#endif
