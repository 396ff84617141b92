/* builder.h - private to weights.c and weights_streams.c: the list of tensors under
 * construction. */
#ifndef ZSE_MODEL_BUILDER_H
#define ZSE_MODEL_BUILDER_H

#include "libcommon/model/arch.h"
#include "libcommon/model/parts.h"

struct builder {
    const struct config *c;
    const struct weight_source *s;
    /* names of the architecture, which say what tensors exist */
    const struct weight_names *have;
    struct weight_names n;                  /* names in the source */
    char prefix[48];                        /* prefix of all names except the head's */
    struct weight_spec *specs;
    int n_specs, room;
    struct err *e;
};

/* Each adds one of our tensors, if the layer has it, from the source's tensor `stem` (several
 * names: "a|b"); -1 with the builder's *e.  own_matrix: a matrix that is a tensor of its own;
 * matrix: rows of a tensor of src_rows rows; plain: a matrix stored as f32; as: from the tensor
 * `full` of shape want, 1: it is optional and missing. */
int spec_own_matrix(struct builder *b, int layer, enum layer_part part, const char *stem);
int spec_matrix(struct builder *b, int layer, enum layer_part part, const char *source, struct row_map map,
                int64_t src_rows);
int spec_plain(struct builder *b, int layer, enum layer_part part, const char *stem);
int spec_vector(struct builder *b, int layer, enum layer_part part, const char *stem);
int spec_layer_norm(struct builder *b, int layer, enum layer_part part, const char *stem);
int spec_as(struct builder *b, const char *ours, const char *full, const int64_t *want, int n_want,
            const struct weight_spec *t);
/* The full name of a tensor, or of a weight or bias without that suffix: the first name in `stem`
 * that exists, else the last. */
void spec_path(const struct builder *b, char *out, size_t room, int layer, const char *stem);

int spec_compressed(struct builder *b, int i);
int spec_hyper(struct builder *b, int i);
int spec_altup(struct builder *b, int i);
int spec_ngram(struct builder *b, int i);
int spec_blocks(struct builder *b, int i);

#endif
