/* store.h - models with names: the folder $ZSE_HOME/models.
 *
 * A name is a file: "smollm2:135m" is smollm2:135m.zse.  An alias is a symbolic link to such a
 * file, and the default model is the alias "default".  The last use of a model is recorded as the
 * modification time of the empty file .NAME.used.  Files that other programs put into the folder
 * are models, too, if store_is_name() accepts their names.
 *
 * A name may come from a client over HTTP: it never contains a slash and never begins with a dot,
 * so that it cannot leave the folder. */
#ifndef ZSE_STORE_STORE_H
#define ZSE_STORE_STORE_H

#include <stdint.h>

#include "libcommon/base/err.h"

#define STORE_DEFAULT "default"
enum { STORE_NAME_BYTES = 128 };

/* 1 to 127 bytes, letters, digits and ". _ - : +", the first a letter or a digit. */
int store_is_name(const char *name);
/* Make a name of a text: its upper case becomes lower case, other characters become '-'. */
void store_make_name(char out[STORE_NAME_BYTES], const char *text);

struct store_model {
    char name[STORE_NAME_BYTES];
    char of[STORE_NAME_BYTES];          /* for an alias: the name of its model; else "" */
    uint64_t bytes;
    int64_t modified_s, used_s;         /* Unix time; used_s 0: never */
    uint64_t dev, ino;                  /* identity of the file; for an alias, of its model's file */
};
/* The models of the folder by name, aliases included; an alias whose model is gone is left out.  A
 * folder that does not exist has none.  Returns their number, or -1 with *e; free(*list). */
int store_list(const char *folder, struct store_model **list, struct err *e);

/* Find the model that a word names: a model or an alias of this name, else the only model whose
 * name is the word followed by a colon and a tag.  0, and out holds the name; 1: there is none; -1
 * with *e: several have the name, or the folder cannot be read. */
int store_find(const char *folder, const char *word, char out[STORE_NAME_BYTES], struct err *e);
/* The model to use when none is named: the default, else the only one.  Returns as store_find
 * does. */
int store_find_default(const char *folder, char out[STORE_NAME_BYTES], struct err *e);

/* Replace the name of an alias by the name it stands for. */
void store_follow(const char *folder, char name[STORE_NAME_BYTES]);

/* The path of the file for a name, which need not exist.  Caller frees; NULL with *e: it is no
 * valid name. */
char *store_path(const char *folder, const char *name, struct err *e);
/* The path of the model that a word names, as store_find; NULL, *e untouched: there is none. */
char *store_lookup(const char *folder, const char *word, struct err *e);

/* Remove a model and its aliases, or one alias.  -1 with *e: it failed, or there is none of this
 * exact name (ERR_FORMAT). */
int store_remove(const char *folder, const char *name, struct err *e);
/* Point an alias to the model or alias called name; an existing alias is changed.  A model is never
 * replaced. */
int store_alias(const char *folder, const char *alias, const char *name, struct err *e);
/* Note that the model at path was used just now, if it is in the folder.  Errors are ignored. */
void store_touch(const char *folder, const char *path);

#endif
