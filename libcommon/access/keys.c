/* keys.c - API keys: changes in a database, and a copy of them in memory. */
#include "libcommon/access/keys.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include <openssl/crypto.h>

#include "libcommon/access/key_db.h"
#include "libcommon/access/key_postgres.h"
#include "libcommon/access/key_sync.h"
#include "libcommon/access/key_usage.h"
#include "libcommon/base/sha256.h"

struct keys {
    struct key_db *db;
    struct key_copy copy;                           /* keys at the time of the last refresh */
    int64_t seen;                                   /* version of the database at that time; -1: never */
    int is_shared;                                  /* db is of PostgreSQL */
    struct key_sync *sync;                          /* NULL: not started by keys_follow() */
    int grace_s;
};

/* ---- open and close ---- */

int keys_are_shared(const char *where)
{
    return strncmp(where, "postgresql://", 13) == 0 || strncmp(where, "postgres://", 11) == 0;
}

static struct keys *open_keys(const char *where, enum key_db_mode mode, struct err *e)
{
    struct keys *k = calloc(1, sizeof *k);
    if (!k)
        err_nomem(e, "keys");
    else if ((k->db = key_db_open(where, mode, e))) {
        k->seen = -1;
        k->is_shared = keys_are_shared(where);
        return k;
    }
    free(k);
    return NULL;
}

struct keys *keys_open(const char *where, struct err *e) { return open_keys(where, MAY_CREATE, e); }
struct keys *keys_open_again(const char *where, struct err *e) { return open_keys(where, MUST_EXIST, e); }
struct keys *keys_open_read(const char *where, struct err *e) { return open_keys(where, READ_ONLY, e); }
void keys_set_patience(struct keys *k, int ms) { k->db->class->set_patience(k->db, ms); }

void keys_close(struct keys *k)
{
    if (!k)
        return;
    if (k->sync)
        key_sync_close(k->sync);
    k->db->class->close(k->db);
    free(k->copy.known);
    free(k);
}

/* ---- one key ---- */

static const struct { const char *name; unsigned bit; } scopes[] = {
    { "chat", SCOPE_CHAT }, { "embeddings", SCOPE_EMBEDDINGS }, { "models", SCOPE_MODELS }, { "admin", SCOPE_ADMIN },
};
enum { N_SCOPES = sizeof scopes / sizeof *scopes };

int key_scopes_parse(const char *text, unsigned *out, struct err *e)
{
    *out = 0;
    for (const char *p = text; *p;) {
        const size_t n = strcspn(p, ",");
        int i = 0;
        while (i < N_SCOPES && (strlen(scopes[i].name) != n || strncmp(scopes[i].name, p, n) != 0))
            i++;
        if (i == N_SCOPES)
            return err_set(e, ERR_FORMAT, "scope '%.*s' is unknown, expected chat, embeddings, models or admin, with commas between", (int)n, p);
        *out |= scopes[i].bit;
        p += n + (p[n] == ',');
    }
    return *out ? 0 : err_set(e, ERR_FORMAT, "no scope is named, expected chat, embeddings, models or admin, with commas between");
}

const char *key_scopes_text(unsigned bits, char out[32])
{
    out[0] = '\0';
    for (int i = 0; i < N_SCOPES; i++)
        if (bits & scopes[i].bit)
            strcat(strcat(out, *out ? "," : ""), scopes[i].name);
    return out;
}

int key_allows_model(const struct key_info *k, const char *model)
{
    char glob[KEY_MODELS_MAX];
    if (!k->models[0])
        return 1;
    for (const char *p = k->models; *p;) {
        const size_t n = strcspn(p, ",");
        memcpy(glob, p, n);
        glob[n] = '\0';
        if (fnmatch(glob, model, 0) == 0)
            return 1;
        p += n + (p[n] == ',');
    }
    return 0;
}

static int check_name(const char *name, struct err *e)
{
    const size_t n = strlen(name);
    const size_t good = strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-@");
    if (n < 1 || n > KEY_NAME_MAX)
        return err_set(e, ERR_FORMAT, "a key's name has %zu characters, expected 1 to %d", n, KEY_NAME_MAX);
    if (good < n)
        return err_set(e, ERR_FORMAT, "name '%s': character %zu is not a letter, a digit, or one of . _ - @", name,
                       good + 1);
    return 0;
}

static int make_key(char key[KEY_TEXT + 1], uint8_t hash[SHA256_SIZE], struct err *e)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    uint8_t secret[33] = { 0 };
    if (getrandom(secret, 32, 0) != 32)
        return err_sys(e, "random bytes for a key");
    memcpy(key, "zse-", 4);
    for (int i = 0, o = 4; o < KEY_TEXT; i += 3) {      /* base64url, RFC 4648 section 5, without padding */
        const uint32_t three = (uint32_t)secret[i] << 16 | (uint32_t)secret[i + 1] << 8 |
                               (i + 2 < 33 ? secret[i + 2] : 0);
        for (int k = 18; k >= 0 && o < KEY_TEXT; k -= 6)
            key[o++] = digits[three >> k & 63];
    }
    key[KEY_TEXT] = '\0';
    sha256_of(key, KEY_TEXT, hash);
    OPENSSL_cleanse(secret, sizeof secret);
    return 0;
}

/* ---- changes ---- */

static struct key_value number(int64_t n) { return (struct key_value){ .number = n }; }
static struct key_value text(const char *t) { return (struct key_value){ .kind = VALUE_TEXT, .data = t }; }
static struct key_value hash_value(const uint8_t *h) { return (struct key_value){ .kind = VALUE_HASH, .data = h }; }

static int unknown(const struct keys *k, const char *name, struct err *e)
{
    return err_set(e, ERR_FORMAT, "%s: no key '%s'", k->db->name, name);
}

int keys_set_required(struct keys *k, int required, struct err *e)
{
    const struct key_value v = number(required);
    struct key_query q = { .sql = "INSERT INTO settings (name, value) VALUES ('required', $1)"
                                  " ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                           .values = &v, .n_values = 1 };
    return k->db->class->run(k->db, &q, e);
}

static int read_number(void *user, const struct key_cell *cell, struct err *e)
{
    (void)e;
    *(int64_t *)user = cell[0].number;
    return 0;
}

/* Add the key and set its id. */
static int insert(struct keys *k, struct key_info *info, const uint8_t *hash, struct err *e)
{
    const struct key_value v[] = { text(info->name), hash_value(hash), number(info->created_s), number(info->expires_s),
                                   number(info->limit.requests_minute), number(info->limit.tokens_minute),
                                   number(info->limit.tokens_day), number(info->scopes), text(info->models) };
    struct key_query q = { .sql = "INSERT INTO keys (name, hash, created, expires, requests_minute, tokens_minute,"
                                  " tokens_day, scopes, models, enabled) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, 1)"
                                  " ON CONFLICT (name) DO NOTHING",
                           .values = v, .n_values = sizeof v / sizeof *v };
    struct key_query id = { .sql = "SELECT id FROM keys WHERE name = $1", .values = v, .n_values = 1,
                            .row = read_number, .user = &info->id };
    if (k->db->class->run(k->db, &q, e))
        return -1;
    if (!q.n_changed)
        return err_set(e, ERR_FORMAT, "%s: key '%s' exists already", k->db->name, info->name);
    return k->db->class->run(k->db, &id, e);
}

/* In the transaction of keys_create. */
static int create(struct keys *k, struct key_info *info, const uint8_t *hash, int64_t *n, struct err *e)
{
    struct key_query count = { .sql = "SELECT count(*) FROM keys", .row = read_number, .user = n };
    if (k->db->class->run(k->db, &count, e))
        return -1;
    if (*n >= USAGE_MAX_KEYS)
        return err_set(e, ERR_LIMIT, "%s holds %d keys, expected at most %d", k->db->name, (int)*n, USAGE_MAX_KEYS);
    return insert(k, info, hash, e) || (*n == 0 && keys_set_required(k, 1, e)) || key_db_run(k->db, "COMMIT", e)
               ? -1 : 0;
}

int keys_create(struct keys *k, struct key_info *info, char key[KEY_TEXT + 1], struct err *e)
{
    uint8_t hash[SHA256_SIZE];
    int64_t n = 0;
    if (check_name(info->name, e) || make_key(key, hash, e) || k->db->class->begin(k->db, e))
        return -1;
    info->created_s = (int64_t)time(NULL);
    info->enabled = 1;
    if (create(k, info, hash, &n, e) == 0) {
        k->copy.required |= n == 0;
        return 0;
    }
    key_db_run(k->db, "ROLLBACK", NULL);
    memset(key, 0, KEY_TEXT + 1);
    return -1;
}

/* Run sql, which changes the key of this name.  v: its values, the name last. */
static int change(struct keys *k, const char *sql, const struct key_value *v, int n, struct err *e)
{
    struct key_query q = { .sql = sql, .values = v, .n_values = n };
    if (k->db->class->run(k->db, &q, e))
        return -1;
    return q.n_changed ? 0 : unknown(k, v[n - 1].data, e);
}

int keys_rotate(struct keys *k, const char *name, char key[KEY_TEXT + 1], struct err *e)
{
    uint8_t hash[SHA256_SIZE] = { 0 };
    const struct key_value v[] = { hash_value(hash), text(name) };
    return make_key(key, hash, e) || change(k, "UPDATE keys SET hash = $1 WHERE name = $2", v, 2, e) ? -1 : 0;
}

int keys_delete(struct keys *k, const char *name, struct err *e)
{
    const struct key_value v = text(name);
    return change(k, "DELETE FROM keys WHERE name = $1", &v, 1, e);
}

int keys_set_enabled(struct keys *k, const char *name, int enabled, struct err *e)
{
    const struct key_value v[] = { number(enabled), text(name) };
    return change(k, "UPDATE keys SET enabled = $1 WHERE name = $2", v, 2, e);
}

/* ---- questions ---- */

int keys_required(struct keys *k, int *required, struct err *e) { return key_db_required(k->db, required, e); }

static int read_info(void *user, const struct key_cell *cell, struct err *e)
{
    (void)e;
    key_info_read(cell, user);
    return 0;
}

int keys_find(struct keys *k, const char *name, struct key_info *info, struct err *e)
{
    const struct key_value v = text(name);
    struct key_info found;              /* name may lie in *info */
    struct key_query q = { .sql = "SELECT " KEY_COLUMNS " FROM keys WHERE name = $1", .values = &v, .n_values = 1,
                           .row = read_info, .user = &found };
    if (k->db->class->run(k->db, &q, e))
        return -1;
    if (!q.n_changed)
        return unknown(k, name, e);
    *info = found;
    return 0;
}

struct key_list { struct key_info *list; int n; };

static int read_listed(void *user, const struct key_cell *cell, struct err *e)
{
    struct key_list *l = user;
    if (key_list_grow((void **)&l->list, l->n, sizeof *l->list, e))
        return -1;
    key_info_read(cell, &l->list[l->n++]);
    return 0;
}

int keys_list(struct keys *k, struct key_info **list, int *n, struct err *e)
{
    struct key_list l = { 0 };
    struct key_query q = { .sql = "SELECT " KEY_COLUMNS " FROM keys ORDER BY name", .row = read_listed, .user = &l };
    const int rc = k->db->class->run(k->db, &q, e);
    if (rc)
        free(l.list);
    *list = rc ? NULL : l.list;
    *n = rc ? 0 : l.n;
    return rc;
}

/* ---- counters beside the keys ---- */

int keys_read_usage(struct keys *k, struct usage *u, const struct key_info *list, int n, struct err *e)
{
    return k->is_shared ? key_usage_read(key_postgres(k->db), u, list, n, e) : 0;
}

int keys_reset_usage(struct keys *k, int64_t id, struct err *e)
{
    return k->is_shared ? key_usage_reset(key_postgres(k->db), id, e) : 0;
}

/* ---- the copy in memory ---- */

static void take_copy(struct keys *k, const struct key_copy *c)
{
    free(k->copy.known);
    k->copy = *c;
}

/* The copy was changed in memory: it must be read again, and not replaced by an older one. */
static void set_changed(struct keys *k)
{
    k->seen = -1;
    if (k->sync)
        key_sync_again(k->sync);
}

int keys_refresh(struct keys *k, struct err *e)
{
    struct key_copy c;
    int64_t version;
    if (k->sync) {
        const int rc = key_sync_take(k->sync, &c, e);
        if (rc > 0)
            take_copy(k, &c);
        return rc < 0 ? -1 : 0;
    }
    k->db->locked = 0;
    if (k->db->class->version(k->db, &version, e) || (version != k->seen && key_copy_load(k->db, &c, e)))
        return k->db->locked ? 1 : -1;
    if (version != k->seen)
        take_copy(k, &c);
    k->seen = version;
    return 0;
}

int keys_follow(struct keys *k, struct usage *u, int grace_s, struct err *e)
{
    k->grace_s = grace_s;
    return !k->is_shared || (k->sync = key_sync_open(k->db, u, k->seen, e)) ? 0 : -1;
}

int keys_sync_stats(const struct keys *k, struct keys_sync_stats *out)
{
    if (k->sync)
        key_sync_stats(k->sync, out);
    return k->sync != NULL;
}

enum keys_standing keys_standing(const struct keys *k)
{
    struct keys_sync_stats s;
    if (!keys_sync_stats(k, &s) || !s.is_away)
        return KEYS_CURRENT;
    return s.age_ms > (uint64_t)k->grace_s * 1000 ? KEYS_LOST : KEYS_AWAY;
}

static enum key_state state_of(const struct key_info *known, struct key_info *info)
{
    *info = *known;
    if (!info->enabled)
        return KEY_DISABLED;
    return info->expires_s && info->expires_s <= (int64_t)time(NULL) ? KEY_EXPIRED : KEY_GOOD;
}

enum key_state keys_check(const struct keys *k, const char *text, struct key_info *info)
{
    uint8_t hash[SHA256_SIZE];
    int found = -1;
    sha256_of(text, strlen(text), hash);
    for (int i = 0; i < k->copy.n; i++) {          /* without branches, so that the time reveals nothing */
        const int same = CRYPTO_memcmp(hash, k->copy.known[i].hash, SHA256_SIZE) == 0;
        found = (found & (same - 1)) | (i & -same);
    }
    return found < 0 ? KEY_UNKNOWN : state_of(&k->copy.known[found].info, info);
}

enum key_state keys_check_id(const struct keys *k, int64_t id, struct key_info *info)
{
    for (int i = 0; i < k->copy.n; i++)
        if (k->copy.known[i].info.id == id)
            return state_of(&k->copy.known[i].info, info);
    return KEY_UNKNOWN;
}

int keys_learn(struct keys *k, const struct key_info *info, const char *text, struct err *e)
{
    struct key_info there;
    if (keys_check_id(k, info->id, &there) != KEY_UNKNOWN)
        return 0;
    struct known *more = realloc(k->copy.known, ((size_t)k->copy.n + 1) * sizeof *more);
    if (!more)
        return err_nomem(e, "the keys");
    struct known *new = &more[k->copy.n++];
    new->info = *info;
    sha256_of(text, strlen(text), new->hash);
    memcpy(&new->info.secret, new->hash, sizeof new->info.secret);
    k->copy.known = more;
    set_changed(k);
    return 0;
}

void keys_learn_required(struct keys *k, int required)
{
    k->copy.required = required;
    set_changed(k);
}

void keys_forget(struct keys *k, int64_t id)
{
    for (int i = 0; i < k->copy.n; i++)
        if (k->copy.known[i].info.id == id) {
            k->copy.known[i] = k->copy.known[--k->copy.n];
            if (k->sync)
                key_sync_again(k->sync);
            return;
        }
}

int keys_known_required(const struct keys *k) { return k->copy.required; }
int keys_known(const struct keys *k) { return k->copy.n; }
