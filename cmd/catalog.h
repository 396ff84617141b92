/* catalog.h - the registry and the hub as JSON, for zse-serve. */
#ifndef ZSE_CMD_CATALOG_H
#define ZSE_CMD_CATALOG_H

#include <jansson.h>

#include "libcommon/base/err.h"

/* New references; NULL with *e.  Any thread.
 * The registry: [{model_id, name, description, parameters, size, vram: {fp16_gb, int8_gb, int4_gb},
 * supported, ...}] */
json_t *catalog_registry(struct err *e);
/* {count, query, models: [{id, downloads, likes, license, compatible, reason, ...}]} */
json_t *catalog_search(const char *words, int limit, struct err *e);
/* {model_id, compatible, architecture, issues, recommendations, size_info}; ERR_FORMAT: id is no
 * name on the hub. */
json_t *catalog_check(const char *id, struct err *e);

#endif
