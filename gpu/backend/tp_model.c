/* tp_model.c - the part of a model that a rank of a tensor-parallel group has. */
#include "gpu/backend/tp_model.h"

#include <stdlib.h>
#include <string.h>

/* A share of something that is counted in pieces: [first, first + n). */
struct share { int first, n; };

/* The share of a rank: pieces of `unit` each, the first ranks take the remainder, and the last
 * piece may be smaller. */
static struct share share_of(int all, int unit, int n_ranks, int rank)
{
    const int pieces = (all + unit - 1) / unit, each = pieces / n_ranks, more = pieces % n_ranks,
              first = (rank * each + (rank < more ? rank : more)) * unit,
              end = first + (each + (rank < more)) * unit;
    return (struct share){ first, (end < all ? end : all) - first };
}

static int pieces_of(int all, int unit) { return unit ? (all + unit - 1) / unit : 0; }

/* ---- slices of matrices ---- */

/* Columns of a matrix can be cut at multiples of this. */
static int column_unit(const struct mat *m)
{
    const int unit = m->unit_groups * m->group_size, act = m->act_group > TILE_ROWS ? m->act_group : TILE_ROWS;
    return unit > act ? unit : act;
}

/* Keep n rows from `first`, which begins a tile, on. */
static void keep_rows(struct linear *l, int first, int n)
{
    struct mat *m = &l->w;
    if (!m->data)
        return;
    m->data += (size_t)(first / TILE_ROWS) * m->tile_bytes;
    m->rows = n;
    m->n_tiles = (n + TILE_ROWS - 1) / TILE_ROWS;
    m->size = (size_t)m->n_tiles * m->tile_bytes;
    l->bias = l->bias ? l->bias + first : NULL;
}

/* Keep n columns from `first`, which begins a unit, on.  Only the first rank adds the bias. */
static int keep_columns(struct linear *l, const struct linear *whole, int first, int n, int rank,
                        struct tp_columns *out, struct err *e)
{
    const struct mat *m = &whole->w;
    const int unit = m->unit_groups * m->group_size;
    if (mat_init(&l->w, m->type, m->group_size, m->act_group, m->rows, n, e) < 0)
        return -1;
    l->w.data = m->data;                /* present; the loader reads the columns of `whole` */
    l->bias = rank ? NULL : l->bias;
    *out = (struct tp_columns){ m, first / unit, pieces_of(l->w.n_groups, l->w.unit_groups) };
    return 0;
}

/* ---- attention ---- */

/* How the heads are divided: KV heads in pieces of `unit`, with all their query heads; or, if
 * shared > 0, the query heads of each KV head over this number of ranks, in pieces of `unit`. */
struct head_split { int unit, shared; };

static int is_attention(const struct config *c, int layer)
{
    return c->mixer[layer] == MIXER_ATTENTION || c->mixer[layer] == MIXER_MLA;
}

static int head_rows(const struct linear *l, int n_heads) { return l->w.data ? l->w.rows / n_heads : 0; }

/* 1 if a run of `queries` query heads and `keys` KV heads of a layer begins and ends at tiles of
 * rows and at units of columns. */
static int cuts_at(const struct config *c, const struct layer *l, int n_kv, int queries, int keys)
{
    const struct linear *of_queries[] = { &l->q, &l->q_gate, &l->k_b, &l->v_b }, *of_keys[] = { &l->k, &l->v };
    int rest = queries * (l->o.w.cols / c->n_heads) % column_unit(&l->o.w);
    for (int i = 0; i < 4; i++)
        rest |= queries * head_rows(of_queries[i], c->n_heads) % TILE_ROWS;
    for (int i = 0; i < 2; i++)
        rest |= keys * head_rows(of_keys[i], n_kv) % TILE_ROWS;
    return rest == 0;
}

static int all_cut_at(const struct model *m, int n_kv, int queries, int keys)
{
    for (int i = 0; i < m->config.n_layers; i++)
        if (is_attention(&m->config, i) && !cuts_at(&m->config, &m->layers[i], n_kv, queries, keys))
            return 0;
    return 1;
}

/* Norms over all heads cannot be divided. */
static int has_wide_norms(const struct model *m)
{
    int any = m->config.qk_norm == QK_NORM_FULL;
    for (int i = 0; i < m->config.n_layers; i++)
        any |= m->layers[i].attn_sub_norm.present;
    return any;
}

/* Number of KV heads that are divided; latent attention has one key, which every rank has. */
static int kv_heads(const struct config *c)
{
    for (int i = 0; i < c->n_layers; i++)
        if (c->mixer[i] == MIXER_MLA)
            return c->n_heads;
    return c->n_kv_heads;
}

/* Returns 1 and *h if attention can be divided. */
static int divide_heads(const struct model *m, int n_ranks, struct head_split *h)
{
    const struct config *c = &m->config;
    int any = 0;
    for (int i = 0; i < c->n_layers; i++)
        any |= is_attention(c, i);
    if (!any || has_wide_norms(m))
        return 0;
    const int n_kv = kv_heads(c), group = c->n_heads / n_kv;
    for (int u = 1; pieces_of(n_kv, u) >= n_ranks; u++)
        if (all_cut_at(m, n_kv, u * group, u)) {
            *h = (struct head_split){ u, 0 };
            return 1;
        }
    const int shared = n_ranks % n_kv == 0 ? n_ranks / n_kv : 0;
    for (int u = 1; shared > 1 && u <= group && pieces_of(group, u) >= shared; u++)
        if (all_cut_at(m, n_kv, u, 1)) {
            *h = (struct head_split){ u, shared };
            return 1;
        }
    return 0;
}

static int cut_attention(struct tp_model *t, const struct head_split *h, struct err *e)
{
    const struct config *c = &t->whole->config;
    const int n_kv = kv_heads(c), group = c->n_heads / n_kv;
    struct share keys, queries;
    if (h->shared) {
        keys = (struct share){ t->rank / h->shared, 1 };
        queries = share_of(group, h->unit, h->shared, t->rank % h->shared);
        queries.first += keys.first * group;
    } else {
        keys = share_of(n_kv, h->unit, t->n_ranks, t->rank);
        queries = (struct share){ keys.first * group, keys.n * group };
    }
    t->first_head = queries.first;
    t->m.config.n_heads = queries.n;
    t->m.config.n_kv_heads = n_kv == c->n_kv_heads ? keys.n : c->n_kv_heads;
    for (int i = 0; i < c->n_layers; i++) {
        const struct layer *from = &t->whole->layers[i];
        struct layer *l = &t->m.layers[i];
        if (!is_attention(c, i))
            continue;
        struct linear *of_queries[] = { &l->q, &l->q_gate, &l->k_b, &l->v_b }, *of_keys[] = { &l->k, &l->v };
        for (int k = 0; k < 4; k++) {
            const int rows = head_rows(of_queries[k], c->n_heads);
            keep_rows(of_queries[k], queries.first * rows, queries.n * rows);
        }
        for (int k = 0; k < 2; k++) {
            const int rows = head_rows(of_keys[k], n_kv);
            keep_rows(of_keys[k], keys.first * rows, keys.n * rows);
        }
        const int cols = from->o.w.cols / c->n_heads;
        if (keep_columns(&l->o, &from->o, queries.first * cols, queries.n * cols, t->rank, &t->o[i], e) < 0)
            return -1;
        l->sinks = l->sinks ? l->sinks + queries.first : NULL;
        if (c->qk_norm == QK_NORM_EACH) {
            const struct norm *q = &from->q_norm, *k = &from->k_norm;
            const int at_q = queries.first * c->head_dim, at_k = keys.first * c->head_dim;
            l->q_norm = (struct norm){ q->w ? q->w + at_q : NULL, q->b ? q->b + at_q : NULL, q->present };
            l->k_norm = (struct norm){ k->w ? k->w + at_k : NULL, k->b ? k->b + at_k : NULL, k->present };
        }
        t->split[i] |= TP_MIXER;
    }
    return 0;
}

/* ---- MLPs ---- */

/* The layers with a dense MLP (shared 0), or with one beside experts (shared 1). */
static int has_mlp(const struct config *c, int layer, int shared)
{
    return c->ff[layer] == (shared ? FF_MOE : FF_DENSE) && (!shared || c->moe.shared_size > 0);
}

/* The widths at which all these MLPs can be cut; 0: they cannot. */
static int mlp_unit(const struct model *m, int shared)
{
    int unit = 0;
    for (int i = 0; i < m->config.n_layers; i++) {
        const struct layer *l = &m->layers[i];
        const int u = has_mlp(&m->config, i, shared) ? column_unit(&l->down.w) : 0;
        if (u && l->mlp_sub_norm.present)
            return 0;
        unit = u > unit ? u : unit;
    }
    return unit;
}

static int cut_mlps(struct tp_model *t, int shared, int size, int unit, struct err *e)
{
    struct config *c = &t->m.config;
    const struct share s = share_of(size, unit, t->n_ranks, t->rank);
    *(shared ? &c->moe.shared_size : &c->intermediate_size) = s.n;
    for (int i = 0; i < c->n_layers; i++) {
        struct layer *l = &t->m.layers[i];
        if (c->ff[i] != (shared ? FF_MOE : FF_DENSE))
            continue;
        keep_rows(&l->gate, s.first, s.n);
        keep_rows(&l->up, s.first, s.n);
        if (keep_columns(&l->down, &t->whole->layers[i].down, s.first, s.n, t->rank, &t->down[i], e) < 0)
            return -1;
        t->split[i] |= TP_FF;
    }
    return 0;
}

/* Leave the shared MLPs to the first rank. */
static void drop_shared(struct tp_model *t)
{
    if (t->rank == 0)
        return;
    t->m.config.moe.shared_size = t->m.config.moe.shared_gate = 0;
    for (int i = 0; i < t->m.config.n_layers; i++)
        if (t->m.config.ff[i] == FF_MOE) {
            struct layer *l = &t->m.layers[i];
            l->gate = l->up = l->down = l->shared_router = (struct linear){ 0 };
        }
}

static int cut_mixtures(struct tp_model *t, struct err *e)
{
    const struct config *c = &t->whole->config;
    const int unit = mlp_unit(t->whole, 1);
    const struct share s = share_of(c->moe.n_experts, 1, t->n_ranks, t->rank);
    int any = 0;
    for (int i = 0; i < c->n_layers; i++) {
        t->split[i] |= c->ff[i] == FF_MOE ? TP_FF : 0;
        any |= c->ff[i] == FF_MOE;
    }
    if (!any)
        return 0;
    t->first_expert = s.n ? s.first : 0;
    t->n_experts = s.n;
    if (pieces_of(c->moe.shared_size, unit) >= t->n_ranks)
        return cut_mlps(t, 1, c->moe.shared_size, unit, e);
    drop_shared(t);
    return 0;
}

/* ---- a rank ---- */

static int cut(struct tp_model *t, struct err *e)
{
    const struct config *c = &t->whole->config;
    const int unit = c->mlp_sizes ? 0 : mlp_unit(t->whole, 0);
    struct head_split heads;
    int any = 0;
    if (divide_heads(t->whole, t->n_ranks, &heads) && cut_attention(t, &heads, e) < 0)
        return -1;
    if (pieces_of(c->intermediate_size, unit) >= t->n_ranks && cut_mlps(t, 0, c->intermediate_size, unit, e) < 0)
        return -1;
    if (cut_mixtures(t, e) < 0)
        return -1;
    for (int i = 0; i < c->n_layers; i++)
        any |= t->split[i];
    return any ? 0 : err_set(e, ERR_UNSUPPORTED, "--tp %d: neither heads nor MLPs of %s can be divided into %d parts of whole tiles and scale groups; --gpus without --tp divides the layers",
                             t->n_ranks, c->arch, t->n_ranks);
}

struct tp_model *tp_model_open(const struct model *m, int n, int rank, struct err *e)
{
    const size_t n_layers = (size_t)m->config.n_layers;
    struct tp_model *t = calloc(1, sizeof *t);
    if (!t) {
        err_nomem(e, "a part of a model");
        return NULL;
    }
    t->m = *m;
    t->whole = m;
    t->rank = rank;
    t->n_ranks = n;
    t->m.layers = malloc(n_layers * sizeof *t->m.layers);
    t->split = calloc(n_layers, 1);
    t->o = calloc(n_layers, sizeof *t->o);
    t->down = calloc(n_layers, sizeof *t->down);
    if (!t->m.layers || !t->split || !t->o || !t->down) {
        err_nomem(e, "a part of a model");
        tp_model_close(t);
        return NULL;
    }
    memcpy(t->m.layers, m->layers, n_layers * sizeof *t->m.layers);
    if (cut(t, e) < 0) {
        tp_model_close(t);
        return NULL;
    }
    if (rank > 0) {
        t->m.embed = t->m.embed_in = t->m.embed_out = t->m.head = (struct linear){ 0 };
        t->m.pos_embed = NULL;
        t->m.embed_norm = t->m.final_norm = (struct norm){ 0 };
    }
    return t;
}

void tp_model_close(struct tp_model *t)
{
    if (!t)
        return;
    free(t->m.layers);
    free(t->split);
    free(t->o);
    free(t->down);
    free(t);
}
