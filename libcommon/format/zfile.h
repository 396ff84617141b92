/* zfile.h - read and write .zse model files.  FORMAT.md describes the bytes; no other module knows
 * them.
 *
 * A reader maps the file read-only; every pointer it hands out is borrowed from the mapping and
 * dies at zfile_close.  zfile_open checks every offset, size, type and name before it returns, so
 * no later call can fail. */
#ifndef ZSE_FORMAT_ZFILE_H
#define ZSE_FORMAT_ZFILE_H

#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "libcommon/base/err.h"
#include "libcommon/quant/tile.h"

/* How our tensor was made from a tensor of the source checkpoint, so that it can be exported again
 * under its original name and in its original order.
 *   rows         our row i is the source's row  offset + i / run * stride + i % run
 *   pairs > 0    i is replaced before that: row j + h * pairs/2 of a head of `pairs` rows by row
 *                2*j + h of the same head (llama-style GGUF files interleave the halves of q and k)
 *   transposed   the source stores [in, out] (GPT-2's Conv1D): the row computed above is the
 *                source's column, and our column k is the source's row first + k (first > 0: it
 *                holds several matrices, one below the other, as for experts)
 *   slice > 0    transposed only: our rows are blocks of `slice` rows (heads); in block n, i is
 *                counted from the beginning of the block, and `first` is n * slice_stride larger */
struct row_map {
    int64_t offset, run, stride;        /* run 0: identity */
    int pairs;
    int transposed;
    int minus_log;                      /* transposed: the source has -exp of our values */
    int64_t first, slice, slice_stride;
};

/* The source's row of our row i (transposed: its column). */
static inline int64_t row_map_source(const struct row_map *m, int64_t i)
{
    if (m->slice)
        i %= m->slice;
    if (m->pairs) {
        int64_t half = m->pairs / 2, r = i % m->pairs;
        i += 2 * (r % half) + r / half - r;
    }
    return m->run ? m->offset + i / m->run * m->stride + i % m->run : i;
}

/* transposed: the source's row of column 0 of our row i. */
static inline int64_t row_map_first(const struct row_map *m, int64_t i)
{
    return m->first + (m->slice ? i / m->slice * m->slice_stride : 0);
}

struct zfile_tensor {
    const char *name;                   /* ours: "layers.3.q_proj.weight" */
    const char *source_name;            /* name in the source: "model.layers.3.self_attn.q_proj.weight" */
    const char *source_type;            /* "GPTQ", "Q4_0": the source's number format if it is quantized; else NULL */
    int grid_kept;                      /* codes and scales are those of the source, without rounding */
    struct row_map map;
    int n_dims;                         /* dimensions of our tensor: 1 or 2 */
    int64_t dim[2];                     /* outermost first */
    int64_t source_rows, source_cols;   /* shape of the source tensor as a matrix, before transposing */
    int tiled;                          /* 1: m is in kernel order; 0: plain row-major f32, f16 or bf16 (m.type) */
    struct mat m;                       /* m.data is set; for plain tensors only rows, cols, type,
                                         * size and data are set */
    int page;                           /* for the writer: begin at a page whatever its size (an expert) */
    int group;                          /* index into groups */
    uint64_t offset;                    /* offset of the data in the file */
};

/* Tensors that are contiguous in the file: "embed", "layer" 0.., "head", "mtp". */
struct zfile_group {
    const char *kind;
    int layer;                          /* -1 unless kind is "layer" */
    uint64_t offset, size;
    uint32_t crc;                       /* CRC-32 of the bytes */
};

struct zfile;
struct map;
struct map_guard;
struct zfile *zfile_open(const char *path, struct err *e);
/* Like zfile_open(), with two additions.
 *
 * If the weights have at most `most` bytes, a thread prefaults their pages in the order of the file
 * while the caller continues.
 *
 * guard (may be NULL) has the hooks of a handler for lost pages, see struct map_guard.  Fails if
 * pages were lost while the file was opened. */
struct zfile *zfile_open_guarded(const char *path, uint64_t most, const struct map_guard *guard, struct err *e);
void zfile_close(struct zfile *z);                              /* NULL is fine */
int zfile_is(const void *head, size_t size);                    /* do these first bytes look like a .zse file? */

const char *zfile_path(const struct zfile *z);
size_t zfile_size(const struct zfile *z);
const void *zfile_data(const struct zfile *z);                  /* the whole mapping */
/* Check that the file is the one that was opened.  Returns 0 if it is unchanged; -1 with *e if it
 * was changed or pages were lost; 1 with *e if only its modification time has changed; then call
 * zfile_compare() to compare the contents.  Any thread. */
int zfile_check(const struct zfile *z, struct err *e);
/* Read the whole file and compare it with the checksums read at opening.  Returns 0 if it is
 * unchanged, and zfile_check() then accepts its present modification time; -1 with *e if it was
 * changed. */
int zfile_compare(struct zfile *z, struct err *e);
struct map *zfile_map(struct zfile *z);     /* borrowed: for map_check() and for a handler of lost pages */
/* Read n bytes of the mapping at `from` into out without faulting in pages of the mapping.  Returns
 * 0; -1 if the file cannot be read there. */
int zfile_pread(const struct zfile *z, const void *from, size_t n, void *out);
/* Returns a descriptor that reads the file past the page cache (O_DIRECT), which the caller closes;
 * -1 if the file system does not support that. */
int zfile_direct(const struct zfile *z);
/* Like zfile_pread(), for whole pages of the file (ZSE_PAGE), to which `from` and out are aligned;
 * bytes of out after the end of the file are left alone.  Reads from the page cache if all pages
 * are in it, otherwise past it through the descriptor `direct` (-1: by an ordinary read).  The
 * system tells only the file's owner, and users who may write it, whether pages are in the
 * cache. */
int zfile_pread_direct(const struct zfile *z, int direct, const void *from, size_t n, void *out);
void zfile_version(const struct zfile *z, int *major, int *minor, int *patch);
int zfile_n_tensors(const struct zfile *z);
const struct zfile_tensor *zfile_tensor(const struct zfile *z, int i);
const struct zfile_tensor *zfile_find(const struct zfile *z, const char *name);         /* NULL: none */
int zfile_n_groups(const struct zfile *z);
const struct zfile_group *zfile_group(const struct zfile *z, int i);

/* The JSON section: "architecture", "config" (config.json in the spelling that config_parse()
 * reads), "generation_config", "quantization", "provenance", "license", "chat_template" (text),
 * "chat_templates" (named), "quality".  Borrowed. */
const json_t *zfile_json(const struct zfile *z);
/* Heads that predict further tokens, in a section of their own: MDSA, EAGL. */
enum heads_kind { HEADS_MEDUSA, HEADS_EAGLE, HEADS_KINDS };
const void *zfile_tokenizer(const struct zfile *z, size_t *size);                       /* section TOKB; NULL: none */
const void *zfile_heads(const struct zfile *z, enum heads_kind kind, size_t *size);    /* NULL: none */

/* Originals (tokenizer.json, config.json ...), kept byte for byte, compressed by zlib in the
 * file. */
int zfile_n_originals(const struct zfile *z);
const char *zfile_original_name(const struct zfile *z, int i, size_t *size);            /* uncompressed size */
/* out [size]; verifies the checksum */
int zfile_original_read(const struct zfile *z, int i, void *out, struct err *e);

/* Read every byte and compare all checksums; the error names section or group and offset. */
int zfile_verify(const struct zfile *z, struct err *e);
/* Like zfile_verify(), in pieces.  Units before *at (initially 0) are skipped; *at counts the units
 * done.  No further unit is started once *stop is set (stop may be NULL).  Returns 1 if all units
 * are done, 0 if it was stopped, -1 with *e if there is damage. */
int zfile_verify_from(const struct zfile *z, int *at, const _Atomic int *stop, struct err *e);
/* Make zfile_check() fail with *e from now on.  To be called once, from any thread. */
void zfile_set_damage(struct zfile *z, const struct err *e);
/* Has the thread of zfile_open_guarded prefaulted all weights? */
int zfile_is_populated(const struct zfile *z);

/* ---- writing: constant memory, data in order, appears whole or not at all ---- */
struct zwriter;
struct zwriter *zwriter_open(const char *path, struct err *e);
/* begin a group, 4 KiB aligned */
int zwriter_group(struct zwriter *w, const char *kind, int layer, struct err *e);
/* Begin a tensor.  t->m has type and shape (by mat_init(), or of a plain type); the writer fills in
 * offset and group.  Then pass exactly t->m.size bytes to zwriter_data(), in any number of
 * pieces. */
int zwriter_tensor(struct zwriter *w, const struct zfile_tensor *t, struct err *e);
int zwriter_data(struct zwriter *w, const void *data, size_t n, struct err *e);
int zwriter_tokenizer(struct zwriter *w, const void *blob, size_t n, struct err *e);
/* Heads that predict further tokens; blob is borrowed until zwriter_commit() */
void zwriter_heads(struct zwriter *w, enum heads_kind kind, const void *blob, size_t n);
int zwriter_original(struct zwriter *w, const char *name, const void *data, size_t n, struct err *e);
/* json: the keys of zfile_json(); the writer adds tensors and groups.  Borrowed. */
int zwriter_commit(struct zwriter *w, const json_t *json, struct err *e);       /* closes w in any case */
void zwriter_abort(struct zwriter *w);                                          /* NULL is fine */

/* Writing that survives interruptions.
 *
 * zwriter_park() ends the group, syncs the file and gives it a lasting name.  Returns 0; 1 if the
 * file cannot be parked (atomic_park() says why), and writing goes on; -1 with *e.
 *
 * zwriter_resume() opens the parked file of `path`.  Returns 1 with *w; 0 if there is none; 2 if a
 * running writer has it; -1 with *e.
 *
 * After zwriter_resume() the caller repeats the groups and tensors that were written before, with
 * zwriter_skip() instead of zwriter_data().  Then it calls zwriter_replayed(), which cuts off the
 * rest of the file, and compares the checksums in zwriter_groups(), which are computed from the
 * file, with those noted earlier. */
int zwriter_park(struct zwriter *w, struct err *e);
int zwriter_resume(struct zwriter **w, const char *path, struct err *e);
int zwriter_skip(struct zwriter *w, uint64_t n, struct err *e);
int zwriter_replayed(struct zwriter *w, struct err *e);
/* kind, layer, offset, size, crc of the finished groups; borrowed */
const json_t *zwriter_groups(const struct zwriter *w);
void zwriter_leave(struct zwriter *w);                      /* zwriter_abort, but a parked file stays */

#endif
