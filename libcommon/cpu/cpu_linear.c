/* cpu_linear.c - linear layers on the CPU: quantize their inputs, and multiply several matrices in
 * one parallel loop.
 *
 * Threads divide the tiles of all matrices of a loop; a tile's outputs, and the operation on them
 * (enum op_kind), belong to one job.  Idle threads prefetch the weights of the next loop. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/cpu/cpu_ops.h"
#include "libcommon/cpu/internal.h"
#include "libcommon/model/arch.h"

_Static_assert((int)CONFIG_ACT_SILU == ACT_SILU && (int)CONFIG_ACT_GELU == ACT_GELU &&
               (int)CONFIG_ACT_GELU_TANH == ACT_GELU_TANH && (int)CONFIG_ACT_RELU == ACT_RELU &&
               (int)CONFIG_ACT_RELU2 == ACT_RELU2 && (int)CONFIG_ACT_GELU_QUICK == ACT_GELU_QUICK,
               "config.act is an act_kind");

enum {
    /* The last tiles of each thread are jobs of one tile, so that threads finish together; the
     * others are larger, so that there are fewer jobs. */
    TILE_SINGLES = 4,
    /* most tokens of a step in which idle threads prefetch the next weights */
    PREFETCH_TOKENS = 16,
    /* bytes to prefetch; the calling thread prefetches less, as it has other work to do */
    PREFETCH_BYTES = 32768,
    PREFETCH_CALLER = 2048,
    /* number of rows of a result that are prefetched in advance; the hardware does not prefetch
     * them, because each row is in another page */
    PREFETCH_ROWS = 4,
};

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

int core_slot(const struct config *c, enum layer_input input)
{
    return c->block != BLOCK_SEQUENTIAL && (input == INPUT_MLP || input == INPUT_DOWN);
}

int core_reserve(struct core *k, const struct layer *layers, int n_layers, const struct linear *head, struct err *e)
{
    const struct linear *readers[LAYER_READERS];
    for (int i = 0; i < n_layers; i++) {
        const struct layer *l = &layers[i];
        for (enum layer_input in = 0; in < N_INPUTS; in++)
            if (reserve_slot(k, core_slot(k->c, in), readers, layer_readers(l, in, readers), e) < 0)
                return -1;
        const struct linear *out = &l->latent_out;
        if (out->w.data && reserve_slot(k, core_slot(k->c, INPUT_DOWN), &out, 1, e) < 0)
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
    core_input(k, in, core_slot(k->c, input), x, cols, n_tokens, readers, layer_readers(l, input, readers));
}

/* ---- linear layers ---- */

struct linear_job {
    const struct core *k;
    const struct op *ops;
    int n_ops, n_tokens, sum;
    int n_tiles, n_threads;                 /* each thread has a run of the tiles of all ops, */
    /* The tiles are divided into jobs of `each` tiles, except the last `singles` tiles, each of
     * which is a job. */
    int each, singles;
};

void core_multiply(const struct core *k, const struct linear *l, const struct act_input *in, int t0, int t1,
                   int n_tokens, float *out, size_t ldo, int thread)
{
    int p = 0;
    while (p < in->n_forms && (in->form[p].cols_padded != l->w.cols_padded || in->form[p].act_group != l->w.act_group))
        p++;
    if (l->lora && k->lora.n_runs)
        lora_prefetch(k, l, t0, t1);
    if (p < in->n_forms)
        k->k->matmul(out, ldo, &l->w, t0, t1, in->form[p].act, n_tokens, k->scratch[thread]);
    else
        k->k->matmul_f32(out, ldo, &l->w, t0, t1, in->x, in->ldx, n_tokens, k->scratch[thread]);
    const int r0 = t0 * TILE_ROWS, r1 = t1 * TILE_ROWS < l->w.rows ? t1 * TILE_ROWS : l->w.rows;
    for (int t = 0; t < n_tokens && l->bias; t++)
        for (int r = r0; r < r1; r++)
            out[(size_t)t * ldo + (size_t)r] += l->bias[r];
    if (l->lora && k->lora.n_runs)
        lora_add(k, l, t0, t1, out, ldo, thread);
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

/* Apply the limits to g and u, and scale them so that act_mul(), which computes silu(g) * u, gives
 * g * sigmoid(a g) * (u + 1) = silu(a g) * ((u + 1) / a).  a 0: apply the limits only. */
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

/* xIELU (arXiv:2411.13010, equation 6), with a limit on x in the exponential. */
static void xielu(float *x, int n, const float *params)
{
    const float beta = params[XIELU_BETA], eps = params[XIELU_EPS], p = log1pf(expf(params[XIELU_ALPHA_P])),
                m = beta + log1pf(expf(params[XIELU_ALPHA_N]));
    for (int i = 0; i < n; i++)
        x[i] = x[i] > 0 ? p * x[i] * x[i] + beta * x[i]
                        : (expm1f(x[i] < eps ? x[i] : eps) - x[i]) * m + beta * x[i];
}

/* Prefetch n elements of the row that is used PREFETCH_ROWS after row t of n_rows.  Always inline:
 * gcc 12 removes calls of a function that only prefetches. */
static inline __attribute__((always_inline)) void prefetch_row(const float *rows, size_t stride, int t, int n_rows,
                                                               int n)
{
    if (t + PREFETCH_ROWS < n_rows)
        for (int i = 0; i < n; i += 64 / (int)sizeof *rows)
            __builtin_prefetch(rows + (size_t)(t + PREFETCH_ROWS) * stride + i);
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
        for (int t = 0; t < n_tokens; t++) {
            prefetch_row(out, op->ldo, t, n_tokens, n);
            k->k->add(out + (size_t)t * op->ldo, out + (size_t)t * op->ldo, tile + (size_t)t * ldt, op->scale, n);
        }
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
        for (int t = 0; t < n_tokens && k->c->act != CONFIG_ACT_XIELU; t++) {
            prefetch_row(out, op->ldo, t, n_tokens, n);
            k->k->act_mul(out + (size_t)t * op->ldo, out + (size_t)t * op->ldo, op->up ? tile + (size_t)t * ldt : NULL,
                          n, k->c->act);
        }
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
    const struct next_loop *a = arg;
    if (!a->w->data)
        return;
    const int tile = share_begin(a->n_tiles, a->n_threads, thread);
    const size_t at = (size_t)tile * a->w->tile_bytes, most = thread ? PREFETCH_BYTES : PREFETCH_CALLER;
    const size_t left = tile < a->w->n_tiles ? a->w->size - at : 0, n = left < most ? left : most;
    for (size_t line = 0; line < 4096; line += 64)      /* interleave pages to keep more streams in flight */
        for (size_t i = line; i < n; i += 4096)
            __builtin_prefetch(a->w->data + at + i, 0, 2);
}

static void run(struct core *k, const struct op *ops, int n_ops, int n_tokens, int sum,
                const struct next_loop *prefetch)
{
    struct linear_job j = { .k = k, .ops = ops, .n_ops = n_ops, .n_tokens = n_tokens, .sum = sum,
                            .n_threads = pool_size(k->pool) };
    for (int i = 0; i < (sum ? 1 : n_ops); i++)
        j.n_tiles += ops[i].l->w.n_tiles;
    const int most = (j.n_tiles + j.n_threads - 1) / j.n_threads;
    j.singles = j.n_threads == 1 ? 0 : most < TILE_SINGLES ? most : TILE_SINGLES;
    j.each = j.singles + (most - j.singles + k->tile_job - 1) / k->tile_job;
    lora_project(k, ops, n_ops);
    if (prefetch && prefetch->w && n_tokens <= PREFETCH_TOKENS)
        pool_run_after(k->pool, j.each * j.n_threads, linear_part, &j, prefetch_next, prefetch);
    else
        pool_run(k->pool, j.each * j.n_threads, linear_part, &j);
}

void core_linear(struct core *k, const struct op *ops, int n_ops, int n_tokens, const struct next_loop *prefetch)
{
    run(k, ops, n_ops, n_tokens, 0, prefetch);
}
void core_linear_sum(struct core *k, const struct op *ops, int n_ops, int n_tokens, const struct next_loop *prefetch)
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
        struct next_loop *a = k->prefetch + i * LOOPS;
        a[LOOP_QKV] = (struct next_loop){ &l->o.w, l->o.w.n_tiles, n_threads };
        a[LOOP_O] = (struct next_loop){ up, up->n_tiles, n_threads };
        /* in a mixture of experts l->down belongs to the shared MLP */
        a[LOOP_UP] = (struct next_loop){ &l->down.w, l->down.w.n_tiles, n_threads };
        a[LOOP_DOWN] = (struct next_loop){ end, end->n_tiles + more, n_threads };
    }
    return 0;
}

/* The weights of the loop after `loop` of this layer, or NULL. */
const struct next_loop *core_next(const struct core *k, int index, int loop)
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
