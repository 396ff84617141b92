/* source.h - a common view of all kinds of input: named tensors, a config.json in one spelling,
 * small files.
 *
 * The kind is detected by content: a folder with config.json and safetensors (single, sharded with
 * or without an index), a GGUF file (v2, v3), a bare config.json, a folder with only a tokenizer.
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
struct low_rank;

enum { SOURCE_DIMS = 5 };             /* most dimensions; the encoders of videos have 5 */

struct source_tensor {
    const char *name;               /* borrowed from the source */
    int type;                       /* enum ggml_type, including the SRC_ numbers */
    int n_dims;
    int64_t dim[SOURCE_DIMS];       /* outermost first */
    const uint8_t *data;            /* NULL: its file is being downloaded, see source_wait */
    size_t size;
    /* index into the files; -1 - i: of the i-th adapter of source_merge_lora() */
    int shard;
    uint64_t offset;                /* offset of the data in its file */
    /* a matrix of a quantized checkpoint, whose codes are data and size (packed.h); NULL: a plain
     * tensor */
    struct packed *packed;
    /* several tensors seen as one, see source_find: data is NULL, size that of all; borrowed */
    const struct source_tensor *const *parts;
    int n_parts;
    const struct low_rank *delta;   /* added to the values of parts[0] (lora_merge.h); NULL: none */
};

struct source_file {                /* small original files to keep, byte for byte */
    const char *name;               /* "tokenizer.json" */
    const void *data;
    size_t size;
};

struct gguf;                        /* gguf.h: metadata of a GGUF file */

struct source {
    enum source_kind kind;
    char *path;
    /* Hugging Face's config in one spelling (hf_config_normalize); translated from the keys of a
     * GGUF; NULL: none */
    json_t *config;
    json_t *generation_config;      /* NULL: none */
    /* quantization_config, removed from config once understood; NULL: not quantized */
    json_t *quantization;
    int n_tensors;
    struct source_tensor *tensors;  /* in file order */
    int n_files;
    struct source_file *files;
    struct gguf *gguf;              /* kind GGUF */
    void *private_;
};

/* Files of safetensors in a folder that are still being downloaded: their tensors are known from
 * their heads, and their data is read once they have arrived. */
struct source_shard {
    const char *name;
    uint64_t size;                  /* size of the whole file */
    /* the first bytes, including all of the header; NULL: the file is already in the folder */
    const uint8_t *head;
    size_t head_size;
};
struct source_arriving {
    int n;
    const struct source_shard *shards;
    /* wait until it is complete in the folder: 0; -1: it failed */
    int (*wait)(void *user, int shard, struct err *e);
    void *user;
};
struct source_options {             /* both may be NULL; borrowed until source_close */
    const struct source_arriving *arriving;
    /* notified of every file that is mapped, so that source_check() reports lost pages */
    const struct map_guard *guard;
};

/* Detect the kind of path by its content.  SOURCE_NONE with *e: none fits. */
enum source_kind source_detect(const char *path, struct err *e);
/* Open a source of kind GGUF, FOLDER, CONFIG or TOKENIZER (zfile_open() opens .zse files). Returns
 * NULL with *e.  Duplicate names, wrong sizes, overlaps and missing shards are errors. */
struct source *source_open(const char *path, struct err *e);
struct source *source_open_with(const char *path, const struct source_options *o, struct err *e);
void source_close(struct source *s);
/* Returns the tensor of this name; NULL if there is none.  A name with braces,
 * "x.{q,k,v}_proj.weight" or "x.{0..3}", joins the rows of several tensors; the first look-up of
 * such a name is not thread-safe. */
const struct source_tensor *source_find(const struct source *s, const char *name);
/* Write the name of part i of a name with braces to out.  Returns 1; 0 if there is no part i or the
 * name has no braces. */
int source_part_name(const char *name, int i, char *out, size_t room);
const struct source_file *source_file(const struct source *s, const char *name);        /* NULL: none */

/* Wait until the file of t has been downloaded (t NULL: until all files have been).  Call it before
 * reading data, and not from two threads at once.  Returns 0; -1 with *e. */
int source_wait(const struct source *s, const struct source_tensor *t, struct err *e);
/* Check a file after data of t was read from it (t NULL: all files).  Returns 0; -1 with *e if it
 * was truncated or written to meanwhile. */
int source_check(const struct source *s, const struct source_tensor *t, struct err *e);

/* Decode rows [row, row + n) of a tensor, seen as [rows, cols] (1-D: one row; more dimensions: the
 * outer ones joined), to f32, out [n * cols].  Fails on NaN and infinity only if check_finite,
 * naming tensor, row and column. */
int source_read(const struct source *s, const struct source_tensor *t, int64_t row, int64_t n, float *out,
                int check_finite, struct err *e);
/* Tell the kernel that the data is not needed again, which keeps memory small during conversion. */
void source_drop(const struct source *s, const struct source_tensor *t);
/* Bytes of the tensor in the source, including separate scales. */
size_t source_bytes(const struct source_tensor *t);

/* Compute a hash of the source's contents: names, sizes, types, and sampled bytes of the tensors;
 * small files completely.  It is the cache key of automatic conversions.  hex [33] receives it.
 * Waits for all downloads.  Returns 0; -1 with *e. */
int source_key(const struct source *s, char hex[33], struct err *e);
/* Returns a hash of the sizes and modification times of the source's files.  It detects changes of
 * bytes that source_key() does not sample. */
uint64_t source_stamp(const struct source *s);

#endif
