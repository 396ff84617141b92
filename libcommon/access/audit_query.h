/* audit_query.h - read an audit log: filters and sums.  One pass over all files of both chains, in
 * order of time, in constant memory; safe while writers run. */
#ifndef ZSE_ACCESS_AUDIT_QUERY_H
#define ZSE_ACCESS_AUDIT_QUERY_H

#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "libcommon/base/err.h"

/* A string of a line, borrowed for one call, with its escapes as written.  p NULL: null or
 * absent. */
struct audit_text { const char *p; size_t n; };

struct audit_record {                       /* the fields of a line */
    const char *line; size_t size;          /* without '\n' */
    /* Unix times.  time_ms: of the request; last_ms: of the last request that was merged into this
     * line, or else equal to time_ms. */
    int64_t time_ms, last_ms;
    uint64_t count;                         /* requests merged into this line; 1: not merged */
    struct audit_text method, path, key_name, model;
    int status;
    double latency_ms;
    int64_t prompt_tokens, completion_tokens, total_tokens;     /* -1: null */
};

struct audit_filter {                       /* all conditions must hold */
    int64_t since_ms, until_ms;             /* Unix time; 0: open */
    const char *key_name, *path, *method;   /* NULL: any; path: a prefix */
    int status;                             /* 0: any; 4: 400 to 499 */
    double min_latency_ms;
};

/* lines: number of entries; requests: number of requests, including merged ones; bad: number of
 * lines that are no entries (partial lines of a crash, foreign text), which are skipped. */
struct audit_scan { uint64_t lines, requests, bad; int files; };

/* Call fn for every entry that passes the filter, in order.  A non-zero result of fn ends the scan,
 * without an error. */
int audit_scan(const char *folder, const struct audit_filter *f, int (*fn)(void *user, const struct audit_record *r),
               void *user, struct audit_scan *s, struct err *e);

/* The newest n entries that pass the filter, newest first.  Caller frees the lines and the list. */
int audit_newest(const char *folder, const struct audit_filter *f, int n, char ***lines, int *found,
                 struct audit_scan *s, struct err *e);

/* {"period_hours", "total_requests", "unique_keys", "endpoints": {}, "status_codes": {},
 * "avg_latency_ms", "total_tokens", "errors", ...}; errors: status 400 and above.  At most 256
 * paths are listed by name, the others count as "(other)".  now_ms 0: now.  NULL on failure. */
json_t *audit_summary(const char *folder, double hours, int64_t now_ms, struct err *e);

/* Export as CSV (RFC 4180): the columns are all fields in the order in which they first appear,
 * except "hash".  An apostrophe is put before text that a spreadsheet could take for a formula.
 * Such text begins with = + - or @ (also full-width), perhaps after blanks, and stands at the
 * beginning of a cell or after a semicolon, tab, bar or line break in it.  write is called with
 * pieces of the output; non-zero stops. */
int audit_csv(const char *folder, const struct audit_filter *f, int (*write)(void *user, const char *text, size_t n),
              void *user, uint64_t *rows, struct err *e);

/* 1: the folder has a log, perhaps an empty one; 0: it has none; -1: an error. */
int audit_exists(const char *folder, struct err *e);
int64_t audit_now_ms(void);

/* Number of files, bytes and lines of the log. */
json_t *audit_files_json(const char *folder, struct err *e);

#endif
