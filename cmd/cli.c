/* cli.c - exit codes, messages, numbers of the command line and the progress bar of all
 * programs. */
#include "cmd/cli.h"
#include "cmd/help_text.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/json.h"
#include "libcommon/base/utf8.h"
#include "libcommon/format/zfile.h"

void cli_hide_memory(void)
{
    struct rlimit l;
    if (getrlimit(RLIMIT_CORE, &l) == 0) {
        l.rlim_cur = 0;
        setrlimit(RLIMIT_CORE, &l);
    }
    /* RLIMIT_CORE does not apply to a core_pattern that is a pipe; this does */
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
}

void cli_start(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF &&
            open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd)
            _exit(CLI_FAILED);          /* not even /dev/null opens, and there is no stream for a message */
}

int cli_help(const char *usage)
{
    help_print(stdout, usage, strlen(usage));
    return fflush(stdout) || ferror(stdout) ? CLI_FAILED : CLI_OK;
}

int cli_defaults(const char *usage)
{
    help_print_defaults(stdout, usage, strlen(usage));
    return fflush(stdout) || ferror(stdout) ? CLI_FAILED : CLI_OK;
}

int cli_version(const char *prog)
{
    printf("%s %s\n", prog, ZSE_VERSION);
    return fflush(stdout) ? CLI_FAILED : CLI_OK;
}

/* Protects the last line of the terminal, which is a bar or a message. */
static pthread_mutex_t terminal = PTHREAD_MUTEX_INITIALIZER;
static atomic_int bar_drawn;
static int progress_lines;             /* --progress json; set before any thread starts */

const char *cli_progress_wipe(void) { return bar_drawn ? "\r\033[K" : ""; }

static void begin_message(void)
{
    pthread_mutex_lock(&terminal);
    fputs(cli_progress_wipe(), stderr);
    bar_drawn = 0;
}

static void end_message(void) { pthread_mutex_unlock(&terminal); }

int cli_usage(const char *usage)
{
    const char *end = usage;
    do {                                /* only the synopsis: more lines would scroll getopt's message away */
        end = strchr(end, '\n') + 1;
    } while (*end == ' ');
    help_print(stderr, usage, (size_t)(end - usage));
    fputs("--help lists the options\n", stderr);
    return CLI_USAGE;
}

const char *cli_plain(char *out, size_t room, const char *text)
{
    size_t n = 0;
    for (; *text && n + 1 < room; text++) {
        unsigned char c = (unsigned char)*text;
        /* U+009B starts a control sequence, as ESC [ does */
        int c1 = c == 0xC2 && (unsigned char)text[1] >= 0x80 && (unsigned char)text[1] < 0xA0;
        out[n++] = (c < ' ' && c != '\n' && c != '\t') || c == 0x7f || c1 ? '?' : *text;
        text += c1;
    }
    if (*text)
        n -= utf8_incomplete(out, n);
    out[n] = '\0';
    return out;
}

void cli_note(const char *prog, const char *fmt, ...)
{
    va_list ap;
    char *text = NULL;
    va_start(ap, fmt);
    if (vasprintf(&text, fmt, ap) < 0)
        text = NULL;
    va_end(ap);
    begin_message();
    fprintf(stderr, "%s: %s\n", prog, text ? cli_plain(text, strlen(text) + 1, text) : "out of memory");
    end_message();
    free(text);
}

int cli_wrong(const char *prog, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    begin_message();
    fprintf(stderr, "%s: ", prog);
    vfprintf(stderr, fmt, ap);
    fprintf(stderr, "\n%s --help shows the usage\n", prog);
    end_message();
    va_end(ap);
    return CLI_USAGE;
}

int cli_fail(const char *prog, const struct err *e)
{
    cli_note(prog, "%s", e->msg);
    return CLI_FAILED;
}

static int flush_errno;     /* errno of the first failed write, which stdio does not keep */

void cli_flush(void)
{
    if (fflush(stdout) != 0 && !flush_errno)
        flush_errno = errno;
}

int cli_finish(const char *prog)
{
    cli_flush();
    int bad = ferror(stdout);
    errno = flush_errno;
    if (fclose(stdout) || bad) {
        cli_note(prog, "standard output: %s", errno ? strerror(errno) : "write failed");
        return CLI_FAILED;
    }
    return CLI_OK;
}

int cli_ask(const char *fmt, ...)
{
    char answer[16] = "";
    va_list ap;
    struct pollfd input = { .fd = STDIN_FILENO, .events = POLLIN };
    sigset_t interrupts, before;
    if (!isatty(STDIN_FILENO) || !isatty(STDERR_FILENO))
        return 0;
    /* SIGINT is blocked from the question to ppoll(); otherwise a Ctrl-C in between would be
     * noticed only after a line of input. */
    sigemptyset(&interrupts);
    sigaddset(&interrupts, SIGINT);
    sigaddset(&interrupts, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &interrupts, &before);
    va_start(ap, fmt);
    begin_message();
    vfprintf(stderr, fmt, ap);
    fputs(" [y/N] ", stderr);
    end_message();
    va_end(ap);
    int typed = 0;
    while (typed == 0 && !cli_interrupted())
        typed = ppoll(&input, 1, NULL, &before) == 1;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return typed && fgets(answer, sizeof answer, stdin) && (answer[0] == 'y' || answer[0] == 'Y');
}

/* The value of the first of two variables that is set and not empty, or NULL. */
static const char *first_set(const char *const names[2])
{
    const char *v = getenv(names[0]);
    if (!v || !*v)
        v = getenv(names[1]);
    return v && *v ? v : NULL;
}

const char *cli_api_key(const char *given)
{
    static const char *const names[2] = { "ZSE_API_KEY", "OPENAI_API_KEY" };
    return given ? given : first_set(names);
}

const char *cli_ca_file(void)
{
    static const char *const names[2] = { "CURL_CA_BUNDLE", "SSL_CERT_FILE" };
    return first_set(names);
}

char *cli_expand_home(const char *path)
{
    const char *home = getenv("HOME");
    char *out;
    if (path[0] != '~' || path[1] != '/' || !home || !*home)
        return strdup(path);
    return asprintf(&out, "%s%s", home, path + 1) < 0 ? NULL : out;
}

/* Whether path is a .zse or GGUF file.  atomic_open() reports a file that cannot be read. */
static int is_model(const char *path)
{
    unsigned char head[64];
    FILE *f = fopen(path, "rb");
    const size_t n = f ? fread(head, 1, sizeof head, f) : 0;
    if (f)
        fclose(f);
    return zfile_is(head, n) || (n >= 4 && memcmp(head, "GGUF", 4) == 0);
}

int cli_output_open(struct atomic_file *f, const char *path, struct err *e)
{
    char temp[4096];
    struct stat st;
    const char *dir = getenv("TMPDIR");
    if (strcmp(path, "-") != 0) {
        if (stat(path, &st) == 0 && S_ISREG(st.st_mode) && is_model(path))
            return err_set(e, ERR_IO, "%s: is a model, which this output must not replace; name another file", path);
        return atomic_open(f, path, e);
    }
    snprintf(temp, sizeof temp, "%s/zse-output-XXXXXX", dir && *dir ? dir : "/tmp");
    /* a temporary file, because the output is written at offsets */
    *f = (struct atomic_file){ .fd = mkstemp(temp), .path = strdup("standard output") };
    if (f->fd < 0)
        err_sys(e, "%s", temp);
    else
        unlink(temp);
    if (f->fd >= 0 && f->path)
        return 0;
    atomic_abort(f);
    return -1;
}

int cli_output_commit(struct atomic_file *f, struct err *e)
{
    char buf[1 << 16];
    ssize_t n;
    if (f->temp)
        return atomic_commit(f, e);
    lseek(f->fd, 0, SEEK_SET);
    while ((n = read(f->fd, buf, sizeof buf)) > 0)
        if (fwrite(buf, 1, (size_t)n, stdout) != (size_t)n)
            break;
    int bad = n != 0 || fflush(stdout) != 0;
    if (bad)
        err_sys(e, "standard output");
    atomic_abort(f);
    return bad ? -1 : 0;
}

void cli_json(const json_t *json)
{
    json_dumpf(json, stdout, JSON_INDENT(1) | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(9));
    putchar('\n');
}

int cli_parse_int(const char *prog, const char *option, const char *text, long long min, long long max, long long *out)
{
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (end == text || *end || isspace((unsigned char)*text))
        return cli_wrong(prog, "%s: '%s' is not a whole number", option, text);
    if (errno || v < min || v > max)
        return cli_wrong(prog, "%s: %s is not in the range %lld to %lld", option, text, min, max);
    *out = v;
    return 0;
}

int cli_parse_float(const char *prog, const char *option, const char *text, double min, double max, double *out)
{
    char *end;
    double v = strtod(text, &end);
    if (end == text || *end || isspace((unsigned char)*text) || isnan(v))
        return cli_wrong(prog, "%s: '%s' is not a number", option, text);
    if (v < min || v > max)
        return cli_wrong(prog, "%s: %s is not in the range %g to %g", option, text, min, max);
    *out = v;
    return 0;
}

int cli_parse_size(const char *prog, const char *option, const char *text, uint64_t *out)
{
    static const char letters[] = "kmgtp";
    char *end;
    double v = strtod(text, &end), unit = 1;
    /* hexadecimal and nan are refused */
    if (end == text || !isdigit((unsigned char)*text) || strpbrk(text, "xXnN"))
        return cli_wrong(prog, "%s: '%s' is not a size like 6GB, 512MiB or 4096", option, text);
    const char *letter = *end ? strchr(letters, tolower((unsigned char)*end)) : NULL;
    if (letter) {
        int binary = tolower((unsigned char)end[1]) == 'i';
        unit = pow(binary ? 1024 : 1000, (double)(letter - letters + 1));
        end += 1 + binary;
    }
    if (*end && strcasecmp(end, "b") != 0)
        return cli_wrong(prog, "%s: '%s' is not a size like 6GB, 512MiB or 4096", option, text);
    if (v * unit >= 0x1p63)
        return cli_wrong(prog, "%s: %s is too large", option, text);
    *out = (uint64_t)llround(v * unit);
    return 0;
}

int cli_parse_time(const char *prog, const char *option, const char *text, int direction, int64_t *out_s)
{
    static const struct { char unit; int64_t s; } units[] = { { 'd', 86400 }, { 'h', 3600 }, { 'm', 60 } };
    struct tm t = { 0 };
    char *rest;
    const long n = strtol(text, &rest, 10);
    for (int i = 0; i < 3; i++)
        if (rest != text && rest[0] == units[i].unit && rest[1] == '\0' && n > 0 && n < 1000000)
            return *out_s = (int64_t)time(NULL) + direction * n * units[i].s, 0;
    rest = strptime(text, "%Y-%m-%d", &t);
    if (rest && *rest == 'T')
        rest = strptime(rest, "T%H:%M:%SZ", &t);
    *out_s = rest && !*rest ? (int64_t)timegm(&t) : 0;
    return *out_s > 0 ? 0 : cli_wrong(prog, "%s: '%s' is neither a date like 2027-01-31 or 2027-01-31T12:00:00Z nor a time like 90d, 12h or 30m", option, text);
}

static size_t scaled(char *out, size_t room, double n, double base, const char *const *units)
{
    int i = 0;
    while (i < 5 && n >= base * 0.99995)
        n /= base, i++;
    int digits = i == 0 || n >= 999.5 ? 0 : n < 9.995 ? 2 : n < 99.95 ? 1 : 0;
    return (size_t)snprintf(out, room, "%.*f %s", digits, n, units[i]);
}

static const char *const decimal[] = { "B", "kB", "MB", "GB", "TB", "PB" };
static const char *const binary[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB" };

const char *cli_bytes(char out[CLI_BYTES], uint64_t n)
{
    scaled(out, CLI_BYTES, (double)n, 1000, decimal);
    return out;
}

const char *cli_bytes_both(char out[CLI_BYTES], uint64_t n)
{
    size_t at = scaled(out, CLI_BYTES, (double)n, 1000, decimal);
    if (n >= 1000) {
        char second[CLI_BYTES / 2];
        scaled(second, sizeof second, (double)n, 1024, binary);
        snprintf(out + at, CLI_BYTES - at, " (%s)", second);
    }
    return out;
}

const char *cli_duration(char out[CLI_BYTES], double s)
{
    if (!(s >= 0 && s < 1e9))
        snprintf(out, CLI_BYTES, "?");
    else if (s < 10)
        snprintf(out, CLI_BYTES, "%.1f s", s);
    else if (s < 59.5)
        snprintf(out, CLI_BYTES, "%.0f s", s);
    else if (s < 3599.5)
        snprintf(out, CLI_BYTES, "%d min %02d s", (int)(s + 0.5) / 60, (int)(s + 0.5) % 60);
    else
        snprintf(out, CLI_BYTES, "%d h %02d min", (int)(s / 3600), (int)(s / 60) % 60);
    return out;
}

/* A signal handler can only access globals; this is the one of the programs. */
static atomic_int interrupted;          /* also read by threads that do not handle the signal */

static void on_signal(int number)
{
    interrupted = number;
}

void cli_catch_interrupt(void)
{
    static const int numbers[] = { SIGINT, SIGTERM };
    /* SA_RESETHAND: a second Ctrl-C ends the program at once */
    struct sigaction a = { .sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND }, old;
    sigemptyset(&a.sa_mask);
    for (int i = 0; i < 2; i++)
        /* ignored under nohup and in background jobs of a script */
        if (sigaction(numbers[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN)
            sigaction(numbers[i], &a, NULL);
}

int cli_interrupted(void)
{
    return interrupted;
}

void cli_ignore_pipe(struct sigaction *before)
{
    struct sigaction ignore = { .sa_handler = SIG_IGN };
    sigemptyset(&ignore.sa_mask);
    sigaction(SIGPIPE, &ignore, before);
}

void cli_restore_pipe(const struct sigaction *before)
{
    sigaction(SIGPIPE, before, NULL);
    cli_flush();
    if (flush_errno == EPIPE)
        raise(SIGPIPE);
}

void cli_die_of_interrupt(void)
{
    if (!interrupted)
        return;
    signal(interrupted, SIG_DFL);
    raise(interrupted);
}

static int terminal_width(void)
{
    struct winsize w;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col >= 20 ? w.ws_col : 80;
}

static void format_rate(char *out, size_t room, double rate, const char *unit)
{
    if (strcmp(unit, "bytes") == 0) {
        char b[CLI_BYTES];
        snprintf(out, room, "%s/s", cli_bytes(b, (uint64_t)rate));
    } else {
        snprintf(out, room, "%.*f %s/s", rate < 10 ? 2 : 0, rate, unit);
    }
}

static void draw(struct cli_progress *p, uint64_t done, uint64_t total, const char *unit, double elapsed)
{
    char line[256], rate[64] = "", eta[CLI_BYTES] = "";
    double speed = elapsed > 0 ? (double)(done - p->first) / elapsed : 0;
    if (speed > 0) {
        format_rate(rate, sizeof rate, speed, unit);
        if (total >= done)
            cli_duration(eta, (double)(total - done) / speed);
    }
    int percent = total ? (int)(100.0 * (double)done / (double)total) : 0;
    char bar[21];
    for (int i = 0; i < 20; i++)
        bar[i] = i < percent / 5 ? '#' : '.';
    bar[20] = '\0';
    int n = snprintf(line, sizeof line, "%s %3d %% [%s] %s%s%s", p->what, percent, bar, rate, *eta ? ", left: " : "",
                     eta);
    int width = terminal_width() - 1;
    if (n > width)
        n = width;
    if (n > (int)sizeof line - 1)
        n = (int)sizeof line - 1;
    pthread_mutex_lock(&terminal);
    fprintf(stderr, "\r%.*s\033[K", n, line);
    fflush(stderr);
    bar_drawn = 1;
    pthread_mutex_unlock(&terminal);
}

/* Write a report as one line.  The first report of a step and its last one are written at once,
 * those between them at most five times a second.  1: the reader is gone. */
static int write_line(struct cli_progress *p, const char *what, uint64_t done, uint64_t total, const char *unit)
{
    const uint64_t now = clock_ns();
    const int same = p->start_ns && strncmp(p->what, what, sizeof p->what - 1) == 0;
    if (same && (p->ended || (now - p->drawn_ns < 200000000u && done < total)))
        return 0;
    snprintf(p->what, sizeof p->what, "%s", what);
    p->start_ns = p->drawn_ns = now;
    p->ended = total && done >= total;
    json_t *j = json_pack("{s:o, s:I, s:I, s:s}", "step", js_text(what), "done", (json_int_t)done, "total",
                          (json_int_t)total, "unit", unit);
    char *text = j ? json_dumps(j, JSON_COMPACT) : NULL;
    json_decref(j);
    pthread_mutex_lock(&terminal);
    const int gone = text && (fprintf(stderr, "%s\n", text) < 0 || fflush(stderr) != 0);
    pthread_mutex_unlock(&terminal);
    free(text);
    return gone;
}

static int report(void *user, const char *what, uint64_t done, uint64_t total, const char *unit)
{
    struct cli_progress *p = user;
    uint64_t now = clock_ns();
    if (interrupted) {
        cli_progress_clear();
        return 1;
    }
    if (progress_lines)
        return write_line(p, what, done, total, unit);
    if (!p->on)
        return 0;
    if (p->start_ns == 0 || strncmp(p->what, what, sizeof p->what - 1) != 0) {
        snprintf(p->what, sizeof p->what, "%s", what);
        p->start_ns = now;
        p->first = done;
    }
    if (now - p->start_ns < 1000000000u || (now - p->drawn_ns < 100000000u && done < total))
        return 0;
    p->drawn_ns = now;
    draw(p, done, total, unit, (double)(now - p->start_ns) * 1e-9);
    return 0;
}

int cli_progress_form(const char *prog, const char *form)
{
    if (strcmp(form, "json") != 0 && strcmp(form, "bar") != 0)
        return cli_wrong(prog, "--progress: '%s', expected bar or json", form);
    progress_lines = strcmp(form, "json") == 0;
    return 0;
}

void cli_progress_init(struct cli_progress *p)
{
    memset(p, 0, sizeof *p);
    p->progress.report = report;
    p->progress.user = p;
    p->on = isatty(STDERR_FILENO);
}

void cli_progress_clear(void)
{
    begin_message();
    end_message();
}
