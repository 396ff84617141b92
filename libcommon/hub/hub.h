/* hub.h - fetch models from a hub that speaks the protocol of huggingface.co, into the cache that
 * the Python tools use as well.
 *
 * The cache (huggingface_hub, "Understand caching"): CACHE/models--ORG--NAME with blobs/ETAG
 * (the bytes, named by the hub's ETag: SHA-256 of large files, the git hash of small ones),
 * snapshots/COMMIT/FILE (relative links to blobs), refs/REVISION (text: the commit),
 * .no_exist/COMMIT/FILE (empty: that commit has no such file), and locks in
 * CACHE/.locks/models--ORG--NAME/ETAG.lock.  While a blob comes it is blobs/ETAG.zse-part, with
 * the ranges that are there in ETAG.zse-ranges: a later call goes on with them. */
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
    char pick[200];             /* a file (GGUF or .zse) or its quantization, like Q4_K_M; empty: none */
};
/* 0, or -1 with *e saying what such a name looks like. */
int hub_parse_name(struct hub_name *name, const char *text, struct err *e);

/* One of several safetensors of a model, and the first bytes of it: all of its header (the
 * format allows 100 MB). */
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
    int offline;                /* only what is in the cache */
    int refresh;                /* ask the hub for a newer commit also where the cache has one */
    int n_connections;          /* 0: 8 */
    int *known;                 /* set to 1 when the hub knows the repository and revision; may be NULL */
    const struct progress *progress;                    /* may be NULL */
    void (*note)(void *user, const char *text);         /* may be NULL */
    void *note_user;
    /* May be NULL.  The small files are there (config.json in folder, unless it is a GGUF),
     * bytes are still to come: -1 with *e refuses. */
    int (*before_weights)(void *user, const char *folder, uint64_t bytes, struct err *e);
    void *before_user;
    /* All NULL, or: weights in several safetensors with an index are announced by their heads
     * when they begin to come, and each as it is complete and checked (in the snapshot).  shards
     * are borrowed during the call. */
    int (*announce)(void *user, const char *folder, const struct hub_shard *shards, int n, struct err *e);      /* -1 refuses */
    void (*arrived)(void *user, int shard);
    int (*wanted)(void *user);          /* the shard that should come first, -1: in their order */
    void *announce_user;
};

/* Fetch what a conversion of the model needs and is not in the cache.  *path (malloc'd): the
 * snapshot's folder, or a GGUF or .zse in it. */
int hub_fetch(const struct hub_options *o, const struct hub_name *name, char **path, struct err *e);

/* What the hub says about a model: its JSON, sizes of files included.  New reference. */
json_t *hub_model_info(const struct hub_options *o, const struct hub_name *name, struct err *e);
/* The text of one small file (at most max bytes), from the cache or the hub; nothing is kept.
 * Caller frees. */
char *hub_small_file(const struct hub_options *o, const struct hub_name *name, const char *file, size_t max,
                     size_t *size, struct err *e);
/* Models whose name contains words, by downloads, at most limit: the hub's array.  New
 * reference. */
json_t *hub_search(const struct hub_options *o, const char *words, int limit, struct err *e);

#endif
