/* source_weights.h - the weights of a model: the tensors of its source, checked, and their places
 * in struct model. */
#ifndef ZSE_CONVERT_SOURCE_WEIGHTS_H
#define ZSE_CONVERT_SOURCE_WEIGHTS_H

#include "libcommon/import/source.h"
#include "libcommon/model/model.h"

/* List the tensors of a model, and check the source's shapes (see weight_specs()).  Returns 0; -1
 * with *e, also if the source has other tensors that must not be skipped.
 *
 * no_predictor: skip the tensors of layers that predict further tokens.  skipped: the numbers of
 * skipped tensors, by reason.  left_out: if its code is set, the reason why the tensors that
 * predict further tokens are skipped.  skipped and left_out may be NULL. */
int source_weights(const struct config *c, const struct source *s, int no_predictor, struct weight_spec **specs,
                   int *n, int skipped[N_WEIGHT_SKIPS], struct err *left_out, struct err *e);

/* The place of a weight in a model: its linear layer or norm, and the pointer of a vector. */
struct weight_place { struct linear *linear; struct norm *norm; const float **plain; };
struct weight_place weight_place(struct model *m, const struct weight_spec *w);

#endif
