/* pull.h - resolve the name of a model that is to be downloaded or converted. */
#ifndef ZSE_CMD_PULL_H
#define ZSE_CMD_PULL_H

#include "libcommon/base/err.h"
#include "libcommon/store/store.h"

struct pulled {
    char name[STORE_NAME_BYTES];        /* the name that the model gets */
    char type[16];                      /* spelled as for -q, taken from the end of the name; "": the default */
    char *source, *path;                /* org/name on the hub, a file or a folder; the .zse; owned */
};
/* Resolve word, which is a short name or a name of the registry (both may end in a dash and a
 * type), a name on the hub, or a local file or folder.  as: the name that the model gets; NULL:
 * it is made from word.  The folder of models is created.  -1 with *e. */
int pull_resolve(struct pulled *p, const char *word, const char *as, struct err *e);
void pull_release(struct pulled *p);

#endif
