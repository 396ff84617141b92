/* lora.c - bind the matrices of an adapter to those of a model. */
#include "libcommon/model/lora.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/base/siphash.h"
#include "libcommon/import/peft.h"
#include "libcommon/model/arch.h"
#include "libcommon/model/parts.h"
#include "libcommon/quant/ggml.h"

/* The matrices of a layer that an adapter may change. */
static const struct { enum layer_part part; int is_mlp; } changed[] = {
    { LP_Q, 0 }, { LP_K, 0 }, { LP_V, 0 }, { LP_Q_GATE, 0 }, { LP_O, 0 }, { LP_GATE, 1 }, { LP_UP, 1 }, { LP_DOWN, 1 },
};
enum { N_CHANGED = sizeof changed / sizeof *changed };

/* The channel scales of a matrix (convert/channel_scale.c): its columns were multiplied by col, its
 * rows divided by row.  NULL: by 1. */
struct channel_scales { const float *col; float *row; };

struct lora_bound {
    struct lora lora;
    size_t n;                           /* n_layers * N_CHANGED */
    struct lora_linear *made;           /* [n] */
};

struct lora_binding {
    const struct model *m;
    struct peft *peft;
    struct lora lora;
    struct lora_linear *made;           /* [n_layers][N_CHANGED], of this adapter */
    /* [n_modules] number of rows of each module that were bound */
    int64_t *used;
    struct err *e;
};

static int changes(const struct config *c, int layer, int i)
{
    return changed[i].is_mlp ? c->ff[layer] == FF_DENSE
                           : c->mixer[layer] == MIXER_ATTENTION || c->mixer[layer] == MIXER_BOTH;
}

static int by_name(const void *key, const void *module)
{
    return strcmp(key, ((const struct peft_module *)module)->name);
}

/* The module of the adapter that changes the source tensor `name`; NULL: none. */
static const struct peft_module *module_of(const struct peft *p, const char *name)
{
    const size_t n = strlen(name), end = strlen(".weight");
    if (n <= end || n > PEFT_NAME || strcmp(name + n - end, ".weight") != 0)
        return NULL;
    char stem[PEFT_NAME + 1];
    memcpy(stem, name, n + 1);
    stem[n - end] = '\0';
    return bsearch(stem, p->modules, (size_t)p->n_modules, sizeof *p->modules, by_name);
}

static enum qtype type_of(const struct source_tensor *t)
{
    return t->type == GGML_F16 ? QT_F16 : t->type == GGML_BF16 ? QT_BF16 : QT_F32;
}

int lora_parts(int64_t rank, int64_t cols)
{
    int parts = LORA_PARTS;
    while (parts > 1 && (rank > TILE_ROWS / parts || cols % (2 * parts)))
        parts /= 2;
    return parts;
}

/* Store rows of t in kernel order, row i of the result from row at(i) of t; map NULL: the same
 * rows.  Rows are cut into parts as lora.h says; 1: they stay whole.  With scales, elements are
 * multiplied and divided by them, and stored as f32. */
static int store(struct lora_binding *b, struct mat *m, const struct source_tensor *t, int64_t rows, int parts,
                 const struct row_map *map, const float *col, const float *row)
{
    const struct ggml_type_info *info = ggml_type_info(t->type);
    const size_t row_bytes = (size_t)t->dim[1] * (size_t)info->block_bytes;
    const int n = (int)t->dim[1];
    if (mat_init(m, col || row ? QT_F32 : type_of(t), 32, 0, parts > 1 ? TILE_ROWS : rows, n / parts, b->e) < 0)
        return -1;
    float *x = malloc((size_t)n * sizeof *x);
    uint8_t *data = aligned_alloc(64, (m->size + 63) / 64 * 64);
    m->data = data;
    if (!x || !data) {
        free(x);
        return err_nomem(b->e, "LoRA adapter");
    }
    b->lora.bytes += m->size;
    for (int i = 0; i < m->n_tiles; i++)
        tile_clear(m, data + (size_t)i * m->tile_bytes);
    for (int64_t i = 0; i < rows; i++) {
        ggml_decode(t->type, t->data + (size_t)(map ? row_map_source(map, i) : i) * row_bytes, x, n);
        for (int k = 0; k < n && (col || row); k++)
            x[k] = x[k] * (col ? col[k] : 1) / (row ? row[i] : 1);
        for (int p = 0; p < parts; p++)
            tile_put_float(m, data + (size_t)(i / TILE_ROWS) * m->tile_bytes,
                           (int)(i % TILE_ROWS) + p * TILE_ROWS / parts, x + p * m->cols);
    }
    free(x);
    return 0;
}

/* Find the channel scales of an input; *out stays NULL if the file has none. */
static int find_scales(struct lora_binding *b, int layer, enum layer_input input, int64_t cols, const float **out)
{
    char name[CHANNEL_SCALE_NAME];
    channel_scale_name(layer, input, name);
    const struct zfile_tensor *t = zfile_find(b->m->file, name);
    if (t && (t->tiled || t->m.type != QT_F32 || t->n_dims != 1 || t->dim[0] != cols))
        return err_set(b->e, ERR_SHAPE, "%s: tensor '%s': expected %" PRId64 " plain f32", zfile_path(b->m->file), name,
                       cols);
    *out = t ? (const float *)t->m.data : NULL;
    return 0;
}

/* Find the channel scales of a matrix.  Rows of v were divided by the scales of the columns of o
 * that read them, which are the same for all heads that share a KV head; rows of up by those of the
 * columns of down. */
static int find_matrix_scales(struct lora_binding *b, int layer, enum layer_part part, const struct mat *m,
                              struct channel_scales *s)
{
    const struct config *c = &b->m->config;
    const int dim = config_value_dim(c, layer), share = part == LP_V ? c->n_heads / config_kv_heads(c, layer) : 1;
    const float *row = NULL;
    *s = (struct channel_scales){ 0 };
    if (find_scales(b, layer, (enum layer_input)layer_part_fact(c, layer, part).reads, m->cols, &s->col) < 0 ||
        (part == LP_V && find_scales(b, layer, INPUT_O, (int64_t)c->n_heads * dim, &row) < 0) ||
        (part == LP_UP && find_scales(b, layer, INPUT_DOWN, m->rows, &row) < 0))
        return -1;
    if (!row)
        return 0;
    if (!(s->row = malloc((size_t)m->rows * sizeof *s->row)))
        return err_nomem(b->e, "LoRA adapter");
    for (int i = 0; i < m->rows; i++)
        s->row[i] = part == LP_V ? row[i / dim * share * dim + i % dim]
            : !c->gated && c->act == CONFIG_ACT_RELU2 ? sqrtf(row[i]) : row[i];
    return 0;
}

static int wrong_size(const struct lora_binding *b, const struct source_tensor *t, const char *what, int64_t found,
                      int64_t want)
{
    return err_set(b->e, ERR_SHAPE, "%s: tensor '%s': %" PRId64 " %s, the model has %" PRId64
                   "; is this an adapter of another model?", b->peft->path, t->name, found, what, want);
}

static int bind_module(struct lora_binding *b, const struct peft_module *p, const struct zfile_tensor *t, int layer,
                       enum layer_part part, struct lora_linear *to)
{
    struct channel_scales s;
    const int64_t rows = t->map.transposed ? t->source_cols : t->source_rows;
    if (p->table || p->saved)
        return 0;                       /* stays unused, which is refused */
    if (p->a->dim[1] != t->m.cols)
        return wrong_size(b, p->a, "columns", p->a->dim[1], t->m.cols);
    if (p->b->dim[0] != rows)
        return wrong_size(b, p->b, "rows", p->b->dim[0], rows);
    if (p->rank > b->m->config.hidden_size)
        return wrong_size(b, p->a, "rows", p->rank, b->m->config.hidden_size);
    b->used[p - b->peft->modules] += t->m.rows;
    b->lora.n_matrices++;
    b->lora.rank = p->rank > b->lora.rank ? p->rank : b->lora.rank;
    to->scale = p->scale;
    to->parts = lora_parts(p->rank, t->m.cols);
    int rc = find_matrix_scales(b, layer, part, &t->m, &s);
    if (rc == 0)
        rc = store(b, &to->a, p->a, p->rank, to->parts, NULL, s.col, NULL) < 0 ||
             store(b, &to->b, p->b, t->m.rows, 1, &t->map, NULL, s.row) < 0 ? -1 : 0;
    free(s.row);
    return rc;
}

static int bind_modules(struct lora_binding *b)
{
    const struct config *c = &b->m->config;
    for (int layer = 0; layer < c->n_layers; layer++)
        for (int i = 0; i < N_CHANGED; i++) {
            char name[96];
            snprintf(name, sizeof name, "layers.%d.%s.weight", layer, part_infos[changed[i].part].name);
            const struct zfile_tensor *t = changes(c, layer, i) ? zfile_find(b->m->file, name) : NULL;
            const struct peft_module *p = t && t->source_name ? module_of(b->peft, t->source_name) : NULL;
            if (p && bind_module(b, p, t, layer, changed[i].part, &b->made[layer * N_CHANGED + i]) < 0)
                return -1;
        }
    for (int i = 0; i < b->peft->n_modules; i++)
        if (!b->used[i] || b->used[i] != b->peft->modules[i].b->dim[0])
            return err_set(b->e, ERR_UNSUPPORTED, "%s: changes '%s', expected projections of attention and of dense "
                           "MLPs of this model; zse-convert --lora merges other changes", b->peft->path,
                           b->peft->modules[i].name);
    return 0;
}

int lora_scales(const struct zfile *z)
{
    return json_is_true(json_object_get(js_get(zfile_json(z), "quantization"), "channels_scaled"));
}

int lora_lacks_scales(const struct zfile *z)
{
    int major, minor, patch;
    zfile_version(z, &major, &minor, &patch);
    return minor < 2 && lora_scales(z);
}

/* Refuse models for which the adapter was not made, and those to which it cannot be fitted. */
static int check_model(const struct lora_binding *b)
{
    if (!b->m->file)
        return err_set(b->e, ERR_UNSUPPORTED, "%s: adapters need a model that was read from a file", b->peft->path);
    if (b->m->config.gguf)
        return err_set(b->e, ERR_UNSUPPORTED, "%s: %s was made from a GGUF file, which does not have the names that "
                       "adapters have; convert the folder of safetensors", b->peft->path, zfile_path(b->m->file));
    if (lora_lacks_scales(b->m->file))
        return err_set(b->e, ERR_UNSUPPORTED, "%s: %s has scaled channels without their scales, as files of version "
                       "1.1 have, and adapters need the scales; convert its source again", b->peft->path,
                       zfile_path(b->m->file));
    if (b->peft->n_copies)
        return err_set(b->e, ERR_UNSUPPORTED, "%s: tensor '%s': a copy of a weight of the base, which only "
                       "zse-convert --lora can compare with it", b->peft->path, b->peft->copies[0].tensor->name);
    return 0;
}

static void free_linear(struct lora_linear *l)
{
    free((void *)(uintptr_t)l->a.data);
    free((void *)(uintptr_t)l->b.data);
}

static uint64_t key_of(const struct peft *p)
{
    const uint64_t fixed[2] = { 0x7a7365, 0x6c6f7261 },
                   key[2] = { fixed[0], siphash(fixed, p->config_map.data, p->config_map.size) };
    return siphash(key, p->map.data, p->map.size) | 1;
}

static void free_matrices(struct lora_linear *made, size_t n)
{
    for (size_t i = 0; made && i < n; i++)
        free_linear(&made[i]);
    free(made);
}

static void free_names(struct lora *l)
{
    free(l->name);
    free(l->folder);
    *l = (struct lora){ 0 };
}

void lora_bound_free(struct lora_bound *b)
{
    if (!b)
        return;
    free_matrices(b->made, b->n);
    free_names(&b->lora);
    free(b);
}

uint64_t lora_bound_bytes(const struct lora_bound *b) { return b->lora.bytes; }
uint64_t lora_bound_key(const struct lora_bound *b) { return b->lora.key; }
int lora_bound_rank(const struct lora_bound *b) { return b->lora.rank; }

/* Fill b->made and b->lora from the adapter's files. */
static int bind(struct lora_binding *b, const char *name, const char *folder)
{
    size_t length = strlen(folder);
    while (length > 1 && folder[length - 1] == '/')
        length--;
    b->made = calloc((size_t)b->m->config.n_layers * N_CHANGED, sizeof *b->made);
    b->used = calloc((size_t)b->peft->n_modules, sizeof *b->used);
    b->lora.name = strdup(name);
    b->lora.folder = strndup(folder, length);
    if (!b->made || !b->used || !b->lora.name || !b->lora.folder)
        return err_nomem(b->e, "LoRA adapter");
    if (check_model(b) < 0 || bind_modules(b) < 0)
        return -1;
    b->lora.key = key_of(b->peft);
    return peft_check(b->peft, b->e);
}

struct lora_bound *lora_bind(const struct model *m, const char *name, const char *folder,
                             const struct map_guard *guard, struct err *e)
{
    struct lora_bound *out = calloc(1, sizeof *out);
    if (!out) {
        err_nomem(e, "LoRA adapter");
        return NULL;
    }
    struct lora_binding b = { .m = m, .peft = peft_open(folder, guard, e), .e = e };
    const int rc = b.peft ? bind(&b, name, folder) : -1;
    *out = (struct lora_bound){ .lora = b.lora, .n = (size_t)m->config.n_layers * N_CHANGED, .made = b.made };
    free(b.used);
    if (b.peft)
        peft_close(b.peft, guard);
    if (rc == 0)
        return out;
    lora_bound_free(out);
    return NULL;
}

/* Make the list and the array of each matrix long enough for n adapters. */
static int grow(struct model *m, int n, struct err *e)
{
    struct lora *list = realloc(m->loras, (size_t)n * sizeof *list);
    if (!list)
        return err_nomem(e, "LoRA adapter");
    m->loras = list;
    for (int layer = 0; layer < m->config.n_layers; layer++)
        for (int i = 0; i < N_CHANGED; i++) {
            struct linear *l = part_field(&m->layers[layer], 0, changed[i].part);
            struct lora_linear *all = realloc(l->lora, (size_t)n * sizeof *all);
            if (!all)
                return err_nomem(e, "LoRA adapter");
            const int had = l->lora ? m->n_loras : 0;
            memset(all + had, 0, (size_t)(n - had) * sizeof *all);
            l->lora = all;
        }
    memset(list + m->n_loras, 0, (size_t)(n - m->n_loras) * sizeof *list);
    m->n_loras = n;
    return 0;
}

static struct lora_linear *matrix_at(struct model *m, size_t i, int number)
{
    struct linear *l = part_field(&m->layers[i / N_CHANGED], 0, changed[i % N_CHANGED].part);
    return &l->lora[number - 1];
}

int model_put_lora(struct model *m, int number, struct lora_bound *b, struct err *e)
{
    assert(number > 0 && number <= m->n_loras + 1 && (number > m->n_loras || !m->loras[number - 1].name));
    const int rc = number > MOST_LORAS
        ? err_set(e, ERR_LIMIT, "%s: more than %d adapters", b->lora.folder, MOST_LORAS)
        : number > m->n_loras ? grow(m, number, e) : 0;
    if (rc < 0) {
        lora_bound_free(b);
        return -1;
    }
    for (size_t i = 0; i < b->n; i++)
        *matrix_at(m, i, number) = b->made[i];
    m->loras[number - 1] = b->lora;
    free(b->made);
    free(b);
    return 0;
}

void model_remove_lora(struct model *m, int number)
{
    assert(number > 0);
    if (number > m->n_loras || !m->loras[number - 1].name)
        return;
    for (size_t i = 0; i < (size_t)m->config.n_layers * N_CHANGED; i++) {
        struct lora_linear *l = matrix_at(m, i, number);
        free_linear(l);
        *l = (struct lora_linear){ .scale = 0 };
    }
    free_names(&m->loras[number - 1]);
}

int model_add_lora(struct model *m, const char *name, const char *folder, const struct map_guard *guard,
                   struct err *e)
{
    struct lora_bound *b = lora_bind(m, name, folder, guard, e);
    return b ? model_put_lora(m, m->n_loras + 1, b, e) : -1;
}

void model_drop_loras(struct model *m)
{
    for (int layer = 0; m->layers && layer < m->config.n_layers; layer++)
        for (int i = 0; i < N_CHANGED; i++) {
            struct linear *l = part_field(&m->layers[layer], 0, changed[i].part);
            for (int k = 0; l->lora && k < m->n_loras; k++)
                free_linear(&l->lora[k]);
            free(l->lora);
            l->lora = NULL;
        }
    for (int i = 0; i < m->n_loras; i++)
        free_names(&m->loras[i]);
    free(m->loras);
    m->loras = NULL;
    m->n_loras = 0;
}
