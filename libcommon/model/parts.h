/* parts.h - tables of the weights in a layer and outside the layers.  Their rows are in parts.def
 * and ends.def. */
#ifndef ZSE_MODEL_PARTS_H
#define ZSE_MODEL_PARTS_H

#include <stddef.h>

#include "libcommon/model/model.h"

enum layer_part {
#define NORM(id, ...) LP_##id,
#define VECTOR(id, ...) LP_##id,
#define MATRIX(id, ...) LP_##id,
#define EXPERT(id, ...) LP_##id,
#include "libcommon/model/parts.def"
    N_LAYER_PARTS
};

/* Inputs of matrices within a layer, in forward order.  Matrices with the same input share its
 * quantized activations, and a channel scale of the input is folded into all of them. */
enum layer_input {
    /* input of the mixer: read by q, k, v; q_a and kv_a; all projections of a layer with a state */
    INPUT_QKV,
    INPUT_Q_A,              /* q_norm(q_a(x)), read by q in latent attention */
    INPUT_O,                /* the output of the mixer */
    INPUT_STATE_O,          /* MIXER_BOTH: the output of its state */
    INPUT_MLP,              /* the input of gate and up, also of experts */
    INPUT_DOWN,             /* the input of down, in the dense or the shared MLP */
    N_INPUTS,
    /* read by one matrix only (k_b, v_b, an expert's down), or never quantized (routers) */
    INPUT_NONE = -1
};

enum part_kind { PART_NORM, PART_VECTOR, PART_MATRIX, PART_EXPERT };

struct part_info {
    const char *name;           /* see parts.def */
    enum part_kind kind;
    int role;                   /* enum weight_role; -1: not a matrix */
    int is_mixer;               /* belongs to the mixer, otherwise to the feed-forward half */
    size_t offset;              /* offset in struct layer; PART_EXPERT: in struct expert */
};
extern const struct part_info part_infos[N_LAYER_PARTS];

/* A part in one layer of a model. */
struct part_fact {
    int present;                /* the layer has it */
    int stored;                 /* the layer has it with weights; a norm may have none */
    int bias;                   /* BIAS_ bit, 0: none */
    int reads;                  /* enum layer_input; INPUT_NONE unless it is a matrix */
    int64_t rows, cols;         /* rows 1: a vector */
};
/* The name of the tensor of a .zse that holds the channel scales of an input. */
enum { CHANNEL_SCALE_NAME = 48 };
void channel_scale_name(int layer, enum layer_input input, char out[CHANNEL_SCALE_NAME]);
/* Whether a tensor holds channel scales, which are no parameters of the model. */
int is_channel_scale(const char *name);

struct part_fact layer_part_fact(const struct config *c, int layer, enum layer_part part);

/* Store in out the matrices of l that have weights and read `input`.  Returns their number, at most
 * LAYER_READERS.  Only the first expert is stored, because all experts have the same types. */
enum { LAYER_READERS = 6 };
int layer_readers(const struct layer *l, enum layer_input input, const struct linear *out[LAYER_READERS]);

/* Returns the field of l that holds the part: struct norm, const float * or struct linear.  For
 * PART_EXPERT parts it is a field of this expert. */
void *part_field(struct layer *l, int expert, enum layer_part part);
/* The matrix of a layer; NULL: the part is no matrix or an expert's, or has no weights here. */
const struct linear *layer_matrix(const struct layer *l, enum layer_part part);

/* ---- outside of the layers ---- */

enum end_part {
#define NORM(id, ...) EP_##id,
#define VECTOR(id, ...) EP_##id,
#define MATRIX(id, ...) EP_##id,
#include "libcommon/model/ends.def"
    N_END_PARTS
};

struct end_info {
    const char *name;           /* tensor "name.weight" */
    enum part_kind kind;
    int role;                   /* enum weight_role */
    int is_first;               /* before the layers, otherwise after them */
    size_t offset;              /* offset in struct model */
};
extern const struct end_info end_infos[N_END_PARTS];

struct part_fact end_part_fact(const struct config *c, enum end_part part);
/* The field of m that holds the part: struct norm, const float * or struct linear. */
void *end_field(struct model *m, enum end_part part);
/* The matrix; NULL: the part is no matrix, or has no weights here. */
const struct linear *end_matrix(const struct model *m, enum end_part part);

#endif
