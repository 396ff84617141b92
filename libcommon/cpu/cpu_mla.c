/* cpu_mla.c - multi-head latent attention (arXiv:2405.04434, section 2.1) in its absorbed form: the
 * matrices that would expand latents to keys and values are applied to the queries and to the
 * output of attention instead, so the cache holds a latent and a rotated key per token, which are
 * never expanded.
 *
 * Prompts are computed in the same way.  Expanding the latents would take fewer operations (3.4
 * times fewer in attention at DeepSeek's sizes), but the last bits would differ, and a token's
 * result must not depend on how its prompt was divided. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/cpu/cpu_attn.h"
#include "libcommon/cpu/cpu_ops.h"

enum { HEAD_TOKENS = 64 };          /* tokens per job of a head */

/* A job over n consecutive tokens; rows of q and att begin with token token0 of the step. */
struct mla_job { struct core *k; const struct layer *l; int index, token0, n; };

static size_t head_floats(const struct config *c)
{
    const struct mla *m = &c->mla;
    return (size_t)c->n_heads * (size_t)(m->nope_dim + m->rope_dim);
}

size_t mla_floats(const struct config *c) { return c->mla.kv_rank ? head_floats(c) + (size_t)c->mla.q_rank : 0; }

/* Returns the floats per token for the rows of one head of k_b or v_b, including rows of the
 * neighbouring heads in partly used tiles. */
static size_t tile_floats(const struct config *c)
{
    const int most = c->mla.kv_rank > c->mla.v_dim ? c->mla.kv_rank : c->mla.v_dim;
    return c->mla.kv_rank % TILE_ROWS || c->mla.v_dim % TILE_ROWS ? (size_t)(most / TILE_ROWS + 2) * TILE_ROWS : 0;
}

int mla_open(struct core *k, struct err *e)
{
    struct mla_work *w = &k->mla;
    const size_t t = (size_t)k->max_tokens, wide = HEAD_TOKENS * tile_floats(k->c) * (size_t)pool_size(k->pool),
                 floats = t * mla_floats(k->c) + wide;
    w->heads = malloc(floats * sizeof *w->heads);
    w->act = calloc((size_t)pool_size(k->pool), sizeof *w->act);
    if (!w->heads || !w->act)
        return err_nomem(e, "activations");
    w->n_act = pool_size(k->pool);
    w->q_a = w->heads + t * head_floats(k->c);
    w->tiles = w->q_a + t * (size_t)k->c->mla.q_rank;
    k->bytes += floats * sizeof *w->heads;
    return 0;
}

void mla_close(struct core *k)
{
    for (int i = 0; k->mla.act && i < k->mla.n_act; i++)
        free(k->mla.act[i]);
    free(k->mla.act);
    free(k->mla.heads);
    k->mla = (struct mla_work){ 0 };
}

int mla_reserve(struct core *k, const struct layer *l, struct err *e)
{
    struct mla_work *w = &k->mla;
    const struct linear *const both[] = { &l->k_b, &l->v_b };
    for (int i = 0; i < 2; i++) {
        struct act_input in;
        core_forms(k, &in, &both[i], 1);
        const size_t bytes = in.n_forms ? up64(k->k->act_bytes(HEAD_TOKENS, in.form[0].cols_padded,
                                                             in.form[0].act_group)) : 0;
        if (bytes <= w->act_bytes)
            continue;
        for (int t = 0; t < pool_size(k->pool); t++) {
            free(w->act[t]);
            if (!(w->act[t] = aligned_alloc(64, bytes)))
                return err_nomem(e, "activations");
        }
        k->bytes += (bytes - w->act_bytes) * (size_t)pool_size(k->pool);
        w->act_bytes = bytes;
    }
    return 0;
}

/* out [n][ldo] = the product of the rows of l that belong to one head with x [n][ldx]. */
static void head_multiply(const struct core *k, const struct linear *l, int head, int rows, const float *x, size_t ldx,
                          int n, float *out, size_t ldo, int thread)
{
    struct act_input in = { .x = x, .ldx = ldx, .cols = l->w.cols };
    const int first = head * rows, t0 = first / TILE_ROWS, t1 = (first + rows + TILE_ROWS - 1) / TILE_ROWS;
    core_forms(k, &in, &l, 1);
    if (in.n_forms) {
        in.form[0].act = k->mla.act[thread];
        for (int p = 0; p < k->k->act_parts(n); p++)
            k->k->act_pack(in.form[0].act, x, ldx, n, in.cols, in.form[0].cols_padded, in.form[0].act_group, p);
    }
    if (rows % TILE_ROWS == 0) {
        core_multiply(k, l, &in, t0, t1, n, out - first, ldo, thread);
        return;
    }
    const size_t wide = tile_floats(k->c);
    float *tiles = k->mla.tiles + (size_t)thread * HEAD_TOKENS * wide;
    core_multiply(k, l, &in, t0, t1, n, tiles - t0 * TILE_ROWS, wide, thread);
    for (int t = 0; t < n; t++)
        memcpy(out + (size_t)t * ldo, tiles + (size_t)t * wide + first - t0 * TILE_ROWS, (size_t)rows * sizeof *out);
}

static void rotate(const struct core *k, int index, int token, float *x)
{
    const int table = k->c->rope_of[index];
    if (table < 0)
        return;
    const struct rope *r = &k->c->ropes[table];
    const size_t at = (size_t)token * (size_t)(r->dim / 2);
    k->k->rope(x, k->cos[table] + at, k->sin[table] + at, 1, (size_t)r->dim, r->dim, r->pairs);
}

/* Map a head's queries to the space of the latents, followed by their rotated part. */
static void absorb(void *arg, int i, int thread)
{
    const struct mla_job *j = arg;
    const struct core *k = j->k;
    const struct config *c = k->c;
    const struct mla *m = &c->mla;
    const int head = i % c->n_heads, first = i / c->n_heads * HEAD_TOKENS,
              n = j->n - first < HEAD_TOKENS ? j->n - first : HEAD_TOKENS;
    const size_t dim = (size_t)(m->nope_dim + m->rope_dim), ldx = (size_t)c->n_heads * dim,
                 ldo = (size_t)c->n_heads * (size_t)c->head_dim;
    float *x = k->mla.heads + (size_t)(j->token0 + first) * ldx + (size_t)head * dim,
          *out = k->q + (size_t)first * ldo + (size_t)head * (size_t)c->head_dim;
    for (int t = 0; t < n; t++) {
        float *q = x + (size_t)t * ldx + m->nope_dim;
        rotate(k, j->index, j->token0 + first + t, q);
        memcpy(out + (size_t)t * ldo + m->kv_rank, q, (size_t)m->rope_dim * sizeof *q);
    }
    head_multiply(k, &j->l->k_b, head, m->kv_rank, x, ldx, n, out, ldo, thread);
}

/* Map a head's output from the space of the latents to its values. */
static void expand(void *arg, int i, int thread)
{
    const struct mla_job *j = arg;
    const struct core *k = j->k;
    const struct config *c = k->c;
    const struct mla *m = &c->mla;
    const int head = i % c->n_heads, first = i / c->n_heads * HEAD_TOKENS,
              n = j->n - first < HEAD_TOKENS ? j->n - first : HEAD_TOKENS;
    const size_t ldx = (size_t)c->n_heads * (size_t)c->head_dim, ldo = (size_t)c->n_heads * (size_t)m->v_dim;
    head_multiply(k, &j->l->v_b, head, m->v_dim, k->att + (size_t)first * ldx + (size_t)head * (size_t)c->head_dim, ldx,
                  n, k->mlp + (size_t)(j->token0 + first) * ldo + (size_t)head * (size_t)m->v_dim, ldo, thread);
}

/* Norm the latents and rotate the single key of a token. */
static void latent_rows(void *arg, int t, int thread)
{
    (void)thread;
    const struct mla_job *j = arg;
    const struct core *k = j->k;
    const struct mla *m = &k->c->mla;
    float *key = k->key + (size_t)t * (size_t)k->c->head_dim;
    k->k->rms_norm(key, key, j->l->kv_norm.w, m->kv_rank, m->norm_eps, 0);
    rotate(k, j->index, t, key + m->kv_rank);
    if (m->q_rank) {
        float *q = k->mla.q_a + (size_t)t * (size_t)m->q_rank;
        k->k->rms_norm(q, q, j->l->q_a_norm.w, m->q_rank, m->norm_eps, 0);
    }
}

static void run_tokens(struct mla_job *j, const struct step *s, struct query_run *runs, int n_runs, int token0, int n)
{
    const int n_jobs = (n + HEAD_TOKENS - 1) / HEAD_TOKENS * j->k->c->n_heads;
    j->token0 = token0;
    j->n = n;
    pool_run(j->k->pool, n_jobs, absorb, j);
    if (!index_attend(j->k, s, j->index, runs, n_runs, token0))
        attn_run_latent(j->k, s, j->l, j->index, runs, n_runs, token0);
    pool_run(j->k->pool, n_jobs, expand, j);
}

/* Run at most attn_rows tokens at a time: several whole items, or part of a longer one.  Values go
 * to k->mlp, which is unused until o has read them. */
static void run_all(struct mla_job *j, const struct step *s)
{
    struct core *k = j->k;
    const int rows = attn_rows(k->c, k->max_tokens);
    struct query_run *chunk = k->runs, *const end = chunk + s->n_runs;
    while (chunk < end) {
        struct query_run *next = chunk;
        const int token0 = s->offset[chunk->item];
        int n = 0;
        while (next < end && n + s->items[next->item].n_tokens <= rows) {
            const int item = next->item;
            n += s->items[item].n_tokens;
            while (next < end && next->item == item)
                next++;
        }
        if (n > 0) {
            run_tokens(j, s, chunk, (int)(next - chunk), token0, n);
            chunk = next;
            continue;
        }
        while (next < end && next->item == chunk->item)
            next++;
        /* the last tokens first */
        for (struct query_run *c = chunk, *last; c < next; c = last) {
            for (n = 0, last = c; last < next && n + last->n <= rows; last++)
                n += last->n;
            run_tokens(j, s, c, (int)(last - c), token0 + last[-1].first, n);
        }
        chunk = next;
    }
}

int mla_run(struct core *k, const struct step *s, const struct layer *l, int index, const float *h, const float **o,
            int *cols)
{
    const struct config *c = k->c;
    const struct mla *m = &c->mla;
    const int n = s->n_tokens, dim = m->nope_dim + m->rope_dim;
    struct mla_job j = { .k = k, .l = l, .index = index, .n = n };
    struct act_input in, q_a;
    const struct linear *first = m->q_rank ? &l->q_a : &l->q;
    core_layer_input(k, &in, h, c->hidden_size, n, l, INPUT_QKV);
    if (core_hook(k, index, ROLE_Q, &in, n))
        return 1;
    core_linear(k, (struct op[]){
        { .l = first, .in = &in, .out = m->q_rank ? k->mla.q_a : k->mla.heads,
          .ldo = (size_t)(m->q_rank ? m->q_rank : c->n_heads * dim), .kind = OP_STORE },
        { .l = &l->kv_a, .in = &in, .out = k->key, .ldo = (size_t)c->head_dim, .kind = OP_STORE },
        { .l = &l->q_gate, .in = &in, .out = k->state.gate, .ldo = (size_t)c->n_heads, .kind = OP_STORE } },
                c->attn_gate ? 3 : 2, n, NULL);
    if (n == 1)
        latent_rows(&j, 0, 0);
    else
        pool_run(k->pool, n, latent_rows, &j);
    if (m->q_rank) {
        core_layer_input(k, &q_a, k->mla.q_a, m->q_rank, n, l, INPUT_Q_A);
        if (core_hook(k, index, ROLE_Q_A, &q_a, n))
            return 1;
        core_linear(k, &(struct op){ .l = &l->q, .in = &q_a, .out = k->mla.heads, .ldo = (size_t)(c->n_heads * dim),
                                     .kind = OP_STORE }, 1, n, NULL);
    }
    attn_store_latents(k, s);
    if (config_indexes(c, index))
        index_run(k, s, l, index, &in, &q_a);
    run_all(&j, s);
    if (c->attn_gate)
        state_gate(k, k->mlp, n, c->n_heads * m->v_dim);
    *o = k->mlp;
    *cols = c->n_heads * m->v_dim;
    return 0;
}
