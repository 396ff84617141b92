/* launch_time.c - the time of one launch, from its counts and the constants of a GPU. */
#include "gpu/time/launch_time.h"

#include <math.h>

enum { SCHEDULERS = 4, REGISTERS = 65536, MOST_BLOCKS = 32, OWN_SHARED = 1024 /* that a block takes besides */,
       /* of a multiprocessor and cycle: bytes of shared memory, exponentials (CUDA programming
        * guide, throughput of arithmetic instructions) */
       SHARED_BYTES = 128, EXPS = 16 };

/* The number of blocks that fit on a multiprocessor at the same time. */
static int resident(const struct timed_gpu *g, const struct timed_launch *l)
{
    const int registers = (l->registers + 7) / 8 * 8 * l->threads,
              by_registers = registers ? REGISTERS / registers : MOST_BLOCKS,
              by_shared = (int)((size_t)g->shared_bytes / (l->shared + OWN_SHARED));
    int n = g->most_threads / l->threads;
    n = by_registers < n ? by_registers : n;
    n = by_shared < n ? by_shared : n;
    n = n < MOST_BLOCKS ? n : MOST_BLOCKS;
    return n > 1 ? n : 1;
}

enum cause { LAUNCH, WAITS, MEMORY, L2, ISSUE, TENSOR, SHARED, EXP, LOADS, N_CAUSES };
static const char *const names[N_CAUSES] = { "launch", "waits", "memory", "L2", "issue", "tensor", "shared", "exp",
                                         "loads" };

/* Add the seconds of a round of n blocks to sum[]; by: the cause that the main loop waits for. */
static double add_round(const struct timed_gpu *g, const struct timed_launch *l, double n, double *sum)
{
    const double share = n / l->active, on_one = ceil(n / g->n_sms), sm = on_one / n,
                 latency = l->turn_memory * g->memory_cycles + l->turn_l2 * g->l2_cycles,
                 turn = l->ahead ? fmax(latency, l->turn_cycles) : latency + l->turn_cycles;
    double s[N_CAUSES] = {
        [MEMORY] = l->bytes * share / (g->memory * g->memory_share), [L2] = l->l2_bytes * share / g->l2,
        [ISSUE] = l->issue * share * sm / (SCHEDULERS * g->clock * g->issue_share),
        [TENSOR] = l->done * share * sm * g->n_sms / (g->tensor * (l->wgmma ? g->wgmma_share : g->mma_share)),
        [SHARED] = l->shared_bytes * share * sm / (SHARED_BYTES * g->clock),
        [EXP] = l->exps * share * sm / (EXPS * g->clock), [LOADS] = l->turns * turn / g->clock };
    enum cause most = MEMORY;
    for (enum cause c = L2; c < N_CAUSES; c++)
        most = s[c] > s[most] ? c : most;
    sum[most] += s[most];
    return s[most];
}

double timed_gap(const struct timed_gpu *g) { return g->dependent_s > 0 ? g->dependent_s : g->launch_s; }

struct timed_cost timed_launch_cost(const struct timed_gpu *g, const struct timed_launch *l)
{
    const double at_once = (double)g->n_sms * resident(g, l), full = floor(l->active / at_once),
                 rest = l->active - full * at_once, rounds = full + (rest > 0);
    const double setup = (l->setup_memory * g->memory_cycles + l->setup_l2 * g->l2_cycles + l->setup_cycles) / g->clock;
    double sum[N_CAUSES] = { [LAUNCH] = l->follows ? timed_gap(g) : g->launch_s,
                             /* other blocks of the multiprocessor hide the waits of later rounds */
                             [WAITS] = setup * (1 + (rounds > 1 ? rounds - 1 : 0) / resident(g, l)) };
    struct timed_cost c = { .seconds = sum[LAUNCH] + sum[WAITS],
                            .roof_s = fmax(l->bytes / g->memory, l->flop / g->tensor) };
    if (full > 0) {
        double one[N_CAUSES] = { 0 };
        add_round(g, l, at_once, one);
        for (enum cause i = 0; i < N_CAUSES; i++) {
            sum[i] += full * one[i];
            c.seconds += full * one[i];
        }
    }
    if (rest > 0)
        c.seconds += add_round(g, l, rest, sum);
    enum cause most = LAUNCH;
    for (enum cause i = WAITS; i < N_CAUSES; i++)
        most = sum[i] > sum[most] ? i : most;
    c.limit = names[most];
    return c;
}
