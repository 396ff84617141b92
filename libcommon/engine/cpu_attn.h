/* cpu_attn.h - attention of one layer: q and k norms, rotation, the KV cache, softmax. */
#ifndef ZSE_ENGINE_CPU_ATTN_H
#define ZSE_ENGINE_CPU_ATTN_H

#include "libcommon/engine/cpu_core.h"

enum { ATTN_CHUNK = 32 };       /* queries of one job: enough to reuse a block of keys, few enough to share a prompt among threads */

/* From q, key, value of the core to its att. */
void attn_run(struct core *k, const struct step *s, const struct layer *l, int index);

#endif
