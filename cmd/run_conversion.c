/* run_conversion.c - run a conversion with a progress bar, notes and Ctrl-C. */
#include "cmd/run_conversion.h"

#include <signal.h>

#include "cmd/cli.h"
#include "cmd/sigbus.h"
#include "libcommon/import/source.h"

static void note(void *prog, const char *text) { cli_note(prog, "%s", text); }

static int convert(const char *prog, struct convert_options *o, struct hub_stream *stream, struct convert_report *r,
                   struct err *e)
{
    static const struct map_guard guard = { sigbus_guard, sigbus_unguard };
    const struct source_options open = { .arriving = stream ? hub_stream_arriving(stream) : NULL, .guard = &guard };
    struct cli_progress progress;
    struct sigaction before[2];
    cli_progress_init(&progress);
    sigaction(SIGINT, NULL, &before[0]);
    sigaction(SIGTERM, NULL, &before[1]);
    cli_catch_interrupt();
    o->open = &open;
    o->progress = stream ? hub_stream_progress(stream, &progress.progress) : &progress.progress;
    o->note = note;
    o->note_user = (void *)(uintptr_t)prog;
    const int rc = convert_run(o, r, e);
    cli_progress_clear();
    if (!stream) {                      /* a stream handles the signals itself until it is closed */
        sigaction(SIGINT, &before[0], NULL);
        sigaction(SIGTERM, &before[1], NULL);
    }
    o->open = NULL;
    o->progress = NULL;
    return rc;
}

int run_conversion(const char *prog, struct convert_options *o, struct hub_stream *stream, char **found,
                   struct convert_report *r, struct err *e)
{
    const int rc = convert(prog, o, stream, r, e), end = stream ? hub_stream_close(stream, rc, found, e) : 0;
    if (!stream)
        return rc;
    o->source = *found;
    if (end == 1) {                     /* the stream fell back to an older commit in the cache */
        if (r)
            convert_report_release(r);
        return convert(prog, o, NULL, r, e);
    }
    if (rc == 0 && end != 0)
        cli_note(prog, "%s", e->msg);   /* the conversion succeeded, the download did not */
    return rc;
}
