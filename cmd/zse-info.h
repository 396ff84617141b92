/* zse-info.h - the parts of zse-info: open any kind of model, describe it as JSON, print the
 * description as text. */
#ifndef ZSE_CMD_ZSE_INFO_H
#define ZSE_CMD_ZSE_INFO_H

#include <jansson.h>

#include "libcommon/format/zfile.h"
#include "libcommon/import/source.h"
#include "libcommon/model/model.h"

struct info {
    const char *path;
    enum source_kind kind;
    struct zfile *z;                    /* kind ZSE, else NULL */
    struct source *s;                   /* every other kind, else NULL */
    const json_t *config;               /* the configuration as a normalised config.json; NULL: none */
    struct config c;                    /* valid if runs */
    int runs;                           /* the architecture and every field of its config are understood */
    struct err why_not;
};
int info_open(struct info *i, const char *path, struct err *e);
void info_close(struct info *i);

enum { INFO_TENSORS = 1, INFO_LAYERS = 2, INFO_MEMORY = 4, INFO_LAYOUT = 8 };
/* The full description as one JSON object (keys: zse-info(1)).  lists: include the lists of tensors
 * and of layers, which have thousands of lines if there are many experts.  layer >= 0: only that
 * layer in the lists.  New reference. */
json_t *info_describe(const struct info *i, int layer, unsigned lists);

/* Print the result of info_describe as text; without parts: an overview. */
void info_print(const json_t *d, unsigned parts);

/* Write one tensor as f32 to the file `output`.  name: the tensor's name in the source of the
 * model; its values are in the order of the source, too.  *shape: new reference, dimensions
 * outermost first. */
int info_dump_tensor(const struct info *i, const char *name, const char *output, json_t **shape, struct err *e);
/* Write every original file of the model to the folder dir, byte for byte.  *names: new
 * reference, a list of their names. */
int info_extract(const struct info *i, const char *dir, json_t **names, struct err *e);
/* Read the whole model, and check the checksums of a .zse, or that all values of other files are
 * finite. */
int info_verify(const struct info *i, struct err *e);

#endif
