/* expert_time.h - simulate policies for the experts of a device that does not hold all of them, on
 * the choices of a trace.
 *
 * A step computes the next `batch` tokens of the trace.  In each layer the device first computes
 * all but the experts.  Then the CPU computes some of the experts that the device lacks while the
 * link uploads the others, and the layer ends when both are done.  The device's own experts cost
 * no time. */
#ifndef ZSE_PLAN_EXPERT_TIME_H
#define ZSE_PLAN_EXPERT_TIME_H

#include "libcommon/plan/router_trace.h"

enum expert_policy {
    EXPERTS_FIRST,      /* the same experts stay, by number; the CPU computes the others */
    /* those chosen often move, a few before each step (expert_moves.h); the CPU computes the others
     * (--expert-uploads 0) */
    EXPERTS_MOVES,
    EXPERTS_UPLOADED,   /* every missing expert is uploaded, the least recently used one leaves */
    /* the same, but the link uploads some of the missing experts, in the ratio of the rates, to be
     * computed once (expert_share.h): what the engine does */
    EXPERTS_DIVIDED,
    EXPERTS_BEST,       /* the experts chosen most often in the whole trace stay, which no policy can know */
    N_EXPERT_POLICIES
};
const char *expert_policy_name(enum expert_policy p);

struct expert_rates {
    double link, cpu;           /* bytes of experts a second: uploaded, read and computed */
    double expert_bytes;
    double layer_s;             /* seconds that the device computes in a layer beside the experts */
};
struct expert_times {
    uint64_t choices, hits;     /* experts chosen by tokens; of these, on the device when the layer began */
    uint64_t computed, uploads; /* experts of steps that the CPU computed; uploads */
    double seconds;
    double link_s, cpu_s, both_s;       /* in which the link, the CPU, and both are busy */
};
/* Simulate n_slots experts of each layer on the device.  0; -1: no memory. */
int expert_simulate(const struct router_trace *t, enum expert_policy policy, int n_slots, int batch,
                    const struct expert_rates *rates, struct expert_times *out);

#endif
