/* key_db.c - queries that are the same for every database of keys. */
#include "libcommon/access/key_db.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct key_db *key_db_open(const char *where, enum key_db_mode mode, struct err *e)
{
    return keys_are_shared(where) ? key_postgres_open(where, mode, e) : key_sqlite_open(where, mode, e);
}

int key_db_run(struct key_db *db, const char *sql, struct err *e)
{
    struct key_query q = { .sql = sql };
    return db->class->run(db, &q, e);
}

/* A limit as another program may have written it: larger numbers are cut, and a negative one, which
 * is no limit that has a meaning, is the smallest, so that neither becomes 0, which is none. */
static int64_t limit_of(const struct key_cell *cell, int64_t most)
{
    return cell->number < 0 ? 1 : cell->number > most ? most : cell->number;
}

void key_info_read(const struct key_cell *cell, struct key_info *k)
{
    *k = (struct key_info){ .id = cell[0].number, .created_s = cell[2].number, .expires_s = cell[3].number,
                            .limit = { (int)limit_of(&cell[4], INT_MAX), limit_of(&cell[5], INT64_MAX),
                                       limit_of(&cell[6], INT64_MAX) },
                            .scopes = (unsigned)cell[7].number, .enabled = cell[9].number != 0 };
    snprintf(k->name, sizeof k->name, "%s", cell[1].text);
    snprintf(k->models, sizeof k->models, "%s", cell[8].text);
}

static int read_number(void *user, const struct key_cell *cell, struct err *e)
{
    (void)e;
    *(int *)user = cell[0].number != 0;
    return 0;
}

int key_db_required(struct key_db *db, int *required, struct err *e)
{
    struct key_query q = { .sql = "SELECT value FROM settings WHERE name = 'required'", .row = read_number,
                           .user = required };
    *required = 0;
    return db->class->run(db, &q, e);
}

int key_list_grow(void **list, int n, size_t size, struct err *e)
{
    if (n & (n - 1))                        /* n reached a power of two: double the room */
        return 0;
    void *more = realloc(*list, (size_t)(n ? 2 * n : 1) * size);
    if (!more)
        return err_nomem(e, "the keys");
    *list = more;
    return 0;
}

static int read_known(void *user, const struct key_cell *cell, struct err *e)
{
    struct key_copy *c = user;
    if (cell[10].size != SHA256_SIZE)
        return 0;
    if (key_list_grow((void **)&c->known, c->n, sizeof *c->known, e))
        return -1;
    struct known *k = &c->known[c->n++];
    key_info_read(cell, &k->info);
    memcpy(&k->info.secret, cell[10].bytes, sizeof k->info.secret);
    memcpy(k->hash, cell[10].bytes, SHA256_SIZE);
    return 0;
}

int key_copy_load(struct key_db *db, struct key_copy *c, struct err *e)
{
    struct key_query q = { .sql = "SELECT " KEY_COLUMNS ", hash FROM keys", .row = read_known, .user = c };
    *c = (struct key_copy){ 0 };
    if (key_db_required(db, &c->required, e) == 0 && db->class->run(db, &q, e) == 0)
        return 0;
    free(c->known);
    *c = (struct key_copy){ 0 };
    return -1;
}
