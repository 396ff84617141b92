/* cpu_compress.c - compressed attention (deepseek_v4): a token attends to the keys of a window,
 * which are also the values, and to entries, each of which summarizes a run of earlier tokens.
 * Some layers have an indexer that chooses the entries; the others attend to all.
 *
 * An entry is, in each channel, a mean over the tokens of the run, weighted by a softmax; with an
 * indexer the tokens of the previous run count, too.  The sums are a state until the run is
 * complete, updated token by token; the entry then goes to the KV block of the run's last token.
 * The keys and entries that a token sees are copied side by side, and attention runs over the copy,
 * so results are bit-identical for every batch and every division of a prompt into chunks. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/cpu/cpu_attn.h"
#include "libcommon/cpu/cpu_ops.h"
#include "libcommon/cpu/cpu_sparse.h"

/* channels per job; tokens per job; sums per channel */
enum { CHANNELS = 64, COPY_TOKENS = 128, SUMS = 3 };

/* One kind of entries of a layer: those of attention, or those of its indexer. */
struct entries {
    const float *value, *score;             /* [tokens][width] */
    const float *bias;                      /* [rate][width] */
    const struct norm *norm;
    float *out;                             /* [tokens][dim]: the entry that ends with this token */
    int dim, width;                         /* width: 2 * dim if runs overlap */
    size_t state_at, kv_at;                 /* offset in the layer's state; in a KV block */
};

struct compress_job {
    struct core *k;
    const struct step *s;
    const struct layer *l;
    int index, rate, slots, first, n, groups;
    struct entries x;
    size_t index_at, entries_at;            /* offsets in a KV block */
};

/* ---- memory ---- */

static int has_rates(const struct config *c) { return c->rates != NULL; }

static size_t group_floats(const struct config *c)
{
    return (size_t)c->n_heads * (size_t)c->head_dim / (size_t)c->compressed.o_groups;
}

/* Floats per token in the buffers of compress_open. */
size_t compress_floats(const struct config *c)
{
    if (!has_rates(c))
        return 0;
    const struct indexer *x = &c->indexer;
    const size_t dim = (size_t)c->head_dim, index = (size_t)x->head_dim;
    return (size_t)c->mla.q_rank + 5 * dim + 5 * index + (size_t)x->n_heads * (index + 1) + group_floats(c) +
           core_rows_room(c->compressed.o_rank);
}

/* The most keys and entries that a token sees; *scored: the most entries that an indexer scores. */
static int seen_at_most(const struct config *c, int64_t max_len, int *scored)
{
    int64_t most = 0, n;
    *scored = 0;
    for (int i = 0; i < c->n_layers; i++) {
        const int64_t entries = c->rates[i] ? max_len / c->rates[i] + 1 : 0;
        n = entries;
        if (config_indexes(c, i)) {
            *scored = entries > *scored ? (int)entries : *scored;
            n = c->indexer.top_k < entries ? c->indexer.top_k : entries;
        }
        n += c->window[i] < max_len ? c->window[i] : max_len;
        most = n > most ? n : most;
    }
    return (int)most;
}

static size_t up16(size_t n) { return (n + 15) / 16 * 16; }

int compress_open(struct core *k, int64_t max_len, struct err *e)
{
    const struct config *c = k->c;
    const struct indexer *x = &c->indexer;
    struct compress_work *w = &k->compress;
    const size_t t = (size_t)k->max_tokens, dim = (size_t)c->head_dim, index = (size_t)x->head_dim;
    int scored;
    w->batch = 2 * pool_size(k->pool);
    w->most = seen_at_most(c, max_len, &scored);
    w->room = (int)up16((size_t)scored);
    const size_t blocks = ((size_t)w->most + KV_BLOCK - 1) / KV_BLOCK;
    w->stride = blocks * kv_block_bytes(k->types.key, c->head_dim);
    const size_t floats = t * compress_floats(c) + (size_t)w->batch * (size_t)w->room,
                 ints = (size_t)w->batch * ((size_t)w->most + 1) + blocks,
                 bytes = (size_t)pool_size(k->pool) *
                         kv_block_bytes(k->types.key, c->head_dim > x->head_dim ? c->head_dim : x->head_dim);
    w->q_a = malloc(floats * sizeof *w->q_a);
    w->chosen = malloc(ints * sizeof *w->chosen);
    w->keys = aligned_alloc(64, (size_t)w->batch * w->stride + bytes + 64);
    if (!w->q_a || !w->chosen || !w->keys)
        return err_nomem(e, "activations of compressed attention");
    /* attention also reads the slots after the last, with weight 0: they must not hold NaN */
    memset(w->keys, 0, (size_t)w->batch * w->stride + bytes);
    w->one = w->keys + (size_t)w->batch * w->stride;
    w->one_bytes = bytes / (size_t)pool_size(k->pool);
    w->value = w->q_a + t * (size_t)c->mla.q_rank;
    w->score = w->value + t * 2 * dim;
    w->entry = w->score + t * 2 * dim;
    w->index_value = w->entry + t * dim;
    w->index_score = w->index_value + t * 2 * index;
    w->index_entry = w->index_score + t * 2 * index;
    w->q = w->index_entry + t * index;
    w->weight = w->q + t * (size_t)x->n_heads * index;
    w->group = w->weight + t * (size_t)x->n_heads;
    w->tiles = w->group + t * group_floats(c);
    w->scores = w->q_a + t * compress_floats(c);
    w->n_chosen = w->chosen + (size_t)w->batch * (size_t)w->most;
    w->table = (int32_t *)(w->n_chosen + w->batch);
    for (size_t i = 0; i < blocks; i++)
        w->table[i] = (int32_t)i;
    k->bytes += floats * sizeof *w->q_a + ints * sizeof *w->chosen + (size_t)w->batch * w->stride + bytes;
    return 0;
}

void compress_close(struct core *k)
{
    free(k->compress.q_a);
    free(k->compress.chosen);
    free(k->compress.keys);
    k->compress = (struct compress_work){ 0 };
}

/* ---- entries ---- */

static void add(float *most, float *weights, float *sum, float score, float value)
{
    if (score <= *most) {
        const float by = expf(score - *most);
        *weights += by;
        *sum += by * value;
    } else {
        const float by = *weights > 0 ? expf(*most - score) : 0;
        *weights = *weights * by + 1;
        *sum = *sum * by + value;
        *most = score;
    }
}

static void empty(float *sums, int dim, int from, int to)
{
    for (int i = from; i < to; i++) {
        sums[i] = -INFINITY;
        sums[dim + i] = sums[2 * dim + i] = 0;
    }
}

/* Add an item's tokens to the sums of a run of channels.  State: sums [3][dim] for this entry,
 * followed by those of the next one if runs overlap. */
static void sum_channels(void *arg, int i, int thread)
{
    (void)thread;
    const struct compress_job *j = arg;
    const struct entries *x = &j->x;
    const int jobs = (x->dim + CHANNELS - 1) / CHANNELS, item = i / jobs, from = i % jobs * CHANNELS,
              to = from + CHANNELS < x->dim ? from + CHANNELS : x->dim, dim = x->dim, twice = x->width > dim;
    const struct batch_item *it = &j->s->items[item];
    float *now = j->k->states + (size_t)it->state * j->k->state_stride + j->s->state_at + x->state_at,
          *next = now + SUMS * dim;
    for (int t = 0; t < it->n_tokens; t++) {
        const int pos = it->pos + t, token = j->s->offset[item] + t, at = pos % j->rate;
        const float *value = x->value + (size_t)token * (size_t)x->width,
                    *score = x->score + (size_t)token * (size_t)x->width,
                    *bias = x->bias + (size_t)at * (size_t)x->width;
        if (at == 0 && (pos == 0 || !twice))
            empty(now, dim, from, to);
        else if (at == 0)
            for (int p = 0; p < SUMS; p++)
                memcpy(now + p * dim + from, next + p * dim + from, (size_t)(to - from) * sizeof *now);
        if (at == 0 && twice)
            empty(next, dim, from, to);
        for (int d = from; d < to; d++) {
            const int own = twice ? dim + d : d;
            add(now + d, now + dim + d, now + 2 * dim + d, score[own] + bias[own], value[own]);
            if (twice)
                add(next + d, next + dim + d, next + 2 * dim + d, score[d] + bias[d], value[d]);
        }
        for (int d = from; d < to && at == j->rate - 1; d++)
            x->out[(size_t)token * (size_t)dim + (size_t)d] = now[2 * dim + d] / now[dim + d];
    }
}

/* Rotate the last dimensions of n_heads rows by cos and sin. */
static void rotate(const struct core *k, float *x, int n_heads, int dim, const float *cosine, const float *sine)
{
    const int rope_dim = k->c->mla.rope_dim;
    k->k->rope(x + dim - rope_dim, cosine, sine, n_heads, (size_t)dim, rope_dim, 1);
}

/* Norm, rotate and store the entry that ends with a token. */
static void end_entry(void *arg, int token, int thread)
{
    const struct compress_job *j = arg;
    const struct core *k = j->k;
    const struct entries *x = &j->x;
    const struct rope *r = &k->c->ropes[k->c->rope_of[j->index]];
    const int pos = k->pos[token], entry = pos / j->rate, item = sparse_item(j->s, token);
    float *out = x->out + (size_t)token * (size_t)x->dim, cosine[r->dim / 2], sine[r->dim / 2];
    uint8_t *one = k->compress.one + (size_t)thread * k->compress.one_bytes, *to;
    int slot;
    if (pos % j->rate != j->rate - 1)
        return;
    k->k->rms_norm(out, out, x->norm->w, x->dim, k->c->norm_eps, 0);
    sparse_angles(r, entry, j->rate, cosine, sine);
    rotate(k, out, 1, x->dim, cosine, sine);
    k->k->kv_store_key(k->types.key, one, 0, out, x->dim);
    to = sparse_place(&(struct sparse_keys){ k, j->s, x->kv_at, j->rate, j->slots }, item, entry, &slot);
    sparse_copy_key(k->types.key, x->dim, to, j->slots, slot, one, KV_BLOCK, 0);
}

static void make_entries(struct compress_job *j, const struct entries *x)
{
    j->x = *x;
    pool_run(j->k->pool, j->s->n_items * ((x->dim + CHANNELS - 1) / CHANNELS), sum_channels, j);
    pool_run(j->k->pool, j->s->n_tokens, end_entry, j);
}

/* ---- choosing entries ---- */

/* Number of entries that a token sees: those of complete runs. */
static int n_entries(const struct compress_job *j, int token) { return (j->k->pos[token] + 1) / j->rate; }

/* Choose the entries that a token attends to, in ascending order. */
static void choose_token(void *arg, int slot, int thread)
{
    (void)thread;
    const struct compress_job *j = arg;
    struct compress_work *w = &j->k->compress;
    const int n = n_entries(j, j->first + slot), most = j->l->index_q.w.data && j->k->c->indexer.top_k < n
                                                            ? j->k->c->indexer.top_k : n;
    w->n_chosen[slot] = sparse_choose(w->scores + (size_t)slot * (size_t)w->room, n, most,
                                     w->chosen + (size_t)slot * (size_t)w->most);
}

static void prepare_index(void *arg, int t, int thread)
{
    (void)thread;
    const struct compress_job *j = arg;
    const struct core *k = j->k;
    const struct indexer *x = &k->c->indexer;
    const int table = k->c->rope_of[j->index];
    const size_t at = (size_t)t * (size_t)(k->c->ropes[table].dim / 2);
    const float by = 1 / sqrtf((float)x->head_dim) / sqrtf((float)x->n_heads);
    rotate(k, k->compress.q + (size_t)t * (size_t)(x->n_heads * x->head_dim), x->n_heads, x->head_dim,
           k->cos[table] + at, k->sin[table] + at);
    for (int h = 0; h < x->n_heads; h++)
        k->compress.weight[(size_t)t * (size_t)x->n_heads + (size_t)h] *= by;
}

/* ---- attention ---- */

static int first_seen(const struct compress_job *j, int token)
{
    const int first = j->k->pos[token] - j->k->c->window[j->index] + 1;
    return first > 0 ? first : 0;
}

static int copy_jobs(const struct compress_job *j) { return (j->k->compress.most + COPY_TOKENS - 1) / COPY_TOKENS; }

/* Copy the keys of the window, then the chosen entries. */
static void copy_part(void *arg, int i, int thread)
{
    (void)thread;
    const struct compress_job *j = arg;
    const struct core *k = j->k;
    const struct compress_work *w = &k->compress;
    const int slot = i / copy_jobs(j), token = j->first + slot, item = sparse_item(j->s, token), dim = k->c->head_dim,
              begin = first_seen(j, token), window = k->pos[token] - begin + 1, all = window + w->n_chosen[slot];
    const int *chosen = w->chosen + (size_t)slot * (size_t)w->most;
    const size_t block = kv_block_bytes(k->types.key, dim);
    const struct sparse_keys entries = { k, j->s, j->entries_at, j->rate, j->slots };
    for (int n = i % copy_jobs(j) * COPY_TOKENS, end = n + COPY_TOKENS; n < end && n < all; n++) {
        uint8_t *to = w->keys + (size_t)slot * w->stride + (size_t)(n / KV_BLOCK) * block;
        const int pos = begin + n;
        int at;
        if (n < window) {
            sparse_copy_key(k->types.key, dim, to, KV_BLOCK, n % KV_BLOCK,
                            sparse_block(k, j->s, item, pos / KV_BLOCK), KV_BLOCK, pos % KV_BLOCK);
        } else {
            const uint8_t *from = sparse_place(&entries, item, chosen[n - window], &at);
            sparse_copy_key(k->types.key, dim, to, KV_BLOCK, n % KV_BLOCK, from, j->slots, at);
        }
    }
}

static void attend_part(void *arg, int i, int thread)
{
    const struct compress_job *j = arg;
    const struct core *k = j->k;
    const struct config *c = k->c;
    const int slot = i / j->groups, token = j->first + slot, group = c->n_heads / j->groups, head = i % j->groups;
    const size_t hd = (size_t)c->head_dim, row = (size_t)c->n_heads * hd,
                 at = (size_t)token * row + (size_t)(head * group) * hd;
    const struct attn a = {
        .q = k->q + at, .q_token_stride = row, .q_head_stride = hd, .out = k->att + at, .out_token_stride = row,
        .out_head_stride = hd, .n_tokens = 1, .n_q_heads = group, .head_dim = c->head_dim,
        .pos = k->pos[token] - first_seen(j, token) + k->compress.n_chosen[slot],
        .base = k->compress.keys + (size_t)slot * k->compress.stride, .table = k->compress.table,
        .stride = kv_block_bytes(k->types.key, c->head_dim), .latent = c->head_dim, .kv = k->types,
        .scale = c->attn_scale, .sinks = j->l->sinks ? j->l->sinks + head * group : NULL };
    k->k->attention(&a, k->scratch[thread]);
}

/* Compute attention, a batch of tokens at a time: choose entries, copy the keys and entries that
 * are seen, attend to the copy. */
static void attend(struct compress_job *j)
{
    const struct compress_work *w = &j->k->compress;
    const int n = j->s->n_tokens, batch = w->batch;
    const struct sparse_scores scores = {
        .keys = { .k = j->k, .s = j->s, .at = j->index_at, .rate = j->rate, .slots = j->slots }, .q = w->q,
        .weight = w->weight, .weight_stride = j->k->c->indexer.n_heads, .out = w->scores, .room = w->room };
    for (j->first = 0; j->first < n; j->first += batch) {
        j->n = n - j->first < batch ? n - j->first : batch;
        if (config_indexes(j->k->c, j->index))
            sparse_score(&scores, j->first, j->n);
        pool_run(j->k->pool, j->n, choose_token, j);
        pool_run(j->k->pool, j->n * copy_jobs(j), copy_part, j);
        pool_run(j->k->pool, j->n * j->groups, attend_part, j);
    }
}

/* ---- queries, keys, the output ---- */

static void norm_query(void *arg, int t, int thread)
{
    (void)thread;
    const struct compress_job *j = arg;
    const struct core *k = j->k;
    float *q = k->compress.q_a + (size_t)t * (size_t)k->c->mla.q_rank;
    k->k->rms_norm(q, q, j->l->q_a_norm.w, k->c->mla.q_rank, k->c->norm_eps, 0);
}

/* Norm and rotate the heads of a token's query, and its key. */
static void rotate_token(void *arg, int t, int thread)
{
    (void)thread;
    const struct compress_job *j = arg;
    const struct core *k = j->k;
    const struct config *c = k->c;
    const int table = c->rope_of[j->index], dim = c->head_dim;
    const size_t at = (size_t)t * (size_t)(c->ropes[table].dim / 2);
    float *q = k->q + (size_t)t * (size_t)c->n_heads * (size_t)dim, *key = k->key + (size_t)t * (size_t)dim;
    for (int h = 0; h < c->n_heads; h++)
        k->k->rms_norm(q + h * dim, q + h * dim, NULL, dim, c->norm_eps, 0);
    k->k->rms_norm(key, key, j->l->k_norm.w, dim, c->norm_eps, 0);
    rotate(k, q, c->n_heads, dim, k->cos[table] + at, k->sin[table] + at);
    rotate(k, key, 1, dim, k->cos[table] + at, k->sin[table] + at);
}

/* Rotate the output back, because its values were rotated keys. */
static void rotate_back(void *arg, int t, int thread)
{
    (void)thread;
    const struct compress_job *j = arg;
    const struct core *k = j->k;
    const struct config *c = k->c;
    const int table = c->rope_of[j->index], half = c->ropes[table].dim / 2;
    const float *cosine = k->cos[table] + (size_t)t * (size_t)half, *sine = k->sin[table] + (size_t)t * (size_t)half;
    float back[half];
    for (int d = 0; d < half; d++)
        back[d] = -sine[d];
    rotate(k, k->att + (size_t)t * (size_t)c->n_heads * (size_t)c->head_dim, c->n_heads, c->head_dim, cosine, back);
}

/* k->mlp = for each group of heads, its rows of o_a times the group's part of k->att. */
static void group_outputs(struct core *k, const struct layer *l, int n)
{
    const struct config *c = k->c;
    const int rank = c->compressed.o_rank, cols = (int)group_floats(c), all = c->compressed.o_groups * rank;
    const size_t row = (size_t)c->n_heads * (size_t)c->head_dim;
    struct compress_work *w = &k->compress;
    for (int g = 0; g < c->compressed.o_groups; g++) {
        struct act_input in;
        for (int t = 0; t < n; t++)
            memcpy(w->group + (size_t)t * (size_t)cols, k->att + (size_t)t * row + (size_t)g * (size_t)cols,
                   (size_t)cols * sizeof *w->group);
        core_layer_input(k, &in, w->group, cols, n, l, INPUT_STATE_O);
        core_linear_rows(k, &l->o_a, &in, g * rank, rank, w->tiles, n, k->mlp + (size_t)(g * rank), (size_t)all);
    }
}

/* Compute the entries of this step, and those of the indexer with its queries and weights. */
static void run_entries(struct compress_job *j, const struct act_input *in, const struct act_input *q_a)
{
    struct core *k = j->k;
    const struct layer *l = j->l;
    const struct indexer *x = &k->c->indexer;
    struct compress_work *w = &k->compress;
    const int n = j->s->n_tokens, dim = k->c->head_dim, indexes = config_indexes(k->c, j->index),
              width = indexes ? 2 * dim : dim, index = x->head_dim;
    /* the same input without a quantized form, because q_a has overwritten that of `in` */
    const struct act_input plain = { .x = in->x, .ldx = in->ldx, .cols = in->cols };
    const struct op ops[] = {
        { .l = &l->comp_value, .in = &plain, .out = w->value, .ldo = (size_t)width, .kind = OP_STORE },
        { .l = &l->comp_score, .in = &plain, .out = w->score, .ldo = (size_t)width, .kind = OP_STORE },
        { .l = &l->index_value, .in = &plain, .out = w->index_value, .ldo = 2 * (size_t)index, .kind = OP_STORE },
        { .l = &l->index_score, .in = &plain, .out = w->index_score, .ldo = 2 * (size_t)index, .kind = OP_STORE },
        { .l = &l->index_w, .in = &plain, .out = w->weight, .ldo = (size_t)x->n_heads, .kind = OP_STORE } };
    core_linear(k, ops, indexes ? 5 : 2, n, NULL);
    make_entries(j, &(struct entries){ .value = w->value, .score = w->score, .bias = l->comp_bias,
                                       .norm = &l->comp_norm, .out = w->entry, .dim = dim, .width = width,
                                       .kv_at = j->entries_at });
    if (!indexes)
        return;
    core_linear(k, &(struct op){ .l = &l->index_q, .in = q_a, .out = w->q, .ldo = (size_t)(x->n_heads * index),
                                 .kind = OP_STORE }, 1, n, NULL);
    pool_run(k->pool, n, prepare_index, j);
    make_entries(j, &(struct entries){ .value = w->index_value, .score = w->index_score, .bias = l->index_bias,
                                       .norm = &l->index_norm, .out = w->index_entry, .dim = index, .width = 2 * index,
                                       .state_at = (size_t)(2 * SUMS * dim), .kv_at = j->index_at });
}

int compress_run(struct core *k, const struct step *s, const struct layer *l, int index, const float *h,
                 const float **o, int *cols)
{
    const struct config *c = k->c;
    const int n = s->n_tokens;
    struct compress_job j = { .k = k, .s = s, .l = l, .index = index, .rate = c->rates[index],
                              .slots = config_entries(c, index), .groups = k->attn_groups,
                              .entries_at = kv_block_bytes(k->types.key, c->head_dim) };
    struct act_input in, q_a;
    j.index_at = j.entries_at + kv_entries_bytes(k->types.key, c->head_dim, j.slots);
    core_layer_input(k, &in, h, c->hidden_size, n, l, INPUT_QKV);
    if (core_hook(k, index, ROLE_Q, &in, n))
        return 1;
    core_linear(k, (struct op[]){ { .l = &l->q_a, .in = &in, .out = k->compress.q_a, .ldo = (size_t)c->mla.q_rank,
                                    .kind = OP_STORE },
                                  { .l = &l->k, .in = &in, .out = k->key, .ldo = (size_t)c->head_dim,
                                    .kind = OP_STORE } }, 2, n, core_next(k, index, LOOP_QKV));
    pool_run(k->pool, n, norm_query, &j);
    core_layer_input(k, &q_a, k->compress.q_a, c->mla.q_rank, n, l, INPUT_Q_A);
    if (core_hook(k, index, ROLE_Q_A, &q_a, n))
        return 1;
    core_linear(k, &(struct op){ .l = &l->q, .in = &q_a, .out = k->q, .ldo = (size_t)(c->n_heads * c->head_dim),
                                 .kind = OP_STORE }, 1, n, NULL);
    pool_run(k->pool, n, rotate_token, &j);
    attn_store_latents(k, s);
    if (j.rate) {
        run_entries(&j, &in, &q_a);
        attend(&j);
    } else {
        attn_run_latent(k, s, l, index, k->runs, s->n_runs, 0);
    }
    pool_run(k->pool, n, rotate_back, &j);
    group_outputs(k, l, n);
    *o = k->mlp;
    *cols = c->compressed.o_groups * c->compressed.o_rank;
    return 0;
}
