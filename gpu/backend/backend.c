/* backend.c - the step on a device: a plan of all memory before the first allocation, then layer after layer as cpu_core.c does it, in the
 * device's stream.  The host fills one pinned buffer a step (tokens, positions, KV tables) and waits once, for the logits.
 *
 * Up to 16 tokens go through matvec.cu, more through matmul.cu; steps of decoding alone are padded to 1, 2, 4 .. 64 tokens and replayed as graphs from
 * the second of a kind on.  With exact, and for matrices of f32, activations stay f32 and matmul_f32.cu computes. */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/backend/weights.h"
#include "gpu/gpu.h"
#include "libcommon/model/arch.h"

enum {
    MAX_PARTS = 32,             /* pieces of device memory besides weights and cache */
    LOGIT_ROWS = 64,            /* rows of logits at a time */
    PARTIAL_BYTES = 32 << 20,   /* what split attention may take for its partial results, unless one token needs more */
    TILE_TOKENS = 16,           /* from so many tokens of a sequence on, attention by tiles */
    MAX_GRAPH_TOKENS = 64, N_BUCKETS = 7, MAX_SPLIT_BITS = 16,
    STEP_ARRAYS = 6,
};

struct input { const uint16_t *act; int stride; const float *x; int ldx; };

struct gpu_backend {
    const struct model *m;
    struct backend_options o;
    struct gpu *g;
    struct dweights *w;
    int exact, floats;              /* floats: some matrix is f32, so inputs are kept as f32 too */
    int stride_hidden, stride_att, stride_mlp;
    /* device */
    uint8_t *kv; size_t kv_size, kv_stride; uint32_t kv_part;
    uint8_t *arena; size_t arena_size;
    float *x, *y, *hf, *hf2, *q, *k, *v, *attf, *gate, *up, *cosine[2], *sine[2], *alibi, *freq[2], *freq_long[2], *partial, *logits;
    uint16_t *act, *act2, *act_att, *act_mlp;
    int32_t *step; size_t step_room;        /* 4-byte words */
    /* host, pinned */
    int32_t *hstep; float *hlogits;
    size_t pinned;
    int max_splits, partial_rows, logit_rows;
    /* of the step in hand */
    int n, n_decode, n_tiles, splits;
    struct gpu_graph *graph[N_BUCKETS][MAX_SPLIT_BITS];
    int seen[N_BUCKETS][MAX_SPLIT_BITS];
    struct err lost;
    char name[192];
};

/* Arrays of a step, one after the other; then tiles, then tables. */
enum { A_TOKEN, A_POS, A_LONG, A_TABLE, A_DECODE, A_LOGIT };
static int32_t *host_array(struct gpu_backend *b, int i) { return b->hstep + (size_t)i * (size_t)(b->o.max_tokens + MAX_GRAPH_TOKENS); }
static int32_t *array(const struct gpu_backend *b, int i) { return b->step + (size_t)i * (size_t)(b->o.max_tokens + MAX_GRAPH_TOKENS); }
static size_t tiles_at(const struct gpu_backend *b) { return STEP_ARRAYS * (size_t)(b->o.max_tokens + MAX_GRAPH_TOKENS); }
static size_t tables_at(const struct gpu_backend *b) { return tiles_at(b) + 2 * (size_t)(b->o.max_tokens / TILE_TOKENS + 1); }

/* ---- open and close ---- */

static void close_graphs(struct gpu_backend *b)
{
    for (int i = 0; i < N_BUCKETS; i++)
        for (int j = 0; j < MAX_SPLIT_BITS; j++) {
            if (b->graph[i][j])
                gpu_graph_close(b->g, b->graph[i][j]);
            b->graph[i][j] = NULL;
            b->seen[i][j] = 0;
        }
}

static void backend_close(void *backend)
{
    struct gpu_backend *b = backend;
    if (!b)
        return;
    if (b->g) {
        close_graphs(b);
        dweights_close(b->w);
        gpu_free(b->g, b->arena);
        gpu_free(b->g, b->kv);
        gpu_free(b->g, b->step);
        gpu_pinned_free(b->g, b->hstep);
        gpu_pinned_free(b->g, b->hlogits);
        gpu_close(b->g);
    }
    free(b);
}

static int stride_of(const struct mat *const *m, int n, int cols)
{
    int stride = (cols + 31) / 32 * 32;
    for (int i = 0; i < n; i++)
        if (m[i]->data && m[i]->cols_padded > stride)
            stride = m[i]->cols_padded;
    return stride;
}

/* Widths of the rounded activations: the widest padding among the matrices that read them; and is there f32? */
static void measure(struct gpu_backend *b)
{
    const struct config *c = &b->m->config;
    b->stride_hidden = stride_of(&(const struct mat *){ &b->m->head.w }, 1, c->hidden_size > c->embed_size ? c->hidden_size : c->embed_size);
    b->stride_att = b->stride_mlp = 0;
    b->floats = b->exact || b->m->head.w.type == QT_F32;
    for (int i = 0; i < c->n_layers; i++) {
        const struct layer *l = &b->m->layers[i];
        const struct mat *reads_hidden[] = { &l->q.w, &l->k.w, &l->v.w, &l->gate.w, &l->up.w }, *o = &l->o.w, *down = &l->down.w;
        int s = stride_of(reads_hidden, 5, c->hidden_size);
        b->stride_hidden = s > b->stride_hidden ? s : b->stride_hidden;
        s = stride_of(&o, 1, c->n_heads * c->head_dim);
        b->stride_att = s > b->stride_att ? s : b->stride_att;
        s = stride_of(&down, 1, c->intermediate_size);
        b->stride_mlp = s > b->stride_mlp ? s : b->stride_mlp;
        for (int j = 0; j < 5; j++)
            b->floats |= reads_hidden[j]->data && reads_hidden[j]->type == QT_F32;
        b->floats |= o->type == QT_F32 || down->type == QT_F32;
    }
}

struct part { void *p; size_t bytes; };

static size_t up256(size_t n) { return (n + 255) / 256 * 256; }

static int plan_arena(struct gpu_backend *b, struct part *part)
{
    const struct config *c = &b->m->config;
    const size_t t = (size_t)(b->o.max_tokens > GPU_MATVEC_TOKENS ? b->o.max_tokens : GPU_MATVEC_TOKENS) + MAX_GRAPH_TOKENS, hd = (size_t)c->head_dim;
    const size_t hidden = (size_t)c->hidden_size, wide = hidden > (size_t)c->embed_size ? hidden : (size_t)c->embed_size;
    const size_t nq = (size_t)c->n_heads * hd, nk = (size_t)c->n_kv_heads * hd, mlp = (size_t)c->intermediate_size;
    const size_t f = sizeof(float), h = sizeof(uint16_t), per_row = (size_t)c->n_heads * (size_t)b->max_splits * (hd + 2) * f;
    b->partial_rows = (int)(PARTIAL_BYTES / per_row) < 1 ? 1 : (int)(PARTIAL_BYTES / per_row);
    b->partial_rows = b->partial_rows > (int)t ? (int)t : b->partial_rows;
    b->logit_rows = b->o.max_logits < LOGIT_ROWS ? b->o.max_logits : LOGIT_ROWS;
    if (b->logit_rows < MAX_GRAPH_TOKENS && b->o.max_logits > 0) {              /* graphs pad to the next power of two */
        int n = 1;
        while (n < b->logit_rows)
            n *= 2;
        b->logit_rows = n;
    }
    int n = 0;
    part[n++] = (struct part){ &b->x, t * hidden * f };
    part[n++] = (struct part){ &b->y, t * hidden * f };
    part[n++] = (struct part){ &b->hf, (b->floats || b->m->embed_in.w.data || b->m->embed_out.w.data) ? t * wide * f : 0 };
    part[n++] = (struct part){ &b->hf2, b->floats && c->block == BLOCK_PARALLEL2 ? t * hidden * f : 0 };
    part[n++] = (struct part){ &b->q, t * nq * f };
    part[n++] = (struct part){ &b->attf, b->floats ? t * nq * f : 0 };
    part[n++] = (struct part){ &b->k, t * nk * f };
    part[n++] = (struct part){ &b->v, t * nk * f };
    part[n++] = (struct part){ &b->gate, t * mlp * f };
    part[n++] = (struct part){ &b->up, t * mlp * f };
    part[n++] = (struct part){ &b->act, t * (size_t)b->stride_hidden * h };
    part[n++] = (struct part){ &b->act2, c->block == BLOCK_PARALLEL2 ? t * (size_t)b->stride_hidden * h : 0 };
    part[n++] = (struct part){ &b->act_att, t * (size_t)b->stride_att * h };
    part[n++] = (struct part){ &b->act_mlp, t * (size_t)b->stride_mlp * h };
    for (int i = 0; i < c->n_ropes; i++) {
        const size_t half = (size_t)c->ropes[i].dim / 2;
        part[n++] = (struct part){ &b->cosine[i], t * half * f };
        part[n++] = (struct part){ &b->sine[i], t * half * f };
        part[n++] = (struct part){ &b->freq[i], half * f };
        part[n++] = (struct part){ &b->freq_long[i], c->ropes[i].inv_freq_long ? half * f : 0 };
    }
    part[n++] = (struct part){ &b->alibi, c->pos == POS_ALIBI ? (size_t)c->n_heads * f : 0 };
    part[n++] = (struct part){ &b->partial, (size_t)b->partial_rows * per_row };
    part[n++] = (struct part){ &b->logits, (size_t)b->logit_rows * (size_t)c->vocab_size * f };
    assert(n <= MAX_PARTS);
    return n;
}

/* Small tables, once, through the step's pinned memory, which is empty yet. */
static int upload_table(struct gpu_backend *b, float *to, const float *from, int n, struct err *e)
{
    memcpy(b->hstep, from, (size_t)n * sizeof *from);
    return gpu_upload(b->g, GPU_COMPUTE, to, b->hstep, (size_t)n * sizeof *from, e) < 0 ? -1 : gpu_sync(b->g, GPU_COMPUTE, e);
}

static int upload_tables(struct gpu_backend *b, struct err *e)
{
    const struct config *c = &b->m->config;
    for (int i = 0; i < c->n_ropes; i++) {
        const struct rope *r = &c->ropes[i];
        if (upload_table(b, b->freq[i], r->inv_freq, r->dim / 2, e) < 0 || (r->inv_freq_long && upload_table(b, b->freq_long[i], r->inv_freq_long, r->dim / 2, e) < 0))
            return -1;
        if (!r->inv_freq_long)
            b->freq_long[i] = NULL;
    }
    if (c->pos != POS_ALIBI)
        return 0;
    float *slope = malloc((size_t)c->n_heads * sizeof *slope);
    if (!slope)
        return err_nomem(e, "slopes");
    int n = 1;
    while (2 * n <= c->n_heads)
        n *= 2;
    for (int h = 0; h < c->n_heads; h++) {      /* arXiv:2108.12409 and its code */
        const double power = h < n ? (double)(h + 1) / n : (double)(2 * (h - n) + 1) / (2 * n);
        slope[h] = (float)(c->alibi_scale * exp2(-c->alibi_max_bias * power));
    }
    const int rc = upload_table(b, b->alibi, slope, c->n_heads, e);
    free(slope);
    return rc;
}

static const char *megabytes(char out[32], size_t n)
{
    snprintf(out, 32, "%.1f MB", (double)n * 1e-6);
    return out;
}

static int open_memory(struct gpu_backend *b, struct err *e)
{
    const struct config *c = &b->m->config;
    struct part part[MAX_PARTS];
    struct gpu_info info;
    char s[5][32];
    measure(b);
    b->kv_part = (uint32_t)kv_block_bytes(b->o.kv_type, c->head_dim);
    b->kv_stride = (size_t)c->n_layers * (size_t)c->n_kv_heads * 2 * b->kv_part;
    if (__builtin_mul_overflow(b->kv_stride, (size_t)b->o.n_blocks, &b->kv_size))
        return err_set(e, ERR_SHAPE, "a KV cache of %d blocks is too large", b->o.n_blocks);
    int64_t most = (int64_t)b->o.n_blocks * KV_BLOCK;
    most = c->max_len > 0 && c->max_len < most ? c->max_len : most;
    b->max_splits = (int)((most + GPU_SPLIT - 1) / GPU_SPLIT);
    const int n = plan_arena(b, part);
    for (int i = 0; i < n; i++)
        b->arena_size += up256(part[i].bytes);
    b->step_room = tables_at(b) + (size_t)b->o.n_blocks + 4096;

    const size_t weights = dweights_size(b->m), all = weights + b->kv_size + b->arena_size + b->step_room * 4;
    if (gpu_info(b->g, &info, e) < 0)
        return -1;
    if (all > info.free)
        return err_set(e, ERR_MEMORY, "%s needs %s of device memory (weights %s, keys and values %s, work %s), but %s are free: fewer bits a weight (-q), a shorter --ctx or "
                       "--kv i8 need less", info.name, megabytes(s[0], all), megabytes(s[1], weights), megabytes(s[2], b->kv_size), megabytes(s[3], all - weights - b->kv_size),
                       megabytes(s[4], info.free));
    if (!(b->w = dweights_open(b->g, b->m, e)) ||               /* first: the copy runs while the rest is made */
        !(b->arena = gpu_alloc(b->g, b->arena_size, "activations", e)) || !(b->kv = gpu_alloc(b->g, b->kv_size, "keys and values", e)) ||
        !(b->step = gpu_alloc(b->g, b->step_room * 4, "the step", e)) || !(b->hstep = gpu_pinned(b->g, b->step_room * 4, "the step", e)) ||
        !(b->hlogits = gpu_pinned(b->g, (size_t)b->logit_rows * (size_t)c->vocab_size * sizeof(float), "logits", e)))
        return -1;
    b->pinned = b->step_room * 4 + (size_t)b->logit_rows * (size_t)c->vocab_size * sizeof(float);
    uint8_t *at = b->arena;
    for (int i = 0; i < n; i++) {
        memcpy(part[i].p, &at, sizeof at);
        at += up256(part[i].bytes);
    }
    /* what pads the rows of activations stays 0 from here on */
    if (gpu_fill(b->g, GPU_COMPUTE, b->act, 0, (size_t)((uint8_t *)(c->n_ropes ? (void *)b->cosine[0] : (void *)b->alibi) - (uint8_t *)b->act), e) < 0 ||
        upload_tables(b, e) < 0)
        return -1;
    snprintf(b->name, sizeof b->name, "%s %s%s", gpu_kind, info.name, b->exact ? ", exact" : "");
    return 0;
}

/* The one number format that has CPU kernels alone. */
static int has_ternary(const struct model *m)
{
    for (int i = 0; i < m->config.n_layers; i++) {
        const struct layer *l = &m->layers[i];
        const struct linear *all[] = { &l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down };
        for (size_t k = 0; k < sizeof all / sizeof *all; k++)
            if (all[k]->w.data && all[k]->w.type == QT_T2)
                return 1;
    }
    return m->embed.w.type == QT_T2 || m->head.w.type == QT_T2;
}

static void *backend_open(const struct model *m, const struct backend_options *o, struct err *e)
{
    const struct config *c = &m->config;
    if (o->n_blocks < 1 || o->max_tokens < 1 || o->max_logits < 0 || o->max_logits > o->max_tokens) {
        err_set(e, ERR_SHAPE, "%s: %d KV blocks, %d tokens, %d logits: expected at least 1, 1, and no more logits than tokens", gpu_kind, o->n_blocks, o->max_tokens, o->max_logits);
        return NULL;
    }
    if (config_beyond_dense(c)) {
        err_set(e, ERR_UNSUPPORTED, "%s: %s (%s) runs on the CPU only", gpu_kind, c->arch, config_beyond_dense(c));
        return NULL;
    }
    if (has_ternary(m)) {
        err_set(e, ERR_UNSUPPORTED, "%s: ternary weights (t2) run on the CPU only", gpu_kind);
        return NULL;
    }
    if (c->head_dim % 8 || c->head_dim > GPU_ATTN_MAX_DIM) {
        err_set(e, ERR_UNSUPPORTED, "%s: heads of %d elements, expected a multiple of 8 up to %d", gpu_kind, c->head_dim, GPU_ATTN_MAX_DIM);
        return NULL;
    }
    struct gpu_backend *b = calloc(1, sizeof *b);
    if (!b) {
        err_nomem(e, "gpu backend");
        return NULL;
    }
    b->m = m;
    b->o = *o;
    b->exact = o->exact;
    if (!(b->g = gpu_open(o->device, o->debug_sync, e)) || open_memory(b, e) < 0) {
        backend_close(b);
        return NULL;
    }
    return b;
}

/* ---- linear layers ---- */

struct target { const struct dlinear *l; float *out; int ldo; };

static struct gpu_linear begin(const struct gpu_backend *b, const struct input *in, enum gpu_finish finish, float scale, float limit)
{
    return (struct gpu_linear){ .act = in->act, .act_stride = in->stride, .x = in->x, .ldx = in->ldx, .n_tokens = b->n, .finish = finish, .scale = scale, .limit = limit,
                                .function = b->m->config.act };
}

static int in_floats(const struct gpu_backend *b, const struct dlinear *l) { return b->exact || l->w.type == QT_F32; }

/* Matrices that read one input. */
static int run_linear(struct gpu_backend *b, const struct input *in, const struct target *to, int n, enum gpu_finish finish, float scale, float limit, struct err *e)
{
    for (int i = 0; i < n; ) {
        struct gpu_linear l = begin(b, in, finish, scale, limit);
        const struct dlinear *first = to[i].l;
        const int exact = in_floats(b, first), together = exact || b->n <= GPU_MATVEC_TOKENS;
        do {
            l.w[l.n_mats] = to[i].l->w;
            l.to[l.n_mats++] = (struct gpu_output){ to[i].l->bias, to[i].out, to[i].ldo };
            i++;
        } while (together && i < n && (exact ? in_floats(b, to[i].l) : to[i].l->w.type == first->w.type && to[i].l->w.group_shift == first->w.group_shift &&
                                                                      to[i].l->w.n_steps == first->w.n_steps));
        if ((exact ? gpu_matmul_f32(b->g, &l, e) : together ? gpu_matvec(b->g, &l, e) : gpu_matmul(b->g, &l, e)) < 0)
            return -1;
    }
    return 0;
}

static int run_norm(struct gpu_backend *b, const struct dnorm *norm, float *x, uint16_t *act, float *out, struct input *in, struct err *e)
{
    const struct config *c = &b->m->config;
    *in = (struct input){ .act = act, .stride = b->stride_hidden, .x = b->floats ? out : NULL, .ldx = c->hidden_size };
    return gpu_norm(b->g, &(struct gpu_norm){ .layer_norm = c->norm == NORM_LAYER, .present = norm->present, .w = norm->w, .b = norm->b, .eps = c->norm_eps,
                                             .offset = c->norm_offset, .x = x, .ldx = c->hidden_size, .out = b->floats ? out : NULL, .ldo = c->hidden_size,
                                             .act = b->exact ? NULL : act, .act_stride = b->stride_hidden, .n = b->n, .cols = c->hidden_size }, e);
}

/* x += l(in), through post if there is one. */
static int add_residual(struct gpu_backend *b, const struct dlinear *l, const struct input *in, const struct dnorm *post, struct err *e)
{
    const struct config *c = &b->m->config;
    if (!post->present)
        return run_linear(b, in, &(struct target){ l, b->x, c->hidden_size }, 1, GPU_ADD, c->residual_scale, 0, e);
    if (run_linear(b, in, &(struct target){ l, b->y, c->hidden_size }, 1, GPU_STORE, 1, 0, e) < 0)
        return -1;
    return gpu_norm(b->g, &(struct gpu_norm){ .layer_norm = c->norm == NORM_LAYER, .present = 1, .w = post->w, .b = post->b, .eps = c->norm_eps, .offset = c->norm_offset,
                                             .x = b->x, .ldx = c->hidden_size, .add = b->y, .after_add = c->norm_after_add, .scale = c->residual_scale, .n = b->n,
                                             .cols = c->hidden_size }, e);
}

static int run_mlp(struct gpu_backend *b, const struct dlayer *l, const struct input *in, struct err *e)
{
    const struct config *c = &b->m->config;
    const struct dlinear *gate = c->gated ? &l->gate : &l->up, *up = c->gated ? &l->up : NULL;
    struct input down = { .act = b->act_mlp, .stride = b->stride_mlp, .x = b->gate, .ldx = c->intermediate_size };
    if (!in_floats(b, gate) && b->n <= GPU_MATVEC_TOKENS && !in_floats(b, &l->down) &&
        (!up || (up->w.type == gate->w.type && up->w.group_shift == gate->w.group_shift && up->w.n_steps == gate->w.n_steps))) {
        struct gpu_linear fused = begin(b, in, GPU_MLP, 1, 0);
        fused.w[0] = gate->w;
        fused.to[0].bias = gate->bias;
        fused.n_mats = 1;
        if (up) {
            fused.w[1] = up->w;
            fused.to[1].bias = up->bias;
            fused.n_mats = 2;
        }
        fused.act_out = b->act_mlp;
        fused.act_out_stride = b->stride_mlp;
        if (gpu_matvec(b->g, &fused, e) < 0)
            return -1;
    } else {
        const struct target to[2] = { { gate, b->gate, c->intermediate_size }, { up, b->up, c->intermediate_size } };
        const int floats = in_floats(b, &l->down);
        if (run_linear(b, in, to, up ? 2 : 1, GPU_STORE, 1, 0, e) < 0 ||
            gpu_act_mul(b->g, b->gate, up ? b->up : NULL, b->n, c->intermediate_size, c->act, floats ? b->gate : NULL, floats ? NULL : b->act_mlp, b->stride_mlp, e) < 0)
            return -1;
    }
    return add_residual(b, &l->down, &down, &l->mlp_post_norm, e);
}

/* ---- attention ---- */

static struct gpu_step step_of(const struct gpu_backend *b)
{
    return (struct gpu_step){ .pos = array(b, A_POS), .table_of = array(b, A_TABLE), .tables = b->step + tables_at(b), .n = b->n };
}

static int run_attention(struct gpu_backend *b, const struct dlayer *l, int index, struct err *e)
{
    const struct config *c = &b->m->config;
    const int table = c->rope_of[index], nq = c->n_heads * c->head_dim, nk = c->n_kv_heads * c->head_dim;
    const int full = c->qk_norm == QK_NORM_FULL, floats = in_floats(b, &l->o);
    if (full) {
        struct gpu_norm o = { .present = 1, .w = l->q_norm.w, .eps = c->qk_norm_eps, .offset = c->qk_norm_offset, .x = b->q, .ldx = nq, .out = b->q, .ldo = nq, .n = b->n, .cols = nq };
        if (gpu_norm(b->g, &o, e) < 0)
            return -1;
        o.w = l->k_norm.w;
        o.x = o.out = b->k;
        o.ldx = o.ldo = o.cols = nk;
        if (gpu_norm(b->g, &o, e) < 0)
            return -1;
    }
    const struct gpu_kv kv = { .base = b->kv, .stride = b->kv_stride, .head_stride = 2 * (uint64_t)b->kv_part, .layer_offset = (uint64_t)index * (uint64_t)c->n_kv_heads * 2 * b->kv_part,
                               .part = b->kv_part, .type = (int)b->o.kv_type };
    struct gpu_prepare p = { .q = b->q, .k = b->k, .v = b->v, .n_heads = c->n_heads, .n_kv_heads = c->n_kv_heads, .head_dim = c->head_dim,
                             .norm = full || c->qk_norm == QK_NORM_NONE ? 0 : c->qk_norm_kind == NORM_RMS ? 1 : 2, .norm_each = c->qk_norm == QK_NORM_EACH,
                             .norm_after_rope = c->qk_norm_after_rope, .qw = l->q_norm.w, .qb = l->q_norm.b, .kw = l->k_norm.w, .kb = l->k_norm.b, .eps = c->qk_norm_eps,
                             .offset = c->qk_norm_offset, .step = step_of(b), .kv = kv };
    if (table >= 0) {
        p.cosine = b->cosine[table];
        p.sine = b->sine[table];
        p.rope_dim = c->ropes[table].dim;
        p.rope_pairs = c->ropes[table].pairs;
    }
    if (gpu_prepare(b->g, &p, e) < 0)
        return -1;
    struct gpu_attention a = { .q = b->q, .out = floats ? b->attf : NULL, .act = floats ? NULL : b->act_att, .act_stride = b->stride_att, .n_heads = c->n_heads,
                               .n_kv_heads = c->n_kv_heads, .head_dim = c->head_dim, .window = c->window[index], .scale = c->attn_scale, .softcap = c->attn_softcap,
                               .alibi = c->pos == POS_ALIBI ? b->alibi : NULL, .step = step_of(b), .kv = kv, .partial = b->partial, .max_splits = b->splits,
                               .tiles = b->step + tiles_at(b), .n_tiles = b->n_tiles };
    for (int i = 0; i < b->n_decode; i += a.n_rows) {
        a.rows = array(b, A_DECODE) + i;
        a.n_rows = b->n_decode - i < b->partial_rows ? b->n_decode - i : b->partial_rows;
        if (gpu_attn_decode(b->g, &a, e) < 0)
            return -1;
    }
    return b->n_tiles ? gpu_attn_prefill(b->g, &a, e) : 0;
}

/* ---- a step ---- */

static int run_layer(struct gpu_backend *b, int index, struct err *e)
{
    const struct config *c = &b->m->config;
    const struct dlayer *l = dweights_layer(b->w, index);
    struct input in, in_mlp;
    if (dweights_need(b->w, index, e) < 0 || run_norm(b, &l->attn_norm, b->x, b->act, b->hf, &in, e) < 0)
        return -1;
    in_mlp = in;
    if (c->block == BLOCK_PARALLEL2 && run_norm(b, &l->mlp_norm, b->x, b->act2, b->hf2, &in_mlp, e) < 0)
        return -1;
    const struct target qkv[3] = { { &l->q, b->q, c->n_heads * c->head_dim }, { &l->k, b->k, c->n_kv_heads * c->head_dim }, { &l->v, b->v, c->n_kv_heads * c->head_dim } };
    const struct input att = { .act = b->act_att, .stride = b->stride_att, .x = b->attf, .ldx = c->n_heads * c->head_dim };
    if (run_linear(b, &in, qkv, 3, GPU_STORE, 1, c->clip_qkv, e) < 0 || run_attention(b, l, index, e) < 0)
        return -1;
    if (c->block != BLOCK_SEQUENTIAL)           /* the MLP first: x is its input's source no more, but the order of the sums is the CPU's */
        return run_mlp(b, l, &in_mlp, e) < 0 ? -1 : add_residual(b, &l->o, &att, &l->attn_post_norm, e);
    if (add_residual(b, &l->o, &att, &l->attn_post_norm, e) < 0 || run_norm(b, &l->mlp_norm, b->x, b->act, b->hf, &in, e) < 0)
        return -1;
    return run_mlp(b, l, &in, e);
}

static int run_embed(struct gpu_backend *b, struct err *e)
{
    const struct config *c = &b->m->config;
    const struct dends *w = dweights_ends(b->w);
    const int32_t *token = array(b, A_TOKEN), *pos = array(b, A_POS);
    if (dweights_need(b->w, DWEIGHTS_FIRST, e) < 0)
        return -1;
    if (w->embed_in.w.data) {
        const struct gpu_mat none = { .cols = c->hidden_size, .n_steps = (c->hidden_size + 31) / 32 };
        const struct input in = { .x = b->hf, .ldx = c->embed_size };
        struct gpu_linear l = begin(b, &in, GPU_ADD, 1, 0);
        l.w[0] = w->embed_in.w;
        l.to[0] = (struct gpu_output){ w->embed_in.bias, b->x, c->hidden_size };
        l.n_mats = 1;
        if (gpu_embed(b->g, b->hf, &w->embed.w, token, pos, b->n, c->embed_scale, NULL, 0, e) < 0 ||
            gpu_embed(b->g, b->x, &none, token, pos, b->n, 1, w->pos_embed, c->pos_offset, e) < 0 || gpu_matmul_f32(b->g, &l, e) < 0)
            return -1;
    } else if (gpu_embed(b->g, b->x, &w->embed.w, token, pos, b->n, c->embed_scale, w->pos_embed, c->pos_offset, e) < 0) {
        return -1;
    }
    if (w->embed_norm.present &&
        gpu_norm(b->g, &(struct gpu_norm){ .layer_norm = c->norm == NORM_LAYER, .present = 1, .w = w->embed_norm.w, .b = w->embed_norm.b, .eps = c->norm_eps, .offset = c->norm_offset,
                                          .x = b->x, .ldx = c->hidden_size, .out = b->x, .ldo = c->hidden_size, .n = b->n, .cols = c->hidden_size }, e) < 0)
        return -1;
    for (int i = 0; i < c->n_ropes; i++)
        if (gpu_rope_table(b->g, b->cosine[i], b->sine[i], pos, array(b, A_LONG), b->n, c->ropes[i].dim, b->freq[i], b->freq_long[i], c->ropes[i].scale,
                           c->ropes[i].scale_long, e) < 0)
            return -1;
    return 0;
}

/* Logits of rows [first, first + n) of A_LOGIT into b->logits. */
static int run_logits(struct gpu_backend *b, int first, int n, struct err *e)
{
    const struct config *c = &b->m->config;
    const struct dends *w = dweights_ends(b->w);
    const int all = b->n;
    const int floats = in_floats(b, &w->head), through = w->embed_out.w.data != NULL;
    struct input in = { .act = b->act, .stride = b->stride_hidden, .x = b->y, .ldx = c->hidden_size };
    if (dweights_need(b->w, c->n_layers, e) < 0 ||
        gpu_norm(b->g, &(struct gpu_norm){ .layer_norm = c->norm == NORM_LAYER, .present = w->final_norm.present, .w = w->final_norm.w, .b = w->final_norm.b, .eps = c->norm_eps,
                                          .offset = c->norm_offset, .x = b->x, .ldx = c->hidden_size, .rows = array(b, A_LOGIT) + first,
                                          .out = floats || through ? b->y : NULL, .ldo = c->hidden_size, .act = floats || through ? NULL : b->act,
                                          .act_stride = b->stride_hidden, .n = n, .cols = c->hidden_size }, e) < 0)
        return -1;
    b->n = n;
    int rc = 0;
    if (through) {
        struct gpu_linear l = begin(b, &in, GPU_STORE, 1, 0);
        l.w[0] = w->embed_out.w;
        l.to[0] = (struct gpu_output){ w->embed_out.bias, b->hf, c->embed_size };
        l.n_mats = 1;
        rc = gpu_matmul_f32(b->g, &l, e);
        in.x = b->hf;
        in.ldx = c->embed_size;
        if (rc == 0 && !floats)
            rc = gpu_act_pack(b->g, b->hf, n, c->embed_size, b->act, b->stride_hidden, e);
    }
    if (rc == 0)
        rc = run_linear(b, &in, &(struct target){ &w->head, b->logits, c->vocab_size }, 1, GPU_LOGITS, c->logit_scale, c->final_softcap, e);
    b->n = all;
    return rc;
}

static int run_step(struct gpu_backend *b, struct err *e)
{
    if (run_embed(b, e) < 0)
        return -1;
    for (int i = 0; i < b->m->config.n_layers; i++)
        if (run_layer(b, i, e) < 0)
            return -1;
    return 0;
}

/* What the caller may have got wrong. */
static int check_batch(const struct gpu_backend *b, const struct batch *batch, size_t *n_tables, struct err *e)
{
    const struct config *c = &b->m->config;
    int64_t n_tokens = 0, n_logits = 0;
    *n_tables = 0;
    for (int i = 0; i < batch->n_items; i++) {
        const struct batch_item *it = &batch->items[i];
        if (it->n_tokens < 1 || it->pos < 0 || it->n_logits < 0 || it->n_logits > it->n_tokens || it->n_tokens > b->o.max_tokens)
            return err_set(e, ERR_SHAPE, "batch item %d: %d tokens at %d, %d logits", i, it->n_tokens, it->pos, it->n_logits);
        if ((int64_t)it->pos + it->n_tokens > (int64_t)b->max_splits * GPU_SPLIT || (c->max_len > 0 && (int64_t)it->pos + it->n_tokens > c->max_len))
            return err_set(e, ERR_LIMIT, "%lld tokens, but there is memory and a model for %lld", (long long)it->pos + it->n_tokens,
                           c->max_len > 0 ? (long long)c->max_len : (long long)b->max_splits * GPU_SPLIT);
        for (int t = 0; t < it->n_tokens; t++)
            if (it->tokens[t] < 0 || it->tokens[t] >= c->vocab_size)
                return err_set(e, ERR_SHAPE, "token %d is outside the vocabulary of %d", it->tokens[t], c->vocab_size);
        const int blocks = (it->pos + it->n_tokens - 1) / KV_BLOCK + 1;
        for (int p = 0; p < blocks; p++)
            if (it->table[p] < 0 || it->table[p] >= b->o.n_blocks)
                return err_set(e, ERR_SHAPE, "batch item %d: KV block %d, expected 0 to %d", i, it->table[p], b->o.n_blocks - 1);
        *n_tables += (size_t)blocks;
        n_tokens += it->n_tokens;
        n_logits += it->n_logits;
    }
    if (n_tokens > b->o.max_tokens || n_logits > b->o.max_logits)
        return err_set(e, ERR_SHAPE, "a batch of %lld tokens and %lld logits, expected at most %d and %d", (long long)n_tokens, (long long)n_logits, b->o.max_tokens,
                       b->o.max_logits);
    return 0;
}

/* Tables of sequences that share blocks may be longer than the cache has blocks: the only memory that grows. */
static int grow_step(struct gpu_backend *b, size_t n_tables, struct err *e)
{
    const size_t need = tables_at(b) + n_tables;
    if (need <= b->step_room)
        return 0;
    close_graphs(b);
    gpu_free(b->g, b->step);
    gpu_pinned_free(b->g, b->hstep);
    b->hstep = NULL;
    b->pinned += (2 * need - b->step_room) * 4;
    b->step_room = 2 * need;
    return (b->step = gpu_alloc(b->g, b->step_room * 4, "the step", e)) && (b->hstep = gpu_pinned(b->g, b->step_room * 4, "the step", e)) ? 0 : -1;
}

/* The arrays of a step. Returns the words to upload; *n_logits rows of logits are wanted. */
static size_t fill_step(struct gpu_backend *b, const struct batch *batch, int *n_logits)
{
    const int long_from = config_long_from(&b->m->config), by_tiles = !b->exact && b->m->config.head_dim % 16 == 0;
    int32_t *token = host_array(b, A_TOKEN), *pos = host_array(b, A_POS), *is_long = host_array(b, A_LONG), *table_of = host_array(b, A_TABLE);
    int32_t *decode = host_array(b, A_DECODE), *logit = host_array(b, A_LOGIT), *tiles = b->hstep + tiles_at(b), *tables = b->hstep + tables_at(b);
    int n = 0, at = 0, longest = 1;
    b->n_decode = b->n_tiles = *n_logits = 0;
    for (int i = 0; i < batch->n_items; i++) {
        const struct batch_item *it = &batch->items[i];
        const int len = it->pos + it->n_tokens, blocks = (len - 1) / KV_BLOCK + 1, tiled = by_tiles && it->n_tokens >= TILE_TOKENS;
        for (int t = 0; tiled && t < it->n_tokens; t += GPU_ATTN_TILE) {
            tiles[2 * b->n_tiles] = n + t;
            tiles[2 * b->n_tiles++ + 1] = it->n_tokens - t < GPU_ATTN_TILE ? it->n_tokens - t : GPU_ATTN_TILE;
        }
        for (int t = 0; t < it->n_tokens; t++, n++) {
            token[n] = it->tokens[t];
            pos[n] = it->pos + t;
            is_long[n] = long_from && (it->seq_len ? it->seq_len : len) >= long_from;
            table_of[n] = at;
            if (!tiled)
                decode[b->n_decode++] = n;
            if (t >= it->n_tokens - it->n_logits)
                logit[(*n_logits)++] = n;
        }
        if (!tiled && len > longest)
            longest = len;
        memcpy(tables + at, it->table, (size_t)blocks * sizeof *tables);
        at += blocks;
    }
    b->n = n;
    b->splits = (longest + GPU_SPLIT - 1) / GPU_SPLIT;
    return tables_at(b) + (size_t)at;
}

/* A step of decoding alone: padded to a power of two, splits too, so that few graphs serve all.  -1: it is something else. */
static int pad_decode(struct gpu_backend *b, int n_logits, int *splits_bit)
{
    if (b->n > MAX_GRAPH_TOKENS || b->n != b->n_decode || n_logits != b->n || b->o.debug_sync || b->n_decode > b->partial_rows)
        return -1;
    int bucket = 0;
    while (1 << bucket < b->n)
        bucket++;
    if (1 << bucket > b->partial_rows || 1 << bucket > b->logit_rows)
        return -1;
    for (*splits_bit = 0; 1 << *splits_bit < b->splits; )
        ++*splits_bit;
    if (1 << *splits_bit > b->max_splits || *splits_bit >= MAX_SPLIT_BITS)
        return -1;
    for (; b->n < 1 << bucket; b->n++) {
        host_array(b, A_TOKEN)[b->n] = 0;
        host_array(b, A_POS)[b->n] = -1;
        host_array(b, A_LONG)[b->n] = 0;
        host_array(b, A_TABLE)[b->n] = 0;
        host_array(b, A_DECODE)[b->n] = b->n;
        host_array(b, A_LOGIT)[b->n] = b->n;
    }
    b->n_decode = b->n;
    b->splits = 1 << *splits_bit;
    return bucket;
}

static int download_logits(struct gpu_backend *b, int n, float *logits, struct err *e)
{
    const size_t bytes = (size_t)n * (size_t)b->m->config.vocab_size * sizeof *logits;
    if (gpu_download(b->g, GPU_COMPUTE, b->hlogits, b->logits, bytes, e) < 0 || gpu_sync(b->g, GPU_COMPUTE, e) < 0)
        return -1;
    memcpy(logits, b->hlogits, bytes);
    return 0;
}

/* The whole of a decoding step, recorded the second time it is asked for. */
static int run_decode(struct gpu_backend *b, int bucket, int splits_bit, struct err *e)
{
    struct gpu_graph **graph = &b->graph[bucket][splits_bit];
    const int complete = dweights_complete(b->w, e);
    if (complete < 0)
        return -1;
    if (*graph)
        return gpu_graph_launch(b->g, *graph, e);
    if (!complete || b->seen[bucket][splits_bit]++ == 0)
        return run_step(b, e) < 0 ? -1 : run_logits(b, 0, b->n, e);
    struct err ignored;
    if (gpu_graph_begin(b->g, e) < 0)
        return -1;
    const int rc = run_step(b, e) < 0 ? -1 : run_logits(b, 0, b->n, e);
    *graph = gpu_graph_end(b->g, rc < 0 ? &ignored : e);
    return rc < 0 || !*graph ? -1 : gpu_graph_launch(b->g, *graph, e);
}

static int backend_forward(void *backend, const struct batch *batch, float *logits, struct err *e)
{
    struct gpu_backend *b = backend;
    size_t n_tables;
    int n_logits, splits_bit;
    if (check_batch(b, batch, &n_tables, e) < 0)
        return -1;
    if (batch->n_items == 0)
        return 0;
    if (grow_step(b, n_tables, e) < 0)
        return -1;
    const size_t words = fill_step(b, batch, &n_logits);
    const int wanted = b->n, bucket = pad_decode(b, n_logits, &splits_bit);
    if (gpu_upload(b->g, GPU_COMPUTE, b->step, b->hstep, words * 4, e) < 0)
        return -1;
    if (bucket >= 0)
        return run_decode(b, bucket, splits_bit, e) < 0 ? -1 : download_logits(b, wanted, logits, e);
    if (run_step(b, e) < 0)
        return -1;
    for (int i = 0, n; i < n_logits; i += n) {
        n = n_logits - i < b->logit_rows ? n_logits - i : b->logit_rows;
        if (run_logits(b, i, n, e) < 0 || download_logits(b, n, logits + (size_t)i * (size_t)b->m->config.vocab_size, e) < 0)
            return -1;
    }
    return n_logits ? 0 : gpu_sync(b->g, GPU_COMPUTE, e);       /* the pinned step is written again by the next */
}

static int backend_copy_block(void *backend, int32_t from, int32_t to, struct err *e)
{
    struct gpu_backend *b = backend;
    if (from < 0 || from >= b->o.n_blocks || to < 0 || to >= b->o.n_blocks)
        return err_set(e, ERR_SHAPE, "copy of KV block %d to %d, expected 0 to %d", from, to, b->o.n_blocks - 1);
    return from == to ? 0 : gpu_copy(b->g, GPU_COMPUTE, b->kv + (size_t)to * b->kv_stride, b->kv + (size_t)from * b->kv_stride, b->kv_stride, e);
}

/* Host memory: the device's is not private memory of the process. */
static size_t backend_memory(const void *backend)
{
    const struct gpu_backend *b = backend;
    return sizeof *b + b->pinned + b->kv_size;
}
static size_t backend_kv_bytes(const void *backend) { return ((const struct gpu_backend *)backend)->kv_size; }
static const char *backend_describe(const void *backend) { return ((const struct gpu_backend *)backend)->name; }

const struct backend backend_gpu = {
    .name = "gpu", .open = backend_open, .forward = backend_forward, .copy_block = backend_copy_block, .memory = backend_memory,
    .kv_bytes = backend_kv_bytes, .describe = backend_describe, .close = backend_close, .drop_block = NULL, .copy_state = NULL,
};
