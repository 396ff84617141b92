/* keys.h - API keys: made by zse-apikey, checked by the server, in one SQLite file FOLDER/keys.db
 * (mode 0600).
 *
 * A key is "zse-" and 256 random bits; only its SHA-256 is stored, so the file opens nothing,
 * and a key is shown once, when it is made.  The server works on a copy in memory: keys_check
 * touches no file, keys_refresh (about twice a second) looks for changes.  While the file is
 * locked, damaged or gone, the keys known so far stay good, and keys_refresh says what is wrong. */
#ifndef ZSE_ACCESS_KEYS_H
#define ZSE_ACCESS_KEYS_H

#include <stddef.h>
#include <stdint.h>

#include "libcommon/access/rate_limits.h"
#include "libcommon/base/err.h"

enum { KEY_TEXT = 47, KEY_NAME_MAX = 64, KEY_MODELS_MAX = 1024 };     /* "zse-" and 43 characters of base64url */
enum key_scope { SCOPE_CHAT = 1, SCOPE_EMBEDDINGS = 2, SCOPE_MODELS = 4, SCOPE_ADMIN = 8, SCOPE_ALL = 15 };

struct key_info {
    int64_t id;                             /* never used again, also after the key is gone */
    char name[KEY_NAME_MAX + 1];            /* letters, digits, and . _ - @ */
    int64_t created_s, expires_s;           /* Unix time; expires 0: never */
    struct limit limit;
    unsigned scopes;                        /* enum key_scope */
    char models[KEY_MODELS_MAX];            /* globs with commas between; "": every model */
    int enabled;
    uint64_t secret;                        /* of its hash, after keys_check: another one after a rotation */
};

/* "chat,models" to bits and back; out holds 32 bytes. */
int key_scopes_parse(const char *text, unsigned *scopes, struct err *e);
const char *key_scopes_text(unsigned scopes, char out[32]);
int key_allows_model(const struct key_info *k, const char *model);

struct keys;
/* Makes the folder (mode 0700) and the file where they are missing. */
struct keys *keys_open(const char *folder, struct err *e);
/* The same, but a file that is not there fails: an empty one in its place would be no keys. */
struct keys *keys_open_again(const char *folder, struct err *e);
/* To look only: nothing is written, and a file that is not there is no keys until it is
 * (keys_refresh sees it come).  Changes fail or are lost. */
struct keys *keys_open_read(const char *folder, struct err *e);
void keys_close(struct keys *k);            /* NULL is fine */
void keys_set_patience(struct keys *k, int ms);         /* how long others that have the file locked are waited for, from now on and in all (before: 5 seconds) */

/* ---- for zse-apikey and the administration API ---- */
/* info: name, expires_s, limit, scopes, models. key gets the text, the only time. The first key
 * of a file makes keys required. */
int keys_create(struct keys *k, struct key_info *info, char key[KEY_TEXT + 1], struct err *e);
/* The same key with another secret; the old one is worth nothing from now on. */
int keys_rotate(struct keys *k, const char *name, char key[KEY_TEXT + 1], struct err *e);
int keys_delete(struct keys *k, const char *name, struct err *e);
int keys_set_enabled(struct keys *k, const char *name, int enabled, struct err *e);
/* By name; caller frees *list. */
int keys_list(struct keys *k, struct key_info **list, int *n, struct err *e);
int keys_find(struct keys *k, const char *name, struct key_info *info, struct err *e);
/* Does a request need a key? */
int keys_required(struct keys *k, int *required, struct err *e);
int keys_set_required(struct keys *k, int required, struct err *e);

/* ---- for the server ---- */
/* Read what changed. What was known stays where the file cannot be read now: 1: another program
 * has it locked for the moment, -1: it is damaged, or gone. */
int keys_refresh(struct keys *k, struct err *e);
enum key_state { KEY_GOOD, KEY_UNKNOWN, KEY_DISABLED, KEY_EXPIRED };
/* By the last refresh. Takes the same time for every text of one length, whatever keys there
 * are. */
enum key_state keys_check(const struct keys *k, const char *text, struct key_info *info);
/* The same for a key that was good before. */
enum key_state keys_check_id(const struct keys *k, int64_t id, struct key_info *info);
/* A change that another connection has made, without waiting for the next refresh, which reads
 * all of them again. */
int keys_learn(struct keys *k, const struct key_info *info, const char *text, struct err *e);      /* keys_create made it; nothing where it is known. -1: no memory */
void keys_learn_required(struct keys *k, int required);
void keys_forget(struct keys *k, int64_t id);           /* it was deleted */
int keys_known_required(const struct keys *k);          /* also after keys_create(), where it made the first key */
int keys_known(const struct keys *k);       /* how many */

#endif
