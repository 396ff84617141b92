/* eagle_source.c - read EAGLE heads: names, shapes, the map of their vocabulary, rounding to
 * int8. */
#include "libcommon/convert/eagle_source.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/base/json.h"
#include "libcommon/base/pool.h"
#include "libcommon/convert/row_reader.h"
#include "libcommon/quant/ggml.h"
#include "libcommon/quant/quantize.h"

struct eagle_input {
    struct source_options options;      /* borrowed by s */
    struct source *s;
    struct eagle *g;
    const char *prefix;                 /* "midlayer.", "layers.0." */
    struct eagle_part parts[EAGLE_MOST_PARTS]; int n_parts;
    const struct source_tensor *tensors[EAGLE_MOST_PARTS];      /* of the parts; NULL: absent */
    char *config;                       /* config.json as it is stored */
    int32_t *target;                    /* as in struct eagle */
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

static int config_number(const struct eagle_input *in, const char *key, int64_t otherwise, int64_t *out, struct err *e)
{
    return js_int_or(in->s->config, key, 0, INT32_MAX, otherwise, out, e) == 0 ? 0
                                                                         : err_prefix(e, "%s/config.json", in->s->path);
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
    if (!fc || fc->n_dims != 2 || fc->dim[1] < g->hidden_size || fc->dim[1] % g->hidden_size ||
        fc->dim[1] / g->hidden_size > EAGLE_MOST_AUX)
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

/* Find the tensor of part i and compare its shape. */
static int find_part(struct eagle_input *in, int i, struct err *e)
{
    char name[120];
    struct eagle_part *p = &in->parts[i];
    full_name(in, p, name, sizeof name);
    const struct source_tensor *t = in->tensors[i] = source_find(in->s, name);
    p->present = t != NULL;
    if (!t)
        return p->optional ? 0 : err_set(e, ERR_FORMAT, "%s: tensor %s is missing", in->s->path, name);
    const int n_dims = p->linear ? 2 : 1;
    if (t->n_dims != n_dims || t->dim[n_dims - 1] != p->width || (p->linear && t->dim[0] != p->rows))
        return err_set(e, ERR_SHAPE, "%s: tensor %s: %d dimensions, %" PRId64 " rows, %" PRId64
                       " columns, expected %d, %" PRId64 ", %" PRId64, in->s->path, name, t->n_dims,
                       t->n_dims > 1 ? t->dim[0] : 1, t->n_dims > 0 ? t->dim[t->n_dims - 1] : 0, n_dims, p->rows,
                       p->width);
    return 0;
}

static int is_used(const struct eagle_input *in, const struct source_tensor *t)
{
    static const char *const others[] = { "embed_tokens.weight", "d2t", "t2d" };
    for (int i = 0; i < in->n_parts; i++)
        if (in->tensors[i] == t)
            return 1;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strcmp(t->name, others[i]) == 0)
            return 1;
    return strstr(t->name, "rotary_emb.inv_freq") != NULL;
}

static int find_parts(struct eagle_input *in, struct err *e)
{
    in->n_parts = eagle_parts(in->g, in->parts);
    for (int i = 0; i < in->n_parts; i++)
        if (find_part(in, i, e) != 0)
            return -1;
    for (int i = 0; i < in->s->n_tensors; i++)
        if (!is_used(in, &in->s->tensors[i]))
            return err_set(e, ERR_UNSUPPORTED, "%s: tensor %.80s is not one of EAGLE's", in->s->path,
                           in->s->tensors[i].name);
    if (!(in->config = json_dumps(in->s->config, JSON_COMPACT)))
        return err_nomem(e, in->s->path);
    return eagle_lay_out(in->g, in->parts, in->n_parts, strlen(in->config), in->target != NULL, e) == 0
               ? 0 : err_prefix(e, "%s", in->s->path);
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
    const struct eagle *g = in->g;
    const uint8_t *d2t, *t2d;
    int64_t last = -1;
    if (read_numbers(in, "d2t", GGML_I64, n_own, &d2t, e) != 0 ||
        read_numbers(in, "t2d", SRC_BOOL, g->vocab_size, &t2d, e) != 0)
        return -1;
    if (!d2t)
        return n_own == g->vocab_size ? 0 : err_set(e, ERR_FORMAT, "%s: tensor d2t is missing: lm_head has %" PRId64
                                                    " rows for %d tokens", in->s->path, n_own, g->vocab_size);
    if (!(in->target = malloc((size_t)n_own * sizeof *in->target)))
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
        in->target[i] = (int32_t)(last = to);
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

static int read_part(const struct eagle_input *in, int i, struct pool *pool, struct err *e)
{
    static const struct row_map same;
    struct row_reader r;
    const struct eagle_part *p = &in->parts[i];
    const struct source_tensor *t = in->tensors[i];
    uint8_t *to = in->g->owned + p->at;
    if (!t)
        return 0;
    if (row_reader_open(&r, in->s, t, &same, p->rows, p->width, !p->linear, e) != 0)
        return -1;
    const int rc = p->linear ? round_matrix(&r, p, to, pool, e) : row_reader_read(&r, 0, 1, (float *)(void *)to, e);
    row_reader_close(&r);
    return source_check(in->s, t, e) == 0 ? rc : -1;
}

static int read_parts(struct eagle_input *in, const struct medusa_options *o, struct err *e)
{
    struct eagle *g = in->g;
    if (o->most_bytes && g->section_bytes > o->most_bytes)
        return err_set(e, ERR_MEMORY, "%s: the heads take %zu bytes, but only %" PRIu64 " are free", in->s->path,
                       g->section_bytes, o->most_bytes);
    if (eagle_begin_section(g, in->parts, in->n_parts, in->config, in->target, e) != 0)
        return -1;
    struct pool *pool = pool_open(o->n_threads, e);
    int rc = pool ? 0 : -1;
    for (int i = 0; rc == 0 && i < in->n_parts; i++)
        rc = read_part(in, i, pool, e);
    pool_close(pool);
    return rc;
}

/* ---- reading the heads ---- */

/* The rows of the head, and the map of the vocabulary; both are EAGLE-3's. */
static int read_vocabulary(struct eagle_input *in, struct err *e)
{
    struct eagle *g = in->g;
    const struct source_tensor *head = g->is_3 ? source_find(in->s, "lm_head.weight") : NULL;
    const int64_t n_own = head && head->n_dims > 0 ? head->dim[0] : g->vocab_size;
    int64_t stated;
    if (config_number(in, "draft_vocab_size", n_own, &stated, e) != 0)
        return -1;
    if (stated != n_own || n_own < 1 || n_own > g->vocab_size)
        return err_set(e, ERR_FORMAT, "%s: lm_head has %" PRId64 " rows, config.json says %" PRId64 " of %d tokens",
                       in->s->path, n_own, stated, g->vocab_size);
    g->n_own = (int)n_own;
    return g->is_3 ? read_map(in, n_own, e) : 0;
}

/* Open the folder, and make all checks that read no weights. */
static int open_input(struct eagle_input *in, const char *path, const struct config *main,
                      const struct map_guard *guard, struct err *e)
{
    const char *const prefixes[] = { "midlayer.", "layers.0." };
    *in = (struct eagle_input){ .options.guard = guard };
    if (!(in->s = source_open_with(path, &in->options, e)))
        return -1;
    if (in->s->kind != SOURCE_FOLDER || !in->s->config)
        return err_set(e, ERR_FORMAT, "%s: expected a folder with config.json and safetensors", in->s->path);
    for (int i = 0; i < 2 && !in->prefix; i++)
        in->prefix = find_in_layer(in, prefixes[i], "self_attn.q_proj.weight") ? prefixes[i] : NULL;
    if (!in->prefix)
        return err_set(e, ERR_UNSUPPORTED, "%s: no layer of EAGLE: neither midlayer.self_attn.q_proj.weight "
                       "nor layers.0.self_attn.q_proj.weight", in->s->path);
    const int is_3 = find_in_layer(in, in->prefix, "hidden_norm.weight") != NULL;
    if (!(in->g = eagle_open(in->s->config, is_3, main, e)))
        return err_prefix(e, "%s/config.json", in->s->path);
    if ((is_3 && read_aux_layers(in, main->n_layers, e) != 0) || read_vocabulary(in, e) != 0)
        return -1;
    return find_parts(in, e);
}

static void close_input(struct eagle_input *in)
{
    source_close(in->s);
    free(in->config);
    free(in->target);
}

int eagle_is_at(const char *path)
{
    const int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC),
              is_eagle = folder >= 0 && faccessat(folder, "medusa_lm_head.safetensors", F_OK, 0) != 0;
    if (folder >= 0)
        close(folder);
    return is_eagle;
}

int eagle_check(const char *path, const struct config *main, const struct map_guard *guard, uint64_t *bytes,
                struct err *e)
{
    struct eagle_input in;
    const int rc = open_input(&in, path, main, guard, e);
    if (rc == 0)
        *bytes = in.g->bytes;
    eagle_close(in.g);
    close_input(&in);
    return rc;
}

struct eagle *eagle_read(const char *path, const struct config *main, const struct medusa_options *o, struct err *e)
{
    struct eagle_input in;
    if (open_input(&in, path, main, o->guard, e) != 0 || read_parts(&in, o, e) != 0) {
        eagle_close(in.g);
        in.g = NULL;
    }
    close_input(&in);
    return in.g;
}
