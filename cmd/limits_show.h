/* limits_show.h - what limits_measure found, as text and as JSON: for zse-bench limits and
 * zse-hardware --measure. */
#ifndef ZSE_CMD_LIMITS_SHOW_H
#define ZSE_CMD_LIMITS_SHOW_H

#include <jansson.h>

#include "libcommon/hw/limits.h"

json_t *limits_json(const struct limits *l);
void limits_print(const struct limits *l, const char *file);        /* file: whose disk was read, or NULL */

#endif
