/* lora.h - LoRA adapters beside a model whose weights stay as they are: y = W x + scale * B (A x),
 * with A and B of the adapter that a sequence names (arXiv:2106.09685).
 *
 * An adapter is a folder that PEFT wrote, for the same source as the model's.  It may change the
 * projections of attention and of dense MLPs; one that changes anything else is refused by name. */
#ifndef ZSE_MODEL_LORA_H
#define ZSE_MODEL_LORA_H

#include <stdint.h>

#include "libcommon/base/err.h"
#include "libcommon/model/model.h"

struct map_guard;

enum { MOST_LORAS = 1024 };

/* The change of one matrix by one adapter: a [rank, cols], b [rows, rank] in the order of the rows
 * of the matrix.  a.data NULL: the adapter does not change the matrix.  Data is owned by the
 * model. */
/* A row of A is stored in `parts` rows of a, row i of part p in row p * 32 / parts + i, so that A
 * of a small rank fills whole tiles; a.cols is the number of columns of a part. */
struct lora_linear { struct mat a, b; int parts; float scale; };
/* The number of parts of A [rank, cols]: 1, 2, 4 or 8. */
enum { LORA_PARTS = 8 };
int lora_parts(int64_t rank, int64_t cols);

struct lora {
    /* owned; the folder without slashes at its end; name NULL: the adapter was removed, and its
     * number is unused */
    char *name, *folder;
    /* a hash of the adapter's files and never 0: keys and values depend on it */
    uint64_t key;
    int rank;                           /* the largest rank of its matrices */
    int n_matrices;                     /* number of matrices that it changes */
    uint64_t bytes;                     /* memory of its matrices */
};

/* Add the adapter in `folder` to the model, before a backend is opened on it.  Its number is
 * m->n_loras afterwards: batch items and requests name adapters by numbers from 1 on.  guard (see
 * struct map_guard) may be NULL.  -1 with *e and the model unchanged. */
int model_add_lora(struct model *m, const char *name, const char *folder, const struct map_guard *guard,
                   struct err *e);

/* model_add_lora() in two steps, for a model that an engine uses.  lora_bind() reads and checks the
 * adapter in any thread and leaves the model as it is; NULL with *e. */
struct lora_bound;
struct lora_bound *lora_bind(const struct model *m, const char *name, const char *folder,
                             const struct map_guard *guard, struct err *e);
uint64_t lora_bound_bytes(const struct lora_bound *b);
uint64_t lora_bound_key(const struct lora_bound *b);
int lora_bound_rank(const struct lora_bound *b);
void lora_bound_free(struct lora_bound *b);             /* NULL is fine */
/* Put a bound adapter into the model under an unused number, 1 to m->n_loras + 1, and take b over,
 * also on failure.  No step may run.  0; -1 with *e. */
int model_put_lora(struct model *m, int number, struct lora_bound *b, struct err *e);
/* Remove the adapter with this number, if there is one; the others keep theirs.  No step may
 * run. */
void model_remove_lora(struct model *m, int number);
/* Whether channels of the file were scaled.  If so, the matrices of adapters are kept as f32. */
int lora_scales(const struct zfile *z);
/* Whether the channels of the file were scaled but their scales are unknown (a file of version
 * 1.1).  Such a model takes no adapters. */
int lora_lacks_scales(const struct zfile *z);
/* Free all adapters, as model_close() does. */
void model_drop_loras(struct model *m);

#endif
