/* audit.h - the audit log: one JSON object a line for every request, after its end, in two chains
 * of files in one folder.
 *
 * Chains   requests.jsonl has the requests of valid keys and of the administrator's token,
 *          anonymous.jsonl all others, which a server
 *          merges (audit_merge.h).  Each has files, a size and a number of files of its own, so the
 *          second never displaces the first.
 * Files    X.jsonl grows until max_bytes, then becomes X_YYYYmmdd_HHMMSS.jsonl (UTC; a clash gets
 *          _002 ...) and, in the background,
 *          that name with .gz; keep of them stay.  Names rise even when the clock steps back.
 * Chain    every line ends in "seq", its number in the chain, and "hash": the SHA-256 (hex) of the
 *          hash before it and the line's bytes
 *          up to the comma before "hash".  A file begins with a line
 *          {"event":"begin","prev":HASH,"keep":N...} with the last hash of the file before and the
 *          announced retention, so changed, removed and added lines show, and files that are gone
 *          too early.  X.head repeats the number and the hash of the last line: a tail cut off by a
 *          careless hand shows against it, one cut by an attacker who may write into the folder
 *          only against a head that was kept elsewhere or signed (audit_sign.h).
 * Gaps     a writer that finds less than the head, or than it wrote itself, says so in the chain:
 *          {"event":"gap","prev":HEAD,"after":TAIL}.
 * Writers  any number of processes: each line is one write() at the end of the file under a lock
 * (audit.lock), which also guards rotation.
 *          What was written when a process dies is kept by the system; half a line (the machine
 *          died) is ended by the next writer.
 * Trouble  a disk that is full or gone fails no request: the line is dropped and counted.
 *
 * The caller puts neither keys nor prompts into an entry, unless it was told to log prompts. */
#ifndef ZSE_ACCESS_AUDIT_H
#define ZSE_ACCESS_AUDIT_H

#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"
#include "libcommon/base/sha256.h"

#define AUDIT_FILE "requests.jsonl"
enum audit_chain { AUDIT_KEYS, AUDIT_ANONYMOUS, AUDIT_CHAINS };
const char *audit_chain_name(enum audit_chain chain);       /* "requests", "anonymous": how the names of its files begin */
enum { AUDIT_RECENT = 1000, AUDIT_KEEP = 10 };
#define AUDIT_MAX_BYTES ((uint64_t)50000000)

struct audit_entry {                        /* NULL: null in the log */
    int64_t time_ms;                        /* Unix time of the request's begin */
    const char *request_id;
    const char *method, *path;              /* path without its query */
    int status;
    double latency_ms;                      /* to the last byte of the answer */
    const char *key_name, *client_ip, *user_agent, *model;
    int64_t prompt_tokens, completion_tokens;           /* < 0: the request has none */
    const char *error, *prompt;             /* prompt: only if asked for */
    uint64_t count;                         /* > 1: merged from so many requests, the last at last_ms; latency_ms is their mean, tokens their sum */
    int64_t last_ms;
    const char *last_id;
};

struct audit_options {
    const char *folder;                     /* made if missing, mode 0700 */
    enum audit_chain chain;
    uint64_t max_bytes;                     /* 0: AUDIT_MAX_BYTES */
    int keep;                               /* rotated files; 0: AUDIT_KEEP */
    struct audit_signer *signer;            /* signs heads (audit_sign.h); borrowed; NULL: none */
    struct audit_syslog *syslog;            /* gets every line too (audit_syslog.h); borrowed; NULL: none */
};

struct audit;
/* Fails only where it never could work: no memory, no thread. A folder that cannot be written is
 * trouble as above. */
struct audit *audit_open(const struct audit_options *o, struct err *e);
void audit_close(struct audit *a);          /* waits for what is being compressed; NULL is fine */
/* The line of an entry without its end, which audit_write adds: malloc'd, or NULL without memory. */
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
int audit_has_key(const char *text);        /* does it hold what looks like an API key? */
void audit_lost(struct audit *a, const struct err *why);            /* count a line that could not be written */

struct audit_stats {
    uint64_t entries, errors, rotations;    /* of this process; errors: lines dropped */
    int recent;                             /* in memory */
    char last_error[512];
    uint64_t last_error_ns;                 /* when, by clock_ns(); 0: never */
};
void audit_stats(struct audit *a, struct audit_stats *s);
/* The newest first, at most AUDIT_RECENT: line i as written, '\n' not included; 0 when there is
 * no such line. */
int audit_recent(struct audit *a, int i, char **line);              /* caller frees */

/* Empty the current files, with all also what was rotated; a line of the chain says so.
 * *dropped: lines of the current files. Safe beside writers. */
int audit_clear(const char *folder, int all, uint64_t *dropped, struct err *e);

#endif
