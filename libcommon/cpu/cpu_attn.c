/* cpu_attn.c - run attention in jobs: one KV head with its query heads, and a run of tokens of one
 * sequence.
 *
 * A job that has all tokens of its item (decoding, short prompts) also rotates and stores their
 * keys and values; otherwise a separate loop does so first, because the jobs of an item read each
 * other's keys.  If there are few jobs (decoding one sequence), the parts of a long context are
 * separate jobs, and the one that finishes last merges them.  Parts and their order are those of
 * kernels.h, so results are the same.  If there are few jobs and tokens attend to chosen pages,
 * jobs of a loop before choose the pages. */
#include "libcommon/cpu/cpu_attn.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/cpu/cpu_pages.h"
#include "libcommon/cpu/cpu_pattern.h"
#include "libcommon/cpu/hadamard.h"
#include "libcommon/kernels/approx.h"
#include "libcommon/quant/kvscale.h"

/* A job over consecutive runs of queries.  The first row of q and att is token token0 of the step.
 * latent: 1 if keys are rotated and stored already.  types: of the layer's keys and values; tail: 1
 * if they are stored as f16 as well.  page_ranges: the most ranges of a run whose pages are scored
 * in in jobs; 0: no run does so. */
struct attn_job { struct core *k; const struct step *s; const struct layer *l; int index, latent,
                  group; struct query_run *runs; int n_runs, token0, head_dim, groups;
                  struct kv_types types; int tail; size_t k_bytes, v_bytes;
                  int page_ranges; };
/* Whether queries of the layer see all keys before them, if the options do not limit them. */
static int sees_all(const struct attn_job *j)
{
    return !j->latent && !j->s->in_windows && !config_layer_window(j->k->c, j->index, 0);
}
/* Whether the layer has summaries of pages. */
static int has_pages(const struct attn_job *j) { return j->k->pages && sees_all(j); }
static int has_pattern(const struct attn_job *j) { return j->k->pattern.unit && sees_all(j); }

enum {
    /* Most heads of a job that reads latents.  Fewer heads per job would read the latents more
     * often, more would leave threads idle. */
    LATENT_HEADS = 8,
    /* most tokens of consecutive runs over latents, and most bytes of their q and att */
    LATENT_TOKENS = 128,
    LATENT_BYTES = 16 << 20,
};

int attn_groups(const struct config *c)
{
    if (!c->mla.kv_rank && !c->rates)
        return c->n_kv_heads;
    int n = LATENT_HEADS;
    while (c->n_heads % n)
        n--;
    return c->n_heads / n;
}

/* ---- a window in every layer, with sinks (arXiv:2309.17453) ---- */

/* Returns 1 if the layer sees only the newest k->window tokens and the sinks.  Positions are then
 * those in a cache that has just these tokens: once the sequence is longer than this cache, a query
 * that sees the sinks is at the last position of the cache.  Stored keys keep their rotation,
 * because only differences of positions matter. */
static int streams(const struct core *k, int index) { return config_streams(k->c, index, k->window); }

static int window_of(const struct core *k, int index) { return streams(k, index) ? k->window : k->c->window[index]; }

/* The position of a query at pos in that cache. */
static int position(const struct core *k, int pos)
{
    return k->window && pos >= k->window + k->sinks ? k->window + k->sinks - 1 : pos;
}

static void angles(const struct core *k, const struct rope *r, int pos, int is_long, float *cosine, float *sine)
{
    const float *freq = is_long ? r->inv_freq_long : r->inv_freq, scale = is_long ? r->scale_long : r->scale;
    for (int d = 0; d < r->dim / 2; d++) {
        /* Angles within the model's context are computed in f32, as in transformers, because that
         * rounding is part of the model; angles beyond it are computed in double. */
        const double angle = k->window && pos >= k->c->max_len ? (double)pos * (double)freq[d]
                                                               : (double)((float)pos * freq[d]);
        cosine[d] = (float)cos(angle) * scale;
        sine[d] = (float)sin(angle) * scale;
    }
}

static int run_tokens_of(const struct config *c, int groups)
{
    const int group = c->n_heads / groups;
    return group < ATTN_ROWS ? ATTN_ROWS / group : 1;
}

/* The most rows (queries of one head) of a job. */
static size_t stream_rows(const struct core *k)
{
    int group = 1;
    for (int i = 0; i < k->c->n_layers; i++)
        if (k->c->n_heads / config_kv_heads(k->c, i) > group)
            group = k->c->n_heads / config_kv_heads(k->c, i);
    return (size_t)(run_tokens_of(k->c, k->attn_groups) * group);
}

int attn_open_stream(struct core *k, int window, int sinks, struct err *e)
{
    const struct config *c = k->c;
    size_t far = 0;
    for (int i = 0; i < c->n_ropes; i++)
        far += 2 * (size_t)c->ropes[i].dim;
    k->stream_floats = (stream_rows(k) * ((size_t)c->head_dim + 2 * attn_partial(c->head_dim)) + 15) / 16 * 16;
    const size_t n = k->stream_floats * (size_t)pool_size(k->pool) + far;
    if (!(k->stream = aligned_alloc(64, (n * sizeof(float) + 63) / 64 * 64)))
        return err_nomem(e, "attention");
    k->bytes += n * sizeof(float);
    k->window = window;
    k->sinks = sinks;
    float *at = k->stream + k->stream_floats * (size_t)pool_size(k->pool);
    for (int i = 0; i < c->n_ropes; i++) {
        const struct rope *r = &c->ropes[i];
        k->far[i] = at;
        for (int is_long = 0; is_long < 2; is_long++, at += r->dim)
            angles(k, r, window + sinks - 1, is_long && r->inv_freq_long, at, at + r->dim / 2);
    }
    return 0;
}

void attn_close_stream(struct core *k) { free(k->stream); }

/* Norm and rotate one head's row, in the order of the architecture.  far: rotate it for the last
 * position of the cache of sinks and window. */
static void prepare(const struct attn_job *j, float *x, const struct norm *norm, int head, int token, int far)
{
    const struct core *k = j->k;
    const struct config *c = k->c;
    const int table = c->rope_of[j->index], hd = j->head_dim;
    const int per_head = c->qk_norm == QK_NORM_HEAD || c->qk_norm == QK_NORM_EACH;
    for (int pass = 0; pass < 2; pass++) {
        if ((pass == 0) == (c->qk_norm_after_rope != 0)) {
            if (table >= 0) {
                const struct rope *r = &c->ropes[table];
                const size_t at = (size_t)token * (size_t)(r->dim / 2);
                const float *cosine = far ? k->far[table] + (k->long_rope[token] ? r->dim : 0) : k->cos[table] + at;
                k->k->rope(x, cosine, far ? cosine + r->dim / 2 : k->sin[table] + at, 1, (size_t)hd, r->dim, r->pairs);
            }
        } else if (per_head && (table >= 0 || !c->qk_norm_roped)) {
            const size_t at = c->qk_norm == QK_NORM_EACH ? (size_t)head * (size_t)hd : 0;
            const float *w = norm->w ? norm->w + at : NULL, *b = norm->b ? norm->b + at : NULL;
            if (c->qk_norm_kind == NORM_RMS)
                k->k->rms_norm(x, x, w, hd, c->qk_norm_eps, c->qk_norm_offset);
            else
                k->k->layer_norm(x, x, w, b, hd, c->qk_norm_eps);
        }
    }
}

/* 1 if vectors of this layer are rotated by hadamard_rotate() before they are rounded to `type`. */
static int is_rotated(const struct attn_job *j, enum kv_type type)
{
    return kv_rotated(type) && !j->latent && !config_indexes(j->k->c, j->index);
}

/* Block table of this layer. */
static const int32_t *table_of(const struct attn_job *j, const struct batch_item *it)
{
    return j->s->in_windows ? it->window_table : it->table;
}

static size_t stride_of(const struct attn_job *j) { return j->s->in_windows ? j->k->window_stride : j->k->kv_stride; }
static uint8_t *base_of(const struct attn_job *j) { return j->s->in_windows ? j->k->window_kv : j->k->kv; }

static size_t head_offset(const struct attn_job *j, int head)
{
    return j->s->kv_at + (j->latent ? 0 : (size_t)head * (j->k_bytes + j->v_bytes));
}

/* For the tail's blocks: tail_bytes() returns the bytes of the keys (or of the values) of one head,
 * tail_offset() the offset of the keys of a head. */
static size_t tail_bytes(const struct attn_job *j) { return kv_block_bytes(KV_F16, j->head_dim); }
static size_t tail_offset(const struct attn_job *j, int head)
{
    return j->s->tail_at + (size_t)head * 2 * tail_bytes(j);
}

/* Returns the distance in bytes from a head's keys (or values) to the scales that all heads of the
 * block share.  These scales follow the last head: first those of the keys, then those of the
 * values. */
static size_t key_scales(const struct attn_job *j, int head)
{
    return (size_t)(j->groups - head) * (j->k_bytes + j->v_bytes);
}
static size_t value_scales(const struct attn_job *j, int head)
{
    return key_scales(j, head) - j->k_bytes + kv_shared_bytes(j->types.key);
}

static struct page_place page_of(const struct attn_job *j, int head, uint8_t *block)
{
    return (struct page_place){ .head = head, .n_heads = j->groups, .head_dim = j->head_dim,
                                .offset = j->s->pages_at, .at = block ? block + j->s->pages_at : NULL };
}

/* Compute the summary of a page, a complete KV block of an item. */
static void summarize_page(const struct attn_job *j, const struct batch_item *it, int head, int block)
{
    const struct core *k = j->k;
    uint8_t *at = k->kv + (size_t)it->table[block] * k->kv_stride;
    const struct page_place place = page_of(j, head, at);
    const uint8_t *keys = at + head_offset(j, head);
    const size_t scales = kv_shares_scale(j->types.key) ? key_scales(j, head)
                                                        : kv_codes_bytes(j->types.key, j->head_dim);
    /* take the keys from the tail, which has them as f16 */
    if (j->tail)
        keys = k->window_kv + (size_t)it->window_table[block] * k->window_stride + tail_offset(j, head);
    pages_summarize(&place, keys, scales, j->tail ? KV_F16 : j->types.key, is_rotated(j, j->types.key));
}

/* Returns 1 if one job stores all heads of a token, because they share a scale. */
static int stores_heads_together(const struct attn_job *j)
{
    return !j->latent && (kv_shares_scale(j->types.key) || kv_shares_scale(j->types.value));
}

/* Norm and rotate one head's key and value of a token, as they are stored. */
static void prepare_pair(const struct attn_job *j, float *key, float *value, int head, int token)
{
    const struct core *k = j->k;
    if (config_key_is_value(k->c, j->index))
        memcpy(value, key, (size_t)j->head_dim * sizeof *value);
    if (k->c->v_norm)
        k->k->rms_norm(value, value, NULL, j->head_dim, k->c->norm_eps, 0);
    prepare(j, key, &j->l->k_norm, head, token, 0);
    if (is_rotated(j, j->types.key))
        hadamard_rotate(key, j->head_dim);
    if (is_rotated(j, j->types.value))
        hadamard_rotate(value, j->head_dim);
}

/* Store a head's key or value.  row: those of all heads of the token.  to: this head's block, whose
 * shared scales begin at to + scales. */
static void store_vector(const struct attn_job *j, enum kv_type type, uint8_t *to, size_t scales, int slot, int is_key,
                         const float *row, int head)
{
    const float *x = row + (size_t)head * (size_t)j->head_dim;
    if (kv_shares_scale(type)) {
        float *scale = (float *)(void *)(to + scales) + slot;
        if (head == 0)
            *scale = kv_t2_scale(row, j->groups * j->head_dim);
        kv_t2_store(to, slot, is_key, x, j->head_dim, *scale);
    } else if (is_key) {
        j->k->k->kv_store_key(type, to, slot, x, j->head_dim);
    } else {
        j->k->k->kv_store_value(type, to, slot, x, j->head_dim);
    }
}

/* Store keys and values of tokens [first, first + n) of an item in the cache. */
static void store(const struct attn_job *j, int item, int head, int first, int n)
{
    const struct core *k = j->k;
    const struct batch_item *it = &j->s->items[item];
    const size_t hd = (size_t)j->head_dim, row = (size_t)j->groups * hd;
    const int together = stores_heads_together(j);
    for (int i = first; i < first + n; i++) {
        const int token = j->s->offset[item] + i, pos = it->pos + i;
        float *keys = k->key + (size_t)token * row, *values = k->value + (size_t)token * row,
              *key = keys + (size_t)head * hd, *value = values + (size_t)head * hd;
        uint8_t *block = base_of(j) + (size_t)table_of(j, it)[pos / KV_BLOCK] * stride_of(j) + head_offset(j, head);
        if (!together)
            prepare_pair(j, key, value, head, token);
        for (int h = 0; h < j->groups && together && head == 0; h++)
            prepare_pair(j, keys + (size_t)h * hd, values + (size_t)h * hd, h, token);
        store_vector(j, j->types.key, block, key_scales(j, head), pos % KV_BLOCK, 1, keys, head);
        store_vector(j, j->types.value, block + j->k_bytes, value_scales(j, head), pos % KV_BLOCK, 0, values, head);
        if (j->tail) {
            uint8_t *tail = k->window_kv + (size_t)it->window_table[pos / KV_BLOCK] * k->window_stride +
                            tail_offset(j, head);
            k->k->kv_store_key(KV_F16, tail, pos % KV_BLOCK, key, j->head_dim);
            k->k->kv_store_value(KV_F16, tail + tail_bytes(j), pos % KV_BLOCK, value, j->head_dim);
        }
        if (pos % KV_BLOCK == KV_BLOCK - 1 && has_pages(j))
            summarize_page(j, it, head, pos / KV_BLOCK);
    }
}

/* Store the whole blocks of a run: tokens of a block share bytes of packed keys, so no block may be
 * divided between threads. */
static void store_part(void *arg, int i, int thread)
{
    (void)thread;
    const struct attn_job *j = arg;
    const int n_jobs = stores_heads_together(j) ? 1 : j->groups;
    const struct query_run *c = &j->runs[i / n_jobs];
    const struct batch_item *it = &j->s->items[c->item];
    const int first = attn_next_block(it, c->first), n = attn_next_block(it, c->first + c->n) - first;
    if (n_jobs > 1) {
        store(j, c->item, i % n_jobs, first, n);
        return;
    }
    for (int head = 0; head < j->groups; head++)
        store(j, c->item, head, first, n);
}

/* llama4, ministral3: queries grow with the logarithm of their position (arXiv:2501.19399). */
static void temper(const struct config *c, float *q, int head_dim, int pos)
{
    const float by = log1pf(floorf((float)(pos + c->temperature_first) / (float)c->temperature_floor)) *
                     c->temperature_scale + 1;
    for (int d = 0; d < head_dim; d++)
        q[d] *= by;
}

/* Rotate the queries of a run and KV head, in q [n][group] (strides in floats). */
static void prepare_queries(const struct attn_job *j, const struct query_run *ch, int head, float *q,
                            size_t token_stride, int far)
{
    const struct config *c = j->k->c;
    const int token = j->s->offset[ch->item] + ch->first, tempered = c->temperature_scale != 0 &&
        (c->temperature_roped || c->rope_of[j->index] < 0);
    for (int t = 0; t < ch->n && (!j->latent || tempered); t++)
        for (int g = 0; g < j->group; g++) {
            float *row = q + (size_t)t * token_stride + (size_t)(g * j->head_dim);
            if (!j->latent)
                prepare(j, row, &j->l->q_norm, head * j->group + g, token + t, far);
            if (tempered)
                temper(c, row, j->head_dim, position(j->k, j->k->pos[token + t]));
            if (is_rotated(j, j->types.key))
                hadamard_rotate(row, j->head_dim);
        }
}

/* Rotate the outputs of a run and KV head back. */
static void rotate_outputs(const struct attn_job *j, const struct attn *a)
{
    for (int t = 0; t < a->n_tokens && is_rotated(j, j->types.value); t++)
        for (int g = 0; g < j->group; g++)
            hadamard_rotate(a->out + (size_t)t * a->out_token_stride + (size_t)(g * j->head_dim), j->head_dim);
}

static const struct query_run *run_of_job(const struct attn_job *j, int job)
{
    const struct query_run *c = j->runs;
    int low = 0, high = j->n_runs;                /* c[low].job <= job < c[high].job */
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        if (c[middle].job <= job)
            low = middle;
        else
            high = middle;
    }
    return &c[low];
}

/* Returns 1 if a run that starts at this position attends to sinks outside of its window. */
static int beyond(const struct attn_job *j, int pos)
{
    return !j->latent && streams(j->k, j->index) && j->k->sinks && pos >= j->k->window;
}

/* Compute the partial results of a run for the sinks before its window: partial
 * [tokens][group][attn_partial(head_dim)].  a->q has the queries rotated for their own positions,
 * far [tokens][group][head_dim] those rotated for the last position of the cache. */
static void attend_sinks(const struct attn_job *j, const struct attn *a, const float *far, float *partial, int thread)
{
    const struct core *k = j->k;
    const size_t hd = (size_t)j->head_dim, group = (size_t)j->group;
    for (int t = 0, n; t < a->n_tokens; t += n) {
        const int first = a->pos + t - k->window + 1, is_far = first > k->sinks;
        struct attn s = *a;
        n = is_far && !a->alibi ? a->n_tokens - t : 1;
        s.q = is_far ? far + (size_t)t * group * hd : a->q + (size_t)t * a->q_token_stride;
        s.q_token_stride = is_far ? group * hd : a->q_token_stride;
        s.n_tokens = n;
        s.pos = is_far && a->alibi ? k->window + k->sinks - 1 : a->pos + t;
        s.window = 0;
        s.end = is_far ? k->sinks : first;
        s.part = 0;
        s.partial = partial + (size_t)t * group * attn_partial(j->head_dim);
        k->k->attention(&s, k->scratch[thread]);
    }
}

/* Merge the result of one more part into a row, which holds o, then l [16] and m. */
static void merge_rows(float *to, const float *from, int head_dim)
{
    const size_t size = attn_partial(head_dim);
    float *l = to + size - 32, *m = to + size - 16;
    const float most = from[size - 16] > *m ? from[size - 16] : *m, was = approx_exp2(*m - most),
                now = approx_exp2(from[size - 16] - most);
    for (int i = 0; i < 16; i++)
        l[i] = l[i] * was + from[size - 32 + (size_t)i] * now;
    for (int d = 0; d < head_dim; d++)
        to[d] = to[d] * was + from[d] * now;
    *m = most;
}

/* Merge a part into the rows that see it. */
static void merge_part(const struct attn_job *j, const struct attn *a, int part, float *to, const float *from)
{
    const size_t size = attn_partial(j->head_dim);
    for (int t = 0; t < a->n_tokens; t++)
        if (part >= (a->pos + t - j->k->window + 1) / ATTN_PART && part <= (a->pos + t) / ATTN_PART)
            for (int g = 0; g < j->group; g++)
                merge_rows(to + (size_t)(t * j->group + g) * size, from + (size_t)(t * j->group + g) * size,
                           j->head_dim);
}

static void finish_rows(const struct attn_job *j, const struct attn *a, const float *from)
{
    const size_t size = attn_partial(j->head_dim);
    for (int t = 0; t < a->n_tokens; t++)
        for (int g = 0; g < j->group; g++, from += size) {
            float *out = a->out + (size_t)t * a->out_token_stride + (size_t)g * a->out_head_stride, sum = 0, by = 1;
            for (int i = 0; i < 16; i++)
                sum += from[size - 32 + (size_t)i];
            /* the model's sinks count in the sum of weights but have no values */
            if (a->sinks) {
                const float s = a->sinks[g] * 1.44269504f, m = from[size - 16], most = s > m ? s : m;
                by = approx_exp2(m - most);
                sum = sum * by + approx_exp2(s - most);
            }
            for (int d = 0; d < j->head_dim; d++)
                out[d] = from[d] * by / sum;
        }
}

/* Compute attention for a run that also sees sinks outside of its window (beyond()): over the whole
 * context or, if the context is split among jobs, over its part `part` alone.  own: receives the
 * queries of the run, rotated for their own positions. */
static void attend_beyond(const struct attn_job *j, const struct query_run *ch, int head, int part, struct attn *a,
                          float *own, int thread)
{
    struct core *k = j->k;
    const size_t hd = (size_t)j->head_dim, row = (size_t)j->group * hd,
                 size = (size_t)(ch->n * j->group) * attn_partial(j->head_dim);
    float *far = k->stream + (size_t)thread * k->stream_floats, *sum = far + stream_rows(k) * hd,
          *one = sum + stream_rows(k) * attn_partial(j->head_dim);
    const int split = ch->n_parts > 1, first = (a->pos - k->window + 1) / ATTN_PART,
              last = (a->pos + ch->n - 1) / ATTN_PART;
    float *partial = split ? k->partial + ch->partial + (size_t)head * (size_t)(ch->n_parts + 1) * size : NULL,
          *q = split ? k->rotated[thread] : far;
    for (int t = 0; t < ch->n; t++) {
        memcpy(far + (size_t)t * row, a->q + (size_t)t * a->q_token_stride, row * sizeof *far);
        if (split)
            memcpy(q + (size_t)t * row, a->q + (size_t)t * a->q_token_stride, row * sizeof *far);
    }
    prepare_queries(j, ch, head, far, row, 1);
    if (split) {
        prepare_queries(j, ch, head, q, row, 0);
        a->q = q;
        a->q_token_stride = row;
    } else {
        prepare_queries(j, ch, head, own, a->q_token_stride, 0);
    }
    if (!split || part == 0)
        attend_sinks(j, a, far, split ? partial + (size_t)ch->n_parts * size : sum, thread);
    for (int p = first; p <= last; p++) {
        if (split && p != first + part)
            continue;
        a->part = p;
        a->partial = split ? partial + (size_t)part * size : one;
        k->k->attention(a, k->scratch[thread]);
        if (!split)
            merge_part(j, a, p, sum, one);
    }
    if (split && atomic_fetch_sub(&k->parts_left[ch->merge + head], 1) != 1)
        return;
    if (split)
        memcpy(sum, partial + (size_t)ch->n_parts * size, size * sizeof *sum);
    for (int p = first; split && p <= last; p++)
        merge_part(j, a, p, sum, partial + (size_t)(p - first) * size);
    finish_rows(j, a, sum);
    rotate_outputs(j, a);
}

/* Whether the tokens of a run attend to chosen pages instead of all of them. */
static int chooses(const struct attn_job *j, const struct query_run *ch)
{
    const struct batch_item *it = &j->s->items[ch->item];
    return has_pages(j) && pages_apply(j->k, it, it->pos + ch->first);
}

/* Copy the queries of a run and KV head from q and prepare them: to [n][group][head_dim]. */
static void copy_queries(const struct attn_job *j, const struct query_run *ch, int head, const float *q,
                         size_t token_stride, float *to)
{
    const size_t row = (size_t)j->group * (size_t)j->head_dim;
    for (int t = 0; t < ch->n; t++)
        memcpy(to + (size_t)t * row, q + (size_t)t * token_stride, row * sizeof *to);
    prepare_queries(j, ch, head, to, row, 0);
}

/* Score a range of the pages of a run that chooses in jobs. */
static void score_pages(void *arg, int i, int thread)
{
    const struct attn_job *j = arg;
    struct core *k = j->k;
    const int range = i % j->page_ranges, head = i / j->page_ranges % j->groups;
    const struct query_run *ch = &j->runs[i / j->page_ranges / j->groups];
    const struct batch_item *it = &j->s->items[ch->item];
    const int pos = it->pos + ch->first;
    if (ch->choice < 0 || range >= pages_ranges(pos))
        return;
    const size_t hd = (size_t)j->head_dim, row = (size_t)k->c->n_heads * hd;
    const struct page_place place = page_of(j, head, NULL);
    const struct attn a = { .q = k->rotated[thread], .q_head_stride = hd, .n_q_heads = j->group,
                            .head_dim = j->head_dim, .pos = pos };
    copy_queries(j, ch, head, k->q + (size_t)(j->s->offset[ch->item] + ch->first) * row +
                              (size_t)(head * j->group) * hd, row, k->rotated[thread]);
    pages_score(k, &place, it, &a, is_rotated(j, j->types.key), range, ch->choice + head, thread);
}

/* Let *a, with prepared queries, attend to pages that this thread chooses. */
static void choose_pages(const struct attn_job *j, const struct query_run *ch, int head, struct attn *a, int thread)
{
    const struct page_place place = page_of(j, head, NULL);
    pages_begin(j->k, thread, a->pos);
    for (int i = 0; i < pages_ranges(a->pos); i++)
        pages_score(j->k, &place, &j->s->items[ch->item], a, is_rotated(j, j->types.key), i, thread, thread);
    pages_use(j->k, thread, a);
}

static void attend_part(void *arg, int i, int thread)
{
    const struct attn_job *j = arg;
    const struct core *k = j->k;
    const struct config *c = k->c;
    const struct query_run *ch = run_of_job(j, i);
    const struct batch_item *it = &j->s->items[ch->item];
    const int group = j->group, head = (i - ch->job) / ch->n_parts, part = (i - ch->job) % ch->n_parts,
              is_last = part == ch->n_parts - 1;
    const size_t hd = (size_t)j->head_dim, row = (size_t)c->n_heads * hd, offset = head_offset(j, head);
    const size_t at = (size_t)(j->s->offset[ch->item] + ch->first - j->token0) * row + (size_t)(head * group) * hd;
    struct attn a = {
        .q = k->q + at, .q_token_stride = row, .q_head_stride = hd, .out = k->att + at, .out_token_stride = row,
        .out_head_stride = hd,
        .n_tokens = ch->n, .n_q_heads = group, .head_dim = j->head_dim, .pos = it->pos + ch->first,
        .window = window_of(k, j->index), .chunk = streams(k, j->index) ? 0 : c->chunk[j->index],
        .end = c->both_ways ? it->pos + it->n_tokens : 0,
        .base = base_of(j), .table = table_of(j, it), .stride = stride_of(j), .k_offset = offset,
        .v_offset = j->latent ? offset : offset + j->k_bytes,
        .latent = !j->latent ? 0 : c->rates ? c->head_dim : c->mla.kv_rank,
        .sinks = j->l->sinks ? j->l->sinks + head * group : NULL, .kv = j->types,
        .k_scales = key_scales(j, head), .v_scales = value_scales(j, head),
        .scale = c->attn_scale, .softcap = c->attn_softcap,
        .alibi = c->pos == POS_ALIBI ? k->alibi + head * group : NULL, .bias_stride = core_distances(c),
        .bias = c->distance_buckets ? k->bias + (size_t)(head * group) * core_distances(c) + c->max_len - 1 : NULL };
    if (j->tail) {
        const size_t keys = tail_offset(j, head);
        a.tail.base = k->window_kv;
        a.tail.table = it->window_table;
        a.tail.stride = k->window_stride;
        a.tail.k_offset = keys;
        a.tail.v_offset = keys + tail_bytes(j);
        a.rounded_from = KV_SINKS;
        /* equal for all tokens of the run: see add_tail_runs() */
        a.rounded_to = kv_tail_from(a.pos);
    }
    /* only the last part contains the positions of the new tokens */
    if (j->s->one_run_each && is_last && !j->latent && !stores_heads_together(j) && !config_shares_kv(c, j->index))
        store(j, ch->item, head, ch->first, ch->n);
    if (beyond(j, a.pos)) {
        attend_beyond(j, ch, head, part, &a, k->q + at, thread);
        return;
    }
    if (has_pattern(j))
        pattern_attend(k, it, &a, thread);
    if (ch->choice >= 0)
        pages_use(k, ch->choice + head, &a);
    if (ch->n_parts == 1) {
        prepare_queries(j, ch, head, k->q + at, row, 0);
        if (ch->choice < 0 && chooses(j, ch))
            choose_pages(j, ch, head, &a, thread);
        k->k->attention(&a, k->scratch[thread]);
        rotate_outputs(j, &a);
        return;
    }
    float *q = k->rotated[thread];
    const size_t size = (size_t)(ch->n * group) * attn_partial(j->head_dim);
    copy_queries(j, ch, head, a.q, row, q);
    float *partial = k->partial + ch->partial + (size_t)head * (size_t)ch->n_parts * size;
    a.q = q;
    a.q_token_stride = (size_t)group * hd;
    a.part = ch->part + part;
    a.partial = partial + (size_t)part * size;
    k->k->attention(&a, k->scratch[thread]);
    if (atomic_fetch_sub(&k->parts_left[ch->merge + head], 1) == 1) {
        a.part = ch->part;
        a.partial = partial;
        k->k->attention_merge(&a);
        rotate_outputs(j, &a);
    }
}

/* Decide which runs are cut into parts, and which choose their pages in jobs; returns the number of
 * jobs. */
static int plan_jobs(struct attn_job *j)
{
    struct core *k = j->k;
    const struct step *s = j->s;
    const int index = j->index;
    const struct config *c = k->c;
    const int window = window_of(k, index), span = streams(k, index) ? 0 : c->chunk[index], groups = j->groups;
    const int group = c->n_heads / groups, n_threads = pool_size(k->pool), few = n_threads > 1 &&
        j->n_runs * groups < MERGES * n_threads && !c->both_ways;
    int n_jobs = 0, n_merges = 0, n_choices = 0;
    size_t used = 0;
    j->page_ranges = 0;
    for (struct query_run *ch = j->runs; ch < j->runs + j->n_runs; ch++) {
        const int at = s->items[ch->item].pos + ch->first, in_pages = chooses(j, ch),
                  pos = in_pages ? pages_length(k, at) - 1 : at,
                  first = span ? pos / span * span : window && pos - window + 1 > 0 ? pos - window + 1 : 0,
                  last = pos + ch->n - 1;
        const int n_parts = last / ATTN_PART - first / ATTN_PART + 1, rows = ch->n * group;
        /* one result for each part, and one for the sinks */
        const size_t need = (size_t)((n_parts + beyond(j, pos)) * groups) * (size_t)rows * attn_partial(j->head_dim);
        ch->job = n_jobs;
        ch->n_parts = 1;
        ch->choice = -1;
        if (few && in_pages && k->n_partial && rows <= SPLIT_ROWS) {
            ch->choice = n_choices;
            for (int h = 0; h < groups; h++)
                pages_begin(k, n_choices++, at);
            j->page_ranges = pages_ranges(at) > j->page_ranges ? pages_ranges(at) : j->page_ranges;
        }
        /* A run whose tokens lie in two parts is not split: one job would store the new tokens at
         * the start of a part while another job reads them. */
        if (few && n_parts > 1 && in_pages == (ch->choice >= 0) && !has_pattern(j) && rows <= SPLIT_ROWS &&
            pos / ATTN_PART == last / ATTN_PART && used + need <= k->n_partial) {
            ch->n_parts = n_parts;
            ch->part = first / ATTN_PART;
            ch->partial = used;
            ch->merge = n_merges;
            used += need;
            for (int h = 0; h < groups; h++)
                atomic_store_explicit(&k->parts_left[n_merges++], n_parts, memory_order_relaxed);
        }
        n_jobs += groups * ch->n_parts;
    }
    return n_jobs;
}

size_t attn_partials(const struct config *c, int n_threads, int64_t n_tokens)
{
    const size_t n = (size_t)(n_tokens / ATTN_PART + 2) * (size_t)c->n_heads * attn_partial(c->head_dim),
                 most = PARTIAL_BYTES / sizeof(float);
    return n_threads == 1 || n_tokens <= ATTN_PART ? 0 : n < most ? n : most;
}

/* Apply the norms of q and k that cover all heads of a token. */
static void full_norms(void *arg, int t, int thread)
{
    (void)thread;
    const struct attn_job *j = arg;
    const struct config *c = j->k->c;
    const int nq = c->n_heads * j->head_dim, nk = j->groups * j->head_dim;
    float *q = j->k->q + (size_t)t * (size_t)nq, *key = j->k->key + (size_t)t * (size_t)nk;
    j->k->k->rms_norm(q, q, j->l->q_norm.w, nq, c->qk_norm_eps, c->qk_norm_offset);
    j->k->k->rms_norm(key, key, j->l->k_norm.w, nk, c->qk_norm_eps, c->qk_norm_offset);
}

/* Widen each head from `from` to `to` elements in place: its elements are multiplied by scale, and
 * zeros follow them. */
static void widen(float *x, int n_heads, int from, int to, float scale)
{
    for (int h = n_heads - 1; h >= 0; h--)
        for (int d = to - 1; d >= 0; d--)
            x[h * to + d] = d < from ? x[h * from + d] * scale : 0;
}

static void widen_row(void *arg, int t, int thread)
{
    (void)thread;
    const struct attn_job *j = arg;
    const struct config *c = j->k->c;
    const int hd = j->head_dim, kd = config_key_dim(c, j->index), vd = config_value_dim(c, j->index);
    const size_t row = (size_t)t * (size_t)j->groups * (size_t)hd;
    if (kd < hd) {
        widen(j->k->q + (size_t)t * (size_t)c->n_heads * (size_t)hd, c->n_heads, kd, hd, 1);
        widen(j->k->key + row, j->groups, kd, hd, 1);
    }
    widen(j->k->value + row, j->groups, vd, hd, c->value_scale);
}

static void narrow_row(void *arg, int t, int thread)
{
    (void)thread;
    const struct attn_job *j = arg;
    const struct config *c = j->k->c;
    const int hd = j->head_dim, vd = config_value_dim(c, j->index);
    const float *from = j->k->att + (size_t)t * (size_t)c->n_heads * (size_t)hd;
    float *to = j->k->att + (size_t)t * (size_t)c->n_heads * (size_t)vd;
    for (int h = 0; h < c->n_heads; h++)
        memmove(to + h * vd, from + h * hd, (size_t)vd * sizeof *to);
}

/* A job over all runs of the step. */
static struct attn_job job_of(struct core *k, const struct step *s, const struct layer *l, int index)
{
    const int head_dim = config_head_dim(k->c, index), groups = config_kv_heads(k->c, index);
    const struct kv_types types = k->tail && s->in_windows ? kv_both(KV_F16) : k->types;
    return (struct attn_job){ .k = k, .s = s, .l = l, .index = index, .group = k->c->n_heads / groups,
                              .runs = k->runs, .n_runs = s->n_runs, .head_dim = head_dim, .groups = groups,
                              .types = types, .tail = k->tail && !s->in_windows,
                              .k_bytes = kv_block_bytes(types.key, head_dim),
                              .v_bytes = kv_block_bytes(types.value, head_dim) };
}

void attn_run(struct core *k, const struct step *s, const struct layer *l, int index)
{
    const int head_dim = config_head_dim(k->c, index), groups = config_kv_heads(k->c, index);
    struct attn_job j = job_of(k, s, l, index);
    const int vd = config_value_dim(k->c, index), wide = config_key_dim(k->c, index) != vd || k->c->value_scale != 1;
    if (wide)
        pool_run(k->pool, s->n_tokens, widen_row, &j);
    if (k->c->qk_norm == QK_NORM_FULL)
        pool_run(k->pool, s->n_tokens, full_norms, &j);
    const int together = stores_heads_together(&j);
    if ((!s->one_run_each || together) && !config_shares_kv(k->c, index))
        pool_run(k->pool, s->n_runs * (together ? 1 : groups), store_part, &j);
    const int n_jobs = plan_jobs(&j);
    if (j.page_ranges)
        pool_run(k->pool, s->n_runs * groups * j.page_ranges, score_pages, &j);
    pool_run(k->pool, n_jobs, attend_part, &j);
    /* in ascending order, because rows move to the front */
    for (int t = 0; t < s->n_tokens && vd < head_dim; t++)
        narrow_row(&j, t, 0);
}

static void prepare_part(void *arg, int i, int thread)
{
    (void)thread;
    const struct attn_job *j = arg;
    const struct query_run *c = &j->runs[i / j->groups];
    const size_t row = (size_t)j->k->c->n_heads * (size_t)j->head_dim;
    const int head = i % j->groups;
    store(j, c->item, head, c->first, c->n);
    prepare_queries(j, c, head, j->k->q + (size_t)(j->s->offset[c->item] + c->first) * row +
                                (size_t)(head * j->group * j->head_dim), row, 0);
}

void attn_prepare(struct core *k, const struct step *s, const struct layer *l, int index)
{
    struct attn_job j = job_of(k, s, l, index);
    pool_run(k->pool, s->n_runs * j.groups, prepare_part, &j);
}

int attn_rows(const struct config *c, int max_tokens)
{
    if (!c->mla.kv_rank || config_has_mixer(c, MIXER_ATTENTION))
        return max_tokens;
    const size_t row = 2 * (size_t)c->n_heads * (size_t)c->head_dim * sizeof(float), room = LATENT_BYTES / row;
    int n = room < LATENT_TOKENS ? (int)room : LATENT_TOKENS;
    const int chunk = run_tokens_of(c, attn_groups(c));
    n = n < chunk ? chunk : n;
    return n < max_tokens ? n : max_tokens;
}

void attn_store_latents(struct core *k, const struct step *s)
{
    const struct attn_job j = { .k = k, .s = s, .latent = 1 };
    for (int item = 0; item < s->n_items; item++) {
        const struct batch_item *it = &s->items[item];
        for (int i = 0; i < it->n_tokens; i++) {
            const int pos = it->pos + i;
            uint8_t *block = k->kv + (size_t)it->table[pos / KV_BLOCK] * k->kv_stride + head_offset(&j, 0);
            k->k->kv_store_key(k->types.key, block, pos % KV_BLOCK,
                               k->key + (size_t)(s->offset[item] + i) * (size_t)k->c->head_dim, k->c->head_dim);
        }
    }
}

void attn_run_latent(struct core *k, const struct step *s, const struct layer *l, int index, struct query_run *runs,
                     int n_runs, int token0)
{
    struct attn_job j = { .k = k, .s = s, .l = l, .index = index, .latent = 1, .group = k->c->n_heads / k->attn_groups,
                          .runs = runs, .n_runs = n_runs, .token0 = token0, .head_dim = k->c->head_dim,
                          .groups = k->attn_groups, .types = k->types };
    pool_run(k->pool, plan_jobs(&j), attend_part, &j);
}

/* ---- positions ---- */

static void rope_row(void *arg, int t, int thread)
{
    (void)thread;
    struct core *k = arg;
    for (int i = 0; i < k->c->n_ropes; i++) {
        const struct rope *r = &k->c->ropes[i];
        const size_t at = (size_t)t * (size_t)(r->dim / 2);
        angles(k, r, k->pos[t], k->long_rope[t] && r->inv_freq_long, k->cos[i] + at, k->sin[i] + at);
    }
}

void core_ropes(struct core *k, const struct step *s)
{
    if (k->c->n_ropes)
        pool_run(k->pool, s->n_tokens, rope_row, k);
}

/* Divide tokens [first, first + n) of an item into runs; returns their number. */
static int add_runs(struct core *k, struct step *s, int item, int first, int n, int most)
{
    const int n_runs = (n + most - 1) / most;
    /* last run first, because it sees the longest context */
    for (int c = n_runs; c-- > 0; ) {
        const int left = n - c * most;
        k->runs[s->n_runs++] = (struct query_run){ .item = item, .first = first + c * most,
                                                   .n = left < most ? left : most };
    }
    return n_runs;
}

/* Divide all tokens of an item into runs.  For all tokens of a run, the tail and the newest tokens
 * outside of pages begin at the same position, they are in one unit of a pattern, and none of them
 * chooses pages; a token that does is a run of its own.
 * Returns the number of runs. */
static int add_tail_runs(struct core *k, struct step *s, int item, int most)
{
    const struct batch_item *it = &s->items[item];
    int n_runs = 0;
    for (int end = it->n_tokens, first; end > 0; end = first) {
        first = (it->pos + end - 1) / KV_TAIL_STEP * KV_TAIL_STEP - it->pos;
        first = first > 0 ? first : 0;
        if (it->exact_until - it->pos > first && it->exact_until - it->pos < end)
            first = it->exact_until - it->pos;
        n_runs += add_runs(k, s, item, first, end - first, pages_apply(k, it, it->pos + first) ? 1 : most);
    }
    return n_runs;
}

void core_step(struct core *k, struct step *s, const struct batch_item *items, int n_items, int *offset)
{
    *s = (struct step){ .items = items, .n_items = n_items, .offset = offset, .one_run_each = 1 };
    const int from = config_long_from(k->c), long_from = k->window && k->window + k->sinks < from ? 0 : from;
    const int chunk = run_tokens_of(k->c, k->attn_groups);
    for (int i = 0; i < n_items; i++) {
        const struct batch_item *it = &items[i];
        const int is_long = long_from && (it->seq_len ? it->seq_len : it->pos + it->n_tokens) >= long_from;
        offset[i] = s->n_tokens;
        for (int t = 0; t < it->n_tokens; t++) {
            k->token[s->n_tokens] = it->tokens[t];
            k->pos[s->n_tokens] = it->pos + t;
            k->type[s->n_tokens] = it->second > 0 && it->pos + t >= it->second && k->c->n_types > 1;
            k->long_rope[s->n_tokens++] = is_long;
        }
        /* a run ends at position k->window, so that its tokens are all before or all behind it */
        const int near = !k->window || it->pos + it->n_tokens <= k->window ? it->n_tokens
                         : it->pos < k->window ? k->window - it->pos : 0;
        const int n_runs = k->tail || k->pages || k->pattern.unit ? add_tail_runs(k, s, i, chunk)
            : add_runs(k, s, i, near, it->n_tokens - near, chunk) + add_runs(k, s, i, 0, near, chunk);
        s->one_run_each &= n_runs == 1;
    }
    lora_step(k, items, n_items);
}
