/* rag_store.c - open rag.db; errors of SQLite as sentences; transactions. */
#include "libcommon/rag/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/file.h"

/* The index `words` has no copy of the text (content=''), so deleting a row must repeat the text
 * that was indexed.  The column scope of the index holds the collection and the document as words
 * ("c3 d17"), so that a query can be limited to them inside the index.  words_in: number of words
 * in a collection's chunks, for their mean length.  Vectors are numbered in the order in which they
 * were added, so that a copy in memory reads only new ones.  When rows are deleted,
 * collections.removed changes, and a copy must start over.  The vectors of a chunk follow each
 * other, and part 0 is the whole chunk. */
static const char schema[] =
    "CREATE TABLE IF NOT EXISTS collections (id INTEGER PRIMARY KEY AUTOINCREMENT, owner TEXT NOT NULL, name TEXT NOT NULL,"
    " documents INTEGER NOT NULL DEFAULT 0, chunks INTEGER NOT NULL DEFAULT 0, bytes INTEGER NOT NULL DEFAULT 0,"
    " words_in INTEGER NOT NULL DEFAULT 0, removed INTEGER NOT NULL DEFAULT 0, UNIQUE (owner, name));"
    "CREATE TABLE IF NOT EXISTS documents (id INTEGER PRIMARY KEY AUTOINCREMENT, public TEXT NOT NULL UNIQUE,"
    " collection INTEGER NOT NULL REFERENCES collections (id), name TEXT NOT NULL, type TEXT NOT NULL, metadata TEXT NOT NULL,"
    " created INTEGER NOT NULL, file_size INTEGER NOT NULL, text_size INTEGER NOT NULL, pages INTEGER NOT NULL,"
    " chunks INTEGER NOT NULL, words_in INTEGER NOT NULL, hash BLOB NOT NULL, UNIQUE (collection, hash));"
    "CREATE TABLE IF NOT EXISTS chunks (id INTEGER PRIMARY KEY AUTOINCREMENT, document INTEGER NOT NULL REFERENCES documents (id),"
    " number INTEGER NOT NULL, page INTEGER NOT NULL, offset INTEGER NOT NULL, heading TEXT NOT NULL, text TEXT NOT NULL);"
    "CREATE UNIQUE INDEX IF NOT EXISTS chunks_of ON chunks (document, number);"
    "CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5 (scope, heading, text, content='',"
    " tokenize='porter unicode61 remove_diacritics 2');"
    "CREATE TABLE IF NOT EXISTS models (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, size INTEGER NOT NULL);"
    "DROP TABLE IF EXISTS vectors;"         /* of an older version: they are computed anew */
    "CREATE TABLE vectors (model INTEGER NOT NULL, collection INTEGER NOT NULL, number INTEGER NOT NULL, chunk INTEGER NOT NULL,"
    " part INTEGER NOT NULL, scale REAL NOT NULL, data BLOB NOT NULL, PRIMARY KEY (model, collection, number)) WITHOUT ROWID;"
    "CREATE UNIQUE INDEX vectors_of ON vectors (chunk, model, part);"
    "PRAGMA user_version = 3;";
enum { SCHEMA_VERSION = 3 };
#define PATIENCE_NS 5000000000u         /* how long to wait for other connections */

/* ---- SQLite ---- */

/* Busy handler, called for the n-th time: 1 after a pause, 0 after the deadline. */
static int wait_for_others(void *user, int n)
{
    struct rag_store *r = user;
    if (n == 0)
        r->until_ns = clock_ns() + PATIENCE_NS;
    if (clock_ns() >= r->until_ns || (r->cancel && atomic_load(r->cancel)))
        return 0;
    nanosleep(&(struct timespec){ .tv_nsec = n < 10 ? 1000000 : 10000000 }, NULL);
    return 1;
}

static int is_cancelled(void *user)
{
    const struct rag_store *r = user;
    return r->cancel && atomic_load(r->cancel);
}

/* Called by SQLite every few thousand instructions. */
static int must_stop(void *user)
{
    const struct rag_store *r = user;
    return is_cancelled(user) || (r->late_ns && clock_ns() > r->late_ns);
}

void rag_set_time(struct rag_store *r, double seconds)
{
    r->late_ns = seconds > 0 ? clock_ns() + (uint64_t)(seconds * 1e9) : 0;
}

void rag_set_cancel(struct rag_store *r, const atomic_int *flag) { r->cancel = flag; }

int rag_sql_error(struct rag_store *r, struct err *e)
{
    switch (sqlite3_errcode(r->db)) {
    case SQLITE_BUSY: case SQLITE_LOCKED:
        if (is_cancelled(r))
            return err_set(e, ERR_CANCELLED, "the request was cancelled");
        return err_set(e, ERR_IO, "%s: another program holds it locked", r->path);
    case SQLITE_INTERRUPT:
        return err_set(e, ERR_CANCELLED, is_cancelled(r) ? "the request was cancelled"
                                                         : "the search took too long: ask for fewer words");
    case SQLITE_NOTADB: case SQLITE_CORRUPT:
        return err_set(e, ERR_IO, "%s: is damaged (%s); move it away to begin with an empty one", r->path,
                       sqlite3_errmsg(r->db));
    case SQLITE_READONLY:
        return err_set(e, ERR_IO, "%s: cannot be written", r->path);
    case SQLITE_NOMEM:
        return err_nomem(e, r->path);
    default:
        return err_set(e, ERR_IO, "%s: %s", r->path, sqlite3_errmsg(r->db));
    }
}

sqlite3_stmt *rag_prepare(struct rag_store *r, const char *sql, struct err *e)
{
    sqlite3_stmt *s = NULL;
    if (sqlite3_prepare_v2(r->db, sql, -1, &s, NULL) != SQLITE_OK)
        rag_sql_error(r, e);
    return s;
}

int rag_run(struct rag_store *r, const char *sql, struct err *e)
{
    return sqlite3_exec(r->db, sql, NULL, NULL, NULL) == SQLITE_OK ? 0 : rag_sql_error(r, e);
}

int rag_finish(struct rag_store *r, sqlite3_stmt *s, struct err *e)
{
    if (!s)
        return -1;
    const int rc = sqlite3_step(s) == SQLITE_DONE ? 0 : rag_sql_error(r, e);
    sqlite3_finalize(s);
    return rc;
}

int rag_begin(struct rag_store *r, struct err *e) { return rag_run(r, "BEGIN IMMEDIATE", e); }

int rag_end(struct rag_store *r, int rc, struct err *e)
{
    if (rc == 0 && rag_run(r, "COMMIT", e) == 0)
        return 0;
    sqlite3_exec(r->db, "ROLLBACK", NULL, NULL, NULL);
    return rc ? rc : -1;
}

/* ---- opening ---- */

/* Create the file ourselves, because SQLite would leave its mode to the umask. */
static int make_file(struct rag_store *r, const char *folder, int create, struct err *e)
{
    struct stat st;
    if (create && mkdir(folder, 0700) && errno != EEXIST)
        return err_sys(e, "%s", folder);
    const int fd = create ? open(r->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600) : -1;
    if (fd >= 0) {
        file_give(fd, r->path);
        close(fd);
    } else if (create && errno != EEXIST && errno != EROFS && errno != EACCES) {
        return err_sys(e, "%s", r->path);
    }
    if (lstat(r->path, &st))
        return errno == ENOENT ? err_set(e, ERR_FORMAT, "%s: there are no documents yet", r->path)
                               : err_sys(e, "%s", r->path);
    if (!S_ISREG(st.st_mode))
        return err_set(e, ERR_IO, "%s: is no regular file", r->path);
    r->dev = st.st_dev;
    r->ino = st.st_ino;
    return file_is_ours(r->path, &st, folder, e);
}

/* The number that a PRAGMA returns. */
static int pragma(struct rag_store *r, const char *sql, int *n, struct err *e)
{
    sqlite3_stmt *s = rag_prepare(r, sql, e);
    if (!s)
        return -1;
    const int rc = sqlite3_step(s) == SQLITE_ROW ? 0 : rag_sql_error(r, e);
    *n = sqlite3_column_int(s, 0);
    sqlite3_finalize(s);
    return rc;
}

static int make_tables(struct rag_store *r, struct err *e)
{
    int version;
    if (pragma(r, "PRAGMA user_version", &version, e))
        return -1;
    if (version > SCHEMA_VERSION)
        return err_set(e, ERR_IO, "%s: was written by a newer program (version %d, expected %d)", r->path, version,
                       SCHEMA_VERSION);
    if (version == SCHEMA_VERSION)
        return 0;
    if (rag_run(r, "PRAGMA journal_mode = WAL", e) || rag_begin(r, e))
        return -1;
    int rc = pragma(r, "PRAGMA user_version", &version, e);          /* another program may have made them by now */
    if (rc == 0 && version < SCHEMA_VERSION)
        rc = rag_run(r, schema, e);
    return rag_end(r, rc, e);
}

static int open_file(struct rag_store *r, struct err *e)
{
    if (sqlite3_open_v2(r->path, &r->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL) != SQLITE_OK)
        return r->db ? rag_sql_error(r, e) : err_nomem(e, r->path);
    sqlite3_busy_handler(r->db, wait_for_others, r);
    sqlite3_progress_handler(r->db, 10000, must_stop, r);
    /* another program may have prepared the file: its schema must not run code that ours would
     * not */
    sqlite3_db_config(r->db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    sqlite3_db_config(r->db, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, NULL);
    /* synchronous=FULL: a document that was acknowledged is on the disk */
    if (rag_run(r, "PRAGMA synchronous = FULL; PRAGMA cache_size = -16000; PRAGMA temp_store = MEMORY;", e))
        return -1;
    return make_tables(r, e) || rag_register_collector(r, e) ? -1 : 0;
}

struct rag_store *rag_open(const char *folder, int create, struct err *e)
{
    struct rag_store *r = calloc(1, sizeof *r);
    if (!r || asprintf(&r->path, "%s/rag.db", folder) < 0) {
        free(r);
        err_nomem(e, "documents");
        return NULL;
    }
    if (make_file(r, folder, create, e) == 0 && open_file(r, e) == 0)
        return r;
    rag_close(r);
    return NULL;
}

void rag_close(struct rag_store *r)
{
    if (!r)
        return;
    sqlite3_close(r->db);
    free(r->path);
    free(r);
}

int rag_is_current(const struct rag_store *r)
{
    struct stat st;
    return stat(r->path, &st) == 0 && st.st_dev == r->dev && st.st_ino == r->ino;
}

/* ---- rows by name ---- */

static int64_t number_of(struct rag_store *r, sqlite3_stmt *s, struct err *e)
{
    const int rc = sqlite3_step(s);
    const int64_t n = rc == SQLITE_ROW ? sqlite3_column_int64(s, 0) : 0;
    const int failed = rc != SQLITE_ROW && rc != SQLITE_DONE && rag_sql_error(r, e);
    sqlite3_finalize(s);
    return failed ? -1 : n;
}

int64_t rag_collection_row(struct rag_store *r, const char *owner, const char *name, struct err *e)
{
    sqlite3_stmt *s = rag_prepare(r, "SELECT id FROM collections WHERE owner = ? AND name = ?", e);
    if (!s)
        return -1;
    sqlite3_bind_text(s, 1, owner, -1, SQLITE_STATIC);
    sqlite3_bind_text(s, 2, name, -1, SQLITE_STATIC);
    return number_of(r, s, e);
}

int64_t rag_model_row(struct rag_store *r, const char *model, struct err *e)
{
    sqlite3_stmt *s = rag_prepare(r, "SELECT id FROM models WHERE name = ?", e);
    if (!s)
        return -1;
    sqlite3_bind_text(s, 1, model, -1, SQLITE_STATIC);
    return number_of(r, s, e);
}
