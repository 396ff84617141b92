/* template_source.h - find a model's chat templates: chat_template.jinja,
 * additional_chat_templates/NAME.jinja, tokenizer_config.json (one text or a list of named
 * ones), chat_template.json, a GGUF's tokenizer.chat_template, a .zse's own JSON. */
#ifndef ZSE_CONVERT_TEMPLATE_SOURCE_H
#define ZSE_CONVERT_TEMPLATE_SOURCE_H

#include <jansson.h>

#include "libcommon/base/err.h"
#include "libcommon/import/source.h"

/* All templates of a source: {"default": text, "tool_use": text ...}, empty if there are none.
 * New reference; NULL on failure.  *bos, *eos: texts of these tokens according to the tokenizer's
 * configuration, malloc'd; NULL if it has none. */
json_t *template_collect(const struct source *s, char **bos, char **eos, struct err *e);

/* The template of the .zse, GGUF file or folder at path; name NULL: the default one.  For a model
 * without templates *text is NULL and the result 0; an unknown name is an error.  The caller frees
 * all three; *bos, *eos NULL: there are none. */
int template_from_path(const char *path, const char *name, char **text, char **bos, char **eos, struct err *e);

#endif
