/* hub_cache.h - the folders and files of the cache that hub.h describes. */
#ifndef ZSE_HUB_HUB_CACHE_H
#define ZSE_HUB_HUB_CACHE_H

#include "libcommon/hub/hub.h"

/* CACHE/models--ORG--NAME, and a path in it. NULL: out of memory. Caller frees. */
char *hub_cache_folder(const struct hub_options *o, const struct hub_name *name, struct err *e);
char *hub_cache_path(const char *folder, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Every folder on the way to path's last '/'. */
int hub_cache_make_folders(const char *path, struct err *e);

/* The commit of a revision, from refs or as it is one; 0: known. */
int hub_cache_commit(const char *folder, const char *revision, char *commit, size_t room);
/* The same, written down.  Nothing if it says so already. */
int hub_cache_set_commit(const char *folder, const char *revision, const char *commit, struct err *e);

/* Is a file of that commit here (1), known not to exist (-1), or neither (0)? */
int hub_cache_has(const char *folder, const char *commit, const char *file);
void hub_cache_set_absent(const char *folder, const char *commit, const char *file);      /* best effort */

/* snapshots/COMMIT/FILE -> the blob.  Replaces what is there. */
int hub_cache_link(const char *folder, const char *commit, const char *file, const char *etag, struct err *e);

/* The lock of a blob: its descriptor, -1 with *e, or -2: somebody else has it (wait 0). */
int hub_cache_lock(const struct hub_options *o, const struct hub_name *name, const char *etag, int wait, struct err *e);
void hub_cache_unlock(int fd);

/* Names that come from the hub and become names of files: no way out of the folder. */
int hub_cache_name_ok(const char *file);
int hub_cache_etag_ok(const char *etag);
int hub_cache_commit_ok(const char *commit);

#endif
