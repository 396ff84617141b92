/* audit_query.h - read an audit log: select, sum up, verify.  One pass over all files, the oldest first, in constant memory; beside writers. */
#ifndef ZSE_ACCESS_AUDIT_QUERY_H
#define ZSE_ACCESS_AUDIT_QUERY_H

#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "libcommon/base/err.h"
#include "libcommon/base/sha256.h"

/* A string of a line, borrowed for one call, as it is written: escapes stay. p NULL: null or absent. */
struct audit_text { const char *p; size_t n; };

struct audit_record {                       /* what a line says */
    const char *line; size_t size;          /* without '\n' */
    int64_t time_ms;                        /* Unix time */
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

/* bad: lines that are no entry of ours (half a line of a crash, foreign text), skipped. */
struct audit_scan { uint64_t lines, bad; int files; };

/* Every entry that the filter takes, in order; a non-zero answer of fn ends the scan (and is no error). */
int audit_scan(const char *folder, const struct audit_filter *f, int (*fn)(void *user, const struct audit_record *r), void *user,
               struct audit_scan *s, struct err *e);

/* The newest n entries that the filter takes, the newest first; caller frees the lines and the list. */
int audit_newest(const char *folder, const struct audit_filter *f, int n, char ***lines, int *found, struct audit_scan *s, struct err *e);

/* {"period_hours","total_requests","unique_keys","endpoints":{},"status_codes":{},"avg_latency_ms","total_tokens","errors", ...}; errors: status
 * 400 and more. At most 256 paths have a name of their own, the others count as "(other)". now_ms 0: now. NULL on failure. */
json_t *audit_summary(const char *folder, double hours, int64_t now_ms, struct err *e);

/* Spreadsheets: RFC 4180, columns = the union of all fields in the order in which they first appear; "hash" is left out.  Where a spreadsheet could
 * take a text for a formula (= + - @, also full-width, blanks before it aside), at its beginning or behind a semicolon, tab, bar or line break inside
 * it, an apostrophe stands before.  write gets pieces; non-zero stops. */
int audit_csv(const char *folder, const struct audit_filter *f, int (*write)(void *user, const char *text, size_t n), void *user, uint64_t *rows, struct err *e);

struct audit_check {
    uint64_t lines, bad;                    /* of the chain; that are no part of it, between whole ones */
    int files;
    char head[SHA256_HEX + 1];              /* the last hash */
    int64_t head_ms;                        /* when that line was written */
    int older_gone;                         /* the oldest file goes on from one that is not there any more */
    int found;                              /* the expected hash is part of the chain */
    int broken;                             /* and where: */
    char where[512];
};
/* Walk the chain. expect: a hash written down earlier, or NULL. -1 only when the files cannot be read; broken says what they show. */
int audit_verify(const char *folder, const char *expect, struct audit_check *c, struct err *e);

/* Files, bytes, lines of the log as it lies there. */
json_t *audit_files_json(const char *folder, struct err *e);

#endif
