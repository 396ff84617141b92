/* zse-info.h - the parts of zse-info: open any kind of model, describe it as JSON, print that as
 * text. */
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
    const json_t *config;               /* as normalised config.json; NULL: none */
    struct config c;                    /* valid if runs */
    int runs;                           /* the architecture and every field of its config are understood */
    struct err why_not;
};
int info_open(struct info *i, const char *path, struct err *e);
void info_close(struct info *i);

enum { INFO_TENSORS = 1, INFO_LAYERS = 2, INFO_MEMORY = 4, INFO_LAYOUT = 8 };
/* All there is to say, as one JSON object (keys: zse-info(1)), with the lists of tensors and of
 * layers if `lists` asks for them: of a model with many experts they are thousands of lines.
 * layer >= 0 leaves only that layer's.  New reference. */
json_t *info_describe(const struct info *i, int layer, unsigned lists);

/* What info_describe said, for people; no parts: an overview. */
void info_print(const json_t *d, unsigned parts);

/* One tensor as f32 in the order and under the name of its source.  *shape: new reference,
 * dimensions outermost first. */
int info_dump_tensor(const struct info *i, const char *name, const char *output, json_t **shape, struct err *e);
/* Every original file of the model into folder dir, byte for byte; *names: new reference. */
int info_extract(const struct info *i, const char *dir, json_t **names, struct err *e);
/* Read everything: checksums of a .zse, finite values of others. */
int info_verify(const struct info *i, struct err *e);

#endif
