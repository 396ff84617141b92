/* sentence.h - the files of sentence-transformers beside a model: pooling, dense layers, prompts.
 *
 * modules.json lists the modules in order; each has a folder with its config.json, and dense layers
 * a model.safetensors whose tensors get the folder's name: "2_Dense.linear.weight". */
#ifndef ZSE_IMPORT_SENTENCE_H
#define ZSE_IMPORT_SENTENCE_H

#include <jansson.h>

#include "libcommon/base/err.h"
#include "libcommon/import/source.h"

/* Returns the folder of module i of modules.json if the module has weights; "" if it has none; NULL
 * after the last module.  Borrowed from list, which sentence_modules() made. */
const char *sentence_weights(const json_t *list, size_t i);
/* The folder of module i, "" for the model's own; NULL after the last. */
const char *sentence_folder(const json_t *list, size_t i);
/* Returns modules.json, after checking that its types are known and its folders are plain names.
 * NULL with *e on errors; NULL without an error and *found 0 if the source has no such file. */
json_t *sentence_modules(const struct source *s, int *found, struct err *e);
/* Returns 1 if the two texts of a pair get different token_type_ids, else 0.  They do in three
 * cases: tokenizer_config.json lists token_type_ids in model_input_names; it has no such list and
 * its tokenizer_class is not PreTrainedTokenizerFast; or the file is missing. */
int sentence_pair_types(const struct source *s);
/* The object zse_embedding of our configuration:
 *   pooling "mean" "last" "cls"   normalize   max_seq_length   prompts   default_prompt_name
 *   dense [{name, in, out, bias, activation}]
 * Reads the files of s that its small files list.  NULL with *e. */
json_t *sentence_describe(const struct source *s, const json_t *modules, struct err *e);

#endif
