/* zfile.h - read and write .zse model files.  The bytes: FORMAT.md.  This module alone knows them.
 *
 * A reader maps the file read-only; every pointer it hands out is borrowed from the mapping and
 * dies at zfile_close.  zfile_open checks every offset, size, type and name before it returns,
 * so nothing after it can fail. */
#ifndef ZSE_FORMAT_ZFILE_H
#define ZSE_FORMAT_ZFILE_H

#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "libcommon/base/err.h"
#include "libcommon/quant/tile.h"

/* How the rows of a tensor came from a tensor of the source (so that it can be given back under
 * its name and in its order): row i of ours is row  offset + (i / run) * stride + i % run  of
 * the source; then, if pairs > 0, within every head of `pairs` rows source row 2*j + h is our
 * row j + h * pairs/2 (llama-style GGUF files interleave the halves of q and k).  transposed:
 * the source stores [in, out] (GPT-2's Conv1D); source rows and columns change places in the
 * above.  Where it holds several such matrices one below the other (experts), our columns are
 * the source's rows from `first` on; with slice > 0 every `slice` rows of ours begin again with
 * the first column, `slice_stride` rows further down (heads). */
struct row_map {
    int64_t offset, run, stride;        /* run 0: identity */
    int pairs;
    int transposed;
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

/* transposed: the source's row of our row i's column 0. */
static inline int64_t row_map_first(const struct row_map *m, int64_t i)
{
    return m->first + (m->slice ? i / m->slice * m->slice_stride : 0);
}

struct zfile_tensor {
    const char *name;                   /* ours: "layers.3.q_proj.weight" */
    const char *source_name;            /* in the source: "model.layers.3.self_attn.q_proj.weight" */
    const char *source_type;            /* "GPTQ", "Q4_0": the number format there, if it was a quantized one; else NULL */
    int grid_kept;                      /* codes and scales are the source's own, nothing was rounded */
    struct row_map map;
    int n_dims;                         /* of our tensor: 1 or 2 */
    int64_t dim[2];                     /* outermost first */
    int64_t source_rows, source_cols;   /* shape of the source tensor seen as a matrix (before transposing) */
    int tiled;                          /* 1: m is a matrix in kernel order; 0: plain row-major f32, f16 or bf16 (m.type) */
    struct mat m;                       /* m.data is set; for plain tensors rows, cols, type, size, data only */
    int page;                           /* for the writer: begins a page whatever its size (an expert) */
    int group;                          /* index into groups */
    uint64_t offset;                    /* in the file */
};

/* Tensors that belong together, contiguous in the file: "embed", "layer" 0.., "head". */
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
/* The same with two additions.  If the weights have at most `most` bytes, a thread prefaults their
 * pages in the order of the file while the caller goes on.  guard, for a handler of lost pages:
 * add() is called before any page of the mapping is read, remove() before it is unmapped; either
 * may be NULL.  Fails if pages were lost meanwhile. */
struct zfile *zfile_open_guarded(const char *path, uint64_t most, const struct map_guard *guard, struct err *e);
void zfile_close(struct zfile *z);                              /* NULL is fine */
int zfile_is(const void *head, size_t size);                    /* do these first bytes look like a .zse? */

const char *zfile_path(const struct zfile *z);
size_t zfile_size(const struct zfile *z);
const void *zfile_data(const struct zfile *z);                  /* the whole mapping */
/* Is the file still what was opened?  0: nobody wrote to it; -1: it is not, or pages were lost;
 * 1 and *e: its time of writing is another one: somebody wrote to it or only touched it, and
 * zfile_compare() says which.  Any thread. */
int zfile_check(const struct zfile *z, struct err *e);
/* Read all of it and compare it with the checksums of when it was opened: 0, and zfile_check()
 * is content with its time of writing; -1: it was changed. */
int zfile_compare(struct zfile *z, struct err *e);
struct map *zfile_map(struct zfile *z);                         /* borrowed: for map_check(), and for who handles pages that are lost */
/* Read n bytes of the mapping at `from` into out without mapping their pages. 0, or -1 if the
 * file does not give them. */
int zfile_pread(const struct zfile *z, const void *from, size_t n, void *out);
/* A descriptor of the file that reads past the page cache (O_DIRECT), which the caller closes;
 * -1 where the file system has none. */
int zfile_direct(const struct zfile *z);
/* The same as zfile_pread for whole pages (from and out begin one; what lies behind the end of
 * the file is left alone): out of the page cache if all of them are there (the system says so to
 * the file's owner and who may write to it), else past it through `direct` (-1: plainly). */
int zfile_pread_direct(const struct zfile *z, int direct, const void *from, size_t n, void *out);
void zfile_version(const struct zfile *z, int *major, int *minor, int *patch);
int zfile_n_tensors(const struct zfile *z);
const struct zfile_tensor *zfile_tensor(const struct zfile *z, int i);
const struct zfile_tensor *zfile_find(const struct zfile *z, const char *name);         /* NULL: none */
int zfile_n_groups(const struct zfile *z);
const struct zfile_group *zfile_group(const struct zfile *z, int i);

/* The JSON section: "architecture", "config" (config.json in one spelling, what
 * model_config_parse reads), "generation_config", "quantization", "provenance", "license",
 * "chat_template" (text) and "chat_templates" (named), "quality". Borrowed. */
const json_t *zfile_json(const struct zfile *z);
const void *zfile_tokenizer(const struct zfile *z, size_t *size);                       /* TOKB block; NULL: none */

/* Originals (tokenizer.json, config.json ...), kept byte for byte, zlib in the file. */
int zfile_n_originals(const struct zfile *z);
const char *zfile_original_name(const struct zfile *z, int i, size_t *size);            /* unpacked size */
int zfile_original_read(const struct zfile *z, int i, void *out, struct err *e);        /* out [size]; checks the checksum */

/* Read every byte and compare all checksums; the error names section or group and offset. */
int zfile_verify(const struct zfile *z, struct err *e);
/* The same in pieces: units before *at (0 to begin with) are passed over, those done are counted
 * there; no unit is begun once *stop (NULL: never).  1: all are done; 0: stopped; -1: damage. */
int zfile_verify_from(const struct zfile *z, int *at, const _Atomic int *stop, struct err *e);
/* From now on zfile_check() fails with *e.  Once, from any thread. */
void zfile_set_damage(struct zfile *z, const struct err *e);
/* Has the thread of zfile_open_guarded prefaulted all weights? */
int zfile_is_populated(const struct zfile *z);

/* ---- writing: constant memory, data in order, appears whole or not at all ---- */
struct zwriter;
struct zwriter *zwriter_open(const char *path, struct err *e);
int zwriter_group(struct zwriter *w, const char *kind, int layer, struct err *e);      /* begins a group (4 KiB aligned) */
/* Begins a tensor: t->m gives type and shape (mat_init done, or plain), offset and group are
 * filled in by the writer.  Then exactly t->m.size bytes by zwriter_data, in any number of
 * pieces. */
int zwriter_tensor(struct zwriter *w, const struct zfile_tensor *t, struct err *e);
int zwriter_data(struct zwriter *w, const void *data, size_t n, struct err *e);
int zwriter_tokenizer(struct zwriter *w, const void *blob, size_t n, struct err *e);
int zwriter_original(struct zwriter *w, const char *name, const void *data, size_t n, struct err *e);
/* json: the keys above; tensors and groups are added by the writer.  Borrowed. */
int zwriter_commit(struct zwriter *w, const json_t *json, struct err *e);       /* closes w in any case */
void zwriter_abort(struct zwriter *w);                                          /* NULL is fine */

/* Writing that survives an interruption.  zwriter_park() ends the group and puts all of it on
 * the disk under a name that stays (atomic_park's results: 0, 1 cannot be, -1).
 * zwriter_resume() takes that file up again: 1 and *w, 0 there is none, 2 a living writer has
 * it, -1.  The same groups and tensors are then begun once more, with zwriter_skip() in the
 * place of zwriter_data(), until zwriter_replayed(): zwriter_groups() now has the checksums of
 * what the file holds, for the caller to compare with those it had, and what lies behind is cut
 * off. */
int zwriter_park(struct zwriter *w, struct err *e);
int zwriter_resume(struct zwriter **w, const char *path, struct err *e);
int zwriter_skip(struct zwriter *w, uint64_t n, struct err *e);
int zwriter_replayed(struct zwriter *w, struct err *e);
const json_t *zwriter_groups(const struct zwriter *w);     /* kind, layer, offset, size, crc of those that ended; borrowed */
void zwriter_leave(struct zwriter *w);                      /* as zwriter_abort, but a parked file stays */

#endif
