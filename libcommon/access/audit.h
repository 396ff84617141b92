/* audit.h - the audit log: one line of JSON for every finished request, in two chains of files.
 *
 * Chains   requests.jsonl has the requests of valid keys and of the administrator's token,
 *          anonymous.jsonl all others, which a server merges (audit_merge.h).  Each has its own
 *          files, file size and number of files, so anonymous requests never displace others.
 * Files    X.jsonl grows to max_bytes and is then renamed to X_YYYYmmdd_HHMMSS.jsonl (UTC; a clash
 *          gets _002 ...) and compressed to .gz in the background.  `keep` of them stay.  Names
 *          increase even when the clock steps back.
 * Chain    every line ends in "seq", its number in the chain, and "hash": the SHA-256 (hex) of the
 *          previous hash and of the line's bytes up to the comma before "hash".  A file begins with
 *          the line {"event":"begin","prev":HASH,"keep":N...}, which has the last hash of the
 *          previous file and the retention.  This reveals lines that were changed, removed or
 *          added, and files that were removed too early.  X.head repeats the number and the hash
 *          of the last line: it reveals an end that was cut off by mistake.  An attacker who can
 *          write to the folder can change X.head too: only a head that was copied elsewhere or
 *          signed (audit_sign.h) reveals that.
 * Gaps     a writer that finds less than X.head says, or less than it wrote itself, adds the line
 *          {"event":"gap","prev":HEAD,"after":TAIL}.
 * Writers  any number of processes: each line is one write() at the end of the file under a lock
 *          (audit.lock), which also covers rotation.  The kernel keeps the lines of a process that
 *          dies; a partial line (the machine died) is ended by the next writer.
 * Errors   a full or missing disk fails no request: the line is dropped and counted.
 *
 * The caller puts no keys into an entry, and prompts only if logging them is switched on. */
#ifndef ZSE_ACCESS_AUDIT_H
#define ZSE_ACCESS_AUDIT_H

#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"
#include "libcommon/base/sha256.h"

#define AUDIT_FILE "requests.jsonl"
enum audit_chain { AUDIT_KEYS, AUDIT_ANONYMOUS, AUDIT_CHAINS };
/* "requests", "anonymous": the beginning of its file names */
const char *audit_chain_name(enum audit_chain chain);
enum { AUDIT_RECENT = 1000, AUDIT_KEEP = 10 };
#define AUDIT_MAX_BYTES ((uint64_t)50000000)

struct audit_entry {                        /* NULL: null in the log */
    int64_t time_ms;                        /* Unix time at which the request began */
    const char *request_id;
    const char *method, *path;              /* path without its query */
    int status;
    double latency_ms;                      /* to the last byte of the answer */
    const char *key_name, *client_ip, *user_agent, *model;
    int64_t prompt_tokens, completion_tokens;           /* < 0: the request has none */
    const char *error, *prompt;             /* prompt: only if logging it is switched on */
    /* > 1: number of merged requests, the last at last_ms; latency_ms is their mean, tokens are
     * their sums */
    uint64_t count;
    int64_t last_ms;
    const char *last_id;
};

/* Servers that receive the lines besides the files. */
struct audit_remotes {
    struct audit_syslog *syslog;            /* audit_syslog.h; borrowed; NULL: none */
    struct audit_post *post;                /* audit_post.h; borrowed; NULL: none */
};
enum audit_remote { REMOTE_SYSLOG, REMOTE_URL, AUDIT_REMOTES };
struct audit_remote_stats { uint64_t sent, dropped; int waiting; char last_error[512]; };      /* numbers of lines */

struct audit_options {
    const char *folder;                     /* made if missing, mode 0700 */
    enum audit_chain chain;
    uint64_t max_bytes;                     /* 0: AUDIT_MAX_BYTES */
    int keep;                               /* rotated files; 0: AUDIT_KEEP */
    struct audit_signer *signer;            /* signs heads (audit_sign.h); borrowed; NULL: none */
    struct audit_remotes remotes;
};

struct audit;
/* Fails only without memory or threads.  A folder that cannot be written is no failure: see Errors
 * above. */
struct audit *audit_open(const struct audit_options *o, struct err *e);
void audit_close(struct audit *a);          /* waits for the compression to finish; NULL is fine */
/* The line of an entry without its end, which audit_write adds.  malloc'd; NULL without memory. */
char *audit_line(const struct audit_entry *x, size_t *n);

/* The next three cannot fail, wait for the lock and the disk (audit_queue.h does not), and may be
 * called by several threads at once. */
/* Begin the first file.  Write to the chain if lines are missing or the retention has changed
 * since the last writer. */
void audit_begin(struct audit *a);
/* Add a line of audit_line() to the file, and free it. */
void audit_write(struct audit *a, char *line, size_t n);
/* Sign the head if this process has added lines since the last signature. */
void audit_sign_head(struct audit *a);
int audit_has_key(const char *text);        /* does it contain something like an API key? */
void audit_lost(struct audit *a, const struct err *why);            /* count a line that could not be written */

struct audit_stats {
    uint64_t entries, errors, rotations;    /* counts of this process; errors: dropped lines */
    int recent;                             /* in memory */
    char last_error[512];
    uint64_t last_error_ns;                 /* when, by clock_ns(); 0: never */
};
void audit_stats(struct audit *a, struct audit_stats *s);
/* Line i, counted from the newest, of the last AUDIT_RECENT lines, as written but without '\n'.  0:
 * there is no such line. */
int audit_recent(struct audit *a, int i, char **line);              /* caller frees */

/* Empty the current files; with `all`, also remove the rotated files.  A line in the chain records
 * the clearing.  *dropped: number of lines in the current files.  Safe while writers run. */
int audit_clear(const char *folder, int all, uint64_t *dropped, struct err *e);

#endif
