/* tokenizer_source.h - the tokenizer of any kind of model, ready to use. */
#ifndef ZSE_CONVERT_TOKENIZER_SOURCE_H
#define ZSE_CONVERT_TOKENIZER_SOURCE_H

#include <stddef.h>

#include "libcommon/base/err.h"
#include "libcommon/import/source.h"

/* 1: *blob (the caller frees it) is the compiled tokenizer of s; 0: s has none; -1 on failure. */
int tokenizer_from_source(const struct source *s, void **blob, size_t *size, struct err *e);

/* Compile the tokenizer at path: a .zse, a GGUF file (also one that contains only a vocabulary), a
 * folder with tokenizer.json, tokenizer.model, or vocab.json and merges.txt, or a file
 * tokenizer.json or tokenizer.model itself.  Returns 0; -1 with *e, also if there is no
 * tokenizer. */
int tokenizer_from_path(const char *path, void **blob, size_t *size, struct err *e);

#endif
