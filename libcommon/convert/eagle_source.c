/* eagle_source.c - read EAGLE heads: names, shapes, the map of their vocabulary, rounding to
 * int8. */
#include "libcommon/convert/eagle_source.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/base/pool.h"
#include "libcommon/convert/row_reader.h"
#include "libcommon/quant/ggml.h"
#include "libcommon/quant/quantize.h"

enum { GROUP = 64, MOST_PARTS = 40 };

/* A matrix (linear), a bias or a norm (vector) of the heads: columns [first, first + cols) of a
 * tensor of `width` columns.  name: after the layer's prefix if in_layer. */
struct eagle_part {
    const char *name; int in_layer;
    struct linear *linear; const float **vector;
    int64_t rows, cols, first, width;
    int optional;
    const struct source_tensor *t;
    size_t at;                          /* offset in the data */
};

struct eagle_input {
    struct source *s;
    struct eagle *g;
    const char *prefix;                 /* "midlayer.", "layers.0." */
    int is_3;
    struct eagle_part parts[MOST_PARTS]; int n_parts;
};

static void full_name(const struct eagle_input *in, const struct eagle_part *p, char *out, size_t room)
{
    snprintf(out, room, "%s%s", p->in_layer ? in->prefix : "", p->name);
}

static const struct source_tensor *find_in_layer(const struct eagle_input *in, const char *prefix, const char *name)
{
    char full[120];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    return source_find(in->s, full);
}

/* ---- the configuration ---- */

/* Keys of config.json that do not change how the layer is computed, or are read here. */
static const char *const own_keys[] = { "draft_vocab_size", "eagle_config", "eagle_aux_hidden_state_layer_ids",
                                        "target_hidden_size", "target_model_type", "architectures", "norm_before_fc",
                                        "fc_norm", "bias", "parallel_drafting", "mask_token_id" };

static int config_number(const struct eagle_input *in, const char *key, int64_t otherwise, int64_t *out, struct err *e)
{
    return js_int_or(in->s->config, key, 0, INT32_MAX, otherwise, out, e) == 0 ? 0
                                                                         : err_prefix(e, "%s/config.json", in->s->path);
}

/* Whether a layer of this architecture has no other parts than those of list_parts(). */
static int is_plain(const char *arch)
{
    static const char *const plain[] = { "llama", "mistral", "qwen2" };
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (strcmp(arch, plain[i]) == 0)
            return 1;
    return 0;
}

static int read_layer_config(struct eagle_input *in, struct err *e)
{
    struct eagle *g = in->g;
    static const char *const norms[] = { "norm_before_fc", "fc_norm" };
    for (size_t i = 0; i < sizeof norms / sizeof *norms; i++)
        if (json_is_true(js_get(in->s->config, norms[i])))
            return err_set(e, ERR_UNSUPPORTED, "%s/config.json: %s is not supported", in->s->path, norms[i]);
    json_t *j = json_deep_copy(in->s->config);
    for (size_t i = 0; i < sizeof own_keys / sizeof *own_keys; i++)
        json_object_del(j, own_keys[i]);
    const int rc = j ? config_parse(&g->config, j, e) : err_nomem(e, in->s->path);
    json_decref(j);
    if (rc != 0)
        return err_prefix(e, "%s/config.json", in->s->path);
    const struct config *c = &g->config;
    if (c->n_layers != 1)
        return err_set(e, ERR_UNSUPPORTED, "%s/config.json: %d layers, expected 1", in->s->path, c->n_layers);
    if (!is_plain(c->arch) || config_predictor(c, &g->model.config) != 0)
        return err_set(e, ERR_UNSUPPORTED, "%s/config.json: a layer of %s, expected one like llama's", in->s->path,
                       c->arch);
    if (c->hidden_size != g->hidden_size || c->vocab_size != g->vocab_size)
        return err_set(e, ERR_UNSUPPORTED,
                       "%s/config.json: heads of a model with hidden_size %d and %d tokens, this one has %d and %d",
                       in->s->path, c->hidden_size, c->vocab_size, g->hidden_size, g->vocab_size);
    g->model.config.predicts = in->is_3 ? PREDICTS_BESIDE : PREDICTS_SUM;
    return 0;
}

/* Set the layers of the auxiliary states: those that config.json names, else as EAGLE-3 was
 * published. */
static int read_aux_layers(struct eagle_input *in, int n_layers, struct err *e)
{
    struct eagle *g = in->g;
    const struct source_tensor *fc = source_find(in->s, "fc.weight");
    const json_t *own = js_get(in->s->config, "eagle_aux_hidden_state_layer_ids"),
                 *ids = own ? own : js_get(js_get(in->s->config, "eagle_config"), "eagle_aux_hidden_state_layer_ids");
    const int defaults[] = { 2, n_layers / 2, n_layers - 3 }, listed = ids && !json_is_null(ids);
    if (!fc || fc->n_dims != 2 || fc->dim[1] % g->hidden_size || fc->dim[1] / g->hidden_size > EAGLE_MOST_AUX)
        return err_set(e, ERR_SHAPE, "%s: tensor fc.weight: %s, expected a matrix of 1 to %d times %d columns",
                       in->s->path, fc ? "another shape" : "missing", EAGLE_MOST_AUX, g->hidden_size);
    g->n_aux = (int)(fc->dim[1] / g->hidden_size);
    if (listed ? json_array_size(ids) != (size_t)g->n_aux : g->n_aux != 3)
        return err_set(e, ERR_FORMAT, "%s: fc.weight reads the states of %d layers, but config.json names %zu",
                       in->s->path, g->n_aux, listed ? json_array_size(ids) : 3);
    for (int i = 0; i < g->n_aux; i++) {
        const json_t *id = json_array_get(ids, (size_t)i);
        const json_int_t layer = listed ? json_is_integer(id) ? json_integer_value(id) : -1 : defaults[i];
        if (layer < 0 || layer > n_layers)
            return err_set(e, ERR_FORMAT, "%s: the state before layer %" JSON_INTEGER_FORMAT ", expected 0 to %d",
                           in->s->path, layer, n_layers);
        g->aux_layer[i] = (int)layer;
    }
    return 0;
}

/* ---- the tensors ---- */

static void add_part(struct eagle_input *in, struct eagle_part p)
{
    p.width = p.width ? p.width : p.cols;
    in->parts[in->n_parts++] = p;
}

static void add_matrix(struct eagle_input *in, const char *name, const char *bias, struct linear *l, int64_t rows,
                       int64_t cols)
{
    add_part(in, (struct eagle_part){ name, 1, .linear = l, .rows = rows, .cols = cols });
    if (bias)
        add_part(in, (struct eagle_part){ bias, 1, .vector = &l->bias, .rows = 1, .cols = rows, .optional = 1 });
}

static void add_norm(struct eagle_input *in, const char *name, int in_layer, struct norm *norm)
{
    norm->present = 1;
    add_part(in, (struct eagle_part){ name, in_layer, .vector = &norm->w, .rows = 1, .cols = in->g->hidden_size });
}

/* List the parts of the layer, of the input and of the head. */
static void list_parts(struct eagle_input *in, int64_t n_own)
{
    struct eagle *g = in->g;
    struct layer *l = g->model.layers;
    const struct config *c = &g->model.config;
    const int64_t hidden = c->hidden_size, wide = in->is_3 ? 2 * hidden : hidden, mlp = config_mlp_size(c, 0),
                  q = (int64_t)c->n_heads * c->head_dim, kv = (int64_t)c->n_kv_heads * c->head_dim;
    add_matrix(in, "self_attn.q_proj.weight", "self_attn.q_proj.bias", &l->q, q, wide);
    add_matrix(in, "self_attn.k_proj.weight", "self_attn.k_proj.bias", &l->k, kv, wide);
    add_matrix(in, "self_attn.v_proj.weight", "self_attn.v_proj.bias", &l->v, kv, wide);
    add_matrix(in, "self_attn.o_proj.weight", NULL, &l->o, hidden, q);
    add_matrix(in, "mlp.gate_proj.weight", NULL, &l->gate, mlp, hidden);
    add_matrix(in, "mlp.up_proj.weight", NULL, &l->up, mlp, hidden);
    add_matrix(in, "mlp.down_proj.weight", NULL, &l->down, hidden, mlp);
    add_norm(in, "post_attention_layernorm.weight", 1, &l->mlp_norm);
    if (!in->is_3) {
        add_part(in, (struct eagle_part){ "fc.weight", 0, .linear = &l->next_in, .rows = hidden, .cols = 2 * hidden });
        add_part(in, (struct eagle_part){ "fc.bias", 0, .vector = &l->next_in.bias, .rows = 1, .cols = hidden,
                                          .optional = 1 });
        return;
    }
    add_norm(in, "input_layernorm.weight", 1, &l->next_embed_norm);
    add_norm(in, "hidden_norm.weight", 1, &l->next_state_norm);
    add_norm(in, "norm.weight", 0, &l->next_final_norm);
    for (int i = 0; i < g->n_aux; i++)
        add_part(in, (struct eagle_part){ "fc.weight", 0, .linear = &g->aux[i], .rows = hidden, .cols = hidden,
                                          .first = i * hidden, .width = g->n_aux * hidden });
    add_part(in, (struct eagle_part){ "lm_head.weight", 0, .linear = &g->model.head, .rows = n_own, .cols = hidden });
}

/* Find the tensor of a part and compare its shape; its size in memory is added to *bytes. */
static int find_part(struct eagle_input *in, struct eagle_part *p, size_t *bytes, struct err *e)
{
    char name[120];
    full_name(in, p, name, sizeof name);
    p->t = source_find(in->s, name);
    if (!p->t)
        return p->optional ? 0 : err_set(e, ERR_FORMAT, "%s: tensor %s is missing", in->s->path, name);
    const struct source_tensor *t = p->t;
    const int n_dims = p->linear ? 2 : 1;
    if (t->n_dims != n_dims || t->dim[n_dims - 1] != p->width || (p->linear && t->dim[0] != p->rows))
        return err_set(e, ERR_SHAPE, "%s: tensor %s: %d dimensions, %" PRId64 " rows, %" PRId64
                       " columns, expected %d, %" PRId64 ", %" PRId64, in->s->path, name, t->n_dims,
                       t->n_dims > 1 ? t->dim[0] : 1, t->n_dims > 0 ? t->dim[t->n_dims - 1] : 0, n_dims, p->rows,
                       p->width);
    size_t size = (size_t)p->cols * sizeof(float);
    if (p->linear && mat_init(&p->linear->w, QT_I8, GROUP, GROUP, p->rows, p->cols, e) != 0)
        return err_prefix(e, "%s: tensor %s", in->s->path, name);
    p->at = *bytes;
    *bytes += ((p->linear ? p->linear->w.size : size) + 63) / 64 * 64;
    return 0;
}

static int is_used(const struct eagle_input *in, const struct source_tensor *t)
{
    static const char *const others[] = { "embed_tokens.weight", "d2t", "t2d" };
    for (int i = 0; i < in->n_parts; i++)
        if (in->parts[i].t == t)
            return 1;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strcmp(t->name, others[i]) == 0)
            return 1;
    return strstr(t->name, "rotary_emb.inv_freq") != NULL;
}

/* Read one tensor of whole numbers [n]. */
static int read_numbers(const struct eagle_input *in, const char *name, int type, int64_t n, const uint8_t **data,
                        struct err *e)
{
    const struct source_tensor *t = source_find(in->s, name);
    *data = t ? t->data : NULL;
    if (t && (t->type != type || t->n_dims != 1 || t->dim[0] != n))
        return err_set(e, ERR_SHAPE, "%s: tensor %s: %s [%" PRId64 "], expected %s [%" PRId64 "]", in->s->path, name,
                       ggml_type_info(t->type)->name, t->n_dims ? t->dim[0] : 0, ggml_type_info(type)->name, n);
    return 0;
}

/* Read the map of the head's rows to tokens: row i stands for token i + d2t[i], and t2d marks these
 * tokens. */
static int read_map(struct eagle_input *in, int64_t n_own, struct err *e)
{
    struct eagle *g = in->g;
    const uint8_t *d2t, *t2d;
    int64_t last = -1;
    if (read_numbers(in, "d2t", GGML_I64, n_own, &d2t, e) != 0 ||
        read_numbers(in, "t2d", SRC_BOOL, g->vocab_size, &t2d, e) != 0)
        return -1;
    if (!d2t)
        return n_own == g->vocab_size ? 0 : err_set(e, ERR_FORMAT, "%s: tensor d2t is missing: lm_head has %" PRId64
                                                    " rows for %d tokens", in->s->path, n_own, g->vocab_size);
    if (!(g->target = malloc((size_t)n_own * sizeof *g->target)))
        return err_nomem(e, in->s->path);
    for (int64_t i = 0; i < n_own; i++) {
        int64_t far, to;
        memcpy(&far, d2t + (size_t)i * sizeof far, sizeof far);
        if (__builtin_add_overflow(far, i, &to) || to <= last || to >= g->vocab_size)
            return err_set(e, ERR_FORMAT, "%s: tensor d2t: row %" PRId64 " is %" PRId64
                           ", expected tokens in order and less than %d", in->s->path, i, far, g->vocab_size);
        if (t2d && !t2d[to])
            return err_set(e, ERR_FORMAT, "%s: tensor t2d: token %" PRId64 " is not marked, but d2t has it",
                           in->s->path, to);
        g->target[i] = (int32_t)(last = to);
    }
    return 0;
}

/* ---- weights ---- */

struct eagle_job {
    const struct row_reader *reader;
    const struct eagle_part *p;
    uint8_t *to;
    float *rows; struct qrow *q; struct err *failed;    /* one for each thread */
};

static void round_tile(void *arg, int tile, int thread)
{
    const struct eagle_job *j = arg;
    const struct eagle_part *p = j->p;
    const struct mat *m = &p->linear->w;
    uint8_t *to = j->to + (size_t)tile * m->tile_bytes;
    float *row = j->rows + (size_t)thread * (size_t)p->width;
    tile_clear(m, to);
    for (int r = 0; r < TILE_ROWS && tile * TILE_ROWS + r < m->rows && !j->failed[thread].code; r++) {
        if (row_reader_read(j->reader, tile * TILE_ROWS + r, 1, row, &j->failed[thread]) != 0)
            return;
        quantize_row(m, row + p->first, NULL, QUANT_ABSMAX, &j->q[thread]);
        tile_put(m, to, r, &j->q[thread]);
    }
}

static int round_matrix(const struct row_reader *reader, const struct eagle_part *p, uint8_t *to, struct pool *pool,
                        struct err *e)
{
    const size_t n = (size_t)pool_size(pool);
    struct eagle_job j = { .reader = reader, .p = p, .to = to, .rows = malloc(n * (size_t)p->width * sizeof *j.rows),
                           .q = calloc(n, sizeof *j.q), .failed = calloc(n, sizeof *j.failed) };
    int rc = j.rows && j.q && j.failed ? 0 : err_nomem(e, p->name);
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = qrow_init(&j.q[i], &p->linear->w, e);
    if (rc == 0)
        pool_run(pool, p->linear->w.n_tiles, round_tile, &j);
    for (size_t i = 0; rc == 0 && i < n; i++)
        if (j.failed[i].code) {
            *e = j.failed[i];
            rc = -1;
        }
    for (size_t i = 0; j.q && i < n; i++)
        qrow_release(&j.q[i]);
    free(j.rows);
    free(j.q);
    free(j.failed);
    return rc;
}

static int read_part(const struct eagle_input *in, struct eagle_part *p, struct pool *pool, struct err *e)
{
    static const struct row_map same;
    struct row_reader r;
    uint8_t *to = in->g->data + p->at;
    if (!p->t)
        return 0;
    if (row_reader_open(&r, in->s, p->t, &same, p->rows, p->width, !p->linear, e) != 0)
        return -1;
    const int rc = p->linear ? round_matrix(&r, p, to, pool, e) : row_reader_read(&r, 0, 1, (float *)(void *)to, e);
    row_reader_close(&r);
    if (p->linear)
        p->linear->w.data = to;
    else
        *p->vector = (const float *)(const void *)to;
    return source_check(in->s, p->t, e) == 0 ? rc : -1;
}

static int read_parts(struct eagle_input *in, const struct medusa_options *o, struct err *e)
{
    struct eagle *g = in->g;
    size_t bytes = 0;
    for (int i = 0; i < in->n_parts; i++)
        if (find_part(in, &in->parts[i], &bytes, e) != 0)
            return -1;
    for (int i = 0; i < in->s->n_tensors; i++)
        if (!is_used(in, &in->s->tensors[i]))
            return err_set(e, ERR_UNSUPPORTED, "%s: tensor %.80s is not one of EAGLE's", in->s->path,
                           in->s->tensors[i].name);
    if (o->most_bytes && bytes > o->most_bytes)
        return err_set(e, ERR_MEMORY, "%s: the heads take %zu bytes, but only %" PRIu64 " are free", in->s->path, bytes,
                       o->most_bytes);
    struct pool *pool = pool_open(o->n_threads, e);
    if (!pool || !(g->data = aligned_alloc(64, bytes))) {
        pool_close(pool);
        return pool ? err_nomem(e, in->s->path) : -1;
    }
    g->bytes = bytes;
    int rc = 0;
    for (int i = 0; rc == 0 && i < in->n_parts; i++)
        rc = read_part(in, &in->parts[i], pool, e);
    pool_close(pool);
    return rc;
}

/* ---- reading the heads ---- */

static int read_all(struct eagle_input *in, const struct model *main, const struct medusa_options *o, struct err *e)
{
    struct eagle *g = in->g;
    const char *const prefixes[] = { "midlayer.", "layers.0." };
    if (in->s->kind != SOURCE_FOLDER || !in->s->config)
        return err_set(e, ERR_FORMAT, "%s: expected a folder with config.json and safetensors", in->s->path);
    for (int i = 0; i < 2 && !in->prefix; i++)
        in->prefix = find_in_layer(in, prefixes[i], "self_attn.q_proj.weight") ? prefixes[i] : NULL;
    if (!in->prefix)
        return err_set(e, ERR_UNSUPPORTED, "%s: no layer of EAGLE: neither midlayer.self_attn.q_proj.weight "
                       "nor layers.0.self_attn.q_proj.weight", in->s->path);
    in->is_3 = find_in_layer(in, in->prefix, "hidden_norm.weight") != NULL;
    const struct source_tensor *head = source_find(in->s, "lm_head.weight");
    int64_t n_own = in->is_3 && head ? head->dim[0] : g->vocab_size, stated;
    if (read_layer_config(in, e) != 0 || config_number(in, "draft_vocab_size", n_own, &stated, e) != 0)
        return -1;
    if (stated != n_own || n_own < 1 || n_own > g->vocab_size)
        return err_set(e, ERR_FORMAT, "%s: lm_head has %" PRId64 " rows, config.json says %" PRId64 " of %d tokens",
                       in->s->path, n_own, stated, g->vocab_size);
    if (in->is_3 && (read_aux_layers(in, main->config.n_layers, e) != 0 || read_map(in, n_own, e) != 0))
        return -1;
    g->n_own = (int)n_own;
    g->model.embed = main->embed;
    g->model.head = in->is_3 ? (struct linear){ 0 } : main->head;      /* EAGLE-3's own has no bias */
    list_parts(in, n_own);
    return read_parts(in, o, e);
}

struct eagle *eagle_read(const char *path, const struct model *main, const struct medusa_options *o, struct err *e)
{
    const struct source_options so = { .guard = o->guard };
    struct eagle_input in = { .s = source_open_with(path, &so, e) };
    int rc = -1;
    if (in.s && ((in.g = calloc(1, sizeof *in.g)) == NULL ||
                 (in.g->model.layers = calloc(1, sizeof *in.g->model.layers)) == NULL)) {
        err_nomem(e, path);
    } else if (in.s) {
        in.g->hidden_size = main->config.hidden_size;
        in.g->vocab_size = main->config.vocab_size;
        rc = read_all(&in, main, o, e);
    }
    source_close(in.s);
    if (rc != 0) {
        eagle_close(in.g);
        return NULL;
    }
    return in.g;
}

void eagle_close(struct eagle *g)
{
    if (!g)
        return;
    config_release(&g->config);
    free(g->model.layers);
    free(g->target);
    free(g->data);
    free(g);
}
