/* roofline_show.h - the results of roofline_measure as text and as JSON, for zse-bench limits and
 * zse-hardware --measure; and read from that JSON again. */
#ifndef ZSE_CMD_ROOFLINE_SHOW_H
#define ZSE_CMD_ROOFLINE_SHOW_H

#include <jansson.h>

#include "libcommon/hw/roofline.h"

json_t *roofline_json(const struct roofline *l);
/* Read the limits of all threads that `what` (ROOFLINE_ bits) names from a file with the JSON of
 * zse-bench limits.  ERR_FORMAT if one is missing, or if they are not those of n_threads (0: one
 * thread for each processor). */
int roofline_read(struct roofline *l, const char *path, unsigned what, int n_threads, struct err *e);
/* Print the results as text.  file: the file whose disk was measured, or NULL. */
void roofline_print(const struct roofline *l, const char *file);

#endif
