/* memory_watch.c - end a program before the machine runs out of memory. */
#include "cmd/memory_watch.h"

#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "cmd/cli.h"
#include "cmd/preflight_convert.h"
#include "libcommon/base/thread.h"
#include "libcommon/hw/memory.h"

/* The terminal's settings at the start; a line editor may have changed them at the end. */
struct watch { const char *prog; int has_terminal; struct termios terminal; };

static void end(const struct watch *w, const struct memory *m)
{
    char left[CLI_BYTES], most[CLI_BYTES];
    if (w->has_terminal)
        tcsetattr(STDIN_FILENO, TCSANOW, &w->terminal);
    cli_note(w->prog, "memory runs out: %s of %s are left; ending before the system ends a process",
             cli_bytes(left, memory_now(m)), cli_bytes(most, memory_most(m)));
    _exit(CLI_NO_MEMORY);
}

static void *run(void *arg)
{
    const struct watch *w = arg;
    const struct timespec half = { .tv_nsec = 500000000 };
    struct memory m;
    struct err ignored;
    for (int in_a_row = 0;; nanosleep(&half, NULL)) {
        in_a_row = memory_read(&m, preflight_root(), &ignored) == 0 && memory_runs_out(&m) ? in_a_row + 1 : 0;
        if (in_a_row == 2)
            end(w, &m);
    }
    return NULL;
}

void memory_watch_start(const char *prog)
{
    enum { STACK = 256 << 10 };         /* bytes; the default of 8 MB counts against limits of private memory */
    static struct watch w;              /* the thread uses it until the process ends */
    pthread_t t;
    pthread_attr_t attributes;
    w = (struct watch){ .prog = prog, .has_terminal = tcgetattr(STDIN_FILENO, &w.terminal) == 0 };
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    if (thread_start_with(&t, &attributes, run, &w) != 0)
        cli_note(prog, "no thread to watch the memory");
    pthread_attr_destroy(&attributes);
}
