/* model_files.h - the model files in the server's folder. */
#ifndef ZSE_SERVE_MODEL_FILES_H
#define ZSE_SERVE_MODEL_FILES_H

#include <jansson.h>

#include "libcommon/base/err.h"

enum { MAX_MODEL_FILES = 1000 };
/* List the models of the folder and of its subfolders, by name, without hidden files: {"folder",
 * "free_bytes", "files": [{"name", "path", "kind": zse, gguf or folder, "bytes", "modified"}]}.
 * New reference.  A folder that does not exist has no files. */
json_t *model_files(const char *folder, struct err *e);
/* Delete a .zse or .gguf file that model_files() lists by this name.  NULL with *e; ERR_FORMAT:
 * there is none. */
json_t *model_file_remove(const char *folder, const char *name, struct err *e);

#endif
