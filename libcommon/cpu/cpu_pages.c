/* cpu_pages.c - attention to pages (backend_options.pages): layers without a window attend to the
 * first KV_SINKS tokens, to the newest tokens from kv_tail_from() on, and of the KV blocks between
 * them, the pages, to those that may hold the largest scores (arXiv:2406.10774).
 *
 * The bounds of a page are the largest and the smallest element of its keys in each channel,
 * rounded to int8 with one scale.  They are computed from the stored keys when the last key of the
 * block is stored, and kept at the end of the KV block.  The score of a page for a query q is the
 * sum over channels of max(q * largest, q * smallest), which is at least the product of q with any
 * of its keys.  The scores of the query heads that share the keys are added.
 *
 * Tokens of a prompt attend to all tokens: a tile of the kernels reads each key once for many of
 * them, which is faster than a choice for each token.  Each token of the answer has its own choice,
 * which depends only on the token's queries and the keys before it, so answers do not depend on
 * chunks, drafts or the batch.  The keys of such tokens are not reused as a prefix, because a later
 * prompt with the same tokens attends to all.  The kernels see the chosen blocks as a context of
 * their own, in order of position. */
#include "libcommon/cpu/cpu_pages.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/cpu/cpu_sparse.h"
#include "libcommon/cpu/hadamard.h"

enum { FIRST = KV_SINKS / KV_BLOCK, NEWEST = (KV_TAIL + KV_TAIL_STEP) / KV_BLOCK };

/* Buffers of a thread. */
struct page_choice { float *score; int *chosen; int32_t *table, *tail_table; float *q; int8_t *codes; };

static size_t to_lines(size_t n) { return (n + 63) / 64 * 64; }

int pages_open(struct core *k, int pages, int64_t max_len, struct err *e)
{
    const size_t n_blocks = (size_t)(max_len / KV_BLOCK) + 1,
                 table = to_lines(sizeof(int32_t) * (size_t)(pages + FIRST + NEWEST)),
                 score = to_lines(n_blocks * sizeof(float)), chosen = to_lines((size_t)pages * sizeof(int)),
                 row = config_page_row(k->c->head_dim), q = 3 * row * sizeof(float),
                 bytes = score + chosen + 2 * table + q + row, n = (size_t)pool_size(k->pool);
    struct page_choice *w = calloc(n, sizeof *w);
    uint8_t *at = k->page_memory = aligned_alloc(64, bytes * n);
    if (!(k->page_work = w) || !at)
        return err_nomem(e, "attention to pages");
    for (; w < k->page_work + n; w++) {
        w->score = (float *)(void *)at, at += score;
        w->chosen = (int *)(void *)at, at += chosen;
        w->table = (int32_t *)(void *)at, at += table;
        w->tail_table = (int32_t *)(void *)at, at += table;
        w->q = (float *)(void *)at, at += q;
        w->codes = (int8_t *)at, at += row;
    }
    k->pages = pages;
    k->bytes += bytes * n + n * sizeof *w;
    return 0;
}

void pages_close(struct core *k)
{
    free(k->page_work);
    free(k->page_memory);
    k->page_work = NULL;
    k->page_memory = NULL;
}

/* ---- bounds ---- */

/* Round x [n] to int8 with one scale, which is returned; 0 if an element is not finite. */
static float round_row(int8_t *to, const float *x, size_t n)
{
    float most = 0;
    for (size_t i = 0; i < n; i++)
        most = fabsf(x[i]) <= most ? most : fabsf(x[i]);
    const float factor = most > 0 && most <= 3e38f ? 127 / most : 0;
    for (size_t i = 0; i < n; i++)
        to[i] = factor > 0 ? (int8_t)rintf(x[i] * factor) : 0;
    return factor > 0 ? most / 127 : 0;
}

void pages_bound(const struct page_place *p, const uint8_t *keys, size_t scales, enum kv_type type, int is_rotated)
{
    const int dim = p->head_dim;
    const size_t row = config_page_row(dim);
    float x[(size_t)dim * KV_BLOCK], key[dim], bounds[row];
    memset(bounds, 0, sizeof bounds);
    sparse_load_block(type, keys, scales, dim, x);
    for (int slot = 0; slot < KV_BLOCK; slot++) {
        for (int d = 0; d < dim; d++)
            key[d] = x[d * KV_BLOCK + slot];
        if (is_rotated)                                 /* the rotation spreads the channels that tell pages apart */
            hadamard_rotate(key, dim);
        for (int d = 0; d < dim; d++) {
            float *largest = &bounds[d], *smallest = &bounds[dim + d];
            *largest = slot && key[d] <= *largest ? *largest : key[d];
            *smallest = slot && key[d] >= *smallest ? *smallest : key[d];
        }
    }
    const float scale = round_row((int8_t *)p->at + (size_t)p->head * row, bounds, row);
    memcpy(p->at + (size_t)p->n_heads * row + (size_t)p->head * sizeof scale, &scale, sizeof scale);
}

/* ---- choosing pages ---- */

int pages_apply(const struct core *k, const struct batch_item *it, int pos)
{
    return k->pages && pos >= it->exact_until && pos >= kv_pages_from(k->pages);
}

/* codes = the sums over heads of the positive and of the negative elements of q, rounded. */
static void sum_queries(struct page_choice *w, const float *q, size_t head_stride, int group, int dim, int is_rotated)
{
    const size_t row = config_page_row(dim);
    float *sum = w->q, *one = w->q + row;
    memset(sum, 0, row * sizeof *sum);
    for (int g = 0; g < group; g++) {
        memcpy(one, q + (size_t)g * head_stride, (size_t)dim * sizeof *one);
        if (is_rotated)
            hadamard_rotate(one, dim);
        for (int d = 0; d < dim; d++)
            sum[one[d] > 0 ? d : dim + d] += one[d];
    }
    round_row(w->codes, sum, row);
}

void pages_choose(const struct core *k, const struct page_place *p, const struct batch_item *it, int group,
                  int is_rotated, struct attn *a, int thread)
{
    struct page_choice *w = &k->page_work[thread];
    const int newest = kv_tail_from(a->pos) / KV_BLOCK, end = a->pos / KV_BLOCK, n = newest - FIRST;
    const size_t row = config_page_row(p->head_dim);
    int at = 0;
    sum_queries(w, a->q, a->q_head_stride, group, p->head_dim, is_rotated);
    for (int i = 0; i < n; i++) {
        const uint8_t *bounds = k->kv + (size_t)it->table[FIRST + i] * k->kv_stride + p->offset;
        float scale;
        int32_t dot;
        k->k->dots_i8(&dot, (const int8_t *)bounds + (size_t)p->head * row, row, 1, w->codes);
        memcpy(&scale, bounds + (size_t)p->n_heads * row + (size_t)p->head * sizeof scale, sizeof scale);
        w->score[i] = (float)dot * scale;
    }
    sparse_choose(w->score, n, k->pages, w->chosen);
    for (int i = 0; i < FIRST; i++)
        w->table[at++] = i;
    for (int i = 0; i < k->pages; i++)
        w->table[at++] = FIRST + w->chosen[i];
    for (int i = newest; i <= end; i++)
        w->table[at++] = i;
    for (int i = 0; i < at; i++) {
        const int from = w->table[i], in_tail = i < FIRST || from >= newest;
        w->tail_table[i] = a->tail.base && in_tail ? it->window_table[from] : 0;
        w->table[i] = it->table[from];
    }
    a->table = w->table;
    if (a->tail.base)
        a->tail.table = w->tail_table;
    a->rounded_to = (FIRST + k->pages) * KV_BLOCK;
    a->pos = a->rounded_to + a->pos - newest * KV_BLOCK;
}
