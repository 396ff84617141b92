/* hub.h - fetch models from a hub with the protocol of huggingface.co, into the cache that the
 * Python tools use.
 *
 * The cache (huggingface_hub, "Understand caching") is CACHE/models--ORG--NAME with blobs/ETAG (the
 * contents, named by the hub's ETag: SHA-256 of large files, the git hash of small ones),
 * snapshots/COMMIT/FILE (relative links to blobs), refs/REVISION (text: the commit),
 * .no_exist/COMMIT/FILE (empty: the commit has no such file), and locks in
 * CACHE/.locks/models--ORG--NAME/ETAG.lock.  During a download the blob is blobs/ETAG.zse-part, and
 * ETAG.zse-ranges lists the downloaded ranges, from which a later call resumes. */
#ifndef ZSE_HUB_HUB_H
#define ZSE_HUB_HUB_H

#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "libcommon/base/err.h"
#include "libcommon/base/progress.h"

/* org/name[@revision][:pick]; some old models have no org: gpt2 */
struct hub_name {
    char repo[200];
    char revision[200];         /* "main" if none was given */
    char pick[200];             /* name of a file (GGUF or .zse) or of its quantization, like Q4_K_M; empty: none */
};
/* 0, or -1 with *e describing a valid name. */
int hub_parse_name(struct hub_name *name, const char *text, struct err *e);

/* One of several safetensors files of a model, with its first bytes, which include all of its
 * header (the format allows 100 MB). */
struct hub_shard {
    const char *name;
    uint64_t size;
    const uint8_t *head; size_t head_size;      /* NULL: the file is in the snapshot */
};

struct hub_options {
    const char *endpoint;       /* "https://huggingface.co" */
    const char *token;          /* NULL: none */
    const char *cache;          /* folder */
    const char *ca_file;        /* certificates to trust; NULL: the system's */
    int offline;                /* use only the cache */
    int refresh;                /* ask the hub for a newer commit even if the cache has one */
    int n_connections;          /* 0: 8 */
    int *known;                 /* set to 1 when the hub has found the repository and revision; may be NULL */
    const struct progress *progress;                    /* may be NULL */
    void (*note)(void *user, const char *text);         /* may be NULL */
    void *note_user;
    /* Called when the small files are there (config.json in folder, unless the model is a GGUF) and
     * `bytes` are still to be downloaded; -1 with *e refuses.  May be NULL. */
    int (*before_weights)(void *user, const char *folder, uint64_t bytes, struct err *e);
    void *before_user;
    /* Called if an index names several safetensors files; either all three functions are set or
     * none.  announce() gets the heads of all shards when the download begins (-1 refuses);
     * arrived() is called for each shard that is complete, checked and in the snapshot.  shards are
     * borrowed during the call. */
    /* -1 refuses */
    int (*announce)(void *user, const char *folder, const struct hub_shard *shards, int n, struct err *e);
    void (*arrived)(void *user, int shard);
    int (*wanted)(void *user);          /* index of the shard to download first, -1: in order */
    void *announce_user;
};

/* Fetch the files that a conversion needs and the cache lacks.  *path (malloc'd): the snapshot's
 * folder, or a GGUF or .zse in it. */
int hub_fetch(const struct hub_options *o, const struct hub_name *name, char **path, struct err *e);

/* The hub's description of a model: its JSON, with the sizes of files.  New reference. */
json_t *hub_model_info(const struct hub_options *o, const struct hub_name *name, struct err *e);
/* The text of one small file (at most max bytes), from the cache or the hub, without storing it.
 * Caller frees. */
char *hub_small_file(const struct hub_options *o, const struct hub_name *name, const char *file, size_t max,
                     size_t *size, struct err *e);
/* At most `limit` models whose names contain words, most downloaded first: the hub's array.  New
 * reference. */
json_t *hub_search(const struct hub_options *o, const char *words, int limit, struct err *e);

#endif
