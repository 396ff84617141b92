/* file.h - map a file, and write a file so that it appears whole or not at all. */
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

/* A whole regular file, mapped read-only and shared.  data is never NULL after map_open; an
 * empty file has size 0.  The mapping dies at map_close; the descriptor is kept for madvise-free
 * reads. */
struct map {
    const uint8_t *data;
    size_t size;
    int fd;
    char *path;             /* owned */
    uint64_t dev, ino;      /* identity of the file, to refuse a target that is the source */
    int64_t changed_ns;     /* st_mtim */
    volatile sig_atomic_t lost;         /* for a handler of SIGBUS to set, when it put zeros where the file gave nothing */
};
int map_open(struct map *m, const char *path, struct err *e);
void map_close(struct map *m);
#define MAP_LOST "cannot be read any more: it was cut while it was in use, or its disk fails"
/* Is the mapping still what was opened?  -1: pages were lost, or somebody wrote to the file.
 * (One that was renamed or removed stays what it was.) */
int map_check(const struct map *m, struct err *e);
/* The same, where a later time of writing is no reason: 0 and that time. */
int map_whole(const struct map *m, int64_t *written_ns, struct err *e);
#define MAP_CHANGED "was written to while it was in use; it can be replaced by another file, but not changed"

/* Who handles pages that are lost is told of a mapping before any page of it is read, and before
 * it goes away.  add NULL: nobody does. */
struct map_guard { void (*add)(struct map *), (*remove)(struct map *); };

/* Read a small text file whole, '\0' appended (not counted).  Refuses more than max bytes.
 * Caller frees. */
char *file_read(const char *path, size_t max, size_t *size, struct err *e);

/* What root makes at path (fd: with O_EXCL, so that it is nobody else's) belongs to whom the
 * folder belongs: a server that runs as that user goes on writing. */
void file_give(int fd, const char *path);
/* open() with these flags and O_CLOEXEC | O_NOFOLLOW; where there is none a new one of mode
 * 0600, which is given away.  One that is there belongs to whom it did: nobody is given a file
 * that root did not make just now. */
int file_open_made(const char *path, int flags);

/* May others than this user (and root) have made or replace it?  st is of a file that is to be
 * kept from them, folder where it lies.  -1: *e says why. */
struct stat;
int file_is_ours(const char *path, const struct stat *st, const char *folder, struct err *e);

/* A new file that is invisible under its final name until atomic_commit: written as
 * DIR/.NAME.zse-XXXXXX, then fsync, rename, fsync of DIR.  atomic_abort (or a crash) leaves the
 * old file untouched; abort removes the temporary, the next atomic_open of the name those that a
 * crash left (a living writer holds a lock on its own).  Targets that are no regular files, or
 * in a folder that is not writable, fail at open. */
struct atomic_file {
    int fd;
    char *path, *temp;      /* owned */
    uint64_t offset;        /* bytes appended so far */
};
int atomic_open(struct atomic_file *f, const char *path, struct err *e);
int atomic_write(struct atomic_file *f, const void *data, size_t n, struct err *e);                 /* at offset */
int atomic_pwrite(struct atomic_file *f, const void *data, size_t n, uint64_t at, struct err *e);   /* offset stays */
int atomic_commit(struct atomic_file *f, struct err *e);
void atomic_abort(struct atomic_file *f);                   /* nothing after commit or a second abort */

/* A file whose writer may be interrupted and gone on with later is parked: what was written is
 * put on the disk, and the temporary gets the name DIR/.NAME.zse-partial, which no atomic_open()
 * removes.  0; 1: it cannot be (another writer has parked one, the file system has no links),
 * and *f goes on as before; -1: an error.  A parked file is only synced. */
int atomic_park(struct atomic_file *f, struct err *e);
/* Take up the parked file of path, with offset 0 and our lock on it: 1; 0: there is none; 2: a
 * living writer has it; -1 with *e. */
int atomic_unpark(struct atomic_file *f, const char *path, struct err *e);
void atomic_leave(struct atomic_file *f);                   /* as atomic_abort, but a parked file stays */
char *atomic_parked_name(const char *path);                 /* malloc'd; NULL: no memory */

#ifdef __cplusplus
}
#endif
#endif
