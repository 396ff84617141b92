/* watch.c - memory pressure and stalled engines: the reactions to each reading. */
#include "libcommon/serve/watch.h"

#include "libcommon/base/clock.h"
#include "libcommon/serve/exchange.h"
#include "libcommon/serve/internal.h"
#include "libcommon/serve/worker.h"

enum watch_state watch_next(enum watch_state before, const struct memory *m)
{
    static const uint64_t mib = 1 << 20;
    const uint64_t left = memory_now(m), most = memory_most(m);
    const double stalled = m->stalled_own && (double)left < 0.15 * (double)most ? m->stalled10 : 0;
    if (before == WATCH_END || memory_runs_out(m))
        return WATCH_END;
    if (before == WATCH_FINE)
        return memory_below(left, most, 0.03, 1024 * mib) || stalled >= 25 ? WATCH_TRIM : WATCH_FINE;
    return memory_below(left, most, 0.04, 1280 * mib) || stalled >= 10 ? WATCH_TRIM : WATCH_FINE;
}

void watch_step(struct memory_watch *w, const struct memory *m)
{
    const enum watch_state ask = watch_next(w->state, m), sure = ask < w->asked ? ask : w->asked;
    w->asked = ask;
    if (ask < w->state)
        w->state = ask;
    else if (sure > w->state)           /* TRIM comes before END */
        w->state = w->state == WATCH_FINE ? WATCH_TRIM : WATCH_END;
}

static void end(struct server *s, const struct memory *m)
{
    s->failed = 1;
    err_set(&s->error, ERR_MEMORY, "memory runs out: %.2f GB of %.2f GB are left; ending before the system ends the process",
            (double)memory_now(m) * 1e-9, (double)memory_most(m) * 1e-9);
    server_stop(s, 0);
}

void watch_tick(struct server *s)
{
    struct memory m;
    struct err ignored;
    if (s->o.no_watch || s->draining || memory_read(&m, s->o.sysroot, &ignored) != 0)
        return;
    const enum watch_state before = s->watch.state;
    watch_step(&s->watch, &m);
    const enum watch_state now = s->watch.state;
    if (now == WATCH_TRIM && before == WATCH_FINE)
        server_log(s, "memory is short: %.2f GB of %.2f GB are left, tasks stalled %.0f %% of the time; no new requests, no prefix cache", (double)memory_now(&m) * 1e-9,
                   (double)memory_most(&m) * 1e-9, m.stalled10 > 0 ? m.stalled10 : 0);
    if (now == WATCH_FINE && before != WATCH_FINE)
        server_log(s, "memory is back: %.2f GB are left", (double)memory_now(&m) * 1e-9);
    /* trim every second while memory is short, and once when the shortage is over, because requests
     * that ended in that last second have left prefixes */
    if (now == WATCH_TRIM || before == WATCH_TRIM)
        for (struct loaded_model *lm = s->models; lm; lm = lm->next)
            if (lm->worker)
                worker_trim(lm->worker);
    if (now == WATCH_END)
        end(s, &m);
}

static int stalls(const struct loaded_model *lm)
{
    return lm->s->o.stall_s > 0 && lm->worker && worker_step_s(lm->worker) > lm->s->o.stall_s;
}

const struct loaded_model *stall_find(const struct server *s)
{
    const struct loaded_model *lm = s->models;
    while (lm && !stalls(lm))
        lm = lm->next;
    return lm;
}

void stall_tick(struct server *s)
{
    for (struct loaded_model *lm = s->models; lm; lm = lm->next) {
        const int now = stalls(lm);
        if (now && !lm->stalled)
            server_warn(s, "%s: no step has ended for %.0f s, although requests wait; /health answers 503 until one does", lm->id, worker_step_s(lm->worker));
        else if (!now && lm->stalled)
            server_warn(s, "%s: steps go on", lm->id);
        lm->stalled = now;
        if (now && s->o.timeout_s > 0 && clock_ns() > (uint64_t)(s->o.timeout_s * 1e9))
            /* the stalled engine cannot check their time limits itself */
            calls_give_up(lm, clock_ns() - (uint64_t)(s->o.timeout_s * 1e9));
    }
}
