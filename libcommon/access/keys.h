/* keys.h - API keys, made by zse-apikey and checked by the server, in the SQLite file
 * FOLDER/keys.db (mode 0600), or in a PostgreSQL database that several machines share.
 *
 * A key is "zse-" and 256 random bits.  Only its SHA-256 is stored, so the file reveals no key; a
 * key is shown once, when it is made.  The server works on a copy in memory: keys_check reads no
 * file, keys_refresh (about twice a second) looks for changes.  While the file is locked, damaged
 * or missing, the known keys stay valid, and keys_refresh says what is wrong. */
#ifndef ZSE_ACCESS_KEYS_H
#define ZSE_ACCESS_KEYS_H

#include <stddef.h>
#include <stdint.h>

#include "libcommon/access/rate_limits.h"
#include "libcommon/base/err.h"

enum { KEY_TEXT = 47, KEY_NAME_MAX = 64, KEY_MODELS_MAX = 1024 };     /* "zse-" and 43 characters of base64url */
enum key_scope { SCOPE_CHAT = 1, SCOPE_EMBEDDINGS = 2, SCOPE_MODELS = 4, SCOPE_ADMIN = 8, SCOPE_ALL = 15 };

struct key_info {
    int64_t id;                             /* never reused, even after the key is deleted */
    char name[KEY_NAME_MAX + 1];            /* letters, digits, and . _ - @ */
    int64_t created_s, expires_s;           /* Unix time; expires_s 0: never */
    struct limit limit;
    unsigned scopes;                        /* enum key_scope */
    char models[KEY_MODELS_MAX];            /* globs separated by commas; "": every model */
    int enabled;
    uint64_t secret;                        /* first bytes of its hash, set by keys_check: changes with keys_rotate */
};

/* "chat,models" to bits and back; out has room for 32 bytes. */
int key_scopes_parse(const char *text, unsigned *scopes, struct err *e);
const char *key_scopes_text(unsigned scopes, char out[32]);
int key_allows_model(const struct key_info *k, const char *model);

struct keys;
/* 1 if `where` is the URL of a PostgreSQL database, not a folder. */
int keys_are_shared(const char *where);
/* Creates the folder (mode 0700) and the file, or the tables, if they are missing. */
struct keys *keys_open(const char *where, struct err *e);
/* Like keys_open(), but fails if the file is missing: a new, empty file would have no keys. */
struct keys *keys_open_again(const char *where, struct err *e);
/* Read-only: nothing is written.  While the file is missing there are no keys; keys_refresh notices
 * when it appears.  Changes fail or are lost. */
struct keys *keys_open_read(const char *where, struct err *e);
void keys_close(struct keys *k);            /* NULL is fine */
/* total time to wait from now on for locks of other connections (initially 5 seconds) */
void keys_set_patience(struct keys *k, int ms);

/* ---- for zse-apikey and the administration API ---- */
/* info: name, expires_s, limit, scopes, models.  key gets the text, which cannot be read again.
 * Once a file has a key, requests need one. */
int keys_create(struct keys *k, struct key_info *info, char key[KEY_TEXT + 1], struct err *e);
/* Give the key a new secret; the old one is invalid from now on. */
int keys_rotate(struct keys *k, const char *name, char key[KEY_TEXT + 1], struct err *e);
int keys_delete(struct keys *k, const char *name, struct err *e);
int keys_set_enabled(struct keys *k, const char *name, int enabled, struct err *e);
/* Sorted by name; caller frees *list. */
int keys_list(struct keys *k, struct key_info **list, int *n, struct err *e);
int keys_find(struct keys *k, const char *name, struct key_info *info, struct err *e);
/* Does a request need a key? */
int keys_required(struct keys *k, int *required, struct err *e);
int keys_set_required(struct keys *k, int required, struct err *e);
/* The counters of keys in PostgreSQL.  keys_read_usage sets those of u, which is new, for n keys;
 * keys_reset_usage clears the windows of a key. */
int keys_read_usage(struct keys *k, struct usage *u, const struct key_info *list, int n, struct err *e);
int keys_reset_usage(struct keys *k, int64_t id, struct err *e);

/* ---- for the server ---- */
/* Read the changes in the file.  0, or: 1: another program has the file locked at the moment; -1:
 * it is damaged or missing.  In both cases the known keys stay. */
int keys_refresh(struct keys *k, struct err *e);
/* Keys in PostgreSQL: start a thread that looks for changes and exchanges the counters of u
 * (usage_open_shared) with other servers; from then on keys_refresh only takes what it has found,
 * and no other call that asks the database is allowed.  While the database is away, the known keys
 * stay valid for grace_s seconds, with the counts of this server.  u is borrowed until keys_close.
 * Keys in a file: nothing happens. */
int keys_follow(struct keys *k, struct usage *u, int grace_s, struct err *e);
/* age_ms: time since the last round that succeeded */
struct keys_sync_stats { uint64_t n_rounds, age_ms; int is_away; };
int keys_sync_stats(const struct keys *k, struct keys_sync_stats *out); /* 0: there is no such thread */
/* KEYS_AWAY: a key that is unknown may have been made since the database was last read; KEYS_LOST:
 * it was read too long ago for any key to be valid */
enum keys_standing { KEYS_CURRENT, KEYS_AWAY, KEYS_LOST };
enum keys_standing keys_standing(const struct keys *k);
enum key_state { KEY_GOOD, KEY_UNKNOWN, KEY_DISABLED, KEY_EXPIRED };
/* Check a key against the state of the last refresh.  Takes the same time for all texts of one
 * length, whatever keys exist. */
enum key_state keys_check(const struct keys *k, const char *text, struct key_info *info);
/* The state of a key that was valid before, by its id. */
enum key_state keys_check_id(const struct keys *k, int64_t id, struct key_info *info);
/* Take over a change made through another connection, without waiting for the next refresh, which
 * reads everything again. */
/* the new key of keys_create(); no effect if it is known already; -1: out of memory */
int keys_learn(struct keys *k, const struct key_info *info, const char *text, struct err *e);
void keys_learn_required(struct keys *k, int required);
void keys_forget(struct keys *k, int64_t id);           /* after keys_delete */
int keys_known_required(const struct keys *k);          /* 1 also after keys_create() has made the first key */
int keys_known(const struct keys *k);       /* number of keys */

#endif
