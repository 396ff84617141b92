/* cpu_blocks.c - run attention to runs of tokens (qwen4_exp): an indexer scores the whole runs
 * before a token by the normed mean of its keys; the token sees the best of them, and all tokens
 * behind the last whole run.
 *
 * The sum of a run's keys is a state while the run lasts, and its key goes to the KV block of
 * its last token.  The keys and values that a token sees are copied side by side, in the order
 * of positions, and attention runs over the copy, so neither the batch nor the cut of a prompt
 * changes a bit. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/cpu/cpu_attn.h"
#include "libcommon/cpu/cpu_ops.h"
#include "libcommon/quant/half.h"

enum { SCORE_GROUPS = 16, COPY_RUNS = 32 };     /* groups of 16 runs, and runs, of one job */

struct block_job {
    struct core *k;
    const struct step *s;
    const struct layer *l;
    int index, first, n, block, slots, heads, head_dim;         /* heads: with keys */
    size_t keys_at, kv_bytes;                   /* of the runs' keys in a KV block; of keys of one head */
};

/* ---- memory ---- */

size_t blocks_floats(const struct config *c)
{
    const struct indexer *x = &c->indexer;
    return x->block ? (size_t)(x->n_heads + 1) * (size_t)x->head_dim : 0;
}

static size_t tokens_bytes(const struct core *k, int n)
{
    const size_t blocks = ((size_t)n + KV_BLOCK - 1) / KV_BLOCK;
    return blocks * 2 * (size_t)k->c->n_kv_heads * kv_block_bytes(k->kv_type, k->c->head_dim);
}

int blocks_open(struct core *k, int64_t max_len, struct err *e)
{
    const struct indexer *x = &k->c->indexer;
    struct block_work *w = &k->blocks;
    const size_t t = (size_t)k->max_tokens;
    const int64_t runs = max_len / x->block + 1;
    w->batch = 2 * pool_size(k->pool);
    w->most = (int)(x->top_k < runs ? x->top_k : runs);
    w->room = (int)((runs + KV_BLOCK - 1) / KV_BLOCK * KV_BLOCK);
    const int tokens = (w->most + 1) * x->block;
    const size_t blocks = ((size_t)tokens + KV_BLOCK - 1) / KV_BLOCK;
    w->stride = tokens_bytes(k, tokens);
    w->one_bytes = kv_block_bytes(k->kv_type, x->head_dim);
    const size_t floats = t * blocks_floats(k->c) + (size_t)x->n_heads + (size_t)w->batch * (size_t)w->room,
                 ints = (size_t)w->batch * ((size_t)w->most + 1) + blocks,
                 bytes = (size_t)w->batch * w->stride + (size_t)pool_size(k->pool) * w->one_bytes;
    w->q = malloc(floats * sizeof *w->q);
    w->chosen = malloc(ints * sizeof *w->chosen);
    w->keys = aligned_alloc(64, bytes + 64);
    if (!w->q || !w->chosen || !w->keys)
        return err_nomem(e, "activations of the indexer");
    memset(w->keys, 0, bytes);                  /* slots behind the last are read with weight 0 */
    w->one = w->keys + (size_t)w->batch * w->stride;
    w->key = w->q + t * (size_t)(x->n_heads * x->head_dim);
    w->weight = w->key + t * (size_t)x->head_dim;
    w->scores = w->weight + x->n_heads;
    w->n_chosen = w->chosen + (size_t)w->batch * (size_t)w->most;
    w->table = (int32_t *)(w->n_chosen + w->batch);
    for (size_t i = 0; i < blocks; i++)
        w->table[i] = (int32_t)i;
    for (int h = 0; h < x->n_heads; h++)
        w->weight[h] = 1 / sqrtf((float)x->head_dim);
    k->bytes += floats * sizeof *w->q + ints * sizeof *w->chosen + bytes;
    return 0;
}

void blocks_close(struct core *k)
{
    free(k->blocks.q);
    free(k->blocks.chosen);
    free(k->blocks.keys);
    k->blocks = (struct block_work){ 0 };
}

/* ---- places ---- */

static int item_of(const struct step *s, int token)
{
    int i = 0;
    while (i + 1 < s->n_items && s->offset[i + 1] <= token)
        i++;
    return i;
}

static uint8_t *block_of(const struct block_job *j, int item, int block)
{
    return j->k->kv + (size_t)j->s->items[item].table[block] * j->k->kv_stride + j->s->kv_at;
}

/* The KV block with the key of a run, that of the run's last token, and the key's slot in it. */
static uint8_t *run_place(const struct block_job *j, int item, int run, int *slot)
{
    const int block = (int)(((int64_t)run * j->block + j->block - 1) / KV_BLOCK);
    *slot = run - (int)((int64_t)block * KV_BLOCK / j->block);
    return block_of(j, item, block) + j->keys_at;
}

/* Copy n elements that lie `from_step` and `to_step` elements apart, from one slot to another. */
static void copy_elements(size_t size, int n, uint8_t *to, int to_step, const uint8_t *from, int from_step)
{
    for (int d = 0; d < n; d++, to += (size_t)to_step * size, from += (size_t)from_step * size)
        memcpy(to, from, size);
}

static void copy_scale(enum kv_type type, uint8_t *to, int to_slot, const uint8_t *from, int from_slot)
{
    if (kv_has_scales(type))
        memcpy(to + (size_t)to_slot * sizeof(float), from + (size_t)from_slot * sizeof(float), sizeof(float));
}

/* ---- keys of runs ---- */

static void rotate(const struct block_job *j, float *x, int n_heads, const float *cosine, const float *sine)
{
    const struct rope *r = &j->k->c->ropes[j->k->c->rope_of[j->index]];
    j->k->k->rope(x, cosine, sine, n_heads, (size_t)j->k->c->indexer.head_dim, r->dim, r->pairs);
}

/* Norm, rotate and store the key of a run, of which key is the sum. */
static void end_run(const struct block_job *j, int item, int run, float *key, uint8_t *one)
{
    const struct core *k = j->k;
    const int dim = k->c->indexer.head_dim;
    const struct rope *r = &k->c->ropes[k->c->rope_of[j->index]];
    float cosine[r->dim / 2], sine[r->dim / 2];
    int slot;
    for (int d = 0; d < dim; d++)
        key[d] /= (float)j->block;
    k->k->rms_norm(key, key, j->l->index_norm.w, dim, k->c->norm_eps, k->c->norm_offset);
    for (int d = 0; d < r->dim / 2; d++) {
        const float angle = (float)(run * j->block) * r->inv_freq[d];           /* f32, as for tokens */
        cosine[d] = (float)cos((double)angle) * r->scale;
        sine[d] = (float)sin((double)angle) * r->scale;
    }
    rotate(j, key, 1, cosine, sine);
    k->k->kv_store_key(k->kv_type, one, 0, key, dim);
    uint8_t *to = run_place(j, item, run, &slot);
    copy_elements(kv_element_bytes(k->kv_type), dim, to + (size_t)slot * kv_element_bytes(k->kv_type), j->slots, one,
                  KV_BLOCK);
    copy_scale(k->kv_type, to + (size_t)(dim * j->slots), slot, one + (size_t)(dim * KV_BLOCK), 0);
}

/* Sum the keys of an item's tokens. */
static void sum_keys(void *arg, int item, int thread)
{
    const struct block_job *j = arg;
    const struct batch_item *it = &j->s->items[item];
    const int dim = j->k->c->indexer.head_dim;
    float *sum = j->k->states + (size_t)it->state * j->k->state_stride + j->s->state_at, key[dim];
    for (int t = 0; t < it->n_tokens; t++) {
        const int pos = it->pos + t;
        const float *own = j->k->blocks.key + (size_t)(j->s->offset[item] + t) * (size_t)dim;
        for (int d = 0; d < dim; d++)
            sum[d] = pos % j->block ? sum[d] + own[d] : own[d];
        if (pos % j->block != j->block - 1)
            continue;
        memcpy(key, sum, sizeof key);
        end_run(j, item, pos / j->block, key, j->k->blocks.one + (size_t)thread * j->k->blocks.one_bytes);
    }
}

static void prepare_query(void *arg, int t, int thread)
{
    (void)thread;
    const struct block_job *j = arg;
    const struct core *k = j->k;
    const struct indexer *x = &k->c->indexer;
    const int table = k->c->rope_of[j->index];
    const size_t at = (size_t)t * (size_t)(k->c->ropes[table].dim / 2);
    float *q = k->blocks.q + (size_t)t * (size_t)(x->n_heads * x->head_dim);
    for (int h = 0; h < x->n_heads; h++)
        k->k->rms_norm(q + h * x->head_dim, q + h * x->head_dim, j->l->index_q_norm.w, x->head_dim, k->c->norm_eps,
                       k->c->norm_offset);
    rotate(j, q, x->n_heads, k->cos[table] + at, k->sin[table] + at);
}

/* ---- the choice ---- */

static int whole_runs(const struct block_job *j, int token) { return (j->k->pos[token] + 1) / j->block; }

static float load(enum kv_type type, const uint8_t *block, int slots, int slot, int dim, int d)
{
    const size_t i = (size_t)(d * slots + slot);
    const float *scale = (const float *)(const void *)(block + (size_t)(dim * slots));
    switch (type) {
    case KV_F32: return ((const float *)(const void *)block)[i];
    case KV_F16: return f16_to_f32(((const f16 *)(const void *)block)[i]);
    case KV_BF16: return bf16_to_f32(((const bf16 *)(const void *)block)[i]);
    case KV_F8: return f8e4m3_to_f32(block[i]) * scale[slot];
    default: return (float)(int8_t)block[i] * scale[slot];
    }
}

static int score_jobs(const struct block_job *j)
{
    return (j->k->blocks.room / KV_BLOCK + SCORE_GROUPS - 1) / SCORE_GROUPS;
}

static void score_part(void *arg, int i, int thread)
{
    (void)thread;
    const struct block_job *j = arg;
    const struct core *k = j->k;
    const struct indexer *x = &k->c->indexer;
    const struct block_work *w = &k->blocks;
    const int slot = i / score_jobs(j), token = j->first + slot, item = item_of(j->s, token), n = whole_runs(j, token),
              from = i % score_jobs(j) * SCORE_GROUPS * KV_BLOCK;
    float keys[(size_t)x->head_dim * KV_BLOCK];
    for (int first = from; first < n && first < from + SCORE_GROUPS * KV_BLOCK && n > x->top_k; first += KV_BLOCK) {
        for (int e = 0; e < KV_BLOCK; e++) {
            int at;
            const uint8_t *block = run_place(j, item, first + e < n ? first + e : n - 1, &at);
            for (int d = 0; d < x->head_dim; d++)
                keys[d * KV_BLOCK + e] = load(k->kv_type, block, j->slots, at, x->head_dim, d);
        }
        k->k->index_block(w->scores + (size_t)slot * (size_t)w->room + (size_t)first,
                          w->q + (size_t)token * (size_t)(x->n_heads * x->head_dim), x->n_heads, x->head_dim, w->weight,
                          keys);
    }
}

static void choose_token(void *arg, int slot, int thread)
{
    (void)thread;
    const struct block_job *j = arg;
    struct block_work *w = &j->k->blocks;
    w->n_chosen[slot] = index_choose(w->scores + (size_t)slot * (size_t)w->room, whole_runs(j, j->first + slot),
                                     w->most, w->chosen + (size_t)slot * (size_t)w->most);
}

/* ---- attention ---- */

/* Tokens that a token of the batch sees: those of the chosen runs, and those behind the last. */
static int n_seen(const struct block_job *j, int slot)
{
    const int token = j->first + slot;
    return j->k->blocks.n_chosen[slot] * j->block + j->k->pos[token] + 1 - whole_runs(j, token) * j->block;
}

static int copy_jobs(const struct block_job *j) { return (j->k->blocks.most + COPY_RUNS) / COPY_RUNS; }

/* Copy keys and values of one token, for all heads. */
static void copy_token(const struct block_job *j, uint8_t *to, int to_slot, const uint8_t *from, int from_slot)
{
    const enum kv_type type = j->k->kv_type;
    const size_t size = kv_element_bytes(type), dim = (size_t)j->head_dim, codes = dim * KV_BLOCK * size;
    for (int h = 0; h < 2 * j->heads; h++, to += j->kv_bytes, from += j->kv_bytes) {
        if (h % 2 == 0)
            copy_elements(size, j->head_dim, to + (size_t)to_slot * size, KV_BLOCK, from + (size_t)from_slot * size,
                          KV_BLOCK);
        else
            memcpy(to + (size_t)to_slot * dim * size, from + (size_t)from_slot * dim * size, dim * size);
        copy_scale(type, to + codes, to_slot, from + codes, from_slot);
    }
}

static void copy_part(void *arg, int i, int thread)
{
    (void)thread;
    const struct block_job *j = arg;
    const struct block_work *w = &j->k->blocks;
    const int slot = i / copy_jobs(j), token = j->first + slot, item = item_of(j->s, token),
              chosen = w->n_chosen[slot];
    const size_t stride = 2 * (size_t)j->heads * j->kv_bytes;
    for (int r = i % copy_jobs(j) * COPY_RUNS, end = r + COPY_RUNS; r < end && r <= chosen; r++) {
        const int run = r < chosen ? w->chosen[(size_t)slot * (size_t)w->most + (size_t)r] : whole_runs(j, token);
        for (int t = 0; t < j->block && run * j->block + t <= j->k->pos[token]; t++) {
            const int n = r * j->block + t, pos = run * j->block + t;
            copy_token(j, w->keys + (size_t)slot * w->stride + (size_t)(n / KV_BLOCK) * stride, n % KV_BLOCK,
                       block_of(j, item, pos / KV_BLOCK), pos % KV_BLOCK);
        }
    }
}

static void attend_part(void *arg, int i, int thread)
{
    const struct block_job *j = arg;
    const struct core *k = j->k;
    const struct config *c = k->c;
    const int slot = i / j->heads, head = i % j->heads, group = c->n_heads / j->heads, token = j->first + slot;
    const size_t hd = (size_t)j->head_dim, row = (size_t)c->n_heads * hd,
                 at = (size_t)token * row + (size_t)(head * group) * hd;
    const struct attn a = {
        .q = k->q + at, .q_token_stride = row, .q_head_stride = hd, .out = k->att + at, .out_token_stride = row,
        .out_head_stride = hd, .n_tokens = 1, .n_q_heads = group, .head_dim = j->head_dim, .pos = n_seen(j, slot) - 1,
        .base = k->blocks.keys + (size_t)slot * k->blocks.stride, .table = k->blocks.table,
        .stride = 2 * (size_t)j->heads * j->kv_bytes, .k_offset = (size_t)head * 2 * j->kv_bytes,
        .v_offset = ((size_t)head * 2 + 1) * j->kv_bytes, .kv_type = k->kv_type, .scale = c->attn_scale,
        .softcap = c->attn_softcap };
    k->k->attention(&a, k->scratch[thread]);
}

int blocks_run(struct core *k, const struct step *s, const struct layer *l, int index, const struct act_input *in)
{
    const struct config *c = k->c;
    const struct indexer *x = &c->indexer;
    struct block_work *w = &k->blocks;
    const int n = s->n_tokens, head_dim = config_head_dim(c, index), heads = config_kv_heads(c, index);
    struct block_job j = { .k = k, .s = s, .l = l, .index = index, .block = x->block, .heads = heads,
                           .head_dim = head_dim, .slots = config_entries(c, index),
                           .kv_bytes = kv_block_bytes(k->kv_type, head_dim) };
    int sparse = 0;
    j.keys_at = 2 * (size_t)heads * j.kv_bytes;
    core_linear(k, (struct op[]){ { .l = &l->index_q, .in = in, .out = w->q, .ldo = (size_t)(x->n_heads * x->head_dim),
                                    .kind = OP_STORE },
                                  { .l = &l->index_k, .in = in, .out = w->key, .ldo = (size_t)x->head_dim,
                                    .kind = OP_STORE } }, 2, n, NULL);
    pool_run(k->pool, s->n_items, sum_keys, &j);
    for (int t = 0; t < n; t++)
        sparse |= whole_runs(&j, t) > x->top_k;
    if (!sparse)
        return 0;
    pool_run(k->pool, n, prepare_query, &j);
    attn_prepare(k, s, l, index);
    for (j.first = 0; j.first < n; j.first += w->batch) {
        j.n = n - j.first < w->batch ? n - j.first : w->batch;
        pool_run(k->pool, j.n * score_jobs(&j), score_part, &j);
        pool_run(k->pool, j.n, choose_token, &j);
        pool_run(k->pool, j.n * copy_jobs(&j), copy_part, &j);
        pool_run(k->pool, j.n * heads, attend_part, &j);
    }
    return 1;
}
