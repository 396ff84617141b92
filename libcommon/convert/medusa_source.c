/* medusa_source.c - read Medusa heads: names, shapes, rounding to int8. */
#include "libcommon/convert/medusa_source.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libcommon/base/json.h"
#include "libcommon/base/pool.h"
#include "libcommon/import/safetensors.h"
#include "libcommon/quant/ggml.h"
#include "libcommon/quant/quantize.h"

enum { MOST_CONFIG = 1 << 20 };

/* The place of a tensor in the heads.  block -1: it makes the logits. */
struct medusa_place { int head, block, is_bias; };

struct medusa_input {
    char *path, *config_path;
    struct map map; int mapped;
    struct source_tensor *tensors; int n_tensors;
    struct medusa_place *places;        /* [n_tensors] */
    int n_heads, n_blocks;
};

/* ---- names ---- */

static int parse_name(const char *name, struct medusa_place *p)
{
    static const char *const prefixes[] = { "medusa_head.", "medusa_heads." };
    int number, used = 0;
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0) {
            name += strlen(prefixes[i]);
            break;
        }
    if (*name < '0' || *name > '9' || sscanf(name, "%3d.%3d.%n", &p->head, &number, &used) != 2 || !used || number < 0)
        return -1;
    name += used;
    p->is_bias = strcmp(name, "linear.bias") == 0;
    p->block = number;
    if (p->is_bias || strcmp(name, "linear.weight") == 0)
        return 0;
    p->block = -1 - number;             /* logits after this many blocks */
    return strcmp(name, "weight") == 0 ? 0 : -1;
}

/* Set the places of all tensors, and the numbers of heads and blocks. */
static int find_places(struct medusa_input *in, struct err *e)
{
    in->places = calloc((size_t)in->n_tensors + 1, sizeof *in->places);
    if (!in->places)
        return err_nomem(e, in->path);
    in->n_blocks = -1;
    for (int i = 0; i < in->n_tensors; i++) {
        struct medusa_place *p = &in->places[i];
        if (parse_name(in->tensors[i].name, p) != 0)
            return err_set(e, ERR_UNSUPPORTED, "%s: tensor %.80s, expected names of Medusa heads like 0.0.linear.weight",
                           in->path, in->tensors[i].name);
        in->n_heads = p->head >= in->n_heads ? p->head + 1 : in->n_heads;
        if (p->block >= 0)
            continue;
        const int blocks = -1 - p->block;
        if (in->n_blocks >= 0 && blocks != in->n_blocks)
            return err_set(e, ERR_UNSUPPORTED, "%s: tensor %.80s: a head of %d blocks, and one of %d", in->path,
                           in->tensors[i].name, blocks, in->n_blocks);
        in->n_blocks = blocks;
        p->block = -1;
    }
    if (in->n_heads < 1 || in->n_heads > MEDUSA_MOST_HEADS || in->n_blocks < 0 || in->n_blocks > MEDUSA_MOST_BLOCKS)
        return err_set(e, ERR_UNSUPPORTED, "%s: %d Medusa heads of %d blocks, expected 1 to %d of at most %d", in->path,
                       in->n_heads, in->n_blocks < 0 ? 0 : in->n_blocks, MEDUSA_MOST_HEADS, MEDUSA_MOST_BLOCKS);
    return 0;
}

/* ---- opening ---- */

static int open_input(struct medusa_input *in, const char *path, const struct map_guard *guard, struct err *e)
{
    struct stat st;
    const int is_folder = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    const char *slash = strrchr(path, '/');
    const int folder = is_folder ? (int)strlen(path) : slash ? (int)(slash - path) : 1;
    if ((is_folder ? asprintf(&in->path, "%s/medusa_lm_head.safetensors", path) : asprintf(&in->path, "%s", path)) < 0) {
        in->path = NULL;
        return err_nomem(e, path);
    }
    if (asprintf(&in->config_path, "%.*s/config.json", folder, is_folder || slash ? path : ".") < 0) {
        in->config_path = NULL;
        return err_nomem(e, path);
    }
    if (map_open(&in->map, in->path, e) < 0)
        return -1;
    in->mapped = 1;
    if (guard && guard->add)
        guard->add(&in->map);
    return safetensors_index(&in->map, 0, &in->tensors, &in->n_tensors, e) < 0 ? -1 : find_places(in, e);
}

static void close_input(struct medusa_input *in, const struct map_guard *guard)
{
    for (int i = 0; i < in->n_tensors; i++)
        free((char *)in->tensors[i].name);
    free(in->tensors);
    free(in->places);
    if (in->mapped && guard && guard->add)
        guard->remove(&in->map);
    if (in->mapped)
        map_close(&in->map);
    free(in->path);
    free(in->config_path);
}

/* ---- checks ---- */

/* Compare the config.json beside the file, if there is one, with the tensors.  It may state fewer
 * heads than the file has, as in published checkpoints. */
static int check_config(const struct medusa_input *in, const struct config *c, struct err *e)
{
    json_t *j = access(in->config_path, F_OK) == 0 ? js_load(in->config_path, MOST_CONFIG, e) : json_object();
    int64_t n_heads = in->n_heads, n_blocks = in->n_blocks, hidden = c->hidden_size, vocab = c->vocab_size;
    int rc = j ? 0 : -1;
    if (rc == 0 && js_get(j, "medusa_num_heads") &&
        (js_int_or(j, "medusa_num_heads", 0, INT32_MAX, n_heads, &n_heads, e) != 0 ||
         js_int_or(j, "medusa_num_layers", 0, INT32_MAX, n_blocks, &n_blocks, e) != 0 ||
         js_int_or(j, "hidden_size", 0, INT32_MAX, hidden, &hidden, e) != 0 ||
         js_int_or(j, "vocab_size", 0, INT32_MAX, vocab, &vocab, e) != 0))
        rc = err_prefix(e, "%s", in->config_path);
    json_decref(j);
    if (rc == 0 && (n_heads > in->n_heads || n_blocks != in->n_blocks))
        return err_set(e, ERR_FORMAT, "%s: %" PRId64 " heads of %" PRId64 " blocks, but %s has %d of %d", in->config_path,
                       n_heads, n_blocks, in->path, in->n_heads, in->n_blocks);
    if (rc == 0 && (hidden != c->hidden_size || vocab != c->vocab_size))
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: heads of a model with hidden_size %" PRId64 " and %" PRId64 " tokens, this one has %d and %d",
                       in->config_path, hidden, vocab, c->hidden_size, c->vocab_size);
    return rc;
}

static int is_float(int type)
{
    return type == GGML_F32 || type == GGML_F16 || type == GGML_BF16 || type == SRC_F8_E4M3 || type == SRC_F8_E5M2;
}

static int check_tensor(const struct medusa_input *in, int i, const struct config *c, struct err *e)
{
    const struct source_tensor *t = &in->tensors[i];
    const struct medusa_place *p = &in->places[i];
    const int rows = p->block < 0 ? c->vocab_size : c->hidden_size, n_dims = p->is_bias ? 1 : 2;
    if (p->block >= in->n_blocks)
        return err_set(e, ERR_FORMAT, "%s: tensor %.80s: block %d of a head, expected at most %d", in->path, t->name,
                       p->block, in->n_blocks - 1);
    if (!is_float(t->type))
        return err_set(e, ERR_UNSUPPORTED, "%s: tensor %.80s: type %s, expected F32, F16, BF16 or F8", in->path, t->name,
                       ggml_type_info(t->type)->name);
    if (t->n_dims != n_dims || t->dim[0] != rows || (n_dims == 2 && t->dim[1] != c->hidden_size))
        return err_set(e, ERR_SHAPE, "%s: tensor %.80s: %d dimensions, %" PRId64 " rows, %" PRId64
                       " columns; the model has hidden_size %d and %d tokens", in->path, t->name, t->n_dims,
                       t->n_dims > 0 ? t->dim[0] : 0, t->n_dims > 1 ? t->dim[1] : 0, c->hidden_size, c->vocab_size);
    return 0;
}

static int check_tensors(const struct medusa_input *in, const struct config *c, struct err *e)
{
    const int each = 2 * in->n_blocks + 1;
    for (int i = 0; i < in->n_tensors; i++) {
        const struct medusa_place *p = &in->places[i];
        if (check_tensor(in, i, c, e) != 0)
            return -1;
        for (int j = 0; j < i; j++)
            if (memcmp(p, &in->places[j], sizeof *p) == 0)
                return err_set(e, ERR_FORMAT, "%s: tensors %.80s and %.80s are the same part of a head", in->path,
                               in->tensors[j].name, in->tensors[i].name);
    }
    if (in->n_tensors != in->n_heads * each)
        return err_set(e, ERR_FORMAT, "%s: %d tensors, expected %d for %d heads of %d blocks", in->path, in->n_tensors,
                       in->n_heads * each, in->n_heads, in->n_blocks);
    return 0;
}

/* ---- weights ---- */

struct medusa_job {
    const struct source_tensor *t;
    const struct mat *m;
    uint8_t *data;                      /* the heads' memory, owned by m */
    float *row;                         /* [threads][cols] */
    struct qrow *q;                     /* [threads] */
    int *bad;                           /* [threads] row with an element that is not finite, plus 1 */
};

static int decode(const struct source_tensor *t, int64_t row, int64_t cols, float *out)
{
    const struct ggml_type_info *info = ggml_type_info(t->type);
    ggml_decode(t->type, t->data + (size_t)(row * cols) * (size_t)info->block_bytes, out, cols);
    for (int64_t i = 0; i < cols; i++)
        if (!isfinite(out[i]))
            return -1;
    return 0;
}

static void round_tile(void *arg, int tile, int thread)
{
    const struct medusa_job *j = arg;
    const struct mat *m = j->m;
    uint8_t *to = j->data + (size_t)tile * m->tile_bytes;
    float *row = j->row + (size_t)thread * (size_t)m->cols;
    tile_clear(m, to);
    for (int r = 0; r < TILE_ROWS && tile * TILE_ROWS + r < m->rows; r++) {
        if (decode(j->t, tile * TILE_ROWS + r, m->cols, row) != 0) {
            j->bad[thread] = tile * TILE_ROWS + r + 1;
            return;
        }
        quantize_row(m, row, NULL, QUANT_ABSMAX, &j->q[thread]);
        tile_put(m, to, r, &j->q[thread]);
    }
}

static int read_tensor(const struct medusa_input *in, int i, struct medusa *m, struct pool *pool, struct medusa_job *j,
                       struct err *e)
{
    const struct source_tensor *t = &in->tensors[i];
    const struct medusa_place *p = &in->places[i];
    const struct linear *l = medusa_linear(m, p->head, p->block < 0 ? m->n_blocks : p->block);
    int bad = 0;
    if (p->is_bias) {
        bad = decode(t, 0, m->hidden_size, (void *)(m->owned + ((const uint8_t *)l->bias - m->section))) != 0;
    } else {
        j->t = t;
        j->m = &l->w;
        j->data = m->owned + ((const uint8_t *)l->w.data - m->section);
        pool_run(pool, l->w.n_tiles, round_tile, j);
        for (int k = 0; k < pool_size(pool); k++)
            bad = j->bad[k] ? j->bad[k] : bad;
    }
    if (bad)
        return err_set(e, ERR_FORMAT, "%s: tensor %.80s: row %d: NaN or infinity", in->path, t->name, bad - 1);
    return map_check(&in->map, e);
}

static int read_tensors(const struct medusa_input *in, struct medusa *m, int n_threads, struct err *e)
{
    struct pool *pool = pool_open(n_threads, e);
    if (!pool)
        return -1;
    const size_t n = (size_t)pool_size(pool);
    struct medusa_job j = { .row = malloc(n * (size_t)m->hidden_size * sizeof *j.row), .q = calloc(n, sizeof *j.q),
                            .bad = calloc(n, sizeof *j.bad) };
    int rc = j.row && j.q && j.bad ? 0 : err_nomem(e, in->path);
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = qrow_init(&j.q[i], &medusa_linear(m, 0, 0)->w, e);
    for (int i = 0; rc == 0 && i < in->n_tensors; i++)
        rc = read_tensor(in, i, m, pool, &j, e);
    for (size_t i = 0; j.q && i < n; i++)
        qrow_release(&j.q[i]);
    free(j.row);
    free(j.q);
    free(j.bad);
    pool_close(pool);
    return rc;
}

int medusa_check(const char *path, const struct config *c, const struct map_guard *guard, uint64_t *bytes,
                 struct err *e)
{
    struct medusa_input in = { 0 };
    int rc = -1;
    if (open_input(&in, path, guard, e) == 0 && check_tensors(&in, c, e) == 0 && check_config(&in, c, e) == 0) {
        *bytes = medusa_bytes(in.n_heads, in.n_blocks, c->hidden_size, c->vocab_size);
        rc = map_check(&in.map, e);
    }
    close_input(&in, guard);
    return rc;
}

struct medusa *medusa_read(const char *path, const struct config *c, const struct medusa_options *o, struct err *e)
{
    struct medusa_input in = { 0 };
    struct medusa *m = NULL;
    if (open_input(&in, path, o->guard, e) == 0 && check_tensors(&in, c, e) == 0 && check_config(&in, c, e) == 0) {
        const uint64_t bytes = medusa_bytes(in.n_heads, in.n_blocks, c->hidden_size, c->vocab_size);
        if (o->most_bytes && bytes > o->most_bytes)
            err_set(e, ERR_MEMORY, "%s: the heads take %" PRIu64 " bytes, but only %" PRIu64 " are free", in.path, bytes,
                    o->most_bytes);
        else
            m = medusa_open(in.n_heads, in.n_blocks, c->hidden_size, c->vocab_size, e);
    }
    if (m && read_tensors(&in, m, o->n_threads, e) != 0) {
        medusa_close(m);
        m = NULL;
    }
    close_input(&in, o->guard);
    return m;
}
