/* json.h - jansson with sentences: parse with the file's name and line in the error, read fields
 * with their name and range.
 *
 * A field that is absent or null takes the default of the _or functions; the others refuse it.
 * A field of another kind is always refused. */
#ifndef ZSE_BASE_JSON_H
#define ZSE_BASE_JSON_H

#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "libcommon/base/err.h"

/* "config.json: line 3, column 7: ...".  Refuses duplicate keys and what is not UTF-8.  New
 * reference, NULL on failure. */
json_t *js_parse(const char *name, const void *text, size_t size, struct err *e);
/* The same of a text that Python wrote: Infinity and NaN, which JSON has not, become the strings
 * of these names. */
json_t *js_parse_python(const char *name, const void *text, size_t size, struct err *e);
/* The same from a file of at most max bytes. */
json_t *js_load(const char *path, size_t max, struct err *e);

/* Is it for want of memory that jansson has parsed nothing?  It does not always say so. */
int js_no_memory(const json_error_t *j);

/* 0, or -1 with the field named. o is an object. A whole number may be written as 3 or as 3.0. */
int js_int(const json_t *o, const char *key, int64_t min, int64_t max, int64_t *out, struct err *e);
int js_int_or(const json_t *o, const char *key, int64_t min, int64_t max, int64_t otherwise, int64_t *out,
              struct err *e);
int js_real_or(const json_t *o, const char *key, double otherwise, double *out, struct err *e);
int js_bool_or(const json_t *o, const char *key, int otherwise, int *out, struct err *e);
/* Borrowed from o. */
int js_string(const json_t *o, const char *key, const char **out, struct err *e);
int js_string_or(const json_t *o, const char *key, const char *otherwise, const char **out, struct err *e);

/* A string of any bytes: those that are not UTF-8 become U+FFFD.  New reference, NULL if memory
 * is out. */
json_t *js_text(const char *text);

/* The field, or NULL if it is absent or null. */
json_t *js_get(const json_t *o, const char *key);
const char *js_kind(const json_t *v);       /* "an object", "null", ... for messages */

#endif
