/* keys.c - API keys in SQLite, and a copy of them in memory. */
#include "libcommon/access/keys.h"

#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <openssl/crypto.h>
#include <sqlite3.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/file.h"
#include "libcommon/base/sha256.h"

struct known { uint8_t hash[SHA256_SIZE]; struct key_info info; };

struct keys {
    sqlite3 *db;
    char *path;
    ino_t ino;                                      /* inode of the open file */
    enum { MUST_BE_THERE, MAY_BE_MADE, MAY_BE_ABSENT } file;
    int absent;                                     /* the file is missing; the tables are empty ones in memory */
    uint64_t until_ns;                              /* deadline of waiting for other connections */
    int locked;                                     /* the last error was a lock held past the deadline */
    struct known *known; int n_known, required;     /* keys at the time of the last refresh */
    int64_t seen;                                   /* PRAGMA data_version at that time; -1: never */
};

static const char schema[] =
    "CREATE TABLE IF NOT EXISTS keys ("
    " id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, hash BLOB NOT NULL UNIQUE, created INTEGER NOT NULL, expires INTEGER NOT NULL,"
    " requests_minute INTEGER NOT NULL, tokens_minute INTEGER NOT NULL, tokens_day INTEGER NOT NULL, scopes INTEGER NOT NULL, models TEXT NOT NULL,"
    " enabled INTEGER NOT NULL);"
    "CREATE TABLE IF NOT EXISTS settings (name TEXT PRIMARY KEY, value INTEGER NOT NULL);"
    "PRAGMA user_version = 1;";
#define COLUMNS "id, name, created, expires, requests_minute, tokens_minute, tokens_day, scopes, models, enabled"

/* ---- SQLite ---- */

void keys_set_patience(struct keys *k, int ms) { k->until_ns = clock_ns() + (uint64_t)ms * 1000000u; }

/* Busy handler of SQLite, called for the n-th time: 1 after a pause, 0 after the deadline. */
static int wait_for_others(void *user, int n)
{
    const struct keys *k = user;
    if (clock_ns() >= k->until_ns)
        return 0;
    nanosleep(&(struct timespec){ .tv_nsec = n < 10 ? 1000000 : 10000000 }, NULL);
    return 1;
}

static int locked_error(struct keys *k, struct err *e)
{
    k->locked = 1;
    return err_set(e, ERR_IO, "%s: another program holds it locked", k->path);
}

static const char *folder_of(const struct keys *k, char folder[4096])
{
    snprintf(folder, 4096, "%.*s", (int)(strrchr(k->path, '/') - k->path), k->path);
    return folder;
}

/* Explain a refused change: the file is read-only, or the folder is, in which SQLite makes its
 * journal.  0: neither is. */
static int cannot_write(struct keys *k, struct err *e)
{
    const int cut = sqlite3_extended_errcode(k->db) == SQLITE_READONLY_ROLLBACK;
    char folder[4096];
    if (access(k->path, W_OK) != 0)
        return err_sys(e, cut ? "%s: a change that was cut short cannot be taken back" : "%s: cannot be written",
                       k->path);
    return access(folder_of(k, folder), W_OK) != 0
               ? err_sys(e, "%s: cannot be changed, as its folder cannot be written", k->path) : 0;
}

static int sql_error(struct keys *k, struct err *e)
{
    const int code = sqlite3_errcode(k->db);
    if (code == SQLITE_BUSY || code == SQLITE_LOCKED)
        return locked_error(k, e);
    k->locked = 0;
    if ((code == SQLITE_READONLY || code == SQLITE_CANTOPEN) && cannot_write(k, e))
        return -1;
    if (code == SQLITE_NOTADB || code == SQLITE_CORRUPT)
        return err_set(e, ERR_FORMAT, "%s: is damaged (%s); move it away to begin with an empty one: its keys are then worth nothing", k->path, sqlite3_errmsg(k->db));
    return err_set(e, ERR_IO, "%s: %s", k->path, sqlite3_errmsg(k->db));
}

static int run(struct keys *k, const char *sql, struct err *e)
{
    return sqlite3_exec(k->db, sql, NULL, NULL, NULL) == SQLITE_OK ? 0 : sql_error(k, e);
}

static sqlite3_stmt *prepare(struct keys *k, const char *sql, struct err *e)
{
    sqlite3_stmt *s = NULL;
    if (sqlite3_prepare_v2(k->db, sql, -1, &s, NULL) != SQLITE_OK)
        sql_error(k, e);
    return s;
}

/* Run and finalize a statement that returns no rows. */
static int finish(struct keys *k, sqlite3_stmt *s, struct err *e)
{
    int rc = sqlite3_step(s) == SQLITE_DONE ? 0 : sql_error(k, e);
    sqlite3_finalize(s);
    return rc;
}

/* Create the file ourselves, because SQLite would leave its mode to the umask.  Its journal takes
 * the same mode. */
static int make_file(struct keys *k, struct err *e)
{
    struct stat st;
    const int fd = k->file == MAY_BE_MADE ? open(k->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600) : -1;
    if (fd >= 0) {
        file_give(fd, k->path);
        close(fd);
    } else if (k->file == MAY_BE_MADE && errno != EEXIST) {
        return err_sys(e, "%s", k->path);
    }
    if (lstat(k->path, &st)) {
        k->absent = k->file == MAY_BE_ABSENT && errno == ENOENT;
        return k->absent ? 0 : err_sys(e, "%s", k->path);
    }
    if (!S_ISREG(st.st_mode))
        return err_set(e, ERR_IO, "%s: is no regular file", k->path);
    k->ino = st.st_ino;
    char folder[4096];
    return file_is_ours(k->path, &st, folder_of(k, folder), e);
}

/* Set *n to the number that a PRAGMA returns. */
static int pragma(struct keys *k, const char *sql, int64_t *n, struct err *e)
{
    sqlite3_stmt *s = prepare(k, sql, e);
    if (!s)
        return -1;
    const int rc = sqlite3_step(s) == SQLITE_ROW ? 0 : sql_error(k, e);
    *n = sqlite3_column_int64(s, 0);
    sqlite3_finalize(s);
    return rc;
}

/* Lock the creation of a new file against other programs; -1: *e. */
static int take_lock(struct keys *k, struct err *e)
{
    char path[4096];
    snprintf(path, sizeof path, "%s.lock", k->path);
    const int fd = file_open_made(path, O_RDWR);
    int n = 0, rc;
    if (fd < 0)
        return err_sys(e, "%s", path);
    while ((rc = flock(fd, LOCK_EX | LOCK_NB)) && errno == EWOULDBLOCK && wait_for_others(k, n))
        n++;
    if (rc == 0)
        return fd;
    if (errno == EWOULDBLOCK)
        locked_error(k, e);
    else
        err_sys(e, "%s", path);
    close(fd);
    return -1;
}

/* Refuse a file that must have tables but has none: if it were accepted, there would be no keys. */
static int is_empty(const struct keys *k, struct err *e)
{
    return err_set(e, ERR_FORMAT, "%s: is empty; to begin anew, move it away before the server starts", k->path);
}

/* Create the tables, unless another program has done so. */
static int make_tables(struct keys *k, struct err *e)
{
    int64_t version;
    const int fd = take_lock(k, e);
    if (fd < 0)
        return -1;
    /* another program may have made them by now */
    int rc = pragma(k, "PRAGMA user_version", &version, e);
    if (rc == 0 && version == 0)
        rc = k->file == MUST_BE_THERE ? is_empty(k, e) : run(k, schema, e);
    close(fd);
    return rc;
}

static int open_empty(struct keys *k, struct err *e)
{
    sqlite3_close(k->db);
    k->db = NULL;
    k->absent = 1;
    if (sqlite3_open(":memory:", &k->db) != SQLITE_OK)
        return err_nomem(e, k->path);
    return run(k, schema, e);
}

static int open_file(struct keys *k, struct err *e)
{
    int64_t version;
    if (make_file(k, e))
        return -1;
    if (k->absent)
        return open_empty(k, e);
    if (sqlite3_open_v2(k->path, &k->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL) != SQLITE_OK)
        return k->db ? sql_error(k, e) : err_nomem(e, k->path);
    sqlite3_busy_handler(k->db, wait_for_others, k);
    /* No write-ahead log: after a restore from a backup SQLite would apply the old log to the new
     * file.  synchronous=FULL: a key that was shown is on the disk. */
    if (run(k, "PRAGMA journal_mode = DELETE; PRAGMA synchronous = FULL;", e) ||
        pragma(k, "PRAGMA user_version", &version, e))
        return -1;
    if (version == 0 && k->file == MAY_BE_ABSENT)       /* another program is creating it */
        return open_empty(k, e);
    /* reading only: a write would make other connections reload */
    return version == 0 ? make_tables(k, e) : 0;
}

static struct keys *open_keys(const char *folder, int file, struct err *e)
{
    struct keys *k = calloc(1, sizeof *k);
    if (!k || asprintf(&k->path, "%s/keys.db", folder) < 0) {
        free(k);
        err_nomem(e, "keys");
        return NULL;
    }
    k->seen = -1;
    keys_set_patience(k, 5000);
    k->file = file;
    if (file == MAY_BE_MADE && mkdir(folder, 0700) && errno != EEXIST)
        err_sys(e, "%s", folder);
    else if (open_file(k, e) == 0)
        return k;
    keys_close(k);
    return NULL;
}

struct keys *keys_open(const char *folder, struct err *e) { return open_keys(folder, MAY_BE_MADE, e); }
struct keys *keys_open_again(const char *folder, struct err *e) { return open_keys(folder, MUST_BE_THERE, e); }
struct keys *keys_open_read(const char *folder, struct err *e) { return open_keys(folder, MAY_BE_ABSENT, e); }

void keys_close(struct keys *k)
{
    if (!k)
        return;
    sqlite3_close(k->db);
    free(k->known);
    free(k->path);
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

static void read_row(sqlite3_stmt *s, struct key_info *k)
{
    *k = (struct key_info){ .id = sqlite3_column_int64(s, 0), .created_s = sqlite3_column_int64(s, 2),
                            .expires_s = sqlite3_column_int64(s, 3),
                            .limit = { sqlite3_column_int(s, 4), sqlite3_column_int64(s, 5),
                                       sqlite3_column_int64(s, 6) },
                            .scopes = (unsigned)sqlite3_column_int(s, 7), .enabled = sqlite3_column_int(s, 9) };
    snprintf(k->name, sizeof k->name, "%s", (const char *)sqlite3_column_text(s, 1));
    snprintf(k->models, sizeof k->models, "%s", (const char *)sqlite3_column_text(s, 8));
}

static int unknown(const struct keys *k, const char *name, struct err *e)
{
    return err_set(e, ERR_FORMAT, "there is no key '%s' in %s", name, k->path);
}

/* ---- changes ---- */

static int set(struct keys *k, const char *sql, int value, struct err *e)
{
    sqlite3_stmt *s = prepare(k, sql, e);
    if (!s)
        return -1;
    sqlite3_bind_int(s, 1, value);
    return finish(k, s, e);
}

int keys_set_required(struct keys *k, int required, struct err *e)
{
    return set(k, "INSERT INTO settings (name, value) VALUES ('required', ?1) ON CONFLICT (name) DO UPDATE SET value = ?1", required, e);
}

static int insert(struct keys *k, struct key_info *info, const uint8_t *hash, struct err *e)
{
    sqlite3_stmt *s = prepare(k, "INSERT INTO keys (name, hash, created, expires, requests_minute, tokens_minute, tokens_day, scopes, models, enabled)"
                                 " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 1)", e);
    if (!s)
        return -1;
    sqlite3_bind_text(s, 1, info->name, -1, SQLITE_STATIC);
    sqlite3_bind_blob(s, 2, hash, SHA256_SIZE, SQLITE_STATIC);
    sqlite3_bind_int64(s, 3, info->created_s);
    sqlite3_bind_int64(s, 4, info->expires_s);
    sqlite3_bind_int(s, 5, info->limit.requests_minute);
    sqlite3_bind_int64(s, 6, info->limit.tokens_minute);
    sqlite3_bind_int64(s, 7, info->limit.tokens_day);
    sqlite3_bind_int(s, 8, (int)info->scopes);
    sqlite3_bind_text(s, 9, info->models, -1, SQLITE_STATIC);
    const int rc = sqlite3_step(s), extended = sqlite3_extended_errcode(k->db);
    sqlite3_finalize(s);
    if (rc == SQLITE_DONE) {
        info->id = sqlite3_last_insert_rowid(k->db);
        return 0;
    }
    if (extended == SQLITE_CONSTRAINT_UNIQUE)
        return err_set(e, ERR_FORMAT, "there is a key '%s' already in %s", info->name, k->path);
    return sql_error(k, e);
}

static int count(struct keys *k, int *n, struct err *e)
{
    sqlite3_stmt *s = prepare(k, "SELECT count(*) FROM keys", e);
    if (!s)
        return -1;
    int rc = sqlite3_step(s) == SQLITE_ROW ? 0 : sql_error(k, e);
    *n = sqlite3_column_int(s, 0);
    sqlite3_finalize(s);
    return rc;
}

int keys_create(struct keys *k, struct key_info *info, char key[KEY_TEXT + 1], struct err *e)
{
    uint8_t hash[SHA256_SIZE];
    int n;
    if (check_name(info->name, e) || make_key(key, hash, e) || run(k, "BEGIN IMMEDIATE", e))
        return -1;
    info->created_s = (int64_t)time(NULL);
    info->enabled = 1;
    if (count(k, &n, e))
        goto fail;
    if (n >= USAGE_MAX_KEYS) {
        err_set(e, ERR_LIMIT, "%s holds %d keys, expected at most %d", k->path, n, USAGE_MAX_KEYS);
        goto fail;
    }
    if (insert(k, info, hash, e) || (n == 0 && keys_set_required(k, 1, e)) || run(k, "COMMIT", e))
        goto fail;
    k->required |= n == 0;
    return 0;
fail:
    run(k, "ROLLBACK", NULL);
    memset(key, 0, KEY_TEXT + 1);
    return -1;
}

/* Run sql, which changes the key whose name is bound last. */
static int change(struct keys *k, sqlite3_stmt *s, const char *name, struct err *e)
{
    if (finish(k, s, e))
        return -1;
    return sqlite3_changes(k->db) ? 0 : unknown(k, name, e);
}

int keys_rotate(struct keys *k, const char *name, char key[KEY_TEXT + 1], struct err *e)
{
    uint8_t hash[SHA256_SIZE];
    if (make_key(key, hash, e))
        return -1;
    sqlite3_stmt *s = prepare(k, "UPDATE keys SET hash = ? WHERE name = ?", e);
    if (!s)
        return -1;
    sqlite3_bind_blob(s, 1, hash, SHA256_SIZE, SQLITE_STATIC);
    sqlite3_bind_text(s, 2, name, -1, SQLITE_STATIC);
    return change(k, s, name, e);
}

int keys_delete(struct keys *k, const char *name, struct err *e)
{
    sqlite3_stmt *s = prepare(k, "DELETE FROM keys WHERE name = ?", e);
    if (!s)
        return -1;
    sqlite3_bind_text(s, 1, name, -1, SQLITE_STATIC);
    return change(k, s, name, e);
}

int keys_set_enabled(struct keys *k, const char *name, int enabled, struct err *e)
{
    sqlite3_stmt *s = prepare(k, "UPDATE keys SET enabled = ? WHERE name = ?", e);
    if (!s)
        return -1;
    sqlite3_bind_int(s, 1, enabled);
    sqlite3_bind_text(s, 2, name, -1, SQLITE_STATIC);
    return change(k, s, name, e);
}

/* ---- questions ---- */

int keys_required(struct keys *k, int *required, struct err *e)
{
    sqlite3_stmt *s = prepare(k, "SELECT value FROM settings WHERE name = 'required'", e);
    if (!s)
        return -1;
    const int rc = sqlite3_step(s);
    *required = rc == SQLITE_ROW && sqlite3_column_int(s, 0);
    sqlite3_finalize(s);
    return rc == SQLITE_ROW || rc == SQLITE_DONE ? 0 : sql_error(k, e);
}

int keys_find(struct keys *k, const char *name, struct key_info *info, struct err *e)
{
    sqlite3_stmt *s = prepare(k, "SELECT " COLUMNS " FROM keys WHERE name = ?", e);
    if (!s)
        return -1;
    sqlite3_bind_text(s, 1, name, -1, SQLITE_STATIC);
    const int rc = sqlite3_step(s);
    if (rc == SQLITE_ROW)
        read_row(s, info);
    sqlite3_finalize(s);
    return rc == SQLITE_ROW ? 0 : rc == SQLITE_DONE ? unknown(k, name, e) : sql_error(k, e);
}

static int grow(void **p, int n, size_t size, struct err *e)
{
    if (n & (n - 1))                        /* n reached a power of two: double the room */
        return 0;
    void *more = realloc(*p, (size_t)(n ? 2 * n : 1) * size);
    if (!more)
        return err_nomem(e, "the keys");
    *p = more;
    return 0;
}

int keys_list(struct keys *k, struct key_info **list, int *n, struct err *e)
{
    int rc;
    *list = NULL;
    *n = 0;
    sqlite3_stmt *s = prepare(k, "SELECT " COLUMNS " FROM keys ORDER BY name", e);
    if (!s)
        return -1;
    while ((rc = sqlite3_step(s)) == SQLITE_ROW && grow((void **)list, *n, sizeof **list, e) == 0)
        read_row(s, &(*list)[(*n)++]);
    if (rc != SQLITE_DONE && rc != SQLITE_ROW)
        sql_error(k, e);
    sqlite3_finalize(s);
    if (rc == SQLITE_DONE)
        return 0;
    free(*list);
    *list = NULL;
    return -1;
}

/* ---- the copy in memory ---- */

static int load(struct keys *k, struct err *e)
{
    struct known *known = NULL;
    int n = 0, required, rc;
    if (keys_required(k, &required, e))
        return -1;
    sqlite3_stmt *s = prepare(k, "SELECT " COLUMNS ", hash FROM keys", e);
    if (!s)
        return -1;
    while ((rc = sqlite3_step(s)) == SQLITE_ROW && grow((void **)&known, n, sizeof *known, e) == 0) {
        if (sqlite3_column_bytes(s, 10) != SHA256_SIZE)
            continue;
        read_row(s, &known[n].info);
        memcpy(&known[n].info.secret, sqlite3_column_blob(s, 10), sizeof known[n].info.secret);
        memcpy(known[n++].hash, sqlite3_column_blob(s, 10), SHA256_SIZE);
    }
    if (rc != SQLITE_DONE && rc != SQLITE_ROW)
        sql_error(k, e);
    sqlite3_finalize(s);
    if (rc != SQLITE_DONE) {
        free(known);
        return -1;
    }
    free(k->known);
    k->known = known;
    k->n_known = n;
    k->required = required;
    return 0;
}

/* Open the file again after another one was put in its place. */
static int reopen(struct keys *k, struct err *e)
{
    struct keys other = { .path = k->path, .until_ns = k->until_ns,
                          .file = k->file == MAY_BE_ABSENT ? MAY_BE_ABSENT : MUST_BE_THERE };
    if (open_file(&other, e) || (other.absent && !k->absent && is_empty(k, e))) {
        sqlite3_close(other.db);
        k->locked = other.locked;
        return -1;
    }
    sqlite3_close(k->db);
    k->db = other.db;
    sqlite3_busy_handler(k->db, wait_for_others, k);
    k->ino = other.ino;
    k->absent = other.absent;
    k->seen = -1;
    return 0;
}

int keys_refresh(struct keys *k, struct err *e)
{
    struct stat st;
    int64_t version;
    if (stat(k->path, &st))
        return k->absent && errno == ENOENT ? 0 : err_sys(e, "%s", k->path);
    k->locked = 0;
    if (((k->absent || st.st_ino != k->ino) && reopen(k, e)) || pragma(k, "PRAGMA data_version", &version, e) ||
        (version != k->seen && load(k, e)))
        return k->locked ? 1 : -1;
    k->seen = version;
    return 0;
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
    for (int i = 0; i < k->n_known; i++) {          /* without branches, so that the time reveals nothing */
        const int same = CRYPTO_memcmp(hash, k->known[i].hash, SHA256_SIZE) == 0;
        found = (found & (same - 1)) | (i & -same);
    }
    return found < 0 ? KEY_UNKNOWN : state_of(&k->known[found].info, info);
}

enum key_state keys_check_id(const struct keys *k, int64_t id, struct key_info *info)
{
    for (int i = 0; i < k->n_known; i++)
        if (k->known[i].info.id == id)
            return state_of(&k->known[i].info, info);
    return KEY_UNKNOWN;
}

int keys_learn(struct keys *k, const struct key_info *info, const char *text, struct err *e)
{
    struct key_info there;
    if (keys_check_id(k, info->id, &there) != KEY_UNKNOWN)
        return 0;
    struct known *more = realloc(k->known, ((size_t)k->n_known + 1) * sizeof *more);
    if (!more)
        return err_nomem(e, "the keys");
    struct known *new = &more[k->n_known++];
    new->info = *info;
    sha256_of(text, strlen(text), new->hash);
    memcpy(&new->info.secret, new->hash, sizeof new->info.secret);
    k->known = more;
    k->seen = -1;
    return 0;
}

void keys_learn_required(struct keys *k, int required)
{
    k->required = required;
    k->seen = -1;
}

void keys_forget(struct keys *k, int64_t id)
{
    for (int i = 0; i < k->n_known; i++)
        if (k->known[i].info.id == id) {
            k->known[i] = k->known[--k->n_known];
            return;
        }
}

int keys_known_required(const struct keys *k) { return k->required; }
int keys_known(const struct keys *k) { return k->n_known; }
