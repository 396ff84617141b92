/* limits_show.h - the results of limits_measure as text and as JSON, for zse-bench limits and
 * zse-hardware --measure. */
#ifndef ZSE_CMD_LIMITS_SHOW_H
#define ZSE_CMD_LIMITS_SHOW_H

#include <jansson.h>

#include "libcommon/hw/limits.h"

json_t *limits_json(const struct roofline *l);
void limits_print(const struct roofline *l, const char *file);        /* file: on the disk that was measured, or NULL */

#endif
