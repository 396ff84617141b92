/* choose.h - choose the files of a repository that a conversion needs. */
#ifndef ZSE_HUB_CHOOSE_H
#define ZSE_HUB_CHOOSE_H

#include <stddef.h>

#include "libcommon/base/err.h"

/* Names of a repository's files and the files chosen from them; strings are borrowed. */
struct file_choice {
    const char *const *names; int n_names;
    const char **small; int n_small;            /* config, tokenizer, templates, index, licence; owned array */
    const char **weights; int n_weights;        /* safetensors, or one GGUF or .zse; owned array */
    int indexed;                                /* an index lists the weights: weights is empty, see choose_indexed */
    const char *file;                           /* the GGUF or .zse that is the model; NULL: the model is the folder */
};
/* Choose the files.  pick names a file or its quantization; "": take the safetensors, else the only
 * GGUF or .zse, else the GGUF of the most usual quantization.  repo: for messages.  -1 with *e. */
int choose(struct file_choice *c, const char *repo, const char *pick, const char *const *names, int n, struct err *e);
/* Read the shards from the text of model.safetensors.index.json into weights (borrowed from
 * names). */
int choose_indexed(struct file_choice *c, const char *repo, const char *index, size_t size, struct err *e);
void choose_release(struct file_choice *c);

/* Files that a conversion reads if they exist. */
extern const char *const choose_optional[];
enum { CHOOSE_N_OPTIONAL = 21 };
#define CHOOSE_INDEX "model.safetensors.index.json"

#endif
