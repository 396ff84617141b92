/* sentence.h - the files of sentence-transformers beside a model: pooling, dense layers, prompts.
 *
 * modules.json lists the modules in order; each has a folder with its config.json, and dense layers
 * a model.safetensors whose tensors get the folder's name: "2_Dense.linear.weight". */
#ifndef ZSE_IMPORT_SENTENCE_H
#define ZSE_IMPORT_SENTENCE_H

#include <jansson.h>

#include "libcommon/base/err.h"
#include "libcommon/import/source.h"

/* The module's folder if it has weights, for module i of modules.json; "" if it has none; NULL
 * after the last.  Borrowed from list, which sentence_modules() made. */
const char *sentence_weights(const json_t *list, size_t i);
/* The folder of module i, "" for the model's own; NULL after the last. */
const char *sentence_folder(const json_t *list, size_t i);
/* modules.json, checked: known types, folders that are plain names.  NULL with *e, or (no error,
 * *found 0) where the source has none. */
json_t *sentence_modules(const struct source *s, int *found, struct err *e);
/* 1 if the two texts of a pair get different token_type_ids: those are in model_input_names of
 * tokenizer_config.json, or it has no such list and its tokenizer_class is not
 * PreTrainedTokenizerFast.  1 also if that file is missing. */
int sentence_pair_types(const struct source *s);
/* The object zse_embedding of our configuration:
 *   pooling "mean" "last" "cls"   normalize   max_seq_length   prompts   default_prompt_name
 *   dense [{name, in, out, bias, activation}]
 * Reads the files of s that its small files list.  NULL with *e. */
json_t *sentence_describe(const struct source *s, const json_t *modules, struct err *e);

#endif
