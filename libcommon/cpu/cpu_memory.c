/* cpu_memory.c - the memory of a core: one arena, whose regions follow from the model, the number
 * of tokens in a step and the number of threads. */
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/cpu/cpu_attn.h"
#include "libcommon/cpu/cpu_ops.h"
#include "libcommon/model/arch.h"

enum {
    /* most tiles of a job: 128 rows, so that its outputs stay in the L2 cache */
    TILE_JOB = 4,
    /* With more threads than this, jobs have one tile: each thread has a buffer for the outputs of
     * a job, and few tiles to compute. */
    FEW_THREADS = 8,
    MAX_PARTS = 32 + 2 * MAX_ROPES,         /* regions besides those of threads */
};

struct arena_part { void *p; size_t bytes; };

/* Allocate all regions at once; each p points to the pointer to set. */
static int arena_open(struct core *k, struct arena_part *parts, int n, struct err *e)
{
    size_t total = 0;
    for (int i = 0; i < n; i++)
        total += up64(parts[i].bytes);
    k->arena = aligned_alloc(64, total ? total : 64);
    if (!k->arena)
        return err_nomem(e, "activations");
    k->arena_bytes = total;
    uint8_t *at = k->arena;
    for (int i = 0; i < n; i++) {
        memcpy(parts[i].p, &at, sizeof at);
        at += up64(parts[i].bytes);
    }
    return 0;
}

/* Compute the ALiBi slope of each head, times alibi_scale.  With n the largest power of two <=
 * n_heads, the first n heads have slopes 2^(-max_bias * i / n), i from 1 on; the slopes of the
 * other heads lie between these (arXiv:2108.12409 and its code). */
static void alibi_slopes(float *slope, const struct config *c)
{
    int n = 1;
    while (2 * n <= c->n_heads)
        n *= 2;
    for (int h = 0; h < c->n_heads; h++) {
        double power = h < n ? (double)(h + 1) / n : (double)(2 * (h - n) + 1) / (2 * n);
        slope[h] = (float)(c->alibi_scale * exp2(-c->alibi_max_bias * power));
    }
}

/* The bucket of a distance (arXiv:1910.10683, section 2.1): half of them are for later keys.  In
 * each half, half of the buckets are single distances and the others widen up to FARTHEST. */
static int bucket_of(int distance, int n_buckets)
{
    enum { FARTHEST = 128 };
    const int half = n_buckets / 2, exact = half / 2, n = distance < 0 ? -distance : distance,
              first = distance > 0 ? half : 0;
    if (n < exact)
        return first + n;
    const float wide = logf((float)n / (float)exact) / (float)log((double)FARTHEST / exact) * (float)(half - exact);
    return first + (exact + (int)wide < half ? exact + (int)wide : half - 1);
}

void core_set_bias(struct core *k, const float *table)
{
    const struct config *c = k->c;
    const size_t stride = core_distances(c);
    for (int d = 1 - c->max_len; table && d < c->max_len; d++)
        for (int h = 0; h < c->n_heads; h++)
            k->bias[(size_t)h * stride + (size_t)(d + c->max_len - 1)] =
                table[(size_t)bucket_of(d, c->distance_buckets) * (size_t)c->n_heads + (size_t)h];
}

int tiles_of_job(int n_threads) { return n_threads <= FEW_THREADS ? TILE_JOB : 1; }

static size_t thread_scratch(const struct config *c, const struct kernels *kernels, int max_tokens, size_t cols)
{
    size_t matmul = kernels->scratch_bytes(max_tokens, (int)(cols + 255) / 128 * 128),
           attn = kernels->attention_scratch(c->head_dim);
    return up64(matmul > attn ? matmul : attn);
}

/* Floats of a token in k->mlp: the intermediate rows of an MLP (dense or shared), opt's narrow rows
 * before the head, or the values of latent attention. */
static size_t widest_mlp(const struct config *c)
{
    const size_t grouped = (size_t)c->compressed.o_groups * (size_t)c->compressed.o_rank;
    const size_t values = grouped ? grouped : c->mla.kv_rank ? (size_t)c->n_heads * (size_t)c->mla.v_dim : 0;
    size_t n = (size_t)c->embed_size > values ? (size_t)c->embed_size : values;
    for (int i = 0; i < c->n_layers; i++)
        n = (size_t)config_mlp_size(c, i) > n ? (size_t)config_mlp_size(c, i) : n;
    return n;
}

/* Floats of a token in core.low. */
static size_t low_floats(const struct config *c)
{
    const struct ngram *g = &c->ngram;
    const size_t run = g->size ? (size_t)(g->size - 1) * (size_t)g->heads * (size_t)g->dim : 0;
    return run > (size_t)c->hyper.rank ? run : (size_t)c->hyper.rank;
}

static size_t widest_input(const struct config *c)
{
    const struct mla *m = &c->mla;
    size_t cols = (size_t)c->n_heads * (size_t)(m->kv_rank && m->v_dim > c->head_dim ? m->v_dim : c->head_dim);
    const size_t streams = c->hyper.rank ? (size_t)c->hyper.n * (size_t)c->hidden_size : 0;
    cols = streams > cols ? streams : cols;
    cols = low_floats(c) > cols ? low_floats(c) : cols;
    cols = (size_t)m->q_rank > cols ? (size_t)m->q_rank : cols;
    cols = m->kv_rank && (size_t)m->nope_dim > cols ? (size_t)m->nope_dim : cols;
    cols = cols > (size_t)c->hidden_size ? cols : (size_t)c->hidden_size;
    cols = c->predicts && 2 * (size_t)c->hidden_size > cols ? 2 * (size_t)c->hidden_size : cols;
    cols = cols > (size_t)c->embed_size ? cols : (size_t)c->embed_size;
    cols = cols > (size_t)c->moe.intermediate_size ? cols : (size_t)c->moe.intermediate_size;
    cols = cols > (size_t)c->moe.latent ? cols : (size_t)c->moe.latent;
    for (int i = 0; i < c->n_layers; i++)
        if (mixer_has_state(c->mixer[i]) && (size_t)recurrent_width(c, i) > cols)
            cols = (size_t)recurrent_width(c, i);
    return cols > widest_mlp(c) ? cols : widest_mlp(c);
}

/* 1 if the output of experts is normed before it is added. */
static int norms_experts(const struct config *c) { return c->moe.n_experts && c->names->mlp_post_norm; }

int core_tokens(const struct config *c, const struct kernels *kernels, int n_threads, int64_t max_len, size_t memory)
{
    enum { TRY = 1024, LEAST = 32 };
    const size_t q = (size_t)c->n_heads * (size_t)c->head_dim, kv = (size_t)c->n_kv_heads * (size_t)c->head_dim,
                 hidden = (size_t)c->hidden_size;
    const size_t cols = widest_input(c), threads = (size_t)n_threads;
    /* wide rows: q and att hold a run of tokens instead of a step */
    const size_t run = (size_t)attn_rows(c, INT32_MAX), wide = run < INT32_MAX;
    size_t floats = hidden + (c->block == BLOCK_PARALLEL2 ? 2 : 1) *
                    (hidden > (size_t)c->embed_size ? hidden : (size_t)c->embed_size) + (wide ? kv : 2 * q + 2 * kv) +
                    widest_mlp(c) + (norms_experts(c) ? hidden : 0) + moe_floats(c) + mla_floats(c) +
                    index_floats(c) + compress_floats(c) + blocks_floats(c) + low_floats(c) +
                    (c->hyper.rank ? 2 * (size_t)c->hyper.n * hidden : 0) + state_floats(c) +
                    (size_t)(c->n_layers + 1) * (size_t)c->ple_dim + (c->moe.beside ? 2 * hidden : 0) +
                    (size_t)(c->n_streams + c->hyper.n) * hidden + (size_t)(c->hyper.n * (c->hyper.n + 1)) +
                    (c->n_streams ? 2 * TILE_ROWS : 0) + (c->laurel_rank ? hidden + (size_t)c->laurel_rank : 0) +
                    (c->cutoff ? widest_mlp(c) : 0) + (c->predicts ? 2 * hidden : 0);
    for (int i = 0; i < c->n_ropes; i++)
        floats += (size_t)c->ropes[i].dim;
    /* bytes of the widest quantized input of a token, in both slots if both are used */
    const size_t rounded = kernels->act_bytes(TRY, (int)(cols + 127) / 128 * 128, 32) / TRY *
                           (c->block == BLOCK_SEQUENTIAL ? 1 : 2);
    const size_t scratch = thread_scratch(c, kernels, TRY, cols), fixed_scratch = thread_scratch(c, kernels, 1, cols);
    const size_t token = floats * sizeof(float) + rounded + 3 * sizeof(int) + sizeof(struct query_run) +
                         threads * ((scratch - fixed_scratch) / TRY + (size_t)tiles_of_job(n_threads) * TILE_ROWS *
                                    sizeof(float));
    const size_t partials = attn_partials(c, n_threads, max_len);
    const size_t fixed = (wide ? 2 * run * q * sizeof(float) : 0) + threads *
                         (fixed_scratch + 256 + (partials ? SPLIT_ROWS * (size_t)c->head_dim * sizeof(float) : 0)) +
                         partials * sizeof(float);
    const size_t n = fixed < memory ? (memory - fixed) / token / LEAST * LEAST : 0;
    return n < LEAST ? LEAST : n < INT32_MAX ? (int)n : INT32_MAX;
}

/* List the regions of the arena, those of threads last, in parts [MAX_PARTS + 3 * n_threads];
 * returns their number. */
static int list_regions(struct core *k, struct arena_part *parts, int64_t max_len)
{
    const struct config *c = k->c;
    const int n_threads = pool_size(k->pool);
    const size_t t = (size_t)k->max_tokens, row = t * sizeof(float), hd = (size_t)c->head_dim;
    const size_t q = (size_t)c->n_heads * hd, kv = (size_t)c->n_kv_heads * hd, hidden = (size_t)c->hidden_size;
    const size_t widest = hidden > (size_t)c->embed_size ? hidden : (size_t)c->embed_size,
                 wide = c->n_streams ? core_rows_room((int)widest) : widest;
    const size_t run = (size_t)attn_rows(c, k->max_tokens) * sizeof(float);
    const size_t scratch = thread_scratch(c, k->k, k->max_tokens, widest_input(c));
    int n = 0;
    parts[n++] = (struct arena_part){ &k->x, row * hidden };
    parts[n++] = (struct arena_part){ &k->h[0], row * wide };
    parts[n++] = (struct arena_part){ &k->h[1], c->block == BLOCK_PARALLEL2 ? row * hidden : 0 };
    parts[n++] = (struct arena_part){ &k->sum, norms_experts(c) ? row * hidden : 0 };
    parts[n++] = (struct arena_part){ &k->q, run * q };
    parts[n++] = (struct arena_part){ &k->att, run * q };
    parts[n++] = (struct arena_part){ &k->key, row * kv };
    parts[n++] = (struct arena_part){ &k->value,
                                      c->mla.kv_rank && !config_has_mixer(c, MIXER_ATTENTION) ? 0 : row * kv };
    parts[n++] = (struct arena_part){ &k->mlp, row * widest_mlp(c) };
    parts[n++] = (struct arena_part){ &k->ple, row * (size_t)c->n_layers * (size_t)c->ple_dim };
    parts[n++] = (struct arena_part){ &k->ple_mid, row * (size_t)c->ple_dim };
    parts[n++] = (struct arena_part){ &k->streams, row * (size_t)(c->n_streams + c->hyper.n) * hidden };
    for (int i = 0; i < 2; i++)
        parts[n++] = (struct arena_part){ &k->wide[i], c->hyper.rank ? row * (size_t)c->hyper.n * hidden : 0 };
    parts[n++] = (struct arena_part){ &k->low, row * low_floats(c) };
    parts[n++] = (struct arena_part){ &k->mix, row * (size_t)(c->hyper.n * (c->hyper.n + 1)) };
    parts[n++] = (struct arena_part){ &k->laurel, c->laurel_rank ? row * hidden : 0 };
    parts[n++] = (struct arena_part){ &k->laurel_mid, row * (size_t)c->laurel_rank };
    parts[n++] = (struct arena_part){ &k->sparse, c->cutoff ? row * widest_mlp(c) : 0 };
    parts[n++] = (struct arena_part){ &k->pair, c->predicts ? row * 2 * hidden : 0 };
    for (int i = 0; i < 2; i++)
        parts[n++] = (struct arena_part){ &k->beside[i], c->moe.beside ? row * hidden : 0 };
    for (int i = 0; i < c->n_ropes; i++) {
        parts[n++] = (struct arena_part){ &k->cos[i], row * (size_t)c->ropes[i].dim / 2 };
        parts[n++] = (struct arena_part){ &k->sin[i], row * (size_t)c->ropes[i].dim / 2 };
    }
    parts[n++] = (struct arena_part){ &k->alibi, (size_t)c->n_heads * sizeof *k->alibi };
    parts[n++] = (struct arena_part){
        &k->bias, c->distance_buckets ? (size_t)c->n_heads * core_distances(c) * sizeof *k->bias : 0 };
    parts[n++] = (struct arena_part){ &k->token, t * sizeof *k->token };
    parts[n++] = (struct arena_part){ &k->pos, t * sizeof *k->pos };
    parts[n++] = (struct arena_part){ &k->long_rope, t * sizeof *k->long_rope };
    parts[n++] = (struct arena_part){ &k->type, t * sizeof *k->type };
    parts[n++] = (struct arena_part){ &k->runs, t * sizeof *k->runs };
    k->n_partial = attn_partials(c, n_threads, max_len);
    parts[n++] = (struct arena_part){ &k->partial, k->n_partial * sizeof *k->partial };
    parts[n++] = (struct arena_part){ &k->parts_left, MERGES * (size_t)n_threads * sizeof *k->parts_left };
    assert(n <= MAX_PARTS);
    for (int i = 0; i < n_threads; i++) {
        parts[n++] = (struct arena_part){ &k->scratch[i], scratch };
        parts[n++] = (struct arena_part){ &k->tile[i], row * (size_t)k->tile_job * TILE_ROWS };
        parts[n++] = (struct arena_part){ &k->rotated[i], k->n_partial ? SPLIT_ROWS * hd * sizeof(float) : 0 };
    }
    return n;
}

int core_open(struct core *k, const struct config *c, const struct kernels *kernels, struct pool *pool, int max_tokens,
              int64_t max_len, int exact, struct kv_types kv, struct err *e)
{
    const int n_threads = pool_size(pool);
    *k = (struct core){ .c = c, .k = kernels, .pool = pool, .exact = exact, .max_tokens = max_tokens,
                        .types = kv, .residual = c->residual_scale };
    if (widest_input(c) > INT32_MAX - 256)
        return err_set(e, ERR_SHAPE, "a row of %zu columns", widest_input(c));
    k->tile_job = tiles_of_job(n_threads);
    k->attn_groups = attn_groups(c);
    k->scratch = calloc((size_t)n_threads, sizeof *k->scratch);
    k->tile = calloc((size_t)n_threads, sizeof *k->tile);
    k->rotated = calloc((size_t)n_threads, sizeof *k->rotated);
    struct arena_part *parts = calloc(MAX_PARTS + 3 * (size_t)n_threads, sizeof *parts);
    int rc = k->scratch && k->tile && k->rotated && parts ? 0 : err_nomem(e, "activations");
    if (rc == 0)
        rc = arena_open(k, parts, list_regions(k, parts, max_len), e);
    free(parts);
    k->bytes = k->arena_bytes;
    if (rc < 0 || (c->moe.n_experts && moe_open(k, e) < 0) || (c->mla.kv_rank && mla_open(k, e) < 0) ||
        (index_floats(c) && index_open(k, max_len, e) < 0) || (c->rates && compress_open(k, max_len, e) < 0) ||
        (c->indexer.block && blocks_open(k, max_len, e) < 0) ||
        (state_floats(c) && state_open(k, e) < 0)) {
        core_close(k);
        return -1;
    }
    if (c->pos == POS_ALIBI)
        alibi_slopes(k->alibi, c);
    return 0;
}

void core_close(struct core *k)
{
    for (int s = 0; s < N_SLOTS; s++)
        for (int i = 0; i < MAX_SHARED; i++)
            free(k->act[s][i]);
    free(k->arena);
    free(k->scratch);
    free(k->tile);
    free(k->rotated);
    free(k->prefetch);
    lora_close(k);
    moe_close(k);
    mla_close(k);
    index_close(k);
    compress_close(k);
    blocks_close(k);
    state_close(k);
    *k = (struct core){ 0 };
}
