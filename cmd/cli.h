/* cli.h - exit codes, help, numbers on the command line and a progress bar, for all programs.
 *
 * Exit codes: 0 done, 1 it failed or a check did, 2 wrong usage.  Functions that name an exit code
 * return it, so that main() can say `return cli_fail(...)`. */
#ifndef ZSE_CMD_CLI_H
#define ZSE_CMD_CLI_H

#include <getopt.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "libcommon/base/err.h"
#include "libcommon/base/file.h"
#include "libcommon/base/plural.h"
#include "libcommon/base/progress.h"

enum {
    CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2,
    CLI_NO_MEMORY = 137,        /* memory ran out: the status of a process that the kernel ends for that reason */
};

/* --print-defaults, for cli_getopt(); other long options count from 256 on. */
enum { CLI_PRINT_DEFAULTS = 255 };
#define CLI_DEFAULTS_OPTION { "print-defaults", no_argument, NULL, CLI_PRINT_DEFAULTS }
#define CLI_DEFAULTS_HELP "      --print-defaults       print the options that have a default, and the defaults\n"

/* Call this first in main(): it opens closed standard descriptors so that reading or writing them
 * fails.  Otherwise the next file that is opened, a model or a database, could get the number of
 * such a descriptor, and messages would be written to it. */
void cli_start(void);
int cli_help(const char *usage);                            /* prints usage on stdout: 0 */
/* --print-defaults: print each option of the usage that has a default: 0 */
int cli_defaults(const char *usage);
int cli_version(const char *prog);                          /* prints "prog 0.1.0" on stdout: 0 */
/* prints the synopsis (the beginning of usage) and a hint at --help on stderr: 2 */
int cli_usage(const char *usage);
/* "prog: TEXT" and a hint at --help on stderr: 2 */
int cli_wrong(const char *prog, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int cli_fail(const char *prog, const struct err *e);        /* "prog: MESSAGE" on stderr: 1 */
/* "prog: TEXT" on stderr, filtered by cli_plain */
void cli_note(const char *prog, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Copy text without the characters that control a terminal: control characters become '?', except
 * tab and newline.  Returns out, cut to room. */
const char *cli_plain(char *out, size_t room, const char *text);
/* getopt_long() that also suggests the nearest option for an unknown one. */
int cli_getopt(int argc, char *const *argv, const char *letters, const struct option *options);
/* The name nearest to a mistyped word, NULL if none is near.  names: the first of n pointers,
 * stride bytes apart; NULL and "" are skipped. */
const char *cli_nearest(const char *word, const void *names, size_t stride, size_t n);
/* Print "prog: 'WORD' is not a command" and suggest the nearest one: 2. */
int cli_no_command(const char *prog, const char *word, const void *names, size_t stride, size_t n);
/* For an argument that is a command or a MODEL: 1 if the word is not a file, has no slash, and is
 * near to one of the names. */
int cli_is_mistyped(const char *word, const void *names, size_t stride, size_t n);
/* Flush stdout and report its errors, for example a full disk: 0 or 1. */
int cli_finish(const char *prog);
/* Flush stdout now; cli_finish() reports errors. */
void cli_flush(void);
/* Print one JSON object and a newline on stdout. */
void cli_json(const json_t *json);

/* Ask a question on the terminal: 1 if the answer begins with y, else 0, also without a
 * terminal. */
int cli_ask(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* The key for a server: `given`, else $ZSE_API_KEY, else $OPENAI_API_KEY; NULL: there is none. */
const char *cli_api_key(const char *given);
/* The file of certificates to trust, $CURL_CA_BUNDLE or $SSL_CERT_FILE; NULL: the system's. */
const char *cli_ca_file(void);
/* path with a leading ~/ replaced by the user's home.  Caller frees; NULL: out of memory. */
char *cli_expand_home(const char *path);

/* The output of -o FILE.  Like atomic_open() and atomic_commit(), but "-" is standard output, and a
 * model is never replaced by a file of another kind. */
int cli_output_open(struct atomic_file *f, const char *path, struct err *e);
int cli_output_commit(struct atomic_file *f, struct err *e);

/* Parse numbers of the command line.  0, or 2 after a message on stderr that names the option, the
 * text and the range. */
int cli_parse_int(const char *prog, const char *option, const char *text, long long min, long long max, long long *out);
int cli_parse_float(const char *prog, const char *option, const char *text, double min, double max, double *out);
/* Bytes: "6GB" = 6e9, "6GiB" = 6 * 2^30, "512M", "1.5T", "4096", in upper or lower case. */
int cli_parse_size(const char *prog, const char *option, const char *text, uint64_t *out);

/* A point in time, as Unix time: 2027-01-31, 2027-01-31T12:00:00Z, or 90d, 12h, 30m from now
 * (direction 1) or before now (-1). */
int cli_parse_time(const char *prog, const char *option, const char *text, int direction, int64_t *out_s);

/* "1.07 GB"; with both: "1.07 GB (1.00 GiB)".  Returns out. */
enum { CLI_BYTES = 48 };
const char *cli_bytes(char out[CLI_BYTES], uint64_t n);
const char *cli_bytes_both(char out[CLI_BYTES], uint64_t n);
/* "0.8 s", "59 s", "1 min 05 s", "2 h 03 min" */
const char *cli_duration(char out[CLI_BYTES], double seconds);

/* For programs that hold keys: no core file, and no other process of the same user may read this
 * one's memory (ptrace, /proc/PID/mem).  Call it again after the user id has changed: the kernel
 * then resets PR_SET_DUMPABLE to fs.suid_dumpable, which may permit reading the memory again. */
void cli_hide_memory(void);

/* From now on Ctrl-C and SIGTERM do not end the program: cli_interrupted() returns the signal's
 * number, and cli_progress asks the reporting function to stop. */
void cli_catch_interrupt(void);
int cli_interrupted(void);
/* Ignore SIGPIPE while libcurl runs: TLS writes to sockets without MSG_NOSIGNAL.  Afterwards a
 * closed standard output ends the program again. */
void cli_ignore_pipe(struct sigaction *before);
void cli_restore_pipe(const struct sigaction *before);
/* After ERR_CANCELLED: end by the signal that cancelled, so that the shell sees the reason.
 * Returns if no signal was caught. */
void cli_die_of_interrupt(void);

/* A progress bar on stderr: only on a terminal, and only after one second of work.  Messages
 * (cli_note, cli_fail ...) from any thread erase it first; the next report draws it again. */
struct cli_progress {
    struct progress progress;       /* hand &p.progress to the library */
    int on, ended;                  /* ended: its last line was written (json) */
    uint64_t start_ns, drawn_ns;    /* when the current step began, and when it was last drawn */
    uint64_t first;                 /* `done` of the step's first report: earlier work does not count in the rate */
    char what[64];
};
void cli_progress_init(struct cli_progress *p);
/* --progress FORM.  bar: a progress bar, the default.  json: each report becomes a line of standard
 * error, {"step","done","total","unit"}, even without a terminal, five lines a second at most.
 * When the reader of the lines is gone, the work stops.  0, or the exit code of wrong usage. */
int cli_progress_form(const char *prog, const char *form);
void cli_progress_clear(void);      /* call at the end of the work, or before output on stdout */
/* For a signal handler, which must not wait: the bytes to write to stderr before a message, ""
 * without a bar. */
const char *cli_progress_wipe(void);

#endif
