/* cpu_core.c - run a layer on the CPU: its memory, norms and linear layers.  Attention is in
 * cpu_attn.c.
 *
 * Parallel loops of a layer, after each of which all threads synchronize: q, k, v; attention with
 * rotation and storing keys and values; o; gate, up and the activation; down.  Norms and quantizing
 * activations are done by the caller alone if that is little work (decoding), else in loops of
 * their own.  Every output element is computed by one job in an order that does not depend on other
 * jobs, so results are bit-identical for every number of threads and every batch. */
#include "libcommon/cpu/cpu_core.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/cpu/cpu_attn.h"
#include "libcommon/cpu/cpu_ops.h"
#include "libcommon/model/arch.h"

_Static_assert((int)CONFIG_ACT_SILU == ACT_SILU && (int)CONFIG_ACT_GELU == ACT_GELU &&
               (int)CONFIG_ACT_GELU_TANH == ACT_GELU_TANH && (int)CONFIG_ACT_RELU == ACT_RELU &&
               (int)CONFIG_ACT_RELU2 == ACT_RELU2 && (int)CONFIG_ACT_GELU_QUICK == ACT_GELU_QUICK,
               "config.act is an act_kind");

enum {
    /* most tiles of a job: 128 rows, so that its outputs stay in the L2 cache */
    TILE_JOB = 4,
    /* With more threads, jobs have one tile: every thread holds the outputs of a job, and has few
     * tiles anyway. */
    FEW_THREADS = 8,
    /* The last tiles of each thread are jobs of one tile, so that threads finish together; the
     * others are larger, so that there are fewer jobs. */
    TILE_SINGLES = 4,
    /* most tokens of a step in which idle threads prefetch the next weights */
    PREFETCH_TOKENS = 16,
    /* bytes to prefetch; the calling thread prefetches less, as it has other work to do */
    PREFETCH_BYTES = 32768,
    PREFETCH_CALLER = 2048,
    MAX_PARTS = 31 + 2 * MAX_ROPES,         /* regions besides those of threads */
};

/* ---- memory ---- */

static size_t up64(size_t n) { return (n + 63) / 64 * 64; }

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

/* The slope of each head: m = max_bias, n is the largest power of two <= n_heads; heads after n lie
 * between the others (arXiv:2108.12409 and its code). */
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

static int tiles_of_job(int n_threads) { return n_threads <= FEW_THREADS ? TILE_JOB : 1; }

static size_t thread_scratch(const struct config *c, const struct kernels *kernels, int max_tokens, size_t cols)
{
    size_t matmul = kernels->scratch_bytes(max_tokens, (int)(cols + 255) / 128 * 128),
           attn = kernels->attention_scratch(c->head_dim);
    return up64(matmul > attn ? matmul : attn);
}

/* Floats of a token between gate, up and down (dense or shared MLP), in opt's narrow rows before
 * the head, and in the values of latent attention. */
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
    cols = cols > (size_t)c->embed_size ? cols : (size_t)c->embed_size;
    cols = cols > (size_t)c->moe.intermediate_size ? cols : (size_t)c->moe.intermediate_size;
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
                    (c->cutoff ? widest_mlp(c) : 0);
    for (int i = 0; i < c->n_ropes; i++)
        floats += (size_t)c->ropes[i].dim;
    /* the widest quantized input, in both slots if both are used; per-token integers */
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
    for (int i = 0; i < 2; i++)
        parts[n++] = (struct arena_part){ &k->beside[i], c->moe.beside ? row * hidden : 0 };
    for (int i = 0; i < c->n_ropes; i++) {
        parts[n++] = (struct arena_part){ &k->cos[i], row * (size_t)c->ropes[i].dim / 2 };
        parts[n++] = (struct arena_part){ &k->sin[i], row * (size_t)c->ropes[i].dim / 2 };
    }
    parts[n++] = (struct arena_part){ &k->alibi, (size_t)c->n_heads * sizeof *k->alibi };
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
    moe_close(k);
    mla_close(k);
    index_close(k);
    compress_close(k);
    blocks_close(k);
    state_close(k);
    *k = (struct core){ 0 };
}

/* ---- inputs of linear layers ---- */

void core_forms(const struct core *k, struct act_input *in, const struct linear *const *l, int n)
{
    in->n_forms = 0;
    for (int i = 0; i < n; i++) {
        const struct mat *w = &l[i]->w;
        if (!w->data || w->act_group == 0 || k->exact)
            continue;
        int j = 0;
        while (j < in->n_forms && (in->form[j].cols_padded != w->cols_padded || in->form[j].act_group != w->act_group))
            j++;
        if (j == in->n_forms)
            in->form[in->n_forms++] = (struct act_form){ w->cols_padded, w->act_group, NULL };
    }
}

static int reserve_slot(struct core *k, int slot, const struct linear *const *l, int n, struct err *e)
{
    struct act_input in;
    core_forms(k, &in, l, n);
    for (int j = 0; j < in.n_forms; j++) {
        size_t bytes = up64(k->k->act_bytes(k->max_tokens, in.form[j].cols_padded, in.form[j].act_group));
        if (bytes <= k->act_bytes[slot][j])
            continue;
        free(k->act[slot][j]);
        k->bytes += bytes - k->act_bytes[slot][j];
        k->act_bytes[slot][j] = bytes;
        k->act[slot][j] = aligned_alloc(64, bytes);
        if (!k->act[slot][j]) {
            k->act_bytes[slot][j] = 0;
            return err_nomem(e, "activations");
        }
    }
    return 0;
}

/* The slot of an input while its matrices read it.  In a parallel block the inputs of the MLP and
 * of attention are in use at the same time. */
static int input_slot(const struct config *c, enum layer_input input)
{
    return c->block != BLOCK_SEQUENTIAL && (input == INPUT_MLP || input == INPUT_DOWN);
}

int core_reserve(struct core *k, const struct layer *layers, int n_layers, const struct linear *head, struct err *e)
{
    const struct linear *readers[LAYER_READERS];
    for (int i = 0; i < n_layers; i++) {
        const struct layer *l = &layers[i];
        for (enum layer_input in = 0; in < N_INPUTS; in++)
            if (reserve_slot(k, input_slot(k->c, in), readers, layer_readers(l, in, readers), e) < 0)
                return -1;
        if ((l->experts && moe_reserve(k, l, e) < 0) || (l->k_b.w.data && mla_reserve(k, l, e) < 0))
            return -1;
    }
    return head ? reserve_slot(k, 0, &head, 1, e) : 0;
}

int core_has_forms(const struct core *k, const struct act_input *in, const struct linear *const *l, int n)
{
    struct act_input want;
    core_forms(k, &want, l, n);
    for (int i = 0; i < want.n_forms; i++) {
        int p = 0;
        while (p < in->n_forms && (in->form[p].cols_padded != want.form[i].cols_padded ||
                                   in->form[p].act_group != want.form[i].act_group))
            p++;
        if (p == in->n_forms)
            return 0;
    }
    return 1;
}

struct quantize_job { const struct core *k; const struct act_input *in; int n_tokens, parts; };

static void quantize_part(void *arg, int i, int thread)
{
    (void)thread;
    const struct quantize_job *j = arg;
    const struct act_form *p = &j->in->form[i / j->parts];
    j->k->k->act_pack(p->act, j->in->x, j->in->ldx, j->n_tokens, j->in->cols, p->cols_padded, p->act_group,
                      i % j->parts);
}

void core_input(struct core *k, struct act_input *in, int slot, const float *x, int cols, int n_tokens,
                const struct linear *const *l, int n)
{
    *in = (struct act_input){ .x = x, .ldx = (size_t)cols, .cols = cols };
    core_forms(k, in, l, n);
    for (int j = 0; j < in->n_forms; j++)
        in->form[j].act = k->act[slot][j];
    struct quantize_job job = { k, in, n_tokens, k->k->act_parts(n_tokens) };
    const int n_jobs = in->n_forms * job.parts;
    if ((size_t)n_tokens * (size_t)cols <= SERIAL) {
        for (int i = 0; i < n_jobs; i++)
            quantize_part(&job, i, 0);
    } else {
        pool_run(k->pool, n_jobs, quantize_part, &job);
    }
}

void core_layer_input(struct core *k, struct act_input *in, const float *x, int cols, int n_tokens,
                      const struct layer *l, enum layer_input input)
{
    const struct linear *readers[LAYER_READERS];
    core_input(k, in, input_slot(k->c, input), x, cols, n_tokens, readers, layer_readers(l, input, readers));
}

/* ---- linear layers ---- */

struct linear_job {
    const struct core *k;
    const struct op *ops;
    int n_ops, n_tokens, sum;
    int n_tiles, n_threads;                 /* each thread has a run of the tiles of all ops, */
    /* divided into jobs of `each` tiles, the last `singles` of one tile */
    int each, singles;
};

void core_multiply(const struct core *k, const struct linear *l, const struct act_input *in, int t0, int t1,
                   int n_tokens, float *out, size_t ldo, int thread)
{
    int p = 0;
    while (p < in->n_forms && (in->form[p].cols_padded != l->w.cols_padded || in->form[p].act_group != l->w.act_group))
        p++;
    if (p < in->n_forms)
        k->k->matmul(out, ldo, &l->w, t0, t1, in->form[p].act, n_tokens, k->scratch[thread]);
    else
        k->k->matmul_f32(out, ldo, &l->w, t0, t1, in->x, in->ldx, n_tokens, k->scratch[thread]);
    if (!l->bias)
        return;
    const int r0 = t0 * TILE_ROWS, r1 = t1 * TILE_ROWS < l->w.rows ? t1 * TILE_ROWS : l->w.rows;
    for (int t = 0; t < n_tokens; t++)
        for (int r = r0; r < r1; r++)
            out[(size_t)t * ldo + (size_t)r] += l->bias[r];
}

static void cap_logits(float *x, int n, float scale, float cap)
{
    if (scale != 1)
        for (int i = 0; i < n; i++)
            x[i] *= scale;
    if (cap > 0)
        for (int i = 0; i < n; i++)
            x[i] = cap * tanhf(x[i] / cap);
}

/* g * sigmoid(a g) * (u + 1) = silu(a g) * ((u + 1) / a), which act_mul computes.  a 0: apply the
 * limits only. */
static void clamp_gated(float *g, float *u, int n, float alpha, float limit)
{
    for (int i = 0; i < n; i++) {
        g[i] = g[i] > limit ? limit : g[i];
        u[i] = u[i] < -limit ? -limit : u[i] > limit ? limit : u[i];
        if (alpha == 0)
            continue;
        g[i] *= alpha;
        u[i] = (u[i] + 1) / alpha;
    }
}

/* arXiv:2411.13010, equation 6, with a limit on x in the exponential. */
static void xielu(float *x, int n, const float *params)
{
    const float beta = params[XIELU_BETA], eps = params[XIELU_EPS], p = log1pf(expf(params[XIELU_ALPHA_P])),
                m = beta + log1pf(expf(params[XIELU_ALPHA_N]));
    for (int i = 0; i < n; i++)
        x[i] = x[i] > 0 ? p * x[i] * x[i] + beta * x[i]
                        : (expm1f(x[i] < eps ? x[i] : eps) - x[i]) * m + beta * x[i];
}

static void op_tiles(const struct core *k, const struct op *op, int t0, int t1, int n_tokens, int thread)
{
    const int rows = op->l->w.rows, r0 = t0 * TILE_ROWS, n = (t1 * TILE_ROWS < rows ? t1 * TILE_ROWS : rows) - r0;
    const size_t ldt = (size_t)k->tile_job * TILE_ROWS;
    float *tile = k->tile[thread], *out = op->out + r0;
    switch (op->kind) {
    case OP_STORE:
        core_multiply(k, op->l, op->in, t0, t1, n_tokens, op->out, op->ldo, thread);
        if (op->limit > 0)
            for (int t = 0; t < n_tokens; t++)
                for (int r = 0; r < n; r++)
                    out[(size_t)t * op->ldo + (size_t)r] = fminf(fmaxf(out[(size_t)t * op->ldo + (size_t)r],
                                                                       -op->limit), op->limit);
        break;
    case OP_ADD:
        core_multiply(k, op->l, op->in, t0, t1, n_tokens, tile - r0, ldt, thread);
        for (int t = 0; t < n_tokens; t++)
            k->k->add(out + (size_t)t * op->ldo, out + (size_t)t * op->ldo, tile + (size_t)t * ldt, op->scale, n);
        break;
    case OP_SCATTER:
        core_multiply(k, op->l, op->in, t0, t1, n_tokens, tile - r0, ldt, thread);
        for (int t = 0; t < n_tokens; t++) {
            float *to = out + (size_t)(op->row ? op->row[t] : t) * op->ldo;
            k->k->add(to, to, tile + (size_t)t * ldt, op->weight ? op->scale * op->weight[t] : op->scale, n);
        }
        break;
    case OP_MLP:
        core_multiply(k, op->l, op->in, t0, t1, n_tokens, op->out, op->ldo, thread);
        for (int t = 0; t < n_tokens && k->c->gate_scale != 0; t++)
            for (int r = 0; r < n; r++)
                out[(size_t)t * op->ldo + (size_t)r] *= k->c->gate_scale;
        if (op->up)
            core_multiply(k, op->up, op->in, t0, t1, n_tokens, tile - r0, ldt, thread);
        for (int t = 0; t < n_tokens && k->c->moe.act_limit > 0 && (op->expert || k->c->moe.act_alpha == 0); t++)
            clamp_gated(out + (size_t)t * op->ldo, tile + (size_t)t * ldt, n, k->c->moe.act_alpha, k->c->moe.act_limit);
        for (int t = 0; t < n_tokens && k->c->act == CONFIG_ACT_XIELU; t++)
            xielu(out + (size_t)t * op->ldo, n, op->act);
        for (int t = 0; t < n_tokens && k->c->act != CONFIG_ACT_XIELU; t++)
            k->k->act_mul(out + (size_t)t * op->ldo, out + (size_t)t * op->ldo, op->up ? tile + (size_t)t * ldt : NULL,
                          n, k->c->act);
        break;
    case OP_LOGITS:
        core_multiply(k, op->l, op->in, t0, t1, n_tokens, op->out, op->ldo, thread);
        for (int t = 0; t < n_tokens; t++)
            cap_logits(out + (size_t)t * op->ldo, n, op->scale, op->limit);
        break;
    }
}

static int share_begin(int n_tiles, int n_threads, int thread) { return (int)((int64_t)n_tiles * thread / n_threads); }

static void linear_part(void *arg, int i, int thread)
{
    const struct linear_job *j = arg;
    const int share = i / j->each, n = i % j->each, large = j->each - j->singles;
    const int begin = share_begin(j->n_tiles, j->n_threads, share),
              len = share_begin(j->n_tiles, j->n_threads, share + 1) - begin;
    const int rest = len > j->singles ? len - j->singles : 0;
    int t0 = n < large ? begin + (int)((int64_t)rest * n / large) : begin + rest + n - large;
    int t1 = n < large ? begin + (int)((int64_t)rest * (n + 1) / large) : t0 + 1;
    t1 = t1 < begin + len ? t1 : begin + len;
    for (const struct op *op = j->ops; t0 < t1 && op < j->ops + j->n_ops; op++) {
        const int tiles = op->l->w.n_tiles;
        if (t0 < tiles)
            op_tiles(j->k, op, t0, t1 < tiles ? t1 : tiles, op->n_tokens ? op->n_tokens : j->n_tokens, thread);
        if (j->sum)
            continue;
        t0 = t0 > tiles ? t0 - tiles : 0;
        t1 -= tiles;
    }
}

static void prefetch_next(const void *arg, int thread)
{
    const struct prefetch *a = arg;
    if (!a->w->data)
        return;
    const int tile = share_begin(a->n_tiles, a->n_threads, thread);
    const size_t at = (size_t)tile * a->w->tile_bytes, most = thread ? PREFETCH_BYTES : PREFETCH_CALLER;
    const size_t left = tile < a->w->n_tiles ? a->w->size - at : 0, n = left < most ? left : most;
    for (size_t line = 0; line < 4096; line += 64)      /* interleave pages to keep more streams in flight */
        for (size_t i = line; i < n; i += 4096)
            __builtin_prefetch(a->w->data + at + i, 0, 2);
}

static void run(struct core *k, const struct op *ops, int n_ops, int n_tokens, int sum, const struct prefetch *prefetch)
{
    struct linear_job j = { .k = k, .ops = ops, .n_ops = n_ops, .n_tokens = n_tokens, .sum = sum,
                            .n_threads = pool_size(k->pool) };
    for (int i = 0; i < (sum ? 1 : n_ops); i++)
        j.n_tiles += ops[i].l->w.n_tiles;
    const int most = (j.n_tiles + j.n_threads - 1) / j.n_threads;
    j.singles = j.n_threads == 1 ? 0 : most < TILE_SINGLES ? most : TILE_SINGLES;
    j.each = j.singles + (most - j.singles + k->tile_job - 1) / k->tile_job;
    if (prefetch && prefetch->w && n_tokens <= PREFETCH_TOKENS)
        pool_run_after(k->pool, j.each * j.n_threads, linear_part, &j, prefetch_next, prefetch);
    else
        pool_run(k->pool, j.each * j.n_threads, linear_part, &j);
}

void core_linear(struct core *k, const struct op *ops, int n_ops, int n_tokens, const struct prefetch *prefetch)
{
    run(k, ops, n_ops, n_tokens, 0, prefetch);
}
void core_linear_sum(struct core *k, const struct op *ops, int n_ops, int n_tokens, const struct prefetch *prefetch)
{
    run(k, ops, n_ops, n_tokens, 1, prefetch);
}

int core_prefetch(struct core *k, const struct model *m, struct err *e)
{
    const int n_layers = m->config.n_layers, n_threads = pool_size(k->pool);
    if (n_threads == 1 || m->config.block != BLOCK_SEQUENTIAL)
        return 0;
    k->prefetch = calloc((size_t)n_layers * LOOPS, sizeof *k->prefetch);
    if (!k->prefetch)
        return err_nomem(e, "cpu backend");
    k->bytes += (size_t)n_layers * LOOPS * sizeof *k->prefetch;
    for (int i = 0; i < n_layers; i++) {
        const struct layer *l = &m->layers[i], *next = i + 1 < n_layers ? l + 1 : NULL;
        const struct mat *up = l->router.w.data ? &l->router.w : l->gate.w.data ? &l->gate.w : &l->up.w;
        const struct mat *end = next ? next->q_a.w.data ? &next->q_a.w : next->in.w.data
                                    ? &next->in.w : &next->q.w : m->embed_out.w.data ? &m->embed_out.w : &m->head.w;
        const int more = !next ? 0 : next->kv_a.w.data ? next->kv_a.w.n_tiles : next->k.w.n_tiles + next->v.w.n_tiles;
        struct prefetch *a = k->prefetch + i * LOOPS;
        a[LOOP_QKV] = (struct prefetch){ &l->o.w, l->o.w.n_tiles, n_threads };
        a[LOOP_O] = (struct prefetch){ up, up->n_tiles, n_threads };
        /* of the shared MLP, if there is one */
        a[LOOP_UP] = (struct prefetch){ &l->down.w, l->down.w.n_tiles, n_threads };
        a[LOOP_DOWN] = (struct prefetch){ end, end->n_tiles + more, n_threads };
    }
    return 0;
}

/* The weights of the next loop, or NULL. */
const struct prefetch *core_next(const struct core *k, int index, int loop)
{
    return k->prefetch ? k->prefetch + index * LOOPS + loop : NULL;
}

void core_linear_rows(struct core *k, const struct linear *l, const struct act_input *in, int first, int n_rows,
                      float *room, int n, float *out, size_t ldo)
{
    const int t0 = first / TILE_ROWS, t1 = (first + n_rows + TILE_ROWS - 1) / TILE_ROWS;
    const size_t wide = core_rows_room(n_rows);
    struct linear own = *l;
    own.w.data += (size_t)t0 * own.w.tile_bytes;
    own.w.n_tiles = t1 - t0;
    own.w.rows = (t1 * TILE_ROWS < l->w.rows ? t1 * TILE_ROWS : l->w.rows) - t0 * TILE_ROWS;
    core_linear(k, &(struct op){ .l = &own, .in = in, .out = room, .ldo = wide, .kind = OP_STORE }, 1, n, NULL);
    for (int t = 0; t < n; t++)
        memcpy(out + (size_t)t * ldo, room + (size_t)t * wide + (first - t0 * TILE_ROWS), (size_t)n_rows * sizeof *out);
}

/* ---- rows ---- */

struct row_job {
    const struct core *k;
    const struct norm *norm;
    const float *x, *add;           /* x [n, cols]; with add, x + scale * add is normed instead */
    float *out, *sum;               /* out = norm(x); sum: receives x + scale * add */
    int n, cols, after_add;
};

void core_norm_row(const struct core *k, float *out, const float *x, const struct norm *norm, int n)
{
    const struct config *c = k->c;
    if (c->norm == NORM_RMS)
        k->k->rms_norm(out, x, norm->w, n, c->norm_eps, c->norm_offset);
    else
        k->k->layer_norm(out, x, norm->w, norm->b, n, c->norm_eps);
}

static void norm_rows(void *arg, int i, int thread)
{
    (void)thread;
    const struct row_job *j = arg;
    const size_t cols = (size_t)j->cols;
    for (int r = i * ROW_JOB; r < j->n && r < (i + 1) * ROW_JOB; r++) {
        const size_t at = (size_t)r * cols;
        if (!j->add) {
            core_norm_row(j->k, j->out + at, j->x + at, j->norm, j->cols);
        } else if (j->after_add) {
            j->k->k->add(j->sum + at, j->sum + at, j->add + at, j->k->residual, j->cols);
            core_norm_row(j->k, j->sum + at, j->sum + at, j->norm, j->cols);
        } else {
            core_norm_row(j->k, j->out + at, j->add + at, j->norm, j->cols);
            j->k->k->add(j->sum + at, j->sum + at, j->out + at, j->k->residual, j->cols);
        }
    }
}

static void rows_run(struct core *k, struct row_job *j)
{
    j->k = k;
    const int n_jobs = (j->n + ROW_JOB - 1) / ROW_JOB;
    if ((size_t)j->n * (size_t)j->cols <= SERIAL)
        for (int i = 0; i < n_jobs; i++)
            norm_rows(j, i, 0);
    else
        pool_run(k->pool, n_jobs, norm_rows, j);
}

/* The input of a block: h = norm(x), or x itself without a norm. */
static const float *pre_norm(struct core *k, const struct norm *norm, const float *x, float *h, int n)
{
    if (!norm->present)
        return x;
    rows_run(k, &(struct row_job){ .norm = norm, .x = x, .out = h, .n = n, .cols = k->c->hidden_size });
    return h;
}

/* Apply bitnet's norm to the input of o or down, in place. */
static void sub_norm(struct core *k, const struct norm *norm, float *x, int n, int cols)
{
    if (norm->present)
        rows_run(k, &(struct row_job){ .norm = norm, .x = x, .out = x, .n = n, .cols = cols });
}

/* x += l(in), or x += post(l(in)) if the layer has a norm there; y is a buffer of the size of x. */
static void add_residual(struct core *k, const struct linear *l, const struct act_input *in, const struct norm *post,
                         float *x, float *y, int n, const struct prefetch *prefetch)
{
    const size_t hidden = (size_t)k->c->hidden_size;
    if (!post->present) {
        core_linear(k, &(struct op){ .l = l, .in = in, .out = x, .ldo = hidden, .kind = OP_ADD,
                                     .scale = k->residual }, 1, n, prefetch);
        return;
    }
    core_linear(k, &(struct op){ .l = l, .in = in, .out = y, .ldo = hidden, .kind = OP_STORE }, 1, n, prefetch);
    core_add_normed(k, post, y, x, n);
}

void core_add_normed(struct core *k, const struct norm *norm, float *y, float *x, int n)
{
    const struct config *c = k->c;
    rows_run(k, &(struct row_job){ .norm = norm, .add = y, .out = y, .sum = x, .n = n, .cols = c->hidden_size,
                                   .after_add = c->norm_after_add });
}

/* ---- a layer ---- */

int core_hook(const struct core *k, int layer, int role, const struct act_input *in, int n)
{
    return k->hook && k->hook->input && k->hook->input(k->hook->user, layer, role, in->x, in->ldx, n, in->cols);
}

static int run_mlp(struct core *k, const struct layer *l, int index, const struct act_input *in, float *x, int n)
{
    const int gated = k->c->gated, size = config_mlp_size(k->c, index);
    float act[N_XIELU] = { 0 };
    struct act_input down;
    if (k->c->xielu)
        memcpy(act, k->c->xielu + (size_t)index * N_XIELU, sizeof act);
    else if (l->act_alpha_p)
        memcpy(act, (const float[N_XIELU]){ *l->act_alpha_p, *l->act_alpha_n, *l->act_beta, *l->act_eps }, sizeof act);
    if (k->c->cutoff && k->c->cutoff[index] != 0)
        altup_sparse_mlp(k, l, index, in, n);
    else
        core_linear(k, &(struct op){ .l = gated ? &l->gate : &l->up, .up = gated ? &l->up : NULL, .in = in,
                                     .out = k->mlp, .ldo = (size_t)size, .kind = OP_MLP, .act = act }, 1, n,
                    core_next(k, index, LOOP_UP));
    sub_norm(k, &l->mlp_sub_norm, k->mlp, n, size);
    core_layer_input(k, &down, k->mlp, size, n, l, INPUT_DOWN);
    if (core_hook(k, index, ROLE_DOWN, &down, n))
        return 1;
    const float residual = k->residual;
    k->residual *= k->c->down_scale != 0 ? k->c->down_scale : 1;
    add_residual(k, &l->down, &down, &l->mlp_post_norm, x, k->h[0], n, core_next(k, index, LOOP_DOWN));
    k->residual = residual;
    return 0;
}

/* x += the feed-forward half of the layer, applied to `in`. */
static int run_ff(struct core *k, const struct layer *l, int index, const struct act_input *in, float *x, int n)
{
    if (core_hook(k, index, k->c->gated ? ROLE_GATE : ROLE_UP, in, n))
        return 1;
    if (k->c->ff[index] != FF_MOE)
        return run_mlp(k, l, index, in, x, n);
    if (!l->mlp_post_norm.present)
        return moe_run(k, l, index, in, in, x, n);
    memset(k->sum, 0, (size_t)n * (size_t)k->c->hidden_size * sizeof *k->sum);
    moe_run(k, l, index, in, in, k->sum, n);
    core_add_normed(k, &l->mlp_post_norm, k->sum, x, n);
    return 0;
}

/* The input of the router beside an MLP (gemma4): x, normed and scaled on its own. */
void core_beside_router(struct core *k, const struct layer *l, const float *x, float *out, int n)
{
    const int hidden = k->c->hidden_size;
    const float by = 1 / sqrtf((float)hidden);
    const struct norm norm = { .w = l->router_scale, .present = 1 };
    rows_run(k, &(struct row_job){ .norm = &norm, .x = x, .out = out, .n = n, .cols = hidden });
    for (size_t i = 0; i < (size_t)n * (size_t)hidden; i++)
        out[i] *= by;
}

/* x += post norm of the sum of the MLP's output, in k->beside[0], and that of the experts, which is
 * overwritten. */
void core_beside_end(struct core *k, const struct layer *l, float *experts, float *x, int n)
{
    const int hidden = k->c->hidden_size;
    float *dense = k->beside[0];
    rows_run(k, &(struct row_job){ .norm = &l->expert_post_norm, .x = experts, .out = experts, .n = n,
                                   .cols = hidden });
    k->k->add(dense, dense, experts, 1, n * hidden);
    rows_run(k, &(struct row_job){ .norm = &l->mlp_post_norm, .add = dense, .out = dense, .sum = x, .n = n,
                                   .cols = hidden });
}

/* x += post norm of the sum of an MLP and experts, each with norms of its own (gemma4).  h, the
 * input of the MLP, is overwritten.  Returns 1 if the hook stopped it. */
static int run_beside(struct core *k, const struct layer *l, int index, float *h, const struct act_input *in, float *x,
                      int n)
{
    const struct config *c = k->c;
    const size_t hidden = (size_t)c->hidden_size;
    const int size = config_mlp_size(c, index);
    struct act_input down, experts, router = { .x = k->beside[1], .ldx = hidden, .cols = c->hidden_size };
    float *dense = k->beside[0], *chosen = k->beside[1];
    if (core_hook(k, index, ROLE_GATE, in, n))
        return 1;
    core_linear(k, &(struct op){ .l = &l->gate, .up = &l->up, .in = in, .out = k->mlp, .ldo = (size_t)size,
                                 .kind = OP_MLP }, 1, n, NULL);
    core_layer_input(k, &down, k->mlp, size, n, l, INPUT_DOWN);
    if (core_hook(k, index, ROLE_DOWN, &down, n))
        return 1;
    core_linear(k, &(struct op){ .l = &l->down, .in = &down, .out = dense, .ldo = hidden, .kind = OP_STORE }, 1, n,
                NULL);
    rows_run(k, &(struct row_job){ .norm = &l->dense_post_norm, .x = dense, .out = dense, .n = n,
                                   .cols = (int)hidden });
    rows_run(k, &(struct row_job){ .norm = &l->expert_norm, .x = x, .out = h, .n = n, .cols = (int)hidden });
    core_layer_input(k, &experts, h, c->hidden_size, n, l, INPUT_MLP);
    if (core_hook(k, index, ROLE_EXPERT_GATE, &experts, n))
        return 1;
    core_beside_router(k, l, x, chosen, n);
    moe_route(k, l, &router, n);
    memset(chosen, 0, (size_t)n * hidden * sizeof *chosen);
    moe_run(k, l, index, NULL, &experts, chosen, n);
    core_beside_end(k, l, chosen, x, n);
    return 0;
}

/* Attention with keys and values of its own; *out = k->att.  Returns 1 if the hook stopped it. */
static int run_attention(struct core *k, const struct step *s, const struct layer *l, int index, const float *h,
                         const float **out, int *cols)
{
    const struct config *c = k->c;
    const int n = s->n_tokens, q_cols = c->n_heads * config_head_dim(c, index),
              kv_cols = config_kv_heads(c, index) * config_head_dim(c, index);
    struct act_input in;
    core_layer_input(k, &in, h, c->hidden_size, n, l, INPUT_QKV);
    if (core_hook(k, index, ROLE_Q, &in, n))
        return 1;
    const struct op ops[] = {
        { .l = &l->q, .in = &in, .out = k->q, .ldo = (size_t)q_cols, .kind = OP_STORE, .limit = c->clip_qkv },
        { .l = &l->k, .in = &in, .out = k->key, .ldo = (size_t)kv_cols, .kind = OP_STORE, .limit = c->clip_qkv },
        { .l = &l->v, .in = &in, .out = k->value, .ldo = (size_t)kv_cols, .kind = OP_STORE, .limit = c->clip_qkv },
        { .l = &l->q_gate, .in = &in, .out = k->state.gate, .ldo = (size_t)state_gates(c), .kind = OP_STORE } };
    struct op here[4];
    /* fewer for layers that share keys or use keys as values */
    int n_ops = 0;
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (ops[i].l->w.data)
            here[n_ops++] = ops[i];
    core_linear(k, here, n_ops, n, core_next(k, index, LOOP_QKV));
    if (!config_indexes(c, index) || !blocks_run(k, s, l, index, &in))
        attn_run(k, s, l, index);
    if (c->attn_gate)
        state_gate(k, k->att, n, q_cols);
    sub_norm(k, &l->attn_sub_norm, k->att, n, q_cols);
    *out = k->att;
    *cols = c->n_heads * config_value_dim(c, index);
    return 0;
}

/* x += attention and a state in parallel, each scaled (falcon_h1). */
static int run_both(struct core *k, const struct step *s, const struct layer *l, int index, const float *h, float *x)
{
    const struct config *c = k->c;
    const struct { const struct linear *out; float scale; enum layer_input input; int role; } half[] = {
        { &l->state_o, c->state_out_scale, INPUT_STATE_O, ROLE_STATE_O },
        { &l->o, c->attn_out_scale, INPUT_O, ROLE_O } };
    const float *mixed;
    struct act_input in;
    int cols;
    for (int i = 0; i < 2; i++) {
        if (i == 0 ? state_run(k, s, l, index, h, &mixed, &cols) : run_attention(k, s, l, index, h, &mixed, &cols))
            return 1;
        core_layer_input(k, &in, mixed, cols, s->n_tokens, l, half[i].input);
        if (core_hook(k, index, half[i].role, &in, s->n_tokens))
            return 1;
        core_linear(k, &(struct op){ .l = half[i].out, .in = &in, .out = x, .ldo = (size_t)c->hidden_size,
                                     .kind = OP_ADD, .scale = k->residual * half[i].scale }, 1, s->n_tokens, NULL);
    }
    return 0;
}

/* x = norm(x) * its factor; the next half of the layer has a factor of its own (minimax). */
static void renorm(struct core *k, const float *h, float *x, int n, int which)
{
    const float *by = k->c->renorm[which];
    const size_t all = (size_t)n * (size_t)k->c->hidden_size;
    if (k->c->renorm[0][0] == 0)
        return;
    for (size_t i = 0; i < all; i++)
        x[i] = h[i] * by[0];
    k->residual = by[1];
}

/* Run the mixer of a layer, up to the input of o. */
static int run_mixer(struct core *k, const struct step *s, const struct layer *l, int index, const float *h,
                     const float **out, int *cols)
{
    switch ((enum mixer_kind)k->c->mixer[index]) {
    case MIXER_MLA:       return mla_run(k, s, l, index, h, out, cols);
    case MIXER_COMPRESSED: return compress_run(k, s, l, index, h, out, cols);
    case MIXER_CONV: case MIXER_MAMBA2: case MIXER_DELTA: case MIXER_MAMBA1: case MIXER_LIGHTNING:
        return state_run(k, s, l, index, h, out, cols);
    case MIXER_ATTENTION: case MIXER_NONE: case MIXER_BOTH: break;
    }
    return run_attention(k, s, l, index, h, out, cols);
}

static int run_layer(struct core *k, const struct step *s, const struct layer *l, int index, float *x)
{
    const struct config *c = k->c;
    const int n = s->n_tokens, hidden = c->hidden_size;
    struct act_input o, in_mlp;
    const float *h, *mixed;
    int cols;
    if (config_ngram(c, index) >= 0)
        ngram_run(k, s, l, index);
    if (c->mixer[index] == MIXER_NONE)
        goto feed;
    h = c->hyper.n ? hyper_enter(k, l, 0, &l->attn_norm, x, n) : pre_norm(k, &l->attn_norm, x, k->h[0], n);
    renorm(k, h, x, n, !mixer_has_state(c->mixer[index]));
    if (c->mixer[index] == MIXER_BOTH) {
        if (run_both(k, s, l, index, h, x))
            return 1;
        goto feed;
    }
    if (c->block != BLOCK_SEQUENTIAL)           /* both halves read the input of the layer */
        core_layer_input(k, &in_mlp, c->block == BLOCK_PARALLEL ? h : pre_norm(k, &l->mlp_norm, x, k->h[1], n),
                         hidden, n, l, INPUT_MLP);
    if (c->laurel_rank)
        altup_laurel(k, l, h, n);
    if (run_mixer(k, s, l, index, h, &mixed, &cols))
        return 1;
    core_layer_input(k, &o, mixed, cols, n, l, INPUT_O);
    if (core_hook(k, index, ROLE_O, &o, n))
        return 1;
    /* the MLP first, because k->h[0] may be its input */
    if (c->block != BLOCK_SEQUENTIAL) {
        /* if it was stopped, the caller adds the MLP itself, so attention is added in any case */
        const int stopped = run_ff(k, l, index, &in_mlp, x, n);
        add_residual(k, &l->o, &o, &l->attn_post_norm, x, k->h[0], n, core_next(k, index, LOOP_O));
        return stopped;
    }
    add_residual(k, &l->o, &o, &l->attn_post_norm, x, k->h[0], n, core_next(k, index, LOOP_O));
    if (c->laurel_rank)
        altup_add_laurel(k, x, n);
    if (c->hyper.n)
        hyper_leave(k, x, n);
feed:
    if (c->ff[index] == FF_NONE)
        return 0;
    h = c->hyper.n ? hyper_enter(k, l, 1, &l->mlp_norm, x, n) : pre_norm(k, &l->mlp_norm, x, k->h[0], n);
    renorm(k, h, x, n, 2);
    core_layer_input(k, &in_mlp, h, hidden, n, l, INPUT_MLP);
    if (c->moe.beside && c->ff[index] == FF_MOE ? run_beside(k, l, index, k->h[0], &in_mlp, x, n)
                                                : run_ff(k, l, index, &in_mlp, x, n))
        return 1;
    if (c->hyper.n)
        hyper_leave(k, x, n);
    return c->n_streams ? 0 : ple_run(k, l, index, x, n);
}

int core_layer(struct core *k, const struct step *s, const struct layer *l, int index, float *x)
{
    if (!k->c->n_streams)
        return run_layer(k, s, l, index, x);
    altup_predict(k, l, x, s->n_tokens);
    if (run_layer(k, s, l, index, x))
        return 1;
    altup_correct(k, l, index, x, s->n_tokens);
    return 0;
}
