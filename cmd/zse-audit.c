/* zse-audit.c - read the audit log of zse-serve: compute sums, select and export lines, and verify
 * that nothing was changed and nothing is missing. */
#include <dirent.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cmd/audit_report.h"
#include "cmd/cli.h"
#include "cmd/home.h"
#include "libcommon/access/audit.h"
#include "libcommon/access/audit_query.h"
#include "libcommon/access/audit_sign.h"
#include "libcommon/access/audit_verify.h"

static const char prog[] = "zse-audit";
static const char usage[] =
    "usage: zse-audit [COMMAND] [OPTIONS]\n"
    "Read the audit log of zse-serve.\n"
    "  summary                    the last 24 hours in sums (the default command)\n"
    "  recent                     the last 20 requests\n"
    "  query                      requests that pass all filters, the newest first\n"
    "  export -o FILE             the same, the oldest first, all of them\n"
    "  report -o FILE             the last 24 hours as a page: requests, errors, latencies, tokens, by time, key, path and model\n"
    "  verify                     check that nothing was changed or is missing (exit 1: something is)\n"
    "  head                       the hashes to store elsewhere\n"
    "  stats                      files, bytes, lines\n"
    "  clear                      empty the log\n"
    "  -H, --hours N              summary, report, query, export: only the last N hours (default: summary, report: 24)\n"
    "  -l, --limit N              recent, query: at most N (default: recent: 20; query: 100)\n"
    "  -k, --key NAME/FILE        query, export, report: the name of an API key; verify: the public key that the log's signatures must be of\n"
    "  -s, --status CODE          query, export, report: 429, or 4 for all of 400 to 499\n"
    "  -p, --path PREFIX          query, export, report: paths with this prefix\n"
    "  -m, --method NAME          query, export, report: GET, POST ...\n"
    "      --min-latency MS       query, export, report: requests that took at least this long\n"
    "  -f, --format jsonl|csv     export: one JSON object a line, or a table (default: jsonl)\n"
    "  -o, --output FILE          export, report: the file, which appears complete or not at all; '-': standard output\n"
    "      --since HASH|TIME      verify: nothing may be missing after this line (a hash that head printed) or time (2027-01-31, 30d)\n"
    "      --expect HASH          verify: this hash, printed by head earlier, must be part of the log\n"
    "      --all                  clear: rotated files too\n"
    "      --yes                  clear: do not ask\n"
    "      --folder DIR           the log's folder (default: audit in $ZSE_HOME, else in ~/.zse)\n"
    "  -j, --json                 JSON: one object, or one a line\n"
    CLI_DEFAULTS_HELP
    "  -h, --help                 show this help\n"
    "  -V, --version              show the version\n";

enum { OPT_LATENCY = 256, OPT_EXPECT, OPT_ALL, OPT_YES, OPT_FOLDER, OPT_SINCE };
static const struct option long_options[] = {
    { "hours", required_argument, NULL, 'H' }, { "limit", required_argument, NULL, 'l' },
        { "key", required_argument, NULL, 'k' },
    { "status", required_argument, NULL, 's' }, { "path", required_argument, NULL, 'p' },
    { "method", required_argument, NULL, 'm' },
    { "min-latency", required_argument, NULL, OPT_LATENCY }, { "format", required_argument, NULL, 'f' },
    { "output", required_argument, NULL, 'o' },
    { "since", required_argument, NULL, OPT_SINCE }, { "expect", required_argument, NULL, OPT_EXPECT },
    { "all", no_argument, NULL, OPT_ALL }, { "yes", no_argument, NULL, OPT_YES },
    { "folder", required_argument, NULL, OPT_FOLDER }, { "json", no_argument, NULL, 'j' },
    CLI_DEFAULTS_OPTION, { "help", no_argument, NULL, 'h' },
    { "version", no_argument, NULL, 'V' }, { NULL, 0, NULL, 0 },
};

/* The options of each command. */
enum { TAKES_HOURS = 1, TAKES_LIMIT = 2, TAKES_FILTER = 4, TAKES_EXPORT = 8, TAKES_EXPECT = 16, TAKES_CLEAR = 32,
       TAKES_KEY = 64, TAKES_OUTPUT = 128 };

struct command_line {
    const char *folder, *output, *key;
    struct audit_want want;
    struct audit_filter filter;
    double hours;
    int limit, csv, all, yes, json;
    unsigned given;                         /* TAKES_* of the options that were given */
};

static int parse_status(const char *text, int *out)
{
    long long n;
    if (cli_parse_int(prog, "--status", text, 1, 599, &n))
        return CLI_USAGE;
    *out = (int)n;
    return n < 6 || n >= 100 ? 0 : cli_wrong(prog, "--status: '%s' is neither a code like 429 nor its first digit",
                                             text);
}

static int is_hash(const char *text)
{
    return strlen(text) == SHA256_HEX && strspn(text, "0123456789abcdef") == SHA256_HEX;
}

static int parse_since(const char *text, struct audit_want *want)
{
    int64_t s;
    want->since_hash = NULL;
    want->since_ms = 0;
    if (is_hash(text)) {
        want->since_hash = text;
        return 0;
    }
    if (cli_parse_time(prog, "--since", text, -1, &s))
        return CLI_USAGE;
    want->since_ms = s * 1000;
    return 0;
}

static int take(struct command_line *o, int c, const char *arg)
{
    static const struct { int c; unsigned takes; } needs[] = {
        { 'H', TAKES_HOURS }, { 'l', TAKES_LIMIT }, { 'k', TAKES_KEY }, { 's', TAKES_FILTER }, { 'p', TAKES_FILTER },
            { 'm', TAKES_FILTER },
        { OPT_LATENCY, TAKES_FILTER }, { 'f', TAKES_EXPORT }, { 'o', TAKES_OUTPUT }, { OPT_EXPECT, TAKES_EXPECT },
        { OPT_SINCE, TAKES_EXPECT }, { OPT_ALL, TAKES_CLEAR }, { OPT_YES, TAKES_CLEAR },
    };
    long long n;
    for (size_t i = 0; i < sizeof needs / sizeof *needs; i++)
        if (needs[i].c == c)
            o->given |= needs[i].takes;
    switch (c) {
    case 'H': return cli_parse_float(prog, "--hours", arg, 0.001, 1e6, &o->hours);
    case 'l':
        if (cli_parse_int(prog, "--limit", arg, 1, 1000000, &n))
            return CLI_USAGE;
        o->limit = (int)n;
        return 0;
    case 'k': o->key = o->filter.key_name = arg; return 0;
    case 's': return parse_status(arg, &o->filter.status);
    case 'p': o->filter.path = arg; return 0;
    case 'm': o->filter.method = arg; return 0;
    case OPT_LATENCY: return cli_parse_float(prog, "--min-latency", arg, 0, 1e12, &o->filter.min_latency_ms);
    case 'f':
        o->csv = strcmp(arg, "csv") == 0;
        return o->csv || strcmp(arg, "jsonl") == 0 ? 0
                                                   : cli_wrong(prog, "--format: '%s' is neither jsonl nor csv", arg);
    case 'o': o->output = arg; return 0;
    case OPT_EXPECT:
        o->want.expect = arg;
        return is_hash(arg) ? 0 : cli_wrong(prog, "--expect: '%s' is no hash of %d lower-case hexadecimal digits", arg,
                                            SHA256_HEX);
    case OPT_SINCE: return parse_since(arg, &o->want);
    case OPT_ALL: o->all = 1; return 0;
    case OPT_YES: o->yes = 1; return 0;
    case OPT_FOLDER: o->folder = arg; return 0;
    case 'j': o->json = 1; return 0;
    default: return cli_usage(usage);
    }
}

/* ---- commands ---- */

/* Print a line from the log, with characters replaced that would control a terminal or begin
 * another line. */
static void print_line(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void print_line(const char *fmt, ...)
{
    va_list ap;
    char *text;
    va_start(ap, fmt);
    const int n = vasprintf(&text, fmt, ap);
    va_end(ap);
    if (n < 0)
        return;
    cli_plain(text, (size_t)n + 1, text);
    for (char *p = text; *p; p++)
        if (*p == '\n' || *p == '\t')
            *p = '?';
        /* U+2028 to U+202E and U+2066 to U+2069: ends of lines, and changes of direction */
        else if ((strncmp(p, "\xe2\x80", 2) == 0 && (unsigned char)p[2] >= 0xa8 && (unsigned char)p[2] <= 0xae) ||
                 (strncmp(p, "\xe2\x81", 2) == 0 && (unsigned char)p[2] >= 0xa6 && (unsigned char)p[2] <= 0xa9))
            memset(p, '?', 3);
    puts(text);
    free(text);
}

static void print_counts(const char *title, const json_t *o)
{
    const char *key;
    json_t *v;
    if (json_object_size(o))
        printf("%s\n", title);
    json_object_foreach((json_t *)o, key, v)
        print_line("  %10" JSON_INTEGER_FORMAT "  %s", json_integer_value(v), key);
}

static json_int_t count_of(const json_t *o, const char *key) { return json_integer_value(json_object_get(o, key)); }

static void note_skipped(uint64_t n)
{
    if (n)
        cli_note(prog, "skipped %" PRIu64 " line%s of the log that are no entries", n, plural((int64_t)n));
}

static int summary(const struct command_line *o, const char *folder, struct err *e)
{
    json_t *s = audit_summary(folder, o->hours > 0 ? o->hours : 24, 0, e);
    if (!s)
        return -1;
    if (o->json) {
        cli_json(s);
    } else {
        const double hours = json_real_value(json_object_get(s, "period_hours"));
        const json_int_t n = count_of(s, "total_requests"), errors = count_of(s, "errors"),
                         keys = count_of(s, "unique_keys"), tokens = count_of(s, "total_tokens");
        printf("last %g hour%s: %" JSON_INTEGER_FORMAT " request%s, %" JSON_INTEGER_FORMAT " error%s, %"
               JSON_INTEGER_FORMAT " key%s\n", hours, hours == 1 ? "" : "s", n, plural(n), errors, plural(errors), keys,
               plural(keys));
        printf("mean latency %.1f ms, %" JSON_INTEGER_FORMAT " token%s (%" JSON_INTEGER_FORMAT " of prompts, %"
               JSON_INTEGER_FORMAT " of answers)\n",
               json_real_value(json_object_get(s, "avg_latency_ms")), tokens, plural(tokens),
               count_of(s, "prompt_tokens"), count_of(s, "completion_tokens"));
        print_counts("by path", json_object_get(s, "endpoints"));
        print_counts("by status", json_object_get(s, "status_codes"));
        print_counts("by key", json_object_get(s, "keys"));
        print_counts("by model", json_object_get(s, "models"));
        note_skipped((uint64_t)count_of(s, "skipped_lines"));
    }
    json_decref(s);
    return 0;
}

static const char *text_or(const json_t *o, const char *key, const char *otherwise)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : otherwise;
}

static void print_entry(const char *line)
{
    json_t *o = json_loads(line, 0, NULL);
    if (!o)
        return;
    char times[32] = "";
    if (count_of(o, "count") > 1)
        snprintf(times, sizeof times, "  x%" JSON_INTEGER_FORMAT, count_of(o, "count"));
    print_line("%s  %" JSON_INTEGER_FORMAT "  %9.1f ms  %7" JSON_INTEGER_FORMAT "  %-16s  %-6s %s%s%s%s",
               text_or(o, "timestamp", "?"), count_of(o, "status_code"),
               json_number_value(json_object_get(o, "latency_ms")), count_of(o, "total_tokens"),
               text_or(o, "api_key_name", "-"), text_or(o, "method", "?"), text_or(o, "path", "?"),
               json_is_string(json_object_get(o, "model_id")) ? "  " : "", text_or(o, "model_id", ""), times);
    json_decref(o);
}

static int newest(const struct command_line *o, const char *folder, int usual, struct err *e)
{
    struct audit_scan s;
    char **lines;
    int n;
    if (audit_newest(folder, &o->filter, o->limit ? o->limit : usual, &lines, &n, &s, e))
        return -1;
    if (!o->json && n)
        printf("%-24s  %-6s  %9s  %7s  %-16s  %s\n", "time", "status", "took", "tokens", "key", "request");
    for (int i = 0; i < n; i++) {
        if (o->json)
            puts(lines[i]);
        else
            print_entry(lines[i]);
        free(lines[i]);
    }
    free(lines);
    note_skipped(s.bad);
    return 0;
}

struct sink { struct atomic_file file; char buffer[1 << 16]; size_t n; uint64_t rows; struct err *e; int failed; };

static int drain(struct sink *k)
{
    if (!k->failed && k->n && atomic_write(&k->file, k->buffer, k->n, k->e))
        k->failed = 1;
    k->n = 0;
    return k->failed;
}

static int put(void *user, const char *text, size_t n)
{
    struct sink *k = user;
    while (n && !k->failed) {
        const size_t some = n < sizeof k->buffer - k->n ? n : sizeof k->buffer - k->n;
        memcpy(k->buffer + k->n, text, some);
        k->n += some;
        text += some;
        n -= some;
        if (k->n == sizeof k->buffer)
            drain(k);
    }
    return k->failed;
}

static int put_line(void *user, const struct audit_record *r)
{
    struct sink *k = user;
    k->rows++;
    return put(k, r->line, r->size) || put(k, "\n", 1);
}

/* Check that the output is no file of the log: it would replace what is read. */
static int check_output(const char *folder, const char *output, struct err *e)
{
    struct stat out, st;
    const struct dirent *d;
    int same = 0;
    DIR *dir = stat(output, &out) == 0 ? opendir(folder) : NULL;
    while (dir && !same && (d = readdir(dir)))
        same = fstatat(dirfd(dir), d->d_name, &st, 0) == 0 && S_ISREG(st.st_mode) && st.st_dev == out.st_dev &&
               st.st_ino == out.st_ino;
    if (dir)
        closedir(dir);
    return same ? err_set(e, ERR_IO, "%s: is a file of the log, which this output must not replace", output) : 0;
}

static int export(const struct command_line *o, const char *folder, struct err *e)
{
    struct sink *k = calloc(1, sizeof *k);
    struct audit_scan s;
    if (!k)
        return err_nomem(e, "the export");
    k->e = e;
    if (cli_output_open(&k->file, o->output, e)) {
        free(k);
        return -1;
    }
    int rc = o->csv ? audit_csv(folder, &o->filter, put, k, &k->rows, e)
                    : audit_scan(folder, &o->filter, put_line, k, &s, e);
    if (rc == 0)
        rc = drain(k) ? -1 : cli_output_commit(&k->file, e);
    if (rc)
        atomic_abort(&k->file);
    else if (strcmp(o->output, "-") != 0)
        cli_note(prog, "%s: %" PRIu64 " line%s", o->output, k->rows, plural((int64_t)k->rows));
    free(k);
    return rc;
}

/* ---- verify ---- */

/* Verify both chains.  A hash given with --since belongs to one of them; the other is checked
 * without it. */
static int check_chains(const struct command_line *o, const char *folder, struct audit_check c[AUDIT_CHAINS],
                        struct err *e)
{
    int found = 0;
    for (int i = 0; i < AUDIT_CHAINS; i++) {
        if (audit_verify(folder, (enum audit_chain)i, &o->want, &c[i], e))
            return -1;
        found |= c[i].since_found;
    }
    for (int i = 0; i < AUDIT_CHAINS && found; i++)
        if (!c[i].since_found && audit_verify(folder, (enum audit_chain)i,
                                              &(struct audit_want){ .expect = o->want.expect, .key = o->want.key },
                                              &c[i], e))
            return -1;
    for (int i = 0; i < AUDIT_CHAINS; i++) {            /* both, as a server starts both */
        const struct audit_check *other = &c[AUDIT_CHAINS - 1 - i];
        if (c[i].files || c[i].missing || !other->last_seq)
            continue;
        c[i].missing = 1;
        snprintf(c[i].what, sizeof c[i].what, "%.300s/%s.jsonl: all files of this chain are missing", folder,
                 audit_chain_name((enum audit_chain)i));
    }
    return 0;
}

static json_t *chain_json(const struct audit_check *c)
{
    return json_pack("{s:I,s:i,s:I,s:s,s:I,s:b,s:I,s:I,s:I,s:o,s:o}", "lines", (json_int_t)c->lines, "files", c->files,
                     "foreign_lines", (json_int_t)c->bad, "head", c->head, "last_seq", (json_int_t)c->last_seq,
                     "older_files_gone", c->older_gone, "cleared_lines", (json_int_t)c->cleared,
                     "signatures", (json_int_t)c->signatures, "unsigned_lines", (json_int_t)c->unsigned_lines,
                     "broken_at", c->broken ? json_string(c->where) : json_null(), "missing",
                     c->missing ? json_string(c->what) : json_null());
}

/* The first text if there is one, or else the second, or else null. */
static json_t *first_text(int has_first, const char *first, int has_second, const char *second)
{
    return has_first || has_second ? json_string(has_first ? first : second) : json_null();
}

static void verify_json(const struct command_line *o, const struct audit_check c[AUDIT_CHAINS], int good)
{
    const struct audit_check *k = &c[AUDIT_KEYS], *a = &c[AUDIT_ANONYMOUS];
    json_t *out = json_pack("{s:b,s:I,s:i,s:I,s:s,s:b,s:I,s:o,s:o,s:o,s:o,s:{s:o,s:o}}", "intact", good, "lines",
                            (json_int_t)(k->lines + a->lines), "files", k->files + a->files,
                            "foreign_lines", (json_int_t)(k->bad + a->bad), "head", k->head, "older_files_gone",
                            k->older_gone || a->older_gone, "cleared_lines", (json_int_t)(k->cleared + a->cleared),
                            "expected_found", o->want.expect ? json_boolean(k->found || a->found) : json_null(),
                            "since_found", o->want.since_hash ? json_boolean(k->since_found || a->since_found)
                                                              : json_null(),
                            "broken_at", first_text(k->broken, k->where, a->broken, a->where), "missing",
                            first_text(k->missing, k->what, a->missing, a->what), "chains",
                            audit_chain_name(AUDIT_KEYS), chain_json(k), audit_chain_name(AUDIT_ANONYMOUS),
                            chain_json(a));
    cli_json(out);
    json_decref(out);
}

static void print_heads(const struct audit_check c[AUDIT_CHAINS])
{
    for (int i = 0; i < AUDIT_CHAINS; i++)
        if (c[i].lines)
            printf("%s %s %" PRIu64 "\n", c[i].head, audit_chain_name((enum audit_chain)i), c[i].last_seq);
}

static void verify_text(const struct audit_check c[AUDIT_CHAINS])
{
    const struct audit_check *k = &c[AUDIT_KEYS], *a = &c[AUDIT_ANONYMOUS];
    const uint64_t lines = k->lines + a->lines, cleared = k->cleared + a->cleared;
    const int files = k->files + a->files;
    printf("intact: %" PRIu64 " line%s in %d file%s", lines, plural((int64_t)lines), files, plural(files));
    if (cleared)
        printf("; %" PRIu64 " line%s cleared", cleared, plural((int64_t)cleared));
    else if (k->older_gone || a->older_gone)
        printf("; older files were rotated away");
    puts("");
    print_heads(c);
    for (int i = 0; i < AUDIT_CHAINS; i++)
        if (c[i].signatures)
            printf("%" PRIu64 " good signature%s of %s; %" PRIu64 " line%s after the last\n", c[i].signatures,
                   plural((int64_t)c[i].signatures), audit_chain_name((enum audit_chain)i),
                   c[i].unsigned_lines, plural((int64_t)c[i].unsigned_lines));
}

/* Verify the log and print the result.  0; CLI_FAILED if the check found something; -1 if the log
 * cannot be read. */
static int verify(const struct command_line *o, const char *folder, struct err *e)
{
    struct audit_check c[AUDIT_CHAINS];
    if (check_chains(o, folder, c, e))
        return -1;
    const int unexpected = o->want.expect && !c[AUDIT_KEYS].found && !c[AUDIT_ANONYMOUS].found;
    int good = !unexpected;
    for (int i = 0; i < AUDIT_CHAINS; i++)
        good &= !c[i].broken && !c[i].missing;
    if (o->json)
        verify_json(o, c, good);
    else if (good)
        verify_text(c);
    for (int i = 0; i < AUDIT_CHAINS; i++) {
        if (c[i].broken)
            cli_note(prog, "%s", c[i].where);
        if (c[i].missing)
            cli_note(prog, "%s", c[i].what);
        if (c[i].bad && good)
            cli_note(prog, "%s.jsonl: %" PRIu64 " line%s outside of the chain (half a line of a crash, or foreign text)", audit_chain_name((enum audit_chain)i), c[i].bad, plural((int64_t)c[i].bad));
    }
    if (unexpected)
        cli_note(prog, "%s: the expected hash is not part of the log: its end was cut, it was rotated away, or the log was replaced", folder);
    return good ? 0 : CLI_FAILED;
}

static int head(const struct command_line *o, const char *folder, struct err *e)
{
    struct audit_check c[AUDIT_CHAINS];
    if (check_chains(o, folder, c, e))
        return -1;
    for (int i = 0; i < AUDIT_CHAINS; i++)
        if (c[i].broken || c[i].missing)
            return err_set(e, ERR_FORMAT, "%s", c[i].broken ? c[i].where : c[i].what);
    if (o->json) {
        json_t *out = json_pack("{s:s,s:I,s:{s:o,s:o}}", "head", c[AUDIT_KEYS].head, "lines",
                                (json_int_t)(c[AUDIT_KEYS].lines + c[AUDIT_ANONYMOUS].lines), "chains",
                                audit_chain_name(AUDIT_KEYS), chain_json(&c[AUDIT_KEYS]),
                                audit_chain_name(AUDIT_ANONYMOUS), chain_json(&c[AUDIT_ANONYMOUS]));
        cli_json(out);
        json_decref(out);
    } else {
        print_heads(c);
    }
    return 0;
}

/* ---- stats and clear ---- */

static void stats_text(const json_t *s)
{
    const json_t *a = json_object_get(s, "anonymous");
    const json_int_t rotated = count_of(s, "rotated_files"), n = count_of(s, "total_entries"),
                     errors = count_of(s, "error_entries"), lines = count_of(s, "lines");
    printf("%s: %.1f MB\n", json_string_value(json_object_get(s, "log_file")),
           json_real_value(json_object_get(s, "size_mb")));
    printf("%s: %.1f MB\n", json_string_value(json_object_get(a, "log_file")),
           json_real_value(json_object_get(a, "size_mb")));
    printf("%" JSON_INTEGER_FORMAT " rotated file%s, %.1f MB in all\n", rotated, plural(rotated),
           (double)count_of(s, "total_bytes") / 1e6);
    printf("%" JSON_INTEGER_FORMAT " request%s in %" JSON_INTEGER_FORMAT " line%s, %" JSON_INTEGER_FORMAT " error%s\n",
           n, plural(n), lines, plural(lines), errors, plural(errors));
    note_skipped((uint64_t)count_of(s, "skipped_lines"));
}

static int stats(const struct command_line *o, const char *folder, struct err *e)
{
    json_t *s = audit_files_json(folder, e);
    if (!s)
        return -1;
    if (o->json)
        cli_json(s);
    else
        stats_text(s);
    json_decref(s);
    return 0;
}

static int clear(const struct command_line *o, const char *folder, struct err *e)
{
    uint64_t n;
    if (!o->yes) {
        char answer[16] = "";
        if (!isatty(STDIN_FILENO))
            return err_set(e, ERR_IO, "clear: there is no terminal to ask on; use --yes");
        fprintf(stderr, "Empty %s%s? [y/N] ", folder, o->all ? " and remove its rotated files" : "");
        if (!fgets(answer, sizeof answer, stdin) || (answer[0] != 'y' && answer[0] != 'Y'))
            return err_set(e, ERR_CANCELLED, "clear: cancelled");
    }
    if (audit_clear(folder, o->all, &n, e))
        return -1;
    if (o->json) {
        json_t *out = json_pack("{s:s,s:I,s:b}", "status", "cleared", "lines", (json_int_t)n, "all_logs", o->all);
        cli_json(out);
        json_decref(out);
    } else {
        cli_note(prog, "%s: cleared, %" PRIu64 " line%s%s", folder, n, plural((int64_t)n),
                 o->all ? " and all rotated files" : "");
    }
    return 0;
}

enum command { SUMMARY, RECENT, QUERY, EXPORT, REPORT, VERIFY, HEAD, STATS, CLEAR };
static const struct { const char *name; enum command command; unsigned takes; } commands[] = {
    { "summary", SUMMARY, TAKES_HOURS }, { "recent", RECENT, TAKES_LIMIT },
        { "query", QUERY, TAKES_HOURS | TAKES_LIMIT | TAKES_FILTER | TAKES_KEY },
    { "export", EXPORT, TAKES_HOURS | TAKES_FILTER | TAKES_KEY | TAKES_EXPORT | TAKES_OUTPUT },
    { "report", REPORT, TAKES_HOURS | TAKES_FILTER | TAKES_KEY | TAKES_OUTPUT },
    { "verify", VERIFY, TAKES_EXPECT | TAKES_KEY }, { "head", HEAD, 0 }, { "stats", STATS, 0 },
    { "clear", CLEAR, TAKES_CLEAR },
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static int verify_with_key(const struct command_line *given, const char *folder, struct err *e)
{
    struct command_line o = *given;
    if (o.key && !(o.want.key = audit_checker_open(o.key, e)))
        return -1;
    const int rc = verify(&o, folder, e);
    audit_signer_close(o.want.key);
    return rc;
}

static int run(const struct command_line *o, enum command command, const char *folder, struct err *e)
{
    const int there = audit_exists(folder, e);
    if (there <= 0)
        return there ? -1 : err_set(e, ERR_IO, "%s/" AUDIT_FILE ": there is no audit log", folder);
    if ((command == EXPORT || command == REPORT) && check_output(folder, o->output, e) != 0)
        return -1;
    switch (command) {
    case SUMMARY: return summary(o, folder, e);
    case RECENT:  return newest(o, folder, 20, e);
    case QUERY:   return newest(o, folder, 100, e);
    case EXPORT:  return export(o, folder, e);
    case REPORT:  return audit_report(folder, &o->filter, o->hours > 0 ? o->hours : 24, audit_now_ms(), o->output, e);
    case VERIFY:  return verify_with_key(o, folder, e);
    case HEAD:    return head(o, folder, e);
    case STATS:   return stats(o, folder, e);
    case CLEAR:   return clear(o, folder, e);
    }
    return -1;
}

int main(int argc, char **argv)
{
    struct command_line o = { 0 };
    struct err e;
    int c, i = 0, code;
    cli_start();
    while ((c = cli_getopt(argc, argv, "H:l:k:s:p:m:f:o:jhV", long_options)) != -1) {
        if (c == 'h' && optind < argc && argv[optind][0] >= '0' && argv[optind][0] <= '9')
            return cli_wrong(prog, "-h is --help: the last N hours are -H %s", argv[optind]);
        if (c == 'h')
            return cli_help(usage);
        if (c == CLI_PRINT_DEFAULTS)
            return cli_defaults(usage);
        if (c == 'V')
            return cli_version(prog);
        if ((code = take(&o, c, optarg)))
            return code;
    }
    const char *name = optind < argc ? argv[optind++] : "summary";
    while (i < N_COMMANDS && strcmp(commands[i].name, name) != 0)
        i++;
    if (i == N_COMMANDS)
        return cli_no_command(prog, name, &commands[0].name, sizeof *commands, N_COMMANDS);
    if (optind < argc)
        return cli_wrong(prog, "%s: '%s' is an extra argument", name, argv[optind]);
    if (o.given & ~commands[i].takes)
        return cli_wrong(prog, "%s: an option that belongs to another command was given", name);
    if ((commands[i].takes & TAKES_OUTPUT) && !o.output)
        return cli_wrong(prog, "%s needs -o FILE ('-': standard output)", name);
    if (o.hours > 0)
        o.filter.since_ms = (int64_t)time(NULL) * 1000 - (int64_t)(o.hours * 3600e3);
    char *folder = o.folder ? strdup(o.folder) : home_folder(NULL, &e);
    if (!o.folder && folder) {
        char *inside = NULL;
        if (asprintf(&inside, "%s/audit", folder) < 0)
            inside = NULL;
        free(folder);
        folder = inside;
        if (!inside)
            err_nomem(&e, "the name of a folder");
    }
    if (!folder)
        return cli_fail(prog, &e);
    code = run(&o, commands[i].command, folder, &e);
    free(folder);
    if (code < 0)
        return cli_fail(prog, &e);
    return code ? code : cli_finish(prog);
}
