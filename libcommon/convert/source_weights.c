/* source_weights.c - the weights of a model in its source, and their places in struct model. */
#include "libcommon/convert/source_weights.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/model/parts.h"

_Static_assert((int)WEIGHT_DIMS == SOURCE_DIMS, "a shape of one is a shape of the other");

static int source_shape(void *user, const char *name, int *n_dims, int64_t dim[WEIGHT_DIMS])
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

/* Whether one of these weights is made from several tensors of the source, and `name` is one of
 * them. */
static int is_part(const char *name, const struct weight_spec *specs, int n)
{
    char part[160];
    for (int i = 0; i < n; i++)
        for (int k = 0; strchr(specs[i].source, '{') && source_part_name(specs[i].source, k, part, sizeof part); k++)
            if (strcmp(part, name) == 0)
                return 1;
    return 0;
}

int source_weights(const struct config *c, const struct source *s, int no_predictor, struct weight_spec **specs,
                   int *n, int skipped[N_WEIGHT_SKIPS], struct err *left_out, struct err *e)
{
    const struct weight_source w = { .shape = source_shape, .user = (void *)s, .no_predictor = no_predictor,
                                     .left_out = left_out };
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
        if (bsearch(name, sorted, (size_t)*n, sizeof *sorted, by_name))
            continue;
        const enum weight_skip why = weight_skip(c, name);
        if (why == WEIGHT_UNKNOWN && is_part(name, *specs, *n))
            continue;
        if (skipped)
            skipped[why]++;
        if (why == WEIGHT_UNKNOWN)
            rc = err_set(e, ERR_UNSUPPORTED, "%s: tensor '%s' has no place in architecture %s", s->path, name, c->arch);
    }
    free(sorted);
    if (rc < 0)
        free(*specs);
    return rc;
}

struct weight_place weight_place(struct model *m, const struct weight_spec *w)
{
    struct weight_place p = { 0 };
    const int end = w->layer < 0;
    void *field = end ? end_field(m, (enum end_part)w->part)
                      : part_field(w->layer < m->config.n_layers ? &m->layers[w->layer] : m->predictor->layers,
                                   w->expert, (enum layer_part)w->part);
    switch (end ? end_infos[w->part].kind : part_infos[w->part].kind) {
    case PART_NORM:     p.norm = field; break;
    case PART_VECTOR:   p.plain = field; break;
    case PART_MATRIX: case PART_EXPERT: p.linear = field; break;
    }
    const char *last = strrchr(w->name, '.');
    if (w->is_vector && !p.plain)
        p.plain = p.norm ? last && strcmp(last, ".bias") == 0 ? &p.norm->b : &p.norm->w : &p.linear->bias;
    return p;
}
