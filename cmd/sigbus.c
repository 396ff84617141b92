/* sigbus.c - survive pages of mapped files that cannot be read. */
#include "cmd/sigbus.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cmd/cli.h"

enum { PLACES = 256, LINE = 4400 };

/* The guarded maps.  The handler reads this list in any thread, so it only grows. */
struct guarded_maps {
    _Atomic(struct map *) map[PLACES];
    _Atomic(struct guarded_maps *) next;
};
static struct guarded_maps first;
static atomic_int looking;              /* number of handlers that may be using a map of the list */
static const char *program;

/* ---- the path of any other file: a line of /proc/self/maps, "FROM-TO ... inode PATH" ---- */

static uintptr_t hexadecimal(const char **at)
{
    uintptr_t n = 0;
    for (;; (*at)++) {
        const char c = **at;
        if (c >= '0' && c <= '9')
            n = n * 16 + (uintptr_t)(c - '0');
        else if (c >= 'a' && c <= 'f')
            n = n * 16 + (uintptr_t)(c - 'a' + 10);
        else
            return n;
    }
}

/* The path in a line of /proc/self/maps if its range contains address; otherwise NULL. */
static const char *path_of(const char *line, uintptr_t address)
{
    const uintptr_t from = hexadecimal(&line);
    line += *line == '-';
    const char *path = strchr(line, '/');
    return address >= from && address < hexadecimal(&line) ? path : NULL;
}

/* Find the path of the file that is mapped at address.  /proc/self/maps is read byte by byte,
 * because a signal handler must not use stdio, and this happens only once. */
static const char *find_path(uintptr_t address, char line[LINE])
{
    const int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    const char *path = NULL;
    size_t n = 0;
    while (fd >= 0 && !path && read(fd, line + n, 1) == 1) {
        if (line[n] != '\n') {
            n += n + 1 < LINE;
            continue;
        }
        line[n] = '\0';
        path = path_of(line, address);
        n = 0;
    }
    if (fd >= 0)
        close(fd);
    return path;
}

/* ---- the signal ---- */

static void say(const char *text)
{
    char out[LINE];
    size_t n = 0;
    for (; text[n] && n < sizeof out; n++)
        out[n] = (unsigned char)text[n] < ' ' && text[n] != '\n' ? '?' : text[n];
    if (write(STDERR_FILENO, out, n) < 0)
        return;
}

static void say_who(void)
{
    const char *wipe = cli_progress_wipe();
    if (*wipe && write(STDERR_FILENO, wipe, strlen(wipe)) < 0)
        return;
    say(program);
    say(": ");
}

/* Map zeros from the page at address to the end of m, so that later pages cause no more signals. */
static int give_zeros(struct map *m, uintptr_t address)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = address / page * page,
                    end = (uintptr_t)m->data + m->size;
    if (mmap((void *)from, end - from, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) ==
        MAP_FAILED)
        return 0;
    m->lost = 1;
    return 1;
}

static int is_guarded(uintptr_t address)
{
    int found = 0;
    looking++;
    for (struct guarded_maps *p = &first; p && !found; p = p->next)
        for (int i = 0; i < PLACES && !found; i++) {
            struct map *m = p->map[i];
            found = m && address >= (uintptr_t)m->data && address - (uintptr_t)m->data < m->size &&
                    give_zeros(m, address);
        }
    looking--;
    return found;
}

static void on_bus(int number, siginfo_t *info, void *context)
{
    const uintptr_t address = (uintptr_t)info->si_addr;
    char line[LINE];
    (void)context;
    if (is_guarded(address))
        return;
    const char *path = info->si_code > 0 ? find_path(address, line) : NULL;
    if (!path) {                        /* no file is mapped there: act as without this handler */
        signal(number, SIG_DFL);
        raise(number);
        return;
    }
    say_who();
    say(path);
    say(": " MAP_LOST "\n");
    _exit(CLI_FAILED);
}

void sigbus_start(const char *prog)
{
    struct sigaction a = { .sa_sigaction = on_bus, .sa_flags = SA_SIGINFO };
    if (program)
        return;
    program = prog;
    sigaction(SIGBUS, &a, NULL);
}

/* The list node after p, made if there is none; NULL: no memory. */
static struct guarded_maps *after(struct guarded_maps *p)
{
    struct guarded_maps *next = p->next, *none = NULL, *more = next ? NULL : calloc(1, sizeof *more);
    if (next || !more)
        return next;
    if (atomic_compare_exchange_strong(&p->next, &none, more))
        return more;
    free(more);                         /* another thread added one first */
    return none;
}

void sigbus_guard(struct map *m)
{
    for (struct guarded_maps *p = &first; p; p = after(p))
        for (int i = 0; i < PLACES; i++) {
            struct map *none = NULL;
            if (atomic_compare_exchange_strong(&p->map[i], &none, m))
                return;
        }
    say_who();
    say(m->path);
    say(": no memory to guard it: if the file is truncated while in use, the program ends\n");
}

void sigbus_unguard(struct map *m)
{
    for (struct guarded_maps *p = &first; p; p = p->next)
        for (int i = 0; i < PLACES; i++)
            if (p->map[i] == m)
                p->map[i] = NULL;
    while (looking)                     /* another thread's handler may have found m just before */
        sched_yield();
}
