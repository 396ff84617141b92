/* lora_merge.c - weights of a source with the changes of adapters. */
#include "libcommon/import/lora_merge.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/suffix.h"
#include "libcommon/import/internal.h"
#include "libcommon/quant/ggml.h"

/* The change of one tensor by one adapter.  swapped: the tensor is stored as the transpose of B A,
 * like tables of embeddings and matrices with the layout [in, out]. */
struct low_rank {
    const struct low_rank *next;
    const struct peft_module *module;
    int swapped;
};

/* A tensor with changes.  In source_inner.by_name it replaces the source's own tensor. */
struct merged {
    struct source_tensor tensor;
    const struct source_tensor *part[1];
};

enum { STRIP = 256 };

/* Read n elements of a matrix of floats from (row, col) on. */
static void read_some(const struct source_tensor *t, int64_t row, int64_t col, int64_t n, float *out)
{
    const struct ggml_type_info *info = ggml_type_info(t->type);
    ggml_decode(t->type, t->data + (size_t)(row * t->dim[1] + col) * (size_t)info->block_bytes, out, n);
}

/* out[c] += scale * B[row,:] A[:,c]. */
static void add_row(const struct peft_module *m, int64_t row, int64_t cols, float *out)
{
    float a[STRIP], b[STRIP];
    for (int k0 = 0; k0 < m->rank; k0 += STRIP) {
        const int nk = m->rank - k0 < STRIP ? m->rank - k0 : STRIP;
        read_some(m->b, row, k0, nk, b);
        for (int64_t c0 = 0; c0 < cols; c0 += STRIP) {
            const int nc = (int)(cols - c0 < STRIP ? cols - c0 : STRIP);
            for (int k = 0; k < nk; k++) {
                const float by = m->scale * b[k];
                read_some(m->a, k0 + k, c0, nc, a);
                for (int c = 0; c < nc; c++)
                    out[c0 + c] += by * a[c];
            }
        }
    }
}

/* out[c] += scale * B[c,:] A[:,row]. */
static void add_row_swapped(const struct peft_module *m, int64_t row, int64_t cols, float *out)
{
    float a[STRIP], b[STRIP];
    for (int k0 = 0; k0 < m->rank; k0 += STRIP) {
        const int nk = m->rank - k0 < STRIP ? m->rank - k0 : STRIP;
        for (int k = 0; k < nk; k++)
            read_some(m->a, k0 + k, row, 1, &a[k]);
        for (int64_t c = 0; c < cols; c++) {
            float sum = 0;
            read_some(m->b, c, k0, nk, b);
            for (int k = 0; k < nk; k++)
                sum += a[k] * b[k];
            out[c] += m->scale * sum;
        }
    }
}

void low_rank_add(const struct low_rank *d, int64_t row, int64_t n, int64_t cols, float *out)
{
    for (; d; d = d->next)
        for (int64_t i = 0; i < n; i++)
            (d->swapped ? add_row_swapped : add_row)(d->module, row + i, cols, out + i * cols);
}

/* ---- merging ---- */

static struct merged *find_merged(const struct source_inner *in, const struct source_tensor *t)
{
    for (int i = 0; i < in->n_merged; i++)
        if (&in->merged[i]->tensor == t)
            return in->merged[i];
    return NULL;
}

/* Replace tensor t of the base in the list of names by a struct merged, to which changes can be
 * added. */
static struct merged *make_merged(struct source *s, const struct source_tensor *t, struct err *e)
{
    struct source_inner *in = s->private_;
    struct merged *m = find_merged(in, t);
    if (m)
        return m;
    struct merged **list = realloc(in->merged, (size_t)(in->n_merged + 1) * sizeof *list);
    if (list)
        in->merged = list;
    if (!list || !(m = calloc(1, sizeof *m))) {
        err_nomem(e, t->name);
        return NULL;
    }
    m->part[0] = t;
    m->tensor = (struct source_tensor){ .name = t->name, .type = GGML_F32, .n_dims = t->n_dims,
                                        .size = source_bytes(t), .shard = t->shard, .offset = t->offset,
                                        .parts = m->part, .n_parts = 1 };
    memcpy(m->tensor.dim, t->dim, sizeof t->dim);
    list[in->n_merged++] = m;
    for (int i = 0; i < s->n_tensors; i++)
        if (in->by_name[i] == t)
            in->by_name[i] = &m->tensor;
    return m;
}

static int other_shape(const struct peft *p, const struct peft_module *m, const struct source_tensor *t,
                       const struct source_tensor *base, int64_t found, int64_t want, struct err *e)
{
    return err_set(e, ERR_SHAPE, "%s: tensor '%s': %" PRId64 " %s, expected %" PRId64 " by %s; is this an adapter of "
                   "another model?", p->path, t->name, found, m->saved ? "elements" : t == m->a ? "columns" : "rows",
                   want, base->name);
}

/* 1 if the base stores this module's matrix as [in, out], as GPT-2 does in its layers.  The
 * adapter's fan_in_fan_out should say the same, but can be wrong (PEFT then corrects it), so it is
 * not read. */
static int stored_in_out(const struct source *s, const char *module)
{
    static const char *const names[] = { ".c_attn", ".c_proj", ".c_fc" };
    const char *type = json_string_value(json_object_get(s->config, "model_type"));
    for (size_t i = 0; type && strcmp(type, "gpt2") == 0 && i < sizeof names / sizeof *names; i++)
        if (ends_with(module, names[i]))
            return 1;
    return 0;
}

/* Refuse a base weight copied into the adapter if it differs from the base's own. */
static int check_copy(struct source *s, const struct peft *p, const struct peft_copy *c, struct err *e)
{
    char name[PEFT_NAME + sizeof ".weight"];
    snprintf(name, sizeof name, "%s.weight", c->name);
    const struct source_tensor *t = source_find(s, name);
    const struct merged *m = t ? find_merged(s->private_, t) : NULL;
    if (m)
        t = m->part[0];
    const int64_t cols = t ? t->dim[t->n_dims - 1] : 0;
    int same = t && t->n_dims == c->tensor->n_dims && memcmp(t->dim, c->tensor->dim, sizeof t->dim) == 0, rc = 0;
    float *x = same ? malloc(2 * (size_t)cols * sizeof *x + 1) : NULL;
    if (same && !x)
        return err_nomem(e, name);
    if (same)
        rc = source_wait(s, t, e);
    const struct ggml_type_info *info = ggml_type_info(c->tensor->type);
    const int64_t n = cols ? (int64_t)(c->tensor->size / (size_t)info->block_bytes) / cols : 0;
    for (int64_t row = 0; row < n && same && rc == 0; row++) {
        rc = source_read(s, t, row, 1, x, 0, e);
        const uint8_t *kept = c->tensor->data + (size_t)(row * cols) * (size_t)info->block_bytes;
        ggml_decode(c->tensor->type, kept, x + cols, cols);
        same = rc != 0 || memcmp(x, x + cols, (size_t)cols * sizeof *x) == 0;
    }
    free(x);
    return rc != 0 || same ? rc
        : err_set(e, ERR_UNSUPPORTED, "%s: tensor '%s': differs from '%s' of %s, and modules_to_save does not list it",
                  p->path, c->tensor->name, name, s->path);
}

static int merge_module(struct source *s, const struct peft *p, const struct peft_module *m, struct err *e)
{
    char name[PEFT_NAME + sizeof ".weight"];
    snprintf(name, sizeof name, "%s.weight", m->name);
    const struct source_tensor *t = source_find(s, name);
    if (!t)
        return err_set(e, ERR_FORMAT, "%s: tensor '%s': %s has no '%s'; is this an adapter of another model?", p->path,
                       (m->a ? m->a : m->saved)->name, s->path, name);
    if (m->saved) {
        struct merged *whole = NULL;
        if (t->n_dims != m->saved->n_dims || memcmp(t->dim, m->saved->dim, sizeof t->dim) != 0)
            return other_shape(p, m, m->saved, t, m->saved->dim[0], t->dim[0], e);
        if (find_merged(s->private_, t))
            return err_set(e, ERR_UNSUPPORTED, "%s: tensor '%s': another adapter changes it, too", p->path,
                           m->saved->name);
        if (!(whole = make_merged(s, t, e)))
            return -1;
        whole->part[0] = m->saved;
        return 0;
    }
    const int swapped = m->table || stored_in_out(s, m->name);
    if (t->n_dims != 2)
        return err_set(e, ERR_UNSUPPORTED, "%s: tensor '%s': %s has %d dimensions, expected a matrix", p->path,
                       m->a->name, t->name, t->n_dims);
    if (m->a->dim[1] != t->dim[!swapped])
        return other_shape(p, m, m->a, t, m->a->dim[1], t->dim[!swapped], e);
    if (m->b->dim[0] != t->dim[swapped])
        return other_shape(p, m, m->b, t, m->b->dim[0], t->dim[swapped], e);
    struct merged *whole = make_merged(s, t, e);
    struct low_rank *d = whole ? malloc(sizeof *d) : NULL;
    if (!d)
        return whole ? err_nomem(e, name) : -1;
    *d = (struct low_rank){ .next = whole->tensor.delta, .module = m, .swapped = swapped };
    whole->tensor.delta = d;
    return 0;
}

int source_merge_lora(struct source *s, const char *folder, struct err *e)
{
    struct source_inner *in = s->private_;
    if (s->kind != SOURCE_FOLDER)
        return err_set(e, ERR_UNSUPPORTED, "%s: an adapter is merged into a folder of safetensors, which this is not",
                       s->path);
    struct peft **list = realloc(in->adapters, (size_t)(in->n_adapters + 1) * sizeof *list);
    if (!list)
        return err_nomem(e, folder);
    in->adapters = list;
    struct peft *p = peft_open(folder, in->o ? in->o->guard : NULL, e);
    if (!p)
        return -1;
    list[in->n_adapters++] = p;
    for (int i = 0; i < p->n_tensors; i++)
        p->tensors[i].shard = -in->n_adapters;          /* see source_tensor.shard */
    for (int i = 0; i < p->n_copies; i++)
        if (check_copy(s, p, &p->copies[i], e))
            return -1;
    for (int i = 0; i < p->n_modules; i++)
        if (merge_module(s, p, &p->modules[i], e))
            return -1;
    return peft_check(p, e);
}

int source_n_merged(const struct source *s)
{
    const struct source_inner *in = s->private_;
    return in ? in->n_merged : 0;
}

const struct source_tensor *source_merged(const struct source *s, int i)
{
    const struct source_inner *in = s->private_;
    return &in->merged[i]->tensor;
}

void merged_free(struct source_inner *in)
{
    for (int i = 0; i < in->n_merged; i++) {
        for (const struct low_rank *d = in->merged[i]->tensor.delta, *next; d; d = next) {
            next = d->next;
            free((void *)(uintptr_t)d);
        }
        free(in->merged[i]);
    }
    free(in->merged);
    for (int i = 0; i < in->n_adapters; i++)
        peft_close(in->adapters[i], in->o ? in->o->guard : NULL);
    free(in->adapters);
}
