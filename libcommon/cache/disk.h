/* disk.h - prefixes on disk: keys and values of runs of 64 tokens, and states of recurrent layers,
 * in a folder that outlives the process and that several processes may share.
 *
 * A run is 4 KV blocks in one file of 1 to 2 MB for models of 1B parameters: smaller runs cost more
 * files than bytes, larger ones more tokens that are computed again.  Runs form a chain: the key
 * of a run is a hash of the key of the run before it and of its tokens; the first key is one of all
 * that keys and values depend on (the model's contents, their type, kernels, engine version) and of
 * a scope.  A sequence's last, partial run is its tail: one for each parent, the latest.
 *
 * Hashes are two of SipHash-2-4, under keys that are made at random with the folder and stay in it:
 * nothing that a client sends can be chosen to collide, and no library is needed, which would delay
 * the start of each program.
 *
 * A file is accepted only if the model, the parent, the token ids and a hash of all of it are what
 * is expected; a damaged file is removed and its tokens are computed again.  Files are written
 * under a temporary name, by a thread, and renamed; nothing is synced, because the checksum
 * finds what a crash left.  Beyond the size limit the files used least recently are removed,
 * whichever process wrote them. */
#ifndef ZSE_CACHE_DISK_H
#define ZSE_CACHE_DISK_H

#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"
#include "libcommon/quant/kvtype.h"

enum { DISK_RUN = 4 * KV_BLOCK };       /* tokens */

struct disk_options {
    const char *folder;                 /* made if it is missing, not its parents */
    uint64_t max_bytes;
    const void *model; size_t n_model;  /* all that keys, values and states depend on; borrowed for the call */
    /* of a KV block; of its window block, 0: there are none; of a state, 0: there are none */
    size_t block_bytes, window_bytes, state_bytes;
    /* called by the thread when writing begins to fail; NULL: not wanted */
    void (*note)(void *user, const char *text);
    void *user;
};
struct disk;
/* Fails if the folder cannot be read, or could be written by other users.  A folder that cannot
 * be written to is only read. */
struct disk *disk_open(const struct disk_options *o, struct err *e);
void disk_close(struct disk *d);        /* writes what is queued; NULL is fine */

struct disk_key { uint64_t h[2]; };
/* before the first token; behind a run */
void disk_first(const struct disk *d, uint64_t scope, int variant, struct disk_key *k);
void disk_next(const struct disk *d, struct disk_key *k, const int32_t ids[DISK_RUN]);

/* Contents of a file: a run behind key, the tail behind it, or the state at key. */
enum disk_kind { DISK_IS_RUN, DISK_IS_TAIL, DISK_IS_STATE };
int disk_has(const struct disk *d, enum disk_kind kind, const struct disk_key *k, const int32_t *ids);

/* Reading.  The data lies in a buffer until the next call: the blocks of the run, their window
 * blocks (NULL: it has none), then (of a tail) the state. */
struct disk_data { int n_tokens; int32_t ids[DISK_RUN]; const uint8_t *blocks, *windows, *state; };
/* 1: found; 0: there is none, or it was damaged and is removed.  ids: of a run, DISK_RUN tokens. */
int disk_read(struct disk *d, enum disk_kind kind, const struct disk_key *k, const int32_t *ids,
              struct disk_data *data);

/* Writing: the caller fills the blocks and the state of what disk_begin returned, then the thread
 * writes it.  NULL: the queue is full, there is no memory, or the folder is only read. */
struct disk_write;
struct disk_write *disk_begin(struct disk *d, enum disk_kind kind, const struct disk_key *k, const int32_t *ids,
                              int n_tokens);
uint8_t *disk_block(struct disk_write *w, int i);
uint8_t *disk_window(struct disk_write *w, int i);
/* A run is written without window blocks: then what continues it cannot begin there. */
void disk_no_windows(struct disk_write *w);
uint8_t *disk_state(struct disk_write *w);
void disk_commit(struct disk *d, struct disk_write *w);
void disk_drop(struct disk_write *w);           /* instead of disk_commit */

struct disk_stats {
    uint64_t read, written, damaged, failed;    /* files since disk_open; failed: that could not be written */
    size_t bytes;                               /* memory: buffer and queue */
};
void disk_stats(struct disk *d, struct disk_stats *s);

#endif
