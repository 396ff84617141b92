/* roofline_show.h - what roofline_measure found, as text and as JSON: for zse-bench limits and
 * zse-hardware --measure. */
#ifndef ZSE_CMD_ROOFLINE_SHOW_H
#define ZSE_CMD_ROOFLINE_SHOW_H

#include <jansson.h>

#include "libcommon/hw/roofline.h"

json_t *roofline_json(const struct roofline *l);
void roofline_print(const struct roofline *l, const char *file);        /* file: whose disk was read, or NULL */

#endif
