/* audit_query.h - read an audit log: select, sum up.  One pass over all files of both chains, in
 * order of time, in constant memory; beside writers. */
#ifndef ZSE_ACCESS_AUDIT_QUERY_H
#define ZSE_ACCESS_AUDIT_QUERY_H

#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "libcommon/base/err.h"

/* A string of a line, borrowed for one call, as it is written: escapes stay. p NULL: null or
 * absent. */
struct audit_text { const char *p; size_t n; };

struct audit_record {                       /* what a line says */
    const char *line; size_t size;          /* without '\n' */
    int64_t time_ms, last_ms;               /* Unix time; of the last request of a merged line, else the same */
    uint64_t count;                         /* requests of this line; 1: it is not merged */
    struct audit_text method, path, key_name, model;
    int status;
    double latency_ms;
    int64_t prompt_tokens, completion_tokens, total_tokens;     /* -1: null */
};

struct audit_filter {                       /* all must hold */
    int64_t since_ms, until_ms;             /* Unix time; 0: open */
    const char *key_name, *path, *method;   /* NULL: any; path: its beginning */
    int status;                             /* 0: any; 4: 400 to 499 */
    double min_latency_ms;
};

/* lines: entries; requests: what they count; bad: lines that are no entry of ours (half a line
 * of a crash, foreign text), skipped. */
struct audit_scan { uint64_t lines, requests, bad; int files; };

/* Every entry that the filter takes, in order; a non-zero answer of fn ends the scan (and is no
 * error). */
int audit_scan(const char *folder, const struct audit_filter *f, int (*fn)(void *user, const struct audit_record *r),
               void *user, struct audit_scan *s, struct err *e);

/* The newest n entries that the filter takes, the newest first; caller frees the lines and the
 * list. */
int audit_newest(const char *folder, const struct audit_filter *f, int n, char ***lines, int *found,
                 struct audit_scan *s, struct err *e);

/* {"period_hours","total_requests","unique_keys","endpoints":{},"status_codes":{},"avg_latency_ms","total_tokens","errors",
 * ...}; errors: status 400 and more. At most 256 paths have a name of their own, the others
 * count as "(other)". now_ms 0: now. NULL on failure. */
json_t *audit_summary(const char *folder, double hours, int64_t now_ms, struct err *e);

/* Spreadsheets: RFC 4180, columns = the union of all fields in the order in which they first
 * appear; "hash" is left out.  Where a spreadsheet could take a text for a formula (= + - @,
 * also full-width, blanks before it aside), at its beginning or behind a semicolon, tab, bar or
 * line break inside it, an apostrophe stands before.  write gets pieces; non-zero stops. */
int audit_csv(const char *folder, const struct audit_filter *f, int (*write)(void *user, const char *text, size_t n),
              void *user, uint64_t *rows, struct err *e);

/* 1: there is a log in the folder, though it may be empty; 0; -1. */
int audit_exists(const char *folder, struct err *e);
int64_t audit_now_ms(void);

/* Files, bytes, lines of the log as it lies there. */
json_t *audit_files_json(const char *folder, struct err *e);

#endif
