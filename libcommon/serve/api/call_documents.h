/* call_documents.h - the documents of a chat request ("rag"): passages found for its last question
 * go into the prompt, marked as data, and into the answer as citations. */
#ifndef ZSE_SERVE_API_CALL_DOCUMENTS_H
#define ZSE_SERVE_API_CALL_DOCUMENTS_H

#include <jansson.h>

#include "libcommon/http/buf.h"
#include "libcommon/http/problem.h"

struct call;

int documents_wanted(const struct call *c);
/* Start the search.  Returns 0; -1 with *pr.  The event loop calls `then` when the search has
 * ended; if it failed, c->problem is set. */
int documents_ask(struct call *c, void (*then)(struct call *c), struct problem *pr);
/* Insert the passages before the last question of c->conversation.  Any thread.  0, or -1 with
 * *pr. */
int documents_insert(struct call *c, struct problem *pr);
/* Append ,"citations":[...],"rag":{...} if the request asked for documents. */
void documents_json(const struct call *c, struct buf *out);

#endif
