/* peft.h - read a LoRA adapter (arXiv:2106.09685) from a folder that PEFT wrote:
 * adapter_config.json and adapter_model.safetensors.
 *
 * A module of the base computes W x; with the adapter it computes W x + scale * B (A x).  Reading
 * is strict: a key of the configuration that changes the result and is not computed here is refused
 * by name, and every tensor of the file has to be a part of a module that the configuration
 * selects.
 * https://huggingface.co/docs/peft/developer_guides/checkpoint */
#ifndef ZSE_IMPORT_PEFT_H
#define ZSE_IMPORT_PEFT_H

#include <jansson.h>

#include "libcommon/base/err.h"
#include "libcommon/base/file.h"
#include "libcommon/import/source.h"

enum { PEFT_NAME = 1024 };              /* longest name of a tensor, in bytes */

struct peft_module {
    char *name;                         /* the module of the base, without ".weight"; owned */
    /* LoRA: A [rank, in], B [out, rank], of floats; or `saved`, a weight that replaces that of the
     * base.  Borrowed from the peft. */
    const struct source_tensor *a, *b, *saved;
    int rank;
    int table;                          /* a table of embeddings [in, out]: rows are looked up, not multiplied */
    float scale;
};

/* A copy of a base weight.  PEFT saves the weights of the embedding and the head if an adapter
 * changes either. */
struct peft_copy {
    char *name;                         /* the module, as above; owned */
    const struct source_tensor *tensor; /* of floats; borrowed */
};

struct peft {
    char *path;                         /* of the folder */
    struct map config_map, map;
    json_t *config;
    int n_tensors;
    struct source_tensor *tensors;      /* sorted by name */
    int n_modules;
    struct peft_module *modules;        /* sorted by name, which differ */
    int n_copies;
    struct peft_copy *copies;           /* must equal the base's weights */
};

/* NULL with *e, which names file and field.  guard may be NULL; it has to outlive the peft. */
struct peft *peft_open(const char *folder, const struct map_guard *guard, struct err *e);
void peft_close(struct peft *p, const struct map_guard *guard);        /* NULL is fine */
/* -1 if one of the files has changed since it was opened. */
int peft_check(const struct peft *p, struct err *e);
/* Whether the folder looks like an adapter: it has an adapter_config.json. */
int peft_is_folder(const char *path);

#endif
