#include "libcommon/serve/watch.h"

#include "libcommon/base/clock.h"
#include "libcommon/serve/server_impl.h"
#include "libcommon/serve/worker.h"

enum watch_state watch_next(enum watch_state before, const struct memory *m)
{
    const double left = (double)memory_now(m) / (double)memory_most(m);
    if (before == WATCH_FINE)
        return left < 0.05 || m->stalled10 >= 25 ? WATCH_SHED : WATCH_FINE;
    if (before == WATCH_END || left < 0.02)
        return WATCH_END;
    return left < 0.10 || m->stalled10 >= 10 ? WATCH_SHED : WATCH_FINE;
}

static void end(struct server *s, const struct memory *m)
{
    s->failed = 1;
    err_set(&s->error, ERR_MEMORY, "memory runs out: %.2f GB of %.2f GB are left; ending before the system does it", (double)memory_now(m) * 1e-9,
            (double)memory_most(m) * 1e-9);
    server_stop(s, 0);
}

void watch_tick(struct server *s)
{
    struct memory m;
    struct err ignored;
    if (s->o.no_watch || s->draining || memory_read(&m, s->o.sysroot, &ignored) != 0)
        return;
    const enum watch_state before = s->watch;
    s->watch = watch_next(before, &m);
    if (s->watch == WATCH_SHED && before == WATCH_FINE)
        server_log(s, "memory is short: %.2f GB of %.2f GB are left, stalled %.0f %% of the time; no new requests, no prefix cache", (double)memory_now(&m) * 1e-9,
                   (double)memory_most(&m) * 1e-9, m.stalled10 > 0 ? m.stalled10 : 0);
    if (s->watch == WATCH_FINE && before != WATCH_FINE)
        server_log(s, "memory is back: %.2f GB are left", (double)memory_now(&m) * 1e-9);
    if (s->watch == WATCH_SHED)
        for (struct hosted *h = s->models; h; h = h->next)
            if (h->worker)
                worker_shed(h->worker);         /* again each second: what ends meanwhile leaves prefixes, too */
    if (s->watch == WATCH_END)
        end(s, &m);
}
