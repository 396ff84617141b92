/* memory_note.c - print the memory of this process (--verbose). */
#include "cmd/memory_note.h"

#include <stdint.h>

#include "cmd/cli.h"
#include "cmd/preflight_convert.h"
#include "libcommon/hw/memory.h"
#include "libcommon/hw/sysfile.h"

void memory_note(const char *prog, const char *what)
{
    static const char *const keys[] = { "VmRSS", "RssAnon", "VmSize" };
    char status[8192], text[5][CLI_BYTES];
    struct memory m;
    struct err ignored;
    if (sys_read(NULL, "/proc/self/status", status, sizeof status) < 0 ||
        memory_read(&m, preflight_root(), &ignored) != 0)
        return;
    for (int i = 0; i < 3; i++)
        cli_bytes(text[i], (uint64_t)sys_field(status, keys[i], 0) * 1024);
    cli_note(prog, "memory: %s: %s resident (%s private), %s mapped; %s available, %s page cache", what, text[0],
             text[1], text[2], cli_bytes(text[3], memory_now(&m)), cli_bytes(text[4], m.cached));
}
