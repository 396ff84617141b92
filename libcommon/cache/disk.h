/* disk.h - prefixes on disk: keys and values of runs of 64 tokens, and states of recurrent layers,
 * in a folder that outlives the process and that several processes may share.
 *
 * A run is 4 KV blocks in one file, 1 to 2 MB for models of 1B parameters: with smaller runs the
 * number of files would dominate, with larger ones more tokens would be recomputed.  Runs form a
 * chain: the key of a run is a hash of the previous run's key and of its tokens.  The first key
 * covers everything that keys and values depend on (the model's contents, their type, kernels,
 * engine version) and a scope.  The last, partial run of a sequence is its tail; only the latest is
 * kept for each parent.
 *
 * A key is a pair of SipHash-2-4 hashes under two random keys, which are made with the folder and
 * never leave it, so clients cannot choose tokens that collide.  SipHash needs no library, which
 * would delay the start of every program.
 *
 * Logits are not stored, so the last token of a prompt is computed even if all its keys and values
 * are found.  That is one step of one token, like those of the rest of the answer, while the
 * logits would be vocab_size floats for each prompt: with 152,000 tokens 0.6 MB, half a run.
 *
 * A file is accepted only if the model, the parent, the token ids and a hash of all of it match; a
 * damaged file is removed and its tokens are recomputed.  A thread writes files under a temporary
 * name and renames them.  Nothing is synced, because the checksum detects files that a crash cut
 * off.  Above the size limit the least recently used files are removed, including those of other
 * processes. */
#ifndef ZSE_CACHE_DISK_H
#define ZSE_CACHE_DISK_H

#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"
#include "libcommon/quant/kvtype.h"

enum { DISK_RUN = 4 * KV_BLOCK };       /* tokens */

struct disk_options {
    const char *folder;                 /* created if it is missing, but not its parents */
    uint64_t max_bytes;
    /* everything that keys, values and states depend on; borrowed for the call */
    const void *model; size_t n_model;
    /* sizes of a KV block; of its window block, 0: none; of a state, 0: none */
    size_t block_bytes, window_bytes, state_bytes;
    /* called by the thread when writing begins to fail; may be NULL */
    void (*note)(void *user, const char *text);
    void *user;
};
struct disk;
/* Fails if the folder cannot be read, or if other users could write to it.  A folder that cannot be
 * written to is used read-only. */
struct disk *disk_open(const struct disk_options *o, struct err *e);
void disk_close(struct disk *d);        /* waits until the queue is written; NULL is fine */

struct disk_key { uint64_t h[2]; };
/* disk_first: the key before the first token; disk_next: replace *k by the key after a run */
void disk_first(const struct disk *d, uint64_t scope, int variant, struct disk_key *k);
void disk_next(const struct disk *d, struct disk_key *k, const int32_t ids[DISK_RUN]);

/* The contents of a file: the run that follows the key, the tail that follows it, or the state at
 * the key. */
enum disk_kind { DISK_IS_RUN, DISK_IS_TAIL, DISK_IS_STATE };
int disk_has(const struct disk *d, enum disk_kind kind, const struct disk_key *k, const int32_t *ids);

/* Reading.  The data stays in a buffer until the next call: the blocks of the run, their window
 * blocks (NULL: none), then, for a tail, the state.  lacks: bit i is set if block i has no window
 * block. */
struct disk_data { int n_tokens; int32_t ids[DISK_RUN]; const uint8_t *blocks, *windows, *state; unsigned lacks; };
/* 1, and *data is set; 0: there is no such file, or it was damaged and has been removed.  ids: the
 * DISK_RUN tokens of a run. */
int disk_read(struct disk *d, enum disk_kind kind, const struct disk_key *k, const int32_t *ids,
              struct disk_data *data);

/* Writing: the caller fills in the blocks and the state of the returned disk_write, and after
 * disk_commit() the thread writes it.  NULL: the queue is full, memory is short, or the folder is
 * read-only. */
struct disk_write;
struct disk_write *disk_begin(struct disk *d, enum disk_kind kind, const struct disk_key *k, const int32_t *ids,
                              int n_tokens);
uint8_t *disk_block(struct disk_write *w, int i);
uint8_t *disk_window(struct disk_write *w, int i);
/* Write a run without the window block of its block i: no prefix that needs it can be continued. */
void disk_no_window(struct disk_write *w, int i);
uint8_t *disk_state(struct disk_write *w);
void disk_commit(struct disk *d, struct disk_write *w);
void disk_drop(struct disk_write *w);           /* discard it instead of disk_commit */

struct disk_stats {
    /* files since disk_open; failed: those that could not be written */
    uint64_t read, written, damaged, failed;
    size_t bytes;                               /* memory of the buffer and the queue */
};
void disk_stats(struct disk *d, struct disk_stats *s);

#endif
