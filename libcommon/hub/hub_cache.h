/* hub_cache.h - the folders and files of the cache that hub.h describes. */
#ifndef ZSE_HUB_HUB_CACHE_H
#define ZSE_HUB_HUB_CACHE_H

#include "libcommon/hub/hub.h"

/* hub_cache_folder(): CACHE/models--ORG--NAME.  hub_cache_path(): a path inside it.  NULL: out of
 * memory.  Caller frees. */
char *hub_cache_folder(const struct hub_options *o, const struct hub_name *name, struct err *e);
char *hub_cache_path(const char *folder, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Create all folders up to path's last '/'. */
int hub_cache_make_folders(const char *path, struct err *e);

/* Resolve a revision to a commit: it is one itself, or the file refs/REVISION holds one.  0, or -1:
 * the cache does not know it. */
int hub_cache_commit(const char *folder, const char *revision, char *commit, size_t room);
/* Store the commit of a revision, unless it is stored already. */
int hub_cache_set_commit(const char *folder, const char *revision, const char *commit, struct err *e);

/* 1: the cache has this file of the commit; -1: the file is known not to exist; 0: unknown. */
int hub_cache_has(const char *folder, const char *commit, const char *file);
void hub_cache_set_absent(const char *folder, const char *commit, const char *file);      /* best effort */

/* Make snapshots/COMMIT/FILE a link to the blob, replacing what exists. */
int hub_cache_link(const char *folder, const char *commit, const char *file, const char *etag, struct err *e);

/* Lock a blob: a descriptor, -1 with *e, or -2: another process has it (if wait is 0). */
int hub_cache_lock(const struct hub_options *o, const struct hub_name *name, const char *etag, int wait, struct err *e);
void hub_cache_unlock(int fd);

/* 1 if this name from the hub can be used as a file name, which must not lead out of the folder. */
int hub_cache_name_ok(const char *file);
int hub_cache_etag_ok(const char *etag);
int hub_cache_commit_ok(const char *commit);

#endif
