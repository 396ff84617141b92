/* cpu_blocks.c - attention to runs of tokens (qwen4_exp): an indexer scores the complete runs
 * before a token by the normed mean of their keys; the token sees the best of them, and all tokens
 * after the last complete run.
 *
 * The sum of a run's keys is a state until the run is complete; its key then goes to the KV block
 * of its last token.  The keys and values that a token sees are copied side by side, in order of
 * position, and attention runs over the copy, so results are bit-identical for every batch and
 * every division of a prompt into chunks. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/cpu/cpu_attn.h"
#include "libcommon/cpu/cpu_ops.h"
#include "libcommon/cpu/cpu_sparse.h"

enum { COPY_RUNS = 32 };                        /* runs per job */

struct block_job {
    struct core *k;
    const struct step *s;
    const struct layer *l;
    int index, first, n, block, heads, head_dim;                /* heads: number of KV heads */
    struct sparse_keys keys;                    /* keys of runs of tokens */
    size_t kv_bytes;                            /* bytes of the keys of one head */
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
    return blocks * 2 * (size_t)k->c->n_kv_heads * kv_block_bytes(k->types.key, k->c->head_dim);
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
    w->one_bytes = kv_block_bytes(k->types.key, x->head_dim);
    const size_t floats = t * blocks_floats(k->c) + (size_t)x->n_heads + (size_t)w->batch * (size_t)w->room,
                 ints = (size_t)w->batch * ((size_t)w->most + 1) + blocks,
                 bytes = (size_t)w->batch * w->stride + (size_t)pool_size(k->pool) * w->one_bytes;
    w->q = malloc(floats * sizeof *w->q);
    w->chosen = malloc(ints * sizeof *w->chosen);
    w->keys = aligned_alloc(64, bytes + 64);
    if (!w->q || !w->chosen || !w->keys)
        return err_nomem(e, "activations of the indexer");
    memset(w->keys, 0, bytes);                  /* slots after the last are read with weight 0 */
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

/* ---- keys of runs ---- */

static void rotate(const struct block_job *j, float *x, int n_heads, const float *cosine, const float *sine)
{
    const struct rope *r = &j->k->c->ropes[j->k->c->rope_of[j->index]];
    j->k->k->rope(x, cosine, sine, n_heads, (size_t)j->k->c->indexer.head_dim, r->dim, r->pairs);
}

/* Norm, rotate and store the key of a run; `key` is the sum of its keys. */
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
    sparse_angles(r, run, j->block, cosine, sine);
    rotate(j, key, 1, cosine, sine);
    k->k->kv_store_key(k->types.key, one, 0, key, dim);
    uint8_t *to = sparse_place(&j->keys, item, run, &slot);
    sparse_copy_key(k->types.key, dim, to, j->keys.slots, slot, one, KV_BLOCK, 0);
}

/* Add the keys of an item's tokens to the sums. */
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

/* ---- choosing runs ---- */

static int whole_runs(const struct block_job *j, int token) { return (j->k->pos[token] + 1) / j->block; }

static void choose_token(void *arg, int slot, int thread)
{
    (void)thread;
    const struct block_job *j = arg;
    struct block_work *w = &j->k->blocks;
    w->n_chosen[slot] = sparse_choose(w->scores + (size_t)slot * (size_t)w->room, whole_runs(j, j->first + slot),
                                     w->most, w->chosen + (size_t)slot * (size_t)w->most);
}

/* ---- attention ---- */

/* Returns the number of tokens that this token attends to: those of the chosen runs, and those
 * after the last complete run. */
static int n_seen(const struct block_job *j, int slot)
{
    const int token = j->first + slot;
    return j->k->blocks.n_chosen[slot] * j->block + j->k->pos[token] + 1 - whole_runs(j, token) * j->block;
}

static int copy_jobs(const struct block_job *j) { return (j->k->blocks.most + COPY_RUNS) / COPY_RUNS; }

/* Copy keys and values of one token, for all heads. */
static void copy_token(const struct block_job *j, uint8_t *to, int to_slot, const uint8_t *from, int from_slot)
{
    for (int h = 0; h < 2 * j->heads; h++, to += j->kv_bytes, from += j->kv_bytes) {
        if (h % 2 == 0)
            sparse_copy_key(j->k->types.key, j->head_dim, to, KV_BLOCK, to_slot, from, KV_BLOCK, from_slot);
        else
            sparse_copy_value(j->k->types.key, j->head_dim, to, to_slot, from, from_slot);
    }
}

static void copy_part(void *arg, int i, int thread)
{
    (void)thread;
    const struct block_job *j = arg;
    const struct block_work *w = &j->k->blocks;
    const int slot = i / copy_jobs(j), token = j->first + slot, item = sparse_item(j->s, token),
              chosen = w->n_chosen[slot];
    const size_t stride = 2 * (size_t)j->heads * j->kv_bytes;
    for (int r = i % copy_jobs(j) * COPY_RUNS, end = r + COPY_RUNS; r < end && r <= chosen; r++) {
        const int run = r < chosen ? w->chosen[(size_t)slot * (size_t)w->most + (size_t)r] : whole_runs(j, token);
        for (int t = 0; t < j->block && run * j->block + t <= j->k->pos[token]; t++) {
            const int n = r * j->block + t, pos = run * j->block + t;
            copy_token(j, w->keys + (size_t)slot * w->stride + (size_t)(n / KV_BLOCK) * stride, n % KV_BLOCK,
                       sparse_block(j->k, j->s, item, pos / KV_BLOCK), pos % KV_BLOCK);
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
        .v_offset = ((size_t)head * 2 + 1) * j->kv_bytes, .kv = k->types, .scale = c->attn_scale,
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
                           .head_dim = head_dim, .kv_bytes = kv_block_bytes(k->types.key, head_dim) };
    int sparse = 0;
    j.keys = (struct sparse_keys){ .k = k, .s = s, .at = 2 * (size_t)heads * j.kv_bytes, .rate = x->block,
                                   .slots = config_entries(c, index) };
    const struct sparse_scores scores = { .keys = j.keys, .q = w->q, .weight = w->weight, .out = w->scores,
                                          .room = w->room };
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
        sparse_score(&scores, j.first, j.n);
        pool_run(k->pool, j.n, choose_token, &j);
        pool_run(k->pool, j.n * copy_jobs(&j), copy_part, &j);
        pool_run(k->pool, j.n * heads, attend_part, &j);
    }
    return 1;
}
