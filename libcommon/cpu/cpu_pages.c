/* cpu_pages.c - attention to pages (backend_options.pages): layers without a window attend to the
 * first KV_SINKS tokens, to the newest tokens from kv_tail_from() on, and of the KV blocks between
 * them, the pages, to those that the queries may attend to most (arXiv:2406.10774).
 *
 * The summary of a page is the mean of its keys and half of their range in each channel, rounded to
 * int8 with one scale.  It is computed from the stored keys when the last key of the block is
 * stored, and kept at the end of the KV block.  The score of a page for a query q is the sum over
 * channels of q * mean + SPREAD * |q| * half: the product with the mean key, and a part of what the
 * best key of the page may add to it.  (All of what it may add is a bound, but most bounds are far
 * from the products, and the pages with the largest bounds are a worse choice.)  The query heads
 * that share the keys choose together: the score of a page is the largest of the heads' scores,
 * each less the largest score of that head for any page, because only differences of a head's
 * scores decide what it attends to.
 *
 * The pages of a context are scored in ranges, which are jobs of their own if there are few
 * sequences; the job that finishes the last range chooses.
 *
 * Tokens of a prompt attend to all tokens: a tile of the kernels reads each key once for many of
 * them, which is faster than a choice for each token.  Each token of the answer has its own choice,
 * which depends only on the token's queries and the keys before it, so answers do not depend on
 * chunks, drafts or the batch.  The keys of such tokens are not reused as a prefix, because a later
 * prompt with the same tokens attends to all.  The kernels see the chosen blocks as a context of
 * their own, in order of position. */
#include "libcommon/cpu/cpu_pages.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/cpu/cpu_sparse.h"
#include "libcommon/cpu/hadamard.h"

enum { FIRST = KV_SINKS / KV_BLOCK, NEWEST = (KV_TAIL + KV_TAIL_STEP) / KV_BLOCK,
       RANGE_PAGES = 256,
       /* pages to prefetch, because their summaries lie a KV block apart */
       AHEAD = 8 };
/* the weight of the half range in a score */
#define SPREAD .25f

/* The choice of one token and KV head.  n_pages: from which it chooses; score [n_pages]; head_score
 * [group][room]. */
struct page_choice {
    atomic_int ranges_left;
    int n_pages;
    size_t room;
    float *score, *head_score;
    int *chosen;
    int32_t *table, *tail_table;
};
/* Buffers of a thread: the queries of a KV head, rounded. */
struct page_queries { float *q, *factor; int8_t *codes; int32_t *dots; };

static size_t to_lines(size_t n) { return (n + 63) / 64 * 64; }

/* The most query heads that share keys. */
static size_t largest_group(const struct config *c)
{
    int most = 1;
    for (int i = 0; i < c->n_layers; i++) {
        const int n = config_kv_heads(c, i);
        most = n && c->n_heads / n > most ? c->n_heads / n : most;
    }
    return (size_t)most;
}

int pages_open(struct core *k, int pages, int n_choices, int64_t max_len, struct err *e)
{
    const size_t group = largest_group(k->c), room = to_lines((size_t)(max_len / KV_BLOCK + 1) * sizeof(float)),
                 table = to_lines(sizeof(int32_t) * (size_t)(pages + FIRST + NEWEST)),
                 chosen = to_lines((size_t)pages * sizeof(int)), row = config_page_row(k->c->head_dim),
                 q = row * sizeof(float), each = to_lines(group * sizeof(float)),
                 choice = (1 + group) * room + chosen + 2 * table, queries = q + 2 * each + group * row,
                 n_threads = (size_t)pool_size(k->pool), n = (size_t)n_choices,
                 bytes = choice * n + queries * n_threads;
    struct page_choice *w = k->page_choices = calloc(n, sizeof *w);
    struct page_queries *x = k->page_queries = calloc(n_threads, sizeof *x);
    uint8_t *at = k->page_memory = aligned_alloc(64, bytes);
    if (!w || !x || !at)
        return err_nomem(e, "attention to pages");
    for (; w < k->page_choices + n; w++) {
        w->room = room / sizeof(float);
        w->score = (float *)(void *)at, at += room;
        w->head_score = (float *)(void *)at, at += group * room;
        w->chosen = (int *)(void *)at, at += chosen;
        w->table = (int32_t *)(void *)at, at += table;
        w->tail_table = (int32_t *)(void *)at, at += table;
    }
    for (; x < k->page_queries + n_threads; x++) {
        x->q = (float *)(void *)at, at += q;
        x->factor = (float *)(void *)at, at += each;
        x->dots = (int32_t *)(void *)at, at += each;
        x->codes = (int8_t *)at, at += group * row;
    }
    k->pages = pages;
    k->bytes += bytes + n * sizeof *w + n_threads * sizeof *x;
    return 0;
}

void pages_close(struct core *k)
{
    free(k->page_choices);
    free(k->page_queries);
    free(k->page_memory);
    k->page_choices = NULL;
    k->page_queries = NULL;
    k->page_memory = NULL;
}

/* ---- summaries ---- */

/* Round x [n] to int8 with one scale, which is returned; to 0 if an element is not finite. */
static float round_row(int8_t *to, const float *x, size_t n)
{
    float most = 0;
    int is_finite = 1;
    for (size_t i = 0; i < n; i++) {
        is_finite &= fabsf(x[i]) <= FLT_MAX;
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    }
    const float factor = is_finite && most > 1e-30f ? 127 / most : 0;
    for (size_t i = 0; i < n; i++)
        to[i] = factor > 0 ? (int8_t)rintf(x[i] * factor) : 0;
    return factor > 0 ? most / 127 : 0;
}

void pages_summarize(const struct page_place *p, const uint8_t *keys, size_t scales, enum kv_type type, int is_rotated)
{
    const int dim = p->head_dim;
    const size_t row = config_page_row(dim);
    float x[(size_t)dim * KV_BLOCK], key[dim], most[dim], least[dim], summary[row];
    memset(summary, 0, sizeof summary);
    sparse_load_block(type, keys, scales, dim, x);
    for (int slot = 0; slot < KV_BLOCK; slot++) {
        for (int d = 0; d < dim; d++)
            key[d] = x[d * KV_BLOCK + slot];
        if (is_rotated)                                 /* the rotation spreads the channels that tell pages apart */
            hadamard_rotate(key, dim);
        for (int d = 0; d < dim; d++) {
            summary[d] += key[d] / KV_BLOCK;
            most[d] = slot && key[d] <= most[d] ? most[d] : key[d];
            least[d] = slot && key[d] >= least[d] ? least[d] : key[d];
        }
    }
    for (int d = 0; d < dim; d++)
        summary[dim + d] = (most[d] - least[d]) / 2;
    const float scale = round_row((int8_t *)p->at + (size_t)p->head * row, summary, row);
    memcpy(p->at + (size_t)p->n_heads * row + (size_t)p->head * sizeof scale, &scale, sizeof scale);
}

/* ---- choosing pages ---- */

/* The number of pages from which a token at pos chooses. */
static int n_pages(int pos) { return kv_tail_from(pos) / KV_BLOCK - FIRST; }

int pages_apply(const struct core *k, const struct batch_item *it, int pos)
{
    return k->pages && pos >= it->exact_until && pos >= kv_pages_from(k->pages);
}

int pages_ranges(int pos) { return (n_pages(pos) + RANGE_PAGES - 1) / RANGE_PAGES; }

int pages_length(const struct core *k, int pos)
{
    return (FIRST + k->pages) * KV_BLOCK + pos + 1 - kv_tail_from(pos);
}

void pages_begin(const struct core *k, int choice, int pos)
{
    struct page_choice *w = &k->page_choices[choice];
    w->n_pages = n_pages(pos);
    atomic_store_explicit(&w->ranges_left, pages_ranges(pos), memory_order_relaxed);
}

/* Round q and SPREAD * |q| of each head to a row of codes. */
static void round_queries(const struct page_queries *x, const struct attn *a, int is_rotated)
{
    const int dim = a->head_dim;
    const size_t row = config_page_row(dim);
    memset(x->q, 0, row * sizeof *x->q);
    for (int g = 0; g < a->n_q_heads; g++) {
        memcpy(x->q, a->q + (size_t)g * a->q_head_stride, (size_t)dim * sizeof *x->q);
        if (is_rotated)
            hadamard_rotate(x->q, dim);
        for (int d = 0; d < dim; d++)
            x->q[dim + d] = SPREAD * fabsf(x->q[d]);
        x->factor[g] = round_row(x->codes + (size_t)g * row, x->q, row);
    }
}

/* Choose pages by the scores of all heads, and write the tables of the blocks to attend to. */
static void choose(const struct core *k, const struct batch_item *it, int group, int pos, struct page_choice *w)
{
    const int newest = kv_tail_from(pos) / KV_BLOCK, end = pos / KV_BLOCK;
    int at = 0;
    for (int i = 0; i < w->n_pages; i++)
        w->score[i] = -FLT_MAX;
    for (int g = 0; g < group; g++) {
        const float *score = w->head_score + (size_t)g * w->room, most = k->k->largest(score, w->n_pages);
        for (int i = 0; i < w->n_pages; i++)
            w->score[i] = score[i] - most > w->score[i] ? score[i] - most : w->score[i];
    }
    sparse_choose(w->score, w->n_pages, k->pages, w->chosen);
    for (int i = 0; i < FIRST; i++)
        w->table[at++] = i;
    for (int i = 0; i < k->pages; i++)
        w->table[at++] = FIRST + w->chosen[i];
    for (int i = newest; i <= end; i++)
        w->table[at++] = i;
    for (int i = 0; i < at; i++) {
        const int from = w->table[i], in_tail = i < FIRST || from >= newest;
        w->tail_table[i] = k->tail && in_tail ? it->window_table[from] : 0;
        w->table[i] = it->table[from];
    }
}

void pages_score(const struct core *k, const struct page_place *p, const struct batch_item *it, const struct attn *a,
                 int is_rotated, int range, int choice, int thread)
{
    const struct page_queries *x = &k->page_queries[thread];
    struct page_choice *w = &k->page_choices[choice];
    const int group = a->n_q_heads, first = range * RANGE_PAGES,
              end = first + RANGE_PAGES < w->n_pages ? first + RANGE_PAGES : w->n_pages;
    const size_t row = config_page_row(p->head_dim), codes = p->offset + (size_t)p->head * row,
                 scales = p->offset + (size_t)p->n_heads * row + (size_t)p->head * sizeof(float);
    round_queries(x, a, is_rotated);
    for (int i = first; i < end; i++) {
        const uint8_t *block = k->kv + (size_t)it->table[FIRST + i] * k->kv_stride,
                      *next = k->kv + (size_t)it->table[FIRST + (i + AHEAD < end ? i + AHEAD : i)] * k->kv_stride;
        float scale;
        for (size_t c = 0; c < row; c += 64)
            __builtin_prefetch(next + codes + c);
        __builtin_prefetch(next + scales);
        k->k->dots_i8(x->dots, x->codes, row, group, (const int8_t *)block + codes);
        memcpy(&scale, block + scales, sizeof scale);
        for (int g = 0; g < group; g++)
            w->head_score[(size_t)g * w->room + (size_t)i] = (float)x->dots[g] * (scale * x->factor[g]);
    }
    if (atomic_fetch_sub(&w->ranges_left, 1) == 1)
        choose(k, it, group, a->pos, w);
}

void pages_use(const struct core *k, int choice, struct attn *a)
{
    const struct page_choice *w = &k->page_choices[choice];
    a->table = w->table;
    if (a->tail.base)
        a->tail.table = w->tail_table;
    a->rounded_to = (FIRST + k->pages) * KV_BLOCK;
    a->pos = pages_length(k, a->pos) - 1;
}
