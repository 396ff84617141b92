/* internal.h - the private part of a source, and what its files share: source.c (open, find, read),
 * source_detect.c (kinds of sources), source_folder.c (folders), source_key.c (hashes),
 * lora_merge.c (changes by adapters). */
#ifndef ZSE_IMPORT_INTERNAL_H
#define ZSE_IMPORT_INTERNAL_H

#include <dirent.h>

#include "libcommon/import/joined.h"
#include "libcommon/import/peft.h"
#include "libcommon/import/source.h"

/* A file of the source.  Its address is fixed, because a guard keeps a pointer to map. */
struct input_file {
    struct map map;             /* path NULL: not downloaded yet */
    char *path;                 /* owned */
    int arriving;   /* index into the files being downloaded; -1: it was in the folder from the beginning */
};

/* The private part of a source. */
struct source_inner {
    const struct source_options *o;         /* may be NULL */
    int n_shards;
    struct input_file **shards;
    const struct source_tensor **by_name;   /* sorted */
    struct joined *joined;
    struct merged **merged; int n_merged;   /* tensors with changes by adapters, lora_merge.c */
    struct peft **adapters; int n_adapters;
    int n_small;
    struct input_file **small;                    /* the mappings of files[] */
};

/* DIR/NAME, malloc'd. */
char *source_join(const char *dir, const char *name, struct err *e);
/* Is there a regular file of this name in the folder? */
int source_has(const char *dir, const char *name);
/* 1 if the entry's name ends in .safetensors: a filter for scandir(). */
int source_is_shard(const struct dirent *d);
/* Map a file, under the guard of the source's options. */
int source_map(const struct source *s, struct input_file *p, struct err *e);
/* Sort the tensors by name; -1 if two have the same. */
int source_sort(struct source *s, struct err *e);
/* Set s->config to hf_config_normalize(raw).  Takes ownership of raw; raw NULL means that reading
 * it failed and *e is set already.  path: for messages.  Returns 0; -1 with *e. */
int source_normalize(struct source *s, json_t *raw, const char *path, struct err *e);
int source_open_folder(struct source *s, struct err *e);
/* lora_merge.c: add changes to rows [row, row + n) of a tensor of `cols` columns; any thread. */
void low_rank_add(const struct low_rank *d, int64_t row, int64_t n, int64_t cols, float *out);
void merged_free(struct source_inner *in);

#endif
