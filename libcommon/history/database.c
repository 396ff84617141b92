/* database.c - open the file of the history, run its statements, and name what goes wrong. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/file.h"
#include "libcommon/history/internal.h"

enum { SCHEMA_VERSION = 1, BUSY_MS = 5000, STEPS = 2000 };

/* message_index and title_index hold the words that words_of() makes, without their text. */
static const char schema[] =
    "CREATE TABLE owners ("
    " id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, conversations INTEGER NOT NULL DEFAULT 0,"
    " messages INTEGER NOT NULL DEFAULT 0, tokens INTEGER NOT NULL DEFAULT 0, bytes INTEGER NOT NULL DEFAULT 0,"
    " next INTEGER NOT NULL DEFAULT 1);"
    "CREATE TABLE conversations ("
    " id INTEGER PRIMARY KEY, owner INTEGER NOT NULL REFERENCES owners (id), name TEXT NOT NULL, title TEXT NOT NULL,"
    " titled INTEGER NOT NULL, model TEXT, system_prompt TEXT, settings TEXT NOT NULL, folder TEXT, tags TEXT NOT NULL,"
    " pinned INTEGER NOT NULL, created INTEGER NOT NULL, updated INTEGER NOT NULL, messages INTEGER NOT NULL,"
    " tokens INTEGER NOT NULL, bytes INTEGER NOT NULL, next_message INTEGER NOT NULL, active INTEGER,"
    " UNIQUE (owner, name));"
    "CREATE INDEX conversations_listed ON conversations (owner, pinned DESC, updated DESC, id DESC);"
    "CREATE INDEX conversations_updated ON conversations (updated);"
    "CREATE TABLE messages ("
    " id INTEGER PRIMARY KEY, conversation INTEGER NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,"
    " number INTEGER NOT NULL, parent INTEGER, role INTEGER NOT NULL, content TEXT NOT NULL, tokens INTEGER,"
    " latency REAL, metadata TEXT NOT NULL, created INTEGER NOT NULL, UNIQUE (conversation, number));"
    "CREATE VIRTUAL TABLE message_index USING"
    " fts5 (content, content = '', columnsize = 0, tokenize = 'ascii', prefix = '2 3');"
    "CREATE VIRTUAL TABLE title_index USING"
    " fts5 (content, content = '', columnsize = 0, tokenize = 'ascii', prefix = '1 2 3');"
    "PRAGMA user_version = 1;";

static const char *const statements[N_STATEMENTS] = {
#define STATEMENT(name, sql) [SQL_##name] = sql,
#include "libcommon/history/statements.def"
};

const struct history_limits history_default_limits = { .conversations = 100000, .bytes = (int64_t)1 << 30 };

/* ---- faults ---- */

int fault_set(struct history_problem *p, enum history_fault f, const char *field, const char *fmt, ...)
{
    static const enum err_code codes[] = {
        [HISTORY_NOT_FOUND] = ERR_FORMAT, [HISTORY_BAD_VALUE] = ERR_FORMAT, [HISTORY_EXISTS] = ERR_FORMAT,
        [HISTORY_TOO_LARGE] = ERR_LIMIT, [HISTORY_QUOTA] = ERR_LIMIT, [HISTORY_NO_MEMORY] = ERR_MEMORY,
        [HISTORY_DAMAGED] = ERR_FORMAT, [HISTORY_UNAVAILABLE] = ERR_IO,
    };
    char text[sizeof p->e.msg];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    p->fault = f;
    p->field = field;
    return err_set(&p->e, codes[f] ? codes[f] : ERR_IO, "%s", text);
}

int fault_nomem(struct history_problem *p) { return fault_set(p, HISTORY_NO_MEMORY, NULL, "history: out of memory"); }

static int fault_system(struct history_problem *p, const char *path)
{
    const int why = errno;
    return fault_set(p, why == ENOSPC || why == EDQUOT ? HISTORY_FULL : why == EROFS || why == EACCES
                     ? HISTORY_READ_ONLY : HISTORY_UNAVAILABLE, NULL, "%s: %s", path, strerror(why));
}

static int fault_stopped(const struct history *h, struct history_problem *p)
{
    return fault_set(p, HISTORY_UNAVAILABLE, NULL, "%s: the operation took too long, or was stopped", h->path);
}

int fault_sql(struct history *h, struct history_problem *p)
{
    const char *text = sqlite3_errmsg(h->db);
    switch (sqlite3_errcode(h->db) & 0xff) {
    case SQLITE_NOMEM:
        return fault_nomem(p);
    case SQLITE_BUSY: case SQLITE_LOCKED: case SQLITE_PROTOCOL:
        return fault_set(p, HISTORY_BUSY, NULL, "%s: another program holds it locked", h->path);
    case SQLITE_NOTADB: case SQLITE_CORRUPT: case SQLITE_FORMAT:
        return fault_set(p, HISTORY_DAMAGED, NULL, "%s: is damaged (%s); nothing is written to it: move it away to begin anew, or repair it with sqlite3's .recover",
                         h->path, text);
    case SQLITE_READONLY: case SQLITE_CANTOPEN: case SQLITE_PERM:
        return fault_set(p, HISTORY_READ_ONLY, NULL, "%s: cannot be written (%s)", h->path, text);
    case SQLITE_FULL:
        return fault_set(p, HISTORY_FULL, NULL, "%s: its disk is full", h->path);
    case SQLITE_TOOBIG:
        return fault_set(p, HISTORY_TOO_LARGE, NULL, "%s: %s", h->path, text);
    case SQLITE_INTERRUPT:
        return fault_stopped(h, p);
    default:
        return fault_set(p, HISTORY_UNAVAILABLE, NULL, "%s: %s", h->path, text);
    }
}

/* ---- statements ---- */

int64_t history_now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void bind_one(sqlite3_stmt *s, int i, char type, va_list *ap)
{
    int64_t n;
    double x;
    switch (type) {
    case 'D':
        if ((x = va_arg(*ap, double)) < 0)
            sqlite3_bind_null(s, i);
        else
            sqlite3_bind_double(s, i, x);
        break;
    case 't':                           /* the caller keeps the text until the statement has run */
        sqlite3_bind_text(s, i, va_arg(*ap, const char *), -1, SQLITE_STATIC);
        break;
    default:
        n = va_arg(*ap, int64_t);
        if (type == 'n' && n < 0)
            sqlite3_bind_null(s, i);
        else
            sqlite3_bind_int64(s, i, n);
    }
}

sqlite3_stmt *sql_bind(struct history *h, enum statement which, struct history_problem *p, const char *types, ...)
{
    va_list ap;
    if (!h->stmt[which] && sqlite3_prepare_v3(h->db, statements[which], -1, SQLITE_PREPARE_PERSISTENT, &h->stmt[which],
                                              NULL) != SQLITE_OK) {
        fault_sql(h, p);
        return NULL;
    }
    sqlite3_stmt *s = h->stmt[which];
    sqlite3_reset(s);
    sqlite3_clear_bindings(s);
    va_start(ap, types);
    for (int i = 0; types[i]; i++)
        bind_one(s, i + 1, types[i], &ap);
    va_end(ap);
    return s;
}

int sql_step(struct history *h, sqlite3_stmt *s, struct history_problem *p)
{
    const int rc = sqlite3_step(s);
    return rc == SQLITE_ROW ? 1 : rc == SQLITE_DONE ? 0 : fault_sql(h, p);
}

int sql_run(struct history *h, sqlite3_stmt *s, struct history_problem *p)
{
    if (!s)
        return -1;
    const int rc = sql_step(h, s, p);
    sqlite3_reset(s);
    return rc < 0 ? -1 : 0;
}

int sql_begin(struct history *h, int write, struct history_problem *p)
{
    return sql_run(h, sql_bind(h, write ? SQL_BEGIN_WRITE : SQL_BEGIN_READ, p, ""), p);
}

int sql_end(struct history *h, int rc, struct history_problem *p)
{
    struct history_problem ignored;
    for (int i = 0; i < N_STATEMENTS; i++)      /* an open row would keep the log from being written back */
        if (h->stmt[i])
            sqlite3_reset(h->stmt[i]);
    if (rc == 0 && sql_run(h, sql_bind(h, SQL_COMMIT, p, ""), p) == 0)
        return 0;
    if (!sqlite3_get_autocommit(h->db))
        sql_run(h, sql_bind(h, SQL_ROLLBACK, &ignored, ""), &ignored);
    return -1;
}

json_t *sql_end_json(struct history *h, json_t *result, struct history_problem *p)
{
    if (sql_end(h, result ? 0 : -1, p) == 0)
        return result;
    json_decref(result);
    return NULL;
}

json_t *sql_write(struct history *h, sql_change *make, struct history_change x, struct history_problem *p)
{
    if (sql_begin(h, 1, p))
        return NULL;
    x.text = json_array();
    json_t *out = sql_end_json(h, make(h, &x, p), p);
    json_decref(x.text);
    return out;
}

int ask_memory(struct history *h, size_t bytes, struct history_problem *p)
{
    if (!h->ask || h->ask(h->ask_user, bytes) == 0)
        return 0;
    return fault_set(p, HISTORY_TOO_LARGE, NULL,
                     "the answer takes %zu bytes of memory, which the server does not give it",
                     bytes);
}

/* ---- opening ---- */

static int is_late(void *user)
{
    const struct history *h = user;
    return (h->deadline_ns && clock_ns() > h->deadline_ns) || (h->cancel && atomic_load(h->cancel));
}

int sql_go_on(struct history *h, struct history_problem *p) { return is_late(h) ? fault_stopped(h, p) : 0; }

static int wait_for_others(void *user, int n)
{
    if (n > BUSY_MS / 10 || is_late(user))
        return 0;
    nanosleep(&(struct timespec){ .tv_nsec = n < 10 ? 1000000 : 10000000 }, NULL);
    return 1;
}

/* Create the file ourselves, because SQLite would leave its mode to the umask.  Its log takes the
 * same mode. */
static int make_file(struct history *h, const char *folder, int write, struct history_problem *p)
{
    struct stat st;
    struct err e;
    if (write && mkdir(folder, 0700) && errno != EEXIST)
        return fault_system(p, folder);
    const int fd = write ? open(h->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600) : -1;
    if (fd >= 0) {
        file_give(fd, h->path);
        close(fd);
    } else if (write && errno != EEXIST) {
        return fault_system(p, h->path);
    }
    if (lstat(h->path, &st))
        return errno == ENOENT ? fault_set(p, HISTORY_NOT_FOUND, NULL, "%s: there is no history yet", h->path)
                               : fault_system(p, h->path);
    if (!S_ISREG(st.st_mode))
        return fault_set(p, HISTORY_UNAVAILABLE, NULL, "%s: is no regular file", h->path);
    return file_is_ours(h->path, &st, folder, &e) ? fault_set(p, HISTORY_UNAVAILABLE, NULL, "%s", e.msg) : 0;
}

static int run_text(struct history *h, const char *sql, struct history_problem *p)
{
    return sqlite3_exec(h->db, sql, NULL, NULL, NULL) == SQLITE_OK ? 0 : fault_sql(h, p);
}

static int read_version(struct history *h, int64_t *version, struct history_problem *p)
{
    sqlite3_stmt *s = NULL;
    if (sqlite3_prepare_v2(h->db, "PRAGMA user_version", -1, &s, NULL) != SQLITE_OK)
        return fault_sql(h, p);
    const int rc = sqlite3_step(s) == SQLITE_ROW ? 0 : fault_sql(h, p);
    *version = sqlite3_column_int64(s, 0);
    sqlite3_finalize(s);
    return rc;
}

/* Create the tables, unless another program does so at the same time. */
static int make_tables(struct history *h, struct history_problem *p)
{
    int64_t version;
    if (run_text(h, "PRAGMA auto_vacuum = INCREMENTAL; PRAGMA journal_mode = WAL;", p) || sql_begin(h, 1, p))
        return -1;
    int rc = read_version(h, &version, p);
    if (rc == 0 && version == 0)
        rc = run_text(h, schema, p);
    return sql_end(h, rc, p);
}

static int open_tables(struct history *h, int write, struct history_problem *p)
{
    int64_t version;
    if (run_text(h, "PRAGMA foreign_keys = ON; PRAGMA synchronous = FULL; PRAGMA secure_delete = FAST;"
                    " PRAGMA journal_size_limit = 16777216; PRAGMA cache_size = -8192; PRAGMA cell_size_check = ON;",
                    p) ||
        read_version(h, &version, p))
        return -1;
    if (version == 0 && !write)
        return fault_set(p, HISTORY_NOT_FOUND, NULL, "%s: there is no history yet", h->path);
    if (version > SCHEMA_VERSION)
        return fault_set(p, HISTORY_UNAVAILABLE, NULL,
                         "%s: was written by a newer version of ZSE (schema %d, expected %d)",
                         h->path, (int)version, SCHEMA_VERSION);
    return version == 0 ? make_tables(h, p) : 0;
}

static struct history *open_history(const char *folder, int write, struct history_problem *p)
{
    struct history *h = calloc(1, sizeof *h);
    if (!h || asprintf(&h->path, "%s/chats.db", folder) < 0) {
        free(h);
        fault_nomem(p);
        return NULL;
    }
    h->limits = history_default_limits;
    if (make_file(h, folder, write, p) == 0) {
        const int flags = SQLITE_OPEN_NOMUTEX | (write ? SQLITE_OPEN_READWRITE : SQLITE_OPEN_READONLY);
        const int rc = sqlite3_open_v2(h->path, &h->db, flags, NULL);
        if (!h->db) {
            fault_nomem(p);
        } else if (rc != SQLITE_OK) {
            fault_sql(h, p);
        } else {
            sqlite3_busy_handler(h->db, wait_for_others, h);
            sqlite3_progress_handler(h->db, STEPS, is_late, h);
            if (open_tables(h, write, p) == 0)
                return h;
        }
    }
    history_close(h);
    return NULL;
}

struct history *history_open(const char *folder, const struct history_limits *limits, struct history_problem *p)
{
    struct history *h = open_history(folder, 1, p);
    if (h && limits && limits->conversations)
        h->limits.conversations = limits->conversations;
    if (h && limits && limits->bytes)
        h->limits.bytes = limits->bytes;
    return h;
}

struct history *history_open_read(const char *folder, struct history_problem *p) { return open_history(folder, 0, p); }

void history_close(struct history *h)
{
    if (!h)
        return;
    for (int i = 0; i < N_STATEMENTS; i++)
        sqlite3_finalize(h->stmt[i]);
    sqlite3_close(h->db);
    free(h->path);
    free(h);
}

void history_interrupt(struct history *h) { sqlite3_interrupt(h->db); }

void history_set_deadline(struct history *h, double seconds)
{
    h->deadline_ns = clock_ns() + (uint64_t)(seconds * 1e9);
}

void history_set_cancel(struct history *h, const atomic_int *flag) { h->cancel = flag; }

void history_set_budget(struct history *h, int (*ask)(void *user, size_t bytes), void *user)
{
    h->ask = ask;
    h->ask_user = user;
}
