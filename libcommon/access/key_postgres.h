/* key_postgres.h - the connection of a database of keys, for the counters beside them. */
#ifndef ZSE_ACCESS_KEY_POSTGRES_H
#define ZSE_ACCESS_KEY_POSTGRES_H

#include "libcommon/access/key_db.h"
#include "libcommon/access/postgres.h"

struct postgres *key_postgres(struct key_db *db);       /* borrowed; db is of key_postgres_open() */

#endif
