/* gguf.h - GGUF v2 and v3: metadata and tensor index.
 * https://github.com/ggml-org/ggml/blob/master/docs/gguf.md */
#ifndef ZSE_IMPORT_GGUF_H
#define ZSE_IMPORT_GGUF_H

#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"
#include "libcommon/base/file.h"
#include "libcommon/import/source.h"

enum gguf_vtype {
    GGUF_U8, GGUF_I8, GGUF_U16, GGUF_I16, GGUF_U32, GGUF_I32, GGUF_F32, GGUF_BOOL, GGUF_STR, GGUF_ARR, GGUF_U64,
        GGUF_I64, GGUF_F64,
};

struct gguf_str { const char *s; size_t n; };       /* borrowed from the mapping, not terminated */

struct gguf_kv {
    const char *key;                    /* terminated copy, owned by the gguf */
    enum gguf_vtype type, elem;         /* elem: of an array */
    uint64_t n;                         /* elements of an array, else 1 */
    const uint8_t *data;                /* packed as in the file (strings: u64 length + bytes each) */
    struct gguf_str *str;               /* the strings (single or array); else NULL */
    uint64_t offset;
};

struct gguf {
    uint32_t version;
    uint64_t alignment, data_offset;
    int n_kv;
    struct gguf_kv *kv;
    const struct gguf_kv **by_key;      /* the same, sorted */
    int n_tensors;
    struct source_tensor *tensors;
    struct map map;
    /* the other files of a model in several files, whose tensors are listed here; owned */
    struct gguf **parts; int n_parts;
};

/* Opens all N files of NAME-00001-of-0000N.gguf. */
struct gguf *gguf_open(const char *path, struct err *e);
void gguf_close(struct gguf *g);
const struct gguf_kv *gguf_find(const struct gguf *g, const char *key);             /* NULL: none */
/* Returns the value of a scalar, converted from any integer or float type; `otherwise` if the key
 * is absent or its value is no number. */
int64_t gguf_int(const struct gguf *g, const char *key, int64_t otherwise);
/* NULL: absent or not a string.  The string is not terminated. */
const struct gguf_str *gguf_str(const struct gguf *g, const char *key);
int64_t gguf_array_int(const struct gguf_kv *kv, uint64_t i);
double gguf_array_float(const struct gguf_kv *kv, uint64_t i);

/* Returns the model's hyper-parameters as a config.json ("llama.block_count" becomes
 * num_hidden_layers, and so on), with Hugging Face's model_type: a new reference, or NULL with
 * *e. */
json_t *gguf_config(const struct gguf *g, struct err *e);

#endif
