/* download.h - download files of one commit into the cache: several ranges at a time, resumed after
 * an interruption, checked while they arrive. */
#ifndef ZSE_HUB_DOWNLOAD_H
#define ZSE_HUB_DOWNLOAD_H

#include "libcommon/hub/hub_cache.h"
#include "libcommon/hub/web.h"

/* Sorted ranges [from, to) that do not touch. */
struct span { uint64_t from, to; };
struct spans { struct span *v; int n, room; };
int spans_add(struct spans *s, uint64_t from, uint64_t to);         /* -1: out of memory */
uint64_t spans_bytes(const struct spans *s);

struct download_file {
    char *name, *url;               /* owned; url: its address at the hub */
    char etag[160];
    int64_t size;                   /* -1: the hub did not tell it and the file is not complete yet */
    int unsized;                    /* the hub did not tell the size: it is the number of bytes received */
    int has_sha256;                 /* etag is the SHA-256 of the content: large files, which are fetched in ranges */
    /* etag is git's object id, the SHA-1 of "blob SIZE\0" and the content: small files */
    int has_git_sha1;
    int have;                       /* linked in the snapshot */
    /* while it is downloaded */
    char *blob, *part, *ranges;     /* paths; owned */
    char *direct;                   /* target of the last redirect, used for the next ranges; owned */
    int lock, fd;                   /* -1: none */
    int whole;                      /* the server does not support ranges */
    int n_mismatches;
    struct spans done;
    uint64_t saved_bytes;           /* bytes in done when it was last saved */
    EVP_MD_CTX *digest;
    uint64_t hashed;                /* bytes from the beginning that digest covers */
    struct download *in;
};

struct download {
    struct web *web;
    const struct hub_options *o;
    const struct hub_name *name;
    char *folder;                   /* owned */
    const char *commit;
    struct download_file *files;
    int n_files;
    uint64_t most_unsized;          /* largest file whose size the hub does not tell */
    struct net_digest net;
    uint64_t total, left;           /* bytes of all files; of the missing ones */
    int announced;                  /* call o->arrived and o->wanted for these files */
};

/* Get etags and sizes of the files from the hub, and link files that the cache has. */
int download_plan(struct download *d, const char *const *names, int n, struct err *e);
/* Call o->announce with the heads of the missing files.  The caller releases *shards [n_files] and
 * their heads, also after a failure. */
int download_announce(struct download *d, const char *folder, struct hub_shard **shards, struct err *e);
void download_release_shards(struct hub_shard *shards, int n);
/* Download the missing files. */
int download_run(struct download *d, struct err *e);
void download_release(struct download *d);

/* ENDPOINT/ORG/NAME/resolve/REVISION/FILE, encoded.  Caller frees. */
char *download_url(const char *endpoint, const char *repo, const char *revision, const char *file, struct err *e);
/* Percent-encode all bytes but letters, digits, -._~ and those in keep.  Caller frees. */
char *url_encode(const char *text, const char *keep);

#endif
