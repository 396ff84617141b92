/* assemble.h - a model in memory straight from its source, every matrix in one float type: the
 * reference for conversions. */
#ifndef ZSE_CONVERT_ASSEMBLE_H
#define ZSE_CONVERT_ASSEMBLE_H

#include "libcommon/import/source.h"
#include "libcommon/model/model.h"

/* type: QT_F32, QT_F16, QT_BF16; vectors are f32.  Closed by model_close; s may be closed before.
 * Refuses what a conversion refuses: missing tensors, wrong shapes, tensors that the architecture
 * does not have. */
struct model *model_assemble(const struct source *s, enum qtype type, struct err *e);

/* The list of tensors, checked against the source's shapes (see weight_specs); fails if the source
 * has other tensors that may not be skipped. */
int source_weights(const struct config *c, const struct source *s, struct weight_spec **specs, int *n,
                   int skipped[N_WEIGHT_SKIPS], struct err *e);

/* The place of a weight in a model: its linear layer or norm, and the pointer of a vector. */
struct weight_place { struct linear *linear; struct norm *norm; const float **plain; };
struct weight_place weight_place(struct model *m, const struct weight_spec *w);

#endif
