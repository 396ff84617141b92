/* file.h - map a file; write a file that appears whole or not at all. */
#ifndef ZSE_BASE_FILE_H
#define ZSE_BASE_FILE_H

#include <stddef.h>
#include <signal.h>
#include <stdint.h>
#include <sys/types.h>

#include "libcommon/base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A whole regular file, mapped read-only and shared.  data is never NULL after map_open; an empty
 * file has size 0.  The mapping dies at map_close; the descriptor is kept for reads that do not go
 * through the mapping. */
struct map {
    const uint8_t *data;
    size_t size;
    int fd;
    char *path;             /* owned */
    uint64_t dev, ino;      /* identity of the file, to refuse a target that is the source */
    int64_t changed_ns;     /* st_mtim */
    /* set by the SIGBUS handler when it replaced an unreadable page by zeros */
    volatile sig_atomic_t lost;
};
int map_open(struct map *m, const char *path, struct err *e);
void map_close(struct map *m);
#define MAP_LOST "cannot be read any more: it was cut while it was in use, or its disk fails"
/* 0 if the file has not changed since map_open(); -1 with *e if pages of the mapping were lost or
 * the file was written to.  Renaming or removing the file does not count as a change. */
int map_check(const struct map *m, struct err *e);
/* Like map_check(), but a changed modification time is accepted: *written_ns is set to the present
 * one.  -1 with *e if pages were lost or the size has changed. */
int map_whole(const struct map *m, int64_t *written_ns, struct err *e);
#define MAP_CHANGED "was written to while it was in use; it can be replaced by another file, but not changed"

/* Hooks of the SIGBUS handler for lost pages: add() is called before any page of a mapping is read,
 * remove() before the mapping is unmapped.  add NULL: there is no handler. */
struct map_guard { void (*add)(struct map *), (*remove)(struct map *); };

/* Read a whole small text file and append '\0' (not counted).  Refuses more than max bytes.  Caller
 * frees. */
char *file_read(const char *path, size_t max, size_t *size, struct err *e);

/* Give a file that root has created at path (fd, opened with O_EXCL) to the owner of its folder, so
 * that a server that runs as that user can write to it. */
void file_give(int fd, const char *path);
/* open() with these flags and O_CLOEXEC | O_NOFOLLOW.  A missing file is created with mode 0600 and
 * passed to file_give(); an existing file keeps its owner. */
int file_open_made(const char *path, int flags);

/* 0 if a private file at `path` with status st in `folder` is safe from other users: its mode has
 * no bits for them, it belongs to this user, to root or to the owner of folder, and only that owner
 * can write to folder.  -1 with *e that names the reason. */
struct stat;
int file_is_ours(const char *path, const struct stat *st, const char *folder, struct err *e);

/* A new file that is invisible under its final name until atomic_commit: written as
 * DIR/.NAME.zse-XXXXXX, then fsync, rename, fsync of DIR.  atomic_abort (or a crash) leaves the old
 * file untouched.  Abort removes the temporary; temporaries of crashed writers are removed by the
 * next atomic_open of the same name (a running writer holds a lock on its own).  atomic_open fails
 * if the target is not a regular file or its folder is not writable. */
struct atomic_file {
    int fd;
    char *path, *temp;      /* owned */
    uint64_t offset;        /* bytes appended so far */
};
int atomic_open(struct atomic_file *f, const char *path, struct err *e);
int atomic_write(struct atomic_file *f, const void *data, size_t n, struct err *e);                 /* at offset */
int atomic_pwrite(struct atomic_file *f, const void *data, size_t n, uint64_t at, struct err *e);   /* offset stays */
int atomic_commit(struct atomic_file *f, struct err *e);
void atomic_abort(struct atomic_file *f);                   /* no effect after commit or abort */

/* Parking keeps the file of a writer that may be interrupted and resumed: the data is synced, and
 * the temporary is renamed to DIR/.NAME.zse-partial, which no atomic_open() removes.  Returns 0; 1
 * if it cannot be parked (another writer has parked one, the file system has no links), and *f goes
 * on as before; -1 on errors.  Parking a parked file only syncs it. */
int atomic_park(struct atomic_file *f, struct err *e);
/* Resume the parked file of path, with offset 0 and our lock on it: 1; 0: there is none; 2: a
 * running writer has it; -1 with *e. */
int atomic_unpark(struct atomic_file *f, const char *path, struct err *e);
void atomic_leave(struct atomic_file *f);                   /* atomic_abort, but a parked file stays */
char *atomic_parked_name(const char *path);                 /* malloc'd; NULL: out of memory */

#ifdef __cplusplus
}
#endif
#endif
