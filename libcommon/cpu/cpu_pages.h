/* cpu_pages.h - attention to the pages of a context that may matter most to a token. */
#ifndef ZSE_CPU_CPU_PAGES_H
#define ZSE_CPU_CPU_PAGES_H

#include "libcommon/cpu/internal.h"

/* The bounds of a page for KV head `head` of n_heads.  offset: of the layer's bounds in the KV
 * block; at: their address. */
struct page_place { int head, n_heads, head_dim; size_t offset; uint8_t *at; };

/* Let layers without a window attend to `pages` pages, a multiple of 4.  max_len: tokens of the
 * longest possible context. */
int pages_open(struct core *k, int pages, int64_t max_len, struct err *e);
void pages_close(struct core *k);
/* Compute the bounds of a page from its 16 keys, stored as `type`, with scales at keys + scales if
 * it is packed.  is_rotated: the keys are rotated by hadamard_rotate(). */
void pages_bound(const struct page_place *p, const uint8_t *keys, size_t scales, enum kv_type type, int is_rotated);
/* Whether the token at pos attends to chosen pages instead of all of them.  The answer is the same
 * for all tokens of an aligned run of KV_TAIL_STEP tokens, unless it->exact_until lies within the
 * run. */
int pages_apply(const struct core *k, const struct batch_item *it, int pos);
/* Choose the pages for the one token of *a, whose `group` heads have their queries in a->q, and let
 * *a attend to them.  The tables stay valid until the thread's next call. */
void pages_choose(const struct core *k, const struct page_place *p, const struct batch_item *it, int group,
                  int is_rotated, struct attn *a, int thread);

#endif
