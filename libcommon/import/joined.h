/* joined.h - several tensors of a source, stacked by rows and seen as one: "x.{q,k,v}_proj.weight"
 * is x.q_proj.weight, x.k_proj.weight and x.v_proj.weight. */
#ifndef ZSE_IMPORT_JOINED_H
#define ZSE_IMPORT_JOINED_H

#include "libcommon/import/source.h"

struct joined;                                  /* one joined tensor; a list */

/* Returns the tensor of this name, which is made at the first call and lives until joined_free().
 * NULL if a part is missing, or if the parts differ in more than their outermost dimension. */
const struct source_tensor *joined_find(const struct source *s, struct joined **list, const char *name);
void joined_free(struct joined *list);

#endif
