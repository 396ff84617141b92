/* cpu_pages.h - attention to the pages of a context that may matter most to a token. */
#ifndef ZSE_CPU_CPU_PAGES_H
#define ZSE_CPU_CPU_PAGES_H

#include "libcommon/cpu/internal.h"

/* The summary of a page for KV head `head` of n_heads.  offset: of the layer's summaries in the KV
 * block; at: their address. */
struct page_place { int head, n_heads, head_dim; size_t offset; uint8_t *at; };

/* Let layers without a window attend to `pages` pages, a multiple of 4.  n_choices: the most
 * choices that are held at a time, at least one for each thread; max_len: tokens of the longest
 * possible context. */
int pages_open(struct core *k, int pages, int n_choices, int64_t max_len, struct err *e);
void pages_close(struct core *k);
/* Compute the summary of a page from its 16 keys, stored as `type`, with scales at keys + scales if
 * it is packed.  is_rotated: the keys are rotated by hadamard_rotate(). */
void pages_summarize(const struct page_place *p, const uint8_t *keys, size_t scales, enum kv_type type, int is_rotated);
/* Whether the token at pos attends to chosen pages instead of all of them.  The answer is the same
 * for all tokens of an aligned run of KV_TAIL_STEP tokens, unless it->exact_until lies within the
 * run. */
int pages_apply(const struct core *k, const struct batch_item *it, int pos);
/* The number of tokens that such a token attends to. */
int pages_length(const struct core *k, int pos);

/* A token at pos and a KV head choose in this order: pages_begin(); pages_score() for each of the
 * pages_ranges() ranges of pages, in any order or at once in several threads; pages_use().
 * choice: the index of the choice, below n_choices. */
int pages_ranges(int pos);
void pages_begin(const struct core *k, int choice, int pos);
/* Score a range for the token at a->pos, whose a->n_q_heads heads have their queries in a->q.  The
 * call that finishes the last range chooses. */
void pages_score(const struct core *k, const struct page_place *p, const struct batch_item *it, const struct attn *a,
                 int is_rotated, int range, int choice, int thread);
/* Let *a attend to the chosen pages, until the next pages_begin() of this choice. */
void pages_use(const struct core *k, int choice, struct attn *a);

#endif
