/* json_path.h - the value at a path of a JSON value.
 *
 *   data.items[0].name      fields and elements; [-1] is the last element
 *   data["a.b"][*].id       a quoted name; [*]: the list of what follows for every element
 *   $.data                  a leading $ is the value itself */
#ifndef ZSE_TOOLS_JSON_PATH_H
#define ZSE_TOOLS_JSON_PATH_H

#include <jansson.h>

#include "libcommon/base/err.h"

enum { JSON_PATH_MAX_STEPS = 64 };

/* New reference; NULL with *e: the path is malformed, or there is nothing at it. */
json_t *json_path_get(json_t *v, const char *path, struct err *e);

#endif
