/* download.h - files of one commit into the cache: several ranges at once, gone on with after a
 * cut, checked as they come. */
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
    char *name, *url;               /* owned; url: where the hub resolves it */
    char etag[160];
    int64_t size;                   /* -1: the hub did not say */
    int unsized;                    /* it did not: size is what came */
    int has_sha256;                 /* etag is the SHA-256 of the content: large files, which come in ranges */
    int has_git_sha1;               /* etag is git's id of the content, the SHA-1 of "blob SIZE\0" and the content: small files */
    int have;                       /* linked in the snapshot */
    /* while it comes */
    char *blob, *part, *ranges;     /* paths; owned */
    char *direct;                   /* where the last redirect led: the next ranges begin there; owned */
    int lock, fd;                   /* -1: none */
    int whole;                      /* the server gives no ranges */
    int n_mismatches;
    struct spans done;
    uint64_t saved_bytes;           /* of done, when it was written to ranges */
    EVP_MD_CTX *digest;
    uint64_t hashed;                /* bytes from the beginning that are in digest */
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
    uint64_t most_unsized;          /* bytes of a file whose size the hub does not say */
    struct net_digest net;
    uint64_t total, left;           /* bytes of all files; of those that are not here */
    int announced;                  /* o->arrived and o->wanted are to be asked about these files */
};

/* The files' etags and sizes, from the hub; what the cache has is linked. */
int download_plan(struct download *d, const char *const *names, int n, struct err *e);
/* Announce them (o->announce) with the heads of those that are not here.  *shards [n_files] and
 * their heads are the caller's to release, also when this fails. */
int download_announce(struct download *d, const char *folder, struct hub_shard **shards, struct err *e);
void download_release_shards(struct hub_shard *shards, int n);
/* Get what is missing. */
int download_run(struct download *d, struct err *e);
void download_release(struct download *d);

/* ENDPOINT/ORG/NAME/resolve/REVISION/FILE, encoded.  Caller frees. */
char *download_url(const char *endpoint, const char *repo, const char *revision, const char *file, struct err *e);
/* text with everything but letters, digits and -._~ as %XX; keep: also left as they are. Caller
 * frees. */
char *url_encode(const char *text, const char *keep);

#endif
