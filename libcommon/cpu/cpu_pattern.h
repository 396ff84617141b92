/* cpu_pattern.h - attention by a pattern of blocks: keys that a query does not see are not read. */
#ifndef ZSE_CPU_CPU_PATTERN_H
#define ZSE_CPU_CPU_PATTERN_H

#include "libcommon/cpu/internal.h"

/* Let layers without a window attend by this pattern.  n_blocks: KV blocks of the longest
 * context. */
int pattern_open(struct core *k, const struct sparse_pattern *p, int n_blocks, struct err *e);
void pattern_close(struct core *k);
/* Let *a, whose tokens are in one unit of the pattern, attend to what they see of the item.  The
 * tables stay valid until the thread's next call. */
void pattern_attend(const struct core *k, const struct batch_item *it, struct attn *a, int thread);

#endif
