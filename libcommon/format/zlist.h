/* zlist.h - the list of tensors of a .zse file: section TNSR, or the JSON in files of version 1.0.
 * FORMAT.md, section 3.
 *
 * A file with 128 experts a layer has some 20,000 tensors: records of fixed size are read and
 * checked in 0.3 us each, JSON objects in more than 10. */
#ifndef ZSE_FORMAT_ZLIST_H
#define ZSE_FORMAT_ZLIST_H

#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "libcommon/base/err.h"
#include "libcommon/format/zfile.h"

struct zlist {
    int n;
    struct zfile_tensor *tensor;        /* [n]; names are borrowed from the section or the JSON */
    /* hash table [mask + 1]: upper half of the hash of a name, 1 + index of its tensor; 0: free */
    uint64_t *slot; uint32_t mask;
    uint64_t key[2];                    /* random key of the hash: no file can choose names that collide */
};
/* data: the mapping; groups: already checked */
struct zlist_file { const uint8_t *data; const struct zfile_group *groups; int n_groups; };

/* Read and check every offset, size, type, map and name.  Errors name the tensor. */
int zlist_read(struct zlist *l, const uint8_t *section, uint64_t size, const struct zlist_file *f, struct err *e);
int zlist_from_json(struct zlist *l, const json_t *array, const struct zlist_file *f, struct err *e);
const struct zfile_tensor *zlist_find(const struct zlist *l, const char *name);     /* NULL: none */
void zlist_release(struct zlist *l);

#endif
