/* registry.h - the registry of well-known models, with the fields of their config.json: sizes are
 * computed from these, never typed.
 *
 * The data is libcommon/plan/models.json, linked into the library: an array of
 *   id            on the hub, "Qwen/Qwen2.5-7B-Instruct"
 *   name, description, license, provider, categories (chat, instruct, code, reasoning), tags
 *   recommended   a good first choice of its size
 *   zse12         one of the 19 models in the list of ZSE 1.2
 *   zse_optimized marked there as converted and verified
 *   context       tokens that it was trained for, by its model card, where config.json allows more;
 *                 else absent
 *   config        the fields as config.json has them
 * Sources: the config.json and the model card of each model on huggingface.co. */
#ifndef ZSE_PLAN_REGISTRY_H
#define ZSE_PLAN_REGISTRY_H

#include <jansson.h>

#include "libcommon/base/err.h"

/* New reference to the array. */
json_t *registry_load(struct err *e);
/* The model of this id or name, in any case of letters; a unique part of an id is enough, and a
 * size like "7B" stands for the first model whose name ends in it.  Borrowed; NULL with *e (which
 * lists the candidates). */
const json_t *registry_find(const json_t *registry, const char *name, struct err *e);

/* The short name of a model: its family, a colon, and its size and variant, in lower case:
 * "qwen2.5:7b", "mistral-small3.2:24b", "qwen3:4b-2507".  Models whose name has no size have no
 * colon: "phi4". */
enum { REGISTRY_SHORT = 64 };
void registry_short_name(const json_t *m, char out[REGISTRY_SHORT]);
/* The model of this id, name or short name, in any case of letters; '-', '_' and ':' do not count.
 * Borrowed; NULL: none. */
const json_t *registry_exact(const json_t *registry, const char *name);

/* The first model whose short name begins with this word and a colon, ignoring case.  Borrowed;
 * NULL: none. */
const json_t *registry_family(const json_t *registry, const char *word);

/* By parameters: "tiny" < 1e9, "small" < 3e9, "medium" < 8e9, "large" < 13e9, "xlarge" < 34e9,
 * "xxl". */
const char *registry_size(double parameters);

#endif
