/* timeline.c - intervals in which a resource is busy. */
#include "libcommon/plan/timeline.h"

#include <stdlib.h>

static void append(struct timeline *t, double from, double to)
{
    if (t->n && t->busy[t->n - 1].to >= from) {
        t->busy[t->n - 1].to = to;
        return;
    }
    if (t->n == t->room) {
        const size_t room = t->room ? 2 * t->room : 64;
        struct busy *more = realloc(t->busy, room * sizeof *more);
        if (!more) {
            t->failed = 1;
            return;
        }
        t->busy = more;
        t->room = room;
    }
    t->busy[t->n++] = (struct busy){ from, to };
}

double timeline_add(struct timeline *t, double earliest, double seconds)
{
    const double from = earliest > t->end ? earliest : t->end;
    if (seconds > 0)
        append(t, from, from + seconds);
    t->total += seconds;
    return t->end = from + seconds;
}

double timeline_until(const struct timeline *t, double end)
{
    struct busy all = { 0, end };
    const struct timeline until = { .busy = &all, .n = 1 };
    return timeline_both(t, &until);
}

double timeline_both(const struct timeline *a, const struct timeline *b)
{
    double both = 0;
    for (size_t i = 0, j = 0; i < a->n && j < b->n; ) {
        const double from = a->busy[i].from > b->busy[j].from ? a->busy[i].from : b->busy[j].from,
                     to = a->busy[i].to < b->busy[j].to ? a->busy[i].to : b->busy[j].to;
        both += to > from ? to - from : 0;
        if (a->busy[i].to < b->busy[j].to)
            i++;
        else
            j++;
    }
    return both;
}

void timeline_release(struct timeline *t)
{
    free(t->busy);
    *t = (struct timeline){ 0 };
}
