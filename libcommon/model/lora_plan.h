/* lora_plan.h - the memory that a LoRA adapter will take, before it is added to a model. */
#ifndef ZSE_MODEL_LORA_PLAN_H
#define ZSE_MODEL_LORA_PLAN_H

#include <stdint.h>

#include "libcommon/base/err.h"
#include "libcommon/base/file.h"

/* The memory for one or more adapters: the bytes of their matrices, and the largest rank.  scaled:
 * the model may have scaled channels, so that matrices are kept as f32. */
struct lora_plan { int scaled; uint64_t bytes; int rank; };

/* Add the adapter in `folder` to the plan.  -1 with *e: it cannot be read. */
int lora_plan_add(struct lora_plan *p, const char *folder, const struct map_guard *guard, struct err *e);

#endif
