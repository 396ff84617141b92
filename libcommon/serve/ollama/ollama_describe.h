/* ollama_describe.h - describe a model in Ollama's terms, from the header of its file.  Any
 * thread. */
#ifndef ZSE_SERVE_OLLAMA_OLLAMA_DESCRIBE_H
#define ZSE_SERVE_OLLAMA_OLLAMA_DESCRIBE_H

#include <stdint.h>

#include <jansson.h>

#include "libcommon/base/err.h"
#include "libcommon/format/zfile.h"

/* New references; NULL without memory. head: the header's JSON; file NULL: the file is no .zse. */
json_t *ollama_details(const json_t *head, const struct zfile *file);
json_t *ollama_info(const json_t *head, const struct zfile *file);
json_t *ollama_capabilities(const json_t *head);
const char *ollama_template(const json_t *head);        /* template of chats; "": it has none */
/* Return 64 hexadecimal digits that identify this version of a file, without reading its
 * contents. */
json_t *ollama_digest(uint64_t dev, uint64_t ino, uint64_t bytes, int64_t modified_s);

/* List the models of a folder: [{name, of, bytes, modified, digest, details}]; with a name only
 * that model, and also its info, capabilities, template and config.  NULL with *e. */
json_t *ollama_store(const char *folder, const char *name, struct err *e);

#endif
