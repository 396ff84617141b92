/* source.h - every kind of input seen as one: named tensors, one spelling of config.json, small
 * files.
 *
 * Told apart by content: a folder with config.json and safetensors (single, sharded with or
 * without an index), a GGUF file (v2, v3), a bare config.json, a folder with only a tokenizer.
 * Files are mapped; tensors are decoded row by row on request. */
#ifndef ZSE_IMPORT_SOURCE_H
#define ZSE_IMPORT_SOURCE_H

#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "libcommon/base/err.h"
#include "libcommon/base/file.h"

enum source_kind { SOURCE_NONE, SOURCE_ZSE, SOURCE_GGUF, SOURCE_FOLDER, SOURCE_CONFIG, SOURCE_TOKENIZER };

struct packed;

struct source_tensor {
    const char *name;               /* borrowed from the source */
    int type;                       /* enum ggml_type, including the SRC_ numbers */
    int n_dims;
    int64_t dim[4];                 /* outermost first */
    const uint8_t *data;            /* NULL: its file is still to come, see source_wait */
    size_t size;
    int shard;                      /* index into the files, for messages */
    uint64_t offset;                /* of data in its file */
    struct packed *packed;          /* packed.h: a matrix of a quantized checkpoint, data and size are those of its codes; NULL: a plain tensor */
};

struct source_file {                /* small originals to keep, byte for byte */
    const char *name;               /* "tokenizer.json" */
    const void *data;
    size_t size;
};

struct gguf;                        /* gguf.h: metadata of a GGUF file */

struct source {
    enum source_kind kind;
    char *path;
    json_t *config;                 /* HF form in one spelling (see hf_config_normalize); for a GGUF translated from its keys; NULL if there is none */
    json_t *generation_config;      /* NULL: none */
    json_t *quantization;           /* quantization_config, taken out of config once it is understood; NULL: not quantized */
    int n_tensors;
    struct source_tensor *tensors;  /* in file order */
    int n_files;
    struct source_file *files;
    struct gguf *gguf;              /* kind GGUF */
    void *private_;
};

/* Safetensors of a folder that are still on their way: what they hold is known by their heads,
 * their data is read when they have come. */
struct source_shard {
    const char *name;
    uint64_t size;                  /* of the whole file */
    const uint8_t *head;            /* its first bytes, all of its header; NULL: the file lies in the folder already */
    size_t head_size;
};
struct source_arriving {
    int n;
    const struct source_shard *shards;
    int (*wait)(void *user, int shard, struct err *e);      /* until it lies in the folder, whole: 0; -1: it never will */
    void *user;
};
struct source_options {             /* both may be NULL; borrowed until source_close */
    const struct source_arriving *arriving;
    const struct map_guard *guard;  /* told of every file that is mapped: source_check() then says when one was lost */
};

/* What is at path, by content. SOURCE_NONE with *e set when nothing fits. */
enum source_kind source_detect(const char *path, struct err *e);
/* GGUF, FOLDER, CONFIG, TOKENIZER (a .zse is zfile_open's). Checks names (no duplicates), sizes,
 * overlaps, missing shards. */
struct source *source_open(const char *path, struct err *e);
struct source *source_open_with(const char *path, const struct source_options *o, struct err *e);
void source_close(struct source *s);
const struct source_tensor *source_find(const struct source *s, const char *name);      /* NULL: none */
const struct source_file *source_file(const struct source *s, const char *name);        /* NULL: none */

/* Before data of t (NULL: of any tensor) is read: until its file has come.  Not from two threads
 * at once. */
int source_wait(const struct source *s, const struct source_tensor *t, struct err *e);
/* After data of t (NULL: of all files) was read: -1 if the file was cut or written to meanwhile. */
int source_check(const struct source *s, const struct source_tensor *t, struct err *e);

/* Rows [row, row + n) of a tensor seen as [rows, cols] (1-D: one row; more dims: outer ones
 * joined) as f32. out [n * cols].  Fails on NaN/Inf only if check_finite, naming tensor, row,
 * column. */
int source_read(const struct source *s, const struct source_tensor *t, int64_t row, int64_t n, float *out,
                int check_finite, struct err *e);
/* Tell the kernel that these bytes are not needed again (keeps memory small while converting). */
void source_drop(const struct source *s, const struct source_tensor *t);
/* Bytes in the source, with scales that lie elsewhere. */
size_t source_bytes(const struct source_tensor *t);

/* A hash of the source's content (names, sizes, types and sampled bytes; whole small files): key
 * of the cache of automatic conversions. hex [33].  Waits for all files that are on their way. */
int source_key(const struct source *s, char hex[33], struct err *e);
/* A hash of the sizes of the source's files and of when they were written: notices a change
 * between the samples of source_key. */
uint64_t source_stamp(const struct source *s);

#endif
