/* ollama_describe.h - a model as Ollama describes it, from the header of its file.  Any thread. */
#ifndef ZSE_SERVE_OLLAMA_OLLAMA_DESCRIBE_H
#define ZSE_SERVE_OLLAMA_OLLAMA_DESCRIBE_H

#include <stdint.h>

#include <jansson.h>

#include "libcommon/base/err.h"
#include "libcommon/format/zfile.h"

/* New references; NULL without memory.  head: the header's JSON; file NULL: the model is none of
 * ours. */
json_t *ollama_details(const json_t *head, const struct zfile *file);
json_t *ollama_info(const json_t *head, const struct zfile *file);
json_t *ollama_capabilities(const json_t *head);
const char *ollama_template(const json_t *head);        /* of chats; "": it has none */
/* 64 hexadecimal digits that stand for this version of a file.  Its contents are not read. */
json_t *ollama_digest(uint64_t dev, uint64_t ino, uint64_t bytes, int64_t modified_s);

/* The models of a folder of names: [{name, of, bytes, modified, digest, details}]; with a name that
 * one alone, with info, capabilities, template and config, too.  NULL with *e. */
json_t *ollama_store(const char *folder, const char *name, struct err *e);

#endif
