/* tp_group.c - the order between the work of a group's devices and that of the first one, for
 * graphs that the first one launches for all. */
#include "gpu/backend/internal.h"

int group_gather(struct tp_group *t, struct err *e)
{
    struct gpu *lead = t->rank[0]->g;
    for (int i = 1; i < t->n; i++) {
        struct gpu *g = t->rank[i]->g;
        if (gpu_use(g, e) < 0 || gpu_event_record(g, GPU_COMPUTE, t->order[i], e) < 0 || gpu_use(lead, e) < 0 ||
            gpu_event_wait(lead, GPU_COMPUTE, t->order[i], e) < 0)
            return -1;
    }
    return gpu_use(lead, e);
}

int group_release(struct tp_group *t, struct err *e)
{
    struct gpu *lead = t->rank[0]->g;
    if (gpu_use(lead, e) < 0 || gpu_event_record(lead, GPU_COMPUTE, t->order[0], e) < 0)
        return -1;
    for (int i = 1; i < t->n; i++)
        if (gpu_use(t->rank[i]->g, e) < 0 || gpu_event_wait(t->rank[i]->g, GPU_COMPUTE, t->order[0], e) < 0)
            return -1;
    return gpu_use(lead, e);
}
