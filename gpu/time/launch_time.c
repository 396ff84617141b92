/* launch_time.c - the time of one launch, from its counts and the constants of a GPU. */
#include "gpu/time/launch_time.h"

#include <math.h>

#include "gpu/kernels/operations.h"

enum { SCHEDULERS = 4, REGISTERS = 65536, MOST_BLOCKS = 32, OWN_SHARED = 1024 /* that a block takes besides */,
       /* of a multiprocessor and cycle: bytes of shared memory, exponentials (CUDA programming
        * guide, throughput of arithmetic instructions) */
       SHARED_BYTES = 128, EXPS = 16 };

/* The part of a multiprocessor that a block occupies. */
struct room { int threads, registers, blocks; size_t shared; };

static struct room room_of(const struct timed_launch *l)
{
    return (struct room){ .threads = l->threads, .registers = (l->registers + 7) / 8 * 8 * l->threads, .blocks = 1,
                          .shared = l->shared + OWN_SHARED };
}

/* The number of blocks of l that fit on a multiprocessor beside n blocks of another launch. */
static int fit_beside(const struct timed_gpu *g, const struct timed_launch *l, struct room other, int n)
{
    const struct room r = room_of(l);
    const size_t shared = other.shared * (size_t)n;
    if (shared >= (size_t)g->shared_bytes)
        return 0;
    const int by_registers = r.registers ? (REGISTERS - n * other.registers) / r.registers : MOST_BLOCKS,
              by_shared = (int)(((size_t)g->shared_bytes - shared) / r.shared);
    int fit = (g->most_threads - n * other.threads) / r.threads;
    fit = by_registers < fit ? by_registers : fit;
    fit = by_shared < fit ? by_shared : fit;
    fit = MOST_BLOCKS - n < fit ? MOST_BLOCKS - n : fit;
    return fit > 0 ? fit : 0;
}

/* The number of blocks that fit on a multiprocessor at the same time. */
static int resident(const struct timed_gpu *g, const struct timed_launch *l)
{
    const int n = fit_beside(g, l, (struct room){ 0 }, 0);
    return n > 1 ? n : 1;
}

enum cause { LAUNCH, WAITS, MEMORY, L2, ISSUE, TENSOR, SHARED, EXP, LOADS, N_CAUSES };
static const char *const names[N_CAUSES] = { "launch", "waits", "memory", "L2", "issue", "tensor", "shared", "exp",
                                         "loads" };

/* The progress of a launch before it may read the results of the launch before: the part of the
 * waits before its first loads that is over, bytes that have arrived, and the part of a load's
 * latency that is over. */
struct head_start { double waits, bytes, seconds; };

/* Add the seconds of a round of n blocks to sum[]; by: the cause that the main loop waits for. */
static double add_round(const struct timed_gpu *g, const struct timed_launch *l, double n, struct head_start h,
                        double *sum)
{
    const double share = n / l->active, on_one = ceil(n / g->n_sms), sm = on_one / n,
                 latency = l->turn_memory * g->memory_cycles + l->turn_l2 * g->l2_cycles,
                 turn = l->ahead ? fmax(latency, l->turn_cycles) : latency + l->turn_cycles;
    double s[N_CAUSES] = {
        [MEMORY] = (l->bytes * share - h.bytes) / (g->memory * g->memory_share), [L2] = l->l2_bytes * share / g->l2,
        [ISSUE] = l->issue * share * sm / (SCHEDULERS * g->clock * g->issue_share),
        [TENSOR] = l->done * share * sm * g->n_sms / (g->tensor * (l->wgmma ? g->wgmma_share : g->mma_share)),
        [SHARED] = l->shared_bytes * share * sm / (SHARED_BYTES * g->clock),
        [EXP] = l->exps * share * sm / (EXPS * g->clock), [LOADS] = l->turns * turn / g->clock - h.seconds };
    enum cause most = MEMORY;
    for (enum cause c = L2; c < N_CAUSES; c++)
        most = s[c] > s[most] ? c : most;
    sum[most] += s[most];
    return s[most];
}

double timed_gap(const struct timed_gpu *g) { return g->dependent_s > 0 ? g->dependent_s : g->launch_s; }

/* A stage begins with words: their store, and the load that sees them, which is the load of the
 * first data of the stage.  Words are loaded again and again, so the last load waits until the one
 * before it has ended, which takes longer than a latency if there are many. */
enum { WORD = 2 /* latencies of L2 */ };
static double word_seconds(const struct timed_gpu *g, double bytes)
{
    const double latency = g->l2_cycles / g->clock;
    return WORD * latency + fmax(0, bytes / g->l2 - latency);
}

/* The time before a launch, or a stage, from the end of the one before it. */
static double time_before(const struct timed_gpu *g, const struct timed_launch *before, const struct timed_launch *l)
{
    return l->stage > 0 ? word_seconds(g, l->words)
           : l->follows && !l->together && !(before && before->together) ? timed_gap(g) : g->launch_s;
}

static double wait_seconds(const struct timed_gpu *g, double memory, double l2, double cycles)
{
    return (memory * g->memory_cycles + l2 * g->l2_cycles + cycles) / g->clock;
}
static double alone_seconds(const struct timed_gpu *g, const struct timed_launch *l)
{
    return wait_seconds(g, l->alone_memory, l->alone_l2, l->alone_cycles);
}

/* Seconds of a launch that runs in one round in which memory has nothing to do, before its last
 * block is alone. */
static double idle_seconds(const struct timed_gpu *g, const struct timed_launch *l)
{
    double sum[N_CAUSES] = { 0 };
    const double loop = add_round(g, l, l->active, (struct head_start){ 0 }, sum);
    return wait_seconds(g, l->setup_memory, l->setup_l2, l->setup_cycles) + loop -
           l->bytes / (g->memory * g->memory_share);
}

/* A dependent launch loads its first weights while the launch before still runs: beside its blocks,
 * if there is room and its last round has begun, and with all of its own blocks while the last one
 * of the launch before is alone and in the gap between both.  Only time in which memory would be
 * idle counts. */
static struct head_start head_start_of(const struct timed_gpu *g, const struct timed_launch *before,
                                       const struct timed_launch *l)
{
    if (!before || (l->early <= 0 && l->early_l2 <= 0) ||
        (l->stage == 0 && (!l->follows || g->dependent_s <= 0 || l->together || before->together)))
        return (struct head_start){ 0 };
    const int fits = resident(g, before), on_one = (int)ceil((double)before->active / g->n_sms),
              beside = l->stage == 0 && on_one <= fits ? fit_beside(g, l, room_of(before), on_one) : 0;
    const double rate = g->memory * g->memory_share, latency = g->memory_cycles / g->clock,
                 at_once = fmin(l->active, (double)g->n_sms * resident(g, l)),
                 /* of a stage: from the end of the loop, or if no warp ends before words are sent,
                  * from there; and in blocks without work in the stage before */
                 ahead = l->stage > 0 ? wait_seconds(g, 0, WORD, before->frees) : timed_gap(g),
                 free = l->stage > 0 ? fmax(g->n_sms - (double)before->active, 0) : (double)g->n_sms * beside,
                 some = l->stage > 0 ? 0 : 1,           /* of idle time: all blocks have it */
                 lone = ahead + alone_seconds(g, before), waits = wait_seconds(g, 0, l->early_l2, l->early_cycles),
                 loop_idle = free > 0 ? fmax(idle_seconds(g, before), 0) : 0,
                 idle = fmax(loop_idle - waits, 0),
                 late = lone - fmax(waits - some * loop_idle, 0) + l->arriving / g->clock,
                 loop = fmin(fmin(at_once, free) * l->early, fmax(idle - latency, 0) * rate),
                 all = fmin(at_once * l->early, loop + fmax(late - (some * loop > 0 ? 0 : latency), 0) * rate);
    const struct head_start over = { .waits = fmin(waits, lone + some * loop_idle) };
    return late <= 0 ? over : (struct head_start){ over.waits, fmin(all, l->bytes * at_once / l->active),
                                                   l->early > 0 ? fmin(latency, late + some * idle) : 0 };
}

struct timed_cost timed_launch_cost(const struct timed_gpu *g, const struct timed_launch *before,
                                    const struct timed_launch *l)
{
    const double at_once = (double)g->n_sms * resident(g, l), full = floor(l->active / at_once),
                 rest = l->active - full * at_once, rounds = full + (rest > 0);
    const struct head_start h = head_start_of(g, before, l);
    struct head_start first = h;
    const double setup = wait_seconds(g, l->setup_memory, l->setup_l2, l->setup_cycles),
                 /* instead of first weights a block then waits for its first activations, unless
                  * they are words, which are there */
                 saved = fmin(h.seconds, fmax(g->memory_cycles - (l->stage > 0 ? 0 : g->l2_cycles), 0) / g->clock);
    double sum[N_CAUSES] = { [LAUNCH] = time_before(g, before, l),
                             /* other blocks of the multiprocessor hide the waits of later rounds */
                             [WAITS] = setup * (1 + (rounds > 1 ? rounds - 1 : 0) / resident(g, l)) - saved +
                                       alone_seconds(g, l) + wait_seconds(g, 0, l->early_l2, l->early_cycles) -
                                       h.waits };
    struct timed_cost c = { .seconds = sum[LAUNCH] + sum[WAITS],
                            .roof_s = fmax(l->bytes / g->memory, l->flop / g->tensor) };
    for (double left = full; left > 0; ) {      /* the first round, then all others like it */
        const double n = first.seconds > 0 ? 1 : left;
        double one[N_CAUSES] = { 0 };
        add_round(g, l, at_once, first, one);
        for (enum cause i = 0; i < N_CAUSES; i++) {
            sum[i] += n * one[i];
            c.seconds += n * one[i];
        }
        first = (struct head_start){ 0 };
        left -= n;
    }
    if (rest > 0)
        c.seconds += add_round(g, l, rest, first, sum);
    enum cause most = LAUNCH;
    for (enum cause i = WAITS; i < N_CAUSES; i++)
        most = sum[i] > sum[most] ? i : most;
    c.limit = names[most];
    return c;
}
