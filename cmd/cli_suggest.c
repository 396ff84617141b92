/* cli_suggest.c - suggest the command or option that a mistyped word probably stands for. */
#include "cmd/cli.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { LONGEST = 32 };

static int least_of(int a, int b) { return a < b ? a : b; }

/* Number of insertions, deletions, replacements and swaps of neighbours that turn a into b (optimal
 * string alignment); LONGEST if either is longer than that. */
static int distance(const char *a, const char *b)
{
    const size_t n = strlen(a), m = strlen(b);
    int row[3][LONGEST + 1];
    if (n > LONGEST || m > LONGEST)
        return LONGEST;
    for (size_t j = 0; j <= m; j++)
        row[0][j] = (int)j;
    for (size_t i = 1; i <= n; i++) {
        int *now = row[i % 3];
        const int *last = row[(i - 1) % 3], *before = row[(i + 1) % 3];
        now[0] = (int)i;
        for (size_t j = 1; j <= m; j++) {
            now[j] = least_of(least_of(last[j], now[j - 1]) + 1, last[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                now[j] = least_of(now[j], before[j - 2] + 1);
        }
    }
    return row[n % 3][m];
}

const char *cli_nearest(const char *word, const void *names, size_t stride, size_t n)
{
    const size_t length = strlen(word);
    const char *nearest = NULL;
    int least = (int)(length + 2) / 3 + 1;          /* a third of the letters may be wrong, rounded up */
    for (size_t i = 0; i < n && length > 1; i++) {
        const char *name;
        memcpy(&name, (const char *)names + i * stride, sizeof name);
        if (!name || !*name)
            continue;
        const size_t shared = strlen(name) < length ? strlen(name) : length;
        /* a prefix, like recom, or a longer word, like temperature */
        const int d = shared > 2 && strncmp(name, word, shared) == 0 ? 1 : distance(word, name);
        if (d < least && d < (int)strlen(name)) {
            least = d;
            nearest = name;
        }
    }
    return nearest;
}

int cli_no_command(const char *prog, const char *word, const void *names, size_t stride, size_t n)
{
    const char *near = cli_nearest(word, names, stride, n);
    return cli_wrong(prog, near ? "'%s' is not a command; did you mean '%s'?" : "'%s' is not a command", word, near);
}

int cli_is_mistyped(const char *word, const void *names, size_t stride, size_t n)
{
    return !strchr(word, '/') && access(word, F_OK) != 0 && cli_nearest(word, names, stride, n);
}

/* Suggest an option for an unknown long one: the last argument that getopt_long() took. */
static void suggest_option(const char *arg, const struct option *options)
{
    char name[LONGEST + 1];
    size_t n = 0;
    if (strncmp(arg, "--", 2) != 0 || strcspn(arg + 2, "=") >= sizeof name)
        return;
    snprintf(name, sizeof name, "%.*s", (int)strcspn(arg + 2, "="), arg + 2);
    for (; options[n].name; n++)
        if (strncmp(options[n].name, name, strlen(name)) == 0)
            /* getopt_long() reports ambiguous options and unexpected arguments itself */
            return;
    const char *near = cli_nearest(name, &options[0].name, sizeof *options, n);
    if (near)
        fprintf(stderr, "did you mean '--%s'?\n", near);
}

/* Suggest the long form of -c=VALUE, in which getopt_long() takes '=' for another option. */
static void suggest_long(const char *arg, const struct option *options)
{
    const char *value = arg[0] == '-' && arg[1] != '-' ? strchr(arg, '=') : NULL;
    for (; value && options->name; options++)
        if (options->val == value[-1] && options->has_arg)
            fprintf(stderr, "did you mean '--%s%s'?\n", options->name, value);
}

int cli_getopt(int argc, char *const *argv, const char *letters, const struct option *options)
{
    const int c = getopt_long(argc, argv, letters, options, NULL);
    if (c == '?' && opterr && optopt == 0 && optind > 0)
        suggest_option(argv[optind - 1], options);
    if (c == '?' && opterr && optopt == '=')
        suggest_long(argv[optind < argc && strchr(argv[optind], '=') ? optind : optind - 1], options);
    return c;
}
