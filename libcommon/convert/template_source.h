/* template_source.h - find a model's chat templates: in chat_template.jinja,
 * additional_chat_templates/NAME.jinja, tokenizer_config.json (a text, or a list of named texts),
 * chat_template.json, a GGUF's tokenizer.chat_template, or the JSON of a .zse. */
#ifndef ZSE_CONVERT_TEMPLATE_SOURCE_H
#define ZSE_CONVERT_TEMPLATE_SOURCE_H

#include <jansson.h>

#include "libcommon/base/err.h"
#include "libcommon/import/source.h"

/* Returns all templates of a source, {"default": text, "tool_use": text ...}, empty if there are
 * none: a new reference, or NULL with *e.  *bos, *eos: the texts of these tokens according to the
 * tokenizer's configuration, malloc'd; NULL if it does not name them. */
json_t *template_collect(const struct source *s, char **bos, char **eos, struct err *e);

/* Read the template of this name (NULL: the default one) from the .zse, GGUF file or folder at
 * path.  Returns 0; -1 with *e, also for an unknown name.  If the model has no templates, it
 * returns 0 with *text NULL.  *bos and *eos are NULL if the model does not name these tokens.  The
 * caller frees all three. */
int template_from_path(const char *path, const char *name, char **text, char **bos, char **eos, struct err *e);

#endif
