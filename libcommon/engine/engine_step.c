/* engine_step.c - one step: end cancelled requests, plan (engine_plan.c), compute
 * (engine_lookahead.c), deliver (engine_deliver.c). */
#include "libcommon/base/clock.h"
#include "libcommon/engine/internal.h"
#include "libcommon/format/zfile.h"

static void count_step(struct engine *g, uint64_t ns)
{
    int i = 0;
    while (i < STEP_TIMES - 1 && ns >= 1000u << i)
        i++;
    g->count.steps++;
    g->count.step_ns += ns;
    g->count.step_times[i]++;
}

int is_broken(struct engine *g)
{
    if (!g->broken && g->m->file) {
        const int rc = zfile_check(g->m->file, &g->broken_error);
        g->broken = rc < 0 || (rc > 0 && zfile_compare(g->m->file, &g->broken_error) != 0);
        g->count.touched += rc > 0 && !g->broken;
    }
    return g->broken;
}

int engine_check(struct engine *g, struct err *e)
{
    if (!is_broken(g))
        return 0;
    *e = g->broken_error;
    return -1;
}

static int run_step(struct engine *g, struct err *e)
{
    const uint64_t begin = clock_ns();
    struct err mine;
    requests_sweep(g, begin);
    deliver_late(g);
    const int n_items = lookahead_run(g, &mine);
    if (n_items == 0 && g->n_running)
        masks_wait(g);
    if (n_items == 0)
        return g->n_running + g->n_waiting + g->n_pending;
    if (is_broken(g) || n_items < 0) {
        if (g->broken)
            mine = g->broken_error;
        while (g->n_running > 0)
            request_finish_early(g, g->running[g->n_running - 1], FINISH_ERROR, &mine);
        if (e)
            *e = mine;
        return -1;
    }
    deliver_step(g, n_items);
    const uint64_t ns = clock_ns() - begin;
    pace_learn(g, ns - draft_model_spent(g));
    count_step(g, ns);
    return g->n_running + g->n_waiting + g->n_pending;
}

int engine_step(struct engine *g, struct err *e)
{
    const int rc = run_step(g, e);
    if (g->watch.stepped)
        g->watch.stepped(g->watch.user);
    return rc;
}
