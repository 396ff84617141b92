/* builder.c - add tensors to the list: check names and shapes against the source. */
#include "libcommon/model/builder.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int spec_exists(const struct builder *b, const char *name)
{
    int n;
    int64_t dim[WEIGHT_DIMS];
    return !b->s->shape || b->s->shape(b->s->user, name, &n, dim) == 0;
}

int spec_has_dims(const struct builder *b, const char *name, int n_dims)
{
    int n;
    int64_t dim[WEIGHT_DIMS];
    return b->s->shape && b->s->shape(b->s->user, name, &n, dim) == 0 && n == n_dims;
}

static void dims_text(char *out, size_t room, const int64_t *dim, int n)
{
    snprintf(out, room, "[");
    for (int i = 0; i < n; i++)
        snprintf(out + strlen(out), room - strlen(out), "%s%" PRId64, i ? ", " : "", dim[i]);
    snprintf(out + strlen(out), room - strlen(out), "]");
}

/* Check that the tensor exists with this shape.  Returns 0; 1 if it is missing and optional; -1
 * with both shapes in the message. */
static int check_shape(const struct builder *b, const char *name, const int64_t *want, int n_want, int optional)
{
    int n;
    int64_t dim[WEIGHT_DIMS];
    if (!b->s->shape)
        return 0;
    if (b->s->shape(b->s->user, name, &n, dim) < 0)
        return optional ? 1 : err_set(b->e, ERR_FORMAT, "tensor '%s' is missing", name);
    if (n == n_want && memcmp(dim, want, (size_t)n * sizeof *dim) == 0)
        return 0;
    char found[100], expected[100];
    dims_text(found, sizeof found, dim, n);
    dims_text(expected, sizeof expected, want, n_want);
    return err_set(b->e, ERR_SHAPE, "tensor '%s': shape %s, expected %s by config.json", name, found, expected);
}

static struct weight_spec *push(struct builder *b)
{
    if (b->n_specs == b->room) {
        int room = b->room ? 2 * b->room : 64;
        struct weight_spec *grown = realloc(b->specs, (size_t)room * sizeof *grown);
        if (!grown) {
            err_nomem(b->e, "list of weights");
            return NULL;
        }
        b->specs = grown;
        b->room = room;
    }
    struct weight_spec *s = &b->specs[b->n_specs++];
    *s = (struct weight_spec){ .layer = -1, .expert = -1 };
    return s;
}

/* Add one tensor of ours from the source's tensor `full`, which must have the shape want; t has
 * everything but the two names.  Returns 0; 1 if the tensor is optional and missing; -1 on
 * errors. */
int spec_as(struct builder *b, const char *ours, const char *full, const int64_t *want, int n_want,
            const struct weight_spec *t)
{
    const int missing = check_shape(b, full, want, n_want, t->optional);
    if (missing)
        return missing;
    struct weight_spec *s = push(b);
    if (!s)
        return -1;
    *s = *t;
    s->copies = b->s->one_expert && t->expert >= 0 ? b->c->moe.n_experts : 1;
    if (strlen(full) >= sizeof s->source)
        return err_set(b->e, ERR_SHAPE, "tensor '%s': a name of %zu characters, expected less than %zu", full,
                       strlen(full), sizeof s->source);
    memcpy(s->source, full, strlen(full) + 1);
    if (t->layer < 0)
        snprintf(s->name, sizeof s->name, "%s", ours);
    else if (t->expert < 0)
        snprintf(s->name, sizeof s->name, "layers.%d.%s", t->layer, ours);
    else
        snprintf(s->name, sizeof s->name, "layers.%d.experts.%d.%s", t->layer, t->expert, ours);
    return 0;
}

int spec_tensor(struct builder *b, const char *name, const char *suffix, const char *source, int64_t src_rows,
                struct weight_spec t)
{
    char full[200], ours[80];
    snprintf(full, sizeof full, "%s%s", source, suffix);
    snprintf(ours, sizeof ours, "%s%s", name, suffix);
    /* a table with one row (types of tokens) is a matrix in the source */
    const int flat = t.is_vector && t.rows == 1 && !(t.role == ROLE_POS && spec_has_dims(b, full, 2));
    if (!src_rows)
        src_rows = flat ? t.cols : t.rows;
    const int64_t want[2] = { flat || !t.map.transposed ? src_rows : t.cols, t.map.transposed ? src_rows : t.cols };
    t.expert = -1;
    return spec_as(b, ours, full, want, flat ? 1 : 2, &t) < 0 ? -1 : 0;
}

/* Write to out the full name of a tensor, without ".weight" or ".bias".  The stem may list several
 * names, "a|b": the first that exists is used, else the last. */
void spec_path(const struct builder *b, char *out, size_t room, int layer, const char *stem)
{
    for (const char *end; ; stem = end + 1) {
        end = strchrnul(stem, '|');
        if (layer < 0)
            snprintf(out, room, "%s%.*s", b->prefix, (int)(end - stem), stem);
        else
            snprintf(out, room, "%s%s%d.%.*s", b->prefix, b->n.layer, b->first_layer + layer, (int)(end - stem), stem);
        char probe[200];
        snprintf(probe, sizeof probe, "%s.weight", out);
        if (!*end || spec_exists(b, out) || spec_exists(b, probe))
            return;
    }
}

int spec_norm(struct builder *b, int layer, int part, const char *name, const char *stem, int64_t n, int biased)
{
    char source[160];
    spec_path(b, source, sizeof source, layer, stem);
    const struct weight_spec t = { .rows = 1, .cols = n, .is_vector = 1, .role = ROLE_NORM, .layer = layer,
                                   .part = part, .expert = -1 };
    if (b->c->gguf && spec_exists(b, source)) {      /* falcon-h1: without ".weight" */
        char ours[80];
        snprintf(ours, sizeof ours, "%s.weight", name);
        return spec_as(b, ours, source, &n, 1, &t) < 0 ? -1 : 0;
    }
    if (spec_tensor(b, name, ".weight", source, 0, t) < 0)
        return -1;
    return biased ? spec_tensor(b, name, ".bias", source, 0, t) : 0;
}

/* Add a norm of a layer, if it has one with weights. */
int spec_layer_norm(struct builder *b, int layer, enum layer_part part, const char *stem)
{
    const struct part_fact f = layer_part_fact(b->c, layer, part);
    return f.stored ? spec_norm(b, layer, (int)part, part_infos[part].name, stem, f.cols, b->c->biases & f.bias) : 0;
}

int spec_linear(struct builder *b, const char *name, const char *source, int64_t src_rows, int biased,
                struct weight_spec t)
{
    const struct weight_spec bias = { .map = t.map, .rows = 1, .cols = t.rows, .is_vector = 1, .role = ROLE_BIAS,
                                      .layer = t.layer, .part = t.part, .optional = b->c->gguf };
    t.map.transposed = b->n.conv1d && t.layer >= 0;
    if (spec_tensor(b, name, ".weight", source, src_rows, t) < 0)
        return -1;
    /* the bias after dt_proj is dt_bias */
    return (b->c->gguf && t.part != LP_DT_PROJ) || biased ? spec_tensor(b, name, ".bias", source, src_rows, bias) : 0;
}

/* Add a matrix of a layer from `source` of src_rows rows (0: as many as the matrix has). */
int spec_matrix(struct builder *b, int layer, enum layer_part part, const char *source, struct row_map map,
                int64_t src_rows)
{
    const struct part_fact f = layer_part_fact(b->c, layer, part);
    const struct weight_spec t = { .map = map, .rows = f.rows, .cols = f.cols, .role = part_infos[part].role,
                                   .layer = layer, .part = (int)part };
    return spec_linear(b, part_infos[part].name, source, src_rows, b->c->biases & f.bias, t);
}

/* Add a matrix of a layer that is a tensor of its own. */
int spec_own_matrix(struct builder *b, int layer, enum layer_part part, const char *stem)
{
    char source[160];
    spec_path(b, source, sizeof source, layer, stem);
    return spec_matrix(b, layer, part, source, (struct row_map){ 0 }, 0);
}

/* Add a vector of known full name, if the layer has it. Some sources keep it as [1, n] or
 * [1, 1, n, 1], a GGUF of a model with recurrent layers as [n, 1]. */
int spec_vector(struct builder *b, int layer, enum layer_part part, const char *stem)
{
    const struct part_fact f = layer_part_fact(b->c, layer, part);
    char full[160];
    if (!f.present)
        return 0;
    spec_path(b, full, sizeof full, layer, stem);
    int64_t found[WEIGHT_DIMS];
    /* n: number of dimensions; ones: number of those with 1 element; whole: number of those with
     * all f.cols elements */
    int n = 0, ones = 0, whole = 0;
    const int shaped = b->s->shape && b->s->shape(b->s->user, full, &n, found) == 0;
    for (int i = 0; shaped && i < n; i++) {
        whole += found[i] == f.cols;
        ones += found[i] == 1;
    }
    const int other = shaped && n > 1 && (f.cols == 1 ? ones == n : whole == 1 && ones == n - 1);
    const struct weight_spec t = { .rows = 1, .cols = f.cols, .is_vector = 1, .role = ROLE_BIAS, .layer = layer,
                                   .expert = -1, .part = (int)part };
    return spec_as(b, part_infos[part].name, full, other ? found : &f.cols, other ? n : 1, &t);
}
