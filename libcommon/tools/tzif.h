/* tzif.h - time zones from the files of the tz database (RFC 9636), without the environment or the
 * C library's global state.
 *
 * Versions 1 to 4 are read; after the last transition the rule in the file's footer (a POSIX TZ
 * string) applies.  Files with leap seconds ("right/...") are refused. */
#ifndef ZSE_TOOLS_TZIF_H
#define ZSE_TOOLS_TZIF_H

#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"

enum { TZ_MAX_BYTES = 256 << 10, TZ_MAX_NAME = 64, TZ_MAX_ABBREVIATION = 15 };

struct tz;                              /* owned by the caller */
struct tz_moment { int32_t offset_s; int is_dst; char name[TZ_MAX_ABBREVIATION + 1]; };

/* From the bytes of a file; name: for messages. */
struct tz *tz_parse(const char *name, const void *data, size_t size, struct err *e);
/* From FOLDER/NAME.  A name that could leave the folder is refused; UTC and offsets such as +02:00
 * need no file. */
struct tz *tz_open(const char *folder, const char *name, struct err *e);
void tz_close(struct tz *z);            /* NULL is fine */
struct tz_moment tz_at(const struct tz *z, int64_t unix_s);

/* ---- POSIX TZ strings: tz_rule.c ---- */
/* A day of the year and a time on it: Jn, n, or Mm.w.d. */
struct tz_day { char form; int month, week, day; int32_t time_s; };
struct tz_rule {
    struct tz_moment standard, daylight;
    int has_daylight;
    struct tz_day start, end;           /* when daylight time begins and ends */
};
/* Returns 0, or -1 with *e.  A rule with daylight time must have its start and end; without them
 * POSIX leaves both to the implementation, so it is refused. */
int tz_rule_parse(const char *text, size_t size, struct tz_rule *r, struct err *e);
struct tz_moment tz_rule_at(const struct tz_rule *r, int64_t unix_s);

/* ---- the calendar: tz_rule.c ---- */
struct civil { int64_t year; int month, day, hour, minute, second, weekday; };  /* weekday: Sunday is 0 */
struct civil civil_of(int64_t s);                       /* seconds since 1970-01-01T00:00:00 */
int64_t civil_days(int64_t year, int month, int day);   /* days since 1970-01-01 */

#endif
