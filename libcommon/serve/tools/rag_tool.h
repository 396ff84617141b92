/* rag_tool.h - the tool rag_search, with which models search the documents of /api/rag.  It runs in
 * the threads of the documents, not in those of the toolbox. */
#ifndef ZSE_SERVE_TOOLS_RAG_TOOL_H
#define ZSE_SERVE_TOOLS_RAG_TOOL_H

#include "libcommon/serve/internal.h"
#include "libcommon/tools/native.h"

extern const struct native_tool rag_tool;       /* its member run is NULL */
/* Start searching the documents of the record's owner.  Unless the server stops first, the loop
 * later calls `done` with a malloc'd text, which `done` must free, or with NULL and an error.
 * Returns the search, which rag_cancel() accepts until then; NULL with *e. */
void *rag_tool_start(struct server *s, const struct access_record *record, const json_t *arguments,
                   void (*done)(void *user, char *text, const struct err *e), void *user, struct err *e);

#endif
