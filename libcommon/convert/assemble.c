#include "libcommon/convert/assemble.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/convert/rows.h"

static int source_shape(void *user, const char *name, int *n_dims, int64_t dim[4])
{
    const struct source_tensor *t = source_find(user, name);
    if (!t)
        return -1;
    *n_dims = t->n_dims;
    memcpy(dim, t->dim, sizeof t->dim);
    return 0;
}

static int by_source(const void *a, const void *b)
{
    return strcmp((*(const struct weight_spec *const *)a)->source, (*(const struct weight_spec *const *)b)->source);
}
static int by_name(const void *key, const void *b)
{
    return strcmp(key, (*(const struct weight_spec *const *)b)->source);
}

int source_weights(const struct config *c, const struct source *s, struct weight_spec **specs, int *n, struct err *e)
{
    const struct weight_source w = { source_shape, (void *)s, s->kind == SOURCE_GGUF };
    if (weight_specs(c, &w, specs, n, e) < 0)
        return err_prefix(e, "%s", s->path);
    const struct weight_spec **sorted = malloc((size_t)*n * sizeof *sorted);
    int rc = sorted ? 0 : err_nomem(e, "list of weights");
    for (int i = 0; sorted && i < *n; i++)
        sorted[i] = &(*specs)[i];
    if (sorted)
        qsort(sorted, (size_t)*n, sizeof *sorted, by_source);
    for (int i = 0; rc == 0 && i < s->n_tensors; i++) {
        const char *name = s->tensors[i].name;
        if (!bsearch(name, sorted, (size_t)*n, sizeof *sorted, by_name) && !weight_ignorable(c, name))
            rc = err_set(e, ERR_UNSUPPORTED, "%s: tensor '%s' has no place in architecture %s", s->path, name, c->arch);
    }
    free(sorted);
    if (rc < 0)
        free(*specs);
    return rc;
}

/* ---- one allocation for all weights, in two passes: sizes, then values ---- */

struct weight_place weight_place(struct model *m, const struct weight_spec *w)
{
    static const struct { const char *name; size_t at; int is_norm; } parts[] = {
        { "q_proj", offsetof(struct layer, q), 0 }, { "k_proj", offsetof(struct layer, k), 0 },
            { "v_proj", offsetof(struct layer, v), 0 },
        { "o_proj", offsetof(struct layer, o), 0 }, { "gate_proj", offsetof(struct layer, gate), 0 },
        { "up_proj", offsetof(struct layer, up), 0 },
        { "down_proj", offsetof(struct layer, down), 0 }, { "attn_norm", offsetof(struct layer, attn_norm), 1 },
        { "attn_post_norm", offsetof(struct layer, attn_post_norm), 1 },
        { "mlp_norm", offsetof(struct layer, mlp_norm), 1 },
        { "mlp_post_norm", offsetof(struct layer, mlp_post_norm), 1 }, { "q_norm", offsetof(struct layer, q_norm), 1 },
        { "k_norm", offsetof(struct layer, k_norm), 1 },
        { "attn_sub_norm", offsetof(struct layer, attn_sub_norm), 1 },
        { "mlp_sub_norm", offsetof(struct layer, mlp_sub_norm), 1 },
        { "q_a_proj", offsetof(struct layer, q_a), 0 }, { "kv_a_proj", offsetof(struct layer, kv_a), 0 },
        { "k_b_proj", offsetof(struct layer, k_b), 0 },
        { "v_b_proj", offsetof(struct layer, v_b), 0 }, { "q_a_norm", offsetof(struct layer, q_a_norm), 1 },
        { "kv_norm", offsetof(struct layer, kv_norm), 1 },
        { "router", offsetof(struct layer, router), 0 }, { "shared_router", offsetof(struct layer, shared_router), 0 },
        { "q_gate_proj", offsetof(struct layer, q_gate), 0 }, { "in_proj", offsetof(struct layer, in), 0 },
        { "in_ba_proj", offsetof(struct layer, in_ba), 0 }, { "in_z_proj", offsetof(struct layer, in_z), 0 },
        { "gate_norm", offsetof(struct layer, gate_norm), 1 },
    };
    static const struct { const char *name; size_t at; } plain[] = {
        { "sinks", offsetof(struct layer, sinks) }, { "router.correction", offsetof(struct layer, correction) },
            { "conv.weight", offsetof(struct layer, conv) },
        { "conv.bias", offsetof(struct layer, conv_bias) }, { "a_log", offsetof(struct layer, a_log) },
        { "dt_bias", offsetof(struct layer, dt_bias) },
        { "d", offsetof(struct layer, d) },
    };
    static const struct { const char *name; size_t at; } expert_parts[] = {
        { "gate_proj", offsetof(struct expert, gate) }, { "up_proj", offsetof(struct expert, up) },
            { "down_proj", offsetof(struct expert, down) },
    };
    const char *name = w->layer < 0 ? w->name : strchr(w->name + strlen("layers."), '.') + 1;
    if (w->expert >= 0)
        name = strchr(name + strlen("experts."), '.') + 1;
    const size_t n = (size_t)(strchrnul(name, '.') - name);
    struct weight_place p = { 0 };
    struct layer *l = w->layer < 0 ? NULL : &m->layers[w->layer];
    for (size_t i = 0; l && w->expert < 0 && i < sizeof plain / sizeof *plain; i++)
        if (strcmp(name, plain[i].name) == 0)
            p.plain = (const float **)((char *)l + plain[i].at);
    for (size_t i = 0; w->expert >= 0 && i < 3; i++)
        if (strlen(expert_parts[i].name) == n && memcmp(name, expert_parts[i].name, n) == 0)
            p.linear = (struct linear *)((char *)&l->experts[w->expert] + expert_parts[i].at);
    for (size_t i = 0; l && w->expert < 0 && !p.plain && i < sizeof parts / sizeof *parts; i++)
        if (strlen(parts[i].name) == n && memcmp(name, parts[i].name, n) == 0) {
            char *at = (char *)l + parts[i].at;
            if (parts[i].is_norm)
                p.norm = (struct norm *)at;
            else
                p.linear = (struct linear *)at;
        }
    if (w->layer < 0) {
        static const char *const ends[] = { "embed", "embed_in", "embed_out", "head", "embed_norm", "final_norm" };
        struct linear *const linears[] = { &m->embed, &m->embed_in, &m->embed_out, &m->head };
        struct norm *const norms[] = { &m->embed_norm, &m->final_norm };
        for (int i = 0; i < 6; i++)
            if (strlen(ends[i]) == n && memcmp(name, ends[i], n) == 0) {
                p.linear = i < 4 ? linears[i] : NULL;
                p.norm = i < 4 ? NULL : norms[i - 4];
            }
        if (w->role == ROLE_POS)
            p.plain = &m->pos_embed;
    }
    const int is_bias = strcmp(name + n, ".bias") == 0;
    if (w->is_vector && !p.plain)
        p.plain = p.norm ? is_bias ? &p.norm->b : &p.norm->w : &p.linear->bias;
    return p;
}

static int read_weight(struct model *m, const struct source *s, const struct weight_spec *w, const struct mat *mat,
                       uint8_t *to, struct err *e)
{
    struct weight_place p = weight_place(m, w);
    struct rows r;
    if (rows_open(&r, s, source_find(s, w->source), &w->map, w->rows, w->cols, w->is_vector && w->rows == 1, e) < 0)
        return -1;
    float *x = w->is_vector ? (float *)to : malloc((size_t)w->rows * (size_t)w->cols * sizeof *x);
    int rc = x ? rows_read(&r, 0, w->rows, x, e) : err_nomem(e, "weights");
    rows_close(&r);
    if (rc == 0 && w->is_vector) {
        const struct config *c = &m->config;
        if (p.norm && p.plain == &p.norm->w && c->norm == NORM_LAYER && w->cols == c->hidden_size)
            for (int64_t i = 0; i < w->cols; i++)
                x[i] += c->norm_offset;
        *p.plain = x;
    } else if (rc == 0) {
        p.linear->w = *mat;
        p.linear->w.data = to;
        mat_encode_float(mat, to, x, (size_t)w->cols);
    }
    if (!w->is_vector)
        free(x);
    return rc;
}

static size_t weight_bytes(const struct weight_spec *w, enum qtype type, struct mat *mat, struct err *e)
{
    if (w->is_vector)
        return ((size_t)w->rows * (size_t)w->cols * sizeof(float) + 63) / 64 * 64;
    return mat_init(mat, type, 32, 0, w->rows, w->cols, e) < 0 ? 0 : mat->size;
}

static int read_weights(struct model *m, const struct source *s, const struct weight_spec *specs, int n,
                        enum qtype type, struct err *e)
{
    size_t total = 0;
    struct mat mat;
    for (int i = 0; i < n; i++) {
        size_t bytes = weight_bytes(&specs[i], type, &mat, e);
        if (!bytes)
            return -1;
        total += bytes;
    }
    uint8_t *at = m->owned = aligned_alloc(64, total);
    if (!at)
        return err_nomem(e, "weights");
    m->weight_bytes = total;
    for (int i = 0; i < n; i++) {
        size_t bytes = weight_bytes(&specs[i], type, &mat, e);
        if (read_weight(m, s, &specs[i], &mat, at, e) < 0)
            return -1;
        at += bytes;
    }
    return 0;
}

struct model *model_assemble(const struct source *s, enum qtype type, struct err *e)
{
    struct model *m = calloc(1, sizeof *m);
    struct weight_spec *specs = NULL;
    int n = 0;
    if (!m) {
        err_nomem(e, "model");
        return NULL;
    }
    if (config_parse(&m->config, s->config, e) < 0) {
        err_prefix(e, "%s", s->path);
        goto fail;
    }
    m->layers = calloc((size_t)m->config.n_layers, sizeof *m->layers);
    if (!m->layers) {
        err_nomem(e, "model");
        goto fail;
    }
    if (source_weights(&m->config, s, &specs, &n, e) < 0)
        goto fail;
    model_norms(m);
    if (model_experts(m, e) < 0) {
        free(specs);
        goto fail;
    }
    int rc = read_weights(m, s, specs, n, type, e);
    free(specs);
    if (rc < 0)
        goto fail;
    m->config.tied = !m->head.w.data;
    if (m->config.tied)
        m->head.w = m->embed.w;
    return m;
fail:
    model_close(m);
    return NULL;
}
