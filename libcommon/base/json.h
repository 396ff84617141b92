/* json.h - JSON by jansson, with errors as sentences: parsing names the file and line, reading a
 * field names the field and its range.
 *
 * The _or functions return a default for an absent or null field; the others refuse it.  A field of
 * another kind is always refused. */
#ifndef ZSE_BASE_JSON_H
#define ZSE_BASE_JSON_H

#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "libcommon/base/err.h"

/* Errors read "config.json: line 3, column 7: ...".  Refuses duplicate keys and invalid UTF-8.  New
 * reference, or NULL. */
json_t *js_parse(const char *name, const void *text, size_t size, struct err *e);
/* Like js_parse(), but strings may contain U+0000, so that their length is json_string_length(). */
json_t *js_parse_nul(const char *name, const void *text, size_t size, struct err *e);
/* Like js_parse(), for the output of Python: Infinity and NaN, which are not JSON, become strings
 * of these names. */
json_t *js_parse_python(const char *name, const void *text, size_t size, struct err *e);
/* Like js_parse_python(), for a file of at most max bytes. */
json_t *js_load(const char *path, size_t max, struct err *e);

/* 1 if jansson failed for lack of memory; it does not always set the error code for that. */
int js_no_memory(const json_error_t *j);

/* 0, or -1 with the field named.  o is an object.  A whole number may be written as 3 or as 3.0. */
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

/* "2026-11-23T17:52:11.123Z": milliseconds since 1970 as ISO 8601 in UTC.  New reference, or NULL
 * without memory. */
json_t *js_time(int64_t ms);

#endif
