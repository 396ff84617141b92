/* roofline_show.h - the results of roofline_measure as text and as JSON, for zse-bench limits and
 * zse-hardware --measure. */
#ifndef ZSE_CMD_ROOFLINE_SHOW_H
#define ZSE_CMD_ROOFLINE_SHOW_H

#include <jansson.h>

#include "libcommon/hw/roofline.h"

json_t *roofline_json(const struct roofline *l);
/* Print the results as text.  file: the file whose disk was measured, or NULL. */
void roofline_print(const struct roofline *l, const char *file);

#endif
