/* cpu_index.c - choose the tokens that sparse attention over latents sees (arXiv:2512.02556), and
 * attend to them.
 *
 * The latents that a token chooses are copied side by side, in order of position, and attention
 * runs over the copy, so it reads top_k tokens for any length of the context.  Each token has its
 * own choice and copy, so results are bit-identical for every batch and every division of a prompt
 * into chunks. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/cpu/cpu_attn.h"
#include "libcommon/cpu/cpu_ops.h"
#include "libcommon/cpu/cpu_sparse.h"

enum { COPY_BLOCKS = 8 };                           /* KV blocks per job */

struct index_job {
    struct core *k;
    const struct step *s;
    const struct layer *l;
    int index, first, n, token0, groups;
    size_t keys_at;                                 /* offset of the indexer's keys in a KV block */
};

/* ---- memory ---- */

size_t index_floats(const struct config *c)
{
    const struct indexer *x = &c->indexer;
    return c->indexed && c->mla.kv_rank ? (size_t)(x->n_heads + 1) * (size_t)x->head_dim + (size_t)x->n_heads +
           (size_t)x->top_k + 1 : 0;
}

int index_open(struct core *k, int64_t max_len, struct err *e)
{
    const struct config *c = k->c;
    const struct indexer *x = &c->indexer;
    struct index_work *w = &k->index;
    const size_t t = (size_t)k->max_tokens, q = (size_t)x->n_heads * (size_t)x->head_dim;
    w->batch = 2 * pool_size(k->pool);
    w->room = (int)((max_len + KV_BLOCK - 1) / KV_BLOCK * KV_BLOCK);
    w->most = x->top_k < w->room ? x->top_k : w->room;
    const size_t blocks = ((size_t)w->most + KV_BLOCK - 1) / KV_BLOCK;
    w->stride = blocks * kv_block_bytes(k->types.key, c->head_dim);
    const size_t floats = t * (q + (size_t)x->head_dim + (size_t)x->n_heads) + (size_t)w->batch * (size_t)w->room,
                 ints = t * ((size_t)w->most + 1) + blocks;
    w->q = malloc(floats * sizeof *w->q);
    w->chosen = malloc(ints * sizeof *w->chosen);
    w->latents = aligned_alloc(64, (size_t)w->batch * w->stride + 64);
    if (!w->q || !w->chosen || !w->latents)
        return err_nomem(e, "activations of the indexer");
    /* slots after the last are read with weight 0 */
    memset(w->latents, 0, (size_t)w->batch * w->stride);
    w->key = w->q + t * q;
    w->weight = w->key + t * (size_t)x->head_dim;
    w->scores = w->weight + t * (size_t)x->n_heads;
    w->n_chosen = w->chosen + t * (size_t)w->most;
    w->table = (int32_t *)(w->n_chosen + t);
    for (size_t i = 0; i < blocks; i++)
        w->table[i] = (int32_t)i;
    k->bytes += floats * sizeof *w->q + ints * sizeof *w->chosen + (size_t)w->batch * w->stride;
    return 0;
}

void index_close(struct core *k)
{
    free(k->index.q);
    free(k->index.chosen);
    free(k->index.latents);
    k->index = (struct index_work){ 0 };
}

/* ---- choosing tokens ---- */

static void rotate(const struct index_job *j, int token, float *x, int n_heads)
{
    const struct core *k = j->k;
    const int table = k->c->rope_of[j->index];
    if (table < 0)
        return;
    const struct rope *r = &k->c->ropes[table];
    const size_t at = (size_t)token * (size_t)(r->dim / 2);
    k->k->rope(x, k->cos[table] + at, k->sin[table] + at, n_heads, (size_t)k->c->indexer.head_dim, r->dim,
               k->c->indexer.pairs);
}

/* Rotate a token's queries, and norm and rotate its key; the factors of both are moved to the
 * weights. */
static void prepare_token(void *arg, int t, int thread)
{
    (void)thread;
    const struct index_job *j = arg;
    const struct indexer *x = &j->k->c->indexer;
    const struct index_work *w = &j->k->index;
    float *key = w->key + (size_t)t * (size_t)x->head_dim, *weight = w->weight + (size_t)t * (size_t)x->n_heads;
    const float by = 1 / sqrtf((float)x->head_dim) / sqrtf((float)x->n_heads);
    rotate(j, t, w->q + (size_t)t * (size_t)(x->n_heads * x->head_dim), x->n_heads);
    j->k->k->layer_norm(key, key, j->l->index_norm.w, j->l->index_norm.b, x->head_dim, 1e-6f);
    rotate(j, t, key, 1);
    for (int h = 0; h < x->n_heads; h++)
        weight[h] *= by;
}

static void choose_token(void *arg, int slot, int thread)
{
    (void)thread;
    const struct index_job *j = arg;
    const struct index_work *w = &j->k->index;
    const int token = j->first + slot;
    w->n_chosen[token] = sparse_choose(w->scores + (size_t)slot * (size_t)w->room, j->k->pos[token] + 1, w->most,
                                      w->chosen + (size_t)token * (size_t)w->most);
}

static void store_keys(const struct index_job *j)
{
    const struct core *k = j->k;
    const int dim = k->c->indexer.head_dim;
    for (int item = 0; item < j->s->n_items; item++)
        for (int i = 0; i < j->s->items[item].n_tokens; i++) {
            const int pos = j->s->items[item].pos + i;
            k->k->kv_store_key(k->types.key, sparse_block(k, j->s, item, pos / KV_BLOCK) + j->keys_at, pos % KV_BLOCK,
                               k->index.key + (size_t)(j->s->offset[item] + i) * (size_t)dim, dim);
        }
}

int index_run(struct core *k, const struct step *s, const struct layer *l, int index, const struct act_input *in,
              const struct act_input *q_a)
{
    const struct indexer *x = &k->c->indexer;
    struct index_work *w = &k->index;
    const int n = s->n_tokens;
    struct index_job j = { .k = k, .s = s, .l = l, .index = index,
                           .keys_at = kv_block_bytes(k->types.key, k->c->head_dim) };
    const struct sparse_scores scores = {
        .keys = { .k = k, .s = s, .at = j.keys_at, .rate = 1, .slots = KV_BLOCK }, .q = w->q, .weight = w->weight,
        .weight_stride = x->n_heads, .out = w->scores, .room = w->room };
    core_linear(k, &(struct op){ .l = &l->index_q, .in = q_a, .out = w->q, .ldo = (size_t)(x->n_heads * x->head_dim),
                                 .kind = OP_STORE }, 1, n, NULL);
    /* the same input without a quantized form, because q_a has overwritten that of `in` */
    const struct act_input plain = { .x = in->x, .ldx = in->ldx, .cols = in->cols };
    core_linear(k, (struct op[]){ { .l = &l->index_k, .in = &plain, .out = w->key, .ldo = (size_t)x->head_dim,
                                    .kind = OP_STORE },
                                  { .l = &l->index_w, .in = &plain, .out = w->weight, .ldo = (size_t)x->n_heads,
                                    .kind = OP_STORE } }, 2, n, NULL);
    pool_run(k->pool, n, prepare_token, &j);
    store_keys(&j);
    for (j.first = 0; j.first < n; j.first += w->batch) {
        j.n = n - j.first < w->batch ? n - j.first : w->batch;
        sparse_score(&scores, j.first, j.n);
        pool_run(k->pool, j.n, choose_token, &j);
    }
    return 0;
}

/* ---- attention to the chosen tokens ---- */

static int copy_jobs(const struct index_job *j)
{
    return ((j->k->index.most + KV_BLOCK - 1) / KV_BLOCK + COPY_BLOCKS - 1) / COPY_BLOCKS;
}

static void copy_part(void *arg, int i, int thread)
{
    (void)thread;
    const struct index_job *j = arg;
    const struct index_work *w = &j->k->index;
    const int slot = i / copy_jobs(j), token = j->first + slot, item = sparse_item(j->s, token);
    const int *chosen = w->chosen + (size_t)token * (size_t)w->most;
    const size_t block = kv_block_bytes(j->k->types.key, j->k->c->head_dim);
    for (int n = i % copy_jobs(j) * COPY_BLOCKS * KV_BLOCK, end = n + COPY_BLOCKS * KV_BLOCK;
         n < end && n < w->n_chosen[token]; n++)
        sparse_copy_key(j->k->types.key, j->k->c->head_dim,
                        w->latents + (size_t)slot * w->stride + (size_t)(n / KV_BLOCK) * block, KV_BLOCK, n % KV_BLOCK,
                        sparse_block(j->k, j->s, item, chosen[n] / KV_BLOCK), KV_BLOCK, chosen[n] % KV_BLOCK);
}

static void attend_part(void *arg, int i, int thread)
{
    const struct index_job *j = arg;
    const struct core *k = j->k;
    const struct config *c = k->c;
    const int slot = i / j->groups, token = j->first + slot, group = c->n_heads / j->groups, head = i % j->groups;
    const size_t hd = (size_t)c->head_dim, row = (size_t)c->n_heads * hd,
                 at = (size_t)(token - j->token0) * row + (size_t)(head * group) * hd;
    const struct attn a = {
        .q = k->q + at, .q_token_stride = row, .q_head_stride = hd, .out = k->att + at, .out_token_stride = row,
        .out_head_stride = hd, .n_tokens = 1, .n_q_heads = group, .head_dim = c->head_dim,
        .pos = k->index.n_chosen[token] - 1, .base = k->index.latents + (size_t)slot * k->index.stride,
        .table = k->index.table, .stride = kv_block_bytes(k->types.key, c->head_dim), .latent = c->mla.kv_rank,
        .kv = k->types, .scale = c->attn_scale, .softcap = c->attn_softcap };
    k->k->attention(&a, k->scratch[thread]);
}

int index_attend(struct core *k, const struct step *s, int index, const struct query_run *runs, int n_runs,
                 int token0)
{
    struct index_job j = { .k = k, .s = s, .index = index, .token0 = token0, .groups = k->attn_groups };
    int n = 0, sparse = 0;
    for (int i = 0; i < n_runs && k->c->indexed; i++) {
        n += runs[i].n;
        sparse |= s->items[runs[i].item].pos + runs[i].first + runs[i].n > k->c->indexer.top_k;
    }
    if (!sparse)
        return 0;
    for (j.first = token0; j.first < token0 + n; j.first += k->index.batch) {
        const int left = token0 + n - j.first;
        j.n = left < k->index.batch ? left : k->index.batch;
        pool_run(k->pool, j.n * copy_jobs(&j), copy_part, &j);
        pool_run(k->pool, j.n * j.groups, attend_part, &j);
    }
    return 1;
}
