/* builder.h - private to builder.c and weights*.c: the list of tensors under construction. */
#ifndef ZSE_MODEL_BUILDER_H
#define ZSE_MODEL_BUILDER_H

#include "libcommon/model/arch.h"
#include "libcommon/model/parts.h"

struct builder {
    const struct config *c;
    const struct weight_source *s;
    /* the architecture's names: a name that is not NULL means that the tensor exists */
    const struct weight_names *have;
    struct weight_names n;                  /* names in the source */
    char prefix[48];                        /* prefix of all names except the head's */
    int first_layer;                        /* number of layer 0 in names */
    struct weight_spec *specs;
    int n_specs, room;
    struct err *e;
};

/* Each function adds one of our tensors, if the layer has it, made from the source's tensor `stem`
 * (several names: "a|b").  Each returns 0, or -1 with the builder's *e.
 *
 * spec_own_matrix    adds a matrix that is a tensor of its own in the source
 * spec_matrix        adds a matrix whose rows `map` selects from a tensor of src_rows rows
 * spec_plain         adds a matrix stored as f32
 * spec_as            adds a tensor made from the source's tensor `full`, which must have the shape
 *                    want; returns 1 if that tensor is optional and missing */
int spec_own_matrix(struct builder *b, int layer, enum layer_part part, const char *stem);
int spec_matrix(struct builder *b, int layer, enum layer_part part, const char *source, struct row_map map,
                int64_t src_rows);
int spec_plain(struct builder *b, int layer, enum layer_part part, const char *stem);
int spec_vector(struct builder *b, int layer, enum layer_part part, const char *stem);
int spec_layer_norm(struct builder *b, int layer, enum layer_part part, const char *stem);
int spec_as(struct builder *b, const char *ours, const char *full, const int64_t *want, int n_want,
            const struct weight_spec *t);
/* Add our tensor `name` + `suffix` of shape [t.rows, t.cols], made from the source's tensor
 * `source` + `suffix`, which has src_rows rows (0: as many as ours).  If the source lacks an
 * optional tensor, nothing is added. */
int spec_tensor(struct builder *b, const char *name, const char *suffix, const char *source, int64_t src_rows,
                struct weight_spec t);
/* Add a norm of n elements that the source keeps at `stem`, and its bias if biased. */
int spec_norm(struct builder *b, int layer, int part, const char *name, const char *stem, int64_t n, int biased);
/* Add a matrix of t.rows rows, which t.map selects from the src_rows rows of the source's tensor
 * (0: as many as ours).  Also add its bias if `biased`; for a GGUF, if the file has one. */
int spec_linear(struct builder *b, const char *name, const char *source, int64_t src_rows, int biased,
                struct weight_spec t);
int spec_exists(const struct builder *b, const char *name);
/* 1 if the source has a tensor of this name with n_dims dimensions. */
int spec_has_dims(const struct builder *b, const char *name, int n_dims);
/* Write to out the full name of a tensor, without ".weight" or ".bias": the first name in `stem`
 * that exists, else the last. */
void spec_path(const struct builder *b, char *out, size_t room, int layer, const char *stem);

/* Each adds all tensors of a layer, or of one part of it.  Returns 0, or -1 with the builder's
 * *e. */
int spec_layer(struct builder *b, int i);
int spec_mlp(struct builder *b, int layer);
/* Add gate and up, of n rows each, which the source stores as one matrix with gate first. */
int spec_gate_up(struct builder *b, int layer, const char *stem, int64_t n);
int spec_moe(struct builder *b, int layer);
/* Find out how a folder stores its experts.  Checkpoints of one architecture have them apart or
 * stacked, depending on the version of transformers that wrote them. */
void spec_find_experts(struct builder *b);
/* Add the layer that predicts a further token, if the source has one of a supported form.  Returns
 * 0; -1 if memory ran out. */
int spec_predictor(struct builder *b);
int spec_state(struct builder *b, int layer);
int spec_compressed(struct builder *b, int i);
int spec_hyper(struct builder *b, int i);
int spec_altup(struct builder *b, int i);
int spec_ngram(struct builder *b, int i);
int spec_blocks(struct builder *b, int i);

#endif
